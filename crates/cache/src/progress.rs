//! Progress: a revision that only grows, which readers can poll and await.
//!
//! River: feed → **progress** → watchers, reads. Every watcher polls it after each wake-up,
//! thousands of times per second on all cores, so polling takes no lock.
//! Promise: a reader that sees a revision also sees all writes made before it was set.

use std::sync::atomic::{AtomicU64, Ordering};

use headwater_api::Revision;
use tokio::sync::watch;

/// A revision that only grows.
pub(crate) struct Progress {
    reached: AtomicU64,
    changed: watch::Sender<Revision>,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        Progress { reached: AtomicU64::new(0), changed: watch::Sender::new(Revision::ZERO) }
    }

    pub(crate) fn get(&self) -> Revision {
        Revision(self.reached.load(Ordering::Acquire))
    }

    /// Sets the revision and wakes all waiting tasks.
    pub(crate) fn set(&self, revision: Revision) {
        self.advance(revision);
        self.notify();
    }

    /// Sets the revision without waking tasks.
    pub(crate) fn advance(&self, revision: Revision) {
        self.reached.store(revision.0, Ordering::Release);
    }

    /// Wakes all waiting tasks, even if the revision is unchanged.
    pub(crate) fn notify(&self) {
        self.changed.send_replace(self.get());
    }

    /// Waits for the next wake-up.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Revision> {
        self.changed.subscribe()
    }
}
