//! Backups have the state at their revision, are rejected if damaged, and restore to a store whose
//! clients must list again.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::StreamExt;
use headwater_store::embedded::{restore, verify_backup, verify_dir};
use headwater_store::store::FIRST;
use headwater_store::{
    Action, Embedded, EmbeddedOptions, Error, Guard, Key, Range, RangePage, Revision, Store, Write,
};
use headwater_testkit::contract;
use tempfile::TempDir;

/// A directory with a store and space for backups.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn open(&self, name: &str) -> Embedded {
        Embedded::open(&self.path(name), EmbeddedOptions::default()).unwrap()
    }
}

async fn write(store: &Embedded, n: usize) -> Revision {
    let key = Key::new(format!("/registry/core/pods/default/{}", n % 30));
    let there = store.get(&key).await.unwrap();
    let guard = there.as_ref().map_or(Guard::Absent, |record| Guard::At(record.revision));
    let value = Bytes::from(format!("{n} ").repeat(n % 50));
    let action = match there {
        Some(_) if n.is_multiple_of(7) => Action::Delete,
        _ => Action::Put { value, ttl: None },
    };
    store.commit(Write::one(key, guard, action)).await.unwrap().last
}

async fn all(store: &Embedded, at: Option<Revision>) -> RangePage {
    store.range(Range { at, ..Range::default() }).await.unwrap()
}

/// R94
#[test]
fn a_backup_under_load_restores_to_the_state_at_its_revision() {
    contract::run(async {
        let place = Place::new();
        let store = place.open("data");
        for n in 0..100 {
            write(&store, n).await;
        }
        let stop = AtomicBool::new(false);
        let writing = async {
            for n in 100.. {
                write(&store, n).await;
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        };
        let backing = async {
            back_up(&store, &place.path("streamed")).await;
            stop.store(true, Ordering::Relaxed);
        };
        tokio::join!(writing, backing);
        let manifest = verify_backup(&place.path("streamed")).unwrap();
        let at = Revision(manifest.revision);
        let expected = all(&store, Some(at)).await;
        assert_eq!(manifest.objects, expected.records.len() as u64);
        assert_eq!(manifest.types["/registry/core/pods/"].objects, manifest.objects);

        let identity = restore(&place.path("streamed"), &place.path("restored")).unwrap();
        assert_eq!(identity.cluster, store.identity().cluster);
        assert_ne!(identity.incarnation, store.identity().incarnation);
        let restored = place.open("restored");
        let page = all(&restored, None).await;
        let raised = identity.first;
        assert!(raised.0 > at.0 + 1_000_000_000);
        assert_eq!((page.records, page.revision), (expected.records, raised));
        check_goes_on(&restored, at, raised).await;
        drop(restored);
        verify_dir(&place.path("restored")).unwrap();
    });
}

/// C3
#[test]
fn a_second_restore_of_a_backup_does_not_use_the_revisions_of_the_first() {
    contract::run(async {
        let place = Place::new();
        let file = small_backup(&place).await;
        let mut known = Revision::ZERO;
        for n in 0..3 {
            let name = format!("restored {n}");
            let identity = restore(&file, &place.path(&name)).unwrap();
            assert!(
                identity.first > known,
                "{known} was given out, {} is the first",
                identity.first
            );
            let store = place.open(&name);
            let gone = store.watch("/", known).await.err();
            assert!(matches!(gone, Some(Error::Compacted { .. })), "{gone:?}");
            for n in 0..50 {
                known = write(&store, n).await;
            }
        }
    });
}

/// Clients of the old store must list again, and new writes get higher revisions.
async fn check_goes_on(restored: &Embedded, old: Revision, raised: Revision) {
    for gone in [FIRST, old, Revision(raised.0 - 1)] {
        let watch = restored.watch("/", gone).await.err();
        assert!(
            matches!(watch, Some(Error::Compacted { oldest, .. }) if oldest == raised),
            "{watch:?}"
        );
        let range = Range { at: Some(gone), ..Range::default() };
        assert!(matches!(restored.range(range).await, Err(Error::Compacted { .. })));
    }
    let mut watch = restored.watch("/", raised).await.unwrap();
    for n in 0..40 {
        assert_eq!(write(restored, n).await, Revision(raised.0 + 1 + n as u64));
    }
    let batch = watch.next().await.unwrap().unwrap();
    assert_eq!(batch.changes[0].revision, raised.next());
    restored.compact(restored.revision().await.unwrap()).await.unwrap();
}

/// A small backup and its path.
async fn small_backup(place: &Place) -> PathBuf {
    let store = place.open("data");
    for n in 0..40 {
        write(&store, n).await;
    }
    let file = place.path("backup");
    back_up(&store, &file).await;
    verify_backup(&file).unwrap();
    file
}

async fn back_up(store: &Embedded, file: &Path) {
    let mut stream = store.backup_stream();
    let mut bytes = Vec::new();
    while let Some(part) = stream.next().await {
        bytes.extend_from_slice(&part.unwrap());
    }
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn a_damaged_backup_is_rejected_and_restores_nothing() {
    contract::run(async {
        let place = Place::new();
        let good = std::fs::read(small_backup(&place).await).unwrap();
        let bad = place.path("bad");
        let refused = |bytes: &[u8], what: String| {
            std::fs::write(&bad, bytes).unwrap();
            let error = verify_backup(&bad).expect_err(&what);
            assert!(
                matches!(error, Error::Damaged { .. } | Error::Unavailable(_)),
                "{what}: {error}"
            );
            assert!(restore(&bad, &place.path("never")).is_err(), "{what}");
            assert!(!place.path("never").exists(), "{what}");
        };
        for place in (0..good.len()).step_by(17) {
            let mut bytes = good.clone();
            bytes[place] ^= 1 << (place % 8);
            refused(&bytes, format!("byte {place} changed"));
        }
        for len in (0..good.len()).step_by(97) {
            refused(&good[..len], format!("cut to {len}"));
        }
        refused(&[good.as_slice(), b"x"].concat(), "one byte more".into());
        refused(&[good.as_slice(), good.as_slice()].concat(), "twice".into());
    });
}

#[test]
fn an_unread_backup_stream_does_not_prevent_closing_the_store() {
    contract::run(async {
        let place = Place::new();
        let store = place.open("data");
        let value = Bytes::from(vec![b'x'; 1 << 20]);
        for n in 0..16 {
            let put = Action::Put { value: value.clone(), ttl: None };
            let write = Write::one(Key::new(format!("/large/{n}")), Guard::Absent, put);
            store.commit(write).await.unwrap();
        }
        let mut stream = store.backup_stream();
        stream.next().await.unwrap().unwrap();
        tokio::task::block_in_place(|| store.close());
        let mut last = None;
        while let Some(part) = stream.next().await {
            last = Some(part);
        }
        assert!(matches!(last, Some(Err(Error::Unavailable(_)))), "it broke off without a word");
    });
}

#[test]
fn files_that_a_backup_still_reads_are_not_reused() {
    contract::run(async {
        let place = Place::new();
        let options = EmbeddedOptions { segment_bytes: 64 << 10, ..EmbeddedOptions::default() };
        let store = Embedded::open(&place.path("data"), options).unwrap();
        let key = |n: usize| Key::new(format!("/reused/{n:04}"));
        let value = |n: usize, round: u8| vec![round.wrapping_add(n as u8); 10_000];
        let mut revisions = vec![None; 600];
        let mut rewrite = async |round: u8| {
            for (n, known) in revisions.iter_mut().enumerate() {
                let guard = known.map_or(Guard::Absent, Guard::At);
                let put = Action::Put { value: value(n, round).into(), ttl: None };
                let done = store.commit(Write::one(key(n), guard, put)).await.unwrap();
                *known = Some(done.last);
                if round > 0 && n % 50 == 0 {
                    store.compact(done.last).await.unwrap();
                }
            }
        };
        rewrite(0).await;
        let expected = all(&store, None).await;
        // The backup has read a part of the rows, and waits for its reader.
        let mut stream = store.backup_stream();
        let mut bytes = stream.next().await.unwrap().unwrap().to_vec();
        for round in 1..4 {
            rewrite(round).await;
        }
        while let Some(part) = stream.next().await {
            bytes.extend_from_slice(&part.unwrap());
        }
        std::fs::write(place.path("streamed"), bytes).unwrap();
        restore(&place.path("streamed"), &place.path("restored")).unwrap();
        assert_eq!(all(&place.open("restored"), None).await.records, expected.records);
    });
}

#[test]
fn a_restore_does_not_overwrite_a_store() {
    contract::run(async {
        let place = Place::new();
        let file = small_backup(&place).await;
        let refused = restore(&file, &place.path("data")).err();
        assert!(matches!(refused, Some(Error::Refused(_))), "{refused:?}");
    });
}

#[test]
fn an_incomplete_restore_is_rejected() {
    contract::run(async {
        let place = Place::new();
        let file = small_backup(&place).await;
        restore(&file, &place.path("restored")).unwrap();
        let format = place.path("restored").join("FORMAT");
        std::fs::write(format, "headwater restore, not finished\n").unwrap();
        let refused = Embedded::open(&place.path("restored"), EmbeddedOptions::default()).err();
        assert!(
            matches!(&refused, Some(Error::Damaged { why, .. }) if why.contains("restore")),
            "{refused:?}"
        );
    });
}

#[test]
fn verification_changes_nothing_and_finds_damage() {
    contract::run(async {
        let place = Place::new();
        let store = place.open("data");
        for n in 0..80 {
            write(&store, n).await;
        }
        store.compact(Revision(FIRST.0 + 30)).await.unwrap();
        let revision = store.revision().await.unwrap();
        let busy = verify_dir(&place.path("data")).err();
        assert!(
            matches!(&busy, Some(Error::Unavailable(why)) if why.contains("in use")),
            "{busy:?}"
        );
        store.close();
        drop(store);
        let data = place.path("data").join("00000001.seg");
        let before = std::fs::read(&data).unwrap();
        let found = verify_dir(&place.path("data")).unwrap();
        assert_eq!((found.revision, found.compacted), (revision, Revision(FIRST.0 + 30)));
        assert_eq!(std::fs::read(&data).unwrap(), before);
        // A value of the newest version of some key.
        let at = before.windows(8).rposition(|bytes| bytes == b"79 79 79").unwrap();
        let mut bytes = before;
        bytes[at] ^= 1;
        std::fs::write(&data, bytes).unwrap();
        let found = verify_dir(&place.path("data")).err();
        assert!(matches!(found, Some(Error::Damaged { .. })), "{found:?}");
    });
}
