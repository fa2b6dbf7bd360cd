//! The server under test, its requests, and the checks after every row.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::panic::Location;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::config::Kubeconfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::Process;

/// A token of the administrator.
pub(crate) const ADMIN: &str = "token-of-the-administrator";
/// A token of a user without permissions.
pub(crate) const USER: &str = "token-of-a-plain-user";
/// Part of bodies and headers that must not be logged.
pub(crate) const SECRET: &str = "nobody-may-read-this-in-a-log";

/// The ConfigMaps that rows write.
pub(crate) const CMS: &str = "/api/v1/namespaces/ns/configmaps";

/// Timeout: only a hang reaches it.
const HANG: Duration = Duration::from_secs(600);
/// Maximum growth of the server's memory over all rows.
const MEMORY_MAX: u64 = 64 << 20;

/// The server, and the failures so far.
pub(crate) struct Suite {
    pub(crate) process: Process,
    directory: TempDir,
    tls: Arc<ClientConfig>,
    wrong: Vec<String>,
    memory_before: u64,
}

impl Suite {
    pub(crate) fn start() -> Suite {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let tokens = format!("{ADMIN},admin,1,\"system:masters\"\n{USER},user,2,\"plain\"\n");
        write_private(&path("tokens"), &tokens);
        let log = File::create(path("log")).unwrap();
        let process = Process::serve_logging_to(
            Stdio::from(log),
            &[
                "--memory",
                "--log",
                "info,headwater=debug,headwater_server=debug,headwater_cache=debug",
                "--token-auth-file",
                path("tokens").to_str().unwrap(),
                "--kubeconfig-out",
                path("kubeconfig").to_str().unwrap(),
            ],
        );
        let tls = Arc::new(trusting(&path("kubeconfig")));
        let mut suite = Suite { process, directory, tls, wrong: Vec::new(), memory_before: 0 };
        for namespace in ["ns", "n", "n2"] {
            suite.made("/api/v1/namespaces", &json!({"metadata": {"name": namespace}}));
        }
        suite.memory_before = suite.memory();
        suite
    }

    /// Runs one row: `inputs` sends the requests, then the server must be unchanged.
    pub(crate) fn row(&mut self, number: u16, inputs: impl FnOnce(&mut Row<'_>)) {
        let mut row = Row { suite: self, number };
        inputs(&mut row);
        row.unharmed();
    }

    /// Creates an object that rows need.
    #[track_caller]
    pub(crate) fn made(&self, target: &str, body: &Value) -> Value {
        let answer = self.ask(&format!("POST {target}"), body.to_string());
        assert_eq!(answer.code, 201, "{}", answer.text());
        answer.json()
    }

    /// Sends a request as the administrator over plain HTTP: `METHOD target`, then headers.
    #[track_caller]
    pub(crate) fn ask(&self, request: &str, body: impl AsRef<[u8]>) -> Answer {
        Answer::parse(&self.exchange(&wire(request, body.as_ref())))
    }

    /// Sends a request over TLS with the credentials in its headers.
    #[track_caller]
    pub(crate) fn ask_over_tls(&self, request: &str, body: impl AsRef<[u8]>) -> Answer {
        let mut stream = self.tls("http/1.1");
        // The server may respond and close before it has read everything.
        let _ = stream.write_all(&wire(request, body.as_ref()));
        Answer::parse(&read_to_end(&mut stream))
    }

    /// The response to these bytes until the server closes.
    pub(crate) fn exchange(&self, bytes: &[u8]) -> Vec<u8> {
        let mut socket = self.connect();
        // The server may respond and close before it has read everything.
        let _ = socket.write_all(bytes);
        read_to_end(&mut socket)
    }

    /// The beginning of the response up to `end`, or all of it if it ends before.
    pub(crate) fn first_bytes(&self, request: &str, end: &str) -> String {
        let mut socket = self.connect();
        socket.write_all(&wire(request, b"")).unwrap();
        let mut text = String::new();
        let mut buffer = [0; 4096];
        while !text.contains(end) {
            let read = socket.read(&mut buffer).unwrap();
            if read == 0 {
                break;
            }
            text.push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
        text
    }

    pub(crate) fn connect(&self) -> TcpStream {
        impatient(self.process.connect())
    }

    /// A TLS connection without a client certificate.
    pub(crate) fn tls(&self, protocol: &str) -> StreamOwned<ClientConnection, TcpStream> {
        let mut config = (*self.tls).clone();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        self.tls_with(config)
    }

    pub(crate) fn tls_config(&self) -> ClientConfig {
        (*self.tls).clone()
    }

    pub(crate) fn tls_with(
        &self,
        config: ClientConfig,
    ) -> StreamOwned<ClientConnection, TcpStream> {
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let client = ClientConnection::new(Arc::new(config), name).unwrap();
        StreamOwned::new(client, self.connect_tls())
    }

    /// A socket to the TLS port.
    pub(crate) fn connect_tls(&self) -> TcpStream {
        impatient(TcpStream::connect(self.process.tls()).unwrap())
    }

    /// The newest revision; this also checks that the server handles a new request.
    pub(crate) fn revision(&self) -> String {
        let list = self.ask("GET /api/v1/namespaces?limit=1", "");
        assert_eq!(list.code, 200, "{}", list.text());
        version(&list.json())
    }

    /// A value of `/metrics`, summed over all labels.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.ask("GET /metrics", "").text();
        let is_it =
            |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        let value = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
        text.lines().filter(is_it).map(value).sum()
    }

    /// Waits for a condition.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, mut holds: impl FnMut(&Suite) -> bool) {
        let began = Instant::now();
        while !holds(self) {
            assert!(began.elapsed() < HANG, "never: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Resident bytes of the server.
    fn memory(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/statm", self.process.id()));
        let pages = |text: String| text.split(' ').nth(1)?.parse::<u64>().ok();
        text.ok().and_then(pages).unwrap_or(0) * 4096
    }

    /// Fails with all failures.
    pub(crate) fn end(self) {
        let before = self.memory_before;
        self.until("memory goes back", |suite| suite.memory() <= before + MEMORY_MAX);
        let log = fs::read_to_string(self.directory.path().join("log")).unwrap();
        for secret in [ADMIN, USER, SECRET] {
            assert!(!log.contains(secret), "{secret} is in the log");
        }
        assert!(self.wrong.is_empty(), "{} wrong:\n{}", self.wrong.len(), self.wrong.join("\n"));
    }
}

/// A running row.
pub(crate) struct Row<'a> {
    pub(crate) suite: &'a mut Suite,
    number: u16,
}

impl Row<'_> {
    /// Checks that the request is refused with a Status of this code and reason and writes nothing.
    #[track_caller]
    pub(crate) fn refused(
        &mut self,
        request: &str,
        body: impl AsRef<[u8]>,
        code: u16,
        reason: &str,
    ) -> Answer {
        let before = self.suite.revision();
        let answer = self.suite.ask(request, body);
        let shown = shorten(request);
        self.is_status(&answer, &shown, code, reason);
        let after = self.suite.revision();
        self.check(before == after, || format!("{shown}: it wrote something"));
        answer
    }

    /// The same for a write; the causes of the Status must name the field.
    #[track_caller]
    pub(crate) fn invalid(&mut self, request: &str, body: impl AsRef<[u8]>, field: &str) {
        let answer = self.refused(request, body, 422, "Invalid");
        let causes = answer.json()["details"]["causes"].clone();
        let named =
            causes.as_array().is_some_and(|all| all.iter().any(|one| one["field"] == field));
        self.check(named, || format!("{}: no cause for {field}: {causes}", shorten(request)));
    }

    #[track_caller]
    pub(crate) fn bad_request(&mut self, request: &str, body: impl AsRef<[u8]>) -> Answer {
        self.refused(request, body, 400, "BadRequest")
    }

    /// Checks that the request succeeds; returns the body.
    #[track_caller]
    pub(crate) fn accepted(&mut self, request: &str, body: impl AsRef<[u8]>, code: u16) -> Answer {
        let answer = self.suite.ask(request, body);
        self.check(answer.code == code, || {
            format!("{}: {} is not {code}: {}", shorten(request), answer.code, answer.text())
        });
        answer
    }

    /// Checks that raw bytes get one of these status codes and that the connection is closed.
    #[track_caller]
    pub(crate) fn raw(&mut self, bytes: impl AsRef<[u8]>, codes: &[u16]) -> Answer {
        let bytes = bytes.as_ref();
        let before = self.suite.revision();
        let answer = Answer::parse(&self.suite.exchange(bytes));
        let shown = shorten(&String::from_utf8_lossy(bytes));
        self.check(codes.contains(&answer.code), || {
            format!("{shown:?}: {} is not one of {codes:?}: {}", answer.code, answer.text())
        });
        let after = self.suite.revision();
        self.check(before == after, || format!("{shown}: it wrote something"));
        answer
    }

    /// Checks for a complete Status with this code and reason.
    #[track_caller]
    pub(crate) fn is_status(&mut self, answer: &Answer, shown: &str, code: u16, reason: &str) {
        let status = answer.json();
        let is_it = answer.code == code
            && status["kind"] == "Status"
            && status["status"] == "Failure"
            && status["code"] == code
            && status["reason"] == reason;
        self.check(is_it, || {
            format!("{shown}: not {code} {reason} but {}: {}", answer.code, answer.text())
        });
    }

    /// Records a failure with the line of its row.
    #[track_caller]
    pub(crate) fn check(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            let place = Location::caller();
            let (file, line) = (place.file().rsplit('/').next().unwrap(), place.line());
            let text = shorten(&what());
            self.suite.wrong.push(format!("B{:03} {file}:{line}: {text}", self.number));
        }
    }

    /// The checks after every row.
    fn unharmed(&mut self) {
        assert!(self.suite.process.is_running(), "B{:03}: the server ended", self.number);
        let ready = self.suite.ask("GET /readyz", "");
        self.check(ready.code == 200, || format!("not ready: {}", ready.text()));
        let panics = self.suite.metric("headwater_panics_total");
        assert_eq!(panics, 0.0, "B{:03}: a handler panicked", self.number);
    }
}

/// A complete response; status 0 means that the connection was closed without one.
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn parse(bytes: &[u8]) -> Answer {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        let Some(end) = end else {
            return Answer { code: 0, head: String::new(), body: bytes.to_vec() };
        };
        let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        let body = &bytes[end + 4..];
        let body = match head.contains("transfer-encoding: chunked") {
            true => dechunked(body),
            false => body.to_vec(),
        };
        Answer { code, head, body }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body; null if it is not JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// The names in a list, separated by spaces.
    pub(crate) fn names(&self) -> String {
        let list = self.json();
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let names: Vec<&str> =
            items.iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect();
        names.join(" ")
    }
}

/// `metadata.resourceVersion`.
pub(crate) fn version(value: &Value) -> String {
    value["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()
}

/// A ConfigMap with this name.
pub(crate) fn config_map(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

/// A percent-encoded query value: `a b` becomes `a%20b`.
pub(crate) fn escaped(text: &str) -> String {
    let keep = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let escape = |byte: u8| match keep(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}

/// A request as bytes; its own headers replace the default ones.
pub(crate) fn wire(request: &str, body: &[u8]) -> Vec<u8> {
    let (line, headers) = request.split_once('\n').unwrap_or((request, ""));
    let mut text = format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    for header in headers.lines() {
        text.push_str(header);
        text.push_str("\r\n");
    }
    let writes = ["POST ", "PUT ", "PATCH "].iter().any(|method| line.starts_with(method));
    if writes && !headers.to_ascii_lowercase().contains("content-type:") {
        // The plain listener requires a type.
        text.push_str("Content-Type: application/json\r\n");
    }
    text.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
    let mut bytes = text.into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// Reads to the end of the stream; a timeout is a failure.
pub(crate) fn read_to_end(stream: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 16 * 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return bytes,
            Ok(read) => bytes.extend_from_slice(&buffer[..read]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("no end after {HANG:?}: {}", String::from_utf8_lossy(&bytes))
            }
            Err(_) => return bytes,
        }
    }
}

fn impatient(socket: TcpStream) -> TcpStream {
    socket.set_read_timeout(Some(HANG)).unwrap();
    socket.set_write_timeout(Some(HANG)).unwrap();
    socket
}

fn dechunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = bytes.windows(2).position(|window| window == b"\r\n") {
        let size = std::str::from_utf8(&bytes[..end]).unwrap_or_default();
        let size = usize::from_str_radix(size, 16).unwrap_or(0);
        let from = end + 2;
        if size == 0 || bytes.len() < from + size + 2 {
            break;
        }
        whole.extend_from_slice(&bytes[from..from + size]);
        bytes = &bytes[from + size + 2..];
    }
    whole
}

fn shorten(text: &str) -> String {
    text.chars().take(400).collect()
}

fn write_private(path: &std::path::Path, text: &str) {
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = File::options().create_new(true).write(true).mode(0o600).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

/// Trusts the authority of a kubeconfig.
fn trusting(kubeconfig: &std::path::Path) -> ClientConfig {
    use base64::Engine;
    let config = Kubeconfig::read_from(kubeconfig).unwrap();
    let cluster = config.clusters[0].cluster.clone().unwrap();
    let authority = cluster.certificate_authority_data.unwrap();
    let authority = base64::engine::general_purpose::STANDARD.decode(authority).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&authority).unwrap()).unwrap();
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}
