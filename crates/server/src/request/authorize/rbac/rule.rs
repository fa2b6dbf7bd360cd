//! Policy rules as roles state them, and the question whether some rules cover others.
//!
//! River: role → **rule** → compiled set; escalation checks compare rules with rules.

use std::collections::{HashMap, HashSet};

use headwater_api::query::quote;
use serde::{Deserialize, Deserializer, Serialize};

/// A rule of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PolicyRule {
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) verbs: Vec<String>,
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub(crate) api_groups: Vec<String>,
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub(crate) resources: Vec<String>,
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub(crate) resource_names: Vec<String>,
    #[serde(
        default,
        rename = "nonResourceURLs",
        deserialize_with = "nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub(crate) non_resource_urls: Vec<String>,
}

/// A list that may be `null`.
pub(crate) fn nullable<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn has(list: &[String], item: &str) -> bool {
    list.iter().any(|held| held == item)
}

fn has_all(list: &[String], items: &[String]) -> bool {
    has(list, "*") || items.iter().all(|item| has(list, item))
}

impl PolicyRule {
    /// Every right: on resources, and on paths.
    pub(crate) fn everything() -> [PolicyRule; 2] {
        let all = || vec!["*".to_owned()];
        [
            PolicyRule {
                verbs: all(),
                api_groups: all(),
                resources: all(),
                ..PolicyRule::default()
            },
            PolicyRule { verbs: all(), non_resource_urls: all(), ..PolicyRule::default() },
        ]
    }

    /// The rules with one group, resource, verb and name, or one path and verb, each.
    fn parts(&self) -> Vec<PolicyRule> {
        let one = |text: &String| vec![text.clone()];
        let mut parts = Vec::new();
        for group in &self.api_groups {
            for resource in &self.resources {
                for verb in &self.verbs {
                    let part = PolicyRule {
                        verbs: one(verb),
                        api_groups: one(group),
                        resources: one(resource),
                        ..PolicyRule::default()
                    };
                    if self.resource_names.is_empty() {
                        parts.push(part);
                        continue;
                    }
                    parts.extend(
                        self.resource_names
                            .iter()
                            .map(|name| PolicyRule { resource_names: one(name), ..part.clone() }),
                    );
                }
            }
        }
        for path in &self.non_resource_urls {
            for verb in &self.verbs {
                let non_resource_urls = one(path);
                let part =
                    PolicyRule { verbs: one(verb), non_resource_urls, ..PolicyRule::default() };
                parts.push(part);
            }
        }
        parts
    }

    /// Whether this rule grants all of a part.
    fn covers(&self, part: &PolicyRule) -> bool {
        let covers_resource = |wanted: &String| {
            has(&self.resources, "*")
                || has(&self.resources, wanted)
                || wanted.split_once('/').is_some_and(|(_, subresource)| {
                    has(&self.resources, &format!("*/{subresource}"))
                })
        };
        let covers_path = |wanted: &String| {
            self.non_resource_urls.iter().any(|held| {
                held == wanted
                    || (held.ends_with('*') && wanted.starts_with(held.trim_end_matches('*')))
            })
        };
        let covers_names = self.resource_names.is_empty()
            || (!part.resource_names.is_empty()
                && part.resource_names.iter().all(|name| has(&self.resource_names, name)));
        has_all(&self.verbs, &part.verbs)
            && has_all(&self.api_groups, &part.api_groups)
            && part.resources.iter().all(covers_resource)
            && part.non_resource_urls.iter().all(covers_path)
            && covers_names
    }

    /// The rule as messages show it.
    fn describe(&self) -> String {
        let mut parts = Vec::new();
        for (name, list) in [
            ("APIGroups", &self.api_groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.non_resource_urls),
            ("ResourceNames", &self.resource_names),
            ("Verbs", &self.verbs),
        ] {
            if !list.is_empty() {
                parts.push(format!("{name}:{}", quoted(list)));
            }
        }
        format!("{{{}}}", parts.join(", "))
    }
}

/// A list of strings as Go prints it: `["a" "b"]`.
pub(crate) fn quoted(list: &[String]) -> String {
    let list: Vec<String> = list.iter().map(|text| quote(text)).collect();
    format!("[{}]", list.join(" "))
}

/// The number of permissions that one check compares one by one. Rules with more of them must be
/// covered each by one rule.
const PARTS_MAX: usize = 65_536;

/// The number of words that one check compares. What is not compared counts as not held.
const COMPARISONS_MAX: usize = 1 << 26;

/// The parts of `wanted` that no rule of `held` grants; parts that differ in their verbs only are
/// one rule.
pub(crate) fn not_held(held: &[PolicyRule], wanted: &[PolicyRule]) -> Vec<PolicyRule> {
    let mut missing = Vec::new();
    let mut left = PARTS_MAX;
    let mut comparisons = COMPARISONS_MAX;
    let words: usize = held.iter().map(PolicyRule::words).sum();
    for rule in wanted {
        let whole = rule.words().saturating_mul(words);
        let each = rule.count().saturating_mul(words);
        match comparisons.checked_sub(whole) {
            None => {
                missing.push(rule.clone());
                continue;
            }
            Some(rest) => comparisons = rest,
        }
        if rule.is_of_one_kind() && held.iter().any(|held| held.covers(rule)) {
            continue;
        }
        match left.checked_sub(rule.count()).zip(comparisons.checked_sub(each)) {
            None => missing.push(rule.clone()),
            Some(rest) => {
                (left, comparisons) = rest;
                let parts = rule.parts().into_iter();
                missing.extend(parts.filter(|part| !held.iter().any(|held| held.covers(part))));
            }
        }
    }
    compacted(missing)
}

/// Rules with one group, one resource and at most one name are joined if they differ in their
/// verbs only.
fn compacted(rules: Vec<PolicyRule>) -> Vec<PolicyRule> {
    let mut compact: Vec<PolicyRule> = Vec::new();
    let mut places: HashMap<_, (usize, HashSet<String>)> = HashMap::new();
    for rule in rules {
        let is_simple = rule.non_resource_urls.is_empty()
            && rule.resources.len() == 1
            && rule.api_groups.len() == 1
            && rule.resource_names.len() <= 1;
        let place = (rule.api_groups.clone(), rule.resources.clone(), rule.resource_names.clone());
        match places.get_mut(&place).filter(|_| is_simple) {
            Some((at, known)) => {
                let verbs = rule.verbs.into_iter().filter(|verb| known.insert(verb.clone()));
                compact[*at].verbs.extend(verbs);
            }
            None => {
                if is_simple {
                    let known = rule.verbs.iter().cloned().collect();
                    places.insert(place, (compact.len(), known));
                }
                compact.push(rule);
            }
        }
    }
    compact
}

/// The same as text, sorted; empty if all are held.
pub(crate) fn not_covered(held: &[PolicyRule], wanted: &[PolicyRule]) -> Vec<String> {
    let missing = not_held(held, wanted);
    let mut described: Vec<String> = missing.iter().map(PolicyRule::describe).collect();
    described.sort_unstable();
    described.dedup();
    described
}

/// The message about rights that a user tries to grant and does not hold.
pub(crate) fn escalation(user: &str, groups: &[String], missing: &[String]) -> String {
    let (user, groups, missing) = (quote(user), quoted(groups), missing.join("\n"));
    format!(
        "user {user} (groups={groups}) is attempting to grant RBAC permissions not currently \
         held:\n{missing}"
    )
}

impl PolicyRule {
    /// The number of its parts.
    fn count(&self) -> usize {
        let names = self.resource_names.len().max(1);
        [self.api_groups.len(), self.resources.len(), names]
            .iter()
            .fold(1_usize, |product, count| product.saturating_mul(*count))
            .saturating_add(self.non_resource_urls.len())
            .saturating_mul(self.verbs.len())
    }

    /// The number of words in all lists.
    fn words(&self) -> usize {
        let PolicyRule { verbs, api_groups, resources, resource_names, non_resource_urls } = self;
        [verbs, api_groups, resources, resource_names, non_resource_urls]
            .iter()
            .map(|list| list.len())
            .sum()
    }

    /// Whether it is about resources or about paths, not both and not neither.
    fn is_of_one_kind(&self) -> bool {
        let is_about_resources = !self.api_groups.is_empty() && !self.resources.is_empty();
        is_about_resources == self.non_resource_urls.is_empty()
    }

    /// The definition of a match, without compilation: the model of the compiled set.
    #[cfg(test)]
    pub(super) fn allows_text(&self, request: &str) -> bool {
        let parts: Vec<&str> = request.split(' ').collect();
        let any = |list: &[String], item: &str| has(list, "*") || has(list, item);
        match parts.as_slice() {
            [verb, path] => {
                any(&self.verbs, verb)
                    && self.non_resource_urls.iter().any(|url| match url.strip_suffix('*') {
                        Some(prefix) => path.starts_with(prefix),
                        None => url == path,
                    })
            }
            [verb, group, resource, name] => {
                let group = if *group == "core" { "" } else { group };
                let sub = resource.split_once('/').map(|(_, sub)| format!("*/{sub}"));
                any(&self.verbs, verb)
                    && any(&self.api_groups, group)
                    && (any(&self.resources, resource)
                        || sub.is_some_and(|sub| has(&self.resources, &sub)))
                    && (self.resource_names.is_empty() || has(&self.resource_names, name))
            }
            _ => panic!("{request}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(verbs: &str, groups: &str, resources: &str, names: &str) -> PolicyRule {
        let list = |text: &str| match text {
            "" => Vec::new(),
            text => text.split(',').map(|word| word.replace("core", "")).collect(),
        };
        PolicyRule {
            verbs: list(verbs),
            api_groups: list(groups),
            resources: list(resources),
            resource_names: list(names),
            ..PolicyRule::default()
        }
    }

    fn paths(verbs: &str, urls: &[&str]) -> PolicyRule {
        PolicyRule {
            non_resource_urls: urls.iter().map(|url| (*url).to_owned()).collect(),
            ..rule(verbs, "", "", "")
        }
    }

    #[track_caller]
    fn check(held: &[PolicyRule], wanted: PolicyRule, missing: &[&str]) {
        assert_eq!(not_covered(held, &[wanted]), missing);
    }

    /// B137: with a comparison of each pair, this test does not end.
    #[test]
    fn many_words_are_compared_within_a_budget() {
        let words = |count: usize| (0..count).map(|n| format!("w{n}")).collect::<Vec<_>>();
        let many = PolicyRule { verbs: words(60_000), ..rule("", "core", "pods", "") };
        assert_eq!(not_held(&[], &[many]).len(), 1);
        let held = [PolicyRule { resources: words(30_000), ..rule("get", "core", "", "") }];
        let one =
            |word: String| PolicyRule { resources: vec![word], ..rule("get", "core", "", "") };
        let wanted: Vec<PolicyRule> = words(30_000).into_iter().map(one).collect();
        assert!(not_held(&held, &wanted[..100]).is_empty());
        // What exceeds the budget is not granted.
        assert!(!not_held(&held, &wanted).is_empty());
    }

    /// S8.12
    #[test]
    fn what_is_not_held_is_described_with_its_verbs_together() {
        let held = [rule("get,list", "core", "pods", ""), rule("*", "apps", "*/scale", "")];
        check(&held, rule("get", "core", "pods", ""), &[]);
        check(&held, rule("get", "core", "pods", "a"), &[]);
        check(
            &held,
            rule("get,watch", "core", "pods", ""),
            &[r#"{APIGroups:[""], Resources:["pods"], Verbs:["watch"]}"#],
        );
        check(
            &held,
            rule("get,watch,delete", "core,apps", "pods", "x"),
            &[
                r#"{APIGroups:[""], Resources:["pods"], ResourceNames:["x"], Verbs:["watch" "delete"]}"#,
                r#"{APIGroups:["apps"], Resources:["pods"], ResourceNames:["x"], Verbs:["get" "watch" "delete"]}"#,
            ],
        );
        check(&held, rule("update", "apps", "deployments/scale", ""), &[]);
        check(&held, rule("*", "apps", "deployments/scale", ""), &[]);
        let all = r#"{APIGroups:["*"], Resources:["*"], Verbs:["*"]}"#;
        check(&held, rule("*", "*", "*", ""), &[all]);
        check(&PolicyRule::everything(), rule("*", "*", "*", ""), &[]);
        // A right on one name is no right on all names.
        let named = [rule("get", "core", "pods", "a")];
        let missing = r#"{APIGroups:[""], Resources:["pods"], Verbs:["get"]}"#;
        check(&named, rule("get", "core", "pods", ""), &[missing]);
    }

    #[test]
    fn several_rules_together_cover_one() {
        let held = [rule("get", "core", "pods", ""), rule("list", "core", "pods", "")];
        check(&held, rule("get,list", "core", "pods", ""), &[]);
    }

    #[test]
    fn paths_are_covered_by_a_star_at_the_end() {
        let held = [paths("get", &["/debug/*", "/x"])];
        check(&held, paths("get", &["/debug/pprof", "/debug/*", "/x"]), &[]);
        check(&held, paths("get", &["/y"]), &[r#"{NonResourceURLs:["/y"], Verbs:["get"]}"#]);
        check(&held, paths("get", &["*"]), &[r#"{NonResourceURLs:["*"], Verbs:["get"]}"#]);
    }

    #[test]
    fn a_rule_with_a_huge_product_is_compared_as_a_whole() {
        let many = |prefix: &str| (0..9_000).map(|n| format!("{prefix}{n}")).collect::<Vec<_>>();
        let huge = PolicyRule {
            verbs: vec!["get".into()],
            api_groups: many("g"),
            resources: many("r"),
            ..PolicyRule::default()
        };
        check(&[rule("*", "*", "*", "")], huge.clone(), &[]);
        let held = [rule("get", "core", "pods", "")];
        assert_eq!(not_held(&held, std::slice::from_ref(&huge)), [huge]);
    }
}
