//! The order in which surplus pods are deleted.
//!
//! The order is that of Kubernetes. Each field of [`DeletionRank`] is one of its rules; pods with a
//! smaller rank are deleted first.

use std::collections::BTreeMap;
use std::sync::Arc;

use headwater_client::Cached;
use jiff::Timestamp;

use crate::pod::Pod;

const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// The rank of a pod; fields are compared in order.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DeletionRank {
    is_bound: bool,
    phase: u8,
    is_ready: bool,
    deletion_cost: i32,
    /// Pods on nodes with fewer related pods are kept.
    related: std::cmp::Reverse<usize>,
    /// How long the pod has been ready, in powers of two, so that small differences do not count.
    ready_for: u32,
    restarts: std::cmp::Reverse<i32>,
    age: u32,
    uid: String,
}

impl DeletionRank {
    fn of(pod: &Pod, related: &BTreeMap<String, usize>, now: Timestamp) -> DeletionRank {
        let on_node = pod.node().and_then(|node| related.get(node)).copied().unwrap_or(0);
        let since = |then: Option<Timestamp>| then.map_or(0, |then| logarithm(now, then));
        DeletionRank {
            is_bound: pod.node().is_some(),
            phase: match pod.phase() {
                "Pending" => 0,
                "Unknown" => 1,
                _ => 2,
            },
            is_ready: pod.is_ready(),
            deletion_cost: pod
                .annotation(DELETION_COST)
                .and_then(|it| it.parse().ok())
                .unwrap_or(0),
            related: std::cmp::Reverse(on_node),
            ready_for: since(pod.ready_since().map(|time| time.0)),
            restarts: std::cmp::Reverse(restarts(pod)),
            age: since(pod.metadata.creation_timestamp.as_ref().map(|time| time.0)),
            uid: pod.uid().to_owned(),
        }
    }
}

fn restarts(pod: &Pod) -> i32 {
    pod.status.container_statuses.iter().map(|container| container.restart_count).max().unwrap_or(0)
}

/// The binary logarithm of the seconds since `then`, plus one.
fn logarithm(now: Timestamp, then: Timestamp) -> u32 {
    let seconds = now.as_second() - then.as_second();
    u64::try_from(seconds).ok().and_then(u64::checked_ilog2).map_or(0, |power| power + 1)
}

/// The `count` pods to delete. `related` is the number of related active pods on each node.
pub(crate) fn pods_to_delete(
    pods: &[Arc<Pod>],
    count: usize,
    related: &BTreeMap<String, usize>,
    now: Timestamp,
) -> Vec<Arc<Pod>> {
    let mut ranked: Vec<_> =
        pods.iter().map(|pod| (DeletionRank::of(pod, related, now), Arc::clone(pod))).collect();
    if count < ranked.len() {
        ranked.sort_by(|(one, _), (other, _)| one.cmp(other));
    }
    ranked.into_iter().take(count).map(|(_, pod)| pod).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, change: &Value) -> Arc<Pod> {
        let mut value = json!({
            "metadata": {"name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"nodeName": "n1"},
            "status": {"phase": "Running", "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            ]},
        });
        crate::fixture::merge(&mut value, change);
        Arc::new(serde_json::from_value(value).unwrap())
    }

    /// A pod with this change is deleted before an unchanged one, whatever their names are.
    #[track_caller]
    fn check(change: &Value) {
        let now = "2026-01-02T00:00:00Z".parse().unwrap();
        let related = [("n1".to_owned(), 1), ("crowded".to_owned(), 2)].into();
        for (name, other) in [("a", "b"), ("b", "a")] {
            let pods = [pod(other, &json!({})), pod(name, change)];
            let deleted = pods_to_delete(&pods, 1, &related, now);
            assert_eq!(deleted[0].name(), name, "{change}");
        }
    }

    #[test]
    fn each_rule_decides_which_of_two_pods_is_deleted_first() {
        check(&json!({"spec": {"nodeName": null}}));
        check(&json!({"status": {"phase": "Pending"}}));
        check(&json!({"status": {"phase": "Unknown"}}));
        check(&json!({"status": {"conditions": []}}));
        check(&json!({"metadata": {"annotations": {DELETION_COST: "-1"}}}));
        check(&json!({"spec": {"nodeName": "crowded"}}));
        check(&json!({"status": {"conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T23:00:00Z"},
        ]}}));
        check(&json!({"status": {"containerStatuses": [{"name": "c", "restartCount": 3}]}}));
        check(&json!({"metadata": {"creationTimestamp": "2026-01-01T23:00:00Z"}}));
    }

    #[test]
    fn an_earlier_rule_takes_precedence_over_a_later_one() {
        // Deleted first because it is not bound, although its deletion cost is high.
        check(&json!({
            "spec": {"nodeName": null},
            "metadata": {"annotations": {DELETION_COST: "100"}},
        }));
    }
}
