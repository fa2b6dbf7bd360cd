//! What controllers do not do: send lists after the first sync, and repeat writes.

use std::collections::BTreeMap;

use headwater_client::{Cached, Snapshot};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Endpoints, Namespace, Pod, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Resource;
use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::replicaset::template;
use crate::world::World;

const ALL: &str = "deployment,replicaset,job,namespace,garbage,serviceaccount,endpointslice";

fn deployment(name: &str, namespace: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": name}},
            "template": template(json!({"app": name})),
        },
    })
}

fn service(name: &str, namespace: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80}]},
    })
}

fn job(namespace: &str) -> Value {
    let containers = json!([{"name": "c", "image": "v1"}]);
    let template = json!({"spec": {"restartPolicy": "Never", "containers": containers}});
    json!({
        "metadata": {"name": "sum", "namespace": namespace},
        "spec": {"completions": 2, "template": template},
    })
}

fn rolled_out(deployment: Option<&Deployment>) -> bool {
    let status = deployment.and_then(|it| it.status.clone()).unwrap_or_default();
    let mut conditions = status.conditions.iter().flatten();
    status.available_replicas == Some(3)
        && conditions.any(|it| it.reason.as_deref() == Some("NewReplicaSetAvailable"))
}

fn complete(job: Option<&Job>) -> bool {
    let status = job.and_then(|it| it.status.clone()).unwrap_or_default();
    status.conditions.iter().flatten().any(|it| it.type_ == "Complete")
}

async fn create_workloads(world: &World, namespace: &str) {
    world.create::<Namespace>(json!({"metadata": {"name": namespace}})).await;
    world.create::<Deployment>(deployment("web", namespace)).await;
    world.create::<Service>(service("web", namespace)).await;
    world.create::<Job>(job(namespace)).await;
    world.until(&format!("{namespace}/web"), rolled_out).await;
    world.until(&format!("{namespace}/sum"), complete).await;
    let namespace = namespace.to_owned();
    let ready = move |slices: &Snapshot<EndpointSlice>| {
        let own = slices.in_namespace(&namespace).flat_map(|(_, it)| it.endpoints.clone());
        let ready = own.flatten().filter(|it| it.conditions.as_ref().unwrap().ready == Some(true));
        (ready.count() == 3).then_some(())
    };
    world.until_all(ready).await;
}

/// The number of list requests, from the server's metrics.
async fn lists(world: &World) -> f64 {
    let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
    let text = world.client().request_text(request).await.unwrap();
    let lists = text.lines().filter(|line| {
        line.starts_with("apiserver_request_total{") && line.contains("verb=\"LIST\"")
    });
    lists.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[tokio::test]
async fn no_controller_lists_after_its_first_sync() {
    let world = World::with(ALL).await;
    create_workloads(&world, "first").await;
    // After the first namespace is deleted, the informers of every resource have synced.
    world.calls.of::<Namespace>().delete(&"first".parse().unwrap()).await.unwrap();
    world.until("first", |it: Option<&Namespace>| it.is_none()).await;
    let before = lists(&world).await;
    create_workloads(&world, "second").await;
    world.calls.of::<Deployment>().delete(&"second/web".parse().unwrap()).await.unwrap();
    world.until_all(|sets: &Snapshot<ReplicaSet>| sets.is_empty().then_some(())).await;
    world.calls.of::<Namespace>().delete(&"second".parse().unwrap()).await.unwrap();
    world.until("second", |it: Option<&Namespace>| it.is_none()).await;
    let after = lists(&world).await;
    assert_eq!(before.to_string(), after.to_string(), "lists after the first sync");
}

/// The versions of all objects of a kind in a namespace, from the server.
async fn versions<K>(world: &World, namespace: &str) -> BTreeMap<String, String>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned,
    K: Clone + std::fmt::Debug + Send + Sync + 'static,
{
    let all = kube::Api::<K>::namespaced(world.client(), namespace);
    let all = all.list(&ListParams::default()).await.unwrap();
    all.iter().map(|it| (it.name().to_owned(), it.resource_version().to_string())).collect()
}

/// The versions of all objects that controllers write in a namespace.
async fn all_versions(world: &World, namespace: &str) -> [BTreeMap<String, String>; 7] {
    [
        versions::<Deployment>(world, namespace).await,
        versions::<ReplicaSet>(world, namespace).await,
        versions::<Job>(world, namespace).await,
        versions::<Pod>(world, namespace).await,
        versions::<EndpointSlice>(world, namespace).await,
        versions::<Endpoints>(world, namespace).await,
        versions::<ServiceAccount>(world, namespace).await,
    ]
}

#[tokio::test]
async fn a_restart_does_not_repeat_writes() {
    let world = World::start().await;
    let running = world.run(ALL);
    create_workloads(&world, "shop").await;
    world.until("shop/web", |it: Option<&Endpoints>| it.is_some()).await;
    world.until("shop/default", |it: Option<&ServiceAccount>| it.is_some()).await;
    let settled = |pods: &Snapshot<Pod>| {
        let free = |pod: &Pod| pod.metadata.finalizers.as_ref().is_none_or(Vec::is_empty);
        pods.in_namespace("shop").all(|(_, pod)| free(pod)).then_some(())
    };
    world.until_all(settled).await;
    world.until_all(|sets: &Snapshot<ReplicaSet>| (!sets.is_empty()).then_some(())).await;
    running.stop().await;
    // A stop may interrupt work that the next start completes. After a few starts, none finds
    // anything to do; a controller that writes at every start fails this test.
    let mut quiet = 0;
    for round in 0.. {
        let before = all_versions(&world, "shop").await;
        let running = world.run(ALL);
        // The new objects are reconciled after all existing ones.
        create_workloads(&world, &format!("round-{round}")).await;
        running.stop().await;
        let after = all_versions(&world, "shop").await;
        quiet = if after == before { quiet + 1 } else { 0 };
        if quiet == 2 {
            return;
        }
        assert!(round < 8, "it is all_versions at every start: {before:?} {after:?}");
    }
}

#[tokio::test]
async fn all_controllers_finish_their_work_however_often_they_are_killed() {
    let world = World::start().await;
    let running = world.run(ALL);
    for namespace in ["one", "two", "three"] {
        create_workloads(&world, namespace).await;
    }
    running.kill().await;
    // Two namespaces are deleted; in the third only the Deployment, in the foreground.
    for namespace in ["one", "two"] {
        world.calls.of::<Namespace>().delete(&namespace.parse().unwrap()).await.unwrap();
    }
    let key = "three/web".parse().unwrap();
    let options = json!({"propagationPolicy": "Foreground"});
    world.calls.of::<Deployment>().delete_with(&key, &options).await.unwrap();
    let left = |pods: &Snapshot<Pod>| pods.iter().filter(|(_, pod)| is_running(pod)).count();
    let pods = world.informer::<Pod>();
    pods.synced().await.unwrap();
    let mut kills = 0;
    while left(&pods.snapshot()) > 0 {
        let running = world.run(ALL);
        let before = left(&pods.snapshot());
        world.until_all(move |pods: &Snapshot<Pod>| (left(pods) < before).then_some(())).await;
        running.kill().await;
        kills += 1;
    }
    assert!(kills > 0, "nothing was killed");
    let running = world.run(ALL);
    for namespace in ["one", "two"] {
        world.until(namespace, |it: Option<&Namespace>| it.is_none()).await;
    }
    world.until("three/web", |it: Option<&Deployment>| it.is_none()).await;
    world.until_all(|sets: &Snapshot<ReplicaSet>| sets.is_empty().then_some(())).await;
    world.until("three/sum", complete).await;
    world.until("three/web", |it: Option<&Service>| it.is_some()).await;
    running.stop().await;
}

fn is_running(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
}
