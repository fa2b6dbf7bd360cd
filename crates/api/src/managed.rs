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
mod versions;

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::json::{Map, Value};
use jiff::Timestamp;

use crate::clock::rfc3339;
use crate::json::push_value;
use crate::kind::Kind;
use crate::status::{Cause, Details, Status};

pub use structure::{Builtin, Form, Loose, Structure};
pub use versions::Versions;

use compare::compare_objects;
use entry::{Entries, Entry, Operation};
use fields::Fields;
use versions::Elsewhere;

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
    /// A manager wrote in another version, and how this object looks there is not known yet.
    #[error("an object has to be converted to {to} first")]
    Unconverted {
        /// The object.
        object: Box<Value>,
        /// The version.
        to: String,
    },
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
            Error::Unconverted { .. } => Status::failure(500, "", error.to_string()),
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

/// Turns the entries of an object from the one string that writes keep them as into the list that
/// the wire has. All functions here take either; what they make is the string. It stands for what
/// it says as it is, so an object that is written and read again and again never has them parsed
/// into a tree.
pub fn unpack(object: &mut Value) {
    let Some(Value::String(_)) = managed_of(object) else { return };
    if let Some(Value::String(text)) = take(object)
        && let Ok(entries) = serde_json::from_str(&text)
    {
        put(object, entries);
    }
}

/// Brings `managedFields` of a created, updated or patched object up to date. `new` is what would
/// be stored, after defaults; `old` what is stored now. Only a kind whose versions are not alike
/// can fail; then `new` has lost its entries.
pub fn track_update<V: Versions>(
    old: Option<&Value>,
    new: &mut Value,
    write: &Write<'_>,
    versions: V,
) -> Result<(), Error> {
    let sent = take(new);
    let text = {
        let known = Known::of(old, sent.as_ref(), write);
        let empty;
        let before = match old {
            Some(old) => old,
            None => {
                empty = versions.own().empty();
                &empty
            }
        };
        let update = Update { before, after: new, is_update: old.is_some(), write };
        known.updated(&update, versions)?
    };
    set_managed(new, text);
    Ok(())
}

/// One update.
struct Update<'a> {
    before: &'a Value,
    after: &'a Value,
    is_update: bool,
    write: &'a Write<'a>,
}

/// The entries to go on from.
enum Known<'a> {
    /// As they are stored.
    Stored(Cow<'a, str>),
    /// As they were sent.
    Sent(Entries<'a>),
}

impl<'a> Known<'a> {
    /// Those that were sent, if they can be read; else those stored. `[]` and `[{}]` ask for a new
    /// start.
    fn of(old: Option<&'a Value>, sent: Option<&'a Value>, write: &Write<'_>) -> Known<'a> {
        let stored = || Known::Stored(stored_text(old.and_then(managed_of)));
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
            return Known::Sent(Entries::default());
        }
        // Clients mostly send back what they read.
        let stored_entries = stored_text(old.and_then(managed_of));
        if !stored_entries.is_empty() && json_text(sent) == stored_entries.as_bytes() {
            return Known::Stored(stored_entries);
        }
        match Entries::sent(sent) {
            Some(entries) if !entries.is_empty() => Known::Sent(entries),
            _ => stored(),
        }
    }

    /// What is stored after an update. An object that was never tracked stays so until it is first
    /// applied to.
    fn updated<V: Versions>(
        self,
        update: &Update<'_>,
        versions: V,
    ) -> Result<Option<String>, Error> {
        let Update { before, after, is_update, write } = *update;
        let changes = compare_objects(before, after, write.ignored, versions.own());
        let text;
        let mut entries = match self {
            Known::Stored(stored) if changes.is_empty() => {
                return Ok((!stored.is_empty()).then(|| stored.into_owned()));
            }
            Known::Stored(stored) => {
                text = stored;
                Entries::stored(&text)
            }
            Known::Sent(entries) => entries,
        };
        if entries.is_empty() && is_update {
            return Ok(None);
        }
        let elsewhere = Elsewhere::of(versions, &entries, write, before, after)?;
        entries.update(changes, write, &elsewhere.changes(versions, write));
        Ok(entries.encode())
    }
}

fn json_text(entries: &[Value]) -> Vec<u8> {
    let mut text = Vec::with_capacity(1024);
    for entry in entries {
        text.push(if text.is_empty() { b'[' } else { b',' });
        push_value(&mut text, entry);
    }
    text.push(b']');
    text
}

/// Entries as they are stored, as text; empty if there are none.
fn stored_text(managed: Option<&Value>) -> Cow<'_, str> {
    match managed {
        Some(Value::String(text)) => Cow::Borrowed(text),
        Some(list @ Value::Array(_)) => Cow::Owned(list.to_string()),
        _ => Cow::Borrowed(""),
    }
}

/// Puts the times of entries back if nothing but times has changed: such a write is none (S2.12).
/// An apply may write elements of an atomic list as its configuration has them, without defaults,
/// and only the defaulted object shows that they are the same.
pub fn keep_times(old: &Value, new: &mut Value) {
    let before = stored_text(managed_of(old));
    let after = stored_text(managed_of(new));
    if before == after || !Entries::stored(&before).differ_in_times(&Entries::stored(&after)) {
        return;
    }
    let after = take(new);
    if let Some(before) = managed_of(old) {
        put(new, before.clone());
    }
    if new != old
        && let Some(after) = after
    {
        put(new, after);
    }
}

/// Applies a configuration: all that its manager wants to own. `live` is what is stored now, if
/// anything. The answer is what would be stored, before defaults; members that the apply removed
/// are gone, so built-in kinds want [`crate::decode::refit`].
pub fn apply<V: Versions>(
    live: Option<&Value>,
    mut config: Value,
    write: &Write<'_>,
    force: bool,
    kind: &Kind,
    versions: V,
) -> Result<Value, Error> {
    let structure = versions.own();
    check_config(&mut config, kind, structure)?;
    let empty = structure.empty();
    let current = live.unwrap_or(&empty);
    let text = stored_text(managed_of(current));
    let mut entries = Entries::stored(&text);
    if entries.is_empty() && live.is_some() {
        let before = Write { manager: "before-first-apply", ..*write };
        let all = compare_objects(&empty, current, write.ignored, structure);
        entries.update(all, &before, &Elsewhere::default().changes(versions, write));
    }
    let apply = Apply { current, config: &config, write, versions, structure };
    let (mut object, entries) = apply.run_for(entries, force)?;
    if write.manager == "kubectl" {
        refresh_last_applied(&mut object, &config);
    }
    set_managed(&mut object, entries);
    Ok(object)
}

/// One try at an apply.
struct Apply<'a, V: Versions> {
    current: &'a Value,
    config: &'a Value,
    write: &'a Write<'a>,
    versions: V,
    /// In the version of the write.
    structure: V::Structure,
}

impl<'a, V: Versions> Apply<'a, V> {
    /// `kubectl apply --server-side` may take over what `kubectl apply` wrote: conflicts in
    /// fields that the last-applied annotation names, and that are as it says, do not count.
    fn run_for(&self, entries: Entries<'a>, force: bool) -> Result<(Value, Option<String>), Error> {
        if force || self.write.manager != "kubectl" {
            return self.run(entries, force);
        }
        let conflicts = match self.run(entries.clone(), false) {
            Err(Error::Conflicts(conflicts)) => conflicts,
            result => return result,
        };
        let allowed = last_applied_paths(self.current, self.write, self.structure);
        let left: Vec<Conflict> =
            conflicts.into_iter().filter(|conflict| !allowed.contains(&conflict.field)).collect();
        if left.is_empty() { self.run(entries, true) } else { Err(Error::Conflicts(left)) }
    }

    /// The object that is stored, and its entries.
    fn run(&self, entries: Entries<'a>, force: bool) -> Result<(Value, Option<String>), Error> {
        let id = Entry::id(self.write, Operation::Apply);
        let mut set = compare::fields_of_object(self.config, self.structure);
        for member in self.write.ignored {
            set.remove_field(member);
        }
        let mut entries = entries;
        let merged = merge::merge_objects(self.current, self.config, self.structure);
        let last = entries.remove(&id);
        let object = match &last {
            Some(last) if self.is_told_elsewhere(last, &entries) => {
                self.prune_across(merged, last, &set, &entries)?
            }
            Some(last) => self.prune(merged, &last.fields, &set, &entries),
            None => merged,
        };
        let changes = compare_objects(self.current, &object, self.write.ignored, self.structure);
        let elsewhere = Elsewhere::of(self.versions, &entries, self.write, self.current, &object)?;
        let elsewhere = elsewhere.changes(self.versions, self.write);
        if !force {
            let conflicts = entries.conflicts(&changes, &elsewhere);
            if !conflicts.is_empty() {
                return Err(Error::Conflicts(conflicts));
            }
        }
        entries.lose(&changes, &elsewhere);
        let time = if object == *self.current {
            last.and_then(|last| last.time)
        } else {
            Some(rfc3339(self.write.now).into())
        };
        entries.insert(Entry::new(id, self.write.api_version, time, stripped(set)));
        Ok((object, entries.encode()))
    }

    /// Removes what this manager owned before, wants no more, and no one else owns.
    fn prune(
        &self,
        merged: Value,
        last: &Fields<'a>,
        set: &Fields<'a>,
        others: &Entries<'a>,
    ) -> Value {
        if last.is_subset(set) {
            return merged;
        }
        let structure = self.structure;
        let mut owned = set.clone();
        for entry in others.iter() {
            owned.union(entry.fields.clone());
        }
        let last = last.with_named(structure);
        let all = compare::fields_of_object(&merged, structure).with_named(structure);
        let kept = merge::remove(&merged, &last, structure);
        // All that is there, less what survives the removal, less what somebody owns.
        let mut unowned = all.clone();
        self.take_out(&mut unowned, kept.as_ref());
        unowned.subtract(&owned.with_named(structure));
        let kept = merge::remove(&merged, &unowned, structure);
        // What fell with its parent but was never this manager's comes back.
        let mut gone = all;
        self.take_out(&mut gone, kept.as_ref());
        let gone = gone.intersect(&last);
        merge::remove(&merged, &gone, structure).unwrap_or_else(|| Value::Object(Map::new()))
    }

    /// Whether anybody owns fields of another version, in which they may be called otherwise.
    fn is_told_elsewhere(&self, last: &Entry<'a>, others: &Entries<'a>) -> bool {
        let mut versions = others.versions().chain([last.version()]);
        !self.versions.are_alike() && versions.any(|version| version != self.write.api_version)
    }

    /// The same where managers wrote in several versions: what the last apply of this manager
    /// owned goes, in its version; then what others own comes back, in each of theirs.
    fn prune_across(
        &self,
        merged: Value,
        last: &Entry<'a>,
        set: &Fields<'a>,
        others: &Entries<'a>,
    ) -> Result<Value, Error> {
        let own = self.write.api_version;
        let Some(structure) = self.versions.structure(last.version()) else { return Ok(merged) };
        let before = self.at(&merged, last.version())?;
        let owned = last.fields.with_named(structure);
        let mut pruned = merge::remove(&before, &owned, structure).unwrap_or_default();
        let mut at = last.version().to_owned();
        let mut versions: BTreeSet<&str> = others.versions().chain([own]).collect();
        // First in the version it is in: a conversion may need what others own.
        let first = versions.take(last.version());
        for version in first.into_iter().chain(versions) {
            let Some(structure) = self.versions.structure(version) else { continue };
            let mut managed = others.owned_in(version);
            if version == own {
                managed.union(set.clone());
            }
            let whole = self.at(&merged, version)?;
            let rest = if at == version { pruned } else { self.at(&pruned, version)? };
            pruned = put_back(&whole, &rest, &managed, structure);
            at = version.to_owned();
        }
        let rest = if at == last.version() { pruned } else { self.at(&pruned, last.version())? };
        let mut gone = compare::fields_of_object(&before, structure).with_named(structure);
        gone.subtract(&compare::fields_of_object(&rest, structure).with_named(structure));
        let kept = merge::remove(&before, &gone.intersect(&owned), structure).unwrap_or_default();
        self.at(&kept, own)
    }

    fn at(&self, object: &Value, version: &str) -> Result<Value, Error> {
        match object.get("apiVersion").and_then(Value::as_str) == Some(version) {
            true => Ok(object.clone()),
            false => self.versions.convert(object, version),
        }
    }

    /// Takes all fields of an object out of a set.
    fn take_out(&self, set: &mut Fields<'_>, object: Option<&Value>) {
        if let Some(object) = object {
            let fields = compare::fields_of_object(object, self.structure);
            set.subtract(&fields.with_named(self.structure));
        }
    }
}

/// What was pruned, with what somebody owns put back from what it was before.
fn put_back<S: Structure>(
    whole: &Value,
    pruned: &Value,
    managed: &Fields<'_>,
    structure: S,
) -> Value {
    let mut gone = compare::fields_of_object(whole, structure).with_named(structure);
    gone.subtract(&compare::fields_of_object(pruned, structure).with_named(structure));
    gone.subtract(&managed.with_named(structure));
    merge::remove(whole, &gone, structure).unwrap_or_default()
}

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The paths of what `kubectl apply` wrote and nobody has changed since.
fn last_applied_paths<S: Structure>(
    current: &Value,
    write: &Write<'_>,
    structure: S,
) -> BTreeSet<String> {
    let applied = || {
        let text = current.get("metadata")?.get("annotations")?.get(LAST_APPLIED)?.as_str()?;
        let applied = crate::decode::json(text.as_bytes()).ok()?.value;
        (applied.get("apiVersion")?.as_str()? == write.api_version).then_some(applied)
    };
    let Some(applied) = applied() else { return BTreeSet::new() };
    let mut fields = compare::fields_of_object(&applied, structure);
    let changes = compare_objects(&applied, current, &[], structure);
    for set in [&changes.modified, &changes.added, &changes.removed] {
        fields.subtract(set);
    }
    fields.paths().into_iter().collect()
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
    match take(config) {
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

fn stripped(mut set: Fields<'_>) -> Fields<'_> {
    set.remove_field("apiVersion");
    set.remove_field("kind");
    set.edit_field("metadata", |metadata| {
        metadata.member = false;
        for name in SYSTEM_METADATA {
            metadata.below.remove_field(name);
        }
    });
    set
}

fn managed_of(object: &Value) -> Option<&Value> {
    object.get("metadata")?.get("managedFields")
}

/// Takes the entries out of an object.
pub fn take(object: &mut Value) -> Option<Value> {
    object.get_mut("metadata")?.as_object_mut()?.remove("managedFields")
}

fn set_managed(object: &mut Value, entries: Option<String>) {
    match entries {
        Some(entries) => put(object, entries.into()),
        None => drop(take(object)),
    }
}

/// Puts entries into an object that has metadata.
pub fn put(object: &mut Value, entries: Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("managedFields".into(), entries);
    }
}

#[cfg(test)]
mod tests;
