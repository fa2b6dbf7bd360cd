//! The Node objects: creates them, keeps them ready, and deletes surplus ones.

use std::sync::Arc;

use headwater_api::clock::rfc3339;
use headwater_client::controller::{Context, Controller, Failure, Next, Prepared, with_gone};
use headwater_client::{Cached, Error, Key};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

use crate::cluster::Cluster;

use super::rules::NodeTemplate;
use super::{OFFLINE, Options, SIMULATED, addresses};

/// Concurrent writes.
const WORKERS: usize = 8;

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let nodes = cluster.informer::<Node>()?;
    let controller =
        Arc::new(NodeController { cluster: cluster.clone(), options: cluster.nodes().clone() });
    let wanted = (0..controller.options.count).map(|number| Key::cluster(&super::name(number)));
    let (kept, create) = (controller.clone(), controller);
    let reconcile = move |node, cx| {
        let controller = kept.clone();
        async move { controller.reconcile(node, cx).await }
    };
    let gone = move |key, last, cx| {
        let controller = create.clone();
        async move { controller.create(key, last, cx).await }
    };
    Ok(Controller::new("simulated-nodes", &nodes)
        .triggered_by(futures::stream::iter(wanted.collect::<Vec<_>>()))
        .workers(WORKERS)
        .with(with_gone(reconcile, gone)))
}

struct NodeController {
    cluster: Cluster,
    options: Arc<Options>,
}

/// What to do with an existing Node.
#[derive(Debug, PartialEq, Eq)]
enum Action {
    Leave,
    /// Report that it is ready.
    Report,
    /// Delete a simulated Node beyond the configured count.
    Remove,
}

fn decide(node: &Node, count: usize) -> Action {
    let labels = node.metadata.labels.as_ref();
    let ours = labels.is_some_and(|labels| labels.contains_key(SIMULATED));
    match super::number(node.name(), count) {
        _ if !ours => Action::Leave,
        None => Action::Remove,
        Some(_) if is_offline(node) || is_ready(node) => Action::Leave,
        Some(_) => Action::Report,
    }
}

/// Whether the node is offline.
pub(super) fn is_offline(node: &Node) -> bool {
    node.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(OFFLINE))
}

fn is_ready(node: &Node) -> bool {
    let Some(status) = &node.status else { return false };
    let ready = status.conditions.iter().flatten().find(|condition| condition.type_ == "Ready");
    ready.is_some_and(|ready| ready.status == "True") && status.capacity.is_some()
}

impl NodeController {
    async fn reconcile(&self, node: Arc<Node>, cx: Context) -> Result<Next, Failure> {
        let nodes = cx.of::<Node>();
        match decide(&node, self.options.count) {
            Action::Leave => {}
            Action::Remove => drop(nodes.delete_this(&node).await?),
            Action::Report => {
                let number = super::number(node.name(), self.options.count).unwrap_or_default();
                let patch = json!({"status": self.status(number)});
                nodes.merge_status(cx.key(), &patch).await?;
            }
        }
        Ok(Next::Done)
    }

    /// Creates a missing Node. A Node that was deleted while this process ran stays deleted; it is
    /// created again after a restart, as by a kubelet.
    async fn create(
        &self,
        key: Key,
        last: Option<Arc<Node>>,
        cx: Context,
    ) -> Result<Next, Failure> {
        let Some(number) = super::number(key.name(), self.options.count) else {
            return Ok(Next::Done);
        };
        if last.is_some() {
            return Ok(Next::Done);
        }
        let mut node = object(number, self.options.rules.node());
        node["status"] = self.status(number);
        let node: Node = serde_json::from_str(&node.to_string())?;
        match cx.of::<Node>().create(&node).await {
            Err(error) if error.is_exists() => Ok(Next::Again),
            created => created.map(|_| Next::Done).map_err(Failure::from),
        }
    }

    fn status(&self, number: usize) -> Value {
        status(number, self.options.rules.node(), self.cluster.clock().now())
    }
}

fn object(number: usize, shape: &NodeTemplate) -> Value {
    let name = super::name(number);
    let mut labels = json!({
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "node.kubernetes.io/instance-type": "simulated",
        "topology.kubernetes.io/region": "here",
        "topology.kubernetes.io/zone": format!("zone-{}", number % shape.zones.max(1)),
        SIMULATED: "true",
    });
    for (key, value) in &shape.labels {
        labels[key] = json!(value);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "podCIDR": addresses::pod_cidr(number),
            "podCIDRs": [addresses::pod_cidr(number)],
            "providerID": format!("headwater://{name}"),
        },
    })
}

fn status(number: usize, shape: &NodeTemplate, now: Timestamp) -> Value {
    let now = rfc3339(now);
    let mut capacity = json!({
        "cpu": "8", "memory": "32Gi", "ephemeral-storage": "100Gi", "pods": "110",
    });
    for (resource, amount) in &shape.capacity {
        capacity[resource] = json!(amount);
    }
    let condition = |type_: &str, status: &str, reason: &str, message: &str| {
        json!({
            "type": type_, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        })
    };
    json!({
        "capacity": capacity,
        "allocatable": capacity,
        "phase": "Running",
        "addresses": [
            {"type": "InternalIP", "address": addresses::host_ip(number).to_string()},
            {"type": "Hostname", "address": super::name(number)},
        ],
        "conditions": [
            condition("MemoryPressure", "False", "KubeletHasSufficientMemory",
                "kubelet has sufficient memory available"),
            condition("DiskPressure", "False", "KubeletHasNoDiskPressure",
                "kubelet has no disk pressure"),
            condition("PIDPressure", "False", "KubeletHasSufficientPID",
                "kubelet has sufficient PID available"),
            condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": {
            "machineID": "", "systemUUID": "", "bootID": "",
            "kernelVersion": "simulated",
            "osImage": "Headwater",
            "containerRuntimeVersion": concat!("simulated://", env!("CARGO_PKG_VERSION")),
            "kubeletVersion": concat!("v1.36.4+headwater-", env!("CARGO_PKG_VERSION")),
            "kubeProxyVersion": "",
            "operatingSystem": "linux",
            "architecture": "amd64",
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: usize, change: impl Fn(&mut Value)) -> Node {
        let shape = NodeTemplate::default();
        let mut value = object(number, &shape);
        value["status"] = status(number, &shape, Timestamp::UNIX_EPOCH);
        change(&mut value);
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn our_nodes_are_kept_ready_and_others_are_left_alone() {
        let unready =
            |value: &mut Value| value["status"]["conditions"][3]["status"] = json!("Unknown");
        assert_eq!(decide(&node(1, |_| ()), 3), Action::Leave);
        assert_eq!(decide(&node(1, unready), 3), Action::Report);
        assert_eq!(decide(&node(1, |node| node["status"] = Value::Null), 3), Action::Report);
        assert_eq!(decide(&node(3, |_| ()), 3), Action::Remove);
        let offline = |value: &mut Value| {
            unready(value);
            value["metadata"]["annotations"] = json!({OFFLINE: "true"});
        };
        assert_eq!(decide(&node(1, offline), 3), Action::Leave);
        let foreign = |value: &mut Value| {
            unready(value);
            value["metadata"]["labels"] = json!({});
        };
        assert_eq!(decide(&node(7, foreign), 3), Action::Leave);
    }
}
