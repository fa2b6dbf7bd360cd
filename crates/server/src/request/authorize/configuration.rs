//! The configuration of authorizers, as Kubernetes writes it.
//!
//! River: file or flags → **configuration** → authorizers. Promise: an unknown field is an error, so
//! that no rule is silently left out.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use headwater_api::query::parse_duration;
use headwater_cel::Program;
use headwater_schema::yaml;
use serde::Deserialize;

use super::Authorizer;
use super::webhook::{self, AuthorizationWebhook, OnFailure, ReviewVersion};
use crate::outgoing::kubeconfig;
use crate::outgoing::upstream::ReviewTarget;

/// Why a configuration cannot be used. The text names the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidAuthorization(String);

impl InvalidAuthorization {
    pub(super) fn new(why: impl Into<String>) -> InvalidAuthorization {
        InvalidAuthorization(why.into())
    }
}

/// The group of the file.
const GROUP: &str = "apiserver.config.k8s.io/";
const VERSIONS: [&str; 3] = ["v1", "v1beta1", "v1alpha1"];
/// The types of authorizers.
const TYPES: &str = "Webhook, Node, RBAC, AlwaysAllow and AlwaysDeny";
/// The longest timeout of a webhook.
const TIMEOUT_MAX: Duration = Duration::from_secs(30);
/// The maximum number of match conditions of a webhook.
const CONDITIONS_MAX: usize = 64;
/// The maximum number of authorizers.
const AUTHORIZERS_MAX: usize = 64;

/// An `AuthorizationConfiguration`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct AuthorizationConfiguration {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    authorizers: Vec<AuthorizerConfig>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct AuthorizerConfig {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    name: String,
    webhook: Option<WebhookConfig>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct WebhookConfig {
    #[serde(rename = "authorizedTTL")]
    authorized_ttl: Option<String>,
    cache_authorized_requests: Option<bool>,
    #[serde(rename = "unauthorizedTTL")]
    unauthorized_ttl: Option<String>,
    cache_unauthorized_requests: Option<bool>,
    timeout: Option<String>,
    subject_access_review_version: String,
    match_condition_subject_access_review_version: String,
    failure_policy: String,
    connection_info: ConnectionInfo,
    match_conditions: Vec<MatchCondition>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct ConnectionInfo {
    #[serde(rename = "type")]
    kind: String,
    kube_config_file: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct MatchCondition {
    expression: String,
}

/// The webhook as the flags `--authorization-webhook-*` describe it.
#[derive(Clone, Debug)]
pub struct WebhookFlags {
    /// Its kubeconfig.
    pub kubeconfig: PathBuf,
    /// The version of its reviews.
    pub version: String,
    /// How long an answer that allows is kept.
    pub keep_allowed: Duration,
    /// How long any other answer is kept.
    pub keep_others: Duration,
}

impl AuthorizationConfiguration {
    /// Reads YAML or JSON.
    pub fn parse(text: &[u8]) -> Result<AuthorizationConfiguration, InvalidAuthorization> {
        let wrong = |why: String| InvalidAuthorization::new(why);
        let parsed = yaml::parse(text).map_err(|error| wrong(error.to_string()))?;
        if let Some(path) = parsed.duplicates.first() {
            return Err(wrong(format!("{path} is set twice")));
        }
        let text = parsed.value.to_string();
        let read: AuthorizationConfiguration =
            serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        let version = read.api_version.strip_prefix(GROUP).unwrap_or_default();
        if read.kind != "AuthorizationConfiguration" || !VERSIONS.contains(&version) {
            return Err(wrong(format!(
                "apiVersion and kind must be {GROUP}v1 and AuthorizationConfiguration"
            )));
        }
        Ok(read)
    }

    /// Authorizers by their type, and the webhook of the type `Webhook`.
    pub fn from_flags(
        modes: &[String],
        webhook: Option<&WebhookFlags>,
    ) -> Result<AuthorizationConfiguration, InvalidAuthorization> {
        let authorizers = modes.iter().map(|mode| {
            let webhook = match (mode.as_str(), webhook) {
                ("Webhook", None) => {
                    let why = "the mode Webhook needs --authorization-webhook-config-file";
                    return Err(InvalidAuthorization::new(why));
                }
                ("Webhook", Some(webhook)) => Some(WebhookConfig::from_flags(webhook)),
                _ => None,
            };
            let name = mode.to_ascii_lowercase();
            Ok(AuthorizerConfig { kind: mode.clone(), name, webhook })
        });
        if webhook.is_some() && !modes.iter().any(|mode| mode == "Webhook") {
            let why = "--authorization-webhook-config-file needs the mode Webhook";
            return Err(InvalidAuthorization::new(why));
        }
        let authorizers = authorizers.collect::<Result<_, _>>()?;
        Ok(AuthorizationConfiguration { authorizers, ..AuthorizationConfiguration::default() })
    }

    /// The authorizers. Kubeconfigs are read.
    pub(super) fn authorizers(self) -> Result<Vec<Authorizer>, InvalidAuthorization> {
        if self.authorizers.is_empty() || self.authorizers.len() > AUTHORIZERS_MAX {
            let why = format!("authorizers: from 1 to {AUTHORIZERS_MAX} are needed");
            return Err(InvalidAuthorization::new(why));
        }
        let (mut names, mut types) = (BTreeSet::new(), BTreeSet::new());
        let mut made = Vec::new();
        for (index, config) in self.authorizers.into_iter().enumerate() {
            let wrong =
                |why: String| InvalidAuthorization::new(format!("authorizers[{index}].{why}"));
            let AuthorizerConfig { kind, name, webhook } = config;
            if !headwater_api::name::subdomain(&name).is_empty() {
                return Err(wrong(format!("name: {name:?} must be a DNS subdomain")));
            }
            if !names.insert(name.clone()) {
                return Err(wrong(format!("name: {name:?} is used twice")));
            }
            if kind != "Webhook" && !types.insert(kind.clone()) {
                return Err(wrong(format!("type: {kind:?} is used twice")));
            }
            made.push(match (kind.as_str(), webhook) {
                ("Webhook", Some(config)) => {
                    let made = config.webhook(name);
                    Authorizer::Webhook(Box::new(
                        made.map_err(|why| wrong(format!("webhook.{why}")))?,
                    ))
                }
                ("Webhook", None) => return Err(wrong("webhook: is needed".to_owned())),
                (_, Some(_)) => {
                    return Err(wrong("webhook: is only for the type Webhook".to_owned()));
                }
                ("Node", None) => Authorizer::Node,
                ("RBAC", None) => Authorizer::Rbac,
                ("AlwaysAllow", None) => Authorizer::AlwaysAllow,
                ("AlwaysDeny", None) => Authorizer::AlwaysDeny,
                (other, None) => {
                    return Err(wrong(format!("type: {other:?} is not one of {TYPES}")));
                }
            });
        }
        Ok(made)
    }
}

impl WebhookConfig {
    fn from_flags(flags: &WebhookFlags) -> WebhookConfig {
        let time = |time: Duration| Some(format!("{}ms", time.as_millis()));
        WebhookConfig {
            authorized_ttl: time(flags.keep_allowed),
            cache_authorized_requests: Some(!flags.keep_allowed.is_zero()),
            unauthorized_ttl: time(flags.keep_others),
            cache_unauthorized_requests: Some(!flags.keep_others.is_zero()),
            timeout: Some("30s".to_owned()),
            subject_access_review_version: flags.version.clone(),
            failure_policy: "NoOpinion".to_owned(),
            connection_info: ConnectionInfo {
                kind: "KubeConfigFile".to_owned(),
                kube_config_file: Some(flags.kubeconfig.clone()),
            },
            ..WebhookConfig::default()
        }
    }

    fn webhook(self, name: String) -> Result<AuthorizationWebhook, String> {
        let is_empty = |time: &Option<String>| time.as_deref().unwrap_or_default().is_empty();
        if is_empty(&self.timeout) {
            return Err("timeout: is needed".to_owned());
        }
        let timeout = duration("timeout", self.timeout, Duration::ZERO)?;
        if timeout.is_zero() || timeout > TIMEOUT_MAX {
            return Err("timeout: must be more than 0s and at most 30s".to_owned());
        }
        let kept = |field: &str, is_kept: Option<bool>, time, usual| match is_kept {
            Some(false) => Ok(Duration::ZERO),
            _ => match duration(field, time, usual)? {
                Duration::ZERO => Err(format!("{field}: must be more than 0s")),
                time => Ok(time),
            },
        };
        let keep_allowed = kept(
            "authorizedTTL",
            self.cache_authorized_requests,
            self.authorized_ttl,
            Duration::from_secs(300),
        )?;
        let keep_others = kept(
            "unauthorizedTTL",
            self.cache_unauthorized_requests,
            self.unauthorized_ttl,
            Duration::from_secs(30),
        )?;
        let version = match self.subject_access_review_version.as_str() {
            "v1" => ReviewVersion::V1,
            "v1beta1" => ReviewVersion::V1beta1,
            _ => return Err("subjectAccessReviewVersion: must be v1 or v1beta1".to_owned()),
        };
        let on_failure = match self.failure_policy.as_str() {
            "Deny" => OnFailure::Deny,
            "NoOpinion" => OnFailure::NoOpinion,
            _ => return Err("failurePolicy: must be Deny or NoOpinion".to_owned()),
        };
        match (self.match_condition_subject_access_review_version.as_str(), &*self.match_conditions)
        {
            ("v1", _) | ("", []) => {}
            _ => return Err("matchConditionSubjectAccessReviewVersion: must be v1".to_owned()),
        }
        let path = self.connection_info.path()?;
        let endpoint =
            kubeconfig::endpoint(path).map_err(|why| format!("connectionInfo: {why}"))?;
        let conditions = conditions(&self.match_conditions)?;
        let answers = Mutex::default();
        Ok(AuthorizationWebhook {
            name,
            target: ReviewTarget::Webhook(Box::new(endpoint)),
            version,
            timeout,
            keep_allowed,
            keep_others,
            on_failure,
            conditions,
            answers,
        })
    }
}

impl ConnectionInfo {
    fn path(&self) -> Result<&Path, String> {
        let file = self.kube_config_file.as_deref().filter(|path| !path.as_os_str().is_empty());
        match (self.kind.as_str(), file) {
            ("KubeConfigFile", Some(path)) => Ok(path),
            ("KubeConfigFile", None) => Err("connectionInfo.kubeConfigFile: is needed".to_owned()),
            ("InClusterConfig", _) => {
                Err("connectionInfo.type: a server has no cluster around it; use KubeConfigFile"
                    .to_owned())
            }
            _ => Err("connectionInfo.type: must be KubeConfigFile".to_owned()),
        }
    }
}

fn duration(field: &str, text: Option<String>, usual: Duration) -> Result<Duration, String> {
    let Some(text) = text else { return Ok(usual) };
    let nanos = parse_duration(&text).map_err(|why| format!("{field}: {why}"))?;
    match u64::try_from(nanos) {
        Ok(nanos) => Ok(Duration::from_nanos(nanos)),
        Err(_) => Err(format!("{field}: must not be negative")),
    }
}

fn conditions(conditions: &[MatchCondition]) -> Result<Vec<Program>, String> {
    if conditions.len() > CONDITIONS_MAX {
        return Err(format!("matchConditions: at most {CONDITIONS_MAX} are allowed"));
    }
    let mut seen = BTreeSet::new();
    let compiled = conditions.iter().enumerate().map(|(index, condition)| {
        let field = format!("matchConditions[{index}].expression");
        if condition.expression.trim().is_empty() {
            return Err(format!("{field}: is needed"));
        }
        if !seen.insert(&condition.expression) {
            return Err(format!("{field}: is used twice"));
        }
        webhook::compile(&condition.expression).map_err(|why| format!("{field}: {why}"))
    });
    compiled.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- type: Webhook
  name: policy.example.org
  webhook:
    authorizedTTL: 1m
    unauthorizedTTL: 10s
    timeout: 3s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: Deny
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: KUBECONFIG}
    matchConditions:
    - expression: has(request.resourceAttributes)
- {type: Node, name: node}
- {type: RBAC, name: rbac}
";

    fn authorizers(text: &str) -> Result<Vec<Authorizer>, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubeconfig");
        let kubeconfig = "{clusters: [{name: a, cluster: {server: 'https://hook/x'}}], \
            contexts: [{name: a, context: {cluster: a}}], current-context: a}";
        std::fs::write(&path, kubeconfig).unwrap();
        let text = text.replace("KUBECONFIG", path.to_str().unwrap());
        let parsed = AuthorizationConfiguration::parse(text.as_bytes());
        parsed.and_then(AuthorizationConfiguration::authorizers).map_err(|error| error.to_string())
    }

    /// S8.24
    #[test]
    fn the_file_of_kubernetes_is_read() {
        let made = authorizers(FILE).unwrap();
        let [Authorizer::Webhook(webhook), Authorizer::Node, Authorizer::Rbac] = made.as_slice()
        else {
            panic!("{made:?}");
        };
        assert_eq!(webhook.name, "policy.example.org");
        assert_eq!(webhook.on_failure, OnFailure::Deny);
        assert_eq!(webhook.timeout, Duration::from_secs(3));
        let kept = [webhook.keep_allowed, webhook.keep_others];
        assert_eq!(kept, [Duration::from_secs(60), Duration::from_secs(10)]);
        let uncached = "cacheAuthorizedRequests: false\n    authorizedTTL: 1m";
        let made = authorizers(&FILE.replace("authorizedTTL: 1m", uncached)).unwrap();
        let Authorizer::Webhook(webhook) = &made[0] else { panic!("{made:?}") };
        assert!(webhook.keep_allowed.is_zero());
    }

    #[test]
    fn an_invalid_file_is_refused_with_the_field() {
        for (from, to, expected) in [
            ("type: Node", "type: ABAC", "authorizers[1].type: \"ABAC\" is not one of"),
            ("type: Node", "type: RBAC", "authorizers[2].type: \"RBAC\" is used twice"),
            ("name: rbac", "name: node", "authorizers[2].name: \"node\" is used twice"),
            ("name: rbac", "name: 'A b'", "authorizers[2].name: \"A b\" must be a DNS"),
            ("timeout: 3s", "timeout: 31s", "webhook.timeout: must be more than 0s"),
            ("timeout: 3s", "timeout: '3'", "webhook.timeout: time: missing unit"),
            ("    timeout: 3s\n", "", "webhook.timeout: is needed"),
            ("authorizedTTL: 1m", "authorizedTTL: 0s", "webhook.authorizedTTL: must be more"),
            ("failurePolicy: Deny", "failurePolicy: Allow", "webhook.failurePolicy: must be"),
            ("Version: v1\n    failure", "Version: v2\n    failure", "ReviewVersion: must be v1"),
            ("KubeConfigFile,", "InClusterConfig,", "webhook.connectionInfo.type: a server has"),
            ("KUBECONFIG", "/none", "webhook.connectionInfo: cannot read"),
            ("has(request.resourceAttributes)", "request.nonsense", "matchConditions[0]"),
            ("authorizers:", "authorizer:", "unknown field"),
            ("kind: Auth", "kind: Author", "apiVersion and kind must be"),
        ] {
            assert!(FILE.contains(from), "{from}");
            let error = authorizers(&FILE.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(expected), "{to}: {error}");
        }
    }

    #[test]
    fn flags_name_the_authorizers_in_order() {
        let modes = |list: &[&str]| list.iter().map(|mode| (*mode).to_owned()).collect::<Vec<_>>();
        let from = |list: &[&str]| {
            let made = AuthorizationConfiguration::from_flags(&modes(list), None);
            made.and_then(AuthorizationConfiguration::authorizers)
                .map_err(|error| error.to_string())
        };
        let made = from(&["RBAC", "AlwaysDeny"]).unwrap();
        assert!(matches!(made.as_slice(), [Authorizer::Rbac, Authorizer::AlwaysDeny]), "{made:?}");
        assert!(from(&["Webhook"]).unwrap_err().contains("--authorization-webhook-config-file"));
        assert!(from(&["rbac"]).unwrap_err().contains("\"rbac\" is not one of"));
        assert!(from(&[]).unwrap_err().contains("from 1"));
    }
}
