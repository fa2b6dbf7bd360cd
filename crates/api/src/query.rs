//! The query string: ordered pairs, and the rules for reading single parameters.
//!
//! River: request line → **query** → options, selectors, representations.
//! Promise: a parameter that cannot be decoded is an error, never treated as absent: a list must
//! not silently lose its selector (B145).

use std::time::Duration;

use crate::status::Status;

/// The decoded parameters of a request, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    /// Decodes the part of a URL after the `?`.
    pub fn parse(raw: &str) -> Result<Query, Status> {
        let mut pairs = Vec::new();
        for pair in raw.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            pairs.push((decode(name)?, decode(value)?));
        }
        Ok(Query { pairs })
    }

    /// The first value of a parameter; repeated values are ignored (B153).
    pub fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// The first value of a parameter, or the empty string, which most parameters read as unset.
    pub fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    /// The parameters with this value of one of them.
    #[must_use]
    pub fn with(&self, name: &str, value: &str) -> Query {
        let others = self.pairs.iter().filter(|(key, _)| key != name).cloned();
        let own = std::iter::once((name.to_owned(), value.to_owned()));
        Query { pairs: own.chain(others).collect() }
    }

    /// Every value of a parameter that is a list.
    pub fn all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        self.pairs.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// All pairs, in order.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// A boolean that may be unset. Anything but `false` and `0` is true, including the empty value
    /// (S1.31).
    pub fn flag(&self, name: &str) -> Option<bool> {
        let value = self.get(name)?;
        Some(!(value == "0" || value.eq_ignore_ascii_case("false")))
    }

    /// A boolean that is false when unset.
    pub fn is_set(&self, name: &str) -> bool {
        self.flag(name).unwrap_or(false)
    }

    /// A signed integer that may be unset; present but empty is an error.
    pub fn integer(&self, name: &str) -> Result<Option<i64>, Status> {
        self.get(name).map(parse_integer).transpose()
    }

    /// The requested deadline, `timeout` (S8.26); none if unset or not positive.
    pub fn timeout(&self) -> Result<Option<Duration>, Status> {
        let text = self.text("timeout");
        if text.is_empty() {
            return Ok(None);
        }
        let nanos = parse_duration(text).map_err(|why| {
            bad_request(format!("invalid timeout specified in the request URL - {why}"))
        })?;
        Ok(u64::try_from(nanos).ok().filter(|nanos| *nanos > 0).map(Duration::from_nanos))
    }

    /// Whether to indent JSON (S1.33): the parameter decides, or else the user agent.
    pub fn pretty(&self, user_agent: &str) -> bool {
        match self.text("pretty") {
            "" => ["curl", "Wget", "Mozilla/5.0"].iter().any(|agent| user_agent.starts_with(agent)),
            value => matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True"),
        }
    }
}

/// 400 with a message.
pub(crate) fn bad_request(message: impl Into<String>) -> Status {
    Status::failure(400, "BadRequest", message)
}

fn decode(text: &str) -> Result<String, Status> {
    if !text.bytes().any(|byte| matches!(byte, b'%' | b'+')) {
        return Ok(text.to_owned());
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'+' => decoded.push(b' '),
            b'%' => {
                decoded.push(escaped(rest)?);
                rest = &rest[2..];
            }
            byte => decoded.push(byte),
        }
    }
    String::from_utf8(decoded)
        .map_err(|_| bad_request(format!("invalid UTF-8 in the request URL: {}", quote(text))))
}

/// The byte for the two digits after a percent sign.
fn escaped(rest: &[u8]) -> Result<u8, Status> {
    let digit = |index: usize| rest.get(index).and_then(|digit| (*digit as char).to_digit(16));
    match (digit(0), digit(1)) {
        (Some(high), Some(low)) => Ok((high * 16 + low) as u8),
        _ => {
            let shown = String::from_utf8_lossy(&rest[..rest.len().min(2)]);
            Err(bad_request(format!("invalid URL escape {}", quote(&format!("%{shown}")))))
        }
    }
}

fn parse_integer(text: &str) -> Result<i64, Status> {
    text.parse::<i64>().map_err(|error| {
        let why = match error.kind() {
            std::num::IntErrorKind::PosOverflow | std::num::IntErrorKind::NegOverflow => {
                "value out of range"
            }
            _ => "invalid syntax",
        };
        bad_request(format!("strconv.ParseInt: parsing {}: {why}", quote(text)))
    })
}

/// Why `text` is not a resourceVersion, in Kubernetes' words.
pub(crate) fn version_error(text: &str) -> String {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let why = if digits { "value out of range" } else { "invalid syntax" };
    let text = quote(text);
    format!("resourceVersion: Invalid value: {text}: strconv.ParseUint: parsing {text}: {why}")
}

/// Parses a duration such as `1h15m30.5s` into nanoseconds, with the range and messages of Go.
pub fn parse_duration(text: &str) -> Result<i64, String> {
    let invalid = || format!("time: invalid duration {}", quote(text));
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let number = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let (digits, after) = rest.split_at(rest.len() - number.len());
        let unit_end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_end);
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(invalid());
        }
        if unit.is_empty() {
            return Err(format!("time: missing unit in duration {}", quote(text)));
        }
        let scale = unit_nanos(unit).ok_or_else(|| {
            format!("time: unknown unit {} in duration {}", quote(unit), quote(text))
        })?;
        let part = scaled(whole, fraction, scale).ok_or_else(invalid)?;
        total = total.checked_add(part).ok_or_else(invalid)?;
        rest = next;
    }
    i64::try_from(if negative { -total } else { total }).map_err(|_| invalid())
}

fn unit_nanos(unit: &str) -> Option<i64> {
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

fn scaled(whole: &str, fraction: &str, scale: i64) -> Option<i128> {
    let whole: i64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut nanos = i128::from(whole) * i128::from(scale);
    let mut unit = scale;
    for digit in fraction.bytes() {
        unit /= 10;
        nanos += i128::from(i64::from(digit - b'0') * unit);
    }
    Some(nanos)
}

/// Quotes a text as Go's `%q` does.
pub fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            c if is_printable(c) => quoted.push(c),
            c if u32::from(c) < 0x80 => quoted.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if u32::from(c) < 0x1_0000 => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    quoted.push('"');
    quoted
}

/// Whether a character is visible: letters, marks, digits, symbols, and the plain space.
pub(crate) fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return c == ' ' || c.is_ascii_graphic();
    }
    // Debug output escapes invisible characters. A letter comes first because a leading combining
    // mark is escaped too, although it is visible after a letter.
    let mut text = String::from("a");
    text.push(c);
    text.escape_debug().count() == 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(raw: &str) -> Query {
        Query::parse(raw).unwrap()
    }

    #[test]
    fn pairs_are_decoded_in_order_and_the_first_of_repeated_ones_wins() {
        let query = query("b=2&a=1&a=9&c&d=x+y%2Cz&=e&&f=%C3%A4");
        let pairs: Vec<_> = query.pairs().collect();
        let expected =
            [("b", "2"), ("a", "1"), ("a", "9"), ("c", ""), ("d", "x y,z"), ("", "e"), ("f", "ä")];
        assert_eq!(pairs, expected);
        assert_eq!(query.get("a"), Some("1"));
        assert_eq!(query.all("a").collect::<Vec<_>>(), ["1", "9"]);
        assert_eq!(query.get("z"), None);
    }

    #[test]
    fn an_escape_that_cannot_be_decoded_is_rejected() {
        check_bad("labelSelector=%zz", "invalid URL escape \"%zz\"");
        check_bad("a=%", "invalid URL escape \"%\"");
        check_bad("a=%4", "invalid URL escape \"%4\"");
        check_bad("%é=1", "invalid URL escape \"%é\"");
        check_bad("a=%ff", "invalid UTF-8 in the request URL: \"%ff\"");
    }

    #[track_caller]
    fn check_bad(raw: &str, message: &str) {
        let status = Query::parse(raw).unwrap_err();
        assert_eq!((status.code, status.reason.as_str()), (400, "BadRequest"));
        assert_eq!(status.message, message);
    }

    #[test]
    fn any_value_but_false_and_zero_is_true() {
        for (raw, expected) in [
            ("", None),
            ("watch", Some(true)),
            ("watch=", Some(true)),
            ("watch=maybe", Some(true)),
            ("watch=1", Some(true)),
            ("watch=0", Some(false)),
            ("watch=00", Some(true)),
            ("watch=FALSE", Some(false)),
        ] {
            assert_eq!(query(raw).flag("watch"), expected, "{raw}");
        }
    }

    #[test]
    fn integers_that_do_not_parse_have_the_message_of_go() {
        assert_eq!(query("").integer("limit").unwrap(), None);
        assert_eq!(query("limit=-1").integer("limit").unwrap(), Some(-1));
        assert_eq!(query("limit=%2B5").integer("limit").unwrap(), Some(5));
        for (raw, message) in [
            ("limit=abc", "strconv.ParseInt: parsing \"abc\": invalid syntax"),
            ("limit=", "strconv.ParseInt: parsing \"\": invalid syntax"),
            ("limit=1.5", "strconv.ParseInt: parsing \"1.5\": invalid syntax"),
            (
                "limit=9223372036854775808",
                "strconv.ParseInt: parsing \"9223372036854775808\": value out of range",
            ),
        ] {
            assert_eq!(query(raw).integer("limit").unwrap_err().message, message);
        }
    }

    #[test]
    fn timeouts_are_durations() {
        for (raw, expected) in [
            ("", None),
            ("timeout=", None),
            ("timeout=0", None),
            ("timeout=0s", None),
            ("timeout=-5s", None),
            ("timeout=10s", Some(Duration::from_secs(10))),
            ("timeout=1h1m1.5s", Some(Duration::from_millis(3_661_500))),
            ("timeout=.5s", Some(Duration::from_millis(500))),
            ("timeout=999h", Some(Duration::from_secs(999 * 3600))),
        ] {
            assert_eq!(query(raw).timeout().unwrap(), expected, "{raw}");
        }
        for (raw, why) in [
            ("timeout=abc", "time: invalid duration \"abc\""),
            ("timeout=10", "time: missing unit in duration \"10\""),
            ("timeout=10x", "time: unknown unit \"x\" in duration \"10x\""),
            ("timeout=-", "time: invalid duration \"-\""),
            ("timeout=99999999999h", "time: invalid duration \"99999999999h\""),
            ("timeout=1.2.3s", "time: invalid duration \"1.2.3s\""),
        ] {
            let message = query(raw).timeout().unwrap_err().message;
            assert_eq!(message, format!("invalid timeout specified in the request URL - {why}"));
        }
    }

    #[test]
    fn quotes_are_those_of_go() {
        assert_eq!(quote("a\"\\\n\u{1}é\u{200b}"), r#""a\"\\\n\x01é\u200b""#);
    }

    #[test]
    fn browsers_and_curl_get_indented_json() {
        assert!(query("").pretty("curl/8.0"));
        assert!(!query("pretty=false").pretty("curl/8.0"));
        assert!(query("pretty=true").pretty("kubectl"));
        assert!(!query("").pretty("kubectl"));
    }
}
