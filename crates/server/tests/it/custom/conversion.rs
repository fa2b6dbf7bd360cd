//! Conversion by a real HTTPS webhook that responds correctly, slowly, incorrectly, at length or
//! not at all.

use super::*;
use crate::api::{CMS, config_map};
use crate::webhooks::{Hook, Reply, VALIDATING, allow, configure, rule};

const SECOND: &str = "/apis/example.com/v2/namespaces/ns/widgets";

/// The field names of the second version, by those of the first.
const NAMES: [(&str, &str); 3] = [("size", "height"), ("colour", "hue"), ("replicas", "count")];

/// An object converted to another version.
fn converted(object: &Value, to: &str) -> Value {
    let mut made = object.clone();
    made["apiVersion"] = to.into();
    let Some(spec) = made["spec"].as_object_mut() else { return made };
    for (first, second) in NAMES {
        let (from, to) = if to.ends_with("v2") { (first, second) } else { (second, first) };
        if let Some(value) = spec.remove(from) {
            spec.insert(to.into(), value);
        }
    }
    made
}

/// The objects of a review, converted.
fn all(review: &Value) -> Vec<Value> {
    let to = review["request"]["desiredAPIVersion"].as_str().unwrap();
    let objects = review["request"]["objects"].as_array().unwrap();
    objects.iter().map(|object| converted(object, to)).collect()
}

fn success(objects: Vec<Value>) -> Reply {
    Reply::Response(json!({"result": {"status": "Success"}, "convertedObjects": objects}))
}

async fn honest() -> Hook {
    Hook::start(|review| success(all(review))).await
}

/// The second version, with other names for the same fields.
fn second() -> Value {
    json!({
        "name": "v2", "served": true, "storage": false,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {
            "spec": {"type": "object", "properties": {
                "height": {"type": "integer", "minimum": 0, "maximum": 100},
                "hue": {"type": "string"},
                "count": {"type": "integer"},
            }},
            "status": {"type": "object", "properties": {
                "ready": {"type": "boolean"}, "replicas": {"type": "integer"},
            }},
        }}},
        "subresources": {
            "status": {},
            "scale": {"specReplicasPath": ".spec.count", "statusReplicasPath": ".status.replicas"},
        },
        "additionalPrinterColumns": [{"name": "Hue", "type": "string", "jsonPath": ".spec.hue"}],
    })
}

/// Widgets in two versions that this webhook converts.
async fn world(hook: &Hook) -> World {
    World::with_widgets(|definition| {
        let mut first = version_of("v1", true);
        first["subresources"] = second()["subresources"].clone();
        first["subresources"]["scale"]["specReplicasPath"] = ".spec.replicas".into();
        definition["spec"]["versions"] = json!([first, second()]);
        definition["spec"]["conversion"] = json!({
            "strategy": "Webhook",
            "webhook": {
                "conversionReviewVersions": ["v1"],
                "clientConfig": {
                    "url": format!("https://127.0.0.1:{}/convert", hook.port),
                    "caBundle": hook.authority,
                },
            },
        });
    })
    .await
}

fn second_widget(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "example.com/v2", "kind": "Widget", "metadata": {"name": name}, "spec": spec})
}

/// The number of objects in each call.
fn calls(hook: &Hook) -> Vec<usize> {
    let asked = hook.asked();
    asked.iter().map(|review| review["request"]["objects"].as_array().unwrap().len()).collect()
}

#[tokio::test]
async fn objects_are_read_in_every_version_and_converted_only_if_necessary() {
    let hook = honest().await;
    let world = world(&hook).await;
    let stored = world.widget("a", json!({"size": 1, "replicas": 2})).await;
    world.widget("b", json!({"size": 2})).await;
    world.get(&format!("{WIDGETS}/a")).await.is(200, r#""size":1"#);
    world.get(WIDGETS).await.lists("a b");
    assert_eq!(calls(&hook), [0; 0], "the stored version needs nobody");

    let seen = world.get(&format!("{SECOND}/a")).await.json();
    assert_eq!(seen["apiVersion"], "example.com/v2");
    assert_eq!(seen["spec"], json!({"height": 1, "hue": "blue", "count": 2}));
    for key in ["uid", "resourceVersion", "generation", "managedFields"] {
        assert_eq!(seen["metadata"][key], stored["metadata"][key], "{key}");
    }
    let [review] = &hook.asked()[..] else { panic!() };
    assert_eq!(review["apiVersion"], "apiextensions.k8s.io/v1");
    assert_eq!(review["kind"], "ConversionReview");
    assert_eq!(review["request"]["desiredAPIVersion"], "example.com/v2");
    assert_eq!(review["request"]["objects"][0]["spec"]["size"], 1);

    let list = world.get(SECOND).await.json();
    assert_eq!(list["apiVersion"], "example.com/v2");
    assert_eq!(list["items"][0], seen);
    assert_eq!(list["items"][1]["spec"], json!({"height": 2, "hue": "blue"}));
    assert_eq!(calls(&hook), [1], "what was converted a moment ago is not asked about again");
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let table = world.accept(SECOND, table).await.json();
    assert_eq!(table["columnDefinitions"][1]["name"], "Hue");
    assert_eq!(table["rows"][0]["cells"], json!(["a", "blue"]));
    let metadata = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
    let answer = world.accept(&format!("{SECOND}/a"), metadata).await;
    answer.is(200, r#""kind":"PartialObjectMetadata""#);
    assert_eq!(calls(&hook), [0; 0]);
}

#[tokio::test]
async fn writes_are_stored_in_the_storage_version_and_returned_in_the_requested_one() {
    let hook = honest().await;
    let world = world(&hook).await;
    let body = second_widget("a", json!({"height": 3, "hue": "red", "unknown": 1}));
    let made = world.create(SECOND, &body).await;
    assert_eq!(made["apiVersion"], "example.com/v2");
    assert_eq!(made["spec"], json!({"height": 3, "hue": "red"}));
    let stored = world.get(&format!("{WIDGETS}/a")).await.json();
    assert_eq!(stored["spec"], json!({"size": 3, "colour": "red"}));
    let managed = &stored["metadata"]["managedFields"][0];
    assert_eq!(managed["apiVersion"], "example.com/v2");
    assert_eq!(managed["fieldsV1"]["f:spec"]["f:height"], json!({}));

    let patch = json!({"spec": {"height": 4}});
    let patched = world.merge(&format!("{SECOND}/a"), &patch).await.json();
    assert_eq!(patched["spec"], json!({"height": 4, "hue": "red"}));
    assert_eq!(patched["metadata"]["generation"], 2);
    let mut whole = patched.clone();
    whole["spec"] = json!({"height": 5});
    world.put(&format!("{SECOND}/a"), &whole).await.is(200, r#""height":5"#);
    // It was written without a colour, for which the first version has a default.
    let stored = world.get(&format!("{WIDGETS}/a")).await.json();
    assert_eq!(stored["spec"], json!({"size": 5, "colour": "blue"}));
    // Validation errors name the fields of the version that was written.
    world.merge(&format!("{SECOND}/a"), &json!({"spec": {"height": 500}})).await.fails(
        422,
        "Invalid",
        r#"Widget.example.com "a" is invalid: spec.height: Invalid value: 500: spec.height in body should be less than or equal to 100"#,
    );
    let dry = world.merge(&format!("{SECOND}/a?dryRun=All"), &json!({"spec": {"height": 6}})).await;
    assert_eq!(dry.json()["spec"]["height"], 6);
    let body = second_widget("d", json!({"height": 7}));
    let dry = world.post(&format!("{SECOND}?dryRun=All"), &body).await;
    assert_eq!(dry.json()["spec"]["height"], 7);
    world.get(&format!("{SECOND}/a")).await.is(200, r#""height":5"#);
    world.get(WIDGETS).await.lists("a");
}

#[tokio::test]
async fn an_unchanged_write_in_any_version_stores_nothing() {
    let hook = honest().await;
    let world = world(&hook).await;
    let before = world.widget("a", json!({"size": 1})).await;
    let same = world.get(&format!("{SECOND}/a")).await.json();
    let after = world.put(&format!("{SECOND}/a"), &same).await.json();
    assert_eq!(version(&before), version(&after));
}

#[tokio::test]
async fn subresources_are_those_of_the_version() {
    let hook = honest().await;
    let world = world(&hook).await;
    world.widget("a", json!({"size": 1, "replicas": 2})).await;
    let target = format!("{SECOND}/a");
    let scale = world.get(&format!("{target}/scale")).await.json();
    assert_eq!(scale["spec"]["replicas"], 2);
    let scaled = world.merge(&format!("{target}/scale"), &json!({"spec": {"replicas": 7}})).await;
    assert_eq!(scaled.json()["spec"]["replicas"], 7);
    let status = json!({"spec": {"height": 50}, "status": {"ready": true}});
    let written = world.merge(&format!("{target}/status"), &status).await.json();
    assert_eq!(written["status"], json!({"ready": true}));
    let stored = world.get(&format!("{WIDGETS}/a")).await.json();
    assert_eq!(stored["spec"], json!({"size": 1, "colour": "blue", "replicas": 7}));
    assert_eq!(stored["status"], json!({"ready": true}));
    assert_eq!(stored["metadata"]["generation"], 2);
}

#[tokio::test]
async fn a_list_is_converted_in_few_calls() {
    let hook = honest().await;
    let world = world(&hook).await;
    for index in 0..600 {
        world.widget(&format!("w{index:03}"), json!({"size": 1})).await;
    }
    let page = world.get(&format!("{SECOND}?limit=500")).await.json();
    assert_eq!(page["items"].as_array().unwrap().len(), 500);
    assert_eq!(page["items"][499]["spec"]["height"], 1);
    assert_eq!(calls(&hook), [500]);
    let token = page["metadata"]["continue"].as_str().unwrap();
    let rest = world.get(&format!("{SECOND}?limit=500&continue={token}")).await.json();
    assert_eq!(rest["items"].as_array().unwrap().len(), 100);
    assert_eq!(calls(&hook), [100]);
    // A complete list, before anything is converted.
    world.redefine(|definition| definition["spec"]["names"]["categories"] = json!(["x"])).await;
    let items = world.get(SECOND).await.json()["items"].take();
    assert_eq!(items.as_array().unwrap().len(), 600);
    let mut asked = calls(&hook);
    asked.sort_unstable();
    assert_eq!(asked, [100, 500]);
}

#[tokio::test]
async fn a_thousand_watchers_share_one_conversion() {
    let hook = honest().await;
    let world = world(&hook).await;
    world.widget("a", json!({"size": 1})).await;
    let mut watches = Vec::new();
    for _ in 0..1000 {
        watches.push(world.watch(&format!("{SECOND}?watch=1")).await);
    }
    for watch in &mut watches {
        let event = watch.next().await.unwrap();
        assert_eq!(
            (&event["type"], &event["object"]["spec"]["height"]),
            (&json!("ADDED"), &json!(1))
        );
    }
    world.merge(&format!("{WIDGETS}/a"), &json!({"spec": {"size": 2}})).await.is(200, "");
    let events = futures::future::join_all(watches.iter_mut().map(Watch::next)).await;
    for event in events.into_iter().flatten() {
        assert_eq!(event["object"]["spec"], json!({"height": 2, "hue": "blue"}));
        assert_eq!(event["type"], "MODIFIED");
    }
    world.delete(&format!("{WIDGETS}/a")).await.is(200, "");
    let last = watches[0].next().await.unwrap();
    assert_eq!(
        (&last["type"], &last["object"]["apiVersion"]),
        (&json!("DELETED"), &json!("example.com/v2"))
    );
    assert_eq!(calls(&hook), [1, 1, 1], "one for each state of the object");
}

#[tokio::test]
async fn an_object_that_leaves_a_selection_is_sent_with_its_last_state() {
    let hook = honest().await;
    let world = world(&hook).await;
    let mut body = widget("a", json!({"size": 1}));
    body["metadata"]["labels"] = json!({"in": "yes"});
    world.create(WIDGETS, &body).await;
    let mut all = world.watch(&format!("{SECOND}?watch=1")).await;
    let mut some = world.watch(&format!("{SECOND}?watch=1&labelSelector=in%3Dyes")).await;
    all.next().await.unwrap();
    some.next().await.unwrap();
    let patch = json!({"metadata": {"labels": {"in": "no"}}, "spec": {"size": 2}});
    world.merge(&format!("{WIDGETS}/a"), &patch).await.is(200, "");
    let (changed, gone) = (all.next().await.unwrap(), some.next().await.unwrap());
    assert_eq!(
        (&changed["type"], &changed["object"]["spec"]["height"]),
        (&json!("MODIFIED"), &json!(2))
    );
    assert_eq!((&gone["type"], &gone["object"]["spec"]["height"]), (&json!("DELETED"), &json!(1)));
    assert_eq!(
        changed["object"]["metadata"]["resourceVersion"],
        gone["object"]["metadata"]["resourceVersion"]
    );
}

#[tokio::test]
async fn admission_webhooks_receive_the_version_of_their_rule() {
    let hook = honest().await;
    let world = world(&hook).await;
    let admission = Hook::start(|_| allow()).await;
    let mut webhook = admission.webhook();
    webhook["rules"] = json!([rule("*", "example.com", "widgets")]);
    webhook["rules"][0]["apiVersions"] = json!(["v2"]);
    configure(&world, VALIDATING, "hooks", json!([webhook])).await;
    world.create(SECOND, &second_widget("a", json!({"height": 3}))).await;
    world.widget("b", json!({"size": 4})).await;
    world.delete(&format!("{WIDGETS}/b")).await.is(200, "");
    let asked = admission.asked();
    let heights: Vec<&Value> = asked
        .iter()
        .map(|review| &review["request"])
        .map(|request| match request["operation"] == "DELETE" {
            true => &request["oldObject"]["spec"]["height"],
            false => &request["object"]["spec"]["height"],
        })
        .collect();
    assert_eq!(heights, [3, 4, 4]);
    assert_eq!(asked[1]["request"]["requestKind"]["version"], "v1");
    assert_eq!(asked[1]["request"]["kind"]["version"], "v2");
}

#[tokio::test]
async fn a_new_storage_version_applies_at_the_next_write() {
    let hook = honest().await;
    let world = world(&hook).await;
    world.widget("a", json!({"size": 1})).await;
    world.widget("b", json!({"size": 2})).await;
    world
        .redefine(|definition| {
            definition["spec"]["versions"][0]["storage"] = false.into();
            definition["spec"]["versions"][1]["storage"] = true.into();
        })
        .await;
    let first = world.get(&format!("{WIDGETS}/a")).await.json();
    assert_eq!(first["spec"]["size"], 1);
    assert_eq!(calls(&hook), [0; 0], "it is still stored as it was");
    let second = world.get(&format!("{SECOND}/a")).await.json();
    assert_eq!(second["spec"]["height"], 1);
    // An unchanged write stores the object in the new version.
    let written = world.put(&format!("{SECOND}/a"), &second).await.json();
    assert_ne!(version(&second), version(&written));
    let again = world.put(&format!("{SECOND}/a"), &written).await.json();
    assert_eq!(version(&again), version(&written));
    hook.asked();
    world.get(&format!("{SECOND}/a")).await.is(200, r#""height":1"#);
    assert_eq!(calls(&hook), [0; 0]);
    // One object in each version, in one list.
    let list = world.get(WIDGETS).await.json();
    assert_eq!(
        (&list["items"][0]["spec"]["size"], &list["items"][1]["spec"]["size"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(calls(&hook), [1]);
}

#[tokio::test]
async fn fields_are_selected_in_the_stored_version_only() {
    let hook = honest().await;
    let world = world(&hook).await;
    world
        .redefine(|definition| {
            for (at, path) in [(0, ".spec.colour"), (1, ".spec.hue")] {
                definition["spec"]["versions"][at]["selectableFields"] =
                    json!([{"jsonPath": path}]);
            }
        })
        .await;
    world.widget("a", json!({"colour": "red"})).await;
    world.widget("b", json!({})).await;
    world.get(&format!("{WIDGETS}?fieldSelector=spec.colour%3Dred")).await.lists("a");
    world.get(&format!("{SECOND}?fieldSelector=metadata.name%3Db")).await.lists("b");
    let message = "field label not supported: spec.hue";
    let target = format!("{SECOND}?fieldSelector=spec.hue%3Dred");
    world.get(&target).await.fails(400, "BadRequest", message);
}

#[tokio::test]
async fn a_collection_is_deleted_only_if_it_can_be_converted() {
    let hook = honest().await;
    let world = world(&hook).await;
    world.widget("a", json!({"size": 1})).await;
    world.widget("b", json!({"size": 2})).await;
    let gone = world.delete(SECOND).await.json();
    assert_eq!(gone["items"][1]["spec"]["height"], 2);
    world.get(WIDGETS).await.lists("");
    let hook = Hook::start(|_| Reply::Raw(500, Vec::new())).await;
    let other = self::world(&hook).await;
    other.widget("a", json!({"size": 1})).await;
    other.delete(SECOND).await.fails(500, "", "conversion webhook for example.com/v1, Kind=Widget");
    other.get(WIDGETS).await.lists("a");
}

#[tokio::test]
async fn invalid_conversion_responses_are_reported() {
    let lie = |change: fn(&mut Vec<Value>)| {
        move |review: &Value| {
            let mut objects = all(review);
            change(&mut objects);
            success(objects)
        }
    };
    type Lie = Box<dyn Fn(&Value) -> Reply + Send + Sync>;
    let rows: Vec<(Lie, &str)> = vec![
        (Box::new(lie(|objects| objects.clear())), "returned 0 objects, expected 1"),
        (
            Box::new(lie(|objects| objects.push(objects[0].clone()))),
            "returned 2 objects, expected 1",
        ),
        (
            Box::new(lie(|objects| objects[0]["metadata"]["name"] = "other".into())),
            "returned invalid object: must have the same name: a != other",
        ),
        (
            Box::new(lie(|objects| objects[0]["metadata"]["uid"] = "other".into())),
            "returned invalid object: must have the same UID: ",
        ),
        (
            Box::new(lie(|objects| objects[0]["apiVersion"] = "example.com/v3".into())),
            "returned invalid object at index 0: invalid groupVersion (expected example.com/v2, received example.com/v3)",
        ),
        (
            Box::new(lie(|objects| objects[0] = Value::Null)),
            "returned invalid object at index 0: invalid groupVersion",
        ),
        (
            Box::new(|_| {
                let result = json!({"status": "Failure", "message": "cannot be done"});
                Reply::Response(json!({"result": result}))
            }),
            "failed: cannot be done",
        ),
        (
            Box::new(|review| {
                let objects = all(review);
                let result = json!({"status": "Success"});
                let response = json!({"uid": "x", "result": result, "convertedObjects": objects});
                Reply::Response(response)
            }),
            "failed: expected response.uid=",
        ),
        (Box::new(|_| Reply::Raw(200, b"{}".to_vec())), "failed: expected webhook response of"),
        (Box::new(|_| Reply::Raw(200, b"?".to_vec())), "failed: the answer is not JSON"),
        (Box::new(|_| Reply::Raw(500, b"oh no".to_vec())), "failed: an error on the server"),
        (
            Box::new(|_| Reply::Raw(200, vec![b' '; 4 * 1024 * 1024])),
            "failed: the answer is larger than",
        ),
        (
            Box::new(|review| {
                let mut objects = all(review);
                let deep = "[".repeat(2000) + &"]".repeat(2000);
                objects[0]["spec"]["deep"] = "DEEP".into();
                let text = json!({
                    "apiVersion": review["apiVersion"], "kind": review["kind"],
                    "response": {
                        "uid": review["request"]["uid"], "result": {"status": "Success"},
                        "convertedObjects": objects,
                    },
                });
                Reply::Raw(200, text.to_string().replace("\"DEEP\"", &deep).into_bytes())
            }),
            "failed: the answer is not JSON",
        ),
    ];
    for (lie, message) in rows {
        let hook = Hook::start(lie).await;
        let world = world(&hook).await;
        world.widget("a", json!({"size": 1})).await;
        let message = format!("conversion webhook for example.com/v1, Kind=Widget {message}");
        world.get(&format!("{SECOND}/a")).await.fails(500, "", &message);
        world.get(SECOND).await.fails(500, "", &message);
        world.merge(&format!("{SECOND}/a"), &json!({"spec": {}})).await.fails(500, "", &message);
        let mut watch = world.watch(&format!("{SECOND}?watch=1")).await;
        let event = watch.next().await.unwrap();
        assert_eq!(event["type"], "ERROR");
        let said = event["object"]["message"].as_str().unwrap();
        assert!(said.starts_with(&message), "{said}");
        assert!(watch.next().await.is_none());
        // A create fails before anything is stored.
        let body = second_widget("b", json!({"height": 1}));
        let refused = world.post(SECOND, &body).await;
        refused.fails(500, "", "conversion webhook for example.com/v2, Kind=Widget ");
        world.get(WIDGETS).await.lists("a");
    }
}

#[tokio::test]
async fn an_unreachable_conversion_webhook_affects_only_converted_requests() {
    let hook = honest().await;
    let port = hook.port;
    let world = world(&hook).await;
    world.widget("a", json!({"size": 1})).await;
    drop(hook);
    let message = format!(
        "conversion webhook for example.com/v1, Kind=Widget failed: Post \"https://127.0.0.1:{port}/convert?timeout=30s\": "
    );
    world.get(&format!("{SECOND}/a")).await.fails(500, "", &message);
    let mut watch = world.watch(&format!("{SECOND}?watch=1")).await;
    assert_eq!(watch.next().await.unwrap()["type"], "ERROR");
    // The stored version, other kinds and deletes do not need the webhook.
    let mut stored = world.watch(&format!("{WIDGETS}?watch=1")).await;
    world.widget("b", json!({"size": 1})).await;
    assert_eq!(stored.next().await.unwrap()["object"]["metadata"]["name"], "a");
    assert_eq!(stored.next().await.unwrap()["object"]["metadata"]["name"], "b");
    world.create(CMS, &config_map("c")).await;
    world.delete(&format!("{SECOND}/a")).await.is(200, "Success");
    world.get(WIDGETS).await.lists("b");
    world.delete(&format!("{CRDS}/widgets.example.com")).await.is(200, "");
    world.until(&format!("{CRDS}/widgets.example.com"), 404).await;
    let metrics = world.get("/metrics").await.text();
    let failure = r#"apiserver_conversion_webhook_request_total{result="failure",failure_type="conversion_webhook_call_failure"}"#;
    assert!(metrics.contains(failure), "{metrics}");
}

#[tokio::test(start_paused = true)]
async fn a_conversion_webhook_times_out() {
    let hook = Hook::start(|_| Reply::Silence).await;
    let world = world(&hook).await;
    world.widget("a", json!({"size": 1})).await;
    let answer = world.get(&format!("{SECOND}/a")).await;
    let port = hook.port;
    answer.fails(
        500,
        "",
        &format!(
            "conversion webhook for example.com/v1, Kind=Widget failed: Post \"https://127.0.0.1:{port}/convert?timeout=30s\": context deadline exceeded"
        ),
    );
}

#[tokio::test]
async fn a_cancelled_caller_does_not_fail_a_shared_conversion() {
    let silent = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let is_silent = std::sync::Arc::clone(&silent);
    let hook =
        Hook::start(move |review| match is_silent.load(std::sync::atomic::Ordering::SeqCst) {
            true => Reply::Silence,
            false => success(all(review)),
        })
        .await;
    let world = world(&hook).await;
    world.widget("a", json!({"size": 1})).await;
    let target = format!("{SECOND}/a");
    {
        let waiting = world.get(&target);
        tokio::pin!(waiting);
        while hook.asked().is_empty() {
            let tick = tokio::time::sleep(Duration::from_millis(5));
            tokio::select! {
                biased;
                _ = &mut waiting => panic!("nobody answered"),
                () = tick => {}
            }
        }
    }
    silent.store(false, std::sync::atomic::Ordering::SeqCst);
    world.get(&target).await.is(200, r#""height":1"#);
}

/// Applies a configuration to the widget `a`.
async fn apply(world: &World, target: &str, query: &str, spec: Value) -> Answer {
    let version = if target == SECOND { "v2" } else { "v1" };
    let config = json!({
        "apiVersion": format!("example.com/{version}"), "kind": "Widget",
        "metadata": {"name": "a"}, "spec": spec,
    });
    let target = format!("{target}/a?{query}");
    world.patch("application/apply-patch+yaml", &target, config.to_string()).await
}

/// The manager and version of each owned field of the spec.
fn owners(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().unwrap();
    let mut owners: Vec<String> = entries
        .iter()
        .filter_map(|entry| {
            let fields = entry["fieldsV1"]["f:spec"].as_object()?;
            let names: Vec<&str> = fields.keys().map(|key| key.trim_start_matches("f:")).collect();
            let (manager, version) = (&entry["manager"], &entry["apiVersion"]);
            let version = version.as_str().unwrap().trim_start_matches("example.com/");
            Some(format!("{} {version} {}", manager.as_str().unwrap(), names.join(",")))
        })
        .collect();
    owners.sort();
    owners
}

#[tokio::test]
async fn apply_conflicts_are_detected_across_versions() {
    let hook = honest().await;
    let world = world(&hook).await;
    apply(&world, WIDGETS, "fieldManager=one", json!({"size": 1, "replicas": 3})).await.is(201, "");
    let refused = apply(&world, SECOND, "fieldManager=two", json!({"height": 2})).await;
    let message = "Apply failed with 1 conflict: conflict with \"one\": .spec.size";
    refused.fails(409, "Conflict", message);
    apply(&world, SECOND, "fieldManager=two", json!({"hue": "red"})).await.is(200, "");
    let forced = apply(&world, SECOND, "fieldManager=two&force=true", json!({"height": 2})).await;
    forced.is(200, "");
    assert_eq!(owners(&forced.json()), ["one v1 replicas", "two v2 height"]);
    // The field that `two` no longer applies is removed; the first version's default replaces it.
    let stored = world.get(&format!("{WIDGETS}/a")).await.json();
    assert_eq!(stored["spec"], json!({"size": 2, "replicas": 3, "colour": "blue"}));
    // An update in the first version takes the field from its manager in the second.
    let target = format!("{WIDGETS}/a?fieldManager=three");
    let updated = world.merge(&target, &json!({"spec": {"size": 5}})).await.json();
    assert_eq!(owners(&updated), ["one v1 replicas", "three v1 size"]);
}

#[tokio::test]
async fn an_applier_may_move_to_another_version() {
    let hook = honest().await;
    let world = world(&hook).await;
    apply(&world, WIDGETS, "fieldManager=one", json!({"size": 1, "replicas": 3})).await.is(201, "");
    let target = format!("{WIDGETS}/a?fieldManager=other");
    world.merge(&target, &json!({"spec": {"colour": "red"}})).await.is(200, "");
    let moved = apply(&world, SECOND, "fieldManager=one", json!({"height": 1})).await.json();
    assert_eq!(moved["spec"], json!({"height": 1, "hue": "red"}), "the count was one's alone");
    assert_eq!(owners(&moved), ["one v2 height", "other v1 colour"]);
    // And back, with a field that another manager wrote meanwhile in the second version.
    let target = format!("{SECOND}/a?fieldManager=third");
    world.merge(&target, &json!({"spec": {"count": 9}})).await.is(200, "");
    let back = apply(&world, WIDGETS, "fieldManager=one", json!({"size": 1})).await.json();
    assert_eq!(back["spec"], json!({"size": 1, "colour": "red", "replicas": 9}));
    assert_eq!(owners(&back), ["one v1 size", "other v1 colour", "third v2 count"]);
    // Applying the same configuration again changes nothing.
    let again = apply(&world, WIDGETS, "fieldManager=one", json!({"size": 1})).await.json();
    assert_eq!(version(&back), version(&again));
}

#[tokio::test]
async fn managers_of_a_removed_version_are_dropped() {
    let hook = honest().await;
    let world = world(&hook).await;
    apply(&world, SECOND, "fieldManager=two", json!({"height": 2})).await.is(201, "");
    let before = world.get(&format!("{WIDGETS}/a")).await.json();
    assert_eq!(owners(&before), ["two v2 height"]);
    world
        .redefine(|definition| {
            definition["spec"]["versions"].as_array_mut().unwrap().pop();
        })
        .await;
    let applied = apply(&world, WIDGETS, "fieldManager=one", json!({"size": 7})).await.json();
    assert_eq!(owners(&applied), ["one v1 size"]);
}

#[tokio::test]
async fn a_write_whose_response_cannot_be_converted_is_not_stored() {
    // It converts to the first version and not back.
    let hook = Hook::start(|review| match review["request"]["desiredAPIVersion"].as_str() {
        Some("example.com/v1") => success(all(review)),
        _ => Reply::Response(json!({"result": {"status": "Failure", "message": "no way back"}})),
    })
    .await;
    let world = world(&hook).await;
    let message = "conversion webhook for example.com/v1, Kind=Widget failed: no way back";
    let body = second_widget("a", json!({"height": 1}));
    world.post(SECOND, &body).await.fails(500, "", message);
    world.get(WIDGETS).await.lists("");
    let mut held = widget("b", json!({"size": 1}));
    held["metadata"]["finalizers"] = json!(["example.com/held"]);
    let before = world.create(WIDGETS, &held).await;
    let target = format!("{SECOND}/b");
    world.merge(&target, &json!({"spec": {"height": 2}})).await.fails(500, "", message);
    world.delete(&target).await.fails(500, "", message);
    assert_eq!(world.get(&format!("{WIDGETS}/b")).await.json(), before);
    world.delete(&format!("{WIDGETS}/b")).await.is(200, "deletionTimestamp");
}

#[tokio::test]
async fn a_webhook_may_be_a_service() {
    let hook = honest().await;
    let world = world(&hook).await;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "hook"},
        "spec": {"type": "ExternalName", "externalName": "localhost",
            "ports": [{"port": 443, "targetPort": hook.port}]},
    });
    world.create("/api/v1/namespaces/ns/services", &service).await;
    world
        .redefine(|definition| {
            let config = &mut definition["spec"]["conversion"]["webhook"]["clientConfig"];
            config.as_object_mut().unwrap().remove("url");
            config["service"] = json!({"namespace": "ns", "name": "hook", "path": "/convert"});
        })
        .await;
    world.widget("a", json!({"size": 1})).await;
    world.get(&format!("{SECOND}/a")).await.is(200, r#""height":1"#);
    let definition = world.get(&format!("{CRDS}/widgets.example.com")).await.json();
    let config = &definition["spec"]["conversion"]["webhook"]["clientConfig"];
    assert_eq!(config["service"]["port"], 443);
}
