//! The start: opens a directory and verifies it.
//!
//! Promise: a start serves exactly the acknowledged writes, or refuses and reports the position of
//! the damage. Unfinished data of a crash was never acknowledged and is rolled back; every other
//! mismatch is damage.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use headwater_api::Revision;
use uuid::Uuid;

use super::Options;
use super::bulk;
use super::check::{Before, Check};
use super::disk::Disk;
use super::file::{Access, DATA, DataFile, LIVE, LOG, Opened, trouble};
use super::head::{HEAD, Head, HeadFile};
use super::published::{Contents, Published};
use super::row::{Identity, State};
use super::snapshot::{Next, StoreSnapshot};
use super::tail::Tail;
use super::wal::{self, Wal, WalContents};
use crate::store::{Error, FIRST};

/// The number of the format this code writes.
const FORMAT: u32 = 3;

/// The one before it, in which all rows are in the data file.
const FORMAT_WITHOUT_BULK: u32 = 2;

/// The one before that, which had no write-ahead log.
const FORMAT_WITHOUT_LOG: u32 = 1;

/// The file that names the format, for programs that know only older ones.
const FORMAT_FILE: &str = "FORMAT";

/// Where a data file is made before it gets its name.
const DATA_NEW: &str = "data.redb.new";

/// Log rows looked at to learn how old the history is.
const AGE_SAMPLES: u64 = 16;

/// A data file and what is kept of it in memory.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) file: DataFile,
    pub(super) contents: Contents,
    /// What the write-ahead log held.
    found: WalContents,
}

/// What a start comes to.
pub(super) struct Started {
    pub(super) loaded: Loaded,
    pub(super) head: HeadFile,
    pub(super) wal: Wal,
    /// What has to succeed before anything is written.
    pub(super) check: Option<Check>,
}

/// Opens what is there, or makes it.
pub(super) fn start(disk: &dyn Disk, options: &Options) -> Result<Started, Error> {
    let has_data = disk.exists(DATA).map_err(|error| unavailable(disk, DATA, &error))?;
    match (read_format(disk)?, has_data) {
        (Some(FORMAT), true) => {}
        (Some(FORMAT_WITHOUT_BULK | FORMAT_WITHOUT_LOG), true) => write_format(disk)?,
        (Some(FORMAT | FORMAT_WITHOUT_BULK | FORMAT_WITHOUT_LOG), false) => {
            return Err(damaged(disk, DATA, "the file is missing"));
        }
        (Some(other), _) => return Err(unknown_format(disk, other)),
        (None, false) => create(disk, options)?,
        (None, true) => finish_create(disk, options)?,
    }
    guarded(disk, || open(disk, options))
}

/// Looks at what is there without changing it: for a disk that only pretends to write.
pub(super) fn look(disk: &dyn Disk, options: &Options) -> Result<Loaded, Error> {
    let format = match read_format(disk)? {
        Some(format @ (FORMAT | FORMAT_WITHOUT_BULK | FORMAT_WITHOUT_LOG)) => format,
        Some(other) => return Err(unknown_format(disk, other)),
        None => return Err(damaged(disk, FORMAT_FILE, "the file is missing")),
    };
    let (mut file, opened) = DataFile::open(disk, options, Access::Look)?;
    file.check()?;
    let head = match disk.exists(HEAD).map_err(|error| unavailable(disk, HEAD, &error))? {
        true => read_head(disk, &open_head(disk)?)?,
        false => None,
    };
    let found = match format {
        FORMAT_WITHOUT_LOG => WalContents::default(),
        _ => WalContents::read(disk, file.seed)?,
    };
    let loaded = load(file, found)?;
    check_head(disk, &loaded, head, &opened)?;
    Ok(loaded)
}

/// Opens the file again after a failure and checks all of it. What was acknowledged must be there.
pub(super) fn reopen(
    disk: &dyn Disk,
    options: &Options,
    acknowledged: Revision,
    suspect: bool,
) -> Result<(Loaded, Wal), Error> {
    guarded(disk, || {
        if suspect {
            renew(disk, options, acknowledged)?;
        }
        let (mut file, opened) = DataFile::open(disk, options, Access::Change)?;
        if !opened.repaired {
            file.check()?;
        }
        let loaded = load_all(disk, file)?;
        check_reaches(disk, &loaded.contents.state, acknowledged)?;
        bulk::remove_strays(disk, &loaded.file.fills);
        let wal = open_wal(disk, options, &loaded)?;
        wal.sync().map_err(|error| unavailable(disk, WAL, &error))?;
        Ok((loaded, wal))
    })
}

/// How old some revisions are, as far as the wall clock knows, oldest first.
pub(super) fn ages(loaded: &Loaded, wall: i64) -> Vec<(Instant, Revision)> {
    let (state, now) = (&loaded.contents.state, Instant::now());
    let snapshot = loaded.contents.published.snapshot(&loaded.file);
    let Ok(snapshot) = snapshot else { return Vec::new() };
    let oldest = state.compacted.max(loaded.file.identity.first);
    let step = (state.newest.0 - oldest.0).div_ceil(AGE_SAMPLES).max(1);
    let sample = |revision: u64| {
        let time = snapshot.row(Revision(revision), |row| row.time).ok()?;
        let age = Duration::from_millis(wall.saturating_sub(time).try_into().unwrap_or(0));
        Some((now.checked_sub(age)?, Revision(revision)))
    };
    let revisions = (oldest.0 + 1..=state.newest.0).step_by(usize::try_from(step).unwrap_or(1));
    revisions.filter_map(sample).collect()
}

fn open(disk: &dyn Disk, options: &Options) -> Result<Started, Error> {
    let head_file = open_head(disk)?;
    let head = read_head(disk, &head_file)?;
    if let Some(head) = head.filter(|head| head.suspect) {
        renew(disk, options, head.revision)?;
    }
    let before = Before::open(disk)?;
    let (file, opened) = DataFile::open(disk, options, Access::Change)?;
    let mut loaded = load_all(disk, file)?;
    check_head(disk, &loaded, head, &opened)?;
    bulk::remove_strays(disk, &loaded.file.fills);
    let wal = open_wal(disk, options, &loaded)?;
    if let Err(error) = wal.sync() {
        // What the system shows of it may not be on the disk: the next start must not rely on it.
        let known = head.map_or(Revision::ZERO, |head| head.revision);
        let head = Head { suspect: true, ..Head::open_at(loaded.file.seed, known) };
        head_file.write(head).map_err(|error| unavailable(disk, HEAD, &error))?;
        return Err(unavailable(disk, WAL, &error));
    }
    if opened.repaired {
        let revision = loaded.contents.state.newest;
        tracing::warn!(
            %revision, rolled_back = opened.rolled_back,
            "repaired the data file after an unclean stop"
        );
    }
    let head = Head::open_at(loaded.file.seed, loaded.contents.state.newest);
    let written = head_file.write(head).and_then(|()| head_file.sync()).and_then(|()| disk.sync());
    written.map_err(|error| unavailable(disk, HEAD, &error))?;
    let check = match before {
        // The repair has checked everything.
        _ if opened.repaired => None,
        Some(before) => Some(before.check()?),
        None => {
            loaded.file.check()?;
            None
        }
    };
    Ok(Started { loaded, head: head_file, wal, check })
}

fn open_head(disk: &dyn Disk) -> Result<HeadFile, Error> {
    HeadFile::open(disk).map_err(|error| unavailable(disk, HEAD, &error))
}

fn read_head(disk: &dyn Disk, file: &HeadFile) -> Result<Option<Head>, Error> {
    file.read().map_err(|error| unavailable(disk, HEAD, &error))
}

/// What the data file and the write-ahead log hold together.
fn load_all(disk: &dyn Disk, file: DataFile) -> Result<Loaded, Error> {
    let found = WalContents::read(disk, file.seed)?;
    load(file, found)
}

fn load(file: DataFile, found: WalContents) -> Result<Loaded, Error> {
    let state = StoreSnapshot::new(&file, Tail::default())?.file_state()?;
    let contents = Published::load(&file, found.tail(&state)?)?;
    Ok(Loaded { file, contents, found })
}

fn open_wal(disk: &dyn Disk, options: &Options, loaded: &Loaded) -> Result<Wal, Error> {
    Wal::open(disk, &loaded.found, options.wal_bytes)
        .map_err(|error| unavailable(disk, WAL, &error))
}

/// Both files of the write-ahead log, in messages.
const WAL: &str = "WAL";

/// The data file must reach what its head says, and end exactly there if it was closed.
fn check_head(
    disk: &dyn Disk,
    loaded: &Loaded,
    head: Option<Head>,
    opened: &Opened,
) -> Result<(), Error> {
    let state = &loaded.contents.state;
    let Some(head) = head.filter(|head| head.seed == loaded.file.seed) else { return Ok(()) };
    check_reaches(disk, state, head.revision)?;
    if head.clean && (opened.rolled_back || state.newest != head.revision) {
        let (closed, newest) = (head.revision, state.newest);
        let why = format!("it ends at revision {newest}, but was closed at revision {closed}");
        return Err(damaged(disk, DATA, &why));
    }
    Ok(())
}

fn check_reaches(disk: &dyn Disk, state: &State, acknowledged: Revision) -> Result<(), Error> {
    if state.newest >= acknowledged {
        return Ok(());
    }
    let newest = state.newest;
    let why = format!("it ends at revision {newest}, but revision {acknowledged} was acknowledged");
    Err(damaged(disk, DATA, &why))
}

/// Makes a new store. The format is named last: without it the directory holds nothing yet.
fn create(disk: &dyn Disk, options: &Options) -> Result<(), Error> {
    let identity = Identity { cluster: Uuid::new_v4(), incarnation: Uuid::new_v4(), first: FIRST };
    let state = State { newest: FIRST, trimmed: FIRST, live_at: FIRST, ..State::default() };
    drop(create_file(disk, options, identity, state)?);
    install(disk)?;
    write_format(disk)
}

/// A data file under a name that means nothing until it is renamed.
pub(super) fn create_file(
    disk: &dyn Disk,
    options: &Options,
    identity: Identity,
    state: State,
) -> Result<DataFile, Error> {
    let unavailable = |error: io::Error| unavailable(disk, DATA_NEW, &error);
    if disk.exists(DATA_NEW).map_err(unavailable)? {
        disk.remove(DATA_NEW).map_err(unavailable)?;
    }
    DataFile::create(disk, DATA_NEW, options, identity, state)
}

/// Gives the new data file its name.
pub(super) fn install(disk: &dyn Disk) -> Result<(), Error> {
    let named = disk.rename(DATA_NEW, DATA).and_then(|()| disk.sync());
    named.map_err(|error| unavailable(disk, DATA, &error))
}

/// A creation that a crash cut short, if there is nothing in the file; else the format was lost.
fn finish_create(disk: &dyn Disk, options: &Options) -> Result<(), Error> {
    let (file, _) = guarded(disk, || DataFile::open(disk, options, Access::Change))?;
    if StoreSnapshot::new(&file, Tail::default())?.file_state()?.newest != FIRST {
        return Err(damaged(disk, FORMAT_FILE, "the file is missing"));
    }
    drop(file);
    write_format(disk)
}

/// Copies everything into a new file and puts it in place of the old one. After a failed sync the
/// system may show what is not on disk; only what is written and synced again can be relied on.
/// The old file is only looked at: to repair it would be to build on what is not there.
fn renew(disk: &dyn Disk, options: &Options, acknowledged: Revision) -> Result<(), Error> {
    tracing::warn!(revision = %acknowledged, "a sync failed earlier; copying the data into a new file");
    let (mut file, opened) = DataFile::open(disk, options, Access::Look)?;
    if !opened.repaired {
        file.check()?;
    }
    let Loaded { file, contents, .. } = load_all(disk, file)?;
    check_reaches(disk, &contents.state, acknowledged)?;
    let new = create_file(disk, options, file.identity, contents.state)?;
    copy(&contents.published.snapshot(&file)?, &new)?;
    let health = new.health.clone();
    drop(new);
    if health.failed() {
        return Err(Error::Unavailable("the new data file could not be closed".into()));
    }
    install(disk)
}

/// Copies all rows, each of which is checked on the way.
fn copy(from: &StoreSnapshot, to: &DataFile) -> Result<(), Error> {
    let txn = to.begin_write()?;
    {
        let mut log = txn.open_table(LOG).map_err(trouble)?;
        let mut bytes = Vec::new();
        from.log(|revision, row| {
            bytes.clear();
            row.encode(from.seed, revision, &mut bytes);
            log.insert(revision.0, bytes.as_slice()).map_err(trouble)?;
            Ok(())
        })?;
        let mut live = txn.open_table(LIVE).map_err(trouble)?;
        from.live(std::ops::Bound::Unbounded, |key, row| {
            live.insert(key.as_bytes(), &row.encode(from.seed, key)).map_err(trouble)?;
            Ok(Next::Go)
        })?;
    }
    txn.commit().map_err(trouble)
}

/// The number in the format file; `None` if there is no such file.
fn read_format(disk: &dyn Disk) -> Result<Option<u32>, Error> {
    let unavailable = |error: io::Error| unavailable(disk, FORMAT_FILE, &error);
    if !disk.exists(FORMAT_FILE).map_err(unavailable)? {
        return Ok(None);
    }
    let file = disk.open(FORMAT_FILE).map_err(unavailable)?;
    let len = file.len().map_err(unavailable)?.min(64);
    let mut text = vec![0; usize::try_from(len).unwrap_or_default()];
    file.read(0, &mut text).map_err(unavailable)?;
    if text == UNFINISHED.as_bytes() {
        return Err(damaged(
            disk,
            FORMAT_FILE,
            "a restore did not finish; empty the directory and restore again",
        ));
    }
    let number = std::str::from_utf8(&text)
        .ok()
        .and_then(|text| text.strip_prefix(FORMAT_PREFIX)?.strip_suffix('\n')?.parse().ok());
    number.map(Some).ok_or_else(|| damaged(disk, FORMAT_FILE, "it contains no format number"))
}

const FORMAT_PREFIX: &str = "headwater data ";

/// Names the format, once everything that belongs to it is there.
pub(super) fn write_format(disk: &dyn Disk) -> Result<(), Error> {
    wal::create(disk).map_err(|error| unavailable(disk, WAL, &error))?;
    write_format_text(disk, &format!("{FORMAT_PREFIX}{FORMAT}\n"))
}

/// Marks a directory that a restore is filling: until it is done, a start refuses it.
pub(super) fn write_unfinished(disk: &dyn Disk) -> Result<(), Error> {
    write_format_text(disk, UNFINISHED)
}

const UNFINISHED: &str = "headwater restore, not finished\n";

fn write_format_text(disk: &dyn Disk, text: &str) -> Result<(), Error> {
    let new = format!("{FORMAT_FILE}.new");
    let write = || {
        let file = disk.open(&new)?;
        file.set_len(text.len() as u64)?;
        file.write(0, text.as_bytes())?;
        file.sync_data()?;
        disk.rename(&new, FORMAT_FILE)?;
        disk.sync()
    };
    write().map_err(|error| unavailable(disk, FORMAT_FILE, &error))
}

/// Damaged trees may stop the engine below us; that is damage, not a reason to stop the process.
pub(super) fn guarded<T>(
    disk: &dyn Disk,
    work: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(damaged(disk, DATA, "the storage engine failed on damaged pages")))
}

fn damaged(disk: &dyn Disk, name: &str, why: &str) -> Error {
    Error::Damaged { place: format!("{}/{name}", disk.place()), why: why.into() }
}

fn unavailable(disk: &dyn Disk, name: &str, error: &io::Error) -> Error {
    Error::Unavailable(format!("{}/{name}: {error}", disk.place()))
}

fn unknown_format(disk: &dyn Disk, format: u32) -> Error {
    let place = disk.place();
    let why =
        format!("{place} has data format {format}; this version reads formats up to {FORMAT}");
    Error::Unavailable(why)
}
