//! Structural schemas of CustomResourceDefinitions.
//!
//! River: definition → [`check`] → [`Schema`], once; then every custom object passes prune,
//! default and validate on its way to the store, and prune and default on its way out of it.
//! Promise: a checked schema compiles to a tree that each step walks once; patterns match in linear
//! time, and no step recurses deeper than its object.

use std::fmt;
use std::sync::Arc;

use headwater_api::status::FieldError;
use headwater_cel::format::Format;
use headwater_cel::pattern::Pattern;
use headwater_json::Value;
use headwater_json::path::{Path, PathList};

mod check;
mod compile;
mod default;
mod effort;
mod embedded;
mod identity;
mod number;
mod prune;
mod rules;
mod settled;
mod structure;
mod validate;

pub use check::{SchemaLocation, check, unrecognized_formats};
use default::Nulls;
pub use default::TooManyDefaults;
pub use structure::Structured;

/// The compiled schema of one version of a custom kind.
pub struct Schema {
    root: Node,
    has_large_patterns: bool,
}

/// Why a schema cannot be compiled. A checked schema always compiles.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Uncompilable(String);

impl Schema {
    /// Compiles an `openAPIV3Schema`.
    pub fn compile(schema: &Value) -> Result<Schema, Uncompilable> {
        let mut compiler = compile::Compiler::default();
        let root = compiler.root(schema)?;
        Ok(Schema { root, has_large_patterns: compiler.has_large_patterns() })
    }

    /// Removes unknown fields and returns their paths, sorted.
    pub fn prune(&self, object: &mut Value) -> PathList {
        prune::object(&self.root, object)
    }

    /// Sets defaults and removes nulls of non-nullable fields. An object without room for all of its
    /// defaults has only some of them.
    pub fn default(&self, object: &mut Value) -> Result<(), TooManyDefaults> {
        default::value(&self.root, object, Nulls::Dropped)
    }

    /// Sets defaults in the result of an apply. Nulls that no default replaces stay, and validation
    /// rejects them: of a map or list whose last element was removed, null remains.
    pub fn default_applied(&self, object: &mut Value) -> Result<(), TooManyDefaults> {
        default::value(&self.root, object, Nulls::Kept)
    }

    /// Whether its patterns make a validation long.
    pub fn has_large_patterns(&self) -> bool {
        self.has_large_patterns
    }

    /// Whether pruning and defaulting would change nothing. Scans the bytes without a tree.
    pub fn is_settled(&self, object: &[u8]) -> bool {
        settled::is_settled(&self.root, object)
    }

    /// The validation errors of an object. Errors in parts that are unchanged since `old` are tolerated:
    /// the schema may have become stricter (S9.15).
    pub fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let mut errors = validate::value(&self.root, object, old, "");
        let identities = identity::check(&self.root, object);
        errors.extend(identities.resources);
        errors.extend(self.tolerated(identities.duplicates, old));
        rules::check(&self.root, object, old, &mut errors);
        errors
    }

    /// The validation errors of a write to the status subresource.
    pub fn validate_status(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if let (Some(node), Some(status)) = (self.root.property("status"), object.get("status")) {
            let old = old.and_then(|old| old.get("status"));
            errors.extend(validate::value(node, status, old, "status"));
        }
        let identities = identity::check(&self.root, object);
        errors.extend(self.tolerated(identities.duplicates, old));
        rules::check(&self.root, object, old, &mut errors);
        errors
    }

    /// Duplicate elements are tolerated if the old object had some too.
    fn tolerated(&self, duplicates: Vec<FieldError>, old: Option<&Value>) -> Vec<FieldError> {
        match old {
            Some(old) if !duplicates.is_empty() => {
                let before = identity::check(&self.root, old).duplicates;
                if before.is_empty() { duplicates } else { Vec::new() }
            }
            _ => duplicates,
        }
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Schema")
    }
}

/// The schema of one value.
#[derive(Default)]
struct Node {
    /// The allowed JSON types; empty allows all.
    types: Types,
    nullable: bool,
    /// Whether unknown fields are preserved.
    preserve: bool,
    /// An object with `apiVersion`, `kind` and `metadata` of its own.
    embedded: bool,
    /// Whether it is atomic: its parts have no counterpart in the old object.
    atomic: bool,
    /// By name.
    properties: Box<[(Box<str>, Node)]>,
    additional: Option<Additional>,
    items: Option<Box<Node>>,
    list: List,
    default: Option<Value>,
    /// The size of the default as text.
    default_bytes: usize,
    rules: Option<Box<Rules>>,
    expressions: Option<Box<rules::Expressions>>,
    below: Below,
}

/// The features in the tree of a node, itself included: walks skip subtrees without them.
#[derive(Clone, Copy, Default)]
struct Below {
    /// Embedded resources, and lists that are sets or maps.
    identities: bool,
    defaults: bool,
    /// CEL rules.
    expressions: bool,
}

impl Below {
    fn and(self, other: Below) -> Below {
        Below {
            identities: self.identities || other.identities,
            defaults: self.defaults || other.defaults,
            expressions: self.expressions || other.expressions,
        }
    }
}

/// The schema of undeclared fields.
enum Additional {
    Denied,
    Any,
    Of(Box<Node>),
}

/// The identity of list elements.
#[derive(Default)]
enum List {
    #[default]
    Atomic,
    Set,
    /// These fields.
    Map(Box<[Box<str>]>),
}

/// The validations of a value beyond its type.
#[derive(Default)]
struct Rules {
    enumeration: Vec<Value>,
    format: Option<Format>,
    pattern: Option<Arc<Pattern>>,
    maximum: Option<Limit>,
    minimum: Option<Limit>,
    multiple_of: Option<f64>,
    length: Bounds,
    items: Bounds,
    properties: Bounds,
    required: Vec<Box<str>>,
    all_of: Vec<Node>,
    any_of: Vec<Node>,
    one_of: Vec<Node>,
    not: Option<Node>,
}

/// A maximum or minimum.
#[derive(Clone, Copy)]
struct Limit {
    value: f64,
    exclusive: bool,
}

/// Limits of a count.
#[derive(Clone, Copy, Default)]
struct Bounds {
    min: Option<u64>,
    max: Option<u64>,
}

impl Node {
    /// The node of a declared field.
    fn property(&self, name: &str) -> Option<&Node> {
        let found = self.properties.binary_search_by(|(known, _)| (**known).cmp(name));
        found.ok().map(|at| &self.properties[at].1)
    }

    /// The node of a field, declared or not.
    fn field(&self, name: &str) -> Option<&Node> {
        match (self.property(name), &self.additional) {
            (Some(node), _) => Some(node),
            (None, Some(Additional::Of(node))) => Some(node),
            (None, _) => None,
        }
    }

    /// The members or elements of a value that have a schema, with their nodes and paths.
    fn children<'v, 'p>(
        &self,
        value: &'v Value,
        path: &'p Path<'p>,
    ) -> impl Iterator<Item = (&Node, &'v Value, Path<'p>)>
    where
        'v: 'p,
    {
        let members =
            value.as_object().into_iter().flatten().filter_map(move |(name, inner)| {
                match (self.property(name), &self.additional) {
                    (Some(node), _) => Some((node, inner, Path::Field(path, name))),
                    (None, Some(Additional::Of(node))) => {
                        Some((&**node, inner, Path::Bracket(path, name)))
                    }
                    _ => None,
                }
            });
        let lists = self.items.as_deref().zip(value.as_array()).into_iter();
        let elements = lists.flat_map(move |(items, elements)| {
            let indexed = elements.iter().enumerate();
            indexed.map(move |(index, element)| (items, element, Path::Index(path, index)))
        });
        members.chain(elements)
    }
}

/// Fields that every resource has, whatever the schema.
const META_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// A set of JSON types.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Types(u8);

/// A JSON type as OpenAPI knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

impl Type {
    const ALL: [Type; 6] =
        [Type::Array, Type::Boolean, Type::Integer, Type::Number, Type::Object, Type::String];

    fn name(self) -> &'static str {
        match self {
            Type::Object => "object",
            Type::Array => "array",
            Type::String => "string",
            Type::Integer => "integer",
            Type::Number => "number",
            Type::Boolean => "boolean",
        }
    }

    fn parse(name: &str) -> Option<Type> {
        Type::ALL.into_iter().find(|known| known.name() == name)
    }
}

impl Types {
    fn with(self, kind: Type) -> Types {
        Types(self.0 | 1 << kind as u8)
    }

    fn has(self, kind: Type) -> bool {
        self.0 & (1 << kind as u8) != 0
    }

    fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// A format by its name, if it is enforced for these types.
    fn format(self, name: &str) -> Option<Format> {
        let numbers: &[&str] = match self.single() {
            Some(Type::String) | None => return Format::of(name),
            Some(Type::Integer) => &["int32", "int64"],
            Some(Type::Number) => &["float", "double"],
            Some(_) => &[],
        };
        numbers.contains(&name).then(|| Format::of_number(name))
    }

    /// The only type.
    fn single(self) -> Option<Type> {
        let mut found = Type::ALL.into_iter().filter(|kind| self.has(*kind));
        found.next().filter(|_| found.next().is_none())
    }
}

/// `integer,string`.
impl fmt::Display for Types {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> =
            Type::ALL.into_iter().filter(|kind| self.has(*kind)).map(Type::name).collect();
        f.write_str(&names.join(","))
    }
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "`json!` rows read best by value")]
mod tests;
