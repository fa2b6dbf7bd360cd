//! The embedded engine: a durable store for one process, based on redb.
//!
//! River: server writes → **store** → watch cache.
//! Promise: an acknowledged write survives a crash at any time, no write is visible before it is
//! durable, and damaged data is reported with its position and never served. `docs/storage.md`
//! describes the format and the reasons.

pub mod disk;
mod row;
mod page_buffer;
mod bulk;
mod file;
mod tail;
mod snapshot;
mod frame;
mod wal;
mod overlay;
mod check;
mod head;
mod mailbox;
mod expiry;
mod pending;
mod absorb;
mod background;
mod published;
mod group;
mod retention;
mod space;
mod start;
mod undo;
mod watch;
mod writer;
mod backup;
mod verify;

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;

use async_trait::async_trait;
use futures::stream::{self, StreamExt};
use headwater_api::{Clock, Revision, SystemClock};

use crate::key::Key;
use crate::lock::{self, lock};
use crate::store::{
    ChangeStream, Committed, Error, Range, RangePage, Record, Store, StoreCondition, VALUE_MAX,
    Write,
};
use disk::{Directory, Disk};
use file::{DATA, DataFile};
use mailbox::Mailbox;
use published::{Contents, Published};
use row::State;
use snapshot::StoreSnapshot;
use undo::Undos;
use watch::Cursor;
use writer::Writer;

pub use backup::{Count, Manifest, restore, verify_backup};
pub use retention::Retention;
pub use row::Identity;
pub use verify::{Verified, verify_dir};

/// How an [`Embedded`] behaves.
#[derive(Clone)]
pub struct Options {
    /// The largest value a write may carry, in bytes.
    pub value_max: usize,
    /// How much history is kept without being asked.
    pub retention: Retention,
    /// Memory for pages of the data file, in bytes. Values are read rarely: the watch cache has
    /// them; this is for the trees.
    pub cache_bytes: usize,
    /// What the write-ahead log takes before it is brought into the data file, in bytes. There may
    /// be twice as much, on disk and in memory.
    pub wal_bytes: u64,
    /// What a file of large rows takes before the next one is begun, in bytes.
    pub bulk_bytes: u64,
    /// Rows of so many bytes and more are large.
    pub large_bytes: usize,
    /// The time of day, for timestamps and for times to live over a restart.
    pub clock: Arc<dyn Clock>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            value_max: VALUE_MAX,
            retention: Retention::default(),
            cache_bytes: 40 << 20,
            wal_bytes: 4 << 20,
            bulk_bytes: 64 << 20,
            large_bytes: 1 << 10,
            clock: Arc::new(SystemClock),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("value_max", &self.value_max)
            .field("retention", &self.retention)
            .field("cache_bytes", &self.cache_bytes)
            .field("wal_bytes", &self.wal_bytes)
            .field("bulk_bytes", &self.bulk_bytes)
            .field("large_bytes", &self.large_bytes)
            .finish_non_exhaustive()
    }
}

/// A store in a directory of its own.
///
/// ```no_run
/// # fn example() -> Result<(), headwater_store::Error> {
/// use headwater_store::{Embedded, EmbeddedOptions};
///
/// let store = Embedded::open("data".as_ref(), EmbeddedOptions::default())?;
/// store.close();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Embedded {
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Embedded {
    /// Opens the store in a directory, making it if there is none. Blocks while it reads the keys,
    /// and the whole file if it had not been closed; else that is read beside, and the first write
    /// waits for it.
    pub fn open(dir: &Path, options: Options) -> Result<Embedded, Error> {
        let unavailable = |error: io::Error| Error::Unavailable(error.to_string());
        Embedded::open_on(Arc::new(Directory::lock(dir).map_err(unavailable)?), options)
    }

    /// Opens the store on any disk.
    pub fn open_on(disk: Arc<dyn Disk>, options: Options) -> Result<Embedded, Error> {
        let start::Started { loaded, head, wal, check } = start::start(&*disk, &options)?;
        let ages = start::ages(&loaded, options.clock.now().as_millisecond());
        let start::Loaded { file, contents, .. } = loaded;
        let Contents { published, state, absorber, expiries } = contents;
        let shared = Arc::new(Shared {
            disk,
            options,
            identity: file.identity,
            newest: tokio::sync::watch::Sender::new(published.newest),
            file: RwLock::new(Some(file)),
            published: RwLock::new(published),
            mailbox: Mailbox::new(),
            release: tokio::sync::watch::Sender::new(false),
            undos: Undos::default(),
            report: Mutex::new(Report { state, ..Report::default() }),
        });
        let known = (state, absorber, expiries);
        let writer = Writer::new(shared.clone(), (head, wal), check, known, ages);
        let thread = std::thread::Builder::new().name("store-writer".into());
        let thread = thread.spawn(move || writer.run());
        let thread = thread.map_err(|error| Error::Unavailable(error.to_string()))?;
        Ok(Embedded { shared, writer: Mutex::new(Some(thread)) })
    }

    /// Who this store is.
    pub fn identity(&self) -> Identity {
        self.shared.identity
    }

    /// What the store holds, in numbers.
    pub fn usage(&self) -> Usage {
        let Report { state, transactions, .. } = *self.shared.report();
        Usage {
            objects: state.objects,
            object_bytes: state.object_bytes,
            history_bytes: state.history_bytes(),
            versions: state.log_rows,
            transactions,
        }
    }

    /// Stops taking writes, finishes those that wait, and closes the file. Blocks until it is
    /// done; dropping the engine does the same.
    pub fn close(&self) {
        self.shared.mailbox.close();
        let writer = lock(&self.writer).take();
        if let Some(writer) = writer {
            // It catches its panics; if it panicked all the same, there is nothing left to close.
            let _ = writer.join();
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.close();
    }
}

/// What a store holds, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Keys that have a value.
    pub objects: u64,
    /// Bytes of their rows.
    pub object_bytes: u64,
    /// Bytes of rows kept only for the past.
    pub history_bytes: u64,
    /// Rows of both.
    pub versions: u64,
    /// Groups written to the log and transactions on the data file since the start, each with one
    /// sync.
    pub transactions: u64,
}

#[async_trait]
impl Store for Embedded {
    async fn revision(&self) -> Result<Revision, Error> {
        Ok(self.shared.published().newest)
    }

    async fn get(&self, key: &Key) -> Result<Option<Record>, Error> {
        let key = key.clone();
        self.shared.blocking(move |shared| shared.get(&key)).await
    }

    async fn range(&self, range: Range) -> Result<RangePage, Error> {
        self.shared.blocking(move |shared| shared.range(&range)).await
    }

    async fn commit(&self, write: Write) -> Result<Committed, Error> {
        write.check(self.shared.options.value_max)?;
        self.shared.mailbox.commit(write).await
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<ChangeStream, Error> {
        self.shared.published().check_kept(after)?;
        let cursor = Cursor::new(&self.shared, prefix, after);
        Ok(stream::unfold(Some(cursor), Cursor::step).boxed())
    }

    async fn compact(&self, at: Revision) -> Result<(), Error> {
        self.shared.mailbox.compact(at).await
    }

    fn condition(&self) -> StoreCondition {
        let (revision, compacted) = {
            let published = self.shared.published();
            (published.newest, published.compacted)
        };
        let trouble = self.shared.trouble();
        StoreCondition { revision, compacted, disk_bytes: self.shared.disk_bytes(), trouble }
    }
}

/// What the engine, its writer and its watchers have in common.
#[derive(Debug)]
struct Shared {
    disk: Arc<dyn Disk>,
    options: Options,
    identity: Identity,
    /// `None` once it is closed, and while it is opened again after a failure. Readers hold the
    /// lock while they read, so closing waits for them. Taken before `published`.
    file: RwLock<Option<DataFile>>,
    published: RwLock<Published>,
    newest: tokio::sync::watch::Sender<Revision>,
    mailbox: Mailbox,
    /// Whoever holds the file for long lets go of it while this is true.
    release: tokio::sync::watch::Sender<bool>,
    undos: Undos,
    report: Mutex<Report>,
}

/// What the writer reports.
#[derive(Debug, Default)]
struct Report {
    /// The sums after the last commit.
    state: State,
    /// How many syncs there were, of commits and of what brings them into the data file.
    transactions: u64,
    /// Why the file cannot be used, if so.
    trouble: Option<String>,
    /// Why only deletes are accepted, if so.
    full: Option<String>,
}

impl Shared {
    /// Reads on a thread that may wait for the disk.
    async fn blocking<T: Send + 'static>(
        self: &Arc<Shared>,
        read: impl FnOnce(&Shared) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let shared = self.clone();
        let read = tokio::task::spawn_blocking(move || read(&shared));
        match read.await {
            Ok(result) => result,
            Err(error) if error.is_panic() => Err(Error::Damaged {
                place: DATA.into(),
                why: "the storage engine failed on damaged pages".into(),
            }),
            Err(_) => Err(Error::Unavailable("the process is stopping".into())),
        }
    }

    fn get(&self, key: &Key) -> Result<Option<Record>, Error> {
        self.with_file(|file| {
            let published = self.published();
            let Some(revision) = published.index.get(key).copied() else { return Ok(None) };
            if let Some(change) = published.recent.get(revision) {
                return Ok(Some(Record {
                    key: key.clone(),
                    revision,
                    value: change.value.clone(),
                }));
            }
            let snapshot = published.snapshot(file)?;
            drop(published);
            let value = snapshot.value(key, revision)?;
            Ok(Some(Record { key: key.clone(), revision, value }))
        })
    }

    fn range(&self, range: &Range) -> Result<RangePage, Error> {
        self.with_file(|file| {
            let published = self.published();
            let at = range.at.unwrap_or(published.newest);
            published.check_kept(at)?;
            published.check_reached(at)?;
            // The snapshot is taken under the lock: nothing at `at` is dropped before it.
            let snapshot = published.snapshot(file)?;
            let (positions, more) = if at == published.newest {
                let found = published.positions(range);
                drop(published);
                found
            } else {
                drop(published);
                self.undos.positions(&snapshot, at, range)?
            };
            let records = read_records(&snapshot, positions)?;
            Ok(RangePage { records, revision: at, more })
        })
    }

    /// Works with the open file; fails if there is none.
    fn with_file<T>(&self, work: impl FnOnce(&DataFile) -> Result<T, Error>) -> Result<T, Error> {
        let file = lock::read(&self.file);
        match &*file {
            Some(file) => work(file),
            None => {
                let trouble = self.trouble();
                Err(Error::Unavailable(trouble.unwrap_or_else(|| "the store is closed".into())))
            }
        }
    }

    /// Whether the open file refuses everything because something failed.
    fn has_failed(&self) -> bool {
        let file = lock::read(&self.file);
        file.as_ref().is_some_and(|file| file.health.failed())
    }

    /// Takes the file to close it, once all who read it are done.
    fn take_file(&self) -> Option<DataFile> {
        self.release.send_replace(true);
        lock::write(&self.file).take()
    }

    fn put_file(&self, file: DataFile) {
        self.release.send_replace(false);
        *lock::write(&self.file) = Some(file);
    }

    fn published(&self) -> RwLockReadGuard<'_, Published> {
        lock::read(&self.published)
    }

    fn published_mut(&self) -> RwLockWriteGuard<'_, Published> {
        lock::write(&self.published)
    }

    fn report(&self) -> MutexGuard<'_, Report> {
        lock(&self.report)
    }

    /// Why writes fail, if they do.
    fn trouble(&self) -> Option<String> {
        let report = self.report();
        report.trouble.clone().or_else(|| report.full.clone())
    }

    fn disk_bytes(&self) -> u64 {
        // While the file is being closed its size does not matter.
        match self.file.try_read() {
            Ok(file) => file.as_ref().map_or(0, |file| file.health.bytes()),
            Err(_) => 0,
        }
    }
}

/// Reads values in the order they lie on disk, and returns them in the order they were asked for.
fn read_records(
    snapshot: &StoreSnapshot,
    positions: Vec<(Key, Revision)>,
) -> Result<Vec<Record>, Error> {
    let mut order: Vec<(usize, (Key, Revision))> = positions.into_iter().enumerate().collect();
    order.sort_unstable_by_key(|(_, (_, revision))| *revision);
    let mut records = Vec::with_capacity(order.len());
    for (place, (key, revision)) in order {
        let value = snapshot.value(&key, revision)?;
        records.push((place, Record { key, revision, value }));
    }
    records.sort_unstable_by_key(|(place, _)| *place);
    Ok(records.into_iter().map(|(_, record)| record).collect())
}
