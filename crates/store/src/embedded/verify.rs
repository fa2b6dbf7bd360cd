//! Verification of a directory: the checks of a start and, optionally, of every row.
//!
//! Promise: does not change the directory. Repairs happen in memory only.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use headwater_api::Revision;
use redb::StorageBackend;

use super::disk::{self, Disk, Space};
use super::row::Identity;
use super::snapshot::StoreSnapshot;
use super::{Options, bulk, start};
use crate::change::ChangeKind;
use crate::store::Error;

/// What was found in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Who it is.
    pub identity: Identity,
    /// The newest revision.
    pub revision: Revision,
    /// The oldest state that can be read.
    pub compacted: Revision,
    /// Keys that have a value.
    pub objects: u64,
    /// Versions of them, also of those that are gone.
    pub versions: u64,
}

/// Checks a data directory nobody has open: every page of it, and with `deep` every row.
pub fn verify_dir(dir: &Path, deep: bool) -> Result<Verified, Error> {
    let unavailable = |error: io::Error| Error::Unavailable(error.to_string());
    let disk = ReadOnly::new(dir).map_err(unavailable)?;
    start::guarded(&disk, || {
        let loaded = start::look(&disk, &Options::default())?;
        if deep {
            check_rows(&loaded)?;
            check_fills(&loaded)?;
        }
        let state = loaded.contents.state;
        Ok(Verified {
            identity: loaded.file.identity,
            revision: state.newest,
            compacted: state.compacted,
            objects: state.objects,
            versions: state.log_rows,
        })
    })
}

/// Every row of the log is one that should be there: the newest version of a key, a change that was
/// not dropped yet, or what such a change replaced.
fn check_rows(loaded: &start::Loaded) -> Result<(), Error> {
    let start::Loaded { file, contents, .. } = loaded;
    let (snapshot, state) = (contents.published.snapshot(file)?, &contents.state);
    let (mut next, mut bytes, mut live) = (None, 0, 0_u64);
    snapshot.log(|revision, row| {
        bytes += row.len();
        let newest = contents.published.index.get(row.key).copied();
        live += u64::from(newest == Some(revision));
        if revision > state.trimmed {
            check_follows(&mut next, revision, state.trimmed)?;
            check_replaced(&snapshot, revision, row.prev, row.key)?;
        }
        if row.kind == ChangeKind::Deleted && newest.is_some_and(|newest| newest <= revision) {
            return Err(odd(revision, "it deletes a key whose newest version is older"));
        }
        Ok(())
    })?;
    if next.unwrap_or(state.trimmed.next()) != state.newest.next() {
        return Err(odd(state.newest, "the newest change is missing"));
    }
    if live != state.objects {
        return Err(odd(state.newest, "the newest version of some key is missing"));
    }
    if bytes != state.log_bytes {
        return Err(odd(state.newest, "the rows do not add up to the recorded number of bytes"));
    }
    Ok(())
}

/// What is still needed of each bulk file is what the data file says.
fn check_fills(loaded: &start::Loaded) -> Result<(), Error> {
    let snapshot = loaded.contents.published.snapshot(&loaded.file)?;
    let mut found: BTreeMap<u32, u32> = BTreeMap::new();
    snapshot
        .pointers(|pointer| *found.entry(pointer.place.file).or_default() += pointer.place.len)?;
    for (file, fill) in snapshot.fills()?.0 {
        let live = found.remove(&file).unwrap_or_default();
        if live != fill.live {
            let why = format!("{live} bytes of it are referenced, expected {}", fill.live);
            return Err(bulk::damaged(file, &why));
        }
    }
    match found.keys().next() {
        Some(file) => {
            Err(bulk::damaged(*file, "rows refer to it, but it has no row in table bulk"))
        }
        None => Ok(()),
    }
}

/// Changes that were not dropped have no gap.
fn check_follows(
    next: &mut Option<Revision>,
    revision: Revision,
    trimmed: Revision,
) -> Result<(), Error> {
    let expected = next.unwrap_or(trimmed.next());
    if revision != expected {
        return Err(odd(expected, "the row is missing"));
    }
    *next = Some(revision.next());
    Ok(())
}

fn check_replaced(
    snapshot: &StoreSnapshot,
    revision: Revision,
    prev: Revision,
    key: &str,
) -> Result<(), Error> {
    if prev == Revision::ZERO {
        return Ok(());
    }
    if prev >= revision {
        return Err(odd(revision, "it replaces a newer version"));
    }
    let same = snapshot.row(prev, |row| row.key == key && row.kind != ChangeKind::Deleted)?;
    if same { Ok(()) } else { Err(odd(revision, "the version it replaces belongs to another key")) }
}

fn odd(revision: Revision, why: &str) -> Error {
    let place = format!("data.redb, table log, revision {revision}");
    Error::Damaged { place, why: why.into() }
}

/// A directory that is only read.
#[derive(Debug)]
struct ReadOnly {
    path: PathBuf,
    _lock: Option<File>,
}

impl ReadOnly {
    fn new(path: &Path) -> io::Result<ReadOnly> {
        Ok(ReadOnly { path: path.to_owned(), _lock: disk::lock_existing(path)? })
    }

    fn refuse(&self) -> io::Error {
        io::Error::other(format!("{} is opened read-only", self.path.display()))
    }
}

impl Disk for ReadOnly {
    fn open(&self, name: &str) -> io::Result<Box<dyn StorageBackend>> {
        disk::read_only(&self.path.join(name))
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        std::fs::exists(self.path.join(name))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Err(self.refuse())
    }

    fn rename(&self, _from: &str, _to: &str) -> io::Result<()> {
        Err(self.refuse())
    }

    fn remove(&self, _name: &str) -> io::Result<()> {
        Err(self.refuse())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn space(&self) -> io::Result<Space> {
        Err(self.refuse())
    }

    fn allocate(&self, _name: &str, _bytes: u64) -> io::Result<()> {
        Err(self.refuse())
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }
}
