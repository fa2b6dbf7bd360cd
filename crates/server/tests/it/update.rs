//! PUT: optimistic concurrency, what may not change, generations and status (S2.10–S2.16, S2.50,
//! S2.51).

use std::time::Duration;

use headwater_json::json;

use crate::api::{Api, CMS, DEPLOYMENTS, PODS, config_map, deployment, pod, version};

const MODIFIED: &str = "Operation cannot be fulfilled on configmaps \"a\": the object has been \
                        modified; please apply your changes to the latest version and try again";

/// S1.41, S1.43, S2.10
#[tokio::test(start_paused = true)]
async fn an_outdated_resource_version_is_a_conflict() {
    let api = Api::start().await;
    let a = &format!("{CMS}/a");
    let first = api.create(CMS, &config_map("a")).await;
    let mut body = first.clone();
    body["data"] = json!({ "v": "2" });
    let second = api.put(a, &body).await;
    assert_eq!(second.is(200, "").json()["data"], json!({ "v": "2" }));
    body["data"] = json!({ "v": "3" });
    for at in [version(&first), "99999999".into(), "1".into()] {
        body["metadata"]["resourceVersion"] = at.into();
        let status = api.put(a, &body).await.fails(409, "Conflict", MODIFIED);
        assert_eq!(status["details"], json!({ "name": "a", "kind": "configmaps" }));
    }
    for at in ["abc", "-1", "1.5"] {
        body["metadata"]["resourceVersion"] = at.into();
        api.put(a, &body).await.fails(400, "BadRequest", "");
    }
    assert_eq!(api.get(a).await.json(), second.json());
}

/// S2.11, S2.16
#[tokio::test(start_paused = true)]
async fn an_update_without_a_resource_version_is_unconditional() {
    let api = Api::start().await;
    let a = &format!("{CMS}/a");
    let mut body = config_map("a");
    body["metadata"]["labels"] = json!({ "l": "1" });
    let first = api.create(CMS, &body).await;
    for at in [None, Some(""), Some("0")] {
        let mut body = config_map("a");
        body["data"] = json!({ "v": at });
        if let Some(at) = at {
            body["metadata"]["resourceVersion"] = at.into();
        }
        let answer = api.put(a, &body).await.is(200, "").json();
        assert!(answer["metadata"].get("labels").is_none());
        assert_eq!(answer["metadata"]["uid"], first["metadata"]["uid"]);
        assert_eq!(answer["metadata"]["creationTimestamp"], first["metadata"]["creationTimestamp"]);
    }
    // Leases require a version.
    let leases = "/apis/coordination.k8s.io/v1/namespaces/ns/leases";
    let lease = json!({ "metadata": { "name": "l" } });
    api.create(leases, &lease).await;
    let status = api.put(&format!("{leases}/l"), &lease).await.fails(422, "Invalid", "");
    let cause = &status["details"]["causes"][0];
    assert_eq!(cause["field"], "metadata.resourceVersion");
    assert_eq!(cause["message"], "Invalid value: 0: must be specified for an update");
}

/// S2.12, S6.6
#[tokio::test(start_paused = true)]
async fn an_update_that_changes_nothing_writes_nothing() {
    let api = Api::start().await;
    let a = &format!("{CMS}/a");
    let first = api.create(CMS, &config_map("a")).await;
    let at = version(&first);
    let mut watch = api.watch(&format!("{CMS}?watch=true&resourceVersion={at}")).await;
    assert_eq!(api.put(a, &first).await.is(200, "").json(), first);
    assert_eq!(api.merge(a, &json!({})).await.is(200, "").json(), first);
    let patch = json!({ "metadata": { "labels": null } });
    assert_eq!(api.merge(a, &patch).await.is(200, "").json(), first);
    let nothing = api.patch("application/json-patch+json", a, "[]").await;
    assert_eq!(nothing.is(200, "").json(), first);
    assert_eq!(api.get(CMS).await.version(), at);
    assert!(watch.is_silent(Duration::from_secs(1)).await);
}

/// S2.13
#[tokio::test(start_paused = true)]
async fn an_update_must_match_the_object_of_its_path() {
    let api = Api::start().await;
    let a = &format!("{CMS}/a");
    let first = api.create(CMS, &config_map("a")).await;
    let message = "the name of the object (b) does not match the name on the URL (a)";
    api.put(a, &config_map("b")).await.fails(400, "BadRequest", message);
    let mut body = config_map("a");
    body["metadata"]["namespace"] = "other".into();
    api.put(a, &body).await.fails(400, "BadRequest", "the namespace of the provided object");
    let mut body = first.clone();
    body["metadata"]["uid"] = "11111111-1111-1111-1111-111111111111".into();
    let status = api.put(a, &body).await.fails(409, "Conflict", "");
    assert!(status["message"].as_str().unwrap().contains("UID in precondition"), "{status}");
    let answer = api.put(&format!("{CMS}/zz"), &config_map("zz")).await;
    answer.fails(404, "NotFound", "configmaps \"zz\" not found");
    // A name is required, a UID is not.
    let message =
        "the name of the object (a based on URL) was undeterminable: name must be provided";
    let body = json!({ "data": { "v": "2" } });
    api.put(a, &body).await.fails(400, "BadRequest", message);
    let body = json!({ "metadata": { "name": "a" }, "data": { "v": "2" } });
    api.put(a, &body).await.is(200, "");
}

/// S2.15
#[tokio::test(start_paused = true)]
async fn some_kinds_are_created_by_an_update() {
    let api = Api::start().await;
    let lease = json!({ "metadata": { "name": "l" }, "spec": { "holderIdentity": "me" } });
    let leases = "/apis/coordination.k8s.io/v1/namespaces/ns/leases";
    let answer = api.put(&format!("{leases}/l"), &lease).await;
    assert_eq!(answer.is(201, "").json()["metadata"]["name"], "l");
    let mut other = json!({ "metadata": { "name": "m", "resourceVersion": "5" } });
    api.put(&format!("{leases}/m"), &other).await.is(201, "");
    // An update with a UID does not create the object.
    other["metadata"] = json!({ "name": "n", "uid": "u" });
    api.put(&format!("{leases}/n"), &other).await.fails(409, "Conflict", "");
    let role = json!({ "metadata": { "name": "r" }, "rules": [] });
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    api.put(&format!("{roles}/r"), &role).await.is(201, "");
    api.put(&format!("{roles}/r"), &role).await.is(200, "");
    let answer = api.put("/apis/coordination.k8s.io/v1/namespaces/no/leases/l", &lease).await;
    answer.fails(404, "NotFound", "namespaces \"no\" not found");
}

/// S2.14
#[tokio::test(start_paused = true)]
async fn server_owned_fields_do_not_change() {
    let api = Api::start().await;
    let a = &format!("{CMS}/a");
    let first = api.create(CMS, &config_map("a")).await;
    let mut body = first.clone();
    body["metadata"]["creationTimestamp"] = "2001-01-01T00:00:00Z".into();
    body["metadata"]["generation"] = 9.into();
    body["metadata"]["selfLink"] = "/x".into();
    body["data"] = json!({ "v": "2" });
    let after = api.put(a, &body).await.is(200, "").json();
    assert_eq!(after["metadata"]["creationTimestamp"], first["metadata"]["creationTimestamp"]);
    assert!(after["metadata"].get("generation").is_none());
    assert!(after["metadata"].get("selfLink").is_none());
    let patch = json!({ "metadata": { "deletionTimestamp": "2001-01-01T00:00:00Z" } });
    let status = api.merge(a, &patch).await.fails(422, "Invalid", "");
    assert_eq!(status["details"]["causes"][0]["field"], "metadata.deletionTimestamp");
    let patch = json!({ "metadata": { "uid": "other" } });
    let status = api.merge(a, &patch).await.fails(422, "Invalid", "");
    assert_eq!(status["details"]["causes"][0]["field"], "metadata.uid");
}

/// S2.50
#[tokio::test(start_paused = true)]
async fn generations_count_changes_of_the_spec() {
    let api = Api::start().await;
    let d = &format!("{DEPLOYMENTS}/d");
    let made = api.create(DEPLOYMENTS, &deployment("d")).await;
    let mut at = version(&made);
    for (target, patch, generation) in [
        (d.clone(), json!({ "metadata": { "labels": { "a": "b" } } }), 1),
        (d.clone(), json!({ "spec": { "replicas": 2 } }), 2),
        (d.clone(), json!({ "spec": { "replicas": 2 } }), 2),
        (d.clone(), json!({ "status": { "replicas": 5 } }), 2),
        (
            format!("{d}/status"),
            json!({ "status": { "replicas": 5 }, "spec": { "replicas": 7 } }),
            2,
        ),
        (d.clone(), json!({ "metadata": { "finalizers": ["example.com/x"] } }), 2),
    ] {
        let after = api.merge(&target, &patch).await.is(200, "").json();
        assert_eq!(after["metadata"]["generation"], generation, "{target} {patch}");
        at = version(&after);
    }
    let now = api.get(d).await.json();
    assert_eq!(version(&now), at);
    assert_eq!(now["spec"]["replicas"], 2);
    assert_eq!(now["status"]["replicas"], 5);
    assert_eq!(api.get(&format!("{d}/status")).await.is(200, "").json(), now);
    let marked = api.delete(d).await.is(200, "").json();
    assert_eq!(marked["metadata"]["generation"], 3);
}

/// S2.51
#[tokio::test(start_paused = true)]
async fn status_and_spec_are_written_through_different_endpoints() {
    let api = Api::start().await;
    let p = &format!("{PODS}/p");
    let mut made = api.create(PODS, &pod("p", "")).await;
    made["status"]["phase"] = "Running".into();
    made["metadata"]["labels"] = json!({ "by": "main" });
    let after = api.put(p, &made).await.is(200, "").json();
    assert_eq!(after["status"]["phase"], "Pending");
    let mut body = after.clone();
    body["status"]["phase"] = "Running".into();
    body["spec"]["nodeName"] = "n1".into();
    body["metadata"]["labels"] = json!({ "by": "status" });
    let after = api.put(&format!("{p}/status"), &body).await.is(200, "").json();
    assert_eq!(after["status"]["phase"], "Running");
    assert!(after["spec"].get("nodeName").is_none());
    assert_eq!(after["metadata"]["labels"], json!({ "by": "status" }));
    let stale = api.put(&format!("{p}/status"), &body).await;
    stale.fails(409, "Conflict", "Operation cannot be fulfilled on pods \"p\": ");
    let missing = api.merge(&format!("{PODS}/none/status"), &json!({ "status": {} })).await;
    missing.fails(404, "NotFound", "pods \"none\" not found");
}

/// S2.22, S6.6, R6
#[tokio::test(start_paused = true)]
async fn of_concurrent_writers_with_one_version_one_succeeds() {
    let api = Api::start().await;
    let a = &format!("{CMS}/a");
    let first = api.create(CMS, &config_map("a")).await;
    let writes = (0..20).map(|writer| {
        let mut body = first.clone();
        body["data"] = json!({ "writer": writer.to_string() });
        async { api.put(a, &{ body }).await.code }
    });
    let codes = futures::future::join_all(writes).await;
    assert_eq!(codes.iter().filter(|code| **code == 200).count(), 1, "{codes:?}");
    assert_eq!(codes.iter().filter(|code| **code == 409).count(), 19, "{codes:?}");
    // Patches without a version are retried until they succeed.
    let patches = (0..20).map(|writer| {
        let patch = json!({ "data": { format!("w{writer}"): "x" } });
        async { api.merge(a, &{ patch }).await.code }
    });
    let codes = futures::future::join_all(patches).await;
    assert!(codes.iter().all(|code| *code == 200), "{codes:?}");
    assert_eq!(api.get(a).await.json()["data"].as_object().unwrap().len(), 21);
}

#[tokio::test(start_paused = true)]
async fn deployment_annotations_count_as_changes_and_status_updates_keep_labels() {
    let api = Api::start().await;
    let d = &format!("{DEPLOYMENTS}/d");
    let made = api.create(DEPLOYMENTS, &deployment("d")).await;
    let mut body = made.clone();
    body["metadata"]["labels"] = json!({ "by": "status" });
    body["metadata"]["annotations"] = json!({ "by": "status" });
    body["status"] = json!({ "replicas": 1, "observedGeneration": 1 });
    let after = api.put(&format!("{d}/status"), &body).await.is(200, "").json();
    assert_eq!(after["status"]["replicas"], 1);
    assert_eq!(after["metadata"]["labels"], made["metadata"]["labels"]);
    assert_eq!(after["metadata"]["annotations"], json!({ "by": "status" }));
    assert_eq!(after["metadata"]["generation"], 1);
    let annotated = json!({ "metadata": { "annotations": { "a": "b" } } });
    let after = api.merge(d, &annotated).await.is(200, "").json();
    assert_eq!(after["metadata"]["generation"], 2);
    let labelled = json!({ "metadata": { "labels": { "a": "b" } } });
    let after = api.merge(d, &labelled).await.is(200, "").json();
    assert_eq!(after["metadata"]["generation"], 2);
}

#[tokio::test(start_paused = true)]
async fn a_new_node_is_tainted_not_ready() {
    let api = Api::start().await;
    let taint = json!([{ "key": "node.kubernetes.io/not-ready", "effect": "NoSchedule" }]);
    let condition = |status: &str| json!({ "conditions": [{ "type": "Ready", "status": status }] });
    for (name, status, spec, expected) in [
        ("a", json!({}), json!({}), taint.clone()),
        ("b", condition("False"), json!({}), taint.clone()),
        ("c", condition("True"), json!({}), json!(null)),
        ("d", json!({ "allocatable": { "cpu": "1" } }), json!({}), json!(null)),
        ("e", json!({}), json!({ "taints": taint }), taint.clone()),
    ] {
        let node = json!({ "metadata": { "name": name }, "spec": spec, "status": status });
        let made = api.create("/api/v1/nodes", &node).await;
        assert_eq!(made["spec"]["taints"], expected, "{name}");
    }
    let free = json!({ "spec": { "taints": null } });
    let free = api.merge("/api/v1/nodes/a", &free).await.is(200, "").json();
    assert_eq!(free["spec"]["taints"], json!(null));
}

/// S2.53
#[tokio::test(start_paused = true)]
async fn a_pod_is_bound_to_a_node_once() {
    let api = Api::start().await;
    api.create(PODS, &pod("p", "")).await;
    let binding = |node: &str| {
        json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": { "name": "p", "annotations": { "by": "scheduler" } },
            "target": { "kind": "Node", "name": node },
        })
    };
    let target = format!("{PODS}/p/binding");
    let bound = api.post(&target, &binding("n1")).await.is(201, "").json();
    assert_eq!((&bound["status"], &bound["code"]), (&json!("Success"), &json!(201)));
    let now = api.get(&format!("{PODS}/p")).await.json();
    assert_eq!(now["spec"]["nodeName"], "n1");
    assert_eq!(now["metadata"]["annotations"]["by"], "scheduler");
    let condition = &now["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"]),
        (&json!("PodScheduled"), &json!("True"))
    );
    for target in [target.as_str(), "/api/v1/namespaces/ns/bindings"] {
        let message = "Operation cannot be fulfilled on pods/binding \"p\": pod p is already \
                       assigned to node \"n1\"";
        let again = api.post(target, &binding("n2")).await.fails(409, "Conflict", message);
        assert_eq!(again["details"]["kind"], "pods/binding", "{target}");
    }
}
