//! The listeners: they accept connections and pass requests to a handler.
//!
//! River: client → **listen** → identity → handlers. Promise: every connection ends by itself, at a
//! limit, or at a shutdown that lets requests in flight finish; no connection delays another.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use http::Request;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::answer::body::{RequestBody, Response};
use crate::front::identity::{ClientCertificate, Peer, Transport};
use crate::front::tls::Acceptor;
use crate::lock::lock;
use crate::system::metrics::Metrics;

mod connection;
mod gate;
mod same_origin;
mod detached;
mod head;
mod activity;

pub use detached::LongRunning;
pub use gate::HangUp;

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
    /// The time that requests in flight get at a shutdown.
    pub shutdown_grace: Duration,
    /// The maximum number of streams of an HTTP/2 connection.
    pub http2_streams_max: u32,
    /// The maximum number of connections.
    pub connections_max: usize,
    /// The maximum number of connections from one address; loopback is exempt.
    pub connections_per_address_max: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            timeout_handshake: Duration::from_secs(10),
            timeout_header: Duration::from_secs(32),
            timeout_idle: Duration::from_secs(90),
            timeout_peer: Duration::from_secs(60),
            shutdown_grace: Duration::from_secs(10),
            http2_streams_max: 100,
            connections_max: 50_000,
            connections_per_address_max: 10_000,
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
            Ok((address, socket)) => Ok(Listener { socket, address, tls, options, metrics }),
            Err(source) if source.kind() == io::ErrorKind::AddrInUse => {
                Err(Error::InUse { address, flag })
            }
            Err(source) => Err(Error::Io { address, source }),
        }
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
            options: self.options.clone(),
            metrics: self.metrics.clone(),
            tasks: TaskTracker::new(),
            closing: CancellationToken::new(),
            stop,
        });
        let mut connections = JoinSet::new();
        let limits = ConnectionLimits::new(&self.options);
        loop {
            let accepted = tokio::select! {
                biased;
                () = shared.stop.cancelled() => break,
                Some(_) = connections.join_next() => continue,
                accepted = self.socket.accept() => accepted,
            };
            match accepted {
                Ok((socket, from)) => self.serve(&mut connections, &limits, &shared, socket, from),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(self.socket);
        drain(connections, &shared).await;
    }

    fn serve(
        &self,
        connections: &mut JoinSet<()>,
        limits: &ConnectionLimits,
        shared: &Arc<ListenerState>,
        socket: TcpStream,
        from: SocketAddr,
    ) {
        let permit = match limits.take(from.ip()) {
            Ok(permit) => permit,
            Err(reason) => {
                self.metrics.connections_refused.with(&[reason]).inc();
                return;
            }
        };
        let held = self.metrics.connections.with(&[]).hold();
        let (shared, tls) = (shared.clone(), self.tls.clone());
        let transport = match &tls {
            Some(_) => Transport::Tls(ClientCertificate::Absent),
            None => Transport::Loopback,
        };
        let peer = Peer { address: from, transport, tasks: shared.tasks.clone() };
        let serving = match tls {
            Some(acceptor) => connection::serve_tls(shared, acceptor, socket, peer),
            None => connection::serve_plain(shared, socket, peer),
        };
        connections.spawn(async move {
            let _counted = (permit, held);
            serving.run().await;
        });
    }
}

/// The state shared by the connections of a listener.
struct ListenerState {
    address: SocketAddr,
    handler: Handler,
    options: Options,
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

/// Counts connections against the limits in total and per address.
#[derive(Clone)]
struct ConnectionLimits(Arc<Mutex<ConnectionCounts>>);

struct ConnectionCounts {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
    total_max: usize,
    per_address_max: usize,
}

impl ConnectionLimits {
    fn new(options: &Options) -> ConnectionLimits {
        ConnectionLimits(Arc::new(Mutex::new(ConnectionCounts {
            total: 0,
            by_address: HashMap::new(),
            total_max: options.connections_max,
            per_address_max: options.connections_per_address_max,
        })))
    }

    /// Admits a connection, or returns the limit that is reached.
    fn take(&self, address: IpAddr) -> Result<ConnectionPermit, &'static str> {
        let mut counts = lock(&self.0);
        if counts.total >= counts.total_max {
            return Err("total");
        }
        let limit = if address.is_loopback() { usize::MAX } else { counts.per_address_max };
        let here = counts.by_address.entry(address).or_default();
        if *here >= limit {
            return Err("address");
        }
        *here += 1;
        counts.total += 1;
        Ok(ConnectionPermit { address, limits: self.clone() })
    }
}

/// An admitted connection; dropping it releases its share of the limits.
struct ConnectionPermit {
    address: IpAddr,
    limits: ConnectionLimits,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut counts = lock(&self.limits.0);
        counts.total -= 1;
        if let Some(here) = counts.by_address.get_mut(&self.address) {
            *here -= 1;
            if *here == 0 {
                counts.by_address.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(total: usize, per_address: usize) -> ConnectionLimits {
        ConnectionLimits::new(&Options {
            connections_max: total,
            connections_per_address_max: per_address,
            ..Options::default()
        })
    }

    /// B030
    #[test]
    fn the_limit_of_one_address_does_not_affect_another() {
        let limits = limits(10, 2);
        let (here, there): (IpAddr, IpAddr) =
            ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let first = limits.take(here).ok().unwrap();
        let _second = limits.take(here).ok().unwrap();
        assert_eq!(limits.take(here).err(), Some("address"));
        let _other = limits.take(there).ok().unwrap();
        drop(first);
        assert!(limits.take(here).is_ok());
    }

    #[test]
    fn loopback_is_subject_to_the_total_limit_only() {
        let limits = limits(3, 1);
        let here: IpAddr = "127.0.0.1".parse().unwrap();
        let _held: Vec<ConnectionPermit> =
            (0..3).map(|_| limits.take(here).ok().unwrap()).collect();
        assert_eq!(limits.take(here).err(), Some("total"));
    }
}
