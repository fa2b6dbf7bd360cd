//! Figures: the measured numbers of a piece of work.
//!
//! Promise: medians and ratios are computed figure by figure; a figure that was not measured stays
//! absent.

use hdrhistogram::Histogram;
use serde_json::{Map, Value};

use crate::target::measure::Usage;

/// The kinds of figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figure {
    /// Completed units of work.
    Count,
    /// Seconds from beginning to end.
    Wall,
    /// Units per second.
    Rate,
    /// Microseconds of CPU per unit, of the server or of the client under test.
    Cpu,
    /// Median latency of responses or events, in microseconds.
    P50,
    /// 99th percentile of the latency, in microseconds.
    P99,
    /// Bytes of the response bodies of one unit.
    Wire,
    /// Bytes of memory, per process, object or watcher.
    Memory,
    /// Peak memory in bytes.
    Peak,
}

impl Figure {
    pub(crate) const ALL: [Figure; 9] = [
        Figure::Count,
        Figure::Wall,
        Figure::Rate,
        Figure::Cpu,
        Figure::P50,
        Figure::P99,
        Figure::Wire,
        Figure::Memory,
        Figure::Peak,
    ];

    /// Its name in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Figure::Count => "count",
            Figure::Wall => "wall_seconds",
            Figure::Rate => "per_second",
            Figure::Cpu => "cpu_micros",
            Figure::P50 => "p50_micros",
            Figure::P99 => "p99_micros",
            Figure::Wire => "wire_bytes",
            Figure::Memory => "memory_bytes",
            Figure::Peak => "peak_bytes",
        }
    }

    /// A value with its unit.
    pub(crate) fn text(self, value: f64) -> String {
        match self {
            Figure::Count | Figure::Rate => grouped(value),
            Figure::Wall => time(value * 1e6),
            Figure::Cpu | Figure::P50 | Figure::P99 => time(value),
            Figure::Wire | Figure::Memory | Figure::Peak => size(value),
        }
    }
}

/// The figures of one piece of work.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Figures([Option<f64>; Figure::ALL.len()]);

impl Figures {
    /// The figures of `count` units that took `used`.
    pub(crate) fn per_unit(count: usize, used: Usage) -> Figures {
        let wall = used.wall.as_secs_f64();
        let mut figures = Figures::default();
        figures.set(Figure::Count, count as f64);
        figures.set(Figure::Wall, wall);
        figures.set(Figure::Rate, count as f64 / wall);
        let each = used.cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / count as f64);
        figures.maybe(Figure::Cpu, each)
    }

    pub(crate) fn latency(mut self, micros: &Histogram<u64>) -> Figures {
        self.set(Figure::P50, micros.value_at_quantile(0.5) as f64);
        self.set(Figure::P99, micros.value_at_quantile(0.99) as f64);
        self
    }

    pub(crate) fn with(mut self, figure: Figure, value: f64) -> Figures {
        self.set(figure, value);
        self
    }

    pub(crate) fn maybe(mut self, figure: Figure, value: Option<f64>) -> Figures {
        self.0[figure as usize] = value;
        self
    }

    pub(crate) fn memory(self, bytes: Option<u64>) -> Figures {
        self.maybe(Figure::Memory, bytes.map(|bytes| bytes as f64))
    }

    pub(crate) fn get(&self, figure: Figure) -> Option<f64> {
        self.0[figure as usize]
    }

    fn set(&mut self, figure: Figure, value: f64) {
        self.0[figure as usize] = Some(value);
    }

    /// The median of several runs, figure by figure.
    pub(crate) fn median(runs: &[Figures]) -> Figures {
        let mut median = Figures::default();
        for figure in Figure::ALL {
            let values = runs.iter().filter_map(|run| run.get(figure)).collect();
            median = median.maybe(figure, middle(values));
        }
        median
    }

    /// Each figure divided by that of `other`, for the same amount of work.
    pub(crate) fn over(&self, other: &Figures) -> Figures {
        let mut ratios = Figures::default();
        for figure in Figure::ALL.into_iter().filter(|figure| *figure != Figure::Count) {
            let pair = self.get(figure).zip(other.get(figure));
            let ratio = pair.filter(|(_, other)| *other > 0.0).map(|(ours, other)| ours / other);
            ratios = ratios.maybe(figure, ratio);
        }
        ratios
    }

    pub(crate) fn json(&self) -> Map<String, Value> {
        let there = Figure::ALL.into_iter().filter_map(|figure| {
            self.get(figure).map(|value| (figure.name().to_owned(), number(figure, value)))
        });
        there.collect()
    }
}

/// Counts are integers.
fn number(figure: Figure, value: f64) -> Value {
    match figure {
        Figure::Count => (value as u64).into(),
        _ => value.into(),
    }
}

fn middle(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let at = values.len() / 2;
    match values.len() {
        0 => None,
        length if length.is_multiple_of(2) => Some(f64::midpoint(values[at - 1], values[at])),
        _ => Some(values[at]),
    }
}

pub(crate) fn time(micros: f64) -> String {
    match micros {
        m if m < 1e3 => format!("{m:.1} µs"),
        m if m < 1e6 => format!("{:.2} ms", m / 1e3),
        m => format!("{:.2} s", m / 1e6),
    }
}

pub(crate) fn size(bytes: f64) -> String {
    match bytes {
        b if b < 1e4 => format!("{b:.0} B"),
        b if b < 1e7 => format!("{:.1} KB", b / 1e3),
        b if b < 1e10 => format!("{:.1} MB", b / 1e6),
        b => format!("{:.1} GB", b / 1e9),
    }
}

/// A number with thousands separators.
pub(crate) fn grouped(value: f64) -> String {
    if value < 100.0 && value.fract() != 0.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn numbers_have_units_and_separators() {
        for (text, expected) in [
            (grouped(1_234_567.4), "1,234,567"),
            (grouped(99.94), "99.9"),
            (grouped(100.0), "100"),
            (grouped(16.0), "16"),
            (time(12.34), "12.3 µs"),
            (time(12_340.0), "12.34 ms"),
            (time(1_234_000.0), "1.23 s"),
            (size(9_999.0), "9999 B"),
            (size(12_345_678.0), "12.3 MB"),
        ] {
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn the_median_of_each_figure_ignores_runs_without_it() {
        let run = |cpu, rate| Figures::default().with(Figure::Cpu, cpu).maybe(Figure::Rate, rate);
        let median = Figures::median(&[run(9.0, None), run(1.0, Some(8.0)), run(2.0, Some(4.0))]);
        assert_eq!(median.get(Figure::Cpu), Some(2.0));
        assert_eq!(median.get(Figure::Rate), Some(6.0));
        assert_eq!(median.get(Figure::P99), None);
    }

    #[test]
    fn cpu_is_per_unit_and_ratios_are_per_figure() {
        let used =
            |cpu| Usage { wall: Duration::from_secs(2), cpu: Some(Duration::from_micros(cpu)) };
        let (ours, theirs) =
            (Figures::per_unit(100, used(1000)), Figures::per_unit(100, used(4000)));
        assert_eq!(ours.get(Figure::Cpu), Some(10.0));
        assert_eq!(ours.get(Figure::Rate), Some(50.0));
        assert_eq!(ours.over(&theirs).get(Figure::Cpu), Some(0.25));
        assert_eq!(ours.over(&Figures::default()).get(Figure::Cpu), None);
    }
}
