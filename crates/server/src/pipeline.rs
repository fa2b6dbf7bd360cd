//! The pipeline: one request in, one response out.
//!
//! River: HTTP → **pipeline** → read, write, watch. It does not know sockets: a listener calls
//! [`Server::handle`], and so can a test.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use headwater_api::Status;
use headwater_api::query::Query;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, StatusCode};
use tokio::time::Instant;

use crate::answer::body::{self, RequestBody, Response};
use crate::answer::status;
use crate::audit::Trail;
use crate::front::identity::{Identity, Peer};
use crate::front::listen::{self, Handler, HealthHandler};
use crate::kinds::custom;
use crate::live::traffic::FinishedRequest;
use crate::outgoing::upstream::PassedCredential;
use crate::random;
use crate::relayed::{self, Relayed};
use crate::request::authorize::{self, AccessRequest};
use crate::request::call::Call;
use crate::request::decode;
use crate::request::flow::Arriving;
use crate::request::flow::seat::Seat;
use crate::request::impersonate::{self, EffectiveUser};
use crate::request::observe::RequestMetrics;
use crate::request::route::{self, ResourcePath, Route, Target, Verb};
use crate::server::Server;
use crate::trace::RequestArrival;
use crate::upkeep::after_write::after_write;
use crate::verbs::{
    delete, discovery, encode, kubelet, patch, proxy, read, subresource, watch, write,
};
use crate::work::INLINE_MAX;

static AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

impl Server {
    /// Handles the requests of a listener.
    pub(crate) fn handler(&self) -> Handler {
        let server = self.clone();
        Arc::new(move |peer, request| {
            let server = server.clone();
            async move { server.handle(&peer, request).await }.boxed()
        })
    }

    /// Answers health checks without waiting for anything.
    pub(crate) fn health_handler(&self) -> HealthHandler {
        let server = self.clone();
        Arc::new(move |uri| server.health().answer(uri.path(), uri.query().unwrap_or_default()))
    }

    /// Handles one request. A panic fails only that request (R46).
    pub fn handle<'a>(
        &'a self,
        peer: &'a Peer,
        request: Request<RequestBody>,
    ) -> BoxFuture<'a, Response> {
        let audit_id = audit_id(request.headers());
        let answered =
            AssertUnwindSafe(self.answer(peer, request, audit_id.clone())).catch_unwind();
        let headed = async move {
            let mut response = answered.await.unwrap_or_else(|_| {
                tracing::error!("a handler panicked");
                self.metrics().panics.with(&[]).inc();
                let text = "This request caused apiserver to panic. Look in the logs for details.";
                body::text(StatusCode::INTERNAL_SERVER_ERROR, text)
            });
            if response.status() != StatusCode::SWITCHING_PROTOCOLS {
                let headers = response.headers_mut();
                headers.insert(AUDIT_ID.clone(), audit_id);
                headers
                    .entry(header::CACHE_CONTROL)
                    .or_insert(HeaderValue::from_static("no-cache, private"));
            }
            response
        };
        headed.boxed()
    }

    /// Determines the user and the route of a request, and records it if that is wanted.
    async fn answer(
        &self,
        peer: &Peer,
        mut request: Request<RequestBody>,
        audit_id: HeaderValue,
    ) -> Response {
        if let Some(arrival) = self.tracer().arrival(audit_id.to_str().unwrap_or_default()) {
            request.extensions_mut().insert(arrival);
        }
        let identified = self.identify(peer, request.uri().path(), request.headers()).await;
        let result = if identified.is_ok() { "success" } else { "error" };
        self.metrics().authentication_attempts.with(&[result]).inc();
        let parsed = Query::parse(request.uri().query().unwrap_or_default());
        let query = parsed.as_ref().cloned().unwrap_or_default();
        let route = route::route(&self.registry(), request.method(), request.uri().path(), &query);
        let id = audit_id.to_str().unwrap_or_default();
        let trail = self.audit().begin(peer, &request, id, identified.as_ref().ok(), &route);
        if let Some(trail) = &trail {
            request.extensions_mut().insert(Arc::clone(trail));
        }
        let is_stream =
            matches!(&route.target, Target::Resource(resource) if kubelet::is_stream(resource));
        let is_unlimited = is_stream || route.verb == Verb::Watch;
        let refuse = |status| encode::status(accepted(request.headers()), &status);
        let response = match (identified, parsed) {
            (Err(_), _) => refuse(status::unauthorized()),
            (_, Err(status)) => refuse(status),
            (Ok(identity), Ok(query)) => match self.relayed() {
                Some(relayed) if !relayed.answers(&route, &query, request.method()) => {
                    self.pass_on(relayed, peer, identity, &query, &route, request).await
                }
                Some(relayed) if relayed.passes_on_late(&route, request.method()) => {
                    self.answer_or_pass_on(relayed, peer, identity, query, route, request).await
                }
                _ => self.authorized(peer, identity, query, route, request).await,
            },
        };
        match trail {
            Some(trail) => {
                let is_long_running = is_unlimited && !response.status().is_client_error();
                trail.finish(response, is_long_running)
            }
            None => response,
        }
    }

    /// Answers a read of a relay. If the relay cannot prove in time that its state is as new as the read
    /// asks for, the upstream answers.
    async fn answer_or_pass_on(
        &self,
        relayed: &Relayed,
        peer: &Peer,
        caller: Arc<Identity>,
        query: Query,
        route: Route,
        request: Request<RequestBody>,
    ) -> Response {
        let mut again = Request::new(body::request(http_body_util::Empty::new()));
        *again.uri_mut() = request.uri().clone();
        *again.headers_mut() = request.headers().clone();
        let (asked, target) = (query.clone(), route.clone());
        let identity = Arc::clone(&caller);
        let response = self.authorized(peer, identity, query, route, request).await;
        match response.status() {
            StatusCode::GATEWAY_TIMEOUT => {
                self.pass_on(relayed, peer, caller, &asked, &target, again).await
            }
            _ => response,
        }
    }

    /// Passes a request on to the upstream of a relay, which decides about it. A bearer token that the
    /// upstream has confirmed goes with it; other credentials cannot be shown twice, so the relay shows
    /// its own and names the user, if it may.
    async fn pass_on(
        &self,
        relayed: &Relayed,
        peer: &Peer,
        caller: Arc<Identity>,
        query: &Query,
        route: &Route,
        mut request: Request<RequestBody>,
    ) -> Response {
        let upstream = relayed.upstream();
        if caller.is_anonymous() || self.shows_token(peer, request.uri().path(), request.headers())
        {
            return upstream.forward(request, PassedCredential::Sender).await;
        }
        if !upstream.impersonates() {
            let why = "this relay cannot pass on a client certificate or a token of its own: use a \
                       bearer token of the upstream, send the request to the upstream, or start the \
                       relay with --impersonate";
            return refused(accepted(request.headers()), &status::forbidden("", "", "", why));
        }
        let asked = AccessRequest::of(route, query);
        let headers = request.headers_mut();
        let acting = impersonate::acting(self.access(), caller, headers, &asked).await;
        let identity = match acting {
            Ok(acting) => acting.identity,
            Err(status) => return refused(accepted(request.headers()), &status),
        };
        headers.remove(header::AUTHORIZATION);
        match relayed::impersonate(headers, &identity) {
            Ok(()) => upstream.forward(request, PassedCredential::Impersonation).await,
            Err(status) => refused(accepted(request.headers()), &status),
        }
    }

    /// Determines the effective user of a request, waits for its turn, and checks whether it is allowed.
    async fn authorized(
        &self,
        peer: &Peer,
        caller: Arc<Identity>,
        query: Query,
        route: Route,
        mut request: Request<RequestBody>,
    ) -> Response {
        if let (false, Err(status)) = (route.verb == Verb::Watch, query.timeout()) {
            return encode::status(accepted(request.headers()), &status);
        }
        let asked = AccessRequest::of(&route, &query);
        let headers = request.headers_mut();
        let acting = impersonate::acting(self.access(), Arc::clone(&caller), headers, &asked);
        let EffectiveUser { identity, constraint } = match acting.await {
            Ok(acting) => acting,
            Err(status) => return refused(accepted(request.headers()), &status),
        };
        let trail = request.extensions().get::<Arc<Trail>>().cloned();
        if let (Some(trail), false) = (&trail, Arc::ptr_eq(&caller, &identity)) {
            trail.impersonates(&identity, constraint);
        }
        let arriving = Arriving {
            identity: &identity,
            attributes: &asked.attributes,
            route: &route,
            query: &query,
            uri: request.uri(),
        };
        // Before authorization, so that a rejection tells nothing about permissions.
        let mut seat = match self.flow().admit(&arriving).await {
            Ok(seat) => seat,
            Err(rejected) => {
                RequestMetrics::new(self.metrics(), &route, &query).rejected(&rejected);
                return rejected;
            }
        };
        // A client without permission must not learn what exists (R48).
        let decision = match &trail {
            Some(_) => self.access().explain(&identity, &asked).await,
            None => self.access().decide(&identity, &asked).await,
        };
        let result = if decision.is_allowed() { "allowed" } else { "denied" };
        self.metrics().authorization_attempts.with(&[result]).inc();
        if let Some(trail) = trail {
            let opinion = if decision.is_allowed() { "allow" } else { "forbid" };
            trail.annotate("authorization.k8s.io/decision", opinion);
            trail.annotate("authorization.k8s.io/reason", &decision.reason);
        }
        let refusal = (!decision.is_allowed()).then(|| match self.relayed() {
            Some(_) if decision.is_failure() => {
                status::unavailable("the relay cannot ask its upstream who may do this")
                    .retry_after(1)
            }
            _ => authorize::refusal(&identity, &asked.attributes, &decision.reason),
        });
        let counted = self
            .live()
            .traffic()
            .begin()
            .map(|began| (began, Arc::clone(&identity), seat.level().to_owned(), route.verb));
        let trace = match (&refusal, request.extensions_mut().remove::<RequestArrival>()) {
            (None, Some(arrival)) => {
                let head = (request.method(), request.uri(), request.headers());
                self.tracer().begin(arrival, &identity, &route, head)
            }
            _ => None,
        };
        if let Some(trace) = &trace {
            request.extensions_mut().insert(Arc::clone(trace));
        }
        let response = match refusal {
            None => self.execute(peer, identity, query, route, request, &mut seat).await,
            Some(status) => refused(accepted(request.headers()), &status),
        };
        if let Some(trace) = trace {
            trace.answered(response.status());
        }
        if let Some((began, identity, level, verb)) =
            counted.filter(|(.., verb)| *verb != Verb::Watch)
        {
            let (user, level, is_read) = (&*identity.user, &*level, verb.is_read());
            let finished = FinishedRequest { user, level, is_read, took: began.elapsed() };
            self.live().traffic().record(&finished);
        }
        seat.answered(response)
    }

    /// Executes an allowed request: starts a watch, or calls another handler within the deadline.
    async fn execute(
        &self,
        peer: &Peer,
        identity: Arc<Identity>,
        query: Query,
        route: Route,
        request: Request<RequestBody>,
        seat: &mut Seat,
    ) -> Response {
        match &route.target {
            Target::Invalid(Some(status)) => return status::response(status),
            Target::Invalid(None) => return body::page_not_found(),
            _ => {}
        }
        let observed = RequestMetrics::new(self.metrics(), &route, &query);
        if !matches!(route.target, Target::Resource(_))
            && let Some(remote) = self.remotes().of_path(request.uri().path())
        {
            let (parts, body) = request.into_parts();
            let is_upgrade = parts.headers.contains_key(header::UPGRADE);
            let is_watch = route.verb == Verb::Watch;
            let forwarded = proxy::forward(self, &remote, (&identity, peer), parts, body);
            let mut response = match is_watch || is_upgrade {
                true => forwarded.await,
                false => {
                    let end = Instant::now() + self.settings().request_timeout;
                    let answered = tokio::time::timeout_at(end, forwarded).await;
                    answered.map_or_else(|_| proxy::too_late(), |answer| proxy::until(end, answer))
                }
            };
            let is_stream = !response.headers().contains_key(header::CONTENT_LENGTH);
            if is_watch && is_stream && response.status() == StatusCode::OK {
                response.extensions_mut().insert(listen::LongRunning);
            }
            return observed.answered(response);
        }
        let age = self.relayed().map(|relayed| relayed.age(&route.target));
        let (mut parts, body) = request.into_parts();
        let upgrade = parts.extensions.remove::<hyper::upgrade::OnUpgrade>();
        let mut call = Call::new(identity, parts, query);
        let has_table = match &route.target {
            Target::Resource(resource) => subresource::has_table(resource),
            _ => true,
        };
        let answered = match (call.negotiate(&route, has_table), &route.target) {
            (Err(status), _) => Err(status),
            (Ok(()), Target::Resource(resource)) if route.verb == Verb::Watch => {
                watch::start(self, &call, (&route, resource), upgrade, peer, seat).await
            }
            (Ok(()), Target::Resource(resource)) if kubelet::is_stream(resource) => {
                match check_verb(&call, route.verb, resource) {
                    Ok(()) => kubelet::stream(self, &call, resource, upgrade, peer).await,
                    Err(status) => Err(status),
                }
            }
            (Ok(()), _) => {
                if is_endless(&route.target) {
                    seat.take();
                }
                let longest = self.settings().request_timeout;
                let asked = call.query.timeout().unwrap_or_default(); // `answer` refuses errors
                let deadline = asked.map_or(longest, |asked| asked.min(longest));
                let dispatched = self.dispatch(&call, route, body).boxed();
                let answered = tokio::time::timeout(deadline, dispatched).await;
                answered.unwrap_or_else(|_| Err(call.timed_out()))
            }
        };
        let mut response =
            answered.unwrap_or_else(|status| encode::status(call.header(header::ACCEPT), &status));
        if response.status() == StatusCode::REQUEST_TIMEOUT {
            // The rest of the body would be parsed as the next request.
            response.extensions_mut().insert(listen::HangUp);
        }
        if let Some(age) = age.flatten() {
            response.headers_mut().insert(relayed::AGE.clone(), age);
        }
        observed.answered(call.with_warnings(response))
    }

    /// Calls the handler of the verb. The body is read only if the verb is served.
    async fn dispatch(
        &self,
        call: &Call,
        route: Route,
        body: RequestBody,
    ) -> Result<Response, Status> {
        let (verb, resource) = match route.target {
            Target::Path(segments) => return discovery::path(self, call, &segments).await,
            Target::Missing { status: Some(status), .. } => return Err(status),
            Target::Missing { .. } | Target::Invalid(_) => return Ok(body::page_not_found()),
            Target::Resource(resource) => (route.verb, resource),
        };
        if is_out_of_scope(verb, &resource) {
            return Ok(body::page_not_found());
        }
        check_verb(call, verb, &resource)?;
        let kind = &resource.kind;
        call.warn(kind.deprecation.as_ref().map(ToString::to_string));
        let writes_parent = subresource::writes_parent(&resource.subresource);
        match verb {
            Verb::List => return read::list(self, call, &resource).await,
            Verb::Get if writes_parent => return read::get(self, call, &resource).await,
            Verb::Get => return subresource::get(self, call, &resource).await,
            _ => {}
        }
        let bytes = call.read(body).await?;
        let read = self.metrics().request_body_sizes.with(&[&kind.resource(), verb.as_str()]);
        read.observe(bytes.len() as f64);
        let long = long_bytes(self, verb, &resource, bytes.len());
        let write = self.write(call, verb, &resource, bytes);
        match long {
            None => write.await,
            Some(bytes) => self.work().run(bytes, write.boxed()).await,
        }
    }

    /// Calls the handler of a verb that writes.
    async fn write(
        &self,
        call: &Call,
        verb: Verb,
        resource: &ResourcePath,
        bytes: Bytes,
    ) -> Result<Response, Status> {
        let kind = &resource.kind;
        let writes_parent = subresource::writes_parent(&resource.subresource);
        if let Some(trail) = &call.trail {
            trail.sent(|| decode::audited(kind, call, &bytes));
        }
        let response = match verb {
            _ if !writes_parent || subresource::is_transient(kind) => {
                subresource::write(self, call, resource, bytes).await?
            }
            Verb::Delete => delete::one(self, call, resource, &bytes).await?,
            Verb::DeleteCollection => delete::collection(self, call, resource, &bytes).await?,
            _ => {
                let written = match verb {
                    Verb::Create => write::create(self, call, resource, bytes).await?,
                    Verb::Update => write::update(self, call, resource, bytes).await?,
                    _ => patch::patch(self, call, resource, bytes).await?,
                };
                encode::written(self, call, kind, &written)?
            }
        };
        after_write(self, resource).await;
        Ok(response)
    }
}

/// Whether a path is a stream that lasts as long as its reader, like a watch: it holds no seat.
fn is_endless(target: &Target) -> bool {
    matches!(target, Target::Path(segments) if segments.join("/") == "debug/headwater/river")
}

/// The bytes that a write works on, if they make it long. Definitions and policies are compiled, and
/// large patterns may have to be, so their writes are always long.
fn long_bytes(server: &Server, verb: Verb, resource: &ResourcePath, body: usize) -> Option<usize> {
    let kind = &resource.kind;
    let is_compiled = custom::is_definition(kind)
        || kind.group == "admissionregistration.k8s.io"
        || kind.definition.as_ref().is_some_and(|custom| custom.schema.has_large_patterns());
    let is_small_change = matches!(verb, Verb::Patch | Verb::Delete);
    let mut bytes = body;
    if is_small_change || !resource.subresource.is_empty() {
        let cache = server.cache();
        let snapshot = cache.snapshot(&cache.resource(&kind.prefix));
        bytes += snapshot.get(&resource.key()).map_or(0, |object| object.as_slice().len());
    }
    (is_compiled || bytes > INLINE_MAX).then_some(bytes)
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

/// A refusal that no browser interprets as a document.
fn refused(accept: &str, status: &Status) -> Response {
    let mut response = encode::status(accept, status);
    body::set(&mut response, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    response
}

/// The media types that a client accepts.
fn accepted(headers: &HeaderMap) -> &str {
    headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default()
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
