//! The lifecycle of a pod on a node: the next transition, decided from the pod alone.
//!
//! Promise: pure; the same pod gives the same result.

use std::time::Duration;

use jiff::Timestamp;

use crate::pod::{ContainerStatus, Pod};
use crate::time;

use super::probes::{ProbeKind, ProbeVerdict};
use super::rules::{ContainerExit, Delay, PodStages};

/// The state of a pod. Equal values are one stay in the state: timers run from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PodState {
    /// Bound; the node has not reported a status yet.
    Bound,
    /// The node creates its containers.
    Creating,
    /// Its containers run, after this many restarts.
    Running(i32),
    /// Its containers terminated and will be restarted.
    Backoff(i32),
    /// It is being deleted.
    Terminating,
}

/// What the node does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PodTransition {
    Create,
    /// Starts or restarts the containers.
    Start {
        ready: bool,
        restarts: i32,
    },
    BecomeReady,
    /// Its readiness probes fail.
    BecomeUnready,
    /// An image cannot be pulled.
    FailPull(String),
    /// Starts the ephemeral containers that do not run yet.
    StartEphemeral,
    /// Reports that the node has seen the current generation of the pod.
    Observe,
    /// The containers terminate and are not restarted.
    End {
        exit: ContainerEnd,
        succeeded: bool,
    },
    /// The containers terminate and will be restarted.
    BackOff {
        exit: ContainerEnd,
        restarts: i32,
    },
    /// The pod was active for longer than its deadline.
    ExceedDeadline,
    /// Reports that the containers terminated; a finalizer still holds the pod.
    EndForDeletion,
    Remove,
}

/// How the containers of a pod terminate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ContainerEnd {
    pub(crate) exit_code: i32,
    pub(crate) reason: Option<String>,
    pub(crate) message: Option<String>,
    /// The probe because of which they are terminated.
    pub(crate) probe: Option<ProbeKind>,
}

/// The next transition and when it is due, measured from the beginning of the current state.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NextTransition {
    pub(crate) state: PodState,
    pub(crate) transition: PodTransition,
    pub(crate) after: Duration,
}

/// The kubelet's maximum restart backoff.
const BACKOFF_MAX: Duration = Duration::from_secs(300);

/// The next transition of a pod that is bound to a node, `elapsed` after the beginning of its state;
/// `None` if there is none.
pub(crate) fn next(pod: &Pod, stages: &PodStages, elapsed: Duration) -> Option<NextTransition> {
    if pod.is_deleting() {
        return terminate(pod, stages);
    }
    if pod.is_finished() {
        return None;
    }
    let state = state(pod);
    let part = jitter(pod, state);
    let next = |transition, after| Some(NextTransition { state, transition, after });
    let restarts = restarts(pod);
    let start = |restarts| PodTransition::Start { ready: is_ready_on_start(stages), restarts };
    match state {
        PodState::Terminating => None,
        PodState::Bound if stages.is_instant() => next(start(0), Duration::ZERO),
        PodState::Bound => next(PodTransition::Create, stages.creating.with(part)),
        PodState::Creating => match &stages.pull_error {
            Some(_) if waits_for(pod, IMAGE_PULL_BACK_OFF) => None,
            Some(why) => next(PodTransition::FailPull(why.clone()), stages.running.with(part)),
            None => next(start(0), stages.running.with(part)),
        },
        PodState::Running(_) if starts_ephemeral(pod) => {
            next(PodTransition::StartEphemeral, Duration::ZERO)
        }
        PodState::Running(_) if pod.status.observed_generation != pod.metadata.generation => {
            next(PodTransition::Observe, Duration::ZERO)
        }
        PodState::Backoff(_) => {
            let doubled = stages.restarted.with(part).saturating_mul(1 << restarts.clamp(0, 8));
            next(start(restarts + 1), doubled.min(BACKOFF_MAX))
        }
        PodState::Running(_) => {
            let (transition, after) = running(pod, stages, part, elapsed)?;
            next(transition, after)
        }
    }
}

/// The next transition of a pod whose containers run, and when it is due.
fn running(
    pod: &Pod,
    stages: &PodStages,
    part: f64,
    elapsed: Duration,
) -> Option<(PodTransition, Duration)> {
    let probes = ProbeOpinion::of(pod, stages, elapsed);
    if let Some(kind) = probes.killed_by {
        let delay = Delay::default();
        let exit = ContainerExit { delay, exit_code: SIGKILL, reason: None, message: None };
        return Some((end(pod, &exit, restarts(pod), Some(kind)), Duration::ZERO));
    }
    let is_ready = reports_ready(pod);
    if probes.readiness == ProbeVerdict::Failing && is_ready {
        return Some((PodTransition::BecomeUnready, Duration::ZERO));
    }
    let may_be_ready = probes.has_started && probes.readiness == ProbeVerdict::Passing;
    let ready = stages.ready.filter(|_| may_be_ready && !is_ready).map(|ready| ready.with(part));
    let exit = stages.exit.as_ref().map(|exit| (exit.delay.with(part), exit));
    match (ready, exit) {
        (Some(ready), exit) if exit.is_none_or(|(end, _)| ready <= end) => {
            Some((PodTransition::BecomeReady, ready))
        }
        (_, Some((after, exit))) => Some((end(pod, exit, restarts(pod), None), after)),
        (_, None) => None,
    }
}

/// The exit code of containers whose probes failed.
const SIGKILL: i32 = 137;

/// What the probes of a running pod say, as far as a rule lets them fail.
struct ProbeOpinion {
    killed_by: Option<ProbeKind>,
    has_started: bool,
    readiness: ProbeVerdict,
}

impl ProbeOpinion {
    fn of(pod: &Pod, stages: &PodStages, elapsed: Duration) -> ProbeOpinion {
        // Each run of the containers fails in other places.
        let salt = format!("{}{}", pod.metadata.uid.as_deref().unwrap_or_default(), restarts(pod));
        let [startup, liveness, readiness] = &stages.probes;
        let started = startup.map_or(ProbeVerdict::Passing, |plan| plan.started(elapsed, &salt));
        let has_started = started == ProbeVerdict::Passing;
        let lives = liveness.filter(|_| has_started).map(|plan| plan.verdict(elapsed, &salt));
        let killed_by = match (started, lives) {
            (ProbeVerdict::Failing, _) => Some(ProbeKind::Startup),
            (_, Some(ProbeVerdict::Failing)) => Some(ProbeKind::Liveness),
            _ => None,
        };
        let readiness =
            readiness.map_or(ProbeVerdict::Passing, |plan| plan.verdict(elapsed, &salt));
        ProbeOpinion { killed_by, has_started, readiness }
    }
}

/// The time of the next probe that a rule may let fail, from the beginning of the state.
pub(crate) fn next_probe(pod: &Pod, stages: &PodStages, elapsed: Duration) -> Option<Duration> {
    let runs = pod.is_active() && matches!(state(pod), PodState::Running(_));
    let plans = stages.probes.iter().flatten().filter(|_| runs);
    plans.map(|plan| plan.next(elapsed)).min()
}

/// The state of a pod that is bound to a node.
pub(crate) fn current(pod: &Pod) -> PodState {
    if pod.is_deleting() { PodState::Terminating } else { state(pod) }
}

/// Whether a pod is ready as soon as it runs, so that one write reports both.
fn is_ready_on_start(stages: &PodStages) -> bool {
    let [startup, _, readiness] = &stages.probes;
    let is_probed = startup.is_some() || readiness.is_some();
    !is_probed && stages.ready.is_some_and(|ready| ready.after.is_zero() && ready.jitter.is_zero())
}

/// Whether the conditions report ready containers; the pod's own readiness depends on its gates.
fn reports_ready(pod: &Pod) -> bool {
    let containers = pod.condition("ContainersReady").is_some_and(|known| known.status == "True");
    containers && pod.is_ready() == pod.readiness_gates_pass()
}

fn terminate(pod: &Pod, stages: &PodStages) -> Option<NextTransition> {
    let held = pod.metadata.finalizers.iter().flatten().next().is_some();
    let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
    let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
    let after = match pod.is_finished() {
        true => Duration::ZERO,
        false => {
            let terminated = stages.terminated.with(jitter(pod, PodState::Terminating));
            (terminated + pre_stop(pod)).min(grace)
        }
    };
    let transition = match () {
        () if held && !pod.is_finished() => PodTransition::EndForDeletion,
        // The termination is already reported; the pod waits for its finalizers.
        () if held && grace.is_zero() => return None,
        () => PodTransition::Remove,
    };
    Some(NextTransition { state: PodState::Terminating, transition, after })
}

/// The longest time that a container sleeps before it ends.
fn pre_stop(pod: &Pod) -> Duration {
    let sleeps = pod.spec.containers.iter().filter_map(|container| {
        let handler = container.lifecycle.as_ref()?.pre_stop.as_ref()?;
        u64::try_from(handler.sleep.as_ref()?.seconds).ok()
    });
    Duration::from_secs(sleeps.max().unwrap_or(0))
}

/// The reason of a container whose image cannot be pulled.
pub(crate) const IMAGE_PULL_BACK_OFF: &str = "ImagePullBackOff";

/// Whether a container is waiting for this reason.
pub(crate) fn waits_for(pod: &Pod, reason: &str) -> bool {
    let waiting = |one: &ContainerStatus| one.state.waiting.as_ref()?.reason.clone();
    pod.status.container_statuses.iter().filter_map(waiting).any(|found| found == reason)
}

/// Whether an ephemeral container was added that has no status yet.
fn starts_ephemeral(pod: &Pod) -> bool {
    pod.spec.ephemeral_containers.len() > pod.status.ephemeral_container_statuses.len()
}

/// The time until the pod's deadline; `None` if it has none, or has not started.
pub(crate) fn until_deadline(pod: &Pod, now: Timestamp) -> Option<Duration> {
    let seconds = pod.spec.active_deadline_seconds?;
    let started = pod.status.start_time.as_ref().filter(|_| pod.is_active())?;
    Some(time::until(now, time::after(started.0, seconds)))
}

fn state(pod: &Pod) -> PodState {
    match () {
        () if pod.status.container_statuses.is_empty() => PodState::Bound,
        () if waits_for(pod, "CrashLoopBackOff") => PodState::Backoff(restarts(pod)),
        () if pod.phase() == "Running" => PodState::Running(restarts(pod)),
        () => PodState::Creating,
    }
}

fn restarts(pod: &Pod) -> i32 {
    pod.status.container_statuses.iter().map(|one| one.restart_count).max().unwrap_or(0)
}

/// The restart policy decides whether the containers are restarted.
fn end(pod: &Pod, exit: &ContainerExit, restarts: i32, probe: Option<ProbeKind>) -> PodTransition {
    let ContainerExit { exit_code, reason, message, .. } = exit.clone();
    let succeeded = exit_code == 0;
    let exit = ContainerEnd { exit_code, reason, message, probe };
    match (pod.spec.restart_policy.as_deref().unwrap_or("Always"), succeeded) {
        ("Never", _) | ("OnFailure", true) => PodTransition::End { exit, succeeded },
        _ => PodTransition::BackOff { exit, restarts },
    }
}

/// When the state began according to the object, in whole seconds.
pub(crate) fn state_began(pod: &Pod, state: PodState) -> Option<Timestamp> {
    match state {
        PodState::Bound => Some(pod.condition("PodScheduled")?.last_transition_time.as_ref()?.0),
        PodState::Creating => Some(pod.status.start_time.as_ref()?.0),
        PodState::Running(_) => {
            let running = pod.status.container_statuses.first()?.state.running.as_ref()?;
            Some(running.started_at.as_ref()?.0)
        }
        PodState::Backoff(_) => None,
        PodState::Terminating => {
            let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
            let requested = pod.metadata.deletion_timestamp.as_ref()?.0;
            requested.checked_sub(jiff::SignedDuration::from_secs(grace)).ok()
        }
    }
}

/// A fraction from 0 to 1 that depends only on the pod and its state, so that timers do not move.
fn jitter(pod: &Pod, state: PodState) -> f64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (pod.metadata.uid.as_deref(), state).hash(&mut hasher);
    (hasher.finish() >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value, reason = "tables write values where they are used")]
mod tests {
    use headwater_client::Cached;
    use serde_json::{Value, json};

    use super::super::rules::{
        FAIL_AFTER, LIVENESS_FAILS, PULL_ERROR, READINESS_FAILS, READY_AFTER, Rules, STARTUP_FAILS,
    };
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

    fn decide(pod: Value) -> Option<(PodTransition, u64)> {
        decide_after(pod, 0)
    }

    fn decide_after(pod: Value, seconds: u64) -> Option<(PodTransition, u64)> {
        let pod = Pod::decode(&pod.to_string()).unwrap();
        let stages = Rules::default().stages_for(&pod);
        next(&pod, &stages, Duration::from_secs(seconds))
            .map(|next| (next.transition, next.after.as_millis() as u64))
    }

    #[track_caller]
    fn check(metadata: Value, spec: Value, status: Value, expected: Option<(PodTransition, u64)>) {
        let found = decide(json!({"metadata": metadata, "spec": spec, "status": status}));
        match (found, expected) {
            // Jitter only adds to the delay.
            (Some((transition, after)), Some((wanted, at))) => {
                assert_eq!(transition, wanted);
                assert!((at..=at + 200).contains(&after), "{after} instead of {at}");
            }
            (found, expected) => assert_eq!(found, expected),
        }
    }

    #[test]
    fn a_pod_is_created_and_runs_until_it_is_deleted() {
        let none = || json!({});
        check(none(), none(), none(), Some((PodTransition::Create, 0)));
        let creating = json!({"phase": "Pending", "containerStatuses": waiting(CREATING, 0)});
        let start = PodTransition::Start { ready: true, restarts: 0 };
        check(none(), none(), creating, Some((start, 300)));
        let ready = json!([
            {"type": "Ready", "status": "True"}, {"type": "ContainersReady", "status": "True"},
        ]);
        let runs = json!({"phase": "Running", "containerStatuses": running(), "conditions": ready});
        check(none(), none(), runs, None);
        let unready = json!({"phase": "Running", "containerStatuses": running()});
        check(none(), none(), unready.clone(), Some((PodTransition::BecomeReady, 0)));
        let never = json!({"annotations": {READY_AFTER: "never"}});
        check(never, none(), unready, None);
        check(none(), none(), json!({"phase": "Failed"}), None);
    }

    #[test]
    fn readiness_follows_the_readiness_gates() {
        let spec = json!({"readinessGates": [{"conditionType": "example.com/warm"}]});
        let status = |ready: &str, warm: &str| {
            json!({"phase": "Running", "containerStatuses": running(), "conditions": [
                {"type": "ContainersReady", "status": "True"},
                {"type": "Ready", "status": ready}, {"type": "example.com/warm", "status": warm},
            ]})
        };
        let again = || Some((PodTransition::BecomeReady, 0));
        check(json!({}), spec.clone(), status("False", "False"), None);
        check(json!({}), spec.clone(), status("False", "True"), again());
        check(json!({}), spec.clone(), status("True", "True"), None);
        check(json!({}), spec, status("True", "False"), again());
    }

    #[test]
    fn stages_without_delay_are_one_write() {
        let pod = Pod::decode(r#"{"metadata":{"name":"p"}}"#).unwrap();
        let next = next(&pod, &Rules::instant().stages_for(&pod), Duration::ZERO).unwrap();
        assert_eq!(next.transition, PodTransition::Start { ready: true, restarts: 0 });
    }

    #[test]
    fn the_restart_policy_decides_about_terminated_containers() {
        let fails = json!({"annotations": {FAIL_AFTER: "1s", READY_AFTER: "never"}});
        let status = json!({"phase": "Running", "containerStatuses": running()});
        let exit = ContainerEnd { exit_code: 1, ..ContainerEnd::default() };
        let back_off = PodTransition::BackOff { exit: exit.clone(), restarts: 2 };
        let end = PodTransition::End { exit, succeeded: false };
        for (policy, transition) in
            [("Always", &back_off), ("OnFailure", &back_off), ("Never", &end)]
        {
            let spec = json!({"restartPolicy": policy});
            check(fails.clone(), spec, status.clone(), Some((transition.clone(), 1000)));
        }
    }

    #[test]
    fn failing_probes_end_readiness_and_containers() {
        let ready = |status: &str| json!([{"type": "Ready", "status": status}, {"type": "ContainersReady", "status": status}]);
        let pod = |annotation: &str, value: &str, is_ready: &str| {
            json!({"metadata": {"annotations": {annotation: value}}, "spec": {},
                "status": {"phase": "Running", "containerStatuses": running(), "conditions": ready(is_ready)}})
        };
        let killed = |probe| {
            let exit = ContainerEnd { exit_code: 137, probe: Some(probe), ..Default::default() };
            Some((PodTransition::BackOff { exit, restarts: 2 }, 0))
        };
        // The usual probe runs every ten seconds and fails three times before it counts.
        for (annotation, is_ready, at, expected) in [
            (READINESS_FAILS, "True", 30, None),
            (READINESS_FAILS, "True", 40, Some((PodTransition::BecomeUnready, 0))),
            (READINESS_FAILS, "False", 40, None),
            (READINESS_FAILS, "False", 50, Some((PodTransition::BecomeReady, 0))),
            (LIVENESS_FAILS, "True", 30, None),
            (LIVENESS_FAILS, "True", 40, killed(ProbeKind::Liveness)),
        ] {
            let found = decide_after(pod(annotation, "20s..50s", is_ready), at);
            assert_eq!(found, expected, "{annotation} at {at} s");
        }
        let late = |at| decide_after(pod(STARTUP_FAILS, "..60s", "False"), at);
        assert_eq!((late(0), late(20)), (None, killed(ProbeKind::Startup)));
        let soon = decide_after(pod(STARTUP_FAILS, "..5s", "False"), 10);
        assert_eq!(soon, Some((PodTransition::BecomeReady, 0)));
    }

    #[test]
    fn an_image_that_cannot_be_pulled_keeps_the_pod_waiting() {
        let refused = || json!({"annotations": {PULL_ERROR: "denied"}});
        let creating = json!({"phase": "Pending", "containerStatuses": waiting(CREATING, 0)});
        let fails = PodTransition::FailPull("denied".to_owned());
        check(refused(), json!({}), creating, Some((fails, 300)));
        let waits =
            json!({"phase": "Pending", "containerStatuses": waiting(IMAGE_PULL_BACK_OFF, 0)});
        check(refused(), json!({}), waits.clone(), None);
        let start = PodTransition::Start { ready: true, restarts: 0 };
        check(json!({}), json!({}), waits, Some((start, 300)));
    }

    #[test]
    fn a_running_pod_starts_ephemeral_containers_and_reports_its_generation() {
        let ready = json!([
            {"type": "Ready", "status": "True"}, {"type": "ContainersReady", "status": "True"},
        ]);
        let status = |generation: i64, debuggers: &[&str]| {
            let debuggers: Vec<Value> =
                debuggers.iter().map(|name| json!({"name": name})).collect();
            json!({"phase": "Running", "containerStatuses": running(), "conditions": ready,
                "observedGeneration": generation, "ephemeralContainerStatuses": debuggers})
        };
        let spec = || json!({"ephemeralContainers": [{"name": "debugger", "image": "busybox"}]});
        let second = || json!({"generation": 2});
        check(second(), spec(), status(1, &[]), Some((PodTransition::StartEphemeral, 0)));
        check(second(), spec(), status(1, &["debugger"]), Some((PodTransition::Observe, 0)));
        check(second(), spec(), status(2, &["debugger"]), None);
    }

    #[test]
    fn the_deadline_is_measured_from_the_start() {
        let now = "2026-01-01T00:00:30Z".parse().unwrap();
        let until = |seconds: i64, phase: &str| {
            let status = json!({"phase": phase, "startTime": "2026-01-01T00:00:00Z"});
            let pod = json!({"metadata": {}, "spec": {"activeDeadlineSeconds": seconds}, "status": status});
            until_deadline(&Pod::decode(&pod.to_string()).unwrap(), now)
        };
        assert_eq!(until(40, "Running"), Some(Duration::from_secs(10)));
        assert_eq!(until(20, "Running"), Some(Duration::ZERO));
        assert_eq!(until(20, "Failed"), None);
        assert_eq!(until_deadline(&Pod::default(), now), None);
    }

    #[test]
    fn the_restart_backoff_doubles_up_to_a_limit() {
        for (restarts, after) in [(0, 10_000), (1, 20_000), (3, 80_000), (9, 300_000)] {
            let status =
                json!({"phase": "Running", "containerStatuses": waiting(BACK_OFF, restarts)});
            let start = PodTransition::Start { ready: true, restarts: restarts + 1 };
            check(json!({}), json!({}), status, Some((start, after)));
        }
    }

    #[test]
    fn a_deleted_pod_terminates_within_its_grace_period() {
        let deleted = |grace: i64, finalizers: Value| {
            json!({
                "deletionTimestamp": "2026-01-01T00:00:00Z",
                "deletionGracePeriodSeconds": grace, "finalizers": finalizers,
            })
        };
        let runs = json!({"phase": "Running", "containerStatuses": running()});
        let ended = json!({"phase": "Succeeded"});
        check(deleted(30, json!([])), json!({}), runs.clone(), Some((PodTransition::Remove, 2000)));
        check(deleted(1, json!([])), json!({}), runs.clone(), Some((PodTransition::Remove, 1000)));
        check(deleted(30, json!([])), json!({}), ended.clone(), Some((PodTransition::Remove, 0)));
        let sleep = json!({"preStop": {"sleep": {"seconds": 5}}});
        let sleeps = json!({"containers": [{"name": "c", "lifecycle": sleep}]});
        let removed = Some((PodTransition::Remove, 7000));
        check(deleted(30, json!([])), sleeps, runs.clone(), removed);
        let held = json!(["example.com/held"]);
        let end = Some((PodTransition::EndForDeletion, 2000));
        check(deleted(30, held.clone()), json!({}), runs, end);
        check(
            deleted(30, held.clone()),
            json!({}),
            ended.clone(),
            Some((PodTransition::Remove, 0)),
        );
        check(deleted(0, held), json!({}), ended, None);
    }
}
