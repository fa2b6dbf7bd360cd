//! The declared types of objects, derived from schemas.
//!
//! A declared type decides how JSON is read (a number as int or double, a string as a time) and which
//! fields exist, with their names in expressions.

use std::collections::{HashMap, HashSet};
use std::marker::PhantomData;
use std::sync::Arc;

use headwater_json::Value;

/// The declared type of a value in an object.
#[derive(Clone, Debug)]
pub enum DeclType {
    /// Unknown: the type of the JSON value.
    Dyn,
    /// A boolean.
    Bool,
    /// An integer.
    Int,
    /// Any number.
    Double,
    /// A string of at most this many bytes.
    Text(u64),
    /// An integer, or a string of at most this many bytes.
    IntOrString(u64),
    /// Base64, decoded to at most this many bytes.
    Bytes(u64),
    /// A date.
    Date,
    /// A date and time.
    Timestamp,
    /// A duration.
    Duration,
    /// A CEL type that JSON cannot represent.
    Environment(&'static str),
    /// A list.
    List(Arc<DeclList>),
    /// An object with arbitrary keys.
    Map(Arc<DeclMap>),
    /// An object with declared fields.
    Object(Arc<[DeclField]>),
}

/// A list.
#[derive(Clone, Debug)]
pub struct DeclList {
    pub(super) items: DeclType,
    pub(super) same: Same,
    pub(super) max: u64,
}

/// An object with arbitrary keys.
#[derive(Clone, Debug)]
pub struct DeclMap {
    pub(super) values: DeclType,
    pub(super) max: u64,
}

/// The equality of lists.
#[derive(Clone, Debug)]
pub(super) enum Same {
    Atomic,
    /// The same elements in any order.
    Set,
    /// The same elements under the same keys in any order.
    Map(Box<[Box<str>]>),
}

/// A field of an object.
#[derive(Clone, Debug)]
pub struct DeclField {
    /// The name in expressions.
    pub(super) name: Box<str>,
    /// The key in objects.
    pub(super) key: Box<str>,
    pub(super) shape: DeclType,
    /// Whether every object has it.
    required: bool,
}

impl DeclField {
    /// An optional field: its name in expressions, its key in objects, its type.
    pub fn new(name: &str, key: &str, shape: DeclType) -> DeclField {
        DeclField { name: name.into(), key: key.into(), shape, required: false }
    }
}

/// The maximum request size, which limits otherwise unlimited sizes.
const REQUEST_MAX: u64 = 3 * 1024 * 1024;

/// The maximum size of a string or list in a request, without its delimiters.
pub const TEXT_MAX: u64 = REQUEST_MAX - 2;

pub(super) static DYN: DeclType = DeclType::Dyn;

impl DeclType {
    /// The type of a structural schema; `is_resource` if it is the root of an object.
    pub fn of(schema: &Value, is_resource: bool) -> DeclType {
        DeclTypes::default().of(schema, is_resource)
    }

    /// The type of a schema whose field names need no escaping.
    pub fn of_plain(schema: &Value) -> DeclType {
        let mut shape = DeclType::of(schema, false);
        shape.call_plainly();
        shape
    }

    /// A list of any length.
    pub fn list(items: DeclType) -> DeclType {
        DeclType::List(Arc::new(DeclList { items, same: Same::Atomic, max: TEXT_MAX }))
    }

    /// An object of any size with arbitrary keys.
    pub fn map(values: DeclType) -> DeclType {
        DeclType::Map(Arc::new(DeclMap { values, max: TEXT_MAX }))
    }

    /// An object with these fields, all of them optional.
    pub fn object(mut fields: Vec<DeclField>) -> DeclType {
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        DeclType::Object(fields.into())
    }

    /// Replaces the fields with the same keys; unchanged if the type is not an object.
    #[must_use]
    pub fn with_fields(self, new: Vec<DeclField>) -> DeclType {
        let DeclType::Object(fields) = self else { return self };
        let mut fields = fields.to_vec();
        fields.retain(|field| new.iter().all(|new| new.key != field.key));
        fields.extend(new);
        DeclType::object(fields)
    }

    fn call_plainly(&mut self) {
        match self {
            DeclType::Object(fields) => {
                let fields = Arc::make_mut(fields);
                for field in &mut *fields {
                    field.name = field.key.clone();
                    field.shape.call_plainly();
                }
                fields.sort_by(|a, b| a.name.cmp(&b.name));
            }
            DeclType::List(list) => Arc::make_mut(list).items.call_plainly(),
            DeclType::Map(map) => Arc::make_mut(map).values.call_plainly(),
            _ => {}
        }
    }

    /// The type of a field, by its key.
    pub fn field(&self, key: &str) -> Option<&DeclType> {
        match self {
            DeclType::Object(fields) => {
                fields.iter().find(|field| *field.key == *key).map(|field| &field.shape)
            }
            DeclType::Map(map) => Some(&map.values),
            _ => None,
        }
    }

    /// The element type.
    pub fn items(&self) -> Option<&DeclType> {
        match self {
            DeclType::List(list) => Some(&list.items),
            _ => None,
        }
    }

    pub(super) fn named(&self, name: &str) -> Option<&DeclField> {
        let DeclType::Object(fields) = self else { return None };
        let found = fields.binary_search_by(|field| (*field.name).cmp(name));
        found.ok().map(|at| &fields[at])
    }

    /// The minimum size of a value in JSON, from which the maximum count in a request follows.
    fn bytes_min(&self) -> u64 {
        match self {
            DeclType::Dyn
            | DeclType::Environment(_)
            | DeclType::IntOrString(_)
            | DeclType::Int
            | DeclType::Double => 1,
            DeclType::Bool => 4,
            DeclType::Text(_) | DeclType::Bytes(_) | DeclType::List(_) | DeclType::Map(_) => 2,
            DeclType::Duration => 3,
            DeclType::Date => 12,
            DeclType::Timestamp => 21,
            DeclType::Object(fields) => {
                fields.iter().filter(|field| field.required).fold(2, |sum, field| {
                    // Its name in quotes, a colon and a comma.
                    sum + field.key.len() as u64 + 4 + field.shape.bytes_min()
                })
            }
        }
    }

    /// The maximum number of characters, bytes, elements or entries of a value.
    pub(super) fn elements_max(&self) -> u64 {
        match self {
            DeclType::Text(max) | DeclType::IntOrString(max) | DeclType::Bytes(max) => *max,
            DeclType::Date => 12,
            DeclType::Timestamp | DeclType::Duration => 32,
            DeclType::List(list) => list.max,
            DeclType::Map(map) => map.max,
            DeclType::Dyn | DeclType::Environment(_) | DeclType::Bool => 0,
            DeclType::Int | DeclType::Double | DeclType::Object(_) => 0,
        }
    }

    /// The maximum number of such values in an object of the maximum request size.
    pub fn cardinality_max(&self) -> u64 {
        REQUEST_MAX / (self.bytes_min() + 1)
    }
}

/// The types of the nodes of one schema. Each is derived once and shared by all types that contain it:
/// rules on every level of a deep schema would copy it once per level.
#[derive(Default)]
pub struct DeclTypes<'a> {
    /// By the address of the node, and whether it is the root of an object.
    shared: HashMap<(usize, bool), Option<DeclType>>,
    schema: PhantomData<&'a Value>,
}

impl<'a> DeclTypes<'a> {
    /// The type of a node; `is_resource` if it is the root of an object.
    pub fn of(&mut self, schema: &'a Value, is_resource: bool) -> DeclType {
        self.known(schema, is_resource).unwrap_or(DeclType::Dyn)
    }

    fn known(&mut self, schema: &'a Value, is_resource: bool) -> Option<DeclType> {
        if !matches!(schema["type"].as_str(), Some("array" | "object")) {
            return known(schema, is_resource, self);
        }
        let place = (std::ptr::from_ref(schema).addr(), is_resource);
        if let Some(known) = self.shared.get(&place) {
            return known.clone();
        }
        let made = known(schema, is_resource, self);
        self.shared.insert(place, made.clone());
        made
    }
}

/// A value of unknown type is not visible to expressions.
fn known<'a>(schema: &'a Value, is_resource: bool, types: &mut DeclTypes<'a>) -> Option<DeclType> {
    if schema["x-kubernetes-int-or-string"] == true {
        return Some(DeclType::IntOrString(longest(schema).unwrap_or(TEXT_MAX)));
    }
    let is_resource = is_resource || schema["x-kubernetes-embedded-resource"] == true;
    Some(match schema["type"].as_str()? {
        "boolean" => DeclType::Bool,
        "integer" => DeclType::Int,
        "number" => DeclType::Double,
        "string" => match schema["format"].as_str() {
            Some("byte") => DeclType::Bytes(schema["maxLength"].as_u64().unwrap_or(TEXT_MAX)),
            Some("duration") => DeclType::Duration,
            Some("date") => DeclType::Date,
            Some("date-time") => DeclType::Timestamp,
            _ => DeclType::Text(text_max(schema)),
        },
        "array" => {
            let same = match schema["x-kubernetes-list-type"].as_str() {
                Some("set") => Same::Set,
                Some("map") => Same::Map(texts(&schema["x-kubernetes-list-map-keys"])),
                _ => Same::Atomic,
            };
            let items = types.known(&schema["items"], false)?;
            // Brackets around, a comma after each.
            let fit = TEXT_MAX / (items.bytes_min() + 1);
            let max = schema["maxItems"].as_u64().unwrap_or(fit);
            DeclType::List(Arc::new(DeclList { items, same, max }))
        }
        "object" => match &schema["additionalProperties"] {
            values @ Value::Object(_) if !is_resource => {
                let values = types.known(values, false)?;
                // Braces around; two bytes of a key, its quotes, a colon and a comma for each.
                let fit = TEXT_MAX / (values.bytes_min() + 6);
                let max = schema["maxProperties"].as_u64().unwrap_or(fit);
                DeclType::Map(Arc::new(DeclMap { values, max }))
            }
            _ => object(schema, is_resource, types),
        },
        _ => return None,
    })
}

fn object<'a>(schema: &'a Value, is_resource: bool, types: &mut DeclTypes<'a>) -> DeclType {
    let names = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let names: HashSet<&str> = names.collect();
    let required = |key: &str| names.contains(key);
    let own = is_resource && !tells_metadata(&schema["properties"]);
    let mut fields = Vec::new();
    for (key, inner) in schema["properties"].as_object().into_iter().flatten() {
        if own && matches!(key.as_str(), "apiVersion" | "kind" | "metadata") {
            continue;
        }
        if let (Some(name), Some(shape)) = (escape(key), types.known(inner, false)) {
            let required = required(key) && inner["default"].is_null();
            fields.push(DeclField { name: name.into(), key: key.as_str().into(), shape, required });
        }
    }
    if own {
        // Of the metadata, expressions see only names.
        let name = |key: &str, required| field(key, DeclType::Text(TEXT_MAX), required);
        fields.extend(["apiVersion", "kind"].map(|key| name(key, required(key))));
        let metadata = [name("generateName", false), name("name", false)];
        fields.push(field("metadata", DeclType::Object(metadata.into()), required("metadata")));
    }
    fields.sort_by(|a, b| a.name.cmp(&b.name));
    DeclType::Object(fields.into())
}

/// Whether a schema declares the metadata fields that expressions see.
fn tells_metadata(properties: &Value) -> bool {
    let inner = &properties["metadata"]["properties"];
    let texts = [&properties["kind"], &properties["apiVersion"], &inner["name"]];
    let texts = texts.into_iter().chain([&inner["generateName"]]);
    texts.into_iter().all(|schema| schema["type"] == "string")
}

fn field(key: &str, shape: DeclType, required: bool) -> DeclField {
    DeclField { name: key.into(), key: key.into(), shape, required }
}

/// The bytes of a length in characters: up to four per character.
fn longest(schema: &Value) -> Option<u64> {
    schema["maxLength"].as_u64().map(|max| max.saturating_mul(4))
}

fn text_max(schema: &Value) -> u64 {
    let words = schema["enum"].as_array().filter(|words| !words.is_empty());
    let listed = words.map(|words| {
        words.iter().filter_map(Value::as_str).map(|word| word.len() as u64).max().unwrap_or(0)
    });
    longest(schema).or(listed).unwrap_or(TEXT_MAX)
}

fn texts(list: &Value) -> Box<[Box<str>]> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(Into::into).collect()
}

/// Reserved words, which cannot be field names in an expression.
#[rustfmt::skip]
const RESERVED: [&str; 21] = [
    "true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function",
    "if", "import", "let", "loop", "package", "namespace", "return", "var", "void", "while",
];

/// The escaped name of a field in expressions, if it has one.
pub fn escape(key: &str) -> Option<String> {
    if RESERVED.contains(&key) {
        return Some(format!("__{key}__"));
    }
    if key.is_empty() || key.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let mut name = String::with_capacity(key.len());
    let mut rest = key;
    while let Some(c) = rest.chars().next() {
        let (taken, written): (usize, &str) = match c {
            '_' if rest.starts_with("__") => (2, "__underscores__"),
            '.' => (1, "__dot__"),
            '-' => (1, "__dash__"),
            '/' => (1, "__slash__"),
            c if c == '_' || c.is_ascii_alphanumeric() => (1, &rest[..1]),
            _ => return None,
        };
        name.push_str(written);
        rest = &rest[taken..];
    }
    Some(name)
}

/// The unescaped key of a field name.
pub(super) fn unescape(name: &str) -> Option<String> {
    if !name.contains("__") {
        return None;
    }
    let word = name.strip_prefix("__").and_then(|rest| rest.strip_suffix("__"));
    if let Some(word) = word.filter(|word| RESERVED.contains(word)) {
        return Some(word.to_owned());
    }
    let plain = name.replace("__dot__", ".").replace("__dash__", "-").replace("__slash__", "/");
    Some(plain.replace("__underscores__", "__"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_of_a_node_is_part_of_the_types_above_it() {
        let leaf = headwater_json::json!({"type": "object", "properties": {
            "a": {"type": "string"}, "b": {"type": "integer"},
        }});
        let schema = headwater_json::json!({"type": "object", "properties": {
            "list": {"type": "array", "items": leaf},
        }});
        let mut types = DeclTypes::default();
        let inner = types.of(&schema["properties"]["list"]["items"], false);
        let outer = types.of(&schema, true);
        let shared = outer.field("list").and_then(DeclType::items);
        let (DeclType::Object(one), Some(DeclType::Object(other))) = (&inner, shared) else {
            panic!("{inner:?} {outer:?}");
        };
        assert!(Arc::ptr_eq(one, other));
    }

    #[test]
    fn field_names_are_escaped_for_expressions() {
        for (key, name) in [
            ("size", Some("size")),
            ("namespace", Some("__namespace__")),
            ("a.b-c/d", Some("a__dot__b__dash__c__slash__d")),
            ("a__b", Some("a__underscores__b")),
            ("_a", Some("_a")),
            ("1a", None),
            ("a b", None),
            ("ü", None),
            ("", None),
        ] {
            assert_eq!(escape(key).as_deref(), name, "{key}");
            if let Some(name) = name.filter(|name| name.contains("__")) {
                assert_eq!(unescape(name).as_deref(), Some(key));
            }
        }
    }
}
