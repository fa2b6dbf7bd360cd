//! Passing on: writes, subresources and everything that is not held.

use http::{Method, Request};
use kube::client::Body;
use serde_json::json;

use crate::world::{ADMIN, RelayChoices, TestRelay, Upstream, named, version};

#[tokio::test(flavor = "multi_thread")]
async fn writes_and_what_is_not_held_reach_the_upstream() {
    let upstream = Upstream::start().await;
    let relay = TestRelay::start(
        upstream.config(false).await,
        named(&["configmaps", "pods"]),
        RelayChoices::default(),
    )
    .await;
    let (through, direct) = (relay.client(ADMIN).await, upstream.client(ADMIN).await);
    let pods = "/api/v1/namespaces/a/pods";
    let pod = json!({
        "metadata": { "name": "p" }, "spec": { "containers": [{ "name": "c", "image": "i" }] },
    });
    through.ok(Method::POST, pods, Some(pod.clone())).await;
    let (code, conflict) = through.call(Method::POST, pods, Some(pod)).await;
    assert_eq!((code, &conflict["reason"]), (409, &json!("AlreadyExists")));
    let status = json!({ "status": { "phase": "Running" } });
    let patched = through.ok(Method::PATCH, &format!("{pods}/p/status"), Some(status)).await;
    let read = through.ok(Method::GET, &format!("{pods}/p"), None).await;
    assert_eq!(version(&read), version(&patched));
    assert_eq!(read["status"]["phase"], "Running");
    through.ok(Method::DELETE, &format!("{pods}/p?gracePeriodSeconds=0"), None).await;
    assert_eq!(direct.get(&format!("{pods}/p")).await.0, 404);
    assert_eq!(through.get(&format!("{pods}/p")).await.0, 404);

    for path in [
        "/api",
        "/apis",
        "/api/v1",
        "/apis/apps/v1",
        "/version",
        "/openapi/v3",
        "/openapi/v3/api/v1",
        "/api/v1/namespaces/a/secrets",
        "/apis/autoscaling/v1/horizontalpodautoscalers",
        "/api/v1/namespaces/a/nonsense",
        "/nonsense",
    ] {
        assert_eq!(through.get(path).await, direct.get(path).await, "{path}");
    }
    // Those that are the relay's own.
    let (code, metrics) = through.get("/metrics").await;
    assert!(code == 200 && metrics.as_str().unwrap().contains("headwater_relay_"));
    assert_eq!(through.get("/readyz").await.0, 200);

    let mut watch = through.watch("/api/v1/namespaces/a/secrets?watch=1&resourceVersion=0").await;
    let secret = json!({ "metadata": { "name": "s" } });
    through.ok(Method::POST, "/api/v1/namespaces/a/secrets", Some(secret)).await;
    assert_eq!(watch.next().await["object"]["metadata"]["name"], "s");
}

/// A watch over a WebSocket of what is not held: the upgrade goes through.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgraded_connection_is_joined_to_the_upstream() {
    let upstream = Upstream::start().await;
    let relay = TestRelay::start(
        upstream.config(false).await,
        named(&["configmaps"]),
        RelayChoices::default(),
    )
    .await;
    let through = relay.client(ADMIN).await;
    let request = Request::get("/api/v1/namespaces?watch=1")
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("origin", "https://localhost")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
        .body(Body::empty())
        .unwrap();
    let mut response = through.send(request).await;
    assert_eq!(response.status(), 101);
    let upgraded = hyper::upgrade::on(&mut response).await.unwrap();
    let mut socket = hyper_util::rt::TokioIo::new(upgraded);
    let mut bytes = vec![0; 2048];
    let read = tokio::io::AsyncReadExt::read(&mut socket, &mut bytes).await.unwrap();
    assert!(String::from_utf8_lossy(&bytes[..read]).contains("\"ADDED\""));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resource_that_does_not_exist_is_an_error_at_the_start() {
    let upstream = Upstream::start().await;
    for (name, expected) in [("nonsense", "nonsense"), ("x.example.org", "example.org")] {
        let started = TestRelay::try_start(
            upstream.config(false).await,
            named(&[name]),
            RelayChoices::default(),
        )
        .await;
        let error = started.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(expected), "{error}");
    }
}
