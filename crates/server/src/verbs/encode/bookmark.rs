//! The object of a bookmark: an empty object of its kind with a resourceVersion (S4.10, S4.11).

use headwater_api::Revision;
use headwater_json as print;
use headwater_json::{Value, json};
use headwater_schema::decode;

use crate::kinds::registry::Served;

/// The zero value of a kind, at a revision; `mark` is the end of the initial events.
pub(super) fn object(kind: &Served, revision: Revision, mark: bool) -> Vec<u8> {
    let mut value = json!({
        "kind": kind.kind.kind, "apiVersion": kind.api_version(), "metadata": {},
    });
    if let (false, Ok(decoded)) = (kind.custom, decode::refit(&kind.kind, value.clone(), None)) {
        value = decoded.value;
        without_lists(&mut value);
        with_zeros(kind, &mut value);
    }
    if mark {
        value["metadata"]["annotations"]["k8s.io/initial-events-end"] = "true".into();
    }
    value["metadata"]["resourceVersion"] = revision.to_string().into();
    print::to_vec(&value)
}

/// An unset list is null here; objects show it as empty.
fn without_lists(value: &mut Value) {
    match value {
        Value::Object(members) => members.values_mut().for_each(without_lists),
        Value::Array(_) => *value = Value::Null,
        _ => {}
    }
}

/// The fields that the reference shows because their internal type is not optional.
fn with_zeros(kind: &Served, value: &mut Value) {
    match (&*kind.group, &*kind.kind.kind) {
        ("apps", "Deployment" | "StatefulSet" | "ReplicaSet") => {
            value["spec"]["replicas"] = 0.into();
            value["spec"]["selector"] = Value::Null;
        }
        ("apps", "DaemonSet") => {
            let generation = "deprecated.daemonset.template.generation";
            value["metadata"]["annotations"][generation] = "0".into();
            value["spec"]["selector"] = Value::Null;
        }
        ("apps", "ControllerRevision") => value["data"] = Value::Null,
        _ => {}
    }
}
