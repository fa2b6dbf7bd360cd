//! The order of ready items: by priority, then alternately by lane, then by age.
//!
//! River: inside the work queue.
//! Promise: with one priority and one lane it is first in, first out; with priorities, every fourth
//! item is the one that has been ready longest, if that is more than 30 s.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

/// An item that is ready for longer may overtake higher priorities...
const AGED_AFTER: Duration = Duration::from_secs(30);
/// ... every fourth time.
const AGED_TURN: u32 = 4;

pub(super) struct Order<T> {
    levels: BTreeMap<i32, Level<T>>,
    len: usize,
    /// All positions by age; kept only once priorities are used, because before that the oldest
    /// item is always next.
    by_age: Option<BTreeMap<u64, Position>>,
    handed_out: u32,
}

#[derive(Clone, Copy)]
struct Position {
    priority: i32,
    lane: u64,
    since: Instant,
}

/// The items of one priority.
struct Level<T> {
    lanes: HashMap<u64, VecDeque<DelayedItem<T>>>,
    /// Lanes with items, the next one first.
    turns: VecDeque<u64>,
    len: usize,
    /// Items that moved to another level and are still in a lane of this one.
    moved: HashSet<u64>,
}

struct DelayedItem<T> {
    place: u64,
    since: Instant,
    item: T,
}

impl<T> Default for Order<T> {
    fn default() -> Self {
        Order { levels: BTreeMap::new(), len: 0, by_age: None, handed_out: 0 }
    }
}

impl<T> Order<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn len_at(&self, priority: i32) -> usize {
        self.levels.get(&priority).map_or(0, |level| level.len)
    }

    /// Ready items, highest priority first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.levels.values().rev().flat_map(|level| {
            let waiting = level.turns.iter().filter_map(|lane| level.lanes.get(lane)).flatten();
            waiting.filter(|w| !level.moved.contains(&w.place)).map(|w| &w.item)
        })
    }

    /// Adds an item; `place` must increase with every push.
    pub(super) fn push(&mut self, place: u64, priority: i32, lane: u64, since: Instant, item: T) {
        if priority != 0 && self.by_age.is_none() {
            self.by_age = Some(self.places());
        }
        if let Some(by_age) = &mut self.by_age {
            by_age.insert(place, Position { priority, lane, since });
        }
        let level = self.levels.entry(priority).or_default();
        level.push(lane, DelayedItem { place, since, item });
        self.len += 1;
    }

    fn places(&self) -> BTreeMap<u64, Position> {
        let mut places = BTreeMap::new();
        for (&priority, level) in &self.levels {
            for (&lane, waiting) in &level.lanes {
                let of =
                    |w: &DelayedItem<T>| (w.place, Position { priority, lane, since: w.since });
                places.extend(waiting.iter().map(of));
            }
        }
        places
    }

    /// Removes an item that moves to a higher level.
    pub(super) fn remove(&mut self, place: u64) {
        if self.by_age.is_none() {
            self.by_age = Some(self.places());
        }
        let by_age = self.by_age.as_mut().expect("made above");
        if let Some(Position { priority, .. }) = by_age.remove(&place)
            && let Some(level) = self.levels.get_mut(&priority)
        {
            level.forget(place);
            self.len -= 1;
            self.drop_empty(priority);
        }
    }

    pub(super) fn pop(&mut self, now: Instant) -> Option<T> {
        self.handed_out = self.handed_out.wrapping_add(1);
        if self.handed_out.is_multiple_of(AGED_TURN)
            && let Some(item) = self.pop_aged(now)
        {
            return Some(item);
        }
        let (&priority, level) = self.levels.last_key_value_mut()?;
        let DelayedItem { place, item, .. } = level.pop_in_turn()?;
        self.after_pop(priority, place);
        Some(item)
    }

    fn pop_aged(&mut self, now: Instant) -> Option<T> {
        let (&place, &Position { priority, lane, since }) =
            self.by_age.as_ref()?.first_key_value()?;
        if now.saturating_duration_since(since) < AGED_AFTER {
            return None;
        }
        let item = self.levels.get_mut(&priority)?.pop_from(lane)?.item;
        self.after_pop(priority, place);
        Some(item)
    }

    fn after_pop(&mut self, priority: i32, place: u64) {
        self.len -= 1;
        if let Some(by_age) = &mut self.by_age {
            by_age.remove(&place);
        }
        self.drop_empty(priority);
    }

    fn drop_empty(&mut self, priority: i32) {
        if self.levels.get(&priority).is_some_and(|level| level.len == 0) {
            self.levels.remove(&priority);
        }
    }
}

/// `BTreeMap` returns its last value mutably only through an entry.
trait LastMut<K, V> {
    fn last_key_value_mut(&mut self) -> Option<(&K, &mut V)>;
}

impl<K: Ord, V> LastMut<K, V> for BTreeMap<K, V> {
    fn last_key_value_mut(&mut self) -> Option<(&K, &mut V)> {
        self.iter_mut().next_back()
    }
}

impl<T> Default for Level<T> {
    fn default() -> Self {
        Level { lanes: HashMap::new(), turns: VecDeque::new(), len: 0, moved: HashSet::new() }
    }
}

impl<T> Level<T> {
    fn push(&mut self, lane: u64, waiting: DelayedItem<T>) {
        let items = self.lanes.entry(lane).or_default();
        if items.is_empty() {
            self.turns.push_back(lane);
        }
        items.push_back(waiting);
        self.len += 1;
    }

    /// The next item of the next lane; that lane moves to the end.
    fn pop_in_turn(&mut self) -> Option<DelayedItem<T>> {
        loop {
            let lane = self.turns.pop_front()?;
            let found = self.first_of(lane);
            if self.lanes.get(&lane).is_some_and(|items| !items.is_empty()) {
                self.turns.push_back(lane);
            } else {
                self.lanes.remove(&lane);
            }
            if found.is_some() {
                return found;
            }
        }
    }

    /// The first item of one lane; the oldest item of all is the first of its lane.
    fn pop_from(&mut self, lane: u64) -> Option<DelayedItem<T>> {
        let found = self.first_of(lane);
        if self.lanes.get(&lane).is_none_or(VecDeque::is_empty) {
            self.lanes.remove(&lane);
            self.turns.retain(|turn| *turn != lane);
        }
        found
    }

    fn first_of(&mut self, lane: u64) -> Option<DelayedItem<T>> {
        let items = self.lanes.get_mut(&lane)?;
        while let Some(waiting) = items.pop_front() {
            if !self.moved.remove(&waiting.place) {
                self.len -= 1;
                return Some(waiting);
            }
        }
        None
    }

    /// Marks a position as empty; a level is compacted once half of it is empty.
    fn forget(&mut self, place: u64) {
        self.moved.insert(place);
        self.len -= 1;
        if self.moved.len() > 32 && self.moved.len() > self.len {
            let moved = std::mem::take(&mut self.moved);
            for items in self.lanes.values_mut() {
                items.retain(|waiting| !moved.contains(&waiting.place));
            }
            self.lanes.retain(|_, items| !items.is_empty());
            let lanes = &self.lanes;
            self.turns.retain(|lane| lanes.contains_key(lane));
        }
    }
}
