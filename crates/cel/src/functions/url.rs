//! Functions of URLs.

use std::collections::BTreeMap;

use crate::budget::Error;
use crate::estimate::rule;
use crate::value::url::Url;
use crate::value::{MapKey, Other, Value};

rows! {
    "url(string) -> URL", rule::COPIED, |_, text: text| {
        let url = Url::parse(text).map(Other::Url);
        let why = || format!("URL parse error during conversion from string: {text:?}");
        url.ok_or_else(|| Error::other(why()))?
    };
    "isURL(string) -> bool", rule::ONE, |_, text: text| Url::parse(text).is_some();
    "URL.getScheme() -> string", rule::ONE, |_, url: url| url.scheme.as_str();
    "URL.getHost() -> string", rule::ONE, |_, url: url| url.host.as_str();
    "URL.getHostname() -> string", rule::ONE, |_, url: url| url.hostname.as_str();
    "URL.getPort() -> string", rule::ONE, |_, url: url| url.port.as_str();
    "URL.getEscapedPath() -> string", rule::ONE, |_, url: url| url.path.as_str();
    "URL.getQuery() -> map(string,list(string))", rule::ONE, |_, url: url| query(url);
}

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
