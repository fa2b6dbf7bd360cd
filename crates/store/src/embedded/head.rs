//! The head: a small file that says how far acknowledged writes go.
//!
//! Promise: it is written after a sync and before the acknowledgement, so it never names a revision
//! that is not durable. It is itself not synced: a power cut may leave an older head, which says
//! less, but never a newer one. A data file that ends before the head has lost acknowledged writes,
//! and that is damage, however well its trees agree.
//!
//! ```text
//! 0   4  CRC32C of the rest, over the incarnation
//! 4   4  flags: 1 closed cleanly, 2 a sync failed
//! 8   8  the newest acknowledged revision
//! ```

use std::io;

use headwater_api::Revision;
use redb::StorageBackend;

use super::disk::Disk;
use super::row::{Fields, Seed};

/// The name of the file.
pub(super) const HEAD: &str = "HEAD";

const LEN: usize = 16;
const CLEAN: u32 = 1;
const SUSPECT: u32 = 2;

/// What the head says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) revision: Revision,
    /// The store was closed: the data file ends exactly here.
    pub(super) clean: bool,
    /// A sync failed while this system was up: what it shows of the data file may not be on disk.
    pub(super) suspect: bool,
}

/// The open file.
#[derive(Debug)]
pub(super) struct HeadFile {
    file: Box<dyn StorageBackend>,
    seed: Seed,
}

impl HeadFile {
    pub(super) fn open(disk: &dyn Disk, seed: Seed) -> io::Result<HeadFile> {
        Ok(HeadFile { file: disk.open(HEAD)?, seed })
    }

    /// What the head says; `None` if it says nothing that can be relied on.
    pub(super) fn read(&self) -> io::Result<Option<Head>> {
        if self.file.len()? < LEN as u64 {
            return Ok(None);
        }
        let mut row = [0; LEN];
        self.file.read(0, &mut row)?;
        if self.seed.sum(HEAD.as_bytes(), &row[4..]).to_le_bytes() != row[..4] {
            return Ok(None);
        }
        Ok(decode(&row[4..]))
    }

    /// Writes the head without a sync.
    pub(super) fn write(&self, head: Head) -> io::Result<()> {
        let mut row = [0; LEN];
        let clean = if head.clean { CLEAN } else { 0 };
        let suspect = if head.suspect { SUSPECT } else { 0 };
        row[4..8].copy_from_slice(&(clean | suspect).to_le_bytes());
        row[8..].copy_from_slice(&head.revision.0.to_le_bytes());
        let sum = self.seed.sum(HEAD.as_bytes(), &row[4..]);
        row[..4].copy_from_slice(&sum.to_le_bytes());
        if self.file.len()? != LEN as u64 {
            self.file.set_len(LEN as u64)?;
        }
        self.file.write(0, &row)
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

fn decode(row: &[u8]) -> Option<Head> {
    let mut fields = Fields(row);
    let flags = fields.u32().ok()?;
    let revision = Revision(fields.u64().ok()?);
    Some(Head { revision, clean: flags & CLEAN != 0, suspect: flags & SUSPECT != 0 })
}
