//! The priority of new pods (S10.23).
//!
//! River: defaults → **pods** → webhooks.

use std::sync::Arc;

use headwater_api::{Object, Status};
use headwater_cache::{Cache, Snapshot};
use headwater_json::{Map, Value, json};

use super::{Admit, Attempt};
use crate::answer::status;
use crate::object::{meta, tree};

pub(super) fn is_new_pod(attempt: &Attempt<'_>) -> bool {
    attempt.kind.plural == "pods" && attempt.kind.group.is_empty() && attempt.old.is_none()
}

pub(super) fn spec<'a>(attempt: &'a mut Attempt<'_>) -> Option<&'a mut Map> {
    attempt.new.get_mut("spec").and_then(Value::as_object_mut)
}

/// Sets a pod's priority from its class; rejects any other.
pub(super) struct Priority;

impl Admit for Priority {
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status> {
        if is_new_pod(attempt) {
            return admit_pod(attempt);
        }
        let kind = attempt.kind;
        if kind.plural == "priorityclasses" && kind.group == "scheduling.k8s.io" {
            return check_class(attempt);
        }
        Ok(())
    }
}

fn admit_pod(attempt: &mut Attempt<'_>) -> Result<(), Status> {
    let classes = Classes::of(attempt.cache);
    let name = attempt.new["spec"]["priorityClassName"].as_str().unwrap_or_default();
    let class = match name {
        "" => classes.default()?.unwrap_or_else(|| json!({"value": 0})),
        name => match classes.named(name)? {
            Some(class) => class,
            None => {
                return Err(refusal(
                    attempt,
                    &format!("no PriorityClass with name {name} was found"),
                ));
            }
        },
    };
    let priority = class["value"].as_i64().unwrap_or(0);
    let policy = class["preemptionPolicy"].as_str().unwrap_or("PreemptLowerPriority");
    let spec = &attempt.new["spec"];
    if let Some(given) = spec["priority"].as_i64().filter(|given| *given != priority) {
        let why = format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {priority} from the given PriorityClass name"
        );
        return Err(refusal(attempt, &why));
    }
    if let Some(given) = spec["preemptionPolicy"].as_str().filter(|given| *given != policy) {
        let why = format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
        );
        return Err(refusal(attempt, &why));
    }
    let Some(spec) = self::spec(attempt) else { return Ok(()) };
    if let Some(name) = class["metadata"]["name"].as_str() {
        spec.insert("priorityClassName".into(), name.into());
    }
    spec.insert("priority".into(), priority.into());
    spec.insert("preemptionPolicy".into(), policy.into());
    Ok(())
}

/// Rejects a second default class.
fn check_class(attempt: &Attempt<'_>) -> Result<(), Status> {
    if attempt.new["globalDefault"] != true {
        return Ok(());
    }
    let Some(default) = Classes::of(attempt.cache).default()? else { return Ok(()) };
    let name = meta(&default, "name");
    if attempt.old.is_some() && name == meta(attempt.new, "name") {
        return Ok(());
    }
    let why =
        format!("PriorityClass {name} is already marked as default. Only one default can exist");
    Err(refusal(attempt, &why))
}

fn refusal(attempt: &Attempt<'_>, why: &str) -> Status {
    let kind = attempt.kind;
    status::forbidden(&kind.group, &kind.plural, meta(attempt.new, "name"), why)
}

/// The current priority classes.
struct Classes(Snapshot);

impl Classes {
    fn of(cache: &Cache) -> Classes {
        let resource = cache.resource("/registry/scheduling.k8s.io/priorityclasses/");
        Classes(cache.snapshot(&resource))
    }

    fn named(&self, name: &str) -> Result<Option<Value>, Status> {
        self.0.get(name).map(|class| tree(class.as_slice())).transpose()
    }

    /// The default class; of several, the lowest.
    fn default(&self) -> Result<Option<Value>, Status> {
        let mut found: Option<Value> = None;
        for class in self.0.iter("", None).filter(|class| says_default(class)) {
            let class = tree(class.as_slice())?;
            let value = |class: &Value| class["value"].as_i64().unwrap_or(0);
            if found.as_ref().is_none_or(|lowest| value(&class) < value(lowest)) {
                found = Some(class);
            }
        }
        Ok(found)
    }
}

/// Checked for every class at every pod creation, so it does not parse: stored bytes are canonical, and
/// a key is found as quoted text.
fn says_default(class: &Arc<Object>) -> bool {
    std::str::from_utf8(class.as_slice()).is_ok_and(|text| text.contains(r#""globalDefault":true"#))
}
