//! The cluster behind the page, reached with the credentials of a kubeconfig.
//!
//! River: `request`, `stream` → **upstream** → the API server.
//! Promise: a kubeconfig that is replaced, such as with renewed certificates, counts from the next
//! request on.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Result;
use headwater_bench::kubeconfig;
use headwater_client::factory::client_of;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue, USER_AGENT};
use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::Mutex;

/// The name of the page among the clients of a server.
const CLIENT: &str = concat!("headwater-ui/", env!("CARGO_PKG_VERSION"));
/// The maximum size of an answer about the user.
const REVIEW_MAX: usize = 256 * 1024;

/// A client that follows its kubeconfig.
pub(super) struct Upstream {
    kubeconfig: PathBuf,
    client: Mutex<Option<ReadClient>>,
}

/// A client, and the file as it was when it was read.
#[derive(Clone)]
struct ReadClient {
    client: kube::Client,
    modified: Option<SystemTime>,
    server: String,
}

impl Upstream {
    pub(super) fn new(kubeconfig: PathBuf) -> Upstream {
        Upstream { kubeconfig, client: Mutex::default() }
    }

    /// Fails if the kubeconfig cannot be used.
    pub(super) async fn check(&self) -> Result<()> {
        self.client().await.map(|_| ())
    }

    /// Sends a GET and returns the head of the answer.
    pub(super) async fn get(&self, path: &str, accept: &HeaderValue) -> Result<Response<Body>> {
        let request = Request::get(path)
            .header(ACCEPT, accept)
            .header(USER_AGENT, CLIENT)
            .body(Body::empty())?;
        Ok(self.client().await?.client.send(request).await?)
    }

    /// What the page shows of its connection: the server and the user, if the server knows it.
    pub(super) async fn describe(&self) -> Result<Value> {
        let read = self.client().await?;
        let user = who_am_i(&read.client).await.inspect_err(|error| {
            tracing::debug!(%error, "the server does not tell who the user of the page is");
        });
        Ok(json!({ "server": read.server, "user": user.ok() }))
    }

    async fn client(&self) -> Result<ReadClient> {
        let modified = std::fs::metadata(&self.kubeconfig).and_then(|file| file.modified()).ok();
        let mut client = self.client.lock().await;
        if let Some(read) = client.as_ref().filter(|read| read.modified == modified) {
            return Ok(read.clone());
        }
        let opened = open(&self.kubeconfig, modified).await;
        match (opened, client.as_ref()) {
            (Ok(read), _) => Ok(client.insert(read).clone()),
            // It may be half written: the next request reads it again.
            (Err(error), Some(read)) => {
                tracing::warn!(%error, "the page continues with the previous kubeconfig");
                Ok(read.clone())
            }
            (Err(error), None) => Err(error),
        }
    }
}

async fn open(path: &Path, modified: Option<SystemTime>) -> Result<ReadClient> {
    let config = kubeconfig::config(path).await?;
    let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
    Ok(ReadClient { client: client_of(config)?, modified, server })
}

/// The user of the credentials. A review is a POST that writes nothing.
async fn who_am_i(client: &kube::Client) -> Result<Option<String>> {
    let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
    let request = Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews")
        .header(CONTENT_TYPE, "application/json")
        .body(Body::from(review.to_string().into_bytes()))?;
    let answer = client.send(request).await?;
    let body = http_body_util::Limited::new(answer.into_body(), REVIEW_MAX);
    let body = http_body_util::BodyExt::collect(body)
        .await
        .map_err(|error| anyhow::anyhow!("cannot read the review: {error}"))?;
    let review: Value = serde_json::from_slice(&body.to_bytes())?;
    Ok(review["status"]["userInfo"]["username"].as_str().map(str::to_owned))
}
