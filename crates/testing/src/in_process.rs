//! The transport from a client to the server without a socket.
//!
//! River: `kube::Client` → **in process** → `Server::handle`. Bodies are passed on unchanged: a
//! watch streams frame by frame.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use headwater_server::identity::Peer;
use headwater_server::{Server, body};
use http::Request;
use http::header::{HeaderValue, USER_AGENT};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use kube::client::Body;
use tower::Service;

/// The service that a client calls instead of a connection.
pub(crate) struct InProcess {
    pub(crate) server: Server,
    pub(crate) peer: Arc<Peer>,
}

/// A response body, as `kube` expects it.
type Answer = UnsyncBoxBody<Bytes, io::Error>;

fn in_bytes(body: headwater_server::Body) -> Answer {
    body.map_frame(|frame| frame.map_data(Bytes::from)).boxed_unsync()
}

/// The default user agent; its first word becomes the field manager.
const AGENT: HeaderValue = HeaderValue::from_static("headwater-testing");

impl Service<Request<Body>> for InProcess {
    type Response = http::Response<Answer>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        request.headers_mut().entry(USER_AGENT).or_insert(AGENT);
        let request = request.map(body::request);
        let (server, peer) = (self.server.clone(), Arc::clone(&self.peer));
        Box::pin(async move { Ok(server.handle(&peer, request).await.map(in_bytes)) })
    }
}
