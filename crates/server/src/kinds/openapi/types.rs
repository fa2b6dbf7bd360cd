//! Schemas of types, from the type table that decoding and patches use.

use std::collections::{BTreeMap, BTreeSet};

use headwater_json::{Map, Value, json};
use headwater_schema::types::{Field, Merge, Type, Types, ValueType, Zero};

use super::descriptions::Descriptions;
use super::style::Style;
use super::{custom, fields};
use crate::kinds::registry::Served;

/// Types that are not in the type table because their JSON is a scalar.
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
const TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Time";
const MICRO_TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime";
const LIST_META: &str = "meta/v1.ListMeta";

const RAW: &str = "io.k8s.apimachinery.pkg.runtime.RawExtension";
const FIELDS_V1: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1";
const PATCH: &str = "meta/v1.Patch";
const VERSION_INFO: &str = "io.k8s.apimachinery.pkg.version.Info";

/// The types whose fields of any JSON are not objects of a kind.
const JSON_SCHEMA: &str = "apiextensions/v1.JSONSchemaProps";
const MANAGED_FIELDS: &str = "meta/v1.ManagedFieldsEntry";
/// The kinds of the API machinery.
const META_KINDS: [&str; 7] = [
    "meta/v1.APIGroup",
    "meta/v1.APIGroupList",
    "meta/v1.APIResourceList",
    "meta/v1.APIVersions",
    "meta/v1.DeleteOptions",
    "meta/v1.Status",
    "meta/v1.WatchEvent",
];
/// The kinds that every group version has a copy of.
const COMMON: [&str; 2] = ["DeleteOptions", "WatchEvent"];

/// The schemas that a document refers to, collected on demand.
pub(crate) struct Schemas<'a> {
    style: Style,
    descriptions: &'a Descriptions,
    wanted: BTreeSet<&'static str>,
    done: BTreeMap<String, Value>,
    /// The group, version and kind of types that are named by operations.
    kinds: BTreeMap<String, Value>,
}

impl<'a> Schemas<'a> {
    pub(crate) fn new(style: Style, descriptions: &'a Descriptions) -> Schemas<'a> {
        let (wanted, done, kinds) = Default::default();
        Schemas { style, descriptions, wanted, done, kinds }
    }

    /// A reference to the schema of a kind.
    pub(crate) fn kind(&mut self, row: &Served) -> Value {
        self.named(&row.group, &row.version, &row.kind.kind, row.custom)
    }

    /// A reference to the schema of a list of a kind.
    pub(crate) fn list(&mut self, row: &Served) -> Value {
        let name = list_name(row);
        if !self.done.contains_key(&name) {
            let (mut item, mut meta) = (self.kind(row), self.table(LIST_META));
            if row.custom {
                self.describe(&mut meta, "core.v1.PodList.metadata");
            } else {
                (item, meta) = (self.with_default(item), self.with_default(meta));
            }
            let mut schema = json!({
                "type": "object",
                "required": ["items"],
                "properties": {
                    "apiVersion": self.type_meta("apiVersion"),
                    "kind": self.type_meta("kind"),
                    "metadata": meta,
                    "items": { "type": "array", "items": item },
                },
                "x-kubernetes-group-version-kind": [{
                    "group": row.group, "version": row.version, "kind": row.list_kind,
                }],
            });
            if row.custom {
                let kind = &row.kind.kind;
                schema["description"] = format!("{} is a list of {kind}", row.list_kind).into();
                schema["properties"]["items"]["description"] =
                    format!("The {}.", row.plural).into();
            }
            self.done.insert(name.clone(), schema);
        }
        self.reference(&name)
    }

    /// A reference to a type by group, version and kind, for subresources.
    pub(crate) fn named(&mut self, group: &str, version: &str, kind: &str, custom: bool) -> Value {
        if custom {
            return self.reference(&custom_name(group, version, kind));
        }
        let Some(of) = Types::builtin().find(group, version, kind) else {
            return json!({ "type": "object" });
        };
        self.kinds.insert(full_name(of.name), names(group, version, kind));
        self.table(of.name)
    }

    /// A reference to a type of the API machinery, such as `meta/v1.Status`.
    pub(crate) fn meta(&mut self, name: &'static str) -> Value {
        if name == PATCH {
            return self.free(&full_name(PATCH));
        }
        self.table(name)
    }

    /// A reference to the version of the server.
    pub(crate) fn version_info(&mut self) -> Value {
        let required = [
            "major",
            "minor",
            "gitVersion",
            "gitCommit",
            "gitTreeState",
            "buildDate",
            "goVersion",
            "compiler",
            "platform",
        ];
        let others =
            ["emulationMajor", "emulationMinor", "minCompatibilityMajor", "minCompatibilityMinor"];
        let mut properties = Map::new();
        for name in required {
            let text = self.scalar(json!({ "type": "string" }), Some("".into()));
            properties.insert(name.into(), text);
        }
        for name in others {
            properties.insert(name.into(), json!({ "type": "string" }));
        }
        let mut schema =
            json!({ "type": "object", "required": required, "properties": properties });
        self.describe(&mut schema, "pkg.version.Info");
        self.done.insert(VERSION_INFO.to_owned(), schema);
        self.reference(VERSION_INFO)
    }

    fn table(&mut self, name: &'static str) -> Value {
        let full = full_name(name);
        if !self.done.contains_key(&full) {
            self.wanted.insert(name);
        }
        self.reference(&full)
    }

    fn reference(&self, name: &str) -> Value {
        json!({ "$ref": format!("{}{name}", self.style.prefix()) })
    }

    /// A reference to an object without known fields.
    fn free(&mut self, full: &str) -> Value {
        if !self.done.contains_key(full) {
            let mut schema = json!({ "type": "object" });
            self.describe(&mut schema, &short_name(full));
            self.done.insert(full.to_owned(), schema);
        }
        self.reference(full)
    }

    /// Version 3 has defaults and allows no siblings of a reference.
    fn with_default(&self, schema: Value) -> Value {
        match self.style {
            Style::V2 => schema,
            Style::V3 => json!({ "allOf": [schema], "default": {} }),
        }
    }

    fn scalar(&self, mut schema: Value, default: Option<Value>) -> Value {
        if let Some(default) = default.filter(|_| self.style == Style::V3) {
            schema["default"] = default;
        }
        schema
    }

    fn type_meta(&self, key: &str) -> Value {
        let mut schema = json!({ "type": "string" });
        self.describe(&mut schema, &format!("meta.v1.Status.{key}"));
        schema
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
        // Also kinds of other group versions, inside others: claims in stateful sets.
        for kind in headwater_api::kind::builtin() {
            if let Some(of) = Types::builtin().of(&kind) {
                let names = names(&kind.group, &kind.version, &kind.kind);
                self.kinds.insert(full_name(of.name), names);
            }
        }
        for name in META_KINDS {
            let kind = name.rsplit('.').next().unwrap_or_default();
            self.kinds.insert(full_name(name), names("", "v1", kind));
        }
        for (name, mut names) in std::mem::take(&mut self.kinds) {
            if let Some(schema) = self.done.get_mut(&name) {
                if let Some(kind) = COMMON.iter().find(|kind| name.ends_with(*kind)) {
                    names = common_names(self.style, rows, kind);
                }
                schema["x-kubernetes-group-version-kind"] = names;
            }
        }
        json!(self.done)
    }

    /// A reference to a type whose JSON is a scalar.
    fn scalar_type(&mut self, name: &str) -> Value {
        if !self.done.contains_key(name) {
            let is_v3 = self.style == Style::V3;
            let mut schema = match name {
                QUANTITY if is_v3 => {
                    json!({ "oneOf": [{ "type": "string" }, { "type": "number" }] })
                }
                QUANTITY => json!({ "type": "string" }),
                INT_OR_STRING if is_v3 => json!({
                    "format": "int-or-string", "oneOf": [{ "type": "integer" }, { "type": "string" }],
                }),
                INT_OR_STRING => json!({ "type": "string", "format": "int-or-string" }),
                _ => json!({ "type": "string", "format": "date-time" }),
            };
            self.describe(&mut schema, &short_name(name));
            self.done.insert(name.to_owned(), schema);
        }
        self.reference(name)
    }

    /// The schema of a definition, with standard object metadata.
    fn custom(&mut self, row: &Served, given: Option<Value>) -> Value {
        let given = given.unwrap_or_else(|| json!({ "type": "object" }));
        let is_bare = self.style == Style::V2 && custom::is_free(&given);
        let mut schema = match self.style {
            Style::V2 if is_bare => json!({ "type": "object" }),
            Style::V2 => custom::for_version_two(given),
            Style::V3 => given,
        };
        if !is_bare {
            self.complete_embedded(&mut schema);
            self.add_object_fields(&mut schema);
        }
        let selectable = row.definition.as_ref().map_or(&[][..], |custom| &custom.fields);
        if self.style == Style::V3 && !selectable.is_empty() {
            let path = |field: &_| json!({ "fieldPath": field });
            schema["x-kubernetes-selectable-fields"] = selectable.iter().map(path).collect();
        }
        schema["x-kubernetes-group-version-kind"] = names(&row.group, &row.version, &row.kind.kind);
        schema
    }

    /// The fields that every object has.
    fn add_object_fields(&mut self, schema: &mut Value) {
        schema["properties"]["metadata"] = self.table("meta/v1.ObjectMeta");
        self.describe(&mut schema["properties"]["metadata"], "core.v1.Pod.metadata");
        for key in ["apiVersion", "kind"] {
            schema["properties"][key] = self.type_meta(key);
        }
    }

    /// Adds the fields that every object has to the objects inside a schema.
    fn complete_embedded(&mut self, schema: &mut Value) {
        if let Some(Value::Object(properties)) = schema.get_mut("properties") {
            properties.iter_mut().for_each(|(_, part)| self.complete_embedded(part));
        }
        for key in ["items", "additionalProperties"] {
            if let Some(part) = schema.get_mut(key) {
                self.complete_embedded(part);
            }
        }
        let is_open = self.style == Style::V2 && custom::is_free(schema);
        if schema["x-kubernetes-embedded-resource"] != true || is_open {
            return;
        }
        self.add_object_fields(schema);
        let mut required = schema["required"].as_array().cloned().unwrap_or_default();
        for key in ["kind", "apiVersion"] {
            if !required.iter().any(|name| *name == key) {
                required.push(key.into());
            }
        }
        schema["required"] = required.into();
    }

    fn object(&mut self, of: &Type) -> Value {
        let short = short_name(&full_name(of.name));
        let mut properties = Map::new();
        let mut required = Vec::new();
        for field in &of.fields {
            if field.required {
                required.push(field.name);
            }
            properties.insert(field.name.into(), self.field(of, field, &short));
        }
        let mut schema = json!({ "type": "object" });
        if !properties.is_empty() {
            schema["properties"] = Value::Object(properties);
        }
        if !required.is_empty() {
            schema["required"] = json!(required);
        }
        if of.atomic {
            schema["x-kubernetes-map-type"] = "atomic".into();
        }
        if let Some(union) = fields::union(&short) {
            schema["x-kubernetes-unions"] = union;
        }
        self.describe(&mut schema, &short);
        schema
    }

    fn describe(&self, schema: &mut Value, name: &str) {
        if let Some(text) = self.descriptions.get(name) {
            self.extend(schema, "description", text.into());
        }
    }

    /// Adds a member. In version 3 a reference allows no siblings, so it is wrapped.
    fn extend(&self, schema: &mut Value, key: &str, value: Value) {
        if self.style == Style::V3 && schema.get("$ref").is_some() {
            let reference = schema.take();
            *schema = json!({ "allOf": [reference] });
        }
        schema[key] = value;
    }

    fn field(&mut self, of: &Type, field: &Field, of_name: &str) -> Value {
        let name = format!("{of_name}.{}", field.name);
        let mut schema = self.shape(of, &field.shape);
        let zero = match field.zero {
            Zero::Filled => zero_of(&field.shape),
            Zero::Dropped | Zero::Kept | Zero::Null => None,
        };
        if self.style == Style::V3
            && let Some(default) = fields::default(&name).or(zero)
        {
            self.extend(&mut schema, "default", default);
        }
        if let Some(values) = fields::values(&name) {
            let key =
                ["items", "additionalProperties"].into_iter().find(|key| schema.get(key).is_some());
            match key {
                Some(key) => schema[key]["enum"] = json!(values),
                None => schema["enum"] = json!(values),
            }
        }
        let unknown = fields::extension(&name).map(|(key, value)| (key, value.into()));
        for (key, value) in extensions(field).into_iter().chain(unknown) {
            self.extend(&mut schema, key, value);
        }
        self.describe(&mut schema, &name);
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
            ValueType::Time => self.scalar_type(TIME),
            ValueType::MicroTime => self.scalar_type(MICRO_TIME),
            ValueType::Quantity => self.scalar_type(QUANTITY),
            ValueType::IntOrString => self.scalar_type(INT_OR_STRING),
            ValueType::Any if of.name == JSON_SCHEMA => self.untyped("apiextensions/v1.JSON"),
            ValueType::Any if of.name == MANAGED_FIELDS => self.free(FIELDS_V1),
            ValueType::Any => self.free(RAW),
            ValueType::Struct(id) => self.table(Types::builtin().get(*id).name),
            ValueType::List(inner) | ValueType::Wrapped(inner) => {
                json!({ "type": "array", "items": self.part(of, inner) })
            }
            ValueType::Map(inner) => {
                json!({ "type": "object", "additionalProperties": self.part(of, inner) })
            }
            ValueType::SchemaOrList(_) => self.untyped("apiextensions/v1.JSONSchemaPropsOrArray"),
            ValueType::SchemaOrBool(_) => self.untyped("apiextensions/v1.JSONSchemaPropsOrBool"),
            ValueType::SchemaOrTexts(_) => {
                self.untyped("apiextensions/v1.JSONSchemaPropsOrStringArray")
            }
        }
    }

    /// The schema of the elements of a list or map. They are never absent, so they have a default.
    fn part(&mut self, of: &Type, shape: &ValueType) -> Value {
        let mut schema = self.shape(of, shape);
        if self.style == Style::V3
            && let Some(default) = zero_of(shape)
        {
            self.extend(&mut schema, "default", default);
        }
        schema
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

/// The default of a value that is always present.
fn zero_of(shape: &ValueType) -> Option<Value> {
    match shape {
        ValueType::Text => Some("".into()),
        ValueType::Int32 | ValueType::Int64 | ValueType::Float => Some(0.into()),
        ValueType::Bool => Some(false.into()),
        ValueType::Struct(_) => Some(json!({})),
        _ => None,
    }
}

/// How patches and apply treat a field.
fn extensions(field: &Field) -> Vec<(&'static str, Value)> {
    let mut found = Vec::new();
    let strategies: Vec<&str> =
        [(field.patch.merge, "merge"), (field.patch.retain_keys, "retainKeys")]
            .into_iter()
            .filter_map(|(is_used, name)| is_used.then_some(name))
            .collect();
    if !strategies.is_empty() {
        found.push(("x-kubernetes-patch-strategy", strategies.join(",").into()));
    }
    if let Some(key) = field.patch.key {
        found.push(("x-kubernetes-patch-merge-key", key.into()));
    }
    let is_list =
        matches!(field.shape, ValueType::List(_) | ValueType::Wrapped(_) | ValueType::Bytes);
    match &field.merge {
        Merge::Ordinary => {}
        Merge::Atomic if is_list => found.push(("x-kubernetes-list-type", "atomic".into())),
        Merge::Atomic => found.push(("x-kubernetes-map-type", "atomic".into())),
        Merge::Set => found.push(("x-kubernetes-list-type", "set".into())),
        Merge::Keyed(keys) => {
            found.push(("x-kubernetes-list-type", "map".into()));
            found.push(("x-kubernetes-list-map-keys", json!(keys)));
        }
    }
    found
}

/// The group versions that have a copy of a common type: those of the document, after the core group.
fn common_names(style: Style, rows: &[&Served], kind: &str) -> Value {
    let own: Vec<(&str, &str)> = rows.iter().map(|row| (&*row.group, &*row.version)).collect();
    let all = fields::group_versions().filter(|_| style == Style::V2);
    let mut seen = BTreeSet::from([("", "v1")]);
    for name in all {
        seen.insert(name);
    }
    seen.extend(own);
    let names = seen
        .into_iter()
        .map(|(group, version)| json!({ "group": group, "version": version, "kind": kind }));
    names.collect()
}

fn names(group: &str, version: &str, kind: &str) -> Value {
    json!([{ "group": group, "version": version, "kind": kind }])
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
