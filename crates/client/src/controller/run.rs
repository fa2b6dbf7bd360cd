//! The workers of a controller: how they start, reconcile and stop.
//!
//! River: work queue → **workers** → reconciler.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, select_all};
use futures::{FutureExt, StreamExt};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::calls::Calls;
use crate::error::Error;
use crate::indexer::index::panic_text;
use crate::informer::Informer;
use crate::key::Key;
use crate::object::Cached;
use crate::recorder::Recorder;
use crate::track::{Caches, CatchUp, Tracker};
use crate::workqueue::Item;

use super::context::{Context, Inner as ContextInner, Listers};
use super::finalizer::{Finalizer, Stage};
use super::inbox::{Attachment, Inbox, KeyRequest, Syncable, Trigger, WatchCommand};
use super::observe::{FailureKind, Observer};
use super::{Failure, KeyStream, Next, Options, Reconcile};

/// How a controller ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Reconciles that did not finish within the grace period and were cancelled.
    pub cancelled: usize,
}

/// The state that all workers of a controller share.
pub(super) struct Worker<K: Cached, R> {
    pub(super) name: Arc<str>,
    pub(super) informer: Informer<K>,
    pub(super) reconciler: R,
    pub(super) finalizer: Option<Finalizer<K>>,
    pub(super) inbox: Arc<Inbox<K>>,
    pub(super) options: Options,
    pub(super) listers: Arc<Listers>,
    pub(super) caches: Caches,
    pub(super) calls: Calls,
    pub(super) recorder: Recorder,
    pub(super) observer: Option<Observer>,
    /// The writes of each key that the caches may not contain yet.
    pub(super) writes: Mutex<HashMap<Key, Tracker>>,
    pub(super) diary: WorkerStats,
}

/// Statistics of the workers, for logs.
#[derive(Default)]
pub(super) struct WorkerStats {
    /// The number of reconciles so far; numbers the spans.
    reconciles: AtomicU64,
    /// When a blocking reconciler was last logged.
    blocked: Mutex<Option<std::time::Instant>>,
}

/// The sources of keys, and the number of workers.
pub(super) struct Inputs<K: Cached> {
    pub(super) attach: Vec<Attachment<K>>,
    pub(super) requests: mpsc::Receiver<KeyRequest>,
    pub(super) rewire: mpsc::Receiver<WatchCommand<K>>,
    pub(super) streams: Vec<KeyStream>,
    pub(super) workers: usize,
}

/// When a controller may start and when it must stop.
pub(super) struct Lifecycle {
    pub(super) leading: BoxFuture<'static, ()>,
    pub(super) stop: CancellationToken,
    pub(super) abandon: CancellationToken,
}

pub(super) async fn run<K: Cached, R: Reconcile<K>>(
    worker: Arc<Worker<K, R>>,
    parts: Inputs<K>,
    ends: Lifecycle,
) -> Result<Report, Error> {
    let Lifecycle { leading, stop, abandon } = ends;
    let Inputs { attach, requests, rewire, streams, workers } = parts;
    let ready = async {
        let attached = worker.subscribe(attach).await?;
        leading.await;
        Ok::<_, Error>(attached)
    };
    let feed = worker.feed(requests, streams);
    tokio::pin!(feed);
    let attached = tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(Report::default()),
        () = &mut feed => unreachable!("feeding does not end"),
        ready = ready => ready?,
    };
    if let Some(observer) = &worker.observer {
        observer.start(&worker.name, workers);
    }
    let hard_stop = CancellationToken::new();
    let cancelled = Arc::new(AtomicUsize::new(0));
    let mut running = JoinSet::new();
    for _ in 0..workers {
        let worker = Arc::clone(&worker);
        let (stop, hard, cancelled) = (stop.clone(), hard_stop.clone(), Arc::clone(&cancelled));
        running.spawn(async move { worker.work(stop, hard, cancelled).await });
    }
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = &mut feed => unreachable!("feeding does not end"),
        () = worker.rewire(rewire) => unreachable!("rewiring does not end"),
        Some(ended) = running.join_next() => resume(ended),
    }
    worker.inbox.queue.shut_down();
    let finished = async {
        while let Some(ended) = running.join_next().await {
            resume(ended);
        }
    };
    let in_time = tokio::select! {
        biased;
        () = abandon.cancelled() => false,
        finished = timeout(worker.options.grace, finished) => finished.is_ok(),
    };
    if !in_time {
        hard_stop.cancel();
        while let Some(ended) = running.join_next().await {
            resume(ended);
        }
    }
    drop(attached);
    Ok(Report { cancelled: cancelled.load(Ordering::Relaxed) })
}

fn resume(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && let Ok(panic) = error.try_into_panic()
    {
        std::panic::resume_unwind(panic);
    }
}

impl<K: Cached, R: Reconcile<K>> Worker<K, R> {
    /// Waits until all informers have synced, subscribes to them, and waits until the queue is
    /// filled. Mappers may read any informer, so none is called before all have synced.
    async fn subscribe(&self, attach: Vec<Attachment<K>>) -> Result<Vec<Box<dyn Syncable>>, Error> {
        let patience = self.options.sync_timeout;
        let (informers, subscribe): (Vec<_>, Vec<_>) =
            attach.into_iter().map(Attachment::into_parts).unzip();
        wait_synced(informers.iter(), patience).await?;
        let attached: Result<Vec<_>, Error> =
            subscribe.into_iter().map(|subscribe| subscribe(&self.inbox)).collect();
        let attached = attached?;
        wait_synced(attached.iter(), patience).await?;
        Ok(attached)
    }

    /// Enqueues requested keys and keys of streams; never ends.
    async fn feed(&self, requests: mpsc::Receiver<KeyRequest>, streams: Vec<KeyStream>) {
        let keys = async {
            let mut keys = select_all(streams);
            while let Some(key) = keys.next().await {
                self.inbox.add(key, Trigger::Manual);
            }
            std::future::pending::<()>().await;
        };
        tokio::join!(self.inbox.serve(requests), keys);
    }

    /// Executes the commands of [`ControllerHandle`](super::ControllerHandle); never ends.
    async fn rewire(&self, mut rewire: mpsc::Receiver<WatchCommand<K>>) {
        let mut watching: BTreeMap<u64, Box<dyn Syncable>> = BTreeMap::new();
        while let Some(change) = rewire.recv().await {
            match change {
                WatchCommand::Unwatch(id) => drop(watching.remove(&id)),
                WatchCommand::Watch(id, attach) => match self.subscribe(vec![attach]).await {
                    Ok(attached) => watching.extend(attached.into_iter().map(|one| (id, one))),
                    Err(error) => {
                        let error = &error as &dyn std::error::Error;
                        tracing::error!(
                            controller = &*self.name,
                            error,
                            "cannot watch a related informer; its changes enqueue nothing"
                        );
                    }
                },
            }
        }
        std::future::pending().await
    }

    /// One worker: processes keys until the queue ends. Keys whose writes the caches do not contain
    /// yet wait without blocking the worker.
    async fn work(
        &self,
        stop: CancellationToken,
        hard_stop: CancellationToken,
        cancelled: Arc<AtomicUsize>,
    ) {
        let mut waiting: FuturesUnordered<BoxFuture<'_, (Item<Key>, CatchUp)>> =
            FuturesUnordered::new();
        loop {
            let item = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some((item, caught)) = waiting.next(), if !waiting.is_empty() => {
                    match self.caught_up(item, &caught) {
                        Some(item) => item,
                        None => continue,
                    }
                }
                item = self.inbox.queue.get() => {
                    let Some(item) = item else { return };
                    match self.tracker_to_wait_for(&item) {
                        None => item,
                        Some((tracker, patience)) => {
                            let caches = self.caches.clone();
                            waiting.push(Box::pin(async move {
                                let caught = caches.catch_up(&tracker, patience).await;
                                (item, caught)
                            }));
                            continue;
                        }
                    }
                }
            };
            let done = self.process(item, &stop);
            tokio::select! {
                biased;
                () = done => {}
                () = hard_stop.cancelled() => {
                    cancelled.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            }
        }
    }

    fn tracker_to_wait_for(&self, key: &Key) -> Option<(Tracker, Duration)> {
        let patience = self.options.read_own_writes?;
        let writes = self.writes.lock().expect("no code panics while it is held");
        let tracker = writes.get(key).filter(|tracker| !tracker.is_empty())?;
        Some((tracker.clone(), patience))
    }

    /// Returns the item if the caches contain its writes; otherwise schedules a retry.
    fn caught_up(&self, item: Item<Key>, caught: &CatchUp) -> Option<Item<Key>> {
        if let (Some(observer), 1..) = (&self.observer, caught.unordered) {
            observer.unordered(caught.unordered);
        }
        if caught.up {
            return Some(item);
        }
        if let Some(observer) = &self.observer {
            observer.stale();
        }
        tracing::warn!(controller = &*self.name, key = %*item, "the caches do not contain the key's own writes yet; retrying");
        self.inbox.note(&item, Trigger::Retry);
        item.retry();
        None
    }

    async fn process(&self, item: Item<Key>, stop: &CancellationToken) {
        let trigger = self.inbox.take_trigger(&item);
        let span = tracing::info_span!(
            "reconcile",
            controller = &*self.name,
            key = %*item,
            %trigger,
            attempt = item.requeues() + 1,
            id = self.diary.reconciles.fetch_add(1, Ordering::Relaxed),
        );
        if let Some(observer) = &self.observer {
            observer.triggered(trigger.as_str());
            observer.started();
        }
        let started = Instant::now();
        let mut guard = CancelGuard { observer: self.observer.as_ref(), started, done: false };
        let outcome = self.attempt(&item, stop).instrument(span.clone()).await;
        let result = span.in_scope(|| self.schedule_next(item, outcome));
        guard.done = true;
        if let Some(observer) = &self.observer {
            observer.finished(result, started.elapsed());
        }
    }

    /// Reconciles once; catches panics and enforces the timeout.
    async fn attempt(&self, key: &Key, stop: &CancellationToken) -> Outcome {
        let cancelled = stop.child_token();
        let cx = self.context(key, cancelled.clone());
        let _cancel = cancelled.drop_guard();
        let running = AssertUnwindSafe(self.reconcile(key.clone(), cx)).catch_unwind();
        let running =
            BlockDetector { inner: Box::pin(running), controller: &self.name, diary: &self.diary };
        let ended = match self.options.reconcile_timeout {
            None => running.await,
            Some(limit) => match timeout(limit, running).await {
                Ok(ended) => ended,
                Err(_) => return Outcome::TimedOut(limit),
            },
        };
        match ended {
            Ok(Ok(next)) => Outcome::Next(next),
            Ok(Err(failure)) => Outcome::Failed(failure),
            Err(panic) => Outcome::Panicked(panic_text(&*panic)),
        }
    }

    fn context(&self, key: &Key, cancelled: CancellationToken) -> Context {
        let mut writes = self.writes.lock().expect("no code panics while it is held");
        let tracker = writes.entry(key.clone()).or_default().clone();
        drop(writes);
        Context::new(ContextInner {
            controller: Arc::clone(&self.name),
            key: key.clone(),
            calls: self.calls.clone().tracked(tracker),
            listers: Arc::clone(&self.listers),
            caches: self.caches.clone(),
            patience: self.options.read_own_writes.unwrap_or(Duration::from_secs(5)),
            recorder: self.recorder.clone(),
            cancelled,
        })
    }

    /// Calls what the state of the object requires: the reconciler, the finalizer or the function
    /// for deleted objects.
    async fn reconcile(&self, key: Key, cx: Context) -> Result<Next, Failure> {
        let Some(object) = self.informer.store().get(&key) else {
            let last = self.inbox.last(&key);
            let next = self.reconciler.gone(key.clone(), last, cx).await?;
            self.inbox.forget_last(&key);
            return Ok(next);
        };
        let Some(finalizer) = &self.finalizer else {
            return self.reconciler.reconcile(object, cx).await;
        };
        let resource = self.informer.resource();
        match finalizer.stage(&object) {
            Stage::Reconcile => self.reconciler.reconcile(object, cx).await,
            Stage::LeaveAlone => Ok(Next::Done),
            Stage::Add => {
                ignore_races(finalizer.add(resource, &object, cx.calls()).await)?;
                Ok(Next::After(Duration::ZERO)) // once the cache contains the finalizer
            }
            Stage::CleanUp => {
                let next = finalizer.clean_up(Arc::clone(&object), cx.clone()).await?;
                if next == Next::Done {
                    ignore_races(finalizer.remove(resource, &object, cx.calls()).await)?;
                }
                Ok(next)
            }
        }
    }

    /// Schedules the next reconcile of a key; returns the result label of the metric.
    fn schedule_next(&self, item: Item<Key>, outcome: Outcome) -> &'static str {
        self.tidy(&item);
        let failed = |kind: FailureKind| {
            if let Some(observer) = &self.observer {
                observer.failed(kind);
            }
        };
        match outcome {
            Outcome::Next(Next::Done) => {
                item.forget();
                "success"
            }
            Outcome::Next(Next::After(delay)) => {
                self.inbox.queue.forget(&item);
                self.inbox.note(&item, Trigger::Requested);
                item.retry_after(delay);
                "requeue_after"
            }
            Outcome::Next(Next::Again) => {
                self.inbox.note(&item, Trigger::Retry);
                item.retry();
                "requeue"
            }
            Outcome::Failed(Failure { error, terminal: true }) => {
                tracing::error!(
                    error = &*error as &dyn std::error::Error,
                    "the reconcile failed and is not retried"
                );
                failed(FailureKind::Terminal);
                item.forget();
                "error"
            }
            Outcome::Failed(Failure { error, .. }) => {
                tracing::warn!(
                    error = &*error as &dyn std::error::Error,
                    "the reconcile failed; retrying"
                );
                failed(FailureKind::Error);
                self.retry(item)
            }
            Outcome::Panicked(panic) => {
                tracing::error!(panic, "the reconciler panicked");
                failed(FailureKind::Panic);
                self.retry(item)
            }
            Outcome::TimedOut(limit) => {
                tracing::warn!(?limit, "the reconcile timed out and was cancelled; retrying");
                failed(FailureKind::Timeout);
                self.retry(item)
            }
        }
    }

    fn retry(&self, item: Item<Key>) -> &'static str {
        self.inbox.note(&item, Trigger::Retry);
        item.retry();
        "error"
    }

    /// Forgets the writes of a key if there are none, or if the object was deleted.
    fn tidy(&self, key: &Key) {
        let mut writes = self.writes.lock().expect("no code panics while it is held");
        let gone = self.informer.store().get(key).is_none();
        if writes.get(key).is_some_and(|tracker| gone || tracker.is_empty()) {
            writes.remove(key);
        }
    }
}

/// How one attempt ended.
enum Outcome {
    Next(Next),
    Failed(Failure),
    Panicked(String),
    TimedOut(Duration),
}

/// Ignores conflicts and missing objects: the change that caused them triggers a reconcile.
fn ignore_races(result: Result<(), Error>) -> Result<(), Failure> {
    match result {
        Err(error) if error.is_conflict() || error.is_not_found() => Ok(()),
        result => Ok(result?),
    }
}

/// Counts a reconcile whose future was dropped.
struct CancelGuard<'a> {
    observer: Option<&'a Observer>,
    started: Instant,
    done: bool,
}

impl Drop for CancelGuard<'_> {
    fn drop(&mut self) {
        if let (Some(observer), false) = (self.observer, self.done) {
            observer.finished("cancelled", self.started.elapsed());
        }
    }
}

/// Logs a reconciler that blocks its thread.
struct BlockDetector<'a, F> {
    inner: Pin<Box<F>>,
    controller: &'a str,
    diary: &'a WorkerStats,
}

/// A poll that takes longer than this is blocking.
const BLOCKED: Duration = Duration::from_secs(1);
/// Blocking is logged once in this time.
const BLOCKED_EVERY: Duration = Duration::from_secs(60);

impl<F: Future> Future for BlockDetector<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<F::Output> {
        // Real time, not tokio's: paused time does not pass while a thread is blocked.
        let started = std::time::Instant::now();
        let polled = self.inner.as_mut().poll(cx);
        let took = started.elapsed();
        if took > BLOCKED {
            let mut reported = self.diary.blocked.lock().expect("no code panics while it is held");
            if reported.is_none_or(|at| at.elapsed() >= BLOCKED_EVERY) {
                *reported = Some(std::time::Instant::now());
                let controller = self.controller;
                tracing::warn!(
                    controller,
                    ?took,
                    "the reconciler blocks its thread; use tokio::task::spawn_blocking"
                );
            }
        }
        polled
    }
}

async fn wait_synced<'a>(
    parts: impl Iterator<Item = &'a Box<dyn Syncable>>,
    patience: Duration,
) -> Result<(), Error> {
    let parts: Vec<&Box<dyn Syncable>> = parts.collect();
    let all = futures::future::try_join_all(parts.iter().map(|part| part.synced()));
    match timeout(patience, pin!(all)).await {
        Ok(Ok(_)) => Ok(()),
        _ => {
            let missing = parts
                .iter()
                .filter(|part| !part.has_synced())
                .map(|part| (part.name().to_owned(), part.health()))
                .collect();
            Err(Error::SyncTimeout { after: patience, missing })
        }
    }
}
