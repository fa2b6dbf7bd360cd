//! One connection, from its first byte to its last.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use hyper::rt::Executor;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_util::task::TaskTracker;

use super::gate::Gate;
use super::pulse::{Pulse, Watched};
use super::{HEADER_BLOCK_MAX, HEADERS_MAX, Handle, Shared};
use crate::identity::{ClientCertificate, Peer, Transport};
use crate::tls::{Acceptor, Protocol};

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

/// What serves one connection to its end. Boxed at each step, so that an idle connection carries
/// neither its handshake's memory nor a copy of its stream for every function it passed through.
pub(super) type Serving = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Serves TLS on a socket.
pub(super) fn serve_tls<H: Handle>(
    shared: Arc<Shared<H>>,
    acceptor: Acceptor,
    socket: TcpStream,
    peer: Peer,
) -> Serving {
    let begin: Pin<Box<dyn Future<Output = Option<Serving>> + Send>> = Box::pin(async move {
        let handshake = handshake(&acceptor, socket);
        let in_time = tokio::time::timeout(shared.options.timeout_handshake, handshake).await;
        let Ok(Some((stream, protocol, client))) = in_time else {
            shared.metrics.tls_handshake_errors.with(&[]).inc();
            return None;
        };
        let peer = Peer { transport: Transport::Tls(client), ..peer };
        Some(match protocol {
            Protocol::Http1 => serve_http1(shared, stream, peer),
            Protocol::Http2 => serve_http2(&shared, stream, peer),
        })
    });
    Box::pin(async move {
        if let Some(serving) = begin.await {
            serving.await;
        }
    })
}

/// Serves plain HTTP/1.1 on a loopback socket.
pub(super) fn serve_plain<H: Handle>(
    shared: Arc<Shared<H>>,
    socket: TcpStream,
    peer: Peer,
) -> Serving {
    serve_http1(shared, socket, peer)
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

fn serve_http1<H: Handle, S: Socket>(shared: Arc<Shared<H>>, stream: S, peer: Peer) -> Serving {
    let pulse = shared.pulses.pulse(&shared.options);
    let gate = gate(&shared, &pulse, peer);
    let mut connection = http1::Builder::new()
        .header_read_timeout(None) // the pulse keeps the time
        .max_headers(HEADERS_MAX)
        .max_header_size(HEADER_BLOCK_MAX)
        .max_buf_size(BUFFER_MAX)
        .serve_connection(
            TokioIo::new(Watched::http1(stream, pulse.clone())),
            service_fn(move |request| boxed(gate.clone().answer(request))),
        )
        .with_upgrades();
    let stop = |connection: Pin<&mut http1::UpgradeableConnection<_, _>>| {
        connection.graceful_shutdown();
    };
    Box::pin(async move {
        let end = drive(&mut connection, stop, &pulse).await;
        if end == End::Finished && !shared.stop.is_cancelled() {
            let stream = connection.into_parts().map(|parts| parts.io.into_inner().into_inner());
            if let Some(stream) = stream {
                linger(stream.into_socket()).await;
            }
        }
    })
}

fn serve_http2<H: Handle>(
    shared: &Arc<Shared<H>>,
    stream: TlsStream<TcpStream>,
    peer: Peer,
) -> Serving {
    let pulse = shared.pulses.pulse(&shared.options);
    let gate = gate(shared, &pulse, peer);
    let mut connection = http2::Builder::new(Streams(shared.tasks.clone()))
        .max_concurrent_streams(shared.options.http2_streams_max)
        .max_frame_size(HTTP2_FRAME_MAX)
        .initial_stream_window_size(HTTP2_WINDOW)
        .initial_connection_window_size(HTTP2_CONNECTION_WINDOW)
        .max_header_list_size(HEADER_BLOCK_MAX as u32)
        .max_send_buf_size(SEND_BUFFER_MAX)
        .max_pending_accept_reset_streams(HTTP2_RESETS_MAX)
        .max_local_error_reset_streams(HTTP2_RESETS_MAX)
        .serve_connection(
            TokioIo::new(Watched::http2(stream, pulse.clone())),
            service_fn(move |request| boxed(gate.clone().answer(request))),
        );
    let stop =
        |connection: Pin<&mut http2::Connection<_, _, Streams>>| connection.graceful_shutdown();
    Box::pin(async move {
        if drive(&mut connection, stop, &pulse).await == End::Overdue {
            Pin::new(&mut connection).graceful_shutdown();
            // Whether it left by itself or not, it is gone now.
            let _ = tokio::time::timeout(GOAWAY_PATIENCE, &mut connection).await;
        }
    })
}

fn gate<H: Handle>(shared: &Arc<Shared<H>>, pulse: &Arc<Pulse>, peer: Peer) -> Arc<Gate<H>> {
    Arc::new(Gate {
        handler: shared.handler.clone(),
        peer: Arc::new(peer),
        pulse: pulse.clone(),
        panics: shared.metrics.panics.with(&[]),
    })
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
            result = &mut *connection => {
                if let Err(error) = result {
                    tracing::debug!(%error, "connection ended");
                }
                return End::Finished;
            }
            () = &mut overdue => return End::Overdue,
        }
        stopping = true;
        stop_gracefully(Pin::new(connection));
    }
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
