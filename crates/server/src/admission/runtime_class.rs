//! The runtime class of a new pod: its overhead and its scheduling.
//!
//! River: defaults → **runtime class** → webhooks. A pod gets what its class says; a pod whose class does
//! not exist, or whose own overhead differs, is refused.

use headwater_api::Status;
use headwater_api::distinct::Distinct;
use headwater_json::{Value, json};

use super::pods::{is_new_pod, spec};
use super::{Admit, Attempt};
use crate::answer::status;
use crate::object::{meta, tree};

const PREFIX: &str = "/registry/node.k8s.io/runtimeclasses/";

/// Copies overhead and scheduling from the runtime class.
pub(super) struct RuntimeClass;

impl Admit for RuntimeClass {
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status> {
        if !is_new_pod(attempt) {
            return Ok(());
        }
        let Some(class) = class_of(attempt)? else { return Ok(()) };
        let overhead = &class["overhead"];
        if overhead.is_object() {
            check_overhead(attempt, &class)?;
            let fixed = overhead["podFixed"].clone();
            if let Some(spec) = spec(attempt).filter(|_| !fixed.is_null()) {
                spec.insert("overhead".into(), fixed);
            }
        }
        schedule(attempt, &class["scheduling"])
    }
}

/// Refuses an overhead that the runtime class does not have.
pub(super) struct RuntimeOverhead;

impl Admit for RuntimeOverhead {
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status> {
        if !is_new_pod(attempt) || attempt.new["spec"]["overhead"].is_null() {
            return Ok(());
        }
        let class = class_of(attempt)?.unwrap_or_default();
        if class["overhead"].is_object() {
            return check_overhead(attempt, &class);
        }
        let why = "Pod Overhead set without corresponding RuntimeClass defined Overhead";
        Err(refusal(attempt, &format!("pod rejected: {why}")))
    }
}

/// The runtime class that a pod names.
fn class_of(attempt: &Attempt<'_>) -> Result<Option<Value>, Status> {
    let Some(name) = attempt.new["spec"]["runtimeClassName"].as_str() else { return Ok(None) };
    let classes = attempt.cache.snapshot(&attempt.cache.resource(PREFIX));
    match classes.get(name) {
        Some(class) => tree(class.as_slice()).map(Some),
        None => Err(refusal(attempt, &format!("pod rejected: RuntimeClass {name:?} not found"))),
    }
}

/// Checks that a pod has no other overhead than its class.
fn check_overhead(attempt: &Attempt<'_>, class: &Value) -> Result<(), Status> {
    let own = &attempt.new["spec"]["overhead"];
    if own.as_object().is_none_or(|own| own.is_empty()) || *own == class["overhead"]["podFixed"] {
        return Ok(());
    }
    let why = "Pod's Overhead doesn't match RuntimeClass's defined Overhead";
    Err(refusal(attempt, &format!("pod rejected: {why}")))
}

fn schedule(attempt: &mut Attempt<'_>, scheduling: &Value) -> Result<(), Status> {
    let added = scheduling["nodeSelector"].as_object();
    for (key, value) in added.into_iter().flatten() {
        let own = &attempt.new["spec"]["nodeSelector"][key.as_str()];
        if !own.is_null() && own != value {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let why = format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {}; pod.spec.nodeSelector[{key}] = {}",
                text(value),
                text(own)
            );
            return Err(refusal(attempt, &why));
        }
    }
    let Some(spec) = spec(attempt) else { return Ok(()) };
    if let Some(added) = added.filter(|added| !added.is_empty()) {
        let selector = spec.entry("nodeSelector").or_insert_with(|| json!({}));
        if !selector.is_object() {
            *selector = json!({});
        }
        selector.as_object_mut().into_iter().for_each(|own| own.extend(added.clone()));
    }
    let tolerations = scheduling["tolerations"].as_array().filter(|list| !list.is_empty());
    if let Some(added) = tolerations {
        let own = spec.entry("tolerations").or_insert_with(|| json!([]));
        let before = own.as_array().cloned().unwrap_or_default();
        let all: Vec<Value> = before.into_iter().chain(added.iter().cloned()).collect();
        *own = merged(&all).into();
    }
    Ok(())
}

/// Above this number only repeated tolerations are left out: the others are harmless, and finding them
/// compares each pair.
const COMPARED_MAX: usize = 500;

/// Tolerations without those that another one covers.
fn merged(all: &[Value]) -> Vec<Value> {
    if all.len() > COMPARED_MAX {
        let mut kept = Distinct::default();
        kept.extend(all.iter().cloned());
        return kept.into_vec();
    }
    let mut kept: Vec<Value> = Vec::new();
    for (index, one) in all.iter().enumerate() {
        let is_covered = kept.iter().any(|other| covers(other, one))
            || all[index + 1..].iter().any(|later| later != one && covers(later, one));
        if !is_covered {
            kept.push(one.clone());
        }
    }
    kept
}

/// Whether a toleration tolerates everything that another one does.
fn covers(wide: &Value, narrow: &Value) -> bool {
    if wide == narrow {
        return true;
    }
    let text =
        |toleration: &Value, name: &str| toleration[name].as_str().unwrap_or_default().to_owned();
    let same = |name: &str| text(wide, name) == text(narrow, name);
    let exists = text(wide, "operator") == "Exists";
    if !(same("key") || text(wide, "key").is_empty() && exists) {
        return false;
    }
    let effect = text(wide, "effect");
    if !same("effect") && !effect.is_empty() {
        return false;
    }
    if effect == "NoExecute"
        && let Some(seconds) = wide["tolerationSeconds"].as_i64()
        && narrow["tolerationSeconds"].as_i64().is_none_or(|own| own > seconds)
    {
        return false;
    }
    match text(wide, "operator").as_str() {
        "" | "Equal" => text(narrow, "operator") == "Equal" && same("value"),
        "Exists" => true,
        _ => false,
    }
}

fn refusal(attempt: &Attempt<'_>, why: &str) -> Status {
    status::forbidden("", "pods", meta(attempt.new, "name"), why)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B137: with a comparison of each pair, this test does not end.
    #[test]
    fn long_lists_of_tolerations_are_merged_in_linear_time() {
        let toleration = |n: usize| json!({ "key": format!("k{n}"), "operator": "Exists" });
        let all: Vec<Value> = (0..50_000).chain(0..10).map(toleration).collect();
        assert_eq!(merged(&all).len(), 50_000);
    }

    #[test]
    fn merged_tolerations_cover_each_other_once() {
        let all = json!([
            { "key": "a", "operator": "Equal", "value": "1", "effect": "NoSchedule" },
            { "key": "a", "operator": "Exists" },
            { "key": "b", "operator": "Equal", "value": "1" },
            { "key": "b", "value": "1" },
            { "key": "c", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5 },
            { "key": "c", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9 },
        ]);
        let kept = merged(all.as_array().unwrap());
        let expected = [all[1].clone(), all[3].clone(), all[5].clone()];
        assert_eq!(kept, expected);
        let everything = json!({ "operator": "Exists" });
        assert!(covers(&everything, &all[0]) && !covers(&all[0], &everything));
    }
}
