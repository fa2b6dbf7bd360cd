//! The gate between a connection and the handler.
//!
//! It rejects malformed requests and, without TLS, requests of web pages; it detaches long-running
//! bodies. Promise: a handler receives only well-formed requests; a request counts as in flight
//! until its response body is dropped.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use headwater_api::Status;
use http::header::{CONNECTION, EXPECT, HOST, HeaderMap, HeaderValue};
use http::{Method, Request, StatusCode, Version};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;

use super::activity::Activity;
use super::detached::{DetachedBody, HeadState, LongRunning, Placeholder};
use super::{HEADERS_MAX, ListenerState, same_origin};
use crate::answer::body::{self, Body, Data, Response};
use crate::front::identity::{Peer, Transport};
use crate::lock::lock;

/// Marks a response after which the connection is closed. A 401 always closes it (S8.4).
#[derive(Clone, Copy, Debug)]
pub struct HangUp;

/// Passes the requests of one connection to the handler.
pub(super) struct Gate {
    pub(super) shared: Arc<ListenerState>,
    pub(super) activity: Arc<Activity>,
    /// How far hyper is with the head of a detached body.
    pub(super) head: HeadState,
    peer: Arc<Peer>,
    detached: Mutex<Option<DetachedBody<TrackedBody>>>,
}

impl Gate {
    pub(super) fn new(shared: Arc<ListenerState>, peer: Peer) -> Arc<Gate> {
        let activity = Arc::new(Activity::new(&shared.options, &shared.closing));
        let (head, detached) = Default::default();
        Arc::new(Gate { shared, activity, head, peer: Arc::new(peer), detached })
    }

    /// Takes the detached body once hyper has sent its head.
    pub(super) fn take_detached(&self) -> Option<DetachedBody<TrackedBody>> {
        self.head.reset();
        lock(&self.detached).take()
    }

    pub(super) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<http::Response<TrackedBody>, Infallible> {
        self.activity.begin();
        let end_guard = EndGuard(self.activity.clone());
        let version = request.version();
        // The response to HEAD has no body.
        let may_detach = version == Version::HTTP_11
            && request.method() != Method::HEAD
            && request.body().is_end_stream();
        let keep_alive = !asks_to_close(request.headers());
        let response = match self.malformed(&request) {
            Some(refusal) => refusal,
            None => (self.shared.handler)(self.peer.clone(), request.map(body::request)).await,
        };
        let (mut parts, body) = response.into_parts();
        let hang_up =
            parts.status == StatusCode::UNAUTHORIZED || parts.extensions.get::<HangUp>().is_some();
        match version {
            Version::HTTP_2 if hang_up => self.activity.hang_up(),
            Version::HTTP_11 if parts.extensions.get::<HangUp>().is_some() => {
                parts.headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        let mut body = TrackedBody { body, _end_guard: Some(end_guard) };
        if may_detach && !hang_up && parts.extensions.get::<LongRunning>().is_some() {
            *lock(&self.detached) = Some(DetachedBody { body, keep_alive });
            let placeholder = Body::new(Placeholder(self.head.clone()));
            body = TrackedBody { body: placeholder, _end_guard: None };
        }
        Ok(http::Response::from_parts(parts, body))
    }

    /// The rejection of a malformed request.
    fn malformed(&self, request: &Request<Incoming>) -> Option<Response> {
        let headers = request.headers();
        if self.activity.take_ambiguous() {
            let why = "both Content-Length and Transfer-Encoding are set";
            return Some(refuse(StatusCode::BAD_REQUEST, why));
        }
        if headers.len() > HEADERS_MAX {
            let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            return Some(refuse(status, "too many headers"));
        }
        if headers.get(EXPECT).is_some_and(|value| !is_continue(value)) {
            let why = "only 100-continue can be expected";
            return Some(refuse(StatusCode::EXPECTATION_FAILED, why));
        }
        let hosts = headers.get_all(HOST).iter().count();
        let expected = match request.version() {
            Version::HTTP_11 => hosts == 1,
            _ => hosts <= 1,
        };
        if !expected {
            return Some(refuse(StatusCode::BAD_REQUEST, "a request must name one host"));
        }
        if !matches!(self.peer.transport, Transport::Loopback) {
            return None;
        }
        let checked =
            same_origin::check(self.shared.address, request.method(), request.uri(), headers);
        checked.err().map(|(code, why)| refuse(code, why))
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

fn refuse(code: StatusCode, message: &str) -> Response {
    let reason = match code {
        StatusCode::FORBIDDEN => "Forbidden",
        StatusCode::UNSUPPORTED_MEDIA_TYPE => "UnsupportedMediaType",
        _ => "BadRequest",
    };
    let status = Status::failure(code.as_u16(), reason, message);
    let mut response = body::json(code, status.to_json());
    response.extensions_mut().insert(HangUp);
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
pub(super) struct TrackedBody {
    body: Body,
    /// None for the placeholder of a detached body, which has the guard.
    _end_guard: Option<EndGuard>,
}

impl http_body::Body for TrackedBody {
    type Data = Data;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Data>>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
