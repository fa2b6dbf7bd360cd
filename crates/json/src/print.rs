//! The JSON printer, with the HTML escapes of Go's encoder (S1.33).
//!
//! River: trees → **json** → bytes that are stored and sent. Every write prints its object, so text
//! is copied in runs; only bytes that need an escape are handled one by one.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::Formatter;

use super::{Map, Value};
use crate::wide::length_before;

/// Compact JSON in which `<`, `>`, `&`, U+2028 and U+2029 are escaped.
///
/// ```
/// let bytes = headwater_json::to_vec(&serde_json::json!({ "a": "<b>" }));
/// assert_eq!(bytes, br#"{"a":"\u003cb\u003e"}"#);
/// ```
pub fn to_vec(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, Escaped);
    value.serialize(&mut serializer).expect("what has text keys can be written to memory");
    bytes
}

/// Writes a tree as JSON.
pub fn push_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(number) => match number.as_i64() {
            Some(number) => out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes()),
            // Writing to memory cannot fail.
            None => _ = write!(out, "{number}"),
        },
        Value::String(text) => push_string(out, text),
        Value::Array(items) => {
            out.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                push_value(out, item);
            }
            out.push(b']');
        }
        Value::Object(members) => push_object(out, members),
    }
}

fn push_object(out: &mut Vec<u8>, members: &Map) {
    out.push(b'{');
    for (index, (key, value)) in members.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        push_member(out, key, value);
    }
    out.push(b'}');
}

/// Writes a key, a colon and a tree.
pub fn push_member(out: &mut Vec<u8>, key: &str, value: &Value) {
    push_string(out, key);
    out.push(b':');
    push_value(out, value);
}

/// Writes text as a JSON string.
pub fn push_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    push_text(out, text);
    out.push(b'"');
}

/// Writes the text between the quotes of a JSON string.
pub fn push_text(out: &mut Vec<u8>, text: &str) {
    let mut rest = text.as_bytes();
    loop {
        let plain = length_before(rest, is_special, &SPECIAL);
        out.extend_from_slice(&rest[..plain]);
        rest = &rest[plain..];
        if rest.is_empty() {
            return;
        }
        rest = &rest[push_letter(out, rest)..];
    }
}

/// Whether a byte is escaped, or may start a character that is.
#[inline(always)]
const fn is_special(byte: u8) -> bool {
    (byte < b' ')
        | (byte == b'"')
        | (byte == b'&')
        | (byte == b'<')
        | (byte == b'>')
        | (byte == b'\\')
        | (byte == 0xE2)
}

static SPECIAL: [bool; 256] = {
    let mut special = [false; 256];
    let mut byte = 0;
    while byte < special.len() {
        special[byte] = is_special(byte as u8);
        byte += 1;
    }
    special
};

/// Writes a character that starts with a special byte and returns its length in bytes.
fn push_letter(out: &mut Vec<u8>, bytes: &[u8]) -> usize {
    let length = match bytes {
        [byte @ (b'"' | b'\\'), ..] => {
            out.extend_from_slice(&[b'\\', *byte]);
            return 1;
        }
        [0xE2, 0x80, 0xA8 | 0xA9, ..] => 3,
        [0xE2, ..] => {
            out.push(0xE2);
            return 1;
        }
        _ => 1,
    };
    push_escape(out, &bytes[..length]);
    length
}

fn push_escape(out: &mut Vec<u8>, letter: &[u8]) {
    let code = match letter {
        b"\n" => return out.extend_from_slice(b"\\n"),
        b"\r" => return out.extend_from_slice(b"\\r"),
        b"\t" => return out.extend_from_slice(b"\\t"),
        b"\x08" => return out.extend_from_slice(b"\\b"),
        b"\x0c" => return out.extend_from_slice(b"\\f"),
        [0xE2, _, last] => 0x2000 + u32::from(last & 0x3F),
        [byte, ..] => u32::from(*byte),
        [] => return,
    };
    // Writing to memory cannot fail.
    let _ = write!(out, "\\u{code:04x}");
}

/// A formatter that adds the HTML escapes.
#[derive(Clone, Copy, Debug, Default)]
struct Escaped;

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
    use super::*;
    use crate::json;
    use proptest::prelude::*;

    #[test]
    fn escapes_are_those_of_kubernetes_and_parse_back() {
        let value = json!({ "a<b": ["x & y", "\u{2028}\u{2029}", "\"\\\n", "é>"] });
        let text = String::from_utf8(to_vec(&value)).unwrap();
        let expected = r#"{"a\u003cb":["x \u0026 y","\u2028\u2029","\"\\\n","é\u003e"]}"#;
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }

    proptest! {
        #[test]
        fn trees_print_like_other_serializable_values(
            text in any::<String>(),
            plain in "[ -~\u{2020}-\u{2030}\u{0}-\u{20}]{0,40}",
            whole in any::<i64>(),
            float in any::<f64>().prop_filter("finite", |float| float.is_finite()),
        ) {
            let value = json!({ (text.clone()): [whole, float, null, true, text], "x": {"y": plain} });
            let mut out = Vec::new();
            push_value(&mut out, &value);
            prop_assert_eq!(out, to_vec(&value));
        }
    }
}
