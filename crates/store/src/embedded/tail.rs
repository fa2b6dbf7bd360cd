//! The tail: rows that are durable in the write-ahead log and not yet in the data file.
//!
//! River: group commit → write-ahead log → **tail** → data file.
//! Promise: holds the row of every revision after `after`, in order and without a gap. It drops a
//! row only after the row is durable in the data file, so a reader that takes the tail first and
//! then a snapshot of the file finds every row in one of them.

use std::collections::VecDeque;

use bytes::Bytes;
use headwater_api::Revision;

use super::row::State;

/// Rows as they are encoded, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Tail {
    /// Invariant: the rows of all revisions after this one are in `rows`.
    after: Revision,
    rows: VecDeque<Bytes>,
    sums: Sums,
}

/// What a group of writes leaves besides its rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    /// The oldest state that may be read.
    pub(super) compacted: Revision,
    /// Keys that have a value.
    pub(super) objects: u64,
    /// Bytes of the log rows they are in.
    pub(super) object_bytes: u64,
}

impl Sums {
    pub(super) fn of(state: &State) -> Sums {
        let State { compacted, objects, object_bytes, .. } = *state;
        Sums { compacted, objects, object_bytes }
    }
}

impl Tail {
    /// Nothing yet; the next row is of the revision after that of the data file.
    pub(super) fn after(file: &State) -> Tail {
        Tail { after: file.newest, rows: VecDeque::new(), sums: Sums::of(file) }
    }

    /// The newest revision there is.
    pub(super) fn newest(&self) -> Revision {
        Revision(self.after.0 + self.rows.len() as u64)
    }

    /// Adds what the next group wrote.
    pub(super) fn push(&mut self, rows: impl IntoIterator<Item = Bytes>, sums: Sums) {
        self.rows.extend(rows);
        self.sums = sums;
    }

    /// What a group without rows may do.
    pub(super) fn raise_compacted(&mut self, compacted: Revision) {
        self.sums.compacted = self.sums.compacted.max(compacted);
    }

    /// Forgets the oldest rows, up to and including a revision.
    pub(super) fn forget_to(&mut self, revision: Revision) {
        let count = self.place(revision.next()).min(self.rows.len());
        self.rows.drain(..count);
        self.after = self.after.max(revision);
    }

    /// A row, if it is held.
    pub(super) fn get(&self, revision: Revision) -> Option<&Bytes> {
        if revision <= self.after {
            return None;
        }
        self.rows.get(self.place(revision))
    }

    /// The rows after a revision, with their own.
    pub(super) fn rows_after(
        &self,
        revision: Revision,
    ) -> impl ExactSizeIterator<Item = (Revision, &Bytes)> {
        let first = revision.max(self.after).next();
        let start = self.place(first).min(self.rows.len());
        let rows = self.rows.range(start..).enumerate();
        rows.map(move |(n, row)| (Revision(first.0 + n as u64), row))
    }

    /// What the data file and the tail come to together.
    pub(super) fn over(&self, file: &State) -> State {
        let mut state = State { compacted: file.compacted.max(self.sums.compacted), ..*file };
        if self.newest() <= file.newest {
            return state;
        }
        for (revision, row) in self.rows_after(file.newest) {
            state.newest = revision;
            state.log_rows += 1;
            state.log_bytes += row.len() as u64;
        }
        State { objects: self.sums.objects, object_bytes: self.sums.object_bytes, ..state }
    }

    /// Where the row of a revision after `after` is.
    fn place(&self, revision: Revision) -> usize {
        let place = revision.0.saturating_sub(self.after.next().0);
        usize::try_from(place).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(newest: u64) -> State {
        State { newest: Revision(newest), log_rows: newest, objects: 1, ..State::default() }
    }

    fn tail() -> Tail {
        let mut tail = Tail::after(&file(10));
        let rows = ["a", "bb", "ccc"].map(|row| Bytes::from_static(row.as_bytes()));
        tail.push(rows, Sums { compacted: Revision(4), objects: 3, object_bytes: 30 });
        tail
    }

    #[test]
    fn rows_are_found_until_they_are_forgotten() {
        let mut tail = tail();
        assert_eq!(tail.newest(), Revision(13));
        assert_eq!(tail.get(Revision(10)), None);
        assert_eq!(tail.get(Revision(11)).unwrap(), "a");
        assert_eq!(tail.get(Revision(14)), None);
        tail.forget_to(Revision(12));
        assert_eq!((tail.get(Revision(12)), tail.newest()), (None, Revision(13)));
        assert_eq!(tail.get(Revision(13)).unwrap(), "ccc");
        let after = |revision| tail.rows_after(Revision(revision)).map(|(at, _)| at.0).last();
        assert_eq!((after(5), after(12), after(13)), (Some(13), Some(13), None));
    }

    #[test]
    fn what_the_file_already_has_is_not_counted_twice() {
        let tail = tail();
        let state = tail.over(&file(10));
        assert_eq!((state.newest, state.log_rows, state.log_bytes), (Revision(13), 13, 6));
        assert_eq!((state.objects, state.compacted), (3, Revision(4)));
        let state = tail.over(&file(12));
        assert_eq!((state.newest, state.log_rows, state.log_bytes), (Revision(13), 13, 3));
        assert_eq!(tail.over(&file(13)).objects, 1);
    }
}
