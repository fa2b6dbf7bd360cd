//! A real Headwater server over HTTP on loopback, with a [`Proxy`] in front of it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use headwater_api::SystemClock;
use headwater_client::factory::client_of;
use headwater_server::listen::{self, Listener};
use headwater_server::pki::{self, Pki};
use headwater_server::service_account::Issuer;
use headwater_server::{Options, Running, start};
use headwater_store::key::{Key, collection};
use headwater_store::{Action, Guard, Memory, MemoryOptions, Store, Write};
use kube::Client;

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
    running: Option<Running>,
}

impl Api {
    pub async fn start() -> Api {
        let options = MemoryOptions { value_max: 16 << 20, ..MemoryOptions::default() };
        let store = Arc::new(Memory::new(options));
        let (address, running) = serve(Arc::clone(&store)).await;
        let proxy = Proxy::start(address).await;
        Api { client: client(address), address, proxy, store, running: Some(running) }
    }

    /// Stops the server and starts another with the same data, as an upgrade does.
    pub async fn restart(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop().await.unwrap();
        }
        let (address, running) = serve(Arc::clone(&self.store)).await;
        self.running = Some(running);
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
    let keys = Pki::in_memory(&pki::names(Ipv4Addr::LOCALHOST.into(), &[]), &SystemClock).unwrap();
    let options = Options::new(Issuer::new(&keys.service_account_key).unwrap());
    let (any, metrics) = (SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), options.metrics.clone());
    let listener = Listener::plain(any, listen::Options::default(), metrics).unwrap();
    let address = listener.address();
    let mut running = start(store, options).await.unwrap();
    running.listen(listener);
    (address, running)
}
