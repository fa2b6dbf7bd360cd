//! Nodes that stop sending heartbeats, recover, and are deleted.

use std::time::Duration;

use headwater_client::Snapshot;
use headwater_controllers::Options;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};

use crate::kubelet::NODE;
use crate::world::{Running, World};

async fn node(world: &World, name: &str) {
    let metadata = json!({"name": name});
    world.create::<Node>(json!({"metadata": metadata})).await;
    ready(world, name).await;
    let lease = json!({
        "metadata": {"name": name, "namespace": "kube-node-lease"},
        "spec": {"holderIdentity": name, "renewTime": micro(Timestamp::now())},
    });
    world.create::<Lease>(lease).await;
}

fn micro(time: Timestamp) -> Value {
    headwater_api::clock::rfc3339_micro(time).into()
}

async fn ready(world: &World, name: &str) {
    let conditions = json!([{
        "type": "Ready", "status": "True", "reason": "KubeletReady",
        "lastHeartbeatTime": Timestamp::now(), "lastTransitionTime": Timestamp::now(),
    }]);
    let patch = json!({"status": {"conditions": conditions}});
    world.calls.of::<Node>().merge_status(&name.parse().unwrap(), &patch).await.unwrap();
}

/// Renews the lease of a node and reports it ready while the future is polled; a node that a slow
/// machine let time out recovers.
async fn beat(world: &World, name: &str) {
    let key = format!("kube-node-lease/{name}").parse().unwrap();
    loop {
        let patch = json!({"spec": {"renewTime": micro(Timestamp::now())}});
        world.calls.of::<Lease>().merge(&key, &patch).await.unwrap();
        ready(world, name).await;
        tokio::time::sleep(Duration::from_millis(200)).await; // the heartbeat interval
    }
}

fn run(world: &World, grace: Duration) -> Running {
    let cluster = world.cluster().with_node_grace(grace);
    world.run_on(cluster, Options::new("nodelifecycle".parse().unwrap()))
}

fn taints(node: Option<&Node>) -> Vec<String> {
    let taints = node.and_then(|node| node.spec.clone()).and_then(|spec| spec.taints);
    let taints = taints.unwrap_or_default();
    taints.iter().map(|taint| format!("{}:{}", taint.key, taint.effect)).collect()
}

fn pod(name: &str, tolerations: Value) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "v1"}], "tolerations": tolerations},
    })
}

fn is_ready(pod: Option<&Pod>) -> bool {
    let status = pod.and_then(|pod| pod.status.clone()).unwrap_or_default();
    status.conditions.iter().flatten().any(|it| it.type_ == "Ready" && it.status == "True")
}

#[tokio::test]
async fn a_silent_node_loses_its_pods_and_runs_pods_again_after_recovery() {
    let world = World::start().await;
    node(&world, NODE).await;
    node(&world, "node-b").await;
    let unreachable = "node.kubernetes.io/unreachable";
    let keep = json!([{"key": unreachable, "operator": "Exists"}]);
    let short = json!([{"key": unreachable, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}]);
    world.create::<Pod>(pod("keeps", keep)).await;
    world.create::<Pod>(pod("goes", short)).await;
    world.until("default/keeps", is_ready).await;
    world.until("default/goes", is_ready).await;
    let _running = run(&world, Duration::from_secs(2));
    let scene = async {
        // Only node-b is alive: the first node becomes unknown and is tainted.
        let both = [format!("{unreachable}:NoSchedule"), format!("{unreachable}:NoExecute")];
        world
            .until(NODE, move |it: Option<&Node>| both.iter().all(|t| taints(it).contains(t)))
            .await;
        let unready = |it: Option<&Pod>| it.is_some() && !is_ready(it);
        world.until("default/keeps", unready).await;
        world.until("default/goes", |it: Option<&Pod>| it.is_none()).await;
        let left = world.until_all(|pods: &Snapshot<Pod>| Some(pods.len())).await;
        assert_eq!(left, 1, "the other one tolerates it");
        // The node recovers.
        let again = async {
            world.until(NODE, |it: Option<&Node>| it.is_some() && taints(it).is_empty()).await;
        };
        tokio::select! {
            () = beat(&world, NODE) => {}
            () = again => {}
        }
    };
    tokio::select! {
        () = beat(&world, "node-b") => {}
        () = scene => {}
    }
}

#[tokio::test]
async fn while_no_node_is_ready_no_pod_is_evicted() {
    let world = World::start().await;
    node(&world, NODE).await;
    world.create::<Pod>(pod("p", json!([]))).await;
    world.until("default/p", is_ready).await;
    let _running = run(&world, Duration::from_secs(1));
    let marked = |it: Option<&Node>| {
        taints(it).contains(&"node.kubernetes.io/unreachable:NoSchedule".to_owned())
    };
    let node = world.until(NODE, marked).await;
    assert_eq!(taints(node.as_deref()), ["node.kubernetes.io/unreachable:NoSchedule"]);
    assert!(world.calls.of::<Pod>().get(&"default/p".parse().unwrap()).await.unwrap().is_some());
}

#[tokio::test]
async fn a_cordoned_node_is_tainted_and_pods_of_a_deleted_node_are_deleted() {
    let world = World::start().await;
    node(&world, NODE).await;
    let _running = run(&world, Duration::from_secs(60));
    world.merge::<Node>(NODE, json!({"spec": {"unschedulable": true}})).await;
    let cordoned =
        |it: Option<&Node>| taints(it) == ["node.kubernetes.io/unschedulable:NoSchedule"];
    world.until(NODE, cordoned).await;
    world.merge::<Node>(NODE, json!({"spec": {"unschedulable": null}})).await;
    world.until(NODE, |it: Option<&Node>| taints(it).is_empty()).await;
    let mut held = pod("p", json!([]));
    held["metadata"]["finalizers"] = json!(["example.com/keep"]);
    world.create::<Pod>(held).await;
    world.until("default/p", is_ready).await;
    world.calls.of::<Node>().delete(&NODE.parse().unwrap()).await.unwrap();
    let ending = |it: Option<&Pod>| it.is_some_and(|it| it.metadata.deletion_timestamp.is_some());
    world.until("default/p", ending).await;
    world.merge::<Pod>("default/p", json!({"metadata": {"finalizers": null}})).await;
    world.until("default/p", |it: Option<&Pod>| it.is_none()).await;
}
