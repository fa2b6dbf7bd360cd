//! Namespaces: default objects and deletion.

use headwater_client::{Cached, Snapshot};
use headwater_controllers::Options;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret, ServiceAccount};
use serde_json::json;

use crate::garbage::{calls_of, widget, widgets};
use crate::replicaset::template;
use crate::world::World;

fn gone<K>(object: Option<&K>) -> bool {
    object.is_none()
}

/// S10.5
#[tokio::test]
async fn a_namespace_is_deleted_after_its_content() {
    let world = World::with("deployment,replicaset,garbage,namespace,serviceaccount").await;
    let kind = widgets(&world).await;
    world.create::<Namespace>(json!({"metadata": {"name": "shop"}})).await;
    let deployment = json!({
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "web"}},
            "template": template(json!({"app": "web"})),
        },
    });
    world.create::<Deployment>(deployment).await;
    world.create::<Secret>(json!({"metadata": {"name": "s", "namespace": "shop"}})).await;
    world.create::<Secret>(json!({"metadata": {"name": "s", "namespace": "default"}})).await;
    let keep = json!({"name": "w", "namespace": "shop", "finalizers": ["example.com/keep"]});
    widget(&world, &kind, keep).await;
    let running = |pods: &Snapshot<Pod>| (pods.len() == 3).then_some(());
    world.until_all(running).await;
    world.until("shop/default", |it: Option<&ServiceAccount>| it.is_some()).await;

    world.calls.of::<Namespace>().delete(&"shop".parse().unwrap()).await.unwrap();
    let held = |it: Option<&Namespace>| {
        let status = it.and_then(|it| it.status.clone()).unwrap_or_default();
        assert_eq!(status.phase.as_deref(), Some("Terminating"));
        status.conditions.iter().flatten().any(|condition| {
            condition.type_ == "NamespaceFinalizersRemaining"
                && condition.message.as_deref().is_some_and(|it| it.contains("example.com/keep"))
        })
    };
    let terminating =
        |it: Option<&Namespace>| it.is_some_and(|it| it.metadata.deletion_timestamp.is_some());
    world.until("shop", terminating).await;
    world.until("shop", held).await;
    world.until_all(|pods: &Snapshot<Pod>| pods.is_empty().then_some(())).await;
    world.until_all(|sets: &Snapshot<ReplicaSet>| sets.is_empty().then_some(())).await;
    world.until("shop/s", gone::<Secret>).await;
    // The holder of the widget removes its finalizer.
    let patch = json!({"metadata": {"finalizers": null}});
    calls_of(&world, &kind).merge(&"shop/w".parse().unwrap(), &patch).await.unwrap();
    world.until("shop", gone::<Namespace>).await;
    let other = world.calls.of::<Secret>().get(&"default/s".parse().unwrap()).await.unwrap();
    assert!(other.is_some(), "other namespaces are not affected");
}

#[tokio::test]
async fn empty_and_already_terminating_namespaces_are_deleted() {
    let world = World::start().await;
    world.create::<Namespace>(json!({"metadata": {"name": "early"}})).await;
    world.create::<ConfigMap>(json!({"metadata": {"name": "c", "namespace": "early"}})).await;
    world.calls.of::<Namespace>().delete(&"early".parse().unwrap()).await.unwrap();
    let running = world.run("namespace");
    world.until("early", gone::<Namespace>).await;
    world.create::<Namespace>(json!({"metadata": {"name": "empty"}})).await;
    world.calls.of::<Namespace>().delete(&"empty".parse().unwrap()).await.unwrap();
    world.until("empty", gone::<Namespace>).await;
    running.stop().await;
}

/// S10.11
#[tokio::test]
async fn every_namespace_has_a_service_account_that_is_recreated() {
    let world = World::with("serviceaccount").await;
    let there = |it: Option<&ServiceAccount>| it.is_some();
    let first = world.until("default/default", there).await.unwrap();
    world.create::<Namespace>(json!({"metadata": {"name": "shop"}})).await;
    world.until("shop/default", there).await;
    world.calls.of::<ServiceAccount>().delete(&first.key()).await.unwrap();
    let again = move |it: Option<&ServiceAccount>| it.is_some_and(|it| it.uid() != first.uid());
    world.until("default/default", again).await;
}

/// S10.11
#[tokio::test]
async fn every_namespace_has_the_ca_certificate_of_the_server() {
    let world = World::start().await;
    let cluster = world.cluster().with_root_ca("certificate");
    let running = world.run_on(cluster, Options::new("serviceaccount".parse().unwrap()));
    let is_right = |it: Option<&ConfigMap>| {
        let data = it.and_then(|it| it.data.clone()).unwrap_or_default();
        data.get("ca.crt").is_some_and(|text| text == "certificate")
    };
    world.until("default/kube-root-ca.crt", is_right).await;
    world.create::<Namespace>(json!({"metadata": {"name": "shop"}})).await;
    world.until("shop/kube-root-ca.crt", is_right).await;
    let forged = json!({"data": {"ca.crt": "forged"}});
    let written = world.merge::<ConfigMap>("shop/kube-root-ca.crt", forged).await;
    world.until("shop/kube-root-ca.crt", newer(written, is_right)).await;
    let key = written_key();
    let last = world.calls.of::<ConfigMap>().get(&key).await.unwrap().unwrap();
    world.calls.of::<ConfigMap>().delete(&key).await.unwrap();
    world.until("shop/kube-root-ca.crt", newer(last, is_right)).await;
    running.stop().await;
}

fn written_key() -> headwater_client::Key {
    headwater_client::Key::namespaced("shop", "kube-root-ca.crt")
}

/// Waits for a state that is newer than `than`: a cache may still hold the older one.
fn newer(
    than: ConfigMap,
    check: impl Fn(Option<&ConfigMap>) -> bool,
) -> impl Fn(Option<&ConfigMap>) -> bool {
    move |it| {
        let is_newer = |it: &ConfigMap| {
            it.resource_version()
                .compare(&than.resource_version())
                .is_some_and(|order| order.is_gt())
        };
        check(it) && it.is_some_and(is_newer)
    }
}
