//! Rate limiters: the delay before an item is retried.
//!
//! River: inside the work queue; used by `retry` and `add_rate_limited`.
//! Promise: delays are bounded and do not overflow; the history of an item is dropped after twice
//! the longest delay.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use crate::random::Random;

/// Decides the delay of a retry; [`Limiter::Custom`] calls a function.
#[non_exhaustive]
pub enum Limiter<T> {
    /// Per item: `base`, doubled with each failure, at most `max`.
    Exponential {
        /// The delay of the first retry.
        base: Duration,
        /// The longest delay.
        max: Duration,
    },
    /// For all items together: a token bucket.
    Bucket {
        /// Retries per second once the burst is used up.
        per_second: f64,
        /// Retries without a delay.
        burst: u32,
    },
    /// Per item: a few quick retries, then slow ones.
    FastSlow {
        /// The delay of the first retries.
        fast: Duration,
        /// The delay afterwards.
        slow: Duration,
        /// The number of fast retries.
        fast_retries: u32,
    },
    /// Another limiter, but never longer than `max`.
    Capped {
        /// The limiter.
        inner: Box<Limiter<T>>,
        /// The longest delay.
        max: Duration,
    },
    /// The longest delay of several limiters.
    MaxOf(Vec<Limiter<T>>),
    /// A function of the item and the number of earlier failures.
    Custom(Box<CustomDelay<T>>),
}

type CustomDelay<T> = dyn Fn(&T, u32) -> Duration + Send + Sync;

const BASE: Duration = Duration::from_millis(5);
const MAX: Duration = Duration::from_secs(1000);
/// The jitter, so that items that failed together are not retried together.
const SPREAD: f64 = 0.1;

impl<T> Limiter<T> {
    /// Per item from 5 ms to 1000 s; the limiter of controllers.
    pub fn per_item() -> Limiter<T> {
        Limiter::Exponential { base: BASE, max: MAX }
    }

    fn longest(&self) -> Duration {
        match self {
            Limiter::Exponential { max, .. } | Limiter::Capped { max, .. } => *max,
            Limiter::FastSlow { fast, slow, .. } => *fast.max(slow),
            Limiter::Bucket { .. } | Limiter::Custom(_) => MAX,
            Limiter::MaxOf(limiters) => limiters.iter().map(Limiter::longest).max().unwrap_or(MAX),
        }
    }
}

/// Per item from 5 ms to 1000 s, and for all together 10 per second after a burst of 100.
impl<T> Default for Limiter<T> {
    fn default() -> Self {
        let bucket = Limiter::Bucket { per_second: 10.0, burst: 100 };
        Limiter::MaxOf(vec![Limiter::per_item(), bucket])
    }
}

impl<T> fmt::Debug for Limiter<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limiter::Exponential { base, max } => write!(f, "Exponential({base:?}..{max:?})"),
            Limiter::Bucket { per_second, burst } => write!(f, "Bucket({per_second}/s, {burst})"),
            Limiter::FastSlow { fast, slow, fast_retries } => {
                write!(f, "FastSlow({fast:?} x {fast_retries}, {slow:?})")
            }
            Limiter::Capped { inner, max } => write!(f, "Capped({inner:?}, {max:?})"),
            Limiter::MaxOf(limiters) => f.debug_tuple("MaxOf").field(limiters).finish(),
            Limiter::Custom(_) => f.write_str("Custom"),
        }
    }
}

/// A limiter and its state.
pub(super) struct LimiterState<T> {
    limiter: Limiter<T>,
    longest: Duration,
    random: Random,
    memory: Mutex<Memory<T>>,
}

struct Memory<T> {
    items: HashMap<T, History>,
    /// The tokens of each bucket in the limiter, in depth-first order.
    buckets: Vec<Tokens>,
    next_sweep: Option<Instant>,
}

struct History {
    /// Failures that count for the delay.
    failures: u32,
    /// All retries.
    limited: u32,
    /// When the last delay ends.
    due: Instant,
}

#[derive(Clone, Copy)]
struct Tokens {
    left: f64,
    at: Instant,
}

impl<T: Hash + Eq + Clone> LimiterState<T> {
    pub(super) fn new(limiter: Limiter<T>, random: Random) -> LimiterState<T> {
        let memory = Memory { items: HashMap::new(), buckets: Vec::new(), next_sweep: None };
        LimiterState { longest: limiter.longest(), limiter, random, memory: Mutex::new(memory) }
    }

    fn lock(&self) -> MutexGuard<'_, Memory<T>> {
        self.memory.lock().expect("no code panics while the memory is held")
    }

    /// The delay of the next retry of `item`.
    pub(super) fn delay(&self, item: &T, now: Instant) -> Duration {
        let earlier = self.count(item, now);
        // This may call a function of the user, so no lock is held.
        let delay = self.ask(&self.limiter, item, earlier, now, &mut 0);
        if let Some(history) = self.lock().items.get_mut(item) {
            history.due = now.checked_add(delay).unwrap_or(now);
        }
        delay
    }

    /// Counts a retry; returns the number of earlier failures. A retry before the end of the
    /// previous delay has another cause and does not count as a failure.
    fn count(&self, item: &T, now: Instant) -> u32 {
        let mut memory = self.lock();
        self.sweep(&mut memory, now);
        let stale =
            |history: &History| now.saturating_duration_since(history.due) > self.longest * 2;
        if memory.items.get(item).is_some_and(stale) {
            memory.items.remove(item);
        }
        let fresh = History { failures: 0, limited: 0, due: now };
        let history = memory.items.entry(item.clone()).or_insert(fresh);
        history.limited = history.limited.saturating_add(1);
        if history.failures == 0 || history.due <= now {
            history.failures = history.failures.saturating_add(1);
        }
        history.failures - 1
    }

    fn sweep(&self, memory: &mut Memory<T>, now: Instant) {
        if memory.next_sweep.is_some_and(|at| now < at) {
            return;
        }
        memory.next_sweep = now.checked_add(self.longest);
        let keep =
            |history: &History| now.saturating_duration_since(history.due) <= self.longest * 2;
        memory.items.retain(|_, history| keep(history));
        let few = memory.items.len() * 2;
        memory.items.shrink_to(few);
    }

    fn ask(
        &self,
        limiter: &Limiter<T>,
        item: &T,
        earlier: u32,
        now: Instant,
        bucket: &mut usize,
    ) -> Duration {
        match limiter {
            Limiter::Exponential { base, max } => {
                let factor = 1u32.checked_shl(earlier).unwrap_or(u32::MAX);
                self.spread(base.saturating_mul(factor).min(*max))
            }
            Limiter::FastSlow { fast, slow, fast_retries } => {
                self.spread(if earlier < *fast_retries { *fast } else { *slow })
            }
            Limiter::Bucket { per_second, burst } => {
                *bucket += 1;
                self.reserve(*bucket - 1, *per_second, *burst, now)
            }
            Limiter::Capped { inner, max } => self.ask(inner, item, earlier, now, bucket).min(*max),
            Limiter::MaxOf(limiters) => {
                let mut delays = limiters.iter().map(|l| self.ask(l, item, earlier, now, bucket));
                let first = delays.next().unwrap_or_default();
                delays.fold(first, Duration::max)
            }
            Limiter::Custom(delay) => delay(item, earlier),
        }
    }

    fn spread(&self, delay: Duration) -> Duration {
        delay.saturating_add(self.random.part_of(delay, SPREAD))
    }

    fn reserve(&self, index: usize, per_second: f64, burst: u32, now: Instant) -> Duration {
        let mut memory = self.lock();
        let full = Tokens { left: f64::from(burst), at: now };
        if memory.buckets.len() <= index {
            memory.buckets.resize(index + 1, full);
        }
        let tokens = &mut memory.buckets[index];
        let passed = now.saturating_duration_since(tokens.at).as_secs_f64();
        tokens.left = (tokens.left + passed * per_second).min(f64::from(burst)) - 1.0;
        tokens.at = now;
        if tokens.left >= 0.0 {
            return Duration::ZERO;
        }
        Duration::try_from_secs_f64(-tokens.left / per_second).unwrap_or(Duration::MAX)
    }

    pub(super) fn forget(&self, item: &T) {
        self.lock().items.remove(item);
    }

    pub(super) fn requeues(&self, item: &T) -> u32 {
        self.lock().items.get(item).map_or(0, |history| history.limited)
    }

    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.lock().items.len()
    }
}
