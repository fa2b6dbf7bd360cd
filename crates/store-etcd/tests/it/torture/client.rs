//! The writers, watchers and readers of the fault test, and their records.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use headwater_api::Revision;
use headwater_testkit::history::{ClientRecord, WatchItem, WatchRecord, WatchStart, version};
use headwater_testkit::ledger::{WriteIntent, WriteOutcome, WriteRecord};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::{RwLock, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub(crate) const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Keys of each writer.
const KEYS: u64 = 3;

/// The pause between two writes of a writer, because there are many watchers.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a client waits for a response.
const PATIENCE: Duration = Duration::from_secs(20);

/// Random numbers that depend only on the seed.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// The address of a server while it runs.
#[derive(Default)]
pub(crate) struct Place(Mutex<Option<SocketAddr>>);

impl Place {
    pub(crate) fn set(&self, address: Option<SocketAddr>) {
        *self.0.lock().unwrap() = address;
    }

    async fn connect(&self) -> Option<TcpStream> {
        let address = (*self.0.lock().unwrap())?;
        TcpStream::connect(address).await.ok()
    }

    /// The response to a request; `None` if it is incomplete.
    pub(crate) async fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Option<(u16, Value)> {
        timeout(PATIENCE, self.exchange(method, path, body)).await.ok()?
    }

    async fn exchange(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Option<(u16, Value)> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let mut socket = self.connect().await?;
        let head = format!(
            "{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        socket.write_all((head + &body).as_bytes()).await.ok()?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let code = head.split(' ').nth(1)?.parse().ok()?;
        let is_json = head.to_ascii_lowercase().contains("application/json");
        let body = if is_json { serde_json::from_str(body).ok()? } else { json!(body) };
        Some((code, body))
    }
}

/// A list as a client received it: its revision, and each object's.
pub(crate) type List = (Revision, Vec<(String, Revision)>);

/// The state that all clients share.
pub(crate) struct Run {
    seed: u64,
    pub(crate) places: [Place; 2],
    pub(crate) ledger: Mutex<Vec<WriteRecord>>,
    /// By the number of the watcher.
    pub(crate) clients: Mutex<Vec<ClientRecord>>,
    /// Writes acknowledged by each server.
    pub(crate) acknowledged: [AtomicU64; 2],
    /// The reader's lists.
    pub(crate) lists: Mutex<Vec<List>>,
    /// Watchers receive the same lines; each is parsed once.
    pub(crate) parsed: Mutex<HashMap<Vec<u8>, WatchItem>>,
    pub(crate) compacted: AtomicU64,
    /// Held by writers while they write.
    pub(crate) writing: RwLock<()>,
    pub(crate) asleep: watch::Sender<bool>,
    pub(crate) over: CancellationToken,
    sentinels: AtomicU64,
}

impl Run {
    pub(crate) fn new(seed: u64) -> Run {
        Run {
            seed,
            places: Default::default(),
            ledger: Mutex::default(),
            clients: Mutex::default(),
            acknowledged: Default::default(),
            lists: Mutex::default(),
            parsed: Mutex::default(),
            compacted: AtomicU64::new(0),
            writing: RwLock::default(),
            asleep: watch::Sender::new(false),
            over: CancellationToken::new(),
            sentinels: AtomicU64::new(0),
        }
    }

    fn note(&self, key: &str, intent: WriteIntent, outcome: WriteOutcome) {
        let key = format!("default/{key}");
        self.ledger.lock().unwrap().push(WriteRecord { key, intent, outcome });
    }

    /// A write after all others, through any server that accepts it.
    pub(crate) async fn sentinel(&self) -> Revision {
        loop {
            let n = self.sentinels.fetch_add(1, Ordering::Relaxed);
            let name = format!("sentinel-{n}");
            let place = &self.places[usize::from(n % 2 == 1)];
            let answer = place.ask("POST", MAPS, Some(&map(&name, &name, None))).await;
            let outcome = outcome(answer.as_ref());
            self.note(&name, WriteIntent::Put(name.clone()), outcome);
            if let WriteOutcome::Done(Some(revision)) = outcome {
                return revision;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn parse(&self, line: &[u8]) -> Option<WatchItem> {
        if let Some(seen) = self.parsed.lock().unwrap().get(line) {
            return Some(seen.clone());
        }
        let seen = WatchItem::parse(line)?;
        self.parsed.lock().unwrap().insert(line.to_vec(), seen.clone());
        Some(seen)
    }
}

/// Creates quotas that every server knows when this returns.
pub(crate) async fn count(run: &Run) {
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    for name in ["first", "second"] {
        let spec = json!({"hard": {"configmaps": "1000000"}});
        let quota = json!({"metadata": {"name": name}, "spec": spec});
        let (code, answer) = run.places[0].ask("POST", quotas, Some(&quota)).await.unwrap();
        assert_eq!(code, 201, "{answer}");
    }
    for place in &run.places {
        let (_, list) = place.ask("GET", quotas, None).await.unwrap();
        assert_eq!(list["items"].as_array().unwrap().len(), 2);
    }
}

fn map(name: &str, text: &str, version: Option<Revision>) -> Value {
    let mut object = json!({"metadata": {"name": name}, "data": {"text": text}});
    if let Some(version) = version {
        object["metadata"]["resourceVersion"] = json!(version.to_string());
    }
    object
}

fn outcome(answer: Option<&(u16, Value)>) -> WriteOutcome {
    match answer {
        Some((200..=299, object)) => WriteOutcome::Done(version(object)),
        Some((404 | 409 | 429, _)) => WriteOutcome::Refused,
        Some((500..=599, _)) | None => WriteOutcome::Unknown,
        Some((code, object)) => panic!("{code} {object}"),
    }
}

/// Writes to its own keys, so that it knows their state as long as all outcomes are known.
pub(crate) async fn write(run: Arc<Run>, server: usize, id: u64) {
    let mut dice = Dice(run.seed ^ ((id + 1) << 32) ^ ((server as u64) << 48));
    let mut known: Vec<Option<Revision>> = vec![None; KEYS as usize];
    let mut count = 0;
    while !run.over.is_cancelled() {
        tokio::time::sleep(PAUSE).await;
        let _writing = run.writing.read().await;
        let key = dice.below(KEYS);
        let name = format!("s{server}-w{id}-{key}");
        let known = &mut known[key as usize];
        count += 1;
        let text = format!("{name} {count}");
        let (place, path) = (&run.places[server], format!("{MAPS}/{name}"));
        let delete = known.filter(|_| dice.below(4) == 0);
        let (intent, answer) = match (delete, *known) {
            (Some(at), _) => {
                let wanted = json!({"preconditions": {"resourceVersion": at.to_string()}});
                (WriteIntent::Delete(at), place.ask("DELETE", &path, Some(&wanted)).await)
            }
            (None, None) => {
                let answer = place.ask("POST", MAPS, Some(&map(&name, &text, None))).await;
                (WriteIntent::Put(text), answer)
            }
            (None, there) => {
                let answer = place.ask("PUT", &path, Some(&map(&name, &text, there))).await;
                (WriteIntent::Put(text), answer)
            }
        };
        let told = match outcome(answer.as_ref()) {
            // The response to a delete has no revision.
            WriteOutcome::Done(_) if delete.is_some() => WriteOutcome::Done(None),
            told => told,
        };
        run.note(&name, intent, told);
        match told {
            WriteOutcome::Done(revision) => {
                *known = revision;
                run.acknowledged[server].fetch_add(1, Ordering::Relaxed);
            }
            // The state is not the expected one: an earlier write with unknown outcome may still be
            // applied.
            WriteOutcome::Refused | WriteOutcome::Unknown => {
                *known = match place.ask("GET", &path, None).await {
                    Some((200, object)) => version(&object),
                    _ => None,
                };
            }
        }
    }
}

/// Watches until the run ends, on any running server.
pub(crate) async fn watch(run: Arc<Run>, home: usize, sleeps: bool) {
    let me = {
        let mut clients = run.clients.lock().unwrap();
        clients.push(ClientRecord::default());
        clients.len() - 1
    };
    let mut dice = Dice(run.seed ^ ((me as u64 + 1) << 16));
    let mut asleep = run.asleep.subscribe();
    while !run.over.is_cancelled() {
        let server = if dice.below(3) == 0 { 1 - home } else { home };
        tokio::select! {
            () = run.over.cancelled() => return,
            () = told_to_sleep(&mut asleep), if sleeps => {}
            _ = follow(&run, &run.places[server], me) => {
                tokio::time::sleep(Duration::from_millis(20 + dice.below(80))).await;
            }
        }
        if sleeps {
            let _ = asleep.wait_for(|asleep| !*asleep).await;
        }
    }
}

async fn told_to_sleep(asleep: &mut watch::Receiver<bool>) {
    let _ = asleep.wait_for(|asleep| *asleep).await;
}

/// Reads one stream until it ends.
async fn follow(run: &Run, place: &Place, me: usize) -> Option<()> {
    let position = run.clients.lock().unwrap()[me].position();
    let (start, query) = match position {
        Some(after) => (WatchStart::After(after), format!("resourceVersion={after}")),
        None => {
            let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan".to_owned();
            (WatchStart::Initial(Revision::ZERO), query)
        }
    };
    let mut socket = place.connect().await?;
    let request = format!(
        "GET {MAPS}?watch=true&allowWatchBookmarks=true&{query} HTTP/1.0\r\nHost: localhost\r\n\r\n"
    );
    socket.write_all(request.as_bytes()).await.ok()?;
    let mut lines = BufReader::new(socket);
    let mut line = Vec::new();
    lines.read_until(b'\n', &mut line).await.ok()?;
    if !line.split(|byte| *byte == b' ').any(|word| word == b"200") {
        return None;
    }
    while line != b"\r\n" {
        line.clear();
        if lines.read_until(b'\n', &mut line).await.ok()? == 0 {
            return None;
        }
    }
    run.clients.lock().unwrap()[me].streams.push(WatchRecord { start, seen: Vec::new() });
    loop {
        line.clear();
        lines.read_until(b'\n', &mut line).await.ok()?;
        if line.last() != Some(&b'\n') {
            return None; // cut in the middle of a frame
        }
        let seen = run.parse(&line)?;
        let mut clients = run.clients.lock().unwrap();
        clients[me].streams.last_mut()?.seen.push(seen);
    }
}

/// Reads from alternating servers and checks that no state is older than a previous one.
pub(crate) async fn read(run: Arc<Run>) {
    let mut dice = Dice(run.seed);
    let mut carried = Revision::ZERO;
    while !run.over.is_cancelled() {
        tokio::time::sleep(PAUSE).await;
        let place = &run.places[dice.below(2) as usize];
        let is_consistent = dice.below(2) == 0 || carried == Revision::ZERO;
        let path = match is_consistent {
            true => MAPS.to_owned(),
            false => {
                format!("{MAPS}?resourceVersion={carried}&resourceVersionMatch=NotOlderThan")
            }
        };
        let Some((200, list)) = place.ask("GET", &path, None).await else { continue };
        let at = version(&list).unwrap();
        assert!(at >= carried, "after {carried} was seen, {path} showed {at}");
        carried = at;
        let seen = |item: &Value| {
            let name = item["metadata"]["name"].as_str().unwrap();
            (format!("default/{name}"), version(item).unwrap())
        };
        let items = list["items"].as_array().unwrap().iter().map(seen).collect();
        run.lists.lock().unwrap().push((at, items));
    }
}
