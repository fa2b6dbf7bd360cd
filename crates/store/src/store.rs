//! The seam: what any engine promises.
//!
//! River: server writes → **store** → watch cache. Every promise is a test in
//! `testkit::contract` that runs for each engine.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use headwater_api::Revision;

use crate::change::Batch;
use crate::key::Key;

/// The revision of a store nothing was ever written to; the first change is the next one. Not
/// zero, since a resourceVersion of zero means "whatever you have" to a client.
pub const FIRST: Revision = Revision(1);

/// The largest value an engine takes unless told otherwise: what etcd takes.
pub const VALUE_MAX: usize = 3 << 19;

/// The longest key. Kubernetes' longest names make keys of about a fifth of it.
pub const KEY_MAX: usize = 4096;

/// A revisioned key-value store.
///
/// - Revisions are one sequence for the whole store; they only grow, and two writes never share one.
///   A write of several operations takes consecutive revisions, one each. Only values whose time to
///   live has passed may go together, at one revision; a batch never parts them.
/// - A write is all or nothing. When `commit` returns, it is durable, and every later `revision`,
///   `get`, `range` and `watch` takes it into account. Nothing shows a write before it is durable.
/// - A range at a revision sees exactly the writes up to it.
/// - A watch yields every change after its revision, once, in order, with the value before it; or
///   it fails with [`Error::Compacted`]. A slow watcher delays no writer and costs no memory that
///   grows with its lag.
/// - Compaction changes no answer at or above its revision.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The newest revision, at least as new as every write acknowledged before the call.
    async fn revision(&self) -> Result<Revision, Error>;

    /// The newest value of a key.
    async fn get(&self, key: &Key) -> Result<Option<Record>, Error>;

    /// Values in key order.
    async fn range(&self, range: Range) -> Result<Page, Error>;

    /// Applies all operations, or none. Returns once they are durable.
    async fn commit(&self, write: Write) -> Result<Committed, Error>;

    /// Changes to keys with this prefix after `after`. A revision in the future is waited for.
    async fn watch(&self, prefix: &str, after: Revision) -> Result<ChangeStream, Error>;

    /// Forgets history below `at`: states before it can no longer be read nor watched from.
    /// Compacting at or below an earlier point does nothing; above the newest revision is
    /// [`Error::Future`].
    async fn compact(&self, at: Revision) -> Result<(), Error>;

    /// How the store is doing, for health, metrics and window edges. Never blocks.
    fn condition(&self) -> Condition;
}

/// What a watch yields, until it fails or is dropped.
pub type ChangeStream = BoxStream<'static, Result<Batch, Error>>;

/// One key's newest state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Where.
    pub key: Key,
    /// The revision of its last change.
    pub revision: Revision,
    /// The value.
    pub value: Bytes,
}

/// Which values to read.
#[derive(Clone, Debug, Default)]
pub struct Range {
    /// Keys that begin with this.
    pub prefix: String,
    /// Skip keys up to and including this one.
    pub after: Option<Key>,
    /// The state at this revision; `None` is the newest.
    pub at: Option<Revision>,
    /// At most this many; `None` is all.
    pub limit: Option<usize>,
}

impl Range {
    /// Whether a key belongs to the range.
    pub fn covers(&self, key: &Key) -> bool {
        key.as_str().starts_with(&self.prefix)
            && self.after.as_ref().is_none_or(|after| key > after)
    }

    /// Whether keys after this one may have the prefix.
    pub fn covers_after(&self, after: &Key) -> bool {
        after.as_str() < self.prefix.as_str() || after.as_str().starts_with(&self.prefix)
    }

    /// Where the range starts; it ends with the last key that has its prefix.
    pub fn start(&self) -> Bound<&str> {
        match &self.after {
            Some(after) if after.as_str() >= self.prefix.as_str() => {
                Bound::Excluded(after.as_str())
            }
            _ => Bound::Included(self.prefix.as_str()),
        }
    }
}

/// Values in key order.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The values.
    pub records: Vec<Record>,
    /// The state they belong to.
    pub revision: Revision,
    /// Whether more keys follow.
    pub more: bool,
}

/// Some operations that happen together. No key may be named twice.
#[derive(Clone, Debug, Default)]
pub struct Write {
    /// In the order of their revisions.
    pub ops: Vec<Op>,
}

impl Write {
    /// A write of one operation.
    pub fn one(key: Key, guard: Guard, action: Action) -> Write {
        Write { ops: vec![Op { key, guard, action }] }
    }

    /// Refuses what no state of the store could make acceptable.
    pub fn check(&self, value_max: usize) -> Result<(), Error> {
        if self.ops.is_empty() {
            return Err(Error::Refused("the write has no operations".into()));
        }
        let mut keys = BTreeSet::new();
        for op in &self.ops {
            op.check(value_max)?;
            if self.ops.len() > 1 && !keys.insert(&op.key) {
                return Err(Error::Refused(format!("the write contains {} twice", op.key)));
            }
        }
        Ok(())
    }
}

/// One operation of a write.
#[derive(Clone, Debug)]
pub struct Op {
    /// What to write.
    pub key: Key,
    /// What must be there.
    pub guard: Guard,
    /// What to do.
    pub action: Action,
}

impl Op {
    fn check(&self, value_max: usize) -> Result<(), Error> {
        let Op { key, guard, action } = self;
        let key_len = key.as_str().len();
        if key_len == 0 || key_len > KEY_MAX {
            let why = format!("a key must have 1 to {KEY_MAX} bytes; this one has {key_len}");
            return Err(Error::Refused(why));
        }
        match action {
            Action::Put { value, .. } if value.len() > value_max => {
                let len = value.len();
                let why = format!("the value of {key} has {len} bytes; the limit is {value_max}");
                Err(Error::Refused(why))
            }
            Action::Delete if *guard == Guard::Absent => {
                Err(Error::Refused(format!("the write deletes {key} only if {key} is absent")))
            }
            _ => Ok(()),
        }
    }
}

/// What must be true of a key for a write to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The key has no value.
    Absent,
    /// The key's last change was at this revision.
    At(Revision),
}

/// What a write does to a key.
#[derive(Clone, Debug)]
pub enum Action {
    /// Sets the value; with a time to live it is deleted some time after that has passed.
    Put {
        /// The value.
        value: Bytes,
        /// How long it stays at least.
        ttl: Option<Duration>,
    },
    /// Removes it.
    Delete,
}

/// What a commit gave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The revision of the first operation; the others follow without a gap.
    pub first: Revision,
    /// The revision of the last operation.
    pub last: Revision,
}

/// How the store is doing.
#[derive(Clone, Debug, Default)]
pub struct Condition {
    /// The newest revision this process knows to be durable.
    pub revision: Revision,
    /// History before this is gone: watches after it and reads at it still work.
    pub compacted: Revision,
    /// Bytes on disk, where there is one.
    pub disk_bytes: u64,
    /// Why writes fail at the moment, if they do.
    pub trouble: Option<String>,
}

/// Why the store refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody wrote first: compute again from `actual` and retry. (409)
    #[error("{key} is not at the revision that the write expects")]
    Conflict {
        /// The key whose guard failed.
        key: Key,
        /// What is there instead.
        actual: Option<Record>,
    },
    /// That history is gone: list again. (410)
    #[error("revision {asked} was compacted; the oldest available is {oldest}")]
    Compacted {
        /// What was asked for.
        asked: Revision,
        /// What may still be asked for.
        oldest: Revision,
    },
    /// Another store answers, or the same one went back: nothing known before is true. (410)
    #[error("the store was replaced or restored; its newest revision is now {current}")]
    Replaced {
        /// The newest.
        current: Revision,
    },
    /// That revision has not been reached. (504)
    #[error("revision {asked} is not reached yet; the newest is {current}")]
    Future {
        /// What was asked for.
        asked: Revision,
        /// The newest.
        current: Revision,
    },
    /// The write itself is not acceptable: too large, empty, or a key named twice. (413 or 500)
    #[error("the store rejected the request: {0}")]
    Refused(String),
    /// Not now; a later try may succeed. Whether a write happened is unknown. (503)
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// What is stored cannot be read: only an operator can help. (500)
    #[error("damaged data in {place}: {why}")]
    Damaged {
        /// File, table and row.
        place: String,
        /// What is wrong with it.
        why: String,
    },
}
