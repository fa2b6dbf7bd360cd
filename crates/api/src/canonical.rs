//! The canonical bytes of an object: what stores keep.
//!
//! River: tree → **canonical bytes** → store; [`crate::Object::decode`] reads them. Each key is there
//! once, `kind`, `apiVersion` and `metadata` come first, and there is no resourceVersion: the revision of
//! the write becomes it.

use headwater_json::{Map, Value, push_member};

/// The bytes to store.
pub fn canonical(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4096);
    let empty = Map::new();
    let object = value.as_object().unwrap_or(&empty);
    bytes.push(b'{');
    for key in ["kind", "apiVersion"] {
        if let Some(value) = object.get(key) {
            push_member(&mut bytes, key, value);
            bytes.push(b',');
        }
    }
    bytes.extend_from_slice(b"\"metadata\":");
    push_metadata(&mut bytes, object.get("metadata").and_then(Value::as_object).unwrap_or(&empty));
    for (key, value) in object {
        if !matches!(key.as_str(), "kind" | "apiVersion" | "metadata") {
            bytes.push(b',');
            push_member(&mut bytes, key, value);
        }
    }
    bytes.push(b'}');
    bytes
}

/// Appends metadata without its resourceVersion. Entries of `managedFields` that are text are copied.
pub fn push_metadata(bytes: &mut Vec<u8>, metadata: &Map) {
    bytes.push(b'{');
    let mut first = true;
    for (key, value) in metadata.iter().filter(|(key, _)| *key != "resourceVersion") {
        if !std::mem::take(&mut first) {
            bytes.push(b',');
        }
        match (key.as_str(), value) {
            ("managedFields", Value::String(entries)) => {
                bytes.extend_from_slice(b"\"managedFields\":");
                bytes.extend_from_slice(entries.as_bytes());
            }
            _ => push_member(bytes, key, value),
        }
    }
    bytes.push(b'}');
}
