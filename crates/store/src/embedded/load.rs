//! Loading: reads all segments and builds the index.
//!
//! Promise: finds exactly the durable frames, or reports the position of the damage. Changes nothing
//! on disk, so that a start and a verification agree. A salvage reads in the same way, but notes
//! damage and continues with every row that is whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use headwater_api::Revision;

use super::disk::Disk;
use super::expiry::Expiry;
use super::format::Identity;
use super::frame::{FrameHeader, HEADER};
use super::free::FreeFiles;
use super::head::{HEAD, Head, HeadFile};
use super::index::{KeyEntry, RowIndex, RowRef};
use super::log::Active;
use super::published::Published;
use super::roster::{Roster, SegmentSummary};
use super::row::{Row, Seed};
use super::scan::FrameScan;
use super::segment::{Segment, SegmentMap};
use super::{damaged, unavailable};
use crate::change::ChangeKind;
use crate::key::Key;
use crate::recent::RecentChanges;
use crate::store::Error;

/// The content of a directory.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub(super) published: Published,
    pub(super) sealed: BTreeMap<u64, SegmentSummary>,
    /// Always there, unless the load was a salvage.
    pub(super) open: Option<OpenSegment>,
    /// The highest sequence, and the highest number of any segment that was ever used and whose
    /// file still exists.
    pub(super) sequence: u64,
    pub(super) number: u64,
    pub(super) expiries: Vec<Expiry>,
    /// The time of some commits, in milliseconds of the wall clock.
    pub(super) times: Vec<(i64, Revision)>,
    /// Segments that the roster does not list.
    pub(super) unlisted: Vec<u64>,
    /// The store was closed, and nothing was written since.
    pub(super) is_clean: bool,
    /// What could not be read, if the load was a salvage.
    pub(super) lost: Vec<String>,
}

/// The segment that was written last.
#[derive(Debug)]
pub(super) struct OpenSegment {
    pub(super) active: Active,
    /// The position and the bytes of its last frame, which may not be durable.
    pub(super) last_frame: (u64, Vec<u8>),
}

/// How damage is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnDamage {
    Refuse,
    /// Leaves out what cannot be read, and lists it.
    Salvage,
}

/// Reads everything.
pub(super) fn load(
    disk: &dyn Disk,
    identity: &Identity,
    on_damage: OnDamage,
) -> Result<Loaded, Error> {
    let Identity { first, .. } = *identity;
    let seed = identity.seed();
    let mut loaded = Loaded::default();
    loaded.published.newest = first;
    let mut files = SegmentMap::new();
    for name in disk.names().map_err(|error| unavailable(disk, "", &error))? {
        if let Some(found) = Segment::number_of(&name) {
            let segment = Segment::open(disk, found);
            let segment = segment.map_err(|error| unavailable(disk, &name, &error))?;
            files.insert(found, Arc::new(segment));
        }
        // A number is never used twice: a recycled file may still have frames with its old one.
        let used = Segment::number_of(&name).or_else(|| FreeFiles::number_of(&name));
        loaded.number = loaded.number.max(used.unwrap_or_default());
    }
    let head = HeadFile::find(disk, seed).map_err(|error| unavailable(disk, HEAD, &error))?;
    let (bytes, keys, rows, roster) = (Vec::new(), BTreeMap::new(), Vec::new(), None);
    let mut loader = Loader { disk, seed, first, on_damage, bytes, keys, rows, roster, loaded };
    loader.read_open(&files, head)?;
    loader.read_sealed(&files)?;
    let index = loader.index()?;
    let mut loaded = loader.loaded;
    let open = loaded.open.as_ref().map(|open| open.active.summary.number);
    let is_used = |number: &u64| Some(*number) == open || loaded.sealed.contains_key(number);
    loaded.unlisted = files.keys().copied().filter(|number| !is_used(number)).collect();
    files.retain(|number, _| is_used(number));
    loaded.is_clean = head.is_some_and(|head| head.is_clean && head.sequence == loaded.sequence);
    let Published { newest, compacted, .. } = loaded.published;
    let (recent, segments) = (RecentChanges::after(newest), Arc::new(files));
    loaded.published = Published { index, recent, segments, newest, compacted };
    Ok(loaded)
}

/// What is read, and what all frames contain together.
struct Loader<'a> {
    disk: &'a dyn Disk,
    seed: Seed,
    first: Revision,
    on_damage: OnDamage,
    /// The content of the segment that is being read.
    bytes: Vec<u8>,
    keys: BTreeMap<Key, KeyEntry>,
    /// All rows on disk, in the order of their positions.
    rows: Vec<FoundRow>,
    /// The newest list of segments in the open one.
    roster: Option<Roster>,
    loaded: Loaded,
}

/// A row, and whether the key had a value before.
#[derive(Clone, Copy)]
struct FoundRow {
    row: RowRef,
    is_create: bool,
}

impl Loader<'_> {
    /// Fails, or records what is left out.
    fn damage(&mut self, name: &str, why: &str) -> Result<(), Error> {
        match self.on_damage {
            OnDamage::Refuse => Err(damaged(self.disk, name, why)),
            OnDamage::Salvage => {
                self.loaded.lost.push(format!("{name}: {why}"));
                Ok(())
            }
        }
    }

    /// Finds and reads the segment that was written last: the log segment with the highest number
    /// that contains a frame. A file without a frame is left of a crash or from an earlier use.
    fn read_open(&mut self, files: &SegmentMap, head: Option<Head>) -> Result<(), Error> {
        let mut empty = None;
        for segment in files.values().rev() {
            let listed = self.unlisted(segment)?;
            if listed.is_base {
                continue;
            }
            let open = self.read(segment, &listed)?;
            if open.active.summary.len > 0 {
                self.loaded.open = Some(open);
                return self.check_head(head, empty.unwrap_or(segment));
            }
            empty = Some(segment);
        }
        self.damage("*.seg", "no segment contains a frame of this store")
    }

    /// The segments must contain every acknowledged frame; the last ones would be in this segment.
    fn check_head(&mut self, head: Option<Head>, last: &Segment) -> Result<(), Error> {
        let Some(head) = head.filter(|head| head.sequence > self.loaded.sequence) else {
            return Ok(());
        };
        let listed = self.unlisted(last)?;
        let mut bytes = Vec::new();
        last.read_all(&listed, &mut bytes)?;
        let mut scan = FrameScan::new(self.seed, &listed, &bytes);
        scan.by_ref().for_each(drop);
        let rest = scan.rest();
        let (newest, revision) = (self.loaded.published.newest, head.revision);
        let why = format!(
            "the log ends at revision {newest} ({}), but a later frame was acknowledged, at \
             revision {revision}",
            rest.why
        );
        self.damage(&rest.place, &why)?;
        // Rows of a recycled file's earlier use are older.
        let is_lost = |row: &Row<'_>| newest < row.revision && row.revision <= revision;
        for (offset, row) in rest.whole_rows().iter().filter(|(_, row)| is_lost(row)) {
            self.add(last.number, *offset, row);
        }
        // A salvage continues after every revision that a client may know.
        self.loaded.published.newest = revision;
        Ok(())
    }

    /// The entry of a segment whose length is unknown.
    fn unlisted(&self, segment: &Segment) -> Result<SegmentSummary, Error> {
        let mut first = Vec::new();
        segment.read(HEADER as u64, &mut first)?;
        let is_base = FrameHeader::decode(self.seed, &first)
            .is_some_and(|header| header.segment == segment.number && header.is_base);
        Ok(SegmentSummary { number: segment.number, is_open: true, is_base, ..Default::default() })
    }

    /// Reads all segments but the open one, the newest first. If a salvage lost a part of that, the
    /// list in it may be out of date, and every segment counts.
    fn read_sealed(&mut self, files: &SegmentMap) -> Result<(), Error> {
        let open = self.loaded.open.as_ref().map(|open| open.active.summary.number);
        let roster = self.roster.take().unwrap_or_default();
        let listed = roster.segments.into_iter().filter(|segment| !segment.is_open);
        let mut listed: BTreeMap<u64, _> = listed.map(|entry| (entry.number, entry)).collect();
        if !self.loaded.lost.is_empty() {
            for (number, segment) in files {
                if Some(*number) != open && !listed.contains_key(number) {
                    listed.insert(*number, self.unlisted(segment)?);
                }
            }
        }
        for listed in listed.into_values().rev() {
            let Some(segment) = files.get(&listed.number) else {
                self.damage(&Segment::name(listed.number), "the file is missing")?;
                continue;
            };
            self.read(segment, &listed)?;
            segment.seal(listed);
            self.loaded.sealed.insert(listed.number, listed);
        }
        Ok(())
    }

    /// Reads a segment.
    fn read(
        &mut self,
        segment: &Arc<Segment>,
        listed: &SegmentSummary,
    ) -> Result<OpenSegment, Error> {
        let mut bytes = std::mem::take(&mut self.bytes);
        segment.read_all(listed, &mut bytes)?;
        let mut scan = FrameScan::new(self.seed, listed, &bytes);
        let mut last_frame = (0, [].as_slice());
        for part in scan.by_ref() {
            match part {
                Ok(frame) => {
                    last_frame = (frame.offset, frame.bytes);
                    if !frame.header.is_base {
                        self.loaded.sequence = self.loaded.sequence.max(frame.header.sequence);
                        let time = frame.rows.first().map(|(_, row)| row.time);
                        self.loaded.times.extend(time.map(|time| (time, frame.header.newest)));
                    }
                    let Published { newest, compacted, .. } = &mut self.loaded.published;
                    *newest = frame.header.newest.max(*newest);
                    *compacted = frame.header.compacted.max(*compacted);
                    for (offset, row) in &frame.rows {
                        self.add(segment.number, frame.offset + u64::from(*offset), row);
                    }
                    if listed.is_open && frame.roster.is_some() {
                        self.roster = frame.roster;
                    }
                }
                Err(part) => {
                    self.damage(&part.place, &part.why)?;
                    for (offset, row) in part.whole_rows() {
                        let newest = &mut self.loaded.published.newest;
                        *newest = row.revision.max(*newest);
                        self.add(segment.number, offset, &row);
                    }
                }
            }
        }
        let summary = scan.found();
        let last_frame = (last_frame.0, last_frame.1.to_vec());
        self.bytes = bytes;
        let active = Active { segment: segment.clone(), summary };
        Ok(OpenSegment { active, last_frame })
    }

    fn add(&mut self, segment: u64, offset: u64, row: &Row<'_>) {
        let is_deleted = row.kind == ChangeKind::Deleted;
        let entry = KeyEntry { newest: row.revision, copies: 1, is_deleted };
        match self.keys.get_mut(row.key) {
            Some(known) => {
                let copies = known.copies + 1;
                let newest = if row.revision >= known.newest { entry } else { *known };
                *known = KeyEntry { copies, ..newest };
            }
            None => drop(self.keys.insert(Key::new(row.key), entry)),
        }
        if row.expires != 0 && !is_deleted {
            let (at, key, revision) = (row.expires, Key::new(row.key), row.revision);
            self.loaded.expiries.push(Expiry { at, key, revision });
        }
        let is_create = row.kind == ChangeKind::Created;
        self.rows.push(FoundRow { row: RowRef::new(row, segment, offset), is_create });
    }

    /// Builds the index from all rows.
    fn index(&mut self) -> Result<RowIndex, Error> {
        let mut rows = std::mem::take(&mut self.rows);
        // If a revision is there twice, the sort keeps the row of the later segment first.
        rows.sort_by_key(|found| found.row.revision);
        rows.dedup_by_key(|found| found.row.revision);
        let position = |revision: Revision| {
            rows.binary_search_by_key(&revision, |found| found.row.revision).ok()
        };
        if self.loaded.lost.is_empty()
            && let Some((revision, why)) = self.missing(&rows, position)
        {
            self.damage(&format!("revision {revision}"), why)?;
        }
        if !self.loaded.lost.is_empty() {
            // The history may have holes: only the newest state is kept.
            self.loaded.published.compacted = self.loaded.published.newest;
        }
        let mut needed = vec![false; rows.len()];
        for (at, found) in rows.iter().enumerate() {
            if found.row.revision > self.loaded.published.compacted {
                needed[at] = true;
                let prev = position(found.row.prev).filter(|_| !found.is_create);
                prev.into_iter().for_each(|prev| needed[prev] = true);
            }
        }
        // A deletion is needed if there are older rows for it to hide.
        let is_needed = |entry: &&KeyEntry| !entry.is_deleted || entry.copies > 1;
        for entry in self.keys.values().filter(is_needed) {
            needed[position(entry.newest).expect("it was found with the key")] = true;
        }
        let kept = rows.iter().zip(&needed).filter(|(_, needed)| **needed);
        let kept = kept.map(|(found, _)| found.row).collect();
        let index =
            RowIndex::new(std::mem::take(&mut self.keys), kept, self.loaded.published.compacted);
        self.loaded.expiries.retain(|expiry| {
            index.newest(expiry.key.as_str()).is_some_and(|row| row.revision == expiry.revision)
        });
        Ok(index)
    }

    /// Every revision that was not compacted has a row, and so has the version that it replaces.
    /// Returns the first one that does not.
    fn missing(
        &self,
        rows: &[FoundRow],
        position: impl Fn(Revision) -> Option<usize>,
    ) -> Option<(Revision, &'static str)> {
        let oldest = self.loaded.published.compacted.max(self.first);
        let mut next = oldest.next();
        for FoundRow { row, is_create } in rows.iter().filter(|found| found.row.revision > oldest) {
            if row.revision != next {
                break;
            }
            if !is_create && position(row.prev).is_none() {
                return Some((row.revision, "the row that it replaces is missing"));
            }
            next = next.next();
        }
        (next != self.loaded.published.newest.next()).then_some((next, "the row is missing"))
    }
}
