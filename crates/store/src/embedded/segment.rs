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
use super::index::RowRef;
use super::roster::SegmentSummary;
use super::row::{Bad, Row, Seed};
use crate::change::Version;
use crate::key::Key;
use crate::store::{Error, Record};

pub(super) const SUFFIX: &str = ".seg";

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
        self.read(if listed.is_open { u64::MAX } else { listed.len }, out)
    }

    /// Reads the file up to a length, or to its end.
    pub(super) fn read(&self, len: u64, out: &mut Vec<u8>) -> Result<(), Error> {
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
        read(self.read(&at, key, &mut Vec::new())?)
    }

    /// The value of a row, which must belong to this key.
    pub(super) fn version(&self, at: RowRef, key: &str) -> Result<Version, Error> {
        self.row(at, Some(key), |row| {
            Ok(Version { revision: at.revision, value: Bytes::copy_from_slice(row.value) })
        })
    }

    /// The values of many rows.
    pub(super) fn records(&self, rows: Vec<(Key, RowRef)>) -> Result<Vec<Record>, Error> {
        let mut bytes = Vec::new();
        let read = |(key, at): (Key, RowRef)| {
            let row = self.read(&at, Some(key.as_str()), &mut bytes)?;
            let value = Bytes::copy_from_slice(row.value);
            Ok(Record { key, revision: at.revision, value })
        };
        rows.into_iter().map(read).collect()
    }

    /// Reads a row into a buffer and checks it.
    fn read<'a>(
        &self,
        at: &RowRef,
        key: Option<&str>,
        bytes: &'a mut Vec<u8>,
    ) -> Result<Row<'a>, Error> {
        let segment = self.segments.get(&u64::from(at.segment));
        let segment = segment.ok_or_else(|| damaged(at, "the segment is missing"))?;
        bytes.resize(at.len as usize, 0);
        segment.file.read(at.offset.into(), bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => damaged(at, "the segment is truncated"),
            _ => Error::Unavailable(format!("{}: {error}", place(at))),
        })?;
        let row = Row::decode(self.seed, bytes).map_err(|Bad(why)| damaged(at, why))?;
        if row.revision != at.revision {
            return Err(damaged(at, "it belongs to another revision"));
        }
        if key.is_some_and(|key| row.key != key) {
            return Err(damaged(at, "it belongs to another key"));
        }
        Ok(row)
    }
}

fn place(at: &RowRef) -> String {
    let name = Segment::name(u64::from(at.segment));
    format!("{name}, byte {}, revision {}", at.offset, at.revision)
}

fn damaged(at: &RowRef, why: &str) -> Error {
    Error::Damaged { place: place(at), why: why.into() }
}
