//! The server as one value: a request in, a response out.
//!
//! River: HTTP → **server** → read, write, watch. It knows nothing of sockets: a listener calls
//! [`Server::handle`], and so can a test.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use futures::FutureExt;
use headwater_api::accept::{Endpoint, Representation};
use headwater_api::query::Query;
use headwater_api::{Clock, Status, kind};
use headwater_cache::Cache;
use http::header::{self, HeaderMap, HeaderValue};
use http::{HeaderName, Method, Request, StatusCode};
use hyper::body::Incoming;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::admission::extensions::Extensions;
use crate::admission::quota::Quotas;
use crate::answer::body::{self, Finish, Response};
use crate::answer::status;
use crate::front::identity::{Authenticator, Credential, Identity, Peer, Unauthorized};
use crate::front::listen;
use crate::front::service_account::{self, AuthenticatedToken, Issuer, ServiceAccounts};
use crate::kinds::custom::{self, definitions::Definitions};
use crate::kinds::discovery;
use crate::kinds::openapi::{Descriptions, Documents};
use crate::kinds::registry::Registry;
use crate::outgoing::Loopback;
use crate::random;
use crate::request::authorize;
use crate::request::authorize::Attributes;
use crate::request::fairness::{Fairness, Limits};
use crate::request::flow::Flows;
use crate::request::impersonate;
use crate::request::observe::{self, Seen};
use crate::request::route::{Lost, Resource, Route, Target, http_verb, route};
use crate::system::backup::Backup;
use crate::system::health::{Answers, Health};
use crate::system::metrics::Metrics;
use crate::verbs::delete;
use crate::verbs::encode;
use crate::verbs::encode::gzip::Blocks;
use crate::verbs::patch;
use crate::verbs::read;
use crate::verbs::subresource;
use crate::verbs::watch;
use crate::verbs::write;

/// How the server is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// The longest an ordinary request may take (S8.25).
    pub request_timeout: Duration,
    /// The shortest a watch lasts that does not say; it is spread up to twice this (S4.9).
    pub watch_timeout: Duration,
    /// About how often a watch gets a bookmark (S4.12).
    pub bookmark_every: Duration,
    /// Whether webhooks on this machine may be called.
    pub webhooks_on_loopback: Loopback,
    /// How much may be open at a time.
    pub limits: Limits,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            request_timeout: Duration::from_secs(60),
            watch_timeout: Duration::from_secs(1800),
            bookmark_every: Duration::from_secs(60),
            webhooks_on_loopback: Loopback::Callable,
            limits: Limits::default(),
        }
    }
}

/// The whole API server. Cheap to clone.
#[derive(Clone)]
pub struct Server {
    shared: Arc<Shared>,
}

struct Shared {
    cache: Cache,
    registry: ArcSwap<Registry>,
    definitions: tokio::sync::Mutex<Definitions>,
    authenticator: Authenticator,
    service_accounts: ServiceAccounts,
    flows: Flows,
    fairness: Arc<Fairness>,
    clock: Arc<dyn Clock>,
    options: Options,
    extensions: Extensions,
    quotas: Quotas,
    documents: Documents,
    descriptions: Descriptions,
    backup: Backup,
    /// What lists were compressed to.
    blocks: Arc<Blocks>,
    health: Health,
    metrics: Metrics,
    /// Set when the server begins to stop: watches end, readiness turns false.
    draining: CancellationToken,
    /// The same, for those who look at it at every turn: looking takes no lock.
    is_draining: AtomicBool,
}

/// What a server is made of.
pub struct Parts {
    /// The cache, already loaded.
    pub cache: Cache,
    /// Tells who is asking.
    pub authenticator: Authenticator,
    /// Signs the tokens of service accounts.
    pub issuer: Issuer,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Where requests are counted.
    pub metrics: Metrics,
    /// What types and fields are for: shown by `kubectl explain`.
    pub descriptions: Descriptions,
    /// Makes backups.
    pub backup: Backup,
    /// Times and limits.
    pub options: Options,
}

/// What a handler knows of a request besides its target and body.
pub(crate) struct Call {
    pub(crate) identity: Arc<Identity>,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) query: Query,
    /// The query as it was sent.
    pub(crate) raw_query: String,
    pub(crate) finish: Finish,
    pub(crate) representation: Representation,
    /// What the client is to be told, whether it succeeds or not (S1.44).
    warnings: Mutex<Vec<String>>,
    /// The body has begun to be read and is not whole.
    reading: AtomicBool,
}

impl Call {
    /// A header as text; empty if it is not there or not text.
    pub(crate) fn header(&self, name: HeaderName) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Notes what the client is to be told beside the answer, each thing once.
    pub(crate) fn warn<T: Into<String>>(&self, texts: impl IntoIterator<Item = T>) {
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        for text in texts.into_iter().map(Into::into) {
            if !warnings.contains(&text) {
                warnings.push(text);
            }
        }
    }

    /// The answer, with everything that was noted.
    fn with_warnings(&self, mut response: Response) -> Response {
        let warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        encode::warn(&mut response, &warnings);
        response
    }

    /// Chooses the representation before anything is done: a write must not happen and then be
    /// unanswerable.
    fn negotiate(&mut self, found: &Route) -> Result<(), Status> {
        let Target::Resource(resource) = &found.target else { return Ok(()) };
        let endpoint = match found.verb {
            "watch" => Endpoint::Watch,
            "list" | "deletecollection" => Endpoint::List,
            _ => Endpoint::Object,
        };
        let accept = self.header(header::ACCEPT);
        self.representation =
            Representation::negotiate(accept, endpoint, &resource.kind, &self.query)?;
        self.finish.pretty |= self.representation.pretty;
        Ok(())
    }
}

static AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

impl Server {
    /// A server over a cache that has been loaded.
    pub fn new(parts: Parts) -> Result<Server, headwater_cache::Error> {
        let Parts { cache, authenticator, issuer, clock, metrics, descriptions, backup, options } =
            parts;
        let registry = Registry::new(kind::builtin());
        define(&cache, &registry)?;
        let store = Arc::clone(cache.store());
        let health = Health::builder()
            .check("storage", Answers::Readiness, move || match store.condition().trouble {
                Some(trouble) => Err(trouble),
                None => Ok(()),
            })
            .build();
        observe::cache(&metrics, &cache);
        let shared = Shared {
            service_accounts: ServiceAccounts::new(issuer, cache.clone(), clock.clone()),
            flows: Flows::new(&cache),
            fairness: Fairness::new(options.limits, &metrics),
            extensions: Extensions::new(&cache, options.webhooks_on_loopback),
            quotas: Quotas::new(&cache),
            cache,
            definitions: tokio::sync::Mutex::new(Definitions::new(registry.clone())),
            registry: ArcSwap::from_pointee(registry),
            authenticator,
            clock,
            options,
            documents: Documents::default(),
            descriptions,
            backup,
            blocks: Arc::default(),
            health,
            metrics,
            draining: CancellationToken::new(),
            is_draining: AtomicBool::new(false),
        };
        let server = Server { shared: Arc::new(shared) };
        server.serve_definitions()?;
        Ok(server)
    }

    /// Tells an empty cache how built-in kinds are read, so that loading it reads them once.
    pub fn prepare(cache: &Cache) -> Result<(), headwater_cache::Error> {
        define(cache, &Registry::new(kind::builtin()))
    }

    /// The cache that reads come from.
    pub fn cache(&self) -> &Cache {
        &self.shared.cache
    }

    /// The kinds of this moment.
    pub fn registry(&self) -> Arc<Registry> {
        self.shared.registry.load_full()
    }

    pub(crate) fn replace_registry(&self, registry: Registry) {
        self.shared.registry.store(Arc::new(registry));
    }

    pub(crate) fn definitions(&self) -> &tokio::sync::Mutex<Definitions> {
        &self.shared.definitions
    }

    pub(crate) fn options(&self) -> &Options {
        &self.shared.options
    }

    pub(crate) fn documents(&self) -> &Documents {
        &self.shared.documents
    }

    pub(crate) fn descriptions(&self) -> &Descriptions {
        &self.shared.descriptions
    }

    pub(crate) fn backup(&self) -> &Backup {
        &self.shared.backup
    }

    pub(crate) fn blocks(&self) -> &Arc<Blocks> {
        &self.shared.blocks
    }

    pub(crate) fn fairness(&self) -> &Arc<Fairness> {
        &self.shared.fairness
    }

    pub(crate) fn quotas(&self) -> &Quotas {
        &self.shared.quotas
    }

    pub(crate) fn extensions(&self) -> &Extensions {
        &self.shared.extensions
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    /// Cancelled when the server begins to stop.
    pub fn draining(&self) -> &CancellationToken {
        &self.shared.draining
    }

    /// Whether the server has begun to stop.
    pub(crate) fn is_draining(&self) -> bool {
        self.shared.is_draining.load(Acquire)
    }

    /// Ready once the server has begun to stop. For those who wait for a watcher, too: they are woken
    /// through the cache then, so that thousands of them need not wait in one more place.
    pub(crate) fn drained(&self) -> impl Future<Output = ()> {
        std::future::poll_fn(|_| match self.is_draining() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
    }

    /// Begins to stop: readiness turns false, watches get a last bookmark and end cleanly.
    pub fn drain(&self) {
        self.shared.health.stop();
        // In this order: whoever is woken finds the mark.
        self.shared.is_draining.store(true, Release);
        self.shared.draining.cancel();
        self.shared.cache.nudge();
    }

    /// Answers one request.
    pub async fn handle<B>(&self, peer: &Peer, request: Request<B>) -> Response
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let audit_id = audit_id(request.headers());
        let answered = AssertUnwindSafe(self.answer(peer, request)).catch_unwind().await;
        let mut response = answered.unwrap_or_else(|_| {
            self.shared.metrics.panics.with(&[]).inc();
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
        self.shared.metrics.authentication_attempts.with(&[result]).inc();
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
        let Some(flow) = self.shared.flows.classify(&identity, &attributes) else {
            return self.routed(peer, identity, found, query, parts, body).await;
        };
        let labels = [flow.level.as_str(), flow.schema.as_str()];
        self.shared.metrics.flow_dispatched.with(&labels).inc();
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
        let seen = Seen::new(&self.shared.metrics, &found, &query);
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
        let longest = self.shared.options.request_timeout;
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

    async fn identify(
        &self,
        peer: &Peer,
        headers: &HeaderMap,
    ) -> Result<Arc<Identity>, Unauthorized> {
        match self.shared.authenticator.identify(peer, headers)? {
            Credential::Identified(identity) => Ok(identity),
            Credential::Token(token) => {
                let known = self.shared.service_accounts.identify(token, &[]).await;
                known.map(|known| known.identity).map_err(|_| Unauthorized)
            }
        }
    }

    /// Whose bearer token this is, if it is meant for any of these audiences; none is this server.
    pub(crate) async fn identify_token(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<AuthenticatedToken, service_account::Refused> {
        let own = service_account::ISSUER.to_owned();
        let is_for_us = audiences.is_empty() || audiences.contains(&own);
        match self.shared.authenticator.identify_token(token) {
            Some(identity) if is_for_us => {
                Ok(AuthenticatedToken { identity, audiences: vec![own] })
            }
            _ => self.shared.service_accounts.identify(token, audiences).await,
        }
    }

    pub(crate) fn service_accounts(&self) -> &ServiceAccounts {
        &self.shared.service_accounts
    }

    /// Health paths.
    pub(crate) fn health(&self, call: &Call) -> Option<Response> {
        let answer = self.shared.health.answer(&call.path, Some(&call.raw_query))?;
        Some(answer.map(body::full))
    }

    /// Where requests are counted.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.shared.metrics
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
                    self.quotas().settle(self, &resource.kind, &resource.namespace).await;
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
        if custom::is_out_of_scope(call, resource) {
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
            _ if resource.kind.custom => return Err(custom::no_such_verb(call, resource)),
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

/// Says which fields of each stored kind can be selected by. What is known already stays as it is.
fn define(cache: &Cache, registry: &Registry) -> Result<(), headwater_cache::Error> {
    for row in registry.kinds().iter().filter(|row| !row.is_converted()) {
        cache.redefine(&row.prefix, &row.fields)?;
    }
    Ok(())
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
