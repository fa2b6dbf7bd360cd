//! The inbox of a controller: turns changes of informers and requests into keys in the work queue.
//!
//! River: subscribers → **inbox** → workers.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use futures::future::BoxFuture;
use tokio::sync::mpsc;

use crate::change::Change;
use crate::error::Error;
use crate::informer::{Handler, Health, Informer, Subscribe};
use crate::key::Key;
use crate::metrics::Metrics;
use crate::object::Cached;
use crate::predicate::{ChangeEvent, Predicate};
use crate::workqueue::{Add, Limiter, Queue};

use super::is_no_news;

/// Why a key is reconciled; for spans and metrics. The reconciler does not receive it: it must
/// decide by the current state, not by the change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trigger {
    /// The object itself changed.
    Object,
    /// An object it owns changed.
    Owned(Key),
    /// A related object changed.
    Related(Key),
    /// The reconciler returned [`Next::After`](super::Next::After).
    Requested,
    /// The last reconcile failed.
    Retry,
    /// A resync; nothing changed.
    Resync,
    /// [`Requests`] or a stream enqueued it.
    Manual,
}

impl Trigger {
    /// The label of the metric.
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Trigger::Object => "object",
            Trigger::Owned(_) => "owned",
            Trigger::Related(_) => "related",
            Trigger::Requested => "requested",
            Trigger::Retry => "retry",
            Trigger::Resync => "resync",
            Trigger::Manual => "manual",
        }
    }
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trigger::Owned(key) | Trigger::Related(key) => write!(f, "{} {key}", self.as_str()),
            other => f.write_str(other.as_str()),
        }
    }
}

pub(super) fn owned(key: Key) -> Trigger {
    Trigger::Owned(key)
}

pub(super) fn related(key: Key) -> Trigger {
    Trigger::Related(key)
}

/// The priority of initial objects and resyncs: changes overtake them.
const LOW_PRIORITY: i32 = -100;

pub(super) struct Options<K> {
    pub(super) predicate: Option<Predicate<K>>,
    pub(super) limiter: Limiter<Key>,
    pub(super) metrics: Option<Metrics>,
}

pub(super) struct Inbox<K: Cached> {
    name: String,
    informer: Informer<K>,
    predicate: Option<Predicate<K>>,
    pub(super) queue: Queue<Key>,
    triggers: Mutex<HashMap<Key, Trigger>>,
    /// The last states of deleted objects, until [`Reconcile::gone`](super::Reconcile::gone) has
    /// returned.
    last: Mutex<HashMap<Key, Arc<K>>>,
}

impl<K: Cached> Inbox<K> {
    pub(super) fn new(name: &str, informer: &Informer<K>, options: Options<K>) -> Arc<Inbox<K>> {
        let mut queue = Queue::named(name).limiter(options.limiter);
        if let Some(metrics) = &options.metrics {
            queue = queue.metrics(metrics);
        }
        Arc::new(Inbox {
            name: name.to_owned(),
            informer: informer.clone(),
            predicate: options.predicate,
            queue: queue.open(),
            triggers: Mutex::default(),
            last: Mutex::default(),
        })
    }

    fn triggers(&self) -> MutexGuard<'_, HashMap<Key, Trigger>> {
        self.triggers.lock().expect("no code panics while it is held")
    }

    /// Removes and returns why a key was enqueued.
    pub(super) fn take_trigger(&self, key: &Key) -> Trigger {
        self.triggers().remove(key).unwrap_or(Trigger::Retry)
    }

    pub(super) fn note(&self, key: &Key, trigger: Trigger) {
        self.triggers().insert(key.clone(), trigger);
    }

    pub(super) fn last(&self, key: &Key) -> Option<Arc<K>> {
        self.last.lock().expect("no code panics while it is held").get(key).cloned()
    }

    pub(super) fn forget_last(&self, key: &Key) {
        self.last.lock().expect("no code panics while it is held").remove(key);
    }

    fn enqueue(&self, key: Key, trigger: Trigger, urgent: bool) {
        let trigger = if urgent { trigger } else { Trigger::Resync };
        let priority = if urgent { 0 } else { LOW_PRIORITY };
        let mut triggers = self.triggers();
        match triggers.get(&key) {
            Some(_) if !urgent => {} // keep the reason that is already there
            _ => drop(triggers.insert(key.clone(), trigger)),
        }
        drop(triggers);
        self.queue.add_with(key, Add { priority, ..Add::default() });
    }

    /// A change of the main kind.
    fn changed(&self, change: &Change<K>) {
        let (Some(key), Some(event)) = (change.key(), ChangeEvent::of(change)) else { return };
        if let Change::Deleted(gone) = change
            && let Some(last) = gone.last()
        {
            let mut known = self.last.lock().expect("no code panics while it is held");
            known.insert(key.clone(), Arc::clone(last));
        }
        if self.predicate.as_ref().is_none_or(|predicate| predicate.passes(&event)) {
            self.enqueue(key, Trigger::Object, !is_no_news(change));
        }
    }

    /// Enqueues requested keys.
    fn enqueue_requested(&self, asked: KeyRequest) {
        let keys = match asked {
            KeyRequest::One(key) => vec![key],
            KeyRequest::All => self.informer.snapshot().keys(),
        };
        for key in keys {
            let passes = |predicate: &Predicate<K>| predicate.passes(&ChangeEvent::Manual(&key));
            if self.predicate.as_ref().is_none_or(passes) {
                self.enqueue(key, Trigger::Manual, true);
            }
        }
    }

    pub(super) fn add(&self, key: Key, trigger: Trigger) {
        self.enqueue(key, trigger, true);
    }

    fn subscription(&self) -> Subscribe {
        Subscribe::named(format!("controller/{}", self.name))
            .split_recreate(true)
            .suppress_unchanged(true)
    }

    /// Enqueues requested keys; never ends.
    pub(super) async fn serve(&self, mut requests: mpsc::Receiver<KeyRequest>) {
        while let Some(asked) = requests.recv().await {
            self.enqueue_requested(asked);
        }
        std::future::pending().await
    }
}

/// One of a controller's informers, and how to subscribe to it once all have synced.
pub(super) struct Attachment<K: Cached> {
    watched: Box<dyn Syncable>,
    subscribe: AttachFn<K>,
}

pub(super) type AttachFn<K> =
    Box<dyn FnOnce(&Arc<Inbox<K>>) -> Result<Box<dyn Syncable>, Error> + Send>;

impl<K: Cached> Attachment<K> {
    /// The informer to wait for, and the function that subscribes to it; dropping its result ends
    /// the subscription.
    pub(super) fn into_parts(self) -> (Box<dyn Syncable>, AttachFn<K>) {
        (self.watched, self.subscribe)
    }
}

/// An informer, or a subscription to it, of any type.
pub(super) trait Syncable: Send + Sync {
    fn name(&self) -> &str;
    fn health(&self) -> Health;
    fn has_synced(&self) -> bool;
    fn synced(&self) -> BoxFuture<'_, Result<(), Error>>;
}

impl<R: Cached> Syncable for Informer<R> {
    fn name(&self) -> &str {
        Informer::name(self)
    }

    fn health(&self) -> Health {
        Informer::health(self)
    }

    fn has_synced(&self) -> bool {
        Informer::has_synced(self)
    }

    fn synced(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(Informer::synced(self))
    }
}

impl<R: Cached> Syncable for Handler<R> {
    fn name(&self) -> &str {
        self.informer().name()
    }

    fn health(&self) -> Health {
        self.informer().health()
    }

    fn has_synced(&self) -> bool {
        Handler::has_synced(self)
    }

    fn synced(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(Handler::synced(self))
    }
}

/// The main kind.
pub(super) fn attach_main<K: Cached>(informer: &Informer<K>) -> Attachment<K> {
    let main = informer.clone();
    Attachment {
        watched: Box::new(informer.clone()),
        subscribe: Box::new(move |inbox| {
            let target = Arc::clone(inbox);
            let handler = main.for_each(inbox.subscription(), move |change| {
                target.changed(&change);
            })?;
            Ok(Box::new(handler))
        }),
    }
}

/// A change of a related object enqueues the keys that `map` returns for its states.
pub(super) fn attach_mapped<K: Cached, R: Cached>(
    related: Informer<R>,
    predicate: Option<Predicate<R>>,
    trigger: fn(Key) -> Trigger,
    map: impl Fn(&R) -> Vec<Key> + Send + Sync + 'static,
) -> Attachment<K> {
    let watched = Box::new(related.clone());
    let subscribe: AttachFn<K> = Box::new(move |inbox| {
        let target = Arc::clone(inbox);
        let handler = related.for_each(inbox.subscription(), move |change| {
            let (Some(cause), Some(event)) = (change.key(), ChangeEvent::of(&change)) else {
                return;
            };
            if predicate.as_ref().is_some_and(|predicate| !predicate.passes(&event)) {
                return;
            }
            let urgent = !is_no_news(&change);
            for key in mapped(&change, &map) {
                target.enqueue(key, trigger(cause.clone()), urgent);
            }
        })?;
        Ok(Box::new(handler))
    });
    Attachment { watched, subscribe }
}

/// An informer that triggers nothing.
pub(super) fn attach_silent<K: Cached, R: Cached>(related: Informer<R>) -> Attachment<K> {
    let read = related.clone();
    Attachment { watched: Box::new(related), subscribe: Box::new(move |_| Ok(Box::new(read))) }
}

/// The keys of both states of a change, each once; none if the mapper panics.
fn mapped<R: Cached>(change: &Change<R>, map: &impl Fn(&R) -> Vec<Key>) -> BTreeSet<Key> {
    let states: Vec<&Arc<R>> = match change {
        Change::Added { object, .. } => vec![object],
        Change::Updated { old, new } => vec![old, new],
        Change::Deleted(gone) => gone.last().into_iter().collect(),
        Change::Synced => Vec::new(),
    };
    let found = states.into_iter().map(|state| {
        catch_unwind(AssertUnwindSafe(|| map(state))).unwrap_or_else(|_| {
            tracing::error!(key = %state.key(), "the mapper panicked; no key is enqueued for this change");
            Vec::new()
        })
    });
    found.flatten().collect()
}

/// A command of [`ControllerHandle`].
pub(super) enum WatchCommand<K: Cached> {
    Watch(u64, Attachment<K>),
    Unwatch(u64),
}

/// Adds and removes watches of a running controller. Cheap to clone.
pub struct ControllerHandle<K: Cached> {
    rewire: mpsc::Sender<WatchCommand<K>>,
    next: Arc<AtomicU64>,
}

/// A related informer that was added to a running controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchId(u64);

impl<K: Cached> ControllerHandle<K> {
    pub(super) fn new(rewire: mpsc::Sender<WatchCommand<K>>) -> Self {
        ControllerHandle { rewire, next: Arc::default() }
    }

    /// From now on, a change of a related object enqueues the keys that `map` returns. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::Stopped`] if the controller has ended.
    pub async fn watch<R, I>(
        &self,
        related: &Informer<R>,
        map: impl Fn(&R) -> I + Send + Sync + 'static,
    ) -> Result<WatchId, Error>
    where
        R: Cached,
        I: IntoIterator<Item = Key>,
    {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let map = move |object: &R| map(object).into_iter().collect();
        let attach = attach_mapped(related.clone(), None, super::inbox::related, map);
        self.send(WatchCommand::Watch(id, attach)).await?;
        Ok(WatchId(id))
    }

    /// Ends a watch of [`ControllerHandle::watch`]. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::Stopped`] if the controller has ended.
    pub async fn unwatch(&self, WatchId(id): WatchId) -> Result<(), Error> {
        self.send(WatchCommand::Unwatch(id)).await
    }

    async fn send(&self, rewire: WatchCommand<K>) -> Result<(), Error> {
        let sent = self.rewire.send(rewire).await;
        sent.map_err(|_| Error::Stopped("the controller".to_owned()))
    }
}

impl<K: Cached> Clone for ControllerHandle<K> {
    fn clone(&self) -> Self {
        ControllerHandle { rewire: self.rewire.clone(), next: Arc::clone(&self.next) }
    }
}

impl<K: Cached> fmt::Debug for ControllerHandle<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ControllerHandle")
    }
}

/// A request to enqueue keys.
#[derive(Debug)]
pub(super) enum KeyRequest {
    One(Key),
    All,
}

/// Enqueues keys of a running controller. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Requests {
    sender: mpsc::Sender<KeyRequest>,
}

impl Requests {
    pub(super) fn new(sender: mpsc::Sender<KeyRequest>) -> Requests {
        Requests { sender }
    }

    /// Enqueues a key; waits while 1024 requests are pending. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::Stopped`] if the controller has ended.
    pub async fn reconcile(&self, key: Key) -> Result<(), Error> {
        self.send(KeyRequest::One(key)).await
    }

    /// Enqueues every object of the main kind. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::Stopped`] if the controller has ended.
    pub async fn reconcile_all(&self) -> Result<(), Error> {
        self.send(KeyRequest::All).await
    }

    async fn send(&self, asked: KeyRequest) -> Result<(), Error> {
        let sent = self.sender.send(asked).await;
        sent.map_err(|_| Error::Stopped("the controller".to_owned()))
    }
}
