//! Non-resource paths: discovery, health, version, metrics.
//!
//! River: route → **discovery** → HTTP. Discovery documents are built from the registry (S1.20–S1.24).

use std::collections::HashMap;

use headwater_api::accept::Discovery;
use headwater_api::kind::{Name, Subresource};
use headwater_api::{Revision, Status};
use headwater_json::{Value, json};
use http::StatusCode;
use http::header::{self, HeaderValue};

use crate::answer::body::{self, Data, Response};
use crate::answer::status;
use crate::front::service_account;
use crate::kinds::openapi::{Document, Subject};
use crate::kinds::registry::{Registry, Served};
use crate::kinds::remote::RemoteVersion;
use crate::object::tree;
use crate::request::call::Call;
use crate::server::Server;
use crate::verbs::encode;
use crate::verbs::{openapi, river};

/// Serves a non-resource path.
pub(crate) async fn path(
    server: &Server,
    call: &Call,
    segments: &[String],
) -> Result<Response, Status> {
    let words: Vec<&str> = segments.iter().map(String::as_str).collect();
    let registry = server.registry();
    if matches!(words.first(), Some(&("healthz" | "livez" | "readyz"))) {
        let answer = server.health().answer(&call.path, &call.raw_query);
        return Ok(answer.unwrap_or_else(body::page_not_found));
    }
    let is_read = call.method == http::Method::GET;
    match words.as_slice() {
        ["version"] if is_read => Ok(pretty(&version())),
        ["version"] => Err(status::method_not_allowed()),
        // These ignore the method, as the reference does.
        ["metrics"] => Ok(metrics(server)),
        [] => Ok(encode::value(call, StatusCode::OK, &paths(server, &registry))),
        ["apis"] => document(server, call, &registry, false).await,
        ["apis", name] if has_group(server, &registry, name) => {
            let groups = all_groups(server, &registry);
            let found = groups.iter().find(|(group, _)| group == name);
            let versions = found.map(|(_, versions)| versions.as_slice()).unwrap_or_default();
            plain(call, &group(name, versions))
        }
        ["api"] if is_read => document(server, call, &registry, true).await,
        ["api", version] if is_read => resources(call, &registry, "", version),
        ["apis", name, version] if is_read && registry.has_group(name) => {
            resources(call, &registry, name, version)
        }
        ["api" | "apis", ..] if is_known(&registry, &words) => Err(status::method_not_allowed()),
        [".well-known" | "openid", ..] if is_read => {
            Ok(service_account::path(&server.service_accounts().issuer, &words)
                .unwrap_or_else(body::page_not_found))
        }
        ["openapi", rest @ ..] if is_read => openapi::path(server, call, rest).await,
        ["debug", "api_priority_and_fairness", page] => Ok(dump(server, call, page)),
        ["debug", "headwater", "compact"] if call.method == http::Method::POST => {
            compact(server, call).await
        }
        ["debug", "headwater", "river"] if is_read => {
            river::answer(server, call.query.is_set("watch"))
        }
        ["debug", "headwater", "backup"] if is_read => server.backup().response(),
        _ => Ok(body::page_not_found()),
    }
}

/// Compacts the history before `revision` (`headwater compact`).
async fn compact(server: &Server, call: &Call) -> Result<Response, Status> {
    let revision = Revision::parse(call.query.text("revision"))
        .ok_or_else(|| status::bad_request("revision must be a number"))?;
    let newest = server.cache().consistent().await.map_err(|error| status::from_cache(&error))?;
    if revision > newest {
        let why = format!("revision {revision} is in the future: the newest is {newest}");
        return Err(status::bad_request(&why));
    }
    server.cache().compact(revision).await.map_err(|error| status::from_cache(&error))?;
    Ok(encode::value(call, StatusCode::OK, &json!({ "compacted": revision.0 })))
}

/// A table of flow control, or 404.
fn dump(server: &Server, call: &Call, page: &str) -> Response {
    let details = !call.query.text("includeRequestDetails").is_empty();
    match server.flow().dump(page, details, &server.registry(), server.now()) {
        Some(text) => body::text(StatusCode::OK, text),
        None => body::page_not_found(),
    }
}

fn is_known(registry: &Registry, words: &[&str]) -> bool {
    match words {
        ["api"] | ["apis"] => true,
        ["api", version] => registry.has_version("", version),
        ["apis", group] => registry.has_group(group),
        ["apis", group, version] => registry.has_version(group, version),
        _ => false,
    }
}

fn plain(call: &Call, value: &Value) -> Result<Response, Status> {
    let Discovery::Plain(encoding) = Discovery::negotiate_plain(call.header(header::ACCEPT))?
    else {
        return Err(status::internal("only one document was offered"));
    };
    Ok(encode::plain(call, encoding, value))
}

async fn document(
    server: &Server,
    call: &Call,
    registry: &Registry,
    core: bool,
) -> Result<Response, Status> {
    match Discovery::negotiate(call.header(header::ACCEPT))? {
        Discovery::Plain(encoding) => {
            let plain = if core { versions() } else { groups(server, registry) };
            Ok(encode::plain(call, encoding, &plain))
        }
        kind @ Discovery::Aggregated => {
            let (work, rows) = (server.work(), registry.kinds().to_vec());
            let subject = Subject::Discovery { core };
            let build = async { aggregated(registry, core) };
            let document = server.documents().find(work, registry, subject, rows, build).await;
            let remotes = server.remotes().all();
            if core || remotes.is_empty() {
                return Ok(tagged(call, kind.content_type(), &document));
            }
            let mut value = tree(&document.bytes)?;
            remotes.iter().for_each(|remote| add_remote(&mut value, remote));
            Ok(tagged(call, kind.content_type(), &Document::new(&value)))
        }
    }
}

/// The aggregated document with an ETag; 304 if the client has it (S1.23).
fn tagged(call: &Call, content_type: &'static str, document: &Document) -> Response {
    let tag = format!("\"{}\"", document.hash);
    let known = call.header(header::IF_NONE_MATCH) == tag;
    let mut response = match known {
        true => {
            let mut response = Response::new(body::full(""));
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        }
        false => {
            let mut text = Data::from(document.bytes.clone());
            text.append("\n".into());
            body::answer(StatusCode::OK, content_type, body::full(text))
        }
    };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    body::set(&mut response, header::VARY, "Accept");
    body::set(&mut response, header::CACHE_CONTROL, "public");
    response
}

fn versions() -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{ "clientCIDR": "0.0.0.0/0", "serverAddress": "" }],
    })
}

/// Whether this server or an extension server serves the group.
fn has_group(server: &Server, registry: &Registry, name: &str) -> bool {
    registry.has_group(name) || server.remotes().all().iter().any(|remote| remote.group == name)
}

/// The groups with their versions, preferred first; those of extension servers follow.
fn all_groups(server: &Server, registry: &Registry) -> Vec<(Name, Vec<Name>)> {
    let mut groups = registry.groups().to_vec();
    for remote in server.remotes().all().iter() {
        let version = Name::from(remote.version.clone());
        match groups.iter_mut().find(|(name, _)| *name == remote.group.as_str()) {
            Some((_, versions)) if versions.contains(&version) => {}
            Some((_, versions)) => versions.push(version),
            None => groups.push((remote.group.clone().into(), vec![version])),
        }
    }
    groups
}

/// Adds a version of an extension server to the aggregated document. What it does not answer for is
/// shown as it was, and stale.
fn add_remote(document: &mut Value, remote: &RemoteVersion) {
    let freshness = if remote.is_available { "Current" } else { "Stale" };
    let version = json!({
        "version": remote.version, "resources": remote.resources, "freshness": freshness,
    });
    let Some(items) = document["items"].as_array_mut() else { return };
    let own = items.iter_mut().find(|item| item["metadata"]["name"] == remote.group.as_str());
    match own.map(|item| &mut item["versions"]) {
        Some(Value::Array(versions)) => {
            if !versions.iter().any(|known| known["version"] == remote.version.as_str()) {
                versions.push(version);
            }
        }
        _ => items.push(json!({ "metadata": { "name": remote.group }, "versions": [version] })),
    }
}

fn groups(server: &Server, registry: &Registry) -> Value {
    let groups = all_groups(server, registry);
    let names = groups.iter().filter(|(name, _)| !name.is_empty());
    let groups: Vec<Value> = names
        .map(|(name, versions)| {
            let mut group = group(name, versions);
            if let Some(object) = group.as_object_mut() {
                object.remove("kind");
                object.remove("apiVersion");
            }
            group
        })
        .collect();
    json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
}

fn group(name: &str, versions: &[Name]) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| json!({ "groupVersion": format!("{name}/{version}"), "version": version }))
        .collect();
    json!({
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": name,
        "preferredVersion": versions.first(),
        "versions": versions,
    })
}

fn resources(
    call: &Call,
    registry: &Registry,
    group: &str,
    version: &str,
) -> Result<Response, Status> {
    if !registry.has_version(group, version) {
        return match registry.has_builtin_group(group) {
            true => Err(status::no_such_resource()),
            false => Ok(body::page_not_found()),
        };
    }
    let mut entries: Vec<Value> = registry
        .kinds()
        .iter()
        .filter(|row| row.group == group && row.version == version)
        .flat_map(|row| {
            std::iter::once(entry(row)).chain(row.subresources.iter().map(|sub| below(row, sub)))
        })
        .collect();
    // The subresources of a custom kind follow it in their own order.
    let is_builtin = registry.has_builtin_group(group);
    let name = |entry: &Value| -> String {
        let name = entry["name"].as_str().unwrap_or_default();
        let parent = name.split_once('/').map_or(name, |(parent, _)| parent);
        if is_builtin { name } else { parent }.to_owned()
    };
    entries.sort_by_key(name);
    let group_version =
        if group.is_empty() { version.into() } else { format!("{group}/{version}") };
    let mut list = json!({
        "kind": "APIResourceList",
        "groupVersion": group_version,
        "resources": entries,
    });
    if !group.is_empty() {
        list["apiVersion"] = "v1".into();
    }
    plain(call, &list)
}

fn entry(row: &Served) -> Value {
    let mut entry = json!({
        "name": row.plural,
        "singularName": row.singular,
        "namespaced": row.namespaced,
        "kind": row.kind.kind,
        "verbs": row.verbs,
    });
    if !row.short_names.is_empty() {
        entry["shortNames"] = json!(row.short_names);
    }
    if !row.categories.is_empty() {
        entry["categories"] = json!(row.categories);
    }
    if !row.storage_hash.is_empty() {
        entry["storageVersionHash"] = json!(row.storage_hash);
    }
    entry
}

fn below(row: &Served, sub: &Subresource) -> Value {
    let mut entry = json!({
        "name": format!("{}/{}", row.plural, sub.name),
        "singularName": "",
        "namespaced": row.namespaced,
        "kind": row.kind.kind,
        "verbs": sub.verbs,
    });
    if let Some((group, version, kind)) = &sub.group_version_kind {
        entry["kind"] = json!(kind);
        if is_foreign(row, group, version) {
            entry["group"] = json!(group);
            entry["version"] = json!(version);
        }
    }
    entry
}

/// Whether the type of a subresource is of another group version than its parent.
fn is_foreign(row: &Served, group: &str, version: &str) -> bool {
    !version.is_empty() && (group, version) != (&*row.group, &*row.version)
}

fn aggregated(registry: &Registry, core: bool) -> Value {
    let mut by_version: HashMap<(&str, &str), Vec<&Served>> = HashMap::new();
    for row in registry.kinds() {
        by_version.entry((&row.group, &row.version)).or_default().push(row);
    }
    let items: Vec<Value> = registry
        .groups()
        .iter()
        .filter(|(name, _)| name.is_empty() == core)
        .map(|(name, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| {
                    let rows = by_version.get(&(&**name, &**version));
                    let mut rows = rows.cloned().unwrap_or_default();
                    rows.sort_by(|a, b| a.plural.cmp(&b.plural));
                    let resources: Vec<Value> = rows.into_iter().map(aggregated_row).collect();
                    json!({ "version": version, "resources": resources, "freshness": "Current" })
                })
                .collect();
            let metadata = if core { json!({}) } else { json!({ "name": name }) };
            json!({ "metadata": metadata, "versions": versions })
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    })
}

fn aggregated_row(row: &Served) -> Value {
    // Built-in kinds leave group and version empty: "the same as the parent".
    let own = match row.custom {
        true => json!({ "group": row.group, "version": row.version, "kind": row.kind.kind }),
        false => json!({ "group": "", "version": "", "kind": row.kind.kind }),
    };
    let mut entry = json!({
        "resource": row.plural,
        "responseKind": own,
        "scope": if row.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": row.singular,
        "verbs": row.verbs,
    });
    if !row.short_names.is_empty() {
        entry["shortNames"] = json!(row.short_names);
    }
    if !row.categories.is_empty() {
        entry["categories"] = json!(row.categories);
    }
    if !row.subresources.is_empty() {
        let subresources: Vec<Value> = row
            .subresources
            .iter()
            .map(|sub| {
                let kind = match &sub.group_version_kind {
                    Some((group, version, kind)) if is_foreign(row, group, version) => {
                        json!({ "group": group, "version": version, "kind": kind })
                    }
                    Some((_, _, kind)) => json!({ "group": "", "version": "", "kind": kind }),
                    None => own.clone(),
                };
                json!({ "subresource": sub.name, "responseKind": kind, "verbs": sub.verbs })
            })
            .collect();
        entry["subresources"] = json!(subresources);
    }
    entry
}

/// `GET /`: the list of paths.
fn paths(server: &Server, registry: &Registry) -> Value {
    let mut paths = vec!["/api".to_owned(), "/apis".to_owned()];
    for (group, versions) in &all_groups(server, registry) {
        if group.is_empty() {
            paths.extend(versions.iter().map(|version| format!("/api/{version}")));
        } else {
            paths.push(format!("/apis/{group}"));
            paths.extend(versions.iter().map(|version| format!("/apis/{group}/{version}")));
        }
    }
    let others = [
        "/.well-known/openid-configuration",
        "/healthz",
        "/livez",
        "/metrics",
        "/openapi/v2",
        "/openapi/v3",
        "/openid/v1/jwks",
        "/readyz",
        "/version",
    ];
    paths.extend(others.map(str::to_owned));
    paths.sort();
    json!({ "paths": paths })
}

/// The version that clients see: Kubernetes 1.36 with the version of Headwater.
fn version() -> Value {
    json!({
        "major": "1",
        "minor": "36",
        "emulationMajor": "1",
        "emulationMinor": "36",
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": "35",
        "gitVersion": concat!("v1.36.4+headwater-", env!("CARGO_PKG_VERSION")),
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": concat!("linux/", "amd64"),
    })
}

/// Prometheus text.
fn metrics(server: &Server) -> Response {
    let content_type = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";
    let text = server.metrics().registry.text();
    body::answer(StatusCode::OK, content_type, body::full(text))
}

fn pretty(value: &Value) -> Response {
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    body::json(StatusCode::OK, text)
}
