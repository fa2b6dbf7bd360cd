//! The in-order queue: first in, first out, across all keys.
//!
//! River: inside the delta queue; the default.
//! Promise: nothing is merged or dropped; a batch holds each key once and never reaches past the
//! first state while that is being populated.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use crate::change::Gone;
use crate::key::Key;
use crate::object::Cached;

use super::{BATCH_MAX, Batch, Delta, Known, Population, Replacement, SetKind};

pub(super) struct InOrder<K> {
    waiting: VecDeque<Delta<K>>,
    population: Population,
    /// Set if a replacement is entered piece by piece.
    known: Option<Arc<dyn Known<K>>>,
}

impl<K: Cached> InOrder<K> {
    pub(super) fn atomic() -> InOrder<K> {
        InOrder { waiting: VecDeque::new(), population: Population::None, known: None }
    }

    pub(super) fn piecemeal(known: Arc<dyn Known<K>>) -> InOrder<K> {
        InOrder { known: Some(known), ..InOrder::atomic() }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn put(&mut self, delta: Delta<K>) {
        match (delta, self.known.clone()) {
            (Delta::ReplacedAll(all), Some(known)) => self.replace_piecemeal(all, &*known),
            (delta @ Delta::ReplacedAll(_), None) => {
                self.population.replaced(1);
                self.waiting.push_back(delta);
            }
            (delta @ (Delta::Set { .. } | Delta::Deleted(_)), _) => {
                self.population.changed();
                self.waiting.push_back(delta);
            }
            (delta @ (Delta::SyncAll | Delta::Bookmark(_)), _) => self.waiting.push_back(delta),
        }
    }

    fn replace_piecemeal(&mut self, all: Replacement<K>, known: &dyn Known<K>) {
        let before = self.waiting.len();
        let listed: HashSet<Key> = all.items.iter().map(|(key, _)| key.clone()).collect();
        let mut gone: Vec<Gone<K>> = Vec::new();
        let mut queued = HashSet::new();
        for delta in self.waiting.iter().rev() {
            let (key, last) = match delta {
                Delta::Set { key, object, .. } => (key, Some(object)),
                Delta::Deleted(gone) => (gone.key(), None),
                _ => continue,
            };
            if queued.insert(key.clone())
                && !listed.contains(key)
                && let Some(last) = last
            {
                gone.push(Gone::inferred(key.clone(), Some(Arc::clone(last))));
            }
        }
        gone.reverse();
        for key in known.keys() {
            if !listed.contains(&key) && !queued.contains(&key) {
                let last = known.get(&key);
                gone.push(Gone::inferred(key, last));
            }
        }
        let undecodable = all.undecodable.into_iter().map(Gone::undecodable);
        self.waiting.extend(gone.into_iter().chain(undecodable).map(Delta::Deleted));
        self.waiting.extend(all.items.into_iter().map(|(key, object)| Delta::Set {
            kind: SetKind::Replaced,
            key,
            object,
        }));
        self.population.replaced(self.waiting.len() - before);
        self.waiting.push_back(Delta::Bookmark(all.version));
    }

    /// The next batch: single deltas of many objects, each key once, or one of the other kinds.
    pub(super) fn take(&mut self) -> Option<Batch<K>> {
        let (limit, initial) = match self.population {
            Population::Initial(left) => (left.min(BATCH_MAX), true),
            _ => (BATCH_MAX, false),
        };
        let mut deltas = Vec::new();
        let mut keys = HashSet::new();
        while deltas.len() < limit {
            let key = match self.waiting.front() {
                Some(Delta::Set { key, .. }) => key,
                Some(Delta::Deleted(gone)) => gone.key(),
                _ => break,
            };
            if !keys.insert(key.clone()) {
                break;
            }
            deltas.extend(self.waiting.pop_front());
        }
        if deltas.is_empty() {
            deltas.push(self.waiting.pop_front()?);
        }
        // A burst must not keep its memory for ever.
        if self.waiting.capacity() > 8 * BATCH_MAX {
            self.waiting.shrink_to(self.waiting.len() * 2);
        }
        Some(Batch { deltas, initial, version: None })
    }

    pub(super) fn processed(&mut self, count: usize) {
        self.population.processed(count);
    }

    pub(super) fn has_synced(&self) -> bool {
        self.population == Population::Done
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::super::fixture::*;
    use super::*;

    fn taken(queue: &mut InOrder<ConfigMap>) -> Vec<Vec<String>> {
        std::iter::from_fn(|| {
            let batch = queue.take()?;
            queue.processed(batch.deltas.len());
            Some(shown(&batch))
        })
        .collect()
    }

    /// Operations in, batches out.
    #[track_caller]
    fn check(operations: Vec<Delta<ConfigMap>>, expected: &[&[&str]]) {
        let mut queue = InOrder::atomic();
        for operation in operations {
            queue.put(operation);
        }
        assert_eq!(taken(&mut queue), expected);
    }

    /// C9.1, C9.2
    #[test]
    fn deltas_leave_as_they_entered_and_none_is_merged() {
        check(
            vec![
                added("b", "1"),
                added("a", "2"),
                updated("b", "3"),
                updated("b", "4"),
                deleted("x", "5"),
            ],
            &[&["Added b@1", "Added a@2"], &["Updated b@3"], &["Updated b@4", "Deleted x@5"]],
        );
    }

    /// C9.3, C9.4, C9.5, C9.6
    #[test]
    fn replacement_resync_and_bookmark_are_one_delta_each() {
        check(
            vec![
                replace(&[("b", "1"), ("a", "2")], "9"),
                Delta::SyncAll,
                Delta::Bookmark("12".into()),
            ],
            &[&["ReplacedAll [b a]@9"], &["SyncAll"], &["Bookmark@12"]],
        );
    }

    /// C9.7
    #[test]
    fn a_batch_ends_before_a_repeated_key_and_before_other_kinds() {
        check(
            vec![
                added("a", "1"),
                added("b", "2"),
                Delta::Bookmark("3".into()),
                updated("a", "4"),
                updated("a", "5"),
            ],
            &[&["Added a@1", "Added b@2"], &["Bookmark@3"], &["Updated a@4"], &["Updated a@5"]],
        );
        let many = (0..2500).map(|number| added(&format!("o{number}"), "1")).collect();
        let mut queue = InOrder::atomic();
        for delta in Vec::from_iter::<Vec<_>>(many) {
            queue.put(delta);
        }
        let sizes: Vec<usize> = taken(&mut queue).iter().map(Vec::len).collect();
        assert_eq!(sizes, [1000, 1000, 500]);
    }

    /// C9.8
    #[test]
    fn a_batch_does_not_reach_past_the_first_state() {
        let mut queue = InOrder::piecemeal(Fake::of(&[]));
        queue.put(replace(&[("a", "1"), ("b", "2")], "2"));
        queue.put(added("c", "3"));
        let first = queue.take().unwrap();
        assert!(first.initial);
        assert_eq!(shown(&first), ["Replaced a@1", "Replaced b@2"]);
        queue.processed(2);
        assert_eq!(taken(&mut queue), [vec!["Bookmark@2"], vec!["Added c@3"]]);
    }

    /// C9.9
    #[test]
    fn synced_means_that_the_last_initial_delta_was_processed() {
        let mut queue = InOrder::atomic();
        assert!(!queue.has_synced(), "before anything");
        queue.put(replace(&[("a", "1")], "1"));
        assert!(!queue.has_synced());
        let batch = queue.take().unwrap();
        assert!(batch.initial && !queue.has_synced(), "taken is not processed");
        queue.processed(batch.deltas.len());
        assert!(queue.has_synced());

        let mut queue = InOrder::atomic();
        queue.put(added("a", "1"));
        assert!(queue.has_synced(), "a change before any replacement: nothing to wait for");
        let mut queue: InOrder<ConfigMap> = InOrder::piecemeal(Fake::of(&[]));
        queue.put(replace(&[], "1"));
        assert!(queue.has_synced(), "an empty first state");
    }

    /// C9.14
    #[test]
    fn the_queue_gives_memory_back_after_a_burst() {
        let mut queue = InOrder::atomic();
        for number in 0..100_000 {
            queue.put(added(&format!("o{number}"), "1"));
        }
        taken(&mut queue);
        assert!(queue.waiting.capacity() < 10_000, "{}", queue.waiting.capacity());
    }

    /// C9.15, R63
    #[test]
    fn a_piecemeal_replacement_deletes_what_is_queued_or_known_and_not_listed() {
        let known = Fake::of(&[("known", "1"), ("listed", "2"), ("queued", "3"), ("dead", "4")]);
        let mut queue = InOrder::piecemeal(known);
        queue.put(added("queued-only", "5"));
        queue.put(updated("queued", "6"));
        queue.put(deleted("dead", "7"));
        queue.put(replace(&[("new", "8"), ("listed", "9")], "9"));
        let all: Vec<String> = taken(&mut queue).concat();
        assert_eq!(
            all,
            [
                "Added queued-only@5",
                "Updated queued@6",
                "Deleted dead@7",
                "Deleted queued-only@5 inferred",
                "Deleted queued@6 inferred",
                "Deleted known@1 inferred",
                "Replaced new@8",
                "Replaced listed@9",
                "Bookmark@9",
            ]
        );
    }
}
