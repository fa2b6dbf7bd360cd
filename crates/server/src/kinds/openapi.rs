//! OpenAPI: the types and paths of every group version, for `kubectl explain`, `apply` and others
//! that want to know before they ask (S1.12).
//!
//! River: registry rows and the table of types → **openapi** → HTTP. Types, required fields, list
//! keys and merge keys are those that decoding, patches and apply use, so the documents cannot say
//! anything else. Descriptions are text for people and come from outside ([`Descriptions`]).

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use flate2::read::GzDecoder;
use headwater_api::Status;
use headwater_api::json::{Value, json};
use http::StatusCode;
use http::header::{self, HeaderValue};

use crate::answer::body::{self, Response};
use crate::answer::status;
use crate::kinds::registry::{Registry, Served};
use crate::object::tree;
use crate::pipeline::{Call, Server};

mod paths;
mod protobuf;
mod types;

use types::Schemas;

/// What types and fields are for, in sentences: `core.v1.PodSpec` and `core.v1.PodSpec.containers`.
/// Unpacked when it is first asked for; most servers are never asked.
#[derive(Clone, Debug, Default)]
pub struct Descriptions {
    compressed: &'static [u8],
    entries: Arc<OnceLock<HashMap<String, String>>>,
}

impl Descriptions {
    /// Gzipped lines of a name, a tab and a text in which line ends are written `\n`.
    pub fn compressed(bytes: &'static [u8]) -> Descriptions {
        Descriptions { compressed: bytes, entries: Arc::default() }
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.entries.get_or_init(|| self.unpack()).get(name).map(String::as_str)
    }

    fn unpack(&self) -> HashMap<String, String> {
        let mut text = String::new();
        if let Err(error) = GzDecoder::new(self.compressed).read_to_string(&mut text) {
            if !self.compressed.is_empty() {
                tracing::error!(%error, "the descriptions of types cannot be unpacked");
            }
            return HashMap::new();
        }
        let lines = text.lines().filter_map(|line| line.split_once('\t'));
        lines.map(|(name, text)| (name.to_owned(), text.replace("\\n", "\n"))).collect()
    }
}

/// Documents that were asked for, by group version: built-in ones never change.
#[derive(Default)]
pub(crate) struct Documents {
    builtin: Mutex<HashMap<(String, String), Arc<Document>>>,
}

/// One document and what tells it from others.
struct Document {
    /// As it is sent: JSON, but for those who ask for a message.
    json: Bytes,
    hash: String,
}

impl Document {
    fn new(value: &Value) -> Document {
        let json = Bytes::from(value.to_string());
        let mut hasher = DefaultHasher::new();
        json.hash(&mut hasher);
        Document { hash: format!("{:016X}", hasher.finish()), json }
    }
}

/// Answers `/openapi` and what is below it.
pub(crate) fn path(server: &Server, call: &Call, words: &[&str]) -> Result<Response, Status> {
    let registry = server.registry();
    match words {
        ["v2"] => Ok(whole(server, call, &registry)),
        ["v3"] => Ok(index(server, &registry)),
        ["v3", "api", version] => document(server, call, &registry, "", version),
        ["v3", "apis", group, version] => document(server, call, &registry, group, version),
        ["v3", "version"] => Ok(answer(call, &Document::new(&paths::version()))),
        _ => Ok(body::page_not_found()),
    }
}

fn index(server: &Server, registry: &Registry) -> Response {
    let mut paths = BTreeMap::new();
    for (group, versions) in registry.groups() {
        for version in versions {
            let path = match &**group {
                "" => format!("api/{version}"),
                group => format!("apis/{group}/{version}"),
            };
            let hash = &find(server, registry, group, version).hash;
            let url = format!("/openapi/v3/{path}?hash={hash}");
            paths.insert(path, json!({ "serverRelativeURL": url }));
        }
    }
    let hash = Document::new(&paths::version()).hash;
    let url = format!("/openapi/v3/version?hash={hash}");
    paths.insert("version".into(), json!({ "serverRelativeURL": url }));
    body::text(StatusCode::OK, json!({ "paths": paths }).to_string())
}

fn document(
    server: &Server,
    call: &Call,
    registry: &Registry,
    group: &str,
    version: &str,
) -> Result<Response, Status> {
    if !registry.has_version(group, version) {
        return Err(status::no_such_resource());
    }
    Ok(answer(call, &find(server, registry, group, version)))
}

fn answer(call: &Call, document: &Document) -> Response {
    let tag = format!("\"{}\"", document.hash);
    let asked = call.query.get("hash");
    if asked.is_some_and(|asked| asked != document.hash) {
        return moved(call, &document.hash);
    }
    let mut response = if call.header(header::IF_NONE_MATCH) == tag {
        let mut response = Response::new(body::full(""));
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        let chunks = futures::stream::iter([document.json.clone().into()]);
        // One chunk that is at hand: this never waits.
        futures::executor::block_on(body::json_chunks(StatusCode::OK, call.finish, chunks))
    };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response.headers_mut().append(header::VARY, HeaderValue::from_static("Accept"));
    if asked.is_some() {
        body::set(&mut response, header::CACHE_CONTROL, "public, immutable");
    }
    response
}

/// A hash that is out of date leads to the present one.
fn moved(call: &Call, hash: &str) -> Response {
    let mut response = Response::new(body::full(""));
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    if let Ok(value) = HeaderValue::from_str(&format!("{}?hash={hash}", call.path)) {
        response.headers_mut().insert(header::LOCATION, value);
    }
    response
}

fn find(server: &Server, registry: &Registry, group: &str, version: &str) -> Arc<Document> {
    let rows = rows(registry, group, version);
    if rows.iter().any(|row| row.custom) {
        return Arc::new(Document::new(&build(server, &rows)));
    }
    let key = (group.to_owned(), version.to_owned());
    let mut known = server.documents().builtin.lock().expect("maps are never left half-changed");
    let made = || Arc::new(Document::new(&build(server, &rows)));
    Arc::clone(known.entry(key).or_insert_with(made))
}

fn rows<'a>(registry: &'a Registry, group: &str, version: &str) -> Vec<&'a Served> {
    let rows = registry.kinds().iter().map(|row| &**row);
    rows.filter(|row| row.group == group && row.version == version).collect()
}

fn build(server: &Server, rows: &[&Served]) -> Value {
    let mut schemas = Schemas::new("#/components/schemas/", server.descriptions());
    let paths = paths::of(rows, &mut schemas, paths::Style::V3);
    let definition = |row: &Served| definition(server, row);
    json!({
        "openapi": "3.0.0",
        "info": info(),
        "paths": paths,
        "components": { "schemas": schemas.finish(rows, definition) },
    })
}

/// The schema that a definition gives for a version.
pub(crate) fn definition(server: &Server, row: &Served) -> Option<Value> {
    let definitions = server.cache().resource(crate::kinds::custom::PREFIX);
    let snapshot = server.cache().snapshot(&definitions);
    let object = snapshot.get(&row.resource())?;
    let value = tree(object.as_slice()).ok()?;
    let versions = value["spec"]["versions"].as_array()?;
    let version = versions.iter().find(|version| version["name"] == *row.version)?;
    version["schema"].get("openAPIV3Schema").cloned()
}

/// The merged document of version 2.
fn whole(server: &Server, call: &Call, registry: &Registry) -> Response {
    let rows: Vec<&Served> = registry.kinds().iter().map(|row| &**row).collect();
    let mut schemas = Schemas::new("#/definitions/", server.descriptions());
    let paths = paths::of(&rows, &mut schemas, paths::Style::V2);
    let definition = |row: &Served| definition(server, row);
    let document = json!({
        "swagger": "2.0",
        "info": info(),
        "paths": paths,
        "definitions": schemas.finish(&rows, definition),
    });
    let mut response = match asks_for_protobuf(call) {
        true => protobuf_answer(call, &document),
        false => answer(call, &Document::new(&document)),
    };
    body::set(&mut response, header::VARY, "Accept-Encoding, Accept");
    response
}

/// Whether the message is asked for before JSON is.
fn asks_for_protobuf(call: &Call) -> bool {
    let mut types = call.header(header::ACCEPT).split(',').map(|clause| {
        let name = clause.split(';').next().unwrap_or_default();
        name.trim().to_ascii_lowercase()
    });
    let served = |name: &String| protobuf::ASKED.contains(&name.as_str()) || is_json(name.as_str());
    types.find(served).is_some_and(|name| !is_json(&name))
}

fn is_json(name: &str) -> bool {
    matches!(name, "application/json" | "application/*" | "*/*")
}

fn protobuf_answer(call: &Call, document: &Value) -> Response {
    let bytes = Bytes::from(protobuf::document(document));
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    let document = Document { hash: format!("{:016X}", hasher.finish()), json: bytes };
    let mut response = answer(call, &document);
    body::set(&mut response, header::CONTENT_TYPE, protobuf::CONTENT_TYPE);
    response
}

fn info() -> Value {
    json!({ "title": "Kubernetes", "version": "v1.36.4" })
}
