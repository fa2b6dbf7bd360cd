//! What the tests share: small objects, a running informer, a list of what a handler was told.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use headwater_client::change::Change;
use headwater_client::informer::{self, Buffer, Handler, Informer, Options, Subscribe};
use headwater_client::list_watch::ListWatch;
use headwater_client::object::ResourceType;
use headwater_client::script::Script;
use headwater_client::{Cached, Key};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::ObjectMeta;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// A ConfigMap by its key; its UID follows from the key.
pub(crate) fn map(key: &str, version: &str) -> ConfigMap {
    with_uid(key, version, &format!("uid-{key}"))
}

pub(crate) fn with_uid(key: &str, version: &str, uid: &str) -> ConfigMap {
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

/// The same with labels, written as `a=1,b=2`.
pub(crate) fn labelled(key: &str, version: &str, labels: &str) -> ConfigMap {
    let mut map = map(key, version);
    let pairs = labels.split(',').map(|pair| pair.split_once('=').unwrap());
    map.metadata.labels =
        Some(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect());
    map
}

pub(crate) fn options(name: &str) -> Options {
    let mut options = Options::new(name, ResourceType::of::<ConfigMap>(&()));
    options.seed = Some(1);
    options
}

/// An informer that runs until this is dropped or stopped.
pub(crate) struct Running<K: Cached> {
    pub(crate) informer: Informer<K>,
    pub(crate) stop: CancellationToken,
    parts: JoinSet<Result<(), headwater_client::Error>>,
}

impl<K: Cached> Running<K> {
    pub(crate) fn start(source: Arc<dyn ListWatch<Object = K>>, options: Options) -> Running<K> {
        let (informer, runner) = informer::from_source(source, options);
        Running::drive(informer, runner)
    }

    pub(crate) fn drive(informer: Informer<K>, runner: informer::Runner<K>) -> Running<K> {
        let stop = CancellationToken::new();
        let mut parts = JoinSet::new();
        parts.spawn(runner.run(stop.child_token()));
        Running { informer, stop, parts }
    }

    /// Stops and waits for the end.
    pub(crate) async fn stopped(&mut self) -> Result<(), headwater_client::Error> {
        self.stop.cancel();
        self.ended().await
    }

    /// Waits for the end.
    pub(crate) async fn ended(&mut self) -> Result<(), headwater_client::Error> {
        match self.parts.join_next().await.expect("it ends once") {
            Ok(result) => result,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        self.informer.store().keys().iter().map(Key::to_string).collect()
    }
}

/// A scripted informer that begins with lists.
pub(crate) fn listing(options: Options) -> (Script<ConfigMap>, Running<ConfigMap>) {
    let (script, source) = Script::new();
    (script, Running::start(Arc::new(source.without_watch_list()), options))
}

/// A scripted informer that begins with watch-lists.
pub(crate) fn watch_listing(options: Options) -> (Script<ConfigMap>, Running<ConfigMap>) {
    let (script, source) = Script::new();
    (script, Running::start(Arc::new(source), options))
}

/// Lets everything that can happen now happen: under paused time the clock moves only when no
/// task can.
pub(crate) async fn quiet() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// What a handler was told, as text.
#[derive(Clone, Default)]
pub(crate) struct Told(Arc<Mutex<Vec<String>>>);

impl Told {
    /// Subscribes losslessly, so that everything is seen.
    pub(crate) fn of<K: Cached>(informer: &Informer<K>) -> (Told, Handler<K>) {
        Told::with(informer, Subscribe::named("told").buffer(Buffer::Lossless))
    }

    pub(crate) fn with<K: Cached>(
        informer: &Informer<K>,
        options: Subscribe,
    ) -> (Told, Handler<K>) {
        let told = Told::default();
        let list = told.clone();
        let handler = informer.for_each(options, move |change| list.push(&change)).unwrap();
        (told, handler)
    }

    pub(crate) fn push<K: Cached>(&self, change: &Change<K>) {
        self.note(format!("{change:?}"));
    }

    pub(crate) fn note(&self, text: impl Into<String>) {
        self.0.lock().unwrap().push(text.into());
    }

    /// What was told since the last time this was asked.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

/// What was logged on this thread while the guard lives.
#[derive(Clone, Default)]
pub(crate) struct Logs(Arc<Mutex<Vec<u8>>>);

impl Logs {
    pub(crate) fn capture() -> (Logs, tracing::subscriber::DefaultGuard) {
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
    pub(crate) fn lines(&self, text: &str) -> Vec<String> {
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
