//! Threads against each other: what one thread alone cannot show.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use headwater_cache::{Start, Step};

use crate::fixture::{Pond, all, pod, pods, ready, window};

/// Generous: only a hang reaches it.
const HANG: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_watcher_sleeps_through_the_end_of_its_resource() {
    let pond = Arc::new(Pond::new(window(10)).await);
    let done = Arc::new(AtomicBool::new(false));
    let redefining = {
        let (cache, done) = (pond.cache.clone(), Arc::clone(&done));
        std::thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                cache.redefine(&pods(), &[]).unwrap();
            }
        })
    };
    for _ in 0..5_000 {
        let mut watcher = pond.watch(&all(), Start::Now);
        let ended = tokio::time::timeout(HANG, watcher.next()).await;
        assert!(matches!(ended, Ok(Step::Closed)), "a watcher waits for a view that is closed");
    }
    done.store(true, Ordering::Relaxed);
    redefining.join().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_saw_an_event_finds_it_in_the_state() {
    let pond = Arc::new(Pond::new(window(10_000)).await);
    let writes = 3_000;
    let mut watcher = pond.watch(&all(), Start::Now);
    let watching = {
        let pond = Arc::clone(&pond);
        std::thread::spawn(move || {
            let mut seen = 0;
            while seen < writes {
                let Some(Step::Events(events)) = ready(&mut watcher) else { continue };
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
