//! The start: opens a directory, or creates the store in it.
//!
//! Promise: a start serves exactly the acknowledged writes, or refuses and reports the position of
//! the damage. Everything that it serves is durable: after an unclean stop it writes the last frame
//! again, in its place, because the operating system may show a frame that never reached the disk.

use std::sync::Arc;
use std::time::{Duration, Instant};

use headwater_api::Revision;
use uuid::Uuid;

use super::disk::Disk;
use super::expiry::Expiry;
use super::format::{self, FORMAT_FILE, Identity};
use super::frame::{BLOCK, Draft};
use super::free::FreeFiles;
use super::load::{Loaded, OnDamage, OpenSegment, load};
use super::log::{Edges, Log};
use super::published::Published;
use super::salvage::salvage;
use super::segment::Segment;
use super::{Options, damaged, unavailable};
use crate::store::{Error, FIRST};

/// Files of older data formats.
const OLD_FILES: [&str; 3] = ["data.redb", "WAL.0", "WAL.1"];

/// A store that is ready to serve.
pub(super) struct Started {
    pub(super) identity: Identity,
    pub(super) published: Published,
    pub(super) log: Log,
    pub(super) expiries: Vec<Expiry>,
    /// The age of some revisions, oldest first.
    pub(super) ages: Vec<(Instant, Revision)>,
    /// What a salvage left out.
    pub(super) lost: Vec<String>,
}

/// Opens the store, or creates it.
pub(super) fn start(disk: &Arc<dyn Disk>, options: &Options) -> Result<Started, Error> {
    let (dir, mut lost) = (&**disk, Vec::new());
    let identity = match options.salvage {
        true => salvage(disk, options, &mut lost)?,
        false => format::read(dir)?,
    };
    let identity = identity.map_or_else(|| create(disk, options), Ok)?;
    let loaded = load(dir, &identity, OnDamage::Refuse)?;
    let ages = ages(&loaded, options.clock.now().as_millisecond());
    let Loaded { published, sealed, open, sequence, number, expiries, unlisted, .. } = loaded;
    // From here on, everything that was loaded is made durable.
    let open = open.ok_or_else(|| damaged(dir, "*.seg", "the open segment is missing"))?;
    if !loaded.is_clean {
        let name = Segment::name(open.active.summary.number);
        write_again(dir, &open).map_err(|error| unavailable(dir, &name, &error))?;
        tracing::info!(revision = %published.newest, "the store was not closed; wrote its last frame again");
    }
    let names = dir.names().map_err(|error| unavailable(dir, "", &error))?;
    let unused = names.into_iter().filter(|name| {
        let unlisted = Segment::number_of(name).is_some_and(|number| unlisted.contains(&number));
        unlisted || FreeFiles::is_free_name(name)
    });
    let mut log = Log::new(disk, &identity, options, number)?;
    (log.sealed, log.active, log.free) = (sealed, Some(open.active), FreeFiles::adopt(dir, unused));
    (log.sequence, log.durable) = (sequence, sequence);
    Ok(Started { identity, published, log, expiries, ages, lost })
}

/// Writes the last frame in its place again and syncs it, also if it is durable: then the same bytes
/// replace each other.
fn write_again(dir: &dyn Disk, open: &OpenSegment) -> std::io::Result<()> {
    let OpenSegment { active, last_frame: (offset, bytes) } = open;
    let file = &active.segment.file;
    file.write(*offset, bytes)?;
    file.sync_data()?;
    dir.sync()
}

/// The age of some revisions, as far as the wall clock knows, oldest first.
fn ages(loaded: &Loaded, wall: i64) -> Vec<(Instant, Revision)> {
    let now = Instant::now();
    let mut ages: Vec<(Instant, Revision)> = Vec::new();
    for (time, revision) in &loaded.times {
        let age = Duration::from_millis(wall.saturating_sub(*time).try_into().unwrap_or(0));
        ages.extend(now.checked_sub(age).map(|at| (at, *revision)));
    }
    ages.sort_unstable_by_key(|(_, revision)| *revision);
    ages
}

/// Creates a store. FORMAT is written last: without it the directory contains nothing yet.
fn create(disk: &Arc<dyn Disk>, options: &Options) -> Result<Identity, Error> {
    let dir = &**disk;
    let failed = |error: std::io::Error| unavailable(dir, "", &error);
    for name in dir.names().map_err(failed)? {
        let is_segment = Segment::number_of(&name).is_some();
        if !is_segment && !OLD_FILES.contains(&name.as_str()) {
            continue;
        }
        // The first block may be left of a creation that did not finish.
        let len = dir.open(&name).and_then(|file| file.len()).map_err(failed)?;
        if !is_segment || Segment::number_of(&name) != Some(1) || len > BLOCK as u64 {
            return Err(damaged(dir, FORMAT_FILE, "the file is missing next to data"));
        }
        dir.remove(&name).map_err(failed)?;
    }
    let identity = Identity { cluster: Uuid::new_v4(), incarnation: Uuid::new_v4(), first: FIRST };
    let edges = Edges { newest: FIRST, compacted: Revision::ZERO };
    let mut log = Log::new(disk, &identity, options, 0)?;
    log.append(&mut Draft::new(identity.seed(), 0), edges).map_err(failed)?;
    log.close(FIRST);
    format::write(dir, Some(&identity))?;
    Ok(identity)
}
