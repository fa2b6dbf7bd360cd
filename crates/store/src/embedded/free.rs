//! Free files: files of dropped segments that wait to be used again.
//!
//! Promise: a file is reused for another segment only when nobody can read it any more. At most two
//! files wait; the others are removed.

use std::io;
use std::sync::Arc;

use super::disk::Disk;
use super::segment::{SUFFIX, Segment};

const FREE_SUFFIX: &str = ".free";

/// The maximum number of files that wait for reuse.
const FREE_MAX: usize = 2;

/// Files that can be reused for new segments: appending to a file that already has its length
/// costs the file system's journal nothing.
#[derive(Debug, Default)]
pub(super) struct FreeFiles {
    names: Vec<String>,
}

impl FreeFiles {
    /// Keeps some free files and removes the others.
    pub(super) fn adopt(disk: &dyn Disk, names: impl Iterator<Item = String>) -> FreeFiles {
        let mut free = FreeFiles::default();
        for name in names {
            match free.names.len() < FREE_MAX && name.ends_with(FREE_SUFFIX) {
                true => free.names.push(name),
                false => remove(disk, &name),
            }
        }
        free
    }

    pub(super) fn is_free_name(name: &str) -> bool {
        name.ends_with(FREE_SUFFIX)
    }

    /// The number of the segment that a free file was used for last.
    pub(super) fn number_of(name: &str) -> Option<u64> {
        name.strip_suffix(FREE_SUFFIX)?.parse().ok()
    }

    /// A file for a new segment: a free one if there is any. The names are not synced.
    pub(super) fn segment(&mut self, disk: &dyn Disk, number: u64) -> io::Result<Segment> {
        if let Some(name) = self.names.pop() {
            disk.rename(&name, &Segment::name(number))?;
        }
        Segment::open(disk, number)
    }

    /// Takes the file of a segment that no roster lists any more.
    pub(super) fn give(&mut self, disk: &dyn Disk, segment: Arc<Segment>, len_min: u64) {
        let name = Segment::name(segment.number);
        let reusable = self.names.len() < FREE_MAX
            && segment.file.len().is_ok_and(|len| len >= len_min)
            // Nobody can get another reference: the segment is in no map any more.
            && Arc::strong_count(&segment) == 1;
        drop(segment);
        let free = name.replace(SUFFIX, FREE_SUFFIX);
        match reusable && disk.rename(&name, &free).is_ok() {
            true => self.names.push(free),
            false => remove(disk, &name),
        }
    }
}

/// Removes a file that nothing refers to. The next start tries again.
pub(super) fn remove(disk: &dyn Disk, name: &str) {
    if let Err(error) = disk.remove(name) {
        tracing::warn!(name, %error, "cannot remove an unused file");
    }
}
