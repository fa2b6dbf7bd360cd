//! Connections: handshakes, limits, malformed requests, stopping.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use headwater_api::{Clock, SystemClock};
use headwater_server::authenticator::{Authenticator, Credential};
use headwater_server::backup::Backup;
use headwater_server::body::RequestBody;
use headwater_server::identity::Peer;
use headwater_server::listen::{Error, Handler, Listener, LongRunning, Options};
use headwater_server::metrics::Metrics;
use headwater_server::pki::{self, Pair, Pki};
use headwater_server::request_header::RequestHeaderOptions;
use headwater_server::service_account::Issuer;
use headwater_server::tls::Acceptor;
use headwater_server::token_file::Tokens;
use headwater_server::{Response, body, start};
use headwater_store::Memory;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use jiff::{SignedDuration, Timestamp};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

mod hostile;
mod lasting;
mod standby;
mod withdrawn;

/// A handler whose response depends on the path.
#[derive(Clone)]
struct Scripted {
    authenticator: Authenticator,
    /// `/held` responds when the test adds a permit.
    gate: Arc<Semaphore>,
    /// One permit for each request to `/held` that has arrived.
    arrived: Arc<Semaphore>,
}

impl Scripted {
    fn handler(&self) -> Handler {
        let scripted = self.clone();
        Arc::new(move |peer, request| {
            let scripted = scripted.clone();
            Box::pin(async move { scripted.handle(&peer, request).await })
        })
    }

    async fn handle(&self, peer: &Peer, request: Request<RequestBody>) -> Response {
        match request.uri().path() {
            "/held" => {
                self.arrived.add_permits(1);
                self.gate.acquire().await.unwrap().forget();
                text(StatusCode::OK, "held")
            }
            "/forever" => {
                let begin = stream::iter([Bytes::from("begin\n")]);
                Response::new(body::stream(futures::StreamExt::chain(begin, stream::pending())))
            }
            "/lasting" => lasting::answer(self),
            "/large" => lasting::large_answer(),
            _ => match self.authenticator.identify(peer, request.uri().path(), request.headers()) {
                Ok(Credential::Identified(identity)) => text(StatusCode::OK, &identity.user),
                Ok(Credential::Token(_)) | Err(_) => text(StatusCode::UNAUTHORIZED, "Unauthorized"),
            },
        }
    }
}

fn text(status: StatusCode, text: &str) -> Response {
    body::text(status, text.to_owned())
}

/// A listener in this process.
struct Started {
    address: SocketAddr,
    handler: Scripted,
    metrics: Metrics,
    stop: CancellationToken,
    run: JoinSet<()>,
}

impl Started {
    fn new(listener: Listener, metrics: Metrics) -> Started {
        Started::with(listener, metrics, Authenticator::new(Tokens::default()))
    }

    fn with(listener: Listener, metrics: Metrics, authenticator: Authenticator) -> Started {
        let handler = Scripted {
            authenticator,
            gate: Arc::new(Semaphore::new(0)),
            arrived: Arc::new(Semaphore::new(0)),
        };
        let (stop, address) = (CancellationToken::new(), listener.address());
        let mut run = JoinSet::new();
        run.spawn(listener.run(handler.handler(), stop.clone()));
        Started { address, handler, metrics, stop, run }
    }

    fn plain(options: Options) -> Started {
        let metrics = Metrics::new();
        Started::new(Listener::plain(any_port(), options, metrics.clone()).unwrap(), metrics)
    }

    fn tls(pki: &Pki, options: Options, clock: Arc<dyn Clock>) -> Started {
        let acceptor = Acceptor::new(pki, clock).unwrap();
        let metrics = Metrics::new();
        let listener = Listener::tls(any_port(), acceptor, options, metrics.clone()).unwrap();
        Started::new(listener, metrics)
    }

    /// A listener that accepts front proxies of this authority, with these names.
    fn behind_proxies(pki: &Pki, proxies: &Pki, names: &[&str]) -> Started {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let acceptor = Acceptor::new(pki, clock).unwrap().with_proxies(&proxies.ca).unwrap();
        let metrics = Metrics::new();
        let options = Options::default();
        let listener = Listener::tls(any_port(), acceptor, options, metrics.clone()).unwrap();
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let named = RequestHeaderOptions {
            authority: proxies.ca.clone(),
            allowed_names: list(names),
            user: list(&["x-remote-user"]),
            uid: Vec::new(),
            group: list(&["x-remote-group"]),
            extra: Vec::new(),
        };
        let authenticator = Authenticator::new(Tokens::default()).with_proxies(named);
        Started::with(listener, metrics, authenticator)
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends bytes on a new connection and reads until the server closes it.
    async fn exchange(&self, request: &[u8]) -> String {
        let mut socket = self.connect().await;
        socket.write_all(request).await.unwrap();
        read_to_end(&mut socket).await
    }

    async fn held_request_arrived(&self) {
        self.handler.arrived.acquire().await.unwrap().forget();
    }

    /// Waits until the listener ends.
    async fn ended(mut self) {
        self.run.join_next().await.unwrap().unwrap();
    }
}

fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn pki_at(clock: &dyn Clock) -> Pki {
    Pki::in_memory(&pki::names("127.0.0.1".parse().unwrap(), &[]), clock).unwrap()
}

fn impatient() -> Options {
    Options {
        timeout_handshake: Duration::from_millis(50),
        timeout_header: Duration::from_millis(50),
        timeout_idle: Duration::from_millis(50),
        ..Options::default()
    }
}

/// A long request timeout and a short idle timeout.
fn soon_idle() -> Options {
    Options { timeout_idle: Duration::from_millis(50), ..Options::default() }
}

async fn read_to_end(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut bytes = Vec::new();
    // A reset counts as a close.
    let _ = stream.read_to_end(&mut bytes).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn tls_connect(
    address: SocketAddr,
    trusted: &Pki,
    client: Option<&Pair>,
    protocol: &str,
) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusted.ca.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match client {
        None => config.with_no_client_auth(),
        Some(pair) => {
            let leaf = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(pair.key.reveal().as_bytes()).unwrap();
            config.with_client_auth_cert(vec![leaf], key).unwrap()
        }
    };
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let socket = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, socket).await.unwrap()
}

/// The user that the server identified, over HTTP/1.1.
async fn who(address: SocketAddr, trusted: &Pki, client: Option<&Pair>) -> String {
    who_says(address, trusted, client, "").await
}

/// The same, with further headers.
async fn who_says(
    address: SocketAddr,
    trusted: &Pki,
    client: Option<&Pair>,
    headers: &str,
) -> String {
    let mut stream = tls_connect(address, trusted, client, "http/1.1").await;
    let request =
        format!("GET /who HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let answer = read_to_end(&mut stream).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    format!("{} {body}", &head[9..12])
}

#[tokio::test]
async fn a_client_certificate_names_its_user() {
    let pki = pki_at(&SystemClock);
    let server = Started::tls(&pki, Options::default(), Arc::new(SystemClock));
    assert_eq!(who(server.address, &pki, Some(&pki.admin)).await, "200 kubernetes-admin");
    assert_eq!(who(server.address, &pki, None).await, "200 system:anonymous");
}

#[tokio::test]
async fn a_certificate_of_another_authority_is_unauthorized() {
    let (pki, other) = (pki_at(&SystemClock), pki_at(&SystemClock));
    let server = Started::tls(&pki, Options::default(), Arc::new(SystemClock));
    assert_eq!(who(server.address, &pki, Some(&other.admin)).await, "401 Unauthorized");
}

#[tokio::test]
async fn a_serving_certificate_is_not_a_client_certificate() {
    let pki = pki_at(&SystemClock);
    let server = Started::tls(&pki, Options::default(), Arc::new(SystemClock));
    assert_eq!(who(server.address, &pki, Some(&pki.server)).await, "401 Unauthorized");
}

#[tokio::test]
async fn an_expired_certificate_is_unauthorized_even_if_it_is_cached() {
    #[derive(Default)]
    struct Years(AtomicI64);
    impl Clock for Years {
        fn now(&self) -> Timestamp {
            SystemClock.now()
                + SignedDuration::from_hours(366 * 24 * self.0.load(Ordering::Relaxed))
        }
    }
    let (pki, years) = (pki_at(&SystemClock), Arc::new(Years::default()));
    let server = Started::tls(&pki, Options::default(), years.clone());
    for (after, expected) in [(0, "200 kubernetes-admin"), (2, "401 Unauthorized")] {
        years.0.store(after, Ordering::Relaxed);
        for _ in 0..2 {
            assert_eq!(who(server.address, &pki, Some(&pki.admin)).await, expected);
        }
    }
}

#[tokio::test]
async fn replaced_certificates_are_used_from_the_next_handshake_on() {
    let (first, second) = (pki_at(&SystemClock), pki_at(&SystemClock));
    let acceptor = Acceptor::new(&first, Arc::new(SystemClock)).unwrap();
    let metrics = Metrics::new();
    let listener =
        Listener::tls(any_port(), acceptor.clone(), Options::default(), metrics.clone()).unwrap();
    let server = Started::new(listener, metrics);
    assert_eq!(who(server.address, &first, Some(&first.admin)).await, "200 kubernetes-admin");
    acceptor.replace(&second).unwrap();
    assert_eq!(who(server.address, &second, Some(&second.admin)).await, "200 kubernetes-admin");
    assert_eq!(who(server.address, &second, Some(&first.admin)).await, "401 Unauthorized");
}

/// S8.34
#[tokio::test]
async fn plain_http_on_the_tls_port_gets_an_explanation() {
    let pki = pki_at(&SystemClock);
    let server = Started::tls(&pki, Options::default(), Arc::new(SystemClock));
    let answer = server.exchange(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.ends_with("Client sent an HTTP request to an HTTPS server.\n"), "{answer}");
}

/// B001
#[tokio::test]
async fn a_connection_without_a_handshake_is_closed_and_counted() {
    let pki = pki_at(&SystemClock);
    let server = Started::tls(&pki, impatient(), Arc::new(SystemClock));
    let mut socket = server.connect().await;
    assert_eq!(read_to_end(&mut socket).await, "");
    let text = server.metrics.registry.text();
    assert!(text.contains("apiserver_tls_handshake_errors_total 1\n"), "{text}");
}

/// R44, B002, B003, B006
#[tokio::test]
async fn silent_slow_and_idle_connections_are_closed() {
    let server = Started::plain(impatient());
    for sent in ["", "GET /who HT", "GET /who HTTP/1.1\r\nHost: localhost\r\n"] {
        assert_eq!(server.exchange(sent.as_bytes()).await, "", "{sent:?}");
    }
    let server = Started::plain(soon_idle());
    let answer = server.exchange(b"GET /who HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert!(answer.ends_with("kubernetes-admin"), "{answer}");
}

#[tokio::test]
async fn malformed_requests_are_refused_and_their_connection_closed() {
    let server = Started::plain(Options::default());
    let many: String = (0..201).map(|n| format!("H{n}: x\r\n")).collect();
    let long = "x".repeat(65 * 1024);
    let huge = "x".repeat(260 * 1024);
    for (code, request) in [
        (400, "garbage\r\n\r\n".to_owned()),
        (400, "GET /\r\n\r\n".to_owned()),
        (400, "GET / HTTP/1.1\r\n\r\n".to_owned()),
        (400, "GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n".to_owned()),
        (400, "GET / HTTP/1.1\r\nHost : x\r\n\r\n".to_owned()),
        (400, "GET / HTTP/1.1\r\nHost: localhost\r\nA: b\0c\r\n\r\n".to_owned()),
        (400, "GET / HTTP/1.1\r\nHost: localhost\r\nA: b\r\n folded\r\n\r\n".to_owned()),
        (400, chunked("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n")),
        (400, chunked("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n")),
        (400, chunked("Content-Length: 5\r\nContent-Length: 6\r\n")),
        (400, chunked("Content-Length: -1\r\n")),
        (400, chunked("Content-Length: five\r\n")),
        (400, chunked("Content-Length: 99999999999999999999999\r\n")),
        (400, chunked("Transfer-Encoding: cats\r\n")),
        (414, format!("GET /{long} HTTP/1.1\r\nHost: localhost\r\n\r\n")),
        (417, "GET / HTTP/1.1\r\nHost: localhost\r\nExpect: cats\r\n\r\n".to_owned()),
        (431, format!("GET / HTTP/1.1\r\nHost: localhost\r\n{many}\r\n")),
        (431, format!("GET / HTTP/1.1\r\nHost: localhost\r\nA: {huge}\r\n\r\n")),
    ] {
        let answer = server.exchange(request.as_bytes()).await;
        let shown: String = request.chars().take(80).collect();
        assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{shown:?}: {answer:?}");
    }
}

fn chunked(headers: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n0\r\n\r\nGET /who HTTP/1.1\r\n")
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let server = Started::plain(Options::default());
    let mut requests = "GET /who HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(999);
    requests.push_str("GET /who HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let answers = server.exchange(requests.as_bytes()).await;
    assert_eq!(answers.matches("200 OK").count(), 1000);
}

/// S8.33, R46
#[tokio::test]
async fn a_panic_fails_only_its_request() {
    let issuer = Issuer::new(&pki_at(&SystemClock).service_account_key).unwrap();
    let mut options = headwater_server::Options::new(issuer);
    options.backup = Backup::new(|| panic!("as the test asked"));
    let metrics = options.metrics.clone();
    let mut running = start(Arc::new(Memory::default()), options).await.unwrap();
    let listener = Listener::plain(any_port(), Options::default(), metrics.clone()).unwrap();
    let mut socket = TcpStream::connect(listener.address()).await.unwrap();
    running.listen(listener);
    let requests = "GET /debug/headwater/backup HTTP/1.1\r\nHost: localhost\r\n\r\n\
                    GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    socket.write_all(requests.as_bytes()).await.unwrap();
    let answer = read_to_end(&mut socket).await;
    assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
    assert!(answer.contains("caused apiserver to panic"), "{answer}");
    assert!(answer.contains("\r\naudit-id: "), "{answer}");
    assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
    assert!(metrics.registry.text().contains("headwater_panics_total 1\n"));
}

/// R43
#[tokio::test]
async fn a_stop_lets_requests_finish_and_accepts_no_more() {
    let server = Started::plain(Options::default());
    let mut idle = server.connect().await;
    idle.write_all(b"GET /who HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"kubernetes-admin") {
        assert_ne!(idle.read_buf(&mut answer).await.unwrap(), 0, "it is answered");
    }
    let mut busy = server.connect().await;
    busy.write_all(b"GET /held HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    server.held_request_arrived().await;
    server.stop.cancel();
    // The idle connection is closed while the other request is still in progress.
    assert_eq!(read_to_end(&mut idle).await, "");
    assert!(TcpStream::connect(server.address).await.is_err());
    server.handler.gate.add_permits(1);
    assert!(read_to_end(&mut busy).await.ends_with("held"));
    server.ended().await;
}

#[tokio::test]
async fn a_stop_aborts_requests_after_the_grace_period() {
    let options = Options { shutdown_grace: Duration::from_millis(50), ..Options::default() };
    let server = Started::plain(options);
    let mut socket = server.connect().await;
    socket.write_all(b"GET /forever HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut first = [0; 1];
    socket.read_exact(&mut first).await.unwrap();
    server.stop.cancel();
    server.ended().await;
    assert!(read_to_end(&mut socket).await.contains("begin"));
}

/// An HTTP/2 client; its connection task ends when the server closes the connection.
async fn http2(
    server: &Started,
    pki: &Pki,
    client: Option<&Pair>,
) -> (hyper::client::conn::http2::SendRequest<Full<Bytes>>, JoinSet<()>) {
    let stream = tls_connect(server.address, pki, client, "h2").await;
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    let mut run = JoinSet::new();
    run.spawn(async move {
        // How the connection ends does not matter.
        let _ = connection.await;
    });
    (sender, run)
}

fn get(path: &str) -> Request<Full<Bytes>> {
    Request::get(format!("https://127.0.0.1{path}")).body(Full::default()).unwrap()
}

/// S8.31
#[tokio::test]
async fn http2_is_chosen_by_alpn_and_stops_gracefully() {
    let pki = pki_at(&SystemClock);
    let server = Started::tls(&pki, Options::default(), Arc::new(SystemClock));
    let (mut sender, mut run) = http2(&server, &pki, Some(&pki.admin)).await;
    let who = sender.send_request(get("/who")).await.unwrap();
    assert_eq!(who.version(), http::Version::HTTP_2);
    assert_eq!(who.into_body().collect().await.unwrap().to_bytes(), "kubernetes-admin");
    let held = async {
        server.held_request_arrived().await;
        server.stop.cancel();
        server.handler.gate.add_permits(1);
        std::future::pending::<()>().await;
    };
    let answer = tokio::select! {
        answer = sender.send_request(get("/held")) => answer.unwrap(),
        () = held => unreachable!("the answer comes first"),
    };
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "held");
    run.join_next().await.unwrap().unwrap();
    server.ended().await;
}

/// S8.4
#[tokio::test]
async fn an_unauthorized_http2_client_is_sent_away_after_its_answer() {
    let (pki, other) = (pki_at(&SystemClock), pki_at(&SystemClock));
    let server = Started::tls(&pki, Options::default(), Arc::new(SystemClock));
    let (mut sender, mut run) = http2(&server, &pki, Some(&other.admin)).await;
    let answer = sender.send_request(get("/who")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    run.join_next().await.unwrap().unwrap();
}

/// B006
#[tokio::test]
async fn an_idle_http2_connection_is_ended() {
    let pki = pki_at(&SystemClock);
    let server = Started::tls(&pki, soon_idle(), Arc::new(SystemClock));
    let (mut sender, mut run) = http2(&server, &pki, Some(&pki.admin)).await;
    sender.send_request(get("/who")).await.unwrap();
    run.join_next().await.unwrap().unwrap();
}

#[test]
fn plain_http_is_for_loopback_only() {
    let refused = Listener::plain("0.0.0.0:0".parse().unwrap(), Options::default(), Metrics::new());
    assert!(matches!(refused, Err(Error::NotLoopback(_))));
}

#[tokio::test]
async fn a_port_in_use_is_reported_with_a_remedy() {
    let server = Started::plain(Options::default());
    let taken = Listener::plain(server.address, Options::default(), Metrics::new());
    let error = taken.err().unwrap().to_string();
    assert!(error.contains(&server.address.to_string()), "{error}");
    assert!(error.contains("--insecure-bind"), "{error}");
}

/// B030
#[tokio::test]
async fn a_connection_over_the_limit_is_closed_and_others_are_served() {
    let server = Started::plain(Options { connections_max: 1, ..Options::default() });
    let mut first = server.connect().await;
    first.write_all(b"GET /held HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    server.held_request_arrived().await;
    let mut second = server.connect().await;
    assert_eq!(read_to_end(&mut second).await, "");
    server.handler.gate.add_permits(1);
    let mut answer = [0; 12];
    first.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
}

/// The requests that a page of another site can make a browser send, and their harmless variants.
#[tokio::test]
async fn no_web_page_is_the_administrator_of_the_plain_listener() {
    let server = Started::plain(Options::default());
    let json = "Content-Type: application/json\r\n";
    for (code, request, host, headers) in [
        (200, "GET /who", "localhost", ""),
        (200, "GET /who", "127.0.0.1:8001", "Sec-Fetch-Site: none\r\n"),
        (200, "POST /who", "localhost", json),
        (200, "DELETE /who", "localhost", ""),
        (403, "GET /who", "rebound.example", ""),
        (403, "GET /who", "localhost", "Origin: https://evil.example\r\n"),
        (403, "GET /who", "localhost", "Sec-Fetch-Site: cross-site\r\n"),
        (415, "POST /who", "localhost", ""),
        (415, "POST /who", "localhost", "Content-Type: text/plain\r\n"),
        (415, "POST /who", "localhost", "Content-Type: application/x-www-form-urlencoded\r\n"),
    ] {
        let text = format!(
            "{request} HTTP/1.1\r\nHost: {host}\r\n{headers}Connection: close\r\n\
             Content-Length: 0\r\n\r\n"
        );
        let answer = server.exchange(text.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{text:?}: {answer:?}");
        assert_eq!(answer.ends_with("kubernetes-admin"), code == 200, "{answer}");
    }
}

/// S8.19, B064
#[tokio::test]
async fn only_a_front_proxy_may_name_the_user_in_headers() {
    let (server, proxies) = (pki_at(&SystemClock), pki_at(&SystemClock));
    let headers = "X-Remote-User: alice\r\nX-Remote-Group: system:masters\r\n";
    let name = "kubernetes-admin";
    for (allowed, behind) in
        [(&[][..], "200 alice"), (&[name], "200 alice"), (&["other"], "401 Unauthorized")]
    {
        let started = Started::behind_proxies(&server, &proxies, allowed);
        let ask = async |client: Option<&Pair>, headers: &str| {
            who_says(started.address, &server, client, headers).await
        };
        assert_eq!(ask(Some(&proxies.admin), headers).await, behind, "{allowed:?}");
        // A proxy without headers is nobody: its certificate is not one of a client.
        assert_eq!(ask(Some(&proxies.admin), "").await, "401 Unauthorized");
        // A client of the server is itself, whatever it writes into headers.
        assert_eq!(ask(Some(&server.admin), headers).await, format!("200 {name}"));
        assert_eq!(ask(None, headers).await, "200 system:anonymous");
        // A serving certificate of the same authority does not make a proxy.
        assert_eq!(ask(Some(&proxies.server), headers).await, "401 Unauthorized");
        started.stop.cancel();
        started.ended().await;
    }
}
