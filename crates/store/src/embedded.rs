//! The embedded engine: a durable store for one process, whose log is the store.
//!
//! River: server writes → **store** → watch cache.
//! Promise: an acknowledged write survives a crash at any time, no write is visible before it is
//! durable, and damaged data is reported with its position and never served. `docs/storage.md`
//! describes the format and the reasons.

pub mod disk;
mod row;
mod roster;
mod frame;
mod scan;
mod segment;
mod free;
mod index;
mod head;
mod format;
mod log;
mod published;
mod mailbox;
mod expiry;
mod group;
mod retention;
mod space;
mod load;
mod salvage;
mod start;
mod cleaner;
mod scrub;
mod upkeep;
mod watch;
mod past;
mod writer;
mod archive;
mod backup;
mod restore;
mod verify;

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, StreamExt};
use headwater_api::{Clock, Revision, SystemClock};

use crate::key::Key;
use crate::lock::{self, lock};
use crate::store::{
    ChangeStream, Committed, Error, Range, RangePage, Record, Scrubbed, Store, StoreCondition,
    VALUE_MAX, Write,
};
use crate::versions::{KeyHistory, RevisionAt, VersionRange};
use cleaner::Cleaner;
use disk::{Directory, Disk};
use log::Log;
use mailbox::{Mailbox, Task};
use published::Published;
use segment::RowReader;
use space::Room;
use watch::Cursor;
use writer::Writer;

pub use archive::{Count, Manifest, verify_backup};
pub use format::Identity;
pub use index::Usage;
pub use restore::restore;
pub use retention::Retention;
pub use verify::{Verified, verify_dir, verify_on};

/// How an [`Embedded`] behaves.
#[derive(Clone)]
pub struct Options {
    /// The largest value a write may carry, in bytes.
    pub value_max: usize,
    /// How much history is kept without being asked.
    pub retention: Retention,
    /// The size of a segment of the log, in bytes.
    pub segment_bytes: u64,
    /// The longest pause of the scrub between two segments.
    pub scrub_pause: Duration,
    /// Start a damaged store without the data that cannot be read.
    pub salvage: bool,
    /// The time of day, for timestamps and for times to live over a restart.
    pub clock: Arc<dyn Clock>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            value_max: VALUE_MAX,
            retention: Retention::default(),
            segment_bytes: 32 << 20,
            // With segments of 32 MiB this reads 40 MB a minute at most, and a day is enough for
            // 46 GB; larger stores are read in less time per segment.
            scrub_pause: Duration::from_secs(60),
            salvage: false,
            clock: Arc::new(SystemClock),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { value_max, retention, segment_bytes, scrub_pause, salvage, .. } = self;
        let fields = (value_max, retention, segment_bytes, scrub_pause, salvage);
        f.debug_tuple("Options").field(&fields).finish_non_exhaustive()
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
    /// The writer, and the upkeep, which ends after it.
    threads: Mutex<Vec<JoinHandle<()>>>,
    lost: Vec<String>,
}

impl Embedded {
    /// Opens the store in a directory, or creates it. Blocks while it reads all rows.
    pub fn open(dir: &Path, options: Options) -> Result<Embedded, Error> {
        let unavailable = |error: io::Error| Error::Unavailable(error.to_string());
        Embedded::open_on(Arc::new(Directory::lock(dir).map_err(unavailable)?), options)
    }

    /// Opens the store on any disk.
    pub fn open_on(disk: Arc<dyn Disk>, options: Options) -> Result<Embedded, Error> {
        let start::Started { identity, published, log, expiries, ages, lost } =
            start::start(&disk, &options)?;
        let shared = Arc::new(Shared {
            disk,
            options,
            identity,
            newest: tokio::sync::watch::Sender::new(published.newest),
            published: RwLock::new(published),
            log: Mutex::new(log),
            cleaner: Mutex::default(),
            mailbox: Mailbox::new(),
            closed: tokio::sync::watch::Sender::new(false),
            report: Mutex::default(),
        });
        let (upkeep, asked) = mpsc::channel();
        let writer = Writer::new(shared.clone(), upkeep, expiries, ages);
        let store = Embedded { shared, threads: Mutex::default(), lost };
        store.spawn("store-writer", move || writer.run())?;
        let shared = store.shared.clone();
        store.spawn("store-upkeep", move || upkeep::run(&shared, &asked))?;
        Ok(store)
    }

    fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(work);
        lock(&self.threads).push(thread.map_err(|e| Error::Unavailable(e.to_string()))?);
        Ok(())
    }

    /// What a salvage could not read at this start, with the positions.
    pub fn lost(&self) -> &[String] {
        &self.lost
    }

    /// The identity of the store.
    pub fn identity(&self) -> Identity {
        self.shared.identity
    }

    /// The content of the store in numbers.
    pub fn usage(&self) -> Usage {
        self.shared.published().index.usage()
    }

    /// Stops accepting writes and completes those that wait. Blocks until it is done; dropping the
    /// engine does the same.
    pub fn close(&self) {
        self.shared.mailbox.close();
        let threads = std::mem::take(&mut *lock(&self.threads));
        if threads.is_empty() {
            return;
        }
        // They catch their panics; if one panicked all the same, there is nothing left to do.
        threads.into_iter().for_each(|thread| drop(thread.join()));
        self.shared.log().close(self.shared.published().newest);
        self.shared.closed.send_replace(true);
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.close();
    }
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
        self.shared.mailbox.request(Task::Write(write)).await
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<ChangeStream, Error> {
        self.shared.published().check_kept(after)?;
        let cursor = Cursor::new(&self.shared, prefix, after);
        Ok(stream::unfold(Some(cursor), Cursor::step).boxed())
    }

    async fn compact(&self, at: Revision) -> Result<(), Error> {
        self.shared.mailbox.request(Task::Compact(at)).await.map(drop)
    }

    async fn versions(&self, range: VersionRange) -> Result<KeyHistory, Error> {
        self.shared.blocking(move |shared| shared.versions(&range)).await
    }

    async fn revision_at(&self, time: i64) -> Result<Option<RevisionAt>, Error> {
        self.shared.blocking(move |shared| shared.revision_at(time).map(Some)).await
    }

    fn condition(&self) -> StoreCondition {
        let (revision, compacted, segments) = {
            let published = self.shared.published();
            (published.newest, published.compacted, published.segments.clone())
        };
        let disk_bytes = segments.values().filter_map(|segment| segment.file.len().ok()).sum();
        let report = self.shared.report();
        let trouble = report.trouble.clone().or_else(|| report.room.refusal());
        let (damage, scrubbed) = (report.damage.clone(), report.scrubbed);
        let key_services = None;
        StoreCondition { revision, compacted, disk_bytes, trouble, damage, scrubbed, key_services }
    }
}

/// The state that the engine, its threads and its watchers share.
#[derive(Debug)]
struct Shared {
    disk: Arc<dyn Disk>,
    options: Options,
    identity: Identity,
    published: RwLock<Published>,
    /// Locked from before a frame is written until it is published.
    log: Mutex<Log>,
    cleaner: Mutex<Cleaner>,
    newest: tokio::sync::watch::Sender<Revision>,
    mailbox: Mailbox,
    closed: tokio::sync::watch::Sender<bool>,
    report: Mutex<Report>,
}

/// What the threads report.
#[derive(Debug, Default)]
struct Report {
    /// Why the last write failed, if so.
    trouble: Option<String>,
    room: Room,
    /// The first damage that was found while serving.
    damage: Option<String>,
    scrubbed: Scrubbed,
}

impl Shared {
    /// Reads on a thread that may wait for the disk.
    async fn blocking<T: Send + 'static>(
        self: &Arc<Shared>,
        read: impl FnOnce(&Shared) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let shared = self.clone();
        let read = tokio::task::spawn_blocking(move || read(&shared));
        let stopping = |_| Err(Error::Unavailable("the process is stopping".into()));
        read.await.unwrap_or_else(stopping)
    }

    fn get(&self, key: &Key) -> Result<Option<Record>, Error> {
        let (row, reader) = {
            let published = self.published();
            let Some(row) = published.index.newest(key.as_str()) else { return Ok(None) };
            if let Some(change) = published.recent.get(row.revision) {
                let (key, value) = (key.clone(), change.value.clone());
                return Ok(Some(Record { key, revision: row.revision, value }));
            }
            (row, self.reader(&published)?)
        };
        let version = reader.version(row, key.as_str())?;
        Ok(Some(Record { key: key.clone(), revision: row.revision, value: version.value }))
    }

    fn range(&self, range: &Range) -> Result<RangePage, Error> {
        let (rows, more, at, reader) = {
            let published = self.published();
            let at = published.state_at(range.at)?;
            let (rows, more) = published.index.range(range, at);
            (rows, more, at, self.reader(&published)?)
        };
        Ok(RangePage { records: reader.records(rows)?, revision: at, more })
    }

    /// Reads rows from disk, unless the store is closed.
    fn reader(&self, published: &Published) -> Result<RowReader, Error> {
        match *self.closed.borrow() {
            true => Err(Error::Unavailable("the store is closed".into())),
            false => Ok(published.reader(self.identity.seed())),
        }
    }

    fn published(&self) -> RwLockReadGuard<'_, Published> {
        lock::read(&self.published)
    }

    fn published_mut(&self) -> RwLockWriteGuard<'_, Published> {
        lock::write(&self.published)
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        lock(&self.log)
    }

    fn report(&self) -> MutexGuard<'_, Report> {
        lock(&self.report)
    }

    /// Records damage that was found while serving.
    fn report_damage(&self, error: &Error) {
        if matches!(error, Error::Damaged { .. }) {
            self.report().damage.get_or_insert_with(|| error.to_string());
        }
    }
}

fn damaged(disk: &dyn Disk, name: &str, why: &str) -> Error {
    Error::Damaged { place: format!("{}/{name}", disk.place()), why: why.into() }
}

fn unavailable(disk: &dyn Disk, name: &str, error: &io::Error) -> Error {
    Error::Unavailable(format!("{}/{name}: {error}", disk.place()))
}
