//! The metrics of a controller, with the names that controller-runtime uses.
//!
//! River: controller → **metrics**.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::metrics::{Counter, Definition, Gauge, Histogram, Metrics};

macro_rules! definitions {
    ($($name:ident = $text:literal, $help:literal;)*) => {
        $(const $name: Definition = Definition { name: $text, help: $help };)*
    };
}

definitions! {
    TOTAL = "controller_runtime_reconcile_total", "Reconciles by result";
    ERRORS = "controller_runtime_reconcile_errors_total", "Reconciles that failed";
    TERMINAL = "controller_runtime_terminal_reconcile_errors_total",
        "Reconciles that failed and are not retried";
    PANICS = "controller_runtime_reconcile_panics_total", "Reconcilers that panicked";
    TIMEOUTS = "controller_runtime_reconcile_timeouts_total", "Reconciles that took too long";
    TIME = "controller_runtime_reconcile_time_seconds", "How long a reconcile takes";
    ACTIVE = "controller_runtime_active_workers", "Workers that are reconciling";
    WORKERS = "controller_runtime_max_concurrent_reconciles", "Workers there are";
    STALE = "stale_reconciles_total",
        "Reconciles put off because a cache had not seen the key's own writes";
    UNORDERED = "unordered_write_versions_total",
        "Writes that could not be waited for because their resourceVersion cannot be ordered";
    TRIGGERS = "controller_triggers_total", "Reconciles by what caused them";
}

/// Updates the metrics of one controller.
pub(super) struct Observer {
    metrics: Metrics,
    counters: Mutex<BTreeMap<(&'static str, &'static str), Counter>>,
    series: Mutex<Option<Series>>,
}

#[derive(Clone)]
struct Series {
    name: String,
    errors: Counter,
    terminal: Counter,
    panics: Counter,
    timeouts: Counter,
    stale: Counter,
    unordered: Counter,
    time: Histogram,
    active: Gauge,
    _workers: Gauge,
}

impl Observer {
    pub(super) fn new(metrics: &Metrics) -> Observer {
        Observer { metrics: metrics.clone(), counters: Mutex::default(), series: Mutex::default() }
    }

    /// Creates the series of the controller.
    pub(super) fn start(&self, name: &str, workers: usize) {
        let labels = &[("controller", name)];
        let counter = |definition: &Definition| self.metrics.counter(definition, labels);
        let all = self.metrics.gauge(&WORKERS, labels);
        all.set(workers as i64);
        let series = Series {
            name: name.to_owned(),
            errors: counter(&ERRORS),
            terminal: counter(&TERMINAL),
            panics: counter(&PANICS),
            timeouts: counter(&TIMEOUTS),
            stale: counter(&STALE),
            unordered: counter(&UNORDERED),
            time: self.metrics.histogram(&TIME, labels),
            active: self.metrics.gauge(&ACTIVE, labels),
            _workers: all,
        };
        *self.series.lock().expect("metrics code does not panic") = Some(series);
    }

    fn with(&self, use_it: impl FnOnce(&Series)) {
        if let Some(series) = &*self.series.lock().expect("metrics code does not panic") {
            use_it(series);
        }
    }

    fn labelled(&self, kind: &'static str, value: &'static str) {
        let mut counters = self.counters.lock().expect("metrics code does not panic");
        if let Some(counter) = counters.get(&(kind, value)) {
            return counter.inc();
        }
        let definition = if kind == "result" { &TOTAL } else { &TRIGGERS };
        self.with(|series| {
            let labels = &[("controller", series.name.as_str()), (kind, value)];
            let counter = self.metrics.counter(definition, labels);
            counter.inc();
            counters.insert((kind, value), counter);
        });
    }

    pub(super) fn triggered(&self, trigger: &'static str) {
        self.labelled("trigger", trigger);
    }

    pub(super) fn started(&self) {
        self.with(|series| series.active.add(1));
    }

    pub(super) fn finished(&self, result: &'static str, took: std::time::Duration) {
        self.labelled("result", result);
        self.with(|series| {
            series.active.add(-1);
            series.time.observe_time(took);
        });
    }

    pub(super) fn failed(&self, kind: FailureKind) {
        self.with(|series| match kind {
            FailureKind::Error => series.errors.inc(),
            FailureKind::Terminal => {
                series.errors.inc();
                series.terminal.inc();
            }
            FailureKind::Panic => {
                series.errors.inc();
                series.panics.inc();
            }
            FailureKind::Timeout => {
                series.errors.inc();
                series.timeouts.inc();
            }
        });
    }

    pub(super) fn stale(&self) {
        self.with(|series| series.stale.inc());
    }

    pub(super) fn unordered(&self, count: usize) {
        self.with(|series| series.unordered.add(count as u64));
    }
}

/// How a reconcile failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureKind {
    Error,
    Terminal,
    Panic,
    Timeout,
}
