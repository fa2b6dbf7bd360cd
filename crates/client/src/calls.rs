//! Reads and writes of single objects.
//!
//! River: reconciler → **calls** → the next write.
//! Promise: a call is retried only after 429 or 5xx with `Retry-After`, at most ten times, and
//! never past its deadline; replacing an object sends its version; writes are remembered for the
//! key being reconciled.

mod collection;
mod conflict;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::client::Body;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout_at};

use crate::error::Error;
use crate::list_watch::{BoxError, StatusError};
use crate::object::ResourceType;
use crate::track::Tracker;

pub use self::collection::{Collection, Deleted};

/// Reads and writes objects. Cheap to clone.
///
/// ```no_run
/// # use headwater_client::{Factory, calls::Calls, Key};
/// # use k8s_openapi::api::core::v1::ConfigMap;
/// # async fn example(factory: &Factory) -> Result<(), headwater_client::Error> {
/// let calls = Calls::new(factory.client().clone());
/// let maps = calls.of::<ConfigMap>();
/// let key = Key::namespaced("shop", "settings");
/// maps.update(&key, None, |map| {
///     map.data.get_or_insert_default().insert("mode".into(), "dark".into());
/// })
/// .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Calls {
    client: Client,
    component: Arc<str>,
    deadline: Option<Duration>,
    tracker: Option<Tracker>,
}

/// The maximum number of retries of a call.
const RETRIES_MAX: u32 = 10;

impl Calls {
    /// Calls through a kube client.
    pub fn new(client: Client) -> Calls {
        Calls { client, component: "unnamed".into(), deadline: None, tracker: None }
    }

    /// The name of the program, for the `User-Agent` header.
    #[must_use]
    pub fn component(mut self, component: &str) -> Calls {
        self.component = component.into();
        self
    }

    /// The deadline of each call, including retries.
    #[must_use]
    pub fn within(mut self, deadline: Duration) -> Calls {
        self.deadline = Some(deadline);
        self
    }

    /// The same calls, with writes recorded in a tracker.
    #[must_use]
    pub(crate) fn tracked(mut self, tracker: Tracker) -> Calls {
        self.tracker = Some(tracker);
        self
    }

    pub(crate) fn tracker(&self) -> Option<&Tracker> {
        self.tracker.as_ref()
    }

    /// The objects of a type.
    pub fn of<K>(&self) -> Collection<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
    {
        Collection::new(self.clone(), ResourceType::of::<K>(&()))
    }

    /// The objects of a resource type, decoded as `K`.
    pub fn of_type<K>(&self, resource: ResourceType) -> Collection<K>
    where
        K: Resource + DeserializeOwned + Send + Sync + 'static,
    {
        Collection::new(self.clone(), resource)
    }

    /// A kube client with the same retries, for `kube::Api`. Watches are passed
    /// through.
    pub fn kube_client(&self) -> Client {
        let calls = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let calls = calls.clone();
            async move {
                let watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
                if watch {
                    return calls.client.send(request).await.map_err(BoxError::from);
                }
                calls.send(request).await.map_err(BoxError::from)
            }
        });
        Client::new(service, self.client.default_namespace())
    }

    /// Sends a request with rate limit, retries and deadline.
    pub(crate) async fn send(&self, request: Request<Body>) -> Result<Response<Body>, Error> {
        let Some(deadline) = self.deadline else { return self.send_until(request, None).await };
        let end = Instant::now() + deadline;
        let sent = timeout_at(end, self.send_until(request, Some(end))).await;
        sent.unwrap_or_else(|_| Err(Error::Timeout { what: "the call".into(), after: deadline }))
    }

    async fn send_until(
        &self,
        request: Request<Body>,
        end: Option<Instant>,
    ) -> Result<Response<Body>, Error> {
        let (mut parts, mut body) = request.into_parts();
        let agent = format!("{} headwater-client/{}", self.component, env!("CARGO_PKG_VERSION"));
        if let Ok(agent) = HeaderValue::from_str(&agent) {
            parts.headers.insert(USER_AGENT, agent);
        }
        let mut tries = 0;
        loop {
            // A body that cannot be cloned is not retried.
            let again = body.try_clone();
            let response = self.client.send(Request::from_parts(parts.clone(), body)).await?;
            tries += 1;
            let (Some(wait), Some(next)) = (retry_after(&response), again) else {
                return Ok(response);
            };
            if tries > RETRIES_MAX || end.is_some_and(|end| Instant::now() + wait >= end) {
                return Ok(response);
            }
            sleep(wait).await;
            body = next;
        }
    }

    /// Sends JSON and returns the body of a 2xx response; other responses are errors.
    pub(crate) async fn exchange(
        &self,
        method: Method,
        uri: &str,
        content_type: &'static str,
        body: Vec<u8>,
    ) -> Result<Bytes, Error> {
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = method;
        *request.uri_mut() =
            uri.parse().map_err(|error| Error::Invalid(format!("the path {uri:?}: {error}")))?;
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        let response = self.send(request).await?;
        let code = response.status().as_u16();
        let advice = header(&response, RETRY_AFTER.as_str()).map(str::to_owned);
        let answer = response.into_body().collect().await.map_err(Error::from)?.to_bytes();
        match code {
            200..=299 => Ok(answer),
            code => Err(Error::Refused(StatusError::from_body(code, advice.as_deref(), &answer))),
        }
    }
}

fn header<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name).and_then(|value| value.to_str().ok())
}

/// When to retry, if the response says so.
fn retry_after(response: &Response<Body>) -> Option<Duration> {
    let code = response.status().as_u16();
    if code != 429 && !(500..600).contains(&code) {
        return None;
    }
    let seconds: u64 = header(response, RETRY_AFTER.as_str())?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds.min(60)))
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calls").field("component", &self.component).finish_non_exhaustive()
    }
}
