//! Writes any object as a protobuf message, by the table of types. Whether the table is right is
//! asked of `k8s-pb` (`formats.rs`).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use headwater_json::{Map, Value};
use headwater_schema::types::{Shape, Type, Types};

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
            (None, Shape::Struct(id)) => {
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

fn field(out: &mut Vec<u8>, number: u32, shape: &Shape, value: &Value) {
    match (shape, value) {
        (Shape::List(inner), Value::Array(items)) => {
            items.iter().for_each(|item| single(out, number, inner, item));
        }
        (Shape::Map(inner), Value::Object(map)) => {
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

fn single(out: &mut Vec<u8>, number: u32, shape: &Shape, value: &Value) {
    match shape {
        Shape::Int32 | Shape::Int64 => varint_field(out, number, value.as_i64().unwrap() as u64),
        Shape::Bool => varint_field(out, number, u64::from(value.as_bool().unwrap())),
        Shape::Float => {
            varint(out, u64::from(number << 3 | 1));
            out.extend(value.as_f64().unwrap().to_bits().to_le_bytes());
        }
        Shape::Text => bytes(out, number, value.as_str().unwrap().as_bytes()),
        Shape::Bytes => bytes(out, number, &STANDARD.decode(value.as_str().unwrap()).unwrap()),
        shape => bytes(out, number, &nested(shape, value)),
    }
}

/// The message that a value is.
fn nested(shape: &Shape, value: &Value) -> Vec<u8> {
    let types = Types::builtin();
    let mut out = Vec::new();
    match (shape, value) {
        (Shape::Struct(id), Value::Object(object)) => return message(types.get(*id), object),
        (Shape::Time | Shape::MicroTime, value) => {
            let time: jiff::Timestamp = value.as_str().unwrap().parse().unwrap();
            varint_field(&mut out, 1, time.as_second() as u64);
            varint_field(&mut out, 2, time.subsec_nanosecond() as u64);
        }
        (Shape::Quantity, value) => bytes(&mut out, 1, value.as_str().unwrap().as_bytes()),
        (Shape::IntOrString, Value::String(text)) => {
            varint_field(&mut out, 1, 1);
            varint_field(&mut out, 2, 0);
            bytes(&mut out, 3, text.as_bytes());
        }
        (Shape::IntOrString, value) => {
            varint_field(&mut out, 1, 0);
            varint_field(&mut out, 2, value.as_i64().unwrap() as u64);
            bytes(&mut out, 3, b"");
        }
        (Shape::Any, value) => bytes(&mut out, 1, value.to_string().as_bytes()),
        (Shape::Wrapped(inner), Value::Array(items)) => {
            items.iter().for_each(|item| single(&mut out, 1, inner, item));
        }
        (Shape::SchemaOrBool(_), Value::Bool(truth)) => {
            varint_field(&mut out, 1, u64::from(*truth));
        }
        (Shape::SchemaOrBool(id), Value::Object(schema)) => {
            varint_field(&mut out, 1, 1);
            bytes(&mut out, 2, &message(types.get(*id), schema));
        }
        (Shape::SchemaOrList(id) | Shape::SchemaOrTexts(id), Value::Object(schema)) => {
            bytes(&mut out, 1, &message(types.get(*id), schema));
        }
        (Shape::SchemaOrList(id), Value::Array(items)) => {
            for item in items {
                bytes(&mut out, 2, &message(types.get(*id), item.as_object().unwrap()));
            }
        }
        (Shape::SchemaOrTexts(_), Value::Array(items)) => {
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
