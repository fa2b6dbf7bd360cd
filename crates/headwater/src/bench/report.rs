//! What was measured, a line at a time, for people or for programs.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::measure::Used;
use crate::print;

pub(super) struct Report {
    json: bool,
}

/// One measurement.
#[derive(Serialize)]
pub(super) struct Line {
    name: String,
    /// How many of `unit` were done.
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    wall_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    per_second: Option<f64>,
    /// CPU for one of `unit`: the server's, or the client's where that is measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_micros: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p50_micros: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p99_micros: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    against: Option<Against>,
    #[serde(skip_serializing_if = "str::is_empty")]
    target: &'static str,
}

/// The same work done by somebody else, as ratios of ours to theirs.
#[derive(Serialize)]
struct Against {
    name: &'static str,
    cpu: f64,
    memory: f64,
}

impl Line {
    pub(super) fn new(name: impl Into<String>, unit: &'static str) -> Line {
        Line {
            name: name.into(),
            count: None,
            unit,
            wall_seconds: None,
            per_second: None,
            cpu_micros: None,
            p50_micros: None,
            p99_micros: None,
            bytes: None,
            peak_bytes: None,
            against: None,
            target: "",
        }
    }

    /// So many were done, for so much.
    pub(super) fn used(mut self, count: u64, used: Used) -> Line {
        self.count = Some(count);
        self.wall_seconds = Some(used.wall.as_secs_f64());
        self.per_second = Some(count as f64 / used.wall.as_secs_f64());
        self.cpu_micros = used.cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / count as f64);
        self
    }

    /// Only the time it took.
    pub(super) fn took(mut self, wall: Duration) -> Line {
        self.wall_seconds = Some(wall.as_secs_f64());
        self
    }

    pub(super) fn latency(mut self, micros: &Histogram<u64>) -> Line {
        self.p50_micros = Some(micros.value_at_quantile(0.5));
        self.p99_micros = Some(micros.value_at_quantile(0.99));
        self
    }

    pub(super) fn bytes(mut self, bytes: Option<u64>) -> Line {
        self.bytes = bytes;
        self
    }

    /// What it keeps, and the most it took meanwhile.
    pub(super) fn memory(mut self, peak: u64, settled: u64) -> Line {
        (self.bytes, self.peak_bytes) = (Some(settled), Some(peak));
        self
    }

    /// How that compares: CPU and memory as parts of another's.
    pub(super) fn against(mut self, name: &'static str, (cpu, memory): (f64, f64)) -> Line {
        self.against = Some(Against { name, cpu, memory });
        self
    }

    /// What it should be (`targets` in the docs).
    pub(super) fn target(mut self, target: &'static str) -> Line {
        self.target = target;
        self
    }

    fn text(&self) -> String {
        let mut text = format!("{:<48}", self.name);
        let mut add = |part: String| {
            text.push_str("  ");
            text.push_str(&part);
        };
        match (self.per_second, self.wall_seconds) {
            (Some(rate), _) => add(format!("{:>9} {}/s", grouped(rate), self.unit)),
            (None, Some(seconds)) => add(format!("{:>9}", time(seconds * 1e6))),
            (None, None) => {}
        }
        if let Some(cpu) = self.cpu_micros {
            add(format!("cpu {} a {}", time(cpu), self.unit.trim_end_matches('s')));
        }
        if let (Some(p50), Some(p99)) = (self.p50_micros, self.p99_micros) {
            add(format!("p50 {}  p99 {}", time(p50 as f64), time(p99 as f64)));
        }
        if let Some(bytes) = self.bytes {
            add(size(bytes));
        }
        if let Some(peak) = self.peak_bytes {
            add(format!("peak {}", size(peak)));
        }
        if let Some(Against { name, cpu, memory }) = &self.against {
            add(format!("{cpu:.2} of the CPU and {memory:.2} of the memory of {name}"));
        }
        if !self.target.is_empty() {
            add(format!("(target {})", self.target));
        }
        text
    }
}

impl Report {
    pub(super) fn new(json: bool) -> Report {
        Report { json }
    }

    pub(super) fn line(&mut self, line: &Line) {
        match self.json {
            true => print::data(&serde_json::to_string(line).unwrap_or_default()),
            false => print::data(&line.text()),
        }
    }

    /// What is going on, for people who wait.
    pub(super) fn note(&mut self, text: &str) {
        print::note(text);
    }
}

fn time(micros: f64) -> String {
    match micros {
        m if m < 1e3 => format!("{m:.1} µs"),
        m if m < 1e6 => format!("{:.2} ms", m / 1e3),
        m => format!("{:.2} s", m / 1e6),
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        b if b < 10_000 => format!("{b} B"),
        b if b < 10_000_000 => format!("{:.1} KB", b as f64 / 1e3),
        b => format!("{:.1} MB", b as f64 / 1e6),
    }
}

fn grouped(rate: f64) -> String {
    if rate < 100.0 {
        return format!("{rate:.1}");
    }
    let digits = format!("{rate:.0}");
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
    use super::*;

    #[test]
    fn numbers_are_printed_for_people() {
        assert_eq!(grouped(1234567.4), "1,234,567");
        assert_eq!(grouped(99.94), "99.9");
        assert_eq!(grouped(100.0), "100");
        assert_eq!(time(12.34), "12.3 µs");
        assert_eq!(time(12_340.0), "12.34 ms");
        assert_eq!(time(1_234_000.0), "1.23 s");
        assert_eq!(size(9_999), "9999 B");
        assert_eq!(size(12_345_678), "12.3 MB");
    }
}
