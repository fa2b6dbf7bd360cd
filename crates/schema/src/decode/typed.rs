//! Fitting of a value to its type, in place.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use headwater_json::{Map, Text, Value};

use super::time::{Precision, canonical};
use crate::types::{Type, Types, ValueType, Zero};
use headwater_api::quantity::Quantity;
use headwater_json::path::{Path, PathList};

/// Fits an object; returns the paths of unknown fields. Members that equal those of `old` fit.
pub(super) fn object(of: &Type, object: &mut Map, old: Option<&Value>) -> Result<PathList, String> {
    let old = old.and_then(Value::as_object);
    let mut fit = Fit { types: Types::builtin(), old, unknown: PathList::default() };
    fit.object(of, object, &Path::Root)?;
    Ok(fit.unknown)
}

/// Fits only the metadata of an object.
pub(super) fn metadata(object: &mut Map) -> Result<PathList, String> {
    let mut fit = Fit { types: Types::builtin(), old: None, unknown: PathList::default() };
    let of = fit.types.named("meta/v1.ObjectMeta").expect("every object has metadata");
    match object.entry("metadata").or_insert_with(|| Value::Object(Map::new())) {
        Value::Object(metadata) => {
            fit.object(of, metadata, &Path::Field(&Path::Root, "metadata"))?;
        }
        metadata @ Value::Null => *metadata = Value::Object(Map::new()),
        other => {
            return Err(format!(
                "json: cannot unmarshal {} into Go struct field .metadata of type v1.ObjectMeta",
                json_type(other)
            ));
        }
    }
    Ok(fit.unknown)
}

/// Go's name for the type of a JSON value.
pub(super) fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

struct Fit<'t> {
    types: &'t Types,
    old: Option<&'t Map>,
    unknown: PathList,
}

/// The position of a value: its path, and the type of the enclosing object.
#[derive(Clone, Copy)]
struct Place<'a> {
    path: &'a Path<'a>,
    within: &'a Type,
}

impl Fit<'_> {
    fn object(&mut self, of: &Type, object: &mut Map, path: &Path<'_>) -> Result<(), String> {
        // Keys and fields are both sorted: one pass over both finds every pair.
        let mut at = 0;
        let mut removed = false;
        for (key, value) in object.iter_mut() {
            let here = Path::Field(path, key);
            match of.next_field(&mut at, key) {
                None => {
                    self.unknown.push(here);
                    *value = Value::Null;
                }
                Some(_) if value.is_null() => {}
                Some(_) if matches!(path, Path::Root) && self.is_unchanged(key, value) => {}
                Some(field) => {
                    self.value(&field.shape, value, Place { path: &here, within: of })?;
                    let is_dropped = match field.zero {
                        Zero::Dropped => is_empty(value),
                        Zero::Null => value.as_array().is_some_and(Vec::is_empty),
                        Zero::Kept | Zero::Filled => false,
                    };
                    if is_dropped {
                        *value = Value::Null;
                    }
                }
            }
            removed |= value.is_null();
        }
        if removed {
            object.retain(|_, value| !value.is_null());
        }
        for field in of.always() {
            if !object.contains_key(field.name) {
                object.insert(field.name.into(), self.types.absent(field));
            }
        }
        Ok(())
    }

    fn is_unchanged(&self, member: &str, value: &Value) -> bool {
        self.old.is_some_and(|old| old.get(member) == Some(value))
    }

    fn value(&mut self, shape: &ValueType, value: &mut Value, at: Place<'_>) -> Result<(), String> {
        match (shape, &mut *value) {
            (ValueType::Any, _)
            | (ValueType::Text | ValueType::IntOrString, Value::String(_))
            | (ValueType::Bool | ValueType::SchemaOrBool(_), Value::Bool(_))
            | (ValueType::Float, Value::Number(_)) => Ok(()),
            (ValueType::Int32, Value::Number(_)) => check_integer(value, i32::BITS, at),
            (ValueType::Int64, Value::Number(_)) => check_integer(value, i64::BITS, at),
            (ValueType::IntOrString, Value::Number(number)) => match number.as_i64() {
                Some(small) if i32::try_from(small).is_ok() => Ok(()),
                _ => Err(format!(
                    "json: cannot unmarshal number {number} into Go value of type int32"
                )),
            },
            (ValueType::Bytes, Value::String(text)) => check_base64(text),
            (ValueType::Time, Value::String(text)) => check_time(text, Precision::Seconds),
            (ValueType::MicroTime, Value::String(text)) => check_time(text, Precision::Micros),
            (ValueType::Time | ValueType::MicroTime, other) => Err(format!(
                "json: cannot unmarshal {} into Go value of type string",
                json_type(other)
            )),
            (ValueType::Quantity, Value::String(_) | Value::Number(_)) => check_quantity(value),
            (
                ValueType::Struct(id)
                | ValueType::SchemaOrList(id)
                | ValueType::SchemaOrBool(id)
                | ValueType::SchemaOrTexts(id),
                Value::Object(object),
            ) => self.object(self.types.get(*id), object, at.path),
            (ValueType::List(inner) | ValueType::Wrapped(inner), Value::Array(items)) => {
                self.items(inner, items, at)
            }
            (ValueType::SchemaOrList(id), Value::Array(items)) => {
                self.items(&ValueType::Struct(*id), items, at)
            }
            (ValueType::SchemaOrTexts(_), Value::Array(items)) => {
                self.items(&ValueType::Text, items, at)
            }
            (ValueType::Map(inner), Value::Object(object)) => {
                for (key, value) in object.iter_mut() {
                    let path = Path::Key(at.path, key);
                    self.element(inner, value, Place { path: &path, ..at })?;
                }
                Ok(())
            }
            (shape, other) => Err(at.wrong(json_type(other), &self.go_type(shape))),
        }
    }

    fn items(
        &mut self,
        shape: &ValueType,
        items: &mut [Value],
        at: Place<'_>,
    ) -> Result<(), String> {
        for (index, value) in items.iter_mut().enumerate() {
            let path = Path::Index(at.path, index);
            self.element(shape, value, Place { path: &path, ..at })?;
        }
        Ok(())
    }

    /// An element of a list or map; as in Go, `null` is the zero value.
    fn element(
        &mut self,
        shape: &ValueType,
        value: &mut Value,
        at: Place<'_>,
    ) -> Result<(), String> {
        if value.is_null() {
            *value = self.types.empty(shape);
            return Ok(());
        }
        self.value(shape, value, at)
    }

    /// Go's text for the type.
    fn go_type(&self, shape: &ValueType) -> String {
        match shape {
            ValueType::Text => "string".into(),
            ValueType::Int32 => "int32".into(),
            ValueType::Int64 => "int64".into(),
            ValueType::Float => "float64".into(),
            ValueType::Bool => "bool".into(),
            ValueType::Bytes => "[]uint8".into(),
            ValueType::Time => "v1.Time".into(),
            ValueType::MicroTime => "v1.MicroTime".into(),
            ValueType::Quantity => "resource.Quantity".into(),
            ValueType::IntOrString => "intstr.IntOrString".into(),
            ValueType::Any => "runtime.RawExtension".into(),
            ValueType::Struct(id) => self.types.get(*id).version_name().into(),
            ValueType::List(inner) | ValueType::Wrapped(inner) => {
                format!("[]{}", self.go_type(inner))
            }
            ValueType::Map(inner) => format!("map[string]{}", self.go_type(inner)),
            ValueType::SchemaOrList(_) => "v1.JSONSchemaPropsOrArray".into(),
            ValueType::SchemaOrBool(_) => "v1.JSONSchemaPropsOrBool".into(),
            ValueType::SchemaOrTexts(_) => "v1.JSONSchemaPropsOrStringArray".into(),
        }
    }
}

impl Place<'_> {
    fn wrong(&self, found: &str, expected: &str) -> String {
        format!(
            "json: cannot unmarshal {found} into Go struct field {}.{} of type {expected}",
            self.within.short_name(),
            self.path.fields()
        )
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(truth) => !truth,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(object) => object.is_empty(),
    }
}

fn check_integer(value: &Value, bits: u32, at: Place<'_>) -> Result<(), String> {
    let fits =
        value.as_i64().is_some_and(|number| bits == i64::BITS || i32::try_from(number).is_ok());
    if fits { Ok(()) } else { Err(at.wrong(&format!("number {value}"), &format!("int{bits}"))) }
}

/// Base64 as Go decodes it: line breaks are allowed and removed.
fn check_base64(text: &mut Text) -> Result<(), String> {
    if text.contains(['\r', '\n']) {
        text.retain(|letter| !matches!(letter, '\r' | '\n'));
    }
    match STANDARD.decode(&*text) {
        Ok(_) => Ok(()),
        Err(
            base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _),
        ) => Err(format!("illegal base64 data at input byte {at}")),
        Err(_) => Err(format!("illegal base64 data at input byte {}", text.len() / 4 * 4)),
    }
}

fn check_time(text: &mut Text, precision: Precision) -> Result<(), String> {
    if let Some(other) = canonical(text, precision)? {
        *text = other.into();
    }
    Ok(())
}

fn check_quantity(value: &mut Value) -> Result<(), String> {
    let parsed = match &*value {
        Value::String(text) => Quantity::parse(text.trim()),
        other => Quantity::parse(&other.to_string()),
    };
    let canonical = parsed.map_err(|error| error.to_string())?.to_string();
    if value.as_str() != Some(&canonical) {
        *value = canonical.into();
    }
    Ok(())
}
