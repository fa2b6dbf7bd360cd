//! What is answered before any handler sees it, and the body that keeps the pulse.
//!
//! Promise: what reaches a handler is one well-formed request; a handler that panics costs one
//! request a 500 (R46).

use std::convert::Infallible;
use std::io;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::FutureExt;
use headwater_api::Status;
use http::header::{CONNECTION, CONTENT_TYPE, EXPECT, HOST, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::pulse::Pulse;
use super::{HEADERS_MAX, Handle, Part, Shared};
use crate::front::identity::Peer;

/// A mark for a response: the connection ends after it. 401 has it always (S8.4).
#[derive(Clone, Copy, Debug)]
pub struct HangUp;

/// A mark for a response: its body goes on for long and has little to say. Over HTTP/1.1 it is sent
/// without buffers that last as long as it does.
#[derive(Clone, Copy, Debug)]
pub struct LongRunning;

/// Stands between a connection and the handler.
pub(super) struct Gate<H: Handle> {
    pub(super) shared: Arc<Shared<H>>,
    pub(super) pulse: Arc<Pulse>,
    peer: Arc<Peer>,
    /// The body of an answer that hyper is not to send.
    lent: Mutex<Option<Lent<H::Body>>>,
}

/// The body of an answer that is sent past hyper.
pub(super) struct Lent<B> {
    pub(super) body: Tracked<B>,
    /// Whether requests may follow.
    pub(super) keep_alive: bool,
}

impl<H: Handle> Gate<H> {
    pub(super) fn new(shared: Arc<Shared<H>>, peer: Peer) -> Arc<Gate<H>> {
        let pulse = shared.pulses.pulse(&shared.options);
        Arc::new(Gate { shared, pulse, peer: Arc::new(peer), lent: Mutex::default() })
    }

    /// The body whose head is sent.
    pub(super) fn take_lent(&self) -> Option<Lent<H::Body>> {
        self.pulse.head_is_taken();
        self.lent.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Tracked<H::Body>>, Infallible> {
        self.pulse.begin();
        let ends = Ends(self.pulse.clone());
        let version = request.version();
        // Of an answer to HEAD there is no body to send.
        let may_lend = version == Version::HTTP_11
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
            Version::HTTP_2 if hang_up => self.pulse.hang_up(),
            Version::HTTP_11 if parts.extensions.get::<HangUp>().is_some() => {
                parts.headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        let mut body = Tracked { inner: body, _ends: Some(ends) };
        if may_lend && !hang_up && parts.extensions.get::<LongRunning>().is_some() {
            body = self.lend(Lent { body, keep_alive });
        }
        Ok(Response::from_parts(parts, body))
    }

    /// Keeps a body from hyper, which gets one that never says anything.
    fn lend(&self, lent: Lent<H::Body>) -> Tracked<H::Body> {
        *self.lent.lock().unwrap_or_else(PoisonError::into_inner) = Some(lent);
        Tracked { inner: Inner::Lent(self.pulse.clone()), _ends: None }
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

    /// What is wrong with a request before it means anything.
    fn malformed(&self, request: &Request<Incoming>) -> Option<Response<Option<Bytes>>> {
        let headers = request.headers();
        if self.pulse.take_ambiguous() {
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

/// Ends a request's part in the pulse, however it ends.
struct Ends(Arc<Pulse>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A response body; the request counts as being answered until it is dropped.
pub(super) struct Tracked<B> {
    inner: Inner<B>,
    /// Not with a body that is sent by somebody else: it has its own.
    _ends: Option<Ends>,
}

enum Inner<B> {
    Handler(B),
    Own(Option<Bytes>),
    /// The body is sent by somebody else as soon as the head is.
    Lent(Arc<Pulse>),
}

impl<B> Body for Tracked<B>
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
            Inner::Lent(pulse) => {
                pulse.head_is_written();
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Handler(body) => body.is_end_stream(),
            Inner::Own(bytes) => bytes.is_none(),
            Inner::Lent(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Handler(body) => body.size_hint(),
            Inner::Own(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Inner::Lent(_) => SizeHint::default(),
        }
    }
}
