//! A group: the writes of one frame, checked and staged.
//!
//! River: mailbox → **group** → log, one sync → published.
//! Promise: a write is staged completely or not at all, and sees the earlier writes of the group.
//! No staged write is visible to readers before the group is durable.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use headwater_api::Revision;

use super::expiry::Expiry;
use super::frame::Draft;
use super::index::RowRef;
use super::log::Edges;
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
    touched: HashMap<Key, TouchedKey>,
    staged: Staged,
    /// The wall clock, in milliseconds.
    now: i64,
}

#[derive(Clone, Copy)]
struct TouchedKey {
    revision: Revision,
    is_deleted: bool,
}

/// The result of staging.
pub(super) struct Staged {
    pub(super) edges: Edges,
    /// The changes, and their rows with positions in the frame.
    pub(super) changes: Vec<(Change, RowRef)>,
    pub(super) expiries: Vec<Expiry>,
    pub(super) draft: Draft,
}

impl Staged {
    /// No changes: a frame that records the state or the list of segments.
    pub(super) fn empty(seed: Seed, edges: Edges) -> Staged {
        let draft = Draft::new(seed, 0);
        Staged { edges, changes: Vec::new(), expiries: Vec::new(), draft }
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
        let edges = before.edges();
        let draft = Draft::new(seed, writes.iter().map(bytes_of).sum());
        let staged = Staged { edges, changes: Vec::new(), expiries: Vec::new(), draft };
        CommitGroup { seed, before, touched: HashMap::new(), staged, now }
    }

    /// Stages a write. A rejected one leaves no trace.
    pub(super) fn commit(&mut self, write: Write) -> Result<Committed, Error> {
        let prevs: Result<Vec<_>, _> = write.ops.iter().map(|op| self.check(op)).collect();
        let first = self.staged.edges.newest.next();
        for (op, prev) in write.ops.into_iter().zip(prevs?) {
            self.apply(op, prev);
        }
        Ok(Committed { first, last: self.staged.edges.newest })
    }

    /// Deletes a key if it still has the version that expires.
    pub(super) fn expire(&mut self, expiry: &Expiry) {
        let Expiry { key, revision, .. } = expiry;
        if self.current(key) != Some(*revision) {
            return;
        }
        let write = Write::one(key.clone(), Guard::At(*revision), Action::Delete);
        if let Err(error) = self.commit(write) {
            tracing::warn!(%key, %revision, %error, "cannot delete an expired object");
        }
    }

    pub(super) fn finish(self) -> Staged {
        self.staged
    }

    /// Checks the guard of an operation and reads the value that it replaces.
    fn check(&self, op: &Op) -> Result<Option<Version>, Error> {
        let current = self.current(&op.key);
        let expected = match op.guard {
            Guard::Absent => None,
            Guard::At(revision) => Some(revision),
        };
        let version = current.map(|revision| self.version(&op.key, revision)).transpose()?;
        if current == expected {
            return Ok(version);
        }
        let key = op.key.clone();
        let actual =
            version.map(|Version { revision, value }| Record { key: key.clone(), revision, value });
        Err(Error::Conflict { key, actual })
    }

    /// The revision of a key's value, if it has one.
    fn current(&self, key: &Key) -> Option<Revision> {
        match self.touched.get(key) {
            Some(touched) => (!touched.is_deleted).then_some(touched.revision),
            None => self.before.index.newest(key.as_str()).map(|row| row.revision),
        }
    }

    /// The value of a version: in this group, among the recent changes, or on disk.
    fn version(&self, key: &Key, revision: Revision) -> Result<Version, Error> {
        let recent = self.staged(revision).or_else(|| self.before.recent.get(revision));
        if let Some(change) = recent {
            return Ok(Version { revision, value: change.value.clone() });
        }
        let row = self.before.index.row(revision);
        let row = row.ok_or_else(|| Error::Damaged {
            place: format!("revision {revision}"),
            why: format!("the index has no row of {key}"),
        })?;
        self.before.reader(self.seed).version(row, key.as_str())
    }

    fn staged(&self, revision: Revision) -> Option<&Change> {
        let first = self.staged.changes.first()?.0.revision;
        let at = usize::try_from(revision.0.checked_sub(first.0)?).ok()?;
        self.staged.changes.get(at).map(|(change, _)| change)
    }

    fn apply(&mut self, op: Op, prev: Option<Version>) {
        let Op { key, action, .. } = op;
        let revision = self.staged.edges.newest.next();
        let (value, expires) = match action {
            Action::Put { value, ttl } => (Some(value), self.expires(ttl)),
            Action::Delete => (None, 0),
        };
        let kind = match (&value, &prev) {
            (None, _) => ChangeKind::Deleted,
            (Some(_), None) => ChangeKind::Created,
            (Some(_), Some(_)) => ChangeKind::Updated,
        };
        let is_delete = kind == ChangeKind::Deleted;
        let value = value.unwrap_or_default();
        let row = self.write_row(&key, kind, revision, expires, &value);
        if expires != 0 {
            self.staged.expiries.push(Expiry { at: expires, key: key.clone(), revision });
        }
        self.touched.insert(key.clone(), TouchedKey { revision, is_deleted: is_delete });
        self.staged.changes.push((Change { revision, key, kind, value, prev }, row));
        self.staged.edges.newest = revision;
    }

    fn write_row(
        &mut self,
        key: &Key,
        kind: ChangeKind,
        revision: Revision,
        expires: i64,
        value: &Bytes,
    ) -> RowRef {
        let prev = match self.touched.get(key) {
            Some(touched) => touched.revision,
            None => self.before.index.entry(key.as_str()).map_or(Revision::ZERO, |e| e.newest),
        };
        let (time, key) = (self.now, key.as_str());
        let row = Row { kind, revision, prev, time, expires, key, value };
        let offset = self.staged.draft.push(&row);
        RowRef::new(&row, 0, offset.into())
    }

    /// When something written now expires; zero for never.
    fn expires(&self, ttl: Option<Duration>) -> i64 {
        let Some(ttl) = ttl else { return 0 };
        // Rounded up: nothing expires early.
        let ttl = i64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX);
        self.now.saturating_add(ttl).max(1)
    }
}

/// The bytes of the rows of a write.
fn bytes_of(write: &Write) -> usize {
    let row = |op: &Op| match &op.action {
        Action::Put { value, .. } => Row::len_of(op.key.as_str(), value),
        Action::Delete => Row::len_of(op.key.as_str(), &[]),
    };
    write.ops.iter().map(row).sum()
}
