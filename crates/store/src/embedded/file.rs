//! The data file: redb's trees on a [`Disk`], and our rows in them.
//!
//! River: commit → **file** → disk.
//! Promise: every returned row has a verified checksum, and errors of redb become our errors with
//! the position of the data.
//!
//! | table | key | row |
//! | --- | --- | --- |
//! | `log` | revision | [`LogEntry`]: the change with its value or a pointer to it; also the watch history |
//! | `live` | key | [`LiveRow`](super::row::LiveRow): the revision of the newest version |
//! | `bulk` | file | [`Fill`]: the use of a bulk file |
//! | `meta` | `identity`, `state` | [`Identity`], [`State`] |

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use headwater_api::Revision;
use redb::{
    Database, ReadTransaction, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition,
    WriteTransaction,
};

use super::Options;
use super::bulk::{BULK, Bulk, Files, Fills};
use super::disk::Disk;
use super::overlay::Overlay;
use super::page_buffer::PageBuffer;
use super::row::{Bad, Fill, Identity, LIVE_LEN, LogEntry, LogRow, Seed, State};
use crate::change::ChangeKind;
use crate::key::Key;
use crate::lock::lock;
use crate::store::Error;

/// The name of the data file.
pub(super) const DATA: &str = "data.redb";

pub(super) const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");
/// Its keys are text, but are read as bytes: damaged text must not stop the process.
pub(super) const LIVE: TableDefinition<'_, &[u8], &[u8; LIVE_LEN]> = TableDefinition::new("live");
pub(super) const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");

const IDENTITY: &str = "identity";
const STATE: &str = "state";

/// The open data file.
#[derive(Debug)]
pub(super) struct DataFile {
    /// `None` only while it is dropped.
    database: Option<Database>,
    pub(super) identity: Identity,
    pub(super) seed: Seed,
    pub(super) health: Arc<FileHealth>,
    pub(super) bulk: Bulk,
    /// How full the bulk files were when it was opened.
    pub(super) fills: Fills,
}

/// What the backend learnt that redb does not tell.
#[derive(Debug, Default)]
pub(super) struct FileHealth {
    /// A sync failed: what the system now shows of the file may not be on the disk.
    sync_failed: AtomicBool,
    /// Something was not read, written or synced; redb refuses everything from then on.
    failed: AtomicBool,
    bytes: AtomicU64,
    bulk_bytes: AtomicU64,
}

impl FileHealth {
    /// Takes note of what came of a read, a write or a sync.
    pub(super) fn note<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if result.is_err() {
            self.failed.store(true, Ordering::Release);
        }
        result
    }

    /// The same of a sync after which what was there before is not to be relied on.
    fn note_sync(&self, result: io::Result<()>) -> io::Result<()> {
        if result.is_err() {
            self.sync_failed.store(true, Ordering::Release);
        }
        self.note(result)
    }

    /// Takes note of how full the bulk files are.
    pub(super) fn note_fills(&self, fills: &Fills) {
        self.bulk_bytes.store(fills.bytes(), Ordering::Relaxed);
    }

    pub(super) fn sync_failed(&self) -> bool {
        self.sync_failed.load(Ordering::Acquire)
    }

    pub(super) fn failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed) + self.bulk_bytes.load(Ordering::Relaxed)
    }
}

/// What may happen to a data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Change,
    /// Repairs stay in memory.
    Look,
}

/// How a data file came up.
#[derive(Debug, Default)]
pub(super) struct Opened {
    /// It had not been closed.
    pub(super) repaired: bool,
    /// The last transaction was incomplete and was undone.
    pub(super) rolled_back: bool,
}

impl DataFile {
    /// Makes a data file with nothing in it but who it is.
    pub(super) fn create(
        disk: &dyn Disk,
        name: &str,
        options: &Options,
        identity: Identity,
        state: State,
    ) -> Result<DataFile, Error> {
        let (database, health, _) = open_database(disk, name, options.cache_bytes, Access::Change)?;
        let (database, fills) = (Some(database), Fills::default());
        let bulk = Bulk::open(disk, &fills, options)?;
        let file = DataFile { database, identity, seed: identity.seed(), health, bulk, fills };
        let txn = file.begin_write()?;
        {
            txn.open_table(LOG).map_err(trouble)?;
            txn.open_table(LIVE).map_err(trouble)?;
            txn.open_table(BULK).map_err(trouble)?;
            let mut meta = txn.open_table(META).map_err(trouble)?;
            meta.insert(IDENTITY, identity.encode().as_slice()).map_err(trouble)?;
            meta.insert(STATE, state.encode(file.seed).as_slice()).map_err(trouble)?;
        }
        txn.commit().map_err(trouble)?;
        Ok(file)
    }

    /// Opens a data file; one that was not closed is repaired, which checks all of it.
    pub(super) fn open(
        disk: &dyn Disk,
        options: &Options,
        access: Access,
    ) -> Result<(DataFile, Opened), Error> {
        let (database, health, opened) = open_database(disk, DATA, options.cache_bytes, access)?;
        let identity = read_identity(&database)?;
        let seed = identity.seed();
        let fills = read_fills(&database.begin_read().map_err(trouble)?, seed)?;
        health.note_fills(&fills);
        let bulk = Bulk::open(disk, &fills, options)?;
        let database = Some(database);
        Ok((DataFile { database, identity, seed, health, bulk, fills }, opened))
    }

    /// Reads the whole file and compares every checksum of its trees. What does not agree is
    /// repaired: what was lost by that, if anything, the sums will tell.
    pub(super) fn check(&mut self) -> Result<(), Error> {
        let database = self.database.as_mut().expect("it is open until it is dropped");
        database.check_integrity().map_err(trouble)?;
        Ok(())
    }

    pub(super) fn begin_write(&self) -> Result<WriteTransaction, Error> {
        self.database().begin_write().map_err(trouble)
    }

    /// The file as it is now, and the bulk files that it names.
    pub(super) fn begin_read(&self) -> Result<(ReadTransaction, Arc<Files>), Error> {
        // Files are there before a transaction names them and go after one that does not: none may
        // come or go between the two.
        let files = self.bulk.files();
        let txn = self.database().begin_read().map_err(trouble)?;
        Ok((txn, files.clone()))
    }
}

impl DataFile {
    fn database(&self) -> &Database {
        self.database.as_ref().expect("it is open until it is dropped")
    }
}

impl Drop for DataFile {
    /// An engine that panicked before may do it again while it closes; that must stay in here.
    fn drop(&mut self) {
        let database = self.database.take();
        if catch_unwind(AssertUnwindSafe(|| drop(database))).is_err() {
            self.health.failed.store(true, Ordering::Release);
        }
    }
}

fn read_identity(database: &Database) -> Result<Identity, Error> {
    let txn = database.begin_read().map_err(trouble)?;
    let meta = txn.open_table(META).map_err(trouble)?;
    let row = meta.get(IDENTITY).map_err(trouble)?.ok_or_else(|| missing(META_PLACE, IDENTITY))?;
    Identity::decode(row.value()).map_err(|bad| damaged(META_PLACE, IDENTITY, bad))
}

pub(super) fn read_state(
    meta: &impl ReadableTable<&'static str, &'static [u8]>,
    seed: Seed,
) -> Result<State, Error> {
    let row = meta.get(STATE).map_err(trouble)?.ok_or_else(|| missing(META_PLACE, STATE))?;
    State::decode(seed, row.value()).map_err(|bad| damaged(META_PLACE, STATE, bad))
}

pub(super) fn write_state(txn: &WriteTransaction, seed: Seed, state: &State) -> Result<(), Error> {
    let mut meta = txn.open_table(META).map_err(trouble)?;
    meta.insert(STATE, state.encode(seed).as_slice()).map_err(trouble)?;
    Ok(())
}

/// How full the bulk files are; a file that was made without them has no such table.
pub(super) fn read_fills(txn: &ReadTransaction, seed: Seed) -> Result<Fills, Error> {
    let bulk = match txn.open_table(BULK) {
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Fills::default()),
        bulk => bulk.map_err(trouble)?,
    };
    let mut fills = Fills::default();
    for row in bulk.iter().map_err(trouble)? {
        let (id, row) = row.map_err(trouble)?;
        let fill = Fill::decode(seed, id.value(), row.value())
            .map_err(|bad| damaged(BULK_PLACE, id.value(), bad))?;
        fills.0.insert(id.value(), fill);
    }
    Ok(fills)
}

/// Reads what the log holds of a revision that must be there.
pub(super) fn read_entry<T>(
    log: &impl ReadableTable<u64, &'static [u8]>,
    seed: Seed,
    revision: Revision,
    read: impl FnOnce(LogEntry<'_>) -> T,
) -> Result<T, Error> {
    let row = log.get(revision.0).map_err(trouble)?.ok_or_else(|| missing(LOG_PLACE, revision))?;
    let entry = LogEntry::decode(seed, revision, row.value())
        .map_err(|bad| damaged(LOG_PLACE, revision, bad))?;
    Ok(read(entry))
}

/// The value a row gave a key; a row of another key there is damage.
pub(super) fn value_of(row: LogRow<'_>, key: &Key, revision: Revision) -> Result<Bytes, Error> {
    if row.key == key.as_str() && row.kind != ChangeKind::Deleted {
        return Ok(Bytes::copy_from_slice(row.value));
    }
    Err(damaged(LOG_PLACE, revision, Bad("the row belongs to another key")))
}

pub(super) const LOG_PLACE: &str = "data.redb, table log, revision";
pub(super) const LIVE_PLACE: &str = "data.redb, table live, key";
const BULK_PLACE: &str = "data.redb, table bulk, file";
const META_PLACE: &str = "data.redb, table meta, row";

pub(super) fn damaged(place: &str, row: impl std::fmt::Display, Bad(why): Bad) -> Error {
    Error::Damaged { place: format!("{place} {row}"), why: why.into() }
}

fn missing(place: &str, row: impl std::fmt::Display) -> Error {
    damaged(place, row, Bad("the row is missing"))
}

/// What redb reports, as ours: damage stays damage, all else may pass.
pub(super) fn trouble(error: impl Into<redb::Error>) -> Error {
    match error.into() {
        redb::Error::Corrupted(why) => Error::Damaged { place: DATA.into(), why },
        redb::Error::Io(error) if is_damage(error.kind()) => {
            Error::Damaged { place: DATA.into(), why: error.to_string() }
        }
        error @ (redb::Error::TableDoesNotExist(_)
        | redb::Error::TableTypeMismatch { .. }
        | redb::Error::TableIsMultimap(_)
        | redb::Error::TypeDefinitionChanged { .. }
        | redb::Error::UpgradeRequired(_)) => {
            Error::Damaged { place: DATA.into(), why: error.to_string() }
        }
        error => Error::Unavailable(error.to_string()),
    }
}

/// What reading a file that was cut or is no data file looks like.
pub(super) fn is_damage(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

fn open_database(
    disk: &dyn Disk,
    name: &str,
    cache_bytes: usize,
    access: Access,
) -> Result<(Database, Arc<FileHealth>, Opened), Error> {
    let place = || format!("{}/{name}", disk.place());
    let unavailable = |error: io::Error| Error::Unavailable(format!("{}: {error}", place()));
    let health = Arc::new(FileHealth::default());
    let inner = disk.open(name).map_err(unavailable)?;
    let inner: Box<dyn StorageBackend> = match access {
        Access::Change => inner,
        Access::Look => Box::new(Overlay::new(inner, Arc::default()).map_err(unavailable)?),
    };
    let backend = MonitoredFile { inner, health: health.clone(), pages: Mutex::default() };
    health.bytes.store(backend.len().map_err(unavailable)?, Ordering::Relaxed);
    let (repaired, rolled_back) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let flags = (repaired.clone(), rolled_back.clone());
    let database = Database::builder()
        .set_cache_size(cache_bytes)
        .set_repair_callback(move |session| {
            flags.0.store(true, Ordering::Relaxed);
            // Between the start (0) and the second step (0.6) it only reports that the newest
            // root did not verify and that it goes back to the one before.
            if session.progress() > 0.0 && session.progress() < 0.5 {
                flags.1.store(true, Ordering::Relaxed);
            }
        })
        .create_with_backend(backend)
        .map_err(trouble)?;
    let opened = Opened {
        repaired: repaired.load(Ordering::Relaxed),
        rolled_back: rolled_back.load(Ordering::Relaxed),
    };
    Ok((database, health, opened))
}

/// A backend that remembers what redb does not tell, and writes its pages together.
#[derive(Debug)]
struct MonitoredFile {
    inner: Box<dyn StorageBackend>,
    health: Arc<FileHealth>,
    pages: Mutex<PageBuffer>,
}

impl MonitoredFile {
    fn pages(&self) -> MutexGuard<'_, PageBuffer> {
        lock(&self.pages)
    }

    /// Writes the pages that wait.
    fn hand_on(&self, pages: &mut PageBuffer) -> io::Result<()> {
        self.health.note(pages.hand_on(|offset, run| self.inner.write(offset, run)))
    }
}

impl StorageBackend for MonitoredFile {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut pages = self.pages();
        if pages.has_some_of(offset, out.len()) {
            self.hand_on(&mut pages)?;
        }
        drop(pages);
        self.health.note(self.inner.read(offset, out))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.hand_on(&mut self.pages())?;
        self.health.bytes.store(len, Ordering::Relaxed);
        self.health.note(self.inner.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.hand_on(&mut self.pages())?;
        // Pages may have been handed on in vain for somebody who reads: they are lost.
        if self.health.failed() {
            return Err(io::Error::other("an earlier write failed"));
        }
        self.health.note_sync(self.inner.sync_data())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut pages = self.pages();
        if pages.add(offset, data) {
            return Ok(());
        }
        self.hand_on(&mut pages)?;
        match pages.add(offset, data) {
            true => Ok(()),
            false => self.health.note(self.inner.write(offset, data)),
        }
    }

    fn close(&self) -> io::Result<()> {
        self.hand_on(&mut self.pages())?;
        self.inner.close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that takes no writes.
    #[derive(Debug)]
    struct Full;

    impl StorageBackend for Full {
        fn len(&self) -> io::Result<u64> {
            Ok(0)
        }

        fn read(&self, _offset: u64, _out: &mut [u8]) -> io::Result<()> {
            Ok(())
        }

        fn set_len(&self, _len: u64) -> io::Result<()> {
            Ok(())
        }

        fn sync_data(&self) -> io::Result<()> {
            Ok(())
        }

        fn write(&self, _offset: u64, _data: &[u8]) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }
    }

    /// R13
    #[test]
    fn no_sync_succeeds_after_pages_were_lost() {
        let backend = MonitoredFile {
            inner: Box::new(Full),
            health: Arc::default(),
            pages: Mutex::default(),
        };
        backend.write(0, b"page").unwrap();
        // Somebody reads what waits, so it is written, which fails for the one who reads.
        assert!(backend.read(2, &mut [0; 4]).is_err());
        assert!(backend.sync_data().is_err());
        assert!(backend.health.failed() && !backend.health.sync_failed());
    }
}
