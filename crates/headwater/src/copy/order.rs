//! The order in which objects can be created: what others need comes first.
//!
//! River: objects of an export or of the beginning of a recording → **order** → requests. Pure.

use std::collections::BTreeMap;

use headwater_json::Value;

use super::plain::owners;

/// Kinds that others need, and kinds that may stop others; all other kinds are in the middle.
fn rank(kind: &str) -> u8 {
    match kind {
        "Namespace" => 0,
        "CustomResourceDefinition" => 1,
        "PriorityClass" | "StorageClass" | "RuntimeClass" | "IngressClass" | "DeviceClass" => 2,
        "ServiceAccount" | "Secret" | "ConfigMap" | "LimitRange" | "Node" => 3,
        "ClusterRole" | "Role" => 4,
        "ClusterRoleBinding" | "RoleBinding" => 5,
        "PersistentVolume" => 6,
        "PersistentVolumeClaim" => 7,
        "Service" => 8,
        // A quota or a policy may refuse what existed before it.
        "ResourceQuota" => 20,
        "ValidatingAdmissionPolicy" | "MutatingAdmissionPolicy" => 21,
        "ValidatingAdmissionPolicyBinding" | "MutatingAdmissionPolicyBinding" => 22,
        "APIService" => 23,
        "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration" => 24,
        _ => 10,
    }
}

/// Sorts objects: by rank, owners before what they own, then by kind, namespace and name.
pub(crate) fn sort<T>(all: &mut [T], object: impl Fn(&T) -> &Value) {
    let depths = depths(all.iter().map(&object));
    all.sort_by_cached_key(|item| {
        let object = object(item);
        let depth = depths.get(&identity(object)).copied().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let kind = text(&object["kind"]);
        let meta = &object["metadata"];
        (rank(&kind), depth, kind, text(&meta["namespace"]), text(&meta["name"]))
    });
}

type Identity = (String, String, String);

fn identity(object: &Value) -> Identity {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let meta = &object["metadata"];
    (text(&object["kind"]), text(&meta["namespace"]), text(&meta["name"]))
}

/// The longest chain of owners above each object. Owners in a circle count as far as it was followed.
fn depths<'a>(objects: impl Iterator<Item = &'a Value>) -> BTreeMap<Identity, usize> {
    /// Longer chains do not exist.
    const DEPTH_MAX: usize = 16;
    let above: BTreeMap<Identity, Vec<Identity>> = objects
        .map(|object| {
            let own = identity(object);
            let namespace = own.1.clone();
            let owners = owners(object).into_iter().flat_map(|owner| {
                // The owner is in the same namespace, or in none.
                [namespace.clone(), String::new()]
                    .map(|inside| (owner.kind.clone(), inside, owner.name.clone()))
            });
            (own, owners.collect())
        })
        .collect();
    let mut depths: BTreeMap<Identity, usize> = BTreeMap::new();
    for _ in 0..DEPTH_MAX {
        let mut changed = false;
        for (own, owners) in &above {
            let known = |owner: &Identity| {
                above
                    .contains_key(owner)
                    .then(|| depths.get(owner).copied().unwrap_or_default() + 1)
            };
            let depth = owners.iter().filter_map(known).max().unwrap_or_default();
            if depth > depths.get(own).copied().unwrap_or_default() {
                depths.insert(own.clone(), depth);
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    depths
}

#[cfg(test)]
mod tests {
    use headwater_json::json;

    use super::*;

    fn object(kind: &str, name: &str, owner: Option<(&str, &str)>) -> Value {
        let owners: Vec<Value> = owner
            .map(|(kind, name)| json!({"apiVersion": "v1", "kind": kind, "name": name}))
            .into_iter()
            .collect();
        json!({"kind": kind, "metadata": {"name": name, "namespace": "ns", "ownerReferences": owners}})
    }

    fn sorted(mut objects: Vec<Value>) -> Vec<String> {
        sort(&mut objects, |object| object);
        let names = objects.iter().map(|object| object["metadata"]["name"].as_str());
        names.map(|name| name.unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn what_others_need_comes_first() {
        let kinds = [
            "ValidatingWebhookConfiguration",
            "Pod",
            "ResourceQuota",
            "CustomResourceDefinition",
            "ServiceAccount",
            "Namespace",
        ];
        let objects = kinds.iter().map(|kind| object(kind, kind, None)).collect();
        let expected = [
            "Namespace",
            "CustomResourceDefinition",
            "ServiceAccount",
            "Pod",
            "ResourceQuota",
            "ValidatingWebhookConfiguration",
        ];
        assert_eq!(sorted(objects), expected);
    }

    #[test]
    fn owners_come_before_what_they_own() {
        let objects = vec![
            object("A", "pod", Some(("B", "rs"))),
            object("B", "rs", Some(("C", "deployment"))),
            object("C", "deployment", None),
            object("A", "orphan", Some(("Z", "gone"))),
        ];
        assert_eq!(sorted(objects), ["orphan", "deployment", "rs", "pod"]);
    }

    #[test]
    fn owners_in_a_circle_end() {
        let objects = vec![object("A", "a", Some(("B", "b"))), object("B", "b", Some(("A", "a")))];
        assert_eq!(sorted(objects).len(), 2);
    }
}
