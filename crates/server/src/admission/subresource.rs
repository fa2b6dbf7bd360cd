//! Subresources that write a part of their parent, and change nothing else (S2.51).

use headwater_json::Value;

use crate::kinds::registry::Served;
use crate::object::metadata;

/// Undoes every change outside the part that the subresource may write (S2.51).
pub(crate) fn restrict_to_subresource(
    kind: &Served,
    subresource: &str,
    new: &mut Value,
    old: &Value,
) {
    if subresource == "finalize" {
        // Everything but the status may change here.
        return copy(new, old, &["status"]);
    }
    let Some((_, part)) = SUBRESOURCE_PARTS.iter().find(|(name, _)| *name == subresource) else {
        return;
    };
    let asked = std::mem::replace(new, old.clone());
    copy(new, &asked, part);
    if matches!(subresource, "status" | "approval") && !kind.custom {
        take_metadata(new, &asked["metadata"], status_metadata(kind));
    }
    let metadata = metadata(new);
    metadata.insert("resourceVersion".into(), asked["metadata"]["resourceVersion"].clone());
}

/// Subresources that are written as the object itself, and the part of it that each may change.
const SUBRESOURCE_PARTS: &[(&str, &[&str])] = &[
    ("status", &["status"]),
    ("approval", &["status", "conditions"]),
    ("ephemeralcontainers", &["spec", "ephemeralContainers"]),
    ("resize", &["spec", "containers"]),
];

/// Makes one part of an object the same as another's.
pub(crate) fn copy(to: &mut Value, from: &Value, path: &[&str]) {
    let Some((last, parents)) = path.split_last() else { return };
    let part = parents.iter().try_fold(from, |value, key| value.get(key)).and_then(|v| v.get(last));
    let parent = parents.iter().fold(to, |value, key| &mut value[*key]);
    match (part, parent.as_object_mut()) {
        (Some(part), _) => parent[*last] = part.clone(),
        (None, Some(parent)) => drop(parent.remove(last)),
        (None, None) => {}
    }
}

/// The metadata fields that a status write may change.
fn status_metadata(kind: &Served) -> &'static [&'static str] {
    match &*kind.plural {
        "deployments" | "apiservices" => {
            &["annotations", "finalizers", "ownerReferences", "managedFields"]
        }
        "validatingadmissionpolicies"
        | "storageversions"
        | "podcertificaterequests"
        | "servicecidrs"
        | "devicetaintrules"
        | "resourceclaims"
        | "podgroups"
        | "volumeattachments"
        | "storageversionmigrations" => &["managedFields"],
        _ => &["labels", "annotations", "finalizers", "ownerReferences", "managedFields"],
    }
}

fn take_metadata(new: &mut Value, asked: &Value, keys: &[&str]) {
    let metadata = metadata(new);
    for key in keys {
        match asked.get(key) {
            Some(value) => metadata.insert((*key).into(), value.clone()),
            None => metadata.remove(key),
        };
    }
}
