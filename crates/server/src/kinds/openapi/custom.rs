//! The schema of a custom kind in version 2, which knows less than the schemas of definitions.

use headwater_json::{Map, Value};

/// What version 2 cannot express, or its clients would misread.
const DROPPED: &[&str] = &["oneOf", "anyOf", "allOf", "not", "nullable", "default"];

/// Whether an object of the schema may have any fields. Version 2 has no properties for it, because
/// clients would refuse unknown ones otherwise.
pub(super) fn is_free(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == true
}

/// A schema without what clients of version 2 would misread.
pub(super) fn for_version_two(schema: Value) -> Value {
    let Value::Object(mut schema) = schema else { return schema };
    let is_true = |schema: &Map, key: &str| schema.get(key).is_some_and(|value| *value == true);
    let is_nullable = is_true(&schema, "nullable");
    let is_free = is_true(&schema, "x-kubernetes-preserve-unknown-fields");
    if is_nullable || is_free {
        // Clients refuse null, and fields that are not listed.
        schema.remove("items");
        schema.remove("properties");
    }
    let is_of = |name: &str| schema.get("type").is_some_and(|value| *value == name);
    let is_open = (is_of("array") && !schema.contains_key("items")) || (is_of("object") && is_free);
    if is_nullable || is_open || is_true(&schema, "x-kubernetes-int-or-string") {
        schema.remove("type");
    }
    drop_nullable_from_required(&mut schema);
    schema.retain(|key, _| !DROPPED.iter().any(|dropped| *key == **dropped));
    for key in ["items", "additionalProperties"] {
        if let Some(part) = schema.get_mut(key) {
            *part = for_version_two(part.take());
        }
    }
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        for (_, property) in properties.iter_mut() {
            *property = for_version_two(property.take());
        }
    }
    Value::Object(schema)
}

/// A field that may be null is not required: clients take null for absent.
fn drop_nullable_from_required(schema: &mut Map) {
    if schema.get("additionalProperties").is_some_and(|each| each["nullable"] == true) {
        schema.remove("required");
    }
    let Some(Value::Array(required)) = schema.get("required") else { return };
    let is_nullable = |name: &Value| {
        let properties = schema.get("properties");
        let property = properties.and_then(|all| all.get(name.as_str().unwrap_or_default()));
        property.is_some_and(|property| property["nullable"] == true)
    };
    let kept: Vec<Value> = required.iter().filter(|name| !is_nullable(name)).cloned().collect();
    match kept.is_empty() {
        true => drop(schema.remove("required")),
        false => drop(schema.insert("required".into(), kept.into())),
    }
}

#[cfg(test)]
mod tests {
    use headwater_json::json;

    use super::*;

    #[test]
    fn version_two_has_no_schema_that_its_clients_misread() {
        let rows = [
            (json!({ "type": "string", "nullable": true }), json!({})),
            (
                json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
                    "a": { "type": "string" } } }),
                json!({ "x-kubernetes-preserve-unknown-fields": true }),
            ),
            (
                json!({ "type": "array", "x-kubernetes-preserve-unknown-fields": true,
                        "items": { "type": "string" } }),
                json!({ "x-kubernetes-preserve-unknown-fields": true }),
            ),
            (
                json!({ "type": "object", "required": ["a"], "default": {},
                        "additionalProperties": { "type": "string", "nullable": true } }),
                json!({ "type": "object", "additionalProperties": {} }),
            ),
            (
                json!({ "type": "object", "required": ["a", "b"], "anyOf": [], "properties": {
                    "a": { "type": "string", "nullable": true }, "b": { "type": "integer" } } }),
                json!({ "type": "object", "required": ["b"], "properties": {
                    "a": {}, "b": { "type": "integer" } } }),
            ),
            (
                json!({ "x-kubernetes-int-or-string": true, "type": "string", "anyOf": [] }),
                json!({ "x-kubernetes-int-or-string": true }),
            ),
        ];
        for (given, expected) in rows {
            assert_eq!(for_version_two(given), expected);
        }
    }
}
