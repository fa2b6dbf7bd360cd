//! A priority level at work: requests wait for seats of its queues, and give them back.
//!
//! River: classification → **level** → authorization, handler. Promise: a seat is given back when
//! its request ends, for whatever reason; a request whose client has gone leaves the queue.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use http::Uri;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::Nanos;
use super::borrow::{Bounds, Shares};
use super::classify::Flow;
use super::demand::Demand;
use super::queues::{Arrival, Discipline, FairQueues, Rejection, Seated, Ticket, Width};
use super::retry::RetryAfter;
use crate::front::identity::Identity;
use crate::lock::lock;
use crate::request::route::Verb;

/// The settings of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LevelSettings {
    pub(super) discipline: Discipline,
    pub(super) shares: Shares,
}

/// The part of a level's seats that one request may take.
const WIDTH_MAX: f64 = 0.15;

/// What the debug pages show of a request.
#[derive(Clone, Debug)]
pub(super) struct RequestDetails {
    pub(super) identity: Arc<Identity>,
    pub(super) verb: Verb,
    pub(super) uri: Uri,
}

/// A priority level.
#[derive(Debug)]
pub(super) struct PriorityLevel {
    pub(super) name: String,
    /// Times are measured from here.
    epoch: Instant,
    /// The most seats of one request; 0 if the level has no such limit.
    width_max: AtomicU32,
    /// Notified when requests wait for seats that become free by themselves.
    releases: Arc<Notify>,
    work: Mutex<LevelWork>,
}

/// The changing part of a level.
#[derive(Debug)]
pub(super) struct LevelWork {
    pub(super) queues: FairQueues,
    pub(super) settings: LevelSettings,
    pub(super) bounds: Bounds,
    pub(super) demand: Demand,
    /// The seats it was to get at the last adjustment.
    pub(super) target: f64,
    /// Whether its object is gone; it serves the requests that it has.
    pub(super) is_quiescing: bool,
    pub(super) tally: Tally,
    pub(super) waiting: HashMap<Ticket, WaitingRequest>,
    /// Running requests, by number.
    pub(super) running: BTreeMap<u64, RunningRequest>,
    retry: RetryAfter,
    number: u64,
    /// The release that `releases` was notified of.
    announced: Option<Nanos>,
}

/// What became of the requests of a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) dispatched: u64,
    pub(super) rejected: u64,
    pub(super) timed_out: u64,
    pub(super) cancelled: u64,
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct WaitingRequest {
    seat: oneshot::Sender<StartedRequest>,
    pub(super) flow: Arc<Flow>,
    pub(super) details: RequestDetails,
    width: Width,
}

/// A request that runs.
#[derive(Debug)]
pub(super) struct RunningRequest {
    pub(super) flow: Arc<Flow>,
    pub(super) details: RequestDetails,
    pub(super) seated: Seated,
    pub(super) began: Nanos,
}

/// The number of a request that runs, and when it began.
#[derive(Clone, Copy, Debug)]
struct StartedRequest {
    number: u64,
    began: Nanos,
}

/// A request that was rejected, and when its client may retry.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RejectedRequest {
    pub(super) retry_after: u64,
}

impl PriorityLevel {
    /// A level without seats: it gets them from the next adjustment.
    pub(super) fn new(
        name: &str,
        epoch: Instant,
        releases: Arc<Notify>,
        settings: LevelSettings,
    ) -> PriorityLevel {
        let queues = FairQueues::new(nanos(epoch), settings.discipline, 0);
        PriorityLevel {
            name: name.to_owned(),
            epoch,
            width_max: AtomicU32::new(0),
            releases,
            work: Mutex::new(LevelWork {
                queues,
                settings,
                bounds: Bounds::default(),
                demand: Demand::default(),
                target: 0.0,
                is_quiescing: false,
                tally: Tally::default(),
                waiting: HashMap::new(),
                running: BTreeMap::new(),
                retry: RetryAfter::default(),
                number: 0,
                announced: None,
            }),
        }
    }

    pub(super) fn now(&self) -> Nanos {
        nanos(self.epoch)
    }

    pub(super) fn work(&self) -> MutexGuard<'_, LevelWork> {
        lock(&self.work)
    }

    /// The most seats that one request may take: a part of those of the level, and so few that the
    /// requests of one hand cannot take all. `None` if the level has no queues.
    pub(super) fn width_max(&self) -> Option<u32> {
        Some(self.width_max.load(Ordering::Relaxed)).filter(|most| *most > 0)
    }

    /// Applies the settings of the object. Seats are given by the next adjustment. Returns whether
    /// anything changed.
    pub(super) fn configure(&self, settings: LevelSettings, bounds: Bounds) -> bool {
        let most = match settings.discipline {
            Discipline::Queue(queuing) => {
                let of_hand = bounds.nominal / queuing.hand.max(1);
                let of_level = (f64::from(bounds.nominal) * WIDTH_MAX) as u32;
                of_hand.min(of_level).max(1)
            }
            Discipline::Exempt | Discipline::Reject => 0,
        };
        self.width_max.store(most, Ordering::Relaxed);
        let mut work = self.work();
        let changed = (work.settings, work.bounds) != (settings, bounds) || work.is_quiescing;
        (work.settings, work.bounds, work.is_quiescing) = (settings, bounds, false);
        changed
    }

    /// Changes the number of seats, and what happens to requests beyond it.
    pub(super) fn set_limit(&self, limit: u32) {
        let now = self.now();
        let mut work = self.work();
        let discipline = work.settings.discipline;
        work.queues.configure(now, discipline, limit);
        self.settle(&mut work);
    }

    /// Waits for seats, but not longer than `patience`.
    pub(super) async fn admit(
        self: &Arc<PriorityLevel>,
        flow: &Arc<Flow>,
        details: RequestDetails,
        width: Width,
        hash: u64,
        patience: Duration,
    ) -> Result<LevelSeat, RejectedRequest> {
        match self.arrive(flow, details, width, hash)? {
            Arrived::Seated(seat) => Ok(seat),
            // Boxed: few requests wait.
            Arrived::Waits(turn) => Box::pin(turn.seated(patience)).await,
        }
    }

    fn arrive(
        self: &Arc<PriorityLevel>,
        flow: &Arc<Flow>,
        details: RequestDetails,
        width: Width,
        hash: u64,
    ) -> Result<Arrived, RejectedRequest> {
        let counters = flow.counters();
        counters.width.observe(f64::from(width.most()));
        let now = self.now();
        let mut work = self.work();
        let arrival = work.queues.arrive(now, width, hash);
        match arrival {
            Arrival::Seated(seated) => {
                let started = work.run(flow, details, seated, now);
                self.settle(&mut work);
                drop(work);
                counters.waited(true, 0);
                Ok(Arrived::Seated(LevelSeat::new(self, started)))
            }
            Arrival::Rejected(reason) => {
                self.settle(&mut work);
                Err(work.reject(flow, reason, now))
            }
            Arrival::Waits(ticket) => {
                let (seat, receiver) = oneshot::channel();
                let held = Arc::clone(flow);
                work.waiting.insert(ticket, WaitingRequest { seat, flow: held, details, width });
                counters.enqueued(width, work.queues.length(ticket));
                self.settle(&mut work);
                let (level, flow) = (Arc::clone(self), Arc::clone(flow));
                let since = now;
                let turn = Turn { level, flow, width, ticket: Some(ticket), receiver, since };
                Ok(Arrived::Waits(turn))
            }
        }
    }

    /// Wakes the requests that were seated, and announces when others may be.
    fn settle(&self, work: &mut LevelWork) {
        work.wake(self.now());
        let next = work.queues.next_release();
        let is_news = next.is_some_and(|next| work.announced.is_none_or(|known| next < known));
        if is_news {
            work.announced = next;
            self.releases.notify_one();
        }
    }

    /// Gives seats that finished requests no longer occupy to those that wait. Returns when to call
    /// it again.
    pub(super) fn release(&self) -> Option<Nanos> {
        let now = self.now();
        let mut work = self.work();
        work.queues.advance(now);
        work.wake(now);
        work.announced = work.queues.next_release();
        work.announced
    }

    /// Takes the seats of requests that hold them for longer than this: their clients do not read.
    pub(super) fn expire(&self, longest: Duration) {
        let now = self.now();
        let longest = longest.as_nanos() as Nanos;
        let mut work = self.work();
        while let Some(oldest) = work.running.first_entry()
            && oldest.get().began + longest < now
        {
            let request = oldest.remove();
            work.end(request, now);
        }
        self.settle(&mut work);
    }

    fn finish(&self, started: StartedRequest) {
        let now = self.now();
        let mut work = self.work();
        if let Some(request) = work.running.remove(&started.number) {
            work.end(request, now);
            self.settle(&mut work);
        }
    }
}

impl LevelWork {
    /// Notes a request that begins to run.
    fn run(
        &mut self,
        flow: &Arc<Flow>,
        details: RequestDetails,
        seated: Seated,
        now: Nanos,
    ) -> StartedRequest {
        flow.counters().started(seated.width);
        self.tally.dispatched += 1;
        self.number += 1;
        let flow = Arc::clone(flow);
        self.running.insert(self.number, RunningRequest { flow, details, seated, began: now });
        StartedRequest { number: self.number, began: now }
    }

    fn end(&mut self, request: RunningRequest, now: Nanos) {
        request.flow.counters().ended(&request, now.saturating_sub(request.began));
        self.queues.finish(now, request.seated);
    }

    fn wake(&mut self, now: Nanos) {
        for (ticket, seated) in self.queues.take_seated() {
            // Known until it is seated or leaves.
            let Some(waiting) = self.waiting.remove(&ticket) else { continue };
            waiting.flow.counters().dequeued(waiting.width);
            let started = self.run(&waiting.flow, waiting.details, seated, now);
            // The receiver exists as long as the request is in `waiting`.
            let _ = waiting.seat.send(started);
        }
    }

    fn reject(&mut self, flow: &Flow, reason: Rejection, now: Nanos) -> RejectedRequest {
        flow.counters().rejected(reason);
        self.tally.rejected += 1;
        match reason {
            Rejection::TimeOut => self.tally.timed_out += 1,
            Rejection::Cancelled => self.tally.cancelled += 1,
            Rejection::QueueFull | Rejection::ConcurrencyLimit => {}
        }
        RejectedRequest { retry_after: self.retry.reject(now / 1_000_000_000) }
    }
}

enum Arrived {
    Seated(LevelSeat),
    Waits(Turn),
}

/// A request in a queue. Dropped, it leaves the queue.
struct Turn {
    level: Arc<PriorityLevel>,
    flow: Arc<Flow>,
    width: Width,
    /// `None` once it does not wait.
    ticket: Option<Ticket>,
    receiver: oneshot::Receiver<StartedRequest>,
    since: Nanos,
}

impl Turn {
    async fn seated(mut self, patience: Duration) -> Result<LevelSeat, RejectedRequest> {
        let seated = tokio::time::timeout(patience, &mut self.receiver).await;
        match (seated, self.ticket) {
            (Ok(Ok(seated)), _) => Ok(self.take(seated)),
            (_, Some(ticket)) => match self.leave(ticket, Rejection::TimeOut) {
                Ok(rejected) => Err(rejected),
                Err(seat) => Ok(seat),
            },
            (_, None) => Err(RejectedRequest { retry_after: 1 }),
        }
    }

    /// Leaves the queue, or returns the seat that it was given just now.
    fn leave(&mut self, ticket: Ticket, reason: Rejection) -> Result<RejectedRequest, LevelSeat> {
        let now = self.level.now();
        let mut work = self.level.work();
        if work.queues.leave(now, ticket) {
            work.waiting.remove(&ticket);
            let rejected = work.reject(&self.flow, reason, now);
            self.flow.counters().dequeued(self.width);
            self.flow.counters().waited(false, now.saturating_sub(self.since));
            self.level.settle(&mut work);
            self.ticket = None;
            return Ok(rejected);
        }
        drop(work);
        match self.receiver.try_recv() {
            Ok(seated) => Err(self.take(seated)),
            Err(_) => Ok(RejectedRequest { retry_after: 1 }),
        }
    }

    fn take(&mut self, started: StartedRequest) -> LevelSeat {
        self.ticket = None;
        self.flow.counters().waited(true, started.began.saturating_sub(self.since));
        LevelSeat::new(&self.level, started)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            let _ = self.leave(ticket, Rejection::Cancelled);
        }
    }
}

/// The seats of a running request, until this is dropped.
#[derive(Debug)]
pub(super) struct LevelSeat {
    level: Arc<PriorityLevel>,
    started: StartedRequest,
}

impl LevelSeat {
    fn new(level: &Arc<PriorityLevel>, started: StartedRequest) -> LevelSeat {
        LevelSeat { level: Arc::clone(level), started }
    }
}

impl Drop for LevelSeat {
    fn drop(&mut self) {
        self.level.finish(self.started);
    }
}

fn nanos(epoch: Instant) -> Nanos {
    epoch.elapsed().as_nanos() as Nanos
}
