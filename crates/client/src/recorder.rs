//! The event recorder: records Events about objects without waiting and writes them in the
//! background.
//!
//! River: reconciler → **recorder** → the server's events.
//! Promise: recording never waits and never fails; repeated events raise a count; floods are
//! dropped; memory is bounded.

mod correlate;

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use headwater_api::{Clock, SystemClock, clock};
use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::calls::Calls;
use crate::error::Error;
use crate::list_watch::{BoxError, StatusError};
use crate::metrics::{Counter, Definition, Metrics};
use crate::object::{Cached, ResourceType};
use crate::random::Random;

use self::correlate::{Correlation, Correlator};

/// The type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// Normal operation.
    Normal,
    /// A problem that an operator may want to look at.
    Warning,
}

impl EventType {
    /// The word on the wire.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            EventType::Normal => "Normal",
            EventType::Warning => "Warning",
        }
    }
}

impl std::str::FromStr for EventType {
    type Err = Error;

    fn from_str(text: &str) -> Result<EventType, Error> {
        match text {
            "Normal" => Ok(EventType::Normal),
            "Warning" => Ok(EventType::Warning),
            other => Err(Error::Invalid(format!(
                "{other:?} is not an event type; use Normal or Warning"
            ))),
        }
    }
}

/// The options of a recorder.
#[derive(Clone)]
pub struct Options {
    /// The reporting component, such as `shop-operator`.
    pub component: String,
    /// The reporting instance: the host or pod name.
    pub instance: String,
    /// The clock for the time stamps.
    pub clock: Arc<dyn Clock>,
    /// The metrics that count dropped events.
    pub metrics: Option<Metrics>,
}

impl Options {
    /// Options for a component. The instance is the host name, or the component without one.
    pub fn named(component: impl Into<String>) -> Options {
        let component = component.into();
        let instance = std::env::var("HOSTNAME").unwrap_or_else(|_| component.clone());
        Options::new(component, instance)
    }

    /// Options for one instance of a component.
    pub fn new(component: impl Into<String>, instance: impl Into<String>) -> Options {
        Options {
            component: component.into(),
            instance: instance.into(),
            clock: Arc::new(SystemClock),
            metrics: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("component", &self.component).finish_non_exhaustive()
    }
}

/// Records events. Cheap to clone.
///
/// ```no_run
/// # use headwater_client::{calls::Calls, recorder::{self, EventType}};
/// # use k8s_openapi::api::core::v1::Pod;
/// # fn example(calls: Calls, pod: &Pod) {
/// let options = recorder::Options::new("shop-operator", "shop-operator-0");
/// let (recorder, runner) = recorder::new(calls, options);
/// recorder.record(pod, EventType::Normal, "Started", &format_args!("{} of {}", 1, 3));
/// // somewhere: parts.spawn(runner.run(stop));
/// # }
/// ```
#[derive(Clone)]
pub struct Recorder {
    queue: mpsc::Sender<PendingEvent>,
    component: Arc<str>,
    dropped: Arc<AtomicU64>,
    counter: Option<Counter>,
    metrics: Option<Metrics>,
    clock: Arc<dyn Clock>,
}

/// Writes the events of a [`Recorder`].
#[must_use = "nothing is written until it is run"]
pub struct Runner {
    queue: mpsc::Receiver<PendingEvent>,
    options: Options,
    sink: Calls,
    random: Random,
}

/// An event that waits to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingEvent {
    pub(crate) component: Arc<str>,
    pub(crate) about: ObjectReference,
    pub(crate) event: EventType,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) at: Timestamp,
}

/// The object an event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ObjectReference {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
}

/// Events that wait to be written; when full, new events are dropped.
const QUEUE_MAX: usize = 1000;
/// The maximum number of attempts when the connection fails.
const TRIES: u32 = 12;
/// The time between two attempts.
const TRY_EVERY: Duration = Duration::from_secs(10);
/// How long queued events are written at stop.
const DRAIN: Duration = Duration::from_secs(5);

const DROPPED: Definition =
    Definition { name: "event_recorder_dropped_total", help: "Events that were dropped" };

/// Makes a recorder and the runner that writes its events.
pub fn new(calls: Calls, options: Options) -> (Recorder, Runner) {
    let (sender, queue) = mpsc::channel(QUEUE_MAX);
    let recorder = Recorder {
        queue: sender,
        component: options.component.as_str().into(),
        dropped: Arc::default(),
        counter: dropped_counter(options.metrics.as_ref(), &options.component),
        metrics: options.metrics.clone(),
        clock: Arc::clone(&options.clock),
    };
    let runner = Runner { queue, options, sink: calls, random: Random::from_entropy() };
    (recorder, runner)
}

fn dropped_counter(metrics: Option<&Metrics>, component: &str) -> Option<Counter> {
    metrics.map(|metrics| metrics.counter(&DROPPED, &[("component", component)]))
}

impl Recorder {
    /// A recorder that reports events under another component name and shares the queue and the
    /// [`Runner`] with this one.
    #[must_use]
    pub(crate) fn component(&self, component: &str) -> Recorder {
        Recorder {
            component: component.into(),
            counter: dropped_counter(self.metrics.as_ref(), component),
            ..self.clone()
        }
    }

    /// Records an event about a typed object. Never waits and never fails; the message is formatted
    /// only if the queue has room.
    pub fn record<K>(&self, about: &K, event: EventType, reason: &str, message: &dyn fmt::Display)
    where
        K: kube::Resource<DynamicType = ()> + serde::de::DeserializeOwned + Send + Sync + 'static,
    {
        self.record_about(&ResourceType::of::<K>(&()), about, event, reason, message);
    }

    /// As [`Recorder::record`], for an object whose type is known only at run time.
    pub(crate) fn record_about<K: Cached>(
        &self,
        resource: &ResourceType,
        about: &K,
        event: EventType,
        reason: &str,
        message: &dyn fmt::Display,
    ) {
        let Ok(place) = self.queue.try_reserve() else {
            if self.dropped.fetch_add(1, Ordering::Relaxed) == 0 {
                let component = &*self.component;
                tracing::warn!(component, reason, "the event queue is full; dropping events");
            }
            if let Some(counter) = &self.counter {
                counter.inc();
            }
            return;
        };
        place.send(PendingEvent {
            component: Arc::clone(&self.component),
            about: ObjectReference {
                api_version: resource.api_version(),
                kind: resource.kind.clone(),
                namespace: about.namespace().unwrap_or_default().to_owned(),
                name: about.name().to_owned(),
                uid: about.uid().to_owned(),
                resource_version: about.resource_version().to_string(),
            },
            event,
            reason: reason.to_owned(),
            message: message.to_string(),
            at: self.clock.now(),
        });
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recorder({})", self.component)
    }
}

impl Runner {
    /// Writes events until `stop`, then the queued events for at most five seconds.
    pub async fn run(self, stop: CancellationToken) {
        let Runner { mut queue, options, sink, random } = self;
        let writer = EventWriter { sink, options, random };
        let mut correlator = Correlator::default();
        loop {
            let recorded = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                recorded = queue.recv() => recorded,
            };
            let Some(recorded) = recorded else { break };
            let mut write = pin!(writer.write(&mut correlator, recorded));
            let stopped = tokio::select! {
                biased;
                () = stop.cancelled() => true,
                () = &mut write => false,
            };
            if stopped {
                // The event that is being written counts as queued.
                if timeout(DRAIN, write).await.is_err() {
                    tracing::warn!(unwritten = 1, "stopped before all events were written");
                }
                break;
            }
        }
        queue.close();
        let rest = async {
            while let Some(recorded) = queue.recv().await {
                writer.write(&mut correlator, recorded).await;
            }
        };
        if timeout(DRAIN, rest).await.is_err() {
            tracing::warn!(unwritten = queue.len() + 1, "stopped before all events were written");
        }
    }
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Runner({})", self.options.component)
    }
}

struct EventWriter {
    sink: Calls,
    options: Options,
    random: Random,
}

/// The result of a write.
enum SendResult {
    Done,
    /// The event to patch does not exist.
    Missing,
    /// The server refused the event, or it could not be reached.
    Refused,
}

impl EventWriter {
    async fn write(&self, correlator: &mut Correlator, recorded: PendingEvent) {
        let decision = correlator.decide(recorded, Instant::now());
        let Correlation::Write { event, key, count, known } = decision else { return };
        let namespace = namespace_of(&event.about);
        let path = format!("/api/v1/namespaces/{namespace}/events");
        if let Some(name) = known {
            let patch = json!({
                "count": count,
                "lastTimestamp": clock::rfc3339(event.at),
                "message": event.message,
            });
            match self.send(Method::PATCH, &format!("{path}/{name}"), &patch).await {
                SendResult::Done | SendResult::Refused => return,
                SendResult::Missing => {}
            }
        }
        let name = event_name(&event);
        let body = self.body(&event, namespace, &name, correlator.first(&key), count);
        if let SendResult::Done = self.send(Method::POST, &path, &body).await {
            correlator.written(&key, &name);
        }
    }

    fn body(
        &self,
        event: &PendingEvent,
        namespace: &str,
        name: &str,
        first: Option<Timestamp>,
        count: u32,
    ) -> Value {
        json!({
            "kind": "Event",
            "apiVersion": "v1",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": reference(&event.about),
            "reason": event.reason,
            "message": event.message,
            "type": event.event.as_str(),
            "count": count,
            "firstTimestamp": clock::rfc3339(first.unwrap_or(event.at)),
            "lastTimestamp": clock::rfc3339(event.at),
            "source": {"component": *event.component, "host": self.options.instance},
            "reportingComponent": *event.component,
            "reportingInstance": self.options.instance,
        })
    }

    /// Sends a request; retries while the connection fails. Any response is final.
    async fn send(&self, method: Method, path: &str, body: &Value) -> SendResult {
        let content_type = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let body = body.to_string().into_bytes();
        for attempt in 0..TRIES {
            let sent = self.sink.exchange(method.clone(), path, content_type, body.clone()).await;
            match sent {
                Ok(_) => return SendResult::Done,
                Err(error) if error.is_not_found() && method == Method::PATCH => {
                    return SendResult::Missing;
                }
                Err(error) if error.status().is_some_and(is_of_an_ending_namespace) => {
                    return SendResult::Refused; // the events are deleted with the namespace
                }
                Err(error) if error.status().is_some() => {
                    let error: BoxError = error.into();
                    tracing::warn!(
                        error = &*error as &dyn std::error::Error,
                        "the server refused an event; it is dropped"
                    );
                    return SendResult::Refused;
                }
                Err(_) if attempt + 1 < TRIES => {
                    // The first delay is random, so that clients do not retry at the same time.
                    let first = self.random.part_of(TRY_EVERY, 1.0);
                    sleep(if attempt == 0 { first } else { TRY_EVERY }).await;
                }
                Err(error) => {
                    let error: BoxError = error.into();
                    tracing::warn!(
                        error = &*error as &dyn std::error::Error,
                        "cannot reach the server; an event is dropped"
                    );
                }
            }
        }
        SendResult::Refused
    }
}

fn is_of_an_ending_namespace(status: &StatusError) -> bool {
    status.causes.iter().any(|(reason, _)| reason == "NamespaceTerminating")
}

fn namespace_of(about: &ObjectReference) -> &str {
    if about.namespace.is_empty() { "default" } else { &about.namespace }
}

fn event_name(event: &PendingEvent) -> String {
    format!("{}.{:x}", event.about.name, event.at.as_nanosecond())
}

fn reference(about: &ObjectReference) -> Value {
    let mut reference = json!({
        "apiVersion": about.api_version,
        "kind": about.kind,
        "name": about.name,
        "uid": about.uid,
        "resourceVersion": about.resource_version,
    });
    if !about.namespace.is_empty() {
        reference["namespace"] = about.namespace.clone().into();
    }
    reference
}
