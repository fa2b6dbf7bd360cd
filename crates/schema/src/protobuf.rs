//! Protobuf bodies: Go clients send and accept them for built-in kinds (S1.32).
//!
//! River: HTTP body → **protobuf** → a JSON value → [`crate::decode`]; the other way is [`encode`].
//! Field numbers come from [`crate::types`]; nothing here knows a kind by name.
//! Promise: no bytes panic, overflow the stack or read outside the body.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use headwater_json::{Map, Number, Value};

use crate::types::{Type, TypeId, Types, ValueType};
use headwater_json::{DEPTH_MAX, NESTED_MAX, parse as json};

pub mod encode;

/// The magic bytes at the start of every body.
pub const MAGIC: [u8; 4] = *b"k8s\0";

/// Why a body cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The body is empty.
    #[error("empty data")]
    Empty,
    /// Nothing after the magic bytes.
    #[error("empty body")]
    EmptyBody,
    /// Another format.
    #[error(
        "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
    )]
    NoMagic,
    /// A length or a number exceeds the body.
    #[error("unexpected EOF")]
    Truncated,
    /// An invalid wire type, or a wrong one for the field.
    #[error("proto: illegal wireType {0}")]
    WireType(u8),
    /// A string is not valid UTF-8.
    #[error("proto: invalid UTF-8 in string field")]
    Text,
    /// Nested too deeply.
    #[error("proto: exceeded max depth")]
    Depth,
    /// Too many messages.
    #[error("proto: exceeded max number of messages")]
    Messages,
    /// JSON inside the message is malformed.
    #[error("{0}")]
    Json(String),
    /// An invalid time.
    #[error("proto: time out of range")]
    Time,
    /// No such type.
    #[error("no kind {0:?} is registered")]
    Unknown(String),
}

/// The message around an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// Such as `apps/v1`; may be empty.
    pub api_version: &'a str,
    /// Such as `Deployment`; may be empty.
    pub kind: &'a str,
    /// The object.
    pub raw: &'a [u8],
}

/// Decodes the envelope of a body.
pub fn envelope(body: &[u8]) -> Result<Envelope<'_>, Error> {
    if body.is_empty() {
        return Err(Error::Empty);
    }
    let message = body.strip_prefix(&MAGIC).ok_or(Error::NoMagic)?;
    if message.is_empty() {
        return Err(Error::EmptyBody);
    }
    let mut envelope = Envelope { api_version: "", kind: "", raw: &[] };
    let mut reader = Reader(message);
    while let Some((number, item)) = reader.next()? {
        match number {
            1 => {
                let mut type_meta = Reader(item.bytes()?);
                while let Some((number, item)) = type_meta.next()? {
                    match number {
                        1 => envelope.api_version = item.text()?,
                        2 => envelope.kind = item.text()?,
                        _ => {}
                    }
                }
            }
            2 => envelope.raw = item.bytes()?,
            _ => {}
        }
    }
    Ok(envelope)
}

/// Decodes the message of a built-in kind or of a subresource's type.
pub fn object(group: &str, version: &str, kind: &str, raw: &[u8]) -> Result<Value, Error> {
    let types = Types::builtin();
    let of = types.find(group, version, kind).ok_or_else(|| Error::Unknown(kind.to_owned()))?;
    let mut object = Map::new();
    Decoder { types, depth: 0, messages: 0 }.message(of, raw, &mut object)?;
    Ok(Value::Object(object))
}

/// Decodes a complete body as [`encode`] writes it: an object, a `Status`, or a list of objects.
pub fn document(body: &[u8]) -> Result<Value, Error> {
    let Envelope { api_version, kind, raw } = envelope(body)?;
    let of = |kind| encode::type_of(api_version, kind);
    let mut decoder = Decoder { types: Types::builtin(), depth: 0, messages: 0 };
    let mut object = Map::new();
    match (of(kind), kind.strip_suffix("List").and_then(of)) {
        (Some(of), _) => decoder.message(of, raw, &mut object)?,
        (None, Some(of)) => {
            let list_meta = decoder.types.named("meta/v1.ListMeta");
            let (mut metadata, mut items) = (Map::new(), Vec::new());
            let mut reader = Reader(raw);
            while let Some((number, item)) = reader.next()? {
                match (number, list_meta) {
                    (1, Some(of)) => decoder.message(of, item.bytes()?, &mut metadata)?,
                    (2, _) => {
                        let mut object = Map::new();
                        decoder.message(of, item.bytes()?, &mut object)?;
                        items.push(Value::Object(object));
                    }
                    _ => {}
                }
            }
            object.insert("metadata".into(), Value::Object(metadata));
            object.insert("items".into(), Value::Array(items));
        }
        _ => return Err(Error::Unknown(kind.to_owned())),
    }
    object.insert("apiVersion".into(), api_version.into());
    object.insert("kind".into(), kind.into());
    Ok(Value::Object(object))
}

/// The wire type of a field.
#[derive(Clone, Copy)]
enum Item<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32,
}

impl<'a> Item<'a> {
    fn wrong(&self) -> Error {
        Error::WireType(match self {
            Item::Varint(_) => 0,
            Item::Fixed64(_) => 1,
            Item::Bytes(_) => 2,
            Item::Fixed32 => 5,
        })
    }

    fn bytes(&self) -> Result<&'a [u8], Error> {
        if let Item::Bytes(bytes) = self { Ok(bytes) } else { Err(self.wrong()) }
    }

    fn text(&self) -> Result<&'a str, Error> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Error::Text)
    }

    fn varint(&self) -> Result<u64, Error> {
        if let Item::Varint(number) = self { Ok(*number) } else { Err(self.wrong()) }
    }
}

/// A reader of fields.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<Option<(u32, Item<'a>)>, Error> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).map_err(|_| Error::Truncated)?;
        let item = match (key & 7) as u8 {
            0 => Item::Varint(self.varint()?),
            1 => {
                let bytes = self.take(8)?.try_into().map_err(|_| Error::Truncated)?;
                Item::Fixed64(u64::from_le_bytes(bytes))
            }
            2 => {
                let length = self.varint()?;
                Item::Bytes(self.take(usize::try_from(length).map_err(|_| Error::Truncated)?)?)
            }
            5 => {
                self.take(4)?;
                Item::Fixed32
            }
            other => return Err(Error::WireType(other)),
        };
        Ok(Some((number, item)))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Error::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, Error> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Error::Truncated)
    }
}

struct Decoder {
    types: &'static Types,
    depth: u32,
    messages: usize,
}

impl Decoder {
    fn message(&mut self, of: &Type, bytes: &[u8], object: &mut Map) -> Result<(), Error> {
        if self.depth == DEPTH_MAX {
            return Err(Error::Depth);
        }
        if self.messages == NESTED_MAX {
            return Err(Error::Messages);
        }
        self.depth += 1;
        self.messages += 1;
        let mut reader = Reader(bytes);
        while let Some((number, item)) = reader.next()? {
            let Ok(at) = of.wire.binary_search_by_key(&number, |field| field.number) else {
                continue;
            };
            let field = &of.wire[at];
            match (field.name, &field.shape) {
                (None, ValueType::Struct(id)) => {
                    self.message(self.types.get(*id), item.bytes()?, object)?;
                }
                (Some(name), shape) => self.field(name, shape, item, object)?,
                (None, _) => {}
            }
        }
        self.depth -= 1;
        Ok(())
    }

    fn field(
        &mut self,
        name: &str,
        shape: &ValueType,
        item: Item<'_>,
        object: &mut Map,
    ) -> Result<(), Error> {
        match shape {
            ValueType::List(inner) => {
                let list = object.entry(name).or_insert_with(|| Value::Array(Vec::new()));
                if let Value::Array(items) = list {
                    self.append(inner, item, items)?;
                }
            }
            ValueType::Map(inner) => {
                let (key, value) = self.entry(inner, item.bytes()?)?;
                let map = object.entry(name).or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(map) = map {
                    map.insert(key.into(), value);
                }
            }
            ValueType::Struct(id) => {
                // Repeated occurrences of a message field are merged.
                let inner = object.entry(name).or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(inner) = inner {
                    self.message(self.types.get(*id), item.bytes()?, inner)?;
                }
            }
            scalar => {
                object.insert(name.into(), self.value(scalar, item)?);
            }
        }
        Ok(())
    }

    /// One element, or packed numbers.
    fn append(
        &mut self,
        shape: &ValueType,
        item: Item<'_>,
        items: &mut Vec<Value>,
    ) -> Result<(), Error> {
        let number = matches!(shape, ValueType::Int32 | ValueType::Int64 | ValueType::Bool);
        if let (true, Item::Bytes(packed)) = (number, item) {
            let mut reader = Reader(packed);
            while !reader.0.is_empty() {
                let number = Item::Varint(reader.varint()?);
                items.push(self.value(shape, number)?);
            }
            return Ok(());
        }
        items.push(self.value(shape, item)?);
        Ok(())
    }

    fn entry(&mut self, shape: &ValueType, bytes: &[u8]) -> Result<(String, Value), Error> {
        let (mut key, mut value) = ("", None);
        let mut reader = Reader(bytes);
        while let Some((number, item)) = reader.next()? {
            match number {
                1 => key = item.text()?,
                2 => value = Some(self.value(shape, item)?),
                _ => {}
            }
        }
        // Some writers omit empty values.
        Ok((key.to_owned(), value.unwrap_or_else(|| self.types.empty(shape))))
    }

    fn value(&mut self, shape: &ValueType, item: Item<'_>) -> Result<Value, Error> {
        Ok(match shape {
            ValueType::Text => item.text()?.into(),
            ValueType::Int32 => (item.varint()? as i32).into(),
            ValueType::Int64 => (item.varint()? as i64).into(),
            ValueType::Bool => (item.varint()? != 0).into(),
            ValueType::Float => match item {
                Item::Fixed64(bits) => {
                    Number::from_f64(f64::from_bits(bits)).map_or(Value::Null, Value::Number)
                }
                other => return Err(other.wrong()),
            },
            ValueType::Bytes => STANDARD.encode(item.bytes()?).into(),
            ValueType::Time => time(item.bytes()?, "%Y-%m-%dT%H:%M:%SZ")?,
            ValueType::MicroTime => time(item.bytes()?, "%Y-%m-%dT%H:%M:%S.%6fZ")?,
            ValueType::Quantity => quantity(item.bytes()?)?,
            ValueType::IntOrString => int_or_string(item.bytes()?)?,
            ValueType::Any => any(item.bytes()?)?,
            ValueType::Struct(id) => self.structure(*id, item.bytes()?)?,
            ValueType::Wrapped(inner) => {
                let mut items = Vec::new();
                let mut reader = Reader(item.bytes()?);
                while let Some((number, item)) = reader.next()? {
                    if number == 1 {
                        self.append(inner, item, &mut items)?;
                    }
                }
                Value::Array(items)
            }
            ValueType::List(_) | ValueType::Map(_) => return Err(item.wrong()),
            ValueType::SchemaOrList(id)
            | ValueType::SchemaOrBool(id)
            | ValueType::SchemaOrTexts(id) => self.schema_or(shape, *id, item.bytes()?)?,
        })
    }

    fn structure(&mut self, id: TypeId, bytes: &[u8]) -> Result<Value, Error> {
        let mut object = Map::new();
        self.message(self.types.get(id), bytes, &mut object)?;
        Ok(Value::Object(object))
    }

    /// A JSON schema or its alternative in `shape`.
    fn schema_or(&mut self, shape: &ValueType, id: TypeId, bytes: &[u8]) -> Result<Value, Error> {
        let (mut schema, mut truth, mut items) = (None, false, Vec::new());
        let mut reader = Reader(bytes);
        while let Some((number, item)) = reader.next()? {
            match (shape, number) {
                (ValueType::SchemaOrBool(_), 1) => truth = item.varint()? != 0,
                (ValueType::SchemaOrBool(_), 2) | (_, 1) => {
                    schema = Some(self.structure(id, item.bytes()?)?);
                }
                (ValueType::SchemaOrList(_), 2) => items.push(self.structure(id, item.bytes()?)?),
                (ValueType::SchemaOrTexts(_), 2) => items.push(item.text()?.into()),
                _ => {}
            }
        }
        Ok(match (schema, shape) {
            (Some(schema), _) => schema,
            (None, ValueType::SchemaOrBool(_)) => truth.into(),
            (None, _) => Value::Array(items),
        })
    }
}

/// A time as seconds and nanoseconds; an empty message is `None`.
fn time(bytes: &[u8], format: &str) -> Result<Value, Error> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let (mut seconds, mut nanos) = (0, 0);
    let mut reader = Reader(bytes);
    while let Some((number, item)) = reader.next()? {
        match number {
            1 => seconds = item.varint()? as i64,
            2 => nanos = item.varint()? as i32,
            _ => {}
        }
    }
    let time = jiff::Timestamp::new(seconds, nanos).map_err(|_| Error::Time)?;
    Ok(time.strftime(format).to_string().into())
}

fn quantity(bytes: &[u8]) -> Result<Value, Error> {
    let mut text = "0";
    let mut reader = Reader(bytes);
    while let Some((number, item)) = reader.next()? {
        if number == 1 {
            text = item.text()?;
        }
    }
    Ok(if text.is_empty() { "0" } else { text }.into())
}

fn int_or_string(bytes: &[u8]) -> Result<Value, Error> {
    let (mut is_text, mut int, mut text) = (false, 0, "");
    let mut reader = Reader(bytes);
    while let Some((number, item)) = reader.next()? {
        match number {
            1 => is_text = item.varint()? == 1,
            2 => int = item.varint()? as i32,
            3 => text = item.text()?,
            _ => {}
        }
    }
    Ok(if is_text { text.into() } else { int.into() })
}

/// JSON inside a message.
fn any(bytes: &[u8]) -> Result<Value, Error> {
    let mut raw: &[u8] = &[];
    let mut reader = Reader(bytes);
    while let Some((number, item)) = reader.next()? {
        if number == 1 {
            raw = item.bytes()?;
        }
    }
    if raw.is_empty() {
        return Ok(Value::Null);
    }
    json(raw).map(|parsed| parsed.value).map_err(|error| Error::Json(error.to_string()))
}

#[cfg(test)]
mod tests;
