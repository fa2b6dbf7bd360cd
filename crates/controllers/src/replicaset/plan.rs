//! What a ReplicaSet needs now: pods to create, pods to delete, and the status it has earned.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::difference::count;
use crate::moment;
use crate::pod::Pod;
use crate::rank::worth_least;

/// What is to be done. At most one of the two is not empty.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) create: usize,
    pub(super) delete: Vec<Arc<Pod>>,
}

/// Compares the pods that are there with the number that is wanted. `neighbours` says how many
/// active pods of the same Deployment are on each node.
pub(super) fn plan(
    set: &ReplicaSet,
    pods: &[Arc<Pod>],
    neighbours: impl FnOnce() -> BTreeMap<String, usize>,
    now: Timestamp,
) -> Plan {
    if set.metadata.deletion_timestamp.is_some() {
        return Plan::default();
    }
    let active: Vec<Arc<Pod>> = pods.iter().filter(|pod| pod.is_active()).cloned().collect();
    let wanted = replicas(set);
    match active.len().checked_sub(wanted) {
        None => Plan { create: wanted - active.len(), delete: Vec::new() },
        Some(0) => Plan::default(),
        Some(surplus) => {
            Plan { create: 0, delete: worth_least(&active, surplus, &neighbours(), now) }
        }
    }
}

pub(super) fn replicas(set: &ReplicaSet) -> usize {
    let wanted = set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    usize::try_from(wanted).unwrap_or(0)
}

/// Why the number of pods could not be changed.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// The status, and when it will change by itself because a pod has been ready for long enough.
pub(super) fn status(
    set: &ReplicaSet,
    pods: &[Arc<Pod>],
    trouble: Option<&Trouble>,
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
        fully_labeled_replicas: count(active.iter().filter(|pod| has_all(pod, template)).count()),
        ready_replicas: count(ready.len()),
        available_replicas: count(waits.iter().filter(|wait| wait.is_zero()).count()),
        terminating_replicas: i32::try_from(terminating).ok(),
        observed_generation: set.metadata.generation,
        conditions: conditions(before.conditions.unwrap_or_default(), trouble, now),
    };
    (status, waits.into_iter().filter(|wait| !wait.is_zero()).min())
}

/// Whether a pod has every label of the template it was made from.
fn has_all(pod: &Pod, wanted: Option<&BTreeMap<String, String>>) -> bool {
    let labels = pod.metadata.labels.as_ref();
    let mut wanted = wanted.into_iter().flatten();
    wanted.all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
}

/// How long a ready pod has to stay so until it counts as available.
fn until_available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> Duration {
    if min_ready_seconds <= 0 {
        return Duration::ZERO;
    }
    let since = pod.ready_since().map_or(now, |time| time.0);
    moment::until(now, moment::after(since, min_ready_seconds))
}

const REPLICA_FAILURE: &str = "ReplicaFailure";

fn conditions(
    mut known: Vec<ReplicaSetCondition>,
    trouble: Option<&Trouble>,
    now: Timestamp,
) -> Option<Vec<ReplicaSetCondition>> {
    let same = |condition: &ReplicaSetCondition, trouble: &Trouble| {
        condition.type_ == REPLICA_FAILURE && condition.reason.as_deref() == Some(trouble.reason)
    };
    match trouble {
        Some(trouble) if known.iter().any(|condition| same(condition, trouble)) => {}
        Some(trouble) => {
            known.retain(|condition| condition.type_ != REPLICA_FAILURE);
            known.push(ReplicaSetCondition {
                type_: REPLICA_FAILURE.to_owned(),
                status: "True".to_owned(),
                reason: Some(trouble.reason.to_owned()),
                message: Some(trouble.message.clone()),
                last_transition_time: Some(Time(now)),
            });
        }
        None => known.retain(|condition| condition.type_ != REPLICA_FAILURE),
    }
    (!known.is_empty()).then_some(known)
}

/// How many active pods are on each node.
pub(super) fn crowds<'a>(pods: impl Iterator<Item = &'a Arc<Pod>>) -> BTreeMap<String, usize> {
    let mut crowds = BTreeMap::new();
    for pod in pods.filter(|pod| pod.is_active()) {
        if let Some(node) = pod.node() {
            *crowds.entry(node.to_owned()).or_insert(0) += 1;
        }
    }
    crowds
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

    fn ending() -> Value {
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
    fn the_number_of_active_pods_becomes_the_number_that_is_wanted() {
        let plain = |name| pod(name, json!({}));
        check(0, &[], 0, &[]);
        check(3, &[], 3, &[]);
        check(3, &[plain("a")], 2, &[]);
        check(1, &[plain("a")], 0, &[]);
        check(1, &[pod("a", ready(NOW)), plain("b"), plain("c")], 0, &["b", "c"]);
        check(1, &[pod("a", ending())], 1, &[]);
        check(1, &[pod("a", json!({"status": {"phase": "Failed"}}))], 1, &[]);
        check(1, &[pod("a", json!({"status": {"phase": "Succeeded"}}))], 1, &[]);
        check(0, &[pod("a", ending()), plain("b")], 0, &["b"]);
    }

    #[test]
    fn a_set_that_ends_does_nothing() {
        let mut set = set(3);
        set.metadata.deletion_timestamp = Some(Time(now()));
        assert_eq!(plan(&set, &[], BTreeMap::new, now()), Plan::default());
    }

    #[test]
    fn the_status_counts_what_is_there() {
        let pods = [
            pod("new", json!({})),
            pod("ready", ready(NOW)),
            pod("strange", json!({"metadata": {"labels": {"tier": null}}})),
            pod("ending", ending()),
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
    fn a_pod_is_available_once_it_has_been_ready_for_long_enough() {
        let mut set = set(2);
        set.spec.as_mut().unwrap().min_ready_seconds = Some(40);
        let pods =
            [pod("old", ready("2026-01-01T00:00:00Z")), pod("new", ready("2026-01-01T00:00:50Z"))];
        let (status, wait) = status(&set, &pods, None, now());
        assert_eq!((status.ready_replicas, status.available_replicas), (Some(2), Some(1)));
        assert_eq!(wait, Some(Duration::from_secs(30)));
    }

    #[test]
    fn trouble_becomes_a_condition_and_goes_with_it() {
        let trouble = Trouble { reason: "FailedCreate", message: "quota".into() };
        let mut set = set(2);
        let (first, _) = status(&set, &[], Some(&trouble), now());
        let condition = &first.conditions.as_ref().unwrap()[0];
        assert_eq!(
            (condition.type_.as_str(), condition.status.as_str()),
            (REPLICA_FAILURE, "True")
        );
        set.status = Some(first.clone());
        let later = "2026-01-01T01:00:00Z".parse().unwrap();
        assert_eq!(
            status(&set, &[], Some(&trouble), later).0,
            first,
            "no write for the same trouble"
        );
        assert_eq!(status(&set, &[], None, later).0.conditions, None);
    }
}
