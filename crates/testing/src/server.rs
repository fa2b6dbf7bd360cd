//! The test server: an API server with an in-process client and an optional port.
//!
//! River: **test server** → cache, server, and a listener once a port is needed.
//! Promise: the server is ready when `start` returns, and nothing of it runs after `stop` or a drop.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headwater_api::{Clock, SystemClock};
use headwater_client::Factory;
use headwater_recording::{FillOptions, began, fill};
use headwater_server::identity::{ClientCertificate, Identity, Peer, Transport};
use headwater_server::listen::{self, Listener};
use headwater_server::metrics::Metrics;
use headwater_server::pki::{self, Pki, kubeconfig};
use headwater_server::service_account::Issuer;
use headwater_server::tls::Acceptor;
use headwater_server::{Options, Running, Server, start};
use headwater_store::Memory;
use kube::Client;

use crate::in_process::InProcess;

/// The default namespace of clients.
const NAMESPACE: &str = "default";

/// An API server that runs while this value exists.
pub struct TestServer {
    pub(crate) server: Server,
    client: Client,
    pki: Pki,
    metrics: Metrics,
    clock: Arc<dyn Clock>,
    /// `None` after `stop`.
    running: Mutex<Option<RunningServer>>,
}

/// The running server. Dropping it aborts its tasks.
struct RunningServer {
    server: Running,
    /// The address of the TLS port, once it is open.
    address: Option<SocketAddr>,
}

impl TestServer {
    /// Starts a server with the bootstrap objects of every cluster and nothing else.
    ///
    /// # Panics
    ///
    /// If the server cannot start.
    pub async fn start() -> TestServer {
        TestServer::start_on(Memory::default()).await
    }

    /// Starts a server with the objects and the history of a recording made by `headwater record`.
    /// Uids, times, managers and status are those of the recorded cluster; resourceVersions are new,
    /// and a watch from version 1 receives every recorded change.
    ///
    /// ```no_run
    /// # async fn example() {
    /// let server = headwater_testing::TestServer::from_recording("tests/incident.hwr").await;
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// If the recording cannot be read to its end, with the place and what could be read; or if the
    /// server cannot start.
    pub async fn from_recording(path: impl AsRef<Path>) -> TestServer {
        TestServer::start_from(path.as_ref(), None).await
    }

    /// The same with the changes up to a time after the beginning of the recording.
    ///
    /// # Panics
    ///
    /// As [`TestServer::from_recording`].
    pub async fn from_recording_until(path: impl AsRef<Path>, elapsed: Duration) -> TestServer {
        TestServer::start_from(path.as_ref(), Some(elapsed)).await
    }

    async fn start_from(path: &Path, elapsed: Option<Duration>) -> TestServer {
        let open =
            || File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let until = elapsed.map(|elapsed| {
            let begin = began(open()).unwrap_or_default();
            begin.checked_add(elapsed).expect("the time can be represented")
        });
        let store = Memory::default();
        let filled = fill(&store, open(), FillOptions { until, ..FillOptions::default() }).await;
        if let Err(error) = filled {
            panic!("{}: {error}", path.display());
        }
        TestServer::start_on(store).await
    }

    async fn start_on(store: Memory) -> TestServer {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let names = pki::names(IpAddr::V4(Ipv4Addr::LOCALHOST), &[]);
        let pki = Pki::in_memory(&names, &*clock).expect("certificates are generated");
        let metrics = Metrics::new();
        let issuer = Issuer::new(&pki.service_account_key).expect("the key was just generated");
        let options = Options { metrics: metrics.clone(), ..Options::new(issuer) };
        let running = start(Arc::new(store), options).await.expect("a store in memory works");
        let server = running.server().clone();
        let client = client(&server, Transport::Loopback);
        let running = Mutex::new(Some(RunningServer { server: running, address: None }));
        TestServer { server, client, pki, metrics, clock, running }
    }

    /// An in-process client with all permissions.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// A new factory of informers, with an in-process client with all permissions.
    pub fn factory(&self) -> Factory {
        Factory::new(self.client())
    }

    /// An in-process client of this user with these groups.
    pub fn client_as(&self, user: &str, groups: &[&str]) -> Client {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        let identity = Arc::new(Identity::authenticated(user, groups));
        client(&self.server, Transport::Tls(ClientCertificate::Verified(identity)))
    }

    /// An administrator's kubeconfig, for programs that need a port. The first call opens a TLS port
    /// on loopback.
    ///
    /// # Panics
    ///
    /// If no port is available.
    pub async fn kubeconfig(&self) -> String {
        let address = self.listen();
        kubeconfig::admin(&self.pki, &format!("https://{address}"))
    }

    fn listen(&self) -> SocketAddr {
        let mut running = self.running.lock().expect("no code panics while it is held");
        let running = running.as_mut().expect("the server was not stopped");
        if let Some(address) = running.address {
            return address;
        }
        let acceptor = Acceptor::new(&self.pki, Arc::clone(&self.clock));
        let acceptor = acceptor.expect("the certificates are valid");
        let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        let options = listen::Options::default();
        let listener = Listener::tls(any, acceptor, options, self.metrics.clone());
        let listener = listener.expect("loopback has a free port");
        let address = listener.address();
        running.server.listen(listener);
        *running.address.insert(address)
    }

    /// Ends watches, then all other tasks, and returns when they have ended.
    pub async fn stop(self) {
        let running = self.running.lock().expect("as above").take();
        if let Some(running) = running {
            // Every request reports a failed cache; there is no caller to return it to here.
            let _ = running.server.stop().await;
        }
    }
}

impl Drop for TestServer {
    /// Ends open watches cleanly.
    fn drop(&mut self) {
        self.server.drain();
    }
}

fn client(server: &Server, transport: Transport) -> Client {
    let from = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    let peer = Arc::new(Peer::new(from, transport));
    Client::new(InProcess { server: server.clone(), peer }, NAMESPACE)
}
