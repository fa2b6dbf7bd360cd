//! Timestamps and durations, in the notations of CEL and Go.

use headwater_api::query;
use jiff::civil::Date;
use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};

/// `1h30m`, `-1.5s`, `0`.
pub(super) fn parse_duration(text: &str) -> Option<SignedDuration> {
    query::parse_duration(text).ok().map(SignedDuration::from_nanos)
}

/// `5400s`, `1.5s`.
pub(super) fn show_duration(span: SignedDuration) -> String {
    let nanos = span.as_nanos();
    let (sign, nanos) = (if nanos < 0 { "-" } else { "" }, nanos.unsigned_abs());
    let (seconds, rest) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    if rest == 0 {
        return format!("{sign}{seconds}s");
    }
    let fraction = format!("{rest:09}");
    format!("{sign}{seconds}.{}s", fraction.trim_end_matches('0'))
}

/// A timestamp of the years 1 to 9999, CEL's range.
pub(super) fn in_range(time: Timestamp) -> Option<Timestamp> {
    (-62_135_596_800..=253_402_300_799).contains(&time.as_second()).then_some(time)
}

/// The timestamp at this duration after 1970.
pub(super) fn from_seconds(seconds: i64) -> Option<Timestamp> {
    Timestamp::from_second(seconds).ok().and_then(in_range)
}

/// A duration within Go's range.
pub(super) fn span_in_range(span: SignedDuration) -> Option<SignedDuration> {
    i64::try_from(span.as_nanos()).is_ok().then_some(span)
}

/// RFC 3339.
pub(super) fn parse_timestamp(text: &str) -> Option<Timestamp> {
    // The library accepts more than RFC 3339, which requires a `T`.
    let is_standard = text.len() >= 20 && matches!(text.as_bytes()[10], b'T' | b't');
    is_standard.then(|| text.parse().ok())?.and_then(in_range)
}

/// The start of a date.
pub(super) fn parse_timestamp_or_date(text: &str) -> Option<Timestamp> {
    parse_timestamp(text).or_else(|| {
        let date: Date = (text.len() == 10).then(|| text.parse().ok())??;
        date.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
    })
}

pub(super) fn show_timestamp(time: Timestamp) -> String {
    time.to_string()
}

/// `+02:00`, or a name of the time zone database; UTC if it is empty.
pub(super) fn time_zone(name: &str) -> Option<TimeZone> {
    if matches!(name, "" | "UTC") {
        return Some(TimeZone::UTC);
    }
    let signed = name.starts_with(['+', '-']);
    if !signed && !name.contains(':') {
        return TimeZone::get(name).ok();
    }
    let (sign, rest) = match name.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, name.strip_prefix('+').unwrap_or(name)),
    };
    let (hours, minutes) = rest.split_once(':')?;
    let (hours, minutes): (i32, i32) = (hours.parse().ok()?, minutes.parse().ok()?);
    let seconds = sign * (hours.checked_mul(3600)?.checked_add(minutes.checked_mul(60)?)?);
    Offset::from_seconds(seconds).ok().map(TimeZone::fixed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_parse_and_print() {
        for (text, shown) in [
            ("1h30m", Some("5400s")),
            ("1.5s", Some("1.5s")),
            ("-2m", Some("-120s")),
            ("0", Some("0s")),
            ("1us", Some("0.000001s")),
            ("", None),
            ("1", None),
            ("1x", None),
            ("1.2.3s", None),
            ("99999999999999999999h", None),
        ] {
            assert_eq!(parse_duration(text).map(show_duration).as_deref(), shown, "{text}");
        }
    }
}
