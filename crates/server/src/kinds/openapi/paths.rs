//! Paths and operations of kinds.

use headwater_json::{Map, Value, json};

use super::types::Schemas;
use crate::kinds::registry::Served;

/// The version of OpenAPI.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    V2,
    V3,
}

/// Query parameters by verb.
const READS: &[(&str, &str)] = &[
    ("allowWatchBookmarks", "boolean"),
    ("continue", "string"),
    ("fieldSelector", "string"),
    ("labelSelector", "string"),
    ("limit", "integer"),
    ("resourceVersion", "string"),
    ("resourceVersionMatch", "string"),
    ("sendInitialEvents", "boolean"),
    ("timeoutSeconds", "integer"),
    ("watch", "boolean"),
];
const WRITES: &[(&str, &str)] =
    &[("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string")];
const FORCE: &[(&str, &str)] = &[("force", "boolean")];
const DELETES: &[(&str, &str)] = &[
    ("dryRun", "string"),
    ("gracePeriodSeconds", "integer"),
    ("orphanDependents", "boolean"),
    ("propagationPolicy", "string"),
];
const PATCH_TYPES: &[&str] = &[
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];

/// The paths of some kinds.
pub(crate) fn of(rows: &[&Served], schemas: &mut Schemas<'_>, style: Style) -> Value {
    let mut paths = Map::new();
    for row in rows {
        let root = match &*row.group {
            "" => format!("/api/{}", row.version),
            group => format!("/apis/{group}/{}", row.version),
        };
        let collection = match row.namespaced {
            true => format!("{root}/namespaces/{{namespace}}/{}", row.plural),
            false => format!("{root}/{}", row.plural),
        };
        let mut writer = Writer { row, schemas, style };
        if row.namespaced && row.allows("list") {
            paths
                .insert(format!("{root}/{}", row.plural).into(), writer.item(&["list"], &[], None));
        }
        let scope: &[&str] = if row.namespaced { &["namespace"] } else { &[] };
        let on_collection = writer.item(&["list", "create", "deletecollection"], scope, None);
        paths.insert(collection.as_str().into(), on_collection);
        let named: Vec<&str> = std::iter::once("name").chain(scope.iter().copied()).collect();
        let on_object = writer.item(&["get", "update", "patch", "delete"], &named, None);
        if on_object.as_object().is_some_and(|item| item.contains_key("get")) {
            paths.insert(format!("{collection}/{{name}}").into(), on_object);
        }
        for sub in &row.subresources {
            let item = writer.item(&["get", "create", "update", "patch"], &named, Some(&sub.name));
            paths.insert(format!("{collection}/{{name}}/{}", sub.name).into(), item);
        }
    }
    Value::Object(paths)
}

struct Writer<'a, 'b, 'c> {
    row: &'a Served,
    schemas: &'b mut Schemas<'c>,
    style: Style,
}

impl Writer<'_, '_, '_> {
    fn item(&mut self, verbs: &[&str], path: &[&str], sub: Option<&str>) -> Value {
        let mut item = Map::new();
        for verb in verbs {
            let allowed = match sub.and_then(|sub| self.row.subresource(sub)) {
                Some(sub) => sub.verbs.iter().any(|allowed| allowed == verb),
                None => self.row.allows(verb),
            };
            if allowed {
                item.insert(method(verb).into(), self.operation(verb, sub));
            }
        }
        let parameters: Vec<Value> =
            path.iter().map(|name| self.parameter("path", name, "string")).collect();
        if !parameters.is_empty() {
            item.insert("parameters".into(), parameters.into());
        }
        Value::Object(item)
    }

    fn parameter(&self, place: &str, name: &str, kind: &str) -> Value {
        let mut parameter = json!({ "name": name, "in": place });
        if place == "path" {
            parameter["required"] = true.into();
        }
        match self.style {
            Style::V2 => parameter["type"] = kind.into(),
            Style::V3 => parameter["schema"] = json!({ "type": kind }),
        }
        parameter
    }

    fn operation(&mut self, verb: &str, sub: Option<&str>) -> Value {
        let row = self.row;
        let (group, version, kind) = match sub.and_then(|sub| row.subresource(sub)) {
            Some(sub) => match &sub.group_version_kind {
                Some((group, version, kind)) if !version.is_empty() => (group, version, kind),
                Some((_, _, kind)) => (&row.group, &row.version, kind),
                None => (&row.group, &row.version, &row.kind.kind),
            },
            None => (&row.group, &row.version, &row.kind.kind),
        };
        let own = self.schemas.named(group, version, kind, row.custom && sub.is_none());
        let answer = match verb {
            "list" => self.schemas.list(row),
            "delete" | "deletecollection" => {
                self.schemas.named("meta.k8s.io", "v1", "Status", false)
            }
            _ => own.clone(),
        };
        let mut parameters: Vec<Value> = queries(verb)
            .iter()
            .flat_map(|rows| rows.iter())
            .map(|(name, kind)| self.parameter("query", name, kind))
            .collect();
        let mut operation = json!({
            "operationId": operation_id(row, verb, sub),
            "tags": [tag(row)],
            "x-kubernetes-action": verb,
            "x-kubernetes-group-version-kind": {
                "group": group, "version": version, "kind": kind,
            },
        });
        let body = match verb {
            "create" | "update" => Some((own, &["*/*"][..])),
            // kubectl reads here whether a kind supports strategic merge patch; custom kinds do not.
            "patch" => {
                let types = if row.custom { &PATCH_TYPES[..3] } else { PATCH_TYPES };
                Some((json!({ "type": "object" }), types))
            }
            _ => None,
        };
        match self.style {
            Style::V3 => {
                operation["responses"] = json!({ "200": {
                    "description": "OK",
                    "content": { "application/json": { "schema": answer } },
                }});
                if let Some((schema, types)) = body {
                    let content: Map = types
                        .iter()
                        .map(|name| ((*name).to_owned(), json!({ "schema": schema })))
                        .collect();
                    operation["requestBody"] = json!({ "content": content, "required": true });
                }
            }
            Style::V2 => {
                operation["responses"] =
                    json!({ "200": { "description": "OK", "schema": answer } });
                operation["produces"] = json!(["application/json", "application/yaml"]);
                if let Some((schema, types)) = body {
                    operation["consumes"] = json!(types);
                    let body = json!({
                        "name": "body", "in": "body", "required": true, "schema": schema,
                    });
                    parameters.push(body);
                }
            }
        }
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        operation
    }
}

fn queries(verb: &str) -> Vec<&'static [(&'static str, &'static str)]> {
    match verb {
        "list" => vec![READS],
        "create" | "update" => vec![WRITES],
        "patch" => vec![WRITES, FORCE],
        "delete" => vec![DELETES],
        "deletecollection" => vec![READS, DELETES],
        _ => Vec::new(),
    }
}

fn method(verb: &str) -> &'static str {
    match verb {
        "create" => "post",
        "update" => "put",
        "patch" => "patch",
        "delete" | "deletecollection" => "delete",
        _ => "get",
    }
}

/// A unique operation id, such as `readCoreV1NamespacedPodStatus`.
fn operation_id(row: &Served, verb: &str, sub: Option<&str>) -> String {
    let word = match verb {
        "get" => "read",
        "update" => "replace",
        "deletecollection" => "deleteCollection",
        verb => verb,
    };
    let scope = if row.namespaced { "Namespaced" } else { "" };
    let (group, version) = (capital(&tag(row)), capital(&row.version));
    let sub = capital(sub.unwrap_or_default());
    format!("{word}{group}{version}{scope}{}{sub}", row.kind.kind)
}

fn tag(row: &Served) -> String {
    let group = row.group.split('.').next().unwrap_or_default();
    format!("{}_{}", if group.is_empty() { "core" } else { group }, row.version)
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// The document of `/version`.
pub(crate) fn version() -> Value {
    json!({
        "openapi": "3.0.0",
        "info": super::info(),
        "paths": { "/version/": { "get": {
            "operationId": "getCodeVersion",
            "responses": { "200": { "description": "OK" } },
        }}},
        "components": { "schemas": {} },
    })
}
