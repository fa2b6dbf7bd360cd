//! Leases, with which etcd deletes objects that have a time to live.
//!
//! Objects written within a short time share one lease (S6.8): a lease per Kubernetes Event would
//! cost etcd more than the Events. When a lease expires, etcd deletes all its objects at one
//! revision.

use std::time::Duration;

use tokio::time::Instant;

/// Objects on one lease, which limits how many etcd deletes at one revision.
const OBJECTS_MAX: usize = 1_000;

/// The longest time during which writes share a lease.
const SHARED_MAX: Duration = Duration::from_secs(60);

/// The current lease for objects with one time to live.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) id: i64,
    ttl: Duration,
    shared_until: Instant,
    objects: usize,
}

impl Lease {
    /// The seconds to request, so that an object that joins the lease at the last moment still
    /// lives long enough, including the round trip to etcd.
    pub(crate) fn seconds(ttl: Duration) -> i64 {
        let whole = ttl + shared_for(ttl) + Duration::from_secs(1);
        let up = i64::from(whole.subsec_nanos() > 0);
        i64::try_from(whole.as_secs()).unwrap_or(i64::MAX).saturating_add(up)
    }

    /// A lease requested at `now`.
    pub(crate) fn new(id: i64, ttl: Duration, now: Instant) -> Lease {
        Lease { id, ttl, shared_until: now + shared_for(ttl), objects: 0 }
    }

    /// Adds an object and returns the lease's id; `None` if the object needs a new lease.
    pub(crate) fn join(&mut self, ttl: Duration, now: Instant) -> Option<i64> {
        if self.ttl != ttl || now > self.shared_until || self.objects == OBJECTS_MAX {
            return None;
        }
        self.objects += 1;
        Some(self.id)
    }
}

fn shared_for(ttl: Duration) -> Duration {
    (ttl / 20).min(SHARED_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S6.8
    #[test]
    fn objects_with_one_time_to_live_share_a_lease_and_live_long_enough() {
        let (hour, now) = (Duration::from_secs(3600), Instant::now());
        let mut lease = Lease::new(7, hour, now);
        assert_eq!(lease.join(hour, now), Some(7));
        assert_eq!(lease.join(hour, now + Duration::from_secs(60)), Some(7));
        assert_eq!(lease.join(hour, now + Duration::from_secs(61)), None);
        assert_eq!(lease.join(hour * 2, now), None);
        assert_eq!(Lease::seconds(hour), 3661);
        assert_eq!(Lease::seconds(Duration::from_millis(200)), 2);
    }

    /// S6.8
    #[test]
    fn a_lease_has_a_maximum_number_of_objects() {
        let (hour, now) = (Duration::from_secs(3600), Instant::now());
        let mut lease = Lease::new(7, hour, now);
        let taken = (0..2_000).filter(|_| lease.join(hour, now).is_some()).count();
        assert_eq!(taken, OBJECTS_MAX);
    }
}
