//! Reads PEM certificates and generates keys.
//!
//! Promise: unreadable input is `None` or an error, never a panic.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256};
use ring::digest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{Error, Secret};

/// The first and the last second in which a certificate is valid, since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dates {
    pub(super) from: i64,
    pub(super) to: i64,
}

impl Dates {
    pub(super) fn of(pem: &str) -> Option<Dates> {
        with_certificate(pem, |found| Dates {
            from: found.validity().not_before.timestamp(),
            to: found.validity().not_after.timestamp(),
        })
    }

    pub(super) fn contain(self, second: i64) -> bool {
        (self.from..=self.to).contains(&second)
    }

    pub(super) fn set_in(self, params: &mut CertificateParams) {
        let date = |second: i64| {
            let second = Duration::from_secs(u64::try_from(second).unwrap_or_default());
            rcgen::date_time_ymd(1970, 1, 1) + second
        };
        params.not_before = date(self.from);
        params.not_after = date(self.to);
    }
}

/// The seconds since 1970. An earlier clock counts as 1970: not every certificate format has
/// earlier times.
pub(super) fn seconds(now: Timestamp) -> i64 {
    now.as_second().max(0)
}

pub(super) fn generate() -> Result<KeyPair, Error> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(Error::certificate("create a key"))
}

pub(super) fn new_key() -> Result<Secret, Error> {
    Ok(Secret::new(generate()?.serialize_pem()))
}

pub(super) fn key_pair(pem: &str) -> Result<KeyPair, Error> {
    KeyPair::from_pem(pem).map_err(Error::certificate("read a key"))
}

pub(super) fn distinguished(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

pub(super) fn with_certificate<T>(
    pem: &str,
    read: impl FnOnce(&X509Certificate<'_>) -> T,
) -> Option<T> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?;
    let (_, certificate) = X509Certificate::from_der(&pem.contents).ok()?;
    Some(read(&certificate))
}

pub(super) fn subject_names(certificate: &X509Certificate<'_>) -> BTreeSet<String> {
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

pub(super) fn authority_of(certificate: &X509Certificate<'_>) -> Option<Vec<u8>> {
    certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(id) => Some(id.key_identifier.as_ref()?.0.to_vec()),
        _ => None,
    })
}

pub(super) fn key_id_of(certificate: &X509Certificate<'_>) -> Option<Vec<u8>> {
    certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
        _ => None,
    })
}

/// Whether a key belongs to a certificate.
pub(super) fn belongs_to(key: &KeyPair, pem: &str) -> bool {
    let same = |found: &X509Certificate<'_>| {
        found.public_key().subject_public_key.data == key.public_key_raw()
    };
    with_certificate(pem, same).unwrap_or_default()
}

/// The SHA-256 digest of the certificate, in hexadecimal.
pub(super) fn fingerprint(pem: &str) -> Option<String> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?;
    let digest = digest::digest(&digest::SHA256, &pem.contents);
    Some(digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}
