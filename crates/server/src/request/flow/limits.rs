//! Limits on open watches and on bytes of lists in flight (R31, B280, B281).
//!
//! River: authorization → **limits** → read, watch.
//! Promise: a request over a limit receives 429 with `Retry-After` before any work is done; a slot
//! is released when its stream ends, for whatever reason. One list is always admitted, however
//! large it is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use headwater_api::Status;
use headwater_cache::Snapshot;

use crate::answer::status;
use crate::front::identity::Identity;
use crate::lock::lock;
use crate::system::metrics::Metrics;
use headwater_api::metrics::{Counter, Gauge};

/// Limits on what a server does at a time.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Watches of all users together.
    pub watches_max: usize,
    /// Watches of one user.
    pub watches_per_user_max: usize,
    /// Estimated bytes of lists that are being sent.
    pub list_bytes_max: u64,
    /// Reads in flight. With fairness, the sum of both is divided among the priority levels.
    pub reads_max: usize,
    /// Writes in flight.
    pub writes_max: usize,
    /// Whether requests wait in the queues of priority and fairness.
    pub fairness: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            watches_max: 50_000,
            watches_per_user_max: 10_000,
            list_bytes_max: 4 << 30,
            reads_max: 400,
            writes_max: 200,
            fairness: true,
        }
    }
}

/// The open watches and lists.
pub(crate) struct StreamLimits {
    limits: Limits,
    open: Mutex<Open>,
    dropped: Arc<Counter>,
    shown: Arc<Gauge>,
}

#[derive(Default)]
struct Open {
    watches: usize,
    by_user: HashMap<String, usize>,
    list_bytes: u64,
}

/// The slot of an open watch.
pub(crate) struct WatchPlace {
    streams: Arc<StreamLimits>,
    identity: Arc<Identity>,
}

/// The slot of a list that is being sent.
pub(crate) struct ListPlace {
    streams: Arc<StreamLimits>,
    bytes: u64,
}

/// The number of objects whose size is sampled to estimate the size of a list.
const SAMPLE: usize = 16;

impl StreamLimits {
    pub(crate) fn new(limits: Limits, metrics: &Metrics) -> Arc<StreamLimits> {
        let (dropped, shown) = (metrics.dropped.with(&["readOnly"]), metrics.list_bytes.with(&[]));
        Arc::new(StreamLimits { limits, open: Mutex::default(), dropped, shown })
    }

    /// Acquires a slot for a watch.
    pub(crate) fn watch(
        self: &Arc<StreamLimits>,
        identity: &Arc<Identity>,
    ) -> Result<WatchPlace, Status> {
        let mut open = self.open();
        let own = open.by_user.get(&identity.user).copied().unwrap_or(0);
        if open.watches >= self.limits.watches_max {
            return Err(self.refused("the server has as many watches as it takes"));
        }
        if own >= self.limits.watches_per_user_max {
            return Err(self.refused("the user has as many watches as one may have"));
        }
        open.watches += 1;
        open.by_user.insert(identity.user.clone(), own + 1);
        Ok(WatchPlace { streams: Arc::clone(self), identity: Arc::clone(identity) })
    }

    /// Acquires a slot for a list of this size.
    pub(crate) fn list(self: &Arc<StreamLimits>, bytes: u64) -> Result<ListPlace, Status> {
        let mut open = self.open();
        let total = open.list_bytes.saturating_add(bytes);
        if open.list_bytes > 0 && total > self.limits.list_bytes_max {
            return Err(
                self.refused("the lists that are being sent are as much as the server takes")
            );
        }
        open.list_bytes = total;
        self.shown.set(i64::try_from(total).unwrap_or(i64::MAX));
        Ok(ListPlace { streams: Arc::clone(self), bytes })
    }

    fn refused(&self, why: &str) -> Status {
        self.dropped.inc();
        status::too_many_requests(why)
    }

    fn open(&self) -> std::sync::MutexGuard<'_, Open> {
        lock(&self.open)
    }
}

impl Drop for WatchPlace {
    fn drop(&mut self) {
        let mut open = self.streams.open();
        open.watches -= 1;
        let user = &self.identity.user;
        let left = open.by_user.get(user).map_or(0, |own| own - 1);
        match left {
            0 => drop(open.by_user.remove(user)),
            left => drop(open.by_user.insert(user.clone(), left)),
        }
    }
}

impl Drop for ListPlace {
    fn drop(&mut self) {
        let mut open = self.streams.open();
        open.list_bytes -= self.bytes;
        self.streams.shown.set(i64::try_from(open.list_bytes).unwrap_or(i64::MAX));
    }
}

/// Estimates the size of a list: the number of objects times the average size of the first ones.
pub(crate) fn list_bytes(snapshot: &Snapshot, namespace: &str, limit: Option<usize>) -> u64 {
    let most = limit.unwrap_or(usize::MAX);
    let count = snapshot.count(namespace, None);
    let sample = snapshot.iter(namespace, None).take(SAMPLE).map(|object| object.as_slice().len());
    let (looked_at, bytes) = sample.fold((0, 0), |(count, sum), size| (count + 1, sum + size));
    let mean = bytes as u64 / std::cmp::max(looked_at, 1);
    mean * count.min(most) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> Arc<Identity> {
        Arc::new(Identity::authenticated(name, Vec::new()))
    }

    fn streams(limits: Limits) -> (Arc<StreamLimits>, Metrics) {
        let metrics = Metrics::new();
        (StreamLimits::new(limits, &metrics), metrics)
    }

    #[test]
    fn a_user_has_so_many_watches_and_all_together_have_more() {
        let limits = Limits { watches_max: 5, watches_per_user_max: 3, ..Limits::default() };
        let (streams, metrics) = streams(limits);
        let (jane, joe) = (user("jane"), user("joe"));
        let mut open: Vec<_> = (0..3).map(|_| streams.watch(&jane).unwrap()).collect();
        let refused = streams.watch(&jane).err().unwrap();
        assert_eq!((refused.code, refused.details.unwrap().retry_after_seconds), (429, 1));
        open.extend((0..2).map(|_| streams.watch(&joe).unwrap()));
        assert!(streams.watch(&joe).is_err(), "five are all there may be");
        assert!(
            metrics
                .registry
                .text()
                .contains("apiserver_dropped_requests_total{request_kind=\"readOnly\"} 2")
        );
        open.remove(0);
        streams.watch(&joe).unwrap();
        drop(open);
        let left = streams.open();
        assert_eq!((left.watches, left.by_user.len()), (0, 0), "nothing is kept of those who left");
    }

    #[test]
    fn lists_are_weighed_and_one_always_goes_on() {
        let (streams, metrics) = streams(Limits { list_bytes_max: 100, ..Limits::default() });
        let large = streams.list(1_000).unwrap();
        assert!(streams.list(1).is_err());
        assert!(metrics.registry.text().contains("headwater_list_bytes 1000"));
        drop(large);
        let _some = [streams.list(60).unwrap(), streams.list(40).unwrap()];
        assert!(streams.list(1).is_err());
    }
}
