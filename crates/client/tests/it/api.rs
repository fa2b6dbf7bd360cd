//! A real Headwater server over HTTP on loopback, with a [`Proxy`] in front of it.

use std::net::SocketAddr;
use std::sync::Arc;

use headwater_api::{Clock, SystemClock};
use headwater_cache::{Cacher, Options as CacheOptions};
use headwater_client::factory::client_of;
use headwater_server::identity::Authenticator;
use headwater_server::listen::{self, Listener};
use headwater_server::metrics::Metrics;
use headwater_server::openapi::Descriptions;
use headwater_server::pki::{self, Pki};
use headwater_server::service_account::Issuer;
use headwater_server::token_file::Tokens;
use headwater_server::{Options, Parts, Server};
use headwater_store::key::{Key, collection};
use headwater_store::{Action, Guard, Memory, MemoryOptions, Store, Write};
use kube::Client;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::proxy::Proxy;
use crate::world::{NAMESPACE, Written};

/// A server and its proxy; dropping it stops both.
pub struct Api {
    /// Connected without the proxy.
    pub client: Client,
    pub address: SocketAddr,
    /// The faulty proxy.
    pub proxy: Proxy,
    store: Arc<Memory>,
    running: Running,
}

/// The tasks of one server.
struct Running {
    stop: CancellationToken,
    parts: JoinSet<()>,
}

impl Api {
    pub async fn start() -> Api {
        let options = MemoryOptions { value_max: 16 << 20, ..MemoryOptions::default() };
        let store = Arc::new(Memory::new(options));
        let (address, running) = serve(Arc::clone(&store)).await;
        let proxy = Proxy::start(address).await;
        Api { client: client(address), address, proxy, store, running }
    }

    /// Stops the server and starts another with the same data, as an upgrade does.
    pub async fn restart(&mut self) {
        self.running.stop.cancel();
        while self.running.parts.join_next().await.is_some() {}
        let (address, running) = serve(Arc::clone(&self.store)).await;
        self.running = running;
        self.client = client(address);
        self.address = address;
        self.proxy.forward_to(address);
    }

    /// Compacts all history.
    pub async fn compact(&self) {
        let now = self.store.revision().await.unwrap();
        self.store.compact(now).await.unwrap();
    }

    /// Sets the data of an existing config map to a text that is too long for a request.
    pub async fn put_large(&self, name: &str, value: &str) -> String {
        let key = key(name);
        let record = self.store.get(&key).await.unwrap().expect("it exists");
        let mut map: serde_json::Value = serde_json::from_slice(&record.value).unwrap();
        map["data"] = serde_json::json!({ "value": value });
        let put = Action::Put { value: map.to_string().into(), ttl: None };
        let write = Write::one(key, Guard::At(record.revision), put);
        self.store.commit(write).await.unwrap().last.to_string()
    }

    /// Writes to the store without the server, which is faster.
    pub async fn churn(&self, names: &[String], count: usize) -> Vec<Written> {
        let mut records = Vec::new();
        for name in names {
            records.push(self.store.get(&key(name)).await.unwrap().expect("it exists"));
        }
        let mut written = Vec::with_capacity(count);
        for turn in 0..count {
            let at = turn % names.len();
            let record = &mut records[at];
            let put = Action::Put { value: record.value.clone(), ttl: None };
            let write = Write::one(record.key.clone(), Guard::At(record.revision), put);
            record.revision = self.store.commit(write).await.unwrap().last;
            written.push(Written::put(&names[at], &record.revision.to_string()));
            if turn % 256 == 0 {
                tokio::task::yield_now().await; // the server and the informer run on this thread too
            }
        }
        written
    }
}

fn key(name: &str) -> Key {
    Key::in_collection(&collection("", "configmaps"), &format!("{NAMESPACE}/{name}"))
}

pub fn client(address: SocketAddr) -> Client {
    let config = kube::Config::new(format!("http://{address}").parse().unwrap());
    client_of(config).unwrap()
}

async fn serve(store: Arc<Memory>) -> (SocketAddr, Running) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let metrics = Metrics::new();
    let address = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::plain(address, listen::Options::default(), metrics.clone()).unwrap();
    let address = listener.address();
    let mut cacher = Cacher::new(store as Arc<dyn Store>, CacheOptions::default());
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
        options: Options::default(),
    })
    .unwrap();
    let stop = CancellationToken::new();
    let mut parts = JoinSet::new();
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
    (address, Running { stop, parts })
}
