//! Deltas and shards, with a fake server and with a real one.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use headwater_client::calls::Calls;
use headwater_client::script::{At, Event, Http, HttpOptions, ListQuery, ListWatch, WatchQuery};
use headwater_client::{Cached, Factory, Key, Packed, ResourceType, ShardField, ShardSelector};
use headwater_testing::TestServer;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::client::Body;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::support::*;

type Requests = Arc<Mutex<Vec<(String, String)>>>;

/// A server that answers lists with `list` and watches with `lines`; and the path and Accept header
/// of each request.
fn answering(list: &str, lines: &str) -> (Client, Requests) {
    let seen = Requests::default();
    let (log, list, lines) = (Arc::clone(&seen), list.to_owned(), lines.to_owned());
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let path = request.uri().to_string();
        let body = if path.contains("watch=true") { lines.clone() } else { list.clone() };
        let accept = request.headers()["accept"].to_str().unwrap().to_owned();
        log.lock().unwrap().push((path, accept));
        let body = http_body_util::Full::new(bytes::Bytes::from(body));
        async move { Ok::<_, std::convert::Infallible>(http::Response::new(body)) }
    });
    (Client::new(service, "default"), seen)
}

fn source(client: Client) -> Http<Packed<ConfigMap>> {
    let resource = ResourceType::of::<ConfigMap>(&());
    Http::new(client, &resource, None, HttpOptions::default())
}

fn from(version: &str) -> WatchQuery {
    WatchQuery { at: At::AtLeast(version.into()), timeout_seconds: 300, ..WatchQuery::default() }
}

const LIST: &str = r#"{"kind":"ConfigMapList","metadata":{"resourceVersion":"9"},"items":[{"metadata":{"resourceVersion":"5","name":"a","uid":"u"},"data":{"v":"one"}}]}"#;
const WITH_TYPE: &str = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"12","name":"a","uid":"u"},"data":{"v":"two"}}"#;

/// C1.22
#[tokio::test]
async fn a_delta_changes_the_text_that_a_packed_object_keeps() {
    let at = WITH_TYPE.find("two").unwrap();
    let lines =
        format!("{{\"delta\":[\"5\",\"12\",{at},\"two\"]}}\n{{\"delta\":[\"5\",\"13\"]}}\n");
    let (client, seen) = answering(LIST, &lines);
    let source = source(client);
    drop(source.watch(from("9")).await.unwrap());
    for _ in 0..4 {
        source.list(ListQuery::default()).await.unwrap();
        let mut events = source.watch(from("9")).await.unwrap();
        let Some(Ok(Event::Modified(map))) = events.next().await else { panic!("no change") };
        assert_eq!(map.text(), WITH_TYPE);
        // The text of version 5 is no more: the position counts as gone, and the stream ends.
        let Some(Ok(Event::Error(status))) = events.next().await else { panic!("no error") };
        assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
        assert!(events.next().await.is_none());
        if seen.lock().unwrap().iter().filter(|(_, accept)| accept.contains("delta")).count() == 3 {
            break;
        }
    }
    source.list(ListQuery::default()).await.unwrap();
    drop(source.watch(from("9")).await.unwrap());
    let seen = seen.lock().unwrap();
    let accept = "application/json;drop=metadata.managedFields,application/json";
    let delta = "application/json;drop=metadata.managedFields;delta=v1,application/json";
    let watches: Vec<&str> = seen
        .iter()
        .filter(|(path, _)| path.contains("watch=true"))
        .map(|(_, accept)| accept.as_str())
        .collect();
    // Without a list there is nothing to change; after three failures deltas are not asked for.
    assert_eq!(watches, [accept, delta, delta, delta, accept]);
}

/// A client of the server, and what its requests accept.
fn recorded(server: &TestServer) -> (Client, Requests) {
    let seen = Requests::default();
    let (log, client) = (Arc::clone(&seen), server.client());
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let header = request.headers().get("accept");
        let accept = header.map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
        log.lock().unwrap().push((request.uri().to_string(), accept));
        let client = client.clone();
        async move { client.send(request).await }
    });
    (Client::new(service, "default"), seen)
}

async fn until(condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            sleep(SECOND / 100).await;
        }
    };
    timeout(PATIENCE, wait).await.expect("it becomes true");
}

/// C1.22
#[tokio::test]
async fn a_packed_informer_follows_a_server_by_deltas() {
    let server = TestServer::start().await;
    let (client, seen) = recorded(&server);
    let calls = Calls::new(server.client()).of::<ConfigMap>();
    for name in ["a", "b"] {
        let mut map = map(&format!("default/{name}"), "");
        map.metadata.uid = None;
        map.data = Some([("long".to_owned(), "x".repeat(500))].into());
        calls.create(&map).await.unwrap();
    }
    let factory = Factory::new(client.clone());
    let maps = factory.informer::<ConfigMap>().namespace("default").packed().open().unwrap();
    let (stop, mut parts) = (CancellationToken::new(), JoinSet::new());
    let run = (factory.clone(), stop.clone());
    parts.spawn(async move { run.0.run(run.1).await });
    until(|| maps.has_synced()).await;
    let key = Key::namespaced("default", "a");
    let mut last = String::new();
    for round in 0..40 {
        let patch = json!({ "data": { format!("k{}", round % 7): round.to_string() } });
        let written = calls.merge(&key, &patch).await.unwrap();
        last = written.resource_version().to_string();
    }
    until(|| {
        let snapshot = maps.snapshot();
        snapshot.get(&key).is_some_and(|map| map.resource_version().to_string() == last)
    })
    .await;
    let request = http::Request::get("/api/v1/namespaces/default/configmaps/a")
        .header("accept", "application/json;drop=metadata.managedFields")
        .body(Vec::new())
        .unwrap();
    let text = server.client().request_text(request).await.unwrap();
    assert_eq!(maps.snapshot().get(&key).unwrap().text(), text.trim_end());
    let seen = seen.lock().unwrap().clone();
    let watches = seen.iter().filter(|(path, _)| path.contains("watch=true"));
    let accepts: Vec<&String> = watches.map(|(_, accept)| accept).collect();
    assert!(accepts.iter().all(|accept| accept.contains(";delta=v1")), "{accepts:?}");
    assert_eq!(accepts.len(), 1, "no delta was refused: {seen:?}");
    stop.cancel();
    parts.join_all().await;
}

/// C1.23
#[tokio::test]
async fn the_shards_of_a_factory_are_the_collection() {
    let server = TestServer::start().await;
    let calls = Calls::new(server.client()).of::<ConfigMap>();
    for index in 0..40 {
        let mut map = map(&format!("default/m{index}"), "");
        map.metadata.uid = None;
        calls.create(&map).await.unwrap();
    }
    let whole = server.factory();
    assert!(whole.shard(3, 3).is_err());
    let (stop, mut parts) = (CancellationToken::new(), JoinSet::new());
    let mut found = BTreeSet::new();
    for index in 0..3 {
        let factory = whole.shard(index, 3).unwrap();
        let maps = factory.informer::<ConfigMap>().namespace("default").open().unwrap();
        let all = factory.informer::<ConfigMap>().namespace("default").all_shards().open().unwrap();
        let run = (factory, stop.clone());
        parts.spawn(async move { run.0.run(run.1).await });
        until(|| maps.has_synced() && all.has_synced()).await;
        assert_eq!(all.snapshot().len(), 40);
        let shard = ShardSelector::part(ShardField::Uid, index, 3).unwrap();
        for map in maps.snapshot().list() {
            assert!(shard.includes(map.uid(), "default"));
            assert!(found.insert(map.key()), "in one shard only");
        }
    }
    assert_eq!(found.len(), 40);
    stop.cancel();
    parts.join_all().await;
}

/// C1.23
#[tokio::test]
async fn a_server_that_sends_everything_is_filtered() {
    let item = |name: &str, uid: &str| {
        format!(r#"{{"metadata":{{"resourceVersion":"5","name":"{name}","uid":"{uid}"}}}}"#)
    };
    let shard = ShardSelector::part(ShardField::Uid, 0, 2);
    let is_in = |uid: &str| shard.as_ref().unwrap().includes(uid, "");
    let (inside, outside) = ("u1", "a");
    assert!(is_in(inside) != is_in(outside), "choose other uids");
    let (inside, outside) = if is_in(inside) { (inside, outside) } else { (outside, inside) };
    let items = [item("out", outside), item("in", inside)].join(",");
    let list = format!(
        r#"{{"kind":"ConfigMapList","metadata":{{"resourceVersion":"9"}},"items":[{items}]}}"#
    );
    let event = |item: &str| format!("{{\"type\":\"ADDED\",\"object\":{item}}}\n");
    let lines = event(&item("out", outside)) + &event(&item("in", inside));
    let (client, seen) = answering(&list, &lines);
    let source = source(client);
    let query = ListQuery {
        selection: headwater_client::script::Selection {
            shard: shard.clone(),
            ..Default::default()
        },
        ..ListQuery::default()
    };
    let page = source.list(query.clone()).await.unwrap();
    let names: Vec<&str> = page.items.iter().map(|map| map.name()).collect();
    assert_eq!((names, page.skipped), (vec!["in"], 0));
    let watch = WatchQuery { selection: query.selection, ..from("9") };
    let events: Vec<_> = source.watch(watch).await.unwrap().collect().await;
    assert!(matches!(events.as_slice(), [Ok(Event::Added(map))] if map.name() == "in"));
    assert!(seen.lock().unwrap().iter().all(|(path, _)| path.contains("shardSelector=shardRange")));
}
