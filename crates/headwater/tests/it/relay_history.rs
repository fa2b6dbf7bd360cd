//! Watchers behind two levels of relays, while relays are killed and restarted, links are cut and history
//! is compacted; the events of each watcher are compared with the history (R97).
//!
//! `HEADWATER_RELAY_WATCHERS` sets the number of watchers.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{AsyncBufReadExt, TryStreamExt};
use headwater_api::Revision;
use headwater_testkit::history::{
    ClientRecord, EndBounds, History, WatchItem, WatchRecord, WatchStart, version,
};
use headwater_testkit::proxy::Proxy;
use http::Request;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use rustix::process::Signal;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::kill_loop::{Dice, Lines, ask};
use crate::relay::{RelayProcess, upstream};

/// How many writes happen around each disturbance.
const WRITES: u64 = 20;
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// The name of the last object that is written.
const LAST: &str = "last";
/// How long a condition may take to become true.
const PATIENCE: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(50);

/// What happens while clients write and watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disturbance {
    /// A relay ends by a signal and starts again.
    Restart(Level, Signal),
    /// Nothing passes between a relay and its upstream for a while.
    Cut(Level),
    /// The upstream drops its history, which a relay has not read.
    Compaction(Level),
}

/// A level of the tree: the relay of the server, or the relay of that relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Near,
    Far,
}

use Disturbance::{Compaction, Cut, Restart};
use Level::{Far, Near};

/// Watchers may get 410 until the last compaction, and not after it.
const DISTURBANCES: [Disturbance; 14] = [
    Cut(Near),
    Restart(Near, Signal::KILL),
    Compaction(Near),
    Restart(Far, Signal::KILL),
    Cut(Far),
    Compaction(Far),
    Restart(Near, Signal::TERM),
    Restart(Far, Signal::KILL),
    Cut(Far),
    Restart(Near, Signal::KILL),
    Restart(Far, Signal::TERM),
    Cut(Near),
    Restart(Near, Signal::KILL),
    Restart(Far, Signal::KILL),
];

/// A server, a relay of it, a relay of the relay, and the links between them.
struct Tree {
    server: SocketAddr,
    near: RelayLevel,
    far: RelayLevel,
}

/// A relay with the link to its upstream.
struct RelayLevel {
    dir: PathBuf,
    /// The kubeconfig of its upstream, over the link.
    upstream: PathBuf,
    link: Proxy,
    port: u16,
    relay: Option<RelayProcess>,
}

impl RelayLevel {
    /// Starts a relay of a server or relay on a port.
    async fn start(dir: PathBuf, upstream: &Path, port: u16) -> RelayLevel {
        fs::create_dir(&dir).unwrap();
        let link = Proxy::start(port).await;
        let text = fs::read_to_string(upstream).unwrap();
        let through = text.replace(&format!("127.0.0.1:{port}"), &link.url()["http://".len()..]);
        assert_ne!(text, through, "the address of the upstream is in its kubeconfig");
        let upstream = dir.join("upstream");
        fs::write(&upstream, through).unwrap();
        let mut level = RelayLevel { dir, upstream, link, port: 0, relay: None };
        level.run();
        level
    }

    /// Starts the relay, on the port that it had before.
    fn run(&mut self) {
        let more = ["--resources", "configmaps", "--permission-ttl", "10m"];
        let began = std::time::Instant::now();
        while self.relay.is_none() {
            assert!(began.elapsed() < PATIENCE, "the relay starts");
            self.relay = RelayProcess::start(&self.upstream, &self.dir, self.port, &more);
        }
        self.port = self.relay.as_ref().unwrap().port;
    }

    fn restart(&mut self, signal: Signal) {
        self.relay.take().unwrap().end(signal);
        self.run();
    }

    fn kubeconfig(&self) -> &Path {
        &self.relay.as_ref().unwrap().kubeconfig
    }

    async fn client(&self) -> Client {
        let read = Kubeconfig::read_from(self.kubeconfig()).unwrap();
        let mut config =
            Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.unwrap();
        (config.read_timeout, config.default_retry) = (None, false);
        Client::try_from(config).unwrap()
    }

    /// Waits until a read of the newest state succeeds, and returns its revision.
    async fn newest(&self) -> Revision {
        let client = self.client().await;
        let read = async {
            loop {
                let request = Request::get(MAPS).body(Vec::new()).unwrap();
                if let Ok(list) = client.request::<serde_json::Value>(request).await {
                    return version(&list).unwrap();
                }
                tokio::time::sleep(POLL).await;
            }
        };
        tokio::time::timeout(PATIENCE, read).await.expect("the relay recovers")
    }
}

impl Tree {
    fn level(&mut self, level: Level) -> &mut RelayLevel {
        match level {
            Near => &mut self.near,
            Far => &mut self.far,
        }
    }

    /// Disturbs while writes happen, and waits until both relays have recovered.
    async fn disturb(&mut self, disturbance: Disturbance, mut written: watch::Receiver<u64>) {
        let goal = *written.borrow() + WRITES;
        let mut more = async |goal| drop(written.wait_for(|count| *count >= goal).await.unwrap());
        match disturbance {
            Restart(level, signal) => {
                tokio::task::block_in_place(|| self.level(level).restart(signal));
            }
            Cut(level) => {
                self.level(level).link.cut();
                more(goal).await;
                self.level(level).link.heal();
            }
            Compaction(level) => {
                self.level(level).link.cut();
                more(goal).await;
                let server = self.server;
                tokio::task::block_in_place(|| {
                    let list = ask(server, "GET", MAPS, None).unwrap().1;
                    let path =
                        format!("/debug/headwater/compact?revision={}", version(&list).unwrap());
                    assert_eq!(ask(server, "POST", &path, None).unwrap().0, 200);
                });
                self.level(level).link.heal();
            }
        }
        more(goal + WRITES).await;
        self.near.newest().await;
        self.far.newest().await;
    }
}

/// R97
#[tokio::test(flavor = "multi_thread")]
async fn watchers_behind_two_levels_of_relays_receive_exactly_the_history() {
    raise_file_limit();
    let asked = std::env::var("HEADWATER_RELAY_WATCHERS");
    let watchers = asked.ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("server-data");
    let (server, admin) = upstream(dir.path(), &["--data-dir", data.to_str().unwrap()]);
    let near = RelayLevel::start(dir.path().join("near"), &admin, server.tls().port()).await;
    let far = RelayLevel::start(dir.path().join("far"), near.kubeconfig(), near.port).await;
    let mut tree = Tree { server: server.plain, near, far };
    let (goal, reached) = watch::channel(Revision(u64::MAX));
    let mut readers = JoinSet::new();
    for n in 0..watchers {
        let level = if n % 3 == 0 { &tree.near } else { &tree.far };
        readers.spawn(read(level.client().await, n as u64, reached.clone()));
    }
    let (counter, written) = watch::channel(0);
    let (at, stop) = (server.plain, Arc::new(AtomicBool::new(false)));
    let witness = tokio::task::spawn_blocking(move || witness(at));
    let pace = Duration::from_millis(watchers as u64 / 3);
    let is_over = Arc::clone(&stop);
    let writer = tokio::task::spawn_blocking(move || write(at, pace, &counter, &is_over));
    let mut compacted = Revision::ZERO;
    for disturbance in DISTURBANCES {
        tree.disturb(disturbance, written.clone()).await;
        if matches!(disturbance, Compaction(_)) {
            compacted = tree.far.newest().await.max(tree.near.newest().await);
        }
    }
    stop.store(true, Ordering::Relaxed);
    let (last, changes) = writer.await.unwrap();
    goal.send_replace(last);

    let history = witness.await.unwrap();
    assert_eq!(history.newest(), last);
    let expected = history.expect(Box::new(|_| true));
    let ends = EndBounds { complete_to: last, compacted };
    let (mut events, mut streams, mut expired) = (0, 0, 0);
    while let Some(reader) = readers.join_next().await {
        let record = reader.unwrap();
        streams += record.streams.len();
        let seen = || record.streams.iter().flat_map(|stream| &stream.seen);
        expired += seen().filter(|item| matches!(item, WatchItem::Error(_))).count();
        events += record.check(&expected, ends).unwrap_or_else(|violation| panic!("{violation}"));
    }
    eprintln!(
        "{watchers} watchers, {streams} streams, {events} events of {changes} writes, {expired} times 410"
    );
    assert!(streams >= 3 * watchers, "every watcher resumed");
    assert!(expired > 0, "the compactions were noticed");
}

/// Each watcher has a connection of its own.
fn raise_file_limit() {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
}

/// Writes until stopped, then one object more; returns its revision and the number of writes.
fn write(
    at: SocketAddr,
    pace: Duration,
    written: &watch::Sender<u64>,
    stop: &AtomicBool,
) -> (Revision, u64) {
    let (mut dice, mut count) = (Dice(11), 0);
    loop {
        let is_last = stop.load(Ordering::Relaxed);
        let name = if is_last { LAST.to_owned() } else { format!("m{}", dice.below(30)) };
        let path = format!("{MAPS}/{name}");
        if dice.below(8) == 0 {
            ask(at, "DELETE", &path, None).unwrap();
        }
        count += 1;
        let body = json!({ "metadata": { "name": name }, "data": { "n": count.to_string() } });
        let object = match ask(at, "PUT", &path, Some(body.clone())).unwrap() {
            (404, _) => ask(at, "POST", MAPS, Some(body)).unwrap().1,
            (_, object) => object,
        };
        written.send_replace(count);
        if is_last {
            return (version(&object).unwrap(), count);
        }
        std::thread::sleep(pace);
    }
}

/// Everything that happened, from a watch of the server itself.
fn witness(at: SocketAddr) -> History {
    let mut history = History::default();
    for line in Lines::open(at, "/api/v1/configmaps?watch=true&resourceVersion=1").unwrap() {
        let Some(WatchItem::Event(event)) = WatchItem::parse(&line) else { panic!("an event") };
        history.witness(&event).unwrap();
        if event.key == format!("default/{LAST}") {
            break;
        }
    }
    history
}

/// Watches with random disconnects until everything up to the goal, which is set later, has arrived.
async fn read(client: Client, n: u64, mut goal: watch::Receiver<Revision>) -> ClientRecord {
    let (mut record, mut dice) = (ClientRecord::default(), Dice(n));
    loop {
        let is_done = |position: Option<Revision>| {
            position.is_some_and(|position| position >= *goal.borrow())
        };
        if is_done(record.position()) {
            return record;
        }
        let (start, from) = match record.position() {
            Some(after) => (WatchStart::After(after), format!("resourceVersion={after}")),
            None => {
                let any =
                    "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0";
                (WatchStart::Initial(Revision::ZERO), any.to_owned())
            }
        };
        let path = format!("/api/v1/configmaps?watch=true&allowWatchBookmarks=true&{from}");
        let opened = client.request_stream(Request::get(path).body(Vec::new()).unwrap()).await;
        let Ok(stream) = opened else {
            // The relay is away.
            let _ = tokio::time::timeout(Duration::from_millis(100), goal.changed()).await;
            continue;
        };
        let (mut lines, cut_after) = (stream.lines(), 20 + dice.below(100) as usize);
        let mut watched = WatchRecord { start, seen: Vec::new() };
        while watched.seen.len() < cut_after && !is_done(watched.position()) {
            let line = tokio::time::timeout(Duration::from_secs(1), lines.try_next()).await;
            let Ok(line) = line else { continue };
            // A line that is cut is the end of the stream.
            let Some(item) = line.ok().flatten().and_then(|line| WatchItem::parse(line.as_bytes()))
            else {
                break;
            };
            watched.seen.push(item);
        }
        record.streams.push(watched);
    }
}
