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
use super::frame::FrameHeader;
use super::free::FreeFiles;
use super::head::{HEAD, Head, HeadFile};
use super::index::{KeyEntry, RowIndex, RowRef};
use super::log::{Active, Edges};
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
#[derive(Debug)]
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
    let seed = identity.seed();
    let names = disk.names().map_err(|error| unavailable(disk, "", &error))?;
    let (mut files, mut number) = (SegmentMap::new(), 0);
    for name in &names {
        if let Some(found) = Segment::number_of(name) {
            let segment = Segment::open(disk, found);
            let segment = segment.map_err(|error| unavailable(disk, name, &error))?;
            files.insert(found, Arc::new(segment));
        }
        // A number is never used twice: a recycled file may still have frames with its old one.
        let used = Segment::number_of(name).or_else(|| FreeFiles::number_of(name));
        number = number.max(used.unwrap_or_default());
    }
    let mut loader = Loader::new(disk, identity, on_damage);
    let head = HeadFile::find(disk, seed).map_err(|error| unavailable(disk, HEAD, &error))?;
    let open = loader.read_open(&files, head)?;
    let (mut sealed, mut used) = (BTreeMap::new(), SegmentMap::new());
    if let Some(open) = &open {
        used.insert(open.active.summary.number, open.active.segment.clone());
    }
    for listed in loader.listed(&files, &used)?.iter().rev() {
        let Some(segment) = files.get(&listed.number) else {
            loader.damage(&Segment::name(listed.number), "the file is missing")?;
            continue;
        };
        loader.read(segment, listed)?;
        segment.seal(*listed);
        sealed.insert(listed.number, *listed);
        used.insert(listed.number, segment.clone());
    }
    let unlisted = files.keys().filter(|number| !used.contains_key(number)).copied().collect();
    let sequence = loader.sequence;
    let is_clean = head.is_some_and(|head| head.is_clean && head.sequence == sequence);
    let index = loader.index()?;
    let Loader { expiries, times, edges: Edges { newest, compacted }, lost, .. } = loader;
    let recent = RecentChanges::after(newest);
    let published = Published { index, recent, segments: Arc::new(used), newest, compacted };
    Ok(Loaded {
        published,
        sealed,
        open,
        sequence,
        number,
        expiries,
        times,
        unlisted,
        is_clean,
        lost,
    })
}

/// What all frames contain together.
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
    expiries: Vec<Expiry>,
    times: Vec<(i64, Revision)>,
    edges: Edges,
    sequence: u64,
    /// The newest list of segments in the open one.
    roster: Option<Roster>,
    lost: Vec<String>,
}

/// A row, and whether the key had a value before.
#[derive(Clone, Copy)]
struct FoundRow {
    row: RowRef,
    is_create: bool,
}

impl<'a> Loader<'a> {
    fn new(disk: &'a dyn Disk, identity: &Identity, on_damage: OnDamage) -> Loader<'a> {
        Loader {
            disk,
            seed: identity.seed(),
            first: identity.first,
            on_damage,
            bytes: Vec::new(),
            keys: BTreeMap::new(),
            rows: Vec::new(),
            expiries: Vec::new(),
            times: Vec::new(),
            edges: Edges { newest: identity.first, compacted: Revision::ZERO },
            sequence: 0,
            roster: None,
            lost: Vec::new(),
        }
    }

    /// Fails, or records what is left out.
    fn damage(&mut self, name: &str, why: &str) -> Result<(), Error> {
        match self.on_damage {
            OnDamage::Refuse => Err(damaged(self.disk, name, why)),
            OnDamage::Salvage => {
                self.lost.push(format!("{name}: {why}"));
                Ok(())
            }
        }
    }

    /// Finds and reads the segment that was written last: the log segment with the highest number
    /// that contains a frame. A file without a frame is left of a crash or from an earlier use.
    fn read_open(
        &mut self,
        files: &SegmentMap,
        head: Option<Head>,
    ) -> Result<Option<OpenSegment>, Error> {
        let mut empty = None;
        for segment in files.values().rev() {
            let listed = self.unlisted(segment)?;
            if listed.is_base {
                continue;
            }
            let open = self.read(segment, &listed)?;
            if open.active.summary.len > 0 {
                self.check_head(head, empty.unwrap_or(segment))?;
                return Ok(Some(open));
            }
            empty = Some(segment);
        }
        self.damage("*.seg", "no segment contains a frame of this store")?;
        Ok(None)
    }

    /// The segments must contain every acknowledged frame; the last ones would be in this segment.
    fn check_head(&mut self, head: Option<Head>, last: &Segment) -> Result<(), Error> {
        let Some(head) = head.filter(|head| head.sequence > self.sequence) else { return Ok(()) };
        let listed = self.unlisted(last)?;
        let mut bytes = Vec::new();
        last.read_all(&listed, &mut bytes)?;
        let mut scan = FrameScan::new(self.seed, &listed, &bytes);
        scan.by_ref().for_each(drop);
        let rest = scan.rest();
        let (newest, revision) = (self.edges.newest, head.revision);
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
        self.edges.newest = revision;
        Ok(())
    }

    /// The entry of a segment whose length is unknown.
    fn unlisted(&self, segment: &Segment) -> Result<SegmentSummary, Error> {
        let mut first = Vec::new();
        segment.read_start(&mut first)?;
        let is_base = FrameHeader::decode(self.seed, &first)
            .is_some_and(|header| header.segment == segment.number && header.is_base);
        Ok(SegmentSummary { number: segment.number, is_open: true, is_base, ..Default::default() })
    }

    /// All segments but the open one. If a salvage lost a part of that, the list in it may be out of
    /// date, and every segment counts.
    fn listed(
        &mut self,
        files: &SegmentMap,
        open: &SegmentMap,
    ) -> Result<Vec<SegmentSummary>, Error> {
        let roster = self.roster.take().unwrap_or_default();
        let listed = roster.segments.into_iter().filter(|segment| !segment.is_open);
        let mut listed: BTreeMap<u64, _> = listed.map(|entry| (entry.number, entry)).collect();
        if !self.lost.is_empty() {
            for (number, segment) in files {
                if !listed.contains_key(number) && !open.contains_key(number) {
                    listed.insert(*number, self.unlisted(segment)?);
                }
            }
        }
        Ok(listed.into_values().collect())
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
                        self.sequence = self.sequence.max(frame.header.sequence);
                        let time = frame.rows.first().map(|(_, row)| row.time);
                        self.times.extend(time.map(|time| (time, frame.header.newest)));
                    }
                    self.edges.newest = self.edges.newest.max(frame.header.newest);
                    self.edges.compacted = self.edges.compacted.max(frame.header.compacted);
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
                        self.edges.newest = self.edges.newest.max(row.revision);
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
        let known = match self.keys.get_mut(row.key) {
            Some(known) => {
                let copies = known.copies + 1;
                let newest = if row.revision >= known.newest { entry } else { *known };
                *known = KeyEntry { copies, ..newest };
                true
            }
            None => false,
        };
        let key = (!known || row.expires != 0).then(|| Key::new(row.key));
        if row.expires != 0
            && !is_deleted
            && let Some(key) = &key
        {
            let (at, revision) = (row.expires, row.revision);
            self.expiries.push(Expiry { at, key: key.clone(), revision });
        }
        if let Some(key) = key.filter(|_| !known) {
            self.keys.insert(key, entry);
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
        if self.lost.is_empty()
            && let Some((revision, why)) = self.missing(&rows, position)
        {
            self.damage(&format!("revision {revision}"), why)?;
        }
        if !self.lost.is_empty() {
            // The history may have holes: only the newest state is kept.
            self.edges.compacted = self.edges.newest;
        }
        let mut needed = vec![false; rows.len()];
        for (at, found) in rows.iter().enumerate() {
            if found.row.revision > self.edges.compacted {
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
        let index = RowIndex::new(std::mem::take(&mut self.keys), kept, self.edges.compacted);
        self.expiries.retain(|expiry| {
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
        let oldest = self.edges.compacted.max(self.first);
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
        (next != self.edges.newest.next()).then_some((next, "the row is missing"))
    }
}
