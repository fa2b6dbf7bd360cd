//! Type conversions, and the parts of timestamps and durations.

use jiff::SignedDuration;

use super::{Found, kubernetes, print};
use crate::budget::Error;
use crate::time;
use crate::value::Value;

/// The error of a string that cannot be converted.
fn conversion(to: &str) -> Error {
    Error::other(format!("type conversion error from 'string' to '{to}'"))
}

pub(super) fn int<'a>(value: &Value<'_>) -> Found<'a> {
    let range = || Error::other("integer overflow");
    match value {
        Value::Int(value) => Ok(Value::Int(*value)),
        Value::Uint(value) => i64::try_from(*value).map(Value::Int).map_err(|_| range()),
        // The largest int is not exact as a double; a double that rounds above it is out of range.
        Value::Double(value) if -TWO_TO_63 < *value && *value < TWO_TO_63 => {
            Ok(Value::Int(*value as i64))
        }
        Value::Double(_) => Err(range()),
        Value::Timestamp(time) => Ok(Value::Int(time.as_second())),
        Value::Duration(span) => {
            i64::try_from(span.as_nanos()).map(Value::Int).map_err(|_| range())
        }
        Value::Text(text) => text.parse().map(Value::Int).map_err(|_| conversion("int")),
        _ => Err(Error::NoSuchOverload),
    }
}

const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;

pub(super) fn uint<'a>(value: &Value<'_>) -> Found<'a> {
    let range = || Error::other("unsigned integer overflow");
    match value {
        Value::Uint(value) => Ok(Value::Uint(*value)),
        Value::Int(value) => u64::try_from(*value).map(Value::Uint).map_err(|_| range()),
        Value::Double(value) if (0.0..TWO_TO_63 * 2.0).contains(value) => {
            Ok(Value::Uint(*value as u64))
        }
        Value::Double(_) => Err(range()),
        Value::Text(text) => {
            let read = if text.starts_with('+') { None } else { text.parse().ok() };
            read.map(Value::Uint).ok_or_else(|| conversion("uint"))
        }
        _ => Err(Error::NoSuchOverload),
    }
}

pub(super) fn double<'a>(value: &Value<'_>) -> Found<'a> {
    match value {
        Value::Double(value) => Ok(Value::Double(*value)),
        Value::Int(value) => Ok(Value::Double(*value as f64)),
        Value::Uint(value) => Ok(Value::Double(*value as f64)),
        Value::Text(text) => text.parse().map(Value::Double).map_err(|_| conversion("double")),
        _ => Err(Error::NoSuchOverload),
    }
}

pub(super) fn bool<'a>(value: &Value<'_>) -> Found<'a> {
    match value {
        Value::Bool(value) => Ok(Value::Bool(*value)),
        Value::Text(text) => match &**text {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Value::Bool(true)),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Value::Bool(false)),
            _ => Err(conversion("bool")),
        },
        _ => Err(Error::NoSuchOverload),
    }
}

pub(super) fn duration<'a>(value: &Value<'_>) -> Found<'a> {
    match value {
        Value::Duration(span) => Ok(Value::Duration(*span)),
        Value::Int(nanos) => Ok(Value::Duration(SignedDuration::from_nanos(*nanos))),
        Value::Text(text) => match time::parse_duration(text) {
            Some(span) => Ok(Value::Duration(span)),
            None => Err(conversion("google.protobuf.Duration")),
        },
        _ => Err(Error::NoSuchOverload),
    }
}

pub(super) fn timestamp<'a>(value: &Value<'_>) -> Found<'a> {
    match value {
        Value::Timestamp(time) => Ok(Value::Timestamp(*time)),
        Value::Int(seconds) => {
            let time = time::from_seconds(*seconds);
            time.map(Value::Timestamp).ok_or_else(|| Error::other("timestamp overflow"))
        }
        Value::Text(text) => match time::parse_timestamp(text) {
            Some(time) => Ok(Value::Timestamp(time)),
            None => Err(conversion("google.protobuf.Timestamp")),
        },
        _ => Err(Error::NoSuchOverload),
    }
}

pub(super) fn string<'a>(value: &Value<'a>) -> Found<'a> {
    Ok(match value {
        Value::Text(text) => Value::Text(text.clone()),
        Value::Bool(value) => value.to_string().into(),
        Value::Int(value) => value.to_string().into(),
        Value::Uint(value) => value.to_string().into(),
        Value::Double(value) => print::show_double(*value).into(),
        Value::Bytes(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => text.into(),
            Err(_) => return Err(Error::other("invalid UTF-8")),
        },
        Value::Duration(span) => time::show_duration(*span).into(),
        Value::Timestamp(time) => time::show_timestamp(*time).into(),
        Value::Other(other) => match kubernetes::show(other) {
            Some(text) => text.into(),
            None => return Err(Error::NoSuchOverload),
        },
        _ => return Err(Error::NoSuchOverload),
    })
}

/// A duration in other units.
pub(super) fn part_of<'a>(name: &str, span: SignedDuration) -> Found<'a> {
    Ok(Value::Int(match name {
        "getHours" => span.as_secs() / 3600,
        "getMinutes" => span.as_secs() / 60,
        "getSeconds" => span.as_secs(),
        "getMilliseconds" => i64::try_from(span.as_millis()).unwrap_or(i64::MAX),
        _ => return Err(Error::NoSuchOverload),
    }))
}
