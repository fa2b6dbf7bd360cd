//! FlowSchemas: which requests belong to one.
//!
//! River: identity, route → **schema** → classification. Subjects and rules have the meaning of S7.3.

use serde::{Deserialize, Deserializer};

use crate::front::identity::Identity;
use crate::request::authorize::Attributes;

/// The default precedence.
const PRECEDENCE: i64 = 1000;

/// The prefix of the user names of service accounts.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

#[derive(Debug, Deserialize)]
pub(super) struct SchemaSpec {
    #[serde(default = "precedence", rename = "matchingPrecedence")]
    pub(super) precedence: i64,
    #[serde(rename = "priorityLevelConfiguration")]
    pub(super) level: Named,
    #[serde(rename = "distinguisherMethod")]
    pub(super) distinguisher: Option<DistinguisherMethod>,
    #[serde(default)]
    rules: Vec<Rule>,
}

fn precedence() -> i64 {
    PRECEDENCE
}

#[derive(Debug, Deserialize)]
pub(super) struct Named {
    pub(super) name: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct DistinguisherMethod {
    #[serde(rename = "type")]
    pub(super) by: Distinguisher,
}

/// What separates the flows of a schema.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub(super) enum Distinguisher {
    ByUser,
    ByNamespace,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Rule {
    subjects: Vec<Subject>,
    resource_rules: Vec<ResourceRule>,
    non_resource_rules: Vec<PathRule>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Subject {
    user: Option<Named>,
    group: Option<Named>,
    service_account: Option<Account>,
}

#[derive(Debug, Deserialize)]
struct Account {
    namespace: String,
    name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ResourceRule {
    #[serde(deserialize_with = "nullable")]
    verbs: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    api_groups: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    resources: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    namespaces: Vec<String>,
    cluster_scope: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PathRule {
    #[serde(deserialize_with = "nullable")]
    verbs: Vec<String>,
    #[serde(rename = "nonResourceURLs", deserialize_with = "nullable")]
    paths: Vec<String>,
}

impl SchemaSpec {
    /// Whether a request belongs to the schema.
    pub(super) fn matches(&self, identity: &Identity, attributes: &Attributes<'_>) -> bool {
        self.rules.iter().any(|rule| {
            rule.covers(attributes) && rule.subjects.iter().any(|subject| subject.is(identity))
        })
    }
}

impl Rule {
    fn covers(&self, attributes: &Attributes<'_>) -> bool {
        match attributes {
            Attributes::Path { verb, path } => self
                .non_resource_rules
                .iter()
                .any(|rule| has(&rule.verbs, verb) && rule.paths.iter().any(|p| is_path(p, path))),
            Attributes::Resource { .. } => {
                self.resource_rules.iter().any(|rule| rule.covers(attributes))
            }
        }
    }
}

impl ResourceRule {
    fn covers(&self, attributes: &Attributes<'_>) -> bool {
        let Attributes::Resource { verb, group, resource, subresource, namespace, .. } = attributes
        else {
            return false;
        };
        let place = match *namespace {
            "" => self.cluster_scope,
            namespace => has(&self.namespaces, namespace),
        };
        place
            && has(&self.verbs, verb)
            && has(&self.api_groups, group)
            && self.resources.iter().any(|listed| is_resource(listed, resource, subresource))
    }
}

impl Subject {
    fn is(&self, identity: &Identity) -> bool {
        let fits = |pattern: &str, name: &str| pattern == "*" || pattern == name;
        let user = self.user.as_ref().is_some_and(|user| fits(&user.name, &identity.user));
        let group = self
            .group
            .as_ref()
            .is_some_and(|group| group.name == "*" || identity.groups.contains(&group.name));
        let account = self.service_account.as_ref().is_some_and(|account| {
            let rest = identity.user.strip_prefix(SERVICE_ACCOUNT);
            rest.and_then(|rest| rest.split_once(':')).is_some_and(|(namespace, name)| {
                namespace == account.namespace && fits(&account.name, name)
            })
        });
        user || group || account
    }
}

fn has(list: &[String], word: &str) -> bool {
    list.iter().any(|listed| listed == "*" || listed == word)
}

fn is_resource(listed: &str, resource: &str, subresource: &str) -> bool {
    match (listed, subresource) {
        ("*", _) => true,
        (listed, "") => listed == resource,
        (listed, subresource) => {
            listed.split_once('/').is_some_and(|parts| parts == (resource, subresource))
        }
    }
}

/// `/path`, `/path/*` or `*`.
fn is_path(listed: &str, path: &str) -> bool {
    match listed.strip_suffix("/*") {
        Some(above) => path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/')),
        None => listed == "*" || listed == path,
    }
}

/// A list that may be null: stored objects show empty lists so.
fn nullable<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_json::json;

    #[track_caller]
    fn check(rule: &headwater_json::Value, user: &str, attributes: Attributes<'_>, expected: bool) {
        let spec = json!({ "priorityLevelConfiguration": { "name": "x" }, "rules": [rule] });
        let spec: SchemaSpec = headwater_json::from_value(&spec).unwrap();
        let identity = Identity::authenticated(user, vec!["devs".into()]);
        assert_eq!(spec.matches(&identity, &attributes), expected);
    }

    fn on<'a>(verb: &'a str, resource: &'a str, sub: &'a str, ns: &'a str) -> Attributes<'a> {
        Attributes::Resource {
            verb,
            group: "",
            resource,
            subresource: sub,
            namespace: ns,
            name: "",
        }
    }

    #[test]
    fn subjects_are_told_apart() {
        let rule = |subject: headwater_json::Value| {
            json!({
                "subjects": [subject],
                "nonResourceRules": [{ "verbs": ["*"], "nonResourceURLs": ["*"] }],
            })
        };
        let path = || Attributes::Path { verb: "get", path: "/x" };
        let user = |name: &str| rule(json!({ "kind": "User", "user": { "name": name } }));
        let group = |name: &str| rule(json!({ "kind": "Group", "group": { "name": name } }));
        let account = |namespace: &str, name: &str| {
            let account = json!({ "namespace": namespace, "name": name });
            rule(json!({ "kind": "ServiceAccount", "serviceAccount": account }))
        };
        check(&user("joe"), "joe", path(), true);
        check(&user("jim"), "joe", path(), false);
        check(&user("*"), "joe", path(), true);
        check(&group("devs"), "joe", path(), true);
        check(&group("system:authenticated"), "joe", path(), true);
        check(&group("ops"), "joe", path(), false);
        check(&account("a", "b"), "system:serviceaccount:a:b", path(), true);
        check(&account("a", "*"), "system:serviceaccount:a:c", path(), true);
        check(&account("b", "*"), "system:serviceaccount:a:c", path(), false);
        check(&account("a", "*"), "joe", path(), false);
    }

    #[test]
    fn rules_cover_what_they_say() {
        let rule = |resources: &[&str], namespaces: &[&str], cluster: bool| {
            json!({
                "subjects": [{ "kind": "User", "user": { "name": "joe" } }],
                "resourceRules": [{
                    "verbs": ["list"], "apiGroups": [""], "resources": resources,
                    "namespaces": namespaces, "clusterScope": cluster,
                }],
            })
        };
        check(&rule(&["pods"], &["a"], false), "joe", on("list", "pods", "", "a"), true);
        check(&rule(&["pods"], &["a"], false), "joe", on("watch", "pods", "", "a"), false);
        check(&rule(&["pods"], &["a"], false), "joe", on("list", "pods", "", "b"), false);
        check(&rule(&["pods"], &["*"], false), "joe", on("list", "pods", "", "b"), true);
        check(&rule(&["pods"], &["*"], false), "joe", on("list", "pods", "", ""), false);
        check(&rule(&["pods"], &[], true), "joe", on("list", "pods", "", ""), true);
        check(&rule(&["pods"], &["a"], true), "joe", on("list", "pods", "status", "a"), false);
        check(
            &rule(&["pods/status"], &["a"], true),
            "joe",
            on("list", "pods", "status", "a"),
            true,
        );
        check(&rule(&["*"], &["a"], true), "joe", on("list", "pods", "status", "a"), true);
    }

    #[test]
    fn paths_match_whole_or_below() {
        assert!(is_path("/healthz", "/healthz"));
        assert!(!is_path("/healthz", "/healthz/ping"));
        assert!(is_path("/healthz/*", "/healthz/ping"));
        assert!(!is_path("/healthz/*", "/healthzz"));
        assert!(is_path("*", "/"));
    }
}
