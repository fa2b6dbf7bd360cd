//! The declared CEL types of built-in and custom kinds.

use headwater_api::kind::Kind;
use headwater_cel::{Field, Shape, TEXT_MAX, escape};
use headwater_json::Value;

use crate::types::{self, TypeId, Types};

/// The declared type of a built-in kind; `None` if it does not exist.
pub fn of_kind(kind: &Kind) -> Option<Shape> {
    let types = Types::builtin();
    Some(object(types, types.of(kind)?.id, &mut Vec::new()))
}

/// The declared type of a custom kind: its schema with standard metadata.
pub fn of_custom_kind(schema: &Value) -> Shape {
    let types = Types::builtin();
    let shape = Shape::of(schema, false);
    let Some(metadata) = types.named(METADATA) else { return shape };
    let metadata = object(types, metadata.id, &mut Vec::new());
    shape.with_fields(vec![
        Field::new("apiVersion", "apiVersion", Shape::Text(TEXT_MAX)),
        Field::new("kind", "kind", Shape::Text(TEXT_MAX)),
        Field::new("metadata", "metadata", metadata),
    ])
}

const METADATA: &str = "meta/v1.ObjectMeta";

/// The declared type of a type; recursive references are untyped.
fn object(types: &Types, id: TypeId, above: &mut Vec<TypeId>) -> Shape {
    if above.contains(&id) {
        return Shape::Dyn;
    }
    above.push(id);
    let mut fields = Vec::new();
    for field in &types.get(id).fields {
        let named = |name: &str, shape| Field::new(name, field.name, shape);
        let Some(name) = escape(field.name) else { continue };
        // An untyped object accepts the unescaped name, so this one does too.
        if name != field.name {
            fields.push(named(field.name, value(types, &field.shape, above)));
        }
        fields.push(named(&name, value(types, &field.shape, above)));
    }
    above.pop();
    Shape::object(fields)
}

fn value(types: &Types, shape: &types::Shape, above: &mut Vec<TypeId>) -> Shape {
    use types::Shape as Built;
    match shape {
        Built::Text => Shape::Text(TEXT_MAX),
        Built::Int32 | Built::Int64 => Shape::Int,
        Built::Float => Shape::Double,
        Built::Bool => Shape::Bool,
        Built::Bytes => Shape::Bytes(TEXT_MAX),
        Built::Time | Built::MicroTime => Shape::Timestamp,
        Built::IntOrString => Shape::IntOrString(TEXT_MAX),
        Built::Struct(id) => object(types, *id, above),
        Built::List(inner) | Built::Wrapped(inner) => Shape::list(value(types, inner, above)),
        Built::Map(inner) => Shape::map(value(types, inner, above)),
        // A quantity is a string or a number; schemas and free-form documents have no fixed type.
        _ => Shape::Dyn,
    }
}

#[cfg(test)]
mod tests {
    use headwater_api::kind;
    use headwater_cel::{Known, Program};
    use headwater_json::json;

    use super::*;

    #[test]
    fn kinds_have_the_types_of_their_fields() {
        let pod = kind::builtin().into_iter().find(|kind| kind.kind == "Pod").unwrap();
        let pod = of_kind(&pod).unwrap();
        let custom = of_custom_kind(&json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {"size": {"type": "integer"}}},
        }}));
        let check = |shape: &Shape, text: &str, expected: Result<&str, &str>| {
            let known = Known::default().with("object", shape);
            match (Program::compile(text, &known), expected) {
                (Ok(program), Ok(ty)) => assert_eq!(program.result_shown(), ty, "{text}"),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                (found, _) => panic!("{text}: {found:?}"),
            }
        };
        check(&pod, "object.spec.containers[0].image", Ok("string"));
        check(&pod, "object.spec.containers.map(c, c.ports)", Ok("list(list(object))"));
        check(&pod, "object.metadata.labels", Ok("map(string, string)"));
        check(&pod, "object.metadata.creationTimestamp.getHours()", Ok("int"));
        check(&pod, "object.metadata.namespace + object.metadata.__namespace__", Ok("string"));
        check(&pod, "object.spec.containers[0].livenessProbe.httpGet.port", Ok("dyn"));
        check(&pod, "object.spec.containers[0].imag", Err("undefined field 'imag'"));
        check(&pod, "object.spec.hostNetwork + 1", Err("'_+_' applied to '(bool, int)'"));
        check(&custom, "object.spec.size", Ok("int"));
        check(&custom, "object.metadata.annotations", Ok("map(string, string)"));
        check(&custom, "object.spec.sizes", Err("undefined field 'sizes'"));
    }
}
