//! The scrub finds damage in sealed segments of a running store.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headwater_store::{
    Action, Embedded, EmbeddedOptions, Guard, Key, Store, StoreCondition, Write,
};
use headwater_testkit::contract;

use crate::disk::TestDisk;

/// With small segments, and a scrub that hardly pauses.
fn open(disk: &TestDisk) -> Embedded {
    let (segment_bytes, scrub_pause) = (32 << 10, Duration::from_millis(1));
    let options = EmbeddedOptions { segment_bytes, scrub_pause, ..EmbeddedOptions::default() };
    Embedded::open_on(Arc::new(disk.clone()), options).unwrap()
}

/// Fills three segments: each write is a frame of 12 KiB, so two of them are sealed.
async fn fill(store: &Embedded) {
    for n in 0..6 {
        let put = Action::Put { value: vec![n; 9_000].into(), ttl: None };
        store.commit(Write::one(Key::new(format!("/s/{n}")), Guard::Absent, put)).await.unwrap();
    }
}

/// Changes a sealed segment while the store runs, and returns what is reported.
async fn found(reopen: bool, change: impl Fn(&mut Vec<u8>)) -> String {
    let disk = TestDisk::default();
    let mut store = open(&disk);
    fill(&store).await;
    if reopen {
        drop(store);
        store = open(&disk);
    }
    assert_eq!(store.condition().damage, None, "nothing is damaged yet");
    let mut content = disk.file(SEALED);
    change(&mut content);
    disk.put_file(SEALED, content);
    // Only the scrub reads: each segment once per round, and there are three.
    let reads = disk.reads();
    while disk.reads() < reads + 20 {
        if let Some(damage) = store.condition().damage {
            return damage;
        }
        tokio::task::yield_now().await;
    }
    store.condition().damage.expect("the scrub has read all segments several times")
}

const SEALED: &str = "00000002.seg";

/// The positions of the frames of a segment.
fn frames(content: &[u8]) -> Vec<usize> {
    let is_frame = |at: &usize| content[*at..].starts_with(b"hw frame");
    (0..content.len()).step_by(4096).filter(is_frame).collect()
}

#[test]
fn a_flipped_bit_in_any_frame_of_a_sealed_segment_is_found() {
    contract::run(async {
        for reopen in [false, true] {
            for frame in 0..2 {
                for within in [9, 30, 200, 4_000] {
                    let damage = found(reopen, |content| {
                        let frames = frames(content);
                        assert_eq!(frames.len(), 2);
                        content[frames[frame] + within] ^= 1;
                    });
                    let damage = damage.await;
                    let place = format!("{SEALED}, byte {}", frame * 12_288);
                    assert!(damage.contains(&place), "frame {frame}, byte {within}: {damage}");
                }
            }
        }
    });
}

#[test]
fn a_truncated_sealed_segment_is_found() {
    contract::run(async {
        for len in [0, 100, 12_288, 20_000] {
            let damage = found(false, |content| content.truncate(len)).await;
            assert!(damage.contains(SEALED), "cut to {len}: {damage}");
        }
    });
}

#[test]
fn the_scrub_names_the_object_and_leaves_intact_segments_alone() {
    contract::run(async {
        let damage = found(false, |content| content[12_288 + 4_000] ^= 1).await;
        assert!(damage.contains("/s/"), "{damage}");
        // Every state of the log is scrubbed while it grows: nothing is reported.
        let disk = TestDisk::default();
        let store = open(&disk);
        for n in 0..200 {
            let put = Action::Put { value: vec![1; 3_000].into(), ttl: None };
            let key = Key::new(format!("/s/{n}"));
            store.commit(Write::one(key, Guard::Absent, put)).await.unwrap();
        }
        // Two rounds read what is there now at least once.
        let before = store.condition().scrubbed;
        while store.condition().scrubbed.rounds < before.rounds + 2 {
            tokio::task::yield_now().await;
        }
        let StoreCondition { damage, scrubbed, disk_bytes, .. } = store.condition();
        assert_eq!(damage, None);
        // The last segment is not sealed.
        assert!(scrubbed.bytes - before.bytes >= disk_bytes - (64 << 10), "{scrubbed:?}");
    });
}

/// All log lines of this process.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct LogWriter;

impl io::Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn damage_is_reported_in_the_log_and_in_the_condition() {
    let log = tracing_subscriber::fmt().with_ansi(false).with_writer(|| LogWriter).finish();
    tracing::subscriber::set_global_default(log).unwrap();
    contract::run(async {
        // The server's metric headwater_store_damage shows the condition.
        let damage = found(false, |content| content[12_288 + 4_001] ^= 1).await;
        let log = String::from_utf8_lossy(&LOG.lock().unwrap()).into_owned();
        let mut lines = log.lines().filter(|line| line.contains("the scrub found damage"));
        let line = lines.find(|line| line.contains(&damage)).unwrap_or_default();
        assert!(line.contains("ERROR") && line.contains(SEALED), "{damage}: {log}");
    });
}
