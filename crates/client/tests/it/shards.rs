//! Sharding: copies of a controller share the shards of a collection.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headwater_client::calls::Calls;
use headwater_client::controller::{Context, Controller, Failure, Next};
use headwater_client::shards::Sharding;
use headwater_client::{Cached, Error, Factory, Manager};
use headwater_testing::TestServer;
use k8s_openapi::api::coordination::v1::Lease as LeaseObject;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::support::*;

const SHARDS: u32 = 8;

/// How many objects the copies share; more with `HEADWATER_SHARD_OBJECTS`.
fn objects() -> usize {
    let asked = std::env::var("HEADWATER_SHARD_OBJECTS");
    asked.ok().and_then(|text| text.parse().ok()).unwrap_or(200)
}

/// How long a reconcile takes.
const RECONCILE: Duration = Duration::from_millis(20);

/// Who reconciles what, and whether two ever did at a time.
#[derive(Clone, Default)]
struct Board(Arc<Mutex<Reconciles>>);

#[derive(Default)]
struct Reconciles {
    active: BTreeMap<String, &'static str>,
    /// The version and the copy of the last reconcile of each object.
    last: BTreeMap<String, (String, &'static str)>,
    clashes: Vec<String>,
}

/// A reconcile that runs; it may be dropped at any time.
struct Active(Board, String);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.0.lock().unwrap().active.remove(&self.1);
    }
}

impl Board {
    fn enter(&self, name: &str, copy: &'static str) -> Active {
        let mut board = self.0.lock().unwrap();
        if let Some(other) = board.active.insert(name.to_owned(), copy) {
            board.clashes.push(format!("{name} by {other} and {copy}"));
        }
        Active(self.clone(), name.to_owned())
    }

    async fn reconcile(self, map: Arc<ConfigMap>, copy: &'static str) -> Result<Next, Failure> {
        let _active = self.enter(map.name(), copy);
        sleep(RECONCILE).await;
        let done = (map.resource_version().to_string(), copy);
        self.0.lock().unwrap().last.insert(map.name().to_owned(), done);
        Ok(Next::Done)
    }

    /// How many objects each copy reconciled last.
    fn shares(&self) -> BTreeMap<&'static str, usize> {
        let mut shares = BTreeMap::new();
        for (_, copy) in self.0.lock().unwrap().last.values() {
            *shares.entry(*copy).or_default() += 1;
        }
        shares
    }

    /// Waits until the last reconcile of each object was of this version.
    async fn reached(&self, versions: &BTreeMap<String, String>) {
        let is_reached = || {
            let board = self.0.lock().unwrap();
            let at = |name: &String| board.last.get(name).map(|(version, _)| version);
            versions.iter().all(|(name, version)| at(name) == Some(version))
        };
        let wait = async {
            while !is_reached() {
                sleep(SECOND).await;
            }
        };
        let patience = PATIENCE + RECONCILE * u32::try_from(versions.len()).unwrap();
        timeout(patience, wait).await.expect("every object is reconciled");
    }
}

/// Changes every object and returns their versions.
async fn touch(server: &TestServer, round: usize) -> BTreeMap<String, String> {
    let calls = Calls::new(server.client()).of::<ConfigMap>();
    let mut versions = BTreeMap::new();
    for index in 0..objects() {
        let mut map = map(&format!("default/m{index}"), "");
        map.metadata.uid = None;
        let written = match round {
            0 => calls.create(&map).await,
            round => {
                calls.merge(&map.key(), &json!({ "data": { "round": round.to_string() } })).await
            }
        };
        let written = written.unwrap();
        versions.insert(written.name().to_owned(), written.resource_version().to_string());
    }
    versions
}

/// Starts a copy of the controller.
fn copy(
    server: &TestServer,
    copies: &mut JoinSet<Result<(), Error>>,
    stop: &CancellationToken,
    board: &Board,
    name: &'static str,
) -> AbortHandle {
    let sharding = Sharding::new(server.factory(), "split", SHARDS).identity(name);
    let (stop, board) = (stop.clone().cancelled_owned(), board.clone());
    let work = move |factory: Factory, stop: CancellationToken| {
        let board = board.clone();
        async move {
            let maps = factory.informer::<ConfigMap>().namespace("default").open()?;
            let reconcile =
                move |map: Arc<ConfigMap>, _: Context| board.clone().reconcile(map, name);
            let controller = Controller::new("split", &maps).with(reconcile);
            Manager::new(factory).controller(controller).run_until(stop.cancelled_owned()).await
        }
    };
    copies.spawn(sharding.run_until(stop, work))
}

/// C25.13, C25.14
#[tokio::test(start_paused = true)]
async fn four_copies_split_the_objects_and_take_over_those_of_one_that_dies() {
    let server = TestServer::start().await;
    let (board, stop) = (Board::default(), CancellationToken::new());
    let mut copies = JoinSet::new();
    let mut handles = Vec::new();
    let mut versions = touch(&server, 0).await;
    for name in ["one", "two", "three", "four"] {
        handles.push(copy(&server, &mut copies, &stop, &board, name));
        // The first holds everything until the others come.
        board.reached(&versions).await;
    }
    sleep(60 * SECOND).await;
    versions = touch(&server, 1).await;
    board.reached(&versions).await;
    let shares = board.shares();
    assert_eq!(shares.len(), 4, "{shares:?}");
    let fair = objects() / 10..objects() * 9 / 20;
    assert!(shares.values().all(|share| fair.contains(share)), "{shares:?}");

    handles[1].abort();
    sleep(60 * SECOND).await;
    versions = touch(&server, 2).await;
    board.reached(&versions).await;
    let shares = board.shares();
    assert_eq!(
        shares.keys().copied().collect::<BTreeSet<_>>(),
        BTreeSet::from(["one", "three", "four"])
    );
    eprintln!("{} objects, after the death of one copy: {shares:?}", objects());

    stop.cancel();
    while let Some(ended) = copies.join_next().await {
        assert!(ended.map_or_else(|error| error.is_cancelled(), |ended| ended.is_ok()));
    }
    assert_eq!(board.0.lock().unwrap().clashes, Vec::<String>::new());
    // Copies that stop give up their shards and leave; the lease of the dead one may remain.
    let lease = |name: String| {
        let calls = Calls::new(server.client()).of::<LeaseObject>();
        async move { calls.get(&headwater_client::Key::namespaced("default", &name)).await.unwrap() }
    };
    for index in 0..SHARDS {
        let lease = lease(format!("split-shard-{index}-of-{SHARDS}")).await.unwrap();
        assert_eq!(lease.spec.unwrap().holder_identity.as_deref(), Some(""), "shard {index}");
    }
    assert!(lease("split-member-one".to_owned()).await.is_none());
}

/// C25.13
#[tokio::test(start_paused = true)]
async fn a_sharding_with_impossible_options_is_refused() {
    let work = |_: Factory, _: CancellationToken| std::future::ready(Ok(()));
    for (shards, identity) in [(0, "a"), (1025, "a"), (4, "")] {
        let sharding = Sharding::new(Factory::new(nobody()), "split", shards).identity(identity);
        let refused = sharding.run_until(std::future::pending(), work).await;
        assert!(matches!(refused, Err(Error::Invalid(_))), "{shards} {identity}");
    }
}
