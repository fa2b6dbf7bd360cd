//! Traces: which requests are traced, and the spans of a write up to its last watcher.

use std::time::Duration;

use headwater_api::trace::{TraceSpan, TraceValue};
use headwater_json::json;
use tokio::sync::mpsc;

use crate::api::{Api, NOW};

const MAPS: &str = "/api/v1/namespaces/ns/configmaps";
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

/// The next span with this name.
async fn next(spans: &mut mpsc::Receiver<TraceSpan>, name: &str) -> TraceSpan {
    loop {
        let span = spans.recv().await.unwrap();
        if span.name == name {
            return span;
        }
    }
}

fn text<'a>(span: &'a TraceSpan, key: &str) -> &'a str {
    let found = span.attributes.iter().find(|(name, _)| *name == key);
    match found {
        Some((_, TraceValue::Text(text))) => text,
        other => panic!("{key}: {other:?}"),
    }
}

fn number(span: &TraceSpan, key: &str) -> i64 {
    let found = span.attributes.iter().find(|(name, _)| *name == key);
    match found {
        Some((_, TraceValue::Number(number))) => *number,
        other => panic!("{key}: {other:?}"),
    }
}

/// S11.33
#[tokio::test]
async fn a_write_is_traced_from_its_request_to_its_last_watcher() {
    let (api, mut spans) = Api::traced(1_000_000).await;
    for app in ["web", "other"] {
        let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": app, "labels": { "app": app } } });
        let target = format!("{MAPS}/{app}?fieldManager=test");
        api.patch("application/apply-patch+yaml", &target, map.to_string()).await.is(201, "");
    }
    // A watch begins with the first read of its body.
    let mut watches = Vec::new();
    for (selector, known) in
        [("", 2), ("&labelSelector=app=web", 1), ("&labelSelector=app=other", 1)]
    {
        let mut watch = api.watch(&format!("{MAPS}?watch=true{selector}")).await;
        watch.take(known).await;
        watches.push(watch);
    }
    let request = format!(
        "POST {MAPS}?fieldManager=secret-in-query\nContent-Type: application/json\n\
         User-Agent: test/1\nX-Anything: secret-in-header"
    );
    let map =
        json!({ "metadata": { "name": "a", "labels": { "app": "web" } }, "data": { "k": "v" } });
    api.send(&request, map.to_string()).await.is(201, "");
    for watch in &mut watches[..2] {
        assert_eq!(watch.next().await.unwrap()["type"], "ADDED");
    }

    let root_of = |all: &[TraceSpan]| {
        all.iter().find(|span| span.name.starts_with("POST /api/v1/namespaces/{:n")).cloned()
    };
    let is_complete = |all: &[TraceSpan]| {
        root_of(all).is_some_and(|root| {
            all.iter().any(|it| it.trace_id == root.trace_id && it.name == "last watcher")
        })
    };
    let mut of_write = Vec::new();
    while !is_complete(&of_write) {
        let span = tokio::time::timeout(Duration::from_secs(60), spans.recv()).await;
        of_write.push(span.expect("the last watcher has a span").unwrap());
    }
    let root = &root_of(&of_write).unwrap();
    assert_eq!(root.name, "POST /api/v1/namespaces/{:namespace}/configmaps");
    assert!(root.is_server && root.parent.is_none() && root.link.is_none());
    assert_eq!(root.start, NOW.parse::<jiff::Timestamp>().unwrap().as_nanosecond() as u64);
    assert_eq!(text(root, "url.path"), MAPS);
    assert_eq!(text(root, "user_agent.original"), "test/1");
    assert_eq!(text(root, "headwater.verb"), "create");
    assert_eq!(text(root, "headwater.resource"), "configmaps");
    assert!(!text(root, "audit-id").is_empty());
    assert_eq!(number(root, "http.response.status_code"), 201);
    assert!(!format!("{of_write:?}").contains("secret"), "{of_write:?}");

    let of_trace: Vec<_> = of_write.iter().filter(|it| it.trace_id == root.trace_id).collect();
    let part = |name| *of_trace.iter().find(|span| span.name == name).unwrap();
    for name in ["admission", "store", "watch cache", "first watcher", "last watcher"] {
        let part = part(name);
        assert_eq!(part.parent, Some(root.id), "{name}");
        assert!(!part.is_server && part.start >= root.start && part.end >= part.start, "{name}");
    }
    assert!(part("store").end <= root.end);
    assert!(part("watch cache").start >= part("store").start);
    assert!(part("last watcher").end >= part("first watcher").end);
    assert_eq!(number(part("last watcher"), "headwater.watchers"), 2);
    assert_eq!(number(part("last watcher"), "headwater.watchers.late"), 0);
    assert!(number(part("store"), "headwater.revision") > 0);
}

/// S11.34
#[tokio::test]
async fn only_a_privileged_client_decides_whether_it_is_traced() {
    let (api, mut spans) = Api::traced(0).await;
    let trusted = api.as_user("prober", &["system:monitoring"]);
    let other = api.as_user("jane", &["system:authenticated"]);
    let get = |parent: &str| format!("GET /version\ntraceparent: {parent}");
    other.send(&get(PARENT), "").await.is(200, "");
    trusted.send(&get(UNSAMPLED), "").await.is(200, "");
    trusted.send("GET /version", "").await.is(200, "");
    trusted.send(&get("nonsense"), "").await.is(200, "");
    trusted.send(&get(PARENT), "").await.is(200, "");
    let span = next(&mut spans, "GET").await;
    assert_eq!(span.parent, Some([0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31]));
    assert_eq!(span.trace_id[..2], [0x0a, 0xf7]);
    assert!(spans.try_recv().is_err(), "the others were not traced");

    // A server that traces everything begins a trace of its own, and links that of the client.
    let (api, mut spans) = Api::traced(1_000_000).await;
    next(&mut spans, "POST /api/v1/namespaces").await;
    let other = api.as_user("jane", &["system:authenticated"]);
    other.send(&get(PARENT), "").await.is(200, "");
    let span = next(&mut spans, "GET").await;
    assert_eq!((span.parent, span.link.unwrap().trace_id[0]), (None, 0x0a));
    assert_ne!(span.trace_id[..2], [0x0a, 0xf7]);
}

/// S11.33: spans of a server whose exporter does not read are lost, counted, and delay nobody.
#[tokio::test]
async fn an_exporter_that_does_not_read_delays_no_request() {
    let (api, spans) = Api::traced(1_000_000).await;
    let lost = api.metrics.trace_spans.with(&["lost"]);
    while lost.get() == 0 {
        api.get("/version").await.is(200, "");
    }
    drop(spans);
    let before = lost.get();
    api.get("/version").await.is(200, "");
    assert_eq!(lost.get(), before + 1);
}

/// S11.33: a request that is refused has no trace, and a conflict has no watchers.
#[tokio::test]
async fn a_write_that_is_not_stored_has_no_watchers() {
    let (api, mut spans) = Api::traced(1_000_000).await;
    let map = json!({ "metadata": { "name": "a" } });
    api.post(MAPS, &map).await.is(201, "");
    api.post(MAPS, &map).await.is(409, "");
    let name = "POST /api/v1/namespaces/{:namespace}/configmaps";
    next(&mut spans, name).await;
    let store = next(&mut spans, "store").await;
    let root = next(&mut spans, name).await;
    assert_eq!((store.trace_id, store.attributes.len()), (root.trace_id, 0));
    assert_eq!(number(&root, "http.response.status_code"), 409);
}
