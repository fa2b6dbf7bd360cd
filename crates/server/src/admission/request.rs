//! The admission request, as webhooks and policies see it.

use std::sync::Arc;

use headwater_api::Status;
use headwater_api::options::{FieldValidation, WriteOptions};
use headwater_json::{Map, Value, json};
use headwater_schema::managed;

use super::authority::UserChecks;
use crate::backend::Backend;
use crate::front::identity::Identity;
use crate::kinds::registry::Served;
use crate::kinds::versions;
use crate::kinds::versions::from_storage;
use crate::random;
use crate::request::call::Call;

/// A request in admission: the user, the operation and the object.
#[derive(Clone, Copy)]
pub(crate) struct AdmissionRequest<'a> {
    /// The authorization checks of expressions.
    pub(crate) checks: &'a Arc<UserChecks>,
    pub(crate) call: &'a Call,
    pub(crate) kind: &'a Served,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) subresource: &'a str,
    pub(crate) operation: Operation,
    pub(crate) dry_run: bool,
    /// The options of the request, as an object of their kind.
    pub(crate) options: &'a Value,
}

/// The operation on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
}

impl Operation {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
        }
    }
}

/// The old and the new object in one version.
pub(crate) struct Versioned<'a> {
    pub(crate) kind: &'a Served,
    /// `null` for a delete.
    pub(crate) object: Value,
    /// `null` for a create.
    pub(crate) old: Value,
}

impl<'a> Versioned<'a> {
    /// Converts both from the version of admission.
    pub(crate) async fn new(
        backend: &Backend,
        kind: &'a Served,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<Versioned<'a>, Status> {
        let seen = async |value: Option<&Value>| match value {
            Some(value) => seen(backend, kind, value).await,
            None => Ok(Value::Null),
        };
        Ok(Versioned { kind, object: seen(object).await?, old: seen(old).await? })
    }
}

/// Converts an object to a version, with `managedFields` parsed.
async fn seen(backend: &Backend, kind: &Served, admitted: &Value) -> Result<Value, Status> {
    let mut value = versions::tree(backend.converter(), kind, admitted.clone()).await?;
    managed::unpack(&mut value);
    from_storage(kind, &mut value);
    Ok(value)
}

/// The `request` of an AdmissionReview; expressions see the same.
pub(crate) fn describe(asked: &AdmissionRequest<'_>, seen: &Versioned<'_>) -> Value {
    let mut request = Map::new();
    let mut set = |key: &str, value: Value| drop(request.insert(key.into(), value));
    set("uid", random::id().to_string().into());
    set("kind", kind(seen.kind));
    set("resource", resource(seen.kind));
    set("requestKind", kind(asked.kind));
    set("requestResource", resource(asked.kind));
    if !asked.subresource.is_empty() {
        set("subResource", asked.subresource.into());
        set("requestSubResource", asked.subresource.into());
    }
    if !asked.name.is_empty() {
        set("name", asked.name.into());
    }
    if !asked.namespace.is_empty() {
        set("namespace", asked.namespace.into());
    }
    set("operation", asked.operation.name().into());
    set("userInfo", user(&asked.call.identity));
    set("dryRun", asked.dry_run.into());
    set("options", asked.options.clone());
    Value::Object(request)
}

fn kind(kind: &Served) -> Value {
    json!({ "group": kind.group, "version": kind.version, "kind": kind.kind.kind })
}

fn resource(kind: &Served) -> Value {
    json!({ "group": kind.group, "version": kind.version, "resource": kind.plural })
}

fn user(identity: &Identity) -> Value {
    let mut user = json!({ "username": identity.user, "groups": identity.groups });
    if !identity.uid.is_empty() {
        user["uid"] = identity.uid.as_str().into();
    }
    if !identity.extra.is_empty() {
        user["extra"] = json!(identity.extra);
    }
    user
}

/// The options of a write, as reviews carry them.
pub(crate) fn write_options(operation: Operation, options: &WriteOptions) -> Value {
    let kind = match operation {
        Operation::Create => "CreateOptions",
        _ => "UpdateOptions",
    };
    let mut shown = json!({ "kind": kind, "apiVersion": "meta.k8s.io/v1" });
    if options.dry_run {
        shown["dryRun"] = json!(["All"]);
    }
    if !options.field_manager.is_empty() {
        shown["fieldManager"] = options.field_manager.as_str().into();
    }
    shown["fieldValidation"] = match options.field_validation {
        FieldValidation::Ignore => "Ignore",
        FieldValidation::Warn => "Warn",
        FieldValidation::Strict => "Strict",
    }
    .into();
    shown
}
