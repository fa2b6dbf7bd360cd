//! Segments: the files of the log, and how rows are read from them.
//!
//! River: frame → **segment** → reads.
//! Promise: a row is served only if its checksum, its revision and its key are those that were asked
//! for. A segment that is dropped stays readable for those who read it.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::disk::{Disk, DiskFile};
use super::frame::HEADER;
use super::index::RowRef;
use super::roster::SegmentSummary;
use super::row::{Bad, Row, Seed};
use crate::change::Version;
use crate::key::Key;
use crate::store::{Error, Record};

pub(super) const SUFFIX: &str = ".seg";

/// Rows of one range are read together if the gap between them is at most this, in bytes.
const GAP_MAX: u64 = 16 << 10;

/// The maximum length of one read of several rows.
const READ_MAX: u64 = 1 << 20;

/// One file of the log.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) file: Box<dyn DiskFile>,
    sealed: OnceLock<SegmentSummary>,
}

/// The segments that readers need.
pub(super) type SegmentMap = BTreeMap<u64, Arc<Segment>>;

impl Segment {
    /// Opens the file of a segment, or creates it.
    pub(super) fn open(disk: &dyn Disk, number: u64) -> io::Result<Segment> {
        let file = disk.open(&Segment::name(number))?;
        Ok(Segment { number, file, sealed: OnceLock::new() })
    }

    pub(super) fn name(number: u64) -> String {
        format!("{number:08}{SUFFIX}")
    }

    /// The number in the name of a segment's file.
    pub(super) fn number_of(name: &str) -> Option<u64> {
        let number = name.strip_suffix(SUFFIX)?.parse().ok()?;
        (Segment::name(number) == name).then_some(number)
    }

    /// Records that nothing is appended any more.
    pub(super) fn seal(&self, summary: SegmentSummary) {
        // A segment is sealed once; the first summary counts.
        let _ = self.sealed.set(summary);
    }

    /// What it contains, once nothing is appended any more.
    pub(super) fn sealed(&self) -> Option<SegmentSummary> {
        self.sealed.get().copied()
    }

    /// Reads what is listed of the segment, or the entire file while the segment is open.
    pub(super) fn read_all(&self, listed: &SegmentSummary, out: &mut Vec<u8>) -> Result<(), Error> {
        self.fill(if listed.is_open { u64::MAX } else { listed.len }, out)
    }

    /// Reads the first header.
    pub(super) fn read_start(&self, out: &mut Vec<u8>) -> Result<(), Error> {
        self.fill(HEADER as u64, out)
    }

    /// Reads the file up to a length, or to its end.
    fn fill(&self, len: u64, out: &mut Vec<u8>) -> Result<(), Error> {
        let read = self.file.len().and_then(|there| {
            out.resize(usize::try_from(len.min(there)).unwrap_or(usize::MAX), 0);
            self.file.read(0, out)
        });
        let name = Segment::name(self.number);
        read.map_err(|error| Error::Unavailable(format!("{name}: {error}")))
    }
}

/// Reads rows from the segments of one state. Segments that are dropped later stay readable.
#[derive(Clone, Debug)]
pub(super) struct RowReader {
    pub(super) seed: Seed,
    pub(super) segments: Arc<SegmentMap>,
}

impl RowReader {
    /// Reads a row and checks it. It must belong to this key, if there is one.
    pub(super) fn row<T>(
        &self,
        at: RowRef,
        key: Option<&str>,
        read: impl FnOnce(Row<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut bytes = Vec::new();
        self.fill(&at, at.len.into(), &mut bytes)?;
        read(self.decode(&at, &bytes, key)?)
    }

    /// The value of a row, which must belong to this key.
    pub(super) fn version(&self, at: RowRef, key: &str) -> Result<Version, Error> {
        self.row(at, Some(key), |row| {
            Ok(Version { revision: at.revision, value: Bytes::copy_from_slice(row.value) })
        })
    }

    /// The values of many rows, in the given order. Rows that are neighbours are read together.
    pub(super) fn records(&self, rows: Vec<(Key, RowRef)>) -> Result<Vec<Record>, Error> {
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_unstable_by_key(|n| (rows[*n].1.segment, rows[*n].1.offset));
        let (mut values, mut bytes) = (vec![Bytes::new(); rows.len()], Vec::new());
        let mut rest = order.as_slice();
        while let Some((first, _)) = rest.split_first() {
            let start = rows[*first].1;
            let (mut count, mut end) = (0, u64::from(start.offset));
            for n in rest {
                let next = rows[*n].1;
                let next_end = u64::from(next.offset) + u64::from(next.len);
                let near = next.segment == start.segment && u64::from(next.offset) <= end + GAP_MAX;
                if count > 0 && !(near && next_end - u64::from(start.offset) <= READ_MAX) {
                    break;
                }
                (count, end) = (count + 1, next_end);
            }
            self.fill(&start, end - u64::from(start.offset), &mut bytes)?;
            for n in &rest[..count] {
                let (key, at) = &rows[*n];
                let row = &bytes[(at.offset - start.offset) as usize..][..at.len as usize];
                let row = self.decode(at, row, Some(key.as_str()))?;
                values[*n] = Bytes::copy_from_slice(row.value);
            }
            rest = &rest[count..];
        }
        let record = |((key, at), value): ((Key, RowRef), Bytes)| Record {
            key,
            revision: at.revision,
            value,
        };
        Ok(rows.into_iter().zip(values).map(record).collect())
    }

    fn decode<'a>(
        &self,
        at: &RowRef,
        bytes: &'a [u8],
        key: Option<&str>,
    ) -> Result<Row<'a>, Error> {
        let row = Row::decode(self.seed, bytes).map_err(|Bad(why)| damaged(at, why))?;
        if row.revision != at.revision {
            return Err(damaged(at, "it belongs to another revision"));
        }
        if key.is_some_and(|key| row.key != key) {
            return Err(damaged(at, "it belongs to another key"));
        }
        Ok(row)
    }

    /// Reads so many bytes from the position of a row.
    fn fill(&self, at: &RowRef, len: u64, out: &mut Vec<u8>) -> Result<(), Error> {
        let segment = self.segments.get(&u64::from(at.segment));
        let segment = segment.ok_or_else(|| damaged(at, "the segment is missing"))?;
        out.resize(usize::try_from(len).unwrap_or(usize::MAX), 0);
        segment.file.read(at.offset.into(), out).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => damaged(at, "the segment is truncated"),
            _ => Error::Unavailable(format!("{}: {error}", place(at))),
        })
    }
}

fn place(at: &RowRef) -> String {
    let name = Segment::name(u64::from(at.segment));
    format!("{name}, byte {}, revision {}", at.offset, at.revision)
}

fn damaged(at: &RowRef, why: &str) -> Error {
    Error::Damaged { place: place(at), why: why.into() }
}
