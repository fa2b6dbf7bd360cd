//! A server, controllers that can be stopped and started, a kubelet, and eyes to see with.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use headwater_api::{Clock, SystemClock};
use headwater_cache::{Cacher, Options as CacheOptions};
use headwater_client::calls::Calls;
use headwater_client::factory::client_of;
use headwater_client::indexer::Snapshot;
use headwater_client::informer::Informer;
use headwater_client::{Factory, Key, wait};
use headwater_controllers::{Cluster, Options};
use headwater_server::identity::Authenticator;
use headwater_server::listen::{self, Listener};
use headwater_server::metrics::Metrics;
use headwater_server::openapi::Descriptions;
use headwater_server::pki::{self, Pki};
use headwater_server::service_account::Issuer;
use headwater_server::token_file::Tokens;
use headwater_server::{Parts, Server};
use headwater_store::{Memory, Store};
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Longer than anything takes on the slowest machine: only what never comes gets there.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

/// Everything ends when this is dropped.
pub(crate) struct World {
    pub(crate) address: SocketAddr,
    pub(crate) calls: Calls,
    /// Informers to look with; they are no part of what is tested.
    pub(crate) eyes: Factory,
    parts: JoinSet<()>,
    _stop: DropGuard,
}

/// Controllers that run until they are stopped.
pub(crate) struct Running {
    stop: CancellationToken,
    ended: JoinSet<Result<(), headwater_client::Error>>,
}

impl World {
    /// A server and a kubelet.
    pub(crate) async fn start() -> World {
        let stop = CancellationToken::new();
        let mut parts = JoinSet::new();
        let address = serve(&mut parts, &stop).await;
        let eyes = Factory::new(client(address));
        let (run, end) = (eyes.clone(), stop.clone());
        parts.spawn(async move { run.run(end).await.unwrap() });
        parts.spawn(crate::kubelet::run(Factory::new(client(address)), stop.clone()));
        let calls = Calls::new(client(address)).component("test");
        World { address, calls, eyes, parts, _stop: stop.drop_guard() }
    }

    /// A server, a kubelet and these controllers, until the end of the test.
    pub(crate) async fn with(controllers: &str) -> World {
        let mut world = World::start().await;
        let mut running = world.run(controllers);
        world.parts.spawn(async move {
            while let Some(ended) = running.ended.join_next().await {
                ended.unwrap().unwrap();
            }
        });
        world
    }

    /// Starts controllers, as one process would.
    pub(crate) fn run(&self, controllers: &str) -> Running {
        self.run_with(Options::new(controllers.parse().unwrap()))
    }

    pub(crate) fn run_with(&self, options: Options) -> Running {
        self.run_on(self.cluster(), options)
    }

    /// What a process sees of this world.
    pub(crate) fn cluster(&self) -> Cluster {
        Cluster::new(Factory::new(client(self.address)))
    }

    pub(crate) fn run_on(&self, cluster: Cluster, options: Options) -> Running {
        let stop = CancellationToken::new();
        let mut ended = JoinSet::new();
        let end = stop.clone().cancelled_owned();
        ended.spawn(async move { headwater_controllers::run(cluster, options, end).await });
        Running { stop, ended }
    }

    pub(crate) fn client(&self) -> Client {
        client(self.address)
    }

    pub(crate) async fn create<K>(&self, object: Value) -> K
    where
        K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        let object: K = serde_json::from_value(object).unwrap();
        self.calls.of::<K>().create(&object).await.unwrap()
    }

    pub(crate) async fn merge<K>(&self, key: &str, patch: Value) -> K
    where
        K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        self.calls.of::<K>().merge(&key.parse().unwrap(), &patch).await.unwrap()
    }

    pub(crate) fn informer<K>(&self) -> Informer<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
    {
        self.eyes.informer::<K>().open().unwrap()
    }

    /// Waits until one object satisfies `check`.
    #[track_caller]
    pub(crate) fn until<K>(
        &self,
        key: &str,
        check: impl FnMut(Option<&K>) -> bool,
    ) -> impl Future<Output = Option<Arc<K>>>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
    {
        let (informer, key): (Informer<K>, Key) = (self.informer(), key.parse().unwrap());
        let caller = std::panic::Location::caller();
        async move {
            informer.synced().await.unwrap();
            let found = informer.wait_for(&key, check, PATIENCE).await;
            found.unwrap_or_else(|error| panic!("{caller}: {error}"))
        }
    }

    /// Waits until all objects of a kind satisfy `check`.
    #[track_caller]
    pub(crate) fn until_all<K, T>(
        &self,
        condition: impl FnMut(&Snapshot<K>) -> Option<T>,
    ) -> impl Future<Output = T>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
    {
        let informer: Informer<K> = self.informer();
        let caller = std::panic::Location::caller();
        async move {
            let found = wait::until_synced(&informer, |_| Ok(None), condition, PATIENCE).await;
            found.unwrap_or_else(|error| panic!("{caller}: {error}"))
        }
    }
}

impl Running {
    /// Ends the controllers politely and waits for them.
    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.ended.join_next().await {
            ended.unwrap().unwrap();
        }
    }

    /// Ends them in the middle of whatever they do.
    pub(crate) async fn kill(mut self) {
        self.ended.shutdown().await;
    }
}

pub(crate) fn client(address: SocketAddr) -> Client {
    let config = kube::Config::new(format!("http://{address}").parse().unwrap());
    client_of(config).unwrap()
}

async fn serve(parts: &mut JoinSet<()>, stop: &CancellationToken) -> SocketAddr {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let metrics = Metrics::new();
    let address = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::plain(address, listen::Options::default(), metrics.clone()).unwrap();
    let address = listener.address();
    let store = Arc::new(Memory::default()) as Arc<dyn Store>;
    let mut cacher = Cacher::new(store, CacheOptions::default());
    cacher.load().await.unwrap();
    let keys = Pki::in_memory(&pki::names(address.ip(), &[]), &*clock).unwrap();
    let server = Server::new(Parts {
        cache: cacher.handle(),
        authenticator: Authenticator::new(Tokens::default()),
        issuer: Issuer::new(&keys.service_account_key).unwrap(),
        backup: headwater_server::backup::Backup::default(),
        clock,
        metrics,
        descriptions: Descriptions::compressed(&[]),
        options: headwater_server::Options::default(),
    })
    .unwrap();
    let follow = stop.clone();
    parts.spawn(async move { cacher.run(follow).await.unwrap() });
    parts.spawn(server.clone().follow_definitions(stop.clone()));
    server.bootstrap().await.unwrap();
    let listening = stop.clone();
    parts.spawn(async move {
        let draining = server.clone();
        let ended = listening.clone();
        tokio::join!(listener.run(server, listening), async {
            ended.cancelled().await;
            draining.drain();
        });
    });
    address
}
