//! The default roles and bindings as a table of text.
//!
//! River: table → **defaults** → the objects that a start creates; the fixed rights of nodes.

use headwater_json::{Value, json};

use super::GROUP;
use crate::object::meta;

/// The table of Kubernetes' defaults; its head describes the format.
pub(crate) const TABLE: &str = include_str!("defaults.txt");

/// The annotation that lets a start complete an object, or keeps it from doing so.
pub(crate) const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

/// The prefix of the labels of aggregated roles.
const AGGREGATE: &str = "rbac.authorization.k8s.io/";

/// A default role or binding.
pub(crate) struct DefaultRole {
    pub(crate) plural: &'static str,
    pub(crate) value: Value,
}

/// The objects of a table.
pub(crate) fn read(table: &str) -> Vec<DefaultRole> {
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

    #[test]
    fn the_table_has_every_default_object() {
        let all = read(TABLE);
        let count = |plural: &str| all.iter().filter(|role| role.plural == plural).count();
        assert_eq!(count("clusterroles"), 69);
        assert_eq!(count("clusterrolebindings"), 50);
        assert_eq!(count("roles"), 7);
        assert_eq!(count("rolebindings"), 7);
    }
}
