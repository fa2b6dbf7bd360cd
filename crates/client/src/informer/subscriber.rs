//! A subscriber: its buffer, its resync times, its life; and the two ways to be one.
//!
//! River: store → **subscriber** → the user's callback or stream.
//! Promise: notifications to one subscriber come one after the other; a callback that panics is
//! reported and the next notification follows; after `unsubscribe` no callback runs any more.

use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::task::AtomicWaker;
use futures::{FutureExt, Stream};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::change::{Change, Gone};
use crate::error::Error;
use crate::indexer::StoreState;
use crate::indexer::index::panic_text;
use crate::indexer::writer::Notification;
use crate::key::Key;
use crate::metrics::Metrics;
use crate::object::Cached;
use crate::observe::{BacklogReadings, Reading, SubscriberObserver};

use super::Informer;
use super::buffer::{Buffer, PendingChange, PendingChanges, filtered};

/// How to subscribe; see [`Informer::subscribe`](super::Informer::subscribe).
#[derive(Clone, Debug)]
pub struct Subscribe {
    pub(crate) name: String,
    pub(crate) buffer: Buffer,
    pub(crate) resync: Option<Duration>,
    pub(crate) split_recreate: bool,
    pub(crate) suppress_unchanged: bool,
    pub(crate) abort_on_panic: bool,
}

impl Subscribe {
    /// A subscriber that logs and metrics know by `name`.
    pub fn named(name: impl Into<String>) -> Subscribe {
        Subscribe {
            name: name.into(),
            buffer: Buffer::default(),
            resync: None,
            split_recreate: false,
            suppress_unchanged: false,
            abort_on_panic: false,
        }
    }

    /// What happens when the subscriber is slower than the changes.
    #[must_use]
    pub fn buffer(mut self, buffer: Buffer) -> Subscribe {
        self.buffer = buffer;
        self
    }

    /// Show every object again in this period; zero means never. The informer's own period must
    /// be set too, it is what checks.
    #[must_use]
    pub fn resync(mut self, period: Duration) -> Subscribe {
        self.resync = Some(period);
        self
    }

    /// Tell an object that was deleted and created again under the same name as a deletion and an
    /// add, not as one update whose UIDs differ.
    #[must_use]
    pub fn split_recreate(mut self, yes: bool) -> Subscribe {
        self.split_recreate = yes;
        self
    }

    /// Do not tell objects that a new list found unchanged, unless a resync period is set.
    #[must_use]
    pub fn suppress_unchanged(mut self, yes: bool) -> Subscribe {
        self.suppress_unchanged = yes;
        self
    }

    /// End the process if the callback panics, instead of going on with the next notification.
    #[must_use]
    pub fn abort_on_panic(mut self, yes: bool) -> Subscribe {
        self.abort_on_panic = yes;
        self
    }
}

/// Why a subscription has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The subscriber left.
    Unsubscribed,
    /// Its bounded buffer was full: subscribe again for a replay.
    Lagged,
    /// The informer stopped.
    Stopped,
}

pub(crate) struct Subscriber<K> {
    pub(crate) options: Subscribe,
    pending: Mutex<PendingChanges<K>>,
    life: Mutex<Lifecycle>,
    resync: Mutex<ResyncTimer>,
    /// The one who takes from the buffer: something is pending, or life changed.
    taker: AtomicWaker,
    /// Those who wait for the end, or for a callback to return.
    life_changed: Notify,
    synced: watch::Sender<bool>,
    observer: Option<SubscriberObserver>,
}

#[derive(Default)]
struct Lifecycle {
    left: bool,
    informer_stopped: bool,
    lagged: bool,
    in_callback: bool,
}

struct ResyncTimer {
    period: Duration,
    next: Instant,
    /// Whether it is due; before the first check everybody is.
    due: bool,
}

impl<K: Cached> Subscriber<K> {
    pub(crate) fn new(
        options: Subscribe,
        period: Duration,
        now: Instant,
        metrics: Option<(&Metrics, &str)>,
    ) -> Arc<Subscriber<K>> {
        let pending = PendingChanges::new(options.buffer);
        Arc::new_cyclic(|weak| Subscriber {
            observer: metrics.map(|(metrics, informer)| {
                let backlog = BacklogReadings {
                    len: reading(weak, |subscriber| subscriber.backlog() as f64),
                    age_seconds: reading(weak, |subscriber| subscriber.oldest_age().as_secs_f64()),
                };
                SubscriberObserver::new(metrics, informer, &options.name, backlog)
            }),
            options,
            pending: Mutex::new(pending),
            life: Mutex::default(),
            resync: Mutex::new(ResyncTimer { period, next: now + period, due: true }),
            taker: AtomicWaker::new(),
            life_changed: Notify::new(),
            synced: watch::Sender::new(false),
        })
    }

    pub(crate) fn pending(&self) -> MutexGuard<'_, PendingChanges<K>> {
        self.pending.lock().expect("the buffer's own steps do not panic")
    }

    fn life(&self) -> MutexGuard<'_, Lifecycle> {
        self.life.lock().expect("no code panics while the life is held")
    }

    fn resync_state(&self) -> MutexGuard<'_, ResyncTimer> {
        self.resync.lock().expect("no code panics while the resync state is held")
    }

    pub(crate) fn is_gone(&self) -> bool {
        let life = self.life();
        life.left || life.lagged
    }

    /// Whether it is due at a check; its next time is then one period later.
    pub(crate) fn check_resync(&self, now: Instant) -> bool {
        let mut resync = self.resync_state();
        resync.due = !resync.period.is_zero() && now >= resync.next;
        if resync.due {
            resync.next = now + resync.period;
        }
        resync.due
    }

    pub(crate) fn set_resync(&self, period: Duration, now: Instant) {
        let mut resync = self.resync_state();
        resync.period = period;
        resync.next = now + period;
    }

    pub(crate) fn resync_period(&self) -> Duration {
        self.resync_state().period
    }

    /// The whole first state, to be told object by object.
    pub(crate) fn replay(&self, state: Arc<StoreState<K>>, now: Instant) {
        self.pending().replay(state, now);
    }

    /// The first state is complete.
    pub(crate) fn populated(&self) {
        self.pending().populated();
        self.taker.wake();
    }

    /// Puts notices into the buffer; never waits.
    pub(crate) fn tell(&self, notices: &[Notification<K>], now: Instant) {
        let (due, period) = {
            let resync = self.resync_state();
            (resync.due, resync.period)
        };
        let unchanged_wanted = due && !(self.options.suppress_unchanged && period.is_zero());
        let mut pending = self.pending();
        for notice in notices {
            if notice.unchanged && !unchanged_wanted {
                continue;
            }
            match self.recreated(notice) {
                Some((gone, added)) => {
                    pending.put(&notice.key, &gone, false, now);
                    pending.put(&notice.key, &added, false, now);
                }
                None => pending.put(&notice.key, &notice.change, notice.unchanged, now),
            }
        }
        let lagged = pending.is_lagged();
        drop(pending);
        if lagged {
            self.life().lagged = true;
            self.life_changed.notify_waiters();
        }
        self.taker.wake();
    }

    /// The two halves of an update that is really another object, for those who asked.
    fn recreated(&self, notice: &Notification<K>) -> Option<(Change<K>, Change<K>)> {
        let Change::Updated { old, new } = &notice.change else { return None };
        if !self.options.split_recreate || old.uid() == new.uid() {
            return None;
        }
        let gone = Gone::inferred(notice.key.clone(), Some(Arc::clone(old)));
        let added = Change::Added { object: Arc::clone(new), initial: false };
        Some((Change::Deleted(gone), added))
    }

    pub(crate) fn stop(&self) {
        self.life().informer_stopped = true;
        self.life_changed.notify_waiters();
        self.taker.wake();
    }

    fn leave(&self) {
        self.life().left = true;
        *self.pending() = PendingChanges::new(self.options.buffer);
        self.life_changed.notify_waiters();
        self.taker.wake();
    }

    fn end_reason(&self) -> Option<EndReason> {
        let life = self.life();
        match *life {
            Lifecycle { left: true, .. } => Some(EndReason::Unsubscribed),
            Lifecycle { lagged: true, .. } => Some(EndReason::Lagged),
            Lifecycle { informer_stopped: true, .. } => Some(EndReason::Stopped),
            _ => None,
        }
    }

    /// The next entry; `None` when the subscription has ended.
    fn poll_next(&self, cx: &Context<'_>, drain: bool) -> Poll<Option<PendingChange<K>>> {
        self.taker.register(cx.waker());
        match self.end_reason() {
            Some(EndReason::Stopped) if drain => return Poll::Ready(self.pending().take()),
            Some(_) => return Poll::Ready(None),
            None => {}
        }
        let Some(entry) = self.pending().take() else { return Poll::Pending };
        if matches!(entry.change, Change::Synced) {
            // Whoever asks for the next has handled every one before.
            self.synced.send_replace(true);
        }
        Poll::Ready(Some(entry))
    }

    fn handled(&self, entry: &PendingChange<K>, started: Instant) {
        if let Some(observer) = &self.observer {
            observer.handled(entry.since, started);
        }
    }

    pub(crate) fn backlog(&self) -> usize {
        self.pending().len()
    }

    pub(crate) fn dump(&self) -> serde_json::Value {
        let pending = self.pending();
        let age = pending.oldest().map(|oldest| oldest.elapsed().as_secs_f64());
        let keys: Vec<String> = pending.keys().iter().map(Key::to_string).collect();
        serde_json::json!({
            "name": self.options.name,
            "pending": pending.len(),
            "oldestSeconds": age,
            "keys": keys,
            "synced": *self.synced.borrow(),
        })
    }

    pub(crate) fn oldest_age(&self) -> Duration {
        self.pending().oldest().map(|oldest| oldest.elapsed()).unwrap_or_default()
    }
}

/// A gauge of a subscriber; zero once it is dropped.
fn reading<K: Cached>(
    subscriber: &Weak<Subscriber<K>>,
    read: fn(&Subscriber<K>) -> f64,
) -> Reading {
    let subscriber = Weak::clone(subscriber);
    Box::new(move || subscriber.upgrade().map_or(0.0, |subscriber| read(&subscriber)))
}

/// The changes of an informer as a stream: a replay of the present first, then live.
///
/// Dropping it unsubscribes. It is never a brake: whoever stops polling falls behind by the rules
/// of its [`Buffer`] and delays nobody.
pub struct Subscription<K: Cached> {
    subscriber: Arc<Subscriber<K>>,
    filter: Option<Filter<K>>,
    /// A subscription keeps its informer alive.
    _informer: Informer<K>,
}

type Filter<K> = Box<dyn FnMut(&K) -> bool + Send>;

impl<K: Cached> Subscription<K> {
    pub(crate) fn new(subscriber: Arc<Subscriber<K>>, informer: Informer<K>) -> Subscription<K> {
        Subscription { subscriber, filter: None, _informer: informer }
    }

    /// The same, but only objects that `matches`: an update that enters the selection is an add,
    /// one that leaves it a deletion.
    #[must_use]
    pub fn filtered(mut self, matches: impl FnMut(&K) -> bool + Send + 'static) -> Self {
        self.filter = Some(Box::new(matches));
        self
    }

    /// The next change; `None` when the subscription has ended. Cancel-safe.
    pub async fn next(&mut self) -> Option<Change<K>> {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// Waits until every object of the first state was handed over and handled. Cancel-safe. The
    /// stream must be polled meanwhile, or be polled to its `Synced` item before.
    pub async fn synced(&self) {
        self.subscriber.synced.subscribe().wait_for(|synced| *synced).await.ok();
    }

    /// Whether [`Subscription::synced`] would return at once.
    pub fn has_synced(&self) -> bool {
        *self.subscriber.synced.borrow()
    }

    #[cfg(test)]
    pub(crate) fn is_observed(&self) -> bool {
        self.subscriber.observer.is_some()
    }

    /// Why the stream ended, once it has.
    pub fn end_reason(&self) -> Option<EndReason> {
        self.subscriber.end_reason()
    }

    fn poll(&mut self, cx: &Context<'_>) -> Poll<Option<Change<K>>> {
        loop {
            let Poll::Ready(entry) = self.subscriber.poll_next(cx, false) else {
                return Poll::Pending;
            };
            let Some(entry) = entry else { return Poll::Ready(None) };
            self.subscriber.handled(&entry, Instant::now());
            let change = match &mut self.filter {
                Some(matches) => filtered(entry.change, matches),
                None => Some(entry.change),
            };
            if change.is_some() {
                return Poll::Ready(change);
            }
        }
    }
}

impl<K: Cached> Stream for Subscription<K> {
    type Item = Change<K>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Change<K>>> {
        self.poll(cx)
    }
}

impl<K: Cached> Unpin for Subscription<K> {}

impl<K: Cached> Drop for Subscription<K> {
    fn drop(&mut self) {
        self.subscriber.leave();
    }
}

impl<K: Cached> fmt::Debug for Subscription<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Subscription({})", self.subscriber.options.name)
    }
}

/// A handler that was registered with [`Informer::for_each`](super::Informer::for_each).
///
/// Dropping it unsubscribes without waiting; a callback that is running may still finish.
#[must_use = "dropping the handler unsubscribes it"]
pub struct Handler<K: Cached> {
    subscriber: Arc<Subscriber<K>>,
    informer: Informer<K>,
}

impl<K: Cached> Handler<K> {
    pub(crate) fn new(subscriber: Arc<Subscriber<K>>, informer: Informer<K>) -> Handler<K> {
        Handler { subscriber, informer }
    }

    pub(crate) fn informer(&self) -> &Informer<K> {
        &self.informer
    }

    pub(crate) fn subscriber(&self) -> &Arc<Subscriber<K>> {
        &self.subscriber
    }

    /// Waits until the callback has returned for every object of the first state. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::Stopped`] if the subscription ends first.
    pub async fn synced(&self) -> Result<(), Error> {
        let mut synced = self.subscriber.synced.subscribe();
        loop {
            let mut changed = pin!(self.subscriber.life_changed.notified());
            changed.as_mut().enable();
            if *synced.borrow_and_update() {
                return Ok(());
            }
            if self.subscriber.end_reason().is_some() {
                return Err(Error::Stopped(format!("handler {:?}", self.subscriber.options.name)));
            }
            tokio::select! {
                _ = synced.changed() => {}
                () = changed => {}
            }
        }
    }

    /// Whether the callback has returned for every object of the first state.
    pub fn has_synced(&self) -> bool {
        *self.subscriber.synced.borrow()
    }

    /// Why it ended, once it has.
    pub fn end_reason(&self) -> Option<EndReason> {
        self.subscriber.end_reason()
    }

    /// How many notifications wait.
    pub fn backlog(&self) -> usize {
        self.subscriber.backlog()
    }

    /// Unsubscribes and waits for a callback that is running: none follows after this returns.
    /// Calling it again does nothing. It must not be awaited inside the callback itself.
    ///
    /// Cancel-safe: it is unsubscribed at once, only the waiting is given up.
    pub async fn unsubscribe(&self) {
        self.subscriber.leave();
        loop {
            let mut changed = pin!(self.subscriber.life_changed.notified());
            changed.as_mut().enable();
            if !self.subscriber.life().in_callback {
                return;
            }
            changed.await;
        }
    }
}

impl<K: Cached> Drop for Handler<K> {
    fn drop(&mut self) {
        self.subscriber.leave();
    }
}

impl<K: Cached> fmt::Debug for Handler<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handler({})", self.subscriber.options.name)
    }
}

/// A callback that never unwinds.
pub(crate) enum Callback<K> {
    Blocking(Box<dyn FnMut(Change<K>) -> Result<(), String> + Send>),
    Async(Box<dyn FnMut(Change<K>) -> CallbackFuture + Send>),
}

type CallbackFuture = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// A callback that runs longer without yielding is reported.
const SLOW: Duration = Duration::from_millis(100);

/// Wraps a synchronous callback.
pub(crate) fn blocking<K: Cached>(
    name: String,
    mut callback: impl FnMut(Change<K>) + Send + 'static,
) -> Callback<K> {
    let mut reported: Option<Instant> = None;
    Callback::Blocking(Box::new(move |change| {
        let started = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| callback(change)));
        let took = started.elapsed();
        let is_news = reported.is_none_or(|at| started - at >= Duration::from_secs(60));
        if took > SLOW && is_news {
            reported = Some(started);
            tracing::warn!(handler = name, ?took, "a synchronous handler blocks its thread");
        }
        result.map_err(|panic| panic_text(&*panic))
    }))
}

/// Wraps an asynchronous callback.
pub(crate) fn asynchronous<K, F>(
    mut callback: impl FnMut(Change<K>) -> F + Send + 'static,
) -> Callback<K>
where
    K: Cached,
    F: Future<Output = ()> + Send + 'static,
{
    Callback::Async(Box::new(move |change| {
        match catch_unwind(AssertUnwindSafe(|| callback(change))) {
            Err(panic) => Box::pin(std::future::ready(Err(panic_text(&*panic)))),
            Ok(future) => Box::pin(
                AssertUnwindSafe(future)
                    .catch_unwind()
                    .map(|result| result.map_err(|panic| panic_text(&*panic))),
            ),
        }
    }))
}

/// Drives one callback subscriber until it leaves or the informer stops.
pub(crate) async fn drive<K: Cached>(
    subscriber: Arc<Subscriber<K>>,
    mut callback: Callback<K>,
    drain: bool,
) {
    while let Some(entry) = poll_fn(|cx| subscriber.poll_next(cx, drain)).await {
        if matches!(entry.change, Change::Synced) {
            continue;
        }
        let Some(_running) = CallbackGuard::start(&subscriber) else { return };
        let started = Instant::now();
        let change = entry.change.clone();
        let result = match &mut callback {
            Callback::Blocking(callback) => callback(change),
            Callback::Async(callback) => callback(change).await,
        };
        if let Err(panic) = result {
            report_panic(&subscriber, &entry, &panic);
        }
        subscriber.handled(&entry, started);
        // One that always has something pending must not keep the thread for itself.
        tokio::task::coop::consume_budget().await;
    }
}

fn report_panic<K: Cached>(subscriber: &Subscriber<K>, entry: &PendingChange<K>, panic: &str) {
    let name = &subscriber.options.name;
    tracing::error!(handler = name, key = %entry.key, panic, "a handler panicked");
    if let Some(observer) = &subscriber.observer {
        observer.panics.inc();
    }
    if subscriber.options.abort_on_panic {
        std::process::abort();
    }
}

/// Marks that a callback runs; also cleared when the driving future is dropped.
struct CallbackGuard<'a, K: Cached> {
    subscriber: &'a Subscriber<K>,
}

impl<'a, K: Cached> CallbackGuard<'a, K> {
    /// `None` if the subscriber left meanwhile: its callback must not run any more.
    fn start(subscriber: &'a Subscriber<K>) -> Option<CallbackGuard<'a, K>> {
        let mut life = subscriber.life();
        if life.left {
            return None;
        }
        life.in_callback = true;
        Some(CallbackGuard { subscriber })
    }
}

impl<K: Cached> Drop for CallbackGuard<'_, K> {
    fn drop(&mut self) {
        self.subscriber.life().in_callback = false;
        self.subscriber.life_changed.notify_waiters();
    }
}
