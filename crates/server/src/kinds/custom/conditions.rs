//! Changes to the status and metadata of a definition by the server.

use headwater_api::clock::rfc3339;
use headwater_json::{Value, json};
use jiff::Timestamp;

use super::definition::{self, DefinitionNames};
use super::names;
use crate::object::metadata;

/// Marks a definition for deletion: a finalizer keeps it until its objects are deleted (S9.30).
pub(crate) fn begin_deletion(definition: &mut Value, now: Timestamp) {
    let condition = names::condition(
        "Terminating",
        "True",
        "InstanceDeletionPending",
        "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
    );
    set_condition(definition, &condition, || now);
    let metadata = metadata(definition);
    metadata.insert("deletionTimestamp".into(), rfc3339(now).into());
    let finalizers = metadata.entry("finalizers").or_insert_with(|| json!([]));
    if let Value::Array(finalizers) = finalizers
        && !finalizers.iter().any(|finalizer| finalizer == definition::CLEANUP)
    {
        finalizers.push(definition::CLEANUP.into());
    }
}

/// Writes the wanted status into a definition.
pub(crate) fn conclude(object: &mut Value, wanted: &names::Wanted, now: Timestamp) {
    object["status"]["acceptedNames"] = show(&wanted.accepted);
    for condition in &wanted.conditions {
        set_condition(object, condition, || now);
    }
}

fn show(names: &DefinitionNames) -> Value {
    let mut shown = json!({ "plural": names.plural, "kind": names.kind });
    for (key, text) in [("singular", &names.singular), ("listKind", &names.list_kind)] {
        if !text.is_empty() {
            shown[key] = json!(text);
        }
    }
    for (key, list) in [("shortNames", &names.short_names), ("categories", &names.categories)] {
        if !list.is_empty() {
            shown[key] = json!(list);
        }
    }
    shown
}

/// Sets a condition; its transition time changes only with its status.
pub(crate) fn set_condition(
    object: &mut Value,
    condition: &definition::DefinitionCondition,
    now: impl FnOnce() -> Timestamp,
) {
    let conditions = &mut object["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(list) = conditions.as_array_mut() else { return };
    let at = list.iter().position(|other| other["type"] == condition.kind.as_str());
    let before =
        at.map(|at| &list[at]).filter(|before| before["status"] == condition.status.as_str());
    let since = before.and_then(|before| before["lastTransitionTime"].as_str());
    let shown = json!({
        "type": condition.kind,
        "status": condition.status,
        "lastTransitionTime": since.map_or_else(|| rfc3339(now()), str::to_owned),
        "reason": condition.reason,
        "message": condition.message,
    });
    match at {
        Some(at) => list[at] = shown,
        None => list.push(shown),
    }
}
