//! Pending changes: keys in the log that the live table does not have yet.
//!
//! The log alone makes a write durable. The live table only saves a start from reading all of it,
//! and may lag: keys are scattered, so updating it with every write would cost one page per write.
//! Instead, every transaction moves some pending keys in key order, many of which share a page.
//!
//! Promise: for every key the live table has its state at `live_at` or later, so the table and the
//! log after `live_at` together are the newest state.

use std::collections::BTreeMap;
use std::ops::Bound;

use headwater_api::Revision;

use super::row::LiveRow;
use crate::key::Key;

/// How many changes may wait before a sweep starts: what a start after a crash reads of the log.
const LAG_MAX: usize = 16 << 10;

/// What the live table lacks; `None` is a key that is gone.
#[derive(Debug, Default)]
pub(super) struct Pending {
    keys: BTreeMap<Key, Option<LiveRow>>,
    sweep: Option<Sweep>,
}

#[derive(Debug)]
struct Sweep {
    /// The newest revision when it started; once it is over, the live table is at least here.
    target: Revision,
    /// Keys up to this one have been moved.
    done: Option<Key>,
}

/// What moves into the live table now.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    pub(super) rows: Vec<(Key, Option<LiveRow>)>,
    /// Where the live table is then, if the sweep is over.
    pub(super) live_at: Option<Revision>,
}

/// Whether a sweep starts if none is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SweepStart {
    WhenDue,
    Now,
}

impl Pending {
    /// Adds a change that is durable.
    pub(super) fn add(&mut self, key: Key, row: Option<LiveRow>) {
        self.keys.insert(key, row);
    }

    /// Whether a sweep is under way or due.
    pub(super) fn is_due(&self) -> bool {
        self.sweep.is_some() || self.keys.len() >= LAG_MAX
    }

    /// Takes the next keys of the sweep.
    pub(super) fn take(&mut self, keys_max: usize, newest: Revision, start: SweepStart) -> Chunk {
        if !self.is_due() && (start == SweepStart::WhenDue || self.keys.is_empty()) {
            return Chunk::default();
        }
        let Sweep { target, done } =
            self.sweep.take().unwrap_or(Sweep { target: newest, done: None });
        let after = done.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let chunk = self.keys.range::<Key, _>((after, Bound::Unbounded)).take(keys_max);
        let rows: Vec<_> = chunk.map(|(key, row)| (key.clone(), *row)).collect();
        for (key, _) in &rows {
            self.keys.remove(key);
        }
        let over = rows.len() < keys_max;
        if !over {
            let done = rows.last().map(|(key, _)| key.clone()).or(done);
            self.sweep = Some(Sweep { target, done });
        }
        Chunk { rows, live_at: over.then_some(target) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(revision: u64) -> Option<LiveRow> {
        Some(LiveRow { revision: Revision(revision), expires: 0 })
    }

    fn taken(chunk: &Chunk) -> Vec<&str> {
        chunk.rows.iter().map(|(key, _)| key.as_str()).collect()
    }

    #[test]
    fn a_sweep_moves_everything_that_was_there_when_it_started() {
        let mut pending = Pending::default();
        for (n, key) in ["/b", "/d", "/a", "/c"].into_iter().enumerate() {
            pending.add(Key::new(key), row(n as u64 + 1));
        }
        assert_eq!(taken(&pending.take(2, Revision(4), SweepStart::WhenDue)), Vec::<&str>::new());
        let first = pending.take(2, Revision(4), SweepStart::Now);
        assert_eq!((taken(&first), first.live_at), (vec!["/a", "/b"], None));
        // One behind the sweep waits for the next, one before it goes along.
        pending.add(Key::new("/a"), row(5));
        pending.add(Key::new("/e"), None);
        let second = pending.take(2, Revision(6), SweepStart::WhenDue);
        assert_eq!((taken(&second), second.live_at), (vec!["/c", "/d"], None));
        let third = pending.take(2, Revision(6), SweepStart::WhenDue);
        assert_eq!((taken(&third), third.live_at), (vec!["/e"], Some(Revision(4))));
        let next = pending.take(2, Revision(6), SweepStart::Now);
        assert_eq!((taken(&next), next.live_at), (vec!["/a"], Some(Revision(6))));
    }

    #[test]
    fn a_sweep_starts_by_itself_when_enough_waits() {
        let mut pending = Pending::default();
        for n in 0..LAG_MAX {
            assert!(!pending.is_due());
            pending.add(Key::new(format!("/{n}")), row(n as u64));
        }
        assert!(pending.is_due());
        assert_eq!(pending.take(10, Revision(1), SweepStart::WhenDue).rows.len(), 10);
    }
}
