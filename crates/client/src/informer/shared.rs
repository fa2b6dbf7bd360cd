//! The state that the handles, the runner and the reflectors of an informer share.
//!
//! River: reflector → delta queue → **shared state** → subscribers.
//! Promise: a batch is applied and delivered to subscribers under one lock, so a new subscriber
//! joins between two batches; while the lock is held, no user code runs except index functions.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::indexer::Store;
use crate::indexer::index::IndexFailure;
use crate::indexer::writer::{ApplyOutcome, LaneScope, Writer};
use crate::key::Key;
use crate::list_watch::ListWatch;
use crate::object::Cached;
use crate::observe::{InformerObserver, StoreReadings};
use crate::random::Random;
use crate::version::ResourceVersion;

use super::lanes::LenReader;
use super::subscriber::{Callback, Subscriber};
use super::{Health, Options};

/// The sources of the objects: one for all, or one per namespace.
pub(crate) type Sources<K> = Vec<(LaneScope, Arc<dyn ListWatch<Object = K>>)>;

/// Notifies the factory when the last handle of an informer is dropped.
pub(crate) struct HandleToken {
    gone: Arc<Notify>,
}

impl HandleToken {
    pub(crate) fn new(gone: &Arc<Notify>) -> HandleToken {
        HandleToken { gone: Arc::clone(gone) }
    }
}

impl Drop for HandleToken {
    fn drop(&mut self) {
        self.gone.notify_one();
    }
}

pub(crate) struct InformerInner<K: Cached> {
    pub(crate) options: Options,
    pub(crate) store: Store<K>,
    pub(super) core: Mutex<Core<K>>,
    pub(super) health: watch::Sender<Health>,
    pub(super) synced: watch::Sender<bool>,
    pub(super) new_handlers: Mutex<Vec<NewHandler<K>>>,
    pub(super) handler_added: Notify,
    pub(super) last_frame: Mutex<Option<Instant>>,
    /// The newest version that each lane's reflector received; the store may be older.
    pub(super) last_versions: Mutex<BTreeMap<LaneScope, ResourceVersion>>,
    /// The average size of objects, from the sources.
    pub(super) object_bytes: Mutex<Option<SizeReader>>,
    /// The lengths of the lanes' queues.
    pub(super) queue_lens: Mutex<BTreeMap<LaneScope, LenReader>>,
    pub(crate) observer: Option<InformerObserver>,
    pub(crate) random: Random,
}

pub(super) struct Core<K> {
    pub(super) writer: Writer<K>,
    pub(super) subscribers: Vec<Arc<Subscriber<K>>>,
    pub(super) phase: RunPhase,
    pub(super) lanes: BTreeMap<LaneScope, Lane>,
    pub(super) resync: Duration,
    /// How often resyncs are checked; set at the start.
    pub(super) check_period: Option<Duration>,
    pub(super) synced: bool,
}

pub(super) type SizeReader = Box<dyn Fn() -> Option<usize> + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunPhase {
    New,
    Running,
    Stopped,
}

pub(super) struct Lane {
    pub(super) health: Health,
    pub(super) synced: bool,
}

/// A handler that the runner has not started yet.
pub(super) type NewHandler<K> = (Arc<Subscriber<K>>, Callback<K>);

impl<K: Cached> InformerInner<K> {
    pub(crate) fn new(options: Options) -> Arc<InformerInner<K>> {
        let store = Store::new();
        let observer = options
            .metrics
            .as_ref()
            .map(|metrics| InformerObserver::new(metrics, &options.name, &options.resource));
        let core = Core {
            writer: Writer::new(store.clone()),
            subscribers: Vec::new(),
            phase: RunPhase::New,
            lanes: BTreeMap::new(),
            resync: options.resync,
            check_period: None,
            synced: false,
        };
        let random = options.seed.map_or_else(Random::from_entropy, Random::seeded);
        let shared = Arc::new(InformerInner {
            options,
            store,
            core: Mutex::new(core),
            health: watch::Sender::new(Health::Starting),
            synced: watch::Sender::new(false),
            new_handlers: Mutex::default(),
            handler_added: Notify::new(),
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

    pub(super) fn export_readings(self: &Arc<Self>) {
        let Some(observer) = &self.observer else { return };
        let reading = |read: fn(&InformerInner<K>) -> f64| -> Box<dyn Fn() -> f64 + Send + Sync> {
            let shared = Arc::downgrade(self);
            Box::new(move || shared.upgrade().map_or(0.0, |shared| read(&shared)))
        };
        observer.watch_store(StoreReadings {
            queued: reading(|shared| shared.queued() as f64),
            objects: reading(|shared| shared.store.snapshot().len() as f64),
            bytes: reading(|shared| shared.approx_bytes() as f64),
        });
    }

    pub(super) fn core(&self) -> MutexGuard<'_, Core<K>> {
        self.core.lock().expect("user code that panics inside a step is caught")
    }

    pub(super) fn queued(&self) -> usize {
        let lens = self.queue_lens.lock().expect("no code panics while it is held");
        lens.values().map(|len| len()).sum()
    }

    pub(super) fn distribute(&self, core: &mut Core<K>, applied: ApplyOutcome<K>, now: Instant) {
        let ApplyOutcome {
            notifications, populated, index_failures, nameless, regressions, ..
        } = applied;
        if populated {
            let state = self.store.snapshot().state;
            for subscriber in &core.subscribers {
                subscriber.replay(Arc::clone(&state), now);
            }
        }
        if !notifications.is_empty() || populated {
            for subscriber in &core.subscribers {
                subscriber.notify(&notifications, now);
            }
            core.subscribers.retain(|subscriber| !subscriber.is_gone());
        }
        self.report_index_failures(&index_failures);
        if nameless > 0 {
            tracing::error!(
                informer = self.options.name,
                nameless,
                "objects without a name are ignored"
            );
        }
        if regressions > 0 {
            tracing::warn!(informer = self.options.name, "the server's versions went backwards");
            if let Some(observer) = &self.observer {
                observer.regressions.add(regressions as u64);
            }
        }
    }

    pub(super) fn report_index_failures(&self, failures: &[IndexFailure]) {
        for IndexFailure { index, key, why } in failures {
            tracing::error!(informer = self.options.name, index, %key, why, "the index function failed; the object is missing from the index");
            if let Some(observer) = &self.observer {
                observer.index_failures.inc();
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

    /// Lets the runner start a handler.
    pub(super) fn add_handler(&self, handler: NewHandler<K>) {
        self.new_handlers.lock().expect("no code panics while it is held").push(handler);
        self.handler_added.notify_one();
    }

    pub(super) fn approx_bytes(&self) -> usize {
        let snapshot = self.store.snapshot();
        let each = self.object_bytes.lock().expect("no code panics while it is held");
        let each = each.as_ref().and_then(|read| read()).unwrap_or(size_of::<K>());
        let keys: usize = snapshot.iter().map(|(key, _)| key.as_str().len() + 16).sum();
        let slots = snapshot.len() * 3 * (size_of::<Key>() + size_of::<usize>()) / 2;
        let indexes: usize = snapshot.state.indexes.iter().map(|index| index.approx_bytes()).sum();
        snapshot.len() * each + keys + slots + indexes
    }
}
