//! The queues against a naive model, and what they promise to flows.

use proptest::prelude::*;

use super::*;

/// The state of a request in the model.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Waiting,
    Running { began: Nanos },
    Lingering { until: Nanos, finished: usize },
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    queue: Option<u32>,
    width: Width,
    arrived: Work,
    state: State,
}

/// The same level without any sum, index or shortcut: everything is searched in the list of all
/// requests, and every queue always exists.
struct Model {
    discipline: Discipline,
    limit: u32,
    next: Vec<Work>,
    requests: Vec<Request>,
    virtual_time: Work,
    now: Nanos,
    robin: u32,
    arrivals: u64,
    finished: usize,
}

const QUEUES_MAX: usize = 8;

impl Model {
    fn new(discipline: Discipline, limit: u32) -> Model {
        Model {
            discipline,
            limit,
            next: vec![0; QUEUES_MAX],
            requests: Vec::new(),
            virtual_time: 0,
            now: 0,
            robin: 0,
            arrivals: 0,
            finished: 0,
        }
    }

    fn of(&self, queue: u32) -> impl Iterator<Item = &Request> {
        self.requests.iter().filter(move |request| request.queue == Some(queue))
    }

    fn oldest(&self, queue: u32) -> Option<usize> {
        let is_next = |r: &Request| r.queue == Some(queue) && r.state == State::Waiting;
        self.requests.iter().position(is_next)
    }

    fn is_busy(&self, queue: u32) -> bool {
        self.of(queue).any(|r| matches!(r.state, State::Waiting | State::Running { .. }))
    }

    fn seats(&self, counts: impl Fn(State) -> bool) -> u64 {
        let counted = self.requests.iter().filter(|request| counts(request.state));
        counted.map(|request| u64::from(request.width.most())).sum()
    }

    fn in_use(&self) -> u64 {
        self.seats(|state| matches!(state, State::Running { .. } | State::Lingering { .. }))
    }

    fn running(&self) -> usize {
        self.requests.iter().filter(|r| matches!(r.state, State::Running { .. })).count()
    }

    fn waiting(&self) -> usize {
        self.requests.iter().filter(|request| request.state == State::Waiting).count()
    }

    fn pass(&mut self, now: Nanos) {
        let busy = (0..QUEUES_MAX as u32).filter(|queue| self.is_busy(*queue)).count();
        if busy > 0 {
            let wanted = self.in_use() + self.seats(|state| state == State::Waiting);
            let rate = Work::from(wanted.min(u64::from(self.limit)));
            self.virtual_time += rate * Work::from(now - self.now) / busy as Work;
        }
        self.now = now;
    }

    /// Returns the requests that were seated.
    fn advance(&mut self, now: Nanos) -> Vec<usize> {
        let mut seated = Vec::new();
        loop {
            let due = self.requests.iter().enumerate().filter_map(|(at, r)| match r.state {
                State::Lingering { until, finished } if until <= now => Some((until, finished, at)),
                _ => None,
            });
            let Some((until, _, at)) = due.min() else { break };
            self.pass(until);
            self.requests[at].state = State::Gone;
            seated.extend(self.dispatch());
        }
        self.pass(now);
        seated
    }

    fn wide_in_use(&self) -> u64 {
        let has_seats =
            |r: &&Request| matches!(r.state, State::Running { .. } | State::Lingering { .. });
        let wide = self.requests.iter().filter(|r| r.width.seats > 1).filter(has_seats);
        wide.map(|r| u64::from(r.width.most())).sum()
    }

    fn kept(&self) -> u64 {
        match self.discipline {
            Discipline::Queue(_) => u64::from(self.limit / 5),
            _ => 0,
        }
    }

    fn fits(&self, width: Width) -> bool {
        let (seats, limit) = (u64::from(width.most()), u64::from(self.limit));
        if self.discipline == Discipline::Exempt {
            return true;
        }
        if seats > limit {
            return self.running() == 0;
        }
        let wide = self.wide_in_use();
        let leaves_kept = width.seats <= 1 || wide == 0 || wide + seats + self.kept() <= limit;
        leaves_kept && self.in_use() + seats <= limit
    }

    fn bound(&mut self, queue: u32) {
        if let Some(oldest) = self.oldest(queue) {
            let next = &mut self.next[queue as usize];
            *next = (*next).max(self.requests[oldest].arrived);
        }
    }

    fn first(&self, is_narrow: bool) -> Option<(u32, usize)> {
        let mut best: Option<(Work, u32, usize)> = None;
        for step in 1..=QUEUES_MAX as u32 {
            let queue = (self.robin + step) % QUEUES_MAX as u32;
            let Some(oldest) = self.oldest(queue) else { continue };
            let width = self.requests[oldest].width;
            if is_narrow && width.seats > 1 {
                continue;
            }
            let end = self.next[queue as usize] + width.work();
            if best.is_none_or(|(least, ..)| end < least) {
                best = Some((end, queue, oldest));
            }
        }
        best.map(|(_, queue, oldest)| (queue, oldest))
    }

    fn dispatch(&mut self) -> Vec<usize> {
        let mut seated = Vec::new();
        while self.discipline == Discipline::Exempt || self.in_use() < u64::from(self.limit) {
            let Some((mut queue, mut oldest)) = self.first(false) else { break };
            let head = self.requests[oldest].width;
            let narrow_in_use = self.in_use() - self.wide_in_use();
            let is_passed = head.seats > 1 && head.most() <= self.limit;
            if !self.fits(head) && is_passed && narrow_in_use < self.kept() {
                (queue, oldest) = self.first(true).unwrap_or((queue, oldest));
            }
            if !self.fits(self.requests[oldest].width) {
                break;
            }
            let width = self.requests[oldest].width.reshaped(self.limit);
            self.requests[oldest].width = width;
            self.requests[oldest].state = State::Running { began: self.now };
            self.next[queue as usize] += width.work();
            self.bound(queue);
            self.robin = queue;
            seated.push(oldest);
        }
        seated
    }

    /// Whether it is rejected; its number; and who is seated.
    fn arrive(&mut self, width: Width, hash: u64) -> Result<usize, Rejection> {
        self.arrivals += 1;
        let (mut queue, mut state) = (None, State::Running { began: self.now });
        if let Discipline::Queue(queuing) = self.discipline {
            let work = |queue: u32| -> Work {
                let waiting = self.of(queue).filter(|request| request.state == State::Waiting);
                waiting.map(|request| request.width.work()).sum()
            };
            let hand = Hand::deal(queuing.queues, queuing.hand, hash);
            let chosen = hand.from(self.arrivals).min_by_key(|queue| work(*queue)).unwrap();
            let length = self.of(chosen).filter(|request| request.state == State::Waiting).count();
            let is_closed =
                self.in_use() >= u64::from(self.limit) || (width.seats > 1 && !self.fits(width));
            if is_closed && length >= queuing.length {
                return Err(Rejection::QueueFull);
            }
            if !self.is_busy(chosen) {
                self.next[chosen as usize] = self.virtual_time;
            }
            (queue, state) = (Some(chosen), State::Waiting);
        } else if !self.fits(width) {
            return Err(Rejection::ConcurrencyLimit);
        }
        self.requests.push(Request { queue, width, arrived: self.virtual_time, state });
        queue.into_iter().for_each(|queue| self.bound(queue));
        Ok(self.requests.len() - 1)
    }

    fn finish(&mut self, at: usize) {
        let Request { queue, width, state, .. } = self.requests[at];
        let State::Running { began } = state else { panic!("{state:?}") };
        self.finished += 1;
        self.requests[at].state = match width.extra {
            0 => State::Gone,
            extra => State::Lingering { until: self.now + extra, finished: self.finished },
        };
        if let Some(queue) = queue {
            let late = Work::from(self.now - began) - Work::from(ASSUMED);
            self.next[queue as usize] += Work::from(width.seats) * late;
            self.bound(queue);
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Arrive { width: Width, hash: u64 },
    Finish(prop::sample::Index),
    Leave(prop::sample::Index),
    Pass(Nanos),
    Configure(Discipline, u32),
}

fn any_width() -> impl Strategy<Value = Width> {
    let few = (1_u32..5, 0_u32..8, 0_u64..4_000_000);
    few.prop_map(|(seats, final_seats, extra)| match final_seats {
        0 => Width::of(seats),
        _ => Width { seats, final_seats, extra },
    })
}

fn any_discipline() -> impl Strategy<Value = Discipline> {
    let queuing = (1_u32..=QUEUES_MAX as u32, 1_u32..4, 1_usize..5);
    let queue = queuing.prop_map(|(queues, hand, length)| {
        Discipline::Queue(Queuing { queues, hand: hand.min(queues), length })
    });
    prop_oneof![8 => queue, 1 => Just(Discipline::Reject), 1 => Just(Discipline::Exempt)]
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (any_width(), 0_u64..200).prop_map(|(width, hash)| Step::Arrive { width, hash }),
        4 => any::<prop::sample::Index>().prop_map(Step::Finish),
        1 => any::<prop::sample::Index>().prop_map(Step::Leave),
        3 => (0_u64..6_000_000).prop_map(Step::Pass),
        1 => (any_discipline(), 0_u32..16).prop_map(|(rule, limit)| Step::Configure(rule, limit)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn every_script_is_served_as_by_the_model(
        discipline in any_discipline(), limit in 0_u32..16,
        steps in prop::collection::vec(any_step(), 1..120),
    ) {
        let mut queues = FairQueues::new(0, discipline, limit);
        let mut model = Model::new(discipline, limit);
        let mut now = 0;
        let (mut waiting, mut running) = (Vec::<(Ticket, usize)>::new(), Vec::new());
        for step in steps {
            let mut expected: Vec<usize> = Vec::new();
            match step {
                Step::Pass(time) => {
                    now += time;
                    queues.advance(now);
                    expected = model.advance(now);
                }
                Step::Configure(discipline, limit) => {
                    queues.configure(now, discipline, limit);
                    (model.discipline, model.limit) = (discipline, limit);
                    expected = model.dispatch();
                }
                Step::Arrive { width, hash } => {
                    let arrival = queues.arrive(now, width, hash);
                    match model.arrive(width, hash) {
                        Err(rejection) => prop_assert_eq!(arrival, Arrival::Rejected(rejection)),
                        Ok(own) => {
                            expected = model.dispatch();
                            expected.retain(|seated| *seated != own);
                            match (arrival, model.requests[own].state) {
                                (Arrival::Waits(ticket), State::Waiting) => {
                                    waiting.push((ticket, own));
                                }
                                (Arrival::Seated(seated), State::Running { .. }) => {
                                    running.push((seated, own));
                                }
                                other => prop_assert!(false, "{other:?}"),
                            }
                        }
                    }
                }
                Step::Leave(which) if !waiting.is_empty() => {
                    let (ticket, own) = waiting.remove(which.index(waiting.len()));
                    prop_assert!(queues.leave(now, ticket));
                    prop_assert!(!queues.leave(now, ticket), "it left already");
                    model.requests[own].state = State::Gone;
                    model.requests[own].queue.into_iter().for_each(|queue| model.bound(queue));
                    expected = model.dispatch();
                }
                Step::Finish(which) if !running.is_empty() => {
                    let (seated, own) = running.remove(which.index(running.len()));
                    queues.finish(now, seated);
                    model.finish(own);
                    expected = model.dispatch();
                }
                Step::Leave(_) | Step::Finish(_) => continue,
            }
            let mut seated = Vec::new();
            for (ticket, place) in queues.take_seated() {
                let at = waiting.iter().position(|(known, _)| *known == ticket).unwrap();
                let (_, own) = waiting.remove(at);
                prop_assert_eq!(place.width, model.requests[own].width);
                seated.push(own);
                running.push((place, own));
            }
            prop_assert_eq!(seated, expected);
            prop_assert_eq!(queues.seats_in_use, model.in_use());
            prop_assert_eq!(queues.waiting(), model.waiting());
            prop_assert_eq!(queues.running(), model.running());
            prop_assert_eq!(queues.virtual_time, model.virtual_time);
            let in_use: Vec<u32> = (0..QUEUES_MAX as u32)
                .filter(|queue| model.of(*queue).any(|r| r.state != State::Gone))
                .collect();
            let known: Vec<u32> = queues.queues.keys().copied().collect();
            prop_assert_eq!(known, in_use, "only queues in use exist");
            for (index, queue) in &queues.queues {
                if queue.is_busy() {
                    prop_assert_eq!(queue.next, model.next[*index as usize]);
                }
            }
        }
        // Nothing is left when all have gone.
        running.into_iter().for_each(|(seated, _)| queues.finish(now, seated));
        queues.configure(now, Discipline::Exempt, 0);
        loop {
            let seated = queues.take_seated();
            if seated.is_empty() {
                break;
            }
            seated.into_iter().for_each(|(_, seated)| queues.finish(now, seated));
        }
        queues.advance(Nanos::MAX / 2);
        prop_assert!(queues.is_idle() && queues.queues.is_empty() && queues.filled.is_empty());
        prop_assert_eq!((queues.busy, queues.seats_in_use, queues.seats_waiting), (0, 0, 0));
        prop_assert_eq!(queues.wide_in_use, 0);
    }
}

fn queuing(queues: u32, hand: u32, length: usize) -> Discipline {
    Discipline::Queue(Queuing { queues, hand, length })
}

#[track_caller]
fn seat(arrival: Arrival) -> Seated {
    match arrival {
        Arrival::Seated(seated) => seated,
        other => panic!("{other:?}"),
    }
}

/// S7.9: a flow that floods the level delays the requests of others by one service time.
#[test]
fn a_flood_of_one_flow_does_not_delay_the_others() {
    let mut queues = FairQueues::new(0, queuing(64, 6, 50), 10);
    // Two flows with different queues.
    let hash = |queues: [u64; 6]| {
        let digits = queues.iter().enumerate().rev();
        digits.fold(0, |hash, (dealt, queue)| hash * (64 - dealt as u64) + queue - dealt as u64)
    };
    let (flood, other) = (hash([0, 1, 2, 3, 4, 5]), hash([10, 11, 12, 13, 14, 15]));
    let (mut running, mut rejected) = (Vec::new(), 0);
    for _ in 0..1_000 {
        match queues.arrive(0, Width::of(1), flood) {
            Arrival::Seated(seated) => running.push(seated),
            Arrival::Waits(_) => {}
            Arrival::Rejected(reason) => {
                assert_eq!(reason, Rejection::QueueFull);
                rejected += 1;
            }
        }
    }
    assert_eq!((running.len(), queues.waiting(), rejected), (10, 300, 690), "six full queues");
    let Arrival::Waits(ticket) = queues.arrive(0, Width::of(1), other) else {
        panic!("all seats are taken");
    };
    queues.finish(1_000_000, running.remove(0));
    let seated = queues.take_seated();
    assert_eq!(seated.len(), 1);
    assert_eq!(seated[0].0, ticket, "it is served before three hundred earlier requests");
}

/// S7.9: lists leave a fifth of the seats to requests of one seat.
#[test]
fn lists_leave_seats_to_other_requests() {
    let mut queues = FairQueues::new(0, queuing(64, 6, 50), 10);
    let lists = (0..20).filter(|_| matches!(queues.arrive(0, Width::of(3), 1), Arrival::Seated(_)));
    assert_eq!(lists.count(), 2, "a third one would take what is kept");
    for user in 0..4 {
        seat(queues.arrive(0, Width::of(1), 1_000_000_007 * (user + 2)));
    }
    let next = queues.arrive(0, Width::of(1), 1_000_000_007 * 7);
    assert!(matches!(next, Arrival::Waits(_)), "all seats are taken");
}

/// S7.9: a list gets its turn although requests of one seat come without end.
#[test]
fn requests_of_one_seat_do_not_starve_lists() {
    let mut queues = FairQueues::new(0, queuing(64, 1, 50), 10);
    let (mut running, mut served) = (VecDeque::new(), 0);
    for round in 1_u64..1_000 {
        let now = round * 1_000_000;
        for (seats, hash) in [(3, 0), (1, round), (1, round + 7), (1, round + 19)] {
            if let Arrival::Seated(seated) = queues.arrive(now, Width::of(seats), hash) {
                running.push_back(seated);
            }
        }
        for seated in running.drain(..running.len() / 2).collect::<Vec<Seated>>() {
            served += u32::from(seated.width.seats == 3);
            queues.finish(now + 500_000, seated);
        }
        running.extend(queues.take_seated().into_iter().map(|(_, seated)| seated));
    }
    assert!(served > 50, "{served} lists in 999 ms");
}

/// S7.9: two busy flows get the same number of seats, however many requests each has waiting and
/// however wide they are.
#[test]
fn busy_flows_share_the_seats_equally() {
    let mut queues = FairQueues::new(0, queuing(64, 1, 10_000), 12);
    let narrow = 1;
    let wide = (2..).find(|hash| hash % 64 != 1).unwrap();
    let mut now = 0;
    let mut running = Vec::new();
    let mut seat_time = [0_u64; 2];
    for _ in 0..3_000 {
        for (width, hash) in [(1, narrow), (1, narrow), (4, wide)] {
            if let Arrival::Seated(seated) = queues.arrive(now, Width::of(width), hash) {
                running.push((now, seated));
            }
        }
    }
    for _ in 0..4_000 {
        now += 250_000;
        let (began, seated) = running.remove(0);
        let is_wide = usize::from(seated.width.seats == 4);
        seat_time[is_wide] += u64::from(seated.width.seats) * (now - began);
        queues.finish(now, seated);
        running.extend(queues.take_seated().into_iter().map(|(_, seated)| (now, seated)));
    }
    let share = seat_time[0] as f64 / (seat_time[0] + seat_time[1]) as f64;
    assert!((0.45..0.55).contains(&share), "{share}: {seat_time:?}");
}

/// S7.9: a request that is wider than the level runs alone.
#[test]
fn a_request_wider_than_the_limit_runs_alone() {
    let mut queues = FairQueues::new(0, queuing(1, 1, 50), 4);
    let small = seat(queues.arrive(0, Width::of(1), 0));
    let Arrival::Waits(wide) = queues.arrive(0, Width::of(9), 0) else { panic!() };
    queues.finish(1, small);
    let mut seated = queues.take_seated();
    assert_eq!(seated[0].0, wide);
    assert!(matches!(queues.arrive(2, Width::of(1), 0), Arrival::Waits(_)));
    queues.finish(3, seated.remove(0).1);
    assert_eq!(queues.take_seated().len(), 1);
}

/// S7.11
#[test]
fn a_level_without_seats_rejects_all_but_one_request_at_a_time() {
    let mut queues = FairQueues::new(0, Discipline::Reject, 0);
    let first = seat(queues.arrive(0, Width::of(1), 0));
    let second = queues.arrive(1, Width::of(1), 0);
    assert_eq!(second, Arrival::Rejected(Rejection::ConcurrencyLimit));
    queues.finish(2, first);
    seat(queues.arrive(3, Width::of(1), 0));
}

/// S7.7
#[test]
fn a_write_with_many_watchers_occupies_seats_after_its_end() {
    let mut queues = FairQueues::new(0, queuing(1, 1, 50), 10);
    let fan_out = Width { seats: 1, final_seats: 10, extra: 5_000_000 };
    let write = seat(queues.arrive(0, fan_out, 0));
    assert_eq!(queues.seats_in_use, 10);
    assert!(matches!(queues.arrive(0, Width::of(1), 0), Arrival::Waits(_)));
    queues.finish(1_000_000, write);
    assert_eq!(queues.seats_in_use, 10);
    assert_eq!(queues.next_release(), Some(6_000_000));
    queues.advance(5_999_999);
    assert!(queues.take_seated().is_empty());
    queues.advance(6_000_000);
    assert_eq!(queues.take_seated().len(), 1);
    assert_eq!(queues.next_release(), None);
}

/// S7.7: fewer seats for a longer time.
#[test]
fn final_seats_are_reshaped_to_the_limit() {
    let mut queues = FairQueues::new(0, queuing(1, 1, 50), 4);
    let fan_out = Width { seats: 1, final_seats: 10, extra: 4_000_000 };
    let write = seat(queues.arrive(0, fan_out, 0));
    assert_eq!(write.width, Width { seats: 1, final_seats: 4, extra: 10_000_000 });
}
