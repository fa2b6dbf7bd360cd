//! A group: the writes of one frame, checked and staged.
//!
//! River: mailbox → **group** → log, one sync → published.
//! Promise: a write is staged completely or not at all, and sees the earlier writes of the group.
//! No staged write is visible to readers before the group is durable.

use std::collections::HashMap;
use std::time::Duration;

use headwater_api::Revision;

use super::expiry::Expiry;
use super::frame::Draft;
use super::index::{KeyEntry, RowRef};
use super::published::Published;
use super::row::{Row, Seed};
use crate::change::{Change, ChangeKind, Version};
use crate::key::Key;
use crate::store::{Action, Committed, Error, Guard, Op, Record, Write};

/// Writes that are staged together.
pub(super) struct CommitGroup<'a> {
    seed: Seed,
    /// The state before the group.
    before: &'a Published,
    /// The newest row of each key that the group changed.
    touched: HashMap<Key, KeyEntry>,
    staged: Staged,
    newest: Revision,
    /// The wall clock, in milliseconds.
    now: i64,
}

/// The result of staging.
pub(super) struct Staged {
    /// The changes, and their rows with positions in the frame.
    pub(super) changes: Vec<(Change, RowRef)>,
    pub(super) expiries: Vec<Expiry>,
    pub(super) draft: Draft,
}

impl Staged {
    /// No changes yet, and capacity for rows of so many bytes.
    pub(super) fn new(seed: Seed, capacity: usize) -> Staged {
        let draft = Draft::new(seed, capacity);
        Staged { changes: Vec::new(), expiries: Vec::new(), draft }
    }
}

impl<'a> CommitGroup<'a> {
    /// An empty group with capacity for some writes.
    pub(super) fn new(
        seed: Seed,
        before: &'a Published,
        now: i64,
        writes: &[Write],
    ) -> CommitGroup<'a> {
        let staged =
            Staged::new(seed, writes.iter().flat_map(|write| &write.ops).map(len_of).sum());
        CommitGroup { seed, before, touched: HashMap::new(), staged, newest: before.newest, now }
    }

    /// Stages a write. A rejected one leaves no trace.
    pub(super) fn commit(&mut self, write: Write) -> Result<Committed, Error> {
        let prevs: Result<Vec<_>, _> = write.ops.iter().map(|op| self.check(op)).collect();
        let first = self.newest.next();
        for (op, prev) in write.ops.into_iter().zip(prevs?) {
            self.apply(op, prev);
        }
        Ok(Committed::new(first, self.newest))
    }

    pub(super) fn finish(self) -> Staged {
        self.staged
    }

    /// Checks the guard of an operation and reads the value that it replaces.
    fn check(&self, op: &Op) -> Result<Option<Version>, Error> {
        let current = self.entry(&op.key).filter(|entry| !entry.is_deleted);
        let current = current.map(|entry| entry.newest);
        let expected = match op.guard {
            Guard::Absent => None,
            Guard::At(revision) => Some(revision),
        };
        let version = current.map(|revision| self.version(&op.key, revision)).transpose()?;
        if current == expected {
            return Ok(version);
        }
        let record = |Version { revision, value }| Record { key: op.key.clone(), revision, value };
        Err(Error::Conflict { key: op.key.clone(), actual: version.map(record) })
    }

    /// The newest row of a key.
    fn entry(&self, key: &Key) -> Option<KeyEntry> {
        self.touched.get(key).copied().or_else(|| self.before.index.entry(key.as_str()))
    }

    /// The value of a version: in this group, among the recent changes, or on disk.
    fn version(&self, key: &Key, revision: Revision) -> Result<Version, Error> {
        let staged = revision.0.checked_sub(self.before.newest.next().0);
        let staged = staged.and_then(|at| self.staged.changes.get(usize::try_from(at).ok()?));
        let recent = staged.map(|(change, _)| change);
        if let Some(change) = recent.or_else(|| self.before.recent.get(revision)) {
            return Ok(Version { revision, value: change.value.clone() });
        }
        let row = self.before.index.row(revision);
        let row = row.ok_or_else(|| Error::Damaged {
            place: format!("revision {revision}"),
            why: format!("the index has no row of {key}"),
        })?;
        self.before.reader(self.seed).version(row, key.as_str())
    }

    fn apply(&mut self, Op { key, action, .. }: Op, prev: Option<Version>) {
        let revision = self.newest.next();
        let (kind, value, expires) = match action {
            Action::Delete => (ChangeKind::Deleted, Default::default(), 0),
            Action::Put { value, ttl } => match prev {
                None => (ChangeKind::Created, value, self.expires(ttl)),
                Some(_) => (ChangeKind::Updated, value, self.expires(ttl)),
            },
        };
        let before = self.entry(&key).map_or(Revision::ZERO, |entry| entry.newest);
        let (time, text) = (self.now, key.as_str());
        let row = Row { kind, revision, prev: before, time, expires, key: text, value: &value };
        let offset = self.staged.draft.push(&row);
        let row = RowRef::new(&row, 0, offset.into());
        if expires != 0 {
            self.staged.expiries.push(Expiry { at: expires, key: key.clone(), revision });
        }
        let entry = KeyEntry { newest: revision, copies: 0, is_deleted: row.is_delete };
        self.touched.insert(key.clone(), entry);
        self.staged.changes.push((Change { revision, key, kind, value, prev }, row));
        self.newest = revision;
    }

    /// When something written now expires; zero for never.
    fn expires(&self, ttl: Option<Duration>) -> i64 {
        let Some(ttl) = ttl else { return 0 };
        // Rounded up: nothing expires early.
        let ttl = i64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX);
        self.now.saturating_add(ttl).max(1)
    }
}

/// The length of the row of an operation.
fn len_of(op: &Op) -> usize {
    match &op.action {
        Action::Put { value, .. } => Row::len_of(op.key.as_str(), value),
        Action::Delete => Row::len_of(op.key.as_str(), &[]),
    }
}
