//! The demand of a level: how many seats its requests occupy or wait for, over time.
//!
//! River: queues → **demand** → borrowing. A level is measured between two adjustments of the
//! limits: its maximum, and its mean plus one standard deviation, which is smoothed.

use super::Nanos;

/// The part of the previous value in the smoothed demand: half of it is left after five minutes.
const SMOOTHING: f64 = 0.977;

/// The demand since the last adjustment.
#[derive(Debug)]
pub(super) struct DemandMeter {
    value: f64,
    since: Nanos,
    began: Nanos,
    /// The integral of the demand, and of its square, in seats times nanoseconds.
    sum: f64,
    squares: f64,
    most: f64,
}

impl DemandMeter {
    pub(super) fn new(now: Nanos) -> DemandMeter {
        DemandMeter { value: 0.0, since: now, began: now, sum: 0.0, squares: 0.0, most: 0.0 }
    }

    /// Notes the demand from now on.
    pub(super) fn set(&mut self, now: Nanos, seats: u64) {
        self.pass(now);
        self.value = seats as f64;
        self.most = self.most.max(self.value);
    }

    fn pass(&mut self, now: Nanos) {
        let time = now.saturating_sub(self.since) as f64;
        self.since = self.since.max(now);
        self.sum += self.value * time;
        self.squares += self.value * self.value * time;
    }

    /// What was measured; begins the next period.
    pub(super) fn take(&mut self, now: Nanos) -> MeasuredDemand {
        self.pass(now);
        let time = now.saturating_sub(self.began) as f64;
        let most = self.most;
        let (mean, deviation) = if time > 0.0 {
            let mean = self.sum / time;
            (mean, (self.squares / time - mean * mean).max(0.0).sqrt())
        } else {
            (self.value, 0.0)
        };
        let value = self.value;
        *self = DemandMeter { value, most: value, ..DemandMeter::new(now) };
        MeasuredDemand { most, mean, deviation, has_passed: time > 0.0 }
    }
}

/// The demand of one period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct MeasuredDemand {
    pub(super) most: f64,
    pub(super) mean: f64,
    pub(super) deviation: f64,
    has_passed: bool,
}

/// The demand of a level over all periods.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Demand {
    pub(super) last: MeasuredDemand,
    pub(super) smoothed: f64,
}

impl Demand {
    /// Adds a period: growth counts at once, decline slowly.
    pub(super) fn add(&mut self, measured: MeasuredDemand) {
        if !measured.has_passed {
            self.last.most = measured.most;
            return;
        }
        let envelope = measured.mean + measured.deviation;
        let decayed = SMOOTHING * self.smoothed + (1.0 - SMOOTHING) * envelope;
        *self = Demand { last: measured, smoothed: envelope.max(decayed) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_has_its_maximum_mean_and_deviation() {
        let mut meter = DemandMeter::new(100);
        meter.set(100, 2);
        meter.set(150, 10);
        meter.set(175, 6);
        let measured = meter.take(200);
        assert_eq!((measured.most, measured.mean), (10.0, 5.0));
        assert!((measured.deviation - 11.0_f64.sqrt()).abs() < 1e-9, "{measured:?}");
        let next = meter.take(300);
        assert_eq!((next.most, next.mean, next.deviation), (6.0, 6.0, 0.0), "what it began with");
    }

    #[test]
    fn growth_counts_at_once_and_decline_slowly() {
        let period = |mean| MeasuredDemand { mean, has_passed: true, ..MeasuredDemand::default() };
        let mut demand = Demand::default();
        demand.add(period(100.0));
        assert_eq!(demand.smoothed, 100.0);
        (0..30).for_each(|_| demand.add(period(0.0)));
        assert!((45.0..55.0).contains(&demand.smoothed), "half after five minutes: {demand:?}");
    }
}
