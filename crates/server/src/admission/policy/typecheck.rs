//! Type checking of policies: warnings in the status of a policy.
//!
//! River: an accepted policy → **its status**. Validation compiles the expressions with untyped objects;
//! this module compiles them again for each matched kind, with its fields and types. It never rejects a
//! policy.

use headwater_cel::{DeclType, Environment, Program};
use headwater_json::{Value, json};
use headwater_schema::decl_type;

use super::ParameterKind;
use super::names::Names;
use crate::backend::Backend;
use crate::kinds::openapi;
use crate::kinds::registry::{Registry, Served};

/// The maximum number of kinds that are checked per policy (Kubernetes' limit).
const KINDS_MAX: usize = 10;

/// Writes the status of a validating policy whose spec is new.
pub(crate) fn settle(backend: &Backend, kind: &Served, new: &mut Value, old: Option<&Value>) {
    let is_policy = kind.group == "admissionregistration.k8s.io"
        && *kind.plural == *"validatingadmissionpolicies";
    let generation = |policy: &Value| policy["metadata"]["generation"].as_i64().unwrap_or(0);
    let is_new = old.is_none_or(|old| generation(old) != generation(new));
    if !is_policy || !is_new {
        return;
    }
    let mut checking = json!({});
    let warnings = warnings(backend, &new["spec"]);
    if !warnings.is_empty() {
        checking["expressionWarnings"] = warnings.into();
    }
    let conditions = new["status"]["conditions"].take();
    new["status"] = json!({ "observedGeneration": generation(new), "typeChecking": checking });
    if !conditions.is_null() {
        new["status"]["conditions"] = conditions;
    }
}

/// The warnings of each expression for each kind.
fn warnings(backend: &Backend, spec: &Value) -> Vec<Value> {
    let registry = backend.registry();
    let kinds: Vec<(String, DeclType)> = kinds(&registry, spec)
        .into_iter()
        .filter_map(|row| Some((shown(row), shape(backend, row)?)))
        .collect();
    let params = ParameterKind::of(spec).map(|params| {
        let row = registry.find_kind(&params.group, &params.version, &params.kind);
        row.and_then(|row| shape(backend, row)).unwrap_or(DeclType::Dyn)
    });
    let mut found = Vec::new();
    let mut check = |text: &Value, at: String| {
        let Some(text) = text.as_str().filter(|text| !text.is_empty()) else { return };
        let told: Vec<String> = kinds
            .iter()
            .filter_map(|(name, shape)| {
                let names = Names { object: shape, params: params.as_ref() };
                let why = odd(text, &names.of_policy(spec))?;
                Some(format!("{name}: {why}\n"))
            })
            .collect();
        if !told.is_empty() {
            found.push(json!({ "fieldRef": at, "warning": told.join("\n") }));
        }
    };
    for (index, rule) in spec["validations"].as_array().into_iter().flatten().enumerate() {
        for key in ["expression", "messageExpression"] {
            check(&rule[key], format!("spec.validations[{index}].{key}"));
        }
    }
    found
}

fn odd(text: &str, known: &Environment<'_>) -> Option<String> {
    Program::compile(text, known).err().map(|error| error.to_string())
}

/// Such as `apps/v1, Kind=Deployment`.
fn shown(row: &Served) -> String {
    format!("{}/{}, Kind={}", row.group, row.version, row.kind.kind)
}

fn shape(backend: &Backend, row: &Served) -> Option<DeclType> {
    match row.kind.custom {
        true => openapi::definition(backend.cache(), row)
            .map(|schema| decl_type::of_custom_kind(&schema)),
        false => decl_type::of_kind(&row.kind),
    }
}

/// The kinds that rules name without wildcards, by group, version and kind.
fn kinds<'r>(registry: &'r Registry, spec: &Value) -> Vec<&'r Served> {
    let mut found: Vec<&Served> = Vec::new();
    let rules = spec["matchConstraints"]["resourceRules"].as_array();
    for rule in rules.into_iter().flatten() {
        let words = |key: &str| {
            let words: Vec<&str> =
                rule[key].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            words
        };
        let (groups, versions) = (words("apiGroups"), words("apiVersions"));
        if groups.iter().chain(&versions).any(|word| word.contains('*')) {
            continue;
        }
        let resources = words("resources");
        let is_named = |row: &&Served| {
            groups.contains(&&*row.group)
                && versions.contains(&&*row.version)
                && resources.contains(&&*row.plural)
        };
        let rows = registry.kinds().iter().map(|row| &**row).filter(is_named);
        found.extend(rows.take(KINDS_MAX));
    }
    found.sort_by(|a, b| {
        let key = |row: &Served| {
            (row.group.to_string(), row.version.to_string(), row.kind.kind.to_string())
        };
        key(a).cmp(&key(b))
    });
    found.dedup_by(|a, b| std::ptr::eq(*a, *b));
    found
}
