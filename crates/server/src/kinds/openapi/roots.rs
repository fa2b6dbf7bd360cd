//! Paths without a kind: discovery, the version of the server, and the keys of service accounts.

use headwater_json::{Map, Value, json};

use super::operation::responses;
use super::style::{MEDIA, Style, capital, lower, of_version, tag, words};
use super::types::Schemas;
use crate::kinds::registry::{Registry, Served};

/// A path with one read.
struct RootPath {
    path: String,
    operation: String,
    tag: String,
    answer: Answer,
}

#[derive(Clone, Copy)]
enum Answer {
    /// A type of discovery.
    Discovery(&'static str),
    /// The version of the server.
    Version,
    /// Text of a media type.
    Text(&'static str),
}

impl RootPath {
    fn new(path: &str, operation: &str, tag: &str, answer: Answer) -> RootPath {
        let [path, operation, tag] = [path, operation, tag].map(str::to_owned);
        RootPath { path, operation, tag, answer }
    }

    fn group(group: &str) -> RootPath {
        let words = words(group);
        RootPath {
            path: format!("/apis/{group}/"),
            operation: format!("get{words}APIGroup"),
            tag: lower(&words),
            answer: Answer::Discovery("meta/v1.APIGroup"),
        }
    }

    fn version(group: &str, version: &str) -> RootPath {
        RootPath {
            path: format!("{}/", of_version(group, version)),
            operation: format!("get{}{}APIResources", words(group), capital(version)),
            tag: tag(group, version),
            answer: Answer::Discovery("meta/v1.APIResourceList"),
        }
    }

    fn item(&self, schemas: &mut Schemas<'_>, style: Style) -> Value {
        let (schema, media): (Value, &[&str]) = match &self.answer {
            Answer::Discovery(name) => (schemas.meta(name), MEDIA),
            Answer::Version => (schemas.version_info(), &MEDIA[..1]),
            Answer::Text(media) => (json!({ "type": "string" }), std::slice::from_ref(media)),
        };
        let mut operation = json!({
            "operationId": self.operation,
            "description": "Reads what the server serves.",
            "tags": [self.tag],
            "responses": responses(&[("200", "OK")], &schema, media, style),
        });
        if style == Style::V2 {
            operation["schemes"] = json!(["https"]);
            operation["produces"] = json!(media);
            if !matches!(self.answer, Answer::Text(_)) {
                operation["consumes"] = json!(media);
            }
        }
        json!({ "get": operation })
    }
}

/// The paths that no group version contains.
fn fixed() -> [RootPath; 5] {
    let discovery = Answer::Discovery;
    [
        RootPath::new("/api/", "getCoreAPIVersions", "core", discovery("meta/v1.APIVersions")),
        RootPath::new("/apis/", "getAPIVersions", "apis", discovery("meta/v1.APIGroupList")),
        RootPath::new("/version/", "getCodeVersion", "version", Answer::Version),
        RootPath::new(
            "/.well-known/openid-configuration/",
            "getServiceAccountIssuerOpenIDConfiguration",
            "WellKnown",
            Answer::Text("application/json"),
        ),
        RootPath::new(
            "/openid/v1/jwks/",
            "getServiceAccountIssuerOpenIDKeyset",
            "openid",
            Answer::Text("application/jwk-set+json"),
        ),
    ]
}

/// The groups with a path of their own.
fn groups(registry: &Registry) -> impl Iterator<Item = RootPath> {
    let groups = registry.groups().iter().filter(|(group, _)| !group.is_empty());
    groups.map(|(group, _)| RootPath::group(group))
}

/// The names of the documents of version 3 without kinds, such as `apis/apps`.
pub(crate) fn names(registry: &Registry) -> Vec<String> {
    let all = fixed().into_iter().chain(groups(registry));
    all.map(|root| root.path.trim_matches('/').to_owned()).collect()
}

/// The paths of version 2 that belong to no group version.
pub(super) fn all(registry: &Registry, schemas: &mut Schemas<'_>) -> Map {
    let all = fixed().into_iter().chain(groups(registry));
    all.map(|root| (root.path.clone(), root.item(schemas, Style::V2))).collect()
}

/// One of those documents.
pub(super) fn one(registry: &Registry, name: &str, schemas: &mut Schemas<'_>) -> Option<Map> {
    let root = fixed()
        .into_iter()
        .chain(groups(registry))
        .find(|root| root.path.trim_matches('/') == name)?;
    let item = root.item(schemas, Style::V3);
    Some(std::iter::once((root.path, item)).collect())
}

/// The paths that list the resources of group versions.
pub(super) fn of_versions(rows: &[&Served], schemas: &mut Schemas<'_>, style: Style) -> Map {
    let mut paths = Map::new();
    for row in rows {
        let path = format!("{}/", of_version(&row.group, &row.version));
        if !paths.contains_key(path.as_str()) {
            let root = RootPath::version(&row.group, &row.version);
            paths.insert(path.into(), root.item(schemas, style));
        }
    }
    paths
}
