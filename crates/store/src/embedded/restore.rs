//! Restore: creates a store from a backup.
//!
//! Promise: a start refuses the directory of an incomplete restore. A restored store starts far
//! after the backup's revision with everything before compacted, and a later restore of the same
//! backup starts after an earlier one, so that no revision that a client knows gets a new meaning.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use headwater_api::{Clock, Revision, SystemClock};
use uuid::Uuid;

use super::archive::{read_backup, verify_backup};
use super::disk::{Directory, Disk};
use super::format::{self, Identity};
use super::frame::Draft;
use super::log::{Edges, Log};
use super::row::Row;
use super::{Options, unavailable};
use crate::change::ChangeKind;
use crate::store::Error;

/// The least by which a restore raises the revision.
const RAISE: u64 = 1_000_000_000;

/// What it raises the revision by for each millisecond since 2020: more than a store can write.
const RAISE_PER_MILLISECOND: u64 = 100;

/// The first millisecond of 2020.
const YEAR_2020: i64 = 1_577_836_800_000;

/// A frame is written once it has this many bytes.
const FRAME_BYTES: usize = 1 << 20;

/// Creates a store from a backup in a directory that is new or empty. The entire backup is checked
/// first. Clients of the old store must list again.
pub fn restore(file: &Path, dir: &Path) -> Result<Identity, Error> {
    let manifest = verify_backup(file)?;
    check_empty(dir)?;
    let disk = Directory::lock(dir).map_err(|error| Error::Unavailable(error.to_string()))?;
    let disk: Arc<dyn Disk> = Arc::new(disk);
    format::write(&*disk, None)?;
    let first = first_revision(manifest.revision, SystemClock.now().as_millisecond());
    let (cluster, incarnation) = (manifest.cluster, Uuid::new_v4());
    let identity = Identity { cluster, incarnation, first };
    let log = Log::new(&disk, &identity, &Options::default(), 0)?;
    let mut writer = RestoreWriter::new(log, first);
    let again = read_backup(file, |row| writer.add(row))?;
    if again != manifest {
        let place = file.display().to_string();
        return Err(Error::Damaged { place, why: "the file changed while it was read".into() });
    }
    writer.finish()?;
    format::write(&*disk, Some(&identity))?;
    Ok(identity)
}

/// Where the revisions of a restored store begin.
pub(super) fn first_revision(backup: u64, now: i64) -> Revision {
    let since_2020 = u64::try_from(now - YEAR_2020).unwrap_or(0);
    let raise = RAISE.saturating_add(since_2020.saturating_mul(RAISE_PER_MILLISECOND));
    Revision(backup.saturating_add(raise))
}

/// Writes the objects of a new store into its log.
pub(super) struct RestoreWriter {
    log: Log,
    edges: Edges,
    draft: Draft,
}

impl RestoreWriter {
    /// Starts at a revision, with everything before it compacted.
    pub(super) fn new(log: Log, first: Revision) -> RestoreWriter {
        let draft = Draft::new(log.seed, FRAME_BYTES);
        RestoreWriter { log, edges: Edges { newest: first, compacted: first }, draft }
    }

    /// Adds the newest row of an object, as if it had been created in it.
    pub(super) fn add(&mut self, row: &Row<'_>) -> Result<(), Error> {
        self.draft.push(&Row { kind: ChangeKind::Created, prev: Revision::ZERO, ..*row });
        if self.draft.len() >= FRAME_BYTES { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<(), Error> {
        let empty = Draft::new(self.log.seed, FRAME_BYTES);
        let mut draft = std::mem::replace(&mut self.draft, empty);
        let written = self.log.append(&mut draft, self.edges);
        written.map(drop).map_err(|error| unavailable(&*self.log.disk, "*.seg", &error))
    }

    /// Makes everything durable.
    pub(super) fn finish(mut self) -> Result<(), Error> {
        self.write()?;
        self.log.close(self.edges.newest);
        Ok(())
    }
}

fn check_empty(dir: &Path) -> Result<(), Error> {
    let refused = |why: &str| Err(Error::Refused(format!("{} {why}", dir.display())));
    match fs::read_dir(dir).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => refused("is not empty; a restore needs a new directory"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => refused(&error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_restore_starts_after_all_writes_of_an_earlier_one() {
        let first = first_revision(7, YEAR_2020 + 1_000).0;
        assert_eq!(first, 7 + RAISE + 100_000);
        let later = first_revision(7, YEAR_2020 + 2_000).0;
        assert_eq!(later - first, 100_000, "the writes of one second");
    }
}
