//! A snapshot: one committed state, readable while other writes are committed.
//!
//! River: published → **snapshot** → reads, watchers that are behind, backups.
//! Promise: a state of the data file together with the tail that completes it. Every returned row
//! has a verified checksum.

use std::sync::Arc;

use bytes::Bytes;
use headwater_api::Revision;
use redb::{ReadOnlyTable, ReadTransaction, ReadableTable, ReadableTableMetadata};

use super::bulk::{self, Files, Fills};
use super::file::{
    DataFile, LIVE, LIVE_PLACE, LOG, LOG_PLACE, META, damaged, read_entry, read_fills, read_state,
    trouble, value_of,
};
use super::row::{Bad, LiveRow, LogEntry, LogRow, Pointer, Seed, State};
use super::tail::Tail;
use crate::change::{Change, Version};
use crate::key::Key;
use crate::store::Error;

pub(super) const TAIL_PLACE: &str = "WAL, revision";

/// One committed state.
pub(super) struct StoreSnapshot {
    txn: ReadTransaction,
    log: ReadOnlyTable<u64, &'static [u8]>,
    files: Arc<Files>,
    /// What the file may lack.
    tail: Tail,
    pub(super) seed: Seed,
    /// The revision the store began at; the first change came right after it.
    pub(super) first: Revision,
}

impl StoreSnapshot {
    /// The file as it is now, whatever is committed later, under a tail that was taken before.
    pub(super) fn new(file: &DataFile, tail: Tail) -> Result<StoreSnapshot, Error> {
        let (txn, files) = file.begin_read()?;
        let log = txn.open_table(LOG).map_err(trouble)?;
        Ok(StoreSnapshot { txn, log, files, tail, seed: file.seed, first: file.identity.first })
    }

    /// The edges and the sums of all of it.
    pub(super) fn state(&self) -> Result<State, Error> {
        Ok(self.tail.over(&self.file_state()?))
    }

    /// Those of the data file alone.
    pub(super) fn file_state(&self) -> Result<State, Error> {
        let meta = self.txn.open_table(META).map_err(trouble)?;
        read_state(&meta, self.seed)
    }

    /// The log row of a revision that must be there.
    pub(super) fn row<T>(
        &self,
        revision: Revision,
        read: impl FnOnce(LogRow<'_>) -> T,
    ) -> Result<T, Error> {
        match self.tail.get(revision) {
            Some(row) => LogRow::decode(self.seed, revision, row)
                .map(read)
                .map_err(|bad| damaged(TAIL_PLACE, revision, bad)),
            None => read_entry(&self.log, self.seed, revision, |entry| {
                self.with_row(revision, entry, read)
            })?,
        }
    }

    /// The whole row of an entry.
    fn with_row<T>(
        &self,
        revision: Revision,
        entry: LogEntry<'_>,
        read: impl FnOnce(LogRow<'_>) -> T,
    ) -> Result<T, Error> {
        match entry {
            LogEntry::Whole(row) => Ok(read(row)),
            LogEntry::Elsewhere(Pointer { place, .. }) => {
                let row = self.files.read(place)?;
                LogRow::decode(self.seed, revision, &row)
                    .map(read)
                    .map_err(|bad| bulk::damaged_at(place, bad))
            }
        }
    }

    /// The version of a key that a revision wrote.
    pub(super) fn value(&self, key: &Key, revision: Revision) -> Result<Bytes, Error> {
        self.row(revision, |row| value_of(row, key, revision))?
    }

    /// A change with the value before it, if its key is wanted.
    pub(super) fn change(
        &self,
        revision: Revision,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Option<Change>, Error> {
        let found = self.row(revision, |row| {
            let copy =
                || (Key::new(row.key), row.kind, Bytes::copy_from_slice(row.value), row.prev);
            wanted(row.key).then(copy)
        })?;
        let Some((key, kind, value, prev)) = found else { return Ok(None) };
        let prev = match prev {
            Revision::ZERO => None,
            prev => Some(Version { revision: prev, value: self.value(&key, prev)? }),
        };
        Ok(Some(Change { revision, key, kind, value, prev }))
    }

    /// The live table in key order from a bound on.
    pub(super) fn live(
        &self,
        start: std::ops::Bound<&str>,
        mut each: impl FnMut(&str, LiveRow) -> Result<Next, Error>,
    ) -> Result<(), Error> {
        let live = self.txn.open_table(LIVE).map_err(trouble)?;
        let start = start.map(str::as_bytes);
        let rows = live.range::<&[u8]>((start, std::ops::Bound::Unbounded)).map_err(trouble)?;
        for row in rows {
            let (key, row) = row.map_err(trouble)?;
            let key = key_text(key.value())?;
            let row = LiveRow::decode(self.seed, key, row.value())
                .map_err(|bad| damaged(LIVE_PLACE, key, bad))?;
            if let Next::Stop = each(key, row)? {
                break;
            }
        }
        Ok(())
    }

    /// How full the bulk files are, as the data file has it.
    pub(super) fn fills(&self) -> Result<Fills, Error> {
        read_fills(&self.txn, self.seed)
    }

    /// Every row that lies in a bulk file.
    pub(super) fn pointers(&self, mut each: impl FnMut(Pointer)) -> Result<(), Error> {
        for row in self.log.iter().map_err(trouble)? {
            let (revision, row) = row.map_err(trouble)?;
            let revision = Revision(revision.value());
            let pointer = Pointer::decode(self.seed, revision, row.value())
                .map_err(|bad| damaged(LOG_PLACE, revision, bad))?;
            pointer.into_iter().for_each(&mut each);
        }
        Ok(())
    }

    /// How many rows the tables of the file have.
    pub(super) fn lens(&self) -> Result<(u64, u64), Error> {
        let live = self.txn.open_table(LIVE).map_err(trouble)?;
        Ok((self.log.len().map_err(trouble)?, live.len().map_err(trouble)?))
    }

    /// Every change there is, oldest first.
    pub(super) fn log(
        &self,
        mut each: impl FnMut(Revision, LogRow<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        for row in self.log.iter().map_err(trouble)? {
            let (revision, row) = row.map_err(trouble)?;
            let revision = Revision(revision.value());
            let entry = LogEntry::decode(self.seed, revision, row.value())
                .map_err(|bad| damaged(LOG_PLACE, revision, bad))?;
            self.with_row(revision, entry, |row| each(revision, row))??;
        }
        for (revision, row) in self.tail.rows_after(self.file_state()?.newest) {
            let row = LogRow::decode(self.seed, revision, row)
                .map_err(|bad| damaged(TAIL_PLACE, revision, bad))?;
            each(revision, row)?;
        }
        Ok(())
    }
}

/// Whether a walk goes on.
pub(super) enum Next {
    Go,
    Stop,
}

fn key_text(key: &[u8]) -> Result<&str, Error> {
    std::str::from_utf8(key)
        .map_err(|_| damaged(LIVE_PLACE, key.escape_ascii(), Bad("the key is not valid UTF-8")))
}
