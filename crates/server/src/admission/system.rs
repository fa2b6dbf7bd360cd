//! Fields that the server sets: defaults, system metadata, addresses.

use headwater_api::Status;
use headwater_api::clock::rfc3339;
use headwater_json::{Map, Value};
use headwater_schema::defaults;

use super::{Admit, Attempt};
use crate::kinds::registry::Served;
use crate::object::metadata;
use crate::random;

/// Applies Kubernetes' defaults.
pub(super) struct SystemDefaults;

impl Admit for SystemDefaults {
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status> {
        if !attempt.kind.custom {
            defaults::apply(attempt.kind.storage(), attempt.new, attempt.old);
        }
        Ok(())
    }
}

/// Sets the metadata that clients cannot write (S2.2, S2.14, S2.50).
pub(super) struct SystemFields;

impl Admit for SystemFields {
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status> {
        match attempt.old {
            None => on_create(attempt),
            Some(old) => on_update(attempt, old),
        }
        Ok(())
    }
}

fn on_create(attempt: &mut Attempt<'_>) {
    let kind = attempt.kind;
    if kind.custom && kind.has_status() {
        attempt.new.as_object_mut().map(|object| object.remove("status"));
    }
    let metadata = metadata(attempt.new);
    for key in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "resourceVersion"] {
        metadata.remove(key);
    }
    metadata.insert("uid".into(), random::id().to_string().into());
    metadata.insert("creationTimestamp".into(), rfc3339(attempt.now).into());
    if kind.traits.generation {
        metadata.insert("generation".into(), 1.into());
    }
    // Last: a Job is labelled with its uid.
    defaults::prepare_for_create(kind.storage(), attempt.new);
}

fn on_update(attempt: &mut Attempt<'_>, old: &Value) {
    if matches!(attempt.subresource, "" | "scale") {
        defaults::prepare_for_update(attempt.kind.storage(), attempt.new, old);
    }
    share_unchanged(attempt.new, old);
    let before = &old["metadata"];
    let metadata = metadata(attempt.new);
    metadata.remove("selfLink");
    for key in ["creationTimestamp", "generation"] {
        copy(metadata, before, key);
    }
    if metadata.get("uid").and_then(Value::as_str).is_none_or(str::is_empty) {
        copy(metadata, before, "uid");
    }
    for key in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
        if metadata.get(key).is_none_or(Value::is_null) {
            copy(metadata, before, key);
        }
    }
    // A binding is no change of what was asked for.
    let is_wanted_state = !matches!(attempt.subresource, "status" | "binding");
    if attempt.kind.traits.generation && is_wanted_state {
        let generation = before["generation"].as_i64().unwrap_or(0);
        if spec_changed(attempt.kind, attempt.new, old) {
            let metadata = self::metadata(attempt.new);
            metadata.insert("generation".into(), (generation + 1).into());
        }
    }
}

/// Shares the members that an update leaves as they are with the stored object: the steps that
/// follow compare both several times, and shared members are equal at once.
fn share_unchanged(new: &mut Value, old: &Value) {
    for (key, value) in new.as_object_mut().into_iter().flatten() {
        match old.get(key.as_str()) {
            Some(old) if *old == *value => *value = old.clone(),
            _ => {}
        }
    }
}

fn copy(metadata: &mut Map, before: &Value, key: &str) {
    match before.get(key) {
        Some(value) => metadata.insert(key.into(), value.clone()),
        None => metadata.remove(key),
    };
}

/// Whether the desired state differs: for built-in kinds the spec, for custom ones everything but
/// metadata and, if it has its own subresource, status.
fn spec_changed(kind: &Served, new: &Value, old: &Value) -> bool {
    if !kind.custom {
        // A Deployment's annotations are copied to its ReplicaSets.
        let is_deployment = kind.plural == "deployments";
        return new.get("spec") != old.get("spec")
            || (is_deployment && new["metadata"]["annotations"] != old["metadata"]["annotations"]);
    }
    let differs = |key: &str| new.get(key) != old.get(key);
    let skipped = |key: &str| {
        matches!(key, "metadata" | "apiVersion" | "kind") || (key == "status" && kind.has_status())
    };
    let mut keys = [new, old].into_iter().filter_map(Value::as_object).flat_map(Map::keys);
    keys.any(|key| !skipped(key) && differs(key))
}
