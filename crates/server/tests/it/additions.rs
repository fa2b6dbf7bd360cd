//! Fields that the server adds when an object is created; they have no manager (S10.23, S2.25).

use headwater_json::{Value, json};

use crate::api::{Api, PODS, pod};

const ACCOUNTS: &str = "/api/v1/namespaces/ns/serviceaccounts";
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// S10.23
#[tokio::test(start_paused = true)]
async fn a_pod_gets_the_token_and_pull_secrets_of_its_service_account() {
    let api = Api::start().await;
    // There is no service account yet.
    let spec = api.create(PODS, &pod("early", "")).await["spec"].clone();
    assert_eq!((&spec["serviceAccountName"], &spec["volumes"]), (&json!("default"), &Value::Null));
    let secrets = json!([{ "name": "pull" }]);
    let account = json!({ "metadata": { "name": "default" }, "imagePullSecrets": secrets });
    api.create(ACCOUNTS, &account).await;
    let mut body = pod("a", "");
    body["spec"]["initContainers"] = json!([{ "name": "i", "image": "i" }]);
    let spec = api.create(PODS, &body).await["spec"].clone();
    assert_eq!(spec["imagePullSecrets"], secrets);
    let volume = &spec["volumes"][0];
    let name = volume["name"].as_str().unwrap();
    assert!(name.starts_with("kube-api-access-") && name.len() == 21, "{name}");
    let token = json!({ "expirationSeconds": 3607, "path": "token" });
    assert_eq!(volume["projected"]["sources"][0]["serviceAccountToken"], token);
    let mounts = json!([{ "name": name, "readOnly": true, "mountPath": TOKEN }]);
    assert_eq!(spec["containers"][0]["volumeMounts"], mounts);
    assert_eq!(spec["initContainers"][0]["volumeMounts"], mounts);
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_automount_gets_no_token() {
    let api = Api::start().await;
    api.create(ACCOUNTS, &json!({ "metadata": { "name": "default" } })).await;
    let quiet = json!({ "metadata": { "name": "quiet" }, "automountServiceAccountToken": false });
    api.create(ACCOUNTS, &quiet).await;
    let volumes = async |name: &str, change: fn(&mut Value)| {
        let mut body = pod(name, "");
        change(&mut body["spec"]);
        let spec = api.create(PODS, &body).await["spec"].clone();
        spec["volumes"].as_array().map_or(0, Vec::len)
    };
    assert_eq!(volumes("a", |_| {}).await, 1);
    let refuses = |spec: &mut Value| spec["automountServiceAccountToken"] = false.into();
    assert_eq!(volumes("b", refuses).await, 0);
    assert_eq!(volumes("c", |spec| spec["serviceAccountName"] = "quiet".into()).await, 0);
    let insists = |spec: &mut Value| {
        spec["serviceAccountName"] = "quiet".into();
        spec["automountServiceAccountToken"] = true.into();
    };
    assert_eq!(volumes("d", insists).await, 1);
    // Another mount exists at this path.
    let has_its_own = |spec: &mut Value| {
        spec["volumes"] = json!([{ "name": "v", "emptyDir": {} }]);
        spec["containers"][0]["volumeMounts"] = json!([{ "name": "v", "mountPath": TOKEN }]);
    };
    assert_eq!(volumes("e", has_its_own).await, 1);
}

/// S10.23
#[tokio::test(start_paused = true)]
async fn objects_without_a_class_get_the_default_one() {
    const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
    const CLAIMS: &str = "/api/v1/namespaces/ns/persistentvolumeclaims";
    let api = Api::start().await;
    let claim = |name: &str| {
        json!({ "metadata": { "name": name }, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
        }})
    };
    assert_eq!(api.create(CLAIMS, &claim("a")).await["spec"]["storageClassName"], Value::Null);
    for (name, is_default) in [("slow", "false"), ("fast", "true"), ("new", "true")] {
        let mark = json!({ "storageclass.kubernetes.io/is-default-class": is_default });
        let metadata = json!({ "name": name, "annotations": mark });
        api.create(CLASSES, &json!({ "metadata": metadata, "provisioner": "p" })).await;
    }
    assert_eq!(api.create(CLAIMS, &claim("b")).await["spec"]["storageClassName"], "fast");
    let mut none = claim("c");
    none["spec"]["storageClassName"] = "".into();
    assert_eq!(api.create(CLAIMS, &none).await["spec"]["storageClassName"], "");
    let mark = json!({ "ingressclass.kubernetes.io/is-default-class": "true" });
    let class = json!({
        "metadata": { "name": "front", "annotations": mark }, "spec": { "controller": "a.b/c" },
    });
    api.create("/apis/networking.k8s.io/v1/ingressclasses", &class).await;
    let backend = json!({ "service": { "name": "s", "port": { "number": 80 } } });
    let ingress = json!({ "metadata": { "name": "i" }, "spec": { "defaultBackend": backend } });
    let made = api.create("/apis/networking.k8s.io/v1/namespaces/ns/ingresses", &ingress).await;
    assert_eq!(made["spec"]["ingressClassName"], "front");
}

#[tokio::test(start_paused = true)]
async fn the_creator_manages_the_sent_fields_and_defaults() {
    let api = Api::start().await;
    api.create(ACCOUNTS, &json!({ "metadata": { "name": "default" } })).await;
    let spec = managed(&api.create(PODS, &pod("a", "")).await, "f:spec");
    assert!(spec.contains(&"f:restartPolicy".to_owned()), "{spec:?}");
    for added in ["priority", "preemptionPolicy", "serviceAccountName", "tolerations", "volumes"] {
        assert!(!spec.contains(&format!("f:{added}")), "{added}");
    }
    let ports = json!([{ "port": 80 }]);
    let service = json!({ "metadata": { "name": "s" }, "spec": { "ports": ports } });
    let made = api.create("/api/v1/namespaces/ns/services", &service).await;
    let spec = managed(&made, "f:spec");
    assert!(made["spec"]["clusterIP"].is_string() && spec.contains(&"f:type".to_owned()));
    assert!(!spec.iter().any(|field| field.starts_with("f:clusterIP")), "{spec:?}");
    let made = api.create("/api/v1/namespaces", &json!({ "metadata": { "name": "n" } })).await;
    assert_eq!(managed(&made, "f:metadata"), ["f:labels"]);
    assert!(managed(&made, "f:spec").is_empty());
}

/// The fields below one field that the object's only manager owns.
fn managed(object: &Value, below: &str) -> Vec<String> {
    let fields = object["metadata"]["managedFields"][0]["fieldsV1"][below].as_object();
    fields.into_iter().flatten().map(|(field, _)| field.to_string()).collect()
}
