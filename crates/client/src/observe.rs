//! What the informer stack tells about itself: the metric names, and who counts into them.
//!
//! River: beside it.

use std::sync::Arc;

use crate::metrics::{Counter, Definition, Metrics};

const BYTES: Definition = Definition {
    name: "informer_received_bytes_total",
    help: "Bytes received by lists and watches",
};
const REQUESTS: Definition = Definition {
    name: "rest_client_requests_total",
    help: "Number of HTTP requests, partitioned by status code, method, and host",
};

/// Counts what a source receives.
#[derive(Clone)]
pub(crate) struct SourceObserver {
    pub(crate) bytes: Counter,
    metrics: Metrics,
    /// One counter for each code seen; kept so that the series live as long as the source.
    codes: Arc<std::sync::Mutex<std::collections::BTreeMap<u16, Counter>>>,
}

impl SourceObserver {
    pub(crate) fn new(metrics: &Metrics, name: &str) -> SourceObserver {
        SourceObserver {
            bytes: metrics.counter(&BYTES, &[("name", name)]),
            metrics: metrics.clone(),
            codes: Arc::default(),
        }
    }

    pub(crate) fn answered(&self, code: u16) {
        let mut codes = self.codes.lock().expect("metrics code does not panic");
        let counter = codes.entry(code).or_insert_with(|| {
            self.metrics.counter(&REQUESTS, &[("code", &code.to_string()), ("method", "GET")])
        });
        counter.inc();
    }
}
