//! Resync: showing objects again to those who asked for it.
//!
//! River: beside the subscribers.
//! Promise: nobody is shown more than they asked for; a resync is told in slices, and live changes
//! come in between.

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

/// The shortest period of a resync.
const RESYNC_MIN: Duration = Duration::from_secs(1);
/// So many objects are shown again at a time; live changes are handled in between.
const RESYNC_SLICE: usize = 1000;

impl<K: Cached> InformerInner<K> {
    /// Shows the next objects after `after` again to those who are due; answers where to go on.
    pub(crate) fn resync_slice(&self, scope: &LaneScope, after: Option<&Key>) -> Option<Key> {
        let now = Instant::now();
        let core = self.core();
        let state = core.writer.state();
        let from = match after {
            Some(key) => Bound::Excluded(key.as_str()),
            None => Bound::Unbounded,
        };
        let mut last = None;
        let mut notices = Vec::with_capacity(RESYNC_SLICE);
        for (key, object) in state.objects.range::<_, str>((from, Bound::Unbounded)) {
            if !scope.contains(key) {
                continue;
            }
            if notices.len() == RESYNC_SLICE {
                last = notices.last().map(|notice: &Notification<K>| notice.key.clone());
                break;
            }
            let change = Change::Updated { old: Arc::clone(object), new: Arc::clone(object) };
            notices.push(Notification { key: key.clone(), change, unchanged: true });
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
    pub(super) fn fix_check_period(&mut self, now: Instant) {
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
