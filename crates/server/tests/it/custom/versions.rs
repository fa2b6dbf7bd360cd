//! Several versions over one store, scopes, and paths that are not served.

use super::*;

async fn two_versions() -> World {
    World::with_widgets(|definition| {
        definition["spec"]["versions"] = json!([version_of("v1", true), version_of("v2", false)]);
        schema(definition, 1)["properties"]["spec"]["properties"]["replicas"].take();
        let fields = &mut schema(definition, 1)["properties"]["spec"]["properties"];
        fields.as_object_mut().unwrap().remove("replicas");
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn versions_with_one_schema_differ_in_their_name_only() {
    let world = World::with_widgets(|definition| {
        definition["spec"]["versions"] = json!([version_of("v1", true), version_of("v2", false)]);
    })
    .await;
    world.widget("a", json!({"size": 1, "replicas": 2})).await;
    let mut first = world.get(&format!("{WIDGETS}/a")).await.json();
    let second = world.get(&format!("{SECOND}/a")).await.json();
    first["apiVersion"] = "example.com/v2".into();
    assert_eq!(first, second);
    assert_eq!(world.get(SECOND).await.json()["items"][0], second);
}

const SECOND: &str = "/apis/example.com/v2/namespaces/ns/widgets";

/// S9.25
#[tokio::test(start_paused = true)]
async fn every_version_shows_the_same_objects() {
    let world = two_versions().await;
    world.widget("a", json!({"size": 1, "replicas": 2})).await;
    let object = world.get(&format!("{SECOND}/a")).await.json();
    assert_eq!(object["apiVersion"], "example.com/v2");
    // The other version does not know the field, and keeps it.
    assert_eq!(object["spec"], json!({"size": 1, "colour": "blue"}));
    let list = world.get(SECOND).await.json();
    assert_eq!(
        (&list["apiVersion"], &list["items"][0]["apiVersion"]),
        (&json!("example.com/v2"), &json!("example.com/v2"))
    );
    let mut watch = world.watch(&format!("{SECOND}?watch=1")).await;
    assert_eq!(watch.next().await.unwrap()["object"]["apiVersion"], "example.com/v2");
    let mut body = widget("b", json!({"size": 2}));
    body["apiVersion"] = "example.com/v2".into();
    assert_eq!(world.create(SECOND, &body).await["apiVersion"], "example.com/v2");
    assert_eq!(watch.next().await.unwrap()["object"]["apiVersion"], "example.com/v2");
    assert_eq!(world.get(&format!("{WIDGETS}/b")).await.json()["apiVersion"], "example.com/v1");
    world.merge(&format!("{SECOND}/a"), &json!({"spec": {"size": 5}})).await.is(200, "");
    world.delete(&format!("{SECOND}/b")).await.is(200, "");
    world.get(WIDGETS).await.lists("a");
}

/// S9.4
#[tokio::test(start_paused = true)]
async fn a_new_storage_version_reads_stored_objects() {
    let world = two_versions().await;
    world.widget("a", json!({"size": 1})).await;
    world
        .redefine(|definition| {
            definition["spec"]["versions"][0]["storage"] = false.into();
            definition["spec"]["versions"][1]["storage"] = true.into();
        })
        .await;
    let definition = world.get(&format!("{CRDS}/widgets.example.com")).await.json();
    assert_eq!(definition["status"]["storedVersions"], json!(["v1", "v2"]));
    assert_eq!(world.get(&format!("{SECOND}/a")).await.json()["spec"]["size"], 1);
    // A version in `storedVersions` cannot be removed.
    let mut fewer = definition.clone();
    fewer["spec"]["versions"].as_array_mut().unwrap().remove(0);
    world.put(&format!("{CRDS}/widgets.example.com"), &fewer).await.fails(
        422,
        "Invalid",
        r#"CustomResourceDefinition.apiextensions.k8s.io "widgets.example.com" is invalid: status.storedVersions[0]: Invalid value: "v1": missing from spec.versions"#,
    );
    // An unchanged write stores the object in the new version.
    let read = world.get(&format!("{SECOND}/a")).await.json();
    let written = world.put(&format!("{SECOND}/a"), &read).await.json();
    assert_ne!(version(&read), version(&written));
}

/// S1.5, S9.25
#[tokio::test(start_paused = true)]
async fn a_version_that_is_not_served_is_not_found() {
    let world = two_versions().await;
    world.redefine(|definition| definition["spec"]["versions"][1]["served"] = false.into()).await;
    for path in
        [SECOND, "/apis/example.com/v2", "/apis/example.com/v9/widgets", "/apis/none.com/v1/x"]
    {
        let answer = world.get(path).await;
        answer.is(404, "404 page not found\n");
        assert_eq!(answer.header("content-type"), "text/plain; charset=utf-8");
    }
    world.get("/apis/example.com").await.is(200, r#""version":"v1""#);
}

/// S9.25
#[tokio::test(start_paused = true)]
async fn a_deprecated_version_warns() {
    let world = World::with_widgets(|definition| {
        definition["spec"]["versions"] =
            json!([version_of("v1", true), version_of("v1beta1", false)]);
        definition["spec"]["versions"][1]["deprecated"] = true.into();
    })
    .await;
    let answer = world.get("/apis/example.com/v1beta1/namespaces/ns/widgets").await;
    assert_eq!(
        answer.header("warning"),
        r#"299 - "example.com/v1beta1 Widget is deprecated; use example.com/v1 Widget""#
    );
    assert_eq!(world.get(WIDGETS).await.header("warning"), "");
}

/// S1.22, S1.23, S1.24
#[tokio::test(start_paused = true)]
async fn discovery_shows_verbs_and_versions_in_their_order() {
    let world = World::with_widgets(|definition| {
        let names = ["v1alpha1", "v2", "v1beta1", "v1"];
        definition["spec"]["versions"] =
            names.map(|name| version_of(name, name == "v1")).to_vec().into();
        for version in definition["spec"]["versions"].as_array_mut().unwrap() {
            version["subresources"] = json!({"status": {}});
        }
    })
    .await;
    let group = world.get("/apis/example.com").await.json();
    let versions: Vec<&str> = group["versions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|version| version["version"].as_str().unwrap())
        .collect();
    assert_eq!(versions, ["v2", "v1", "v1beta1", "v1alpha1"]);
    assert_eq!(group["preferredVersion"]["version"], "v2");
    let list = world.get("/apis/example.com/v1").await.json();
    let entry = &list["resources"][0];
    assert_eq!(
        entry["verbs"],
        json!(["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"])
    );
    assert_eq!((&entry["shortNames"], &entry["categories"]), (&json!(["wd"]), &json!(["all"])));
    assert_eq!(list["resources"][1]["name"], "widgets/status");
    let all = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let groups = world.accept("/apis", all).await.json();
    let groups = groups["items"].as_array().unwrap();
    let last = groups.last().unwrap();
    assert_eq!(last["metadata"]["name"], "example.com");
    let resource = &last["versions"][0]["resources"][0];
    assert_eq!(
        resource["responseKind"],
        json!({"group": "example.com", "version": "v2", "kind": "Widget"})
    );
}

/// S9.26
#[tokio::test(start_paused = true)]
async fn a_cluster_wide_kind_is_in_no_namespace() {
    let world =
        World::with_widgets(|definition| definition["spec"]["scope"] = "Cluster".into()).await;
    let target = "/apis/example.com/v1/widgets";
    let mut body = widget("a", json!({}));
    body["metadata"]["namespace"] = "ns".into();
    assert_eq!(world.create(target, &body).await["metadata"]["namespace"], Value::Null);
    world.get(WIDGETS).await.is(404, "404 page not found\n");
    world.get(target).await.lists("a");
}

/// S1.1, S1.7
#[tokio::test(start_paused = true)]
async fn unsupported_verbs_of_a_custom_kind_are_reported() {
    let world = World::with_widgets(|definition| {
        definition["spec"]["versions"][0]["subresources"] = json!({"status": {}});
    })
    .await;
    world.widget("a", json!({})).await;
    for (request, verb) in [
        (format!("DELETE {WIDGETS}/a/status"), "delete"),
        (format!("POST {WIDGETS}/a/status"), "create"),
        (format!("OPTIONS {WIDGETS}/a"), ""),
    ] {
        let answer = world.send(&request, "{}").await;
        let message =
            format!("{verb} is not supported on resources of kind \"widgets.example.com\"");
        let status = answer.fails(405, "MethodNotAllowed", &message);
        let details = &status["details"];
        assert_eq!(
            (&details["group"], &details["kind"]),
            (&json!("example.com"), &json!("widgets"))
        );
    }
    world.put(WIDGETS, &widget("a", json!({}))).await.fails(
        400,
        "BadRequest",
        "name must be provided",
    );
    let across = "/apis/example.com/v1/widgets";
    world.get(across).await.lists("a");
    world.post(across, &widget("b", json!({}))).await.is(404, "404 page not found\n");
    world.delete(across).await.is(404, "404 page not found\n");
}
