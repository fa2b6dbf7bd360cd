//! The scheduler and the simulated nodes against a complete server in this process.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;

use headwater_client::calls::Calls;
use headwater_client::informer::Informer;
use headwater_client::{Factory, Key};
use headwater_controllers::nodes::{self, OFFLINE, Rules};
use headwater_controllers::pod::Pod;
use headwater_controllers::{Cluster, Options};
use headwater_testing::TestServer;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod as FullPod};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::world::PATIENCE;

/// The clients and informers of a scenario.
struct Scene {
    calls: Calls,
    pods: Informer<Pod>,
    factory: Factory,
}

/// Runs a scenario with a scheduler and this many simulated nodes.
async fn with_nodes<F: Future<Output = ()>>(count: usize, scenario: impl FnOnce(Scene) -> F) {
    with_nodes_of(TestServer::start().await, count, scenario).await;
}

/// As [`with_nodes`], on a server that has objects already.
async fn with_nodes_of<F: Future<Output = ()>>(
    server: TestServer,
    count: usize,
    scenario: impl FnOnce(Scene) -> F,
) {
    let rules = nodes::Options { count, rules: Rules::instant() };
    let cluster = Cluster::new(Factory::new(server.client())).with_nodes(rules);
    let eyes = Factory::new(server.client());
    let pods = eyes.informer::<Pod>().open().unwrap();
    let scene = Scene { calls: Calls::new(server.client()), pods, factory: eyes.clone() };
    let (stop, look) = (CancellationToken::new(), CancellationToken::new());
    let options = Options::new("scheduler,simulated-nodes".parse().unwrap());
    let acting = async {
        scenario(scene).await;
        stop.cancel();
        look.cancel();
    };
    let ran = headwater_controllers::run(cluster, options, stop.clone().cancelled_owned());
    let (ran, looked, ()) = tokio::join!(ran, eyes.run(look.clone()), acting);
    ran.unwrap();
    looked.unwrap();
}

impl Scene {
    async fn create(&self, name: &str, spec: Value) {
        let mut spec = spec;
        spec["containers"] = json!([{"name": "c", "image": "x"}]);
        let pod = json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec});
        let pod: FullPod = serde_json::from_value(pod).unwrap();
        self.calls.of::<FullPod>().create(&pod).await.unwrap();
    }

    async fn until(&self, name: &str, check: impl Fn(&Pod) -> bool) {
        self.pods.synced().await.unwrap();
        let key = Key::namespaced("default", name);
        let check = |pod: Option<&Pod>| pod.is_some_and(&check);
        self.pods.wait_for(&key, check, PATIENCE).await.unwrap();
    }

    /// Waits until the scheduler knows these nodes, by scheduling a pod on each of them.
    async fn until_scheduler_knows(&self, nodes: impl Iterator<Item = usize>) {
        for number in nodes {
            let name = format!("scout-{number}");
            let node = format!("node-{number}");
            self.create(&name, json!({"nodeSelector": {"kubernetes.io/hostname": node}})).await;
            self.until(&name, runs).await;
        }
    }
}

fn runs(pod: &Pod) -> bool {
    pod.phase() == "Running" && pod.is_ready()
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_have_unique_addresses_and_are_spread_over_nodes() {
    with_nodes(4, |scene| async move {
        scene.until_scheduler_knows(0..4).await;
        let names: Vec<String> = (0..60).map(|number| format!("p{number}")).collect();
        for name in &names {
            scene.create(name, json!({})).await;
        }
        let (mut addresses, mut shares) = (BTreeSet::new(), BTreeMap::<String, usize>::new());
        for name in &names {
            scene.until(name, runs).await;
            let pod =
                scene.pods.snapshot().get(&Key::namespaced("default", name)).cloned().unwrap();
            addresses.insert(pod.status.pod_ip.clone().unwrap());
            *shares.entry(pod.node().unwrap().to_owned()).or_default() += 1;
        }
        assert_eq!(addresses.len(), names.len());
        assert_eq!(shares.len(), 4);
        assert!(shares.values().all(|share| (10..=20).contains(share)), "{shares:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_offline_node_runs_no_pods_until_it_is_online_again() {
    // The first node is offline from the start.
    let server = TestServer::start().await;
    let node = json!({"metadata": {"name": "node-0", "annotations": {OFFLINE: ""}}});
    let node: Node = serde_json::from_value(node).unwrap();
    Calls::new(server.client()).of::<Node>().create(&node).await.unwrap();
    with_nodes_of(server, 2, |scene| async move {
        scene.create("dark", json!({"nodeName": "node-0"})).await;
        scene.create("light", json!({"nodeName": "node-1"})).await;
        scene.until("light", runs).await;
        let dark = scene.pods.snapshot().get(&Key::namespaced("default", "dark")).cloned().unwrap();
        assert_eq!((dark.phase(), dark.status.container_statuses.len()), ("Pending", 0));
        let power = json!({"metadata": {"annotations": {OFFLINE: null}}});
        scene.calls.of::<Node>().merge(&Key::cluster("node-0"), &power).await.unwrap();
        scene.until("dark", runs).await;
        let leases = scene.factory.informer::<Lease>().open().unwrap();
        leases.synced().await.unwrap();
        for node in ["node-0", "node-1"] {
            let key = Key::namespaced("kube-node-lease", node);
            leases.wait_for(&key, |lease| lease.is_some(), PATIENCE).await.unwrap();
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_other_schedulers_and_gated_pods_are_not_scheduled() {
    with_nodes(1, |scene| async move {
        scene.create("theirs", json!({"schedulerName": "other"})).await;
        scene.create("gated", json!({"schedulingGates": [{"name": "example.com/wait"}]})).await;
        scene.create("ours", json!({})).await;
        scene.until("ours", runs).await;
        for name in ["theirs", "gated"] {
            let pod =
                scene.pods.snapshot().get(&Key::namespaced("default", name)).cloned().unwrap();
            assert_eq!(pod.node(), None, "{name}");
        }
        let open = json!({"spec": {"schedulingGates": null}});
        let key = Key::namespaced("default", "gated");
        scene.calls.of::<FullPod>().merge(&key, &open).await.unwrap();
        scene.until("gated", runs).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unschedulable_pod_is_scheduled_when_a_node_is_added() {
    with_nodes(0, |scene| async move {
        scene.create("early", json!({})).await;
        let reported = |pod: &Pod| {
            let why = pod.condition("PodScheduled").and_then(|known| known.message.clone());
            why.as_deref() == Some("no nodes available to schedule pods")
        };
        scene.until("early", reported).await;
        let node = json!({
            "metadata": {"name": "late"},
            "status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "5"}},
        });
        let node: Node = serde_json::from_value(node).unwrap();
        scene.calls.of::<Node>().create(&node).await.unwrap();
        scene.until("early", |pod| pod.node() == Some("late")).await;
    })
    .await;
}
