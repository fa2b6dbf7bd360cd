//! An object without what its server set, so that another server accepts it as new.
//!
//! River: object → **plain** → the file of an export, a request. Pure.

use headwater_json::{Map, Value};

use crate::remote::kinds::items;

/// Metadata that only a server sets.
const SET_BY_SERVER: &[&str] = &[
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
    "managedFields",
];

/// Labels of a Job and its pods with the uid of the Job.
pub(crate) const CONTROLLER_UID: [&str; 2] =
    ["controller-uid", "batch.kubernetes.io/controller-uid"];

/// Removes what the server set. Without `state`, also the status and the node of a pod.
pub(crate) fn plain(object: &mut Value, state: bool) {
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    for field in SET_BY_SERVER {
        remove(object, &["metadata"], field);
    }
    if !state {
        remove(object, &[], "status");
    }
    match kind.as_str() {
        "Service" if object["spec"]["clusterIP"] != "None" => {
            for field in ["clusterIP", "clusterIPs", "healthCheckNodePort"] {
                remove(object, &["spec"], field);
            }
        }
        "Pod" if !state => remove(object, &["spec"], "nodeName"),
        "Job" if object["spec"]["manualSelector"] != true => {
            remove(object, &["spec"], "selector");
            for label in CONTROLLER_UID {
                remove(object, &["metadata", "labels"], label);
                remove(object, &["spec", "template", "metadata", "labels"], label);
            }
        }
        "PersistentVolume" => {
            for field in ["uid", "resourceVersion"] {
                remove(object, &["spec", "claimRef"], field);
            }
        }
        "Namespace" => remove(object, &[], "spec"),
        _ => {}
    }
}

/// Removes a member of an object inside.
fn remove(object: &mut Value, path: &[&str], member: &str) {
    let mut at = object;
    for name in path {
        let Some(inside) = at.as_object_mut().and_then(|members| members.get_mut(name)) else {
            return;
        };
        at = inside;
    }
    if let Some(members) = at.as_object_mut() {
        members.remove(member);
    }
}

/// An owner of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnerName {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// The owners of an object.
pub(crate) fn owners(object: &Value) -> Vec<OwnerName> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let each = items(&object["metadata"]["ownerReferences"]).map(|owner| OwnerName {
        api_version: text(&owner["apiVersion"]),
        kind: text(&owner["kind"]),
        name: text(&owner["name"]),
        uid: text(&owner["uid"]),
    });
    each.collect()
}

/// Replaces the uids of owners, and labels that repeat them; drops the references to owners that have
/// none. Returns how many were dropped.
pub(crate) fn adopt(object: &mut Value, uids: &[Option<String>]) -> usize {
    let known = owners(object);
    let mut next = uids.iter();
    if known.is_empty() {
        return 0;
    }
    let Some(list) = object["metadata"]["ownerReferences"].as_array_mut() else { return 0 };
    let before = list.len();
    list.retain_mut(|owner| match next.next().cloned().flatten() {
        Some(uid) => {
            owner["uid"] = uid.into();
            true
        }
        None => false,
    });
    let dropped = before - list.len();
    if list.is_empty() {
        remove(object, &["metadata"], "ownerReferences");
    }
    if object["metadata"]["labels"].is_object()
        && let Some(labels) = object["metadata"]["labels"].as_object_mut()
    {
        relabel(labels, &known, uids);
    }
    dropped
}

fn relabel(labels: &mut Map, known: &[OwnerName], uids: &[Option<String>]) {
    for label in CONTROLLER_UID {
        let Some(value) = labels.get_mut(label) else { continue };
        let found = known.iter().zip(uids).find(|(owner, _)| *value == owner.uid.as_str());
        if let Some((_, Some(uid))) = found {
            *value = uid.as_str().into();
        }
    }
}

/// Whether a server or its controllers make the object by themselves.
pub(crate) fn is_made_by_the_server(object: &Value) -> bool {
    let meta = &object["metadata"];
    let name = meta["name"].as_str().unwrap_or_default();
    let namespace = meta["namespace"].as_str().unwrap_or_default();
    let is_updated = |annotation: &str| meta["annotations"][annotation] == "true";
    match object["kind"].as_str().unwrap_or_default() {
        "ServiceAccount" => name == "default",
        "ConfigMap" => {
            const OF_SYSTEM: [&str; 2] = [
                "extension-apiserver-authentication",
                "kube-apiserver-legacy-service-account-token-tracking",
            ];
            name == "kube-root-ca.crt" || (namespace == "kube-system" && OF_SYSTEM.contains(&name))
        }
        "Service" => (namespace, name) == ("default", "kubernetes"),
        "PriorityClass" => name.starts_with("system-"),
        "Namespace" => {
            matches!(name, "default" | "kube-system" | "kube-public" | "kube-node-lease")
        }
        "Secret" => object["type"] == "kubernetes.io/service-account-token",
        _ => {
            meta["labels"]["kubernetes.io/bootstrapping"] == "rbac-defaults"
                || is_updated("apf.kubernetes.io/autoupdate-spec")
        }
    }
}

#[cfg(test)]
mod tests {
    use headwater_json::json;

    use super::*;

    #[track_caller]
    fn check(mut object: Value, state: bool, expected: &Value) {
        plain(&mut object, state);
        assert_eq!(object, *expected);
    }

    #[test]
    fn what_the_server_set_is_left_out() {
        check(
            json!({"kind": "Pod", "metadata": {"name": "a", "uid": "u", "resourceVersion": "1",
                "creationTimestamp": "t", "managedFields": [], "labels": {"x": "y"}},
                "spec": {"nodeName": "n", "x": 1}, "status": {"phase": "Running"}}),
            false,
            &json!({"kind": "Pod", "metadata": {"name": "a", "labels": {"x": "y"}}, "spec": {"x": 1}}),
        );
        check(
            json!({"kind": "Pod", "metadata": {}, "spec": {"nodeName": "n"}, "status": {}}),
            true,
            &json!({"kind": "Pod", "metadata": {}, "spec": {"nodeName": "n"}, "status": {}}),
        );
        check(
            json!({"kind": "Service", "metadata": {}, "spec": {"clusterIP": "10.0.0.1", "clusterIPs": []}}),
            false,
            &json!({"kind": "Service", "metadata": {}, "spec": {}}),
        );
        let headless = json!({"kind": "Service", "metadata": {}, "spec": {"clusterIP": "None"}});
        check(headless.clone(), false, &headless);
        check(
            json!({"kind": "Job", "metadata": {"labels": {"controller-uid": "u"}}, "spec": {"selector": {}}}),
            false,
            &json!({"kind": "Job", "metadata": {"labels": {}}, "spec": {}}),
        );
        check(json!({"kind": "ConfigMap"}), false, &json!({"kind": "ConfigMap"}));
    }

    #[test]
    fn owners_get_their_new_uids_or_are_dropped() {
        let mut object = json!({"metadata": {
            "labels": {"controller-uid": "old-b", "app": "old-b"},
            "ownerReferences": [{"kind": "A", "name": "a", "uid": "old-a"}, {"kind": "B", "name": "b", "uid": "old-b"}],
        }});
        assert_eq!(adopt(&mut object, &[None, Some("new-b".to_owned())]), 1);
        assert_eq!(
            object,
            json!({"metadata": {
                "labels": {"controller-uid": "new-b", "app": "old-b"},
                "ownerReferences": [{"kind": "B", "name": "b", "uid": "new-b"}],
            }})
        );
        assert_eq!(adopt(&mut object, &[None]), 1);
        assert!(object["metadata"]["ownerReferences"].is_null());
    }

    #[test]
    fn objects_that_every_cluster_has_are_known() {
        for object in [
            json!({"kind": "ServiceAccount", "metadata": {"name": "default"}}),
            json!({"kind": "ClusterRole", "metadata": {"labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}}}),
            json!({"kind": "Service", "metadata": {"name": "kubernetes", "namespace": "default"}}),
        ] {
            assert!(is_made_by_the_server(&object), "{object}");
        }
        let mine =
            json!({"kind": "Service", "metadata": {"name": "kubernetes", "namespace": "shop"}});
        assert!(!is_made_by_the_server(&mine));
    }
}
