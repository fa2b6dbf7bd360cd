//! Goals: the lines Headwater is held to, and whether a figure keeps within one.

use super::figures::{Figure, Figures};
use super::{Case, Row};

/// One line: what another server takes, what the machine allows, what is aimed at.
pub(crate) struct Goal {
    /// The case that answers it, and its size.
    pub(crate) key: &'static str,
    pub(crate) size: usize,
    pub(crate) line: &'static str,
    /// kube-apiserver v1.36.4 with etcd 3.6.8, or the client named.
    pub(crate) reference: &'static str,
    /// A bare server that streams ready-made bytes.
    pub(crate) floor: &'static str,
    pub(crate) target: &'static str,
    /// Every one must hold: at most, or at least for a rate.
    bounds: &'static [(Figure, f64)],
    /// What the bare server took of this figure where the targets are from: for this very line, or, where
    /// it has none, for the most alike.
    pub(crate) floor_there: Option<(Figure, f64)>,
}

/// Whether a goal was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Met,
    /// Met if the target is multiplied by what the bare server takes longer here, in turn with what was
    /// measured, than where the target is from.
    ToScale,
    Missed,
    /// Something that it is about could not be measured.
    Open,
}

impl Verdict {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Verdict::Met => "met",
            Verdict::ToScale => "met to scale",
            Verdict::Missed => "missed",
            Verdict::Open => "not measured",
        }
    }
}

impl Goal {
    /// The goal that a case answers; in a quick run all but the clients are `shrink` times fewer.
    pub(crate) fn of(case: &Case, shrink: usize) -> Option<&'static Goal> {
        let shrink = if case.axis == "clients" { 1 } else { shrink };
        let is_it = |goal: &&Goal| goal.key == case.key && shrunk(goal.size, shrink) == case.size;
        GOALS.iter().find(is_it)
    }

    pub(crate) fn verdict(&self, row: &Row) -> Verdict {
        let slower = self.slower(row);
        match (self.holds(&row.figures, 1.0), slower.map(|by| self.holds(&row.figures, by))) {
            (None, _) => Verdict::Open,
            (Some(true), _) => Verdict::Met,
            (Some(false), Some(Some(true))) => Verdict::ToScale,
            (Some(false), _) => Verdict::Missed,
        }
    }

    /// Whether all bounds hold on a machine that is slower by so much; unknown if something that they are
    /// about could not be measured.
    fn holds(&self, measured: &Figures, slower: f64) -> Option<bool> {
        let holds = self.bounds.iter().map(|(figure, bound)| {
            measured.get(*figure).map(|value| match figure {
                Figure::Rate => value * slower >= *bound,
                Figure::Memory | Figure::Peak | Figure::Wire | Figure::Count => value <= *bound,
                Figure::Wall | Figure::Cpu | Figure::P50 | Figure::P99 => value <= *bound * slower,
            })
        });
        let holds: Option<Vec<bool>> = holds.collect();
        holds.map(|all| all.iter().all(|holds| *holds))
    }

    /// How much longer the bare server took beside what was measured than where the targets are from.
    fn slower(&self, row: &Row) -> Option<f64> {
        let (figure, there) = self.floor_there?;
        row.floor.as_ref()?.get(figure).map(|here| here / there)
    }

    /// What the bare server took, and what of it was measured and is allowed.
    pub(crate) fn beside(&self, row: &Row) -> Option<String> {
        let (figure, there) = self.floor_there?;
        let here = row.floor.as_ref()?.get(figure)?;
        let text = figure.text(here);
        let bound = self.bounds.iter().find(|(bounded, _)| *bounded == figure);
        let parts = row.figures.get(figure).zip(bound).filter(|_| self.floor != NO_FLOOR);
        Some(match parts {
            Some((value, (_, bound))) => {
                format!("{text} here: {:.2} times, {:.2} allowed", value / here, bound / there)
            }
            None => format!("{text} here, {:.2} times what it was there", here / there),
        })
    }

    /// What was measured of the figures that count.
    pub(crate) fn measured(&self, measured: &Figures) -> String {
        let parts = self.bounds.iter().map(|(figure, _)| match measured.get(*figure) {
            None => "–".to_owned(),
            Some(value) => match figure {
                Figure::Rate => format!("{}/s", figure.text(value)),
                Figure::P50 => format!("p50 {}", figure.text(value)),
                Figure::P99 => format!("p99 {}", figure.text(value)),
                _ => figure.text(value),
            },
        });
        parts.collect::<Vec<_>>().join(", ")
    }
}

/// Said of a line that has no floor of its own.
const NO_FLOOR: &str = "–";

/// A size divided, but never down to nothing.
pub(crate) fn shrunk(size: usize, shrink: usize) -> usize {
    (size / shrink).max(size.min(1))
}

/// All lines, in the order they are run and told.
pub(crate) static GOALS: &[Goal] = &[
    Goal {
        key: "start/empty",
        size: 0,
        line: "empty store to ready, and its memory",
        reference: "2.3 s, 255 + 42 MB",
        floor: NO_FLOOR,
        target: "< 0.1 s, < 40 MB",
        bounds: &[(Figure::Wall, 0.1), (Figure::Memory, 40e6)],
        floor_there: None,
    },
    Goal {
        key: "start/restart",
        size: 100_000,
        line: "restart with 100,000 pods to first full LIST",
        reference: "22 s",
        floor: NO_FLOOR,
        target: "≤ 2 s",
        bounds: &[(Figure::Wall, 2.0)],
        floor_there: None,
    },
    Goal {
        key: "start/memory",
        size: 100_000,
        line: "memory, 100,000 pods (600 MB of JSON)",
        reference: "8.2 GB + 1.1 GB etcd",
        floor: "0.6 GB",
        target: "≤ 0.9 GB",
        bounds: &[(Figure::Memory, 0.9e9)],
        floor_there: None,
    },
    Goal {
        key: "write/create pod",
        size: 16,
        line: "create pod, 16 clients, durable",
        reference: "4,213 µs, 450/s, p50 24 ms",
        floor: "45 µs + a shared fsync",
        target: "≤ 150 µs, ≥ 6,000/s, p50 ≤ 3 ms",
        bounds: &[(Figure::Cpu, 150.0), (Figure::Rate, 6000.0), (Figure::P50, 3000.0)],
        floor_there: None,
    },
    Goal {
        key: "write/update pod",
        size: 16,
        line: "update pod, 16 clients",
        reference: "3,680 µs, 518/s",
        floor: "same",
        target: "≤ 150 µs, ≥ 6,000/s",
        bounds: &[(Figure::Cpu, 150.0), (Figure::Rate, 6000.0)],
        floor_there: None,
    },
    Goal {
        key: "write/apply pod",
        size: 16,
        line: "server-side apply of a pod, 16 clients",
        reference: "–",
        floor: "same",
        target: "≤ 200 µs",
        bounds: &[(Figure::Cpu, 200.0)],
        floor_there: None,
    },
    Goal {
        key: "write/create config map",
        size: 64,
        line: "create ConfigMap, 64 clients",
        reference: "787 µs, 2,040/s",
        floor: NO_FLOOR,
        target: "≤ 80 µs, ≥ 12,000/s",
        bounds: &[(Figure::Cpu, 80.0), (Figure::Rate, 12_000.0)],
        floor_there: None,
    },
    Goal {
        key: "write/create pod",
        size: 1,
        line: "one client, create pod, latency",
        reference: "p50 2.6 ms",
        floor: "0.13 ms + fsync",
        target: "p50 ≤ 0.6 ms",
        bounds: &[(Figure::P50, 600.0)],
        floor_there: Some((Figure::P50, 290.0)),
    },
    Goal {
        key: "list/full",
        size: 10_000,
        line: "LIST 10,000 pods, CPU per object",
        reference: "80 µs",
        floor: "2.5 µs",
        target: "≤ 4 µs",
        bounds: &[(Figure::Cpu, 4.0)],
        floor_there: Some((Figure::Cpu, 2.5)),
    },
    Goal {
        key: "list/full, gzip",
        size: 10_000,
        line: "same, gzip",
        reference: "70 µs",
        floor: NO_FLOOR,
        target: "≤ 4 µs",
        bounds: &[(Figure::Cpu, 4.0)],
        floor_there: Some((Figure::Cpu, 2.5)),
    },
    Goal {
        key: "list/pages",
        size: 100_000,
        line: "same, 100,000 pods in pages of 500",
        reference: "149 µs",
        floor: NO_FLOOR,
        target: "≤ 5 µs",
        bounds: &[(Figure::Cpu, 5.0)],
        floor_there: Some((Figure::Cpu, 2.5)),
    },
    Goal {
        key: "list/label",
        size: 10_000,
        line: "LIST by label, 1 % of 10,000: CPU per request",
        reference: "18 ms",
        floor: NO_FLOOR,
        target: "≤ 1 ms",
        bounds: &[(Figure::Cpu, 1000.0)],
        floor_there: Some((Figure::Cpu, 2.5)),
    },
    Goal {
        key: "list/label",
        size: 100_000,
        line: "LIST by label, 1 % of 100,000: CPU per request",
        reference: "248 ms",
        floor: NO_FLOOR,
        target: "≤ 10 ms",
        bounds: &[(Figure::Cpu, 10_000.0)],
        floor_there: Some((Figure::Cpu, 2.5)),
    },
    Goal {
        key: "list/namespace",
        size: 10_000,
        line: "LIST of one namespace, 1 % of 10,000: CPU per request",
        reference: "–",
        floor: NO_FLOOR,
        target: "≤ 0.5 ms",
        bounds: &[(Figure::Cpu, 500.0)],
        floor_there: Some((Figure::Cpu, 2.5)),
    },
    Goal {
        key: "list/namespace",
        size: 100_000,
        line: "LIST of one namespace, 1 % of 100,000: CPU per request",
        reference: "7.2 ms",
        floor: NO_FLOOR,
        target: "≤ 0.5 ms",
        bounds: &[(Figure::Cpu, 500.0)],
        floor_there: Some((Figure::Cpu, 2.5)),
    },
    Goal {
        key: "list/at once",
        size: 10_000,
        line: "16 LISTs of 10,000 pods at once, memory growth",
        reference: "462 MB",
        floor: "4 MB",
        target: "≤ 16 MB",
        bounds: &[(Figure::Memory, 16e6)],
        floor_there: None,
    },
    Goal {
        key: "list/watch-list",
        size: 10_000,
        line: "watch-list of 10,000 pods, CPU per object",
        reference: "125 µs",
        floor: "2 µs",
        target: "≤ 5 µs",
        bounds: &[(Figure::Cpu, 5.0)],
        floor_there: Some((Figure::Cpu, 2.5)),
    },
    Goal {
        key: "fan-out/flat out",
        size: 1000,
        line: "fan-out, 1,000 watchers, flat out: CPU per event",
        reference: "24 µs, 62,000/s",
        floor: "4.9 µs, 213,000/s",
        target: "≤ 8 µs, ≥ 130,000/s",
        bounds: &[(Figure::Cpu, 8.0), (Figure::Rate, 130_000.0)],
        floor_there: Some((Figure::Cpu, 4.9)),
    },
    Goal {
        key: "fan-out/flat out, HTTP/2",
        size: 1000,
        line: "same over HTTP/2, a connection each",
        reference: "28 µs",
        floor: "10 µs",
        target: "≤ 14 µs",
        bounds: &[(Figure::Cpu, 14.0)],
        floor_there: Some((Figure::Cpu, 10.0)),
    },
    Goal {
        key: "fan-out/10 writes a second",
        size: 1000,
        line: "fan-out, 1,000 watchers, 10 writes/s: CPU per event; ack to event",
        reference: "39 µs; p99 33 ms",
        floor: "12.5 µs; 16 ms",
        target: "≤ 16 µs; p99 ≤ 22 ms",
        bounds: &[(Figure::Cpu, 16.0), (Figure::P99, 22_000.0)],
        floor_there: Some((Figure::Cpu, 12.5)),
    },
    Goal {
        key: "fan-out/2 writes a second",
        size: 5000,
        line: "5,000 watchers, 2 writes/s",
        reference: "36 µs; p99 281 ms",
        floor: "13.7 µs; 178 ms",
        target: "≤ 17 µs; p99 ≤ 210 ms",
        bounds: &[(Figure::Cpu, 17.0), (Figure::P99, 210_000.0)],
        floor_there: Some((Figure::Cpu, 13.7)),
    },
    Goal {
        key: "selective/label",
        size: 10,
        line: "selective: each event for 1 of 10 watchers by label; extra CPU per write",
        reference: "–",
        floor: "22 µs",
        target: "≤ 40 µs",
        bounds: &[(Figure::Cpu, 40.0)],
        floor_there: Some((Figure::Cpu, 22.0)),
    },
    Goal {
        key: "selective/label",
        size: 1000,
        line: "same, 1 of 1,000",
        reference: "2,200 µs",
        floor: "22 µs",
        target: "≤ 40 µs",
        bounds: &[(Figure::Cpu, 40.0)],
        floor_there: Some((Figure::Cpu, 22.0)),
    },
    Goal {
        key: "selective/label",
        size: 10_000,
        line: "same, 1 of 10,000",
        reference: "–",
        floor: "22 µs",
        target: "≤ 40 µs",
        bounds: &[(Figure::Cpu, 40.0)],
        floor_there: Some((Figure::Cpu, 22.0)),
    },
    Goal {
        key: "herd/resume",
        size: 1000,
        line: "herd: 1,000 watchers resume and get 200 missed events each; CPU per event",
        reference: "14 s; 118 µs",
        floor: NO_FLOOR,
        target: "≤ 1.2 s; ≤ 6 µs",
        bounds: &[(Figure::Wall, 1.2), (Figure::Cpu, 6.0)],
        floor_there: Some((Figure::Cpu, 4.9)),
    },
    Goal {
        key: "idle/memory",
        size: 5000,
        line: "idle watcher, memory (5,000 of them)",
        reference: "26 KB",
        floor: "6 – 11 KB",
        target: "≤ 14 KB",
        bounds: &[(Figure::Memory, 14e3)],
        floor_there: None,
    },
    Goal {
        key: "idle/minute",
        size: 1000,
        line: "idle, 10,000 pods, 1,000 watchers: CPU per minute",
        reference: "1.3 s",
        floor: NO_FLOOR,
        target: "≤ 0.1 s",
        bounds: &[(Figure::Cpu, 0.1e6)],
        floor_there: None,
    },
    Goal {
        key: "client/packed",
        size: 100_000,
        line: "client, first sync of 100,000 pods, bytes kept: CPU and memory per object",
        reference: "client-go: 82 – 105 µs, 16 KB",
        floor: NO_FLOOR,
        target: "≤ 30 µs, ≤ 8 KB",
        bounds: &[(Figure::Cpu, 30.0), (Figure::Memory, 8e3)],
        floor_there: None,
    },
    Goal {
        key: "client/typed",
        size: 100_000,
        line: "same, typed objects kept",
        reference: "kube-runtime: 140 – 180 µs, 57 KB",
        floor: NO_FLOOR,
        target: "≤ 70 µs, ≤ 28 KB",
        bounds: &[(Figure::Cpu, 70.0), (Figure::Memory, 28e3)],
        floor_there: None,
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_line_is_answered_by_one_case() {
        let keys: BTreeSet<_> = GOALS.iter().map(|goal| (goal.key, goal.size)).collect();
        assert_eq!(keys.len(), GOALS.len());
    }

    #[test]
    fn every_line_is_on_the_page_about_performance() {
        let page = include_str!("../../../../docs/performance.md");
        for Goal { line, reference, floor, target, .. } in GOALS {
            let row = format!("| {line} | {reference} | {floor} | {target} |");
            assert!(page.contains(&row), "{row}");
        }
    }

    #[test]
    fn a_rate_may_be_higher_and_all_else_lower() {
        let goal = Goal::of(&Case::new("write", "create pod", "writes").sized("clients", 16), 1);
        let goal = goal.unwrap();
        let measured = |cpu: f64, rate: f64| {
            let figures = Figures::default().with(Figure::Cpu, cpu).with(Figure::Rate, rate);
            goal.verdict(&row(figures.with(Figure::P50, 1000.0)))
        };
        assert_eq!(measured(150.0, 6000.0), Verdict::Met);
        assert_eq!(measured(151.0, 6000.0), Verdict::Missed);
        assert_eq!(measured(150.0, 5999.0), Verdict::Missed);
        let cpu_only = Figures::default().with(Figure::Cpu, 1.0);
        assert_eq!(goal.verdict(&row(cpu_only)), Verdict::Open);
    }

    #[test]
    fn where_the_bare_server_takes_longer_so_may_we() {
        let goal = GOALS.iter().find(|goal| goal.key == "fan-out/flat out").unwrap();
        let measured = |cpu: f64, rate: f64, floor: f64| {
            let figures = Figures::default().with(Figure::Cpu, cpu).with(Figure::Rate, rate);
            let floor = Some(Figures::default().with(Figure::Cpu, floor));
            goal.verdict(&Row { floor, ..row(figures) })
        };
        assert_eq!(measured(16.0, 65_000.0, 9.8), Verdict::ToScale);
        assert_eq!(measured(16.1, 65_000.0, 9.8), Verdict::Missed);
        assert_eq!(measured(16.0, 64_999.0, 9.8), Verdict::Missed);
        assert_eq!(measured(8.1, 130_000.0, 4.0), Verdict::Missed);
        assert_eq!(measured(8.0, 130_000.0, 4.0), Verdict::Met);
        let here = Figures::default().with(Figure::Cpu, 12.0);
        let beside = Row { floor: Some(Figures::default().with(Figure::Cpu, 9.6)), ..row(here) };
        assert_eq!(goal.beside(&beside).unwrap(), "9.6 µs here: 1.25 times, 1.63 allowed");
    }

    fn row(figures: Figures) -> Row {
        let case = Case::new("write", "create pod", "writes").sized("clients", 16);
        Row::alone(case, "headwater", 1, figures)
    }
}
