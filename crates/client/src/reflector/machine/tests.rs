//! Tests of the decisions; no runtime, no source.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A machine with a clock and a random generator.
struct Bench {
    machine: Machine,
    now: Instant,
    random: Random,
}

impl Bench {
    fn new(settings: Settings) -> Bench {
        let random = Random::seeded(11);
        Bench { machine: Machine::new(settings), now: Instant::now(), random }
    }

    /// A machine that uses lists instead of watch-lists.
    fn listing() -> Bench {
        Bench::new(Settings { watch_list: false, ..Settings::default() })
    }

    /// A machine that has listed at version 10 and is watching.
    fn watching() -> Bench {
        let mut bench = Bench::listing();
        bench.step(Input::Start);
        bench.step(listed("10", false));
        bench.step(Input::Opened);
        bench
    }

    fn step(&mut self, input: Input) -> MachineOutput {
        self.machine.step(self.now, &self.random, input)
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// Lets the delay pass; returns the next request.
    #[track_caller]
    fn after_wait(&mut self, step: &MachineOutput) -> Action {
        let Action::Wait(delay) = step.action else { panic!("expected a delay, not {step:?}") };
        self.pass(delay);
        self.step(Input::DelayOver).action
    }

    fn event(&mut self, seen: EventKind, version: &str) -> Effect {
        let step = self.step(Input::Event { seen, version: version.into() });
        assert_eq!(step.action, Action::Read);
        step.effect
    }

    fn last(&self) -> String {
        self.machine.last_version().map(|version| version.to_string()).unwrap_or_default()
    }
}

fn listed(version: &str, paginated: bool) -> Input {
    Input::Listed { version: version.into(), paginated }
}

fn failure(class: Class) -> RequestFailure {
    RequestFailure { class, retry_after: None }
}

fn list_failed(class: Class) -> Input {
    Input::ListFailed { failure: failure(class), later_page: false }
}

fn in_stream(class: Class) -> Input {
    Input::StreamError { failure: failure(class), internal: false }
}

fn list(at: At, limit: Option<u32>) -> Action {
    Action::List(ListPlan { at, limit })
}

fn at_least(version: &str) -> At {
    At::AtLeast(version.into())
}

#[track_caller]
fn assert_watch(action: &Action, at: &At, initial: bool) {
    let Action::Watch(plan) = action else { panic!("expected a watch, not {action:?}") };
    assert_eq!((&plan.at, plan.initial_events), (at, initial));
    assert!((300..=600).contains(&plan.timeout_seconds), "{}", plan.timeout_seconds);
}

#[track_caller]
fn assert_wait(step: &MachineOutput, low: f64, high: f64) {
    let Action::Wait(delay) = step.action else { panic!("expected a delay, not {step:?}") };
    assert!((low..high).contains(&delay.as_secs_f64()), "{delay:?}");
}

/// C2.1, C5.6
#[test]
fn the_first_list_is_at_any_version_in_pages_and_without_delay() {
    let mut bench = Bench::listing();
    assert_eq!(bench.step(Input::Start).action, list(At::Any, Some(500)));
}

/// C2.2, C2.3
#[test]
fn later_lists_ask_for_at_least_the_last_version_and_page_only_where_the_server_did() {
    for (paginated, limit) in [(false, None), (true, Some(500))] {
        let mut bench = Bench::listing();
        bench.step(Input::Start);
        bench.step(listed("10", paginated));
        let step = bench.step(Input::OpenFailed(failure(Class::Expired)));
        assert_eq!(bench.after_wait(&step), list(at_least("10"), limit));
    }
    let settings = Settings { page_size: Some(50), watch_list: false, ..Settings::default() };
    let mut bench = Bench::new(settings);
    assert_eq!(bench.step(Input::Start).action, list(At::Any, Some(50)));
    bench.step(listed("10", false));
    let step = bench.step(Input::OpenFailed(failure(Class::Expired)));
    assert_eq!(bench.after_wait(&step), list(at_least("10"), Some(50)), "the user fixed it");
}

/// C2.4, C2.5
#[test]
fn a_list_at_an_unavailable_version_is_repeated_once_at_the_newest() {
    for class in [Class::Expired, Class::TooLarge] {
        let mut bench = Bench::watching();
        let step = bench.step(in_stream(Class::Expired));
        assert_eq!(bench.after_wait(&step), list(at_least("10"), None));
        let step = bench.step(list_failed(class));
        assert_eq!((step.action.clone(), step.failed), (list(At::Unset, None), false));
        let step = bench.step(list_failed(class));
        assert!(step.failed, "only once at once");
        assert_eq!(bench.after_wait(&step), list(At::Unset, Some(500)), "until one succeeds");
        bench.step(listed("20", false));
        let step = bench.step(in_stream(Class::Expired));
        assert_eq!(bench.after_wait(&step), list(at_least("20"), None), "cleared by success");
    }
}

/// C2.7
#[test]
fn an_expired_later_page_leads_to_one_list_without_pages_at_the_same_version() {
    let mut bench = Bench::listing();
    bench.step(Input::Start);
    let later = || Input::ListFailed { failure: failure(Class::Expired), later_page: true };
    assert_eq!(bench.step(later()).action, list(At::Any, None));
    assert_eq!(bench.step(later()).action, list(At::Unset, Some(500)));
    assert!(matches!(bench.step(later()).action, Action::Wait(_)));
}

/// C2.14
#[test]
fn a_consistent_start_lists_the_newest() {
    let settings = Settings { consistent_start: true, watch_list: false, ..Settings::default() };
    assert_eq!(Bench::new(settings).step(Input::Start).action, list(At::Unset, Some(500)));
}

/// C3.1, C3.2, C1.13
#[test]
fn a_cycle_starts_with_a_watch_list_if_the_source_supports_it() {
    let mut bench = Bench::new(Settings::default());
    assert_watch(&bench.step(Input::Start).action, &At::Unset, true);
    bench.step(Input::Opened);
    bench.event(EventKind::Bookmark { marker: true }, "12");
    let step = bench.step(in_stream(Class::Expired));
    let action = bench.after_wait(&step);
    assert_watch(&action, &at_least("12"), true);
    let mut cannot = Bench::listing();
    assert!(matches!(cannot.step(Input::Start).action, Action::List(_)));
}

/// C3.3, C3.5, C3.6, C3.12, R66
#[test]
fn the_marker_replaces_everything_and_the_stream_continues() {
    let mut bench = Bench::new(Settings::default());
    bench.step(Input::Start);
    bench.step(Input::Opened);
    assert_eq!(bench.event(EventKind::Added, "7"), Effect::Collect);
    assert_eq!(bench.event(EventKind::Modified, "9"), Effect::Collect);
    assert_eq!(bench.event(EventKind::Deleted, "10"), Effect::Collect);
    assert_eq!(bench.event(EventKind::Bookmark { marker: false }, "11"), Effect::None);
    assert_eq!(bench.last(), "", "synthetic events do not move the position");
    assert_eq!(bench.event(EventKind::Bookmark { marker: true }, "12"), Effect::Replace);
    assert_eq!(bench.last(), "12");
    assert_eq!(bench.event(EventKind::Added, "13"), Effect::Apply);
    bench.pass(600 * SECOND);
    let next = bench.step(Input::StreamEnded).action;
    assert_watch(&next, &at_least("13"), false);
}

/// C3.7
#[test]
fn a_failed_watch_list_waits_or_asks_for_the_newest_or_falls_back_to_a_list() {
    let start = || {
        let mut bench = Bench::new(Settings::default());
        bench.step(Input::Start);
        bench
    };
    for class in [Class::Refused, Class::TooManyRequests] {
        let mut bench = start();
        let step = bench.step(Input::OpenFailed(failure(class)));
        assert!(step.failed);
        let next = bench.after_wait(&step);
        assert_watch(&next, &At::Unset, true);
    }
    for class in [Class::Expired, Class::TooLarge] {
        let mut bench = start();
        bench.event(EventKind::Bookmark { marker: true }, "12");
        let step = bench.step(in_stream(Class::Expired));
        bench.after_wait(&step);
        let step = bench.step(Input::OpenFailed(failure(class)));
        assert_watch(&step.action, &At::Unset, true); // at once
        let step = bench.step(Input::OpenFailed(failure(class)));
        assert_wait(&step, 0.8, 4.0); // only once without a delay
    }
    for class in
        [Class::Broken, Class::Forbidden, Class::Unauthorized, Class::NotServed, Class::Other]
    {
        let step = start().step(Input::OpenFailed(failure(class)));
        assert_eq!(step.action, list(At::Any, Some(500)), "{class:?}");
        assert!(step.fell_back);
        let step = start().step(in_stream(class));
        assert_eq!(step.action, list(At::Any, Some(500)), "{class:?} in the stream");
        let step = start().step(Input::StreamBroken(failure(class)));
        assert_eq!(step.action, list(At::Any, Some(500)), "{class:?} broken");
    }
}

/// C3.8, C3.9
#[test]
fn a_watch_list_that_ends_without_the_marker_is_retried_once_and_then_given_up() {
    let mut bench = Bench::new(Settings::default());
    bench.step(Input::Start);
    bench.step(Input::Opened);
    let step = bench.step(Input::StreamEnded);
    let next = bench.after_wait(&step);
    assert_watch(&next, &At::Unset, true);
    bench.step(Input::Opened);
    bench.event(EventKind::Added, "1");
    assert_eq!(bench.step(Input::StreamEnded).action, list(At::Any, Some(500)));
    bench.step(listed("10", false));

    let step = bench.step(in_stream(Class::Expired));
    assert!(matches!(bench.after_wait(&step), Action::List(_)), "remembered");
    bench.step(listed("11", false));
    bench.pass(600 * SECOND);
    let step = bench.step(in_stream(Class::Expired));
    let next = bench.after_wait(&step);
    assert_watch(&next, &at_least("11"), true); // retried after ten minutes
}

/// C3.9
#[test]
fn a_server_that_does_not_understand_watch_lists_is_listed_for_ten_minutes() {
    let mut bench = Bench::new(Settings::default());
    bench.step(Input::Start);
    let step = bench.step(Input::OpenFailed(failure(Class::NotUnderstood)));
    assert_eq!(step.action, list(At::Any, Some(500)));
    bench.step(listed("10", false));
    let step = bench.step(in_stream(Class::Expired));
    assert!(matches!(bench.after_wait(&step), Action::List(_)));
}

/// C3.10, B254
#[test]
fn a_watch_list_without_events_for_a_minute_falls_back_to_a_list() {
    let mut bench = Bench::new(Settings::default());
    bench.step(Input::Start);
    bench.step(Input::Opened);
    let opened = bench.now;
    assert_eq!(bench.machine.deadline(), Some(opened + 60 * SECOND));
    bench.pass(59 * SECOND);
    bench.event(EventKind::Added, "1");
    assert_eq!(bench.machine.deadline(), Some(opened + 119 * SECOND), "an event is a sign of life");
    bench.pass(60 * SECOND);
    let step = bench.step(Input::Silent);
    assert_eq!(step.action, list(At::Any, Some(500)));
    assert!(step.fell_back);
}

/// C4.1, C4.2, C4.3
#[test]
fn the_watch_starts_at_the_lists_version_and_every_event_moves_the_position() {
    let mut bench = Bench::listing();
    bench.step(Input::Start);
    let action = bench.step(listed("10", false)).action;
    assert_watch(&action, &at_least("10"), false);
    bench.step(Input::Opened);
    for (seen, version) in [
        (EventKind::Added, "11"),
        (EventKind::Modified, "12"),
        (EventKind::Deleted, "13"),
        (EventKind::Bookmark { marker: false }, "15"),
        (EventKind::Bookmark { marker: true }, "16"),
    ] {
        assert_eq!(bench.event(seen, version), Effect::Apply);
        assert_eq!(bench.last(), version);
    }
}

/// C4.4
#[test]
fn synthetic_events_of_a_watch_without_version_do_not_move_the_position() {
    let mut bench = Bench::watching();
    let plan = WatchPlan { at: At::Any, initial_events: false, timeout_seconds: 300 };
    bench.machine.stream = Some(WatchState::new(&plan, bench.now));
    assert_eq!(bench.event(EventKind::Added, "99"), Effect::Apply);
    assert_eq!(bench.last(), "10");
    assert_eq!(bench.event(EventKind::Modified, "50"), Effect::Apply);
    assert_eq!(bench.last(), "50");
    assert_eq!(bench.event(EventKind::Added, "51"), Effect::Apply);
    assert_eq!(bench.last(), "51");
}

/// B244
#[test]
fn a_bookmark_from_the_past_is_ignored() {
    let mut bench = Bench::watching();
    bench.event(EventKind::Modified, "20");
    assert_eq!(bench.event(EventKind::Bookmark { marker: false }, "15"), Effect::Ignore);
    assert_eq!(bench.last(), "20");
}

/// C4.7
#[test]
fn a_stream_that_ends_normally_is_reopened_without_a_list() {
    let mut bench = Bench::watching();
    bench.pass(600 * SECOND);
    let step = bench.step(Input::StreamEnded);
    assert_watch(&step.action, &at_least("10"), false); // after its timeout: at once
    assert!(!step.failed);
    bench.step(Input::Opened);
    bench.pass(SECOND);
    let step = bench.step(Input::StreamEnded);
    assert_wait(&step, 0.0, 1.0); // early: the server may have ended many at once
    let next = bench.after_wait(&step);
    assert_watch(&next, &at_least("10"), false);
    bench.step(Input::Opened);
    bench.event(EventKind::Modified, "11");
    let step = bench.step(Input::StreamEnded);
    assert_wait(&step, 0.0, 1.0);
    bench.after_wait(&step);
    let step = bench.step(in_stream(Class::TooManyRequests));
    assert_wait(&step, 0.8, 1.6); // the delay sequence starts with the first delay
}

/// C4.8, B253
#[test]
fn the_third_very_short_watch_in_a_row_begins_a_new_cycle() {
    let mut bench = Bench::watching();
    for (low, high) in [(0.8, 1.6), (1.6, 3.2)] {
        let step = bench.step(Input::StreamEnded);
        assert_wait(&step, low, high);
        let next = bench.after_wait(&step);
        assert_watch(&next, &at_least("10"), false);
        bench.step(Input::Opened);
    }
    let step = bench.step(Input::StreamEnded);
    assert_eq!(step.relist, Some(Relist::ShortWatches));
    assert_eq!(bench.after_wait(&step), list(at_least("10"), None));
}

/// C4.9
#[test]
fn watch_timeouts_are_random_between_a_minimum_and_twice_that() {
    for (min, low, high) in [(0, 300, 600), (60, 300, 600), (900, 900, 1800)] {
        let settings = Settings {
            watch_list: false,
            watch_timeout_min: Duration::from_secs(min),
            ..Settings::default()
        };
        let mut bench = Bench::new(settings);
        bench.step(Input::Start);
        let mut drawn = Vec::new();
        for version in 1..500 {
            let Action::Watch(plan) = bench.step(listed(&version.to_string(), false)).action else {
                panic!()
            };
            drawn.push(plan.timeout_seconds);
        }
        assert!(drawn.iter().all(|seconds| (low..=high).contains(seconds)));
        let spread = drawn.iter().max().unwrap() - drawn.iter().min().unwrap();
        assert!(spread > (high - low) * 9 / 10, "uniform, not constant");
    }
}

/// C4.10
#[test]
fn a_stream_without_events_after_its_timeout_is_dropped_and_resumed() {
    let mut bench = Bench::watching();
    let opened = bench.now;
    let timeout = bench.machine.stream.as_ref().unwrap().timeout;
    assert_eq!(bench.machine.deadline(), Some(opened + timeout + 30 * SECOND));
    bench.pass(timeout + 10 * SECOND);
    bench.event(EventKind::Modified, "11");
    assert_eq!(bench.machine.deadline(), Some(bench.now + 30 * SECOND), "it still talks");
    bench.pass(30 * SECOND);
    let step = bench.step(Input::Silent);
    let next = bench.after_wait(&step);
    assert_watch(&next, &at_least("11"), false);
}

/// C4.11
#[test]
fn a_stream_whose_bookmarks_stop_is_dropped() {
    let mut bench = Bench::watching();
    let far = bench.machine.deadline();
    bench.pass(10 * SECOND);
    bench.event(EventKind::Bookmark { marker: false }, "11");
    assert_eq!(bench.machine.deadline(), far, "one bookmark has no distance");
    bench.pass(20 * SECOND);
    bench.event(EventKind::Bookmark { marker: false }, "12");
    assert_eq!(bench.machine.deadline(), Some(bench.now + 90 * SECOND));
    bench.pass(60 * SECOND);
    bench.event(EventKind::Bookmark { marker: false }, "13");
    assert_eq!(bench.machine.deadline(), Some(bench.now + 180 * SECOND), "three times 60 s");
}

/// C5.1, C31.4, R65
#[test]
fn every_failure_of_a_watch_has_a_next_action() {
    use Class::*;
    let resumes = |input: Input| {
        let mut bench = Bench::watching();
        let step = bench.step(input.clone());
        assert!(step.failed, "{input:?}");
        match bench.after_wait(&step) {
            Action::Watch(plan) => {
                assert_eq!((plan.at, plan.initial_events), (at_least("10"), false));
                true
            }
            Action::List(plan) => {
                assert_eq!(plan.at, at_least("10"), "not the newest: {input:?}");
                false
            }
            other => panic!("{other:?}"),
        }
    };
    for class in [Refused, TooManyRequests, Unauthorized, Forbidden, Broken, TooLarge] {
        assert!(resumes(Input::OpenFailed(failure(class))), "opening: {class:?}");
    }
    for class in [Expired, NotServed, NotUnderstood, Other] {
        assert!(!resumes(Input::OpenFailed(failure(class))), "opening: {class:?}");
    }
    for class in [TooManyRequests, Broken, Unauthorized, Forbidden, TooLarge, Other] {
        assert!(resumes(in_stream(class)), "in the stream: {class:?}");
    }
    assert!(!resumes(in_stream(Expired)));
    assert!(resumes(Input::StreamBroken(failure(Broken))));
}

/// C5.1
#[test]
fn every_failure_of_a_list_has_a_next_action() {
    use Class::*;
    for class in [Refused, TooManyRequests, Unauthorized, Forbidden, NotServed, Broken, Other] {
        let mut bench = Bench::listing();
        bench.step(Input::Start);
        let step = bench.step(list_failed(class));
        assert!(step.failed);
        assert_eq!(bench.after_wait(&step), list(At::Any, Some(500)), "{class:?}");
    }
}

/// C5.1, C5.2
#[test]
fn twenty_resets_of_an_idle_stream_cause_four_lists() {
    let mut bench = Bench::watching();
    let mut lists = 0;
    for _ in 0..20 {
        let step = bench.step(Input::StreamBroken(failure(Class::Broken)));
        if let Action::List(_) = bench.after_wait(&step) {
            lists += 1;
            bench.step(listed("10", false));
        }
        bench.step(Input::Opened);
    }
    assert_eq!(lists, 4);
}

/// C5.2
#[test]
fn a_stream_that_delivered_an_event_counts_as_a_successful_resume() {
    let mut bench = Bench::watching();
    for version in 11..100 {
        bench.event(EventKind::Modified, &version.to_string());
        let step = bench.step(Input::StreamBroken(failure(Class::Broken)));
        assert!(matches!(bench.after_wait(&step), Action::Watch(_)));
        bench.step(Input::Opened);
    }
}

/// C5.4, R72
#[test]
fn ten_minutes_of_refusal_cause_at_most_26_requests() {
    for watch_list in [true, false] {
        for seed in 0..50 {
            let mut bench = Bench::new(Settings { watch_list, ..Settings::default() });
            bench.random = Random::seeded(seed);
            let start = bench.now;
            let mut requests = 0;
            let mut action = bench.step(Input::Start).action;
            while bench.now < start + 600 * SECOND {
                let step = match action {
                    Action::Watch(_) => bench.step(Input::OpenFailed(failure(Class::Refused))),
                    Action::List(_) => bench.step(list_failed(Class::Refused)),
                    other => panic!("{other:?}"),
                };
                requests += 1;
                action = bench.after_wait(&step);
            }
            assert!(requests <= 26, "{requests}");
        }
    }
}

/// C5.5
#[test]
fn lists_watch_lists_and_watches_share_one_sequence_of_delays() {
    let mut bench = Bench::new(Settings::default());
    bench.step(Input::Start);
    let step = bench.step(Input::OpenFailed(failure(Class::Refused)));
    assert_wait(&step, 0.8, 1.6);
    bench.after_wait(&step);
    bench.step(Input::OpenFailed(failure(Class::NotUnderstood)));
    let step = bench.step(list_failed(Class::Broken));
    assert_wait(&step, 1.6, 3.2);
    bench.after_wait(&step);
    bench.step(listed("10", false));
    let step = bench.step(Input::OpenFailed(failure(Class::Refused)));
    assert_wait(&step, 3.2, 6.4);
}

/// C5.6
#[test]
fn between_two_cycles_there_is_always_a_delay() {
    for input in [in_stream(Class::Expired), Input::OpenFailed(failure(Class::Expired))] {
        let step = Bench::watching().step(input);
        assert_wait(&step, 0.8, 1.6);
    }
}

/// C5.7
#[test]
fn the_servers_advice_lengthens_the_delay() {
    let advised = RequestFailure { class: Class::TooManyRequests, retry_after: Some(20 * SECOND) };
    let step = Bench::watching().step(Input::OpenFailed(advised));
    assert_wait(&step, 20.0, 22.01);
}

/// C5.11
#[test]
fn internal_errors_are_retried_for_the_configured_time() {
    let settings = Settings {
        watch_list: false,
        internal_error_retry: Some(100 * SECOND),
        ..Settings::default()
    };
    let mut bench = Bench::new(settings);
    bench.step(Input::Start);
    bench.step(listed("10", false));
    let internal = || Input::StreamError { failure: failure(Class::Broken), internal: true };
    let start = bench.now;
    let mut retries = 0;
    loop {
        let step = bench.step(internal());
        match bench.after_wait(&step) {
            Action::Watch(_) => retries += 1,
            _ => break,
        }
    }
    assert!(retries > 5 && bench.now >= start + 100 * SECOND, "{retries}");
    bench.step(listed("11", false));
    let mut off = Bench::watching();
    for _ in 0..4 {
        let step = off.step(internal());
        off.after_wait(&step);
    }
    assert_eq!(off.step(internal()).relist, Some(Relist::FailedResumes), "off by default");
}

/// C16.6
#[test]
fn a_type_that_is_not_served_follows_its_policy() {
    let start = |not_served| {
        let mut bench =
            Bench::new(Settings { not_served, watch_list: false, ..Settings::default() });
        bench.step(Input::Start);
        bench.step(list_failed(Class::NotServed)).action
    };
    assert!(matches!(start(NotServed::Retry), Action::Wait(delay) if delay >= 30 * SECOND));
    assert_eq!(start(NotServed::Stop), Action::Stop);
    assert_eq!(start(NotServed::AwaitDiscovery), Action::AwaitDiscovery);
    let mut bench = Bench::listing();
    bench.step(Input::Start);
    assert_eq!(bench.step(Input::Served).action, list(At::Any, Some(500)));
}

/// C5.13
#[test]
fn two_hundred_reflectors_do_not_reconnect_at_once() {
    for ending in [Input::StreamBroken(failure(Class::Broken)), Input::StreamEnded] {
        let mut first: Vec<Duration> = (0..200)
            .map(|seed| {
                let mut bench = Bench::watching();
                bench.random = Random::seeded(seed);
                bench.pass(5 * SECOND);
                match bench.step(ending.clone()).action {
                    Action::Wait(delay) => delay,
                    other => panic!("{other:?}"),
                }
            })
            .collect();
        first.sort();
        let window = Duration::from_millis(100);
        let crowd = |start: &Duration| {
            first.iter().filter(|at| *at >= start && **at < *start + window).count()
        };
        let worst = first.iter().map(crowd).max().unwrap();
        assert!(worst <= 50, "{worst} of 200 in 100 ms after {ending:?}");
    }
}

/// R72, B247: no sequence of responses removes the delays.
#[test]
fn no_sequence_of_responses_causes_a_hot_loop() {
    use Class::*;
    let classes = [
        Refused,
        TooManyRequests,
        Expired,
        TooLarge,
        NotUnderstood,
        Unauthorized,
        Forbidden,
        NotServed,
        Broken,
        Other,
    ];
    for seed in 0..200 {
        let dice = Random::seeded(seed);
        let mut bench = Bench::new(Settings { watch_list: seed % 2 == 0, ..Settings::default() });
        bench.random = Random::seeded(seed + 1000);
        let start = bench.now;
        let mut requests = 0u32;
        let mut action = bench.step(Input::Start).action;
        for _ in 0..2000 {
            let class = classes[dice.between(0, 9) as usize];
            let step = match action {
                Action::List(_) => {
                    requests += 1;
                    match dice.between(0, 3) {
                        0 => bench.step(listed("10", dice.between(0, 1) == 0)),
                        page => bench.step(Input::ListFailed {
                            failure: failure(class),
                            later_page: page == 1,
                        }),
                    }
                }
                Action::Watch(_) => {
                    requests += 1;
                    match dice.between(0, 3) {
                        0 => bench.step(Input::OpenFailed(failure(class))),
                        1 => bench.step(in_stream(class)),
                        2 => bench.step(Input::StreamBroken(failure(Broken))),
                        _ => bench.step(Input::StreamEnded),
                    }
                }
                Action::Wait(delay) => {
                    bench.pass(delay);
                    bench.step(Input::DelayOver)
                }
                other => panic!("{other:?}"),
            };
            action = step.action;
        }
        let minutes = (bench.now - start).as_secs_f64() / 60.0;
        // At most four requests without a delay, then at least 30 s.
        assert!(f64::from(requests) < 40.0 + minutes * 10.0, "{requests} in {minutes} min");
    }
}

/// A saved state is resumed without a list.
#[test]
fn a_machine_that_knows_a_version_begins_with_a_watch() {
    let mut bench = Bench::new(Settings::default());
    bench.machine.resume_from("42".into());
    assert_watch(&bench.step(Input::Start).action, &at_least("42"), false);
    let step = bench.step(in_stream(Class::Expired));
    let next = bench.after_wait(&step);
    assert_watch(&next, &at_least("42"), true);
}
