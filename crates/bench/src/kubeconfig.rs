//! Reads a kubeconfig: the address of the server and the credentials of the user.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use headwater_client::factory::client_of;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring as provider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use serde::Deserialize;

/// Maximum size of a kubeconfig.
const SIZE_MAX: u64 = 4 * 1024 * 1024;

/// A server and credentials for it.
#[derive(Clone)]
pub struct Endpoint {
    /// `host:port`, to connect to and for the Host header.
    pub authority: String,
    pub tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    pub token: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct KubeconfigFile {
    #[serde(default)]
    current_context: String,
    #[serde(default)]
    contexts: Vec<NamedEntry>,
    #[serde(default)]
    clusters: Vec<NamedEntry>,
    #[serde(default)]
    users: Vec<NamedEntry>,
}

#[derive(Deserialize)]
struct NamedEntry {
    name: String,
    #[serde(default)]
    context: Option<ContextEntry>,
    #[serde(default)]
    cluster: Option<Cluster>,
    #[serde(default)]
    user: Option<User>,
}

#[derive(Deserialize)]
struct ContextEntry {
    cluster: String,
    user: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
    #[serde(default)]
    insecure_skip_tls_verify: bool,
    tls_server_name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    token: Option<String>,
}

impl Endpoint {
    /// The server and user of a kubeconfig's current context.
    pub fn read(path: &Path) -> Result<Endpoint> {
        let text = read(path)?;
        let directory = path.parent().unwrap_or(Path::new("."));
        parse(&text, directory).with_context(|| format!("cannot use kubeconfig {}", path.display()))
    }
}

/// A kube client for the current context of a kubeconfig.
pub(crate) async fn kube_client(path: &Path) -> Result<kube::Client> {
    let file = Kubeconfig::read_from(path)
        .with_context(|| format!("cannot read kubeconfig {}", path.display()))?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    Ok(client_of(config)?)
}

fn read(path: &Path) -> Result<String> {
    let file = std::fs::File::open(path).with_context(|| {
        let path = path.display();
        format!(
            "cannot read kubeconfig {path}; pass --kubeconfig FILE, or start a server with \"headwater serve\""
        )
    })?;
    let mut text = String::new();
    file.take(SIZE_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > SIZE_MAX {
        bail!("{} is larger than 4 MiB and cannot be a kubeconfig", path.display());
    }
    Ok(text)
}

fn parse(text: &str, directory: &Path) -> Result<Endpoint> {
    let file: KubeconfigFile = serde_saphyr::from_str(text).context("not a kubeconfig")?;
    let current = &file.current_context;
    let context = find(&file.contexts, current)
        .and_then(|entry| entry.context.as_ref())
        .ok_or_else(|| anyhow!("no context {current:?}"))?;
    let cluster = find(&file.clusters, &context.cluster)
        .and_then(|entry| entry.cluster.as_ref())
        .ok_or_else(|| anyhow!("no cluster {:?}", context.cluster))?;
    let anonymous = User::default();
    let user = find(&file.users, &context.user)
        .and_then(|entry| entry.user.as_ref())
        .unwrap_or(&anonymous);
    let (authority, is_tls) = authority(&cluster.server)?;
    let tls = match is_tls {
        true => Some((Arc::new(tls(cluster, user, directory)?), server_name(cluster, &authority)?)),
        false => None,
    };
    Ok(Endpoint { authority, tls, token: user.token.clone() })
}

fn find<'a>(entries: &'a [NamedEntry], name: &str) -> Option<&'a NamedEntry> {
    entries.iter().find(|entry| entry.name == name)
}

/// `host:port`, and whether the URL is https.
fn authority(server: &str) -> Result<(String, bool)> {
    let uri: http::Uri =
        server.parse().with_context(|| format!("server {server:?} is not a URL"))?;
    let is_tls = match uri.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        _ => bail!("server {server:?} is not an http or https URL"),
    };
    let authority = uri.authority().context("the server URL has no host")?;
    let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    Ok((format!("{}:{port}", authority.host()), is_tls))
}

fn server_name(cluster: &Cluster, authority: &str) -> Result<ServerName<'static>> {
    let (host, _) = authority.rsplit_once(':').context("the server URL has no port")?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let name = cluster.tls_server_name.as_deref().unwrap_or(host);
    ServerName::try_from(name.to_owned())
        .with_context(|| format!("{name:?} is not a valid TLS server name"))
}

fn tls(cluster: &Cluster, user: &User, directory: &Path) -> Result<ClientConfig> {
    let provider = Arc::new(provider::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?;
    let config = if cluster.insecure_skip_tls_verify {
        config.dangerous().with_custom_certificate_verifier(Arc::new(TrustAll(provider)))
    } else {
        let pem = material(
            cluster.certificate_authority_data.as_deref(),
            cluster.certificate_authority.as_deref(),
            directory,
        )?
        .context("the cluster has no certificate-authority")?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            roots.add(certificate?)?;
        }
        config.with_root_certificates(roots)
    };
    let certificate = material(
        user.client_certificate_data.as_deref(),
        user.client_certificate.as_deref(),
        directory,
    )?;
    let key = material(user.client_key_data.as_deref(), user.client_key.as_deref(), directory)?;
    Ok(match (certificate, key) {
        (Some(certificate), Some(key)) => {
            let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&certificate).collect();
            config.with_client_auth_cert(chain?, PrivateKeyDer::from_pem_slice(&key)?)?
        }
        _ => config.with_no_client_auth(),
    })
}

/// Embedded data, or a file named relative to the kubeconfig.
fn material(data: Option<&str>, file: Option<&Path>, directory: &Path) -> Result<Option<Vec<u8>>> {
    match (data, file) {
        (Some(data), _) => Ok(Some(
            STANDARD
                .decode(data)
                .context("a certificate or key in the kubeconfig is not base64")?,
        )),
        (None, Some(file)) => {
            let path = directory.join(file);
            let read = std::fs::read(&path);
            Ok(Some(read.with_context(|| format!("cannot read {}", path.display()))?))
        }
        (None, None) => Ok(None),
    }
}

/// Accepts any certificate, for `insecure-skip-tls-verify`.
#[derive(Debug)]
struct TrustAll(Arc<CryptoProvider>);

impl ServerCertVerifier for TrustAll {
    fn verify_server_cert(
        &self,
        _leaf: &CertificateDer<'_>,
        _chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, leaf, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, leaf, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(cluster: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nunknown: [1, 2]\n\
             contexts:\n- name: c\n  context: {{cluster: k, user: u}}\n\
             clusters:\n- name: k\n  cluster: {{{cluster}}}\n\
             users:\n- name: u\n  user: {{{user}}}\n"
        )
    }

    fn read(cluster: &str, user: &str) -> Result<Endpoint> {
        parse(&config(cluster, user), Path::new("."))
    }

    #[test]
    fn the_port_of_a_url_is_optional() {
        let skip = "insecure-skip-tls-verify: true";
        let at = |url: &str| {
            read(&format!("server: \"{url}\", {skip}"), "").map(|found| found.authority)
        };
        assert_eq!(at("https://example.org").unwrap(), "example.org:443");
        assert_eq!(at("https://[::1]:6443/").unwrap(), "[::1]:6443");
        assert_eq!(at("http://127.0.0.1:80").unwrap(), "127.0.0.1:80");
        assert!(at("ftp://x").is_err());
    }

    #[test]
    fn a_token_is_read() {
        let found = read("server: \"http://x:1\"", "token: secret").unwrap();
        assert_eq!(found.token.as_deref(), Some("secret"));
        assert!(found.tls.is_none());
    }

    /// B261
    #[test]
    fn errors_name_what_is_missing() {
        let why = |text: &str| format!("{:#}", parse(text, Path::new(".")).err().unwrap());
        assert!(why("current-context: x").contains("no context \"x\""));
        assert!(why("- 1").contains("not a kubeconfig"));
        let text = config("server: \"https://x\"", "");
        assert!(why(&text).contains("no certificate-authority"));
    }

    #[test]
    fn the_kubeconfig_that_a_server_writes_is_readable() {
        use headwater_server::pki::{Pki, kubeconfig, names};
        let names = names("127.0.0.1".parse().unwrap(), &[]);
        let pki = Pki::in_memory(&names, &headwater_api::SystemClock).unwrap();
        let text = kubeconfig::admin(&pki, "https://127.0.0.1:6443");
        let found = parse(&text, Path::new(".")).unwrap();
        assert_eq!(found.authority, "127.0.0.1:6443");
        assert!(found.tls.is_some());
    }
}
