//! The entries of `managedFields`: one for each manager, operation and subresource.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::compare::Changes;
use super::fields::{self, Fields, intersect, subtract, union};
use super::{Conflict, Write};
use crate::clock::rfc3339;
use crate::query::quote;

/// Entries of updates before the oldest are folded into one (S2.28).
const UPDATES_MAX: usize = 10;

/// Most entries that are read; objects with more are reset.
const ENTRIES_MAX: usize = 1_000;

/// How a manager came by its fields. Apply comes first in lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    Apply,
    Update,
}

impl Operation {
    fn as_str(self) -> &'static str {
        match self {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        }
    }
}

/// What tells entries apart. An applier is the same in all versions, so it has none here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id {
    manager: String,
    operation: Operation,
    version: String,
    subresource: String,
}

/// What one manager owns.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    id: Id,
    api_version: String,
    /// When the set last changed; an apply that changed nothing leaves none.
    pub(super) time: Option<String>,
    pub(super) fields: Fields,
}

/// All entries of an object.
#[derive(Clone, Debug, Default)]
pub(super) struct Entries {
    entries: BTreeMap<Id, Entry>,
}

impl Entry {
    pub(super) fn id(write: &Write<'_>, operation: Operation) -> Id {
        Id {
            manager: match write.manager {
                "" => "unknown".into(),
                manager => manager.into(),
            },
            operation,
            version: match operation {
                Operation::Apply => String::new(),
                Operation::Update => write.api_version.into(),
            },
            subresource: write.subresource.into(),
        }
    }

    pub(super) fn new(id: Id, api_version: &str, time: Option<String>, fields: Fields) -> Entry {
        Entry { id, api_version: api_version.into(), time, fields }
    }

    fn decode(value: &Value, fields: Fields) -> Option<Entry> {
        let text = |key: &str| value.get(key).and_then(Value::as_str);
        let operation = match text("operation")? {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        let api_version = text("apiVersion").filter(|version| !version.is_empty())?;
        if text("fieldsType")? != "FieldsV1" {
            return None;
        }
        let id = Id {
            manager: text("manager").unwrap_or_default().into(),
            operation,
            version: match operation {
                Operation::Apply => String::new(),
                Operation::Update => api_version.into(),
            },
            subresource: text("subresource").unwrap_or_default().into(),
        };
        let time = text("time").map(str::to_owned);
        Some(Entry { id, api_version: api_version.into(), time, fields })
    }

    fn encode(self) -> Value {
        let mut entry = Map::new();
        entry.insert("manager".into(), self.id.manager.into());
        entry.insert("operation".into(), self.id.operation.as_str().into());
        entry.insert("apiVersion".into(), self.api_version.into());
        if let Some(time) = self.time {
            entry.insert("time".into(), time.into());
        }
        entry.insert("fieldsType".into(), "FieldsV1".into());
        entry.insert("fieldsV1".into(), Value::Object(self.fields));
        if !self.id.subresource.is_empty() {
            entry.insert("subresource".into(), self.id.subresource.into());
        }
        Value::Object(entry)
    }

    /// As messages name its manager.
    fn shown(&self) -> String {
        let mut shown = quote(&self.id.manager);
        if !self.id.subresource.is_empty() {
            shown.push_str(&format!(" with subresource {}", quote(&self.id.subresource)));
        }
        if self.id.operation == Operation::Update {
            shown.push_str(&format!(" using {}", self.api_version));
        }
        shown
    }
}

impl Entries {
    /// Reads entries that a client sent; none if any of them is broken.
    pub(super) fn decode(values: &[Value]) -> Option<Entries> {
        if values.len() > ENTRIES_MAX {
            return None;
        }
        let mut entries = Entries::default();
        for value in values {
            let fields = match value.get("fieldsV1") {
                None | Some(Value::Null) => Fields::new(),
                Some(fields) => fields::read(fields)?,
            };
            entries.insert(Entry::decode(value, fields)?);
        }
        Some(entries)
    }

    /// Reads entries that we wrote: they have their one spelling already.
    pub(super) fn decode_stored(value: Value) -> Entries {
        let mut entries = Entries::default();
        let Value::Array(values) = value else { return entries };
        for mut value in values {
            let fields = match value.get_mut("fieldsV1") {
                Some(Value::Object(fields)) => std::mem::take(fields),
                _ => Fields::new(),
            };
            if let Some(entry) = Entry::decode(&value, fields) {
                entries.insert(entry);
            }
        }
        entries
    }

    /// As `managedFields`; none if there is nothing to say.
    pub(super) fn encode(self) -> Option<Value> {
        let mut entries: Vec<Entry> = self.entries.into_values().collect();
        entries.sort_by(|a, b| {
            let key = |entry: &Entry| (entry.id.operation, entry.time.clone().unwrap_or_default());
            key(a).cmp(&key(b)).then_with(|| a.id.cmp(&b.id))
        });
        (!entries.is_empty()).then(|| entries.into_iter().map(Entry::encode).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    pub(super) fn remove(&mut self, id: &Id) -> Option<Entry> {
        self.entries.remove(id)
    }

    /// Entries that own nothing do not exist.
    pub(super) fn insert(&mut self, entry: Entry) {
        if !entry.fields.is_empty() {
            self.entries.insert(entry.id.clone(), entry);
        }
    }

    /// Gives the fields that an update changed to its manager.
    pub(super) fn update(&mut self, changes: &Changes, write: &Write<'_>) {
        self.lose(changes);
        let mut taken = changes.modified.clone();
        union(&mut taken, &changes.added);
        if taken.is_empty() {
            return;
        }
        let id = Entry::id(write, Operation::Update);
        if let Some(previous) = self.remove(&id) {
            union(&mut taken, &previous.fields);
        }
        self.insert(Entry::new(id, write.api_version, Some(rfc3339(write.now)), taken));
        self.fold_oldest();
    }

    /// Takes changed and removed fields from all entries.
    pub(super) fn lose(&mut self, changes: &Changes) {
        for entry in self.entries.values_mut() {
            for set in [&changes.modified, &changes.added, &changes.removed] {
                subtract(&mut entry.fields, set);
            }
        }
        self.entries.retain(|_, entry| !entry.fields.is_empty());
    }

    /// The fields that others own and that would change.
    pub(super) fn conflicts(&self, changes: &Changes) -> Vec<Conflict> {
        let mut conflicts = Vec::new();
        for entry in self.entries.values() {
            let mut fields = intersect(&entry.fields, &changes.modified);
            union(&mut fields, &intersect(&entry.fields, &changes.added));
            let manager = entry.shown();
            conflicts.extend(
                fields::paths(&fields)
                    .into_iter()
                    .map(|field| Conflict { manager: manager.clone(), field }),
            );
        }
        conflicts
    }

    /// Keeps the number of updaters small: the oldest become one, for each version.
    fn fold_oldest(&mut self) {
        let mut updaters: Vec<Id> =
            self.entries.keys().filter(|id| id.operation == Operation::Update).cloned().collect();
        if updaters.len() <= UPDATES_MAX {
            return;
        }
        updaters.sort_by_cached_key(|id| {
            (self.entries.get(id).and_then(|entry| entry.time.clone()), id.clone())
        });
        let mut left = updaters.len();
        let mut first_of_version: BTreeMap<String, Id> = BTreeMap::new();
        for id in updaters {
            if left <= UPDATES_MAX {
                return;
            }
            let Some(first) = first_of_version.get(&id.version).cloned() else {
                first_of_version.insert(id.version.clone(), id);
                continue;
            };
            self.fold(&first, &id);
            left -= 1;
        }
    }

    /// Folds an entry into the bucket of its version, which begins as the `first` folded one.
    fn fold(&mut self, first: &Id, id: &Id) {
        let bucket = Id {
            manager: "ancient-changes".into(),
            operation: Operation::Update,
            version: id.version.clone(),
            subresource: String::new(),
        };
        let mut into = match self.remove(&bucket).or_else(|| self.remove(first)) {
            Some(entry) => entry,
            None => return,
        };
        if let Some(entry) = self.remove(id) {
            union(&mut into.fields, &entry.fields);
            into.time = entry.time;
        }
        self.insert(Entry { id: bucket, ..into });
    }
}
