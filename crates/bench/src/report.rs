//! The report: prints each row when it is measured, and writes tables and plots at the end.
//!
//! Promise: figures go to stdout, as a table or as JSON; notes go to stderr.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

pub(crate) mod figures;
mod row;
pub(crate) mod goals;
pub(crate) mod extra;
mod table;
mod plot;
mod html;
pub(crate) mod progress;

use goals::{GOALS, Goal, GoalVerdict};
pub(crate) use row::{Case, Growth, Row};

/// The functions that print lines; the program that runs the bench provides them.
#[derive(Clone, Copy, Debug)]
pub struct Printer {
    /// Prints a line to stdout.
    pub data: fn(&str),
    /// Prints a line to stderr.
    pub note: fn(&str),
}

/// The formats and files of the report.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outputs {
    pub(crate) json: bool,
    pub(crate) html: Option<PathBuf>,
    pub(crate) svg: Option<PathBuf>,
}

pub(crate) struct Report {
    outputs: Outputs,
    printer: Printer,
    /// The factor by which a quick run reduces sizes.
    pub(crate) shrink: usize,
    /// The server whose figures are compared with the goals.
    subject: String,
    rows: Vec<Row>,
    floors: Vec<Row>,
}

impl Report {
    pub(crate) fn new(outputs: Outputs, printer: Printer, subject: String) -> Report {
        Report { outputs, printer, shrink: 1, subject, rows: Vec::new(), floors: Vec::new() }
    }

    pub(crate) fn row(&mut self, row: Row) {
        if self.rows.is_empty() {
            self.text(&table::head());
        }
        self.print_row(&row);
        self.rows.push(row);
    }

    /// Adds a row of the floor.
    pub(crate) fn floor(&mut self, row: Row) {
        if self.floors.is_empty() {
            self.text(&format!("\nfloor of this machine\n{}", table::head()));
        }
        self.print_row(&row);
        self.floors.push(row);
    }

    fn print_row(&self, row: &Row) {
        match self.outputs.json {
            true => (self.printer.data)(&row_json(row, self.shrink).to_string()),
            false => (self.printer.data)(&table::row(row, self.shrink)),
        }
    }

    fn text(&self, line: &str) {
        if !self.outputs.json {
            (self.printer.data)(line);
        }
    }

    /// Prints a note for the user.
    pub(crate) fn note(&self, text: &str) {
        (self.printer.note)(text);
    }

    /// Prints every goal with its measurement.
    pub(crate) fn goals(&self) {
        self.text("");
        for (goal, row) in self.answers() {
            match self.outputs.json {
                true => (self.printer.data)(&answer(goal, row).to_string()),
                false => (self.printer.data)(&table::goal(goal, row)),
            }
        }
        self.text(&format!("\n{}", self.sum()));
    }

    /// The number of goals that are met.
    pub(crate) fn sum(&self) -> String {
        let count =
            |wanted| self.answers().filter(|(goal, row)| verdict(goal, *row) == wanted).count();
        let (met, to_scale) = (count(GoalVerdict::Met), count(GoalVerdict::MetToScale));
        let sum = format!("{met} of {} goals met", GOALS.len());
        match to_scale {
            0 => sum,
            more => format!(
                "{sum} directly, {} to scale ({more} more meet the target × the bare server here ÷ the bare \
                 server on the reference machine)",
                met + more
            ),
        }
    }

    pub(crate) fn answers(&self) -> impl Iterator<Item = (&'static Goal, Option<&Row>)> {
        GOALS.iter().map(|goal| {
            let is_its = |row: &&Row| {
                Goal::of(&row.case, self.shrink).is_some_and(|found| std::ptr::eq(found, goal))
                    && row.server == self.subject
            };
            (goal, self.rows.iter().find(is_its))
        })
    }

    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub(crate) fn floors(&self) -> &[Row] {
        &self.floors
    }

    /// Writes the HTML page and the plots.
    pub(crate) fn finish(&self) -> Result<()> {
        if let Some(path) = &self.outputs.html {
            write(path, &html::page(self))?;
            (self.printer.note)(&format!("wrote {}", path.display()));
        }
        if let Some(directory) = &self.outputs.svg {
            std::fs::create_dir_all(directory)?;
            for plot in plot::plots(&self.rows) {
                let path = directory.join(format!("{}.svg", plot.slug()));
                write(&path, &plot.svg())?;
                (self.printer.note)(&format!("wrote {}", path.display()));
            }
        }
        Ok(())
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn row_json(row: &Row, shrink: usize) -> Value {
    let mut line = Map::new();
    line.insert("name".into(), row.case.name().into());
    line.insert("key".into(), row.case.key.clone().into());
    line.insert("server".into(), row.server.clone().into());
    line.insert("unit".into(), row.case.unit.into());
    if !row.case.axis.is_empty() {
        line.insert(row.case.axis.into(), row.case.size.into());
    }
    line.insert("runs".into(), row.runs.into());
    line.extend(row.figures.json());
    if let Some((name, ratios)) = &row.against {
        line.insert("against".into(), json!({"server": name, "ratios": ratios.json()}));
    }
    if let Some(floor) = &row.floor {
        line.insert("floor".into(), floor.json().into());
    }
    if let Some(goal) = Goal::of(&row.case, shrink) {
        line.insert("target".into(), goal.target.into());
        line.insert("verdict".into(), goal.verdict(row).word().into());
    }
    line.into()
}

fn verdict(goal: &Goal, row: Option<&Row>) -> GoalVerdict {
    row.map_or(GoalVerdict::NotMeasured, |row| goal.verdict(row))
}

fn answer(goal: &Goal, row: Option<&Row>) -> Value {
    json!({
        "goal": goal.line,
        "reference": goal.reference,
        "floor": goal.floor,
        "target": goal.target,
        "measured": row.map(|row| goal.measured(&row.figures)),
        "beside": row.and_then(|row| goal.floor_ratio(row)),
        "verdict": verdict(goal, row).word(),
    })
}

#[cfg(test)]
const SILENT: Printer = Printer { data: |_| {}, note: |_| {} };

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::figures::{Figure, Figures};

    #[test]
    fn goals_are_for_the_first_server_only() {
        let mut report =
            Report::new(Outputs { json: true, ..Outputs::default() }, SILENT, "a".into());
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
    fn a_row_has_its_case_its_size_its_verdict_and_ratios() {
        let case = Case::new("list", "full", "objects").sized("objects", 10_000);
        assert_eq!(case.name(), "list: full, 10,000 objects");
        assert_eq!(case.clone().sized("objects", 1).name(), "list: full, 1 object");
        let figures = Figures::default().with(Figure::Cpu, 3.0);
        let ratios = figures.over(&Figures::default().with(Figure::Cpu, 30.0));
        let against = Some(("other".into(), ratios));
        let row = Row { against, ..Row::alone(case, "headwater", 3, figures) };
        let line = row_json(&row, 1);
        assert_eq!(line["objects"], 10_000);
        assert_eq!(line["verdict"], "met");
        assert_eq!(line["against"]["ratios"]["cpu_micros"], 0.1);
    }
}
