//! The life of a pod on a node: what comes next, decided from the pod alone.
//!
//! Promise: a pure function; whoever asks again with the same pod gets the same answer.

use std::time::Duration;

use jiff::Timestamp;

use crate::pod::{ContainerStatus, Pod};

use super::rules::{Finish, Plan};

/// Where a pod is in its life. Two equal ones are one stay: timers run from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stay {
    /// Bound, and the node has not said anything.
    Bound,
    /// The node makes its containers.
    Creating,
    /// Its containers run, after so many restarts.
    Running(i32),
    /// Its containers ended and wait to be restarted.
    BackingOff(i32),
    /// Somebody asked for its end.
    Leaving,
}

/// What the node does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Create,
    /// Start the containers, or start them again.
    Start {
        ready: bool,
        restarts: i32,
    },
    BecomeReady,
    /// The containers end, for good.
    End {
        exit_code: i32,
        reason: Option<String>,
        succeeded: bool,
    },
    /// The containers end and will be started again.
    BackOff {
        exit_code: i32,
        reason: Option<String>,
        restarts: i32,
    },
    /// Say that the containers have ended; something else still holds the pod.
    EndForDeletion,
    Remove,
}

/// The next step, how long after the beginning of the stay it is due, and the stay.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Next {
    pub(crate) stay: Stay,
    pub(crate) step: Step,
    pub(crate) after: Duration,
}

/// The kubelet's limit of a back-off.
const BACK_OFF_MAX: Duration = Duration::from_secs(300);

/// What comes next for a pod that is bound to a node; `None` if nothing does by itself.
pub(crate) fn next(pod: &Pod, plan: &Plan) -> Option<Next> {
    if pod.is_deleting() {
        return leave(pod, plan);
    }
    if pod.is_finished() {
        return None;
    }
    let stay = stay(pod);
    let part = jitter(pod, stay);
    let next = |step, after| Some(Next { stay, step, after });
    let restarts = restarts(pod);
    let start = |restarts| Step::Start { ready: at_once(plan), restarts };
    match stay {
        Stay::Leaving => None,
        Stay::Bound if plan.is_instant() => next(start(0), Duration::ZERO),
        Stay::Bound => next(Step::Create, plan.creating.with(part)),
        Stay::Creating => next(start(0), plan.running.with(part)),
        Stay::BackingOff(_) => {
            let doubled = plan.restarted.with(part).saturating_mul(1 << restarts.clamp(0, 8));
            next(start(restarts + 1), doubled.min(BACK_OFF_MAX))
        }
        Stay::Running(_) => {
            let ready = plan.ready.filter(|_| !says_ready(pod)).map(|ready| ready.with(part));
            let finish = plan.finish.as_ref().map(|finish| (finish.delay.with(part), finish));
            match (ready, finish) {
                (Some(ready), finish) if finish.is_none_or(|(end, _)| ready <= end) => {
                    next(Step::BecomeReady, ready)
                }
                (_, Some((after, finish))) => next(end(pod, finish, restarts), after),
                (_, None) => None,
            }
        }
    }
}

/// Whether a pod is ready as soon as it runs, so that one write says both.
fn at_once(plan: &Plan) -> bool {
    plan.ready.is_some_and(|ready| ready.after.is_zero() && ready.jitter.is_zero())
}

/// Whether the conditions say what they will say once the containers are ready: a gate that
/// others open or close decides about the pod.
fn says_ready(pod: &Pod) -> bool {
    let containers = pod.condition("ContainersReady").is_some_and(|known| known.status == "True");
    containers && pod.is_ready() == pod.gates_are_open()
}

fn leave(pod: &Pod, plan: &Plan) -> Option<Next> {
    let held = pod.metadata.finalizers.iter().flatten().next().is_some();
    let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
    let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
    let after = match pod.is_finished() {
        true => Duration::ZERO,
        false => plan.gone.with(jitter(pod, Stay::Leaving)).min(grace),
    };
    let step = match () {
        () if held && !pod.is_finished() => Step::EndForDeletion,
        // It was said already that nothing runs any more; the finalizers' owners do the rest.
        () if held && grace.is_zero() => return None,
        () => Step::Remove,
    };
    Some(Next { stay: Stay::Leaving, step, after })
}

fn stay(pod: &Pod) -> Stay {
    let containers = &pod.status.container_statuses;
    let waits_for = |reason: &str| {
        let waiting = |one: &ContainerStatus| one.state.waiting.as_ref()?.reason.clone();
        containers.iter().filter_map(waiting).any(|found| found == reason)
    };
    match () {
        () if containers.is_empty() => Stay::Bound,
        () if waits_for("CrashLoopBackOff") => Stay::BackingOff(restarts(pod)),
        () if pod.phase() == "Running" => Stay::Running(restarts(pod)),
        () => Stay::Creating,
    }
}

fn restarts(pod: &Pod) -> i32 {
    pod.status.container_statuses.iter().map(|one| one.restart_count).max().unwrap_or(0)
}

/// Whether the containers are started again decides what their end is.
fn end(pod: &Pod, finish: &Finish, restarts: i32) -> Step {
    let Finish { exit_code, reason, .. } = finish.clone();
    let succeeded = exit_code == 0;
    match (pod.spec.restart_policy.as_deref().unwrap_or("Always"), succeeded) {
        ("Never", _) | ("OnFailure", true) => Step::End { exit_code, reason, succeeded },
        _ => Step::BackOff { exit_code, reason, restarts },
    }
}

/// When a stay began, as far as the object tells; whole seconds.
pub(crate) fn began(pod: &Pod, stay: Stay) -> Option<Timestamp> {
    match stay {
        Stay::Bound => Some(pod.condition("PodScheduled")?.last_transition_time.as_ref()?.0),
        Stay::Creating => Some(pod.status.start_time.as_ref()?.0),
        Stay::Running(_) => {
            let running = pod.status.container_statuses.first()?.state.running.as_ref()?;
            Some(running.started_at.as_ref()?.0)
        }
        Stay::BackingOff(_) => None,
        Stay::Leaving => {
            let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
            let asked = pod.metadata.deletion_timestamp.as_ref()?.0;
            asked.checked_sub(jiff::SignedDuration::from_secs(grace)).ok()
        }
    }
}

/// From 0 to 1, always the same for one pod and stay, so that asking again does not move a timer.
fn jitter(pod: &Pod, stay: Stay) -> f64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (pod.metadata.uid.as_deref(), stay).hash(&mut hasher);
    (hasher.finish() >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value, reason = "tables write values where they are used")]
mod tests {
    use headwater_client::Cached;
    use serde_json::{Value, json};

    use super::super::rules::{FAIL_AFTER, READY_AFTER, Rules};
    use super::*;

    const CREATING: &str = "ContainerCreating";
    const BACK_OFF: &str = "CrashLoopBackOff";

    fn waiting(reason: &str, restarts: i32) -> Value {
        let state = json!({"waiting": {"reason": reason}});
        json!([{"name": "c", "restartCount": restarts, "state": state}])
    }

    fn running() -> Value {
        json!([{"name": "c", "restartCount": 2, "state": {"running": {}}}])
    }

    fn decide(pod: Value) -> Option<(Step, u64)> {
        let pod = Pod::decode(&pod.to_string()).unwrap();
        let plan = Rules::default().plan(&pod);
        next(&pod, &plan).map(|next| (next.step, next.after.as_millis() as u64))
    }

    #[track_caller]
    fn check(metadata: Value, spec: Value, status: Value, expected: Option<(Step, u64)>) {
        let found = decide(json!({"metadata": metadata, "spec": spec, "status": status}));
        match (found, expected) {
            // Jitter makes it later, never earlier.
            (Some((step, after)), Some((wanted, at))) => {
                assert_eq!(step, wanted);
                assert!((at..=at + 200).contains(&after), "{after} instead of {at}");
            }
            (found, expected) => assert_eq!(found, expected),
        }
    }

    #[test]
    fn a_pod_is_created_started_and_then_runs_until_it_is_deleted() {
        let none = || json!({});
        check(none(), none(), none(), Some((Step::Create, 0)));
        let creating = json!({"phase": "Pending", "containerStatuses": waiting(CREATING, 0)});
        let start = Step::Start { ready: true, restarts: 0 };
        check(none(), none(), creating, Some((start, 300)));
        let ready = json!([
            {"type": "Ready", "status": "True"}, {"type": "ContainersReady", "status": "True"},
        ]);
        let runs = json!({"phase": "Running", "containerStatuses": running(), "conditions": ready});
        check(none(), none(), runs, None);
        let unready = json!({"phase": "Running", "containerStatuses": running()});
        check(none(), none(), unready.clone(), Some((Step::BecomeReady, 0)));
        let never = json!({"annotations": {READY_AFTER: "never"}});
        check(never, none(), unready, None);
        check(none(), none(), json!({"phase": "Failed"}), None);
    }

    #[test]
    fn a_readiness_gate_is_waited_for_and_followed() {
        let spec = json!({"readinessGates": [{"conditionType": "example.com/warm"}]});
        let status = |ready: &str, warm: &str| {
            json!({"phase": "Running", "containerStatuses": running(), "conditions": [
                {"type": "ContainersReady", "status": "True"},
                {"type": "Ready", "status": ready}, {"type": "example.com/warm", "status": warm},
            ]})
        };
        let again = || Some((Step::BecomeReady, 0));
        check(json!({}), spec.clone(), status("False", "False"), None);
        check(json!({}), spec.clone(), status("False", "True"), again());
        check(json!({}), spec.clone(), status("True", "True"), None);
        check(json!({}), spec, status("True", "False"), again());
    }

    #[test]
    fn stages_that_take_no_time_are_one_write() {
        let pod = Pod::decode(r#"{"metadata":{"name":"p"}}"#).unwrap();
        let next = next(&pod, &Rules::instant().plan(&pod)).unwrap();
        assert_eq!(next.step, Step::Start { ready: true, restarts: 0 });
    }

    #[test]
    fn what_an_end_means_depends_on_the_restart_policy() {
        let fails = json!({"annotations": {FAIL_AFTER: "1s", READY_AFTER: "never"}});
        let status = json!({"phase": "Running", "containerStatuses": running()});
        let back_off = Step::BackOff { exit_code: 1, reason: None, restarts: 2 };
        let end = Step::End { exit_code: 1, reason: None, succeeded: false };
        for (policy, step) in [("Always", &back_off), ("OnFailure", &back_off), ("Never", &end)] {
            let spec = json!({"restartPolicy": policy});
            check(fails.clone(), spec, status.clone(), Some((step.clone(), 1000)));
        }
    }

    #[test]
    fn restarts_wait_twice_as_long_each_time_up_to_a_limit() {
        for (restarts, after) in [(0, 10_000), (1, 20_000), (3, 80_000), (9, 300_000)] {
            let status =
                json!({"phase": "Running", "containerStatuses": waiting(BACK_OFF, restarts)});
            let start = Step::Start { ready: true, restarts: restarts + 1 };
            check(json!({}), json!({}), status, Some((start, after)));
        }
    }

    #[test]
    fn a_deleted_pod_stays_for_a_while_but_never_beyond_its_grace() {
        let deleted = |grace: i64, finalizers: Value| {
            json!({
                "deletionTimestamp": "2026-01-01T00:00:00Z",
                "deletionGracePeriodSeconds": grace, "finalizers": finalizers,
            })
        };
        let runs = json!({"phase": "Running", "containerStatuses": running()});
        let ended = json!({"phase": "Succeeded"});
        check(deleted(30, json!([])), json!({}), runs.clone(), Some((Step::Remove, 2000)));
        check(deleted(1, json!([])), json!({}), runs.clone(), Some((Step::Remove, 1000)));
        check(deleted(30, json!([])), json!({}), ended.clone(), Some((Step::Remove, 0)));
        let held = json!(["example.com/held"]);
        let end = Some((Step::EndForDeletion, 2000));
        check(deleted(30, held.clone()), json!({}), runs, end);
        check(deleted(30, held.clone()), json!({}), ended.clone(), Some((Step::Remove, 0)));
        check(deleted(0, held), json!({}), ended, None);
    }
}
