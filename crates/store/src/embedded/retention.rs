//! Retention: how much history the engine keeps by itself.
//!
//! Promise: age is measured with the monotonic clock while the process runs, so setting the wall
//! clock drops nothing. The times in the log are only used after a restart.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use headwater_api::Revision;

use super::log::Edges;

/// How much history is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Changes older than this are compacted.
    pub age: Duration,
    /// History beyond so many bytes is compacted, regardless of its age.
    pub bytes: u64,
}

impl Default for Retention {
    fn default() -> Retention {
        Retention { age: Duration::from_secs(6 * 3600), bytes: 1 << 30 }
    }
}

/// The number of marks within the age.
const MARKS: u32 = 64;

/// Decides what is compacted.
#[derive(Debug)]
pub(super) struct Keeper {
    retention: Retention,
    /// Times and the newest revision at each, oldest first.
    marks: VecDeque<(Instant, Revision)>,
}

impl Keeper {
    pub(super) fn new(retention: Retention) -> Keeper {
        Keeper { retention, marks: VecDeque::new() }
    }

    /// Records the newest revision at a time.
    pub(super) fn mark(&mut self, at: Instant, newest: Revision) {
        let due = self.marks.back().is_none_or(|(last, revision)| {
            newest > *revision && at >= *last + self.retention.age / MARKS
        });
        if due {
            self.marks.push_back((at, newest));
        }
    }

    /// The revision up to which history is compacted now.
    pub(super) fn target(&mut self, now: Instant, edges: Edges, history_bytes: u64) -> Revision {
        self.by_age(now).max(self.by_bytes(edges, history_bytes)).min(edges.newest)
    }

    fn by_age(&mut self, now: Instant) -> Revision {
        let mut target = Revision::ZERO;
        while let Some((at, revision)) = self.marks.front()
            && now.saturating_duration_since(*at) >= self.retention.age
        {
            target = *revision;
            self.marks.pop_front();
        }
        target
    }

    /// Assumes that all revisions have the same size, and corrects itself the next time.
    fn by_bytes(&self, Edges { newest, compacted }: Edges, bytes: u64) -> Revision {
        if bytes <= self.retention.bytes {
            return Revision::ZERO;
        }
        let kept = newest.0 - compacted.0;
        let share = (bytes - self.retention.bytes) as f64 / bytes as f64;
        let steps = (kept as f64 * share).ceil() as u64;
        Revision(compacted.0 + steps.clamp(1, kept.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeper() -> Keeper {
        Keeper::new(Retention { age: Duration::from_secs(640), bytes: 1_000 })
    }

    fn target(
        keeper: &mut Keeper,
        now: Instant,
        (compacted, newest, bytes): (u64, u64, u64),
    ) -> u64 {
        let edges = Edges { newest: Revision(newest), compacted: Revision(compacted) };
        keeper.target(now, edges, bytes).0
    }

    #[test]
    fn only_what_is_old_enough_is_forgotten() {
        let start = Instant::now();
        let after = |s| start + Duration::from_secs(s);
        let mut keeper = keeper();
        for s in 0..1_000 {
            keeper.mark(after(s), Revision(100 + s));
        }
        assert_eq!(target(&mut keeper, after(639), (1, 5_000, 0)), 0);
        assert_eq!(target(&mut keeper, after(640), (1, 5_000, 0)), 100);
        assert_eq!(target(&mut keeper, after(655), (100, 5_000, 0)), 110);
        assert!(keeper.marks.len() < 128);
    }

    #[test]
    fn a_quiet_store_makes_no_marks() {
        let start = Instant::now();
        let mut keeper = keeper();
        for s in 0..10_000 {
            keeper.mark(start + Duration::from_secs(s), Revision(7));
        }
        assert_eq!(keeper.marks.len(), 1);
    }

    #[test]
    fn too_many_bytes_are_forgotten_however_young() {
        let now = Instant::now();
        assert_eq!(target(&mut keeper(), now, (1, 101, 1_000)), 0);
        assert_eq!(target(&mut keeper(), now, (1, 101, 2_000)), 51);
        assert_eq!(target(&mut keeper(), now, (1, 101, 1_001)), 2);
    }
}
