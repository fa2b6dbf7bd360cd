//! Salvage: starts a damaged store without the data that cannot be read.
//!
//! Promise: nothing is deleted; the old segments stay in the directory under other names. Every
//! object has the newest of its rows that is whole. What is damaged is listed, and the store starts
//! as after a restore: all history is compacted, and no revision that a client knows gets a new
//! meaning.

use std::sync::Arc;

use uuid::Uuid;

use super::disk::Disk;
use super::format::{self, FORMAT_FILE, Identity};
use super::load::{Loaded, OnDamage, load};
use super::log::Log;
use super::restore::{RestoreWriter, first_revision};
use super::segment::Segment;
use super::{Options, unavailable};
use crate::store::{Error, Range};

/// The suffix of segments that a salvage replaced.
const DAMAGED_SUFFIX: &str = ".damaged";

/// Copies what can be read, if anything cannot, and lists what was left out. Returns the store to
/// start; none if there is no store yet.
pub(super) fn salvage(
    disk: &Arc<dyn Disk>,
    options: &Options,
    lost: &mut Vec<String>,
) -> Result<Option<Identity>, Error> {
    let found = format::read(&**disk).or_else(|error| match format::read_repaired(&**disk) {
        Ok(Some(identity)) => {
            lost.push(format!("{FORMAT_FILE}: one bit was wrong"));
            Ok(Some(identity))
        }
        _ => Err(error),
    });
    let Some(identity) = found? else { return Ok(None) };
    let loaded = load(&**disk, &identity, OnDamage::Salvage)?;
    lost.extend_from_slice(&loaded.lost);
    if lost.is_empty() {
        tracing::info!("all data can be read; there is nothing to salvage");
        return Ok(Some(identity));
    }
    let identity = copy(disk, options, identity, loaded, lost)?;
    for lost in lost {
        tracing::error!(%lost, "left out by the salvage");
    }
    Ok(Some(identity))
}

/// Writes all objects into a new log.
fn copy(
    disk: &Arc<dyn Disk>,
    options: &Options,
    old: Identity,
    Loaded { published, number, .. }: Loaded,
    lost: &mut Vec<String>,
) -> Result<Identity, Error> {
    let first = first_revision(published.newest.0, options.clock.now().as_millisecond());
    let identity = Identity { incarnation: Uuid::new_v4(), first, ..old };
    let mut writer = RestoreWriter::new(Log::new(disk, &identity, options, number)?, first);
    let (rows, _) = published.index.range(&Range::default(), published.newest);
    let reader = published.reader(old.seed());
    for (key, at) in &rows {
        let read = reader.row(*at, Some(key.as_str()), |row| writer.add(&row));
        match read {
            Err(Error::Damaged { place, why }) => lost.push(format!("{place}: {why} ({key})")),
            read => read?,
        }
    }
    writer.finish()?;
    format::write(&**disk, Some(&identity))?;
    let names = disk.names().map_err(|error| unavailable(&**disk, "", &error))?;
    let is_old = |name: &&String| Segment::number_of(name).is_some_and(|found| found <= number);
    for name in names.iter().filter(is_old) {
        let renamed = disk.rename(name, &format!("{name}{DAMAGED_SUFFIX}"));
        renamed.map_err(|error| unavailable(&**disk, name, &error))?;
    }
    let (objects, revision) = (rows.len(), first);
    tracing::warn!(objects, %revision, "salvaged the store; the old segments are kept as *.damaged");
    Ok(identity)
}
