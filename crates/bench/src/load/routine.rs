//! Routine changes: the writes of which a cluster has most, as kubelets send them.

use anyhow::Result;
use clap::ValueEnum;
use http::Method;
use serde_json::{Value, json};

use super::object::{namespace, pod_name};
use super::requests::{make_namespaces, make_pods, unused_mark};
use super::{JSON, STRATEGIC, WriteRequest, load};
use crate::target::TargetServer;

/// A kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoutineChange {
    /// A kubelet renews the lease of its node.
    LeaseRenewal,
    /// A kubelet reports that its node is well.
    NodeHeartbeat,
    /// A kubelet reports that the containers of a pod are ready, or no longer.
    PodStatus,
    /// Somebody changes a label of a pod.
    LabelEdit,
}

/// Objects that receive the changes.
const OBJECTS: usize = 64;
/// Clients that create them.
const MAKERS: usize = 4;

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const NODES: &str = "/api/v1/nodes";
const UID: &str = "0e4b1b1e-52a2-4b62-9c6e-3c2f0f9d1f10";

/// Creates the objects, each with a first change: it adds what later ones replace.
pub(crate) async fn make_objects(target: &TargetServer) -> Result<()> {
    make_namespaces(target).await?;
    make_pods(target, 0, OBJECTS).await?;
    let post = |path: &str, body: Value| WriteRequest {
        method: Method::POST,
        path: path.to_owned(),
        content_type: JSON,
        body: body.to_string().into_bytes(),
    };
    let endpoint = &target.endpoint;
    load(endpoint, MAKERS, OBJECTS, move |index| post(NODES, node(index))).await?;
    load(endpoint, MAKERS, OBJECTS, move |index| post(LEASES, lease(index, 0))).await?;
    for change in RoutineChange::value_variants() {
        load(endpoint, MAKERS, 2 * OBJECTS, move |index| change.write(index)).await?;
    }
    Ok(())
}

impl RoutineChange {
    pub(crate) fn name(self) -> &'static str {
        match self {
            RoutineChange::LeaseRenewal => "lease renewals",
            RoutineChange::NodeHeartbeat => "node heartbeats",
            RoutineChange::PodStatus => "pod status changes",
            RoutineChange::LabelEdit => "label edits",
        }
    }

    /// The path of a watch of all objects that it changes.
    pub(crate) fn watch_path(self) -> String {
        let collection = match self {
            RoutineChange::LeaseRenewal => LEASES,
            RoutineChange::NodeHeartbeat => NODES,
            RoutineChange::PodStatus | RoutineChange::LabelEdit => "/api/v1/pods",
        };
        format!("{collection}?watch=true")
    }

    /// The `index`-th write; it differs from every other.
    pub(crate) fn write(self, index: usize) -> WriteRequest {
        let (object, mark) = (index % OBJECTS, unused_mark());
        let pod = || format!("/api/v1/namespaces/{}/pods/{}", namespace(object), pod_name(object));
        let (method, path, content_type, body) = match self {
            RoutineChange::LeaseRenewal => {
                let path = format!("{LEASES}/{}", node_name(object));
                (Method::PATCH, path, STRATEGIC, json!({ "spec": { "renewTime": time(mark, 6) } }))
            }
            RoutineChange::NodeHeartbeat => {
                let path = format!("{NODES}/{}/status", node_name(object));
                (Method::PATCH, path, STRATEGIC, heartbeat(mark))
            }
            RoutineChange::PodStatus => {
                (Method::PATCH, format!("{}/status", pod()), STRATEGIC, pod_status(mark))
            }
            RoutineChange::LabelEdit => {
                let body = json!({ "metadata": { "labels": { "mark": format!("m{mark}") } } });
                (Method::PATCH, pod(), STRATEGIC, body)
            }
        };
        WriteRequest { method, path, content_type, body: body.to_string().into_bytes() }
    }
}

fn node_name(index: usize) -> String {
    format!("ip-10-0-12-{index}.eu-central-1.compute.internal")
}

/// A time that grows with the mark, with a second's fraction of this many digits.
fn time(mark: usize, digits: usize) -> String {
    let seconds = mark * 10;
    let (day, hour) = (1 + seconds / 86_400 % 28, seconds / 3600 % 24);
    let (minute, second) = (seconds / 60 % 60, seconds % 60);
    let fraction = match digits {
        0 => String::new(),
        digits => format!(".{:0digits$}", mark * 7_919 % 1_000_000),
    };
    format!("2026-01-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

fn lease(index: usize, mark: usize) -> Value {
    let name = node_name(index);
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": name,
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": name, "uid": UID }],
        },
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": 40,
            "renewTime": time(mark, 6),
        },
    })
}

/// A node of a cloud, about as large as they are.
fn node(index: usize) -> Value {
    let name = node_name(index);
    let images: Vec<Value> = (0..20)
        .map(|image| {
            let digest = format!("{image:02}c0ffee").repeat(8);
            json!({
                "names": [
                    format!("registry.example.org/team/image-{image}@sha256:{digest}"),
                    format!("registry.example.org/team/image-{image}:v1.{image}.0"),
                ],
                "sizeBytes": 21_000_000 + image,
            })
        })
        .collect();
    let resources = json!({ "cpu": "8", "memory": "32586392Ki", "pods": "110" });
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "node.kubernetes.io/instance-type": "m6i.2xlarge",
                "topology.kubernetes.io/region": "eu-central-1",
                "topology.kubernetes.io/zone": "eu-central-1a",
            },
        },
        "spec": { "podCIDR": "10.1.0.0/24", "providerID": format!("cloud:///{name}") },
        "status": {
            "addresses": [
                { "type": "InternalIP", "address": "10.0.12.7" },
                { "type": "Hostname", "address": name },
            ],
            "allocatable": resources,
            "capacity": resources,
            "images": images,
        },
    })
}

fn heartbeat(mark: usize) -> Value {
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": time(mark, 0), "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    json!({ "status": { "conditions": [
        condition("MemoryPressure", "False", "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available"),
        condition("DiskPressure", "False", "KubeletHasNoDiskPressure",
            "kubelet has no disk pressure"),
        condition("PIDPressure", "False", "KubeletHasSufficientPID",
            "kubelet has sufficient PID available"),
        condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ] } })
}

/// Both containers of a pod become ready or unready, in turns.
fn pod_status(mark: usize) -> Value {
    let (now, is_ready) = (time(mark, 0), (mark / OBJECTS).is_multiple_of(2));
    let condition = |kind: &str| {
        let status = if is_ready { "True" } else { "False" };
        json!({ "type": kind, "status": status, "lastTransitionTime": now })
    };
    let container = |name: &str| {
        json!({
            "name": name, "ready": is_ready, "started": true, "restartCount": 0,
            "image": format!("registry.example.org/{name}:v1.42.7"),
            "imageID": format!("registry.example.org/{name}@sha256:{}", "c0ffee01".repeat(8)),
            "containerID": format!("containerd://{}", "0badcafe".repeat(8)),
            "state": { "running": { "startedAt": "2026-01-01T00:00:00Z" } },
        })
    };
    json!({ "status": {
        "phase": "Running",
        "hostIP": "10.0.12.7",
        "podIP": "10.1.0.17",
        "podIPs": [{ "ip": "10.1.0.17" }],
        "startTime": "2026-01-01T00:00:00Z",
        "conditions": [condition("Ready"), condition("ContainersReady")],
        "containerStatuses": [container("app"), container("proxy")],
    } })
}
