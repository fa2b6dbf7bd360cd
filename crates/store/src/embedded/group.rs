//! A group: the writes of one transaction, checked and staged.
//!
//! River: mailbox → **group** → one sync → published.
//! Promise: a write is staged whole or not at all, and sees those before it in the group. Nothing
//! here is visible to anybody until the transaction is durable.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use headwater_api::Revision;
use redb::{ReadableTable, Table, WriteTransaction};

use super::expiry::Expiry;
use super::file::{LIVE, LOG, damaged, read_row, read_value, trouble, write_state};
use super::pending::Chunk;
use super::published::Published;
use super::row::{Bad, LIVE_LEN, LiveRow, LogRow, Seed, State};
use crate::change::{Change, ChangeKind, Version};
use crate::key::Key;
use crate::store::{Action, Committed, Error, Guard, Op, Record, Write};

/// Writes staged in one transaction.
pub(super) struct Group<'a> {
    txn: &'a WriteTransaction,
    log: Table<'a, u64, &'static [u8]>,
    live: Table<'a, &'static [u8], &'static [u8; LIVE_LEN]>,
    seed: Seed,
    /// The state before the group.
    before: &'a Published,
    /// What this group made of the keys it touched.
    touched: HashMap<Key, Option<LiveRow>>,
    state: State,
    changes: Vec<Change>,
    /// The wall clock, in milliseconds.
    now: i64,
    row: Vec<u8>,
}

/// What a group came to.
#[derive(Debug)]
pub(super) struct Staged {
    pub(super) state: State,
    pub(super) changes: Vec<Change>,
    /// What became of the keys.
    pub(super) touched: HashMap<Key, Option<LiveRow>>,
}

impl<'a> Group<'a> {
    pub(super) fn new(
        txn: &'a WriteTransaction,
        seed: Seed,
        before: &'a Published,
        state: State,
        now: i64,
    ) -> Result<Group<'a>, Error> {
        let log = txn.open_table(LOG).map_err(trouble)?;
        let live = txn.open_table(LIVE).map_err(trouble)?;
        Ok(Group {
            txn,
            log,
            live,
            seed,
            before,
            touched: HashMap::new(),
            state,
            changes: Vec::new(),
            now,
            row: Vec::new(),
        })
    }

    /// Stages a write. The inner error answers the write and leaves no trace; the outer one ends
    /// the transaction.
    pub(super) fn commit(&mut self, write: Write) -> Result<Result<Committed, Error>, Error> {
        let prevs = match self.check(&write) {
            Ok(prevs) => prevs,
            Err(error) => return Ok(Err(error)),
        };
        let first = self.state.newest.next();
        for (op, prev) in write.ops.into_iter().zip(prevs) {
            self.apply(op, prev)?;
        }
        Ok(Ok(Committed { first, last: self.state.newest }))
    }

    /// Deletes a key if it is still at the version that was to expire.
    pub(super) fn expire(&mut self, expiry: &Expiry) -> Result<(), Error> {
        if self.current(&expiry.key) != Some(expiry.revision) {
            return Ok(());
        }
        let write = Write::one(expiry.key.clone(), Guard::At(expiry.revision), Action::Delete);
        match self.commit(write)? {
            Ok(_) => Ok(()),
            Err(error) => {
                tracing::warn!(key = %expiry.key, revision = %expiry.revision, %error, "cannot expire");
                Ok(())
            }
        }
    }

    /// Raises the compaction point; what it forgets is dropped by [`Group::trim`].
    pub(super) fn compact(&mut self, at: Revision) {
        self.state.compacted = self.state.compacted.max(at);
    }

    /// Drops some of what compaction forgot: the version that each change up to it replaced, and
    /// deletes before it. A delete exactly on it stays until the next compaction.
    pub(super) fn trim(&mut self, rows_max: u64) -> Result<(), Error> {
        let State { compacted, trimmed, live_at, .. } = self.state;
        // What the live table lacks is still needed to complete it.
        let end = Revision(trimmed.0.saturating_add(rows_max)).min(compacted).min(live_at);
        if trimmed >= end {
            return Ok(());
        }
        self.drop_old_delete(trimmed)?;
        for revision in (trimmed.0 + 1..=end.0).map(Revision) {
            let (kind, prev) =
                read_row(&self.log, self.seed, revision, |row| (row.kind, row.prev))?;
            if prev != Revision::ZERO {
                self.drop_row(prev)?;
            }
            if kind == ChangeKind::Deleted && revision < compacted {
                self.drop_row(revision)?;
            }
        }
        self.state.trimmed = end;
        Ok(())
    }

    /// Moves changes that are durable into the live table.
    pub(super) fn settle(&mut self, chunk: &Chunk) -> Result<(), Error> {
        for (key, row) in &chunk.rows {
            self.move_live(key.as_str(), *row)?;
        }
        self.state.live_at = chunk.live_at.unwrap_or(self.state.live_at);
        Ok(())
    }

    fn move_live(&mut self, key: &str, row: Option<LiveRow>) -> Result<(), Error> {
        let old = match row {
            Some(row) => {
                self.state.live_rows += 1;
                let digest = row.digest(self.seed, key);
                self.state.live_digest = self.state.live_digest.wrapping_add(digest);
                self.live.insert(key.as_bytes(), &row.encode(self.seed, key)).map_err(trouble)?
            }
            None => self.live.remove(key.as_bytes()).map_err(trouble)?,
        };
        if let Some(old) = old {
            let old = LiveRow::decode(self.seed, key, old.value())
                .map_err(|bad| damaged("data.redb, table live, key", key, bad))?;
            self.state.live_rows -= 1;
            let digest = old.digest(self.seed, key);
            self.state.live_digest = self.state.live_digest.wrapping_sub(digest);
        }
        Ok(())
    }

    /// A delete that an earlier compaction kept because it was exactly on it.
    fn drop_old_delete(&mut self, revision: Revision) -> Result<(), Error> {
        if self.log.get(revision.0).map_err(trouble)?.is_none() {
            return Ok(());
        }
        let kind = read_row(&self.log, self.seed, revision, |row| row.kind)?;
        if kind == ChangeKind::Deleted {
            self.drop_row(revision)?;
        }
        Ok(())
    }

    fn drop_row(&mut self, revision: Revision) -> Result<(), Error> {
        let Some(row) = self.log.remove(revision.0).map_err(trouble)? else {
            return Err(damaged("data.redb, table log, revision", revision, Bad("it is missing")));
        };
        self.state.log_rows -= 1;
        self.state.log_bytes = self.state.log_bytes.saturating_sub(row.value().len() as u64);
        Ok(())
    }

    /// Ends the staging: the sums go into the same transaction as the rows. `None` if there is
    /// nothing to commit.
    pub(super) fn finish(self, was: &State) -> Result<Option<Staged>, Error> {
        let Group { txn, log, live, seed, state, changes, touched, .. } = self;
        drop((log, live));
        if state == *was {
            return Ok(None);
        }
        write_state(txn, seed, &state)?;
        Ok(Some(Staged { state, changes, touched }))
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
        read_value(&self.log, self.seed, key, revision)
    }

    fn staged(&self, revision: Revision) -> Option<&Change> {
        let first = self.changes.first()?.revision;
        self.changes.get(usize::try_from(revision.0.checked_sub(first.0)?).ok()?)
    }

    fn apply(&mut self, op: Op, prev: Option<Version>) -> Result<(), Error> {
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
        self.write_log(&change, expires)?;
        self.count(&change);
        let row = (kind != ChangeKind::Deleted).then_some(LiveRow { revision, expires });
        self.touched.insert(change.key.clone(), row);
        self.state.newest = revision;
        self.changes.push(change);
        Ok(())
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

    fn write_log(&mut self, change: &Change, expires: i64) -> Result<(), Error> {
        let row = LogRow {
            kind: change.kind,
            key: change.key.as_str(),
            prev: change.prev.as_ref().map_or(Revision::ZERO, |version| version.revision),
            time: self.now,
            expires,
            value: &change.value,
        };
        row.encode(self.seed, change.revision, &mut self.row);
        self.log.insert(change.revision.0, self.row.as_slice()).map_err(trouble)?;
        self.state.log_rows += 1;
        self.state.log_bytes += row.len();
        Ok(())
    }
}
