//! The shared informer: one watch, one store, any number of subscribers.
//!
//! River: reflector → delta queue → store → **informer** → subscribers.
//! Promise: store and indexes contain a change before subscribers receive it; no subscriber delays
//! another or the store; a late subscriber receives all current objects first, without gaps or
//! duplicates; after `run` has returned, no task of the informer is running.

mod options;
pub(crate) mod shared;
mod lanes;
mod resync;
mod join;
pub(crate) mod subscriber;
pub(crate) mod buffer;
pub(crate) mod run;
#[cfg(test)]
mod tests;

use std::fmt;
use std::hash::Hash;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::error::Error;
use crate::indexer::index::ValueIndex;
use crate::indexer::{Index, Snapshot, Store};
use crate::key::Key;
use crate::object::{Cached, ResourceType};
use crate::version::ResourceVersion;

pub use self::buffer::Buffer;
pub(crate) use self::lanes::LaneHost;
pub use self::options::{InitialRead, Options};
pub(crate) use self::run::Runner;
use self::shared::RunPhase;
pub(crate) use self::shared::{HandleToken, InformerInner, Sources};
pub use self::subscriber::{Handler, Subscribe, Subscription};
pub use crate::backoff::Delays;
pub use crate::health::Health;
pub use crate::list_watch::Undecodable;
pub use crate::query::Selection;
pub use crate::reflector::machine::NotServed;

/// A handle to an informer: reads its store, adds indexes and subscribers. Cheap to clone.
///
/// A handle runs nothing: the factory does.
///
/// ```no_run
/// # use headwater_client::{Factory, informer::{Informer, Subscribe}, Change};
/// # use k8s_openapi::api::core::v1::Pod;
/// # async fn example(pods: Informer<Pod>) -> Result<(), headwater_client::Error> {
/// let by_node = pods.index("node", |pod: &Pod| pod.spec.as_ref()?.node_name.clone())?;
/// let mut changes = pods.subscribe(Subscribe::named("audit"))?;
/// while let Some(change) = changes.next().await {
///     match change {
///         Change::Added { object, initial } => { /* … */ }
///         Change::Updated { old, new } => { /* … */ }
///         Change::Deleted(gone) => println!("{} was deleted", gone.key()),
///         Change::Synced => println!("{} pods on node-7", by_node.get("node-7").len()),
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub struct Informer<K: Cached> {
    pub(crate) shared: Arc<InformerInner<K>>,
    pub(crate) alive: Arc<HandleToken>,
}

/// Makes an informer over a source: the handle and the runner.
#[cfg(any(test, feature = "testing"))]
pub fn from_source<K: Cached>(
    source: Arc<dyn crate::list_watch::ListWatch<Object = K>>,
    options: Options,
) -> (Informer<K>, Runner<K>) {
    let (informer, runner, _) =
        open(vec![(crate::indexer::writer::LaneScope::All, source)], options);
    (informer, runner)
}

/// Makes an informer; the third value is notified when the last handle is dropped.
pub(crate) fn open<K: Cached>(
    sources: Sources<K>,
    options: Options,
) -> (Informer<K>, Runner<K>, Arc<Notify>) {
    let gone = Arc::new(Notify::new());
    let shared = InformerInner::new(options);
    let alive = Arc::new(HandleToken::new(&gone));
    let runner = Runner::new(Arc::clone(&shared), sources);
    (Informer { shared, alive }, runner, gone)
}

impl<K: Cached> Informer<K> {
    /// Its name in logs, metrics and errors.
    pub fn name(&self) -> &str {
        &self.shared.options.name
    }

    /// The resource type of its objects.
    pub fn resource(&self) -> &ResourceType {
        &self.shared.options.resource
    }

    pub(crate) fn store(&self) -> &Store<K> {
        &self.shared.store
    }

    /// The current state, for any number of reads. It can be read before the informer has synced.
    /// Its cost does not depend on the number of objects.
    pub fn snapshot(&self) -> Snapshot<K> {
        self.shared.store.snapshot()
    }

    /// Adds an index: `values` returns any number of values for an object. Existing objects are
    /// indexed before this returns. Objects for which it panics are logged and are not in the index.
    /// The same function under the same name returns the existing index, unless it captures values.
    ///
    /// # Errors
    /// [`Error::IndexExists`] for a name that another function uses, [`Error::Stopped`] on a stopped
    /// informer.
    pub fn index<V, I>(
        &self,
        name: &str,
        values: impl Fn(&K) -> I + Send + Sync + 'static,
    ) -> Result<Index<K, V>, Error>
    where
        V: Hash + Eq + Clone + Send + Sync + 'static,
        I: IntoIterator<Item = V>,
    {
        let index = ValueIndex::new(name, values);
        let mut core = self.shared.core();
        if core.phase == RunPhase::Stopped {
            return Err(self.stopped_error());
        }
        let mut failures = Vec::new();
        let slot = core.writer.add_index(&index, &mut failures);
        drop(core);
        self.shared.report_index_failures(&failures);
        match slot {
            Some(slot) => Ok(Index::new(self.store().clone(), self.alive.clone(), slot)),
            None => Err(Error::IndexExists(name.to_owned())),
        }
    }

    fn stopped_error(&self) -> Error {
        Error::Stopped(format!("informer {:?}", self.name()))
    }

    /// Whether the initial state has been applied to the store. Subscribers may not have received
    /// it yet.
    pub fn has_synced(&self) -> bool {
        self.shared.has_synced()
    }

    /// Waits until the initial state has been applied to the store. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::NotSynced`] if the informer stops first.
    pub async fn synced(&self) -> Result<(), Error> {
        self.shared.synced_unless(Health::is_over).await
    }

    /// As [`Informer::synced`], but fails at once if the server denies access or does not serve the
    /// resource type. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::NotSynced`].
    pub async fn synced_or_hopeless(&self) -> Result<(), Error> {
        self.shared.synced_unless(Health::is_hopeless).await
    }

    /// The current health.
    pub fn health(&self) -> Health {
        self.shared.health_now()
    }

    /// Waits until the informer has stopped. Cancel-safe.
    pub async fn stopped(&self) {
        self.shared.health.subscribe().wait_for(Health::is_over).await.ok();
    }

    /// The time since the last event or bookmark arrived; `None` before the first.
    pub fn freshness(&self) -> Option<Duration> {
        let last = *self.shared.last_frame.lock().expect("no code panics while it is held");
        last.map(|at| at.elapsed())
    }

    /// Objects on the server that could not be decoded.
    pub fn undecodable(&self) -> Vec<Undecodable> {
        self.shared.core().writer.undecodable().cloned().collect()
    }

    /// The version that the reflector has received; that of a snapshot may be older.
    pub fn last_rv(&self) -> Option<ResourceVersion> {
        let versions = self.shared.last_versions.lock().expect("no code panics while it is held");
        versions.values().next().cloned()
    }

    /// Waits until the store has reached a version, so that it contains a write. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::BadVersion`] for a version that cannot be ordered, [`Error::Timeout`] after
    /// `deadline`, [`Error::Stopped`] when the informer ends, [`Error::EpochChanged`] when the
    /// server's versions went backwards meanwhile.
    pub async fn wait_for_rv(
        &self,
        version: &ResourceVersion,
        deadline: Duration,
    ) -> Result<(), Error> {
        self.shared.store.wait_for_rv(None, version, deadline).await
    }

    /// Waits until the object of a key satisfies `check`, which receives `None` while the object
    /// does not exist. The current object is checked first, and no later change is missed. Changes
    /// in quick succession may be seen as one. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::Timeout`] after `deadline`, [`Error::Stopped`] when the informer ends.
    pub async fn wait_for(
        &self,
        key: &Key,
        mut check: impl FnMut(Option<&K>) -> bool,
        deadline: Duration,
    ) -> Result<Option<Arc<K>>, Error> {
        let found = self.shared.store.wait_until(|state| {
            let object = state.objects.get(key);
            check(object.map(|object| &**object)).then(|| object.cloned())
        });
        match tokio::time::timeout(deadline, pin!(found)).await {
            Ok(found) => found,
            Err(_) => Err(Error::Timeout { what: format!("waiting for {key}"), after: deadline }),
        }
    }

    /// Its state as JSON, for debugging.
    pub fn debug_dump(&self) -> serde_json::Value {
        self.shared.debug_dump()
    }
}

impl<K: Cached> Clone for Informer<K> {
    fn clone(&self) -> Informer<K> {
        Informer { shared: Arc::clone(&self.shared), alive: Arc::clone(&self.alive) }
    }
}

impl<K: Cached> fmt::Debug for Informer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Informer({}, {:?})", self.name(), self.shared.store)
    }
}
