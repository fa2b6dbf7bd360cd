//! Loading: reads all segments and builds the index.
//!
//! Promise: finds exactly the durable frames, or reports the position of the damage. Only the last
//! frame of the open segment may be torn. Changes nothing on disk, so that a start and a
//! verification agree.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use headwater_api::Revision;

use super::disk::Disk;
use super::expiry::Expiry;
use super::format::Identity;
use super::head::{HEAD, Head, HeadFile};
use super::index::{KeyEntry, RowIndex, RowRef};
use super::log::{Active, Edges};
use super::published::Published;
use super::roster::SegmentSummary;
use super::row::{Row, Seed};
use super::scan::FrameScan;
use super::segment::{Segment, SegmentMap};
use super::survey::{Survey, survey};
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
    /// The highest sequence, and the highest number of any segment.
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
    /// The segment without its last frame, which may not be durable.
    pub(super) before_last: SegmentSummary,
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
    let Survey { segments, mut roster, headless } = survey(disk, seed)?;
    let mut loader = Loader::new(disk, identity, on_damage);
    for number in headless {
        loader.damage(&Segment::name(number), "the first frame is damaged")?;
        roster.segments.push(Survey::unlisted(number));
    }
    let (mut sealed, mut open, mut used) = (BTreeMap::new(), None, SegmentMap::new());
    for listed in &roster.segments {
        let Some(segment) = segments.get(&listed.number) else {
            loader.damage(&Segment::name(listed.number), "the file is missing")?;
            continue;
        };
        let (summary, before_last) = loader.read(segment, listed)?;
        used.insert(listed.number, segment.clone());
        match listed.is_open {
            true => {
                let active = Active { segment: segment.clone(), summary };
                open = Some(OpenSegment { active, before_last });
            }
            false => {
                segment.seal(summary);
                sealed.insert(listed.number, summary);
            }
        }
    }
    if open.is_none() {
        loader.damage("*.seg", "the open segment is missing")?;
    }
    let is_clean = loader.check_head(open.as_ref())?;
    let unlisted = segments.keys().filter(|number| !used.contains_key(number)).copied().collect();
    let number = segments.keys().next_back().copied().unwrap_or_default();
    let Contents { index, expiries, times, edges, sequence, lost } = loader.finish()?;
    let published = Published {
        index,
        recent: RecentChanges::after(edges.newest),
        segments: Arc::new(used),
        newest: edges.newest,
        compacted: edges.compacted,
    };
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
    keys: BTreeMap<Key, KeyEntry>,
    /// All rows on disk, in the order of their positions.
    rows: Vec<FoundRow>,
    expiries: Vec<Expiry>,
    times: Vec<(i64, Revision)>,
    edges: Edges,
    sequence: u64,
    /// Why the open segment ends where it does.
    end: String,
    lost: Vec<String>,
}

/// A row, and whether the key had a value before.
#[derive(Clone, Copy)]
struct FoundRow {
    row: RowRef,
    is_create: bool,
}

struct Contents {
    index: RowIndex,
    expiries: Vec<Expiry>,
    times: Vec<(i64, Revision)>,
    edges: Edges,
    sequence: u64,
    lost: Vec<String>,
}

impl<'a> Loader<'a> {
    fn new(disk: &'a dyn Disk, identity: &Identity, on_damage: OnDamage) -> Loader<'a> {
        Loader {
            disk,
            seed: identity.seed(),
            first: identity.first,
            on_damage,
            keys: BTreeMap::new(),
            rows: Vec::new(),
            expiries: Vec::new(),
            times: Vec::new(),
            edges: Edges { newest: identity.first, compacted: Revision::ZERO },
            sequence: 0,
            end: String::new(),
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

    /// Reads a segment. Returns what it contains, with and without its last frame.
    fn read(
        &mut self,
        segment: &Segment,
        listed: &SegmentSummary,
    ) -> Result<(SegmentSummary, SegmentSummary), Error> {
        let (disk, name) = (self.disk, Segment::name(listed.number));
        let failed = |error: io::Error| unavailable(disk, &name, &error);
        let bytes = segment.read_to((!listed.is_open).then_some(listed.len)).map_err(failed)?;
        let mut scan = FrameScan::new(self.seed, listed.number, &bytes);
        let empty = SegmentSummary { len: 0, rows: 0, digest: 0, is_open: false, ..*listed };
        let (mut summary, mut before_last) = (empty, empty);
        loop {
            for frame in scan.by_ref() {
                before_last = summary;
                summary.add(frame.header.len(), frame.header.rows, frame.header.digest);
                if !frame.header.is_base {
                    self.sequence = self.sequence.max(frame.header.sequence);
                    let time = frame.rows.first().map(|(_, row)| row.time);
                    self.times.extend(time.map(|time| (time, frame.header.newest)));
                }
                self.edges.newest = self.edges.newest.max(frame.header.newest);
                self.edges.compacted = self.edges.compacted.max(frame.header.compacted);
                for (span, row) in &frame.rows {
                    self.add(listed.number, frame.offset + u64::from(span.offset), row);
                }
            }
            let next = scan.next_header();
            if listed.is_open && next.is_none() {
                self.end = scan.why();
                break;
            }
            if !listed.is_open && summary == *listed {
                break;
            }
            let why = match scan.end() == listed.len {
                true => "its frames are not those that were written".into(),
                false => scan.why(),
            };
            self.damage(&format!("{name}, byte {}", scan.end()), &why)?;
            for (offset, row) in scan.readable_rows() {
                self.add(listed.number, offset, &row);
            }
            match next {
                Some(next) => scan.skip_to(next),
                None => break,
            }
        }
        Ok((summary, before_last))
    }

    fn add(&mut self, segment: u64, offset: u64, row: &Row<'_>) {
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
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
        let row_ref = RowRef {
            revision: row.revision,
            prev: row.prev,
            segment: small(segment),
            offset: small(offset),
            len: small(row.len() as u64),
            is_delete: is_deleted,
        };
        let is_create = row.kind == ChangeKind::Created;
        self.rows.push(FoundRow { row: row_ref, is_create });
    }

    /// The segments must contain every acknowledged frame. Returns whether the store was closed
    /// after the last one.
    fn check_head(&mut self, open: Option<&OpenSegment>) -> Result<bool, Error> {
        let (disk, seed) = (self.disk, self.seed);
        let read = || match disk.exists(HEAD)? {
            true => HeadFile::open(disk, seed)?.read(),
            false => Ok(None),
        };
        let head = read().map_err(|error| unavailable(disk, HEAD, &error))?;
        let Some(Head { sequence, revision, is_clean }) = head else { return Ok(false) };
        if sequence > self.sequence {
            let end = open.map(|open| open.active.summary).unwrap_or_default();
            let name = format!("{}, byte {}", Segment::name(end.number), end.len);
            let (newest, end) = (self.edges.newest, &self.end);
            let why = format!(
                "the log ends at revision {newest} ({end}), but a later frame was acknowledged, at \
                 revision {revision}"
            );
            self.damage(&name, &why)?;
            // Salvage continues after every revision that a client may know.
            self.edges.newest = self.edges.newest.max(revision);
        }
        Ok(is_clean && sequence == self.sequence)
    }

    /// Builds the index from all rows.
    fn finish(mut self) -> Result<Contents, Error> {
        let mut rows = std::mem::take(&mut self.rows);
        rows.sort_by_key(|found| found.row.revision);
        rows.dedup_by_key(|found| found.row.revision);
        if self.on_damage == OnDamage::Salvage && !self.lost.is_empty() {
            // The history may have holes: only the newest state is kept.
            self.edges.compacted = self.edges.newest;
        }
        self.check_complete(&rows)?;
        let position = |revision: Revision| {
            rows.binary_search_by_key(&revision, |found| found.row.revision).ok()
        };
        let mut needed = vec![false; rows.len()];
        for (at, found) in rows.iter().enumerate() {
            if found.row.revision <= self.edges.compacted {
                continue;
            }
            needed[at] = true;
            match position(found.row.prev) {
                Some(prev) => needed[prev] |= !found.is_create,
                None if found.is_create => {}
                None => {
                    let why = "the row that it replaces is missing";
                    return Err(self.missing(found.row.revision, why));
                }
            }
        }
        // A deletion is needed if there are older rows for it to hide.
        let is_needed = |entry: &&KeyEntry| !entry.is_deleted || entry.copies > 1;
        for entry in self.keys.values().filter(is_needed) {
            needed[position(entry.newest).expect("it was found with the key")] = true;
        }
        let kept = rows.iter().zip(&needed).filter(|(_, needed)| **needed);
        let kept = kept.map(|(found, _)| found.row).collect();
        let index = RowIndex::new(self.keys, kept, self.edges.compacted);
        let Loader { mut expiries, times, edges, sequence, lost, .. } =
            Loader { keys: BTreeMap::new(), ..self };
        expiries.retain(|expiry| {
            index.newest(expiry.key.as_str()).is_some_and(|row| row.revision == expiry.revision)
        });
        Ok(Contents { index, expiries, times, edges, sequence, lost })
    }

    /// Every revision that was not compacted has a row.
    fn check_complete(&self, rows: &[FoundRow]) -> Result<(), Error> {
        let oldest = self.edges.compacted.max(self.first);
        let mut next = oldest.next();
        for found in rows.iter().filter(|found| found.row.revision > oldest) {
            if found.row.revision != next {
                return Err(self.missing(next, "the row is missing"));
            }
            next = next.next();
        }
        match next == self.edges.newest.next() {
            true => Ok(()),
            false => Err(self.missing(next, "the row is missing")),
        }
    }

    fn missing(&self, revision: Revision, why: &str) -> Error {
        damaged(self.disk, &format!("revision {revision}"), why)
    }
}
