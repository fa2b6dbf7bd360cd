//! A group: the writes of one sync, checked and staged.
//!
//! River: mailbox → **group** → write-ahead log, one sync → published.
//! Promise: a write is staged completely or not at all, and sees the earlier writes of the group.
//! No staged write is visible to readers before the group is durable.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use headwater_api::Revision;

use super::expiry::Expiry;
use super::file::{DataFile, damaged, value_of};
use super::frame::Draft;
use super::published::Published;
use super::row::{LiveRow, LogRow, State};
use super::snapshot::{StoreSnapshot, TAIL_PLACE};
use super::tail::Tail;
use crate::change::{Change, ChangeKind, Version};
use crate::key::Key;
use crate::store::{Action, Committed, Error, Guard, Op, Record, Write};

/// Writes staged together.
pub(super) struct CommitGroup<'a> {
    file: &'a DataFile,
    /// Taken once a value is needed that is not in memory.
    snapshot: OnceCell<StoreSnapshot>,
    /// The state before the group.
    before: &'a Published,
    /// What this group made of the keys it touched.
    touched: HashMap<Key, Option<LiveRow>>,
    state: State,
    changes: Vec<Change>,
    /// The wall clock, in milliseconds.
    now: i64,
    draft: Draft,
}

/// What a group came to.
#[derive(Debug)]
pub(super) struct Staged {
    pub(super) state: State,
    pub(super) changes: Vec<Change>,
    /// What became of the keys.
    pub(super) touched: HashMap<Key, Option<LiveRow>>,
}

impl<'a> CommitGroup<'a> {
    /// Nothing staged yet, with room for some writes.
    pub(super) fn new(
        file: &'a DataFile,
        before: &'a Published,
        state: State,
        now: i64,
        writes: &[Write],
    ) -> CommitGroup<'a> {
        CommitGroup {
            file,
            snapshot: OnceCell::new(),
            before,
            touched: HashMap::new(),
            state,
            changes: Vec::new(),
            now,
            draft: Draft::with_capacity(writes.iter().map(bytes_of).sum()),
        }
    }

    /// Stages a write. One that is refused leaves no trace.
    pub(super) fn commit(&mut self, write: Write) -> Result<Committed, Error> {
        let prevs = self.check(&write)?;
        let first = self.state.newest.next();
        for (op, prev) in write.ops.into_iter().zip(prevs) {
            self.apply(op, prev);
        }
        Ok(Committed { first, last: self.state.newest })
    }

    /// Deletes a key if it is still at the version that was to expire.
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

    /// Raises the compaction point; what it forgets is dropped along with later absorbing.
    pub(super) fn compact(&mut self, at: Revision) {
        self.state.compacted = self.state.compacted.max(at);
    }

    /// Ends the staging, with the rows to be written. `None` if there is nothing to commit.
    pub(super) fn finish(self, was: &State) -> Option<(Staged, Draft)> {
        let CommitGroup { state, changes, touched, draft, .. } = self;
        (state != *was).then_some((Staged { state, changes, touched }, draft))
    }

    /// Checks every guard and reads what the write replaces, before anything is staged.
    fn check(&self, write: &Write) -> Result<Vec<Option<Version>>, Error> {
        write.ops.iter().map(|op| self.check_op(op)).collect()
    }

    fn check_op(&self, op: &Op) -> Result<Option<Version>, Error> {
        let current = self.current(&op.key);
        let expected = match op.guard {
            Guard::Absent => None,
            Guard::At(revision) => Some(revision),
        };
        let version = match current {
            Some(revision) => Some(Version { revision, value: self.value(&op.key, revision)? }),
            None => None,
        };
        if current == expected {
            return Ok(version);
        }
        let key = op.key.clone();
        let actual =
            version.map(|Version { revision, value }| Record { key: key.clone(), revision, value });
        Err(Error::Conflict { key, actual })
    }

    fn current(&self, key: &Key) -> Option<Revision> {
        match self.touched.get(key) {
            Some(row) => row.map(|row| row.revision),
            None => self.before.index.get(key).copied(),
        }
    }

    /// The value of a version: in this group, among the recent changes, or on disk.
    fn value(&self, key: &Key, revision: Revision) -> Result<Bytes, Error> {
        if let Some(change) = self.staged(revision).or_else(|| self.before.recent.get(revision)) {
            return Ok(change.value.clone());
        }
        if let Some(row) = self.before.tail.get(revision) {
            let row = LogRow::decode(self.file.seed, revision, row)
                .map_err(|bad| damaged(TAIL_PLACE, revision, bad))?;
            return value_of(row, key, revision);
        }
        self.snapshot()?.value(key, revision)
    }

    /// The data file as it is. What it lacks is looked up before.
    fn snapshot(&self) -> Result<&StoreSnapshot, Error> {
        if self.snapshot.get().is_none() {
            // Nobody sets it in between.
            let _ = self.snapshot.set(StoreSnapshot::new(self.file, Tail::default())?);
        }
        Ok(self.snapshot.get().expect("it was just set"))
    }

    fn staged(&self, revision: Revision) -> Option<&Change> {
        let first = self.changes.first()?.revision;
        self.changes.get(usize::try_from(revision.0.checked_sub(first.0)?).ok()?)
    }

    fn apply(&mut self, op: Op, prev: Option<Version>) {
        let Op { key, action, .. } = op;
        let revision = self.state.newest.next();
        let (value, expires) = match action {
            Action::Put { value, ttl } => (Some(value), self.expires(ttl)),
            Action::Delete => (None, 0),
        };
        let kind = match (&value, &prev) {
            (None, _) => ChangeKind::Deleted,
            (Some(_), None) => ChangeKind::Created,
            (Some(_), Some(_)) => ChangeKind::Updated,
        };
        let change = Change { revision, key, kind, value: value.unwrap_or_default(), prev };
        self.write_log(&change, expires);
        self.count(&change);
        let row = (kind != ChangeKind::Deleted).then_some(LiveRow { revision, expires });
        self.touched.insert(change.key.clone(), row);
        self.state.newest = revision;
        self.changes.push(change);
    }

    /// Keeps the sums over what has a value.
    fn count(&mut self, change: &Change) {
        let key = change.key.as_str();
        if change.kind != ChangeKind::Deleted {
            self.state.objects += 1;
            self.state.object_bytes += LogRow::len_of(key, &change.value);
        }
        if let Some(version) = &change.prev {
            self.state.objects -= 1;
            self.state.object_bytes -= LogRow::len_of(key, &version.value);
        }
    }

    /// When something written now may go; zero for never.
    fn expires(&self, ttl: Option<Duration>) -> i64 {
        let Some(ttl) = ttl else { return 0 };
        // Rounded up: nothing goes early.
        let ttl = i64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX);
        self.now.saturating_add(ttl).max(1)
    }

    fn write_log(&mut self, change: &Change, expires: i64) {
        let row = LogRow {
            kind: change.kind,
            key: change.key.as_str(),
            prev: change.prev.as_ref().map_or(Revision::ZERO, |version| version.revision),
            time: self.now,
            expires,
            value: &change.value,
        };
        self.draft.push(self.file.seed, change.revision, &row);
    }
}

/// What the rows of a write take.
fn bytes_of(write: &Write) -> usize {
    let row = |op: &Op| match &op.action {
        Action::Put { value, .. } => Draft::len_of(op.key.as_str(), value),
        Action::Delete => Draft::len_of(op.key.as_str(), &[]),
    };
    write.ops.iter().map(row).sum()
}
