//! EndpointSlices and Endpoints follow pods.

use std::collections::BTreeSet;

use headwater_client::{Cached, Snapshot};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Endpoints, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};

use crate::replicaset::web;
use crate::world::World;

fn set(replicas: i32) -> Value {
    let mut set = web(replicas);
    let ports = json!([{"name": "http", "containerPort": 8080}]);
    set["spec"]["template"]["spec"]["containers"][0]["ports"] = ports;
    set
}

fn service() -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "default", "labels": {"team": "shop"}},
        "spec": {"selector": {"app": "web"}, "ports": [{"name": "web", "port": 80, "targetPort": "http"}]},
    })
}

/// The names of the pods of ready endpoints.
fn ready(slices: &Snapshot<EndpointSlice>) -> BTreeSet<String> {
    let endpoints =
        slices.iter().flat_map(|(_, slice)| slice.endpoints.clone().unwrap_or_default());
    endpoints
        .filter(|it| it.conditions.as_ref().and_then(|conditions| conditions.ready) == Some(true))
        .filter_map(|it| it.target_ref?.name)
        .collect()
}

fn older(endpoints: Option<&Endpoints>) -> usize {
    let subsets = endpoints.and_then(|it| it.subsets.clone()).unwrap_or_default();
    subsets.iter().map(|subset| subset.addresses.as_ref().map_or(0, Vec::len)).sum()
}

/// S10.11
#[tokio::test]
async fn endpoints_follow_the_pods_of_a_service() {
    let world = World::with("replicaset,endpointslice,garbage").await;
    world.create::<Service>(service()).await;
    let empty = |slices: &Snapshot<EndpointSlice>| {
        (slices.len() == 1 && ready(slices).is_empty()).then_some(())
    };
    world.until_all(empty).await;
    world.create::<ReplicaSet>(set(3)).await;
    let three = |slices: &Snapshot<EndpointSlice>| {
        (ready(slices).len() == 3).then(|| slices.iter().next().unwrap().1.clone())
    };
    let slice = world.until_all(three).await;
    let labels = slice.metadata.labels.clone().unwrap();
    assert_eq!(labels["kubernetes.io/service-name"], "web");
    assert_eq!(labels["endpointslice.kubernetes.io/managed-by"], "endpointslice-controller.k8s.io");
    assert_eq!(labels["team"], "shop");
    let port = &slice.ports.as_ref().unwrap()[0];
    assert_eq!((port.name.as_deref(), port.port), (Some("web"), Some(8080)));
    world.until("default/web", |it: Option<&Endpoints>| older(it) == 3).await;
    // A deleted pod is removed from the endpoints; its replacement is added.
    let before = ready(&world.informer::<EndpointSlice>().snapshot());
    let gone = before.first().unwrap().clone();
    world.calls.of::<Pod>().delete(&format!("default/{gone}").parse().unwrap()).await.unwrap();
    world
        .until_all(move |slices: &Snapshot<EndpointSlice>| {
            let now = ready(slices);
            (now.len() == 3 && !now.contains(&gone)).then_some(())
        })
        .await;
    world.merge::<ReplicaSet>("default/web", json!({"spec": {"replicas": 0}})).await;
    world.until_all(empty).await;
    world.until("default/web", |it: Option<&Endpoints>| it.is_some() && older(it) == 0).await;
    world.calls.of::<Service>().delete(&"default/web".parse().unwrap()).await.unwrap();
    world.until("default/web", |it: Option<&Endpoints>| it.is_none()).await;
    world.until_all(|slices: &Snapshot<EndpointSlice>| slices.is_empty().then_some(())).await;
}

#[tokio::test]
async fn many_pods_are_distributed_over_slices_of_a_hundred() {
    let world = World::with("replicaset,endpointslice").await;
    world.create::<ReplicaSet>(set(130)).await;
    world.create::<Service>(service()).await;
    let sizes = |slices: &Snapshot<EndpointSlice>| {
        let each = slices.iter().map(|(_, slice)| slice.endpoints.as_ref().map_or(0, Vec::len));
        let sizes: Vec<usize> = each.collect();
        assert!(sizes.iter().all(|size| *size <= 100), "{sizes:?}");
        (ready(slices).len() == 130).then_some(sizes)
    };
    let sizes = world.until_all(sizes).await;
    assert!(sizes.len() >= 2, "{sizes:?}");
}

#[tokio::test]
async fn slices_of_other_controllers_are_not_changed() {
    let world = World::with("endpointslice").await;
    let theirs = json!({
        "metadata": {"name": "theirs", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.9.9.9"]}],
        "ports": [],
    });
    world.create::<EndpointSlice>(theirs).await;
    world.create::<Service>(service()).await;
    let two = |slices: &Snapshot<EndpointSlice>| (slices.len() == 2).then_some(());
    world.until_all(two).await;
    let found = world.calls.of::<EndpointSlice>().get(&"default/theirs".parse().unwrap()).await;
    assert_eq!(found.unwrap().unwrap().endpoints.unwrap()[0].addresses, ["10.9.9.9"]);
    assert!(world.informer::<Service>().name().starts_with("services"));
    let key = world.until("default/web", |it: Option<&Service>| it.is_some()).await.unwrap().key();
    assert_eq!(key.name(), "web");
}

#[tokio::test]
async fn a_balanced_service_has_an_external_address_while_it_is_balanced() {
    let world = World::with("service-lb-controller").await;
    let mut balanced = service();
    balanced["spec"]["type"] = "LoadBalancer".into();
    world.create::<Service>(balanced).await;
    let external = |service: Option<&Service>| {
        let status = service.and_then(|service| service.status.clone()).unwrap_or_default();
        let ingress = status.load_balancer.and_then(|balancer| balancer.ingress);
        ingress.unwrap_or_default().first().and_then(|one| one.ip.clone())
    };
    let has_address = |service: Option<&Service>| {
        external(service).is_some_and(|ip| ip.starts_with("198.18.") || ip.starts_with("198.19."))
    };
    world.until("default/web", has_address).await;
    world.merge::<Service>("default/web", json!({"spec": {"type": "ClusterIP"}})).await;
    let has_none = |service: Option<&Service>| service.is_some() && external(service).is_none();
    world.until("default/web", has_none).await;
}
