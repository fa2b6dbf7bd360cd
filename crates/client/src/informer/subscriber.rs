//! A subscriber of an informer: its buffer, resync timer and lifecycle, as a stream or with a
//! callback.
//!
//! River: store → **subscriber** → the user's callback or stream.
//! Promise: a subscriber receives changes one after the other; a panic of a callback is logged and
//! the next change follows; after `unsubscribe` has returned, no callback runs.

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
use super::buffer::{Buffer, PendingChange, PendingChanges};

/// The options of a subscriber; see [`Informer::subscribe`](super::Informer::subscribe).
#[derive(Clone, Debug)]
pub struct Subscribe {
    pub(crate) name: String,
    pub(crate) buffer: Buffer,
    pub(crate) resync: Option<Duration>,
    pub(crate) split_recreate: bool,
    pub(crate) suppress_unchanged: bool,
}

impl Subscribe {
    /// Options with a name for logs and metrics.
    pub fn named(name: impl Into<String>) -> Subscribe {
        Subscribe {
            name: name.into(),
            buffer: Buffer::default(),
            resync: None,
            split_recreate: false,
            suppress_unchanged: false,
        }
    }

    /// What to do when the subscriber is slower than the changes.
    #[must_use]
    pub fn buffer(mut self, buffer: Buffer) -> Subscribe {
        self.buffer = buffer;
        self
    }

    /// The resync period; zero disables resyncs. The informer needs a resync period too.
    #[must_use]
    pub fn resync(mut self, period: Duration) -> Subscribe {
        self.resync = Some(period);
        self
    }

    /// Whether to deliver an object that was deleted and created again under the same name as a
    /// deletion and an add, instead of one update whose UIDs differ.
    #[must_use]
    pub fn split_recreate(mut self, yes: bool) -> Subscribe {
        self.split_recreate = yes;
        self
    }

    /// Whether to skip objects that a new list shows unchanged, unless a resync period is set.
    #[must_use]
    pub fn suppress_unchanged(mut self, yes: bool) -> Subscribe {
        self.suppress_unchanged = yes;
        self
    }
}

/// Why a subscription has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndReason {
    /// It was unsubscribed.
    Unsubscribed,
    /// The informer stopped.
    Stopped,
}

pub(crate) struct Subscriber<K> {
    pub(crate) options: Subscribe,
    pending: Mutex<PendingChanges<K>>,
    life: Mutex<Lifecycle>,
    resync: Mutex<ResyncTimer>,
    /// Wakes the reader: a change is pending, or the lifecycle changed.
    taker: AtomicWaker,
    /// Wakes tasks that wait for the end, or for a callback to return.
    life_changed: Notify,
    synced: watch::Sender<bool>,
    observer: Option<SubscriberObserver>,
}

#[derive(Default)]
struct Lifecycle {
    left: bool,
    informer_stopped: bool,
    in_callback: bool,
}

struct ResyncTimer {
    period: Duration,
    next: Instant,
    /// Whether a resync is due; true before the first check.
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
        self.life().left
    }

    /// Whether a resync is due; if so, the next one is a period later.
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

    /// Delivers all objects of a state as initial adds.
    pub(crate) fn replay(&self, state: Arc<StoreState<K>>, now: Instant) {
        self.pending().replay(state, now);
    }

    /// The initial state is complete.
    pub(crate) fn populated(&self) {
        self.pending().populated();
        self.taker.wake();
    }

    /// Puts notifications into the buffer; never waits.
    pub(crate) fn notify(&self, notifications: &[Notification<K>], now: Instant) {
        let (due, period) = {
            let resync = self.resync_state();
            (resync.due, resync.period)
        };
        let unchanged_wanted = due && !(self.options.suppress_unchanged && period.is_zero());
        let mut pending = self.pending();
        for notification in notifications {
            if notification.unchanged && !unchanged_wanted {
                continue;
            }
            match self.recreated(notification) {
                Some((gone, added)) => {
                    pending.put(&notification.key, &gone, false, now);
                    pending.put(&notification.key, &added, false, now);
                }
                None => pending.put(
                    &notification.key,
                    &notification.change,
                    notification.unchanged,
                    now,
                ),
            }
        }
        drop(pending);
        self.taker.wake();
    }

    /// The deletion and the add of a recreated object, with `split_recreate`.
    fn recreated(&self, notification: &Notification<K>) -> Option<(Change<K>, Change<K>)> {
        let Change::Updated { old, new } = &notification.change else { return None };
        if !self.options.split_recreate || old.uid() == new.uid() {
            return None;
        }
        let gone = Gone::inferred(notification.key.clone(), Some(Arc::clone(old)));
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
            // The reader has handled all changes before this one.
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

/// The changes of an informer as a stream: all current objects first, then every change.
///
/// Dropping it unsubscribes. A stream that is not polled delays no other subscriber; its [`Buffer`]
/// decides what happens to its changes.
pub struct Subscription<K: Cached> {
    subscriber: Arc<Subscriber<K>>,
    /// Keeps the informer running while the subscription exists.
    _informer: Informer<K>,
}

impl<K: Cached> Subscription<K> {
    pub(crate) fn new(subscriber: Arc<Subscriber<K>>, informer: Informer<K>) -> Subscription<K> {
        Subscription { subscriber, _informer: informer }
    }

    /// The next change; `None` when the subscription has ended. Cancel-safe.
    pub async fn next(&mut self) -> Option<Change<K>> {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// Whether all initial objects were delivered and handled.
    pub fn has_synced(&self) -> bool {
        *self.subscriber.synced.borrow()
    }

    #[cfg(test)]
    pub(crate) fn is_observed(&self) -> bool {
        self.subscriber.observer.is_some()
    }

    fn poll(&mut self, cx: &Context<'_>) -> Poll<Option<Change<K>>> {
        let Poll::Ready(entry) = self.subscriber.poll_next(cx, false) else {
            return Poll::Pending;
        };
        if let Some(entry) = &entry {
            self.subscriber.handled(entry, Instant::now());
        }
        Poll::Ready(entry.map(|entry| entry.change))
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

    /// Waits until the callback has returned for all initial objects. Cancel-safe.
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

    /// Whether the callback has returned for all initial objects.
    pub fn has_synced(&self) -> bool {
        *self.subscriber.synced.borrow()
    }

    /// Unsubscribes and waits for a running callback: none runs after this returns. It has no
    /// effect the second time. Do not await it inside the callback.
    ///
    /// Cancel-safe: it unsubscribes at once; only the waiting is cancelled.
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

/// A callback whose panics are caught.
pub(crate) enum Callback<K> {
    Blocking(Box<dyn FnMut(Change<K>) -> Result<(), String> + Send>),
    Async(Box<dyn FnMut(Change<K>) -> CallbackFuture + Send>),
}

type CallbackFuture = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// A callback that blocks its thread longer than this is logged.
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
            tracing::warn!(
                handler = name,
                ?took,
                "a synchronous handler blocks its thread; use for_each_async or spawn_blocking"
            );
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

/// Calls the callback until it is unsubscribed or the informer stops.
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
        // A subscriber that always has pending changes must yield to other tasks.
        tokio::task::coop::consume_budget().await;
    }
}

fn report_panic<K: Cached>(subscriber: &Subscriber<K>, entry: &PendingChange<K>, panic: &str) {
    let name = &subscriber.options.name;
    tracing::error!(handler = name, key = %entry.key, panic, "a handler panicked; continuing with the next change");
    if let Some(observer) = &subscriber.observer {
        observer.panics.inc();
    }
}

/// Marks that a callback is running, until it is dropped.
struct CallbackGuard<'a, K: Cached> {
    subscriber: &'a Subscriber<K>,
}

impl<'a, K: Cached> CallbackGuard<'a, K> {
    /// `None` if it was unsubscribed: its callback must not run.
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
