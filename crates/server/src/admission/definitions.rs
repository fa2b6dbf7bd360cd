//! Admission of CustomResourceDefinitions and of their objects.
//!
//! River: body → **admit** → store. A definition records the versions in which objects may be stored
//! (S9.1, S9.4). An object is validated against the schema of the version it was written in (S9.11)
//! and then converted to the storage version.

use std::sync::Arc;

use headwater_api::Status;
use headwater_api::status::{FieldError, invalid};
use headwater_json::{Value, json};

use crate::admission::{Admit, Attempt};
use crate::kinds::custom::definition::Scale;
use crate::kinds::custom::{check, is_definition};
use crate::object::meta;

/// The admission step of definitions.
pub(crate) struct Definitions;

impl Admit for Definitions {
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status> {
        if !is_definition(attempt.kind) || !attempt.subresource.is_empty() {
            return Ok(());
        }
        if attempt.old.is_none() {
            attempt.new["status"] = json!({
                "conditions": null,
                "acceptedNames": { "plural": "", "kind": "" },
                "storedVersions": [],
            });
        }
        note_storage(attempt.new);
        Ok(())
    }
}

/// Adds the storage version to the stored versions.
fn note_storage(definition: &mut Value) {
    let versions = definition["spec"]["versions"].as_array();
    let storage = versions.into_iter().flatten().find(|version| version["storage"] == true);
    let Some(name) = storage.map(|version| version["name"].clone()) else { return };
    let stored = &mut definition["status"]["storedVersions"];
    if !stored.is_array() {
        *stored = json!([]);
    }
    if let Value::Array(stored) = stored
        && !stored.contains(&name)
    {
        stored.push(name);
    }
}

/// The last step for custom objects: converts them to the storage version.
pub(crate) struct StoredForm;

impl Admit for StoredForm {
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status> {
        if attempt.kind.conversion().is_some() {
            return Ok(()); // what the webhook makes is pruned
        }
        let stored = attempt.kind.stored.as_ref().and_then(|stored| stored.definition.as_ref());
        if let (Some(own), Some(stored)) = (&attempt.kind.definition, stored)
            && !Arc::ptr_eq(&own.schema, &stored.schema)
        {
            stored.schema.prune(attempt.new);
        }
        Ok(())
    }
}

/// Rejects a custom object with another `apiVersion` or `kind` before anything else (S2.6).
pub(crate) fn check_kind(attempt: &Attempt<'_>) -> Result<(), Status> {
    let kind = &attempt.kind.kind.kind;
    let found = attempt.new["kind"].as_str().unwrap_or_default();
    if attempt.kind.definition.is_none() || found == kind {
        return Ok(());
    }
    let error = FieldError::invalid("kind", &found.into(), format!("must be {kind}"));
    Err(invalid(&attempt.kind.group, found, meta(attempt.new, "name"), &[error]))
}

/// The validation errors of a definition or a custom object.
pub(crate) fn errors(attempt: &Attempt<'_>) -> Vec<FieldError> {
    if is_definition(attempt.kind) {
        return match attempt.subresource {
            "" => check::definition(attempt.new, attempt.old),
            _ => check::status(attempt.new),
        };
    }
    let Some(custom) = &attempt.kind.definition else { return Vec::new() };
    let (new, old) = (&*attempt.new, attempt.old);
    let mut errors = match attempt.subresource {
        "status" => custom.schema.validate_status(new, old),
        _ => custom.schema.validate(new, old),
    };
    if let Some(scale) = &custom.scale {
        errors.extend(check_scale(scale, attempt));
    }
    errors
}

/// Checks the types of the fields that the `scale` subresource maps.
fn check_scale(scale: &Scale, attempt: &Attempt<'_>) -> Vec<FieldError> {
    let place = |path: &str| {
        let mut steps = path.trim_start_matches('.').split('.');
        steps.try_fold(&*attempt.new, |value, step| value.get(step)).filter(|v| !v.is_null())
    };
    let mut errors = Vec::new();
    let spec = Some(&scale.spec_replicas_path).filter(|_| attempt.subresource != "status");
    for path in spec.into_iter().chain([&scale.status_replicas_path]) {
        let Some(value) = place(path) else { continue };
        let why = match value.as_i64() {
            None => format!("{path} accessor error: {value} is not an integer"),
            Some(..0) => "should be a non-negative integer".to_owned(),
            Some(replicas) if replicas > i64::from(i32::MAX) => {
                format!("should be less than or equal to {}", i32::MAX)
            }
            Some(_) => continue,
        };
        errors.push(FieldError::invalid(path.as_str(), value, why));
    }
    let selector = &scale.label_selector_path;
    if let Some(value) = place(selector).filter(|value| !selector.is_empty() && !value.is_string())
    {
        let why = format!("{selector} accessor error: {value} is not a string");
        errors.push(FieldError::invalid(selector.as_str(), &"".into(), why));
    }
    errors
}
