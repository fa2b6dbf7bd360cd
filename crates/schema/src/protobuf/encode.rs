//! Objects as protobuf messages, written from their JSON text.
//!
//! River: stored bytes → **encode** → response bodies and watch frames. Field numbers come from
//! [`crate::types`]; nothing here knows a kind by name.
//! Promise: the bytes are those of Kubernetes' own encoder: fields in the order of their numbers, scalars
//! and messages that are no pointers in Go also when they are zero, maps in the order of their keys.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use headwater_json::scan::{Malformed, Scanner, Span, find, unescape};

use super::{Error, MAGIC};
use crate::types::{Type, TypeId, Types, ValueType, Wire};

const VARINT: u32 = 0;
const FIXED_64: u32 = 1;
const LENGTH: u32 = 2;

/// What follows the message in an envelope: an empty content encoding and an empty content type.
pub const ENVELOPE_END: [u8; 4] = [0x1a, 0, 0x22, 0];

impl From<Malformed> for Error {
    fn from(malformed: Malformed) -> Error {
        Error::Json(malformed.to_string())
    }
}

/// The type of objects of this version and kind, including `Status` and the other types without a group.
pub fn type_of(api_version: &str, kind: &str) -> Option<&'static Type> {
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let types = Types::builtin();
    let meta = || types.named(&["meta/v1.", kind].concat());
    match group {
        "meta.k8s.io" => meta(),
        "" => types.find(group, version, kind).or_else(meta),
        group => types.find(group, version, kind),
    }
}

/// A complete body from the JSON text of an object, which names its kind.
pub fn body(object: &[u8]) -> Result<Vec<u8>, Error> {
    let text = |name| -> Result<Cow<'_, str>, Error> {
        let span = find(object, &[name]).unwrap_or_default();
        string(span.of(object))
    };
    let (api_version, kind) = (text("apiVersion")?, text("kind")?);
    let of = type_of(&api_version, &kind).ok_or_else(|| Error::Unknown(kind.to_string()))?;
    let mut raw = Vec::with_capacity(object.len());
    message(of, object, &mut raw)?;
    let mut out = Vec::with_capacity(raw.len() + 64);
    envelope_start(&api_version, &kind, raw.len(), &mut out);
    out.extend_from_slice(&raw);
    out.extend_from_slice(&ENVELOPE_END);
    Ok(out)
}

/// Writes what precedes a message of `length` bytes in a body.
pub fn envelope_start(api_version: &str, kind: &str, length: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&MAGIC);
    nested(out, 1, |out| {
        bytes(out, 1, api_version.as_bytes());
        bytes(out, 2, kind.as_bytes());
    });
    key(out, 2, LENGTH);
    varint(out, length as u64);
}

/// Writes the message of an object from its JSON text.
pub fn message(of: &Type, object: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
    let mut writer =
        MessageWriter { types: Types::builtin(), text: object, spans: Vec::new(), out };
    writer.object(of, Span { start: 0, end: object.len() as u32 })
}

/// Writes an object as a field of the message around it, such as an item of a list.
pub fn field(number: u32, of: &Type, object: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
    nested(out, number, |out| message(of, object, out))
}

/// An event of a watch stream; `body` is that of its object. The length precedes it as four bytes.
pub fn event(event: &str, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + 32);
    out.extend_from_slice(&[0; 4]);
    bytes(&mut out, 1, event.as_bytes());
    nested(&mut out, 2, |out| bytes(out, 1, body));
    let length = (out.len() - 4) as u32;
    out[..4].copy_from_slice(&length.to_be_bytes());
    out
}

/// Writes one message and the messages in it.
struct MessageWriter<'a> {
    types: &'static Types,
    text: &'a [u8],
    /// The values of the open objects, by the places of their fields.
    spans: Vec<Span>,
    out: &'a mut Vec<u8>,
}

impl<'a> MessageWriter<'a> {
    /// The fields of an object; an empty span is an absent one.
    fn object(&mut self, of: &Type, object: Span) -> Result<(), Error> {
        let base = self.spans.len();
        self.spans.resize(base + of.fields.len(), Span::default());
        if object != Span::default() {
            let mut scanner = Scanner::at(self.text, object.start);
            scanner.object::<Malformed>(|key, at| {
                let value = at.value()?;
                let name = at.name(key);
                let place = std::str::from_utf8(&name).ok().and_then(|name| of.place(name));
                if let Some(place) = place.filter(|_| value.of(self.text) != b"null") {
                    self.spans[base + place] = value;
                }
                Ok(())
            })?;
        }
        self.fields(&of.wire, base)?;
        self.spans.truncate(base);
        Ok(())
    }

    fn fields(&mut self, wire: &[Wire], base: usize) -> Result<(), Error> {
        for field in wire {
            if field.name.is_none() {
                self.nested(field.number, |writer| writer.fields(&field.inlined, base))?;
                continue;
            }
            let value = self.spans[base + field.place];
            let is_absent = value == Span::default();
            match &field.shape {
                ValueType::List(_) | ValueType::Map(_) | ValueType::Bytes if is_absent => {}
                _ if is_absent && field.optional => {}
                ValueType::List(inner) => {
                    for item in self.items(value)? {
                        self.value(field.number, inner, item)?;
                    }
                }
                ValueType::Map(inner) => self.map(field.number, inner, value)?,
                shape => self.value(field.number, shape, value)?,
            }
        }
        Ok(())
    }

    /// The elements of a list; those that are null are empty spans.
    fn items(&self, list: Span) -> Result<Vec<Span>, Error> {
        let mut items = Vec::new();
        Scanner::at(self.text, list.start).array::<Malformed>(|at| {
            items.push(self.or_absent(at.value()?));
            Ok(())
        })?;
        Ok(items)
    }

    fn or_absent(&self, value: Span) -> Span {
        if value.of(self.text) == b"null" { Span::default() } else { value }
    }

    fn map(&mut self, number: u32, inner: &ValueType, map: Span) -> Result<(), Error> {
        let mut scanner = Scanner::at(self.text, map.start);
        scanner.object::<Error>(|key, at| {
            let value = self.or_absent(at.value()?);
            self.nested(number, |writer| {
                bytes(writer.out, 1, &at.name(key));
                match (inner, value == Span::default()) {
                    (ValueType::Bytes, true) => Ok(()),
                    _ => writer.value(2, inner, value),
                }
            })
        })
    }

    /// A value that is no list and no map; an empty span is its zero value.
    fn value(&mut self, number: u32, shape: &ValueType, value: Span) -> Result<(), Error> {
        let text = value.of(self.text);
        match shape {
            ValueType::Text => bytes(self.out, number, string(text)?.as_bytes()),
            ValueType::Int32 | ValueType::Int64 => number_field(self.out, number, integer(text)?),
            ValueType::Bool => number_field(self.out, number, i64::from(text == b"true")),
            ValueType::Float => {
                key(self.out, number, FIXED_64);
                self.out.extend_from_slice(&float(text)?.to_le_bytes());
            }
            ValueType::Bytes => {
                let decoded = STANDARD.decode(string(text)?.as_bytes());
                let decoded = decoded.map_err(|error| Error::Json(error.to_string()))?;
                bytes(self.out, number, &decoded);
            }
            shape => return self.nested(number, |writer| writer.content(shape, value)),
        }
        Ok(())
    }

    /// The content of a message.
    fn content(&mut self, shape: &ValueType, value: Span) -> Result<(), Error> {
        let text = value.of(self.text);
        match shape {
            ValueType::Struct(id) => return self.object(self.types.get(*id), value),
            ValueType::Time | ValueType::MicroTime if text.is_empty() => {}
            ValueType::Time => self.time(&string(text)?, false)?,
            ValueType::MicroTime => self.time(&string(text)?, true)?,
            ValueType::Quantity => {
                let quantity = string(text)?;
                bytes(self.out, 1, if quantity.is_empty() { b"0" } else { quantity.as_bytes() });
            }
            ValueType::IntOrString => {
                let (is_text, number, string) = match text.first() {
                    Some(b'"') => (1, 0, string(text)?),
                    _ => (0, integer(text)?, Cow::Borrowed("")),
                };
                number_field(self.out, 1, is_text);
                number_field(self.out, 2, number);
                bytes(self.out, 3, string.as_bytes());
            }
            ValueType::Any if text.is_empty() => {}
            ValueType::Any => bytes(self.out, 1, text),
            ValueType::Wrapped(inner) if !text.is_empty() => {
                for item in self.items(value)? {
                    self.value(1, inner, item)?;
                }
            }
            ValueType::SchemaOrBool(id) => match text.first() {
                Some(b'{') => {
                    number_field(self.out, 1, 1);
                    self.schema(2, *id, value)?;
                }
                _ => number_field(self.out, 1, i64::from(text == b"true")),
            },
            ValueType::SchemaOrList(id) | ValueType::SchemaOrTexts(id) => match text.first() {
                Some(b'{') => self.schema(1, *id, value)?,
                Some(b'[') => {
                    for item in self.items(value)? {
                        match shape {
                            ValueType::SchemaOrList(id) => self.schema(2, *id, item)?,
                            _ => self.value(2, &ValueType::Text, item)?,
                        }
                    }
                }
                _ => {}
            },
            // The callers of `value` handle all others.
            _ => {}
        }
        Ok(())
    }

    fn schema(&mut self, number: u32, id: TypeId, value: Span) -> Result<(), Error> {
        self.nested(number, |writer| writer.object(writer.types.get(id), value))
    }

    fn time(&mut self, text: &str, with_fraction: bool) -> Result<(), Error> {
        let time: jiff::Timestamp = text.parse().map_err(|_| Error::Time)?;
        let nanos = if with_fraction { time.subsec_microsecond() * 1000 } else { 0 };
        number_field(self.out, 1, time.as_second());
        number_field(self.out, 2, i64::from(nanos));
        Ok(())
    }

    fn nested(
        &mut self,
        number: u32,
        write: impl FnOnce(&mut Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let start = begin(self.out, number);
        write(self)?;
        end(self.out, start);
        Ok(())
    }
}

/// The text of a JSON string, or the text of another scalar; empty for an absent one.
fn string(text: &[u8]) -> Result<Cow<'_, str>, Error> {
    let inner = text.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\""));
    unescape(inner.unwrap_or(text)).ok_or(Error::Text)
}

fn integer(text: &[u8]) -> Result<i64, Error> {
    if text.is_empty() {
        return Ok(0);
    }
    let found = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    // Values without a fraction may be written with an exponent.
    found.map_or_else(|| float(text).map(|number| number as i64), Ok)
}

fn float(text: &[u8]) -> Result<f64, Error> {
    if text.is_empty() {
        return Ok(0.0);
    }
    let found = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    found.ok_or_else(|| Error::Json("not a number".to_owned()))
}

fn number_field(out: &mut Vec<u8>, number: u32, value: i64) {
    key(out, number, VARINT);
    varint(out, value as u64);
}

fn bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    key(out, number, LENGTH);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn nested<T>(out: &mut Vec<u8>, number: u32, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    let start = begin(out, number);
    let result = write(out);
    end(out, start);
    result
}

/// Opens a message: its length is written at the end, and one byte is left for it.
fn begin(out: &mut Vec<u8>, number: u32) -> usize {
    key(out, number, LENGTH);
    out.push(0);
    out.len()
}

/// Closes the message that starts here. Longer lengths move its content.
fn end(out: &mut Vec<u8>, start: usize) {
    let length = out.len() - start;
    let width = varint_width(length as u64);
    if width > 1 {
        let more = width - 1;
        out.resize(out.len() + more, 0);
        out.copy_within(start..start + length, start + more);
    }
    let mut left = length;
    for byte in &mut out[start - 1..start - 1 + width] {
        *byte = left as u8 | 0x80;
        left >>= 7;
    }
    out[start + width - 2] &= 0x7f;
}

fn key(out: &mut Vec<u8>, number: u32, form: u32) {
    varint(out, u64::from(number << 3 | form));
}

fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// The number of bytes of a number.
fn varint_width(number: u64) -> usize {
    (70 - (number | 1).leading_zeros() as usize) / 7
}
