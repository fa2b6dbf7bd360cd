//! The bodies of the collector's writes.
//!
//! River: decision → **patches** → deletes and updates.
//! Promise: every body carries the resourceVersion that was examined.

use headwater_client::Cached;
use serde_json::{Value, json};

use crate::discovery::ObjectMetadata;

use super::decision::Propagation;

pub(super) fn options(object: &ObjectMetadata, how: Propagation) -> Value {
    json!({
        "propagationPolicy": how.as_str(),
        "preconditions": {
            "uid": object.uid(), "resourceVersion": object.resource_version().text(),
        },
    })
}

fn with_version(object: &ObjectMetadata, mut metadata: Value) -> Value {
    metadata["resourceVersion"] = object.resource_version().text().into();
    json!({ "metadata": metadata })
}

pub(super) fn without_owners(object: &ObjectMetadata, lost: &[String]) -> Value {
    let owners = object.metadata.owner_references.iter().flatten();
    let left: Vec<_> = owners.filter(|owner| !lost.contains(&owner.uid)).collect();
    with_version(object, json!({ "ownerReferences": left }))
}

pub(super) fn without_blocking_owners(object: &ObjectMetadata) -> Value {
    let mut owners = object.metadata.owner_references.clone().unwrap_or_default();
    for owner in &mut owners {
        owner.block_owner_deletion = Some(false);
    }
    with_version(object, json!({ "ownerReferences": owners }))
}

pub(super) fn without_finalizer(object: &ObjectMetadata, name: &str) -> Value {
    let finalizers = object.metadata.finalizers.iter().flatten();
    let left: Vec<_> = finalizers.filter(|known| *known != name).collect();
    with_version(object, json!({ "finalizers": left }))
}
