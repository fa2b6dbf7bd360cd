//! The JSON parser.
//!
//! Promise: no document overflows the stack, because nesting is limited. The parser reports the
//! paths of repeated keys and rejects values that it cannot represent exactly: numbers without an
//! equal machine number, text that is not Unicode. Error messages are those of Go's decoder, which
//! users know and search for.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use crate::path::{Path, PathList};
use crate::scan::Scanner;
use crate::wide::length_before;
use crate::{Map, MemberKey, Number, Text, Value};

/// The deepest nesting of a document. A stack overflow cannot be caught, so everything that walks a
/// tree must be safe at this depth on a worker's stack, in debug builds too.
pub const DEPTH_MAX: u32 = 512;

/// The maximum number of objects and lists in a document. Each takes hundreds of bytes in memory
/// but only two on the wire (`{}`); no object that fits into the store has as many.
pub const NESTED_MAX: usize = 200_000;

/// The initial capacity for members of open objects; enough for most documents.
const MEMBERS: usize = 64;

/// A parsed document.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed {
    /// The document; the last of repeated keys wins.
    pub value: Value,
    /// Paths of repeated keys.
    pub duplicates: PathList,
}

/// Why bytes are not a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed(String);

impl Malformed {
    /// An error with this message.
    pub fn new(why: impl Into<String>) -> Malformed {
        Malformed(why.into())
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Malformed {}

/// Parses a JSON document.
pub fn parse(body: &[u8]) -> Result<Parsed, Malformed> {
    let text = std::str::from_utf8(body)
        .map_err(|error| Malformed(format!("invalid UTF-8 at byte {}", error.valid_up_to())))?;
    let mut parser = Parser::new(text);
    let value = parser.value(&Path::Root)?;
    match parser.peek() {
        None => Ok(Parsed { value, duplicates: parser.duplicates }),
        Some(_) => Err(parser.unexpected("after top-level value")),
    }
}

/// Parses a document that was checked when it was written. The value of `verbatim`, a field of a
/// member of the document, becomes a string: its own text.
pub fn parse_stored(object: &[u8], verbatim: [&'static str; 2]) -> Result<Value, Malformed> {
    let text = std::str::from_utf8(object)
        .map_err(|error| Malformed(format!("invalid UTF-8 at byte {}", error.valid_up_to())))?;
    // Defaults may have added objects to a document that had as many as it may.
    let mut parser =
        Parser { nested_left: usize::MAX, verbatim: Some(verbatim), ..Parser::new(text) };
    parser.value(&Path::Root)
}

/// The path of every field of a document, in the order of the document. For small documents that
/// are known to be well-formed.
pub fn field_paths(body: &[u8]) -> Vec<String> {
    let mut parser = Parser::new(std::str::from_utf8(body).unwrap_or_default());
    parser.fields = Some(Vec::new());
    match parser.value(&Path::Root) {
        Ok(_) => parser.fields.unwrap_or_default(),
        Err(_) => Vec::new(),
    }
}

/// The length of the text up to a quote, a backslash or a control character, which a string must not
/// contain.
fn plain_length(bytes: &[u8]) -> usize {
    length_before(bytes, is_end, &ENDS)
}

#[inline(always)]
const fn is_end(byte: u8) -> bool {
    (byte < b' ') | (byte == b'"') | (byte == b'\\')
}

static ENDS: [bool; 256] = {
    let mut ends = [false; 256];
    let mut byte = 0;
    while byte < ends.len() {
        ends[byte] = is_end(byte as u8);
        byte += 1;
    }
    ends
};

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: u32,
    /// How many more objects and lists the document may have.
    nested_left: usize,
    /// Members of the open objects, outer ones first: a map is built when its size is known.
    members: Vec<(MemberKey, Value)>,
    duplicates: PathList,
    /// Paths of all fields so far; `None` if the caller does not need them.
    fields: Option<Vec<String>>,
    /// The member and its field that become a string.
    verbatim: Option<[&'static str; 2]>,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Parser<'a> {
        Parser {
            text,
            at: 0,
            depth: 0,
            nested_left: NESTED_MAX,
            members: Vec::with_capacity(MEMBERS),
            duplicates: PathList::default(),
            fields: None,
            verbatim: None,
        }
    }

    /// The next byte that is not white space, without moving past it.
    fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while let Some(byte) = bytes.get(self.at) {
            if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return Some(*byte);
            }
            self.at += 1;
        }
        None
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// The error for an unexpected byte at the current position, or for the end of the document.
    fn unexpected(&self, place: &str) -> Malformed {
        match self.byte() {
            None => Malformed::new("unexpected end of JSON input"),
            Some(byte) => Malformed(format!("invalid character {} {place}", quoted(byte))),
        }
    }

    fn value(&mut self, path: &Path<'_>) -> Result<Value, Malformed> {
        match self.peek() {
            Some(b'"') => Ok(Value::String(Text::from(self.string()?))),
            Some(b'{') => self.nested(|parser| parser.object(path)),
            Some(b'[') => self.nested(|parser| parser.array(path)),
            Some(b'-' | b'0'..=b'9') => self.number().map(Value::Number),
            Some(b't') => self.literal("true", Value::Bool(true)),
            Some(b'f') => self.literal("false", Value::Bool(false)),
            Some(b'n') => self.literal("null", Value::Null),
            _ => Err(self.unexpected("looking for beginning of value")),
        }
    }

    /// Reads the content of a bracket, one level deeper.
    fn nested(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<Value, Malformed>,
    ) -> Result<Value, Malformed> {
        if self.depth == DEPTH_MAX {
            return Err(Malformed::new("exceeded max depth"));
        }
        if self.nested_left == 0 {
            return Err(Malformed::new("exceeded max number of objects and lists"));
        }
        self.depth += 1;
        self.nested_left -= 1;
        self.at += 1;
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn object(&mut self, path: &Path<'_>) -> Result<Value, Malformed> {
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Value::Object(Map::new()));
        }
        let start = self.members.len();
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.unexpected("looking for beginning of object key string"));
            }
            let key = self.string()?;
            if self.peek() != Some(b':') {
                return Err(self.unexpected("after object key"));
            }
            self.at += 1;
            if let Some(fields) = &mut self.fields {
                fields.push(Path::Field(path, &key).to_string());
            }
            // Reserves the position before the members of nested objects.
            let at = self.members.len();
            self.members.push((MemberKey::new(&key), Value::Null));
            self.members[at].1 = match self.is_verbatim(path, &key) {
                true => self.skipped()?.into(),
                false => self.value(&Path::Field(path, &key))?,
            };
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(Value::Object(self.close(start, path)));
                }
                _ => return Err(self.unexpected("after object key:value pair")),
            }
        }
    }

    /// Builds an object from the members from `start` on.
    fn close(&mut self, start: usize, path: &Path<'_>) -> Map {
        let members = &self.members[start..];
        if members.is_sorted_by(|one, other| one.0 < other.0) {
            return Map::sorted(self.members.split_off(start));
        }
        repeated(members, |key| self.duplicates.push(Path::Field(path, key)));
        self.members.drain(start..).collect()
    }

    /// Whether the value of a key becomes a string.
    fn is_verbatim(&self, path: &Path<'_>, key: &str) -> bool {
        match (self.verbatim, path) {
            (Some(verbatim), Path::Field(Path::Root, above)) => verbatim == [*above, key],
            _ => false,
        }
    }

    /// The text of the value at the current position.
    fn skipped(&mut self) -> Result<&'a str, Malformed> {
        let mut scanner = Scanner::at(self.text.as_bytes(), self.at as u32);
        let span = scanner.value().map_err(|_| Malformed::new("unexpected end of JSON input"))?;
        self.at = scanner.offset();
        Ok(&self.text[span.start as usize..span.end as usize])
    }

    fn array(&mut self, path: &Path<'_>) -> Result<Value, Malformed> {
        let mut items = Vec::new();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Value::Array(items));
        }
        loop {
            items.push(self.value(&Path::Index(path, items.len()))?);
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(Value::Array(items));
                }
                _ => return Err(self.unexpected("after array element")),
            }
        }
    }

    fn literal(&mut self, word: &str, value: Value) -> Result<Value, Malformed> {
        for expected in word.bytes() {
            if self.byte() != Some(expected) {
                let expected = char::from(expected);
                return Err(self.unexpected(&format!("in literal {word} (expecting '{expected}')")));
            }
            self.at += 1;
        }
        Ok(value)
    }

    fn string(&mut self) -> Result<Cow<'a, str>, Malformed> {
        self.at += 1;
        let start = self.at;
        let rest = &self.text.as_bytes()[start..];
        let length = plain_length(rest);
        if rest.get(length) != Some(&b'"') {
            return self.escaped().map(Cow::Owned);
        }
        self.at += length + 1;
        Ok(Cow::Borrowed(&self.text[start..start + length]))
    }

    /// A string that contains escapes, or is malformed.
    fn escaped(&mut self) -> Result<String, Malformed> {
        let mut text = self.plain()?.to_owned();
        while self.byte() == Some(b'\\') {
            self.at += 1;
            text.push(self.escape()?);
            text.push_str(self.plain()?);
        }
        self.at += 1;
        Ok(text)
    }

    /// Text up to a quote or a backslash.
    fn plain(&mut self) -> Result<&'a str, Malformed> {
        let start = self.at;
        self.at += plain_length(&self.text.as_bytes()[start..]);
        match self.byte() {
            Some(b'"' | b'\\') => Ok(&self.text[start..self.at]),
            _ => Err(self.unexpected("in string literal")),
        }
    }

    fn escape(&mut self) -> Result<char, Malformed> {
        let escaped = match self.byte() {
            Some(byte @ (b'"' | b'\\' | b'/')) => char::from(byte),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode(),
            _ => return Err(self.unexpected("in string escape code")),
        };
        self.at += 1;
        Ok(escaped)
    }

    /// `\u0041`, or a surrogate pair.
    fn unicode(&mut self) -> Result<char, Malformed> {
        let lone = || Malformed::new("lone surrogate in \\u hexadecimal character escape");
        let first = self.hex()?;
        let code = match first {
            0xD800..0xDC00 => {
                if !self.text[self.at..].starts_with("\\u") {
                    return Err(lone());
                }
                self.at += 1;
                match self.hex()? {
                    second @ 0xDC00..0xE000 => {
                        0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)
                    }
                    _ => return Err(lone()),
                }
            }
            code => code,
        };
        char::from_u32(code).ok_or_else(lone)
    }

    /// The four digits after `u`.
    fn hex(&mut self) -> Result<u32, Malformed> {
        self.at += 1;
        let mut code = 0;
        for _ in 0..4 {
            let digit = self.byte().and_then(|byte| char::from(byte).to_digit(16));
            let Some(digit) = digit else {
                return Err(self.unexpected("in \\u hexadecimal character escape"));
            };
            code = code * 16 + digit;
            self.at += 1;
        }
        Ok(code)
    }

    fn number(&mut self) -> Result<Number, Malformed> {
        let start = self.at;
        if self.byte() == Some(b'-') {
            self.at += 1;
        }
        match self.byte() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits(),
            _ => return Err(self.unexpected("in numeric literal")),
        }
        let mut integer = true;
        if self.byte() == Some(b'.') {
            integer = false;
            self.at += 1;
            self.some_digits("after decimal point in numeric literal")?;
        }
        if let Some(b'e' | b'E') = self.byte() {
            integer = false;
            self.at += 1;
            if let Some(b'+' | b'-') = self.byte() {
                self.at += 1;
            }
            self.some_digits("in exponent of numeric literal")?;
        }
        let literal = &self.text[start..self.at];
        exact(literal, integer)
            .ok_or_else(|| Malformed(format!("number {literal} cannot be kept exactly")))
    }

    fn digits(&mut self) {
        while let Some(b'0'..=b'9') = self.byte() {
            self.at += 1;
        }
    }

    fn some_digits(&mut self, place: &str) -> Result<(), Malformed> {
        let start = self.at;
        self.digits();
        if self.at == start { Err(self.unexpected(place)) } else { Ok(()) }
    }
}

/// The machine number that equals the literal, if there is one: the printer must not write another
/// number.
fn exact(literal: &str, integer: bool) -> Option<Number> {
    if integer {
        if let Ok(number) = literal.parse::<i64>() {
            return Some(number.into());
        }
        if let Ok(number) = literal.parse::<u64>() {
            return Some(number.into());
        }
    }
    let number = literal.parse::<f64>().ok()?;
    // Up to fifteen digits always survive the conversion; a longer literal must equal the printed
    // float.
    let fits = literal.len() <= 15 && literal.bytes().all(|byte| !matches!(byte, b'e' | b'E'));
    // Several shortest decimals may be equally close to a float; the one that our printer chooses
    // counts.
    let printed = Number::from_f64(number)?;
    (fits || Decimal::read(literal) == Decimal::read(&printed.to_string())).then_some(printed)
}

/// A decimal number in normal form: no zeros at either end.
#[derive(PartialEq, Eq)]
struct Decimal {
    digits: String,
    /// The power of ten of the last digit.
    tens: i64,
}

impl Decimal {
    fn read(literal: &str) -> Decimal {
        let literal = literal.strip_prefix('-').unwrap_or(literal);
        let (number, tens) = literal.split_once(['e', 'E']).unwrap_or((literal, "0"));
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let mut digits = format!("{whole}{fraction}");
        let mut tens = tens.parse::<i32>().map_or(i64::MAX, i64::from);
        tens = tens.saturating_sub(fraction.len() as i64);
        while digits.ends_with('0') {
            digits.pop();
            tens = tens.saturating_add(1);
        }
        let digits = digits.trim_start_matches('0').to_owned();
        let tens = if digits.is_empty() { 0 } else { tens };
        Decimal { digits, tens }
    }
}

/// Reports each key that occurred before, in the order of the document.
fn repeated(members: &[(MemberKey, Value)], mut tell: impl FnMut(&str)) {
    let mut begins: Vec<u64> = members.iter().map(|(key, _)| key.begin()).collect();
    begins.sort_unstable();
    // Most keys differ in their first bytes, so they are different.
    if begins.is_sorted_by(|one, other| one < other) {
        return;
    }
    let mut seen = BTreeSet::new();
    members.iter().filter(|(key, _)| !seen.insert(key)).for_each(|(key, _)| tell(key));
}

/// A byte as Go quotes it in errors: as a character of its own.
fn quoted(byte: u8) -> String {
    match byte {
        b'\'' => r"'\''".into(),
        b'"' => "'\"'".into(),
        b'\\' => r"'\\'".into(),
        b'\n' => r"'\n'".into(),
        b'\r' => r"'\r'".into(),
        b'\t' => r"'\t'".into(),
        b' '..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => format!("'{}'", char::from(byte)),
        other if other < 0x80 => format!("'\\x{other:02x}'"),
        other => format!("'\\u{other:04x}'"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::json;

    #[track_caller]
    fn check(text: &str, expected: Result<&str, &str>) {
        let found = parse(text.as_bytes());
        match expected {
            Ok(value) => assert_eq!(found.map(|parsed| parsed.value.to_string()), Ok(value.into())),
            Err(why) => assert_eq!(found.map_err(|error| error.to_string()), Err(why.into())),
        }
    }

    #[test]
    fn errors_have_the_messages_of_go() {
        check("", Err("unexpected end of JSON input"));
        check("{", Err("unexpected end of JSON input"));
        check("{not json", Err("invalid character 'n' looking for beginning of object key string"));
        check("{\"a\"", Err("unexpected end of JSON input"));
        check("{\"a\" 1}", Err("invalid character '1' after object key"));
        check("{\"a\":1 2}", Err("invalid character '2' after object key:value pair"));
        check(
            "{\"a\":1,}",
            Err("invalid character '}' looking for beginning of object key string"),
        );
        check("[1 2]", Err("invalid character '2' after array element"));
        check("[1,]", Err("invalid character ']' looking for beginning of value"));
        check("{}{}", Err("invalid character '{' after top-level value"));
        check("\u{feff}{}", Err("invalid character 'ï' looking for beginning of value"));
        check("\"a\nb\"", Err("invalid character '\\n' in string literal"));
        check("\"\u{0}\"", Err("invalid character '\\x00' in string literal"));
        check(r#""\x""#, Err("invalid character 'x' in string escape code"));
        check(r#""\u12G4""#, Err("invalid character 'G' in \\u hexadecimal character escape"));
        check("nul", Err("unexpected end of JSON input"));
        check("nulL", Err("invalid character 'L' in literal null (expecting 'l')"));
        check("NaN", Err("invalid character 'N' looking for beginning of value"));
        check("01", Err("invalid character '1' after top-level value"));
        check("1.", Err("unexpected end of JSON input"));
        check("1.x", Err("invalid character 'x' after decimal point in numeric literal"));
        check("1ex", Err("invalid character 'x' in exponent of numeric literal"));
        check("-x", Err("invalid character 'x' in numeric literal"));
    }

    #[test]
    fn text_that_is_not_unicode_is_rejected() {
        assert!(parse(b"\"\xff\"").is_err());
        check(r#""\ud800""#, Err("lone surrogate in \\u hexadecimal character escape"));
        check(r#""\udc00""#, Err("lone surrogate in \\u hexadecimal character escape"));
        check(r#""\ud800\u0041""#, Err("lone surrogate in \\u hexadecimal character escape"));
        check(r#""\ud83d\ude00\u0000\/""#, Ok("\"😀\\u0000/\""));
    }

    #[test]
    fn numbers_are_exact_or_rejected() {
        check("-0", Ok("0"));
        check("9223372036854775807", Ok("9223372036854775807"));
        check("-9223372036854775808", Ok("-9223372036854775808"));
        check("18446744073709551615", Ok("18446744073709551615"));
        check("0.1", Ok("0.1"));
        check("1E0", Ok("1.0"));
        check("1.50", Ok("1.5"));
        check("1e22", Ok("1e+22"));
        check("100000000000000000000", Ok("1e+20"));
        check("1956878815997649.2", Ok("1956878815997649.2"));
        for other in ["1e400", "18446744073709551617", "0.10000000000000000555", "1e-400"] {
            check(other, Err(&format!("number {other} cannot be kept exactly")));
        }
        assert!(parse("1".repeat(400).as_bytes()).is_err());
    }

    #[test]
    fn repeated_keys_are_found_at_any_depth_and_the_last_wins() {
        let parsed = parse(br#"{"a":1,"l":[{"x":1,"x":{"y":1,"y":2}}],"\u0061":2}"#).unwrap();
        assert_eq!(parsed.duplicates, ["l[0].x.y", "l[0].x", "a"]);
        assert_eq!(parsed.value.to_string(), r#"{"a":2,"l":[{"x":{"y":2}}]}"#);
    }

    #[test]
    fn the_deepest_document_does_not_overflow_the_stack() {
        let nest = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        check(&nest(DEPTH_MAX as usize + 1), Err("exceeded max depth"));
        check(&"[".repeat(1_500_000), Err("exceeded max depth"));
        check(&"{\"a\":".repeat(600), Err("exceeded max depth"));
        // Half of a worker's stack for parsing, cloning, comparing, printing and dropping.
        let thread = std::thread::Builder::new().stack_size(1024 * 1024).spawn(move || {
            let value = parse(nest(DEPTH_MAX as usize).as_bytes()).unwrap().value;
            assert_eq!(value, value.clone());
            assert_eq!(value.to_string().len(), 2 * DEPTH_MAX as usize);
        });
        thread.unwrap().join().unwrap();
    }

    #[test]
    fn small_text_cannot_become_large_memory() {
        let many = |count: usize| format!("[{}{{}}]", "{},".repeat(count));
        check(&many(NESTED_MAX), Err("exceeded max number of objects and lists"));
        assert!(parse(many(NESTED_MAX - 2).as_bytes()).is_ok());
        // A stored document may have grown.
        assert!(parse_stored(many(NESTED_MAX).as_bytes(), ["a", "b"]).is_ok());
    }

    #[test]
    fn one_field_of_a_stored_document_becomes_its_text() {
        let stored = br#"{"a":{"a":[1],"b":[{"c":"\u003c"}]},"b":[2],"c":{"b":[3],"a":{"b":[4]}}}"#;
        let parsed = parse_stored(stored, ["a", "b"]).unwrap();
        let expected = json!({
            "a": { "a": [1], "b": r#"[{"c":"\u003c"}]"# },
            "b": [2],
            "c": { "b": [3], "a": { "b": [4] } },
        });
        assert_eq!(parsed, expected);
        for wrong in ["{\"a\":{\"b\":[1", "{\"a\":{\"b\":}}", "{\"a\" 1}"] {
            assert!(parse_stored(wrong.as_bytes(), ["a", "b"]).is_err(), "{wrong}");
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let printable = crate::any::values("\\PC*", "\\PC*");
        prop_oneof![9 => printable, 1 => any::<String>().prop_map(Value::from)]
    }

    proptest! {
        #[test]
        fn parsing_undoes_printing(value in values()) {
            for text in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
                let parsed = parse(text.as_bytes()).unwrap();
                prop_assert_eq!(&parsed.value, &value);
                prop_assert!(parsed.duplicates.is_empty());
            }
        }

        #[test]
        fn it_accepts_nothing_that_serde_json_rejects(text in r#"[\[\]{}",:0-9eE.+\-tfnul\\ ]{0,24}"#) {
            if parse(text.as_bytes()).is_ok() {
                prop_assert!(serde_json::from_str::<Value>(&text).is_ok(), "{}", text);
            }
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = parse(&bytes);
        }
    }
}
