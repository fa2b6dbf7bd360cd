//! Credentials that lose their rights while a connection is open.

use headwater_server::Running;
use headwater_server::pki::private_file::OthersMayRead;
use headwater_server::pki::revoked::{self, RevokedCertificates};

use super::*;

/// A clock that the test moves.
#[derive(Default)]
struct Days(AtomicI64);

impl Clock for Days {
    fn now(&self) -> Timestamp {
        SystemClock.now() + SignedDuration::from_hours(24 * self.0.load(Ordering::Relaxed))
    }
}

/// A complete server over TLS.
async fn served(
    pki: &Pki,
    clock: Arc<dyn Clock>,
    anonymous: bool,
) -> (Running, Acceptor, SocketAddr) {
    let mut options =
        headwater_server::Options::new(Issuer::new(&pki.service_account_key).unwrap());
    options.clock = clock.clone();
    if !anonymous {
        options.authenticator = options.authenticator.without_anonymous();
    }
    let metrics = options.metrics.clone();
    let mut running = start(Arc::new(Memory::default()), options).await.unwrap();
    let acceptor = Acceptor::new(pki, clock).unwrap();
    let limits = Options::default();
    let listener = Listener::tls(any_port(), acceptor.clone(), limits, metrics).unwrap();
    let address = listener.address();
    running.listen(listener);
    (running, acceptor, address)
}

/// Sends a request on an open connection; returns the code of its response, whose body is short.
async fn code(stream: &mut TlsStream<TcpStream>, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"}") && !answer.ends_with(b"}\n") {
        assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0, "{path} is answered");
    }
    String::from_utf8_lossy(&answer[9..12]).into_owned()
}

const LIST: &str = "/api/v1/namespaces/default/configmaps?limit=1";

/// S4
#[tokio::test]
async fn an_expired_certificate_loses_its_rights_on_an_open_connection() {
    let (pki, days) = (pki_at(&SystemClock), Arc::new(Days::default()));
    let (_running, _, address) = served(&pki, days.clone(), true).await;
    let mut stream = tls_connect(address, &pki, Some(&pki.admin), "http/1.1").await;
    assert_eq!(code(&mut stream, LIST).await, "200");
    days.0.store(364, Ordering::Relaxed);
    assert_eq!(code(&mut stream, LIST).await, "200");
    days.0.store(366, Ordering::Relaxed);
    assert_eq!(code(&mut stream, LIST).await, "401");
}

/// S5
#[tokio::test]
async fn a_revoked_certificate_loses_its_connections_and_gets_no_more() {
    let pki = pki_at(&SystemClock);
    let (_running, acceptor, address) = served(&pki, Arc::new(SystemClock), true).await;
    let watch = "GET /api/v1/namespaces?watch=1 HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut watches = tls_connect(address, &pki, Some(&pki.admin), "http/1.1").await;
    watches.write_all(watch.as_bytes()).await.unwrap();
    watches.read_exact(&mut [0]).await.unwrap();
    let mut idle = tls_connect(address, &pki, Some(&pki.admin), "h2").await;
    let mut anonymous = tls_connect(address, &pki, None, "http/1.1").await;
    assert_eq!(code(&mut anonymous, "/version").await, "200");

    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().join("pki");
    revoked::revoke(&directory, &pki.admin.certificate, OthersMayRead::Refuse).unwrap();
    acceptor.revoke(RevokedCertificates::load(&directory).unwrap());
    read_to_end(&mut watches).await;
    read_to_end(&mut idle).await;
    assert_eq!(code(&mut anonymous, "/version").await, "200");
    let mut again = tls_connect(address, &pki, Some(&pki.admin), "http/1.1").await;
    assert_eq!(code(&mut again, LIST).await, "401");
}

/// S5
#[tokio::test]
async fn a_withdrawn_authority_takes_the_connections_of_its_clients_along() {
    let (first, second) = (pki_at(&SystemClock), pki_at(&SystemClock));
    let (_running, acceptor, address) = served(&first, Arc::new(SystemClock), true).await;
    let mut old = tls_connect(address, &first, Some(&first.admin), "http/1.1").await;
    assert_eq!(code(&mut old, LIST).await, "200");
    acceptor.replace(&second).unwrap();
    read_to_end(&mut old).await;
    let mut new = tls_connect(address, &second, Some(&second.admin), "http/1.1").await;
    assert_eq!(code(&mut new, LIST).await, "200");
}

/// S8: as kube-apiserver with `--anonymous-auth`.
#[tokio::test]
async fn a_request_without_a_credential_is_forbidden_or_unauthorized() {
    let pki = pki_at(&SystemClock);
    for (anonymous, resource, version) in [(true, "403", "200"), (false, "401", "401")] {
        let (_running, _, address) = served(&pki, Arc::new(SystemClock), anonymous).await;
        for (path, expected) in [(LIST, resource), ("/version", version)] {
            let mut stream = tls_connect(address, &pki, None, "http/1.1").await;
            assert_eq!(code(&mut stream, path).await, expected, "{anonymous} {path}");
        }
    }
}
