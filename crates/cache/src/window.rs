//! The window: the newest changes of one resource, oldest first.
//!
//! River: feed → **window** → watchers that resume, reads of the recent past.
//! Promise: contains every change after the revision `complete_after`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use headwater_api::Revision;
use tokio::time::Instant;

use crate::change::ObjectChange;

/// How many changes are kept in memory. Older changes are read from the store's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The age at which changes are dropped.
    pub age: Duration,
    /// The maximum number of changes.
    pub count: usize,
    /// The maximum number of bytes of replaced or deleted object state.
    pub bytes: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { age: Duration::from_secs(300), count: 10_000, bytes: 64 << 20 }
    }
}

pub(crate) struct Window {
    changes: VecDeque<Arc<ObjectChange>>,
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

    pub(crate) fn push(&mut self, change: Arc<ObjectChange>) {
        let newest = self.changes.back().map_or(self.complete_after, |last| last.revision());
        // etcd deletes all objects of an expired lease at one revision.
        assert!(change.revision() >= newest, "changes arrive in revision order");
        self.bytes += change.weight();
        self.changes.push_back(change);
        while self.changes.len() > self.bounds.count || self.bytes > self.bounds.bytes {
            self.drop_oldest();
        }
    }

    /// Drops changes that are too old at `now`.
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

    /// Changes after `revision`, oldest first; `None` if some of them were dropped.
    pub(crate) fn after(
        &self,
        revision: Revision,
    ) -> Option<impl Iterator<Item = &Arc<ObjectChange>>> {
        if revision < self.complete_after {
            return None;
        }
        let first = self.changes.partition_point(|change| change.revision() <= revision);
        Some(self.changes.range(first..))
    }

    /// Changes after `revision`, newest first; `None` if some of them were dropped.
    pub(crate) fn back_to(
        &self,
        revision: Revision,
    ) -> Option<impl Iterator<Item = &Arc<ObjectChange>>> {
        if revision < self.complete_after {
            return None;
        }
        Some(self.changes.iter().rev().take_while(move |change| change.revision() > revision))
    }
}
