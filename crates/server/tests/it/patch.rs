//! PATCH: JSON patch, merge patch, and their errors (S2.18–S2.23).

use headwater_json::{Value, json};

use crate::api::{Api, CMS, DEPLOYMENTS, config_map, deployment, version};

const JSON: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";

async fn patched() -> (Api, String, Value) {
    let api = Api::start().await;
    let mut body = config_map("a");
    body["metadata"]["labels"] = json!({ "k": "v" });
    body["metadata"]["annotations"] = json!({ "a/b": "1" });
    body["data"] = json!({ "x": "1", "y": "2" });
    let made = api.create(CMS, &body).await;
    (api, format!("{CMS}/a"), made)
}

/// S2.19
#[tokio::test(start_paused = true)]
async fn a_json_patch_applies_its_operations_in_order() {
    let (api, a, _) = patched().await;
    let patch = json!([
        { "op": "test", "path": "/data/x", "value": "1" },
        { "op": "replace", "path": "/data/x", "value": "2" },
        { "op": "add", "path": "/data/z", "value": "3" },
        { "op": "remove", "path": "/metadata/labels/k" },
        { "op": "copy", "from": "/data/z", "path": "/data/copied" },
        { "op": "move", "from": "/data/y", "path": "/data/moved" },
        { "op": "replace", "path": "/metadata/annotations/a~1b", "value": "slash" },
        { "op": "replace", "path": "/data/new", "value": "4" },
        { "op": "add", "path": "/metadata/finalizers", "value": ["example.com/a"] },
        { "op": "add", "path": "/metadata/finalizers/-", "value": "example.com/c" },
        { "op": "add", "path": "/metadata/finalizers/1", "value": "example.com/b" },
    ]);
    let after = api.patch(JSON, &a, patch.to_string()).await.is(200, "").json();
    let data = json!({ "copied": "3", "moved": "2", "new": "4", "x": "2", "z": "3" });
    assert_eq!(after["data"], data);
    assert_eq!(after["metadata"]["annotations"], json!({ "a/b": "slash" }));
    let finalizers = json!(["example.com/a", "example.com/b", "example.com/c"]);
    assert_eq!(after["metadata"]["finalizers"], finalizers);
    assert!(after["metadata"].get("labels").is_none());
}

/// A value that is valid at its source may be invalid at its target: `1` is not base64.
#[tokio::test(start_paused = true)]
async fn a_value_that_a_json_patch_moves_must_be_valid_at_its_target() {
    let (api, a, made) = patched().await;
    for op in ["copy", "move"] {
        let patch = json!([{ "op": op, "from": "/data", "path": "/binaryData" }]);
        let refused = api.patch(JSON, &a, patch.to_string()).await;
        assert_eq!(refused.code, 422, "{op}: {}", refused.text());
        assert!(refused.text().contains("illegal base64 data"), "{}", refused.text());
    }
    assert_eq!(api.get(&a).await.json(), made);
}

/// S2.19
#[tokio::test(start_paused = true)]
async fn a_failing_json_patch_changes_nothing() {
    let (api, a, made) = patched().await;
    for step in [
        json!({ "op": "test", "path": "/data/x", "value": "nope" }),
        json!({ "op": "test", "path": "/data/none", "value": "1" }),
        json!({ "op": "remove", "path": "/data/none" }),
        json!({ "op": "replace", "path": "/no/such/path", "value": "1" }),
        json!({ "op": "add", "path": "/no/such/path", "value": "1" }),
        json!({ "op": "bogus", "path": "/data/x" }),
        json!({ "op": "copy", "from": "/data/none", "path": "/data/q" }),
        json!({ "op": "move", "from": "/data/none", "path": "/data/q" }),
        json!({ "op": "add", "path": "/metadata/labels/0/x", "value": "1" }),
    ] {
        let first = json!({ "op": "replace", "path": "/data/x", "value": "changed" });
        let patch = json!([first, step]).to_string();
        let message = "the server rejected our request due to an error in our request";
        api.patch(JSON, &a, patch).await.fails(422, "Invalid", message);
    }
    for body in ["{\"op\":\"x\"}", "1", "[1]", "[{", ""] {
        api.patch(JSON, &a, body).await.fails(400, "BadRequest", "");
    }
    let many = vec![json!({ "op": "test", "path": "/data/x", "value": "1" }); 10_001];
    let answer = api.patch(JSON, &a, json!(many).to_string()).await;
    answer.fails(413, "RequestEntityTooLarge", "");
    let many = vec![json!({ "op": "test", "path": "/data/x", "value": "1" }); 10_000];
    api.patch(JSON, &a, json!(many).to_string()).await.is(200, "");
    assert_eq!(api.get(&a).await.json(), made);
}

/// S2.20
#[tokio::test(start_paused = true)]
async fn a_merge_patch_sets_deletes_and_replaces() {
    let (api, a, _) = patched().await;
    let patch = json!({
        "metadata": { "labels": { "k": null, "n": "1" }, "finalizers": ["example.com/b"] },
        "data": { "y": null, "z": "3" },
    });
    let after = api.merge(&a, &patch).await.is(200, "").json();
    assert_eq!(after["data"], json!({ "x": "1", "z": "3" }));
    assert_eq!(after["metadata"]["labels"], json!({ "n": "1" }));
    assert_eq!(after["metadata"]["finalizers"], json!(["example.com/b"]));
    let missing = api.merge(&format!("{CMS}/missing"), &json!({ "data": {} })).await;
    missing.fails(404, "NotFound", "configmaps \"missing\" not found");
    for body in ["[1]", "1", "\"x\"", "{", ""] {
        api.patch(MERGE, &a, body).await.fails(400, "BadRequest", "");
    }
    assert_eq!(api.get(&a).await.json(), after);
}

/// S2.22
#[tokio::test(start_paused = true)]
async fn a_patch_may_carry_a_resource_version() {
    let (api, a, made) = patched().await;
    let at = version(&made);
    let patch = |v: &str| json!({ "metadata": { "resourceVersion": at }, "data": { "x": v } });
    api.merge(&a, &patch("2")).await.is(200, "");
    let stale = api.merge(&a, &patch("3")).await;
    stale.fails(409, "Conflict", "Operation cannot be fulfilled on configmaps \"a\": the object");
    let step = json!([{ "op": "replace", "path": "/metadata/resourceVersion", "value": at }]);
    api.patch(JSON, &a, step.to_string()).await.fails(409, "Conflict", "");
    let bad = json!({ "metadata": { "resourceVersion": "abc" } });
    api.merge(&a, &bad).await.fails(400, "BadRequest", "");
}

/// S2.23
#[tokio::test(start_paused = true)]
async fn a_patch_cannot_change_the_identity_of_an_object() {
    let (api, a, made) = patched().await;
    for (patch, code, reason) in [
        (json!({ "metadata": { "name": "b" } }), 400, "BadRequest"),
        (json!({ "metadata": { "namespace": "other" } }), 400, "BadRequest"),
        (json!({ "metadata": null }), 400, "BadRequest"),
        (json!({ "metadata": { "name": null } }), 400, "BadRequest"),
        (json!({ "kind": "Secret" }), 422, "Invalid"),
        (json!({ "apiVersion": "v2" }), 422, "Invalid"),
        (json!({ "data": { "x": 1 } }), 422, "Invalid"),
        (json!({ "data": [] }), 422, "Invalid"),
        (json!({ "metadata": { "labels": { "a b": "c" } } }), 422, "Invalid"),
    ] {
        api.merge(&a, &patch).await.fails(code, reason, "");
    }
    let message = " \"\" is invalid: patch: Invalid value: ";
    let answer = api.merge(&a, &json!({ "data": { "x": 1 } })).await;
    let status = answer.fails(422, "Invalid", message);
    assert_eq!(status["details"]["causes"][0]["field"], "patch");
    assert_eq!(api.get(&a).await.json(), made);
}

/// S2.18
#[tokio::test(start_paused = true)]
async fn unsupported_patch_types_are_rejected() {
    let (api, a, _) = patched().await;
    for kind in ["application/json", "text/plain", "application/yaml", "x"] {
        let answer = api.patch(kind, &a, "{}").await;
        answer.fails(415, "UnsupportedMediaType", "415: Unsupported Media Type");
    }
    let with_parameter = api.patch("application/merge-patch+json; charset=utf-8", &a, "{}").await;
    with_parameter.is(200, "");
}

#[tokio::test(start_paused = true)]
async fn field_validation_applies_to_patches() {
    let (api, a, _) = patched().await;
    let patch = json!({ "bogus": 1 });
    let answer = api.merge(&a, &patch).await;
    assert_eq!(answer.is(200, "").header("warning"), "299 - \"unknown field \\\"bogus\\\"\"");
    let strict = api.merge(&format!("{a}?fieldValidation=Strict"), &patch).await;
    let status = strict.fails(422, "Invalid", "");
    assert!(status["message"].as_str().unwrap().contains("unknown field \"bogus\""), "{status}");
    // The patch itself may contain duplicate keys.
    let twice = r#"{"data":{"x":"1","x":"2"}}"#;
    let answer = api.patch(MERGE, &a, twice).await;
    assert_eq!(answer.is(200, "").header("warning"), "299 - \"duplicate field \\\"data.x\\\"\"");
    let strict = api.patch(MERGE, &format!("{a}?fieldValidation=Strict"), twice).await;
    strict.fails(422, "Invalid", "");
    let answer = api.merge(&format!("{a}?force=true"), &json!({})).await;
    answer.fails(422, "Invalid", "");
}

/// S2.33
#[tokio::test(start_paused = true)]
async fn repeated_keys_of_an_apply_are_reported_with_their_lines() {
    const APPLY: &str = "application/apply-patch+yaml";
    let api = Api::start().await;
    let body =
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: twice\ndata:\n  k: '1'\n  k: '2'\n";
    let target = format!("{CMS}/twice?fieldManager=m");
    let strict = api.patch(APPLY, &format!("{target}&fieldValidation=Strict"), body).await;
    strict.fails(
        400,
        "BadRequest",
        "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  \
         line 7: key \"k\" already set in map",
    );
    let answer = api.patch(APPLY, &target, body).await;
    let warning = "299 - \"line 7: key \\\"k\\\" already set in map\"";
    assert_eq!(answer.is(201, "").header("warning"), warning);
}

/// S2.24, S2.52
#[tokio::test(start_paused = true)]
async fn a_scale_can_be_applied() {
    const APPLY: &str = "application/apply-patch+yaml";
    let api = Api::start().await;
    api.create(DEPLOYMENTS, &deployment("d")).await;
    let target = format!("{DEPLOYMENTS}/d/scale");
    let scale = |replicas: i64| {
        json!({
            "apiVersion": "autoscaling/v1", "kind": "Scale", "spec": { "replicas": replicas },
        })
        .to_string()
    };
    let one = format!("{target}?fieldManager=one&force=true");
    let after = api.patch(APPLY, &one, scale(4)).await.is(200, "").json();
    assert_eq!((&after["kind"], &after["spec"]["replicas"]), (&json!("Scale"), &json!(4)));
    let object = api.get(&format!("{DEPLOYMENTS}/d")).await.json();
    assert_eq!(object["spec"]["replicas"], 4);
    let entries = object["metadata"]["managedFields"].as_array().unwrap();
    let entry = entries.iter().find(|entry| entry["manager"] == "one").unwrap();
    assert_eq!(entry["operation"], "Apply");
    assert_eq!((&entry["subresource"], &entry["apiVersion"]), (&json!("scale"), &json!("apps/v1")));
    assert_eq!(entry["fieldsV1"], json!({ "f:spec": { "f:replicas": {} } }));
    // Another manager needs force to change it; a negative number or another type is invalid.
    let two = format!("{target}?fieldManager=two");
    api.patch(APPLY, &two, scale(5)).await.fails(409, "Conflict", "");
    api.patch(APPLY, &two, scale(4)).await.is(200, "");
    api.patch(APPLY, &one, scale(-1)).await.fails(422, "Invalid", "");
    api.patch(APPLY, &one, deployment("d").to_string()).await.fails(400, "BadRequest", "");
    let named = scale(5).replace("\"spec\"", "\"metadata\":{\"name\":\"e\"},\"spec\"");
    api.patch(APPLY, &one, named).await.fails(400, "BadRequest", "");
    assert_eq!(api.get(&target).await.json()["spec"]["replicas"], 4);
}
