//! Classification: the flow of a request.
//!
//! River: identity, route → **classify** → queues. Promise: schemas are matched in the order of
//! their precedence, and the first match decides (S7.3); every response to a classified request
//! names both objects by uid (S7.13).

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use headwater_api::metrics::{Counter, Gauge, Histogram};
use headwater_cache::Snapshot;
use http::{HeaderName, HeaderValue, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::Nanos;
use super::configuration::LevelSpec;
use super::defaults;
use super::level::{LevelSettings, PriorityLevel, RunningRequest};
use super::queues::{Rejection, Width};
use super::schema::{Distinguisher, SchemaSpec};
use crate::answer::body::Response;
use crate::front::identity::Identity;
use crate::request::authorize::Attributes;
use crate::request::route::Verb;
use crate::system::metrics::Metrics;

static SCHEMA_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
static LEVEL_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

/// One flow schema and its level.
#[derive(Debug)]
pub(crate) struct Flow {
    /// The schema's name.
    pub(super) schema: String,
    pub(super) level: Arc<PriorityLevel>,
    pub(super) distinguisher: Option<Distinguisher>,
    schema_uid: HeaderValue,
    level_uid: HeaderValue,
    spec: SchemaSpec,
    metrics: Metrics,
    counters: OnceLock<FlowCounters>,
}

impl Flow {
    /// Names both objects in the headers of a response; an upgraded connection has none (S1.15).
    pub(super) fn sign(&self, response: &mut Response) {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return;
        }
        let headers = response.headers_mut();
        headers.insert(SCHEMA_UID.clone(), self.schema_uid.clone());
        headers.insert(LEVEL_UID.clone(), self.level_uid.clone());
    }

    /// What separates this request's flow from others of the schema.
    pub(super) fn distinguish<'a>(&self, identity: &'a Identity, namespace: &'a str) -> &'a str {
        match self.distinguisher {
            Some(Distinguisher::ByUser) => &identity.user,
            Some(Distinguisher::ByNamespace) => namespace,
            None => "",
        }
    }

    /// The hash of a flow. Its key is random, so that no client can choose its queues.
    pub(super) fn hash(&self, hasher: &RandomState, distinguisher: &str) -> u64 {
        hasher.hash_one((&self.schema, distinguisher))
    }

    /// The samples of its metrics; they appear with its first request (S11.2).
    pub(super) fn counters(&self) -> &FlowCounters {
        self.counters.get_or_init(|| FlowCounters::new(self))
    }
}

/// The samples of one flow schema.
#[derive(Debug)]
pub(super) struct FlowCounters {
    dispatched: Arc<Counter>,
    queued: Arc<Gauge>,
    queued_seats: Arc<Gauge>,
    running: Arc<Gauge>,
    seats: Arc<Gauge>,
    queue_length: Arc<Histogram>,
    waited: Arc<Histogram>,
    waited_in_vain: OnceLock<Arc<Histogram>>,
    ran: Arc<Histogram>,
    watch_began: OnceLock<Arc<Histogram>>,
    pub(super) width: Arc<Histogram>,
    labels: [String; 2],
    metrics: Metrics,
}

impl FlowCounters {
    fn new(flow: &Flow) -> FlowCounters {
        let (metrics, level, schema) = (&flow.metrics.flow, &*flow.level.name, &*flow.schema);
        let labels = [level, schema];
        FlowCounters {
            dispatched: metrics.dispatched.with(&labels),
            queued: metrics.queued.with(&labels),
            queued_seats: metrics.queued_seats.with(&labels),
            running: metrics.running.with(&labels),
            seats: metrics.seats.with(&labels),
            queue_length: metrics.queue_length.with(&labels),
            waited: metrics.waited.with(&[level, schema, "true"]),
            waited_in_vain: OnceLock::new(),
            ran: metrics.ran.with(&[level, schema, "regular"]),
            watch_began: OnceLock::new(),
            width: metrics.width.with(&labels),
            labels: labels.map(str::to_owned),
            metrics: flow.metrics.clone(),
        }
    }

    pub(super) fn enqueued(&self, width: Width, queue_length: usize) {
        self.queued.add(1);
        self.queued_seats.add(width.most().into());
        self.queue_length.observe(queue_length as f64);
    }

    pub(super) fn dequeued(&self, width: Width) {
        self.queued.add(-1);
        self.queued_seats.add(-i64::from(width.most()));
    }

    pub(super) fn started(&self, width: Width) {
        self.dispatched.inc();
        self.running.add(1);
        self.seats.add(width.most().into());
    }

    pub(super) fn ended(&self, request: &RunningRequest, took: Nanos) {
        self.running.add(-1);
        self.seats.add(-i64::from(request.seated.width.most()));
        let [level, schema] = &self.labels;
        let ran = match request.details.verb {
            Verb::Watch => self
                .watch_began
                .get_or_init(|| self.metrics.flow.ran.with(&[level, schema, "watch"])),
            _ => &self.ran,
        };
        ran.observe_time(Duration::from_nanos(took));
    }

    pub(super) fn waited(&self, executes: bool, time: Nanos) {
        let [level, schema] = &self.labels;
        let waited = match executes {
            true => &self.waited,
            false => self
                .waited_in_vain
                .get_or_init(|| self.metrics.flow.waited.with(&[level, schema, "false"])),
        };
        waited.observe_time(Duration::from_nanos(time));
    }

    pub(super) fn rejected(&self, reason: Rejection) {
        let [level, schema] = &self.labels;
        self.metrics.flow.rejected.with(&[level, schema, reason.as_str()]).inc();
    }
}

/// The first flow that a request belongs to.
pub(super) fn find<'a>(
    flows: &'a [Arc<Flow>],
    identity: &Identity,
    attributes: &Attributes<'_>,
) -> Option<&'a Arc<Flow>> {
    flows.iter().find(|flow| flow.spec.matches(identity, attributes))
}

/// A level as its object describes it.
pub(super) struct DescribedLevel {
    pub(super) name: String,
    pub(super) settings: LevelSettings,
    uid: HeaderValue,
}

/// All levels, the mandatory ones in any case.
pub(super) fn levels(snapshot: &Snapshot) -> Vec<DescribedLevel> {
    let described = |name: &str, uid: HeaderValue, spec: LevelSpec| DescribedLevel {
        name: name.to_owned(),
        settings: spec.settings(),
        uid,
    };
    let stored = snapshot.iter("", None).filter_map(|object| {
        let uid = HeaderValue::from_str(object.uid()).ok()?;
        Some(described(object.name(), uid, read(object.as_slice())?))
    });
    let mut levels: Vec<DescribedLevel> = stored.collect();
    for (name, object) in defaults::mandatory(defaults::priority_levels()) {
        if !levels.iter().any(|level| level.name == name) {
            let spec = read(&headwater_json::to_vec(&object)).unwrap_or_default();
            levels.push(described(&name, HeaderValue::from_static(""), spec));
        }
    }
    levels
}

/// Every schema whose level exists, the mandatory ones in any case, in order of precedence.
pub(super) fn compile(
    schemas: &Snapshot,
    described: &[DescribedLevel],
    levels: &BTreeMap<String, Arc<PriorityLevel>>,
    metrics: &Metrics,
) -> Vec<Arc<Flow>> {
    let flow = |name: &str, schema_uid: HeaderValue, spec: SchemaSpec| {
        let level = levels.get(&spec.level.name)?;
        let described = described.iter().find(|level| level.name == spec.level.name)?;
        Some(Arc::new(Flow {
            schema: name.to_owned(),
            level: Arc::clone(level),
            distinguisher: spec.distinguisher.as_ref().map(|method| method.by),
            schema_uid,
            level_uid: described.uid.clone(),
            spec,
            metrics: metrics.clone(),
            counters: OnceLock::new(),
        }))
    };
    let stored = schemas.iter("", None).filter_map(|object| {
        let uid = HeaderValue::from_str(object.uid()).ok()?;
        flow(object.name(), uid, read(object.as_slice())?)
    });
    let mut flows: Vec<Arc<Flow>> = stored.collect();
    for (name, object) in defaults::mandatory(defaults::flow_schemas()) {
        if flows.iter().any(|flow| flow.schema == name) {
            continue;
        }
        let spec = read(&headwater_json::to_vec(&object));
        flows.extend(spec.and_then(|spec| flow(&name, HeaderValue::from_static(""), spec)));
    }
    flows.sort_by(|a, b| (a.spec.precedence, &a.schema).cmp(&(b.spec.precedence, &b.schema)));
    flows
}

fn read<T: DeserializeOwned>(object: &[u8]) -> Option<T> {
    #[derive(Deserialize)]
    struct Whole<T> {
        spec: T,
    }
    serde_json::from_slice::<Whole<T>>(object).ok().map(|whole| whole.spec)
}
