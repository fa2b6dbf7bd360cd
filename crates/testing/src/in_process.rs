//! The way from a client to the server without a socket.
//!
//! River: `kube::Client` → **in process** → `Server::handle`. Bodies are handed over as they are:
//! a watch streams through it frame by frame.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use headwater_server::identity::Peer;
use headwater_server::{Response, Server};
use http::Request;
use http::header::{HeaderValue, USER_AGENT};
use kube::client::Body;
use tower::Service;

/// What a client calls instead of a connection.
pub(crate) struct InProcess {
    pub(crate) server: Server,
    pub(crate) peer: Arc<Peer>,
}

/// Who writes, where a client does not say: the first word of it becomes the field manager.
const AGENT: HeaderValue = HeaderValue::from_static("headwater-testing");

impl Service<Request<Body>> for InProcess {
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        request.headers_mut().entry(USER_AGENT).or_insert(AGENT);
        let (server, peer) = (self.server.clone(), Arc::clone(&self.peer));
        Box::pin(async move { Ok(server.handle(&peer, request).await) })
    }
}
