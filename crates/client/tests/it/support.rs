//! Helpers of the tests: small objects, a running informer, a journal of received changes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use headwater_client::informer::{self, Buffer, Handler, Informer, Options, Subscribe};
use headwater_client::script::{ListWatch, Script};
use headwater_client::{Cached, Change, Key, ResourceType};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::ObjectMeta;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub const SECOND: Duration = Duration::from_secs(1);

/// A timeout that is reached only by what never happens, even on the slowest machine.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// A ConfigMap with this key and a UID derived from it.
pub fn map(key: &str, version: &str) -> ConfigMap {
    with_uid(key, version, &format!("uid-{key}"))
}

pub fn with_uid(key: &str, version: &str, uid: &str) -> ConfigMap {
    let key: Key = key.parse().unwrap();
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(key.name().to_owned()),
            namespace: key.namespace().map(str::to_owned),
            uid: Some(uid.to_owned()),
            resource_version: Some(version.to_owned()),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    }
}

/// As [`map`], with labels such as `a=1,b=2`.
pub fn labelled(key: &str, version: &str, labels: &str) -> ConfigMap {
    let mut map = map(key, version);
    let pairs = labels.split(',').map(|pair| pair.split_once('=').unwrap());
    map.metadata.labels =
        Some(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect());
    map
}

pub fn options(name: &str) -> Options {
    let mut options = Options::new(name, ResourceType::of::<ConfigMap>(&()));
    options.seed = Some(1);
    options
}

/// An informer that runs until this is dropped or stopped.
pub struct Running<K: Cached> {
    pub informer: Informer<K>,
    pub stop: CancellationToken,
    parts: JoinSet<()>,
}

impl<K: Cached> Running<K> {
    pub fn start(source: Arc<dyn ListWatch<Object = K>>, options: Options) -> Running<K> {
        let (informer, runner) = informer::from_source(source, options);
        Running::drive(informer, runner)
    }

    pub fn drive(informer: Informer<K>, runner: headwater_client::script::Runner<K>) -> Running<K> {
        let stop = CancellationToken::new();
        let mut parts = JoinSet::new();
        parts.spawn(runner.run(stop.child_token()));
        Running { informer, stop, parts }
    }

    /// Stops and waits for the end.
    pub async fn stopped(&mut self) {
        self.stop.cancel();
        self.ended().await;
    }

    /// Waits for the end.
    pub async fn ended(&mut self) {
        if let Err(error) = self.parts.join_next().await.expect("it ends once") {
            std::panic::resume_unwind(error.into_panic());
        }
    }

    pub fn keys(&self) -> Vec<String> {
        self.informer.snapshot().keys().iter().map(Key::to_string).collect()
    }
}

/// A scripted informer that starts with lists.
pub fn listing(options: Options) -> (Script<ConfigMap>, Running<ConfigMap>) {
    let (script, source) = Script::new();
    (script, Running::start(Arc::new(source.without_watch_list()), options))
}

/// A scripted informer that starts with watch-lists.
pub fn watch_listing(options: Options) -> (Script<ConfigMap>, Running<ConfigMap>) {
    let (script, source) = Script::new();
    (script, Running::start(Arc::new(source), options))
}

/// Waits until all tasks are idle: paused time advances only then.
pub async fn quiet() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// The changes that a handler received, as text.
#[derive(Clone, Default)]
pub struct Journal(Arc<Mutex<Vec<String>>>);

impl Journal {
    /// Subscribes with a lossless buffer.
    pub fn of<K: Cached>(informer: &Informer<K>) -> (Journal, Handler<K>) {
        Journal::with(informer, Subscribe::named("journal").buffer(Buffer::Lossless))
    }

    pub fn with<K: Cached>(informer: &Informer<K>, options: Subscribe) -> (Journal, Handler<K>) {
        let journal = Journal::default();
        let list = journal.clone();
        let handler = informer.for_each(options, move |change| list.push(&change)).unwrap();
        (journal, handler)
    }

    pub fn push<K: Cached>(&self, change: &Change<K>) {
        self.note(format!("{change:?}"));
    }

    pub fn note(&self, text: impl Into<String>) {
        self.0.lock().unwrap().push(text.into());
    }

    /// Removes and returns all entries.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    pub fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

/// The log of this thread until the guard is dropped.
#[derive(Clone, Default)]
pub struct Logs(Arc<Mutex<Vec<u8>>>);

impl Logs {
    pub fn capture() -> (Logs, tracing::subscriber::DefaultGuard) {
        let logs = Logs::default();
        let writer = logs.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_ansi(false)
            .without_time()
            .with_writer(move || writer.clone())
            .finish();
        (logs, tracing::subscriber::set_default(subscriber))
    }

    /// The lines that contain `text`.
    pub fn lines(&self, text: &str) -> Vec<String> {
        let bytes = self.0.lock().unwrap();
        let all = String::from_utf8_lossy(&bytes);
        all.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }
}

impl std::io::Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A call that a [`Fake`] server received.
#[derive(Clone, Debug)]
pub struct Call {
    pub method: String,
    pub path: String,
    pub body: serde_json::Value,
    pub agent: String,
}

/// A server that answers calls with a function and records them.
#[derive(Clone, Default)]
pub struct Fake {
    calls: Arc<Mutex<Vec<Call>>>,
}

/// Status, headers and body of a response; `Err` breaks the connection.
pub type Answer = Result<(u16, Vec<(&'static str, String)>, serde_json::Value), ()>;

impl Fake {
    pub fn client(
        answer: impl Fn(&Call) -> Answer + Send + Sync + 'static,
    ) -> (Fake, kube::Client) {
        use http_body_util::BodyExt;
        let fake = Fake::default();
        let (calls, answer) = (Arc::clone(&fake.calls), Arc::new(answer));
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (calls, answer) = (Arc::clone(&calls), Arc::clone(&answer));
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let header = parts.headers.get("user-agent");
                let call = Call {
                    method: parts.method.to_string(),
                    path: parts.uri.path().to_owned(),
                    body: serde_json::from_slice(&body).unwrap_or_default(),
                    agent: header
                        .map(|value| value.to_str().unwrap().to_owned())
                        .unwrap_or_default(),
                };
                calls.lock().unwrap().push(call.clone());
                let (code, headers, body) =
                    answer(&call).map_err(|()| std::io::Error::other("broken"))?;
                let mut response = http::Response::builder().status(code);
                for (name, value) in headers {
                    response = response.header(name, value);
                }
                let body = http_body_util::Full::new(bytes::Bytes::from(body.to_string()));
                Ok::<_, std::io::Error>(response.body(body).unwrap())
            }
        });
        (fake, kube::Client::new(service, "default"))
    }

    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    pub fn take(&self) -> Vec<Call> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }
}

pub fn ok(body: serde_json::Value) -> Answer {
    Ok((200, Vec::new(), body))
}

pub fn refused(code: u16, reason: &str) -> Answer {
    let body =
        serde_json::json!({"kind": "Status", "reason": reason, "message": "fake", "code": code});
    Ok((code, Vec::new(), body))
}

/// A client without responses; for factories over scripts.
pub fn nobody() -> kube::Client {
    let service = tower::service_fn(|_: http::Request<kube::client::Body>| {
        std::future::pending::<
            Result<http::Response<http_body_util::Empty<bytes::Bytes>>, std::io::Error>,
        >()
    });
    kube::Client::new(service, "default")
}
