//! The shared informer: one watch, one store, many subscribers.
//!
//! River: reflector → delta queue → store → **informer** → subscribers.
//! Promise: store and indexes hold a change before anybody is told of it; no subscriber delays
//! another or the store; a late subscriber gets the present first, without gap or repetition;
//! after `run` has returned nothing of the informer is running.

pub(crate) mod buffer;
pub(crate) mod health;
pub(crate) mod run;
pub(crate) mod subscriber;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;

use crate::change::Change;
use crate::delta_queue::{Batch, QueueMode};
use crate::error::Error;
use crate::indexer::index::{IndexFailure, ValueIndex};
use crate::indexer::writer::{Applied, Notice, Scope, Writer};
use crate::indexer::{Index, Snapshot, Store};
use crate::key::Key;
use crate::list_watch::{self, ListWatch, Undecodable};
use crate::lister::Lister;
use crate::metrics::Metrics;
use crate::object::{Cached, ResourceType};
use crate::observe::{InformerObserver, StoreReadings};
use crate::query::Selection;
use crate::random::Random;
use crate::version::ResourceVersion;

pub use self::buffer::Buffer;
pub use self::health::Health;
pub use self::run::Runner;
use self::subscriber::{Callback, Subscriber};
pub use self::subscriber::{EndReason, Handler, Subscribe, Subscription};
pub use crate::backoff::Delays;
pub use crate::reflector::machine::NotServed;

/// Where the first list may come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum InitialRead {
    /// A cache of the server will do.
    #[default]
    CacheOk,
    /// It must be the newest state.
    Consistent,
}

/// Compares what watch-lists delivered with lists; for tests and continuous integration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsistencyCheck {
    /// Panic on a difference instead of reporting it.
    pub strict: bool,
}

/// What is told of each failure: the informer's name and the error.
pub type ErrorHandler = Arc<dyn Fn(&str, &list_watch::Error) + Send + Sync>;

/// How an informer works. The default suits most programs.
#[derive(Clone)]
pub struct Options {
    /// For logs, metrics and errors.
    pub name: String,
    /// What it holds; for metrics and errors.
    pub resource: ResourceType,
    /// Which objects it asks for.
    pub selection: Selection,
    /// How deltas are queued.
    pub queue: QueueMode,
    /// How often objects are shown again to subscribers that did not say; zero means never.
    pub resync: Duration,
    /// Pages of this size for every list; `None` leaves it to the rules.
    pub page_size: Option<u32>,
    /// Where the first list may come from.
    pub initial_read: InitialRead,
    /// Watches last from this to twice this, if it is above 300 s.
    pub watch_timeout_min: Duration,
    /// How long in-stream internal errors are retried at the same version.
    pub internal_error_retry: Option<Duration>,
    /// What to do when the resource type is not served.
    pub not_served: NotServed,
    /// How long the reflector waits after failures.
    pub delays: Delays,
    /// Compare watch-lists with lists.
    pub consistency_check: Option<ConsistencyCheck>,
    /// At stop, let subscribers handle what is pending for at most so long.
    pub drain: Option<Duration>,
    /// Fail to start if there are more objects.
    pub refuse_above: Option<u64>,
    /// Where to count.
    pub metrics: Option<Metrics>,
    /// What is told of each failure.
    pub on_watch_error: Option<ErrorHandler>,
    /// Shared by informers that should not all fetch their first state at once.
    pub fetch_slots: Option<Arc<Semaphore>>,
    /// Draws jitter from a seed, so that a test can repeat it.
    pub seed: Option<u64>,
}

impl Options {
    /// Options for an informer of a resource type.
    pub fn new(name: impl Into<String>, resource: ResourceType) -> Options {
        Options {
            name: name.into(),
            resource,
            selection: Selection::default(),
            queue: QueueMode::default(),
            resync: Duration::ZERO,
            page_size: None,
            initial_read: InitialRead::default(),
            watch_timeout_min: Duration::ZERO,
            internal_error_retry: None,
            not_served: NotServed::default(),
            delays: Delays::default(),
            consistency_check: None,
            drain: None,
            refuse_above: None,
            metrics: None,
            on_watch_error: None,
            fetch_slots: None,
            seed: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("name", &self.name)
            .field("resource", &self.resource)
            .field("selection", &self.selection)
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

/// Where the objects come from: one collection, or one for each namespace.
pub(crate) enum Sources<K> {
    One(Arc<dyn ListWatch<Object = K>>),
    Each { namespaces: Vec<String>, open: OpenSource<K> },
}

pub(crate) type OpenSource<K> = Arc<dyn Fn(&str) -> Arc<dyn ListWatch<Object = K>> + Send + Sync>;

/// A handle to an informer: its store, its indexes, its subscriptions. Cheap to clone.
///
/// A handle never drives anything: the [`Runner`], or the factory, does.
///
/// ```no_run
/// # use headwater_client::{Factory, informer::{Informer, Subscribe}, change::Change};
/// # use k8s_openapi::api::core::v1::Pod;
/// # async fn example(pods: Informer<Pod>) -> Result<(), headwater_client::Error> {
/// let by_node = pods.index("node", |pod: &Pod| pod.spec.as_ref()?.node_name.clone())?;
/// let mut changes = pods.subscribe(Subscribe::named("audit"))?;
/// while let Some(change) = changes.next().await {
///     match change {
///         Change::Added { object, initial } => { /* … */ }
///         Change::Updated { old, new } => { /* … */ }
///         Change::Deleted(gone) => println!("{} is gone", gone.key()),
///         Change::Synced => println!("{} pods on node-7", by_node.get("node-7").len()),
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub struct Informer<K: Cached> {
    pub(crate) shared: Arc<Shared<K>>,
    pub(crate) alive: Arc<Alive>,
}

/// Counts the handles of an informer; tells when the last one is gone.
pub(crate) struct Alive {
    gone: Arc<Notify>,
}

impl Alive {
    pub(crate) fn new(gone: &Arc<Notify>) -> Alive {
        Alive { gone: Arc::clone(gone) }
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.gone.notify_one();
    }
}

pub(crate) struct Shared<K: Cached> {
    pub(crate) options: Options,
    pub(crate) store: Store<K>,
    core: Mutex<Core<K>>,
    health: watch::Sender<Health>,
    synced: watch::Sender<bool>,
    commands: Mutex<Vec<Command<K>>>,
    commanded: Notify,
    last_frame: Mutex<Option<Instant>>,
    /// The newest version of each lane's reflector; it may run ahead of the store.
    last_versions: Mutex<BTreeMap<Scope, ResourceVersion>>,
    /// What the sources know of the size of objects.
    object_bytes: Mutex<Option<SizeReader>>,
    /// How to read the lengths of the lanes' queues.
    queue_lens: Mutex<BTreeMap<Scope, Box<dyn Fn() -> usize + Send + Sync>>>,
    pub(crate) observer: Option<InformerObserver>,
    pub(crate) random: Random,
}

struct Core<K> {
    writer: Writer<K>,
    subscribers: Vec<Arc<Subscriber<K>>>,
    phase: Phase,
    lanes: BTreeMap<Scope, Lane>,
    on_error: Option<ErrorHandler>,
    resync: Duration,
    /// How often resyncs are checked; fixed at the start.
    check_period: Option<Duration>,
    synced: bool,
}

type SizeReader = Box<dyn Fn() -> Option<usize> + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    New,
    Running,
    Stopped,
}

struct Lane {
    health: Health,
    synced: bool,
}

/// What a handle asks of the runner. Bounded by the number of handles that ask.
pub(crate) enum Command<K> {
    Drive(Arc<Subscriber<K>>, Callback<K>),
    AddNamespace(String),
    RemoveNamespace(String),
}

/// The shortest period of a resync.
const RESYNC_MIN: Duration = Duration::from_secs(1);
/// So many objects are shown again at a time; live changes are handled in between.
const RESYNC_SLICE: usize = 1000;

/// Makes an informer over a source of your own: the handle, and what drives it.
pub fn from_source<K: Cached>(
    source: Arc<dyn ListWatch<Object = K>>,
    options: Options,
) -> (Informer<K>, Runner<K>) {
    let (informer, runner, _) = open(Sources::One(source), options);
    (informer, runner)
}

/// Makes an informer; the third part tells when its last handle is gone.
pub(crate) fn open<K: Cached>(
    sources: Sources<K>,
    options: Options,
) -> (Informer<K>, Runner<K>, Arc<Notify>) {
    let gone = Arc::new(Notify::new());
    let shared = Shared::new(options);
    let alive = Arc::new(Alive::new(&gone));
    let runner = Runner::new(Arc::clone(&shared), sources);
    (Informer { shared, alive }, runner, gone)
}

impl<K: Cached> Shared<K> {
    fn new(options: Options) -> Arc<Shared<K>> {
        let store = Store::new();
        let observer = options
            .metrics
            .as_ref()
            .map(|metrics| InformerObserver::new(metrics, &options.name, &options.resource));
        let core = Core {
            writer: Writer::new(store.clone()),
            subscribers: Vec::new(),
            phase: Phase::New,
            lanes: BTreeMap::new(),
            on_error: options.on_watch_error.clone(),
            resync: options.resync,
            check_period: None,
            synced: false,
        };
        let random = options.seed.map_or_else(Random::from_entropy, Random::seeded);
        let shared = Arc::new(Shared {
            options,
            store,
            core: Mutex::new(core),
            health: watch::Sender::new(Health::Starting),
            synced: watch::Sender::new(false),
            commands: Mutex::default(),
            commanded: Notify::new(),
            last_frame: Mutex::default(),
            last_versions: Mutex::default(),
            object_bytes: Mutex::default(),
            queue_lens: Mutex::default(),
            observer,
            random,
        });
        shared.export_readings();
        shared
    }

    fn export_readings(self: &Arc<Self>) {
        let Some(observer) = &self.observer else { return };
        let reading = |read: fn(&Shared<K>) -> f64| -> Box<dyn Fn() -> f64 + Send + Sync> {
            let shared = Arc::downgrade(self);
            Box::new(move || shared.upgrade().map_or(0.0, |shared| read(&shared)))
        };
        observer.watch_store(StoreReadings {
            queued: reading(|shared| shared.queued() as f64),
            objects: reading(|shared| shared.store.len() as f64),
            bytes: reading(|shared| shared.approx_bytes() as f64),
        });
    }

    fn core(&self) -> MutexGuard<'_, Core<K>> {
        self.core.lock().expect("user code that panics inside a step is caught")
    }

    fn queued(&self) -> usize {
        let lens = self.queue_lens.lock().expect("no code panics while it is held");
        lens.values().map(|len| len()).sum()
    }

    /// Applies a batch of one lane and tells the subscribers; whether a resync was asked for.
    pub(crate) fn apply(&self, scope: &Scope, mut batch: Batch<K>) -> bool {
        let started = Instant::now();
        let mut core = self.core();
        // A namespace that was added later is not part of the first state.
        batch.initial &= !core.synced;
        let applied = core.writer.apply(scope, batch);
        let resync = applied.resync;
        self.distribute(&mut core, applied, started);
        let version = core.writer.state().version.clone();
        drop(core);
        if let Some(observer) = &self.observer {
            observer.latency.observe(started.elapsed());
            if let Some(version) = version {
                observer.store_version.set(version.gauge());
            }
        }
        resync
    }

    fn distribute(&self, core: &mut Core<K>, applied: Applied<K>, now: Instant) {
        let Applied { notices, populated, index_failures, nameless, regressions, .. } = applied;
        if populated {
            let state = self.store.snapshot().state;
            for subscriber in &core.subscribers {
                subscriber.replay(Arc::clone(&state), now);
            }
        }
        if !notices.is_empty() || populated {
            for subscriber in &core.subscribers {
                subscriber.tell(&notices, now);
            }
            core.subscribers.retain(|subscriber| !subscriber.is_gone());
        }
        self.report_index_failures(&index_failures);
        if nameless > 0 {
            tracing::error!(informer = self.options.name, nameless, "objects without a name");
        }
        if regressions > 0 {
            tracing::warn!(informer = self.options.name, "the server's versions went backwards");
            if let Some(observer) = &self.observer {
                observer.regressions.add(regressions as u64);
            }
        }
    }

    fn report_index_failures(&self, failures: &[IndexFailure]) {
        for IndexFailure { index, key, why } in failures {
            tracing::error!(informer = self.options.name, index, %key, why, "an index function failed");
            if let Some(observer) = &self.observer {
                observer.index_failures.inc();
            }
        }
    }

    /// Shows the next objects after `after` again to those who are due; answers where to go on.
    pub(crate) fn resync_slice(&self, scope: &Scope, after: Option<&Key>) -> Option<Key> {
        let now = Instant::now();
        let core = self.core();
        let state = core.writer.state();
        let from = match after {
            Some(key) => std::ops::Bound::Excluded(key.as_str()),
            None => std::ops::Bound::Unbounded,
        };
        let mut last = None;
        let mut notices = Vec::with_capacity(RESYNC_SLICE);
        for (key, object) in state.objects.range::<_, str>((from, std::ops::Bound::Unbounded)) {
            if !scope.contains(key) {
                continue;
            }
            if notices.len() == RESYNC_SLICE {
                last = notices.last().map(|notice: &Notice<K>| notice.key.clone());
                break;
            }
            let change = Change::Updated { old: Arc::clone(object), new: Arc::clone(object) };
            notices.push(Notice { key: key.clone(), change, unchanged: true });
        }
        for subscriber in &core.subscribers {
            subscriber.tell(&notices, now);
        }
        last
    }

    /// Whether any subscriber is due for a resync now.
    pub(crate) fn should_resync(&self, now: Instant) -> bool {
        let core = self.core();
        // Every subscriber is asked: being asked sets its next time.
        core.subscribers.iter().filter(|subscriber| subscriber.check_resync(now)).count() > 0
    }

    /// A lane has applied its first state.
    pub(crate) fn lane_synced(&self, scope: &Scope) {
        let mut core = self.core();
        if let Some(lane) = core.lanes.get_mut(scope) {
            lane.synced = true;
        }
        self.update_synced(&mut core);
    }

    fn update_synced(&self, core: &mut Core<K>) {
        for lane in core.lanes.values_mut() {
            if lane.synced && lane.health == Health::Starting {
                lane.health = Health::Synced;
            }
        }
        if !core.synced && core.lanes.values().all(|lane| lane.synced) {
            core.synced = true;
            for subscriber in &core.subscribers {
                subscriber.populated();
            }
            self.synced.send_replace(true);
        }
        self.publish_health(core);
    }

    fn publish_health(&self, core: &Core<K>) {
        let health = Health::of_all(core.lanes.values().map(|lane| &lane.health));
        self.health.send_if_modified(|known| {
            let changed = *known != health && *known != Health::Stopped;
            if changed {
                *known = health;
            }
            changed
        });
    }

    /// A lane's watch is established.
    pub(crate) fn established(&self, scope: &Scope) {
        let mut core = self.core();
        if let Some(lane) = core.lanes.get_mut(scope) {
            lane.health = if lane.synced { Health::Synced } else { Health::Starting };
        }
        self.publish_health(&core);
    }

    /// A lane's cycle failed.
    pub(crate) fn failed(&self, scope: &Scope, error: &list_watch::Error) {
        let mut core = self.core();
        if let Some(lane) = core.lanes.get_mut(scope) {
            let reason = error.to_string();
            lane.health = lane.health.failed(error.class(), &reason, lane.synced, Instant::now());
        }
        self.publish_health(&core);
        let handler = core.on_error.clone();
        drop(core);
        self.report(handler, error);
    }

    /// Tells the error handler without touching health.
    pub(crate) fn report_only(&self, error: &list_watch::Error) {
        let handler = self.core().on_error.clone();
        self.report(handler, error);
    }

    fn report(&self, handler: Option<ErrorHandler>, error: &list_watch::Error) {
        if let Some(handler) = handler {
            // It is the user's; a panic in it is no reason to stop following the server.
            let told = std::panic::AssertUnwindSafe(|| handler(&self.options.name, error));
            if std::panic::catch_unwind(told).is_err() {
                tracing::error!(informer = self.options.name, "the error handler panicked");
            }
        }
    }

    /// A frame arrived, at this version if it has one.
    pub(crate) fn heard(&self, scope: &Scope, version: Option<&ResourceVersion>) {
        *self.last_frame.lock().expect("no code panics while it is held") = Some(Instant::now());
        if let Some(version) = version {
            let mut versions = self.last_versions.lock().expect("no code panics while it is held");
            versions.insert(scope.clone(), version.clone());
        }
    }

    /// A lane is about to run: where its queue and the size of its objects can be read.
    fn lane_opened(
        &self,
        scope: &Scope,
        len: Box<dyn Fn() -> usize + Send + Sync>,
        source: &Arc<dyn ListWatch<Object = K>>,
    ) {
        let mut lens = self.queue_lens.lock().expect("no code panics while it is held");
        lens.insert(scope.clone(), len);
        let source = Arc::clone(source);
        let read: SizeReader = Box::new(move || source.mean_object_bytes());
        *self.object_bytes.lock().expect("no code panics while it is held") = Some(read);
    }

    pub(crate) fn health_now(&self) -> Health {
        self.health.borrow().clone()
    }

    pub(crate) fn has_synced(&self) -> bool {
        *self.synced.borrow()
    }

    pub(crate) async fn synced_unless(
        &self,
        hopeless: impl Fn(&Health) -> bool,
    ) -> Result<(), Error> {
        let mut synced = self.synced.subscribe();
        let mut health = self.health.subscribe();
        loop {
            if *synced.borrow_and_update() {
                return Ok(());
            }
            let now = health.borrow_and_update().clone();
            if hopeless(&now) {
                return Err(Error::NotSynced { informer: self.options.name.clone(), health: now });
            }
            tokio::select! {
                changed = synced.changed() => changed.expect("the informer outlives its handle"),
                changed = health.changed() => changed.expect("the informer outlives its handle"),
            }
        }
    }

    pub(crate) fn debug_dump(&self) -> serde_json::Value {
        let core = self.core();
        let subscribers: Vec<_> =
            core.subscribers.iter().filter(|one| !one.is_gone()).map(|one| one.dump()).collect();
        let undecodable: Vec<String> =
            core.writer.undecodable().take(100).map(|bad| bad.key.to_string()).collect();
        let state = core.writer.state();
        serde_json::json!({
            "name": self.options.name,
            "resource": self.options.resource.resource(),
            "options": format!("{:?}", self.options),
            "health": self.health_now().to_string(),
            "synced": core.synced,
            "objects": state.objects.len(),
            "resourceVersion": state.version.as_ref().map(ResourceVersion::to_string),
            "epoch": state.epoch,
            "queued": self.queued(),
            "indexes": state.indexes.iter().map(|index| index.name()).collect::<Vec<_>>(),
            "subscribers": subscribers,
            "undecodable": undecodable,
        })
    }

    fn command(&self, command: Command<K>) {
        self.commands.lock().expect("no code panics while it is held").push(command);
        self.commanded.notify_one();
    }

    fn approx_bytes(&self) -> usize {
        let snapshot = self.store.snapshot();
        let each = self.object_bytes.lock().expect("no code panics while it is held");
        let each = each.as_ref().and_then(|read| read()).unwrap_or(size_of::<K>());
        let keys: usize = snapshot.iter().map(|(key, _)| key.as_str().len() + 16).sum();
        let slots = snapshot.len() * 3 * (size_of::<Key>() + size_of::<usize>()) / 2;
        let indexes: usize = snapshot.state.indexes.iter().map(|index| index.approx_bytes()).sum();
        snapshot.len() * each + keys + slots + indexes
    }
}

impl<K: Cached> Informer<K> {
    /// Its name in logs, metrics and errors.
    pub fn name(&self) -> &str {
        &self.shared.options.name
    }

    /// What it holds.
    pub fn resource(&self) -> &ResourceType {
        &self.shared.options.resource
    }

    /// The store, for reading, whether it has synced or not.
    pub fn store(&self) -> &Store<K> {
        &self.shared.store
    }

    /// The present state, for as many reads as you like.
    pub fn snapshot(&self) -> Snapshot<K> {
        self.shared.store.snapshot()
    }

    /// Reads from the store, and only from it.
    pub fn lister(&self) -> Lister<K> {
        Lister::new(self.clone())
    }

    /// Adds an index: `values` finds any number of values in an object. Objects that are there
    /// already are indexed before this returns.
    ///
    /// # Errors
    /// [`Error::IndexExists`] for a name in use, [`Error::Stopped`] on a stopped informer.
    pub fn index<V, I>(
        &self,
        name: &str,
        values: impl Fn(&K) -> I + Send + Sync + 'static,
    ) -> Result<Index<K, V>, Error>
    where
        V: Hash + Eq + Clone + Send + Sync + 'static,
        I: IntoIterator<Item = V>,
    {
        self.try_index(name, move |object| Ok::<I, std::convert::Infallible>(values(object)))
    }

    /// As [`Informer::index`], with a function that can fail: an object it fails for is in no
    /// bucket of this index, and is reported.
    ///
    /// # Errors
    /// As [`Informer::index`].
    pub fn try_index<V, I, E>(
        &self,
        name: &str,
        values: impl Fn(&K) -> Result<I, E> + Send + Sync + 'static,
    ) -> Result<Index<K, V>, Error>
    where
        V: Hash + Eq + Clone + Send + Sync + 'static,
        I: IntoIterator<Item = V>,
        E: fmt::Display,
    {
        let values = move |object: &K| match values(object) {
            Ok(values) => Ok(values.into_iter().collect::<Vec<V>>()),
            Err(error) => Err(error.to_string()),
        };
        let index = ValueIndex::new(name, Arc::new(values));
        let mut core = self.shared.core();
        if core.phase == Phase::Stopped {
            return Err(self.stopped());
        }
        let mut failures = Vec::new();
        let slot = core.writer.add_index(&index, &mut failures);
        drop(core);
        self.shared.report_index_failures(&failures);
        match slot {
            Some(slot) => Ok(Index::new(self.clone(), slot)),
            None => Err(Error::IndexExists(name.to_owned())),
        }
    }

    /// The changes as a stream: an add for each present object first, then everything that
    /// happens, without gap or repetition between the two.
    ///
    /// # Errors
    /// [`Error::Stopped`] on a stopped informer.
    pub fn subscribe(&self, options: Subscribe) -> Result<Subscription<K>, Error> {
        Ok(Subscription::new(self.join(options)?, self.clone()))
    }

    /// Calls `handler` for each change, one after the other, on a task of the informer. A handler
    /// that panics is reported and called again for the next change.
    ///
    /// # Errors
    /// [`Error::Stopped`] on a stopped informer.
    pub fn for_each(
        &self,
        options: Subscribe,
        handler: impl FnMut(Change<K>) + Send + 'static,
    ) -> Result<Handler<K>, Error> {
        let callback = subscriber::blocking(options.name.clone(), handler);
        self.handle(options, callback)
    }

    /// As [`Informer::for_each`]; the future of one change is awaited before the next.
    ///
    /// # Errors
    /// [`Error::Stopped`] on a stopped informer.
    pub fn for_each_async<F>(
        &self,
        options: Subscribe,
        handler: impl FnMut(Change<K>) -> F + Send + 'static,
    ) -> Result<Handler<K>, Error>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.handle(options, subscriber::asynchronous(handler))
    }

    /// As [`Informer::for_each`], but only objects that `matches`: an update that enters the
    /// selection is an add, one that leaves it a deletion.
    ///
    /// # Errors
    /// [`Error::Stopped`] on a stopped informer.
    pub fn for_each_filtered(
        &self,
        options: Subscribe,
        mut matches: impl FnMut(&K) -> bool + Send + 'static,
        mut handler: impl FnMut(Change<K>) + Send + 'static,
    ) -> Result<Handler<K>, Error> {
        self.for_each(options, move |change| {
            if let Some(change) = buffer::filtered(change, &mut matches) {
                handler(change);
            }
        })
    }

    fn handle(&self, options: Subscribe, callback: Callback<K>) -> Result<Handler<K>, Error> {
        let subscriber = self.join(options)?;
        self.shared.command(Command::Drive(Arc::clone(&subscriber), callback));
        Ok(Handler::new(subscriber, self.clone()))
    }

    fn join(&self, options: Subscribe) -> Result<Arc<Subscriber<K>>, Error> {
        let now = Instant::now();
        let metrics = self.shared.options.metrics.as_ref();
        // Publishing and telling is one step of the core, so this is between two of them.
        let mut core = self.shared.core();
        if core.phase == Phase::Stopped {
            return Err(self.stopped());
        }
        let period = core.resync_for(&options);
        let subscriber =
            Subscriber::new(options, period, now, metrics.map(|metrics| (metrics, self.name())));
        subscriber.replay(self.shared.store.snapshot().state, now);
        if core.synced {
            subscriber.populated();
        }
        core.subscribers.retain(|known| !known.is_gone());
        core.subscribers.push(Arc::clone(&subscriber));
        Ok(subscriber)
    }

    /// Removes a handler; doing so again does nothing.
    ///
    /// # Errors
    /// [`Error::ForeignSubscription`] if it belongs to another informer.
    pub async fn unsubscribe(&self, handler: &Handler<K>) -> Result<(), Error> {
        if !Arc::ptr_eq(&handler.informer().shared, &self.shared) {
            return Err(Error::ForeignSubscription(handler.subscriber().options.name.clone()));
        }
        handler.unsubscribe().await;
        Ok(())
    }

    fn stopped(&self) -> Error {
        Error::Stopped(format!("informer {:?}", self.name()))
    }

    /// Sets what is told of each failure; the last one set counts. It must return quickly.
    ///
    /// # Errors
    /// [`Error::AlreadyStarted`] once the informer runs.
    pub fn on_watch_error(
        &self,
        handler: impl Fn(&str, &list_watch::Error) + Send + Sync + 'static,
    ) -> Result<(), Error> {
        let mut core = self.shared.core();
        if core.phase != Phase::New {
            return Err(Error::AlreadyStarted("the error handler"));
        }
        core.on_error = Some(Arc::new(handler));
        Ok(())
    }

    /// Whether the first state has been applied to the store. It says nothing about subscribers.
    pub fn has_synced(&self) -> bool {
        self.shared.has_synced()
    }

    /// Waits until the first state has been applied to the store. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::NotSynced`] if the informer stops first.
    pub async fn synced(&self) -> Result<(), Error> {
        self.shared.synced_unless(Health::is_over).await
    }

    /// As [`Informer::synced`], but gives up at once when waiting will not help, because the
    /// server forbids it or does not serve the resource type. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::NotSynced`] with the health.
    pub async fn synced_or_hopeless(&self) -> Result<(), Error> {
        self.shared.synced_unless(Health::is_hopeless).await
    }

    /// How it is doing.
    pub fn health(&self) -> Health {
        self.shared.health_now()
    }

    /// Follows its health.
    pub fn watch_health(&self) -> watch::Receiver<Health> {
        self.shared.health.subscribe()
    }

    /// How long ago the last frame, event or bookmark, arrived; `None` before the first.
    pub fn freshness(&self) -> Option<Duration> {
        let last = *self.shared.last_frame.lock().expect("no code panics while it is held");
        last.map(|at| at.elapsed())
    }

    /// Objects that are on the server but could not be decoded.
    pub fn undecodable(&self) -> Vec<Undecodable> {
        self.shared.core().writer.undecodable().cloned().collect()
    }

    /// The version the reflector has seen; it may run ahead of
    /// [`Store::resource_version`](crate::indexer::Store::resource_version), which says what
    /// readers can see.
    pub fn last_rv(&self) -> Option<ResourceVersion> {
        let versions = self.shared.last_versions.lock().expect("no code panics while it is held");
        versions.values().next().cloned()
    }

    /// Waits until the store has reached a version; see
    /// [`Store::wait_for_rv`](crate::indexer::Store::wait_for_rv). Cancel-safe.
    ///
    /// # Errors
    /// As there.
    pub async fn wait_for_rv(
        &self,
        version: &ResourceVersion,
        deadline: Duration,
    ) -> Result<(), Error> {
        self.shared.store.wait_for_rv(version, deadline).await
    }

    /// Waits until the object of a key satisfies `check`, given `None` while it is absent. The
    /// present object is looked at first, and no change between that and the waiting is missed.
    /// Changes that follow each other very quickly may be seen as one. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::Timeout`] after `deadline`, [`Error::Stopped`] when the informer ends.
    pub async fn wait_for(
        &self,
        key: &Key,
        mut check: impl FnMut(Option<&K>) -> bool,
        deadline: Duration,
    ) -> Result<Option<Arc<K>>, Error> {
        let found = self.shared.store.wait_until(|state| {
            let object = state.objects.get(key);
            check(object.map(|object| &**object)).then(|| object.cloned())
        });
        match tokio::time::timeout(deadline, pin!(found)).await {
            Ok(found) => found,
            Err(_) => Err(Error::Timeout { what: format!("waiting for {key}"), after: deadline }),
        }
    }

    /// An estimate of the memory of objects, keys and indexes.
    pub fn approx_bytes(&self) -> usize {
        self.shared.approx_bytes()
    }

    /// Adds a namespace to an informer over a set of namespaces.
    ///
    /// # Errors
    /// [`Error::Stopped`] on a stopped informer.
    pub fn add_namespace(&self, namespace: &str) -> Result<(), Error> {
        self.change_namespace(Command::AddNamespace(namespace.to_owned()))
    }

    /// Removes a namespace; subscribers are told that its objects are gone (not observed).
    ///
    /// # Errors
    /// [`Error::Stopped`] on a stopped informer.
    pub fn remove_namespace(&self, namespace: &str) -> Result<(), Error> {
        self.change_namespace(Command::RemoveNamespace(namespace.to_owned()))
    }

    fn change_namespace(&self, command: Command<K>) -> Result<(), Error> {
        if self.shared.core().phase == Phase::Stopped {
            return Err(self.stopped());
        }
        self.shared.command(command);
        Ok(())
    }

    /// Its state as JSON, for people.
    pub fn debug_dump(&self) -> serde_json::Value {
        self.shared.debug_dump()
    }
}

impl<K: Cached> Clone for Informer<K> {
    fn clone(&self) -> Informer<K> {
        Informer { shared: Arc::clone(&self.shared), alive: Arc::clone(&self.alive) }
    }
}

impl<K: Cached> fmt::Debug for Informer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Informer({}, {:?})", self.name(), self.shared.store)
    }
}

impl<K: Cached> Core<K> {
    /// The resync period of a new subscriber.
    fn resync_for(&self, options: &Subscribe) -> Duration {
        let asked = options.resync.unwrap_or(self.resync);
        let raised = if asked.is_zero() { asked } else { asked.max(RESYNC_MIN) };
        match (self.phase, self.check_period) {
            (Phase::New, _) => raised,
            (_, None) => {
                if !raised.is_zero() {
                    warn_resync(&options.name, "the informer does no resync");
                }
                Duration::ZERO
            }
            (_, Some(check)) if !raised.is_zero() && raised < check => {
                warn_resync(&options.name, "a period shorter than the informer's is raised to it");
                check
            }
            _ => raised,
        }
    }

    /// Fixes how often resyncs are checked: the shortest period anybody asked for so far.
    fn fix_check_period(&mut self, now: Instant) {
        if self.resync.is_zero() {
            for subscriber in &self.subscribers {
                if !subscriber.resync_period().is_zero() {
                    warn_resync(&subscriber.options.name, "the informer does no resync");
                    subscriber.set_resync(Duration::ZERO, now);
                }
            }
            return;
        }
        let own = self.resync.max(RESYNC_MIN);
        let periods = self.subscribers.iter().map(|subscriber| subscriber.resync_period());
        self.check_period = periods.filter(|period| !period.is_zero()).chain([own]).min();
    }
}

fn warn_resync(handler: &str, why: &str) {
    tracing::warn!(handler, "resync period: {why}");
}
