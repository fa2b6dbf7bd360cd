//! Races between threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use headwater_api::Revision;
use headwater_api::kind::Field;
use headwater_cache::{Options, WatchStart, WatchStep};
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

/// R20, R21
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_reader_of_any_resource_ever_sees_an_older_state() {
    const RESOURCES: usize = 3;
    let pond = Arc::new(Pond::new(window(1_000)).await);
    let prefix = |n: usize| headwater_store::key::collection("", &format!("things{n}"));
    let done = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..4)
        .map(|n| {
            let (cache, done) = (pond.cache.clone(), Arc::clone(&done));
            std::thread::spawn(move || {
                let mut seen = [Revision::ZERO; RESOURCES];
                let mut applied = Revision::ZERO;
                while !done.load(Ordering::Relaxed) {
                    for (at, seen) in seen.iter_mut().enumerate() {
                        let resource = cache.resource(&prefix((at + n) % RESOURCES));
                        let snapshot = cache.snapshot(&resource);
                        // The only object counts its writes: its state belongs to the revision.
                        let object = snapshot.iter("", None).next();
                        let newest = object.map_or(Revision::ZERO, |object| object.revision());
                        assert!(snapshot.revision() >= newest);
                        assert!(snapshot.revision() >= applied, "a later read is older");
                        assert!(newest >= *seen, "{newest} after {seen}");
                        (*seen, applied) = (newest, cache.applied());
                    }
                }
            })
        })
        .collect();
    for n in 0..3_000 {
        let key = headwater_store::Key::in_collection(&prefix(n % RESOURCES), "one");
        pond.commit(&key, Some(format!(r#"{{"metadata":{{"name":"one"}},"n":{n}}}"#))).await;
    }
    pond.cache.consistent().await.unwrap();
    done.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.join().unwrap();
    }
}

/// R32, R33
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn watches_lists_and_redefinitions_in_any_order_end_when_the_cache_stops() {
    for round in 0..20_u64 {
        let wait_max = Duration::from_millis(200);
        let mut pond = Pond::new(Options { wait_max, ..window(10) }).await;
        let mut clients = tokio::task::JoinSet::new();
        for client in 0..8_u64 {
            let (cache, store) = (pond.cache.clone(), Arc::clone(&pond.store));
            clients.spawn(async move {
                let mut seed = round * 8 + client + 1;
                loop {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let resource = cache.resource(&pods());
                    match (seed >> 33) % 6 {
                        0 => {
                            let pod = pod(&format!("ns/{client}"));
                            let current = store.get(&pod.key()).await.unwrap();
                            let guard =
                                current.map_or(Guard::Absent, |was| Guard::At(was.revision));
                            let put = Action::Put { value: pod.bytes().into(), ttl: None };
                            store.commit(Write::one(pod.key(), guard, put)).await.unwrap();
                        }
                        1 => drop(cache.set_fields(&pods(), &[]).unwrap()),
                        2 if cache.consistent().await.is_err() => return,
                        3 => drop(cache.watch(&resource, &all(), WatchStart::Initial)),
                        _ => {
                            let mut watcher = cache.watch(&resource, &all(), WatchStart::Initial);
                            for _ in 0..seed % 5 {
                                let step = watcher.next().await;
                                if matches!(step, WatchStep::Stopping(_)) {
                                    return;
                                }
                                if !matches!(step, WatchStep::Initial(_) | WatchStep::Events(_)) {
                                    break;
                                }
                            }
                        }
                    }
                }
            });
        }
        for n in 0..50 {
            let pod = pod(&format!("ns/main{n}"));
            pond.commit(&pod.key(), Some(pod.bytes())).await;
        }
        pond.stop.cancel();
        let ended = tokio::time::timeout(HANG, async {
            pond.tasks.join_next().await.unwrap().unwrap().unwrap();
            while let Some(client) = clients.join_next().await {
                client.unwrap();
            }
        });
        assert!(ended.await.is_ok(), "round {round}: a client or the feed waits for ever");
        assert_eq!(pond.pods().watchers(), 0);
    }
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
