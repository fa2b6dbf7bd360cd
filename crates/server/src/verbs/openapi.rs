//! The paths below `/openapi`: documents of every group version, with their hashes (S1.12).

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use headwater_api::Status;
use headwater_json::{Value, json};
use http::StatusCode;
use http::header::{self, HeaderValue};

use crate::answer::body::{self, Response};
use crate::answer::status;
use crate::kinds::openapi::{Document, paths, protobuf};
use crate::kinds::registry::Registry;
use crate::request::call::Call;
use crate::server::Server;

/// Serves `/openapi` and the paths below it.
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
        let chunks = [document.json.clone().into()].into_iter();
        body::json_chunks(StatusCode::OK, call.finish, chunks)
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

/// Redirects an outdated hash to the current one.
fn moved(call: &Call, hash: &str) -> Response {
    let mut response = Response::new(body::full(""));
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    if let Ok(value) = HeaderValue::from_str(&format!("{}?hash={hash}", call.path)) {
        response.headers_mut().insert(header::LOCATION, value);
    }
    response
}

fn find(server: &Server, registry: &Registry, group: &str, version: &str) -> Arc<Document> {
    server.documents().find(server.cache(), registry, group, version)
}

/// The merged document of version 2.
fn whole(server: &Server, call: &Call, registry: &Registry) -> Response {
    let document = server.documents().merged(server.cache(), registry);
    let mut response = match asks_for_protobuf(call) {
        true => protobuf_answer(call, &document),
        false => answer(call, &Document::new(&document)),
    };
    body::set(&mut response, header::VARY, "Accept-Encoding, Accept");
    response
}

/// Whether the client prefers protobuf to JSON.
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
