//! The trail of one request: what audit learns of it between its head and the end of its response.
//!
//! The response body and a WebSocket hold the trail; when the last holder is dropped, the response is
//! complete.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::header::{self, HeaderMap, HeaderName};
use http_body::{Body as _, Frame, SizeHint};

use super::Recorder;
use super::event::{AuditEvent, CopyEncoding, OBJECT_MAX, RequestHead, TrailState};
use super::policy::{Demand, Level, Stage};
use crate::answer::body::{Body, Data, Response};
use crate::front::identity::{ClientCertificate, Identity, Peer, Transport};
use crate::lock::lock;

/// A response up to this size is looked at for a Status, whatever the level.
const STATUS_MAX: u64 = 16 * 1024;

/// The longest user agent in an event.
const AGENT_MAX: usize = 1024;

static FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
static REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// The stages that are recorded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stages {
    received: bool,
    started: bool,
    complete: bool,
    panic: bool,
}

impl Stages {
    pub(super) fn of(demand: &Demand<'_>) -> Stages {
        let is_wanted = |stage| !demand.omits(stage);
        Stages {
            received: is_wanted(Stage::RequestReceived),
            started: is_wanted(Stage::ResponseStarted),
            complete: is_wanted(Stage::ResponseComplete),
            panic: is_wanted(Stage::Panic),
        }
    }

    fn includes(self, stage: Stage) -> bool {
        match stage {
            Stage::RequestReceived => self.received,
            Stage::ResponseStarted => self.started,
            Stage::ResponseComplete => self.complete,
            Stage::Panic => self.panic,
        }
    }
}

/// Records one request. Dropping the last reference records the end of the response.
pub(crate) struct Trail {
    recorder: Arc<Recorder>,
    head: Arc<RequestHead>,
    stages: Stages,
    progress: Mutex<TrailState>,
}

impl Trail {
    pub(super) fn begin(recorder: Arc<Recorder>, head: RequestHead, stages: Stages) -> Arc<Trail> {
        let trail = Trail { recorder, head: Arc::new(head), stages, progress: Mutex::default() };
        if trail.head.user.is_some() {
            trail.record(Stage::RequestReceived);
        }
        Arc::new(trail)
    }

    /// The user as whom the request runs, and the right that a constrained impersonation used.
    pub(crate) fn impersonates(&self, user: &Arc<Identity>, constraint: Option<&'static str>) {
        let mut progress = lock(&self.progress);
        progress.impersonated = Some(Arc::clone(user));
        progress.constraint = constraint;
    }

    /// Adds an annotation; the first value of a key counts.
    pub(crate) fn annotate(&self, key: &str, value: &str) {
        let annotations = &mut lock(&self.progress).annotations;
        if annotations.iter().all(|(known, _)| known != key) {
            annotations.push((key.to_owned(), value.to_owned()));
        }
    }

    /// The body of the request as JSON. `print` is called only if it is needed.
    pub(crate) fn sent(&self, print: impl FnOnce() -> Option<Bytes>) {
        let names_object = self.head.target.as_ref().is_some_and(|target| !target.name.is_empty());
        if self.head.level >= Level::Request || !names_object {
            lock(&self.progress).request = print();
        }
    }

    /// Records the response: now if it is long-running, and when its body was sent.
    pub(crate) fn finish(self: Arc<Self>, response: Response, is_long_running: bool) -> Response {
        let (parts, body) = response.into_parts();
        let keeps_body = self.head.level == Level::RequestResponse && !is_long_running
            || parts.status.is_client_error()
            || parts.status.is_server_error()
            || body.size_hint().exact().is_some_and(|size| size <= STATUS_MAX);
        {
            let mut progress = lock(&self.progress);
            progress.code = Some(parts.status.as_u16());
            if keeps_body {
                progress.response.encoding = encoding(&parts.headers);
            }
        }
        // A failed authentication is one event, as in Kubernetes.
        if is_long_running || self.head.user.is_none() {
            self.record(Stage::ResponseStarted);
        }
        let body = Body::new(AuditedBody { body, trail: self, keeps_body });
        Response::from_parts(parts, body)
    }

    fn record(&self, stage: Stage) {
        if !self.stages.includes(stage) {
            return;
        }
        let mut progress = lock(&self.progress);
        let progress = match stage {
            Stage::RequestReceived | Stage::ResponseStarted => progress.clone(),
            Stage::ResponseComplete | Stage::Panic => std::mem::take(&mut *progress),
        };
        let (head, at) = (Arc::clone(&self.head), self.recorder.clock.now());
        self.recorder.queue.push(AuditEvent { head, stage, at, progress });
    }
}

impl Drop for Trail {
    fn drop(&mut self) {
        if std::thread::panicking() {
            lock(&self.progress).panicked = true;
            return self.record(Stage::Panic);
        }
        if self.head.user.is_some() {
            self.record(Stage::ResponseComplete);
        }
    }
}

fn encoding(headers: &HeaderMap) -> CopyEncoding {
    let text = |name| {
        headers.get(name).and_then(|value: &http::HeaderValue| value.to_str().ok()).unwrap_or("")
    };
    let media_type = text(header::CONTENT_TYPE);
    match (media_type.split(';').next().unwrap_or_default(), text(header::CONTENT_ENCODING)) {
        ("application/json", "") => CopyEncoding::Json,
        ("application/json", "gzip") => CopyEncoding::GzippedJson,
        ("application/yaml", "") => CopyEncoding::Yaml,
        ("application/vnd.kubernetes.protobuf", "") => CopyEncoding::Protobuf,
        _ => CopyEncoding::Other,
    }
}

/// The body of an audited response.
struct AuditedBody {
    body: Body,
    trail: Arc<Trail>,
    keeps_body: bool,
}

impl http_body::Body for AuditedBody {
    type Data = Data;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Data>>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let (true, Poll::Ready(Some(Ok(frame)))) = (self.keeps_body, &polled)
            && let Some(data) = frame.data_ref()
        {
            let response = &mut lock(&self.trail.progress).response;
            response.size += data.remaining();
            if response.size > OBJECT_MAX {
                response.is_cut = true;
                response.pieces.clear();
            } else {
                response.pieces.extend(data.pieces().cloned());
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The addresses of the client: those that proxies report, and the peer's.
pub(super) fn addresses(peer: &Peer, headers: &HeaderMap) -> Vec<String> {
    let texts = |name: &HeaderName| {
        let values = headers.get_all(name).iter();
        let texts = values.filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(','));
        texts.filter_map(|text| text.trim().parse::<IpAddr>().ok()).collect::<Vec<IpAddr>>()
    };
    let mut found = texts(&FORWARDED_FOR);
    for real in texts(&REAL_IP).into_iter().take(1) {
        if !found.contains(&real) {
            found.push(real);
        }
    }
    let own = peer.address.ip().to_canonical();
    if found.last() != Some(&own) {
        found.push(own);
    }
    found.iter().map(ToString::to_string).collect()
}

/// How a client whose credential is invalid tried to authenticate.
pub(super) fn attempted(peer: &Peer, headers: &HeaderMap) -> &'static str {
    let scheme = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let scheme = scheme.and_then(|value| value.split(' ').next()).unwrap_or_default();
    match &peer.transport {
        _ if scheme.eq_ignore_ascii_case("bearer") => "attempted: bearer",
        _ if scheme.eq_ignore_ascii_case("basic") => "attempted: basic",
        Transport::Tls(ClientCertificate::Absent) | Transport::Loopback => {
            "no credentials provided"
        }
        Transport::Tls(_) => "attempted: x509",
    }
}

/// The user agent, cut if it is very long.
pub(super) fn agent(headers: &HeaderMap) -> String {
    let agent = headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok());
    let mut agent = agent.unwrap_or_default().to_owned();
    if agent.len() > AGENT_MAX {
        agent.truncate(AGENT_MAX);
        agent.push_str("...TRUNCATED");
    }
    agent
}
