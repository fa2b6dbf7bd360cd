//! A registry of metrics: counters, gauges and histograms.
//!
//! River: every stage → **metrics** → `/metrics`.
//! Promise: there is no global registry; the number of series depends only on the number of
//! informers, subscribers, queues and controllers; a series is removed with the component that
//! updates it.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// A registry of metrics in the Prometheus text format. Cheap to clone; clones are the same
/// registry.
///
/// ```
/// use headwater_client::metrics::Metrics;
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
    families: Arc<Mutex<BTreeMap<&'static str, Family>>>,
}

/// The name and help text of a metric.
#[derive(Debug)]
pub(crate) struct Definition {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
}

struct Family {
    help: &'static str,
    kind: &'static str,
    series: BTreeMap<String, Series>,
}

enum Series {
    Number(Weak<AtomicU64>),
    Histogram(Weak<Buckets>),
    Read(Weak<dyn Fn() -> f64 + Send + Sync>),
}

/// The labels of one series, in the order they are rendered.
pub(crate) type Labels<'a> = &'a [(&'static str, &'a str)];

impl Metrics {
    /// An empty registry.
    pub fn new() -> Metrics {
        Metrics::default()
    }

    /// All series in the Prometheus text format.
    pub fn render(&self) -> String {
        let mut families = self.families.lock().expect("metrics code does not panic");
        let mut out = String::new();
        families.retain(|name, family| {
            family.series.retain(|_, series| series.is_alive());
            if family.series.is_empty() {
                return false;
            }
            family.render(name, &mut out);
            true
        });
        out
    }

    /// The value of one series by its rendered name, such as `workqueue_depth{name="a"}`; for tests
    /// and health checks.
    pub fn value(&self, series: &str) -> Option<f64> {
        let text = self.render();
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    pub(crate) fn counter(&self, definition: &Definition, labels: Labels<'_>) -> Counter {
        Counter(self.number(definition, "counter", labels))
    }

    pub(crate) fn gauge(&self, definition: &Definition, labels: Labels<'_>) -> Gauge {
        Gauge(self.number(definition, "gauge", labels))
    }

    pub(crate) fn histogram(&self, definition: &Definition, labels: Labels<'_>) -> Histogram {
        let mut families = self.families.lock().expect("metrics code does not panic");
        let family = family(&mut families, definition, "histogram");
        let key = print_labels(labels);
        if let Some(Series::Histogram(weak)) = family.series.get(&key)
            && let Some(shared) = weak.upgrade()
        {
            return Histogram(shared);
        }
        let buckets = Arc::new(Buckets::default());
        family.series.insert(key, Series::Histogram(Arc::downgrade(&buckets)));
        Histogram(buckets)
    }

    /// A gauge that is computed when it is rendered, until the returned guard is dropped.
    pub(crate) fn computed(
        &self,
        definition: &Definition,
        labels: Labels<'_>,
        read: impl Fn() -> f64 + Send + Sync + 'static,
    ) -> Computed {
        let read: Arc<dyn Fn() -> f64 + Send + Sync> = Arc::new(read);
        let mut families = self.families.lock().expect("metrics code does not panic");
        let family = family(&mut families, definition, "gauge");
        family.series.insert(print_labels(labels), Series::Read(Arc::downgrade(&read)));
        Computed { _read: read }
    }

    fn number(
        &self,
        definition: &Definition,
        kind: &'static str,
        labels: Labels<'_>,
    ) -> Arc<AtomicU64> {
        let mut families = self.families.lock().expect("metrics code does not panic");
        let family = family(&mut families, definition, kind);
        let key = print_labels(labels);
        if let Some(Series::Number(weak)) = family.series.get(&key)
            && let Some(shared) = weak.upgrade()
        {
            return shared;
        }
        let number = Arc::new(AtomicU64::new(0f64.to_bits()));
        family.series.insert(key, Series::Number(Arc::downgrade(&number)));
        number
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

fn family<'a>(
    families: &'a mut BTreeMap<&'static str, Family>,
    definition: &Definition,
    kind: &'static str,
) -> &'a mut Family {
    families.entry(definition.name).or_insert_with(|| Family {
        help: definition.help,
        kind,
        series: BTreeMap::new(),
    })
}

fn print_labels(labels: Labels<'_>) -> String {
    let mut out = String::new();
    for (name, value) in labels {
        let comma = if out.is_empty() { "" } else { "," };
        let value = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
        write!(out, "{comma}{name}=\"{value}\"").expect("writing to a string cannot fail");
    }
    out
}

impl Series {
    fn is_alive(&self) -> bool {
        match self {
            Series::Number(weak) => weak.strong_count() > 0,
            Series::Histogram(weak) => weak.strong_count() > 0,
            Series::Read(weak) => weak.strong_count() > 0,
        }
    }
}

impl Family {
    fn render(&self, name: &str, out: &mut String) {
        let Family { help, kind, series } = self;
        let mut line = |text: fmt::Arguments<'_>| {
            out.write_fmt(text).expect("writing to a string cannot fail");
            out.push('\n');
        };
        line(format_args!("# HELP {name} {help}"));
        line(format_args!("# TYPE {name} {kind}"));
        for (labels, series) in series {
            let braced = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
            match series {
                Series::Number(weak) => {
                    let Some(number) = weak.upgrade() else { continue };
                    let value = f64::from_bits(number.load(Ordering::Relaxed));
                    line(format_args!("{name}{braced} {value}"));
                }
                Series::Read(weak) => {
                    let Some(read) = weak.upgrade() else { continue };
                    line(format_args!("{name}{braced} {}", read()));
                }
                Series::Histogram(weak) => {
                    let Some(buckets) = weak.upgrade() else { continue };
                    let comma = if labels.is_empty() { "" } else { "," };
                    let mut total = 0;
                    for (bound, count) in BOUNDS.iter().zip(&buckets.counts) {
                        total += count.load(Ordering::Relaxed);
                        line(format_args!(
                            "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {total}"
                        ));
                    }
                    let count = buckets.count.load(Ordering::Relaxed);
                    line(format_args!("{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {count}"));
                    let sum = buckets.nanos.load(Ordering::Relaxed) as f64 / 1e9;
                    line(format_args!("{name}_sum{braced} {sum}"));
                    line(format_args!("{name}_count{braced} {count}"));
                }
            }
        }
    }
}

fn add_to(number: &AtomicU64, amount: f64) {
    let add = |bits| Some((f64::from_bits(bits) + amount).to_bits());
    number.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok();
}

/// A number that only increases.
#[derive(Clone, Debug)]
pub(crate) struct Counter(Arc<AtomicU64>);

impl Counter {
    pub(crate) fn inc(&self) {
        self.add(1);
    }

    pub(crate) fn add(&self, amount: u64) {
        add_to(&self.0, amount as f64);
    }
}

/// A number that increases and decreases.
#[derive(Clone, Debug)]
pub(crate) struct Gauge(Arc<AtomicU64>);

impl Gauge {
    pub(crate) fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    pub(crate) fn add(&self, amount: f64) {
        add_to(&self.0, amount);
    }
}

/// Removes a computed gauge when it is dropped.
pub(crate) struct Computed {
    _read: Arc<dyn Fn() -> f64 + Send + Sync>,
}

impl fmt::Debug for Computed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Computed")
    }
}

/// Upper bounds in seconds, as for the work queues of Kubernetes: powers of ten from 10 ns.
const BOUNDS: [f64; 12] = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1e3];

#[derive(Default)]
struct Buckets {
    counts: [AtomicU64; BOUNDS.len()],
    count: AtomicU64,
    nanos: AtomicU64,
}

/// A histogram of durations.
#[derive(Clone)]
pub(crate) struct Histogram(Arc<Buckets>);

impl Histogram {
    pub(crate) fn observe(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        if let Some(at) = BOUNDS.iter().position(|bound| seconds <= *bound) {
            self.0.counts[at].fetch_add(1, Ordering::Relaxed);
        }
        self.0.count.fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.0.nanos.fetch_add(nanos, Ordering::Relaxed);
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Histogram({})", self.0.count.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THINGS: Definition = Definition { name: "things_total", help: "Things." };
    const TIMES: Definition = Definition { name: "time_seconds", help: "Times." };

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let metrics = Metrics::new();
        let counter = metrics.counter(&THINGS, &[("name", "a\"b")]);
        counter.add(2);
        let histogram = metrics.histogram(&TIMES, &[]);
        histogram.observe(Duration::from_millis(5));
        let text = metrics.render();
        assert!(text.contains("# TYPE things_total counter\nthings_total{name=\"a\\\"b\"} 2\n"));
        assert!(text.contains("time_seconds_bucket{le=\"0.001\"} 0\n"), "{text}");
        assert!(text.contains("time_seconds_bucket{le=\"0.01\"} 1\n"), "{text}");
        assert!(text.contains("time_seconds_sum 0.005\ntime_seconds_count 1\n"), "{text}");
    }

    #[test]
    fn equal_labels_are_one_series_that_is_removed_with_its_last_owner() {
        let metrics = Metrics::new();
        let (a, b) = (metrics.counter(&THINGS, &[]), metrics.counter(&THINGS, &[]));
        a.inc();
        b.inc();
        assert_eq!(metrics.value("things_total"), Some(2.0));
        drop((a, b));
        assert_eq!(metrics.render(), "");
    }

    #[test]
    fn a_computed_gauge_is_read_when_it_is_rendered() {
        let metrics = Metrics::new();
        let number = Arc::new(AtomicU64::new(3));
        let read = Arc::clone(&number);
        let guard = metrics.computed(&THINGS, &[], move || read.load(Ordering::Relaxed) as f64);
        number.store(5, Ordering::Relaxed);
        assert_eq!(metrics.value("things_total"), Some(5.0));
        drop(guard);
        assert_eq!(metrics.value("things_total"), None);
    }
}
