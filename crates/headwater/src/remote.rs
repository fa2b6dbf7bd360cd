//! The cluster that a command works on: any Kubernetes server, through a kubeconfig.
//!
//! River: kubeconfig → **remote** → the commands that show, record and copy a cluster.
//! Promise: an error has the server's code and message; a response larger than [`BODY_MAX`] is refused.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use bytes::Bytes;
use futures::StreamExt;
use headwater_bench::kubeconfig;
use headwater_json::Value;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use kube::Client;
use kube::client::Body;

pub(crate) mod kinds;
pub(crate) mod follow;

use crate::flags::RemoteFlags;

/// The largest response that is read, in bytes; lists are read in pages.
const BODY_MAX: usize = 256 << 20;

/// The size of the pages of lists.
const PAGE: usize = 500;

/// A server and the credentials of a kubeconfig. Cheap to clone.
#[derive(Clone)]
pub(crate) struct RemoteCluster {
    client: Client,
    namespace: Arc<str>,
    address: Arc<str>,
}

/// Why the server refused a request.
#[derive(Debug, thiserror::Error)]
#[error("the server returned {code}: {message}")]
pub(crate) struct Refused {
    pub(crate) code: u16,
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl Refused {
    /// The code, if the error is a refusal of the server.
    pub(crate) fn code_of(error: &anyhow::Error) -> Option<u16> {
        error.downcast_ref::<Refused>().map(|refused| refused.code)
    }
}

/// A list of all objects of a collection.
pub(crate) struct Listed {
    pub(crate) items: Vec<Value>,
    /// Its `metadata.resourceVersion`.
    pub(crate) version: String,
}

/// The representation of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseForm {
    /// Complete objects.
    Full,
    /// Only their metadata.
    Metadata,
    /// Rows with the server's columns.
    Table,
    /// All groups, versions and resources in one document.
    Discovery,
    /// Text.
    Text,
}

impl ResponseForm {
    fn accept(self) -> &'static str {
        match self {
            ResponseForm::Full => "application/json",
            ResponseForm::Metadata => {
                "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,\
                 application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
            }
            ResponseForm::Table => "application/json;as=Table;g=meta.k8s.io;v=v1,application/json",
            ResponseForm::Discovery => {
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
                 application/json"
            }
            ResponseForm::Text => "text/plain",
        }
    }
}

impl RemoteCluster {
    /// The cluster of the current context of a kubeconfig. Sends nothing.
    pub(crate) async fn open(flags: &RemoteFlags) -> Result<RemoteCluster> {
        let path = &flags.kubeconfig;
        let address = kubeconfig::Endpoint::read(path).await?.authority;
        let client = kubeconfig::kube_client(path).await?;
        let namespace = client.default_namespace().into();
        Ok(RemoteCluster { client, namespace, address: address.into() })
    }

    /// The host and the port of the server.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The namespace of the current context.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// A document.
    pub(crate) async fn get(&self, path: &str) -> Result<Value> {
        self.get_as(path, ResponseForm::Full).await
    }

    /// A document in another representation, if the server has it.
    pub(crate) async fn get_as(&self, path: &str, form: ResponseForm) -> Result<Value> {
        json(&self.read(Request::get(path), form, Bytes::new()).await?)
    }

    /// A document; `None` if it does not exist.
    pub(crate) async fn find(&self, path: &str) -> Result<Option<Value>> {
        match self.get(path).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if Refused::code_of(&error) == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A text, such as the metrics.
    pub(crate) async fn text(&self, path: &str) -> Result<String> {
        let bytes = self.read(Request::get(path), ResponseForm::Text, Bytes::new()).await?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Sends a document.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        content: &'static str,
        body: &Value,
    ) -> Result<Value> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(CONTENT_TYPE, HeaderValue::from_static(content));
        json(&self.read(request, ResponseForm::Full, body.to_string().into()).await?)
    }

    /// All objects of a collection, page by page.
    pub(crate) async fn list(
        &self,
        collection: &str,
        query: &str,
        form: ResponseForm,
    ) -> Result<Listed> {
        let mut all = Listed { items: Vec::new(), version: String::new() };
        let mut query = query.to_owned();
        loop {
            let path = format!("{collection}?limit={PAGE}{query}");
            let mut page = self.get_as(&path, form).await?;
            all.version = page["metadata"]["resourceVersion"].as_str().unwrap_or_default().into();
            let kind = page["kind"].as_str().and_then(|kind| kind.strip_suffix("List"));
            let described =
                kind.map(str::to_owned).zip(page["apiVersion"].as_str().map(str::to_owned));
            if let Value::Array(items) = page["items"].take() {
                all.items.extend(items.into_iter().map(|item| with_kind(item, described.as_ref())));
            }
            match page["metadata"]["continue"].as_str() {
                None | Some("") => return Ok(all),
                Some(token) => {
                    // The token names the state; a server refuses both.
                    let kept = query.split('&').filter(|parameter| {
                        !parameter.starts_with("resourceVersion")
                            && !parameter.starts_with("continue=")
                    });
                    query = kept.collect::<Vec<_>>().join("&");
                    query += &format!("&continue={}", encoded(token));
                }
            }
        }
    }

    /// The body of a successful response as it arrives.
    pub(crate) async fn stream(&self, path: &str) -> Result<Body> {
        Ok(self.respond(Request::get(path), ResponseForm::Full, Bytes::new()).await?.into_body())
    }

    async fn read(
        &self,
        request: http::request::Builder,
        form: ResponseForm,
        body: Bytes,
    ) -> Result<Bytes> {
        let response = self.respond(request, form, body).await?;
        let body = Limited::new(response.into_body(), BODY_MAX).collect().await;
        Ok(body.map_err(|error| anyhow!("cannot read the response: {error}"))?.to_bytes())
    }

    async fn respond(
        &self,
        request: http::request::Builder,
        form: ResponseForm,
        body: Bytes,
    ) -> Result<Response<Body>> {
        let request = request.header(ACCEPT, form.accept()).body(Body::from(body))?;
        let path = request.uri().path().to_owned();
        let sent = self.client.send(request).await;
        let response = sent.with_context(|| format!("cannot request {path}"))?;
        match response.status().is_success() {
            true => Ok(response),
            false => Err(refused(response).await.into()),
        }
    }
}

async fn refused(response: Response<Body>) -> Refused {
    /// Statuses are short; of anything else the beginning is enough.
    const MESSAGE_MAX: usize = 1 << 20;
    let status = response.status();
    let body = Limited::new(response.into_body(), MESSAGE_MAX).collect().await;
    let bytes = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let word = |name: &str| {
        let parsed = headwater_json::parse(&bytes).ok()?;
        parsed.value[name].as_str().map(str::to_owned)
    };
    let message = word("message").filter(|message| !message.is_empty());
    Refused {
        code: status.as_u16(),
        reason: word("reason").unwrap_or_default(),
        message: message.unwrap_or_else(|| usual(status).to_owned()),
    }
}

fn usual(status: StatusCode) -> &'static str {
    status.canonical_reason().unwrap_or("unknown error")
}

fn json(bytes: &[u8]) -> Result<Value> {
    let parsed = headwater_json::parse(bytes);
    Ok(parsed.map_err(|error| anyhow!("the response is not JSON: {error}"))?.value)
}

/// An item of a list, with the kind and version that servers leave out there.
fn with_kind(mut item: Value, described: Option<&(String, String)>) -> Value {
    if let (Some(members), Some((kind, version))) = (item.as_object_mut(), described)
        && !members.contains_key("kind")
    {
        members.insert("kind".into(), kind.as_str().into());
        members.insert("apiVersion".into(), version.as_str().into());
    }
    item
}

/// A value of a query, with every byte that means something in an address written as `%XX`.
pub(crate) fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// Runs requests at a time, at most this many, and returns the answers in order.
pub(crate) async fn together<T>(
    requests: impl IntoIterator<Item = impl Future<Output = T>>,
) -> Vec<T> {
    /// Enough to hide the latency of a server elsewhere, few enough for its fairness.
    const AT_A_TIME: usize = 8;
    futures::stream::iter(requests).buffered(AT_A_TIME).collect().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_query_are_escaped() {
        assert_eq!(encoded("app in (a,b)"), "app%20in%20%28a%2Cb%29");
        assert_eq!(encoded("é&=+"), "%C3%A9%26%3D%2B");
    }
}
