//! Goals: the figures Headwater must reach, and whether a measurement reaches them.
//!
//! `goals.txt` has a line per goal: the case that measures it and its size; the bounds on its
//! figures; the figure of the bare server on the reference machine, of this case or of the most
//! similar one; then the columns of the table in `docs/performance.md`.

use std::sync::LazyLock;

use super::figures::{Figure, Figures};
use super::{Case, Row};

/// One goal.
pub(crate) struct Goal {
    /// The key of the case that measures it.
    pub(crate) key: &'static str,
    pub(crate) size: usize,
    pub(crate) line: &'static str,
    /// The figures of kube-apiserver v1.36.4 with etcd 3.6.8, or of the named client.
    pub(crate) reference: &'static str,
    /// The figures of a bare server that streams ready-made bytes.
    pub(crate) floor: &'static str,
    pub(crate) target: &'static str,
    /// All must hold: a minimum for a rate, a maximum for other figures.
    bounds: Vec<(Figure, f64)>,
    /// What the bare server took on the machine that the targets were measured on.
    pub(crate) reference_floor: Option<(Figure, f64)>,
}

/// Whether a goal was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GoalVerdict {
    Met,
    /// Met if the target is multiplied by the time of the bare server here, divided by its time on
    /// the reference machine. Both are measured alternately with the case.
    MetToScale,
    Missed,
    /// A figure with a bound was not measured.
    NotMeasured,
}

impl GoalVerdict {
    pub(crate) fn word(self) -> &'static str {
        match self {
            GoalVerdict::Met => "met",
            GoalVerdict::MetToScale => "met to scale",
            GoalVerdict::Missed => "missed",
            GoalVerdict::NotMeasured => "not measured",
        }
    }
}

impl Goal {
    /// The goal that a case measures. A quick run divides all sizes but the number of clients by
    /// `shrink`.
    pub(crate) fn of(case: &Case, shrink: usize) -> Option<&'static Goal> {
        let shrink = if case.axis == "clients" { 1 } else { shrink };
        let is_it = |goal: &&Goal| goal.key == case.key && shrunk(goal.size, shrink) == case.size;
        GOALS.iter().find(is_it)
    }

    pub(crate) fn verdict(&self, row: &Row) -> GoalVerdict {
        let slower = self.slower(row);
        match (self.holds(&row.figures, 1.0), slower.map(|by| self.holds(&row.figures, by))) {
            (None, _) => GoalVerdict::NotMeasured,
            (Some(true), _) => GoalVerdict::Met,
            (Some(false), Some(Some(true))) => GoalVerdict::MetToScale,
            (Some(false), _) => GoalVerdict::Missed,
        }
    }

    /// Whether all bounds hold on a machine that is slower by this factor; `None` if a figure with
    /// a bound was not measured.
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

    /// The time of the bare server here, divided by its time on the reference machine.
    fn slower(&self, row: &Row) -> Option<f64> {
        let (figure, there) = self.reference_floor?;
        row.floor.as_ref()?.get(figure).map(|here| here / there)
    }

    /// The figure of the bare server, with the measured and the allowed ratio to it.
    pub(crate) fn floor_ratio(&self, row: &Row) -> Option<String> {
        let (figure, there) = self.reference_floor?;
        let here = row.floor.as_ref()?.get(figure)?;
        let text = figure.text(here);
        let bound = self.bounds.iter().find(|(bounded, _)| *bounded == figure);
        let measured = row.figures.get(figure).zip(bound).filter(|_| self.floor != NO_FLOOR);
        Some(match measured {
            Some((value, (_, bound))) => {
                format!("{text} here: {:.2} times, {:.2} allowed", value / here, bound / there)
            }
            None => format!("{text} here, {:.2} times the reference machine", here / there),
        })
    }

    /// The measured figures that have a bound.
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

/// The floor of a goal that has none.
const NO_FLOOR: &str = "–";

/// A size divided by `shrink`, at least 1 unless it is 0.
pub(crate) fn shrunk(size: usize, shrink: usize) -> usize {
    (size / shrink).max(size.min(1))
}

/// All goals, in the order in which they are measured and reported.
pub(crate) static GOALS: LazyLock<Vec<Goal>> = LazyLock::new(|| {
    let lines = include_str!("goals.txt").lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| parse(line).expect("goals.txt is a table of goals")).collect()
});

fn parse(line: &'static str) -> Option<Goal> {
    let columns: [&str; 8] = line.split(" | ").collect::<Vec<_>>().try_into().ok()?;
    let [key, size, bounds, bare, line, reference, floor, target] = columns;
    let bounds = bounds.split(", ").map(parse_bound).collect::<Option<_>>()?;
    let size = size.parse().ok()?;
    let reference_floor = match bare {
        NO_FLOOR => None,
        bare => Some(parse_bound(bare)?),
    };
    Some(Goal { key, size, line, reference, floor, target, bounds, reference_floor })
}

fn parse_bound(text: &str) -> Option<(Figure, f64)> {
    let (name, value) = text.split_once(' ')?;
    let figure = Figure::ALL.into_iter().find(|figure| figure.name() == name)?;
    Some((figure, value.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_goal_has_its_own_case() {
        let keys: BTreeSet<_> = GOALS.iter().map(|goal| (goal.key, goal.size)).collect();
        assert_eq!(keys.len(), GOALS.len());
    }

    #[test]
    fn every_goal_is_in_the_table_of_docs_performance_md() {
        let page = include_str!("../../../../docs/performance.md");
        for Goal { line, reference, floor, target, .. } in &*GOALS {
            let row = format!("| {line} | {reference} | {floor} | {target} |");
            assert!(page.contains(&row), "{row}");
        }
    }

    #[test]
    fn a_rate_has_a_minimum_and_other_figures_a_maximum() {
        let goal = Goal::of(&Case::new("write", "create pod", "writes").sized("clients", 16), 1);
        let goal = goal.unwrap();
        let measured = |cpu: f64, rate: f64| {
            let figures = Figures::default().with(Figure::Cpu, cpu).with(Figure::Rate, rate);
            goal.verdict(&row(figures.with(Figure::P50, 1000.0)))
        };
        assert_eq!(measured(150.0, 6000.0), GoalVerdict::Met);
        assert_eq!(measured(151.0, 6000.0), GoalVerdict::Missed);
        assert_eq!(measured(150.0, 5999.0), GoalVerdict::Missed);
        let cpu_only = Figures::default().with(Figure::Cpu, 1.0);
        assert_eq!(goal.verdict(&row(cpu_only)), GoalVerdict::NotMeasured);
    }

    #[test]
    fn a_target_scales_with_the_time_of_the_bare_server() {
        let goal = GOALS.iter().find(|goal| goal.key == "fan-out/flat out").unwrap();
        let measured = |cpu: f64, rate: f64, floor: f64| {
            let figures = Figures::default().with(Figure::Cpu, cpu).with(Figure::Rate, rate);
            let floor = Some(Figures::default().with(Figure::Cpu, floor));
            goal.verdict(&Row { floor, ..row(figures) })
        };
        assert_eq!(measured(16.0, 65_000.0, 9.8), GoalVerdict::MetToScale);
        assert_eq!(measured(16.1, 65_000.0, 9.8), GoalVerdict::Missed);
        assert_eq!(measured(16.0, 64_999.0, 9.8), GoalVerdict::Missed);
        assert_eq!(measured(8.1, 130_000.0, 4.0), GoalVerdict::Missed);
        assert_eq!(measured(8.0, 130_000.0, 4.0), GoalVerdict::Met);
        let here = Figures::default().with(Figure::Cpu, 12.0);
        let compared = Row { floor: Some(Figures::default().with(Figure::Cpu, 9.6)), ..row(here) };
        assert_eq!(goal.floor_ratio(&compared).unwrap(), "9.6 µs here: 1.25 times, 1.63 allowed");
    }

    fn row(figures: Figures) -> Row {
        let case = Case::new("write", "create pod", "writes").sized("clients", 16);
        Row::alone(case, "headwater", 1, figures)
    }
}
