//! Operations: a verb on a kind or subresource, with its bodies, responses and media types.

use headwater_api::kind::Subresource;
use headwater_json::{Map, Value, json};

use super::parameters::{self, Parameter};
use super::style::{self, Style};
use super::types::Schemas;
use crate::kinds::registry::Served;

const PATCHES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
    "application/strategic-merge-patch+json",
];
const ANY: &[&str] = &["*/*"];

/// What the operations of a path act on.
#[derive(Clone, Copy)]
pub(super) struct OperationTarget<'a> {
    row: &'a Served,
    sub: Option<&'a Subresource>,
    /// The end of operation ids.
    suffix: &'static str,
}

/// The media types of an operation's responses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Media {
    /// Objects.
    Object,
    /// Objects, or events of them.
    Stream,
    /// Text, or a Status.
    Log,
    /// Anything.
    Any,
}

impl Media {
    fn types(self, row: &Served) -> Vec<&'static str> {
        let objects: &[&str] = match row.custom {
            true => &style::MEDIA[..2],
            false => style::MEDIA,
        };
        let extra: &[&str] = match self {
            Media::Any => return ANY.to_vec(),
            Media::Object => &[],
            Media::Log => &["text/plain"],
            Media::Stream if row.custom => &[],
            Media::Stream => &[
                "application/json;stream=watch",
                "application/vnd.kubernetes.protobuf;stream=watch",
            ],
        };
        let first = if self == Media::Log { [extra, objects] } else { [objects, extra] };
        first.concat()
    }
}

impl<'a> OperationTarget<'a> {
    pub(super) fn new(row: &'a Served) -> OperationTarget<'a> {
        OperationTarget { row, sub: None, suffix: "" }
    }

    pub(super) fn for_all_namespaces(self) -> OperationTarget<'a> {
        OperationTarget { suffix: "ForAllNamespaces", ..self }
    }

    pub(super) fn subresource(self, sub: &'a Subresource) -> OperationTarget<'a> {
        OperationTarget { sub: Some(sub), ..self }
    }

    pub(super) fn with_path(self) -> OperationTarget<'a> {
        OperationTarget { suffix: "WithPath", ..self }
    }

    pub(super) fn is_proxy(self) -> bool {
        self.sub.is_some_and(|sub| sub.name == "proxy")
    }

    /// The name of its own parameters, such as `pods/exec`.
    pub(super) fn use_of_parameters(self) -> String {
        format!("{}/{}", self.row.plural, self.sub.map_or("", |sub| &sub.name))
    }

    pub(super) fn allows(self, verb: &str) -> bool {
        let verb = if verb.starts_with("watch") { "watch" } else { verb };
        match self.sub {
            Some(sub) => sub.verbs.iter().any(|allowed| allowed == verb),
            None => self.row.allows(verb),
        }
    }

    /// Its group, version and kind.
    fn names(self) -> (&'a str, &'a str, &'a str) {
        let row = self.row;
        match self.sub.and_then(|sub| sub.group_version_kind.as_ref()) {
            Some((group, version, kind)) if !version.is_empty() => (group, version, kind),
            Some((_, _, kind)) => (&row.group, &row.version, kind),
            None => (&row.group, &row.version, &row.kind.kind),
        }
    }
}

/// A verb on a target.
pub(super) struct DescribedOperation<'a> {
    target: OperationTarget<'a>,
    verb: &'static str,
    /// The method of a connection.
    method: Option<&'static str>,
}

impl<'a> DescribedOperation<'a> {
    pub(super) fn of(target: &OperationTarget<'a>, verb: &'static str) -> DescribedOperation<'a> {
        DescribedOperation { target: *target, verb, method: None }
    }

    pub(super) fn connect(
        target: &OperationTarget<'a>,
        method: &'static str,
    ) -> DescribedOperation<'a> {
        DescribedOperation { target: *target, verb: "connect", method: Some(method) }
    }

    pub(super) fn method(&self) -> &'static str {
        self.method.unwrap_or(match self.verb {
            "create" => "post",
            "update" => "put",
            "patch" => "patch",
            "delete" | "deletecollection" => "delete",
            _ => "get",
        })
    }

    /// The parameters of the verb.
    pub(super) fn parameters(&self) -> Vec<Parameter> {
        let is_custom = self.target.row.custom;
        let verb = match self.verb {
            "list" | "watch" | "watchlist" => "list",
            "deletecollection" if is_custom => "list",
            "get" if is_custom => "get of a custom kind",
            "create" | "update" => "create",
            verb => verb,
        };
        let own = parameters::of(&self.target.use_of_parameters());
        parameters::of(verb).iter().chain(own).copied().collect()
    }

    pub(super) fn write(&self, schemas: &mut Schemas<'_>, style: Style) -> Value {
        let row = self.target.row;
        let (group, version, kind) = self.target.names();
        let mut operation = json!({
            "operationId": self.id(),
            "description": self.description(),
            "tags": [style::tag(&row.group, &row.version)],
            "x-kubernetes-action": self.action(),
            "x-kubernetes-group-version-kind": {
                "group": group, "version": version, "kind": kind,
            },
        });
        let answer = self.answer(schemas);
        let media = self.media().types(row);
        operation["responses"] = responses(self.codes(), &answer, &media, style);
        if style == Style::V2 {
            operation["schemes"] = json!(["https"]);
            operation["produces"] = json!(media);
        }
        self.write_body(&mut operation, schemas, style);
        operation
    }

    fn write_body(&self, operation: &mut Value, schemas: &mut Schemas<'_>, style: Style) {
        let is_custom = self.target.row.custom;
        let types = match self.verb {
            // kubectl reads here whether a kind supports strategic merge patch; custom kinds do not.
            "patch" if is_custom => &PATCHES[..3],
            "patch" => PATCHES,
            _ if is_custom => &style::MEDIA[..2],
            _ => ANY,
        };
        let (schema, is_required) = match self.verb {
            "create" | "update" => (self.own(schemas), true),
            "patch" => (schemas.meta("meta/v1.Patch"), true),
            "delete" => (schemas.meta("meta/v1.DeleteOptions"), false),
            "deletecollection" if !is_custom => (schemas.meta("meta/v1.DeleteOptions"), false),
            _ if style == Style::V2 => {
                operation["consumes"] = json!(types);
                return;
            }
            _ => return,
        };
        match style {
            Style::V2 => {
                operation["consumes"] = json!(types);
                let body = match self.verb {
                    "patch" => parameters::patch_body(),
                    "delete" | "deletecollection" => parameters::delete_body(),
                    _ => {
                        json!({ "name": "body", "in": "body", "required": true, "schema": schema })
                    }
                };
                operation["parameters"] = json!([body]);
            }
            Style::V3 => {
                let types = types.iter();
                let content: Map = types.map(|name| (*name, json!({ "schema": schema }))).collect();
                operation["requestBody"] = json!({ "content": content });
                if is_required {
                    operation["requestBody"]["required"] = true.into();
                }
            }
        }
    }

    fn own(&self, schemas: &mut Schemas<'_>) -> Value {
        let (group, version, kind) = self.target.names();
        let is_custom = self.target.row.custom && group == &*self.target.row.group;
        schemas.named(group, version, kind, is_custom)
    }

    fn answer(&self, schemas: &mut Schemas<'_>) -> Value {
        let row = self.target.row;
        // The reference documents a Status for namespaces too, although it returns the namespace.
        let returns_object = row.traits.delete_returns_object && row.kind.kind != "Namespace";
        match self.verb {
            "list" => schemas.list(row),
            "watch" | "watchlist" => schemas.meta("meta/v1.WatchEvent"),
            "deletecollection" => schemas.meta("meta/v1.Status"),
            "delete" if !returns_object => schemas.meta("meta/v1.Status"),
            "connect" => json!({ "type": "string" }),
            _ if self.media() == Media::Log => json!({ "type": "string" }),
            _ => self.own(schemas),
        }
    }

    fn media(&self) -> Media {
        match self.verb {
            "connect" => Media::Any,
            "list" | "watch" | "watchlist" => Media::Stream,
            _ if self.target.sub.is_some_and(|sub| sub.name == "log") => Media::Log,
            _ => Media::Object,
        }
    }

    fn codes(&self) -> &'static [(&'static str, &'static str)] {
        match self.verb {
            "create" => &[("200", "OK"), ("201", "Created"), ("202", "Accepted")],
            "patch" if self.target.row.custom => &[("200", "OK")],
            "update" | "patch" => &[("200", "OK"), ("201", "Created")],
            "delete" => &[("200", "OK"), ("202", "Accepted")],
            _ => &[("200", "OK")],
        }
    }

    fn action(&self) -> &'static str {
        match self.verb {
            "create" => "post",
            "update" => "put",
            verb => verb,
        }
    }

    /// A unique id, such as `readCoreV1NamespacedPodStatus`.
    fn id(&self) -> String {
        let OperationTarget { row, sub, suffix } = self.target;
        let (word, before) = match self.verb {
            "get" => ("read", ""),
            "update" => ("replace", ""),
            "deletecollection" => ("delete", "Collection"),
            "watchlist" => ("watch", ""),
            verb => (verb, ""),
        };
        let group_version = style::words(&row.group) + &style::capital(&row.version);
        let method = self.method.map(style::capital).unwrap_or_default();
        let is_scoped = row.namespaced && suffix != "ForAllNamespaces";
        let scope = if is_scoped { "Namespaced" } else { "" };
        let sub = style::capital(sub.map_or("", |sub| &sub.name));
        let list = if self.verb == "watchlist" { "List" } else { "" };
        let kind = &row.kind.kind;
        format!("{word}{group_version}{before}{method}{scope}{kind}{sub}{list}{suffix}")
    }

    fn description(&self) -> String {
        let kind = &self.target.row.kind.kind;
        let of = match self.target.sub {
            Some(sub) => format!("the subresource {} of a {kind}", sub.name),
            None => format!("a {kind}"),
        };
        match self.verb {
            "get" => format!("Reads {of}."),
            "list" => format!("Lists or watches objects of kind {kind}."),
            "create" => format!("Creates {of}."),
            "update" => format!("Replaces {of}."),
            "patch" => format!("Changes fields of {of}."),
            "delete" => format!("Deletes {of}."),
            "deletecollection" => format!("Deletes all selected objects of kind {kind}."),
            "connect" => format!("Connects to {of}."),
            _ => format!("Watches objects of kind {kind}; a list with `watch` replaces it."),
        }
    }
}

/// Responses with a schema, and the one to a request without a valid credential.
pub(super) fn responses(
    codes: &[(&str, &str)],
    schema: &Value,
    media: &[&str],
    style: Style,
) -> Value {
    let mut responses = Map::new();
    for (code, description) in codes {
        let mut response = json!({ "description": *description });
        match style {
            Style::V2 => response["schema"] = schema.clone(),
            Style::V3 => {
                let content: Map =
                    media.iter().map(|name| (*name, json!({ "schema": schema }))).collect();
                response["content"] = Value::Object(content);
            }
        }
        responses.insert((*code).to_owned().into(), response);
    }
    responses.insert("401".into(), json!({ "description": "Unauthorized" }));
    Value::Object(responses)
}
