//! The work queue: items that need work, each at most once, and never given to two workers at the
//! same time.
//!
//! River: handlers → **work queue** → reconcilers. It can be used alone, with or without a runtime.
//! Promise: every `add` is followed by a `get`, unless the queue is shut down; any number of adds
//! of a waiting item is one `get`; an item is released when its worker panics or is cancelled.

mod core;
mod limiter;
mod observe;
mod order;
#[cfg(test)]
mod tests;

use std::fmt;
use std::hash::Hash;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::metrics::Metrics;
use crate::random::Random;

use self::core::{Core, NextItem};
pub use self::limiter::Limiter;
use self::limiter::LimiterState;
use self::observe::Observer;

/// A queue of work items. Cheap to clone; clones are the same queue.
///
/// ```
/// # use headwater_client::workqueue::Queue;
/// # async fn work(item: &str) -> Result<(), ()> { Ok(()) }
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let queue = Queue::new();
/// queue.add("a");
/// queue.add("a"); // already queued: no effect
/// queue.shut_down();
/// while let Some(item) = queue.get().await {
///     match work(&item).await {
///         Ok(()) => item.forget(), // the next failure has the shortest delay
///         Err(()) => item.retry(), // retry after the limiter's delay
///     }
/// } // dropping the guard ends the work on the item
/// # });
/// ```
pub struct Queue<T> {
    shared: Arc<QueueInner<T>>,
}

struct QueueInner<T> {
    core: Mutex<Core<T>>,
    limits: LimiterState<T>,
    observer: Option<Observer>,
    /// Wakes tasks: an item became ready, or the queue was shut down.
    ready: Notify,
    /// Wakes draining shutdowns: the queue is idle, or a plain shutdown was called.
    idle: Notify,
}

/// The options of a queue; see [`Queue::named`].
pub struct Options<T> {
    name: Option<String>,
    limiter: Limiter<T>,
    metrics: Option<Metrics>,
    random: Random,
}

/// The options of an add.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Add {
    /// Items with a higher priority leave first.
    pub priority: i32,
    /// The delay.
    pub after: Duration,
}

/// The result of a draining shutdown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Items that were queued or being processed at the deadline.
    pub left: usize,
    /// Delayed items that were dropped.
    pub discarded: usize,
}

impl<T> Options<T>
where
    T: Hash + Eq + Clone + Send + 'static,
{
    fn new(name: Option<String>) -> Options<T> {
        Options { name, limiter: Limiter::default(), metrics: None, random: Random::from_entropy() }
    }

    /// The limiter for [`Item::retry`] and [`Queue::add_rate_limited`].
    #[must_use]
    pub fn limiter(mut self, limiter: Limiter<T>) -> Self {
        self.limiter = limiter;
        self
    }

    /// Counts into `metrics`, if the queue has a name.
    #[must_use]
    pub fn metrics(mut self, metrics: &Metrics) -> Self {
        self.metrics = Some(metrics.clone());
        self
    }

    /// Makes the queue.
    pub fn open(self) -> Queue<T> {
        let shared = Arc::new_cyclic(|weak| QueueInner {
            core: Mutex::new(Core::default()),
            limits: LimiterState::new(self.limiter, self.random),
            observer: self
                .name
                .zip(self.metrics)
                .map(|(name, metrics)| Observer::new(&name, &metrics, weak)),
            ready: Notify::new(),
            idle: Notify::new(),
        });
        Queue { shared }
    }
}

impl<T> Queue<T>
where
    T: Hash + Eq + Clone + Send + 'static,
{
    /// A queue without a name and with the default limiter.
    #[expect(clippy::new_without_default, reason = "a queue is made on purpose, never by accident")]
    pub fn new() -> Queue<T> {
        Options::new(None).open()
    }

    /// Options for a queue with a name for metrics.
    pub fn named(name: impl Into<String>) -> Options<T> {
        Options::new(Some(name.into()))
    }

    /// Makes an item ready. A queued item keeps its position; a delayed item becomes ready now; an
    /// item that is being processed becomes ready again afterwards.
    pub fn add(&self, item: T) {
        self.add_with(item, Add::default());
    }

    /// Makes an item ready after a delay; of two delays the earlier counts.
    pub fn add_after(&self, item: T, after: Duration) {
        self.add_with(item, Add { after, ..Add::default() });
    }

    /// Makes an item ready after the limiter's delay.
    pub fn add_rate_limited(&self, item: T) {
        self.retry_with(item, 0);
    }

    /// Adds with a priority, a delay, or both. Adding again keeps the higher priority and the
    /// earlier time.
    pub fn add_with(&self, item: T, add: Add) {
        if let Some(observer) = &self.shared.observer {
            observer.priority_seen(add.priority, &self.shared);
        }
        let now = Instant::now();
        let mut core = self.lock();
        let added = match add.after {
            Duration::ZERO => core.add(item, add.priority, now),
            after => core.add_after(item, add.priority, far_from(now, after)),
        };
        drop(core);
        if added {
            if let Some(observer) = &self.shared.observer {
                observer.adds.inc();
            }
            self.wake();
        }
    }

    fn retry_with(&self, item: T, priority: i32) {
        let after = self.shared.limits.delay(&item, Instant::now());
        if let Some(observer) = &self.shared.observer {
            observer.retries.inc();
        }
        self.add_with(item, Add { priority, after });
    }

    /// Clears the limiter's history of an item.
    pub(crate) fn forget(&self, item: &T) {
        self.shared.limits.forget(item);
    }

    fn requeues_of(&self, item: &T) -> u32 {
        self.shared.limits.requeues(item)
    }

    /// Waits for the next item; `None` after a shutdown, once the queue is empty.
    ///
    /// Cancel-safe: dropping the future loses no item.
    pub async fn get(&self) -> Option<Item<T>> {
        loop {
            let ready = self.shared.ready.notified();
            tokio::pin!(ready);
            ready.as_mut().enable();
            match self.take() {
                NextItem::Item(item) => return Some(item),
                NextItem::Closed => return None,
                NextItem::Nothing(None) => ready.await,
                NextItem::Nothing(Some(due)) => {
                    tokio::select! {
                        biased;
                        () = ready => {}
                        () = sleep_until(due) => {}
                    }
                }
            }
        }
    }

    /// The next item, if one is ready; needs no runtime.
    pub fn try_get(&self) -> Option<Item<T>> {
        match self.take() {
            NextItem::Item(item) => Some(item),
            NextItem::Nothing(_) | NextItem::Closed => None,
        }
    }

    fn take(&self) -> NextItem<Item<T>> {
        let now = Instant::now();
        let mut core = self.lock();
        let taken = core.take(now);
        let more = core.has_ready(now);
        drop(core);
        if more {
            self.wake();
        }
        taken.map(|(item, priority, waited)| {
            if let Some(observer) = &self.shared.observer {
                observer.queue_duration.observe_time(waited);
            }
            Item { queue: self.clone(), item, priority, since: now }
        })
    }

    /// The number of ready items, without items that are being processed or delayed.
    pub fn len(&self) -> usize {
        self.lock().ready_len()
    }

    /// Whether nothing is ready.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Shuts the queue down: later adds are ignored, and workers receive the queued items and then
    /// `None`. Delayed items are dropped; returns their number.
    pub fn shut_down(&self) -> usize {
        let discarded = self.lock().close();
        self.wake_all();
        self.shared.idle.notify_waiters();
        discarded
    }

    /// As [`Queue::shut_down`], and waits until no item is queued or being processed, or until the
    /// deadline. A plain shutdown ends the wait.
    ///
    /// Cancel-safe: the queue stays shut down.
    pub async fn shut_down_draining(&self, deadline: Duration) -> Drained {
        let discarded = self.lock().drain();
        self.wake_all();
        let drained = async {
            loop {
                let idle = self.shared.idle.notified();
                tokio::pin!(idle);
                idle.as_mut().enable();
                if self.lock().stops_draining() {
                    return;
                }
                idle.await;
            }
        };
        // The result shows whether the deadline passed.
        tokio::time::timeout(deadline, drained).await.ok();
        Drained { left: self.lock().unfinished(), discarded }
    }

    fn done(&self, item: &T, since: Instant) {
        if let Some(observer) = &self.shared.observer {
            observer.work_duration.observe_time(since.elapsed());
        }
        let mut core = self.lock();
        let ready = core.done(item);
        let idle = core.unfinished() == 0;
        drop(core);
        if ready {
            self.wake();
        }
        if idle {
            self.shared.idle.notify_waiters();
        }
    }

    fn wake(&self) {
        self.shared.ready.notify_one();
    }

    fn wake_all(&self) {
        self.shared.ready.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, Core<T>> {
        self.shared.core.lock().expect("the queue's own steps do not panic")
    }
}

impl<T> Clone for Queue<T> {
    fn clone(&self) -> Self {
        Queue { shared: Arc::clone(&self.shared) }
    }
}

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

/// Adds a delay to an instant; limits it to 100 years, since instants can overflow.
fn far_from(now: Instant, after: Duration) -> Instant {
    const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);
    now.checked_add(after.min(FOREVER)).unwrap_or(now)
}

/// An item that a worker processes. Dropping it, also by panic or cancellation, ends the work;
/// until then no other worker receives the item.
pub struct Item<T>
where
    T: Hash + Eq + Clone + Send + 'static,
{
    queue: Queue<T>,
    item: T,
    priority: i32,
    since: Instant,
}

impl<T> Item<T>
where
    T: Hash + Eq + Clone + Send + 'static,
{
    /// How often it was rate-limited since the last `forget`.
    pub(crate) fn requeues(&self) -> u32 {
        self.queue.requeues_of(&self.item)
    }

    /// The work succeeded: the next failure has the shortest delay.
    pub fn forget(self) {
        self.queue.forget(&self.item);
    }

    /// The work failed: retries after the limiter's delay, with the same priority.
    pub fn retry(self) {
        self.queue.retry_with(self.item.clone(), self.priority);
    }

    /// Retries after `delay`, with the same priority.
    pub fn retry_after(self, delay: Duration) {
        let add = Add { priority: self.priority, after: delay };
        self.queue.add_with(self.item.clone(), add);
    }
}

impl<T> Deref for Item<T>
where
    T: Hash + Eq + Clone + Send + 'static,
{
    type Target = T;

    fn deref(&self) -> &T {
        &self.item
    }
}

impl<T> Drop for Item<T>
where
    T: Hash + Eq + Clone + Send + 'static,
{
    fn drop(&mut self) {
        self.queue.done(&self.item, self.since);
    }
}

impl<T> fmt::Debug for Item<T>
where
    T: Hash + Eq + Clone + Send + fmt::Debug + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Item").field(&self.item).finish()
    }
}
