//! The extra cost of writes: CPU with something beyond them, less the CPU without.

use std::time::Duration;

use anyhow::{Context, Result};

use super::figures::Figures;
use crate::target::measure::Usage;

/// Writes that are done on one server before it is the other's turn.
pub(crate) const BATCH: usize = 20;

/// What the same writes cost with something beyond them, and without, a few at a time in turn.
#[derive(Default)]
pub(crate) struct ExtraCost {
    /// Seconds of CPU for one write.
    differences: Vec<f64>,
    writes: usize,
    wall: Duration,
}

impl ExtraCost {
    pub(crate) fn add(&mut self, writes: usize, without: Usage, with: Usage) -> Result<()> {
        let cpu = |used: Usage| used.cpu.context("both are processes of ours");
        let difference = cpu(with)?.as_secs_f64() - cpu(without)?.as_secs_f64();
        self.differences.push(difference / writes as f64);
        self.writes += writes;
        self.wall += with.wall;
        Ok(())
    }

    /// The median of the differences.
    pub(crate) fn figures(self) -> Figures {
        let each = Duration::from_secs_f64(median(self.differences).max(0.0));
        let used = Usage { wall: self.wall, cpu: Some(each * self.writes as u32) };
        Figures::per_unit(self.writes, used)
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
