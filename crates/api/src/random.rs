//! Random numbers for jitter and watch timeouts; tests can seed them.
//!
//! River: used by every stage that waits.
//! Promise: equal seeds give equal numbers. Not for secrets.

use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;
use std::time::Duration;

/// A small pseudorandom generator (SplitMix64), shared by reference.
#[derive(Debug)]
pub struct Random {
    state: Mutex<u64>,
}

impl Random {
    /// A generator that returns the same numbers for the same seed.
    pub fn seeded(seed: u64) -> Random {
        Random { state: Mutex::new(seed) }
    }

    /// A generator with a seed from the operating system.
    pub fn from_entropy() -> Random {
        // The standard library seeds its hash maps from the operating system.
        Random::seeded(RandomState::new().hash_one(0u8))
    }

    /// The next 64 bits.
    pub fn bits(&self) -> u64 {
        let mut state = self.state.lock().expect("no code panics while drawing");
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `[0, 1)`.
    pub fn fraction(&self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A whole number in `[low, high]`.
    pub fn between(&self, low: u64, high: u64) -> u64 {
        let width = high.saturating_sub(low).saturating_add(1);
        low + (self.fraction() * width as f64) as u64
    }

    /// A random duration from zero to `part` times `duration`.
    pub fn part_of(&self, duration: Duration, part: f64) -> Duration {
        duration.mul_f64(part * self.fraction())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_numbers_within_the_range() {
        let (a, b) = (Random::seeded(7), Random::seeded(7));
        for _ in 0..1000 {
            let drawn = a.between(300, 600);
            assert_eq!(drawn, b.between(300, 600));
            assert!((300..=600).contains(&drawn));
        }
        assert_ne!(Random::seeded(1).bits(), Random::seeded(2).bits());
    }
}
