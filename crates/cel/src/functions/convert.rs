//! Type conversions.

use jiff::SignedDuration;

use super::print;
use crate::budget::Error;
use crate::estimate::rule;
use crate::time;
use crate::value::Value;

rows! {
    "type(T) -> type", rule::ONE, |_, value: any| Value::Type(value.type_name());
    "dyn(T) -> dyn", rule::SAME, |_, value: any| value.clone();
    "int(uint) -> int", rule::ONE, |_, value: uint| i64::try_from(value).map_err(overflow)?;
    "int(double) -> int", rule::ONE, |_, value: double| {
        // The largest int is not exact as a double; a double that rounds above it is out of range.
        let is_exact = -TWO_TO_63 < value && value < TWO_TO_63;
        is_exact.then_some(value as i64).ok_or_else(|| overflow(()))?
    };
    "int(timestamp) -> int", rule::ONE, |_, time: timestamp| time.as_second();
    "int(duration) -> int", rule::ONE,
        |_, span: duration| i64::try_from(span.as_nanos()).map_err(overflow)?;
    "int(string) -> int", rule::ONE,
        |_, text: text| text.parse::<i64>().ok().ok_or_else(|| conversion("int"))?;
    "uint(int) -> uint", rule::ONE,
        |_, value: int| u64::try_from(value).ok().ok_or_else(unsigned_overflow)?;
    "uint(double) -> uint", rule::ONE, |_, value: double| {
        let is_exact = (0.0..TWO_TO_63 * 2.0).contains(&value);
        is_exact.then_some(value as u64).ok_or_else(unsigned_overflow)?
    };
    "uint(string) -> uint", rule::ONE, |_, text: text| {
        let plain = Some(text).filter(|text| !text.starts_with('+'));
        plain.and_then(|text| text.parse::<u64>().ok()).ok_or_else(|| conversion("uint"))?
    };
    "double(int) -> double", rule::ONE, |_, value: int| value as f64;
    "double(uint) -> double", rule::ONE, |_, value: uint| value as f64;
    "double(string) -> double", rule::ONE,
        |_, text: text| text.parse::<f64>().ok().ok_or_else(|| conversion("double"))?;
    "bool(string) -> bool", rule::ONE, |_, text: text| match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
        "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
        _ => return Err(conversion("bool")),
    };
    "bytes(string) -> bytes", rule::ENCODED, |_, text: text| Value::Bytes(text.as_bytes().into());
    "size(bytes) -> int" "bytes.size() -> int", rule::ONE, |_, bytes: bytes| bytes.len() as i64;
    "string(bytes) -> string", rule::DECODED, |_, value: any| print::plain(value)?;
    "string(bool) -> string" "string(double) -> string" "string(int) -> string"
    "string(uint) -> string" "string(duration) -> string" "string(timestamp) -> string"
    "string(IP) -> string" "string(CIDR) -> string" "~string(URL) -> string"
    "~string(Semver) -> string", rule::ONE, |_, value: any| print::plain(value)?;
    "duration(int) -> duration", rule::ONE,
        |_, nanos: int| Value::Duration(SignedDuration::from_nanos(nanos));
    "duration(string) -> duration", rule::ONE, |_, text: text| {
        let span = time::parse_duration(text).map(Value::Duration);
        span.ok_or_else(|| conversion("google.protobuf.Duration"))?
    };
    "timestamp(int) -> timestamp", rule::ONE, |_, seconds: int| {
        let time = time::from_seconds(seconds).map(Value::Timestamp);
        time.ok_or_else(|| Error::other("timestamp overflow"))?
    };
    "timestamp(string) -> timestamp", rule::ONE, |_, text: text| {
        let time = time::parse_timestamp(text).map(Value::Timestamp);
        time.ok_or_else(|| conversion("google.protobuf.Timestamp"))?
    };
    "bool(bool) -> bool" "bytes(bytes) -> bytes" "double(double) -> double" "int(int) -> int"
    "uint(uint) -> uint" "string(string) -> string" "duration(duration) -> duration"
    "timestamp(timestamp) -> timestamp", rule::ONE, |_, value: any| value.clone();
}

const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;

/// The error of a string that cannot be converted.
fn conversion(to: &str) -> Error {
    Error::other(format!("type conversion error from 'string' to '{to}'"))
}

fn overflow<T>(_: T) -> Error {
    Error::other("integer overflow")
}

fn unsigned_overflow() -> Error {
    Error::other("unsigned integer overflow")
}
