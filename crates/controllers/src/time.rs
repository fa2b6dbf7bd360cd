//! Durations in text, and saturating arithmetic with timestamps that come from objects.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// The time `seconds` after `time`.
pub(crate) fn after(time: Timestamp, seconds: impl Into<i64>) -> Timestamp {
    time.checked_add(SignedDuration::from_secs(seconds.into())).unwrap_or(Timestamp::MAX)
}

/// The duration from `now` until `due`; zero if `due` has passed.
pub(crate) fn until(now: Timestamp, due: Timestamp) -> Duration {
    Duration::try_from(due.duration_since(now)).unwrap_or(Duration::ZERO)
}

/// Parses `200ms`, `2s`, `1m30s`.
pub(crate) fn parse(text: &str) -> Option<Duration> {
    text.trim().parse::<SignedDuration>().ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extreme_timestamps_do_not_overflow() {
        assert_eq!(after(Timestamp::MAX, 1), Timestamp::MAX);
        assert_eq!(until(Timestamp::MAX, Timestamp::MIN), Duration::ZERO);
        assert!(until(Timestamp::MIN, Timestamp::MAX) > Duration::from_secs(1 << 30));
    }
}
