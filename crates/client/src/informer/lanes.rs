//! The lanes of an informer, one per collection it watches, and their combined health.
//!
//! River: reflectors → **lanes** → health of the informer.
//! Promise: the informer has synced when all lanes have; its health is that of the worst lane.

use tokio::time::Instant;

use crate::error::Error;
use crate::indexer::writer::LaneScope;
use crate::list_watch;
use crate::object::Cached;

use super::Health;
use super::shared::{Core, InformerInner};

impl<K: Cached> InformerInner<K> {
    /// A lane has applied its initial state.
    pub(crate) fn lane_synced(&self, scope: &LaneScope) {
        let mut core = self.core();
        if let Some(lane) = core.lanes.get_mut(scope) {
            lane.synced = true;
        }
        self.update_synced(&mut core);
    }

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

    /// A lane's watch is established.
    pub(crate) fn established(&self, scope: &LaneScope) {
        let mut core = self.core();
        if let Some(lane) = core.lanes.get_mut(scope) {
            lane.health = if lane.synced { Health::Synced } else { Health::Starting };
        }
        self.publish_health(&core);
    }

    /// A lane's cycle failed.
    pub(crate) fn failed(&self, scope: &LaneScope, error: &list_watch::Error) {
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
