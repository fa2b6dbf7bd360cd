//! One wrong bit anywhere in a directory: verification, start and salvage agree on it, nothing wrong
//! is served, and nothing is lost in silence.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range as Span;
use std::sync::Arc;

use futures::StreamExt;
use headwater_store::embedded::{Verified, verify_on};
use headwater_store::{
    Action, Change, Embedded, EmbeddedOptions, Error, Guard, Key, Op, Range, Record, Revision,
    Store, Write,
};
use headwater_testkit::contract;

use crate::disk::{Chance, Context, TestDisk};

/// How many bits are tried.
const TRIALS: u64 = 1_000;

fn open(disk: &TestDisk, salvage: bool) -> Result<Embedded, Error> {
    let options =
        EmbeddedOptions { segment_bytes: 24 << 10, salvage, ..EmbeddedOptions::default() };
    Embedded::open_on(Arc::new(disk.clone()), options)
}

/// A directory with several segments, one of them from the cleaner, with updates, deletions and
/// history; of a store that was closed, or killed.
async fn directory(closed: bool) -> TestDisk {
    let disk = TestDisk::default();
    let store = open(&disk, false).unwrap();
    let mut there: BTreeMap<u64, Revision> = BTreeMap::new();
    let mut chance = Chance(17);
    for step in 0..60 {
        // Objects below 6 are never changed again, so that the cleaner copies them.
        let first = if step < 6 { step } else { 6 + chance.next() % 24 };
        let count = if step < 6 { 1 } else { 1 + chance.next() % 3 };
        let changed: BTreeSet<u64> = (0..count).map(|n| first + n).collect();
        let op = |n: &u64| {
            let size = [0, 1_500, 2_900, 3_600][usize::try_from(chance.next() % 4).unwrap()];
            let byte = u8::try_from(1 + chance.next() % 255).unwrap();
            let put = Action::Put { value: vec![byte; size].into(), ttl: None };
            let (guard, action) = match there.get(n) {
                Some(at) if chance.next().is_multiple_of(3) => (Guard::At(*at), Action::Delete),
                Some(at) => (Guard::At(*at), put),
                None => (Guard::Absent, put),
            };
            Op { key: Key::new(format!("/bit/{n}")), guard, action }
        };
        let ops: Vec<Op> = changed.iter().map(op).collect();
        let deleted: Vec<bool> = ops.iter().map(|op| matches!(op.action, Action::Delete)).collect();
        let done = store.commit(Write { ops }).await.unwrap();
        for ((n, deleted), at) in changed.iter().zip(deleted).zip(done.first.0..) {
            match deleted {
                true => drop(there.remove(n)),
                false => drop(there.insert(*n, Revision(at))),
            }
        }
        if step == 30 {
            let before = disk.names();
            store.compact(done.last).await.unwrap();
            // Until the cleaner has replaced a segment.
            let is_cleaned = |now: &TestDisk| {
                let names = now.names();
                names.iter().any(|name| is_base(now, name))
                    && before.iter().any(|old| old.ends_with(".seg") && !names.contains(old))
            };
            while !is_cleaned(&disk.copy()) {
                tokio::task::yield_now().await;
            }
        }
    }
    if closed {
        store.close();
    }
    let disk = disk.copy();
    drop(store);
    disk
}

fn is_base(disk: &TestDisk, name: &str) -> bool {
    name.ends_with(".seg") && disk.file(name).get(60) == Some(&1)
}

/// Everything that a store serves.
#[derive(Debug, PartialEq)]
struct Served {
    newest: Revision,
    compacted: Revision,
    /// The state at each revision that is kept.
    states: Vec<Vec<Record>>,
    changes: Vec<Change>,
}

async fn serve(store: &Embedded) -> Result<Served, Error> {
    let condition = store.condition();
    let (newest, compacted) = (condition.revision, condition.compacted);
    let mut states = Vec::new();
    for at in compacted.0..=newest.0 {
        let range = Range { at: Some(Revision(at)), ..Range::default() };
        states.push(store.range(range).await?.records);
    }
    let (mut changes, mut position) = (Vec::new(), compacted);
    let mut watch = store.watch("/", compacted).await?;
    while position < newest {
        let batch = watch.next().await.unwrap()?;
        position = batch.complete_to;
        changes.extend(batch.changes);
    }
    Ok(Served { newest, compacted, states, changes })
}

/// A row that the test found by itself.
#[derive(Clone, Debug)]
struct FoundRow {
    bytes: Span<usize>,
    key: String,
    revision: Revision,
}

impl FoundRow {
    /// Whether a byte contains a length or a part of the key: then the key cannot be read.
    fn hides_key(&self, byte: usize) -> bool {
        let within = byte - self.bytes.start;
        (4..12).contains(&within) || (44..44 + self.key.len()).contains(&within)
    }
}

/// The frames of a segment, with their rows. A recycled file may have frames of another one.
fn frames(name: &str, content: &[u8]) -> Vec<(Span<usize>, Vec<FoundRow>)> {
    let number = |at: usize, len: usize| {
        (0..len).fold(0, |sum, n| sum | usize::from(content[at + n]) << (8 * n))
    };
    let mut frames = Vec::new();
    let mut at = 0;
    let is_own = |at: usize| {
        content[at..].starts_with(b"hw frame") && format!("{:08}.seg", number(at + 16, 8)) == name
    };
    while at < content.len() && is_own(at) {
        let (mut row, mut rows) = (at + 64, Vec::new());
        for _ in 0..number(at + 48, 4) {
            let (key_len, value_len) = (number(row + 6, 2), number(row + 8, 4));
            let end = row + 44 + key_len + value_len;
            let key = String::from_utf8(content[row + 44..row + 44 + key_len].to_vec()).unwrap();
            let revision = Revision(number(row + 12, 8) as u64);
            rows.push(FoundRow { bytes: row..end, key, revision });
            row = end;
        }
        let end = at + 64 + number(at + 12, 4);
        frames.push((at..end, rows));
        at = end.next_multiple_of(4096);
    }
    frames
}

/// One bit of a file, and what it belongs to.
#[derive(Debug)]
struct Bit {
    name: String,
    byte: usize,
    bit: u8,
    /// The frame and the row it is in, if so.
    frame: Option<Span<usize>>,
    row: Option<FoundRow>,
}

impl Bit {
    /// A bit of any file: small files are as likely as large ones every second time.
    fn choose(disk: &TestDisk, used: &BTreeSet<String>, chance: &mut Chance) -> Bit {
        let mut below = |end: usize| usize::try_from(chance.next() % end as u64).unwrap();
        let names = disk.names();
        let mut name = &names[below(names.len())];
        let all: usize = names.iter().map(|name| disk.file(name).len()).sum();
        if below(2) == 0 {
            let mut at = below(all);
            let holds = |candidate: &&String| {
                let len = disk.file(candidate).len();
                let here = at < len;
                at = at.saturating_sub(len);
                here
            };
            name = names.iter().find(holds).unwrap();
        }
        let content = disk.file(name);
        let (byte, bit) = (below(content.len()), u8::try_from(below(8)).unwrap());
        let content_used = if used.contains(name) { &content[..] } else { &[] };
        let found = frames(name, content_used).into_iter().find(|(frame, _)| frame.contains(&byte));
        let (frame, rows) = found.map_or((None, Vec::new()), |(frame, rows)| (Some(frame), rows));
        let row = rows.into_iter().find(|row| row.bytes.contains(&byte));
        Bit { name: name.clone(), byte, bit, frame, row }
    }

    fn flip(&self, disk: &TestDisk) -> TestDisk {
        let damaged = disk.copy();
        let mut content = disk.file(&self.name);
        content[self.byte] ^= 1 << self.bit;
        damaged.put_file(&self.name, content);
        damaged
    }

    /// A message names the place, and the object if its row is hit.
    fn is_named(&self, message: &str) -> bool {
        let is_placed = match &self.frame {
            Some(frame) => message.contains(&format!("{}, byte {}", self.name, frame.start)),
            None => message.contains(&self.name),
        };
        let Some(row) = &self.row else { return is_placed };
        is_placed && (row.hides_key(self.byte) || message.contains(&format!("{},", row.key)))
    }
}

/// R14, C9
#[test]
fn one_wrong_bit_is_refused_with_its_place_or_has_no_effect() {
    let of = |closed: bool| {
        std::thread::spawn(move || {
            let mut seen = Vec::new();
            contract::run(async { seen = try_bits(closed).await });
            seen
        })
    };
    let (mut rows, mut others, mut harmless) = (0, 0, 0);
    for seen in [of(true), of(false)] {
        let seen = seen.join().unwrap();
        rows += seen.iter().filter(|hit| **hit == Hit::Row).count();
        others += seen.iter().filter(|hit| **hit == Hit::Other).count();
        harmless += seen.iter().filter(|hit| **hit == Hit::Nothing).count();
    }
    assert!(rows > 150 && others > 20 && harmless > 50, "{rows} {others} {harmless}");
}

/// What a wrong bit damages.
#[derive(Debug, PartialEq)]
enum Hit {
    Row,
    Other,
    Nothing,
}

async fn try_bits(closed: bool) -> Vec<Hit> {
    let disk = directory(closed).await;
    let good = verify_on(&disk).unwrap();
    let right = serve(&open(&disk.copy(), false).unwrap()).await.unwrap();
    check_variety(&disk, &right);
    // The others are free, or were dropped just before the store was killed.
    let is_used =
        |name: &String| name.ends_with(".seg") && verify_on(&without(&disk, name)).is_err();
    let used = disk.names().into_iter().filter(is_used).collect();
    let mut chance = Chance(u64::from(closed));
    let mut seen = Vec::new();
    for _ in 0..TRIALS / 2 {
        let bit = Bit::choose(&disk, &used, &mut chance);
        let _context = Context(format!("closed: {closed}, {bit:?}"));
        let refused = try_bit(&disk, &bit, good, &right).await;
        assert!(refused || bit.row.is_none(), "a row was hit without effect");
        seen.push(match (&bit.row, refused) {
            (Some(_), _) => Hit::Row,
            (None, true) => Hit::Other,
            (None, false) => Hit::Nothing,
        });
    }
    seen
}

/// The directory has everything that the test is about.
fn check_variety(disk: &TestDisk, right: &Served) {
    let segments = disk.names().into_iter().filter(|name| name.ends_with(".seg"));
    let (base, log): (Vec<_>, Vec<_>) = segments.partition(|name| is_base(disk, name));
    assert!(!base.is_empty() && log.len() >= 2, "{base:?} {log:?}");
    assert!(right.states.len() > 40, "history");
    assert!(right.changes.iter().any(|change| change.value.is_empty()), "deletions");
    assert!(right.states[0].len() > 10 && right.compacted > Revision(1));
}

/// Returns whether the bit was refused.
async fn try_bit(disk: &TestDisk, bit: &Bit, good: Verified, right: &Served) -> bool {
    let damaged = bit.flip(disk);
    let verified = verify_on(&damaged);
    assert_eq!(damaged.now(), 0, "a verification changes nothing");
    let opened = open(&damaged.copy(), false);
    assert_eq!(verified.is_ok(), opened.is_ok(), "{verified:?} {opened:?}");
    let refused = match (verified, opened) {
        (Ok(verified), Ok(store)) => {
            assert_eq!(verified, good);
            assert_eq!(&serve(&store).await.unwrap(), right);
            false
        }
        (Err(verified), Err(opened)) => {
            assert_eq!(verified.to_string(), opened.to_string());
            let other_format = matches!(&opened, Error::Unavailable(_)) && bit.name == "FORMAT";
            assert!(other_format || matches!(&opened, Error::Damaged { .. }), "{opened}");
            assert!(other_format || bit.is_named(&opened.to_string()), "{opened}");
            true
        }
        _ => unreachable!(),
    };
    check_salvage(&damaged, bit, refused, right).await;
    refused
}

/// A salvage serves every row that is whole, and names the one that is not.
async fn check_salvage(damaged: &TestDisk, bit: &Bit, refused: bool, right: &Served) {
    let salvaged = damaged.copy();
    let store = open(&salvaged, true).expect("one wrong bit can be salvaged");
    assert_eq!(!store.lost().is_empty(), refused, "{:?}", store.lost());
    if !refused {
        assert_eq!(&serve(&store).await.unwrap(), right);
        return;
    }
    let lost = store.lost().join("\n");
    assert!(bit.is_named(&lost), "{lost}");
    let page = store.range(Range::default()).await.unwrap();
    assert!(page.revision > right.newest, "no revision gets another meaning");
    let newest = right.states.last().unwrap();
    let hit = bit.row.as_ref().map_or("", |row| &row.key);
    let others = |records: &[Record]| -> Vec<Record> {
        records.iter().filter(|record| record.key.as_str() != hit).cloned().collect()
    };
    assert_eq!(others(&page.records), others(newest));
    let find = |records: &[Record]| records.iter().find(|r| r.key.as_str() == hit).cloned();
    let (served, expected) = (find(&page.records), find(newest));
    let row_revision = bit.row.as_ref().map(|row| row.revision);
    let is_newest = right.changes.iter().rfind(|change| change.key.as_str() == hit);
    let is_newest = is_newest
        .map_or(expected.as_ref().map(|record| record.revision), |change| Some(change.revision))
        == row_revision;
    match is_newest {
        false => assert_eq!(served, expected, "an older row was hit"),
        // An older version of the object, if there is one; never another value.
        true => {
            if let Some(served) = served {
                let known = right.states.iter().flatten().any(|record| *record == served);
                assert!(known || served.revision <= right.compacted, "{served:?}");
                assert!(Some(served.revision) < row_revision);
            }
        }
    }
    drop(store);
    verify_on(&salvaged).unwrap();
}

/// C14
#[test]
fn a_lost_file_is_refused_by_all_and_a_salvage_serves_the_other_segments() {
    contract::run(async {
        let disk = directory(true).await;
        let right = serve(&open(&disk.copy(), false).unwrap()).await.unwrap();
        let mut salvaged = 0;
        for name in disk.names() {
            let _context = Context(format!("without {name}"));
            let damaged = without(&disk, &name);
            let (verified, opened) = (verify_on(&damaged), open(&damaged.copy(), false));
            assert_eq!(verified.is_ok(), opened.is_ok(), "{verified:?} {opened:?}");
            if let Ok(store) = opened {
                assert_ne!(name, "FORMAT");
                assert_eq!(serve(&store).await.unwrap(), right);
            } else if name.ends_with(".seg") {
                check_without_segment(&disk, &damaged, &name, &right).await;
                salvaged += 1;
            }
        }
        assert!(salvaged >= 3, "{salvaged}");
    });
}

fn without(disk: &TestDisk, name: &str) -> TestDisk {
    let damaged = disk.copy();
    headwater_store::embedded::disk::Disk::remove(&damaged, name).unwrap();
    damaged
}

/// Objects whose newest row is elsewhere are there; of the others, at most an older version.
async fn check_without_segment(disk: &TestDisk, damaged: &TestDisk, name: &str, right: &Served) {
    let rows = frames(name, &disk.file(name)).into_iter().flat_map(|(_, rows)| rows);
    let gone: BTreeSet<Revision> = rows.map(|row| row.revision).collect();
    let store = open(damaged, true).unwrap();
    assert!(!store.lost().is_empty());
    let served = store.range(Range::default()).await.unwrap().records;
    for record in right.states.last().unwrap() {
        let found = served.iter().find(|found| found.key == record.key);
        match gone.contains(&record.revision) {
            false => assert_eq!(found, Some(record)),
            // The cleaner may have left another copy.
            true => assert!(
                found.is_none_or(|found| found == record || found.revision < record.revision)
            ),
        }
    }
}
