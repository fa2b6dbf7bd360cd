//! Connections to the ports of pods: `portforward`.
//!
//! River: HTTP upgrade → streams of the client → **port forward** → the HTTP replies of the container
//! runtime, or a process on this machine that the pod's annotation names.
//! Promise: simulated addresses are never dialled. One session reads no further while the connection
//! whose data comes next is not ready for it, and each connection holds at most [`BUFFER`] bytes in each
//! direction.

mod http;
mod streams;

use std::collections::HashMap;
use std::sync::Arc;

use ::http::HeaderValue;
use bytes::{Bytes, BytesMut};
use headwater_api::options::Freshness;
use headwater_api::{Object, Status};
use hyper::upgrade::OnUpgrade;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use self::streams::{PortEvent, PortStreams};
use crate::answer::body::Response;
use crate::containers::ContainerRuntime;
use crate::front::identity::Peer;
use crate::object::{meta, tree};
use crate::request::call::Call;
use crate::request::route::ResourcePath;
use crate::server::Server;
use crate::verbs::{read, spdy, websocket};

/// What a connection holds of each direction.
const BUFFER: usize = 64 * 1024;
/// The pieces of data that wait for a connection, and the outputs that wait for the client.
const QUEUE: usize = 16;

const PROTOCOL: &str = "portforward.k8s.io";
/// SPDY within messages of a WebSocket, as kubectl uses it.
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
/// Two channels for each port, as the clients in Python and Rust use them.
const CHANNELS: &str = "v4.channel.k8s.io";

/// A client that forwards ports of a pod.
pub(crate) struct PortForward {
    pub(crate) server: Server,
    pub(crate) resource: ResourcePath,
    pub(crate) runtime: Arc<dyn ContainerRuntime>,
}

/// Responds with 101 and serves the connections of the client after the upgrade.
pub(crate) fn start(
    call: &Call,
    upgrade: Option<OnUpgrade>,
    peer: &Peer,
    forward: PortForward,
) -> Result<Response, Status> {
    let (response, upgrade, protocol) = if spdy::is_asked_for(call) {
        let (response, upgrade) = spdy::handshake(call, upgrade, &[PROTOCOL])?;
        (response, upgrade, PROTOCOL)
    } else {
        let protocol = websocket::offered(call, &[TUNNEL, CHANNELS])?;
        let header = HeaderValue::from_static(protocol);
        let (response, upgrade) = websocket::handshake(call, upgrade, Some(header))?;
        (response, upgrade, protocol)
    };
    let ports = match protocol {
        CHANNELS => streams::ports(call.query.all("ports"))?,
        _ => Vec::new(),
    };
    let trail = call.trail.clone();
    peer.tasks.spawn(async move {
        if let Ok(upgraded) = upgrade.await {
            let draining = forward.server.draining().clone();
            let client = match protocol {
                PROTOCOL => PortStreams::spdy(upgraded),
                TUNNEL => PortStreams::tunnel(upgraded).await,
                _ => PortStreams::channels(upgraded, &ports).await,
            };
            draining.run_until_cancelled(Session::new(forward).run(client)).await;
        }
        // The audit trail records the end of the session, not of the upgrade.
        drop(trail);
    });
    Ok(response)
}

/// What a connection sends to its client.
enum PortOutput {
    Data(Bytes),
    /// The end, with an error for the client.
    End(Option<String>),
}

/// The connections of one client.
struct Session {
    forward: Arc<PortForward>,
    /// What each open connection receives; removed when the client sends no more.
    /// Bound: the streams of the client.
    inputs: HashMap<u32, mpsc::Sender<Bytes>>,
    connections: JoinSet<()>,
    /// The connections' ends of the queue of outputs.
    outputs: mpsc::Sender<(u32, PortOutput)>,
    received: mpsc::Receiver<(u32, PortOutput)>,
}

impl Session {
    fn new(forward: PortForward) -> Session {
        let (outputs, received) = mpsc::channel(QUEUE);
        Session {
            forward: Arc::new(forward),
            inputs: HashMap::new(),
            connections: JoinSet::new(),
            outputs,
            received,
        }
    }

    /// Serves until the client is gone.
    async fn run(mut self, mut client: PortStreams) {
        // Data that its connection has not taken yet; until then nothing is read.
        let mut waiting: Option<(mpsc::Sender<Bytes>, Bytes)> = None;
        loop {
            let input = waiting.as_ref().map(|(input, _)| input.clone());
            tokio::select! {
                event = client.next(), if waiting.is_none() => match event {
                    None => return,
                    Some(event) => waiting = self.apply(event),
                },
                permit = async { input?.reserve_owned().await.ok() }, if waiting.is_some() => {
                    if let (Some(permit), Some((_, data))) = (permit, waiting.take()) {
                        permit.send(data);
                    }
                }
                Some((connection, output)) = self.received.recv() => {
                    let sent = match output {
                        PortOutput::Data(data) => client.send(connection, &data).await,
                        PortOutput::End(error) => {
                            self.inputs.remove(&connection);
                            client.end(connection, error.as_deref()).await
                        }
                    };
                    if sent.is_none() {
                        return;
                    }
                }
            }
        }
    }

    /// Applies what the client did; returns data for a connection.
    fn apply(&mut self, event: PortEvent) -> Option<(mpsc::Sender<Bytes>, Bytes)> {
        match event {
            PortEvent::Open { connection, port } => {
                while self.connections.try_join_next().is_some() {}
                let (input, received) = mpsc::channel(QUEUE);
                self.inputs.insert(connection, input);
                let (forward, outputs) = (Arc::clone(&self.forward), self.outputs.clone());
                self.connections.spawn(async move {
                    let error = connect(forward, port, connection, received, &outputs).await.err();
                    // The session may have ended.
                    let _ = outputs.send((connection, PortOutput::End(error))).await;
                });
                None
            }
            PortEvent::Data { connection, data } => {
                self.inputs.get(&connection).map(|input| (input.clone(), data))
            }
            PortEvent::End { connection } => {
                self.inputs.remove(&connection);
                None
            }
        }
    }
}

/// One connection: joins its queues to the two ends of a pipe, of which the other is served.
async fn connect(
    forward: Arc<PortForward>,
    port: u16,
    connection: u32,
    mut received: mpsc::Receiver<Bytes>,
    outputs: &mpsc::Sender<(u32, PortOutput)>,
) -> Result<(), String> {
    let (near, far) = tokio::io::duplex(BUFFER);
    let (mut read, mut write) = tokio::io::split(near);
    let input = async {
        while let Some(data) = received.recv().await {
            if write.write_all(&data).await.is_err() {
                break;
            }
        }
        let _ = write.shutdown().await; // the other end may be closed already
        std::future::pending::<()>().await;
    };
    let output = async {
        let mut buffer = BytesMut::new();
        loop {
            buffer.reserve(BUFFER / 2);
            if !matches!(read.read_buf(&mut buffer).await, Ok(1..)) {
                return;
            }
            let data = PortOutput::Data(buffer.split().freeze());
            if outputs.send((connection, data)).await.is_err() {
                return;
            }
        }
    };
    let served = async { tokio::join!(output, forward.serve(far, port)).1 };
    tokio::select! {
        served = served => served,
        () = input => Ok(()),
    }
}

impl PortForward {
    /// Serves a connection to a port of the pod, or joins it to a process on this machine.
    async fn serve(self: Arc<Self>, mut io: DuplexStream, port: u16) -> Result<(), String> {
        let pod = self.pod().await?;
        let pod = tree(pod.as_slice()).map_err(|error| error.message)?;
        match self.server.settings().forwarding.of_port(self.server.cache(), &pod, port) {
            None => {}
            Some(Err(why)) => return Err(self.failed(port, meta(&pod, "uid"), &why)),
            Some(Ok(address)) => {
                let socket = TcpStream::connect(address).await;
                let mut socket = socket.map_err(|error| {
                    let why = format!("dial tcp {address}: {error}");
                    self.failed(port, meta(&pod, "uid"), &why)
                })?;
                // Either side may end the connection at any time.
                let _ = tokio::io::copy_bidirectional(&mut io, &mut socket).await;
                return Ok(());
            }
        }
        http::serve(self, io, port).await;
        Ok(())
    }

    async fn pod(&self) -> Result<Arc<Object>, String> {
        let found = read::find(&self.server, &self.resource, Freshness::Any).await;
        found.map_err(|error| error.message)
    }

    /// The error of a connection, as a kubelet reports it.
    fn failed(&self, port: u16, uid: &str, why: &str) -> String {
        let name = &self.resource.name;
        format!("error forwarding port {port} to pod {name}, uid {uid}: {why}")
    }
}
