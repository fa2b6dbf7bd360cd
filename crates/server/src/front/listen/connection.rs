//! One connection, from its first byte to its last.
//!
//! Promise: a connection holds the memory of the phase it is in and of no other; while a watch
//! waits, that is neither hyper's buffers nor room for a request.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use hyper::rt::Executor;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_util::task::TaskTracker;

use super::chunked;
use super::gate::{Gate, Lent};
use super::pulse::{Pulse, Watched};
use super::{HEADER_BLOCK_MAX, HEADERS_MAX, Handle, Shared};
use crate::front::identity::{ClientCertificate, Peer, Transport};
use crate::front::tls::{Acceptor, Protocol};

/// What fits into a connection's buffers; the largest header block must.
const BUFFER_MAX: usize = HEADER_BLOCK_MAX + 8 * 1024;
/// What one HTTP/2 stream may have waiting to be sent.
const SEND_BUFFER_MAX: usize = 64 * 1024;
const HTTP2_FRAME_MAX: u32 = 256 * 1024;
const HTTP2_WINDOW: u32 = 256 * 1024;
const HTTP2_CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Streams a client may open and reset before it is sent away.
const HTTP2_RESETS_MAX: usize = 200;

/// How long a peer is read from after the last answer, so that closing does not destroy it.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How long an HTTP/2 peer may take to go after it was told to.
const GOAWAY_PATIENCE: Duration = Duration::from_secs(5);

/// A part of a connection's life, which ends with the next: the handshake, requests that hyper reads
/// and answers, an answer that goes on for hours. Each is a box of its own, so that an idle
/// connection carries no memory of those that are over.
pub(super) struct Phase(Pin<Box<dyn Future<Output = Option<Phase>> + Send>>);

impl Phase {
    fn new(phase: impl Future<Output = Option<Phase>> + Send + 'static) -> Phase {
        Phase(Box::pin(phase))
    }

    /// Serves a connection to its end.
    pub(super) async fn run(self) {
        let mut phase = self;
        while let Some(next) = phase.0.await {
            phase = next;
        }
    }
}

/// Serves TLS on a socket.
pub(super) fn serve_tls<H: Handle>(
    shared: Arc<Shared<H>>,
    acceptor: Acceptor,
    socket: TcpStream,
    peer: Peer,
) -> Phase {
    Phase::new(async move {
        let handshake = handshake(&acceptor, socket);
        let in_time = tokio::time::timeout(shared.options.timeout_handshake, handshake).await;
        let Ok(Some((stream, protocol, client))) = in_time else {
            shared.metrics.tls_handshake_errors.with(&[]).inc();
            return None;
        };
        let gate = Gate::new(shared, Peer { transport: Transport::Tls(client), ..peer });
        Some(match protocol {
            Protocol::Http1 => http1(gate, stream, Bytes::new()),
            Protocol::Http2 => http2(&gate, stream),
        })
    })
}

/// Serves plain HTTP/1.1 on a loopback socket.
pub(super) fn serve_plain<H: Handle>(
    shared: Arc<Shared<H>>,
    socket: TcpStream,
    peer: Peer,
) -> Phase {
    http1(Gate::new(shared, peer), socket, Bytes::new())
}

type Handshake = (TlsStream<TcpStream>, Protocol, ClientCertificate);

async fn handshake(acceptor: &Acceptor, socket: TcpStream) -> Option<Handshake> {
    let mut first = [0];
    let seen = socket.peek(&mut first).await.ok()?;
    if seen == 1 && first[0].is_ascii_alphabetic() {
        explain_tls(socket).await;
        return None;
    }
    match acceptor.accept(socket).await {
        Ok(accepted) => Some(accepted),
        Err(error) => {
            tracing::debug!(%error, "TLS handshake failed");
            None
        }
    }
}

/// Tells somebody who speaks plain HTTP what is wrong (S8.34).
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

/// Requests over HTTP/1, until the connection ends or an answer is sent past hyper. What has
/// arrived early is read before anything else.
fn http1<H: Handle, S: Socket>(gate: Arc<Gate<H>>, stream: S, early: Bytes) -> Phase {
    let service = {
        let gate = gate.clone();
        service_fn(move |request| boxed(gate.clone().answer(request)))
    };
    let mut connection = http1::Builder::new()
        .header_read_timeout(None) // the pulse keeps the time
        .max_headers(HEADERS_MAX)
        .max_header_size(HEADER_BLOCK_MAX)
        .max_buf_size(BUFFER_MAX)
        .serve_connection(TokioIo::new(Watched::http1(stream, early, gate.pulse.clone())), service)
        .with_upgrades();
    let stop = |connection: Pin<&mut http1::UpgradeableConnection<_, _>>| {
        connection.graceful_shutdown();
    };
    Phase::new(async move {
        let end = drive(&mut connection, stop, &gate.pulse).await;
        let parts = connection.into_parts()?;
        let (stream, unread) = parts.io.into_inner().into_inner();
        match end {
            End::Overdue => None,
            End::Finished => gate.linger(stream),
            End::Lent => {
                // A copy, mostly of nothing: the buffer that hyper read into would live as long.
                let early = [parts.read_buf, unread].concat().into();
                let lent = gate.take_lent()?;
                Some(lasting(gate, stream, lent, early))
            }
        }
    })
}

/// An answer that goes on for long, and its end.
fn lasting<H: Handle, S: Socket>(
    gate: Arc<Gate<H>>,
    mut stream: S,
    lent: Lent<H::Body>,
    mut early: Bytes,
) -> Phase {
    Phase::new(async move {
        let Lent { body, keep_alive } = lent;
        if let Err(error) = chunked::send(&mut stream, body, &mut early).await {
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

fn http2<H: Handle>(gate: &Arc<Gate<H>>, stream: TlsStream<TcpStream>) -> Phase {
    let (shared, pulse) = (&gate.shared, gate.pulse.clone());
    let service = {
        let gate = gate.clone();
        service_fn(move |request| boxed(gate.clone().answer(request)))
    };
    let mut connection = http2::Builder::new(Streams(shared.tasks.clone()))
        .max_concurrent_streams(shared.options.http2_streams_max)
        .max_frame_size(HTTP2_FRAME_MAX)
        .initial_stream_window_size(HTTP2_WINDOW)
        .initial_connection_window_size(HTTP2_CONNECTION_WINDOW)
        .max_header_list_size(HEADER_BLOCK_MAX as u32)
        .max_send_buf_size(SEND_BUFFER_MAX)
        .max_pending_accept_reset_streams(HTTP2_RESETS_MAX)
        .max_local_error_reset_streams(HTTP2_RESETS_MAX)
        .serve_connection(TokioIo::new(Watched::http2(stream, pulse.clone())), service);
    let stop =
        |connection: Pin<&mut http2::Connection<_, _, Streams>>| connection.graceful_shutdown();
    Phase::new(async move {
        if drive(&mut connection, stop, &pulse).await == End::Overdue {
            Pin::new(&mut connection).graceful_shutdown();
            // Whether it left by itself or not, it is gone now.
            let _ = tokio::time::timeout(GOAWAY_PATIENCE, &mut connection).await;
        }
        None
    })
}

impl<H: Handle> Gate<H> {
    /// Lets the peer read the last answer, unless everything is about to end. A phase of its own:
    /// those before it would keep room for a second stream.
    fn linger(&self, stream: impl Socket) -> Option<Phase> {
        if self.shared.stop.is_cancelled() {
            return None;
        }
        let socket = stream.into_socket();
        Some(Phase::new(async move {
            linger(socket).await;
            None
        }))
    }
}

/// hyper keeps room for the future of a request in every connection and every stream, for as long
/// as they live. Boxed, that is a pointer, and the memory is there only while a request is handled.
fn boxed<F: Future>(answer: F) -> Pin<Box<F>> {
    Box::pin(answer)
}

/// How a connection came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Both sides are done, or the other is gone.
    Finished,
    /// The head of an answer is sent, and hyper is not to send its body.
    Lent,
    /// It was silent, slow or idle for too long.
    Overdue,
}

/// Drives a connection to its end; when it is asked to hang up, it finishes what it is answering.
async fn drive<C>(connection: &mut C, stop_gracefully: impl Fn(Pin<&mut C>), pulse: &Pulse) -> End
where
    C: Future<Output = hyper::Result<()>> + Unpin,
{
    let mut stopping = false;
    let mut overdue = pin!(pulse.overdue());
    loop {
        tokio::select! {
            biased;
            () = pulse.hung_up(), if !stopping => {}
            end = until_lent(connection, pulse) => return end,
            () = &mut overdue => return End::Overdue,
        }
        stopping = true;
        stop_gracefully(Pin::new(connection));
    }
}

/// Drives a connection until it ends or hyper has nothing more to do with it.
async fn until_lent<C>(connection: &mut C, pulse: &Pulse) -> End
where
    C: Future<Output = hyper::Result<()>> + Unpin,
{
    std::future::poll_fn(|context| match Pin::new(&mut *connection).poll(context) {
        Poll::Ready(Ok(())) => Poll::Ready(End::Finished),
        Poll::Ready(Err(error)) => {
            tracing::debug!(%error, "connection ended");
            Poll::Ready(End::Finished)
        }
        Poll::Pending if pulse.head_is_sent() => Poll::Ready(End::Lent),
        Poll::Pending => Poll::Pending,
    })
    .await
}

/// Reads what a peer still sends after the last answer. Closing a socket with unread bytes resets
/// it, and the reset may overtake the answer.
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

/// Runs the streams of an HTTP/2 connection where the listener can wait for them.
#[derive(Clone)]
struct Streams(TaskTracker);

impl<F: Future<Output: Send + 'static> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        self.0.spawn(stream);
    }
}
