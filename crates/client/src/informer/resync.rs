//! Resyncs: periodic updates of unchanged objects for subscribers that request them.
//!
//! River: store → **resync** → subscribers.
//! Promise: a subscriber receives only the resyncs it requested; a resync is delivered in slices,
//! with live changes between them.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::change::Change;
use crate::indexer::writer::{LaneScope, Notification};
use crate::key::Key;
use crate::object::Cached;

use super::Subscribe;
use super::shared::{Core, InformerInner, RunPhase};

/// The minimum resync period.
const RESYNC_MIN: Duration = Duration::from_secs(1);
/// The objects of one slice; live changes are handled between slices.
const RESYNC_SLICE: usize = 1000;

impl<K: Cached> InformerInner<K> {
    /// Delivers the objects after `after` to the subscribers that are due; returns the key to
    /// continue after.
    pub(super) fn slice(&self, scope: &LaneScope, after: Option<&Key>) -> Option<Key> {
        let now = Instant::now();
        let core = self.core();
        let state = core.writer.state();
        let from = match after {
            Some(key) => Bound::Excluded(key.as_str()),
            None => Bound::Unbounded,
        };
        let mut last = None;
        let mut notifications = Vec::with_capacity(RESYNC_SLICE);
        for (key, object) in state.objects.range::<_, str>((from, Bound::Unbounded)) {
            if !scope.contains(key) {
                continue;
            }
            if notifications.len() == RESYNC_SLICE {
                last = notifications
                    .last()
                    .map(|notification: &Notification<K>| notification.key.clone());
                break;
            }
            let change = Change::Updated { old: Arc::clone(object), new: Arc::clone(object) };
            notifications.push(Notification { key: key.clone(), change, unchanged: true });
        }
        for subscriber in &core.subscribers {
            subscriber.notify(&notifications, now);
        }
        last
    }
}

impl<K: Cached> Core<K> {
    /// The resync period of a new subscriber.
    pub(super) fn resync_for(&self, options: &Subscribe) -> Duration {
        let asked = options.resync.unwrap_or(self.resync);
        let raised = if asked.is_zero() { asked } else { asked.max(RESYNC_MIN) };
        match (self.phase, self.check_period) {
            (RunPhase::New, _) => raised,
            (_, None) => {
                if !raised.is_zero() {
                    warn_resync(
                        &options.name,
                        "ignored, because the informer has no resync period",
                    );
                }
                Duration::ZERO
            }
            (_, Some(check)) if !raised.is_zero() && raised < check => {
                warn_resync(
                    &options.name,
                    "a period shorter than the informer's check period is raised to it",
                );
                check
            }
            _ => raised,
        }
    }

    /// Sets how often resyncs are checked: the shortest period that was requested.
    pub(super) fn fix_check_period(&mut self, now: Instant) {
        if self.resync.is_zero() {
            for subscriber in &self.subscribers {
                if !subscriber.resync_period().is_zero() {
                    warn_resync(
                        &subscriber.options.name,
                        "ignored, because the informer has no resync period",
                    );
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
