//! How long to wait before something is tried again.

use std::time::Duration;

/// Waits that double up to a limit, each shortened by chance: replicas that lost the same member do
/// not come back all at once.
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

    /// It worked: begin with short waits again.
    pub(crate) fn reset(&mut self) {
        self.tries = 0;
    }

    /// Whether it has failed more than once in a row.
    pub(crate) fn is_lasting(&self) -> bool {
        self.tries > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_limit_and_never_vanish() {
        let mut backoff = Backoff::default();
        let waits: Vec<Duration> = (0..2_000).map(|_| backoff.next()).collect();
        assert!(waits[0] >= FIRST / 2 && waits[0] <= FIRST);
        assert!(waits[100..].iter().all(|wait| *wait >= LONGEST / 2 && *wait <= LONGEST));
        backoff.reset();
        assert!(backoff.next() <= FIRST);
    }
}
