//! The status of a pod after each transition, as a merge patch.
//!
//! Promise: pure. Unchanged conditions keep their transition time; conditions of others are kept.

use headwater_api::clock::rfc3339;
use headwater_api::fnv;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::pod::{Container, Pod, PodCondition};

use super::pod_lifecycle::{ContainerEnd, IMAGE_PULL_BACK_OFF, PodTransition};

/// Values of the node that the status contains.
pub(crate) struct NodeContext {
    pub(crate) now: Timestamp,
    pub(crate) host_ip: String,
    /// The pod's address, once it has one.
    pub(crate) pod_ip: Option<String>,
}

/// The merge patch for a pod's status; `None` for transitions without a status.
pub(crate) fn patch(pod: &Pod, transition: &PodTransition, context: &NodeContext) -> Option<Value> {
    let now = rfc3339(context.now);
    let status = match transition {
        PodTransition::Create => creating(pod, context, &now),
        PodTransition::Start { ready, restarts } => started(pod, context, &now, *ready, *restarts),
        PodTransition::BecomeReady => ready(pod, &now, true),
        PodTransition::BecomeUnready => ready(pod, &now, false),
        PodTransition::FailPull(why) => not_pulled(pod, why),
        PodTransition::StartEphemeral => debugged(pod, &now),
        PodTransition::Observe => json!({}),
        PodTransition::End { exit, succeeded } => {
            ended(pod, &now, if *succeeded { "Succeeded" } else { "Failed" }, exit)
        }
        PodTransition::EndForDeletion => ended(pod, &now, "Failed", &killed()),
        PodTransition::BackOff { exit, restarts } => backing_off(pod, &now, exit, *restarts),
        PodTransition::ExceedDeadline => {
            let mut status = ended(pod, &now, "Failed", &killed());
            status["reason"] = json!("DeadlineExceeded");
            status["message"] = json!(DEADLINE);
            status
        }
        PodTransition::Remove => return None,
    };
    let mut status = status;
    if let Some(generation) = pod.metadata.generation {
        status["observedGeneration"] = json!(generation);
    }
    // The UID protects another pod of the same name.
    Some(json!({"metadata": {"uid": pod.metadata.uid}, "status": status}))
}

/// The exit code of a process that was terminated by SIGTERM.
const KILLED: i32 = 143;
const DEADLINE: &str = "Pod was active on the node longer than the specified deadline";

fn killed() -> ContainerEnd {
    ContainerEnd { exit_code: KILLED, ..ContainerEnd::default() }
}

/// The status of a pod that waits for something that does not exist.
pub(crate) fn waiting_patch(pod: &Pod, reason: &str, message: &str) -> Value {
    let state = json!({"waiting": {"reason": reason, "message": message}});
    let containers = pod.spec.containers.iter().map(|one| container(pod, one, 0, false, &state));
    let statuses = containers.collect::<Vec<_>>();
    json!({"metadata": {"uid": pod.metadata.uid}, "status": {"containerStatuses": statuses}})
}

fn not_pulled(pod: &Pod, why: &str) -> Value {
    let containers = pod.spec.containers.iter().map(|one| {
        let image = one.image.as_deref().unwrap_or_default();
        let message = format!("Back-off pulling image {image:?}: ErrImagePull: {why}");
        let state = json!({"waiting": {"reason": IMAGE_PULL_BACK_OFF, "message": message}});
        container(pod, one, 0, false, &state)
    });
    json!({ "containerStatuses": containers.collect::<Vec<_>>() })
}

fn debugged(pod: &Pod, now: &str) -> Value {
    let running = json!({"running": {"startedAt": now}});
    let all = pod.spec.ephemeral_containers.iter();
    let started = all.map(|one| {
        let known = pod.status.ephemeral_container_statuses.iter().find(|it| it.name == one.name);
        let since = known.and_then(|known| known.state.running.as_ref()?.started_at.clone());
        match since {
            None => container(pod, one, 0, false, &running),
            Some(since) => {
                let state = json!({"running": {"startedAt": rfc3339(since.0)}});
                container(pod, one, 0, false, &state)
            }
        }
    });
    json!({ "ephemeralContainerStatuses": started.collect::<Vec<_>>() })
}

fn creating(pod: &Pod, context: &NodeContext, now: &str) -> Value {
    let waiting = || json!({"waiting": {"reason": "ContainerCreating"}});
    let containers =
        pod.spec.containers.iter().map(|one| container(pod, one, 0, false, &waiting()));
    let mut status = json!({
        "phase": "Pending",
        "containerStatuses": containers.collect::<Vec<_>>(),
        "conditions": conditions(pod, now, &[
            ("PodReadyToStartContainers", "False", None),
            ("Initialized", "True", None),
            ("Ready", "False", Some("ContainersNotReady")),
            ("ContainersReady", "False", Some("ContainersNotReady")),
        ]),
    });
    set_start_fields(pod, context, now, &mut status);
    status
}

/// Sets the fields that are part of the first status only.
fn set_start_fields(pod: &Pod, context: &NodeContext, now: &str, status: &mut Value) {
    if pod.status.start_time.is_some() {
        return;
    }
    status["startTime"] = json!(now);
    status["hostIP"] = json!(context.host_ip);
    status["hostIPs"] = json!([{"ip": context.host_ip}]);
    if !pod.spec.init_containers.is_empty() {
        status["initContainerStatuses"] = initialized(pod, now);
    }
}

fn initialized(pod: &Pod, now: &str) -> Value {
    let done = |one: &Container| match one.restart_policy.as_deref() {
        // A sidecar keeps running.
        Some("Always") => container(pod, one, 0, true, &json!({"running": {"startedAt": now}})),
        _ => container(pod, one, 0, true, &terminated(now, now, &ContainerEnd::default())),
    };
    pod.spec.init_containers.iter().map(done).collect()
}

fn started(pod: &Pod, context: &NodeContext, now: &str, ready: bool, restarts: i32) -> Value {
    let running = || json!({"running": {"startedAt": now}});
    let containers =
        pod.spec.containers.iter().map(|one| container(pod, one, restarts, ready, &running()));
    let (containers_ready, containers_why) = truth(ready);
    let (pod_ready, pod_why) = pod_truth(pod, ready);
    let mut status = json!({
        "phase": "Running",
        "containerStatuses": containers.collect::<Vec<_>>(),
        "conditions": conditions(pod, now, &[
            ("PodReadyToStartContainers", "True", None),
            ("Initialized", "True", None),
            ("Ready", pod_ready, pod_why),
            ("ContainersReady", containers_ready, containers_why),
        ]),
    });
    set_start_fields(pod, context, now, &mut status);
    if let Some(ip) = &context.pod_ip {
        status["podIP"] = json!(ip);
        status["podIPs"] = json!([{"ip": ip}]);
    }
    status
}

fn truth(ready: bool) -> (&'static str, Option<&'static str>) {
    if ready { ("True", None) } else { ("False", Some("ContainersNotReady")) }
}

/// The status and reason of the condition `Ready`, which also depends on the readiness gates.
fn pod_truth(pod: &Pod, ready: bool) -> (&'static str, Option<&'static str>) {
    match ready && !pod.readiness_gates_pass() {
        true => ("False", Some("ReadinessGatesNotReady")),
        false => truth(ready),
    }
}

fn ready(pod: &Pod, now: &str, is_ready: bool) -> Value {
    let (containers_ready, containers_why) = truth(is_ready);
    let (pod_ready, pod_why) = pod_truth(pod, is_ready);
    let containers = pod.spec.containers.iter().map(|one| {
        let (restarts, since) = known(pod, &one.name, now);
        container(pod, one, restarts, is_ready, &json!({"running": {"startedAt": since}}))
    });
    json!({
        "containerStatuses": containers.collect::<Vec<_>>(),
        "conditions": conditions(pod, now, &[
            ("Ready", pod_ready, pod_why),
            ("ContainersReady", containers_ready, containers_why),
        ]),
    })
}

/// The restart count of a container, and since when it has been running.
fn known(pod: &Pod, name: &str, now: &str) -> (i32, String) {
    let status = pod.status.container_statuses.iter().find(|one| one.name == name);
    let since = status.and_then(|one| one.state.running.as_ref()?.started_at.as_ref());
    let restarts = status.map_or(0, |one| one.restart_count);
    (restarts, since.map_or_else(|| now.to_owned(), |since| rfc3339(since.0)))
}

fn ended(pod: &Pod, now: &str, phase: &str, exit: &ContainerEnd) -> Value {
    let containers = pod.spec.containers.iter().map(|one| {
        let (restarts, since) = known(pod, &one.name, now);
        container(pod, one, restarts, false, &terminated(&since, now, exit))
    });
    let why = if phase == "Succeeded" { "PodCompleted" } else { "PodFailed" };
    json!({
        "phase": phase,
        "containerStatuses": containers.collect::<Vec<_>>(),
        "conditions": conditions(pod, now, &[
            ("PodReadyToStartContainers", "False", None),
            ("Ready", "False", Some(why)),
            ("ContainersReady", "False", Some(why)),
        ]),
    })
}

fn backing_off(pod: &Pod, now: &str, exit: &ContainerEnd, restarts: i32) -> Value {
    let containers = pod.spec.containers.iter().map(|one| {
        let (_, since) = known(pod, &one.name, now);
        let waiting = json!({"waiting": {
            "reason": "CrashLoopBackOff",
            "message": format!(
                "back-off restarting failed container={} pod={}", one.name, full_name(pod)
            ),
        }});
        let mut status = container(pod, one, restarts, false, &waiting);
        status["lastState"] = terminated(&since, now, exit);
        status
    });
    json!({
        "phase": "Running",
        "containerStatuses": containers.collect::<Vec<_>>(),
        "conditions": conditions(pod, now, &[
            ("Ready", "False", Some("ContainersNotReady")),
            ("ContainersReady", "False", Some("ContainersNotReady")),
        ]),
    })
}

/// A pod as a kubelet names it.
pub(crate) fn full_name(pod: &Pod) -> String {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    format!("{name}_{namespace}({uid})")
}

fn terminated(started: &str, finished: &str, exit: &ContainerEnd) -> Value {
    let usual = if exit.exit_code == 0 { "Completed" } else { "Error" };
    let mut ended = json!({
        "exitCode": exit.exit_code,
        "reason": exit.reason.as_deref().unwrap_or(usual),
        "startedAt": started,
        "finishedAt": finished,
    });
    if let Some(message) = &exit.message {
        ended["message"] = json!(message);
    }
    json!({ "terminated": ended })
}

fn container(pod: &Pod, one: &Container, restarts: i32, ready: bool, state: &Value) -> Value {
    let image = one.image.as_deref().unwrap_or_default();
    let known = pod.status.container_statuses.iter().find(|known| known.name == one.name);
    let last_state = known.and_then(|known| known.last_state.as_deref().cloned());
    let mut status = json!({
        "name": one.name,
        "image": image,
        "imageID": "",
        "ready": ready,
        "started": state.get("running").is_some(),
        "restartCount": restarts,
        "lastState": last_state.unwrap_or_else(|| json!({})),
        "state": state,
    });
    if state.get("waiting").is_none() {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        status["imageID"] = json!(format!("{}@sha256:{}", repository(image), digest(image)));
        let id = digest(&format!("{uid}/{}/{restarts}", one.name));
        status["containerID"] = json!(format!("simulated://{id}"));
    }
    status
}

/// An image without its tag and digest.
fn repository(image: &str) -> &str {
    let name = image.split('@').next().unwrap_or_default();
    match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => name,
    }
}

/// 64 hexadecimal digits that depend on a text alone, in place of a digest.
fn digest(text: &str) -> String {
    let part = |salt: u8| fnv::hash(format!("{salt}{text}").as_bytes());
    (0..4).map(|salt| format!("{:016x}", part(salt))).collect()
}

/// All conditions of the pod with these set; an unchanged status keeps its transition time.
fn conditions(pod: &Pod, now: &str, set: &[(&str, &str, Option<&str>)]) -> Vec<Value> {
    let mut conditions: Vec<Value> = Vec::with_capacity(5);
    for (type_, status, reason) in set {
        let known = pod.condition(type_).filter(|known| known.status == *status);
        let since = known.and_then(|known| known.last_transition_time.as_ref());
        conditions.push(condition(
            &PodCondition {
                type_: (*type_).to_owned(),
                status: (*status).to_owned(),
                reason: reason.map(str::to_owned),
                message: None,
                last_transition_time: since.cloned(),
            },
            now,
        ));
    }
    let others = pod.status.conditions.iter();
    let others = others.filter(|other| set.iter().all(|(type_, ..)| *type_ != other.type_));
    conditions.extend(others.map(|other| condition(other, now)));
    conditions
}

fn condition(one: &PodCondition, now: &str) -> Value {
    let since = one.last_transition_time.as_ref();
    let since = since.map_or_else(|| now.to_owned(), |since| rfc3339(since.0));
    let mut value = json!({
        "type": one.type_, "status": one.status,
        "lastProbeTime": null, "lastTransitionTime": since,
    });
    for (key, text) in [("reason", &one.reason), ("message", &one.message)] {
        if let Some(text) = text {
            value[key] = json!(text);
        }
    }
    value
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value, reason = "tables write values where they are used")]
mod tests {
    use headwater_client::Cached;

    use super::*;

    fn pod(status: Value) -> Pod {
        let containers = json!([{"name": "c", "image": "nginx"}]);
        let text = json!({
            "metadata": {"name": "p", "uid": "u"},
            "spec": {"containers": containers}, "status": status,
        });
        Pod::decode(&text.to_string()).unwrap()
    }

    fn exit(exit_code: i32) -> ContainerEnd {
        let message = Some("bye".to_owned());
        ContainerEnd { exit_code, message, ..ContainerEnd::default() }
    }

    fn context() -> NodeContext {
        NodeContext {
            now: "2026-01-01T00:00:10Z".parse().unwrap(),
            host_ip: "172.18.0.2".into(),
            pod_ip: Some("10.64.0.2".into()),
        }
    }

    /// The pod after a transition, as a watcher decodes it.
    fn after(pod: &Pod, transition: &PodTransition) -> Pod {
        let mut value = json!({
            "metadata": {"name": "p", "uid": "u"},
            "spec": {"containers": [{"name": "c", "image": "nginx"}]},
            "status": patch(pod, transition, &context()).unwrap()["status"],
        });
        if value["status"]["phase"].is_null() {
            value["status"]["phase"] = json!(pod.phase());
        }
        Pod::decode(&value.to_string()).unwrap()
    }

    #[test]
    fn a_pod_becomes_ready_and_keeps_conditions_of_others() {
        let scheduled = json!({"conditions": [{
            "type": "PodScheduled", "status": "True",
            "lastTransitionTime": "2026-01-01T00:00:01Z",
        }]});
        let created = after(&pod(scheduled), &PodTransition::Create);
        assert_eq!(created.phase(), "Pending");
        let waiting = created.status.container_statuses[0].state.waiting.as_ref().unwrap();
        assert_eq!(waiting.reason.as_deref(), Some("ContainerCreating"));
        let started = after(&created, &PodTransition::Start { ready: true, restarts: 0 });
        assert!(started.is_ready() && started.status.container_statuses[0].ready);
        assert_eq!(started.status.pod_ip.as_deref(), Some("10.64.0.2"));
        assert_eq!(created.status.host_ip.as_deref(), Some("172.18.0.2"));
        let at_once = after(&pod(json!({})), &PodTransition::Start { ready: true, restarts: 0 });
        assert!(at_once.status.start_time.is_some() && at_once.status.host_ip.is_some());
        let since = started.condition("PodScheduled").unwrap().last_transition_time.clone();
        assert_eq!(rfc3339(since.unwrap().0), "2026-01-01T00:00:01Z");
        assert_eq!(started.status.conditions.len(), 5);
    }

    #[test]
    fn a_failing_pod_backs_off_with_its_last_state() {
        let running = json!({"phase": "Running", "containerStatuses": [{
            "name": "c", "restartCount": 1, "ready": true,
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        }]});
        let transition = PodTransition::BackOff { exit: exit(2), restarts: 1 };
        let patch = patch(&pod(running.clone()), &transition, &context()).unwrap();
        let container = &patch["status"]["containerStatuses"][0];
        assert_eq!(container["state"]["waiting"]["reason"], "CrashLoopBackOff");
        let last = &container["lastState"]["terminated"];
        assert_eq!((&last["exitCode"], &last["reason"]), (&json!(2), &json!("Error")));
        assert_eq!(
            (&last["startedAt"], &last["message"]),
            (&json!("2026-01-01T00:00:00Z"), &json!("bye"))
        );
        assert_eq!(patch["metadata"]["uid"], "u");
        let restarted = after(&pod(running.clone()), &transition);
        let restarted = after(&restarted, &PodTransition::Start { ready: true, restarts: 2 });
        let last = restarted.status.container_statuses[0].last_state.as_ref().unwrap();
        assert_eq!(last["terminated"]["exitCode"], 2, "a restart keeps how the last run ended");
        let end = PodTransition::End { exit: exit(0), succeeded: true };
        let ended = after(&pod(running), &end);
        assert!(ended.is_finished() && !ended.is_ready());
        let state = &ended.status.container_statuses[0].state;
        assert_eq!(state.terminated.as_ref().unwrap().reason.as_deref(), Some("Completed"));
    }

    #[test]
    fn a_pod_whose_probes_fail_keeps_running_and_is_not_ready() {
        let start = PodTransition::Start { ready: true, restarts: 0 };
        let running = after(&pod(json!({})), &start);
        let unready = after(&running, &PodTransition::BecomeUnready);
        assert!(!unready.is_ready() && !unready.status.container_statuses[0].ready);
        assert!(unready.status.container_statuses[0].state.running.is_some());
        assert_eq!(
            unready.condition("Ready").unwrap().reason.as_deref(),
            Some("ContainersNotReady")
        );
        assert!(after(&unready, &PodTransition::BecomeReady).is_ready());
    }

    #[test]
    fn images_and_containers_have_ids() {
        for (image, expected) in [
            ("nginx", "nginx"),
            ("nginx:1.27", "nginx"),
            ("registry.example.com:5000/nginx", "registry.example.com:5000/nginx"),
            ("registry.example.com:5000/nginx:1@sha256:00", "registry.example.com:5000/nginx"),
        ] {
            assert_eq!(repository(image), expected);
        }
        let start = PodTransition::Start { ready: true, restarts: 0 };
        let patch = patch(&pod(json!({})), &start, &context()).unwrap();
        let container = &patch["status"]["containerStatuses"][0];
        let id = container["imageID"].as_str().unwrap();
        assert!(id.starts_with("nginx@sha256:") && id.len() == "nginx@sha256:".len() + 64);
        assert_eq!(container["containerID"].as_str().unwrap().len(), "simulated://".len() + 64);
    }

    #[test]
    fn a_deadline_and_a_refused_image_are_reported() {
        let late = patch(&pod(json!({})), &PodTransition::ExceedDeadline, &context()).unwrap();
        assert_eq!(late["status"]["reason"], "DeadlineExceeded");
        assert_eq!(late["status"]["phase"], "Failed");
        let refused = PodTransition::FailPull("denied".to_owned());
        let refused = patch(&pod(json!({})), &refused, &context()).unwrap();
        let waiting = &refused["status"]["containerStatuses"][0]["state"]["waiting"];
        assert_eq!(waiting["reason"], "ImagePullBackOff");
        assert!(waiting["message"].as_str().unwrap().ends_with("denied"));
    }
}
