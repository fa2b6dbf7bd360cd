//! Watches over WebSocket: one message per event (S4.40, S4.41).
//!
//! River: watch → **websocket** → HTTP upgrade. Messages of the client are read to detect a
//! close, and otherwise ignored; frames above a small limit end the connection (B233).

use std::net::IpAddr;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use headwater_api::Status;
use http::StatusCode;
use http::header::{self, HeaderValue};
use http::uri::Authority;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes};

use crate::answer::body::{self, Response};
use crate::answer::status;
use crate::front::identity::Peer;
use crate::request::call::Call;
use crate::verbs::watch::Streaming;

/// How long a client may take to reply to the close of a connection.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// A connection after the handshake.
pub(crate) type UpgradedSocket = WebSocketStream<TokioIo<Upgraded>>;

/// The maximum message size of a client: it has nothing to send.
const MESSAGE_MAX: usize = 64 * 1024;

/// The prefix of subprotocols that carry a bearer token.
pub(super) const BEARER: &str = "base64url.bearer.authorization.k8s.io.";

/// Whether the request asks for a WebSocket upgrade.
pub(crate) fn is_asked_for(call: &Call) -> bool {
    let has = |name, word: &str| {
        call.header(name).split(',').any(|part| part.trim().eq_ignore_ascii_case(word))
    };
    has(header::CONNECTION, "upgrade") && has(header::UPGRADE, "websocket")
}

/// Responds with 101 and sends the stream after the upgrade.
pub(crate) fn upgrade(
    call: &Call,
    upgrade: Option<OnUpgrade>,
    peer: &Peer,
    stream: Streaming,
) -> Result<Response, Status> {
    if !is_from_here(call) {
        return Ok(body::answer(
            StatusCode::FORBIDDEN,
            "text/plain; charset=utf-8",
            body::full(""),
        ));
    }
    let Ok(protocol) = subprotocol(call) else {
        // As the reference: several offered subprotocols select none.
        let mut response = Response::new(body::full(Bytes::new()));
        *response.status_mut() = StatusCode::BAD_REQUEST;
        return Ok(response);
    };
    let (response, upgrade) = accepted(call, upgrade, protocol)?;
    let trail = call.trail.clone();
    peer.tasks.spawn(async move {
        run(upgrade, stream).await;
        // The audit trail records the end of the watch, not of the upgrade.
        drop(trail);
    });
    Ok(response)
}

/// The first of these protocols that the client offers.
pub(crate) fn offered(call: &Call, served: &[&'static str]) -> Result<&'static str, Status> {
    if !is_asked_for(call) {
        return Err(status::bad_request("Upgrade request required"));
    }
    let offered = call.header(header::SEC_WEBSOCKET_PROTOCOL);
    let offers = |name: &&&str| offered.split(',').any(|word| word.trim() == **name);
    served.iter().find(offers).copied().ok_or_else(|| {
        let why = format!("none of the subprotocols is served; offer {}", served.join(" or "));
        status::bad_request(why)
    })
}

/// The response to a handshake of a client that is not a browser, which sends no `Origin`, and the
/// connection after it.
pub(crate) fn handshake(
    call: &Call,
    upgrade: Option<OnUpgrade>,
    protocol: Option<HeaderValue>,
) -> Result<(Response, OnUpgrade), Status> {
    if !call.header(header::ORIGIN).is_empty() && !is_from_here(call) {
        let why = "a web page of another origin must not connect";
        return Err(Status::failure(403, "Forbidden", why));
    }
    accepted(call, upgrade, protocol)
}

fn accepted(
    call: &Call,
    upgrade: Option<OnUpgrade>,
    protocol: Option<HeaderValue>,
) -> Result<(Response, OnUpgrade), Status> {
    let key = call.header(header::SEC_WEBSOCKET_KEY);
    let is_key = STANDARD.decode(key).is_ok_and(|bytes| bytes.len() == 16);
    if call.header(header::SEC_WEBSOCKET_VERSION) != "13" || !is_key {
        return Err(status::bad_request(
            "not a WebSocket handshake: version 13 and a key are needed",
        ));
    }
    let Some(upgrade) = upgrade else {
        return Err(status::bad_request("this connection cannot be upgraded"));
    };
    let mut response = Response::new(body::full(Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    body::set(&mut response, header::CONNECTION, "Upgrade");
    body::set(&mut response, header::UPGRADE, "websocket");
    let accept = HeaderValue::from_str(&derive_accept_key(key.as_bytes()));
    let accept = accept.map_err(|_| status::bad_request("the WebSocket key is not text"))?;
    response.headers_mut().insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    if let Some(protocol) = protocol {
        response.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
    }
    Ok((response, upgrade))
}

/// Whether the `Origin` is this server: any web page can open a WebSocket, and on a plain loopback
/// port every client is the administrator (B231).
fn is_from_here(call: &Call) -> bool {
    let host = |authority: &str| -> Option<String> {
        Some(authority.parse::<Authority>().ok()?.host().to_ascii_lowercase())
    };
    let origin = call.header(header::ORIGIN).split_once("://");
    let Some(origin) = origin.and_then(|(_, authority)| host(authority)) else { return false };
    let address = origin.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    origin == "localhost"
        || address.is_ok_and(|address| address.is_loopback())
        || host(call.header(header::HOST)).is_some_and(|host| host == origin)
}

/// The one offered subprotocol, if any; it has no effect on the frames.
fn subprotocol(call: &Call) -> Result<Option<HeaderValue>, Several> {
    let offered: Vec<&str> = call
        .header(header::SEC_WEBSOCKET_PROTOCOL)
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty() && !name.starts_with(BEARER))
        .collect();
    match offered.as_slice() {
        [] => Ok(None),
        [one] => Ok(HeaderValue::from_str(one).ok()),
        _ => Err(Several),
    }
}

/// More than one subprotocol was offered.
struct Several;

async fn run(upgrade: OnUpgrade, mut stream: Streaming) {
    let Ok(upgraded) = upgrade.await else { return };
    let config = WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_MAX))
        .max_frame_size(Some(MESSAGE_MAX));
    let io = TokioIo::new(upgraded);
    let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
    let (mut to_client, mut from_client) = socket.split();
    loop {
        let chunk = tokio::select! {
            biased;
            message = from_client.next() => match message {
                Some(Ok(Message::Close(_))) | None => {
                    // Reading a close queues its reply, which must still be sent.
                    let _ = to_client.flush().await;
                    return;
                }
                Some(Err(error)) => {
                    if let Some(close) = complaint(&error) {
                        let _ = to_client.send(Message::Close(Some(close))).await;
                    }
                    return;
                }
                Some(Ok(_)) => continue,
            },
            chunk = stream.next() => chunk.map(Bytes::from),
        };
        let Some(chunk) = chunk else { break };
        for message in messages(&chunk, stream.is_binary()) {
            if to_client.feed(message).await.is_err() {
                return;
            }
        }
        if to_client.flush().await.is_err() {
            return;
        }
    }
    if let Ok(mut socket) = to_client.reunite(from_client) {
        close(&mut socket).await;
    }
}

/// Closes a connection. The client replies to the close; until then the connection stays open, but no
/// longer than [`CLOSE_MAX`].
pub(crate) async fn close(socket: &mut UpgradedSocket) {
    let frame = CloseFrame { code: CloseCode::Normal, reason: Utf8Bytes::default() };
    let closing = async {
        if socket.send(Message::Close(Some(frame))).await.is_ok() {
            while let Some(Ok(_)) = socket.next().await {}
        }
    };
    let _ = tokio::time::timeout(CLOSE_MAX, closing).await;
}

/// A message for each frame of a chunk. Binary frames are sent without their lengths.
fn messages(chunk: &Bytes, is_binary: bool) -> Vec<Message> {
    if !is_binary {
        let lines = chunk.split_inclusive(|byte| *byte == b'\n');
        let texts = lines.filter_map(|line| Utf8Bytes::try_from(chunk.slice_ref(line)).ok());
        return texts.map(Message::Text).collect();
    }
    let (mut messages, mut rest) = (Vec::new(), &chunk[..]);
    while let Some((length, after)) = rest.split_first_chunk() {
        let length = u32::from_be_bytes(*length) as usize;
        let Some((frame, after)) = after.split_at_checked(length) else { break };
        messages.push(Message::Binary(chunk.slice_ref(frame)));
        rest = after;
    }
    messages
}

/// The close frame for a protocol error (B232, B233); `None` if the connection is gone.
fn complaint(error: &Error) -> Option<CloseFrame> {
    let code = match error {
        Error::Capacity(_) => CloseCode::Size,
        Error::Protocol(_) | Error::AttackAttempt => CloseCode::Protocol,
        Error::Utf8(_) => CloseCode::Invalid,
        _ => return None,
    };
    Some(CloseFrame { code, reason: Utf8Bytes::default() })
}
