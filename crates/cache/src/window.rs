//! The window: the newest changes of one resource, oldest first.
//!
//! River: feed → **window** → watchers that come back, reads of the recent past.
//! Promise: for any revision from `complete_after` on, the window holds every change after it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use headwater_api::Revision;
use tokio::time::Instant;

use crate::change::Change;

/// How much of the past is kept in memory. Older changes are read from the store's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Changes younger than this are kept, while the other bounds allow it.
    pub age: Duration,
    /// At most this many changes.
    pub count: usize,
    /// At most this many bytes of object state that is no longer current.
    pub bytes: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { age: Duration::from_secs(300), count: 10_000, bytes: 64 << 20 }
    }
}

pub(crate) struct Window {
    changes: VecDeque<Arc<Change>>,
    /// Invariant: every change after this revision is in `changes`.
    complete_after: Revision,
    bytes: usize,
    bounds: Bounds,
}

impl Window {
    pub(crate) fn new(complete_after: Revision, bounds: Bounds) -> Window {
        Window { changes: VecDeque::new(), complete_after, bytes: 0, bounds }
    }

    pub(crate) fn complete_after(&self) -> Revision {
        self.complete_after
    }

    pub(crate) fn bounds(&self) -> Bounds {
        self.bounds
    }

    pub(crate) fn capacity(&self) -> usize {
        self.bounds.count
    }

    pub(crate) fn push(&mut self, change: Arc<Change>) {
        let newest = self.changes.back().map_or(self.complete_after, |last| last.revision());
        // What a lease of etcd takes with it goes at one revision.
        assert!(change.revision() >= newest, "changes arrive in revision order");
        self.bytes += change.weight();
        self.changes.push_back(change);
        while self.changes.len() > self.bounds.count || self.bytes > self.bounds.bytes {
            self.drop_oldest();
        }
    }

    /// Drops what is older than the bounds allow at `now`.
    pub(crate) fn expire(&mut self, now: Instant) {
        while self.changes.front().is_some_and(|oldest| oldest.at + self.bounds.age < now) {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some(oldest) = self.changes.pop_front() {
            self.bytes -= oldest.weight();
            self.complete_after = self.complete_after.max(oldest.revision());
        }
    }

    /// Changes after `revision`, oldest first; `None` if some of them are gone.
    pub(crate) fn after(&self, revision: Revision) -> Option<impl Iterator<Item = &Arc<Change>>> {
        if revision < self.complete_after {
            return None;
        }
        let first = self.changes.partition_point(|change| change.revision() <= revision);
        Some(self.changes.range(first..))
    }

    /// Changes newer than `revision`, newest first; `None` if some of them are gone.
    pub(crate) fn back_to(&self, revision: Revision) -> Option<impl Iterator<Item = &Arc<Change>>> {
        if revision < self.complete_after {
            return None;
        }
        Some(self.changes.iter().rev().take_while(move |change| change.revision() > revision))
    }
}
