//! The cache over a store that hangs, ends its watches, compacts, goes back or skips a change.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use futures::StreamExt;
use headwater_api::Revision;
use headwater_cache::{ObjectDecoder, StoredTransform, WatchStart, WatchStep};
use headwater_store::{
    ChangeStream, Committed, Error, Key, Memory, Range, RangePage, Record, Store, StoreCondition,
    Write,
};

use crate::fixture::{Pond, all, describe, events, pod, pods, step, window};
use crate::wakeup::{all_given, crowd, handed_on};

/// A store that can be replaced while it is used, and whose watches can be disturbed.
struct Troubled {
    inner: ArcSwap<Memory>,
    watches: AtomicUsize,
    mood: ArcSwap<Mood>,
    cut: tokio::sync::watch::Sender<()>,
}

#[derive(Clone, Copy, PartialEq)]
enum Mood {
    Well,
    /// `watch` never returns.
    Hangs,
    /// Watches end at once.
    Ends,
    /// Every change at this revision is omitted.
    Omits(Revision),
}

impl Troubled {
    fn new() -> Arc<Troubled> {
        Arc::new(Troubled {
            inner: ArcSwap::from_pointee(Memory::default()),
            watches: AtomicUsize::new(0),
            mood: ArcSwap::from_pointee(Mood::Well),
            cut: tokio::sync::watch::Sender::new(()),
        })
    }

    /// Ends every open watch and sets the mode of new ones.
    fn cut(&self, mood: Mood) {
        self.mood.store(Arc::new(mood));
        self.cut.send_replace(());
    }
}

#[async_trait]
impl Store for Troubled {
    async fn revision(&self) -> Result<Revision, Error> {
        self.inner.load_full().revision().await
    }

    async fn get(&self, key: &Key) -> Result<Option<Record>, Error> {
        self.inner.load_full().get(key).await
    }

    async fn range(&self, range: Range) -> Result<RangePage, Error> {
        self.inner.load_full().range(range).await
    }

    async fn commit(&self, write: Write) -> Result<Committed, Error> {
        self.inner.load_full().commit(write).await
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<ChangeStream, Error> {
        self.watches.fetch_add(1, Ordering::Relaxed);
        let mut cut = self.cut.subscribe();
        let until = async move { drop(cut.changed().await) };
        let omitted = match **self.mood.load() {
            Mood::Well => Revision::ZERO,
            Mood::Hangs => std::future::pending().await,
            Mood::Ends => return Ok(futures::stream::empty().boxed()),
            Mood::Omits(revision) => revision,
        };
        let stream = self.inner.load_full().watch(prefix, after).await?;
        let stream = stream.map(move |batch| {
            batch.map(|mut batch| {
                batch.changes.retain(|change| change.revision != omitted);
                batch
            })
        });
        Ok(stream.take_until(Box::pin(until)).boxed())
    }

    async fn compact(&self, at: Revision) -> Result<(), Error> {
        self.inner.load_full().compact(at).await
    }

    fn condition(&self) -> StoreCondition {
        self.inner.load().condition()
    }
}

/// R33
#[tokio::test(start_paused = true)]
async fn a_feed_that_waits_for_the_store_can_be_stopped() {
    let store = Troubled::new();
    let mut pond = Pond::over(store.clone(), window(10)).await;
    pond.put(&pod("ns/a")).await;
    store.cut(Mood::Hangs);
    tokio::time::sleep(Duration::from_secs(1)).await;
    pond.stop.cancel();
    let ended = tokio::time::timeout(Duration::from_secs(60), pond.tasks.join_next()).await;
    assert!(ended.is_ok(), "the feed goes on after it was stopped");
}

#[tokio::test(start_paused = true)]
async fn a_store_watch_that_ends_is_reopened_without_a_busy_loop() {
    let store = Troubled::new();
    let pond = Pond::over(store.clone(), window(10)).await;
    pond.put(&pod("ns/a")).await;
    let mut watcher = pond.watch(&all(), WatchStart::Now);
    store.cut(Mood::Ends);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let opened = store.watches.load(Ordering::Relaxed);
    assert!(opened < 100, "opened {opened} times in ten seconds");
    store.cut(Mood::Well);
    let b = pond.put(&pod("ns/b")).await;
    assert_eq!(events(&mut watcher).await, [format!("ADDED ns/b@{b}")], "nobody noticed");
}

/// S5.9, R26
#[tokio::test(start_paused = true)]
async fn a_cache_that_must_reload_ends_its_watchers_and_is_correct_afterwards() {
    let store = Troubled::new();
    let pond = Pond::over(store.clone(), window(10)).await;
    pond.put(&pod("ns/a")).await;
    let mut watcher = pond.watch(&all(), WatchStart::Now);
    store.cut(Mood::Ends);
    pond.commit(&pod("ns/a").key(), None).await;
    let b = pond.commit(&pod("ns/b").key(), Some(pod("ns/b").bytes())).await;
    let c = pond.commit(&pod("ns/c").key(), Some(pod("ns/c").bytes())).await;
    store.compact(c).await.unwrap();
    store.cut(Mood::Well);
    pond.cache.reach(c).await.unwrap();
    assert_eq!(describe(&step(&mut watcher).await), "closed");
    let snapshot = pond.cache.snapshot(&pond.pods());
    let found: Vec<_> = snapshot.iter("", None).map(|o| (o.key(), o.revision())).collect();
    assert_eq!(found, [("ns/b", b), ("ns/c", c)]);
    let d = pond.put(&pod("ns/d")).await;
    let mut resumed = pond.watch(&all(), WatchStart::After(c));
    assert_eq!(events(&mut resumed).await, [format!("ADDED ns/d@{d}")]);
}

/// R37
#[tokio::test(start_paused = true)]
async fn a_store_that_went_back_is_noticed_and_states_are_not_mixed() {
    let store = Troubled::new();
    let pond = Pond::over(store.clone(), window(10)).await;
    for n in 0..5 {
        pond.put(&pod("ns/a").data(n)).await;
    }
    let mut watcher = pond.watch(&all(), WatchStart::Now);
    let stood = watcher.position();
    let older = Memory::default();
    let restored = Arc::new(older);
    let put = headwater_store::Action::Put { value: pod("ns/old").bytes().into(), ttl: None };
    let key = pod("ns/old").key();
    let write = Write::one(key, headwater_store::Guard::Absent, put);
    let at = restored.commit(write).await.unwrap().last;
    store.inner.store(restored);
    store.cut(Mood::Well);
    let step = step(&mut watcher).await;
    assert_eq!(describe(&step), format!("expired {stood}, oldest {at}"));
    let snapshot = pond.cache.snapshot(&pond.pods());
    let found: Vec<_> = snapshot.iter("", None).map(|o| (o.key(), o.revision())).collect();
    assert_eq!(found, [("ns/old", at)]);
    assert_eq!(pond.cache.applied(), at);
}

/// R26
#[tokio::test(start_paused = true)]
async fn a_gap_in_the_feed_is_noticed_and_the_cache_reloads() {
    let store = Troubled::new();
    let pond = Pond::over(store.clone(), window(10)).await;
    let a = pond.put(&pod("ns/a")).await;
    let mut watcher = pond.watch(&all(), WatchStart::Now);
    store.cut(Mood::Omits(a.next()));
    pond.commit(&pod("ns/a").key(), Some(pod("ns/a").data("lost").bytes())).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let c = pond.commit(&pod("ns/a").key(), Some(pod("ns/a").data("next").bytes())).await;
    pond.cache.reach(c).await.unwrap();
    assert_eq!(describe(&step(&mut watcher).await), "closed", "a stream with a gap must end");
    assert_eq!(pond.object(&pod("ns/a")).revision(), c);
}

#[tokio::test(start_paused = true)]
async fn a_scheduled_wakeup_does_not_wait_for_the_store() {
    let store = Troubled::new();
    let pond = Pond::over(store.clone(), window(10)).await;
    let (_crowd, mut received) = crowd(&pond).await;
    pond.put(&pod("ns/a")).await;
    all_given(&mut received).await;
    handed_on().await;
    let b = pond.put(&pod("ns/b")).await;
    store.cut(Mood::Hangs);
    let given = tokio::time::timeout(Duration::from_secs(60), all_given(&mut received)).await;
    for (_, revisions) in given.expect("the watchers hang") {
        assert_eq!(revisions, [b]);
    }
}

/// A transform with a defect.
struct Panicking;

impl StoredTransform for Panicking {
    fn transform(&self, stored: &[u8]) -> Option<Vec<u8>> {
        assert!(!String::from_utf8_lossy(stored).contains("poison"), "a defect");
        None
    }
}

/// The transform runs under the lock of the resource.
#[tokio::test(start_paused = true)]
async fn a_panic_under_the_lock_of_a_resource_ends_the_feed_and_not_the_process() {
    let mut pond = Pond::new(window(10)).await;
    let decoder =
        ObjectDecoder { transform: Some(Arc::new(Panicking)), ..ObjectDecoder::default() };
    pond.cache.set_decoder(&pods(), decoder).unwrap();
    let a = pond.put(&pod("ns/a")).await;
    let mut watcher = pond.watch(&all(), WatchStart::Now);
    pond.commit(&pod("ns/b").key(), Some(pod("ns/b").data("poison").bytes())).await;
    let ended = pond.tasks.join_next().await.unwrap();
    assert!(ended.is_err_and(|error| error.is_panic()), "the feed reports the panic");
    let step = tokio::time::timeout(Duration::from_secs(60), watcher.next()).await;
    assert!(matches!(step, Ok(WatchStep::Closed)), "the watcher hangs");
    drop(watcher);
    // The state before the panic is still served, and the lock can be taken.
    assert_eq!(pond.object(&pod("ns/a")).revision(), a);
    assert_eq!(pond.pods().watchers(), 0);
}

/// S5.7
#[tokio::test(start_paused = true)]
async fn a_read_of_a_future_revision_waits_and_then_fails() {
    let pond = Pond::new(window(10)).await;
    let a = pond.put(&pod("ns/a")).await;
    let asked = a.next();
    match pond.cache.snapshot_at(&pond.pods(), asked).await.err() {
        Some(headwater_cache::Error::TooLarge { asked: was, current }) => {
            assert_eq!((was, current), (asked, a));
        }
        other => panic!("{other:?}"),
    }
}
