//! The controller: takes keys from informers and calls a reconciler, one worker at a time per key.
//!
//! River: subscribers → predicates → work queue → **controller** → the next write.
//! Promise: no key is reconciled before all informers have synced, by two workers at once, or on
//! data older than its own writes; failures are retried with a delay per key that is reset by
//! success; stopping waits for running reconciles.

mod context;
mod finalizer;
mod inbox;
mod observe;
mod run;

use std::any::type_name;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use futures::future::BoxFuture;
use kube::Resource;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::calls::Calls;
use crate::change::Change;
use crate::error::Error;
use crate::factory::Factory;
use crate::informer::Informer;
use crate::key::Key;
use crate::list_watch::BoxError;
use crate::metrics::Metrics;
use crate::object::Cached;
use crate::owner::owner_keys;
use crate::predicate::{Predicate, deletion_started};
use crate::recorder::{self, Recorder};
use crate::track::Caches;
use crate::workqueue::Limiter;

pub use self::context::Context;
use self::context::Listers;
use self::finalizer::Finalizer;
use self::inbox::{Attachment, Inbox, Trigger, WatchCommand};
pub use self::inbox::{ControllerHandle, Requests, WatchId};
pub use self::run::Report;
use self::run::Worker;

/// When to reconcile a key again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// After the next change.
    Done,
    /// After this time, or after the next change.
    After(Duration),
    /// After the delay of a failure, without counting as one.
    Again,
}

/// Why a reconcile failed. `?` converts any error; it is retried unless it is terminal.
pub struct Failure {
    error: BoxError,
    terminal: bool,
}

impl Failure {
    /// A failure that a retry would repeat; the key waits for its next change.
    pub fn terminal(error: impl Into<BoxError>) -> Failure {
        Failure { error: error.into(), terminal: true }
    }

    /// A failure with this message; it is retried.
    pub fn text(text: impl Into<String>) -> Failure {
        Failure { error: text.into().into(), terminal: false }
    }
}

impl<E: Into<BoxError>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure { error: error.into(), terminal: false }
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Failure({}, terminal: {})", self.error, self.terminal)
    }
}

/// Brings the cluster closer to the desired state of one object. An async function implements it:
///
/// ```
/// use headwater_client::controller::{Context, Failure, Next};
/// use k8s_openapi::api::core::v1::Pod;
/// use std::sync::Arc;
///
/// async fn reconcile(pod: Arc<Pod>, cx: Context) -> Result<Next, Failure> {
///     // … compare the desired state with the current state, and act …
///     Ok(Next::Done)
/// }
/// ```
pub trait Reconcile<K: Cached>: Send + Sync + 'static {
    /// Reconciles one object, given its state in the cache. The future may be dropped at any await:
    /// after a timeout, at the end of the grace period at stop, when leadership is lost.
    fn reconcile(
        &self,
        object: Arc<K>,
        cx: Context,
    ) -> impl Future<Output = Result<Next, Failure>> + Send;

    /// Called when the object of a key was deleted, with its last known state. The default does
    /// nothing.
    fn gone(
        &self,
        key: Key,
        last: Option<Arc<K>>,
        cx: Context,
    ) -> impl Future<Output = Result<Next, Failure>> + Send {
        let _ = (key, last, cx);
        async { Ok(Next::Done) }
    }
}

impl<K, F, R, E> Reconcile<K> for F
where
    K: Cached,
    F: Fn(Arc<K>, Context) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Next, E>> + Send,
    E: Into<Failure>,
{
    async fn reconcile(&self, object: Arc<K>, cx: Context) -> Result<Next, Failure> {
        self(object, cx).await.map_err(Into::into)
    }
}

/// A reconciler with a function for deleted objects; made by [`with_gone`].
pub struct WithGone<R, G> {
    reconciler: R,
    gone: G,
}

/// Adds a function for deleted objects to a reconciler; see [`Reconcile::gone`].
pub fn with_gone<R, G>(reconciler: R, gone: G) -> WithGone<R, G> {
    WithGone { reconciler, gone }
}

impl<R, G> fmt::Debug for WithGone<R, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WithGone")
    }
}

impl<K, R, G, F, E> Reconcile<K> for WithGone<R, G>
where
    K: Cached,
    R: Reconcile<K>,
    G: Fn(Key, Option<Arc<K>>, Context) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Next, E>> + Send,
    E: Into<Failure>,
{
    async fn reconcile(&self, object: Arc<K>, cx: Context) -> Result<Next, Failure> {
        self.reconciler.reconcile(object, cx).await
    }

    async fn gone(&self, key: Key, last: Option<Arc<K>>, cx: Context) -> Result<Next, Failure> {
        (self.gone)(key, last, cx).await.map_err(Into::into)
    }
}

/// The configuration of a controller: its informers, its predicates, its limits.
///
/// ```no_run
/// use headwater_client::controller::{Context, Controller, Failure, Next};
/// use headwater_client::{Factory, predicate};
/// use k8s_openapi::api::apps::v1::Deployment;
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use std::sync::Arc;
///
/// async fn reconcile(map: Arc<ConfigMap>, cx: Context) -> Result<Next, Failure> {
///     Ok(Next::Done)
/// }
///
/// # async fn example() -> Result<(), headwater_client::Error> {
/// let factory = Factory::connect().await?;
/// let maps = factory.informer::<ConfigMap>().open()?;
/// let deployments = factory.informer::<Deployment>().open()?;
/// Controller::new("webapp", &maps)
///     .owns(&deployments)
///     .when(predicate::generation_changed())
///     .workers(8)
///     .run(&factory, async { tokio::signal::ctrl_c().await.ok(); }, reconcile)
///     .await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a controller does nothing until it is run"]
pub struct Controller<K: Cached> {
    name: String,
    informer: Informer<K>,
    workers: usize,
    options: Options,
    predicate: Option<Predicate<K>>,
    attach: Vec<Attachment<K>>,
    finalizer: Option<Finalizer<K>>,
    listers: Listers,
    caches: Caches,
    calls: Option<Calls>,
    requests: (mpsc::Sender<inbox::KeyRequest>, mpsc::Receiver<inbox::KeyRequest>),
    handle: ControllerHandle<K>,
    rewire: mpsc::Receiver<WatchCommand<K>>,
    streams: Vec<KeyStream>,
}

type KeyStream = Pin<Box<dyn Stream<Item = Key> + Send>>;

/// The options of a controller that few programs change.
#[derive(Debug)]
#[non_exhaustive]
pub struct Options {
    /// The delays after failures; per key from 5 ms to 1000 s by default.
    pub limiter: Limiter<Key>,
    /// How long the informers may take to sync; two minutes by default.
    pub sync_timeout: Duration,
    /// How long running reconciles may take to finish at stop; 30 s by default.
    pub grace: Duration,
    /// Cancels a reconcile after this time and retries the key as after a failure.
    pub reconcile_timeout: Option<Duration>,
    /// How long a key waits until the caches contain its own writes; 5 s by default, `None` does
    /// not wait.
    pub read_own_writes: Option<Duration>,
}

/// Requested keys that wait to be enqueued; when full, the caller waits.
const REQUESTS_MAX: usize = 1024;

impl<K: Cached> Controller<K> {
    /// A controller for the objects of an informer. The name must be unique in the process.
    pub fn new(name: impl Into<String>, informer: &Informer<K>) -> Controller<K> {
        let mut listers = Listers::default();
        let mut caches = Caches::default();
        listers.add(informer);
        caches.add(informer);
        let requests = mpsc::channel(REQUESTS_MAX);
        let (rewire_sender, rewire) = mpsc::channel(REQUESTS_MAX);
        let handle = ControllerHandle::new(rewire_sender);
        Controller {
            name: name.into(),
            informer: informer.clone(),
            workers: 1,
            options: Options {
                limiter: Limiter::per_item(),
                sync_timeout: Duration::from_secs(120),
                grace: Duration::from_secs(30),
                reconcile_timeout: None,
                read_own_writes: Some(Duration::from_secs(5)),
            },
            predicate: None,
            attach: vec![inbox::attach_main(informer)],
            finalizer: None,
            listers,
            caches,
            calls: None,
            requests,
            handle,
            rewire,
            streams: Vec::new(),
        }
    }

    /// A change of a child enqueues its controlling owner; an update enqueues the owners of both
    /// states.
    pub fn owns<C: Cached>(self, children: &Informer<C>) -> Self {
        let owner_type = self.informer.resource().clone();
        let scope = type_name::<<K::Resource as Resource>::Scope>();
        let namespaced = !scope.ends_with("ClusterResourceScope");
        let map = move |child: &C| owner_keys(&child.metadata(), &owner_type, namespaced);
        self.mapped(children, None, inbox::owned, map)
    }

    /// A change of a related object enqueues the keys that `map` returns; for an update, it is
    /// called with both states. `map` may use indexes and listers of other informers of this
    /// controller: they have synced before its first call.
    pub fn watches<R, I>(
        self,
        related: &Informer<R>,
        map: impl Fn(&R) -> I + Send + Sync + 'static,
    ) -> Self
    where
        R: Cached,
        I: IntoIterator<Item = Key>,
    {
        self.mapped(related, None, inbox::related, move |object| map(object).into_iter().collect())
    }

    /// As [`Controller::watches`], for changes that pass a predicate.
    pub fn watches_when<R, I>(
        self,
        related: &Informer<R>,
        predicate: Predicate<R>,
        map: impl Fn(&R) -> I + Send + Sync + 'static,
    ) -> Self
    where
        R: Cached,
        I: IntoIterator<Item = Key>,
    {
        let map = move |object: &R| map(object).into_iter().collect();
        self.mapped(related, Some(predicate), inbox::related, map)
    }

    fn mapped<R: Cached>(
        mut self,
        related: &Informer<R>,
        predicate: Option<Predicate<R>>,
        trigger: fn(Key) -> Trigger,
        map: impl Fn(&R) -> Vec<Key> + Send + Sync + 'static,
    ) -> Self {
        self.listers.add(related);
        self.caches.add(related);
        self.attach.push(inbox::attach_mapped(related.clone(), predicate, trigger, map));
        self
    }

    /// Adds an informer that the reconciler reads but that triggers no reconcile.
    pub fn reads<R: Cached>(mut self, related: &Informer<R>) -> Self {
        self.listers.add(related);
        self.caches.add(related);
        self.attach.push(inbox::attach_silent(related.clone()));
        self
    }

    /// Enqueues only changes of the main kind that pass the predicate.
    pub fn when(mut self, predicate: Predicate<K>) -> Self {
        self.predicate = Some(match self.predicate.take() {
            Some(known) => known.and(predicate),
            None => predicate,
        });
        self
    }

    /// The number of keys that are reconciled concurrently; one by default.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// Adds a finalizer to every object before its first reconcile, and calls `cleanup` instead of
    /// the reconciler once the object is being deleted. The finalizer is removed when `cleanup`
    /// returns [`Next::Done`].
    ///
    /// # Errors
    /// [`Error::Invalid`] if the name is not qualified, such as `example.com/dns`.
    pub fn finalizer<F, E>(
        mut self,
        name: &str,
        cleanup: impl Fn(Arc<K>, Context) -> F + Send + Sync + 'static,
    ) -> Result<Self, Error>
    where
        F: Future<Output = Result<Next, E>> + Send + 'static,
        E: Into<Failure>,
    {
        self.finalizer = Some(Finalizer::new(name, cleanup)?);
        Ok(self)
    }

    /// Changes any other option of the controller.
    pub fn configure(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut self.options);
        self
    }

    /// How the reconciler calls the server; through the factory's client by default.
    pub fn calls(mut self, calls: Calls) -> Self {
        self.calls = Some(calls);
        self
    }

    /// Enqueues the keys of a stream.
    pub fn triggered_by(mut self, keys: impl Stream<Item = Key> + Send + 'static) -> Self {
        self.streams.push(Box::pin(keys));
        self
    }

    /// A handle that enqueues keys while the controller runs.
    pub fn requests(&self) -> Requests {
        Requests::new(self.requests.0.clone())
    }

    /// A handle that adds and removes watches while the controller runs.
    pub fn handle(&self) -> ControllerHandle<K> {
        self.handle.clone()
    }

    /// Pairs the controller with its reconciler, for a manager.
    pub fn with(self, reconciler: impl Reconcile<K>) -> Prepared {
        let name = self.name.clone();
        let start = move |env: Env| -> BoxFuture<'static, Result<Report, Error>> {
            Box::pin(self.work(env, reconciler))
        };
        Prepared { name, start: Box::new(start) }
    }

    /// Runs the factory and the controller until `stop` completes. At the end it stops the workers,
    /// writes the recorded events and stops the caches, in this order.
    ///
    /// # Errors
    /// [`Error::SyncTimeout`] if an informer does not sync; the error of [`Factory::run`].
    pub async fn run(
        self,
        factory: &Factory,
        stop: impl Future<Output = ()>,
        reconciler: impl Reconcile<K>,
    ) -> Result<Report, Error> {
        let (caches, work) = (CancellationToken::new(), CancellationToken::new());
        let calls = self.calls.clone().unwrap_or_else(|| Calls::new(factory.client().clone()));
        let mut events = recorder::Options::named(self.name.as_str());
        events.metrics = factory.metrics().cloned();
        let (recorder, events) = recorder::new(calls.clone(), events);
        let env = Env {
            calls,
            metrics: factory.metrics().cloned(),
            recorder,
            leading: Box::pin(std::future::ready(())),
            stop: work.clone(),
            abandon: CancellationToken::new(),
        };
        let working = async {
            let report = Box::pin(self.work(env, reconciler)).await;
            caches.cancel(); // the informers and the event recorder end after the controller
            report
        };
        let stopping = async {
            tokio::select! {
                () = stop => work.cancel(),
                () = caches.cancelled() => {}
            }
        };
        // Boxed, so that the future of the caller stays small.
        let events = Box::pin(events.run(caches.clone()));
        let (ran, report, (), ()) =
            tokio::join!(factory.run(caches.clone()), working, stopping, events);
        let report = report?;
        ran?;
        Ok(report)
    }

    async fn work(mut self, env: Env, reconciler: impl Reconcile<K>) -> Result<Report, Error> {
        let predicate = match (self.predicate, &self.finalizer) {
            // The start of a deletion does not change the generation, but the cleanup must run.
            (Some(predicate), Some(_)) => Some(predicate.or(deletion_started())),
            (predicate, _) => predicate,
        };
        let metrics = env.metrics;
        let inbox = Inbox::new(
            &self.name,
            &self.informer,
            inbox::Options {
                predicate,
                limiter: std::mem::take(&mut self.options.limiter),
                metrics: metrics.clone(),
            },
        );
        let worker = Worker {
            name: self.name.into(),
            informer: self.informer,
            reconciler,
            finalizer: self.finalizer,
            inbox,
            options: self.options,
            listers: Arc::new(self.listers),
            caches: self.caches,
            calls: self.calls.unwrap_or(env.calls),
            recorder: env.recorder,
            observer: metrics.map(|metrics| observe::Observer::new(&metrics)),
            writes: Default::default(),
            diary: Default::default(),
        };
        let parts = run::Inputs {
            attach: self.attach,
            requests: self.requests.1,
            rewire: self.rewire,
            streams: self.streams,
            workers: self.workers,
        };
        let ends = run::Lifecycle { leading: env.leading, stop: env.stop, abandon: env.abandon };
        run::run(Arc::new(worker), parts, ends).await
    }
}

impl<K: Cached> fmt::Debug for Controller<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Controller({})", self.name)
    }
}

/// What [`Manager`](crate::Manager) or [`Controller::run`] passes to a controller; see
/// [`Prepared::custom`].
pub struct Env {
    pub(crate) calls: Calls,
    pub(crate) metrics: Option<Metrics>,
    pub(crate) recorder: Recorder,
    /// Completes when reconciles may start; caches and queue are filled before that.
    pub(crate) leading: BoxFuture<'static, ()>,
    pub(crate) stop: CancellationToken,
    /// Cancelled when leadership was lost: another replica may already work, so no reconcile may
    /// finish.
    pub(crate) abandon: CancellationToken,
}

/// A controller with its reconciler, ready for a [`Manager`](crate::manager::Manager).
#[must_use = "give it to a manager"]
pub struct Prepared {
    pub(crate) name: String,
    pub(crate) start: Box<dyn FnOnce(Env) -> BoxFuture<'static, Result<Report, Error>> + Send>,
}

impl Env {
    /// Reads and writes.
    pub fn calls(&self) -> &Calls {
        &self.calls
    }

    /// The event recorder.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Cancelled when the controller should end.
    pub fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Waits until this replica leads; fill caches and queues before. Returns false if the
    /// controller was stopped first. Cancel-safe.
    pub async fn leading(&mut self) -> bool {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => return false,
            () = &mut self.leading => {}
        }
        self.leading = Box::pin(std::future::ready(()));
        true
    }
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Env")
    }
}

impl Prepared {
    /// The name of the controller.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes the controller call the server with a client of its own instead of the manager's, for
    /// example as a service account with fewer rights.
    pub fn calls(self, calls: Calls) -> Prepared {
        let Prepared { name, start } = self;
        let start = move |env: Env| start(Env { calls, ..env });
        Prepared { name, start: Box::new(start) }
    }

    /// Makes the controller report events under this component instead of its name or that of the
    /// manager.
    pub fn reports_as(self, component: &str) -> Prepared {
        let Prepared { name, start } = self;
        let component = component.to_owned();
        let start = move |env: Env| {
            let recorder = env.recorder.component(&component);
            start(Env { recorder, ..env })
        };
        Prepared { name, start: Box::new(start) }
    }

    /// A controller with its own loop, for work that does not fit one reconcile per key, such as a
    /// scheduler or a garbage collector. It waits for its informers and for [`Env::leading`]
    /// itself, and ends after [`Env::stop`]. When leadership is lost, its future is dropped.
    pub fn custom<F>(
        name: impl Into<String>,
        start: impl FnOnce(Env) -> F + Send + 'static,
    ) -> Prepared
    where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let start = move |env: Env| -> BoxFuture<'static, Result<Report, Error>> {
            let abandon = env.abandon.clone();
            let work = start(env);
            Box::pin(async move {
                tokio::select! {
                    biased;
                    () = abandon.cancelled() => Ok(Report { cancelled: 1 }),
                    ended = work => ended.map(|()| Report::default()),
                }
            })
        };
        Prepared { name: name.into(), start: Box::new(start) }
    }
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Prepared({})", self.name)
    }
}

/// Whether a change is not news: the initial state, a resync, an unchanged object of a list.
fn is_no_news<K: Cached>(change: &Change<K>) -> bool {
    match change {
        Change::Added { initial, .. } => *initial,
        Change::Updated { old, new } => {
            let version = new.resource_version();
            !version.is_empty() && old.resource_version() == version
        }
        _ => false,
    }
}
