//! The scheduler's queue: the most important first, and what does not fit waits for news.
//!
//! Promise: a pod is in exactly one place: ready, backing off, parked, or in somebody's hands. A
//! parked one is looked at again when something happened that may help it, and after five minutes
//! in any case; a pod that was tried often waits longer, but never more than ten seconds.
//! Bound: one entry for each pod that waits.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use headwater_client::Key;
use tokio::time::Instant;

use super::ask::Ask;
use super::reason::Happened;

/// Pods that wait for a node.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    entries: HashMap<Key, Entry>,
    ready: BTreeSet<Turn>,
    backing_off: BTreeSet<(Instant, Key)>,
    parked: BTreeSet<(Instant, Key)>,
    arrivals: u64,
}

/// Whose turn it is: the most important, then the one that waits longest.
type Turn = (Reverse<i32>, u64, Key);

#[derive(Debug)]
struct Entry {
    ask: Arc<Ask>,
    /// Its place among equals.
    arrival: u64,
    attempts: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Ready,
    BackingOff(Instant),
    Parked { since: Instant, helped_by: Happened },
    InHand,
}

const BACK_OFF_MIN: Duration = Duration::from_secs(1);
const BACK_OFF_MAX: Duration = Duration::from_secs(10);
/// Whatever we know of what helps, a parked pod is tried again after this.
const PARKED_MAX: Duration = Duration::from_secs(300);

impl Queue {
    /// A pod wants a node, or changed what it wants.
    pub(crate) fn put(&mut self, ask: Arc<Ask>) {
        match self.entries.get_mut(&ask.key) {
            Some(entry) if entry.ask.asks_the_same(&ask.pod) => entry.ask = ask,
            Some(entry) if entry.state == State::InHand => entry.ask = ask,
            _ => {
                let key = ask.key.clone();
                self.remove(&key);
                self.arrivals += 1;
                let entry =
                    Entry { ask, arrival: self.arrivals, attempts: 0, state: State::InHand };
                self.entries.insert(key.clone(), entry);
                self.enter(&key, State::Ready);
            }
        }
    }

    /// A pod does not want a node any more, or has one.
    pub(crate) fn remove(&mut self, key: &Key) {
        self.leave(key);
        self.entries.remove(key);
    }

    /// The next pod, into the caller's hands.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Arc<Ask>> {
        self.settle(now);
        let (_, _, key) = self.ready.first()?.clone();
        self.enter(&key, State::InHand);
        let entry = self.entries.get_mut(&key)?;
        entry.attempts += 1;
        Some(Arc::clone(&entry.ask))
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Back from the caller's hands: it fits nowhere.
    pub(crate) fn park(&mut self, key: &Key, helped_by: Happened, now: Instant) {
        self.enter(key, State::Parked { since: now, helped_by });
    }

    /// Back from the caller's hands: something went wrong, try again.
    pub(crate) fn retry(&mut self, key: &Key, now: Instant) {
        if let Some(entry) = self.entries.get(key) {
            let until = now + back_off(entry.attempts);
            self.enter(key, State::BackingOff(until));
        }
    }

    /// Something happened: whom it may help need not wait any longer than their back-off.
    pub(crate) fn wake(&mut self, happened: Happened, now: Instant) {
        if happened == Happened::NOTHING {
            return;
        }
        let helped = |(_, key): &&(Instant, Key)| {
            self.entries.get(key).is_some_and(|entry| match entry.state {
                State::Parked { helped_by, .. } => helped_by.overlaps(happened),
                _ => false,
            })
        };
        let keys: Vec<Key> =
            self.parked.iter().filter(helped).map(|(_, key)| key.clone()).collect();
        for key in keys {
            self.unpark(&key, now);
        }
    }

    fn unpark(&mut self, key: &Key, now: Instant) {
        let Some(entry) = self.entries.get(key) else { return };
        let State::Parked { since, .. } = entry.state else { return };
        let until = since + back_off(entry.attempts);
        self.enter(key, if until <= now { State::Ready } else { State::BackingOff(until) });
    }

    /// Makes ready what has waited long enough.
    pub(crate) fn settle(&mut self, now: Instant) {
        while let Some((until, key)) = self.backing_off.first().cloned()
            && until <= now
        {
            self.enter(&key, State::Ready);
        }
        while let Some((since, key)) = self.parked.first().cloned()
            && since + PARKED_MAX <= now
        {
            self.unpark(&key, now);
        }
    }

    /// When something becomes ready by itself.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let off = self.backing_off.first().map(|(until, _)| *until);
        let parked = self.parked.first().map(|(since, _)| *since + PARKED_MAX);
        off.into_iter().chain(parked).min()
    }

    fn enter(&mut self, key: &Key, state: State) {
        self.leave(key);
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.state = state;
        match state {
            State::Ready => {
                self.ready.insert((Reverse(entry.ask.priority), entry.arrival, key.clone()));
            }
            State::BackingOff(until) => drop(self.backing_off.insert((until, key.clone()))),
            State::Parked { since, .. } => drop(self.parked.insert((since, key.clone()))),
            State::InHand => {}
        }
    }

    fn leave(&mut self, key: &Key) {
        let Some(entry) = self.entries.get(key) else { return };
        match entry.state {
            State::Ready => {
                self.ready.remove(&(Reverse(entry.ask.priority), entry.arrival, key.clone()));
            }
            State::BackingOff(until) => drop(self.backing_off.remove(&(until, key.clone()))),
            State::Parked { since, .. } => drop(self.parked.remove(&(since, key.clone()))),
            State::InHand => {}
        }
    }
}

fn back_off(attempts: u32) -> Duration {
    let doubled = BACK_OFF_MIN.saturating_mul(1 << attempts.saturating_sub(1).min(8));
    doubled.min(BACK_OFF_MAX)
}
