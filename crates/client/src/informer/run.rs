//! The runner of an informer: its lanes, handlers, resync timer and shutdown.
//!
//! River: around the informer.
//! Promise: it runs once; stopping ends reflectors, then queues, then subscribers; when `run` has
//! returned or its future was dropped, no task of the informer is running.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::delta_queue::{self, Consumer, Delta, Replacement, Work};
use crate::indexer::writer::LaneScope;
use crate::key::Key;
use crate::object::{AnyObject, Cached};
use crate::reflector::Reflector;
use crate::reflector::source::{AnySource, TypedSource};
use crate::version::ResourceVersion;

use super::lanes::LaneHost;
use super::shared::{InformerInner, Sources};

/// Runs one informer, once.
#[must_use = "an informer does nothing until its runner is run"]
pub struct Runner<K: Cached> {
    shared: Arc<InformerInner<K>>,
    sources: Sources<K>,
    saved: Option<Replacement<AnyObject>>,
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
        let keyed = |object: K| (object.key(), Arc::new(object) as Arc<AnyObject>);
        let items = objects.into_iter().map(keyed).collect();
        self.saved = Some(Replacement { items, undecodable: Vec::new(), version });
        self
    }

    /// Runs the informer until `stop`. Dropping the future stops it as well.
    pub async fn run(self, stop: CancellationToken) {
        let Runner { shared, sources, saved } = self;
        let any = |(scope, source)| (scope, Arc::new(TypedSource(source)) as Arc<dyn AnySource>);
        let sources = sources.into_iter().map(any).collect();
        run(shared, sources, saved, stop).await;
    }
}

impl<K: Cached> fmt::Debug for Runner<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Runner({})", self.shared.options.name)
    }
}

/// Runs an informer of any type.
async fn run(
    informer: Arc<dyn LaneHost>,
    sources: Vec<(LaneScope, Arc<dyn AnySource>)>,
    mut saved: Option<Replacement<AnyObject>>,
    stop: CancellationToken,
) {
    let ending = StopGuard { informer: Arc::clone(&informer) };
    informer.start(sources.iter().map(|(scope, _)| scope.clone()).collect());
    let mut running = RunningInformer {
        informer,
        lanes: JoinSet::new(),
        stop_lanes: CancellationToken::new(),
        resync: Arc::new(Notify::new()),
        handlers: JoinSet::new(),
    };
    for (scope, source) in sources {
        running.start_lane(scope, source, saved.take());
    }
    running.until(&stop).await;
    running.finish().await;
    drop(ending);
}

/// Marks the informer as stopped when it is dropped.
struct StopGuard {
    informer: Arc<dyn LaneHost>,
}

impl Drop for StopGuard {
    fn drop(&mut self) {
        self.informer.stopped();
    }
}

/// The tasks of a running informer.
struct RunningInformer {
    informer: Arc<dyn LaneHost>,
    lanes: JoinSet<()>,
    stop_lanes: CancellationToken,
    resync: Arc<Notify>,
    handlers: JoinSet<()>,
}

impl RunningInformer {
    async fn until(&mut self, stop: &CancellationToken) {
        let check_period = self.informer.check_period();
        let mut next_check = check_period.map(|period| Instant::now() + period);
        loop {
            let informer = Arc::clone(&self.informer);
            informer.start_handlers(&mut self.handlers);
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = informer.handler_added().notified() => {}
                Some(ended) = self.lanes.join_next() => return joined(ended).unwrap_or_default(),
                Some(ended) = self.handlers.join_next() => joined(ended).unwrap_or_default(),
                () = until(next_check) => {
                    if self.informer.should_resync(Instant::now()) {
                        self.resync.notify_waiters();
                    }
                    next_check = check_period.map(|period| Instant::now() + period);
                }
            }
        }
    }

    fn start_lane(
        &mut self,
        scope: LaneScope,
        source: Arc<dyn AnySource>,
        saved: Option<Replacement<AnyObject>>,
    ) {
        let lane = LaneTask {
            informer: Arc::clone(&self.informer),
            scope,
            source,
            saved,
            resync: Arc::clone(&self.resync),
        };
        self.lanes.spawn(lane.run(self.stop_lanes.clone()));
    }

    /// Reflectors first, then queues, then subscribers.
    async fn finish(mut self) {
        self.stop_lanes.cancel();
        while let Some(ended) = self.lanes.join_next().await {
            joined(ended);
        }
        // Also starts and stops handlers that were just added.
        self.informer.start_handlers(&mut self.handlers);
        self.informer.stop_subscribers();
        let grace = self.informer.options().drain.unwrap_or(HANDLER_GRACE);
        let all = async {
            while let Some(ended) = self.handlers.join_next().await {
                joined(ended);
            }
        };
        if timeout(grace, all).await.is_err() {
            tracing::warn!(
                informer = self.informer.options().name,
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
struct LaneTask {
    informer: Arc<dyn LaneHost>,
    scope: LaneScope,
    source: Arc<dyn AnySource>,
    saved: Option<Replacement<AnyObject>>,
    resync: Arc<Notify>,
}

impl LaneTask {
    async fn run(self, stop: CancellationToken) {
        let LaneTask { informer, scope, source, saved, resync } = self;
        let (producer, consumer) = delta_queue::queue();
        informer.lane_opened(&scope, producer.len_reader(), &source);
        let reflector =
            Reflector::new(Arc::clone(&informer), scope.clone(), source, producer, saved, resync);
        let mut parts = JoinSet::new();
        parts.spawn(reflector.run(stop));
        consume(&*informer, &scope, consumer).await;
        while let Some(ended) = parts.join_next().await {
            joined(ended);
        }
    }
}

/// Applies deltas until the reflector has ended and the queue is empty.
async fn consume(informer: &dyn LaneHost, scope: &LaneScope, mut consumer: Consumer<AnyObject>) {
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
            if informer.apply(scope, batch) {
                resync = ResyncProgress::After(None);
            }
        });
        let took = started.elapsed();
        if is_slow(waiting, count, took) {
            let (informer, key) = (&informer.options().name, first.as_ref().map(Key::as_str));
            tracing::warn!(informer, key, count, waiting, ?took, "applying deltas is slow");
        }
        if !synced && consumer.has_synced() {
            synced = true;
            informer.lane_synced(scope);
        }
        if let ResyncProgress::After(key) = &resync {
            resync = match informer.resync_slice(scope, key.as_ref()) {
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
