//! The connection to the upstream: two clients, one with the relay's credential and one with none.
//!
//! River: reviews, requests for what is not held → **connection** → upstream API server.
//! Promise: a request with the sender's credential goes over the client that has none of its own, so a
//! client certificate of the relay never speaks for a sender. Nothing is sent twice.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::TryStreamExt;
use headwater_json::Value;
use headwater_server::body::{self, RequestBody, Response};
use headwater_server::status;
use headwater_server::{PassedCredential, ReviewKind, Upstream};
use http::header::{self, HeaderMap, HeaderName};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, BodyStream, Limited};
use hyper_util::rt::TokioIo;
use kube::client::Body as KubeBody;
use kube::config::AuthInfo;
use kube::{Client, Config};
use tokio::task::JoinSet;

use crate::Error;
use crate::metrics::RelayMetrics;
use crate::shared_call::SharedCall;

/// The maximum size of a document that the relay itself reads, such as a review or discovery.
const DOCUMENT_MAX: usize = 32 << 20;

/// How long the upstream may take for it.
const DOCUMENT_TIMEOUT: Duration = Duration::from_secs(15);

/// Headers that belong to one connection, or that only a front proxy may send.
const NOT_PASSED: [&str; 9] = [
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
];

type SharedReview = Arc<SharedCall<Result<Value, String>>>;

/// The upstream of a relay.
pub(crate) struct Connection {
    own: Client,
    bare: Client,
    impersonates: bool,
    metrics: RelayMetrics,
    /// Reviews that run, by what they ask.
    reviews: Mutex<HashMap<(ReviewKind, Bytes), SharedReview>>,
    cluster: SharedCall<Result<Option<String>, String>>,
    /// Connections that were upgraded.
    upgraded: Mutex<JoinSet<()>>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection(..)")
    }
}

impl Connection {
    pub(crate) fn new(
        mut config: Config,
        impersonates: bool,
        metrics: RelayMetrics,
    ) -> Result<Connection, Error> {
        // Watches and upgraded connections are silent for longer; a retry could repeat a write.
        config.read_timeout = None;
        config.default_retry = false;
        let mut bare = config.clone();
        bare.auth_info = AuthInfo::default();
        let client =
            |config| Client::try_from(config).map_err(|error| Error::Config(Box::new(error)));
        Ok(Connection {
            own: client(config)?,
            bare: client(bare)?,
            impersonates,
            metrics,
            reviews: Mutex::default(),
            cluster: SharedCall::new(),
            upgraded: Mutex::default(),
        })
    }

    /// The client with the relay's credential.
    pub(crate) fn client(&self) -> Client {
        self.own.clone()
    }

    pub(crate) fn metrics(&self) -> &RelayMetrics {
        &self.metrics
    }

    /// A name of the cluster that no other cluster has, if the relay may read it.
    pub(crate) async fn cluster(&self) -> Result<Option<String>, String> {
        let path = "/api/v1/namespaces/kube-system";
        self.cluster
            .ask(|| async {
                let (code, value) = self.get(path, "identity").await?;
                match code {
                    StatusCode::OK => Ok(value["metadata"]["uid"].as_str().map(str::to_owned)),
                    StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => Ok(None),
                    code => Err(format!("the upstream answered {code} to GET {path}")),
                }
            })
            .await
    }

    /// A document of the upstream, with the relay's credential.
    pub(crate) async fn get(
        &self,
        path: &str,
        purpose: &str,
    ) -> Result<(StatusCode, Value), String> {
        self.metrics.sent(purpose);
        let request = Request::get(path).header(header::ACCEPT, "application/json");
        let request = request.body(KubeBody::empty()).map_err(|error| error.to_string())?;
        self.document(request).await
    }

    async fn document(&self, request: Request<KubeBody>) -> Result<(StatusCode, Value), String> {
        let read = tokio::time::timeout(DOCUMENT_TIMEOUT, self.read_document(request)).await;
        read.unwrap_or_else(|_| Err("the upstream did not answer in time".to_owned()))
    }

    async fn read_document(
        &self,
        request: Request<KubeBody>,
    ) -> Result<(StatusCode, Value), String> {
        let response = self.own.send(request).await.map_err(|error| error.to_string())?;
        let code = response.status();
        let collected = Limited::new(response.into_body(), DOCUMENT_MAX).collect().await;
        let bytes = collected.map_err(|error| error.to_string())?.to_bytes();
        match headwater_json::parse(&bytes) {
            Ok(parsed) => Ok((code, parsed.value)),
            Err(_) if code.is_success() => Err("the answer is not JSON".to_owned()),
            Err(_) => Ok((code, Value::Null)),
        }
    }

    async fn post_review(&self, kind: ReviewKind, body: Bytes) -> Result<Value, String> {
        let (purpose, path) = match kind {
            ReviewKind::Token => ("token_review", "/apis/authentication.k8s.io/v1/tokenreviews"),
            ReviewKind::SubjectAccess => {
                ("access_review", "/apis/authorization.k8s.io/v1/subjectaccessreviews")
            }
        };
        self.metrics.sent(purpose);
        let request = Request::post(path)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json")
            .body(KubeBody::from(body))
            .map_err(|error| error.to_string())?;
        let (code, value) = self.document(request).await?;
        if code == StatusCode::OK || code == StatusCode::CREATED {
            return Ok(value);
        }
        let why = value["message"].as_str().unwrap_or_default();
        Err(format!("the upstream answered {code} to a review: {why}"))
    }

    /// Joins the two sides of an upgraded connection.
    fn join(&self, client: hyper::upgrade::OnUpgrade, upstream: hyper::upgrade::OnUpgrade) {
        let mut upgraded = self.upgraded.lock().unwrap_or_else(PoisonError::into_inner);
        while upgraded.try_join_next().is_some() {}
        upgraded.spawn(async move {
            let Ok((client, upstream)) = futures::future::try_join(client, upstream).await else {
                return;
            };
            let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
            // Whoever closes first ends both; an error on one side is the end of the other.
            let _ = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
        });
    }
}

#[async_trait]
impl Upstream for Connection {
    async fn review(&self, kind: ReviewKind, body: Bytes) -> Result<Value, String> {
        let key = (kind, body.clone());
        let shared = {
            let mut reviews = self.reviews.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(reviews.entry(key).or_insert_with(|| Arc::new(SharedCall::new())))
        };
        let _forget = ForgetReview { connection: self, key: (kind, body.clone()) };
        shared.ask(|| self.post_review(kind, body)).await
    }

    async fn forward(&self, request: Request<RequestBody>, with: PassedCredential) -> Response {
        self.metrics.sent("forward");
        let (mut parts, body) = request.into_parts();
        let upgrade = parts.extensions.remove::<hyper::upgrade::OnUpgrade>();
        let bytes = match body::read(&parts.headers, body).await {
            Ok(bytes) => bytes,
            Err(status) => return status::response(&status),
        };
        let wants_upgrade = upgrade.is_some() && parts.headers.contains_key(header::UPGRADE);
        let mut headers = passed(&parts.headers);
        match wants_upgrade {
            true => drop(headers.insert(header::CONNECTION, "Upgrade".parse().expect("a word"))),
            false => drop(headers.remove(header::UPGRADE)),
        }
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut sent = Request::new(KubeBody::from(bytes));
        *sent.method_mut() = parts.method;
        *sent.headers_mut() = headers;
        match path.parse() {
            Ok(uri) => *sent.uri_mut() = uri,
            Err(_) => return body::page_not_found(),
        }
        let client = match with {
            PassedCredential::Sender => &self.bare,
            PassedCredential::Impersonation => &self.own,
        };
        let mut response = match client.send(sent).await {
            Ok(response) => response,
            Err(error) => {
                tracing::warn!(%error, "cannot pass a request on to the upstream");
                let why = "the relay cannot reach its upstream; it is unknown whether the upstream \
                           received the request";
                return status::response(&status::unavailable(why).retry_after(1));
            }
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS
            && let Some(client) = upgrade
        {
            self.join(client, hyper::upgrade::on(&mut response));
        }
        answered(response)
    }

    fn impersonates(&self) -> bool {
        self.impersonates
    }
}

/// Drops a review that nobody waits for.
struct ForgetReview<'a> {
    connection: &'a Connection,
    key: (ReviewKind, Bytes),
}

impl Drop for ForgetReview<'_> {
    fn drop(&mut self) {
        let reviews = self.connection.reviews.lock();
        let mut reviews = reviews.unwrap_or_else(PoisonError::into_inner);
        // One is the map's, one that of the caller who is leaving.
        if reviews.get(&self.key).is_some_and(|shared| Arc::strong_count(shared) <= 2) {
            reviews.remove(&self.key);
        }
    }
}

/// The headers of a request or response that the other side receives.
fn passed(headers: &HeaderMap) -> HeaderMap {
    let is_passed = |name: &HeaderName| {
        !NOT_PASSED.contains(&name.as_str()) && !name.as_str().starts_with("x-remote-")
    };
    let kept = headers.iter().filter(|(name, _)| is_passed(name));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The response of the upstream, with its body as it arrives.
fn answered(response: http::Response<KubeBody>) -> Response {
    let (parts, body) = response.into_parts();
    let is_upgrade = parts.status == StatusCode::SWITCHING_PROTOCOLS;
    let frames = TryStreamExt::map_err(BodyStream::new(body), io::Error::other);
    let chunks = frames.try_filter_map(|frame| async move { Ok(frame.into_data().ok()) });
    let body = if is_upgrade { body::full(Bytes::new()) } else { body::try_stream(chunks) };
    let mut response = Response::new(body);
    *response.status_mut() = parts.status;
    *response.headers_mut() = passed(&parts.headers);
    if is_upgrade {
        for name in [header::CONNECTION, header::UPGRADE] {
            if let Some(value) = parts.headers.get(&name) {
                response.headers_mut().insert(name, value.clone());
            }
        }
    } else if let Some(length) = parts.headers.get(header::CONTENT_LENGTH) {
        response.headers_mut().insert(header::CONTENT_LENGTH, length.clone());
    }
    response
}
