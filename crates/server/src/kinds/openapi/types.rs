//! Schemas of types, from the type table that decoding and patches use.

use std::collections::{BTreeMap, BTreeSet};

use headwater_json::{Map, Value, json};
use headwater_schema::types::{Field, Merge, Type, Types, ValueType};

use super::Descriptions;
use crate::kinds::registry::Served;

/// Types that are not in the type table because their JSON is a scalar.
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
const TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Time";
const MICRO_TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime";
const LIST_META: &str = "meta/v1.ListMeta";

/// The type whose fields may contain any JSON.
const JSON_SCHEMA: &str = "apiextensions/v1.JSONSchemaProps";

/// The schemas that a document refers to, collected on demand.
pub(crate) struct Schemas<'a> {
    /// The prefix of references; it differs between the versions of OpenAPI.
    prefix: &'static str,
    descriptions: &'a Descriptions,
    wanted: BTreeSet<&'static str>,
    done: BTreeMap<String, Value>,
}

impl<'a> Schemas<'a> {
    pub(crate) fn new(prefix: &'static str, descriptions: &'a Descriptions) -> Schemas<'a> {
        Schemas { prefix, descriptions, wanted: BTreeSet::new(), done: BTreeMap::new() }
    }

    /// A reference to the schema of a kind.
    pub(crate) fn kind(&mut self, row: &Served) -> Value {
        self.named(&row.group, &row.version, &row.kind.kind, row.custom)
    }

    /// A reference to the schema of a list of a kind.
    pub(crate) fn list(&mut self, row: &Served) -> Value {
        let name = list_name(row);
        if !self.done.contains_key(&name) {
            let item = self.kind(row);
            let meta = self.table(LIST_META);
            let schema = json!({
                "type": "object",
                "required": ["items"],
                "properties": {
                    "apiVersion": { "type": "string" },
                    "kind": { "type": "string" },
                    "metadata": meta,
                    "items": { "type": "array", "items": item },
                },
                "x-kubernetes-group-version-kind": [{
                    "group": row.group, "version": row.version, "kind": row.list_kind,
                }],
            });
            self.done.insert(name.clone(), schema);
        }
        self.reference(&name)
    }

    /// A reference to a type by group, version and kind, for subresources.
    pub(crate) fn named(&mut self, group: &str, version: &str, kind: &str, custom: bool) -> Value {
        if custom {
            return self.reference(&custom_name(group, version, kind));
        }
        match Types::builtin().find(group, version, kind) {
            Some(of) => self.table(of.name),
            None => json!({ "type": "object" }),
        }
    }

    fn table(&mut self, name: &'static str) -> Value {
        let full = full_name(name);
        if !self.done.contains_key(&full) {
            self.wanted.insert(name);
        }
        self.reference(&full)
    }

    fn reference(&self, name: &str) -> Value {
        json!({ "$ref": format!("{}{name}", self.prefix) })
    }

    /// All schemas that are referenced, directly or indirectly.
    pub(crate) fn finish(
        mut self,
        rows: &[&Served],
        definition: impl Fn(&Served) -> Option<Value>,
    ) -> Value {
        for row in rows.iter().filter(|row| row.custom) {
            let schema = self.custom(row, definition(row));
            self.done.insert(custom_name(&row.group, &row.version, &row.kind.kind), schema);
        }
        while let Some(name) = self.wanted.pop_first() {
            let Some(of) = Types::builtin().named(name) else { continue };
            let schema = self.object(of);
            self.done.insert(full_name(name), schema);
        }
        self.scalars();
        for row in rows.iter().filter(|row| !row.custom) {
            if let Some(of) = Types::builtin().of(&row.kind) {
                let names = json!([{
                    "group": row.group, "version": row.version, "kind": row.kind.kind,
                }]);
                let schema = self.done.get_mut(&full_name(of.name));
                schema.into_iter().for_each(|schema| {
                    schema["x-kubernetes-group-version-kind"] = names.clone();
                });
            }
        }
        json!(self.done)
    }

    fn scalars(&mut self) {
        let rows = [
            (QUANTITY, json!({ "type": "string" })),
            (INT_OR_STRING, json!({ "type": "string", "format": "int-or-string" })),
            (TIME, json!({ "type": "string", "format": "date-time" })),
            (MICRO_TIME, json!({ "type": "string", "format": "date-time" })),
        ];
        for (name, mut schema) in rows {
            self.describe(&mut schema, &short_name(name));
            self.done.insert(name.to_owned(), schema);
        }
    }

    /// The schema of a definition, with standard object metadata.
    fn custom(&mut self, row: &Served, given: Option<Value>) -> Value {
        let mut schema = given.unwrap_or_else(|| json!({ "type": "object" }));
        let meta = self.table("meta/v1.ObjectMeta");
        for key in ["apiVersion", "kind"] {
            schema["properties"][key] = json!({ "type": "string" });
        }
        schema["properties"]["metadata"] = meta;
        schema["x-kubernetes-group-version-kind"] =
            json!([{ "group": row.group, "version": row.version, "kind": row.kind.kind }]);
        schema
    }

    fn object(&mut self, of: &Type) -> Value {
        let short = short_name(&full_name(of.name));
        let mut properties = Map::new();
        let mut required = Vec::new();
        for field in &of.fields {
            if field.required {
                required.push(field.name);
            }
            let mut schema = self.field(of, field);
            self.describe(&mut schema, &format!("{short}.{}", field.name));
            properties.insert(field.name.into(), schema);
        }
        let mut schema = json!({ "type": "object", "properties": properties });
        if !required.is_empty() {
            schema["required"] = json!(required);
        }
        if of.atomic {
            schema["x-kubernetes-map-type"] = "atomic".into();
        }
        self.describe(&mut schema, &short);
        schema
    }

    fn describe(&self, schema: &mut Value, name: &str) {
        let Some(text) = self.descriptions.get(name) else { return };
        // A reference allows no siblings, so it is wrapped.
        if schema.get("$ref").is_some() {
            let reference = schema.take();
            *schema = json!({ "allOf": [reference], "default": {} });
        }
        schema["description"] = text.into();
    }

    fn field(&mut self, of: &Type, field: &Field) -> Value {
        let mut schema = self.shape(of, &field.shape);
        let mut strategies = Vec::new();
        if field.patch.merge {
            strategies.push("merge");
        }
        if field.patch.retain_keys {
            strategies.push("retainKeys");
        }
        if strategies.is_empty() && field.merge == Merge::Ordinary {
            return schema;
        }
        if schema.get("$ref").is_some() {
            let reference = schema.take();
            schema = json!({ "allOf": [reference] });
        }
        if !strategies.is_empty() {
            schema["x-kubernetes-patch-strategy"] = strategies.join(",").into();
        }
        if let Some(key) = field.patch.key {
            schema["x-kubernetes-patch-merge-key"] = key.into();
        }
        let is_list = matches!(field.shape, ValueType::List(_) | ValueType::Wrapped(_));
        match &field.merge {
            Merge::Ordinary => {}
            Merge::Atomic if is_list => schema["x-kubernetes-list-type"] = "atomic".into(),
            Merge::Atomic => schema["x-kubernetes-map-type"] = "atomic".into(),
            Merge::Set => schema["x-kubernetes-list-type"] = "set".into(),
            Merge::Keyed(keys) => {
                schema["x-kubernetes-list-type"] = "map".into();
                schema["x-kubernetes-list-map-keys"] = json!(keys);
            }
        }
        schema
    }

    fn shape(&mut self, of: &Type, shape: &ValueType) -> Value {
        match shape {
            ValueType::Text => json!({ "type": "string" }),
            ValueType::Int32 => json!({ "type": "integer", "format": "int32" }),
            ValueType::Int64 => json!({ "type": "integer", "format": "int64" }),
            ValueType::Float => json!({ "type": "number", "format": "double" }),
            ValueType::Bool => json!({ "type": "boolean" }),
            ValueType::Bytes => json!({ "type": "string", "format": "byte" }),
            ValueType::Time => self.reference(TIME),
            ValueType::MicroTime => self.reference(MICRO_TIME),
            ValueType::Quantity => self.reference(QUANTITY),
            ValueType::IntOrString => self.reference(INT_OR_STRING),
            ValueType::Any if of.name == JSON_SCHEMA => self.untyped("apiextensions/v1.JSON"),
            ValueType::Any => json!({ "type": "object" }),
            ValueType::Struct(id) => self.table(Types::builtin().get(*id).name),
            ValueType::List(inner) | ValueType::Wrapped(inner) => {
                json!({ "type": "array", "items": self.shape(of, inner) })
            }
            ValueType::Map(inner) => {
                json!({ "type": "object", "additionalProperties": self.shape(of, inner) })
            }
            ValueType::SchemaOrList(_) => self.untyped("apiextensions/v1.JSONSchemaPropsOrArray"),
            ValueType::SchemaOrBool(_) => self.untyped("apiextensions/v1.JSONSchemaPropsOrBool"),
            ValueType::SchemaOrTexts(_) => {
                self.untyped("apiextensions/v1.JSONSchemaPropsOrStringArray")
            }
        }
    }

    /// A reference to a schema that allows several JSON types and so names none. It has a description,
    /// because `kubectl explain` ignores an empty schema.
    fn untyped(&mut self, name: &str) -> Value {
        let full = full_name(name);
        let mut schema = json!({ "description": "Any JSON." });
        self.describe(&mut schema, &short_name(&full));
        self.done.entry(full.clone()).or_insert(schema);
        self.reference(&full)
    }
}

/// The full name of a type: `core/v1.PodSpec` is `io.k8s.api.core.v1.PodSpec`, with three exceptions.
fn full_name(name: &str) -> String {
    let (package, kind) = name.split_once('.').unwrap_or(("", name));
    let (group, version) = package.split_once('/').unwrap_or((package, ""));
    let root = match group {
        "meta" => "io.k8s.apimachinery.pkg.apis",
        "apiextensions" => "io.k8s.apiextensions-apiserver.pkg.apis",
        "apiregistration" => "io.k8s.kube-aggregator.pkg.apis",
        _ => "io.k8s.api",
    };
    format!("{root}.{group}.{version}.{kind}")
}

/// The last three parts of a full name, which are the key of its description.
fn short_name(full: &str) -> String {
    let parts: Vec<&str> = full.rsplit('.').take(3).collect();
    parts.into_iter().rev().collect::<Vec<_>>().join(".")
}

/// The full name of a custom type: `stable.example.com` `v1` `Widget` is
/// `com.example.stable.v1.Widget`.
fn custom_name(group: &str, version: &str, kind: &str) -> String {
    let reversed: Vec<&str> = group.rsplit('.').collect();
    format!("{}.{version}.{kind}", reversed.join("."))
}

fn list_name(row: &Served) -> String {
    match Types::builtin().of(&row.kind) {
        Some(of) => format!("{}List", full_name(of.name)),
        None => custom_name(&row.group, &row.version, &row.list_kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_clients_know() {
        assert_eq!(full_name("core/v1.PodSpec"), "io.k8s.api.core.v1.PodSpec");
        assert_eq!(
            full_name("meta/v1.ObjectMeta"),
            "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
        );
        assert_eq!(custom_name("stable.example.com", "v1", "W"), "com.example.stable.v1.W");
        assert_eq!(short_name("io.k8s.api.core.v1.PodSpec"), "core.v1.PodSpec");
    }
}
