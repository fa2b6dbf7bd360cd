//! Reads the frames of a segment in order and checks them.
//!
//! Promise: every byte of a segment is part of a whole frame, of damage, or of the torn end of a
//! crash. Only the last frame of an open segment can be torn, because every frame is synced before
//! the next one is written: what is not whole and is followed by a frame is damage. Every reader
//! of segments uses this scan; they differ in what they do about damage.

use super::frame::{BLOCK, FrameHeader, HEADER, read_payload};
use super::roster::{Roster, SegmentSummary};
use super::row::{Row, Seed};
use super::segment::Segment;
use crate::store::Error;

/// A whole frame.
#[derive(Debug)]
pub(super) struct ScannedFrame<'a> {
    pub(super) header: FrameHeader,
    /// Its position in the segment.
    pub(super) offset: u64,
    /// Everything that was written, padding included.
    pub(super) bytes: &'a [u8],
    /// With their offsets in the frame.
    pub(super) rows: Vec<(u32, Row<'a>)>,
    pub(super) roster: Option<Roster>,
}

/// A part of a segment that contains no whole frame.
#[derive(Debug)]
pub(super) struct DamagedPart<'a> {
    pub(super) place: String,
    pub(super) why: String,
    seed: Seed,
    offset: usize,
    bytes: &'a [u8],
}

impl<'a> DamagedPart<'a> {
    pub(super) fn error(self) -> Error {
        Error::Damaged { place: self.place, why: self.why }
    }

    /// The rows in it that are whole, with their positions. After a damaged row, whose length may be
    /// wrong, it looks for the next one at every byte.
    pub(super) fn whole_rows(&self) -> Vec<(u64, Row<'a>)> {
        let (mut at, mut rows) = (HEADER, Vec::new());
        while let Some(bytes) = self.bytes.get(at..).filter(|bytes| !bytes.is_empty()) {
            match Row::decode(self.seed, bytes) {
                Ok(row) => {
                    rows.push(((self.offset + at) as u64, row));
                    at += row.len();
                }
                Err(_) => at += 1,
            }
        }
        rows
    }
}

/// An iterator over the content of a segment.
#[derive(Debug)]
pub(super) struct FrameScan<'a> {
    seed: Seed,
    listed: SegmentSummary,
    bytes: &'a [u8],
    offset: usize,
    sequence: Option<u64>,
    /// The frames so far.
    found: SegmentSummary,
    is_damaged: bool,
}

impl<'a> FrameScan<'a> {
    /// A scan of an open segment, or of one that must contain what is listed.
    pub(super) fn new(seed: Seed, listed: &SegmentSummary, bytes: &'a [u8]) -> FrameScan<'a> {
        let found = SegmentSummary { len: 0, rows: 0, digest: 0, is_open: false, ..*listed };
        let (offset, sequence, is_damaged) = (0, None, false);
        FrameScan { seed, listed: *listed, bytes, offset, sequence, found, is_damaged }
    }

    /// The frames so far, in numbers.
    pub(super) fn found(&self) -> SegmentSummary {
        self.found
    }

    /// What follows the last frame of an open segment.
    pub(super) fn rest(&self) -> DamagedPart<'a> {
        let why = self.frame().err();
        self.part(self.bytes.len(), why.unwrap_or_else(|| "there are more frames".into()))
    }

    fn part(&self, end: usize, why: String) -> DamagedPart<'a> {
        DamagedPart {
            place: format!("{}, byte {}", Segment::name(self.listed.number), self.offset),
            why,
            seed: self.seed,
            offset: self.offset,
            bytes: self.bytes.get(self.offset..end).unwrap_or_default(),
        }
    }

    /// The frame at the current position.
    fn frame(&self) -> Result<ScannedFrame<'a>, String> {
        let header = self.header(self.offset).ok_or("there is no frame")?;
        let start = self.offset + HEADER;
        let payload = self.bytes.get(start..start + header.payload_len as usize);
        let payload = payload.ok_or("the frame is truncated")?;
        // The padding may be missing.
        let end = self.bytes.len().min(self.offset + header.len() as usize);
        let mut rows = Vec::with_capacity(header.rows.min(1 << 16) as usize);
        let roster =
            read_payload(self.seed, &header, payload, |offset, row| rows.push((offset, row)))?;
        let (offset, bytes) = (self.offset as u64, &self.bytes[self.offset..end]);
        Ok(ScannedFrame { header, offset, bytes, rows, roster })
    }

    /// The header at a position, if it belongs to this segment and follows the last frame.
    fn header(&self, at: usize) -> Option<FrameHeader> {
        let header = FrameHeader::decode(self.seed, self.bytes.get(at..)?)?;
        let follows = self.sequence.is_none_or(|sequence| header.sequence > sequence);
        let SegmentSummary { number, is_base, .. } = self.listed;
        (header.segment == number && header.is_base == is_base && follows).then_some(header)
    }

    /// The position of the next header after the current position.
    fn next_header(&self) -> Option<usize> {
        let mut blocks = (self.offset + BLOCK..self.bytes.len()).step_by(BLOCK);
        blocks.find(|at| self.header(*at).is_some())
    }

    fn damage(&mut self, end: usize, why: String) -> DamagedPart<'a> {
        let part = self.part(end, why);
        self.offset = end;
        self.is_damaged = true;
        part
    }
}

impl<'a> Iterator for FrameScan<'a> {
    type Item = Result<ScannedFrame<'a>, DamagedPart<'a>>;

    fn next(&mut self) -> Option<Result<ScannedFrame<'a>, DamagedPart<'a>>> {
        if !self.listed.is_open && self.offset as u64 >= self.listed.len {
            let is_complete = self.is_damaged || self.found == self.listed;
            let other = "its frames are not those that were written";
            return (!is_complete).then(|| Err(self.damage(self.offset, other.into())));
        }
        match self.frame() {
            Ok(frame) => {
                let header = &frame.header;
                self.offset += usize::try_from(header.len()).unwrap_or(usize::MAX);
                self.sequence = Some(header.sequence);
                self.found.add(header.len(), header.rows, header.digest);
                Some(Ok(frame))
            }
            Err(why) => match self.next_header() {
                None if self.listed.is_open => None,
                None if self.is_damaged && self.offset >= self.bytes.len() => None,
                next => Some(Err(self.damage(next.unwrap_or(self.bytes.len()), why))),
            },
        }
    }
}
