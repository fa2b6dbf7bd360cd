//! The listeners: they accept connections and pass requests to a handler.
//!
//! River: client → **listen** → identity → handlers. Promise: every connection ends by itself, at a
//! limit, or at a shutdown that lets requests in flight finish; no connection delays another.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{AbortHandle, Abortable, BoxFuture};
use http::Request;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::answer::body::{RequestBody, Response};
use crate::front::identity::{ClientCertificate, Peer, Transport};
use crate::front::tls::Acceptor;
use crate::system::metrics::Metrics;

mod connection;
mod gate;
mod same_origin;
mod detached;
mod head;
mod activity;
mod limits;
mod progress;
mod standby;

pub use detached::LongRunning;
pub use gate::HangUp;
use limits::ConnectionLimits;
pub use standby::HealthHandler;
use standby::{AcceptCount, Standby};

/// The maximum number of headers of a request.
pub const HEADERS_MAX: usize = 200;
/// The maximum size of a request's head in bytes, including the target.
pub const HEADER_BLOCK_MAX: usize = 256 * 1024;

/// The kernel's queue of connections that are not yet accepted.
const BACKLOG: u32 = 4096;
/// The pause after a failed accept, for example when file descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Handles one request. Boxed, so that the code of connections is compiled once.
pub type Handler =
    Arc<dyn Fn(Arc<Peer>, Request<RequestBody>) -> BoxFuture<'static, Response> + Send + Sync>;

/// Limits and timeouts of connections.
#[derive(Clone, Debug)]
pub struct Options {
    /// The time from accepting a connection to the end of its TLS handshake.
    pub timeout_handshake: Duration,
    /// The time from a new connection, or a request's first byte, to the end of its headers.
    pub timeout_header: Duration,
    /// The time between two requests.
    pub timeout_idle: Duration,
    /// Connections are closed when the peer acknowledges nothing for this long, or reads nothing
    /// while data waits for it.
    pub timeout_peer: Duration,
    /// A response is reset when the client takes nothing of it for this long.
    pub timeout_progress: Duration,
    /// The time that requests in flight get at a shutdown.
    pub shutdown_grace: Duration,
    /// The maximum number of streams of an HTTP/2 connection.
    pub http2_streams_max: u32,
    /// The maximum number of connections.
    pub connections_max: usize,
    /// The maximum number of connections from one address, or one /64 network of IPv6; loopback is
    /// exempt.
    pub connections_per_address_max: usize,
    /// Limits of connections on which no client has been identified.
    pub anonymous: AnonymousOptions,
}

/// Limits of connections on which no client has been identified. Health checks and the first request
/// of a client with a token fit; whoever holds many responses or connections does not.
#[derive(Clone, Debug)]
pub struct AnonymousOptions {
    /// The maximum number of unfinished responses on an HTTP/2 connection; further requests get 429.
    pub responses_max: u32,
    /// The time between two requests.
    pub timeout_idle: Duration,
    /// The connection is closed after this time, when it has no request in flight.
    pub lifetime: Duration,
    /// The maximum number of such connections.
    pub connections_max: usize,
    /// The maximum number of such connections from one address; loopback is exempt.
    pub connections_per_address_max: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            timeout_handshake: Duration::from_secs(10),
            timeout_header: Duration::from_secs(32),
            timeout_idle: Duration::from_secs(90),
            timeout_peer: Duration::from_secs(60),
            timeout_progress: Duration::from_secs(60),
            shutdown_grace: Duration::from_secs(10),
            http2_streams_max: 100,
            connections_max: 50_000,
            connections_per_address_max: 10_000,
            anonymous: AnonymousOptions::default(),
        }
    }
}

impl Default for AnonymousOptions {
    fn default() -> AnonymousOptions {
        AnonymousOptions {
            responses_max: 8,
            timeout_idle: Duration::from_secs(10),
            lifetime: Duration::from_secs(60),
            connections_max: 25_000,
            connections_per_address_max: 2_500,
        }
    }
}

/// Why a listener cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process listens on the address.
    #[error("{address} is already in use; stop the other process or choose an address with {flag}")]
    InUse {
        /// The address.
        address: SocketAddr,
        /// The flag that sets the address.
        flag: &'static str,
    },
    /// Plain HTTP is served on loopback only.
    #[error("{0} is not a loopback address; without TLS only 127.0.0.1 and [::1] are allowed")]
    NotLoopback(SocketAddr),
    /// The operating system returned an error.
    #[error("cannot listen on {address}: {source}")]
    Io {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
}

/// A listening socket. It accepts connections once [`Listener::run`] is called.
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    tls: Option<Acceptor>,
    options: Options,
    metrics: Metrics,
    health: Option<HealthHandler>,
}

impl Listener {
    /// Listens for TLS. Port 0 selects a free port.
    pub fn tls(
        address: SocketAddr,
        acceptor: Acceptor,
        options: Options,
        metrics: Metrics,
    ) -> Result<Listener, Error> {
        Listener::open(address, "--bind", Some(acceptor), options, metrics)
    }

    /// Listens for plain HTTP, on loopback only.
    pub fn plain(
        address: SocketAddr,
        options: Options,
        metrics: Metrics,
    ) -> Result<Listener, Error> {
        if !address.ip().is_loopback() {
            return Err(Error::NotLoopback(address));
        }
        Listener::open(address, "--insecure-bind", None, options, metrics)
    }

    fn open(
        address: SocketAddr,
        flag: &'static str,
        tls: Option<Acceptor>,
        options: Options,
        metrics: Metrics,
    ) -> Result<Listener, Error> {
        let listen = || -> io::Result<_> {
            let socket = listen(address, &options)?;
            Ok((socket.local_addr()?, socket))
        };
        match listen() {
            Ok((address, socket)) => {
                Ok(Listener { socket, address, tls, options, metrics, health: None })
            }
            Err(source) if source.kind() == io::ErrorKind::AddrInUse => {
                Err(Error::InUse { address, flag })
            }
            Err(source) => Err(Error::Io { address, source }),
        }
    }

    /// Answers health checks with this handler also while the threads of requests are blocked.
    pub fn with_health(self, health: HealthHandler) -> Listener {
        Listener { health: Some(health), ..self }
    }

    /// The address, with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts and serves connections until stopped, then waits for requests in flight.
    pub async fn run(self, handler: Handler, stop: CancellationToken) {
        let shared = Arc::new(ListenerState {
            address: self.address,
            handler,
            options: Arc::new(self.options.clone()),
            metrics: self.metrics.clone(),
            tasks: TaskTracker::new(),
            closing: CancellationToken::new(),
            stop,
        });
        let server = ConnectionServer {
            shared: shared.clone(),
            tls: self.tls,
            limits: ConnectionLimits::new(&self.options),
        };
        let accepted_count = AcceptCount::default();
        let standby = self.health.and_then(|health| {
            let count = accepted_count.clone();
            match Standby::start(&self.socket, server.clone(), health, count) {
                Ok(standby) => Some(standby),
                Err(error) => {
                    tracing::error!(%error, "cannot start the standby for health checks");
                    None
                }
            }
        });
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                biased;
                () = shared.stop.cancelled() => break,
                Some(_) = connections.join_next() => continue,
                accepted = self.socket.accept() => accepted,
            };
            accepted_count.add_one();
            match accepted {
                Ok((socket, from)) => server.serve(&mut connections, socket, from),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(self.socket);
        drain(connections, &shared).await;
        if let Some(standby) = standby {
            standby.ended().await;
        }
    }
}

/// Serves accepted connections within the limits.
#[derive(Clone)]
struct ConnectionServer {
    shared: Arc<ListenerState>,
    tls: Option<Acceptor>,
    limits: ConnectionLimits,
}

impl ConnectionServer {
    fn serve(&self, connections: &mut JoinSet<()>, socket: TcpStream, from: SocketAddr) {
        let metrics = &self.shared.metrics;
        let permit = match self.limits.take(from.ip()) {
            Ok(permit) => Arc::new(permit),
            Err(reason) => {
                metrics.connections_refused.with(&[reason]).inc();
                return;
            }
        };
        let held = metrics.connections.with(&[]).hold();
        let shared = self.shared.clone();
        let transport = match &self.tls {
            Some(_) => Transport::Tls(ClientCertificate::Absent),
            None => Transport::Loopback,
        };
        let mut peer = Peer::new(from, transport);
        peer.tasks = shared.tasks.clone();
        let (abort, aborted) = AbortHandle::new_pair();
        let accepted = connection::AcceptedConnection { shared, socket, peer, permit, abort };
        let serving = match &self.tls {
            Some(acceptor) => connection::serve_tls(accepted, acceptor.clone()),
            None => connection::serve_plain(accepted),
        };
        connections.spawn(async move {
            let _counted = held;
            // Aborted when its certificate loses its rights.
            let _ = Abortable::new(serving.run(), aborted).await;
        });
    }
}

/// The state shared by the connections of a listener.
#[derive(Clone)]
struct ListenerState {
    address: SocketAddr,
    handler: Handler,
    options: Arc<Options>,
    metrics: Metrics,
    /// HTTP/2 streams and upgraded connections.
    tasks: TaskTracker,
    /// Cancelled when open connections should close after their requests.
    closing: CancellationToken,
    /// Cancelled when no more connections should be accepted.
    stop: CancellationToken,
}

/// Waits for every connection and its tasks until the grace period ends.
async fn drain(mut connections: JoinSet<()>, shared: &ListenerState) {
    shared.tasks.close();
    shared.closing.cancel();
    let all = async {
        while connections.join_next().await.is_some() {}
        shared.tasks.wait().await;
    };
    if tokio::time::timeout(shared.options.shutdown_grace, all).await.is_err() {
        tracing::warn!(
            left = connections.len(),
            "closing connections that are still open at the end of the grace period"
        );
        connections.shutdown().await;
    }
}

fn listen(address: SocketAddr, options: &Options) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    // Accepted sockets inherit these options.
    socket.set_nodelay(true)?;
    notice_gone_peers(&socket, options.timeout_peer)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Probes silent peers and closes connections whose peer acknowledges nothing: the first of three
/// probes is sent after half of the timeout.
fn notice_gone_peers(socket: &TcpSocket, timeout: Duration) -> io::Result<()> {
    let probe_every = (timeout / 6).max(Duration::from_secs(1));
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, (timeout / 2).max(Duration::from_secs(1)))?;
    sockopt::set_tcp_keepintvl(socket, probe_every)?;
    sockopt::set_tcp_keepcnt(socket, 3)?;
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(socket, u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX))?;
    Ok(())
}
