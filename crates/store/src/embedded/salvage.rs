//! Salvage: starts a damaged store without the data that cannot be read.
//!
//! Promise: nothing is deleted; the old segments stay in the directory under other names. All
//! readable objects are copied, the others are logged, and the store starts as after a restore: all
//! history is compacted, and no revision that a client knows gets a new meaning.

use std::sync::Arc;

use headwater_api::Revision;
use uuid::Uuid;

use super::archive::Object;
use super::disk::Disk;
use super::format::{self, Identity};
use super::load::{Loaded, OnDamage, load};
use super::restore::{RestoreWriter, first_revision};
use super::segment::Segment;
use super::{Options, start, unavailable};
use crate::store::{Error, Range};

/// The suffix of segments that a salvage replaced.
const DAMAGED_SUFFIX: &str = ".damaged";

/// Copies what can be read, if anything cannot. Returns the identity of the store to start.
pub(super) fn salvage(
    disk: &Arc<dyn Disk>,
    identity: Identity,
    options: &Options,
) -> Result<Identity, Error> {
    let Loaded { published, number, lost, .. } = load(&**disk, &identity, OnDamage::Salvage)?;
    if lost.is_empty() {
        tracing::info!("all data can be read; there is nothing to salvage");
        return Ok(identity);
    }
    for lost in &lost {
        tracing::error!(%lost, "left out by the salvage");
    }
    let first = first_revision(published.newest.0, options.clock.now().as_millisecond());
    let salvaged = Identity { incarnation: Uuid::new_v4(), first, ..identity };
    let log = start::new_log(disk, &salvaged, options, number)?;
    let mut writer = RestoreWriter::new(log, first);
    let (rows, _) = published.index.range(&Range::default(), published.newest);
    let reader = published.reader(identity.seed());
    for (key, at) in &rows {
        let read = reader.row(*at, |row| {
            let (time, expires, value) = (row.time, row.expires, row.value);
            let (key, revision) = (key.as_str(), at.revision);
            writer.add(&**disk, &Object { key, revision, time, expires, value })
        });
        match read {
            Err(Error::Damaged { place, why }) => {
                tracing::error!(%key, place, why, "left out by the salvage");
            }
            read => read?,
        }
    }
    writer.finish(&**disk)?;
    format::write(&**disk, &salvaged)?;
    for number in (0..=number).filter(|number| is_there(&**disk, *number)) {
        let name = Segment::name(number);
        let renamed = disk.rename(&name, &format!("{name}{DAMAGED_SUFFIX}"));
        renamed.map_err(|error| unavailable(&**disk, &name, &error))?;
    }
    let (objects, revision) = (rows.len(), Revision(first.0));
    tracing::warn!(objects, %revision, "salvaged the store; the old segments are kept as *.damaged");
    Ok(salvaged)
}

fn is_there(disk: &dyn Disk, number: u64) -> bool {
    disk.exists(&Segment::name(number)).unwrap_or(false)
}
