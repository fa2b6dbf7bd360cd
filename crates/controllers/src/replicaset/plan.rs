//! The plan of a ReplicaSet: pods to create or to delete, and the new status.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::deletion_order::pods_to_delete;
use crate::difference::count;
use crate::pod::Pod;
use crate::time;

/// The pods to create or to delete; at most one of the two is non-empty.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ScalePlan {
    pub(super) create: usize,
    pub(super) delete: Vec<Arc<Pod>>,
}

/// Compares the active pods with `spec.replicas`. `related_pods` is the number of active pods of
/// the same Deployment on each node.
pub(super) fn plan(
    set: &ReplicaSet,
    pods: &[Arc<Pod>],
    related_pods: impl FnOnce() -> BTreeMap<String, usize>,
    now: Timestamp,
) -> ScalePlan {
    if set.metadata.deletion_timestamp.is_some() {
        return ScalePlan::default();
    }
    let active: Vec<Arc<Pod>> = pods.iter().filter(|pod| pod.is_active()).cloned().collect();
    let wanted = replicas(set);
    match active.len().checked_sub(wanted) {
        None => ScalePlan { create: wanted - active.len(), delete: Vec::new() },
        Some(0) => ScalePlan::default(),
        Some(surplus) => {
            ScalePlan { create: 0, delete: pods_to_delete(&active, surplus, &related_pods(), now) }
        }
    }
}

pub(super) fn replicas(set: &ReplicaSet) -> usize {
    let wanted = set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    usize::try_from(wanted).unwrap_or(0)
}

/// Why pods could not be created or deleted; becomes the condition `ReplicaFailure`.
#[derive(Clone, Debug)]
pub(super) struct ReplicaFailure {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// The new status, and how long until a ready pod becomes available by the passing of time.
pub(super) fn status(
    set: &ReplicaSet,
    pods: &[Arc<Pod>],
    failure: Option<&ReplicaFailure>,
    now: Timestamp,
) -> (ReplicaSetStatus, Option<Duration>) {
    let spec = set.spec.as_ref();
    let min_ready_seconds = spec.and_then(|spec| spec.min_ready_seconds).unwrap_or(0);
    let template = spec.and_then(|spec| spec.template.as_ref()?.metadata.as_ref()?.labels.as_ref());
    let active: Vec<&Arc<Pod>> = pods.iter().filter(|pod| pod.is_active()).collect();
    let ready: Vec<&&Arc<Pod>> = active.iter().filter(|pod| pod.is_ready()).collect();
    let waits: Vec<Duration> =
        ready.iter().map(|pod| until_available(pod, min_ready_seconds, now)).collect();
    let terminating = pods.iter().filter(|pod| pod.is_deleting() && !pod.is_finished()).count();
    let before = set.status.clone().unwrap_or_default();
    let status = ReplicaSetStatus {
        replicas: i32::try_from(active.len()).unwrap_or(i32::MAX),
        fully_labeled_replicas: count(
            active
                .iter()
                .filter(|pod| template.is_none_or(|labels| pod.has_labels(labels)))
                .count(),
        ),
        ready_replicas: count(ready.len()),
        available_replicas: count(waits.iter().filter(|wait| wait.is_zero()).count()),
        terminating_replicas: i32::try_from(terminating).ok(),
        observed_generation: set.metadata.generation,
        conditions: conditions(before.conditions.unwrap_or_default(), failure, now),
    };
    (status, waits.into_iter().filter(|wait| !wait.is_zero()).min())
}

/// How long a ready pod must stay ready until it is available.
fn until_available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> Duration {
    if min_ready_seconds <= 0 {
        return Duration::ZERO;
    }
    let since = pod.ready_since().map_or(now, |time| time.0);
    time::until(now, time::after(since, min_ready_seconds))
}

const REPLICA_FAILURE: &str = "ReplicaFailure";

fn conditions(
    mut known: Vec<ReplicaSetCondition>,
    failure: Option<&ReplicaFailure>,
    now: Timestamp,
) -> Option<Vec<ReplicaSetCondition>> {
    let same = |condition: &ReplicaSetCondition, failure: &ReplicaFailure| {
        condition.type_ == REPLICA_FAILURE && condition.reason.as_deref() == Some(failure.reason)
    };
    match failure {
        Some(failure) if known.iter().any(|condition| same(condition, failure)) => {}
        Some(failure) => {
            known.retain(|condition| condition.type_ != REPLICA_FAILURE);
            known.push(ReplicaSetCondition {
                type_: REPLICA_FAILURE.to_owned(),
                status: "True".to_owned(),
                reason: Some(failure.reason.to_owned()),
                message: Some(failure.message.clone()),
                last_transition_time: Some(Time(now)),
            });
        }
        None => known.retain(|condition| condition.type_ != REPLICA_FAILURE),
    }
    (!known.is_empty()).then_some(known)
}

/// The number of active pods on each node.
pub(super) fn active_pods_by_node<'a>(
    pods: impl Iterator<Item = &'a Arc<Pod>>,
) -> BTreeMap<String, usize> {
    let mut active_pods_by_node = BTreeMap::new();
    for pod in pods.filter(|pod| pod.is_active()) {
        if let Some(node) = pod.node() {
            *active_pods_by_node.entry(node.to_owned()).or_insert(0) += 1;
        }
    }
    active_pods_by_node
}

#[cfg(test)]
mod tests {
    use headwater_client::Cached;
    use serde_json::{Value, json};

    use super::*;

    const NOW: &str = "2026-01-01T00:01:00Z";

    fn now() -> Timestamp {
        NOW.parse().unwrap()
    }

    fn set(replicas: i32) -> ReplicaSet {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "uid": "set", "generation": 3},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
                "template": {"metadata": {"labels": {"app": "web", "tier": "a"}}}},
        }))
        .unwrap()
    }

    fn pod(name: &str, change: Value) -> Arc<Pod> {
        let mut value = json!({
            "metadata": {"name": name, "uid": name, "labels": {"app": "web", "tier": "a"}},
        });
        crate::fixture::merge(&mut value, &change);
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn ready(since: &str) -> Value {
        json!({"spec": {"nodeName": "n"}, "status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": since},
        ]}})
    }

    fn deleting() -> Value {
        json!({"metadata": {"deletionTimestamp": NOW}})
    }

    fn names(pods: &[Arc<Pod>]) -> Vec<&str> {
        pods.iter().map(|pod| pod.name()).collect()
    }

    #[track_caller]
    fn check(wanted: i32, pods: &[Arc<Pod>], create: usize, delete: &[&str]) {
        let plan = plan(&set(wanted), pods, BTreeMap::new, now());
        assert_eq!((plan.create, names(&plan.delete)), (create, delete.to_vec()));
    }

    #[test]
    fn active_pods_are_scaled_to_the_desired_number() {
        let plain = |name| pod(name, json!({}));
        check(0, &[], 0, &[]);
        check(3, &[], 3, &[]);
        check(3, &[plain("a")], 2, &[]);
        check(1, &[plain("a")], 0, &[]);
        check(1, &[pod("a", ready(NOW)), plain("b"), plain("c")], 0, &["b", "c"]);
        check(1, &[pod("a", deleting())], 1, &[]);
        check(1, &[pod("a", json!({"status": {"phase": "Failed"}}))], 1, &[]);
        check(1, &[pod("a", json!({"status": {"phase": "Succeeded"}}))], 1, &[]);
        check(0, &[pod("a", deleting()), plain("b")], 0, &["b"]);
    }

    #[test]
    fn a_set_that_is_being_deleted_does_nothing() {
        let mut set = set(3);
        set.metadata.deletion_timestamp = Some(Time(now()));
        assert_eq!(plan(&set, &[], BTreeMap::new, now()), ScalePlan::default());
    }

    #[test]
    fn the_status_counts_pods() {
        let pods = [
            pod("new", json!({})),
            pod("ready", ready(NOW)),
            pod("strange", json!({"metadata": {"labels": {"tier": null}}})),
            pod("deleting", deleting()),
            pod("failed", json!({"status": {"phase": "Failed"}})),
        ];
        let (status, wait) = status(&set(3), &pods, None, now());
        assert_eq!(status.replicas, 3);
        assert_eq!(status.fully_labeled_replicas, Some(2));
        assert_eq!(status.ready_replicas, Some(1));
        assert_eq!(status.available_replicas, Some(1));
        assert_eq!(status.terminating_replicas, Some(1));
        assert_eq!(status.observed_generation, Some(3));
        assert_eq!((status.conditions, wait), (None, None));
    }

    #[test]
    fn a_pod_is_available_after_min_ready_seconds() {
        let mut set = set(2);
        set.spec.as_mut().unwrap().min_ready_seconds = Some(40);
        let pods =
            [pod("old", ready("2026-01-01T00:00:00Z")), pod("new", ready("2026-01-01T00:00:50Z"))];
        let (status, wait) = status(&set, &pods, None, now());
        assert_eq!((status.ready_replicas, status.available_replicas), (Some(2), Some(1)));
        assert_eq!(wait, Some(Duration::from_secs(30)));
    }

    #[test]
    fn a_failure_sets_the_condition_and_a_success_removes_it() {
        let failure = ReplicaFailure { reason: "FailedCreate", message: "quota".into() };
        let mut set = set(2);
        let (first, _) = status(&set, &[], Some(&failure), now());
        let condition = &first.conditions.as_ref().unwrap()[0];
        assert_eq!(
            (condition.type_.as_str(), condition.status.as_str()),
            (REPLICA_FAILURE, "True")
        );
        set.status = Some(first.clone());
        let later = "2026-01-01T01:00:00Z".parse().unwrap();
        assert_eq!(
            status(&set, &[], Some(&failure), later).0,
            first,
            "no write for the same failure"
        );
        assert_eq!(status(&set, &[], None, later).0.conditions, None);
    }
}
