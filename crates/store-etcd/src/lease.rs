//! Leases: what makes objects with a time to live go.
//!
//! Objects written within a short time share one lease (S6.8): one for each event would cost etcd
//! more than the events. When it runs out, etcd deletes all of its objects at one revision.

use std::time::Duration;

use tokio::time::Instant;

/// Objects on one lease, so that not too much goes at one revision.
const OBJECTS_MAX: usize = 1_000;

/// The longest time in which writes share a lease.
const SHARED_MAX: Duration = Duration::from_secs(60);

/// The lease that objects of one time to live get at the moment.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) id: i64,
    ttl: Duration,
    shared_until: Instant,
    objects: usize,
}

impl Lease {
    /// How many seconds to ask for: an object that gets the lease at the end of its sharing still
    /// stays long enough, the way to etcd included.
    pub(crate) fn seconds(ttl: Duration) -> i64 {
        let whole = ttl + shared_for(ttl) + Duration::from_secs(1);
        let up = i64::from(whole.subsec_nanos() > 0);
        i64::try_from(whole.as_secs()).unwrap_or(i64::MAX).saturating_add(up)
    }

    /// A lease asked for at `now`.
    pub(crate) fn new(id: i64, ttl: Duration, now: Instant) -> Lease {
        Lease { id, ttl, shared_until: now + shared_for(ttl), objects: 0 }
    }

    /// Takes one more object, if this is the lease for it.
    pub(crate) fn take(&mut self, ttl: Duration, now: Instant) -> Option<i64> {
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
    fn objects_of_one_time_share_a_lease_and_stay_long_enough() {
        let (hour, now) = (Duration::from_secs(3600), Instant::now());
        let mut lease = Lease::new(7, hour, now);
        assert_eq!(lease.take(hour, now), Some(7));
        assert_eq!(lease.take(hour, now + Duration::from_secs(60)), Some(7));
        assert_eq!(lease.take(hour, now + Duration::from_secs(61)), None);
        assert_eq!(lease.take(hour * 2, now), None);
        assert_eq!(Lease::seconds(hour), 3661);
        assert_eq!(Lease::seconds(Duration::from_millis(200)), 2);
    }

    /// S6.8
    #[test]
    fn a_lease_holds_only_so_many() {
        let (hour, now) = (Duration::from_secs(3600), Instant::now());
        let mut lease = Lease::new(7, hour, now);
        let taken = (0..2_000).filter(|_| lease.take(hour, now).is_some()).count();
        assert_eq!(taken, OBJECTS_MAX);
    }
}
