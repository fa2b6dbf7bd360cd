//! Changes: what a store watch yields.
//!
//! River: commit → **change** → watch cache.

use bytes::Bytes;
use headwater_api::Revision;

use crate::key::Key;

/// One committed write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its place in the order of all writes; no two changes share one.
    pub revision: Revision,
    /// What was written.
    pub key: Key,
    /// How it was written.
    pub kind: ChangeKind,
    /// The new value; empty for a delete.
    pub value: Bytes,
    /// What was there before; `None` for a create.
    pub prev: Option<Version>,
}

/// How a key was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// There was nothing before.
    Created,
    /// There was an older value before.
    Updated,
    /// There is nothing any more.
    Deleted,
}

/// One value of a key and the revision that wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The revision that wrote it.
    pub revision: Revision,
    /// The value.
    pub value: Bytes,
}

/// Some changes in revision order, and how far the watch has got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// May be empty: then this is a notice of progress.
    pub changes: Vec<Change>,
    /// Every matching change up to here has been yielded.
    pub complete_to: Revision,
}
