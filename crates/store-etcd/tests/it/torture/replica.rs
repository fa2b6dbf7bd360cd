//! An API server that can be dropped at any time, without a clean stop.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use headwater_api::SystemClock;
use headwater_cache::Options as CacheOptions;
use headwater_cache::window::Bounds;
use headwater_server::listen::{self, Listener};
use headwater_server::pki::{self, Pki};
use headwater_server::service_account::Issuer;
use headwater_server::{Options, Running, start};
use headwater_store_etcd::EtcdStore;

use super::client::Place;

/// Changes that a server keeps in memory for each resource.
const WINDOW: usize = 20;

pub(crate) struct Replica {
    _running: Running,
}

impl Replica {
    /// Starts a server and publishes its address.
    pub(crate) async fn start(options: headwater_store_etcd::Options, place: &Place) -> Replica {
        let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let pki = Pki::in_memory(&pki::names(localhost, &[]), &SystemClock).unwrap();
        let store = Arc::new(EtcdStore::connect(options).await.unwrap());
        let window = Bounds { count: WINDOW, ..Bounds::default() };
        let cache = CacheOptions { window, ..CacheOptions::default() };
        let issuer = Issuer::new(&pki.service_account_key).unwrap();
        let options = Options { cache, ..Options::new(issuer) };
        let metrics = options.metrics.clone();
        let mut running = start(store, options).await.unwrap();
        let any = SocketAddr::new(localhost, 0);
        let listener = Listener::plain(any, listen::Options::default(), metrics).unwrap();
        let address = listener.address();
        running.listen(listener);
        place.set(Some(address));
        Replica { _running: running }
    }
}
