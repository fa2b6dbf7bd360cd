//! The soak: a server under everything that ended one, at the same time.
//!
//! A disk fills up and empties, the clock jumps, HTTP/2 peers ask for large documents and read nothing
//! (some leave, one stays until the server ends it), and a user without rights sends huge reviews, while writers keep a ledger and a probe asks for
//! `/readyz`. At the end and after a restart the server has every acknowledged write (R1), and every
//! probe was answered (R45).
//!
//! `HEADWATER_SOAK_SECONDS` sets the duration; without it the test takes a few seconds. From ten
//! minutes on, an answer to a probe may take one second at most:
//! `HEADWATER_SOAK_SECONDS=600 cargo test --release -p headwater --test it soak -- --nocapture`.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use headwater_api::{Clock, SystemClock};
use headwater_server::authenticator::Authenticator;
use headwater_server::listen::{self, Listener};
use headwater_server::pki::{self, Pki};
use headwater_server::service_account::Issuer;
use headwater_server::tls::Acceptor;
use headwater_server::token_file::Tokens;
use headwater_server::{Options, start};
use headwater_store::embedded::disk::{Directory, Disk, DiskFile, Space};
use headwater_store::{Embedded, EmbeddedOptions};
use jiff::{SignedDuration, Timestamp};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};

const WRITERS: u64 = 4;
const KEYS: u64 = 5;
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// The token of a user without rights.
const TOKEN: &str = "secret";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// A request that takes longer fails the test.
const LONG: Duration = Duration::from_secs(120);

/// From this duration on, the time of each probe is limited.
const LONG_RUN: Duration = Duration::from_secs(600);
const PROBE_MAX: Duration = Duration::from_secs(1);

/// R1, R45
#[test]
fn the_ledger_is_complete_and_readiness_is_answered_whatever_happens() {
    let seconds = std::env::var("HEADWATER_SOAK_SECONDS").ok();
    let duration = Duration::from_secs(seconds.map_or(5, |text| text.parse().unwrap()));
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let soak = Soak::default();
    let world = runtime.block_on(soak.serve(dir.path()));
    let address = world.address;
    std::thread::scope(|scope| {
        for id in 0..WRITERS {
            let soak = &soak;
            scope.spawn(move || soak.write(address, id));
        }
        for _ in 0..3 {
            scope.spawn(|| soak.review(&world));
            scope.spawn(|| soak.read_nothing(&world));
        }
        scope.spawn(|| soak.hold(&world));
        scope.spawn(|| soak.probe(address));
        scope.spawn(|| soak.fill_disk());
        soak.progress.wait(duration, |_| false);
        soak.stop.store(true, Relaxed);
    });
    soak.disk_is_full.store(false, Relaxed);
    let refused = soak.progress.read(|counts| counts.refused);
    let [acknowledged, reviews, unread, probes] = [
        soak.progress.read(|counts| counts.acknowledged),
        soak.reviews.load(Relaxed),
        soak.unread.load(Relaxed),
        soak.probes.load(Relaxed),
    ];
    let worst = Duration::from_micros(soak.worst_micros.load(Relaxed));
    eprintln!(
        "{acknowledged} acknowledged writes, {refused} refused, {reviews} reviews, \
         {unread} unread documents, {probes} probes of {worst:?} at most"
    );
    soak.verify(address);
    runtime.block_on(world.running.stop()).unwrap();
    let world = runtime.block_on(soak.serve(dir.path()));
    soak.verify(world.address);
    runtime.block_on(world.running.stop()).unwrap();
    assert!(acknowledged > 0 && refused > 0 && reviews > 0 && unread > 0 && probes > 0);
    if duration >= LONG_RUN {
        assert!(soak.ended.load(Relaxed) > 0, "a peer that reads nothing keeps its connection");
        assert!(worst <= PROBE_MAX, "{worst:?}");
    }
}

struct World {
    running: headwater_server::Running,
    /// Plain HTTP/1.
    address: SocketAddr,
    tls: SocketAddr,
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
}

impl World {
    fn connect(&self, config: &Arc<ClientConfig>) -> StreamOwned<ClientConnection, TcpStream> {
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let client = ClientConnection::new(Arc::clone(config), name).unwrap();
        StreamOwned::new(client, connect(self.tls))
    }
}

#[derive(Default)]
struct Soak {
    stop: AtomicBool,
    disk_is_full: Arc<AtomicBool>,
    clock: Arc<JumpingClock>,
    progress: Progress,
    ledger: Mutex<BTreeMap<String, Entry>>,
    reviews: AtomicU64,
    /// Documents whose headers a peer has received.
    unread: AtomicU64,
    /// Connections that the server ended because their peer read nothing.
    ended: AtomicU64,
    probes: AtomicU64,
    worst_micros: AtomicU64,
}

/// What the writers of a key know.
#[derive(Default)]
struct Entry {
    acknowledged: u64,
    /// The highest number that was sent: a write without an answer may have happened.
    sent: u64,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    acknowledged: u64,
    refused: u64,
}

/// Counts that threads wait for.
#[derive(Default)]
struct Progress(Mutex<Counts>, Condvar);

impl Progress {
    fn add(&self, change: impl FnOnce(&mut Counts)) -> Counts {
        let mut counts = self.0.lock().unwrap();
        change(&mut counts);
        self.1.notify_all();
        *counts
    }

    fn read<T>(&self, look: impl FnOnce(&Counts) -> T) -> T {
        look(&self.0.lock().unwrap())
    }

    /// Waits until the counts are enough; returns whether they were before the time had passed.
    fn wait(&self, time: Duration, enough: impl Fn(&Counts) -> bool) -> bool {
        let counts = self.0.lock().unwrap();
        let waited = self.1.wait_timeout_while(counts, time, |counts| !enough(counts));
        !waited.unwrap().1.timed_out()
    }
}

impl Soak {
    async fn serve(&self, dir: &std::path::Path) -> World {
        let disk = FillingDisk {
            inner: Directory::lock(dir).unwrap(),
            is_full: Arc::clone(&self.disk_is_full),
        };
        let clock: Arc<dyn Clock> = self.clock.clone();
        let store = EmbeddedOptions { clock: clock.clone(), ..EmbeddedOptions::default() };
        let store = Arc::new(Embedded::open_on(Arc::new(disk), store).unwrap());
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        // The certificates do not follow the jumps: they would end.
        let pki = Pki::in_memory(&pki::names(any.ip(), &[]), &SystemClock).unwrap();
        let issuer = Issuer::new(&pki.service_account_key).unwrap();
        let authenticator = Authenticator::new(Tokens::parse(&format!("{TOKEN},joe,1")).unwrap());
        let options = Options { clock, authenticator, ..Options::new(issuer) };
        let metrics = options.metrics.clone();
        let mut running = start(store, options).await.unwrap();
        let limits = listen::Options::default;
        let plain = Listener::plain(any, limits(), metrics.clone()).unwrap();
        let acceptor = Acceptor::new(&pki, Arc::new(SystemClock)).unwrap();
        let secure = Listener::tls(any, acceptor, limits(), metrics).unwrap();
        let (address, tls) = (plain.address(), secure.address());
        running.listen(plain);
        running.listen(secure);
        World { running, address, tls, http1: trust(&pki, b"http/1.1"), http2: trust(&pki, b"h2") }
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Relaxed)
    }

    /// Writes growing numbers to a few keys, which no other writer has.
    fn write(&self, address: SocketAddr, id: u64) {
        let mut number = 0;
        while self.goes_on() {
            number += 1;
            let name = format!("w{id}-{}", number % KEYS);
            let is_new = {
                let mut ledger = self.ledger.lock().unwrap();
                let entry = ledger.entry(name.clone()).or_default();
                entry.sent = number;
                entry.acknowledged == 0
            };
            let object = json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name },
                "data": { "number": number.to_string() },
            });
            let target = format!("{MAPS}/{name}");
            // A create whose answer was lost is continued by an update.
            let mut code = if is_new { send(address, "POST", MAPS, &object).0 } else { 404 };
            if !is_new || code == 409 {
                code = send(address, "PUT", &target, &object).0;
            }
            if matches!(code, 200 | 201) {
                self.ledger.lock().unwrap().get_mut(&name).unwrap().acknowledged = number;
                let counts = self.progress.add(|counts| counts.acknowledged += 1);
                if counts.acknowledged.is_multiple_of(50) {
                    self.clock.jump(counts.acknowledged);
                }
            } else {
                assert!(code >= 500 || code == 429, "{target}: {code}");
                self.progress.add(|counts| counts.refused += 1);
            }
        }
    }

    /// Sends reviews with as many unknown fields as a body can have.
    fn review(&self, world: &World) {
        let mut review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": { "resourceAttributes": { "verb": "get", "resource": "pods" } },
        });
        for at in 0..120_000 {
            review[format!("f{at:05}")] = Value::Null;
        }
        while self.goes_on() {
            let mut stream = world.connect(&world.http1);
            let token = format!("Authorization: Bearer {TOKEN}\r\n");
            let (code, text) = exchange(&mut stream, "POST", REVIEWS, &token, &review);
            assert!(matches!(code, 201 | 429), "{code}: {text}");
            self.reviews.fetch_add(1, Relaxed);
        }
    }

    /// Asks for a large document a hundred times over HTTP/2 and accepts no byte of it.
    fn read_nothing(&self, world: &World) {
        while self.goes_on() {
            let mut peer = world.connect(&world.http2);
            // The server may end the connection at any time.
            let _ = peer.write_all(&greedy());
            let mut answered = 0;
            while answered < REQUESTS && self.goes_on() {
                let mut head = [0; 9];
                if peer.read_exact(&mut head).is_err() {
                    break;
                }
                let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
                if peer.read_exact(&mut vec![0; length]).is_err() {
                    break;
                }
                // HEADERS, or RST_STREAM.
                answered += u32::from(matches!(head[3], 1 | 3));
                self.unread.fetch_add(u64::from(head[3] == 1), Relaxed);
            }
        }
    }

    /// Does the same and never leaves, until the server ends the streams and then the connection.
    fn hold(&self, world: &World) {
        while self.goes_on() {
            let mut peer = world.connect(&world.http2);
            peer.sock.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            let _ = peer.write_all(&greedy());
            let mut buffer = vec![0; 64 << 10];
            while self.goes_on() {
                match peer.read(&mut buffer) {
                    Ok(1..) => {}
                    Err(error)
                        if matches!(
                            error.kind(),
                            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                        ) => {}
                    _ => {
                        self.ended.fetch_add(1, Relaxed);
                        break;
                    }
                }
            }
        }
    }

    /// Asks for `/readyz` again and again, on one connection.
    fn probe(&self, address: SocketAddr) {
        let mut stream = connect(address);
        while self.goes_on() {
            let begun = Instant::now();
            stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
            // The disk may be full: then the answer is that the server is not ready.
            let (code, _) = receive(&mut stream);
            assert!(matches!(code, 200 | 500), "{code}");
            self.worst_micros.fetch_max(begun.elapsed().as_micros() as u64, Relaxed);
            self.probes.fetch_add(1, Relaxed);
        }
    }

    /// Fills the disk until some writes were refused, and empties it until some succeed.
    fn fill_disk(&self) {
        let wait = |enough: &dyn Fn(&Counts) -> bool| {
            self.progress.wait(LONG, |counts| enough(counts) || !self.goes_on())
        };
        while self.goes_on() {
            let before = self.progress.read(|counts| *counts);
            assert!(wait(&|counts| counts.acknowledged >= before.acknowledged + 20));
            let before = self.progress.read(|counts| *counts);
            self.disk_is_full.store(true, Relaxed);
            let refused = wait(&|counts| counts.refused >= before.refused + 3);
            self.disk_is_full.store(false, Relaxed);
            assert!(refused, "no write needs space");
        }
    }

    /// Compares the ledger with the server.
    fn verify(&self, address: SocketAddr) {
        for (name, entry) in &*self.ledger.lock().unwrap() {
            let (code, text) = send(address, "GET", &format!("{MAPS}/{name}"), &Value::Null);
            let stored = match code {
                404 => 0,
                _ => {
                    let object: Value = serde_json::from_str(&text).unwrap();
                    object["data"]["number"].as_str().unwrap().parse().unwrap()
                }
            };
            let range = entry.acknowledged..=entry.sent;
            assert!(range.contains(&stored), "{name}: {stored} is not in {range:?}");
        }
    }
}

/// The requests over one connection of a peer that does not read.
const REQUESTS: u32 = 100;

/// A connection over HTTP/2 that asks for a large document so often, with a window of zero bytes.
fn greedy() -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // SETTINGS_INITIAL_WINDOW_SIZE is 0.
    bytes.extend(frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]));
    for at in 0..REQUESTS {
        // GET and https, then literals of indexed names.
        let mut headers = vec![0x82, 0x87];
        let bearer = format!("Bearer {TOKEN}");
        let (path, authority, authorization) = (&[0x04][..], &[0x01][..], &[0x0f, 8][..]);
        for (index, text) in
            [(path, "/openapi/v2"), (authority, "127.0.0.1"), (authorization, &bearer)]
        {
            headers.extend(index);
            headers.push(text.len() as u8);
            headers.extend(text.as_bytes());
        }
        bytes.extend(frame(1, 5, 2 * at + 1, &headers));
    }
    bytes
}

/// A clock that jumps by hours.
#[derive(Default)]
struct JumpingClock(AtomicI64);

impl JumpingClock {
    fn jump(&self, seed: u64) {
        let hours = (seed.wrapping_mul(6_364_136_223_846_793_005) >> 33) % 48;
        self.0.store((hours as i64 - 24) * 3600, Relaxed);
    }
}

impl Clock for JumpingClock {
    fn now(&self) -> Timestamp {
        SystemClock.now() + SignedDuration::from_secs(self.0.load(Relaxed))
    }
}

/// A directory on a disk that can be full.
#[derive(Debug)]
struct FillingDisk {
    inner: Directory,
    is_full: Arc<AtomicBool>,
}

#[derive(Debug)]
struct FillingFile {
    inner: Box<dyn DiskFile>,
    is_full: Arc<AtomicBool>,
}

fn room(is_full: &AtomicBool) -> io::Result<()> {
    match is_full.load(Relaxed) {
        true => Err(io::ErrorKind::StorageFull.into()),
        false => Ok(()),
    }
}

impl Disk for FillingDisk {
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let inner = self.inner.open(name)?;
        Ok(Box::new(FillingFile { inner, is_full: Arc::clone(&self.is_full) }))
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        self.inner.exists(name)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.inner.names()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }

    fn space(&self) -> io::Result<Space> {
        self.inner.space()
    }

    fn allocate(&self, name: &str, bytes: u64) -> io::Result<()> {
        room(&self.is_full)?;
        self.inner.allocate(name, bytes)
    }

    fn place(&self) -> String {
        self.inner.place()
    }
}

impl DiskFile for FillingFile {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        room(&self.is_full)?;
        self.inner.write(offset, data)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.inner.sync_data()
    }

    fn drop_cache(&self, offset: u64, len: u64) {
        self.inner.drop_cache(offset, len);
    }
}

/// The configuration of clients that speak one protocol.
fn trust(pki: &Pki, protocol: &[u8]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pki.ca.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    Arc::new(config)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_write_timeout(Some(LONG)).unwrap();
    stream
}

/// One request on its own connection: the code and the body.
fn send(address: SocketAddr, method: &str, target: &str, body: &Value) -> (u16, String) {
    exchange(&mut connect(address), method, target, "", body)
}

/// One request. `headers` are additional lines.
fn exchange(
    stream: &mut (impl Read + Write),
    method: &str,
    target: &str,
    headers: &str,
    body: &Value,
) -> (u16, String) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let head = format!(
        "{method} {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
         {headers}Content-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    stream.flush().unwrap();
    receive(stream)
}

/// A response with `Content-Length`.
fn receive(stream: &mut impl Read) -> (u16, String) {
    let mut reader = BufReader::new(stream);
    let (mut code, mut length) = (None, 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let line = line.trim_end().to_ascii_lowercase();
        match line.strip_prefix("content-length: ") {
            Some(value) => length = value.parse().unwrap(),
            None if line.is_empty() => break,
            None if code.is_none() => {
                code = line.split(' ').nth(1).map(|code| code.parse().unwrap())
            }
            None => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    (code.unwrap(), String::from_utf8(body).unwrap())
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}
