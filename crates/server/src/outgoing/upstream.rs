//! The upstream: the API server that a relay stands in front of.
//!
//! River: authentication, authorization, requests for what is not held → **upstream**.
//! Promise: a request is passed on with the credential that its sender showed, or as the user that it
//! was authenticated as; never with the rights of the relay.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use headwater_cache::Cache;
use headwater_json::Value;
use http::Request;

use super::{Caller, WebhookEndpoint};
use crate::answer::body::{RequestBody, Response};

/// A review that the relay sends with its own credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReviewKind {
    /// Who a token belongs to.
    Token,
    /// Whether a user may do something.
    SubjectAccess,
}

/// The credential of a request that is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassedCredential {
    /// That of the sender, which is in the headers; the relay adds none.
    Sender,
    /// That of the relay. The headers impersonate the sender.
    Impersonation,
}

/// The server that a relay stands in front of.
#[async_trait]
pub trait Upstream: fmt::Debug + Send + Sync + 'static {
    /// Sends a review; returns the answered object.
    async fn review(&self, kind: ReviewKind, body: Bytes) -> Result<Value, String>;

    /// Passes a request on; the response is that of the upstream, or an error of the relay.
    async fn forward(&self, request: Request<RequestBody>, with: PassedCredential) -> Response;

    /// Whether requests whose credential cannot be passed on are sent with the relay's credential, as
    /// their user.
    fn impersonates(&self) -> bool;
}

/// Where reviews are sent.
#[derive(Clone, Debug)]
pub(crate) enum ReviewTarget {
    Webhook(Box<WebhookEndpoint>),
    Upstream(Arc<dyn Upstream>),
}

impl ReviewTarget {
    /// Sends a review and returns the answer. Errors about tokens contain no part of an answer.
    pub(crate) async fn send(
        &self,
        kind: ReviewKind,
        body: Vec<u8>,
        timeout: Duration,
        (caller, cache): (&Caller, &Cache),
    ) -> Result<Value, String> {
        match self {
            ReviewTarget::Webhook(endpoint) => match kind {
                ReviewKind::Token => caller.post_secret(cache, endpoint, body, timeout).await,
                ReviewKind::SubjectAccess => caller.post(cache, endpoint, body, timeout).await,
            },
            ReviewTarget::Upstream(upstream) => {
                let answered = tokio::time::timeout(timeout, upstream.review(kind, body.into()));
                answered.await.unwrap_or_else(|_| Err("the upstream did not answer in time".into()))
            }
        }
    }

    pub(crate) fn is_upstream(&self) -> bool {
        matches!(self, ReviewTarget::Upstream(_))
    }
}
