//! The HTTP source against servers that send scripted bytes: its requests, and all kinds of invalid
//! responses.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use headwater_client::informer::{Delays, Options};
use headwater_client::script::{
    At, Error, Event, Http, HttpOptions, ListQuery, ListWatch, Selection, Strip, WatchQuery,
};
use headwater_client::{Cached, Metrics, Packed, ResourceType};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::client::Body;
use kube::core::PartialObjectMeta;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::api::client;
use crate::support::*;

/// A server that sends the bytes of a test.
struct Raw {
    address: std::net::SocketAddr,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Shared {
    replies: Mutex<VecDeque<Reply>>,
    requests: Mutex<Vec<String>>,
    changed: Notify,
}

/// One response.
struct Reply {
    head: String,
    body: Vec<Piece>,
}

enum Piece {
    Bytes(Vec<u8>),
    /// Ends the body properly.
    End,
    /// Closes the connection within the body.
    Cut,
    /// Keeps the connection open without sending.
    Hold,
}

impl Raw {
    async fn start() -> Raw {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let inner = Arc::clone(&shared);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(answer(stream, Arc::clone(&inner)));
            }
        });
        Raw { address, shared, _tasks: tasks }
    }

    fn reply(&self, status: u16, headers: &str, body: Vec<Piece>) {
        let head = format!("HTTP/1.1 {status} X\r\ntransfer-encoding: chunked\r\n{headers}\r\n");
        self.shared.replies.lock().unwrap().push_back(Reply { head, body });
        self.shared.changed.notify_waiters();
    }

    fn ok(&self, body: &str) {
        self.reply(200, "", vec![Piece::Bytes(body.into()), Piece::End]);
    }

    fn requests(&self) -> Vec<String> {
        self.shared.requests.lock().unwrap().clone()
    }

    async fn requested(&self, count: usize) {
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.requests().len() >= count {
                return;
            }
            changed.await;
        }
    }

    fn source<K: Cached>(&self, options: HttpOptions) -> Http<K> {
        Http::new(client(self.address), &ResourceType::of::<ConfigMap>(&()), None, options)
    }
}

async fn answer(mut stream: TcpStream, shared: Arc<Shared>) {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => return,
            }
        }
        shared.requests.lock().unwrap().push(String::from_utf8(head).unwrap());
        shared.changed.notify_waiters();
        let reply = loop {
            let changed = shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(reply) = shared.replies.lock().unwrap().pop_front() {
                break reply;
            }
            changed.await;
        };
        if stream.write_all(reply.head.as_bytes()).await.is_err() {
            return;
        }
        for piece in reply.body {
            let written = match piece {
                Piece::Bytes(bytes) => {
                    let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
                    chunk.extend_from_slice(&bytes);
                    chunk.extend_from_slice(b"\r\n");
                    stream.write_all(&chunk).await
                }
                Piece::End => stream.write_all(b"0\r\n\r\n").await,
                Piece::Cut => return,
                Piece::Hold => {
                    // Until the peer closes the connection.
                    let mut byte = [0];
                    let _ = stream.read(&mut byte).await;
                    return;
                }
            };
            if written.is_err() {
                return;
            }
        }
    }
}

fn text(key: &str, version: &str) -> String {
    let (namespace, name) = key.split_once('/').unwrap();
    format!(
        r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"{name}","namespace":"{namespace}","uid":"uid-{key}","resourceVersion":"{version}","managedFields":[{{"manager":"m","operation":"Update"}}]}},"data":{{"k":"v"}}}}"#
    )
}

fn frame(event: &str, key: &str, version: &str) -> String {
    format!("{{\"type\":\"{event}\",\"object\":{}}}\n", text(key, version))
}

fn bookmark(version: &str, marker: bool) -> String {
    let annotations =
        if marker { r#","annotations":{"k8s.io/initial-events-end":"true"}"# } else { "" };
    format!(
        "{{\"type\":\"BOOKMARK\",\"object\":{{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{{\"resourceVersion\":\"{version}\"{annotations}}}}}}}\n"
    )
}

fn list(items: &[String], version: &str) -> String {
    format!(
        r#"{{"kind":"ConfigMapList","apiVersion":"v1","metadata":{{"resourceVersion":"{version}"}},"items":[{}]}}"#,
        items.join(",")
    )
}

fn bytes(text: impl Into<Vec<u8>>) -> Piece {
    Piece::Bytes(text.into())
}

fn watch_query(version: &str) -> WatchQuery {
    WatchQuery { at: At::AtLeast(version.into()), timeout_seconds: 300, ..WatchQuery::default() }
}

/// A client whose requests are answered by a function.
fn mock(
    answer: impl Fn(::http::Request<Body>) -> ::http::Response<String> + Send + Sync + 'static,
) -> Client {
    let answer = Arc::new(answer);
    let service = tower::service_fn(move |request| {
        let response =
            answer(request).map(|body| http_body_util::Full::new(bytes::Bytes::from(body)));
        async move { Ok::<_, std::convert::Infallible>(response) }
    });
    Client::new(service, "default")
}

/// C1.3, C1.18, C1.21
#[tokio::test]
async fn requests_go_through_the_kube_client_with_our_query_and_headers() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let client = mock(move |request| {
        log.lock().unwrap().push(request);
        ::http::Response::new(list(&[], "1"))
    });
    let resource = ResourceType::of::<ConfigMap>(&());
    let options = HttpOptions { component: "shop-operator/2.1".into(), ..HttpOptions::default() };
    let source = Http::<ConfigMap>::new(client, &resource, Some("shop"), options);
    let selection = Selection { labels: "a=b".into(), ..Selection::default() };
    source
        .list(ListQuery { selection, at: At::Any, limit: Some(500), continue_token: None })
        .await
        .unwrap();
    drop(source.watch(watch_query("7")).await.unwrap());
    let seen = seen.lock().unwrap();
    let uri = |at: usize| seen[at].uri().to_string();
    assert_eq!(
        uri(0),
        "/api/v1/namespaces/shop/configmaps?labelSelector=a%3Db&limit=500&resourceVersion=0"
    );
    assert_eq!(
        uri(1),
        "/api/v1/namespaces/shop/configmaps?watch=true&allowWatchBookmarks=true&timeoutSeconds=300&resourceVersion=7"
    );
    let agent = seen[0].headers()["user-agent"].to_str().unwrap();
    assert_eq!(agent, format!("shop-operator/2.1 headwater-client/{}", env!("CARGO_PKG_VERSION")));
    assert_eq!(seen[1].headers()["accept-encoding"], "identity", "watches are not compressed");
    assert!(!seen[0].headers().contains_key("accept-encoding"), "lists may be");
}

/// C1.19, C15.5
#[tokio::test]
async fn managed_fields_are_removed_by_the_server_or_by_the_client() {
    for (strip, accept, kept) in [
        (true, "application/json;drop=metadata.managedFields,application/json", false),
        (false, "application/json", true),
    ] {
        let raw = Raw::start().await;
        let options = HttpOptions {
            strip: Strip { managed_fields: strip, ..Strip::default() },
            ..HttpOptions::default()
        };
        let source = raw.source::<ConfigMap>(options);
        raw.ok(&list(&[text("a/b", "1")], "1"));
        let page = source.list(ListQuery::default()).await.unwrap();
        assert_eq!(page.items[0].metadata.managed_fields.is_some(), kept);
        raw.ok(&frame("ADDED", "a/b", "1"));
        let mut events = source.watch(watch_query("1")).await.unwrap();
        let Some(Ok(Event::Added(map))) = events.next().await else { panic!() };
        assert_eq!(map.metadata.managed_fields.is_some(), kept);
        assert!(
            raw.requests()[0].contains(&format!("accept: {accept}\r\n")),
            "{}",
            raw.requests()[0]
        );
    }
}

/// C15.5, C15.6
#[tokio::test]
async fn metadata_only_requests_partial_objects() {
    let raw = Raw::start().await;
    let options = HttpOptions { metadata_only: true, ..HttpOptions::default() };
    let source = raw.source::<PartialObjectMeta<ConfigMap>>(options);
    let partial = text("a/b", "1")
        .replace("\"ConfigMap\"", "\"PartialObjectMetadata\"")
        .replace("\"v1\"", "\"meta.k8s.io/v1\"");
    raw.ok(&format!("{{\"type\":\"ADDED\",\"object\":{partial}}}\n"));
    let mut events = source.watch(watch_query("1")).await.unwrap();
    let Some(Ok(Event::Added(object))) = events.next().await else { panic!() };
    assert_eq!(object.key().as_str(), "a/b");
    assert!(raw.requests()[0].contains("as=PartialObjectMetadata;g=meta.k8s.io;v=v1"));
}

/// C1.8, C1.11, B249
#[tokio::test]
async fn the_status_is_checked_before_the_body_and_nothing_is_retried() {
    let raw = Raw::start().await;
    let source = raw.source::<ConfigMap>(HttpOptions::default());
    let status = r#"{"kind":"Status","status":"Failure","reason":"TooManyRequests","message":"m","details":{"retryAfterSeconds":9},"code":429}"#;
    for (code, headers, body, retry_after) in [
        (429, "retry-after: 7\r\n", status, Some(7)),
        (429, "", status, Some(9)),
        (503, "retry-after: 3\r\n", "<html>", Some(3)),
        (504, "", "plain text", None),
        (302, "location: http://example.invalid/\r\n", "", None),
        (500, "", "", None),
    ] {
        raw.reply(code, headers, vec![bytes(if body.is_empty() { " " } else { body }), Piece::End]);
        let error = source.list(ListQuery::default()).await.unwrap_err();
        let Error::Status(status) = error else { panic!("{error:?}") };
        assert_eq!(status.code, code);
        assert_eq!(status.retry_after, retry_after.map(Duration::from_secs), "{code}");
        raw.reply(code, headers, vec![bytes("x"), Piece::End]);
        let Err(Error::Status(status)) = source.watch(watch_query("1")).await else { panic!() };
        assert_eq!(status.code, code);
    }
    assert_eq!(raw.requests().len(), 12, "one request each");
}

/// C1.9
#[tokio::test]
async fn at_most_a_mebibyte_of_an_error_is_read() {
    let raw = Raw::start().await;
    let source = raw.source::<ConfigMap>(HttpOptions::default());
    let endless: Vec<Piece> =
        (0..64).map(|_| bytes(vec![b'x'; 64 << 10])).chain([Piece::Hold]).collect();
    raw.reply(500, "", endless);
    let error = source.list(ListQuery::default()).await.unwrap_err();
    assert!(
        matches!(error, Error::Status(status) if status.code == 500),
        "it did not wait for the end"
    );
}

/// C1.14
#[tokio::test]
async fn dropping_a_list_or_a_watch_closes_the_connection() {
    let raw = Raw::start().await;
    let source = raw.source::<ConfigMap>(HttpOptions::default());
    raw.reply(200, "", vec![bytes(r#"{"items":["#), Piece::Hold]);
    let listing = source.list(ListQuery::default());
    tokio::pin!(listing);
    tokio::select! {
        _ = &mut listing => panic!("it hangs"),
        () = raw.requested(1) => {}
    }
    raw.reply(200, "", vec![bytes(bookmark("2", false)), Piece::Hold]);
    let mut events = source.watch(watch_query("1")).await.unwrap();
    assert!(matches!(events.next().await, Some(Ok(Event::Bookmark { .. }))));
    assert!(events.next().now_or_never().is_none());
    drop(events);
    // The tasks of the raw server finish only after both connections are closed.
}

/// C1.15: a frame of 10 MB, and one above the limit.
#[tokio::test]
async fn large_frames_arrive_and_endless_ones_end_the_stream() {
    let raw = Raw::start().await;
    let source = raw.source::<Packed<ConfigMap>>(HttpOptions::default());
    let big = "x".repeat(10 << 20);
    let object = text("a/big", "5").replace("\"v\"}", &format!("\"{big}\"}}"));
    let frame = format!("{{\"type\":\"ADDED\",\"object\":{object}}}\n");
    let pieces: Vec<Piece> =
        frame.as_bytes().chunks(1 << 20).map(bytes).chain([Piece::End]).collect();
    raw.reply(200, "", pieces);
    let mut events = source.watch(watch_query("1")).await.unwrap();
    let Some(Ok(Event::Added(packed))) = events.next().await else { panic!() };
    assert!(packed.text().len() > 10 << 20);
    assert!(events.next().await.is_none());

    let endless: Vec<Piece> =
        (0..40).map(|_| bytes(vec![b'x'; 1 << 20])).chain([Piece::Hold]).collect();
    raw.reply(200, "", endless);
    let mut events = source.watch(watch_query("1")).await.unwrap();
    let error = events.next().await.unwrap().unwrap_err();
    assert!(matches!(error, Error::TooLong { max } if max == 16 << 20), "{error:?}");
    assert!(events.next().await.is_none(), "an error is the last item");
}

/// C1.15, B240: a connection that is cut within a frame, garbage, and invalid UTF-8.
#[tokio::test]
async fn a_stream_that_cannot_be_read_ends_with_an_error_after_its_good_events() {
    let good = frame("ADDED", "a/b", "2");
    let half = frame("ADDED", "a/c", "3");
    for (name, rest, ending) in [
        ("cut in a frame", half.as_bytes()[..40].to_vec(), Piece::Cut),
        ("ended in a frame", half.as_bytes()[..40].to_vec(), Piece::End),
        ("garbage", b"\x00\x01garbage\n".to_vec(), Piece::End),
        ("no UTF-8", b"{\"type\":\"ADDED\",\"object\":\"\xff\xfe\"}\n".to_vec(), Piece::End),
        ("reset", Vec::new(), Piece::Cut),
    ] {
        let raw = Raw::start().await;
        let source = raw.source::<ConfigMap>(HttpOptions::default());
        let mut pieces = vec![bytes(good.clone())];
        if !rest.is_empty() {
            pieces.push(bytes(rest));
        }
        pieces.push(ending);
        raw.reply(200, "", pieces);
        let events: Vec<_> = source.watch(watch_query("1")).await.unwrap().collect().await;
        assert!(matches!(events[0], Ok(Event::Added(_))), "{name}");
        assert!(events[1].is_err(), "{name}: {events:?}");
        assert_eq!(events.len(), 2, "{name}");
    }
}

/// C1.10, C1.12, B250
#[tokio::test]
async fn a_response_that_is_not_a_list_of_objects_gives_no_objects() {
    let raw = Raw::start().await;
    let source = raw.source::<ConfigMap>(HttpOptions::default());
    for body in [
        "<html>login</html>",
        r#"{"kind":"Table","metadata":{"resourceVersion":"1"},"rows":[]}"#,
        r#"{"kind":"ConfigMapList","metadata":{},"items":[]}"#,
        r#"{"kind":"ConfigMapList","metadata":{"resourceVersion":"1"},"items":[5]}"#,
        r#"{"kind":"ConfigMapList","metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a"}}"#,
    ] {
        raw.ok(body);
        assert!(source.list(ListQuery::default()).await.is_err(), "{body}");
    }
}

fn quick(name: &str) -> Options {
    let mut options = options(name);
    options.delays = Delays { first: Duration::from_millis(5), longest: Duration::from_millis(20) };
    options
}

/// C1.11, C5.1, R60, R65: all faults in a row; the informer ends converged, and no event is lost or
/// duplicated.
#[tokio::test]
async fn an_informer_survives_every_fault_and_ends_converged() {
    let raw = Raw::start().await;
    let source =
        raw.source::<ConfigMap>(HttpOptions { watch_list: false, ..HttpOptions::default() });
    let metrics = Metrics::new();
    let mut options = quick("faults");
    options.metrics = Some(metrics.clone());
    let running = Running::start(Arc::new(source), options);
    let (journal, _handler) = Journal::of(&running.informer);
    let status = |code: u16, reason: &str| {
        format!(
            r#"{{"kind":"Status","status":"Failure","reason":"{reason}","message":"m","code":{code}}}"#
        )
    };
    let error = |code: u16, reason: &str| {
        format!("{{\"type\":\"ERROR\",\"object\":{}}}\n", status(code, reason))
    };
    // 429 on the first list, then the list.
    raw.reply(429, "retry-after: 0\r\n", vec![bytes(status(429, "TooManyRequests")), Piece::End]);
    raw.ok(&list(&[text("n/a", "1")], "10"));
    // Cut within a frame.
    let half = frame("ADDED", "n/c", "12");
    raw.reply(
        200,
        "",
        vec![bytes(frame("ADDED", "n/b", "11")), bytes(&half.as_bytes()[..30]), Piece::Cut],
    );
    // Garbage.
    raw.reply(200, "", vec![bytes(half), bytes("garbage\n"), Piece::End]);
    // 503 at the start, 500 in the stream.
    raw.reply(503, "", vec![bytes("<html>"), Piece::End]);
    raw.reply(
        200,
        "",
        vec![bytes(frame("MODIFIED", "n/a", "13")), bytes(error(500, "InternalError")), Piece::End],
    );
    // 410 in the stream; the version of the list is too large for a server that lags behind.
    raw.reply(200, "", vec![bytes(error(410, "Expired")), Piece::End]);
    let too_large = r#"{"kind":"Status","status":"Failure","reason":"Timeout","message":"m","details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"m"}],"retryAfterSeconds":1},"code":504}"#;
    raw.reply(504, "", vec![bytes(too_large), Piece::End]);
    raw.ok(&list(&[text("n/a", "13"), text("n/d", "20")], "20"));
    // 410 as a status.
    raw.reply(410, "", vec![bytes(status(410, "Expired")), Piece::End]);
    raw.ok(&list(&[text("n/d", "21")], "21"));
    raw.reply(200, "", vec![bytes(frame("ADDED", "n/e", "22")), Piece::Hold]);
    running.informer.wait_for_rv(&"22".into(), PATIENCE).await.unwrap();
    while journal.len() < 11 {
        tokio::task::yield_now().await;
    }
    assert_eq!(running.keys(), ["n/d", "n/e"]);
    assert_eq!(
        journal.take(),
        [
            "Initial(n/a@1)",
            "Added(n/b@11)",
            "Added(n/c@12)",
            "Updated(n/a@13 from 1)",
            "Gone(n/b, observed: false)",
            "Gone(n/c, observed: false)",
            "Updated(n/a@13 from 13)",
            "Added(n/d@20)",
            "Gone(n/a, observed: false)",
            "Updated(n/d@21 from 20)",
            "Added(n/e@22)",
        ]
    );
    let versions: Vec<String> = raw
        .requests()
        .iter()
        .map(|request| {
            let line = request.lines().next().unwrap();
            let kind = if line.contains("watch=true") { "watch" } else { "list" };
            let version = line
                .split("resourceVersion=")
                .nth(1)
                .map(|rest| rest.split(['&', ' ']).next().unwrap());
            format!("{kind} {}", version.unwrap_or("-"))
        })
        .collect();
    assert_eq!(
        versions,
        [
            "list 0", "list 0", "watch 10", "watch 11", "watch 12", "watch 12", "watch 13",
            "list 13", "list -", "watch 20", "list 20", "watch 21",
        ]
    );
    let requests = metrics.value("rest_client_requests_total{method=\"GET\",code=\"429\"}");
    assert_eq!(requests, None, "this source counts nothing; a factory's does");
}

/// C2.12: stored objects do not keep the page in memory.
#[tokio::test]
async fn packed_objects_own_exactly_their_text() {
    let raw = Raw::start().await;
    let options = HttpOptions { strip: Strip::default(), ..HttpOptions::default() };
    let source = raw.source::<Packed<ConfigMap>>(options);
    let items: Vec<String> = (0..100).map(|n| text(&format!("a/o{n}"), "1")).collect();
    raw.ok(&list(&items, "1"));
    let page = source.list(ListQuery::default()).await.unwrap();
    for (packed, item) in page.items.iter().zip(&items) {
        assert_eq!(packed.text(), item);
        assert_eq!(packed.size(), size_of::<Packed<ConfigMap>>() + item.len());
    }
}
