//! Frames: the byte format of one write to a segment.
//!
//! River: group → **frame** → segment.
//! Promise: a frame is read completely or not at all. Its checksums cover the incarnation of the
//! store, the number of the segment and the sequence, so a torn frame, a changed bit, and a frame
//! that a recycled file still holds from its earlier use are not taken for a frame.
//!
//! ```text
//! 0   8  the mark
//! 8   4  CRC32C over the incarnation and the rest of the header
//! 12  4  length of the payload
//! 16  8  number of the segment
//! 24  8  sequence
//! 32  8  the newest revision with this frame
//! 40  8  the compacted revision
//! 48  4  number of rows
//! 52  4  length of the roster
//! 56  4  digest: CRC32C over the checksums of the rows and the roster
//! 60  4  1 in a base segment, else 0
//! 64     the payload: the rows, the roster; then zeros up to a multiple of 4096
//! ```

use bytes::Buf;
use headwater_api::Revision;

use super::roster::Roster;
use super::row::{Bad, Row, Seed, row_sum};

/// Frames start at multiples of this: an append never rewrites a block of an earlier frame.
pub(super) const BLOCK: usize = 4096;

pub(super) const HEADER: usize = 64;

const MARK: &[u8; 8] = b"hw frame";

/// The fields of a frame that describe its position and the state after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) segment: u64,
    pub(super) sequence: u64,
    pub(super) newest: Revision,
    pub(super) compacted: Revision,
    pub(super) is_base: bool,
    pub(super) rows: u32,
    pub(super) roster_len: u32,
    pub(super) payload_len: u32,
    pub(super) digest: u32,
}

impl FrameHeader {
    fn encode(&self, seed: Seed, out: &mut [u8]) {
        out[..8].copy_from_slice(MARK);
        out[12..16].copy_from_slice(&self.payload_len.to_le_bytes());
        let numbers = [self.segment, self.sequence, self.newest.0, self.compacted.0];
        for (field, number) in out[16..48].chunks_exact_mut(8).zip(numbers) {
            field.copy_from_slice(&number.to_le_bytes());
        }
        let numbers = [self.rows, self.roster_len, self.digest, u32::from(self.is_base)];
        for (field, number) in out[48..HEADER].chunks_exact_mut(4).zip(numbers) {
            field.copy_from_slice(&number.to_le_bytes());
        }
        let sum = seed.sum(&out[12..HEADER]);
        out[8..12].copy_from_slice(&sum.to_le_bytes());
    }

    /// The header at the beginning of some bytes; `None` if there is none.
    pub(super) fn decode(seed: Seed, bytes: &[u8]) -> Option<FrameHeader> {
        let bytes = bytes.first_chunk::<HEADER>()?;
        if &bytes[..8] != MARK || seed.sum(&bytes[12..]) != row_sum(&bytes[8..12]) {
            return None;
        }
        let mut rest = &bytes[12..];
        Some(FrameHeader {
            payload_len: rest.get_u32_le(),
            segment: rest.get_u64_le(),
            sequence: rest.get_u64_le(),
            newest: Revision(rest.get_u64_le()),
            compacted: Revision(rest.get_u64_le()),
            rows: rest.get_u32_le(),
            roster_len: rest.get_u32_le(),
            digest: rest.get_u32_le(),
            is_base: rest.get_u32_le() == 1,
        })
    }

    /// The length of the frame on disk.
    pub(super) fn len(&self) -> u64 {
        frame_len(self.payload_len as usize) as u64
    }
}

fn frame_len(payload: usize) -> usize {
    (HEADER + payload).next_multiple_of(BLOCK)
}

/// A frame that is being filled.
#[derive(Debug)]
pub(super) struct Draft {
    seed: Seed,
    bytes: Vec<u8>,
    rows: u32,
    /// The digest of the rows so far.
    digest: u32,
    rows_end: usize,
}

impl Draft {
    /// An empty frame, with capacity for rows of so many bytes.
    pub(super) fn new(seed: Seed, capacity: usize) -> Draft {
        let mut bytes = Vec::with_capacity(frame_len(capacity));
        bytes.resize(HEADER, 0);
        Draft { seed, bytes, rows: 0, digest: 0, rows_end: HEADER }
    }

    /// Adds a row and returns its offset.
    pub(super) fn push(&mut self, row: &Row<'_>) -> u32 {
        let start = self.bytes.len();
        let sum = row.encode(self.seed, &mut self.bytes);
        self.pushed(start, sum)
    }

    /// Adds a row that is encoded already and returns its offset.
    pub(super) fn push_encoded(&mut self, row: &[u8]) -> u32 {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(row);
        self.pushed(start, row_sum(row))
    }

    fn pushed(&mut self, start: usize, sum: u32) -> u32 {
        self.rows += 1;
        self.digest = crc32c::crc32c_append(self.digest, &sum.to_le_bytes());
        self.rows_end = self.bytes.len();
        u32::try_from(start).expect("a frame is far below 4 GiB")
    }

    /// The length of the frame on disk, without a roster.
    pub(super) fn len(&self) -> usize {
        frame_len(self.rows_end - HEADER)
    }

    /// Completes the frame with the fields of its header that the content does not determine. May be
    /// called again for another position, if the first write failed.
    pub(super) fn seal(
        &mut self,
        position: FrameHeader,
        roster: Option<&Roster>,
    ) -> (&[u8], FrameHeader) {
        self.bytes.truncate(self.rows_end);
        if let Some(roster) = roster {
            roster.encode(&mut self.bytes);
        }
        let roster = &self.bytes[self.rows_end..];
        let small = |len: usize| u32::try_from(len).expect("a frame is far below 4 GiB");
        let header = FrameHeader {
            rows: self.rows,
            roster_len: small(roster.len()),
            payload_len: small(self.bytes.len() - HEADER),
            digest: crc32c::crc32c_append(self.digest, roster),
            ..position
        };
        self.bytes.resize(self.bytes.len().next_multiple_of(BLOCK), 0);
        header.encode(self.seed, &mut self.bytes[..HEADER]);
        (&self.bytes, header)
    }
}

/// Checks the payload of a frame and passes its rows on, with their offsets in the frame. Rows are passed on before the frame is
/// known to be complete: the caller discards them if this fails. The error names the object of a
/// damaged row, if its key can be read.
pub(super) fn read_payload<'a>(
    seed: Seed,
    header: &FrameHeader,
    payload: &'a [u8],
    mut each: impl FnMut(u32, Row<'a>),
) -> Result<Option<Roster>, String> {
    let roster_at = payload.len().checked_sub(header.roster_len as usize);
    let (mut rows, roster) = payload.split_at(roster_at.ok_or("the roster is too long")?);
    let (mut digest, mut offset) = (0, HEADER as u32);
    for _ in 0..header.rows {
        let row = Row::decode(seed, rows).map_err(|Bad(why)| match Row::parse(rows) {
            Ok(Row { key, revision, .. }) => {
                format!("{why} (a row of {key}, revision {revision})")
            }
            Err(_) => why.into(),
        })?;
        let len = row.len() as u32;
        digest = crc32c::crc32c_append(digest, &row_sum(rows).to_le_bytes());
        each(offset, row);
        (offset, rows) = (offset + len, &rows[len as usize..]);
    }
    if !rows.is_empty() {
        return Err("there is data after the last row".into());
    }
    if crc32c::crc32c_append(digest, roster) != header.digest {
        return Err("the digest does not match".into());
    }
    match roster {
        [] => Ok(None),
        _ => Roster::decode(roster).map(Some).map_err(|Bad(why)| why.into()),
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::change::ChangeKind;
    use crate::embedded::roster::SegmentSummary;

    fn seed() -> Seed {
        Seed::of(Uuid::from_u128(7))
    }

    fn row(n: u64) -> Row<'static> {
        Row {
            kind: ChangeKind::Created,
            revision: Revision(n),
            prev: Revision::ZERO,
            time: 1,
            expires: 0,
            key: "/a",
            value: &[7; 3_000],
        }
    }

    fn position(segment: u64) -> FrameHeader {
        let (newest, compacted) = (Revision(3), Revision(1));
        FrameHeader { segment, sequence: 9, newest, compacted, ..FrameHeader::default() }
    }

    fn read(bytes: &[u8]) -> Option<(FrameHeader, Vec<u64>, Option<Roster>)> {
        let header = FrameHeader::decode(seed(), bytes)?;
        let payload = bytes.get(HEADER..HEADER + header.payload_len as usize)?;
        let mut rows = Vec::new();
        let roster = read_payload(seed(), &header, payload, |_, row| rows.push(row.revision.0));
        roster.ok().map(|roster| (header, rows, roster))
    }

    fn frame() -> (Vec<u8>, Roster) {
        let mut draft = Draft::new(seed(), 100);
        draft.push(&row(2));
        draft.push(&row(3));
        assert_eq!(draft.len(), 8192);
        let roster = Roster { segments: vec![SegmentSummary { number: 4, ..Default::default() }] };
        draft.seal(position(3), None);
        let (bytes, _) = draft.seal(position(4), Some(&roster));
        (bytes.to_vec(), roster)
    }

    #[test]
    fn a_frame_is_read_as_it_was_written_also_if_it_was_sealed_twice() {
        let (bytes, roster) = frame();
        let (header, rows, found) = read(&bytes).unwrap();
        assert_eq!((header.segment, header.sequence, header.len()), (4, 9, 8192));
        assert_eq!((rows, found), (vec![2, 3], Some(roster)));
    }

    /// R14
    #[test]
    fn any_changed_bit_is_found_or_in_the_padding() {
        let (bytes, _) = frame();
        let end = HEADER + FrameHeader::decode(seed(), &bytes).unwrap().payload_len as usize;
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read(&bad).is_none(), bit / 8 < end, "bit {bit}");
        }
    }
}
