//! The conditions and taints of a node.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

pub(super) const NOT_READY: &str = "node.kubernetes.io/not-ready";
pub(super) const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// The taint for each condition with this status.
const CONDITION_TAINTS: &[(&str, &str, &str)] = &[
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
];
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Conditions that only the kubelet reports.
const KUBELET_CONDITIONS: &[&str] = &["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

pub(super) fn conditions(node: &Node) -> &[NodeCondition] {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref());
    conditions.unwrap_or_default()
}

/// The status of the condition `Ready`; `Unknown` if the node never reported it.
pub(super) fn readiness(node: &Node) -> &str {
    let ready = conditions(node).iter().find(|condition| condition.type_ == "Ready");
    ready.map_or("Unknown", |ready| ready.status.as_str())
}

/// The conditions of a node that has been silent for too long; `None` if they are already set.
pub(super) fn unknown_conditions(node: &Node, now: Timestamp) -> Option<Vec<NodeCondition>> {
    let before = conditions(node);
    let mut after = before.to_vec();
    for type_ in KUBELET_CONDITIONS {
        match after.iter_mut().find(|condition| condition.type_ == *type_) {
            None => after.push(NodeCondition {
                type_: (*type_).to_owned(),
                status: "Unknown".to_owned(),
                reason: Some("NodeStatusNeverUpdated".to_owned()),
                message: Some("Kubelet never posted node status.".to_owned()),
                last_heartbeat_time: node.metadata.creation_timestamp.clone(),
                last_transition_time: Some(Time(now)),
            }),
            Some(known) if known.status != "Unknown" => {
                known.status = "Unknown".to_owned();
                known.reason = Some("NodeStatusUnknown".to_owned());
                known.message = Some("Kubelet stopped posting node status.".to_owned());
                known.last_transition_time = Some(Time(now));
            }
            Some(_) => {}
        }
    }
    (after != before).then_some(after)
}

/// The taints that a node should have; `None` if it has them. While no node is ready, the cause is
/// probably not the nodes, so `evict` is false and no `NoExecute` taint is added.
pub(super) fn taints(node: &Node, evict: bool, now: Timestamp) -> Option<Vec<Taint>> {
    let spec = node.spec.clone().unwrap_or_default();
    let before = spec.taints.unwrap_or_default();
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    for (type_, status, key) in CONDITION_TAINTS {
        let holds =
            |condition: &NodeCondition| condition.type_ == *type_ && condition.status == *status;
        if conditions(node).iter().any(holds) {
            wanted.push((key, "NoSchedule"));
            if evict && *type_ == "Ready" {
                wanted.push((key, "NoExecute"));
            }
        }
    }
    if spec.unschedulable == Some(true) {
        wanted.push((UNSCHEDULABLE, "NoSchedule"));
    }
    let mut after: Vec<Taint> =
        before.iter().filter(|it| is_kept(it, &wanted, node)).cloned().collect();
    for (key, effect) in wanted {
        if !after.iter().any(|it| it.key == key && it.effect == effect) {
            after.push(Taint {
                key: key.to_owned(),
                effect: effect.to_owned(),
                time_added: Some(Time(now)),
                value: None,
            });
        }
    }
    (after != before).then_some(after)
}

/// Taints of others are kept; ours are kept while they are wanted. A node that never reported a
/// status keeps its initial taint.
fn is_kept(taint: &Taint, wanted: &[(&str, &str)], node: &Node) -> bool {
    let is_ours =
        CONDITION_TAINTS.iter().any(|(.., key)| *key == taint.key) || taint.key == UNSCHEDULABLE;
    let never_reported = !conditions(node).iter().any(|condition| condition.type_ == "Ready");
    !is_ours
        || wanted.contains(&(taint.key.as_str(), taint.effect.as_str()))
        || (never_reported && taint.key == NOT_READY)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn node(ready: &str, change: &Value) -> Node {
        let mut value = json!({
            "metadata": {"name": "n"},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        });
        crate::fixture::merge(&mut value, change);
        serde_json::from_value(value).unwrap()
    }

    fn of(taints: Option<Vec<Taint>>) -> Option<Vec<String>> {
        taints.map(|all| all.iter().map(|it| format!("{}:{}", it.key, it.effect)).collect())
    }

    #[track_caller]
    fn check(node: &Node, evict: bool, expected: Option<&[&str]>) {
        let expected = expected.map(|all| all.iter().map(|it| (*it).to_owned()).collect());
        assert_eq!(of(taints(node, evict, now())), expected);
    }

    const BOTH: &[&str] =
        &["node.kubernetes.io/unreachable:NoSchedule", "node.kubernetes.io/unreachable:NoExecute"];

    #[test]
    fn taints_follow_conditions() {
        check(&node("True", &json!({})), true, None);
        check(&node("Unknown", &json!({})), true, Some(BOTH));
        check(&node("Unknown", &json!({})), false, Some(&BOTH[..1]));
        let not_ready =
            &["node.kubernetes.io/not-ready:NoSchedule", "node.kubernetes.io/not-ready:NoExecute"];
        check(&node("False", &json!({})), true, Some(not_ready));
        let cordoned = json!({"spec": {"unschedulable": true}});
        let expected = &["node.kubernetes.io/unschedulable:NoSchedule"];
        check(&node("True", &cordoned), true, Some(expected));
        let pressed = json!({"status": {"conditions": [
            {"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "True"},
        ]}});
        let expected = &["node.kubernetes.io/disk-pressure:NoSchedule"];
        check(&node("True", &pressed), true, Some(expected));
    }

    #[test]
    fn taints_are_removed_when_a_node_recovers_and_others_are_kept() {
        let tainted = json!({"spec": {"taints": [
            {"key": UNREACHABLE, "effect": "NoSchedule"},
            {"key": UNREACHABLE, "effect": "NoExecute", "timeAdded": "2025-01-01T00:00:00Z"},
            {"key": "team", "effect": "NoSchedule"},
        ]}});
        check(&node("True", &tainted), true, Some(&["team:NoSchedule"]));
        check(&node("Unknown", &tainted), true, None);
        let born = json!({"spec": {"taints": [{"key": NOT_READY, "effect": "NoSchedule"}]}});
        check(&node("True", &born), true, Some(&[]));
        let mut silent = node("True", &born);
        silent.status = None;
        check(&silent, true, None);
    }

    #[test]
    fn a_silent_node_gets_unknown_kubelet_conditions() {
        let node = node(
            "True",
            &json!({"status": {"conditions": [
                {"type": "Ready", "status": "True"}, {"type": "NetworkUnavailable", "status": "False"},
            ]}}),
        );
        let after = unknown_conditions(&node, now()).unwrap();
        let states: Vec<(&str, &str, &str)> = after
            .iter()
            .map(|it| (it.type_.as_str(), it.status.as_str(), it.reason.as_deref().unwrap_or("")))
            .collect();
        let expected = [
            ("Ready", "Unknown", "NodeStatusUnknown"),
            ("NetworkUnavailable", "False", ""),
            ("MemoryPressure", "Unknown", "NodeStatusNeverUpdated"),
            ("DiskPressure", "Unknown", "NodeStatusNeverUpdated"),
            ("PIDPressure", "Unknown", "NodeStatusNeverUpdated"),
        ];
        assert_eq!(states, expected);
        let mut reported = node;
        reported.status.as_mut().unwrap().conditions = Some(after);
        assert_eq!(unknown_conditions(&reported, now()), None, "already set");
    }
}
