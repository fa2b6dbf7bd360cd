//! Objects on their way to the store: a tree while they are being written, canonical bytes after.
//!
//! River: body → **object** → store. A write is the only place where an object is a tree; what is
//! stored has each key once, `kind`, `apiVersion` and `metadata` first, and no resourceVersion,
//! which the revision of the write will be.

use headwater_api::{EventType, Kind, Object, Revision, Status};
use headwater_store::Record;
use serde::ser::{SerializeMap, Serializer};
use serde_json::{Map, Value};

use crate::registry::Served;
use crate::status;

/// The bytes that are stored.
pub(crate) fn canonical(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(2048);
    let mut serializer = headwater_api::json::serializer(&mut bytes);
    serialize(value, &mut serializer).expect("a JSON tree can be written to memory");
    bytes
}

fn serialize<S: Serializer>(value: &Value, serializer: S) -> Result<S::Ok, S::Error> {
    let empty = Map::new();
    let object = value.as_object().unwrap_or(&empty);
    let mut map = serializer.serialize_map(None)?;
    for key in ["kind", "apiVersion"] {
        if let Some(value) = object.get(key) {
            map.serialize_entry(key, value)?;
        }
    }
    map.serialize_entry("metadata", &Metadata(object.get("metadata")))?;
    for (key, value) in object {
        if !matches!(key.as_str(), "kind" | "apiVersion" | "metadata") {
            map.serialize_entry(key, value)?;
        }
    }
    map.end()
}

/// Metadata without its resourceVersion.
struct Metadata<'a>(Option<&'a Value>);

impl serde::Serialize for Metadata<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let empty = Map::new();
        let object = self.0.and_then(Value::as_object).unwrap_or(&empty);
        serializer.collect_map(object.iter().filter(|(key, _)| *key != "resourceVersion"))
    }
}

/// An object as a tree, from the bytes that the cache or the store hold.
pub(crate) fn tree(bytes: &[u8]) -> Result<Value, Status> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    // What is stored was checked for depth when it was written.
    deserializer.disable_recursion_limit();
    serde::Deserialize::deserialize(&mut deserializer)
        .map_err(|error| status::internal(format!("a stored object cannot be read: {error}")))
}

/// One version of an object as a tree, with its revision.
#[derive(Clone, Debug)]
pub(crate) struct Current {
    /// The object; `metadata.resourceVersion` is set.
    pub(crate) value: Value,
    /// The revision of its last change.
    pub(crate) revision: Revision,
}

impl Current {
    /// From the cache.
    pub(crate) fn of(object: &Object) -> Result<Current, Status> {
        Ok(Current { value: tree(object.as_slice())?, revision: object.revision() })
    }

    /// From the store, in the form that objects of this kind are read in.
    pub(crate) fn read(kind: &Served, record: &Record) -> Result<Current, Status> {
        let mut value = tree(&record.value)?;
        if let Some(custom) = &kind.definition {
            custom.form.settle(&mut value);
        }
        stamp(&mut value, record.revision);
        Ok(Current { value, revision: record.revision })
    }
}

/// Sets `metadata.resourceVersion`.
pub(crate) fn stamp(value: &mut Value, revision: Revision) {
    metadata(value).insert("resourceVersion".into(), Value::String(revision.to_string()));
}

/// The metadata of an object; made if it is not there.
pub(crate) fn metadata(value: &mut Value) -> &mut Map<String, Value> {
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

/// A string of the metadata; empty if it is not there.
pub(crate) fn meta<'a>(value: &'a Value, key: &str) -> &'a str {
    value["metadata"][key].as_str().unwrap_or_default()
}

/// The finalizers.
pub(crate) fn finalizers(value: &Value) -> Vec<&str> {
    let list = value["metadata"]["finalizers"].as_array();
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Whether deletion was asked for.
pub(crate) fn is_deleting(value: &Value) -> bool {
    value["metadata"]["deletionTimestamp"].is_string()
}

/// The bytes of an object at a revision, as they are sent.
pub(crate) fn wire(kind: &Kind, stored: &[u8], revision: Revision) -> Result<Object, Status> {
    Object::decode(stored, revision, EventType::Modified, &kind.fields)
        .map_err(|error| status::internal(format!("an object cannot be read: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
}
