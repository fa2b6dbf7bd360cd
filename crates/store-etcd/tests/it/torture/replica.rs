//! An API server that can be dropped at any time: its connections break, nothing is finished.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use headwater_api::{Clock, SystemClock};
use headwater_cache::window::Bounds;
use headwater_cache::{Cacher, Options as CacheOptions};
use headwater_server::backup::Backup;
use headwater_server::identity::Authenticator;
use headwater_server::listen::{self, Listener};
use headwater_server::metrics::Metrics;
use headwater_server::openapi::Descriptions;
use headwater_server::pki::{self, Pki};
use headwater_server::service_account::Issuer;
use headwater_server::token_file::Tokens;
use headwater_server::{Options, Parts, Server};
use headwater_store_etcd::EtcdStore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::client::Place;

/// Changes a server keeps in memory for each resource.
const WINDOW: usize = 20;

pub(crate) struct Replica {
    _parts: JoinSet<()>,
}

impl Replica {
    /// Starts a server and says where it is.
    pub(crate) async fn start(options: headwater_store_etcd::Options, place: &Place) -> Replica {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let pki = Pki::in_memory(&pki::names(localhost, &[]), &*clock).unwrap();
        let metrics = Metrics::new();
        let store = Arc::new(EtcdStore::connect(options).await.unwrap());
        let window = Bounds { count: WINDOW, ..Bounds::default() };
        let mut cacher = Cacher::new(store, CacheOptions { window, ..CacheOptions::default() });
        cacher.load().await.unwrap();
        let server = Server::new(Parts {
            cache: cacher.handle(),
            authenticator: Authenticator::new(Tokens::default()),
            issuer: Issuer::new(&pki.service_account_key).unwrap(),
            clock,
            metrics: metrics.clone(),
            descriptions: Descriptions::default(),
            backup: Backup::default(),
            options: Options::default(),
        })
        .unwrap();
        let (mut parts, never) = (JoinSet::new(), CancellationToken::new());
        let stop = never.clone();
        parts.spawn(async { cacher.run(stop).await.unwrap() });
        server.bootstrap().await.unwrap();
        let any = SocketAddr::new(localhost, 0);
        let listener = Listener::plain(any, listen::Options::default(), metrics).unwrap();
        let address = listener.address();
        parts.spawn(listener.run(server, never));
        place.set(Some(address));
        Replica { _parts: parts }
    }
}
