//! The audit policy: how much of which request is recorded (S8.20).
//!
//! The first rule that matches a request decides; without one nothing is recorded. The file has the
//! format of Kubernetes: `apiVersion: audit.k8s.io/v1`, `kind: Policy`.

use headwater_schema::decode::{self, Format};
use serde::Deserialize;

use crate::front::identity::Identity;
use crate::request::authorize::Attributes;

const API_VERSION: &str = "audit.k8s.io/v1";

/// How much of a request is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Level {
    /// Nothing.
    #[default]
    None,
    /// Who sent what, and the result.
    Metadata,
    /// Also the body of the request.
    Request,
    /// Also the body of the response.
    RequestResponse,
}

impl Level {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Level::None => "None",
            Level::Metadata => "Metadata",
            Level::Request => "Request",
            Level::RequestResponse => "RequestResponse",
        }
    }
}

/// A point in the life of a request at which an event is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) enum Stage {
    /// The user is known, and nothing else has happened.
    RequestReceived,
    /// A watch has begun.
    ResponseStarted,
    /// The response was sent.
    ResponseComplete,
    /// The handler panicked.
    Panic,
}

impl Stage {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Stage::RequestReceived => "RequestReceived",
            Stage::ResponseStarted => "ResponseStarted",
            Stage::ResponseComplete => "ResponseComplete",
            Stage::Panic => "Panic",
        }
    }
}

/// A policy file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the audit policy is invalid: {0}")]
pub struct InvalidPolicy(String);

/// A policy.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Policy {
    api_version: String,
    kind: String,
    #[serde(default, rename = "metadata")]
    _metadata: serde::de::IgnoredAny,
    #[serde(default)]
    rules: Vec<PolicyRule>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    #[serde(default)]
    omit_managed_fields: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PolicyRule {
    level: Level,
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    user_groups: Vec<String>,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    resources: Vec<GroupResources>,
    #[serde(default)]
    namespaces: Vec<String>,
    #[serde(default, rename = "nonResourceURLs")]
    paths: Vec<String>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    #[serde(default)]
    omit_managed_fields: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GroupResources {
    #[serde(default)]
    group: String,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
}

/// What a policy demands of one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand<'a> {
    pub(super) level: Level,
    pub(super) omit_managed_fields: bool,
    omitted: [&'a [Stage]; 2],
}

impl Demand<'_> {
    pub(super) fn omits(&self, stage: Stage) -> bool {
        self.omitted.iter().any(|stages| stages.contains(&stage))
    }
}

impl Policy {
    /// Reads a policy from YAML or JSON.
    pub fn parse(text: &[u8]) -> Result<Policy, InvalidPolicy> {
        let parsed = decode::parse(Format::Yaml, text);
        let tree = parsed.map_err(|error| InvalidPolicy(error.to_string()))?.value;
        let policy: Policy = serde_json::from_slice(&headwater_json::to_vec(&tree))
            .map_err(|error| InvalidPolicy(error.to_string()))?;
        policy.check().map_err(InvalidPolicy)?;
        Ok(policy)
    }

    fn check(&self) -> Result<(), String> {
        if self.api_version != API_VERSION || self.kind != "Policy" {
            return Err(format!("it must have apiVersion {API_VERSION} and kind Policy"));
        }
        if self.rules.is_empty() {
            return Err("it has no rules".to_owned());
        }
        for (index, rule) in self.rules.iter().enumerate() {
            rule.check().map_err(|why| format!("rules[{index}]: {why}"))?;
        }
        Ok(())
    }

    /// What is recorded of a request. A request that failed authentication has no user.
    pub(super) fn demand(
        &self,
        user: Option<&Identity>,
        attributes: &Attributes<'_>,
    ) -> Demand<'_> {
        let rule = self.rules.iter().find(|rule| rule.matches(user, attributes));
        Demand {
            level: rule.map_or(Level::None, |rule| rule.level),
            omit_managed_fields: rule
                .and_then(|rule| rule.omit_managed_fields)
                .unwrap_or(self.omit_managed_fields),
            omitted: [&self.omit_stages, rule.map_or(&[], |rule| &rule.omit_stages)],
        }
    }
}

impl PolicyRule {
    fn check(&self) -> Result<(), String> {
        let of_resources = !self.resources.is_empty() || !self.namespaces.is_empty();
        if of_resources && !self.paths.is_empty() {
            return Err("resources and nonResourceURLs exclude each other".to_owned());
        }
        for path in &self.paths {
            let star = path.find('*').is_some_and(|at| at + 1 != path.len());
            if star || (path != "*" && !path.starts_with('/')) {
                return Err(format!(
                    "{path:?} must begin with \"/\" and have \"*\" only at its end"
                ));
            }
        }
        for resources in &self.resources {
            if !resources.resource_names.is_empty() && resources.resources.is_empty() {
                return Err("resourceNames need resources".to_owned());
            }
            if resources.group.contains('/') {
                return Err(format!("the group {:?} contains a version", resources.group));
            }
        }
        Ok(())
    }

    fn matches(&self, user: Option<&Identity>, attributes: &Attributes<'_>) -> bool {
        let is_user =
            self.users.is_empty() || user.is_some_and(|user| self.users.contains(&user.user));
        let is_group = self.user_groups.is_empty()
            || user.is_some_and(|user| self.user_groups.iter().any(|group| user.is_in(group)));
        is_user && is_group && self.covers(attributes)
    }

    fn covers(&self, attributes: &Attributes<'_>) -> bool {
        let of_resources = !self.resources.is_empty() || !self.namespaces.is_empty();
        let is_verb = |verb: &str| self.verbs.is_empty() || self.verbs.iter().any(|v| v == verb);
        match attributes {
            Attributes::Path { verb, path } => {
                let is_path =
                    self.paths.is_empty() || self.paths.iter().any(|rule| covers_path(rule, path));
                is_verb(verb) && !of_resources && is_path
            }
            Attributes::Resource {
                verb, group, resource, subresource, namespace, name, ..
            } => {
                let is_namespace =
                    self.namespaces.is_empty() || self.namespaces.iter().any(|n| n == namespace);
                let is_resource = self.resources.is_empty()
                    || self
                        .resources
                        .iter()
                        .any(|rule| rule.covers(group, resource, subresource, name));
                is_verb(verb) && self.paths.is_empty() && is_namespace && is_resource
            }
        }
    }
}

impl GroupResources {
    fn covers(&self, group: &str, resource: &str, subresource: &str, name: &str) -> bool {
        if self.group != group {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        let is_name =
            self.resource_names.is_empty() || self.resource_names.iter().any(|n| n == name);
        is_name && self.resources.iter().any(|rule| covers_resource(rule, resource, subresource))
    }
}

/// `pods`, `pods/log`, `pods/*`, `*/status` or `*`. A plain resource does not include its
/// subresources.
fn covers_resource(rule: &str, resource: &str, subresource: &str) -> bool {
    match rule.split_once('/') {
        None => rule == "*" || (rule == resource && subresource.is_empty()),
        Some(("*", part)) => part == subresource,
        Some((whole, "*")) => whole == resource,
        Some((whole, part)) => whole == resource && part == subresource,
    }
}

fn covers_path(rule: &str, path: &str) -> bool {
    match rule.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => rule == path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: [system:kube-proxy]
  verbs: [watch]
  resources:
  - group: ''
    resources: [endpoints, services]
- level: None
  userGroups: [system:authenticated]
  nonResourceURLs: ['/api*', /version]
- level: Request
  resources:
  - group: ''
    resources: [configmaps]
  namespaces: [kube-system]
- level: RequestResponse
  resources:
  - group: apps
    resources: ['*/scale']
    resourceNames: [web]
- level: Metadata
  omitStages: [ResponseStarted]
  omitManagedFields: true
  resources:
  - group: ''
    resources: [secrets, pods/*]
- level: Metadata
  verbs: [delete]
";

    fn resource<'a>(text: &'a str, namespace: &'a str, name: &'a str) -> Attributes<'a> {
        let (verb, rest) = text.split_once(' ').unwrap();
        let (group, rest) = rest.split_once(':').unwrap();
        let (resource, subresource) = rest.split_once('/').unwrap_or((rest, ""));
        Attributes::Resource { verb, group, resource, subresource, namespace, name }
    }

    #[track_caller]
    fn check(user: &str, attributes: &Attributes<'_>, expected: Level) {
        let policy = Policy::parse(SAMPLE.as_bytes()).unwrap();
        let user = Identity::authenticated(user, Vec::new());
        assert_eq!(policy.demand(Some(&user), attributes).level, expected, "{attributes:?}");
    }

    #[test]
    fn the_first_matching_rule_decides() {
        let proxy = "system:kube-proxy";
        check(proxy, &resource("watch :services", "", ""), Level::None);
        check(proxy, &resource("delete :services", "a", "b"), Level::Metadata);
        check("eva", &Attributes::Path { verb: "delete", path: "/apis" }, Level::None);
        check("eva", &Attributes::Path { verb: "delete", path: "/versions" }, Level::Metadata);
        check("eva", &resource("get :configmaps", "kube-system", "x"), Level::Request);
        check("eva", &resource("get :configmaps", "default", "x"), Level::None);
        check(
            "eva",
            &resource("update apps:deployments/scale", "a", "web"),
            Level::RequestResponse,
        );
        check("eva", &resource("update apps:deployments/scale", "a", "db"), Level::None);
        check("eva", &resource("get :secrets", "a", "b"), Level::Metadata);
        check("eva", &resource("get :secrets/status", "a", "b"), Level::None);
        check("eva", &resource("get :pods/log", "a", "b"), Level::Metadata);
        check("eva", &resource("get :pods", "a", "b"), Level::Metadata);
    }

    #[test]
    fn rules_without_users_match_requests_that_failed_authentication() {
        let policy = Policy::parse(SAMPLE.as_bytes()).unwrap();
        let path = Attributes::Path { verb: "get", path: "/version" };
        assert_eq!(policy.demand(None, &path).level, Level::None);
        let secret = resource("get :secrets", "a", "b");
        let demand = policy.demand(None, &secret);
        assert_eq!(demand.level, Level::Metadata);
        assert!(demand.omits(Stage::RequestReceived) && demand.omits(Stage::ResponseStarted));
        assert!(!demand.omits(Stage::ResponseComplete) && demand.omit_managed_fields);
    }

    #[test]
    fn an_invalid_policy_is_refused_with_the_reason() {
        for (text, expected) in [
            ("kind: Policy", "missing field `apiVersion`"),
            (
                "{apiVersion: audit.k8s.io/v1, kind: Policies, rules: [{level: None}]}",
                "kind Policy",
            ),
            ("{apiVersion: audit.k8s.io/v1, kind: Policy}", "no rules"),
            ("{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: All}]}", "All"),
            (
                "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: None, user: [a]}]}",
                "user",
            ),
            (
                "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: \
                 [{level: None, namespaces: [a], nonResourceURLs: [/a]}]}",
                "exclude each other",
            ),
            (
                "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: \
                 [{level: None, nonResourceURLs: ['/a*b']}]}",
                "only at its end",
            ),
        ] {
            let error = Policy::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
