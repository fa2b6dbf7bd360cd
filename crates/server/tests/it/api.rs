//! The test harness of the server: over the memory store, with a fixed clock, without a socket. A
//! request is a line of text; a response is checked by one call that reports the caller's line.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use headwater_api::Clock;
use headwater_api::trace::TraceSpan;
use headwater_cache::Options as CacheOptions;
use headwater_json::{Value, json};
use headwater_server::audit::{Audit, AuditOptions, AuditWebhook, LogOptions, Policy};
use headwater_server::authenticator::Authenticator;
use headwater_server::containers::ContainerRuntime;
use headwater_server::identity::{ClientCertificate, Identity, Peer, Transport};
use headwater_server::listen::Listener;
use headwater_server::metrics::Metrics;
use headwater_server::pki::{Pair, Pki, Secret};
use headwater_server::service_account::Issuer;
use headwater_server::trace::Tracer;
use headwater_server::{Authorization, Body, Options, Running, Server, Settings, body, start};
use headwater_store::{Memory, Store};
use http::{HeaderMap, Request};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

/// The fixed time of every test.
pub(crate) const NOW: &str = "2026-01-02T03:04:05Z";

struct Still(Timestamp);

impl Clock for Still {
    fn now(&self) -> Timestamp {
        self.0
    }
}

/// The clock of most tests.
fn still() -> Arc<dyn Clock> {
    Arc::new(Still(NOW.parse().unwrap()))
}

/// A server and a client.
pub(crate) struct Api {
    pub(crate) server: Server,
    pub(crate) metrics: Metrics,
    peer: Peer,
    running: Running,
}

impl Api {
    /// A new server with a namespace `ns` and an administrator's client.
    pub(crate) async fn start() -> Api {
        Api::with(Settings::default(), CacheOptions::default()).await
    }

    pub(crate) async fn with(settings: Settings, cache: CacheOptions) -> Api {
        let api = Api::made(Arc::new(Memory::default()), settings, cache).await;
        api.create_namespace().await;
        api
    }

    /// A server over this store, with a namespace `ns`.
    pub(crate) async fn in_namespace(store: Arc<dyn Store>) -> Api {
        let api = Api::over(store).await;
        api.create_namespace().await;
        api
    }

    async fn create_namespace(&self) {
        self.post("/api/v1/namespaces", &json!({ "metadata": { "name": "ns" } })).await.is(201, "");
    }

    /// Another server over the same store.
    pub(crate) async fn over(store: Arc<dyn Store>) -> Api {
        Api::made(store, Settings::default(), CacheOptions::default()).await
    }

    /// A new server with a namespace `ns`, and with this audit policy and log.
    pub(crate) async fn audited(policy: &str, log: &Path) -> Api {
        let log = LogOptions {
            path: log.to_owned(),
            bytes_max: u64::MAX,
            files_max: 0,
            age_max: Duration::ZERO,
        };
        let policy = Policy::parse(policy.as_bytes()).unwrap();
        let audit = AuditOptions { policy, log: Some(log), webhook: None };
        let store = Arc::new(Memory::default());
        let (settings, cache) = (Settings::default(), CacheOptions::default());
        let api = Api::with_audit(store, still(), settings, cache, Some(audit)).await;
        api.create_namespace().await;
        api
    }

    /// A new server with a namespace `ns` that sends its audit events to a webhook.
    pub(crate) async fn audited_by(policy: &str, webhook: AuditWebhook) -> Api {
        let policy = Policy::parse(policy.as_bytes()).unwrap();
        let audit = AuditOptions { policy, log: None, webhook: Some(webhook) };
        let store = Arc::new(Memory::default());
        let (settings, cache) = (Settings::default(), CacheOptions::default());
        let api = Api::with_audit(store, still(), settings, cache, Some(audit)).await;
        api.create_namespace().await;
        api
    }

    /// A new server with a namespace `ns` that traces as many requests of a million, and the queue of
    /// its spans. The namespace is traced too.
    pub(crate) async fn traced(sampled: u32) -> (Api, mpsc::Receiver<TraceSpan>) {
        let clock = still();
        let issuer = Issuer::new(&keys(&clock).service_account_key).unwrap();
        let options = Options { clock: Arc::clone(&clock), ..Options::new(issuer) };
        let (tracer, spans) = Tracer::new(sampled, clock, &options.metrics);
        let api = Api::of(Arc::new(Memory::default()), Options { tracer, ..options }).await;
        api.create_namespace().await;
        (api, spans)
    }

    /// A new server with another clock.
    pub(crate) async fn with_clock(clock: Arc<dyn Clock>) -> Api {
        let store = Arc::new(Memory::default());
        let (settings, cache) = (Settings::default(), CacheOptions::default());
        let api = Api::with_audit(store, clock, settings, cache, None).await;
        api.create_namespace().await;
        api
    }

    /// Serves a loopback address without TLS.
    pub(crate) fn listen(&mut self) -> SocketAddr {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let options = headwater_server::listen::Options::default();
        let listener = Listener::plain(address, options, self.metrics.clone()).unwrap();
        let address = listener.address();
        self.running.listen(listener);
        address
    }

    /// Stops the server.
    pub(crate) async fn stop(self) {
        self.running.stop().await.unwrap();
    }

    async fn made(store: Arc<dyn Store>, settings: Settings, cache: CacheOptions) -> Api {
        Api::with_audit(store, still(), settings, cache, None).await
    }

    async fn with_audit(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        settings: Settings,
        cache: CacheOptions,
        audit: Option<AuditOptions>,
    ) -> Api {
        let issuer = Issuer::new(&keys(&clock).service_account_key).unwrap();
        let mut options =
            Options { clock: Arc::clone(&clock), cache, settings, ..Options::new(issuer) };
        if let Some(audit) = audit {
            options.audit = Audit::start(audit, clock, &options.metrics).unwrap();
        }
        Api::of(store, options).await
    }

    /// A new server with a namespace `ns` that accepts these credentials, and tokens of this key.
    pub(crate) async fn accepting(authenticator: Authenticator, key: &Secret) -> Api {
        let clock: Arc<dyn Clock> = Arc::new(Still(NOW.parse().unwrap()));
        let options = Options::new(Issuer::new(key).unwrap());
        let api = Api::of(Arc::new(Memory::default()), Options { clock, authenticator, ..options });
        let api = api.await;
        api.create_namespace().await;
        api
    }

    /// A new server with a namespace `ns` and these authorizers.
    pub(crate) async fn authorized_by(authorization: Authorization) -> Api {
        let clock = still();
        let issuer = Issuer::new(&keys(&clock).service_account_key).unwrap();
        let options = Options { clock, authorization, ..Options::new(issuer) };
        let api = Api::of(Arc::new(Memory::default()), options).await;
        api.create_namespace().await;
        api
    }

    /// A new server with a namespace `ns` and simulated containers.
    pub(crate) async fn with_containers(runtime: Arc<dyn ContainerRuntime>) -> Api {
        let clock = still();
        let issuer = Issuer::new(&keys(&clock).service_account_key).unwrap();
        let options = Options { clock, containers: Some(runtime), ..Options::new(issuer) };
        let api = Api::of(Arc::new(Memory::default()), options).await;
        api.create_namespace().await;
        api
    }

    /// A new server with a namespace `ns` and this credential at extension servers.
    pub(crate) async fn with_front_proxy(pair: Pair, settings: Settings) -> Api {
        let clock = still();
        let issuer = Issuer::new(&keys(&clock).service_account_key).unwrap();
        let options = Options { clock, front_proxy: Some(pair), settings, ..Options::new(issuer) };
        let api = Api::of(Arc::new(Memory::default()), options).await;
        api.create_namespace().await;
        api
    }

    /// Repeats a request until the response has this code.
    pub(crate) async fn until(&self, target: &str, code: u16) -> Answer {
        loop {
            let answer = self.get(target).await;
            if answer.code == code {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn of(store: Arc<dyn Store>, options: Options) -> Api {
        let metrics = options.metrics.clone();
        let running = start(store, options).await.unwrap();
        let (server, peer) = (running.server().clone(), peer(Transport::Loopback));
        Api { server, metrics, peer, running }
    }

    /// The same server, with a client of this user and these groups.
    pub(crate) fn as_user(&self, name: &str, groups: &[&str]) -> Asking<'_> {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        let identity = Arc::new(Identity::authenticated(name, groups));
        self.asking(Transport::Tls(ClientCertificate::Verified(identity)))
    }

    /// The same server, with a user whose credential expires.
    pub(crate) fn as_user_until(&self, name: &str, expires: Timestamp) -> Asking<'_> {
        let identity = Identity::authenticated(name, Vec::new());
        let identity = Arc::new(Identity { expires: Some(expires), ..identity });
        self.asking(Transport::Tls(ClientCertificate::Verified(identity)))
    }

    /// The same server, with an anonymous client.
    pub(crate) fn as_anonymous(&self) -> Asking<'_> {
        self.asking(Transport::Tls(ClientCertificate::Absent))
    }

    fn asking(&self, transport: Transport) -> Asking<'_> {
        Asking { server: &self.server, peer: peer(transport) }
    }

    /// `METHOD /path?query`, then headers one per line, a body if it is not empty.
    pub(crate) async fn send(&self, request: &str, body: impl Into<Bytes>) -> Answer {
        send(&self.server, &self.peer, request, body.into()).await
    }

    /// The same with an incomplete body.
    pub(crate) async fn send_and_stall(&self, request: &str, begins: &str) -> Answer {
        let begins = futures::stream::iter([Ok(Frame::data(Bytes::from(begins.to_owned())))]);
        let body = StreamBody::new(begins.chain(futures::stream::pending::<io::Result<_>>()));
        finish(request, begin(&self.server, &self.peer, request, body).await).await
    }

    /// The response to a request without a body, unread.
    pub(crate) async fn raw(&self, request: &str) -> http::Response<Body> {
        begin(&self.server, &self.peer, request, Full::<Bytes>::default()).await
    }

    pub(crate) async fn get(&self, target: &str) -> Answer {
        self.send(&format!("GET {target}"), "").await
    }

    /// GET with one `Accept`.
    pub(crate) async fn accept(&self, target: &str, accept: &str) -> Answer {
        self.send(&format!("GET {target}\nAccept: {accept}"), "").await
    }

    pub(crate) async fn post(&self, target: &str, body: &Value) -> Answer {
        self.send(&format!("POST {target}\nContent-Type: application/json"), text(body)).await
    }

    pub(crate) async fn put(&self, target: &str, body: &Value) -> Answer {
        self.send(&format!("PUT {target}\nContent-Type: application/json"), text(body)).await
    }

    /// A merge patch.
    pub(crate) async fn merge(&self, target: &str, body: &Value) -> Answer {
        self.patch("application/merge-patch+json", target, text(body)).await
    }

    pub(crate) async fn patch(&self, kind: &str, target: &str, body: impl Into<Bytes>) -> Answer {
        self.send(&format!("PATCH {target}\nContent-Type: {kind}"), body).await
    }

    pub(crate) async fn delete(&self, target: &str) -> Answer {
        self.send(&format!("DELETE {target}"), "").await
    }

    /// DELETE with options in the body.
    pub(crate) async fn delete_with(&self, target: &str, options: &Value) -> Answer {
        self.send(&format!("DELETE {target}\nContent-Type: application/json"), text(options)).await
    }

    /// Creates an object and returns the stored one.
    pub(crate) async fn create(&self, target: &str, body: &Value) -> Value {
        let answer = self.post(target, body).await;
        assert_eq!(answer.code, 201, "{}", answer.text());
        answer.json()
    }

    /// Creates ConfigMaps with these names in `ns`.
    pub(crate) async fn config_maps(&self, names: &[&str]) {
        for name in names {
            self.create(CMS, &config_map(name)).await;
        }
    }

    /// A response whose body is not read.
    pub(crate) async fn open(&self, target: &str) -> http::Response<Body> {
        let request = format!("GET {target}");
        begin(&self.server, &self.peer, &request, Full::<Bytes>::default()).await
    }

    /// A stream of events.
    pub(crate) async fn watch(&self, target: &str) -> Watch {
        watch(&self.server, &self.peer, target).await
    }

    /// Compacts everything before a revision, and waits for the cache.
    pub(crate) async fn compact(&self, revision: &str) {
        let target = format!("/debug/headwater/compact?revision={revision}");
        self.send(&format!("POST {target}"), "").await.is(200, "");
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

/// Another client.
pub(crate) struct Asking<'a> {
    server: &'a Server,
    peer: Peer,
}

async fn watch(server: &Server, peer: &Peer, target: &str) -> Watch {
    let answer = begin(server, peer, &format!("GET {target}"), Full::<Bytes>::default()).await;
    assert_eq!(answer.status(), 200);
    Watch { body: answer.into_body(), pending: BytesMut::new() }
}

impl Asking<'_> {
    /// Begins a watch.
    pub(crate) async fn watch(&self, target: &str) -> Watch {
        watch(self.server, &self.peer, target).await
    }

    /// Sends a request whose body arrives when it is told to.
    pub(crate) fn send_slowly(&self, request: &str, body: &'static str) -> SlowRequest {
        let (is_read, reading) = tokio::sync::watch::channel(false);
        let (end, ends) = tokio::sync::oneshot::channel::<()>();
        let stream = futures::stream::once(async move {
            is_read.send_replace(true);
            let _ = ends.await;
            io::Result::Ok(Frame::data(Bytes::from_static(body.as_bytes())))
        });
        let (server, peer, request) = (self.server.clone(), self.peer.clone(), request.to_owned());
        let mut answer = JoinSet::new();
        let task = answer.spawn(async move {
            let begun = begin(&server, &peer, &request, StreamBody::new(Box::pin(stream))).await;
            finish(&request, begun).await
        });
        SlowRequest { reading, end, answer, task }
    }

    pub(crate) async fn send(&self, request: &str, body: impl Into<Bytes>) -> Answer {
        send(self.server, &self.peer, request, body.into()).await
    }
}

/// A request that runs until its body arrives.
pub(crate) struct SlowRequest {
    reading: tokio::sync::watch::Receiver<bool>,
    end: tokio::sync::oneshot::Sender<()>,
    answer: JoinSet<Answer>,
    task: AbortHandle,
}

impl SlowRequest {
    /// Whether it runs: the server reads its body.
    pub(crate) fn is_running(&self) -> bool {
        *self.reading.borrow()
    }

    /// Waits until it runs.
    pub(crate) async fn runs(&mut self) {
        self.reading.wait_for(|reading| *reading).await.unwrap();
    }

    /// Whether it has a response.
    pub(crate) fn is_answered(&self) -> bool {
        self.task.is_finished()
    }

    /// The response, to the complete body.
    pub(crate) async fn finish(mut self) -> Answer {
        let _ = self.end.send(());
        self.answer.join_next().await.unwrap().unwrap()
    }

    /// The client goes away.
    pub(crate) async fn abandon(mut self) {
        self.answer.shutdown().await;
    }
}

/// The ConfigMaps of `ns`.
pub(crate) const CMS: &str = "/api/v1/namespaces/ns/configmaps";
/// The Pods of `ns`.
pub(crate) const PODS: &str = "/api/v1/namespaces/ns/pods";
/// The Deployments of `ns`.
pub(crate) const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/ns/deployments";

pub(crate) fn config_map(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name } })
}

/// A ConfigMap with labels written as a selector: `a=b,c=d`.
pub(crate) fn labelled(name: &str, labels: &str) -> Value {
    let mut object = config_map(name);
    for (key, value) in labels.split(',').filter_map(|pair| pair.split_once('=')) {
        object["metadata"]["labels"][key] = value.into();
    }
    object
}

pub(crate) fn pod(name: &str, node: &str) -> Value {
    let mut object = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": { "containers": [{ "name": "c", "image": "img:1" }] },
    });
    if !node.is_empty() {
        object["spec"]["nodeName"] = node.into();
    }
    object
}

pub(crate) fn deployment(name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name },
        "spec": {
            "replicas": 1, "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "containers": [{ "name": "c", "image": "img:1" }] },
            },
        },
    })
}

/// `a b` becomes `a%20b`, and so on: a value for a query.
pub(crate) fn escaped(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

fn keys(clock: &Arc<dyn Clock>) -> Pki {
    Pki::in_memory(&BTreeSet::new(), &**clock).unwrap()
}

fn peer(transport: Transport) -> Peer {
    Peer::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 1)), transport)
}

fn text(value: &Value) -> Bytes {
    Bytes::from(value.to_string())
}

async fn begin<B>(server: &Server, peer: &Peer, request: &str, body: B) -> http::Response<Body>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut lines = request.lines();
    let (method, target) = lines.next().unwrap().split_once(' ').unwrap();
    let mut made = Request::builder().method(method).uri(target);
    for line in lines {
        let (name, value) = line.split_once(": ").unwrap();
        made = made.header(name, value);
    }
    server.handle(peer, made.body(body::request(body)).unwrap()).await
}

async fn send(server: &Server, peer: &Peer, request: &str, body: Bytes) -> Answer {
    finish(request, begin(server, peer, request, Full::new(body)).await).await
}

pub(crate) async fn finish(request: &str, response: http::Response<Body>) -> Answer {
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let asked = request.lines().next().unwrap().to_owned();
    Answer { asked, code: head.status.as_u16(), headers: head.headers, body }
}

/// A complete response.
pub(crate) struct Answer {
    asked: String,
    pub(crate) code: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.to_vec()).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{}: {error}: {}", self.asked, self.text()))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Checks the code and that the body contains this text.
    #[track_caller]
    pub(crate) fn is(&self, code: u16, part: &str) -> &Answer {
        let text = self.text();
        assert_eq!(self.code, code, "{}: {text}", self.asked);
        assert!(text.contains(part), "{}: no {part:?} in {text}", self.asked);
        self
    }

    /// Checks for an error with this reason and a message that starts with this text.
    #[track_caller]
    pub(crate) fn fails(&self, code: u16, reason: &str, message: &str) -> Value {
        let text = self.text();
        assert_eq!(self.code, code, "{}: {text}", self.asked);
        let status = self.json();
        assert_eq!(status["kind"], "Status", "{}: {text}", self.asked);
        assert_eq!(status["status"], "Failure", "{}: {text}", self.asked);
        assert_eq!(status["code"], code, "{}: {text}", self.asked);
        assert_eq!(status["reason"].as_str().unwrap_or_default(), reason, "{}: {text}", self.asked);
        let said = status["message"].as_str().unwrap_or_default();
        assert!(said.starts_with(message), "{}: {said:?} is not {message:?}", self.asked);
        status
    }

    /// Checks for a list of objects with these names, in this order.
    #[track_caller]
    pub(crate) fn lists(&self, names: &str) -> &Answer {
        self.is(200, "");
        assert_eq!(self.names(), names, "{}", self.asked);
        self
    }

    /// The names of a list, with spaces between.
    pub(crate) fn names(&self) -> String {
        let list = self.json();
        let items = list["items"].as_array().unwrap();
        let names: Vec<&str> =
            items.iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect();
        names.join(" ")
    }

    /// `metadata.resourceVersion`.
    pub(crate) fn version(&self) -> String {
        version(&self.json())
    }

    /// `metadata.continue`.
    pub(crate) fn token(&self) -> String {
        self.json()["metadata"]["continue"].as_str().unwrap_or_default().to_owned()
    }
}

/// `metadata.resourceVersion` of an object or a list.
pub(crate) fn version(value: &Value) -> String {
    value["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

/// A stream of events.
pub(crate) struct Watch {
    body: Body,
    pending: BytesMut,
}

impl Watch {
    /// The next event; `None` is the clean end.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        self.line().await.map(|line| serde_json::from_str(&line).unwrap())
    }

    /// The next line; `None` is the clean end.
    pub(crate) async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line = self.pending.split_to(end + 1);
                return Some(String::from_utf8(line.into()).unwrap());
            }
            let Some(frame) = self.body.frame().await else {
                assert!(self.pending.is_empty(), "half an event: {:?}", self.pending);
                return None;
            };
            self.pending.extend_from_slice(&Bytes::from(frame.unwrap().into_data().unwrap()));
        }
    }

    /// Everything up to the clean end.
    pub(crate) async fn rest(&mut self) -> Vec<Value> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }

    /// The next `count` events, one word each: `ADDED/a BOOKMARK/`.
    pub(crate) async fn take(&mut self, count: usize) -> String {
        let mut words = Vec::new();
        for _ in 0..count {
            words.push(word(&self.next().await.expect("the stream goes on")));
        }
        words.join(" ")
    }

    /// Whether no event arrives for a while.
    pub(crate) async fn is_silent(&mut self, time: Duration) -> bool {
        tokio::time::timeout(time, self.next()).await.is_err()
    }
}

/// An event in one word.
pub(crate) fn word(event: &Value) -> String {
    let kind = event["type"].as_str().unwrap();
    match kind {
        "ERROR" => format!("ERROR/{}", event["object"]["code"]),
        "BOOKMARK" => {
            let mark = &event["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"];
            if mark == "true" { "MARK".into() } else { "BOOKMARK".into() }
        }
        kind => format!("{kind}/{}", event["object"]["metadata"]["name"].as_str().unwrap()),
    }
}
