//! The replacement for etcd: answers health checks until a signal.

use std::convert::Infallible;
use std::net::SocketAddr;

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

/// Maximum connections; a health check needs one.
const CONNECTIONS_MAX: usize = 64;

/// Listens on the first of these URLs.
pub(super) async fn run(urls: &str) -> Result<()> {
    let address = address(urls)?;
    let listener =
        TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => {
                let Ok((socket, _)) = accepted else { continue };
                connections.spawn(async move {
                    let http = hyper::server::conn::http1::Builder::new();
                    // A client that disconnects early is not an error.
                    let _ = http.serve_connection(TokioIo::new(socket), service_fn(answer)).await;
                });
            }
        }
    }
}

fn address(urls: &str) -> Result<SocketAddr> {
    let url = match urls.split(',').next().unwrap_or_default() {
        "" => "http://127.0.0.1:2379",
        url => url,
    };
    let host = url.split_once("://").map_or(url, |(_, rest)| rest).trim_end_matches('/');
    let host = host.replace("localhost", "127.0.0.1");
    host.parse().with_context(|| format!("invalid --listen-client-urls={urls}"))
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (code, text) = match request.uri().path() {
        "/health" | "/livez" | "/readyz" => (StatusCode::OK, r#"{"health":"true","reason":""}"#),
        "/version" => (StatusCode::OK, r#"{"etcdserver":"3.6.0","etcdcluster":"3.6.0"}"#),
        _ => (StatusCode::NOT_FOUND, "404 page not found\n"),
    };
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = code;
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_that_of_the_first_url() {
        let check = |urls: &str, expected: &str| {
            assert_eq!(address(urls).unwrap().to_string(), expected);
        };
        check("http://127.0.0.1:4001", "127.0.0.1:4001");
        check("http://localhost:0/,http://10.0.0.1:1", "127.0.0.1:0");
        check("", "127.0.0.1:2379");
        address("http://nowhere").unwrap_err();
    }
}
