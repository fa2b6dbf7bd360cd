//! Requests to extension servers.
//!
//! River: pipeline → **proxy** → outgoing call. The extension server learns the user from headers that
//! only the holder of the front proxy's certificate may send.
//! Promise: no credential of the client is passed on, nor any header with which it could name a user. A
//! response that is not a watch ends within the time of a request.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Request, StatusCode, request};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, Sleep};

use crate::answer::body::{self, Body, Data, RequestBody, Response};
use crate::front::identity::{Identity, Peer};
use crate::kinds::remote::RemoteVersion;
use crate::outgoing::hop_by_hop;
use crate::request::call::Call;
use crate::server::Server;
use crate::verbs::websocket::BEARER;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Sends a request to the extension server that serves its path.
pub(crate) async fn forward(
    server: &Server,
    remote: &RemoteVersion,
    (identity, peer): (&Arc<Identity>, &Peer),
    mut parts: request::Parts,
    body: RequestBody,
) -> Response {
    let Ok(endpoint) = &remote.endpoint else { return unavailable("service unavailable") };
    if !remote.is_available {
        return unavailable("service unavailable");
    }
    if has_dot_segments(parts.uri.path()) {
        return body::text(StatusCode::BAD_REQUEST, "the path has segments of dots only\n");
    }
    let upgrade = parts.extensions.remove::<OnUpgrade>();
    let asked = parts.headers.get(header::UPGRADE).cloned().filter(|_| upgrade.is_some());
    let mut forwarded = Request::new(body);
    *forwarded.method_mut() = parts.method;
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    match path.parse() {
        Ok(uri) => *forwarded.uri_mut() = uri,
        Err(_) => return unavailable("the path cannot be forwarded"),
    }
    let headers = forwarded.headers_mut();
    *headers = clean(parts.headers);
    headers.extend(user_headers(identity));
    if let Ok(address) = HeaderValue::from_str(&peer.address.ip().to_canonical().to_string()) {
        headers.append(FORWARDED_FOR, address);
    }
    if let Some(asked) = asked {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, asked);
    }
    match server.caller().forward(server.cache(), endpoint, forwarded).await {
        Ok(response) => answered(response, upgrade, peer),
        Err(why) => unavailable(&format!("error trying to reach service: {why}")),
    }
}

/// Sends a request for another document of an extension server, such as its OpenAPI document.
pub(crate) async fn of_server(server: &Server, call: &Call, remote: &RemoteVersion) -> Response {
    let Ok(endpoint) = remote.endpoint.as_ref() else { return unavailable("service unavailable") };
    let empty = body::request(http_body_util::Empty::new());
    let mut request = Request::new(empty);
    if let Ok(uri) = call.path.parse() {
        *request.uri_mut() = uri;
    }
    let headers = request.headers_mut();
    for name in [header::ACCEPT, header::ACCEPT_ENCODING, header::IF_NONE_MATCH] {
        if let Some(value) = call.headers.get(&name) {
            headers.insert(name, value.clone());
        }
    }
    headers.extend(user_headers(&call.identity));
    match server.caller().forward(server.cache(), endpoint, request).await {
        Ok(response) => streamed(response),
        Err(why) => unavailable(&format!("error trying to reach service: {why}")),
    }
}

/// Whether a path has segments that a reader may remove, so that it names something else than what was
/// authorized.
fn has_dot_segments(path: &str) -> bool {
    let is_dots = |segment: &str| {
        let plain = segment.replace("%2e", ".").replace("%2E", ".");
        plain == "." || plain == ".."
    };
    path.split('/').any(is_dots)
}

/// The response of an extension server that did not answer in time.
pub(crate) fn too_late() -> Response {
    body::text(StatusCode::GATEWAY_TIMEOUT, "the extension server did not answer in time\n")
}

fn unavailable(why: &str) -> Response {
    body::text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"))
}

/// The headers without credentials and without names of users.
fn clean(mut headers: HeaderMap) -> HeaderMap {
    hop_by_hop(&mut headers);
    headers.remove(header::AUTHORIZATION);
    headers.remove(header::HOST);
    let names: Vec<HeaderName> = headers.keys().cloned().collect();
    for name in names {
        let is_user = ["x-remote-", "impersonate-"];
        if is_user.iter().any(|prefix| name.as_str().starts_with(prefix)) {
            headers.remove(name);
        }
    }
    if let Some(offered) = headers.remove(header::SEC_WEBSOCKET_PROTOCOL) {
        let offered = offered.to_str().unwrap_or_default().split(',').map(str::trim);
        let kept: Vec<&str> = offered.filter(|name| !name.starts_with(BEARER)).collect();
        if let (false, Ok(kept)) = (kept.is_empty(), HeaderValue::from_str(&kept.join(", "))) {
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, kept);
        }
    }
    headers
}

/// The headers that name a user to an extension server.
pub(crate) fn user_headers(identity: &Identity) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut add = |name: HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
            headers.append(name, value);
        }
    };
    add(HeaderName::from_static("x-remote-user"), &identity.user);
    if !identity.uid.is_empty() {
        add(HeaderName::from_static("x-remote-uid"), &identity.uid);
    }
    for group in &identity.groups {
        add(HeaderName::from_static("x-remote-group"), group);
    }
    let extra: &BTreeMap<String, Vec<String>> = &identity.extra;
    for (key, values) in extra {
        let name = format!("x-remote-extra-{}", escaped(key));
        if let Ok(name) = HeaderName::from_bytes(name.as_bytes()) {
            values.iter().for_each(|value| add(name.clone(), value));
        }
    }
    headers
}

/// A key as part of a header's name: other bytes are percent-encoded.
fn escaped(key: &str) -> String {
    let mut out = String::with_capacity(key.len());
    for byte in key.bytes() {
        match byte {
            b'%' => out.push_str("%25"),
            byte if byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte) => {
                out.push(char::from(byte));
            }
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// The response of the extension server, streamed. After an upgrade the two connections are joined.
fn answered(
    mut response: http::Response<hyper::body::Incoming>,
    upgrade: Option<OnUpgrade>,
    peer: &Peer,
) -> Response {
    let is_upgrade = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let protocol = response.headers().get(header::UPGRADE).cloned();
    if let (true, Some(upgrade)) = (is_upgrade, upgrade) {
        let theirs = hyper::upgrade::on(&mut response);
        peer.tasks.spawn(async move {
            if let (Ok(ours), Ok(theirs)) = tokio::join!(upgrade, theirs) {
                let (mut ours, mut theirs) = (TokioIo::new(ours), TokioIo::new(theirs));
                // An error is the end of one of them, and so of both.
                let _ = tokio::io::copy_bidirectional(&mut ours, &mut theirs).await;
            }
        });
    }
    let mut answer = streamed(response);
    if let (true, Some(protocol)) = (is_upgrade, protocol) {
        body::set(&mut answer, header::CONNECTION, "Upgrade");
        answer.headers_mut().insert(header::UPGRADE, protocol);
    }
    answer
}

/// The response with its body as it arrives.
fn streamed(response: http::Response<hyper::body::Incoming>) -> Response {
    let (mut parts, body) = response.into_parts();
    hop_by_hop(&mut parts.headers);
    let body = body.map_frame(|frame| frame.map_data(Data::from)).map_err(io::Error::other);
    let mut answer = Response::new(body.boxed_unsync());
    *answer.status_mut() = parts.status;
    *answer.headers_mut() = parts.headers;
    answer
}

/// The response, whose body fails if it is not complete at this time.
pub(crate) fn until(end: Instant, response: Response) -> Response {
    let end = Box::pin(tokio::time::sleep_until(end));
    response.map(|body| TimedBody { body, end }.boxed_unsync())
}

/// The body of an extension server that may stop in the middle.
struct TimedBody {
    body: Body,
    end: Pin<Box<Sleep>>,
}

impl http_body::Body for TimedBody {
    type Data = Data;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Data>>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if polled.is_pending() && self.end.as_mut().poll(context).is_ready() {
            let why = "the extension server did not complete its response in time";
            return Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::TimedOut, why))));
        }
        polled
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

    #[test]
    fn segments_of_dots_are_found_in_every_spelling() {
        for path in ["/apis/a/v1/b/../c", "/apis/a/v1/%2e%2E/c", "/apis/a/v1/.", "/./x"] {
            assert!(has_dot_segments(path), "{path}");
        }
        for path in ["/apis/a.b/v1/c", "/apis/a/v1/...", "/apis/a/v1/c..d", "/"] {
            assert!(!has_dot_segments(path), "{path}");
        }
    }

    #[test]
    fn the_user_is_named_and_nothing_of_the_client_is_passed_on() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer secret"),
            ("x-remote-user", "root"),
            ("x-remote-extra-a", "b"),
            ("impersonate-user", "root"),
            ("host", "here"),
            ("accept", "application/json"),
            (
                "sec-websocket-protocol",
                "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.x",
            ),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let left = clean(headers);
        assert_eq!(left.len(), 2);
        assert_eq!(left["sec-websocket-protocol"], "v4.channel.k8s.io");
        let mut identity = Identity::authenticated("alice", vec!["dev".to_owned()]);
        identity.extra.insert("acme.com/team %".to_owned(), vec!["x".to_owned()]);
        let named = user_headers(&identity);
        assert_eq!(named["x-remote-user"], "alice");
        let groups: Vec<_> = named.get_all("x-remote-group").iter().collect();
        assert_eq!(groups, ["dev", "system:authenticated"]);
        assert_eq!(named["x-remote-extra-acme.com%2fteam%20%25"], "x");
    }
}
