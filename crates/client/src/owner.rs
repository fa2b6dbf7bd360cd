//! Owner references: sets them on children, and finds the owners of a child.
//!
//! River: reconciler → **owner references** → the next write; change of a child → owner's key →
//! work queue.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use kube::core::ObjectMeta;

use crate::error::Error;
use crate::key::Key;
use crate::object::ResourceType;

/// Makes `owner` the controller of `child`: the child is deleted with its owner, and changes of the
/// child trigger the owner's controller.
///
/// # Errors
/// [`Error::Invalid`] if the child has another controller, the owner is in another namespace or has
/// no UID, or the owner is namespaced and the child is not.
pub fn set_controller<O, C>(owner: &O, child: &mut C) -> Result<(), Error>
where
    O: Resource<DynamicType = ()>,
    C: Resource,
{
    set_controller_of(&ResourceType::of::<O>(&()), owner.meta(), child)
}

fn set_controller_of<C: Resource>(
    owner_type: &ResourceType,
    owner: &ObjectMeta,
    child: &mut C,
) -> Result<(), Error> {
    let (Some(name), Some(uid)) = (&owner.name, &owner.uid) else {
        return Err(Error::Invalid("the owner has no name or UID; create it first".to_owned()));
    };
    let meta = child.meta_mut();
    match (&owner.namespace, &meta.namespace) {
        (Some(_), None) => {
            let why = "a namespaced owner cannot own a cluster-scoped object";
            return Err(Error::Invalid(why.to_owned()));
        }
        (Some(owner), Some(child)) if owner != child => {
            let why = format!("an owner in {owner:?} cannot own an object in {child:?}");
            return Err(Error::Invalid(why));
        }
        _ => {}
    }
    let references = meta.owner_references.get_or_insert_default();
    let other = references.iter().find(|other| other.controller == Some(true) && other.uid != *uid);
    if let Some(other) = other {
        let why = format!("the object is already controlled by {} {:?}", other.kind, other.name);
        return Err(Error::Invalid(why));
    }
    references.retain(|known| known.uid != *uid);
    references.push(OwnerReference {
        api_version: owner_type.api_version(),
        kind: owner_type.kind.clone(),
        name: name.clone(),
        uid: uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    });
    Ok(())
}

/// The key of a child's controlling owner with a given kind and group, in any version.
pub(crate) fn owner_keys(
    child: &ObjectMeta,
    owner_type: &ResourceType,
    namespaced: bool,
) -> Vec<Key> {
    let namespace = if namespaced { child.namespace.as_deref() } else { None };
    let references = child.owner_references.iter().flatten();
    references
        .filter(|owner| owner.controller == Some(true))
        .filter(|owner| owner.kind == owner_type.kind)
        .filter(|owner| group_of(&owner.api_version) == owner_type.group)
        .map(|owner| Key::new(namespace, &owner.name))
        .collect()
}

fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
    use k8s_openapi::api::core::v1::{Namespace, Node, Pod};

    use super::*;

    fn meta(namespace: Option<&str>, name: &str) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.into()),
            namespace: namespace.map(str::to_owned),
            uid: Some(format!("uid-{name}")),
            ..ObjectMeta::default()
        }
    }

    /// C24.6
    #[test]
    fn a_controller_reference_is_set_once_and_refused_for_invalid_owners() {
        let owner = Deployment { metadata: meta(Some("a"), "web"), ..Deployment::default() };
        let mut child = ReplicaSet { metadata: meta(Some("a"), "web-1"), ..ReplicaSet::default() };
        set_controller(&owner, &mut child).unwrap();
        set_controller(&owner, &mut child).unwrap();
        let references = child.metadata.owner_references.clone().unwrap();
        assert_eq!(references.len(), 1);
        let reference = &references[0];
        assert_eq!(
            (reference.api_version.as_str(), reference.kind.as_str()),
            ("apps/v1", "Deployment")
        );
        assert_eq!(
            (reference.controller, reference.block_owner_deletion),
            (Some(true), Some(true))
        );

        let second = Deployment { metadata: meta(Some("a"), "other"), ..Deployment::default() };
        assert!(set_controller(&second, &mut child).is_err(), "a second controller");
        let mut elsewhere = Pod { metadata: meta(Some("b"), "p"), ..Pod::default() };
        assert!(set_controller(&owner, &mut elsewhere).is_err(), "another namespace");
        let mut cluster = Node { metadata: meta(None, "n"), ..Node::default() };
        assert!(set_controller(&owner, &mut cluster).is_err(), "a cluster-scoped child");
        let cluster_owner = Namespace { metadata: meta(None, "ns"), ..Namespace::default() };
        set_controller(&cluster_owner, &mut elsewhere).unwrap();
        let unborn = Deployment::default();
        assert!(set_controller(&unborn, &mut elsewhere).is_err(), "no UID");
    }

    /// C22.12, C22.14
    #[test]
    fn owners_are_found_by_kind_and_group_of_any_version() {
        let reference = |api_version: &str, kind: &str, name: &str, controller| OwnerReference {
            api_version: api_version.into(),
            kind: kind.into(),
            name: name.into(),
            uid: name.into(),
            controller,
            block_owner_deletion: None,
        };
        let mut child = meta(Some("a"), "child");
        child.owner_references = Some(vec![
            reference("apps/v1beta2", "Deployment", "controller", Some(true)),
            reference("apps/v1", "Deployment", "other", None),
            reference("v1", "Deployment", "core", Some(true)),
            reference("apps/v1", "StatefulSet", "kind", Some(true)),
        ]);
        let deployments = ResourceType::of::<Deployment>(&());
        let keys = |namespaced| -> Vec<String> {
            let keys = owner_keys(&child, &deployments, namespaced);
            keys.iter().map(Key::to_string).collect()
        };
        assert_eq!(keys(true), ["a/controller"]);
        assert_eq!(keys(false), ["controller"]);
    }
}
