//! Damage is reported with its position or has no effect; damaged data is never served.

use std::sync::Arc;

use bytes::Bytes;
use headwater_store::{
    Action, Embedded, EmbeddedOptions, Error, Guard, Key, Range, RangePage, Store, Write,
};
use headwater_testkit::contract;

use crate::disk::TestDisk;

const DATA: &str = "data.redb";
const LOG: &str = "WAL.0";

fn open(disk: &TestDisk) -> Result<Embedded, Error> {
    let options = EmbeddedOptions { cache_bytes: 1 << 20, ..EmbeddedOptions::default() };
    Embedded::open_on(Arc::new(disk.clone()), options)
}

/// A small store that was closed cleanly.
async fn closed() -> TestDisk {
    let disk = TestDisk::default();
    let store = open(&disk).unwrap();
    for n in 0..24_u8 {
        let value = Bytes::from(vec![n; usize::from(n) * 300]);
        let put = Action::Put { value, ttl: None };
        store.commit(Write::one(Key::new(format!("/d/{n}")), Guard::Absent, put)).await.unwrap();
    }
    store.close();
    disk
}

async fn read(disk: &TestDisk) -> Result<RangePage, Error> {
    let store = open(disk)?;
    store.range(Range { prefix: "/d/".into(), ..Range::default() }).await
}

/// A damaged disk is rejected, or returns correct data and stays correct after further writes: the
/// list of free pages may be damaged too.
async fn check(damaged: &TestDisk, right: &RangePage, what: &str) -> bool {
    match read_write_read(damaged).await {
        Ok(pages) => {
            for page in pages {
                assert_eq!(page.records, right.records, "{what}");
            }
            false
        }
        Err(Error::Damaged { place, .. }) => {
            assert!(!place.is_empty(), "{what}");
            true
        }
        // A write fails because of damage, or a damaged number looks like a future format.
        Err(Error::Unavailable(why)) => {
            assert!(why.contains("damaged") || why.contains("format"), "{what}: {why}");
            true
        }
        Err(error) => panic!("{what}: {error}"),
    }
}

async fn read_write_read(disk: &TestDisk) -> Result<[RangePage; 2], Error> {
    let before = read(disk).await?;
    let store = open(disk)?;
    for n in 0..4 {
        let put = Action::Put { value: vec![b'x'; 5_000].into(), ttl: None };
        store.commit(Write::one(Key::new(format!("/new/{n}")), Guard::Absent, put)).await?;
    }
    drop(store);
    Ok([before, read(disk).await?])
}

/// R14
#[test]
fn a_flipped_bit_is_rejected_or_has_no_effect() {
    contract::run(async {
        let disk = closed().await;
        let right = read(&disk.copy()).await.unwrap();
        let mut refused = 0;
        for name in disk.names() {
            let content = disk.file(&name);
            let used: Vec<usize> = (0..content.len()).filter(|n| content[*n] != 0).collect();
            let step = used.len().div_ceil(300).max(1);
            for place in used.into_iter().step_by(step) {
                let damaged = disk.copy();
                let mut content = content.clone();
                content[place] ^= 1 << (place % 8);
                damaged.put_file(&name, content);
                refused +=
                    usize::from(check(&damaged, &right, &format!("{name}, byte {place}")).await);
            }
        }
        assert!(refused > 100, "only {refused} were refused");
    });
}

/// R14, B263
#[test]
fn a_truncated_or_missing_file_is_rejected_or_has_no_effect() {
    contract::run(async {
        let disk = closed().await;
        let right = read(&disk.copy()).await.unwrap();
        for name in disk.names() {
            let content = disk.file(&name);
            let step = content.len().div_ceil(40).max(1);
            for len in (0..content.len()).step_by(step) {
                let damaged = disk.copy();
                damaged.put_file(&name, content[..len].to_vec());
                check(&damaged, &right, &format!("{name} cut to {len}")).await;
            }
            let damaged = disk.copy();
            headwater_store::embedded::disk::Disk::remove(&damaged, &name).unwrap();
            let refused = check(&damaged, &right, &format!("{name} missing")).await;
            assert!(refused || name == "HEAD", "a store without {name} was opened");
        }
    });
}

/// A small store that was killed before the data file had any of its writes.
async fn killed() -> TestDisk {
    let disk = TestDisk::default();
    let store = open(&disk).unwrap();
    let data = disk.file(DATA);
    for n in 0..12_u8 {
        let put = Action::Put { value: vec![n; usize::from(n) * 50].into(), ttl: None };
        store.commit(Write::one(Key::new(format!("/d/{n}")), Guard::Absent, put)).await.unwrap();
    }
    let left = disk.copy();
    left.put_file(DATA, data);
    left
}

/// The content of a log without its trailing zeros.
fn used(log: &[u8]) -> usize {
    log.iter().rposition(|byte| *byte != 0).unwrap() + 1
}

/// The offsets of the log's frames, and the end of the last one.
fn frames(log: &[u8]) -> Vec<usize> {
    let marks = log.windows(8).enumerate().filter(|(_, bytes)| bytes == b"hw frame");
    marks.map(|(at, _)| at).chain([used(log)]).collect()
}

/// R14
#[test]
fn a_flipped_bit_or_a_truncation_in_the_log_is_rejected() {
    contract::run(async {
        let disk = killed().await;
        let right = read(&disk.copy()).await.unwrap();
        assert_eq!(right.records.len(), 12);
        let log = disk.file(LOG);
        for place in (0..used(&log)).step_by(7) {
            let damaged = disk.copy();
            let mut content = log.clone();
            content[place] ^= 1 << (place % 8);
            damaged.put_file(LOG, content);
            let what = format!("byte {place}");
            assert!(check(&damaged, &right, &what).await, "{what} was not refused");
            damaged.put_file(LOG, log[..place].to_vec());
            assert!(check(&damaged, &right, &what).await, "cut to {place} and not refused");
        }
    });
}

#[test]
fn a_lost_frame_before_others_is_noticed_without_a_head() {
    contract::run(async {
        let disk = killed().await;
        let log = disk.file(LOG);
        let frames = frames(&log);
        assert_eq!(frames.len(), 13);
        for (n, place) in frames.windows(2).enumerate() {
            let damaged = disk.copy();
            headwater_store::embedded::disk::Disk::remove(&damaged, "HEAD").unwrap();
            let mut content = log.clone();
            content[place[0]..place[1]].fill(0);
            damaged.put_file(LOG, content);
            match (n, read(&damaged).await) {
                // Without HEAD, nothing reveals the last frame.
                (11, found) => assert_eq!(found.unwrap().records.len(), 11),
                (_, Err(Error::Damaged { place, .. })) => assert_eq!(place, "WAL"),
                (_, found) => panic!("frame {n} is missing: {found:?}"),
            }
        }
    });
}

#[test]
fn an_older_data_file_is_rejected_unless_the_log_has_the_missing_rows() {
    contract::run(async {
        let disk = closed().await;
        let older = disk.copy();
        let store = open(&disk).unwrap();
        let put = Action::Put { value: "1".into(), ttl: None };
        store.commit(Write::one(Key::new("/d/new"), Guard::Absent, put)).await.unwrap();
        store.close();
        let right = read(&disk.copy()).await.unwrap();
        disk.put_file(DATA, older.file(DATA));
        assert_eq!(read(&disk.copy()).await.unwrap().records, right.records);
        disk.put_file(LOG, older.file(LOG));
        let refused = open(&disk).err();
        assert!(
            matches!(&refused, Some(Error::Damaged { why, .. }) if why.contains("acknowledged")),
            "{refused:?}"
        );
    });
}

#[test]
fn the_log_of_another_store_is_rejected() {
    contract::run(async {
        let (disk, other) = (killed().await, killed().await);
        let right = read(&disk.copy()).await.unwrap();
        disk.put_file(LOG, other.file(LOG));
        assert!(check(&disk, &right, "the log of another store").await);
    });
}

/// B263
#[test]
fn the_data_file_of_another_store_is_rejected() {
    contract::run(async {
        let (disk, other) = (closed().await, closed().await);
        let right = read(&disk.copy()).await.unwrap();
        // One page of the other store's file in place of ours.
        let (content, foreign) = (disk.file(DATA), other.file(DATA));
        for page in 0..content.len() / 4096 {
            let damaged = disk.copy();
            let mut content = content.clone();
            let place = page * 4096..(page + 1) * 4096;
            content[place.clone()].copy_from_slice(&foreign[place]);
            damaged.put_file(DATA, content);
            check(&damaged, &right, &format!("page {page} of another store")).await;
        }
    });
}
