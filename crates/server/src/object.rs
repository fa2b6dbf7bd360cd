//! Objects in a write: a tree that becomes canonical bytes.
//!
//! River: body → **object** → store. Only writes handle objects as trees. Stored bytes have each key
//! once, `kind`, `apiVersion` and `metadata` first, and no resourceVersion: the revision of the write
//! becomes it.

use bytes::Bytes;
use headwater_api::canonical::push_metadata;
use headwater_api::{EventType, Object, Revision, Status};
use headwater_json::scan::{self, Malformed};
use headwater_json::{Map, Value};
use headwater_schema::decode;
use serde::de::DeserializeOwned;

use crate::answer::status;

pub(crate) use headwater_api::canonical;

/// The bytes of a stored object, with the metadata of `value` instead of its own.
pub(crate) fn with_metadata(stored: &[u8], value: &Value) -> Vec<u8> {
    let span = scan::find(stored, &["metadata"]).unwrap_or_default();
    let mut bytes = Vec::with_capacity(stored.len() + 128);
    bytes.extend_from_slice(&stored[..span.start as usize]);
    let empty = Map::new();
    push_metadata(&mut bytes, value["metadata"].as_object().unwrap_or(&empty));
    bytes.extend_from_slice(&stored[span.end as usize..]);
    bytes
}

/// Parses a stored object.
pub(crate) fn tree(bytes: &[u8]) -> Result<Value, Status> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    // The depth was checked when the object was written.
    deserializer.disable_recursion_limit();
    serde::Deserialize::deserialize(&mut deserializer)
        .map_err(|error| status::internal(format!("a stored object cannot be read: {error}")))
}

/// Parses a stored object and leaves the entries of `managedFields` as text, as [`canonical`] and the
/// `managed` module expect; [`managed::unpack`] parses them.
pub(crate) fn packed_tree(bytes: &[u8]) -> Result<Value, Status> {
    decode::stored(bytes)
        .map_err(|error| status::internal(format!("a stored object cannot be read: {error}")))
}

/// Parses the metadata of a stored object, as [`packed_tree`] does, and these other fields.
pub(crate) fn partial_tree(bytes: &[u8], fields: &[[&str; 2]]) -> Result<Value, Status> {
    let text = |path: &[&str]| scan::find(bytes, path).map(|span| span.of(bytes));
    let metadata = text(&["metadata"]).unwrap_or(b"{}");
    let mut value = packed_tree(&[b"{\"metadata\":", metadata, b"}"].concat())?;
    for [member, field] in fields {
        if let Some(text) = text(&[member, field]) {
            value[*member][*field] = packed_tree(text)?;
        }
    }
    Ok(value)
}

/// One version of an object as a tree, with its revision.
#[derive(Clone, Debug)]
pub(crate) struct Current {
    /// The object; `metadata.resourceVersion` is set, `metadata.managedFields` is text.
    pub(crate) value: Value,
    /// The revision of its last change.
    pub(crate) revision: Revision,
}

impl Current {
    /// From the cache.
    pub(crate) fn of(object: &Object) -> Result<Current, Status> {
        Ok(Current { value: packed_tree(object.as_slice())?, revision: object.revision() })
    }
}

/// A part of an object as a type of its own; `None` if it does not have its form.
pub(crate) fn part<T: DeserializeOwned>(value: &Value) -> Option<T> {
    serde_json::from_slice(&serde_json::to_vec(value).ok()?).ok()
}

/// Sets `metadata.resourceVersion`.
pub(crate) fn stamp(value: &mut Value, revision: Revision) {
    metadata(value).insert("resourceVersion".into(), revision.to_string().into());
}

/// The metadata of an object; added if absent.
pub(crate) fn metadata(value: &mut Value) -> &mut Map {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let metadata = value
        .as_object_mut()
        .expect("it was made an object above")
        .entry("metadata")
        .or_insert_with(|| Value::Object(Map::new()));
    if !metadata.is_object() {
        *metadata = Value::Object(Map::new());
    }
    metadata.as_object_mut().expect("it was made an object above")
}

/// A string of the metadata; empty if absent.
pub(crate) fn meta<'a>(value: &'a Value, key: &str) -> &'a str {
    value["metadata"][key].as_str().unwrap_or_default()
}

/// `namespace/name` or `name`.
pub(crate) fn object_key(namespace: &str, name: &str) -> String {
    match namespace {
        "" => name.to_owned(),
        namespace => format!("{namespace}/{name}"),
    }
}

/// The finalizers.
pub(crate) fn finalizers(value: &Value) -> Vec<&str> {
    let list = value["metadata"]["finalizers"].as_array();
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Whether deletion was requested.
pub(crate) fn is_deleting(value: &Value) -> bool {
    value["metadata"]["deletionTimestamp"].is_string()
}

/// The result of a write: an object at a revision. Most results are sent unchanged, so the head is
/// parsed only on demand.
pub(crate) struct Answer {
    pub(crate) stored: Bytes,
    pub(crate) revision: Revision,
}

impl Answer {
    /// The complete object as JSON.
    pub(crate) fn bytes(&self) -> Result<Bytes, Status> {
        Object::stamp(&self.stored, self.revision).map_err(unreadable)
    }

    /// The object.
    pub(crate) fn object(&self) -> Result<Object, Status> {
        wire(&self.stored, self.revision)
    }
}

fn unreadable(error: Malformed) -> Status {
    status::internal(format!("an object cannot be read: {error}"))
}

/// The bytes of an object at a revision. Responses are not selected, so selectable fields are not
/// parsed.
pub(crate) fn wire(stored: &[u8], revision: Revision) -> Result<Object, Status> {
    Object::decode(stored, revision, EventType::Modified, &[]).map_err(unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_json::json;

    /// S6.2
    #[test]
    fn stored_bytes_begin_with_the_type_and_have_no_version() {
        let value = json!({
            "apiVersion": "v1", "data": {"a": "b"}, "kind": "ConfigMap",
            "metadata": {"name": "x", "resourceVersion": "7"}
        });
        let text = String::from_utf8(canonical(&value)).unwrap();
        let expected =
            r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"x"},"data":{"a":"b"}}"#;
        assert_eq!(text, expected);
    }

    #[test]
    fn an_object_whose_metadata_changes_prints_like_the_complete_tree() {
        let mut value = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "x", "managedFields": "[{\"manager\":\"m\"}]", "resourceVersion": "7"},
            "spec": {"nodeName": "n", "containers": [{"name": "metadata"}]},
            "status": {"phase": "Running"},
        });
        let stored = canonical(&value);
        let fields = [["spec", "nodeName"], ["status", "phase"], ["status", "absent"]];
        let mut partial = partial_tree(&stored, &fields).unwrap();
        let expected = json!({
            "metadata": {"name": "x", "managedFields": "[{\"manager\":\"m\"}]"},
            "spec": {"nodeName": "n"}, "status": {"phase": "Running"},
        });
        assert_eq!(partial, expected);
        for value in [&mut value, &mut partial] {
            metadata(value).insert("deletionTimestamp".into(), "2026-01-01T00:00:00Z".into());
        }
        assert_eq!(with_metadata(&stored, &partial), canonical(&value));
    }
}
