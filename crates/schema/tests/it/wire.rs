//! Writes any object as a protobuf message, by the table of types. Whether the table is right is
//! asked of `k8s-pb` (`formats.rs`).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use headwater_json::{Map, Value};
use headwater_schema::types::{Type, Types, ValueType};

/// The body of a request: the object in its envelope.
pub(crate) fn body(api_version: &str, kind: &str, message: &[u8]) -> Vec<u8> {
    let mut type_meta = Vec::new();
    bytes(&mut type_meta, 1, api_version.as_bytes());
    bytes(&mut type_meta, 2, kind.as_bytes());
    let mut unknown = b"k8s\0".to_vec();
    bytes(&mut unknown, 1, &type_meta);
    bytes(&mut unknown, 2, message);
    unknown
}

/// An object as a message: fields by number, maps by key.
pub(crate) fn message(of: &Type, object: &Map) -> Vec<u8> {
    let types = Types::builtin();
    let mut out = Vec::new();
    for field in &of.wire {
        match (field.name, &field.shape) {
            (None, ValueType::Struct(id)) => {
                bytes(&mut out, field.number, &message(types.get(*id), object));
            }
            (Some(name), shape) => {
                if let Some(value) = object.get(name).filter(|value| !value.is_null()) {
                    self::field(&mut out, field.number, shape, value);
                }
            }
            (None, _) => {}
        }
    }
    out
}

fn field(out: &mut Vec<u8>, number: u32, shape: &ValueType, value: &Value) {
    match (shape, value) {
        (ValueType::List(inner), Value::Array(items)) => {
            items.iter().for_each(|item| single(out, number, inner, item));
        }
        (ValueType::Map(inner), Value::Object(map)) => {
            for (key, value) in map {
                let mut entry = Vec::new();
                bytes(&mut entry, 1, key.as_bytes());
                single(&mut entry, 2, inner, value);
                bytes(out, number, &entry);
            }
        }
        (shape, value) => single(out, number, shape, value),
    }
}

fn single(out: &mut Vec<u8>, number: u32, shape: &ValueType, value: &Value) {
    match shape {
        ValueType::Int32 | ValueType::Int64 => {
            varint_field(out, number, value.as_i64().unwrap() as u64)
        }
        ValueType::Bool => varint_field(out, number, u64::from(value.as_bool().unwrap())),
        ValueType::Float => {
            varint(out, u64::from(number << 3 | 1));
            out.extend(value.as_f64().unwrap().to_bits().to_le_bytes());
        }
        ValueType::Text => bytes(out, number, value.as_str().unwrap().as_bytes()),
        ValueType::Bytes => bytes(out, number, &STANDARD.decode(value.as_str().unwrap()).unwrap()),
        shape => bytes(out, number, &nested(shape, value)),
    }
}

/// The message that a value is.
fn nested(shape: &ValueType, value: &Value) -> Vec<u8> {
    let types = Types::builtin();
    let mut out = Vec::new();
    match (shape, value) {
        (ValueType::Struct(id), Value::Object(object)) => return message(types.get(*id), object),
        (ValueType::Time | ValueType::MicroTime, value) => {
            let time: jiff::Timestamp = value.as_str().unwrap().parse().unwrap();
            varint_field(&mut out, 1, time.as_second() as u64);
            varint_field(&mut out, 2, time.subsec_nanosecond() as u64);
        }
        (ValueType::Quantity, value) => bytes(&mut out, 1, value.as_str().unwrap().as_bytes()),
        (ValueType::IntOrString, Value::String(text)) => {
            varint_field(&mut out, 1, 1);
            varint_field(&mut out, 2, 0);
            bytes(&mut out, 3, text.as_bytes());
        }
        (ValueType::IntOrString, value) => {
            varint_field(&mut out, 1, 0);
            varint_field(&mut out, 2, value.as_i64().unwrap() as u64);
            bytes(&mut out, 3, b"");
        }
        (ValueType::Any, value) => bytes(&mut out, 1, value.to_string().as_bytes()),
        (ValueType::Wrapped(inner), Value::Array(items)) => {
            items.iter().for_each(|item| single(&mut out, 1, inner, item));
        }
        (ValueType::SchemaOrBool(_), Value::Bool(truth)) => {
            varint_field(&mut out, 1, u64::from(*truth));
        }
        (ValueType::SchemaOrBool(id), Value::Object(schema)) => {
            varint_field(&mut out, 1, 1);
            bytes(&mut out, 2, &message(types.get(*id), schema));
        }
        (ValueType::SchemaOrList(id) | ValueType::SchemaOrTexts(id), Value::Object(schema)) => {
            bytes(&mut out, 1, &message(types.get(*id), schema));
        }
        (ValueType::SchemaOrList(id), Value::Array(items)) => {
            for item in items {
                bytes(&mut out, 2, &message(types.get(*id), item.as_object().unwrap()));
            }
        }
        (ValueType::SchemaOrTexts(_), Value::Array(items)) => {
            items.iter().for_each(|item| bytes(&mut out, 2, item.as_str().unwrap().as_bytes()));
        }
        (shape, value) => panic!("{value} is no {shape:?}"),
    }
    out
}

fn varint_field(out: &mut Vec<u8>, number: u32, value: u64) {
    varint(out, u64::from(number << 3));
    varint(out, value);
}

fn bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    varint(out, u64::from(number << 3 | 2));
    varint(out, bytes.len() as u64);
    out.extend(bytes);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
