//! A registry of metrics: counters, gauges and histograms.
//!
//! River: every stage → **metrics** → `/metrics`.
//! Promise: there is no global registry; the number of series depends only on the number of
//! informers, subscribers, queues and controllers; a series is removed with the component that
//! updates it.

use std::fmt;
use std::sync::Arc;

use headwater_api::metrics::{self, ComputedGauge, Desc, Registry};

/// A registry of metrics in the Prometheus text format. Cheap to clone; clones are the same
/// registry.
///
/// ```
/// use headwater_client::Metrics;
/// use headwater_client::workqueue::Queue;
///
/// let metrics = Metrics::new();
/// let queue = Queue::<u32>::named("images").metrics(&metrics).open();
/// queue.add(1);
/// assert!(metrics.render().contains(r#"workqueue_adds_total{name="images"} 1"#));
/// drop(queue);
/// assert_eq!(metrics.render(), "");
/// ```
#[derive(Clone, Default)]
pub struct Metrics {
    registry: Registry,
}

/// The name and help text of a metric.
#[derive(Debug)]
pub(crate) struct Definition {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
}

impl Definition {
    fn desc(&self) -> Desc {
        Desc { name: self.name, help: self.help, labels: &[] }
    }
}

/// A handle to a counter; the series is removed with its last handle.
pub(crate) type Counter = Arc<metrics::Counter>;
/// A handle to a gauge; the series is removed with its last handle.
pub(crate) type Gauge = Arc<metrics::Gauge>;
/// A handle to a histogram of durations; the series is removed with its last handle.
pub(crate) type Histogram = Arc<metrics::Histogram>;
/// A handle to a computed gauge; the series is removed with it.
pub(crate) type Computed = Arc<ComputedGauge>;

/// The labels of one series, in the order they are rendered.
pub(crate) type LabelPairs<'a> = &'a [(&'static str, &'a str)];

/// Upper bounds in seconds, as for the work queues of Kubernetes: powers of ten from 10 ns.
const BOUNDS: &[f64] = &[1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1e3];

impl Metrics {
    /// An empty registry.
    pub fn new() -> Metrics {
        Metrics::default()
    }

    /// All series in the Prometheus text format.
    pub fn render(&self) -> String {
        self.registry.text_by_name()
    }

    /// The value of one series by its rendered name, such as `workqueue_depth{name="a"}`.
    #[cfg(any(test, feature = "testing"))]
    pub fn value(&self, series: &str) -> Option<f64> {
        let text = self.render();
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    pub(crate) fn counter(&self, definition: &Definition, labels: LabelPairs<'_>) -> Counter {
        self.registry.scoped_counters(definition.desc()).with_labels(labels)
    }

    pub(crate) fn gauge(&self, definition: &Definition, labels: LabelPairs<'_>) -> Gauge {
        self.registry.scoped_gauges(definition.desc()).with_labels(labels)
    }

    pub(crate) fn histogram(&self, definition: &Definition, labels: LabelPairs<'_>) -> Histogram {
        self.registry.scoped_histograms(definition.desc(), BOUNDS).with_labels(labels)
    }

    /// A gauge that is computed when it is rendered, until the returned handle is dropped.
    pub(crate) fn computed(
        &self,
        definition: &Definition,
        labels: LabelPairs<'_>,
        read: impl Fn() -> f64 + Send + Sync + 'static,
    ) -> Computed {
        self.registry.computed(definition.desc(), labels, read)
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const THINGS: Definition = Definition { name: "things_total", help: "Things." };
    const TIMES: Definition = Definition { name: "time_seconds", help: "Times." };

    #[test]
    fn series_are_rendered_by_name_until_their_last_handle_is_dropped() {
        let metrics = Metrics::new();
        let histogram = metrics.histogram(&TIMES, &[]);
        histogram.observe_time(Duration::from_millis(5));
        let counters = [(); 2].map(|()| metrics.counter(&THINGS, &[("name", "a")]));
        counters.iter().for_each(|counter| counter.inc());
        let text = metrics.render();
        assert!(text.starts_with("# HELP things_total Things.\n# TYPE things_total counter\n"));
        assert_eq!(metrics.value("things_total{name=\"a\"}"), Some(2.0));
        assert!(text.contains("time_seconds_bucket{le=\"0.001\"} 0\n"), "{text}");
        assert!(text.contains("time_seconds_bucket{le=\"0.01\"} 1\n"), "{text}");
        assert!(text.contains("time_seconds_sum 0.005\ntime_seconds_count 1\n"), "{text}");
        drop((counters, histogram));
        assert_eq!(metrics.render(), "");
    }
}
