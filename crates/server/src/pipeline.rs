//! The pipeline: one request in, one response out.
//!
//! River: HTTP → **pipeline** → read, write, watch. It does not know sockets: a listener calls
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
use crate::random;
use crate::request::authorize::{self, Attributes};
use crate::request::call::Call;
use crate::request::impersonate;
use crate::request::observe::RequestMetrics;
use crate::request::route::{ResourcePath, Route, RouteError, Target, Verb, route};
use crate::server::Server;
use crate::upkeep::after_write::AFTER_WRITE;
use crate::verbs::{delete, discovery, encode, patch, read, subresource, watch, write};

static AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

impl Server {
    /// Handles one request.
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
            Err(_) => Attributes::Path { verb: Verb::of_path(&parts.method).as_str(), path: &path },
        };
        let is_watch = found.as_ref().is_ok_and(|found| found.verb == Verb::Watch);
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

    /// Handles a request whose route is known.
    async fn routed<B>(
        &self,
        peer: &Peer,
        identity: Arc<Identity>,
        found: Result<Route, RouteError>,
        query: Query,
        mut parts: http::request::Parts,
        body: B,
    ) -> Response
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let path = parts.uri.path().to_owned();
        // A client without permission must not learn what exists (R48).
        let attributes = match &found {
            Ok(found) => Attributes::of(found, &path),
            Err(_) => Attributes::Path { verb: Verb::of_path(&parts.method).as_str(), path: &path },
        };
        if let Err(status) = authorize::authorize(&identity, &attributes) {
            return refused(&status);
        }
        let found = match found {
            Ok(found) => found,
            Err(RouteError::Page) => return body::page_not_found(),
            Err(RouteError::Status(status)) => return status::response(&status),
        };
        let upgrade = parts.extensions.remove::<hyper::upgrade::OnUpgrade>();
        let agent = parts.headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok());
        let finish = Finish::of(&parts.headers, query.pretty(agent.unwrap_or_default()));
        let observed = RequestMetrics::new(self.metrics(), &found, &query);
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
            return observed.answered(encode::status(&call, &status));
        }
        if let (Target::Resource(resource), Verb::Watch) = (&found.target, found.verb) {
            let started = watch::start(self, &call, resource, upgrade, peer).await;
            let response = started.unwrap_or_else(|status| encode::status(&call, &status));
            return observed.answered(call.with_warnings(response));
        }
        let answered = self.within_deadline(&call, found, body).await;
        let mut response = answered.unwrap_or_else(|status| encode::status(&call, &status));
        if response.status() == StatusCode::REQUEST_TIMEOUT {
            // The rest of the body would be parsed as the next request.
            response.extensions_mut().insert(listen::HangUp);
        }
        observed.answered(call.with_warnings(response))
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
        let longest = self.settings().request_timeout;
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
                let response = self.resource(call, found.verb, &resource, body).await?;
                if found.verb.is_read() {
                    return Ok(response);
                }
                for step in AFTER_WRITE.iter().filter(|step| (step.applies)(self, &resource)) {
                    (step.run)(self, &resource).await;
                }
                Ok(response)
            }
        }
    }

    async fn resource<B>(
        &self,
        call: &Call,
        verb: Verb,
        resource: &ResourcePath,
        body: B,
    ) -> Result<Response, Status>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if is_out_of_scope(verb, resource) {
            return Ok(body::page_not_found());
        }
        check_verb(call, verb, resource)?;
        call.warn(resource.kind.deprecation.as_ref().map(ToString::to_string));
        let writes_parent = subresource::writes_parent(&resource.subresource);
        match verb {
            Verb::List => return read::list(self, call, resource).await,
            Verb::Get if writes_parent => return read::get(self, call, resource).await,
            Verb::Get => return subresource::get(self, call, resource).await,
            _ => {}
        }
        call.reading.store(true, Relaxed);
        let bytes = body::read(&call.headers, body).await?;
        call.reading.store(false, Relaxed);
        if !writes_parent || subresource::is_transient(&resource.kind) {
            return subresource::write(self, call, resource, bytes).await;
        }
        let written = match verb {
            Verb::Create => write::create(self, call, resource, bytes).await?,
            Verb::Update => write::update(self, call, resource, bytes).await?,
            Verb::Patch => patch::patch(self, call, resource, bytes).await?,
            Verb::Delete => return delete::one(self, call, resource, &bytes).await,
            _ => return delete::collection(self, call, resource, &bytes).await,
        };
        encode::written(self, call, &resource.kind, &written)
    }
}

/// Rejects a verb that the kind or the subresource does not support (S1.6).
fn check_verb(call: &Call, verb: Verb, resource: &ResourcePath) -> Result<(), Status> {
    let kind = &resource.kind;
    if !verb.is_served(resource, &call.method) {
        return Err(match kind.custom {
            true => no_such_verb(call, resource),
            false => status::method_not_allowed(),
        });
    }
    let word = verb.as_str();
    let allowed = match kind.subresource(&resource.subresource) {
        Some(subresource) => subresource.verbs.iter().any(|allowed| allowed == word),
        None => kind.allows(word),
    };
    let across = kind.namespaced && resource.namespace.is_empty();
    if !allowed || (across && verb != Verb::List) {
        return Err(match kind.custom {
            true => status::verb_not_supported(kind, word),
            false => status::method_not_allowed(),
        });
    }
    Ok(())
}

impl listen::Handle for Server {
    type Body = body::Body;

    async fn handle(&self, peer: Arc<Peer>, request: Request<Incoming>) -> Response {
        Server::handle(self, &peer, request).await
    }
}

/// A refusal that no browser interprets as a document.
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

/// The response to a request whose handler panicked: a panic fails only that request (R46).
fn panicked() -> Response {
    tracing::error!("a handler panicked");
    let text = "This request caused apiserver to panic. Look in the logs for details.";
    body::text(StatusCode::INTERNAL_SERVER_ERROR, text)
}

/// Whether a request writes to a namespaced custom kind without a namespace: that path does not
/// exist (S1.5).
fn is_out_of_scope(verb: Verb, resource: &ResourcePath) -> bool {
    let kind = &resource.kind;
    kind.custom && kind.namespaced && resource.namespace.is_empty() && !verb.is_read()
}

/// The error of an unsupported method on a custom kind (S1.7).
fn no_such_verb(call: &Call, resource: &ResourcePath) -> Status {
    match call.method {
        Method::PUT | Method::PATCH => status::bad_request("name must be provided"),
        Method::POST => status::verb_not_supported(&resource.kind, "create"),
        Method::DELETE => status::verb_not_supported(&resource.kind, "delete"),
        _ => status::verb_not_supported(&resource.kind, ""),
    }
}
