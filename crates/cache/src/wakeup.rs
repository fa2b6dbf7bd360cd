//! Batched wake-ups: when to wake the watchers of a view.
//!
//! River: feed → views → **wake-ups** → watchers. Waking a thousand watchers costs thousands of
//! system calls, whether each finds one event or ten. So the first change of a burst wakes them at
//! once, and the following ones wait for the next wake-up. Wake-ups take at most about half of the
//! time, so that the server can do the work that fills the next batch. A view with few watchers
//! never waits.
//! Promise: watchers are woken at most [`PAUSE_MAX`] after every change.

use std::time::Duration;

use tokio::time::Instant;

/// Views with at least this many watchers get batched wake-ups.
const BATCHED_MIN: usize = 250;

/// The estimated time to serve one watcher, until it is measured.
const DELIVERY: Duration = Duration::from_micros(10);

/// The longest time between two wake-ups.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Decides when to wake the watchers of a view.
#[derive(Debug, Default)]
pub(crate) struct WakeupPacer {
    last: Option<Wakeup>,
    /// How long the last complete wake-up took, until the watchers had caught up.
    lasted: Option<Duration>,
    /// The next wake-up is already scheduled.
    is_scheduled: bool,
}

#[derive(Debug)]
struct Wakeup {
    began: Instant,
    /// Watchers that still have to catch up. The count leaves out a quarter, which may be stuck.
    awaited: usize,
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
            self.last = None;
            return WakeDecision::Now;
        }
        match self.last.as_ref().map(|last| last.began + self.pause(watchers)) {
            Some(next) if next > Instant::now() => {
                self.is_scheduled = true;
                WakeDecision::At(next)
            }
            _ => {
                self.begin(watchers);
                WakeDecision::Now
            }
        }
    }

    /// Starts a wake-up of this many watchers.
    pub(crate) fn begin(&mut self, watchers: usize) {
        self.is_scheduled = false;
        self.last = Some(Wakeup { began: Instant::now(), awaited: watchers - watchers / 4 });
    }

    /// Notes that a watcher has read all events.
    pub(crate) fn caught_up(&mut self) {
        let Some(last) = &mut self.last else { return };
        if last.awaited == 1 {
            self.lasted = Some(last.began.elapsed());
        }
        last.awaited = last.awaited.saturating_sub(1);
    }

    /// The time between the starts of two wake-ups.
    fn pause(&self, watchers: usize) -> Duration {
        let estimate = || DELIVERY.saturating_mul(u32::try_from(watchers).unwrap_or(u32::MAX));
        self.lasted.unwrap_or_else(estimate).saturating_mul(2).min(PAUSE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn milli(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// A wake-up of a thousand watchers that takes this long.
    async fn complete(pacer: &mut WakeupPacer, lasts: Duration) {
        pacer.begin(1000);
        advance(lasts).await;
        (0..1000).for_each(|_| pacer.caught_up());
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
        assert_eq!(pacer.wake(1000), WakeDecision::At(now + milli(20)));
        // Also if the scheduled wake-up is late, and if most watchers have left.
        advance(milli(29)).await;
        assert_eq!(pacer.wake(1000), WakeDecision::AlreadyScheduled);
        assert_eq!(pacer.wake(1), WakeDecision::AlreadyScheduled);
        pacer.begin(1000);
        assert_eq!(pacer.wake(1000), WakeDecision::At(now + milli(50)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_pause_is_as_long_as_the_wakeup() {
        let mut pacer = WakeupPacer::default();
        for (lasts, pause) in [(3, 6), (10, 20), (1, 2)] {
            complete(&mut pacer, milli(lasts)).await;
            let began = Instant::now() - milli(lasts);
            assert_eq!(pacer.wake(1000), WakeDecision::At(began + milli(pause)));
            advance(milli(pause)).await;
        }
        pacer.begin(1000);
        advance(milli(2)).await;
        assert_eq!(pacer.wake(1000), WakeDecision::Now);
    }

    #[tokio::test(start_paused = true)]
    async fn no_wakeup_is_later_than_the_maximum_pause() {
        let (mut pacer, now) = (WakeupPacer::default(), Instant::now());
        assert_eq!(pacer.wake(usize::MAX), WakeDecision::Now);
        assert_eq!(pacer.wake(usize::MAX), WakeDecision::At(now + PAUSE_MAX));
        complete(&mut pacer, milli(1000)).await;
        pacer.begin(1000);
        assert_eq!(pacer.wake(1000), WakeDecision::At(Instant::now() + PAUSE_MAX));
    }

    #[tokio::test(start_paused = true)]
    async fn stuck_watchers_do_not_prolong_a_wakeup() {
        let mut pacer = WakeupPacer::default();
        pacer.begin(1000);
        advance(milli(5)).await;
        (0..750).for_each(|_| pacer.caught_up());
        assert_eq!(pacer.lasted, Some(milli(5)));
        advance(milli(5)).await;
        (0..2000).for_each(|_| pacer.caught_up());
        assert_eq!(pacer.lasted, Some(milli(5)));
    }
}
