//! Claims and volumes: provisioning, binding, release, protection, and pods that wait for them.

use headwater_client::{Cached, Snapshot};
use k8s_openapi::api::core::v1::{ConfigMap, Event, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{StorageClass, VolumeAttributesClass};
use serde_json::{Value, json};

use crate::world::World;

const ALL: &str = "persistentvolume-binder,persistentvolume-protection,persistentvolumeclaim-protection,\
                   default-storageclass";

fn claim(change: Value) -> Value {
    let mut spec = json!({
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "standard",
    });
    for (key, value) in change.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({"metadata": {"name": "data", "namespace": "default"}, "spec": spec})
}

fn pod(name: &str, change: Value) -> Value {
    let mut spec = json!({"containers": [{"name": "c", "image": "v1"}]});
    for (key, value) in change.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec})
}

fn mount() -> Value {
    json!({"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]})
}

fn is_bound(claim: Option<&PersistentVolumeClaim>) -> bool {
    let status = claim.and_then(|claim| claim.status.clone()).unwrap_or_default();
    status.phase.as_deref() == Some("Bound") && status.capacity.is_some()
}

fn in_phase(phase: &'static str) -> impl FnMut(&Snapshot<PersistentVolume>) -> Option<String> {
    move |volumes| {
        let is = |volume: &PersistentVolume| {
            volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some(phase)
        };
        volumes.iter().find(|(_, volume)| is(volume)).map(|(_, volume)| volume.name().to_owned())
    }
}

#[tokio::test]
async fn a_claim_of_the_default_class_gets_a_volume_that_is_deleted_with_it() {
    let world = World::with(ALL).await;
    world.until("standard", |class: Option<&StorageClass>| class.is_some()).await;
    world.create::<PersistentVolumeClaim>(claim(json!({}))).await;
    let bound = world.until("default/data", is_bound).await.unwrap();
    let volume = world.until_all(in_phase("Bound")).await;
    assert_eq!(bound.spec.as_ref().unwrap().volume_name.as_deref(), Some(volume.as_str()));
    // It grows with its claim.
    let larger = json!({"spec": {"resources": {"requests": {"storage": "3Gi"}}}});
    world.merge::<PersistentVolumeClaim>("default/data", larger).await;
    world
        .until("default/data", |claim: Option<&PersistentVolumeClaim>| {
            let status = claim.and_then(|claim| claim.status.clone()).unwrap_or_default();
            status.capacity.is_some_and(|capacity| capacity["storage"].0 == "3Gi")
        })
        .await;
    world
        .calls
        .of::<PersistentVolumeClaim>()
        .delete(&"default/data".parse().unwrap())
        .await
        .unwrap();
    world.until_all(|volumes: &Snapshot<PersistentVolume>| volumes.is_empty().then_some(())).await;
}

#[tokio::test]
async fn a_static_volume_is_bound_and_kept() {
    let world = World::with(ALL).await;
    let volume = json!({
        "metadata": {"name": "disk"},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "5Gi"},
            "storageClassName": "manual", "hostPath": {"path": "/mnt"}},
    });
    world.create::<PersistentVolume>(volume).await;
    world.until_all(in_phase("Available")).await;
    world.create::<PersistentVolumeClaim>(claim(json!({"storageClassName": "manual"}))).await;
    world.until("default/data", is_bound).await;
    world.until_all(in_phase("Bound")).await;
    world
        .calls
        .of::<PersistentVolumeClaim>()
        .delete(&"default/data".parse().unwrap())
        .await
        .unwrap();
    assert_eq!(world.until_all(in_phase("Released")).await, "disk");
}

#[tokio::test]
async fn a_class_can_wait_for_the_first_pod_and_a_used_claim_is_protected() {
    let world = World::with(ALL).await;
    let class = json!({"metadata": {"name": "late"}, "provisioner": "simulated.headwater.dev",
        "volumeBindingMode": "WaitForFirstConsumer", "reclaimPolicy": "Delete"});
    world.create::<StorageClass>(class).await;
    let mut late = claim(json!({"storageClassName": "late"}));
    late["metadata"]["finalizers"] = json!(["kubernetes.io/pvc-protection"]);
    world.create::<PersistentVolumeClaim>(late).await;
    world
        .until_all(|events: &Snapshot<Event>| {
            let waits = |event: &Event| event.reason.as_deref() == Some("WaitForFirstConsumer");
            events.iter().any(|(_, event)| waits(event)).then_some(())
        })
        .await;
    let mut assigned = mount();
    assigned["nodeName"] = "n1".into();
    world.create::<Pod>(pod("user", assigned)).await;
    world.until("default/data", is_bound).await;
    world
        .calls
        .of::<PersistentVolumeClaim>()
        .delete(&"default/data".parse().unwrap())
        .await
        .unwrap();
    world
        .until("default/data", |claim: Option<&PersistentVolumeClaim>| {
            claim.is_some_and(|claim| claim.metadata.deletion_timestamp.is_some())
        })
        .await;
    world.calls.of::<Pod>().delete(&"default/user".parse().unwrap()).await.unwrap();
    world.until("default/data", |claim: Option<&PersistentVolumeClaim>| claim.is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scheduler_chooses_the_node_of_a_claim_that_waits() {
    let world = World::with_nodes(2, "persistentvolume-binder").await;
    let class = json!({"metadata": {"name": "late"}, "provisioner": "simulated.headwater.dev",
        "volumeBindingMode": "WaitForFirstConsumer"});
    world.create::<StorageClass>(class).await;
    world.create::<PersistentVolumeClaim>(claim(json!({"storageClassName": "late"}))).await;
    world.create::<Pod>(pod("user", mount())).await;
    let pod = world
        .until("default/user", |pod: Option<&Pod>| {
            let status = pod.and_then(|pod| pod.status.as_ref());
            status.is_some_and(|status| status.phase.as_deref() == Some("Running"))
        })
        .await
        .unwrap();
    let node = pod.spec.as_ref().unwrap().node_name.as_ref();
    let key = "default/data".parse().unwrap();
    let claim = world.calls.of::<PersistentVolumeClaim>().get(&key).await.unwrap().unwrap();
    let selected = claim.metadata.annotations.unwrap_or_default();
    assert_eq!(selected.get("volume.kubernetes.io/selected-node"), node);
}

#[tokio::test]
async fn an_attribute_class_is_released_by_the_last_claim() {
    let world =
        World::with("persistentvolumeclaim-protection,volumeattributesclass-protection").await;
    let class = json!({"metadata": {"name": "gold", "finalizers": ["kubernetes.io/vac-protection"]},
        "driverName": "example.com", "parameters": {"speed": "high"}});
    world.create::<VolumeAttributesClass>(class).await;
    let wanted = json!({"storageClassName": "a", "volumeAttributesClassName": "gold"});
    world.create::<PersistentVolumeClaim>(claim(wanted)).await;
    let classes = world.calls.of::<VolumeAttributesClass>();
    classes.delete(&"gold".parse().unwrap()).await.unwrap();
    world
        .until("gold", |class: Option<&VolumeAttributesClass>| {
            class.is_some_and(|class| class.metadata.deletion_timestamp.is_some())
        })
        .await;
    let claims = world.calls.of::<PersistentVolumeClaim>();
    claims.delete(&"default/data".parse().unwrap()).await.unwrap();
    world.until("gold", |class: Option<&VolumeAttributesClass>| class.is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_starts_when_everything_it_reads_exists() {
    let world = World::with_nodes(1, "persistentvolume-binder,default-storageclass").await;
    let mut spec = mount();
    spec["containers"] = json!([{"name": "c", "image": "v1",
        "envFrom": [{"configMapRef": {"name": "settings"}}]}]);
    let mut reader = pod("user", spec);
    reader["metadata"]["annotations"] = json!({"headwater.dev/missing-after": "never"});
    world.create::<Pod>(reader).await;
    let reported = |component: &'static str, wanted: &'static str| {
        move |events: &Snapshot<Event>| {
            let says = |event: &Event| {
                event.message.as_deref().is_some_and(|message| message.contains(wanted))
                    && event.source.as_ref().and_then(|it| it.component.as_deref())
                        == Some(component)
            };
            events.iter().any(|(_, event)| says(event)).then_some(())
        }
    };
    world
        .until_all(reported("default-scheduler", "persistentvolumeclaim \"data\" not found"))
        .await;
    world.create::<PersistentVolumeClaim>(claim(json!({}))).await;
    world.until_all(reported("kubelet", "configmap \"settings\" not found")).await;
    world
        .until("default/user", |pod: Option<&Pod>| {
            let status = pod.and_then(|pod| pod.status.clone()).unwrap_or_default();
            let containers = status.container_statuses.unwrap_or_default();
            let waiting = containers.first().and_then(|it| it.state.clone()?.waiting);
            waiting.is_some_and(|it| it.reason.as_deref() == Some("CreateContainerConfigError"))
        })
        .await;
    let settings = json!({"metadata": {"name": "settings", "namespace": "default"}});
    world.create::<ConfigMap>(settings).await;
    world
        .until("default/user", |pod: Option<&Pod>| {
            let status = pod.and_then(|pod| pod.status.clone()).unwrap_or_default();
            status.phase.as_deref() == Some("Running")
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_starts_without_a_config_map_that_nothing_creates() {
    let world = World::with_nodes(1, "persistentvolume-binder").await;
    let volumes = json!({"volumes": [{"name": "conf", "configMap": {"name": "settings"}}]});
    let mut reader = pod("user", volumes);
    reader["metadata"]["annotations"] = json!({"headwater.dev/missing-after": "1ms"});
    world.create::<Pod>(reader).await;
    let ignored = |events: &Snapshot<Event>| {
        let mut missing = events.iter().map(|(_, event)| event);
        let is = |event: &Event| event.reason.as_deref() == Some("MissingContent");
        missing.find(|event| is(event)).and_then(|event| event.message.clone())
    };
    let message = world.until_all(ignored).await;
    assert!(message.starts_with("configmap \"settings\" not found"), "{message}");
    world
        .until("default/user", |pod: Option<&Pod>| {
            let status = pod.and_then(|pod| pod.status.clone()).unwrap_or_default();
            status.phase.as_deref() == Some("Running")
        })
        .await;
}
