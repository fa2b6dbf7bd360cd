//! The health of an informer, for operators and readiness checks.
//!
//! River: reflector → **health** → readiness checks, logs.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use crate::list_watch::Class;

/// The health of an informer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// The initial state is not complete yet.
    Starting,
    /// The store follows the server.
    Synced,
    /// It has synced, but lists or watches fail now; the store is out of date until a watch
    /// succeeds.
    Lagging {
        /// What went wrong.
        reason: String,
        /// The time of the first failure.
        since: Instant,
    },
    /// The server does not accept the credentials (401).
    Unauthorized,
    /// The server denies access (403).
    Forbidden,
    /// The server does not serve the resource type (404).
    NotServed,
    /// It has stopped.
    Stopped,
}

impl Health {
    /// Whether it cannot sync unless the configuration changes.
    pub(crate) fn is_hopeless(&self) -> bool {
        matches!(self, Health::Forbidden | Health::NotServed | Health::Stopped)
    }

    /// Whether it can never sync.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self, Health::Stopped)
    }

    /// The health after a failure.
    pub(crate) fn failed(&self, class: Class, reason: &str, synced: bool, now: Instant) -> Health {
        match (class, self) {
            (Class::Unauthorized, _) => Health::Unauthorized,
            (Class::Forbidden, _) => Health::Forbidden,
            (Class::NotServed, _) => Health::NotServed,
            _ if !synced => Health::Starting,
            (_, Health::Lagging { since, .. }) => {
                Health::Lagging { reason: reason.to_owned(), since: *since }
            }
            _ => Health::Lagging { reason: reason.to_owned(), since: now },
        }
    }

    /// The health of several lanes: that of the worst lane.
    pub(crate) fn of_all<'a>(lanes: impl Iterator<Item = &'a Health>) -> Health {
        let rank = |health: &Health| match health {
            Health::Forbidden => 6,
            Health::Unauthorized => 5,
            Health::NotServed => 4,
            Health::Lagging { .. } => 3,
            Health::Starting => 2,
            Health::Synced => 1,
            Health::Stopped => 0,
        };
        lanes.max_by_key(|health| rank(health)).cloned().unwrap_or(Health::Synced)
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Health::Starting => f.write_str("starting"),
            Health::Synced => f.write_str("synced"),
            Health::Lagging { reason, since } => {
                write!(f, "lagging for {:?}: {reason}", since.elapsed())
            }
            Health::Unauthorized => f.write_str("unauthorized"),
            Health::Forbidden => f.write_str("forbidden"),
            Health::NotServed => f.write_str("the resource type is not served"),
            Health::Stopped => f.write_str("stopped"),
        }
    }
}

/// Decides which of many equal failures are logged: the first, changes of the class, the end, and
/// one every five minutes.
#[derive(Debug, Default)]
pub(crate) struct FailureLog {
    failing: Option<(Class, Instant)>,
    suppressed: u32,
}

const LOG_EVERY: Duration = Duration::from_secs(300);

impl FailureLog {
    /// Returns how many equal failures were not logged, or `None` if this one is not logged either.
    pub(crate) fn failed(&mut self, class: Class, now: Instant) -> Option<u32> {
        let repeated = self.failing.is_some_and(|(last, at)| {
            last == class && now.saturating_duration_since(at) < LOG_EVERY
        });
        if repeated {
            self.suppressed += 1;
            return None;
        }
        self.failing = Some((class, now));
        Some(std::mem::take(&mut self.suppressed))
    }

    /// Whether this success follows a failure.
    pub(crate) fn succeeded(&mut self) -> bool {
        self.suppressed = 0;
        self.failing.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C5.10
    #[test]
    fn a_repeating_failure_is_logged_when_it_starts_changes_ends_and_every_five_minutes() {
        let mut log = FailureLog::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(log.failed(Class::Refused, at(0)), Some(0));
        assert_eq!(log.failed(Class::Refused, at(60)), None);
        assert_eq!(log.failed(Class::Refused, at(299)), None);
        assert_eq!(log.failed(Class::Refused, at(300)), Some(2));
        assert_eq!(log.failed(Class::Broken, at(301)), Some(0), "another class");
        assert!(log.succeeded());
        assert!(!log.succeeded());
        assert_eq!(log.failed(Class::Broken, at(302)), Some(0));
    }

    #[test]
    fn the_health_is_that_of_the_worst_lane() {
        let lanes = [Health::Synced, Health::Starting];
        assert_eq!(Health::of_all(lanes.iter()), Health::Starting);
        let lanes = [Health::Synced, Health::Forbidden, Health::Starting];
        assert_eq!(Health::of_all(lanes.iter()), Health::Forbidden);
    }
}
