//! The keys and certificates of the server, created at the first start.
//!
//! River: data directory → **pki** → TLS, the admin's kubeconfig, service-account tokens.
//! Promise: the authority and the service-account key are never replaced by a start. A leaf
//! certificate is kept until it expires, its names change, or the authority changes. Keys are readable
//! by their owner only, and no key is ever printed.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use headwater_api::Clock;
use jiff::Timestamp;

mod authority;
mod certificate;
pub mod kubeconfig;
mod leaf;
pub mod private_file;
pub mod revoked;
pub mod rotation;
pub mod service_account_keys;

use authority::SigningAuthority;
use certificate::new_key;
use leaf::Leaf;
use private_file::{OthersMayRead, PRIVATE, PUBLIC};
use revoked::RevokedCertificates;
use zeroize::Zeroizing;

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
    /// The certificate of the authority, as PEM; during a rotation also that of the next one.
    pub ca: String,
    /// The serving certificate.
    pub server: Pair,
    /// The administrator's client certificate: `kubernetes-admin` in `system:masters`.
    pub admin: Pair,
    /// The authority that signs client certificates; during a rotation the next one.
    pub signing: Pair,
    /// The credential of this server at extension servers, from an authority of its own: one that also
    /// signs certificates of users would let them name any user.
    pub front_proxy: FrontProxyKeys,
    /// The key that signs service-account tokens (ES256), as PEM.
    pub service_account_key: Secret,
    /// Public keys (PEM) whose tokens are still accepted, from before a change of the key.
    pub former_service_account_keys: String,
}

/// A certificate and its key, as PEM.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: Secret,
}

/// The authority of front proxies, and the client certificate that it issued to this server.
#[derive(Debug)]
pub struct FrontProxyKeys {
    /// The certificate of the authority, as PEM.
    pub ca: String,
    /// The client certificate.
    pub client: Pair,
}

/// The name in the certificate of the front proxy.
pub const FRONT_PROXY: &str = "front-proxy-client";

/// The directory of the front proxy's authority.
const FRONT_PROXY_DIRECTORY: &str = "front-proxy";

/// Text that must not be logged. Its memory is overwritten when it is dropped.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Wraps a text that must not be printed.
    pub fn new(text: impl Into<Zeroizing<String>>) -> Secret {
        Secret(text.into())
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
    /// The authority's key is missing.
    #[error("the key of {} is missing; restore it from a backup. To give up this authority and every certificate that it issued, move the directory away", .0.display())]
    KeyMissing(PathBuf),
    /// The authority's certificate is missing.
    #[error("{} is missing, but its key or certificates that it issued exist; restore it from a backup. To give up this authority and every certificate that it issued, move the directory away", .0.display())]
    CertificateMissing(PathBuf),
    /// The authority's key and certificate are of different authorities.
    #[error("{} does not belong to the certificate next to it; restore both from one backup, or repeat \"headwater pki rotate --finish\" if it was interrupted", .0.display())]
    KeyMismatch(PathBuf),
    /// A file of the authority cannot be understood.
    #[error("{} cannot be used; restore it from a backup", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: Box<Error>,
    },
    /// A file is not a certificate.
    #[error("{} is not a certificate in PEM", .0.display())]
    NotACertificate(PathBuf),
    /// The list of revoked certificates cannot be understood.
    #[error("line {line} of {} is not a SHA-256 digest in hexadecimal", path.display())]
    RevokedLine {
        /// The list.
        path: PathBuf,
        /// The line number, from one.
        line: usize,
    },
    /// There is no key to change.
    #[error("{} does not exist; the first start of a server creates it", .0.display())]
    NoServiceAccountKey(PathBuf),
    /// A key was changed before.
    #[error("{} exists: tokens of an earlier key are still accepted; complete the change with --finish", .0.display())]
    KeyChangeBegun(PathBuf),
    /// No key was changed.
    #[error("{} does not exist: only the current key is accepted", .0.display())]
    NoKeyChange(PathBuf),
    /// There is nothing to rotate.
    #[error("{} contains no certificate authority; the first start of a server creates it", .0.display())]
    NoAuthority(PathBuf),
    /// A rotation was begun before.
    #[error("{} exists: a rotation is in progress; complete it with --finish", .0.display())]
    RotationBegun(PathBuf),
    /// No rotation was begun.
    #[error("{} contains no authority; begin with \"headwater pki rotate\"", .0.display())]
    NoRotation(PathBuf),
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
        let (authority, _) = SigningAuthority::create(now)?;
        let (proxies, _) = SigningAuthority::create(now)?;
        Ok(Pki {
            front_proxy: FrontProxyKeys {
                client: leaf::client(FRONT_PROXY, &[]).issue(&proxies, now)?,
                ca: proxies.certificate,
            },
            server: leaf::server(names)?.issue(&authority, now)?,
            admin: leaf::admin().issue(&authority, now)?,
            signing: authority.pair(),
            service_account_key: new_key()?,
            former_service_account_keys: String::new(),
            ca: authority.certificate,
        })
    }

    /// Loads the certificates in `directory`. In a new directory it creates all of them; later it
    /// renews the server's and the administrator's, never the authority.
    pub fn open(
        directory: &Path,
        names: &BTreeSet<String>,
        others: OthersMayRead,
        clock: &dyn Clock,
    ) -> Result<Pki, Error> {
        let _lock = open_locked(directory, others)?;
        let revoked = RevokedCertificates::load(directory)?;
        let folder = Folder { directory, others, now: clock.now(), revoked };
        let authority = folder.authority()?;
        let next = SigningAuthority::load(&directory.join(rotation::NEXT), others)?;
        for authority in std::iter::once(&authority).chain(&next) {
            if let Some(concern) = authority.concern(folder.now) {
                tracing::warn!("{concern}");
            }
        }
        let for_clients = next.as_ref().unwrap_or(&authority);
        Ok(Pki {
            front_proxy: folder.front_proxy()?,
            server: folder.pair("server", &leaf::server(names)?, &authority)?,
            admin: folder.pair("admin", &leaf::admin(), for_clients)?,
            signing: for_clients.pair(),
            service_account_key: folder.service_account_key()?,
            former_service_account_keys: service_account_keys::former(directory)?,
            ca: match &next {
                Some(next) => format!("{}{}", authority.certificate, next.certificate),
                None => authority.certificate,
            },
        })
    }

    /// A new client certificate of a user with these groups, which is kept nowhere.
    pub fn client(&self, user: &str, groups: &[String], clock: &dyn Clock) -> Result<Pair, Error> {
        leaf::client(user, groups).issue(&SigningAuthority::of(&self.signing)?, clock.now())
    }
}

/// The authority in a directory that signs client certificates, and all that clients have to trust, as
/// PEM. Creates and renews nothing.
pub fn signing_authority(directory: &Path, others: OthersMayRead) -> Result<(Pair, String), Error> {
    let missing = || Error::NoAuthority(directory.to_owned());
    let authority = SigningAuthority::load(directory, others)?.ok_or_else(missing)?;
    Ok(match SigningAuthority::load(&directory.join(rotation::NEXT), others)? {
        Some(next) => (next.pair(), format!("{}{}", authority.certificate, next.certificate)),
        None => (authority.pair(), authority.certificate),
    })
}

/// Locks the directory: several servers may share it and start at once, and one creates the missing
/// files.
fn open_locked(directory: &Path, others: OthersMayRead) -> Result<File, Error> {
    private_file::directory(directory, others)?;
    Ok(private_file::lock(&directory.join(".lock"))?)
}

/// The directory of the certificates.
struct Folder<'a> {
    directory: &'a Path,
    others: OthersMayRead,
    now: Timestamp,
    revoked: RevokedCertificates,
}

impl Folder<'_> {
    fn authority(&self) -> Result<SigningAuthority, Error> {
        match SigningAuthority::load(self.directory, self.others) {
            Ok(Some(authority)) => return Ok(authority),
            Ok(None) | Err(Error::CertificateMissing(_)) if !self.has_issued() => {}
            Ok(None) => return Err(Error::CertificateMissing(self.directory.join("ca.crt"))),
            Err(error) => return Err(error),
        }
        SigningAuthority::found(self.directory, self.others, self.now)
    }

    /// Whether an authority was in use here.
    fn has_issued(&self) -> bool {
        ["server.crt", "admin.crt", rotation::NEXT]
            .iter()
            .any(|name| self.directory.join(name).symlink_metadata().is_ok())
    }

    fn pair(&self, name: &str, leaf: &Leaf, authority: &SigningAuthority) -> Result<Pair, Error> {
        let certificate = self.directory.join(format!("{name}.crt"));
        let key = self.directory.join(format!("{name}.key"));
        let stored = private_file::read_public(&certificate)?;
        let secret = private_file::read_existing(&key, self.others)?;
        if let (Some(pem), Some(secret)) = (&stored, &secret)
            && leaf.fits(pem, secret, authority, self.now)
            && !self.revoked.contains_pem(pem)
        {
            return Ok(Pair { certificate: pem.clone(), key: Secret(secret.clone()) });
        }
        let pair = leaf.issue(authority, self.now)?;
        let secret = secret.as_ref().map(|secret| secret.as_str());
        for (path, content) in [(&key, secret), (&certificate, stored.as_deref())] {
            if let Some(content) = content {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                private_file::replace(
                    &path.with_file_name(format!("{name}.old")),
                    content,
                    PRIVATE,
                )?;
            }
        }
        private_file::replace(&key, pair.key.reveal(), PRIVATE)?;
        private_file::replace(&certificate, &pair.certificate, PUBLIC)?;
        Ok(pair)
    }

    fn front_proxy(&self) -> Result<FrontProxyKeys, Error> {
        let directory = self.directory.join(FRONT_PROXY_DIRECTORY);
        private_file::directory(&directory, self.others)?;
        let Folder { others, now, .. } = *self;
        let revoked = RevokedCertificates::default();
        let folder = Folder { directory: &directory, others, now, revoked };
        let authority = folder.authority()?;
        let client = folder.pair("client", &leaf::client(FRONT_PROXY, &[]), &authority)?;
        Ok(FrontProxyKeys { ca: authority.certificate, client })
    }

    fn service_account_key(&self) -> Result<Secret, Error> {
        let path = self.directory.join("sa.key");
        if let Some(key) = private_file::read_existing(&path, self.others)? {
            return Ok(Secret(key));
        }
        let key = new_key()?;
        private_file::replace(&path, key.reveal(), PRIVATE)?;
        Ok(key)
    }
}

#[cfg(test)]
mod tests;
