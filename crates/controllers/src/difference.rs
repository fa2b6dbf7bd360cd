//! The difference of two states as a merge patch, for writing a status.
//!
//! River: decision → **difference** → the next write.
//! Promise: applying the patch to `old` gives `new`. Fields that neither state has stay unchanged,
//! so fields that the typed object does not know are not lost.

use serde::Serialize;
use serde_json::{Map, Value};

/// The merge patch that turns `old` into `new`; `None` if they are equal.
pub(crate) fn difference<T: Serialize>(old: &T, new: &T) -> Option<Value> {
    let value = |state: &T| serde_json::to_value(state).expect("API types are JSON");
    between(&value(old), &value(new))
}

fn between(old: &Value, new: &Value) -> Option<Value> {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let gone = old.keys().filter(|key| !new.contains_key(*key));
            let mut patch: Map<String, Value> =
                gone.map(|key| (key.clone(), Value::Null)).collect();
            for (key, value) in new {
                let before = old.get(key).unwrap_or(&Value::Null);
                patch.extend(between(before, value).map(|value| (key.clone(), value)));
            }
            (!patch.is_empty()).then_some(Value::Object(patch))
        }
        (old, new) => (old != new).then(|| new.clone()),
    }
}

/// A count in a status; zero is omitted, as in Kubernetes.
pub(crate) fn count(number: usize) -> Option<i32> {
    i32::try_from(number).ok().filter(|number| *number != 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_patch_holds_changed_fields_and_nulls_for_removed_ones() {
        check(json!({"a": 1}), json!({"a": 1}), None);
        check(json!({"a": 1}), json!({"a": 2}), Some(json!({"a": 2})));
        check(json!({"a": 1, "b": 2}), json!({"b": 2}), Some(json!({"a": null})));
        check(
            json!({"a": {"x": 1, "y": 2}}),
            json!({"a": {"x": 1}}),
            Some(json!({"a": {"y": null}})),
        );
        check(json!({"a": [1, 2]}), json!({"a": [2]}), Some(json!({"a": [2]})));
        check(json!(null), json!({"a": 1}), Some(json!({"a": 1})));
    }

    #[track_caller]
    fn check(old: Value, new: Value, expected: Option<Value>) {
        assert_eq!(difference(&old, &new), expected);
    }
}
