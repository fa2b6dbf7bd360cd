//! The audit log: what is recorded of which request (S8.20 to S8.22).

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headwater_json::{Value, json};
use headwater_server::audit::{AuditWebhook, BatchOptions};

use crate::api::{Api, CMS, PODS, config_map, pod};
use crate::https::TestHttps;

const SECRETS: &str = "/api/v1/namespaces/ns/secrets";

const POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: [/healthz*]
- level: Metadata
  resources: [{group: '', resources: [secrets]}]
- level: RequestResponse
  omitManagedFields: true
  resources: [{group: '', resources: [configmaps]}]
- level: Request
  omitStages: []
  resources: [{group: apps}]
- level: Metadata
  verbs: [impersonate, get]
";

/// The events in a log, oldest first.
fn events(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| headwater_json::parse(line.as_bytes()).unwrap().value).collect()
}

/// The stages, verbs and codes of events.
fn summary(events: &[Value]) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let line = |event: &Value| {
        let code = event["responseStatus"]["code"].as_u64().unwrap_or_default();
        format!("{} {} {code}", text(&event["stage"]), text(&event["verb"]))
    };
    events.iter().map(line).collect()
}

/// S8.20, S8.22
#[tokio::test(start_paused = true)]
async fn the_policy_decides_what_is_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("audit.log");
    let api = Api::audited(POLICY, &log).await;
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"password": "hunter2"}});
    api.create(SECRETS, &secret).await;
    api.get(&format!("{SECRETS}/s")).await.is(200, "");
    let mut map = config_map("web");
    map["data"] = json!({"a": "b"});
    api.send(
        &format!("POST {CMS}\nContent-Type: application/json\nAudit-ID: chosen\nUser-Agent: me"),
        map.to_string(),
    )
    .await
    .is(201, "");
    api.delete(&format!("{CMS}/web")).await.is(200, "");
    api.get("/healthz").await.is(200, "");
    api.get(&format!("{CMS}/none")).await.is(404, "");
    api.stop().await;

    let events = events(&log);
    let expected = [
        "ResponseComplete create 201",
        "ResponseComplete get 200",
        "ResponseComplete create 201",
        "ResponseComplete delete 200",
        "ResponseComplete get 404",
    ];
    assert_eq!(summary(&events), expected);
    // Level Metadata: the object is named, its content is nowhere.
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(!text.contains("hunter2") && !text.contains("aHVudGVyMg"), "{text}");
    assert_eq!(
        events[0]["objectRef"],
        json!({
            "resource": "secrets", "namespace": "ns", "name": "s", "apiVersion": "v1",
        })
    );
    assert_eq!(events[0]["user"]["username"], "kubernetes-admin");
    assert_eq!(events[0]["sourceIPs"], json!(["127.0.0.1"]));
    assert_eq!(events[0]["requestReceivedTimestamp"], "2026-01-02T03:04:05.000000Z");
    assert_eq!(events[0]["annotations"]["authorization.k8s.io/decision"], "allow");
    // Level RequestResponse: both bodies, without managedFields.
    assert_eq!((&events[2]["auditID"], &events[2]["userAgent"]), (&json!("chosen"), &json!("me")));
    assert_eq!(events[2]["requestObject"]["data"], json!({"a": "b"}));
    let stored = &events[2]["responseObject"];
    assert!(stored["metadata"]["uid"].is_string() && stored["metadata"]["managedFields"].is_null());
    // A Status is the response status at every level.
    assert_eq!(events[3]["responseStatus"]["status"], "Success");
    assert_eq!(events[4]["responseStatus"]["reason"], "NotFound");
}

/// S8.21
#[tokio::test(start_paused = true)]
async fn a_watch_is_recorded_when_it_starts_and_when_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("audit.log");
    let api = Api::audited(POLICY, &log).await;
    let watch = api.watch(&format!("{CMS}?watch=1")).await;
    drop(watch);
    api.stop().await;
    let events = events(&log);
    assert_eq!(summary(&events), ["ResponseStarted watch 200", "ResponseComplete watch 200"]);
    assert_eq!(events[0]["auditID"], events[1]["auditID"]);
    assert!(events[1]["responseObject"].is_null());
}

#[tokio::test(start_paused = true)]
async fn refused_requests_are_recorded_without_the_credential() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("audit.log");
    let api = Api::audited(POLICY, &log).await;
    let request = format!("GET {SECRETS}\nAuthorization: Bearer c2VjcmV0");
    api.as_anonymous().send(&request, "").await.is(401, "");
    api.as_user("eva", &[]).send(&format!("GET {SECRETS}/s"), "").await.is(403, "");
    let request = format!("GET {SECRETS}/none\nImpersonate-User: tom");
    api.send(&request, "").await.is(403, "");
    api.stop().await;
    let events = events(&log);
    let expected =
        ["ResponseStarted list 401", "ResponseComplete get 403", "ResponseComplete get 403"];
    assert_eq!(summary(&events), expected);
    assert!(!std::fs::read_to_string(&log).unwrap().contains("c2VjcmV0"));
    let message = &events[0]["responseStatus"]["message"];
    assert_eq!(*message, "Authentication failed, attempted: bearer");
    assert_eq!(events[1]["annotations"]["authorization.k8s.io/decision"], "forbid");
    assert_eq!(events[2]["user"]["username"], "kubernetes-admin");
    assert_eq!(events[2]["impersonatedUser"]["username"], "tom");
}

/// S8.8: what audit names is what was authorized, also for kinds that only an extension server knows.
#[tokio::test(start_paused = true)]
async fn an_event_names_the_object_of_every_kind_of_path() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("audit.log");
    let policy = "{apiVersion: audit.k8s.io/v1, kind: Policy, omitStages: [RequestReceived],
                   rules: [{level: Metadata}]}";
    let api = Api::audited(policy, &log).await;
    let authentication = "authentication.k8s.io";
    api.allow("joe", &["impersonate:user-info"], authentication, &["users"]).await;
    api.allow("joe", &["impersonate-on:user-info:get"], "", &["secrets"]).await;
    let as_jane = format!("GET {SECRETS}/s\nImpersonate-User: jane\nAudit-ID: as-jane");
    api.as_user("joe", &[]).send(&as_jane, "").await.is(403, "cannot get resource");
    // A token is named by its id, and a log has two events as a watch has.
    api.create("/api/v1/namespaces/ns/serviceaccounts", &json!({"metadata": {"name": "x"}})).await;
    let request = "POST /api/v1/namespaces/ns/serviceaccounts/x/token\n\
                   Content-Type: application/json\nAudit-ID: token";
    let token = api.send(request, "{\"spec\": {}}").await.is(201, "").json();
    api.create(PODS, &pod("p", "")).await;
    api.send(&format!("GET {PODS}/p/log\nAudit-ID: log"), "").await.is(204, "");
    let of = async |target: &str, expected: Value| {
        api.send(&format!("GET {target}\nAudit-ID: {target}"), "").await;
        (target.to_owned(), expected)
    };
    let expected = [
        of(
            "/apis/ext.example.com/v1/namespaces/ns/whos/me/echo",
            json!({
                "resource": "whos", "namespace": "ns", "name": "me", "subresource": "echo",
                "apiGroup": "ext.example.com", "apiVersion": "v1",
            }),
        )
        .await,
        of(
            "/api/v1/namespaces/ns",
            json!({ "resource": "namespaces", "namespace": "ns", "name": "ns", "apiVersion": "v1" }),
        )
        .await,
        of(
            "/api/v1/namespaces/ns/secrets?fieldSelector=metadata.name%3Ds",
            json!({ "resource": "secrets", "namespace": "ns", "name": "s", "apiVersion": "v1" }),
        )
        .await,
    ];
    api.stop().await;
    let events = events(&log);
    for (target, object) in expected {
        let event = events.iter().find(|event| event["auditID"] == *target).unwrap();
        assert_eq!(event["objectRef"], object, "{target}");
        assert!(event["authenticationMetadata"].is_null());
    }
    let of_log: Vec<Value> =
        events.iter().filter(|event| event["auditID"] == "log").cloned().collect();
    assert_eq!(summary(&of_log), ["ResponseStarted get 204", "ResponseComplete get 204"]);
    let event = events.iter().find(|event| event["auditID"] == "token").unwrap();
    let id = &event["annotations"]["authentication.kubernetes.io/issued-credential-id"];
    assert!(id.as_str().is_some_and(|id| id.starts_with("JTI=")), "{event}");
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(!text.contains(token["status"]["token"].as_str().unwrap()));
    let event = events.iter().find(|event| event["auditID"] == "as-jane").unwrap();
    let constraint = &event["authenticationMetadata"]["impersonationConstraint"];
    assert_eq!(*constraint, "impersonate:user-info");
    assert_eq!(event["impersonatedUser"]["username"], "jane");
}

#[tokio::test(start_paused = true)]
async fn bodies_of_every_format_are_recorded_as_json() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("audit.log");
    let api = Api::audited(POLICY, &log).await;
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {a: b}\n";
    api.send(
        &format!("POST {CMS}\nContent-Type: application/yaml\nAccept: application/yaml"),
        yaml,
    )
    .await
    .is(201, "");
    let patch = json!({"data": {"c": "d"}});
    api.merge(&format!("{CMS}/web"), &patch).await.is(200, "");
    api.stop().await;
    let events = events(&log);
    assert_eq!(events[0]["requestObject"]["data"], json!({"a": "b"}));
    assert_eq!(events[0]["responseObject"]["data"], json!({"a": "b"}));
    assert_eq!(events[1]["requestObject"], patch);
    assert_eq!(events[1]["responseObject"]["data"], json!({"a": "b", "c": "d"}));
}

/// A response that is too large for an event is left out, and the event says so.
#[tokio::test(start_paused = true)]
async fn a_large_response_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("audit.log");
    let api = Api::audited(POLICY, &log).await;
    for name in ["a", "b"] {
        let mut map = config_map(name);
        map["data"] = json!({"large": "x".repeat(700_000)});
        api.create(CMS, &map).await;
    }
    api.get(CMS).await.is(200, "");
    api.stop().await;
    let events = events(&log);
    let list = events.last().unwrap();
    assert!(list["responseObject"].is_null());
    assert_eq!(list["annotations"]["audit.k8s.io/truncated"], "true");
    assert_eq!(list["responseStatus"]["code"], 200);
}

/// A log that cannot be written delays and fails no request; the lost events are counted.
#[tokio::test(start_paused = true)]
async fn a_full_disk_loses_events_and_fails_no_request() {
    let api = Api::audited(POLICY, Path::new("/dev/full")).await;
    api.config_maps(&["a", "b"]).await;
    let metrics = api.metrics.clone();
    api.stop().await;
    let lost = metrics.audit_errors.with(&["log"]).get();
    assert_eq!((metrics.audit_events.with(&[]).get(), lost), (2, 2));
}

const BATCHES: BatchOptions = BatchOptions {
    buffer_max: 100,
    events_max: 3,
    wait_max: Duration::from_secs(3600),
    backoff: Duration::from_millis(1),
};

/// A webhook that refuses the first `refused` calls and keeps the events of all others.
async fn receiver(refused: usize) -> (TestHttps, Arc<Mutex<Vec<Value>>>) {
    let received: Arc<Mutex<Vec<Value>>> = Arc::default();
    let (kept, left) = (Arc::clone(&received), Mutex::new(refused));
    let https = TestHttps::start(|_| {
        Box::new(move |_, list| {
            let mut left = left.lock().unwrap();
            if *left > 0 {
                *left -= 1;
                return (503, json!({}));
            }
            assert_eq!(
                (&list["kind"], &list["apiVersion"]),
                (&json!("EventList"), &json!("audit.k8s.io/v1"))
            );
            let events = list["items"].as_array().unwrap();
            assert!((1..=3).contains(&events.len()), "{}", events.len());
            kept.lock().unwrap().extend(events.iter().cloned());
            (200, json!({}))
        })
    })
    .await;
    (https, received)
}

/// S8.20: events go to the webhook in batches; a failed batch is sent again, and at the stop the last
/// events do not wait for others.
#[tokio::test]
async fn a_webhook_receives_every_event_in_batches() {
    let (https, received) = receiver(2).await;
    let directory = tempfile::tempdir().unwrap();
    let webhook =
        AuditWebhook::open(&https.kubeconfig(directory.path(), "/audit"), BATCHES).unwrap();
    let api = Api::audited_by(POLICY, webhook).await;
    api.config_maps(&["a", "b", "c", "d"]).await;
    // A call that failed is repeated only while the server runs.
    while received.lock().unwrap().len() < 3 {
        tokio::task::yield_now().await;
    }
    let metrics = api.metrics.clone();
    api.stop().await;
    let received = received.lock().unwrap();
    let names: Vec<&str> =
        received.iter().filter_map(|event| event["objectRef"]["name"].as_str()).collect();
    assert_eq!(names, ["a", "b", "c", "d"]);
    assert_eq!(metrics.audit_errors.with(&["webhook"]).get(), 0);
    // Three events, and the last; two calls were refused.
    assert_eq!(https.count("/audit"), 4);
}

/// A webhook that does not answer delays and fails no request; the lost events are counted.
#[tokio::test]
async fn a_webhook_that_fails_loses_events_and_fails_no_request() {
    let (https, received) = receiver(usize::MAX).await;
    let directory = tempfile::tempdir().unwrap();
    let webhook =
        AuditWebhook::open(&https.kubeconfig(directory.path(), "/audit"), BATCHES).unwrap();
    let api = Api::audited_by(POLICY, webhook).await;
    api.config_maps(&["a", "b", "c", "d"]).await;
    let metrics = api.metrics.clone();
    api.stop().await;
    assert!(received.lock().unwrap().is_empty());
    assert_eq!(metrics.audit_errors.with(&["webhook"]).get(), 4);
}
