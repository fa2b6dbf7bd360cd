//! An index over the objects of some kinds that follows the watch cache.
//!
//! River: watch cache → **followed** → roles and bindings, the pods of nodes.
//! Promise: the index contains every change that the cache has applied. Only what changed is read
//! again; no request lists or scans objects.

use std::ops::Deref;
use std::sync::{Arc, RwLock, RwLockReadGuard};

use headwater_api::{Object, Revision};
use headwater_cache::{Cache, Resource};
use headwater_store::ChangeKind;

use crate::lock;

/// With so much more waste than after it was built, an index is built from nothing.
const WASTE_MAX: usize = 100_000;

/// An index over objects of several kinds, which are numbered.
pub(super) trait ObjectIndex: Default {
    /// Sets or removes an object of a kind.
    fn set(&mut self, kind: usize, object: &Object, exists: bool);

    /// The number of entries that only building it from nothing removes.
    fn waste(&self) -> usize {
        0
    }
}

/// An index and the revisions that it contains.
struct Followed<I, const KINDS: usize> {
    at: [Revision; KINDS],
    index: I,
    /// Its waste after it was built from nothing.
    waste: usize,
}

/// An index over the objects of `KINDS` kinds.
pub(super) struct FollowedIndex<I, const KINDS: usize> {
    cache: Cache,
    resources: [Arc<Resource>; KINDS],
    followed: RwLock<Option<Followed<I, KINDS>>>,
}

/// The index, while it is read.
pub(crate) struct CurrentIndex<'a, I, const KINDS: usize>(
    RwLockReadGuard<'a, Option<Followed<I, KINDS>>>,
);

impl<I, const KINDS: usize> Deref for CurrentIndex<'_, I, KINDS> {
    type Target = I;

    fn deref(&self) -> &I {
        &self.0.as_ref().expect("`current` builds it first").index
    }
}

impl<I: ObjectIndex, const KINDS: usize> FollowedIndex<I, KINDS> {
    /// Follows the collections with these prefixes. Nothing is read before the first question.
    pub(super) fn new(cache: &Cache, prefixes: [String; KINDS]) -> FollowedIndex<I, KINDS> {
        FollowedIndex {
            cache: cache.clone(),
            resources: prefixes.map(|prefix| cache.resource(&prefix)),
            followed: RwLock::default(),
        }
    }

    /// The index with every change that the cache has applied.
    pub(super) fn current(&self) -> CurrentIndex<'_, I, KINDS> {
        let changed = self.changed();
        let known = lock::read(&self.followed);
        // Another request may have read newer changes meanwhile.
        if known.as_ref().is_some_and(|known| known.contains(&changed)) {
            return CurrentIndex(known);
        }
        drop(known);
        self.catch_up(&changed);
        CurrentIndex(lock::read(&self.followed))
    }

    fn changed(&self) -> [Revision; KINDS] {
        std::array::from_fn(|kind| self.resources[kind].changed())
    }

    fn catch_up(&self, changed: &[Revision; KINDS]) {
        let mut followed = lock::write(&self.followed);
        if let Some(known) = &mut *followed {
            if known.contains(changed) {
                return;
            }
            if self.apply_changes(known).is_some() && known.index.waste() < known.waste + WASTE_MAX
            {
                return;
            }
        }
        *followed = Some(self.build());
    }

    /// Applies the changes since the last ones; `None` if the cache no longer has all of them.
    fn apply_changes(&self, known: &mut Followed<I, KINDS>) -> Option<()> {
        for (kind, resource) in self.resources.iter().enumerate() {
            let (changes, reached) = resource.changes_after(known.at[kind])?;
            for change in changes {
                let is_deleted = change.kind() == ChangeKind::Deleted;
                known.index.set(kind, change.object(), !is_deleted);
            }
            known.at[kind] = reached;
        }
        Some(())
    }

    fn build(&self) -> Followed<I, KINDS> {
        // Read before the snapshots: a concurrent change is applied once more later.
        let mut built = Followed { at: self.changed(), index: I::default(), waste: 0 };
        for (kind, resource) in self.resources.iter().enumerate() {
            for object in self.cache.snapshot(resource).iter("", None) {
                built.index.set(kind, object, true);
            }
        }
        built.waste = built.index.waste();
        built
    }
}

impl<I, const KINDS: usize> Followed<I, KINDS> {
    fn contains(&self, changed: &[Revision; KINDS]) -> bool {
        self.at.iter().zip(changed).all(|(at, changed)| at >= changed)
    }
}
