//! Counters, gauges and histograms, and their text form.
//!
//! Promise: the registry is a value, so ten servers live in one process; names are printed exactly
//! as given; a family without a sample is not printed (S11.2); a sample handle, once looked up,
//! costs one atomic addition.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crate::lock::lock;

/// What a scrape prints.
#[derive(Clone, Default)]
pub struct Registry(Arc<Mutex<Vec<Box<dyn Collect>>>>);

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Registry(..)")
    }
}

/// Something a scrape can print.
trait Collect: Send + Sync {
    fn collect(&self, text: &mut String);
}

/// Name, explanation and label names of a family.
#[derive(Clone, Copy, Debug)]
pub struct Desc {
    /// As dashboards query it.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// In the order in which values are given.
    pub labels: &'static [&'static str],
}

impl Registry {
    /// A family of counters.
    pub fn counters(&self, desc: Desc) -> Family<Counter> {
        self.add(Family::new(desc, "counter", Counter::default))
    }

    /// A family of gauges.
    pub fn gauges(&self, desc: Desc) -> Family<Gauge> {
        self.add(Family::new(desc, "gauge", Gauge::default))
    }

    /// A family of histograms with these upper bounds.
    pub fn histograms(&self, desc: Desc, bounds: &'static [f64]) -> Family<Histogram> {
        self.add(Family::new(desc, "histogram", move || Histogram::new(bounds)))
    }

    /// Gauges that are only known by asking: `read` is called at each scrape and gives label
    /// values and a number for every sample.
    pub fn observed(&self, desc: Desc, read: impl Fn(&mut Samples) + Send + Sync + 'static) {
        self.push(Box::new(Observed { desc, kind: "gauge", read: Box::new(read) }));
    }

    /// Counters that are only known by asking.
    pub fn observed_total(&self, desc: Desc, read: impl Fn(&mut Samples) + Send + Sync + 'static) {
        self.push(Box::new(Observed { desc, kind: "counter", read: Box::new(read) }));
    }

    /// Everything, in the Prometheus text format.
    pub fn text(&self) -> String {
        let mut text = String::with_capacity(16 * 1024);
        for family in self.families().iter() {
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
        lock(&self.0)
    }
}

/// All samples that share a name. Cheap to clone; clones are the same family.
pub struct Family<M>(Arc<Inner<M>>);

struct Inner<M> {
    desc: Desc,
    kind: &'static str,
    new: Box<dyn Fn() -> M + Send + Sync>,
    /// By printed labels, which is also the order of printing.
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
        new: impl Fn() -> M + Send + Sync + 'static,
    ) -> Family<M> {
        let samples = RwLock::new(BTreeMap::new());
        Family(Arc::new(Inner { desc, kind, new: Box::new(new), samples }))
    }

    /// The sample with these label values, in the order of the label names. Keep it where it is
    /// used often.
    pub fn with(&self, values: &[&str]) -> Arc<M> {
        let labels = labels(self.0.desc.labels, values);
        let samples = self.0.samples.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(sample) = samples.get(labels.as_str()) {
            return sample.clone();
        }
        drop(samples);
        let mut samples = self.0.samples.write().unwrap_or_else(PoisonError::into_inner);
        samples.entry(labels.into()).or_insert_with(|| Arc::new((self.0.new)())).clone()
    }
}

impl<M: Sample> Collect for Family<M> {
    fn collect(&self, text: &mut String) {
        let samples = self.0.samples.read().unwrap_or_else(PoisonError::into_inner);
        if samples.is_empty() {
            return;
        }
        head(text, self.0.desc, self.0.kind);
        for (labels, sample) in samples.iter() {
            sample.print(text, self.0.desc.name, labels);
        }
    }
}

/// One printed number, or a histogram's worth of them.
pub trait Sample: Send + Sync + 'static {
    /// Appends the lines of this sample.
    fn print(&self, text: &mut String, name: &str, labels: &str);
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// One more.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Some more.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Relaxed);
    }

    /// How many.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl Sample for Counter {
    fn print(&self, text: &mut String, name: &str, labels: &str) {
        line(text, name, labels, &self.get());
    }
}

/// A number that goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// One more, until the guard is dropped.
    pub fn hold(self: &Arc<Gauge>) -> Held {
        self.add(1);
        Held(self.clone())
    }

    /// More, or less.
    pub fn add(&self, change: i64) {
        self.0.fetch_add(change, Relaxed);
    }

    /// Exactly this.
    pub fn set(&self, value: i64) {
        self.0.store(value, Relaxed);
    }

    /// How much.
    pub fn get(&self) -> i64 {
        self.0.load(Relaxed)
    }
}

/// Counts one in a gauge while it lives.
#[derive(Debug)]
pub struct Held(Arc<Gauge>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.add(-1);
    }
}

impl Sample for Gauge {
    fn print(&self, text: &mut String, name: &str, labels: &str) {
        line(text, name, labels, &self.get());
    }
}

/// How many observations fell below each bound.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One for each bound and one for what is above all of them.
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
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.buckets[bucket].fetch_add(1, Relaxed);
        let add = |sum| Some((f64::from_bits(sum) + value).to_bits());
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

struct Observed {
    desc: Desc,
    kind: &'static str,
    read: Box<dyn Fn(&mut Samples) + Send + Sync>,
}

/// Where an observed family puts its numbers.
#[derive(Debug)]
pub struct Samples {
    desc: Desc,
    lines: String,
}

impl Samples {
    /// One sample.
    pub fn push(&mut self, values: &[&str], value: f64) {
        let labels = labels(self.desc.labels, values);
        line(&mut self.lines, self.desc.name, &labels, &value);
    }
}

impl Collect for Observed {
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
    let mut text = String::with_capacity(names.len() * 24);
    for (name, value) in names.iter().zip(values) {
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
    fn a_family_without_a_sample_is_not_there() {
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
    fn a_gauge_counts_what_is_held() {
        let gauge = Registry::default().gauges(DESC).with(&["watch", ""]);
        let held = gauge.hold();
        assert_eq!(gauge.get(), 1);
        drop(held);
        assert_eq!(gauge.get(), 0);
    }

    #[test]
    fn observed_numbers_are_read_at_each_scrape() {
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
}
