//! Batched wake-ups of many watchers of one view.

use std::time::Duration;

use headwater_api::Revision;
use headwater_cache::{WatchStart, WatchStep, Watcher};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::fixture::{Pond, all, pod, window};

/// Enough watchers for batched wake-ups.
const WATCHERS: usize = 1_000;

/// The revisions that a watcher received, and when.
pub(crate) type Given = (Duration, Vec<Revision>);

/// The pause between two wake-ups of so many watchers.
const PAUSE: Duration = Duration::from_millis(40);

/// How long a watcher takes to forward its events. Time in these tests advances only while all
/// tasks wait.
const DELIVERY: Duration = Duration::from_millis(3);

/// Reports what a watcher receives until it ends.
async fn follow(mut watcher: Watcher, began: Instant, sender: mpsc::Sender<Given>) {
    while let WatchStep::Events(events) = watcher.next().await {
        let revisions = events.iter().map(|event| event.revision()).collect();
        sender.send((began.elapsed(), revisions)).await.unwrap();
        tokio::time::sleep(DELIVERY).await;
    }
}

/// A thousand waiting watchers.
pub(crate) async fn crowd(pond: &Pond) -> (JoinSet<()>, mpsc::Receiver<Given>) {
    let (sender, received) = mpsc::channel(WATCHERS);
    let (mut crowd, began) = (JoinSet::new(), Instant::now());
    for _ in 0..WATCHERS {
        crowd.spawn(follow(pond.watch(&all(), WatchStart::Now), began, sender.clone()));
    }
    tokio::task::yield_now().await;
    (crowd, received)
}

/// What each of them receives next.
pub(crate) async fn all_given(received: &mut mpsc::Receiver<Given>) -> Vec<Given> {
    let mut given = Vec::new();
    while given.len() < WATCHERS {
        given.push(received.recv().await.unwrap());
    }
    given
}

/// Lets all of them forward their events, so that they wait again.
pub(crate) async fn handed_on() {
    tokio::time::sleep(DELIVERY + Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn the_first_change_of_a_burst_arrives_at_once_and_the_others_together() {
    let pond = Pond::new(window(100)).await;
    let (_crowd, mut received) = crowd(&pond).await;
    let first = pond.put(&pod("ns/a")).await;
    for (after, revisions) in all_given(&mut received).await {
        assert_eq!((after, revisions), (Duration::ZERO, vec![first]));
    }
    handed_on().await;
    let rest = vec![pond.put(&pod("ns/b")).await, pond.put(&pod("ns/c")).await];
    for given in all_given(&mut received).await {
        assert_eq!(given, (PAUSE, rest.clone()));
    }
}

/// R33
#[tokio::test(start_paused = true)]
async fn a_feed_that_ends_leaves_no_watcher_waiting() {
    let mut pond = Pond::new(window(100)).await;
    let (mut crowd, mut received) = crowd(&pond).await;
    pond.put(&pod("ns/a")).await;
    all_given(&mut received).await;
    handed_on().await;
    let last = pond.put(&pod("ns/b")).await;
    pond.stop.cancel();
    for (_, revisions) in all_given(&mut received).await {
        assert_eq!(revisions, [last]);
    }
    while crowd.join_next().await.is_some() {}
    pond.tasks.join_next().await.unwrap().unwrap().unwrap();
}
