//! One connection, from the handshake to its end.
//!
//! Promise: a connection holds only the memory of its current phase; while a watch is idle, this
//! includes neither hyper's buffers nor the state of a request.

use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::AbortHandle;
use hyper::rt::Executor;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_util::task::TaskTracker;

use super::activity::{Activity, ActivityStream};
use super::detached::{self, DetachedBody, HeadState};
use super::gate::{Gate, TrackedBody};
use super::limits::ConnectionPermit;
use super::progress::{self, ProgressBody};
use super::{HEADER_BLOCK_MAX, HEADERS_MAX, ListenerState};
use crate::front::identity::{Peer, Transport};
use crate::front::tls::{AcceptedTls, Acceptor, Protocol};

/// The size of a connection's buffers; the largest header block must fit.
const BUFFER_MAX: usize = HEADER_BLOCK_MAX + 8 * 1024;
/// The maximum number of bytes an HTTP/2 stream may queue for sending.
const SEND_BUFFER_MAX: usize = 64 * 1024;
const HTTP2_FRAME_MAX: u32 = 256 * 1024;
const HTTP2_WINDOW: u32 = 256 * 1024;
const HTTP2_CONNECTION_WINDOW: u32 = 1024 * 1024;
/// The number of streams a client may open and reset before the connection is closed.
const HTTP2_RESETS_MAX: usize = 200;

/// How long the peer is read from after the last response, so that closing does not discard it.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How long an HTTP/2 peer may take to close the connection after GOAWAY.
const GOAWAY_PATIENCE: Duration = Duration::from_secs(5);

/// One phase of a connection, which returns the next: the handshake, requests served by hyper, a
/// long-running response. Each phase has its own allocation, so that a connection does not hold the
/// memory of earlier phases.
pub(super) struct ConnectionPhase(Pin<Box<dyn Future<Output = Option<ConnectionPhase>> + Send>>);

impl ConnectionPhase {
    fn new(
        phase: impl Future<Output = Option<ConnectionPhase>> + Send + 'static,
    ) -> ConnectionPhase {
        ConnectionPhase(Box::pin(phase))
    }

    /// Serves a connection to its end.
    pub(super) async fn run(self) {
        let mut phase = self;
        while let Some(next) = phase.0.await {
            phase = next;
        }
    }
}

/// A connection that the listener has accepted.
pub(super) struct AcceptedConnection {
    pub(super) shared: Arc<ListenerState>,
    pub(super) socket: TcpStream,
    pub(super) peer: Peer,
    pub(super) permit: Arc<ConnectionPermit>,
    /// Ends the connection.
    pub(super) abort: AbortHandle,
}

/// Serves TLS on a socket.
pub(super) fn serve_tls(accepted: AcceptedConnection, acceptor: Acceptor) -> ConnectionPhase {
    ConnectionPhase::new(async move {
        let AcceptedConnection { shared, socket, mut peer, permit, abort } = accepted;
        let handshake = handshake(&acceptor, socket, abort);
        let in_time = tokio::time::timeout(shared.options.timeout_handshake, handshake).await;
        let Ok(Some(AcceptedTls { stream, protocol, client, registered })) = in_time else {
            shared.metrics.tls_handshake_errors.with(&[]).inc();
            return None;
        };
        peer.transport = Transport::Tls(client);
        let gate = Gate::new(shared, peer, permit, registered);
        Some(match protocol {
            Protocol::Http1 => http1(gate, stream, Bytes::new()),
            Protocol::Http2 => http2(&gate, stream),
        })
    })
}

/// Serves plain HTTP/1.1 on a loopback socket.
pub(super) fn serve_plain(accepted: AcceptedConnection) -> ConnectionPhase {
    let AcceptedConnection { shared, socket, peer, permit, abort: _ } = accepted;
    http1(Gate::new(shared, peer, permit, None), socket, Bytes::new())
}

async fn handshake(
    acceptor: &Acceptor,
    socket: TcpStream,
    abort: AbortHandle,
) -> Option<AcceptedTls> {
    let mut first = [0];
    let seen = socket.peek(&mut first).await.ok()?;
    if seen == 1 && first[0].is_ascii_alphabetic() {
        explain_tls(socket).await;
        return None;
    }
    match acceptor.accept(socket, abort).await {
        Ok(accepted) => Some(accepted),
        Err(error) => {
            tracing::debug!(%error, "TLS handshake failed");
            None
        }
    }
}

/// Replies to a plain HTTP request on the TLS port (S8.34).
async fn explain_tls(mut socket: TcpStream) {
    let text = "Client sent an HTTP request to an HTTPS server.\n";
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{text}",
        text.len()
    );
    if socket.write_all(answer.as_bytes()).await.is_ok() {
        linger(socket).await;
    }
}

/// Serves HTTP/1 requests until the connection ends or a body is detached. Reads `early` first.
fn http1<S: Socket>(gate: Arc<Gate>, stream: S, early: Bytes) -> ConnectionPhase {
    let service = {
        let gate = gate.clone();
        service_fn(move |request| boxed(gate.clone().answer(request)))
    };
    let stream = ActivityStream::http1(stream, early, gate.activity.clone(), gate.head.clone());
    let mut connection =
        http1_builder().serve_connection(TokioIo::new(stream), service).with_upgrades();
    let stop = |connection: Pin<&mut http1::UpgradeableConnection<_, _>>| {
        connection.graceful_shutdown();
    };
    ConnectionPhase::new(async move {
        let end = drive(&mut connection, stop, &gate.activity, &gate.head).await;
        let parts = connection.into_parts()?;
        let (stream, unread) = parts.io.into_inner().into_inner();
        match end {
            End::Overdue => None,
            End::Finished => gate.linger(stream),
            End::Detached => {
                // Copied, usually empty: otherwise hyper's read buffer would be kept alive.
                let early = [parts.read_buf, unread].concat().into();
                let detached = gate.take_detached()?;
                Some(send_detached(gate, stream, detached, early))
            }
        }
    })
}

pub(super) fn http1_builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .header_read_timeout(None) // `Activity` enforces the timeout
        .max_headers(HEADERS_MAX)
        .max_header_size(HEADER_BLOCK_MAX)
        .max_buf_size(BUFFER_MAX);
    builder
}

/// Sends a detached body, then serves further requests or closes the connection.
fn send_detached<S: Socket>(
    gate: Arc<Gate>,
    mut stream: S,
    detached: DetachedBody<TrackedBody>,
    mut early: Bytes,
) -> ConnectionPhase {
    ConnectionPhase::new(async move {
        let DetachedBody { body, keep_alive } = detached;
        let timeout = gate.shared.options.timeout_progress;
        if let Err(error) = detached::send(&mut stream, body, &mut early, timeout).await {
            tracing::debug!(%error, "connection ended");
            return None;
        }
        if keep_alive && !gate.shared.stop.is_cancelled() {
            return Some(http1(gate, stream, early));
        }
        stream.shutdown().await.ok()?;
        gate.linger(stream)
    })
}

fn http2(gate: &Arc<Gate>, stream: TlsStream<TcpStream>) -> ConnectionPhase {
    let (shared, activity, head) = (&gate.shared, gate.activity.clone(), gate.head.clone());
    let service = {
        let gate = gate.clone();
        service_fn(move |request| {
            let answered = gate.clone().answer(request);
            boxed(async { Ok::<_, Infallible>(answered.await?.map(ProgressBody::new)) })
        })
    };
    let streams = Streams {
        tasks: shared.tasks.clone(),
        timeout: shared.options.timeout_progress,
        activity: activity.clone(),
    };
    let mut connection = http2::Builder::new(streams)
        .max_concurrent_streams(shared.options.http2_streams_max)
        .max_frame_size(HTTP2_FRAME_MAX)
        .initial_stream_window_size(HTTP2_WINDOW)
        .initial_connection_window_size(HTTP2_CONNECTION_WINDOW)
        .max_header_list_size(HEADER_BLOCK_MAX as u32)
        .max_send_buf_size(SEND_BUFFER_MAX)
        .max_pending_accept_reset_streams(HTTP2_RESETS_MAX)
        .max_local_error_reset_streams(HTTP2_RESETS_MAX)
        .serve_connection(TokioIo::new(ActivityStream::http2(stream, activity.clone())), service);
    let stop =
        |connection: Pin<&mut http2::Connection<_, _, Streams>>| connection.graceful_shutdown();
    ConnectionPhase::new(async move {
        let end = drive(&mut connection, stop, &activity, &head).await;
        if end == End::Overdue && !activity.is_stalled() {
            Pin::new(&mut connection).graceful_shutdown();
            // The connection is dropped either way.
            let _ = tokio::time::timeout(GOAWAY_PATIENCE, &mut connection).await;
        }
        None
    })
}

impl Gate {
    /// Lets the peer read the last response, unless the server is stopping. This is a separate phase,
    /// so that earlier phases need no memory for a second stream.
    fn linger(&self, stream: impl Socket) -> Option<ConnectionPhase> {
        if self.shared.stop.is_cancelled() {
            return None;
        }
        let socket = stream.into_socket();
        Some(ConnectionPhase::new(async move {
            linger(socket).await;
            None
        }))
    }
}

/// Boxes the future of a request: hyper reserves space for it in every connection and stream for
/// their entire lifetime, and a box reduces this to a pointer.
fn boxed<F: Future>(answer: F) -> Pin<Box<F>> {
    Box::pin(answer)
}

/// How hyper's part of a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Both sides have finished, or the peer has disconnected.
    Finished,
    /// The head of a response is sent and its body is detached.
    Detached,
    /// The connection was silent, slow or idle for too long.
    Overdue,
}

/// Drives a connection to its end; when asked to close, it finishes the requests in flight first.
async fn drive<C>(
    connection: &mut C,
    stop_gracefully: impl Fn(Pin<&mut C>),
    activity: &Activity,
    head: &HeadState,
) -> End
where
    C: Future<Output = hyper::Result<()>> + Unpin,
{
    let mut stopping = false;
    let mut overdue = pin!(activity.overdue());
    loop {
        tokio::select! {
            biased;
            () = activity.hung_up(), if !stopping => {}
            ended = detached::until_head_is_sent(connection, head) => return match ended {
                None => End::Detached,
                Some(Ok(())) => End::Finished,
                Some(Err(error)) => {
                    tracing::debug!(%error, "connection ended");
                    End::Finished
                }
            },
            () = &mut overdue => return End::Overdue,
        }
        stopping = true;
        stop_gracefully(Pin::new(connection));
    }
}

/// Reads the remaining input after the last response. Closing a socket with unread input resets
/// the connection, and the reset may overtake the response.
async fn linger(mut socket: TcpStream) {
    let drain = async move {
        let mut left = LINGER_BYTES_MAX;
        let mut buffer = vec![0; 16 * 1024];
        socket.shutdown().await.ok()?;
        while left > 0 {
            match socket.read(&mut buffer).await.ok()? {
                0 => return None,
                read => left = left.saturating_sub(read),
            }
        }
        None::<()>
    };
    let _ = tokio::time::timeout(LINGER, Box::pin(drain)).await;
}

/// A stream over a socket.
trait Socket: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    fn into_socket(self) -> TcpStream;
}

impl Socket for TcpStream {
    fn into_socket(self) -> TcpStream {
        self
    }
}

impl Socket for TlsStream<TcpStream> {
    fn into_socket(self) -> TcpStream {
        self.into_inner().0
    }
}

/// Spawns the streams of an HTTP/2 connection as tasks that the listener waits for. A stream whose
/// response is stuck is reset.
#[derive(Clone)]
struct Streams {
    tasks: TaskTracker,
    timeout: Duration,
    activity: Arc<Activity>,
}

impl<F: Future<Output: Send + 'static> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        let (timeout, activity) = (self.timeout, self.activity.clone());
        self.tasks.spawn(async move {
            activity.sent(progress::until_stuck(stream, timeout).await);
        });
    }
}
