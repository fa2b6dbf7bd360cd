//! Recent changes in memory, from which watchers near the newest revision are served.
//!
//! River: commit → **recent changes** → watch. The embedded engine has one change per revision; in
//! the other engines, the changes of one write share a revision. In etcd, revisions of other keys
//! leave gaps, and all keys of an expired lease are deleted at one revision.
//! Promise: holds every change after `complete_after` up to `complete_to`, in order. Changes that
//! share a revision are kept, dropped and returned together.

use std::collections::VecDeque;

use headwater_api::Revision;

use crate::change::{Batch, Change};

/// The size of a watcher's batch, so that a watcher far behind does not hold a lock for long.
pub(crate) const BATCH_MAX: usize = 1_000;

/// A range of changes without holes, oldest first.
#[derive(Debug, Default)]
pub struct RecentChanges {
    changes: VecDeque<Change>,
    bytes: usize,
    complete_after: Revision,
    complete_to: Revision,
}

impl RecentChanges {
    /// No changes yet; the next one comes after this revision.
    pub fn after(revision: Revision) -> RecentChanges {
        RecentChanges { complete_after: revision, complete_to: revision, ..Default::default() }
    }

    /// The revision after which every change is held.
    pub fn complete_after(&self) -> Revision {
        self.complete_after
    }

    /// The revision up to which every change is held.
    pub fn complete_to(&self) -> Revision {
        self.complete_to
    }

    /// The size of all changes.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds the change of the next revision.
    pub fn push(&mut self, change: Change) {
        assert_eq!(change.revision, self.complete_to.next(), "revisions have no gap");
        self.complete_to = change.revision;
        self.add(change);
    }

    /// Adds the changes up to a later revision.
    pub fn append(&mut self, batch: Batch) {
        for change in batch.changes {
            assert!(change.revision > self.complete_to, "changes arrive once and in order");
            self.add(change);
        }
        self.complete_to = self.complete_to.max(batch.complete_to);
    }

    fn add(&mut self, change: Change) {
        self.bytes += weight(&change);
        self.changes.push_back(change);
    }

    /// Drops the oldest changes, up to and including a revision.
    pub fn forget_to(&mut self, revision: Revision) {
        while self.changes.front().is_some_and(|change| change.revision <= revision) {
            self.forget_oldest();
        }
    }

    /// Drops the oldest changes until the rest has at most this size.
    pub fn shrink_to(&mut self, bytes_max: usize) {
        while self.bytes > bytes_max && !self.changes.is_empty() {
            self.forget_oldest();
        }
    }

    /// Drops all changes of the oldest revision.
    fn forget_oldest(&mut self) {
        let Some(oldest) = self.changes.front().map(|change| change.revision) else { return };
        while self.changes.front().is_some_and(|change| change.revision == oldest) {
            self.bytes -= self.changes.pop_front().as_ref().map_or(0, weight);
        }
        self.complete_after = oldest;
    }

    /// The last change of a revision, if it is held.
    pub fn get(&self, revision: Revision) -> Option<&Change> {
        let last = self.first_after(revision).checked_sub(1)?;
        self.changes.get(last).filter(|change| change.revision == revision)
    }

    /// The changes after a revision.
    pub fn changes_after(&self, revision: Revision) -> impl Iterator<Item = &Change> {
        self.changes.range(self.first_after(revision)..)
    }

    /// The index of the first change after a revision.
    fn first_after(&self, revision: Revision) -> usize {
        // Without gaps the index is a subtraction; otherwise this guess is wrong.
        let guess = usize::try_from(revision.0.saturating_sub(self.complete_after.0));
        let guess = guess.unwrap_or(usize::MAX).min(self.changes.len());
        let is_after = |at: usize| self.changes.get(at).is_none_or(|c| c.revision > revision);
        match is_after(guess) && guess.checked_sub(1).is_none_or(|before| !is_after(before)) {
            true => guess,
            false => self.changes.partition_point(|change| change.revision <= revision),
        }
    }

    /// The next changes of a watcher; `None` if some of them are no longer held.
    pub fn batch(&self, prefix: &str, after: Revision) -> Option<Batch> {
        if after < self.complete_after {
            return None;
        }
        let mut batch = Batch { changes: Vec::new(), complete_to: self.complete_to.max(after) };
        for change in self.changes_after(after) {
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

/// The size of a change. Includes the previous value, of which this may be the only copy.
fn weight(change: &Change) -> usize {
    let prev = change.prev.as_ref().map_or(0, |version| version.value.len());
    size_of::<Change>() + change.key.as_str().len() + change.value.len() + prev
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::change::ChangeKind;
    use crate::key::Key;

    fn change(revision: u64, key: &str) -> Change {
        let (kind, value) = (ChangeKind::Created, Bytes::from_static(b"value"));
        Change { revision: Revision(revision), key: Key::new(key), kind, value, prev: None }
    }

    fn batch(revisions: &[u64], complete_to: u64) -> Batch {
        let changes = revisions.iter().map(|revision| change(*revision, "/a/x")).collect();
        Batch { changes, complete_to: Revision(complete_to) }
    }

    /// The changes of revisions 11 to 14.
    fn recent() -> RecentChanges {
        let mut recent = RecentChanges::after(Revision(10));
        for (n, key) in ["/a/1", "/b/1", "/a/2", "/b/2"].into_iter().enumerate() {
            recent.push(change(11 + n as u64, key));
        }
        recent
    }

    #[track_caller]
    fn check(recent: &RecentChanges, prefix: &str, after: u64, expected: Option<(&[u64], u64)>) {
        let found = recent.batch(prefix, Revision(after)).map(|batch| {
            let revisions: Vec<u64> = batch.changes.iter().map(|c| c.revision.0).collect();
            (revisions, batch.complete_to.0)
        });
        assert_eq!(found, expected.map(|(revisions, to)| (revisions.to_vec(), to)));
    }

    #[test]
    fn a_batch_starts_right_after_its_revision() {
        let recent = recent();
        check(&recent, "/", 10, Some((&[11, 12, 13, 14], 14)));
        check(&recent, "/", 12, Some((&[13, 14], 14)));
        check(&recent, "/a/", 11, Some((&[13], 14)));
        check(&recent, "/", 14, Some((&[], 14)));
        check(&recent, "/", 20, Some((&[], 20)));
        check(&recent, "/", 9, None);
    }

    #[test]
    fn dropped_changes_are_not_claimed() {
        let mut recent = recent();
        recent.forget_to(Revision(12));
        assert_eq!(recent.complete_after(), Revision(12));
        check(&recent, "/", 11, None);
        check(&recent, "/", 12, Some((&[13, 14], 14)));
        assert_eq!(recent.get(Revision(12)), None);
        assert_eq!(recent.get(Revision(13)), Some(&change(13, "/a/2")));
        recent.shrink_to(0);
        assert_eq!((recent.bytes(), recent.complete_to()), (0, Revision(14)));
        recent.push(change(15, "/c"));
    }

    #[test]
    fn gaps_between_revisions_are_not_holes() {
        let mut recent = RecentChanges::after(Revision(10));
        recent.append(batch(&[12, 15], 15));
        recent.append(batch(&[], 20));
        check(&recent, "/a/", 9, None);
        check(&recent, "/a/", 10, Some((&[12, 15], 20)));
        check(&recent, "/a/", 12, Some((&[15], 20)));
        check(&recent, "/a/", 13, Some((&[15], 20)));
        check(&recent, "/a/", 20, Some((&[], 20)));
        check(&recent, "/a/", 25, Some((&[], 25)));
        assert_eq!(recent.get(Revision(15)), Some(&change(15, "/a/x")));
        assert_eq!(recent.get(Revision(13)), None);
    }

    #[test]
    fn changes_that_share_a_revision_are_dropped_together() {
        let mut recent = RecentChanges::after(Revision(10));
        recent.append(batch(&[11, 11, 12], 12));
        let two = recent.bytes() / 3 * 2;
        recent.shrink_to(two);
        check(&recent, "/a/", 10, None);
        check(&recent, "/a/", 11, Some((&[12], 12)));
        recent.append(batch(&[], 14));
        recent.shrink_to(0);
        check(&recent, "/a/", 11, None);
        check(&recent, "/a/", 12, Some((&[], 14)));
    }

    #[test]
    fn a_batch_ends_only_between_revisions() {
        let mut recent = RecentChanges::after(Revision(1));
        recent.append(batch(&[2; 1_500], 2));
        recent.append(batch(&[3], 3));
        let first = recent.batch("/a/", Revision(1)).unwrap();
        assert_eq!((first.changes.len(), first.complete_to), (1_500, Revision(2)));
        check(&recent, "/a/", 2, Some((&[3], 3)));
    }
}
