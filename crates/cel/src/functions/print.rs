//! The printing of values: `format`, `quote`, numbers.

use std::fmt::Write;

use crate::budget::{Error, Machine, text_cost};
use crate::time;
use crate::value::{ListValue, MapValue, Other, Value};

/// The text of `string()`.
pub(super) fn plain<'a>(value: &Value<'a>) -> Result<Value<'a>, Error> {
    Ok(match value {
        Value::Text(text) => Value::Text(text.clone()),
        Value::Bool(value) => value.to_string().into(),
        Value::Int(value) => value.to_string().into(),
        Value::Uint(value) => value.to_string().into(),
        Value::Double(value) => show_double(*value).into(),
        Value::Bytes(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => text.into(),
            Err(_) => return Err(Error::other("invalid UTF-8")),
        },
        Value::Duration(span) => time::show_duration(*span).into(),
        Value::Timestamp(time) => time::show_timestamp(*time).into(),
        Value::Other(other) => match &**other {
            Other::Ip(ip) => ip.to_string().into(),
            Other::Cidr(ip, bits) => format!("{ip}/{bits}").into(),
            Other::Url(url) => url.text.as_str().into(),
            Other::Semver(version) => version.text.as_str().into(),
            _ => return Err(Error::NoSuchOverload),
        },
        _ => return Err(Error::NoSuchOverload),
    })
}

/// The shortest text that parses as the same number.
fn show_double(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "+Inf".into() } else { "-Inf".into() };
    }
    if value == 0.0 || (1e-4..1e21).contains(&value.abs()) {
        return value.to_string();
    }
    let text = format!("{value:e}");
    match text.split_once('e') {
        Some((digits, power)) => {
            let (sign, power) = match power.strip_prefix('-') {
                Some(power) => ('-', power),
                None => ('+', power),
            };
            format!("{digits}e{sign}{power:0>2}")
        }
        None => text,
    }
}

/// A quoted string.
pub(super) fn quote(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '\x07' => quoted.push_str("\\a"),
            '\x08' => quoted.push_str("\\b"),
            '\x0c' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\x0b' => quoted.push_str("\\v"),
            '\\' => quoted.push_str("\\\\"),
            '"' => quoted.push_str("\\\""),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// `'%s has %d'.format([a, b])`.
pub(super) fn format(
    m: &mut Machine<'_, '_>,
    text: &str,
    values: &ListValue<'_>,
) -> Result<String, Error> {
    let mut made = String::new();
    let mut chars = text.chars().peekable();
    let mut next = 0;
    while let Some(c) = chars.next() {
        if c != '%' {
            made.push(c);
            continue;
        }
        let mut precision = None;
        if chars.next_if_eq(&'.').is_some() {
            let mut digits = String::new();
            while let Some(digit) = chars.next_if(char::is_ascii_digit) {
                digits.push(digit);
            }
            precision = Some(digits.parse::<usize>().unwrap_or(0).min(100));
        }
        let Some(verb) = chars.next() else {
            return Err(Error::other("unexpected end of string"));
        };
        if verb == '%' {
            made.push('%');
            continue;
        }
        let Some(value) = values.get(next) else {
            return Err(Error::other(format!("index {next} out of range")));
        };
        next += 1;
        let before = made.len();
        write_verb(&mut made, verb, precision, &value)?;
        m.spend(text_cost(made.len() - before))?;
    }
    Ok(made)
}

fn write_verb(
    made: &mut String,
    verb: char,
    precision: Option<usize>,
    value: &Value<'_>,
) -> Result<(), Error> {
    let digits = precision.unwrap_or(6);
    let (sign, whole) = match value {
        Value::Int(value) => (if *value < 0 { "-" } else { "" }, Some(value.unsigned_abs())),
        Value::Uint(value) => ("", Some(*value)),
        _ => ("", None),
    };
    let written = match (verb, value) {
        ('s', value) => return write_plain(made, value, 0),
        ('f', Value::Double(value)) => write!(made, "{}", fixed(*value, digits)),
        ('e', Value::Double(value)) => write!(made, "{}", scientific(*value, digits)),
        ('x' | 'X', Value::Text(text)) => write_hex(made, verb, text.as_bytes()),
        ('x' | 'X', Value::Bytes(bytes)) => write_hex(made, verb, bytes),
        ('b', Value::Bool(value)) => write!(made, "{}", u8::from(*value)),
        (verb, value) => match (verb, whole) {
            ('d', Some(whole)) => write!(made, "{sign}{whole}"),
            ('x', Some(whole)) => write!(made, "{sign}{whole:x}"),
            ('X', Some(whole)) => write!(made, "{sign}{whole:X}"),
            ('o', Some(whole)) => write!(made, "{sign}{whole:o}"),
            ('b', Some(whole)) => write!(made, "{sign}{whole:b}"),
            _ => return Err(unprintable(verb, value)),
        },
    };
    written.map_err(|_| Error::other("the text cannot be formatted"))
}

/// The error of a verb that cannot print a value, with Kubernetes' text.
fn unprintable(verb: char, value: &Value<'_>) -> Error {
    let what = match verb {
        'd' => "decimal clause can only be used on integers",
        'f' => "fixed-point clause can only be used on doubles",
        'e' => "scientific clause can only be used on doubles",
        'x' | 'X' => "only integers, byte buffers, and strings can be formatted as hex",
        'o' => "octal clause can only be used on integers",
        'b' => "only integers and bools can be formatted as binary",
        's' => {
            "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps"
        }
        other => return Error::other(format!("unrecognized formatting clause {other:?}")),
    };
    Error::other(format!("{what}, was given {}", value.type_name()))
}

fn write_hex(made: &mut String, verb: char, bytes: &[u8]) -> std::fmt::Result {
    bytes.iter().try_for_each(|byte| match verb {
        'x' => write!(made, "{byte:02x}"),
        _ => write!(made, "{byte:02X}"),
    })
}

/// Adds thousands separators, as in English.
fn fixed(value: f64, digits: usize) -> String {
    let Some(text) = special(value) else {
        let text = format!("{:.digits$}", value.abs());
        let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
        let groups: Vec<&str> = whole
            .as_bytes()
            .rchunks(3)
            .rev()
            .map(|group| std::str::from_utf8(group).unwrap_or_default())
            .collect();
        let sign = if value.is_sign_negative() { "-" } else { "" };
        return format!("{sign}{}{rest}", groups.join(","));
    };
    text.to_owned()
}

/// `3.140000×10⁰⁰`.
fn scientific(value: f64, digits: usize) -> String {
    if let Some(text) = special(value) {
        return text.to_owned();
    }
    let text = format!("{value:.digits$e}");
    let (mantissa, power) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, power) = match power.strip_prefix('-') {
        Some(power) => ("⁻", power),
        None => ("", power),
    };
    const RAISED: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    let raised = |digit: u8| RAISED[usize::from(digit - b'0') % 10];
    let power: String = format!("{power:0>2}").bytes().map(raised).collect();
    format!("{mantissa}×10{sign}{power}")
}

fn special(value: f64) -> Option<&'static str> {
    match value {
        value if value.is_nan() => Some("NaN"),
        f64::INFINITY => Some("∞"),
        f64::NEG_INFINITY => Some("-∞"),
        _ => None,
    }
}

/// The maximum depth of printed lists.
const NESTED_MAX: usize = 20;

/// Prints a value; values inside of lists and maps are printed as literals.
fn write_plain(made: &mut String, value: &Value<'_>, depth: usize) -> Result<(), Error> {
    if depth > NESTED_MAX {
        return Err(Error::other("the value is nested too deeply to be printed"));
    }
    let plain = || match plain(value) {
        Ok(Value::Text(text)) => Ok(text),
        _ => Err(unprintable('s', value)),
    };
    match value {
        Value::Null => made.push_str("null"),
        Value::Type(name) => made.push_str(name),
        Value::List(list) => {
            made.push('[');
            for (at, element) in list.iter().enumerate() {
                if at > 0 {
                    made.push_str(", ");
                }
                write_plain(made, &element, depth + 1)?;
            }
            made.push(']');
        }
        Value::Map(map) => {
            made.push('{');
            for (at, (key, value)) in pairs(map).iter().enumerate() {
                if at > 0 {
                    made.push_str(", ");
                }
                write_plain(made, key, depth + 1)?;
                made.push(':');
                write_plain(made, value, depth + 1)?;
            }
            made.push('}');
        }
        Value::Text(text) if depth > 0 => made.push_str(&quote(text)),
        Value::Bytes(_) if depth > 0 => made.push_str(&format!("b{}", quote(&plain()?))),
        Value::Double(value) if depth > 0 && value.is_finite() => {
            made.push_str(&format!("{value:.6}"));
        }
        Value::Timestamp(_) if depth > 0 => {
            made.push_str(&format!("timestamp({})", quote(&plain()?)));
        }
        Value::Duration(_) if depth > 0 => {
            made.push_str(&format!("duration({})", quote(&plain()?)));
        }
        _ => made.push_str(&plain()?),
    }
    Ok(())
}

/// The members of a map as pairs.
fn pairs<'a>(map: &MapValue<'a>) -> Vec<(Value<'a>, Value<'a>)> {
    map.keys().into_iter().filter_map(|key| map.get(&key).map(|value| (key, value))).collect()
}
