//! Server-side apply, and who manages which field (S2.24 to S2.28).
//!
//! River: a decoded write → **managed** → the object that is stored, with its `managedFields`.
//! Promise: every field that a write changes has that writer as its manager; an apply never
//! changes a field of another manager without being told to, and removes only what its own
//! manager owned alone. Broken `managedFields` are never an error (B196).

mod compare;
mod entry;
mod fields;
mod merge;
mod structure;

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::clock::rfc3339;
use crate::kind::Kind;
use crate::status::{Cause, Details, Status};

pub use structure::{Builtin, Form, Loose, Structure};

use compare::compare_objects;
use entry::{Entries, Entry, Operation};
use fields::{contains, intersect, is_subset, paths, subtract, union};

/// Who writes what, when.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// Name of the manager; see [`crate::options::manager_name`].
    pub manager: &'a str,
    /// The subresource it writes through; empty for the object itself.
    pub subresource: &'a str,
    /// Version that the object is written in, such as `apps/v1`.
    pub api_version: &'a str,
    /// The time of the write.
    pub now: Timestamp,
    /// Members of the object that this write cannot change, such as `status`: nobody comes to own
    /// them by it.
    pub ignored: &'a [&'a str],
}

/// Why an apply was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The body does not fit the type. (400)
    #[error("{0}")]
    Invalid(String),
    /// Other managers own fields that it would change. (409)
    #[error("{}", conflict_message(.0))]
    Conflicts(Vec<Conflict>),
}

/// A field of another manager that an apply would change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// As messages name it: `"m"`, perhaps with subresource and version.
    pub manager: String,
    /// Such as `.spec.containers[name="c"].image`.
    pub field: String,
}

impl From<Error> for Status {
    fn from(error: Error) -> Status {
        match error {
            Error::Invalid(message) => Status::failure(400, "BadRequest", message),
            Error::Conflicts(ref conflicts) => {
                let causes = conflicts
                    .iter()
                    .map(|conflict| Cause {
                        reason: "FieldManagerConflict".into(),
                        message: format!("conflict with {}", conflict.manager),
                        field: conflict.field.clone(),
                    })
                    .collect();
                Status::failure(409, "Conflict", error.to_string())
                    .with_details(Details { causes, ..Details::default() })
            }
        }
    }
}

fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [one] = conflicts {
        return format!(
            "Apply failed with 1 conflict: conflict with {}: {}",
            one.manager, one.field
        );
    }
    let mut lines = Vec::new();
    let mut manager = None;
    for conflict in conflicts {
        if manager != Some(&conflict.manager) {
            lines.push(format!("conflicts with {}:", conflict.manager));
            manager = Some(&conflict.manager);
        }
        lines.push(format!("- {}", conflict.field));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}

/// Brings `managedFields` of a created, updated or patched object up to date. `new` is what would
/// be stored, after defaults; `old` what is stored now.
pub fn track_update<S: Structure>(
    old: Option<&Value>,
    new: &mut Value,
    write: &Write<'_>,
    structure: S,
) {
    let sent = take_managed(new);
    let mut entries = known_entries(old, sent, write);
    // An object that was never tracked stays so until it is first applied to.
    if entries.is_empty() && old.is_some() {
        return;
    }
    let changes = match old {
        Some(old) => compare_objects(old, new, write.ignored, structure),
        None => compare_objects(&structure.empty(), new, write.ignored, structure),
    };
    entries.update(&changes, write);
    set_managed(new, entries.encode());
}

/// Puts the times of entries back if nothing but times has changed: such a write is none (S2.12).
/// An apply may write elements of an atomic list as its configuration has them, without defaults,
/// and only the defaulted object shows that they are the same.
pub fn keep_times(old: &Value, new: &mut Value) {
    let (Some(before), Some(after)) = (managed_of(old), managed_of(new)) else { return };
    if before == after || !differ_in_times(before, after) {
        return;
    }
    let after = take_managed(new);
    set_managed(new, Some(before.clone()));
    if new != old {
        set_managed(new, after);
    }
}

fn differ_in_times(before: &Value, after: &Value) -> bool {
    let (Value::Array(before), Value::Array(after)) = (before, after) else { return false };
    before.len() == after.len()
        && before.iter().zip(after).all(|(before, after)| timeless(before).eq(timeless(after)))
}

/// The members of an entry but its time.
fn timeless(entry: &Value) -> impl Iterator<Item = (&String, &Value)> {
    let members = entry.as_object().into_iter().flatten();
    members.filter(|(key, _)| *key != "time")
}

/// The entries to go on from: those that were sent, if they can be read; else those stored.
/// `[]` and `[{}]` ask for a new start.
fn known_entries(old: Option<&Value>, sent: Option<Value>, write: &Write<'_>) -> Entries {
    let stored = old.and_then(managed_of);
    // Clients mostly send back what they read, through a subresource or not.
    if sent.is_some() && sent.as_ref() == stored {
        return sent.map_or_else(Entries::default, Entries::decode_stored);
    }
    let stored = || stored.cloned().map_or_else(Entries::default, Entries::decode_stored);
    let sent = match sent {
        Some(Value::Array(sent)) if write.subresource.is_empty() => sent,
        _ => return stored(),
    };
    let reset = match sent.as_slice() {
        [] => true,
        [Value::Object(only)] => only.is_empty(),
        _ => false,
    };
    if reset {
        return Entries::default();
    }
    match Entries::decode(&sent) {
        Some(entries) if !entries.is_empty() => entries,
        _ => stored(),
    }
}

/// Applies a configuration: all that its manager wants to own. `live` is what is stored now, if
/// anything. The answer is what would be stored, before defaults; members that the apply removed
/// are gone, so built-in kinds want [`crate::decode::refit`].
pub fn apply<S: Structure>(
    live: Option<&Value>,
    mut config: Value,
    write: &Write<'_>,
    force: bool,
    kind: &Kind,
    structure: S,
) -> Result<Value, Error> {
    check_config(&mut config, kind, structure)?;
    let mut current = live.cloned().unwrap_or_else(|| structure.empty());
    let mut entries =
        take_managed(&mut current).map_or_else(Entries::default, Entries::decode_stored);
    if entries.is_empty() && live.is_some() {
        let before = Write { manager: "before-first-apply", ..*write };
        let empty = structure.empty();
        entries.update(&compare_objects(&empty, &current, write.ignored, structure), &before);
    }
    let apply = Apply { current: &current, config: &config, write, structure };
    let (mut object, entries) = apply.run_for(entries, force)?;
    if write.manager == "kubectl" {
        refresh_last_applied(&mut object, &config);
    }
    set_managed(&mut object, entries.encode());
    Ok(object)
}

/// One try at an apply.
struct Apply<'a, S> {
    current: &'a Value,
    config: &'a Value,
    write: &'a Write<'a>,
    structure: S,
}

impl<S: Structure> Apply<'_, S> {
    /// `kubectl apply --server-side` may take over what `kubectl apply` wrote: conflicts in
    /// fields that the last-applied annotation names, and that are as it says, do not count.
    fn run_for(&self, entries: Entries, force: bool) -> Result<(Value, Entries), Error> {
        if force || self.write.manager != "kubectl" {
            return self.run(entries, force);
        }
        let conflicts = match self.run(entries.clone(), false) {
            Err(Error::Conflicts(conflicts)) => conflicts,
            result => return result,
        };
        let allowed = last_applied_fields(self.current, self.write, self.structure);
        let allowed: BTreeSet<String> = allowed.iter().flat_map(paths).collect();
        let left: Vec<Conflict> =
            conflicts.into_iter().filter(|conflict| !allowed.contains(&conflict.field)).collect();
        if left.is_empty() { self.run(entries, true) } else { Err(Error::Conflicts(left)) }
    }

    fn run(&self, mut entries: Entries, force: bool) -> Result<(Value, Entries), Error> {
        let id = Entry::id(self.write, Operation::Apply);
        let mut set = compare::fields_of_object(self.config, self.structure);
        for member in self.write.ignored {
            set.remove(&format!("f:{member}"));
        }
        let merged = merge::merge_objects(self.current, self.config, self.structure);
        let last = entries.remove(&id);
        let object = match &last {
            Some(last) => self.prune(merged, &last.fields, &set, &entries),
            None => merged,
        };
        let changes = compare_objects(self.current, &object, self.write.ignored, self.structure);
        if !force {
            let conflicts = entries.conflicts(&changes);
            if !conflicts.is_empty() {
                return Err(Error::Conflicts(conflicts));
            }
        }
        entries.lose(&changes);
        let time = if object == *self.current {
            last.and_then(|last| last.time)
        } else {
            Some(rfc3339(self.write.now))
        };
        entries.insert(Entry::new(id, self.write.api_version, time, stripped(set)));
        Ok((object, entries))
    }

    /// Removes what this manager owned before, wants no more, and no one else owns.
    fn prune(
        &self,
        merged: Value,
        last: &Map<String, Value>,
        set: &Map<String, Value>,
        others: &Entries,
    ) -> Value {
        if is_subset(last, set) {
            return merged;
        }
        let structure = self.structure;
        let mut owned = set.clone();
        for entry in others.iter() {
            union(&mut owned, &entry.fields);
        }
        let last = fields::with_named(last, structure);
        let all = fields::with_named(&compare::fields_of_object(&merged, structure), structure);
        let kept = merge::remove(&merged, &last, structure);
        let kept = self.all_fields(kept.as_ref());
        // All that is there, less what survives the removal, less what somebody owns.
        let mut unowned = all.clone();
        subtract(&mut unowned, &kept);
        subtract(&mut unowned, &fields::with_named(&owned, structure));
        let kept = merge::remove(&merged, &unowned, structure);
        // What fell with its parent but was never this manager's comes back.
        let mut gone = all;
        subtract(&mut gone, &self.all_fields(kept.as_ref()));
        let gone = intersect(&gone, &last);
        merge::remove(&merged, &gone, structure).unwrap_or_else(|| Value::Object(Map::new()))
    }

    fn all_fields(&self, object: Option<&Value>) -> Map<String, Value> {
        let empty = Value::Object(Map::new());
        let fields = compare::fields_of_object(object.unwrap_or(&empty), self.structure);
        fields::with_named(&fields, self.structure)
    }
}

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

fn last_applied_fields<S: Structure>(
    current: &Value,
    write: &Write<'_>,
    structure: S,
) -> Option<Map<String, Value>> {
    let text = current.get("metadata")?.get("annotations")?.get(LAST_APPLIED)?.as_str()?;
    let applied = crate::decode::json(text.as_bytes()).ok()?.value;
    if applied.get("apiVersion")?.as_str()? != write.api_version {
        return None;
    }
    let mut fields = compare::fields_of_object(&applied, structure);
    let changes = compare_objects(&applied, current, &[], structure);
    for set in [&changes.modified, &changes.added, &changes.removed] {
        subtract(&mut fields, set);
    }
    Some(fields)
}

/// Keeps the annotation of client-side apply true, where it is used.
fn refresh_last_applied(object: &mut Value, config: &Value) {
    let annotations = object.get_mut("metadata").and_then(|m| m.get_mut("annotations"));
    let Some(Value::Object(annotations)) = annotations else { return };
    if !annotations.contains_key(LAST_APPLIED) {
        return;
    }
    let mut config = config.clone();
    if let Some(Value::Object(of_config)) =
        config.get_mut("metadata").and_then(|m| m.get_mut("annotations"))
    {
        of_config.remove(LAST_APPLIED);
    }
    annotations.insert(LAST_APPLIED.into(), format!("{config}\n").into());
}

/// A configuration must say what it is, must not claim managers, and must fit its type.
fn check_config<S: Structure>(config: &mut Value, kind: &Kind, structure: S) -> Result<(), Error> {
    let text = |value: &Value, key: &str| {
        value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let (api_version, name) = (text(config, "apiVersion"), text(config, "kind"));
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let found = format!("{group}/{version}, Kind={name}");
    if group != kind.group || version != kind.version || name != kind.kind {
        return Err(Error::Invalid(format!("invalid object type: {found}")));
    }
    match take_managed(config) {
        None | Some(Value::Null) => {}
        Some(_) => return Err(Error::Invalid("metadata.managedFields must be nil".into())),
    }
    merge::validate(config, structure).map_err(|why| {
        let metadata = config.get("metadata").unwrap_or(&Value::Null);
        let (namespace, name) = (text(metadata, "namespace"), text(metadata, "name"));
        Error::Invalid(format!(
            "failed to create typed patch object ({namespace}/{name}; {found}): {why}"
        ))
    })
}

/// Fields that are nobody's: what the object is, and what the server sets.
const SYSTEM_METADATA: [&str; 9] = [
    "name",
    "namespace",
    "creationTimestamp",
    "selfLink",
    "uid",
    "clusterName",
    "generation",
    "managedFields",
    "resourceVersion",
];

fn stripped(mut set: Map<String, Value>) -> Map<String, Value> {
    set.remove("f:apiVersion");
    set.remove("f:kind");
    if let Some(Value::Object(metadata)) = set.get_mut("f:metadata") {
        metadata.remove(".");
        for name in SYSTEM_METADATA {
            metadata.remove(&format!("f:{name}"));
        }
        if metadata.is_empty() {
            set.remove("f:metadata");
        }
    }
    set
}

fn managed_of(object: &Value) -> Option<&Value> {
    object.get("metadata")?.get("managedFields")
}

fn take_managed(object: &mut Value) -> Option<Value> {
    object.get_mut("metadata")?.as_object_mut()?.remove("managedFields")
}

fn set_managed(object: &mut Value, entries: Option<Value>) {
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    if let (Some(metadata), Some(entries)) = (metadata, entries) {
        metadata.insert("managedFields".into(), entries);
    }
}

#[cfg(test)]
mod tests;
