//! Revoked client certificates: a file with one SHA-256 digest of a certificate per line.
//!
//! River: `headwater pki revoke` → **revoked** → TLS.
//! Promise: a list that cannot be read never restores rights: at a start it is an error, later the
//! previous list stays in effect.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ring::digest;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::private_file::{self, OthersMayRead, PUBLIC};
use super::{Error, open_locked};

/// The name of the file in the directory of certificates.
const FILE: &str = "revoked";

/// The SHA-256 digest of a certificate.
pub(crate) type Fingerprint = [u8; digest::SHA256_OUTPUT_LEN];

/// The digest of a certificate.
pub(crate) fn fingerprint(certificate: &[u8]) -> Fingerprint {
    let digest = digest::digest(&digest::SHA256, certificate);
    digest.as_ref().try_into().expect("a SHA-256 digest has 32 bytes")
}

/// The revoked certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RevokedCertificates(BTreeSet<Fingerprint>);

impl RevokedCertificates {
    /// Reads the list of a directory of certificates; an absent file is an empty list.
    pub fn load(directory: &Path) -> Result<RevokedCertificates, Error> {
        let path = directory.join(FILE);
        match private_file::read_public(&path)? {
            None => Ok(RevokedCertificates::default()),
            Some(text) => {
                RevokedCertificates::parse(&text).map_err(|line| Error::RevokedLine { path, line })
            }
        }
    }

    /// Whether a certificate is revoked.
    pub(crate) fn contains(&self, certificate: &[u8]) -> bool {
        !self.0.is_empty() && self.0.contains(&fingerprint(certificate))
    }

    /// Whether the first certificate of a PEM text is revoked.
    pub(crate) fn contains_pem(&self, pem: &str) -> bool {
        CertificateDer::from_pem_slice(pem.as_bytes()).is_ok_and(|leaf| self.contains(&leaf))
    }

    /// The error is the number of a line that is not a digest.
    fn parse(text: &str) -> Result<RevokedCertificates, usize> {
        let mut all = BTreeSet::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                all.insert(digest_of_hex(line).ok_or(index + 1)?);
            }
        }
        Ok(RevokedCertificates(all))
    }
}

fn digest_of_hex(text: &str) -> Option<Fingerprint> {
    let mut digest = Fingerprint::default();
    let digits = text.as_bytes();
    if digits.len() != 2 * digest.len() {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(digest)
}

/// Adds a certificate (PEM) to the list of a directory; returns its digest. A certificate that is
/// already revoked changes nothing.
pub fn revoke(directory: &Path, pem: &str, others: OthersMayRead) -> Result<String, Error> {
    let _lock = open_locked(directory, others)?;
    let path = directory.join(FILE);
    let leaf = CertificateDer::from_pem_slice(pem.as_bytes())
        .map_err(|_| Error::NotACertificate(PathBuf::from("the input")))?;
    let digest: String = fingerprint(&leaf).iter().map(|byte| format!("{byte:02x}")).collect();
    if !RevokedCertificates::load(directory)?.contains(&leaf) {
        let mut text = private_file::read_public(&path)?.unwrap_or_default();
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&digest);
        text.push('\n');
        private_file::replace(&path, &text, PUBLIC)?;
    }
    Ok(digest)
}

/// Notices changes of the list.
#[derive(Debug)]
pub struct RevocationFile {
    directory: PathBuf,
    seen: Option<FileStamp>,
}

/// Metadata that changes when a file is written or replaced.
type FileStamp = (SystemTime, u64, u64);

impl RevocationFile {
    /// The list of a directory, and what notices its changes.
    pub fn open(directory: &Path) -> Result<(RevocationFile, RevokedCertificates), Error> {
        // Before the content, so that no change is missed.
        let seen = stamp(directory);
        let all = RevokedCertificates::load(directory)?;
        Ok((RevocationFile { directory: directory.to_owned(), seen }, all))
    }

    /// The list, if it has changed. An error is reported once for each change.
    pub fn changed(&mut self) -> Option<Result<RevokedCertificates, Error>> {
        let now = stamp(&self.directory);
        if now == self.seen {
            return None;
        }
        self.seen = now;
        Some(RevokedCertificates::load(&self.directory))
    }
}

fn stamp(directory: &Path) -> Option<FileStamp> {
    use std::os::unix::fs::MetadataExt;
    let metadata = fs::metadata(directory.join(FILE)).ok()?;
    Some((metadata.modified().ok()?, metadata.len(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate() -> String {
        let key = rcgen::KeyPair::generate().unwrap();
        rcgen::CertificateParams::default().self_signed(&key).unwrap().pem()
    }

    #[test]
    fn a_revoked_certificate_is_noticed_once_and_kept_over_restarts() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("pki");
        let (mut file, before) = RevocationFile::open(&directory).unwrap();
        let (one, other) = (certificate(), certificate());
        assert!(!before.contains_pem(&one) && file.changed().is_none());
        let digest = revoke(&directory, &one, OthersMayRead::Refuse).unwrap();
        assert_eq!(digest, revoke(&directory, &one, OthersMayRead::Refuse).unwrap());
        let after = file.changed().unwrap().unwrap();
        assert!(after.contains_pem(&one) && !after.contains_pem(&other));
        assert!(file.changed().is_none());
        assert_eq!(RevokedCertificates::load(&directory).unwrap(), after);
        revoke(&directory, &other, OthersMayRead::Refuse).unwrap();
        let both = file.changed().unwrap().unwrap();
        assert!(both.contains_pem(&one) && both.contains_pem(&other));
    }

    #[test]
    fn a_line_that_is_not_a_digest_is_an_error() {
        let digest = "ab".repeat(32);
        let good = format!("# stolen laptop\n\n{digest}  # alice\n{}\n", digest.to_uppercase());
        assert_eq!(RevokedCertificates::parse(&good).unwrap().0.len(), 1);
        for bad in ["abcd", &digest[1..], &format!("{digest}0"), &"é".repeat(32), "+1"] {
            let text = format!("\n{bad}\n");
            assert_eq!(RevokedCertificates::parse(&text).unwrap_err(), 2, "{bad}");
        }
    }

    #[test]
    fn only_a_certificate_can_be_revoked() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("pki");
        assert!(revoke(&directory, "no certificate", OthersMayRead::Refuse).is_err());
    }
}
