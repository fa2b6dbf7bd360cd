//! The reflector against a script: lists, watch-lists, watches, delays.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use headwater_client::informer::{Health, InitialRead, NotServed, Subscribe};
use headwater_client::script::{At, Error, Event, Page, Query, Script, Skipped, Undecodable};
use headwater_client::{Key, Metrics, ResourceVersion};
use k8s_openapi::api::core::v1::ConfigMap;
use tokio::sync::Semaphore;
use tokio::time::{Instant, advance, sleep};

use crate::support::*;

fn refused() -> Error {
    Error::Refused("scripted".into())
}

/// C2.8, C2.10, C1.4, B246
#[tokio::test(start_paused = true)]
async fn the_pages_of_a_list_are_one_replacement_at_the_first_pages_version() {
    let (script, running) = listing(options("o"));
    let (journal, _handler) = Journal::of(&running.informer);
    script.expect_list().at(At::Any).limit(Some(500)).answers_part([map("a", "1")], "10", "t1");
    script.expect_list().continues("t1").limit(Some(500)).answers_part([map("b", "2")], "11", "t2");
    script.expect_list().continues("t2").answers([map("c", "3")], "12");
    script.expect_watch().at(At::AtLeast("10".into()));
    quiet().await;
    assert_eq!(running.keys(), ["a", "b", "c"]);
    assert_eq!(running.informer.snapshot().resource_version().cloned(), Some("10".into()));
    assert_eq!(running.informer.last_rv(), Some("10".into()));
    assert_eq!(journal.take(), ["Initial(a@1)", "Initial(b@2)", "Initial(c@3)"]);
}

/// B246
#[tokio::test(start_paused = true)]
async fn a_list_whose_token_repeats_ends_and_is_listed_again() {
    let (script, running) = listing(options("o"));
    script.expect_list().answers_part([map("a", "1")], "10", "t");
    script.expect_list().continues("t").answers_part([map("b", "2")], "10", "t");
    quiet().await;
    assert_eq!((script.steps_left(), running.keys()), (0, Vec::<String>::new()));
    assert!(!running.informer.has_synced());
    script.expect_list().answers([map("c", "3")], "11");
    script.expect_watch();
    sleep(10 * SECOND).await;
    assert_eq!((script.steps_left(), running.keys()), (0, vec!["c".to_owned()]));
}

/// C2.2
#[tokio::test(start_paused = true)]
async fn a_server_that_pages_cache_reads_is_paged_later_too() {
    let (script, _running) = listing(options("o"));
    script.expect_list().at(At::Any).answers_part([map("a", "1")], "10", "t");
    script.expect_list().continues("t").answers([], "10");
    script.expect_watch().refuses(410, "Expired");
    script.expect_list().at(At::AtLeast("10".into())).limit(Some(500)).answers([], "11");
    script.expect_watch();
    sleep(10 * SECOND).await;
    assert_eq!(script.steps_left(), 0);
}

/// C2.9, C2.7
#[tokio::test(start_paused = true)]
async fn nothing_of_a_list_is_seen_before_its_last_page() {
    let (script, running) = listing(options("o"));
    let (journal, _handler) = Journal::of(&running.informer);
    script.expect_list().answers([map("old", "1")], "1");
    script.expect_watch().refuses(410, "Expired");
    quiet().await;
    journal.take();
    script.expect_list().answers_part([map("a", "2")], "2", "t");
    script.expect_list().continues("t").refuses(500, "InternalError");
    sleep(2 * SECOND).await;
    assert_eq!((running.keys(), journal.take()), (vec!["old".to_owned()], vec![]));
    script.expect_list().answers_part([map("a", "3")], "3", "t");
    script.expect_list().continues("t").refuses(410, "Expired");
    script.expect_list().at(At::AtLeast("1".into())).limit(None).answers([map("b", "4")], "4");
    script.expect_watch().at(At::AtLeast("4".into()));
    sleep(10 * SECOND).await;
    assert_eq!(running.keys(), ["b"], "the pages gathered before the expiry are dropped");
    assert_eq!(journal.take(), ["Gone(old, observed: false)", "Added(b@4)"]);
}

/// C2.13, C15.9
#[tokio::test(start_paused = true)]
async fn an_item_that_cannot_be_decoded_does_not_fail_the_list() {
    let (script, running) = listing(options("o"));
    let bad = Undecodable {
        key: Key::cluster("bad"),
        resource_version: "2".into(),
        error: "wrong type".into(),
    };
    script.expect_list().answers_page(Page {
        items: vec![map("good", "1")],
        undecodable: vec![bad.clone()],
        skipped: 0,
        resource_version: "5".into(),
        continue_token: None,
        remaining: None,
    });
    script.expect_watch();
    quiet().await;
    assert_eq!(running.keys(), ["good"]);
    assert_eq!(running.informer.undecodable(), [bad]);
    assert!(running.informer.has_synced());
}

/// C2.15
#[tokio::test(start_paused = true)]
async fn the_number_of_informers_that_fetch_initial_state_is_limited() {
    let slots = Arc::new(Semaphore::new(2));
    let mut all = Vec::new();
    for number in 0..4 {
        let mut options = options(&format!("o{number}"));
        options.fetch_slots = Some(Arc::clone(&slots));
        all.push(watch_listing(options));
        quiet().await; // so that they start in this order
    }
    let asked = |number: usize, all: &[(Script<ConfigMap>, Running<ConfigMap>)]| {
        all[number].0.requests().len()
    };
    assert_eq!([0, 1, 2, 3].map(|n| asked(n, &all)), [1, 1, 0, 0]);
    // A failure releases the slot during its delay.
    all[0].0.expect_watch_list().fails(refused());
    quiet().await;
    assert_eq!([0, 1, 2, 3].map(|n| asked(n, &all)), [1, 1, 1, 0], "in order of their start");
    // The marker releases it, although the stream continues.
    all[1].0.expect_watch_list().marker("1");
    quiet().await;
    assert_eq!([1, 2, 3].map(|n| asked(n, &all)), [1, 1, 1]);
    assert_eq!(all[1].0.open_streams(), 1);
}

/// C2.16
#[tokio::test(start_paused = true)]
async fn a_slow_list_is_logged_once_with_its_steps() {
    let (logs, _guard) = Logs::capture();
    let (script, _running) = listing(options("o"));
    quiet().await;
    advance(11 * SECOND).await;
    script.expect_list().answers([map("a", "1")], "1");
    script.expect_watch();
    quiet().await;
    let lines = logs.lines("the list was slow");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("fetched=11.") && lines[0].contains("replace="), "{lines:?}");
}

/// C2.14
#[tokio::test(start_paused = true)]
async fn a_consistent_start_asks_for_the_newest_state() {
    let mut options = options("o");
    options.initial_read = InitialRead::Consistent;
    let (script, _running) = listing(options);
    script.expect_list().at(At::Unset).limit(Some(500)).answers([], "1");
    script.expect_watch();
    quiet().await;
    assert_eq!(script.steps_left(), 0);
}

/// C3.1, C3.3, C3.6
#[tokio::test(start_paused = true)]
async fn a_watch_list_is_collected_until_the_marker_and_continues_as_the_watch() {
    let (script, running) = watch_listing(options("o"));
    let (journal, _handler) = Journal::of(&running.informer);
    let watch = script.expect_watch_list().at(At::Unset);
    watch.added(map("a", "1")).added(map("b", "2")).added(map("c", "3"));
    watch.modified(map("b", "4")).deleted(map("c", "5")).bookmark("6");
    quiet().await;
    assert_eq!(running.keys(), Vec::<String>::new());
    assert!(!running.informer.has_synced());
    watch.marker("7");
    quiet().await;
    assert_eq!(running.keys(), ["a", "b"]);
    assert_eq!(journal.take(), ["Initial(a@1)", "Initial(b@4)"]);
    watch.added(map("d", "8"));
    quiet().await;
    assert_eq!(journal.take(), ["Added(d@8)"]);
    assert_eq!(script.requests().len(), 1, "no second request");
}

/// C3.11, C3.7
#[tokio::test(start_paused = true)]
async fn an_object_of_an_abandoned_attempt_never_appears() {
    let (script, running) = watch_listing(options("o"));
    let (journal, _handler) = Journal::of(&running.informer);
    let first = script.expect_watch_list();
    first.added(map("a", "1")).added(map("b", "2"));
    first.error(429, "TooManyRequests");
    script.expect_watch_list().added(map("a", "1")).marker("12");
    sleep(5 * SECOND).await;
    assert_eq!(running.keys(), ["a"]);
    assert_eq!(journal.take(), ["Initial(a@1)"]);
}

/// C3.13
#[tokio::test(start_paused = true)]
async fn readers_keep_the_previous_state_while_a_later_watch_list_is_in_progress() {
    let (script, running) = watch_listing(options("o"));
    let first = script.expect_watch_list();
    first.added(map("a", "1")).marker("2");
    quiet().await;
    first.error(410, "Expired");
    let second = script.expect_watch_list();
    second.added(map("b", "3"));
    sleep(5 * SECOND).await;
    assert_eq!(running.keys(), ["a"]);
    second.marker("4");
    quiet().await;
    assert_eq!(running.keys(), ["b"]);
}

/// C3.10
#[tokio::test(start_paused = true)]
async fn a_watch_list_without_marker_is_logged_every_ten_seconds_and_given_up_after_sixty() {
    let (logs, _guard) = Logs::capture();
    let (script, running) = watch_listing(options("o"));
    script.expect_watch_list();
    script.expect_list().at(At::Any).answers([map("a", "1")], "1");
    script.expect_watch();
    sleep(59 * SECOND).await;
    assert_eq!(logs.lines("no initial events yet; still waiting").len(), 5);
    assert!(!running.informer.has_synced());
    sleep(2 * SECOND).await;
    assert!(running.informer.has_synced());
}

/// C1.13
#[tokio::test(start_paused = true)]
async fn a_source_without_watch_lists_is_never_asked_for_one() {
    let (script, _running) = listing(options("o"));
    for version in 1..5 {
        script.expect_list().answers([], &version.to_string());
        script.expect_watch().refuses(410, "Expired");
    }
    let _ = script.expect_list();
    sleep(60 * SECOND).await;
    assert!(script.queries().iter().all(|query| !query.contains("sendInitialEvents")));
    assert!(script.requests().len() > 8);
}

/// C4.2, C9.1, R61
#[tokio::test(start_paused = true)]
async fn events_reach_handlers_in_the_order_of_the_wire() {
    let (script, running) = listing(options("o"));
    let (journal, _handler) = Journal::of(&running.informer);
    script.expect_list().answers([map("a", "1")], "1");
    let watch = script.expect_watch();
    watch.added(map("b", "2")).modified(map("a", "3")).deleted(map("b", "4"));
    watch.added(map("b", "5")).modified(map("b", "6"));
    quiet().await;
    assert_eq!(
        journal.take(),
        [
            "Initial(a@1)",
            "Added(b@2)",
            "Updated(a@3 from 1)",
            "Gone(b, observed: true)",
            "Added(b@5)",
            "Updated(b@6 from 5)",
        ]
    );
}

/// C4.5, C10.7, C11.20
#[tokio::test(start_paused = true)]
async fn a_bookmark_moves_the_stores_version_and_reaches_no_handler() {
    let (script, running) = listing(options("o"));
    assert_eq!(
        running.informer.snapshot().resource_version().cloned(),
        None,
        "before the first state"
    );
    let (journal, _handler) = Journal::of(&running.informer);
    script.expect_list().answers([], "1");
    let watch = script.expect_watch();
    quiet().await;
    assert_eq!(running.informer.snapshot().resource_version().cloned(), Some("1".into()));
    watch.bookmark("5");
    quiet().await;
    assert_eq!(running.informer.snapshot().resource_version().cloned(), Some("5".into()));
    watch.added(map("a", "6"));
    quiet().await;
    assert_eq!(running.informer.snapshot().resource_version().cloned(), Some("6".into()));
    watch.deleted(map("a", "7"));
    quiet().await;
    assert_eq!(running.informer.snapshot().resource_version().cloned(), Some("7".into()));
    assert_eq!(journal.take(), ["Added(a@6)", "Gone(a, observed: true)"]);
}

/// C4.6, C1.12
#[tokio::test(start_paused = true)]
async fn a_skipped_event_is_counted_and_does_not_move_the_position() {
    let metrics = Metrics::new();
    let mut options = options("o");
    options.metrics = Some(metrics.clone());
    let (script, running) = listing(options);
    script.expect_list().answers([], "1");
    let watch = script.expect_watch();
    watch.event(Event::Skipped(Skipped::WrongKind("Table".into())));
    watch.event(Event::Skipped(Skipped::NoMetadata));
    quiet().await;
    assert_eq!(running.informer.last_rv(), Some("1".into()));
    let skipped = "reflector_skipped_events_total{name=\"o\",group=\"\",version=\"v1\",resource=\"configmaps\"}";
    assert_eq!(metrics.value(skipped), Some(2.0));
    assert_eq!(script.open_streams(), 1, "the stream goes on");
}

/// C4.12, C5.8, C31.2, R73
#[tokio::test(start_paused = true)]
async fn stopping_ends_a_silent_watch_and_a_delay_at_once() {
    let (script, mut running) = listing(options("watching"));
    script.expect_list().answers([], "1");
    script.expect_watch();
    quiet().await;
    assert_eq!(script.open_streams(), 1);
    let before = Instant::now();
    running.stopped().await;
    assert_eq!((before.elapsed(), script.open_streams()), (Duration::ZERO, 0));

    let (script, mut running) = listing(options("waiting"));
    for _ in 0..6 {
        script.expect_list().fails(refused());
    }
    sleep(60 * SECOND).await;
    let before = Instant::now();
    running.stopped().await;
    assert_eq!(before.elapsed(), Duration::ZERO);
}

/// C4.13, C11.24, R64, B243
#[tokio::test(start_paused = true)]
async fn versions_that_go_backwards_are_applied_counted_and_start_an_epoch() {
    let metrics = Metrics::new();
    let mut options = options("o");
    options.metrics = Some(metrics.clone());
    let (script, running) = listing(options);
    script.expect_list().answers([map("a", "100")], "100");
    let watch = script.expect_watch();
    quiet().await;
    let state = || running.informer.snapshot();
    assert_eq!(state().epoch(), 0);
    let target: ResourceVersion = "200".into();
    let waiting = running.informer.wait_for_rv(&target, 60 * SECOND);
    let restored = async {
        quiet().await;
        watch.modified(map("a", "7")); // as after a restore from a backup
        quiet().await;
    };
    let (waited, ()) = tokio::join!(waiting, restored);
    assert!(matches!(waited, Err(headwater_client::Error::EpochChanged(_))), "{waited:?}");
    assert_eq!((state().epoch(), state().resource_version()), (1, Some(&"7".into())));
    let regressions = "reflector_rv_regressions_total{name=\"o\",group=\"\",version=\"v1\",resource=\"configmaps\"}";
    assert_eq!(metrics.value(regressions), Some(1.0));
}

/// C4.14, C9.10, C9.11
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_reflector_runs_ahead_of_the_store_until_the_queue_is_full() {
    let (script, running) = listing(options("o"));
    let (release, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    running
        .informer
        .index("slow", move |map: &ConfigMap| {
            if map.metadata.name.as_deref() == Some("gate") {
                gate.lock().unwrap().recv().ok();
            }
            None::<u8>
        })
        .unwrap();
    script.expect_list().answers([], "1");
    let watch = script.expect_watch();
    watch.added(map("gate", "2"));
    for number in 3..5000 {
        watch.added(map(&format!("o{number}"), &number.to_string()));
    }
    // The store is blocked at its initial state; the reflector continues until the queue is full,
    // plus one delta that waits.
    let ahead = || running.informer.last_rv().map_or(0, |rv| rv.text().parse::<usize>().unwrap());
    while ahead() < 2000 || running.informer.snapshot().resource_version().cloned().is_none() {
        tokio::task::yield_now().await;
    }
    assert_eq!(running.informer.snapshot().resource_version().cloned(), Some("1".into()));
    assert!((2000..=3010).contains(&ahead()), "{}", ahead());
    drop(release);
    running.informer.wait_for_rv(&"4999".into(), PATIENCE).await.unwrap();
    assert_eq!(running.informer.snapshot().len(), 4998);
}

/// C5.9, C5.12, C16.1
#[tokio::test(start_paused = true)]
async fn the_error_handler_is_called_once_for_each_failed_cycle_before_the_delay() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    let mut options = options("named");
    options.on_watch_error = Some(Arc::new(move |name, _| {
        assert_eq!(name, "named");
        counter.fetch_add(1, Ordering::Relaxed);
    }));
    let (script, _running) = listing(options);
    for expected in 1..4 {
        script.expect_list().fails(refused());
        script.requested(expected).await;
        quiet().await;
        assert_eq!(calls.load(Ordering::Relaxed), expected, "before the delay is over");
    }
    script.expect_list().answers([], "1");
    let watch = script.expect_watch();
    script.requested(5).await;
    watch.ends();
    quiet().await;
    assert_eq!(calls.load(Ordering::Relaxed), 4, "a watch that ended at once is a failure too");
}

/// C5.1, C2.4
#[tokio::test(start_paused = true)]
async fn an_expired_watch_lists_at_least_the_last_version_and_falls_back_to_the_newest() {
    let (script, running) = listing(options("o"));
    script.expect_list().answers([map("a", "1")], "10");
    script.expect_watch().error(410, "Expired");
    script.expect_list().at(At::AtLeast("10".into())).refuses(410, "Expired");
    script.expect_list().at(At::Unset).answers([map("a", "1")], "20");
    script.expect_watch().at(At::AtLeast("20".into()));
    sleep(5 * SECOND).await;
    assert_eq!(script.steps_left(), 0);
    let times: Vec<Instant> = script.requests().iter().map(|request| request.at).collect();
    assert!(times[2] - times[1] >= Duration::from_millis(800), "a delay between two cycles");
    assert_eq!(times[3] - times[2], Duration::ZERO, "at once");
    assert_eq!(running.informer.health(), Health::Synced);
}

/// C5.2: with a running reflector.
#[tokio::test(start_paused = true)]
async fn resets_are_resumed_at_the_last_version_without_a_list() {
    let (script, running) = listing(options("o"));
    script.expect_list().answers([], "1");
    for version in 2..50 {
        let watch = script.expect_watch().at(At::AtLeast((&*(version - 1).to_string()).into()));
        watch.added(map(&format!("o{version}"), &version.to_string()));
        watch.breaks();
    }
    script.expect_watch();
    sleep(3600 * SECOND).await;
    assert_eq!((script.steps_left(), running.informer.snapshot().len()), (0, 48));
    let lists = script.requests().iter().filter(|r| matches!(r.query, Query::List(_))).count();
    assert_eq!(lists, 1);
}

/// C5.10, C16.2
#[tokio::test(start_paused = true)]
async fn failures_are_logged_by_class_and_not_repeatedly() {
    let (logs, _guard) = Logs::capture();
    let (script, _running) = listing(options("o"));
    for _ in 0..10 {
        script.expect_list().fails(refused());
    }
    script.expect_list().answers([], "1");
    script.expect_watch().error(410, "Expired");
    script.expect_list().answers([], "2");
    script.expect_watch().breaks();
    script.expect_watch();
    sleep(900 * SECOND).await;
    assert_eq!(script.steps_left(), 0);
    let warnings = logs.lines("list or watch failed");
    assert!((1..=2).contains(&warnings.len()), "{warnings:?}");
    assert!(warnings[0].contains("WARN"));
    assert!(logs.lines("compacted the watch position")[0].contains("DEBUG"));
    assert!(logs.lines("the watch was interrupted")[0].contains("INFO"));
    assert_eq!(logs.lines("the watch works again").len(), 3, "each end is logged once");
}

/// C6.1, C6.6
#[tokio::test(start_paused = true)]
async fn without_a_resync_period_nothing_is_delivered_again() {
    let (script, running) = listing(options("o"));
    let (journal, _handler) =
        Journal::with(&running.informer, Subscribe::named("asks").resync(10 * SECOND));
    script.expect_list().answers([map("a", "1")], "1");
    script.expect_watch();
    quiet().await;
    journal.take();
    sleep(200 * SECOND).await;
    assert_eq!(journal.take(), Vec::<String>::new());
}

/// C6.2, C6.3, C10.6
#[tokio::test(start_paused = true)]
async fn a_resync_delivers_every_object_again_without_a_request() {
    let mut options = options("o");
    options.resync = 60 * SECOND;
    let (script, running) = listing(options);
    let (journal, _handler) = Journal::of(&running.informer);
    script.expect_list().answers([map("a", "1"), map("b", "2")], "2");
    script.expect_watch();
    quiet().await;
    journal.take();
    for _ in 0..3 {
        sleep(60 * SECOND).await;
        assert_eq!(journal.take(), ["Updated(a@1 from 1)", "Updated(b@2 from 2)"]);
    }
    assert_eq!(script.requests().len(), 2);
}

/// C6.4
#[tokio::test(start_paused = true)]
async fn short_cycles_do_not_pile_up_timers() {
    let mut options = options("o");
    options.resync = 100 * SECOND;
    let (script, running) = listing(options);
    let (journal, _handler) = Journal::of(&running.informer);
    script.expect_list().answers([map("a", "1")], "1");
    for _ in 0..20 {
        script.expect_watch().bookmark("2").ends();
    }
    script.expect_watch();
    sleep(50 * SECOND).await;
    assert_eq!(script.steps_left(), 0);
    journal.take();
    sleep(100 * SECOND).await;
    assert_eq!(journal.take().len(), 1, "one timer, one resync");
}

/// C16.6
#[tokio::test(start_paused = true)]
async fn a_type_that_is_not_served_is_waited_for_or_ends_the_informer() {
    let mut awaiting = options("awaiting");
    awaiting.not_served = NotServed::AwaitDiscovery;
    let (script, running) = listing(awaiting);
    script.set_served(false);
    script.expect_list().refuses(404, "NotFound");
    sleep(600 * SECOND).await;
    assert_eq!(running.informer.health(), Health::NotServed);
    assert_eq!(script.requests().len(), 1, "only discovery is asked");
    script.expect_list().answers([], "1");
    script.expect_watch();
    script.set_served(true);
    sleep(61 * SECOND).await;
    assert_eq!(running.informer.health(), Health::Synced);

    let mut ending = options("ending");
    ending.not_served = NotServed::Stop;
    let (script, mut running) = listing(ending);
    script.expect_list().refuses(404, "NotFound");
    running.ended().await;
    assert_eq!(running.informer.health(), Health::Stopped);
}
