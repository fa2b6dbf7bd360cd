//! Recent changes in memory, for watchers to read on from.
//!
//! River: commit → **history** → watch.
//! Promise: holds every change after `complete_after`, in order and without a gap.

use std::collections::VecDeque;

use headwater_api::Revision;

use crate::change::{Batch, Change};

/// Changes a watcher takes at a time, so that one far behind holds no lock for long.
pub(crate) const BATCH_MAX: usize = 1_000;

/// Changes, oldest first.
#[derive(Debug, Default)]
pub(crate) struct History {
    changes: VecDeque<Change>,
    bytes: usize,
    /// Invariant: every change after this revision is in `changes`.
    complete_after: Revision,
}

impl History {
    /// Nothing yet; the next change comes right after this revision.
    pub(crate) fn after(revision: Revision) -> History {
        History { complete_after: revision, ..History::default() }
    }

    /// The revision after which it knows everything.
    pub(crate) fn complete_after(&self) -> Revision {
        self.complete_after
    }

    /// What it holds, in bytes.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The newest revision it knows of.
    pub(crate) fn newest(&self) -> Revision {
        self.changes.back().map_or(self.complete_after, |change| change.revision)
    }

    /// Adds the next change.
    pub(crate) fn push(&mut self, change: Change) {
        assert_eq!(change.revision, self.newest().next(), "revisions have no gap");
        self.bytes += weight(&change);
        self.changes.push_back(change);
    }

    /// Forgets the oldest changes, up to and including a revision.
    pub(crate) fn forget_to(&mut self, revision: Revision) {
        while self.changes.front().is_some_and(|change| change.revision <= revision) {
            self.forget_oldest();
        }
    }

    /// Forgets the oldest changes until it holds no more than this.
    pub(crate) fn shrink_to(&mut self, bytes_max: usize) {
        while self.bytes > bytes_max && !self.changes.is_empty() {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some(change) = self.changes.pop_front() {
            self.bytes -= weight(&change);
            self.complete_after = change.revision;
        }
    }

    /// A change, if it is held.
    pub(crate) fn get(&self, revision: Revision) -> Option<&Change> {
        let place = revision.0.checked_sub(self.complete_after.next().0)?;
        self.changes.get(usize::try_from(place).ok()?)
    }

    /// The changes after a revision. Revisions have no gap, so the place is a subtraction.
    pub(crate) fn changes_after(&self, revision: Revision) -> impl Iterator<Item = &Change> {
        let skip = revision.0.saturating_sub(self.complete_after.0);
        let skip = usize::try_from(skip).unwrap_or(usize::MAX).min(self.changes.len());
        self.changes.range(skip..)
    }

    /// The next changes for a watcher; `None` if they are not all held.
    pub(crate) fn batch(&self, prefix: &str, after: Revision) -> Option<Batch> {
        if after < self.complete_after {
            return None;
        }
        let mut batch = Batch { changes: Vec::new(), complete_to: self.newest().max(after) };
        for change in self.changes_after(after) {
            if change.key.as_str().starts_with(prefix) {
                batch.changes.push(change.clone());
            }
            if batch.changes.len() == BATCH_MAX {
                batch.complete_to = change.revision;
                break;
            }
        }
        Some(batch)
    }
}

/// What a change costs. The value before it counts too: here it may be the only copy.
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
        Change {
            revision: Revision(revision),
            key: Key::new(key),
            kind: ChangeKind::Created,
            value: Bytes::from_static(b"value"),
            prev: None,
        }
    }

    fn history() -> History {
        let mut history = History::after(Revision(10));
        for (n, key) in ["/a/1", "/b/1", "/a/2", "/b/2"].into_iter().enumerate() {
            history.push(change(11 + n as u64, key));
        }
        history
    }

    #[test]
    fn a_batch_starts_right_after_its_revision() {
        let history = history();
        check(&history, "/", 10, Some(&[11, 12, 13, 14]), 14);
        check(&history, "/", 12, Some(&[13, 14]), 14);
        check(&history, "/a/", 11, Some(&[13]), 14);
        check(&history, "/", 14, Some(&[]), 14);
        check(&history, "/", 20, Some(&[]), 20);
        check(&history, "/", 9, None, 0);
    }

    #[test]
    fn what_is_forgotten_is_not_claimed() {
        let mut history = history();
        history.forget_to(Revision(12));
        assert_eq!(history.complete_after(), Revision(12));
        check(&history, "/", 11, None, 0);
        check(&history, "/", 12, Some(&[13, 14]), 14);
        assert_eq!(history.get(Revision(12)), None);
        assert_eq!(history.get(Revision(13)), Some(&change(13, "/a/2")));
        history.shrink_to(0);
        assert_eq!((history.bytes(), history.newest()), (0, Revision(14)));
        history.push(change(15, "/c"));
    }

    #[track_caller]
    fn check(history: &History, prefix: &str, after: u64, expected: Option<&[u64]>, to: u64) {
        let batch = history.batch(prefix, Revision(after));
        let seen = batch.as_ref().map(|batch| {
            assert_eq!(batch.complete_to, Revision(to));
            batch.changes.iter().map(|change| change.revision.0).collect::<Vec<_>>()
        });
        assert_eq!(seen.as_deref(), expected);
    }
}
