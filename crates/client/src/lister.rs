//! The lister: reads the objects of an informer's store.
//!
//! River: store → **lister** → reconcilers.
//! Promise: it never calls the server and never starts an informer; it returns an error until the
//! initial state is complete; lists are ordered by key.

use std::sync::Arc;

use crate::error::Error;
use crate::indexer::Snapshot;
use crate::informer::Informer;
use crate::key::Key;
use crate::object::Cached;
use crate::selector::Selector;

/// Reads the objects of one informer. Cheap to clone.
///
/// ```no_run
/// # use headwater_client::{Error, Selector, informer::Informer};
/// # use k8s_openapi::api::core::v1::Pod;
/// # fn example(pods: &Informer<Pod>) -> Result<(), Error> {
/// let lister = pods.lister();
/// let one = lister.get("shop", "web-0")?; // Option<Arc<Pod>>
/// let web = lister.list_in("shop", &"tier=web".parse()?)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Lister<K: Cached> {
    informer: Informer<K>,
}

impl<K: Cached> Informer<K> {
    /// A lister, which reads from the store of this informer.
    pub fn lister(&self) -> Lister<K> {
        Lister { informer: self.clone() }
    }
}

impl<K: Cached> Lister<K> {
    fn snapshot(&self) -> Result<Snapshot<K>, Error> {
        if self.informer.has_synced() {
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

    /// The object of a key.
    ///
    /// # Errors
    /// [`Error::NotSynced`] before the initial state is complete.
    pub fn get_key(&self, key: &Key) -> Result<Option<Arc<K>>, Error> {
        Ok(self.snapshot()?.get(key).cloned())
    }

    /// All objects that match, ordered by key.
    ///
    /// # Errors
    /// [`Error::NotSynced`] before the initial state is complete.
    pub fn list(&self, selector: &Selector) -> Result<Vec<Arc<K>>, Error> {
        Ok(matching(self.snapshot()?.iter(), selector))
    }

    /// The objects of a namespace that match, ordered by key.
    ///
    /// # Errors
    /// [`Error::NotSynced`] before the initial state is complete.
    pub fn list_in(&self, namespace: &str, selector: &Selector) -> Result<Vec<Arc<K>>, Error> {
        Ok(matching(self.snapshot()?.in_namespace(namespace), selector))
    }
}

fn matching<'a, K: Cached>(
    objects: impl Iterator<Item = (&'a Key, &'a Arc<K>)>,
    selector: &Selector,
) -> Vec<Arc<K>> {
    if selector.is_nothing() {
        return Vec::new();
    }
    let objects = objects.map(|(_, object)| object);
    objects.filter(|object| selector.matches(&***object)).cloned().collect()
}

impl<K: Cached> Clone for Lister<K> {
    fn clone(&self) -> Lister<K> {
        Lister { informer: self.informer.clone() }
    }
}
