//! After any crash, a start finds every acknowledged write, no partial write, and no repeated
//! revision.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::StreamExt;
use headwater_store::embedded::verify_on;
use headwater_store::store::FIRST;
use headwater_store::{
    Action, Change, Embedded, EmbeddedOptions, Error, Guard, Key, Op, Range, Record, Revision,
    Store, StoreCondition, Write,
};
use headwater_testkit::contract;
use headwater_testkit::model::Model;

use crate::crash_points::{self, CrashPoint, CrashPoints};
use crate::disk::{Chance, Context, Done, Kept, Replay, TestDisk};

/// Small segments, so that a script fills many and the cleaner has work.
fn options() -> EmbeddedOptions {
    EmbeddedOptions { segment_bytes: 32 << 10, ..EmbeddedOptions::default() }
}

fn open(disk: &TestDisk) -> Result<Embedded, Error> {
    Embedded::open_on(Arc::new(disk.clone()), options())
}

/// A run: the disk operations, and the number of operations at each acknowledgement.
struct Run {
    disk: TestDisk,
    model: Model,
    /// The number of disk operations at each acknowledgement.
    acknowledged: Vec<(usize, Revision)>,
    compacted: Vec<(usize, Revision)>,
    /// The last revision of each commit: a state between two of them is a partial commit.
    whole: Vec<Revision>,
}

impl Run {
    fn new() -> Run {
        Run {
            disk: TestDisk::default(),
            model: Model::new(FIRST),
            acknowledged: Vec::new(),
            compacted: Vec::new(),
            whole: vec![FIRST],
        }
    }

    /// Writes at random, with compactions and restarts.
    async fn work(&mut self, seed: u64, steps: usize) {
        let mut chance = Chance(seed);
        let mut store = open(&self.disk).unwrap();
        for step in 0..steps {
            match step % 20 {
                9 => {
                    let at = Revision(self.model.newest().0 - chance.next() % 4);
                    store.compact(at).await.unwrap();
                    self.compacted.push((self.disk.now(), at));
                }
                19 => {
                    drop(store);
                    store = open(&self.disk).unwrap();
                }
                _ => {
                    let write = some_write(&self.model, &mut chance);
                    self.model.commit(&write, false).unwrap();
                    self.whole.push(self.model.newest());
                    store.commit(write).await.unwrap();
                    self.acknowledged.push((self.disk.now(), self.model.newest()));
                }
            }
        }
    }

    /// The newest entry that was known after so many operations.
    fn known(marks: &[(usize, Revision)], now: usize, none: Revision) -> Revision {
        let known = marks.iter().take_while(|(at, _)| *at <= now);
        known.map(|(_, revision)| *revision).max().unwrap_or(none)
    }
}

/// Creates, updates and deletes of a few keys, one to three at a time, some of them large.
fn some_write(model: &Model, chance: &mut Chance) -> Write {
    let count = [1, 1, 1, 2, 3][usize::try_from(chance.next() % 5).unwrap()];
    let first = chance.next() % 12;
    let op = |n: u64| {
        let key = Key::new(format!("/c/{}", (first + n) % 12));
        let there = model.get(&key);
        let guard = there.as_ref().map_or(Guard::Absent, |record| Guard::At(record.revision));
        let size = [0, 10, 200, 3_000, 9_000][usize::try_from(chance.next() % 5).unwrap()];
        let byte = u8::try_from(chance.next() % 256).unwrap();
        let action = match there {
            Some(_) if chance.next().is_multiple_of(4) => Action::Delete,
            _ => Action::Put { value: Bytes::from(vec![byte; size]), ttl: None },
        };
        Op { key, guard, action }
    };
    Write { ops: (0..count).map(op).collect() }
}

/// Opens the files that a crash left and compares them with the model.
async fn check(run: &Run, now: usize, left: &TestDisk) {
    let store = open(left).expect("a crash is no damage");
    let revision = store.revision().await.unwrap();
    let acknowledged = Run::known(&run.acknowledged, now, FIRST);
    assert!(revision >= acknowledged, "{acknowledged} was acknowledged, {revision} is there");
    assert!(run.whole.contains(&revision), "{revision} is in the middle of a commit");
    let compacted = store.condition().compacted;
    assert!(compacted >= Run::known(&run.compacted, now, Revision::ZERO), "forgotten twice");
    let mut model = run.model.clone();
    model.truncate(revision);
    let range = Range { prefix: "/c/".into(), at: Some(revision), ..Range::default() };
    let page = store.range(range.clone()).await.unwrap();
    assert_eq!(page.records, model.range(&range).unwrap().records, "the state at {revision}");
    check_history(&store, &model, compacted.max(FIRST), revision).await;
    // Revisions continue without a gap.
    let next =
        Write::one(Key::new("/after"), Guard::Absent, Action::Put { value: "1".into(), ttl: None });
    assert_eq!(store.commit(next).await.unwrap().last, revision.next());
}

async fn check_history(store: &Embedded, model: &Model, after: Revision, to: Revision) {
    let mut watch = store.watch("/c/", after).await.unwrap();
    let (mut seen, mut position): (Vec<Change>, _) = (Vec::new(), after);
    while position < to {
        let batch = watch.next().await.unwrap().unwrap();
        position = batch.complete_to;
        seen.extend(batch.changes);
    }
    let expected = model.changes().iter().filter(|change| change.revision > after);
    assert_eq!(seen, expected.cloned().collect::<Vec<_>>(), "the history after {after}");
}

/// R1, R2
#[test]
fn every_crash_preserves_the_acknowledged_writes() {
    let mut run = Run::new();
    contract::run(run.work(1, 110));
    let images = Mutex::default();
    std::thread::scope(|scope| {
        for share in 0..THREADS {
            let (run, images) = (&run, &images);
            scope.spawn(move || contract::run(crash_everywhere(run, share, images)));
        }
    });
    let images: BTreeMap<Option<CrashPoint>, usize> = images.into_inner().unwrap();
    let all: usize = images.values().sum();
    assert!(all > 2_000, "only {all} images");
    for point in crash_points::ALL {
        // Three times in five ways.
        let count = images.get(&Some(point)).copied().unwrap_or_default();
        assert!(count >= 15, "{point:?}: only {count} of {images:?}");
    }
}

const THREADS: usize = 2;

/// Crashes after every operation (of this thread's share) in five ways.
async fn crash_everywhere(
    run: &Run,
    share: usize,
    images: &Mutex<BTreeMap<Option<CrashPoint>, usize>>,
) {
    let (mut replay, mut points) = (Replay::default(), CrashPoints::default());
    for (now, done) in run.disk.history().iter().enumerate() {
        replay.step(done);
        let point = points.step(done);
        if now % THREADS != share {
            continue;
        }
        let seed = now as u64;
        let (some, files, torn) = (Kept::Some(seed), Kept::Files(seed), Kept::Torn(seed));
        for kept in [Kept::Nothing, Kept::Everything, some, files, torn] {
            let _context = Context(format!("after operation {now} ({point:?}), {kept:?} kept"));
            check(run, now + 1, &replay.crash(kept)).await;
            *images.lock().unwrap().entry(point).or_default() += 1;
        }
    }
}

/// R1, R2
#[test]
fn a_power_failure_during_the_start_after_a_kill_loses_nothing() {
    let mut run = Run::new();
    contract::run(run.work(7, 60));
    contract::run(async {
        let (mut replay, mut points) = (Replay::default(), CrashPoints::default());
        let mut images = 0;
        for (now, done) in run.disk.history().iter().enumerate() {
            replay.step(done);
            let Some(point) = points.step(done) else { continue };
            let killed = replay.crash(Kept::Everything);
            let shown = show(&open(&killed).unwrap(), &killed);
            let mut replay = replay.clone();
            for (later, done) in killed.history().iter().enumerate() {
                replay.step(done);
                let seed = later as u64;
                for kept in [Kept::Nothing, Kept::Some(seed), Kept::Files(seed)] {
                    let what = format!("killed after operation {now} ({point:?})");
                    let _context = Context(format!("{what}, cut after {later}, {kept:?} kept"));
                    let left = replay.crash(kept);
                    if later + 1 >= shown.start {
                        check_shown(&left.copy(), &shown).await;
                    }
                    check(&run, now + 1, &left).await;
                    images += 1;
                }
            }
        }
        assert!(images > 500, "only {images} images");
    });
}

/// C9
#[test]
fn a_crash_during_a_salvage_loses_nothing_that_it_can_read() {
    let mut run = Run::new();
    contract::run(run.work(9, 60));
    contract::run(async {
        let mut replay = Replay::default();
        run.disk.history().iter().for_each(|done| replay.step(done));
        for done in damage(&replay.crash(Kept::Everything)) {
            replay.step(&done);
        }
        let damaged = replay.crash(Kept::Everything);
        let salvaged = state(&salvage(&damaged)).await;
        assert!(!salvaged.is_empty());
        for (now, done) in damaged.history().iter().enumerate() {
            replay.step(done);
            let seed = now as u64;
            for kept in [Kept::Nothing, Kept::Everything, Kept::Some(seed), Kept::Files(seed)] {
                let _context = Context(format!("after operation {now}, {kept:?} kept"));
                let left = replay.crash(kept);
                let store = open(&left).unwrap_or_else(|_| salvage(&left));
                assert_eq!(state(&store).await, salvaged);
            }
        }
    });
}

/// Flips a bit of a row in the first segment where it is noticed.
fn damage(disk: &TestDisk) -> [Done; 2] {
    let names = disk.names();
    let name = names.iter().find(|name| name.ends_with(".seg")).unwrap();
    let content = disk.file(name);
    let inode = disk.inode(name);
    let flips = (0..content.len()).step_by(50).map(|at| (at, content[at] ^ 1));
    let noticed = flips.map(|(at, byte)| {
        let mut damaged = content.clone();
        damaged[at] = byte;
        (Done::Wrote { inode, offset: at as u64, data: vec![byte] }, damaged)
    });
    let mut noticed = noticed.filter(|(_, damaged)| {
        let copy = disk.copy();
        copy.put_file(name, damaged.clone());
        verify_on(&copy).is_err_and(|error| error.to_string().contains("/c/"))
    });
    let (wrote, _) = noticed.next().unwrap();
    [wrote, Done::Synced { inode }]
}

fn salvage(disk: &TestDisk) -> Embedded {
    let options = EmbeddedOptions { salvage: true, ..options() };
    Embedded::open_on(Arc::new(disk.clone()), options).unwrap()
}

async fn state(store: &Embedded) -> Vec<Record> {
    store.range(Range::default()).await.unwrap().records
}

#[test]
fn data_shown_after_a_kill_survives_a_power_failure() {
    let mut run = Run::new();
    contract::run(run.work(3, 12));
    contract::run(async {
        let mut replay = Replay::default();
        for (now, done) in run.disk.history().iter().enumerate() {
            replay.step(done);
            if !now.is_multiple_of(4) {
                continue;
            }
            let _context = Context(format!("killed after operation {now}"));
            kill_and_cut(&replay).await;
        }
    });
}

#[test]
fn a_compaction_survives_even_if_it_is_the_only_new_frame_of_the_log() {
    let disk = TestDisk::default();
    contract::run(async {
        let store = open(&disk).unwrap();
        let mut model = Model::new(FIRST);
        for n in 0..3 {
            let write = some_write(&model, &mut Chance(n));
            model.commit(&write, false).unwrap();
            store.commit(write).await.unwrap();
        }
        store.compact(model.newest()).await.unwrap();
        let mut replay = Replay::default();
        disk.history().iter().for_each(|done| replay.step(done));
        kill_and_cut(&replay).await;
    });
}

/// A kill keeps everything that was written, synced or not; a power failure during the next start
/// or its writes does not.
async fn kill_and_cut(replay: &Replay) {
    let killed = replay.crash(Kept::Everything);
    let shown = show_and_write(&killed).await;
    let mut replay = replay.clone();
    for (later, done) in killed.history()[..shown.end].iter().enumerate() {
        replay.step(done);
        if later + 1 < shown.start {
            continue;
        }
        for kept in [Kept::Nothing, Kept::Torn(later as u64)] {
            let _context = Context(format!("cut after operation {later}, {kept:?} kept"));
            check_shown(&replay.crash(kept), &shown).await;
        }
    }
}

/// What a store showed, and between which operations.
struct Shown {
    revision: Revision,
    compacted: Revision,
    start: usize,
    end: usize,
}

fn show(store: &Embedded, disk: &TestDisk) -> Shown {
    let StoreCondition { revision, compacted, .. } = store.condition();
    Shown { revision, compacted, start: disk.now(), end: disk.now() }
}

/// Starts a store, reads it, then writes.
async fn show_and_write(disk: &TestDisk) -> Shown {
    let store = open(disk).unwrap();
    let shown = show(&store, disk);
    let put = Action::Put { value: vec![b'x'; 2_000].into(), ttl: None };
    store.commit(Write::one(Key::new("/after"), Guard::Absent, put)).await.unwrap();
    Shown { end: disk.now(), ..shown }
}

async fn check_shown(left: &TestDisk, shown: &Shown) {
    let store = open(left).unwrap();
    let StoreCondition { revision, compacted, .. } = store.condition();
    assert!(revision >= shown.revision, "{} was shown, {revision} is there", shown.revision);
    assert!(compacted >= shown.compacted, "{} was forgotten, {compacted} is", shown.compacted);
}

/// R1, R2
#[test]
fn an_append_cut_at_any_byte_is_absent() {
    let mut run = Run::new();
    contract::run(run.work(5, 9));
    let history = run.disk.history();
    let logs: Vec<usize> = history.iter().filter_map(segment_inode).collect();
    assert!(!logs.is_empty());
    contract::run(async {
        let (mut replay, mut images) = (Replay::default(), 0);
        for (now, done) in history.iter().enumerate() {
            replay.step(done);
            let Done::Wrote { inode, data, .. } = done else { continue };
            if !logs.contains(inode) {
                continue;
            }
            // Every byte of the frame's header, and many after it.
            let cuts = (0..data.len()).filter(|cut| *cut < 80 || cut.is_multiple_of(61));
            for cut in cuts.chain([data.len() - 1]) {
                let _context = Context(format!("after operation {now}, cut at {cut}"));
                check(&run, now + 1, &replay.crash(Kept::Cut(cut))).await;
                images += 1;
            }
        }
        assert!(images > 500, "only {images} images");
    });
}

/// The segment that an operation created.
fn segment_inode(done: &Done) -> Option<usize> {
    match done {
        Done::Created { name, inode } if name.ends_with(".seg") => Some(*inode),
        _ => None,
    }
}
