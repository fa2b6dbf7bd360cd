//! The values of expressions; JSON is read in place, on demand.

pub(crate) mod authorizer;
pub(crate) mod semver;
pub(crate) mod url;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use headwater_json::{Map as JsonMap, Value as Json};
use jiff::{SignedDuration, Timestamp};

use super::decl_type::{self, DeclType, unescape};
use super::time;

/// A value.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the variants are the types of the language")]
pub enum Value<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Text<'a>),
    Bytes(Arc<[u8]>),
    List(ListValue<'a>),
    Map(MapValue<'a>),
    Duration(SignedDuration),
    Timestamp(Timestamp),
    Type(&'static str),
    Optional(Option<Arc<Value<'a>>>),
    Other(Arc<Other>),
}

/// A string.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "where it is")]
pub enum Text<'a> {
    Borrowed(&'a str),
    Shared(Arc<str>),
}

/// A list.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "where it is")]
pub enum ListValue<'a> {
    /// The elements and the type of the list.
    Json(&'a [Json], &'a DeclType),
    Made(Arc<Vec<Value<'a>>>),
}

/// A map, or an object.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "where it is")]
pub enum MapValue<'a> {
    /// The members and the type of the object.
    Json(&'a JsonMap, &'a DeclType),
    Made(Arc<BTreeMap<MapKey, Value<'a>>>),
}

/// A key of a map.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the types of keys")]
pub enum MapKey {
    Bool(bool),
    Int(i128),
    Text(Arc<str>),
}

/// Values of the Kubernetes libraries.
#[derive(Debug)]
#[allow(missing_docs, reason = "the types of the libraries")]
pub enum Other {
    /// In nanounits.
    Quantity(i128),
    Url(url::Url),
    Ip(IpAddr),
    Cidr(IpAddr, u8),
    Semver(semver::Semver),
    /// A named format.
    Format(&'static str),
    Authorizer(authorizer::Authorizer),
    Question(authorizer::Authorizer, authorizer::Question),
    Decision(authorizer::Decision),
}

impl std::ops::Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Text::Borrowed(text) => text,
            Text::Shared(text) => text,
        }
    }
}

/// Values of Rust types.
macro_rules! from {
    ($($ty:ty, $value:ident => $made:expr;)*) => {$(
        impl<'a> From<$ty> for Value<'a> {
            fn from($value: $ty) -> Value<'a> {
                $made
            }
        }
    )*};
}

from! {
    bool, value => Value::Bool(value);
    i64, value => Value::Int(value);
    u64, value => Value::Uint(value);
    f64, value => Value::Double(value);
    &str, text => Value::Text(Text::Shared(text.into()));
    String, text => Value::Text(Text::Shared(text.into()));
    Other, value => Value::Other(Arc::new(value));
    Option<Value<'a>>, value => Value::Optional(value.map(Arc::new));
    Vec<Value<'a>>, elements => Value::List(ListValue::Made(Arc::new(elements)));
    BTreeMap<MapKey, Value<'a>>, entries => Value::Map(MapValue::Made(Arc::new(entries)));
}

impl<'a> Value<'a> {
    /// A JSON value, read by its type.
    pub fn read(json: &'a Json, shape: &'a DeclType) -> Value<'a> {
        match json {
            Json::Null => Value::Null,
            Json::Bool(value) => Value::Bool(*value),
            Json::Number(number) => read_number(number, shape),
            Json::String(text) => read_text(text, shape),
            Json::Array(elements) => Value::List(ListValue::Json(elements, shape)),
            Json::Object(members) => Value::Map(MapValue::Json(members, shape)),
        }
    }

    /// A JSON value of unknown type.
    pub fn json(json: &'a Json) -> Value<'a> {
        Value::read(json, &decl_type::DYN)
    }

    /// An optional with a value.
    pub fn some(value: Value<'a>) -> Value<'a> {
        Value::Optional(Some(Arc::new(value)))
    }

    /// An empty optional.
    pub const NONE: Value<'static> = Value::Optional(None);

    /// The name of its type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Null => "null_type",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Uint(_) => "uint",
            Value::Double(_) => "double",
            Value::Text(_) => "string",
            Value::Bytes(_) => "bytes",
            Value::List(_) => "list",
            Value::Map(_) => "map",
            Value::Duration(_) => "google.protobuf.Duration",
            Value::Timestamp(_) => "google.protobuf.Timestamp",
            Value::Type(_) => "type",
            Value::Optional(_) => "optional_type",
            Value::Other(other) => other.type_name(),
        }
    }

    /// The string, if it is one.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn as_other(&self) -> Option<&Other> {
        match self {
            Value::Other(other) => Some(other),
            _ => None,
        }
    }

    /// The map key, if it can be one.
    pub(super) fn key(&self) -> Option<MapKey> {
        match self {
            Value::Bool(value) => Some(MapKey::Bool(*value)),
            Value::Int(value) => Some(MapKey::Int(i128::from(*value))),
            Value::Uint(value) => Some(MapKey::Int(i128::from(*value))),
            Value::Double(value) if value.fract() == 0.0 => Some(MapKey::Int(*value as i128)),
            Value::Text(text) => Some(MapKey::Text((**text).into())),
            _ => None,
        }
    }

    /// The value as JSON, if JSON can represent it.
    pub fn to_json(&self) -> Option<Json> {
        Some(match self {
            Value::Null | Value::Optional(None) => Json::Null,
            Value::Bool(value) => Json::Bool(*value),
            Value::Int(value) => (*value).into(),
            Value::Uint(value) => (*value).into(),
            Value::Double(value) => headwater_json::Number::from_f64(*value)?.into(),
            Value::Text(text) => Json::String((&**text).into()),
            Value::Bytes(bytes) => STANDARD.encode(bytes).into(),
            Value::List(ListValue::Json(elements, _)) => Json::Array(elements.to_vec()),
            Value::List(ListValue::Made(elements)) => {
                Json::Array(elements.iter().map(Value::to_json).collect::<Option<_>>()?)
            }
            Value::Map(MapValue::Json(members, _)) => Json::Object((*members).clone()),
            Value::Map(MapValue::Made(entries)) => {
                let entry =
                    |(key, value): (&MapKey, &Value<'_>)| Some((key.text(), value.to_json()?));
                Json::Object(entries.iter().map(entry).collect::<Option<_>>()?)
            }
            Value::Duration(span) => time::show_duration(*span).into(),
            Value::Timestamp(time) => time::show_timestamp(*time).into(),
            Value::Optional(Some(value)) => value.to_json()?,
            Value::Type(_) | Value::Other(_) => return None,
        })
    }
}

fn read_number<'a>(number: &headwater_json::Number, shape: &DeclType) -> Value<'a> {
    let float = || number.as_f64().unwrap_or_default();
    match (shape, number.as_i64()) {
        (DeclType::Double, _) => Value::Double(float()),
        (_, Some(whole)) => Value::Int(whole),
        (DeclType::Int, None) if float().fract() == 0.0 => Value::Int(float() as i64),
        (_, None) => Value::Double(float()),
    }
}

fn read_text<'a>(text: &'a str, shape: &DeclType) -> Value<'a> {
    let read = match shape {
        DeclType::Date | DeclType::Timestamp => {
            time::parse_timestamp_or_date(text).map(Value::Timestamp)
        }
        DeclType::Duration => time::parse_duration(text).map(Value::Duration),
        DeclType::Bytes(_) => STANDARD.decode(text).ok().map(|bytes| Value::Bytes(bytes.into())),
        _ => None,
    };
    // Validation has rejected values of another format before any rule runs.
    read.unwrap_or(Value::Text(Text::Borrowed(text)))
}

impl Other {
    fn type_name(&self) -> &'static str {
        match self {
            Other::Quantity(_) => "kubernetes.Quantity",
            Other::Url(_) => "kubernetes.URL",
            Other::Ip(_) => "net.IP",
            Other::Cidr(..) => "net.CIDR",
            Other::Semver(_) => "kubernetes.Semver",
            Other::Format(_) => "kubernetes.NamedFormat",
            Other::Authorizer(_) => "kubernetes.authorization.Authorizer",
            Other::Question(_, authorizer::Question::Group(_)) => {
                "kubernetes.authorization.GroupCheck"
            }
            Other::Question(_, authorizer::Question::Path(_)) => {
                "kubernetes.authorization.PathCheck"
            }
            Other::Question(_, authorizer::Question::Resource(_)) => {
                "kubernetes.authorization.ResourceCheck"
            }
            Other::Decision(_) => "kubernetes.authorization.Decision",
        }
    }
}

impl MapKey {
    /// The key as JSON writes it.
    pub(super) fn text(&self) -> String {
        match self {
            MapKey::Bool(value) => value.to_string(),
            MapKey::Int(value) => value.to_string(),
            MapKey::Text(text) => text.to_string(),
        }
    }

    pub(super) fn value<'a>(&self) -> Value<'a> {
        match self {
            MapKey::Bool(value) => Value::Bool(*value),
            MapKey::Int(value) => match i64::try_from(*value) {
                Ok(value) => Value::Int(value),
                Err(_) => Value::Uint(u64::try_from(*value).unwrap_or(u64::MAX)),
            },
            MapKey::Text(text) => Value::Text(Text::Shared(Arc::clone(text))),
        }
    }
}

impl<'a> ListValue<'a> {
    pub(super) fn len(&self) -> usize {
        match self {
            ListValue::Json(elements, _) => elements.len(),
            ListValue::Made(elements) => elements.len(),
        }
    }

    pub(super) fn get(&self, at: usize) -> Option<Value<'a>> {
        match self {
            ListValue::Json(elements, shape) => elements
                .get(at)
                .map(|json| Value::read(json, shape.items().unwrap_or(&decl_type::DYN))),
            ListValue::Made(elements) => elements.get(at).cloned(),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Value<'a>> + '_ {
        (0..self.len()).filter_map(|at| self.get(at))
    }

    /// The type of the elements, if a schema defines it.
    pub(super) fn items(&self) -> Option<&'a DeclType> {
        match self {
            ListValue::Json(_, shape) => shape.items(),
            ListValue::Made(_) => None,
        }
    }

    pub(super) fn same(&self) -> &'a decl_type::Same {
        match self {
            ListValue::Json(_, DeclType::List(list)) => &list.same,
            _ => &decl_type::Same::Atomic,
        }
    }
}

impl<'a> MapValue<'a> {
    pub(super) fn len(&self) -> usize {
        match self {
            MapValue::Json(members, _) => members.len(),
            MapValue::Made(entries) => entries.len(),
        }
    }

    /// The value of `map.name`.
    pub(super) fn field(&self, name: &str) -> Option<Value<'a>> {
        match self {
            MapValue::Json(members, shape @ DeclType::Object(_)) => {
                let field = shape.named(name)?;
                // A null field counts as absent; a null value of a map does not.
                let found = members.get(&field.key).filter(|json| !json.is_null());
                found.map(|json| Value::read(json, &field.shape))
            }
            MapValue::Json(members, DeclType::Map(map)) => {
                members.get(name).map(|json| Value::read(json, &map.values))
            }
            MapValue::Json(members, _) => {
                let found = members.get(name);
                let found = found.or_else(|| members.get(&unescape(name)?));
                found.map(Value::json)
            }
            MapValue::Made(entries) => entries.get(&MapKey::Text(name.into())).cloned(),
        }
    }

    /// The value of `map[key]`.
    pub(super) fn get(&self, key: &Value<'_>) -> Option<Value<'a>> {
        match (self, key) {
            (MapValue::Json(members, shape), Value::Text(key)) => {
                let json = members.get(key)?;
                Some(Value::read(json, shape.field(key).unwrap_or(&decl_type::DYN)))
            }
            (MapValue::Json(..), _) => None,
            (MapValue::Made(entries), key) => entries.get(&key.key()?).cloned(),
        }
    }

    /// The keys, in order.
    pub(super) fn keys(&self) -> Vec<Value<'a>> {
        match self {
            MapValue::Json(members, _) => {
                members.keys().map(|key| Value::Text(Text::Borrowed(key))).collect()
            }
            MapValue::Made(entries) => entries.keys().map(MapKey::value).collect(),
        }
    }
}

/// Compares two numbers of any types. `None` if one is not a number.
pub(super) fn compare_numbers(a: &Value<'_>, b: &Value<'_>) -> Option<Ordering> {
    let whole = |value: &Value<'_>| match value {
        Value::Int(value) => Some(i128::from(*value)),
        Value::Uint(value) => Some(i128::from(*value)),
        _ => None,
    };
    let float = |value: &Value<'_>| match value {
        Value::Int(value) => Some(*value as f64),
        Value::Uint(value) => Some(*value as f64),
        Value::Double(value) => Some(*value),
        _ => None,
    };
    match (whole(a), whole(b)) {
        (Some(a), Some(b)) => Some(a.cmp(&b)),
        _ => float(a)?.partial_cmp(&float(b)?),
    }
}
