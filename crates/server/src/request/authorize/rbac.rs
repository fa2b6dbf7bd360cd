//! RBAC: roles and bindings decide who may do what (S8.10).
//!
//! River: roles and bindings in the watch cache → **rbac** → decision.
//! Promise: a decision takes into account every change that the cache has applied. Only what changed
//! is compiled again; no request lists or scans roles or bindings.

pub(crate) mod index;
pub(crate) mod rule;
mod rule_set;

use std::sync::{Arc, RwLock, RwLockReadGuard};

use headwater_api::{Object, Revision};
use headwater_cache::{Cache, Resource};
use headwater_store::{ChangeKind, key};
use serde::de::DeserializeOwned;

use crate::lock;
use index::RbacIndex;

/// The API group of roles and bindings.
pub(crate) const GROUP: &str = "rbac.authorization.k8s.io";

/// The kinds, in the order of [`Followed::at`].
const KINDS: [&str; 4] = ["clusterroles", "roles", "clusterrolebindings", "rolebindings"];

/// With more unused words than this the index is built from nothing, so that roles that come and go
/// do not fill the memory.
const WORDS_MAX: usize = 100_000;

/// The index and the revisions that it contains.
#[derive(Default)]
struct Followed {
    at: [Revision; KINDS.len()],
    index: RbacIndex,
    /// The number of words after the index was built from nothing.
    words: usize,
}

/// All roles and bindings, followed in the watch cache.
pub(crate) struct Rbac {
    cache: Cache,
    resources: [Arc<Resource>; KINDS.len()],
    followed: RwLock<Option<Followed>>,
}

/// The index, while it is read.
pub(crate) struct CurrentIndex<'a>(RwLockReadGuard<'a, Option<Followed>>);

impl std::ops::Deref for CurrentIndex<'_> {
    type Target = RbacIndex;

    fn deref(&self) -> &RbacIndex {
        &self.0.as_ref().expect("`current` builds it first").index
    }
}

impl Rbac {
    pub(crate) fn new(cache: &Cache) -> Rbac {
        Rbac {
            cache: cache.clone(),
            resources: KINDS.map(|plural| cache.resource(&key::collection(GROUP, plural))),
            followed: RwLock::default(),
        }
    }

    /// The index with every change that the cache has applied.
    pub(crate) fn current(&self) -> CurrentIndex<'_> {
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

    fn changed(&self) -> [Revision; KINDS.len()] {
        std::array::from_fn(|kind| self.resources[kind].changed())
    }

    fn catch_up(&self, changed: &[Revision; KINDS.len()]) {
        let mut followed = lock::write(&self.followed);
        if let Some(known) = &mut *followed {
            if known.contains(changed) {
                return;
            }
            if self.apply_changes(known).is_some() && known.index.words() < known.words + WORDS_MAX
            {
                return;
            }
        }
        *followed = Some(self.build());
    }

    /// Applies the changes since the last ones; `None` if the cache no longer has all of them.
    fn apply_changes(&self, known: &mut Followed) -> Option<()> {
        for (kind, resource) in self.resources.iter().enumerate() {
            let (changes, reached) = resource.changes_after(known.at[kind])?;
            for change in changes {
                let is_deleted = change.kind() == ChangeKind::Deleted;
                set(&mut known.index, kind, change.object(), !is_deleted);
            }
            known.at[kind] = reached;
        }
        Some(())
    }

    fn build(&self) -> Followed {
        // Read before the snapshots: a concurrent change is applied once more later.
        let mut built = Followed { at: self.changed(), ..Followed::default() };
        for (kind, resource) in self.resources.iter().enumerate() {
            for object in self.cache.snapshot(resource).iter("", None) {
                set(&mut built.index, kind, object, true);
            }
        }
        built.words = built.index.words();
        built
    }
}

impl Followed {
    fn contains(&self, changed: &[Revision; KINDS.len()]) -> bool {
        self.at.iter().zip(changed).all(|(at, changed)| at >= changed)
    }
}

/// Sets or removes a role or a binding.
fn set(index: &mut RbacIndex, kind: usize, object: &Object, exists: bool) {
    let (namespace, name) = (object.namespace(), object.name());
    match KINDS[kind] {
        "clusterroles" | "roles" => {
            index.set_role(namespace, name, exists.then(|| read(object)).flatten());
        }
        _ => index.set_binding(namespace, name, exists.then(|| read(object)).flatten()),
    }
}

/// A stored object; one that cannot be read grants nothing.
fn read<T: DeserializeOwned>(object: &Object) -> Option<T> {
    serde_json::from_slice(object.as_slice())
        .inspect_err(|error| {
            tracing::warn!(name = object.key(), %error, "a role or binding cannot be read");
        })
        .ok()
}
