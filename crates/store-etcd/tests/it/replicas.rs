//! Several replicas over one cluster: shared state, and what each learns from the others.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream};
use headwater_cache::{Cacher, Filter, Options as CacheOptions, WatchStart, WatchStep};
use headwater_store::{
    Action, ChangeKind, Error, Guard, Key, Op, Range, Revision, Store, Write, key,
};
use headwater_store_etcd::{EtcdStore, Options};
use headwater_testkit::{contract, etcd, proxy::Proxy};
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::fixture::{self, DEADLINE, until};

fn put(key: &str, value: &str) -> Write {
    let value = Bytes::copy_from_slice(value.as_bytes());
    Write::one(Key::new(key), Guard::Absent, Action::Put { value, ttl: None })
}

async fn create(store: &EtcdStore, key: &str) -> Revision {
    store.commit(put(key, "{}")).await.unwrap().last
}

async fn keys_of(store: &EtcdStore) -> Vec<String> {
    let page = store.range(Range::default()).await.unwrap();
    page.records.iter().map(|record| record.key.to_string()).collect()
}

/// Creates several keys at once.
fn several(keys: impl Iterator<Item = String>) -> Write {
    let op = |key| Op {
        key: Key::new(key),
        guard: Guard::Absent,
        action: Action::Put { value: Bytes::new(), ttl: None },
    };
    Write { ops: keys.map(op).collect() }
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let letters = bytes.chunks(3).flat_map(|three| {
        let at = |n: usize| u32::from(three.get(n).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        (0..4).map(move |n| match n <= three.len() {
            true => char::from(LETTERS[(bits >> (18 - 6 * n)) as usize & 63]),
            false => '=',
        })
    });
    letters.collect()
}

/// B269
#[tokio::test(flavor = "multi_thread")]
async fn the_writes_of_one_replica_are_read_and_watched_by_the_others() {
    let Some(members) = etcd::EtcdCluster::start() else { return };
    let a = EtcdStore::connect(fixture::options(&members)).await.unwrap();
    let b = EtcdStore::connect(fixture::options(&members)).await.unwrap();
    let mut watch = b.watch("/", a.revision().await.unwrap()).await.unwrap();
    for n in 0..50 {
        let (writer, reader) = if n % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let at = create(writer, &format!("/{n}")).await;
        assert!(reader.revision().await.unwrap() >= at, "it went back");
        let batch = watch.next().await.unwrap().unwrap();
        assert_eq!(batch.changes[0].revision, at);
    }
}

/// S5.10, S6.12
#[tokio::test(flavor = "multi_thread")]
async fn writes_outside_the_prefix_only_advance_the_progress() {
    let Some(members) = etcd::EtcdCluster::start() else { return };
    for trusts_progress in [None, Some(false)] {
        let options = Options { trusts_progress, ..fixture::options(&members) };
        let store = EtcdStore::connect(options).await.unwrap();
        let mut watch = store.watch("/", store.revision().await.unwrap()).await.unwrap();
        for n in 0..5 {
            members.post(0, "/v3/kv/put", &json!({"key": base64(b"/other/x")})).unwrap();
            let newest = store.revision().await.unwrap();
            let mut reached = Revision::ZERO;
            while reached < newest {
                let batch = watch.next().await.unwrap().unwrap();
                assert_eq!(batch.changes, [], "{n}");
                reached = batch.complete_to;
            }
        }
    }
}

/// R2
#[tokio::test(flavor = "multi_thread")]
async fn a_write_of_several_operations_is_one_revision_of_any_replica() {
    let Some(members) = etcd::EtcdCluster::start() else { return };
    let a = EtcdStore::connect(fixture::options(&members)).await.unwrap();
    let b = EtcdStore::connect(fixture::options(&members)).await.unwrap();
    let start = a.revision().await.unwrap();
    let write = async |store: &EtcdStore, name: &str| {
        for n in 0..20 {
            let key = |part| format!("/{name}/{n}/{part}");
            let done = store.commit(several((0..3).map(key))).await.unwrap();
            assert_eq!(done.first, done.last);
        }
    };
    tokio::join!(write(&a, "a"), write(&b, "b"));
    let end = Revision(start.0 + 2 * 20);
    assert_eq!(a.revision().await.unwrap(), end);
    let (mut watch, mut seen) = (b.watch("/", start).await.unwrap(), Vec::new());
    while seen.len() < 120 {
        let batch = watch.next().await.unwrap().unwrap();
        seen.extend(batch.changes.iter().map(|change| (change.revision, change.key.to_string())));
    }
    for (n, whole) in seen.chunks(3).enumerate() {
        let at = Revision(start.0 + 1 + n as u64);
        let name = whole[0].1.rsplit_once('/').unwrap().0;
        let expected = [0, 1, 2].map(|part| (at, format!("{name}/{part}")));
        assert_eq!(whole, expected, "a revision is one write");
    }
}

/// R3, R10: over new replicas that read from memory, and from etcd.
#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_resumes_between_the_changes_of_a_write_after_a_restart() {
    let Some(members) = etcd::EtcdCluster::start() else { return };
    let connect = async |history_bytes_max| {
        let options = Options { history_bytes_max, ..fixture::options(&members) };
        EtcdStore::connect(options).await.unwrap()
    };
    let store = connect(32 << 20).await;
    let start = store.revision().await.unwrap();
    let changes = contract::joint_writes(&store).await;
    drop(store);
    contract::check_resumes(&connect(32 << 20).await, &changes, start).await;
    let store = connect(0).await;
    contract::check_resumes(&store, &changes, start).await;
    let middle = changes[changes.len() / 2].revision;
    store.compact(middle).await.unwrap();
    for history_bytes_max in [0, 32 << 20] {
        contract::check_resumes(&connect(history_bytes_max).await, &changes, middle).await;
    }
}

/// R10: the next member sends the revision again, and its first change arrives once.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_cut_between_two_fragments_of_a_revision_receives_each_change_once() {
    let args = vec!["--max-request-bytes=1200000".to_owned()];
    let options = etcd::Options { scheme: None, args };
    let Some(members) = etcd::EtcdCluster::cluster(3, options) else { return };
    let proxies = [Proxy::start(members.port(0)).await, Proxy::start(members.port(1)).await];
    let near = EtcdStore::connect(fixture::options(&members)).await.unwrap();
    let large = |letter: &str| {
        let value = Bytes::from(letter.repeat(500_000));
        Action::Put { value, ttl: None }
    };
    let op =
        |key: &str, guard, letter: &str| Op { key: Key::new(key), guard, action: large(letter) };
    let ops = vec![op("/a", Guard::Absent, "1"), op("/b", Guard::Absent, "1")];
    let first = near.commit(Write { ops }).await.unwrap().last;
    let endpoints = proxies.iter().map(Proxy::url).collect();
    let far = Options { endpoints, deadline: DEADLINE, ..fixture::options(&members) };
    let far = EtcdStore::connect(far).await.unwrap();
    let mut watch = far.watch("/", first).await.unwrap();
    let mark = create(&near, "/mark").await;
    while watch.next().await.unwrap().unwrap().complete_to < mark {}
    // A fragment holds one of the two changes: its new and its previous value.
    proxies[0].cut_after(1_300_000);
    let ops = vec![op("/a", Guard::At(first), "2"), op("/b", Guard::At(first), "2")];
    let second = near.commit(Write { ops }).await.unwrap().last;
    let (mut seen, mut reached) = (Vec::new(), mark);
    while reached < second {
        let batch = watch.next().await.unwrap().unwrap();
        seen.extend(batch.changes.iter().map(|change| (change.key.to_string(), change.revision)));
        reached = batch.complete_to;
    }
    assert!(proxies[0].is_cut(), "the first member has sent everything");
    assert_eq!(seen, [("/a".to_owned(), second), ("/b".to_owned(), second)]);
}

/// R42: if it were sent again, its own first try would be a conflict.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_answer_is_lost_is_not_sent_again() {
    const TRIES: usize = 20;
    let Some(members) = etcd::EtcdCluster::start() else { return };
    let near = EtcdStore::connect(fixture::options(&members)).await.unwrap();
    for number in 0..TRIES {
        let proxy = Proxy::start(members.port(0)).await;
        let endpoints = [vec![proxy.url()], members.endpoints()].concat();
        let far = Options { endpoints, deadline: DEADLINE, ..fixture::options(&members) };
        let far = EtcdStore::connect(far).await.unwrap();
        let key = Key::new(format!("/{number}"));
        let put = Action::Put { value: Bytes::from_static(b"{}"), ttl: None };
        // The request is forwarded, and the first byte of an answer is not.
        proxy.cut_after(0);
        let answer = far.commit(Write::one(key.clone(), Guard::Absent, put)).await;
        let is_stored = near.get(&key).await.unwrap().is_some();
        match answer {
            Err(Error::Unavailable(_)) if is_stored => return,
            // The connection was cut before the request was sent.
            Err(Error::Unavailable(_)) => {}
            Ok(_) => assert!(is_stored),
            Err(error) => panic!("the write was sent again: {error}"),
        }
    }
    panic!("no answer was lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_with_more_operations_than_etcd_accepts_is_rejected_with_the_name_of_the_limit() {
    let Some(members) = etcd::EtcdCluster::start() else { return };
    let store = EtcdStore::connect(fixture::options(&members)).await.unwrap();
    let keys = |count| (0..count).map(|n| format!("/{n:03}"));
    let error = store.commit(several(keys(129))).await.unwrap_err();
    assert!(matches!(&error, Error::Refused(why) if why.contains("--max-txn-ops")), "{error}");
    assert_eq!(keys_of(&store).await, [""; 0]);
    let done = store.commit(several(keys(128))).await.unwrap();
    assert_eq!(done.first, done.last);
    assert_eq!(keys_of(&store).await.len(), 128);
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_with_a_time_to_live_share_a_lease_and_expire_together() {
    const COUNT: usize = 300;
    let Some(members) = etcd::EtcdCluster::start() else { return };
    let options = Options { root: key::ROOT.to_owned(), ..fixture::options(&members) };
    let store = Arc::new(EtcdStore::connect(options).await.unwrap());
    let mut cacher = Cacher::new(store.clone(), CacheOptions::default());
    cacher.load().await.unwrap();
    let (cache, mut feed) = (cacher.handle(), JoinSet::new());
    feed.spawn(cacher.run(CancellationToken::new()));
    let prefix = key::collection("", "events");
    let resource = cache.resource(&prefix);
    // One cursor reads from memory and one reads history.
    let mut watcher = cache.watch(&resource, &Filter::default(), WatchStart::Now);
    let start = store.revision().await.unwrap();
    for n in 0..COUNT {
        let value = json!({"metadata": {"name": format!("e{n:03}")}}).to_string().into();
        let action = Action::Put { value, ttl: Some(Duration::from_secs(3600)) };
        let key = Key::in_collection(&prefix, &format!("e{n:03}"));
        store.commit(Write::one(key, Guard::Absent, action)).await.unwrap();
    }
    let leases = members.post(0, "/v3/lease/leases", &json!({})).unwrap();
    let leases = leases["leases"].as_array().unwrap();
    assert!(leases.len() < COUNT / 10, "{} leases for {COUNT} objects", leases.len());
    // Revoking the lease has the same effect as its expiry.
    for lease in leases {
        members.post(0, "/v3/lease/revoke", lease).unwrap();
    }
    let mut gone = BTreeSet::new();
    let (mut seen, mut revisions) = (0, BTreeSet::new());
    while gone.len() < COUNT {
        let WatchStep::Events(events) = watcher.next().await else { panic!("it goes on") };
        for event in events.iter() {
            let change = event.change();
            match change.kind() {
                ChangeKind::Deleted => {
                    assert!(gone.insert(change.object().key().to_owned()), "twice");
                    revisions.insert(change.revision());
                }
                _ => seen += 1,
            }
        }
    }
    assert_eq!(seen, COUNT);
    assert!(revisions.len() <= leases.len(), "they go with their lease");
    // The same from history, in batches that split no revision.
    let (mut watch, mut changes) = (store.watch(&prefix, start).await.unwrap(), Vec::new());
    while changes.len() < 2 * COUNT {
        let batch = watch.next().await.unwrap().unwrap();
        assert!(batch.changes.iter().all(|change| change.revision <= batch.complete_to));
        changes.extend(batch.changes);
    }
    assert!(cache.snapshot(&resource).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_lease_is_replaced() {
    let Some(members) = etcd::EtcdCluster::start() else { return };
    let store = EtcdStore::connect(fixture::options(&members)).await.unwrap();
    let write = async |key: &str| {
        let action = Action::Put { value: Bytes::new(), ttl: Some(Duration::from_secs(3600)) };
        store.commit(Write::one(Key::new(key), Guard::Absent, action)).await.unwrap()
    };
    write("/a").await;
    let leases = members.post(0, "/v3/lease/leases", &json!({})).unwrap();
    members.post(0, "/v3/lease/revoke", &leases["leases"][0]).unwrap();
    write("/b").await;
    assert_eq!(keys_of(&store).await, ["/b"]);
}

/// S6.20
#[tokio::test(flavor = "multi_thread")]
async fn one_replica_at_a_time_compacts_and_all_learn_of_it() {
    let Some(members) = etcd::EtcdCluster::start() else { return };
    let every = |compaction| Options { compaction, ..fixture::options(&members) };
    let soon = Some(Duration::from_millis(100));
    let a = EtcdStore::connect(every(soon)).await.unwrap();
    let b = EtcdStore::connect(every(soon)).await.unwrap();
    let watching = EtcdStore::connect(every(None)).await.unwrap();
    let first = create(&a, "/0").await;
    let mut n = 0;
    until("everyone knows of a compaction", async || {
        n += 1;
        create(&a, &format!("/{n}")).await;
        [&a, &b, &watching].iter().all(|store| store.condition().compacted > first)
    })
    .await;
    let range = Range { at: Some(first), ..Range::default() };
    let gone = watching.range(range).await.err();
    assert!(matches!(gone, Some(Error::Compacted { .. })), "{gone:?}");
    let gone = watching.watch("/", first).await.err();
    assert!(matches!(gone, Some(Error::Compacted { .. })), "{gone:?}");
    // A watch can start at the compacted revision.
    let edge = watching.condition().compacted;
    let newest = create(&b, "/last").await;
    let (mut watch, mut reached) = (watching.watch("/", edge).await.unwrap(), Revision::ZERO);
    while reached < newest {
        match watch.next().await.unwrap() {
            Ok(batch) => reached = batch.complete_to,
            Err(Error::Compacted { .. }) => return, // the next compaction was faster
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_by_another_client_is_noticed() {
    let Some(members) = etcd::EtcdCluster::start() else { return };
    let store = EtcdStore::connect(fixture::options(&members)).await.unwrap();
    let first = create(&store, "/a").await;
    let middle = create(&store, "/b").await;
    create(&store, "/c").await;
    let late = EtcdStore::connect(fixture::options(&members)).await.unwrap();
    let body = json!({"revision": middle.0.to_string()});
    members.post(0, "/v3/kv/compaction", &body).unwrap();
    let range = Range { at: Some(first), ..Range::default() };
    match late.range(range).await {
        Err(Error::Compacted { asked, oldest }) => assert_eq!((asked, oldest), (first, middle)),
        other => panic!("{other:?}"),
    }
    assert_eq!(late.condition().compacted, middle);
    // A replica that starts now knows it from its start.
    let later = EtcdStore::connect(fixture::options(&members)).await.unwrap();
    assert_eq!(later.condition().compacted, middle);
    let mut watch = later.watch("/", middle).await.unwrap();
    let batch = watch.next().await.unwrap().unwrap();
    assert_eq!(batch.changes[0].revision, middle.next());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cache_that_missed_a_compaction_reloads_and_its_watchers_end() {
    let Some(members) = etcd::EtcdCluster::start() else { return };
    let proxy = Proxy::start(members.port(0)).await;
    let root = key::ROOT.to_owned();
    let near = Options { root, ..fixture::options(&members) };
    let far = Options { endpoints: vec![proxy.url()], deadline: DEADLINE, ..near.clone() };
    let (near, far) =
        (EtcdStore::connect(near).await.unwrap(), EtcdStore::connect(far).await.unwrap());
    let far = Arc::new(far);
    let mut cacher = Cacher::new(far.clone(), CacheOptions::default());
    cacher.load().await.unwrap();
    let (cache, mut feed) = (cacher.handle(), JoinSet::new());
    feed.spawn(cacher.run(CancellationToken::new()));
    let prefix = key::collection("", "things");
    let resource = cache.resource(&prefix);
    let write = async |name: &str| {
        let value = json!({"metadata": {"name": name}}).to_string();
        let key = Key::in_collection(&prefix, name);
        near.commit(put(key.as_str(), &value)).await.unwrap().last
    };
    let first = write("first").await;
    cache.reach(first).await.unwrap();
    let mut watcher = cache.watch(&resource, &Filter::default(), WatchStart::After(first));
    proxy.cut();
    write("missed").await;
    let last = write("last").await;
    near.compact(last).await.unwrap();
    // No old event is delivered as new while the member is cut off.
    until("the trouble is known", async || far.condition().trouble.is_some()).await;
    assert!(cache.consistent().await.is_err());
    assert_eq!(cache.snapshot(&resource).len(), 1);
    proxy.heal();
    until("the cache is current", async || cache.applied() >= last).await;
    match watcher.next().await {
        WatchStep::Closed | WatchStep::Expired { .. } => {}
        _ => panic!("a watcher with a hole goes on"),
    }
    let names: Vec<String> =
        cache.snapshot(&resource).iter("", None).map(|object| object.key().to_owned()).collect();
    assert_eq!(names, ["first", "last", "missed"]);
    until("the trouble is over", async || far.condition().trouble.is_none()).await;
    let next = write("next").await;
    let mut resumed = cache.watch(&resource, &Filter::default(), WatchStart::After(last));
    let WatchStep::Events(events) = resumed.next().await else { panic!("it goes on") };
    assert_eq!((events.len(), events[0].revision()), (1, next));
}

/// R38
#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_behind_a_watch_that_omitted_a_revision_ends_or_receives_it() {
    let Some(members) = etcd::EtcdCluster::start() else { return };
    let proxy = Proxy::start(members.port(0)).await;
    let near = Options { root: key::ROOT.to_owned(), ..fixture::options(&members) };
    let far = Options {
        endpoints: vec![proxy.url()],
        deadline: DEADLINE,
        // Then the feed watches all keys, and sees every revision.
        trusts_progress: Some(false),
        ..near.clone()
    };
    let (near, far) =
        (EtcdStore::connect(near).await.unwrap(), EtcdStore::connect(far).await.unwrap());
    let mut cacher = Cacher::new(Arc::new(far), CacheOptions::default());
    cacher.load().await.unwrap();
    let (cache, mut feed) = (cacher.handle(), JoinSet::new());
    feed.spawn(cacher.run(CancellationToken::new()));
    let prefix = key::collection("", "things");
    let resource = cache.resource(&prefix);
    let write = async |name: &str| {
        let value = json!({"metadata": {"name": name}}).to_string();
        let key = Key::in_collection(&prefix, name);
        near.commit(put(key.as_str(), &value)).await.unwrap().last
    };
    let first = write("first").await;
    cache.reach(first).await.unwrap();
    let mut watcher = cache.watch(&resource, &Filter::default(), WatchStart::After(first));
    proxy.omit(b"things/omitted");
    let missed = write("omitted").await;
    until("a message is lost", async || proxy.has_omitted()).await;
    let last = write("last").await;
    until("the cache is current", async || cache.applied() >= last).await;
    let step = tokio::time::timeout(Duration::from_secs(60), watcher.next()).await;
    match step.expect("a watcher with a hole waits") {
        WatchStep::Closed | WatchStep::Expired { .. } => {}
        // A watcher that goes on must begin with the omitted change.
        WatchStep::Events(events) => assert_eq!(events[0].revision(), missed, "a hole"),
        _ => panic!("a watcher with a hole goes on"),
    }
    let names: Vec<String> =
        cache.snapshot(&resource).iter("", None).map(|object| object.key().to_owned()).collect();
    assert_eq!(names, ["first", "last", "omitted"]);
}

/// R37, B270
#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_cluster_is_noticed_and_its_revisions_are_not_mixed() {
    let Some(members) = etcd::EtcdCluster::start() else { return };
    let Some(others) = etcd::EtcdCluster::start() else { return };
    let proxies = [Proxy::start(members.port(0)).await, Proxy::start(others.port(0)).await];
    let other = EtcdStore::connect(fixture::options(&others)).await.unwrap();
    for n in 0..10 {
        create(&other, &format!("/other/{n}")).await;
    }
    let one = Options {
        endpoints: vec![proxies[0].url()],
        deadline: DEADLINE,
        ..fixture::options(&members)
    };
    // Both clusters are configured; only one responds at the start.
    proxies[1].cut();
    let endpoints = vec![proxies[0].url(), proxies[1].url()];
    let store = EtcdStore::connect(Options { endpoints, ..one }).await.unwrap();
    let at = create(&store, "/a").await;
    let mut watch = store.watch("/", at).await.unwrap();
    proxies[0].cut();
    proxies[1].heal();
    let ended = watch.next().await.unwrap();
    assert!(matches!(ended, Err(Error::Replaced { .. })), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_move_from_a_dead_member_to_the_next_within_the_deadline() {
    let Some(mut members) = etcd::EtcdCluster::cluster(3, etcd::Options::default()) else { return };
    let store = EtcdStore::connect(fixture::options(&members)).await.unwrap();
    let start = create(&store, "/0").await;
    let mut watch = store.watch("/", start).await.unwrap();
    let mut acknowledged = Vec::new();
    for member in 0..3 {
        members.kill(member);
        until("reads go on", async || store.revision().await.is_ok()).await;
        for n in 0..10 {
            let key = format!("/{member}-{n}");
            // A write whose response is lost is not sent again; it may have been executed.
            match store.commit(put(&key, "{}")).await {
                Ok(done) => acknowledged.push((key, done.last)),
                Err(Error::Unavailable(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        members.restart(member);
    }
    let mut last = None;
    until("writes go on", async || {
        last = store.commit(put("/last", "{}")).await.ok().map(|done| done.last);
        let there = store.get(&Key::new("/last")).await.ok().flatten();
        last = last.or(there.map(|record| record.revision));
        last.is_some()
    })
    .await;
    let (last, mut seen) = (last.unwrap(), Vec::new());
    while seen.last().is_none_or(|(_, at)| *at < last) {
        let batch = watch.next().await.unwrap().unwrap();
        seen.extend(batch.changes.iter().map(|c| (c.key.to_string(), c.revision)));
    }
    let mut there = Vec::new();
    until("everything can be read", async || {
        let page = store.range(Range::default()).await;
        there = page.map(|page| page.records).unwrap_or_default();
        !there.is_empty()
    })
    .await;
    there.sort_by_key(|record| record.revision);
    let there: Vec<_> = there.iter().skip(1).map(|r| (r.key.to_string(), r.revision)).collect();
    assert_eq!(seen, there, "everything once and in order, but for the first write");
    assert!(acknowledged.iter().all(|write| seen.contains(write)), "{acknowledged:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_member_is_abandoned() {
    let Some(members) = etcd::EtcdCluster::cluster(3, etcd::Options::default()) else { return };
    let mut proxies = Vec::new();
    for member in 0..3 {
        proxies.push(Proxy::start(members.port(member)).await);
    }
    let endpoints = proxies.iter().map(Proxy::url).collect();
    let options = Options { endpoints, deadline: DEADLINE, ..fixture::options(&members) };
    let store = EtcdStore::connect(options).await.unwrap();
    let start = create(&store, "/0").await;
    let mut watch = store.watch("/", start).await.unwrap();
    proxies[0].cut();
    until("reads go on", async || store.revision().await.is_ok()).await;
    let mut at = None;
    until("writes go on", async || {
        at = store.commit(put("/1", "{}")).await.ok().map(|done| done.last);
        at.is_some()
    })
    .await;
    let batch = watch.next().await.unwrap().unwrap();
    assert_eq!(batch.changes.last().map(|change| change.revision), at);
}

/// S6.25
#[tokio::test(flavor = "multi_thread")]
async fn a_value_larger_than_etcds_limit_is_rejected_with_the_name_of_the_limit() {
    let args = vec!["--max-request-bytes=100000".to_owned()];
    let Some(members) = etcd::EtcdCluster::cluster(1, etcd::Options { scheme: None, args }) else {
        return;
    };
    let store = EtcdStore::connect(fixture::options(&members)).await.unwrap();
    let error = store.commit(put("/a", &"x".repeat(200_000))).await.unwrap_err();
    assert!(
        matches!(&error, Error::Refused(why) if why.contains("--max-request-bytes")),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_the_trouble_lasts_and_callers_do_not_queue() {
    let Some(mut members) = etcd::EtcdCluster::cluster(3, etcd::Options::default()) else { return };
    let options = Options { deadline: DEADLINE, ..fixture::options(&members) };
    let store = EtcdStore::connect(options).await.unwrap();
    create(&store, "/a").await;
    members.kill(0);
    members.kill(1);
    until("the trouble is known", async || store.condition().trouble.is_some()).await;
    // One after the other, they would take 15 minutes.
    let all = futures::future::join_all((0..200).map(|_| store.revision()));
    let answers = tokio::time::timeout(40 * DEADLINE, all).await.unwrap();
    assert!(answers.iter().all(|answer| matches!(answer, Err(Error::Unavailable(_)))));
    // The remaining member responds to some calls; the trouble must remain.
    for _ in 0..50 {
        assert!(store.condition().trouble.is_some());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    members.restart(0);
    until("it is over", async || store.condition().trouble.is_none()).await;
    create(&store, "/b").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fragments_of_a_large_response_are_joined() {
    const COUNT: usize = 6;
    let args = vec!["--max-request-bytes=1200000".to_owned()];
    let Some(members) = etcd::EtcdCluster::cluster(1, etcd::Options { scheme: None, args }) else {
        return;
    };
    // No change stays in memory: watchers read from etcd.
    let options = Options { history_bytes_max: 0, ..fixture::options(&members) };
    let store = EtcdStore::connect(options).await.unwrap();
    let start = store.revision().await.unwrap();
    let large = Bytes::from(vec![b'x'; 1_000_000]);
    for n in 0..COUNT {
        // Long enough that all of them share a lease even if writes are slow.
        let ttl = Some(Duration::from_secs(86_400));
        let action = Action::Put { value: large.clone(), ttl };
        let key = Key::new(format!("/{n}"));
        store.commit(Write::one(key, Guard::Absent, action)).await.unwrap();
    }
    let leases = members.post(0, "/v3/lease/leases", &json!({})).unwrap();
    for lease in leases["leases"].as_array().unwrap() {
        members.post(0, "/v3/lease/revoke", lease).unwrap();
    }
    let (mut watch, mut seen) = (store.watch("/", start).await.unwrap(), Vec::new());
    while seen.len() < 2 * COUNT {
        let batch = watch.next().await.unwrap().unwrap();
        let gone = batch.changes.iter().filter(|change| change.kind == ChangeKind::Deleted);
        assert!(matches!(gone.count(), 0 | COUNT), "one revision was parted");
        seen.extend(batch.changes);
    }
    assert!(seen[COUNT..].iter().all(|change| change.revision == seen[COUNT].revision));
    assert!(seen[COUNT..].iter().all(|c| c.prev.as_ref().is_some_and(|p| p.value == large)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_without_space_serves_reads_and_reports_trouble() {
    let Some(members) = etcd::EtcdCluster::start() else { return };
    let store = EtcdStore::connect(fixture::options(&members)).await.unwrap();
    let at = create(&store, "/a").await;
    let alarm = |action: &str| {
        let alarm = json!({"action": action, "memberID": "0", "alarm": "NOSPACE"});
        members.post(0, "/v3/maintenance/alarm", &alarm).unwrap()
    };
    let raised = alarm("ACTIVATE");
    let error = store.commit(put("/b", "{}")).await.unwrap_err();
    assert!(matches!(&error, Error::Unavailable(why) if why.contains("space")), "{error}");
    assert_eq!(store.revision().await.unwrap(), at);
    assert_eq!(keys_of(&store).await, ["/a"]);
    assert!(store.condition().trouble.is_some_and(|trouble| trouble.contains("space")));
    let member = &raised["alarms"][0]["memberID"];
    let cleared = json!({"action": "DEACTIVATE", "memberID": member, "alarm": "NOSPACE"});
    members.post(0, "/v3/maintenance/alarm", &cleared).unwrap();
    // It is noticed without a write: a server that is not ready receives none.
    until("there is space", async || store.condition().trouble.is_none()).await;
    assert_eq!(create(&store, "/b").await, at.next());
}

#[tokio::test(flavor = "multi_thread")]
async fn stuck_readers_of_history_do_not_delay_others() {
    let Some(members) = etcd::EtcdCluster::start() else { return };
    let options = Options { history_bytes_max: 3 << 20, ..fixture::options(&members) };
    let store = EtcdStore::connect(options).await.unwrap();
    let start = store.revision().await.unwrap();
    // etcd sends a thousand revisions at a time, so many remain after the first response.
    let large = "x".repeat(10_000);
    let writes = (0..2_500).map(|n| store.commit(put(&format!("/large/{n}"), &large)));
    let mut done = stream::iter(writes).buffer_unordered(32);
    while let Some(done) = done.next().await {
        done.unwrap();
    }
    let mut idle = Vec::new();
    for _ in 0..8 {
        let mut watch = store.watch("/", start).await.unwrap();
        watch.next().await.unwrap().unwrap();
        idle.push(watch);
    }
    let mut live = store.watch("/", store.revision().await.unwrap()).await.unwrap();
    for n in 0..50 {
        let at = create(&store, &format!("/small/{n}")).await;
        let batch = live.next().await.unwrap().unwrap();
        assert_eq!(batch.complete_to, at);
    }
    for watch in &mut idle {
        let batch = watch.next().await.unwrap().unwrap();
        assert!(batch.changes.is_sorted_by_key(|change| change.revision));
    }
}
