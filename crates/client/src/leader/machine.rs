//! The state machine of a candidate: pure functions of state, input and time.
//!
//! River: inside leader election.
//! Promise: a candidate takes over only after the lease was unchanged for its duration on the
//! candidate's own clock; time stamps in the lease are never compared with a clock; a holder that
//! cannot renew within the deadline stops leading before another replica can start.

use std::time::Duration;

use tokio::time::Instant;

/// The timing of an election; the defaults are those of client-go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long other replicas wait for a holder that does not renew.
    pub lease: Duration,
    /// A holder that cannot renew for this time stops leading.
    pub renew_deadline: Duration,
    /// The time between two attempts.
    pub retry: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            lease: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}

/// The maximum jitter of a standby, as a fraction of the retry period.
pub(super) const JITTER: f64 = 1.2;

impl Timing {
    /// The maximum time between two attempts of a standby, with jitter.
    pub fn retry_max(&self) -> Duration {
        self.retry + self.retry.mul_f64(JITTER)
    }

    /// Why the timing is invalid, if it is.
    pub(super) fn problem(&self) -> Option<String> {
        let Timing { lease, renew_deadline, retry } = *self;
        if retry.is_zero() || renew_deadline.is_zero() || lease < Duration::from_secs(1) {
            return Some(
                "lease, renew_deadline and retry must be positive, and lease at least 1 s"
                    .to_owned(),
            );
        }
        if lease <= renew_deadline {
            return Some(format!(
                "lease ({lease:?}) must be longer than renew_deadline ({renew_deadline:?})"
            ));
        }
        if renew_deadline <= retry.mul_f64(JITTER) {
            let why = "renew_deadline must be longer than 1.2 times retry";
            return Some(why.to_owned());
        }
        None
    }
}

/// The fields of a lease that decisions depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) holder: String,
    pub(super) lease_seconds: u32,
    pub(super) transitions: u32,
    /// Opaque: only compared for equality.
    pub(super) acquired: String,
    pub(super) renewed: String,
    pub(super) version: String,
}

/// The state of a candidate.
#[derive(Debug)]
pub(super) struct Election {
    identity: String,
    timing: Timing,
    seen: Option<(Record, Instant)>,
    /// When the last successful renewal was sent.
    renewed: Option<Instant>,
    announced_leader: Option<String>,
}

/// What to do about the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Intent {
    /// The lease does not exist: create it.
    Create,
    /// It has no holder, or the holder did not renew in time.
    TakeOver { transitions: u32 },
    /// This replica holds it.
    Renew,
    /// Another replica holds it.
    Wait,
}

impl Election {
    pub(super) fn new(identity: &str, timing: Timing) -> Election {
        Election {
            identity: identity.to_owned(),
            timing,
            seen: None,
            renewed: None,
            announced_leader: None,
        }
    }

    /// Records the lease that was read; `None` if it does not exist.
    pub(super) fn observe(&mut self, record: Option<Record>, now: Instant) {
        self.seen = match (self.seen.take(), record) {
            (Some((known, since)), Some(record)) if is_unchanged(&known, &record) => {
                Some((record, since))
            }
            (_, Some(record)) => Some((record, now)),
            (_, None) => None,
        };
    }

    /// The lease as it was last read or written.
    pub(super) fn record(&self) -> Option<&Record> {
        self.seen.as_ref().map(|(record, _)| record)
    }

    pub(super) fn intent(&self, now: Instant) -> Intent {
        let Some((record, since)) = &self.seen else { return Intent::Create };
        if record.holder == self.identity {
            return Intent::Renew;
        }
        let silent = now.saturating_duration_since(*since);
        let lease = Duration::from_secs(u64::from(record.lease_seconds));
        if record.holder.is_empty() || silent >= lease {
            return Intent::TakeOver { transitions: record.transitions + 1 };
        }
        Intent::Wait
    }

    /// A write succeeded. `started` is when it was sent: the server may have applied it at any time
    /// since.
    pub(super) fn succeeded(&mut self, record: Record, started: Instant) {
        self.seen = Some((record, started));
        self.renewed = Some(started);
    }

    pub(super) fn is_leading(&self, now: Instant) -> bool {
        self.renewed.is_some() && !self.is_lost(now)
    }

    /// Whether the renewal deadline has passed.
    pub(super) fn is_lost(&self, now: Instant) -> bool {
        self.renewed
            .is_some_and(|at| now.saturating_duration_since(at) >= self.timing.renew_deadline)
    }

    /// When leadership is lost unless a renewal succeeds.
    pub(super) fn lost_at(&self) -> Option<Instant> {
        self.renewed.map(|at| at + self.timing.renew_deadline)
    }

    pub(super) fn give_up(&mut self) {
        self.renewed = None;
    }

    /// Whether the last renewal is older than the lease duration plus a tolerance.
    pub(super) fn is_overdue(&self, now: Instant, tolerance: Duration) -> bool {
        self.renewed
            .is_some_and(|at| now.saturating_duration_since(at) > self.timing.lease + tolerance)
    }

    /// The holder, if observers have not been notified of it.
    pub(super) fn new_leader(&mut self) -> Option<String> {
        let holder = self.record().map(|record| record.holder.clone())?;
        if holder.is_empty() || self.announced_leader.as_ref() == Some(&holder) {
            return None;
        }
        self.announced_leader = Some(holder.clone());
        Some(holder)
    }
}

/// Whether two records are equal except for their versions.
fn is_unchanged(known: &Record, record: &Record) -> bool {
    known.holder == record.holder
        && known.renewed == record.renewed
        && known.acquired == record.acquired
        && known.transitions == record.transitions
        && known.lease_seconds == record.lease_seconds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    const SECOND: Duration = Duration::from_secs(1);

    fn record(holder: &str, renewed: &str) -> Record {
        Record {
            holder: holder.into(),
            lease_seconds: 15,
            transitions: 3,
            acquired: "a".into(),
            renewed: renewed.into(),
            version: "1".into(),
        }
    }

    /// C25.1
    #[test]
    fn inconsistent_timings_are_refused() {
        let ok = Timing::default();
        assert_eq!(ok.problem(), None);
        for bad in [
            Timing { lease: 10 * SECOND, ..ok },
            Timing { renew_deadline: 15 * SECOND, ..ok },
            Timing { renew_deadline: 2 * SECOND, ..ok },
            Timing { retry: 9 * SECOND, ..ok },
            Timing { retry: Duration::ZERO, ..ok },
            Timing { lease: Duration::ZERO, renew_deadline: Duration::ZERO, retry: Duration::ZERO },
        ] {
            assert!(bad.problem().is_some(), "{bad:?}");
        }
    }

    /// C25.2
    #[test]
    fn a_candidate_takes_over_only_after_the_lease_has_passed_on_its_own_clock() {
        let mut machine = Election::new("me", Timing::default());
        let start = Instant::now();
        assert_eq!(machine.intent(start), Intent::Create);
        // Whatever time the record claims, what counts is when we saw it change.
        machine.observe(Some(record("other", "1970-01-01")), start);
        assert_eq!(machine.intent(start), Intent::Wait);
        machine.observe(Some(record("other", "1970-01-01")), start + 14 * SECOND);
        assert_eq!(machine.intent(start + 14 * SECOND), Intent::Wait);
        machine.observe(Some(record("other", "2200-01-01")), start + 14 * SECOND);
        assert_eq!(machine.intent(start + 28 * SECOND), Intent::Wait, "it was renewed");
        let late = start + 29 * SECOND;
        assert_eq!(machine.intent(late), Intent::TakeOver { transitions: 4 });
        machine.observe(Some(record("", "2200-01-01")), late);
        assert_eq!(machine.intent(late), Intent::TakeOver { transitions: 4 }, "it was released");
        machine.observe(Some(record("me", "x")), late);
        assert_eq!(machine.intent(late), Intent::Renew);
    }

    /// C25.4, C25.11
    #[test]
    fn a_holder_that_cannot_renew_within_its_deadline_has_lost() {
        let mut machine = Election::new("me", Timing::default());
        let start = Instant::now();
        assert!(!machine.is_leading(start));
        machine.succeeded(record("me", "1"), start);
        assert!(machine.is_leading(start + 9 * SECOND));
        assert_eq!(machine.lost_at(), Some(start + 10 * SECOND));
        assert!(machine.is_lost(start + 10 * SECOND));
        assert!(!machine.is_overdue(start + 15 * SECOND, SECOND));
        assert!(machine.is_overdue(start + 17 * SECOND, SECOND));
    }

    /// C25.9
    #[test]
    fn observers_are_called_once_per_leader() {
        let mut machine = Election::new("me", Timing::default());
        let now = Instant::now();
        let mut announced = Vec::new();
        for (holder, renewed) in
            [("a", "1"), ("a", "2"), ("b", "3"), ("", "4"), ("b", "5"), ("me", "6")]
        {
            machine.observe(Some(record(holder, renewed)), now);
            announced.extend(machine.new_leader());
        }
        assert_eq!(announced, ["a", "b", "me"]);
    }

    /// A server and two candidates whose clocks run at different speeds.
    struct World {
        record: Option<Record>,
        writes: u32,
    }

    struct Candidate {
        machine: Election,
        /// How fast its clock runs.
        rate: f64,
        /// On its own clock.
        next: f64,
        /// Cut off from the server until then, in true time.
        cut_until: f64,
    }

    impl Candidate {
        fn clock(&self, origin: Instant, truth: f64) -> Instant {
            origin + Duration::from_secs_f64(truth * self.rate)
        }

        fn step(&mut self, origin: Instant, truth: f64, world: &mut World) {
            let now = self.clock(origin, truth);
            if truth < self.cut_until {
                return;
            }
            self.machine.observe(world.record.clone(), now);
            let transitions = match self.machine.intent(now) {
                Intent::Wait => return,
                Intent::Create => 0,
                Intent::Renew => self.machine.record().unwrap().transitions,
                Intent::TakeOver { transitions } => transitions,
            };
            world.writes += 1;
            let record = Record {
                holder: self.machine.identity.clone(),
                lease_seconds: 15,
                transitions,
                acquired: transitions.to_string(),
                renewed: world.writes.to_string(),
                version: world.writes.to_string(),
            };
            world.record = Some(record.clone());
            self.machine.succeeded(record, now);
        }
    }

    /// C25.12
    #[test]
    fn two_candidates_with_drifting_clocks_never_lead_at_once() {
        for seed in 0..300 {
            let dice = Random::seeded(seed);
            let origin = Instant::now();
            let mut world = World { record: None, writes: 0 };
            let mut candidates: Vec<Candidate> = ["a", "b"]
                .iter()
                .map(|name| Candidate {
                    machine: Election::new(name, Timing::default()),
                    rate: 0.9 + 0.2 * dice.fraction(),
                    next: 2.0 * dice.fraction(),
                    cut_until: 0.0,
                })
                .collect();
            let mut leaders = 0;
            for tick in 0..6000 {
                let truth = f64::from(tick) * 0.1;
                for candidate in &mut candidates {
                    if dice.fraction() < 0.002 {
                        candidate.cut_until = truth + 60.0 * dice.fraction();
                    }
                    if truth * candidate.rate >= candidate.next {
                        candidate.next = truth * candidate.rate + 2.0 + 2.4 * dice.fraction();
                        candidate.step(origin, truth, &mut world);
                    }
                    let now = candidate.clock(origin, truth);
                    if candidate.machine.is_lost(now) {
                        candidate.machine.give_up();
                    }
                }
                let leading = |candidate: &Candidate| {
                    candidate.machine.is_leading(candidate.clock(origin, truth))
                };
                let now_leading = candidates.iter().filter(|c| leading(c)).count();
                assert!(now_leading <= 1, "two leaders at {truth} s, seed {seed}");
                leaders += now_leading;
            }
            assert!(leaders > 1000, "there is a leader most of the time");
        }
    }
}
