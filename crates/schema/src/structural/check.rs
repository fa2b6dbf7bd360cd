//! Validation of a schema in a definition (S9.2).
//!
//! Three parts, as in Kubernetes and with its messages: OpenAPI features that Kubernetes forbids (here),
//! the rules of structural schemas ([`structural`]), and the validity of defaults ([`defaults`]).

use std::collections::HashSet;

use headwater_json::{Map, MemberKey, Value, json};

use super::{META_FIELDS, Schema, Type, Types, rules};
use headwater_api::distinct::Distinct;
use headwater_api::status::FieldError;
use headwater_cel::pattern::Budget;
use headwater_json::path::Path;

mod defaults;
mod structural;

/// The location of a schema.
#[derive(Clone, Copy, Debug)]
pub struct SchemaLocation<'a> {
    /// The path of the schema in its definition.
    pub path: &'a str,
    /// Whether status is a subresource: then the schema of status must be separate.
    pub has_status: bool,
}

/// The validation errors of an `openAPIV3Schema`.
pub fn check(schema: &Value, place: SchemaLocation<'_>) -> Vec<FieldError> {
    let mut errors = root(schema, place);
    let unstructured = match structural::unsupported(schema) {
        Some(why) => Some(FieldError::invalid(place.path, &"".into(), why)),
        None => {
            let found = structural::check(schema, place.path);
            if found.is_empty() {
                // Compile errors are reported below.
                let compiled = Schema::compile(schema).ok();
                errors
                    .extend(compiled.iter().flat_map(|schema| defaults::check(schema, place.path)));
            }
            errors.extend(found);
            None
        }
    };
    let mut walk = Walk::new(place.path);
    walk.schema(schema, &Path::Root, Inside { is_root: true, ..Inside::default() });
    errors.append(&mut walk.errors);
    if errors.is_empty() {
        errors.extend(unstructured);
    }
    if errors.is_empty()
        && let Err(error) = Schema::compile(schema)
    {
        let why = format!("error building validator: {error}");
        errors.push(FieldError::invalid(place.path, &"".into(), why));
    }
    if errors.is_empty() {
        // Expressions can be compiled only if the schema can.
        errors.extend(rules::errors(schema, place));
    }
    errors
}

/// The formats of a schema that are not enforced.
pub fn unrecognized_formats(schema: &Value) -> Vec<String> {
    let mut found = Distinct::default();
    visit(schema, &mut |schema| {
        let name = schema["format"].as_str().unwrap_or_default();
        let kind = schema["type"].as_str().and_then(Type::parse);
        let types = kind.map_or(Types::default(), |kind| Types::default().with(kind));
        if !name.is_empty() && types.format(name).is_none() {
            found.insert(name.to_owned());
        }
    });
    found.into_vec()
}

fn visit<'a>(schema: &'a Value, look: &mut impl FnMut(&'a Value)) {
    look(schema);
    for (_, _, inner) in children(schema) {
        visit(inner, look);
    }
}

/// The schemas inside a schema: the key, the name or index, and the schema.
fn children(schema: &Value) -> Vec<(&'static str, Step<'_>, &Value)> {
    let mut found = Vec::new();
    for key in ["items", "additionalProperties", "not"] {
        if let inner @ Value::Object(_) = &schema[key] {
            found.push((key, Step::None, inner));
        }
    }
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        found.push(("properties", Step::Key(name), inner));
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        for (index, inner) in schema[key].as_array().into_iter().flatten().enumerate() {
            found.push((key, Step::Index(index), inner));
        }
    }
    found
}

#[derive(Clone, Copy)]
enum Step<'a> {
    None,
    Key(&'a str),
    Index(usize),
}

/// The allowed root fields of a schema with a status subresource.
const BESIDE_STATUS: [&str; 22] = [
    "description",
    "type",
    "format",
    "title",
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "uniqueItems",
    "multipleOf",
    "required",
    "items",
    "properties",
    "externalDocs",
    "example",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
];

fn root(schema: &Value, place: SchemaLocation<'_>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let members = schema.as_object();
    if place.has_status {
        let kind = schema["type"].as_str().unwrap_or_default();
        if !matches!(kind, "object" | "") {
            let why = "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
            errors.push(FieldError::invalid(format!("{}.type", place.path), &kind.into(), why));
        }
        let stray = |key: &&MemberKey| !BESIDE_STATUS.contains(&key.as_str());
        if members.into_iter().flat_map(Map::keys).find(stray).is_some() {
            let allowed = "[Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example XPreserveUnknownFields XValidations]";
            let why = format!(
                "only {allowed} fields are allowed at the root of the schema if the status subresource is enabled"
            );
            errors.push(FieldError::invalid(place.path, schema, why));
        }
    }
    if schema["nullable"] == true {
        let field = format!("{}.nullable", place.path);
        errors.push(FieldError::forbidden(field, "nullable cannot be true at the root"));
    }
    errors
}

/// The context of a schema.
#[derive(Clone, Copy, Default)]
struct Inside {
    is_root: bool,
    /// It applies to `apiVersion`, `kind` or `metadata` of a resource.
    meta: bool,
    /// Why defaults are not allowed here.
    no_defaults: Option<&'static str>,
}

struct Walk<'a> {
    base: &'a str,
    errors: Vec<FieldError>,
    /// For the patterns of the schema.
    budget: Budget,
}

impl<'a> Walk<'a> {
    fn new(base: &'a str) -> Walk<'a> {
        Walk { base, errors: Vec::new(), budget: Budget::default() }
    }

    fn at(&self, path: &Path<'_>) -> String {
        match path {
            Path::Root => self.base.to_owned(),
            path => format!("{}.{path}", self.base),
        }
    }

    fn forbid(&mut self, path: &Path<'_>, key: &str, why: &str) {
        let field = self.at(&Path::Field(path, key));
        self.errors.push(FieldError::forbidden(field, why));
    }

    fn invalid(&mut self, path: &Path<'_>, key: &str, value: &Value, why: &str) {
        let field = self.at(&Path::Field(path, key));
        self.errors.push(FieldError::invalid(field, value, why));
    }

    fn require(&mut self, path: &Path<'_>, key: &str, why: &str) {
        let field = self.at(&Path::Field(path, key));
        self.errors.push(FieldError::required(field, why));
    }

    fn unsupported(&mut self, path: &Path<'_>, key: &str, value: &Value, supported: &[&str]) {
        let field = self.at(&Path::Field(path, key));
        self.errors.push(FieldError::not_supported(field, value, supported));
    }

    fn schema(&mut self, schema: &Value, path: &Path<'_>, inside: Inside) {
        self.openapi(schema, path, inside);
        self.extensions(schema, path);
        self.rules(schema, path);
        let is_resource = inside.is_root || schema["x-kubernetes-embedded-resource"] == true;
        for (key, step, inner) in children(schema) {
            let at = Path::Field(path, key);
            let mut below = Inside { is_root: false, ..inside };
            match (key, step) {
                ("properties", Step::Key(name)) if is_resource && META_FIELDS.contains(&name) => {
                    below.meta = true;
                    if inside.is_root {
                        below.no_defaults = Some(match name {
                            "metadata" => "in top-level metadata",
                            "kind" => "in top-level kind",
                            _ => "in top-level apiVersion",
                        });
                    }
                }
                ("additionalProperties", _) if inside.meta => {
                    below.no_defaults =
                        Some("inside additionalProperties applying to object metadata");
                }
                _ => {}
            }
            match step {
                Step::None => self.schema(inner, &at, below),
                Step::Key(name) => self.schema(inner, &Path::Bracket(&at, name), below),
                Step::Index(index) => self.schema(inner, &Path::Index(&at, index), below),
            }
        }
    }

    /// Rejects OpenAPI features that Kubernetes forbids.
    fn openapi(&mut self, schema: &Value, path: &Path<'_>, inside: Inside) {
        let has = |key: &str| schema.get(key).is_some_and(|value| !value.is_null());
        let kind = schema["type"].as_str().unwrap_or_default();
        if kind == "null" {
            let why = "type cannot be set to null, use nullable as an alternative";
            self.forbid(path, "type", why);
        }
        if !kind.is_empty() && Type::parse(kind).is_none() {
            let names = Type::ALL.map(Type::name);
            self.unsupported(path, "type", &schema["type"], &names);
        }
        if let (true, Some(why)) = (has("default"), inside.no_defaults) {
            self.forbid(path, "default", &format!("must not be set {why}"));
        }
        for key in
            ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"]
        {
            if has(key) {
                self.forbid(path, key, &format!("{key} is not supported"));
            }
        }
        if schema["items"].is_array() {
            self.forbid(path, "items", "items must be a schema object and not an array");
        }
        if inside.meta && schema["x-kubernetes-embedded-resource"] == true {
            let why = "must not be used inside of resource meta";
            self.forbid(path, "x-kubernetes-embedded-resource", why);
        }
        if schema["uniqueItems"] == true {
            let why =
                "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
            self.forbid(path, "uniqueItems", why);
        }
        let lists_some = schema["properties"].as_object().is_some_and(|some| !some.is_empty());
        if lists_some && has("additionalProperties") && schema["additionalProperties"] != true {
            let why = "additionalProperties and properties are mutual exclusive";
            self.forbid(path, "additionalProperties", why);
        }
    }

    /// The extensions of Kubernetes.
    fn extensions(&mut self, schema: &Value, path: &Path<'_>) {
        let preserve = &schema["x-kubernetes-preserve-unknown-fields"];
        if *preserve == false {
            let key = "x-kubernetes-preserve-unknown-fields";
            self.invalid(path, key, preserve, "must be true or undefined");
        }
        let map = &schema["x-kubernetes-map-type"];
        if !map.is_null() {
            self.only_for(schema, path, "object", "x-kubernetes-map-type");
            if map != "atomic" && map != "granular" {
                self.unsupported(path, "x-kubernetes-map-type", map, &["atomic", "granular"]);
            }
        }
        let list = &schema["x-kubernetes-list-type"];
        let keys = schema["x-kubernetes-list-map-keys"].as_array().map_or(0, Vec::len);
        if !list.is_null() {
            let fits = self.only_for(schema, path, "array", "x-kubernetes-list-type");
            if fits && list == "set" {
                self.set_items(&schema["items"], path);
            }
            if list != "atomic" && list != "set" && list != "map" {
                self.unsupported(path, "x-kubernetes-list-type", list, &["atomic", "set", "map"]);
            }
        }
        let why = "must be map if x-kubernetes-list-map-keys is non-empty";
        match list.as_str() {
            None if keys > 0 => self.require(path, "x-kubernetes-list-type", why),
            Some("map") => self.map_list(schema, path),
            Some(_) if keys > 0 => self.invalid(path, "x-kubernetes-list-type", list, why),
            _ => {}
        }
        if list == "set" || list == "map" {
            self.keyed_items(schema, path);
        }
    }

    /// Checks that an extension is used with its type.
    fn only_for(&mut self, schema: &Value, path: &Path<'_>, kind: &str, key: &str) -> bool {
        let why = format!("must be {kind} if {key} is specified");
        match schema["type"].as_str().unwrap_or_default() {
            actual if actual == kind => return true,
            "" => self.require(path, "type", &why),
            actual => self.invalid(path, "type", &actual.into(), &why),
        }
        false
    }

    /// Checks that the elements of a set are scalar or atomic.
    fn set_items(&mut self, items: &Value, path: &Path<'_>) {
        let why = "must be atomic as item of a list with x-kubernetes-list-type=set";
        let at = Path::Field(path, "items");
        let list = &items["x-kubernetes-list-type"];
        match items["type"].as_str() {
            Some("array") if !list.is_null() && list != "atomic" => {
                self.invalid(&at, "x-kubernetes-list-type", list, why);
            }
            Some("object") if items["x-kubernetes-map-type"] != "atomic" => {
                self.invalid(&at, "x-kubernetes-map-type", &Value::Null, why);
            }
            _ => {}
        }
    }

    /// Checks that the elements of a map list are objects with scalar keys.
    fn map_list(&mut self, schema: &Value, path: &Path<'_>) {
        let keys = &schema["x-kubernetes-list-map-keys"];
        let names: Vec<&str> =
            keys.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        if names.is_empty() {
            let why = "must not be empty if x-kubernetes-list-type is map";
            self.require(path, "x-kubernetes-list-map-keys", why);
        }
        let items = &schema["items"];
        if items.is_null() {
            let why = "must have a schema if x-kubernetes-list-type is map";
            return self.require(path, "items", why);
        }
        let at = Path::Field(path, "items");
        if items["type"] != "object" {
            let kind = items["type"].as_str().unwrap_or_default();
            let why = "must be object if parent array's x-kubernetes-list-type is map";
            return self.invalid(&at, "type", &kind.into(), why);
        }
        let (mut seen, mut is_repeated, mut is_unknown) = (HashSet::new(), false, false);
        for name in &names {
            let property = &items["properties"][name];
            let kind = property["type"].as_str().unwrap_or_default();
            if property.is_null() {
                is_unknown = true;
            } else if matches!(kind, "array" | "object") {
                let properties = Path::Field(&at, "properties");
                let why = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                self.invalid(&Path::Bracket(&properties, name), "type", &kind.into(), why);
            }
            is_repeated |= !seen.insert(name);
        }
        for (is_wrong, why) in [
            (is_unknown, "entries must all be names of item properties"),
            (is_repeated, "must not contain duplicate entries"),
        ] {
            if is_wrong {
                self.invalid(path, "x-kubernetes-list-map-keys", keys, why);
            }
        }
    }

    /// Checks that elements and their keys are required or defaulted.
    fn keyed_items(&mut self, schema: &Value, path: &Path<'_>) {
        let items = &schema["items"];
        let list = schema["x-kubernetes-list-type"].as_str().unwrap_or_default();
        let at = Path::Field(path, "items");
        if items["nullable"] == true {
            let why = format!("cannot be nullable when x-kubernetes-list-type is {list}");
            self.forbid(&at, "nullable", &why);
        }
        let keys = schema["x-kubernetes-list-map-keys"].as_array().filter(|_| list == "map");
        let required: HashSet<&Value> =
            items["required"].as_array().into_iter().flatten().collect();
        for name in keys.into_iter().flatten().filter_map(Value::as_str) {
            let property = &items["properties"][name];
            if property.is_null() {
                continue;
            }
            let properties = Path::Field(&at, "properties");
            let at = Path::Bracket(&properties, name);
            let is_required = required.contains(&json!(name));
            let why = "this property is in x-kubernetes-list-map-keys, so it";
            if !is_required && property["default"].is_null() {
                let why = format!("{why} must have a default or be a required property");
                self.require(&at, "default", &why);
            }
            if property["nullable"] == true {
                self.forbid(&at, "nullable", &format!("{why} cannot be nullable"));
            }
        }
    }

    /// Checks the fields of rules other than the expression.
    fn rules(&mut self, schema: &Value, path: &Path<'_>) {
        let rules = schema["x-kubernetes-validations"].as_array();
        for (index, rule) in rules.into_iter().flatten().enumerate() {
            let list = Path::Field(path, "x-kubernetes-validations");
            let at = Path::Index(&list, index);
            let text = |key: &str| rule[key].as_str().unwrap_or_default();
            let is_blank = |key: &str| !text(key).is_empty() && text(key).trim().is_empty();
            let is_broken = |key: &str| text(key).trim().contains(['\n', '\r']);
            if text("rule").trim().is_empty() {
                self.require(&at, "rule", "rule is not specified");
            } else if is_blank("message") {
                self.invalid(&at, "message", &rule["message"], "must be non-empty if specified");
            } else if is_broken("message") {
                self.invalid(&at, "message", &rule["message"], "must not contain line breaks");
            } else if is_broken("rule") && text("message").trim().is_empty() {
                let why = "message must be specified if rule contains line breaks";
                self.require(&at, "message", why);
            }
            if is_blank("messageExpression") {
                let why = "messageExpression must be non-empty if specified";
                self.require(&at, "messageExpression", why);
            }
            if !rule["reason"].is_null() && !REASONS.contains(&text("reason")) {
                self.unsupported(&at, "reason", &rule["reason"], &REASONS);
            }
            let place = text("fieldPath");
            if is_blank("fieldPath") {
                let why = "must be non-empty if specified";
                self.invalid(&at, "fieldPath", &rule["fieldPath"], why);
            }
            if place.contains(['\n', '\r']) {
                let why = "must not contain line breaks";
                self.invalid(&at, "fieldPath", &rule["fieldPath"], why);
            }
            if !place.is_empty() && rules::field_path(place, schema).is_none() {
                self.invalid(&at, "fieldPath", &rule["fieldPath"], "must be a valid path");
            }
        }
    }
}

/// The allowed error reasons of a rule.
const REASONS: [&str; 4] =
    ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "`json!` rows read best by value")]
mod tests {
    use super::*;

    pub(super) fn texts(schema: &Value) -> Vec<String> {
        let place = SchemaLocation { path: "schema", has_status: false };
        check(schema, place).iter().map(ToString::to_string).collect()
    }

    #[track_caller]
    fn check_one(schema: Value, expected: &str) {
        let found = texts(&json!({"type": "object", "properties": {"a": schema}}));
        assert!(found.iter().any(|text| text == expected), "{found:#?}");
    }

    #[test]
    fn forbidden_features_have_kubernetes_messages() {
        let a = "schema.properties[a]";
        check_one(
            json!({"type": "strange"}),
            &format!(
                "{a}.type: Unsupported value: \"strange\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\""
            ),
        );
        check_one(
            json!({"$ref": "x", "type": "object"}),
            &format!("{a}.$ref: Forbidden: $ref is not supported"),
        );
        check_one(
            json!({"type": "array", "uniqueItems": true, "items": {"type": "string"}}),
            &format!(
                "{a}.uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
            ),
        );
        check_one(
            json!({"type": "object", "properties": {"x": {"type": "string"}}, "additionalProperties": {"type": "string"}}),
            &format!(
                "{a}.additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive"
            ),
        );
        check_one(
            json!({"type": "string", "pattern": "a("}),
            &format!(
                "{a}.pattern: Invalid value: \"a(\": must be a valid regular expression, but isn't: unclosed group"
            ),
        );
        check_one(
            json!({"type": "string", "x-kubernetes-list-type": "set"}),
            &format!(
                "{a}.type: Invalid value: \"string\": must be array if x-kubernetes-list-type is specified"
            ),
        );
        check_one(
            json!({"type": "array", "x-kubernetes-list-type": "map", "items": {"type": "object", "properties": {"k": {"type": "string"}}}}),
            &format!(
                "{a}.x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map"
            ),
        );
        check_one(
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object", "properties": {"k": {"type": "string"}}}}),
            &format!(
                "{a}.items.properties[k].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property"
            ),
        );
        check_one(
            json!({"type": "string", "x-kubernetes-validations": [{"rule": " "}]}),
            &format!("{a}.x-kubernetes-validations[0].rule: Required value: rule is not specified"),
        );
    }

    #[test]
    fn a_schema_with_a_status_subresource_must_be_an_object() {
        let place = SchemaLocation { path: "schema", has_status: true };
        let schema = json!({"type": "object", "properties": {}, "oneOf": [{"required": ["a"]}]});
        assert!(!check(&schema, place).is_empty());
        let schema = json!({"type": "object", "properties": {}, "required": ["spec"]});
        assert_eq!(check(&schema, place), []);
    }

    #[test]
    fn formats_that_are_not_enforced_are_found() {
        let schema = json!({"type": "object", "properties": {
            "a": {"type": "string", "format": "semver"},
            "b": {"type": "integer", "format": "int32"},
            "c": {"type": "array", "items": {"type": "number", "format": "int32"}},
        }});
        assert_eq!(unrecognized_formats(&schema), ["semver", "int32"]);
    }
}
