//! Functions of URLs.

use std::collections::BTreeMap;

use super::Found;
use crate::budget::Error;
use crate::value::url::Url;
use crate::value::{MapKey, Value};

fn query<'a>(url: &Url) -> Value<'a> {
    let mut found: BTreeMap<MapKey, Vec<Value<'a>>> = BTreeMap::new();
    for pair in url.query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let values = found.entry(MapKey::Text(decode(key).into())).or_default();
        values.push(decode(value).into());
    }
    let found: BTreeMap<MapKey, Value<'a>> =
        found.into_iter().map(|(key, values)| (key, values.into())).collect();
    found.into()
}

/// Unescapes a query.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        let hex = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        match (first, tail.get(..2).and_then(hex)) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            (b'+', _) => bytes.push(b' '),
            (byte, _) => bytes.push(*byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(super) fn of_url<'a>(name: &str, url: &Url) -> Found<'a> {
    Ok(match name {
        "getScheme" => url.scheme.as_str().into(),
        "getHost" => url.host.as_str().into(),
        "getHostname" => url.hostname.as_str().into(),
        "getPort" => url.port.as_str().into(),
        "getEscapedPath" => url.path.as_str().into(),
        "getQuery" => query(url),
        _ => return Err(Error::NoSuchOverload),
    })
}
