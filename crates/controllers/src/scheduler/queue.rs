//! The scheduling queue: pending pods by priority, and unschedulable pods until an event may help.
//!
//! Promise: a pod is in exactly one state: active, backoff, unschedulable or in flight. An
//! unschedulable pod is retried after an event that may help it, and after five minutes at the
//! latest; the backoff grows with each attempt up to ten seconds.
//! Bound: one entry for each pending pod.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use headwater_client::Key;
use tokio::time::Instant;

use super::pod_info::PodInfo;
use super::reason::ClusterEvent;

/// Pending pods.
#[derive(Debug, Default)]
pub(crate) struct SchedulingQueue {
    entries: HashMap<Key, QueuedPod>,
    active: BTreeSet<ActiveKey>,
    backoff: BTreeSet<(Instant, Key)>,
    unschedulable: BTreeSet<(Instant, Key)>,
    arrivals: u64,
}

/// The order of active pods: higher priority first, then earlier arrival.
type ActiveKey = (Reverse<i32>, u64, Key);

#[derive(Debug)]
struct QueuedPod {
    pod_info: Arc<PodInfo>,
    /// Orders pods of the same priority.
    arrival: u64,
    attempts: u32,
    state: QueueState,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum QueueState {
    Active,
    Backoff(Instant),
    Unschedulable { since: Instant, resolved_by: ClusterEvent },
    InFlight,
}

const BACKOFF_MIN: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// An unschedulable pod is retried after this time even without an event.
const UNSCHEDULABLE_MAX: Duration = Duration::from_secs(300);

impl SchedulingQueue {
    /// Adds a pending pod, or updates it if its constraints changed.
    pub(crate) fn add(&mut self, pod_info: Arc<PodInfo>) {
        match self.entries.get_mut(&pod_info.key) {
            Some(entry) if entry.pod_info.has_same_constraints(&pod_info.pod) => {
                entry.pod_info = pod_info
            }
            Some(entry) if entry.state == QueueState::InFlight => entry.pod_info = pod_info,
            _ => {
                let key = pod_info.key.clone();
                self.remove(&key);
                self.arrivals += 1;
                let entry = QueuedPod {
                    pod_info,
                    arrival: self.arrivals,
                    attempts: 0,
                    state: QueueState::InFlight,
                };
                self.entries.insert(key.clone(), entry);
                self.set_state(&key, QueueState::Active);
            }
        }
    }

    /// Removes a pod that was deleted, assigned, or is not ours.
    pub(crate) fn remove(&mut self, key: &Key) {
        self.detach(key);
        self.entries.remove(key);
    }

    /// Takes the next active pod; it is in flight until the caller returns or removes it.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<Arc<PodInfo>> {
        self.flush(now);
        let (_, _, key) = self.active.first()?.clone();
        self.set_state(&key, QueueState::InFlight);
        let entry = self.entries.get_mut(&key)?;
        entry.attempts += 1;
        Some(Arc::clone(&entry.pod_info))
    }

    pub(crate) fn has_active(&self) -> bool {
        !self.active.is_empty()
    }

    /// Returns an in-flight pod that fits on no node.
    pub(crate) fn add_unschedulable(&mut self, key: &Key, resolved_by: ClusterEvent, now: Instant) {
        self.set_state(key, QueueState::Unschedulable { since: now, resolved_by });
    }

    /// Returns an in-flight pod whose binding failed; it is retried after its backoff.
    pub(crate) fn add_backoff(&mut self, key: &Key, now: Instant) {
        if let Some(entry) = self.entries.get(key) {
            let until = now + backoff_for(entry.attempts);
            self.set_state(key, QueueState::Backoff(until));
        }
    }

    /// Retries, after their backoff, the unschedulable pods that the events may help.
    pub(crate) fn move_on_event(&mut self, events: ClusterEvent, now: Instant) {
        if events == ClusterEvent::NONE {
            return;
        }
        let affected = |(_, key): &&(Instant, Key)| {
            self.entries.get(key).is_some_and(|entry| match entry.state {
                QueueState::Unschedulable { resolved_by, .. } => resolved_by.intersects(events),
                _ => false,
            })
        };
        let keys: Vec<Key> =
            self.unschedulable.iter().filter(affected).map(|(_, key)| key.clone()).collect();
        for key in keys {
            self.requeue(&key, now);
        }
    }

    fn requeue(&mut self, key: &Key, now: Instant) {
        let Some(entry) = self.entries.get(key) else { return };
        let QueueState::Unschedulable { since, .. } = entry.state else { return };
        let until = since + backoff_for(entry.attempts);
        self.set_state(
            key,
            if until <= now { QueueState::Active } else { QueueState::Backoff(until) },
        );
    }

    /// Activates pods whose backoff or maximum wait has elapsed.
    pub(crate) fn flush(&mut self, now: Instant) {
        while let Some((until, key)) = self.backoff.first().cloned()
            && until <= now
        {
            self.set_state(&key, QueueState::Active);
        }
        while let Some((since, key)) = self.unschedulable.first().cloned()
            && since + UNSCHEDULABLE_MAX <= now
        {
            self.requeue(&key, now);
        }
    }

    /// The next time at which [`flush`](Self::flush) has something to do.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let off = self.backoff.first().map(|(until, _)| *until);
        let unschedulable = self.unschedulable.first().map(|(since, _)| *since + UNSCHEDULABLE_MAX);
        off.into_iter().chain(unschedulable).min()
    }

    fn set_state(&mut self, key: &Key, state: QueueState) {
        self.detach(key);
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.state = state;
        match state {
            QueueState::Active => {
                self.active.insert((Reverse(entry.pod_info.priority), entry.arrival, key.clone()));
            }
            QueueState::Backoff(until) => drop(self.backoff.insert((until, key.clone()))),
            QueueState::Unschedulable { since, .. } => {
                self.unschedulable.insert((since, key.clone()));
            }
            QueueState::InFlight => {}
        }
    }

    fn detach(&mut self, key: &Key) {
        let Some(entry) = self.entries.get(key) else { return };
        match entry.state {
            QueueState::Active => {
                self.active.remove(&(Reverse(entry.pod_info.priority), entry.arrival, key.clone()));
            }
            QueueState::Backoff(until) => drop(self.backoff.remove(&(until, key.clone()))),
            QueueState::Unschedulable { since, .. } => {
                self.unschedulable.remove(&(since, key.clone()));
            }
            QueueState::InFlight => {}
        }
    }
}

fn backoff_for(attempts: u32) -> Duration {
    let doubled = BACKOFF_MIN.saturating_mul(1 << attempts.saturating_sub(1).min(8));
    doubled.min(BACKOFF_MAX)
}
