//! A hostile upstream: the relay keeps what is true, and recovers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Method;
use kube::Config;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::world::{RelayChoices, TestRelay, eventually, named, names};

const MAPS: &str = "/api/v1/configmaps";

fn map(name: &str, revision: u64) -> Value {
    json!({
        "kind": "ConfigMap", "apiVersion": "v1",
        "metadata": { "name": name, "namespace": "a", "uid": name, "resourceVersion": revision.to_string() },
    })
}

fn event(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({ "type": kind, "object": object }))
}

/// The state of a server whose answers the test scripts.
#[derive(Default)]
struct Script {
    /// The objects and the revision of lists.
    objects: Vec<Value>,
    revision: u64,
    /// What each watch sends; the last is repeated, and stays open.
    watches: VecDeque<Vec<u8>>,
    /// All watches stay open.
    stalls: bool,
    /// What watches of metadata send, if not a bookmark at the revision.
    probes: Option<Vec<u8>>,
    /// The state after the first watch.
    later: Option<(u64, Vec<Value>)>,
    /// How many lists do not end.
    endless: usize,
}

/// A server without rules.
struct HostileServer {
    script: Arc<Mutex<Script>>,
    port: u16,
    _tasks: JoinSet<()>,
}

impl HostileServer {
    async fn start(watches: &[Vec<u8>]) -> HostileServer {
        let script = Script {
            objects: vec![map("first", 10)],
            revision: 10,
            watches: watches.iter().cloned().collect(),
            stalls: false,
            probes: None,
            later: None,
            endless: 0,
        };
        let script = Arc::new(Mutex::new(script));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut tasks = JoinSet::new();
        let shared = Arc::clone(&script);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                connections.spawn(answer(socket, Arc::clone(&shared)));
            }
        });
        HostileServer { script, port, _tasks: tasks }
    }

    fn config(&self) -> Config {
        Config::new(format!("http://127.0.0.1:{}", self.port).parse().unwrap())
    }

    fn set(&self, revision: u64, objects: &[Value]) {
        let mut script = self.script.lock().unwrap();
        script.revision = revision;
        script.objects = objects.to_vec();
    }
}

/// Whether this list is one that does not end.
fn is_endless(script: &Mutex<Script>) -> bool {
    let mut script = script.lock().unwrap();
    let is_endless = script.endless > 0;
    script.endless = script.endless.saturating_sub(1);
    is_endless
}

async fn answer(mut socket: TcpStream, script: Arc<Mutex<Script>>) {
    let mut request = Vec::new();
    let (head, length) = loop {
        let mut bytes = [0; 4096];
        let Ok(read @ 1..) = socket.read(&mut bytes).await else { return };
        request.extend_from_slice(&bytes[..read]);
        let text = String::from_utf8_lossy(&request).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| {
            line.to_ascii_lowercase()
                .strip_prefix("content-length:")
                .map(|n| n.trim().parse::<usize>().unwrap())
        });
        if body.len() >= length.unwrap_or(0) {
            break (head.to_owned(), body.to_owned());
        }
    };
    let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let respond = |value: Value| {
        let body = value.to_string();
        format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let text = match path {
        "/api/v1" => respond(json!({ "resources": [{
            "name": "configmaps", "kind": "ConfigMap", "namespaced": true, "verbs": ["get", "list", "watch"],
        }] })),
        "/api/v1/namespaces/kube-system" => respond(json!({ "metadata": { "uid": "u" } })),
        "/apis/authentication.k8s.io/v1/tokenreviews" => {
            respond(json!({ "status": { "authenticated": true, "user": { "username": "u" } } }))
        }
        "/apis/authorization.k8s.io/v1/subjectaccessreviews" => {
            respond(json!({ "status": { "allowed": true } }))
        }
        MAPS if query.contains("watch=true") && head.contains("PartialObjectMetadata") => {
            let (revision, probes) = {
                let script = script.lock().unwrap();
                (script.revision, script.probes.clone())
            };
            let mark = json!({ "metadata": { "resourceVersion": revision.to_string() } });
            let head = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
            let sent = probes.unwrap_or_else(|| event("BOOKMARK", &mark).into_bytes());
            format!("{head}{}", String::from_utf8(sent).unwrap())
        }
        MAPS if query.contains("watch=true") => {
            let sent = {
                let mut script = script.lock().unwrap();
                let stalls = script.stalls;
                match script.watches.len() {
                    0 | 1 => (script.watches.front().cloned().unwrap_or_default(), true),
                    _ => {
                        script.revision = script.revision.max(20);
                        if let Some((revision, objects)) = script.later.take() {
                            (script.revision, script.objects) = (revision, objects);
                        }
                        (script.watches.pop_front().unwrap_or_default(), stalls)
                    }
                }
            };
            let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n").await;
            let _ = socket.write_all(&sent.0).await;
            let _ = socket.flush().await;
            if sent.1 {
                std::future::pending::<()>().await;
            }
            return;
        }
        MAPS if !head.contains("PartialObjectMetadata") && is_endless(&script) => {
            let _ =
                socket.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{\"items\":[").await;
            let bytes = vec![b' '; 1 << 20];
            while socket.write_all(&bytes).await.is_ok() {}
            return;
        }
        MAPS => {
            let script = script.lock().unwrap();
            respond(json!({
                "kind": "ConfigMapList", "apiVersion": "v1",
                "metadata": { "resourceVersion": script.revision.to_string() }, "items": script.objects,
            }))
        }
        _ => "HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".to_owned(),
    };
    let _ = (socket.write_all(text.as_bytes()).await, length);
}

/// A relay of a hostile server, whose first watches send these bytes. In the end the server is honest
/// again: the relay has to have all of it.
#[track_caller]
fn check(watches: &[Vec<u8>], fault: &'static str) -> impl Future<Output = ()> {
    let mut watches = watches.to_vec();
    let has_good = watches.iter().any(|watch| watch.windows(8).any(|text| text == b"\"second\""));
    watches.push(event("ADDED", &map("last", 90)).into_bytes());
    async move {
        let server = HostileServer::start(&watches).await;
        let relay =
            TestRelay::start(server.config(), named(&["configmaps"]), RelayChoices::default())
                .await;
        let client = relay.client("any").await;
        let any = format!("{MAPS}?resourceVersion=0");
        // Whatever it says meanwhile: what was true stays.
        let shown = eventually(async || {
            let list = client.ok(Method::GET, &any, None).await;
            assert!(names(&list).contains(&"first"), "{fault}: {list}");
            names(&list).contains(&"last").then_some(list)
        })
        .await;
        assert!(!names(&shown).contains(&"untrue"), "{fault}: {shown}");
        assert_eq!(names(&shown).contains(&"second"), has_good, "{fault}: {shown}");
        assert_eq!(relay.sent("list"), 1, "{fault}: it goes on from the last good revision");
        assert!(relay.metric("headwater_relay_faults_total", fault) > 0, "{fault}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn violations_of_an_upstream_are_counted_and_survived() {
    let good = event("ADDED", &map("second", 20));
    let lines = |lines: &[&str]| lines.concat().into_bytes();
    let old = event("ADDED", &map("untrue", 5));
    check(&[lines(&[&good, &old])], "order").await;
    check(&[lines(&[&good, &good, &good])], "duplicate").await;
    check(&[lines(&[&good, "{\"type\":\"ADDED\",\"object\":{\n"])], "broken").await;
    check(&[lines(&[&good, "nonsense\n"])], "broken").await;
    check(&[lines(&["\u{0}\u{1}\n"])], "broken").await;
    let nameless = event("ADDED", &json!({ "metadata": { "resourceVersion": "30" } }));
    check(&[lines(&[&good, &nameless])], "object").await;
    let other = event(
        "ADDED",
        &json!({ "kind": "Secret", "metadata": { "name": "untrue", "resourceVersion": "30" } }),
    );
    check(&[lines(&[&good, &other])], "object").await;
    let mark = json!({ "metadata": { "resourceVersion": "3" } });
    check(&[lines(&[&good, &event("BOOKMARK", &mark)])], "order").await;
    let failed =
        json!({ "kind": "Status", "code": 500, "reason": "InternalError", "message": "no" });
    check(&[lines(&[&event("ERROR", &failed)])], "error").await;
}

/// A watch that stays open and sends nothing although something happened is left for another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_stalls_is_abandoned() {
    let last = event("ADDED", &map("last", 90)).into_bytes();
    let server = HostileServer::start(&[Vec::new(), Vec::new(), last.clone()]).await;
    {
        let mut script = server.script.lock().unwrap();
        (script.stalls, script.probes) = (true, Some(last));
    }
    let choices =
        RelayChoices { silence: Some(Duration::from_millis(50)), ..RelayChoices::default() };
    let relay = TestRelay::start(server.config(), named(&["configmaps"]), choices).await;
    let client = relay.client("any").await;
    let any = format!("{MAPS}?resourceVersion=0");
    eventually(async || {
        let list = client.ok(Method::GET, &any, None).await;
        (names(&list) == ["first", "last"]).then_some(())
    })
    .await;
    assert!(relay.metric("headwater_relay_faults_total", "silence") >= 2);
    assert_eq!(relay.sent("list"), 1);
}

/// Kubernetes sends no bookmarks of a resource that did not change since its start.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_is_silent_because_nothing_happens_goes_on() {
    let server = HostileServer::start(&[Vec::new()]).await;
    server.script.lock().unwrap().probes = Some(Vec::new());
    let choices =
        RelayChoices { silence: Some(Duration::from_millis(20)), ..RelayChoices::default() };
    let relay = TestRelay::start(server.config(), named(&["configmaps"]), choices).await;
    eventually(async || (relay.sent("progress") > 3).then_some(())).await;
    assert_eq!(relay.sent("watch"), 1);
    assert_eq!(relay.metric("headwater_relay_faults_total", "fault"), 0);
}

/// R99: without bookmarks nothing proves that the newest state is held. The upstream answers then.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_cannot_be_proven_fresh_is_passed_on() {
    let server = HostileServer::start(&[Vec::new()]).await;
    server.script.lock().unwrap().probes = Some(Vec::new());
    let relay =
        TestRelay::start(server.config(), named(&["configmaps"]), RelayChoices::default()).await;
    let client = relay.client("any").await;
    for (count, revision) in [(1, 11), (2, 15), (3, 99)] {
        server.set(revision, &[map("first", 10)]);
        let list = client.ok(Method::GET, MAPS, None).await;
        assert_eq!(list["metadata"]["resourceVersion"], revision.to_string());
        assert_eq!(relay.sent("forward"), count);
    }
    assert_eq!(relay.sent("progress"), 1, "what cannot be proven is not tried for each read");
    // Other reads are answered from what is held.
    client.ok(Method::GET, &format!("{MAPS}?resourceVersion=0"), None).await;
    assert_eq!(relay.sent("forward"), 3);
}

/// An endless line and a huge object are given up at the limit, not held in memory.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_without_an_end_is_given_up() {
    let huge = vec![b'x'; 17 << 20];
    check(&[huge], "broken").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_without_an_end_is_given_up() {
    let server = HostileServer::start(&[Vec::new()]).await;
    server.script.lock().unwrap().endless = 1;
    let relay =
        TestRelay::start(server.config(), named(&["configmaps"]), RelayChoices::default()).await;
    let client = relay.client("any").await;
    let list = client.ok(Method::GET, &format!("{MAPS}?resourceVersion=0"), None).await;
    assert_eq!(names(&list), ["first"]);
    assert_eq!(relay.sent("list"), 2);
    assert_eq!(relay.metric("headwater_relay_faults_total", "fault=\"list\""), 1);
}

/// An object that is changed although nobody has heard of it means that something was missed: the relay
/// reads everything again.
#[tokio::test(flavor = "multi_thread")]
async fn a_hole_in_the_history_is_noticed() {
    let unknown = event("MODIFIED", &map("unknown", 20)).into_bytes();
    let server = HostileServer::start(&[unknown, Vec::new()]).await;
    let later = vec![map("first", 10), map("unknown", 20)];
    server.script.lock().unwrap().later = Some((30, later));
    let relay =
        TestRelay::start(server.config(), named(&["configmaps"]), RelayChoices::default()).await;
    let client = relay.client("any").await;
    let any = format!("{MAPS}?resourceVersion=0");
    eventually(async || {
        let list = client.ok(Method::GET, &any, None).await;
        (names(&list) == ["first", "unknown"]).then_some(())
    })
    .await;
    assert!(relay.sent("list") >= 2);
}

/// R99: a server whose bookmarks are slow, as Kubernetes' are: a quiet resource reaches the newest revision by
/// a proof of its own.
#[tokio::test(flavor = "multi_thread")]
async fn progress_is_proven_where_no_event_shows_it() {
    let server = HostileServer::start(&[Vec::new()]).await;
    let relay =
        TestRelay::start(server.config(), named(&["configmaps"]), RelayChoices::default()).await;
    let client = relay.client("any").await;
    for revision in [11, 15, 99] {
        server.set(revision, &[map("first", 10)]);
        let list =
            tokio::time::timeout(Duration::from_secs(20), client.ok(Method::GET, MAPS, None));
        let list = list.await.unwrap();
        assert_eq!(list["metadata"]["resourceVersion"], revision.to_string());
    }
    assert!(relay.sent("progress") >= 3);
}
