//! OpenAPI documents: the types and paths of every group version (S1.12).
//!
//! River: registry rows and the type table → **openapi** → HTTP. Types, required fields, list keys and
//! merge keys come from the same table as decoding, patches and apply, so the documents cannot differ.
//! Descriptions are passed in ([`Descriptions`]).

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use headwater_cache::Cache;
use headwater_json::{Value, json};

use crate::kinds::registry::{Registry, Served};
use crate::lock::lock;
use crate::object::tree;

pub(crate) mod paths;
pub(crate) mod protobuf;
mod types;

use types::Schemas;

/// Descriptions of types and fields, such as `core.v1.PodSpec` and `core.v1.PodSpec.containers`.
/// Read on first use.
#[derive(Clone, Debug, Default)]
pub struct Descriptions {
    text: &'static str,
    entries: Arc<OnceLock<HashMap<&'static str, String>>>,
}

impl Descriptions {
    /// Lines of a name, a tab and a text in which line ends are written `\n`.
    pub fn new(text: &'static str) -> Descriptions {
        Descriptions { text, entries: Arc::default() }
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.entries.get_or_init(|| self.read()).get(name).map(String::as_str)
    }

    fn read(&self) -> HashMap<&'static str, String> {
        let lines = self.text.lines().filter_map(|line| line.split_once('\t'));
        lines.map(|(name, text)| (name, text.replace("\\n", "\n"))).collect()
    }
}

/// A cache of documents by group version: built-in ones never change.
pub(crate) struct Documents {
    descriptions: Descriptions,
    builtin: Mutex<HashMap<(String, String), Arc<Document>>>,
}

/// A document and its ETag.
pub(crate) struct Document {
    /// The encoded document: JSON, or protobuf if requested.
    pub(crate) json: Bytes,
    pub(crate) hash: String,
}

impl Document {
    pub(crate) fn new(value: &Value) -> Document {
        let json = Bytes::from(value.to_string());
        let mut hasher = DefaultHasher::new();
        json.hash(&mut hasher);
        Document { hash: format!("{:016X}", hasher.finish()), json }
    }
}

impl Documents {
    /// With these descriptions of types and fields.
    pub(crate) fn new(descriptions: Descriptions) -> Documents {
        Documents { descriptions, builtin: Mutex::default() }
    }

    /// The document of a group version.
    pub(crate) fn find(
        &self,
        cache: &Cache,
        registry: &Registry,
        group: &str,
        version: &str,
    ) -> Arc<Document> {
        let rows = rows(registry, group, version);
        if rows.iter().any(|row| row.custom) {
            return Arc::new(Document::new(&self.build(cache, &rows)));
        }
        let key = (group.to_owned(), version.to_owned());
        let mut known = lock(&self.builtin);
        let made = || Arc::new(Document::new(&self.build(cache, &rows)));
        Arc::clone(known.entry(key).or_insert_with(made))
    }

    fn build(&self, cache: &Cache, rows: &[&Served]) -> Value {
        let mut schemas = Schemas::new("#/components/schemas/", &self.descriptions);
        let paths = paths::of(rows, &mut schemas, paths::Style::V3);
        let definition = |row: &Served| definition(cache, row);
        json!({
            "openapi": "3.0.0",
            "info": info(),
            "paths": paths,
            "components": { "schemas": schemas.finish(rows, definition) },
        })
    }

    /// The merged OpenAPI v2 document.
    pub(crate) fn merged(&self, cache: &Cache, registry: &Registry) -> Value {
        let rows: Vec<&Served> = registry.kinds().iter().map(|row| &**row).collect();
        let mut schemas = Schemas::new("#/definitions/", &self.descriptions);
        let paths = paths::of(&rows, &mut schemas, paths::Style::V2);
        let definition = |row: &Served| definition(cache, row);
        json!({
            "swagger": "2.0",
            "info": info(),
            "paths": paths,
            "definitions": schemas.finish(&rows, definition),
        })
    }
}

fn rows<'a>(registry: &'a Registry, group: &str, version: &str) -> Vec<&'a Served> {
    let rows = registry.kinds().iter().map(|row| &**row);
    rows.filter(|row| row.group == group && row.version == version).collect()
}

/// The schema of a version in a definition.
pub(crate) fn definition(cache: &Cache, row: &Served) -> Option<Value> {
    let definitions = cache.resource(crate::kinds::custom::PREFIX);
    let snapshot = cache.snapshot(&definitions);
    let object = snapshot.get(&row.resource())?;
    let value = tree(object.as_slice()).ok()?;
    let versions = value["spec"]["versions"].as_array()?;
    let version = versions.iter().find(|version| version["name"] == *row.version)?;
    version["schema"].get("openAPIV3Schema").cloned()
}

fn info() -> Value {
    json!({ "title": "Kubernetes", "version": "v1.36.4" })
}
