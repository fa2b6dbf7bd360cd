//! The index: the position of every row that a read may need.
//!
//! River: group commit → **index** → reads, cleaner.
//! Promise: contains only durable rows. A row is needed while it is the newest one of its key, or
//! was superseded or written after the compacted revision. A deletion is needed while older rows of
//! its key are on disk: without it, a start would find these and revive the object.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeInclusive};

use headwater_api::Revision;

use super::row::Row;
use crate::change::ChangeKind;
use crate::key::Key;
use crate::store::Range;

/// The position of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowRef {
    pub(super) revision: Revision,
    /// The key's row before it, also if that is a deletion; zero if there is none.
    pub(super) prev: Revision,
    pub(super) segment: u32,
    pub(super) offset: u32,
    pub(super) len: u32,
    pub(super) is_delete: bool,
}

impl RowRef {
    /// The position of a row that starts at an offset in a segment.
    pub(super) fn new(row: &Row<'_>, segment: u64, offset: u64) -> RowRef {
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        RowRef {
            revision: row.revision,
            prev: row.prev,
            segment: small(segment),
            offset: small(offset),
            len: small(row.len() as u64),
            is_delete: row.kind == ChangeKind::Deleted,
        }
    }
}

/// The newest row of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyEntry {
    pub(super) newest: Revision,
    /// All rows of the key that are on disk, needed or not.
    pub(super) copies: u32,
    pub(super) is_deleted: bool,
}

/// The content of a store in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Keys that have a value.
    pub objects: u64,
    /// The bytes of their rows.
    pub object_bytes: u64,
    /// All needed rows.
    pub versions: u64,
    /// The bytes of rows that are needed only for older states.
    pub history_bytes: u64,
}

/// All keys and all needed rows.
#[derive(Debug, Default)]
pub(super) struct RowIndex {
    keys: BTreeMap<Key, KeyEntry>,
    rows: BTreeMap<Revision, RowRef>,
    /// The bytes of needed rows in each segment.
    needed: BTreeMap<u32, u64>,
    usage: Usage,
    /// The compacted revision, as far as rows were dropped for it.
    compacted: Revision,
}

impl RowIndex {
    /// An index from what a start found: all keys, and all needed rows in the order of revisions.
    pub(super) fn new(
        keys: BTreeMap<Key, KeyEntry>,
        rows: Vec<RowRef>,
        compacted: Revision,
    ) -> RowIndex {
        let mut index = RowIndex { keys, compacted, ..RowIndex::default() };
        rows.iter().for_each(|row| index.count(*row));
        index.rows = rows.into_iter().map(|row| (row.revision, row)).collect();
        for entry in index.keys.values().filter(|entry| !entry.is_deleted) {
            let len = index.rows.get(&entry.newest).map_or(0, |row| u64::from(row.len));
            index.usage.objects += 1;
            index.usage.object_bytes += len;
            index.usage.history_bytes -= len;
        }
        index
    }

    pub(super) fn usage(&self) -> Usage {
        self.usage
    }

    /// The revision up to which rows were dropped.
    pub(super) fn compacted(&self) -> Revision {
        self.compacted
    }

    /// The bytes of needed rows in a segment.
    pub(super) fn needed(&self, segment: u64) -> u64 {
        let segment = u32::try_from(segment).unwrap_or(u32::MAX);
        self.needed.get(&segment).copied().unwrap_or_default()
    }

    pub(super) fn entry(&self, key: &str) -> Option<KeyEntry> {
        self.keys.get(key).copied()
    }

    /// A needed row.
    pub(super) fn row(&self, revision: Revision) -> Option<RowRef> {
        self.rows.get(&revision).copied()
    }

    /// The row with the newest value of a key.
    pub(super) fn newest(&self, key: &str) -> Option<RowRef> {
        let entry = self.keys.get(key).filter(|entry| !entry.is_deleted)?;
        self.row(entry.newest)
    }

    /// Adds a new row of a key, whose revision is higher than all others.
    pub(super) fn insert(&mut self, key: &Key, row: RowRef) {
        let entry = KeyEntry { newest: row.revision, copies: 1, is_deleted: row.is_delete };
        match self.keys.get_mut(key) {
            None => drop(self.keys.insert(key.clone(), entry)),
            Some(old) => {
                let was = std::mem::replace(old, KeyEntry { copies: old.copies + 1, ..entry });
                if let Some(row) = self.rows.get(&was.newest).filter(|_| !was.is_deleted) {
                    self.usage.objects -= 1;
                    self.usage.object_bytes -= u64::from(row.len);
                    self.usage.history_bytes += u64::from(row.len);
                }
            }
        }
        self.count(row);
        self.rows.insert(row.revision, row);
        if !row.is_delete {
            self.usage.objects += 1;
            self.usage.object_bytes += u64::from(row.len);
            self.usage.history_bytes -= u64::from(row.len);
        }
    }

    fn count(&mut self, row: RowRef) {
        *self.needed.entry(row.segment).or_default() += u64::from(row.len);
        self.usage.versions += 1;
        self.usage.history_bytes += self.history_bytes(&row);
    }

    /// The bytes of a row that count as history: not those of a deletion that only hides old rows.
    fn history_bytes(&self, row: &RowRef) -> u64 {
        match row.is_delete && row.revision <= self.compacted {
            true => 0,
            false => u64::from(row.len),
        }
    }

    /// The rows of a range at a revision, and whether more follow.
    pub(super) fn range(&self, range: &Range, at: Revision) -> (Vec<(Key, RowRef)>, bool) {
        let limit = range.limit.unwrap_or(usize::MAX);
        let mut rows = self
            .keys
            .range::<str, _>((range.start(), Bound::Unbounded))
            .take_while(|(key, _)| key.as_str().starts_with(&range.prefix))
            .filter_map(|(key, entry)| Some((key.clone(), self.row_at(*entry, at)?)));
        let found = rows.by_ref().take(limit).collect();
        (found, rows.next().is_some())
    }

    /// The row with the value of a key at a revision that is not compacted.
    fn row_at(&self, entry: KeyEntry, at: Revision) -> Option<RowRef> {
        if entry.is_deleted && entry.newest <= at {
            return None;
        }
        let mut row = self.row(entry.newest)?;
        while row.revision > at {
            row = self.row(row.prev)?;
        }
        (!row.is_delete).then_some(row)
    }

    /// The needed rows of some revisions, in order.
    pub(super) fn rows(&self, of: RangeInclusive<Revision>) -> impl Iterator<Item = &RowRef> {
        // A range that ends before it starts panics.
        let of = (of.start() <= of.end()).then_some(of);
        of.into_iter().flat_map(|of| self.rows.range(of)).map(|(_, row)| row)
    }

    /// Drops rows that are not needed once the revisions up to `to` are compacted.
    pub(super) fn forget_to(&mut self, to: Revision) {
        let compacted: Vec<RowRef> = self.rows(self.compacted.next()..=to).copied().collect();
        for row in compacted {
            self.drop_row(row.prev);
            if row.is_delete {
                self.usage.history_bytes -= u64::from(row.len);
            }
            self.compacted = row.revision;
        }
        self.compacted = self.compacted.max(to);
    }

    fn drop_row(&mut self, revision: Revision) {
        let Some(row) = self.rows.remove(&revision) else { return };
        self.usage.versions -= 1;
        self.usage.history_bytes -= self.history_bytes(&row);
        self.less_needed(row);
    }

    fn less_needed(&mut self, row: RowRef) {
        if let Some(bytes) = self.needed.get_mut(&row.segment) {
            *bytes -= u64::from(row.len);
            if *bytes == 0 {
                self.needed.remove(&row.segment);
            }
        }
    }

    /// Records that a row was copied to another position. The row may have been dropped meanwhile.
    pub(super) fn copied(&mut self, key: &str, from: RowRef, to: RowRef) {
        if let Some(entry) = self.keys.get_mut(key) {
            entry.copies += 1;
        }
        if self.row(from.revision) == Some(from) {
            self.rows.insert(to.revision, to);
            self.less_needed(from);
            *self.needed.entry(to.segment).or_default() += u64::from(to.len);
        }
    }

    /// Records that rows of a key are no longer on disk.
    pub(super) fn copies_dropped(&mut self, key: &str, count: u32) {
        let Some(entry) = self.keys.get_mut(key) else { return };
        entry.copies = entry.copies.saturating_sub(count);
        let KeyEntry { newest, copies, is_deleted } = *entry;
        if is_deleted && copies <= 1 {
            // The deletion hides no older row any more.
            self.drop_row(newest);
        }
        if is_deleted && copies == 0 {
            self.keys.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(revision: u64, prev: u64, is_delete: bool) -> RowRef {
        let (revision, prev) = (Revision(revision), Revision(prev));
        RowRef { revision, prev, segment: 1, offset: 64, len: 100, is_delete }
    }

    /// Created at 2, updated at 3, deleted at 4, created again at 6; another key at 5.
    fn index() -> RowIndex {
        let mut index = RowIndex::default();
        let (a, b) = (Key::new("/a"), Key::new("/b"));
        index.insert(&a, row(2, 0, false));
        index.insert(&a, row(3, 2, false));
        index.insert(&a, row(4, 3, true));
        index.insert(&b, row(5, 0, false));
        index.insert(&a, row(6, 4, false));
        index
    }

    fn at(index: &RowIndex, revision: u64) -> Vec<u64> {
        let (rows, more) = index.range(&Range::default(), Revision(revision));
        assert!(!more);
        rows.iter().map(|(_, row)| row.revision.0).collect()
    }

    #[test]
    fn a_state_in_the_past_is_found_over_deletions_and_new_creations() {
        let index = index();
        let states: Vec<Vec<u64>> = (1..=6).map(|revision| at(&index, revision)).collect();
        assert_eq!(states, [vec![], vec![2], vec![3], vec![], vec![5], vec![6, 5]]);
    }

    #[test]
    fn only_rows_that_no_state_needs_are_dropped() {
        let mut index = index();
        let all = index.usage();
        assert_eq!((all.objects, all.versions, index.needed(1)), (2, 5, 500));
        index.forget_to(Revision(3));
        assert_eq!((index.row(Revision(2)), at(&index, 3)), (None, vec![3]));
        index.forget_to(Revision(5));
        assert_eq!((at(&index, 5), index.usage().versions), (vec![5], 3));
        index.forget_to(Revision(6));
        assert_eq!(at(&index, 6), [6, 5]);
        assert_eq!((index.usage().history_bytes, index.needed(1)), (0, 200));
    }

    #[test]
    fn a_deletion_is_needed_while_an_older_row_of_its_key_is_on_disk() {
        let mut index = RowIndex::default();
        let key = Key::new("/a");
        index.insert(&key, row(2, 0, false));
        index.insert(&key, row(3, 2, true));
        index.forget_to(Revision(3));
        assert_eq!(index.usage(), Usage { versions: 1, ..Usage::default() });
        assert_eq!(index.needed(1), 100);
        index.copies_dropped("/a", 1);
        assert_eq!(index.entry("/a").map(|entry| entry.copies), Some(1));
        assert_eq!((index.usage(), index.needed(1)), (Usage::default(), 0));
        index.copies_dropped("/a", 1);
        assert_eq!(index.entry("/a"), None);
    }

    #[test]
    fn a_copied_row_is_read_from_its_new_position() {
        let mut index = index();
        let from = index.row(Revision(5)).unwrap();
        let to = RowRef { segment: 2, ..from };
        index.copied("/b", from, to);
        assert_eq!(index.row(Revision(5)), Some(to));
        assert_eq!((index.needed(1), index.needed(2)), (400, 100));
        index.copied("/b", from, RowRef { segment: 3, ..from });
        assert_eq!(index.row(Revision(5)), Some(to), "it was moved before");
    }
}
