//! What was measured: a line at a time while it runs, and all of it at the end.
//!
//! Promise: data goes to stdout, a table for people or JSON for programs; all else to stderr.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use super::figures::{Figures, grouped};
use super::goals::{GOALS, Goal, Verdict};
use super::{html, plot, table};
use crate::print;

/// One thing that is measured, at one size.
#[derive(Clone, Debug)]
pub(super) struct Case {
    /// `scenario/mode`, the same for all sizes.
    pub(super) key: String,
    /// What is counted.
    pub(super) unit: &'static str,
    /// What there are `size` of.
    pub(super) axis: &'static str,
    pub(super) size: usize,
    pub(super) growth: Growth,
}

/// How the cost of one unit should change with the size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    /// Not at all.
    Flat,
    /// In proportion: the unit is larger, too.
    Straight,
}

impl Case {
    pub(super) fn new(scenario: &str, mode: &str, unit: &'static str) -> Case {
        let key = format!("{scenario}/{mode}");
        Case { key, unit, axis: "", size: 0, growth: Growth::Flat }
    }

    pub(super) fn sized(self, axis: &'static str, size: usize) -> Case {
        Case { axis, size, ..self }
    }

    pub(super) fn grows_straight(self) -> Case {
        Case { growth: Growth::Straight, ..self }
    }

    pub(super) fn scenario(&self) -> &str {
        self.key.split('/').next().unwrap_or_default()
    }

    pub(super) fn mode(&self) -> &str {
        self.key.split_once('/').map_or("", |(_, mode)| mode)
    }

    pub(super) fn name(&self) -> String {
        let name = format!("{}: {}", self.scenario(), self.mode());
        match self.axis {
            "" => name,
            axis if self.size == 1 => format!("{name}, 1 {}", axis.trim_end_matches('s')),
            axis => format!("{name}, {} {axis}", grouped(self.size as f64)),
        }
    }
}

/// The figures of one case on one server: medians, if it ran several times.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) case: Case,
    pub(super) server: String,
    pub(super) runs: usize,
    pub(super) figures: Figures,
    /// The same work done by another, whose name this is, and our figures as parts of theirs.
    pub(super) against: Option<(String, Figures)>,
    /// What the bare server took for something like it, run by run beside it.
    pub(super) floor: Option<Figures>,
}

impl Row {
    /// Figures that nothing was done beside.
    pub(super) fn alone(case: Case, server: &str, runs: usize, figures: Figures) -> Row {
        Row { case, server: server.to_owned(), runs, figures, against: None, floor: None }
    }

    fn json(&self, shrink: usize) -> Value {
        let mut line = Map::new();
        line.insert("name".into(), self.case.name().into());
        line.insert("key".into(), self.case.key.clone().into());
        line.insert("server".into(), self.server.clone().into());
        line.insert("unit".into(), self.case.unit.into());
        if !self.case.axis.is_empty() {
            line.insert(self.case.axis.into(), self.case.size.into());
        }
        line.insert("runs".into(), self.runs.into());
        line.extend(self.figures.json());
        if let Some((name, ratios)) = &self.against {
            line.insert("against".into(), json!({"server": name, "ratios": ratios.json()}));
        }
        if let Some(floor) = &self.floor {
            line.insert("floor".into(), floor.json().into());
        }
        if let Some(goal) = Goal::of(&self.case, shrink) {
            line.insert("target".into(), goal.target.into());
            line.insert("verdict".into(), goal.verdict(self).word().into());
        }
        line.into()
    }
}

/// Where figures go besides stdout.
#[derive(Clone, Debug, Default)]
pub(super) struct Outputs {
    pub(super) json: bool,
    pub(super) html: Option<PathBuf>,
    pub(super) svg: Option<PathBuf>,
}

pub(super) struct Report {
    outputs: Outputs,
    /// Goals are for this many times more than was measured.
    pub(super) shrink: usize,
    /// The server whose figures are compared with the goals.
    subject: String,
    rows: Vec<Row>,
    floors: Vec<Row>,
}

impl Report {
    pub(super) fn new(outputs: Outputs, subject: String) -> Report {
        Report { outputs, shrink: 1, subject, rows: Vec::new(), floors: Vec::new() }
    }

    pub(super) fn row(&mut self, row: Row) {
        if self.rows.is_empty() {
            self.text(&table::head());
        }
        self.tell(&row);
        self.rows.push(row);
    }

    /// What this machine could at best do.
    pub(super) fn floor(&mut self, row: Row) {
        if self.floors.is_empty() {
            self.text(&format!("\nthe floor of this machine\n{}", table::head()));
        }
        self.tell(&row);
        self.floors.push(row);
    }

    fn tell(&self, row: &Row) {
        match self.outputs.json {
            true => print::data(&row.json(self.shrink).to_string()),
            false => print::data(&table::row(row, self.shrink)),
        }
    }

    fn text(&self, line: &str) {
        if !self.outputs.json {
            print::data(line);
        }
    }

    /// What is going on, for people who wait.
    pub(super) fn note(&self, text: &str) {
        print::note(text);
    }

    /// Every goal with what was measured.
    pub(super) fn goals(&self) {
        self.text("");
        for (goal, row) in self.answers() {
            match self.outputs.json {
                true => print::data(&answer(goal, row).to_string()),
                false => print::data(&table::goal(goal, row)),
            }
        }
        self.text(&format!("\n{}", self.sum()));
    }

    /// How many goals are met.
    pub(super) fn sum(&self) -> String {
        let count =
            |wanted| self.answers().filter(|(goal, row)| verdict(goal, *row) == wanted).count();
        let (met, to_scale) = (count(Verdict::Met), count(Verdict::ToScale));
        let sum = format!("{met} of {} goals met", GOALS.len());
        match to_scale {
            0 => sum,
            more => format!(
                "{sum} as they are, {} to scale: {more} more keep within the target times what the \
                 bare server took longer beside them than where the targets are from",
                met + more
            ),
        }
    }

    pub(super) fn answers(&self) -> impl Iterator<Item = (&'static Goal, Option<&Row>)> {
        GOALS.iter().map(|goal| {
            let is_its = |row: &&Row| {
                Goal::of(&row.case, self.shrink).is_some_and(|found| std::ptr::eq(found, goal))
                    && row.server == self.subject
            };
            (goal, self.rows.iter().find(is_its))
        })
    }

    pub(super) fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub(super) fn floors(&self) -> &[Row] {
        &self.floors
    }

    /// Writes the page and the plots that were asked for.
    pub(super) fn finish(&self) -> Result<()> {
        if let Some(path) = &self.outputs.html {
            write(path, &html::page(self))?;
            print::note(&format!("wrote {}", path.display()));
        }
        if let Some(directory) = &self.outputs.svg {
            std::fs::create_dir_all(directory)?;
            for plot in plot::plots(&self.rows) {
                let path = directory.join(format!("{}.svg", plot.slug()));
                write(&path, &plot.svg())?;
                print::note(&format!("wrote {}", path.display()));
            }
        }
        Ok(())
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn verdict(goal: &Goal, row: Option<&Row>) -> Verdict {
    row.map_or(Verdict::Open, |row| goal.verdict(row))
}

fn answer(goal: &Goal, row: Option<&Row>) -> Value {
    json!({
        "goal": goal.line,
        "reference": goal.reference,
        "floor": goal.floor,
        "target": goal.target,
        "measured": row.map(|row| goal.measured(&row.figures)),
        "beside": row.and_then(|row| goal.beside(row)),
        "verdict": verdict(goal, row).word(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::Figure;

    #[test]
    fn a_goal_is_answered_by_the_server_it_is_about() {
        let mut report = Report::new(Outputs { json: true, ..Outputs::default() }, "a".into());
        for (server, cpu) in [("b", 1.0), ("a", 2.0)] {
            let case = Case::new("list", "full", "objects").sized("objects", 10_000);
            let figures = Figures::default().with(Figure::Cpu, cpu);
            report.row(Row::alone(case, server, 1, figures));
        }
        let answers: Vec<_> =
            report.answers().filter_map(|(goal, row)| Some((goal, row?))).collect();
        let [(goal, row)] = answers.as_slice() else { panic!("one goal is answered") };
        assert_eq!(goal.key, "list/full");
        assert_eq!(row.figures.get(Figure::Cpu), Some(2.0));
    }

    #[test]
    fn a_row_says_what_how_many_and_where_it_stands() {
        let case = Case::new("list", "full", "objects").sized("objects", 10_000);
        assert_eq!(case.name(), "list: full, 10,000 objects");
        assert_eq!(case.clone().sized("objects", 1).name(), "list: full, 1 object");
        let figures = Figures::default().with(Figure::Cpu, 3.0);
        let ratios = figures.over(&Figures::default().with(Figure::Cpu, 30.0));
        let against = Some(("other".into(), ratios));
        let row = Row { against, ..Row::alone(case, "headwater", 3, figures) };
        let line = row.json(1);
        assert_eq!(line["objects"], 10_000);
        assert_eq!(line["verdict"], "met");
        assert_eq!(line["against"]["ratios"]["cpu_micros"], 0.1);
    }
}
