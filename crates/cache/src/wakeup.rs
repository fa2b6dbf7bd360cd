//! Batched wake-ups: when to wake the watchers of a view.
//!
//! River: feed → views → **wake-ups** → watchers. Waking a thousand watchers costs thousands of
//! system calls, whether each finds one event or ten. So the first change of a burst wakes them at
//! once, and the following ones wait for the next wake-up. A view with few watchers never waits.
//! Promise: watchers are woken at most [`PAUSE`] after every change.

use std::time::Duration;

use tokio::time::Instant;

/// Views with at least this many watchers get batched wake-ups.
const BATCHED_MIN: usize = 250;

/// The shortest time between two batched wake-ups.
const PAUSE: Duration = Duration::from_millis(40);

/// Decides when to wake the watchers of a view.
#[derive(Debug, Default)]
pub(crate) struct WakeupPacer {
    /// The last batched wake-up.
    last: Option<Instant>,
    /// The next wake-up is already scheduled.
    is_scheduled: bool,
}

/// When to wake the watchers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WakeDecision {
    Now,
    /// At this time; the caller then calls [`WakeupPacer::begin`].
    At(Instant),
    /// A wake-up is already scheduled.
    AlreadyScheduled,
}

impl WakeupPacer {
    /// Decides when to wake this many watchers for new events.
    pub(crate) fn wake(&mut self, watchers: usize) -> WakeDecision {
        if self.is_scheduled {
            return WakeDecision::AlreadyScheduled;
        }
        if watchers < BATCHED_MIN {
            return WakeDecision::Now;
        }
        match self.last.map(|last| last + PAUSE) {
            Some(next) if next > Instant::now() => {
                self.is_scheduled = true;
                WakeDecision::At(next)
            }
            _ => {
                self.begin();
                WakeDecision::Now
            }
        }
    }

    /// Starts a wake-up.
    pub(crate) fn begin(&mut self) {
        *self = WakeupPacer { last: Some(Instant::now()), is_scheduled: false };
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn milli(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[tokio::test(start_paused = true)]
    async fn few_watchers_are_woken_for_each_change() {
        let mut pacer = WakeupPacer::default();
        for watchers in [0, 1, BATCHED_MIN - 1, 1] {
            assert_eq!(pacer.wake(watchers), WakeDecision::Now);
            assert_eq!(pacer.wake(watchers), WakeDecision::Now);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_change_of_a_burst_wakes_many_at_once_and_the_others_together() {
        let (mut pacer, now) = (WakeupPacer::default(), Instant::now());
        assert_eq!(pacer.wake(1000), WakeDecision::Now);
        advance(milli(1)).await;
        assert_eq!(pacer.wake(1000), WakeDecision::At(now + PAUSE));
        // Also if the scheduled wake-up is late, and if most watchers have left.
        advance(milli(49)).await;
        assert_eq!(pacer.wake(1000), WakeDecision::AlreadyScheduled);
        assert_eq!(pacer.wake(1), WakeDecision::AlreadyScheduled);
        pacer.begin();
        assert_eq!(pacer.wake(1000), WakeDecision::At(now + milli(50) + PAUSE));
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_after_the_pause_wakes_at_once() {
        let mut pacer = WakeupPacer::default();
        for _ in 0..3 {
            assert_eq!(pacer.wake(usize::MAX), WakeDecision::Now);
            advance(PAUSE).await;
        }
    }
}
