//! Issues certificates: for signing requests of the API, and for users by name (S8.15).
//!
//! River: the authority's key → **certificates** → signing controller, `headwater kubeconfig`.
//! Promise: a certificate contains what the rules of its signer allow and nothing else from the
//! request; it is never an authority, and never valid for longer than the authority.

mod der;
mod request;

use std::fmt;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use rcgen::{KeyPair, PublicKeyData, SigningKey};
use ring::rand::{SecureRandom, SystemRandom};
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::front::pki::{Pair, Secret};
use request::ParsedRequest;

/// The signer of client certificates for this server.
pub const SERVER_CLIENT: &str = "kubernetes.io/kube-apiserver-client";
/// The signer of client certificates of kubelets.
pub const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// The signer of serving certificates of kubelets.
pub const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";

/// How far a clock may be behind that of the signer.
const BACKDATED: SignedDuration = SignedDuration::from_mins(5);

/// The shortest lifetime.
const LIFETIME_MIN: Duration = Duration::from_secs(600);
/// The lifetime of a certificate whose request names none, and the longest one.
pub const LIFETIME_MAX: Duration = Duration::from_secs(365 * 86_400);

/// A request for a certificate, as the API has it.
#[derive(Clone, Copy, Debug)]
pub struct SigningRequest<'a> {
    /// The request, as PEM.
    pub pem: &'a [u8],
    /// The name of the signer.
    pub signer: &'a str,
    /// The usages of the certificate.
    pub usages: &'a [String],
    /// The lifetime.
    pub lifetime: Option<Duration>,
}

/// Why a request is not signed. A retry would be refused too.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SigningRefused(String);

impl SigningRefused {
    fn new(why: impl Into<String>) -> SigningRefused {
        SigningRefused(why.into())
    }
}

/// A certificate authority that signs requests.
pub struct CertificateAuthority {
    key: KeyPair,
    /// The encoded identifier of the signature algorithm.
    algorithm: Vec<u8>,
    /// The encoded subject.
    name: Vec<u8>,
    key_id: Vec<u8>,
    ends: Timestamp,
}

impl fmt::Debug for CertificateAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateAuthority").field("ends", &self.ends).finish_non_exhaustive()
    }
}

/// The authority cannot sign.
#[derive(Debug, thiserror::Error)]
#[error("the certificate authority cannot sign: {0}")]
pub struct AuthorityUnusable(String);

/// What a certificate contains.
struct Content<'a> {
    subject: &'a [u8],
    public_key: &'a [u8],
    names: Option<&'a [u8]>,
    usages: &'a [String],
}

impl CertificateAuthority {
    /// An authority from its certificate and key.
    pub fn new(pair: &Pair) -> Result<CertificateAuthority, AuthorityUnusable> {
        let unusable = |why: &str| AuthorityUnusable(why.to_owned());
        let key = KeyPair::from_pem(pair.key.reveal())
            .map_err(|_| unusable("the key is not a private key in PEM"))?;
        let (_, pem) = x509_parser::pem::parse_x509_pem(pair.certificate.as_bytes())
            .map_err(|_| unusable("the certificate is not PEM"))?;
        let (_, certificate) = X509Certificate::from_der(&pem.contents)
            .map_err(|_| unusable("the certificate cannot be parsed"))?;
        if certificate.public_key().subject_public_key.data != key.public_key_raw() {
            return Err(unusable("the key does not belong to the certificate"));
        }
        if !certificate.is_ca() {
            return Err(unusable("the certificate is not one of an authority"));
        }
        let algorithm = algorithm(&key).ok_or_else(|| unusable("its key has another algorithm"))?;
        let ends = Timestamp::from_second(certificate.validity().not_after.timestamp())
            .map_err(|_| unusable("its dates cannot be read"))?;
        let key_id = key_id(&certificate).unwrap_or_default();
        let name = certificate.subject().as_raw().to_vec();
        Ok(CertificateAuthority { key, algorithm, name, key_id, ends })
    }

    /// The certificate for a request, as PEM.
    pub fn sign(
        &self,
        asked: SigningRequest<'_>,
        now: Timestamp,
    ) -> Result<String, SigningRefused> {
        let parsed = ParsedRequest::read(asked.pem)?;
        parsed.check(asked.signer, asked.usages)?;
        let lifetime = asked.lifetime.unwrap_or(LIFETIME_MAX).clamp(LIFETIME_MIN, LIFETIME_MAX);
        let content = Content {
            subject: &parsed.subject,
            public_key: &parsed.public_key,
            names: parsed.names.as_deref(),
            usages: asked.usages,
        };
        self.certificate(&content, lifetime, now)
    }

    /// A client certificate for a user, with a new key.
    pub fn client(
        &self,
        user: &str,
        groups: &[String],
        lifetime: Duration,
        now: Timestamp,
    ) -> Result<Pair, SigningRefused> {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)
            .map_err(|error| SigningRefused::new(format!("cannot create a key: {error}")))?;
        let organizations = groups.iter().map(|group| attribute(&[0x55, 4, 10], group));
        let user = std::iter::once(attribute(&[0x55, 4, 3], user));
        let subject = der::element(0x30, &organizations.chain(user).collect::<Vec<_>>().concat());
        let content = Content {
            subject: &subject,
            public_key: &key.subject_public_key_info(),
            names: None,
            usages: &["digital signature".to_owned(), "client auth".to_owned()],
        };
        let certificate = self.certificate(&content, lifetime, now)?;
        Ok(Pair { certificate, key: Secret::new(key.serialize_pem()) })
    }

    fn certificate(
        &self,
        content: &Content<'_>,
        lifetime: Duration,
        now: Timestamp,
    ) -> Result<String, SigningRefused> {
        if now >= self.ends {
            return Err(SigningRefused::new("the certificate authority has expired"));
        }
        let from = now.saturating_sub(BACKDATED).unwrap_or(now);
        let to = now.saturating_add(lifetime).unwrap_or(self.ends).min(self.ends);
        let body = der::sequence(&[
            &der::tagged(0, &der::integer(&[2])),
            &der::integer(&serial()?),
            &self.algorithm,
            &self.name,
            &der::sequence(&[&der::time(from), &der::time(to)]),
            content.subject,
            content.public_key,
            &der::tagged(3, &self.extensions(content)),
        ]);
        let signature = self.key.sign(&body);
        let signature = signature.map_err(|_| SigningRefused::new("the key cannot sign"))?;
        let whole = der::sequence(&[&body, &self.algorithm, &der::bit_string(&signature)]);
        Ok(pem(&whole))
    }

    fn extensions(&self, content: &Content<'_>) -> Vec<u8> {
        let has = |usage: &str| content.usages.iter().any(|held| held == usage);
        let key_usage =
            u8::from(has("digital signature")) << 7 | u8::from(has("key encipherment")) << 5;
        let purposes = [("server auth", 1), ("client auth", 2)];
        let purposes = purposes
            .into_iter()
            .filter(|(usage, _)| has(usage))
            .map(|(_, number)| der::oid(&[0x2b, 6, 1, 5, 5, 7, 3, number]));
        let purposes = der::element(0x30, &purposes.collect::<Vec<_>>().concat());
        let mut all =
            vec![extension(37, false, &purposes), extension(19, true, &der::sequence(&[]))];
        if key_usage != 0 {
            all.push(extension(15, true, &der::bits(key_usage)));
        }
        if !self.key_id.is_empty() {
            let id = der::sequence(&[&der::tagged_octets(0, &self.key_id)]);
            all.push(extension(35, false, &id));
        }
        all.extend(content.names.map(|names| extension(17, false, names)));
        der::element(0x30, &all.concat())
    }
}

/// An extension under `id-ce`.
fn extension(number: u8, is_critical: bool, value: &[u8]) -> Vec<u8> {
    let critical = if is_critical { der::truth() } else { Vec::new() };
    der::sequence(&[&der::oid(&[0x55, 0x1d, number]), &critical, &der::octets(value)])
}

/// One attribute of a subject.
fn attribute(oid: &[u8], value: &str) -> Vec<u8> {
    der::set(&[&der::sequence(&[&der::oid(oid), &der::text(value)])])
}

fn key_id(certificate: &X509Certificate<'_>) -> Option<Vec<u8>> {
    certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
        _ => None,
    })
}

/// A positive number that nobody can guess.
fn serial() -> Result<[u8; 16], SigningRefused> {
    let mut serial = [0; 16];
    let filled = SystemRandom::new().fill(&mut serial);
    filled.map_err(|_| SigningRefused::new("the system has no random numbers"))?;
    serial[0] = serial[0] & 0x7f | 0x40;
    Ok(serial)
}

/// The identifier of the signatures that a key makes.
fn algorithm(key: &KeyPair) -> Option<Vec<u8>> {
    let found = key.algorithm();
    let ecdsa = |last: u8| der::sequence(&[&der::oid(&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, last])]);
    if *found == rcgen::PKCS_ECDSA_P256_SHA256 {
        Some(ecdsa(2))
    } else if *found == rcgen::PKCS_ECDSA_P384_SHA384 {
        Some(ecdsa(3))
    } else if *found == rcgen::PKCS_ED25519 {
        Some(der::sequence(&[&der::oid(&[0x2b, 0x65, 0x70])]))
    } else if *found == rcgen::PKCS_RSA_SHA256 {
        let oid = der::oid(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 11]);
        Some(der::sequence(&[&oid, &der::element(0x05, &[])]))
    } else {
        None
    }
}

fn pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<_> = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
    let body = lines.join("\n");
    format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
}

/// The common name in a request that follows the rules of a signer.
pub fn permitted_name(asked: SigningRequest<'_>) -> Option<String> {
    let parsed = ParsedRequest::read(asked.pem).ok()?;
    parsed.check(asked.signer, asked.usages).ok()?;
    Some(parsed.common_name)
}

/// The organizations in the subject of a request (PEM in base64); `None` if it cannot be read.
pub(crate) fn organizations(encoded: &str) -> Option<Vec<String>> {
    let pem = STANDARD.decode(encoded).ok()?;
    Some(ParsedRequest::read(&pem).ok()?.organizations)
}

/// The common name in the subject of a request (PEM in base64); `None` if it cannot be read.
pub(crate) fn common_name(encoded: &str) -> Option<String> {
    let pem = STANDARD.decode(encoded).ok()?;
    Some(ParsedRequest::read(&pem).ok()?.common_name)
}

#[cfg(test)]
mod tests;
