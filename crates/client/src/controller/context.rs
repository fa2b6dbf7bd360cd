//! The context of a reconcile: caches to read, calls to write, events to record.
//!
//! River: worker → **context** → reconciler.

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kube::Resource;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::calls::{Calls, Collection};
use crate::error::Error;
use crate::informer::Informer;
use crate::key::Key;
use crate::lister::Lister;
use crate::object::Cached;
use crate::recorder::{EventType, Recorder};
use crate::track::Caches;

/// What a reconciler reads and writes with. Cheap to clone.
///
/// It remembers all writes made through it, so that the next reconcile of the same key sees them.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

/// The fields of a context.
pub(super) struct Inner {
    pub(super) controller: Arc<str>,
    pub(super) key: Key,
    pub(super) calls: Calls,
    pub(super) listers: Arc<Listers>,
    pub(super) caches: Caches,
    pub(super) patience: Duration,
    pub(super) recorder: Recorder,
    pub(super) cancelled: CancellationToken,
}

impl Context {
    pub(super) fn new(inner: Inner) -> Context {
        Context { inner: Arc::new(inner) }
    }

    /// The name of the controller.
    pub fn controller(&self) -> &str {
        &self.inner.controller
    }

    /// The key that is being reconciled.
    pub fn key(&self) -> &Key {
        &self.inner.key
    }

    /// The lister of one of the controller's informers.
    ///
    /// # Errors
    /// [`Error::NoInformer`] if the controller has no informer of that type.
    pub fn lister<K: Cached>(&self) -> Result<Lister<K>, Error> {
        self.inner.listers.get()
    }

    /// Reads and writes objects; writes are remembered for this key.
    pub fn calls(&self) -> &Calls {
        &self.inner.calls
    }

    /// Reads and writes objects of one type; writes are remembered for this key.
    pub fn of<K>(&self) -> Collection<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
    {
        self.inner.calls.of()
    }

    /// Server-side apply; see [`Collection::apply`].
    ///
    /// # Errors
    /// The call failed or was refused.
    pub async fn apply<K>(&self, wanted: &K, manager: &str) -> Result<K, Error>
    where
        K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        self.of::<K>().apply(wanted, manager).await
    }

    /// An object that is at least as new as the writes of this key: from the cache if it contains
    /// them in time, else from the server.
    ///
    /// # Errors
    /// [`Error::NoInformer`] without an informer of that type; otherwise the call failed.
    pub async fn read<K>(&self, key: &Key) -> Result<Option<Arc<K>>, Error>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
    {
        let lister = self.lister::<K>()?;
        let caught = match self.inner.calls.tracker() {
            Some(tracker) => self.inner.caches.catch_up(tracker, self.inner.patience).await,
            None => return lister.get_key(key),
        };
        if caught.up && caught.unordered == 0 {
            return lister.get_key(key);
        }
        Ok(self.of::<K>().get(key).await?.map(Arc::new))
    }

    /// Cancelled at stop, after a timeout and when leadership is lost; the reconcile is dropped
    /// soon after.
    pub fn cancelled(&self) -> &CancellationToken {
        &self.inner.cancelled
    }

    /// Records a normal event about an object of one of the controller's informers. Never waits
    /// and never fails; the message is formatted only if the event queue has room.
    ///
    /// The event is written in the background under the controller's name, or as set with
    /// [`Manager::events`](crate::Manager::events).
    pub fn normal<K: Cached>(&self, about: &K, reason: &str, message: impl fmt::Display) {
        self.event(about, EventType::Normal, reason, &message);
    }

    /// Records a warning about an object; as [`Context::normal`].
    pub fn warning<K: Cached>(&self, about: &K, reason: &str, message: impl fmt::Display) {
        self.event(about, EventType::Warning, reason, &message);
    }

    fn event<K: Cached>(
        &self,
        about: &K,
        event: EventType,
        reason: &str,
        message: &dyn fmt::Display,
    ) {
        let Some(resource) = self.inner.listers.resource::<K>() else {
            let (controller, kind) = (self.controller(), type_name::<K>());
            tracing::warn!(controller, kind, reason, "event lost: no informer of that type");
            return;
        };
        self.inner.recorder.record_about(resource, about, event, reason, message);
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({}, {})", self.inner.controller, self.inner.key)
    }
}

/// The informers of a controller, by the type of their objects.
#[derive(Default)]
pub(super) struct Listers {
    by_type: HashMap<TypeId, (Arc<dyn Any + Send + Sync>, crate::object::ResourceType)>,
}

impl Listers {
    pub(super) fn add<K: Cached>(&mut self, informer: &Informer<K>) {
        let entry: Arc<dyn Any + Send + Sync> = Arc::new(informer.clone());
        self.by_type.entry(TypeId::of::<K>()).or_insert((entry, informer.resource().clone()));
    }

    fn get<K: Cached>(&self) -> Result<Lister<K>, Error> {
        let found = self.by_type.get(&TypeId::of::<K>());
        let informer = found.and_then(|(entry, _)| entry.downcast_ref::<Informer<K>>());
        informer.map(Informer::lister).ok_or_else(|| Error::NoInformer(type_name::<K>().to_owned()))
    }

    fn resource<K: Cached>(&self) -> Option<&crate::object::ResourceType> {
        self.by_type.get(&TypeId::of::<K>()).map(|(_, resource)| resource)
    }
}
