//! Compilation of a schema to its tree.

use std::collections::HashMap;
use std::sync::Arc;

use headwater_cel::{DeclTypes, pattern};
use headwater_json::Value;

use super::{Additional, Below, Bounds, Limit, List, Node, Pattern, Rules, Type, Types};
use super::{Uncompilable, rules};

/// The validation keywords beyond types.
#[rustfmt::skip]
const RULES: [&str; 17] = [
    "enum", "format", "pattern", "maximum", "minimum", "multipleOf", "maxLength", "minLength",
    "maxItems", "minItems", "maxProperties", "minProperties", "required", "allOf", "anyOf",
    "oneOf", "not",
];

/// Compiles nodes; equal patterns are compiled once.
#[derive(Default)]
pub(super) struct Compiler<'a> {
    patterns: HashMap<&'a str, Arc<Pattern>>,
    types: DeclTypes<'a>,
    budget: pattern::Budget,
    /// Whether the next node is the root of the object.
    at_root: bool,
}

impl<'a> Compiler<'a> {
    /// The root node of an object.
    pub(super) fn root(&mut self, schema: &'a Value) -> Result<Node, Uncompilable> {
        self.at_root = true;
        self.node(schema)
    }

    /// Whether a pattern so far is large.
    pub(super) fn has_large_patterns(&self) -> bool {
        self.patterns.values().any(|pattern| pattern.is_large())
    }

    fn node(&mut self, schema: &'a Value) -> Result<Node, Uncompilable> {
        let is_root = std::mem::take(&mut self.at_root);
        let flag = |key: &str| schema[key] == true;
        let list = match schema["x-kubernetes-list-type"].as_str() {
            Some("set") => List::Set,
            Some("map") => List::Map(texts(&schema["x-kubernetes-list-map-keys"]).collect()),
            _ => List::Atomic,
        };
        let mut properties = Vec::new();
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            properties.push((name.as_str().into(), self.node(schema)?));
        }
        properties.sort_by(|(a, _): &(Box<str>, Node), (b, _)| a.cmp(b));
        let additional = match &schema["additionalProperties"] {
            Value::Null => None,
            Value::Bool(false) => Some(Additional::Denied),
            Value::Bool(true) => Some(Additional::Any),
            schema => Some(Additional::Of(Box::new(self.node(schema)?))),
        };
        let items = match &schema["items"] {
            items @ Value::Object(_) => Some(Box::new(self.node(items)?)),
            _ => None,
        };
        let default = schema.get("default").filter(|value| !value.is_null()).cloned();
        let embedded = flag("x-kubernetes-embedded-resource");
        let rules = self.rules(schema)?;
        let expressions =
            rules::compile(schema, schema, is_root, &mut self.types, &mut self.budget);
        let all_of = rules.iter().flat_map(|rules| &rules.all_of);
        let own = Below {
            identities: embedded || !matches!(list, List::Atomic),
            defaults: default.is_some(),
            expressions: expressions.is_some()
                || all_of.into_iter().any(|node| node.below.expressions),
        };
        let inner = properties.iter().map(|(_, node): &(Box<str>, Node)| node);
        let inner = inner.chain(items.as_deref()).chain(match &additional {
            Some(Additional::Of(node)) => Some(&**node),
            _ => None,
        });
        let below = inner.fold(own, |all, node| all.and(node.below));
        Ok(Node {
            types: types(schema),
            nullable: flag("nullable"),
            preserve: flag("x-kubernetes-preserve-unknown-fields"),
            embedded,
            atomic: schema["x-kubernetes-map-type"] == "atomic",
            properties: properties.into(),
            additional,
            items,
            list,
            default_bytes: default.as_ref().map_or(0, |value| value.to_string().len()),
            default,
            rules,
            expressions,
            below,
        })
    }

    fn rules(&mut self, schema: &'a Value) -> Result<Option<Box<Rules>>, Uncompilable> {
        // Most nodes have no validations and should need no memory for them.
        if !RULES.iter().any(|key| schema.get(key).is_some()) {
            return Ok(None);
        }
        let number = |key: &str| schema[key].as_f64();
        let limit = |key: &str, exclusive: &str| {
            number(key).map(|value| Limit { value, exclusive: schema[exclusive] == true })
        };
        let bounds =
            |min: &str, max: &str| Bounds { min: schema[min].as_u64(), max: schema[max].as_u64() };
        Ok(Some(Box::new(Rules {
            enumeration: schema["enum"].as_array().cloned().unwrap_or_default(),
            format: types(schema).format(schema["format"].as_str().unwrap_or_default()),
            pattern: self.pattern(&schema["pattern"])?,
            maximum: limit("maximum", "exclusiveMaximum"),
            minimum: limit("minimum", "exclusiveMinimum"),
            multiple_of: number("multipleOf"),
            length: bounds("minLength", "maxLength"),
            items: bounds("minItems", "maxItems"),
            properties: bounds("minProperties", "maxProperties"),
            required: texts(&schema["required"]).collect(),
            all_of: self.all_of(schema)?,
            any_of: self.nodes(&schema["anyOf"])?,
            one_of: self.nodes(&schema["oneOf"])?,
            not: match &schema["not"] {
                Value::Null => None,
                schema => Some(self.node(schema)?),
            },
        })))
    }

    /// Alternatives have no types of their own: their rules see the types of the schema.
    fn all_of(&mut self, schema: &'a Value) -> Result<Vec<Node>, Uncompilable> {
        let mut nodes = self.nodes(&schema["allOf"])?;
        for (node, inner) in nodes.iter_mut().zip(schema["allOf"].as_array().into_iter().flatten())
        {
            if node.expressions.is_some() {
                node.expressions =
                    rules::compile(inner, schema, false, &mut self.types, &mut self.budget);
            }
        }
        Ok(nodes)
    }

    fn nodes(&mut self, schemas: &'a Value) -> Result<Vec<Node>, Uncompilable> {
        schemas.as_array().into_iter().flatten().map(|schema| self.node(schema)).collect()
    }

    fn pattern(&mut self, text: &'a Value) -> Result<Option<Arc<Pattern>>, Uncompilable> {
        let Some(text) = text.as_str().filter(|text| !text.is_empty()) else { return Ok(None) };
        if let Some(known) = self.patterns.get(text) {
            return Ok(Some(Arc::clone(known)));
        }
        let compiled = Pattern::compile(text, &mut self.budget).map_err(Uncompilable)?;
        let compiled = Arc::new(compiled);
        self.patterns.insert(text, Arc::clone(&compiled));
        Ok(Some(compiled))
    }
}

fn types(schema: &Value) -> Types {
    if schema["x-kubernetes-int-or-string"] == true {
        return Types::default().with(Type::Integer).with(Type::String);
    }
    let named = schema["type"].as_str().and_then(Type::parse);
    named.map_or(Types::default(), |kind| Types::default().with(kind))
}

fn texts(list: &Value) -> impl Iterator<Item = Box<str>> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(Into::into)
}
