//! Definitions: create, reject, update, delete; the effect on watches and objects.

use headwater_store::Range;

use super::*;

/// S1.24, S9.1, S9.5, S9.6
#[tokio::test(start_paused = true)]
async fn a_definition_is_served_when_its_create_returns() {
    let world = World::start().await;
    let made = world.define(|_| {}).await;
    assert_eq!(made["metadata"]["generation"], 1);
    assert_eq!(made["spec"]["conversion"], json!({"strategy": "None"}));
    assert_eq!(made["spec"]["names"]["listKind"], "WidgetList");
    assert_eq!(made["spec"]["names"]["singular"], "widget");
    world.widget("a", json!({})).await;
    world.get("/apis/example.com/v1").await.is(200, r#""name":"widgets""#);
    world.get("/openapi/v3").await.is(200, r#""apis/example.com/v1""#);
    world.get("/openapi/v2").await.is(200, "com.example.v1.Widget");
    let status = world.get(&format!("{CRDS}/widgets.example.com")).await.json()["status"].clone();
    assert_eq!(status["storedVersions"], json!(["v1"]));
    assert_eq!(status["acceptedNames"]["kind"], "Widget");
    let conditions: Vec<String> = status["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| {
            format!(
                "{}={} {}",
                c["type"].as_str().unwrap(),
                c["status"].as_str().unwrap(),
                c["reason"].as_str().unwrap()
            )
        })
        .collect();
    assert_eq!(
        conditions,
        ["NamesAccepted=True NoConflicts", "Established=True InitialNamesAccepted"]
    );
}

/// S9.2
#[tokio::test(start_paused = true)]
async fn invalid_definitions_are_rejected() {
    type Change = fn(&mut Value);
    let rows: [(Change, &str); 14] = [
        (|d| d["metadata"]["name"] = "x.example.com".into(), "must be spec.names.plural"),
        (
            |d| d["spec"]["versions"][0]["storage"] = false.into(),
            "exactly one version marked as storage",
        ),
        (|d| d["spec"]["versions"] = json!([]), "exactly one version"),
        (|d| d["spec"]["scope"] = "Galaxy".into(), "Unsupported value"),
        (
            |d| {
                d["spec"]["group"] = "x.k8s.io".into();
                d["metadata"]["name"] = "widgets.x.k8s.io".into();
            },
            "api-approved.kubernetes.io",
        ),
        (|d| schema(d, 0)["type"] = "string".into(), "must be object at the root"),
        (|d| spec_fields(d)["size"]["type"] = "strange".into(), "Unsupported value"),
        (
            |d| spec_fields(d)["size"] = json!({"type": "object", "$ref": "x"}),
            "$ref is not supported",
        ),
        (|d| schema(d, 0)["additionalProperties"] = true.into(), "must not be used at the root"),
        (|d| spec_fields(d)["size"]["default"] = "x".into(), "must be of type integer"),
        (
            |d| spec_fields(d)["l"] = json!({"type": "array", "x-kubernetes-list-type": "map", "items": {"type": "object"}}),
            "x-kubernetes-list-map-keys",
        ),
        (
            |d| spec_fields(d)["colour"]["pattern"] = "(?=a)".into(),
            "must be a valid regular expression",
        ),
        (|d| spec_fields(d)["colour"]["pattern"] = "a{1001}".into(), "invalid repeat count"),
        (
            |d| {
                spec_fields(d)["size"]["x-kubernetes-validations"] =
                    json!([{"rule": "self.x != 3"}])
            },
            "does not support field selection",
        ),
    ];
    let world = World::start().await;
    for (change, why) in rows {
        let mut definition = widgets();
        change(&mut definition);
        let answer = world.post(CRDS, &definition).await;
        answer.fails(422, "Invalid", "CustomResourceDefinition.apiextensions.k8s.io");
        answer.is(422, why);
    }
    world.get(CRDS).await.lists("");
}

/// S9.3
#[tokio::test(start_paused = true)]
async fn conflicting_names_wait_until_they_are_free() {
    let world = World::with_widgets(|_| {}).await;
    let other = |definition: &mut Value| {
        definition["metadata"]["name"] = "gadgets.example.com".into();
        definition["spec"]["names"] =
            json!({"plural": "gadgets", "kind": "Gadget", "shortNames": ["wd"]});
    };
    world.define(other).await;
    let target = format!("{CRDS}/gadgets.example.com");
    let condition = |definition: &Value, at: usize| definition["status"]["conditions"][at].clone();
    let refused = world.get(&target).await.json();
    assert_eq!(condition(&refused, 0)["reason"], "ShortNamesConflict");
    assert_eq!(condition(&refused, 0)["message"], "\"wd\" is already in use");
    assert_eq!(
        (condition(&refused, 1)["status"].clone(), condition(&refused, 1)["reason"].clone()),
        (json!("False"), json!("NotAccepted"))
    );
    world.get("/apis/example.com/v1/gadgets").await.is(404, "404 page not found\n");
    world.delete(&format!("{CRDS}/widgets.example.com")).await.is(200, "");
    world.until("/apis/example.com/v1/gadgets", 200).await;
    assert_eq!(condition(&world.get(&target).await.json(), 1)["status"], "True");
}

/// S9.31, R36, B223
#[tokio::test(start_paused = true)]
async fn deleting_a_definition_deletes_its_objects_and_ends_their_watches() {
    let world = World::with_widgets(|_| {}).await;
    world.widget("a", json!({"size": 1})).await;
    world.widget("b", json!({"size": 1})).await;
    let mut all = world.watch(&format!("{WIDGETS}?watch=1")).await;
    let mut one = world.watch(&format!("{WIDGETS}?watch=1&fieldSelector=metadata.name=b")).await;
    assert_eq!(all.take(2).await, "ADDED/a ADDED/b");
    assert_eq!(one.take(1).await, "ADDED/b");
    let marked = world.delete(&format!("{CRDS}/widgets.example.com")).await;
    marked.is(200, "customresourcecleanup.apiextensions.k8s.io");
    assert_eq!(marked.json()["kind"], "CustomResourceDefinition");
    let mut seen = ends(&mut all).await;
    seen.sort();
    assert_eq!(seen, ["DELETED/a", "DELETED/b"]);
    assert_eq!(ends(&mut one).await, ["DELETED/b"]);
    world.until(WIDGETS, 404).await.is(404, "404 page not found\n");
    world.until(&format!("{CRDS}/widgets.example.com"), 404).await;
    world.get("/apis/example.com").await.is(404, "404 page not found\n");
    // Created again, it has no objects.
    world.define(|_| {}).await;
    world.get(WIDGETS).await.lists("");
}

/// S9.30
#[tokio::test(start_paused = true)]
async fn an_object_with_a_finalizer_holds_its_definition() {
    let world = World::with_widgets(|_| {}).await;
    let mut held = widget("held", json!({}));
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    world.create(WIDGETS, &held).await;
    world.widget("free", json!({})).await;
    let target = format!("{CRDS}/widgets.example.com");
    world.delete(&target).await.is(200, "InstanceDeletionPending");
    world.post(WIDGETS, &widget("new", json!({}))).await.fails(
        403,
        "Forbidden",
        r#"widgets.example.com "new" is forbidden: create not allowed while custom resource definition is terminating"#,
    );
    world.until(&format!("{WIDGETS}/free"), 404).await;
    let definition = world.get(&target).await.json();
    let conditions = definition["status"]["conditions"].as_array().unwrap();
    let terminating = conditions.iter().find(|c| c["type"] == "Terminating").unwrap();
    assert_eq!(
        (&terminating["status"], &terminating["reason"]),
        (&json!("True"), &json!("InstanceDeletionInProgress"))
    );
    // Reads and updates work until the last object is deleted.
    world.merge(&format!("{WIDGETS}/held"), &json!({"spec": {"size": 4}})).await.is(200, "");
    world
        .merge(&format!("{WIDGETS}/held"), &json!({"metadata": {"finalizers": null}}))
        .await
        .is(200, "");
    world.until(&target, 404).await;
}

/// S4.14, S9.32
#[tokio::test(start_paused = true)]
async fn a_changed_definition_ends_watches_and_they_resume_where_they_were() {
    let world = World::with_widgets(|_| {}).await;
    let made = world.widget("a", json!({"size": 1})).await;
    let mut watch = world.watch(&format!("{WIDGETS}?watch=1")).await;
    assert_eq!(watch.take(1).await, "ADDED/a");
    // A status update does not change the definition.
    world
        .merge(&format!("{CRDS}/widgets.example.com"), &json!({"metadata": {"labels": {"x": "y"}}}))
        .await
        .is(200, "");
    world.merge(&format!("{WIDGETS}/a"), &json!({"spec": {"size": 2}})).await.is(200, "");
    assert_eq!(watch.take(1).await, "MODIFIED/a");
    world.redefine(|d| spec_fields(d)["more"] = json!({"type": "string"})).await;
    assert_eq!(ends(&mut watch).await, Vec::<String>::new());
    world.widget("b", json!({"more": "x"})).await;
    let resumed = format!("{WIDGETS}?watch=1&resourceVersion={}", version(&made));
    assert_eq!(world.watch(&resumed).await.take(2).await, "MODIFIED/a ADDED/b");
}

#[tokio::test(start_paused = true)]
async fn thousands_of_watchers_end_with_their_definition() {
    let world = World::with_widgets(|_| {}).await;
    world.widget("a", json!({})).await;
    let mut watches = Vec::new();
    for index in 0..2_000 {
        let (selector, first) = match index % 2 {
            0 => ("", "ADDED/a"),
            _ => ("&labelSelector=x&allowWatchBookmarks=1", "MARK"),
        };
        let mut watch = world.watch(&format!("{WIDGETS}?watch=1{selector}")).await;
        assert_eq!(watch.take(1).await, first);
        watches.push(watch);
    }
    world.delete(&format!("{CRDS}/widgets.example.com")).await.is(200, "");
    for (index, watch) in watches.iter_mut().enumerate() {
        let expected: &[&str] = if index % 2 == 0 { &["DELETED/a"] } else { &[] };
        assert_eq!(ends(watch).await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn thousands_of_watchers_end_when_their_version_is_served_no_more() {
    const SECOND: &str = "/apis/example.com/v2/namespaces/ns/widgets";
    let world = World::with_widgets(|definition| {
        definition["spec"]["versions"] = json!([version_of("v1", true), version_of("v2", false)]);
    })
    .await;
    let made = world.widget("a", json!({})).await;
    let mut watches = Vec::new();
    for index in 0..2_000 {
        let target = if index % 2 == 0 { WIDGETS } else { SECOND };
        let mut watch = world.watch(&format!("{target}?watch=1")).await;
        assert_eq!(watch.take(1).await, "ADDED/a");
        watches.push(watch);
    }
    world.redefine(|definition| definition["spec"]["versions"][1]["served"] = false.into()).await;
    for watch in &mut watches {
        assert_eq!(ends(watch).await, Vec::<String>::new());
    }
    world.get(&format!("{SECOND}?watch=1")).await.is(404, "404 page not found\n");
    // Watches of the other version resume where they were.
    world.widget("b", json!({})).await;
    let resumed = format!("{WIDGETS}?watch=1&resourceVersion={}", version(&made));
    assert_eq!(world.watch(&resumed).await.take(1).await, "ADDED/b");
}

/// R36, B223
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_object_outlives_its_definition_however_writers_race() {
    let world = World::start().await;
    for round in 0..5 {
        world.define(|_| {}).await;
        let writes = futures::future::join_all((0..200).map(|index| {
            let body = widget(&format!("w{index}"), json!({"size": round}));
            let world = &world;
            async move { world.post(WIDGETS, &body).await.code }
        }));
        let deletion = async {
            tokio::task::yield_now().await;
            world.delete(&format!("{CRDS}/widgets.example.com")).await.is(200, "");
        };
        let (codes, ()) = futures::future::join(writes, deletion).await;
        assert!(codes.iter().all(|code| [201, 403, 404].contains(code)), "{codes:?}");
        world.until(&format!("{CRDS}/widgets.example.com"), 404).await;
        let range = Range { prefix: "/registry/example.com/".into(), ..Range::default() };
        let left = world.server.cache().store().range(range).await.unwrap().records;
        assert!(left.is_empty(), "{left:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn deleted_definitions_leave_nothing_behind() {
    let world = World::start().await;
    let before = world.server.cache().resources().len();
    for round in 0..50 {
        let group = format!("g{round}.example.com");
        let mut definition = widgets();
        definition["metadata"]["name"] = format!("widgets.{group}").into();
        definition["spec"]["group"] = group.clone().into();
        world.create(CRDS, &definition).await;
        let target = format!("/apis/{group}/v1/namespaces/ns/widgets");
        let mut body = widget("a", json!({}));
        body["apiVersion"] = format!("{group}/v1").into();
        world.create(&target, &body).await;
        let mut watch = world.watch(&format!("{target}?watch=1")).await;
        assert_eq!(watch.take(1).await, "ADDED/a");
        world.delete(&format!("{CRDS}/widgets.{group}")).await.is(200, "");
        assert_eq!(ends(&mut watch).await, ["DELETED/a"]);
        world.until(&format!("{CRDS}/widgets.{group}"), 404).await;
    }
    // The cache drops their data at its next check.
    while world.server.cache().resources().len() > before + 1 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// B219
#[tokio::test(start_paused = true)]
async fn a_large_definition_is_accepted_and_used() {
    let world = World::with_widgets(|definition| {
        let fields = spec_fields(definition).as_object_mut().unwrap();
        for index in 0..20_000 {
            fields.insert(format!("f{index}").into(), json!({"type": "string", "maxLength": 5}));
        }
    })
    .await;
    let object = world.widget("a", json!({"f19999": "x"})).await;
    assert_eq!(object["spec"]["f19999"], "x");
    world.post(WIDGETS, &widget("b", json!({"f7": "toolong"}))).await.fails(422, "Invalid", "");
}

/// A very large schema: deep, with long descriptions and nested lists.
fn deep(levels: usize, width: usize) -> Value {
    let words = "What this is for, what it may be, and what happens when it is left out. ";
    let mut fields = json!({
        "name": {"type": "string", "description": words.repeat(2), "pattern": "^[a-z][-a-z0-9]*$"},
        "limit": {
            "x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}],
            "description": words,
        },
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        "mode": {"type": "string", "enum": ["Fast", "Slow"], "default": "Fast"},
    });
    for index in 0..(if levels == 0 { 0 } else { width }) {
        let inner = deep(levels - 1, width);
        fields[format!("part{index}")] = match index % 3 {
            0 => inner,
            1 => json!({"type": "array", "items": inner}),
            _ => json!({"type": "object", "additionalProperties": inner}),
        };
    }
    json!({"type": "object", "description": words, "properties": fields})
}

#[tokio::test(start_paused = true)]
async fn a_very_large_definition_is_created_used_and_updated() {
    let world = World::start().await;
    let made = world
        .define(|definition| {
            let versions = ["v1", "v1beta1", "v1alpha1"].map(|name| {
                let mut version = version_of(name, name == "v1");
                let levels = if name == "v1" { 6 } else { 4 };
                version["schema"]["openAPIV3Schema"]["properties"]["spec"] = deep(levels, 3);
                version["subresources"] = json!({"status": {}});
                version
            });
            definition["spec"]["versions"] = versions.to_vec().into();
        })
        .await;
    assert!(made.to_string().len() > 700_000, "{}", made.to_string().len());
    let mut watch = world.watch(&format!("{WIDGETS}?watch=1&allowWatchBookmarks=1")).await;
    assert_eq!(watch.take(1).await, "MARK");
    let spec = json!({
        "name": "a", "limit": "5%", "free": {"x": [{"y": 1}]},
        "part1": [{"name": "b", "part2": {"k": {"limit": 3, "part0": {}}}}],
    });
    let object = world.widget("a", spec.clone()).await;
    assert_eq!(object["spec"]["part1"][0]["part2"]["k"]["part0"]["mode"], "Fast");
    assert_eq!(watch.take(1).await, "ADDED/a");
    let wrong = json!({"part1": [{"part2": {"k": {"part0": {"mode": "Odd", "name": "A"}}}}]});
    let status = world.post(WIDGETS, &widget("b", wrong)).await.fails(422, "Invalid", "");
    assert_eq!(status["details"]["causes"].as_array().unwrap().len(), 2);
    world
        .redefine(|definition| {
            let spec = &mut schema(definition, 0)["properties"]["spec"]["properties"];
            spec["added"] = json!({"type": "string", "default": "new"});
        })
        .await;
    assert_eq!(ends(&mut watch).await, Vec::<String>::new());
    let now = world.get(&format!("{WIDGETS}/a")).await.json();
    assert_eq!((&now["spec"]["added"], &now["spec"]["free"]), (&json!("new"), &spec["free"]));
}

/// S1.16
#[tokio::test(start_paused = true)]
async fn definitions_are_served_before_the_first_request_of_a_new_server() {
    let world = World::with_widgets(|definition| {
        definition["spec"]["versions"][0]["selectableFields"] =
            json!([{"jsonPath": ".spec.colour"}]);
    })
    .await;
    world.widget("a", json!({"size": 1})).await;
    let store = std::sync::Arc::clone(world.server.cache().store());
    let again = Api::over(store).await;
    again.get(&format!("{WIDGETS}?fieldSelector=spec.colour=blue")).await.lists("a");
}

#[tokio::test(start_paused = true)]
async fn a_definition_created_on_one_server_is_served_by_the_others() {
    let world = World::start().await;
    let store = std::sync::Arc::clone(world.server.cache().store());
    let other = World { api: Api::over(store).await };
    world.define(|_| {}).await;
    other.until(WIDGETS, 200).await;
    other.widget("a", json!({"size": 1})).await;
    world.get(WIDGETS).await.lists("a");
    world.redefine(|d| spec_fields(d)["more"] = json!({"type": "string", "default": "x"})).await;
    while other.get(&format!("{WIDGETS}/a")).await.json()["spec"]["more"] != "x" {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    world.delete(&format!("{CRDS}/widgets.example.com")).await.is(200, "");
    other.until(WIDGETS, 404).await;
    other.until(&format!("{CRDS}/widgets.example.com"), 404).await;
}

/// B225
#[tokio::test(start_paused = true)]
async fn many_definitions_are_served_side_by_side() {
    let world = World::start().await;
    for index in 0..300 {
        let mut definition = widgets();
        let group = format!("g{index}.example.com");
        definition["metadata"]["name"] = format!("widgets.{group}").into();
        definition["spec"]["group"] = group.into();
        world.create(CRDS, &definition).await;
    }
    let groups = world.get("/apis").await.json();
    let custom = groups["groups"].as_array().unwrap().iter();
    assert_eq!(custom.filter(|g| g["name"].as_str().unwrap().starts_with('g')).count(), 300);
    let store = std::sync::Arc::clone(world.server.cache().store());
    let again = Api::over(store).await;
    again.get("/apis/g299.example.com/v1/namespaces/ns/widgets").await.lists("");
}
