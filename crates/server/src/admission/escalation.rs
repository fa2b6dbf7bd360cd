//! Escalation checks: nobody grants what they do not hold (S8.12).
//!
//! River: mutating extensions → **escalation** → validation. A role may contain only what its author
//! holds, unless the author may `escalate` it; a binding may name only such a role, unless the author
//! may `bind` it.

use headwater_api::Status;
use headwater_json::{Value, json};
use http::Method;

use super::Attempt;
use crate::answer::status;
use crate::backend::Backend;
use crate::front::identity::MASTERS;
use crate::object::{meta, part};
use crate::request::authorize::Attributes;
use crate::request::authorize::rbac::index::{RoleReference, StoredBinding, StoredRole};
use crate::request::authorize::rbac::rule::{PolicyRule, escalation, not_covered};
use crate::request::call::Call;

/// Rejects roles and bindings that grant more than the user holds.
pub(super) async fn check(
    attempt: &Attempt<'_>,
    call: &Call,
    backend: &Backend,
) -> Result<(), Status> {
    if call.identity.is_in(MASTERS) || attempt.old.is_some_and(|old| is_same(attempt.new, old)) {
        return Ok(());
    }
    let grant = Grant { attempt, call, backend };
    match &*attempt.kind.plural {
        "roles" | "clusterroles" => grant.check_role().await,
        "rolebindings" | "clusterrolebindings" => grant.check_binding().await,
        _ => Ok(()),
    }
}

/// Whether only the fields that garbage collection changes differ.
fn is_same(new: &Value, old: &Value) -> bool {
    let rest = |value: &Value| {
        let mut value = value.clone();
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            for field in ["finalizers", "ownerReferences", "managedFields", "resourceVersion"] {
                metadata.remove(field);
            }
        }
        value
    };
    rest(new) == rest(old)
}

/// Whether the rules of a role come from others.
fn is_aggregated(role: &Value) -> bool {
    role["aggregationRule"]["clusterRoleSelectors"].is_array()
}

struct Grant<'a> {
    attempt: &'a Attempt<'a>,
    call: &'a Call,
    backend: &'a Backend,
}

impl Grant<'_> {
    async fn check_role(&self) -> Result<(), Status> {
        let Attempt { kind, namespace, new, old, .. } = self.attempt;
        // The name in the path: a POST has none, so `escalate` on some names does not allow it.
        let name = if self.call.method == Method::POST { "" } else { meta(new, "name") };
        if self.may("escalate", &kind.plural, namespace, name).await {
            return Ok(());
        }
        let Some(role) = part::<StoredRole>(&json!({ "rules": new["rules"] })) else {
            return Ok(());
        };
        self.check_rules(&role.rules)?;
        if is_aggregated(new) || old.is_some_and(is_aggregated) {
            // Others fill it, and may take rights back: only who holds everything may change that.
            self.check_rules(&PolicyRule::everything()).map_err(|_| {
                self.refused("must have cluster-admin privileges to use the aggregationRule")
            })?;
        }
        Ok(())
    }

    async fn check_binding(&self) -> Result<(), Status> {
        let Attempt { namespace, new, .. } = self.attempt;
        let Some(role) = part::<StoredBinding>(new).map(|binding| binding.role) else {
            return Ok(());
        };
        let resource = match role.kind.as_str() {
            "ClusterRole" => "clusterroles",
            _ => "roles",
        };
        if self.may_bind(resource, namespace, &role).await {
            return Ok(());
        }
        let rules = self.backend.access().rbac().current().rules_in(&role, namespace);
        let Some(rules) = rules else {
            let kind = role.kind.to_ascii_lowercase();
            return Err(status::unknown_object(&kind, "rbac.authorization.k8s.io", &role.name));
        };
        self.check_rules(&rules)
    }

    async fn may(&self, verb: &str, resource: &str, namespace: &str, name: &str) -> bool {
        let (group, subresource) = (&*self.attempt.kind.group, "");
        let attributes =
            Attributes::Resource { verb, group, resource, subresource, namespace, name };
        self.backend.access().allows(&self.call.identity, attributes).await
    }

    async fn may_bind(&self, resource: &str, namespace: &str, role: &RoleReference) -> bool {
        self.may("bind", resource, namespace, &role.name).await
    }

    /// Whether the user holds all of these rights in the namespace.
    fn check_rules(&self, rules: &[PolicyRule]) -> Result<(), Status> {
        let identity = &self.call.identity;
        let (held, unresolved) = {
            let index = self.backend.access().rbac().current();
            let namespace = self.attempt.namespace;
            (index.rules_of(identity, namespace), index.missing_roles(identity, namespace))
        };
        let missing = not_covered(&held, rules);
        if missing.is_empty() {
            return Ok(());
        }
        let mut why = escalation(&identity.user, &identity.groups, &missing);
        match unresolved.as_slice() {
            [] => {}
            [one] => why.push_str(&format!("; resolution errors: [{one}]")),
            many => why.push_str(&format!("; resolution errors: [[{}]]", many.join(", "))),
        }
        Err(self.refused(&why))
    }

    fn refused(&self, why: &str) -> Status {
        let kind = self.attempt.kind;
        status::forbidden(&kind.group, &kind.plural, meta(self.attempt.new, "name"), why)
    }
}
