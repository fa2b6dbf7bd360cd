//! Apply: the merge of a configuration into an object, and the resulting field managers.
//!
//! Promise: a field of another manager is changed only with `force`; a field that a manager no longer
//! applies is removed if no other manager owns it, in whichever version they wrote.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::compare::{self, compare_objects};
use super::entry::{Entries, ManagerEntry, Operation};
use super::fields::FieldSet;
use super::owned::Owned;
use super::versions::Elsewhere;
use super::{Conflict, Error, Structure, Versions, Write};
use super::{managed_of, merge, set_managed, stored_text, take};
use headwater_api::clock::rfc3339;
use headwater_api::kind::Kind;
use headwater_json::{Map, Value};

/// Applies a configuration: all fields that its manager wants to own. `live` is the stored object, if
/// any. Returns the object to store, before defaults; the apply may have removed members, so callers
/// use [`crate::decode::refit`] for built-in kinds.
pub fn apply<V: Versions>(
    live: Option<&Value>,
    config: &Value,
    write: &Write<'_>,
    force: bool,
    kind: &Kind,
    versions: V,
) -> Result<Value, Error> {
    let structure = versions.own();
    let config = &*checked_config(config, kind, structure)?;
    let empty = structure.empty();
    let current = live.unwrap_or(&empty);
    let text = stored_text(managed_of(current));
    let mut entries = Entries::stored(&text);
    if entries.is_empty() && live.is_some() {
        let before = Write { manager: "before-first-apply", ..*write };
        let all = compare_objects(&empty, current, write.ignored, structure);
        entries.update(all, &before, &Elsewhere::default().changes(versions, write));
    }
    let apply = Apply { current, config, write, versions, structure };
    let (mut object, entries) = apply.run_for(entries, force)?;
    if write.manager == "kubectl" {
        refresh_last_applied(&mut object, config);
    }
    set_managed(&mut object, entries);
    Ok(object)
}

/// One attempt to apply.
struct Apply<'a, V: Versions> {
    current: &'a Value,
    config: &'a Value,
    write: &'a Write<'a>,
    versions: V,
    /// In the version of the write.
    structure: V::Structure,
}

impl<'a, V: Versions> Apply<'a, V> {
    /// `kubectl apply --server-side` may take over fields of `kubectl apply`: fields that still have
    /// their value in the last-applied annotation do not conflict.
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

    /// The stored object and its entries.
    fn run(&self, entries: Entries<'a>, force: bool) -> Result<(Value, Option<String>), Error> {
        let id = ManagerEntry::id(self.write, Operation::Apply);
        let wanted = self.wanted();
        let mut entries = entries;
        let merged = merge::merge_objects(self.current, self.config, self.structure);
        let last = entries.remove(&id);
        let object = match &last {
            Some(last) if self.is_told_elsewhere(last, &entries) => {
                self.prune_across(merged, last, &wanted, &entries)?
            }
            // Usually all of it is applied again.
            Some(last) if last.fields.is_within(&wanted) => merged,
            Some(last) => self.prune(&merged, &last.fields.set(), &wanted, &entries),
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
        let owned = Owned::Set(wanted.without_system_fields());
        entries.insert(ManagerEntry::new(id, self.write.api_version, time, owned));
        Ok((object, entries.encode()))
    }

    /// The fields of the configuration.
    fn wanted(&self) -> FieldSet<'a> {
        let mut set = compare::fields_of_object(self.config, self.structure);
        for member in self.write.ignored {
            set.remove_field(member);
        }
        set
    }

    /// Removes fields that this manager owned, no longer applies, and no other manager owns.
    fn prune(
        &self,
        merged: &Value,
        last: &FieldSet<'_>,
        set: &FieldSet<'a>,
        others: &Entries<'a>,
    ) -> Value {
        let structure = self.structure;
        let mut owned = set.clone();
        for entry in others.iter() {
            owned.union(entry.fields.clone().into_set());
        }
        let last = last.with_named(structure);
        let all = compare::fields_of_object(merged, structure).with_named(structure);
        let kept = merge::remove(merged, &last, structure);
        // All fields, minus those that survive the removal, minus owned ones.
        let mut unowned = all.clone();
        self.take_out(&mut unowned, kept.as_ref());
        unowned.subtract(&owned.with_named(structure));
        let kept = merge::remove(merged, &unowned, structure);
        // Restores fields that were removed with their parent but did not belong to this manager.
        let mut gone = all;
        self.take_out(&mut gone, kept.as_ref());
        let gone = gone.intersect(&last);
        merge::remove(merged, &gone, structure).unwrap_or_else(|| Value::Object(Map::new()))
    }

    /// Whether a manager owns fields in another version, where names may differ.
    fn is_told_elsewhere(&self, last: &ManagerEntry<'a>, others: &Entries<'a>) -> bool {
        let mut versions = others.versions().chain([last.version()]);
        !self.versions.are_alike() && versions.any(|version| version != self.write.api_version)
    }

    /// The same for managers in several versions: removes the fields of this manager's last apply, in
    /// its version, then restores the fields of others, in each of their versions.
    fn prune_across(
        &self,
        merged: Value,
        last: &ManagerEntry<'a>,
        set: &FieldSet<'a>,
        others: &Entries<'a>,
    ) -> Result<Value, Error> {
        let own = self.write.api_version;
        let Some(structure) = self.versions.structure(last.version()) else { return Ok(merged) };
        let before = self.at(&merged, last.version())?;
        let owned = last.fields.set().with_named(structure);
        let mut pruned = merge::remove(&before, &owned, structure).unwrap_or_default();
        let mut at = last.version().to_owned();
        let mut versions: BTreeSet<&str> = others.versions().chain([own]).collect();
        // First in the current version: a conversion may need fields of others.
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

    /// Removes all fields of an object from a set.
    fn take_out(&self, set: &mut FieldSet<'_>, object: Option<&Value>) {
        if let Some(object) = object {
            let fields = compare::fields_of_object(object, self.structure);
            set.subtract(&fields.with_named(self.structure));
        }
    }
}

/// Restores owned fields of a pruned object from its previous state.
fn put_back<S: Structure>(
    whole: &Value,
    pruned: &Value,
    managed: &FieldSet<'_>,
    structure: S,
) -> Value {
    let mut gone = compare::fields_of_object(whole, structure).with_named(structure);
    gone.subtract(&compare::fields_of_object(pruned, structure).with_named(structure));
    gone.subtract(&managed.with_named(structure));
    merge::remove(whole, &gone, structure).unwrap_or_default()
}

pub(super) const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The paths of fields that `kubectl apply` wrote and that have not changed since.
fn last_applied_paths<S: Structure>(
    current: &Value,
    write: &Write<'_>,
    structure: S,
) -> BTreeSet<String> {
    let applied = || {
        let text = current.get("metadata")?.get("annotations")?.get(LAST_APPLIED)?.as_str()?;
        let applied = headwater_json::parse(text.as_bytes()).ok()?.value;
        (applied.get("apiVersion")?.as_str()? == write.api_version).then_some(applied)
    };
    let Some(applied) = applied() else { return BTreeSet::new() };
    let mut fields = compare::fields_of_object(&applied, structure);
    let changes = compare_objects(&applied, current, &[], structure);
    for set in [&changes.modified, &changes.added, &changes.removed] {
        fields.subtract(set);
    }
    fields.paths().list.into_iter().collect()
}

/// Updates the annotation of client-side apply, if present.
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

/// Rejects a configuration with `managedFields`; null is allowed.
fn unclaimed(config: &Value) -> Result<Cow<'_, Value>, Error> {
    match managed_of(config) {
        None => Ok(Cow::Borrowed(config)),
        Some(Value::Null) => {
            let mut config = config.clone();
            take(&mut config);
            Ok(Cow::Owned(config))
        }
        Some(_) => Err(Error::Invalid("metadata.managedFields must be nil".into())),
    }
}

/// Checks that a configuration has a kind, has no `managedFields`, and fits its type.
fn checked_config<'a, S: Structure>(
    config: &'a Value,
    kind: &Kind,
    structure: S,
) -> Result<Cow<'a, Value>, Error> {
    let text = |value: &Value, key: &str| {
        value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let (api_version, name) = (text(config, "apiVersion"), text(config, "kind"));
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let found = format!("{group}/{version}, Kind={name}");
    if group != kind.group || version != kind.version || name != kind.kind {
        return Err(Error::Invalid(format!("invalid object type: {found}")));
    }
    let config = unclaimed(config)?;
    merge::validate(&config, structure).map_err(|why| {
        let metadata = config.get("metadata").unwrap_or(&Value::Null);
        let (namespace, name) = (text(metadata, "namespace"), text(metadata, "name"));
        Error::Invalid(format!(
            "failed to create typed patch object ({namespace}/{name}; {found}): {why}"
        ))
    })?;
    Ok(config)
}
