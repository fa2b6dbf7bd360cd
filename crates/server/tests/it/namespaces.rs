//! Namespaces and bootstrap objects (S10).

use headwater_json::{Value, json};
use headwater_server::presence::Presence;

use crate::api::{Api, NOW, config_map};

const NAMESPACES: &str = "/api/v1/namespaces";

/// S10.1, S10.4
#[tokio::test(start_paused = true)]
async fn a_new_namespace_gets_its_defaults() {
    let api = Api::start().await;
    let made = api.create(NAMESPACES, &json!({ "metadata": { "name": "a" } })).await;
    assert_eq!(made["spec"], json!({ "finalizers": ["kubernetes"] }));
    assert_eq!(made["status"], json!({ "phase": "Active" }));
    let label = json!({ "kubernetes.io/metadata.name": "a" });
    assert_eq!(made["metadata"]["labels"], label);
    // The label is restored.
    for labels in [json!(null), json!({ "kubernetes.io/metadata.name": "other" })] {
        let patch = json!({ "metadata": { "labels": labels } });
        let after = api.merge(&format!("{NAMESPACES}/a"), &patch).await.is(200, "").json();
        assert_eq!(after["metadata"]["labels"], label);
    }
}

/// S10.2
#[tokio::test(start_paused = true)]
async fn a_namespace_is_deleted_without_finalizers() {
    let api = Api::start().await;
    let target = &format!("{NAMESPACES}/a");
    let inside = &format!("{target}/configmaps");
    api.create(NAMESPACES, &json!({ "metadata": { "name": "a" } })).await;
    api.create(inside, &config_map("there")).await;
    let marked = api.delete(target).await.is(200, "").json();
    assert_eq!(marked["kind"], "Namespace");
    assert_eq!(marked["metadata"]["deletionTimestamp"], NOW);
    assert!(marked["metadata"].get("deletionGracePeriodSeconds").is_none());
    assert_eq!(marked["status"]["phase"], "Terminating");
    assert_eq!(api.delete(target).await.is(200, "").json(), marked);

    let refused = api.post(inside, &config_map("new")).await;
    let message = "configmaps \"new\" is forbidden: unable to create new content in namespace a \
                   because it is being terminated";
    let status = refused.fails(403, "Forbidden", message);
    let cause = &status["details"]["causes"][0];
    assert_eq!(cause["reason"], "NamespaceTerminating");
    assert_eq!(cause["field"], "metadata.namespace");
    // Existing objects may still be changed and deleted.
    let there = &format!("{inside}/there");
    api.merge(there, &json!({ "data": { "k": "v" } })).await.is(200, "");
    api.delete(there).await.is(200, "");

    let mut body = marked.clone();
    body["spec"]["finalizers"] = json!([]);
    let finalized = api.put(&format!("{target}/finalize"), &body).await;
    assert_eq!(finalized.is(200, "").json()["metadata"]["name"], "a");
    api.get(target).await.fails(404, "NotFound", "namespaces \"a\" not found");
}

#[tokio::test(start_paused = true)]
async fn finalizers_of_metadata_hold_a_namespace_too() {
    let api = Api::start().await;
    let target = &format!("{NAMESPACES}/a");
    let body = json!({ "metadata": { "name": "a", "finalizers": ["example.com/hold"] } });
    api.create(NAMESPACES, &body).await;
    let marked = api.delete(target).await.is(200, "").json();
    let mut body = marked.clone();
    body["spec"] = json!({});
    api.put(&format!("{target}/finalize"), &body).await.is(200, "");
    api.get(target).await.is(200, "");
    let free = json!({ "metadata": { "finalizers": null } });
    api.merge(target, &free).await.is(200, "");
    api.get(target).await.fails(404, "NotFound", "");
}

#[tokio::test(start_paused = true)]
async fn finalizers_of_the_spec_change_only_through_finalize() {
    let api = Api::start().await;
    let made = api.create(NAMESPACES, &json!({ "metadata": { "name": "a" } })).await;
    let mut body = made.clone();
    body["spec"]["finalizers"] = json!(["example.com/other"]);
    let after = api.put(&format!("{NAMESPACES}/a"), &body).await.is(200, "").json();
    assert_eq!(after["spec"]["finalizers"], json!(["kubernetes"]));
    let mut body = after;
    body["spec"]["finalizers"] = json!(["example.com/other"]);
    let after = api.put(&format!("{NAMESPACES}/a/finalize"), &body).await.is(200, "").json();
    assert_eq!(after["spec"]["finalizers"], json!(["example.com/other"]));
}

/// S10.3
#[tokio::test(start_paused = true)]
async fn system_namespaces_cannot_be_deleted() {
    let api = Api::start().await;
    for name in ["default", "kube-system", "kube-public"] {
        let answer = api.delete(&format!("{NAMESPACES}/{name}")).await;
        let message =
            format!("namespaces \"{name}\" is forbidden: this namespace may not be deleted");
        let status = answer.fails(403, "Forbidden", &message);
        assert_eq!(status["details"], json!({ "name": name, "kind": "namespaces" }));
    }
    api.delete(&format!("{NAMESPACES}/kube-node-lease")).await.is(200, "");
}

/// S7.4, S10.20, S10.22
#[tokio::test(start_paused = true)]
async fn a_new_server_has_the_bootstrap_objects() {
    let api = Api::start().await;
    let names = api.get(NAMESPACES).await.names();
    assert_eq!(names, "default kube-node-lease kube-public kube-system ns");
    let flow = "/apis/flowcontrol.apiserver.k8s.io/v1";
    let schemas = api.get(&format!("{flow}/flowschemas")).await.json();
    let mut rows: Vec<(i64, String, String)> = items(&schemas)
        .map(|item| {
            let spec = &item["spec"];
            let level = spec["priorityLevelConfiguration"]["name"].as_str().unwrap();
            let name = item["metadata"]["name"].as_str().unwrap();
            (spec["matchingPrecedence"].as_i64().unwrap(), name.into(), level.into())
        })
        .collect();
    rows.sort();
    let expected = [
        (1, "exempt", "exempt"),
        (2, "probes", "exempt"),
        (100, "system-leader-election", "leader-election"),
        (400, "system-node-high", "node-high"),
        (500, "system-nodes", "system"),
        (800, "kube-controller-manager", "workload-high"),
        (800, "kube-scheduler", "workload-high"),
        (900, "kube-system-service-accounts", "workload-high"),
        (9000, "service-accounts", "workload-low"),
        (9900, "global-default", "global-default"),
        (10000, "catch-all", "catch-all"),
    ];
    let expected: Vec<(i64, String, String)> = expected
        .into_iter()
        .map(|(precedence, name, level)| (precedence, name.to_owned(), level.to_owned()))
        .collect();
    assert_eq!(rows, expected);
    let classes = api.get("/apis/scheduling.k8s.io/v1/priorityclasses").await.json();
    let values: Vec<i64> = items(&classes).filter_map(|item| item["value"].as_i64()).collect();
    assert_eq!(values, [2_000_000_000, 2_000_001_000]);
    let range = api.get("/apis/networking.k8s.io/v1/servicecidrs/kubernetes").await.json();
    assert_eq!(range["spec"]["cidrs"], json!(["10.96.0.0/12"]));
    // A second bootstrap changes nothing.
    let before = api.get(NAMESPACES).await.version();
    api.server.bootstrap().await.unwrap();
    assert_eq!(api.get(NAMESPACES).await.version(), before);
}

/// S10.21, S10.22
#[tokio::test(start_paused = true)]
async fn a_server_publishes_its_endpoints_and_client_ca() {
    const SERVICE: &str = "/api/v1/namespaces/default/services/kubernetes";
    const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints/kubernetes";
    let api = Api::start().await;
    let service = api.get(SERVICE).await.is(200, "").json();
    assert_eq!(service["spec"]["clusterIP"], "10.96.0.1");
    assert_eq!(service["metadata"]["labels"]["component"], "apiserver");
    let announce = async |address: &str, client_authority: &str| {
        let client_authority = client_authority.to_owned();
        let address = address.parse().unwrap();
        let presence = Presence { address, client_authority, proxies: None };
        api.server.appear(presence).await.unwrap();
        api.get(SERVICE).await.json()["spec"]["ports"][0].clone()
    };
    // Loopback addresses are not published: they mean another machine to each client.
    let port = announce("127.0.0.1:7001", "first").await;
    let expected = json!({ "name": "https", "port": 443, "protocol": "TCP", "targetPort": 7001 });
    assert_eq!(port, expected);
    // The address from which this machine reaches others stands in for them, if it has one.
    for slice in items(&api.get(SLICES).await.json()) {
        let ip = slice["endpoints"][0]["addresses"][0].as_str().unwrap();
        let ip: std::net::IpAddr = ip.parse().unwrap();
        assert!(!ip.is_loopback() && !ip.is_unspecified(), "{ip}");
        assert_eq!(slice["ports"][0]["port"], 7001);
    }
    announce("10.1.2.3:7002", "second").await;
    let slice = api.get(&format!("{SLICES}/kubernetes")).await.json();
    assert_eq!(slice["endpoints"][0]["addresses"], json!(["10.1.2.3"]));
    assert_eq!(slice["metadata"]["labels"]["kubernetes.io/service-name"], "kubernetes");
    // The next start corrects only the entries of this server.
    let port = announce("10.1.2.4:7003", "second").await;
    assert_eq!(port["targetPort"], 7003);
    let endpoints = api.get(ENDPOINTS).await.json();
    assert_eq!(endpoints["subsets"][0]["addresses"], json!([{ "ip": "10.1.2.4" }]));
    let slice = api.get(&format!("{SLICES}/kubernetes")).await.json();
    assert_eq!(slice["endpoints"][0]["addresses"], json!(["10.1.2.4"]));
    assert_eq!(slice["ports"][0]["port"], 7003);
    let known = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    assert_eq!(api.get(known).await.json()["data"], json!({ "client-ca-file": "second" }));
    let tracking = "kube-apiserver-legacy-service-account-token-tracking";
    let map = api.get(&format!("/api/v1/namespaces/kube-system/configmaps/{tracking}")).await;
    assert_eq!(map.json()["data"]["since"], &NOW[..10]);
    // A start without differences writes nothing.
    let before = api.get(NAMESPACES).await.version();
    assert!(!api.server.bootstrap().await.unwrap(), "it is not the first");
    announce("10.1.2.4:7003", "second").await;
    assert_eq!(api.get(NAMESPACES).await.version(), before);
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list["items"].as_array().unwrap().iter()
}

#[tokio::test(start_paused = true)]
async fn namespace_subresources_reject_invalid_requests() {
    let api = Api::start().await;
    let target = &format!("{NAMESPACES}/a");
    let made = api.create(NAMESPACES, &json!({ "metadata": { "name": "a" } })).await;
    let mut body = made.clone();
    body["status"]["phase"] = "Terminating".into();
    let status = api.put(&format!("{target}/status"), &body).await.fails(
        422,
        "Invalid",
        "Namespace \"a\" is invalid: status.Phase: Invalid value: \"Terminating\": may only be \
         'Active' if `deletionTimestamp` is empty",
    );
    assert_eq!(status["details"]["causes"][0]["field"], "status.Phase");
    let mut body = made;
    body["spec"]["finalizers"] = json!(["kubernetes", "nodomain"]);
    let status = api.put(&format!("{target}/finalize"), &body).await.fails(
        422,
        "Invalid",
        "Namespace \"a\" is invalid: spec.finalizers[1]: Invalid value: \"nodomain\": name is \
         neither a standard finalizer name nor is it fully qualified",
    );
    assert_eq!(status["details"]["causes"][0]["field"], "spec.finalizers[1]");
    // A finalize request may also remove labels and finalizers.
    body["spec"] = json!({});
    body["metadata"]["labels"] = json!({ "last": "word" });
    let after = api.put(&format!("{target}/finalize"), &body).await.is(200, "").json();
    assert_eq!(after["metadata"]["labels"]["last"], "word");
    assert_eq!(after["status"]["phase"], "Active");
}
