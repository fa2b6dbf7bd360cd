//! The contract of every storage engine: the `Store` trait and its types.
//!
//! River: server writes → **store** → watch cache. Every guarantee is a test in
//! `testkit::contract`, which runs for each engine.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use headwater_api::Revision;

use crate::change::Batch;
use crate::key::Key;
use crate::versions::{self, KeyHistory, RevisionAt, VersionRange};

/// The revision of an empty store; the first change gets the next one. Not zero, because a
/// resourceVersion of zero means "any state" to a client.
pub const FIRST: Revision = Revision(1);

/// The default for the largest value, in bytes: etcd's default.
pub const VALUE_MAX: usize = 3 << 19;

/// The longest key. Kubernetes' longest names make keys of about a fifth of it.
pub const KEY_MAX: usize = 4096;

/// A revisioned key-value store.
///
/// - Revisions form one sequence for the entire store. They only grow, and two writes never share
/// one. The changes of one write either share its revision or have consecutive ones, as the engine
/// chooses, in the order of the operations. Values whose time to live has passed may be deleted
/// together at one revision.
/// - A shared revision is never split: a read at it contains all its changes, and a batch of a
/// watch contains all or none. So whoever resumes after [`Batch::complete_to`] misses nothing and
/// receives nothing twice.
/// - A write is atomic. When `commit` returns, the write is durable, and every later `revision`,
/// `get`, `range` and `watch` reflects it. No write is visible before it is durable.
/// - A range at a revision contains exactly the writes up to it.
/// - A watch returns every change after its revision, once, in order, with the previous value; or
/// it fails with [`Error::Compacted`]. A slow watcher delays no writer, and its memory does not
/// grow with its lag.
/// - Compaction does not change the result of any read at or above its revision.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The newest revision, at least as new as every write acknowledged before the call.
    async fn revision(&self) -> Result<Revision, Error>;

    /// The newest value of a key.
    async fn get(&self, key: &Key) -> Result<Option<Record>, Error>;

    /// Values in key order.
    async fn range(&self, range: Range) -> Result<RangePage, Error>;

    /// Applies all operations, or none. Returns once they are durable.
    async fn commit(&self, write: Write) -> Result<Committed, Error>;

    /// Changes to keys with this prefix after `after`. If `after` is in the future, waits for it.
    async fn watch(&self, prefix: &str, after: Revision) -> Result<ChangeStream, Error>;

    /// Drops history before `at`: earlier states can no longer be read or watched from. Does
    /// nothing at or below an earlier compaction; above the newest revision it fails with
    /// [`Error::Future`].
    async fn compact(&self, at: Revision) -> Result<(), Error>;

    /// Versions of a key, newest first, as far as history goes back. Fails with [`Error::Compacted`]
    /// if `upto` was compacted. A store without chains of versions ends at the newest creation.
    async fn versions(&self, range: VersionRange) -> Result<KeyHistory, Error> {
        versions::by_reads(self, range).await
    }

    /// The newest revision at a time, in milliseconds of the wall clock; `None` if the store keeps no
    /// times.
    async fn revision_at(&self, _time: i64) -> Result<Option<RevisionAt>, Error> {
        Ok(None)
    }

    /// The status of the store, for health checks, metrics and the compacted revision. Does not
    /// block.
    fn condition(&self) -> StoreCondition;
}

/// The changes of a watch, until it fails or is dropped.
pub type ChangeStream = BoxStream<'static, Result<Batch, Error>>;

/// The newest value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The key.
    pub key: Key,
    /// The revision of its last change.
    pub revision: Revision,
    /// The value.
    pub value: Bytes,
}

/// Which values to read, in key order.
#[derive(Clone, Debug, Default)]
pub struct Range {
    /// The prefix of the keys.
    pub prefix: String,
    /// Skips keys up to and including this one.
    pub after: Option<Key>,
    /// The revision of the state; `None` means the newest.
    pub at: Option<Revision>,
    /// The maximum number of values; `None` means all.
    pub limit: Option<usize>,
}

impl Range {
    /// Whether the range contains a key.
    pub fn covers(&self, key: &Key) -> bool {
        key.as_str().starts_with(&self.prefix)
            && self.after.as_ref().is_none_or(|after| key > after)
    }

    /// Whether a key after this one may have the prefix.
    pub fn covers_after(&self, after: &Key) -> bool {
        after.as_str() < self.prefix.as_str() || after.as_str().starts_with(&self.prefix)
    }

    /// The lower bound of the range. It ends with the last key that has the prefix.
    pub fn start(&self) -> Bound<&str> {
        match &self.after {
            Some(after) if after.as_str() >= self.prefix.as_str() => {
                Bound::Excluded(after.as_str())
            }
            _ => Bound::Included(self.prefix.as_str()),
        }
    }
}

/// The values of a range, in key order.
#[derive(Clone, Debug, Default)]
pub struct RangePage {
    /// The values.
    pub records: Vec<Record>,
    /// The revision of the state.
    pub revision: Revision,
    /// Whether more keys follow.
    pub more: bool,
}

/// Operations that are applied together. No key may occur twice.
#[derive(Clone, Debug, Default)]
pub struct Write {
    /// In the order of their changes.
    pub ops: Vec<Op>,
}

impl Write {
    /// A write of one operation.
    pub fn one(key: Key, guard: Guard, action: Action) -> Write {
        Write { ops: vec![Op { key, guard, action }] }
    }

    /// Rejects writes that no state of the store could accept.
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
    /// The key to write.
    pub key: Key,
    /// The condition on the key.
    pub guard: Guard,
    /// The action on the key.
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

/// The condition on a key under which a write is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The key has no value.
    Absent,
    /// The key's last change was at this revision.
    At(Revision),
}

/// The action of a write on a key.
#[derive(Clone, Debug)]
pub enum Action {
    /// Sets the value. With a time to live, the key is deleted some time after it has passed.
    Put {
        /// The value.
        value: Bytes,
        /// The minimum time to live.
        ttl: Option<Duration>,
    },
    /// Deletes the key.
    Delete,
}

/// The revisions of a committed write. Two are equal if their revisions are.
#[derive(Clone, Copy, Debug)]
pub struct Committed {
    /// The revision of the first operation.
    pub first: Revision,
    /// The revision of the last operation; equal to the first if all share it.
    pub last: Revision,
    /// When parts of it happened, for traces; `None` if the store does not know.
    pub times: Option<CommitTimes>,
}

impl Committed {
    /// A write without times.
    pub fn new(first: Revision, last: Revision) -> Committed {
        Committed { first, last, times: None }
    }
}

impl PartialEq for Committed {
    fn eq(&self, other: &Committed) -> bool {
        (self.first, self.last) == (other.first, other.last)
    }
}

impl Eq for Committed {}

/// When parts of a commit happened.
#[derive(Clone, Copy, Debug)]
pub struct CommitTimes {
    /// The write left the queue.
    pub taken: Instant,
    /// The write was durable and published.
    pub durable: Instant,
}

/// The status of a store.
#[derive(Clone, Debug, Default)]
pub struct StoreCondition {
    /// The newest revision that this process knows to be durable.
    pub revision: Revision,
    /// History before this revision was dropped. A watch after it and a read at it still work.
    pub compacted: Revision,
    /// Bytes on disk; zero for a store in memory.
    pub disk_bytes: u64,
    /// Why writes fail at the moment, if they do.
    pub trouble: Option<String>,
    /// The first damage that was found in stored data while the store served, if any.
    pub damage: Option<String>,
    /// What was read again since the start to look for damage.
    pub scrubbed: Scrubbed,
    /// The key services that encrypt stored values, if some do.
    pub key_services: Option<KeyServiceHealth>,
}

/// The health of all key services together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyServiceHealth {
    /// Why one does not work, if so.
    pub trouble: Option<String>,
}

/// The progress of the search for damage in stored data; zero for a store that does not search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// The bytes that were read.
    pub bytes: u64,
    /// How many times all data was read.
    pub rounds: u64,
}

/// Why the store failed or refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A guard failed because of another write: compute again from `actual` and retry. (409)
    #[error("{key} is not at the revision that the write expects")]
    Conflict {
        /// The key whose guard failed.
        key: Key,
        /// The current value.
        actual: Option<Record>,
    },
    /// The history at that revision was compacted: list again. (410)
    #[error("revision {asked} was compacted; the oldest available is {oldest}")]
    Compacted {
        /// The requested revision.
        asked: Revision,
        /// The oldest available revision.
        oldest: Revision,
    },
    /// The store was replaced, or restored to an older state: all known revisions are invalid.
    /// (410)
    #[error("the store was replaced or restored; its newest revision is now {current}")]
    Replaced {
        /// The newest revision.
        current: Revision,
    },
    /// The revision has not been reached. (504)
    #[error("revision {asked} is not reached yet; the newest is {current}")]
    Future {
        /// The requested revision.
        asked: Revision,
        /// The newest revision.
        current: Revision,
    },
    /// The request is not acceptable: too large, empty, or with a repeated key. (413 or 500)
    #[error("the store rejected the request: {0}")]
    Refused(String),
    /// The store is unavailable; a retry may succeed. The outcome of a write is unknown. (503)
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// Stored data cannot be read: an operator must act. (500)
    #[error("damaged data in {place}: {why}")]
    Damaged {
        /// The file, table and row.
        place: String,
        /// What is wrong with the data.
        why: String,
    },
}
