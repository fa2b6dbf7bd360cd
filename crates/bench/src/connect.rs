//! A minimal HTTP/1.1 client: the load of the bench, and the commands `backup` and `compact`.

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use crate::kubeconfig::Endpoint;

/// Maximum bytes read of an error response.
const MESSAGE_MAX: usize = 64 * 1024;

/// One connection to a server.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: HeaderValue,
    authorization: Option<HeaderValue>,
    /// Drives the connection; aborted when it is dropped.
    _run: JoinSet<()>,
}

impl Connection {
    /// Connects, over TLS if the endpoint has it.
    pub async fn open(endpoint: &Endpoint) -> Result<Connection> {
        let authority = &endpoint.authority;
        let socket = TcpStream::connect(authority).await.with_context(|| {
            format!("cannot connect to {authority}; is the server running? (\"headwater serve\")")
        })?;
        socket.set_nodelay(true)?;
        let mut run = JoinSet::new();
        let sender = match &endpoint.tls {
            None => start(socket, &mut run).await?,
            Some((config, name)) => {
                let connector = TlsConnector::from(config.clone());
                let stream = connector.connect(name.clone(), socket).await;
                start(stream.context("the TLS handshake failed")?, &mut run).await?
            }
        };
        let authorization = match &endpoint.token {
            Some(token) => Some(HeaderValue::from_str(&format!("Bearer {token}"))?),
            None => None,
        };
        Ok(Connection { sender, host: HeaderValue::from_str(authority)?, authorization, _run: run })
    }

    /// Sends a request and waits for the head of the response.
    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>> {
        let mut request = request;
        request.headers_mut().insert(HOST, self.host.clone());
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(AUTHORIZATION, authorization.clone());
        }
        self.sender.ready().await.context("the server closed the connection")?;
        self.sender.send_request(request).await.context("no response from the server")
    }
}

async fn start<S>(stream: S, run: &mut JoinSet<()>) -> Result<SendRequest<Full<Bytes>>>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    run.spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection ended");
        }
    });
    Ok(sender)
}

/// Returns a successful response; for any other, fails with the server's message.
pub async fn successful(response: Response<Incoming>) -> Result<Response<Incoming>> {
    if response.status().is_success() {
        return Ok(response);
    }
    let status = response.status();
    bail!("the server returned {}: {}", status.as_u16(), message(status, response).await)
}

async fn message(status: StatusCode, response: Response<Incoming>) -> String {
    let body = Limited::new(response.into_body(), MESSAGE_MAX).collect().await;
    let bytes = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    match serde_json::from_slice::<headwater_api::Status>(&bytes) {
        Ok(found) if !found.message.is_empty() => found.message,
        _ => status.canonical_reason().unwrap_or("unknown error").to_owned(),
    }
}
