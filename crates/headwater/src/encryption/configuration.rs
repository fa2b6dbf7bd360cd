//! Kubernetes' `EncryptionConfiguration`.
//!
//! Promise: no error quotes the file, which contains keys.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use headwater_api::query::parse_duration;
use headwater_kms::KmsPlugin;
use headwater_schema::decode::{self, Format};
use headwater_store::encrypted::{
    CipherKey, Encryption, EncryptionMetrics, EncryptionRule, EnvelopeKeys, Provider,
};
use serde::Deserialize;

/// How long a KMS plugin may take to respond, if the file does not say it.
const KMS_TIMEOUT: Duration = Duration::from_secs(3);
const KMS_TIMEOUT_MAX: Duration = Duration::from_secs(30);

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
    kms: Option<KmsConfiguration>,
}

/// A KMS plugin.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct KmsConfiguration {
    api_version: Option<String>,
    name: String,
    endpoint: String,
    timeout: Option<String>,
    /// For version 1 of the API, which is not supported.
    cachesize: Option<serde::de::IgnoredAny>,
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
pub(super) fn parse(text: &str, metrics: &EncryptionMetrics) -> Result<Encryption> {
    // Errors of the parsers may quote the text, and with it a key.
    let Ok(parsed) = decode::parse(Format::Yaml, text.as_bytes()) else {
        bail!("it is not valid YAML");
    };
    let Ok(file) = serde_json::from_slice::<ConfigurationFile>(parsed.value.to_string().as_bytes())
    else {
        bail!(
            "it needs apiVersion, kind, and resources with providers; providers are identity, aesgcm \
             and secretbox with keys of a name and a secret in base64, and kms with apiVersion, name, \
             endpoint and timeout"
        );
    };
    ensure!(
        file.api_version == "apiserver.config.k8s.io/v1" && file.kind == "EncryptionConfiguration",
        "it must have apiVersion apiserver.config.k8s.io/v1 and kind EncryptionConfiguration"
    );
    let names = file.resources.iter().flat_map(|rule| &rule.providers);
    let mut names: Vec<&str> =
        names.filter_map(|provider| Some(provider.kms.as_ref()?.name.as_str())).collect();
    names.sort_unstable();
    if let Some([name, ..]) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        bail!("two kms providers have the name {name:?}; name all resources of one in one item");
    }
    let rules = file.resources.into_iter().enumerate().map(|(index, resources)| {
        rule(resources, metrics).with_context(|| format!("resources[{index}]"))
    });
    Ok(Encryption { rules: rules.collect::<Result<_>>()? })
}

fn rule(configured: ResourceConfiguration, metrics: &EncryptionMetrics) -> Result<EncryptionRule> {
    ensure!(!configured.resources.is_empty(), "it names no resource");
    ensure!(!configured.providers.is_empty(), "it has no provider");
    for pattern in &configured.resources {
        let is_wrong = pattern.is_empty() || pattern == "*" || pattern.contains('/');
        ensure!(
            !is_wrong,
            "{pattern:?} is no resource; use secrets, deployments.apps, *.apps or *.*"
        );
    }
    let providers = configured.providers.into_iter().map(|each| provider(each, metrics));
    let providers = providers.collect::<Result<_>>()?;
    Ok(EncryptionRule { resources: configured.resources, providers })
}

fn provider(configured: ProviderConfiguration, metrics: &EncryptionMetrics) -> Result<Provider> {
    match configured {
        ProviderConfiguration {
            identity: Some(_),
            aesgcm: None,
            secretbox: None,
            aescbc: None,
            kms: None,
        } => Ok(Provider::Identity),
        ProviderConfiguration {
            identity: None,
            aesgcm: Some(list),
            secretbox: None,
            aescbc: None,
            kms: None,
        } => keys(list, CipherKey::aes_gcm),
        ProviderConfiguration {
            identity: None,
            aesgcm: None,
            secretbox: Some(list),
            aescbc: None,
            kms: None,
        } => keys(list, CipherKey::secretbox),
        ProviderConfiguration {
            identity: None,
            aesgcm: None,
            secretbox: None,
            aescbc: None,
            kms: Some(plugin),
        } => kms(&plugin, metrics).with_context(|| format!("the kms provider {:?}", plugin.name)),
        ProviderConfiguration { aescbc: Some(_), .. } => {
            bail!("the provider aescbc is not supported; use secretbox or aesgcm")
        }
        _ => bail!("a provider must be one of identity, aesgcm, secretbox and kms"),
    }
}

fn kms(plugin: &KmsConfiguration, metrics: &EncryptionMetrics) -> Result<Provider> {
    ensure!(
        plugin.api_version.as_deref() == Some("v2"),
        "it needs apiVersion v2; version v1, the default of Kubernetes, is not supported"
    );
    ensure!(plugin.cachesize.is_none(), "cachesize is a field of version v1");
    let timeout = match &plugin.timeout {
        None => KMS_TIMEOUT,
        Some(text) => {
            let nanos = parse_duration(text).map_err(|why| anyhow!("timeout: {why}"))?;
            Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
        }
    };
    ensure!(
        !timeout.is_zero() && timeout <= KMS_TIMEOUT_MAX,
        "timeout must be more than 0s and at most 30s"
    );
    let service = KmsPlugin::new(&plugin.endpoint, timeout)?;
    let service = Arc::new(service.observed(&plugin.name, metrics.clone()));
    let keys = EnvelopeKeys::new(&plugin.name, service)?;
    Ok(Provider::Service(Box::new(keys.with_metrics(metrics.clone()))))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Encryption> {
        parse(text, &EncryptionMetrics::default())
    }

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
        let read = read(FILE).unwrap();
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
            ("identity: {}", "aescbc: {keys: []}", "aescbc is not supported"),
            (
                "identity: {}",
                "identity: {}\n    kms: {apiVersion: v2, name: a, endpoint: b}",
                "must be one of",
            ),
            ("identity: {}", "vault: {}", "providers are identity"),
            ("[secrets, configmaps, '*.example.org']", "['*']", "is no resource"),
        ] {
            let error = format!("{:#}", read(&FILE.replace(from, to)).unwrap_err());
            assert!(error.contains(expected) && !error.contains("AAAAA"), "{error}");
        }
    }

    fn with_kms(fields: &str) -> Result<Encryption> {
        read(&FILE.replace("identity: {}", &format!("kms: {{{fields}}}")))
    }

    #[tokio::test]
    async fn a_kms_provider_has_a_name_and_a_socket() {
        let encryption = with_kms("apiVersion: v2, name: vault, endpoint: 'unix:///run/kms.sock'");
        let shown = format!("{:?}", encryption.unwrap().rules[0].providers[2]);
        assert_eq!(shown, "Service(k8s:enc:kms:v2:vault:)");
        for (fields, expected) in [
            ("name: a, endpoint: 'unix:///s'", "needs apiVersion v2"),
            ("apiVersion: v1, name: a, endpoint: 'unix:///s'", "needs apiVersion v2"),
            ("apiVersion: v2, name: 'a:b', endpoint: 'unix:///s'", "needs a name without"),
            ("apiVersion: v2, name: a, endpoint: 'tcp://s'", "must be unix:///"),
            ("apiVersion: v2, name: a, endpoint: 'unix:///s', timeout: 0s", "at most 30s"),
            ("apiVersion: v2, name: a, endpoint: 'unix:///s', timeout: -1s", "at most 30s"),
            ("apiVersion: v2, name: a, endpoint: 'unix:///s', timeout: 1h", "at most 30s"),
            ("apiVersion: v2, name: a, endpoint: 'unix:///s', timeout: soon", "timeout"),
            ("apiVersion: v2, name: a, endpoint: 'unix:///s', cachesize: 9", "cachesize"),
        ] {
            let error = format!("{:#}", with_kms(fields).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
        let twice = "kms: {apiVersion: v2, name: a, endpoint: 'unix:///s'}";
        let twice = FILE.replace("identity: {}", &format!("{twice}\n  - {twice}"));
        let error = read(&twice).unwrap_err().to_string();
        assert!(error.contains("two kms providers have the name \"a\""), "{error}");
    }
}
