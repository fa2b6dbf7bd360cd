//! The declared CEL types of built-in and custom kinds.

use headwater_api::kind::Kind;
use headwater_cel::{DeclField, DeclType, TEXT_MAX, escape};
use headwater_json::Value;

use crate::types::{self, TypeId, Types};

/// The declared type of a built-in kind; `None` if it does not exist.
pub fn of_kind(kind: &Kind) -> Option<DeclType> {
    let types = Types::builtin();
    Some(object(types, types.of(kind)?.id, &mut Vec::new()))
}

/// The declared type of a custom kind: its schema with standard metadata.
pub fn of_custom_kind(schema: &Value) -> DeclType {
    let types = Types::builtin();
    let shape = DeclType::of(schema, false);
    let Some(metadata) = types.named(METADATA) else { return shape };
    let metadata = object(types, metadata.id, &mut Vec::new());
    shape.with_fields(vec![
        DeclField::new("apiVersion", "apiVersion", DeclType::Text(TEXT_MAX)),
        DeclField::new("kind", "kind", DeclType::Text(TEXT_MAX)),
        DeclField::new("metadata", "metadata", metadata),
    ])
}

const METADATA: &str = "meta/v1.ObjectMeta";

/// The declared type of a type; recursive references are untyped.
fn object(types: &Types, id: TypeId, above: &mut Vec<TypeId>) -> DeclType {
    if above.contains(&id) {
        return DeclType::Dyn;
    }
    above.push(id);
    let mut fields = Vec::new();
    for field in &types.get(id).fields {
        let named = |name: &str, shape| DeclField::new(name, field.name, shape);
        let Some(name) = escape(field.name) else { continue };
        // An untyped object accepts the unescaped name, so this one does too.
        if name != field.name {
            fields.push(named(field.name, value(types, &field.shape, above)));
        }
        fields.push(named(&name, value(types, &field.shape, above)));
    }
    above.pop();
    DeclType::object(fields)
}

fn value(types: &Types, shape: &types::ValueType, above: &mut Vec<TypeId>) -> DeclType {
    use types::ValueType as Built;
    match shape {
        Built::Text => DeclType::Text(TEXT_MAX),
        Built::Int32 | Built::Int64 => DeclType::Int,
        Built::Float => DeclType::Double,
        Built::Bool => DeclType::Bool,
        Built::Bytes => DeclType::Bytes(TEXT_MAX),
        Built::Time | Built::MicroTime => DeclType::Timestamp,
        Built::IntOrString => DeclType::IntOrString(TEXT_MAX),
        Built::Struct(id) => object(types, *id, above),
        Built::List(inner) | Built::Wrapped(inner) => DeclType::list(value(types, inner, above)),
        Built::Map(inner) => DeclType::map(value(types, inner, above)),
        // A quantity is a string or a number; schemas and free-form documents have no fixed type.
        _ => DeclType::Dyn,
    }
}

#[cfg(test)]
mod tests {
    use headwater_api::kind;
    use headwater_cel::{Environment, Program};
    use headwater_json::json;

    use super::*;

    #[test]
    fn kinds_have_the_types_of_their_fields() {
        let pod = kind::builtin().into_iter().find(|kind| kind.kind == "Pod").unwrap();
        let pod = of_kind(&pod).unwrap();
        let custom = of_custom_kind(&json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {"size": {"type": "integer"}}},
        }}));
        let check = |shape: &DeclType, text: &str, expected: Result<&str, &str>| {
            let known = Environment::default().with("object", shape);
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
