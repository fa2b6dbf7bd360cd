//! Scenarios: the behaviour of an informer under all faults, with any source.
//!
//! Each runs with a scripted source and with a real server over HTTP. Each ends converged: store,
//! subscribers and server agree, no change was lost or delivered twice, and no buffer is filled.
//! The changes are the same in both worlds; [`DIFFERENCES`] lists exceptions.

use std::time::Duration;

use headwater_client::informer::{self, Buffer, Delays, Health, InitialRead, Subscribe};
use headwater_client::{Cached, Key, ResourceVersion};
use k8s_openapi::api::core::v1::ConfigMap;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::ledger::Ledger;
use crate::support::{PATIENCE, Running, SECOND, options};
use crate::world::{
    Asked, Begin, EXPIRED, Kind, NAMESPACE, OverHttp, Scripted, TOO_LARGE, TOO_MANY, World,
};

/// The scenarios in which the two worlds deliver different changes: none.
const DIFFERENCES: [&str; 0] = [];

/// The changes that a scenario's subscriber received.
type Story = Vec<String>;

macro_rules! scenarios {
    (in $world:ident of $type:ty: $($name:ident,)*) => {
        mod $world {
            use super::*;
            $(#[tokio::test]
            async fn $name() {
                super::$name::<$type>().await;
            })*
        }
    };
    (compared: { $($name:ident,)* } alone: { $($alone:ident,)* }) => {
        scenarios!(in scripted of Scripted: $($name,)* $($alone,)*);
        scenarios!(in over_http of OverHttp: $($name,)* $($alone,)*);

        /// The scenarios with different changes.
        async fn differing() -> Vec<&'static str> {
            let mut differing = Vec::new();
            $(
                let scripted = Box::pin($name::<Scripted>()).await;
                let over_http = Box::pin($name::<OverHttp>()).await;
                if scripted != over_http {
                    differing.push(stringify!($name));
                }
            )*
            differing
        }
    };
}

scenarios! {
    compared: {
        all_objects_come_first_and_then_every_change_once,
        a_list_in_pages_is_the_same_first_state,
        a_late_subscriber_hears_the_present_and_then_the_same_changes,
        missed_writes_are_delivered_without_a_list,
        an_object_recreated_in_a_gap_is_one_update,
        indexes_and_listers_follow_what_was_written,
        a_saved_state_needs_no_list,
        a_cut_between_frames_is_resumed,
        a_cut_in_the_middle_of_a_frame_is_resumed,
        a_restart_of_the_server_is_resumed,
        a_410_in_the_stream_causes_a_list,
        a_410_as_a_status_causes_a_list,
        a_429_is_retried_after_the_advised_time,
        a_version_that_is_too_large_for_a_watch_list_asks_for_the_newest,
        a_version_that_is_too_large_for_a_list_asks_for_the_newest,
        a_half_open_connection_is_dropped,
        a_frame_of_ten_megabytes_arrives,
        garbage_in_the_stream_is_dropped,
    }
    // A hundred thousand writes: run once per world.
    alone: {
        a_slow_subscriber_with_a_hundred_thousand_changes_delays_no_other,
    }
}

#[tokio::test]
async fn no_scenario_differs_between_script_and_server() {
    assert_eq!(differing().await, DIFFERENCES);
}

/// An informer in a world and a subscriber that checks every change.
struct Stage<W> {
    world: W,
    running: Running<ConfigMap>,
    ledger: Ledger,
    asked: watch::Receiver<Vec<Asked>>,
    /// The number of writes in the initial state.
    first: usize,
}

impl<W: World> Stage<W> {
    /// A world with these objects, and an informer that has synced.
    async fn open(names: &[&str]) -> Stage<W> {
        Stage::begin(Begin::WatchList, names, |_| {}).await
    }

    async fn begin(
        begin: Begin,
        names: &[&str],
        change: impl FnOnce(&mut informer::Options),
    ) -> Stage<W> {
        let mut world = W::open().await;
        for name in names {
            world.put(name, "first").await;
        }
        let mut options = quick();
        change(&mut options);
        let running = Running::start(world.source(begin), options);
        let ledger = Ledger::of(&running.informer, "ledger");
        running.informer.synced().await.unwrap();
        let (asked, first) = (world.asked(), world.written().len());
        let mut stage = Stage { world, running, ledger, asked, first };
        stage.settle().await;
        stage
    }

    /// Waits until subscriber and store have reached the server's version; then no buffer may be
    /// filled.
    async fn settle(&mut self) {
        let truth = self.world.truth().await;
        self.ledger.until(|book| book.is(&truth)).await;
        assert_eq!(self.ledger.book().mistakes, Vec::<String>::new());
        let snapshot = self.running.informer.snapshot();
        let stored = snapshot
            .iter()
            .map(|(key, map)| (key.name().to_owned(), map.resource_version().to_string()))
            .collect();
        assert_eq!(truth, stored, "the store is where its subscriber is");
        let dump = self.running.informer.debug_dump();
        assert_eq!(dump["queued"], 0, "{dump}");
        assert_eq!(pending(&self.running, "ledger"), 0, "{dump}");
    }

    /// Waits until converged; every write since the initial state was delivered once and in order.
    async fn settle_exactly(&mut self) -> Story {
        self.settle().await;
        let book = self.ledger.book();
        assert_eq!(book.changes(), self.world.written()[self.first..]);
        book.story()
    }

    async fn settle_folded(&mut self) -> Story {
        self.settle().await;
        self.ledger.book().story()
    }

    /// The requests after the first `count`.
    fn asked_after(&self, count: usize) -> Vec<Kind> {
        self.asked.borrow()[count..].iter().map(|asked| asked.kind).collect()
    }

    /// Waits until the informer has failed for this reason and starts its delay.
    async fn failed_with(&self, reason: &str) {
        let failed = |health: &Health| match health {
            Health::Lagging { reason: why, .. } => why.contains(reason),
            _ => false,
        };
        while !failed(&self.running.informer.health()) {
            tokio::task::yield_now().await;
        }
    }
}

/// Delays that are short enough for a test.
fn quick() -> informer::Options {
    let mut options = options("scenario");
    options.delays = Delays { first: Duration::from_millis(1), longest: Duration::from_millis(8) };
    options
}

/// Advances the clock.
async fn jump(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// The backlog of a subscriber.
fn pending(running: &Running<ConfigMap>, name: &str) -> u64 {
    let dump = running.informer.debug_dump();
    let subscribers = dump["subscribers"].as_array().unwrap();
    let named = subscribers.iter().find(|subscriber| subscriber["name"] == name);
    named.map_or(0, |subscriber| subscriber["pending"].as_u64().unwrap())
}

/// C4.1, C4.2, C13.4, C13.5
async fn all_objects_come_first_and_then_every_change_once<W: World>() -> Story {
    let mut stage = Stage::<W>::open(&["a", "b"]).await;
    stage.world.put("a", "second").await;
    stage.world.put("c", "first").await;
    stage.world.delete("b").await;
    stage.world.put("b", "again").await;
    let story = stage.settle_exactly().await;
    assert_eq!(
        story,
        ["initial a 1", "initial b 2", "updated a 3", "added c 4", "gone b", "added b 5"]
    );
    story
}

/// C2.2, C2.9, C1.13
async fn a_list_in_pages_is_the_same_first_state<W: World>() -> Story {
    let names = ["a", "b", "c", "d", "e"];
    let mut stage = Stage::<W>::begin(Begin::List, &names, |options| {
        options.page_size = Some(2);
        // A cache returns complete lists whatever the limit.
        options.initial_read = InitialRead::Consistent;
    })
    .await;
    assert_eq!(stage.asked_after(0)[..3], [Kind::List; 3]);
    stage.world.put("c", "second").await;
    let story = stage.settle_exactly().await;
    assert_eq!(story[5..], ["updated c 6"]);
    story
}

/// C13.3, C13.4
async fn a_late_subscriber_hears_the_present_and_then_the_same_changes<W: World>() -> Story {
    let mut stage = Stage::<W>::open(&["a", "b"]).await;
    stage.world.delete("a").await;
    stage.settle_exactly().await;
    let late = Ledger::of(&stage.running.informer, "late");
    stage.world.put("c", "first").await;
    stage.world.put("b", "second").await;
    stage.settle_exactly().await;
    let truth = stage.world.truth().await;
    late.until(|book| book.is(&truth)).await;
    assert_eq!(late.book().mistakes, Vec::<String>::new());
    let story = late.book().story();
    assert_eq!(story[0], "initial b 1");
    assert!(story.contains(&"updated b 3".to_owned()), "{story:?}");
    story
}

/// C5.2, C4.3
async fn missed_writes_are_delivered_without_a_list<W: World>() -> Story {
    let mut stage = Stage::<W>::open(&["a", "b"]).await;
    let before = stage.asked_after(0).len();
    stage.world.down();
    for value in ["second", "third", "fourth"] {
        stage.world.put("a", value).await;
    }
    stage.world.delete("b").await;
    stage.world.up();
    let story = stage.settle_exactly().await;
    assert!(stage.asked_after(before).iter().all(|kind| *kind == Kind::Watch));
    story
}

/// C10.10
async fn an_object_recreated_in_a_gap_is_one_update<W: World>() -> Story {
    let mut stage = Stage::<W>::open(&["a"]).await;
    stage.world.down();
    stage.world.delete("a").await;
    stage.world.put("a", "another").await;
    stage.world.forget().await;
    stage.world.up();
    let story = stage.settle_folded().await;
    assert_eq!(story, ["initial a 1", "recreated a 2"]);
    story
}

/// C10.3, C11.4, C11.21, C12.1
async fn indexes_and_listers_follow_what_was_written<W: World>() -> Story {
    let mut stage = Stage::<W>::open(&["a", "b"]).await;
    let informer = stage.running.informer.clone();
    let by_value = informer
        .index("value", |map: &ConfigMap| map.data.as_ref()?.get("value").cloned())
        .unwrap();
    assert_eq!(by_value.get("first").len(), 2);
    stage.world.put("b", "second").await;
    let written = stage.world.written().last().unwrap().version.clone().unwrap();
    informer.wait_for_rv(&ResourceVersion::new(&written), PATIENCE).await.unwrap();
    let names = |value: &str| {
        by_value.get(value).iter().map(|map| map.name().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((names("first"), names("second")), (vec!["a".into()], vec!["b".into()]));
    let found = informer.lister().get(NAMESPACE, "b").unwrap().expect("it is there");
    assert_eq!(found.resource_version().to_string(), written);
    stage.settle_exactly().await
}

/// C3.12: the saved state is the initial state, and the watch resumes at its version.
async fn a_saved_state_needs_no_list<W: World>() -> Story {
    let mut stage = Stage::<W>::open(&["a", "b"]).await;
    let saved = stage.running.informer.snapshot();
    stage.running.stopped().await;
    stage.world.put("a", "second").await;
    stage.world.delete("b").await;
    let before = stage.asked_after(0).len();

    let (informer, runner) = informer::from_source(stage.world.source(Begin::WatchList), quick());
    let objects = saved.iter().map(|(_, map)| ConfigMap::clone(map)).collect::<Vec<_>>();
    let runner = runner.resume_from(objects, saved.resource_version().unwrap().clone());
    stage.ledger = Ledger::of(&informer, "ledger");
    stage.running = Running::drive(informer, runner);
    let story = stage.settle_exactly().await;
    assert_eq!(story, ["initial a 1", "initial b 2", "updated a 3", "gone b"]);
    assert!(stage.asked_after(before).iter().all(|kind| *kind == Kind::Watch));
    story
}

/// C5.1, C5.2
async fn a_cut_between_frames_is_resumed<W: World>() -> Story {
    let mut stage = Stage::<W>::open(&["a"]).await;
    let before = stage.asked_after(0).len();
    for value in ["second", "third", "fourth"] {
        stage.world.cut();
        stage.world.put("a", value).await;
        stage.settle_exactly().await;
    }
    assert!(stage.asked_after(before).iter().all(|kind| *kind == Kind::Watch));
    stage.settle_exactly().await
}

/// C1.15, C5.1
async fn a_cut_in_the_middle_of_a_frame_is_resumed<W: World>() -> Story {
    let mut stage = Stage::<W>::open(&["a"]).await;
    let before = stage.asked_after(0).len();
    stage.world.cut_in_next_frame();
    stage.world.put("a", "the first half").await;
    stage.world.put("b", "whole").await;
    let story = stage.settle_exactly().await;
    assert_eq!(story, ["initial a 1", "updated a 2", "added b 3"]);
    assert_eq!(stage.asked_after(before), [Kind::Watch], "it was cut, and resumed");
    story
}

/// C4.7
async fn a_restart_of_the_server_is_resumed<W: World>() -> Story {
    let mut stage = Stage::<W>::open(&["a", "b"]).await;
    let before = stage.asked_after(0).len();
    stage.world.restart().await;
    stage.world.put("a", "second").await;
    stage.world.delete("b").await;
    let story = stage.settle_exactly().await;
    assert!(stage.asked_after(before).iter().all(|kind| *kind == Kind::Watch));
    story
}

/// The writes while the server is down, in the scenarios of compacted history.
async fn write_in_a_gap<W: World>(world: &mut W) {
    world.put("a", "second").await;
    world.put("a", "third").await;
    world.delete("b").await;
    world.put("c", "first").await;
}

/// The changes that a subscriber must receive when only the result is known.
const GAP: [&str; 5] = ["initial a 1", "initial b 2", "gone unseen b", "updated a 3", "added c 4"];

/// C5.1, C5.6, C10.4
async fn a_410_in_the_stream_causes_a_list<W: World>() -> Story {
    let mut stage = Stage::<W>::open(&["a", "b"]).await;
    let before = stage.asked_after(0).len();
    stage.world.down();
    write_in_a_gap(&mut stage.world).await;
    stage.world.forget().await;
    stage.world.up();
    let story = stage.settle_folded().await;
    assert_eq!(story, GAP);
    let asked = stage.asked_after(before);
    assert_eq!(asked.iter().filter(|kind| **kind == Kind::WatchList).count(), 1, "{asked:?}");
    story
}

/// C5.1
async fn a_410_as_a_status_causes_a_list<W: World>() -> Story {
    let mut stage = Stage::<W>::open(&["a", "b"]).await;
    stage.world.down();
    write_in_a_gap(&mut stage.world).await;
    stage.world.refuse(Kind::Watch, EXPIRED);
    stage.world.up();
    let story = stage.settle_folded().await;
    assert_eq!(story, GAP);
    story
}

/// C5.1, C5.7
async fn a_429_is_retried_after_the_advised_time<W: World>() -> Story {
    let mut stage = Stage::<W>::open(&["a"]).await;
    let before = stage.asked_after(0).len();
    stage.world.refuse(Kind::Watch, TOO_MANY);
    stage.world.cut();
    stage.world.put("a", "second").await;
    stage.failed_with("429").await;
    jump(40 * SECOND).await;
    let story = stage.settle_exactly().await;
    assert!(stage.asked_after(before).iter().all(|kind| *kind == Kind::Watch), "no list");
    let times: Vec<Instant> = stage.asked.borrow().iter().map(|asked| asked.at).collect();
    let waited = times[times.len() - 1] - times[times.len() - 2];
    assert!(waited >= 30 * SECOND, "it came back after {waited:?}");
    story
}

/// C2.4, C3.7
async fn a_version_that_is_too_large_for_a_watch_list_asks_for_the_newest<W: World>() -> Story {
    too_large::<W>(Begin::WatchList, Kind::WatchList).await
}

/// C2.4, C2.5
async fn a_version_that_is_too_large_for_a_list_asks_for_the_newest<W: World>() -> Story {
    too_large::<W>(Begin::List, Kind::List).await
}

async fn too_large<W: World>(begin: Begin, kind: Kind) -> Story {
    let mut stage = Stage::<W>::begin(begin, &["a", "b"], |_| {}).await;
    let before = stage.asked_after(0).len();
    stage.world.down();
    write_in_a_gap(&mut stage.world).await;
    stage.world.refuse(Kind::Watch, EXPIRED);
    stage.world.refuse(kind, TOO_LARGE);
    stage.world.up();
    let story = stage.settle_folded().await;
    assert_eq!(story, GAP);
    let asked = stage.asked_after(before);
    assert_eq!(asked.iter().filter(|asked| **asked == kind).count(), 2, "{asked:?}");
    story
}

/// C4.10
async fn a_half_open_connection_is_dropped<W: World>() -> Story {
    let mut stage = Stage::<W>::open(&["a", "b"]).await;
    let before = stage.asked_after(0).len();
    stage.world.silence();
    stage.world.put("a", "second").await;
    stage.world.delete("b").await;
    // Longer than the longest watch and its grace period.
    jump(700 * SECOND).await;
    let story = stage.settle_exactly().await;
    assert!(stage.asked_after(before).iter().all(|kind| *kind == Kind::Watch), "no list");
    story
}

/// C1.15
async fn a_frame_of_ten_megabytes_arrives<W: World>() -> Story {
    let mut stage = Stage::<W>::open(&["a", "b"]).await;
    let large = "x".repeat(10 << 20);
    stage.world.put("a", &large).await;
    stage.world.put("b", "after it").await;
    let story = stage.settle_exactly().await;
    let key = Key::new(Some(NAMESPACE), "a");
    let stored = stage.running.informer.snapshot().get(&key).cloned().unwrap();
    assert_eq!(stored.data.as_ref().unwrap()["value"].len(), large.len());
    story
}

/// C5.1
async fn garbage_in_the_stream_is_dropped<W: World>() -> Story {
    let mut stage = Stage::<W>::open(&["a"]).await;
    let before = stage.asked_after(0).len();
    stage.world.garbage();
    let mut asked = stage.asked.clone();
    asked.wait_for(|asked| asked.len() > before).await.unwrap();
    stage.world.put("a", "second").await;
    let story = stage.settle_exactly().await;
    assert!(stage.asked_after(before).iter().all(|kind| *kind == Kind::Watch), "no list");
    story
}

/// C13.10 to C13.12, C31.9
async fn a_slow_subscriber_with_a_hundred_thousand_changes_delays_no_other<W: World>() -> Story {
    const CHANGES: usize = 100_000;
    let names: Vec<String> = (0..50).map(|number| format!("map-{number:02}")).collect();
    let first: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut stage = Stage::<W>::open(&first).await;
    let informer = stage.running.informer.clone();
    let mut merging = informer.subscribe(Subscribe::named("merging")).unwrap();
    let mut lossless =
        informer.subscribe(Subscribe::named("lossless").buffer(Buffer::Lossless)).unwrap();
    for _ in 0..=names.len() {
        merging.next().await.unwrap();
        lossless.next().await.unwrap();
    }

    stage.world.churn(&names, CHANGES).await;
    // The ledger keeps up: it receives all changes although two others read nothing.
    let story = stage.settle_exactly().await;
    assert_eq!(pending(&stage.running, "merging"), names.len() as u64, "one for each object");
    assert_eq!(pending(&stage.running, "lossless"), CHANGES as u64, "as it was asked to");

    let truth = stage.world.truth().await;
    for subscription in [&mut merging, &mut lossless] {
        let mut last = std::collections::BTreeMap::new();
        while last != truth {
            let change = subscription.next().await.unwrap();
            let map = change.object().unwrap();
            last.insert(map.name().to_owned(), map.resource_version().to_string());
        }
    }
    assert_eq!(pending(&stage.running, "lossless"), 0);
    story
}
