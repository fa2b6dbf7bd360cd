//! Exponential backoff of a reflector.
//!
//! River: inside the reflector; lists, watch-lists and watches share one sequence.
//! Promise: 0.8, 1.6, 3.2 ... 30, 30 seconds, each with up to 100 % jitter; the sequence restarts
//! after two minutes without a delay.

use std::time::Duration;

use headwater_api::backoff::Backoff;
use tokio::time::Instant;

use crate::random::Random;

/// How long a reflector waits after failures. The default is that of client-go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delays {
    /// The first delay; each later delay is twice as long.
    pub first: Duration,
    /// The longest delay, before jitter.
    pub longest: Duration,
}

impl Default for Delays {
    fn default() -> Delays {
        Delays { first: Duration::from_millis(800), longest: Duration::from_secs(30) }
    }
}

/// The sequence restarts after this time without a delay.
const QUIET: Duration = Duration::from_secs(120);

/// The backoff of a reflector.
#[derive(Debug)]
pub(crate) struct ReflectorBackoff {
    delays: Backoff,
    last_ended: Option<Instant>,
}

impl ReflectorBackoff {
    pub(crate) fn new(Delays { first, longest }: Delays) -> ReflectorBackoff {
        ReflectorBackoff { delays: Backoff::new(first, longest, 1.0..2.0), last_ended: None }
    }

    /// The next delay; at least the time that the server advised, plus up to 10 % jitter.
    pub(crate) fn next(
        &mut self,
        now: Instant,
        random: &Random,
        advised: Option<Duration>,
    ) -> Duration {
        if self.last_ended.is_some_and(|end| now.saturating_duration_since(end) >= QUIET) {
            self.delays.reset();
        }
        let delay = self.delays.next(random);
        let advised = advised.map(|least| least + random.part_of(least, 0.1)).unwrap_or_default();
        self.end(now, delay.max(advised))
    }

    /// The longest delay, for failures that will last.
    pub(crate) fn longest(&mut self, now: Instant, random: &Random) -> Duration {
        let delay = self.delays.longest(random);
        self.end(now, delay)
    }

    fn end(&mut self, now: Instant, delay: Duration) -> Duration {
        self.last_ended = Some(now + delay);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(800);
    const LONGEST: Duration = Duration::from_secs(30);

    /// C5.3
    #[test]
    fn delays_double_to_thirty_seconds_with_up_to_100_percent_jitter() {
        let random = Random::seeded(3);
        let mut backoff = ReflectorBackoff::new(Delays::default());
        let mut now = Instant::now();
        for base in [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0, 30.0] {
            let delay = backoff.next(now, &random, None);
            let seconds = delay.as_secs_f64();
            assert!((base..base * 2.0).contains(&seconds), "{seconds} for {base}");
            now += delay;
        }
        for _ in 0..10_000 {
            assert!(backoff.next(now, &random, None) < 2 * LONGEST);
        }
    }

    /// C5.4
    #[test]
    fn the_sequence_restarts_only_after_two_minutes_without_a_delay() {
        let random = Random::seeded(3);
        let mut backoff = ReflectorBackoff::new(Delays::default());
        let mut now = Instant::now();
        for _ in 0..20 {
            now += backoff.next(now, &random, None) + Duration::from_secs(119);
        }
        assert!(backoff.next(now, &random, None) >= LONGEST, "a long outage");
        now += 2 * LONGEST + QUIET;
        assert!(backoff.next(now, &random, None) < 2 * FIRST);
    }

    /// C5.7
    #[test]
    fn the_servers_advice_is_the_minimum_delay() {
        let random = Random::seeded(3);
        let mut backoff = ReflectorBackoff::new(Delays::default());
        let advice = Duration::from_secs(10);
        for _ in 0..100 {
            let delay = ReflectorBackoff::new(Delays::default()).next(
                Instant::now(),
                &random,
                Some(advice),
            );
            assert!(delay >= advice && delay <= advice.mul_f64(1.1), "{delay:?}");
        }
        assert!(backoff.next(Instant::now(), &random, Some(Duration::ZERO)) >= FIRST);
    }
}
