//! The status of a budget, as a function of its pods.

use std::collections::BTreeMap;
use std::time::Duration;

use headwater_client::Cached;
use jiff::Timestamp;
use k8s_openapi::api::policy::v1::{
    PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::int_or_percent::resolve;
use crate::ownership::controller_of;
use crate::pod::Pod;
use crate::time;

/// An evicted pod that is not being deleted after this time counts as healthy again.
const DISRUPTED_POD_TIMEOUT_SECONDS: i64 = 120;

const DISRUPTION_ALLOWED: &str = "DisruptionAllowed";

/// The desired number of pods of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ControllerScale {
    uid: String,
    replicas: i32,
}

impl ControllerScale {
    pub(super) fn of(uid: &str, replicas: Option<i32>) -> ControllerScale {
        ControllerScale { uid: uid.to_owned(), replicas: replicas.unwrap_or(1) }
    }
}

/// The status of a budget, and when to compute it again without a change.
#[derive(Debug, PartialEq)]
pub(super) struct BudgetStatus {
    pub(super) status: PodDisruptionBudgetStatus,
    pub(super) next_check: Option<Duration>,
}

/// Computes the status of a budget. `scales` is keyed by the UID of the pod's controller.
pub(super) fn compute_status(
    budget: &PodDisruptionBudget,
    pods: &[&Pod],
    scales: &BTreeMap<String, ControllerScale>,
    now: Timestamp,
) -> BudgetStatus {
    let spec = budget.spec.clone().unwrap_or_default();
    let before = budget.status.clone().unwrap_or_default();
    let generation = budget.metadata.generation;
    let (disrupted, next_check) = disrupted(&before, pods, now);
    let wanted = match expected_pods(&spec, pods, scales) {
        Ok(wanted) => wanted,
        Err(why) => {
            // On an error, no disruption is allowed.
            let mut status = PodDisruptionBudgetStatus { disruptions_allowed: Some(0), ..before };
            set_condition(&mut status, "SyncFailed", &why, now);
            return BudgetStatus { status, next_check };
        }
    };
    let healthy =
        |pod: &&&Pod| !pod.is_deleting() && !disrupted.contains_key(pod.name()) && pod.is_ready();
    let healthy = i32::try_from(pods.iter().filter(healthy).count()).unwrap_or(i32::MAX);
    // A budget without pods allows no disruption, so that its first pods are protected.
    let spare = healthy.saturating_sub(wanted.healthy).max(0);
    let allowed = if wanted.pods > 0 { spare } else { 0 };
    let mut status = PodDisruptionBudgetStatus {
        current_healthy: Some(healthy),
        desired_healthy: Some(wanted.healthy),
        expected_pods: Some(wanted.pods),
        disruptions_allowed: Some(allowed),
        disrupted_pods: (!disrupted.is_empty()).then_some(disrupted),
        observed_generation: generation,
        conditions: before.conditions,
    };
    let reason = if allowed > 0 { "SufficientPods" } else { "InsufficientPods" };
    set_condition(&mut status, reason, "", now);
    BudgetStatus { status, next_check }
}

/// The expected number of pods, and how many of them must be healthy.
struct ExpectedPods {
    pods: i32,
    healthy: i32,
}

fn expected_pods(
    spec: &PodDisruptionBudgetSpec,
    pods: &[&Pod],
    scales: &BTreeMap<String, ControllerScale>,
) -> Result<ExpectedPods, String> {
    let count = i32::try_from(pods.len()).unwrap_or(i32::MAX);
    if let Some(most) = &spec.max_unavailable {
        let pods = scale(pods, scales)?;
        return Ok(ExpectedPods {
            pods,
            healthy: pods.saturating_sub(resolve(most, pods, f64::ceil)?).max(0),
        });
    }
    match &spec.min_available {
        None => Ok(ExpectedPods { pods: 0, healthy: 0 }),
        Some(IntOrString::Int(least)) => Ok(ExpectedPods { pods: count, healthy: *least }),
        Some(least) => {
            let pods = scale(pods, scales)?;
            Ok(ExpectedPods { pods, healthy: resolve(least, pods, f64::ceil)? })
        }
    }
}

/// The sum of the scales of the pods' controllers. Pods without a controller do not count.
fn scale(pods: &[&Pod], scales: &BTreeMap<String, ControllerScale>) -> Result<i32, String> {
    let mut owners: BTreeMap<&str, i32> = BTreeMap::new();
    for pod in pods {
        let Some(owner) = controller_of(&pod.metadata) else { continue };
        let Some(scale) = scales.get(&owner.uid) else {
            return Err(format!("found no controllers for pod \"{}\"", pod.name()));
        };
        owners.insert(&scale.uid, scale.replicas);
    }
    Ok(owners.values().fold(0, |sum: i32, replicas| sum.saturating_add(*replicas)))
}

/// Evicted pods that are not being deleted yet, and when the first of them times out.
fn disrupted(
    before: &PodDisruptionBudgetStatus,
    pods: &[&Pod],
    now: Timestamp,
) -> (BTreeMap<String, Time>, Option<Duration>) {
    let mut disrupted = BTreeMap::new();
    let mut next_check: Option<Duration> = None;
    let evicted = before.disrupted_pods.iter().flatten();
    for (name, since) in evicted {
        let is_there = pods.iter().any(|pod| pod.name() == name && !pod.is_deleting());
        let left = time::until(now, time::after(since.0, DISRUPTED_POD_TIMEOUT_SECONDS));
        if is_there && !left.is_zero() {
            disrupted.insert(name.clone(), since.clone());
            next_check = next_check.into_iter().chain([left]).min();
        }
    }
    (disrupted, next_check)
}

/// Sets the condition; keeps its transition time if the status is unchanged.
fn set_condition(
    status: &mut PodDisruptionBudgetStatus,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let is_allowed = if status.disruptions_allowed > Some(0) { "True" } else { "False" };
    let conditions = status.conditions.get_or_insert_default();
    let before = conditions.iter().find(|condition| condition.type_ == DISRUPTION_ALLOWED);
    let since = before.filter(|before| before.status == is_allowed);
    let since = since.map_or(Time(now), |before| before.last_transition_time.clone());
    conditions.retain(|condition| condition.type_ != DISRUPTION_ALLOWED);
    conditions.push(Condition {
        type_: DISRUPTION_ALLOWED.to_owned(),
        status: is_allowed.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: since,
        observed_generation: status.observed_generation,
    });
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const START: &str = "2026-01-01T00:00:00Z";

    fn at(seconds: i64) -> Timestamp {
        time::after(START.parse().unwrap(), seconds)
    }

    fn budget(spec: &Value, status: &Value) -> PodDisruptionBudget {
        let budget = json!({
            "metadata": {"name": "b", "namespace": "shop", "generation": 3},
            "spec": spec, "status": status,
        });
        serde_json::from_value(budget).unwrap()
    }

    /// A pod of the ReplicaSet `owner`, or without a controller if it is empty.
    fn pod(name: &str, owner: &str, ready: bool) -> Pod {
        let owners = match owner {
            "" => json!([]),
            uid => json!([{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": uid, "uid": uid,
                "controller": true,
            }]),
        };
        let ready = if ready { "True" } else { "False" };
        let pod = json!({
            "metadata": {"name": name, "namespace": "shop", "ownerReferences": owners},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
        });
        serde_json::from_value(pod).unwrap()
    }

    fn scales(all: &[(&str, i32)]) -> BTreeMap<String, ControllerScale> {
        all.iter().map(|(uid, n)| ((*uid).to_owned(), ControllerScale::of(uid, Some(*n)))).collect()
    }

    /// Expects current healthy, desired healthy, expected pods, disruptions allowed.
    #[track_caller]
    fn check(spec: Value, pods: &[Pod], owners: &[(&str, i32)], expected: [i32; 4]) {
        let pods: Vec<&Pod> = pods.iter().collect();
        let found =
            compute_status(&budget(&spec, &json!({})), &pods, &scales(owners), at(0)).status;
        let figures = [
            found.current_healthy,
            found.desired_healthy,
            found.expected_pods,
            found.disruptions_allowed,
        ];
        assert_eq!(figures, expected.map(Some), "{spec}");
        assert_eq!(found.observed_generation, Some(3));
    }

    #[test]
    fn a_budget_allows_the_healthy_pods_beyond_the_desired_ones() {
        let three = [pod("a", "rs", true), pod("b", "rs", true), pod("c", "rs", true)];
        let two = [pod("a", "rs", true), pod("b", "rs", true), pod("c", "rs", false)];
        let rs = [("rs", 3)];
        check(json!({"minAvailable": 2}), &three, &rs, [3, 2, 3, 1]);
        check(json!({"minAvailable": 2}), &two, &rs, [2, 2, 3, 0]);
        check(json!({"minAvailable": 5}), &three, &rs, [3, 5, 3, 0]);
        check(json!({"minAvailable": "50%"}), &three, &rs, [3, 2, 3, 1]);
        check(json!({"minAvailable": "100%"}), &three, &rs, [3, 3, 3, 0]);
        check(json!({"maxUnavailable": 1}), &three, &rs, [3, 2, 3, 1]);
        check(json!({"maxUnavailable": 1}), &two, &rs, [2, 2, 3, 0]);
        check(json!({"maxUnavailable": "34%"}), &three, &rs, [3, 1, 3, 2]);
        check(json!({"maxUnavailable": 9}), &three, &rs, [3, 0, 3, 3]);
        check(json!({"minAvailable": 0}), &[], &[], [0, 0, 0, 0]);
        check(json!({"maxUnavailable": 1}), &[], &[], [0, 0, 0, 0]);
    }

    #[test]
    fn the_scale_of_controllers_counts_not_the_number_of_pods() {
        let pods = [pod("a", "one", true), pod("b", "two", true), pod("lonely", "", true)];
        check(json!({"maxUnavailable": 1}), &pods, &[("one", 3), ("two", 2)], [3, 4, 5, 0]);
        check(json!({"minAvailable": 1}), &pods, &[], [3, 1, 3, 2]);
    }

    #[test]
    fn an_error_allows_no_disruption() {
        let pods = [pod("a", "job", true)];
        let pods: Vec<&Pod> = pods.iter().collect();
        let status = json!({"disruptionsAllowed": 4, "currentHealthy": 5, "desiredHealthy": 1, "expectedPods": 5});
        let budget = budget(&json!({"maxUnavailable": 1}), &status);
        let found = compute_status(&budget, &pods, &BTreeMap::new(), at(0)).status;
        assert_eq!(found.disruptions_allowed, Some(0));
        let condition = &found.conditions.unwrap()[0];
        assert_eq!((condition.reason.as_str(), condition.status.as_str()), ("SyncFailed", "False"));
    }

    #[test]
    fn an_evicted_pod_counts_as_disrupted_for_two_minutes() {
        let pods = [pod("a", "rs", true), pod("b", "rs", true)];
        let pods: Vec<&Pod> = pods.iter().collect();
        let status = json!({
            "disruptedPods": {"a": START, "gone": START},
            "disruptionsAllowed": 0, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2,
        });
        let budget = budget(&json!({"minAvailable": 1}), &status);
        let early = compute_status(&budget, &pods, &BTreeMap::new(), at(20));
        assert_eq!(early.next_check, Some(Duration::from_secs(100)));
        assert_eq!(early.status.current_healthy, Some(1));
        let names: Vec<String> = early.status.disrupted_pods.unwrap().into_keys().collect();
        assert_eq!(names, ["a"], "deleted pods are dropped");
        let late = compute_status(&budget, &pods, &BTreeMap::new(), at(120));
        assert_eq!((late.status.disruptions_allowed, late.status.disrupted_pods), (Some(1), None));
    }

    #[test]
    fn the_condition_keeps_its_transition_time() {
        let pods = [pod("a", "rs", true), pod("b", "rs", true)];
        let pods: Vec<&Pod> = pods.iter().collect();
        let spec = json!({"minAvailable": 1});
        let first =
            compute_status(&budget(&spec, &json!({})), &pods, &BTreeMap::new(), at(5)).status;
        let mut again = budget(&spec, &json!({}));
        again.status = Some(first.clone());
        assert_eq!(compute_status(&again, &pods, &BTreeMap::new(), at(9)).status, first, "no news");
        let fewer = compute_status(&again, &pods[..1], &BTreeMap::new(), at(9)).status;
        let condition = &fewer.conditions.unwrap()[0];
        assert_eq!(
            (condition.reason.as_str(), condition.status.as_str()),
            ("InsufficientPods", "False")
        );
        assert_eq!(condition.last_transition_time, Time(at(9)));
    }
}
