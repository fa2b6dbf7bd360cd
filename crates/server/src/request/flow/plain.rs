//! Two plain limits of requests in flight, for servers without priority and fairness (S7.14).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The requests in flight.
#[derive(Debug)]
pub(super) struct PlainLimits {
    reads: Arc<InFlight>,
    writes: Arc<InFlight>,
}

#[derive(Debug)]
struct InFlight {
    now: AtomicUsize,
    /// 0 is no limit.
    most: usize,
}

impl PlainLimits {
    pub(super) fn new(reads: usize, writes: usize) -> PlainLimits {
        let in_flight = |most| Arc::new(InFlight { now: AtomicUsize::new(0), most });
        PlainLimits { reads: in_flight(reads), writes: in_flight(writes) }
    }

    /// Counts a request while the result exists; `None` if there are too many.
    pub(super) fn admit(&self, is_read: bool) -> Option<PlainSeat> {
        let in_flight = if is_read { &self.reads } else { &self.writes };
        let before = in_flight.now.fetch_add(1, Ordering::AcqRel);
        let seat = PlainSeat(Arc::clone(in_flight));
        (in_flight.most == 0 || before < in_flight.most).then_some(seat)
    }
}

/// A request that is counted.
#[derive(Debug)]
pub(super) struct PlainSeat(Arc<InFlight>);

impl Drop for PlainSeat {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S7.14
    #[test]
    fn reads_and_writes_are_limited_separately() {
        let limits = PlainLimits::new(2, 1);
        let reads = [limits.admit(true).unwrap(), limits.admit(true).unwrap()];
        assert!(limits.admit(true).is_none() && limits.admit(true).is_none());
        let write = limits.admit(false).unwrap();
        assert!(limits.admit(false).is_none());
        drop((reads, write));
        assert!(limits.admit(true).is_some() && limits.admit(false).is_some());
        let unlimited = PlainLimits::new(0, 0);
        let many: Vec<_> = (0..1_000).map(|_| unlimited.admit(true)).collect();
        assert!(many.iter().all(Option::is_some));
    }
}
