//! Verification of a directory: the same reading and checking as a start.
//!
//! Promise: does not change the directory.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use headwater_api::Revision;

use super::damaged;
use super::disk::{self, Disk, DiskFile, Space};
use super::format::{self, FORMAT_FILE, Identity};
use super::load::{OnDamage, load};
use crate::store::Error;

/// What was found in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The identity of the store.
    pub identity: Identity,
    /// The newest revision.
    pub revision: Revision,
    /// The oldest state that can be read.
    pub compacted: Revision,
    /// Keys that have a value.
    pub objects: u64,
    /// Versions of them, and of deleted ones.
    pub versions: u64,
}

/// Checks every row of a data directory that no process has open.
pub fn verify_dir(dir: &Path) -> Result<Verified, Error> {
    let disk = ReadOnly::new(dir).map_err(|error| Error::Unavailable(error.to_string()))?;
    let identity = format::read(&disk)?;
    let identity = identity.ok_or_else(|| damaged(&disk, FORMAT_FILE, "the file is missing"))?;
    let published = load(&disk, &identity, OnDamage::Refuse)?.published;
    let totals = published.index.totals();
    Ok(Verified {
        identity,
        revision: published.newest,
        compacted: published.compacted,
        objects: totals.objects,
        versions: totals.rows,
    })
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
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        disk::read_only(&self.path.join(name))
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        std::fs::exists(self.path.join(name))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        disk::names(&self.path)
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
