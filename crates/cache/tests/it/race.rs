//! Races between threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use headwater_api::Revision;
use headwater_api::kind::Field;
use headwater_cache::{WatchStart, WatchStep};
use headwater_store::{Action, Guard, Range, Write};

use crate::fixture::{Pond, all, pod, pods, ready, window};

/// Long enough that only a hang reaches it.
const HANG: Duration = Duration::from_secs(60);

/// R33
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_watcher_misses_the_end_of_its_resource() {
    let pond = Arc::new(Pond::new(window(10)).await);
    let done = Arc::new(AtomicBool::new(false));
    let redefining = {
        let (cache, done) = (pond.cache.clone(), Arc::clone(&done));
        std::thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                cache.set_fields(&pods(), &[]).unwrap();
            }
        })
    };
    for _ in 0..5_000 {
        let mut watcher = pond.watch(&all(), WatchStart::Now);
        let ended = tokio::time::timeout(HANG, watcher.next()).await;
        assert!(
            matches!(ended, Ok(WatchStep::Closed)),
            "a watcher waits for a view that is closed"
        );
    }
    done.store(true, Ordering::Relaxed);
    redefining.join().unwrap();
}

/// R21
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_that_received_an_event_finds_it_in_the_state() {
    let pond = Arc::new(Pond::new(window(10_000)).await);
    let writes = 3_000;
    let mut watcher = pond.watch(&all(), WatchStart::Now);
    let watching = {
        let pond = Arc::clone(&pond);
        std::thread::spawn(move || {
            let mut seen = 0;
            while seen < writes {
                let Some(WatchStep::Events(events)) = ready(&mut watcher) else { continue };
                let last = events.last().unwrap().revision();
                let snapshot = pond.cache.snapshot(&pond.pods());
                assert!(snapshot.revision() >= last, "event {last}, state {}", snapshot.revision());
                seen += events.len();
            }
        })
    };
    for n in 0..writes / 100 {
        let ops = (0..100).map(|m| {
            let pod = pod(&format!("ns/{n}-{m}"));
            headwater_store::Op {
                key: pod.key(),
                guard: headwater_store::Guard::Absent,
                action: headwater_store::Action::Put { value: pod.bytes().into(), ttl: None },
            }
        });
        pond.store.commit(headwater_store::Write { ops: ops.collect() }).await.unwrap();
    }
    tokio::task::spawn_blocking(move || watching.join().unwrap()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resource_whose_decoder_is_replaced_while_it_changes_loses_nothing() {
    let pond = Arc::new(Pond::new(window(10_000)).await);
    let done = Arc::new(AtomicBool::new(false));
    let reshaping = {
        let (cache, done) = (pond.cache.clone(), Arc::clone(&done));
        std::thread::spawn(move || {
            let fields = [Field::custom(".spec.a"), Field::custom(".spec.b")];
            for n in (0..2).cycle() {
                cache.set_fields(&pods(), &fields[n..=n]).unwrap();
                if done.load(Ordering::Relaxed) {
                    return;
                }
            }
        })
    };
    for n in 0..2_000 {
        let pod = pod(&format!("ns/{}", n % 50));
        let current = pond.store.get(&pod.key()).await.unwrap();
        let (guard, action) = match (&current, n % 3) {
            (Some(record), 0) => (Guard::At(record.revision), Action::Delete),
            (Some(record), _) => {
                (Guard::At(record.revision), Action::Put { value: pod.bytes().into(), ttl: None })
            }
            (None, _) => (Guard::Absent, Action::Put { value: pod.bytes().into(), ttl: None }),
        };
        pond.store.commit(Write::one(pod.key(), guard, action)).await.unwrap();
    }
    done.store(true, Ordering::Relaxed);
    tokio::task::spawn_blocking(move || reshaping.join().unwrap()).await.unwrap();
    pond.cache.consistent().await.unwrap();
    let held: Vec<(String, Revision)> = pond
        .cache
        .snapshot(&pond.pods())
        .iter("", None)
        .map(|object| (object.key().to_owned(), object.revision()))
        .collect();
    let range = Range { prefix: pods(), ..Range::default() };
    let records = pond.store.range(range).await.unwrap().records;
    let stored: Vec<(String, Revision)> = records
        .iter()
        .map(|record| (record.key.as_str()[pods().len()..].to_owned(), record.revision))
        .collect();
    assert_eq!(held, stored);
}
