//! A killed process: all acknowledged writes exist at the next start.
//!
//! The test starts itself again as the victim, which writes and reports its writes, and kills it. A
//! kill keeps the system's page cache, so this does not test syncs (`crash.rs` does), but it uses a
//! real process with real files, threads and locks. `HEADWATER_KILL_ROUNDS` sets the number of kills.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use headwater_store::embedded::verify_dir;
use headwater_store::{
    Action, Embedded, EmbeddedOptions, Guard, Key, Range, Revision, Store, Write,
};
use headwater_testkit::contract;

use crate::disk::Chance;

const DIR: &str = "HEADWATER_TEST_VICTIM";

/// Not a test by itself: writes until it is killed.
#[test]
fn victim() {
    let Ok(dir) = std::env::var(DIR) else { return };
    // Small segments, so that kills also hit the cleaner.
    let options = EmbeddedOptions { segment_bytes: 64 << 10, ..EmbeddedOptions::default() };
    let store = Embedded::open(Path::new(&dir), options).unwrap();
    contract::run(async {
        let start = store.revision().await.unwrap();
        for n in start.0.. {
            let put = Action::Put { value: vec![b'x'; 3_000].into(), ttl: None };
            let write = Write::one(Key::new(format!("/k/{n:08}")), Guard::Absent, put);
            let done = store.commit(write).await.unwrap();
            let mut out = std::io::stdout();
            writeln!(out, "done {n} {}", done.last).and_then(|()| out.flush()).unwrap();
            if n % 50 == 0 {
                store.compact(done.last).await.unwrap();
            }
        }
    });
}

fn start_victim(dir: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["kill::victim", "--exact", "--nocapture"])
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn a_killed_process_leaves_all_acknowledged_writes() {
    let dir = tempfile::tempdir().unwrap();
    let mut chance = Chance(11);
    let mut acknowledged: BTreeMap<Key, Revision> = BTreeMap::new();
    let rounds = std::env::var("HEADWATER_KILL_ROUNDS").ok().and_then(|text| text.parse().ok());
    for _ in 0..rounds.unwrap_or(8) {
        let mut victim = start_victim(dir.path());
        let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        let patience = usize::try_from(1 + chance.next() % 60).unwrap();
        let said = lines.map_while(Result::ok).filter_map(|line| parse(&line));
        let mut said = said.peekable();
        for (key, revision) in said.by_ref().take(patience) {
            acknowledged.insert(key, revision);
        }
        victim.kill().unwrap();
        acknowledged.extend(said);
        victim.wait().unwrap();
        verify_dir(dir.path()).unwrap();
        contract::run(check(dir.path(), &acknowledged));
    }
    assert!(acknowledged.len() > 8);
}

/// `done <n> <revision>`, possibly after other output of the test runner on the line.
fn parse(line: &str) -> Option<(Key, Revision)> {
    let mut words = line.split_once("done ")?.1.split(' ');
    let n: u64 = words.next()?.parse().ok()?;
    Some((Key::new(format!("/k/{n:08}")), Revision(words.next()?.parse().ok()?)))
}

async fn check(dir: &Path, acknowledged: &BTreeMap<Key, Revision>) {
    let store = Embedded::open(dir, EmbeddedOptions::default()).unwrap();
    let page = store.range(Range { prefix: "/k/".into(), ..Range::default() }).await.unwrap();
    let there: BTreeMap<Key, Revision> =
        page.records.into_iter().map(|record| (record.key, record.revision)).collect();
    for (key, revision) in acknowledged {
        assert_eq!(there.get(key), Some(revision), "{key}");
    }
    let revisions: std::collections::BTreeSet<_> = there.values().collect();
    assert_eq!(revisions.len(), there.len(), "no revision twice");
}
