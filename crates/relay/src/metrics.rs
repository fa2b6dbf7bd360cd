//! The metrics of a relay, next to those of its server.

use std::sync::Arc;

use headwater_api::metrics::{Counter, Desc, Family, Registry};

/// What a relay counts.
#[derive(Clone, Debug)]
pub(crate) struct RelayMetrics {
    registry: Registry,
    requests: Family<Counter>,
    faults: Family<Counter>,
}

/// Reads the time since the upstream was last heard of, in seconds, and the revision that is reached.
pub(crate) type ReadProgress = Arc<dyn Fn() -> Vec<FollowedProgress> + Send + Sync>;

/// How far one resource is.
#[derive(Clone, Debug)]
pub(crate) struct FollowedProgress {
    pub(crate) group: String,
    pub(crate) resource: String,
    pub(crate) age: f64,
    pub(crate) revision: f64,
}

const GROUP_RESOURCE: &[&str] = &["group", "resource"];

impl RelayMetrics {
    pub(crate) fn new(registry: &Registry) -> RelayMetrics {
        RelayMetrics {
            requests: registry.counters(Desc {
                name: "headwater_relay_upstream_requests_total",
                help: "Requests that the relay sent to its upstream.",
                labels: &["purpose"],
            }),
            faults: registry.counters(Desc {
                name: "headwater_relay_faults_total",
                help: "Interruptions of the upstream's watches and violations of their rules.",
                labels: &["group", "resource", "fault"],
            }),
            registry: registry.clone(),
        }
    }

    /// Reports the progress of all resources when metrics are read.
    pub(crate) fn observe(&self, read: &ReadProgress) {
        type Of = fn(&FollowedProgress) -> f64;
        let rows: [(&'static str, &'static str, Of); 2] = [
            (
                "headwater_relay_age_seconds",
                "The time since the upstream was last heard of about a resource.",
                |progress| progress.age,
            ),
            (
                "headwater_relay_revision",
                "The revision of the upstream up to which a resource is held.",
                |progress| progress.revision,
            ),
        ];
        for (name, help, of) in rows {
            let read = Arc::clone(read);
            self.registry.observed(Desc { name, help, labels: GROUP_RESOURCE }, move |samples| {
                for progress in read() {
                    samples.push(&[&progress.group, &progress.resource], of(&progress));
                }
            });
        }
    }

    pub(crate) fn sent(&self, purpose: &str) {
        self.requests.with(&[purpose]).inc();
    }

    pub(crate) fn fault(&self, group: &str, resource: &str, fault: &str) {
        self.faults.with(&[group, resource, fault]).inc();
    }
}
