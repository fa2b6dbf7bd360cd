//! SPDY/3.1, as far as kubectl and client-go use it: streams of a client over one connection.
//!
//! River: HTTP upgrade, or WebSocket messages → **spdy** → commands and forwarded ports.
//! Promise: what a client sends is bounded: a frame by [`frame::FRAME_MAX`], its decompressed headers
//! by [`header_block::HEADERS_MAX`]; the users of a session bound the number of streams. The
//! protocol has a flow control that neither client-go nor this server uses: a slow reader slows
//! down the connection.

mod frame;
mod header_block;
mod session;

pub(crate) use frame::SpdyFrame;
pub(crate) use session::{ResetReason, SpdySession};

use headwater_api::Status;
use http::StatusCode;
use http::header::{self, HeaderName, HeaderValue};
use hyper::upgrade::OnUpgrade;

use crate::answer::body::{self, Response};
use crate::answer::status;
use crate::request::call::Call;

const PROTOCOL: &str = "SPDY/3.1";
const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");

/// Whether the request asks for an upgrade to SPDY.
pub(crate) fn is_asked_for(call: &Call) -> bool {
    call.header(header::UPGRADE).eq_ignore_ascii_case(PROTOCOL)
}

/// Responds with 101. `served` are the protocols within SPDY, the preferred one first; the client
/// offers its own in a header of each.
pub(crate) fn handshake(
    call: &Call,
    upgrade: Option<OnUpgrade>,
    served: &[&'static str],
) -> Result<(Response, OnUpgrade), Status> {
    let values = call.headers.get_all(&STREAM_PROTOCOL).iter();
    let offered: Vec<&str> = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .collect();
    let Some(chosen) = served.iter().find(|name| offered.contains(name)) else {
        let why = format!(
            "unable to upgrade: unable to negotiate protocol: client supports {offered:?}, server \
             accepts {served:?}"
        );
        return Err(Status::failure(403, "Forbidden", why));
    };
    let Some(upgrade) = upgrade else {
        return Err(status::bad_request("this connection cannot be upgraded"));
    };
    let mut response = Response::new(body::full(bytes::Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    body::set(&mut response, header::CONNECTION, "Upgrade");
    body::set(&mut response, header::UPGRADE, PROTOCOL);
    response.headers_mut().insert(STREAM_PROTOCOL, HeaderValue::from_static(chosen));
    Ok((response, upgrade))
}
