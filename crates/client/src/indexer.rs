//! The store of an informer: objects by key and by index.
//!
//! River: delta queue → **store** → listers, handlers.
//! Promise: one writer publishes complete states; readers never wait, and a snapshot shows objects,
//! indexes and version of one state. Objects are shared, not copied, and only the informer changes
//! the store.

pub(crate) mod index;
pub(crate) mod writer;

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::Hash;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use imbl::OrdMap;
use tokio::sync::Notify;

use crate::error::Error;
use crate::key::Key;
use crate::object::Cached;
use crate::version::ResourceVersion;

use self::index::AnyIndex;
pub use self::index::Index;
use self::index::Lookup;
use self::writer::LaneScope;

/// One complete state of a store.
pub(crate) struct StoreState<K> {
    pub(crate) objects: OrdMap<Key, Arc<K>>,
    pub(crate) indexes: Vec<Arc<dyn AnyIndex<K>>>,
    pub(crate) version: Option<ResourceVersion>,
    /// The version of each namespace, if each has its own watch.
    pub(crate) by_namespace: Option<Arc<BTreeMap<LaneScope, Option<ResourceVersion>>>>,
    pub(crate) epoch: u64,
}

impl<K> Clone for StoreState<K> {
    fn clone(&self) -> StoreState<K> {
        StoreState {
            objects: self.objects.clone(),
            indexes: self.indexes.clone(),
            version: self.version.clone(),
            by_namespace: self.by_namespace.clone(),
            epoch: self.epoch,
        }
    }
}

impl<K> StoreState<K> {
    fn empty() -> StoreState<K> {
        StoreState {
            objects: OrdMap::new(),
            indexes: Vec::new(),
            version: None,
            by_namespace: None,
            epoch: 0,
        }
    }

    /// The version of a namespace.
    fn version_in(&self, namespace: Option<&str>) -> Option<&ResourceVersion> {
        match (&self.by_namespace, namespace) {
            (Some(each), Some(namespace)) => {
                each.get(&LaneScope::Namespace(namespace.into()))?.as_ref()
            }
            _ => self.version.as_ref(),
        }
    }

    /// The objects of one namespace, which are adjacent.
    pub(crate) fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = (&Key, &Arc<K>)> {
        // '0' follows '/' in ASCII, so this is every key that starts with "namespace/".
        let (from, to) = (format!("{namespace}/"), format!("{namespace}0"));
        self.objects.range::<_, str>((Bound::Included(from.as_str()), Bound::Excluded(to.as_str())))
    }
}

/// Reads the store of an informer. Cheap to clone.
pub(crate) struct Store<K> {
    shared: Arc<StoreInner<K>>,
}

struct StoreInner<K> {
    state: ArcSwap<StoreState<K>>,
    /// A new state was published, or the informer has stopped.
    changed: Notify,
    stopped: AtomicBool,
}

impl<K: Cached> Store<K> {
    pub(crate) fn new() -> Store<K> {
        Store {
            shared: Arc::new(StoreInner {
                state: ArcSwap::from_pointee(StoreState::empty()),
                changed: Notify::new(),
                stopped: AtomicBool::new(false),
            }),
        }
    }

    fn publish(&self, state: StoreState<K>) {
        self.shared.state.store(Arc::new(state));
        self.shared.changed.notify_waiters();
    }

    pub(crate) fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Release);
        self.shared.changed.notify_waiters();
    }

    pub(crate) fn snapshot(&self) -> Snapshot<K> {
        Snapshot { state: self.shared.state.load_full() }
    }

    /// One object.
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.shared.state.load().objects.get(key).cloned()
    }

    fn epoch(&self) -> u64 {
        self.shared.state.load().epoch
    }

    /// Waits until the store has reached a version, in a namespace or in all; see
    /// [`Informer::wait_for_rv`](crate::informer::Informer::wait_for_rv).
    pub(crate) async fn wait_for_rv(
        &self,
        namespace: Option<&str>,
        version: &ResourceVersion,
        deadline: Duration,
    ) -> Result<(), Error> {
        if !version.is_well_formed() {
            return Err(Error::BadVersion(version.clone()));
        }
        let epoch = self.epoch();
        let reached = self.wait_until(|state| {
            if state.epoch != epoch {
                return Some(Err(Error::EpochChanged(version.clone())));
            }
            let seen = state.version_in(namespace)?;
            // If the store's own version cannot be ordered, this waits until the deadline.
            (seen.compare(version)?.is_ge()).then_some(Ok(()))
        });
        match tokio::time::timeout(deadline, reached).await {
            Ok(result) => result?,
            Err(_) => {
                let what = format!("reaching resourceVersion {version}");
                Err(Error::Timeout { what, after: deadline })
            }
        }
    }

    /// Waits until `check` returns a value; fails if the informer stops first. Cancel-safe.
    pub(crate) async fn wait_until<T>(
        &self,
        mut check: impl FnMut(&StoreState<K>) -> Option<T>,
    ) -> Result<T, Error> {
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(found) = check(&self.shared.state.load()) {
                return Ok(found);
            }
            if self.shared.stopped.load(Ordering::Acquire) {
                return Err(Error::Stopped("the informer".to_owned()));
            }
            changed.await;
        }
    }
}

impl<K> Clone for Store<K> {
    fn clone(&self) -> Store<K> {
        Store { shared: Arc::clone(&self.shared) }
    }
}

impl<K> fmt::Debug for Store<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.state.load();
        write!(f, "Store({} objects @{:?})", state.objects.len(), state.version)
    }
}

/// One state of a store: all reads return the same objects, indexes and version.
pub struct Snapshot<K> {
    pub(crate) state: Arc<StoreState<K>>,
}

impl<K: Cached> Snapshot<K> {
    /// One object.
    pub fn get(&self, key: &Key) -> Option<&Arc<K>> {
        self.state.objects.get(key)
    }

    /// All objects, ordered by key.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.state.objects.values().cloned().collect()
    }

    /// All keys, in order.
    pub fn keys(&self) -> Vec<Key> {
        self.state.objects.keys().cloned().collect()
    }

    /// Iterates over all objects, ordered by key.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Arc<K>)> {
        self.state.objects.iter()
    }

    /// The objects of one namespace, ordered by key.
    pub fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = (&Key, &Arc<K>)> {
        self.state.in_namespace(namespace)
    }

    /// The number of objects.
    pub fn len(&self) -> usize {
        self.state.objects.len()
    }

    /// Whether it has no objects.
    pub fn is_empty(&self) -> bool {
        self.state.objects.is_empty()
    }

    /// The version of this state.
    pub fn resource_version(&self) -> Option<&ResourceVersion> {
        self.state.version.as_ref()
    }

    /// Increases when the server's versions go backwards.
    pub fn epoch(&self) -> u64 {
        self.state.epoch
    }

    /// The objects that have `value` in an index, ordered by key.
    pub fn by<V, Q>(&self, index: &Index<K, V>, value: &Q) -> Vec<Arc<K>>
    where
        V: Hash + Eq + Clone + Send + Sync + Borrow<Q> + 'static,
        Q: Hash + Eq + ?Sized,
    {
        index.objects_in(&self.state, value)
    }

    /// The objects that satisfy all lookups, ordered by key. It starts with the smallest bucket.
    pub fn by_all<'a>(&self, lookups: impl IntoIterator<Item = &'a Lookup<K>>) -> Vec<Arc<K>> {
        let mut buckets: Vec<BTreeSet<&Key>> = Vec::new();
        for lookup in lookups {
            match lookup.keys_in(&self.state) {
                Some(keys) => buckets.push(keys),
                None => return Vec::new(),
            }
        }
        buckets.sort_by_key(BTreeSet::len);
        let Some((smallest, others)) = buckets.split_first() else { return self.list() };
        smallest
            .iter()
            .filter(|key| others.iter().all(|bucket| bucket.contains(*key)))
            .filter_map(|key| self.state.objects.get(*key).cloned())
            .collect()
    }
}

/// The name of the order by namespace, which every store has.
const NAMESPACE_INDEX: &str = "namespace";

impl<K> Clone for Snapshot<K> {
    fn clone(&self) -> Snapshot<K> {
        Snapshot { state: Arc::clone(&self.state) }
    }
}

impl<K> fmt::Debug for Snapshot<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot({} objects @{:?})", self.state.objects.len(), self.state.version)
    }
}
