//! The head: a small file with the newest acknowledged revision.
//!
//! Promise: it is written after a sync and before the acknowledgement, so its revision is always
//! durable. It is not synced itself: after a power failure it may be older, never newer. If the
//! data file and the write-ahead log end before the head, acknowledged writes are lost, which is
//! damage even if both files are consistent.
//!
//! ```text
//! 0   4  CRC32C of the rest
//! 4   4  flags: 1 closed cleanly, 2 a sync failed
//! 8   8  the newest acknowledged revision
//! 16  4  CRC32C of the incarnation it belongs to
//! ```

use std::io;

use headwater_api::Revision;
use redb::StorageBackend;

use super::disk::Disk;
use super::row::{RowReader, Seed};

/// The name of the file.
pub(super) const HEAD: &str = "HEAD";

const LEN: usize = 20;
const CLEAN: u32 = 1;
const SUSPECT: u32 = 2;

/// What the head says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) seed: Seed,
    pub(super) revision: Revision,
    /// The store was closed: the data file ends exactly here.
    pub(super) clean: bool,
    /// A sync failed while this system was up: what it shows of the data file may not be on disk.
    pub(super) suspect: bool,
}

impl Head {
    /// A store at a revision that is open.
    pub(super) fn open_at(seed: Seed, revision: Revision) -> Head {
        Head { seed, revision, clean: false, suspect: false }
    }

    fn encode(&self) -> [u8; LEN] {
        let mut row = [0; LEN];
        let clean = if self.clean { CLEAN } else { 0 };
        let suspect = if self.suspect { SUSPECT } else { 0 };
        row[4..8].copy_from_slice(&(clean | suspect).to_le_bytes());
        row[8..16].copy_from_slice(&self.revision.0.to_le_bytes());
        row[16..].copy_from_slice(&self.seed.0.to_le_bytes());
        let sum = crc32c::crc32c(&row[4..]);
        row[..4].copy_from_slice(&sum.to_le_bytes());
        row
    }

    fn decode(row: &[u8; LEN]) -> Option<Head> {
        if crc32c::crc32c(&row[4..]).to_le_bytes() != row[..4] {
            return None;
        }
        let mut fields = RowReader(&row[4..]);
        let flags = fields.u32().ok()?;
        let revision = Revision(fields.u64().ok()?);
        let seed = Seed(fields.u32().ok()?);
        Some(Head { seed, revision, clean: flags & CLEAN != 0, suspect: flags & SUSPECT != 0 })
    }
}

/// The open file.
#[derive(Debug)]
pub(super) struct HeadFile(Box<dyn StorageBackend>);

impl HeadFile {
    pub(super) fn open(disk: &dyn Disk) -> io::Result<HeadFile> {
        Ok(HeadFile(disk.open(HEAD)?))
    }

    /// What the head says; `None` if it says nothing that can be relied on.
    pub(super) fn read(&self) -> io::Result<Option<Head>> {
        if self.0.len()? != LEN as u64 {
            return Ok(None);
        }
        let mut row = [0; LEN];
        self.0.read(0, &mut row)?;
        Ok(Head::decode(&row))
    }

    /// Writes the head without a sync.
    pub(super) fn write(&self, head: Head) -> io::Result<()> {
        if self.0.len()? != LEN as u64 {
            self.0.set_len(LEN as u64)?;
        }
        self.0.write(0, &head.encode())
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_head_comes_back_as_it_was_written_and_damage_says_nothing() {
        let seed = Seed::of(Uuid::from_u128(3));
        let head = Head { seed, revision: Revision(7), clean: true, suspect: false };
        let row = head.encode();
        assert_eq!(Head::decode(&row), Some(head));
        for bit in 0..LEN * 8 {
            let mut bad = row;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Head::decode(&bad), None, "bit {bit}");
        }
    }
}
