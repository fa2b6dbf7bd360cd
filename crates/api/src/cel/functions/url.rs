//! URLs.

use std::collections::BTreeMap;

use super::Found;
use crate::cel::eval::Error;
use crate::cel::value::{Key, Value};

/// The parts of a URL that expressions can ask for.
#[derive(Debug)]
pub struct Url {
    pub(in crate::cel) text: String,
    scheme: String,
    host: String,
    hostname: String,
    port: String,
    path: String,
    query: String,
}

impl Url {
    /// An absolute URL, or an absolute path.
    pub(super) fn parse(text: &str) -> Option<Url> {
        if text.is_empty() || text.chars().any(|c| c.is_ascii_control()) {
            return None;
        }
        let (rest, _fragment) = text.split_once('#').unwrap_or((text, ""));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let scheme_end = rest.find(':').filter(|end| {
            let scheme = &rest[..*end];
            scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
        });
        let (scheme, rest) = match scheme_end {
            Some(end) => (&rest[..end], &rest[end + 1..]),
            None if rest.starts_with('/') => ("", rest),
            None => return None,
        };
        let (host, path) = match rest.strip_prefix("//") {
            Some(rest) => match rest.find('/') {
                Some(end) => rest.split_at(end),
                None => (rest, ""),
            },
            None => ("", rest),
        };
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        let (hostname, port) = match host.strip_prefix('[') {
            Some(rest) => {
                let (name, after) = rest.split_once(']')?;
                (name, after.strip_prefix(':').unwrap_or(after))
            }
            None => host.rsplit_once(':').unwrap_or((host, "")),
        };
        if host.contains(' ') || !port.chars().all(|c| c.is_ascii_digit()) {
            return None;
        }
        Some(Url {
            text: text.to_owned(),
            scheme: scheme.to_ascii_lowercase(),
            host: host.to_owned(),
            hostname: hostname.to_owned(),
            port: port.to_owned(),
            path: escape(path),
            query: query.to_owned(),
        })
    }

    fn query<'a>(&self) -> Value<'a> {
        let mut found: BTreeMap<Key, Vec<Value<'a>>> = BTreeMap::new();
        for pair in self.query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let values = found.entry(Key::Text(decode(key).into())).or_default();
            values.push(decode(value).into());
        }
        let found: BTreeMap<Key, Value<'a>> =
            found.into_iter().map(|(key, values)| (key, values.into())).collect();
        found.into()
    }
}

/// A path in which everything that may not stand in one is escaped.
fn escape(path: &str) -> String {
    let mut escaped = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            byte if byte.is_ascii_alphanumeric() => escaped.push(char::from(byte)),
            byte if b"-_.~$&+,/:;=@!'()*[]%".contains(&byte) => escaped.push(char::from(byte)),
            byte => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

/// Undoes the escapes of a query.
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
        "getQuery" => url.query(),
        _ => return Err(Error::NoSuchOverload),
    })
}
