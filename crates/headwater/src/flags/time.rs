//! Parsers for points in time and speeds.

use std::time::Duration;

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::parse_duration;

/// A point in time, as people write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TimePoint {
    /// The newest state.
    Now,
    /// A duration such as `10m`.
    Relative(Duration),
    /// A time such as `2026-11-15T10:00Z`.
    At(Timestamp),
    /// A revision of the store.
    Revision(u64),
}

/// `now`, `10m`, `2026-11-15T10:00Z`, `2026-11-15T10:00` (local time) or a revision.
pub(crate) fn parse_point(text: &str) -> Result<TimePoint, String> {
    if text == "now" {
        return Ok(TimePoint::Now);
    }
    if let Ok(revision) = text.parse() {
        return Ok(TimePoint::Revision(revision));
    }
    if let Ok(duration) = parse_duration(text) {
        return Ok(TimePoint::Relative(duration));
    }
    let local =
        |time: DateTime| time.to_zoned(TimeZone::system()).ok().map(|time| time.timestamp());
    let found = text
        .parse::<Timestamp>()
        .ok()
        .or_else(|| with_seconds(text)?.parse().ok())
        .or_else(|| local(text.parse().ok()?))
        .or_else(|| local(text.parse::<Date>().ok()?.into()));
    found.map(TimePoint::At).ok_or_else(|| {
        format!("{text:?} is not a time: write now, 10m, 2026-11-15T10:00Z or a revision")
    })
}

/// `2026-11-15T10:00Z` with the seconds that it leaves out.
fn with_seconds(text: &str) -> Option<String> {
    Some(format!("{}:00Z", text.strip_suffix('Z')?))
}

impl TimePoint {
    /// The time that it means, if durations are in the past of `now`; `None` for a revision.
    pub(crate) fn before(&self, now: Timestamp) -> Option<Timestamp> {
        match self {
            TimePoint::Now => Some(now),
            TimePoint::At(time) => Some(*time),
            TimePoint::Relative(ago) => now.checked_sub(SignedDuration::try_from(*ago).ok()?).ok(),
            TimePoint::Revision(_) => None,
        }
    }

    /// The time that it means, if durations come after `begin`; `None` for a revision.
    pub(crate) fn after(&self, begin: Timestamp) -> Option<Timestamp> {
        match self {
            TimePoint::Relative(later) => {
                begin.checked_add(SignedDuration::try_from(*later).ok()?).ok()
            }
            other => other.before(Timestamp::now()),
        }
    }
}

/// How fast a recording is replayed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ReplaySpeed {
    /// Without pauses.
    Max,
    /// So many times as fast as it happened.
    Times(f64),
}

impl ReplaySpeed {
    /// How long a time of the recording takes.
    pub(crate) fn scaled(self, recorded: Duration) -> Duration {
        match self {
            ReplaySpeed::Max => Duration::ZERO,
            ReplaySpeed::Times(factor) => recorded.div_f64(factor),
        }
    }
}

/// `max`, `10x`, `0.5x`.
pub(crate) fn parse_speed(text: &str) -> Result<ReplaySpeed, String> {
    const FASTEST: f64 = 1_000_000.0;
    if text == "max" {
        return Ok(ReplaySpeed::Max);
    }
    let number = text.strip_suffix('x').unwrap_or(text).parse::<f64>().ok();
    let number = number.filter(|number| (0.001..=FASTEST).contains(number));
    number
        .map(ReplaySpeed::Times)
        .ok_or_else(|| format!("{text:?} is not a speed: write max, 10x or 0.5x"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_in_time_is_written_in_several_ways() {
        let time: Timestamp = "2026-11-15T10:00:00Z".parse().unwrap();
        for (text, expected) in [
            ("now", TimePoint::Now),
            ("10m", TimePoint::Relative(Duration::from_secs(600))),
            ("123", TimePoint::Revision(123)),
            ("2026-11-15T10:00Z", TimePoint::At(time)),
            ("2026-11-15T10:00:00Z", TimePoint::At(time)),
            ("2026-11-15T11:00:00+01:00", TimePoint::At(time)),
        ] {
            assert_eq!(parse_point(text), Ok(expected), "{text}");
        }
        for wrong in ["", "yesterday", "-5", "2026-13-01"] {
            assert!(parse_point(wrong).is_err(), "{wrong}");
        }
        assert!(matches!(parse_point("2026-11-15T10:00"), Ok(TimePoint::At(_))), "local time");
        assert!(matches!(parse_point("2026-11-15"), Ok(TimePoint::At(_))), "local midnight");
    }

    #[test]
    fn durations_are_before_now_or_after_a_beginning() {
        let now = Timestamp::from_second(1_000).unwrap();
        let point = parse_point("100s").unwrap();
        assert_eq!(point.before(now).unwrap().as_second(), 900);
        assert_eq!(point.after(now).unwrap().as_second(), 1_100);
        assert_eq!(TimePoint::Revision(7).before(now), None);
    }

    #[test]
    fn a_speed_is_max_or_a_factor() {
        assert_eq!(parse_speed("max"), Ok(ReplaySpeed::Max));
        assert_eq!(parse_speed("10x"), Ok(ReplaySpeed::Times(10.0)));
        assert_eq!(parse_speed("0.5"), Ok(ReplaySpeed::Times(0.5)));
        for wrong in ["", "x", "0x", "-1x", "nan", "inf", "1e300"] {
            assert!(parse_speed(wrong).is_err(), "{wrong}");
        }
        assert_eq!(ReplaySpeed::Times(10.0).scaled(Duration::from_secs(5)).as_millis(), 500);
    }
}
