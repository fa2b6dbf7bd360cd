//! The wall clock, passed in as a value.
//!
//! River: every stage that writes a timestamp takes a [`Clock`], so that tests control the time.
//! Promise: no ordering depends on it; it only fills timestamps and TTLs.

use jiff::Timestamp;

/// The source of the time of day.
pub trait Clock: Send + Sync + 'static {
    /// The current time.
    fn now(&self) -> Timestamp;
}

/// The clock of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// Formats a time as in Kubernetes metadata: RFC 3339, UTC, seconds without a fraction.
pub fn rfc3339(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Formats a `MicroTime`: as [`rfc3339`] with exactly six decimals.
pub fn rfc3339_micro(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_printed_as_kubernetes_prints_them() {
        let time: Timestamp = "2024-01-02T03:04:05.000006Z".parse().unwrap();
        assert_eq!(rfc3339(time), "2024-01-02T03:04:05Z");
        assert_eq!(rfc3339_micro(time), "2024-01-02T03:04:05.000006Z");
    }
}
