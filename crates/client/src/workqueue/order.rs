//! The order of ready items: by priority, then by age.
//!
//! River: inside the work queue.
//! Promise: with one priority it is first in, first out; with several, every fourth item is the one
//! that has been ready longest, if that is more than 30 s.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

use tokio::time::Instant;

/// An item that is ready for longer may overtake higher priorities...
const AGED_AFTER: Duration = Duration::from_secs(30);
/// ... every fourth time.
const AGED_TURN: u32 = 4;

pub(super) struct Order<T> {
    items: BTreeMap<Position, ReadyItem<T>>,
    handed_out: u32,
}

/// Highest priority first, then by the number of the push.
type Position = (Reverse<i32>, u64);

struct ReadyItem<T> {
    since: Instant,
    item: T,
}

impl<T> Default for Order<T> {
    fn default() -> Self {
        Order { items: BTreeMap::new(), handed_out: 0 }
    }
}

impl<T> Order<T> {
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn len_at(&self, priority: i32) -> usize {
        let level = (Reverse(priority), 0)..=(Reverse(priority), u64::MAX);
        self.items.range(level).count()
    }

    /// Adds an item; `place` must increase with every push.
    pub(super) fn push(&mut self, place: u64, priority: i32, since: Instant, item: T) {
        self.items.insert((Reverse(priority), place), ReadyItem { since, item });
    }

    /// Removes an item that moves to another priority.
    pub(super) fn remove(&mut self, place: u64, priority: i32) {
        self.items.remove(&(Reverse(priority), place));
    }

    pub(super) fn pop(&mut self, now: Instant) -> Option<T> {
        self.handed_out = self.handed_out.wrapping_add(1);
        let aged = match self.handed_out.is_multiple_of(AGED_TURN) {
            true => self.aged(now).and_then(|position| self.items.remove(&position)),
            false => None,
        };
        let next = aged.or_else(|| self.items.pop_first().map(|(_, ready)| ready));
        next.map(|ready| ready.item)
    }

    /// The item that has been ready longest, if that is long.
    fn aged(&self, now: Instant) -> Option<Position> {
        let mut oldest = self.items.first_key_value()?;
        let mut level = oldest.0.0;
        // The first item of each priority is its oldest.
        while let Some(first) = self.items.range((Excluded((level, u64::MAX)), Unbounded)).next() {
            level = first.0.0;
            if first.0.1 < oldest.0.1 {
                oldest = first;
            }
        }
        let age = now.saturating_duration_since(oldest.1.since);
        (age >= AGED_AFTER).then_some(*oldest.0)
    }
}
