//! Frames: the byte format of groups in the write-ahead log.
//!
//! River: group → **frame** → write-ahead log.
//! Promise: a frame has a CRC32C over its content and the incarnation of the store, so a torn,
//! changed or foreign frame is not taken for a group.
//!
//! ```text
//! 0   8  the mark
//! 8   4  CRC32C over the incarnation and the rest
//! 12  4  bytes of the rows
//! 16  8  generation: how often a log file was restarted from its beginning
//! 24  8  the newest revision with it
//! 32  8  the compacted revision
//! 40  8  objects
//! 48  8  bytes of their rows
//! 56  8  rows
//! 64     the rows, each: length (4), log row; then zeros up to a multiple of 8
//! ```

use bytes::Bytes;
use headwater_api::Revision;

use super::row::{Bad, LogRow, RowReader, Seed, State};
use super::tail::Sums;

const MARK: &[u8; 8] = b"hw frame";

const HEADER: usize = 64;

/// What comes before each row.
const ROW_HEADER: usize = 4;

/// Frames start at multiples of this.
pub(super) const ALIGN: usize = 8;

/// Rows on their way into a frame.
#[derive(Debug)]
pub(super) struct Draft {
    bytes: Vec<u8>,
    /// Where each row is.
    rows: Vec<std::ops::Range<usize>>,
}

/// A group as it is written.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) bytes: Bytes,
    /// Its rows, which share their bytes with it.
    pub(super) rows: Vec<Bytes>,
    pub(super) edges: Edges,
}

impl Draft {
    /// Nothing yet, with room for rows of so many bytes.
    pub(super) fn with_capacity(bytes: usize) -> Draft {
        let mut all = Vec::with_capacity(HEADER + bytes + ALIGN);
        all.resize(HEADER, 0);
        Draft { bytes: all, rows: Vec::new() }
    }

    /// What the row of such a version takes.
    pub(super) fn len_of(key: &str, value: &[u8]) -> usize {
        ROW_HEADER + usize::try_from(LogRow::len_of(key, value)).unwrap_or_default()
    }

    pub(super) fn push(&mut self, seed: Seed, revision: Revision, row: &LogRow<'_>) {
        let len = u32::try_from(row.len()).expect("a row is far below 4 GiB");
        self.bytes.extend_from_slice(&len.to_le_bytes());
        let start = self.bytes.len();
        row.encode(seed, revision, &mut self.bytes);
        self.rows.push(start..self.bytes.len());
    }

    /// What it will take on disk.
    pub(super) fn len(&self) -> usize {
        self.bytes.len().next_multiple_of(ALIGN)
    }

    /// Completes the frame with the state after the group.
    pub(super) fn seal(self, seed: Seed, generation: u64, state: &State) -> Frame {
        let Draft { mut bytes, rows } = self;
        let rows_len = u32::try_from(bytes.len() - HEADER).expect("a group is far below 4 GiB");
        bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
        bytes[..8].copy_from_slice(MARK);
        bytes[12..16].copy_from_slice(&rows_len.to_le_bytes());
        let Sums { compacted, objects, object_bytes } = Sums::of(state);
        let numbers =
            [generation, state.newest.0, compacted.0, objects, object_bytes, rows.len() as u64];
        for (place, number) in bytes[16..HEADER].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let sum = seed.sum(MARK, &bytes[12..]);
        bytes[8..12].copy_from_slice(&sum.to_le_bytes());
        let bytes = Bytes::from(bytes);
        let rows = rows.into_iter().map(|row| bytes.slice(row)).collect();
        Frame { bytes, rows, edges: Edges::of(state) }
    }
}

/// A group as it was read.
#[derive(Debug)]
pub(super) struct LoggedGroup {
    pub(super) generation: u64,
    pub(super) newest: Revision,
    pub(super) sums: Sums,
    pub(super) rows: Vec<Bytes>,
}

impl LoggedGroup {
    /// The frame at a place, and its length.
    pub(super) fn decode(
        seed: Seed,
        content: &Bytes,
        at: usize,
    ) -> Result<(LoggedGroup, usize), Bad> {
        let mut fields = RowReader(content.get(at..).unwrap_or_default());
        if fields.take(MARK.len())? != MARK {
            return Err(Bad("no frame here"));
        }
        let (sum, rest) = (fields.u32()?, fields.0);
        let rows_len = usize::try_from(fields.u32()?).unwrap_or(usize::MAX);
        let len = HEADER.saturating_add(rows_len).checked_next_multiple_of(ALIGN);
        let len = len.ok_or(Bad("the frame is truncated"))?;
        let covered = rest.get(..len - SUM_END).ok_or(Bad("the frame is truncated"))?;
        if seed.sum(MARK, covered) != sum {
            return Err(Bad("the checksum does not match"));
        }
        let generation = fields.u64()?;
        let newest = Revision(fields.u64()?);
        let compacted = Revision(fields.u64()?);
        let sums = Sums { compacted, objects: fields.u64()?, object_bytes: fields.u64()? };
        let count = fields.u64()?;
        let mut rows = Vec::new();
        for _ in 0..count {
            let len = usize::try_from(fields.u32()?).unwrap_or(usize::MAX);
            rows.push(content.slice_ref(fields.take(len)?));
        }
        Ok((LoggedGroup { generation, newest, sums, rows }, len))
    }
}

/// Where what the checksum covers begins.
const SUM_END: usize = 12;

/// Where the next mark is, if there is one.
pub(super) fn next_mark(content: &[u8]) -> Option<usize> {
    content.chunks_exact(ALIGN).position(|bytes| bytes == MARK).map(|place| place * ALIGN)
}

/// How far something goes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Edges {
    pub(super) newest: Revision,
    pub(super) compacted: Revision,
}

impl Edges {
    pub(super) fn of(state: &State) -> Edges {
        Edges { newest: state.newest, compacted: state.compacted }
    }

    pub(super) fn max(self, other: Edges) -> Edges {
        let compacted = self.compacted.max(other.compacted);
        Edges { newest: self.newest.max(other.newest), compacted }
    }
}
