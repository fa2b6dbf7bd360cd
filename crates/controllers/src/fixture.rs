//! Test objects: JSON with changes merged in.

use serde_json::Value;

/// Merges `change` into `value`, as a merge patch does.
pub(crate) fn merge(value: &mut Value, change: &Value) {
    let Value::Object(members) = change else {
        *value = change.clone();
        return;
    };
    if !value.is_object() {
        *value = Value::Object(serde_json::Map::new());
    }
    for (key, change) in members {
        match change {
            Value::Null => drop(value.as_object_mut().and_then(|object| object.remove(key))),
            change => merge(&mut value[key], change),
        }
    }
}
