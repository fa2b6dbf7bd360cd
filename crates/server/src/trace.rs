//! Traces: the path of a request from the socket to the disk, and of a write to its last watcher.
//!
//! River: pipeline, admission, commit, watches → **trace** → the exporter's queue.
//! Promise: without a tracer, a request and a batch of events cost one branch each; with one, no
//! request waits for the exporter, and spans that find no place are counted as lost. Spans have no
//! query, no header but the user agent, and no body.

mod follow;

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use headwater_api::metrics::Counter;
use headwater_api::trace::{TraceContext, TraceSpan, TraceValue};
use headwater_api::{Clock, Status};
use headwater_store::{Store, Write};
use http::header::{self, HeaderMap};
use http::{Method, StatusCode, Uri};
use jiff::Timestamp;
use tokio::sync::mpsc;

use crate::commit::{self, CommitOutcome};
use crate::front::identity::{Identity, MASTERS};
use crate::random;
use crate::request::route::{Route, Target};
use crate::system::metrics::Metrics;
use follow::{FollowedWrite, Following, StoredWrite};

/// Spans that wait for the exporter; OpenTelemetry's default.
const SPANS_MAX: usize = 2048;

/// The most writes whose way to the watchers is followed at a time.
const FOLLOWED_MAX: usize = 128;

/// The longest user agent in a span, in bytes.
const AGENT_MAX: usize = 256;

/// Requests in a million.
const MILLION: u32 = 1_000_000;

/// The group of monitoring systems.
const MONITORING: &str = "system:monitoring";

/// Records traces. The default records nothing.
#[derive(Clone, Default)]
pub struct Tracer(Option<Arc<ActiveTracer>>);

struct ActiveTracer {
    /// How many requests of a million are recorded.
    sampled: u32,
    clock: Arc<dyn Clock>,
    spans: mpsc::Sender<TraceSpan>,
    lost: Arc<Counter>,
    /// Writes whose events are noticed when they are sent.
    followed: Mutex<Vec<Arc<FollowedWrite>>>,
    followed_count: AtomicUsize,
    stored: mpsc::Sender<StoredWrite>,
    /// Taken by the part that follows writes.
    arriving: Mutex<Option<mpsc::Receiver<StoredWrite>>>,
}

impl Tracer {
    /// Records as many requests of a million, and those that a trusted client records. The queue is
    /// for an exporter.
    pub fn new(
        sampled: u32,
        clock: Arc<dyn Clock>,
        metrics: &Metrics,
    ) -> (Tracer, mpsc::Receiver<TraceSpan>) {
        let (spans, queue) = mpsc::channel(SPANS_MAX);
        let (stored, arriving) = mpsc::channel(FOLLOWED_MAX);
        let active = ActiveTracer {
            sampled: sampled.min(MILLION),
            clock,
            spans,
            lost: metrics.trace_spans.with(&["lost"]),
            followed: Mutex::default(),
            followed_count: AtomicUsize::new(0),
            stored,
            arriving: Mutex::new(Some(arriving)),
        };
        (Tracer(Some(Arc::new(active))), queue)
    }

    /// The arrival of a request, if requests are recorded.
    pub(crate) fn arrival(&self, audit_id: &str) -> Option<RequestArrival> {
        let active = self.0.as_ref()?;
        let (at, wall) = (Instant::now(), active.clock.now());
        Some(RequestArrival { at, wall, audit_id: audit_id.to_owned() })
    }

    /// Begins the trace of an allowed request, if it is to be recorded. Only a privileged client
    /// decides that for its own trace; that of another is linked.
    pub(crate) fn begin(
        &self,
        arrival: RequestArrival,
        identity: &Identity,
        route: &Route,
        (method, uri, headers): (&Method, &Uri, &HeaderMap),
    ) -> Option<Arc<RequestTrace>> {
        let active = self.0.as_ref()?;
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let given = text("traceparent").and_then(TraceContext::parse);
        let is_trusted =
            identity.groups.iter().any(|group| group == MASTERS || group == MONITORING);
        let made = *random::id().as_bytes();
        let is_chosen = match given {
            Some(given) if is_trusted => given.is_sampled,
            _ => is_within(&made, active.sampled),
        };
        if !is_chosen {
            return None;
        }
        let (trace_id, parent, link) = match given {
            Some(given) if is_trusted => (given.trace_id, Some(given.span_id), None),
            given => (made, None, given),
        };
        let agent = text(header::USER_AGENT.as_str()).unwrap_or_default();
        let mut attributes = vec![
            ("http.request.method", method.as_str().into()),
            ("url.path", uri.path().into()),
            ("user_agent.original", bounded(agent).into()),
            ("audit-id", arrival.audit_id.as_str().into()),
            ("headwater.verb", route.verb.as_str().into()),
        ];
        if let Target::Resource(resource) = &route.target {
            attributes.push(("headwater.resource", resource.kind.resource().as_str().into()));
        }
        Some(Arc::new(RequestTrace {
            active: Arc::clone(active),
            trace_id,
            id: span_id(),
            parent,
            link,
            name: name(method, route),
            arrival,
            attributes,
        }))
    }
}

/// When a request arrived, and its audit id.
#[derive(Clone)]
pub(crate) struct RequestArrival {
    at: Instant,
    wall: Timestamp,
    audit_id: String,
}

/// The trace of one request.
pub(crate) struct RequestTrace {
    active: Arc<ActiveTracer>,
    trace_id: [u8; 16],
    id: [u8; 8],
    parent: Option<[u8; 8]>,
    link: Option<TraceContext>,
    name: String,
    arrival: RequestArrival,
    attributes: Vec<(&'static str, TraceValue)>,
}

impl RequestTrace {
    /// Ends the span of the request; other spans of its trace may follow.
    pub(crate) fn answered(&self, code: StatusCode) {
        let mut attributes = self.attributes.clone();
        attributes.push(("http.response.status_code", u64::from(code.as_u16()).into()));
        self.active.send(TraceSpan {
            trace_id: self.trace_id,
            id: self.id,
            parent: self.parent,
            link: self.link,
            name: self.name.clone(),
            is_server: true,
            start: self.nanos(self.arrival.at),
            end: self.nanos(Instant::now()),
            attributes,
            is_failed: code.is_server_error(),
        });
    }

    /// A part of the request, until the returned value is dropped.
    pub(crate) fn part(self: &Arc<RequestTrace>, name: &'static str) -> OpenSpan {
        OpenSpan { trace: Arc::clone(self), name, began: Instant::now() }
    }

    /// Commits a write, and follows it to its watchers.
    pub(crate) async fn commit(
        self: &Arc<RequestTrace>,
        store: &dyn Store,
        write: Write,
    ) -> Result<CommitOutcome, Status> {
        let object = write.ops.last().map(|op| op.key.clone());
        let following = object.and_then(|key| Following::begin(&self.active, &key));
        let began = Instant::now();
        let done = commit::commit_timed(store, write).await;
        let ended = Instant::now();
        let committed = done.as_ref().ok().and_then(|(_, committed)| *committed);
        let revision = committed.map(|committed| committed.last);
        let noted = revision.map(|revision| ("headwater.revision", revision.0.into()));
        let span = self.child(self.id, "store", (began, ended), noted.into_iter().collect());
        if let Some(times) = committed.and_then(|committed| committed.times) {
            self.child(span, "queue", (began, times.taken), Vec::new());
            self.child(span, "sync", (times.taken, times.durable), Vec::new());
        }
        if let (Some(revision), Some(following)) = (revision, following) {
            let durable = committed.and_then(|it| it.times).map_or(ended, |times| times.durable);
            let stored = StoredWrite { trace: Arc::clone(self), following, revision, durable };
            // There is a place for each write that is followed; without the part, nobody follows.
            let _ = self.active.stored.try_send(stored);
        }
        done.map(|(outcome, _)| outcome)
    }

    /// Sends a finished span and returns its id.
    fn child(
        &self,
        parent: [u8; 8],
        name: &str,
        (start, end): (Instant, Instant),
        attributes: Vec<(&'static str, TraceValue)>,
    ) -> [u8; 8] {
        let id = span_id();
        let start_nanos = self.nanos(start);
        self.active.send(TraceSpan {
            trace_id: self.trace_id,
            id,
            parent: Some(parent),
            link: None,
            name: name.to_owned(),
            is_server: false,
            start: start_nanos,
            end: self.nanos(end).max(start_nanos),
            attributes,
            is_failed: false,
        });
        id
    }

    /// A time in nanoseconds since 1970. The clock is read once per request, so that spans keep their
    /// order when it is set.
    fn nanos(&self, at: Instant) -> u64 {
        let began = u64::try_from(self.arrival.wall.as_nanosecond()).unwrap_or_default();
        let since = at.saturating_duration_since(self.arrival.at).as_nanos();
        began.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }
}

/// A part of a request that is not finished.
pub(crate) struct OpenSpan {
    trace: Arc<RequestTrace>,
    name: &'static str,
    began: Instant,
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        let times = (self.began, Instant::now());
        self.trace.child(self.trace.id, self.name, times, Vec::new());
    }
}

impl ActiveTracer {
    fn send(&self, span: TraceSpan) {
        if self.spans.try_send(span).is_err() {
            self.lost.inc();
        }
    }
}

/// Whether a new trace is one of the sampled ones. Collectors decide by the same 56 bits.
fn is_within(trace_id: &[u8; 16], sampled: u32) -> bool {
    let random = trace_id[9..].iter().fold(0u64, |bits, byte| bits << 8 | u64::from(*byte));
    u128::from(random) * u128::from(MILLION) < u128::from(sampled) << 56
}

fn span_id() -> [u8; 8] {
    let mut id = [0; 8];
    id.copy_from_slice(&random::id().as_bytes()[8..]);
    id
}

/// The method and the path without names, as Kubernetes names its spans.
fn name(method: &Method, route: &Route) -> String {
    let Target::Resource(resource) = &route.target else { return method.to_string() };
    let kind = &resource.kind;
    let mut path = match &*kind.group {
        "" => format!("{method} /api/{}", kind.version),
        group => format!("{method} /apis/{group}/{}", kind.version),
    };
    if !resource.namespace.is_empty() {
        path.push_str("/namespaces/{:namespace}");
    }
    path.push('/');
    path.push_str(&kind.plural);
    if !resource.name.is_empty() {
        path.push_str("/{:name}");
    }
    if !resource.subresource.is_empty() {
        path.push('/');
        path.push_str(&resource.subresource);
    }
    path
}

fn bounded(text: &str) -> &str {
    let end = (0..=text.len().min(AGENT_MAX)).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_traces_is_sampled() {
        let count = |sampled| {
            let ids = (0..10_000).map(|_| *random::id().as_bytes());
            ids.filter(|id| is_within(id, sampled)).count()
        };
        assert_eq!((count(0), count(MILLION)), (0, 10_000));
        let mut low = [0xff; 16];
        low[9..].fill(0);
        assert!(is_within(&low, 1) && !is_within(&[0xff; 16], MILLION - 1));
        assert!((4_000..6_000).contains(&count(MILLION / 2)), "{}", count(MILLION / 2));
    }

    #[test]
    fn a_user_agent_is_cut_between_characters() {
        assert_eq!(bounded(&"é".repeat(AGENT_MAX)).len(), AGENT_MAX);
        assert_eq!(bounded(&format!("x{}", "é".repeat(AGENT_MAX))).len(), AGENT_MAX - 1);
    }
}
