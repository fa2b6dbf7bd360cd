//! Requests by user, counted while somebody looks at the river.
//!
//! River: pipeline → **traffic** → river. Promise: while nobody looks, a request costs one load of a
//! number here; the counters are bounded, and are dropped with the last viewer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::lock::lock;

/// The maximum number of users that are counted; the others are one.
const USERS_MAX: usize = 256;
/// The maximum number of viewers at the same time.
const VIEWERS_MAX: usize = 32;
/// The name of all other users.
const OTHERS: &str = "other users";
/// The maximum length of a user's name here, in bytes.
const NAME_MAX: usize = 128;
/// Buckets of durations, two for each power of two of microseconds: up to a minute.
const BUCKETS: usize = 52;

/// The counters of a server.
#[derive(Default)]
pub(crate) struct Traffic {
    viewers: AtomicUsize,
    users: Mutex<HashMap<Box<str>, UserTraffic>>,
}

/// The requests of one user since somebody looks.
#[derive(Clone)]
pub(crate) struct UserTraffic {
    /// The priority level of the last request.
    pub(crate) level: String,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) durations: Durations,
}

/// A finished request.
pub(crate) struct FinishedRequest<'a> {
    pub(crate) user: &'a str,
    pub(crate) level: &'a str,
    pub(crate) is_read: bool,
    pub(crate) took: Duration,
}

/// Somebody looks until this is dropped.
pub(crate) struct TrafficViewer(Arc<Traffic>);

impl Traffic {
    /// The time now if requests are counted.
    pub(crate) fn begin(&self) -> Option<Instant> {
        (self.viewers.load(Relaxed) > 0).then(Instant::now)
    }

    pub(crate) fn record(&self, request: &FinishedRequest<'_>) {
        let mut users = lock(&self.users);
        if self.viewers.load(Relaxed) == 0 {
            return; // the last viewer went while this request ran
        }
        let name = request.user.get(..NAME_MAX).unwrap_or(request.user);
        let is_other =
            name.len() > NAME_MAX || (users.len() >= USERS_MAX && !users.contains_key(name));
        let name = if is_other { OTHERS } else { name };
        if !users.contains_key(name) {
            let user = UserTraffic {
                level: String::new(),
                reads: 0,
                writes: 0,
                durations: Durations::default(),
            };
            users.insert(name.into(), user);
        }
        let Some(user) = users.get_mut(name) else { return };
        if user.level != request.level {
            request.level.clone_into(&mut user.level);
        }
        match request.is_read {
            true => user.reads += 1,
            false => user.writes += 1,
        }
        user.durations.add(request.took);
    }

    /// Counts from now on, if nobody looked before; `None` if too many look.
    pub(crate) fn view(self: &Arc<Traffic>) -> Option<TrafficViewer> {
        let _users = lock(&self.users);
        let has_place = self.viewers.load(Relaxed) < VIEWERS_MAX;
        has_place.then(|| {
            self.viewers.fetch_add(1, Relaxed);
            TrafficViewer(Arc::clone(self))
        })
    }
}

impl TrafficViewer {
    pub(crate) fn users(&self) -> HashMap<Box<str>, UserTraffic> {
        lock(&self.0.users).clone()
    }
}

impl Drop for TrafficViewer {
    fn drop(&mut self) {
        let mut users = lock(&self.0.users);
        if self.0.viewers.fetch_sub(1, Relaxed) == 1 {
            users.clear();
        }
    }
}

/// How often requests took how long.
#[derive(Clone)]
pub(crate) struct Durations([u32; BUCKETS]);

impl Default for Durations {
    fn default() -> Durations {
        Durations([0; BUCKETS])
    }
}

impl Durations {
    fn add(&mut self, took: Duration) {
        let micros = took.as_micros().max(1) as f64;
        let bucket = (micros.log2() * 2.0).ceil() as usize;
        let count = &mut self.0[bucket.min(BUCKETS - 1)];
        *count = count.saturating_add(1);
    }
}

/// Durations of the last seconds: the older a request, the less it counts.
#[derive(Clone)]
pub(crate) struct RecentDurations {
    seen: Durations,
    weights: [f32; BUCKETS],
}

impl Default for RecentDurations {
    fn default() -> RecentDurations {
        RecentDurations { seen: Durations::default(), weights: [0.0; BUCKETS] }
    }
}

impl RecentDurations {
    /// Takes what was added since the last time. `keep` is the part of the weights that is kept.
    pub(crate) fn update(&mut self, newest: &Durations, keep: f32) {
        let counts = newest.0.iter().zip(&self.seen.0);
        for (weight, (new, old)) in self.weights.iter_mut().zip(counts) {
            *weight = *weight * keep + new.saturating_sub(*old) as f32;
        }
        self.seen = newest.clone();
    }

    /// A duration in milliseconds that 99 % of the requests did not exceed, up to the width of a
    /// bucket; `None` without requests.
    pub(crate) fn slowest(&self) -> Option<f64> {
        let total: f32 = self.weights.iter().sum();
        if total < 0.05 {
            return None;
        }
        let mut sum = 0.0;
        let found = self.weights.iter().position(|weight| {
            sum += weight;
            sum >= total * 0.99
        });
        found.map(|bucket| (bucket as f64 / 2.0).exp2() / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(user: &str, took: Duration) -> FinishedRequest<'_> {
        FinishedRequest { user, level: "global-default", is_read: false, took }
    }

    #[test]
    fn requests_are_counted_while_somebody_looks() {
        let traffic = Arc::new(Traffic::default());
        assert!(traffic.begin().is_none());
        traffic.record(&finished("alice", Duration::from_millis(1)));
        let viewer = traffic.view().unwrap();
        assert!(traffic.begin().is_some() && viewer.users().is_empty());
        traffic.record(&finished("alice", Duration::from_millis(1)));
        let second = traffic.view().unwrap();
        drop(viewer);
        assert_eq!(second.users()["alice"].writes, 1);
        drop(second);
        assert!(lock(&traffic.users).is_empty() && traffic.begin().is_none());
    }

    #[test]
    fn viewers_are_bounded() {
        let traffic = Arc::new(Traffic::default());
        let viewers: Vec<TrafficViewer> =
            (0..VIEWERS_MAX).map(|_| traffic.view().unwrap()).collect();
        assert!(traffic.view().is_none());
        drop(viewers);
        assert!(traffic.view().is_some());
    }

    #[test]
    fn users_are_bounded() {
        let traffic = Arc::new(Traffic::default());
        let viewer = traffic.view().unwrap();
        for number in 0..USERS_MAX + 10 {
            traffic.record(&finished(&format!("user-{number}"), Duration::ZERO));
        }
        let users = viewer.users();
        assert_eq!((users.len(), users[OTHERS].writes), (USERS_MAX + 1, 10));
    }

    #[test]
    fn the_slowest_requests_of_the_last_seconds_are_known() {
        let (mut all, mut recent) = (Durations::default(), RecentDurations::default());
        assert_eq!(recent.slowest(), None);
        (0..99).for_each(|_| all.add(Duration::from_millis(1)));
        all.add(Duration::from_secs(1));
        recent.update(&all, 0.5);
        let slowest = recent.slowest().unwrap();
        assert!((1.0..1.5).contains(&slowest), "{slowest}");
        all.add(Duration::from_secs(2));
        recent.update(&all, 0.0);
        let slowest = recent.slowest().unwrap();
        assert!((2000.0..3000.0).contains(&slowest), "{slowest}");
        recent.update(&all, 0.0);
        assert_eq!(recent.slowest(), None, "nothing new");
    }
}
