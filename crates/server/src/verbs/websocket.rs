//! Watches over WebSocket: one message per event (S4.40, S4.41).
//!
//! River: watch → **websocket** → HTTP upgrade. What the client sends is read, so that a close is
//! noticed, and otherwise ignored; frames above a small limit end the connection (B233).

use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use headwater_api::Status;
use http::StatusCode;
use http::header::{self, HeaderValue};
use http::uri::Authority;
use hyper::upgrade::OnUpgrade;
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

/// The most a client may send in one message: there is nothing it needs to say.
const MESSAGE_MAX: usize = 64 * 1024;

/// Subprotocols that carry a bearer token and are not protocols.
const BEARER: &str = "base64url.bearer.authorization.k8s.io.";

/// Whether the request wants to become a WebSocket.
pub(crate) fn is_asked_for(call: &Call) -> bool {
    let has = |name, word: &str| {
        call.header(name).split(',').any(|part| part.trim().eq_ignore_ascii_case(word))
    };
    has(header::CONNECTION, "upgrade") && has(header::UPGRADE, "websocket")
}

/// Answers 101 and sends the stream once the connection has switched.
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
    let key = call.header(header::SEC_WEBSOCKET_KEY);
    let is_key = STANDARD.decode(key).is_ok_and(|bytes| bytes.len() == 16);
    if call.header(header::SEC_WEBSOCKET_VERSION) != "13" || !is_key {
        return Err(status::bad_request(
            "not a WebSocket handshake: version 13 and a key are needed",
        ));
    }
    let Ok(protocol) = subprotocol(call) else {
        // Without a word, as the reference: whoever offers several chooses none.
        let mut response = Response::new(body::full(Bytes::new()));
        *response.status_mut() = StatusCode::BAD_REQUEST;
        return Ok(response);
    };
    let Some(upgrade) = upgrade else {
        return Err(status::bad_request("this connection cannot be upgraded"));
    };
    peer.tasks.spawn(run(upgrade, stream));
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
    Ok(response)
}

/// Whether the page that opens the connection, if a page does, was served from where the server
/// is: anybody's page can open a WebSocket, and on a plain loopback port everybody is the
/// administrator (B231).
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
                    // The answer to a close is made while it is read, and waits to be sent.
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
        for line in chunk.split_inclusive(|byte| *byte == b'\n') {
            let Ok(text) = Utf8Bytes::try_from(chunk.slice_ref(line)) else { return };
            if to_client.feed(Message::Text(text)).await.is_err() {
                return;
            }
        }
        if to_client.flush().await.is_err() {
            return;
        }
    }
    let close = CloseFrame { code: CloseCode::Normal, reason: Utf8Bytes::default() };
    if to_client.send(Message::Close(Some(close))).await.is_ok() {
        // The client answers the close; until then the connection is not ours to drop.
        while let Some(Ok(_)) = from_client.next().await {}
    }
}

/// How a client is told what it did wrong (B232, B233); `None` if it cannot be told any more.
fn complaint(error: &Error) -> Option<CloseFrame> {
    let code = match error {
        Error::Capacity(_) => CloseCode::Size,
        Error::Protocol(_) | Error::AttackAttempt => CloseCode::Protocol,
        Error::Utf8(_) => CloseCode::Invalid,
        _ => return None,
    };
    Some(CloseFrame { code, reason: Utf8Bytes::default() })
}
