//! Garbage collection of built-in and custom resources: background, foreground and orphan.

use std::time::Duration;

use headwater_client::calls::Collection;
use headwater_client::{Cached, ResourceType, Snapshot};
use headwater_controllers::Options;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Value, json};

use crate::replicaset::template;
use crate::world::{PATIENCE, World};

/// The custom kind `Widget`.
pub(crate) async fn widgets(world: &World) -> ApiResource {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    });
    world.create::<CustomResourceDefinition>(definition).await;
    let is_served = |it: Option<&CustomResourceDefinition>| {
        let status = it.and_then(|it| it.status.clone()).unwrap_or_default();
        status
            .conditions
            .iter()
            .flatten()
            .any(|it| it.type_ == "Established" && it.status == "True")
    };
    world.until("widgets.example.com", is_served).await;
    ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Widget"))
}

pub(crate) fn calls_of(world: &World, kind: &ApiResource) -> Collection<DynamicObject> {
    world.calls.of_type(ResourceType::of::<DynamicObject>(kind))
}

pub(crate) async fn widget(world: &World, kind: &ApiResource, metadata: Value) -> DynamicObject {
    let object = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": metadata});
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    calls_of(world, kind).create(&object).await.unwrap()
}

fn owned(name: &str, owners: &[Value]) -> Value {
    json!({"metadata": {"name": name, "namespace": "default", "ownerReferences": owners}})
}

fn map_owner(map: &ConfigMap, blocks: bool) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "name": map.name(), "uid": map.uid(), "blockOwnerDeletion": blocks})
}

fn gone<K>(object: Option<&K>) -> bool {
    object.is_none()
}

async fn delete<K>(world: &World, key: &str, policy: &str)
where
    K: kube::Resource<DynamicType = ()> + serde::de::DeserializeOwned + Send + Sync + 'static,
{
    let options = json!({"propagationPolicy": policy});
    world.calls.of::<K>().delete_with(&key.parse().unwrap(), &options).await.unwrap();
}

fn deployment() -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "web"}},
            "template": template(json!({"app": "web"})),
        },
    })
}

async fn ready(world: &World) {
    let three = |sets: &Snapshot<ReplicaSet>| {
        let mut ready = sets.iter().map(|(_, set)| set.status.clone().unwrap_or_default());
        ready.any(|status| status.ready_replicas == Some(3)).then_some(())
    };
    world.until_all(three).await;
}

fn none<K>(all: &Snapshot<K>) -> Option<()>
where
    K: Cached,
{
    all.is_empty().then_some(())
}

/// S10.10
#[tokio::test]
async fn objects_of_a_deleted_deployment_are_deleted() {
    let world = World::with("deployment,replicaset,garbage").await;
    world.create::<Deployment>(deployment()).await;
    ready(&world).await;
    delete::<Deployment>(&world, "default/web", "Background").await;
    world.until("default/web", gone::<Deployment>).await;
    world.until_all(none::<ReplicaSet>).await;
    world.until_all(none::<Pod>).await;
}

/// S10.10
#[tokio::test]
async fn foreground_deletion_deletes_dependents_first() {
    let world = World::with("deployment,replicaset,garbage").await;
    world.create::<Deployment>(deployment()).await;
    ready(&world).await;
    let (sets, pods) = (world.informer::<ReplicaSet>(), world.informer::<Pod>());
    sets.synced().await.unwrap();
    pods.synced().await.unwrap();
    delete::<Deployment>(&world, "default/web", "Foreground").await;
    world.until_all(none::<Pod>).await;
    world.until_all(none::<ReplicaSet>).await;
    world.until("default/web", gone::<Deployment>).await;
}

/// S10.10
#[tokio::test]
async fn an_orphaned_object_is_kept_without_its_owner_reference() {
    let world = World::with("deployment,replicaset,garbage").await;
    world.create::<Deployment>(deployment()).await;
    ready(&world).await;
    delete::<Deployment>(&world, "default/web", "Orphan").await;
    world.until("default/web", gone::<Deployment>).await;
    let orphaned = |sets: &Snapshot<ReplicaSet>| {
        let (_, set) = sets.iter().next().expect("the set stays");
        set.metadata.owner_references.as_ref().is_none_or(Vec::is_empty).then_some(())
    };
    world.until_all(orphaned).await;
    // The pods still belong to the set.
    world.until_all(|pods: &Snapshot<Pod>| (pods.len() == 3).then_some(())).await;
}

#[tokio::test]
async fn custom_resources_that_appear_later_own_and_are_owned() {
    let world = World::with("garbage").await;
    let first: ConfigMap = world.create(owned("first", &[])).await;
    world.create::<ConfigMap>(owned("second", &[map_owner(&first, true)])).await;
    let kind = widgets(&world).await;
    let widget = widget(&world, &kind, owned("w", &[map_owner(&first, true)])["metadata"].clone());
    let widget = widget.await;
    let owner =
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "name": "w", "uid": widget.uid()});
    world.create::<ConfigMap>(owned("third", &[owner])).await;
    delete::<ConfigMap>(&world, "default/first", "Foreground").await;
    for name in ["default/first", "default/second", "default/third"] {
        world.until(name, gone::<ConfigMap>).await;
    }
    let left = calls_of(&world, &kind).get(&"default/w".parse().unwrap()).await.unwrap();
    assert!(left.is_none());
}

#[tokio::test]
async fn one_existing_owner_keeps_an_object_and_a_wrong_uid_does_not() {
    let world = World::with("garbage").await;
    let one: ConfigMap = world.create(owned("one", &[])).await;
    let two: ConfigMap = world.create(owned("two", &[])).await;
    let both = [map_owner(&one, false), map_owner(&two, false)];
    world.create::<ConfigMap>(owned("child", &both)).await;
    delete::<ConfigMap>(&world, "default/one", "Background").await;
    let only_two = |it: Option<&ConfigMap>| {
        let owners = it.expect("the child stays").metadata.owner_references.clone();
        owners.unwrap_or_default().iter().map(|owner| owner.name.clone()).collect::<Vec<_>>()
            == ["two"]
    };
    world.until("default/child", only_two).await;
    // An owner with the right name and another UID is not an owner.
    let mut false_owner = map_owner(&two, false);
    false_owner["uid"] = "somebody-else".into();
    world.create::<ConfigMap>(owned("bastard", &[false_owner])).await;
    world.until("default/bastard", gone::<ConfigMap>).await;
    // A namespaced owner of a cluster-scoped object and an unknown kind decide nothing.
    let strange =
        json!({"apiVersion": "nobody.example/v1", "kind": "Nothing", "name": "n", "uid": "n"});
    world.create::<ConfigMap>(owned("strange", &[strange])).await;
    let mut node = owned("node", &[map_owner(&one, false)]);
    node["metadata"]["namespace"] = Value::Null;
    world.create::<Node>(node).await;
    // This object is examined after those two.
    let last = world.create::<ConfigMap>(owned("last", &[map_owner(&one, false)])).await;
    world.until("default/last", gone::<ConfigMap>).await;
    drop(last);
    let calls = &world.calls;
    assert!(
        calls.of::<ConfigMap>().get(&"default/strange".parse().unwrap()).await.unwrap().is_some()
    );
    assert!(calls.of::<Node>().get(&"node".parse().unwrap()).await.unwrap().is_some());
}

#[tokio::test]
async fn a_cycle_of_owners_is_deleted() {
    let world = World::with("garbage").await;
    let one: ConfigMap = world.create(owned("one", &[])).await;
    let two: ConfigMap = world.create(owned("two", &[map_owner(&one, true)])).await;
    let patch = json!({"metadata": {"ownerReferences": [map_owner(&two, true)]}});
    world.merge::<ConfigMap>("default/one", patch).await;
    delete::<ConfigMap>(&world, "default/one", "Foreground").await;
    world.until("default/one", gone::<ConfigMap>).await;
    world.until("default/two", gone::<ConfigMap>).await;
}

#[tokio::test]
async fn a_collector_that_starts_late_collects_existing_garbage() {
    let world = World::start().await;
    let one: ConfigMap = world.create(owned("one", &[])).await;
    world.create::<ConfigMap>(owned("two", &[map_owner(&one, true)])).await;
    let three: ConfigMap = world.create(owned("three", &[])).await;
    world.create::<ConfigMap>(owned("four", &[map_owner(&three, true)])).await;
    delete::<ConfigMap>(&world, "default/one", "Background").await;
    delete::<ConfigMap>(&world, "default/three", "Foreground").await;
    let running = world.run("garbage");
    for name in ["default/two", "default/three", "default/four"] {
        world.until(name, gone::<ConfigMap>).await;
    }
    running.stop().await;
}

#[tokio::test]
async fn orphans_are_not_adopted_by_an_owner_that_is_being_deleted() {
    let world = World::with("replicaset,garbage").await;
    let set = |name: &str| {
        json!({
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": {"app": name}},
                "template": template(json!({"app": name})),
            },
        })
    };
    // Repeated, because the caches of sets and pods race with each other.
    for round in 0..10 {
        let name = format!("s{round}");
        let key = format!("default/{name}");
        world.create::<ReplicaSet>(set(&name)).await;
        let ready = |it: Option<&ReplicaSet>| {
            it.and_then(|it| it.status.clone()).unwrap_or_default().ready_replicas == Some(2)
        };
        world.until(&key, ready).await;
        let wanted = 2 * (round + 1);
        // The informer of pods may be behind the informer of sets.
        world.until_all(|pods: &Snapshot<Pod>| (pods.len() == wanted).then_some(())).await;
        delete::<ReplicaSet>(&world, &key, "Orphan").await;
        world.until(&key, gone::<ReplicaSet>).await;
        let free = move |pods: &Snapshot<Pod>| {
            let free = |pod: &Pod| pod.metadata.owner_references.as_ref().is_none_or(Vec::is_empty);
            assert!(pods.len() >= wanted, "an orphan was deleted");
            pods.iter().all(|(_, pod)| free(pod)).then_some(())
        };
        world.until_all(free).await;
    }
}

fn widget_owner(widget: &DynamicObject) -> Value {
    json!({
        "apiVersion": "example.com/v1", "kind": "Widget", "name": widget.name(),
        "uid": widget.uid(), "blockOwnerDeletion": true,
    })
}

async fn delete_definition(world: &World) {
    let name = "widgets.example.com";
    world.calls.of::<CustomResourceDefinition>().delete(&name.parse().unwrap()).await.unwrap();
    world.until(name, gone::<CustomResourceDefinition>).await;
}

/// Creates a namespace and waits until it is deleted: the namespace controller then watches every
/// resource.
async fn pass_namespace(world: &World, name: &str) {
    world.create::<Namespace>(json!({"metadata": {"name": name}})).await;
    world.calls.of::<Namespace>().delete(&name.parse().unwrap()).await.unwrap();
    world.until(name, gone::<Namespace>).await;
}

/// How often definitions are reinstalled; `REINSTALLATIONS` changes it.
fn reinstallations() -> usize {
    std::env::var("REINSTALLATIONS").map_or(20, |count| count.parse().unwrap())
}

#[tokio::test]
async fn definitions_can_be_reinstalled_while_all_controllers_run() {
    let world = World::start().await;
    world.create::<Node>(json!({"metadata": {"name": crate::kubelet::NODE}})).await;
    let cluster = world.cluster();
    let factory = cluster.factory().clone();
    // The test's kubelet binds and runs the pods.
    let controllers = "*,-scheduler,-simulated-nodes".parse().unwrap();
    let running = world.run_on(cluster, Options::new(controllers));
    world.create::<Deployment>(deployment()).await;
    for round in 0..reinstallations() {
        let kind = widgets(&world).await;
        if round % 10 == 0 {
            pass_namespace(&world, &format!("round-{round}")).await;
        }
        let name = format!("w{round}");
        let metadata = json!({"name": name, "namespace": "default"});
        let widget = widget(&world, &kind, metadata).await;
        world.create::<ConfigMap>(owned(&name, &[widget_owner(&widget)])).await;
        delete_definition(&world).await;
    }
    // The collector knows the kind again: dependents of all rounds are deleted, and a foreground
    // deletion finishes.
    let kind = widgets(&world).await;
    let last = widget(&world, &kind, json!({"name": "last", "namespace": "default"})).await;
    world.create::<ConfigMap>(owned("last", &[widget_owner(&last)])).await;
    let foreground = json!({"propagationPolicy": "Foreground"});
    let key = "default/last".parse().unwrap();
    calls_of(&world, &kind).delete_with(&key, &foreground).await.unwrap();
    world
        .until_all(|maps: &Snapshot<ConfigMap>| {
            let mut left = maps.iter().filter(|(_, map)| map.metadata.owner_references.is_some());
            left.next().is_none().then_some(())
        })
        .await;
    // The informer of a deleted kind ends.
    delete_definition(&world).await;
    let name = "metadata/widgets.example.com";
    let ended = async {
        while factory.health().keys().any(|known| known.starts_with(name)) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.expect("the informer of a deleted kind ends");
    running.stop().await;
}
