//! Listening: sockets in, requests out.
//!
//! River: client → **listen** → identity → handlers. Promise: every connection ends, by itself, by
//! a limit, or by a stop that lets what is being answered finish; none can delay another.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::{Request, Response};
use hyper::body::Incoming;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::front::identity::{ClientCertificate, Peer, Transport};
use crate::front::tls::Acceptor;
use crate::system::metrics::Metrics;

mod connection;
mod chunked;
mod gate;
mod head;
mod pulse;

pub use gate::{HangUp, LongRunning};
use pulse::Pulses;

/// Headers of one request.
pub const HEADERS_MAX: usize = 200;
/// Bytes of one request's head, target included.
pub const HEADER_BLOCK_MAX: usize = 256 * 1024;

/// Connections the kernel may have waiting for us.
const BACKLOG: u32 = 4096;
/// How long to wait when the system has no more descriptors: it will not get better at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a part of a body is: bytes, or what can be sent like them.
pub trait Part: Buf + From<Bytes> + Send + Sync + 'static {}

impl<T: Buf + From<Bytes> + Send + Sync + 'static> Part for T {}

/// Answers requests.
pub trait Handle: Clone + Send + Sync + 'static {
    /// What answers are made of.
    type Body: http_body::Body<Data: Part, Error = io::Error> + Send + Unpin + 'static;

    /// Answers one request.
    fn handle(
        &self,
        peer: Arc<Peer>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// Limits and times.
#[derive(Clone, Debug)]
pub struct Options {
    /// From the connection to the end of its TLS handshake.
    pub timeout_handshake: Duration,
    /// From a request's first byte, or a new connection, to the end of the request's headers.
    pub timeout_header: Duration,
    /// From one request to the next.
    pub timeout_idle: Duration,
    /// After this a peer that does not acknowledge anything is given up. It also ends a reader
    /// that takes nothing at all for as long while something is waiting for it.
    pub timeout_peer: Duration,
    /// What requests being answered may take once a stop begins.
    pub shutdown_grace: Duration,
    /// Streams of one HTTP/2 connection.
    pub http2_streams_max: u32,
    /// Connections in total.
    pub connections_max: usize,
    /// Connections from one address; loopback is exempt.
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

/// Why nothing can listen there.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody else does.
    #[error("{address} is already in use; stop what listens there or choose another with {flag}")]
    Taken {
        /// Where.
        address: SocketAddr,
        /// The flag that chooses it.
        flag: &'static str,
    },
    /// Plain HTTP has no protection but being local.
    #[error("{0} is not a loopback address; without TLS only 127.0.0.1 and [::1] are allowed")]
    NotLoopback(SocketAddr),
    /// The system refused.
    #[error("cannot listen on {address}: {source}")]
    Io {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
}

/// A socket that listens. Nothing is accepted before [`Listener::run`].
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    tls: Option<Acceptor>,
    options: Options,
    metrics: Metrics,
}

impl Listener {
    /// Listens for TLS. Port 0 takes any.
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
                Err(Error::Taken { address, flag })
            }
            Err(source) => Err(Error::Io { address, source }),
        }
    }

    /// Where it listens, with the port that was taken.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts and serves until stopped, then waits for what is being answered.
    pub async fn run<H: Handle>(self, handler: H, stop: CancellationToken) {
        let shared = Arc::new(Shared {
            handler,
            options: self.options.clone(),
            metrics: self.metrics.clone(),
            tasks: TaskTracker::new(),
            pulses: Arc::default(),
            stop,
        });
        let mut connections = JoinSet::new();
        let places = Places::new(&self.options);
        loop {
            match self.next_event(&mut connections, &shared.stop).await {
                Event::Stopped => break,
                Event::Ended => {}
                Event::Accepted(socket, from) => {
                    self.serve(&mut connections, &places, &shared, socket, from);
                }
                Event::Refused(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(self.socket);
        drain(connections, &shared).await;
    }

    async fn next_event(&self, connections: &mut JoinSet<()>, stop: &CancellationToken) -> Event {
        tokio::select! {
            biased;
            () = stop.cancelled() => Event::Stopped,
            Some(_) = connections.join_next() => Event::Ended,
            accepted = self.socket.accept() => match accepted {
                Ok((socket, from)) => Event::Accepted(socket, from),
                Err(error) => Event::Refused(error),
            },
        }
    }

    fn serve<H: Handle>(
        &self,
        connections: &mut JoinSet<()>,
        places: &Places,
        shared: &Arc<Shared<H>>,
        socket: TcpStream,
        from: SocketAddr,
    ) {
        let place = match places.take(from.ip()) {
            Ok(place) => place,
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
            let _counted = (place, held);
            serving.run().await;
        });
    }
}

/// All that can happen to a listener.
enum Event {
    Stopped,
    Ended,
    Accepted(TcpStream, SocketAddr),
    Refused(io::Error),
}

/// What the connections of a listener have in common.
struct Shared<H> {
    handler: H,
    options: Options,
    metrics: Metrics,
    /// HTTP/2 streams and upgraded connections.
    tasks: TaskTracker,
    /// Of connections that are open.
    pulses: Arc<Pulses>,
    stop: CancellationToken,
}

/// Waits for every connection and what came out of it, for as long as the grace allows.
async fn drain<H>(mut connections: JoinSet<()>, shared: &Shared<H>) {
    shared.tasks.close();
    shared.pulses.hang_up();
    let all = async {
        while connections.join_next().await.is_some() {}
        shared.tasks.wait().await;
    };
    if tokio::time::timeout(shared.options.shutdown_grace, all).await.is_err() {
        tracing::warn!(left = connections.len(), "connections cut at the end of the grace period");
        connections.shutdown().await;
    }
}

fn listen(address: SocketAddr, options: &Options) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    // Accepted sockets inherit what is set here.
    socket.set_nodelay(true)?;
    notice_gone_peers(&socket, options.timeout_peer)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Probes silent peers, and gives up on those that acknowledge nothing: half of the time passes
/// before the first of three probes.
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

/// Places for connections: so many in all, so many from one address.
#[derive(Clone)]
struct Places(Arc<Mutex<Taken>>);

struct Taken {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
    total_max: usize,
    per_address_max: usize,
}

impl Places {
    fn new(options: &Options) -> Places {
        Places(Arc::new(Mutex::new(Taken {
            total: 0,
            by_address: HashMap::new(),
            total_max: options.connections_max,
            per_address_max: options.connections_per_address_max,
        })))
    }

    /// A place, or which limit is reached.
    fn take(&self, address: IpAddr) -> Result<Place, &'static str> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.total >= taken.total_max {
            return Err("total");
        }
        let limit = if address.is_loopback() { usize::MAX } else { taken.per_address_max };
        let here = taken.by_address.entry(address).or_default();
        if *here >= limit {
            return Err("address");
        }
        *here += 1;
        taken.total += 1;
        Ok(Place { address, places: self.clone() })
    }
}

/// One connection's place, given back when dropped.
struct Place {
    address: IpAddr,
    places: Places,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.0.lock().unwrap_or_else(PoisonError::into_inner);
        taken.total -= 1;
        if let Some(here) = taken.by_address.get_mut(&self.address) {
            *here -= 1;
            if *here == 0 {
                taken.by_address.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(total: usize, per_address: usize) -> Places {
        Places::new(&Options {
            connections_max: total,
            connections_per_address_max: per_address,
            ..Options::default()
        })
    }

    /// B030
    #[test]
    fn an_address_has_its_limit_and_others_are_served() {
        let places = places(10, 2);
        let (here, there): (IpAddr, IpAddr) =
            ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let first = places.take(here).ok().unwrap();
        let _second = places.take(here).ok().unwrap();
        assert_eq!(places.take(here).err(), Some("address"));
        let _other = places.take(there).ok().unwrap();
        drop(first);
        assert!(places.take(here).is_ok());
    }

    #[test]
    fn loopback_is_held_to_the_total_alone() {
        let places = places(3, 1);
        let here: IpAddr = "127.0.0.1".parse().unwrap();
        let _held: Vec<Place> = (0..3).map(|_| places.take(here).ok().unwrap()).collect();
        assert_eq!(places.take(here).err(), Some("total"));
    }
}
