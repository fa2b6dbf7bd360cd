//! The HTTP server of a simulated port.
//!
//! Bytes that are not HTTP are echoed; a TLS handshake ends the connection.

use std::convert::Infallible;
use std::io::Cursor;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderValue};
use http::{HeaderName, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::PortForward;
use crate::containers::{HttpReply, HttpRequest};

/// The maximum size of the head of a request.
const HEAD_MAX: usize = 64 * 1024;
/// The longest method that is recognized.
const METHOD_MAX: usize = 12;
/// The first byte of a TLS handshake.
const TLS: u8 = 0x16;

/// What a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speech {
    Http,
    Tls,
    Other,
}

/// Serves a connection to its end.
pub(super) async fn serve(forward: Arc<PortForward>, mut io: DuplexStream, port: u16) {
    let mut first = BytesMut::new();
    let speech = loop {
        if let Some(speech) = speech(&first) {
            break speech;
        }
        if !matches!(io.read_buf(&mut first).await, Ok(1..)) {
            break Speech::Other;
        }
    };
    let (mut read, mut write) = tokio::io::split(io);
    match speech {
        Speech::Tls => {}
        Speech::Other => {
            if write.write_all(&first).await.is_ok() {
                // Either side may end the connection at any time.
                let _ = tokio::io::copy(&mut read, &mut write).await;
            }
        }
        Speech::Http => {
            let io = tokio::io::join(Cursor::new(first).chain(read), write);
            let service = service_fn(move |request: Request<Incoming>| {
                let forward = Arc::clone(&forward);
                async move { Ok::<_, Infallible>(reply(&forward, port, &request).await) }
            });
            let mut server = http1::Builder::new();
            server.max_buf_size(HEAD_MAX).half_close(true);
            // A malformed request ends the connection.
            let _ = server.serve_connection(TokioIo::new(io), service).await;
        }
    }
}

/// What the first bytes are; `None` if more are needed.
fn speech(first: &[u8]) -> Option<Speech> {
    if first.first() == Some(&TLS) {
        return Some(Speech::Tls);
    }
    let end = first.iter().position(|byte| !byte.is_ascii_uppercase() && *byte != b'-');
    match end {
        Some(end) if first[end] == b' ' && (3..=METHOD_MAX).contains(&end) => Some(Speech::Http),
        None if first.len() <= METHOD_MAX => None,
        _ => Some(Speech::Other),
    }
}

async fn reply(
    forward: &PortForward,
    port: u16,
    request: &Request<Incoming>,
) -> Response<Full<Bytes>> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let reply = match forward.pod().await {
        Ok(pod) => forward.runtime.http(&HttpRequest {
            pod: pod.as_slice(),
            port,
            method: request.method().as_str(),
            path,
        }),
        Err(why) => HttpReply { status: 502, headers: Vec::new(), body: format!("{why}\n") },
    };
    response(reply)
}

/// A reply as a response; headers that are not valid are left out.
fn response(reply: HttpReply) -> Response<Full<Bytes>> {
    let HttpReply { status, headers, body } = reply;
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, text);
    for (name, value) in headers {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_is_recognized_by_its_first_bytes() {
        for (first, expected) in [
            ("", None),
            ("GE", None),
            ("GET", None),
            ("GET ", Some(Speech::Http)),
            ("M-SEARCH * HTTP/1.1", Some(Speech::Http)),
            ("PRI * HTTP/2.0", Some(Speech::Http)),
            ("PING\r\n", Some(Speech::Other)),
            ("*1\r\n$4\r\nPING\r\n", Some(Speech::Other)),
            ("ABCDEFGHIJKLM", Some(Speech::Other)),
            ("\u{16}\u{3}\u{1}", Some(Speech::Tls)),
        ] {
            assert_eq!(speech(first.as_bytes()), expected, "{first:?}");
        }
    }
}
