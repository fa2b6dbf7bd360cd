//! Node authorization and NodeRestriction: what the kubelet of a node may read and write (S8.23).

use headwater_json::{Value, json};

use crate::api::{Api, Asking, PODS, config_map, pod};

const SECRETS: &str = "/api/v1/namespaces/ns/secrets";
const CMS: &str = "/api/v1/namespaces/ns/configmaps";
const NODES: &str = "/api/v1/nodes";
const NONE: Value = Value::Null;

fn secret(name: &str) -> Value {
    json!({ "metadata": { "name": name } })
}

/// A pod on a node with a volume.
fn with_volume(name: &str, node: &str, volume: &Value) -> Value {
    let mut made = pod(name, node);
    made["spec"]["volumes"] = json!([volume]);
    made
}

/// A pod as the kubelet of a node reports it.
fn mirror(name: &str, node: &str, uid: &str) -> Value {
    let mut made = pod(name, node);
    made["metadata"]["annotations"] = json!({ "kubernetes.io/config.mirror": "x" });
    made["metadata"]["ownerReferences"] = json!([{ "apiVersion": "v1", "kind": "Node", "name": node, "uid": uid, "controller": true }]);
    made
}

impl Api {
    fn kubelet(&self, node: &str) -> Asking<'_> {
        self.as_user(&format!("system:node:{node}"), &["system:nodes"])
    }

    /// Creates nodes and returns the uid of the last one.
    async fn nodes(&self, names: &[&str]) -> String {
        let mut uid = String::new();
        for name in names {
            let made = self.create(NODES, &json!({ "metadata": { "name": name } })).await;
            uid = made["metadata"]["uid"].as_str().unwrap().to_owned();
        }
        uid
    }
}

/// S8.23
#[tokio::test(start_paused = true)]
async fn a_node_reads_only_what_its_pods_need() {
    let api = Api::start().await;
    for name in ["mine", "other"] {
        api.create(SECRETS, &secret(name)).await;
        api.create(CMS, &config_map(name)).await;
    }
    let kubelet = api.kubelet("n1");
    let unrelated = "no relationship found between node 'n1' and this object";
    let mine = format!("GET {SECRETS}/mine");
    kubelet.check(&mine, &NONE, 403, unrelated).await;
    let volume = json!({ "name": "v", "secret": { "secretName": "mine" } });
    api.create(PODS, &with_volume("a", "n1", &volume)).await;
    let volume = json!({ "name": "v", "secret": { "secretName": "other" } });
    api.create(PODS, &with_volume("b", "n2", &volume)).await;
    let volume = json!({ "name": "v", "configMap": { "name": "mine" } });
    api.create(PODS, &with_volume("c", "n1", &volume)).await;

    kubelet.check(&mine, &NONE, 200, "").await;
    kubelet.check(&format!("GET {CMS}/mine"), &NONE, 200, "").await;
    let named = "fieldSelector=metadata.name%3Dmine";
    kubelet.check(&format!("GET {SECRETS}?{named}"), &NONE, 200, "").await;
    let watch = format!("GET {SECRETS}?watch=1&timeoutSeconds=0&{named}");
    assert_eq!(kubelet.send(&watch, "").await.code, 200);
    for request in [
        format!("GET {SECRETS}/other"),
        format!("GET {CMS}/other"),
        format!("GET {SECRETS}?fieldSelector=metadata.name%3Dother"),
    ] {
        kubelet.check(&request, &NONE, 403, unrelated).await;
    }
    kubelet.check(&format!("GET {SECRETS}"), &NONE, 403, "No Object name found").await;
    kubelet.check("GET /api/v1/secrets", &NONE, 403, "can only read namespaced object").await;
    let only_read = "can only read resources of this type";
    kubelet.check(&format!("DELETE {SECRETS}/mine"), &NONE, 403, only_read).await;
    kubelet.check(&format!("PUT {SECRETS}/mine"), &secret("mine"), 403, only_read).await;

    // The right ends with the pod, as soon as the cache has seen its end.
    let now = json!({ "gracePeriodSeconds": 0 });
    api.delete_with(&format!("{PODS}/a"), &now).await.is(200, "");
    while kubelet.send(&mine, "").await.code == 200 {
        tokio::task::yield_now().await;
    }
    kubelet.check(&mine, &NONE, 403, unrelated).await;
    // A user of that name outside the group, and one of the group without a name, are no nodes.
    let outsider = api.as_user("system:node:n1", &[]);
    outsider.check(&format!("GET {CMS}/mine"), &NONE, 403, "cannot get resource").await;
    let nameless = api.as_user("system:node:", &["system:nodes"]);
    nameless.check(&format!("GET {CMS}/mine"), &NONE, 403, "unknown node for user").await;
    // What does not depend on the node is for all nodes.
    kubelet.check("GET /api/v1/services", &NONE, 200, "").await;
    kubelet.check("GET /apis/apps/v1/deployments", &NONE, 403, "cannot list").await;
}

/// S8.23
#[tokio::test(start_paused = true)]
async fn a_node_sees_only_its_own_pods_and_itself() {
    let api = Api::start().await;
    api.nodes(&["n1", "n2"]).await;
    api.create(PODS, &pod("a", "n1")).await;
    api.create(PODS, &pod("b", "n2")).await;
    let kubelet = api.kubelet("n1");
    kubelet.check(&format!("GET {PODS}/a"), &NONE, 200, "").await;
    kubelet.check(&format!("GET {PODS}/b"), &NONE, 403, "no relationship found").await;
    let own = "fieldSelector=spec.nodeName%3Dn1";
    let found = kubelet.check(&format!("GET /api/v1/pods?{own}"), &NONE, 200, "").await;
    assert_eq!(found["items"].as_array().unwrap().len(), 1);
    let without = "can only list/watch pods with spec.nodeName field selector";
    for selector in [
        "",
        "fieldSelector=spec.nodeName%3Dn2",
        "fieldSelector=spec.nodeName%21%3Dn1",
        // A comma after a backslash is a part of the value.
        "fieldSelector=status.phase%21%3Dx%5C,spec.nodeName%3Dn1",
        "fieldSelector=spec.nodeName%3Dn2&fieldSelector=spec.nodeName%3Dn1",
    ] {
        kubelet.check(&format!("GET /api/v1/pods?{selector}"), &NONE, 403, without).await;
        let watch = format!("GET /api/v1/pods?watch=1&{selector}");
        kubelet.check(&watch, &NONE, 403, without).await;
    }
    kubelet.check(&format!("DELETE {PODS}?{own}"), &NONE, 403, "cannot deletecollection").await;
    kubelet.check(&format!("GET {NODES}/n1"), &NONE, 200, "").await;
    kubelet.check(&format!("GET {NODES}/n2"), &NONE, 403, "only its own Node object").await;
    kubelet.check(&format!("GET {NODES}"), &NONE, 403, "cannot read all nodes").await;
    kubelet.check(&format!("GET {PODS}/a/log"), &NONE, 403, "cannot get resource").await;
}

/// S8.23
#[tokio::test(start_paused = true)]
async fn a_node_changes_its_own_node_and_none_of_its_labels_and_taints_for_scheduling() {
    let api = Api::start().await;
    let kubelet = api.kubelet("n1");
    let named =
        |name: &str, labels: Value| json!({ "metadata": { "name": name, "labels": labels } });
    let post = format!("POST {NODES}");
    let other = "node \"n1\" is not allowed to modify node \"n2\"";
    kubelet.check(&post, &named("n2", json!({})), 403, other).await;
    let labels = "node \"n1\" is not allowed to set the following labels: \
                  node-role.kubernetes.io/control-plane";
    let role = json!({ "node-role.kubernetes.io/control-plane": "" });
    kubelet.check(&post, &named("n1", role.clone()), 403, labels).await;
    let plain = json!({ "kubernetes.io/hostname": "n1", "mine": "x" });
    kubelet.check(&post, &named("n1", plain), 201, "").await;
    api.nodes(&["n2"]).await;
    let patch = format!("PATCH {NODES}/n1");
    let status = json!({ "status": { "nodeInfo": { "architecture": "arm" } } });
    kubelet.check(&format!("PATCH {NODES}/n1/status"), &status, 200, "").await;
    kubelet.check(&format!("PATCH {NODES}/n2/status"), &status, 403, other).await;
    kubelet.check(&format!("PATCH {NODES}/n2"), &json!({}), 403, other).await;
    kubelet.check(&patch, &json!({ "metadata": { "labels": role } }), 403, "modify labels").await;
    let taint = json!({ "spec": { "taints": [{ "key": "k", "effect": "NoSchedule" }] } });
    kubelet.check(&patch, &taint, 403, "node \"n1\" is not allowed to modify taints").await;
    let mine = json!({ "metadata": { "labels": { "mine": "y" } } });
    kubelet.check(&patch, &mine, 200, "").await;
    kubelet.check(&format!("DELETE {NODES}/n1"), &NONE, 403, "cannot delete resource").await;

    // Leases and CSINodes by name.
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease = |name: &str| json!({ "metadata": { "name": name }, "spec": {} });
    let same = "can only access node lease with the same name as the requesting node";
    kubelet.check(&format!("POST {leases}"), &lease("n2"), 403, same).await;
    kubelet.check(&format!("POST {leases}"), &lease("n1"), 201, "").await;
    kubelet.check(&format!("GET {leases}/n2"), &NONE, 403, same).await;
    kubelet.check(&format!("GET {leases}"), &NONE, 403, "can only get, create").await;
    let elsewhere = "/apis/coordination.k8s.io/v1/namespaces/ns/leases";
    kubelet.check(&format!("POST {elsewhere}"), &lease("n1"), 403, "system namespace").await;
    let csi = "/apis/storage.k8s.io/v1/csinodes";
    let own = "can only access CSINode with the same name as the requesting node";
    let csi_node = |name: &str| json!({ "metadata": { "name": name }, "spec": { "drivers": [] } });
    kubelet.check(&format!("POST {csi}"), &csi_node("n2"), 403, own).await;
    kubelet.check(&format!("POST {csi}"), &csi_node("n1"), 201, "").await;
}

/// S8.23
#[tokio::test(start_paused = true)]
async fn a_node_creates_mirror_pods_and_reports_and_removes_only_its_own_pods() {
    let api = Api::start().await;
    let uid = api.nodes(&["n2", "n1"]).await;
    let kubelet = api.kubelet("n1");
    let post = format!("POST {PODS}");
    let refused = |change: &dyn Fn(&mut Value)| {
        let mut made = mirror("m", "n1", &uid);
        change(&mut made);
        made
    };
    for (body, why) in [
        (pod("m", "n1"), "can only create mirror pods"),
        (mirror("m", "n2", &uid), "can only create pods with spec.nodeName set to itself"),
        (mirror("m", "n1", "x"), "UID mismatch"),
        (
            refused(&|pod| pod["metadata"]["ownerReferences"] = json!([])),
            "with an owner reference set to itself",
        ),
        (
            refused(&|pod| pod["metadata"]["ownerReferences"][0]["controller"] = false.into()),
            "with a controller owner reference",
        ),
        (
            refused(&|pod| pod["spec"]["serviceAccountName"] = "robot".into()),
            "can not create pods that reference a service account",
        ),
        (
            refused(&|pod| {
                pod["spec"]["volumes"] = json!([{ "name": "v", "secret": { "secretName": "s" } }]);
            }),
            "can not create pods that reference secrets",
        ),
    ] {
        kubelet.check(&post, &body, 403, why).await;
    }
    kubelet.check(&post, &mirror("m", "n1", &uid), 201, "").await;
    api.create(PODS, &pod("theirs", "n2")).await;
    let status = json!({ "status": { "phase": "Running" } });
    kubelet.check(&format!("PATCH {PODS}/m/status"), &status, 200, "").await;
    let theirs = format!("PATCH {PODS}/theirs/status");
    kubelet.check(&theirs, &status, 403, "can only update pod status for pods with").await;
    let labels = json!({ "metadata": { "labels": { "app": "web" } } });
    let why = "cannot update labels through pod status";
    kubelet.check(&format!("PATCH {PODS}/m/status"), &labels, 403, why).await;
    let why = "can only delete pods with spec.nodeName set to itself";
    kubelet.check(&format!("DELETE {PODS}/theirs"), &NONE, 403, why).await;
    let eviction = json!({ "metadata": { "name": "theirs" } });
    let why = "node n1 can only evict pods with spec.nodeName set to itself";
    kubelet.check(&format!("POST {PODS}/theirs/eviction"), &eviction, 403, why).await;
    let now = json!({ "gracePeriodSeconds": 0 });
    kubelet.check(&format!("DELETE {PODS}/m"), &now, 200, "").await;
    let bind = json!({ "metadata": { "name": "theirs" }, "target": { "name": "n1" } });
    kubelet.check(&format!("POST {PODS}/theirs/binding"), &bind, 403, "cannot create").await;
}

/// S8.23
#[tokio::test(start_paused = true)]
async fn a_node_gets_tokens_for_its_pods_only() {
    let api = Api::start().await;
    let accounts = "/api/v1/namespaces/ns/serviceaccounts";
    for name in ["robot", "other"] {
        api.create(accounts, &json!({ "metadata": { "name": name } })).await;
    }
    let mut body = with_volume(
        "a",
        "n1",
        &json!({ "name": "t", "projected": { "sources": [
            { "serviceAccountToken": { "path": "t", "audience": "vault" } },
        ] } }),
    );
    body["spec"]["serviceAccountName"] = "robot".into();
    let made = api.create(PODS, &body).await;
    let uid = made["metadata"]["uid"].as_str().unwrap();
    let theirs = api.create(PODS, &pod("b", "n2")).await;
    let kubelet = api.kubelet("n1");
    let request = |spec: Value| json!({ "spec": spec });
    let bound = |name: &str, uid: &str, audience: &str| {
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid });
        request(json!({ "audiences": [audience], "boundObjectRef": pod }))
    };
    let token = format!("POST {accounts}/robot/token");
    kubelet.check(&token, &bound("a", uid, "vault"), 201, "").await;
    let unbound = request(json!({ "audiences": ["vault"] }));
    kubelet.check(&token, &unbound, 403, "node requested token not bound to a pod").await;
    kubelet.check(&token, &bound("a", "", "vault"), 403, "without a uid").await;
    kubelet.check(&token, &bound("a", "x", "vault"), 403, "does not match the UID").await;
    let uid_b = theirs["metadata"]["uid"].as_str().unwrap();
    let why = "node requested token bound to a pod scheduled on a different node";
    kubelet.check(&token, &bound("b", uid_b, "vault"), 403, why).await;
    let why = "audience \"bank\" not found in pod spec volume";
    kubelet.check(&token, &bound("a", uid, "bank"), 403, why).await;
    let other = format!("POST {accounts}/other/token");
    kubelet.check(&other, &bound("a", uid, "vault"), 403, "no relationship found").await;
    kubelet.check(&format!("GET {accounts}/robot"), &NONE, 200, "").await;
    kubelet.check(&format!("GET {accounts}/other"), &NONE, 403, "no relationship found").await;
    // A review of a node's rights cannot list them all.
    let reviews = "POST /apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let spec = json!({ "spec": { "namespace": "ns" } });
    let review = kubelet.check(reviews, &spec, 201, "").await;
    assert_eq!(review["status"]["incomplete"], true);
}
