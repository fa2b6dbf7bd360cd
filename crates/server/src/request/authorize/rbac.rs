//! RBAC: roles and bindings decide who may do what (S8.10).
//!
//! River: roles and bindings in the watch cache → **rbac** → decision.
//! Promise: a decision takes into account every change that the cache has applied. Only what changed
//! is compiled again; no request lists or scans roles or bindings.

pub(crate) mod defaults;
pub(crate) mod index;
pub(crate) mod rule;
mod rule_set;

use headwater_api::Object;
use headwater_cache::Cache;
use headwater_store::key;
use serde::de::DeserializeOwned;

use super::followed::{CurrentIndex, FollowedIndex, ObjectIndex};
use index::RbacIndex;

/// The API group of roles and bindings.
pub(crate) const GROUP: &str = "rbac.authorization.k8s.io";

/// The kinds, in the order of the index.
const KINDS: [&str; 4] = ["clusterroles", "roles", "clusterrolebindings", "rolebindings"];

/// All roles and bindings, followed in the watch cache.
pub(crate) struct Rbac(FollowedIndex<RbacIndex, { KINDS.len() }>);

impl Rbac {
    pub(crate) fn new(cache: &Cache) -> Rbac {
        Rbac(FollowedIndex::new(cache, KINDS.map(|plural| key::collection(GROUP, plural))))
    }

    /// The index with every change that the cache has applied.
    pub(crate) fn current(&self) -> CurrentIndex<'_, RbacIndex, { KINDS.len() }> {
        self.0.current()
    }
}

impl ObjectIndex for RbacIndex {
    fn set(&mut self, kind: usize, object: &Object, exists: bool) {
        let (namespace, name) = (object.namespace(), object.name());
        match KINDS[kind] {
            "clusterroles" | "roles" => {
                self.set_role(namespace, name, exists.then(|| read(object)).flatten());
            }
            _ => self.set_binding(namespace, name, exists.then(|| read(object)).flatten()),
        }
    }

    /// Words stay numbered when the last role that uses them is gone.
    fn waste(&self) -> usize {
        self.words()
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
