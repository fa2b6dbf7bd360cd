//! Which nodes run the pod of a DaemonSet, and the pod of one node.

use std::sync::Arc;

use headwater_client::Cached;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{
    Affinity, Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    Pod as CorePod, PodSpec, Toleration,
};
use serde_json::json;

use crate::pod::Pod;
use crate::pod_control::pod_from_template;
use crate::revisions::POD_REVISION;
use crate::scheduler::{matches_node, untolerated_effects};

const GENERATION: &str = "pod-template-generation";
/// The annotation with the generation of the template, which `apps/v1` does not use.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// The taints that every pod of a DaemonSet tolerates.
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];
/// The taint that pods on the host's network tolerate as well.
const NETWORK: (&str, &str) = ("node.kubernetes.io/network-unavailable", "NoSchedule");

/// Whether a node runs the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DaemonPlacement {
    /// It runs the pod.
    Run,
    /// It starts no pod, but a pod that runs stays.
    Keep,
    /// It runs no pod.
    Remove,
}

/// The pod of a set as the scheduler sees it, without a node.
pub(super) struct PodProbe {
    pod: Pod,
    node_name: Option<String>,
}

impl PodProbe {
    pub(super) fn of(set: &DaemonSet) -> PodProbe {
        let template = set.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
        let mut spec = template.spec.unwrap_or_default();
        let node_name = spec.node_name.take().filter(|name| !name.is_empty());
        add_tolerations(&mut spec);
        let pod = serde_json::from_value(json!({ "metadata": {}, "spec": spec }));
        PodProbe { pod: pod.expect("a projection reads every pod"), node_name }
    }

    pub(super) fn placement(&self, node: &Arc<Node>) -> DaemonPlacement {
        let is_elsewhere = self.node_name.as_ref().is_some_and(|name| name != node.name());
        if is_elsewhere || !matches_node(&self.pod, node) {
            return DaemonPlacement::Remove;
        }
        let untolerated = untolerated_effects(&self.pod, node);
        match () {
            () if untolerated.is_empty() => DaemonPlacement::Run,
            () if untolerated.contains(&"NoExecute") => DaemonPlacement::Remove,
            () => DaemonPlacement::Keep,
        }
    }
}

/// The pod of a set for one node, bound to it by a required node affinity.
pub(super) fn pod(set: &DaemonSet, revision: &str, node: &str) -> CorePod {
    let template = set.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
    let mut pod = pod_from_template(set, &template);
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(POD_REVISION.to_owned(), revision.to_owned());
    let annotations = set.metadata.annotations.as_ref();
    if let Some(generation) = annotations.and_then(|all| all.get(TEMPLATE_GENERATION)) {
        labels.insert(GENERATION.to_owned(), generation.clone());
    }
    let spec = pod.spec.get_or_insert_default();
    pin(spec, node);
    add_tolerations(spec);
    pod
}

/// Replaces the required node affinity, which has selected the node, by the node's name.
fn pin(spec: &mut PodSpec, node: &str) {
    let name = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![name]), match_expressions: None };
    let affinity: &mut Affinity = spec.affinity.get_or_insert_default();
    let affinity: &mut NodeAffinity = affinity.node_affinity.get_or_insert_default();
    affinity.required_during_scheduling_ignored_during_execution =
        Some(NodeSelector { node_selector_terms: vec![term] });
}

fn add_tolerations(spec: &mut PodSpec) {
    let network = (spec.host_network == Some(true)).then_some(NETWORK);
    let tolerations = spec.tolerations.get_or_insert_default();
    for (key, effect) in TOLERATED.into_iter().chain(network) {
        let toleration = Toleration {
            key: Some(key.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some(effect.to_owned()),
            ..Toleration::default()
        };
        if !tolerations.contains(&toleration) {
            tolerations.push(toleration);
        }
    }
}

/// The node of a pod: the one it is bound to, or the one it is pinned to.
pub(super) fn node_of(pod: &Pod) -> Option<&str> {
    let pinned = || {
        let affinity = pod.spec.affinity.as_ref()?.node_affinity.as_ref()?;
        let required = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
        let mut fields = required.node_selector_terms.iter().flat_map(|it| &it.match_fields);
        let rule = fields.next()?.iter().find(|rule| rule.key == "metadata.name")?;
        rule.values.as_ref()?.first().map(String::as_str)
    };
    pod.node().or_else(pinned)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::plan::tests::{node, set};
    use super::*;

    #[track_caller]
    fn check(template: Value, change: Value, expected: DaemonPlacement) {
        let set = set(json!({"template": {"spec": template}}));
        assert_eq!(PodProbe::of(&set).placement(&node("n1", change)), expected);
    }

    #[test]
    fn selectors_and_taints_decide_where_pods_run() {
        let none = || json!({});
        let taint =
            |key: &str, effect: &str| json!({"spec": {"taints": [{"key": key, "effect": effect}]}});
        check(none(), none(), DaemonPlacement::Run);
        check(json!({"nodeName": "n2"}), none(), DaemonPlacement::Remove);
        check(json!({"nodeName": "n1"}), none(), DaemonPlacement::Run);
        check(json!({"nodeSelector": {"disk": "ssd"}}), none(), DaemonPlacement::Remove);
        let ssd = json!({"metadata": {"labels": {"disk": "ssd"}}});
        check(json!({"nodeSelector": {"disk": "ssd"}}), ssd, DaemonPlacement::Run);
        check(none(), taint("own", "NoSchedule"), DaemonPlacement::Keep);
        check(none(), taint("own", "PreferNoSchedule"), DaemonPlacement::Run);
        check(none(), taint("own", "NoExecute"), DaemonPlacement::Remove);
        let tolerant = json!({"tolerations": [{"key": "own", "operator": "Exists"}]});
        check(tolerant, taint("own", "NoExecute"), DaemonPlacement::Run);
        check(none(), taint("node.kubernetes.io/not-ready", "NoExecute"), DaemonPlacement::Run);
        let cordoned = json!({"spec": {"unschedulable": true, "taints": [
            {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
        ]}});
        check(none(), cordoned, DaemonPlacement::Run);
        let network = || taint(NETWORK.0, NETWORK.1);
        check(none(), network(), DaemonPlacement::Keep);
        check(json!({"hostNetwork": true}), network(), DaemonPlacement::Run);
    }

    #[test]
    fn a_pod_is_pinned_to_its_node() {
        let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}}});
        let set = set(json!({"template": {"spec": {"affinity": affinity}}}));
        let pod = pod(&set, "hash", "n1");
        let labels = pod.metadata.labels.as_ref().unwrap();
        assert_eq!((&*labels[POD_REVISION], &*labels["app"]), ("hash", "agent"));
        assert_eq!(pod.spec.as_ref().unwrap().tolerations.as_ref().unwrap().len(), 6);
        let seen: Pod = serde_json::from_value(json!(pod)).unwrap();
        assert_eq!(node_of(&seen), Some("n1"));
        assert!(matches_node(&seen, &node("n1", json!({}))));
        assert!(!matches_node(&seen, &node("n2", json!({}))));
        assert_eq!(node_of(&Pod::default()), None);
    }
}
