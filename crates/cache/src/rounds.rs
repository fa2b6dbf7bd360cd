//! Rounds: when the watchers of a view are woken.
//!
//! River: feed → views → **rounds** → watchers. To wake a thousand watchers is thousands of system
//! calls, whether each of them finds one event or ten. So the first of a burst of changes wakes them
//! at once, and those that follow wait for the next round. Rounds take at most about half of the
//! time: what a server can do beside them is what makes the next one worth its while. A view with
//! few watchers never waits.
//! Promise: watchers are woken after every change, at most [`PAUSE_MAX`] later.

use std::time::Duration;

use tokio::time::Instant;

/// So many watchers are woken in rounds.
const CROWD: usize = 250;

/// What it takes to hand something to one watcher, until it is known.
const DELIVERY: Duration = Duration::from_micros(10);

/// The longest time from one round to the next.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// When the watchers of a view are woken.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    last: Option<Round>,
    /// How long the last round took that came to its end.
    lasted: Option<Duration>,
    /// Somebody is to begin the next.
    is_due: bool,
}

#[derive(Debug)]
struct Round {
    began: Instant,
    /// Watchers that have yet to find nothing new before it is over. A few may be stuck.
    awaited: usize,
}

/// When to wake watchers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    Now,
    /// Then, and [`Rounds::begin`] then.
    At(Instant),
    /// Somebody will already.
    Due,
}

impl Rounds {
    /// There is something new for so many watchers.
    pub(crate) fn wake(&mut self, watchers: usize) -> Wake {
        if self.is_due {
            return Wake::Due;
        }
        if watchers < CROWD {
            self.last = None;
            return Wake::Now;
        }
        match self.last.as_ref().map(|last| last.began + self.pause(watchers)) {
            Some(next) if next > Instant::now() => {
                self.is_due = true;
                Wake::At(next)
            }
            _ => {
                self.begin(watchers);
                Wake::Now
            }
        }
    }

    /// So many watchers are woken.
    pub(crate) fn begin(&mut self, watchers: usize) {
        self.is_due = false;
        self.last = Some(Round { began: Instant::now(), awaited: watchers - watchers / 4 });
    }

    /// A watcher has found nothing new.
    pub(crate) fn caught_up(&mut self) {
        let Some(last) = &mut self.last else { return };
        if last.awaited == 1 {
            self.lasted = Some(last.began.elapsed());
        }
        last.awaited = last.awaited.saturating_sub(1);
    }

    /// From the beginning of one round to that of the next.
    fn pause(&self, watchers: usize) -> Duration {
        let supposed = || DELIVERY.saturating_mul(u32::try_from(watchers).unwrap_or(u32::MAX));
        self.lasted.unwrap_or_else(supposed).saturating_mul(2).min(PAUSE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn milli(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// A round of a thousand that takes so long.
    async fn round(rounds: &mut Rounds, lasts: Duration) {
        rounds.begin(1000);
        advance(lasts).await;
        (0..1000).for_each(|_| rounds.caught_up());
    }

    #[tokio::test(start_paused = true)]
    async fn few_watchers_are_woken_each_time() {
        let mut rounds = Rounds::default();
        for watchers in [0, 1, CROWD - 1, 1] {
            assert_eq!(rounds.wake(watchers), Wake::Now);
            assert_eq!(rounds.wake(watchers), Wake::Now);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn of_a_burst_the_first_wakes_many_at_once_and_the_others_together() {
        let (mut rounds, now) = (Rounds::default(), Instant::now());
        assert_eq!(rounds.wake(1000), Wake::Now);
        advance(milli(1)).await;
        assert_eq!(rounds.wake(1000), Wake::At(now + milli(20)));
        // Also when the one that wakes them comes late, and when most of them left.
        advance(milli(29)).await;
        assert_eq!(rounds.wake(1000), Wake::Due);
        assert_eq!(rounds.wake(1), Wake::Due);
        rounds.begin(1000);
        assert_eq!(rounds.wake(1000), Wake::At(now + milli(50)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_as_long_as_a_round() {
        let mut rounds = Rounds::default();
        for (lasts, pause) in [(3, 6), (10, 20), (1, 2)] {
            round(&mut rounds, milli(lasts)).await;
            let began = Instant::now() - milli(lasts);
            assert_eq!(rounds.wake(1000), Wake::At(began + milli(pause)));
            advance(milli(pause)).await;
        }
        rounds.begin(1000);
        advance(milli(2)).await;
        assert_eq!(rounds.wake(1000), Wake::Now);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_waits_long() {
        let (mut rounds, now) = (Rounds::default(), Instant::now());
        assert_eq!(rounds.wake(usize::MAX), Wake::Now);
        assert_eq!(rounds.wake(usize::MAX), Wake::At(now + PAUSE_MAX));
        round(&mut rounds, milli(1000)).await;
        rounds.begin(1000);
        assert_eq!(rounds.wake(1000), Wake::At(Instant::now() + PAUSE_MAX));
    }

    #[tokio::test(start_paused = true)]
    async fn watchers_that_are_stuck_do_not_count() {
        let mut rounds = Rounds::default();
        rounds.begin(1000);
        advance(milli(5)).await;
        (0..750).for_each(|_| rounds.caught_up());
        assert_eq!(rounds.lasted, Some(milli(5)));
        advance(milli(5)).await;
        (0..2000).for_each(|_| rounds.caught_up());
        assert_eq!(rounds.lasted, Some(milli(5)));
    }
}
