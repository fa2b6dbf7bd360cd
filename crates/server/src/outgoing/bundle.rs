//! Certificate verification against a `caBundle`.
//!
//! River: trust → **bundle** → TLS.
//! Promise: the certificate matches the name and is within its validity, however it is trusted.
//! Operators' test environments put the webhook's own certificate into the bundle, which Go accepts;
//! the verifier of rustls accepts only authorities.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use x509_parser::prelude::{FromDer, X509Certificate};

/// The certificates of one `caBundle`.
#[derive(Debug)]
pub(super) struct Bundle {
    certificates: Vec<CertificateDer<'static>>,
    authorities: Arc<WebPkiServerVerifier>,
}

impl Bundle {
    /// From PEM.
    pub(super) fn read(pem: &[u8], provider: Arc<CryptoProvider>) -> Result<Bundle, String> {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let certificates = certificates.map_err(|error| format!("caBundle: {error}"))?;
        let mut roots = RootCertStore::empty();
        for certificate in &certificates {
            roots.add(certificate.clone()).map_err(|error| format!("caBundle: {error}"))?;
        }
        let authorities = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| format!("caBundle: {error}"))?;
        Ok(Bundle { certificates, authorities })
    }
}

impl ServerCertVerifier for Bundle {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verdict = self.authorities.verify_server_cert(shown, chain, name, ocsp, now);
        if verdict.is_err() && self.certificates.contains(shown) {
            return verify_known(shown, name, now);
        }
        verdict
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls12_signature(message, shown, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls13_signature(message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }
}

/// Checks the name, validity and usage of a certificate that is itself in the bundle.
fn verify_known(
    shown: &CertificateDer<'_>,
    name: &ServerName<'_>,
    now: UnixTime,
) -> Result<ServerCertVerified, Error> {
    verify_server_name(&ParsedCertificate::try_from(shown)?, name)?;
    let (_, certificate) =
        X509Certificate::from_der(shown).map_err(|_| CertificateError::BadEncoding)?;
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if now < certificate.validity().not_before.timestamp() {
        return Err(CertificateError::NotValidYet.into());
    }
    if now > certificate.validity().not_after.timestamp() {
        return Err(CertificateError::Expired.into());
    }
    let usage = certificate.extended_key_usage().map_err(|_| CertificateError::BadEncoding)?;
    match usage.map(|usage| usage.value) {
        Some(usage) if !usage.any && !usage.server_auth => {
            Err(CertificateError::InvalidPurpose.into())
        }
        _ => Ok(ServerCertVerified::assertion()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use headwater_api::{Clock, SystemClock};

    use super::*;
    use crate::front::pki::{self, Pki};

    /// The verdict on the server's certificate for `name`, some days from now.
    fn verdict(bundle: fn(&Pki) -> String, name: &str, days: u64) -> Result<(), Error> {
        let names = pki::names(IpAddr::V4(Ipv4Addr::LOCALHOST), &[]);
        let pki = Pki::in_memory(&names, &SystemClock).unwrap();
        let shown = CertificateDer::from_pem_slice(pki.server.certificate.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let bundle = Bundle::read(bundle(&pki).as_bytes(), provider).unwrap();
        let now = u64::try_from(SystemClock.now().as_second()).unwrap() + days * 86_400;
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
        let name = ServerName::try_from(name.to_owned()).unwrap();
        bundle.verify_server_cert(&shown, &[], &name, &[], now).map(drop)
    }

    #[test]
    fn a_certificate_in_the_bundle_is_good_for_its_name_and_its_time() {
        let itself = |pki: &Pki| pki.server.certificate.clone();
        verdict(itself, "127.0.0.1", 0).unwrap();
        verdict(|pki| pki.ca.clone(), "127.0.0.1", 0).unwrap();
        let elsewhere = verdict(itself, "10.1.2.3", 0).unwrap_err();
        assert!(elsewhere.to_string().contains("not valid for name"), "{elsewhere}");
        let late = verdict(itself, "127.0.0.1", 100 * 365).unwrap_err();
        assert_eq!(late, CertificateError::Expired.into());
        let stranger = |_: &Pki| {
            let names = pki::names(IpAddr::V4(Ipv4Addr::LOCALHOST), &[]);
            Pki::in_memory(&names, &SystemClock).unwrap().server.certificate
        };
        verdict(stranger, "127.0.0.1", 0).unwrap_err();
    }
}
