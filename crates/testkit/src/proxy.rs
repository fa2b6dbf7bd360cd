//! A TCP proxy that can stop forwarding without closing connections, like a network that drops
//! packets.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A proxy in front of one loopback port.
pub struct Proxy {
    port: u16,
    link: Link,
    _tasks: Mutex<JoinSet<()>>,
}

/// The state that all connections share.
#[derive(Clone)]
struct Link {
    network: watch::Sender<Network>,
    /// Bytes to clients after which the network drops data.
    left: Arc<AtomicUsize>,
    /// What the next omitted message contains.
    omitted: Arc<Mutex<Option<Vec<u8>>>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Network {
    Works,
    /// Nothing is forwarded in either direction, and no connection is closed.
    Drops,
}

impl Proxy {
    /// Starts a proxy that forwards to this port.
    pub async fn start(to: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let port = listener.local_addr().expect("the listener is bound").port();
        let network = watch::Sender::new(Network::Works);
        let left = Arc::new(AtomicUsize::new(usize::MAX));
        let link = Link { network, left, omitted: Arc::default() };
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, to, link.clone()));
        Proxy { port, link, _tasks: Mutex::new(tasks) }
    }

    /// The URL of the proxy.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Drops all data from now on.
    pub fn cut(&self) {
        self.link.network.send_replace(Network::Drops);
    }

    /// Drops all data once this many more bytes have been forwarded to clients.
    pub fn cut_after(&self, bytes: usize) {
        self.link.left.store(bytes, Ordering::Relaxed);
    }

    /// Omits the next HTTP/2 DATA frame to a client that contains these bytes. The server sends each
    /// message in a frame of its own, so the client misses exactly one message.
    pub fn omit(&self, message: &[u8]) {
        *self.link.omitted.lock().expect("no panic") = Some(message.to_vec());
    }

    /// Whether a message was omitted since [`Proxy::omit`].
    pub fn has_omitted(&self) -> bool {
        self.link.omitted.lock().expect("no panic").is_none()
    }

    /// Whether data is dropped.
    pub fn is_cut(&self) -> bool {
        *self.link.network.borrow() == Network::Drops
    }

    /// Forwards again; connections that lost data are closed.
    pub fn heal(&self) {
        self.link.left.store(usize::MAX, Ordering::Relaxed);
        self.link.network.send_replace(Network::Works);
    }
}

async fn accept(listener: TcpListener, to: u16, link: Link) {
    let mut connections = JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        connections.spawn(connection(socket, to, link.clone()));
    }
}

/// Forwards until either side closes, or until the network recovers after it dropped data.
async fn connection(socket: TcpStream, to: u16, link: Link) {
    let is_dropping = |state: &Network| *state == Network::Drops;
    let mut network = link.network.subscribe();
    let forward = async move {
        let mut works = link.network.subscribe();
        let _ = works.wait_for(|state| *state == Network::Works).await;
        let Ok(upstream) = TcpStream::connect(("127.0.0.1", to)).await else { return };
        let _ = (socket.set_nodelay(true), upstream.set_nodelay(true));
        let ((from_client, to_client), (from_server, to_server)) =
            (socket.into_split(), upstream.into_split());
        tokio::select! {
            () = pump(from_client, to_server, |_| link.count(0)) => {}
            () = pump(from_server, to_client, |bytes| link.pass(bytes)) => {}
        }
    };
    let broken = async {
        if network.wait_for(is_dropping).await.is_ok() {
            let _ = network.wait_for(|state| *state == Network::Works).await;
        }
    };
    tokio::select! {
        () = forward => {}
        () = broken => {}
    }
}

impl Link {
    /// Removes the frame to omit from bytes to a client. Returns whether they may be forwarded.
    fn pass(&self, bytes: &mut Vec<u8>) -> bool {
        let mut omitted = self.omitted.lock().expect("no panic");
        if let Some(message) = &*omitted
            && let Some(frame) = frame_with(bytes, message)
        {
            bytes.drain(frame);
            *omitted = None;
        }
        self.count(bytes.len())
    }

    /// Counts bytes to a client. Returns whether they may be forwarded.
    fn count(&self, bytes: usize) -> bool {
        let count = |left: usize| left.checked_sub(bytes);
        if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count).is_err() {
            self.network.send_replace(Network::Drops);
        }
        *self.network.borrow() == Network::Works
    }
}

/// The HTTP/2 DATA frame that contains a message, in bytes that begin with a frame.
fn frame_with(bytes: &[u8], message: &[u8]) -> Option<Range<usize>> {
    const HEAD: usize = 9;
    let mut start = 0;
    while let Some(&[a, b, c, kind]) = bytes.get(start..start + 4) {
        let end = start + HEAD + u32::from_be_bytes([0, a, b, c]) as usize;
        let frame = bytes.get(start..end)?;
        if kind == 0 && frame.windows(message.len()).any(|found| found == message) {
            return Some(start..end);
        }
        start = end;
    }
    None
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut may_forward: impl FnMut(&mut Vec<u8>) -> bool,
) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let Ok(count @ 1..) = from.read(&mut buffer).await else { return };
        let mut bytes = buffer[..count].to_vec();
        // Data that is read while the network drops is never written; wait until the connection
        // closes.
        if !may_forward(&mut bytes) {
            std::future::pending::<()>().await;
        }
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}
