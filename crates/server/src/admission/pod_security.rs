//! Pod Security admission: the Pod Security Standards, as the labels of namespaces ask for them.
//!
//! River: validated object → **pod security** → webhooks, store. A pod that violates what its namespace
//! enforces is refused; violations of what it audits and warns about are recorded and returned as
//! warnings. Controllers are only audited and warned about: their pods are refused later.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use headwater_api::status::invalid;
use headwater_api::{Object, Status};
use headwater_json::Value;
use tokio::time::Instant;

use super::{Attempt, is_namespace};
use crate::answer::status;
use crate::kinds::registry::Served;
use crate::object::{meta, tree};
use crate::request::call::Call;
use checks::{PodShape, Violation, details, reasons, violations};
use policy::{LevelVersion, NamespacePolicy, PREFIX, SecurityLevel};

mod checks;
mod policy;
mod rules;

/// The kinds with a pod template, by group and plural, and the path to the template.
const CONTROLLERS: &[(&str, &str, &[&str])] = &[
    ("", "replicationcontrollers", &["spec", "template"]),
    ("", "podtemplates", &["template"]),
    ("apps", "daemonsets", &["spec", "template"]),
    ("apps", "deployments", &["spec", "template"]),
    ("apps", "replicasets", &["spec", "template"]),
    ("apps", "statefulsets", &["spec", "template"]),
    ("batch", "cronjobs", &["spec", "jobTemplate", "spec", "template"]),
    ("batch", "jobs", &["spec", "template"]),
];

/// How many existing pods a new policy is checked against, and for how long.
const EXISTING_MAX: usize = 3000;
const EXISTING_TIME: Duration = Duration::from_secs(1);

/// Whether objects of a kind are checked.
pub(super) fn concerns(kind: &Served) -> bool {
    matches!(&*kind.group, "" | "apps" | "batch")
        && (is_namespace(kind) || is_pod(kind) || path_to_template(kind).is_some())
}

fn is_pod(kind: &Served) -> bool {
    kind.group.is_empty() && kind.plural == "pods"
}

fn path_to_template(kind: &Served) -> Option<&'static [&'static str]> {
    let row = CONTROLLERS.iter().find(|row| row.1 == kind.plural && row.0 == kind.group);
    row.map(|row| row.2)
}

/// Checks an object against the policy of its namespace.
pub(super) async fn check(attempt: &Attempt<'_>, call: &Call) -> Result<(), Status> {
    let kind = attempt.kind;
    if is_namespace(kind) {
        return check_namespace(attempt, call).await;
    }
    let is_pod = is_pod(kind);
    let is_checked = match is_pod {
        true => is_significant(attempt),
        false => attempt.subresource.is_empty(),
    };
    let Some(template) = template(kind, attempt.new).filter(|_| is_checked) else { return Ok(()) };
    let policy = policy_of(attempt)?;
    if policy == NamespacePolicy::NONE {
        return Ok(());
    }
    let pod = PodShape::of(template);
    if is_pod {
        let found = violations(policy.enforce, pod);
        annotate(call, "enforce-policy", &policy.enforce.to_string());
        if !found.is_empty() {
            audit(call, policy.audit, pod);
            let why = format!("violates PodSecurity \"{}\": {}", policy.enforce, details(&found));
            return Err(status::forbidden("", "pods", meta(attempt.new, "name"), &why));
        }
    }
    audit(call, policy.audit, pod);
    // What a namespace enforces on pods, it warns about at once.
    if !is_pod || policy.warn != policy.enforce {
        let found = violations(policy.warn, pod);
        call.warn(would_violate(policy.warn, &found));
    }
    Ok(())
}

/// Whether a write of a pod can change the verdict: its subresources and most updates cannot.
fn is_significant(attempt: &Attempt<'_>) -> bool {
    if !matches!(attempt.subresource, "" | "ephemeralcontainers" | "resize") {
        return false;
    }
    let Some(old) = attempt.old else { return true };
    let images = |pod: &Value, list: &str| -> Vec<Value> {
        let list = pod["spec"][list].as_array().into_iter().flatten();
        list.map(|container| container["image"].clone()).collect()
    };
    let lists = ["containers", "initContainers", "ephemeralContainers"];
    attempt.new["spec"] != old["spec"]
        && lists.iter().any(|list| images(attempt.new, list) != images(old, list))
}

/// The pod in an object: itself or its template.
fn template<'a>(kind: &Served, object: &'a Value) -> Option<&'a Value> {
    if is_pod(kind) {
        return Some(object);
    }
    let found = path_to_template(kind)?.iter().try_fold(object, |value, name| value.get(*name))?;
    found.is_object().then_some(found)
}

/// The policy of the namespace of an object. Most namespaces have none and are not parsed: stored
/// bytes are canonical, so a label is found as text.
fn policy_of(attempt: &Attempt<'_>) -> Result<NamespacePolicy, Status> {
    let namespaces = attempt.cache.snapshot(&attempt.cache.resource("/registry/core/namespaces/"));
    let Some(namespace) = namespaces.get(attempt.namespace) else {
        return Ok(NamespacePolicy::NONE);
    };
    if !says_policy(namespace) {
        return Ok(NamespacePolicy::NONE);
    }
    Ok(NamespacePolicy::of(&tree(namespace.as_slice())?["metadata"]["labels"]).0)
}

fn says_policy(namespace: &Arc<Object>) -> bool {
    std::str::from_utf8(namespace.as_slice()).is_ok_and(|text| text.contains(PREFIX))
}

fn would_violate(policy: LevelVersion, found: &[Violation]) -> Option<String> {
    let say = || format!("would violate PodSecurity \"{policy}\": {}", details(found));
    (!found.is_empty()).then(say)
}

fn audit(call: &Call, policy: LevelVersion, pod: PodShape<'_>) {
    if call.trail.is_none() || policy.level == SecurityLevel::Privileged {
        return;
    }
    if let Some(text) = would_violate(policy, &violations(policy, pod)) {
        annotate(call, "audit-violations", &text);
    }
}

fn annotate(call: &Call, name: &str, value: &str) {
    if let Some(trail) = &call.trail {
        trail.annotate(&format!("{PREFIX}{name}"), value);
    }
}

/// Refuses wrong labels, and warns about existing pods that violate a stricter policy.
async fn check_namespace(attempt: &Attempt<'_>, call: &Call) -> Result<(), Status> {
    let labels = &attempt.new["metadata"]["labels"];
    let before = attempt.old.map(|old| &old["metadata"]["labels"]);
    if !attempt.subresource.is_empty() || before == Some(labels) {
        return Ok(());
    }
    let (policy, errors) = NamespacePolicy::of(labels);
    let (old, old_errors) = before.map_or((policy, Vec::new()), NamespacePolicy::of);
    let name = meta(attempt.new, "name");
    if !errors.is_empty() && (before.is_none() || errors != old_errors) {
        return Err(invalid("", "Namespace", name, &errors));
    }
    let (new, old) = (policy.enforce, old.enforce);
    let is_stricter = new.minor != old.minor || new.level > old.level;
    if new.level > SecurityLevel::Privileged && is_stricter {
        call.warn(existing_violations(attempt, name, new).await?);
    }
    Ok(())
}

/// What to say about the pods of a namespace that violate a policy.
async fn existing_violations(
    attempt: &Attempt<'_>,
    namespace: &str,
    policy: LevelVersion,
) -> Result<Vec<String>, Status> {
    let pods = by_priority(attempt, namespace);
    let deadline = Instant::now() + EXISTING_TIME;
    let mut found: BTreeMap<String, (String, usize)> = BTreeMap::new();
    let mut checked = 0;
    for pod in pods.iter().take(EXISTING_MAX) {
        let tree = tree(pod.as_slice())?;
        let violations = violations(policy, PodShape::of(&tree));
        if !violations.is_empty() {
            let name = pod.name().to_owned();
            let (first, count) = found.entry(reasons(&violations)).or_insert((name.clone(), 0));
            *first = name.min(first.clone());
            *count += 1;
        }
        checked += 1;
        // Other requests go on meanwhile.
        tokio::task::yield_now().await;
        if Instant::now() > deadline {
            break;
        }
    }
    let mut warnings = Vec::new();
    if checked < pods.len() {
        warnings.push(format!(
            "new PodSecurity enforce level only checked against the first {checked} of {} existing pods",
            pods.len()
        ));
    }
    if !found.is_empty() {
        warnings.push(format!(
            "existing pods in namespace \"{namespace}\" violate the new PodSecurity enforce level \"{policy}\""
        ));
    }
    let mut lines: Vec<String> = found.into_iter().map(|(why, pods)| shown(&why, &pods)).collect();
    lines.sort_unstable();
    warnings.extend(lines);
    Ok(warnings)
}

fn shown(why: &str, (first, count): &(String, usize)) -> String {
    match count {
        1 => format!("{first}: {why}"),
        2 => format!("{first} (and 1 other pod): {why}"),
        more => format!("{first} (and {} other pods): {why}", more - 1),
    }
}

/// The pods of a namespace, one of each controller first.
fn by_priority(attempt: &Attempt<'_>, namespace: &str) -> Vec<Arc<Object>> {
    let snapshot = attempt.cache.snapshot(&attempt.cache.resource("/registry/core/pods/"));
    let mut controllers = HashSet::new();
    let (mut first, mut later) = (Vec::new(), Vec::new());
    for pod in snapshot.iter(namespace, None) {
        match controller(pod) {
            Some(uid) if !controllers.insert(uid.clone()) => later.push(Arc::clone(pod)),
            _ => first.push(Arc::clone(pod)),
        }
    }
    first.append(&mut later);
    first
}

/// The uid of the controller of a pod.
fn controller(pod: &Object) -> Option<String> {
    let references = headwater_json::scan::find(pod.as_slice(), &["metadata", "ownerReferences"])?;
    let bytes = &pod.as_slice()[references.start as usize..references.end as usize];
    let owners: Vec<Value> = serde_json::from_slice(bytes).ok()?;
    let controller = owners.into_iter().find(|owner| owner["controller"] == true)?;
    controller["uid"].as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests;
