//! The factory: makes and runs informers, one per distinct set of options.
//!
//! River: client → **factory** → informers.
//! Promise: equal options give the same informer, different options never do; an informer without
//! handles is stopped and freed; an informer that has stopped is never returned to a new caller;
//! when `run` has returned or its future was dropped, no task of the factory is running.

mod builder;

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use futures::future::BoxFuture;
use headwater_api::selector::{ShardField, ShardSelector};
use kube::core::{ApiResource, DynamicObject};
use kube::{Client, Config, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::informer::{HandleToken, Health, Informer, InformerInner, Runner};
use crate::lister::Lister;
use crate::metrics::Metrics;
use crate::object::{Cached, ResourceType};
use crate::query::Selection;
use crate::strip::Strip;

pub use self::builder::Builder;

/// The default options of all informers of a factory.
#[derive(Clone)]
pub struct InformerDefaults {
    /// The name of the program, for the `User-Agent` header.
    pub component: String,
    /// Whether `metadata.managedFields` is removed from every object; true by default. They are half
    /// of an object, few programs read them, and servers keep them when an object without them is
    /// written.
    pub drop_managed_fields: bool,
    /// The page size of all lists; `None` uses the defaults of client-go.
    pub page_size: Option<u32>,
    /// How many informers may fetch their initial state at the same time; zero means no limit.
    pub fetch_limit: usize,
    /// The resync period of subscribers that set none; zero disables resyncs.
    pub resync: Duration,
    /// How long an informer without handles keeps running.
    pub grace: Duration,
    /// The metrics to count in.
    pub metrics: Option<Metrics>,
    /// The part of every collection that informers hold; see [`Factory::shard`].
    pub shard: Option<ShardSelector>,
}

impl Default for InformerDefaults {
    fn default() -> InformerDefaults {
        InformerDefaults {
            component: "unnamed".to_owned(),
            drop_managed_fields: true,
            page_size: None,
            fetch_limit: 8,
            resync: Duration::ZERO,
            grace: Duration::from_secs(30),
            metrics: None,
            shard: None,
        }
    }
}

impl fmt::Debug for InformerDefaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InformerDefaults")
            .field("component", &self.component)
            .finish_non_exhaustive()
    }
}

/// Makes and runs informers. Cheap to clone; clones are the same factory.
///
/// ```no_run
/// use headwater_client::Factory;
/// use k8s_openapi::api::core::v1::Pod;
/// use std::time::Duration;
/// use tokio_util::sync::CancellationToken;
///
/// # async fn example() -> Result<(), headwater_client::Error> {
/// let factory = Factory::connect().await?; // kubeconfig, or in-cluster
/// let pods = factory.informer::<Pod>().labels("tier=web").open()?;
/// let stop = CancellationToken::new();
/// let work = async {
///     factory.synced(Duration::from_secs(60)).await?; // the error lists what failed
///     println!("{} pods", pods.snapshot().len());
///     stop.cancel();
///     Ok(())
/// };
/// tokio::try_join!(factory.run(stop.clone()), work)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Factory {
    inner: Arc<FactoryInner>,
}

struct FactoryInner {
    client: Client,
    defaults: InformerDefaults,
    fetch_slots: Option<Arc<Semaphore>>,
    state: Mutex<FactoryState>,
    /// Notified when an informer waits to be started.
    asked: Notify,
}

struct FactoryState {
    phase: Phase,
    informers: HashMap<InformerIdentity, Arc<dyn AnyInformer>>,
    /// Informers that were opened and are not running yet.
    waiting: Vec<Start>,
    names: BTreeSet<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    New,
    Running,
    Stopped,
}

type Start = Box<dyn FnOnce(Arc<FactoryInner>, CancellationToken) -> BoxFuture<'static, ()> + Send>;

/// The options of an informer; equal identities share one informer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct InformerIdentity {
    resource: ResourceType,
    stored: TypeId,
    namespaces: Option<Vec<String>>,
    selection: Selection,
    transform: Option<usize>,
    strip: Strip,
    metadata_only: bool,
    /// All other options that affect the informer, as text.
    reading: String,
}

/// An informer of any type.
trait AnyInformer: Send + Sync {
    fn name(&self) -> &str;
    fn health(&self) -> Health;
    fn has_synced(&self) -> bool;
    fn synced(&self, or_hopeless: bool) -> BoxFuture<'_, Result<(), Error>>;
    fn is_held(&self) -> bool;
    fn as_any(&self) -> &dyn Any;
}

struct FactoryInformer<K: Cached> {
    shared: Arc<InformerInner<K>>,
    alive: Mutex<Weak<HandleToken>>,
    gone: Arc<Notify>,
}

impl<K: Cached> FactoryInformer<K> {
    /// A new handle.
    fn handle(&self) -> Informer<K> {
        let mut alive = self.alive.lock().expect("no code panics while it is held");
        let token = alive.upgrade().unwrap_or_else(|| {
            let token = Arc::new(HandleToken::new(&self.gone));
            *alive = Arc::downgrade(&token);
            token
        });
        Informer { shared: Arc::clone(&self.shared), alive: token }
    }
}

impl<K: Cached> AnyInformer for FactoryInformer<K> {
    fn name(&self) -> &str {
        &self.shared.options.name
    }

    fn health(&self) -> Health {
        self.shared.health_now()
    }

    fn has_synced(&self) -> bool {
        self.shared.has_synced()
    }

    fn synced(&self, or_hopeless: bool) -> BoxFuture<'_, Result<(), Error>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            match or_hopeless {
                true => shared.synced_unless(Health::is_hopeless).await,
                false => shared.synced_unless(Health::is_over).await,
            }
        })
    }

    fn is_held(&self) -> bool {
        self.alive.lock().expect("no code panics while it is held").strong_count() > 0
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Factory {
    /// A factory with a kube client. The client should not retry (`Config::default_retry`): the
    /// reflector does.
    pub fn new(client: Client) -> Factory {
        Factory::with_defaults(client, InformerDefaults::default())
    }

    /// A factory with default options for its informers.
    pub fn with_defaults(client: Client, defaults: InformerDefaults) -> Factory {
        let slots =
            (defaults.fetch_limit > 0).then(|| Arc::new(Semaphore::new(defaults.fetch_limit)));
        let state = FactoryState {
            phase: Phase::New,
            informers: HashMap::new(),
            waiting: Vec::new(),
            names: BTreeSet::new(),
        };
        Factory {
            inner: Arc::new(FactoryInner {
                client,
                defaults,
                fetch_slots: slots,
                state: Mutex::new(state),
                asked: Notify::new(),
            }),
        }
    }

    /// Connects to the server of the kubeconfig, or of the cluster in which the program runs.
    ///
    /// # Errors
    /// No valid configuration was found.
    pub async fn connect() -> Result<Factory, Error> {
        Factory::connect_with(InformerDefaults::default()).await
    }

    /// As [`Factory::connect`], with default options for its informers.
    ///
    /// # Errors
    /// No valid configuration was found.
    pub async fn connect_with(defaults: InformerDefaults) -> Result<Factory, Error> {
        let config = Config::infer().await.map_err(kube::Error::InferConfig)?;
        Ok(Factory::with_defaults(client_of(config)?, defaults))
    }

    /// Another factory, with the same client and defaults, whose informers hold the `index`-th of
    /// `count` equal parts of their collections, by the hash of the object's uid. It is run by itself.
    /// An object never changes its part. Servers that cannot select parts send everything, and the
    /// informers leave out what is not theirs.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such part.
    pub fn shard(&self, index: u32, count: u32) -> Result<Factory, Error> {
        let part = ShardSelector::part(ShardField::Uid, index, count);
        let invalid = || Error::Invalid(format!("there is no shard {index} of {count}"));
        let shard = Some(part.ok_or_else(invalid)?);
        let defaults = InformerDefaults { shard, ..self.inner.defaults.clone() };
        Ok(Factory::with_defaults(self.inner.client.clone(), defaults))
    }

    /// The kube client.
    pub fn client(&self) -> &Client {
        &self.inner.client
    }

    /// The metrics, if any.
    pub fn metrics(&self) -> Option<&Metrics> {
        self.inner.defaults.metrics.as_ref()
    }

    /// An informer of typed objects; [`Builder`] sets its options.
    pub fn informer<K>(&self) -> Builder<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
    {
        self.informer_of(ResourceType::of::<K>(&()))
    }

    /// An informer of dynamic objects.
    pub fn dynamic(&self, resource: &ApiResource) -> Builder<DynamicObject> {
        self.informer_of(ResourceType::of::<DynamicObject>(resource))
    }

    /// An informer of typed objects whose resource type is known only at run time.
    pub fn informer_of<K>(&self, resource: ResourceType) -> Builder<K>
    where
        K: Resource + DeserializeOwned + Send + Sync + 'static,
    {
        Builder::http(self.clone(), resource)
    }

    /// An informer over a source of a test.
    #[cfg(any(test, feature = "testing"))]
    pub fn informer_from<K: Cached>(
        &self,
        resource: ResourceType,
        source: Arc<dyn crate::list_watch::ListWatch<Object = K>>,
    ) -> Builder<K> {
        Builder::source(self.clone(), resource, source)
    }

    fn state(&self) -> MutexGuard<'_, FactoryState> {
        self.inner.state()
    }

    /// Runs all informers, including those opened later, until `stop`. Dropping the future stops
    /// them too.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is run a second time.
    pub async fn run(&self, stop: CancellationToken) -> Result<(), Error> {
        let _ending = self.begin()?;
        let mut running = JoinSet::new();
        let informers = stop.child_token();
        // Dropping this future must stop the informers too.
        let _cancel = informers.clone().drop_guard();
        loop {
            let waiting = std::mem::take(&mut self.state().waiting);
            for start in waiting {
                running.spawn(start(Arc::clone(&self.inner), informers.child_token()));
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.inner.asked.notified() => {}
                Some(ended) = running.join_next() => propagate(ended),
            }
        }
        self.state().phase = Phase::Stopped;
        while let Some(ended) = running.join_next().await {
            propagate(ended);
        }
        Ok(())
    }

    fn begin(&self) -> Result<StopGuard, Error> {
        let mut state = self.state();
        match state.phase {
            Phase::New => state.phase = Phase::Running,
            Phase::Running => return Err(Error::Invalid("the factory is running already".into())),
            Phase::Stopped => return Err(Error::Stopped("the factory".into())),
        }
        Ok(StopGuard { inner: Arc::clone(&self.inner) })
    }

    /// Waits until every informer has synced.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`Error::SyncTimeout`] lists the informers that did not, and why; [`Error::NotRunning`] if
    /// [`Factory::run`] is not running.
    pub async fn synced(&self, deadline: Duration) -> Result<(), Error> {
        self.wait_synced(deadline, false).await
    }

    /// As [`Factory::synced`], but fails at once if the server denies access or does not serve a
    /// resource type. Cancel-safe.
    ///
    /// # Errors
    /// As [`Factory::synced`].
    pub async fn synced_or_hopeless(&self, deadline: Duration) -> Result<(), Error> {
        self.wait_synced(deadline, true).await
    }

    async fn wait_synced(&self, deadline: Duration, or_hopeless: bool) -> Result<(), Error> {
        // `run` may be polled after this call in the same task: yield to it first.
        tokio::task::yield_now().await;
        let (phase, informers) = {
            let state = self.state();
            (state.phase, state.informers.values().cloned().collect::<Vec<_>>())
        };
        match phase {
            Phase::New => return Err(Error::NotRunning),
            Phase::Stopped => return Err(Error::Stopped("the factory".into())),
            Phase::Running => {}
        }
        let each = informers.iter().map(|informer| informer.synced(or_hopeless));
        let all = futures::future::try_join_all(each);
        match timeout(deadline, all).await {
            Ok(Ok(_)) => Ok(()),
            _ => {
                let missing = informers
                    .iter()
                    .filter(|informer| !informer.has_synced())
                    .map(|informer| (informer.name().to_owned(), informer.health()))
                    .collect();
                Err(Error::SyncTimeout { after: deadline, missing })
            }
        }
    }

    /// The informers that have not synced, by name.
    pub(crate) fn not_synced(&self) -> BTreeMap<String, Health> {
        let state = self.state();
        let each = state.informers.values().filter(|informer| !informer.has_synced());
        each.map(|informer| (informer.name().to_owned(), informer.health())).collect()
    }

    /// The health of each informer, by name.
    pub fn health(&self) -> BTreeMap<String, Health> {
        let state = self.state();
        let each = state.informers.values();
        each.map(|informer| (informer.name().to_owned(), informer.health())).collect()
    }

    /// The lister of an open informer.
    ///
    /// # Errors
    /// [`Error::NoInformer`] if there is no informer of that type, or more than one.
    pub fn lister<K: Cached>(&self) -> Result<Lister<K>, Error> {
        let state = self.state();
        let mut found = state
            .informers
            .values()
            .filter(|informer| informer.is_held())
            .filter_map(|informer| informer.as_any().downcast_ref::<FactoryInformer<K>>());
        match (found.next(), found.next()) {
            (Some(one), None) => Ok(one.handle().lister()),
            _ => Err(Error::NoInformer(std::any::type_name::<K>().to_owned())),
        }
    }

    /// The informer with this identity: the existing one, or a new one.
    fn open<K: Cached>(
        &self,
        identity: InformerIdentity,
        make: impl FnOnce(String) -> NewInformer<K>,
        name: &str,
    ) -> Result<Informer<K>, Error> {
        let mut state = self.state();
        if state.phase == Phase::Stopped {
            return Err(Error::Stopped("the factory".into()));
        }
        if let Some(known) = state.informers.get(&identity)
            && let Some(kept) = known.as_any().downcast_ref::<FactoryInformer<K>>()
        {
            if !kept.health().is_over() {
                return Ok(kept.handle());
            }
            state.remove(&identity);
        }
        let name = state.free_name(name);
        let NewInformer { informer, runner, gone } = make(name);
        let kept = Arc::new(FactoryInformer {
            shared: Arc::clone(&informer.shared),
            alive: Mutex::new(Arc::downgrade(&informer.alive)),
            gone,
        });
        state.informers.insert(identity.clone(), Arc::clone(&kept) as Arc<dyn AnyInformer>);
        state.waiting.push(Box::new(move |inner, stop| {
            Box::pin(run_counted(inner, identity, kept, runner, stop))
        }));
        drop(state);
        self.inner.asked.notify_one();
        Ok(informer)
    }
}

/// Makes a kube client without retries of its own; the reflector retries.
///
/// # Errors
/// The configuration is invalid.
pub fn client_of(mut config: Config) -> Result<Client, Error> {
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

fn propagate(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && let Ok(panic) = error.try_into_panic()
    {
        std::panic::resume_unwind(panic);
    }
}

/// A new informer and what the factory needs to run it.
struct NewInformer<K: Cached> {
    informer: Informer<K>,
    runner: Runner<K>,
    gone: Arc<Notify>,
}

impl FactoryState {
    /// A name that no other informer has.
    fn free_name(&mut self, wanted: &str) -> String {
        let numbered = (2..).map(|number| format!("{wanted}-{number}"));
        let name = std::iter::once(wanted.to_owned())
            .chain(numbered)
            .find(|name| !self.names.contains(name))
            .unwrap_or_default();
        self.names.insert(name.clone());
        name
    }

    fn remove(&mut self, identity: &InformerIdentity) {
        if let Some(informer) = self.informers.remove(identity) {
            self.names.remove(informer.name());
        }
    }
}

impl FactoryInner {
    fn state(&self) -> MutexGuard<'_, FactoryState> {
        self.state.lock().expect("no code panics while the factory's state is held")
    }

    /// Removes an informer if it has no handles; returns whether it did.
    fn forget_if_unheld(&self, identity: &InformerIdentity) -> bool {
        let mut state = self.state();
        let held = state.informers.get(identity).is_some_and(|informer| informer.is_held());
        if !held {
            state.remove(identity);
        }
        !held
    }

    /// Removes an informer that has ended, unless a new one has taken its place.
    fn forget_ended(&self, identity: &InformerIdentity) {
        let mut state = self.state();
        if state.informers.get(identity).is_some_and(|informer| informer.health().is_over()) {
            state.remove(identity);
        }
    }
}

/// Runs one informer until `stop`, until it has had no handles for the grace period, or until it
/// ends by itself because its resource type is not served.
async fn run_counted<K: Cached>(
    inner: Arc<FactoryInner>,
    identity: InformerIdentity,
    kept: Arc<FactoryInformer<K>>,
    runner: Runner<K>,
    stop: CancellationToken,
) {
    let unheld = async {
        loop {
            if kept.is_held() {
                kept.gone.notified().await;
                continue;
            }
            sleep(inner.defaults.grace).await;
            if inner.forget_if_unheld(&identity) {
                return;
            }
        }
    };
    let mut run = Box::pin(runner.run(stop.child_token()));
    tokio::select! {
        () = &mut run => {
            if !stop.is_cancelled() {
                inner.forget_ended(&identity);
            }
        }
        () = unheld => {
            stop.cancel();
            run.await;
        }
    }
}

/// Marks the factory as stopped when it is dropped.
struct StopGuard {
    inner: Arc<FactoryInner>,
}

impl Drop for StopGuard {
    fn drop(&mut self) {
        let mut state = self.inner.state();
        state.phase = Phase::Stopped;
        state.waiting.clear();
    }
}

impl fmt::Debug for Factory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        write!(f, "Factory({:?}, {} informers)", state.phase, state.informers.len())
    }
}
