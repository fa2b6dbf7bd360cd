//! The labels of a Node that its kubelet may change.
//!
//! Kubelets own the labels that describe their machine. The other labels of Kubernetes, and those below
//! `node-restriction.kubernetes.io`, say which workloads may run there, so a kubelet may not set them.

use std::collections::BTreeSet;

use headwater_json::Value;

/// Labels below this name are for administrators.
const RESTRICTED: &str = "node-restriction.kubernetes.io";

/// The labels of Kubernetes that kubelets own.
const OWN: &[&str] = &[
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

/// The names below which kubelets own every label.
const OWN_BELOW: &[&str] = &["kubelet.kubernetes.io", "node.kubernetes.io"];

/// The labels that a kubelet may not change and that differ, sorted and joined.
pub(super) fn forbidden_changes(new: &Value, old: &Value) -> String {
    let keys = |labels: &Value| -> BTreeSet<String> {
        let labels = labels.as_object().into_iter().flatten();
        labels.map(|(key, _)| key.as_str().to_owned()).collect()
    };
    let all: BTreeSet<String> = keys(new).union(&keys(old)).cloned().collect();
    let changed = all.into_iter().filter(|key| new.get(key.as_str()) != old.get(key.as_str()));
    changed.filter(|key| is_forbidden(key)).collect::<Vec<_>>().join(", ")
}

fn is_forbidden(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    is_below(domain, RESTRICTED)
        || ((is_below(domain, "kubernetes.io") || is_below(domain, "k8s.io"))
            && !OWN.contains(&key)
            && !OWN_BELOW.iter().any(|own| is_below(domain, own)))
}

fn is_below(domain: &str, of: &str) -> bool {
    domain.strip_suffix(of).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use headwater_json::json;

    use super::*;

    #[test]
    fn kubelets_own_the_labels_that_describe_their_machine() {
        for (key, expected) in [
            ("kubernetes.io/hostname", false),
            ("node.kubernetes.io/anything", false),
            ("x.kubelet.kubernetes.io/y", false),
            ("example.org/mine", false),
            ("plain", false),
            ("notkubernetes.io/mine", false),
            ("kubernetes.io/role", true),
            ("node-role.kubernetes.io/control-plane", true),
            ("node-restriction.kubernetes.io/x", true),
            ("a.node-restriction.kubernetes.io/x", true),
            ("x.k8s.io/y", true),
        ] {
            assert_eq!(is_forbidden(key), expected, "{key}");
        }
        let old = json!({ "x.k8s.io/a": "1", "x.k8s.io/b": "1", "mine": "1" });
        let new = json!({ "x.k8s.io/a": "2", "x.k8s.io/c": "1", "mine": "2" });
        assert_eq!(forbidden_changes(&new, &old), "x.k8s.io/a, x.k8s.io/b, x.k8s.io/c");
        assert_eq!(forbidden_changes(&old, &old), "");
        assert_eq!(forbidden_changes(&Value::Null, &Value::Null), "");
    }
}
