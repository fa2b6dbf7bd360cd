//! The server's certificate authority, created at the first start.
//!
//! River: data directory → **pki** → TLS, the admin's kubeconfig, service-account tokens.
//! Promise: a certificate is kept until it expires, its names change, or the authority changes; keys
//! are readable by their owner only, and no key is ever printed.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use headwater_api::Clock;
use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
};
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate};

pub mod kubeconfig;
pub mod private_file;

use private_file::{OthersMayRead, PRIVATE, PUBLIC};

const CA_LIFETIME: Duration = Duration::from_secs(3652 * 86_400);
const LEAF_LIFETIME: Duration = Duration::from_secs(365 * 86_400);
/// A certificate that expires within this time is replaced at start.
const RENEW_BEFORE: Duration = Duration::from_secs(30 * 86_400);
/// How far a client's clock may be behind the server's.
const SKEW: Duration = Duration::from_secs(3600);

/// The names in every serving certificate: loopback, and the service names that pods use.
const NAMES: [&str; 7] = [
    "localhost",
    "127.0.0.1",
    "::1",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

/// The keys and certificates of the server.
#[derive(Debug)]
pub struct Pki {
    /// The authority's certificate, as PEM.
    pub ca: String,
    /// The serving certificate.
    pub server: Pair,
    /// The administrator's client certificate: `kubernetes-admin` in `system:masters`.
    pub admin: Pair,
    /// The key that signs service-account tokens (ES256), as PEM.
    pub service_account_key: Secret,
}

/// A certificate and its key, as PEM.
#[derive(Debug)]
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: Secret,
}

/// Text that must not be logged.
pub struct Secret(String);

impl Secret {
    /// Wraps a text that must not be printed.
    pub fn new(text: String) -> Secret {
        Secret(text)
    }

    /// The text.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Why certificates cannot be loaded or created.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be used.
    #[error(transparent)]
    File(#[from] private_file::Error),
    /// The authority's key is missing: a new authority would lock every client out.
    #[error("the key of {} is missing; restore it, or remove the certificate to create a new authority", .0.display())]
    KeyMissing(PathBuf),
    /// A name for the serving certificate is neither a DNS name nor an address.
    #[error("{0:?} is neither a DNS name nor an IP address")]
    Name(String),
    /// A certificate cannot be created or read.
    #[error("cannot {action}")]
    Certificate {
        /// The operation.
        action: &'static str,
        /// The cause.
        source: rcgen::Error,
    },
}

impl Error {
    fn certificate(action: &'static str) -> impl FnOnce(rcgen::Error) -> Error {
        move |source| Error::Certificate { action, source }
    }
}

/// The names of a serving certificate.
pub fn names(bind: IpAddr, extra: &[String]) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = NAMES.iter().map(|name| (*name).to_owned()).collect();
    if !bind.is_unspecified() {
        names.insert(bind.to_string());
    }
    names.extend(extra.iter().cloned());
    names
}

impl Pki {
    /// New certificates in memory, for a server without a data directory.
    pub fn in_memory(names: &BTreeSet<String>, clock: &dyn Clock) -> Result<Pki, Error> {
        let now = clock.now();
        let (ca, key) = new_ca(now)?;
        let issuer = issuer(&ca, key)?;
        Ok(Pki {
            server: server(names)?.issue(&issuer, now)?,
            admin: admin().issue(&issuer, now)?,
            service_account_key: new_key()?,
            ca,
        })
    }

    /// Loads the certificates in `directory`; creates missing ones and replaces those that expire or
    /// no longer match.
    pub fn open(
        directory: &Path,
        names: &BTreeSet<String>,
        others: OthersMayRead,
        clock: &dyn Clock,
    ) -> Result<Pki, Error> {
        private_file::directory(directory, others)?;
        // Several servers may share the directory and start at once: one creates missing files.
        let _lock = private_file::lock(&directory.join(".lock"))?;
        let folder = Folder { directory, others, now: clock.now() };
        let (ca, issuer) = folder.authority()?;
        Ok(Pki {
            server: folder.pair("server", &server(names)?, &ca, &issuer)?,
            admin: folder.pair("admin", &admin(), &ca, &issuer)?,
            service_account_key: folder.service_account_key()?,
            ca,
        })
    }
}

/// The directory of the certificates.
struct Folder<'a> {
    directory: &'a Path,
    others: OthersMayRead,
    now: Timestamp,
}

impl Folder<'_> {
    fn authority(&self) -> Result<(String, Issuer<'static, KeyPair>), Error> {
        let certificate = self.directory.join("ca.crt");
        let key = self.directory.join("ca.key");
        if let Ok(ca) = std::fs::read_to_string(&certificate) {
            if !key.exists() {
                return Err(Error::KeyMissing(certificate));
            }
            let key = key_pair(&private_file::read(&key, self.others)?)?;
            if still_good(&ca, self.now) {
                let issuer = issuer(&ca, key)?;
                return Ok((ca, issuer));
            }
        }
        let (ca, key_pair) = new_ca(self.now)?;
        // The key first: a certificate without its key makes the next start fail.
        private_file::replace(&key, &key_pair.serialize_pem(), PRIVATE)?;
        private_file::replace(&certificate, &ca, PUBLIC)?;
        let issuer = issuer(&ca, key_pair)?;
        Ok((ca, issuer))
    }

    fn pair(
        &self,
        name: &str,
        leaf: &Leaf,
        ca: &str,
        issuer: &Issuer<'_, KeyPair>,
    ) -> Result<Pair, Error> {
        let certificate = self.directory.join(format!("{name}.crt"));
        let key = self.directory.join(format!("{name}.key"));
        if let Ok(pem) = std::fs::read_to_string(&certificate)
            && key.exists()
        {
            let text = private_file::read(&key, self.others)?;
            if leaf.fits(&pem, &text, ca, self.now) {
                return Ok(Pair { certificate: pem, key: Secret(text) });
            }
        }
        let pair = leaf.issue(issuer, self.now)?;
        private_file::replace(&key, pair.key.reveal(), PRIVATE)?;
        private_file::replace(&certificate, &pair.certificate, PUBLIC)?;
        Ok(pair)
    }

    fn service_account_key(&self) -> Result<Secret, Error> {
        let path = self.directory.join("sa.key");
        if path.exists() {
            return Ok(Secret(private_file::read(&path, self.others)?));
        }
        let key = new_key()?;
        private_file::replace(&path, key.reveal(), PRIVATE)?;
        Ok(key)
    }
}

/// A certificate that the authority issues.
struct Leaf {
    common_name: &'static str,
    organization: Option<&'static str>,
    names: BTreeSet<String>,
    /// [`names`](Leaf::names) as rcgen's parameters, already validated.
    params: CertificateParams,
    usage: ExtendedKeyUsagePurpose,
}

fn server(names: &BTreeSet<String>) -> Result<Leaf, Error> {
    for name in names {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-._*".contains(c);
        if name.parse::<IpAddr>().is_err() && (name.is_empty() || !name.chars().all(is_name)) {
            return Err(Error::Name(name.clone()));
        }
    }
    let params = CertificateParams::new(names.iter().cloned().collect::<Vec<_>>())
        .map_err(Error::certificate("name the serving certificate"))?;
    Ok(Leaf {
        common_name: "headwater",
        organization: None,
        names: names.clone(),
        params,
        usage: ExtendedKeyUsagePurpose::ServerAuth,
    })
}

fn admin() -> Leaf {
    Leaf {
        common_name: "kubernetes-admin",
        organization: Some("system:masters"),
        names: BTreeSet::new(),
        params: CertificateParams::default(),
        usage: ExtendedKeyUsagePurpose::ClientAuth,
    }
}

impl Leaf {
    fn issue(&self, issuer: &Issuer<'_, KeyPair>, now: Timestamp) -> Result<Pair, Error> {
        let key = generate()?;
        let mut params = self.params.clone();
        params.distinguished_name = distinguished(self.common_name);
        if let Some(organization) = self.organization {
            params.distinguished_name.push(DnType::OrganizationName, organization);
        }
        set_validity(&mut params, now, LEAF_LIFETIME);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![self.usage.clone()];
        params.use_authority_key_identifier_extension = true;
        let certificate =
            params.signed_by(&key, issuer).map_err(Error::certificate("sign a certificate"))?.pem();
        Ok(Pair { certificate, key: Secret(key.serialize_pem()) })
    }

    /// Whether a stored certificate is still valid: not about to expire, issued by this authority,
    /// with its key and the same names.
    fn fits(&self, pem: &str, key: &str, ca: &str, now: Timestamp) -> bool {
        let same_key = key_pair(key).is_ok_and(|key| {
            with_certificate(pem, |leaf| {
                leaf.public_key().subject_public_key.data == key.public_key_raw()
            })
            .unwrap_or_default()
        });
        let names = with_certificate(pem, subject_names);
        let signer = with_certificate(pem, authority_of).flatten();
        let authority = with_certificate(ca, key_id_of).flatten();
        still_good(pem, now)
            && same_key
            && names.as_ref() == Some(&self.names)
            && signer.is_some()
            && signer == authority
    }
}

fn new_ca(now: Timestamp) -> Result<(String, KeyPair), Error> {
    let key = generate()?;
    let mut params = CertificateParams::default();
    // A new authority has a new name, so that clients cannot confuse the two.
    params.distinguished_name = distinguished(&format!("headwater-ca@{}", now.as_second()));
    set_validity(&mut params, now, CA_LIFETIME);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let ca = params.self_signed(&key).map_err(Error::certificate("sign the authority"))?;
    Ok((ca.pem(), key))
}

fn issuer(ca: &str, key: KeyPair) -> Result<Issuer<'static, KeyPair>, Error> {
    Issuer::from_ca_cert_pem(ca, key).map_err(Error::certificate("read the authority"))
}

fn generate() -> Result<KeyPair, Error> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(Error::certificate("create a key"))
}

fn new_key() -> Result<Secret, Error> {
    Ok(Secret(generate()?.serialize_pem()))
}

fn key_pair(pem: &str) -> Result<KeyPair, Error> {
    KeyPair::from_pem(pem).map_err(Error::certificate("read a key"))
}

fn distinguished(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

fn set_validity(params: &mut CertificateParams, now: Timestamp, lifetime: Duration) {
    // A clock before 1970 counts as 1970: not every certificate format has earlier times.
    let seconds = u64::try_from(now.as_second()).unwrap_or_default();
    let now = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
    params.not_before = now - SKEW;
    params.not_after = now + lifetime;
}

fn still_good(pem: &str, now: Timestamp) -> bool {
    let until = with_certificate(pem, |found| {
        (found.validity().not_before.timestamp(), found.validity().not_after.timestamp())
    });
    let now = now.as_second().max(0);
    until.is_some_and(|(from, to)| from <= now && now + (RENEW_BEFORE.as_secs() as i64) < to)
}

fn with_certificate<T>(pem: &str, read: impl FnOnce(&X509Certificate<'_>) -> T) -> Option<T> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?;
    let (_, certificate) = X509Certificate::from_der(&pem.contents).ok()?;
    Some(read(&certificate))
}

fn subject_names(certificate: &X509Certificate<'_>) -> BTreeSet<String> {
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return BTreeSet::new() };
    names.value.general_names.iter().filter_map(name_text).collect()
}

fn name_text(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match *bytes {
            [a, b, c, d] => Some(IpAddr::from([*a, *b, *c, *d]).to_string()),
            _ => Some(IpAddr::from(<[u8; 16]>::try_from(*bytes).ok()?).to_string()),
        },
        _ => None,
    }
}

fn authority_of(certificate: &X509Certificate<'_>) -> Option<Vec<u8>> {
    certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(id) => Some(id.key_identifier.as_ref()?.0.to_vec()),
        _ => None,
    })
}

fn key_id_of(certificate: &X509Certificate<'_>) -> Option<Vec<u8>> {
    certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
