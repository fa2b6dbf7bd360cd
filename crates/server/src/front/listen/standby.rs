//! The standby: a thread of its own that serves connections while no other thread accepts them.
//!
//! River: socket → **standby** → health checks, handler. The threads of requests accept a connection at
//! once unless all of them are blocked or overloaded. The standby waits on the same socket; when a
//! connection has waited for [`PATIENCE`] and none was accepted meanwhile, it accepts all that wait.
//! It answers health checks itself and passes other requests on.
//!
//! Promise: no request can keep a new connection from `/livez` and `/readyz`. The standby never runs a
//! handler or polls a body of one. While connections are accepted in time, it costs at most four
//! wake-ups a second, and none without new connections.

use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use http::{Method, Request, StatusCode, Uri};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, StreamBody};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::gate::HangUp;
use super::{ConnectionServer, Handler, ListenerState, drain};
use crate::answer::body::{self, Body, Data, RequestBody, Response};
use crate::front::identity::Peer;

/// How long a connection may wait for the threads of requests.
const PATIENCE: Duration = Duration::from_millis(250);

/// Answers the requests that need no waiting: `None` for others.
pub type HealthHandler = Arc<dyn Fn(&Uri) -> Option<Response> + Send + Sync>;

/// Counts the connections that the listener accepts.
#[derive(Clone, Debug, Default)]
pub(super) struct AcceptCount(Arc<AtomicU64>);

impl AcceptCount {
    pub(super) fn add_one(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    fn now(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A running standby. Dropping it ends the thread and its connections.
pub(super) struct Standby {
    ended: oneshot::Receiver<()>,
    _abort: DropGuard,
}

impl Standby {
    /// Starts the thread. It shares the listener's socket and limits.
    pub(super) fn start(
        socket: impl AsFd,
        connections: ConnectionServer,
        health: HealthHandler,
        accepted: AcceptCount,
    ) -> io::Result<Standby> {
        let socket = TcpListener::from(socket.as_fd().try_clone_to_owned()?);
        let handler = handler(health, connections.shared.handler.clone(), Handle::current());
        let shared = ListenerState { handler, ..(*connections.shared).clone() };
        let connections = ConnectionServer { shared: Arc::new(shared), ..connections };
        let thread = StandbyThread { socket, connections, accepted };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (ends, ended) = oneshot::channel();
        let abort = CancellationToken::new();
        let aborted = abort.clone();
        std::thread::Builder::new().name("standby".to_owned()).spawn(move || {
            runtime.block_on(aborted.run_until_cancelled(thread.run()));
            // Nobody waits if the listener was dropped.
            let _ = ends.send(());
        })?;
        Ok(Standby { ended, _abort: abort.drop_guard() })
    }

    /// Waits until the thread ends, after the listener was stopped.
    pub(super) async fn ended(self) {
        // An error means that the thread panicked: it has ended too.
        let _ = self.ended.await;
    }
}

struct StandbyThread {
    socket: TcpListener,
    connections: ConnectionServer,
    accepted: AcceptCount,
}

impl StandbyThread {
    async fn run(self) {
        let shared = self.connections.shared.clone();
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = shared.stop.cancelled() => break,
                unattended = self.unattended() => match unattended {
                    Ok(()) => self.accept_all(&mut tasks),
                    Err(error) => {
                        tracing::error!(%error, "the standby for health checks ended");
                        break;
                    }
                },
            }
            while tasks.try_join_next().is_some() {}
        }
        // New connections are refused from now on.
        drop(self.socket);
        shared.stop.cancelled().await;
        drain(tasks, &shared).await;
    }

    /// Waits until a connection has waited for [`PATIENCE`] while the listener accepted none.
    async fn unattended(&self) -> io::Result<()> {
        loop {
            // Registered for one event only: the thread sleeps while the listener works. Tokio's
            // listener can only accept; a stream reports the readiness of any socket.
            let socket = std::net::TcpStream::from(self.socket.as_fd().try_clone_to_owned()?);
            TcpStream::from_std(socket)?.readable().await?;
            let before = self.accepted.now();
            tokio::time::sleep(PATIENCE).await;
            if self.accepted.now() == before {
                return Ok(());
            }
        }
    }

    fn accept_all(&self, tasks: &mut JoinSet<()>) {
        let mut count = 0;
        while let Ok((socket, from)) = self.socket.accept() {
            let socket = socket.set_nonblocking(true).and_then(|()| TcpStream::from_std(socket));
            if let Ok(socket) = socket {
                self.connections.serve(tasks, socket, from);
                count += 1;
            }
        }
        if count > 0 {
            tracing::warn!(count, "connections waited because the threads of requests are busy");
            self.connections.shared.metrics.standby_connections.with(&[]).add(count);
        }
    }
}

/// Answers health checks; runs everything else on the threads of requests.
fn handler(health: HealthHandler, handler: Handler, requests: Handle) -> Handler {
    Arc::new(move |peer, request| {
        let answered = match *request.method() {
            Method::GET => health(request.uri()),
            _ => None,
        };
        match answered {
            Some(response) => std::future::ready(response).boxed(),
            None => pass_on(&handler, &requests, peer, request).boxed(),
        }
    })
}

fn pass_on(
    handler: &Handler,
    requests: &Handle,
    peer: Arc<Peer>,
    request: Request<RequestBody>,
) -> impl Future<Output = Response> + use<> {
    let (handler, tasks) = (handler.clone(), peer.tasks.clone());
    let handled = requests.spawn(tasks.track_future(async move {
        let mut response = handler(peer, request).await;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            // The next connection may reach the threads of requests.
            response.extensions_mut().insert(HangUp);
        }
        response
    }));
    let requests = requests.clone();
    async move {
        match handled.await {
            Ok(response) => response.map(|body| forwarded(body, &requests)),
            Err(_) => body::text(StatusCode::INTERNAL_SERVER_ERROR, "the request was aborted"),
        }
    }
}

/// A body that is computed on the threads of requests and sent by this one.
fn forwarded(mut body: Body, requests: &Handle) -> Body {
    if body.is_end_stream() {
        return body;
    }
    let (sender, mut receiver) = mpsc::channel::<io::Result<Data>>(1);
    requests.spawn(async move {
        loop {
            let frame = tokio::select! {
                biased;
                () = sender.closed() => return,
                frame = body.frame() => frame,
            };
            let part = match frame {
                None => return,
                Some(Ok(frame)) => frame.into_data().map_err(|_| ()).map(Ok),
                Some(Err(error)) => Ok(Err(error)),
            };
            if let Ok(part) = part
                && sender.send(part).await.is_err()
            {
                return;
            }
        }
    });
    let parts = futures::stream::poll_fn(move |context| receiver.poll_recv(context));
    StreamBody::new(parts.map(|part| part.map(Frame::data))).boxed_unsync()
}
