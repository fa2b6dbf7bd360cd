//! The default roles and bindings: created at the start, and kept complete (S10.21).
//!
//! River: start-up → **roles** → store.
//! Promise: rules and subjects that somebody removed come back, those that somebody added stay;
//! an object with the annotation `rbac.authorization.kubernetes.io/autoupdate: "false"` is left alone.

use futures::{StreamExt, TryStreamExt};
use headwater_api::Status;
use headwater_json::{Map, Value, json};
use headwater_store::Key;

use crate::answer::status;
use crate::commit;
use crate::kinds::registry::Served;
use crate::object::{Current, meta, metadata, object_key, part};
use crate::request::authorize::rbac::GROUP;
use crate::request::authorize::rbac::rule::{PolicyRule, not_held};
use crate::server::Server;

/// The table of Kubernetes' defaults; its head describes the format.
const TABLE: &str = include_str!("roles.txt");

/// What the controllers of Headwater need beyond them, in the same format.
const COMPONENTS: &str = include_str!("components.txt");

const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

/// The prefix of the labels of aggregated roles.
const AGGREGATE: &str = "rbac.authorization.k8s.io/";

/// The number of concurrent writes: they share the syncs of the log.
const WRITES_MAX: usize = 64;

/// A default role or binding.
pub(crate) struct DefaultRole {
    pub(crate) plural: &'static str,
    pub(crate) value: Value,
}

impl Server {
    /// Creates missing default roles and bindings, and completes existing ones.
    pub(crate) async fn ensure_roles(&self) -> Result<(), Status> {
        self.cache().consistent().await.map_err(|error| status::from_cache(&error))?;
        self.ensure_all(defaults(TABLE)).await?;
        self.cache().consistent().await.map_err(|error| status::from_cache(&error))?;
        self.aggregate_roles().await
    }

    /// The same for what the controllers of Headwater need when they run beside this server.
    pub async fn ensure_component_roles(&self) -> Result<(), Status> {
        self.ensure_all(defaults(COMPONENTS)).await?;
        self.cache().consistent().await.map(drop).map_err(|error| status::from_cache(&error))
    }

    async fn ensure_all(&self, defaults: Vec<DefaultRole>) -> Result<(), Status> {
        let writes = defaults.into_iter().map(|default| self.ensure_role(default));
        futures::stream::iter(writes).buffer_unordered(WRITES_MAX).try_collect::<()>().await
    }

    async fn ensure_role(
        &self,
        DefaultRole { plural, mut value }: DefaultRole,
    ) -> Result<(), Status> {
        let registry = self.registry();
        let Some(kind) = registry.find(GROUP, "v1", plural) else { return Ok(()) };
        value["kind"] = kind.kind.kind.to_string().into();
        value["apiVersion"] = kind.api_version().into();
        let key = object_key(meta(&value, "namespace"), meta(&value, "name"));
        let snapshot = self.cache().snapshot(&self.cache().resource(&kind.prefix));
        let Some(there) = snapshot.get(&key) else {
            return self.put_own(kind, &key, value, None).await;
        };
        let there = Current::of(there)?;
        if there.value["metadata"]["annotations"][AUTOUPDATE] == "false" {
            return Ok(());
        }
        if there.value["roleRef"] != value["roleRef"] {
            return self.rebind(kind, &key, value, &there).await;
        }
        match completed(&there.value, &value) {
            None => Ok(()),
            Some(new) => self.put_own(kind, &key, new, Some(there)).await,
        }
    }

    /// Replaces a binding that names another role: `roleRef` is immutable.
    async fn rebind(
        &self,
        kind: &Served,
        key: &str,
        value: Value,
        there: &Current,
    ) -> Result<(), Status> {
        let stored = Key::in_collection(&kind.prefix, key);
        commit::remove(self.store(), stored, there.revision).await?;
        self.put_own(kind, key, value, None).await
    }
}

/// An existing object with what it lacks; `None` if it lacks nothing.
fn completed(there: &Value, wanted: &Value) -> Option<Value> {
    let mut new = there.clone();
    for place in ["labels", "annotations"] {
        let wanted = wanted["metadata"][place].as_object().into_iter().flatten();
        let missing: Vec<_> =
            wanted.filter(|(key, _)| there["metadata"][place].get(key).is_none()).collect();
        if missing.is_empty() {
            continue;
        }
        let held = metadata(&mut new).entry(place).or_insert_with(|| Value::Object(Map::new()));
        for (key, value) in missing {
            held[key.as_str()] = value.clone();
        }
    }
    let rules = |value: &Value| -> Vec<PolicyRule> { part(&value["rules"]).unwrap_or_default() };
    let missing = not_held(&rules(there), &rules(wanted));
    append(&mut new, &["rules"], missing.iter().map(|rule| json!(rule)));
    let lacks = |path: &[&str]| {
        let at = |value: &Value| {
            let found = path.iter().fold(value, |value, key| &value[*key]);
            found.as_array().cloned().unwrap_or_default()
        };
        let held = at(there);
        at(wanted).into_iter().filter(|item| !held.contains(item)).collect::<Vec<_>>()
    };
    for path in [&["subjects"][..], &["aggregationRule", "clusterRoleSelectors"]] {
        append(&mut new, path, lacks(path).into_iter());
    }
    (new != *there).then_some(new)
}

/// Adds items to a list, which is made if there is none.
fn append(value: &mut Value, path: &[&str], items: impl ExactSizeIterator<Item = Value>) {
    if items.len() == 0 {
        return;
    }
    let list = path.iter().fold(value, |value, key| &mut value[*key]);
    match list.as_array_mut() {
        Some(list) => list.extend(items),
        None => *list = Value::Array(items.collect()),
    }
}

/// The objects of a table.
fn defaults(table: &str) -> Vec<DefaultRole> {
    let mut defaults: Vec<DefaultRole> = Vec::new();
    for line in table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(rule) = line.strip_prefix("  ") {
            let role = defaults.last_mut().expect("a rule follows its role");
            read_rule(&mut role.value, rule);
            continue;
        }
        let words: Vec<&str> = line.split(' ').collect();
        defaults.push(match words.as_slice() {
            ["clusterrole", name, labels @ ..] => {
                let mut role = default("clusterroles", "", name);
                for label in labels {
                    role.value["metadata"]["labels"][format!("{AGGREGATE}{label}")] = "true".into();
                }
                role
            }
            ["role", namespace, name] => default("roles", namespace, name),
            ["bind", name, rest @ ..] => bind(default("clusterrolebindings", "", name), rest),
            ["bind-in", namespace, name, rest @ ..] => {
                bind(default("rolebindings", namespace, name), rest)
            }
            _ => panic!("the table of roles has a malformed line: {line}"),
        });
    }
    defaults
}

fn default(plural: &'static str, namespace: &str, name: &str) -> DefaultRole {
    let mut value = json!({
        "metadata": {
            "name": name,
            "labels": { "kubernetes.io/bootstrapping": "rbac-defaults" },
            "annotations": { AUTOUPDATE: "true" },
        },
    });
    if !namespace.is_empty() {
        value["metadata"]["namespace"] = namespace.into();
    }
    if matches!(plural, "clusterroles" | "roles") {
        value["rules"] = Value::Null;
    }
    DefaultRole { plural, value }
}

fn read_rule(role: &mut Value, line: &str) {
    let list = |text: &str| -> Value {
        text.split(',').map(|word| if word == "core" { "" } else { word }).collect()
    };
    let words: Vec<&str> = line.split(' ').collect();
    let rule = match words.as_slice() {
        ["from", label] => {
            let labels = json!({ format!("{AGGREGATE}{label}"): "true" });
            role["aggregationRule"] =
                json!({ "clusterRoleSelectors": [{ "matchLabels": labels }] });
            return;
        }
        [verbs, "path", urls] => json!({ "verbs": list(verbs), "nonResourceURLs": list(urls) }),
        [verbs, groups, resources, names @ ..] => {
            let mut rule = json!({
                "verbs": list(verbs), "apiGroups": list(groups), "resources": list(resources),
            });
            if let [names] = names {
                rule["resourceNames"] = list(names);
            }
            rule
        }
        _ => panic!("the table of roles has a malformed rule: {line}"),
    };
    match role["rules"].as_array_mut() {
        Some(rules) => rules.push(rule),
        None => role["rules"] = json!([rule]),
    }
}

fn bind(mut binding: DefaultRole, words: &[&str]) -> DefaultRole {
    let own = meta(&binding.value, "name").to_owned();
    let (role, subjects) = match words {
        ["=", role, subjects @ ..] => (*role, subjects),
        subjects => (own.as_str(), subjects),
    };
    let kind = match binding.plural {
        "rolebindings" => "Role",
        _ => "ClusterRole",
    };
    binding.value["roleRef"] = json!({ "apiGroup": GROUP, "kind": kind, "name": role });
    let subject = |text: &&str| match text.split_once(':') {
        Some(("account", account)) => {
            let (namespace, name) = account.split_once('/').expect("namespace/name");
            json!({ "kind": "ServiceAccount", "name": name, "namespace": namespace })
        }
        Some(("user", name)) => json!({ "apiGroup": GROUP, "kind": "User", "name": name }),
        Some(("group", name)) => json!({ "apiGroup": GROUP, "kind": "Group", "name": name }),
        _ => panic!("the table of roles has a malformed subject: {text}"),
    };
    if !subjects.is_empty() {
        binding.value["subjects"] = subjects.iter().map(subject).collect();
    }
    binding
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(plural: &str, name: &str) -> Value {
        let mut all = defaults(TABLE).into_iter();
        let found = all.find(|role| role.plural == plural && meta(&role.value, "name") == name);
        found.unwrap().value
    }

    #[test]
    fn the_table_has_every_default_object() {
        let all = defaults(TABLE);
        let count = |plural: &str| all.iter().filter(|role| role.plural == plural).count();
        assert_eq!(count("clusterroles"), 69);
        assert_eq!(count("clusterrolebindings"), 50);
        assert_eq!(count("roles"), 7);
        assert_eq!(count("rolebindings"), 7);
    }

    #[test]
    fn every_component_role_is_bound_once() {
        let all = defaults(COMPONENTS);
        let names = |plural: &str| {
            let of = all.iter().filter(|role| role.plural == plural);
            of.map(|role| meta(&role.value, "name").to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names("clusterroles"), names("clusterrolebindings"));
    }

    #[test]
    fn a_complete_object_stays_as_it_is_and_additions_are_kept() {
        let role = named("clusterroles", "system:discovery");
        assert_eq!(completed(&role, &role), None);
        let mut extended = role.clone();
        let more = json!({ "verbs": ["get"], "nonResourceURLs": ["/metrics"] });
        extended["rules"].as_array_mut().unwrap().push(more.clone());
        extended["metadata"]["labels"]["mine"] = "x".into();
        assert_eq!(completed(&extended, &role), None);

        let mut reduced = extended.clone();
        reduced["rules"].as_array_mut().unwrap().remove(0);
        reduced["metadata"]["labels"]
            .as_object_mut()
            .unwrap()
            .remove("kubernetes.io/bootstrapping");
        let new = completed(&reduced, &role).unwrap();
        assert_eq!(new["rules"][0], more);
        assert_eq!(completed(&new, &role), None);
        assert_eq!(new["metadata"]["labels"]["mine"], "x");
    }

    #[test]
    fn a_removed_subject_comes_back() {
        let binding = named("clusterrolebindings", "system:public-info-viewer");
        let mut reduced = binding.clone();
        let joe = json!({ "kind": "User", "name": "joe" });
        reduced["subjects"] = json!([joe]);
        let new = completed(&reduced, &binding).unwrap();
        assert_eq!(new["subjects"].as_array().unwrap().len(), 3);
        assert_eq!(new["subjects"][0], joe);
    }
}
