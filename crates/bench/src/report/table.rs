//! The text table: a line per case, aligned in columns.

use std::fmt::Write;

use super::Row;
use super::figures::{Figure, Figures};
use super::goals::{Goal, GoalVerdict};

/// The columns: figure, heading, width.
const COLUMNS: [(Figure, &str, usize); 7] = [
    (Figure::Wall, "time", 10),
    (Figure::Rate, "per second", 11),
    (Figure::Cpu, "CPU each", 10),
    (Figure::P50, "p50", 10),
    (Figure::P99, "p99", 10),
    (Figure::Wire, "body", 10),
    (Figure::Memory, "memory", 10),
];
const NAME: usize = 54;

pub(crate) fn head() -> String {
    let mut text = format!("{:<NAME$}", "");
    for (_, head, width) in COLUMNS {
        // Writing to a string cannot fail.
        let _ = write!(text, "{head:>width$}");
    }
    text
}

pub(crate) fn row(row: &Row, shrink: usize) -> String {
    let name = match row.server.as_str() {
        "" | "headwater" => row.case.name(),
        server => format!("{} [{server}]", row.case.name()),
    };
    let mut text = format!("{name:<NAME$}");
    let shown = |figure: Figure, value| figure.text(value);
    columns(&mut text, &row.figures, shown);
    if let Some(goal) = Goal::of(&row.case, shrink) {
        let verdict = goal.verdict(row).word();
        let _ = write!(text, "  {verdict}: {}", goal.target);
    }
    if let Some(floor) = &row.floor {
        let _ = write!(text, "\n{:<NAME$}", "  bare server, alternately");
        columns(&mut text, floor, shown);
    }
    if let Some((name, ratios)) = &row.against {
        let _ = write!(text, "\n{:<NAME$}", format!("  divided by {name}"));
        columns(&mut text, ratios, |_, value| format!("{value:.3}"));
    }
    text
}

fn columns(text: &mut String, figures: &Figures, show: impl Fn(Figure, f64) -> String) {
    for (figure, _, width) in COLUMNS {
        let value = figures.get(figure).map(|value| show(figure, value)).unwrap_or_default();
        let _ = write!(text, "{value:>width$}");
    }
}

/// A goal, its measurement and its verdict.
pub(crate) fn goal(goal: &Goal, row: Option<&Row>) -> String {
    let (verdict, found, ratio) = match row {
        Some(row) => (goal.verdict(row), goal.measured(&row.figures), goal.floor_ratio(row)),
        None => (GoalVerdict::NotMeasured, "–".to_owned(), None),
    };
    let Goal { line, reference, floor, target, .. } = goal;
    let (word, ratio) = (verdict.word(), ratio.map(|text| format!("; {text}")).unwrap_or_default());
    format!(
        "{word:<14}{line}\n{:<14}{found:<32} target {target:<33} floor {floor}{ratio}; reference {reference}",
        ""
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Case;

    #[test]
    fn figures_are_aligned_with_their_headings() {
        let figures = Figures::default().with(Figure::Cpu, 3.0).with(Figure::Wall, 2.0);
        let case = Case::new("list", "full", "objects").sized("objects", 7);
        let line = Row::alone(case, "x", 1, figures);
        let (head, line) = (head(), row(&line, 1));
        assert!(line.starts_with("list: full, 7 objects [x]"), "{line}");
        // Columns are right-aligned, counted in characters: µ is two bytes.
        let end = |text: &str, part: &str| {
            text.split_once(part).unwrap().0.chars().count() + part.chars().count()
        };
        assert_eq!(end(&head, "CPU each"), end(&line, "3.0 µs"));
        assert_eq!(end(&head, "time"), end(&line, "2.00 s"));
    }
}
