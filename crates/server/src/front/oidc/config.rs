//! The configuration of issuers and of anonymous users, as Kubernetes writes it.
//!
//! River: file or flags → **config** → issuers. Promise: an unknown field is an error, so that no rule is
//! silently left out.

use std::collections::BTreeSet;

use headwater_schema::yaml;
use http::Uri;
use serde::Deserialize;

/// Why a configuration cannot be used. The text names the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigurationError(String);

impl ConfigurationError {
    pub(super) fn new(why: impl Into<String>) -> ConfigurationError {
        ConfigurationError(why.into())
    }
}

/// The group of the file.
const GROUP: &str = "apiserver.config.k8s.io/";
const VERSIONS: [&str; 3] = ["v1", "v1beta1", "v1alpha1"];
/// The maximum number of issuers.
const ISSUERS_MAX: usize = 64;

/// An `AuthenticationConfiguration`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct AuthenticationConfiguration {
    #[serde(default, rename = "apiVersion")]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    pub(super) jwt: Vec<JwtIssuerConfig>,
    pub(super) anonymous: Option<AnonymousAccess>,
}

/// What anonymous users may do at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnonymousAccess {
    /// Whether requests without a credential are served.
    pub enabled: bool,
    /// The paths that they may ask for; empty allows all that authorization allows.
    #[serde(default)]
    pub conditions: Vec<AnonymousPath>,
}

/// A path for anonymous users.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnonymousPath {
    /// The exact path.
    pub path: String,
}

impl AnonymousAccess {
    /// Whether a request without a credential may ask for a path.
    pub(crate) fn allows(&self, path: &str) -> bool {
        let is_open = |condition: &AnonymousPath| condition.path == path;
        self.enabled && (self.conditions.is_empty() || self.conditions.iter().any(is_open))
    }
}

/// An issuer and what its tokens mean.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct JwtIssuerConfig {
    pub(super) issuer: IssuerConfig,
    #[serde(default)]
    pub(super) claim_validation_rules: Vec<ClaimRule>,
    pub(super) claim_mappings: ClaimMappings,
    #[serde(default)]
    pub(super) user_validation_rules: Vec<UserRule>,
}

/// Where the keys of an issuer are, and for whom its tokens have to be.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct IssuerConfig {
    pub(super) url: String,
    #[serde(rename = "discoveryURL")]
    discovery_url: Option<String>,
    pub(super) certificate_authority: Option<String>,
    #[serde(default)]
    pub(super) audiences: Vec<String>,
    audience_match_policy: Option<String>,
}

impl IssuerConfig {
    /// The address of the discovery document.
    pub(super) fn discovery(&self) -> String {
        let own = self.discovery_url.as_deref().filter(|url| !url.is_empty());
        match own {
            Some(url) => url.to_owned(),
            None => {
                format!("{}/.well-known/openid-configuration", self.url.trim_end_matches('/'))
            }
        }
    }

    /// Whether two configurations fetch their keys from the same place.
    pub(super) fn has_same_keys(&self, other: &IssuerConfig) -> bool {
        self.url == other.url
            && self.discovery_url == other.discovery_url
            && self.certificate_authority == other.certificate_authority
    }
}

/// A rule about the claims: a claim with a value, or an expression.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ClaimRule {
    #[serde(default)]
    pub(super) claim: String,
    #[serde(default)]
    pub(super) required_value: String,
    #[serde(default)]
    pub(super) expression: String,
    #[serde(default)]
    pub(super) message: String,
}

/// A rule about the user that results.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UserRule {
    pub(super) expression: String,
    #[serde(default)]
    pub(super) message: String,
}

/// Which claims the attributes of a user come from.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClaimMappings {
    pub(super) username: MappedClaim,
    #[serde(default)]
    pub(super) groups: MappedClaim,
    #[serde(default)]
    pub(super) uid: MappedClaim,
    #[serde(default)]
    pub(super) extra: Vec<ExtraClaim>,
}

/// A claim with a prefix, or an expression.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MappedClaim {
    #[serde(default)]
    pub(super) claim: String,
    pub(super) prefix: Option<String>,
    #[serde(default)]
    pub(super) expression: String,
}

impl MappedClaim {
    pub(super) fn is_set(&self) -> bool {
        !self.claim.is_empty() || !self.expression.is_empty()
    }
}

/// A further attribute.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ExtraClaim {
    pub(super) key: String,
    pub(super) value_expression: String,
}

/// An issuer as the flags `--oidc-*` describe it.
#[derive(Clone, Debug, Default)]
pub struct OidcFlags {
    /// The URL of the issuer.
    pub issuer_url: String,
    /// The audience.
    pub client_id: String,
    /// The claim with the name of the user.
    pub username_claim: String,
    /// What is put before the name; `-` for nothing, empty for the URL of the issuer and `#`.
    pub username_prefix: String,
    /// The claim with the groups; empty for none.
    pub groups_claim: String,
    /// What is put before the groups.
    pub groups_prefix: String,
    /// Claims that have to have a value.
    pub required_claims: Vec<(String, String)>,
    /// The certificate authority of the issuer, as PEM.
    pub authority: Option<String>,
}

impl AuthenticationConfiguration {
    /// Reads YAML or JSON.
    pub fn parse(text: &[u8]) -> Result<AuthenticationConfiguration, ConfigurationError> {
        let wrong = |why: String| ConfigurationError::new(why);
        let parsed = yaml::parse(text).map_err(|error| wrong(error.to_string()))?;
        if let Some(path) = parsed.duplicates.first() {
            return Err(wrong(format!("{path} is set twice")));
        }
        let text = parsed.value.to_string();
        let read: AuthenticationConfiguration =
            serde_json::from_str(&text).map_err(|error| wrong(without_position(&error)))?;
        let version = read.api_version.strip_prefix(GROUP).unwrap_or_default();
        if read.kind != "AuthenticationConfiguration" || !VERSIONS.contains(&version) {
            return Err(wrong(format!(
                "apiVersion and kind must be {GROUP}v1 and AuthenticationConfiguration"
            )));
        }
        read.check()?;
        Ok(read)
    }

    /// One issuer, from flags.
    pub fn from_flags(flags: OidcFlags) -> Result<AuthenticationConfiguration, ConfigurationError> {
        let prefix = match flags.username_prefix.as_str() {
            "-" => String::new(),
            "" if flags.username_claim == "email" => String::new(),
            "" => format!("{}#", flags.issuer_url),
            prefix => prefix.to_owned(),
        };
        let claim = |claim: String, prefix: String| MappedClaim {
            prefix: (!claim.is_empty()).then_some(prefix),
            claim,
            expression: String::new(),
        };
        let rule =
            |(claim, required_value)| ClaimRule { claim, required_value, ..ClaimRule::default() };
        let read = AuthenticationConfiguration {
            jwt: vec![JwtIssuerConfig {
                issuer: IssuerConfig {
                    url: flags.issuer_url,
                    certificate_authority: flags.authority,
                    audiences: vec![flags.client_id],
                    ..IssuerConfig::default()
                },
                claim_validation_rules: flags.required_claims.into_iter().map(rule).collect(),
                claim_mappings: ClaimMappings {
                    username: claim(flags.username_claim, prefix),
                    groups: claim(flags.groups_claim, flags.groups_prefix),
                    ..ClaimMappings::default()
                },
                user_validation_rules: Vec::new(),
            }],
            ..AuthenticationConfiguration::default()
        };
        read.check()?;
        Ok(read)
    }

    fn check(&self) -> Result<(), ConfigurationError> {
        let wrong = |why: String| Err(ConfigurationError::new(why));
        if self.jwt.len() > ISSUERS_MAX {
            return wrong(format!("jwt: at most {ISSUERS_MAX} issuers"));
        }
        if let Some(anonymous) = &self.anonymous {
            let is_path = |condition: &AnonymousPath| condition.path.starts_with('/');
            if !anonymous.conditions.iter().all(is_path) {
                return wrong("anonymous.conditions: a path must begin with /".to_owned());
            }
            if !anonymous.enabled && !anonymous.conditions.is_empty() {
                return wrong("anonymous.conditions: only if anonymous.enabled is true".to_owned());
            }
        }
        let (mut urls, mut discoveries) = (BTreeSet::new(), BTreeSet::new());
        for (index, jwt) in self.jwt.iter().enumerate() {
            let at = format!("jwt[{index}]");
            jwt.check(&at)?;
            if !urls.insert(&jwt.issuer.url) {
                return wrong(format!("{at}.issuer.url: another issuer has it"));
            }
            if !discoveries.insert(jwt.issuer.discovery()) {
                return wrong(format!("{at}.issuer.discoveryURL: another issuer has it"));
            }
        }
        Ok(())
    }
}

/// The message of an error, without a position in a text that the user did not write.
fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.clone(), |(why, _)| why.to_owned())
}

impl JwtIssuerConfig {
    fn check(&self, at: &str) -> Result<(), ConfigurationError> {
        let wrong =
            |field: &str, why: &str| Err(ConfigurationError::new(format!("{at}.{field}: {why}")));
        let issuer = &self.issuer;
        check_url(&issuer.url).or_else(|why| wrong("issuer.url", why))?;
        if issuer.url == crate::front::service_account::ISSUER {
            return wrong("issuer.url", "it is the issuer of this server's service accounts");
        }
        if let Some(url) = issuer.discovery_url.as_deref().filter(|url| !url.is_empty()) {
            check_url(url).or_else(|why| wrong("issuer.discoveryURL", why))?;
            if url == issuer.url {
                return wrong("issuer.discoveryURL", "must differ from the URL of the issuer");
            }
        }
        if issuer.audiences.is_empty() || issuer.audiences.iter().any(String::is_empty) {
            return wrong("issuer.audiences", "at least one is required, and none may be empty");
        }
        match issuer.audience_match_policy.as_deref() {
            None | Some("") if issuer.audiences.len() == 1 => {}
            Some("MatchAny") => {}
            _ => {
                return wrong(
                    "issuer.audienceMatchPolicy",
                    "must be MatchAny for several audiences",
                );
            }
        }
        for (index, rule) in self.claim_validation_rules.iter().enumerate() {
            let is_claim = !rule.claim.is_empty();
            let is_mixed = is_claim && !rule.message.is_empty()
                || !is_claim && !rule.required_value.is_empty();
            if is_claim != rule.expression.is_empty() || is_mixed {
                let field = format!("claimValidationRules[{index}]");
                let why = "either claim with requiredValue, or expression with message";
                return wrong(&field, why);
            }
        }
        let mappings = &self.claim_mappings;
        if !mappings.username.is_set() {
            return wrong("claimMappings.username", "claim or expression is required");
        }
        for (name, mapping) in
            [("username", &mappings.username), ("groups", &mappings.groups), ("uid", &mappings.uid)]
        {
            let field = format!("claimMappings.{name}");
            if !mapping.claim.is_empty() && !mapping.expression.is_empty() {
                return wrong(&field, "claim and expression exclude each other");
            }
            let needs_prefix = name != "uid" && !mapping.claim.is_empty();
            match (&mapping.prefix, needs_prefix) {
                (None, true) => return wrong(&field, "a claim needs a prefix, which may be empty"),
                (Some(_), false) => return wrong(&field, "a prefix needs a claim"),
                _ => {}
            }
        }
        let mut keys = BTreeSet::new();
        for (index, extra) in mappings.extra.iter().enumerate() {
            let field = format!("claimMappings.extra[{index}].key");
            check_extra(&extra.key).or_else(|why| wrong(&field, why))?;
            if !keys.insert(&extra.key) {
                return wrong(&field, "it is set twice");
            }
        }
        Ok(())
    }
}

fn check_url(url: &str) -> Result<(), &'static str> {
    let uri: Uri = url.parse().map_err(|_| "must be a URL")?;
    if uri.scheme_str() != Some("https") || uri.host().is_none_or(str::is_empty) {
        return Err("must be an https URL");
    }
    let has_user = uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
    if uri.query().is_some() || url.contains('#') || has_user {
        return Err("must have no user, query or fragment");
    }
    Ok(())
}

/// The key of a further attribute: a domain and a path. Kubernetes' own domains are reserved.
fn check_extra(key: &str) -> Result<(), &'static str> {
    let Some((domain, path)) = key.split_once('/') else {
        return Err("must be a domain and a path, such as example.org/team");
    };
    if domain.is_empty()
        || path.is_empty()
        || key.chars().any(|c| c.is_uppercase() || c.is_whitespace())
    {
        return Err("must be a domain and a path in lower case");
    }
    let is_below = |parent: &str| domain == parent || domain.ends_with(&format!(".{parent}"));
    match is_below("k8s.io") || is_below("kubernetes.io") {
        true => Err("the domains k8s.io and kubernetes.io are reserved"),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use headwater_json::{Value, json};

    use super::*;

    fn file(change: &[(&str, Value)]) -> Result<AuthenticationConfiguration, ConfigurationError> {
        let mut file = json!({
            "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration",
            "jwt": [{
                "issuer": { "url": "https://issuer.example.org", "audiences": ["a"] },
                "claimMappings": { "username": { "claim": "sub", "prefix": "" } },
            }],
        });
        for (path, value) in change {
            let mut at = &mut file;
            for step in path.split('.') {
                at = match step.parse::<usize>() {
                    Ok(index) => &mut at.as_array_mut().unwrap()[index],
                    Err(_) => &mut at[step],
                };
            }
            *at = value.clone();
        }
        AuthenticationConfiguration::parse(file.to_string().as_bytes())
    }

    /// S8.16
    #[test]
    fn a_wrong_configuration_names_the_field() {
        file(&[]).unwrap();
        let issuer = |key: &str| format!("jwt.0.issuer.{key}");
        for (path, value, expected) in [
            ("kind".to_owned(), json!("x"), "apiVersion and kind"),
            ("apiVersion".to_owned(), json!("v1"), "apiVersion and kind"),
            ("jwt.0.issuers".to_owned(), json!({}), "unknown field"),
            (issuer("url"), json!("http://issuer"), "jwt[0].issuer.url: must be an https URL"),
            (issuer("url"), json!("https://a@issuer"), "no user"),
            (issuer("url"), json!("https://issuer?x"), "no user, query"),
            (issuer("url"), json!(crate::front::service_account::ISSUER), "service accounts"),
            (issuer("discoveryURL"), json!("https://issuer.example.org"), "must differ"),
            (issuer("audiences"), json!([]), "at least one"),
            (issuer("audiences"), json!(["a", "b"]), "must be MatchAny"),
            (issuer("audienceMatchPolicy"), json!("MatchAll"), "must be MatchAny"),
            ("jwt.0.claimValidationRules".to_owned(), json!([{}]), "either claim"),
            (
                "jwt.0.claimValidationRules".to_owned(),
                json!([{ "claim": "a", "expression": "true" }]),
                "either claim",
            ),
            ("jwt.0.claimMappings.username".to_owned(), json!({}), "claim or expression"),
            (
                "jwt.0.claimMappings.username".to_owned(),
                json!({ "claim": "sub" }),
                "needs a prefix",
            ),
            (
                "jwt.0.claimMappings.groups".to_owned(),
                json!({ "expression": "[]", "prefix": "x" }),
                "a prefix needs a claim",
            ),
            (
                "jwt.0.claimMappings.extra".to_owned(),
                json!([{ "key": "sub.k8s.io/x", "valueExpression": "''" }]),
                "reserved",
            ),
            (
                "jwt.0.claimMappings.extra".to_owned(),
                json!([{ "key": "team", "valueExpression": "''" }]),
                "a domain and a path",
            ),
            (
                "anonymous".to_owned(),
                json!({ "enabled": true, "conditions": [{ "path": "x" }] }),
                "begin with /",
            ),
            (
                "anonymous".to_owned(),
                json!({ "enabled": false, "conditions": [{ "path": "/x" }] }),
                "only if",
            ),
        ] {
            let error = file(&[(&path, value)]).unwrap_err().to_string();
            assert!(error.contains(expected), "{path}: {error}");
        }
    }

    /// S8.16
    #[test]
    fn anonymous_users_may_be_limited_to_paths() {
        let access = |enabled, paths: &[&str]| {
            let conditions = paths.iter().map(|path| AnonymousPath { path: (*path).to_owned() });
            AnonymousAccess { enabled, conditions: conditions.collect() }
        };
        assert!(access(true, &[]).allows("/version"));
        assert!(!access(false, &[]).allows("/version"));
        let limited = access(true, &["/livez", "/readyz"]);
        assert!(limited.allows("/livez") && limited.allows("/readyz"));
        for other in ["/livez/", "/livez/etcd", "/LIVEZ", "/version", ""] {
            assert!(!limited.allows(other), "{other}");
        }
    }

    #[test]
    fn flags_describe_one_issuer() {
        let flags = |claim: &str, prefix: &str| OidcFlags {
            issuer_url: "https://issuer".to_owned(),
            client_id: "c".to_owned(),
            username_claim: claim.to_owned(),
            username_prefix: prefix.to_owned(),
            groups_claim: "groups".to_owned(),
            ..OidcFlags::default()
        };
        for (claim, prefix, expected) in [
            ("sub", "", "https://issuer#"),
            ("email", "", ""),
            ("sub", "-", ""),
            ("email", "oidc:", "oidc:"),
        ] {
            let read = AuthenticationConfiguration::from_flags(flags(claim, prefix)).unwrap();
            let username = &read.jwt[0].claim_mappings.username;
            assert_eq!(username.prefix.as_deref(), Some(expected), "{claim} {prefix}");
        }
    }
}
