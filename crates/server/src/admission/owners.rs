//! Rules of owner references: changing them requires the right to delete the object.
//!
//! Deleting an owner deletes its dependents, and a dependent may block the deletion of its owner. So
//! setting `blockOwnerDeletion` also requires the right to set finalizers on the owner.
//!
//! River: validation → **owners** → validating policies.

use std::collections::HashSet;

use futures::FutureExt;
use futures::future::BoxFuture;
use headwater_api::Status;
use headwater_json::Value;

use super::Attempt;
use crate::answer::status;
use crate::backend::Backend;
use crate::front::identity::Identity;
use crate::kinds::registry::{Registry, Served};
use crate::object::meta;
use crate::request::authorize::{AccessControl, Attributes};

/// Rejects changes of owner references that exceed the user's rights.
pub(super) async fn check(
    attempt: &Attempt<'_>,
    identity: &Identity,
    backend: &Backend,
) -> Result<(), Status> {
    let (new, old) = (owners(attempt.new), attempt.old.map_or(&[][..], owners));
    if new == old {
        return Ok(());
    }
    let (name, registry) = (meta(attempt.new, "name"), backend.registry());
    let check =
        Check { kind: attempt.kind, namespace: attempt.namespace, name, registry: &registry };
    let rights = UserRights { access: backend.access(), identity };
    match check.refused(attempt.old.is_some(), new, old, &rights).await {
        Some(why) => Err(status::forbidden(&attempt.kind.group, &attempt.kind.plural, name, &why)),
        None => Ok(()),
    }
}

/// What a user may do.
trait Rights: Sync {
    fn include<'a>(&'a self, attributes: Attributes<'a>) -> BoxFuture<'a, bool>;
}

struct UserRights<'a> {
    access: &'a AccessControl,
    identity: &'a Identity,
}

impl Rights for UserRights<'_> {
    fn include<'a>(&'a self, attributes: Attributes<'a>) -> BoxFuture<'a, bool> {
        self.access.allows(self.identity, attributes).boxed()
    }
}

fn owners(object: &Value) -> &[Value] {
    object["metadata"]["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default()
}

struct Check<'a> {
    kind: &'a Served,
    namespace: &'a str,
    name: &'a str,
    registry: &'a Registry,
}

impl Check<'_> {
    /// Why the user may not replace these owner references.
    async fn refused(
        &self,
        is_update: bool,
        new: &[Value],
        old: &[Value],
        rights: &dyn Rights,
    ) -> Option<String> {
        // A create needs no delete right: the object is the user's own.
        let delete = Attributes::Resource {
            verb: "delete",
            group: &self.kind.group,
            resource: &self.kind.plural,
            subresource: "",
            namespace: self.namespace,
            name: self.name,
        };
        if is_update && !rights.include(delete).await {
            return Some("cannot set an ownerRef on a resource you can't delete".to_owned());
        }
        let blocks = |owner: &&Value| owner["blockOwnerDeletion"] == true;
        let blocked: HashSet<&Value> =
            old.iter().filter(blocks).map(|owner| &owner["uid"]).collect();
        let blocking = new.iter().filter(|owner| blocks(owner));
        for owner in blocking.filter(|owner| !blocked.contains(&owner["uid"])) {
            if let Some(why) = self.refused_to_block(owner, rights).await {
                return Some(why);
            }
        }
        None
    }

    async fn refused_to_block(&self, owner: &Value, rights: &dyn Rights) -> Option<String> {
        let text = |key: &str| owner[key].as_str().unwrap_or_default();
        let (version, kind) = (text("apiVersion"), text("kind"));
        let (group, short) = version.split_once('/').unwrap_or(("", version));
        let finalize = async |group: &str, resource: &str, namespace: &str, name: &str| {
            let (verb, subresource) = ("update", "finalizers");
            let attributes =
                Attributes::Resource { verb, group, resource, subresource, namespace, name };
            rights.include(attributes).await
        };
        if finalize("*", "*", "", "*").await {
            return None;
        }
        let Some(row) = self.registry.find_kind(group, short, kind) else {
            return Some(format!(
                "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion {version} Kind {kind}"
            ));
        };
        let namespace = if row.namespaced { self.namespace } else { "" };
        match finalize(&row.group, &row.plural, namespace, text("name")).await {
            true => None,
            false => Some(
                "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on"
                    .to_owned(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use headwater_api::kind;
    use headwater_json::json;

    use super::*;

    struct TextRights<'t>(&'t [&'t str]);

    impl Rights for TextRights<'_> {
        fn include<'a>(&'a self, attributes: Attributes<'a>) -> BoxFuture<'a, bool> {
            let allowed = match attributes {
                Attributes::Resource { verb, resource, subresource, namespace, name, .. } => {
                    let wanted = format!("{verb} {namespace}/{resource}/{subresource} {name}");
                    self.0.contains(&wanted.as_str())
                }
                Attributes::Path { .. } => false,
            };
            futures::future::ready(allowed).boxed()
        }
    }

    /// The rejection of a user with these rights: `verb resource[/subresource] name`.
    fn refused(may: &[&str], is_update: bool, new: &Value, old: &Value) -> Option<String> {
        let registry = Registry::new(kind::builtin());
        let kind = registry.find("", "v1", "pods").unwrap();
        let check = Check { kind, namespace: "ns", name: "a", registry: &registry };
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let rights = TextRights(may);
        let (new, old) = (list(new), list(old));
        let refused = check.refused(is_update, &new, &old, &rights);
        refused.now_or_never().expect("nothing waits")
    }

    #[test]
    fn changing_owners_needs_delete_and_blocking_needs_finalizers() {
        let (plain, block) = (
            json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "1"}]),
            json!([{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "1",
                "blockOwnerDeletion": true,
            }]),
        );
        let none = json!([]);
        let delete = "cannot set an ownerRef on a resource you can't delete";
        let finalize = "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on";
        assert_eq!(refused(&[], false, &plain, &none), None);
        assert_eq!(refused(&[], true, &plain, &none).as_deref(), Some(delete));
        assert_eq!(refused(&["delete ns/pods/ a"], true, &plain, &none), None);
        assert_eq!(refused(&[], false, &block, &none).as_deref(), Some(finalize));
        let may = ["update ns/replicasets/finalizers r"];
        assert_eq!(refused(&may, false, &block, &none), None);
        assert_eq!(refused(&["update /*/finalizers *"], false, &block, &none), None);
        // A reference that already blocks may stay.
        assert_eq!(refused(&["delete ns/pods/ a"], true, &block, &block), None);
        let strange =
            json!([{"apiVersion": "x/v1", "kind": "Y", "uid": "2", "blockOwnerDeletion": true}]);
        let why = refused(&[], false, &strange, &none).unwrap();
        assert!(why.ends_with("cannot find RESTMapping for APIVersion x/v1 Kind Y"), "{why}");
    }
}
