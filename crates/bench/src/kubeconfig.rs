//! Reads a kubeconfig: the address of the server and the credentials of the user.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use headwater_client::factory::client_of;
use kube::Config;
use kube::client::ConfigExt;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use secrecy::ExposeSecret;

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

impl Endpoint {
    /// The server and user of a kubeconfig's current context.
    pub async fn read(path: &Path) -> Result<Endpoint> {
        let config = config(path).await?;
        Endpoint::of(&config).with_context(|| format!("cannot use kubeconfig {}", path.display()))
    }

    fn of(config: &Config) -> Result<Endpoint> {
        let server = &config.cluster_url;
        let is_tls = match server.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => bail!("server {server} is not an http or https URL"),
        };
        let host = server.host().context("the server URL has no host")?;
        let port = server.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let tls = match is_tls {
            true => Some((Arc::new(config.rustls_client_config()?), server_name(config, host)?)),
            false => None,
        };
        let token = config.auth_info.token.as_ref();
        let token = token.map(|token| token.expose_secret().to_owned());
        Ok(Endpoint { authority: format!("{host}:{port}"), tls, token })
    }
}

/// A kube client for the current context of a kubeconfig.
pub async fn kube_client(path: &Path) -> Result<kube::Client> {
    Ok(client_of(config(path).await?)?)
}

/// The server and user of a kubeconfig's current context, with the defaults of kube.
pub async fn config(path: &Path) -> Result<Config> {
    let file = read(path, "pass --kubeconfig FILE, or start a server with \"headwater serve\"")?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
    config.with_context(|| format!("cannot use kubeconfig {}", path.display()))
}

/// A kubeconfig; the paths in it are relative to its directory. The advice is for somebody who has no such file.
pub fn read(path: &Path, advice: &str) -> Result<Kubeconfig> {
    let name = path.display();
    match std::fs::metadata(path) {
        Ok(file) if file.len() > SIZE_MAX => {
            bail!("{name} is larger than 4 MiB and cannot be a kubeconfig")
        }
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("cannot read kubeconfig {name}: there is no such file; {advice}")
        }
        Err(error) => bail!("cannot read kubeconfig {name}: {error}"),
    }
    Kubeconfig::read_from(path).map_err(|error| match error {
        // The text of the error repeats the path.
        KubeconfigError::ReadConfig(error, _) => anyhow!("cannot read kubeconfig {name}: {error}"),
        error => anyhow!("{name} is not a kubeconfig: {error}"),
    })
}

fn server_name(config: &Config, host: &str) -> Result<ServerName<'static>> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let name = config.tls_server_name.as_deref().unwrap_or(host);
    ServerName::try_from(name.to_owned())
        .with_context(|| format!("{name:?} is not a valid TLS server name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(cluster: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nunknown: [1, 2]\n\
             contexts:\n- name: c\n  context: {{cluster: k, user: u}}\n\
             clusters:\n- name: k\n  cluster: {{{cluster}}}\n\
             users:\n- name: u\n  user: {{{user}}}\n"
        )
    }

    async fn read(text: &str) -> Result<Endpoint> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), text)?;
        Endpoint::read(file.path()).await
    }

    #[tokio::test]
    async fn the_port_of_a_url_is_optional() {
        let at = async |url: &str| {
            let cluster = format!("server: \"{url}\", insecure-skip-tls-verify: true");
            read(&text(&cluster, "")).await.map(|found| found.authority)
        };
        assert_eq!(at("https://example.org").await.unwrap(), "example.org:443");
        assert_eq!(at("https://[::1]:6443/").await.unwrap(), "[::1]:6443");
        assert_eq!(at("http://127.0.0.1:80").await.unwrap(), "127.0.0.1:80");
        assert!(at("ftp://x").await.is_err());
    }

    #[tokio::test]
    async fn a_token_is_read() {
        let found = read(&text("server: \"http://x:1\"", "token: secret")).await.unwrap();
        assert_eq!(found.token.as_deref(), Some("secret"));
        assert!(found.tls.is_none());
    }

    /// B261
    #[tokio::test]
    async fn errors_name_what_is_wrong() {
        let why = async |text: &str| format!("{:#}", read(text).await.err().unwrap());
        assert!(why("current-context: x").await.contains("context: x"));
        assert!(why("- 1").await.contains("failed to parse kubeconfig"));
        let large = format!("# {}", "x".repeat(SIZE_MAX as usize));
        assert!(why(&large).await.contains("larger than 4 MiB"));
    }

    #[tokio::test]
    async fn a_missing_file_is_named_once_with_what_to_do() {
        let error = Endpoint::read(Path::new("/nonexistent")).await.err().unwrap();
        assert_eq!(
            format!("{error:#}"),
            "cannot read kubeconfig /nonexistent: there is no such file; pass --kubeconfig FILE, or start a \
             server with \"headwater serve\""
        );
    }

    #[tokio::test]
    async fn the_kubeconfig_that_a_server_writes_is_readable() {
        use headwater_server::pki::{Pki, kubeconfig, names};
        let names = names("127.0.0.1".parse().unwrap(), &[]);
        let pki = Pki::in_memory(&names, &headwater_api::SystemClock).unwrap();
        let found = read(&kubeconfig::admin(&pki, "https://127.0.0.1:6443")).await.unwrap();
        assert_eq!(found.authority, "127.0.0.1:6443");
        assert!(found.tls.is_some());
    }
}
