//! The certificate authority: created once, never replaced by a start.
//!
//! River: data directory → **authority** → leaf certificates, the verification of clients.
//! Promise: files of an authority are only created here. A missing, damaged or mismatched file is an
//! error; dates that do not contain the time of the clock are a warning. Only a
//! [rotation](super::rotation) introduces another authority.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use zeroize::Zeroizing;

use super::certificate::{Dates, belongs_to, distinguished, generate, key_pair, seconds};
use super::private_file::{self, OthersMayRead, PRIVATE, PUBLIC};
use super::{Error, Pair, SKEW, Secret};

const LIFETIME: Duration = Duration::from_secs(3652 * 86_400);
/// The end of the authority is announced this long before: clients have to be updated by hand.
const WARN_BEFORE: Duration = Duration::from_secs(180 * 86_400);

/// A certificate authority with its key.
pub(super) struct SigningAuthority {
    /// As PEM.
    pub(super) certificate: String,
    pub(super) issuer: Issuer<'static, KeyPair>,
    pub(super) dates: Dates,
}

impl SigningAuthority {
    /// A new authority, with its key as PEM.
    pub(super) fn create(now: Timestamp) -> Result<(SigningAuthority, Zeroizing<String>), Error> {
        let key = generate()?;
        let text = Zeroizing::new(key.serialize_pem());
        Ok((SigningAuthority::with_key(key, now)?, text))
    }

    fn with_key(key: KeyPair, now: Timestamp) -> Result<SigningAuthority, Error> {
        let second = seconds(now);
        let mut params = CertificateParams::default();
        // A new authority has a new name, so that clients cannot confuse the two.
        params.distinguished_name = distinguished(&format!("headwater-ca@{}", now.as_second()));
        let from = second - SKEW.as_secs() as i64;
        Dates { from, to: second + LIFETIME.as_secs() as i64 }.set_in(&mut params);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let ca = params.self_signed(&key).map_err(Error::certificate("sign the authority"))?;
        SigningAuthority::new(ca.pem(), key)
    }

    fn new(certificate: String, key: KeyPair) -> Result<SigningAuthority, Error> {
        let dates = Dates::of(&certificate).ok_or(Error::certificate("read the authority")(
            rcgen::Error::CouldNotParseCertificate,
        ))?;
        let issuer = Issuer::from_ca_cert_pem(&certificate, key)
            .map_err(Error::certificate("read the authority"))?;
        Ok(SigningAuthority { certificate, issuer, dates })
    }

    /// The authority in `ca.crt` and `ca.key` of a directory; `None` if it has neither.
    pub(super) fn load(
        directory: &Path,
        others: OthersMayRead,
    ) -> Result<Option<SigningAuthority>, Error> {
        let (certificate, key) = (directory.join("ca.crt"), directory.join("ca.key"));
        let pem = private_file::read_public(&certificate)?;
        let secret = private_file::read_existing(&key, others)?;
        let (pem, secret) = match (pem, secret) {
            (None, None) => return Ok(None),
            (Some(_), None) => return Err(Error::KeyMissing(certificate)),
            (None, Some(_)) => return Err(Error::CertificateMissing(certificate)),
            (Some(pem), Some(secret)) => (pem, secret),
        };
        let unusable = |path: &Path| {
            let path = path.to_owned();
            move |source: Error| Error::Authority { path, source: Box::new(source) }
        };
        let secret = key_pair(&secret).map_err(unusable(&key))?;
        if Dates::of(&pem).is_some() && !belongs_to(&secret, &pem) {
            return Err(Error::KeyMismatch(key));
        }
        SigningAuthority::new(pem, secret).map_err(unusable(&certificate)).map(Some)
    }

    /// Creates the authority of a new directory.
    pub(super) fn found(
        directory: &Path,
        others: OthersMayRead,
        now: Timestamp,
    ) -> Result<SigningAuthority, Error> {
        let path = directory.join("ca.key");
        let authority = match private_file::read_existing(&path, others)? {
            // An earlier start was interrupted before it wrote the certificate.
            Some(key) => SigningAuthority::with_key(key_pair(&key)?, now)?,
            None => {
                let (authority, key) = SigningAuthority::create(now)?;
                private_file::replace(&path, &key, PRIVATE)?;
                authority
            }
        };
        private_file::replace(&directory.join("ca.crt"), &authority.certificate, PUBLIC)?;
        Ok(authority)
    }

    /// The certificate and the key.
    pub(super) fn pair(&self) -> Pair {
        let key = Secret::new(self.issuer.key().serialize_pem());
        Pair { certificate: self.certificate.clone(), key }
    }

    /// The authority with this certificate and key.
    pub(super) fn of(pair: &Pair) -> Result<SigningAuthority, Error> {
        SigningAuthority::new(pair.certificate.clone(), key_pair(pair.key.reveal())?)
    }

    /// What an operator should know about its dates.
    pub(super) fn concern(&self, now: Timestamp) -> Option<String> {
        let now = seconds(now);
        let date = |second| Timestamp::from_second(second).unwrap_or_default();
        let rotate = "run \"headwater pki rotate\"";
        if now < self.dates.from {
            let from = date(self.dates.from);
            return Some(format!(
                "the certificate authority is not valid before {from}, and it is {} by the clock; clients \
                 will refuse this server; correct the clock, or {rotate}",
                date(now)
            ));
        }
        let to = date(self.dates.to);
        if now > self.dates.to {
            return Some(format!(
                "the certificate authority expired at {to}, and it is {} by the clock; clients will refuse \
                 this server; correct the clock, or {rotate}",
                date(now)
            ));
        }
        let ends = now + WARN_BEFORE.as_secs() as i64 > self.dates.to;
        ends.then(|| format!("the certificate authority expires at {to}; {rotate}"))
    }
}
