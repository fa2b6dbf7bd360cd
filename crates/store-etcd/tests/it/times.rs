//! Times of revisions, which etcd does not keep.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use headwater_api::Clock;
use headwater_store::{Action, Guard, Key, Revision, RevisionAt, Store, VersionRange, Write};
use headwater_store_etcd::{EtcdStore, Options};
use headwater_testkit::etcd;
use jiff::Timestamp;

use crate::fixture::{options, until};

/// A clock that a test sets, in milliseconds.
struct SetClock(AtomicI64);

impl Clock for SetClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millisecond(self.0.load(Ordering::SeqCst)).unwrap()
    }
}

async fn put(store: &EtcdStore, guard: Guard, value: &'static str) -> Revision {
    let put = Action::Put { value: value.into(), ttl: None };
    store.commit(Write::one(Key::new("/a"), guard, put)).await.unwrap().last
}

async fn at(store: &EtcdStore, time: i64) -> RevisionAt {
    store.revision_at(time).await.unwrap().unwrap()
}

#[tokio::test]
async fn times_are_those_at_which_changes_arrived_since_the_start() {
    let Some(members) = etcd::EtcdCluster::start() else { return };
    let clock = Arc::new(SetClock(AtomicI64::new(10_000)));
    let options = Options { clock: clock.clone(), ..options(&members) };
    let store = EtcdStore::connect(options.clone()).await.unwrap();
    let first = put(&store, Guard::Absent, "1").await;
    drop(store);

    clock.0.store(20_000, Ordering::SeqCst);
    let store = EtcdStore::connect(options).await.unwrap();
    clock.0.store(30_000, Ordering::SeqCst);
    let second = put(&store, Guard::At(first), "2").await;
    until("the change arrives", async || at(&store, 30_000).await.found == Some(second)).await;
    clock.0.store(40_000, Ordering::SeqCst);
    let third = put(&store, Guard::At(second), "3").await;
    until("the change arrives", async || at(&store, 40_000).await.found == Some(third)).await;

    for (time, revision) in [(20_000, first), (29_999, first), (39_999, second), (50_000, third)] {
        assert_eq!(at(&store, time).await.found, Some(revision), "{time}");
    }
    let early = at(&store, 19_999).await;
    assert_eq!((early.found, early.known_from), (None, Some(20_000)));
    let range = VersionRange { key: Key::new("/a"), upto: None, limit: 10 };
    let history = store.versions(range).await.unwrap();
    let times: Vec<_> = history.versions.iter().map(|it| (it.revision, it.time)).collect();
    assert_eq!(times, [(third, Some(40_000)), (second, Some(30_000)), (first, None)]);
}
