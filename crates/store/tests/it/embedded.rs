//! The embedded engine keeps every promise of the trait, on a real directory.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use headwater_store::embedded::{Retention, verify_dir};
use headwater_store::store::FIRST;
use headwater_store::{
    Action, ChangeKind, Condition, Embedded, EmbeddedOptions, Error, Guard, Key, Store, Write,
};
use headwater_testkit::{Keeping, contract, model};
use proptest::prelude::*;
use tempfile::TempDir;

use crate::disk::TestDisk;

fn open(dir: &Path) -> Embedded {
    Embedded::open(dir, EmbeddedOptions::default()).unwrap()
}

fn fresh() -> Keeping<Embedded, TempDir> {
    let dir = tempfile::tempdir().unwrap();
    Keeping(open(dir.path()), dir)
}

headwater_testkit::store_contract!(fresh());

/// Everything again with a log that is soon full: then the data file has nearly all.
mod with_a_small_log {
    use super::*;

    fn fresh() -> Keeping<Embedded, TempDir> {
        let dir = tempfile::tempdir().unwrap();
        let options = EmbeddedOptions { wal_bytes: 64 << 10, ..EmbeddedOptions::default() };
        Keeping(Embedded::open(dir.path(), options).unwrap(), dir)
    }

    headwater_testkit::store_contract!(fresh());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn any_script_agrees_with_the_model(
        steps in model::script(100, true),
        wal_bytes in prop_oneof![Just(1), Just(2 << 10), Just(4 << 20)],
    ) {
        let disk = Arc::new(TestDisk::default());
        let options = EmbeddedOptions { wal_bytes, ..EmbeddedOptions::default() };
        let open = || Embedded::open_on(disk.clone(), options.clone()).unwrap();
        contract::run(model::check(&steps, async || open()));
    }
}

#[test]
fn a_second_owner_is_refused_and_changes_nothing() {
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
fn only_its_owner_may_look_into_the_directory() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("data");
    let store = open(&dir);
    assert_eq!(mode(&dir), 0o700);
    let files = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
    let modes: BTreeMap<_, _> = files.map(|file| (file.clone(), mode(&file))).collect();
    assert!(modes.len() >= 4 && modes.values().all(|mode| *mode == 0o600), "{modes:?}");
    drop(store);
}

#[test]
fn a_newer_format_is_refused_and_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    std::fs::write(dir.path().join("FORMAT"), "headwater data 3\n").unwrap();
    let before = contents(dir.path());
    let refused = Embedded::open(dir.path(), EmbeddedOptions::default()).err();
    assert!(
        matches!(&refused, Some(Error::Unavailable(why)) if why.contains("format 3")),
        "{refused:?}"
    );
    assert_eq!(contents(dir.path()), before);
}

#[test]
fn a_directory_from_before_the_log_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    contract::run(async {
        let store = open(dir.path());
        let put = Action::Put { value: "1".into(), ttl: None };
        let at = store.commit(Write::one(Key::new("/a"), Guard::Absent, put)).await.unwrap().last;
        drop(store);
        for log in ["WAL.0", "WAL.1"] {
            std::fs::remove_file(dir.path().join(log)).unwrap();
        }
        std::fs::write(dir.path().join("FORMAT"), "headwater data 1\n").unwrap();
        assert_eq!(verify_dir(dir.path(), true).unwrap().revision, at);
        let store = open(dir.path());
        let put = Action::Put { value: "2".into(), ttl: None };
        store.commit(Write::one(Key::new("/a"), Guard::At(at), put)).await.unwrap();
        drop(store);
        let format = std::fs::read_to_string(dir.path().join("FORMAT")).unwrap();
        assert_eq!(format, "headwater data 2\n");
        assert_eq!(verify_dir(dir.path(), true).unwrap().revision, at.next());
    });
}

#[test]
fn history_beyond_its_bytes_is_dropped_without_being_asked() {
    let retention = Retention { bytes: 100_000, ..Retention::default() };
    let options = EmbeddedOptions { retention, ..EmbeddedOptions::default() };
    let store = Embedded::open_on(Arc::new(TestDisk::default()), options).unwrap();
    contract::run(async {
        let key = Key::new("/r/a");
        let mut guard = Guard::Absent;
        // Retention looks once a second, so writing goes on until it has.
        while store.usage().history_bytes < 200_000 || store.condition().compacted < FIRST {
            let put = Action::Put { value: vec![b'x'; 1_000].into(), ttl: None };
            guard =
                Guard::At(store.commit(Write::one(key.clone(), guard, put)).await.unwrap().last);
        }
        while store.usage().history_bytes > 100_000 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let Condition { revision, compacted, .. } = store.condition();
        assert!(compacted > FIRST && compacted < revision);
        let gone = store.watch("/r/", FIRST).await.err();
        assert!(matches!(gone, Some(Error::Compacted { .. })), "{gone:?}");
    });
}

#[test]
fn a_time_to_live_goes_on_over_a_restart() {
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
