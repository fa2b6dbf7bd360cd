//! The metrics of the server.
//!
//! River: every stage counts; `GET /metrics` prints. Names and labels are those that Kubernetes
//! dashboards query (S11.1); Headwater's own begin with `headwater_`.

pub mod admission;
mod process;
pub mod registry;

use admission::{Admission, Conversions};
use registry::{Counter, Desc, Family, Gauge, Histogram, Registry};

/// The content type of the text form.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

const DURATIONS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
    10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
];
const SLI_DURATIONS: &[f64] = &[
    0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0,
    30.0, 45.0, 60.0,
];
const WATCH_LIST_DURATIONS: &[f64] = &[
    0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0,
    30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0,
];
const READ_WAITS: &[f64] = &[0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0];
const RESPONSE_SIZES: &[f64] = &[1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];
const EVENT_SIZES: &[f64] = &[1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 131_072.0];
const BODY_SIZES: &[f64] = &[
    5e4, 1.5e5, 2.5e5, 3.5e5, 4.5e5, 5.5e5, 6.5e5, 7.5e5, 8.5e5, 9.5e5, 1.05e6, 1.55e6, 2.05e6,
    2.55e6, 3.05e6,
];

/// All metric families of the server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// The registry that prints them; other parts add families.
    pub registry: Registry,

    /// verb, dry_run, group, version, resource, subresource, scope, component, code
    pub requests: Family<Counter>,
    /// verb, dry_run, group, version, resource, subresource, scope, component
    pub request_duration: Family<Histogram>,
    /// verb, group, version, resource, subresource, scope, component
    pub request_sli_duration: Family<Histogram>,
    /// verb, group, version, resource, subresource, scope, component
    pub response_sizes: Family<Histogram>,
    /// resource, verb
    pub request_body_sizes: Family<Histogram>,
    /// verb, group, version, resource, subresource, scope, component
    pub long_running: Family<Gauge>,
    /// request_kind: `mutating` or `readOnly`
    pub in_flight: Family<Gauge>,
    /// verb, group, version, resource, subresource, scope, component, code
    pub terminations: Family<Counter>,
    /// request_kind
    pub dropped: Family<Counter>,
    /// group, version, resource, subresource, removed_release
    pub deprecated: Family<Gauge>,

    /// group, version, resource
    pub watch_events: Family<Counter>,
    /// group, version, resource
    pub watch_event_sizes: Family<Histogram>,
    /// group, version, resource, scope
    pub watch_list_duration: Family<Histogram>,

    /// group, resource
    pub cache_initializations: Family<Counter>,
    /// group, resource
    pub cache_read_wait: Family<Histogram>,
    /// group, resource, success, fallback
    pub cache_consistent_reads: Family<Counter>,
    /// group, resource, index
    pub cache_lists: Family<Counter>,
    /// group, resource, index
    pub cache_list_fetched: Family<Counter>,
    /// group, resource
    pub cache_list_returned: Family<Counter>,

    /// priority_level, flow_schema
    pub flow_dispatched: Family<Counter>,
    /// priority_level, flow_schema, reason
    pub flow_rejected: Family<Counter>,

    /// result: `success`, `failure` or `error`
    pub authentication_attempts: Family<Counter>,
    /// result: `allowed`, `denied`, `no-opinion` or `error`
    pub authorization_attempts: Family<Counter>,

    /// Webhooks and policies that objects pass.
    pub admission: Admission,
    /// Webhooks that convert objects.
    pub conversions: Conversions,

    /// No labels.
    pub tls_handshake_errors: Family<Counter>,
    /// No labels.
    pub list_bytes: Family<Gauge>,
    /// No labels.
    pub connections: Family<Gauge>,
    /// reason: `total` or `address`
    pub connections_refused: Family<Counter>,
    /// No labels.
    pub panics: Family<Counter>,
}

const REQUEST: &[&str] =
    &["verb", "group", "version", "resource", "subresource", "scope", "component"];
const GVR: &[&str] = &["group", "version", "resource"];
const GR: &[&str] = &["group", "resource"];

impl Metrics {
    /// Everything at zero.
    pub fn new() -> Metrics {
        let registry = Registry::default();
        process::observe(&registry);
        let counters = |name, help, labels| registry.counters(Desc { name, help, labels });
        let gauges = |name, help, labels| registry.gauges(Desc { name, help, labels });
        let histograms =
            |name, help, labels, bounds| registry.histograms(Desc { name, help, labels }, bounds);
        Metrics {
            requests: counters(
                "apiserver_request_total",
                "Requests answered.",
                &[
                    "verb",
                    "dry_run",
                    "group",
                    "version",
                    "resource",
                    "subresource",
                    "scope",
                    "component",
                    "code",
                ],
            ),
            request_duration: histograms(
                "apiserver_request_duration_seconds",
                "Time from a request's headers to the end of its answer.",
                &[
                    "verb",
                    "dry_run",
                    "group",
                    "version",
                    "resource",
                    "subresource",
                    "scope",
                    "component",
                ],
                DURATIONS,
            ),
            request_sli_duration: histograms(
                "apiserver_request_sli_duration_seconds",
                "The same without waiting in queues.",
                REQUEST,
                SLI_DURATIONS,
            ),
            response_sizes: histograms(
                "apiserver_response_sizes",
                "Bytes of answers.",
                REQUEST,
                RESPONSE_SIZES,
            ),
            request_body_sizes: histograms(
                "apiserver_request_body_size_bytes",
                "Bytes of request bodies.",
                &["resource", "verb"],
                BODY_SIZES,
            ),
            long_running: gauges(
                "apiserver_longrunning_requests",
                "Watches and other requests without a deadline, open now.",
                REQUEST,
            ),
            in_flight: gauges(
                "apiserver_current_inflight_requests",
                "Requests being answered now.",
                &["request_kind"],
            ),
            terminations: counters(
                "apiserver_request_terminations_total",
                "Requests ended by the server in self-defence.",
                &[
                    "verb",
                    "group",
                    "version",
                    "resource",
                    "subresource",
                    "scope",
                    "component",
                    "code",
                ],
            ),
            dropped: counters(
                "apiserver_dropped_requests_total",
                "Requests turned away with 429.",
                &["request_kind"],
            ),
            deprecated: gauges(
                "apiserver_requested_deprecated_apis",
                "Deprecated versions that were asked for.",
                &["group", "version", "resource", "subresource", "removed_release"],
            ),
            watch_events: counters("apiserver_watch_events_total", "Events sent to watchers.", GVR),
            watch_event_sizes: histograms(
                "apiserver_watch_events_sizes",
                "Bytes of events sent to watchers.",
                GVR,
                EVENT_SIZES,
            ),
            watch_list_duration: histograms(
                "apiserver_watch_list_duration_seconds",
                "Time until a streaming list has sent its mark.",
                &["group", "version", "resource", "scope"],
                WATCH_LIST_DURATIONS,
            ),
            cache_initializations: counters(
                "apiserver_watch_cache_initializations_total",
                "Times a cache was filled from the store.",
                GR,
            ),
            cache_read_wait: histograms(
                "apiserver_watch_cache_read_wait_seconds",
                "Time reads waited for a cache to be fresh enough.",
                GR,
                READ_WAITS,
            ),
            cache_consistent_reads: counters(
                "apiserver_watch_cache_consistent_read_total",
                "Consistent reads answered from a cache.",
                &["group", "resource", "success", "fallback"],
            ),
            cache_lists: counters(
                "apiserver_cache_list_total",
                "Lists answered from a cache.",
                &["group", "resource", "index"],
            ),
            cache_list_fetched: counters(
                "apiserver_cache_list_fetched_objects_total",
                "Objects looked at for lists.",
                &["group", "resource", "index"],
            ),
            cache_list_returned: counters(
                "apiserver_cache_list_returned_objects_total",
                "Objects returned in lists.",
                GR,
            ),
            flow_dispatched: counters(
                "apiserver_flowcontrol_dispatched_requests_total",
                "Requests that were let in.",
                &["priority_level", "flow_schema"],
            ),
            flow_rejected: counters(
                "apiserver_flowcontrol_rejected_requests_total",
                "Requests that were turned away.",
                &["priority_level", "flow_schema", "reason"],
            ),
            authentication_attempts: counters(
                "authentication_attempts",
                "Requests by how their credential was judged.",
                &["result"],
            ),
            authorization_attempts: counters(
                "authorization_attempts_total",
                "Requests by whether they were allowed.",
                &["result"],
            ),
            admission: Admission::new(&registry),
            conversions: Conversions::new(&registry),
            tls_handshake_errors: counters(
                "apiserver_tls_handshake_errors_total",
                "Connections that ended before TLS was agreed.",
                &[],
            ),
            list_bytes: gauges(
                "headwater_list_bytes",
                "Bytes of lists that are being sent now, as estimated.",
                &[],
            ),
            connections: gauges("headwater_connections", "Connections open now.", &[]),
            connections_refused: counters(
                "headwater_connections_refused_total",
                "Connections closed at once because there were too many.",
                &["reason"],
            ),
            panics: counters(
                "headwater_panics_total",
                "Requests answered with 500 because their handler panicked.",
                &[],
            ),
            registry,
        }
    }
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S11.1
    #[test]
    fn a_request_is_printed_under_the_name_dashboards_query() {
        let metrics = Metrics::new();
        let labels = ["LIST", "", "", "v1", "pods", "", "cluster", "apiserver", "200"];
        metrics.requests.with(&labels).inc();
        let text = metrics.registry.text();
        assert!(text.contains("# TYPE apiserver_request_total counter\n"), "{text}");
        assert!(text.contains(
            "apiserver_request_total{verb=\"LIST\",dry_run=\"\",group=\"\",version=\"v1\",\
             resource=\"pods\",subresource=\"\",scope=\"cluster\",component=\"apiserver\",\
             code=\"200\"} 1\n"
        ));
    }
}
