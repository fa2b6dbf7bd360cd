//! Read your own writes: tracks the writes of each key until the caches contain them.
//!
//! River: calls → **tracker** → the next reconcile of the same key.
//! Promise: a reconcile never runs on data known to be older than the writes of its key; only that
//! key waits; writes that the caches contain are forgotten.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::Instant;

use crate::error::Error;
use crate::informer::Informer;
use crate::key::Key;
use crate::object::{Cached, ResourceType};
use crate::version::ResourceVersion;

/// One successful write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TrackedWrite {
    resource: Arc<ResourceType>,
    key: Key,
    effect: WriteEffect,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum WriteEffect {
    /// The cache contains the write once it has reached this version.
    Version(ResourceVersion),
    /// A deletion without a version: the cache contains it once no object has this UID.
    Gone(String),
}

impl TrackedWrite {
    pub(crate) fn version(
        resource: Arc<ResourceType>,
        key: Key,
        version: ResourceVersion,
    ) -> TrackedWrite {
        TrackedWrite { resource, key, effect: WriteEffect::Version(version) }
    }

    pub(crate) fn gone(resource: Arc<ResourceType>, key: Key, uid: &str) -> TrackedWrite {
        TrackedWrite { resource, key, effect: WriteEffect::Gone(uid.to_owned()) }
    }
}

/// The writes of one key. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Tracker {
    writes: Arc<Mutex<Vec<TrackedWrite>>>,
}

impl Tracker {
    fn lock(&self) -> MutexGuard<'_, Vec<TrackedWrite>> {
        self.writes.lock().expect("no code panics while it is held")
    }

    /// Adds a write; it replaces an older write of the same object.
    pub(crate) fn remember(&self, write: TrackedWrite) {
        let mut writes = self.lock();
        writes.retain(|known| known.resource != write.resource || known.key != write.key);
        writes.push(write);
    }

    pub(crate) fn pending(&self) -> Vec<TrackedWrite> {
        self.lock().clone()
    }

    /// Removes writes that the caches contain.
    pub(crate) fn forget(&self, seen: &[TrackedWrite]) {
        self.lock().retain(|write| !seen.contains(write));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }
}

impl fmt::Debug for Tracker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tracker({} writes)", self.lock().len())
    }
}

/// The caches of a controller, by resource.
#[derive(Clone, Default)]
pub(crate) struct Caches {
    by_resource: BTreeMap<(String, String), Arc<dyn AnyCache>>,
}

/// A cache of any type.
trait AnyCache: Send + Sync {
    fn seen<'a>(
        &'a self,
        key: &'a Key,
        effect: &'a WriteEffect,
        deadline: Duration,
    ) -> BoxFuture<'a, Result<(), Error>>;
}

impl<K: Cached> AnyCache for Informer<K> {
    fn seen<'a>(
        &'a self,
        key: &'a Key,
        effect: &'a WriteEffect,
        deadline: Duration,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            match effect {
                WriteEffect::Version(version) => {
                    self.store().wait_for_rv(key.namespace(), version, deadline).await
                }
                WriteEffect::Gone(uid) => {
                    let gone = |object: Option<&K>| object.is_none_or(|object| object.uid() != uid);
                    self.wait_for(key, gone, deadline).await.map(drop)
                }
            }
        })
    }
}

/// The result of waiting for the caches.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CatchUp {
    /// Whether the caches contain all writes.
    pub(crate) up: bool,
    /// Writes that were not waited for because their version cannot be ordered.
    pub(crate) unordered: usize,
}

impl Caches {
    pub(crate) fn add<K: Cached>(&mut self, informer: &Informer<K>) {
        let resource = informer.resource();
        let id = (resource.group.clone(), resource.plural.clone());
        self.by_resource.insert(id, Arc::new(informer.clone()));
    }

    fn of(&self, resource: &ResourceType) -> Option<&Arc<dyn AnyCache>> {
        self.by_resource.get(&(resource.group.clone(), resource.plural.clone()))
    }

    /// Waits until the caches contain the writes of a tracker, and removes these writes from it.
    pub(crate) async fn catch_up(&self, tracker: &Tracker, deadline: Duration) -> CatchUp {
        let end = Instant::now() + deadline;
        let mut caught = CatchUp { up: true, unordered: 0 };
        let mut seen = Vec::new();
        for write in tracker.pending() {
            let left = end.saturating_duration_since(Instant::now());
            let result = match self.of(&write.resource) {
                Some(cache) => cache.seen(&write.key, &write.effect, left).await,
                None => Ok(()), // the controller does not read that resource
            };
            match result {
                Ok(()) | Err(Error::EpochChanged(_)) => seen.push(write),
                Err(Error::BadVersion(_)) => {
                    caught.unordered += 1;
                    seen.push(write);
                }
                Err(_) => caught.up = false,
            }
        }
        tracker.forget(&seen);
        caught
    }
}

impl fmt::Debug for Caches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.by_resource.keys()).finish()
    }
}
