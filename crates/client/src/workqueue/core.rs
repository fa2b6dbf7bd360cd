//! The state of a work queue: which items are dirty, processing or delayed.
//!
//! River: inside the work queue; no clock, no waiting, no user code.
//! Promise: an item has an entry exactly while it is dirty, processing or delayed.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

use super::order::Order;

pub(super) struct Core<T> {
    entries: HashMap<T, Entry>,
    order: Order<T>,
    /// Delayed items, earliest first; the number distinguishes equal times.
    delayed: BTreeMap<(Instant, u64), T>,
    /// When each item that is being processed was taken.
    running: BTreeMap<u64, Instant>,
    sequence: u64,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    Draining,
    Closed,
}

struct Entry {
    priority: i32,
    /// Since when it needs work.
    dirty: Option<Instant>,
    /// Its number in `order`, while it is ready.
    place: Option<u64>,
    /// Its number in `running`, while it is being processed.
    processing: Option<u64>,
    /// Its key in `delayed`.
    waiting: Option<(Instant, u64)>,
}

/// The result of a `take`.
pub(super) enum NextItem<T> {
    Item(T),
    /// No item is ready; when the next delay ends, if an item is delayed.
    Nothing(Option<Instant>),
    /// The queue is shut down and empty.
    Closed,
}

impl<T> NextItem<T> {
    pub(super) fn map<U>(self, f: impl FnOnce(T) -> U) -> NextItem<U> {
        match self {
            NextItem::Item(item) => NextItem::Item(f(item)),
            NextItem::Nothing(due) => NextItem::Nothing(due),
            NextItem::Closed => NextItem::Closed,
        }
    }
}

impl<T> Default for Core<T> {
    fn default() -> Self {
        Core {
            entries: HashMap::new(),
            order: Order::default(),
            delayed: BTreeMap::new(),
            running: BTreeMap::new(),
            sequence: 0,
            phase: Phase::Open,
        }
    }
}

impl Entry {
    fn new(priority: i32) -> Entry {
        Entry { priority, dirty: None, place: None, processing: None, waiting: None }
    }

    fn is_idle(&self) -> bool {
        self.dirty.is_none() && self.processing.is_none() && self.waiting.is_none()
    }
}

impl<T: Hash + Eq + Clone> Core<T> {
    /// Marks an item dirty; returns false if it was dirty already.
    pub(super) fn add(&mut self, item: T, priority: i32, now: Instant) -> bool {
        if self.phase != Phase::Open {
            return false;
        }
        let entry = self.entries.entry(item.clone()).or_insert_with(|| Entry::new(priority));
        let waited = entry.waiting.take();
        if let Some(at) = waited {
            self.delayed.remove(&at);
        }
        if entry.dirty.is_some() {
            self.raise(item, priority);
            return false;
        }
        let known = if waited.is_some() { entry.priority.max(priority) } else { priority };
        entry.priority = known;
        self.make_dirty(item, now);
        true
    }

    /// Marks an item dirty at a later time; returns false if that changes nothing.
    pub(super) fn add_after(&mut self, item: T, priority: i32, due: Instant) -> bool {
        if self.phase != Phase::Open {
            return false;
        }
        let entry = self.entries.entry(item.clone()).or_insert_with(|| Entry::new(priority));
        if entry.dirty.is_some() {
            self.raise(item, priority);
            return false;
        }
        if let Some(at) = entry.waiting {
            entry.priority = entry.priority.max(priority);
            if at.0 <= due {
                return false;
            }
            self.delayed.remove(&at);
        } else {
            entry.priority = priority;
        }
        self.sequence += 1;
        entry.waiting = Some((due, self.sequence));
        self.delayed.insert((due, self.sequence), item);
        true
    }

    /// Raises the priority of a dirty item; it moves to the end of its new level.
    fn raise(&mut self, item: T, priority: i32) {
        let Some(entry) = self.entries.get_mut(&item) else { return };
        if priority <= entry.priority {
            return;
        }
        let before = std::mem::replace(&mut entry.priority, priority);
        let Some(since) = entry.dirty else { return };
        if let Some(place) = entry.place {
            self.order.remove(place, before);
            self.sequence += 1;
            entry.place = Some(self.sequence);
            self.order.push(self.sequence, priority, since, item);
        }
    }

    fn make_dirty(&mut self, item: T, since: Instant) {
        let Some(entry) = self.entries.get_mut(&item) else { return };
        entry.dirty = Some(since);
        if entry.processing.is_none() {
            self.sequence += 1;
            entry.place = Some(self.sequence);
            self.order.push(self.sequence, entry.priority, since, item);
        }
    }

    /// Takes the next item, with its priority and how long it waited.
    pub(super) fn take(&mut self, now: Instant) -> NextItem<(T, i32, Duration)> {
        self.promote(now);
        let Some(item) = self.order.pop(now) else {
            return match self.is_over() {
                true => NextItem::Closed,
                false => NextItem::Nothing(self.next_due()),
            };
        };
        self.sequence += 1;
        let entry = self.entries.get_mut(&item).expect("an item in the order has an entry");
        let since = entry.dirty.take().expect("an item in the order is dirty");
        entry.place = None;
        entry.processing = Some(self.sequence);
        self.running.insert(self.sequence, now);
        NextItem::Item((item, entry.priority, now.saturating_duration_since(since)))
    }

    fn promote(&mut self, now: Instant) {
        while let Some(first) = self.delayed.first_entry() {
            let due = first.key().0;
            if due > now {
                return;
            }
            let item = first.remove();
            if let Some(entry) = self.entries.get_mut(&item) {
                entry.waiting = None;
            }
            self.make_dirty(item, due);
        }
    }

    /// Ends the work on an item; returns whether it is ready again.
    pub(super) fn done(&mut self, item: &T) -> bool {
        let Some(entry) = self.entries.get_mut(item) else { return false };
        if let Some(run) = entry.processing.take() {
            self.running.remove(&run);
        }
        match entry.dirty {
            Some(since) => {
                self.make_dirty(item.clone(), since);
                true
            }
            None => {
                if entry.is_idle() {
                    self.entries.remove(item);
                }
                false
            }
        }
    }

    /// Shuts the queue down and ends draining; returns the number of dropped delayed items.
    pub(super) fn close(&mut self) -> usize {
        self.phase = Phase::Closed;
        self.discard_delayed()
    }

    /// Shuts the queue down; returns the number of dropped delayed items.
    pub(super) fn drain(&mut self) -> usize {
        if self.phase == Phase::Open {
            self.phase = Phase::Draining;
        }
        self.discard_delayed()
    }

    fn discard_delayed(&mut self) -> usize {
        let delayed = std::mem::take(&mut self.delayed);
        for item in delayed.values() {
            if let Some(entry) = self.entries.get_mut(item) {
                entry.waiting = None;
                if entry.is_idle() {
                    self.entries.remove(item);
                }
            }
        }
        delayed.len()
    }

    /// Whether an item is ready at `now`.
    pub(super) fn has_ready(&self, now: Instant) -> bool {
        self.order.len() > 0 || self.next_due().is_some_and(|due| due <= now)
    }

    /// Whether a draining shutdown has nothing more to wait for.
    pub(super) fn stops_draining(&self) -> bool {
        self.phase == Phase::Closed || self.unfinished() == 0
    }

    /// Whether workers may end.
    pub(super) fn is_over(&self) -> bool {
        self.phase != Phase::Open && self.order.len() == 0
    }
}

impl<T> Core<T> {
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.delayed.first_key_value().map(|((due, _), _)| *due)
    }

    /// The number of items that are ready or being processed.
    pub(super) fn unfinished(&self) -> usize {
        self.order.len() + self.running.len()
    }

    pub(super) fn ready_len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn ready_len_at(&self, priority: i32) -> usize {
        self.order.len_at(priority)
    }

    #[cfg(test)]
    pub(super) fn delayed_len(&self) -> usize {
        self.delayed.len()
    }

    #[cfg(test)]
    pub(super) fn processing(&self) -> usize {
        self.running.len()
    }

    /// How long each item has been processing.
    pub(super) fn running(&self, now: Instant) -> impl Iterator<Item = Duration> {
        self.running.values().map(move |since| now.saturating_duration_since(*since))
    }

    #[cfg(test)]
    pub(super) fn entries(&self) -> usize {
        self.entries.len()
    }
}
