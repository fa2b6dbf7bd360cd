//! A registry of metrics and its Prometheus text format, for the server and for the client.
//!
//! River: every stage → **metrics** → `GET /metrics`.
//! Promise: a registry is a value, so several servers or clients in one process never mix; names
//! are rendered exactly as given; a family without a sample is not rendered (S11.2); updating a
//! sample costs one atomic operation; a sample of a scoped family is removed with its last handle.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// A set of metric families. Cheap to clone; clones are the same registry.
#[derive(Clone, Default)]
pub struct Registry(Arc<Mutex<Vec<Box<dyn Collect>>>>);

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Registry(..)")
    }
}

/// A family of any type.
trait Collect: Any + Send + Sync {
    fn desc(&self) -> Desc;
    fn kind(&self) -> &'static str;
    fn collect(&self, text: &mut String);
}

/// The name, help text and label names of a family.
#[derive(Clone, Copy, Debug)]
pub struct Desc {
    /// The name.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// The label names, in the order of their values.
    pub labels: &'static [&'static str],
}

impl Registry {
    /// A family of counters.
    pub fn counters(&self, desc: Desc) -> Family<Counter> {
        self.add(Family::new(desc, "counter", false, Counter::default))
    }

    /// A family of gauges.
    pub fn gauges(&self, desc: Desc) -> Family<Gauge> {
        self.add(Family::new(desc, "gauge", false, Gauge::default))
    }

    /// A family of histograms with these upper bounds.
    pub fn histograms(&self, desc: Desc, bounds: &'static [f64]) -> Family<Histogram> {
        self.add(Family::new(desc, "histogram", false, move || Histogram::new(bounds)))
    }

    /// The scoped family of counters with this name; registered by the first call.
    pub fn scoped_counters(&self, desc: Desc) -> Family<Counter> {
        self.scoped(desc, "counter", Counter::default)
    }

    /// The scoped family of gauges with this name; registered by the first call.
    pub fn scoped_gauges(&self, desc: Desc) -> Family<Gauge> {
        self.scoped(desc, "gauge", Gauge::default)
    }

    /// The scoped family of histograms with this name; registered by the first call.
    pub fn scoped_histograms(&self, desc: Desc, bounds: &'static [f64]) -> Family<Histogram> {
        self.scoped(desc, "histogram", move || Histogram::new(bounds))
    }

    /// A gauge that is computed when it is rendered, until the returned handle is dropped.
    pub fn computed(
        &self,
        desc: Desc,
        labels: &[(&str, &str)],
        read: impl Fn() -> f64 + Send + Sync + 'static,
    ) -> Arc<ComputedGauge> {
        let family = self.scoped(desc, "gauge", || ComputedGauge(Box::new(|| 0.0)));
        let gauge = Arc::new(ComputedGauge(Box::new(read)));
        let mut samples = family.0.samples.write().unwrap_or_else(PoisonError::into_inner);
        samples.insert(label_text(labels.iter().copied()).into(), Arc::clone(&gauge));
        drop(samples);
        gauge
    }

    fn scoped<M: Sample>(
        &self,
        desc: Desc,
        kind: &'static str,
        new: impl Fn() -> M + Send + Sync + 'static,
    ) -> Family<M> {
        let mut families = self.families();
        let known = families.iter().find(|family| family.desc().name == desc.name);
        let known = known.and_then(|family| (&**family as &dyn Any).downcast_ref::<Family<M>>());
        if let Some(family) = known {
            return family.clone();
        }
        let family = Family::new(desc, kind, true, new);
        families.push(Box::new(family.clone()));
        family
    }

    /// A family of gauges that `read` computes at each scrape: it adds label values and a number
    /// for every sample.
    pub fn observed(&self, desc: Desc, read: impl Fn(&mut Samples) + Send + Sync + 'static) {
        self.push(Box::new(ObservedFamily { desc, kind: "gauge", read: Box::new(read) }));
    }

    /// As [`Registry::observed`], for counters.
    pub fn observed_total(&self, desc: Desc, read: impl Fn(&mut Samples) + Send + Sync + 'static) {
        self.push(Box::new(ObservedFamily { desc, kind: "counter", read: Box::new(read) }));
    }

    /// Every family and its type, in the order of registration, also those without a sample.
    pub fn descriptions(&self) -> Vec<(Desc, &'static str)> {
        self.families().iter().map(|family| (family.desc(), family.kind())).collect()
    }

    /// All families in the Prometheus text format, in the order of registration.
    pub fn text(&self) -> String {
        let mut text = String::with_capacity(16 * 1024);
        for family in self.families().iter() {
            family.collect(&mut text);
        }
        text
    }

    /// All families in the Prometheus text format, ordered by name.
    pub fn text_by_name(&self) -> String {
        let mut families = self.families();
        families.sort_by_key(|family| family.desc().name);
        let mut text = String::new();
        for family in families.iter() {
            family.collect(&mut text);
        }
        text
    }

    fn add<M: Sample>(&self, family: Family<M>) -> Family<M> {
        self.push(Box::new(family.clone()));
        family
    }

    fn push(&self, family: Box<dyn Collect>) {
        self.families().push(family);
    }

    fn families(&self) -> std::sync::MutexGuard<'_, Vec<Box<dyn Collect>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All samples with one name. Cheap to clone; clones are the same family.
pub struct Family<M>(Arc<FamilyInner<M>>);

struct FamilyInner<M> {
    desc: Desc,
    kind: &'static str,
    /// Whether a sample is removed with its last handle.
    scoped: bool,
    new: Box<dyn Fn() -> M + Send + Sync>,
    /// By the text of their labels, which is also the order of rendering.
    samples: RwLock<BTreeMap<Box<str>, Arc<M>>>,
}

impl<M> Clone for Family<M> {
    fn clone(&self) -> Family<M> {
        Family(self.0.clone())
    }
}

impl<M> fmt::Debug for Family<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Family({})", self.0.desc.name)
    }
}

impl<M: Sample> Family<M> {
    fn new(
        desc: Desc,
        kind: &'static str,
        scoped: bool,
        new: impl Fn() -> M + Send + Sync + 'static,
    ) -> Family<M> {
        let samples = RwLock::new(BTreeMap::new());
        Family(Arc::new(FamilyInner { desc, kind, scoped, new: Box::new(new), samples }))
    }

    /// The sample with these label values, in the order of the label names. Keep the handle if it
    /// is used often.
    pub fn with(&self, values: &[&str]) -> Arc<M> {
        self.sample(labels(self.0.desc.labels, values))
    }

    /// The sample with these labels; for families whose label names differ between samples.
    pub fn with_labels(&self, labels: &[(&str, &str)]) -> Arc<M> {
        self.sample(label_text(labels.iter().copied()))
    }

    fn sample(&self, labels: String) -> Arc<M> {
        let samples = self.0.samples.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(sample) = samples.get(labels.as_str()).filter(|sample| self.is_used(sample)) {
            return sample.clone();
        }
        drop(samples);
        let mut samples = self.0.samples.write().unwrap_or_else(PoisonError::into_inner);
        samples.retain(|_, sample| self.is_used(sample));
        samples.entry(labels.into()).or_insert_with(|| Arc::new((self.0.new)())).clone()
    }

    fn is_used(&self, sample: &Arc<M>) -> bool {
        !self.0.scoped || Arc::strong_count(sample) > 1
    }
}

impl<M: Sample> Collect for Family<M> {
    fn desc(&self) -> Desc {
        self.0.desc
    }

    fn kind(&self) -> &'static str {
        self.0.kind
    }

    fn collect(&self, text: &mut String) {
        let samples = self.0.samples.read().unwrap_or_else(PoisonError::into_inner);
        let mut used = samples.iter().filter(|(_, sample)| self.is_used(sample)).peekable();
        if used.peek().is_none() {
            return;
        }
        head(text, self.0.desc, self.0.kind);
        for (labels, sample) in used {
            sample.print(text, self.0.desc.name, labels);
        }
    }
}

/// A number, or the numbers of a histogram.
pub trait Sample: Send + Sync + 'static {
    /// Appends the lines of this sample.
    fn print(&self, text: &mut String, name: &str, labels: &str);
}

/// A number that only increases.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Adds a number.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Relaxed);
    }

    /// The number.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl Sample for Counter {
    fn print(&self, text: &mut String, name: &str, labels: &str) {
        line(text, name, labels, &self.get());
    }
}

/// A number that increases and decreases.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Adds one until the guard is dropped.
    pub fn hold(self: &Arc<Gauge>) -> GaugeGuard {
        self.add(1);
        GaugeGuard(self.clone())
    }

    /// Adds a number, which may be negative.
    pub fn add(&self, change: i64) {
        self.0.fetch_add(change, Relaxed);
    }

    /// Sets the number.
    pub fn set(&self, value: i64) {
        self.0.store(value, Relaxed);
    }

    /// The number.
    pub fn get(&self) -> i64 {
        self.0.load(Relaxed)
    }
}

/// Subtracts one from a gauge when it is dropped.
#[derive(Debug)]
pub struct GaugeGuard(Arc<Gauge>);

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.add(-1);
    }
}

impl Sample for Gauge {
    fn print(&self, text: &mut String, name: &str, labels: &str) {
        line(text, name, labels, &self.get());
    }
}

/// The number of observations up to each bound.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One per bound, and one for greater values.
    buckets: Box<[AtomicU64]>,
    /// The bits of an `f64`.
    sum: AtomicU64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Histogram {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Histogram { bounds, buckets, sum: AtomicU64::new(0) }
    }

    /// Adds an observation.
    pub fn observe(&self, value: f64) {
        self.observe_many(value, 1);
    }

    /// Adds equal observations.
    pub fn observe_many(&self, value: f64, count: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.buckets[bucket].fetch_add(count, Relaxed);
        let add = |sum| Some((f64::from_bits(sum) + value * count as f64).to_bits());
        let _ = self.sum.fetch_update(Relaxed, Relaxed, add);
    }

    /// Adds a duration, in seconds.
    pub fn observe_time(&self, time: std::time::Duration) {
        self.observe(time.as_secs_f64());
    }
}

impl Sample for Histogram {
    fn print(&self, text: &mut String, name: &str, labels: &str) {
        let comma = if labels.is_empty() { "" } else { "," };
        let mut count = 0;
        for (bucket, bound) in self.buckets.iter().zip(self.bounds) {
            count += bucket.load(Relaxed);
            let labels = format!("{labels}{comma}le=\"{bound}\"");
            line(text, &format!("{name}_bucket"), &labels, &count);
        }
        count += self.buckets[self.bounds.len()].load(Relaxed);
        line(text, &format!("{name}_bucket"), &format!("{labels}{comma}le=\"+Inf\""), &count);
        line(text, &format!("{name}_sum"), labels, &f64::from_bits(self.sum.load(Relaxed)));
        line(text, &format!("{name}_count"), labels, &count);
    }
}

/// A gauge that is computed when it is rendered; made by [`Registry::computed`].
pub struct ComputedGauge(Box<dyn Fn() -> f64 + Send + Sync>);

impl Sample for ComputedGauge {
    fn print(&self, text: &mut String, name: &str, labels: &str) {
        line(text, name, labels, &(self.0)());
    }
}

impl fmt::Debug for ComputedGauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ComputedGauge")
    }
}

struct ObservedFamily {
    desc: Desc,
    kind: &'static str,
    read: Box<dyn Fn(&mut Samples) + Send + Sync>,
}

/// Receives the samples of an observed family.
#[derive(Debug)]
pub struct Samples {
    desc: Desc,
    lines: String,
}

impl Samples {
    /// Adds a sample.
    pub fn push(&mut self, values: &[&str], value: f64) {
        let labels = labels(self.desc.labels, values);
        line(&mut self.lines, self.desc.name, &labels, &value);
    }
}

impl Collect for ObservedFamily {
    fn desc(&self) -> Desc {
        self.desc
    }

    fn kind(&self) -> &'static str {
        self.kind
    }

    fn collect(&self, text: &mut String) {
        let mut samples = Samples { desc: self.desc, lines: String::new() };
        (self.read)(&mut samples);
        if !samples.lines.is_empty() {
            head(text, self.desc, self.kind);
            text.push_str(&samples.lines);
        }
    }
}

fn head(text: &mut String, desc: Desc, kind: &str) {
    let Desc { name, help, .. } = desc;
    let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
}

fn line(text: &mut String, name: &str, labels: &str, value: &dyn fmt::Display) {
    let _ = match labels {
        "" => writeln!(text, "{name} {value}"),
        labels => writeln!(text, "{name}{{{labels}}} {value}"),
    };
}

fn labels(names: &[&str], values: &[&str]) -> String {
    assert_eq!(names.len(), values.len(), "a value for each of {names:?}");
    label_text(names.iter().copied().zip(values.iter().copied()))
}

fn label_text<'a>(labels: impl ExactSizeIterator<Item = (&'a str, &'a str)>) -> String {
    let mut text = String::with_capacity(labels.len() * 24);
    for (name, value) in labels {
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(name);
        text.push_str("=\"");
        match value.bytes().any(|byte| matches!(byte, b'\\' | b'"' | b'\n')) {
            false => text.push_str(value),
            true => value.chars().for_each(|letter| match letter {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                letter => text.push(letter),
            }),
        }
        text.push('"');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const DESC: Desc = Desc { name: "reads_total", help: "Reads.", labels: &["verb", "code"] };

    #[test]
    fn a_counter_keeps_its_name() {
        let registry = Registry::default();
        let reads = registry.counters(DESC);
        reads.with(&["get", "200"]).inc();
        reads.with(&["get", "200"]).add(2);
        reads.with(&["a\"b\\c\n", ""]).inc();
        assert_eq!(
            registry.text(),
            "# HELP reads_total Reads.\n# TYPE reads_total counter\n\
             reads_total{verb=\"a\\\"b\\\\c\\n\",code=\"\"} 1\n\
             reads_total{verb=\"get\",code=\"200\"} 3\n"
        );
    }

    /// S11.2
    #[test]
    fn a_family_without_a_sample_is_not_rendered() {
        let registry = Registry::default();
        let _reads = registry.counters(DESC);
        registry.observed(DESC, |_| ());
        assert_eq!(registry.text(), "");
    }

    #[test]
    fn buckets_are_cumulative_and_a_bound_belongs_to_its_bucket() {
        let registry = Registry::default();
        let desc = Desc { name: "wait_seconds", help: "Wait.", labels: &[] };
        let waits = registry.histograms(desc, &[0.5, 1.0]);
        for value in [0.25, 0.5, 0.75, 3.0] {
            waits.with(&[]).observe(value);
        }
        assert_eq!(
            registry.text(),
            "# HELP wait_seconds Wait.\n# TYPE wait_seconds histogram\n\
             wait_seconds_bucket{le=\"0.5\"} 2\nwait_seconds_bucket{le=\"1\"} 3\n\
             wait_seconds_bucket{le=\"+Inf\"} 4\nwait_seconds_sum 4.5\nwait_seconds_count 4\n"
        );
    }

    #[test]
    fn a_gauge_counts_its_guards() {
        let gauge = Registry::default().gauges(DESC).with(&["watch", ""]);
        let held = gauge.hold();
        assert_eq!(gauge.get(), 1);
        drop(held);
        assert_eq!(gauge.get(), 0);
    }

    #[test]
    fn observed_samples_are_read_at_each_scrape() {
        let registry = Registry::default();
        let calls = Arc::new(AtomicU64::new(0));
        let counted = calls;
        let desc = Desc { name: "objects", help: "Objects.", labels: &["resource"] };
        registry.observed(desc, move |samples| {
            samples.push(&["pods"], counted.fetch_add(1, Relaxed) as f64);
        });
        assert!(registry.text().ends_with("objects{resource=\"pods\"} 0\n"));
        assert!(registry.text().ends_with("objects{resource=\"pods\"} 1\n"));
    }

    #[test]
    fn a_sample_of_a_scoped_family_is_removed_with_its_last_handle() {
        let registry = Registry::default();
        let reads = |labels: &[(&str, &str)]| registry.scoped_counters(DESC).with_labels(labels);
        let (first, second) = (reads(&[("verb", "get")]), reads(&[("verb", "get")]));
        first.inc();
        second.inc();
        assert!(registry.text().ends_with("reads_total{verb=\"get\"} 2\n"));
        drop((first, second));
        assert_eq!(registry.text(), "");
        assert_eq!(reads(&[("verb", "get")]).get(), 0, "a new sample");
    }

    #[test]
    fn a_computed_gauge_is_read_when_it_is_rendered() {
        let registry = Registry::default();
        let number = Arc::new(AtomicU64::new(3));
        let read = Arc::clone(&number);
        let handle = registry.computed(DESC, &[], move || read.load(Relaxed) as f64);
        number.store(5, Relaxed);
        assert!(registry.text_by_name().ends_with("reads_total 5\n"));
        drop(handle);
        assert_eq!(registry.text_by_name(), "");
    }
}
