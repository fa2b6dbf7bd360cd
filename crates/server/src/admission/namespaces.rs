//! Rules of namespaces and of creation in them (S2.8, S10.1 to S10.4).

use headwater_api::status::{self as api_status, Cause, FieldError};
use headwater_api::{Status, name};
use headwater_cache::Cache;
use headwater_json::{Value, json};

use super::{Admit, Attempt};
use crate::answer::status;
use crate::kinds::registry::Served;
use crate::object::{is_deleting, meta, metadata};

/// Rejects creation in a namespace that does not exist or is terminating (S2.8, S10.2).
pub(super) struct Lifecycle;

impl Admit for Lifecycle {
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status> {
        if attempt.namespace.is_empty() || attempt.old.is_some() || attempt.is_namespace_new {
            return Ok(());
        }
        check_namespace(attempt.cache, attempt.kind, attempt.namespace, meta(attempt.new, "name"))
    }
}

/// Checks whether objects may be created in a namespace.
fn check_namespace(
    cache: &Cache,
    kind: &Served,
    namespace: &str,
    name: &str,
) -> Result<(), Status> {
    let namespaces = cache.resource("/registry/core/namespaces/");
    let snapshot = cache.snapshot(&namespaces);
    let Some(object) = snapshot.get(namespace) else {
        let message = format!("namespaces \"{namespace}\" not found");
        return Err(Status::failure(404, "NotFound", message).with_details(api_status::Details {
            name: namespace.into(),
            kind: "namespaces".into(),
            ..api_status::Details::default()
        }));
    };
    if !object.is_deleting() {
        return Ok(());
    }
    let why = format!(
        "unable to create new content in namespace {namespace} because it is being terminated"
    );
    let mut status = status::forbidden(&kind.group, &kind.plural, name, &why);
    let cause = Cause {
        reason: "NamespaceTerminating".into(),
        message: format!("namespace {namespace} is being terminated"),
        field: "metadata.namespace".into(),
    };
    status.details.get_or_insert_default().causes.push(cause);
    Err(status)
}

/// The rules of Namespace objects (S10.1, S10.4).
pub(super) struct NamespaceLabels;

impl Admit for NamespaceLabels {
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status> {
        if !is_namespace(attempt.kind) {
            return Ok(());
        }
        let name = meta(attempt.new, "name").to_owned();
        let labels = metadata(attempt.new).entry("labels").or_insert_with(|| json!({}));
        if let Some(labels) = labels.as_object_mut() {
            labels.insert("kubernetes.io/metadata.name".into(), name.into());
        }
        Ok(())
    }
}

/// The validation errors of Namespace subresources: an invalid phase, or finalizers without a
/// qualified name (S10.3).
pub(super) fn errors(subresource: &str, namespace: &Value) -> Vec<FieldError> {
    if subresource == "finalize" {
        let finalizers = namespace["spec"]["finalizers"].as_array().into_iter().flatten();
        let names = finalizers.map(|name| name.as_str().unwrap_or_default());
        let checked = names.enumerate().flat_map(|(index, finalizer)| {
            name::finalizer(finalizer, &format!("spec.finalizers[{index}]"))
        });
        return checked.collect();
    }
    let (phase, when) = match is_deleting(namespace) {
        true => ("Terminating", "not empty"),
        false => ("Active", "empty"),
    };
    let found = namespace["status"]["phase"].as_str().unwrap_or_default();
    if found == phase {
        return Vec::new();
    }
    let why = format!("may only be '{phase}' if `deletionTimestamp` is {when}");
    vec![FieldError::invalid("status.Phase", &found.into(), why)]
}

/// Whether the kind is Namespace.
pub(crate) fn is_namespace(kind: &Served) -> bool {
    kind.plural == "namespaces" && kind.group.is_empty()
}
