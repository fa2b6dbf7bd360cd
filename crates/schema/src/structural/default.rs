//! Defaulting by a schema (S9.10, S9.13).

use headwater_json::{Map, Value};

use super::{Additional, Node};

/// The maximum size of all defaults that are added to an object: no object may be larger.
const ADDED_MAX: usize = 3 * 1024 * 1024;

/// What a value takes besides its text.
const VALUE_BYTES: usize = 8;

/// The defaults of an object are larger than an object may be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the defaults of the object are larger than {ADDED_MAX} bytes")]
pub struct TooManyDefaults;

/// What becomes of a null in a field that is not nullable and has no default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nulls {
    /// It is removed, as in everything that is decoded.
    Dropped,
    /// It stays, and validation rejects it, as in the result of an apply.
    Kept,
}

/// Sets defaults in a value.
pub(super) fn value(node: &Node, value: &mut Value, nulls: Nulls) -> Result<(), TooManyDefaults> {
    Filler { left: ADDED_MAX, nulls }.value(node, value)
}

/// Adds defaults as long as there is room.
struct Filler {
    left: usize,
    nulls: Nulls,
}

impl Filler {
    fn value(&mut self, node: &Node, value: &mut Value) -> Result<(), TooManyDefaults> {
        match value {
            Value::Object(members) => self.object(node, members),
            Value::Array(elements) => {
                let Some(items) = &node.items else { return Ok(()) };
                for element in elements {
                    if is_void(element, items) {
                        *element = self.default(items, 0)?.unwrap_or(Value::Null);
                    }
                    self.value(items, element)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn object(&mut self, node: &Node, members: &mut Map) -> Result<(), TooManyDefaults> {
        // A null in a non-nullable field counts as absent.
        if self.nulls == Nulls::Dropped {
            members.retain(|name, value| {
                !node.field(name).is_some_and(|node| is_void(value, node) && node.default.is_none())
            });
        }
        for (name, inner) in &node.properties {
            let is_missing = match members.get(name) {
                Some(value) => is_void(value, inner),
                None => true,
            };
            if inner.default.is_some()
                && is_missing
                && let Some(default) = self.default(inner, name.len())?
            {
                members.insert((&**name).into(), default);
            }
        }
        for (name, value) in members {
            match (node.property(name), &node.additional) {
                (Some(inner), _) => self.value(inner, value)?,
                (None, Some(Additional::Of(inner))) => {
                    if is_void(value, inner)
                        && let Some(default) = self.default(inner, 0)?
                    {
                        *value = default;
                    }
                    self.value(inner, value)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A copy of the default of a node, charged before it is made.
    fn default(&mut self, node: &Node, name: usize) -> Result<Option<Value>, TooManyDefaults> {
        let Some(default) = &node.default else { return Ok(None) };
        let size = node.default_bytes + name + VALUE_BYTES;
        self.left = self.left.checked_sub(size).ok_or(TooManyDefaults)?;
        Ok(Some(default.clone()))
    }
}

/// Whether a value is a null that is not allowed.
fn is_void(value: &Value, node: &Node) -> bool {
    value.is_null() && !node.nullable
}

#[cfg(test)]
mod tests {
    use headwater_json::json;

    use super::*;
    use crate::structural::Schema;

    fn schema(default: &str) -> Schema {
        let item = json!({"type": "object", "properties": {
            "text": {"type": "string", "default": default},
        }});
        Schema::compile(&json!({"type": "object", "properties": {
            "list": {"type": "array", "items": item},
            "map": {"type": "object", "additionalProperties": item},
        }}))
        .unwrap()
    }

    /// The bytes of all texts.
    fn bytes(value: &Value) -> usize {
        value.to_string().len()
    }

    /// B139: 30 KB with a default of 100 KB in 10,000 elements took 2.1 GB.
    #[test]
    fn defaults_that_multiply_end_before_memory_is_used() {
        let schema = schema(&"x".repeat(100_000));
        let list = vec![json!({}); 10_000];
        let map: Map = (0..10_000).map(|at| (at.to_string(), json!({}))).collect();
        for mut object in [json!({"list": list}), json!({"map": map})] {
            assert_eq!(schema.default(&mut object), Err(TooManyDefaults));
            assert!(bytes(&object) < 2 * ADDED_MAX, "{}", bytes(&object));
        }
    }

    #[test]
    fn defaults_up_to_the_limit_are_set() {
        let schema = schema(&"x".repeat(100_000));
        let mut object = json!({"list": vec![json!({}); 31]});
        assert_eq!(schema.default(&mut object), Ok(()));
        assert_eq!(object["list"][30]["text"].as_str().map(str::len), Some(100_000));
        let mut object = json!({"list": vec![json!({}); 32]});
        assert_eq!(schema.default(&mut object), Err(TooManyDefaults));
    }
}
