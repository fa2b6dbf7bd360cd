//! One request as handlers see it: everything but its target and its body.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use headwater_api::Status;
use headwater_api::accept::{Endpoint, Representation};
use headwater_api::distinct::Distinct;
use headwater_api::query::Query;
use headwater_store::{Store, Write};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, request};

use crate::answer::body::{self, Finish, RequestBody, Response};
use crate::answer::status;
use crate::audit::Trail;
use crate::commit::{CommitOutcome, commit};
use crate::front::identity::Identity;
use crate::lock::lock;
use crate::request::route::{Route, Target, Verb};
use crate::trace::RequestTrace;

/// One request: everything that a handler reads besides the target and the body.
pub(crate) struct Call {
    pub(crate) identity: Arc<Identity>,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) query: Query,
    /// The undecoded query.
    pub(crate) raw_query: String,
    pub(crate) finish: Finish,
    pub(crate) representation: Representation,
    /// The audit trail, if the request is recorded.
    pub(crate) trail: Option<Arc<Trail>>,
    /// The trace, if the request is traced.
    pub(crate) trace: Option<Arc<RequestTrace>>,
    /// Warnings for the client, sent on success and on failure (S1.44).
    warnings: Mutex<Distinct<String>>,
    /// Whether the body is being read.
    reading: AtomicBool,
}

impl Call {
    pub(crate) fn new(identity: Arc<Identity>, mut parts: request::Parts, query: Query) -> Call {
        let trail = parts.extensions.remove::<Arc<Trail>>();
        let trace = parts.extensions.remove::<Arc<RequestTrace>>();
        Call {
            identity,
            trail,
            trace,
            finish: finish(&parts.headers, &query),
            method: parts.method,
            path: parts.uri.path().to_owned(),
            headers: parts.headers,
            query,
            raw_query: parts.uri.query().unwrap_or_default().to_owned(),
            representation: Representation::default(),
            warnings: Mutex::default(),
            reading: AtomicBool::new(false),
        }
    }

    /// Reads the body of the request.
    pub(crate) async fn read(&self, body: RequestBody) -> Result<Bytes, Status> {
        self.reading.store(true, Relaxed);
        let bytes = body::read(&self.headers, body).await?;
        self.reading.store(false, Relaxed);
        Ok(bytes)
    }

    /// Commits a write of this request.
    pub(crate) async fn commit(
        &self,
        store: &dyn Store,
        write: Write,
    ) -> Result<CommitOutcome, Status> {
        match &self.trace {
            None => commit(store, write).await,
            Some(trace) => Box::pin(trace.commit(store, write)).await,
        }
    }

    /// The error of a request that took too long.
    pub(crate) fn timed_out(&self) -> Status {
        if self.reading.load(Relaxed) {
            return status::body_timeout();
        }
        let why = "Timeout: request did not complete within the allotted timeout";
        Status::failure(504, "Timeout", why)
    }

    /// A header as text; empty if it is missing or not text.
    pub(crate) fn header(&self, name: HeaderName) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Adds warnings for the client, each text once.
    pub(crate) fn warn<T: Into<String>>(&self, texts: impl IntoIterator<Item = T>) {
        lock(&self.warnings).extend(texts.into_iter().map(Into::into));
    }

    /// The response with all warnings.
    pub(crate) fn with_warnings(&self, mut response: Response) -> Response {
        let warnings = lock(&self.warnings);
        warn(&mut response, warnings.list());
        response
    }

    /// Chooses the representation before the request is executed: a write must not succeed if its
    /// response cannot be encoded. `has_table` is whether a single object has a table.
    pub(crate) fn negotiate(&mut self, found: &Route, has_table: bool) -> Result<(), Status> {
        let Target::Resource(resource) = &found.target else { return Ok(()) };
        let endpoint = match found.verb {
            Verb::Watch => Endpoint::Watch,
            Verb::List | Verb::DeleteCollection => Endpoint::List,
            _ if !has_table => Endpoint::Untabled,
            _ => Endpoint::Object,
        };
        let accept = self.header(header::ACCEPT);
        self.representation =
            Representation::negotiate(accept, endpoint, &resource.kind, &self.query)?;
        self.finish.pretty |= self.representation.pretty;
        Ok(())
    }
}

fn finish(headers: &HeaderMap, query: &Query) -> Finish {
    let agent = headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok());
    Finish::of(headers, query.pretty(agent.unwrap_or_default()))
}

/// The maximum size of all warnings; beyond it each one is truncated (S1.44).
const WARNINGS_MAX: usize = 4096;
const WARNING_MAX: usize = 256;

/// Adds `Warning` headers, each text once (S1.44).
fn warn(response: &mut Response, warnings: &[String]) {
    static WARNING: HeaderName = HeaderName::from_static("warning");
    let total: usize = warnings.iter().map(String::len).sum();
    let mut seen: HashSet<&str> = HashSet::new();
    let mut sent = 0;
    for text in warnings {
        let mut cut = text.as_str();
        if total > WARNINGS_MAX {
            let end = (0..=cut.len().min(WARNING_MAX)).rev().find(|at| cut.is_char_boundary(*at));
            cut = &cut[..end.unwrap_or(0)];
        }
        sent += cut.len();
        if sent > WARNINGS_MAX || !seen.insert(cut) {
            continue;
        }
        let escaped = cut.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{escaped}\"")) {
            response.headers_mut().append(WARNING.clone(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    /// B137: with a search of the list for each warning, this test does not end.
    #[test]
    fn a_hundred_thousand_warnings_take_linear_time() {
        let (parts, ()) = Request::new(()).into_parts();
        let call = Call::new(Arc::new(Identity::anonymous()), parts, Query::parse("").unwrap());
        let texts = || (0..400_000).map(|n| format!("unknown field \"spec.{n}\""));
        call.warn(texts());
        call.warn(texts());
        assert_eq!(lock(&call.warnings).list().len(), 400_000);
    }
}
