//! The metrics of the server.
//!
//! River: every stage counts; `GET /metrics` prints. Names and labels are those that Kubernetes
//! dashboards query (S11.1); Headwater's own begin with `headwater_`.

/// Declares a struct of metric families and its constructor from one table: the field, its type with
/// the bounds of a histogram, the name of the metric with its labels, and its help text.
macro_rules! families {
    (
        $(#[$meta:meta])*
        $visibility:vis struct $Families:ident {
            $($(#[$note:meta])* $field:ident: $Kind:ident $(($bounds:ident))? =
                $name:ident($($label:ident),*), $help:literal;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug)]
        $visibility struct $Families {
            $(
                #[doc = $help]
                $(#[$note])*
                $visibility $field: Family<$Kind>,
            )*
        }

        impl $Families {
            /// Registers every family, empty.
            pub(super) fn new(registry: &Registry) -> $Families {
                $Families {
                    $($field: families!(@$Kind registry, Desc {
                        name: stringify!($name),
                        help: $help,
                        labels: &[$(stringify!($label)),*],
                    } $(, $bounds)?),)*
                }
            }
        }
    };
    (@Counter $registry:ident, $desc:expr) => { $registry.counters($desc) };
    (@Gauge $registry:ident, $desc:expr) => { $registry.gauges($desc) };
    (@Histogram $registry:ident, $desc:expr, $bounds:ident) => {
        $registry.histograms($desc, $bounds)
    };
}

pub mod admission;
pub mod flow;
mod process;

use std::ops::Deref;

use admission::{Admission, Conversions};
use flow::FlowFamilies;
use headwater_api::metrics::{Counter, Desc, Family, Gauge, Histogram, Registry};
use headwater_store::encrypted::EncryptionMetrics;

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

families! {
    /// The families of the server itself.
    pub struct Families {
        requests: Counter = apiserver_request_total(
            verb, dry_run, group, version, resource, subresource, scope, component, code
        ),
            "Requests answered.";
        request_duration: Histogram(DURATIONS) = apiserver_request_duration_seconds(
            verb, dry_run, group, version, resource, subresource, scope, component
        ),
            "Time from a request's headers to the end of its answer.";
        request_sli_duration: Histogram(SLI_DURATIONS) = apiserver_request_sli_duration_seconds(
            verb, group, version, resource, subresource, scope, component
        ),
            "The same without waiting in queues.";
        response_sizes: Histogram(RESPONSE_SIZES) = apiserver_response_sizes(
            verb, group, version, resource, subresource, scope, component
        ),
            "Bytes of answers.";
        request_body_sizes: Histogram(BODY_SIZES) = apiserver_request_body_size_bytes(
            resource, verb
        ),
            "Bytes of request bodies.";
        long_running: Gauge = apiserver_longrunning_requests(
            verb, group, version, resource, subresource, scope, component
        ),
            "Watches and other requests without a deadline, open now.";
        /// `request_kind` is `mutating` or `readOnly`.
        in_flight: Gauge = apiserver_current_inflight_requests(request_kind),
            "Requests being answered now.";
        terminations: Counter = apiserver_request_terminations_total(
            verb, group, version, resource, subresource, scope, component, code
        ),
            "Requests ended by the server in self-defence.";
        dropped: Counter = apiserver_dropped_requests_total(request_kind),
            "Requests turned away with 429.";
        deprecated: Gauge = apiserver_requested_deprecated_apis(
            group, version, resource, subresource, removed_release
        ),
            "Deprecated versions that were asked for.";
        watch_events: Counter = apiserver_watch_events_total(group, version, resource),
            "Events sent to watchers.";
        watch_event_sizes: Histogram(EVENT_SIZES) = apiserver_watch_events_sizes(
            group, version, resource
        ),
            "Bytes of events sent to watchers.";
        watch_list_duration: Histogram(WATCH_LIST_DURATIONS) = apiserver_watch_list_duration_seconds(
            group, version, resource, scope
        ),
            "Time until a streaming list has sent its mark.";
        cache_read_wait: Histogram(READ_WAITS) = apiserver_watch_cache_read_wait_seconds(
            group, resource
        ),
            "Time reads waited for a cache to be fresh enough.";
        cache_consistent_reads: Counter = apiserver_watch_cache_consistent_read_total(
            group, resource, success, fallback
        ),
            "Consistent reads answered from a cache.";
        cache_lists: Counter = apiserver_cache_list_total(group, resource, index),
            "Lists answered from a cache.";
        cache_list_fetched: Counter = apiserver_cache_list_fetched_objects_total(
            group, resource, index
        ),
            "Objects looked at for lists.";
        cache_list_returned: Counter = apiserver_cache_list_returned_objects_total(group, resource),
            "Objects returned in lists.";
        authentication_reloads: Counter =
            apiserver_authentication_config_controller_automatic_reloads_total(status),
            "Reloads of the authentication configuration.";
        authentication_reload_time: Gauge =
            apiserver_authentication_config_controller_automatic_reload_last_timestamp_seconds(status),
            "Time of the last reload of the authentication configuration.";
        /// `result` is `success`, `failure` or `error`.
        authentication_attempts: Counter = authentication_attempts(result),
            "Requests by how their credential was judged.";
        /// `result` is `allowed`, `denied`, `no-opinion` or `error`.
        authorization_attempts: Counter = authorization_attempts_total(result),
            "Requests by whether they were allowed.";
        authorization_reloads: Counter =
            apiserver_authorization_config_controller_automatic_reloads_total(status),
            "Reloads of the authorization configuration.";
        authorization_reload_time: Gauge =
            apiserver_authorization_config_controller_automatic_reload_last_timestamp_seconds(status),
            "Time of the last reload of the authorization configuration.";
        /// `result` is `success` or `error`.
        authorization_webhook_calls: Counter =
            apiserver_authorization_webhook_evaluations_total(name, result),
            "Calls of authorization webhooks.";
        authorization_webhook_time: Histogram(SLI_DURATIONS) =
            apiserver_authorization_webhook_duration_seconds(name, result),
            "Duration of calls of authorization webhooks.";
        authorization_webhook_open: Counter =
            apiserver_authorization_webhook_evaluations_fail_open_total(name),
            "Calls of authorization webhooks that failed and were passed over.";
        authorization_exclusions: Counter =
            apiserver_authorization_match_condition_exclusions_total(name),
            "Requests that match conditions kept from an authorization webhook.";
        audit_events: Counter = apiserver_audit_event_total(),
            "Audit events, including lost ones.";
        /// `plugin` is `buffer`, `log` or `webhook`.
        audit_errors: Counter = apiserver_audit_error_total(plugin),
            "Audit events that were lost.";
        tls_handshake_errors: Counter = apiserver_tls_handshake_errors_total(),
            "Connections that ended before TLS was agreed.";
        list_bytes: Gauge = headwater_list_bytes(),
            "Bytes of lists that are being sent now, as estimated.";
        document_builds: Counter = headwater_document_builds_total(),
            "OpenAPI and discovery documents that were built.";
        long_requests: Counter = headwater_long_requests_total(),
            "Requests that computed off the threads that serve others.";
        long_requests_waiting_bytes: Gauge = headwater_long_requests_waiting_bytes(),
            "Bytes of long requests that wait until others are done.";
        connections: Gauge = headwater_connections(),
            "Connections open now.";
        standby_connections: Counter = headwater_standby_connections_total(),
            "Connections that waited because the threads of requests were busy.";
        /// `reason` is `total`, `address` or `anonymous`.
        connections_refused: Counter = headwater_connections_refused_total(reason),
            "Connections closed at once because there were too many.";
        /// `result` is `exported` or `lost`.
        trace_spans: Counter = headwater_trace_spans_total(result),
            "Spans of traces that the collector has, and spans that were lost.";
        panics: Counter = headwater_panics_total(),
            "Requests answered with 500 because their handler panicked.";
    }
}

/// All metrics of the server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Prints all families, and takes more.
    pub registry: Registry,
    /// Webhooks and policies of admission.
    pub admission: Admission,
    /// Conversion webhooks.
    pub conversions: Conversions,
    /// Priority and fairness.
    pub flow: FlowFamilies,
    /// Encryption at rest.
    pub encryption: EncryptionMetrics,
    families: Families,
}

impl Deref for Metrics {
    type Target = Families;

    fn deref(&self) -> &Families {
        &self.families
    }
}

impl Metrics {
    /// Everything at zero.
    pub fn new() -> Metrics {
        let registry = Registry::default();
        process::observe(&registry);
        Metrics {
            families: Families::new(&registry),
            admission: Admission::new(&registry),
            conversions: Conversions::new(&registry),
            flow: FlowFamilies::new(&registry),
            encryption: EncryptionMetrics::new(&registry),
            registry,
        }
    }

    /// Every family and its type.
    pub fn descriptions(&self) -> Vec<(Desc, &'static str)> {
        self.registry.descriptions()
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
