//! Which pods go first when there are too many.
//!
//! The order is Kubernetes': what is worth least is deleted first. Each line of [`Rank::of`] is one
//! of its rules; a smaller rank goes earlier.

use std::collections::BTreeMap;
use std::sync::Arc;

use headwater_client::Cached;
use jiff::Timestamp;

use crate::pod::Pod;

const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// How much a pod is worth keeping.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    is_bound: bool,
    phase: u8,
    is_ready: bool,
    deletion_cost: i32,
    /// Fewer neighbours of the same family on its node are worth more.
    spread: std::cmp::Reverse<usize>,
    /// Longer ready, in powers of two: a rough measure, so that not all pods of an age go.
    ready_for: u32,
    restarts: std::cmp::Reverse<i32>,
    age: u32,
    uid: String,
}

impl Rank {
    fn of(pod: &Pod, neighbours: &BTreeMap<String, usize>, now: Timestamp) -> Rank {
        let crowd = pod.node().and_then(|node| neighbours.get(node)).copied().unwrap_or(0);
        let since = |then: Option<Timestamp>| then.map_or(0, |then| logarithm(now, then));
        Rank {
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
            spread: std::cmp::Reverse(crowd),
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

/// How long ago, in powers of two of a second.
fn logarithm(now: Timestamp, then: Timestamp) -> u32 {
    let seconds = now.as_second() - then.as_second();
    u64::try_from(seconds).ok().and_then(u64::checked_ilog2).map_or(0, |power| power + 1)
}

/// The `count` pods that are worth least. `neighbours` says how many active pods of the family are
/// on each node.
pub(crate) fn worth_least(
    pods: &[Arc<Pod>],
    count: usize,
    neighbours: &BTreeMap<String, usize>,
    now: Timestamp,
) -> Vec<Arc<Pod>> {
    let mut ranked: Vec<_> =
        pods.iter().map(|pod| (Rank::of(pod, neighbours, now), Arc::clone(pod))).collect();
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

    /// `less` is deleted before a plain pod, whatever their names are.
    #[track_caller]
    fn check(less: &Value) {
        let now = "2026-01-02T00:00:00Z".parse().unwrap();
        let neighbours = [("n1".to_owned(), 1), ("crowded".to_owned(), 2)].into();
        for (name, other) in [("a", "b"), ("b", "a")] {
            let pods = [pod(other, &json!({})), pod(name, less)];
            let least = worth_least(&pods, 1, &neighbours, now);
            assert_eq!(least[0].name(), name, "{less}");
        }
    }

    #[test]
    fn pods_that_are_worth_less_go_first() {
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
    fn an_earlier_rule_decides_before_a_later_one() {
        // Not bound, but ready for long and cheap to keep: it goes all the same.
        check(&json!({
            "spec": {"nodeName": null},
            "metadata": {"annotations": {DELETION_COST: "100"}},
        }));
    }
}
