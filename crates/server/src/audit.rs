//! Audit: a record of who did what, as Kubernetes writes it (S8.20 to S8.22).
//!
//! River: authentication → **audit** → the rest of the pipeline; at the end of the response again.
//! Promise: a policy file decides what is recorded; no request waits for the log or the webhook, and
//! events that are lost are counted. Credentials are in no event; bodies are only in events of the
//! levels `Request` and `RequestResponse`.

mod event;
mod log_file;
mod policy;
mod trail;
mod webhook;
mod writer;

use std::io;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use headwater_api::Clock;
use headwater_api::query::Query;
use headwater_cache::Cache;
use http::Request;
use tokio_util::sync::CancellationToken;

use event::{ObjectReference, RequestHead};
pub use log_file::LogOptions;
pub use policy::{InvalidPolicy, Level, Policy};
pub(crate) use trail::Trail;
use webhook::BatchSender;
pub use webhook::{AuditWebhook, BatchOptions, UnusableWebhook};
use writer::{Backends, Queue};

use crate::answer::body::RequestBody;
use crate::front::identity::{Identity, Peer};
use crate::lock::lock;
use crate::outgoing::Caller;
use crate::request::authorize::{AccessRequest, Attributes};
use crate::request::route::Route;
use crate::system::metrics::Metrics;

/// How requests are audited.
#[derive(Debug)]
pub struct AuditOptions {
    /// What is recorded.
    pub policy: Policy,
    /// The log file.
    pub log: Option<LogOptions>,
    /// The program that receives events.
    pub webhook: Option<AuditWebhook>,
}

/// Records requests. The default records nothing.
#[derive(Clone, Default)]
pub struct Audit(Option<Arc<Recorder>>);

struct Recorder {
    policy: Policy,
    clock: Arc<dyn Clock>,
    queue: Queue,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Sends to the webhook when the server runs.
    batches: Mutex<Option<BatchSender>>,
}

impl Audit {
    /// Opens the log and starts the writer.
    pub fn start(
        options: AuditOptions,
        clock: Arc<dyn Clock>,
        metrics: &Metrics,
    ) -> io::Result<Audit> {
        let log = options.log.map(log_file::LogFile::open).transpose()?;
        let lost = metrics.audit_errors.with(&["webhook"]);
        let buffer = options.webhook.map(|webhook| webhook::buffer(webhook, lost));
        let (webhook, batches) = buffer.unzip();
        let backends = Backends { log, webhook, clock: Arc::clone(&clock) };
        let (queue, thread) = Queue::start(backends, metrics)?;
        let (thread, batches) = (Mutex::new(Some(thread)), Mutex::new(batches));
        let policy = options.policy;
        Ok(Audit(Some(Arc::new(Recorder { policy, clock, queue, thread, batches }))))
    }

    /// Runs until the server stops, then waits until all events are written and sent.
    pub(crate) async fn run(self, caller: &Caller, cache: &Cache, stop: CancellationToken) {
        let Some(recorder) = self.0 else { return stop.cancelled().await };
        let batches = lock(&recorder.batches).take();
        let sending = async {
            if let Some(batches) = batches {
                batches.run(caller, cache, &stop).await;
            }
        };
        // The writer ends at the stop, and with it the buffer of the webhook.
        tokio::join!(sending, recorder.write_until(&stop));
    }

    /// Begins to record a request whose user is known; `None` if its credential is invalid. Returns
    /// `None` if the policy records nothing of it.
    pub(crate) fn begin(
        &self,
        peer: &Peer,
        request: &Request<RequestBody>,
        id: &str,
        user: Option<&Arc<Identity>>,
        route: &Route,
    ) -> Option<Arc<Trail>> {
        let recorder = self.0.as_ref()?;
        let attributes = Attributes::of(route);
        let demand = recorder.policy.demand(user.map(|user| &**user), &attributes);
        if demand.level == Level::None {
            return None;
        }
        let head = RequestHead {
            level: demand.level,
            omit_managed_fields: demand.omit_managed_fields,
            id: id.to_owned(),
            uri: request.uri().path_and_query().map(ToString::to_string).unwrap_or_default(),
            verb: route.verb.as_str().to_owned(),
            user: user.cloned(),
            attempted: trail::attempted(peer, request.headers()),
            addresses: trail::addresses(peer, request.headers()),
            agent: trail::agent(request.headers()),
            target: reference(route),
            received: recorder.clock.now(),
        };
        let stages = trail::Stages::of(&demand);
        Some(Trail::begin(Arc::clone(recorder), head, stages))
    }
}

impl Recorder {
    /// Waits for the stop, and then until the thread has written everything.
    async fn write_until(self: Arc<Self>, stop: &CancellationToken) {
        stop.cancelled().await;
        let flush = move || {
            self.queue.stop();
            if let Some(thread) = lock(&self.thread).take()
                && thread.join().is_err()
            {
                tracing::error!("the audit writer panicked");
            }
        };
        if let Err(error) = tokio::task::spawn_blocking(flush).await {
            tracing::error!(%error, "the last audit events may be lost");
        }
    }
}

/// The object that a route names.
fn reference(route: &Route) -> Option<ObjectReference> {
    let no_query = Query::default();
    let asked = AccessRequest::of(route, &no_query);
    let Attributes::Resource { group, resource, subresource, namespace, name, .. } =
        asked.attributes
    else {
        return None;
    };
    Some(ObjectReference {
        group: group.to_owned(),
        version: asked.version.to_owned(),
        resource: resource.to_owned(),
        subresource: subresource.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}
