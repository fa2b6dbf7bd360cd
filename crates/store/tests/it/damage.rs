//! Damage is reported with its position or has no effect; damaged data is never served.

use std::sync::Arc;

use bytes::Bytes;
use headwater_store::{
    Action, Embedded, EmbeddedOptions, Error, Guard, Key, Range, RangePage, Store, Write,
};
use headwater_testkit::contract;

use crate::disk::TestDisk;

const LOG: &str = "00000001.seg";

fn open(disk: &TestDisk) -> Result<Embedded, Error> {
    let options = EmbeddedOptions { segment_bytes: 48 << 10, ..EmbeddedOptions::default() };
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

/// A damaged disk is rejected, or returns correct data and stays correct after further writes.
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
            let optional = name == "HEAD" || name.ends_with(".free");
            assert!(refused || optional, "a store without {name} was opened");
        }
    });
}

/// A small store that was killed.
async fn killed() -> TestDisk {
    let disk = TestDisk::default();
    let options = EmbeddedOptions::default();
    let store = Embedded::open_on(Arc::new(disk.clone()), options).unwrap();
    for n in 0..12_u8 {
        let put = Action::Put { value: vec![n; usize::from(n) * 500].into(), ttl: None };
        store.commit(Write::one(Key::new(format!("/d/{n}")), Guard::Absent, put)).await.unwrap();
    }
    disk.copy()
}

/// The frames of a segment: where each starts, and where its content ends.
fn frames(log: &[u8]) -> Vec<(usize, usize)> {
    let marks = (0..log.len()).step_by(4096).filter(|at| log[*at..].starts_with(b"hw frame"));
    let content = |at: usize| {
        let len = log[at + 12..at + 16].try_into().unwrap();
        at + 64 + usize::try_from(u32::from_le_bytes(len)).unwrap()
    };
    marks.map(|at| (at, content(at))).collect()
}

/// R14
#[test]
fn a_flipped_bit_or_a_truncation_in_the_log_is_rejected() {
    contract::run(async {
        let disk = killed().await;
        let right = read(&disk.copy()).await.unwrap();
        assert_eq!(right.records.len(), 12);
        let log = disk.file(LOG);
        let frames = frames(&log);
        assert_eq!(frames.len(), 13);
        let used = frames[12].1.next_multiple_of(4096);
        for place in (0..used).step_by(7) {
            let padding = !frames.iter().any(|(start, end)| (*start..*end).contains(&place));
            let damaged = disk.copy();
            let mut content = log.clone();
            content[place] ^= 1 << (place % 8);
            damaged.put_file(LOG, content);
            let what = format!("byte {place}");
            assert_eq!(check(&damaged, &right, &what).await, !padding, "{what}");
            if place < frames[12].1 {
                let damaged = disk.copy();
                damaged.put_file(LOG, log[..place].to_vec());
                assert!(check(&damaged, &right, &what).await, "cut to {place} and not refused");
            }
        }
    });
}

#[test]
fn damage_to_a_value_names_its_object() {
    contract::run(async {
        let disk = killed().await;
        let mut log = disk.file(LOG);
        let (_, end) = frames(&log)[8];
        log[end - 1] ^= 1;
        disk.put_file(LOG, log);
        match open(&disk) {
            Err(Error::Damaged { place, why }) => {
                assert!(place.contains(LOG) && why.contains("/d/7"), "{place}: {why}");
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_lost_frame_before_others_is_noticed_without_a_head() {
    contract::run(async {
        let disk = killed().await;
        let log = disk.file(LOG);
        let frames = frames(&log);
        for (n, (start, end)) in frames.iter().enumerate() {
            let damaged = disk.copy();
            headwater_store::embedded::disk::Disk::remove(&damaged, "HEAD").unwrap();
            let mut content = log.clone();
            content[*start..*end].fill(0);
            damaged.put_file(LOG, content);
            match (n, read(&damaged).await) {
                // Without HEAD, nothing reveals the last frame.
                (12, found) => assert_eq!(found.unwrap().records.len(), 11),
                (_, Err(Error::Damaged { .. })) => {}
                (_, found) => panic!("frame {n} is missing: {found:?}"),
            }
        }
    });
}

#[test]
fn an_older_copy_of_a_segment_is_rejected() {
    contract::run(async {
        let disk = TestDisk::default();
        let store = Embedded::open_on(Arc::new(disk.clone()), EmbeddedOptions::default()).unwrap();
        let mut older = Vec::new();
        for n in 0..2 {
            older = disk.file(LOG);
            let put = Action::Put { value: "1".into(), ttl: None };
            let write = Write::one(Key::new(format!("/d/{n}")), Guard::Absent, put);
            store.commit(write).await.unwrap();
        }
        store.close();
        disk.put_file(LOG, older);
        let refused = open(&disk).err();
        assert!(
            matches!(&refused, Some(Error::Damaged { why, .. }) if why.contains("acknowledged")),
            "{refused:?}"
        );
    });
}

#[test]
fn the_segment_of_another_store_is_rejected() {
    contract::run(async {
        let (disk, other) = (killed().await, killed().await);
        let right = read(&disk.copy()).await.unwrap();
        disk.put_file(LOG, other.file(LOG));
        assert!(check(&disk, &right, "the log of another store").await);
    });
}

/// B263
#[test]
fn a_block_of_another_store_is_rejected() {
    contract::run(async {
        let (disk, other) = (closed().await, closed().await);
        let right = read(&disk.copy()).await.unwrap();
        let both = |name: &String| name.ends_with(".seg") && other.names().contains(name);
        for name in disk.names().into_iter().filter(both) {
            let (content, foreign) = (disk.file(&name), other.file(&name));
            for block in 0..content.len().min(foreign.len()) / 4096 {
                let damaged = disk.copy();
                let mut content = content.clone();
                let place = block * 4096..(block + 1) * 4096;
                content[place.clone()].copy_from_slice(&foreign[place]);
                damaged.put_file(&name, content);
                check(&damaged, &right, &format!("{name}, block {block} of another store")).await;
            }
        }
    });
}

/// C9
#[test]
fn a_salvage_starts_without_the_damaged_objects_and_keeps_the_old_segments() {
    contract::run(async {
        let disk = killed().await;
        let right = read(&disk.copy()).await.unwrap();
        let log = disk.file(LOG);
        let frames = frames(&log);
        // The first frame has only a roster.
        for (n, (_, end)) in frames.iter().enumerate().skip(2) {
            let damaged = disk.copy();
            let mut content = log.clone();
            content[end - 1] ^= 1;
            damaged.put_file(LOG, content.clone());
            assert!(open(&damaged).is_err());
            let store = salvage(&damaged);
            let range = Range { prefix: "/d/".into(), ..Range::default() };
            let page = store.range(range).await.unwrap();
            let lost = Key::new(format!("/d/{}", n - 1));
            let expected = right.records.iter().filter(|record| record.key != lost);
            assert_eq!(page.records, expected.cloned().collect::<Vec<_>>(), "{lost}");
            assert!(page.revision > right.revision);
            let gone = store.watch("/d/", right.revision).await.err();
            assert!(matches!(gone, Some(Error::Compacted { .. })), "{gone:?}");
            assert_eq!(damaged.file("00000001.seg.damaged"), content);
            drop(store);
            assert_eq!(read(&damaged).await.unwrap().records.len(), 11);
        }
        let store = salvage(&disk);
        assert_eq!(store.revision().await.unwrap(), right.revision, "nothing is damaged");
    });
}

fn salvage(disk: &TestDisk) -> Embedded {
    let options = EmbeddedOptions { salvage: true, ..EmbeddedOptions::default() };
    Embedded::open_on(Arc::new(disk.clone()), options).unwrap()
}

#[test]
fn a_salvage_reads_the_segment_whose_first_frame_is_damaged() {
    contract::run(async {
        // Two segments with five objects each.
        let disk = TestDisk::default();
        let store = open(&disk).unwrap();
        for n in 0..10 {
            let put = Action::Put { value: vec![n; 5_000].into(), ttl: None };
            let key = Key::new(format!("/d/{n}"));
            store.commit(Write::one(key, Guard::Absent, put)).await.unwrap();
        }
        store.close();
        drop(store);
        // One segment, whose first frame has only a roster.
        let single = killed().await;
        for (disk, name) in [(&disk, "00000002.seg"), (&single, LOG)] {
            let right = read(&disk.copy()).await.unwrap();
            let damaged = disk.copy();
            let mut content = damaged.file(name);
            content[30] ^= 1;
            damaged.put_file(name, content);
            let refused = open(&damaged);
            assert!(matches!(refused, Err(Error::Damaged { .. })), "{name}: {refused:?}");
            let store = salvage(&damaged);
            let range = Range { prefix: "/d/".into(), ..Range::default() };
            let page = store.range(range).await.unwrap();
            // Only the header is damaged: the rows after it are whole.
            assert_eq!(page.records, right.records, "{name}");
        }
    });
}
