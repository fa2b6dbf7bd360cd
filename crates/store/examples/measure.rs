//! Measures the embedded engine: `measure DIR MODE [NUMBER] [NUMBER]`, for release builds.
//!
//! - `commits [SECONDS]`: 64 writers of 4 KB values and one watcher.
//! - `one [SECONDS]`: one writer of 6 KB values.
//! - `fill [OBJECTS] [BYTES]`: 100,000 objects of 6 KB, then stops without closing.
//! - `load`: opens and reads everything.
//! - `update [SECONDS]`: 64 writers update the objects.
//! - `device [CLIENTS] [OBJECTS]`: creates, updates and deletes of 6.1 KB in rounds; prints the bytes that the
//!   device of the directory wrote for each. It must be mounted from a device that nothing else uses.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program to look at figures")]

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use headwater_store::{
    Action, Embedded, EmbeddedOptions, Guard, Key, Range, Revision, Store, Write,
};
use tokio::task::JoinSet;

/// The same as in the binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const OBJECTS: usize = 100_000;

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().collect();
    let (dir, what) = (Path::new(&args[1]), args[2].as_str());
    let number = |at: usize, default| args.get(at).map_or(default, |text| text.parse().unwrap());
    let time = Duration::from_secs(number(3, 5));
    let (start, before) = (Instant::now(), cpu());
    let store = Arc::new(Embedded::open(dir, EmbeddedOptions::default()).unwrap());
    println!("open: {:?}, CPU {:?}; {:?}", start.elapsed(), cpu() - before, store.usage());
    match what {
        "commits" => commits(&store, 64, 4096, 20_000, time).await,
        "one" => commits(&store, 1, 6144, 20_000, time).await,
        "update" => commits(&store, 64, 6144, OBJECTS, time).await,
        "fill" => {
            let bytes = usize::try_from(number(4, 6144)).unwrap();
            fill(&store, usize::try_from(number(3, OBJECTS as u64)).unwrap(), bytes).await;
        }
        "device" => device(&store, dir, number(3, 16), number(4, 20_000)).await,
        "load" => load(&store).await,
        other => panic!("what is {other}?"),
    }
    println!("{:?}; {:?}; resident {} MB", store.usage(), store.condition(), resident() >> 20);
    if what == "fill" {
        std::process::abort();
    }
    let start = Instant::now();
    store.close();
    println!("close: {:?}", start.elapsed());
}

fn key(n: usize) -> Key {
    Key::new(format!("/registry/core/pods/namespace-{}/pod-{n:08}-abcde", n % 50))
}

fn value(size: usize, seed: usize) -> Bytes {
    let mut state = seed as u64;
    let mut bytes = vec![0; size];
    for byte in &mut bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *byte = (state >> 56) as u8;
    }
    bytes.into()
}

/// Writers on their own keys, one watcher that follows.
async fn commits(
    store: &Arc<Embedded>,
    writers: usize,
    size: usize,
    objects: usize,
    time: Duration,
) {
    let value = value(size, 7);
    let mut revisions = vec![None; objects];
    let page =
        store.range(Range { prefix: "/registry/".into(), ..Range::default() }).await.unwrap();
    for record in page.records {
        let (_, n) = record.key.as_str().rsplit_once("pod-").unwrap();
        revisions[n[..8].parse::<usize>().unwrap()] = Some(record.revision);
    }
    let (done, cpu, start) = (Arc::new(AtomicU64::new(0)), cpu(), Instant::now());
    let mut tasks = JoinSet::new();
    for writer in 0..writers {
        let (store, done, value) = (store.clone(), done.clone(), value.clone());
        let mut revisions: Vec<Option<Revision>> =
            revisions.iter().skip(writer).step_by(writers).copied().collect();
        tasks.spawn(async move {
            let mut latest = Vec::new();
            let mut n = 0;
            while start.elapsed() < time {
                let begun = Instant::now();
                let guard = revisions[n].map_or(Guard::Absent, Guard::At);
                let put = Action::Put { value: value.clone(), ttl: None };
                let write = Write::one(key(writer + writers * n), guard, put);
                revisions[n] = Some(store.commit(write).await.unwrap().last);
                done.fetch_add(1, Ordering::Relaxed);
                latest.push(begun.elapsed());
                n = (n + 1) % revisions.len();
            }
            latest
        });
    }
    let from = store.revision().await.unwrap();
    let mut watch = store.watch("/registry/", from).await.unwrap();
    let mut latencies = Vec::new();
    let mut seen = 0;
    loop {
        tokio::select! {
            biased;
            done = tasks.join_next() => match done {
                Some(done) => latencies.extend(done.unwrap()),
                None => break,
            },
            batch = watch.next() => seen += batch.unwrap().unwrap().changes.len(),
        }
    }
    let (done, elapsed) = (done.load(Ordering::Relaxed), start.elapsed());
    latencies.sort();
    let at = |share: f64| latencies[(latencies.len() as f64 * share) as usize];
    println!(
        "{:.0} commits/s, p50 {:?}, p99 {:?}",
        done as f64 / elapsed.as_secs_f64(),
        at(0.5),
        at(0.99)
    );
    let cpu = (self::cpu() - cpu).as_secs_f64() / done as f64;
    println!("CPU per commit {:.1} us; watched {seen} of {done}", cpu * 1e6);
}

async fn fill(store: &Arc<Embedded>, objects: usize, bytes: usize) {
    let (start, cpu) = (Instant::now(), cpu());
    let mut tasks = JoinSet::new();
    for writer in 0..256 {
        let store = store.clone();
        tasks.spawn(async move {
            for n in (writer..objects).step_by(256) {
                let put = Action::Put { value: value(bytes, n), ttl: None };
                store.commit(Write::one(key(n), Guard::Absent, put)).await.unwrap();
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    println!("filled in {:?}, CPU {:?}", start.elapsed(), self::cpu() - cpu);
}

/// Rounds of creates, updates and deletes. The first round fills new files; then everything is
/// compacted again and again, so that the later rounds recycle files.
async fn device(store: &Arc<Embedded>, dir: &Path, clients: u64, objects: u64) {
    for round in 0..4 {
        for what in ["create", "update", "delete"] {
            let (before, start) = (written(dir), Instant::now());
            let mut tasks = JoinSet::new();
            for client in 0..clients {
                let store = store.clone();
                tasks.spawn(async move {
                    for n in (client..objects).step_by(clients as usize) {
                        let key = key(n as usize);
                        let there = store.get(&key).await.unwrap();
                        let guard = there.map_or(Guard::Absent, |found| Guard::At(found.revision));
                        let action = match what {
                            "delete" => Action::Delete,
                            _ => Action::Put { value: value(6_100, n as usize), ttl: None },
                        };
                        let at = store.commit(Write::one(key, guard, action)).await.unwrap().last;
                        if round > 0 && n % 500 == 0 {
                            store.compact(at).await.unwrap();
                        }
                    }
                });
            }
            while let Some(done) = tasks.join_next().await {
                done.unwrap();
            }
            let rate = objects as f64 / start.elapsed().as_secs_f64();
            let bytes = (written(dir) - before) as f64 / objects as f64;
            println!("round {round}: {what}: {bytes:.0} bytes per operation, {rate:.0} per second");
        }
    }
}

/// The bytes that were written to the device of a directory, with everything that waits.
fn written(dir: &Path) -> u64 {
    assert!(std::process::Command::new("sync").status().unwrap().success());
    let device = std::fs::metadata(dir).unwrap().dev();
    let (major, minor) = ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xf_ff00));
    let stat = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).unwrap();
    stat.split_whitespace().nth(6).unwrap().parse::<u64>().unwrap() * 512
}

async fn load(store: &Arc<Embedded>) {
    for limit in [500, 10_000] {
        let (start, before) = (Instant::now(), cpu());
        let (mut after, mut at, mut bytes, mut count) = (None, None, 0, 0);
        let mut kept = Vec::new();
        loop {
            let range = Range { prefix: "/registry/".into(), after, at, limit: Some(limit) };
            let page = store.range(range).await.unwrap();
            at = Some(page.revision);
            count += page.records.len();
            bytes += page.records.iter().map(|record| record.value.len()).sum::<usize>();
            after = page.records.last().map(|record| record.key.clone());
            kept.push(page.records);
            if !page.more {
                break;
            }
        }
        let (time, cpu) = (start.elapsed(), cpu() - before);
        println!("{count} objects, {} MB in pages of {limit}: {time:?}, CPU {cpu:?}", bytes >> 20);
    }
    let start = Instant::now();
    let compacted = store.condition().compacted;
    let end = store.revision().await.unwrap();
    let mut watch = store.watch("/registry/", compacted).await.unwrap();
    let (mut seen, mut to) = (0, Revision::ZERO);
    while to < end {
        let batch = watch.next().await.unwrap().unwrap();
        (seen, to) = (seen + batch.changes.len(), batch.complete_to);
    }
    println!("replayed {seen} changes: {:?}", start.elapsed());
}

/// User and system time of this process.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}
