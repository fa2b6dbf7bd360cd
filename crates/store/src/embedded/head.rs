//! The head: a small file with the newest acknowledged frame.
//!
//! Promise: it is written after a sync and before the acknowledgement, so its frame is always
//! durable. It is synced only with a new segment and when the store closes: after a power failure
//! it may be older, never newer. If the segments end before the head, acknowledged writes are lost,
//! which is damage even if the segments are consistent.
//!
//! ```text
//! 0   4  CRC32C over the incarnation and the rest
//! 4   4  1 if the store was closed after this frame, else 0
//! 8   8  the sequence of the frame
//! 16  8  the newest revision with it
//! ```

use std::io;

use bytes::Buf;
use headwater_api::Revision;

use super::disk::{Disk, DiskFile};
use super::row::{Seed, row_sum};

/// The name of the file.
pub(super) const HEAD: &str = "HEAD";

const LEN: usize = 24;

/// The newest acknowledged frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) sequence: u64,
    pub(super) revision: Revision,
    /// The store was closed, with everything synced.
    pub(super) is_clean: bool,
}

impl Head {
    fn encode(&self, seed: Seed) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[4..8].copy_from_slice(&u32::from(self.is_clean).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..].copy_from_slice(&self.revision.0.to_le_bytes());
        let sum = seed.sum(&bytes[4..]);
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn decode(seed: Seed, bytes: &[u8; LEN]) -> Option<Head> {
        if seed.sum(&bytes[4..]) != row_sum(bytes) {
            return None;
        }
        let mut rest = &bytes[4..];
        let is_clean = rest.get_u32_le() == 1;
        let (sequence, revision) = (rest.get_u64_le(), Revision(rest.get_u64_le()));
        Some(Head { sequence, revision, is_clean })
    }
}

/// The open file.
#[derive(Debug)]
pub(super) struct HeadFile {
    seed: Seed,
    file: Box<dyn DiskFile>,
}

impl HeadFile {
    pub(super) fn open(disk: &dyn Disk, seed: Seed) -> io::Result<HeadFile> {
        Ok(HeadFile { seed, file: disk.open(HEAD)? })
    }

    /// The head in a directory; `None` if it is missing or damaged.
    pub(super) fn find(disk: &dyn Disk, seed: Seed) -> io::Result<Option<Head>> {
        if !disk.exists(HEAD)? {
            return Ok(None);
        }
        let HeadFile { file, .. } = HeadFile::open(disk, seed)?;
        if file.len()? != LEN as u64 {
            return Ok(None);
        }
        let mut bytes = [0; LEN];
        file.read(0, &mut bytes)?;
        Ok(Head::decode(seed, &bytes))
    }

    /// Writes the head without a sync.
    pub(super) fn write(&self, head: Head) -> io::Result<()> {
        self.file.write(0, &head.encode(self.seed))
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_head_is_read_as_it_was_written_and_damage_is_found() {
        let seed = Seed::of(Uuid::from_u128(3));
        let head = Head { sequence: 5, revision: Revision(7), is_clean: true };
        let bytes = head.encode(seed);
        assert_eq!(Head::decode(seed, &bytes), Some(head));
        for bit in 0..LEN * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Head::decode(seed, &bad), None, "bit {bit}");
        }
    }
}
