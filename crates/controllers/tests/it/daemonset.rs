//! DaemonSets: one pod on every node that fits, rollouts, and interruption.

use std::collections::BTreeMap;

use headwater_client::{Cached, Snapshot};
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};

use crate::replicaset::template;
use crate::world::World;

fn agent(change: Value) -> Value {
    let mut spec = json!({
        "selector": {"matchLabels": {"app": "agent"}},
        "template": template(json!({"app": "agent"})),
    });
    for (key, value) in change.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({"metadata": {"name": "agent", "namespace": "default"}, "spec": spec})
}

fn image(image: &str) -> Value {
    json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}})
}

/// The condition that `kubectl rollout status` waits for.
fn rolled_out(count: i32) -> impl FnMut(Option<&DaemonSet>) -> bool {
    move |set| {
        let Some(set) = set else { return false };
        let status = set.status.clone().unwrap_or_default();
        status.observed_generation >= set.metadata.generation
            && status.desired_number_scheduled == count
            && status.updated_number_scheduled.unwrap_or(0) == count
            && status.number_available.unwrap_or(0) == count
    }
}

/// The images of the pods that are not being deleted, by node.
fn images(pods: &Snapshot<Pod>) -> BTreeMap<String, Vec<String>> {
    let mut images = BTreeMap::<String, Vec<String>>::new();
    for (_, pod) in pods.iter().filter(|(_, pod)| pod.metadata.deletion_timestamp.is_none()) {
        let spec = pod.spec.as_ref().unwrap();
        let Some(node) = spec.node_name.clone() else { continue };
        images.entry(node).or_default().push(spec.containers[0].image.clone().unwrap_or_default());
    }
    images
}

fn everywhere(
    image: &'static str,
    nodes: &'static [&str],
) -> impl FnMut(&Snapshot<Pod>) -> Option<()> {
    move |pods| {
        let wanted = nodes.iter().map(|node| ((*node).to_owned(), vec![image.to_owned()]));
        (images(pods) == wanted.collect()).then_some(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_node_that_fits_runs_one_pod() {
    let world = World::with_nodes(3, "daemonset").await;
    world.create::<DaemonSet>(agent(json!({}))).await;
    world.until("default/agent", rolled_out(3)).await;
    world.until_all(everywhere("v1", &["node-0", "node-1", "node-2"])).await;
    let taint = json!({"spec": {"taints": [{"key": "own", "effect": "NoExecute"}]}});
    world.merge::<Node>("node-1", taint).await;
    world.until_all(everywhere("v1", &["node-0", "node-2"])).await;
    world.until("default/agent", rolled_out(2)).await;
    world.merge::<Node>("node-1", json!({"spec": {"taints": null}})).await;
    world.until("default/agent", rolled_out(3)).await;
    world.until_all(everywhere("v1", &["node-0", "node-1", "node-2"])).await;
}

/// The label of Kubernetes, by which its tools find the revision of a pod.
#[tokio::test(flavor = "multi_thread")]
async fn a_revision_has_the_label_of_its_pods() {
    const HASH: &str = "controller-revision-hash";
    let world = World::with_nodes(1, "daemonset").await;
    world.create::<DaemonSet>(agent(json!({}))).await;
    let of_pod = world
        .until_all(|pods: &Snapshot<Pod>| {
            pods.iter().next().and_then(|(_, pod)| pod.metadata.labels.as_ref()?.get(HASH).cloned())
        })
        .await;
    let of_revision = world
        .until_all(|revisions: &Snapshot<ControllerRevision>| {
            let labels = revisions.iter().next().and_then(|(_, it)| it.metadata.labels.clone());
            labels.map(|labels| labels.get(HASH).cloned())
        })
        .await;
    assert_eq!(of_revision.as_deref(), Some(of_pod.as_str()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_replaces_pods_with_and_without_surge() {
    let world = World::with_nodes(3, "daemonset").await;
    world.create::<DaemonSet>(agent(json!({}))).await;
    world.until("default/agent", rolled_out(3)).await;
    world.merge::<DaemonSet>("default/agent", image("v2")).await;
    world.until_all(everywhere("v2", &["node-0", "node-1", "node-2"])).await;
    world.until("default/agent", rolled_out(3)).await;
    let surge = json!({"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
    world.merge::<DaemonSet>("default/agent", json!({"spec": {"updateStrategy": surge}})).await;
    world.merge::<DaemonSet>("default/agent", image("v3")).await;
    world
        .until_all(|pods: &Snapshot<Pod>| {
            let ready = |node: &str| {
                pods.iter().any(|(_, pod)| {
                    let spec = pod.spec.as_ref().unwrap();
                    let mut conditions =
                        pod.status.iter().flat_map(|it| it.conditions.iter().flatten());
                    spec.node_name.as_deref() == Some(node)
                        && conditions.any(|it| it.type_ == "Ready" && it.status == "True")
                })
            };
            for node in ["node-0", "node-1", "node-2"] {
                assert!(ready(node), "{node} runs a ready pod throughout");
            }
            everywhere("v3", &["node-0", "node-1", "node-2"])(pods)
        })
        .await;
    world.until("default/agent", rolled_out(3)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_delete_replaces_only_deleted_pods() {
    let world = World::with_nodes(2, "daemonset").await;
    world.create::<DaemonSet>(agent(json!({"updateStrategy": {"type": "OnDelete"}}))).await;
    world.until("default/agent", rolled_out(2)).await;
    let first = world.merge::<DaemonSet>("default/agent", image("v2")).await;
    let generation = first.metadata.generation;
    world
        .until("default/agent", move |set: Option<&DaemonSet>| {
            let status = set.and_then(|set| set.status.clone()).unwrap_or_default();
            status.observed_generation == generation && status.updated_number_scheduled.is_none()
        })
        .await;
    let victim = world
        .until_all(|pods: &Snapshot<Pod>| {
            let on = |pod: &Pod| pod.spec.as_ref().unwrap().node_name.as_deref() == Some("node-1");
            pods.iter().find(|(_, pod)| on(pod)).map(|(_, pod)| pod.key())
        })
        .await;
    world.calls.of::<Pod>().delete(&victim).await.unwrap();
    world
        .until_all(|pods: &Snapshot<Pod>| {
            let wanted = [("node-0", "v1"), ("node-1", "v2")];
            let wanted = wanted.map(|(node, image)| (node.to_owned(), vec![image.to_owned()]));
            (images(pods) == wanted.into()).then_some(())
        })
        .await;
}
