//! The gate between a connection and the handler: rejects malformed requests, catches panics.
//!
//! Promise: a handler receives only well-formed requests; a handler that panics fails one request
//! with 500 (R46).

use std::convert::Infallible;
use std::io;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::FutureExt;
use headwater_api::Status;
use http::header::{CONNECTION, CONTENT_TYPE, EXPECT, HOST, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::activity::Activity;
use super::{HEADERS_MAX, Handle, ListenerState, Part};
use crate::front::identity::Peer;
use crate::lock::lock;

/// Marks a response after which the connection is closed. A 401 always closes it (S8.4).
#[derive(Clone, Copy, Debug)]
pub struct HangUp;

/// Marks a response whose body is long-running and mostly idle. Over HTTP/1.1 it is sent without
/// buffers that would be held for its entire duration.
#[derive(Clone, Copy, Debug)]
pub struct LongRunning;

/// Passes the requests of one connection to the handler.
pub(super) struct Gate<H: Handle> {
    pub(super) shared: Arc<ListenerState<H>>,
    pub(super) activity: Arc<Activity>,
    peer: Arc<Peer>,
    /// A response body that is sent without hyper.
    detached: Mutex<Option<DetachedBody<H::Body>>>,
}

/// A response body that is written directly to the socket, without hyper.
pub(super) struct DetachedBody<B> {
    pub(super) body: TrackedBody<B>,
    /// Whether the client may send another request.
    pub(super) keep_alive: bool,
}

impl<H: Handle> Gate<H> {
    pub(super) fn new(shared: Arc<ListenerState<H>>, peer: Peer) -> Arc<Gate<H>> {
        let activity = shared.activities.activity(&shared.options);
        Arc::new(Gate { shared, activity, peer: Arc::new(peer), detached: Mutex::default() })
    }

    /// Takes the detached body once hyper has sent its head.
    pub(super) fn take_detached(&self) -> Option<DetachedBody<H::Body>> {
        self.activity.head_is_taken();
        lock(&self.detached).take()
    }

    pub(super) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<TrackedBody<H::Body>>, Infallible> {
        self.activity.begin();
        let end_guard = EndGuard(self.activity.clone());
        let version = request.version();
        // The response to HEAD has no body.
        let may_detach = version == Version::HTTP_11
            && request.method() != Method::HEAD
            && request.body().is_end_stream();
        let keep_alive = !asks_to_close(request.headers());
        let (mut parts, body) = match self.malformed(&request) {
            Some(refusal) => refusal.map(Inner::Own).into_parts(),
            None => self.handled(request).await.into_parts(),
        };
        let hang_up =
            parts.status == StatusCode::UNAUTHORIZED || parts.extensions.get::<HangUp>().is_some();
        match version {
            Version::HTTP_2 if hang_up => self.activity.hang_up(),
            Version::HTTP_11 if parts.extensions.get::<HangUp>().is_some() => {
                parts.headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        let mut body = TrackedBody { inner: body, _end_guard: Some(end_guard) };
        if may_detach && !hang_up && parts.extensions.get::<LongRunning>().is_some() {
            body = self.detach(DetachedBody { body, keep_alive });
        }
        Ok(Response::from_parts(parts, body))
    }

    /// Detaches a body from hyper, which gets a body that never yields data instead.
    fn detach(&self, detached: DetachedBody<H::Body>) -> TrackedBody<H::Body> {
        *lock(&self.detached) = Some(detached);
        TrackedBody { inner: Inner::Detached(self.activity.clone()), _end_guard: None }
    }

    async fn handled(&self, request: Request<Incoming>) -> Response<Inner<H::Body>> {
        let answer = self.shared.handler.handle(self.peer.clone(), request);
        match AssertUnwindSafe(answer).catch_unwind().await {
            Ok(response) => response.map(Inner::Handler),
            Err(_) => {
                tracing::error!("a request handler panicked");
                self.shared.metrics.panics.with(&[]).inc();
                panicked().map(Inner::Own)
            }
        }
    }

    /// The rejection of a malformed request.
    fn malformed(&self, request: &Request<Incoming>) -> Option<Response<Option<Bytes>>> {
        let headers = request.headers();
        if self.activity.take_ambiguous() {
            let why = "both Content-Length and Transfer-Encoding are set";
            return Some(refuse(StatusCode::BAD_REQUEST, "BadRequest", why));
        }
        if headers.len() > HEADERS_MAX {
            let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            return Some(refuse(status, "BadRequest", "too many headers"));
        }
        if headers.get(EXPECT).is_some_and(|value| !is_continue(value)) {
            let status = StatusCode::EXPECTATION_FAILED;
            return Some(refuse(status, "BadRequest", "only 100-continue can be expected"));
        }
        let hosts = headers.get_all(HOST).iter().count();
        let expected = match request.version() {
            Version::HTTP_11 => hosts == 1,
            _ => hosts <= 1,
        };
        (!expected)
            .then(|| refuse(StatusCode::BAD_REQUEST, "BadRequest", "a request must name one host"))
    }
}

fn asks_to_close(headers: &HeaderMap) -> bool {
    let words = headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    words.into_iter().any(|word| word.trim_ascii().eq_ignore_ascii_case(b"close"))
}

fn is_continue(value: &HeaderValue) -> bool {
    value.as_bytes().eq_ignore_ascii_case(b"100-continue")
}

fn refuse(status: StatusCode, reason: &str, message: &str) -> Response<Option<Bytes>> {
    let body = Status::failure(status.as_u16(), reason, message).to_json();
    let mut response = answer(status, "application/json", body);
    response.extensions_mut().insert(HangUp);
    response
}

fn panicked() -> Response<Option<Bytes>> {
    let text = "This request caused apiserver to panic. Look in the logs for details.\n";
    answer(StatusCode::INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", text.into())
}

fn answer(
    status: StatusCode,
    content_type: &'static str,
    body: Vec<u8>,
) -> Response<Option<Bytes>> {
    let mut response = Response::new(Some(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Reports the end of a request to the connection's activity when dropped.
struct EndGuard(Arc<Activity>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A response body; the request counts as in flight until the body is dropped.
pub(super) struct TrackedBody<B> {
    inner: Inner<B>,
    /// None if the body is detached: the detached body has the guard.
    _end_guard: Option<EndGuard>,
}

enum Inner<B> {
    Handler(B),
    Own(Option<Bytes>),
    /// The body is written to the socket directly after hyper has sent the head.
    Detached(Arc<Activity>),
}

impl<B> Body for TrackedBody<B>
where
    B: Body<Data: Part, Error = io::Error> + Unpin,
{
    type Data = B::Data;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, io::Error>>> {
        match &mut self.inner {
            Inner::Handler(body) => Pin::new(body).poll_frame(cx),
            Inner::Own(bytes) => {
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes.into()))))
            }
            Inner::Detached(activity) => {
                activity.head_is_written();
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Handler(body) => body.is_end_stream(),
            Inner::Own(bytes) => bytes.is_none(),
            Inner::Detached(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Handler(body) => body.size_hint(),
            Inner::Own(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Inner::Detached(_) => SizeHint::default(),
        }
    }
}
