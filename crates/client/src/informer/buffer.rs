//! The buffer of one subscriber: changes that it has not received yet.
//!
//! River: store → **subscriber buffer** → handler or stream.
//! Promise: adding a change never waits, so a slow subscriber delays nothing; the default policy
//! merges the pending changes of an object, so memory is bounded by the number of objects; memory
//! is freed after a burst.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use tokio::time::Instant;

use crate::change::Change;
use crate::indexer::StoreState;
use crate::key::Key;
use crate::object::Cached;

/// What a buffer does when its subscriber is slower than the changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Buffer {
    /// Merge the pending changes of an object. A subscriber that keeps up receives every change.
    #[default]
    Coalesce,
    /// Keep every change. Memory is unbounded; watch the backlog metric.
    Lossless,
}

/// A change that waits to be delivered.
pub(crate) struct PendingChange<K> {
    pub(crate) key: Key,
    pub(crate) change: Change<K>,
    /// When it was added; for the age and propagation metrics.
    pub(crate) since: Instant,
}

pub(crate) struct PendingChanges<K> {
    policy: Buffer,
    replay: Option<Replay<K>>,
    entries: Entries<K>,
    /// The number of initial adds that were not delivered yet.
    initial_left: usize,
    /// Whether the initial state is complete.
    populated: bool,
    synced_delivered: bool,
}

enum Entries<K> {
    Plain(VecDeque<PendingChange<K>>),
    Merged(MergedEntries<K>),
}

/// Entries by sequence number, and the newest number of each key.
struct MergedEntries<K> {
    places: BTreeMap<u64, MergedEntry<K>>,
    newest: HashMap<Key, u64>,
    next: u64,
}

struct MergedEntry<K> {
    entry: PendingChange<K>,
    /// An older pending entry of the same key: a deletion before a recreation.
    older: Option<u64>,
}

/// The objects of a state, delivered one by one as initial adds.
struct Replay<K> {
    state: Arc<StoreState<K>>,
    /// All objects up to this key were delivered.
    done: Option<Key>,
    /// The next objects, fetched together.
    ahead: VecDeque<(Key, Arc<K>)>,
    /// Newer states of objects that were not delivered yet; `None` if deleted.
    overrides: HashMap<Key, Option<Arc<K>>>,
    since: Instant,
}

/// How many objects of a replay are fetched together.
const AHEAD: usize = 128;

impl<K: Cached> PendingChanges<K> {
    pub(crate) fn new(policy: Buffer) -> PendingChanges<K> {
        let entries = match policy {
            Buffer::Coalesce => Entries::Merged(MergedEntries {
                places: BTreeMap::new(),
                newest: HashMap::new(),
                next: 0,
            }),
            Buffer::Lossless => Entries::Plain(VecDeque::new()),
        };
        PendingChanges {
            policy,
            replay: None,
            entries,
            initial_left: 0,
            populated: false,
            synced_delivered: false,
        }
    }

    /// Delivers all objects of `state` as initial adds, before anything else.
    pub(crate) fn replay(&mut self, state: Arc<StoreState<K>>, now: Instant) {
        self.initial_left += state.objects.len();
        self.replay = Some(Replay {
            state,
            done: None,
            ahead: VecDeque::new(),
            overrides: HashMap::new(),
            since: now,
        });
    }

    /// The initial state is complete: once all pending initial adds are delivered, the subscriber
    /// has synced.
    pub(crate) fn populated(&mut self) {
        self.populated = true;
    }

    pub(crate) fn put(&mut self, key: &Key, change: &Change<K>, unchanged: bool, now: Instant) {
        if self.policy == Buffer::Coalesce && self.override_replay(key, change) {
            return;
        }
        let initial = matches!(change, Change::Added { initial: true, .. });
        match &mut self.entries {
            Entries::Plain(entries) => {
                let entry = PendingChange { key: key.clone(), change: change.clone(), since: now };
                entries.push_back(entry);
                self.initial_left += usize::from(initial);
            }
            Entries::Merged(entries) => {
                let left = entries.put(key, change, unchanged, now);
                self.initial_left = self.initial_left.saturating_add_signed(left);
            }
        }
    }

    /// Merges a change of an object that the replay has not delivered yet into the replay.
    fn override_replay(&mut self, key: &Key, change: &Change<K>) -> bool {
        let Some(replay) = &mut self.replay else { return false };
        if !replay.is_ahead(key) {
            return false;
        }
        match change {
            Change::Updated { new, .. } => {
                replay.overrides.insert(key.clone(), Some(Arc::clone(new)));
            }
            Change::Deleted(_) => {
                replay.overrides.insert(key.clone(), None);
                self.initial_left -= 1;
            }
            Change::Added { .. } | Change::Synced => return false,
        }
        true
    }

    /// The next change to deliver.
    pub(crate) fn take(&mut self) -> Option<PendingChange<K>> {
        if let Some(replay) = &mut self.replay {
            if let Some(entry) = replay.take() {
                self.initial_left -= 1;
                return Some(entry);
            }
            self.replay = None;
        }
        if self.is_all_initial_out() && !self.synced_delivered {
            self.synced_delivered = true;
            let (key, change) = (Key::cluster(""), Change::Synced);
            return Some(PendingChange { key, change, since: Instant::now() });
        }
        let entry = match &mut self.entries {
            Entries::Plain(entries) => {
                let entry = entries.pop_front();
                if entries.capacity() > 1024 && entries.capacity() > entries.len() * 4 {
                    entries.shrink_to(entries.len() * 2);
                }
                entry
            }
            Entries::Merged(entries) => entries.take(),
        }?;
        self.initial_left -=
            usize::from(matches!(entry.change, Change::Added { initial: true, .. }));
        Some(entry)
    }

    /// Whether all initial adds were delivered.
    pub(crate) fn is_all_initial_out(&self) -> bool {
        self.populated && self.initial_left == 0
    }

    pub(crate) fn len(&self) -> usize {
        let entries = match &self.entries {
            Entries::Plain(entries) => entries.len(),
            Entries::Merged(entries) => entries.places.len(),
        };
        entries + self.replay.as_ref().map_or(0, Replay::len)
    }

    pub(crate) fn oldest(&self) -> Option<Instant> {
        if let Some(replay) = &self.replay {
            return Some(replay.since);
        }
        match &self.entries {
            Entries::Plain(entries) => entries.front().map(|entry| entry.since),
            Entries::Merged(entries) => {
                entries.places.first_key_value().map(|(_, placed)| placed.entry.since)
            }
        }
    }

    pub(crate) fn keys(&self) -> Vec<Key> {
        match &self.entries {
            Entries::Plain(entries) => {
                entries.iter().take(100).map(|entry| entry.key.clone()).collect()
            }
            Entries::Merged(entries) => {
                entries.places.values().take(100).map(|placed| placed.entry.key.clone()).collect()
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        match &self.entries {
            Entries::Plain(entries) => entries.capacity(),
            Entries::Merged(entries) => entries.newest.capacity(),
        }
    }
}

impl<K: Cached> Replay<K> {
    /// Whether the replay has not delivered the object yet.
    fn is_ahead(&self, key: &Key) -> bool {
        self.done.as_ref().is_none_or(|done| key > done)
            && self.state.objects.contains_key(key)
            && !matches!(self.overrides.get(key), Some(None))
    }

    fn take(&mut self) -> Option<PendingChange<K>> {
        loop {
            let (key, object) = self.next()?;
            self.done = Some(key.clone());
            let object = match self.overrides.remove(&key) {
                Some(None) => continue, // deleted before it was delivered
                Some(Some(newer)) => newer,
                None => object,
            };
            let change = Change::Added { object, initial: true };
            return Some(PendingChange { key, change, since: self.since });
        }
    }

    fn next(&mut self) -> Option<(Key, Arc<K>)> {
        if self.ahead.is_empty() {
            let from = match &self.done {
                Some(key) => Bound::Excluded(key.as_str()),
                None => Bound::Unbounded,
            };
            let range = self.state.objects.range::<_, str>((from, Bound::Unbounded));
            let next = range.take(AHEAD).map(|(key, object)| (key.clone(), Arc::clone(object)));
            self.ahead.extend(next);
        }
        self.ahead.pop_front()
    }

    fn len(&self) -> usize {
        // An upper bound, for a metric: an exact count would iterate over the objects.
        self.state.objects.len()
    }
}

impl<K: Cached> MergedEntries<K> {
    /// Adds a change, merged with the pending changes of its object; returns the change in the
    /// number of initial adds.
    fn put(&mut self, key: &Key, change: &Change<K>, unchanged: bool, now: Instant) -> isize {
        let pending = self.newest.get(key).and_then(|place| self.places.get_mut(place));
        let Some(MergedEntry { entry, .. }) = pending else {
            return self.append(key, change, now);
        };
        if unchanged {
            return 0; // the pending change already contains it
        }
        match (&mut entry.change, change) {
            (Change::Added { object, .. }, Change::Updated { new, .. }) => {
                *object = Arc::clone(new);
                0
            }
            (Change::Added { initial, .. }, Change::Deleted(_)) => {
                let left = -isize::from(*initial);
                self.forget_newest(key);
                left
            }
            (Change::Updated { new: last, .. }, Change::Updated { new, .. }) => {
                *last = Arc::clone(new);
                0
            }
            (change @ (Change::Updated { .. } | Change::Deleted(_)), Change::Deleted(gone)) => {
                *change = Change::Deleted(gone.clone());
                0
            }
            (change @ Change::Deleted(_), Change::Added { object, initial }) => {
                match same_object(change, object) {
                    Some(old) => {
                        *change = Change::Updated { old, new: Arc::clone(object) };
                        0
                    }
                    None => {
                        let added = Change::Added { object: Arc::clone(object), initial: *initial };
                        self.append(key, &added, now)
                    }
                }
            }
            _ => self.append(key, change, now),
        }
    }

    fn append(&mut self, key: &Key, change: &Change<K>, now: Instant) -> isize {
        let place = self.next;
        self.next += 1;
        let older = self.newest.insert(key.clone(), place);
        let entry = PendingChange { key: key.clone(), change: change.clone(), since: now };
        self.places.insert(place, MergedEntry { entry, older });
        isize::from(matches!(change, Change::Added { initial: true, .. }))
    }

    fn forget_newest(&mut self, key: &Key) {
        let Some(place) = self.newest.remove(key) else { return };
        if let Some(MergedEntry { older: Some(older), .. }) = self.places.remove(&place)
            && self.places.contains_key(&older)
        {
            self.newest.insert(key.clone(), older);
        }
    }

    fn take(&mut self) -> Option<PendingChange<K>> {
        let (place, MergedEntry { entry, .. }) = self.places.pop_first()?;
        if self.newest.get(&entry.key) == Some(&place) {
            self.newest.remove(&entry.key);
        }
        if self.newest.capacity() > 1024 && self.newest.capacity() > self.newest.len() * 8 {
            self.newest.shrink_to(self.newest.len() * 2);
        }
        Some(entry)
    }
}

/// The last state of a deletion, if `object` is the same object again.
fn same_object<K: Cached>(deleted: &Change<K>, object: &Arc<K>) -> Option<Arc<K>> {
    let Change::Deleted(gone) = deleted else { return None };
    let last = gone.last()?;
    (!last.uid().is_empty() && last.uid() == object.uid()).then(|| Arc::clone(last))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;
    use crate::change::Gone;
    use crate::object::fixture::object;

    type Map = ConfigMap;

    fn with_uid(name: &str, version: &str, uid: &str) -> Arc<Map> {
        let mut map = Map::clone(&object(name, version));
        map.metadata.uid = Some(uid.to_owned());
        Arc::new(map)
    }

    fn added(version: &str) -> Change<Map> {
        Change::Added { object: object("a", version), initial: false }
    }

    fn initial(version: &str) -> Change<Map> {
        Change::Added { object: object("a", version), initial: true }
    }

    fn updated(old: &str, new: &str) -> Change<Map> {
        Change::Updated { old: object("a", old), new: object("a", new) }
    }

    fn deleted(version: &str) -> Change<Map> {
        Change::Deleted(Gone::seen(Key::cluster("a"), object("a", version)))
    }

    fn buffer(policy: Buffer) -> PendingChanges<Map> {
        let mut pending = PendingChanges::new(policy);
        pending.synced_delivered = true;
        pending
    }

    fn put(pending: &mut PendingChanges<Map>, change: &Change<Map>) {
        let key = change.key().unwrap();
        pending.put(&key, change, false, Instant::now());
    }

    fn drain(pending: &mut PendingChanges<Map>) -> Vec<String> {
        std::iter::from_fn(|| pending.take()).map(|entry| format!("{:?}", entry.change)).collect()
    }

    /// What is pending and what comes next, against what it becomes.
    #[track_caller]
    fn check(changes: &[Change<Map>], expected: &[&str]) {
        let mut pending = buffer(Buffer::Coalesce);
        for change in changes {
            put(&mut pending, change);
        }
        assert_eq!(drain(&mut pending), expected);
    }

    /// C13.12
    #[test]
    fn pending_changes_of_an_object_are_merged_by_the_table() {
        check(&[added("1"), updated("1", "2")], &["Added(a@2)"]);
        check(&[added("1"), deleted("2")], &[]);
        check(&[updated("1", "2"), updated("2", "3")], &["Updated(a@3 from 1)"]);
        check(&[updated("1", "2"), deleted("3")], &["Gone(a, observed: true)"]);
        check(&[deleted("1"), added("2")], &["Updated(a@2 from 1)"]);
        let other = Change::Added { object: with_uid("a", "3", "new"), initial: false };
        check(&[deleted("2"), other.clone()], &["Gone(a, observed: true)", "Added(a@3)"]);
        let nothing = Change::Deleted(Gone::inferred(Key::cluster("a"), None));
        check(&[nothing, added("3")], &["Gone(a, observed: false)", "Added(a@3)"]);
        check(&[deleted("2"), other.clone(), deleted("4")], &["Gone(a, observed: true)"]);
        let again =
            Change::Updated { old: with_uid("a", "3", "new"), new: with_uid("a", "5", "new") };
        check(&[deleted("2"), other, again], &["Gone(a, observed: true)", "Added(a@5)"]);
    }

    /// C13.12
    #[test]
    fn a_resync_does_not_change_what_is_pending() {
        for first in [added("1"), updated("0", "1"), deleted("1")] {
            let mut pending = buffer(Buffer::Coalesce);
            put(&mut pending, &first);
            pending.put(&Key::cluster("a"), &updated("1", "1"), true, Instant::now());
            assert_eq!(drain(&mut pending), [format!("{first:?}")]);
        }
        let mut pending = buffer(Buffer::Coalesce);
        pending.put(&Key::cluster("a"), &updated("1", "1"), true, Instant::now());
        assert_eq!(drain(&mut pending), ["Updated(a@1 from 1)"], "nothing was pending");
    }

    /// C13.12
    #[test]
    fn an_entry_keeps_the_position_of_its_first_notification() {
        let mut pending = buffer(Buffer::Coalesce);
        put(&mut pending, &added("1"));
        put(&mut pending, &Change::Added { object: object("b", "2"), initial: false });
        put(&mut pending, &updated("1", "3"));
        assert_eq!(drain(&mut pending), ["Added(a@3)", "Added(b@2)"]);
    }

    /// C13.12, C13.6
    #[test]
    fn an_initial_add_that_is_deleted_before_its_delivery_counts_as_delivered() {
        let mut pending = buffer(Buffer::Coalesce);
        put(&mut pending, &initial("1"));
        pending.populated();
        assert!(!pending.is_all_initial_out());
        put(&mut pending, &deleted("2"));
        assert!(pending.is_all_initial_out());
    }

    /// C13.12: a hundred thousand changes of ten objects are ten entries.
    #[test]
    fn a_lagging_subscriber_costs_one_entry_for_each_object() {
        let mut pending = buffer(Buffer::Coalesce);
        for round in 0..10_000 {
            for name in 0..10 {
                let name = format!("o{name}");
                let (old, new) = (round.to_string(), (round + 1).to_string());
                put(
                    &mut pending,
                    &Change::Updated { old: object(&name, &old), new: object(&name, &new) },
                );
            }
        }
        assert_eq!(pending.len(), 10);
        assert_eq!(drain(&mut pending)[0], "Updated(o0@10000 from 0)");
    }

    /// C13.11
    #[test]
    fn a_lossless_buffer_keeps_everything() {
        let mut pending = buffer(Buffer::Lossless);
        for change in [added("1"), updated("1", "2"), deleted("3")] {
            put(&mut pending, &change);
        }
        assert_eq!(drain(&mut pending).len(), 3);
    }

    /// C13.15
    #[test]
    fn a_drained_buffer_frees_its_memory() {
        for policy in [Buffer::Coalesce, Buffer::Lossless] {
            let mut pending = buffer(policy);
            for number in 0..100_000 {
                let object = object(&format!("o{number}"), "1");
                put(&mut pending, &Change::Added { object, initial: false });
            }
            assert_eq!(drain(&mut pending).len(), 100_000);
            assert!(pending.capacity() < 2000, "{policy:?}: {}", pending.capacity());
        }
    }

    /// C13.4, C13.9, C13.12
    #[test]
    fn changes_during_a_replay_are_merged_into_it() {
        let objects = (0..300).map(|number| (Key::cluster(&format!("o{number:03}")), number));
        let state = Arc::new(StoreState {
            objects: objects.map(|(key, _)| (key.clone(), object(key.name(), "1"))).collect(),
            indexes: Vec::new(),
            version: None,
            by_namespace: None,
            epoch: 0,
        });
        let mut pending = PendingChanges::<Map>::new(Buffer::Coalesce);
        pending.replay(state, Instant::now());
        pending.populated();
        assert_eq!(format!("{:?}", pending.take().unwrap().change), "Initial(o000@1)");
        let change =
            |name: &str| Change::Updated { old: object(name, "1"), new: object(name, "2") };
        put(&mut pending, &change("o000")); // already delivered: a separate entry
        put(&mut pending, &change("o007")); // not delivered yet: delivered in its new state
        put(&mut pending, &change("o250"));
        let gone = |name: &str| Change::Deleted(Gone::seen(Key::cluster(name), object(name, "3")));
        put(&mut pending, &gone("o250")); // not delivered yet: never delivered
        put(&mut pending, &Change::Added { object: object("o250", "4"), initial: false });
        let delivered = drain(&mut pending);
        assert_eq!(delivered.len(), 298 + 1 + 2, "{delivered:?}");
        assert!(delivered.contains(&"Initial(o007@2)".to_owned()));
        assert!(!delivered.iter().any(|text| text.starts_with("Initial(o250")));
        assert_eq!(delivered[298..], ["Synced", "Updated(o000@2 from 1)", "Added(o250@4)"]);
    }
}
