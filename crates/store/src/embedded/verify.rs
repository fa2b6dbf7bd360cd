//! Verification of a directory: the same reading and checking as a start.
//!
//! Promise: does not change the directory.

use std::path::Path;

use headwater_api::Revision;

use super::damaged;
use super::disk::{Directory, Disk};
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
    let disk = Directory::read_only(dir).map_err(|error| Error::Unavailable(error.to_string()))?;
    verify_on(&disk)
}

/// Checks every row of a store on any disk.
pub fn verify_on(disk: &dyn Disk) -> Result<Verified, Error> {
    let identity = format::read(disk)?;
    let identity = identity.ok_or_else(|| damaged(disk, FORMAT_FILE, "the file is missing"))?;
    let published = load(disk, &identity, OnDamage::Refuse)?.published;
    let usage = published.index.usage();
    Ok(Verified {
        identity,
        revision: published.newest,
        compacted: published.compacted,
        objects: usage.objects,
        versions: usage.versions,
    })
}
