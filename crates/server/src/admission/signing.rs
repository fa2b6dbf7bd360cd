//! Certificate signing requests: who asked for a certificate, who may approve and who may sign it.
//!
//! River: system fields → **signing** → validation, webhooks. Promise: the user in a request is the user
//! that sent it, whatever the body says, and it never changes: signers trust it. An approval and a
//! certificate are never withdrawn.

use headwater_api::Status;
use headwater_api::clock::rfc3339;
use headwater_api::status::{FieldError, invalid};
use headwater_json::{Value, json};
use jiff::Timestamp;

use super::{Admit, Attempt};
use crate::answer::status;
use crate::backend::Backend;
use crate::front::certificates::{SERVER_CLIENT, organizations};
use crate::front::identity::{Identity, MASTERS};
use crate::kinds::registry::Served;
use crate::object::meta;
use crate::request::authorize::Attributes;

const GROUP: &str = "certificates.k8s.io";
const PLURAL: &str = "certificatesigningrequests";

/// The conditions that only the `approval` subresource sets.
const APPROVAL: [&str; 2] = ["Approved", "Denied"];
/// The conditions that stay.
const FINAL: [&str; 3] = ["Approved", "Denied", "Failed"];

fn is_signing_request(kind: &Served) -> bool {
    kind.group == GROUP && kind.plural == PLURAL
}

/// Writes the user of a request into a new signing request (S8.15).
pub(super) fn name_requester(attempt: &mut Attempt<'_>, requester: &Identity) {
    if !is_signing_request(attempt.kind) || attempt.old.is_some() {
        return;
    }
    let Some(spec) = attempt.new.get_mut("spec").and_then(Value::as_object_mut) else { return };
    spec.insert("username".into(), requester.user.clone().into());
    let optional = [
        ("uid", (!requester.uid.is_empty()).then(|| requester.uid.clone().into())),
        ("groups", (!requester.groups.is_empty()).then(|| json!(requester.groups))),
        ("extra", (!requester.extra.is_empty()).then(|| json!(requester.extra))),
    ];
    for (key, value) in optional {
        match value {
            Some(value) => drop(spec.insert(key.into(), value)),
            None => drop(spec.remove(key)),
        }
    }
}

/// Rejects requests for a certificate of this server's administrators.
pub(super) struct SubjectRestriction;

impl Admit for SubjectRestriction {
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status> {
        let spec = &attempt.new["spec"];
        if !is_signing_request(attempt.kind)
            || attempt.old.is_some()
            || spec["signerName"] != SERVER_CLIENT
        {
            return Ok(());
        }
        let why = match organizations(spec["request"].as_str().unwrap_or_default()) {
            None => "unable to parse csr: its subject or its signature is invalid".to_owned(),
            Some(groups) if groups.iter().any(|group| group == MASTERS) => {
                format!("use of {SERVER_CLIENT} signer with {MASTERS} group is not allowed")
            }
            Some(_) => return Ok(()),
        };
        Err(status::forbidden(GROUP, PLURAL, meta(attempt.new, "name"), &why))
    }
}

/// The conditions and the certificate of a signing request.
pub(super) struct SigningStatus;

impl Admit for SigningStatus {
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status> {
        let Some(old) = attempt.old.filter(|_| is_signing_request(attempt.kind)) else {
            return Ok(());
        };
        if !matches!(attempt.subresource, "status" | "approval") {
            return Ok(());
        }
        if attempt.subresource == "status" {
            keep_approval(attempt.new, old);
        }
        set_times(attempt.new, old, attempt.now);
        let errors = errors(attempt.new, old);
        if errors.is_empty() {
            return Ok(());
        }
        let name = meta(attempt.new, "name");
        Err(invalid(GROUP, &attempt.kind.kind.kind, name, &errors))
    }
}

fn conditions(request: &Value) -> &[Value] {
    request["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn condition<'a>(request: &'a Value, name: &Value) -> Option<&'a Value> {
    conditions(request).iter().find(|condition| condition["type"] == *name)
}

fn is_approval(condition: &Value) -> bool {
    condition["type"].as_str().is_some_and(|name| APPROVAL.contains(&name))
}

/// Restores the approval, which a write of the status does not change.
fn keep_approval(new: &mut Value, old: &Value) {
    let kept = conditions(old).iter().filter(|held| is_approval(held)).cloned();
    let others = conditions(new).iter().filter(|held| !is_approval(held)).cloned();
    let all: Vec<Value> = kept.chain(others).collect();
    if !all.is_empty() || new["status"].get("conditions").is_some() {
        new["status"]["conditions"] = all.into();
    }
}

/// Sets the times that a condition lacks.
fn set_times(new: &mut Value, old: &Value, now: Timestamp) {
    let now = Value::from(rfc3339(now));
    let list = new.get_mut("status").and_then(|status| status.get_mut("conditions"));
    for condition in list.and_then(Value::as_array_mut).into_iter().flatten() {
        if condition["lastUpdateTime"].is_null() {
            condition["lastUpdateTime"] = now.clone();
        }
        if condition["lastTransitionTime"].is_null() {
            let before = self::condition(old, &condition["type"]);
            let since = before
                .filter(|before| before["status"] == condition["status"])
                .map(|before| before["lastTransitionTime"].clone());
            condition["lastTransitionTime"] =
                since.filter(Value::is_string).unwrap_or_else(|| now.clone());
        }
    }
}

fn errors(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let has = |request: &Value, name: &str| condition(request, &name.into()).is_some();
    for (index, condition) in conditions(new).iter().enumerate() {
        let is_final = condition["type"].as_str().is_some_and(|name| FINAL.contains(&name));
        if is_final && condition["status"] != "True" {
            let field = format!("status.conditions[{index}].status");
            errors.push(FieldError::not_supported(field, &condition["status"], &["True"]));
        }
    }
    if APPROVAL.iter().all(|name| has(new, name)) {
        let why = "Approved and Denied conditions are mutually exclusive";
        errors.push(FieldError::invalid("status.conditions", &"Denied".into(), why));
    }
    for name in FINAL.iter().filter(|name| has(old, name) && !has(new, name)) {
        let why = format!("updates may not remove a condition of type {name:?}");
        errors.push(FieldError::forbidden("status.conditions", &why));
    }
    let certificate = &old["status"]["certificate"];
    if !certificate.is_null() && new["status"]["certificate"] != *certificate {
        let now = &new["status"]["certificate"];
        errors.push(FieldError::invalid("status.certificate", now, "field is immutable"));
    }
    errors
}

/// Rejects approvals and certificates by users without the right on the signer.
pub(super) async fn check_rights(
    attempt: &Attempt<'_>,
    identity: &Identity,
    backend: &Backend,
) -> Result<(), Status> {
    let Some(old) = attempt.old.filter(|_| is_signing_request(attempt.kind)) else { return Ok(()) };
    let status = |request: &Value, key: &str| request["status"][key].clone();
    let changes = |key: &str| status(attempt.new, key) != status(old, key);
    let verb = match attempt.subresource {
        "approval" => "approve",
        "status" if changes("certificate") || changes("conditions") => "sign",
        _ => return Ok(()),
    };
    let signer = old["spec"]["signerName"].as_str().unwrap_or_default();
    let domain = signer.split('/').next().unwrap_or_default();
    for name in [signer, &format!("{domain}/*")] {
        let attributes = Attributes::Resource {
            verb,
            group: GROUP,
            resource: "signers",
            subresource: "",
            namespace: "",
            name,
        };
        if backend.access().allows(identity, attributes).await {
            return Ok(());
        }
    }
    let why = format!("user not permitted to {verb} requests with signerName {signer:?}");
    Err(status::forbidden(GROUP, PLURAL, meta(attempt.new, "name"), &why))
}
