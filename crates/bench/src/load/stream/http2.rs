//! A watch over HTTP/2.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::Request;
use http::header::{ACCEPT, AUTHORIZATION};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use super::{BodyFormat, WatchTarget, take_event};
use crate::kubeconfig::Endpoint;

/// Flow-control window: the same as Go's clients.
const WINDOW: u32 = 4 << 20;

/// An open watch.
pub(crate) struct Http2Stream {
    body: Incoming,
    /// Received bytes that are not consumed.
    there: Bytes,
    line: Vec<u8>,
    format: BodyFormat,
    /// Drives the connection; aborted when it is dropped.
    _run: JoinSet<()>,
}

impl Http2Stream {
    pub(super) async fn open(endpoint: &Endpoint, target: &WatchTarget) -> Result<Http2Stream> {
        let Some((config, name)) = &endpoint.tls else {
            bail!("HTTP/2 needs an https server");
        };
        let socket = TcpStream::connect(&endpoint.authority).await?;
        socket.set_nodelay(true)?;
        let mut config = (**config).clone();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let connector = TlsConnector::from(Arc::new(config));
        let socket = connector.connect(name.clone(), socket).await?;
        if socket.get_ref().1.alpn_protocol() != Some(b"h2") {
            bail!("the server does not support HTTP/2");
        }
        let (mut sender, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .handshake(TokioIo::new(socket))
            .await?;
        let mut run = JoinSet::new();
        run.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection ended");
            }
        });
        let response = sender.send_request(request(endpoint, target)?).await?;
        if !response.status().is_success() {
            bail!("the server refused a watch: {}", response.status());
        }
        let (there, line) = (Bytes::new(), Vec::new());
        let (body, format) = (response.into_body(), target.format());
        Ok(Http2Stream { body, there, line, format, _run: run })
    }

    pub(super) async fn next(&mut self) -> Result<&[u8]> {
        self.line.clear();
        loop {
            let (taken, is_complete) = take_event(self.format, &self.there, &mut self.line);
            let _ = self.there.split_to(taken);
            if is_complete {
                return Ok(&self.line);
            }
            let frame = self.body.frame().await.context("the server ended the watch")??;
            self.there = frame.into_data().unwrap_or_default();
        }
    }
}

fn request(endpoint: &Endpoint, target: &WatchTarget) -> Result<Request<Empty<Bytes>>> {
    let uri = format!("https://{}{}", endpoint.authority, target.path);
    let mut request = Request::get(uri).header(ACCEPT, target.accept);
    if let Some(token) = &endpoint.token {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    Ok(request.body(Empty::new())?)
}
