//! Rights on the parameters of policies: nobody reads objects through a policy.
//!
//! River: validation → **parameter rights** → validating extensions. A policy evaluates expressions over
//! its parameters, and its messages may contain them: without this check, the right to write policies
//! would be the right to read every Secret.

use headwater_api::Status;
use headwater_api::status::{FieldError, invalid};
use headwater_json::Value;
use headwater_store::key;

use super::ParameterKind;
use crate::admission::Attempt;
use crate::backend::Backend;
use crate::front::identity::{Identity, MASTERS};
use crate::object::{meta, tree};
use crate::request::authorize::{AccessRequest, Attributes};

/// Rejects policies and bindings whose parameters the user may not read.
pub(in crate::admission) async fn check(
    attempt: &Attempt<'_>,
    identity: &Identity,
    backend: &Backend,
) -> Result<(), Status> {
    let policies = match &*attempt.kind.plural {
        "validatingadmissionpolicybindings" => "validatingadmissionpolicies",
        "mutatingadmissionpolicybindings" => "mutatingadmissionpolicies",
        _ => "",
    };
    let field = if policies.is_empty() { "paramKind" } else { "paramRef" };
    let spec = &attempt.new["spec"];
    let is_same = attempt.old.is_some_and(|old| {
        let old = &old["spec"];
        old[field] == spec[field] && old["policyName"] == spec["policyName"]
    });
    if !spec[field].is_object() || is_same || identity.is_in(MASTERS) {
        return Ok(());
    }
    let (user, text) = (&identity.user, |key| spec[field][key].as_str().unwrap_or_default());
    let (kind, place, why) = match policies {
        "" => {
            let (version, kind) = (text("apiVersion"), text("kind"));
            let why = format!(
                "user {user} must have \"get\" permission on all objects of the referenced \
                 paramKind (kind={kind}, apiVersion={version})"
            );
            (ParameterKind::of(spec), ("*", "*"), why)
        }
        policies => {
            let policy = policy(attempt, policies, spec["policyName"].as_str().unwrap_or_default());
            let kind = policy.and_then(|policy| ParameterKind::of(&policy["spec"]));
            let why = format!(
                "user {user} does not have \"get\" permission on the object referenced by paramRef"
            );
            (kind, (text("namespace"), text("name")), why)
        }
    };
    if may_read(backend, identity, kind.as_ref(), place).await {
        return Ok(());
    }
    let error = FieldError::forbidden(format!("spec.{field}"), &why);
    let kind = attempt.kind;
    Err(invalid(&kind.group, &kind.kind.kind, meta(attempt.new, "name"), &[error]))
}

/// The policy of a binding, if it exists.
fn policy(attempt: &Attempt<'_>, plural: &str, name: &str) -> Option<Value> {
    let prefix = key::collection(&attempt.kind.group, plural);
    let snapshot = attempt.cache.snapshot(&attempt.cache.resource(&prefix));
    tree(snapshot.get(name)?.as_slice()).ok()
}

/// Whether a user may get objects of a kind. Of a kind that is not known, every kind that it may be.
async fn may_read(
    backend: &Backend,
    identity: &Identity,
    kind: Option<&ParameterKind>,
    (namespace, name): (&str, &str),
) -> bool {
    let registry = backend.registry();
    let row =
        kind.and_then(|kind| registry.find_kind(&kind.group, &kind.version, &kind.kind).cloned());
    let attributes = Attributes::Resource {
        verb: "get",
        group: kind.map_or("*", |kind| &kind.group),
        resource: row.as_ref().map_or("*", |row| &row.plural),
        subresource: "",
        namespace,
        name,
    };
    let version = kind.map_or("*", |kind| &kind.version);
    let asked = AccessRequest { version, ..AccessRequest::about(attributes) };
    backend.access().decide(identity, &asked).await.is_allowed()
}
