//! The lister: reads the objects of an informer's store.
//!
//! River: store → **lister** → reconcilers.
//! Promise: it never calls the server and never starts an informer; it returns an error until the
//! initial state is complete; lists are ordered by key.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::indexer::Snapshot;
use crate::informer::Informer;
use crate::key::Key;
use crate::object::Cached;
use crate::selector::Selector;
use crate::version::ResourceVersion;

/// Reads the objects of one informer. Cheap to clone.
///
/// ```no_run
/// # use headwater_client::{Error, Selector, informer::Informer};
/// # use k8s_openapi::api::core::v1::Pod;
/// # fn example(pods: &Informer<Pod>) -> Result<(), Error> {
/// let lister = pods.lister();
/// let one = lister.get("shop", "web-0")?; // Option<Arc<Pod>>
/// let web = lister.in_namespace("shop").list(&"tier=web".parse()?)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Lister<K: Cached> {
    informer: Informer<K>,
    allow_unsynced: bool,
}

impl<K: Cached> Informer<K> {
    /// A lister, which reads from the store of this informer.
    pub fn lister(&self) -> Lister<K> {
        Lister { informer: self.clone(), allow_unsynced: false }
    }
}

impl<K: Cached> Lister<K> {
    /// The same lister, but it also reads before the initial state is complete.
    #[must_use]
    pub fn allow_unsynced(mut self) -> Lister<K> {
        self.allow_unsynced = true;
        self
    }

    fn snapshot(&self) -> Result<Snapshot<K>, Error> {
        if self.allow_unsynced || self.informer.has_synced() {
            return Ok(self.informer.snapshot());
        }
        let informer = self.informer.name().to_owned();
        Err(Error::NotSynced { informer, health: self.informer.health() })
    }

    /// An object of a namespace; with an empty namespace, a cluster-scoped object.
    ///
    /// # Errors
    /// [`Error::NotSynced`] before the initial state is complete.
    pub fn get(&self, namespace: &str, name: &str) -> Result<Option<Arc<K>>, Error> {
        self.get_key(&Key::namespaced(namespace, name))
    }

    /// A cluster-scoped object.
    ///
    /// # Errors
    /// [`Error::NotSynced`] before the initial state is complete.
    pub fn get_cluster(&self, name: &str) -> Result<Option<Arc<K>>, Error> {
        self.get_key(&Key::cluster(name))
    }

    /// The object of a key.
    ///
    /// # Errors
    /// [`Error::NotSynced`] before the initial state is complete.
    pub fn get_key(&self, key: &Key) -> Result<Option<Arc<K>>, Error> {
        Ok(self.snapshot()?.get(key).cloned())
    }

    /// The object of a key; an error if it does not exist.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::NotSynced`] before the initial state is complete.
    pub fn get_required(&self, key: &Key) -> Result<Arc<K>, Error> {
        self.get_key(key)?.ok_or_else(|| Error::NotFound {
            resource: self.informer.resource().resource(),
            key: key.clone(),
        })
    }

    /// All objects that match, ordered by key.
    ///
    /// # Errors
    /// [`Error::NotSynced`] before the initial state is complete.
    pub fn list(&self, selector: &Selector) -> Result<Vec<Arc<K>>, Error> {
        let snapshot = self.snapshot()?;
        if selector.is_nothing() {
            return Ok(Vec::new());
        }
        let objects = snapshot.iter().map(|(_, object)| object);
        Ok(objects.filter(|object| selector.matches(&***object)).cloned().collect())
    }

    /// All objects, ordered by key.
    ///
    /// # Errors
    /// [`Error::NotSynced`] before the initial state is complete.
    pub fn all(&self) -> Result<Vec<Arc<K>>, Error> {
        self.list(&Selector::everything())
    }

    /// Iterates over the objects of one state, ordered by key.
    ///
    /// # Errors
    /// [`Error::NotSynced`] before the initial state is complete.
    pub fn iter(&self) -> Result<impl Iterator<Item = Arc<K>> + use<K>, Error> {
        let snapshot = self.snapshot()?;
        let mut last: Option<Key> = None;
        Ok(std::iter::from_fn(move || {
            use std::ops::Bound::{Excluded, Unbounded};
            let from = last.as_ref().map_or(Unbounded, |key| Excluded(key.as_str()));
            let next = snapshot.state.objects.range::<_, str>((from, Unbounded)).next();
            let (key, object) = next.map(|(key, object)| (key.clone(), Arc::clone(object)))?;
            last = Some(key);
            Some(object)
        }))
    }

    /// The lister of one namespace.
    pub fn in_namespace(&self, namespace: &str) -> NamespaceLister<'_, K> {
        NamespaceLister { lister: self, namespace: namespace.to_owned() }
    }

    /// Waits until the store has reached a version, to read one's own write. Cancel-safe.
    ///
    /// # Errors
    /// As [`Informer::wait_for_rv`].
    pub async fn at_least(
        &self,
        version: &ResourceVersion,
        deadline: Duration,
    ) -> Result<Lister<K>, Error> {
        self.informer.wait_for_rv(version, deadline).await?;
        Ok(self.clone())
    }
}

impl<K: Cached> Clone for Lister<K> {
    fn clone(&self) -> Lister<K> {
        Lister { informer: self.informer.clone(), allow_unsynced: self.allow_unsynced }
    }
}

/// Reads the objects of one namespace.
#[derive(Debug)]
pub struct NamespaceLister<'a, K: Cached> {
    lister: &'a Lister<K>,
    namespace: String,
}

impl<K: Cached> NamespaceLister<'_, K> {
    /// An object of the namespace.
    ///
    /// # Errors
    /// [`Error::NotSynced`] before the initial state is complete.
    pub fn get(&self, name: &str) -> Result<Option<Arc<K>>, Error> {
        self.lister.get(&self.namespace, name)
    }

    /// The objects of the namespace that match, ordered by key.
    ///
    /// # Errors
    /// [`Error::NotSynced`] before the initial state is complete.
    pub fn list(&self, selector: &Selector) -> Result<Vec<Arc<K>>, Error> {
        let snapshot = self.lister.snapshot()?;
        if selector.is_nothing() {
            return Ok(Vec::new());
        }
        let objects = snapshot.in_namespace(&self.namespace).map(|(_, object)| object);
        Ok(objects.filter(|object| selector.matches(&***object)).cloned().collect())
    }
}
