//! The cleaner: frees the space of rows that nobody needs.
//!
//! River: index → **cleaner** → base segment, roster.
//! Promise: copies the needed rows of some segments into a base segment, which is durable before a
//! roster lists it instead of them; only then are their files reused. Reads and writes continue
//! meanwhile. Copies at most as many bytes as it frees, and segments that contain only needed rows
//! never.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;

use super::Shared;
use super::frame::{BLOCK, Draft, FrameHeader, HEADER};
use super::free::remove;
use super::group::Staged;
use super::index::RowRef;
use super::log::{Appended, Edges};
use super::roster::{ENTRY_LEN, SegmentSummary};
use super::scan::{DamagedPart, FrameScan};
use super::segment::Segment;
use crate::key::Key;
use crate::lock::lock;
use crate::store::Error;

/// A segment is worth cleaning if at most one part in so many of it is needed.
const SHARE: u64 = 2;

/// The number of small segments that are worth merging.
const SMALL_MAX: usize = 8;

/// A frame of a base segment is written once it has this many bytes.
const FRAME_BYTES: usize = 1 << 20;

/// Index entries that are changed under one lock.
const CHUNK: usize = 1_000;

/// Decides which segments to clean; none if it is not worth it. Those of which nothing is needed
/// come first, alone: a full disk may have no space for a copy.
fn choose(
    sealed: &[SegmentSummary],
    needed: impl Fn(u64) -> u64,
    segment_bytes: u64,
) -> Vec<SegmentSummary> {
    let mut segments: Vec<_> = sealed.iter().map(|s| (needed(s.number), *s)).collect();
    segments.sort_unstable_by_key(|(needed, segment)| (*needed, segment.number));
    let is_small = |segment: &SegmentSummary| segment.len * 2 < segment_bytes;
    let merge = sealed.iter().filter(|segment| is_small(segment)).count() >= SMALL_MAX;
    let worth = |(needed, segment): &(u64, SegmentSummary)| match is_small(segment) {
        true => merge,
        false => needed * SHARE <= segment.len,
    };
    segments.retain(worth);
    let unneeded = segments.iter().take_while(|(needed, _)| *needed == 0).count();
    segments.truncate(if unneeded > 0 { unneeded } else { SMALL_MAX * 2 });
    let (mut sum, mut freed) = (0, 0);
    let mut chosen = Vec::new();
    for (needed, segment) in segments {
        if sum + needed > segment_bytes {
            break;
        }
        (sum, freed) = (sum + needed, freed + segment.len);
        chosen.push(segment);
    }
    // What is written: the base segment and a frame with a roster.
    let frames = sum.div_ceil(FRAME_BYTES as u64);
    let base = sum + frames * (HEADER + BLOCK) as u64;
    let roster = (HEADER + 4 + ENTRY_LEN * (sealed.len() + 2)).next_multiple_of(BLOCK) as u64;
    if base + roster >= freed {
        chosen.clear();
    }
    chosen
}

/// The state of the cleaner. Whoever locks it cleans.
#[derive(Debug, Default)]
pub(super) struct Cleaner {
    /// What the next roster replaces.
    cleaned: Option<Cleaned>,
    /// Segments that it cannot read.
    damaged: BTreeSet<u64>,
}

/// Segments of which all needed rows were copied.
#[derive(Debug, Default)]
struct Cleaned {
    dropped: Vec<u64>,
    /// How many rows of each key they contain.
    rows: HashMap<Key, u32>,
}

/// Cleans until no segment is worth it, or the store is closed.
pub(super) fn clean(shared: &Shared) {
    let mut cleaner = lock(&shared.cleaner);
    while cleaner.step(shared) && !shared.mailbox.is_closed() {}
}

impl Cleaner {
    /// Cleans some segments. Returns whether there may be more.
    fn step(&mut self, shared: &Shared) -> bool {
        if self.cleaned.is_none() {
            let sealed = shared.log().sealed.clone();
            let whole = sealed.into_values().filter(|s| !self.damaged.contains(&s.number));
            let sealed: Vec<_> = whole.collect();
            let needed = |number| shared.published().index.needed(number);
            let chosen = choose(&sealed, needed, shared.options.segment_bytes);
            if chosen.is_empty() || !self.copy(shared, &chosen) {
                return false;
            }
        }
        // Until a roster with the base segment is durable, the old segments stay.
        if let Err(error) = shared.append(&mut Staged::new(shared.identity.seed(), 0)) {
            shared.report_trouble(&error);
            return false;
        }
        if let Some(cleaned) = self.cleaned.take() {
            release(shared, cleaned);
        }
        true
    }

    /// Copies the needed rows of some segments, and returns whether it succeeded.
    fn copy(&mut self, shared: &Shared, chosen: &[SegmentSummary]) -> bool {
        let mut copy = Copy::new(shared);
        let copied = chosen.iter().try_for_each(|segment| {
            copy.segment(segment).inspect_err(|error| {
                if matches!(error, Error::Damaged { .. }) {
                    self.damaged.insert(segment.number);
                }
            })
        });
        let name = Segment::name(copy.summary.number);
        match copied.and_then(|()| copy.finish()) {
            Ok((rows, base)) => {
                let dropped: Vec<u64> = chosen.iter().map(|segment| segment.number).collect();
                shared.log().exchange(&dropped, base);
                self.cleaned = Some(Cleaned { dropped, rows });
                true
            }
            Err(error) => {
                tracing::error!(%error, "cannot clean a segment");
                shared.report_damage(&error);
                if shared.disk.exists(&name).unwrap_or(false) {
                    remove(&*shared.disk, &name);
                }
                false
            }
        }
    }
}

/// Forgets segments that no roster lists any more.
fn release(shared: &Shared, cleaned: Cleaned) {
    let rows: Vec<(Key, u32)> = cleaned.rows.into_iter().collect();
    for chunk in rows.chunks(CHUNK) {
        let mut published = shared.published_mut();
        for (key, count) in chunk {
            published.index.copies_dropped(key.as_str(), *count);
        }
    }
    for number in cleaned.dropped {
        let dropped = Arc::make_mut(&mut shared.published_mut().segments).remove(&number);
        if let Some(segment) = dropped {
            shared.log().free.give(&*shared.disk, segment, shared.options.segment_bytes);
        }
    }
}

/// Copies needed rows.
struct Copy<'a> {
    shared: &'a Shared,
    base: Option<Arc<Segment>>,
    summary: SegmentSummary,
    draft: Draft,
    /// The rows in the draft: their keys, old positions and offsets.
    pending: Vec<(Key, RowRef, u32)>,
    copied: Vec<(Key, RowRef, RowRef)>,
    rows: HashMap<Key, u32>,
}

impl<'a> Copy<'a> {
    fn new(shared: &'a Shared) -> Copy<'a> {
        let number = {
            let mut log = shared.log();
            log.number += 1;
            log.number
        };
        let (pending, copied, rows) = (Vec::new(), Vec::new(), HashMap::new());
        let summary = SegmentSummary { number, is_base: true, ..SegmentSummary::default() };
        let draft = Draft::new(shared.identity.seed(), FRAME_BYTES);
        Copy { shared, base: None, summary, draft, pending, copied, rows }
    }

    /// Copies the needed rows of a segment.
    fn segment(&mut self, dropped: &SegmentSummary) -> Result<(), Error> {
        let segment = self.shared.published().segments.get(&dropped.number).cloned();
        let name = || Segment::name(dropped.number);
        let segment = segment.ok_or_else(|| Error::Unavailable(format!("{} is lost", name())))?;
        let mut bytes = Vec::new();
        segment.read_all(dropped, &mut bytes)?;
        for frame in FrameScan::new(self.shared.identity.seed(), dropped, &bytes) {
            let frame = frame.map_err(DamagedPart::error)?;
            for (offset, row) in &frame.rows {
                let key = Key::new(row.key);
                let at = RowRef::new(row, dropped.number, frame.offset + u64::from(*offset));
                if self.shared.published().index.row(at.revision) == Some(at) {
                    let encoded = &frame.bytes[*offset as usize..][..row.len()];
                    let offset = self.draft.push_encoded(encoded);
                    self.pending.push((key.clone(), at, offset));
                }
                *self.rows.entry(key).or_default() += 1;
                if self.draft.len() >= FRAME_BYTES {
                    self.write().map_err(|error| self.failed(&error))?;
                }
            }
        }
        Ok(())
    }

    /// Writes the draft as a frame.
    fn write(&mut self) -> io::Result<()> {
        let seed = self.shared.identity.seed();
        let mut draft = std::mem::replace(&mut self.draft, Draft::new(seed, FRAME_BYTES));
        let (number, sequence) = (self.summary.number, self.summary.len + 1);
        let base = match self.base.take() {
            Some(base) => base,
            None => Arc::new(Segment::open(&*self.shared.disk, number)?),
        };
        let Edges { newest, compacted } = self.shared.published().edges();
        let position = FrameHeader {
            segment: number,
            sequence,
            newest,
            compacted,
            is_base: true,
            ..FrameHeader::default()
        };
        let (bytes, header) = draft.seal(position, None);
        base.file.write(self.summary.len, bytes)?;
        let appended = Appended { segment: base.clone(), offset: self.summary.len };
        for (key, from, offset) in self.pending.drain(..) {
            let to = appended.place(RowRef { offset, ..from });
            self.copied.push((key, from, to));
        }
        self.summary.add(header.len(), header.rows, header.digest);
        self.base = Some(base);
        Ok(())
    }

    /// Makes the base segment durable, then reads come from it.
    fn finish(mut self) -> Result<(HashMap<Key, u32>, Option<SegmentSummary>), Error> {
        if !self.pending.is_empty() {
            self.write().map_err(|error| self.failed(&error))?;
        }
        let Some(base) = self.base.take() else { return Ok((self.rows, None)) };
        let synced = base.file.sync_data().and_then(|()| self.shared.disk.sync());
        synced.map_err(|error| self.failed(&error))?;
        base.seal(self.summary);
        Arc::make_mut(&mut self.shared.published_mut().segments).insert(base.number, base);
        for chunk in self.copied.chunks(CHUNK) {
            let mut published = self.shared.published_mut();
            for (key, from, to) in chunk {
                published.index.copied(key.as_str(), *from, *to);
            }
        }
        Ok((self.rows, Some(self.summary)))
    }

    fn failed(&self, error: &io::Error) -> Error {
        Error::Unavailable(format!("{}: {error}", Segment::name(self.summary.number)))
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
        let chosen = choose(&sealed, |number| bytes(segments[number as usize].1), bytes(100));
        chosen.iter().map(|segment| segment.number).collect()
    }

    #[test]
    fn segments_that_are_half_needed_or_less_are_cleaned_the_emptiest_first() {
        assert_eq!(chosen(&[(100, 100), (100, 51)]), NONE);
        assert_eq!(chosen(&[(100, 50), (100, 100), (100, 1), (90, 20)]), [2, 3, 0]);
        assert_eq!(chosen(&[(100, 50), (100, 50), (100, 50)]), [0, 1], "one base segment");
    }

    #[test]
    fn segments_of_which_nothing_is_needed_are_dropped_without_a_copy() {
        assert_eq!(chosen(&[(100, 50), (100, 0), (90, 20), (100, 0)]), [1, 3]);
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
        let chosen = |needed| choose(&blocks, |_| needed, 2 * BLOCK as u64).len();
        assert_eq!([chosen(0), chosen(100)], [1, 0]);
    }
}
