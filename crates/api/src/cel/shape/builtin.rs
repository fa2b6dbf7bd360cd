//! The shapes of built-in kinds, for expressions that are checked against them.

use super::{Field, List, Map, Same, Shape, TEXT_MAX, escape};
use crate::kind::Kind;
use crate::schema::{self, TypeId, Types};

impl Shape {
    /// The shape of a built-in kind, if there is one of that name.
    pub fn of_kind(kind: &Kind) -> Option<Shape> {
        let types = Types::builtin();
        Some(object(types, types.of(kind)?.id, &mut Vec::new()))
    }

    /// A custom kind: what its schema says, with the metadata that all objects have.
    pub fn of_custom_kind(schema: &crate::json::Value) -> Shape {
        let mut shape = Shape::of(schema, false);
        let types = Types::builtin();
        let (Shape::Object(fields), Some(metadata)) = (&mut shape, types.named(METADATA)) else {
            return shape;
        };
        let own = ["apiVersion", "kind", "metadata"];
        let mut all: Vec<Field> = std::mem::take(fields).into_vec();
        all.retain(|field| !own.contains(&&*field.key));
        all.extend(own.map(|key| {
            let shape = match key {
                "metadata" => object(types, metadata.id, &mut Vec::new()),
                _ => Shape::Text(TEXT_MAX),
            };
            super::field(key, shape, false)
        }));
        all.sort_by(|a, b| a.name.cmp(&b.name));
        *fields = all.into();
        shape
    }
}

const METADATA: &str = "meta/v1.ObjectMeta";

/// An object of a type; a type inside itself may be anything.
fn object(types: &Types, id: TypeId, above: &mut Vec<TypeId>) -> Shape {
    if above.contains(&id) {
        return Shape::Dyn;
    }
    above.push(id);
    let mut fields = Vec::new();
    for field in &types.get(id).fields {
        let named = |name: &str, shape| Field {
            name: name.into(),
            ..super::field(field.name, shape, false)
        };
        let Some(name) = escape(field.name) else { continue };
        // What an object of unknown shape is asked by its plain name can be asked so here too.
        if name != field.name {
            fields.push(named(field.name, value(types, &field.shape, above)));
        }
        fields.push(named(&name, value(types, &field.shape, above)));
    }
    above.pop();
    fields.sort_by(|a, b| a.name.cmp(&b.name));
    Shape::Object(fields.into())
}

fn value(types: &Types, shape: &schema::Shape, above: &mut Vec<TypeId>) -> Shape {
    use schema::Shape as Built;
    match shape {
        Built::Text => Shape::Text(TEXT_MAX),
        Built::Int32 | Built::Int64 => Shape::Int,
        Built::Float => Shape::Double,
        Built::Bool => Shape::Bool,
        Built::Bytes => Shape::Bytes(TEXT_MAX),
        Built::Time | Built::MicroTime => Shape::Timestamp,
        Built::IntOrString => Shape::IntOrString(TEXT_MAX),
        Built::Struct(id) => object(types, *id, above),
        Built::List(inner) | Built::Wrapped(inner) => {
            let items = value(types, inner, above);
            Shape::List(Box::new(List { items, same: Same::Atomic, max: TEXT_MAX }))
        }
        Built::Map(inner) => {
            let values = value(types, inner, above);
            Shape::Map(Box::new(Map { values, max: TEXT_MAX }))
        }
        // Quantities are texts or numbers; schemas and the like are whatever they are.
        _ => Shape::Dyn,
    }
}
