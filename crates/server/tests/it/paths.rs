//! Paths and methods: served paths, and errors for the others (S1.1–S1.10, S1.15).

use headwater_json::json;

use crate::api::{Api, CMS, PODS, config_map, pod};

/// S1.1, S1.3, S1.4
#[tokio::test(start_paused = true)]
async fn resources_are_served_at_the_paths_of_kubernetes() {
    let api = Api::start().await;
    api.config_maps(&["a"]).await;
    for (target, kind) in [
        ("/api/v1/configmaps", "ConfigMapList"),
        (CMS, "ConfigMapList"),
        (&format!("{CMS}/"), "ConfigMapList"),
        (&format!("{CMS}/a"), "ConfigMap"),
        ("/api/v1/namespaces", "NamespaceList"),
        ("/api/v1/namespaces/", "NamespaceList"),
        ("/api/v1/namespaces/ns", "Namespace"),
        ("/api/v1/namespaces/ns/status", "Namespace"),
        ("/apis/apps/v1/deployments", "DeploymentList"),
        ("/apis/apps/v1/namespaces/ns/deployments", "DeploymentList"),
        ("/apis/rbac.authorization.k8s.io/v1/clusterroles", "ClusterRoleList"),
        ("/api", "APIVersions"),
        ("/api/", "APIVersions"),
        ("/api/v1", "APIResourceList"),
        ("/api/v1/", "APIResourceList"),
        ("/apis", "APIGroupList"),
        ("/apis/", "APIGroupList"),
        ("/apis/apps", "APIGroup"),
        ("/apis/apps/v1", "APIResourceList"),
    ] {
        assert_eq!(api.get(target).await.is(200, "").json()["kind"], kind, "{target}");
    }
}

/// S1.4, S1.5
#[tokio::test(start_paused = true)]
async fn unknown_paths_are_not_found() {
    let api = Api::start().await;
    api.config_maps(&["a"]).await;
    for target in [
        "/nosuch",
        "/apis/nosuch.example.com",
        "/apis/nosuch.example.com/v1",
        "/apis/nosuch.example.com/v1/things",
        "//api/v1",
        "/apis//v1",
        "/livez/nosuch",
        "/livez/",
    ] {
        let answer = api.get(target).await;
        assert_eq!(
            (answer.code, answer.text().as_str()),
            (404, "404 page not found\n"),
            "{target}"
        );
        assert_eq!(answer.header("content-type"), "text/plain; charset=utf-8", "{target}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{target}");
    }
    for target in [
        "/api/v2",
        "/api/v1/nosuch",
        "/api/v1/namespaces/ns/nosuch",
        "/api/v1/namespaces/ns/nosuch/x",
        "/apis/apps/v9",
        "/apis/apps/v9/deployments",
        "/apis/apps/v1/nosuch",
        "/api/v1/namespaces/ns/configmaps/a/nosuch",
        "/api/v1/namespaces/ns/configmaps/a/status",
        "/api/v1/namespaces/ns/nodes",
        "/api/v1/namespaces/ns/nodes/n",
        "/api/v1/namespaces/ns/pods/p/status/more",
        "/api//v1",
        "/api/v1//pods",
        "/apis/apps//deployments",
    ] {
        let message = "the server could not find the requested resource";
        let status = api.get(target).await.fails(404, "NotFound", message);
        assert_eq!(status["details"], json!({}), "{target}");
    }
}

/// S1.6
#[tokio::test(start_paused = true)]
async fn unsupported_methods_are_not_allowed() {
    let api = Api::start().await;
    api.config_maps(&["a"]).await;
    let a = format!("{CMS}/a");
    for request in [
        format!("PUT {CMS}"),
        format!("PATCH {CMS}"),
        format!("POST {a}"),
        format!("OPTIONS {CMS}"),
        format!("OPTIONS {a}"),
        format!("TRACE {CMS}"),
        format!("FROB {CMS}"),
        format!("get {CMS}"),
        "DELETE /api/v1/namespaces".into(),
        "POST /api/v1/configmaps".into(),
        "DELETE /api/v1/configmaps".into(),
        "POST /api/v1".into(),
        "POST /version".into(),
        "DELETE /api".into(),
        "DELETE /apis/apps/v1".into(),
        "POST /api/v1/watch/namespaces/ns/configmaps".into(),
        "DELETE /api/v1/watch/namespaces/ns/configmaps".into(),
        "DELETE /api/v1/watch/namespaces/ns/configmaps/a".into(),
    ] {
        let answer = api.send(&request, "{}").await;
        let message = "the server does not allow this method on the requested resource";
        let status = answer.fails(405, "MethodNotAllowed", message);
        assert_eq!(status["details"], json!({}), "{request}");
        assert_eq!(answer.header("allow"), "", "{request}");
    }
    for target in [CMS, &a, "/api/v1", "/version"] {
        assert_eq!(api.send(&format!("HEAD {target}"), "").await.code, 405, "{target}");
    }
    for (request, part) in [
        ("PUT /apis", "APIGroupList"),
        ("PUT /apis/apps", "APIGroup"),
        ("POST /metrics", "# HELP"),
        ("POST /", "/api/v1"),
    ] {
        api.send(request, "").await.is(200, part);
    }
    assert_eq!(api.get(&a).await.code, 200);
}

/// S3.6
#[tokio::test(start_paused = true)]
async fn a_name_that_cannot_be_a_key_is_rejected() {
    let api = Api::start().await;
    for (target, code) in [
        (format!("{CMS}/%2e%2e"), 400),
        (format!("{CMS}/.."), 400),
        (format!("{CMS}/."), 400),
        (format!("{CMS}/a%25b"), 400),
        ("/api/v1/namespaces/../configmaps".into(), 400),
        ("/api/v1/namespaces/%2e%2e/configmaps".into(), 400),
        ("/api/v1/namespaces/./configmaps".into(), 400),
        (format!("{CMS}/a%2Fb"), 404),
        (format!("{CMS}//a"), 404),
        (format!("{CMS}/a;x=1"), 404),
        (format!("{CMS}/a%00"), 400),
        (format!("{CMS}/%FF"), 400),
        (format!("{CMS}/%zz"), 400),
    ] {
        assert_eq!(api.get(&target).await.code, code, "{target}");
    }
    api.get(&format!("{CMS}/a%25b")).await.fails(400, "BadRequest", "");
}

/// S1.15, S7.13, S8.22
#[tokio::test(start_paused = true)]
async fn every_response_has_an_audit_id_and_forbids_caching() {
    let api = Api::start().await;
    let schemas = api.get("/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/exempt").await.json();
    let levels = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations/exempt";
    let levels = api.get(levels).await.json();
    for target in [CMS, "/version", "/nosuch", "/api/v1/nosuch", "/livez", "/apis"] {
        let answer = api.get(target).await;
        assert_eq!(answer.header("audit-id").len(), 36, "{target}");
        assert_eq!(answer.header("cache-control"), "no-cache, private", "{target}");
        let named = answer.header("x-kubernetes-pf-flowschema-uid");
        assert_eq!(named, schemas["metadata"]["uid"], "{target}");
        let named = answer.header("x-kubernetes-pf-prioritylevel-uid");
        assert_eq!(named, levels["metadata"]["uid"], "{target}");
    }
    let answer = api.send("GET /version\nAudit-ID: my-own-id", "").await;
    assert_eq!(answer.header("audit-id"), "my-own-id");
    let long = "x".repeat(100);
    let answer = api.send(&format!("GET /version\nAudit-ID: {long}"), "").await;
    assert_eq!(answer.header("audit-id"), long);
    let answer = api.get(&format!("{CMS}?timeout=abc")).await;
    assert_eq!(answer.fails(400, "BadRequest", "invalid timeout")["code"], 400);
    assert_eq!(answer.header("x-kubernetes-pf-flowschema-uid"), "");
}

/// S7.1, S7.3
#[tokio::test(start_paused = true)]
async fn flow_schemas_apply_as_soon_as_they_are_written() {
    let api = Api::start().await;
    let flow = "/apis/flowcontrol.apiserver.k8s.io/v1";
    let schema = json!({
        "metadata": { "name": "joe" },
        "spec": {
            "matchingPrecedence": 50, "priorityLevelConfiguration": { "name": "system" },
            "rules": [{
                "subjects": [{ "kind": "User", "user": { "name": "joe" } }],
                "nonResourceRules": [{ "verbs": ["get"], "nonResourceURLs": ["/version"] }],
            }],
        },
    });
    let joe = api.as_user("joe", &[]);
    let uid = "x-kubernetes-pf-flowschema-uid";
    let before = joe.send("GET /version", "").await;
    let default = api.get(&format!("{flow}/flowschemas/global-default")).await.json();
    assert_eq!(before.header(uid), default["metadata"]["uid"]);
    let made = api.create(&format!("{flow}/flowschemas"), &schema).await;
    // A consistent read waits until the cache has received the write.
    api.get(&format!("{flow}/flowschemas/joe")).await.is(200, "");
    assert_eq!(joe.send("GET /version", "").await.header(uid), made["metadata"]["uid"]);
    assert_eq!(joe.send("GET /api", "").await.header(uid), default["metadata"]["uid"]);
    let probes = api.get(&format!("{flow}/flowschemas/probes")).await.json();
    let anonymous = api.as_anonymous().send("GET /livez", "").await;
    assert_eq!(anonymous.header(uid), probes["metadata"]["uid"]);
}

/// S1.10
#[tokio::test(start_paused = true)]
async fn health_endpoints_need_no_credentials() {
    let api = Api::start().await;
    for target in ["/livez", "/readyz", "/healthz", "/livez/ping", "/readyz/ping"] {
        let ok = (200, "ok".to_owned());
        let answer = api.as_anonymous().send(&format!("GET {target}"), "").await;
        match target.ends_with("/ping") {
            true => assert_eq!(answer.code, 403, "GET {target}"),
            false => assert_eq!((answer.code, answer.text()), ok, "GET {target}"),
        }
        let answer = api.send(&format!("POST {target}"), "").await;
        assert_eq!((answer.code, answer.text()), ok, "POST {target}");
    }
    let verbose = api.get("/readyz?verbose&exclude=ping").await.text();
    assert!(verbose.starts_with("[+]ping excluded: ok\n"), "{verbose}");
    assert!(verbose.ends_with("readyz check passed\n"), "{verbose}");
}

/// S1.11, S1.14, S8.8, S8.9, R48
#[tokio::test(start_paused = true)]
async fn users_without_permissions_may_only_read_discovery() {
    let api = Api::start().await;
    api.create(CMS, &config_map("a")).await;
    let user = api.as_user("joe", &["devs"]);
    for target in ["/version", "/api", "/apis", "/api/v1", "/apis/apps", "/livez"] {
        assert_eq!(user.send(&format!("GET {target}"), "").await.code, 200, "{target}");
    }
    let in_ns = "in API group \"\" in the namespace \"ns\"";
    for (request, message) in [
        (
            format!("GET {CMS}"),
            format!(
                "configmaps is forbidden: User \"joe\" cannot list resource \"configmaps\" {in_ns}"
            ),
        ),
        (
            format!("GET {CMS}/a"),
            format!(
                "configmaps \"a\" is forbidden: User \"joe\" cannot get resource \"configmaps\" {in_ns}"
            ),
        ),
        (
            format!("GET {CMS}?watch=true"),
            format!(
                "configmaps is forbidden: User \"joe\" cannot watch resource \"configmaps\" {in_ns}"
            ),
        ),
        (
            format!("DELETE {CMS}"),
            format!(
                "configmaps is forbidden: User \"joe\" cannot deletecollection resource \
                 \"configmaps\" {in_ns}"
            ),
        ),
        (
            "PATCH /apis/apps/v1/namespaces/ns/deployments/d/scale".into(),
            "deployments.apps \"d\" is forbidden: User \"joe\" cannot patch resource \
             \"deployments/scale\" in API group \"apps\" in the namespace \"ns\""
                .into(),
        ),
        (
            "GET /api/v1/nodes".into(),
            "nodes is forbidden: User \"joe\" cannot list resource \"nodes\" in API group \"\" at \
             the cluster scope"
                .into(),
        ),
        ("GET /metrics".into(), "forbidden: User \"joe\" cannot get path \"/metrics\"".into()),
        ("GET /".into(), "forbidden: User \"joe\" cannot get path \"/\"".into()),
    ] {
        let answer = user.send(&request, "").await;
        answer.fails(403, "Forbidden", &message);
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
    }
    let anonymous = api.as_anonymous();
    for (target, code) in [("/version", 200), ("/api", 403), (CMS, 403), ("/metrics", 403)] {
        let answer = anonymous.send(&format!("GET {target}"), "").await;
        assert!(answer.code == code || answer.code == 401, "{target}: {}", answer.code);
    }
}

const SELF: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// S8.5, S8.6
#[tokio::test(start_paused = true)]
async fn an_administrator_may_impersonate_other_users() {
    let api = Api::start().await;
    let jane = "Impersonate-User: jane\nImpersonate-Group: dev\nImpersonate-Uid: 7\n\
                Impersonate-Extra-Scopes: view";
    let answer = api.send(&format!("POST {SELF}\n{jane}"), "{}").await.is(201, "").json();
    let expected = json!({
        "username": "jane", "uid": "7", "groups": ["dev", "system:authenticated"],
        "extra": { "scopes": ["view"] },
    });
    assert_eq!(answer["status"]["userInfo"], expected);
    let message = "configmaps \"a\" is forbidden: User \"jane\" cannot get resource \"configmaps\" \
                   in API group \"\" in the namespace \"ns\"";
    let refused = api.send(&format!("GET {CMS}/a\n{jane}"), "").await;
    refused.fails(403, "Forbidden", message);
    assert_ne!(refused.header("x-kubernetes-pf-flowschema-uid"), "");
    let master = "Impersonate-User: root\nImpersonate-Group: system:masters";
    api.send(&format!("GET {CMS}\n{master}"), "").await.is(200, "");
}

/// S8.6
#[tokio::test(start_paused = true)]
async fn impersonation_without_permission_is_rejected_and_never_ignored() {
    let api = Api::start().await;
    let user = api.as_user("user", &["dev"]);
    let message = "users \"jane\" is forbidden: User \"user\" cannot impersonate resource \"users\" \
                   in API group \"\" at the cluster scope";
    let refused = user.send(&format!("POST {SELF}\nImpersonate-User: jane"), "{}").await;
    refused.fails(403, "Forbidden", message);
    assert_eq!(refused.header("x-kubernetes-pf-flowschema-uid"), "");
    for headers in ["Impersonate-Group: g", "Impersonate-Uid: 1", "Impersonate-User: "] {
        let answer = api.send(&format!("POST {SELF}\n{headers}"), "{}").await;
        answer.fails(400, "BadRequest", "requested ");
    }
}

/// S1.2
#[tokio::test(start_paused = true)]
async fn requests_that_need_a_kubelet_are_rejected_with_the_right_reason() {
    let api = Api::start().await;
    api.get(&format!("{PODS}/none/log")).await.fails(404, "NotFound", "pods \"none\" not found");
    api.create(PODS, &pod("p", "")).await;
    let log = format!("{PODS}/p/log");
    assert_eq!(api.get(&log).await.is(204, "").text(), "");
    let message = "container x is not valid for pod p";
    api.get(&format!("{log}?container=x")).await.fails(400, "BadRequest", message);
    for stream in ["exec", "attach", "portforward"] {
        let message = "pod p does not have a host assigned";
        api.get(&format!("{PODS}/p/{stream}")).await.fails(400, "BadRequest", message);
    }
    let mut body = pod("q", "n");
    let other = json!({ "name": "other", "image": "i" });
    body["spec"]["containers"].as_array_mut().unwrap().push(other);
    api.create(PODS, &body).await;
    let message = "a container name must be specified for pod q, choose one of: [c other]";
    api.get(&format!("{PODS}/q/log")).await.fails(400, "BadRequest", message);
    let message = "log needs a running container; this server runs none";
    api.get(&format!("{PODS}/q/log?container=c")).await.fails(501, "NotImplemented", message);
}

/// S8.13
#[tokio::test(start_paused = true)]
async fn reviews_report_what_a_user_may_do() {
    const REVIEWS: &str = "/apis/authorization.k8s.io/v1";
    let api = Api::start().await;
    let get = json!({ "verb": "get", "resource": "configmaps", "namespace": "ns" });
    let version = json!({ "nonResourceAttributes": { "verb": "get", "path": "/version" } });
    let spec = |user: &str, groups: &[&str]| json!({ "spec": { "user": user, "groups": groups, "resourceAttributes": get } });
    let local = format!("{REVIEWS}/namespaces/ns/localsubjectaccessreviews");
    let subject = format!("{REVIEWS}/subjectaccessreviews");
    for target in [&subject, &local] {
        for (groups, allowed) in [(&["devs"][..], false), (&["system:masters"], true)] {
            let review = api.create(target, &spec("joe", groups)).await;
            assert_eq!(review["status"]["allowed"], allowed, "{target} {groups:?}");
            assert!(review["metadata"].get("name").is_none(), "nothing is stored");
        }
    }
    let mut elsewhere = spec("joe", &[]);
    elsewhere["spec"]["resourceAttributes"]["namespace"] = "other".into();
    api.post(&local, &elsewhere).await.fails(422, "Invalid", "");
    let joe = api.as_user("joe", &["devs"]);
    for (spec, allowed) in [(json!({ "resourceAttributes": get }), false), (version, true)] {
        let request = format!("POST {REVIEWS}/selfsubjectaccessreviews");
        let review = joe.send(&request, json!({ "spec": spec }).to_string()).await;
        assert_eq!(review.is(201, "").json()["status"]["allowed"], allowed, "{spec}");
    }
    let rules = json!({ "spec": { "namespace": "ns" } });
    let rules = api.create(&format!("{REVIEWS}/selfsubjectrulesreviews"), &rules).await;
    assert_eq!(rules["status"]["resourceRules"][0]["verbs"], json!(["*"]));
    assert_eq!(rules["status"]["incomplete"], false);
}

/// S2.35, R48
#[tokio::test(start_paused = true)]
async fn the_steps_of_a_write_are_taken_in_order() {
    let api = Api::start().await;
    let large = "x".repeat(4 * 1024 * 1024);
    let target = "POST /api/v1/namespaces/nowhere/configmaps";
    // Each request has the fault of its row and all faults below it.
    let anonymous = api.as_anonymous();
    let wrong = format!("{target}\nAuthorization: Bearer wrong\nImpersonate-Group: g");
    anonymous.send(&wrong, large.clone()).await.fails(401, "Unauthorized", "");
    let joe = api.as_user("joe", &[]);
    let unnamed = format!("{target}\nImpersonate-Group: g");
    joe.send(&unnamed, large.clone()).await.fails(400, "BadRequest", "requested ");
    joe.send(target, large.clone()).await.fails(403, "Forbidden", "");
    api.send(target, large).await.fails(413, "RequestEntityTooLarge", "");
    api.send(target, "{").await.fails(400, "BadRequest", "");
    let invalid = json!({ "metadata": { "name": "Bad Name" } }).to_string();
    api.send(target, invalid.clone()).await.fails(404, "NotFound", "namespaces \"nowhere\"");
    api.send(&format!("POST {CMS}"), invalid).await.fails(422, "Invalid", "");
    api.get(CMS).await.lists("");
}

/// S8.25, S8.26
#[tokio::test(start_paused = true)]
async fn a_request_that_takes_too_long_is_a_timeout() {
    let options = headwater_server::Settings {
        request_timeout: std::time::Duration::from_secs(2),
        ..headwater_server::Settings::default()
    };
    let api = Api::with(options, headwater_cache::Options::default()).await;
    // A list of the future waits for three seconds.
    for (query, seconds) in [("", 2), ("&timeout=1s", 1), ("&timeout=1h", 2)] {
        let began = tokio::time::Instant::now();
        let answer = api.get(&format!("{CMS}?resourceVersion=999999999{query}")).await;
        let message = "Timeout: request did not complete within the allotted timeout";
        answer.fails(504, "Timeout", message);
        assert_eq!(began.elapsed().as_secs(), seconds, "{query}");
    }
}
