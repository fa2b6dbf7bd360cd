//! The OpenAPI v2 document as a protobuf message, which Go clients request (S1.12).
//!
//! River: the document as a tree → **protobuf** → HTTP. The messages are those of the package
//! `openapi.v2`, limited to the fields that our documents use. Values outside of OpenAPI itself
//! (extensions, defaults, enumerations) are embedded as YAML, of which JSON is a subset.
//!
//! The fields are in `messages.txt`; this file only reads it. A line without indentation is a
//! message. `number form key [condition]` is a field: the member of an object with that key, or the
//! value itself for `.`. The condition is `name=value` if the object must have that member, `name` if
//! it must have one of that name, and `!name` if it must not. The forms are those of
//! [`Message::field`]: a scalar, a message, `[form]` for each element of a list, or `{form}` for
//! each member of a map, with its name.

use std::collections::HashMap;
use std::sync::LazyLock;

use headwater_json::Value;

/// The media type in requests and in responses: `@` is not allowed in a media type.
pub(crate) const ASKED: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
];
pub(crate) const CONTENT_TYPE: &str = ASKED[1];

/// Encodes a document.
pub(crate) fn document(value: &Value) -> Vec<u8> {
    let mut out = Message::default();
    out.fields("document", value);
    out.bytes
}

static MESSAGES: LazyLock<HashMap<&str, Vec<Field>>> = LazyLock::new(|| {
    let mut messages: HashMap<&str, Vec<Field>> = HashMap::new();
    let mut of = "";
    for line in include_str!("messages.txt").lines() {
        match line.strip_prefix("  ") {
            None => of = line,
            Some(line) => {
                let field = Field::read(line).expect("a field has a number, a form and a key");
                messages.entry(of).or_default().push(field);
            }
        }
    }
    messages
});

/// A field of a message.
struct Field {
    number: u32,
    form: &'static str,
    key: &'static str,
    condition: Option<&'static str>,
}

impl Field {
    fn read(line: &'static str) -> Option<Field> {
        let mut words = line.split(' ');
        let number = words.next()?.parse().ok()?;
        let (form, key) = (words.next()?, words.next()?);
        Some(Field { number, form, key, condition: words.next() })
    }

    /// Whether an object has the field.
    fn applies_to(&self, value: &Value) -> bool {
        let Some(condition) = self.condition else { return true };
        match (condition.split_once('='), condition.strip_prefix('!')) {
            (Some((key, wanted)), _) => value[key] == wanted,
            (None, Some(key)) => value.get(key).is_none(),
            (None, None) => value.get(condition).is_some(),
        }
    }
}

/// An encoded message.
#[derive(Default)]
struct Message {
    bytes: Vec<u8>,
}

const VARINT: u32 = 0;
const FIXED_64: u32 = 1;
const LENGTH: u32 = 2;

impl Message {
    /// Writes the fields of a message.
    fn fields(&mut self, of: &str, value: &Value) {
        for field in &MESSAGES[of] {
            let found = if field.key == "." { Some(value) } else { value.get(field.key) };
            if let Some(found) = found.filter(|_| field.applies_to(value)) {
                self.field(field.number, field.form, found);
            }
        }
    }

    /// Writes a value, unless it does not have the form.
    fn field(&mut self, number: u32, form: &str, value: &Value) {
        let inner = form.trim_matches(['[', ']', '{', '}']);
        match (form, value) {
            ("text", Value::String(text)) => self.string(number, text),
            ("flag", Value::Bool(truth)) => {
                self.key(number, VARINT);
                self.varint(u64::from(*truth));
            }
            ("integer", Value::Number(_)) => {
                if let Some(integer) = value.as_i64() {
                    self.key(number, VARINT);
                    self.varint(integer as u64);
                }
            }
            ("double", Value::Number(_)) => {
                if let Some(double) = value.as_f64() {
                    self.key(number, FIXED_64);
                    self.bytes.extend_from_slice(&double.to_le_bytes());
                }
            }
            ("any", value) => {
                let mut yaml = Message::default();
                yaml.string(2, &format!("{value}\n"));
                self.message(number, &yaml);
            }
            // Members whose names begin with `x-`.
            ("extensions", Value::Object(members)) => {
                for (name, value) in members.iter().filter(|(name, _)| name.starts_with("x-")) {
                    self.named(number, name, "any", value);
                }
            }
            (form, Value::Array(items)) if form.starts_with('[') => {
                items.iter().for_each(|item| self.field(number, inner, item));
            }
            (form, Value::Object(members)) if form.starts_with('{') => {
                members.iter().for_each(|(name, value)| self.named(number, name, inner, value));
            }
            (form, value) if MESSAGES.contains_key(form) => {
                let mut message = Message::default();
                message.fields(form, value);
                if value.is_object() || !message.bytes.is_empty() {
                    self.message(number, &message);
                }
            }
            _ => {}
        }
    }

    fn named(&mut self, number: u32, name: &str, form: &str, value: &Value) {
        let mut named = Message::default();
        named.string(1, name);
        named.field(2, form, value);
        self.message(number, &named);
    }

    fn message(&mut self, number: u32, message: &Message) {
        self.length(number, &message.bytes);
    }

    fn string(&mut self, number: u32, text: &str) {
        self.length(number, text.as_bytes());
    }

    fn length(&mut self, number: u32, bytes: &[u8]) {
        self.key(number, LENGTH);
        self.varint(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    fn key(&mut self, number: u32, form: u32) {
        self.varint(u64::from(number << 3 | form));
    }

    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }
}

#[cfg(test)]
mod tests {
    use headwater_json::json;

    use super::*;

    /// A decoded field.
    enum Field<'a> {
        Number(u64),
        Bytes(&'a [u8]),
    }

    fn varint(bytes: &mut &[u8]) -> u64 {
        let (mut number, mut shift) = (0, 0);
        loop {
            let (first, rest) = bytes.split_first().unwrap();
            *bytes = rest;
            number |= u64::from(first & 0x7f) << shift;
            shift += 7;
            if first & 0x80 == 0 {
                return number;
            }
        }
    }

    fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let key = varint(&mut bytes);
            let length = match key & 7 {
                0 => {
                    fields.push((key >> 3, Field::Number(varint(&mut bytes))));
                    continue;
                }
                1 => 8,
                2 => varint(&mut bytes) as usize,
                other => panic!("no form {other}"),
            };
            let (value, rest) = bytes.split_at(length);
            bytes = rest;
            fields.push((key >> 3, Field::Bytes(value)));
        }
        fields
    }

    /// The bytes at a path of field numbers, using the first match at each level.
    fn at<'a>(bytes: &'a [u8], path: &[u64]) -> Option<&'a [u8]> {
        path.iter().try_fold(bytes, |bytes, number| {
            fields(bytes).into_iter().find_map(|(found, field)| match field {
                Field::Bytes(bytes) if found == *number => Some(bytes),
                _ => None,
            })
        })
    }

    #[track_caller]
    fn check(bytes: &[u8], path: &[u64], expected: &str) {
        let found = at(bytes, path).map(|bytes| std::str::from_utf8(bytes).unwrap());
        assert_eq!(found, Some(expected), "{path:?}");
    }

    #[test]
    fn every_form_is_a_scalar_or_a_message() {
        let scalars = ["text", "flag", "integer", "double", "any", "extensions"];
        for field in MESSAGES.values().flatten() {
            let form = field.form.trim_matches(['[', ']', '{', '}']);
            assert!(scalars.contains(&form) || MESSAGES.contains_key(form), "{form}");
        }
    }

    #[test]
    fn a_document_is_written_where_the_messages_have_it() {
        let bytes = document(&json!({
            "swagger": "2.0",
            "info": {"title": "Kubernetes", "version": "v1"},
            "paths": {"/api": {
                "get": {
                    "operationId": "read", "tags": ["core_v1"], "produces": ["application/json"],
                    "parameters": [
                        {"name": "limit", "in": "query", "type": "integer"},
                        {"$ref": "#/parameters/p"},
                    ],
                    "responses": {"200": {"description": "OK", "schema": {"$ref": "#/x"}}},
                    "x-kubernetes-action": "get",
                },
                "parameters": [{"name": "n", "in": "path", "required": true, "type": "string"}],
            }},
            "parameters": {"p": {"name": "watch", "in": "query", "type": "boolean"}},
            "security": [{"BearerToken": []}],
            "securityDefinitions": {"BearerToken": {"type": "apiKey", "in": "header"}},
            "definitions": {"a.Pod": {
                "description": "d", "type": "object", "required": ["spec"],
                "properties": {"spec": {"allOf": [{"$ref": "#/y"}], "default": {}}},
                "additionalProperties": {"type": "string"},
                "x-kubernetes-group-version-kind": [{"kind": "Pod"}],
            }},
        }));
        check(&bytes, &[1], "2.0");
        check(&bytes, &[2, 1], "Kubernetes");
        check(&bytes, &[8, 2, 1], "/api");
        let get = at(&bytes, &[8, 2, 2, 2]).unwrap();
        check(get, &[5], "read");
        check(get, &[1], "core_v1");
        check(get, &[6], "application/json");
        check(get, &[8, 1, 2, 3, 4], "limit");
        check(get, &[8, 1, 2, 3, 6], "integer");
        let items: Vec<_> = fields(get).into_iter().filter(|(number, _)| *number == 8).collect();
        let [(_, Field::Bytes(_)), (_, Field::Bytes(reference))] = items[..] else { panic!() };
        check(reference, &[2, 1], "#/parameters/p");
        assert!(at(reference, &[1]).is_none() && at(get, &[8, 2]).is_none());
        check(get, &[9, 1, 1], "200");
        check(get, &[9, 1, 2, 1, 1], "OK");
        check(get, &[9, 1, 2, 1, 2, 1, 1], "#/x");
        check(get, &[13, 1], "x-kubernetes-action");
        check(get, &[13, 2, 2], "\"get\"\n");
        check(&bytes, &[8, 2, 2, 9, 1, 2, 4, 4], "n");
        check(&bytes, &[10, 1, 1], "p");
        check(&bytes, &[10, 1, 2, 2, 3, 4], "watch");
        check(&bytes, &[12, 1, 1], "BearerToken");
        check(&bytes, &[13, 1, 2, 2, 1], "apiKey");
        check(&bytes, &[9, 1, 1], "a.Pod");
        let pod = at(&bytes, &[9, 1, 2]).unwrap();
        check(pod, &[4], "d");
        check(pod, &[22, 1], "object");
        check(pod, &[19], "spec");
        check(pod, &[25, 1, 1], "spec");
        check(pod, &[25, 1, 2, 24, 1], "#/y");
        check(pod, &[25, 1, 2, 5, 2], "{}\n");
        check(pod, &[21, 1, 22, 1], "string");
        check(pod, &[31, 1], "x-kubernetes-group-version-kind");
        check(pod, &[31, 2, 2], "[{\"kind\":\"Pod\"}]\n");
        let path = at(&bytes, &[8, 2, 2, 9, 1, 2, 4]).unwrap();
        assert!(fields(path).iter().any(|field| matches!(field, (1, Field::Number(1)))));
    }
}
