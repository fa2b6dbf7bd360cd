//! The rules of structural schemas: every field has one type, separate from validation.

use headwater_json::{Value, json};

use super::{FieldError, Path, Walk};
use headwater_cel::pattern::Pattern;

/// Keywords that no structural schema allows.
pub(super) fn unsupported(schema: &Value) -> Option<String> {
    if schema["items"].is_array() {
        return Some("OpenAPIV3Schema 'items' must be a schema, but is an array".into());
    }
    if schema["x-kubernetes-preserve-unknown-fields"] == false {
        return Some(
            "internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined"
                .into(),
        );
    }
    let keys = ["id", "$schema", "$ref", "patternProperties", "dependencies", "additionalItems"];
    let stray = keys.into_iter().chain(["definitions"]).find(|key| {
        schema.get(key).is_some_and(|value| !value.is_null() && value != "" && *value != json!({}))
    });
    if let Some(key) = stray {
        let key = key.trim_start_matches("$s");
        let key = if key == "chema" { "schema" } else { key };
        return Some(format!("OpenAPIV3Schema '{key}' is not supported"));
    }
    super::children(schema).into_iter().find_map(|(_, _, inner)| unsupported(inner))
}

/// The violations of structural rules, sorted.
pub(super) fn check(schema: &Value, base: &str) -> Vec<FieldError> {
    let mut walk = Walk::new(base);
    walk.invariants(schema, Level::Root, &Path::Root);
    walk.completeness(schema, schema, &Path::Root, &Path::Root);
    walk.errors.sort_by_cached_key(ToString::to_string);
    walk.errors
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// The two forms of "a number or a string" in OpenAPI.
fn is_int_or_string(any_of: &Value) -> bool {
    *any_of == json!([{ "type": "integer" }, { "type": "string" }])
}

impl Walk<'_> {
    fn invariants(&mut self, schema: &Value, level: Level, path: &Path<'_>) {
        let items = Path::Field(path, "items");
        match &schema["items"] {
            Value::Null if schema["type"] == "array" => {
                self.require(path, "items", "must be specified");
            }
            Value::Null => {}
            inner => self.invariants(inner, Level::Item, &items),
        }
        let properties = Path::Field(path, "properties");
        for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
            self.invariants(inner, Level::Field, &Path::Bracket(&properties, name));
        }
        let additional = &schema["additionalProperties"];
        if !additional.is_null() && level == Level::Root {
            self.forbid(path, "additionalProperties", "must not be used at the root");
        }
        if additional.is_object() {
            let at = Path::Field(path, "additionalProperties");
            self.invariants(additional, Level::Field, &at);
        }
        self.int_or_string(schema, path);
        self.type_is_said(schema, level, path);
        self.resource(schema, level, path);
        let skip = Skip {
            any_of: is_int_or_string(&schema["anyOf"]),
            first_all_of: is_int_or_string(&schema["allOf"][0]["anyOf"]),
        };
        self.validations(schema, skip, path);
    }

    fn int_or_string(&mut self, schema: &Value, path: &Path<'_>) {
        if schema["x-kubernetes-int-or-string"] != true {
            return;
        }
        for key in ["x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"] {
            if schema[key] == true {
                let why = "must be false if x-kubernetes-int-or-string is true";
                self.invalid(path, key, &true.into(), why);
            }
        }
    }

    fn type_is_said(&mut self, schema: &Value, level: Level, path: &Path<'_>) {
        let kind = schema["type"].as_str().unwrap_or_default();
        let is = |key: &str| schema[key] == true;
        if is("x-kubernetes-embedded-resource") {
            let why = "must be object if x-kubernetes-embedded-resource is true";
            match kind {
                "object" => {}
                "" => self.require(path, "type", why),
                kind => self.invalid(path, "type", &kind.into(), why),
            }
        } else if kind.is_empty()
            && !is("x-kubernetes-int-or-string")
            && !is("x-kubernetes-preserve-unknown-fields")
        {
            let where_ = match level {
                Level::Root => "at the root",
                Level::Item => "for specified array items",
                Level::Field => "for specified object fields",
            };
            self.require(path, "type", &format!("must not be empty {where_}"));
        }
        if level == Level::Root && !matches!(kind, "" | "object") {
            self.invalid(path, "type", &kind.into(), "must be object at the root");
        }
    }

    /// A schema may restrict only the name among the standard fields of a resource.
    fn resource(&mut self, schema: &Value, level: Level, path: &Path<'_>) {
        let embedded = schema["x-kubernetes-embedded-resource"] == true;
        let is_resource = embedded || level == Level::Root;
        let properties = &schema["properties"];
        let below = Path::Field(path, "properties");
        if embedded && !schema["additionalProperties"].is_null() {
            let why = "must not be used if x-kubernetes-embedded-resource is set";
            self.forbid(path, "additionalProperties", why);
        }
        for name in ["kind", "apiVersion"] {
            let kind = properties[name]["type"].as_str().unwrap_or_default();
            if is_resource && !properties[name].is_null() && kind != "string" {
                let at = Path::Bracket(&below, name);
                self.invalid(&at, "type", &kind.into(), "must be string");
            }
        }
        let metadata = &properties["metadata"];
        if is_resource && !metadata.is_null() {
            let at = Path::Bracket(&below, "metadata");
            let kind = metadata["type"].as_str().unwrap_or_default();
            if kind != "object" {
                self.invalid(&at, "type", &kind.into(), "must be object");
            }
            if level == Level::Root && !narrows_only_the_name(metadata) {
                let why = "must not specify anything other than name and generateName, but metadata is implicitly specified";
                let field = self.at(&at);
                self.errors.push(FieldError::forbidden(field, why));
            }
        }
        let lists_some = properties.as_object().is_some_and(|some| !some.is_empty());
        if embedded && schema["x-kubernetes-preserve-unknown-fields"] != true && !lists_some {
            let why = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
            self.require(path, "properties", why);
        }
    }

    /// Checks the validation-only parts: patterns, and alternatives that must not define structure.
    fn validations(&mut self, schema: &Value, skip: Skip, path: &Path<'_>) {
        for (key, skipped) in [("anyOf", skip.any_of), ("allOf", false), ("oneOf", false)] {
            let list = Path::Field(path, key);
            let schemas = schema[key].as_array().filter(|_| !skipped);
            for (index, inner) in schemas.into_iter().flatten().enumerate() {
                let any_of = key == "allOf" && index == 0 && skip.first_all_of;
                let skip = Skip { any_of, first_all_of: false };
                self.nested(inner, skip, &Path::Index(&list, index));
            }
        }
        if let inner @ Value::Object(_) = &schema["not"] {
            self.nested(inner, Skip::default(), &Path::Field(path, "not"));
        }
        if let Some(pattern) = schema["pattern"].as_str().filter(|text| !text.is_empty())
            && let Err(why) = Pattern::compile(pattern, &mut self.budget)
        {
            let why = format!("must be a valid regular expression, but isn't: {why}");
            self.invalid(path, "pattern", &pattern.into(), &why);
        }
    }

    fn nested(&mut self, schema: &Value, skip: Skip, path: &Path<'_>) {
        self.validations(schema, skip, path);
        if let inner @ Value::Object(_) = &schema["items"] {
            self.nested(inner, Skip::default(), &Path::Field(path, "items"));
        }
        let properties = Path::Field(path, "properties");
        for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
            self.nested(inner, Skip::default(), &Path::Bracket(&properties, name));
        }
        for (key, must) in [
            ("type", "be empty"),
            ("additionalProperties", "be undefined"),
            ("default", "be undefined"),
            ("title", "be empty"),
            ("description", "be empty"),
            ("nullable", "be false"),
            ("x-kubernetes-preserve-unknown-fields", "be false"),
            ("x-kubernetes-embedded-resource", "be false"),
            ("x-kubernetes-int-or-string", "be false"),
            ("x-kubernetes-list-map-keys", "be empty"),
            ("x-kubernetes-list-type", "be undefined"),
            ("x-kubernetes-map-type", "be undefined"),
            ("x-kubernetes-validations", "be empty"),
        ] {
            let value = &schema[key];
            if !value.is_null() && *value != false && *value != "" && *value != json!([]) {
                self.forbid(path, key, &format!("must {must} to be structural"));
            }
        }
        if !schema["properties"]["metadata"].is_null() {
            let field = self.at(&Path::Bracket(&properties, "metadata"));
            let why = "must not be specified in a nested context";
            self.errors.push(FieldError::forbidden(field, why));
        }
    }

    /// Checks that validated fields are defined: `outer` is the structure, `inner` the validation.
    fn completeness(&mut self, inner: &Value, outer: &Value, at: &Path<'_>, from: &Path<'_>) {
        for (key, step, schema) in super::children(inner) {
            let list = Path::Field(from, key);
            match (key, step) {
                ("not", _) => self.defined(schema, outer, at, &list),
                ("allOf" | "anyOf" | "oneOf", super::Step::Index(index)) => {
                    self.defined(schema, outer, at, &Path::Index(&list, index));
                }
                _ => {}
            }
        }
    }

    fn defined(&mut self, inner: &Value, outer: &Value, at: &Path<'_>, from: &Path<'_>) {
        self.completeness(inner, outer, at, from);
        if inner["items"].is_object() {
            let (at, from) = (Path::Field(at, "items"), Path::Field(from, "items"));
            self.defined_at(&inner["items"], &outer["items"], &at, &from);
        }
        let (at, from) = (Path::Field(at, "properties"), Path::Field(from, "properties"));
        for (name, schema) in inner["properties"].as_object().into_iter().flatten() {
            let (at, from) = (Path::Bracket(&at, name), Path::Bracket(&from, name));
            self.defined_at(schema, &outer["properties"][name], &at, &from);
        }
    }

    fn defined_at(&mut self, inner: &Value, outer: &Value, at: &Path<'_>, from: &Path<'_>) {
        if outer.is_object() {
            return self.defined(inner, outer, at, from);
        }
        let why = format!("because it is defined in {}", self.at(from));
        let field = self.at(at);
        self.errors.push(FieldError::required(field, &why));
    }
}

/// Whether alternatives mean "a number or a string", which may name types.
#[derive(Clone, Copy, Default)]
struct Skip {
    any_of: bool,
    first_all_of: bool,
}

fn narrows_only_the_name(metadata: &Value) -> bool {
    let members = metadata.as_object();
    members.into_iter().flatten().all(|(key, value)| match key.as_str() {
        "type" | "default" => true,
        "properties" => value.as_object().is_some_and(|properties| {
            properties.keys().all(|name| matches!(name.as_str(), "name" | "generateName"))
        }),
        _ => false,
    })
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "`json!` rows read best by value")]
mod tests {
    use super::super::tests::texts;
    use super::*;

    #[track_caller]
    fn check_one(schema: &Value, expected: &str) {
        let found = texts(schema);
        assert!(found.iter().any(|text| text == expected), "{found:#?}");
    }

    fn with(properties: Value) -> Value {
        json!({"type": "object", "properties": properties})
    }

    #[test]
    fn every_field_needs_a_type() {
        check_one(&json!({}), "schema.type: Required value: must not be empty at the root");
        check_one(
            &json!({"type": "string"}),
            "schema.type: Invalid value: \"string\": must be object at the root",
        );
        check_one(
            &with(json!({"a": {}})),
            "schema.properties[a].type: Required value: must not be empty for specified object fields",
        );
        check_one(
            &with(json!({"a": {"type": "array", "items": {}}})),
            "schema.properties[a].items.type: Required value: must not be empty for specified array items",
        );
        check_one(
            &with(json!({"a": {"type": "array"}})),
            "schema.properties[a].items: Required value: must be specified",
        );
        check_one(
            &json!({"type": "object", "additionalProperties": {"type": "string"}}),
            "schema.additionalProperties: Forbidden: must not be used at the root",
        );
    }

    #[test]
    fn alternatives_at_the_root_need_a_definition() {
        let schema = json!({
            "type": "object", "properties": {"a": {"type": "integer"}},
            "anyOf": [{"properties": {"b": {"minimum": 1}}}, {"required": ["a"]}],
        });
        check_one(
            &schema,
            "schema.properties[b]: Required value: because it is defined in schema.anyOf[0].properties[b]",
        );
    }

    #[test]
    fn alternatives_cannot_define_structure() {
        check_one(
            &with(json!({"a": {"type": "integer", "anyOf": [{"type": "integer"}]}})),
            "schema.properties[a].anyOf[0].type: Forbidden: must be empty to be structural",
        );
        let int_or_string = json!({
            "x-kubernetes-int-or-string": true,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
        });
        assert_eq!(texts(&with(json!({"a": int_or_string}))), Vec::<String>::new());
    }

    #[test]
    fn metadata_may_restrict_only_the_name() {
        let name =
            json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 5}}});
        assert_eq!(texts(&with(json!({"metadata": name}))), Vec::<String>::new());
        let labels = json!({"type": "object", "properties": {"labels": {"type": "object"}}});
        check_one(
            &with(json!({"metadata": labels})),
            "schema.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
        );
    }
}
