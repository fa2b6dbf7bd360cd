//! The log: appends frames to the active segment, and keeps the roster.
//!
//! River: group → **log** → published.
//! Promise: a frame is durable when `append` returns. After a failed write or sync the active
//! segment is never written or synced again, because the operating system may have dropped the
//! data and still report later syncs as successful: the frame goes to a new segment, whose roster
//! excludes whatever the failed write left.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use headwater_api::Revision;

use super::disk::Disk;
use super::format::Identity;
use super::frame::{Draft, FrameHeader};
use super::free::{FreeFiles, remove};
use super::head::{HEAD, Head, HeadFile};
use super::index::RowRef;
use super::roster::{Roster, SegmentSummary};
use super::row::Seed;
use super::segment::Segment;
use super::{Options, unavailable};
use crate::store::Error;

/// Frames of at most this length extend a file that grows by more than themselves: the next ones
/// then sync without a change of the file's length, which the file system would have to journal.
const SMALL_FRAME: usize = 64 << 10;

/// The zeros that follow a small frame at the end of a file.
const EXTENSION: usize = 512 << 10;

/// The segments and where the next frame goes.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) seed: Seed,
    segment_bytes: u64,
    head: HeadFile,
    /// All segments but the active one.
    pub(super) sealed: BTreeMap<u64, SegmentSummary>,
    pub(super) active: Option<Active>,
    /// The sequence of the last frame, written or failed, and of the last one that is durable.
    pub(super) sequence: u64,
    pub(super) durable: u64,
    /// The number of the last segment.
    pub(super) number: u64,
    /// The list of segments changed since the last roster.
    roster_changed: bool,
    /// The last write of HEAD failed, which was logged.
    head_failed: bool,
    pub(super) free: FreeFiles,
}

/// The segment that frames are appended to.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) segment: Arc<Segment>,
    pub(super) summary: SegmentSummary,
}

/// The position of a frame that was appended.
#[derive(Debug)]
pub(super) struct Appended {
    pub(super) segment: Arc<Segment>,
    pub(super) offset: u64,
}

impl Appended {
    /// The position of a row, from its position in the frame.
    pub(super) fn place(&self, row: RowRef) -> RowRef {
        let small = |number: u64| u32::try_from(number).expect("segments are below 4 GiB");
        let offset = small(self.offset) + row.offset;
        RowRef { segment: small(self.segment.number), offset, ..row }
    }
}

/// The revisions that a frame records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Edges {
    pub(super) newest: Revision,
    pub(super) compacted: Revision,
}

impl Log {
    /// The log of a store without segments. Its first segment comes after this number.
    pub(super) fn new(
        disk: &Arc<dyn Disk>,
        identity: &Identity,
        options: &Options,
        number: u64,
    ) -> Result<Log, Error> {
        let head = HeadFile::open(&**disk, identity.seed());
        Ok(Log {
            disk: disk.clone(),
            seed: identity.seed(),
            segment_bytes: options.segment_bytes,
            head: head.map_err(|error| unavailable(&**disk, HEAD, &error))?,
            sealed: BTreeMap::new(),
            active: None,
            sequence: 0,
            durable: 0,
            number,
            roster_changed: false,
            head_failed: false,
            free: FreeFiles::default(),
        })
    }

    /// Writes a frame and syncs it.
    pub(super) fn append(&mut self, draft: &mut Draft, edges: Edges) -> io::Result<Appended> {
        let (len, limit) = (draft.len() as u64, self.segment_bytes);
        let offset = match self.active.take_if(|active| active.summary.len + len <= limit) {
            None => self.begin(draft, edges)?,
            Some(mut active) => {
                let roster = self.roster_changed.then(|| self.roster(active.summary.number));
                let written = self.write(&mut active, draft, edges, roster.as_ref());
                // Without the failed frame, which `write` did not count.
                self.active = Some(active);
                match written {
                    Ok(offset) => {
                        self.durable = self.sequence;
                        self.write_head(edges.newest, false);
                        offset
                    }
                    Err(error) => {
                        tracing::warn!(%error, "an append failed; continuing in a new segment");
                        self.begin(draft, edges)?
                    }
                }
            }
        };
        self.roster_changed = false;
        let segment = &self.active.as_ref().expect("a frame was written to it").segment;
        Ok(Appended { segment: segment.clone(), offset })
    }

    /// Starts a segment with a frame that has a roster.
    fn begin(&mut self, draft: &mut Draft, edges: Edges) -> io::Result<u64> {
        self.seal();
        self.number += 1;
        let number = self.number;
        let segment = Arc::new(self.free.segment(&*self.disk, number)?);
        let summary = SegmentSummary { number, ..SegmentSummary::default() };
        let mut active = Active { segment, summary };
        let roster = self.roster(number);
        let written = self.write(&mut active, draft, edges, Some(&roster));
        match written.and_then(|offset| self.disk.sync().map(|()| offset)) {
            Ok(offset) => {
                self.active = Some(active);
                self.durable = self.sequence;
                // A power failure may lose the name of a segment, which only HEAD would notice.
                self.write_head(edges.newest, false);
                if let Err(error) = self.head.sync() {
                    tracing::warn!(%error, "cannot sync HEAD");
                }
                Ok(offset)
            }
            Err(error) => {
                drop(active);
                remove(&*self.disk, &Segment::name(number));
                Err(error)
            }
        }
    }

    fn write(
        &mut self,
        active: &mut Active,
        draft: &mut Draft,
        Edges { newest, compacted }: Edges,
        roster: Option<&Roster>,
    ) -> io::Result<u64> {
        self.sequence += 1;
        let Active { segment, summary } = active;
        let (number, sequence) = (summary.number, self.sequence);
        let position =
            FrameHeader { segment: number, sequence, newest, compacted, ..FrameHeader::default() };
        let (bytes, header) = draft.seal(position, roster);
        segment.file.write(summary.len, bytes)?;
        let end = summary.len + bytes.len() as u64;
        let is_small = header.rows > 0 && bytes.len() <= SMALL_FRAME;
        if is_small && end < self.segment_bytes && segment.file.len()? == end {
            let zeros = usize::try_from(self.segment_bytes - end).unwrap_or(EXTENSION);
            match segment.file.write(end, &vec![0; zeros.min(EXTENSION)]) {
                // There was space for the frame.
                Err(error) if error.kind() == io::ErrorKind::StorageFull => {}
                extended => extended?,
            }
        }
        segment.file.sync_data()?;
        let offset = summary.len;
        summary.add(header.len(), header.rows, header.digest);
        Ok(offset)
    }

    /// Ends the active segment: nothing is appended to it any more.
    pub(super) fn seal(&mut self) {
        if let Some(Active { summary, segment }) = self.active.take()
            && summary.len > 0
        {
            segment.seal(summary);
            self.sealed.insert(summary.number, summary);
        }
    }

    /// The list of all segments, with this one open.
    fn roster(&self, open: u64) -> Roster {
        let open = SegmentSummary { number: open, is_open: true, ..SegmentSummary::default() };
        Roster { segments: self.sealed.values().copied().chain([open]).collect() }
    }

    /// Exchanges segments for one that has copies of all their needed rows. Takes effect with the
    /// next frame.
    pub(super) fn exchange(&mut self, dropped: &[u64], base: Option<SegmentSummary>) {
        self.sealed.retain(|number, _| !dropped.contains(number));
        self.sealed.extend(base.map(|summary| (summary.number, summary)));
        self.roster_changed = true;
    }

    fn write_head(&mut self, revision: Revision, is_clean: bool) {
        let head = Head { sequence: self.durable, revision, is_clean };
        let written = self.head.write(head);
        let had_failed = std::mem::replace(&mut self.head_failed, written.is_err());
        if let (Err(error), false) = (written, had_failed) {
            tracing::warn!(%error, "cannot write HEAD; a restart may not notice lost writes");
        }
    }

    /// Records that everything is synced.
    pub(super) fn close(&mut self, newest: Revision) {
        self.write_head(newest, true);
        if let Err(error) = self.head.sync() {
            tracing::warn!(%error, "cannot record the clean stop in HEAD");
        }
    }
}
