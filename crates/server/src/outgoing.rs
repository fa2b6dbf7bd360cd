//! Outgoing calls to webhooks, over HTTPS and within limits.
//!
//! River: admission, conversion → **outgoing** → webhook.
//! Promise: a call has a deadline, a response is at most [`ANSWER_MAX`] bytes, redirects are not
//! followed, a request that may have been received is not sent again, and the caller's credentials are
//! not passed on. Addresses are checked after a name is
//! resolved: metadata services are never called, loopback only if that is allowed.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use headwater_cache::Cache;
use headwater_json::Value;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub(crate) mod check;
mod dial;
mod resolve;
mod bundle;
mod any_certificate;
mod forward;
mod forwarding;
pub(crate) mod kubeconfig;
mod trust;
pub(crate) mod upstream;

pub use dial::Loopback;
use dial::dial;
pub(crate) use forward::hop_by_hop;
pub use forwarding::Forwarding;
use forwarding::Unrouted;
use resolve::{NoRoute, ServiceRoute, resolve};
use trust::Trust;

use crate::lock::lock;

/// The maximum size of a response.
const ANSWER_MAX: usize = 3 * 1024 * 1024;

/// The maximum number of idle connections per endpoint; more are closed.
const IDLE_MAX: usize = 4;

/// The maximum number of endpoints with idle connections; beyond it, all are closed.
const PLACES_MAX: usize = 256;

/// How much of an invalid response an error shows.
const SHOWN_MAX: usize = 256;

/// The endpoint of a webhook, from its configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WebhookEndpoint {
    target: Target,
    /// The path, with a leading slash.
    path: String,
    /// The CA of the endpoint's certificate, as PEM.
    authority: Vec<u8>,
    /// What the server shows to the endpoint.
    credential: Option<ClientCredential>,
    /// Whether any certificate of the endpoint is accepted.
    is_unverified: bool,
}

/// The credential of the server at an endpoint.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum ClientCredential {
    /// A bearer token.
    Token(Arc<str>),
    /// A client certificate with its key, as PEM.
    Certificate { chain: Arc<str>, key: Arc<str> },
}

impl fmt::Debug for ClientCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientCredential(..)")
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Target {
    Host { host: String, port: u16 },
    Service { namespace: String, name: String, port: u16 },
}

impl WebhookEndpoint {
    /// Parses a `clientConfig`.
    pub(crate) fn read(config: &Value) -> Result<WebhookEndpoint, String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let authority = authority(config)?;
        let service = &config["service"];
        if service.is_object() {
            let port = service["port"].as_u64().and_then(|port| u16::try_from(port).ok());
            return Ok(WebhookEndpoint {
                target: Target::Service {
                    namespace: text(&service["namespace"]),
                    name: text(&service["name"]),
                    port: port.unwrap_or(443),
                },
                path: clean(&text(&service["path"])),
                authority,
                credential: None,
                is_unverified: false,
            });
        }
        WebhookEndpoint::at(&text(&config["url"]), authority)
    }

    /// The endpoint of a URL, with the CA of its certificate as PEM.
    pub(crate) fn at(url: &str, authority: Vec<u8>) -> Result<WebhookEndpoint, String> {
        let uri: Uri = url.parse().map_err(|error| format!("{url:?}: {error}"))?;
        let host = uri.host().ok_or_else(|| format!("{url:?} has no host"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = uri.port_u16().unwrap_or(443);
        let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let path = clean(uri.path()) + &query;
        let target = Target::Host { host, port };
        Ok(WebhookEndpoint { target, path, authority, credential: None, is_unverified: false })
    }

    /// The same endpoint, called with a credential.
    pub(crate) fn with_credential(mut self, credential: ClientCredential) -> WebhookEndpoint {
        self.credential = Some(credential);
        self
    }

    /// The same endpoint, whose certificate is not verified.
    pub(crate) fn unverified(mut self) -> WebhookEndpoint {
        self.is_unverified = true;
        self
    }

    /// The name in the endpoint's certificate.
    fn server_name(&self) -> String {
        match &self.target {
            Target::Host { host, .. } => host.clone(),
            Target::Service { namespace, name, .. } => format!("{name}.{namespace}.svc"),
        }
    }

    fn port(&self) -> u16 {
        match &self.target {
            Target::Host { port, .. } | Target::Service { port, .. } => *port,
        }
    }

    fn authority_name(&self) -> String {
        let name = self.server_name();
        let name = if name.contains(':') { format!("[{name}]") } else { name };
        match self.port() {
            443 if matches!(self.target, Target::Host { .. }) => name,
            port => format!("{name}:{port}"),
        }
    }

    fn path_with(&self, timeout: Duration) -> String {
        let joint = if self.path.contains('?') { '&' } else { '?' };
        format!("{}{joint}timeout={}s", self.path, timeout.as_secs())
    }
}

/// The certificates of a `clientConfig`, as PEM; empty if it has none.
pub(crate) fn authority(config: &Value) -> Result<Vec<u8>, String> {
    let text = config["caBundle"].as_str().unwrap_or_default();
    let bundle = STANDARD.decode(text).map_err(|error| error.to_string())?;
    if bundle.trim_ascii().is_empty() {
        return Ok(Vec::new());
    }
    let mut certificates = CertificateDer::pem_slice_iter(&bundle).peekable();
    if certificates.peek().is_none() {
        return Err("unable to parse bytes as PEM block".to_owned());
    }
    match certificates.find_map(Result::err) {
        Some(error) => Err(error.to_string()),
        None => Ok(bundle),
    }
}

/// Removes empty path segments, as Kubernetes does: controller-runtime's envtest makes URLs with two
/// slashes, which webhooks written in Go redirect.
fn clean(path: &str) -> String {
    let mut steps = Vec::new();
    for step in path.split('/') {
        match step {
            "" | "." => {}
            ".." => drop(steps.pop()),
            step => steps.push(step),
        }
    }
    format!("/{}", steps.join("/"))
}

/// Calls endpoints.
pub(crate) struct Caller {
    loopback: Loopback,
    forwarding: Forwarding,
    /// The Services without a route, until somebody reports them.
    unrouted: Unrouted,
    trust: Trust,
    idle: Mutex<HashMap<WebhookEndpoint, Vec<SendRequest<Full<Bytes>>>>>,
    /// The tasks that drive the connections.
    connections: Mutex<JoinSet<()>>,
}

impl Caller {
    /// A client without connections.
    pub(crate) fn new(loopback: Loopback, forwarding: Forwarding) -> Caller {
        Caller {
            loopback,
            forwarding,
            unrouted: Unrouted::default(),
            trust: Trust::default(),
            idle: Mutex::default(),
            connections: Mutex::default(),
        }
    }

    /// Posts JSON and returns the JSON response. Errors have the texts of Go's client.
    pub(crate) async fn post(
        &self,
        cache: &Cache,
        place: &WebhookEndpoint,
        body: Vec<u8>,
        timeout: Duration,
    ) -> Result<Value, String> {
        let path = place.path_with(timeout);
        let url = format!("https://{}{path}", place.authority_name());
        let message = Message { path: &path, body: Some(Bytes::from(body)) };
        match self.within(timeout, cache, place, message).await {
            Ok(bytes) => {
                headwater_json::parse(&bytes).map(|parsed| parsed.value).map_err(|error| {
                    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_MAX)]);
                    format!("the answer is not JSON: {error}: {text:?}")
                })
            }
            Err(Failure::Post(why)) => Err(format!("Post \"{url}\": {why}")),
            Err(Failure::Answer(why)) => Err(why),
        }
    }

    /// Posts JSON that contains a secret. Errors contain no part of the response: it may repeat the
    /// secret.
    pub(crate) async fn post_secret(
        &self,
        cache: &Cache,
        place: &WebhookEndpoint,
        body: Vec<u8>,
        timeout: Duration,
    ) -> Result<Value, String> {
        let path = place.path_with(timeout);
        let message = Message { path: &path, body: Some(Bytes::from(body)) };
        let answered = self.within(timeout, cache, place, message).await;
        let bytes = answered.map_err(Failure::without_answer)?;
        let parsed = headwater_json::parse(&bytes).map_err(|_| "the answer is not JSON")?;
        Ok(parsed.value)
    }

    /// Posts JSON whose answer does not matter.
    pub(crate) async fn send(
        &self,
        cache: &Cache,
        place: &WebhookEndpoint,
        body: Bytes,
        timeout: Duration,
    ) -> Result<(), String> {
        let path = place.path_with(timeout);
        let message = Message { path: &path, body: Some(body) };
        let answered = self.within(timeout, cache, place, message).await;
        answered.map(drop).map_err(Failure::without_answer)
    }

    /// The JSON document at an endpoint.
    pub(crate) async fn get(
        &self,
        cache: &Cache,
        place: &WebhookEndpoint,
        timeout: Duration,
    ) -> Result<Value, String> {
        let message = Message { path: &place.path, body: None };
        let answered = self.within(timeout, cache, place, message).await;
        let url = || format!("https://{}{}", place.authority_name(), place.path);
        let bytes =
            answered.map_err(|why| format!("Get \"{}\": {}", url(), why.without_answer()))?;
        let parsed = headwater_json::parse(&bytes);
        Ok(parsed.map_err(|error| format!("Get \"{}\": not JSON: {error}", url()))?.value)
    }

    async fn within(
        &self,
        timeout: Duration,
        cache: &Cache,
        place: &WebhookEndpoint,
        message: Message<'_>,
    ) -> Result<Bytes, Failure> {
        match tokio::time::timeout(timeout, self.call(cache, place, message)).await {
            Ok(answered) => answered,
            Err(_) => Err(Failure::Post("context deadline exceeded".to_owned())),
        }
    }

    async fn call(
        &self,
        cache: &Cache,
        place: &WebhookEndpoint,
        message: Message<'_>,
    ) -> Result<Bytes, Failure> {
        while let Some(mut sender) = self.take(place) {
            match send(&mut sender, place, &message).await {
                Ok(answer) => return self.finish(place, sender, answer).await,
                // The endpoint closed the idle connection before the request was sent.
                Err(Unanswered::NotSent(_)) => {}
                // It may have received the request, and must not get it twice.
                Err(Unanswered::Sent(why)) => return Err(Failure::Post(why)),
            }
        }
        let (mut sender, is_forwarded) = self.connect(cache, place).await?;
        match send(&mut sender, place, &message).await {
            // The annotation may name another process next time.
            Ok(answer) if is_forwarded => {
                let (code, bytes) = collect(answer).await?;
                checked(code, bytes)
            }
            Ok(answer) => self.finish(place, sender, answer).await,
            Err(Unanswered::NotSent(why) | Unanswered::Sent(why)) => Err(Failure::Post(why)),
        }
    }

    async fn finish(
        &self,
        place: &WebhookEndpoint,
        sender: SendRequest<Full<Bytes>>,
        answer: http::Response<hyper::body::Incoming>,
    ) -> Result<Bytes, Failure> {
        let (code, bytes) = collect(answer).await?;
        self.keep(place, sender);
        checked(code, bytes)
    }

    fn take(&self, place: &WebhookEndpoint) -> Option<SendRequest<Full<Bytes>>> {
        let mut idle = lock(&self.idle);
        let senders = idle.get_mut(place)?;
        while let Some(sender) = senders.pop() {
            if sender.is_ready() && !sender.is_closed() {
                return Some(sender);
            }
        }
        None
    }

    fn keep(&self, place: &WebhookEndpoint, sender: SendRequest<Full<Bytes>>) {
        let mut idle = lock(&self.idle);
        if idle.len() >= PLACES_MAX {
            idle.clear();
        }
        let senders = idle.entry(place.clone()).or_default();
        if senders.len() < IDLE_MAX {
            senders.push(sender);
        }
    }

    /// A new connection, and whether it leads to the process that an annotation names.
    async fn connect(
        &self,
        cache: &Cache,
        place: &WebhookEndpoint,
    ) -> Result<(SendRequest<Full<Bytes>>, bool), Failure> {
        let (stream, is_forwarded) = self.open(cache, place).await.map_err(Failure::Post)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| Failure::Post(error.to_string()))?;
        self.drive(async move {
            // An error is reported by the call that used the connection.
            let _ = connection.await;
        });
        Ok((sender, is_forwarded))
    }

    /// A connection to an endpoint, and whether it leads to the process that an annotation names.
    async fn open(
        &self,
        cache: &Cache,
        place: &WebhookEndpoint,
    ) -> Result<(TlsStream<TcpStream>, bool), String> {
        let route = resolve(cache, &place.target, self.forwarding).await;
        let (socket, is_forwarded) = match route {
            Ok(ServiceRoute::Addresses(addresses)) => {
                (dial(&addresses, self.loopback).await?, false)
            }
            Ok(ServiceRoute::Forwarded(address)) => {
                (dial(&[address], Loopback::Callable).await?, true)
            }
            Err(NoRoute::Simulated { namespace, name }) => {
                let why = self.forwarding.advice(&namespace, &name);
                self.unrouted.add(namespace, name);
                return Err(why);
            }
            Err(NoRoute::Failed(why)) => return Err(why),
        };
        let name =
            ServerName::try_from(place.server_name()).map_err(|error| format!("tls: {error}"))?;
        let config = self.trust.config(place).await?;
        let stream = TlsConnector::from(Arc::new(config)).connect(name, socket).await;
        Ok((stream.map_err(|error| trust::explain(&error))?, is_forwarded))
    }

    /// The next Service of simulated pods that was called without a route, by namespace and name, and
    /// what helps.
    pub(crate) async fn unrouted(&self) -> (String, String, String) {
        let (namespace, name) = self.unrouted.next().await;
        let advice = self.forwarding.advice(&namespace, &name);
        (namespace, name, advice)
    }

    /// Runs the task of a connection.
    fn drive(&self, connection: impl Future<Output = ()> + Send + 'static) {
        let mut connections = lock(&self.connections);
        while connections.try_join_next().is_some() {}
        connections.spawn(connection);
    }
}

/// Reads an answer.
async fn collect(
    answer: http::Response<hyper::body::Incoming>,
) -> Result<(StatusCode, Bytes), Failure> {
    let code = answer.status();
    match Limited::new(answer.into_body(), ANSWER_MAX).collect().await {
        Ok(collected) => Ok((code, collected.to_bytes())),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            Err(Failure::Answer(format!("the answer is larger than {ANSWER_MAX} bytes")))
        }
        Err(error) => Err(Failure::Answer(format!("unexpected EOF: {error}"))),
    }
}

/// The content of an answer that reports success.
fn checked(code: StatusCode, bytes: Bytes) -> Result<Bytes, Failure> {
    if code == StatusCode::OK {
        return Ok(bytes);
    }
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_MAX)]);
    let text = text.trim();
    Err(Failure::Answer(match text.is_empty() {
        true => format!(
            "the server responded with the status code {} but did not return more information",
            code.as_u16()
        ),
        false => {
            format!("an error on the server ({text:?}) has prevented the request from succeeding")
        }
    }))
}

/// Why a call failed: in transport, or in the response.
enum Failure {
    Post(String),
    Answer(String),
}

impl Failure {
    /// The reason, without any part of the response.
    fn without_answer(self) -> String {
        match self {
            Failure::Post(why) => why,
            Failure::Answer(_) => "the answer is an error or too large".to_owned(),
        }
    }
}

/// A request: a POST of JSON, or a GET without a body.
struct Message<'a> {
    path: &'a str,
    body: Option<Bytes>,
}

/// Why a request has no answer.
enum Unanswered {
    /// No byte of it was sent.
    NotSent(String),
    /// The endpoint may have received it.
    Sent(String),
}

async fn send(
    sender: &mut SendRequest<Full<Bytes>>,
    place: &WebhookEndpoint,
    message: &Message<'_>,
) -> Result<http::Response<hyper::body::Incoming>, Unanswered> {
    let not_sent = |error: &dyn fmt::Display| Unanswered::NotSent(error.to_string());
    sender.ready().await.map_err(|error| not_sent(&error))?;
    let mut request = match message.body {
        Some(_) => Request::post(message.path).header(header::CONTENT_TYPE, "application/json"),
        None => Request::get(message.path),
    };
    if let Some(ClientCredential::Token(token)) = &place.credential {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request
        .header(header::HOST, place.authority_name())
        .header(header::ACCEPT, "application/json")
        .header(header::USER_AGENT, concat!("headwater/", env!("CARGO_PKG_VERSION")))
        .body(Full::new(message.body.clone().unwrap_or_default()))
        .map_err(|error| not_sent(&error))?;
    sender.try_send_request(request).await.map_err(|mut error| match error.take_message() {
        Some(_) => not_sent(error.error()),
        None => Unanswered::Sent(error.error().to_string()),
    })
}

#[cfg(test)]
mod tests {
    use headwater_json::json;

    use super::*;

    #[test]
    fn places_are_read() {
        let url = |url: &str| WebhookEndpoint::read(&json!({ "url": url }));
        let place = url("https://127.0.0.1:9443/validate?x=1").unwrap();
        assert_eq!(place.authority_name(), "127.0.0.1:9443");
        assert_eq!(place.path_with(Duration::from_secs(5)), "/validate?x=1&timeout=5s");
        assert_eq!(url("https://[::1]/").unwrap().authority_name(), "[::1]");
        let place = url("https://127.0.0.1:9443//hooks/./a/").unwrap();
        assert_eq!(place.path_with(Duration::from_secs(5)), "/hooks/a?timeout=5s");
        url("https:// nowhere").unwrap_err();
        let service = json!({"service": {"namespace": "ns", "name": "hook", "path": "v"}});
        let place = WebhookEndpoint::read(&service).unwrap();
        assert_eq!(place.authority_name(), "hook.ns.svc:443");
        assert_eq!(place.path_with(Duration::from_secs(1)), "/v?timeout=1s");
    }
}
