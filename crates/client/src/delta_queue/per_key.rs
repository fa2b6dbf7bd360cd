//! The per-key queue: all deltas of an object together, keys in the order they came. DeltaFIFO.
//!
//! River: inside the delta queue, when chosen.
//! Promise: a key is in the order exactly when it has deltas; only deletions that stand next to
//! each other are merged.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crate::change::Gone;
use crate::key::Key;
use crate::object::Cached;
use crate::version::ResourceVersion;

use super::{Batch, Delta, Known, Population, Replacement, SetKind};

pub(super) struct PerKey<K> {
    /// Oldest first, never empty.
    deltas: HashMap<Key, Vec<Delta<K>>>,
    order: VecDeque<Key>,
    population: Population,
    known: Option<Arc<dyn Known<K>>>,
    /// The newest version that was entered; the store has it once the queue is empty, because
    /// before that its state corresponds to no version at all.
    newest: Option<ResourceVersion>,
    version_due: bool,
}

impl<K: Cached> PerKey<K> {
    pub(super) fn new(known: Option<Arc<dyn Known<K>>>) -> PerKey<K> {
        PerKey {
            deltas: HashMap::new(),
            order: VecDeque::new(),
            population: Population::None,
            known,
            newest: None,
            version_due: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        // A version that only waits for an empty queue is work as well.
        self.order.len().max(usize::from(self.version_due))
    }

    pub(super) fn put(&mut self, delta: Delta<K>) {
        match delta {
            Delta::ReplacedAll(all) => self.replace(all),
            Delta::SyncAll => self.resync(),
            Delta::Bookmark(version) => self.reached(version),
            Delta::Deleted(gone) => self.delete(gone),
            Delta::Set { ref key, ref object, .. } => {
                self.population.changed();
                self.reached(object.resource_version());
                let key = key.clone();
                self.append(&key, delta);
            }
        }
    }

    fn reached(&mut self, version: ResourceVersion) {
        self.newest = Some(version);
        self.version_due = true;
    }

    fn delete(&mut self, gone: Gone<K>) {
        self.population.changed();
        if let Some(version) = gone.version() {
            self.reached(version);
        }
        let key = gone.key().clone();
        let is_known = self.known.as_ref().is_none_or(|known| known.contains(&key));
        // Nobody knows it, so nobody needs to hear that it is gone.
        if is_known || self.deltas.contains_key(&key) || gone.cause().is_some() {
            self.append(&key, Delta::Deleted(gone));
        }
    }

    fn append(&mut self, key: &Key, delta: Delta<K>) {
        let deltas = self.deltas.entry(key.clone()).or_insert_with(|| {
            self.order.push_back(key.clone());
            Vec::new()
        });
        match (deltas.last_mut(), delta) {
            (Some(Delta::Deleted(older)), Delta::Deleted(newer)) => {
                // The one that was seen knows more than the one that was inferred.
                if !older.observed() {
                    *older = newer;
                }
            }
            (_, delta) => deltas.push(delta),
        }
    }

    fn replace(&mut self, all: Replacement<K>) {
        let listed: HashSet<Key> = all.items.iter().map(|(key, _)| key.clone()).collect();
        for (key, object) in all.items {
            self.append(&key.clone(), Delta::Set { kind: SetKind::Replaced, key, object });
        }
        let queued: Vec<Key> =
            self.order.iter().filter(|key| !listed.contains(*key)).cloned().collect();
        for key in &queued {
            let last = self.deltas.get(key).and_then(|deltas| newest_object(deltas));
            self.append(key, Delta::Deleted(Gone::inferred(key.clone(), last)));
        }
        let mut missing = Vec::new();
        if let Some(known) = &self.known {
            let is_missing = |key: &Key| !listed.contains(key) && !self.deltas.contains_key(key);
            missing.extend(known.keys().into_iter().filter(is_missing).map(|key| {
                let last = known.get(&key);
                Gone::inferred(key, last)
            }));
        }
        for gone in missing.into_iter().chain(all.undecodable.into_iter().map(Gone::undecodable)) {
            let key = gone.key().clone();
            self.append(&key, Delta::Deleted(gone));
        }
        self.population.replaced(self.order.len());
        self.reached(all.version);
    }

    fn resync(&mut self) {
        let Some(known) = self.known.clone() else { return };
        for key in known.keys() {
            if self.deltas.contains_key(&key) {
                continue;
            }
            if let Some(object) = known.get(&key) {
                self.append(&key.clone(), Delta::Set { kind: SetKind::Sync, key, object });
            }
        }
    }

    /// All deltas of the first key.
    pub(super) fn pop(&mut self) -> Option<Batch<K>> {
        let initial = !self.has_synced();
        let deltas = match self.order.pop_front() {
            Some(key) => {
                self.order.shrink_to(self.order.len() * 2 + 1000);
                self.deltas.remove(&key).unwrap_or_default()
            }
            None if self.version_due => Vec::new(),
            None => return None,
        };
        let drained = self.order.is_empty();
        if drained {
            self.version_due = false;
        }
        let version = if drained { self.newest.clone() } else { None };
        Some(Batch { deltas, initial, version })
    }

    pub(super) fn processed(&mut self) {
        self.population.processed(1);
    }

    pub(super) fn has_synced(&self) -> bool {
        self.population == Population::Done
    }
}

/// The newest object of some deltas; out of a gone record, its inner object.
fn newest_object<K>(deltas: &[Delta<K>]) -> Option<Arc<K>> {
    match deltas.last()? {
        Delta::Set { object, .. } => Some(Arc::clone(object)),
        Delta::Deleted(gone) => gone.last().cloned(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::super::fixture::*;
    use super::*;

    fn popped(queue: &mut PerKey<ConfigMap>) -> Vec<Vec<String>> {
        std::iter::from_fn(|| {
            let batch = queue.pop()?;
            queue.processed();
            Some(shown(&batch))
        })
        .filter(|deltas| !deltas.is_empty())
        .collect()
    }

    /// Operations in, deltas out.
    #[track_caller]
    fn check(known: &[(&str, &str)], operations: Vec<Delta<ConfigMap>>, expected: &[&[&str]]) {
        let mut queue = PerKey::new(Some(Fake::of(known)));
        for operation in operations {
            queue.put(operation);
            assert_eq!(queue.order.len(), queue.deltas.len());
            assert!(queue.order.iter().all(|key| !queue.deltas[key].is_empty()));
        }
        assert_eq!(popped(&mut queue), expected);
    }

    /// C8.1, C8.2, C8.3, C8.6, C8.7
    #[test]
    fn a_key_leaves_with_all_its_deltas_in_the_order_keys_came() {
        check(
            &[],
            vec![
                added("b", "1"),
                added("a", "2"),
                updated("b", "3"),
                updated("b", "3"),
                deleted("b", "4"),
                added("b", "5"),
            ],
            &[
                &["Added b@1", "Updated b@3", "Updated b@3", "Deleted b@4", "Added b@5"],
                &["Added a@2"],
            ],
        );
    }

    /// C8.4
    #[test]
    fn a_delete_of_an_object_nobody_knows_does_nothing() {
        check(
            &[("known", "1")],
            vec![deleted("unknown", "2"), deleted("known", "3")],
            &[&["Deleted known@3"]],
        );
    }

    /// C8.5
    #[test]
    fn of_two_deletions_in_a_row_the_observed_one_stays() {
        let inferred = || Delta::Deleted(Gone::inferred(Key::cluster("a"), Some(object("a", "1"))));
        check(&[("a", "1")], vec![inferred(), deleted("a", "2")], &[&["Deleted a@2"]]);
        check(&[("a", "1")], vec![deleted("a", "2"), inferred()], &[&["Deleted a@2"]]);
        check(&[("a", "1")], vec![deleted("a", "2"), deleted("a", "3")], &[&["Deleted a@2"]]);
    }

    /// C8.8, C8.9, R63
    #[test]
    fn a_replacement_deletes_what_is_queued_or_known_and_not_listed() {
        let inner = Delta::Deleted(Gone::inferred(Key::cluster("gone"), Some(object("gone", "4"))));
        check(
            &[("known", "1"), ("listed", "2"), ("gone", "4")],
            vec![added("queued", "3"), inner, replace(&[("listed", "5"), ("new", "6")], "6")],
            &[
                &["Added queued@3", "Deleted queued@3 inferred"],
                &["Deleted gone@4 inferred"],
                &["Replaced listed@5"],
                &["Replaced new@6"],
                &["Deleted known@1 inferred"],
            ],
        );
    }

    /// C8.10
    #[test]
    fn a_known_key_without_an_object_is_still_reported_as_gone() {
        let known = Fake::default();
        known.0.lock().unwrap().insert(Key::cluster("a"), None);
        let mut queue = PerKey::new(Some(Arc::new(known)));
        queue.put(replace(&[], "1"));
        assert_eq!(popped(&mut queue), [["Deleted a@? inferred"]]);
    }

    /// C8.11
    #[test]
    fn a_resync_leaves_keys_with_queued_deltas_alone() {
        check(
            &[("a", "1"), ("b", "2")],
            vec![updated("a", "3"), Delta::SyncAll],
            &[&["Updated a@3"], &["Sync b@2"]],
        );
    }

    /// C8.12
    #[test]
    fn without_a_store_a_resync_does_nothing_and_deletions_come_from_the_queue() {
        let mut queue = PerKey::new(None);
        queue.put(Delta::SyncAll);
        queue.put(added("a", "1"));
        queue.put(replace(&[("b", "2")], "2"));
        assert_eq!(
            popped(&mut queue),
            [vec!["Added a@1", "Deleted a@1 inferred"], vec!["Replaced b@2"]]
        );
    }

    /// C8.13, C8.14
    #[test]
    fn synced_means_that_as_many_keys_were_popped_as_the_first_replacement_queued() {
        let mut queue = PerKey::new(Some(Fake::of(&[("old", "1")])));
        assert!(!queue.has_synced());
        queue.put(replace(&[("a", "2"), ("b", "3")], "3"));
        for _ in 0..3 {
            assert!(!queue.has_synced());
            let batch = queue.pop().unwrap();
            assert!(batch.initial);
            queue.processed();
        }
        assert!(queue.has_synced());
        queue.put(added("c", "4"));
        assert!(!queue.pop().unwrap().initial);

        let mut queue = PerKey::new(Some(Fake::of(&[])));
        queue.put(deleted("unknown", "1"));
        assert!(queue.has_synced(), "a change before any replacement");
        let mut queue: PerKey<ConfigMap> = PerKey::new(Some(Fake::of(&[])));
        queue.put(replace(&[], "1"));
        assert!(queue.has_synced(), "nothing to queue");
    }

    #[test]
    fn the_version_is_told_when_the_queue_is_empty() {
        let mut queue = PerKey::new(Some(Fake::of(&[])));
        queue.put(replace(&[("a", "1"), ("b", "2")], "9"));
        assert_eq!(queue.pop().unwrap().version, None);
        assert_eq!(queue.pop().unwrap().version, Some("9".into()));
        queue.put(Delta::Bookmark("12".into()));
        let batch = queue.pop().unwrap();
        assert!(batch.deltas.is_empty());
        assert_eq!(batch.version, Some("12".into()));
        assert!(queue.pop().is_none());
    }
}
