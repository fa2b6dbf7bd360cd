//! POST: defaults, rejections, warnings (S2.1–S2.9, S2.30, S2.33).

use headwater_json::{Value, json};

use crate::api::{Api, CMS, DEPLOYMENTS, NOW, PODS, config_map, deployment, pod, version};

/// S2.1, S3.1
#[tokio::test(start_paused = true)]
async fn a_create_returns_the_stored_object() {
    let api = Api::start().await;
    let before: u64 = api.get(CMS).await.version().parse().unwrap();
    let made = api.create(CMS, &json!({ "metadata": { "name": "a" }, "data": { "x": "1" } })).await;
    assert_eq!((&made["kind"], &made["apiVersion"]), (&json!("ConfigMap"), &json!("v1")));
    assert_eq!(made["metadata"]["namespace"], "ns");
    assert_eq!(made["metadata"]["creationTimestamp"], NOW);
    assert_eq!(made["metadata"]["uid"].as_str().unwrap().len(), 36);
    assert_eq!(version(&made).parse::<u64>().unwrap(), before + 1);
    assert_eq!(api.get(&format!("{CMS}/a")).await.json(), made);
}

/// S1.41, S2.3
#[tokio::test(start_paused = true)]
async fn creating_an_existing_name_is_a_conflict() {
    let api = Api::start().await;
    let mut held = config_map("a");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    api.create(CMS, &held).await;
    let taken = "configmaps \"a\" already exists";
    let status = api.post(CMS, &config_map("a")).await.fails(409, "AlreadyExists", taken);
    assert_eq!(status["details"], json!({ "name": "a", "kind": "configmaps" }));
    api.delete(&format!("{CMS}/a")).await.is(200, "");
    let leaving = format!("object is being deleted: {taken}");
    api.post(CMS, &config_map("a")).await.fails(409, "AlreadyExists", &leaving);
    api.post(&format!("{CMS}?dryRun=All"), &config_map("a")).await.fails(409, "AlreadyExists", "");
    api.create(DEPLOYMENTS, &deployment("d")).await;
    let answer = api.post(DEPLOYMENTS, &deployment("d")).await;
    let status = answer.fails(409, "AlreadyExists", "deployments.apps \"d\" already exists");
    assert_eq!(status["details"], json!({ "name": "d", "group": "apps", "kind": "deployments" }));
}

/// S2.4
#[tokio::test(start_paused = true)]
async fn names_are_generated_within_63_letters() {
    let api = Api::start().await;
    for prefix in ["gen-", &"x".repeat(63), &"y".repeat(80)] {
        let made = api.create(CMS, &json!({ "metadata": { "generateName": prefix } })).await;
        let name = made["metadata"]["name"].as_str().unwrap();
        assert_eq!(name.len(), (prefix.len() + 5).min(63), "{name}");
        let (kept, suffix) = name.split_at(name.len() - 5);
        assert!(prefix.starts_with(kept));
        assert!(suffix.chars().all(|c| "bcdfghjklmnpqrstvwxz2456789".contains(c)), "{name}");
        assert_eq!(made["metadata"]["generateName"], prefix);
    }
    // A given name takes precedence.
    let both = json!({ "metadata": { "name": "own", "generateName": "gen-" } });
    assert_eq!(api.create(CMS, &both).await["metadata"]["name"], "own");
}

/// S1.41, S1.42, S2.5
#[tokio::test(start_paused = true)]
async fn bad_names_are_invalid() {
    let api = Api::start().await;
    let long = "a".repeat(254);
    for name in [
        "A",
        "-a",
        "a-",
        "a..b",
        "a/b",
        ".",
        "..",
        "é",
        "ａ",
        "\u{200f}a",
        "a\0",
        "a b",
        "a_b",
        "a%b",
        &long,
    ] {
        let status = api.post(CMS, &config_map(name)).await.fails(422, "Invalid", "");
        let cause = &status["details"]["causes"][0];
        assert_eq!(cause["field"], "metadata.name", "{name}");
        assert_eq!(cause["reason"], "FieldValueInvalid", "{name}");
        assert_eq!(status["details"]["kind"], "ConfigMap");
    }
    api.create(CMS, &config_map(&"a".repeat(253))).await;
    let bad = "ConfigMap \"Bad_Name\" is invalid: metadata.name: Invalid value: \"Bad_Name\": \
               a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, \
               '-' or '.', and must start and end with an alphanumeric character (e.g. \
               'example.com', regex used for validation is \
               '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    api.post(CMS, &config_map("Bad_Name")).await.fails(422, "Invalid", bad);
    for body in [json!({}), json!({ "metadata": {} }), Value::Null] {
        let answer = api.post(CMS, &body).await;
        let message = "ConfigMap \"\" is invalid: metadata.name: Required value: \
                       name or generateName is required";
        let status = answer.fails(422, "Invalid", message);
        assert_eq!(status["details"]["causes"][0]["reason"], "FieldValueRequired");
    }
    for prefix in ["A", "-a", "a_b"] {
        let body = json!({ "metadata": { "generateName": prefix } });
        let status = api.post(CMS, &body).await.fails(422, "Invalid", "");
        assert_eq!(status["details"]["causes"][0]["field"], "metadata.generateName");
    }
    // Names of namespaces and services are DNS labels: shorter and without dots.
    for name in ["a.b", &"a".repeat(64)] {
        let body = json!({ "metadata": { "name": name } });
        api.post("/api/v1/namespaces", &body).await.fails(422, "Invalid", "Namespace ");
    }
}

/// S2.5, S2.9
#[tokio::test(start_paused = true)]
async fn bad_metadata_is_invalid() {
    let api = Api::start().await;
    let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u" });
    let mut controller = owner.clone();
    controller["controller"] = true.into();
    let mut second = controller.clone();
    second["uid"] = "v".into();
    for (metadata, field) in [
        (json!({ "labels": { "a b": "c" } }), "metadata.labels"),
        (json!({ "labels": { "a": "b c" } }), "metadata.labels"),
        (json!({ "labels": { "a": "-b" } }), "metadata.labels"),
        (json!({ "labels": { "a": "x".repeat(64) } }), "metadata.labels"),
        (json!({ "labels": { "x".repeat(64): "a" } }), "metadata.labels"),
        (json!({ "labels": { format!("{}/a", "x".repeat(254)): "a" } }), "metadata.labels"),
        (json!({ "labels": { "UPPER/a": "a" } }), "metadata.labels"),
        (json!({ "annotations": { "a b": "c" } }), "metadata.annotations"),
        (json!({ "annotations": { "a": "x".repeat(256 * 1024) } }), "metadata.annotations"),
        (json!({ "finalizers": ["nodomain"] }), "metadata.finalizers"),
        (json!({ "finalizers": ["a b/c"] }), "metadata.finalizers"),
        (json!({ "ownerReferences": [{}] }), "metadata.ownerReferences"),
        (json!({ "ownerReferences": [controller, second] }), "metadata.ownerReferences"),
    ] {
        let mut body = json!({ "metadata": metadata });
        body["metadata"]["name"] = "a".into();
        let status = api.post(CMS, &body).await.fails(422, "Invalid", "ConfigMap \"a\" is invalid");
        let causes = status["details"]["causes"].as_array().unwrap();
        assert!(
            causes.iter().all(|cause| cause["field"].as_str().unwrap().starts_with(field)),
            "{field}: {causes:?}"
        );
    }
    for metadata in [
        json!({ "labels": { "example.com/a": "", "a": "b.c_d-E" } }),
        json!({ "annotations": { "example.com/A": "anything at all ✓" } }),
        json!({ "finalizers": ["example.com/x", "orphan", "kubernetes"] }),
        json!({ "ownerReferences": [owner] }),
    ] {
        let mut body = json!({ "metadata": metadata });
        body["metadata"]["generateName"] = "ok-".into();
        api.create(CMS, &body).await;
    }
}

/// S1.44, S2.9
#[tokio::test(start_paused = true)]
async fn an_owner_named_twice_is_kept_once_with_a_warning() {
    let api = Api::start().await;
    let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u" });
    let mut body = config_map("a");
    body["metadata"]["ownerReferences"] = json!([owner, owner]);
    let answer = api.post(CMS, &body).await;
    answer.is(201, "");
    assert_eq!(answer.json()["metadata"]["ownerReferences"], json!([owner]));
    let warning = answer.header("warning");
    assert!(
        warning.starts_with("299 - \".metadata.ownerReferences contains duplicate entries"),
        "{warning}"
    );
}

/// S1.43, S2.2
#[tokio::test(start_paused = true)]
async fn server_owned_fields_cannot_be_set() {
    let api = Api::start().await;
    let metadata = json!({
        "name": "a", "uid": "11111111-1111-1111-1111-111111111111", "selfLink": "/x",
        "creationTimestamp": "2001-01-01T00:00:00Z", "deletionTimestamp": "2001-01-01T00:00:00Z",
        "deletionGracePeriodSeconds": 5, "generation": 7,
    });
    let made = api.create(CMS, &json!({ "metadata": metadata })).await;
    let metadata = &made["metadata"];
    assert_ne!(metadata["uid"], "11111111-1111-1111-1111-111111111111");
    assert_eq!(metadata["creationTimestamp"], NOW);
    for key in ["selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        assert!(metadata.get(key).is_none(), "{key}");
    }
    // A kind without generations keeps the given value; others start at 1.
    assert_eq!(metadata["generation"], 7);
    let mut body = deployment("d");
    body["metadata"]["generation"] = 7.into();
    body["status"] = json!({ "replicas": 9 });
    let made = api.create(DEPLOYMENTS, &body).await;
    assert_eq!(made["metadata"]["generation"], 1);
    assert_eq!(made["status"], json!({}));
    // Zero is not a version.
    let mut body = config_map("zero");
    body["metadata"]["resourceVersion"] = "0".into();
    api.create(CMS, &body).await;
    // kube-apiserver replies with 500 here; it is a client error (docs/wire.md).
    let mut body = config_map("b");
    body["metadata"]["resourceVersion"] = "5".into();
    let message = "resourceVersion should not be set on objects to be created";
    api.post(CMS, &body).await.fails(400, "BadRequest", message);
    // It is checked last, and a failed create is never stored.
    api.post(&format!("{CMS}?dryRun=All"), &body).await.is(201, "");
    api.get(&format!("{CMS}/b")).await.is(404, "");
    body["metadata"]["name"] = "No".into();
    api.post(CMS, &body).await.fails(422, "Invalid", "");
}

/// S2.6
#[tokio::test(start_paused = true)]
async fn an_object_of_another_kind_or_namespace_is_rejected() {
    let api = Api::start().await;
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "a" } });
    let newer = json!({ "apiVersion": "v2", "kind": "ConfigMap", "metadata": { "name": "a" } });
    for body in [secret, newer, json!({ "kind": 1, "metadata": { "name": "a" } })] {
        api.post(CMS, &body).await.fails(400, "BadRequest", "");
    }
    let mut body = config_map("a");
    body["metadata"]["namespace"] = "other".into();
    let message =
        "the namespace of the provided object does not match the namespace sent on the request";
    api.post(CMS, &body).await.fails(400, "BadRequest", message);
    // Both may be omitted; a namespace of a cluster-scoped object is dropped.
    api.create(CMS, &json!({ "metadata": { "name": "a" } })).await;
    api.create(CMS, &json!({ "kind": "ConfigMap", "metadata": { "name": "b" } })).await;
    let body = json!({ "metadata": { "name": "placed", "namespace": "ns" } });
    let made = api.create("/api/v1/namespaces", &body).await;
    assert!(made["metadata"].get("namespace").is_none());
}

/// S1.32, S2.7
#[tokio::test(start_paused = true)]
async fn an_invalid_body_is_rejected() {
    let api = Api::start().await;
    for body in
        ["", "{not json", "[]", "\"x\"", "1", "{\"metadata\":", "{}{}", "{} x", "\u{feff}{}"]
    {
        let answer = api.send(&format!("POST {CMS}"), body.to_owned()).await;
        answer.fails(400, "BadRequest", "");
    }
    for content_type in ["text/plain", "multipart/form-data", "x", "application/xml"] {
        let answer = api.send(&format!("POST {CMS}\nContent-Type: {content_type}"), "{}").await;
        let message = "the body of the request was in an unknown format - accepted media types \
                       include: application/json, application/yaml, \
                       application/vnd.kubernetes.protobuf";
        answer.fails(415, "UnsupportedMediaType", message);
    }
    let yaml = "metadata:\n  name: yes-1\ndata:\n  a: \"on\"\n";
    let answer = api.send(&format!("POST {CMS}\nContent-Type: application/yaml"), yaml).await;
    assert_eq!(answer.is(201, "").json()["data"]["a"], "on");
    // YAML 1.1: a bare `on` is a boolean, not a string.
    let yaml = "metadata:\n  name: other\ndata:\n  a: on\n";
    let answer = api.send(&format!("POST {CMS}\nContent-Type: application/yaml"), yaml).await;
    answer.fails(400, "BadRequest", "");
}

/// S2.8
#[tokio::test(start_paused = true)]
async fn the_namespace_must_exist() {
    let api = Api::start().await;
    let answer = api.post("/api/v1/namespaces/nowhere/configmaps", &config_map("a")).await;
    let status = answer.fails(404, "NotFound", "namespaces \"nowhere\" not found");
    assert_eq!(status["details"], json!({ "name": "nowhere", "kind": "namespaces" }));
    // A namespace that was just created exists.
    api.create("/api/v1/namespaces", &json!({ "metadata": { "name": "new" } })).await;
    api.create("/api/v1/namespaces/new/configmaps", &config_map("a")).await;
}

/// S2.30
#[tokio::test(start_paused = true)]
async fn a_dry_run_returns_the_object_and_stores_nothing() {
    let api = Api::start().await;
    let before = api.get(CMS).await.version();
    let answer = api.post(&format!("{CMS}?dryRun=All"), &config_map("a")).await;
    let made = answer.is(201, "").json();
    assert!(made["metadata"]["uid"].is_string());
    assert!(made["metadata"].get("resourceVersion").is_none());
    api.get(&format!("{CMS}/a")).await.fails(404, "NotFound", "");
    assert_eq!(api.get(CMS).await.version(), before);

    let stored = api.create(CMS, &config_map("a")).await;
    let at = version(&stored);
    let patch = json!({ "data": { "v": "2" } });
    let a = format!("{CMS}/a");
    let answer = api.merge(&format!("{a}?dryRun=All"), &patch).await;
    assert_eq!(answer.is(200, "").json()["data"]["v"], "2");
    assert_eq!(answer.version(), at);
    let mut body = stored.clone();
    body["data"] = json!({ "v": "3" });
    assert_eq!(api.put(&format!("{a}?dryRun=All"), &body).await.is(200, "").version(), at);
    api.delete(&format!("{a}?dryRun=All")).await.is(200, "");
    api.delete(&format!("{CMS}?dryRun=All")).await.is(200, "");
    api.delete_with(&a, &json!({ "dryRun": ["All"] })).await.is(200, "");
    assert_eq!(api.get(&a).await.json(), stored);
    assert_eq!(api.get(CMS).await.version(), at);

    let post = api.post(&format!("{CMS}?dryRun=Nope"), &config_map("b")).await;
    let put = api.put(&format!("{a}?dryRun=Nope"), &body).await;
    let patched = api.merge(&format!("{a}?dryRun=Nope"), &patch).await;
    let deleted = api.delete(&format!("{a}?dryRun=Nope")).await;
    for answer in [post, put, patched, deleted] {
        let status = answer.fails(422, "Invalid", "");
        let message = status["message"].as_str().unwrap();
        assert!(message.contains("supported values: \"All\""), "{message}");
    }
}

/// S2.33
#[tokio::test(start_paused = true)]
async fn repeated_keys_of_yaml_are_reported_with_their_lines() {
    let api = Api::start().await;
    let body = "metadata: {name: twice}\ndata:\n  k: '1'\n  k: '2'\n  l: a\n  l: b\nother: 1\n";
    let request =
        |mode: &str| format!("POST {CMS}?fieldValidation={mode}\nContent-Type: application/yaml");
    api.send(&request("Strict"), body).await.fails(
        400,
        "BadRequest",
        "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: \
         yaml: unmarshal errors:\n  line 4: key \"k\" already set in map\n  \
         line 6: key \"l\" already set in map, unknown field \"other\"",
    );
    let answer = api.send(&request("Warn"), body).await;
    assert_eq!(answer.is(201, "").json()["data"], json!({"k": "2", "l": "b"}));
    let warnings: Vec<&str> =
        answer.headers.get_all("warning").iter().map(|value| value.to_str().unwrap()).collect();
    assert_eq!(
        warnings,
        [
            "299 - \"line 4: key \\\"k\\\" already set in map\"",
            "299 - \"line 6: key \\\"l\\\" already set in map\"",
            "299 - \"unknown field \\\"other\\\"\"",
        ]
    );
}

/// S1.44, S2.33
#[tokio::test(start_paused = true)]
async fn unknown_and_duplicate_fields_are_rejected_warned_about_or_ignored() {
    let api = Api::start().await;
    let unknown = r#"{"metadata":{"name":"NAME","bogus":1},"data":{"k":"v"},"other":{}}"#;
    let mixed = r#"{"data":{"k":"1","k":"2"},"metadata":{"bogus":1,"name":"NAME"}}"#;
    let twice = r#"{"metadata":{"name":"x","name":"NAME"},"data":{"k":"1","k":"2"}}"#;
    let strict = "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: \
                  strict decoding error: ";
    for (body, problems) in [
        (unknown, ["unknown field \"metadata.bogus\"", "unknown field \"other\""]),
        (mixed, ["duplicate field \"data.k\"", "unknown field \"metadata.bogus\""]),
        (twice, ["duplicate field \"metadata.name\"", "duplicate field \"data.k\""]),
    ] {
        let request = |mode: &str| format!("POST {CMS}?fieldValidation={mode}");
        let refused = api.send(&request("Strict"), body.replace("NAME", "s")).await;
        // In the order of the body.
        refused.fails(400, "BadRequest", &format!("{strict}{}", problems.join(", ")));
        for mode in ["Warn", ""] {
            let answer = api.send(&request(mode), body.replace("NAME", "w")).await;
            let made = answer.is(201, "").json();
            assert_eq!(made["metadata"]["name"], "w");
            assert!(made.get("other").is_none() && made["metadata"].get("bogus").is_none());
            let warnings: Vec<&str> =
                answer.headers.get_all("warning").iter().map(|v| v.to_str().unwrap()).collect();
            for problem in problems {
                let text = format!("299 - \"{}\"", problem.replace('"', "\\\""));
                assert!(warnings.contains(&text.as_str()), "{warnings:?}");
            }
            api.delete(&format!("{CMS}/w")).await.is(200, "");
        }
        let silent = api.send(&request("Ignore"), body.replace("NAME", "i")).await;
        silent.is(201, "");
        assert_eq!(silent.header("warning"), "");
        api.delete(&format!("{CMS}/i")).await.is(200, "");
    }
    let answer = api.post(&format!("{CMS}?fieldValidation=Nope"), &config_map("a")).await;
    answer.fails(422, "Invalid", "CreateOptions.meta.k8s.io \"\" is invalid: fieldValidation: ");
    // Field names are case-sensitive.
    let answer = api.post(CMS, &json!({ "metadata": { "name": "c", "Labels": {} } })).await;
    assert!(answer.is(201, "").header("warning").contains("metadata.Labels"));
}

/// S2.26
#[tokio::test(start_paused = true)]
async fn a_field_manager_has_limits() {
    let api = Api::start().await;
    for manager in ["x".repeat(129), "a%00b".into(), "a%0Ab".into()] {
        let target = format!("{CMS}?fieldManager={manager}");
        let status = api.post(&target, &config_map("a")).await.fails(422, "Invalid", "");
        assert_eq!(status["details"]["causes"][0]["field"], "fieldManager");
    }
    let target = format!("{CMS}?fieldManager={}", "x".repeat(128));
    api.post(&target, &config_map("a")).await.is(201, "");
}

/// S1.34
#[tokio::test(start_paused = true)]
async fn values_must_match_their_types() {
    let api = Api::start().await;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/ns/leases";
    let lease = |time: &str| json!({ "metadata": { "name": "l" }, "spec": { "renewTime": time } });
    for time in
        ["2024-01-02T03:04:05Z", "2024-01-02T03:04:05.000Z", "soon", "2024-13-02T03:04:05.000000Z"]
    {
        api.post(leases, &lease(time)).await.fails(400, "BadRequest", "");
    }
    let made = api.create(leases, &lease("2024-01-02T03:04:05.000006Z")).await;
    assert_eq!(made["spec"]["renewTime"], "2024-01-02T03:04:05.000006Z");
    for replicas in ["1.5", "1e2", "3000000000", "\"1\"", "1e400"] {
        let text = deployment("d")
            .to_string()
            .replace("\"replicas\":1", &format!("\"replicas\":{replicas}"));
        let answer = api.send(&format!("POST {DEPLOYMENTS}"), text).await;
        answer.fails(400, "BadRequest", "");
    }
    let secrets = "/api/v1/namespaces/ns/secrets";
    let body = json!({ "metadata": { "name": "s" }, "data": { "a": "not base64!" } });
    api.post(secrets, &body).await.fails(400, "BadRequest", "");
    let body = json!({ "metadata": { "name": "s" }, "stringData": { "a": "x" } });
    let made = api.create(secrets, &body).await;
    assert_eq!(made["data"], json!({ "a": "eA==" }));
    assert!(made.get("stringData").is_none());
    assert_eq!(made["type"], "Opaque");
    let made = api.create(PODS, &pod("p", "")).await;
    assert_eq!(made["spec"]["restartPolicy"], "Always");
    assert_eq!(made["status"]["phase"], "Pending");
}

/// S1.44
#[tokio::test(start_paused = true)]
async fn discouraged_values_are_accepted_with_a_warning() {
    let api = Api::start().await;
    let text = "299 - \"metadata.name: this is used in the Pod's hostname, which can result in \
                surprising behavior; a DNS label is recommended: [must not contain dots]\"";
    for query in ["?dryRun=All", ""] {
        let made = api.post(&format!("{PODS}{query}"), &pod("a.b", "")).await;
        assert_eq!(made.is(201, "").header("warning"), text);
    }
    // A rejected object has no additional warnings.
    let mut wrong = pod("c.d", "");
    wrong["spec"]["containers"] = json!([]);
    assert_eq!(api.post(PODS, &wrong).await.header("warning"), "");
}
