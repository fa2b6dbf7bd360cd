//! Encryption at rest: the file that configures it, and its reload.
//!
//! The file is Kubernetes' `EncryptionConfiguration`. When it changes, the server uses it from then on
//! and writes the stored values again that are not in the form that it asks for. An invalid new file
//! leaves the old keys in effect.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use headwater_schema::decode::{self, Format};
use headwater_server::pki::private_file::{self, OthersMayRead};
use headwater_store::Store;
use headwater_store::encrypted::{CipherKey, Encrypted, Encryption, EncryptionRule, Provider};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

/// How often the file is checked for changes.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The pause before a failed rewrite is repeated.
const RETRY_AFTER: Duration = Duration::from_secs(10);

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ConfigurationFile {
    api_version: String,
    kind: String,
    resources: Vec<ResourceConfiguration>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ResourceConfiguration {
    resources: Vec<String>,
    providers: Vec<ProviderConfiguration>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ProviderConfiguration {
    identity: Option<serde::de::IgnoredAny>,
    aesgcm: Option<KeyList>,
    secretbox: Option<KeyList>,
    aescbc: Option<serde::de::IgnoredAny>,
    kms: Option<serde::de::IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyList {
    keys: Vec<NamedSecret>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedSecret {
    name: String,
    secret: String,
}

/// Without the secret.
impl std::fmt::Debug for NamedSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

/// Reads a configuration.
fn parse(text: &str) -> Result<Encryption> {
    // Errors of the parsers may quote the text, and with it a key.
    let Ok(parsed) = decode::parse(Format::Yaml, text.as_bytes()) else {
        bail!("it is not valid YAML");
    };
    let Ok(file) = serde_json::from_slice::<ConfigurationFile>(parsed.value.to_string().as_bytes())
    else {
        bail!(
            "it needs apiVersion, kind, and resources with providers; providers are identity, \
             aesgcm and secretbox, the last two with keys of a name and a secret in base64"
        );
    };
    ensure!(
        file.api_version == "apiserver.config.k8s.io/v1" && file.kind == "EncryptionConfiguration",
        "it must have apiVersion apiserver.config.k8s.io/v1 and kind EncryptionConfiguration"
    );
    let rules =
        file.resources.into_iter().enumerate().map(|(index, resources)| {
            rule(resources).with_context(|| format!("resources[{index}]"))
        });
    Ok(Encryption { rules: rules.collect::<Result<_>>()? })
}

fn rule(configured: ResourceConfiguration) -> Result<EncryptionRule> {
    ensure!(!configured.resources.is_empty(), "it names no resource");
    ensure!(!configured.providers.is_empty(), "it has no provider");
    for pattern in &configured.resources {
        let is_wrong = pattern.is_empty() || pattern == "*" || pattern.contains('/');
        ensure!(
            !is_wrong,
            "{pattern:?} is no resource; use secrets, deployments.apps, *.apps or *.*"
        );
    }
    let providers = configured.providers.into_iter().map(provider).collect::<Result<_>>()?;
    Ok(EncryptionRule { resources: configured.resources, providers })
}

fn provider(configured: ProviderConfiguration) -> Result<Provider> {
    match configured {
        ProviderConfiguration { identity: Some(_), aesgcm: None, secretbox: None, .. } => {
            Ok(Provider::Identity)
        }
        ProviderConfiguration { identity: None, aesgcm: Some(list), secretbox: None, .. } => {
            keys(list, CipherKey::aes_gcm)
        }
        ProviderConfiguration { identity: None, aesgcm: None, secretbox: Some(list), .. } => {
            keys(list, CipherKey::secretbox)
        }
        ProviderConfiguration { aescbc: Some(_), .. } => {
            bail!("the provider aescbc is not supported; use secretbox or aesgcm")
        }
        ProviderConfiguration { kms: Some(_), .. } => {
            bail!("the provider kms is not supported; use secretbox or aesgcm")
        }
        _ => bail!("a provider must be one of identity, aesgcm and secretbox"),
    }
}

fn keys<E>(list: KeyList, make: impl Fn(&str, &[u8]) -> Result<CipherKey, E>) -> Result<Provider>
where
    E: std::error::Error + Send + Sync + 'static,
{
    ensure!(!list.keys.is_empty(), "a provider has no keys");
    let read = |named: NamedSecret| {
        let Ok(secret) = STANDARD.decode(&named.secret) else {
            bail!("the secret of the key {:?} is not base64", named.name);
        };
        Ok(make(&named.name, &secret)?)
    };
    Ok(Provider::Keys(list.keys.into_iter().map(read).collect::<Result<_>>()?))
}

/// The encryption of a store, and the file that configures it.
pub(crate) struct EncryptionFile {
    path: PathBuf,
    others: OthersMayRead,
    text: Zeroizing<String>,
    store: Arc<Encrypted>,
}

impl EncryptionFile {
    /// Reads the file. The store that it returns encrypts what `inner` keeps.
    pub(crate) fn open(
        path: &Path,
        others: OthersMayRead,
        inner: Arc<dyn Store>,
    ) -> Result<EncryptionFile> {
        let text = private_file::read(path, others)?;
        let encryption = parse(&text).with_context(|| {
            format!("the encryption configuration {} is invalid", path.display())
        })?;
        let store = Arc::new(Encrypted::new(inner, encryption));
        Ok(EncryptionFile { path: path.to_owned(), others, text, store })
    }

    /// The store that encrypts.
    pub(crate) fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    /// Rewrites stale values, and follows changes of the file, until the server stops.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(async {
            self.rewrite().await;
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                if self.reload() {
                    self.rewrite().await;
                }
            }
        })
        .await;
    }

    /// Whether a changed file is in effect.
    fn reload(&mut self) -> bool {
        // A missing file is one that is being replaced; it is read the next time.
        let Ok(text) = private_file::read(&self.path, self.others) else { return false };
        if text == self.text {
            return false;
        }
        self.text = text;
        match parse(&self.text) {
            Ok(encryption) => {
                self.store.replace(encryption);
                tracing::info!(path = %self.path.display(), "the encryption configuration was reloaded");
                true
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(error, path = %self.path.display(),
                    "the changed encryption configuration is invalid; the old one stays in effect");
                false
            }
        }
    }

    async fn rewrite(&self) {
        loop {
            match self.store.rewrite().await {
                Ok(0) => return,
                Ok(count) => {
                    tracing::info!(count, "stored values were encrypted as configured");
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot encrypt all stored values again; trying later");
                    tokio::time::sleep(RETRY_AFTER).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets, configmaps, '*.example.org']
  providers:
  - secretbox:
      keys:
      - {name: k2, secret: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=}
  - aesgcm:
      keys:
      - {name: k1, secret: AAAAAAAAAAAAAAAAAAAAAA==}
  - identity: {}
";

    #[test]
    fn the_file_of_kubernetes_is_read() {
        let read = parse(FILE).unwrap();
        assert_eq!(read.rules[0].resources, ["secrets", "configmaps", "*.example.org"]);
        let shown = format!("{:?}", read.rules[0].providers);
        let expected =
            "[Keys([k8s:enc:secretbox:v1:k2:]), Keys([k8s:enc:aesgcm:v1:k1:]), Identity]";
        assert_eq!(shown, expected);
    }

    #[test]
    fn an_invalid_file_is_refused_without_showing_a_key() {
        for (from, to, expected) in [
            ("EncryptionConfiguration", "Encryption", "kind EncryptionConfiguration"),
            ("AAAAAAAAAAAAAAAAAAAAAA==", "AAAA", "must have 16 or 32 bytes"),
            ("AAAAAAAAAAAAAAAAAAAAAA==", "'?'", "\"k1\" is not base64"),
            ("identity: {}", "kms: {name: a}", "kms is not supported"),
            ("identity: {}", "vault: {}", "providers are identity"),
            ("[secrets, configmaps, '*.example.org']", "['*']", "is no resource"),
        ] {
            let error = format!("{:#}", parse(&FILE.replace(from, to)).unwrap_err());
            assert!(error.contains(expected) && !error.contains("AAAAA"), "{error}");
        }
    }
}
