//! The paths below `/openapi`: documents of every group version, with their hashes (S1.12).

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use headwater_api::Status;
use headwater_json::json;
use http::StatusCode;
use http::header::{self, HeaderValue};

use crate::answer::body::{self, Data, Response};
use crate::answer::status;
use crate::kinds::openapi::{Document, Subject, protobuf, roots};
use crate::kinds::registry::Registry;
use crate::object::tree;
use crate::request::call::Call;
use crate::server::Server;
use crate::verbs::proxy;

/// Serves `/openapi` and the paths below it.
pub(crate) async fn path(server: &Server, call: &Call, words: &[&str]) -> Result<Response, Status> {
    let registry = server.registry();
    match words {
        ["v2"] => merged(server, call, &registry).await,
        ["v3"] => Ok(index(server, &registry).await),
        ["v3", "api", version] => document(server, call, &registry, "", version).await,
        ["v3", "apis", group, version] => {
            match server.remotes().of_path(&format!("/apis/{group}/{version}")) {
                Some(remote) => Ok(proxy::of_server(server, call, &remote).await),
                None => document(server, call, &registry, group, version).await,
            }
        }
        ["v3", name @ ..] => match server.documents().root(&registry, &name.join("/")) {
            Some(document) => Ok(answer(server, call, &document, JSON).await),
            None => Ok(body::page_not_found()),
        },
        _ => Ok(body::page_not_found()),
    }
}

async fn index(server: &Server, registry: &Registry) -> Response {
    let rows = registry.kinds().to_vec();
    let build = async {
        let mut paths = BTreeMap::new();
        for (group, versions) in registry.groups() {
            for version in versions {
                let path = match &**group {
                    "" => format!("api/{version}"),
                    group => format!("apis/{group}/{version}"),
                };
                let hash = &find(server, registry, group, version).await.hash;
                let url = format!("/openapi/v3/{path}?hash={hash}");
                paths.insert(path, json!({ "serverRelativeURL": url }));
            }
        }
        for name in roots::names(registry) {
            if let Some(document) = server.documents().root(registry, &name) {
                let url = format!("/openapi/v3/{name}?hash={}", document.hash);
                paths.insert(name, json!({ "serverRelativeURL": url }));
            }
        }
        json!({ "paths": paths })
    };
    let documents = server.documents();
    let index = documents.find(server.work(), registry, Subject::Index, rows, build).await;
    let remotes = server.remotes().all();
    let mut available = remotes.iter().filter(|remote| remote.is_available).peekable();
    if available.peek().is_none() {
        return body::text(StatusCode::OK, index.bytes.clone());
    }
    let Ok(mut all) = tree(&index.bytes) else {
        return body::text(StatusCode::OK, index.bytes.clone());
    };
    for remote in available {
        let path = format!("apis/{}/{}", remote.group, remote.version);
        // Without a hash: clients do not keep a document of which this server knows no version.
        let url = format!("/openapi/v3/{path}");
        all["paths"][path.as_str()] = json!({ "serverRelativeURL": url });
    }
    body::text(StatusCode::OK, all.to_string())
}

async fn document(
    server: &Server,
    call: &Call,
    registry: &Registry,
    group: &str,
    version: &str,
) -> Result<Response, Status> {
    if !registry.has_version(group, version) {
        return Err(status::no_such_resource());
    }
    let found = find(server, registry, group, version).await;
    Ok(answer(server, call, &found, JSON).await)
}

const JSON: &str = "application/json";

/// The response with a document. All responses share its bytes.
async fn answer(
    server: &Server,
    call: &Call,
    document: &Document,
    content_type: &'static str,
) -> Response {
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
        content(server, call, document, content_type).await
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

async fn content(
    server: &Server,
    call: &Call,
    document: &Document,
    content_type: &'static str,
) -> Response {
    let bytes = &document.bytes;
    if call.finish.pretty && content_type == JSON {
        let slices: Vec<Bytes> = (0..bytes.len())
            .step_by(body::CHUNK)
            .map(|at| bytes.slice(at..bytes.len().min(at + body::CHUNK)))
            .collect();
        let chunks = slices.into_iter().map(Data::from);
        return body::json_chunks(StatusCode::OK, call.finish, chunks);
    }
    let mut response = match call.finish.gzip && bytes.len() > body::GZIP_ABOVE {
        true => body::gzipped(
            StatusCode::OK,
            body::JSON,
            body::full(document.gzip(server.work()).await),
        ),
        false => body::json(StatusCode::OK, bytes.clone()),
    };
    body::set(&mut response, header::CONTENT_TYPE, content_type);
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

async fn find(server: &Server, registry: &Registry, group: &str, version: &str) -> Arc<Document> {
    server.documents().version(server.cache(), server.work(), registry, group, version).await
}

/// The merged document of version 2.
async fn merged(server: &Server, call: &Call, registry: &Registry) -> Result<Response, Status> {
    let remotes = server.remotes().all();
    let available = remotes.iter().filter(|remote| remote.is_available);
    let extensions = available.filter_map(|remote| remote.openapi.clone()).collect();
    let (cache, work) = (server.cache(), server.work());
    let document = server.documents().merged(cache, work, registry, extensions).await;
    let mut response = match asks_for_protobuf(call) {
        true => {
            let encoded = document.protobuf(server.work()).await?;
            answer(server, call, &encoded, protobuf::CONTENT_TYPE).await
        }
        false => answer(server, call, &document, JSON).await,
    };
    body::set(&mut response, header::VARY, "Accept-Encoding, Accept");
    Ok(response)
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
