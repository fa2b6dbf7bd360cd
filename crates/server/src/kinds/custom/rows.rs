//! The rows that a definition adds to the registry.
//!
//! River: definition → **rows** → registry. There is one row for each served version; all of them
//! store their objects under one prefix, in the storage version (S9.25).

use std::cmp::{Ordering, Reverse};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use headwater_api::Kind;
use headwater_api::kind::{Field, Name, Subresource, Traits};
use headwater_api::table::custom_columns;
use headwater_cache::ObjectDecoder;
use headwater_json::Value;
use headwater_schema::structural::{Schema, Uncompilable};
use headwater_store::key;

use super::Custom;
use super::definition::{Definition, SelectableField, Version};
use super::gate::Gate;
use crate::kinds::registry::Served;
use crate::kinds::versions::form::{Renaming, Stored};
use crate::kinds::versions::webhook::Conversion;

/// The verbs of custom kinds, in the order of discovery (S1.22).
const VERBS: [&str; 8] =
    ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];

/// Verbs of both subresources.
const SUBRESOURCE_VERBS: [&str; 3] = ["get", "patch", "update"];

/// A compiled definition: the rows of its served versions and the reader of its objects.
pub(crate) struct Compiled {
    pub(crate) definition: Arc<Definition>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) rows: Vec<Arc<Served>>,
    pub(crate) shape: ObjectDecoder,
}

/// Compiles a definition from its object. Creates of all versions pass `gate`.
pub(crate) fn compile(
    definition: &Arc<Definition>,
    object: &Value,
    gate: &Arc<Gate>,
) -> Result<Compiled, String> {
    let schemas = schemas(object).map_err(|error| error.to_string())?;
    let versions = &definition.spec.versions;
    let storage = versions.iter().position(|version| version.storage);
    let storage = storage.filter(|_| schemas.len() == versions.len());
    let storage = storage.ok_or("it has no storage version")?;
    let api_version = |at: usize| format!("{}/{}", definition.spec.group, versions[at].name);
    let form = Stored::new(
        schemas
            .iter()
            .enumerate()
            .map(|(at, schema)| (api_version(at), Arc::clone(schema)))
            .collect(),
        api_version(storage),
        Arc::clone(&schemas[storage]),
        Renaming::of(object),
    );
    let form = Arc::new(form);
    let conversion = Conversion::read(object, &form);
    let shape = ObjectDecoder { fields: fields(definition).into(), transform: Some(form.clone()) };
    let rows = rows(definition, &schemas, gate, &form, conversion.as_ref());
    Ok(Compiled { definition: Arc::clone(definition), gate: Arc::clone(gate), rows, shape })
}

/// The schema of each version; equal schemas are shared.
fn schemas(object: &Value) -> Result<Vec<Arc<Schema>>, Uncompilable> {
    let mut known: HashMap<&Value, Arc<Schema>> = HashMap::new();
    let mut compiled = Vec::new();
    for version in object["spec"]["versions"].as_array().into_iter().flatten() {
        let schema = &version["schema"]["openAPIV3Schema"];
        let made = match known.get(schema) {
            Some(known) => Arc::clone(known),
            None => Arc::new(Schema::compile(schema)?),
        };
        known.insert(schema, Arc::clone(&made));
        compiled.push(made);
    }
    Ok(compiled)
}

fn rows(
    definition: &Definition,
    schemas: &[Arc<Schema>],
    gate: &Arc<Gate>,
    form: &Arc<Stored>,
    conversion: Option<&Arc<Conversion>>,
) -> Vec<Arc<Served>> {
    let make = |version: &Version, schema: &Arc<Schema>, stored: Option<Arc<Served>>| {
        Arc::new(Served {
            kind: kind(definition, version),
            stored,
            prefix: prefix(definition),
            custom_columns: {
                let columns: Vec<_> =
                    version.additional_printer_columns.iter().map(Into::into).collect();
                custom_columns(&columns)
            },
            definition: Some(Custom {
                gate: Arc::clone(gate),
                schema: Arc::clone(schema),
                form: Arc::clone(form),
                conversion: conversion.cloned(),
                head: head(definition, version),
                fields: version.selectable_fields.iter().map(label).collect(),
                scale: version.subresources.scale.clone(),
            }),
        })
    };
    let both = || definition.spec.versions.iter().zip(schemas);
    let Some((storage, schema)) = both().find(|(version, _)| version.storage) else {
        return Vec::new();
    };
    let stored = make(storage, schema, None);
    let served = both().filter(|(version, _)| version.served);
    let mut rows: Vec<Arc<Served>> = served
        .map(|(version, schema)| match version.storage {
            true => Arc::clone(&stored),
            false => make(version, schema, Some(Arc::clone(&stored))),
        })
        .collect();
    rows.sort_by(|a, b| compare(&b.version, &a.version));
    rows
}

/// The beginning of the stored bytes: these members come first.
fn head(definition: &Definition, version: &Version) -> Vec<u8> {
    let (kind, group) = (&definition.status.accepted_names.kind, &definition.spec.group);
    format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{group}/{}\",", version.name).into_bytes()
}

/// The key prefix of the objects.
pub(crate) fn prefix(definition: &Definition) -> String {
    key::collection(&definition.spec.group, &definition.spec.names.plural)
}

/// A selectable field in the notation of selectors.
fn label(field: &SelectableField) -> String {
    field.json_path.trim_start_matches('.').to_owned()
}

/// The selectable fields of all versions: they share one index.
pub(crate) fn fields(definition: &Definition) -> Vec<Field> {
    let (mut fields, mut seen) = (Vec::new(), HashSet::new());
    for version in &definition.spec.versions {
        for field in &version.selectable_fields {
            if seen.insert(&field.json_path) {
                fields.push(Field::custom(&field.json_path));
            }
        }
    }
    fields
}

fn kind(definition: &Definition, version: &Version) -> Kind {
    let names = &definition.status.accepted_names;
    let owned = |text: &str| Name::Owned(text.to_owned());
    let list = |texts: &[String]| texts.iter().map(|text| owned(text)).collect();
    let group = &definition.spec.group;
    Kind {
        group: owned(group),
        version: owned(&version.name),
        kind: owned(&names.kind),
        list_kind: owned(&names.list_kind),
        plural: owned(&names.plural),
        singular: owned(&names.singular),
        namespaced: definition.is_namespaced(),
        short_names: list(&names.short_names),
        categories: list(&names.categories),
        verbs: VERBS.map(Name::Borrowed).into(),
        subresources: subresources(version),
        fields: fields(definition),
        traits: Traits { generation: true, ..Traits::default() },
        custom: true,
        storage_hash: match definition.storage() {
            Some(storage) => Name::Owned(storage_hash(group, &storage.name, &names.kind)),
            None => Name::Borrowed(""),
        },
        deprecation: version.deprecated.then(|| Name::Owned(deprecation(definition, version))),
        ..Kind::default()
    }
}

fn subresources(version: &Version) -> Vec<Subresource> {
    let subresource = |name, group_version_kind| Subresource {
        name: Name::Borrowed(name),
        group_version_kind,
        verbs: SUBRESOURCE_VERBS.map(Name::Borrowed).into(),
    };
    let mut subresources = Vec::new();
    if version.subresources.status.is_some() {
        subresources.push(subresource("status", None));
    }
    if version.subresources.scale.is_some() {
        let scale = ["autoscaling", "v1", "Scale"].map(Name::Borrowed);
        subresources.push(subresource("scale", Some(scale.into())));
    }
    subresources
}

/// The storage version hash of discovery.
fn storage_hash(group: &str, version: &str, kind: &str) -> String {
    let text = format!("{group}/{version}/{kind}");
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    STANDARD.encode(&digest.as_ref()[..8])
}

/// The Warning of a deprecated version: its own, or one that recommends the best version.
fn deprecation(definition: &Definition, version: &Version) -> String {
    if let Some(text) = &version.deprecation_warning {
        return text.clone();
    }
    let (group, kind) = (&definition.spec.group, &definition.spec.names.kind);
    let mut text = format!("{group}/{} {kind} is deprecated", version.name);
    let better = definition
        .spec
        .versions
        .iter()
        .filter(|other| other.served && !other.deprecated)
        .filter(|other| compare(&version.name, &other.name) == Ordering::Less)
        .max_by(|a, b| compare(&a.name, &b.name));
    if let Some(better) = better {
        text.push_str(&format!("; use {group}/{} {kind}", better.name));
    }
    text
}

/// Compares versions by priority: GA, beta, alpha; higher numbers first; other names last (S1.22).
pub(crate) fn compare(a: &str, b: &str) -> Ordering {
    match (Maturity::of(a), Maturity::of(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(_), None) => Ordering::Greater,
        (None, Some(_)) => Ordering::Less,
        (None, None) => Reverse(a).cmp(&Reverse(b)),
    }
}

/// `v2`, `v1beta3`: stability, then major, then minor.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Maturity(u8, u64, u64);

impl Maturity {
    fn of(version: &str) -> Option<Maturity> {
        let rest = version.strip_prefix('v')?;
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (major, rest) = rest.split_at(end);
        let major = number(major)?;
        if rest.is_empty() {
            return Some(Maturity(2, major, 0));
        }
        let (stability, minor) = match (rest.strip_prefix("beta"), rest.strip_prefix("alpha")) {
            (Some(minor), _) => (1, minor),
            (_, Some(minor)) => (0, minor),
            _ => return None,
        };
        Some(Maturity(stability, major, number(minor)?))
    }
}

/// Parses a number without leading zeros.
fn number(text: &str) -> Option<u64> {
    if text.starts_with('0') { None } else { text.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_as_kubernetes_orders_them() {
        let mut versions = vec![
            "foo10",
            "v1",
            "v10",
            "v2",
            "v1alpha1",
            "v11beta2",
            "v3beta1",
            "foo1",
            "v12alpha1",
            "v10beta3",
            "v1alpha2",
            "v0",
            "v1beta01",
        ];
        versions.sort_by(|a, b| compare(b, a));
        assert_eq!(
            versions,
            [
                "v10",
                "v2",
                "v1",
                "v11beta2",
                "v10beta3",
                "v3beta1",
                "v12alpha1",
                "v1alpha2",
                "v1alpha1",
                "foo1",
                "foo10",
                "v0",
                "v1beta01",
            ]
        );
    }

    #[test]
    fn the_storage_hash_is_that_of_the_reference() {
        // Kubernetes computes the hash of built-in kinds in the same way.
        assert_eq!(storage_hash("", "v1", "Pod"), "xPOwRZ+Yhw8=");
    }
}
