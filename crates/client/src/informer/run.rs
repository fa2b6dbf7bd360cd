//! The runner of an informer: its lanes, handlers, resync timer and shutdown.
//!
//! River: around the informer.
//! Promise: it runs once; stopping ends reflectors, then queues, then subscribers; when `run` has
//! returned or its future was dropped, no task of the informer is running.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::delta_queue::{self, Consumer, Delta, Replacement, Work};
use crate::error::Error;
use crate::indexer::writer::LaneScope;
use crate::key::Key;
use crate::list_watch::ListWatch;
use crate::object::Cached;
use crate::query::{At, ListQuery};
use crate::reflector::Reflector;
use crate::version::ResourceVersion;

use super::shared::{Command, InformerInner, Lane, OpenSource, RunPhase, Sources};
use super::{Health, subscriber};

/// Runs one informer, once.
#[must_use = "an informer does nothing until its runner is run"]
pub struct Runner<K: Cached> {
    shared: Arc<InformerInner<K>>,
    sources: Sources<K>,
    saved: Option<Replacement<K>>,
}

/// How long handlers may take to return at stop, unless `drain` is set.
const HANDLER_GRACE: Duration = Duration::from_secs(5);

/// A batch that takes longer while others wait is slow, however many deltas it has.
const SLOW_BATCH: Duration = Duration::from_secs(1);
/// With this many waiting deltas or fewer, a batch is never slow.
const WAITING_FEW: usize = 10;

impl<K: Cached> Runner<K> {
    pub(crate) fn new(shared: Arc<InformerInner<K>>, sources: Sources<K>) -> Runner<K> {
        Runner { shared, sources, saved: None }
    }

    /// Starts from a saved state instead of a list: the watch resumes at its version. If the server
    /// has compacted that version, a list follows. For informers over one collection.
    pub fn resume_from(
        mut self,
        objects: impl IntoIterator<Item = K>,
        version: ResourceVersion,
    ) -> Runner<K> {
        let objects = objects.into_iter().map(Arc::new);
        self.saved = Some(Replacement::new(objects, Vec::new(), version));
        self
    }

    /// Runs the informer until `stop`. Dropping the future stops it as well.
    ///
    /// # Errors
    /// [`Error::TooManyObjects`] if there are more than allowed; the error of the list that counts
    /// them.
    pub async fn run(self, stop: CancellationToken) -> Result<(), Error> {
        let Runner { shared, sources, mut saved } = self;
        let ending = StopGuard { shared: Arc::clone(&shared) };
        let (first, open) = match sources {
            Sources::One(source) => (vec![(LaneScope::All, source)], None),
            Sources::Each { namespaces, open } => {
                let each = namespaces
                    .iter()
                    .map(|namespace| {
                        (LaneScope::Namespace(namespace.as_str().into()), open(namespace))
                    })
                    .collect();
                (each, Some(open))
            }
        };
        shared.start(first.iter().map(|(scope, _)| scope.clone()));
        if let Err(error) = refuse_too_many(&shared, &first).await {
            shared.health.send_replace(Health::Failed(error.to_string()));
            return Err(error);
        }
        let mut running = RunningInformer {
            lanes: JoinSet::new(),
            lane_stops: BTreeMap::new(),
            removed: BTreeSet::new(),
            resync: Arc::new(Notify::new()),
            handlers: JoinSet::new(),
            open,
            shared,
        };
        for (scope, source) in first {
            running.start_lane(scope, source, saved.take());
        }
        running.until(&stop).await;
        running.finish().await;
        drop(ending);
        Ok(())
    }
}

impl<K: Cached> fmt::Debug for Runner<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Runner({})", self.shared.options.name)
    }
}

/// Fails if there are more objects than allowed, before they are fetched.
async fn refuse_too_many<K: Cached>(
    shared: &InformerInner<K>,
    sources: &[(LaneScope, Arc<dyn ListWatch<Object = K>>)],
) -> Result<(), Error> {
    let Some(max) = shared.options.refuse_above else { return Ok(()) };
    let mut count = 0;
    for (_, source) in sources {
        count += estimate(&**source, &shared.options.selection).await?.unwrap_or(0);
    }
    if count <= max {
        return Ok(());
    }
    Err(Error::TooManyObjects { resource: shared.options.resource.resource(), count, max })
}

/// The number of objects of a source; `None` if the server does not report it, as with selectors.
pub(crate) async fn estimate<K: Cached>(
    source: &dyn ListWatch<Object = K>,
    selection: &crate::query::Selection,
) -> Result<Option<u64>, Error> {
    let query = ListQuery {
        selection: selection.clone(),
        at: At::Any,
        limit: Some(1),
        continue_token: None,
    };
    let page = source.list(query).await?;
    let here = page.items.len() as u64;
    match (page.remaining, page.continue_token) {
        (Some(more), _) => Ok(Some(here + more)),
        (None, None) => Ok(Some(here)),
        (None, Some(_)) => Ok(None),
    }
}

impl<K: Cached> InformerInner<K> {
    fn start(&self, scopes: impl Iterator<Item = LaneScope>) {
        let mut core = self.core();
        core.phase = RunPhase::Running;
        core.fix_check_period(Instant::now());
        for scope in scopes {
            core.writer.add_lane(scope.clone());
            core.lanes.insert(scope, Lane { health: Health::Starting, synced: false });
        }
        let mut core = core;
        if core.lanes.is_empty() {
            self.update_synced(&mut core); // an empty set of namespaces has synced
        }
    }

    fn take_commands(&self) -> Vec<Command<K>> {
        std::mem::take(&mut *self.commands.lock().expect("no code panics while it is held"))
    }
}

/// Marks the informer as stopped when it is dropped.
struct StopGuard<K: Cached> {
    shared: Arc<InformerInner<K>>,
}

impl<K: Cached> Drop for StopGuard<K> {
    fn drop(&mut self) {
        let mut core = self.shared.core();
        core.phase = RunPhase::Stopped;
        for subscriber in core.subscribers.drain(..) {
            subscriber.stop();
        }
        drop(core);
        self.shared.store.stop();
        self.shared.health.send_if_modified(|health| {
            let failed = matches!(health, Health::Failed(_));
            if !failed {
                *health = Health::Stopped;
            }
            !failed
        });
    }
}

/// The tasks of a running informer.
struct RunningInformer<K: Cached> {
    shared: Arc<InformerInner<K>>,
    lanes: JoinSet<LaneScope>,
    lane_stops: BTreeMap<LaneScope, CancellationToken>,
    /// Lanes that are stopping because their namespace was removed.
    removed: BTreeSet<LaneScope>,
    resync: Arc<Notify>,
    handlers: JoinSet<()>,
    open: Option<OpenSource<K>>,
}

impl<K: Cached> RunningInformer<K> {
    async fn until(&mut self, stop: &CancellationToken) {
        let check_period = self.shared.core().check_period;
        let mut next_check = check_period.map(|period| Instant::now() + period);
        loop {
            self.execute_commands();
            let shared = Arc::clone(&self.shared);
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = shared.commanded.notified() => {}
                Some(ended) = self.lanes.join_next() => {
                    if joined(ended).is_none_or(|scope| self.lane_ended(&scope)) {
                        return;
                    }
                }
                Some(ended) = self.handlers.join_next() => joined(ended).unwrap_or_default(),
                () = until(next_check) => {
                    if self.shared.should_resync(Instant::now()) {
                        self.resync.notify_waiters();
                    }
                    next_check = check_period.map(|period| Instant::now() + period);
                }
            }
        }
    }

    fn execute_commands(&mut self) {
        for command in self.shared.take_commands() {
            match command {
                Command::Drive(subscriber, callback) => {
                    let drain = self.shared.options.drain.is_some();
                    self.handlers.spawn(subscriber::drive(subscriber, callback, drain));
                }
                Command::AddNamespace(namespace) => self.add_namespace(&namespace),
                Command::RemoveNamespace(namespace) => {
                    let scope = LaneScope::Namespace(namespace.as_str().into());
                    if let Some(stop) = self.lane_stops.get(&scope) {
                        stop.cancel();
                        self.removed.insert(scope);
                    }
                }
            }
        }
    }

    fn add_namespace(&mut self, namespace: &str) {
        let Some(open) = &self.open else { return };
        let scope = LaneScope::Namespace(namespace.into());
        if self.lane_stops.contains_key(&scope) {
            return;
        }
        let source = open(namespace);
        let mut core = self.shared.core();
        core.writer.add_lane(scope.clone());
        core.lanes.insert(scope.clone(), Lane { health: Health::Starting, synced: false });
        drop(core);
        self.start_lane(scope, source, None);
    }

    fn start_lane(
        &mut self,
        scope: LaneScope,
        source: Arc<dyn ListWatch<Object = K>>,
        saved: Option<Replacement<K>>,
    ) {
        let stop = CancellationToken::new();
        self.lane_stops.insert(scope.clone(), stop.clone());
        let lane = LaneTask {
            shared: Arc::clone(&self.shared),
            scope,
            source,
            saved,
            resync: Arc::clone(&self.resync),
        };
        self.lanes.spawn(lane.run(stop));
    }

    /// Handles the end of a lane; returns whether the informer ends.
    fn lane_ended(&mut self, scope: &LaneScope) -> bool {
        self.lane_stops.remove(scope);
        self.shared.queue_lens.lock().expect("no code panics while it is held").remove(scope);
        if !self.removed.remove(scope) {
            return true;
        }
        let mut core = self.shared.core();
        core.lanes.remove(scope);
        let applied = core.writer.remove_lane(scope);
        self.shared.distribute(&mut core, applied, Instant::now());
        self.shared.update_synced(&mut core);
        false
    }

    /// Reflectors first, then queues, then subscribers.
    async fn finish(mut self) {
        for stop in self.lane_stops.values() {
            stop.cancel();
        }
        while let Some(ended) = self.lanes.join_next().await {
            joined(ended);
        }
        self.execute_commands(); // also start and stop handlers that were just added
        for subscriber in &self.shared.core().subscribers {
            subscriber.stop();
        }
        let grace = self.shared.options.drain.unwrap_or(HANDLER_GRACE);
        let all = async {
            while let Some(ended) = self.handlers.join_next().await {
                joined(ended);
            }
        };
        if timeout(grace, all).await.is_err() {
            tracing::warn!(
                informer = self.shared.options.name,
                "handlers did not return within the grace period and were cancelled"
            );
            self.handlers.shutdown().await;
        }
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Resumes a task's panic; `None` if the task was cancelled because the runtime shuts down.
fn joined<T>(ended: Result<T, JoinError>) -> Option<T> {
    match ended.map_err(JoinError::try_into_panic) {
        Ok(value) => Some(value),
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(_)) => None,
    }
}

/// One lane: its reflector and the consumer of its queue.
struct LaneTask<K: Cached> {
    shared: Arc<InformerInner<K>>,
    scope: LaneScope,
    source: Arc<dyn ListWatch<Object = K>>,
    saved: Option<Replacement<K>>,
    resync: Arc<Notify>,
}

impl<K: Cached> LaneTask<K> {
    async fn run(self, stop: CancellationToken) -> LaneScope {
        let LaneTask { shared, scope, source, saved, resync } = self;
        let (producer, consumer) = delta_queue::queue();
        shared.lane_opened(&scope, producer.len_reader(), &source);
        let reflector =
            Reflector::new(Arc::clone(&shared), scope.clone(), source, producer, saved, resync);
        let mut parts = JoinSet::new();
        parts.spawn(reflector.run(stop));
        consume(&shared, &scope, consumer).await;
        while let Some(ended) = parts.join_next().await {
            joined(ended);
        }
        scope
    }
}

/// Applies deltas until the reflector has ended and the queue is empty.
async fn consume<K: Cached>(
    shared: &InformerInner<K>,
    scope: &LaneScope,
    mut consumer: Consumer<K>,
) {
    let mut synced = false;
    let mut resync = ResyncProgress::Idle;
    loop {
        let waiting = consumer.len();
        let started = Instant::now();
        let mut first = None;
        let mut count = 0;
        let work = consumer.process(|batch| {
            first = batch.deltas.first().and_then(Delta::key).cloned();
            count = batch.deltas.len();
            if shared.apply(scope, batch) {
                resync = ResyncProgress::After(None);
            }
        });
        let took = started.elapsed();
        if is_slow(waiting, count, took) {
            let (informer, key) = (&shared.options.name, first.as_ref().map(Key::as_str));
            tracing::warn!(informer, key, count, waiting, ?took, "applying deltas is slow");
        }
        if !synced && consumer.has_synced() {
            synced = true;
            shared.lane_synced(scope);
        }
        if let ResyncProgress::After(key) = &resync {
            resync = match shared.resync_slice(scope, key.as_ref()) {
                Some(last) => ResyncProgress::After(Some(last)),
                None => ResyncProgress::Idle,
            };
        }
        match work {
            Work::Closed => return,
            Work::Nothing if matches!(resync, ResyncProgress::Idle) => consumer.ready().await,
            Work::Nothing | Work::Done => tokio::task::coop::consume_budget().await,
        }
    }
}

/// The progress of a resync.
enum ResyncProgress {
    Idle,
    After(Option<Key>),
}

/// Whether a batch took too long while other deltas waited.
pub(super) fn is_slow(waiting: usize, count: usize, took: Duration) -> bool {
    let each = Duration::from_millis(100);
    let limit = each.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX)).min(SLOW_BATCH);
    waiting > WAITING_FEW && count > 0 && took > limit
}
