//! The only writer of a store: applies deltas, publishes states, and returns the notifications for
//! subscribers.
//!
//! River: delta queue → **writer** → store and subscribers.
//! Promise: a batch becomes visible in one step, before its notifications are sent; the cost of a
//! delta does not grow with the number of stored objects.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::change::{Change, Gone};
use crate::delta_queue::{Batch, Delta, Replacement};
use crate::key::Key;
use crate::list_watch::Undecodable;
use crate::object::Cached;
use crate::version::ResourceVersion;

use super::index::{AnyIndex, IndexChange, IndexFailure};
use super::{Store, StoreState};

/// The part of the store that a lane of the informer fills: all of it, or one namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum LaneScope {
    All,
    Namespace(Arc<str>),
}

impl LaneScope {
    pub(crate) fn contains(&self, key: &Key) -> bool {
        match self {
            LaneScope::All => true,
            LaneScope::Namespace(namespace) => key.namespace() == Some(namespace),
        }
    }

    fn keys<K>(&self, state: &StoreState<K>) -> Vec<Key> {
        match self {
            LaneScope::All => state.objects.keys().cloned().collect(),
            LaneScope::Namespace(namespace) => {
                state.in_namespace(namespace).map(|(key, _)| key.clone()).collect()
            }
        }
    }
}

/// A change to deliver to subscribers.
pub(crate) struct Notification<K> {
    pub(crate) key: Key,
    pub(crate) change: Change<K>,
    /// The object did not change: a resync, or a list with the same version.
    pub(crate) unchanged: bool,
}

/// The result of applying a batch.
pub(crate) struct ApplyOutcome<K> {
    pub(crate) notifications: Vec<Notification<K>>,
    /// Whether the batch was the initial state in key order: subscribers are given the store
    /// instead of a notification per object.
    pub(crate) populated: bool,
    pub(crate) resync: bool,
    pub(crate) index_failures: Vec<IndexFailure>,
    /// Objects without a name.
    pub(crate) nameless: usize,
    pub(crate) regressions: usize,
}

impl<K> ApplyOutcome<K> {
    fn new() -> ApplyOutcome<K> {
        ApplyOutcome {
            notifications: Vec::new(),
            populated: false,
            resync: false,
            index_failures: Vec::new(),
            nameless: 0,
            regressions: 0,
        }
    }
}

pub(crate) struct Writer<K> {
    store: Store<K>,
    state: StoreState<K>,
    /// The version of each lane; the version of the store is the lowest of them.
    versions: BTreeMap<LaneScope, Option<ResourceVersion>>,
    undecodable: BTreeMap<Key, Arc<Undecodable>>,
}

impl<K: Cached> Writer<K> {
    pub(crate) fn new(store: Store<K>) -> Writer<K> {
        Writer {
            store,
            state: StoreState::empty(),
            versions: BTreeMap::new(),
            undecodable: BTreeMap::new(),
        }
    }

    pub(crate) fn state(&self) -> &StoreState<K> {
        &self.state
    }

    pub(crate) fn undecodable(&self) -> impl Iterator<Item = &Undecodable> {
        self.undecodable.values().map(|undecodable| &**undecodable)
    }

    pub(crate) fn add_lane(&mut self, scope: LaneScope) {
        self.versions.insert(scope, None);
        self.publish();
    }

    /// Adds an index; returns its slot, or `None` if the name is in use. The same function under the
    /// same name is the same index.
    pub(crate) fn add_index(
        &mut self,
        index: &dyn AnyIndex<K>,
        failures: &mut Vec<IndexFailure>,
    ) -> Option<usize> {
        if index.name() == super::NAMESPACE_INDEX {
            return None;
        }
        if let Some(slot) = self.state.indexes.iter().position(|it| it.name() == index.name()) {
            let function = index.function();
            let same = function.is_some() && self.state.indexes[slot].function() == function;
            return same.then_some(slot);
        }
        self.state.indexes.push(index.over(&self.state.objects, failures));
        self.publish();
        Some(self.state.indexes.len() - 1)
    }

    /// Applies a batch of one lane and publishes the new state.
    pub(crate) fn apply(&mut self, scope: &LaneScope, batch: Batch<K>) -> ApplyOutcome<K> {
        let Batch { deltas, initial } = batch;
        let mut applied = ApplyOutcome::new();
        let mut reached = None;
        let mut singles = Vec::with_capacity(deltas.len());
        for delta in deltas {
            match delta {
                Delta::ReplacedAll(all) => {
                    reached = Some(all.version.clone());
                    self.replace(scope, all, initial, &mut applied);
                }
                Delta::SyncAll => applied.resync = true,
                Delta::Bookmark(version) => reached = Some(version),
                Delta::Set { .. } | Delta::Deleted(_) => singles.push(delta),
            }
        }
        if let Some(version) = singles.iter().rev().find_map(version_of) {
            reached = reached.or(Some(version));
        }
        self.apply_each(singles, initial, &mut applied);
        if let Some(version) = reached {
            self.reach(scope, version, &mut applied);
        }
        self.publish();
        applied
    }

    fn reach(
        &mut self,
        scope: &LaneScope,
        version: ResourceVersion,
        applied: &mut ApplyOutcome<K>,
    ) {
        let known = self.versions.entry(scope.clone()).or_default();
        if known.as_ref().is_some_and(|known| version.is_before(known)) {
            applied.regressions += 1;
            self.state.epoch += 1;
        }
        *known = Some(version);
    }

    fn publish(&mut self) {
        self.state.version = lowest(self.versions.values());
        let is_one = self.versions.len() <= 1;
        self.state.by_namespace = (!is_one).then(|| Arc::new(self.versions.clone()));
        self.store.publish(self.state.clone());
    }

    fn apply_each(&mut self, deltas: Vec<Delta<K>>, initial: bool, applied: &mut ApplyOutcome<K>) {
        let mut olds: Vec<(Key, Option<Arc<K>>)> = Vec::with_capacity(deltas.len());
        for delta in deltas {
            match delta {
                Delta::Set { key, object, .. } if key.name().is_empty() => {
                    drop(object);
                    applied.nameless += 1;
                }
                Delta::Set { key, object } => {
                    let old = self.set(&key, &object);
                    applied.notifications.push(set_notification(
                        &key,
                        old.clone(),
                        object,
                        initial,
                    ));
                    olds.push((key, old));
                }
                Delta::Deleted(gone) => {
                    let key = gone.key().clone();
                    let old = self.state.objects.remove(&key);
                    self.note_undecodable(&gone);
                    let told = gone.cause().is_none() || old.is_some();
                    let gone =
                        if gone.cause().is_some() { gone.with_last(old.clone()) } else { gone };
                    if told {
                        let change = Change::Deleted(gone);
                        applied.notifications.push(Notification {
                            key: key.clone(),
                            change,
                            unchanged: false,
                        });
                    }
                    olds.push((key, old));
                }
                _ => {}
            }
        }
        self.index(&olds, applied);
    }

    /// Stores an object; returns the previous one.
    fn set(&mut self, key: &Key, object: &Arc<K>) -> Option<Arc<K>> {
        self.undecodable.remove(key);
        match self.state.objects.get_mut(key) {
            Some(place) => Some(std::mem::replace(place, Arc::clone(object))),
            None => self.state.objects.insert(key.clone(), Arc::clone(object)),
        }
    }

    fn note_undecodable(&mut self, gone: &Gone<K>) {
        match gone.cause() {
            Some(cause) => self.undecodable.insert(gone.key().clone(), Arc::clone(cause)),
            None => self.undecodable.remove(gone.key()),
        };
    }

    fn index(&mut self, olds: &[(Key, Option<Arc<K>>)], applied: &mut ApplyOutcome<K>) {
        if self.state.indexes.is_empty() {
            return;
        }
        let moved: Vec<IndexChange<'_, K>> = olds
            .iter()
            .map(|(key, old)| IndexChange {
                key,
                old: old.as_ref(),
                new: self.state.objects.get(key),
            })
            .collect();
        for index in &mut self.state.indexes {
            if let Some(next) = index.after(&moved, &mut applied.index_failures) {
                *index = next;
            }
        }
    }

    /// Replaces the lane's part of the store.
    fn replace(
        &mut self,
        scope: &LaneScope,
        all: Replacement<K>,
        initial: bool,
        applied: &mut ApplyOutcome<K>,
    ) {
        let empty = self.state.objects.is_empty();
        let sorted = all.items.is_sorted_by(|(a, _), (b, _)| a < b);
        let nameless = |(key, _): &(Key, Arc<K>)| key.name().is_empty();
        if initial && empty && sorted && !all.items.first().is_some_and(nameless) {
            self.populate(all, applied);
            return;
        }
        let mut olds = Vec::new();
        self.remove_missing(scope, &all, &mut olds, applied);
        for (key, object) in all.items {
            if key.name().is_empty() {
                applied.nameless += 1;
                continue;
            }
            let object = self.same_or(&key, object);
            let old = self.set(&key, &object);
            applied.notifications.push(set_notification(&key, old.clone(), object, initial));
            olds.push((key, old));
        }
        self.undecodable.retain(|key, _| !scope.contains(key));
        self.register(all.undecodable);
        self.index(&olds, applied);
    }

    /// The stored object if it is unchanged, so that its allocation is kept.
    fn same_or(&self, key: &Key, object: Arc<K>) -> Arc<K> {
        match self.state.objects.get(key) {
            Some(old) if is_same(&**old, &*object) => Arc::clone(old),
            _ => object,
        }
    }

    fn remove_missing(
        &mut self,
        scope: &LaneScope,
        all: &Replacement<K>,
        olds: &mut Vec<(Key, Option<Arc<K>>)>,
        applied: &mut ApplyOutcome<K>,
    ) {
        let listed: HashSet<&Key> = all.items.iter().map(|(key, _)| key).collect();
        let broken: HashMap<&Key, &Undecodable> =
            all.undecodable.iter().map(|bad| (&bad.key, bad)).collect();
        for key in scope.keys(&self.state) {
            if listed.contains(&key) {
                continue;
            }
            let old = self.state.objects.remove(&key);
            let gone = match broken.get(&key) {
                Some(cause) => Gone::undecodable((*cause).clone()).with_last(old.clone()),
                None => Gone::inferred(key.clone(), old.clone()),
            };
            let change = Change::Deleted(gone);
            applied.notifications.push(Notification { key: key.clone(), change, unchanged: false });
            olds.push((key, old));
        }
    }

    /// Applies the initial state: the store is empty, so nothing is compared.
    fn populate(&mut self, all: Replacement<K>, applied: &mut ApplyOutcome<K>) {
        for (key, object) in all.items {
            self.state.objects.insert(key, object);
        }
        self.register(all.undecodable);
        for index in &mut self.state.indexes {
            *index = index.over(&self.state.objects, &mut applied.index_failures);
        }
        applied.populated = true;
    }

    fn register(&mut self, undecodable: Vec<Undecodable>) {
        for bad in undecodable {
            self.undecodable.insert(bad.key.clone(), Arc::new(bad));
        }
    }
}

fn version_of<K: Cached>(delta: &Delta<K>) -> Option<ResourceVersion> {
    match delta {
        Delta::Set { object, .. } => Some(object.resource_version()),
        Delta::Deleted(gone) => gone.version(),
        _ => None,
    }
    .filter(|version| !version.is_empty())
}

fn is_same<K: Cached>(old: &K, new: &K) -> bool {
    let version = new.resource_version();
    !version.is_empty() && old.resource_version() == version && old.uid() == new.uid()
}

fn set_notification<K: Cached>(
    key: &Key,
    old: Option<Arc<K>>,
    new: Arc<K>,
    initial: bool,
) -> Notification<K> {
    let unchanged = old.as_ref().is_some_and(|old| is_same(&**old, &*new));
    let change = match old {
        Some(old) => Change::Updated { old, new },
        None => Change::Added { object: new, initial },
    };
    Notification { key: key.clone(), change, unchanged }
}

/// The lowest of several versions; `None` if one is missing or they cannot be ordered.
fn lowest<'a>(
    mut versions: impl Iterator<Item = &'a Option<ResourceVersion>>,
) -> Option<ResourceVersion> {
    let mut lowest = versions.next()?.clone()?;
    for version in versions {
        let version = version.as_ref()?;
        if version.compare(&lowest)?.is_lt() {
            lowest = version.clone();
        }
    }
    Some(lowest)
}
