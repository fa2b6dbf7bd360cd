//! Discovery, version and metrics (S1.9, S1.11, S1.14, S1.20–S1.23).

use headwater_json::{Value, json};

use crate::api::{Api, CMS};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

fn entry(list: &Value, name: &str) -> Value {
    let entries = list["resources"].as_array().unwrap();
    let mut found = entries.iter().find(|entry| entry["name"] == name).unwrap().clone();
    found.as_object_mut().unwrap().remove("storageVersionHash");
    found
}

/// S1.9
#[tokio::test(start_paused = true)]
async fn the_version_is_one_clients_understand() {
    let api = Api::start().await;
    let version = api.as_anonymous().send("GET /version", "").await;
    assert!(version.text().contains("\n  \"major\": \"1\""), "it is indented");
    let version = version.json();
    for key in [
        "major",
        "minor",
        "gitVersion",
        "gitCommit",
        "gitTreeState",
        "buildDate",
        "goVersion",
        "compiler",
        "platform",
        "emulationMajor",
        "emulationMinor",
        "minCompatibilityMajor",
        "minCompatibilityMinor",
    ] {
        assert!(version[key].is_string(), "{key}");
    }
    assert!(version["gitVersion"].as_str().unwrap().starts_with("v1.36."), "{version}");
}

/// S1.2, S1.20, S1.21
#[tokio::test(start_paused = true)]
async fn the_core_group_is_listed_as_kubernetes_lists_it() {
    let api = Api::start().await;
    let versions = api.get("/api").await.json();
    assert_eq!(versions["versions"], json!(["v1"]));
    assert!(versions.get("apiVersion").is_none());
    let list = api.get("/api/v1").await.json();
    assert!(list.get("apiVersion").is_none());
    assert_eq!(list["groupVersion"], "v1");
    let all =
        json!(["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]);
    let expected = json!({
        "name": "configmaps", "singularName": "configmap", "namespaced": true,
        "kind": "ConfigMap", "verbs": all, "shortNames": ["cm"],
    });
    assert_eq!(entry(&list, "configmaps"), expected);
    let expected = json!({
        "name": "pods", "singularName": "pod", "namespaced": true, "kind": "Pod",
        "verbs": all, "shortNames": ["po"], "categories": ["all"],
    });
    assert_eq!(entry(&list, "pods"), expected);
    let expected = json!({
        "name": "pods/eviction", "singularName": "", "namespaced": true, "group": "policy",
        "version": "v1", "kind": "Eviction", "verbs": ["create"],
    });
    assert_eq!(entry(&list, "pods/eviction"), expected);
    let expected = json!({
        "name": "namespaces", "singularName": "namespace", "namespaced": false,
        "kind": "Namespace", "shortNames": ["ns"],
        "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
    });
    assert_eq!(entry(&list, "namespaces"), expected);
    let entries = list["resources"].as_array().unwrap();
    let names: Vec<&str> = entries.iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert!(names.is_sorted(), "{names:?}");
}

/// S1.21
#[tokio::test(start_paused = true)]
async fn other_groups_are_listed_with_their_versions() {
    let api = Api::start().await;
    let groups = api.get("/apis").await.json();
    assert_eq!((&groups["kind"], &groups["apiVersion"]), (&json!("APIGroupList"), &json!("v1")));
    let autoscaling = groups["groups"].as_array().unwrap().iter();
    let autoscaling = autoscaling.clone().find(|group| group["name"] == "autoscaling").unwrap();
    let versions = json!([
        { "groupVersion": "autoscaling/v2", "version": "v2" },
        { "groupVersion": "autoscaling/v1", "version": "v1" },
    ]);
    assert_eq!(autoscaling["versions"], versions);
    assert_eq!(autoscaling["preferredVersion"], versions[0]);
    let group = api.get("/apis/apps").await.json();
    let v1 = json!({ "groupVersion": "apps/v1", "version": "v1" });
    let expected = json!({
        "kind": "APIGroup", "apiVersion": "v1", "name": "apps", "versions": [v1],
        "preferredVersion": v1,
    });
    assert_eq!(group, expected);
    let list = api.get("/apis/apps/v1").await.json();
    assert_eq!(list["apiVersion"], "v1");
    let expected = json!({
        "name": "deployments/scale", "singularName": "", "namespaced": true,
        "group": "autoscaling", "version": "v1", "kind": "Scale",
        "verbs": ["get", "patch", "update"],
    });
    assert_eq!(entry(&list, "deployments/scale"), expected);
}

/// S1.23
#[tokio::test(start_paused = true)]
async fn aggregated_discovery_has_an_etag() {
    let api = Api::start().await;
    for (target, is_core) in [("/api", true), ("/apis", false)] {
        let answer = api.accept(target, AGGREGATED).await;
        assert_eq!(answer.header("content-type"), AGGREGATED);
        assert_eq!(answer.header("vary"), "Accept");
        assert_eq!(answer.header("cache-control"), "public");
        let tag = answer.header("etag").to_owned();
        assert!(tag.starts_with('"') && tag.ends_with('"'), "{tag}");
        let list = answer.json();
        assert_eq!(list["kind"], "APIGroupDiscoveryList");
        assert_eq!(list["apiVersion"], "apidiscovery.k8s.io/v2");
        let items = list["items"].as_array().unwrap();
        assert_eq!(items[0]["metadata"].get("name").is_none(), is_core);
        assert_eq!(items[0]["versions"][0]["freshness"], "Current");
        let request = format!("GET {target}\nAccept: {AGGREGATED}\nIf-None-Match: {tag}");
        let again = api.send(&request, "").await;
        assert_eq!((again.code, again.text().as_str()), (304, ""));
    }
    let apps = api.accept("/apis", AGGREGATED).await.json();
    let apps = apps["items"].as_array().unwrap().iter().find(|g| g["metadata"]["name"] == "apps");
    let resources = apps.unwrap()["versions"][0]["resources"].clone();
    let deployments =
        resources.as_array().unwrap().iter().find(|row| row["resource"] == "deployments").unwrap();
    assert_eq!(deployments["scope"], "Namespaced");
    let own = json!({ "group": "", "version": "", "kind": "Deployment" });
    assert_eq!(deployments["responseKind"], own);
    assert_eq!(deployments["singularResource"], "deployment");
    assert_eq!(deployments["shortNames"], json!(["deploy"]));
    let scale = json!({
        "subresource": "scale", "verbs": ["get", "patch", "update"],
        "responseKind": { "group": "autoscaling", "version": "v1", "kind": "Scale" },
    });
    assert_eq!(deployments["subresources"][0], scale);
}

/// S1.23
#[tokio::test(start_paused = true)]
async fn the_first_supported_media_type_of_discovery_is_sent() {
    let api = Api::start().await;
    let beta = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
    for (accept, code, kind) in [
        (format!("{AGGREGATED},{beta},application/json"), 200, "APIGroupDiscoveryList"),
        (format!("{beta},application/json"), 200, "APIGroupList"),
        (beta.to_owned(), 406, "Status"),
        (format!("{AGGREGATED};profile=nopeer"), 200, "APIGroupDiscoveryList"),
        ("application/json".to_owned(), 200, "APIGroupList"),
        ("*/*".to_owned(), 200, "APIGroupList"),
    ] {
        let answer = api.accept("/apis", &accept).await;
        assert_eq!((answer.code, &answer.json()["kind"]), (code, &json!(kind)), "{accept}");
    }
}

/// S1.11, S1.14, S11.1
#[tokio::test(start_paused = true)]
async fn the_root_lists_paths_and_metrics_are_text() {
    let api = Api::start().await;
    let paths = api.get("/").await.json();
    let paths = paths["paths"].as_array().unwrap();
    for path in ["/api/v1", "/apis/apps/v1", "/healthz", "/metrics", "/version"] {
        assert!(paths.contains(&json!(path)), "{path}");
    }
    api.get(CMS).await.is(200, "");
    api.watch(&format!("{CMS}?watch=true&timeoutSeconds=1")).await.rest().await;
    let metrics = api.get("/metrics").await;
    assert!(metrics.header("content-type").starts_with("text/plain; version=0.0.4"));
    for family in [
        "apiserver_request_total",
        "apiserver_request_duration_seconds",
        "apiserver_current_inflight_requests",
        "apiserver_longrunning_requests",
        "apiserver_watch_events_total",
        "apiserver_storage_objects",
        "watch_cache_capacity",
        "apiserver_watch_cache_resource_version",
        "apiserver_cache_list_total",
        "apiserver_flowcontrol_dispatched_requests_total",
    ] {
        assert!(metrics.text().contains(&format!("# TYPE {family} ")), "{family}");
    }
    let dispatched = "apiserver_flowcontrol_dispatched_requests_total\
                      {priority_level=\"exempt\",flow_schema=\"exempt\"}";
    assert!(metrics.text().contains(dispatched));
}

/// S1.12
#[tokio::test(start_paused = true)]
async fn the_openapi_v2_document_is_available_as_protobuf() {
    let api = Api::start().await;
    let protobuf = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    let called = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
    for (accept, content_type) in [
        (protobuf, called),
        (called, called),
        (&format!("{protobuf}, application/json"), called),
        (&format!("application/json, {protobuf}"), "application/json"),
        ("*/*", "application/json"),
    ] {
        let answer = api.accept("/openapi/v2", accept).await;
        assert_eq!((answer.code, answer.header("content-type")), (200, content_type), "{accept}");
        assert!(answer.header("etag").len() > 2, "{accept}");
        // The first field is the OpenAPI version in both formats.
        let begins: &[u8] = if content_type == called { b"\x0a\x032.0" } else { b"{\"" };
        assert!(answer.body.starts_with(begins), "{accept}: {:?}", &answer.body[..8]);
        let name = b"io.k8s.api.core.v1.PodSpec";
        assert!(answer.body.windows(name.len()).any(|window| window == name), "{accept}");
    }
}

/// S1.12
#[tokio::test(start_paused = true)]
async fn an_openapi_document_is_found_by_its_hash() {
    let api = Api::start().await;
    let index = api.get("/openapi/v3").await;
    assert_eq!(index.header("content-type"), "text/plain; charset=utf-8");
    let url = index.json()["paths"]["apis/apps/v1"]["serverRelativeURL"].clone();
    let url = url.as_str().unwrap();
    let (path, hash) = url.split_once("?hash=").unwrap();
    assert_eq!(path, "/openapi/v3/apis/apps/v1");
    let document = api.get(url).await;
    assert_eq!(document.is(200, "").header("cache-control"), "public, immutable");
    assert_eq!(document.header("vary"), "Accept");
    assert_eq!(document.json()["openapi"], "3.0.0");
    for key in ["components", "info", "paths"] {
        assert!(document.json()[key].is_object(), "{key}");
    }
    let tag = document.header("etag");
    assert_eq!(tag, format!("\"{hash}\""));
    let again = api.send(&format!("GET {path}\nIf-None-Match: {tag}"), "").await;
    assert_eq!((again.code, again.body.len()), (304, 0));
    let moved = api.get(&format!("{path}?hash=old")).await;
    assert_eq!((moved.code, moved.header("location")), (301, url));
}

/// The references of a document, and the schemas or parameters that they name.
fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        Value::Object(members) => {
            // A schema has properties of any name, also `$ref`.
            found.extend(members.get("$ref").and_then(Value::as_str));
            members.values().for_each(|value| references(value, found));
        }
        _ => {}
    }
}

/// All operations of a document, by path and method.
fn operations(document: &Value) -> Vec<(String, &Value)> {
    let paths = document["paths"].as_object().unwrap();
    let items = paths.iter().flat_map(|(path, item)| {
        let methods = item.as_object().unwrap().iter().filter(|(name, _)| **name != "parameters");
        methods.map(move |(method, operation)| (format!("{method} {path}"), operation))
    });
    items.collect()
}

#[track_caller]
fn check_document(document: &Value) {
    let mut found = Vec::new();
    references(document, &mut found);
    assert!(!found.is_empty());
    for reference in found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference} names nothing");
    }
    let mut ids = std::collections::BTreeMap::new();
    for (name, operation) in operations(document) {
        let id = operation["operationId"].as_str().unwrap();
        assert_eq!(ids.insert(id.to_owned(), name.clone()), None, "{name}: {id} is not unique");
        assert_eq!(operation["responses"]["401"]["description"], "Unauthorized", "{name}");
    }
}

/// S1.12: generators of clients find each reference, and a name for each operation.
#[tokio::test(start_paused = true)]
async fn openapi_documents_are_complete_in_themselves() {
    let api = Api::start().await;
    check_document(&api.get("/openapi/v2").await.json());
    let index = api.get("/openapi/v3").await.json();
    for (name, entry) in index["paths"].as_object().unwrap() {
        let document = api.get(entry["serverRelativeURL"].as_str().unwrap()).await.json();
        match document["components"].get("schemas") {
            Some(_) => check_document(&document),
            None => assert!(name.starts_with("openid/") || name.starts_with(".well-known/")),
        }
    }
    for name in ["api", "apis", "apis/apps", "version", "api/v1"] {
        assert!(index["paths"].get(name).is_some(), "{name}");
    }
    api.get("/openapi/v3/apis/absent").await.is(404, "");
}

/// S1.12: operations have the names, actions, bodies and responses of the reference.
#[tokio::test(start_paused = true)]
async fn operations_are_described_as_generated_clients_expect() {
    let api = Api::start().await;
    let v2 = api.get("/openapi/v2").await.json();
    let v3 = api.get("/openapi/v3/api/v1").await.json();
    let pods = "/api/v1/namespaces/{namespace}/pods";
    for (path, method, id, action, codes) in [
        ("/api/v1/pods", "get", "listCoreV1PodForAllNamespaces", "list", 1),
        (pods, "post", "createCoreV1NamespacedPod", "post", 3),
        (pods, "delete", "deleteCoreV1CollectionNamespacedPod", "deletecollection", 1),
        ("{name}", "put", "replaceCoreV1NamespacedPod", "put", 2),
        ("{name}", "delete", "deleteCoreV1NamespacedPod", "delete", 2),
        ("{name}/status", "patch", "patchCoreV1NamespacedPodStatus", "patch", 2),
        ("{name}/exec", "post", "connectCoreV1PostNamespacedPodExec", "connect", 1),
        (
            "{name}/proxy/{path}",
            "head",
            "connectCoreV1HeadNamespacedPodProxyWithPath",
            "connect",
            1,
        ),
        ("/api/v1/watch/pods", "get", "watchCoreV1PodListForAllNamespaces", "watchlist", 1),
        ("/api/v1/namespaces/{name}/finalize", "put", "replaceCoreV1NamespaceFinalize", "put", 2),
    ] {
        let path = if path.starts_with('/') { path.to_owned() } else { format!("{pods}/{path}") };
        for document in [&v2, &v3] {
            let operation = &document["paths"][path.as_str()][method];
            assert_eq!(operation["operationId"], id, "{path}");
            assert_eq!(operation["x-kubernetes-action"], action, "{path}");
            let responses = operation["responses"].as_object().unwrap();
            assert_eq!(responses.len(), codes + 1, "{path}");
        }
    }
    // What all operations of a path have in common is said once.
    let named = |item: &Value| -> Vec<String> {
        let names = item["parameters"].as_array().into_iter().flatten();
        names.map(|one| one["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let item = &v3["paths"][format!("{pods}/{{name}}").as_str()];
    assert_eq!(named(item), ["name", "namespace", "pretty"]);
    assert_eq!(named(&item["get"]), [""; 0]);
    assert_eq!(named(&item["patch"]), ["dryRun", "fieldManager", "fieldValidation", "force"]);
    let eviction = &v3["paths"][format!("{pods}/{{name}}/eviction").as_str()];
    assert_eq!(eviction["post"]["x-kubernetes-group-version-kind"]["group"], "policy");
    assert_eq!(
        item["delete"]["requestBody"]["content"]["*/*"]["schema"]["$ref"],
        "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"
    );
    let port = "io.k8s.api.core.v1.ContainerPort";
    assert_eq!(v3["components"]["schemas"][port]["properties"]["protocol"]["default"], "TCP");
    let protocol = &v2["definitions"][port]["properties"]["protocol"];
    assert_eq!(protocol["enum"], json!(["SCTP", "TCP", "UDP"]));
    assert!(protocol.get("default").is_none());
}

/// S1.12
#[tokio::test(start_paused = true)]
async fn custom_kinds_are_described_in_both_versions() {
    let api = Api::start().await;
    let schema = json!({
        "type": "object",
        "properties": {
            "spec": { "type": "object", "properties": {
                "size": { "type": "integer", "nullable": true },
                "free": { "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                          "properties": { "known": { "type": "string" } } },
                "template": { "type": "object", "x-kubernetes-embedded-resource": true,
                              "properties": { "spec": { "type": "string", "default": "a" } } },
            }, "required": ["size"] },
        },
    });
    let free = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    for (kind, plural, schema) in [("Thing", "things", schema), ("Any", "anys", free)] {
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.example.com") },
            "spec": {
                "group": "example.com", "scope": "Namespaced",
                "names": { "plural": plural, "kind": kind },
                "versions": [{ "name": "v1", "served": true, "storage": true,
                    "schema": { "openAPIV3Schema": schema },
                    "selectableFields": match kind {
                        "Thing" => json!([{ "jsonPath": ".spec.size" }]),
                        _ => json!([]),
                    } }],
            },
        });
        api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await;
    }
    let v2 = api.get("/openapi/v2").await.json();
    let v3 = api.get("/openapi/v3/apis/example.com/v1").await.json();
    check_document(&v2);
    check_document(&v3);
    let old = &v2["definitions"]["com.example.v1.Thing"]["properties"];
    let new = &v3["components"]["schemas"]["com.example.v1.Thing"];
    for key in ["apiVersion", "kind", "metadata"] {
        assert!(old.get(key).is_some() && new["properties"].get(key).is_some(), "{key}");
    }
    assert_eq!(old["spec"]["properties"]["size"], json!({}));
    assert!(old["spec"].get("required").is_none());
    assert!(old["spec"]["properties"]["free"].get("properties").is_none());
    assert_eq!(new["properties"]["spec"]["required"], json!(["size"]));
    assert_eq!(new["x-kubernetes-selectable-fields"], json!([{ "fieldPath": "spec.size" }]));
    for template in [&old["spec"]["properties"], &new["properties"]["spec"]["properties"]] {
        let template = &template["template"];
        assert_eq!(template["required"], json!(["kind", "apiVersion"]));
        assert!(template["properties"].get("metadata").is_some(), "{template}");
    }
    let of_template = &old["spec"]["properties"]["template"]["properties"]["spec"];
    assert_eq!(*of_template, json!({ "type": "string" }));
    // Clients of version 2 would refuse fields that are not listed.
    let names = json!([{ "group": "example.com", "kind": "Any", "version": "v1" }]);
    assert_eq!(
        v2["definitions"]["com.example.v1.Any"],
        json!({ "type": "object", "x-kubernetes-group-version-kind": names })
    );
    let any = &v3["components"]["schemas"]["com.example.v1.Any"];
    assert!(any["properties"].get("metadata").is_some(), "{any}");
    let list = &v3["components"]["schemas"]["com.example.v1.AnyList"]["properties"]["items"];
    assert_eq!(list["items"], json!({ "$ref": "#/components/schemas/com.example.v1.Any" }));
    let patch = &v2["paths"]["/apis/example.com/v1/namespaces/{namespace}/things/{name}"]["patch"];
    assert_eq!(patch["operationId"], "patchExampleComV1NamespacedThing");
    assert!(patch["responses"].get("201").is_none(), "{patch}");
    let things = &v3["paths"]["/apis/example.com/v1/namespaces/{namespace}/things"];
    assert!(things["delete"].get("requestBody").is_none(), "{things}");
    let types = patch["consumes"].as_array().unwrap();
    assert!(types.iter().all(|name| *name != "application/strategic-merge-patch+json"));
}
