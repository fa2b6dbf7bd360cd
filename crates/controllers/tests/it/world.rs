//! A server, controllers that can be stopped and started, a kubelet, and informers for assertions.

use std::sync::Arc;
use std::time::Duration;

use headwater_client::calls::Calls;
use headwater_client::factory::client_of;
use headwater_client::informer::{Informer, Subscribe};
use headwater_client::{Factory, Key, Snapshot};
use headwater_controllers::nodes::{self, Rules};
use headwater_controllers::{Cluster, Options};
use headwater_testing::TestServer;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The timeout of every wait; longer than anything takes on the slowest machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

/// A server with a kubelet. Everything ends when it is dropped.
pub(crate) struct World {
    config: Config,
    pub(crate) calls: Calls,
    /// The informers of the test itself.
    informers: Factory,
    parts: JoinSet<()>,
    stop: CancellationToken,
    _stop: DropGuard,
    _server: TestServer,
}

/// Controllers that run until they are stopped.
pub(crate) struct Running {
    stop: CancellationToken,
    ended: JoinSet<Result<(), headwater_client::Error>>,
}

impl World {
    /// A server and a kubelet.
    pub(crate) async fn start() -> World {
        let mut world = World::bare().await;
        let stop = world.stop.clone();
        world.parts.spawn(crate::kubelet::run(Factory::new(world.client()), stop));
        world
    }

    /// A server, this many simulated nodes without delays, a scheduler and these controllers.
    pub(crate) async fn with_nodes(count: usize, controllers: &str) -> World {
        let mut world = World::bare().await;
        let rules = nodes::Options { count, rules: Rules::instant() };
        let selected = format!("{controllers},scheduler,simulated-nodes");
        let options = Options::new(selected.parse().unwrap());
        let running = world.run_on(world.cluster().with_nodes(rules), options);
        world.keep(running);
        world
    }

    /// A server.
    async fn bare() -> World {
        let server = TestServer::start().await;
        let kubeconfig = Kubeconfig::from_yaml(&server.kubeconfig().await).unwrap();
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
        let stop = CancellationToken::new();
        let mut parts = JoinSet::new();
        let informers = Factory::new(client(&config));
        let (run, end) = (informers.clone(), stop.clone());
        parts.spawn(async move { run.run(end).await.unwrap() });
        let calls = Calls::new(client(&config)).component("test");
        let _stop = stop.clone().drop_guard();
        World { config, calls, informers, parts, stop, _stop, _server: server }
    }

    /// A server, a kubelet and these controllers, until the end of the test.
    pub(crate) async fn with(controllers: &str) -> World {
        let mut world = World::start().await;
        let running = world.run(controllers);
        world.keep(running);
        world
    }

    /// Keeps controllers running until the end of the test.
    fn keep(&mut self, mut running: Running) {
        self.parts.spawn(async move {
            while let Some(ended) = running.ended.join_next().await {
                ended.unwrap().unwrap();
            }
        });
    }

    /// Starts controllers as one process.
    pub(crate) fn run(&self, controllers: &str) -> Running {
        self.run_with(Options::new(controllers.parse().unwrap()))
    }

    pub(crate) fn run_with(&self, options: Options) -> Running {
        self.run_on(self.cluster(), options)
    }

    /// A cluster with its own connection and informers.
    pub(crate) fn cluster(&self) -> Cluster {
        Cluster::new(Factory::new(self.client()))
    }

    pub(crate) fn run_on(&self, cluster: Cluster, options: Options) -> Running {
        let stop = CancellationToken::new();
        let mut ended = JoinSet::new();
        let end = stop.clone().cancelled_owned();
        ended.spawn(async move { headwater_controllers::run(cluster, options, end).await });
        Running { stop, ended }
    }

    pub(crate) fn client(&self) -> Client {
        client(&self.config)
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
        self.informers.informer::<K>().open().unwrap()
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
        mut condition: impl FnMut(&Snapshot<K>) -> Option<T>,
    ) -> impl Future<Output = T>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
    {
        let informer: Informer<K> = self.informer();
        let caller = std::panic::Location::caller();
        async move {
            let mut changes = informer.subscribe(Subscribe::named("test")).unwrap();
            let met = async {
                informer.synced().await.unwrap();
                loop {
                    if let Some(found) = condition(&informer.snapshot()) {
                        return found;
                    }
                    changes.next().await.expect("the informer runs");
                }
            };
            let met = tokio::time::timeout(PATIENCE, met).await;
            met.unwrap_or_else(|_| panic!("{caller}: the condition was not met in time"))
        }
    }
}

impl Running {
    /// Stops the controllers and waits for them.
    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.ended.join_next().await {
            ended.unwrap().unwrap();
        }
    }

    /// Aborts the controllers wherever they are.
    pub(crate) async fn kill(mut self) {
        self.ended.shutdown().await;
    }
}

fn client(config: &Config) -> Client {
    client_of(config.clone()).unwrap()
}
