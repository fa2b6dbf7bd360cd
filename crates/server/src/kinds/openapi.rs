//! OpenAPI documents: the types and paths of every group version (S1.12).
//!
//! River: registry rows and the type table → **openapi** → HTTP. Types, required fields, list keys and
//! merge keys come from the same table as decoding, patches and apply, so the documents cannot differ.
//! Descriptions are passed in ([`Descriptions`]).

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::FutureExt;
use headwater_api::Status;
use headwater_api::metrics::Counter;
use headwater_cache::Cache;
use headwater_json::{Value, json};
use tokio::sync::OnceCell;

use crate::kinds::live;
use crate::kinds::registry::{Registry, Served};
use crate::lock::lock;
use crate::object::tree;
use crate::system::metrics::Metrics;
use crate::work::WorkPool;

mod custom;
mod descriptions;
mod fields;
pub(crate) mod merge;
mod operation;
mod parameters;
mod paths;
pub(crate) mod protobuf;
pub(crate) mod roots;
mod style;
mod types;

pub use descriptions::Descriptions;
use style::Style;
use types::Schemas;

/// What a document describes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    /// A group and a version.
    Version(String, String),
    /// All kinds, in version 2.
    Merged,
    /// The paths of the documents of version 3.
    Index,
    /// The aggregated discovery of the core group, or of the others.
    Discovery { core: bool },
}

/// The documents of everything that is served. Each is built once after a change of its kinds, however
/// many requests wait for it, and shared by all responses.
pub(crate) struct Documents {
    descriptions: Descriptions,
    slots: Mutex<HashMap<Subject, Arc<Slot>>>,
    builds: Arc<Counter>,
}

/// The newest document of a subject. The lock is held while the next one is built.
#[derive(Default)]
struct Slot(tokio::sync::Mutex<Option<BuiltDocument>>);

struct BuiltDocument {
    /// The kinds that it was built from: another definition makes other rows.
    rows: Vec<Arc<Served>>,
    /// The documents of extension servers that it contains.
    extensions: Vec<Arc<Value>>,
    document: Arc<Document>,
}

/// An encoded document and its ETag. Compressed and protobuf forms are made on first use.
pub(crate) struct Document {
    pub(crate) bytes: Bytes,
    pub(crate) hash: String,
    gzip: OnceCell<Bytes>,
    protobuf: OnceCell<Arc<Document>>,
}

impl Document {
    pub(crate) fn new(value: &Value) -> Document {
        Document::of(value.to_string().into())
    }

    fn of(bytes: Bytes) -> Document {
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        let hash = format!("{:016X}", hasher.finish());
        Document { bytes, hash, gzip: OnceCell::new(), protobuf: OnceCell::new() }
    }

    /// The bytes, compressed.
    pub(crate) async fn gzip(&self, work: &WorkPool) -> Bytes {
        let compressed = async { compressed(&self.bytes) }.boxed();
        self.gzip.get_or_init(|| work.compute(compressed)).await.clone()
    }

    /// The same document as a protobuf message.
    pub(crate) async fn protobuf(&self, work: &WorkPool) -> Result<Arc<Document>, Status> {
        let encoded = async {
            let value = tree(&self.bytes)?;
            Ok(Arc::new(Document::of(protobuf::document(&value).into())))
        };
        self.protobuf.get_or_try_init(|| work.compute(encoded.boxed())).await.map(Arc::clone)
    }
}

fn compressed(bytes: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).expect("a Vec takes everything");
    encoder.finish().expect("a Vec takes everything").into()
}

impl Documents {
    /// With these descriptions of types and fields.
    pub(crate) fn new(descriptions: Descriptions, metrics: &Metrics) -> Documents {
        let builds = metrics.document_builds.with(&[]);
        Documents { descriptions, slots: Mutex::default(), builds }
    }

    /// The document of a group version.
    pub(crate) async fn version(
        &self,
        cache: &Cache,
        work: &WorkPool,
        registry: &Registry,
        group: &str,
        version: &str,
    ) -> Arc<Document> {
        let subject = Subject::Version(group.to_owned(), version.to_owned());
        let rows = registry.kinds().iter();
        let rows = rows.filter(|row| row.group == group && row.version == version);
        let rows: Vec<Arc<Served>> = rows.cloned().collect();
        self.find(work, registry, subject, rows.clone(), async {
            self.build(cache, &references(&rows))
        })
        .await
    }

    /// The merged document of version 2, with the parts of extension servers.
    pub(crate) async fn merged(
        &self,
        cache: &Cache,
        work: &WorkPool,
        registry: &Registry,
        extensions: Vec<Arc<Value>>,
    ) -> Arc<Document> {
        let sources = (registry.kinds().to_vec(), extensions.clone());
        self.find_of(work, registry, Subject::Merged, sources, async {
            let mut document = self.build_merged(cache, registry);
            extensions.iter().for_each(|part| merge::add(&mut document, part));
            document
        })
        .await
    }

    /// A document of rows. If it is outdated, the first request builds it and the others wait.
    pub(crate) async fn find(
        &self,
        work: &WorkPool,
        registry: &Registry,
        subject: Subject,
        rows: Vec<Arc<Served>>,
        build: impl Future<Output = Value> + Send,
    ) -> Arc<Document> {
        self.find_of(work, registry, subject, (rows, Vec::new()), build).await
    }

    /// The same for a document of rows and of parts of extension servers.
    async fn find_of(
        &self,
        work: &WorkPool,
        registry: &Registry,
        subject: Subject,
        (rows, extensions): (Vec<Arc<Served>>, Vec<Arc<Value>>),
        build: impl Future<Output = Value> + Send,
    ) -> Arc<Document> {
        let slot = self.slot(registry, subject);
        let mut known = slot.0.lock().await;
        let is_current = |built: &&BuiltDocument| {
            is_same(&built.rows, &rows) && is_same(&built.extensions, &extensions)
        };
        if let Some(built) = known.as_ref().filter(is_current) {
            return Arc::clone(&built.document);
        }
        let document = async { Arc::new(Document::new(&build.await)) };
        let document = work.compute(document.boxed()).await;
        self.builds.inc();
        *known = Some(BuiltDocument { rows, extensions, document: Arc::clone(&document) });
        document
    }

    /// The slot of a subject. Slots of groups that are not served any more are dropped.
    fn slot(&self, registry: &Registry, subject: Subject) -> Arc<Slot> {
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.get(&subject) {
            return Arc::clone(slot);
        }
        slots.retain(|subject, _| match subject {
            Subject::Version(group, version) => registry.has_version(group, version),
            Subject::Merged | Subject::Index | Subject::Discovery { .. } => true,
        });
        Arc::clone(slots.entry(subject).or_default())
    }

    fn build(&self, cache: &Cache, rows: &[&Served]) -> Value {
        let mut schemas = Schemas::new(Style::V3, &self.descriptions);
        let paths = paths::of(rows, &mut schemas, Style::V3);
        third(&paths, schemas.finish(rows, |row| definition(cache, row)))
    }

    fn build_merged(&self, cache: &Cache, registry: &Registry) -> Value {
        let rows = references(registry.kinds());
        let mut schemas = Schemas::new(Style::V2, &self.descriptions);
        let mut paths = paths::of(&rows, &mut schemas, Style::V2);
        if let Some(paths) = paths.as_object_mut() {
            paths.extend(roots::all(registry, &mut schemas));
        }
        json!({
            "swagger": "2.0",
            "info": info(),
            "paths": paths,
            "definitions": schemas.finish(&rows, |row| definition(cache, row)),
            "parameters": parameters::shared(),
            "securityDefinitions": security(),
            "security": [{ "BearerToken": [] }],
        })
    }

    /// A document of version 3 without kinds, such as `apis/apps` or `version`.
    pub(crate) fn root(&self, registry: &Registry, name: &str) -> Option<Document> {
        let mut schemas = Schemas::new(Style::V3, &self.descriptions);
        let paths = roots::one(registry, name, &mut schemas)?;
        let document = third(&Value::Object(paths), schemas.finish(&[], |_| None));
        Some(Document::new(&document))
    }
}

/// A document of version 3.
fn third(paths: &Value, schemas: Value) -> Value {
    let mut components = json!({ "securitySchemes": security() });
    if schemas.as_object().is_some_and(|schemas| !schemas.is_empty()) {
        components["schemas"] = schemas;
    }
    json!({ "openapi": "3.0.0", "info": info(), "paths": paths, "components": components })
}

fn security() -> Value {
    json!({ "BearerToken": {
        "type": "apiKey",
        "name": "authorization",
        "in": "header",
        "description": "A bearer token.",
    }})
}

fn references(rows: &[Arc<Served>]) -> Vec<&Served> {
    rows.iter().map(|row| &**row).collect()
}

fn is_same<T>(old: &[Arc<T>], new: &[Arc<T>]) -> bool {
    old.len() == new.len() && old.iter().zip(new).all(|(old, new)| Arc::ptr_eq(old, new))
}

/// The schema of a version in a definition.
pub(crate) fn definition(cache: &Cache, row: &Served) -> Option<Value> {
    if live::is_live(&row.group) && row.definition.is_none() {
        return Some(live::schema(&row.kind.kind));
    }
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
