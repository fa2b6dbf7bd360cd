//! Shared informers: subscribers, resync, health, start and stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use headwater_client::informer::{self, Buffer, Health, Subscribe};
use headwater_client::script::{Script, StatusError, WatchStep};
use headwater_client::{Cached, Change, Error, Key, Metrics, Selector};
use k8s_openapi::api::core::v1::ConfigMap;
use tokio::sync::Notify;
use tokio::time::{Instant, advance, sleep};
use tokio_util::sync::CancellationToken;

use crate::support::*;

/// An informer that has synced with some objects, and its open watch.
async fn synced(
    options: informer::Options,
    objects: impl IntoIterator<Item = ConfigMap>,
) -> (Script<ConfigMap>, WatchStep<ConfigMap>, Running<ConfigMap>) {
    let (script, running) = listing(options);
    script.expect_list().answers(objects, "1");
    let watch = script.expect_watch();
    running.informer.synced().await.unwrap();
    (script, watch, running)
}

fn measured(name: &str) -> (informer::Options, Metrics) {
    let metrics = Metrics::new();
    let mut options = options(name);
    options.metrics = Some(metrics.clone());
    (options, metrics)
}

const LABELS: &str = "{name=\"o\",group=\"\",version=\"v1\",resource=\"configmaps\"}";

/// C10.1
#[tokio::test(start_paused = true)]
async fn an_event_of_a_known_key_is_an_update_and_of_an_unknown_one_an_add() {
    let (_script, watch, running) = synced(options("o"), [map("a", "1")]).await;
    let (journal, _handler) = Journal::of(&running.informer);
    quiet().await;
    journal.take();
    watch.added(map("a", "2")).modified(map("b", "3")); // B245: the event type is ignored
    quiet().await;
    assert_eq!(journal.take(), ["Updated(a@2 from 1)", "Added(b@3)"]);
}

/// C10.2
#[tokio::test(start_paused = true)]
async fn a_deletion_is_delivered_even_if_the_store_did_not_have_the_object() {
    let (_script, watch, running) = synced(options("o"), [map("a", "1")]).await;
    let mut changes = running.informer.subscribe(Subscribe::named("s")).unwrap();
    for _ in 0..2 {
        changes.next().await;
    }
    watch.deleted(map("a", "2")).deleted(map("unknown", "3"));
    let Some(Change::Deleted(gone)) = changes.next().await else { panic!() };
    assert_eq!((gone.key().as_str(), gone.observed()), ("a", true));
    assert_eq!(gone.last().unwrap().resource_version(), "2".into(), "the state of the event");
    let Some(Change::Deleted(gone)) = changes.next().await else { panic!() };
    assert_eq!(gone.key().as_str(), "unknown");
}

/// C10.3, R69
#[tokio::test(start_paused = true)]
async fn handlers_find_store_and_indexes_up_to_date() {
    let (_script, watch, running) = synced(options("o"), []).await;
    let index = running
        .informer
        .index("rv", |map: &ConfigMap| Some(map.resource_version().to_string()))
        .unwrap();
    let informer = running.informer.clone();
    let seen = Journal::default();
    let list = seen.clone();
    let _handler = running
        .informer
        .for_each(Subscribe::named("s"), move |change| {
            if let Change::Added { object, .. } = change {
                let state = informer.snapshot();
                assert!(state.get(&object.key()).is_some());
                assert_eq!(index.get(object.resource_version().text().as_ref()).len(), 1);
                let reached = state.resource_version().unwrap();
                assert!(reached.compare(&object.resource_version()).unwrap().is_ge());
                list.note("ok");
            }
        })
        .unwrap();
    for version in 2..50 {
        watch.added(map(&format!("o{version}"), &version.to_string()));
    }
    quiet().await;
    assert_eq!(seen.len(), 48);
}

/// C10.4, C10.5, R63
#[tokio::test(start_paused = true)]
async fn a_replacement_delivers_deletions_first_and_then_objects_in_list_order() {
    let (script, watch, running) =
        synced(options("o"), [map("a", "1"), map("b", "1"), map("c", "1")]).await;
    let informer = running.informer.clone();
    let journal = Journal::default();
    let list = journal.clone();
    let options = Subscribe::named("s").buffer(Buffer::Lossless);
    let _handler = running
        .informer
        .for_each(options, move |change| {
            let keys: Vec<String> = informer.snapshot().keys().iter().map(Key::to_string).collect();
            list.note(format!("{change:?} {}", keys.join("")));
        })
        .unwrap();
    quiet().await;
    journal.take();
    watch.error(410, "Expired");
    script.expect_list().answers([map("z", "5"), map("b", "4"), map("d", "5")], "5");
    script.expect_watch();
    sleep(5 * SECOND).await;
    assert_eq!(
        journal.take(),
        [
            "Gone(a, observed: false) bdz",
            "Gone(c, observed: false) bdz",
            "Added(z@5) bdz",
            "Updated(b@4 from 1) bdz",
            "Added(d@5) bdz",
        ]
    );
}

/// C10.8
#[tokio::test(start_paused = true)]
async fn a_batch_becomes_visible_as_one_step() {
    let (_script, watch, running) = synced(options("o"), []).await;
    let informer = running.informer.clone();
    let journal = Journal::default();
    let list = journal.clone();
    let _handler = running
        .informer
        .for_each(Subscribe::named("s").buffer(Buffer::Lossless), move |change| {
            let state = informer.snapshot();
            let version = state.resource_version().unwrap();
            list.note(format!("{change:?} of {} @{version:?}", state.len()));
        })
        .unwrap();
    for version in 2..5 {
        watch.added(map(&format!("o{version}"), &version.to_string()));
    }
    quiet().await;
    let last = journal.take().pop().unwrap();
    assert_eq!(last, "Added(o4@4) of 3 @4");
}

/// C10.9
#[tokio::test(start_paused = true)]
async fn an_object_without_a_name_is_left_out_and_the_others_are_applied() {
    let (logs, _guard) = Logs::capture();
    let nameless = |version: &str| {
        let mut map = map("x", version);
        map.metadata.name = None;
        map
    };
    let (_script, watch, running) = synced(options("o"), [nameless("1"), map("a", "1")]).await;
    watch.added(nameless("2")).added(map("b", "3"));
    quiet().await;
    assert_eq!(running.keys(), ["a", "b"]);
    assert_eq!(logs.lines("objects without a name").len(), 2);
}

/// C10.10, C10.11
#[tokio::test(start_paused = true)]
async fn an_object_that_was_recreated_in_a_gap_is_one_update_or_two_changes() {
    let (script, watch, running) = synced(options("o"), [with_uid("a", "1", "first")]).await;
    let (whole, _w) = Journal::with(&running.informer, Subscribe::named("whole"));
    let (split, _s) =
        Journal::with(&running.informer, Subscribe::named("split").split_recreate(true));
    quiet().await;
    whole.take();
    split.take();
    watch.error(410, "Expired");
    script.expect_list().answers([with_uid("a", "5", "second")], "5");
    script.expect_watch();
    sleep(5 * SECOND).await;
    assert_eq!(whole.take(), ["Updated(a@5 from 1)"]);
    assert_eq!(split.take(), ["Gone(a, observed: false)", "Added(a@5)"]);
}

/// C13.1, C13.3
#[tokio::test(start_paused = true)]
async fn many_subscribers_share_one_watch() {
    let (script, watch, running) = synced(options("o"), [map("a", "1")]).await;
    let all: Vec<_> = (0..10).map(|_| Journal::of(&running.informer)).collect();
    watch.modified(map("a", "2"));
    quiet().await;
    for (journal, _handler) in &all {
        assert_eq!(journal.take(), ["Initial(a@1)", "Updated(a@2 from 1)"]);
    }
    assert_eq!(script.requests().len(), 2);
}

/// C13.2
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn notifications_to_one_subscriber_never_overlap_and_keep_their_order() {
    let (script, running) = listing(options("o"));
    script.expect_list().answers([], "1");
    let watch = script.expect_watch();
    let busy = Arc::new(AtomicBool::new(false));
    let last = Arc::new(AtomicUsize::new(0));
    let (guard, order) = (Arc::clone(&busy), Arc::clone(&last));
    let _handler = running
        .informer
        .for_each_async(Subscribe::named("s").buffer(Buffer::Lossless), move |change| {
            let (guard, order) = (Arc::clone(&guard), Arc::clone(&order));
            async move {
                assert!(!guard.swap(true, Ordering::SeqCst), "two at once");
                let version = change.object().unwrap().resource_version().text().parse().unwrap();
                tokio::task::yield_now().await;
                assert!(order.swap(version, Ordering::SeqCst) < version, "out of order");
                guard.store(false, Ordering::SeqCst);
            }
        })
        .unwrap();
    for version in 2..1000 {
        watch.modified(map(&format!("o{}", version % 7), &version.to_string()));
    }
    while last.load(Ordering::SeqCst) < 999 {
        tokio::task::yield_now().await;
    }
}

/// C13.4, C13.5
#[tokio::test(start_paused = true)]
async fn a_late_subscriber_receives_all_objects_and_then_every_change() {
    let (script, running) = listing(options("o"));
    let (early, _e) = Journal::of(&running.informer);
    script.expect_list().answers([map("a", "1"), map("b", "1")], "1");
    let watch = script.expect_watch();
    watch.modified(map("a", "2"));
    quiet().await;
    assert_eq!(early.take(), ["Initial(a@1)", "Initial(b@1)", "Updated(a@2 from 1)"]);
    let (late, _l) = Journal::of(&running.informer);
    watch.added(map("c", "3"));
    quiet().await;
    assert_eq!(late.take(), ["Initial(a@2)", "Initial(b@1)", "Added(c@3)"]);
    assert_eq!(early.take(), ["Added(c@3)"]);
}

/// C13.4: without gaps or duplicates, whenever a subscriber joins.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn subscribers_that_join_at_any_time_converge_to_the_store() {
    let (script, running) = listing(options("o"));
    script.expect_list().answers((0..100).map(|n| map(&format!("o{n}"), "1")), "1");
    let watch = script.expect_watch();
    running.informer.synced().await.unwrap();
    let mut joined = Vec::new();
    for version in 2..600u32 {
        let name = format!("o{}", version % 150);
        match version % 5 {
            0 => watch.deleted(map(&name, &version.to_string())),
            _ => watch.modified(map(&name, &version.to_string())),
        };
        if version % 20 == 0 {
            let folded = Arc::new(std::sync::Mutex::new(std::collections::BTreeMap::new()));
            let fold = Arc::clone(&folded);
            let handler = running.informer.for_each(Subscribe::named("s"), move |change| {
                let mut folded = fold.lock().unwrap();
                match change {
                    Change::Added { object, .. } => {
                        let before = folded.insert(object.key(), object.resource_version());
                        assert!(before.is_none(), "journal twice: {object:?}");
                    }
                    Change::Updated { new, .. } => {
                        assert!(folded.insert(new.key(), new.resource_version()).is_some());
                    }
                    Change::Deleted(gone) => drop(folded.remove(gone.key())),
                    Change::Synced => {}
                }
            });
            joined.push((folded, handler.unwrap()));
        }
        tokio::task::yield_now().await;
    }
    running.informer.wait_for_rv(&"599".into(), PATIENCE).await.unwrap();
    let expected: Vec<_> = running
        .informer
        .snapshot()
        .list()
        .iter()
        .map(|o| (o.key(), o.resource_version()))
        .collect();
    for (folded, _) in &joined {
        loop {
            let state: Vec<_> = folded.lock().unwrap().clone().into_iter().collect();
            if state == expected {
                break; // the last callback may still be running
            }
            tokio::task::yield_now().await;
        }
    }
}

/// C13.6, C13.7, R67
#[tokio::test(start_paused = true)]
async fn a_subscriber_is_synced_when_its_last_initial_add_has_returned() {
    let (script, running) = listing(options("o"));
    let gate = Arc::new(Notify::new());
    let hold = Arc::clone(&gate);
    let handler = running
        .informer
        .for_each_async(Subscribe::named("slow"), move |_| {
            let hold = Arc::clone(&hold);
            async move { hold.notified().await }
        })
        .unwrap();
    script.expect_list().answers([map("a", "1"), map("b", "1")], "1");
    script.expect_watch();
    quiet().await;
    assert!(running.informer.has_synced(), "the store is complete");
    assert!(!handler.has_synced(), "the subscriber is not");
    gate.notify_one();
    quiet().await;
    assert!(!handler.has_synced(), "the second is still running");
    assert!(handler.synced().now_or_never().is_none());
    gate.notify_one();
    handler.synced().await.unwrap();
}

/// C13.8, C31.5
#[tokio::test(start_paused = true)]
async fn waiting_for_sync_can_be_cancelled_and_repeated() {
    let (script, mut running) = listing(options("o"));
    for _ in 0..3 {
        assert!(running.informer.synced().now_or_never().is_none());
    }
    let informer = running.informer.clone();
    script.expect_list().answers([], "1");
    script.expect_watch();
    informer.synced().await.unwrap();
    let (_told, handler) = Journal::of(&informer);
    handler.synced().await.unwrap();
    running.stopped().await;
    informer.synced().await.unwrap();

    let (_script, mut never) = listing(options("never"));
    let informer = never.informer.clone();
    let (_told, handler) = Journal::of(&informer);
    let (synced, handled, _) =
        tokio::join!(informer.synced(), handler.synced(), async { never.stopped().await });
    assert!(matches!(synced, Err(Error::NotSynced { informer, .. }) if informer == "never"));
    assert!(matches!(handled, Err(Error::Stopped(_))));
}

/// C13.9
#[tokio::test(start_paused = true)]
async fn a_stream_receives_a_marker_after_the_initial_state() {
    let (script, running) = listing(options("o"));
    let changes = running.informer.subscribe(Subscribe::named("s")).unwrap();
    script.expect_list().answers([map("a", "1"), map("b", "1")], "1");
    let watch = script.expect_watch();
    watch.modified(map("a", "2")).added(map("c", "3"));
    quiet().await;
    let journal: Vec<String> = changes.take(4).map(|change| format!("{change:?}")).collect().await;
    // The update was merged into the add that was still pending.
    assert_eq!(journal, ["Initial(a@2)", "Initial(b@1)", "Synced", "Added(c@3)"]);
    let (script, empty) = listing(options("empty"));
    let mut changes = empty.informer.subscribe(Subscribe::named("s")).unwrap();
    script.expect_list().answers([], "1");
    script.expect_watch();
    assert!(matches!(changes.next().await, Some(Change::Synced)));
}

/// C13.10, R68
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_subscriber_that_never_returns_delays_no_other() {
    let (script, running) = listing(options("o"));
    script.expect_list().answers([], "1");
    let watch = script.expect_watch();
    let _stuck = running
        .informer
        .for_each_async(Subscribe::named("stuck"), |_| std::future::pending())
        .unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&count);
    let _quick = running
        .informer
        .for_each(Subscribe::named("quick").buffer(Buffer::Lossless), move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
    for version in 0..100_000 {
        watch.modified(map(&format!("o{}", version % 100), &(version + 2).to_string()));
    }
    running.informer.wait_for_rv(&"100001".into(), PATIENCE).await.unwrap();
    while count.load(Ordering::Relaxed) < 100_000 {
        tokio::task::yield_now().await;
    }
}

/// C13.12: 100,000 pending changes are one entry per object.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_slow_subscriber_with_a_hundred_thousand_changes_stores_one_per_object() {
    let (script, running) = listing(options("o"));
    script.expect_list().answers([], "1");
    let watch = script.expect_watch();
    let mut slow = running.informer.subscribe(Subscribe::named("slow")).unwrap();
    for version in 0..100_000 {
        watch.modified(map(&format!("o{}", version % 100), &(version + 2).to_string()));
    }
    running.informer.wait_for_rv(&"100001".into(), PATIENCE).await.unwrap();
    let pending = running.informer.debug_dump()["subscribers"][0]["pending"].as_u64().unwrap();
    assert_eq!(pending, 100);
    assert!(matches!(slow.next().await, Some(Change::Synced)));
    for _ in 0..100 {
        let Some(Change::Added { object, .. }) = slow.next().await else { panic!() };
        let stored = running.informer.snapshot().get(&object.key()).cloned().unwrap();
        assert_eq!(object.resource_version(), stored.resource_version(), "the newest");
    }
}

/// C13.14, C30.6
#[tokio::test(start_paused = true)]
async fn the_backlog_of_a_subscriber_is_exported_under_its_name() {
    let (options, metrics) = measured("o");
    let (_script, watch, running) = synced(options, []).await;
    let gate = Arc::new(Notify::new());
    let hold = Arc::clone(&gate);
    let _handler = running
        .informer
        .for_each_async(Subscribe::named("h").buffer(Buffer::Lossless), move |_| {
            let hold = Arc::clone(&hold);
            async move { hold.notified().await }
        })
        .unwrap();
    for version in 2..7 {
        watch.modified(map("a", &version.to_string()));
    }
    quiet().await;
    advance(3 * SECOND).await;
    let value = |name: &str| metrics.value(&format!("{name}{{name=\"o\",handler=\"h\"}}"));
    assert_eq!(value("informer_subscriber_backlog"), Some(4.0));
    let age = value("informer_subscriber_backlog_age_seconds").unwrap();
    assert!((3.0..3.1).contains(&age), "{age}");
    gate.notify_one();
    quiet().await;
    assert_eq!(value("informer_subscriber_handling_seconds_count"), Some(1.0));
    assert!(value("informer_propagation_seconds_sum").unwrap() >= 3.0);
}

/// C13.16
#[tokio::test(start_paused = true)]
async fn a_handler_is_removed_once() {
    let (_script, watch, running) = synced(options("o"), []).await;
    let (journal, handler) = Journal::of(&running.informer);
    handler.unsubscribe().await;
    handler.unsubscribe().await;
    watch.added(map("a", "2"));
    quiet().await;
    assert_eq!(journal.take(), Vec::<String>::new());
}

/// C13.17, C31.3
#[tokio::test(start_paused = true)]
async fn unsubscribing_waits_for_the_running_callback_and_none_follows() {
    let (_script, watch, running) = synced(options("o"), []).await;
    let gate = Arc::new(Notify::new());
    let calls = Arc::new(AtomicUsize::new(0));
    let (hold, count) = (Arc::clone(&gate), Arc::clone(&calls));
    let start = || {
        let (hold, count) = (Arc::clone(&hold), Arc::clone(&count));
        running
            .informer
            .for_each_async(Subscribe::named("h"), move |_| {
                count.fetch_add(1, Ordering::Relaxed);
                let hold = Arc::clone(&hold);
                async move { hold.notified().await }
            })
            .unwrap()
    };
    let handler = start();
    watch.added(map("a", "2")).added(map("b", "3"));
    quiet().await;
    let mut leaving = Box::pin(handler.unsubscribe());
    assert!(leaving.as_mut().now_or_never().is_none(), "a callback is running");
    gate.notify_one();
    leaving.await;
    quiet().await;
    assert_eq!(calls.load(Ordering::Relaxed), 1, "b was never journal");
    let dropped = start();
    quiet().await;
    let before = calls.load(Ordering::Relaxed);
    drop(dropped); // returns at once, although its callback hangs
    gate.notify_waiters();
    watch.added(map("c", "4"));
    quiet().await;
    assert_eq!(calls.load(Ordering::Relaxed), before);
}

/// C13.18
#[tokio::test(start_paused = true)]
async fn subscribing_to_a_stopped_informer_is_an_error() {
    let (_script, _watch, mut running) = synced(options("o"), []).await;
    running.stopped().await;
    assert!(matches!(running.informer.subscribe(Subscribe::named("s")), Err(Error::Stopped(_))));
    assert!(matches!(
        running.informer.for_each(Subscribe::named("s"), |_| ()),
        Err(Error::Stopped(_))
    ));
}

/// C13.19, C31.8, R68
#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_is_logged_and_called_again() {
    let (logs, _guard) = Logs::capture();
    let (options, metrics) = measured("o");
    let (_script, watch, running) = synced(options, []).await;
    let journal = Journal::default();
    let (list, asynchronous) = (journal.clone(), journal.clone());
    let _blocking = running
        .informer
        .for_each(Subscribe::named("b").buffer(Buffer::Lossless), move |change| {
            assert!(change.object().unwrap().name() != "bad", "blocking");
            list.push(&change);
        })
        .unwrap();
    let _asynchronous = running
        .informer
        .for_each_async(Subscribe::named("a").buffer(Buffer::Lossless), move |change| {
            let list = asynchronous.clone();
            async move {
                assert!(change.object().unwrap().name() != "bad", "asynchronous");
                list.push(&change);
            }
        })
        .unwrap();
    watch.added(map("bad", "2")).added(map("good", "3"));
    quiet().await;
    assert_eq!(journal.take(), ["Added(good@3)", "Added(good@3)"]);
    let lines = logs.lines("a handler panicked");
    assert_eq!(lines.len(), 2);
    assert!(lines.iter().all(|line| line.contains("key=bad")), "{lines:?}");
    assert_eq!(
        metrics.value("informer_subscriber_panics_total{name=\"o\",handler=\"b\"}"),
        Some(1.0)
    );
}

/// C13.21
#[tokio::test(start_paused = true)]
async fn a_synchronous_handler_that_blocks_is_logged_once_a_minute() {
    let (logs, _guard) = Logs::capture();
    let (_script, watch, running) = synced(options("o"), []).await;
    let done = Arc::new(Notify::new());
    let signal = Arc::clone(&done);
    let _handler = running
        .informer
        .for_each(Subscribe::named("blocks"), move |_| {
            advance(Duration::from_millis(120)).now_or_never(); // the clock advances meanwhile
            signal.notify_one();
        })
        .unwrap();
    for version in 2..4 {
        watch.added(map(&format!("o{version}"), &version.to_string()));
        done.notified().await;
    }
    tokio::task::yield_now().await;
    assert_eq!(logs.lines("blocks its thread").len(), 1);
}

/// C14.1, C14.5
#[tokio::test(start_paused = true)]
async fn each_subscriber_is_resynced_in_its_own_period() {
    let mut options = options("o");
    options.resync = 10 * SECOND;
    let (script, running) = listing(options);
    let (default, _d) = Journal::with(&running.informer, Subscribe::named("default"));
    let (slow, _s) = Journal::with(&running.informer, Subscribe::named("slow").resync(30 * SECOND));
    let (never, _n) =
        Journal::with(&running.informer, Subscribe::named("never").resync(Duration::ZERO));
    script.expect_list().answers([map("a", "1")], "1");
    script.expect_watch();
    sleep(5 * SECOND).await;
    for journal in [&default, &slow, &never] {
        assert_eq!(journal.take(), ["Initial(a@1)"]);
    }
    sleep(60 * SECOND).await;
    let counts = [default.len(), slow.len(), never.len()];
    assert_eq!(counts, [6, 2, 0]);
    assert_eq!(default.take()[0], "Updated(a@1 from 1)");
}

/// C14.2
#[tokio::test(start_paused = true)]
async fn a_period_below_a_second_is_a_second() {
    let mut options = options("o");
    options.resync = Duration::from_millis(1);
    let (script, running) = listing(options);
    let (journal, _handler) =
        Journal::with(&running.informer, Subscribe::named("t").resync(Duration::from_millis(1)));
    script.expect_list().answers([map("a", "1")], "1");
    script.expect_watch();
    quiet().await;
    journal.take();
    sleep(10 * SECOND).await;
    assert!((9..=11).contains(&journal.len()), "{}", journal.len());
}

/// C14.3, C14.4
#[tokio::test(start_paused = true)]
async fn later_resync_periods_are_at_least_the_shortest_before_the_start() {
    let (logs, _guard) = Logs::capture();
    let mut options = options("o");
    options.resync = 60 * SECOND;
    let (script, source) = Script::new();
    let (informer, runner) = informer::from_source(Arc::new(source.without_watch_list()), options);
    let (early, _e) = Journal::with(&informer, Subscribe::named("early").resync(20 * SECOND));
    let running = Running::drive(informer, runner);
    script.expect_list().answers([map("a", "1")], "1");
    script.expect_watch();
    quiet().await;
    let (late, _l) = Journal::with(&running.informer, Subscribe::named("late").resync(5 * SECOND));
    quiet().await;
    early.take();
    late.take();
    sleep(60 * SECOND).await;
    assert_eq!(early.len(), 3);
    assert_eq!(late.len(), 2, "5 s was raised to 20 s, counted from when it joined");
    assert_eq!(logs.lines("a period shorter than the informer's").len(), 1);
}

/// C14.6, C14.7
#[tokio::test(start_paused = true)]
async fn an_unchanged_relist_is_delivered_only_to_subscribers_that_are_due() {
    let mut options = options("o");
    options.resync = 100 * SECOND;
    let (script, running) = listing(options);
    let never = || Subscribe::named("never").resync(Duration::ZERO);
    let (first, _f) = Journal::with(&running.informer, never());
    let (quiet_one, _q) = Journal::with(&running.informer, never().suppress_unchanged(true));
    script.expect_list().answers([map("a", "1")], "1");
    let watch = script.expect_watch();
    quiet().await;
    first.take();
    quiet_one.take();
    watch.error(410, "Expired");
    script.expect_list().answers([map("a", "1")], "2");
    let watch = script.expect_watch();
    sleep(5 * SECOND).await;
    assert_eq!(first.take(), ["Updated(a@1 from 1)"], "before the first check everybody is due");
    assert_eq!(quiet_one.take(), Vec::<String>::new());
    sleep(100 * SECOND).await;
    watch.error(410, "Expired");
    script.expect_list().answers([map("a", "1")], "3");
    script.expect_watch();
    sleep(20 * SECOND).await;
    assert_eq!(first.take(), Vec::<String>::new(), "after it, only who has a period");
}

/// C14.8
#[tokio::test(start_paused = true)]
async fn a_live_change_waits_for_at_most_one_slice_of_a_resync() {
    let mut options = options("o");
    options.resync = 60 * SECOND;
    let (script, running) = listing(options);
    script.expect_list().answers((0..10_000).map(|n| map(&format!("o{n:05}"), "1")), "1");
    let watch = script.expect_watch();
    running.informer.synced().await.unwrap();
    let (journal, handler) = Journal::of(&running.informer);
    handler.synced().await.unwrap();
    journal.take();
    // The change is pending when the resync starts.
    sleep(60 * SECOND - Duration::from_millis(1)).await;
    watch.modified(map("o09999", "2"));
    sleep(SECOND).await;
    let all = journal.take();
    let place = all.iter().position(|text| text == "Updated(o09999@2 from 1)").unwrap();
    assert!(place <= 1000, "after {place} objects");
    assert!(all.len() >= 10_000);
}

/// C15.9
#[tokio::test(start_paused = true)]
async fn an_undecodable_object_is_removed_and_added_again_once_it_decodes() {
    let (options, metrics) = measured("o");
    let (_script, watch, running) = synced(options, [map("a", "1"), map("b", "1")]).await;
    let (journal, _handler) = Journal::of(&running.informer);
    quiet().await;
    journal.take();
    watch.undecodable("a", "2").undecodable("unknown", "3").modified(map("b", "4"));
    quiet().await;
    assert_eq!(journal.take(), ["Gone(a, observed: false)", "Updated(b@4 from 1)"]);
    assert_eq!(running.keys(), ["b"]);
    let keys: Vec<String> =
        running.informer.undecodable().iter().map(|bad| bad.key.to_string()).collect();
    assert_eq!(keys, ["a", "unknown"]);
    assert_eq!(running.informer.snapshot().resource_version().cloned(), Some("4".into()));
    assert_eq!(metrics.value(&format!("informer_undecodable_objects_total{LABELS}")), Some(2.0));
    watch.modified(map("a", "5")).deleted(map("unknown", "6"));
    quiet().await;
    assert_eq!(journal.take(), ["Added(a@5)", "Gone(unknown, observed: true)"]);
    assert_eq!(running.informer.undecodable().len(), 0);
}

/// C15.9 for a watch-list
#[tokio::test(start_paused = true)]
async fn undecodable_initial_events_are_isolated_too() {
    let (script, running) = watch_listing(options("o"));
    let watch = script.expect_watch_list();
    watch.added(map("a", "1")).undecodable("b", "2").undecodable("c", "3").modified(map("c", "4"));
    watch.marker("5");
    quiet().await;
    assert_eq!(running.keys(), ["a", "c"]);
    assert_eq!(running.informer.undecodable().len(), 1);
}

/// C16.3, C31.1
#[tokio::test(start_paused = true)]
async fn an_informer_makes_progress_only_while_it_is_run() {
    let (script, source) = Script::<ConfigMap>::new();
    let (informer, runner) =
        informer::from_source(Arc::new(source.without_watch_list()), options("o"));
    script.expect_list().answers([map("a", "1")], "1");
    sleep(60 * SECOND).await;
    assert!(informer.lister().list(&Selector::everything()).is_err());
    assert_eq!(script.requests().len(), 0, "reading drives nothing");
    // `run` takes the runner by value: a second run does not compile.
    let stop = CancellationToken::new();
    stop.cancel();
    runner.run(stop).await;
    assert_eq!(informer.health(), Health::Stopped);
}

/// C16.4, C31.2
#[tokio::test(start_paused = true)]
async fn after_run_has_returned_no_task_is_running() {
    let before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let (script, watch, mut running) = synced(options("o"), [map("a", "1")]).await;
    let (journal, handler) = Journal::of(&running.informer);
    watch.added(map("b", "2"));
    quiet().await;
    let during = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert!(during > before + 2, "reflector, consumer, handler");
    running.stopped().await;
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), before);
    assert_eq!(script.open_streams(), 0);
    assert_eq!(journal.len(), 2);
    assert!(handler.synced().await.is_ok(), "it had synced before the end");
}

/// C16.4: dropping the future stops it too.
#[tokio::test(start_paused = true)]
async fn dropping_the_run_future_stops_all_tasks() {
    let (script, source) = Script::<ConfigMap>::new();
    let (informer, runner) =
        informer::from_source(Arc::new(source.without_watch_list()), options("o"));
    script.expect_list().answers([map("a", "1")], "1");
    script.expect_watch();
    let (_told, _handler) = Journal::of(&informer);
    let mut run = Box::pin(runner.run(CancellationToken::new()));
    let synced = tokio::select! {
        biased;
        synced = informer.synced() => synced,
        ran = &mut run => panic!("{ran:?}"),
    };
    synced.unwrap();
    drop(run);
    tokio::task::yield_now().await;
    quiet().await;
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
    assert_eq!((informer.health(), script.open_streams()), (Health::Stopped, 0));
}

/// C16.5
#[tokio::test(start_paused = true)]
async fn health_shows_the_state_of_the_informer() {
    let (script, mut running) = listing(options("o"));
    let health = |running: &Running<ConfigMap>| running.informer.health();
    assert_eq!(health(&running), Health::Starting);
    for (code, expected) in
        [(401, Health::Unauthorized), (403, Health::Forbidden), (404, Health::NotServed)]
    {
        script.expect_list().refuses(code, "x");
        script.requested(script.requests().len() + usize::from(code != 401)).await;
        quiet().await;
        assert_eq!(health(&running), expected);
        sleep(100 * SECOND).await;
    }
    script.expect_list().answers([], "1");
    let watch = script.expect_watch();
    quiet().await;
    assert_eq!(health(&running), Health::Synced);
    watch.breaks();
    quiet().await;
    let Health::Lagging { reason, since } = health(&running) else {
        panic!("{}", health(&running))
    };
    assert!(reason.contains("cut off"), "{reason}");
    assert!(since.elapsed() < SECOND);
    let next = script.expect_watch();
    sleep(60 * SECOND).await;
    assert_eq!(health(&running), Health::Synced);
    next.bookmark("3");
    running.stopped().await;
    assert_eq!(health(&running), Health::Stopped);
}

/// C16.7
#[tokio::test(start_paused = true)]
async fn waiting_for_sync_can_fail_early_if_it_cannot_succeed() {
    for (code, expected) in [(403, Health::Forbidden), (404, Health::NotServed)] {
        let (script, running) = listing(options("o"));
        script.expect_list().refuses(code, "x");
        let result = running.informer.synced_or_hopeless().await;
        assert!(matches!(result, Err(Error::NotSynced { health, .. }) if health == expected));
        assert!(running.informer.synced().now_or_never().is_none(), "the other goes on waiting");
    }
}

/// C16.8
#[tokio::test(start_paused = true)]
async fn freshness_is_the_time_since_the_last_frame() {
    let (_script, watch, running) = synced(options("o"), []).await;
    sleep(30 * SECOND).await;
    assert_eq!(running.informer.freshness().unwrap().as_secs(), 30);
    watch.bookmark("2");
    quiet().await;
    assert!(running.informer.freshness().unwrap() < SECOND);
}

/// C16.9, C16.10
#[tokio::test(start_paused = true)]
async fn pending_changes_are_dropped_at_stop_unless_drain_is_set() {
    for (drain, expected) in [(None, 1), (Some(60 * SECOND), 5), (Some(5 * SECOND / 2), 2)] {
        let mut options = options("o");
        options.drain = drain;
        let (_script, watch, mut running) = synced(options, []).await;
        let journal = Journal::default();
        let list = journal.clone();
        let _handler = running
            .informer
            .for_each_async(Subscribe::named("slow").buffer(Buffer::Lossless), move |change| {
                let list = list.clone();
                async move {
                    sleep(SECOND).await;
                    list.push(&change);
                }
            })
            .unwrap();
        for version in 2..7 {
            watch.added(map(&format!("o{version}"), &version.to_string()));
        }
        quiet().await;
        running.stopped().await;
        assert_eq!(journal.len(), expected, "{drain:?}");
    }
}

/// C30.1, C30.2, C30.3
#[tokio::test(start_paused = true)]
async fn an_informer_exports_metrics_until_it_is_dropped() {
    let (options, metrics) = measured("o");
    let (script, watch, mut running) = synced(options, [map("a", "1")]).await;
    watch.modified(map("a", "2")).bookmark("123456789012345678");
    watch.error(410, "Expired");
    script.expect_list().answers([map("a", "2")], "223456789012345678");
    script.expect_watch();
    sleep(5 * SECOND).await;
    let value = |name: &str| metrics.value(&format!("{name}{LABELS}"));
    assert_eq!(value("informer_store_resource_version"), Some(456789012345678.0));
    assert_eq!(value("informer_queued_items"), Some(0.0));
    assert_eq!(value("informer_store_objects"), Some(1.0));
    assert!(value("informer_store_bytes").unwrap() > 100.0);
    assert!(value("informer_processing_latency_seconds_count").unwrap() >= 4.0);
    assert_eq!(value("reflector_watches_total"), Some(2.0));
    assert_eq!(value("reflector_items_per_list"), Some(1.0));
    let labelled = |name: &str, more: &str| {
        metrics.value(&format!("{name}{},{more}}}", LABELS.trim_end_matches('}')))
    };
    assert_eq!(labelled("reflector_lists_total", "outcome=\"ok\",at=\"any\""), Some(1.0));
    assert_eq!(labelled("reflector_lists_total", "outcome=\"ok\",at=\"at_least\""), Some(1.0));
    assert_eq!(labelled("reflector_events_total", "type=\"MODIFIED\""), Some(1.0));
    assert_eq!(labelled("reflector_events_total", "type=\"BOOKMARK\""), Some(1.0));
    assert_eq!(labelled("reflector_relists_total", "reason=\"expired\""), Some(1.0));
    assert_eq!(labelled("reflector_watch_duration_seconds_count", "end=\"error\""), Some(1.0));
    running.stopped().await;
    drop(running);
    assert_eq!(metrics.render(), "", "series go with their informer");
}

/// C30.4
#[tokio::test(start_paused = true)]
async fn an_informer_dumps_its_state_as_json() {
    let (_script, _watch, running) = synced(options("o"), [map("a", "1")]).await;
    let (_told, _handler) = Journal::of(&running.informer);
    let dump = running.informer.debug_dump();
    assert_eq!(dump["objects"], 1);
    assert_eq!(dump["resourceVersion"], "1");
    assert_eq!(dump["health"], "synced");
    assert_eq!(dump["subscribers"][0]["name"], "journal");
    assert!(dump["options"].as_str().unwrap().contains("configmaps"));
}

/// C30.5
#[tokio::test(start_paused = true)]
async fn lists_and_watches_run_in_spans() {
    let (logs, _guard) = Logs::capture();
    let (script, _running) = listing(options("spanned"));
    script.expect_list().answers([], "1");
    let watch = script.expect_watch();
    quiet().await;
    watch.event(headwater_client::script::Event::Skipped(
        headwater_client::script::Skipped::NoMetadata,
    ));
    quiet().await;
    let lines = logs.lines("skipped an event");
    assert!(lines[0].contains("watch{informer=\"spanned\"}"), "{lines:?}");
}

/// C28.4
#[tokio::test(start_paused = true)]
async fn waiting_for_an_object_checks_first_and_misses_no_change() {
    let (_script, watch, running) = synced(options("o"), [map("a", "1")]).await;
    let key = Key::cluster("a");
    let found = running.informer.wait_for(&key, |map| map.is_some(), SECOND).await.unwrap();
    assert_eq!(found.unwrap().resource_version(), "1".into());
    let newer =
        |map: Option<&ConfigMap>| map.is_some_and(|map| map.resource_version() == "2".into());
    let (found, ()) = tokio::join!(running.informer.wait_for(&key, newer, 60 * SECOND), async {
        quiet().await;
        watch.modified(map("a", "2"));
    });
    assert!(found.unwrap().is_some());
    let (gone, ()) =
        tokio::join!(running.informer.wait_for(&key, |map| map.is_none(), 60 * SECOND), async {
            quiet().await;
            watch.deleted(map("a", "3"));
        });
    assert!(gone.unwrap().is_none());
    let before = Instant::now();
    let late = running.informer.wait_for(&key, |map| map.is_some(), 7 * SECOND).await;
    assert!(matches!(late, Err(Error::Timeout { .. })));
    assert_eq!(before.elapsed(), 7 * SECOND);
}

/// C5.7: the advice of a 429, with a running reflector.
#[tokio::test(start_paused = true)]
async fn a_429_is_retried_at_the_same_version_after_the_advised_time() {
    let (script, _watch, _running) = {
        let (script, watch, running) = synced(options("o"), []).await;
        watch.ends();
        (script, watch, running)
    };
    let advice = StatusError {
        retry_after: Some(20 * SECOND),
        ..StatusError::new(429, "TooManyRequests", "later")
    };
    script.expect_watch().fails(headwater_client::script::Error::Status(advice));
    script.expect_watch();
    sleep(60 * SECOND).await;
    let times: Vec<Instant> = script.requests().iter().map(|request| request.at).collect();
    let waited = times[3] - times[2];
    assert!((20 * SECOND..=22 * SECOND).contains(&waited), "{waited:?}");
}
