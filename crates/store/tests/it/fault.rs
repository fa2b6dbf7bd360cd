//! A failing disk: every acknowledged write survives, and one failure does not stop the store for
//! good.

use std::collections::BTreeMap;
use std::sync::Arc;

use headwater_store::store::FIRST;
use headwater_store::{
    Action, Embedded, EmbeddedOptions, Error, Guard, Key, Range, Record, Revision, Store, Write,
};
use headwater_testkit::contract;

use crate::disk::{Context, Done, Kept, Replay, TestDisk};

const WRITES: usize = 8;

/// With segments so small that nearly every write fills one.
fn open(disk: &TestDisk) -> Result<Embedded, Error> {
    let options = EmbeddedOptions { segment_bytes: 8 << 10, ..EmbeddedOptions::default() };
    Embedded::open_on(Arc::new(disk.clone()), options)
}

fn key(n: usize) -> Key {
    Key::new(format!("/f/{n}"))
}

fn create(n: usize) -> Write {
    let value = format!("value {n} ").repeat(n * 100).into();
    Write::one(key(n), Guard::Absent, Action::Put { value, ttl: None })
}

/// Writes while the disk fails after so many operations; returns the acknowledged writes.
async fn work(disk: &TestDisk, fails_in: usize, on: bool) -> BTreeMap<Key, Revision> {
    let done = work_timed(disk, fails_in, on).await;
    done.into_iter().map(|(_, key, revision)| (key, revision)).collect()
}

/// The same, with the number of disk operations at each acknowledgement.
async fn work_timed(disk: &TestDisk, fails_in: usize, on: bool) -> Vec<(usize, Key, Revision)> {
    let store = open(disk).unwrap();
    let mut acknowledged = Vec::new();
    disk.fail_in(fails_in, on);
    for n in 0..WRITES {
        let write = create(n);
        let key = write.ops[0].key.clone();
        match store.commit(write).await {
            Ok(done) => acknowledged.push((disk.now(), key, done.last)),
            Err(Error::Unavailable(_)) => {}
            Err(error) => panic!("{error}"),
        }
        if n == WRITES / 2 {
            // If the disk fails, the outcome is unknown, as for any write.
            let _ = store.compact(Revision(FIRST.0 + 1)).await;
        }
    }
    acknowledged
}

async fn state(store: &Embedded) -> BTreeMap<Key, Record> {
    let page = store.range(Range { prefix: "/f/".into(), ..Range::default() }).await.unwrap();
    page.records.into_iter().map(|record| (record.key.clone(), record)).collect()
}

/// Every acknowledged write exists, and every revision belongs to an existing write.
async fn check(disk: &TestDisk, acknowledged: &BTreeMap<Key, Revision>) {
    let store = open(disk).expect("a failed disk that works again is no damage");
    let there = state(&store).await;
    for (key, revision) in acknowledged {
        let record = there.get(key).unwrap_or_else(|| panic!("{key} was acknowledged"));
        assert_eq!(record.revision, *revision);
    }
    for n in 0..WRITES {
        let write = create(n);
        if let (Some(record), Action::Put { value, .. }) =
            (there.get(&write.ops[0].key), &write.ops[0].action)
        {
            assert_eq!(record.value, value);
        }
    }
    let newest = store.revision().await.unwrap();
    assert_eq!(newest.0 - FIRST.0, there.len() as u64, "one revision for each write");
}

/// R1, R13, B265
#[test]
fn no_failed_operation_loses_an_acknowledged_write() {
    contract::run(async {
        let mut reached = 0;
        for fails_in in 0.. {
            for on in [false, true] {
                let disk = TestDisk::default();
                let acknowledged = work(&disk, fails_in, on).await;
                if disk.failures() == 0 {
                    assert!(reached > 50, "only {reached} operations could fail");
                    return;
                }
                reached += 1;
                let mut replay = Replay::default();
                disk.history().iter().for_each(|done| replay.step(done));
                for kept in [Kept::Nothing, Kept::Everything, Kept::Some(7), Kept::Files(7)] {
                    let failed = format!("operation {fails_in} failed, on: {on}");
                    let _context = Context(format!("{failed}, then a crash with {kept:?} kept"));
                    check(&replay.crash(kept), &acknowledged).await;
                }
            }
        }
    });
}

/// The positions of failed syncs in the recorded operations.
fn failed_sync(history: &[Done]) -> Option<usize> {
    history.iter().position(|done| matches!(done, Done::SyncFailed { .. }))
}

#[test]
fn a_crash_while_the_file_is_copied_loses_nothing() {
    contract::run(async {
        let mut tried = 0;
        for fails_in in 10.. {
            let disk = TestDisk::default();
            let acknowledged = work_timed(&disk, fails_in, false).await;
            let history = disk.history();
            let Some(failed) = failed_sync(&history) else { continue };
            let mut replay = Replay::default();
            for (now, done) in history.iter().enumerate() {
                replay.step(done);
                if now < failed {
                    continue;
                }
                let known = acknowledged.iter().filter(|(at, ..)| *at <= now + 1);
                let known = known.map(|(_, key, revision)| (key.clone(), *revision)).collect();
                for kept in [Kept::Nothing, Kept::Everything, Kept::Some(now as u64)] {
                    let _context =
                        Context(format!("sync {failed} failed, crash at {now} {kept:?}"));
                    check(&replay.crash(kept), &known).await;
                }
            }
            tried += 1;
            if tried == 3 {
                return;
            }
        }
    });
}

/// R13
#[test]
fn a_start_after_a_failed_sync_does_not_trust_unsynced_pages() {
    contract::run(async {
        let disk = TestDisk::default();
        let mut acknowledged = BTreeMap::new();
        let mut commit = async |store: &Embedded, n: usize| {
            let write = create(n);
            let key = write.ops[0].key.clone();
            let done = store.commit(write).await?;
            acknowledged.insert(key, done.last);
            Ok::<(), Error>(())
        };
        let store = open(&disk).unwrap();
        for n in 0..3 {
            commit(&store, n).await.unwrap();
        }
        // No sync succeeds until the process ends; the system still shows the unwritten data.
        disk.fail_syncs(true);
        for n in 3..5 {
            commit(&store, n).await.unwrap_err();
        }
        drop(store);
        disk.fail_syncs(false);
        let store = open(&disk).unwrap();
        for n in 5..WRITES {
            commit(&store, n).await.unwrap();
        }
        drop(store);
        let mut replay = Replay::default();
        disk.history().iter().for_each(|done| replay.step(done));
        check(&replay.crash(Kept::Nothing), &acknowledged).await;
    });
}

#[test]
fn a_store_continues_after_one_failure_and_reports_the_trouble() {
    contract::run(async {
        for fails_in in (0..60).step_by(3) {
            let disk = TestDisk::default();
            let store = open(&disk).unwrap();
            store.commit(create(0)).await.unwrap();
            disk.fail_in(fails_in, false);
            let (mut unknown, mut written, mut after) = (0, 1, 0);
            while after < 3 {
                after += usize::from(disk.failures() > 0);
                unknown += usize::from(store.commit(create(written)).await.is_err());
                written += 1;
            }
            assert_eq!(disk.failures(), 1);
            assert!(unknown <= 1, "one failure failed {unknown} writes");
            // A failure in the background may be noticed only after the last write.
            while store.condition().trouble.is_some() || store.get(&key(0)).await.is_err() {
                tokio::task::yield_now().await;
            }
            assert!(state(&store).await.len() >= written - unknown);
        }
    });
}

/// R13
#[test]
fn a_disk_that_keeps_failing_stops_writes_with_a_reason() {
    contract::run(async {
        let disk = TestDisk::default();
        let store = open(&disk).unwrap();
        store.commit(create(0)).await.unwrap();
        disk.fail_in(0, true);
        for n in 1..6 {
            let refused = store.commit(create(n)).await;
            assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
        }
        assert!(store.condition().trouble.is_some());
        assert_eq!(store.revision().await.unwrap(), FIRST.next());
    });
}

#[test]
fn a_failed_read_is_an_error_and_later_writes_and_reads_succeed() {
    contract::run(async {
        let disk = TestDisk::default();
        let store = open(&disk).unwrap();
        for n in 0..WRITES {
            store.commit(create(n)).await.unwrap();
        }
        drop(store);
        // With large segments, the cleaner does not read.
        let options = EmbeddedOptions::default();
        let store = Embedded::open_on(Arc::new(disk.clone()), options).unwrap();
        store.commit(create(WRITES)).await.unwrap();
        disk.fail_read();
        let failed = store.range(Range { prefix: "/f/".into(), ..Range::default() }).await.err();
        assert!(matches!(failed, Some(Error::Unavailable(_))), "{failed:?}");
        store.commit(create(WRITES + 1)).await.unwrap();
        assert!(state(&store).await.len() > WRITES);
        assert_eq!(store.condition().trouble, None);
    });
}

#[test]
fn a_nearly_full_disk_accepts_only_deletes_and_recovers_automatically() {
    const MIB: u64 = 1 << 20;
    contract::run(async {
        let disk = TestDisk::default();
        let store = open(&disk).unwrap();
        let mut first = store.commit(create(0)).await.unwrap().last;
        assert_eq!(disk.reserve(), Some(64 * MIB));
        disk.set_free(100 * MIB);
        // The writer checks once per second.
        let mut n = 1;
        while store.condition().trouble.is_none() {
            first = store.commit(create(n)).await.map_or(first, |done| done.last);
            n += 1;
        }
        assert_eq!(disk.reserve(), None, "the reserve is given up");
        let refused = store.commit(create(n)).await;
        assert!(
            matches!(&refused, Err(Error::Unavailable(why)) if why.contains("full")),
            "{refused:?}"
        );
        let key =
            state(&store).await.into_values().find(|record| record.revision == first).unwrap().key;
        store.commit(Write::one(key, Guard::At(first), Action::Delete)).await.unwrap();
        disk.set_free(10_000 * MIB);
        while store.condition().trouble.is_some() {
            tokio::task::yield_now().await;
        }
        store.commit(create(n)).await.unwrap();
        assert_eq!(disk.reserve(), Some(64 * MIB));
    });
}

#[test]
fn a_start_on_a_disk_that_fills_up_has_a_reserve() {
    const MIB: u64 = 1 << 20;
    let disk = TestDisk::default();
    disk.set_free(900 * MIB);
    let store = open(&disk).unwrap();
    assert_eq!(disk.reserve(), Some(64 * MIB));
    drop(store);
}

/// C1
#[test]
fn a_full_disk_stops_writes_only_until_there_is_space_again() {
    contract::run(async {
        let disk = TestDisk::default();
        let store = open(&disk).unwrap();
        let mut written = 0;
        for round in 0..3 {
            store.commit(create(written)).await.unwrap();
            written += 1;
            disk.set_full(true);
            for _ in 0..5 {
                let refused = store.commit(create(written)).await;
                assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
            }
            let trouble = store.condition().trouble.expect("writes fail");
            assert!(trouble.len() < 200, "round {round}: the reason grows: {trouble}");
            assert_eq!(disk.reserve(), None, "the reserve is given up");
            disk.set_full(false);
            // The writer looks at the space once per second.
            while store.condition().trouble.is_some() {
                tokio::task::yield_now().await;
            }
        }
        store.commit(create(written)).await.unwrap();
        assert_eq!(state(&store).await.len(), written + 1);
        drop(store);
        assert_eq!(state(&open(&disk).unwrap()).await.len(), written + 1);
    });
}

/// C1
#[test]
fn deletes_go_on_while_the_disk_is_full_and_make_space_for_writes() {
    const SEGMENT: u64 = 64 << 10;
    contract::run(async {
        let disk = TestDisk::default();
        disk.set_capacity(6 << 20);
        let options = EmbeddedOptions { segment_bytes: SEGMENT, ..EmbeddedOptions::default() };
        let open = || Embedded::open_on(Arc::new(disk.clone()), options.clone()).unwrap();
        let store = open();
        assert!(disk.reserve().is_some());
        let put = |n: u32| {
            let put = Action::Put { value: n.to_le_bytes().repeat(1_500).into(), ttl: None };
            Write::one(Key::new(format!("/full/{n}")), Guard::Absent, put)
        };
        let mut there = Vec::new();
        let refused = loop {
            let n = u32::try_from(there.len()).unwrap();
            match store.commit(put(n)).await {
                Ok(done) => there.push(done.last),
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, Error::Unavailable(_)), "{refused}");
        assert!(there.len() > 500 && disk.reserve().is_none(), "{}", there.len());
        assert!(store.condition().trouble.is_some());
        // More deletes than the reserve has room for: the cleaner must free what they leave.
        let deleted = there.len() - 100;
        for (n, at) in there.iter().enumerate().take(deleted) {
            let key = Key::new(format!("/full/{n}"));
            let delete = Write::one(key, Guard::At(*at), Action::Delete);
            store.commit(delete).await.unwrap_or_else(|error| panic!("delete {n}: {error}"));
        }
        while store.condition().trouble.is_some() {
            tokio::task::yield_now().await;
        }
        store.commit(put(0)).await.unwrap();
        assert!(disk.reserve().is_some());
        drop(store);
        let store = open();
        let range = Range { prefix: "/full/".into(), ..Range::default() };
        assert_eq!(store.range(range).await.unwrap().records.len(), 101);
    });
}
