//! The smaller admission steps of Kubernetes: runtime classes, storage protection, topology labels.

use headwater_json::{Value, json};

use headwater_cache::Options as CacheOptions;
use headwater_server::{AdmissionSettings, Settings};

use crate::api::{Api, PODS, pod};

const CLASSES: &str = "/apis/node.k8s.io/v1/runtimeclasses";
const CLAIMS: &str = "/api/v1/namespaces/ns/persistentvolumeclaims";

#[tokio::test(start_paused = true)]
async fn a_pod_gets_what_its_runtime_class_says() {
    let api = Api::start().await;
    let class = json!({
        "metadata": { "name": "kata" }, "handler": "kata",
        "overhead": { "podFixed": { "cpu": "250m" } },
        "scheduling": {
            "nodeSelector": { "kata": "yes" },
            "tolerations": [{ "key": "kata", "operator": "Exists" }],
        },
    });
    api.create(CLASSES, &class).await;
    api.create(CLASSES, &json!({ "metadata": { "name": "plain" }, "handler": "h" })).await;
    let of_class = |name: &str, class: &str, more: &Value| {
        let mut pod = pod(name, "");
        pod["spec"]["runtimeClassName"] = class.into();
        for (key, value) in more.as_object().unwrap() {
            pod["spec"][key.as_str()] = value.clone();
        }
        pod
    };
    let made = api.create(PODS, &of_class("a", "kata", &json!({}))).await;
    assert_eq!(made["spec"]["overhead"], json!({ "cpu": "250m" }));
    assert_eq!(made["spec"]["nodeSelector"], json!({ "kata": "yes" }));
    assert_eq!(made["spec"]["tolerations"][0], json!({ "key": "kata", "operator": "Exists" }));
    let refused = "pods \"b\" is forbidden: ";
    for (pod, why) in [
        (of_class("b", "absent", &json!({})), "pod rejected: RuntimeClass \"absent\" not found"),
        (
            of_class("b", "kata", &json!({ "overhead": { "cpu": "1" } })),
            "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead",
        ),
        (
            of_class("b", "plain", &json!({ "overhead": { "cpu": "1" } })),
            "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
        ),
        (
            of_class("b", "kata", &json!({ "nodeSelector": { "kata": "no" } })),
            "conflict: runtimeClass.scheduling.nodeSelector[kata] = yes; pod.spec.nodeSelector[kata] = no",
        ),
    ] {
        api.post(PODS, &pod).await.fails(403, "Forbidden", &format!("{refused}{why}"));
    }
}

#[tokio::test(start_paused = true)]
async fn storage_objects_are_protected_and_grow_by_rule() {
    let api = Api::start().await;
    let claim = |name: &str| {
        json!({ "metadata": { "name": name }, "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "resources": { "requests": { "storage": "1Gi" } },
        } })
    };
    let made = api.create(CLAIMS, &claim("a")).await;
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    let owned = made["metadata"]["managedFields"].to_string();
    assert!(!owned.contains("f:finalizers"), "the server's own finalizer has no manager");
    let volume = json!({ "metadata": { "name": "v" }, "spec": {
        "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" },
        "hostPath": { "path": "/x" },
    } });
    let made = api.create("/api/v1/persistentvolumes", &volume).await;
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/pv-protection"]));
    assert_eq!(made["status"]["lastPhaseTransitionTime"], made["metadata"]["creationTimestamp"]);

    let path = format!("{CLAIMS}/a");
    let larger = json!({ "spec": { "resources": { "requests": { "storage": "2Gi" } } } });
    api.merge(&path, &larger).await.fails(422, "Invalid", "");
    let bound = json!({ "status": { "phase": "Bound", "capacity": { "storage": "1Gi" } } });
    api.merge(&format!("{path}/status"), &bound).await.is(200, "");
    let why = "persistentvolumeclaims \"a\" is forbidden: only dynamically provisioned pvc can be resized";
    api.merge(&path, &larger).await.fails(403, "Forbidden", why);
    let class = json!({
        "metadata": { "name": "fast" }, "provisioner": "p.example", "allowVolumeExpansion": true,
    });
    api.create("/apis/storage.k8s.io/v1/storageclasses", &class).await;
    api.merge(&path, &larger).await.is(200, "");
}

#[tokio::test(start_paused = true)]
async fn pods_carry_the_topology_of_their_node() {
    let api = Api::start().await;
    let node = json!({ "metadata": { "name": "n", "labels": {
        "topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/region": "r1", "other": "x",
    } } });
    api.create("/api/v1/nodes", &node).await;
    let expected = json!({
        "topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/region": "r1",
    });
    let made = api.create(PODS, &pod("named", "n")).await;
    assert_eq!(made["metadata"]["labels"], expected);
    let made = api.create(PODS, &pod("bound", "")).await;
    let binding = json!({ "target": { "kind": "Node", "name": "n" } });
    api.post(&format!("{PODS}/bound/binding"), &binding).await.is(201, "");
    let bound = api.get(&format!("{PODS}/bound")).await.json();
    assert_eq!(bound["metadata"]["labels"], expected);
    assert_eq!(bound["metadata"]["generation"], made["metadata"]["generation"]);
}

/// A server with these plugins switched on and off.
async fn switched(on: &[&str], off: &[&str]) -> Api {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let mut admission = AdmissionSettings::default();
    admission.switch(&names(on), &names(off)).unwrap();
    Api::with(Settings { admission, ..Settings::default() }, CacheOptions::default()).await
}

#[tokio::test(start_paused = true)]
async fn pods_of_absent_accounts_are_refused_where_asked() {
    let api = switched(&["ServiceAccount"], &[]).await;
    let why = "pods \"a\" is forbidden: error looking up service account ns/default: serviceaccount \"default\" not found";
    api.post(PODS, &pod("a", "")).await.fails(403, "Forbidden", why);
    let accounts = "/api/v1/namespaces/ns/serviceaccounts";
    // The account comes while the pod waits.
    let account = json!({ "metadata": { "name": "default" } });
    let (made, _) = tokio::join!(
        async { api.post(PODS, &pod("a", "")).await },
        api.create(accounts, &account),
    );
    made.is(201, "");
    let mut other = pod("b", "");
    other["spec"]["serviceAccountName"] = "other".into();
    api.post(PODS, &other).await.fails(403, "Forbidden", "pods \"b\" is forbidden: error looking");
    // Without the flag, and without controllers that create accounts, pods are admitted.
    let bare = Api::start().await;
    bare.create(PODS, &other).await;
}

#[tokio::test(start_paused = true)]
async fn plugins_can_be_switched_off() {
    let api = switched(&[], &["StorageObjectInUseProtection", "PodSecurity"]).await;
    let namespace = json!({ "metadata": {
        "name": "strict", "labels": { "pod-security.kubernetes.io/enforce": "restricted" },
    } });
    api.create("/api/v1/namespaces", &namespace).await;
    api.create("/api/v1/namespaces/strict/pods", &pod("a", "")).await;
    let class =
        json!({ "metadata": { "name": "c" }, "driverName": "a.b", "parameters": { "a": "b" } });
    let made = api.create("/apis/storage.k8s.io/v1/volumeattributesclasses", &class).await;
    assert_eq!(made["metadata"]["finalizers"], Value::Null);
}
