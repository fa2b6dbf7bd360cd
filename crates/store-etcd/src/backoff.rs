//! Exponential backoff with jitter.

use std::time::Duration;

/// Waits that double up to a limit. The jitter keeps replicas that lost the same member from
/// reconnecting at the same time.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    tries: u32,
}

const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(2);

impl Backoff {
    /// The next wait.
    pub(crate) fn next(&mut self) -> Duration {
        let full = LONGEST.min(FIRST * 2_u32.pow(self.tries.min(10)));
        self.tries = self.tries.saturating_add(1);
        let chance = u32::from(uuid::Uuid::new_v4().as_bytes()[0]);
        full / 2 + full / 2 * chance / 255
    }

    /// Starts with short waits again, after a success.
    pub(crate) fn reset(&mut self) {
        self.tries = 0;
    }

    /// Whether there was more than one failure in a row.
    pub(crate) fn is_lasting(&self) -> bool {
        self.tries > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_limit_and_stay_above_half_of_it() {
        let mut backoff = Backoff::default();
        let waits: Vec<Duration> = (0..2_000).map(|_| backoff.next()).collect();
        assert!(waits[0] >= FIRST / 2 && waits[0] <= FIRST);
        assert!(waits[100..].iter().all(|wait| *wait >= LONGEST / 2 && *wait <= LONGEST));
        backoff.reset();
        assert!(backoff.next() <= FIRST);
    }
}
