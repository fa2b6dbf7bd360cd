//! Work that input can make long: it runs off the threads that answer others, and its results are
//! bounded in bytes (B138, B139, R46).

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use bytes::{Buf, Bytes};
use headwater_api::Clock;
use headwater_json::{Value, json};
use headwater_schema::yaml;
use http_body_util::BodyExt;
use jiff::Timestamp;
use tokio::task::JoinSet;

use crate::api::{Api, CMS, NOW, PODS, config_map, pod};

/// The path of definitions.
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const THINGS: &str = "/apis/example.com/v1/namespaces/ns/things";
const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";
const PARTIALS: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// Longer than a test takes: one that would hang fails instead.
const LONG: Duration = Duration::from_secs(60);

fn definition(spec: impl Into<Value>) -> Value {
    let spec = spec.into();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "things.example.com" },
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": { "plural": "things", "kind": "Thing", "listKind": "ThingList" },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": {
                    "type": "object", "properties": { "spec": spec },
                }},
            }],
        },
    })
}

fn thing(name: &str, spec: impl Into<Value>) -> Value {
    let spec = spec.into();
    json!({
        "apiVersion": "example.com/v1", "kind": "Thing",
        "metadata": { "name": name }, "spec": spec,
    })
}

/// A ConfigMap with this many bytes of data.
fn large(name: &str, bytes: usize) -> Value {
    let mut object = config_map(name);
    object["data"] = json!({ "text": "x".repeat(bytes) });
    object
}

/// A value of a metric.
async fn metric(api: &Api, name: &str) -> u64 {
    let text = api.get("/metrics").await.text();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.map_or(0, |value| value.parse().unwrap())
}

/// A clock at which one request stops. Nothing else reads the clock meanwhile: the objects of flow
/// control are complete when they are created.
struct StoppingClock(Mutex<Option<(tokio::sync::oneshot::Sender<()>, mpsc::Receiver<()>)>>);

impl Clock for StoppingClock {
    fn now(&self) -> Timestamp {
        let stop = self.0.lock().unwrap().take();
        if let Some((begun, release)) = stop {
            begun.send(()).unwrap();
            release.recv_timeout(LONG).expect("others are answered meanwhile");
        }
        NOW.parse().unwrap()
    }
}

/// B138: the server has one thread, and a request with a large body computes on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn readiness_is_answered_while_a_large_body_is_processed() {
    let clock = Arc::new(StoppingClock(Mutex::default()));
    let api = Arc::new(Api::with_clock(clock.clone()).await);
    for (request, body) in [
        (format!("POST {CMS}"), large("a", 100_000)),
        (format!("PUT {CMS}/a"), large("a", 200_000)),
        // The patch is small, and the object is not.
        (format!("PATCH {CMS}/a"), json!({ "metadata": { "labels": { "x": "y" } } })),
        // A definition is compiled, however small it is.
        (format!("POST {CRDS}"), definition(json!({ "type": "object" }))),
    ] {
        let (begin, begun) = tokio::sync::oneshot::channel();
        let (release, released) = mpsc::channel();
        *clock.0.lock().unwrap() = Some((begin, released));
        let mut requests = JoinSet::new();
        {
            let (api, request) = (api.clone(), request.clone());
            let kind = match request.starts_with("PATCH") {
                true => "application/merge-patch+json",
                false => "application/json",
            };
            let request = format!("{request}\nContent-Type: {kind}");
            requests.spawn(async move { api.send(&request, body.to_string()).await });
        }
        begun.await.unwrap();
        {
            let api = api.clone();
            requests.spawn(async move { api.get("/readyz").await });
        }
        // The write cannot end before it is released.
        requests.join_next().await.unwrap().unwrap().is(200, "ok");
        release.send(()).unwrap();
        let code = requests.join_next().await.unwrap().unwrap().code;
        assert!(matches!(code, 200 | 201), "{request}: {code}");
    }
}

#[tokio::test(start_paused = true)]
async fn small_requests_are_not_long() {
    let api = Api::start().await;
    api.config_maps(&["a", "b"]).await;
    api.accept(CMS, TABLE).await.is(200, "");
    api.accept(CMS, "application/yaml").await.is(200, "");
    api.merge(&format!("{CMS}/a"), &json!({ "data": { "a": "b" } })).await.is(200, "");
    assert_eq!(metric(&api, "headwater_long_requests_total").await, 0);
    api.create(CMS, &large("c", 100_000)).await;
    assert_eq!(metric(&api, "headwater_long_requests_total").await, 1);
}

/// B138: a document is built once after a change, and all responses share its bytes.
#[tokio::test(flavor = "multi_thread")]
async fn openapi_documents_are_built_once_and_shared() {
    let api = Arc::new(Api::start().await);
    api.create(CRDS, &definition(json!({ "type": "object" }))).await;
    let builds = "headwater_document_builds_total";
    for target in ["/openapi/v2", "/openapi/v3/apis/example.com/v1", "/openapi/v3"] {
        let before = metric(&api, builds).await;
        let mut requests = JoinSet::new();
        for _ in 0..40 {
            let api = api.clone();
            requests.spawn(async move {
                let body = api.raw(&format!("GET {target}")).await.into_body();
                let data = body.boxed_unsync().frame().await.unwrap().unwrap();
                data.into_data().unwrap()
            });
        }
        // All bodies are kept: freed memory could be used again at the same address.
        let bodies = requests.join_all().await;
        let mut shared: Vec<_> =
            bodies.iter().map(|data| (data.chunk().as_ptr().addr(), data.remaining())).collect();
        shared.dedup();
        assert_eq!(shared.len(), 1, "{target}: every response has the same memory");
        let built = metric(&api, builds).await - before;
        // The index builds the documents that nobody has asked for.
        let is_expected = if target == "/openapi/v3" { built > 1 } else { built == 1 };
        assert!(is_expected, "{target}: {built}");
    }
    let before = metric(&api, builds).await;
    for target in ["/openapi/v2", "/openapi/v3", "/openapi/v3/apis/example.com/v1"] {
        api.get(target).await.is(200, "example");
    }
    assert_eq!(metric(&api, builds).await, before, "nothing changed");
}

/// B138: a changed definition is in the next response, with another hash.
#[tokio::test(start_paused = true)]
async fn openapi_documents_follow_definitions() {
    let api = Api::start().await;
    let v2 = || api.get("/openapi/v2");
    let built_in = v2().await;
    api.create(CRDS, &definition(json!({ "type": "object" }))).await;
    let with_things = v2().await;
    assert_ne!(built_in.header("etag"), with_things.header("etag"));
    with_things.is(200, "com.example.v1.Thing");
    let target = format!("{CRDS}/things.example.com");
    let spec = json!({ "type": "object", "properties": { "colour": { "type": "string" } } });
    let mut changed = api.get(&target).await.json();
    changed["spec"] = definition(spec)["spec"].clone();
    api.put(&target, &changed).await.is(200, "");
    v2().await.is(200, "colour");
    api.get("/openapi/v3/apis/example.com/v1").await.is(200, "colour");
    api.delete(&target).await.is(200, "");
    tokio::time::sleep(Duration::from_secs(5)).await;
    let without = v2().await;
    assert_eq!(without.header("etag"), built_in.header("etag"));
    let known = format!("GET /openapi/v2\nIf-None-Match: {}", without.header("etag"));
    assert_eq!(api.send(&known, "").await.code, 304);
}

/// B138: compressed, indented and protobuf forms are of the same document.
#[tokio::test(start_paused = true)]
async fn openapi_documents_have_several_forms() {
    let api = Api::start().await;
    let plain = api.get("/openapi/v2").await;
    let compressed = api.send("GET /openapi/v2\nAccept-Encoding: gzip", "").await;
    assert_eq!(compressed.header("content-encoding"), "gzip");
    let mut unpacked = Vec::new();
    let mut reader = flate2::read::GzDecoder::new(&*compressed.body);
    std::io::Read::read_to_end(&mut reader, &mut unpacked).unwrap();
    assert!(unpacked == plain.body);
    let pretty = api.get("/openapi/v2?pretty=true").await;
    assert!(pretty.text().contains("\n  \"swagger\": \"2.0\""));
    assert_eq!(pretty.json(), plain.json());
    let protobuf = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    let curl = format!("GET /openapi/v2\nAccept: {protobuf}\nUser-Agent: curl/8");
    let first = api.send(&curl, "").await;
    assert!(first.header("content-type").ends_with("protobuf"));
    assert!(first.body == api.accept("/openapi/v2", protobuf).await.body, "it is never indented");
}

/// The frames of a response.
async fn frames(api: &Api, request: &str) -> Vec<Bytes> {
    let mut body = api.raw(request).await.into_body();
    let mut frames = Vec::new();
    while let Some(frame) = body.frame().await {
        let mut data = frame.unwrap().into_data().unwrap();
        frames.push(data.copy_to_bytes(data.remaining()));
    }
    frames
}

/// B138, R39: a list as YAML is the document of the same list as JSON, and is sent in chunks.
#[tokio::test(start_paused = true)]
async fn lists_are_printed_as_yaml_object_by_object() {
    let api = Api::start().await;
    api.create(CRDS, &definition(json!({ "type": "object" }))).await;
    let same = async |target: &str, accept: &str| {
        let json = api.accept(target, accept).await.json();
        let yaml = accept.replacen("json", "yaml", 1);
        let request = format!("GET {target}\nAccept: {yaml}");
        let frames = frames(&api, &request).await;
        let text = String::from_utf8(frames.concat()).unwrap();
        assert!(text == yaml::to_string(&json), "{target} {accept}");
        frames
    };
    let all = ["application/json", TABLE, PARTIALS];
    for accept in all {
        for target in [CMS, PODS, THINGS] {
            same(target, accept).await;
        }
    }
    for at in 0..40 {
        let mut object = large(&format!("c{at}"), 30_000);
        object["data"]["lines"] = format!("a: b\nc: {at}\n").into();
        api.create(CMS, &object).await;
    }
    api.create(PODS, &pod("p", "n")).await;
    api.create(THINGS, &thing("t", json!({}))).await;
    for accept in all {
        for target in [CMS, PODS, THINGS, &format!("{CMS}?limit=7")] {
            same(target, accept).await;
        }
    }
    let sent = same(CMS, "application/json").await;
    let longest = sent.iter().map(Bytes::len).max().unwrap();
    assert!(sent.len() > 5 && longest < 200_000, "{} {longest}", sent.len());
}

/// B139: defaults are counted before they are set.
#[tokio::test(start_paused = true)]
async fn defaults_that_multiply_are_too_large() {
    let api = Api::start().await;
    let text = json!({ "type": "string", "default": "x".repeat(100_000) });
    let item = json!({ "type": "object", "properties": { "text": text } });
    let list = json!({ "type": "array", "items": item });
    let spec = json!({ "type": "object", "properties": { "list": list } });
    api.create(CRDS, &definition(spec)).await;
    let many = json!({ "list": vec![json!({}); 10_000] });
    let limit = "Request entity too large: limit is 3145728";
    api.post(THINGS, &thing("a", many.clone())).await.fails(413, "RequestEntityTooLarge", limit);
    api.create(THINGS, &thing("b", json!({ "list": [{}] }))).await;
    let target = format!("{THINGS}/b");
    api.merge(&target, &json!({ "spec": many })).await.fails(413, "RequestEntityTooLarge", limit);
    let stored = api.get(&target).await.json();
    assert_eq!(stored["spec"]["list"][0]["text"].as_str().map(str::len), Some(100_000));
}

/// B139: OpenShift's `ingresses.config.openshift.io` has such a pattern.
#[tokio::test(start_paused = true)]
async fn large_patterns_are_served() {
    let api = Api::start().await;
    let text = json!({ "type": "string", "pattern": r"^[\p{S}\p{L}\p{N}]{0,62}$" });
    let spec = json!({ "type": "object", "properties": { "text": text } });
    api.create(CRDS, &definition(spec)).await;
    api.create(THINGS, &thing("a", json!({ "text": "é€7".repeat(20) }))).await;
    let wrong = thing("b", json!({ "text": "-" }));
    api.post(THINGS, &wrong).await.is(422, "should match");
    // The length of a match is limited.
    let long = thing("c", json!({ "text": "é".repeat(1_000_000) }));
    api.post(THINGS, &long).await.is(422, "takes too many steps");
}
