//! The status of a Deployment: counts and conditions, with the reasons that
//! `kubectl rollout status` waits for.

use std::time::Duration;

use headwater_client::Cached;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::difference::count;
use crate::time;

use super::rollout::max_unavailable;
use super::sets::{ReplicaSets, available, counts, replicas, spec};

const PROGRESSING: &str = "Progressing";
const AVAILABLE: &str = "Available";
const REPLICA_FAILURE: &str = "ReplicaFailure";

/// What a pass did, for the conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SyncResult {
    /// The Deployment is being deleted or is paused: only the counts are updated.
    StatusOnly,
    /// A rollout was continued, or there was nothing to do.
    RolledOut,
    /// The set of a new template was created.
    Created(String),
    /// The set of a new template could not be created.
    CreateFailed { name: String, why: String },
}

/// The status after a pass.
pub(super) fn status(
    deployment: &Deployment,
    sets: &ReplicaSets,
    pass: &SyncResult,
    now: Timestamp,
) -> DeploymentStatus {
    let before = deployment.status.clone().unwrap_or_default();
    let mut after = counted(deployment, sets, &before);
    let mut conditions = Conditions { known: before.conditions.clone().unwrap_or_default(), now };
    conditions.availability(deployment, &after);
    conditions.pause(deployment);
    match pass {
        SyncResult::StatusOnly => {}
        SyncResult::Created(name) => {
            let message = format!("Created new replica set {name:?}");
            conditions.progressing(deployment, "True", "NewReplicaSetCreated", message);
        }
        SyncResult::CreateFailed { name, why } => {
            let message = format!("Failed to create new replica set {name:?}: {why}");
            conditions.progressing(deployment, "False", "ReplicaSetCreateError", message);
        }
        SyncResult::RolledOut => {
            conditions.found(deployment, sets);
            conditions.rolled(deployment, sets, &before, &after);
        }
    }
    conditions.failures(sets);
    after.conditions = (!conditions.known.is_empty()).then_some(conditions.known);
    after
}

fn counted(
    deployment: &Deployment,
    sets: &ReplicaSets,
    before: &DeploymentStatus,
) -> DeploymentStatus {
    let sum = |of: fn(&ReplicaSet) -> i32| sets.total(of);
    let number = |number: i32| count(usize::try_from(number).unwrap_or(0));
    let available_now = sum(available);
    DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: number(sum(|set| counts(set).replicas)),
        updated_replicas: number(sets.new.as_ref().map_or(0, |set| counts(set).replicas)),
        ready_replicas: number(sum(|set| counts(set).ready_replicas.unwrap_or(0))),
        available_replicas: number(available_now),
        unavailable_replicas: number(sum(replicas).saturating_sub(available_now)),
        terminating_replicas: Some(sum(|set| counts(set).terminating_replicas.unwrap_or(0))),
        collision_count: before.collision_count,
        conditions: None,
    }
}

/// Whether every pod has the new template and is available.
pub(super) fn is_complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let desired = spec(deployment).replicas.unwrap_or(1);
    let is_all = |number: Option<i32>| number.unwrap_or(0) == desired;
    is_all(status.updated_replicas)
        && is_all(status.replicas)
        && is_all(status.available_replicas)
        && status.observed_generation >= deployment.metadata.generation
}

fn has_progressed(before: &DeploymentStatus, after: &DeploymentStatus) -> bool {
    let grew = |of: fn(&DeploymentStatus) -> i32| of(after) > of(before);
    grew(|status| status.updated_replicas.unwrap_or(0))
        || grew(|status| status.updated_replicas.unwrap_or(0) - status.replicas.unwrap_or(0))
        || grew(|status| status.ready_replicas.unwrap_or(0))
        || grew(|status| status.available_replicas.unwrap_or(0))
}

/// The progress deadline in seconds; `None` if there is none.
fn deadline(deployment: &Deployment) -> Option<i32> {
    let seconds = spec(deployment).progress_deadline_seconds.unwrap_or(600);
    (seconds != i32::MAX).then_some(seconds)
}

fn is_paused(deployment: &Deployment) -> bool {
    spec(deployment).paused == Some(true)
}

/// When to check again without a change: when the progress deadline passes.
pub(super) fn next_check(
    deployment: &Deployment,
    status: &DeploymentStatus,
    now: Timestamp,
) -> Option<Duration> {
    if is_complete(deployment, status) || is_paused(deployment) {
        return None;
    }
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let condition = conditions.iter().find(|condition| condition.type_ == PROGRESSING)?;
    let is_over = matches!(
        condition.reason.as_deref(),
        Some("NewReplicaSetAvailable" | "ProgressDeadlineExceeded")
    );
    if is_over {
        return None;
    }
    let due = time::after(condition.last_update_time.as_ref()?.0, deadline(deployment)?);
    // One second later, because timestamps have a resolution of one second.
    Some(time::until(now, due) + Duration::from_secs(1))
}

struct Conditions {
    known: Vec<DeploymentCondition>,
    now: Timestamp,
}

impl Conditions {
    fn get(&self, type_: &str) -> Option<&DeploymentCondition> {
        self.known.iter().find(|condition| condition.type_ == type_)
    }

    fn remove(&mut self, type_: &str) {
        self.known.retain(|condition| condition.type_ != type_);
    }

    /// Sets a condition unless its status and reason are already set.
    fn set(&mut self, type_: &str, status: &str, reason: &str, message: String) {
        let same = |known: &DeploymentCondition| {
            known.status == status && known.reason.as_deref() == Some(reason)
        };
        if !self.get(type_).is_some_and(same) {
            self.renew(type_, status, reason, message);
        }
    }

    /// Sets a condition and its update time.
    fn renew(&mut self, type_: &str, status: &str, reason: &str, message: String) {
        let before = self.get(type_).filter(|known| known.status == status);
        let since = before.and_then(|known| known.last_transition_time.clone());
        self.remove(type_);
        self.known.push(DeploymentCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_update_time: Some(Time(self.now)),
            last_transition_time: Some(since.unwrap_or(Time(self.now))),
        });
    }

    fn availability(&mut self, deployment: &Deployment, status: &DeploymentStatus) {
        let spec = spec(deployment);
        let needed = spec.replicas.unwrap_or(1).saturating_sub(max_unavailable(spec));
        match status.available_replicas.unwrap_or(0) >= needed {
            true => {
                let message = "Deployment has minimum availability.".to_owned();
                self.set(AVAILABLE, "True", "MinimumReplicasAvailable", message);
            }
            false => {
                let message = "Deployment does not have minimum availability.".to_owned();
                self.set(AVAILABLE, "False", "MinimumReplicasUnavailable", message);
            }
        }
    }

    /// A paused rollout does not time out; one that already did stays timed out.
    fn pause(&mut self, deployment: &Deployment) {
        let reason = self.get(PROGRESSING).and_then(|known| known.reason.as_deref());
        if deadline(deployment).is_none() || reason == Some("ProgressDeadlineExceeded") {
            return;
        }
        let was_paused = reason == Some("DeploymentPaused");
        match (is_paused(deployment), was_paused) {
            (true, false) => {
                let message = "Deployment is paused".to_owned();
                self.set(PROGRESSING, "Unknown", "DeploymentPaused", message);
            }
            (false, true) => {
                let message = "Deployment is resumed".to_owned();
                self.set(PROGRESSING, "Unknown", "DeploymentResumed", message);
            }
            _ => {}
        }
    }

    fn progressing(&mut self, deployment: &Deployment, status: &str, reason: &str, text: String) {
        if deadline(deployment).is_some() {
            self.set(PROGRESSING, status, reason, text);
        }
    }

    /// A set with the current template exists and no progress was reported yet.
    fn found(&mut self, deployment: &Deployment, sets: &ReplicaSets) {
        if let (None, Some(set)) = (self.get(PROGRESSING), &sets.new) {
            let message = format!("Found new replica set {:?}", set.name());
            self.progressing(deployment, "True", "FoundNewReplicaSet", message);
        }
    }

    fn rolled(
        &mut self,
        deployment: &Deployment,
        sets: &ReplicaSets,
        before: &DeploymentStatus,
        after: &DeploymentStatus,
    ) {
        let Some(deadline) = deadline(deployment) else { return self.remove(PROGRESSING) };
        let reason = self.get(PROGRESSING).and_then(|known| known.reason.as_deref());
        let settled = reason == Some("NewReplicaSetAvailable");
        if settled && after.replicas == after.updated_replicas {
            return; // replacing a pod does not restart a complete rollout
        }
        let who = match &sets.new {
            Some(set) => format!("ReplicaSet {:?}", set.name()),
            None => format!("Deployment {:?}", deployment.name()),
        };
        if is_complete(deployment, after) {
            let message = format!("{who} has successfully progressed.");
            self.set(PROGRESSING, "True", "NewReplicaSetAvailable", message);
        } else if has_progressed(before, after) {
            let message = format!("{who} is progressing.");
            self.renew(PROGRESSING, "True", "ReplicaSetUpdated", message);
        } else if self.is_late(deadline) {
            let message = format!("{who} has timed out progressing.");
            self.set(PROGRESSING, "False", "ProgressDeadlineExceeded", message);
        }
    }

    fn is_late(&self, deadline: i32) -> bool {
        let Some(condition) = self.get(PROGRESSING) else { return false };
        match condition.reason.as_deref() {
            Some("NewReplicaSetAvailable" | "DeploymentPaused") => false,
            Some("ProgressDeadlineExceeded") => true,
            _ => {
                let since = condition.last_update_time.as_ref().map_or(self.now, |time| time.0);
                time::after(since, deadline) < self.now
            }
        }
    }

    /// Copies the condition `ReplicaFailure` of a set to the Deployment.
    fn failures(&mut self, sets: &ReplicaSets) {
        let of = |set: &ReplicaSet| {
            let conditions = counts(set).conditions.unwrap_or_default();
            conditions.into_iter().find(|condition| condition.type_ == REPLICA_FAILURE)
        };
        match sets.new.iter().chain(&sets.old).find_map(|set| of(set)) {
            Some(failure) => {
                let reason = failure.reason.unwrap_or_default();
                let message = failure.message.unwrap_or_default();
                self.set(REPLICA_FAILURE, &failure.status, &reason, message);
            }
            None => self.remove(REPLICA_FAILURE),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::super::tests::{deployment, set, with};
    use super::*;

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn later(seconds: i64) -> Timestamp {
        time::after(now(), seconds)
    }

    fn running(name: &str, image: &str, size: i32, ready: i32) -> Arc<ReplicaSet> {
        let mut set = (*set(name, image, size)).clone();
        let status = set.status.get_or_insert_default();
        status.replicas = size;
        (status.ready_replicas, status.available_replicas) = (Some(ready), Some(ready));
        Arc::new(set)
    }

    #[track_caller]
    fn check(status: &DeploymentStatus, type_: &str, expected: Option<(&str, &str)>) {
        let conditions = status.conditions.as_deref().unwrap_or_default();
        let found = conditions.iter().find(|condition| condition.type_ == type_);
        let found = found.map(|it| (it.status.as_str(), it.reason.as_deref().unwrap_or_default()));
        assert_eq!(found, expected, "{type_}");
    }

    #[test]
    fn the_counts_are_sums_over_the_sets() {
        let deployment = deployment(4, "v2");
        let sets =
            ReplicaSets::of(&deployment, &[running("old", "v1", 3, 2), running("new", "v2", 2, 1)]);
        let status = status(&deployment, &sets, &SyncResult::RolledOut, now());
        assert_eq!(status.replicas, Some(5));
        assert_eq!(status.updated_replicas, Some(2));
        assert_eq!(status.ready_replicas, Some(3));
        assert_eq!(status.available_replicas, Some(3));
        assert_eq!(status.unavailable_replicas, Some(2));
        assert_eq!(status.observed_generation, Some(1));
        check(&status, AVAILABLE, Some(("True", "MinimumReplicasAvailable")));
    }

    #[test]
    fn conditions_follow_a_rollout_from_creation_to_completion() {
        let mut deployment = deployment(2, "v1");
        let mut step = |sets: &[Arc<ReplicaSet>], pass: SyncResult, at: Timestamp| {
            let sets = ReplicaSets::of(&deployment, sets);
            let after = status(&deployment, &sets, &pass, at);
            deployment.status = Some(after.clone());
            after
        };
        let first = step(&[], SyncResult::Created("web-1".into()), now());
        check(&first, PROGRESSING, Some(("True", "NewReplicaSetCreated")));
        check(&first, AVAILABLE, Some(("False", "MinimumReplicasUnavailable")));
        let half = step(&[running("web-1", "v1", 2, 1)], SyncResult::RolledOut, later(5));
        check(&half, PROGRESSING, Some(("True", "ReplicaSetUpdated")));
        let same = step(&[running("web-1", "v1", 2, 1)], SyncResult::RolledOut, later(9));
        assert_eq!(same, half, "no news, no write");
        let done = step(&[running("web-1", "v1", 2, 2)], SyncResult::RolledOut, later(10));
        check(&done, PROGRESSING, Some(("True", "NewReplicaSetAvailable")));
        check(&done, AVAILABLE, Some(("True", "MinimumReplicasAvailable")));
        let message = done.conditions.as_ref().unwrap().iter().find(|it| it.type_ == PROGRESSING);
        let message = message.unwrap().message.as_deref();
        assert_eq!(message, Some("ReplicaSet \"web-1\" has successfully progressed."));
        let lost = step(&[running("web-1", "v1", 2, 1)], SyncResult::RolledOut, later(2000));
        check(&lost, PROGRESSING, Some(("True", "NewReplicaSetAvailable")));
    }

    #[test]
    fn a_rollout_without_progress_times_out_after_its_deadline() {
        let soon = json!({"spec": {"progressDeadlineSeconds": 30}});
        let mut deployment = with(deployment(2, "v1"), soon);
        let sets = ReplicaSets::of(&deployment, &[running("web-1", "v1", 2, 0)]);
        let at =
            |deployment: &Deployment, at| status(deployment, &sets, &SyncResult::RolledOut, at);
        deployment.status = Some(at(&deployment, now()));
        check(&at(&deployment, now()), PROGRESSING, Some(("True", "ReplicaSetUpdated")));
        let before = deployment.status.clone().unwrap();
        assert_eq!(next_check(&deployment, &before, later(10)), Some(Duration::from_secs(21)));
        check(&at(&deployment, later(29)), PROGRESSING, Some(("True", "ReplicaSetUpdated")));
        let late = at(&deployment, later(31));
        check(&late, PROGRESSING, Some(("False", "ProgressDeadlineExceeded")));
        assert_eq!(next_check(&deployment, &late, later(31)), None);
        let never = json!({"spec": {"progressDeadlineSeconds": i32::MAX}});
        let deployment = with(deployment, never);
        check(&at(&deployment, later(31)), PROGRESSING, None);
    }

    #[test]
    fn a_paused_rollout_does_not_time_out() {
        let mut paused = with(deployment(2, "v1"), json!({"spec": {"paused": true}}));
        let sets = ReplicaSets::of(&paused, &[running("web-1", "v1", 2, 0)]);
        let first = status(&paused, &sets, &SyncResult::StatusOnly, now());
        check(&first, PROGRESSING, Some(("Unknown", "DeploymentPaused")));
        paused.status = Some(first);
        let resumed = with(paused, json!({"spec": {"paused": false}}));
        let second = status(&resumed, &sets, &SyncResult::RolledOut, later(10_000));
        check(&second, PROGRESSING, Some(("Unknown", "DeploymentResumed")));
    }

    #[test]
    fn a_replica_failure_of_a_set_is_copied_to_the_deployment() {
        let deployment = deployment(2, "v1");
        let mut set = (*running("web-1", "v1", 0, 0)).clone();
        set.status.as_mut().unwrap().conditions = serde_json::from_value(json!([
            {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "quota"},
        ]))
        .unwrap();
        let sets = ReplicaSets::of(&deployment, &[Arc::new(set)]);
        let copied = status(&deployment, &sets, &SyncResult::RolledOut, now());
        check(&copied, REPLICA_FAILURE, Some(("True", "FailedCreate")));
        let sets = ReplicaSets::of(&deployment, &[running("web-1", "v1", 0, 0)]);
        check(&status(&deployment, &sets, &SyncResult::RolledOut, now()), REPLICA_FAILURE, None);
    }
}
