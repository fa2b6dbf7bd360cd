//! Changes of objects, as subscribers receive them.
//!
//! River: store → **changes** → subscribers.

use std::fmt;
use std::sync::Arc;

use crate::key::Key;
use crate::list_watch::Undecodable;
use crate::object::Cached;
use crate::version::ResourceVersion;

/// A change that a subscriber receives. Cloning it does not clone the objects.
pub enum Change<K> {
    /// An object is new to the subscriber.
    Added {
        /// The object.
        object: Arc<K>,
        /// Whether it existed when the subscriber joined.
        initial: bool,
    },
    /// An object changed. In a resync, old and new are the same.
    Updated {
        /// The state before.
        old: Arc<K>,
        /// The state now.
        new: Arc<K>,
    },
    /// An object was deleted.
    Deleted(Gone<K>),
    /// All initial objects were delivered. Only streams receive this.
    Synced,
}

/// A deleted object.
pub struct Gone<K: ?Sized> {
    key: Key,
    last: Option<Arc<K>>,
    observed: bool,
    cause: Option<Arc<Undecodable>>,
}

impl<K: ?Sized> Gone<K> {
    /// A deletion that a watch reported; `last` is the object of the event.
    pub(crate) fn seen(key: Key, last: Arc<K>) -> Gone<K> {
        Gone { key, last: Some(last), observed: true, cause: None }
    }

    /// A deletion that was inferred; `last` may be out of date.
    pub(crate) fn inferred(key: Key, last: Option<Arc<K>>) -> Gone<K> {
        Gone { key, last, observed: false, cause: None }
    }

    /// An object that was removed from the store because its new state cannot be decoded.
    pub(crate) fn undecodable(cause: Undecodable) -> Gone<K> {
        let key = cause.key.clone();
        Gone { key, last: None, observed: false, cause: Some(Arc::new(cause)) }
    }

    /// The same with another type of object.
    pub(crate) fn map<T>(self, map: impl FnOnce(Arc<K>) -> Arc<T>) -> Gone<T> {
        let Gone { key, last, observed, cause } = self;
        Gone { key, last: last.map(map), observed, cause }
    }

    pub(crate) fn cause(&self) -> Option<&Arc<Undecodable>> {
        self.cause.as_ref()
    }

    pub(crate) fn with_last(mut self, last: Option<Arc<K>>) -> Gone<K> {
        self.last = last;
        self
    }

    /// The key of the object.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The last known state; it may be out of date if the deletion was not observed.
    pub fn last(&self) -> Option<&Arc<K>> {
        self.last.as_ref()
    }

    /// Whether a watch reported the deletion; otherwise it was inferred from a list.
    pub fn observed(&self) -> bool {
        self.observed
    }
}

impl<K: Cached> Gone<K> {
    pub(crate) fn version(&self) -> Option<ResourceVersion> {
        match (&self.cause, &self.last) {
            (Some(cause), _) => Some(cause.resource_version.clone()),
            (None, Some(last)) if self.observed => Some(last.resource_version()),
            _ => None,
        }
        .filter(|version| !version.is_empty())
    }
}

impl<K: Cached> Change<K> {
    /// The key of the object; `None` for [`Change::Synced`].
    pub fn key(&self) -> Option<Key> {
        match self {
            Change::Added { object, .. } => Some(object.key()),
            Change::Updated { new, .. } => Some(new.key()),
            Change::Deleted(gone) => Some(gone.key().clone()),
            Change::Synced => None,
        }
    }

    /// The object after the change; for a deletion, its last known state.
    pub fn object(&self) -> Option<&Arc<K>> {
        match self {
            Change::Added { object, .. } => Some(object),
            Change::Updated { new, .. } => Some(new),
            Change::Deleted(gone) => gone.last(),
            Change::Synced => None,
        }
    }
}

impl<K> Clone for Gone<K> {
    fn clone(&self) -> Gone<K> {
        Gone {
            key: self.key.clone(),
            last: self.last.clone(),
            observed: self.observed,
            cause: self.cause.clone(),
        }
    }
}

impl<K> Clone for Change<K> {
    fn clone(&self) -> Change<K> {
        match self {
            Change::Added { object, initial } => {
                Change::Added { object: Arc::clone(object), initial: *initial }
            }
            Change::Updated { old, new } => {
                Change::Updated { old: Arc::clone(old), new: Arc::clone(new) }
            }
            Change::Deleted(gone) => Change::Deleted(gone.clone()),
            Change::Synced => Change::Synced,
        }
    }
}

impl<K> fmt::Debug for Gone<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gone({}, observed: {})", self.key, self.observed)
    }
}

impl<K: Cached> fmt::Debug for Change<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |object: &K| format!("{}@{}", object.key(), object.resource_version());
        match self {
            Change::Added { object, initial: false } => write!(f, "Added({})", at(object)),
            Change::Added { object, initial: true } => write!(f, "Initial({})", at(object)),
            Change::Updated { old, new } => {
                write!(f, "Updated({} from {})", at(new), old.resource_version())
            }
            Change::Deleted(gone) => gone.fmt(f),
            Change::Synced => f.write_str("Synced"),
        }
    }
}
