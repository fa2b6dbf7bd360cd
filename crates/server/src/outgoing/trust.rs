//! Trust: the CA of a webhook's configuration, or the system's CAs.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio::sync::OnceCell;

use super::any_certificate::AnyCertificate;
use super::bundle::Bundle;
use super::{ClientCredential, WebhookEndpoint};

/// Builds the TLS configuration of calls.
#[derive(Default)]
pub(super) struct Trust {
    /// The system's CAs, loaded on first use.
    system: OnceCell<Arc<RootCertStore>>,
}

impl Trust {
    /// The configuration for an endpoint: with its CA, or else with the system's CAs.
    pub(super) async fn config(&self, place: &WebhookEndpoint) -> Result<ClientConfig, String> {
        let authority = place.authority.as_slice();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("tls: {error}"))?;
        let builder = match authority {
            _ if place.is_unverified => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider))),
            [] => builder.with_root_certificates(self.system().await),
            authority => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Bundle::read(authority, provider)?)),
        };
        let Some(ClientCredential::Certificate { chain, key }) = &place.credential else {
            return Ok(builder.with_no_client_auth());
        };
        let unusable = |what: &str| format!("tls: the client {what} cannot be used");
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain.as_bytes()).collect();
        let chain = chain.map_err(|_| unusable("certificate"))?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| unusable("key"))?;
        builder.with_client_auth_cert(chain, key).map_err(|_| unusable("certificate"))
    }

    async fn system(&self) -> Arc<RootCertStore> {
        let read = || async {
            // Loading reads many files on some systems.
            let read = tokio::task::spawn_blocking(system_roots).await;
            Arc::new(read.unwrap_or_else(|_| RootCertStore::empty()))
        };
        Arc::clone(self.system.get_or_init(read).await)
    }
}

fn system_roots() -> RootCertStore {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!("cannot load one of the system's CA certificates: {error}");
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    roots
}

/// The error, with Go's text.
pub(super) fn explain(error: &std::io::Error) -> String {
    let text = error.to_string();
    let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match cause {
        Some(rustls::Error::InvalidCertificate(
            rustls::CertificateError::UnknownIssuer | rustls::CertificateError::BadSignature,
        )) => "tls: failed to verify certificate: x509: certificate signed by unknown authority"
            .into(),
        Some(rustls::Error::InvalidCertificate(why)) => {
            format!("tls: failed to verify certificate: x509: {why}")
        }
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use headwater_api::SystemClock;
    use rustls::pki_types::ServerName;
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;
    use crate::front::pki::{self, Pki};

    /// Whether a handshake with a server of these keys succeeds.
    async fn shakes_hands(trust: &Trust, authority: &[u8], keys: &Pki) -> Result<(), String> {
        let certificate = CertificateDer::from_pem_slice(keys.server.certificate.as_bytes());
        let key = PrivateKeyDer::from_pem_slice(keys.server.key.reveal().as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let server = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.unwrap()], key)
            .unwrap();
        let (here, there) = tokio::io::duplex(64 * 1024);
        let place = WebhookEndpoint::at("https://127.0.0.1", authority.to_vec())?;
        let config = Arc::new(trust.config(&place).await?);
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let connector = TlsConnector::from(config);
        let acceptor = TlsAcceptor::from(Arc::new(server));
        let (connected, _) = tokio::join!(connector.connect(name, here), acceptor.accept(there));
        connected.map(drop).map_err(|error| explain(&error))
    }

    #[tokio::test]
    async fn a_configuration_without_an_authority_trusts_what_the_system_does() {
        let names = pki::names("127.0.0.1".parse().unwrap(), &[]);
        let keys = Pki::in_memory(&names, &SystemClock).unwrap();
        let mut system = RootCertStore::empty();
        system.add(CertificateDer::from_pem_slice(keys.ca.as_bytes()).unwrap()).unwrap();
        let trust = Trust { system: OnceCell::new_with(Some(Arc::new(system))) };
        shakes_hands(&trust, b"", &keys).await.unwrap();
        // A configured CA replaces the system's.
        let others = Pki::in_memory(&names, &SystemClock).unwrap();
        let refused = shakes_hands(&trust, others.ca.as_bytes(), &keys).await.unwrap_err();
        let unknown =
            "tls: failed to verify certificate: x509: certificate signed by unknown authority";
        assert_eq!(refused, unknown);
        // No system trusts a key that was just generated.
        assert_eq!(shakes_hands(&Trust::default(), b"", &keys).await.unwrap_err(), unknown);
    }
}
