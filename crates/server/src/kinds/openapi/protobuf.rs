//! The OpenAPI v2 document as a protobuf message, which Go clients request (S1.12).
//!
//! River: the document as a tree → **protobuf** → HTTP. The messages are those of the package
//! `openapi.v2`, limited to the fields that our documents use. Values outside of OpenAPI itself
//! (extensions, defaults, enumerations) are embedded as YAML, of which JSON is a subset.

use headwater_json::{Map, Value};

/// The media type in requests and in responses: `@` is not allowed in a media type.
pub(crate) const ASKED: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
];
pub(crate) const CONTENT_TYPE: &str = ASKED[1];

type Object = Map;

/// Encodes a document.
pub(crate) fn document(value: &Value) -> Vec<u8> {
    let mut out = Message::default();
    out.text(1, value.get("swagger"));
    if let Some(info) = object(value.get("info")) {
        out.message(2, |out| {
            out.text(1, info.get("title"));
            out.text(2, info.get("version"));
        });
    }
    out.message(8, |out| out.named(2, value.get("paths"), path_item));
    out.message(9, |out| out.named(1, value.get("definitions"), schema));
    out.bytes
}

const METHODS: [(&str, u32); 7] =
    [("get", 2), ("put", 3), ("post", 4), ("delete", 5), ("options", 6), ("head", 7), ("patch", 8)];

fn path_item(out: &mut Message, item: &Object) {
    for (method, number) in METHODS {
        if let Some(found) = object(item.get(method)) {
            out.message(number, |out| operation(out, found));
        }
    }
    parameters(out, 9, item);
    extensions(out, 10, item);
}

fn operation(out: &mut Message, operation: &Object) {
    out.texts(1, operation.get("tags"));
    out.text(3, operation.get("description"));
    out.text(5, operation.get("operationId"));
    out.texts(6, operation.get("produces"));
    out.texts(7, operation.get("consumes"));
    parameters(out, 8, operation);
    if operation.contains_key("responses") {
        out.message(9, |out| {
            out.named(1, operation.get("responses"), |out, found| {
                out.message(1, |out| response(out, found));
            });
        });
    }
    extensions(out, 13, operation);
}

fn response(out: &mut Message, response: &Object) {
    out.text(1, response.get("description"));
    if let Some(found) = object(response.get("schema")) {
        out.message(2, |out| out.message(1, |out| schema(out, found)));
    }
}

fn parameters(out: &mut Message, number: u32, holder: &Object) {
    let list = holder.get("parameters").and_then(Value::as_array);
    for one in list.into_iter().flatten().filter_map(Value::as_object) {
        out.message(number, |out| out.message(1, |out| parameter(out, one)));
    }
}

/// Encodes a parameter: body, query and path parameters are different messages.
fn parameter(out: &mut Message, parameter: &Object) {
    let text = |key: &str| parameter.get(key);
    let place = text("in").and_then(Value::as_str).unwrap_or_default();
    match place {
        "body" => out.message(1, |out| {
            out.text(1, text("description"));
            out.text(2, text("name"));
            out.text(3, text("in"));
            out.flag(4, text("required"));
            if let Some(found) = object(text("schema")) {
                out.message(5, |out| schema(out, found));
            }
        }),
        place => out.message(2, |out| {
            let (number, kind) = if place == "query" { (3, 6) } else { (4, 5) };
            out.message(number, |out| {
                out.flag(1, text("required"));
                out.text(2, text("in"));
                out.text(3, text("description"));
                out.text(4, text("name"));
                out.text(kind, text("type"));
                out.text(kind + 1, text("format"));
            });
        }),
    }
}

fn schema(out: &mut Message, schema: &Object) {
    let get = |key: &str| schema.get(key);
    for (number, key) in [(1, "$ref"), (2, "format"), (3, "title"), (4, "description")] {
        out.text(number, get(key));
    }
    out.any(5, get("default"));
    for (number, key) in [(6, "multipleOf"), (7, "maximum"), (9, "minimum")] {
        out.double(number, get(key));
    }
    for (number, key) in [(8, "exclusiveMaximum"), (10, "exclusiveMinimum"), (16, "uniqueItems")] {
        out.flag(number, get(key));
    }
    let sizes = ["maxLength", "minLength", "", "maxItems", "minItems"];
    for (number, key) in (11..).zip(sizes) {
        out.integer(number, get(key));
    }
    out.text(13, get("pattern"));
    out.integer(17, get("maxProperties"));
    out.integer(18, get("minProperties"));
    out.texts(19, get("required"));
    for value in get("enum").and_then(Value::as_array).into_iter().flatten() {
        out.any(20, Some(value));
    }
    match get("additionalProperties") {
        Some(Value::Object(found)) => {
            out.message(21, |out| out.message(1, |out| self::schema(out, found)));
        }
        Some(flag) => out.message(21, |out| out.flag(2, Some(flag))),
        None => {}
    }
    match get("type") {
        Some(kinds @ Value::Array(_)) => out.message(22, |out| out.texts(1, Some(kinds))),
        Some(kind) => out.message(22, |out| out.text(1, Some(kind))),
        None => {}
    }
    if let Some(found) = object(get("items")) {
        out.message(23, |out| out.message(1, |out| self::schema(out, found)));
    }
    let all = get("allOf").and_then(Value::as_array).into_iter().flatten();
    for found in all.filter_map(Value::as_object) {
        out.message(24, |out| self::schema(out, found));
    }
    if schema.contains_key("properties") {
        out.message(25, |out| out.named(1, get("properties"), self::schema));
    }
    extensions(out, 31, schema);
}

/// Members whose names begin with `x-`.
fn extensions(out: &mut Message, number: u32, holder: &Object) {
    for (name, value) in holder.iter().filter(|(name, _)| name.starts_with("x-")) {
        out.message(number, |out| {
            out.string(1, name);
            out.any(2, Some(value));
        });
    }
}

fn object(value: Option<&Value>) -> Option<&Object> {
    value.and_then(Value::as_object)
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
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    fn key(&mut self, number: u32, form: u32) {
        self.varint(u64::from(number << 3 | form));
    }

    fn string(&mut self, number: u32, text: &str) {
        self.key(number, LENGTH);
        self.varint(text.len() as u64);
        self.bytes.extend_from_slice(text.as_bytes());
    }

    fn text(&mut self, number: u32, value: Option<&Value>) {
        if let Some(text) = value.and_then(Value::as_str) {
            self.string(number, text);
        }
    }

    fn texts(&mut self, number: u32, value: Option<&Value>) {
        let list = value.and_then(Value::as_array).into_iter().flatten();
        list.for_each(|one| self.text(number, Some(one)));
    }

    fn flag(&mut self, number: u32, value: Option<&Value>) {
        if let Some(truth) = value.and_then(Value::as_bool) {
            self.key(number, VARINT);
            self.varint(u64::from(truth));
        }
    }

    fn integer(&mut self, number: u32, value: Option<&Value>) {
        if let Some(value) = value.and_then(Value::as_i64) {
            self.key(number, VARINT);
            self.varint(value as u64);
        }
    }

    fn double(&mut self, number: u32, value: Option<&Value>) {
        if let Some(value) = value.and_then(Value::as_f64) {
            self.key(number, FIXED_64);
            self.bytes.extend_from_slice(&value.to_le_bytes());
        }
    }

    /// Any value, as YAML.
    fn any(&mut self, number: u32, value: Option<&Value>) {
        if let Some(value) = value {
            self.message(number, |out| out.string(2, &format!("{value}\n")));
        }
    }

    fn message(&mut self, number: u32, write: impl FnOnce(&mut Message)) {
        let mut inner = Message::default();
        write(&mut inner);
        self.key(number, LENGTH);
        self.varint(inner.bytes.len() as u64);
        self.bytes.extend_from_slice(&inner.bytes);
    }

    /// A map, encoded as a list of named values.
    fn named(&mut self, number: u32, value: Option<&Value>, write: impl Fn(&mut Message, &Object)) {
        for (name, value) in object(value).into_iter().flatten() {
            let Some(value) = value.as_object() else { continue };
            self.message(number, |out| {
                out.string(1, name);
                out.message(2, |out| write(out, value));
            });
        }
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
    fn a_document_is_written_where_the_messages_have_it() {
        let bytes = document(&json!({
            "swagger": "2.0",
            "info": {"title": "Kubernetes", "version": "v1"},
            "paths": {"/api": {
                "get": {
                    "operationId": "read", "tags": ["core_v1"], "produces": ["application/json"],
                    "parameters": [{"name": "limit", "in": "query", "type": "integer"}],
                    "responses": {"200": {"description": "OK", "schema": {"$ref": "#/x"}}},
                    "x-kubernetes-action": "get",
                },
                "parameters": [{"name": "n", "in": "path", "required": true, "type": "string"}],
            }},
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
        check(get, &[9, 1, 1], "200");
        check(get, &[9, 1, 2, 1, 1], "OK");
        check(get, &[9, 1, 2, 1, 2, 1, 1], "#/x");
        check(get, &[13, 1], "x-kubernetes-action");
        check(get, &[13, 2, 2], "\"get\"\n");
        check(&bytes, &[8, 2, 2, 9, 1, 2, 4, 4], "n");
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
