//! The times of revisions, for stores that do not keep them with each change.
//!
//! River: commit, or a watch on the database → **times** → reads of the past.
//! Promise: at most `ENTRIES_MAX` entries; the oldest are dropped.

use std::collections::VecDeque;

use headwater_api::Revision;

/// The maximum number of entries, of 16 bytes each.
const ENTRIES_MAX: usize = 100_000;

/// The times of writes: at most one entry for each period, with the first revision in it.
#[derive(Debug)]
pub struct WriteTimes {
    /// The time, in milliseconds, and the first revision at it. Times never decrease.
    entries: VecDeque<(i64, Revision)>,
    /// The shortest period between two entries, in milliseconds.
    resolution: i64,
}

impl WriteTimes {
    /// No times yet.
    pub fn with_resolution(millis: i64) -> WriteTimes {
        WriteTimes { entries: VecDeque::new(), resolution: millis.max(1) }
    }

    /// The first revision of a write or of some writes, and its time.
    pub fn push(&mut self, time: i64, revision: Revision) {
        let is_due = |last: i64| time >= last.saturating_add(self.resolution);
        if self.entries.back().is_none_or(|(last, _)| is_due(*last)) {
            self.entries.push_back((time, revision));
            if self.entries.len() > ENTRIES_MAX {
                self.entries.pop_front();
            }
        }
    }

    /// The oldest entry.
    pub fn first(&self) -> Option<(i64, Revision)> {
        self.entries.front().copied()
    }

    /// The time of a revision.
    pub fn of(&self, revision: Revision) -> Option<i64> {
        let after = self.entries.partition_point(|(_, first)| *first <= revision);
        after.checked_sub(1).map(|at| self.entries[at].0)
    }

    /// The newest revision at a time; `None` if that is not known.
    pub fn at(&self, time: i64, newest: Revision) -> Option<Revision> {
        let after = self.entries.partition_point(|(written, _)| *written <= time);
        if after == 0 {
            return None;
        }
        Some(self.entries.get(after).map_or(newest, |(_, first)| Revision(first.0 - 1)))
    }

    /// Drops what is older than the entry of a revision.
    pub fn forget_to(&mut self, revision: Revision) {
        while self.entries.get(1).is_some_and(|(_, first)| *first <= revision) {
            self.entries.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_leads_to_the_newest_revision_before_it() {
        let mut times = WriteTimes::with_resolution(1);
        for (time, revision) in [(100, 2), (100, 3), (105, 4), (105, 5), (200, 6)] {
            times.push(time, Revision(revision));
        }
        let at = |time| times.at(time, Revision(6)).map(|revision| revision.0);
        assert_eq!(
            [99, 100, 104, 105, 199, 200, 999].map(at),
            [None, Some(3), Some(3), Some(5), Some(5), Some(6), Some(6)]
        );
        assert_eq!(
            [1, 2, 3, 5, 6, 9].map(|n| times.of(Revision(n))),
            [None, Some(100), Some(100), Some(105), Some(200), Some(200)]
        );
        times.forget_to(Revision(4));
        assert_eq!((times.of(Revision(3)), times.of(Revision(4))), (None, Some(105)));
    }

    #[test]
    fn a_coarse_time_is_wrong_by_one_period_at_most() {
        let mut times = WriteTimes::with_resolution(1_000);
        for (time, revision) in [(0, 2), (200, 3), (60_000, 4), (60_900, 5)] {
            times.push(time, Revision(revision));
        }
        let at = |time| times.at(time, Revision(5)).map(|revision| revision.0);
        // The writes of a second are one: those after it are not, however long that is.
        assert_eq!(
            [-1, 0, 1_000, 59_999, 60_000].map(at),
            [None, Some(3), Some(3), Some(3), Some(5)]
        );
        assert_eq!((times.of(Revision(3)), times.of(Revision(5))), (Some(0), Some(60_000)));
    }

    #[test]
    fn the_oldest_entries_are_dropped() {
        let mut times = WriteTimes::with_resolution(1);
        for n in 1..=ENTRIES_MAX as u64 + 5 {
            times.push(n as i64, Revision(n));
        }
        assert_eq!((times.entries.len(), times.first()), (ENTRIES_MAX, Some((6, Revision(6)))));
    }
}
