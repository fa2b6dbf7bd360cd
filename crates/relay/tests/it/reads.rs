//! Reads: as the upstream's, as fresh, and at the upstream's revisions.

use std::time::Duration;

use http::Method;
use serde_json::json;

use crate::world::{ADMIN, RelayChoices, TestRelay, Upstream, named, names, version};

const JSON: &str = "application/json";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const METADATA: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
const MAPS: &str = "/api/v1/configmaps";

#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_reads_as_at_the_upstream() {
    let upstream = Upstream::start().await;
    let direct = upstream.client(ADMIN).await;
    for n in 0..7 {
        direct.put_map(["a", "b"][n % 2], &format!("m{n}"), ["x", "y"][n / 4]).await;
    }
    let relay = TestRelay::start(
        upstream.config(false).await,
        named(&["configmaps", "namespaces"]),
        RelayChoices::default(),
    )
    .await;
    let through = relay.client(ADMIN).await;
    let before = upstream.requests("LIST", "configmaps");
    for (path, accept) in [
        (MAPS, JSON),
        (MAPS, TABLE),
        (MAPS, METADATA),
        ("/api/v1/configmaps?labelSelector=value%3Dx", JSON),
        ("/api/v1/configmaps?fieldSelector=metadata.name%3Dm3", JSON),
        ("/api/v1/namespaces/a/configmaps", JSON),
        ("/api/v1/namespaces/a/configmaps/m2", JSON),
        ("/api/v1/namespaces/a/configmaps/none", JSON),
        ("/api/v1/namespaces", TABLE),
        ("/api/v1/configmaps?resourceVersion=x", JSON),
    ] {
        let (here, there) = (through.text(path, accept).await, direct.text(path, accept).await);
        assert_eq!(here, there, "{path} {accept}");
    }
    // The reads of the relay cost one small request each; the lists are the direct ones.
    assert!(upstream.requests("LIST", "configmaps") - before < 20);
    assert_eq!(relay.sent("list"), 2);

    let page = through.ok(Method::GET, "/api/v1/configmaps?limit=3", None).await;
    let token = page["metadata"]["continue"].as_str().unwrap();
    let rest = format!("/api/v1/configmaps?limit=10&continue={token}");
    let rest = through.ok(Method::GET, &rest, None).await;
    assert_eq!(names(&page).len() + names(&rest).len(), 7);
    assert_eq!(version(&page), version(&rest));
}

/// R99: a write that was acknowledged, by whomever, is in every later read that asks for the newest state.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_is_as_fresh_as_the_upstream() {
    let upstream = Upstream::start().await;
    let direct = upstream.client(ADMIN).await;
    let resources = named(&["configmaps", "secrets"]);
    let relay =
        TestRelay::start(upstream.config(false).await, resources, RelayChoices::default()).await;
    let through = relay.client(ADMIN).await;
    for n in 0..30 {
        let writer = if n % 2 == 0 { &direct } else { &through };
        let written = writer.put_map("a", "m", &n.to_string()).await;
        let list = through.ok(Method::GET, MAPS, None).await;
        let map =
            list["items"].as_array().unwrap().iter().find(|map| map["metadata"]["name"] == "m");
        assert_eq!(version(map.unwrap()), written, "{n}");
        // A resource in which nothing happened reaches the revision too.
        let quiet = through.ok(Method::GET, "/api/v1/secrets", None).await;
        assert!(version(&quiet) >= written, "{n}");
    }
    let readers = (0..200).map(|_| through.ok(Method::GET, "/api/v1/secrets", None));
    let before = relay.sent("revision");
    direct.put_map("a", "m", "last").await;
    futures::future::join_all(readers).await;
    assert!(relay.sent("revision") - before < 50, "readers share requests");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_answer_says_how_old_it_is() {
    let mut upstream = Upstream::start().await;
    let choices = RelayChoices {
        stale_ok: Duration::from_secs(3600),
        keep_reviews: Duration::from_secs(3600),
        ..RelayChoices::default()
    };
    let relay =
        TestRelay::start(upstream.config(false).await, named(&["namespaces"]), choices).await;
    let through = relay.client(ADMIN).await;
    through.ok(Method::GET, "/api/v1/namespaces", None).await;
    upstream.stop().await;
    let request =
        http::Request::get("/api/v1/namespaces").body(kube::client::Body::empty()).unwrap();
    let answer = through.send(request).await;
    assert_eq!(answer.status(), 200);
    let age: f64 = answer.headers()["headwater-age"].to_str().unwrap().parse().unwrap();
    assert!((0.0..3600.0).contains(&age), "{age}");
    assert!(relay.metrics.registry.text().contains("headwater_relay_age_seconds{"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_moves_between_relay_and_upstream() {
    let upstream = Upstream::start().await;
    let direct = upstream.client(ADMIN).await;
    let relay = TestRelay::start(
        upstream.config(false).await,
        named(&["configmaps"]),
        RelayChoices::default(),
    )
    .await;
    let through = relay.client(ADMIN).await;
    let mut position = version(&through.ok(Method::GET, MAPS, None).await);
    for n in 0..6 {
        let written = direct.put_map("a", &format!("m{n}"), "x").await;
        let client = if n % 2 == 0 { &through } else { &direct };
        let mut watch = client.watch(&format!("{MAPS}?watch=1&resourceVersion={position}")).await;
        let event = watch.next().await;
        assert_eq!(event["type"], "ADDED");
        assert_eq!(
            (version(&event["object"]), &event["object"]["metadata"]["name"]),
            (written, &json!(format!("m{n}")))
        );
        position = written;
    }
    let list = format!(
        "{MAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    );
    let mut initial = through.watch(&list).await;
    for _ in 0..7 {
        let event = initial.next().await;
        if event["type"] == "BOOKMARK" {
            assert!(version(&event["object"]) >= position);
            return;
        }
    }
    panic!("no bookmark ended the initial events");
}

/// A relay of a part answers what is in the part, and passes on the rest.
#[tokio::test(flavor = "multi_thread")]
async fn a_part_is_never_shown_as_the_whole() {
    let upstream = Upstream::start().await;
    let direct = upstream.client(ADMIN).await;
    direct.put_map("a", "in", "x").await;
    direct.put_map("a", "out", "y").await;
    let part = named(&["configmaps?labelSelector=value=x"]);
    let relay = TestRelay::start(upstream.config(false).await, part, RelayChoices::default()).await;
    let through = relay.client(ADMIN).await;
    let forwarded = relay.sent("forward");
    let path = "/api/v1/namespaces/a/configmaps?labelSelector=value%3Dx";
    assert_eq!(names(&through.ok(Method::GET, path, None).await), ["in"]);
    assert_eq!(relay.sent("forward"), forwarded);
    let all = through.ok(Method::GET, "/api/v1/namespaces/a/configmaps", None).await;
    assert!(names(&all).contains(&"out"));
    through.ok(Method::GET, "/api/v1/namespaces/a/configmaps/out", None).await;
    assert_eq!(relay.sent("forward"), forwarded + 2);
    // It leaves the part, and enters it again.
    let start = version(&through.ok(Method::GET, path, None).await);
    let watched = format!("{path}&watch=1&resourceVersion={start}");
    let mut watch = through.watch(&watched).await;
    direct.put_map("a", "in", "z").await;
    assert_eq!(watch.next().await["type"], "DELETED");
    direct.put_map("a", "in", "x").await;
    assert_eq!(watch.next().await["type"], "ADDED");
}
