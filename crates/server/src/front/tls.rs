//! TLS: the handshake and the identity in the client certificate.
//!
//! River: socket → **tls** → identity, HTTP. Promise: TLS 1.2 or 1.3 only. The client certificate is
//! verified on every connection, also on a resumed one. The handshake succeeds with an invalid
//! client certificate, and the requests of that connection get 401 instead of a broken connection;
//! they are never anonymous (B009). A certificate that is revoked or whose authority is withdrawn loses
//! its open connections.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::future::AbortHandle;
use headwater_api::Clock;
use jiff::Timestamp;
use ring::digest;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring as provider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{self, ServerSessionMemoryCache, WebPkiClientVerifier};
use rustls::{
    CipherSuite, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig,
    SignatureScheme,
};
use tokio::net::TcpStream;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;
use x509_parser::der_parser::{Oid, oid};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::front::identity::{ClientCertificate, Identity};
use crate::front::pki::Pki;
use crate::front::pki::revoked::RevokedCertificates;

mod connections;

pub use connections::CertifiedConnection;
use connections::CertifiedConnections;

/// The HTTP version that the handshake negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1; the default if the client does not negotiate.
    Http1,
    /// HTTP/2.
    Http2,
}

const H2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// The maximum number of sessions that can be resumed without a full handshake.
const RESUMABLE_SESSIONS_MAX: usize = 1024;

/// The subject attribute that contains a user's uid.
const UID: Oid<'static> = oid!(1.3.6.1.4.1.57683.2);
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// Certificates that rustls cannot use.
#[derive(Debug, thiserror::Error)]
#[error("the certificates cannot be used: {0}")]
pub struct Error(String);

/// Performs TLS handshakes. Clones share the certificates that [`Acceptor::replace`] sets.
#[derive(Clone)]
pub struct Acceptor {
    current: Arc<ArcSwap<Current>>,
    /// Verifies the certificates of front proxies.
    proxies: Option<Arc<dyn ClientCertVerifier>>,
    revoked: Arc<ArcSwap<RevokedCertificates>>,
    connections: CertifiedConnections,
    clock: Arc<dyn Clock>,
}

/// An accepted connection.
pub struct AcceptedTls {
    /// The stream.
    pub stream: TlsStream<TcpStream>,
    /// The HTTP version.
    pub protocol: Protocol,
    /// What the client's certificate proves.
    pub client: ClientCertificate,
    /// Keeps the connection registered under its certificate: it is aborted when the certificate loses
    /// its rights.
    pub registered: Option<CertifiedConnection>,
}

struct Current {
    /// For clients that prefer AES: selects the cheapest suite.
    quick: Arc<ServerConfig>,
    /// For all others: selects the client's first choice.
    willing: Arc<ServerConfig>,
    /// The verifier that decides; the one in the handshake accepts every certificate.
    clients: Arc<dyn ClientCertVerifier>,
}

impl Acceptor {
    /// Presents the server's certificate and accepts clients of its certificate authority.
    pub fn new(pki: &Pki, clock: Arc<dyn Clock>) -> Result<Acceptor, Error> {
        let current = Arc::new(ArcSwap::from_pointee(Current::new(pki)?));
        let (revoked, connections) = Default::default();
        Ok(Acceptor { current, proxies: None, revoked, connections, clock })
    }

    /// Also accepts front proxies with certificates of this authority (PEM), which should issue no
    /// others.
    pub fn with_proxies(mut self, authority: &str) -> Result<Acceptor, Error> {
        let provider = Arc::new(quickest_first(provider::default_provider()));
        self.proxies = Some(clients(authority, &provider)?);
        Ok(self)
    }

    /// Uses other certificates from the next handshake on. Connections of clients whose authority is
    /// no longer trusted end.
    pub fn replace(&self, pki: &Pki) -> Result<(), Error> {
        self.current.store(Arc::new(Current::new(pki)?));
        self.end_invalid();
        Ok(())
    }

    /// Rejects these client certificates, and ends their connections.
    pub fn revoke(&self, revoked: RevokedCertificates) {
        self.revoked.store(Arc::new(revoked));
        self.end_invalid();
    }

    fn end_invalid(&self) {
        let ended = self.connections.retain(|chain| self.is_valid(chain));
        if ended > 0 {
            tracing::info!(ended, "connections ended: their client certificates are not accepted");
        }
    }

    fn is_valid(&self, chain: &[CertificateDer<'_>]) -> bool {
        is_accepted(&self.verify(chain))
    }

    fn verify(&self, chain: &[CertificateDer<'_>]) -> ClientCertificate {
        if chain.first().is_some_and(|leaf| self.revoked.load().contains(leaf)) {
            tracing::info!("a revoked client certificate was rejected");
            return ClientCertificate::Refused;
        }
        let own = self.current.load().verify(chain, self.clock.now());
        match self.proxy(chain) {
            Some(name) => ClientCertificate::Proxy { name, own: Box::new(own) },
            None => own,
        }
    }

    /// Performs one handshake. `abort` ends the connection.
    pub async fn accept(&self, socket: TcpStream, abort: AbortHandle) -> io::Result<AcceptedTls> {
        let current = self.current.load_full();
        let begun = LazyConfigAcceptor::new(server::Acceptor::default(), socket).await?;
        let config = match wants_aes(begun.client_hello().cipher_suites()) {
            true => &current.quick,
            false => &current.willing,
        };
        let stream = begun.into_stream(config.clone()).await?;
        let (_, session) = stream.get_ref();
        let protocol = match session.alpn_protocol() {
            Some(H2) => Protocol::Http2,
            _ => Protocol::Http1,
        };
        let chain = session.peer_certificates().unwrap_or_default();
        // Registered first, so that a later change reaches the connection.
        let registered = self.connections.register(chain, abort);
        let client = self.verify(chain);
        let registered = registered.filter(|_| is_accepted(&client));
        Ok(AcceptedTls { stream, protocol, client, registered })
    }

    /// The name of a front proxy with this chain.
    fn proxy(&self, chain: &[CertificateDer<'_>]) -> Option<Arc<str>> {
        let verifier = self.proxies.as_ref()?;
        let (leaf, above) = chain.split_first()?;
        verifier.verify_client_cert(leaf, above, unix_time(self.clock.now())).ok()?;
        let (_, certificate) = X509Certificate::from_der(leaf).ok()?;
        let name = certificate.subject().iter_common_name().last().map(|name| name.as_str());
        Some(name.unwrap_or(Ok("")).ok()?.into())
    }
}

/// Whether a certificate proves something.
fn is_accepted(client: &ClientCertificate) -> bool {
    matches!(client, ClientCertificate::Verified(_) | ClientCertificate::Proxy { .. })
}

fn unix_time(now: Timestamp) -> UnixTime {
    let seconds = u64::try_from(now.as_second()).unwrap_or_default();
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

impl Current {
    fn new(pki: &Pki) -> Result<Current, Error> {
        let wrong = |error: &dyn std::fmt::Display| Error(error.to_string());
        let provider = Arc::new(quickest_first(provider::default_provider()));
        let clients = clients(&pki.ca, &provider)?;
        let chain = certificates(&pki.server.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(pki.server.key.reveal().as_bytes())
            .map_err(|error| wrong(&error))?;
        let mut config = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(|error| wrong(&error))?
            .with_client_cert_verifier(Arc::new(DeferringVerifier {
                inner: clients.clone(),
                provider,
            }))
            .with_single_cert(chain, key)
            .map_err(|error| wrong(&error))?;
        config.alpn_protocols = vec![H2.to_vec(), HTTP1.to_vec()];
        config.session_storage = ServerSessionMemoryCache::new(RESUMABLE_SESSIONS_MAX);
        // One ticket is enough to resume, and halves the bytes for long connections.
        config.send_tls13_tickets = 1;
        let willing = Arc::new(config.clone());
        config.ignore_client_order = true;
        Ok(Current { quick: Arc::new(config), willing, clients })
    }

    /// Verifies a chain at this time; the identity is the one in its leaf.
    fn verify(&self, chain: &[CertificateDer<'_>], now: Timestamp) -> ClientCertificate {
        let Some((leaf, above)) = chain.split_first() else { return ClientCertificate::Absent };
        if let Err(error) = self.clients.verify_client_cert(leaf, above, unix_time(now)) {
            tracing::info!(%error, "client certificate rejected");
            return ClientCertificate::Refused;
        }
        match identity(leaf) {
            Some(identity) => ClientCertificate::Verified(Arc::new(identity)),
            None => ClientCertificate::Refused,
        }
    }
}

/// Puts the suite with the cheapest handshake first: the hash of AES-256 takes a quarter of the
/// handshake.
fn quickest_first(mut provider: CryptoProvider) -> CryptoProvider {
    let is_other = |suite| suite != CipherSuite::TLS13_AES_128_GCM_SHA256;
    provider.cipher_suites.sort_by_key(|suite| is_other(suite.suite()));
    provider
}

/// Whether a client prefers AES, of any key size, to ChaCha20.
fn wants_aes(suites: &[CipherSuite]) -> bool {
    let first = suites.iter().find_map(|suite| match suite {
        CipherSuite::TLS13_AES_128_GCM_SHA256 | CipherSuite::TLS13_AES_256_GCM_SHA384 => Some(true),
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => Some(false),
        _ => None,
    });
    first.unwrap_or_default()
}

fn clients(
    authorities: &str,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(authorities)? {
        roots.add(authority).map_err(|error| Error(error.to_string()))?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|error| Error(error.to_string()))
}

/// All certificates of a PEM file.
fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let all = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>();
    all.map_err(|error| Error(error.to_string()))
}

/// Accepts every client certificate in the handshake, provided that the client has its key.
/// [`Current::verify`] verifies the chain afterwards, for each connection.
#[derive(Debug)]
struct DeferringVerifier {
    inner: Arc<dyn ClientCertVerifier>,
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for DeferringVerifier {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _leaf: &CertificateDer<'_>,
        _chain: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, leaf, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, leaf, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The user in a certificate (S8.1): CN is the user, every O a group. `None` without a CN or with
/// more than one uid.
fn identity(leaf: &CertificateDer<'_>) -> Option<Identity> {
    let (_, certificate) = X509Certificate::from_der(leaf).ok()?;
    let subject = certificate.subject();
    let user = subject.iter_common_name().last()?.as_str().ok()?;
    let groups: Option<Vec<String>> =
        subject.iter_organization().map(|group| group.as_str().ok().map(str::to_owned)).collect();
    let mut uids = subject.iter_by_oid(&UID);
    let uid = match (uids.next(), uids.next()) {
        (None, _) => "",
        (Some(uid), None) => uid.as_str().ok()?,
        (Some(_), Some(_)) => return None,
    };
    if user.is_empty() {
        return None;
    }
    let mut identity = Identity::authenticated(user, groups?);
    identity.uid = uid.to_owned();
    identity.expires = Timestamp::from_second(certificate.validity().not_after.timestamp()).ok();
    identity.extra.insert(CREDENTIAL_ID.to_owned(), vec![credential_id(leaf)]);
    Some(identity)
}

fn credential_id(leaf: &CertificateDer<'_>) -> String {
    let digest = digest::digest(&digest::SHA256, leaf);
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("X509SHA256={hex}")
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, CustomExtension, DnType, DnValue, KeyPair};

    use super::*;

    fn subject(parts: &[(DnType, &str)]) -> Option<Identity> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in parts {
            params.distinguished_name.push(kind.clone(), DnValue::Utf8String((*value).into()));
        }
        // Other extensions must not matter.
        params.custom_extensions =
            vec![CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 57683, 99], vec![5, 0])];
        let key = KeyPair::generate().unwrap();
        identity(params.self_signed(&key).unwrap().der())
    }

    /// S8.1
    #[test]
    fn a_certificate_names_user_group_and_uid() {
        let uid = DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
        let found = subject(&[
            (DnType::CommonName, "alice"),
            (DnType::OrganizationName, "dev"),
            (uid, "1234"),
        ])
        .unwrap();
        assert_eq!((found.user.as_str(), found.uid.as_str()), ("alice", "1234"));
        assert_eq!(found.groups, ["dev", "system:authenticated"]);
        let id = &found.extra[CREDENTIAL_ID][0];
        assert!(id.starts_with("X509SHA256=") && id.len() == 11 + 64, "{id}");
    }

    #[test]
    fn clients_that_prefer_chacha_get_it() {
        use CipherSuite::{
            TLS_EMPTY_RENEGOTIATION_INFO_SCSV as OTHER, TLS13_AES_128_GCM_SHA256 as SHORT,
            TLS13_AES_256_GCM_SHA384 as LONG, TLS13_CHACHA20_POLY1305_SHA256 as CHACHA,
        };
        for (wanted, expected) in [
            (&[OTHER, LONG, SHORT, CHACHA][..], true),
            (&[SHORT, LONG], true),
            (&[OTHER, CHACHA, LONG, SHORT], false),
            (&[OTHER], false),
            (&[], false),
        ] {
            assert_eq!(wants_aes(wanted), expected, "{wanted:?}");
        }
        let suites = quickest_first(provider::default_provider()).cipher_suites;
        assert_eq!(suites[..2].iter().map(|s| s.suite()).collect::<Vec<_>>(), [SHORT, LONG]);
        assert_eq!(suites.len(), provider::default_provider().cipher_suites.len());
    }

    /// S8.1
    #[test]
    fn a_certificate_without_a_name_has_no_identity() {
        assert_eq!(subject(&[(DnType::OrganizationName, "system:masters")]), None);
        assert_eq!(subject(&[(DnType::CommonName, "")]), None);
    }
}
