//! Rules of API priority and fairness.

use headwater_json::Value;

use super::{Check, Object, Path, list, map, number, shown, shown_text, text};
use headwater_api::name;

pub(super) fn flow_schema(check: &mut Check<'_>, schema: &Object, path: &Path<'_>) {
    let name = map(schema, "metadata").map_or("", |metadata| text(metadata, "name"));
    let precedence = map(schema, "spec").and_then(|spec| number(spec, "matchingPrecedence"));
    if precedence == Some(1) && name != "exempt" {
        let why = "only the schema named 'exempt' may have matchingPrecedence 1";
        check.invalid(path.field("spec").field("matchingPrecedence"), &1.into(), why);
    }
}

pub(super) fn flow_rules(check: &mut Check<'_>, rule: &Object, path: &Path<'_>) {
    if list(rule, "resourceRules").is_empty() && list(rule, "nonResourceRules").is_empty() {
        let why = "at least one of resourceRules and nonResourceRules has to be non-empty";
        check.required(path, why);
    }
}

pub(super) fn priority_level(check: &mut Check<'_>, level: &Object, path: &Path<'_>) {
    let name = map(level, "metadata").map_or("", |metadata| text(metadata, "name"));
    let Some(spec) = map(level, "spec") else { return };
    if (name == "exempt") != (text(spec, "type") == "Exempt") {
        let why = "must be 'Exempt' if and only if `name` is 'exempt'";
        check.invalid(path.field("spec").field("type"), &shown_text(spec, "type"), why);
    }
}

/// Leaves out the part of a level that is not of its type: there it is forbidden, or the type is unknown.
pub(super) fn level_parts(check: &mut Check<'_>, spec: &Object, _: &Path<'_>) {
    for (part, of) in [("limited", "Limited"), ("exempt", "Exempt")] {
        if text(spec, "type") != of {
            check.skip(part);
        }
    }
}

/// The bits of a hash from which hands are dealt.
const HASH_BITS_MAX: f64 = 60.0;

/// Checks that a hand fits its deck, where requests queue.
pub(super) fn queuing(check: &mut Check<'_>, response: &Object, path: &Path<'_>) {
    if text(response, "type") != "Queue" {
        check.skip("queuing");
        return;
    }
    let Some(queuing) = map(response, "queuing") else { return };
    let path = path.field("queuing");
    let (queues, hand) = (number(queuing, "queues"), number(queuing, "handSize"));
    let (Some(queues), Some(hand)) = (queues, hand.filter(|hand| *hand > 0)) else { return };
    let at = path.field("handSize");
    if hand > queues {
        let why = format!("should not be greater than queues ({queues})");
        check.invalid(at, &hand.into(), &why);
    } else if entropy(queues, hand) > HASH_BITS_MAX {
        let why = format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than 60"
        );
        check.invalid(at, &hand.into(), &why);
    }
}

/// The bits of a hash that dealing a hand takes, estimated as Kubernetes does.
fn entropy(deck: i64, hand: i64) -> f64 {
    ((deck as f64).log2() * hand as f64).ceil()
}

const VERBS: [&str; 10] = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "proxy",
    "update",
    "watch",
    "*",
];

/// Verbs: known ones, or `*` alone.
fn verbs(check: &mut Check<'_>, rule: &Object, path: &Path<'_>) {
    let verbs = list(rule, "verbs");
    alone(check, rule, "verbs", "verbs", path);
    let is_known = |verb: &Value| verb.as_str().is_some_and(|verb| VERBS.contains(&verb));
    if !has_star(verbs) && !verbs.iter().all(is_known) {
        let supported: Vec<&str> = VERBS.into_iter().filter(|verb| *verb != "*").collect();
        check.not_supported(path.field("verbs"), &shown(rule, "verbs"), &supported);
    }
}

fn has_star(items: &[Value]) -> bool {
    items.iter().any(|item| item == "*")
}

/// Checks that `*` stands alone.
fn alone(check: &mut Check<'_>, rule: &Object, name: &str, others: &str, path: &Path<'_>) {
    let items = list(rule, name);
    if items.len() > 1 && has_star(items) {
        let why = format!("if '*' is present, must not specify other {others}");
        check.invalid(path.field(name), &shown(rule, name), &why);
    }
}

pub(super) fn resource_rule(check: &mut Check<'_>, rule: &Object, path: &Path<'_>) {
    verbs(check, rule, path);
    alone(check, rule, "apiGroups", "api groups", path);
    alone(check, rule, "resources", "resources", path);
    alone(check, rule, "namespaces", "namespaces", path);
    let namespaces = list(rule, "namespaces");
    if has_star(namespaces) {
        return;
    }
    let at = path.field("namespaces");
    for (index, namespace) in namespaces.iter().enumerate() {
        for problem in name::label(namespace.as_str().unwrap_or_default()) {
            let intro = "each member of this list must be '*' or a DNS-1123 label; ";
            check.invalid(at.index(index), namespace, &format!("{intro}{problem}"));
        }
    }
}

pub(super) fn non_resource_rule(check: &mut Check<'_>, rule: &Object, path: &Path<'_>) {
    verbs(check, rule, path);
    alone(check, rule, "nonResourceURLs", "non-resource URLs", path);
    let urls = list(rule, "nonResourceURLs");
    if has_star(urls) {
        return;
    }
    let at = path.field("nonResourceURLs");
    for (index, url) in urls.iter().enumerate() {
        if let Some(why) = url_problem(url.as_str().unwrap_or_default()) {
            check.invalid(at.index(index), url, why);
        }
    }
}

/// What is wrong with a path that may end with `*`.
fn url_problem(url: &str) -> Option<&'static str> {
    if url.is_empty() {
        return Some("must not be empty");
    }
    if url == "/" {
        return None;
    }
    if !url.starts_with('/') {
        return Some("must start with slash");
    }
    if url.contains(' ') {
        return Some("must not contain white-space");
    }
    if url.contains("//") {
        return Some("must not contain double slash");
    }
    let stars = url.matches('*').count();
    let is_at_end = url.ends_with("/*");
    if stars > 1 || stars == 1 && !is_at_end {
        return Some("wildcard can only do suffix matching");
    }
    None
}

pub(super) fn service_account(check: &mut Check<'_>, subject: &Object, path: &Path<'_>) {
    let name = text(subject, "name");
    if !name.is_empty() && name != "*" {
        check.problems(path.field("name"), name, name::subdomain(name));
    }
}
