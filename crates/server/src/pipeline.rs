//! The server as one value: a request in, a response out.
//!
//! River: HTTP → **server** → read, write, watch. It knows nothing of sockets: a listener calls
//! [`Server::handle`], and so can a test.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::FutureExt;
use headwater_api::Status;
use headwater_api::accept::Representation;
use headwater_api::query::Query;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;

use crate::answer::body::{self, Finish, Response};
use crate::answer::status;
use crate::front::identity::{Identity, Peer};
use crate::front::listen;
use crate::kinds::custom;
use crate::random;
use crate::request::authorize::{self, Attributes};
use crate::request::call::Call;
use crate::request::impersonate;
use crate::request::observe::Seen;
use crate::request::route::{Lost, Resource, Route, Target, http_verb, route};
use crate::server::Server;
use crate::verbs::{delete, discovery, encode, patch, read, subresource, watch, write};

static AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

impl Server {
    /// Answers one request.
    pub async fn handle<B>(&self, peer: &Peer, request: Request<B>) -> Response
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let audit_id = audit_id(request.headers());
        let answered = AssertUnwindSafe(self.answer(peer, request)).catch_unwind().await;
        let mut response = answered.unwrap_or_else(|_| {
            self.metrics().panics.with(&[]).inc();
            panicked()
        });
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let headers = response.headers_mut();
            headers.insert(AUDIT_ID.clone(), audit_id);
            headers
                .entry(header::CACHE_CONTROL)
                .or_insert(HeaderValue::from_static("no-cache, private"));
        }
        response
    }

    async fn answer<B>(&self, peer: &Peer, request: Request<B>) -> Response
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let identified = self.identify(peer, request.headers()).await;
        let result = if identified.is_ok() { "success" } else { "error" };
        self.metrics().authentication_attempts.with(&[result]).inc();
        let Ok(identity) = identified else {
            return status::response(&status::unauthorized());
        };
        let (mut parts, body) = request.into_parts();
        let identity = match impersonate::acting(identity, &mut parts.headers) {
            Ok(identity) => identity,
            Err(status) => return refused(&status),
        };
        let query = match Query::parse(parts.uri.query().unwrap_or_default()) {
            Ok(query) => query,
            Err(status) => return status::response(&status),
        };
        let path = parts.uri.path().to_owned();
        let found = route(&self.registry(), &parts.method, &path, &query);
        let attributes = match &found {
            Ok(found) => Attributes::of(found, &path),
            Err(_) => Attributes::Path { verb: http_verb(&parts.method), path: &path },
        };
        let is_watch = found.as_ref().is_ok_and(|found| found.verb == "watch");
        if let (false, Err(status)) = (is_watch, query.timeout()) {
            return status::response(&status);
        }
        let Some(flow) = self.flows().classify(&identity, &attributes) else {
            return self.routed(peer, identity, found, query, parts, body).await;
        };
        let labels = [flow.level.as_str(), flow.schema.as_str()];
        self.metrics().flow_dispatched.with(&labels).inc();
        let mut response = self.routed(peer, identity, found, query, parts, body).await;
        flow.sign(&mut response);
        response
    }

    /// Answers a request that is known for what it is.
    async fn routed<B>(
        &self,
        peer: &Peer,
        identity: Arc<Identity>,
        found: Result<Route, Lost>,
        query: Query,
        mut parts: http::request::Parts,
        body: B,
    ) -> Response
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let path = parts.uri.path().to_owned();
        // Whoever may not ask is not told what is there (R48).
        let attributes = match &found {
            Ok(found) => Attributes::of(found, &path),
            Err(_) => Attributes::Path { verb: http_verb(&parts.method), path: &path },
        };
        if let Err(status) = authorize::authorize(&identity, &attributes) {
            return refused(&status);
        }
        let found = match found {
            Ok(found) => found,
            Err(Lost::Page) => return body::page_not_found(),
            Err(Lost::Status(status)) => return status::response(&status),
        };
        let upgrade = parts.extensions.remove::<hyper::upgrade::OnUpgrade>();
        let agent = parts.headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok());
        let finish = Finish::of(&parts.headers, query.pretty(agent.unwrap_or_default()));
        let seen = Seen::new(self.metrics(), &found, &query);
        let mut call = Call {
            identity,
            method: parts.method,
            path,
            headers: parts.headers,
            query,
            raw_query: parts.uri.query().unwrap_or_default().to_owned(),
            finish,
            representation: Representation::default(),
            warnings: Mutex::default(),
            reading: AtomicBool::new(false),
        };
        if let Err(status) = call.negotiate(&found) {
            return seen.answered(encode::status(&call, &status));
        }
        if let (Target::Resource(resource), "watch") = (&found.target, found.verb) {
            let started = watch::start(self, &call, resource, upgrade, peer).await;
            let response = started.unwrap_or_else(|status| encode::status(&call, &status));
            return seen.answered(call.with_warnings(response));
        }
        let answered = self.within_deadline(&call, found, body).await;
        let mut response = answered.unwrap_or_else(|status| encode::status(&call, &status));
        if response.status() == StatusCode::REQUEST_TIMEOUT {
            // What comes now would be taken for the next request.
            response.extensions_mut().insert(listen::HangUp);
        }
        seen.answered(call.with_warnings(response))
    }

    async fn within_deadline<B>(
        &self,
        call: &Call,
        found: Route,
        body: B,
    ) -> Result<Response, Status>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let longest = self.options().request_timeout;
        let deadline = call.query.timeout()?.map_or(longest, |asked| asked.min(longest));
        let answered = tokio::time::timeout(deadline, self.dispatch(call, found, body)).await;
        answered.unwrap_or_else(|_| {
            if call.reading.load(Relaxed) {
                return Err(status::body_timeout());
            }
            let why = "Timeout: request did not complete within the allotted timeout";
            Err(Status::failure(504, "Timeout", why))
        })
    }

    async fn dispatch<B>(&self, call: &Call, found: Route, body: B) -> Result<Response, Status>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        match found.target {
            Target::Path(segments) => discovery::path(self, call, &segments).await,
            Target::Missing { status: None, .. } => Ok(body::page_not_found()),
            Target::Missing { status: Some(status), .. } => Err(status),
            Target::Resource(resource) => {
                let response = self.resource(call, &resource, body).await?;
                if custom::is_definition(&resource.kind) && call.method != Method::GET {
                    self.after_definition().await;
                }
                if !resource.namespace.is_empty() && call.method != Method::GET {
                    self.admission().quotas.settle(self, &resource.kind, &resource.namespace).await;
                }
                Ok(response)
            }
        }
    }

    async fn resource<B>(
        &self,
        call: &Call,
        resource: &Resource,
        body: B,
    ) -> Result<Response, Status>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if is_out_of_scope(call, resource) {
            return Ok(body::page_not_found());
        }
        let verb = self.verb(call, resource)?;
        call.warn(resource.kind.deprecation.as_ref().map(ToString::to_string));
        if matches!(verb, "get" | "list") {
            return match (verb, resource.subresource.as_str()) {
                ("list", _) => read::list(self, call, resource).await,
                (_, name) if subresource::is_a_door(name) => read::get(self, call, resource).await,
                _ => subresource::get(self, call, resource).await,
            };
        }
        call.reading.store(true, Relaxed);
        let bytes = body::read(&call.headers, body).await?;
        call.reading.store(false, Relaxed);
        let is_door = subresource::is_a_door(&resource.subresource);
        if !is_door || subresource::is_transient(&resource.kind) {
            return subresource::write(self, call, resource, bytes).await;
        }
        let written = match verb {
            "create" => write::create(self, call, resource, bytes).await?,
            "update" => write::update(self, call, resource, bytes).await?,
            "patch" => patch::patch(self, call, resource, bytes).await?,
            "delete" => return delete::one(self, call, resource, &bytes).await,
            _ => return delete::collection(self, call, resource, &bytes).await,
        };
        encode::written(self, call, &resource.kind, &written)
    }

    /// The verb of a method on a collection, an object or a subresource, if there is one (S1.6).
    fn verb(&self, call: &Call, resource: &Resource) -> Result<&'static str, Status> {
        let on_object = !resource.name.is_empty();
        let verb = match (call.method.as_str(), on_object, resource.subresource.as_str()) {
            ("GET", false, _) => "list",
            ("GET", true, _) => "get",
            ("POST", false, "") => "create",
            ("POST", true, subresource) if !subresource.is_empty() => "create",
            ("PUT", true, _) => "update",
            ("PATCH", true, _) => "patch",
            ("DELETE", true, "") => "delete",
            ("DELETE", false, "") => "deletecollection",
            _ if resource.kind.custom => return Err(no_such_verb(call, resource)),
            _ => return Err(status::method_not_allowed()),
        };
        let kind = &resource.kind;
        let allowed = match kind.subresource(&resource.subresource) {
            Some(subresource) => subresource.verbs.iter().any(|allowed| allowed == verb),
            None => kind.allows(verb),
        };
        let across = kind.namespaced && resource.namespace.is_empty();
        if !allowed || (across && verb != "list") {
            return Err(match kind.custom {
                true => status::verb_not_supported(kind, verb),
                false => status::method_not_allowed(),
            });
        }
        Ok(verb)
    }
}

impl listen::Handle for Server {
    type Body = body::Body;

    async fn handle(&self, peer: Arc<Peer>, request: Request<Incoming>) -> Response {
        Server::handle(self, &peer, request).await
    }
}

/// Whoever may not do something is told so in a form that no browser interprets.
fn refused(status: &Status) -> Response {
    let mut response = status::response(status);
    body::set(&mut response, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    response
}

fn audit_id(headers: &HeaderMap) -> HeaderValue {
    match headers.get(&AUDIT_ID) {
        Some(given) if !given.is_empty() => given.clone(),
        _ => {
            let made = random::id().to_string();
            HeaderValue::from_str(&made).unwrap_or_else(|_| HeaderValue::from_static(""))
        }
    }
}

/// A panic fails one request and nothing else (R46).
fn panicked() -> Response {
    tracing::error!("a handler panicked");
    let text = "This request caused apiserver to panic. Look in the logs for details.";
    body::text(StatusCode::INTERNAL_SERVER_ERROR, text)
}

/// Whether a request is about a custom kind across all namespaces and does not only read: a path
/// that is not there (S1.5).
fn is_out_of_scope(call: &Call, resource: &Resource) -> bool {
    let kind = &resource.kind;
    kind.custom
        && kind.namespaced
        && resource.namespace.is_empty()
        && !matches!(call.method, Method::GET | Method::HEAD)
}

/// A method that means nothing here, in the words for custom kinds (S1.7).
fn no_such_verb(call: &Call, resource: &Resource) -> Status {
    match call.method {
        Method::PUT | Method::PATCH => status::bad_request("name must be provided"),
        Method::POST => status::verb_not_supported(&resource.kind, "create"),
        Method::DELETE => status::verb_not_supported(&resource.kind, "delete"),
        _ => status::verb_not_supported(&resource.kind, ""),
    }
}
