//! Metrics of requests, watches and the cache, under the names that dashboards use (S11.1).
//!
//! River: every request and every watch passes here. Metrics of the cache are read when they are
//! scraped.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use headwater_api::options::Freshness;
use headwater_api::query::Query;
use headwater_cache::{Cache, Error as CacheError, Selection};
use http_body::Body as _;
use tokio::time::Instant;

use crate::answer::body::Response;
use crate::kinds::registry::Served;
use crate::request::flow::limits::WatchPlace;
use crate::request::route::{Route, Target, Verb};
use crate::system::metrics::Metrics;
use headwater_api::metrics::{Counter, Desc, Family, Gauge, GaugeGuard, Histogram};

/// One request, from its route to its response.
pub(crate) struct RequestMetrics {
    metrics: Metrics,
    began: Instant,
    verb: Verb,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
    dry_run: &'static str,
    _in_flight: Option<GaugeGuard>,
}

impl RequestMetrics {
    pub(crate) fn new(metrics: &Metrics, route: &Route, query: &Query) -> RequestMetrics {
        let (group, version, resource, subresource, scope) = match &route.target {
            Target::Resource(found) => (
                found.kind.group.to_string(),
                found.kind.version.to_string(),
                found.kind.plural.to_string(),
                found.subresource.clone(),
                scope(&found.namespace, &found.name),
            ),
            _ => Default::default(),
        };
        let verb = route.verb;
        let kind = if verb.is_read() { "readOnly" } else { "mutating" };
        let in_flight = (verb != Verb::Watch).then(|| metrics.in_flight.with(&[kind]).hold());
        RequestMetrics {
            metrics: metrics.clone(),
            began: Instant::now(),
            verb,
            group,
            version,
            resource,
            subresource,
            scope,
            dry_run: if query.get("dryRun").is_some() { "All" } else { "" },
            _in_flight: in_flight,
        }
    }

    /// Counts a request that flow control rejected.
    pub(crate) fn rejected(self, response: &Response) {
        let code = response.status();
        let labels = self.labels(code.as_str());
        self.metrics.requests.with(&labels).inc();
        let [verb, _, rest @ ..] = labels;
        let terminated = [&[verb][..], &rest].concat();
        self.metrics.terminations.with(&terminated).inc();
    }

    /// Counts the response. A watch is counted when it starts.
    pub(crate) fn answered(self, response: Response) -> Response {
        let code = response.status();
        let labels = self.labels(code.as_str());
        let RequestMetrics { metrics, verb, group, resource, .. } = &self;
        metrics.requests.with(&labels).inc();
        if *verb != Verb::Watch {
            let (took, [verb, _, rest @ .., _]) = (self.began.elapsed(), labels);
            let labels_of_time = [&[verb][..], &rest].concat();
            metrics.request_duration.with(&labels[..8]).observe_time(took);
            metrics.request_sli_duration.with(&labels_of_time).observe_time(took);
            // The size of a streamed list is not known before it is sent.
            if let Some(size) = response.body().size_hint().exact() {
                metrics.response_sizes.with(&labels_of_time).observe(size as f64);
            }
        }
        if *verb == Verb::List && code.is_success() {
            metrics.cache_lists.with(&[group, resource, ""]).inc();
        }
        response
    }

    /// The labels of the family of requests.
    fn labels<'a>(&'a self, code: &'a str) -> [&'a str; 9] {
        let RequestMetrics { verb, group, version, resource, subresource, scope, dry_run, .. } =
            self;
        let component = "apiserver";
        [verb.label(), dry_run, group, version, resource, subresource, scope, component, code]
    }
}

fn scope(namespace: &str, name: &str) -> &'static str {
    match (namespace, name) {
        (_, name) if !name.is_empty() => "resource",
        ("", _) => "cluster",
        _ => "namespace",
    }
}

/// Waits until the cache is as fresh as a read demands, and observes how long that takes. Reads of
/// any state do not wait.
pub(crate) async fn waiting<T>(
    metrics: &Metrics,
    kind: &Served,
    at: Freshness,
    wait: impl Future<Output = Result<T, CacheError>>,
) -> Result<T, CacheError> {
    if at == Freshness::Any {
        return wait.await;
    }
    let (began, labels) = (Instant::now(), [&*kind.group, &*kind.plural]);
    let waited = wait.await;
    metrics.cache_read_wait.with(&labels).observe_time(began.elapsed());
    if at == Freshness::Latest {
        let [group, resource] = labels;
        let success = if waited.is_ok() { "true" } else { "false" };
        metrics.cache_consistent_reads.with(&[group, resource, success, "false"]).inc();
    }
    waited
}

/// Counts the objects of a list when it has been sent.
pub(crate) struct ListMetrics {
    fetched: Arc<Counter>,
    returned: Arc<Counter>,
}

impl ListMetrics {
    pub(crate) fn new(metrics: &Metrics, kind: &Served) -> ListMetrics {
        let (group, resource) = (&*kind.group, &*kind.plural);
        ListMetrics {
            fetched: metrics.cache_list_fetched.with(&[group, resource, ""]),
            returned: metrics.cache_list_returned.with(&[group, resource]),
        }
    }

    /// Counts what was taken of a selection.
    pub(crate) fn sent(&self, objects: &Selection) {
        let (filter, returned) = (objects.filtered_by(), objects.taken());
        let is_all = filter.selects_all() || filter.fields.name().is_some();
        let fetched = match is_all {
            true => returned,
            false => objects.snapshot().count(&filter.namespace, None).max(returned),
        };
        self.fetched.add(fetched as u64);
        self.returned.add(returned as u64);
    }
}

/// One open watch and its events.
pub(crate) struct WatchMetrics {
    events: Arc<Counter>,
    sizes: Arc<Histogram>,
    list: ListWait,
    _open: GaugeGuard,
    _place: WatchPlace,
}

impl WatchMetrics {
    pub(crate) fn new(
        metrics: &Metrics,
        kind: &Served,
        namespace: &str,
        name: &str,
        place: WatchPlace,
    ) -> WatchMetrics {
        let (group, version, resource) = (&*kind.group, &*kind.version, &*kind.plural);
        let scope = scope(namespace, name);
        let labels = ["WATCH", group, version, resource, "", scope, "apiserver"];
        let open: Arc<Gauge> = metrics.long_running.with(&labels);
        WatchMetrics {
            events: metrics.watch_events.with(&[group, version, resource]),
            sizes: metrics.watch_event_sizes.with(&[group, version, resource]),
            list: ListWait {
                family: metrics.watch_list_duration.clone(),
                began: Instant::now(),
                scope,
            },
            _open: open.hold(),
            _place: place,
        }
    }

    /// Counts events, and their size together: each is observed with their mean.
    pub(crate) fn sent(&self, events: usize, bytes: usize) {
        if events > 0 {
            self.events.add(events as u64);
            self.sizes.observe_many(bytes as f64 / events as f64, events as u64);
        }
    }

    /// A streaming list has sent its mark.
    pub(crate) fn listed(&self, kind: &Served) {
        let ListWait { family, began, scope } = &self.list;
        let labels = [&*kind.group, &*kind.version, &*kind.plural, scope];
        family.with(&labels).observe_time(began.elapsed());
    }
}

/// What observes the duration of a streaming list.
struct ListWait {
    family: Family<Histogram>,
    began: Instant,
    scope: &'static str,
}

/// Registers the metrics that are read from the cache when they are scraped.
pub(crate) fn cache(metrics: &Metrics, cache: &Cache) {
    let registry = &metrics.registry;
    type Read = fn(&headwater_cache::Resource) -> f64;
    let rows: [(&'static str, &'static str, Read); 3] = [
        ("apiserver_watch_cache_events_received_total", "Changes that reached the cache.", |r| {
            r.counters.received.load(Ordering::Relaxed) as f64
        }),
        ("apiserver_watch_cache_events_dispatched_total", "Events handed to views.", |r| {
            r.counters.dispatched.load(Ordering::Relaxed) as f64
        }),
        ("apiserver_watch_cache_initializations_total", "Times a cache was filled.", |r| {
            r.counters.initialized.load(Ordering::Relaxed) as f64
        }),
    ];
    for (name, help, read) in rows {
        let cache = cache.clone();
        registry.observed_total(Desc { name, help, labels: GROUP_RESOURCE }, move |samples| {
            each(&cache, |group, plural, resource| samples.push(&[group, plural], read(resource)));
        });
    }
    let watched = cache.clone();
    let desc = Desc {
        name: "apiserver_watch_cache_resource_version",
        help: "How far the cache has got.",
        labels: GROUP_RESOURCE,
    };
    registry.observed(desc, move |samples| {
        let applied = watched.applied().0 as f64;
        each(&watched, |group, plural, _| samples.push(&[group, plural], applied));
    });
    let watched = cache.clone();
    let desc = Desc {
        name: "watch_cache_capacity",
        help: "Changes that a window may hold.",
        labels: GROUP_RESOURCE,
    };
    registry.observed(desc, move |samples| {
        each(&watched, |group, plural, resource| {
            samples.push(&[group, plural], resource.capacity() as f64);
        });
    });
    let watched = cache.clone();
    let desc = Desc {
        name: "apiserver_storage_objects",
        help: "Objects in the store.",
        labels: &["resource"],
    };
    registry.observed(desc, move |samples| {
        each(&watched, |group, plural, resource| {
            let name = match group {
                "" => plural.to_owned(),
                group => format!("{plural}.{group}"),
            };
            samples.push(&[&name], watched.snapshot(resource).len() as f64);
        });
    });
    let store = Arc::clone(cache.store());
    let desc = Desc {
        name: "headwater_store_damage",
        help: "1 if damage was found in stored data since the start; the log has the position.",
        labels: &[],
    };
    registry.observed(desc, move |samples| {
        samples.push(&[], f64::from(u8::from(store.condition().damage.is_some())));
    });
    let store = Arc::clone(cache.store());
    let desc = Desc {
        name: "headwater_store_scrubbed_bytes_total",
        help: "Bytes of stored data that were read in the background and are not damaged.",
        labels: &[],
    };
    registry.observed_total(desc, move |samples| {
        samples.push(&[], store.condition().scrubbed.bytes as f64);
    });
    let store = Arc::clone(cache.store());
    let desc = Desc {
        name: "headwater_store_scrub_rounds_total",
        help: "How many times all stored data was read in the background.",
        labels: &[],
    };
    registry.observed_total(desc, move |samples| {
        samples.push(&[], store.condition().scrubbed.rounds as f64);
    });
    let watched = cache.clone();
    let desc =
        Desc { name: "headwater_watchers", help: "Watches that are open.", labels: GROUP_RESOURCE };
    registry.observed(desc, move |samples| {
        each(&watched, |group, plural, resource| {
            samples.push(&[group, plural], resource.watchers() as f64);
        });
    });
}

const GROUP_RESOURCE: &[&str] = &["group", "resource"];

/// Calls `visit` for each resource with its group and plural.
fn each(cache: &Cache, mut visit: impl FnMut(&str, &str, &headwater_cache::Resource)) {
    for resource in cache.resources() {
        let path = resource.prefix().trim_start_matches(headwater_store::key::ROOT);
        let (group, plural) = path.trim_end_matches('/').split_once('/').unwrap_or(("", path));
        visit(if group == "core" { "" } else { group }, plural, &resource);
    }
}
