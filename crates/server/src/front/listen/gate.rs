//! The gate between a connection and the handler.
//!
//! It rejects malformed requests and, without TLS, requests of web pages; it detaches long-running
//! bodies. Promise: a handler receives only well-formed requests; a request counts as in flight
//! until its response body is dropped.

use std::convert::Infallible;
use std::io;
use std::net::Ipv6Addr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use headwater_api::Status;
use http::header::{CONNECTION, EXPECT, HOST, HeaderMap, HeaderValue, RETRY_AFTER};
use http::uri::Authority;
use http::{Method, Request, StatusCode, Version};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;

use super::activity::Activity;
use super::detached::{DetachedBody, HeadState, LongRunning, Placeholder};
use super::limits::ConnectionPermit;
use super::{HEADERS_MAX, ListenerState, same_origin};
use crate::answer::body::{self, Body, Data, Response};
use crate::front::identity::{ClientCertificate, Peer, Transport};
use crate::front::tls::CertifiedConnection;
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
    permit: Arc<ConnectionPermit>,
    _registered: Option<CertifiedConnection>,
    detached: Mutex<Option<DetachedBody<TrackedBody>>>,
}

impl Gate {
    pub(super) fn new(
        shared: Arc<ListenerState>,
        peer: Peer,
        permit: Arc<ConnectionPermit>,
        registered: Option<CertifiedConnection>,
    ) -> Arc<Gate> {
        let activity = Arc::new(Activity::new(&shared.options, &shared.closing));
        let (head, detached) = Default::default();
        if matches!(
            peer.transport,
            Transport::Loopback | Transport::Tls(ClientCertificate::Verified(_))
        ) {
            peer.mark_identified();
        }
        let (peer, _registered) = (Arc::new(peer), registered);
        Arc::new(Gate { shared, activity, head, peer, permit, _registered, detached })
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
        let mut response = match self.malformed(&request) {
            Some(refusal) => refusal,
            None => (self.shared.handler)(self.peer.clone(), request.map(body::request)).await,
        };
        if self.peer.is_identified() {
            self.activity.identified();
            self.permit.identified();
        } else if self.activity.in_flight() > self.shared.options.anonymous.responses_max {
            response = too_many();
        }
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
        if headers.get(HOST).is_some_and(|host| !is_host(host)) {
            return Some(refuse(StatusCode::BAD_REQUEST, "the Host header is not a host"));
        }
        if !matches!(self.peer.transport, Transport::Loopback) {
            return None;
        }
        let checked =
            same_origin::check(self.shared.address, request.method(), request.uri(), headers);
        checked.err().map(|(code, why)| refuse(code, why))
    }
}

/// Rejects a request of a client that is not identified and does not take earlier responses. Without
/// a body, so that it cannot be left in the server too.
fn too_many() -> Response {
    let mut response = Response::new(Body::default());
    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    body::set(&mut response, RETRY_AFTER, "1");
    response
}

fn asks_to_close(headers: &HeaderMap) -> bool {
    let words = headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    words.into_iter().any(|word| word.trim_ascii().eq_ignore_ascii_case(b"close"))
}

/// Whether a value is a name or an address, with or without a port. An empty one is allowed where the
/// target has no authority (RFC 9112, section 3.2).
fn is_host(value: &HeaderValue) -> bool {
    if value.is_empty() {
        return true;
    }
    Authority::try_from(value.as_bytes()).is_ok_and(|authority| {
        let (host, text) = (authority.host(), authority.as_str());
        let port = text.strip_prefix(host).unwrap_or(text);
        let is_name = |host: &str| {
            host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte))
        };
        let is_address = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .is_some_and(|host| host.parse::<Ipv6Addr>().is_ok());
        let is_port = port.strip_prefix(':').map_or(port, |port| port);
        !host.is_empty()
            && (is_name(host) || is_address)
            && (is_port.is_empty() || is_port.parse::<u16>().is_ok())
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    /// D6
    #[test]
    fn a_host_is_a_name_or_an_address_with_or_without_a_port() {
        for (host, expected) in [
            ("", true),
            ("localhost", true),
            ("api.example.org:6443", true),
            ("my_service.ns", true),
            ("10.0.0.1:443", true),
            ("[::1]:443", true),
            ("[::1]", true),
            ("localhost:", true),
            ("user@localhost", false),
            ("localhost/path", false),
            ("a b", false),
            ("a,b", false),
            ("localhost:99999", false),
            ("localhost:port", false),
            ("localhost:1:2", false),
            ("[::1", false),
            ("[x]", false),
            ("::1", false),
            (":443", false),
            ("a\\b", false),
            ("<script>", false),
            ("%61", false),
            ("\u{e9}", false),
        ] {
            let value = HeaderValue::from_bytes(host.as_bytes()).unwrap();
            assert_eq!(is_host(&value), expected, "{host:?}");
        }
    }
}
