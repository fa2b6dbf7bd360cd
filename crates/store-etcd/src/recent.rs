//! The newest changes, for watchers of this process.
//!
//! River: feed → **recent** → cursors. One watch on etcd fills it, and whoever is not far behind
//! reads here: etcd hears of a watcher only when it has fallen out.
//! Promise: holds every change of ours after `complete_after` up to `complete_to`. Changes that
//! share a revision (a lease that ran out) are handed out together.

use std::collections::VecDeque;

use headwater_api::Revision;
use headwater_store::{Batch, Change};

/// Changes a cursor takes at a time, so that one far behind holds no lock for long.
const BATCH_MAX: usize = 1_000;

/// Changes, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    changes: VecDeque<Change>,
    bytes: usize,
    complete_after: Revision,
    complete_to: Revision,
}

impl Recent {
    /// Nothing yet; it will know what comes after this revision.
    pub(crate) fn after(revision: Revision) -> Recent {
        Recent { complete_after: revision, complete_to: revision, ..Recent::default() }
    }

    /// How far it knows everything.
    pub(crate) fn complete_to(&self) -> Revision {
        self.complete_to
    }

    /// Whether it can answer for what came after a revision.
    pub(crate) fn covers(&self, after: Revision) -> bool {
        after >= self.complete_after
    }

    /// Adds what came next; forgets the oldest beyond `bytes_max`.
    pub(crate) fn push(&mut self, batch: Batch, bytes_max: usize) {
        for change in batch.changes {
            assert!(change.revision > self.complete_to, "changes are told once and in order");
            self.bytes += weight(&change);
            self.changes.push_back(change);
        }
        self.complete_to = self.complete_to.max(batch.complete_to);
        while self.bytes > bytes_max && !self.changes.is_empty() {
            self.forget_oldest();
        }
    }

    /// Forgets all changes of the oldest revision.
    fn forget_oldest(&mut self) {
        let Some(oldest) = self.changes.front().map(|change| change.revision) else { return };
        while self.changes.front().is_some_and(|change| change.revision == oldest) {
            self.bytes -= self.changes.pop_front().as_ref().map_or(0, weight);
        }
        self.complete_after = oldest;
    }

    /// What comes after a revision, as far as it is known; `None` if it is not all held.
    pub(crate) fn batch(&self, prefix: &str, after: Revision) -> Option<Batch> {
        if !self.covers(after) {
            return None;
        }
        let mut batch = Batch { changes: Vec::new(), complete_to: self.complete_to.max(after) };
        let first = self.changes.partition_point(|change| change.revision <= after);
        for change in self.changes.range(first..) {
            let last = batch.changes.last().map_or(after, |change| change.revision);
            if batch.changes.len() >= BATCH_MAX && change.revision != last {
                batch.complete_to = last;
                break;
            }
            if change.key.as_str().starts_with(prefix) {
                batch.changes.push(change.clone());
            }
        }
        Some(batch)
    }
}

/// What a change costs.
fn weight(change: &Change) -> usize {
    let prev = change.prev.as_ref().map_or(0, |version| version.value.len());
    size_of::<Change>() + change.key.as_str().len() + change.value.len() + prev
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use headwater_store::{ChangeKind, Key};

    use super::*;

    fn change(revision: u64, key: &str) -> Change {
        let (kind, value) = (ChangeKind::Created, Bytes::from_static(b"value"));
        Change { revision: Revision(revision), key: Key::new(key), kind, value, prev: None }
    }

    fn batch(revisions: &[u64], complete_to: u64) -> Batch {
        let changes = revisions.iter().map(|revision| change(*revision, "/a/x")).collect();
        Batch { changes, complete_to: Revision(complete_to) }
    }

    #[track_caller]
    fn check(recent: &Recent, after: u64, expected: Option<(&[u64], u64)>) {
        let found = recent.batch("/a/", Revision(after));
        let found = found.as_ref().map(|batch| {
            let revisions: Vec<u64> = batch.changes.iter().map(|c| c.revision.0).collect();
            (revisions, batch.complete_to.0)
        });
        assert_eq!(found, expected.map(|(revisions, to)| (revisions.to_vec(), to)));
    }

    #[test]
    fn gaps_between_revisions_are_not_holes() {
        let mut recent = Recent::after(Revision(10));
        recent.push(batch(&[12, 15], 15), usize::MAX);
        recent.push(batch(&[], 20), usize::MAX);
        check(&recent, 9, None);
        check(&recent, 10, Some((&[12, 15], 20)));
        check(&recent, 12, Some((&[15], 20)));
        check(&recent, 13, Some((&[15], 20)));
        check(&recent, 20, Some((&[], 20)));
        check(&recent, 25, Some((&[], 25)));
    }

    #[test]
    fn a_revision_is_forgotten_as_a_whole() {
        let mut recent = Recent::after(Revision(10));
        let one = weight(&change(11, "/a/x"));
        recent.push(
            Batch {
                changes: vec![change(11, "/a/x"), change(12, "/a/x")],
                complete_to: Revision(12),
            },
            usize::MAX,
        );
        recent.push(batch(&[13], 13), 2 * one);
        check(&recent, 10, None);
        check(&recent, 11, Some((&[12, 13], 13)));
        recent.push(batch(&[], 14), 0);
        check(&recent, 12, None);
        check(&recent, 13, Some((&[], 14)));
    }

    #[test]
    fn a_batch_ends_only_between_revisions() {
        let mut recent = Recent::after(Revision(1));
        let many: Vec<Change> = (0..1_500).map(|_| change(2, "/a/x")).collect();
        recent.changes.extend(many);
        recent.changes.push_back(change(3, "/a/x"));
        recent.complete_to = Revision(3);
        let first = recent.batch("/a/", Revision(1)).unwrap();
        assert_eq!((first.changes.len(), first.complete_to), (1_500, Revision(2)));
        check(&recent, 2, Some((&[3], 3)));
    }
}
