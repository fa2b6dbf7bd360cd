//! The cleaner: frees the space of rows that nobody needs.
//!
//! River: index → **cleaner** → base segment, roster.
//! Promise: copies the needed rows of some segments into a base segment, which is durable before a
//! roster lists it instead of them; only then are their files reused. Reads continue meanwhile.
//! Copies at most as many bytes as it frees, and segments that contain only needed rows never.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::Shared;
use super::disk::Disk;
use super::frame::{BLOCK, Draft, FrameHeader, HEADER};
use super::free::remove;
use super::index::RowRef;
use super::log::{Appended, Edges};
use super::roster::{ENTRY_LEN, SegmentSummary};
use super::row::Row;
use super::scan::{DamagedPart, FrameScan};
use super::segment::Segment;
use crate::key::Key;
use crate::store::Error;

/// A segment is worth cleaning if at most one part in so many of it is needed.
const SHARE: u64 = 2;

/// The number of small segments that are worth merging.
const SMALL_MAX: usize = 8;

/// A frame of a base segment is written once it has this many bytes.
const FRAME_BYTES: usize = 1 << 20;

/// Index entries that are changed under one lock.
const CHUNK: usize = 1_000;

/// Decides which segments to clean; none if it is not worth it. Without `may_copy`, only those of
/// which nothing is needed.
pub(super) fn choose(
    sealed: &[SegmentSummary],
    needed: impl Fn(u64) -> u64,
    segment_bytes: u64,
    may_copy: bool,
) -> Vec<SegmentSummary> {
    let segments: Vec<_> =
        sealed.iter().map(|segment| (needed(segment.number), *segment)).collect();
    let is_small = |segment: &SegmentSummary| segment.len * 2 < segment_bytes;
    let is_sparse = |needed: u64, segment: &SegmentSummary| needed * SHARE <= segment.len;
    let merge = segments.iter().filter(|(_, segment)| is_small(segment)).count() >= SMALL_MAX;
    let free = |(needed, segment): &(u64, SegmentSummary)| {
        !is_small(segment) && is_sparse(*needed, segment)
    };
    if may_copy && !merge && !segments.iter().any(free) {
        return Vec::new();
    }
    let worth = |(needed, segment): &(u64, SegmentSummary)| {
        let is_worth = is_sparse(*needed, segment) || (merge && is_small(segment));
        is_worth && (may_copy || *needed == 0)
    };
    let mut worth: Vec<_> = segments.into_iter().filter(worth).collect();
    worth.sort_unstable_by_key(|(needed, segment)| (*needed, segment.number));
    let mut sum = 0;
    let fits = |(needed, _): &(u64, SegmentSummary)| {
        sum += needed;
        sum <= segment_bytes
    };
    let chosen: Vec<_> = worth.into_iter().take(SMALL_MAX * 2).take_while(fits).collect();
    let needed: u64 = chosen.iter().map(|(needed, _)| needed).sum();
    let freed: u64 = chosen.iter().map(|(_, segment)| segment.len).sum();
    match base_len(needed) + roster_len(sealed.len()) < freed {
        true => chosen.into_iter().map(|(_, segment)| segment).collect(),
        false => Vec::new(),
    }
}

/// The length of a base segment with so many bytes of rows, at most.
fn base_len(rows: u64) -> u64 {
    let frames = rows.div_ceil(FRAME_BYTES as u64);
    rows + frames * (HEADER + BLOCK) as u64
}

/// The length of the frame that lists so many segments.
fn roster_len(segments: usize) -> u64 {
    (HEADER + 4 + ENTRY_LEN * (segments + 2)).next_multiple_of(BLOCK) as u64
}

/// The cleaner's progress.
#[derive(Debug, Default)]
pub(super) enum Cleaner {
    #[default]
    Idle,
    /// Needed rows are being copied.
    Copying(JoinHandle<Result<Cleaned, Error>>),
    /// A roster must list the base segment instead of the old ones.
    Listing(Cleaned),
    /// The keys of the old segments are being counted off.
    Releasing(JoinHandle<Vec<Arc<Segment>>>),
}

impl Cleaner {
    /// Ends the job at a stop. What it wrote is removed, unless a roster lists it.
    pub(super) fn stop(self, disk: &dyn Disk) {
        match self {
            Cleaner::Copying(job) => {
                if let Some(Ok(Cleaned { base: Some(base), .. })) = join(job) {
                    remove(disk, &Segment::name(base.number));
                }
            }
            Cleaner::Releasing(job) => {
                let dropped = join(job).unwrap_or_default();
                dropped.iter().for_each(|segment| remove(disk, &Segment::name(segment.number)));
            }
            Cleaner::Idle | Cleaner::Listing(_) => {}
        }
    }
}

/// The result of a job; `None` if it panicked.
pub(super) fn join<T>(job: JoinHandle<T>) -> Option<T> {
    job.join().ok()
}

/// The result of copying.
#[derive(Debug)]
pub(super) struct Cleaned {
    pub(super) dropped: Vec<SegmentSummary>,
    pub(super) base: Option<SegmentSummary>,
    /// How many rows of each key the dropped segments contain.
    rows: HashMap<Key, u32>,
}

/// Starts to copy the needed rows of some segments.
pub(super) fn copy(
    shared: &Arc<Shared>,
    dropped: Vec<SegmentSummary>,
    base: u64,
) -> io::Result<Cleaner> {
    let job = shared.clone();
    let copied = spawn(shared, move || {
        let copied = Copy::new(&job, dropped, base).run();
        if copied.is_err() && job.disk.exists(&Segment::name(base)).unwrap_or(false) {
            remove(&*job.disk, &Segment::name(base));
        }
        copied
    });
    copied.map(Cleaner::Copying)
}

/// Starts to forget segments that no roster lists any more.
pub(super) fn release(shared: &Arc<Shared>, cleaned: Cleaned) -> io::Result<Cleaner> {
    let job = shared.clone();
    spawn(shared, move || release_now(&job, cleaned)).map(Cleaner::Releasing)
}

fn spawn<T: Send + 'static>(
    shared: &Arc<Shared>,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let shared = shared.clone();
    std::thread::Builder::new().name("store-cleaner".into()).spawn(move || {
        let done = work();
        shared.mailbox.nudge();
        done
    })
}

fn release_now(shared: &Shared, cleaned: Cleaned) -> Vec<Arc<Segment>> {
    let rows: Vec<(Key, u32)> = cleaned.rows.into_iter().collect();
    for chunk in rows.chunks(CHUNK) {
        let mut published = shared.published_mut();
        for (key, count) in chunk {
            published.index.copies_dropped(key.as_str(), *count);
        }
    }
    let mut published = shared.published_mut();
    let segments = Arc::make_mut(&mut published.segments);
    cleaned.dropped.iter().filter_map(|dropped| segments.remove(&dropped.number)).collect()
}

/// Copies needed rows.
struct Copy<'a> {
    shared: &'a Shared,
    cleaned: Cleaned,
    number: u64,
    base: Option<Arc<Segment>>,
    summary: SegmentSummary,
    draft: Draft,
    /// The rows in the draft: their keys and old positions.
    pending: Vec<(Key, RowRef)>,
    copied: Vec<(Key, RowRef, RowRef)>,
}

impl<'a> Copy<'a> {
    fn new(shared: &'a Shared, dropped: Vec<SegmentSummary>, number: u64) -> Copy<'a> {
        let summary = SegmentSummary { number, is_base: true, ..SegmentSummary::default() };
        Copy {
            shared,
            cleaned: Cleaned { dropped, base: None, rows: HashMap::new() },
            number,
            base: None,
            summary,
            draft: Draft::new(shared.identity.seed(), FRAME_BYTES),
            pending: Vec::new(),
            copied: Vec::new(),
        }
    }

    fn run(mut self) -> Result<Cleaned, Error> {
        for segment in self.cleaned.dropped.clone() {
            let bytes = self.read(&segment)?;
            self.each_row(&segment, &bytes, |copy, _, row, _| {
                *copy.cleaned.rows.entry(Key::new(row.key)).or_default() += 1;
                Ok(())
            })?;
        }
        for segment in self.cleaned.dropped.clone() {
            let bytes = self.read(&segment)?;
            self.each_row(&segment, &bytes, |copy, at, row, bytes| {
                match copy.is_needed(&at, row.key) {
                    true => copy.push(at, row, bytes),
                    false => Ok(()),
                }
            })?;
        }
        self.write()?;
        self.finish()
    }

    fn read(&self, dropped: &SegmentSummary) -> Result<Vec<u8>, Error> {
        let name = Segment::name(dropped.number);
        let segment = self.shared.published().segments.get(&dropped.number).cloned();
        let segment = segment.ok_or_else(|| Error::Unavailable(format!("{name} is not open")))?;
        let mut bytes = Vec::new();
        segment.read_all(dropped, &mut bytes)?;
        Ok(bytes)
    }

    fn each_row(
        &mut self,
        dropped: &SegmentSummary,
        bytes: &[u8],
        mut each: impl FnMut(&mut Self, RowRef, &Row<'_>, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        for frame in FrameScan::new(self.shared.identity.seed(), dropped, bytes) {
            let frame = frame.map_err(DamagedPart::error)?;
            for (span, row) in &frame.rows {
                let at = frame.offset + u64::from(span.offset);
                let encoded = usize::try_from(at).ok().and_then(|at| bytes.get(at..));
                let encoded = encoded.and_then(|bytes| bytes.get(..row.len())).unwrap_or_default();
                each(self, RowRef::new(row, dropped.number, at), row, encoded)?;
            }
        }
        Ok(())
    }

    /// Whether a row must be kept. A deletion hides older rows only if some are in other segments.
    fn is_needed(&self, at: &RowRef, key: &str) -> bool {
        let published = self.shared.published();
        let hides_older_rows = || {
            let here = self.cleaned.rows.get(key).copied().unwrap_or_default();
            published.index.entry(key).is_some_and(|entry| entry.copies > here)
        };
        published.index.row(at.revision) == Some(*at)
            && (!at.is_delete || at.revision > published.compacted || hides_older_rows())
    }

    fn push(&mut self, at: RowRef, row: &Row<'_>, encoded: &[u8]) -> Result<(), Error> {
        self.draft.push_encoded(encoded);
        self.pending.push((Key::new(row.key), at));
        if self.draft.len() >= FRAME_BYTES { self.write() } else { Ok(()) }
    }

    /// Writes the draft as a frame.
    fn write(&mut self) -> Result<(), Error> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let seed = self.shared.identity.seed();
        let mut draft = std::mem::replace(&mut self.draft, Draft::new(seed, FRAME_BYTES));
        let name = Segment::name(self.number);
        let failed = |error: io::Error| Error::Unavailable(format!("{name}: {error}"));
        if self.base.is_none() {
            let segment = Segment::open(&*self.shared.disk, self.number).map_err(failed)?;
            self.base = Some(Arc::new(segment));
        }
        let Some(base) = &self.base else { return Ok(()) };
        let Edges { newest, compacted } = self.shared.published().edges();
        let position = FrameHeader {
            segment: self.number,
            sequence: self.summary.len + 1,
            newest,
            compacted,
            is_base: true,
            ..FrameHeader::default()
        };
        let (bytes, header) = draft.seal(position, None);
        base.file.write(self.summary.len, bytes).map_err(failed)?;
        let appended = Appended { segment: base.clone(), offset: self.summary.len };
        for ((key, from), span) in self.pending.drain(..).zip(draft.rows()) {
            let to = appended.place(RowRef { offset: span.offset, ..from });
            self.copied.push((key, from, to));
        }
        self.summary.add(header.len(), header.rows, header.digest);
        Ok(())
    }

    /// Makes the base segment durable, then reads come from it.
    fn finish(mut self) -> Result<Cleaned, Error> {
        let Some(base) = self.base else { return Ok(self.cleaned) };
        let synced = base.file.sync_data().and_then(|()| self.shared.disk.sync());
        let name = Segment::name(self.number);
        synced.map_err(|error| Error::Unavailable(format!("{name}: {error}")))?;
        base.seal(self.summary);
        self.shared.add_segment(base);
        for chunk in self.copied.chunks(CHUNK) {
            let mut published = self.shared.published_mut();
            for (key, from, to) in chunk {
                published.index.copied(key.as_str(), *from, *to);
            }
        }
        self.cleaned.base = Some(self.summary);
        Ok(self.cleaned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [u64; 0] = [];

    /// Segments of 100 blocks, with the length and needed bytes of each in blocks.
    fn chosen(segments: &[(u64, u64)]) -> Vec<u64> {
        let sealed: Vec<_> = segments
            .iter()
            .zip(0..)
            .map(|((len, _), number)| {
                let len = len * BLOCK as u64;
                SegmentSummary { number, len, ..Default::default() }
            })
            .collect();
        let bytes = |blocks: u64| blocks * BLOCK as u64;
        let chosen = choose(&sealed, |number| bytes(segments[number as usize].1), bytes(100), true);
        chosen.iter().map(|segment| segment.number).collect()
    }

    #[test]
    fn segments_that_are_half_needed_or_less_are_cleaned_the_emptiest_first() {
        assert_eq!(chosen(&[(100, 100), (100, 51)]), NONE);
        assert_eq!(chosen(&[(100, 50), (100, 100), (100, 0), (90, 20)]), [2, 3, 0]);
        assert_eq!(chosen(&[(100, 50), (100, 50), (100, 50)]), [0, 1], "one base segment");
    }

    #[test]
    fn without_space_for_a_copy_only_segments_of_which_nothing_is_needed_are_dropped() {
        let sealed = [0, 1].map(|number| SegmentSummary {
            number,
            len: 10 * BLOCK as u64,
            ..Default::default()
        });
        let chosen = choose(&sealed, |number| number, 1 << 20, false);
        assert_eq!(chosen.iter().map(|segment| segment.number).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn small_segments_are_merged_once_there_are_many() {
        assert_eq!(chosen(&[(20, 10), (20, 0)]), NONE);
        assert_eq!(chosen(&[(10, 9); 7]), NONE);
        assert_eq!(chosen(&[(10, 9); 8]).len(), 8);
    }

    #[test]
    fn nothing_is_copied_that_frees_nothing() {
        assert_eq!(chosen(&[(10, 10); 8]), NONE);
        let blocks = [SegmentSummary { len: 2 * BLOCK as u64, ..Default::default() }];
        let chosen = |needed| choose(&blocks, |_| needed, 2 * BLOCK as u64, true).len();
        assert_eq!([chosen(0), chosen(100)], [1, 0]);
    }
}
