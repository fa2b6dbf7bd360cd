//! JSON as Kubernetes prints it: what would mean something inside HTML is escaped (S1.33).
//!
//! River: trees → **json** → bytes that are stored and sent.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::Formatter;

/// Compact JSON without `<`, `>`, `&` and the line ends of scripts.
///
/// ```
/// let bytes = headwater_api::json::to_vec(&serde_json::json!({ "a": "<b>" }));
/// assert_eq!(bytes, br#"{"a":"\u003cb\u003e"}"#);
/// ```
pub fn to_vec(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut serializer = serializer(&mut bytes);
    value.serialize(&mut serializer).expect("what has text keys can be written to memory");
    bytes
}

/// The same, piece by piece.
pub fn serializer<W: Write>(out: W) -> serde_json::Serializer<W, Escaped> {
    serde_json::Serializer::with_formatter(out, Escaped)
}

/// Escapes what HTML would read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Escaped;

impl Formatter for Escaped {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(['<', '>', '&', '\u{2028}', '\u{2029}']) {
            let (before, from) = rest.split_at(at);
            out.write_all(before.as_bytes())?;
            let found = from.chars().next().expect("something was found there");
            write!(out, "\\u{:04x}", u32::from(found))?;
            rest = &from[found.len_utf8()..];
        }
        out.write_all(rest.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn escapes_are_those_of_kubernetes_and_read_back() {
        let value = json!({ "a<b": ["x & y", "\u{2028}\u{2029}", "\"\\\n", "é>"] });
        let text = String::from_utf8(to_vec(&value)).unwrap();
        let expected = r#"{"a\u003cb":["x \u0026 y","\u2028\u2029","\"\\\n","é\u003e"]}"#;
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }
}
