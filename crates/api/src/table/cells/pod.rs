//! The status of a pod in one word, the column that users read most.

use std::collections::HashSet;

use headwater_json::Value;
use jiff::Timestamp;

use super::{NONE, condition, is_true};
use crate::table::age::{human_duration, seconds_between};
use crate::table::{Source, find, text};

/// A pod, summarized over its containers.
struct Summary {
    ready: usize,
    total: usize,
    status: String,
    restarts: i64,
    last_restart: Option<Timestamp>,
}

pub(super) fn pod_ready(source: &Source<'_>) -> Value {
    let summary = Summary::new(source);
    format!("{}/{}", summary.ready, summary.total).into()
}

pub(super) fn pod_status(source: &Source<'_>) -> Value {
    Summary::new(source).status.into()
}

pub(super) fn pod_restarts(source: &Source<'_>) -> Value {
    let summary = Summary::new(source);
    match summary.last_restart {
        Some(last) if summary.restarts != 0 => {
            let ago = human_duration(seconds_between(last, source.now));
            format!("{} ({ago} ago)", summary.restarts).into()
        }
        _ => summary.restarts.to_string().into(),
    }
}

pub(super) fn pod_ip(source: &Source<'_>) -> Value {
    source.list("status.podIPs").first().map_or("", |ip| text(ip, "ip")).into()
}

pub(super) fn readiness_gates(source: &Source<'_>) -> Value {
    let gates = source.list("spec.readinessGates");
    if gates.is_empty() {
        return NONE.into();
    }
    let open = gates.iter().filter(|gate| is_true(source, text(gate, "conditionType"))).count();
    format!("{open}/{}", gates.len()).into()
}

impl Summary {
    fn new(source: &Source<'_>) -> Summary {
        let sidecars = source.list("spec.initContainers").iter().filter(|c| is_sidecar(c)).count();
        let mut summary = Summary {
            ready: 0,
            total: source.list("spec.containers").len() + sidecars,
            status: phase(source),
            restarts: 0,
            last_restart: None,
        };
        let initializing = summary.read_init_containers(source);
        if !initializing || is_true(source, "Initialized") {
            summary.read_containers(source);
        }
        summary.read_deletion(source);
        summary
    }

    /// Reads the init containers in order, up to the first that is not finished. Returns whether
    /// there is one.
    fn read_init_containers(&mut self, source: &Source<'_>) -> bool {
        let declared = source.list("spec.initContainers");
        let sidecars = sidecars(declared);
        for (index, status) in source.list("status.initContainerStatuses").iter().enumerate() {
            self.count_restarts(status);
            let sidecar = sidecars.contains(text(status, "name"));
            let terminated = find(status, "state.terminated");
            if terminated.is_some_and(|state| exit_code(state) == 0) {
                continue;
            }
            if sidecar && status.get("started") == Some(&Value::Bool(true)) {
                self.ready += usize::from(is_ready(status));
                continue;
            }
            let waiting = find(status, "state.waiting").map_or("", |state| text(state, "reason"));
            self.status = match (terminated, waiting) {
                (Some(state), _) => format!("Init:{}", termination(state)),
                (None, "" | "PodInitializing") => format!("Init:{index}/{}", declared.len()),
                (None, reason) => format!("Init:{reason}"),
            };
            return true;
        }
        false
    }

    /// Reads the containers; restarts of init containers do not count any more, except for
    /// sidecars.
    fn read_containers(&mut self, source: &Source<'_>) {
        (self.restarts, self.last_restart) = (0, None);
        let sidecars = sidecars(source.list("spec.initContainers"));
        for status in source.list("status.initContainerStatuses") {
            if sidecars.contains(text(status, "name")) {
                self.count_restarts(status);
            }
        }
        let (mut running, mut failure) = (false, None);
        // From the last to the first, because the first container takes precedence.
        for status in source.list("status.containerStatuses").iter().rev() {
            self.count_restarts(status);
            let waiting = find(status, "state.waiting").map_or("", |state| text(state, "reason"));
            if !waiting.is_empty() {
                self.status = waiting.to_owned();
            } else if let Some(state) = find(status, "state.terminated") {
                self.status = termination(state);
                if exit_code(state) != 0 {
                    failure = Some(self.status.clone());
                }
            } else if is_ready(status) && find(status, "state.running").is_some() {
                running = true;
                self.ready += 1;
            }
        }
        if self.status == "Completed" {
            self.status = match (running, failure) {
                (true, _) if is_true(source, "Ready") => "Running".into(),
                (_, Some(failure)) => failure,
                (true, None) => "NotReady".into(),
                (false, None) => "Completed".into(),
            };
        }
    }

    fn read_deletion(&mut self, source: &Source<'_>) {
        if !source.has("metadata.deletionTimestamp") {
            return;
        }
        if source.text("status.reason") == "NodeLost" {
            self.status = "Unknown".into();
        } else if !matches!(source.text("status.phase"), "Succeeded" | "Failed") {
            self.status = "Terminating".into();
        }
    }

    fn count_restarts(&mut self, status: &Value) {
        self.restarts += status.get("restartCount").and_then(Value::as_i64).unwrap_or(0);
        let finished = text(status, "lastState.terminated.finishedAt").parse().ok();
        self.last_restart = self.last_restart.max(finished);
    }
}

fn phase(source: &Source<'_>) -> String {
    let scheduled = condition(source, "status.conditions", "PodScheduled");
    if scheduled.is_some_and(|c| text(c, "reason") == "SchedulingGated") {
        return "SchedulingGated".into();
    }
    match source.text("status.reason") {
        "" => source.text("status.phase").into(),
        reason => reason.into(),
    }
}

/// The names of the init containers that keep running.
fn sidecars(declared: &[Value]) -> HashSet<&str> {
    declared.iter().filter(|c| is_sidecar(c)).map(|c| text(c, "name")).collect()
}

/// An init container that keeps running.
fn is_sidecar(container: &Value) -> bool {
    text(container, "restartPolicy") == "Always"
}

fn is_ready(status: &Value) -> bool {
    status.get("ready") == Some(&Value::Bool(true))
}

fn exit_code(state: &Value) -> i64 {
    state.get("exitCode").and_then(Value::as_i64).unwrap_or(0)
}

fn termination(state: &Value) -> String {
    match (text(state, "reason"), state.get("signal").and_then(Value::as_i64).unwrap_or(0)) {
        ("", 0) => format!("ExitCode:{}", exit_code(state)),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

/// Conditions of the row: finished pods are marked, so that clients can hide them.
pub(in crate::table) fn row_conditions(object: &Value) -> Option<Value> {
    if (text(object, "apiVersion"), text(object, "kind")) != ("v1", "Pod") {
        return None;
    }
    let (reason, message) = match text(object, "status.phase") {
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        "Failed" => ("Failed", "The pod failed."),
        _ => return None,
    };
    Some(headwater_json::json!([
        {"type": "Completed", "status": "True", "reason": reason, "message": message},
    ]))
}
