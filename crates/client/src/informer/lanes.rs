//! The lanes of an informer, one per collection it watches, and their combined health.
//!
//! River: reflectors → **lanes** → health of the informer.
//! Promise: the informer has synced when all lanes have; its health is that of the worst lane.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::delta_queue::Batch;
use crate::error::Error;
use crate::indexer::writer::LaneScope;
use crate::key::Key;
use crate::list_watch;
use crate::object::{AnyObject, Cached};
use crate::observe::InformerObserver;
use crate::random::Random;
use crate::reflector::source::AnySource;
use crate::version::ResourceVersion;

use super::shared::{Core, InformerInner, Lane, RunPhase, SizeReader};
use super::{Health, Options, subscriber};

/// An informer of any type, as its lanes and its runner need it.
pub(crate) trait LaneHost: Send + Sync {
    fn options(&self) -> &Options;
    fn observer(&self) -> Option<&InformerObserver>;
    fn random(&self) -> &Random;

    /// Begins to run, with these lanes.
    fn start(&self, scopes: Vec<LaneScope>);
    /// How often resyncs are checked.
    fn check_period(&self) -> Option<Duration>;
    /// Whether any subscriber is due for a resync now.
    fn should_resync(&self, now: Instant) -> bool;
    /// Notified when a handler was added.
    fn handler_added(&self) -> &Notify;
    /// Spawns the handlers that were added.
    fn start_handlers(&self, handlers: &mut JoinSet<()>);
    /// Stops the subscribers.
    fn stop_subscribers(&self);
    /// The runner has ended.
    fn stopped(&self);

    /// Registers the queue length and the object size of a lane that starts.
    fn lane_opened(&self, scope: &LaneScope, len: LenReader, source: &Arc<dyn AnySource>);
    /// Records that a frame arrived, and its version.
    fn frame_arrived(&self, scope: &LaneScope, version: Option<&ResourceVersion>);
    /// Applies a batch of one lane and notifies the subscribers. Returns whether the batch requests
    /// a resync.
    fn apply(&self, scope: &LaneScope, batch: Batch<AnyObject>) -> bool;
    /// A lane has applied its initial state.
    fn lane_synced(&self, scope: &LaneScope);
    /// Delivers the objects after `after` to the subscribers that are due; returns the key to
    /// continue after.
    fn resync_slice(&self, scope: &LaneScope, after: Option<&Key>) -> Option<Key>;
    /// A lane's watch is established.
    fn established(&self, scope: &LaneScope);
    /// A lane's cycle failed.
    fn failed(&self, scope: &LaneScope, error: &list_watch::Error);
    /// Calls the error handler; the health stays as it is.
    fn report(&self, error: &list_watch::Error);
}

/// Returns the length of a queue.
pub(crate) type LenReader = Box<dyn Fn() -> usize + Send + Sync>;

impl<K: Cached> LaneHost for InformerInner<K> {
    fn options(&self) -> &Options {
        &self.options
    }

    fn observer(&self) -> Option<&InformerObserver> {
        self.observer.as_ref()
    }

    fn random(&self) -> &Random {
        &self.random
    }

    fn start(&self, scopes: Vec<LaneScope>) {
        let mut core = self.core();
        core.phase = RunPhase::Running;
        core.fix_check_period(Instant::now());
        for scope in scopes {
            core.writer.add_lane(scope.clone());
            core.lanes.insert(scope, Lane { health: Health::Starting, synced: false });
        }
        if core.lanes.is_empty() {
            self.update_synced(&mut core); // an empty set of namespaces has synced
        }
    }

    fn check_period(&self) -> Option<Duration> {
        self.core().check_period
    }

    fn should_resync(&self, now: Instant) -> bool {
        let core = self.core();
        // Checks every subscriber, because the check sets its next time.
        core.subscribers.iter().filter(|subscriber| subscriber.check_resync(now)).count() > 0
    }

    fn handler_added(&self) -> &Notify {
        &self.handler_added
    }

    fn start_handlers(&self, handlers: &mut JoinSet<()>) {
        let drain = self.options.drain.is_some();
        let mut added = self.new_handlers.lock().expect("no code panics while it is held");
        for (subscriber, callback) in added.drain(..) {
            handlers.spawn(subscriber::drive(subscriber, callback, drain));
        }
    }

    fn stop_subscribers(&self) {
        for subscriber in &self.core().subscribers {
            subscriber.stop();
        }
    }

    fn stopped(&self) {
        let mut core = self.core();
        core.phase = RunPhase::Stopped;
        for subscriber in core.subscribers.drain(..) {
            subscriber.stop();
        }
        drop(core);
        self.store.stop();
        self.health.send_replace(Health::Stopped);
    }

    fn lane_opened(&self, scope: &LaneScope, len: LenReader, source: &Arc<dyn AnySource>) {
        let mut lens = self.queue_lens.lock().expect("no code panics while it is held");
        lens.insert(scope.clone(), len);
        let source = Arc::clone(source);
        let read: SizeReader = Box::new(move || source.mean_object_bytes());
        *self.object_bytes.lock().expect("no code panics while it is held") = Some(read);
    }

    fn frame_arrived(&self, scope: &LaneScope, version: Option<&ResourceVersion>) {
        *self.last_frame.lock().expect("no code panics while it is held") = Some(Instant::now());
        if let Some(version) = version {
            let mut versions = self.last_versions.lock().expect("no code panics while it is held");
            versions.insert(scope.clone(), version.clone());
        }
    }

    fn apply(&self, scope: &LaneScope, batch: Batch<AnyObject>) -> bool {
        let started = Instant::now();
        let batch = batch.typed();
        let mut core = self.core();
        let applied = core.writer.apply(scope, batch);
        let resync = applied.resync;
        self.distribute(&mut core, applied, started);
        let version = core.writer.state().version.clone();
        drop(core);
        if let Some(observer) = &self.observer {
            observer.latency.observe_time(started.elapsed());
            if let Some(version) = version {
                observer.store_version.set(version.gauge());
            }
        }
        resync
    }

    fn lane_synced(&self, scope: &LaneScope) {
        let mut core = self.core();
        if let Some(lane) = core.lanes.get_mut(scope) {
            lane.synced = true;
        }
        self.update_synced(&mut core);
    }

    fn resync_slice(&self, scope: &LaneScope, after: Option<&Key>) -> Option<Key> {
        self.slice(scope, after)
    }

    fn established(&self, scope: &LaneScope) {
        let mut core = self.core();
        if let Some(lane) = core.lanes.get_mut(scope) {
            lane.health = if lane.synced { Health::Synced } else { Health::Starting };
        }
        self.publish_health(&core);
    }

    fn failed(&self, scope: &LaneScope, error: &list_watch::Error) {
        let mut core = self.core();
        if let Some(lane) = core.lanes.get_mut(scope) {
            let reason = error.to_string();
            lane.health = lane.health.failed(error.class(), &reason, lane.synced, Instant::now());
        }
        self.publish_health(&core);
        drop(core);
        self.report(error);
    }

    fn report(&self, error: &list_watch::Error) {
        if let Some(handler) = &self.options.on_watch_error {
            // A panic of the user's handler must not stop the informer.
            let told = std::panic::AssertUnwindSafe(|| handler(&self.options.name, error));
            if std::panic::catch_unwind(told).is_err() {
                tracing::error!(informer = self.options.name, "the error handler panicked");
            }
        }
    }
}

impl<K: Cached> InformerInner<K> {
    pub(super) fn update_synced(&self, core: &mut Core<K>) {
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

    pub(super) fn publish_health(&self, core: &Core<K>) {
        let health = Health::of_all(core.lanes.values().map(|lane| &lane.health));
        self.health.send_if_modified(|known| {
            let changed = *known != health && *known != Health::Stopped;
            if changed {
                *known = health;
            }
            changed
        });
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
}
