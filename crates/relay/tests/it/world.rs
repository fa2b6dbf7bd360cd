//! An upstream with users and roles, relays in front of it, and their clients.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use headwater_api::SystemClock;
use headwater_relay::{HeldResources, Options, Relay};
use headwater_server::authenticator::Authenticator;
use headwater_server::listen::{self, Listener};
use headwater_server::metrics::Metrics;
use headwater_server::pki::kubeconfig::{UserCredential, user};
use headwater_server::pki::{self, Pki, Secret};
use headwater_server::service_account::Issuer;
use headwater_server::tls::Acceptor;
use headwater_server::token_file::Tokens;
use headwater_server::{Limits, Running, Settings, start};
use headwater_store::{Memory, Store};
use headwater_testkit::proxy::Proxy;
use http::{Method, Request};
use http_body_util::{BodyExt, BodyStream};
use k8s_openapi::Resource;
use k8s_openapi::api::core::v1::Namespace;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

const TOKENS: &str = "\
admin-token,admin,1,system:masters
relay-token,relay,2,relays
alice-token,alice,3,
bob-token,bob,4,
";

pub(crate) const ADMIN: &str = "admin-token";
pub(crate) const ALICE: &str = "alice-token";
pub(crate) const BOB: &str = "bob-token";
const RELAY: &str = "relay-token";

/// How long a condition may take to become true.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server with users, behind a proxy that can cut.
pub(crate) struct Upstream {
    pki: Pki,
    store: Arc<dyn Store>,
    port: u16,
    running: Option<Running>,
    pub(crate) metrics: Metrics,
    pub(crate) proxy: Proxy,
}

fn pki() -> Pki {
    let names = pki::names(IpAddr::V4(Ipv4Addr::LOCALHOST), &[]);
    Pki::in_memory(&names, &SystemClock).unwrap()
}

fn listener(pki: &Pki, port: u16, metrics: &Metrics) -> Option<Listener> {
    let acceptor = Acceptor::new(pki, Arc::new(SystemClock)).unwrap();
    let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
    let options = listen::Options {
        shutdown_grace: Duration::from_millis(100),
        ..listen::Options::default()
    };
    Listener::tls(address, acceptor, options, metrics.clone()).ok()
}

fn server_options(pki: &Pki, metrics: &Metrics) -> headwater_server::Options {
    let limits =
        Limits { fairness: false, reads_max: 5_000, writes_max: 5_000, ..Limits::default() };
    headwater_server::Options {
        metrics: metrics.clone(),
        settings: Settings { limits, ..Settings::default() },
        ..headwater_server::Options::new(Issuer::new(&pki.service_account_key).unwrap())
    }
}

impl Upstream {
    pub(crate) async fn start() -> Upstream {
        let (pki, store, metrics) = (pki(), Arc::new(Memory::default()), Metrics::new());
        let store: Arc<dyn Store> = store;
        let (running, port) = serve(&pki, store.clone(), 0, &metrics).await;
        let proxy = Proxy::start(port).await;
        let upstream = Upstream { pki, store, port, running: Some(running), metrics, proxy };
        let admin = upstream.client(ADMIN).await;
        let rules = json!([
            { "apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"] },
            { "apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"] },
            { "apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"] },
        ]);
        admin.grant("relay", None, &rules).await;
        for namespace in ["a", "b"] {
            let body = json!({ "metadata": { "name": namespace } });
            let path = format!("/api/v1/{}", <Namespace as Resource>::URL_PATH_SEGMENT);
            admin.ok(Method::POST, &path, Some(body)).await;
        }
        upstream
    }

    /// A client of the upstream itself.
    pub(crate) async fn client(&self, token: &str) -> ApiClient {
        let config =
            config(&self.pki, self.port, UserCredential::Token(&Secret::new(token.to_owned())))
                .await;
        ApiClient::new(config)
    }

    /// What a relay is given: the address of the proxy, and a token or the administrator's certificate.
    pub(crate) async fn config(&self, with_certificate: bool) -> Config {
        let port = self.proxy.url().rsplit(':').next().unwrap().parse().unwrap();
        let token = Secret::new(RELAY.to_owned());
        let credential = match with_certificate {
            true => UserCredential::Certificate(&self.pki.admin),
            false => UserCredential::Token(&token),
        };
        config(&self.pki, port, credential).await
    }

    pub(crate) async fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop().await.unwrap();
        }
    }

    /// Starts again, with the same data or with none.
    pub(crate) async fn start_again(&mut self, with_data: bool) {
        if !with_data {
            self.store = Arc::new(Memory::default());
        }
        let (running, _) = serve(&self.pki, self.store.clone(), self.port, &self.metrics).await;
        self.running = Some(running);
    }

    /// How many requests of these verbs for a resource reached the upstream.
    pub(crate) fn requests(&self, verb: &str, resource: &str) -> u64 {
        let text = self.metrics.registry.text();
        let lines = text.lines().filter(|line| {
            line.starts_with("apiserver_request_total{")
                && line.contains(&format!("verb=\"{verb}\""))
                && line.contains(&format!("resource=\"{resource}\""))
        });
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64).sum()
    }
}

async fn serve(pki: &Pki, store: Arc<dyn Store>, port: u16, metrics: &Metrics) -> (Running, u16) {
    let mut options = server_options(pki, metrics);
    options.authenticator = Authenticator::new(Tokens::parse(TOKENS).unwrap());
    let mut running = Box::pin(start(store, options)).await.unwrap();
    // The port of a server that has just stopped may take a moment to become free.
    let listener = eventually(async || listener(pki, port, metrics)).await;
    let port = listener.address().port();
    running.listen(listener);
    (running, port)
}

async fn config(pki: &Pki, port: u16, credential: UserCredential<'_>) -> Config {
    let text = user(&pki.ca, &format!("https://127.0.0.1:{port}"), "user", credential);
    let kubeconfig = Kubeconfig::from_yaml(&text).unwrap();
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap()
}

/// A relay and its port.
pub(crate) struct TestRelay {
    pki: Pki,
    port: u16,
    running: Running,
    pub(crate) metrics: Metrics,
}

/// How a test relay differs from the usual one.
#[derive(Clone, Default)]
pub(crate) struct RelayChoices {
    pub(crate) data_dir: Option<PathBuf>,
    pub(crate) stale_ok: Duration,
    pub(crate) keep_reviews: Duration,
    pub(crate) recheck_watches: Option<Duration>,
    pub(crate) impersonate: bool,
    pub(crate) log_max: Option<u64>,
    pub(crate) silence: Option<Duration>,
}

pub(crate) fn named(names: &[&str]) -> HeldResources {
    HeldResources::Named(names.iter().map(|name| name.parse().unwrap()).collect())
}

impl TestRelay {
    pub(crate) async fn start(
        upstream: Config,
        resources: HeldResources,
        choices: RelayChoices,
    ) -> TestRelay {
        TestRelay::try_start(upstream, resources, choices).await.unwrap()
    }

    pub(crate) async fn try_start(
        upstream: Config,
        resources: HeldResources,
        choices: RelayChoices,
    ) -> Result<TestRelay, headwater_relay::Error> {
        let (pki, metrics) = (pki(), Metrics::new());
        let mut relay = Box::pin(Relay::start(Options {
            upstream,
            resources,
            data_dir: choices.data_dir,
            stale_ok: choices.stale_ok,
            keep_reviews: choices.keep_reviews,
            recheck_watches: choices.recheck_watches.unwrap_or(Duration::from_secs(60)),
            impersonate: choices.impersonate,
            log_max: choices.log_max,
            silence: choices.silence,
            server: server_options(&pki, &metrics),
        }))
        .await?;
        let listener = listener(&pki, 0, &metrics).unwrap();
        let port = listener.address().port();
        relay.running().listen(listener);
        relay.synced().await;
        Ok(TestRelay { pki, port, running: relay.into_running(), metrics })
    }

    pub(crate) async fn client(&self, token: &str) -> ApiClient {
        ApiClient::new(self.config(token).await)
    }

    pub(crate) async fn config(&self, token: &str) -> Config {
        config(&self.pki, self.port, UserCredential::Token(&Secret::new(token.to_owned()))).await
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The configuration of a client that reaches the relay over a proxy.
    pub(crate) async fn config_by(&self, proxy: &Proxy, token: &str) -> Config {
        let port = proxy.url().rsplit(':').next().unwrap().parse().unwrap();
        let token = Secret::new(token.to_owned());
        config(&self.pki, port, UserCredential::Token(&token)).await
    }

    /// A client with a certificate of the relay's own authority.
    pub(crate) async fn certified(&self, name: &str) -> ApiClient {
        let pair = self.pki.client(name, &[], &SystemClock).unwrap();
        ApiClient::new(config(&self.pki, self.port, UserCredential::Certificate(&pair)).await)
    }

    /// How many requests the relay sent for a purpose.
    pub(crate) fn sent(&self, purpose: &str) -> u64 {
        self.metric("headwater_relay_upstream_requests_total", &format!("purpose=\"{purpose}\""))
    }

    pub(crate) fn metric(&self, name: &str, label: &str) -> u64 {
        let text = self.metrics.registry.text();
        let lines = text.lines().filter(|line| line.starts_with(name) && line.contains(label));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64).sum()
    }

    pub(crate) async fn stop(self) {
        self.running.stop().await.unwrap();
    }
}

/// A client that sees codes and bodies.
#[derive(Clone)]
pub(crate) struct ApiClient {
    client: Client,
}

impl ApiClient {
    fn new(mut config: Config) -> ApiClient {
        config.default_retry = false;
        ApiClient { client: Client::try_from(config).unwrap() }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> http::Response<Body> {
        self.client.send(request).await.unwrap()
    }

    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> (u16, Value) {
        let mut request = Request::builder().method(&method).uri(path);
        let content = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        request = request.header("content-type", content);
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let response = self.client.send(request.body(Body::from(body)).unwrap()).await;
        let Ok(response) = response else { return (0, Value::Null) };
        let code = response.status().as_u16();
        let Ok(body) = response.into_body().collect().await else { return (0, Value::Null) };
        let bytes = body.to_bytes();
        let text = || Value::from(String::from_utf8_lossy(&bytes).into_owned());
        (code, serde_json::from_slice(&bytes).unwrap_or_else(|_| text()))
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> impl Future<Output = (u16, Value)> {
        self.call(Method::GET, path, None)
    }

    pub(crate) async fn ok(&self, method: Method, path: &str, body: Option<Value>) -> Value {
        let (code, value) = self.call(method.clone(), path, body).await;
        assert!((200..300).contains(&code), "{method} {path}: {code} {value}");
        value
    }

    /// The resource, as text, with an Accept header.
    pub(crate) async fn text(&self, path: &str, accept: &str) -> String {
        let request = Request::get(path).header("accept", accept).body(Body::empty()).unwrap();
        let response = self.send(request).await;
        let bytes: Bytes = response.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    /// Creates or replaces a ConfigMap; returns its resourceVersion.
    pub(crate) async fn put_map(&self, namespace: &str, name: &str, value: &str) -> u64 {
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        let body = json!({
            "metadata": { "name": name, "labels": { "value": value } }, "data": { "value": value },
        });
        let (code, _) = self.get(&format!("{path}/{name}")).await;
        let written = match code {
            200 => self.ok(Method::PUT, &format!("{path}/{name}"), Some(body)).await,
            _ => self.ok(Method::POST, &path, Some(body)).await,
        };
        version(&written)
    }

    /// Lets a user do something, in a namespace or everywhere.
    pub(crate) async fn grant(&self, user: &str, namespace: Option<&str>, rules: &Value) {
        let (base, kind) = match namespace {
            Some(namespace) => {
                (format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/"), "Role")
            }
            None => ("/apis/rbac.authorization.k8s.io/v1/".to_owned(), "ClusterRole"),
        };
        let prefix = if namespace.is_some() { "role" } else { "clusterrole" };
        let role = json!({ "metadata": { "name": user }, "rules": rules });
        self.ok(Method::POST, &format!("{base}{prefix}s"), Some(role)).await;
        let binding = json!({
            "metadata": { "name": user },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": user },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }],
        });
        self.ok(Method::POST, &format!("{base}{prefix}bindings"), Some(binding)).await;
    }

    /// Opens a watch, if it is served.
    pub(crate) async fn try_watch(&self, path: &str) -> Option<Lines> {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = self.client.send(request).await.ok()?;
        let is_served = response.status() == 200;
        is_served.then(|| Lines { body: BodyStream::new(response.into_body()), rest: Vec::new() })
    }

    /// Opens a watch.
    pub(crate) async fn watch(&self, path: &str) -> Lines {
        let response = self.send(Request::get(path).body(Body::empty()).unwrap()).await;
        assert_eq!(response.status(), 200, "{path}");
        Lines { body: BodyStream::new(response.into_body()), rest: Vec::new() }
    }
}

/// The lines of a watch.
pub(crate) struct Lines {
    body: BodyStream<Body>,
    rest: Vec<u8>,
}

impl Lines {
    /// The next line; `None` at the end of the stream, or if it breaks.
    pub(crate) async fn line(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let after = self.rest.split_off(end + 1);
                return Some(std::mem::replace(&mut self.rest, after));
            }
            let frame = self.body.next().await?.ok()?;
            self.rest.extend_from_slice(&frame.into_data().unwrap_or_default());
        }
    }

    /// The next event.
    pub(crate) async fn next(&mut self) -> Value {
        let line = tokio::time::timeout(PATIENCE, self.line()).await.expect("an event in time");
        serde_json::from_slice(&line.expect("the watch goes on")).unwrap()
    }
}

pub(crate) fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

pub(crate) fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().unwrap();
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

/// Waits until a condition has a value.
pub(crate) async fn eventually<T>(mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let waited = tokio::time::timeout(PATIENCE, async {
        loop {
            if let Some(value) = condition().await {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    waited.await.expect("the condition became true in time")
}
