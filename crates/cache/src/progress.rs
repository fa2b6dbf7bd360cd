//! Progress: the newest revision of something, for those who look and for those who wait.
//!
//! River: feed → **progress** → watchers, reads. Every watcher looks at it each time it is woken,
//! thousands of times a second over all cores, so looking takes no lock.
//! Promise: whoever sees a revision also sees everything that was done before it was set.

use std::sync::atomic::{AtomicU64, Ordering};

use headwater_api::Revision;
use tokio::sync::watch;

/// The newest revision of something.
pub(crate) struct Progress {
    reached: AtomicU64,
    told: watch::Sender<Revision>,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        Progress { reached: AtomicU64::new(0), told: watch::Sender::new(Revision::ZERO) }
    }

    pub(crate) fn get(&self) -> Revision {
        Revision(self.reached.load(Ordering::Acquire))
    }

    /// Sets it, and wakes everyone who waits.
    pub(crate) fn set(&self, revision: Revision) {
        self.reach(revision);
        self.tell();
    }

    /// Sets it for those who look. Whoever waits is told later.
    pub(crate) fn reach(&self, revision: Revision) {
        self.reached.store(revision.0, Ordering::Release);
    }

    /// Wakes everyone who waits, whether there is something new or not.
    pub(crate) fn tell(&self) {
        self.told.send_replace(self.get());
    }

    /// A way to wait for the next time it is set.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Revision> {
        self.told.subscribe()
    }
}
