//! The seats of the levels: their nominal shares, and what they lend to each other.
//!
//! River: PriorityLevelConfigurations, demand → **borrowing** → the limits of the queues.
//! Promise: a level never has less than its nominal seats minus what it lends, nor more than its
//! nominal seats plus what it may borrow; a level that demands its nominal seats gets them.

/// What a level wants of the seats of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shares {
    pub(super) shares: u32,
    pub(super) lendable_percent: u32,
    /// `None` borrows whatever there is.
    pub(super) borrowing_percent: Option<u32>,
}

/// The bounds of a level's limit, in seats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) nominal: u32,
    pub(super) lower: u32,
    pub(super) upper: u32,
}

impl Bounds {
    /// The bounds of a level on a server with `total` seats, if all levels have `sum` shares.
    pub(super) fn new(total: u32, shares: Shares, sum: u64) -> Bounds {
        let part = f64::from(shares.shares) / std::cmp::max(sum, 1) as f64;
        let nominal = (f64::from(total) * part).ceil() as u32;
        let percent =
            |percent: u32| (f64::from(nominal) * f64::from(percent) / 100.0).round() as u32;
        let borrowed = shares.borrowing_percent.map_or(total, percent);
        Bounds {
            nominal,
            lower: nominal.saturating_sub(percent(shares.lendable_percent)),
            upper: nominal.saturating_add(borrowed),
        }
    }

    /// What the level gets if it asked for so many seats at once: as much as it needs of its own.
    fn needed(self, most: f64) -> u32 {
        self.lower.max(self.nominal.min(most.ceil() as u32))
    }
}

/// A level that wants seats.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) bounds: Bounds,
    /// The highest demand of the last period.
    pub(super) most: f64,
    /// The smoothed demand.
    pub(super) smoothed: f64,
    pub(super) is_exempt: bool,
}

/// The limits of the levels.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Adjusted {
    /// In the order of the claims.
    pub(super) limits: Vec<u32>,
    /// What each level was to get.
    pub(super) targets: Vec<f64>,
    /// The part of its target that a level without a bound gets.
    pub(super) fair_part: f64,
}

/// A smaller target counts as this, so that nothing is divided by zero.
const TARGET_MIN: f64 = 0.001;

/// Divides the nominal seats of all levels by their demand.
pub(super) fn adjust(claims: &[Claim]) -> Adjusted {
    let needed: Vec<u32> = claims.iter().map(|claim| claim.bounds.needed(claim.most)).collect();
    let targets: Vec<f64> = claims
        .iter()
        .zip(&needed)
        .map(|(claim, needed)| f64::from(*needed).max(claim.smoothed))
        .collect();
    let mut left: i64 = claims.iter().map(|claim| i64::from(claim.bounds.nominal)).sum();
    let mut limits = needed.clone();
    // Exempt levels take what they need; the others share the rest.
    let exempt = claims.iter().zip(&needed).filter(|(claim, _)| claim.is_exempt);
    left -= exempt.map(|(_, needed)| i64::from(*needed)).sum::<i64>();
    let limited: Vec<usize> = (0..claims.len()).filter(|at| !claims[*at].is_exempt).collect();
    let sum = |of: &dyn Fn(usize) -> u32| limited.iter().map(|at| i64::from(of(*at))).sum::<i64>();
    let lowest = sum(&|at| claims[at].bounds.lower);
    let needed_sum = sum(&|at| needed[at]);
    let mut fair_part = 0.0;
    if left <= lowest {
        limited.iter().for_each(|at| limits[*at] = claims[*at].bounds.lower);
    } else if left <= needed_sum {
        let part = (left - lowest) as f64 / (needed_sum - lowest) as f64;
        for at in limited {
            let lower = claims[at].bounds.lower;
            limits[at] = lower + (f64::from(needed[at] - lower) * part).round() as u32;
        }
    } else {
        let items: Vec<Item> = limited
            .iter()
            .map(|at| Item {
                target: targets[*at].max(TARGET_MIN),
                lower: f64::from(needed[*at]),
                upper: f64::from(claims[*at].bounds.upper),
            })
            .collect();
        fair_part = fair(left as f64, &items);
        for (at, item) in limited.into_iter().zip(items) {
            limits[at] = item.at(fair_part).round() as u32;
        }
    }
    Adjusted { limits, targets, fair_part }
}

/// What one level may get.
#[derive(Clone, Copy, Debug)]
struct Item {
    target: f64,
    lower: f64,
    upper: f64,
}

impl Item {
    fn at(self, part: f64) -> f64 {
        (self.target * part).clamp(self.lower, self.upper.max(self.lower))
    }
}

/// The part of their targets at which the items get `sum` together, as far as their bounds allow.
fn fair(sum: f64, items: &[Item]) -> f64 {
    // The sum grows with the part, linearly between the parts at which an item meets a bound.
    let total = |part: f64| items.iter().map(|item| item.at(part)).sum::<f64>();
    let mut corners: Vec<f64> = items
        .iter()
        .flat_map(|item| [item.lower / item.target, item.upper / item.target])
        .collect();
    corners.sort_unstable_by(f64::total_cmp);
    let (mut below, mut above) = (0.0, corners.last().copied().unwrap_or_default());
    for corner in corners {
        match total(corner) <= sum {
            true => below = corner,
            false => {
                above = corner;
                break;
            }
        }
    }
    let (low, high) = (total(below), total(above));
    match high > low {
        true => below + (above - below) * ((sum - low) / (high - low)).clamp(0.0, 1.0),
        false => below,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The levels of a default server: shares and lendable percent.
    const DEFAULT: [(u32, u32); 8] =
        [(0, 0), (5, 0), (10, 0), (40, 25), (30, 33), (40, 50), (100, 90), (20, 50)];

    fn default_levels() -> Vec<Bounds> {
        let sum = DEFAULT.iter().map(|(shares, _)| u64::from(*shares)).sum();
        let bounds = |(shares, lendable_percent)| {
            Bounds::new(600, Shares { shares, lendable_percent, borrowing_percent: None }, sum)
        };
        DEFAULT.into_iter().map(bounds).collect()
    }

    fn claim(bounds: Bounds, demand: f64) -> Claim {
        Claim { bounds, most: demand, smoothed: demand, is_exempt: bounds.nominal == 0 }
    }

    /// S7.5
    #[test]
    fn the_default_levels_have_the_seats_of_the_reference() {
        let levels = default_levels();
        let nominal: Vec<u32> = levels.iter().map(|bounds| bounds.nominal).collect();
        assert_eq!(nominal, [0, 13, 25, 98, 74, 98, 245, 49]);
        let lower: Vec<u32> = levels.iter().map(|bounds| bounds.lower).collect();
        assert_eq!(lower, [0, 13, 25, 73, 50, 49, 24, 24]);
        assert_eq!(levels[7].upper, 649);
    }

    #[test]
    fn a_busy_level_borrows_what_idle_ones_lend() {
        let levels = default_levels();
        let demands = |busy: usize| {
            levels
                .iter()
                .enumerate()
                .map(move |(at, bounds)| claim(*bounds, if at == busy { 1_000.0 } else { 0.0 }))
        };
        let adjusted = adjust(&demands(7).collect::<Vec<_>>());
        let lowest: u32 = levels.iter().map(|bounds| bounds.lower).sum();
        let total: u32 = levels.iter().map(|bounds| bounds.nominal).sum();
        assert_eq!(adjusted.limits[7], total - (lowest - levels[7].lower));
        assert_eq!(adjusted.limits.iter().sum::<u32>(), total);
    }

    #[test]
    fn a_level_that_demands_its_own_seats_gets_them_whoever_else_is_busy() {
        let levels = default_levels();
        let all: Vec<Claim> = levels.iter().map(|bounds| claim(*bounds, 1_000.0)).collect();
        let adjusted = adjust(&all);
        for (bounds, limit) in levels.iter().zip(adjusted.limits) {
            assert_eq!(limit, bounds.nominal);
        }
    }

    #[test]
    fn a_level_without_borrowing_stays_at_its_nominal_seats() {
        let shares =
            |borrowing_percent| Shares { shares: 10, lendable_percent: 100, borrowing_percent };
        let bounds = |percent| Bounds::new(100, shares(percent), 20);
        let claims = [claim(bounds(Some(0)), 1_000.0), claim(bounds(None), 0.0)];
        assert_eq!(adjust(&claims).limits, [50, 50]);
    }

    proptest! {
        #[test]
        fn limits_are_within_bounds_and_add_up(
            levels in prop::collection::vec(
                (0_u32..100, 0_u32..=100, prop::option::of(0_u32..300), 0.0..500.0_f64, 0.0..500.0_f64),
                1..10,
            ),
            total in 1_u32..1_000,
        ) {
            let sum = levels.iter().map(|level| u64::from(level.0)).sum();
            let claims: Vec<Claim> = levels
                .iter()
                .map(|(shares, lendable_percent, borrowing_percent, most, smoothed)| Claim {
                    bounds: Bounds::new(total, Shares {
                        shares: *shares,
                        lendable_percent: *lendable_percent,
                        borrowing_percent: *borrowing_percent,
                    }, sum),
                    most: *most,
                    smoothed: *smoothed,
                    is_exempt: false,
                })
                .collect();
            let adjusted = adjust(&claims);
            let nominal: u32 = claims.iter().map(|claim| claim.bounds.nominal).sum();
            let upper: u32 = claims.iter().map(|claim| claim.bounds.upper).sum();
            for (claim, limit) in claims.iter().zip(&adjusted.limits) {
                prop_assert!((claim.bounds.lower..=claim.bounds.upper).contains(limit));
                let own = claim.bounds.nominal.min(claim.most.ceil() as u32);
                prop_assert!(*limit >= own, "it needs {own} seats of its own: {limit}");
            }
            let given: u32 = adjusted.limits.iter().sum();
            let slack = claims.len() as u32;
            prop_assert!(given <= nominal + slack, "{given} of {nominal}");
            prop_assert!(given + slack >= nominal.min(upper), "{given} of {nominal}");
        }
    }
}
