//! Limit ranges: default and allowed resources of the pods and volume claims of a namespace.
//!
//! River: defaults → **defaults of the namespace** → webhooks; validation → **limits** → store.

use headwater_api::Status;
use headwater_api::quantity::Quantity;
use headwater_cache::Cache;
use headwater_json::{Value, json};

use super::resources::{Amounts, ResourceList, amounts, containers, of_container, of_pod};
use super::{Admit, Attempt};
use crate::answer::status;
use crate::object::{is_deleting, meta, metadata, tree};

const PREFIX: &str = "/registry/core/limitranges/";
const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// The limit ranges that apply to an object: those of its namespace, if it is new.
fn ranges(attempt: &Attempt<'_>) -> Vec<Value> {
    let kind = attempt.kind;
    let is_met = kind.group.is_empty()
        && match &*kind.plural {
            "pods" => attempt.old.is_none() || attempt.subresource == "resize",
            "persistentvolumeclaims" => attempt.subresource.is_empty(),
            _ => false,
        };
    if !is_met || attempt.old.is_some_and(is_deleting) {
        return Vec::new();
    }
    of_namespace(attempt.cache, attempt.namespace)
}

fn of_namespace(cache: &Cache, namespace: &str) -> Vec<Value> {
    let snapshot = cache.snapshot(&cache.resource(PREFIX));
    if snapshot.is_empty() {
        return Vec::new();
    }
    snapshot.iter(namespace, None).filter_map(|range| tree(range.as_slice()).ok()).collect()
}

fn limits<'a>(range: &'a Value, kind: &str) -> impl Iterator<Item = &'a Value> {
    let kind = kind.to_owned();
    let limits = range["spec"]["limits"].as_array().into_iter().flatten();
    limits.filter(move |limit| limit["type"] == kind.as_str())
}

/// Sets the namespace's default requests and limits in containers without them.
pub(super) struct LimitDefaults;

impl Admit for LimitDefaults {
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status> {
        if attempt.kind.plural != "pods" {
            return Ok(());
        }
        let mut left = FILLED_MAX;
        for range in ranges(attempt) {
            let (mut requests, mut most) = (json!({}), json!({}));
            for limit in limits(&range, "Container") {
                merge(&mut requests, &limit["defaultRequest"]);
                merge(&mut most, &limit["default"]);
            }
            if !fill(attempt.new, &requests, &most, &mut left) {
                let name = meta(attempt.new, "name");
                let why = "the defaults of a LimitRange make it too large";
                return Err(status::forbidden("", "pods", name, why));
            }
        }
        Ok(())
    }
}

/// Later ones win.
fn merge(into: &mut Value, more: &Value) {
    for (name, amount) in more.as_object().into_iter().flatten() {
        into[name] = amount.clone();
    }
}

/// The bytes that the defaults of a LimitRange may add to a pod.
const FILLED_MAX: usize = 3 << 20;

/// Sets missing amounts; returns whether they fit into the bytes that are left.
fn fill(pod: &mut Value, requests: &Value, limits: &Value, left: &mut usize) -> bool {
    let mut notes = Vec::new();
    for (key, what) in [("containers", "container"), ("initContainers", "init container")] {
        let list = pod["spec"].get_mut(key).and_then(Value::as_array_mut);
        for container in list.into_iter().flatten() {
            let name = container["name"].as_str().unwrap_or_default().to_owned();
            for (key, word, given) in
                [("requests", "request", requests), ("limits", "limit", limits)]
            {
                let set = set_missing(container, key, given);
                // Each name is in the container and in the note.
                let added: usize = set.iter().map(|name| 2 * name.len() + 32).sum();
                match left.checked_sub(added) {
                    None => return false,
                    Some(rest) => *left = rest,
                }
                if !set.is_empty() {
                    notes.push(format!("{} {word} for {what} {name}", set.join(", ")));
                }
            }
        }
    }
    if !notes.is_empty() {
        let note = format!("LimitRanger plugin set: {}", notes.join("; "));
        let annotations = metadata(pod).entry("annotations").or_insert_with(|| json!({}));
        annotations[ANNOTATION] = note.into();
    }
    true
}

/// Sets missing amounts and returns their names, sorted.
fn set_missing(container: &mut Value, key: &str, given: &Value) -> Vec<String> {
    let mut set = Vec::new();
    for (name, amount) in given.as_object().into_iter().flatten() {
        if container["resources"][key].get(name).is_none() {
            if !container["resources"].is_object() {
                container["resources"] = json!({});
            }
            container["resources"][key][name] = amount.clone();
            set.push(name.to_string());
        }
    }
    set.sort();
    set
}

/// Rejects requests and limits outside the namespace's ranges.
pub(super) struct Limits;

impl Admit for Limits {
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status> {
        for range in ranges(attempt) {
            let problems = match &*attempt.kind.plural {
                "pods" => pod_problems(&range, &attempt.new["spec"]),
                _ => claim_problems(&range, &attempt.new["spec"]),
            };
            let why = match problems.as_slice() {
                [] => continue,
                [one] => one.clone(),
                many => format!("[{}]", many.join(", ")),
            };
            let kind = attempt.kind;
            let name = meta(attempt.new, "name");
            return Err(status::forbidden(&kind.group, &kind.plural, name, &why));
        }
        Ok(())
    }
}

fn pod_problems(range: &Value, spec: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    for limit in limits(range, "Container") {
        for key in ["containers", "initContainers"] {
            for container in containers(spec, key) {
                let requests = of_container(container, ResourceList::Requests);
                let most = of_container(container, ResourceList::Limits);
                problems.extend(
                    AdmissionRequest { requests, limits: most }.problems(limit, "Container"),
                );
            }
        }
    }
    for limit in limits(range, "Pod") {
        let asked = AdmissionRequest {
            requests: of_pod(spec, ResourceList::Requests),
            limits: of_pod(spec, ResourceList::Limits),
        };
        problems.extend(asked.problems(limit, "Pod"));
    }
    problems
}

fn claim_problems(range: &Value, spec: &Value) -> Vec<String> {
    let requests = amounts(&spec["resources"]["requests"]);
    let asked = AdmissionRequest { requests, limits: Amounts::new() };
    let kind = "PersistentVolumeClaim";
    let mut problems = Vec::new();
    for limit in limits(range, kind) {
        for (name, least) in amounts(&limit["min"]) {
            problems.extend(asked.below(kind, &name, least));
        }
        for (name, most) in amounts(&limit["max"]) {
            let usage = format!("maximum {name} usage per {kind} is {most}");
            problems.extend(match asked.requests.get(&name) {
                None => Some(format!("{usage}.  No request is specified")),
                Some(request) if request.nano() > most.nano() => {
                    Some(format!("{usage}, but request is {request}"))
                }
                Some(_) => None,
            });
        }
    }
    problems
}

/// The requests and limits of a pod or a container.
struct AdmissionRequest {
    requests: Amounts,
    limits: Amounts,
}

impl AdmissionRequest {
    fn problems(&self, limit: &Value, kind: &str) -> Vec<String> {
        let below = amounts(&limit["min"])
            .into_iter()
            .filter_map(|(name, least)| self.below(kind, &name, least));
        let above = amounts(&limit["max"])
            .into_iter()
            .filter_map(|(name, most)| self.above(kind, &name, most));
        let ratio = amounts(&limit["maxLimitRequestRatio"]);
        let ratio = ratio.into_iter().filter_map(|(name, most)| self.ratio(kind, &name, most));
        below.chain(above).chain(ratio).collect()
    }

    fn below(&self, kind: &str, name: &str, least: Quantity) -> Option<String> {
        let usage = format!("minimum {name} usage per {kind} is {least}");
        let Some(request) = self.requests.get(name) else {
            return Some(format!("{usage}.  No request is specified"));
        };
        if request.nano() < least.nano() {
            return Some(format!("{usage}, but request is {request}"));
        }
        let limit = self.limits.get(name).filter(|limit| limit.nano() < least.nano())?;
        Some(format!("{usage}, but limit is {limit}"))
    }

    fn above(&self, kind: &str, name: &str, most: Quantity) -> Option<String> {
        let usage = format!("maximum {name} usage per {kind} is {most}");
        let Some(limit) = self.limits.get(name) else {
            return Some(format!("{usage}.  No limit is specified"));
        };
        if limit.nano() > most.nano() {
            return Some(format!("{usage}, but limit is {limit}"));
        }
        let request = self.requests.get(name).filter(|request| request.nano() > most.nano())?;
        Some(format!("{usage}, but request is {request}"))
    }

    fn ratio(&self, kind: &str, name: &str, most: Quantity) -> Option<String> {
        let usage = format!("{name} max limit to request ratio per {kind} is {most}");
        let given = |list: &Amounts| list.get(name).map(Quantity::nano).filter(|nano| *nano != 0);
        let Some(request) = given(&self.requests) else {
            return Some(format!("{usage}, but no request is specified or request is 0"));
        };
        let Some(limit) = given(&self.limits) else {
            return Some(format!("{usage}, but no limit is specified or limit is 0"));
        };
        let ratio = limit as f64 / request as f64;
        (ratio > most.nano() as f64 / 1e9)
            .then(|| format!("{usage}, but provided ratio is {ratio:.6}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B139
    #[test]
    fn defaults_of_many_containers_are_ended_by_a_budget() {
        let names = (0..1_000).map(|n| (format!("example.org/resource-{n}"), json!("1")));
        let defaults: Value = names.collect();
        let pod = |count: usize| {
            let containers: Vec<Value> =
                (0..count).map(|n| json!({ "name": n.to_string() })).collect();
            json!({ "metadata": {}, "spec": { "containers": containers } })
        };
        assert!(fill(&mut pod(2), &defaults, &defaults, &mut FILLED_MAX.clone()));
        let mut large = pod(10_000);
        assert!(!fill(&mut large, &defaults, &defaults, &mut FILLED_MAX.clone()));
        assert!(large.to_string().len() < 2 * FILLED_MAX);
    }
}
