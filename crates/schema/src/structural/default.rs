//! Defaulting by a schema (S9.10, S9.13).

use headwater_json::{Map, Value};

use super::{Additional, Node};

/// Sets defaults in a value.
pub(super) fn value(node: &Node, value: &mut Value) {
    match value {
        Value::Object(members) => object(node, members),
        Value::Array(elements) => {
            let Some(items) = &node.items else { return };
            for element in elements {
                if is_void(element, items) {
                    *element = items.default.clone().unwrap_or(Value::Null);
                }
                self::value(items, element);
            }
        }
        _ => {}
    }
}

fn object(node: &Node, members: &mut Map) {
    // A null in a non-nullable field counts as absent.
    members.retain(|name, value| {
        !node.field(name).is_some_and(|node| is_void(value, node) && node.default.is_none())
    });
    for (name, inner) in &node.properties {
        let Some(default) = &inner.default else { continue };
        match members.get_mut(name) {
            Some(value) if is_void(value, inner) => *value = default.clone(),
            Some(_) => {}
            None => drop(members.insert((&**name).into(), default.clone())),
        }
    }
    for (name, value) in members {
        match (node.property(name), &node.additional) {
            (Some(inner), _) => self::value(inner, value),
            (None, Some(Additional::Of(inner))) => {
                if let (true, Some(default)) = (is_void(value, inner), &inner.default) {
                    *value = default.clone();
                }
                self::value(inner, value);
            }
            _ => {}
        }
    }
}

/// Whether a value is a null that is not allowed.
fn is_void(value: &Value, node: &Node) -> bool {
    value.is_null() && !node.nullable
}
