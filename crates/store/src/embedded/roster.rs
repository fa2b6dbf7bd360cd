//! The roster: the list of all segments.
//!
//! Promise: a missing, truncated or exchanged segment is noticed at a start. The cleaner leaves
//! gaps in the revisions, so rows alone cannot show that others are missing. The first frame of
//! every log segment has a roster, and each change of the list appends one; the one with the
//! highest sequence counts.
//!
//! ```text
//! 4  number of segments, then for each:
//! 8  number, 8 length, 8 rows, 4 sum of the digests of its frames, 4 flags: 1 base, 2 open
//! ```

use bytes::Buf;

use super::row::Bad;

const BASE: u32 = 1;
const OPEN: u32 = 2;

/// The length of an entry.
pub(super) const ENTRY_LEN: usize = 32;

/// All segments, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Roster {
    pub(super) segments: Vec<SegmentSummary>,
}

/// The content of a segment in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SegmentSummary {
    pub(super) number: u64,
    /// The length of its frames. Data after them does not count.
    pub(super) len: u64,
    pub(super) rows: u64,
    pub(super) digest: u32,
    /// Written by the cleaner.
    pub(super) is_base: bool,
    /// Frames are still appended to it: the other numbers are unknown.
    pub(super) is_open: bool,
}

impl SegmentSummary {
    /// Adds a frame.
    pub(super) fn add(&mut self, len: u64, rows: u32, digest: u32) {
        self.len += len;
        self.rows += u64::from(rows);
        self.digest = self.digest.wrapping_add(digest);
    }
}

impl Roster {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let count = u32::try_from(self.segments.len()).expect("segments are far below 2^32");
        out.extend_from_slice(&count.to_le_bytes());
        for segment in &self.segments {
            let SegmentSummary { number, len, rows, digest, is_base, is_open } = *segment;
            for field in [number, len, rows] {
                out.extend_from_slice(&field.to_le_bytes());
            }
            out.extend_from_slice(&digest.to_le_bytes());
            let flags = u32::from(is_base) * BASE + u32::from(is_open) * OPEN;
            out.extend_from_slice(&flags.to_le_bytes());
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Roster, Bad> {
        let mut rest = bytes;
        let mut segments = Vec::new();
        for _ in 0..rest.try_get_u32_le()? {
            let [number, len, rows] = [(); 3].map(|()| rest.try_get_u64_le());
            let (digest, flags) = (rest.try_get_u32_le()?, rest.try_get_u32_le()?);
            let (number, len, rows) = (number?, len?, rows?);
            let (is_base, is_open) = (flags & BASE != 0, flags & OPEN != 0);
            segments.push(SegmentSummary { number, len, rows, digest, is_base, is_open });
        }
        match rest {
            [] => Ok(Roster { segments }),
            _ => Err(Bad("the roster is longer than its list")),
        }
    }
}
