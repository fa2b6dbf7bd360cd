//! The published state: the newest durable state, as far as it is in memory.
//!
//! River: group commit → **published** → reads and watchers.
//! Promise: contains only durable writes. The index has the newest revision of each key but no
//! values; values are in the data file and, above the store, in the watch cache.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use headwater_api::Revision;

use super::absorb::Absorber;
use super::expiry::Expiry;
use super::file::DataFile;
use super::pending::Pending;
use super::row::{LiveRow, State};
use super::snapshot::{Next, StoreSnapshot};
use super::tail::{Sums, Tail};
use crate::change::{Change, ChangeKind};
use crate::key::Key;
use crate::recent::RecentChanges;
use crate::store::{Error, Range};

/// Recent changes kept for watchers that are nearly up to date, in bytes.
const RECENT_BYTES_MAX: usize = 8 << 20;

/// The newest revision of every key.
pub(super) type KeyIndex = BTreeMap<Key, Revision>;

/// The newest durable state.
#[derive(Debug)]
pub(super) struct Published {
    pub(super) index: KeyIndex,
    pub(super) recent: RecentChanges,
    /// What the data file lacks.
    pub(super) tail: Tail,
    pub(super) newest: Revision,
    /// Raised before anything below it is dropped, so that no reader finds a hole.
    pub(super) compacted: Revision,
}

impl Published {
    /// What a data file and its tail hold, once their sums have been checked: the live table, and
    /// what the log has after it.
    pub(super) fn load(file: &DataFile, tail: Tail) -> Result<Contents, Error> {
        let snapshot = &StoreSnapshot::new(file, tail.clone())?;
        let (state, file_state) = (snapshot.state()?, snapshot.file_state()?);
        let (mut index, mut expiries, mut digest) = (KeyIndex::new(), Vec::new(), 0_u64);
        let mut rows = 0;
        let mut add = |index: &mut KeyIndex, key: Key, row: LiveRow| {
            if row.expires != 0 {
                expiries.push(Expiry { at: row.expires, key: key.clone(), revision: row.revision });
            }
            index.insert(key, row.revision);
        };
        snapshot.live(Bound::Unbounded, |key, row| {
            rows += 1;
            digest = digest.wrapping_add(row.digest(snapshot.seed, key));
            add(&mut index, Key::new(key), row);
            Ok(Next::Go)
        })?;
        check_sums(snapshot, &file_state, rows, digest)?;
        let mut pending = Pending::default();
        for revision in (state.live_at.0 + 1..=state.newest.0).map(Revision) {
            let (key, row) = snapshot.row(revision, |row| {
                let live = LiveRow { revision, expires: row.expires };
                (Key::new(row.key), (row.kind != ChangeKind::Deleted).then_some(live))
            })?;
            match row {
                Some(row) => add(&mut index, key.clone(), row),
                None => drop(index.remove(&key)),
            }
            // The rest is added when it is absorbed.
            if revision <= file_state.newest {
                pending.add(key, row);
            }
        }
        let objects = index.len() as u64;
        check("log", objects == state.objects, || {
            format!("found {objects} objects, expected {}", state.objects)
        })?;
        let published = Published {
            index,
            recent: RecentChanges::after(state.newest),
            tail,
            newest: state.newest,
            compacted: state.compacted,
        };
        let absorber = Absorber::new(file_state, pending, file.fills.clone());
        Ok(Contents { published, state, absorber, expiries })
    }

    /// The newest state, to be read while others are committed.
    pub(super) fn snapshot(&self, file: &DataFile) -> Result<StoreSnapshot, Error> {
        StoreSnapshot::new(file, self.tail.clone())
    }

    /// Makes durable changes visible.
    pub(super) fn publish(&mut self, changes: Vec<Change>, rows: Vec<Bytes>, sums: Sums) {
        self.tail.push(rows, sums);
        for change in changes {
            self.newest = change.revision;
            match change.kind {
                ChangeKind::Deleted => self.index.remove(&change.key),
                _ => self.index.insert(change.key.clone(), change.revision),
            };
            self.recent.push(change);
        }
        self.recent.shrink_to(RECENT_BYTES_MAX);
    }

    /// Which versions a range of the newest state holds, and whether there are more.
    pub(super) fn positions(&self, range: &Range) -> (Vec<(Key, Revision)>, bool) {
        let limit = range.limit.unwrap_or(usize::MAX);
        let mut keys = self
            .index
            .range::<str, _>((range.start(), Bound::Unbounded))
            .take_while(|(key, _)| key.as_str().starts_with(&range.prefix))
            .map(|(key, revision)| (key.clone(), *revision));
        let positions = keys.by_ref().take(limit).collect();
        (positions, keys.next().is_some())
    }

    /// Refuses a past that is gone.
    pub(super) fn check_kept(&self, asked: Revision) -> Result<(), Error> {
        if asked < self.compacted {
            return Err(Error::Compacted { asked, oldest: self.compacted });
        }
        Ok(())
    }

    /// Refuses a future that is not there.
    pub(super) fn check_reached(&self, asked: Revision) -> Result<(), Error> {
        if asked > self.newest {
            return Err(Error::Future { asked, current: self.newest });
        }
        Ok(())
    }
}

/// What a store holds, as far as it is kept in memory.
#[derive(Debug)]
pub(super) struct Contents {
    pub(super) published: Published,
    pub(super) state: State,
    pub(super) absorber: Absorber,
    pub(super) expiries: Vec<Expiry>,
}

/// A row that is missing as a whole has no checksum to find it by; the sums do.
fn check_sums(
    snapshot: &StoreSnapshot,
    state: &State,
    rows: u64,
    digest: u64,
) -> Result<(), Error> {
    let (log_rows, live_rows) = snapshot.lens()?;
    let counts = |found, expected| move || format!("found {found} rows, expected {expected}");
    check("log", log_rows == state.log_rows, counts(log_rows, state.log_rows))?;
    check("live", live_rows == rows, counts(rows, live_rows))?;
    check("live", rows == state.live_rows, counts(rows, state.live_rows))?;
    let why = || "the digest of its rows does not match".into();
    check("live", digest == state.live_digest, why)
}

fn check(table: &str, fits: bool, why: impl FnOnce() -> String) -> Result<(), Error> {
    if fits {
        return Ok(());
    }
    Err(Error::Damaged { place: format!("data.redb, table {table}"), why: why() })
}
