//! Flow control: who waits when the server has more to do than it can.
//!
//! Reading order: `schema` and `configuration` read the objects, `defaults` has those that every
//! server has; `classify` finds the flow of a request, `width` estimates how many seats it takes;
//! `deal`, `queues` and `demand` are one level without I/O, `borrow` divides the seats among levels;
//! `level` puts requests into queues and `seat` is what they hold; `retry` tells rejected clients
//! when to return; `plain` limits servers without fairness; `limits` bounds watches and lists;
//! `dump` and `in_flight` show what runs and waits.
//!
//! River: identity, route → **flow** → authorization. Promise: the objects are read again only after
//! a change; a request that need not wait takes one lock.

mod schema;
mod configuration;
pub(crate) mod defaults;
mod classify;
mod width;
mod deal;
mod queues;
mod demand;
mod borrow;
mod level;
pub(crate) mod seat;
mod retry;
mod plain;
pub(crate) mod limits;
pub(crate) mod dump;
pub(crate) mod in_flight;

use std::collections::BTreeMap;
use std::hash::RandomState;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use headwater_api::Revision;
use headwater_api::metrics::Desc;
use headwater_api::query::Query;
use headwater_cache::{Cache, Resource};
use headwater_store::key;
use http::header::{self, HeaderValue};
use http::{StatusCode, Uri};
use tokio::sync::Notify;
use tokio::time::Instant;

use self::borrow::{Bounds, Claim};
use self::classify::Flow;
use self::level::{PriorityLevel, RequestDetails};
use self::limits::Limits;
use self::plain::PlainLimits;
use self::queues::{Discipline, Width};
use self::seat::Seat;
use crate::answer::body::{self, Response};
use crate::front::identity::{Identity, MASTERS};
use crate::lock::lock;
use crate::request::authorize::Attributes;
use crate::request::route::{Route, Target, Verb};
use crate::system::metrics::Metrics;

/// The API group of its objects.
pub(crate) const GROUP: &str = "flowcontrol.apiserver.k8s.io";

/// Nanoseconds since the start.
type Nanos = u64;

/// How often seats are divided again.
pub(crate) const ADJUSTED_EVERY: Duration = Duration::from_secs(10);

/// The longest time in a queue.
const PATIENCE_MAX: Duration = Duration::from_secs(60);

/// Subresources whose requests last as long as the client wants (S7.8).
const LONG_RUNNING: &[&str] = &["attach", "exec", "proxy", "log", "portforward"];

/// The flow control of a server.
pub(crate) struct FlowControl {
    cache: Cache,
    schemas: Arc<Resource>,
    levels: Arc<Resource>,
    compiled: ArcSwap<Compiled>,
    /// Every level that has requests or an object.
    known: Arc<Mutex<KnownLevels>>,
    /// Notified when requests wait for seats that become free by themselves.
    releases: Arc<Notify>,
    /// Instead of the levels, if fairness is off.
    plain: Option<PlainLimits>,
    seats: u32,
    epoch: Instant,
    hasher: RandomState,
    metrics: Metrics,
    request_timeout: Duration,
}

struct Compiled {
    /// The revisions it was compiled from; `None` before the first time.
    of: Option<(Revision, Revision)>,
    flows: Vec<Arc<Flow>>,
}

#[derive(Default)]
struct KnownLevels {
    by_name: BTreeMap<String, Arc<PriorityLevel>>,
    /// Of the last adjustment.
    fair_part: f64,
}

/// A request that asks for a seat.
pub(crate) struct Arriving<'a> {
    pub(crate) identity: &'a Arc<Identity>,
    pub(crate) attributes: &'a Attributes<'a>,
    pub(crate) route: &'a Route,
    pub(crate) query: &'a Query,
    pub(crate) uri: &'a Uri,
}

impl FlowControl {
    /// Reads the objects from a cache.
    pub(crate) fn new(
        cache: &Cache,
        limits: Limits,
        request_timeout: Duration,
        metrics: &Metrics,
    ) -> FlowControl {
        let of = |plural| cache.resource(&key::collection(GROUP, plural));
        let total = limits.reads_max.saturating_add(limits.writes_max);
        let plain = || PlainLimits::new(limits.reads_max, limits.writes_max);
        let control = FlowControl {
            schemas: of("flowschemas"),
            levels: of("prioritylevelconfigurations"),
            cache: cache.clone(),
            compiled: ArcSwap::from_pointee(Compiled { of: None, flows: Vec::new() }),
            known: Arc::default(),
            releases: Arc::default(),
            plain: (!limits.fairness).then(plain),
            seats: u32::try_from(total).unwrap_or(u32::MAX),
            epoch: Instant::now(),
            hasher: RandomState::new(),
            metrics: metrics.clone(),
            request_timeout,
        };
        if limits.fairness {
            observe(metrics, &control.known);
        }
        control
    }

    /// Waits until the request may run. The error is the response to a rejected one.
    pub(crate) async fn admit(&self, arriving: &Arriving<'_>) -> Result<Seat, Response> {
        let Arriving { identity, attributes, route, query, uri } = *arriving;
        if is_long_running(route) {
            return Ok(Seat::default());
        }
        if let Some(plain) = &self.plain {
            return self.admit_plainly(plain, identity, route);
        }
        let compiled = self.compiled();
        let Some(flow) = classify::find(&compiled.flows, identity, attributes) else {
            return Ok(Seat::default());
        };
        let namespace = match attributes {
            Attributes::Resource { namespace, .. } => namespace,
            Attributes::Path { .. } => "",
        };
        let level = &flow.level;
        let width = match &route.target {
            Target::Resource(resource) => {
                width::width(&self.cache, resource, route.verb, query, level.width_max())
            }
            _ => Width::of(1),
        };
        let hash = flow.hash(&self.hasher, flow.distinguish(identity, namespace));
        let details =
            RequestDetails { identity: Arc::clone(identity), verb: route.verb, uri: uri.clone() };
        let patience = self.patience(route.verb, query);
        match level.admit(flow, details, width, hash, patience).await {
            Ok(seat) => Ok(Seat::of_level(seat, flow)),
            Err(rejected) => {
                let mut response = self.too_many(route, rejected.retry_after);
                flow.sign(&mut response);
                Err(response)
            }
        }
    }

    /// A quarter of the request's deadline (S7.10).
    fn patience(&self, verb: Verb, query: &Query) -> Duration {
        let asked = match verb {
            Verb::Watch => None,
            _ => query.timeout().ok().flatten(),
        };
        let deadline = asked.map_or(self.request_timeout, |asked| asked.min(self.request_timeout));
        (deadline / 4).min(PATIENCE_MAX)
    }

    fn admit_plainly(
        &self,
        plain: &PlainLimits,
        identity: &Identity,
        route: &Route,
    ) -> Result<Seat, Response> {
        if route.verb == Verb::Watch || identity.is_in(MASTERS) {
            return Ok(Seat::default());
        }
        match plain.admit(route.verb.is_read()) {
            Some(seat) => Ok(Seat::plain(seat)),
            None => Err(self.too_many(route, 1)),
        }
    }

    /// The response to a rejected request (S7.12).
    fn too_many(&self, route: &Route, retry_after: u64) -> Response {
        let kind = if route.verb.is_read() { "readOnly" } else { "mutating" };
        self.metrics.dropped.with(&[kind]).inc();
        let text = "Too many requests, please try again later.\n";
        let mut response = body::text(StatusCode::TOO_MANY_REQUESTS, text);
        body::set(&mut response, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(retry_after));
        response
    }

    fn compiled(&self) -> Arc<Compiled> {
        // Read before the objects: if they are newer, they are compiled again.
        let of = Some((self.schemas.changed(), self.levels.changed()));
        let compiled = self.compiled.load_full();
        if compiled.of == of {
            return compiled;
        }
        let mut known = lock(&self.known);
        let compiled = self.compiled.load_full();
        if compiled.of == of {
            return compiled; // another request was faster
        }
        let made = Arc::new(self.compile(of, &mut known));
        self.compiled.store(Arc::clone(&made));
        made
    }

    fn compile(&self, of: Option<(Revision, Revision)>, known: &mut KnownLevels) -> Compiled {
        let described = classify::levels(&self.cache.snapshot(&self.levels));
        let sum = described.iter().map(|level| u64::from(level.settings.shares.shares)).sum();
        let mut changed = false;
        for (name, level) in &known.by_name {
            if !described.iter().any(|described| described.name == *name) {
                level.work().is_quiescing = true;
                changed = true;
            }
        }
        for described in &described {
            let bounds = Bounds::new(self.seats, described.settings.shares, sum);
            let level = known.by_name.entry(described.name.clone()).or_insert_with(|| {
                let releases = Arc::clone(&self.releases);
                let settings = described.settings;
                Arc::new(PriorityLevel::new(&described.name, self.epoch, releases, settings))
            });
            changed |= level.configure(described.settings, bounds);
        }
        if changed {
            divide(known);
        }
        let schemas = self.cache.snapshot(&self.schemas);
        let flows = classify::compile(&schemas, &described, &known.by_name, &self.metrics);
        Compiled { of, flows }
    }

    /// Divides the seats by the demand since the last time, and takes those of requests that hold
    /// them for too long.
    pub(crate) fn adjust(&self) {
        if self.plain.is_none() {
            self.compiled();
            let mut known = lock(&self.known);
            known.by_name.values().for_each(|level| level.expire(self.request_timeout));
            divide(&mut known);
        }
    }

    /// Gives seats that finished requests still occupied for a time to requests that wait.
    pub(crate) async fn release_on_time(&self) {
        let mut next = None;
        loop {
            match next {
                None => self.releases.notified().await,
                Some(next) => tokio::select! {
                    () = tokio::time::sleep_until(self.epoch + Duration::from_nanos(next)) => {}
                    () = self.releases.notified() => {}
                },
            }
            let levels: Vec<Arc<PriorityLevel>> =
                lock(&self.known).by_name.values().cloned().collect();
            next = levels.iter().filter_map(|level| level.release()).min();
        }
    }
}

/// Divides the seats among all levels, and forgets levels that have neither an object nor requests.
fn divide(known: &mut KnownLevels) {
    known.by_name.retain(|_, level| {
        let work = level.work();
        !work.is_quiescing || !work.queues.is_idle()
    });
    let mut levels = Vec::with_capacity(known.by_name.len());
    let mut claims = Vec::with_capacity(known.by_name.len());
    for level in known.by_name.values() {
        let mut work = level.work();
        if work.is_quiescing {
            continue;
        }
        let measured = work.queues.take_demand(level.now());
        work.demand.add(measured);
        claims.push(Claim {
            bounds: work.bounds,
            most: work.demand.last.most,
            smoothed: work.demand.smoothed,
            is_exempt: work.settings.discipline == Discipline::Exempt,
        });
        levels.push(Arc::clone(level));
    }
    let adjusted = borrow::adjust(&claims);
    for ((level, limit), target) in levels.iter().zip(adjusted.limits).zip(adjusted.targets) {
        level.work().target = target;
        level.set_limit(limit);
    }
    known.fair_part = adjusted.fair_part;
}

/// Whether a request lasts as long as its client wants, and is no watch: flow control ignores it.
fn is_long_running(route: &Route) -> bool {
    let Target::Resource(resource) = &route.target else { return false };
    route.verb != Verb::Watch && LONG_RUNNING.contains(&resource.subresource.as_str())
}

/// Registers the metrics of the levels, which are read when they are scraped.
fn observe(metrics: &Metrics, known: &Arc<Mutex<KnownLevels>>) {
    type Read = fn(&level::LevelWork) -> f64;
    let rows: [(&'static str, &'static str, Read); 10] = [
        ("apiserver_flowcontrol_nominal_limit_seats", "Seats of a level by its shares.", |work| {
            work.bounds.nominal.into()
        }),
        (
            "apiserver_flowcontrol_lower_limit_seats",
            "Seats that a level keeps when others borrow.",
            |work| work.bounds.lower.into(),
        ),
        ("apiserver_flowcontrol_upper_limit_seats", "Seats that a level has at most.", |work| {
            work.bounds.upper.into()
        }),
        ("apiserver_flowcontrol_current_limit_seats", "Seats of a level now.", |work| {
            work.queues.limit().into()
        }),
        (
            "apiserver_flowcontrol_demand_seats_high_watermark",
            "The highest demand of the last period.",
            |work| work.demand.last.most,
        ),
        (
            "apiserver_flowcontrol_demand_seats_average",
            "The mean demand of the last period.",
            |work| work.demand.last.mean,
        ),
        (
            "apiserver_flowcontrol_demand_seats_stdev",
            "The deviation of the demand in the last period.",
            |work| work.demand.last.deviation,
        ),
        ("apiserver_flowcontrol_demand_seats_smoothed", "The smoothed demand.", |work| {
            work.demand.smoothed
        }),
        ("apiserver_flowcontrol_target_seats", "Seats that a level was to get.", |work| {
            work.target
        }),
        ("apiserver_flowcontrol_current_r", "The virtual time of a level's queues.", |work| {
            work.queues.virtual_seconds()
        }),
    ];
    for (name, help, read) in rows {
        let known = Arc::downgrade(known);
        let desc = Desc { name, help, labels: &["priority_level"] };
        metrics.registry.observed(desc, move |samples| {
            let Some(known) = known.upgrade() else { return };
            for (name, level) in &lock(&known).by_name {
                samples.push(&[name], read(&level.work()));
            }
        });
    }
    let known = Arc::downgrade(known);
    let desc = Desc {
        name: "apiserver_flowcontrol_seat_fair_frac",
        help: "The part of its target that a level without a bound gets.",
        labels: &[],
    };
    metrics.registry.observed(desc, move |samples| {
        if let Some(known) = known.upgrade() {
            samples.push(&[], lock(&known).fair_part);
        }
    });
}
