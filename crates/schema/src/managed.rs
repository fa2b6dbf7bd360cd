//! Server-side apply and `managedFields` (S2.24 to S2.28).
//!
//! River: a decoded write → **managed** → the object that is stored, with its `managedFields`.
//! Promise: the manager of a write owns every field that it changes; an apply changes a field of
//! another manager only with `force`, and removes only fields that its manager alone owned. Invalid
//! `managedFields` are never an error (B196).

mod apply;
mod compare;
mod entry;
mod fields;
mod merge;
mod owned;
mod stored;
mod structure;
mod versions;

use std::borrow::Cow;

use headwater_json::Value;
use jiff::Timestamp;

use headwater_api::status::{Cause, Details, Status};
use headwater_json::push_value;

pub use apply::apply;
pub use structure::{Builtin, Form, Loose, Structure};
pub use versions::Versions;

use compare::{compare_objects, zip};
use entry::Entries;
use versions::Elsewhere;

/// A write, as field management sees it.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// Name of the manager; see [`headwater_api::options::manager_name`].
    pub manager: &'a str,
    /// The subresource it writes through; empty for the object itself.
    pub subresource: &'a str,
    /// Version that the object is written in, such as `apps/v1`.
    pub api_version: &'a str,
    /// The time of the write.
    pub now: Timestamp,
    /// Members of the object that this write cannot change, such as `status`: it does not own them.
    pub ignored: &'a [&'a str],
}

/// Why an apply was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The body does not fit the type. (400)
    #[error("{0}")]
    Invalid(String),
    /// Other managers own fields that it would change. (409)
    #[error("{}", conflict_message(.0))]
    Conflicts(Vec<Conflict>),
    /// A manager wrote in another version, to which the object must be converted first.
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
    /// The manager as messages name it: `"m"`, with subresource and version if needed.
    pub manager: String,
    /// The path, such as `.spec.containers[name="c"].image`.
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

/// Replaces the entries of an object, which writes keep as one string, by the list of the wire format.
/// All functions here accept both and produce the string. It contains the JSON text of the entries, so
/// an object that is written repeatedly never has them parsed into a tree.
pub fn unpack(object: &mut Value) {
    let Some(Value::String(_)) = managed_of(object) else { return };
    if let Some(Value::String(text)) = take(object)
        && let Ok(entries) = serde_json::from_str(&text)
    {
        put(object, entries);
    }
}

/// Updates `managedFields` of a created, updated or patched object. `new` is the object to store, after
/// defaults; `old` is the stored one. Only a kind whose versions differ can fail; then `new` has lost
/// its entries.
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

/// The entries to start from.
enum Known<'a> {
    /// The stored text.
    Stored(Cow<'a, str>),
    /// The entries that the client sent.
    Sent(Entries<'a>),
}

impl<'a> Known<'a> {
    /// The entries of the client, if they are valid; else the stored ones. `[]` and `[{}]` reset them.
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
        // Clients usually send back the entries that they read.
        let stored_entries = stored_text(old.and_then(managed_of));
        if !stored_entries.is_empty() && json_text(sent) == stored_entries.as_bytes() {
            return Known::Stored(stored_entries);
        }
        match Entries::sent(sent) {
            Some(entries) if !entries.is_empty() => Known::Sent(entries),
            _ => stored(),
        }
    }

    /// The entries after an update. An object without entries stays untracked until its first apply.
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

/// The stored entries as text; empty if there are none.
fn stored_text(managed: Option<&Value>) -> Cow<'_, str> {
    match managed {
        Some(Value::String(text)) => Cow::Borrowed(text),
        Some(list @ Value::Array(_)) => Cow::Owned(list.to_string()),
        _ => Cow::Borrowed(""),
    }
}

/// Restores the times of entries if only times changed: such a write is a no-op (S2.12). An apply may
/// contain elements of an atomic list without defaults, and only the defaulted object shows that they
/// are equal.
pub fn keep_times(old: &Value, new: &mut Value) {
    if !are_alike(old, new) {
        return;
    }
    let before = stored_text(managed_of(old));
    let after = stored_text(managed_of(new));
    if before != after
        && Entries::stored(&before).differ_in_times(&Entries::stored(&after))
        && let Some(before) = managed_of(old)
    {
        put(new, before.clone());
    }
}

/// Whether two objects are equal except for their entries.
fn are_alike(one: &Value, other: &Value) -> bool {
    let (Value::Object(one), Value::Object(other)) = (one, other) else { return false };
    zip(one, other).all(|(key, one, other)| match (one, other) {
        (Some(Value::Object(one)), Some(Value::Object(other))) if key == "metadata" => {
            zip(one, other).all(|(key, one, other)| key == "managedFields" || one == other)
        }
        _ => one == other,
    })
}

/// Fields without a manager: the identity of the object, and fields that the server sets.
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

fn managed_of(object: &Value) -> Option<&Value> {
    object.get("metadata")?.get("managedFields")
}

/// Removes the entries from an object.
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
