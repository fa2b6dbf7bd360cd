//! Bulk files: separate files for large rows of the log.
//!
//! River: absorb → **bulk** → reads. A tree copies its rows, and a row of several KB fills one or
//! two pages. So the data file has only a pointer to such a row, in a file that is appended to and
//! eventually deleted.
//! Promise: the data file refers only to synced rows, which are never overwritten. A file is
//! deleted only after a transaction that removed the last reference. Readers keep the files of
//! their snapshot open.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use headwater_api::Revision;
use redb::{StorageBackend, TableDefinition};

use super::Options;
use super::disk::Disk;
use super::file::{FileHealth, is_damage};
use super::row::{Bad, BulkPosition, FILL_LEN, Fill};
use crate::lock::lock;
use crate::store::Error;

/// What is put together before it is written.
const RUN_BYTES: usize = 256 << 10;

/// How full each file is.
pub(super) const BULK: TableDefinition<'_, u32, &[u8; FILL_LEN]> = TableDefinition::new("bulk");

/// How full each file is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fills(pub(super) BTreeMap<u32, Fill>);

impl Fills {
    /// The file that is written to.
    fn last(&self) -> Option<(u32, Fill)> {
        self.0.last_key_value().map(|(file, fill)| (*file, *fill))
    }

    /// Those that nothing is added to any more.
    fn full(&self) -> impl Iterator<Item = (u32, Fill)> {
        let last = self.last().map(|(file, _)| file);
        let all = self.0.iter().map(|(file, fill)| (*file, *fill));
        all.filter(move |(file, _)| Some(*file) != last)
    }

    /// The one most of which was forgotten, if it is more than half.
    pub(super) fn mostly_forgotten(&self) -> Option<u32> {
        let mostly = self.full().filter(|(_, fill)| fill.live < fill.len / 2);
        mostly.min_by_key(|(_, fill)| fill.live).map(|(file, _)| file)
    }

    /// Takes out those that nothing is left in.
    fn take_empty(&mut self) -> Vec<u32> {
        let empty: Vec<u32> =
            self.full().filter(|(_, fill)| fill.live == 0).map(|(file, _)| file).collect();
        self.0.retain(|file, _| !empty.contains(file));
        empty
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.0.values().map(|fill| u64::from(fill.len)).sum()
    }
}

/// Open files, as one state of the data file needs them.
#[derive(Clone, Debug, Default)]
pub(super) struct Files(BTreeMap<u32, Arc<dyn StorageBackend>>);

impl Files {
    /// What lies at a place; whether it is what should be there is not checked.
    pub(super) fn read(&self, place: BulkPosition) -> Result<Vec<u8>, Error> {
        let file = self.0.get(&place.file);
        let file = file.ok_or_else(|| damaged(place.file, "the file is missing"))?;
        let mut row = vec![0; usize::try_from(place.len).unwrap_or(usize::MAX)];
        match file.read(u64::from(place.offset), &mut row) {
            Ok(()) => Ok(row),
            Err(error) if is_damage(error.kind()) => {
                Err(damaged_at(place, Bad("the row is truncated")))
            }
            Err(error) => Err(unavailable(place.file, &error)),
        }
    }
}

/// The files of the open data file.
#[derive(Debug)]
pub(super) struct Bulk {
    files: Mutex<Arc<Files>>,
    /// What a file takes before the next is begun.
    bytes_max: u32,
    /// Rows of so many bytes and more lie here.
    large: usize,
}

impl Bulk {
    /// Opens the files; those that lack something are refused.
    pub(super) fn open(disk: &dyn Disk, fills: &Fills, options: &Options) -> Result<Bulk, Error> {
        let mut files = Files::default();
        for (id, fill) in &fills.0 {
            let failed = |error: io::Error| unavailable(*id, &error);
            if !disk.exists(&name(*id)).map_err(failed)? {
                return Err(damaged(*id, "the file is missing"));
            }
            let file = disk.open(&name(*id)).map_err(failed)?;
            if file.len().map_err(failed)? < u64::from(fill.len) {
                return Err(damaged(*id, "the file is truncated"));
            }
            files.0.insert(*id, Arc::from(file));
        }
        let bytes_max = u32::try_from(options.bulk_bytes).unwrap_or(u32::MAX);
        Ok(Bulk { files: Mutex::new(Arc::new(files)), bytes_max, large: options.large_bytes })
    }

    /// Whether such a row lies here.
    pub(super) fn takes(&self, row: &[u8]) -> bool {
        row.len() >= self.large
    }

    /// The files. No file comes or goes while they are held.
    pub(super) fn files(&self) -> MutexGuard<'_, Arc<Files>> {
        lock(&self.files)
    }

    /// Makes a file. It is there before anything names it.
    fn add(&self, disk: &dyn Disk, id: u32) -> io::Result<()> {
        let file = disk.open(&name(id))?;
        // One of that name that was given up may still be there.
        file.set_len(0)?;
        Arc::make_mut(&mut self.files()).0.insert(id, Arc::from(file));
        Ok(())
    }

    /// Removes files that nothing names any more. Who still reads them may go on.
    pub(super) fn remove(&self, disk: &dyn Disk, ids: &[u32]) {
        for id in ids {
            Arc::make_mut(&mut self.files()).0.remove(id);
            remove(disk, &name(*id));
        }
    }
}

/// Removes what was given up and not removed: the file that a crash left, or a failed removal.
pub(super) fn remove_strays(disk: &dyn Disk, fills: &Fills) {
    let names = match disk.names() {
        Ok(names) => names,
        Err(error) => {
            return tracing::warn!(%error, "cannot list the data directory; unused bulk files stay until the next start");
        }
    };
    for stray in names {
        let id = stray.strip_prefix(PREFIX).and_then(|id| id.parse().ok());
        if id.is_some_and(|id: u32| !fills.0.contains_key(&id)) {
            remove(disk, &stray);
        }
    }
}

/// Only space is lost if it fails, until the next start.
fn remove(disk: &dyn Disk, name: &str) {
    if let Err(error) = disk.remove(name) {
        tracing::warn!(name, %error, "cannot remove an unused bulk file; it stays until the next start");
    }
}

/// Rows on their way into the files, in one transaction on the data file.
pub(super) struct Appender<'a> {
    disk: &'a dyn Disk,
    bulk: &'a Bulk,
    health: &'a FileHealth,
    /// How full the files are with it.
    pub(super) fills: Fills,
    /// What was not written yet, and is to be in the last file.
    run: Vec<u8>,
    /// The files that were written to.
    written: Vec<u32>,
    /// Whether a name is new.
    made: bool,
}

impl<'a> Appender<'a> {
    pub(super) fn new(
        disk: &'a dyn Disk,
        (bulk, health): (&'a Bulk, &'a FileHealth),
        fills: Fills,
    ) -> Appender<'a> {
        Appender { disk, bulk, health, fills, run: Vec::new(), written: Vec::new(), made: false }
    }

    /// Whether such a row is to be appended.
    pub(super) fn takes(&self, row: &[u8]) -> bool {
        self.bulk.takes(row)
    }

    /// Adds a row behind all others.
    pub(super) fn append(&mut self, revision: Revision, row: &[u8]) -> Result<BulkPosition, Error> {
        let len = u32::try_from(row.len()).expect("a row is far below 4 GiB");
        if self.run.len() + row.len() > RUN_BYTES {
            self.write_run()?;
        }
        let (file, mut fill) = self.file_with_room(len)?;
        let place = BulkPosition { file, offset: fill.len, len };
        self.run.reserve(RUN_BYTES.max(row.len()) - self.run.len());
        self.run.extend_from_slice(row);
        fill.add(revision, len);
        self.fills.0.insert(file, fill);
        Ok(place)
    }

    /// Takes note that nothing names a row any more.
    pub(super) fn forget(&mut self, place: BulkPosition) {
        if let Some(fill) = self.fills.0.get_mut(&place.file) {
            fill.live = fill.live.saturating_sub(place.len);
        }
    }

    /// What lies at a place that was not just appended.
    pub(super) fn read(&self, place: BulkPosition) -> Result<Vec<u8>, Error> {
        let files = self.bulk.files().clone();
        files.read(place)
    }

    /// Writes and syncs everything. Tells how full the files are, and which are to go.
    pub(super) fn finish(mut self) -> Result<(Fills, Vec<u32>), Error> {
        self.write_run()?;
        let files = self.bulk.files().clone();
        for id in &self.written {
            // If it fails, nothing names what may be lost: it is written again, at the same place.
            let synced = self.health.note(files.0[id].sync_data());
            synced.map_err(|error| unavailable(*id, &error))?;
        }
        if self.made {
            let named = self.disk.sync();
            named.map_err(|error| Error::Unavailable(format!("{}: {error}", self.disk.place())))?;
        }
        let empty = self.fills.take_empty();
        Ok((self.fills, empty))
    }

    /// The last file, or a new one if that is full.
    fn file_with_room(&mut self, len: u32) -> Result<(u32, Fill), Error> {
        let last = self.fills.last();
        let has_room = |fill: &Fill| {
            fill.len == 0 || fill.len.checked_add(len).is_some_and(|end| end <= self.bulk.bytes_max)
        };
        if let Some((file, fill)) = last.filter(|(_, fill)| has_room(fill)) {
            return Ok((file, fill));
        }
        self.write_run()?;
        let file = last.map_or(1, |(file, _)| file + 1);
        let made = self.health.note(self.bulk.add(self.disk, file));
        made.map_err(|error| unavailable(file, &error))?;
        self.made = true;
        Ok((file, Fill::default()))
    }

    fn write_run(&mut self) -> Result<(), Error> {
        let Some((file, fill)) = self.fills.last().filter(|_| !self.run.is_empty()) else {
            return Ok(());
        };
        let start = u64::from(fill.len) - self.run.len() as u64;
        let backend = self.bulk.files().0[&file].clone();
        let written = self.health.note(backend.write(start, &self.run));
        written.map_err(|error| unavailable(file, &error))?;
        self.run.clear();
        if self.written.last() != Some(&file) {
            self.written.push(file);
        }
        Ok(())
    }
}

const PREFIX: &str = "BULK.";

fn name(id: u32) -> String {
    format!("{PREFIX}{id}")
}

pub(super) fn damaged_at(place: BulkPosition, Bad(why): Bad) -> Error {
    let place = format!("{}, byte {}", name(place.file), place.offset);
    Error::Damaged { place, why: why.into() }
}

pub(super) fn damaged(file: u32, why: &str) -> Error {
    Error::Damaged { place: name(file), why: why.into() }
}

fn unavailable(file: u32, error: &io::Error) -> Error {
    Error::Unavailable(format!("{}: {error}", name(file)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::disk::Directory;

    struct Ground {
        _directory: tempfile::TempDir,
        disk: Directory,
        bulk: Bulk,
        health: FileHealth,
    }

    fn options() -> Options {
        Options { bulk_bytes: 100, ..Options::default() }
    }

    fn ground() -> Ground {
        let directory = tempfile::tempdir().unwrap();
        let disk = Directory::lock(directory.path()).unwrap();
        let bulk = Bulk::open(&disk, &Fills::default(), &options()).unwrap();
        Ground { _directory: directory, disk, bulk, health: FileHealth::default() }
    }

    impl Ground {
        fn appender(&self, fills: Fills) -> Appender<'_> {
            Appender::new(&self.disk, (&self.bulk, &self.health), fills)
        }
    }

    #[test]
    fn rows_are_found_where_they_were_put_and_files_are_begun_when_one_is_full() {
        let ground = ground();
        let mut appender = ground.appender(Fills::default());
        let rows: Vec<Vec<u8>> = (1..=9).map(|n| vec![n; usize::from(n) * 12]).collect();
        let places: Vec<BulkPosition> = rows
            .iter()
            .enumerate()
            .map(|(n, row)| appender.append(Revision(n as u64), row).unwrap())
            .collect();
        let (fills, gone) = appender.finish().unwrap();
        assert_eq!(gone, Vec::<u32>::new());
        let reopened = Bulk::open(&ground.disk, &fills, &options()).unwrap();
        for (place, row) in places.iter().zip(&rows) {
            assert_eq!(&reopened.files().read(*place).unwrap(), row);
        }
        // 12 + 24 + 36, 48, 60, 72, 84, 96 and one that is longer than a file.
        let lens: Vec<u32> = fills.0.values().map(|fill| fill.len).collect();
        assert_eq!(lens, [72, 48, 60, 72, 84, 96, 108]);
        assert_eq!(fills.bytes(), 540);
    }

    #[test]
    fn a_file_goes_when_nothing_is_left_in_it_and_who_reads_it_may_go_on() {
        let ground = ground();
        let mut appender = ground.appender(Fills::default());
        let places = [1, 2, 3].map(|n| appender.append(Revision(n), &[7; 60]).unwrap());
        let (fills, _) = appender.finish().unwrap();
        assert_eq!(fills.mostly_forgotten(), None);
        let readers = ground.bulk.files().clone();
        let mut appender = ground.appender(fills);
        appender.forget(places[1]);
        // The last one is still written to.
        appender.forget(places[2]);
        let (fills, gone) = appender.finish().unwrap();
        assert_eq!(gone, [2]);
        ground.bulk.remove(&ground.disk, &gone);
        assert!(!ground.disk.exists("BULK.2").unwrap());
        assert_eq!(readers.read(places[1]).unwrap(), [7; 60]);
        assert!(ground.bulk.files().read(places[1]).is_err());
        assert_eq!(fills.0.keys().copied().collect::<Vec<_>>(), [1, 3]);
    }

    #[test]
    fn the_emptiest_file_of_those_mostly_forgotten_is_next() {
        let fill = |live| Fill { len: 100, live, ..Fill::default() };
        let fills = |lives: &[u32]| {
            Fills(lives.iter().zip(1..).map(|(live, file)| (file, fill(*live))).collect())
        };
        assert_eq!(fills(&[50, 60, 0]).mostly_forgotten(), None);
        assert_eq!(fills(&[49, 20, 30, 0]).mostly_forgotten(), Some(2));
        assert_eq!(Fills::default().mostly_forgotten(), None);
    }

    #[test]
    fn strays_go_and_nothing_else() {
        let ground = ground();
        for name in ["BULK.1", "BULK.2", "BULK.x", "WAL.1"] {
            ground.disk.open(name).unwrap();
        }
        remove_strays(&ground.disk, &Fills([(2, Fill::default())].into()));
        let mut names = ground.disk.names().unwrap();
        names.sort();
        assert_eq!(names, ["BULK.2", "BULK.x", "LOCK", "WAL.1"]);
    }
}
