//! What a relay holds: the resources that were asked for, as the upstream's discovery describes them.
//!
//! River: flags, discovery, definitions → **catalog** → kinds that are followed.
//! Promise: a group that cannot be discovered keeps what it had; a kind that is gone is dropped.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use headwater_api::Kind;
use headwater_api::kind::{self, Field, Name};
use headwater_api::table::PrinterColumn;
use headwater_client::raw::Selection;
use headwater_json::{Value, json};
use headwater_server::HeldPart;
use headwater_server::registry::Served;
use http::StatusCode;

use crate::connection::Connection;

/// The group of what a server of ours shows of itself: it is the relay's own.
const OWN_GROUP: &str = "headwater.dev";

/// Which resources a relay holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeldResources {
    /// All that can be listed and watched, each in its preferred version.
    All,
    /// These.
    Named(Vec<NamedResource>),
}

/// A resource by its name, and the part of it that is held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedResource {
    group: String,
    /// The preferred version if it is empty.
    version: String,
    plural: String,
    labels: String,
    fields: String,
}

/// The text does not name a resource.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a resource; write for example pods, deployments.apps, deployments.v1.apps or \
     pods?labelSelector=app=web&fieldSelector=spec.nodeName=n1"
)]
pub struct InvalidResource(String);

impl FromStr for NamedResource {
    type Err = InvalidResource;

    fn from_str(text: &str) -> Result<NamedResource, InvalidResource> {
        let invalid = || InvalidResource(text.to_owned());
        let (name, selectors) = text.split_once('?').unwrap_or((text, ""));
        let (plural, rest) = name.split_once('.').unwrap_or((name, ""));
        let (version, group) = match rest.split_once('.') {
            Some((version, group)) if is_version(version) => (version, group),
            _ => ("", rest),
        };
        let is_name = |text: &str| {
            text.bytes().all(|byte| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte)
            })
        };
        if plural.is_empty() || !is_name(name) {
            return Err(invalid());
        }
        let mut named = NamedResource {
            group: group.to_owned(),
            version: version.to_owned(),
            plural: plural.to_owned(),
            ..NamedResource::default()
        };
        for pair in selectors.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=').ok_or_else(invalid)? {
                ("labelSelector", labels) => labels.clone_into(&mut named.labels),
                ("fieldSelector", fields) => fields.clone_into(&mut named.fields),
                _ => return Err(invalid()),
            }
        }
        Ok(named)
    }
}

/// `v1`, `v2beta1`.
fn is_version(text: &str) -> bool {
    text.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// A resource to follow.
#[derive(Clone, Debug)]
pub(crate) struct CatalogEntry {
    pub(crate) kind: Arc<Served>,
    pub(crate) selection: Selection,
    pub(crate) part: HeldPart,
    /// From which it was made: equal descriptions are equal kinds.
    pub(crate) description: Value,
}

/// What discovery found, by key prefix; it can be written down and read again.
pub(crate) type Descriptions = BTreeMap<String, Value>;

/// Why the catalog cannot be read.
#[derive(Debug)]
pub(crate) enum DiscoveryError {
    /// The upstream does not answer: what was known stays.
    Unavailable(String),
    /// The upstream answers that it has no such resource.
    Missing(String),
}

use DiscoveryError::{Missing, Unavailable};

/// Asks the upstream for the resources to hold. `known` is what an earlier call found.
pub(crate) async fn discover(
    connection: &Connection,
    held: &HeldResources,
    known: &Descriptions,
) -> Result<Descriptions, DiscoveryError> {
    let mut found = Descriptions::new();
    match held {
        HeldResources::Named(names) => {
            for named in names {
                let (group, version) = (&named.group, version(connection, named).await?);
                let list = resources(connection, group, &version).await?;
                let resource =
                    list.iter().find(|resource| resource["name"] == named.plural.as_str());
                let resource = resource.filter(|resource| can_be_followed(resource));
                let resource = resource.ok_or_else(|| {
                    let group = if group.is_empty() { "the core group" } else { group };
                    Missing(format!(
                        "the upstream has no {} in {group} {version} that can be listed and watched",
                        named.plural
                    ))
                })?;
                add(connection, group, &version, resource, Some(named), &mut found).await?;
            }
        }
        HeldResources::All => {
            let mut versions = vec![(String::new(), "v1".to_owned())];
            let (code, groups) = get(connection, "/apis").await?;
            if code != StatusCode::OK {
                return Err(Unavailable(format!("the upstream answered {code} to GET /apis")));
            }
            for group in groups["groups"].as_array().into_iter().flatten() {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let (name, version) =
                    (text(&group["name"]), text(&group["preferredVersion"]["version"]));
                if name != OWN_GROUP && !version.is_empty() {
                    versions.push((name, version));
                }
            }
            for (group, version) in versions {
                match resources(connection, &group, &version).await {
                    Ok(list) => {
                        for resource in list.iter().filter(|resource| can_be_followed(resource)) {
                            add(connection, &group, &version, resource, None, &mut found).await?;
                        }
                    }
                    // One aggregated server that is down takes nothing else with it.
                    Err(_) => {
                        let same = known.iter().filter(|(_, one)| one["group"] == group.as_str());
                        found.extend(same.map(|(prefix, one)| (prefix.clone(), one.clone())));
                    }
                }
            }
        }
    }
    Ok(found)
}

async fn get(connection: &Connection, path: &str) -> Result<(StatusCode, Value), DiscoveryError> {
    connection.get(path, "discovery").await.map_err(Unavailable)
}

/// The version in which a named resource is held.
async fn version(connection: &Connection, named: &NamedResource) -> Result<String, DiscoveryError> {
    if !named.version.is_empty() || named.group.is_empty() {
        let version = if named.version.is_empty() { "v1" } else { &named.version };
        return Ok(version.to_owned());
    }
    let path = format!("/apis/{}", named.group);
    let (code, group) = get(connection, &path).await?;
    match (code, group["preferredVersion"]["version"].as_str()) {
        (StatusCode::OK, Some(version)) => Ok(version.to_owned()),
        (StatusCode::NOT_FOUND, _) => {
            Err(Missing(format!("the upstream has no API group {:?}", named.group)))
        }
        _ => Err(Unavailable(format!("the upstream answered {code} to GET {path}"))),
    }
}

async fn resources(
    connection: &Connection,
    group: &str,
    version: &str,
) -> Result<Vec<Value>, DiscoveryError> {
    let path = match group {
        "" => format!("/api/{version}"),
        group => format!("/apis/{group}/{version}"),
    };
    let (code, list) = get(connection, &path).await?;
    match code {
        StatusCode::OK => Ok(list["resources"].as_array().cloned().unwrap_or_default()),
        StatusCode::NOT_FOUND => Ok(Vec::new()),
        code => Err(Unavailable(format!("the upstream answered {code} to GET {path}"))),
    }
}

fn can_be_followed(resource: &Value) -> bool {
    let has = |verb: &str| {
        resource["verbs"].as_array().into_iter().flatten().any(|found| found == &Value::from(verb))
    };
    has("list") && has("watch") && !resource["name"].as_str().unwrap_or("/").contains('/')
}

/// Adds the description of a resource, with the columns and fields of its definition.
async fn add(
    connection: &Connection,
    group: &str,
    version: &str,
    resource: &Value,
    named: Option<&NamedResource>,
    found: &mut Descriptions,
) -> Result<(), DiscoveryError> {
    let plural = resource["name"].as_str().unwrap_or_default();
    let mut description = json!({ "group": group, "version": version });
    for member in ["name", "kind", "singularName", "namespaced", "shortNames", "categories"] {
        description[member] = resource[member].clone();
    }
    if builtin(group, version, plural).is_none() && !group.is_empty() {
        let path =
            format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.{group}");
        let (code, definition) = get(connection, &path).await?;
        let versions = definition["spec"]["versions"].as_array().into_iter().flatten();
        let mut versions = versions.filter(|found| found["name"] == version);
        if let Some(found) = versions.next().filter(|_| code == StatusCode::OK) {
            for member in ["additionalPrinterColumns", "selectableFields"] {
                description[member] = found[member].clone();
            }
        }
    }
    if let Some(named) = named {
        description["labels"] = named.labels.as_str().into();
        description["fields"] = named.fields.as_str().into();
    }
    found.insert(headwater_store::key::collection(group, plural), description);
    Ok(())
}

fn builtin(group: &str, version: &str, plural: &str) -> Option<Kind> {
    let mut kinds = kind::builtin().into_iter();
    kinds.find(|kind| kind.group == group && kind.version == version && kind.plural == plural)
}

/// The entry of a description.
pub(crate) fn entry(description: &Value) -> Result<CatalogEntry, String> {
    let text = |member: &str| description[member].as_str().unwrap_or_default().to_owned();
    let list = |member: &str| -> Vec<Value> {
        description[member].as_array().cloned().unwrap_or_default()
    };
    let (group, version, plural) = (text("group"), text("version"), text("name"));
    let kind = match builtin(&group, &version, &plural) {
        Some(kind) => Kind { stored_as: None, ..kind },
        None => {
            let names = |member: &str| -> Vec<Name> {
                let texts = list(member).into_iter();
                texts.filter_map(|text| Some(Name::Owned(text.as_str()?.to_owned()))).collect()
            };
            let path = |field: Value| field["jsonPath"].as_str().map(Field::custom);
            Kind {
                group: group.into(),
                version: version.into(),
                list_kind: format!("{}List", text("kind")).into(),
                kind: text("kind").into(),
                plural: plural.into(),
                singular: text("singularName").into(),
                namespaced: description["namespaced"] == true,
                short_names: names("shortNames"),
                categories: names("categories"),
                verbs: ["get", "list", "watch"].map(Name::Borrowed).into(),
                fields: list("selectableFields").into_iter().filter_map(path).collect(),
                custom: true,
                ..Kind::default()
            }
        }
    };
    let columns: Vec<PrinterColumn> = list("additionalPrinterColumns").iter().map(column).collect();
    let selection =
        Selection { labels: text("labels"), fields: text("fields"), ..Selection::default() };
    let part = HeldPart::new(&selection.labels, &selection.fields, &kind)
        .map_err(|status| status.to_string())?;
    let kind = Arc::new(Served::plain(kind, &columns));
    Ok(CatalogEntry { kind, selection, part, description: description.clone() })
}

fn column(column: &Value) -> PrinterColumn {
    let text = |member: &str| column[member].as_str().unwrap_or_default().to_owned();
    PrinterColumn {
        name: text("name"),
        kind: text("type"),
        format: text("format"),
        description: text("description"),
        priority: column["priority"]
            .as_i64()
            .and_then(|n| i32::try_from(n).ok())
            .unwrap_or_default(),
        json_path: text("jsonPath"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<[&str; 5]>) {
        let expected = expected.map(|[plural, version, group, labels, fields]| NamedResource {
            group: group.to_owned(),
            version: version.to_owned(),
            plural: plural.to_owned(),
            labels: labels.to_owned(),
            fields: fields.to_owned(),
        });
        assert_eq!(text.parse::<NamedResource>().ok(), expected, "{text}");
    }

    #[test]
    fn a_resource_is_named_as_for_kubectl_with_selectors_as_in_a_request() {
        check("pods", Some(["pods", "", "", "", ""]));
        check("deployments.apps", Some(["deployments", "", "apps", "", ""]));
        check("deployments.v1.apps", Some(["deployments", "v1", "apps", "", ""]));
        check("leases.coordination.k8s.io", Some(["leases", "", "coordination.k8s.io", "", ""]));
        check(
            "pods?labelSelector=app in (a,b),!x&fieldSelector=spec.nodeName=n",
            Some(["pods", "", "", "app in (a,b),!x", "spec.nodeName=n"]),
        );
        for bad in ["", "?labelSelector=a", "Pods", "pods/x", "pods?limit=3", "pods?labelSelector"]
        {
            check(bad, None);
        }
    }
}
