//! Changes, the items of a store watch.
//!
//! River: commit → **change** → watch cache.

use bytes::Bytes;
use headwater_api::Revision;

use crate::key::Key;

/// The change of one key by a committed write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its position in the order of all writes. Changes of one write, and values that expired
    /// together, may share a revision.
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

/// Changes in revision order, and the progress of the watch. A batch contains all changes of a
/// revision or none, in the order of the operations of their write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Empty for a progress notification.
    pub changes: Vec<Change>,
    /// Every matching change up to here was returned. A watcher resumes after this revision, not
    /// after the revision of a single change: other changes may share it.
    pub complete_to: Revision,
}
