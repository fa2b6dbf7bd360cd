//! Objects: pruning, defaults, validation, status, scale, columns, selectors.

use super::*;

/// S2.33, S9.10
#[tokio::test(start_paused = true)]
async fn unknown_fields_are_pruned_and_defaults_set_on_the_way_in() {
    let world = World::with_widgets(|_| {}).await;
    let body = widget("a", json!({"size": 1, "unknown": true}));
    let answer = world.post(WIDGETS, &body).await;
    answer.is(201, "");
    assert_eq!(answer.json()["spec"], json!({"size": 1, "colour": "blue"}));
    assert_eq!(answer.header("warning"), r#"299 - "unknown field \"spec.unknown\"""#);
    let strict = format!("{WIDGETS}?fieldValidation=Strict");
    world.post(&strict, &body).await.fails(
        400,
        "BadRequest",
        r#"Widget in version "v1" cannot be handled as a Widget: strict decoding error: unknown field "spec.unknown""#,
    );
    let patched =
        world.merge(&format!("{WIDGETS}/a"), &json!({"spec": {"colour": null, "x": 1}})).await;
    assert_eq!(patched.json()["spec"], json!({"size": 1, "colour": "blue"}));
}

/// S9.10
#[tokio::test(start_paused = true)]
async fn the_answer_to_a_write_is_what_a_read_returns() {
    let world = World::with_widgets(|definition| {
        let version = &mut definition["spec"]["versions"][0];
        version["subresources"] = json!({"status": {}});
        let mut stored = version.clone();
        version["storage"] = false.into();
        let status = |of: &str| {
            json!({"type": "object", "default": {}, "properties": {
                "phase": {"type": "string", "default": of},
            }})
        };
        version["schema"]["openAPIV3Schema"]["properties"]["status"] = status("first");
        stored["name"] = "v2".into();
        stored["storage"] = true.into();
        stored["schema"]["openAPIV3Schema"]["properties"]["status"] = status("stored");
        definition["spec"]["versions"].as_array_mut().unwrap().push(stored);
    })
    .await;
    let target = format!("{WIDGETS}/a");
    let made = world.post(WIDGETS, &widget("a", json!({"size": 1}))).await.json();
    assert_eq!(made["status"]["phase"], "stored");
    assert_eq!(world.get(&target).await.json(), made);
    let patched = world.merge(&target, &json!({"spec": {"size": 2}})).await.json();
    assert_eq!(world.get(&target).await.json(), patched);
    let apply = format!("{WIDGETS}/b?fieldManager=m");
    let body = widget("b", json!({"size": 1})).to_string();
    let applied = world.patch("application/apply-patch+yaml", &apply, body).await.json();
    assert_eq!(applied["status"]["phase"], "stored");
    assert_eq!(world.get(&format!("{WIDGETS}/b")).await.json(), applied);
    let dry = format!("{WIDGETS}?dryRun=All");
    let dry = world.post(&dry, &widget("c", json!({}))).await.json();
    assert_eq!(dry["status"]["phase"], "stored");
}

#[tokio::test(start_paused = true)]
async fn new_finalizers_without_a_domain_get_a_warning() {
    let world = World::with_widgets(|_| {}).await;
    let mut body = widget("a", json!({}));
    body["metadata"]["finalizers"] = json!(["cleanup", "example.com/good", "orphan"]);
    let answer = world.post(WIDGETS, &body).await;
    let why = "metadata.finalizers: \\\"cleanup\\\": prefer a domain-qualified finalizer name including a \
               path (/) to avoid accidental conflicts with other finalizer writers";
    assert_eq!(answer.is(201, "").header("warning"), format!("299 - \"{why}\""));
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    let answer = world.merge(&format!("{WIDGETS}/a"), &labels).await;
    assert_eq!(answer.is(200, "").header("warning"), "");
}

/// S1.42, S9.11
#[tokio::test(start_paused = true)]
async fn all_violations_are_reported_with_their_fields() {
    let world = World::with_widgets(|_| {}).await;
    let answer = world.post(WIDGETS, &widget("a", json!({"size": 1000, "colour": 5}))).await;
    let status = answer.fails(422, "Invalid", r#"Widget.example.com "a" is invalid: ["#);
    let mut causes: Vec<String> = status["details"]["causes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cause| {
            format!(
                "{} {}: {}",
                cause["reason"].as_str().unwrap(),
                cause["field"].as_str().unwrap(),
                cause["message"].as_str().unwrap()
            )
        })
        .collect();
    causes.sort();
    assert_eq!(
        causes,
        [
            "FieldValueInvalid spec.size: Invalid value: 1000: spec.size in body should be less than or equal to 100",
            "FieldValueTypeInvalid spec.colour: Invalid value: \"integer\": spec.colour in body must be of type string: \"integer\"",
        ]
    );
}

/// S2.6
#[tokio::test(start_paused = true)]
async fn an_object_must_name_its_kind_and_version() {
    let world = World::with_widgets(|_| {}).await;
    let with = |key: &str, value: Value| {
        let mut body = widget("a", json!({}));
        body[key] = value;
        body
    };
    let status = world.post(WIDGETS, &with("kind", "Other".into())).await;
    let status = status.fails(
        422,
        "Invalid",
        r#"Other.example.com "a" is invalid: kind: Invalid value: "Other": must be Widget"#,
    );
    assert_eq!(status["details"]["kind"], "Other");
    world.post(WIDGETS, &with("kind", Value::Null)).await.fails(400, "BadRequest", "");
    world.post(WIDGETS, &with("apiVersion", "apps/v1".into())).await.fails(
        400,
        "BadRequest",
        "the API version in the data (apps/v1) does not match the expected API version (example.com/v1)",
    );
    for (field, value) in [("size", json!(1.5)), ("size", json!(9_223_372_036_854_775_808_u64))] {
        let body = widget("a", json!({field: value}));
        world.post(WIDGETS, &body).await.fails(422, "Invalid", "");
    }
}

/// S2.16, S9.14
#[tokio::test(start_paused = true)]
async fn an_update_needs_a_version_and_strategic_merge_is_not_served() {
    let world = World::with_widgets(|_| {}).await;
    world.widget("a", json!({"size": 1})).await;
    let target = format!("{WIDGETS}/a");
    world.put(&target, &widget("a", json!({}))).await.fails(
        422,
        "Invalid",
        r#"widgets.example.com "a" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update"#,
    );
    world.patch("application/strategic-merge-patch+json", &target, "{}").await.fails(
        415,
        "UnsupportedMediaType",
        "the body of the request was in an unknown format",
    );
}

/// S1.5, S2.51, S9.20
#[tokio::test(start_paused = true)]
async fn the_status_subresource_is_separate_and_generation_follows_the_spec() {
    let world = World::with_widgets(|definition| {
        definition["spec"]["versions"][0]["subresources"] = json!({"status": {}});
    })
    .await;
    let mut body = widget("a", json!({"size": 1}));
    body["status"] = json!({"ready": true});
    let made = world.create(WIDGETS, &body).await;
    assert_eq!((&made["status"], &made["metadata"]["generation"]), (&Value::Null, &json!(1)));
    let target = format!("{WIDGETS}/a");
    let door = format!("{target}/status");
    let steps = [
        (&target, json!({"metadata": {"labels": {"x": "y"}}}), 1, 1, Value::Null),
        (&target, json!({"spec": {"size": 2}, "status": {"ready": true}}), 2, 2, Value::Null),
        (
            &door,
            json!({"spec": {"size": 9}, "status": {"ready": true}}),
            2,
            2,
            json!({"ready": true}),
        ),
        (&door, json!({"metadata": {"labels": {"x": "z"}}}), 2, 2, json!({"ready": true})),
    ];
    for (target, patch, size, generation, status) in steps {
        let now = world.merge(target, &patch).await.json();
        assert_eq!(now["spec"]["size"], size, "{patch}");
        assert_eq!(now["metadata"]["generation"], generation, "{patch}");
        assert_eq!(now["status"], status, "{patch}");
        assert_eq!(now["metadata"]["labels"], json!({"x": "y"}), "{patch}");
    }
    let wrong = world.merge(&door, &json!({"status": {"ready": "no"}})).await;
    wrong.fails(422, "Invalid", r#"Widget.example.com "a" is invalid: status.ready: Invalid value: "string": ready in body must be of type boolean: "string""#);
    world.get(&format!("{target}/scale")).await.fails(
        404,
        "NotFound",
        r#"widgets.example.com "a" not found"#,
    );
}

/// S9.20
#[tokio::test(start_paused = true)]
async fn without_a_status_subresource_status_is_an_ordinary_field() {
    let world = World::with_widgets(|_| {}).await;
    world.widget("a", json!({"size": 1})).await;
    let now =
        world.merge(&format!("{WIDGETS}/a"), &json!({"status": {"ready": true}})).await.json();
    assert_eq!(
        (&now["status"]["ready"], &now["metadata"]["generation"]),
        (&json!(true), &json!(2))
    );
    world.get(&format!("{WIDGETS}/a/status")).await.fails(
        404,
        "NotFound",
        r#"widgets.example.com "a" not found"#,
    );
}

/// S2.52, S9.21
#[tokio::test(start_paused = true)]
async fn scale_uses_the_paths_of_the_definition() {
    let world = World::with_widgets(|definition| {
        definition["spec"]["versions"][0]["subresources"] = json!({"status": {}, "scale": {
            "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }});
    })
    .await;
    world.widget("a", json!({"size": 1})).await;
    let target = format!("{WIDGETS}/a/scale");
    world.get(&target).await.fails(
        500,
        "InternalError",
        r#"Internal error occurred: the spec replicas field ".spec.replicas" does not exist"#,
    );
    world.merge(&target, &json!({"metadata": {}})).await.fails(
        400,
        "BadRequest",
        r#"the spec replicas field ".spec.replicas" cannot be empty"#,
    );
    world.merge(&target, &json!({"spec": {"replicas": 3}})).await.is(200, "");
    world
        .merge(
            &format!("{WIDGETS}/a/status"),
            &json!({"status": {"replicas": 2, "selector": "a=b"}}),
        )
        .await
        .is(200, "");
    let scale = world.get(&target).await.json();
    assert_eq!(scale["kind"], "Scale");
    assert_eq!(
        (&scale["spec"], &scale["status"]),
        (&json!({"replicas": 3}), &json!({"replicas": 2, "selector": "a=b"}))
    );
    let put = json!({"metadata": {"name": "a", "namespace": "ns"}, "spec": {"replicas": 5}});
    world.put(&target, &put).await.is(200, r#""replicas":5"#);
    let object = world.get(&format!("{WIDGETS}/a")).await.json();
    assert_eq!(
        (&object["spec"]["replicas"], &object["metadata"]["generation"]),
        (&json!(5), &json!(3))
    );
    world.merge(&target, &json!({"spec": {"replicas": -1}})).await.fails(422, "Invalid", "");
    let huge = json!({"spec": {"replicas": 2_147_483_648_i64}});
    world.merge(&format!("{WIDGETS}/a"), &huge).await.fails(
        422,
        "Invalid",
        r#"Widget.example.com "a" is invalid: .spec.replicas: Invalid value: 2147483648: should be less than or equal to 2147483647"#,
    );
}

/// S9.22, S9.23
#[tokio::test(start_paused = true)]
async fn tables_have_the_columns_of_the_definition() {
    const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";
    let headings = |table: &Value| -> Vec<String> {
        let columns = table["columnDefinitions"].as_array().unwrap();
        columns
            .iter()
            .map(|column| {
                format!("{} {}", column["name"].as_str().unwrap(), column["type"].as_str().unwrap())
            })
            .collect()
    };
    let world = World::with_widgets(|_| {}).await;
    world.widget("a", json!({"size": 3})).await;
    let table = world.accept(WIDGETS, TABLE).await.json();
    assert_eq!(headings(&table), ["Name string", "Age date"]);
    world
        .redefine(|definition| {
            definition["spec"]["versions"][0]["additionalPrinterColumns"] = json!([
                {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
                {"name": "Missing", "type": "string", "jsonPath": ".spec.missing", "priority": 1},
            ]);
        })
        .await;
    let table = world.accept(WIDGETS, TABLE).await.json();
    assert_eq!(headings(&table), ["Name string", "Size integer", "Missing string"]);
    assert_eq!(table["rows"][0]["cells"], json!(["a", 3, null]));
}

/// S9.24
#[tokio::test(start_paused = true)]
async fn selectable_fields_work_and_include_defaults() {
    let world = World::with_widgets(|definition| {
        definition["spec"]["versions"][0]["selectableFields"] =
            json!([{"jsonPath": ".spec.colour"}, {"jsonPath": ".spec.size"}]);
    })
    .await;
    world.widget("a", json!({"size": 1})).await;
    world.widget("b", json!({"size": 2, "colour": "red"})).await;
    world.widget("c", json!({})).await;
    for (selector, expected) in [
        ("spec.colour=blue", "a c"),
        ("spec.colour!=blue", "b"),
        ("spec.size=2", "b"),
        ("spec.size=", "c"),
        ("spec.size=1,spec.colour=blue", "a"),
        ("metadata.name=c", "c"),
    ] {
        world.get(&format!("{WIDGETS}?fieldSelector={selector}")).await.lists(expected);
    }
    world.get(&format!("{WIDGETS}?fieldSelector=spec.replicas=1")).await.fails(
        400,
        "BadRequest",
        "field label not supported: spec.replicas",
    );
    let mut watch = world.watch(&format!("{WIDGETS}?watch=1&fieldSelector=spec.colour=red")).await;
    assert_eq!(watch.take(1).await, "ADDED/b");
    world.merge(&format!("{WIDGETS}/a"), &json!({"spec": {"colour": "red"}})).await.is(200, "");
    world.merge(&format!("{WIDGETS}/b"), &json!({"spec": {"colour": null}})).await.is(200, "");
    assert_eq!(watch.take(2).await, "ADDED/a DELETED/b");
    world.delete(&format!("{WIDGETS}?fieldSelector=spec.colour=blue")).await.is(200, "");
    world.get(WIDGETS).await.lists("a");
}

/// S9.10
#[tokio::test(start_paused = true)]
async fn stored_objects_are_read_with_the_current_schema() {
    let world = World::with_widgets(|definition| {
        spec_fields(definition)["old"] = json!({"type": "string"});
    })
    .await;
    world.widget("a", json!({"size": 1, "old": "kept"})).await;
    let version_before = version(&world.get(&format!("{WIDGETS}/a")).await.json());
    world
        .redefine(|definition| {
            let fields = spec_fields(definition).as_object_mut().unwrap();
            fields.remove("old");
            fields.insert("shape".into(), json!({"type": "string", "default": "round"}));
        })
        .await;
    let expected = json!({"size": 1, "colour": "blue", "shape": "round"});
    let object = world.get(&format!("{WIDGETS}/a")).await.json();
    assert_eq!(object["spec"], expected);
    assert_eq!(version(&object), version_before, "a read changes nothing");
    assert_eq!(world.get(WIDGETS).await.json()["items"][0]["spec"], expected);
    let mut watch = world.watch(&format!("{WIDGETS}?watch=1")).await;
    assert_eq!(watch.next().await.unwrap()["object"]["spec"], expected);
    // A pruned field is still stored, and reappears when the schema has it again.
    world.redefine(|definition| spec_fields(definition)["old"] = json!({"type": "string"})).await;
    assert_eq!(world.get(&format!("{WIDGETS}/a")).await.json()["spec"]["old"], "kept");
}

#[tokio::test(start_paused = true)]
async fn an_update_without_changes_still_stores_the_current_schema() {
    let world = World::with_widgets(|_| {}).await;
    world.widget("a", json!({"size": 1})).await;
    world.widget("b", json!({"size": 1})).await;
    world
        .redefine(|d| spec_fields(d)["shape"] = json!({"type": "string", "default": "round"}))
        .await;
    let target = format!("{WIDGETS}/a");
    let read = world.get(&target).await.json();
    let written = world.put(&target, &read).await.json();
    assert_ne!(version(&read), version(&written));
    // The second update changes nothing.
    let again = world.put(&target, &written).await.json();
    assert_eq!(version(&again), version(&written));
}

/// S9.15
#[tokio::test(start_paused = true)]
async fn ratcheting_skips_unchanged_values_under_a_stricter_schema() {
    let world = World::with_widgets(|_| {}).await;
    world.widget("a", json!({"size": 50})).await;
    world.redefine(|definition| spec_fields(definition)["size"]["maximum"] = json!(10)).await;
    let target = format!("{WIDGETS}/a");
    world.merge(&target, &json!({"spec": {"colour": "red"}})).await.is(200, "");
    world.merge(&target, &json!({"spec": {"size": 51}})).await.fails(422, "Invalid", "");
    world.merge(&target, &json!({"spec": {"size": 5}})).await.is(200, "");
}

/// S1.43, S2.25, S9.16
#[tokio::test(start_paused = true)]
async fn apply_uses_list_types_of_the_schema_and_owns_no_defaults() {
    let world = World::with_widgets(|definition| {
        spec_fields(definition)["parts"] = json!({
            "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "required": ["name"], "properties": {
                "name": {"type": "string"}, "count": {"type": "integer"},
            }},
        });
    })
    .await;
    let apply = async |manager: &str, spec: Value| {
        let target = format!("{WIDGETS}/a?fieldManager={manager}");
        let body = widget("a", spec).to_string();
        world.patch("application/apply-patch+yaml", &target, body).await
    };
    apply("one", json!({"parts": [{"name": "x", "count": 1}]})).await.is(201, "");
    let both = apply("two", json!({"colour": "red", "parts": [{"name": "y", "count": 2}]})).await;
    let names = |answer: &Answer| {
        let parts = answer.json()["spec"]["parts"].as_array().cloned().unwrap_or_default();
        parts.iter().map(|part| part["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&both), ["x", "y"]);
    apply("one", json!({"parts": [{"name": "y", "count": 3}]})).await.fails(
        409,
        "Conflict",
        "Apply failed with 1 conflict",
    );
    assert_eq!(names(&apply("one", json!({})).await), ["y"]);
    // Of a list whose last element a manager no longer applies, null remains; it is not a list.
    apply("two", json!({})).await.is(422, "must be of type object: \\\"null\\\"");
    apply("one", json!({"unknown": 1})).await.is(400, "field not declared in schema");
}

/// S2.24: a null takes the form of the value that it replaces.
#[tokio::test(start_paused = true)]
async fn a_free_value_that_a_manager_empties_conflicts_with_nobody() {
    let world = World::with_widgets(|definition| {
        spec_fields(definition)["any"] =
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    })
    .await;
    let apply = async |manager: &str, spec: Value| {
        let target = format!("{WIDGETS}/a?fieldManager={manager}");
        let body = widget("a", spec).to_string();
        world.patch("application/apply-patch+yaml", &target, body).await
    };
    apply("one", json!({"any": {"p": {"q": 1}}})).await.is(201, "");
    apply("two&force=true", json!({"any": {"p": {"q": 2}}})).await.is(200, "");
    let emptied = apply("two", json!({"colour": "red"})).await;
    assert_eq!(emptied.is(200, "").json()["spec"]["any"], json!({"p": null}));
}

/// S9.13
#[tokio::test(start_paused = true)]
async fn sets_and_maps_reject_duplicates() {
    let world = World::with_widgets(|definition| {
        spec_fields(definition)["tags"] =
            json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}});
    })
    .await;
    world.post(WIDGETS, &widget("a", json!({"tags": ["x", "x"]}))).await.fails(
        422,
        "Invalid",
        r#"Widget.example.com "a" is invalid: spec.tags[1]: Duplicate value: "x""#,
    );
}

/// S3.21, S9.27
#[tokio::test(start_paused = true)]
async fn a_complete_list_has_an_empty_continue_field() {
    let world = World::with_widgets(|_| {}).await;
    for name in ["a", "b", "c"] {
        world.widget(name, json!({})).await;
    }
    let list = world.get(WIDGETS).await.json();
    assert_eq!(list["metadata"]["continue"], "");
    assert_eq!(
        (&list["kind"], &list["items"][0]["kind"]),
        (&json!("WidgetList"), &json!("Widget"))
    );
    let page = world.get(&format!("{WIDGETS}?limit=2")).await;
    let rest = world.get(&format!("{WIDGETS}?limit=2&continue={}", page.token())).await;
    rest.lists("c");
    assert_eq!(rest.json()["metadata"]["continue"], "");
}

#[tokio::test(start_paused = true)]
async fn a_nested_pattern_runs_in_linear_time() {
    let world = World::with_widgets(|definition| {
        spec_fields(definition)["text"] = json!({"type": "string", "pattern": "^(a+)+$"});
    })
    .await;
    world.widget("a", json!({"text": "a".repeat(100_000)})).await;
    let body = widget("b", json!({"text": format!("{}b", "a".repeat(100_000))}));
    world.post(WIDGETS, &body).await.fails(422, "Invalid", "");
}
