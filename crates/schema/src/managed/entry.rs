//! The entries of `managedFields`: one for each manager, operation and subresource.
//!
//! Between two writes they are text: a tree holds all of them as one string, which is written out
//! unchanged (see [`super::unpack`]). A write that changes nothing never parses them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use headwater_json::Value;

use super::compare::Changes;
use super::fields::FieldSet;
use super::owned::Owned;
use super::versions::Different;
use super::{Conflict, Write};
use headwater_api::clock::rfc3339;
use headwater_api::query::quote;
use headwater_json::push_string;
use headwater_json::scan::{Malformed, Scanner};

/// The maximum number of update entries before the oldest are merged (S2.28).
const UPDATES_MAX: usize = 10;

/// The maximum number of entries; objects with more are reset.
const ENTRIES_MAX: usize = 1_000;

/// The operation of an entry. Apply sorts first.
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

/// The identity of an entry. An applier is the same in all versions, so it has no version here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id<'a> {
    manager: Cow<'a, str>,
    operation: Operation,
    version: Cow<'a, str>,
    subresource: Cow<'a, str>,
}

/// The entry of one manager.
#[derive(Clone, Debug)]
pub(super) struct ManagerEntry<'a> {
    id: Id<'a>,
    api_version: Cow<'a, str>,
    /// When the set last changed; an apply without changes sets none.
    pub(super) time: Option<Cow<'a, str>>,
    pub(super) fields: Owned<'a>,
}

/// All entries of an object.
#[derive(Clone, Debug, Default)]
pub(super) struct Entries<'a> {
    entries: BTreeMap<Id<'a>, ManagerEntry<'a>>,
}

/// An entry in wire format.
#[derive(Default)]
struct Wire<'a> {
    manager: Cow<'a, str>,
    operation: Cow<'a, str>,
    api_version: Cow<'a, str>,
    time: Option<Cow<'a, str>>,
    fields_type: Cow<'a, str>,
    subresource: Cow<'a, str>,
}

impl<'a> Wire<'a> {
    fn of(value: &'a Value) -> Wire<'a> {
        let text = |key: &str| value.get(key).and_then(Value::as_str).map(Cow::Borrowed);
        Wire {
            manager: text("manager").unwrap_or_default(),
            operation: text("operation").unwrap_or_default(),
            api_version: text("apiVersion").unwrap_or_default(),
            time: text("time"),
            fields_type: text("fieldsType").unwrap_or_default(),
            subresource: text("subresource").unwrap_or_default(),
        }
    }

    fn with(self, fields: Owned<'a>) -> Option<ManagerEntry<'a>> {
        let operation = match &*self.operation {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        if self.api_version.is_empty() || self.fields_type != "FieldsV1" {
            return None;
        }
        let id = Id {
            manager: self.manager,
            operation,
            version: match operation {
                Operation::Apply => Cow::Borrowed(""),
                Operation::Update => self.api_version.clone(),
            },
            subresource: self.subresource,
        };
        Some(ManagerEntry { id, api_version: self.api_version, time: self.time, fields })
    }
}

impl<'a> ManagerEntry<'a> {
    pub(super) fn id(write: &Write<'a>, operation: Operation) -> Id<'a> {
        Id {
            manager: match write.manager {
                "" => Cow::Borrowed("unknown"),
                manager => Cow::Borrowed(manager),
            },
            operation,
            version: match operation {
                Operation::Apply => Cow::Borrowed(""),
                Operation::Update => Cow::Borrowed(write.api_version),
            },
            subresource: Cow::Borrowed(write.subresource),
        }
    }

    pub(super) fn new(
        id: Id<'a>,
        api_version: &'a str,
        time: Option<Cow<'a, str>>,
        fields: Owned<'a>,
    ) -> ManagerEntry<'a> {
        ManagerEntry { id, api_version: Cow::Borrowed(api_version), time, fields }
    }

    /// Parses a stored entry; `Ok(None)` if its operation is unknown.
    fn scan(
        text: &'a str,
        scanner: &mut Scanner<'a>,
    ) -> Result<Option<ManagerEntry<'a>>, Malformed> {
        let mut wire = Wire::default();
        let mut fields = Owned::Stored("{}".into());
        scanner.object::<Malformed>(|key, at| {
            if at.is(key, "fieldsV1") {
                let span = at.value()?;
                fields = Owned::Stored(text[span.start as usize..span.end as usize].into());
                return Ok(());
            }
            if at.peek() != Some(b'"') {
                return at.value().map(drop);
            }
            let span = at.string()?;
            let value = at.text(span)?;
            match &*at.text(key)? {
                "manager" => wire.manager = value,
                "operation" => wire.operation = value,
                "apiVersion" => wire.api_version = value,
                "time" => wire.time = Some(value),
                "fieldsType" => wire.fields_type = value,
                "subresource" => wire.subresource = value,
                _ => {}
            }
            Ok(())
        })?;
        Ok(wire.with(fields))
    }

    /// Writes the entry as JSON, its members in order.
    fn write(&self, out: &mut Vec<u8>) {
        let member = |key: &str, text: &str, out: &mut Vec<u8>| {
            out.push(b',');
            push_string(out, key);
            out.push(b':');
            push_string(out, text);
        };
        out.extend_from_slice(br#"{"apiVersion":"#);
        push_string(out, &self.api_version);
        out.extend_from_slice(br#","fieldsType":"FieldsV1","fieldsV1":"#);
        self.fields.write(out);
        member("manager", &self.id.manager, out);
        member("operation", self.id.operation.as_str(), out);
        if !self.id.subresource.is_empty() {
            member("subresource", &self.id.subresource, out);
        }
        if let Some(time) = &self.time {
            member("time", time, out);
        }
        out.push(b'}');
    }

    /// The version of the write.
    pub(super) fn version(&self) -> &str {
        &self.api_version
    }

    /// The manager as messages name it.
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

impl<'a> Entries<'a> {
    /// Parses entries of a client; `None` if one of them is invalid.
    pub(super) fn sent(values: &'a [Value]) -> Option<Entries<'a>> {
        if values.len() > ENTRIES_MAX {
            return None;
        }
        let mut entries = Entries::default();
        for value in values {
            let fields = match value.get("fieldsV1") {
                None | Some(Value::Null) => FieldSet::default(),
                Some(fields) => FieldSet::read(fields)?,
            };
            entries.insert(Wire::of(value).with(Owned::Set(fields))?);
        }
        Some(entries)
    }

    /// Parses stored entries, which are canonical.
    pub(super) fn stored(text: &'a str) -> Entries<'a> {
        let mut entries = Entries::default();
        let mut scanner = Scanner::new(text.as_bytes());
        // Anything else counts as an untracked object.
        let _ = scanner.array::<Malformed>(|at| {
            if let Some(entry) = ManagerEntry::scan(text, at)? {
                entries.insert(entry);
            }
            Ok(())
        });
        entries
    }

    /// The value of `managedFields`; `None` if there are no entries.
    pub(super) fn encode(self) -> Option<String> {
        if self.entries.is_empty() {
            return None;
        }
        let mut entries: Vec<&ManagerEntry<'a>> = self.entries.values().collect();
        entries.sort_by(|a, b| {
            let key = |entry: &ManagerEntry<'a>| (entry.id.operation, entry.time.clone());
            key(a).cmp(&key(b)).then_with(|| a.id.cmp(&b.id))
        });
        let mut out = Vec::with_capacity(1024);
        for entry in entries {
            out.push(if out.is_empty() { b'[' } else { b',' });
            entry.write(&mut out);
        }
        out.push(b']');
        Some(String::from_utf8(out).expect("text and braces are text"))
    }

    /// Whether the same managers own the same fields, ignoring times.
    pub(super) fn differ_in_times(&self, other: &Entries<'_>) -> bool {
        let same = |a: &ManagerEntry<'_>, b: &ManagerEntry<'_>| {
            a.id == b.id && a.api_version == b.api_version && a.fields == b.fields
        };
        self.entries.len() == other.entries.len()
            && self.iter().zip(other.iter()).all(|(a, b)| same(a, b))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ManagerEntry<'a>> {
        self.entries.values()
    }

    /// The versions of the entries, with repeats.
    pub(super) fn versions(&self) -> impl Iterator<Item = &str> {
        self.iter().map(ManagerEntry::version)
    }

    /// The fields of all managers that wrote in a version.
    pub(super) fn owned_in(&self, version: &str) -> FieldSet<'a> {
        let mut owned = FieldSet::default();
        for entry in self.iter().filter(|entry| entry.version() == version) {
            owned.union(entry.fields.clone().into_set());
        }
        owned
    }

    pub(super) fn remove(&mut self, id: &Id<'a>) -> Option<ManagerEntry<'a>> {
        self.entries.remove(id)
    }

    /// Removes empty entries.
    pub(super) fn insert(&mut self, entry: ManagerEntry<'a>) {
        if !entry.fields.is_empty() {
            self.entries.insert(entry.id.clone(), entry);
        }
    }

    /// Gives the fields that an update changed to its manager.
    pub(super) fn update(
        &mut self,
        changes: Changes<'a>,
        write: &Write<'a>,
        elsewhere: &Different<'_>,
    ) {
        let id = ManagerEntry::id(write, Operation::Update);
        let previous = self.remove(&id);
        self.lose(&changes, elsewhere);
        let Changes { added, modified, removed } = changes;
        let mut taken = modified;
        taken.union(added);
        let is_taken = !taken.is_empty();
        // Usually a manager changes fields that it owns.
        let (time, owned) = match previous {
            Some(ManagerEntry { time, mut fields, .. }) => {
                fields.subtract(&removed);
                (time, fields.union(taken))
            }
            None => (None, Owned::Set(taken)),
        };
        let time = if is_taken { Some(rfc3339(write.now).into()) } else { time };
        self.insert(ManagerEntry::new(id, write.api_version, time, owned));
        if is_taken {
            self.fold_oldest();
        }
    }

    /// Removes changed and removed fields from all entries.
    pub(super) fn lose(&mut self, changes: &Changes<'_>, elsewhere: &Different<'_>) {
        self.entries.retain(|_, entry| !elsewhere.is_gone(&entry.api_version));
        for entry in self.entries.values_mut() {
            let changes = elsewhere.at(&entry.api_version).unwrap_or(changes);
            for set in [&changes.modified, &changes.added, &changes.removed] {
                entry.fields.subtract(set);
            }
        }
        self.entries.retain(|_, entry| !entry.fields.is_empty());
    }

    /// The fields of others that would change.
    pub(super) fn conflicts(
        &self,
        changes: &Changes<'_>,
        elsewhere: &Different<'_>,
    ) -> Vec<Conflict> {
        let mut conflicts = Vec::new();
        let entries = self.entries.values();
        for entry in entries.filter(|entry| !elsewhere.is_gone(&entry.api_version)) {
            let changes = elsewhere.at(&entry.api_version).unwrap_or(changes);
            let sets = [&changes.modified, &changes.added];
            if !sets.iter().any(|set| entry.fields.touches(set)) {
                continue;
            }
            let owned = entry.fields.set();
            let mut fields = owned.intersect(&changes.modified);
            fields.union(owned.intersect(&changes.added));
            let manager = entry.shown();
            let paths = fields.paths();
            let more = (paths.omitted > 0).then(|| format!("and {} more", paths.omitted));
            let fields = paths.list.into_iter().chain(more);
            conflicts.extend(fields.map(|field| Conflict { manager: manager.clone(), field }));
        }
        conflicts
    }

    /// Limits the number of updaters: merges the oldest into one per version.
    fn fold_oldest(&mut self) {
        let mut updaters: Vec<Id<'a>> =
            self.entries.keys().filter(|id| id.operation == Operation::Update).cloned().collect();
        if updaters.len() <= UPDATES_MAX {
            return;
        }
        updaters.sort_by_cached_key(|id| {
            (self.entries.get(id).and_then(|entry| entry.time.clone()), id.clone())
        });
        let mut left = updaters.len();
        let mut first_of_version: BTreeMap<Cow<'a, str>, Id<'a>> = BTreeMap::new();
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

    /// Merges an entry into the bucket of its version, which starts as the `first` merged one.
    fn fold(&mut self, first: &Id<'a>, id: &Id<'a>) {
        let bucket = Id {
            manager: "ancient-changes".into(),
            operation: Operation::Update,
            version: id.version.clone(),
            subresource: Cow::Borrowed(""),
        };
        let mut into = match self.remove(&bucket).or_else(|| self.remove(first)) {
            Some(entry) => entry,
            None => return,
        };
        if let Some(entry) = self.remove(id) {
            into.fields = into.fields.union(entry.fields.into_set());
            into.time = entry.time;
        }
        self.insert(ManagerEntry { id: bucket, ..into });
    }
}
