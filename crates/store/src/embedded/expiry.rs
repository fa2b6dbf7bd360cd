//! Expiries: which versions expire, and when.
//!
//! Promise: no object expires early, and the rate of deletions is limited. Within a process a time
//! to live is measured with the monotonic clock, so setting the wall clock has no effect; after a
//! restart overdue objects expire at the limited rate.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use headwater_api::Revision;

use crate::key::Key;

/// The shortest time between two rounds.
const ROUND: Duration = Duration::from_millis(100);

/// The maximum number of deletions per round, unless expiring everything would take minutes.
const ROUND_MAX: usize = 100;

/// The minimum number of rounds for everything that is overdue: one minute.
const ROUNDS_MIN: usize = 600;

/// When a version of a key expires, in milliseconds of the wall clock.
#[derive(Debug)]
pub(super) struct Expiry {
    pub(super) at: i64,
    pub(super) key: Key,
    pub(super) revision: Revision,
}

/// Everything that will expire, soonest first.
#[derive(Debug)]
pub(super) struct Expiries {
    waiting: BTreeSet<(Instant, Key, Revision)>,
    next_round: Instant,
}

impl Expiries {
    pub(super) fn new(now: Instant) -> Expiries {
        Expiries { waiting: BTreeSet::new(), next_round: now }
    }

    /// Adds an expiry. The remaining time is measured with the monotonic clock from now on.
    pub(super) fn add(&mut self, now: Instant, wall: i64, expiry: Expiry) {
        let left = Duration::from_millis(expiry.at.saturating_sub(wall).try_into().unwrap_or(0));
        // Beyond the range of the clock it never expires.
        if let Some(at) = now.checked_add(left) {
            self.waiting.insert((at, expiry.key, expiry.revision));
        }
    }

    /// When `take` has something to return.
    pub(super) fn next(&self) -> Option<Instant> {
        self.waiting.first().map(|(at, ..)| (*at).max(self.next_round))
    }

    /// The versions to delete now.
    pub(super) fn take(&mut self, now: Instant) -> Vec<Expiry> {
        let mut due = Vec::new();
        if now < self.next_round {
            return due;
        }
        let most = ROUND_MAX.max(self.waiting.len() / ROUNDS_MIN);
        while due.len() < most && self.waiting.first().is_some_and(|(at, ..)| *at <= now) {
            if let Some((_, key, revision)) = self.waiting.pop_first() {
                due.push(Expiry { at: 0, key, revision });
            }
        }
        if !due.is_empty() {
            self.next_round = now + ROUND;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expiry(at: i64, n: usize) -> Expiry {
        Expiry { at, key: Key::new(format!("/{n:05}")), revision: Revision(n as u64) }
    }

    #[test]
    fn nothing_expires_early_and_the_soonest_expires_first() {
        let start = Instant::now();
        let mut expiries = Expiries::new(start);
        expiries.add(start, 1_000, expiry(1_500, 1));
        expiries.add(start, 1_000, expiry(1_200, 2));
        let after = |ms| start + Duration::from_millis(ms);
        assert_eq!(expiries.next(), Some(after(200)));
        assert_eq!(expiries.take(after(199)).len(), 0);
        assert_eq!(expiries.take(after(200))[0].revision, Revision(2));
        assert_eq!(expiries.next(), Some(after(500)));
        assert_eq!(expiries.take(after(500))[0].revision, Revision(1));
        assert_eq!(expiries.next(), None);
    }

    /// R16, R96
    #[test]
    fn overdue_objects_expire_in_rounds() {
        let start = Instant::now();
        let mut expiries = Expiries::new(start);
        for n in 0..1_000 {
            expiries.add(start, 1_000_000, expiry(1, n));
        }
        let mut now = start;
        let mut rounds = 0;
        while let Some(next) = expiries.next() {
            now = now.max(next);
            assert!(expiries.take(now).len() <= ROUND_MAX);
            assert_eq!(expiries.take(now).len(), 0, "a round at a time");
            rounds += 1;
        }
        assert_eq!(rounds, 10);
        assert_eq!(now - start, ROUND * 9);
    }
}
