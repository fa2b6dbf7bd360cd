//! A row of the report: a measured case and its figures.

use super::figures::{Figures, grouped};

/// One measurement at one size.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// `scenario/mode`, the same for all sizes.
    pub(crate) key: String,
    /// The unit of work.
    pub(crate) unit: &'static str,
    /// The name of what `size` counts.
    pub(crate) axis: &'static str,
    pub(crate) size: usize,
    pub(crate) growth: Growth,
}

/// How the cost of one unit is expected to change with the size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    /// Not at all.
    Flat,
    /// In proportion, because the unit grows with the size.
    Straight,
}

impl Case {
    pub(crate) fn new(scenario: &str, mode: &str, unit: &'static str) -> Case {
        let key = format!("{scenario}/{mode}");
        Case { key, unit, axis: "", size: 0, growth: Growth::Flat }
    }

    pub(crate) fn sized(self, axis: &'static str, size: usize) -> Case {
        Case { axis, size, ..self }
    }

    pub(crate) fn grows_straight(self) -> Case {
        Case { growth: Growth::Straight, ..self }
    }

    pub(crate) fn scenario(&self) -> &str {
        self.key.split('/').next().unwrap_or_default()
    }

    pub(crate) fn mode(&self) -> &str {
        self.key.split_once('/').map_or("", |(_, mode)| mode)
    }

    pub(crate) fn name(&self) -> String {
        let name = format!("{}: {}", self.scenario(), self.mode());
        match self.axis {
            "" => name,
            axis if self.size == 1 => format!("{name}, 1 {}", axis.trim_end_matches('s')),
            axis => format!("{name}, {} {axis}", grouped(self.size as f64)),
        }
    }
}

/// The median figures of one case on one server.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) case: Case,
    pub(crate) server: String,
    pub(crate) runs: usize,
    pub(crate) figures: Figures,
    /// The name of another server that did the same work, and our figures divided by its figures.
    pub(crate) against: Option<(String, Figures)>,
    /// The figures of the bare server for similar work, measured alternately.
    pub(crate) floor: Option<Figures>,
}

impl Row {
    /// A row without comparison.
    pub(crate) fn alone(case: Case, server: &str, runs: usize, figures: Figures) -> Row {
        Row { case, server: server.to_owned(), runs, figures, against: None, floor: None }
    }
}
