//! Arithmetic with times that others wrote: it never overflows.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// So many seconds later.
pub(crate) fn after(time: Timestamp, seconds: impl Into<i64>) -> Timestamp {
    time.checked_add(SignedDuration::from_secs(seconds.into())).unwrap_or(Timestamp::MAX)
}

/// How long it takes until `due`; nothing if that has passed.
pub(crate) fn until(now: Timestamp, due: Timestamp) -> Duration {
    Duration::try_from(due.duration_since(now)).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_at_the_end_of_time_do_no_harm() {
        assert_eq!(after(Timestamp::MAX, 1), Timestamp::MAX);
        assert_eq!(until(Timestamp::MAX, Timestamp::MIN), Duration::ZERO);
        assert!(until(Timestamp::MIN, Timestamp::MAX) > Duration::from_secs(1 << 30));
    }
}
