//! The seats and queues of one priority level: a state machine without a clock.
//!
//! River: classification, width → **queues** → enforcement. A request arrives, and is seated, waits
//! or is rejected; it leaves while it waits, or finishes; every call may seat others.
//! Promise: no more seats are in use than the limit, except by one request that is wider and runs
//! alone; no request waits while the one that is next would fit; flows whose queues differ get
//! equal shares (fair queuing for server requests, S7.9). Lists never take all seats: a fifth is kept
//! for requests of one seat. Only queues in use exist.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use super::Nanos;
use super::deal::Hand;
use super::demand::{DemandMeter, MeasuredDemand};

/// How long a request is assumed to run until it has finished.
const ASSUMED: Nanos = 3_000_000;

/// One seat of so many is kept for requests of one seat, so that these wait for each other only, and
/// not until a list has been sent.
const KEPT_PART: u32 = 5;

/// Seats times nanoseconds. The sums of centuries fit.
type Work = i128;

/// What a level does with requests beyond its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Discipline {
    /// Nothing: it has no limit.
    Exempt,
    /// They are rejected.
    Reject,
    /// They wait.
    Queue(Queuing),
}

/// The queues of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Queuing {
    pub(super) queues: u32,
    pub(super) hand: u32,
    /// The longest queue while all seats are in use.
    pub(super) length: usize,
}

/// How many seats a request occupies: while it runs, and for a time after it has finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Width {
    pub(super) seats: u32,
    pub(super) final_seats: u32,
    pub(super) extra: Nanos,
}

impl Width {
    pub(super) fn of(seats: u32) -> Width {
        Width { seats, final_seats: 0, extra: 0 }
    }

    /// Whether it takes more than one seat while it runs, as lists do.
    fn is_wide(self) -> bool {
        self.seats > 1
    }

    /// The seats that it occupies from its start to its end.
    pub(super) fn most(self) -> u32 {
        self.seats.max(self.final_seats)
    }

    fn final_work(self) -> Work {
        Work::from(self.final_seats) * Work::from(self.extra)
    }

    fn work(self) -> Work {
        Work::from(self.seats) * Work::from(ASSUMED) + self.final_work()
    }

    /// The same work at the end, on as many seats as there are.
    fn reshaped(self, limit: u32) -> Width {
        if self.final_seats <= limit || limit == 0 {
            return self;
        }
        let extra = self.final_work() / Work::from(limit);
        Width { final_seats: limit, extra: extra as Nanos, ..self }
    }
}

/// Why a request was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rejection {
    QueueFull,
    ConcurrencyLimit,
    TimeOut,
    Cancelled,
}

impl Rejection {
    /// The value of the label `reason`.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Rejection::QueueFull => "queue-full",
            Rejection::ConcurrencyLimit => "concurrency-limit",
            Rejection::TimeOut => "time-out",
            Rejection::Cancelled => "cancelled",
        }
    }
}

/// A waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ticket {
    queue: u32,
    number: u64,
}

/// A running request. It occupies its seats until it is given to [`FairQueues::finish`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Seated {
    queue: Option<u32>,
    pub(super) width: Width,
    began: Nanos,
}

impl Seated {
    /// The queue that it came from.
    pub(super) fn queue(&self) -> Option<u32> {
        self.queue
    }
}

/// The decision about a request that arrived.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    Seated(Seated),
    Waits(Ticket),
    Rejected(Rejection),
}

/// The seats and queues of one level.
#[derive(Debug)]
pub(super) struct FairQueues {
    discipline: Discipline,
    limit: u32,
    /// Queues with requests that wait, run or still occupy seats.
    queues: BTreeMap<u32, Queue>,
    /// Queues in which requests wait.
    filled: BTreeSet<u32>,
    /// How many queues have requests that wait or run.
    busy: u32,
    /// The seat-time that each busy queue has been entitled to since the start.
    virtual_time: Work,
    synced: Nanos,
    /// The queue that was served last.
    robin: u32,
    arrivals: u64,
    finished: u64,
    waiting: usize,
    running: usize,
    seats_in_use: u64,
    /// Those of wide requests.
    wide_in_use: u64,
    seats_waiting: u64,
    /// Seats of finished requests, with the time until which they are occupied.
    lingering: BinaryHeap<Reverse<Lingering>>,
    seated: Vec<(Ticket, Seated)>,
    meter: DemandMeter,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Lingering {
    until: Nanos,
    number: u64,
    queue: Option<u32>,
    width: Width,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    running: usize,
    seats_in_use: u64,
    work_waiting: Work,
    /// The virtual time at which its next request is served.
    next: Work,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    number: u64,
    width: Width,
    arrived: Nanos,
    arrived_virtually: Work,
}

impl Queue {
    fn is_busy(&self) -> bool {
        self.running > 0 || !self.waiting.is_empty()
    }

    /// A request is not served, in virtual time, before it arrived. Otherwise a queue that uses less
    /// than its share would save the rest for a burst.
    fn bound(&mut self) {
        if let Some(oldest) = self.waiting.front() {
            self.next = self.next.max(oldest.arrived_virtually);
        }
    }
}

impl FairQueues {
    pub(super) fn new(now: Nanos, discipline: Discipline, limit: u32) -> FairQueues {
        FairQueues {
            discipline,
            limit,
            queues: BTreeMap::new(),
            filled: BTreeSet::new(),
            busy: 0,
            virtual_time: 0,
            synced: now,
            robin: 0,
            arrivals: 0,
            finished: 0,
            waiting: 0,
            running: 0,
            seats_in_use: 0,
            wide_in_use: 0,
            seats_waiting: 0,
            lingering: BinaryHeap::new(),
            seated: Vec::new(),
            meter: DemandMeter::new(now),
        }
    }

    /// A request arrives. The hash is that of its flow.
    pub(super) fn arrive(&mut self, now: Nanos, width: Width, hash: u64) -> Arrival {
        self.advance(now);
        self.arrivals += 1;
        let Discipline::Queue(queuing) = self.discipline else {
            return match self.fits(width) {
                true => Arrival::Seated(self.start(now, None, width)),
                false => Arrival::Rejected(Rejection::ConcurrencyLimit),
            };
        };
        let index = self.choose(queuing, hash);
        let fits = self.fits(width);
        // For a wide request, seats that it may not take are none.
        let has_seats = self.seats_in_use < u64::from(self.limit) && (fits || !width.is_wide());
        if self.waiting == 0 && has_seats && fits {
            return Arrival::Seated(self.start_at_once(now, index, width));
        }
        let length = self.queues.get(&index).map_or(0, |queue| queue.waiting.len());
        if !has_seats && length >= queuing.length {
            return Arrival::Rejected(Rejection::QueueFull);
        }
        let ticket = self.enqueue(now, index, width);
        self.dispatch(now);
        let own = self.seated.iter().position(|(seated, _)| *seated == ticket);
        match own {
            Some(own) => Arrival::Seated(self.seated.remove(own).1),
            None => Arrival::Waits(ticket),
        }
    }

    /// A waiting request leaves. False if it does not wait: it was seated.
    pub(super) fn leave(&mut self, now: Nanos, ticket: Ticket) -> bool {
        self.advance(now);
        let Some(queue) = self.queues.get_mut(&ticket.queue) else { return false };
        let found = queue.waiting.iter().position(|waiting| waiting.number == ticket.number);
        let Some(left) = found.and_then(|at| queue.waiting.remove(at)) else { return false };
        queue.work_waiting -= left.width.work();
        queue.bound();
        self.unqueue(ticket.queue, left.width);
        self.measure(now);
        // It may have been the one that did not fit.
        self.dispatch(now);
        true
    }

    /// A running request finishes. Its seats become free at once or after its extra time.
    #[expect(clippy::needless_pass_by_value, reason = "a request finishes once")]
    pub(super) fn finish(&mut self, now: Nanos, seated: Seated) {
        self.advance(now);
        let Seated { queue: index, width, began } = seated;
        self.running -= 1;
        if let Some(queue) = index.and_then(|index| self.queues.get_mut(&index)) {
            let took = Work::from(now.saturating_sub(began));
            queue.running -= 1;
            queue.next += Work::from(width.seats) * (took - Work::from(ASSUMED));
            queue.bound();
            self.busy -= u32::from(!queue.is_busy());
        }
        match width.extra {
            0 => self.release(now, index, width),
            extra => {
                self.finished += 1;
                let (until, number) = (now + extra, self.finished);
                self.lingering.push(Reverse(Lingering { until, number, queue: index, width }));
            }
        }
        self.dispatch(now);
    }

    /// Frees the seats of finished requests whose extra time is over.
    pub(super) fn advance(&mut self, now: Nanos) {
        while let Some(Reverse(next)) = self.lingering.peek()
            && next.until <= now
        {
            let Some(Reverse(Lingering { until, queue, width, .. })) = self.lingering.pop() else {
                break;
            };
            self.sync(until);
            self.release(until, queue, width);
            self.dispatch(until);
        }
        self.sync(now);
    }

    /// When [`FairQueues::advance`] has to be called although nothing else happens: seats become
    /// free for which a request waits.
    pub(super) fn next_release(&self) -> Option<Nanos> {
        self.lingering.peek().filter(|_| self.waiting > 0).map(|Reverse(next)| next.until)
    }

    /// The requests that no longer wait since the last call.
    pub(super) fn take_seated(&mut self) -> Vec<(Ticket, Seated)> {
        std::mem::take(&mut self.seated)
    }

    /// Changes the limit and the discipline. Requests that wait are served in any case.
    pub(super) fn configure(&mut self, now: Nanos, discipline: Discipline, limit: u32) {
        self.advance(now);
        self.discipline = discipline;
        self.limit = limit;
        self.dispatch(now);
    }

    /// The demand since the last call.
    pub(super) fn take_demand(&mut self, now: Nanos) -> MeasuredDemand {
        self.advance(now);
        self.meter.take(now)
    }

    /// The length of a waiting request's queue.
    pub(super) fn length(&self, ticket: Ticket) -> usize {
        self.queues.get(&ticket.queue).map_or(0, |queue| queue.waiting.len())
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting == 0 && self.running == 0
    }

    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(super) fn running(&self) -> usize {
        self.running
    }

    /// Seat-seconds that each busy queue has been entitled to.
    pub(super) fn virtual_seconds(&self) -> f64 {
        seconds(self.virtual_time)
    }

    /// How many queues there are.
    pub(super) fn count(&self) -> u32 {
        let highest = self.queues.keys().next_back().map_or(0, |highest| highest + 1);
        match self.discipline {
            Discipline::Queue(queuing) => queuing.queues.max(highest),
            Discipline::Exempt | Discipline::Reject => highest,
        }
    }

    /// The queues in use, in order.
    pub(super) fn report(&self) -> impl Iterator<Item = QueueReport<'_>> {
        self.queues.iter().map(|(index, queue)| QueueReport { index: *index, queue })
    }

    /// Picks the queue of the flow's hand with the least waiting work.
    fn choose(&self, queuing: Queuing, hash: u64) -> u32 {
        let work = |index: &u32| self.queues.get(index).map_or(0, |queue| queue.work_waiting);
        let hand = Hand::deal(queuing.queues, queuing.hand, hash);
        hand.from(self.arrivals).min_by_key(work).unwrap_or_default()
    }

    fn fits(&self, width: Width) -> bool {
        let seats = u64::from(width.most());
        let limit = u64::from(self.limit);
        let open = limit - u64::from(self.kept());
        match self.discipline {
            Discipline::Exempt => true,
            _ if seats > limit => self.running == 0,
            _ if width.is_wide() && self.wide_in_use > 0 && self.wide_in_use + seats > open => {
                false
            }
            _ => self.seats_in_use + seats <= limit,
        }
    }

    /// The seats that are kept for requests of one seat.
    fn kept(&self) -> u32 {
        match self.discipline {
            Discipline::Queue(_) => self.limit / KEPT_PART,
            Discipline::Exempt | Discipline::Reject => 0,
        }
    }

    /// Whether requests of one seat may pass a wide one that does not fit yet: until they use what is
    /// kept for them. Then it is the turn of the wide one.
    fn may_be_passed(&self, width: Width) -> bool {
        let is_within = width.is_wide() && width.most() <= self.limit;
        is_within && self.seats_in_use - self.wide_in_use < u64::from(self.kept())
    }

    /// Starts a request that does not wait. As if it were queued and served.
    fn start_at_once(&mut self, now: Nanos, index: u32, width: Width) -> Seated {
        let queue = self.queues.entry(index).or_default();
        self.busy += u32::from(!queue.is_busy());
        queue.next = match queue.is_busy() {
            true => queue.next.max(self.virtual_time),
            false => self.virtual_time,
        };
        let width = width.reshaped(self.limit);
        queue.next += width.work();
        queue.running += 1;
        queue.seats_in_use += u64::from(width.most());
        self.robin = index;
        self.start(now, Some(index), width)
    }

    fn start(&mut self, now: Nanos, queue: Option<u32>, width: Width) -> Seated {
        self.running += 1;
        self.seats_in_use += u64::from(width.most());
        self.wide_in_use += wide_seats(width);
        self.measure(now);
        Seated { queue, width, began: now }
    }

    fn enqueue(&mut self, now: Nanos, index: u32, width: Width) -> Ticket {
        let queue = self.queues.entry(index).or_default();
        if !queue.is_busy() {
            queue.next = self.virtual_time;
            self.busy += 1;
        }
        let number = self.arrivals;
        let arrived_virtually = self.virtual_time;
        queue.waiting.push_back(Waiting { number, width, arrived: now, arrived_virtually });
        queue.work_waiting += width.work();
        queue.bound();
        self.filled.insert(index);
        self.waiting += 1;
        self.seats_waiting += u64::from(width.most());
        self.measure(now);
        Ticket { queue: index, number }
    }

    /// Accounts for a request that was taken out of its queue.
    fn unqueue(&mut self, index: u32, width: Width) {
        self.waiting -= 1;
        self.seats_waiting -= u64::from(width.most());
        let Some(queue) = self.queues.get(&index) else { return };
        if queue.waiting.is_empty() {
            self.filled.remove(&index);
            self.busy -= u32::from(queue.running == 0);
        }
        self.drop_if_unused(index);
    }

    fn release(&mut self, now: Nanos, index: Option<u32>, width: Width) {
        let seats = width.most();
        self.seats_in_use -= u64::from(seats);
        self.wide_in_use -= wide_seats(width);
        if let Some(index) = index {
            if let Some(queue) = self.queues.get_mut(&index) {
                queue.seats_in_use -= u64::from(seats);
            }
            self.drop_if_unused(index);
        }
        self.measure(now);
    }

    fn drop_if_unused(&mut self, index: u32) {
        let queue = self.queues.get(&index);
        if queue.is_some_and(|queue| !queue.is_busy() && queue.seats_in_use == 0) {
            self.queues.remove(&index);
        }
    }

    /// Serves waiting requests while there are seats.
    fn dispatch(&mut self, now: Nanos) {
        let is_open = |queues: &FairQueues| match queues.discipline {
            Discipline::Exempt => true,
            _ => queues.seats_in_use < u64::from(queues.limit),
        };
        while self.waiting > 0 && is_open(self) {
            let Some(mut first) = self.first_to_end(|_| true) else { return };
            if !self.fits(first.1.width) && self.may_be_passed(first.1.width) {
                let narrow = self.first_to_end(|width| !width.is_wide());
                first = narrow.unwrap_or(first);
            }
            let (index, oldest) = first;
            if !self.fits(oldest.width) {
                return;
            }
            let width = oldest.width.reshaped(self.limit);
            if let Some(queue) = self.queues.get_mut(&index) {
                queue.waiting.pop_front();
                queue.work_waiting -= oldest.width.work();
                queue.next += width.work();
                queue.running += 1;
                queue.seats_in_use += u64::from(width.most());
                queue.bound();
            }
            self.unqueue(index, oldest.width);
            self.robin = index;
            let seated = self.start(now, Some(index), width);
            self.seated.push((Ticket { queue: index, number: oldest.number }, seated));
        }
    }

    /// The queue whose oldest request ends first in virtual time, and that request, among those with such
    /// a width. Of several, the next one after the queue that was served last.
    fn first_to_end(&self, is_candidate: impl Fn(Width) -> bool) -> Option<(u32, Waiting)> {
        let after = self.filled.range(self.robin.saturating_add(1)..);
        let indexes = after.chain(self.filled.range(..=self.robin));
        let candidates = indexes.filter_map(|index| {
            let queue = self.queues.get(index)?;
            let oldest = queue.waiting.front().filter(|oldest| is_candidate(oldest.width))?;
            Some((queue.next + oldest.width.work(), *index, *oldest))
        });
        let first = candidates.min_by_key(|(end, ..)| *end)?;
        Some((first.1, first.2))
    }

    /// Advances the virtual time: busy queues share the seats that are wanted, within the limit.
    fn sync(&mut self, now: Nanos) {
        let passed = now.saturating_sub(self.synced);
        self.synced = self.synced.max(now);
        if self.busy > 0 {
            let wanted = self.seats_in_use + self.seats_waiting;
            let shared = wanted.min(u64::from(self.limit));
            self.virtual_time += Work::from(shared) * Work::from(passed) / Work::from(self.busy);
        }
    }

    fn measure(&mut self, now: Nanos) {
        self.meter.set(now, self.seats_in_use + self.seats_waiting);
    }
}

/// A queue, for the debug pages.
pub(super) struct QueueReport<'a> {
    pub(super) index: u32,
    queue: &'a Queue,
}

impl QueueReport<'_> {
    pub(super) fn running(&self) -> usize {
        self.queue.running
    }

    pub(super) fn seats_in_use(&self) -> u64 {
        self.queue.seats_in_use
    }

    pub(super) fn next(&self) -> f64 {
        seconds(self.queue.next)
    }

    /// The waiting requests: ticket, width and time of arrival.
    pub(super) fn waiting(&self) -> impl ExactSizeIterator<Item = (Ticket, Width, Nanos)> + '_ {
        let queue = self.index;
        let ticket = move |number| Ticket { queue, number };
        self.queue.waiting.iter().map(move |w| (ticket(w.number), w.width, w.arrived))
    }

    pub(super) fn work_waiting(&self) -> f64 {
        seconds(self.queue.work_waiting)
    }
}

/// The seats of a wide request.
fn wide_seats(width: Width) -> u64 {
    if width.is_wide() { u64::from(width.most()) } else { 0 }
}

fn seconds(work: Work) -> f64 {
    work as f64 / 1e9
}

#[cfg(test)]
mod tests;
