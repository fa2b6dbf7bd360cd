//! The extra cost of a write: its CPU with an additional effect, minus its CPU without.

use std::time::Duration;

use anyhow::{Context, Result};

use super::figures::Figures;
use crate::target::measure::Usage;

/// Writes in a batch before the servers alternate.
pub(crate) const BATCH: usize = 20;

/// The differences in CPU between batches with and without the effect.
#[derive(Default)]
pub(crate) struct ExtraCost {
    /// Seconds of CPU per write, one for each pair of batches.
    differences: Vec<f64>,
    writes: usize,
    wall: Duration,
}

impl ExtraCost {
    pub(crate) fn add(&mut self, writes: usize, without: Usage, with: Usage) -> Result<()> {
        let cpu = |used: Usage| used.cpu.context("the CPU of the server cannot be measured");
        let difference = cpu(with)?.as_secs_f64() - cpu(without)?.as_secs_f64();
        self.differences.push(difference / writes as f64);
        self.writes += writes;
        self.wall += with.wall;
        Ok(())
    }

    /// The figures from the median difference.
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
