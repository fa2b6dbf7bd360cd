//! Parts of timestamps, in UTC or in a time zone, and of durations.

use jiff::{Timestamp, Zoned};

use crate::budget::Error;
use crate::estimate::rule;
use crate::time::time_zone;

rows! {
    "timestamp.getFullYear(string?) -> int", rule::ONE,
        |_, time: timestamp, zone: opt_text| i64::from(local(time, zone)?.year());
    "timestamp.getMonth(string?) -> int", rule::ONE,
        |_, time: timestamp, zone: opt_text| i64::from(local(time, zone)?.month()) - 1;
    "timestamp.getDate(string?) -> int", rule::ONE,
        |_, time: timestamp, zone: opt_text| i64::from(local(time, zone)?.day());
    "timestamp.getDayOfMonth(string?) -> int", rule::ONE,
        |_, time: timestamp, zone: opt_text| i64::from(local(time, zone)?.day()) - 1;
    "timestamp.getDayOfWeek(string?) -> int", rule::ONE, |_, time: timestamp, zone: opt_text|
        i64::from(local(time, zone)?.weekday().to_sunday_zero_offset());
    "timestamp.getDayOfYear(string?) -> int", rule::ONE,
        |_, time: timestamp, zone: opt_text| i64::from(local(time, zone)?.day_of_year()) - 1;
    "timestamp.getHours(string?) -> int", rule::ONE,
        |_, time: timestamp, zone: opt_text| i64::from(local(time, zone)?.hour());
    "timestamp.getMinutes(string?) -> int", rule::ONE,
        |_, time: timestamp, zone: opt_text| i64::from(local(time, zone)?.minute());
    "timestamp.getSeconds(string?) -> int", rule::ONE,
        |_, time: timestamp, zone: opt_text| i64::from(local(time, zone)?.second());
    "timestamp.getMilliseconds(string?) -> int", rule::ONE,
        |_, time: timestamp, zone: opt_text| i64::from(local(time, zone)?.millisecond());
    "duration.getHours() -> int", rule::ONE, |_, span: duration| span.as_secs() / 3600;
    "duration.getMinutes() -> int", rule::ONE, |_, span: duration| span.as_secs() / 60;
    "duration.getSeconds() -> int", rule::ONE, |_, span: duration| span.as_secs();
    "duration.getMilliseconds() -> int", rule::ONE,
        |_, span: duration| i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
}

fn local(time: Timestamp, zone: Option<&str>) -> Result<Zoned, Error> {
    let zone = zone.unwrap_or_default();
    let known = time_zone(zone);
    let known = known.ok_or_else(|| Error::other(format!("unknown time zone {zone}")))?;
    Ok(time.to_zoned(known))
}
