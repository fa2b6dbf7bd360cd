//! The kill loop: a server is killed again and again while clients write and watch.
//!
//! After each restart the test compares the ledger of the writers with the history: it contains
//! every acknowledged write, otherwise only writes with an unknown outcome, and revisions continue
//! above the highest one that any client received (R1, R2, R4, R12). `verify` finds no damage after
//! any kill. Watchers resume and must not
//! miss or repeat an event. SIGKILL keeps the page cache, so this does not test syncs; the crash
//! tests of the store do.
//!
//! `HEADWATER_KILL_ROUNDS` and `HEADWATER_KILL_SEED` set the number of rounds and the seed.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use headwater_api::Revision;
use headwater_testkit::history::{
    ClientRecord, EndBounds, History, ObjectChange, ObjectVersion, WatchItem, WatchRecord,
    WatchStart, version,
};
use headwater_testkit::ledger::{self, WriteIntent, WriteOutcome, WriteRecord};
use serde_json::{Value, json};

use crate::process::{self, Process};

const WRITERS: usize = 8;
const WATCHERS: usize = 4;
const KEYS: u64 = 3;
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// R1, R2, R4, R42
#[test]
fn acknowledged_writes_survive_every_kill() {
    let seed = setting("HEADWATER_KILL_SEED").unwrap_or_else(|| std::process::id().into());
    let rounds = setting("HEADWATER_KILL_ROUNDS").unwrap_or(200);
    eprintln!("HEADWATER_KILL_SEED={seed} HEADWATER_KILL_ROUNDS={rounds}");
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut run = Run::new(seed);
    for _ in 0..rounds {
        let server = Process::serve(&["--data-dir", data.to_str().unwrap()]);
        run.verify(server.plain);
        run.disturb(server);
        let verified = process::run(&["verify", data.to_str().unwrap()]);
        assert!(verified.status.success(), "after kill {}: {verified:?}", run.round);
    }
    let server = Process::serve(&["--data-dir", data.to_str().unwrap()]);
    run.verify(server.plain);
    let (acknowledged, told) = run.finish();
    eprintln!("{acknowledged} acknowledged writes and {told} told events, all accounted for");
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Pseudo-random numbers from the seed.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

struct Run {
    dice: Dice,
    truth: History,
    /// The revision up to which the ledger has been compared.
    settled: Revision,
    /// The highest revision that any client received.
    highest: AtomicU64,
    ledger: Mutex<Vec<WriteRecord>>,
    writers: Vec<Writer>,
    watchers: Vec<ClientRecord>,
    compacted: Revision,
    acknowledged: usize,
    round: u64,
}

impl Run {
    fn new(seed: u64) -> Run {
        let writer = |n: usize| Writer {
            id: n as u64,
            dice: Dice(seed ^ ((n as u64 + 1) << 32)),
            count: 0,
            known: vec![None; KEYS as usize],
        };
        Run {
            dice: Dice(seed),
            truth: History::default(),
            settled: Revision::ZERO,
            highest: AtomicU64::new(0),
            ledger: Mutex::default(),
            writers: (0..WRITERS).map(writer).collect(),
            watchers: vec![ClientRecord::default(); WATCHERS],
            compacted: Revision::ZERO,
            acknowledged: 0,
            round: 0,
        }
    }

    /// Runs writers and watchers until the server is killed.
    fn disturb(&mut self, server: Process) {
        let at = server.plain;
        let alive = Duration::from_millis(5 + self.dice.below(75));
        // In every fourth round the kill interrupts a compaction.
        let compaction = (self.dice.below(4) == 0).then_some(self.settled);
        let (ledger, highest) = (&self.ledger, &self.highest);
        std::thread::scope(|scope| {
            for writer in &mut self.writers {
                scope.spawn(move || writer.work(at, ledger, highest));
            }
            for watcher in &mut self.watchers {
                scope.spawn(move || watch(at, watcher, highest));
            }
            std::thread::sleep(alive);
            if let Some(revision) = compaction {
                self.compacted = revision;
                let path = format!("/debug/headwater/compact?revision={revision}");
                scope.spawn(move || drop(ask(at, "POST", &path, None)));
                std::thread::sleep(Duration::from_millis(self.round % 4));
            }
            drop(server); // SIGKILL
        });
        self.round += 1;
    }

    /// Checks the history since the last call against the ledger, and the state against the
    /// history.
    fn verify(&mut self, at: SocketAddr) {
        let highest = Revision(self.highest.load(Ordering::Relaxed));
        let text = format!("sentinel {}", self.round);
        let path = format!("{MAPS}/sentinel");
        let there = ask(at, "GET", &path, None).unwrap();
        let (code, object) = match there.0 {
            404 => ask(at, "POST", MAPS, Some(map("sentinel", &text, None))).unwrap(),
            _ => ask(at, "PUT", &path, Some(map("sentinel", &text, None))).unwrap(),
        };
        assert!(code < 300, "{object}");
        let now = version(&object).unwrap();
        assert!(now > highest, "revision {now} was given out after {highest} was seen");
        let (intent, outcome) = (WriteIntent::Put(text), WriteOutcome::Done(Some(now)));
        let mut entries = std::mem::take(&mut *self.ledger.lock().unwrap());
        entries.push(WriteRecord { key: "default/sentinel".into(), intent, outcome });
        self.witness(at, now);
        if let Err(broken) = ledger::verify(&entries, &self.truth, self.settled, &mark) {
            panic!("round {}: {broken}", self.round);
        }
        self.acknowledged +=
            entries.iter().filter(|e| matches!(e.outcome, WriteOutcome::Done(_))).count();
        self.settled = now;
        self.compare(at);
        for writer in &mut self.writers {
            writer.learn(&self.truth);
        }
    }

    /// Reads the history up to a revision that it contains.
    fn witness(&mut self, at: SocketAddr, upto: Revision) {
        let after = if self.settled == Revision::ZERO { Revision(1) } else { self.settled };
        let path = format!("{MAPS}?watch=true&resourceVersion={after}");
        let mut lines = Lines::open(at, &path).unwrap();
        while self.truth.newest() < upto {
            match lines.next().map(|line| WatchItem::parse(&line)) {
                Some(Some(WatchItem::Event(event))) => self.truth.witness(&event).unwrap(),
                other => panic!("round {}: {other:?} after {after}", self.round),
            }
        }
    }

    /// Checks that a list matches the state after the history.
    fn compare(&self, at: SocketAddr) {
        let (code, list) = ask(at, "GET", MAPS, None).unwrap();
        assert_eq!(code, 200, "{list}");
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
        let shown = |item: &Value| {
            let key = format!("default/{}", name(item));
            (key, version(item).unwrap(), item["data"]["text"].clone())
        };
        let found: Vec<_> = list["items"].as_array().unwrap().iter().map(shown).collect();
        let told = |(key, version): (&String, &ObjectVersion)| {
            (key.clone(), version.revision, version.body.value()["data"]["text"].clone())
        };
        let expected: Vec<_> = self.truth.state().iter().map(told).collect();
        assert_eq!(found, expected, "round {}", self.round);
    }

    fn finish(self) -> (usize, usize) {
        let expected = self.truth.expect(Box::new(|_| true));
        let ends = EndBounds { compacted: self.compacted, complete_to: Revision::ZERO };
        let told = self.watchers.iter().map(|watcher| match watcher.check(&expected, ends) {
            Ok(told) => told,
            Err(broken) => panic!("{broken}"),
        });
        (self.acknowledged, told.sum())
    }
}

fn mark(change: &ObjectChange) -> Option<String> {
    change.after.as_ref()?.value()["data"]["text"].as_str().map(str::to_owned)
}

fn map(name: &str, text: &str, version: Option<Revision>) -> Value {
    let mut object = json!({"metadata": {"name": name}, "data": {"text": text}});
    if let Some(version) = version {
        object["metadata"]["resourceVersion"] = json!(version.to_string());
    }
    object
}

/// Writes to its own keys, so that it knows their state while all outcomes are known.
struct Writer {
    id: u64,
    dice: Dice,
    count: u64,
    known: Vec<Option<Revision>>,
}

impl Writer {
    fn name(&self, key: u64) -> String {
        format!("w{}-{key}", self.id)
    }

    /// Writes until a response is missing.
    fn work(&mut self, at: SocketAddr, ledger: &Mutex<Vec<WriteRecord>>, highest: &AtomicU64) {
        loop {
            let key = self.dice.below(KEYS);
            let (name, there) = (self.name(key), self.known[key as usize]);
            self.count += 1;
            let text = format!("{name} {}", self.count);
            let path = format!("{MAPS}/{name}");
            let delete = there.filter(|_| self.dice.below(4) == 0);
            let (intent, answer) = match (delete, there) {
                (Some(at_), _) => {
                    let wanted = json!({"preconditions": {"resourceVersion": at_.to_string()}});
                    (WriteIntent::Delete(at_), ask(at, "DELETE", &path, Some(wanted)))
                }
                (None, None) => {
                    let answer = ask(at, "POST", MAPS, Some(map(&name, &text, None)));
                    (WriteIntent::Put(text), answer)
                }
                (None, Some(_)) => {
                    let answer = ask(at, "PUT", &path, Some(map(&name, &text, there)));
                    (WriteIntent::Put(text), answer)
                }
            };
            let outcome = match &answer {
                Some((200..=299, object)) if delete.is_none() => {
                    WriteOutcome::Done(Some(version(object).unwrap()))
                }
                Some((200..=299, _)) => WriteOutcome::Done(None),
                Some((500..=599, _)) | None => WriteOutcome::Unknown,
                Some((code, object)) => panic!("{code} {object}"),
            };
            if let WriteOutcome::Done(revision) = outcome {
                self.known[key as usize] = revision;
                highest.fetch_max(revision.map_or(0, |r| r.0), Ordering::Relaxed);
            }
            let key = format!("default/{name}");
            ledger.lock().unwrap().push(WriteRecord { key, intent, outcome });
            if outcome == WriteOutcome::Unknown {
                return;
            }
        }
    }

    /// Reads the actual state.
    fn learn(&mut self, truth: &History) {
        for key in 0..KEYS {
            let there = truth.state().get(&format!("default/{}", self.name(key)));
            self.known[key as usize] = there.map(|version| version.revision);
        }
    }
}

/// Watches until the stream breaks.
fn watch(at: SocketAddr, client: &mut ClientRecord, highest: &AtomicU64) {
    let (start, path) = match client.position() {
        Some(after) => {
            let path =
                format!("{MAPS}?watch=true&allowWatchBookmarks=true&resourceVersion={after}");
            (WatchStart::After(after), path)
        }
        None => {
            let path = format!(
                "{MAPS}?watch=true&allowWatchBookmarks=true&sendInitialEvents=true\
                 &resourceVersionMatch=NotOlderThan"
            );
            (WatchStart::Initial(Revision::ZERO), path)
        }
    };
    let Some(lines) = Lines::open(at, &path) else { return };
    let seen = lines.map_while(|line| WatchItem::parse(&line)).inspect(|seen| {
        if let WatchItem::Event(event) = seen {
            highest.fetch_max(event.revision.0, Ordering::Relaxed);
        }
    });
    client.streams.push(WatchRecord { start, seen: seen.collect() });
}

/// The response to a request; `None` if it is incomplete.
pub(crate) fn ask(
    at: SocketAddr,
    method: &str,
    path: &str,
    body: Option<Value>,
) -> Option<(u16, Value)> {
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    let mut socket = TcpStream::connect(at).ok()?;
    let length = body.len();
    write!(
        socket,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
    .ok()?;
    let mut answer = Vec::new();
    BufReader::new(socket).read_to_end(&mut answer).ok()?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8(answer[..end].to_vec()).ok()?.to_ascii_lowercase();
    let code = head.split(' ').nth(1)?.parse().ok()?;
    let rest = &answer[end + 4..];
    let body = match head.contains("transfer-encoding: chunked") {
        true => Chunks { from: BufReader::new(rest) }.collect::<Vec<_>>().concat(),
        false => rest.to_vec(),
    };
    Some((code, serde_json::from_slice(&body).ok()?))
}

/// The chunks of a body, until it ends or breaks.
struct Chunks<R> {
    from: R,
}

impl<R: BufRead> Iterator for Chunks<R> {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let mut size = String::new();
        self.from.read_line(&mut size).ok()?;
        let size = usize::from_str_radix(size.trim_end(), 16).ok()?;
        let mut chunk = vec![0; size + 2];
        self.from.read_exact(&mut chunk).ok()?;
        chunk.truncate(size);
        (size > 0).then_some(chunk)
    }
}

/// The lines of a watch; the socket is closed with it.
pub(crate) struct Lines {
    socket: TcpStream,
    chunks: Chunks<BufReader<TcpStream>>,
    ready: std::collections::VecDeque<Vec<u8>>,
}

impl Lines {
    pub(crate) fn open(at: SocketAddr, path: &str) -> Option<Lines> {
        let mut socket = TcpStream::connect(at).ok()?;
        write!(socket, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").ok()?;
        let mut from = BufReader::new(socket.try_clone().ok()?);
        let mut line = String::new();
        from.read_line(&mut line).ok()?;
        if line.is_empty() {
            return None;
        }
        assert!(line.starts_with("HTTP/1.1 200"), "{line}");
        while line.trim_end() != "" {
            line.clear();
            if from.read_line(&mut line).ok()? == 0 {
                return None;
            }
        }
        Some(Lines { socket, chunks: Chunks { from }, ready: Default::default() })
    }
}

impl Iterator for Lines {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        if self.ready.is_empty() {
            // A chunk contains complete frames (R40).
            let chunk = self.chunks.next()?;
            assert_eq!(chunk.last(), Some(&b'\n'), "a chunk ends with a frame");
            let lines = chunk.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            self.ready.extend(lines.map(<[u8]>::to_vec));
        }
        self.ready.pop_front()
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        // It may be closed.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}
