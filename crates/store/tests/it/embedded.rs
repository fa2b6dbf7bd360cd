//! Tests of the embedded engine on a real directory, including the contract.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use headwater_store::embedded::{Retention, verify_dir};
use headwater_store::store::FIRST;
use headwater_store::{
    Action, ChangeKind, Embedded, EmbeddedOptions, Error, Guard, Key, Range, Revision, Store,
    StoreCondition, Write,
};
use headwater_testkit::{OwningStore, contract, model};
use proptest::prelude::*;
use tempfile::TempDir;

use crate::disk::TestDisk;

fn open(dir: &Path) -> Embedded {
    Embedded::open(dir, EmbeddedOptions::default()).unwrap()
}

fn fresh() -> OwningStore<Embedded, TempDir> {
    let dir = tempfile::tempdir().unwrap();
    OwningStore(open(dir.path()), dir)
}

headwater_testkit::store_contract!(fresh());

/// The contract again with segments that fill quickly, so that the cleaner works.
mod with_small_segments {
    use super::*;

    fn fresh() -> OwningStore<Embedded, TempDir> {
        let dir = tempfile::tempdir().unwrap();
        let options = EmbeddedOptions { segment_bytes: 64 << 10, ..EmbeddedOptions::default() };
        OwningStore(Embedded::open(dir.path(), options).unwrap(), dir)
    }

    headwater_testkit::store_contract!(fresh());
}

/// R3, R10
#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_resumes_between_the_changes_of_a_write_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let start = store.revision().await.unwrap();
    let changes = contract::joint_writes(&store).await;
    drop(store);
    let store = open(dir.path());
    contract::check_resumes(&store, &changes, start).await;
    let middle = changes[changes.len() / 2].revision;
    store.compact(middle).await.unwrap();
    drop(store);
    contract::check_resumes(&open(dir.path()), &changes, middle).await;
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn any_script_agrees_with_the_model(
        steps in model::script(100, true),
        segment_bytes in prop_oneof![Just(1), Just(10 << 10), Just(4 << 20)],
    ) {
        let disk = Arc::new(TestDisk::default());
        let options = EmbeddedOptions { segment_bytes, ..EmbeddedOptions::default() };
        let open = || Embedded::open_on(disk.clone(), options.clone()).unwrap();
        contract::run(model::check(&steps, async || open()));
    }
}

/// R15
#[test]
fn a_second_owner_is_rejected_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path());
    let before = contents(dir.path());
    let refused = Embedded::open(dir.path(), EmbeddedOptions::default()).err();
    assert!(
        matches!(&refused, Some(Error::Unavailable(why)) if why.contains("in use")),
        "{refused:?}"
    );
    assert_eq!(contents(dir.path()), before);
    drop(first);
    open(dir.path());
}

#[test]
fn only_the_owner_can_read_the_directory() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("data");
    let store = open(&dir);
    assert_eq!(mode(&dir), 0o700);
    let files = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
    let modes: BTreeMap<_, _> = files.map(|file| (file.clone(), mode(&file))).collect();
    assert!(modes.len() >= 4 && modes.values().all(|mode| *mode == 0o600), "{modes:?}");
    drop(store);
}

/// R95, B263
#[test]
fn a_newer_format_is_rejected_and_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    std::fs::write(dir.path().join("FORMAT"), "headwater data 5\n").unwrap();
    let before = contents(dir.path());
    let refused = Embedded::open(dir.path(), EmbeddedOptions::default()).err();
    assert!(
        matches!(&refused, Some(Error::Unavailable(why)) if why.contains("format 5")),
        "{refused:?}"
    );
    assert_eq!(contents(dir.path()), before);
}

/// R95
#[test]
fn a_directory_of_an_older_format_is_rejected_with_the_way_to_move_it() {
    for format in [1, 2, 3] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("FORMAT"), format!("headwater data {format}\n")).unwrap();
        std::fs::write(dir.path().join("data.redb"), "anything").unwrap();
        let before = contents(dir.path());
        let refused = Embedded::open(dir.path(), EmbeddedOptions::default()).err();
        assert!(
            matches!(&refused, Some(Error::Unavailable(why)) if why.contains("headwater restore")),
            "{refused:?}"
        );
        std::fs::remove_file(dir.path().join("LOCK")).unwrap();
        assert_eq!(contents(dir.path()), before);
    }
}

/// C14
#[test]
fn data_without_its_format_file_is_rejected() {
    for name in ["data.redb", "00000002.seg"] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(name), "anything").unwrap();
        let refused = Embedded::open(dir.path(), EmbeddedOptions::default()).err();
        assert!(matches!(&refused, Some(Error::Damaged { .. })), "{refused:?}");
        assert!(dir.path().join(name).exists());
    }
}

/// C12
#[test]
fn the_reserve_is_allocated_and_not_a_hole() {
    let dir = tempfile::tempdir().unwrap();
    let reserve = dir.path().join("RESERVE");
    // A hole of the right length is filled.
    drop(open(dir.path()));
    let len = std::fs::metadata(&reserve).unwrap().len();
    std::fs::write(&reserve, "").unwrap();
    std::fs::File::options().write(true).open(&reserve).unwrap().set_len(len).unwrap();
    drop(open(dir.path()));
    let found = std::fs::metadata(&reserve).unwrap();
    assert!(len > 0 && found.len() == len);
    assert!(found.blocks() * 512 >= len, "{} of {len} bytes", found.blocks() * 512);
}

/// C17
#[test]
fn a_read_of_the_past_reads_only_what_it_returns() {
    let disk = TestDisk::default();
    let options = EmbeddedOptions { segment_bytes: 64 << 10, ..EmbeddedOptions::default() };
    let store = Embedded::open_on(Arc::new(disk.clone()), options).unwrap();
    contract::run(async {
        let key = Key::new("/p/a");
        let mut guard = Guard::Absent;
        for n in 0..600_u32 {
            let put = Action::Put { value: n.to_le_bytes().repeat(500).into(), ttl: None };
            let done = store.commit(Write::one(key.clone(), guard, put)).await.unwrap();
            guard = Guard::At(done.last);
        }
        for n in (0..600_u32).step_by(13) {
            let before = disk.reads();
            let at = Some(Revision(FIRST.0 + 1 + u64::from(n)));
            let range = Range { prefix: "/p/".into(), at, ..Range::default() };
            let page = store.range(range).await.unwrap();
            assert_eq!(page.records[0].value[..4], n.to_le_bytes());
            assert!(disk.reads() - before <= 1, "{} reads", disk.reads() - before);
        }
    });
}

/// C10
#[test]
fn a_damaged_segment_does_not_keep_the_cleaner_from_others() {
    let disk = TestDisk::default();
    let options = EmbeddedOptions { segment_bytes: 32 << 10, ..EmbeddedOptions::default() };
    let store = Embedded::open_on(Arc::new(disk.clone()), options).unwrap();
    contract::run(async {
        let mut newest = Vec::new();
        for n in 0..60_u8 {
            let put = Action::Put { value: vec![n; 3_000].into(), ttl: None };
            let write = Write::one(Key::new(format!("/o/{n}")), Guard::Absent, put);
            newest.push(store.commit(write).await.unwrap().last);
        }
        let mut damaged = disk.file("00000003.seg");
        damaged[200] ^= 1;
        disk.put_file("00000003.seg", damaged);
        // One object of each segment stays.
        for (n, at) in newest.iter().enumerate().filter(|(n, _)| n % 8 != 0) {
            let key = Key::new(format!("/o/{n}"));
            store.commit(Write::one(key, Guard::At(*at), Action::Delete)).await.unwrap();
        }
        store.compact(store.revision().await.unwrap()).await.unwrap();
        let left = || ["00000002.seg", "00000004.seg", "00000005.seg"].map(|name| has(&disk, name));
        while left().contains(&true) {
            tokio::task::yield_now().await;
        }
        assert!(has(&disk, "00000003.seg"));
        assert!(store.condition().damage.is_some_and(|damage| damage.contains("00000003.seg")));
        for n in [0, 56] {
            assert!(store.get(&Key::new(format!("/o/{n}"))).await.unwrap().is_some());
        }
    });
}

fn has(disk: &TestDisk, name: &str) -> bool {
    disk.names().iter().any(|found| found == name)
}

#[test]
fn space_is_reclaimed_from_files_that_are_partly_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions { segment_bytes: 40 << 10, ..EmbeddedOptions::default() };
    let store = Embedded::open(dir.path(), options.clone()).unwrap();
    contract::run(async {
        let mut newest = BTreeMap::new();
        for n in 0..400_u32 {
            // Every tenth write uses its own key, which never changes again.
            let key = Key::new(if n % 10 == 0 { format!("/s/{n}") } else { "/s/often".into() });
            let guard = newest.get(&key).map_or(Guard::Absent, |(at, _)| Guard::At(*at));
            let value = n.to_le_bytes().repeat(750);
            let put = Action::Put { value: value.clone().into(), ttl: None };
            let done = store.commit(Write::one(key.clone(), guard, put)).await.unwrap();
            newest.insert(key, (done.last, value));
        }
        let before = files(dir.path(), ".seg");
        assert!(before.len() > 20, "{before:?}");
        store.compact(store.revision().await.unwrap()).await.unwrap();
        // 41 rows of 3 KB, the file in use, and files of which half is referenced.
        while files(dir.path(), ".seg").len() > 10 {
            tokio::task::yield_now().await;
        }
        let agrees = async |store: &Embedded| {
            for (key, (revision, value)) in &newest {
                let record = store.get(key).await.unwrap().unwrap();
                assert_eq!((record.revision, &record.value[..]), (*revision, &value[..]));
            }
        };
        agrees(&store).await;
        drop(store);
        assert_eq!(verify_dir(dir.path()).unwrap().objects, newest.len() as u64);
        let store = Embedded::open(dir.path(), options).unwrap();
        agrees(&store).await;
        assert!(store.condition().disk_bytes > 41 * 3_000);
    });
}

#[test]
fn an_unused_file_is_removed_by_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    std::fs::write(dir.path().join("00000007.seg"), "a file that a crash left").unwrap();
    drop(open(dir.path()));
    assert_eq!(files(dir.path(), ".seg"), ["00000001.seg"]);
}

/// The names of files with a suffix.
fn files(dir: &Path, suffix: &str) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(suffix)).collect()
}

/// R4
#[test]
fn the_revision_does_not_go_back_when_the_newest_row_is_cleaned_away() {
    let disk = TestDisk::default();
    // Every frame has a segment of its own.
    let options = EmbeddedOptions { segment_bytes: 1, ..EmbeddedOptions::default() };
    let open = || Embedded::open_on(Arc::new(disk.clone()), options.clone()).unwrap();
    contract::run(async {
        let (store, key) = (open(), Key::new("/g/a"));
        let put = || Action::Put { value: "1".into(), ttl: None };
        let at = store.commit(Write::one(key.clone(), Guard::Absent, put())).await.unwrap().last;
        let delete = Write::one(key.clone(), Guard::At(at), Action::Delete);
        let deleted = store.commit(delete).await.unwrap().last;
        let segment = disk.names().into_iter().rfind(|name| name.ends_with(".seg")).unwrap();
        store.compact(deleted).await.unwrap();
        while has(&disk, &segment) {
            tokio::task::yield_now().await;
        }
        drop(store);
        let store = open();
        assert_eq!(store.revision().await.unwrap(), deleted);
        let done = store.commit(Write::one(key, Guard::Absent, put())).await.unwrap();
        assert_eq!(done.last, deleted.next());
    });
}

#[test]
fn a_deletion_is_copied_while_an_older_row_of_its_key_is_in_another_segment() {
    let options = EmbeddedOptions { segment_bytes: 32 << 10, ..EmbeddedOptions::default() };
    let open =
        |disk: &TestDisk| Embedded::open_on(Arc::new(disk.clone()), options.clone()).unwrap();
    let commit = async |store: &Embedded, key: &Key, guard: Guard, action: Action| {
        store.commit(Write::one(key.clone(), guard, action)).await.unwrap().last
    };
    let put = |size: usize| Action::Put { value: vec![7; size].into(), ttl: None };
    let (key, others) = (Key::new("/z/a"), [0, 1, 2, 3, 4, 5, 6].map(|n| format!("/z/{n}")));
    let check = async |restart: bool| {
        let disk = TestDisk::default();
        let mut store = open(&disk);
        // The first segment: the object, and others that stay.
        let at = commit(&store, &key, Guard::Absent, put(100)).await;
        for n in 0..3 {
            commit(&store, &Key::new(format!("/z/stays/{n}")), Guard::Absent, put(8_000)).await;
        }
        // The second one: the deletion, and rows that are needed for now.
        commit(&store, &key, Guard::At(at), Action::Delete).await;
        let mut there = Vec::new();
        for key in &others {
            there.push(commit(&store, &Key::new(key.as_str()), Guard::Absent, put(3_000)).await);
        }
        store.compact(store.revision().await.unwrap()).await.unwrap();
        if restart {
            drop(store);
            store = open(&disk);
        }
        for (key, at) in others.iter().zip(there) {
            commit(&store, &Key::new(key.as_str()), Guard::At(at), put(3_000)).await;
        }
        let newest = store.revision().await.unwrap();
        store.compact(newest).await.unwrap();
        while has(&disk, "00000002.seg") {
            tokio::task::yield_now().await;
        }
        assert!(has(&disk, "00000001.seg"));
        let killed = open(&disk.copy());
        assert_eq!(killed.get(&key).await.unwrap(), None, "the object came back");
        assert_eq!(killed.revision().await.unwrap(), newest);
    };
    contract::run(async {
        for restart in [false, true] {
            check(restart).await;
        }
    });
}

#[test]
fn a_number_is_not_used_again_while_a_file_may_contain_frames_with_it() {
    let disk = TestDisk::default();
    drop(Embedded::open_on(Arc::new(disk.clone()), EmbeddedOptions::default()).unwrap());
    disk.put_file("00000007.free", vec![0; 100]);
    let options = EmbeddedOptions { segment_bytes: 1, ..EmbeddedOptions::default() };
    let store = Embedded::open_on(Arc::new(disk.clone()), options).unwrap();
    contract::run(async {
        let put = Action::Put { value: "1".into(), ttl: None };
        store.commit(Write::one(Key::new("/n/a"), Guard::Absent, put)).await.unwrap();
    });
    let names = disk.names().into_iter().filter(|name| name.ends_with(".seg"));
    assert_eq!(names.collect::<Vec<_>>(), ["00000001.seg", "00000008.seg"]);
}

#[test]
fn history_beyond_its_size_limit_is_dropped_automatically() {
    let retention = Retention { bytes: 100_000, ..Retention::default() };
    let options = EmbeddedOptions { retention, ..EmbeddedOptions::default() };
    let store = Embedded::open_on(Arc::new(TestDisk::default()), options).unwrap();
    contract::run(async {
        let key = Key::new("/r/a");
        let mut guard = Guard::Absent;
        // Retention runs once per second, so writes continue until it has.
        while store.usage().history_bytes < 200_000 || store.condition().compacted < FIRST {
            let put = Action::Put { value: vec![b'x'; 1_000].into(), ttl: None };
            guard =
                Guard::At(store.commit(Write::one(key.clone(), guard, put)).await.unwrap().last);
        }
        while store.usage().history_bytes > 100_000 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let StoreCondition { revision, compacted, .. } = store.condition();
        assert!(compacted > FIRST && compacted < revision);
        let gone = store.watch("/r/", FIRST).await.err();
        assert!(matches!(gone, Some(Error::Compacted { .. })), "{gone:?}");
    });
}

#[test]
fn a_time_to_live_continues_over_a_restart() {
    let disk = Arc::new(TestDisk::default());
    let open = || Embedded::open_on(disk.clone(), EmbeddedOptions::default()).unwrap();
    contract::run(async {
        let store = open();
        let put = Action::Put { value: "1".into(), ttl: Some(Duration::from_millis(300)) };
        let write = Write::one(Key::new("/e/a"), Guard::Absent, put);
        let at = store.commit(write).await.unwrap().last;
        drop(store);
        let store = open();
        let mut watch = store.watch("/e/", at).await.unwrap();
        let batch = watch.next().await.unwrap().unwrap();
        assert_eq!(batch.changes[0].kind, ChangeKind::Deleted);
        assert_eq!(batch.changes[0].revision, at.next());
    });
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files.map(|file| (file.clone(), std::fs::read(file).unwrap())).collect()
}
