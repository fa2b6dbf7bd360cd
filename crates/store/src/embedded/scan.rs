//! Reads the frames of a segment in order and checks them.
//!
//! Promise: a scan ends at the first frame that is not whole. Whether that is the torn end of a
//! crash or damage is decided by what follows: at most the last frame of a segment can be torn,
//! because every frame is synced before the next one is written.

use super::frame::{BLOCK, BadFrame, FrameHeader, HEADER, RowSpan, read_payload};
use super::row::{Row, Seed};

/// A whole frame.
#[derive(Debug)]
pub(super) struct ScannedFrame<'a> {
    pub(super) header: FrameHeader,
    /// Its position in the segment.
    pub(super) offset: u64,
    pub(super) rows: Vec<(RowSpan, Row<'a>)>,
}

/// An iterator over the frames in the content of a segment.
#[derive(Debug)]
pub(super) struct FrameScan<'a> {
    seed: Seed,
    number: u64,
    bytes: &'a [u8],
    offset: usize,
    sequence: Option<u64>,
    /// What is wrong with the frame at the end, if there is the header of one.
    bad: Option<BadFrame>,
}

impl<'a> FrameScan<'a> {
    pub(super) fn new(seed: Seed, number: u64, bytes: &'a [u8]) -> FrameScan<'a> {
        FrameScan { seed, number, bytes, offset: 0, sequence: None, bad: None }
    }

    /// The end of the frames so far.
    pub(super) fn end(&self) -> u64 {
        self.offset as u64
    }

    /// What is wrong at the end, in words.
    pub(super) fn why(&self) -> String {
        match &self.bad {
            Some(BadFrame { why, key: Some(key) }) => format!("{why} (a row of {key})"),
            Some(BadFrame { why, key: None }) => (*why).into(),
            None => "there is no frame".into(),
        }
    }

    /// The position of the next header of this segment after the end. If there is one, the end is
    /// damage and not torn.
    pub(super) fn next_header(&self) -> Option<u64> {
        let header = |at: &usize| self.header(*at).is_some();
        let mut blocks = (self.offset + BLOCK..self.bytes.len()).step_by(BLOCK);
        blocks.find(header).map(|at| at as u64)
    }

    /// Continues at a position after damage.
    pub(super) fn skip_to(&mut self, offset: u64) {
        self.offset = usize::try_from(offset).unwrap_or(usize::MAX);
        self.bad = None;
    }

    /// The rows of the damaged frame at the end that are whole, with their positions.
    pub(super) fn readable_rows(&self) -> Vec<(u64, Row<'a>)> {
        let (mut at, mut rows) = (self.offset + HEADER, Vec::new());
        let Some(header) = self.header(self.offset) else { return rows };
        for _ in 0..header.rows {
            let Some(bytes) = self.bytes.get(at..) else { break };
            if let Ok(row) = Row::decode(self.seed, bytes) {
                rows.push((at as u64, row));
            }
            // If the lengths of a damaged row are wrong, nothing after it is found.
            let Ok(row) = Row::parse(bytes) else { break };
            at += row.len();
        }
        rows
    }

    /// The header at a position, if it belongs to this segment and follows the last frame.
    fn header(&self, at: usize) -> Option<FrameHeader> {
        let header = FrameHeader::decode(self.seed, self.bytes.get(at..)?)?;
        let follows = self.sequence.is_none_or(|sequence| header.sequence > sequence);
        (header.segment == self.number && follows).then_some(header)
    }
}

impl<'a> Iterator for FrameScan<'a> {
    type Item = ScannedFrame<'a>;

    fn next(&mut self) -> Option<ScannedFrame<'a>> {
        let header = self.header(self.offset)?;
        let start = self.offset + HEADER;
        let Some(payload) = self.bytes.get(start..start + header.payload_len as usize) else {
            self.bad = Some(BadFrame { why: "the frame is truncated", key: None });
            return None;
        };
        let mut rows = Vec::with_capacity(header.rows.min(1 << 16) as usize);
        match read_payload(self.seed, &header, payload, |span, row| rows.push((span, row))) {
            Ok(_) => {
                let offset = self.offset as u64;
                self.offset += usize::try_from(header.len()).unwrap_or(usize::MAX);
                self.sequence = Some(header.sequence);
                Some(ScannedFrame { header, offset, rows })
            }
            Err(bad) => {
                self.bad = Some(bad);
                None
            }
        }
    }
}
