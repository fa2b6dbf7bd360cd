//! Exponential backoff with jitter, as a pure value: callers pass the randomness and wait.
//!
//! River: failed call → **backoff** → next attempt, of the client and of the etcd store.
//! Promise: delays double from the first to the longest, whatever the number of failures.

use std::ops::Range;
use std::time::Duration;

use crate::random::Random;

/// Delays that double up to a maximum.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    jitter: Range<f64>,
    failures: u32,
}

impl Backoff {
    /// Delays from `first` to `longest`. Each is multiplied by a random number from `jitter`, so
    /// that clients that failed together do not retry together.
    pub fn new(first: Duration, longest: Duration, jitter: Range<f64>) -> Backoff {
        Backoff { first, longest, jitter, failures: 0 }
    }

    /// The next delay.
    pub fn next(&mut self, random: &Random) -> Duration {
        let doubled = self.first.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        self.with_jitter(doubled.min(self.longest), random)
    }

    /// The longest delay, for failures that will last.
    pub fn longest(&self, random: &Random) -> Duration {
        self.with_jitter(self.longest, random)
    }

    /// Starts with the first delay again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// The number of failures since the last reset.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    fn with_jitter(&self, delay: Duration, random: &Random) -> Duration {
        let Range { start, end } = self.jitter;
        delay.mul_f64(start) + random.part_of(delay, end - start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_to_the_longest_within_the_jitter_and_restart_after_a_reset() {
        const FIRST: Duration = Duration::from_millis(20);
        const LONGEST: Duration = Duration::from_secs(2);
        let random = Random::seeded(1);
        let mut backoff = Backoff::new(FIRST, LONGEST, 0.5..1.0);
        let delays: Vec<Duration> = (0..2_000).map(|_| backoff.next(&random)).collect();
        assert!((FIRST / 2..=FIRST).contains(&delays[0]));
        assert!(delays[100..].iter().all(|delay| (LONGEST / 2..=LONGEST).contains(delay)));
        assert_eq!(backoff.failures(), 2_000);
        backoff.reset();
        assert!(backoff.next(&random) <= FIRST);
    }
}
