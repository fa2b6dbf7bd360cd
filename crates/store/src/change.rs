//! Changes, the items of a store watch.
//!
//! River: commit → **change** → watch cache.

use bytes::Bytes;
use headwater_api::Revision;

use crate::key::Key;

/// One committed write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its position in the order of all writes. Two changes share a revision only if they expired
    /// together in etcd.
    pub revision: Revision,
    /// The written key.
    pub key: Key,
    /// Whether the key was created, updated or deleted.
    pub kind: ChangeKind,
    /// The new value; empty for a delete.
    pub value: Bytes,
    /// The previous value; `None` for a create.
    pub prev: Option<Version>,
}

/// How a key was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The key had no value.
    Created,
    /// The key had a value.
    Updated,
    /// The key has no value any more.
    Deleted,
}

/// A value of a key and the revision that wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The revision that wrote the value.
    pub revision: Revision,
    /// The value.
    pub value: Bytes,
}

/// Changes in revision order, and the progress of the watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Empty for a progress notification.
    pub changes: Vec<Change>,
    /// Every matching change up to here was returned.
    pub complete_to: Revision,
}
