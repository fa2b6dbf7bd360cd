//! The metrics of sources, informers and subscribers.
//!
//! River: every stage → **metrics**. Without a [`Metrics`] nothing is counted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::metrics::{Computed, Counter, Definition, Gauge, Histogram, Metrics};
use crate::object::ResourceType;

macro_rules! definitions {
    ($($name:ident = $text:literal, $help:literal;)*) => {
        $(const $name: Definition = Definition { name: $text, help: $help };)*
    };
}

definitions! {
    BYTES = "informer_received_bytes_total", "Bytes received by lists and watches";
    REQUESTS = "rest_client_requests_total",
        "Number of HTTP requests, partitioned by status code and method";
    QUEUED = "informer_queued_items", "Deltas that wait to be applied to the store";
    LATENCY = "informer_processing_latency_seconds", "How long applying a batch of deltas takes";
    STORE_VERSION = "informer_store_resource_version",
        "The last 15 digits of the resourceVersion the store has reached";
    STORE_OBJECTS = "informer_store_objects", "Objects in the store";
    STORE_BYTES = "informer_store_bytes", "Estimated memory of the store";
    QUEUE_WAIT = "informer_queue_wait_seconds",
        "How long the reflector waited for room in the delta queue";
    LISTS = "reflector_lists_total", "Lists by outcome and by the resourceVersion asked for";
    LIST_DURATION = "reflector_list_duration_seconds", "How long a list takes";
    LIST_ITEMS = "reflector_items_per_list", "Objects in the newest list";
    WATCHES = "reflector_watches_total", "Watches opened";
    WATCH_DURATION = "reflector_watch_duration_seconds", "How long a watch lasts, by its end";
    EVENTS = "reflector_events_total", "Events received, by type";
    DECODE = "reflector_decode_seconds", "How long reading and decoding a page or frame takes";
    RELISTS = "reflector_relists_total", "New cycles, by reason";
    FALLBACKS = "reflector_watch_list_fallbacks_total", "Watch-lists given up for a list";
    REGRESSIONS = "reflector_rv_regressions_total",
        "Times the server's resourceVersions went backwards";
    UNDECODABLE = "informer_undecodable_objects_total", "Objects that could not be decoded";
    SKIPPED = "reflector_skipped_events_total", "Events that were not about this collection";
    INDEX_FAILURES = "informer_index_failures_total", "Objects an index function failed for";
    BACKLOG = "informer_subscriber_backlog", "Notifications a subscriber has not handled";
    BACKLOG_AGE = "informer_subscriber_backlog_age_seconds",
        "Age of the oldest notification a subscriber has not handled";
    HANDLING = "informer_subscriber_handling_seconds", "How long a handler takes";
    PROPAGATION = "informer_propagation_seconds",
        "From the arrival of a change to the end of its handling";
    PANICS = "informer_subscriber_panics_total", "Handlers that panicked";
}

/// Counters that differ in one label, created on first use.
#[derive(Clone)]
struct Family {
    metrics: Metrics,
    definition: &'static Definition,
    label: &'static str,
    fixed: Arc<Vec<(&'static str, String)>>,
    counters: Arc<Mutex<BTreeMap<String, Counter>>>,
}

impl Family {
    fn inc(&self, value: &str) {
        let mut counters = self.counters.lock().expect("metrics code does not panic");
        if let Some(counter) = counters.get(value) {
            return counter.inc();
        }
        let mut labels: Vec<(&'static str, &str)> =
            self.fixed.iter().map(|(name, value)| (*name, value.as_str())).collect();
        labels.push((self.label, value));
        let counter = self.metrics.counter(self.definition, &labels);
        counter.inc();
        counters.insert(value.to_owned(), counter);
    }
}

/// The metrics of a source.
#[derive(Clone)]
pub(crate) struct SourceObserver {
    pub(crate) bytes: Counter,
    pub(crate) decode: Histogram,
    requests: Family,
}

impl SourceObserver {
    pub(crate) fn new(metrics: &Metrics, name: &str) -> SourceObserver {
        const GET: &str = "GET";
        SourceObserver {
            bytes: metrics.counter(&BYTES, &[("name", name)]),
            decode: metrics.histogram(&DECODE, &[("name", name)]),
            requests: Family {
                metrics: metrics.clone(),
                definition: &REQUESTS,
                label: "code",
                fixed: Arc::new(vec![("method", GET.to_owned())]),
                counters: Arc::default(),
            },
        }
    }

    pub(crate) fn answered(&self, code: u16) {
        self.requests.inc(&code.to_string());
    }
}

/// The metrics of an informer.
pub(crate) struct InformerObserver {
    metrics: Metrics,
    labels: Arc<Vec<(&'static str, String)>>,
    pub(crate) latency: Histogram,
    pub(crate) store_version: Gauge,
    pub(crate) queue_wait: Histogram,
    pub(crate) list_duration: Histogram,
    pub(crate) list_items: Gauge,
    pub(crate) watches: Counter,
    pub(crate) fallbacks: Counter,
    pub(crate) regressions: Counter,
    pub(crate) undecodable: Counter,
    pub(crate) skipped: Counter,
    pub(crate) index_failures: Counter,
    lists: Mutex<BTreeMap<(&'static str, &'static str), Counter>>,
    watch_ends: Mutex<BTreeMap<&'static str, Histogram>>,
    events: [Counter; 4],
    relists: Family,
    computed: Mutex<Vec<Computed>>,
}

/// The values of the `type` label of events.
pub(crate) const EVENT_TYPES: [&str; 4] = ["ADDED", "MODIFIED", "DELETED", "BOOKMARK"];

impl InformerObserver {
    pub(crate) fn new(metrics: &Metrics, name: &str, resource: &ResourceType) -> InformerObserver {
        let labels = Arc::new(vec![
            ("name", name.to_owned()),
            ("group", resource.group.clone()),
            ("version", resource.version.clone()),
            ("resource", resource.plural.clone()),
        ]);
        let borrowed: Vec<(&'static str, &str)> =
            labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let counter = |definition: &Definition| metrics.counter(definition, &borrowed);
        let histogram = |definition: &Definition| metrics.histogram(definition, &borrowed);
        let events = EVENT_TYPES.map(|kind| {
            let mut labels = borrowed.clone();
            labels.push(("type", kind));
            metrics.counter(&EVENTS, &labels)
        });
        InformerObserver {
            latency: histogram(&LATENCY),
            store_version: metrics.gauge(&STORE_VERSION, &borrowed),
            queue_wait: histogram(&QUEUE_WAIT),
            list_duration: histogram(&LIST_DURATION),
            list_items: metrics.gauge(&LIST_ITEMS, &borrowed),
            watches: counter(&WATCHES),
            fallbacks: counter(&FALLBACKS),
            regressions: counter(&REGRESSIONS),
            undecodable: counter(&UNDECODABLE),
            skipped: counter(&SKIPPED),
            index_failures: counter(&INDEX_FAILURES),
            lists: Mutex::default(),
            watch_ends: Mutex::default(),
            events,
            relists: Family {
                metrics: metrics.clone(),
                definition: &RELISTS,
                label: "reason",
                fixed: Arc::clone(&labels),
                counters: Arc::default(),
            },
            computed: Mutex::default(),
            metrics: metrics.clone(),
            labels,
        }
    }

    fn labels_and(&self, more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &str)> {
        let fixed = self.labels.iter().map(|(name, value)| (*name, value.as_str()));
        fixed.chain(more.iter().copied()).collect()
    }

    pub(crate) fn listed(&self, outcome: &'static str, at: &'static str) {
        let mut lists = self.lists.lock().expect("metrics code does not panic");
        let counter = lists.entry((outcome, at)).or_insert_with(|| {
            let labels = self.labels_and(&[("outcome", outcome), ("at", at)]);
            self.metrics.counter(&LISTS, &labels)
        });
        counter.inc();
    }

    pub(crate) fn watch_ended(&self, cause: &'static str, lasted: Duration) {
        let mut ends = self.watch_ends.lock().expect("metrics code does not panic");
        let histogram = ends.entry(cause).or_insert_with(|| {
            self.metrics.histogram(&WATCH_DURATION, &self.labels_and(&[("end", cause)]))
        });
        histogram.observe_time(lasted);
    }

    pub(crate) fn event(&self, kind: usize) {
        if let Some(counter) = self.events.get(kind) {
            counter.inc();
        }
    }

    pub(crate) fn relisted(&self, reason: &'static str) {
        self.relists.inc(reason);
    }

    /// Adds gauges that are read when the metrics are rendered.
    pub(crate) fn watch_store(&self, readings: StoreReadings) {
        let labels = self.labels_and(&[]);
        let computed = [
            self.metrics.computed(&QUEUED, &labels, readings.queued),
            self.metrics.computed(&STORE_OBJECTS, &labels, readings.objects),
            self.metrics.computed(&STORE_BYTES, &labels, readings.bytes),
        ];
        self.computed.lock().expect("metrics code does not panic").extend(computed);
    }
}

pub(crate) type Reading = Box<dyn Fn() -> f64 + Send + Sync>;

/// The functions of the computed gauges of an informer.
pub(crate) struct StoreReadings {
    pub(crate) queued: Reading,
    pub(crate) objects: Reading,
    pub(crate) bytes: Reading,
}

/// The functions of the computed gauges of a subscriber.
pub(crate) struct BacklogReadings {
    pub(crate) len: Reading,
    pub(crate) age_seconds: Reading,
}

/// The metrics of a subscriber.
pub(crate) struct SubscriberObserver {
    handling: Histogram,
    propagation: Histogram,
    pub(crate) panics: Counter,
    _computed: [Computed; 2],
}

impl SubscriberObserver {
    pub(crate) fn new(
        metrics: &Metrics,
        informer: &str,
        handler: &str,
        backlog: BacklogReadings,
    ) -> SubscriberObserver {
        let labels = &[("name", informer), ("handler", handler)];
        SubscriberObserver {
            handling: metrics.histogram(&HANDLING, labels),
            propagation: metrics.histogram(&PROPAGATION, labels),
            panics: metrics.counter(&PANICS, labels),
            _computed: [
                metrics.computed(&BACKLOG, labels, backlog.len),
                metrics.computed(&BACKLOG_AGE, labels, backlog.age_seconds),
            ],
        }
    }

    pub(crate) fn handled(&self, since: Instant, started: Instant) {
        let now = Instant::now();
        self.handling.observe_time(now.saturating_duration_since(started));
        self.propagation.observe_time(now.saturating_duration_since(since));
    }
}
