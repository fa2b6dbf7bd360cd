//! Content negotiation: which representation of a resource the client accepts.
//!
//! River: request headers → **accept** → the encoder of lists, objects, events and errors.
//! Promise: the first clause that can be served wins; a clause with parameters that cannot be
//! satisfied is skipped, so that clients can list a preferred representation before a basic one.

use crate::kind::Kind;
use crate::object::ManagedFields;
use crate::query::{Query, bad_request, quote};
use crate::status::{Details, Status};

/// The format of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// `application/json`.
    #[default]
    Json,
    /// `application/yaml`.
    Yaml,
    /// `application/vnd.kubernetes.protobuf`, for built-in types and for metadata.
    Protobuf,
}

/// The part of an object that a response contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Shape {
    /// The complete object.
    #[default]
    Whole,
    /// A row of a table.
    Table {
        /// Version of the `meta.k8s.io` types.
        version: MetaVersion,
        /// What a row contains in addition to its cells.
        include: IncludeObject,
    },
    /// `PartialObjectMetadata`, or `PartialObjectMetadataList` for a list.
    Metadata {
        /// Version of the `meta.k8s.io` types.
        version: MetaVersion,
    },
}

/// A version of the `meta.k8s.io` group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MetaVersion {
    /// `v1`.
    V1,
    /// `v1beta1`.
    V1Beta1,
}

/// What a row of a table contains in addition to its cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum IncludeObject {
    /// The object's metadata.
    #[default]
    Metadata,
    /// The complete object.
    Object,
    /// Nothing.
    None,
}

/// The representation of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Representation {
    /// The format.
    pub encoding: Encoding,
    /// The part of an object.
    pub shape: Shape,
    /// Whether the Accept header requests indentation.
    pub pretty: bool,
    /// Whether objects contain their managed fields (`drop=metadata.managedFields`).
    pub managed_fields: ManagedFields,
    /// Whether a watch may send deltas (`delta=v1`).
    pub deltas: bool,
    /// Whether a watch sends its first bookmark as soon as it has caught up (`bookmark=prompt`).
    pub prompt_bookmark: bool,
}

/// The type of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// One object: get, create, update, patch, delete.
    Object,
    /// One object that has no table: a review, a Scale, a binding.
    Untabled,
    /// A list, or a deletecollection.
    List,
    /// A watch.
    Watch,
}

/// The response of a discovery endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discovery {
    /// The document of the path.
    Plain(Encoding),
    /// The aggregated document: `APIGroupDiscoveryList` of `apidiscovery.k8s.io/v2`.
    Aggregated,
}

/// The version of the format of deltas (`docs/spec/delta-watch.md`).
const DELTA_VERSION: &str = "v1";

const MEDIA_TYPES: [&str; 3] =
    ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
const STREAM_TYPES: [&str; 2] =
    ["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"];

impl Encoding {
    /// The Content-Type of a response.
    pub fn content_type(self) -> &'static str {
        match self {
            Encoding::Json => "application/json",
            Encoding::Yaml => "application/yaml",
            Encoding::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }

    /// The format of an error: that of the first clause which asks for no other type, or else JSON.
    pub fn for_errors(accept: &str) -> Encoding {
        let clauses = clauses(accept);
        let mut plain = clauses.iter().filter(|clause| clause.target().is_none());
        plain.find_map(|clause| clause.streamable().next()).unwrap_or_default()
    }
}

impl MetaVersion {
    /// The `apiVersion`.
    pub fn api_version(self) -> &'static str {
        match self {
            MetaVersion::V1 => "meta.k8s.io/v1",
            MetaVersion::V1Beta1 => "meta.k8s.io/v1beta1",
        }
    }
}

impl IncludeObject {
    /// Parses the query parameter `includeObject`.
    pub fn parse(query: &Query) -> Result<IncludeObject, Status> {
        Ok(match query.text("includeObject") {
            "" | "Metadata" => IncludeObject::Metadata,
            "Object" => IncludeObject::Object,
            "None" => IncludeObject::None,
            other => {
                let value = quote(other);
                return Err(bad_request(format!(
                    "Unable to convert to Table as requested: includeObject: Invalid value: \
                     {value}: must be 'Metadata', 'Object', 'None', or empty"
                )));
            }
        })
    }
}

impl Discovery {
    /// The Content-Type of a response.
    pub fn content_type(self) -> &'static str {
        match self {
            Discovery::Plain(encoding) => encoding.content_type(),
            Discovery::Aggregated => {
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
            }
        }
    }

    /// Negotiates for `/api` and `/apis`. The aggregated document wins at any position.
    pub fn negotiate(accept: &str) -> Result<Discovery, Status> {
        let clauses = clauses(accept);
        if clauses.iter().any(Clause::wants_aggregated) {
            return Ok(Discovery::Aggregated);
        }
        Discovery::plain(&clauses)
    }

    /// Negotiates for discovery documents that have no aggregated form.
    pub fn negotiate_plain(accept: &str) -> Result<Discovery, Status> {
        Discovery::plain(&clauses(accept))
    }

    fn plain(clauses: &[Clause<'_>]) -> Result<Discovery, Status> {
        let plain = clauses.iter().filter(|clause| clause.target().is_none());
        plain
            .flat_map(|clause| clause.encodings())
            .next()
            .map(Discovery::Plain)
            .ok_or_else(|| only_accepted(&MEDIA_TYPES))
    }
}

impl Representation {
    /// Negotiates for a resource. `accept` is empty if there is no such header.
    pub fn negotiate(
        accept: &str,
        endpoint: Endpoint,
        kind: &Kind,
        query: &Query,
    ) -> Result<Representation, Status> {
        if !kind.custom {
            require_known_type(accept, endpoint)?;
        }
        let clauses = clauses(accept);
        let (clause, encoding, target) = clauses
            .iter()
            .find_map(|clause| clause.served(kind, endpoint))
            .ok_or_else(|| only_accepted(&MEDIA_TYPES))?;
        if endpoint == Endpoint::Watch && encoding == Encoding::Yaml {
            return Err(only_accepted(&STREAM_TYPES));
        }
        let shape = match target {
            None => Shape::Whole,
            Some(target) => target.shape(endpoint, kind, query)?,
        };
        let is_table = matches!(shape, Shape::Table { .. });
        Ok(Representation {
            encoding,
            shape,
            pretty: clause.get("pretty") == Some("1"),
            managed_fields: clause.managed_fields(),
            deltas: endpoint == Endpoint::Watch
                && !is_table
                && encoding == Encoding::Json
                && clause.get("delta") == Some(DELTA_VERSION),
            prompt_bookmark: endpoint == Endpoint::Watch
                && clause.get("bookmark") == Some("prompt"),
        })
    }

    /// Whether the text of an object is the stored one.
    pub fn is_stored(self) -> bool {
        self.shape == Shape::Whole && self.managed_fields == ManagedFields::Kept
    }

    /// The Content-Type of a watch (S4.1).
    pub fn stream_type(self) -> &'static str {
        match self.encoding {
            Encoding::Protobuf => STREAM_TYPES[1],
            encoding => encoding.content_type(),
        }
    }
}

/// A type of the `meta.k8s.io` group that a client can request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Table(MetaVersion),
    Metadata(MetaVersion),
    MetadataList(MetaVersion),
}

impl Target {
    fn shape(self, endpoint: Endpoint, kind: &Kind, query: &Query) -> Result<Shape, Status> {
        match (self, endpoint) {
            (Target::Table(version), _) => {
                Ok(Shape::Table { version, include: IncludeObject::parse(query)? })
            }
            (
                Target::Metadata(version),
                Endpoint::Object | Endpoint::Untabled | Endpoint::Watch,
            )
            | (Target::MetadataList(version), Endpoint::List) => Ok(Shape::Metadata { version }),
            // Events contain no lists; Kubernetes sends complete objects then.
            (Target::MetadataList(_), Endpoint::Watch) => Ok(Shape::Whole),
            (Target::Metadata(_), Endpoint::List) => Err(not_acceptable(format!(
                "you requested PartialObjectMetadata, but the requested object is a list ({})",
                go_type(kind, &kind.list_kind)
            ))),
            (Target::MetadataList(_), Endpoint::Object | Endpoint::Untabled) => {
                Err(not_acceptable(format!(
                    "you requested PartialObjectMetadataList, but the requested object is not a list \
                 ({})",
                    go_type(kind, &kind.kind)
                )))
            }
        }
    }
}

/// Go's name of a type, which Kubernetes shows in messages.
fn go_type(kind: &Kind, name: &str) -> String {
    if kind.custom {
        let list = if name == kind.list_kind { "List" } else { "" };
        return format!("*unstructured.Unstructured{list}");
    }
    let package = match kind.group.split('.').next() {
        None | Some("") => "core",
        Some(package) => package,
    };
    format!("*{package}.{name}")
}

/// Built-in routes first check for a known media type, with another message.
fn require_known_type(accept: &str, endpoint: Endpoint) -> Result<(), Status> {
    let known = |clause: &str| {
        let name = clause.split(';').next().unwrap_or_default().trim();
        name == "*/*" || MEDIA_TYPES.contains(&name)
    };
    if accept.is_empty() || accept.split(',').any(known) {
        return Ok(());
    }
    let mut available = MEDIA_TYPES.to_vec();
    if matches!(endpoint, Endpoint::List | Endpoint::Watch) {
        available.extend(STREAM_TYPES);
    }
    let message =
        format!("406: Not Acceptable\n\nAvailable representations: {}", available.join(", "));
    Err(not_acceptable(message).with_details(Details::default()))
}

fn only_accepted(types: &[&str]) -> Status {
    not_acceptable(format!("only the following media types are accepted: {}", types.join(", ")))
}

fn not_acceptable(message: String) -> Status {
    Status::failure(406, "NotAcceptable", message)
}

/// One clause of an Accept header.
struct Clause<'a> {
    main: &'a str,
    sub: &'a str,
    quality: f32,
    parameters: Vec<(&'a str, &'a str)>,
}

/// The clauses of a header, best first. No header means `*/*`.
fn clauses(accept: &str) -> Vec<Clause<'_>> {
    let accept = if accept.is_empty() { "*/*" } else { accept };
    let mut clauses: Vec<Clause<'_>> = accept.split(',').filter_map(Clause::parse).collect();
    let rank = |clause: &Clause<'_>| (clause.main == "*", clause.sub == "*");
    clauses.sort_by(|a, b| b.quality.total_cmp(&a.quality).then_with(|| rank(a).cmp(&rank(b))));
    clauses
}

impl<'a> Clause<'a> {
    fn parse(text: &'a str) -> Option<Clause<'a>> {
        let mut parts = text.split(';');
        let name = parts.next()?.trim();
        let (main, sub) = match name {
            "*" => ("*", "*"),
            name => name.split_once('/')?,
        };
        if sub.is_empty() || sub.contains('/') {
            return None;
        }
        let mut clause =
            Clause { main: main.trim(), sub: sub.trim(), quality: 1.0, parameters: Vec::new() };
        for (key, value) in parts.filter_map(|part| part.split_once('=')) {
            match (key.trim(), value.trim()) {
                ("q", value) => clause.quality = value.parse().unwrap_or(0.0),
                pair => clause.parameters.push(pair),
            }
        }
        Some(clause)
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        let found = self.parameters.iter().rev().find(|(key, _)| *key == name);
        found.map(|(_, value)| *value).filter(|value| !value.is_empty())
    }

    /// The formats that its media type includes, best first.
    fn encodings(&self) -> impl Iterator<Item = Encoding> {
        let found: &[Encoding] = match (self.main, self.sub) {
            ("application" | "*", "*") => &[Encoding::Json, Encoding::Yaml, Encoding::Protobuf],
            ("application", "json") => &[Encoding::Json],
            ("application", "yaml") => &[Encoding::Yaml],
            ("application", "vnd.kubernetes.protobuf") => &[Encoding::Protobuf],
            _ => &[],
        };
        found.iter().copied()
    }

    /// The type that it requests: group, version, kind.
    fn target(&self) -> Option<(&'a str, &'a str, &'a str)> {
        let part = |name| self.get(name).unwrap_or_default();
        let any = ["as", "g", "v"].iter().any(|name| self.get(name).is_some());
        any.then(|| (part("g"), part("v"), part("as")))
    }

    /// Unknown fields to drop are ignored, as in Kubernetes.
    fn managed_fields(&self) -> ManagedFields {
        let mut dropped = self.get("drop").unwrap_or_default().split('+');
        match dropped.any(|field| field == "metadata.managedFields") {
            true => ManagedFields::Dropped,
            false => ManagedFields::Kept,
        }
    }

    fn wants_aggregated(&self) -> bool {
        self.encodings().next() == Some(Encoding::Json)
            && self.target() == Some(("apidiscovery.k8s.io", "v2", "APIGroupDiscoveryList"))
    }

    /// The formats that can be sent as the stream that it asks for, if it asks for one.
    fn streamable(&self) -> impl Iterator<Item = Encoding> {
        let stream = self.get("stream");
        self.encodings().filter(move |encoding| match stream {
            None => true,
            Some(stream) => stream == "watch" && *encoding != Encoding::Yaml,
        })
    }

    /// How this clause would serve a resource; none if it cannot. Custom objects have no messages, and
    /// tables have none either.
    fn served(
        &self,
        kind: &Kind,
        endpoint: Endpoint,
    ) -> Option<(&Clause<'a>, Encoding, Option<Target>)> {
        let target = match self.target() {
            None => None,
            Some(("meta.k8s.io", version, kind)) => Some(meta_type(version, kind)?),
            Some(_) => return None,
        };
        if self.get("sv").is_some_and(|version| version != "v1") {
            return None;
        }
        if matches!(target, Some(Target::Table(_))) && endpoint == Endpoint::Untabled {
            return None;
        }
        let has_message = match target {
            None => !kind.custom,
            Some(Target::Table(_)) => false,
            Some(Target::Metadata(_) | Target::MetadataList(_)) => true,
        };
        let mut encodings = self.streamable();
        let encoding = encodings.find(|encoding| has_message || *encoding != Encoding::Protobuf)?;
        Some((self, encoding, target))
    }
}

fn meta_type(version: &str, kind: &str) -> Option<Target> {
    let version = match version {
        "v1" => MetaVersion::V1,
        "v1beta1" => MetaVersion::V1Beta1,
        _ => return None,
    };
    Some(match kind {
        "Table" => Target::Table(version),
        "PartialObjectMetadata" => Target::Metadata(version),
        "PartialObjectMetadataList" => Target::MetadataList(version),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";
    const PARTIAL: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    const PARTIAL_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
    const V1: MetaVersion = MetaVersion::V1;

    fn config_maps() -> Kind {
        Kind {
            version: "v1".into(),
            kind: "ConfigMap".into(),
            list_kind: "ConfigMapList".into(),
            ..Kind::default()
        }
    }

    fn negotiate(accept: &str, endpoint: Endpoint) -> Result<Representation, Status> {
        Representation::negotiate(accept, endpoint, &config_maps(), &Query::default())
    }

    #[track_caller]
    fn check(accept: &str, endpoint: Endpoint, encoding: Encoding, shape: Shape) {
        let found = negotiate(accept, endpoint).unwrap();
        assert_eq!((found.encoding, found.shape), (encoding, shape), "{accept}");
    }

    #[test]
    fn the_first_clause_that_can_be_served_wins() {
        use Encoding::{Json, Protobuf, Yaml};
        use Endpoint::{List, Object, Watch};
        let table = Shape::Table { version: V1, include: IncludeObject::Metadata };
        let metadata = Shape::Metadata { version: V1 };
        check("", Object, Json, Shape::Whole);
        check("*/*", List, Json, Shape::Whole);
        check("application/yaml", Object, Yaml, Shape::Whole);
        check("application/yaml;q=0.5, application/json", Object, Json, Shape::Whole);
        check("*/*, application/yaml", Object, Yaml, Shape::Whole);
        check("application/vnd.kubernetes.protobuf,application/json", List, Protobuf, Shape::Whole);
        check("application/vnd.kubernetes.protobuf;stream=watch", Watch, Protobuf, Shape::Whole);
        check(&format!("{PROTOBUF};as=Table;g=meta.k8s.io;v=v1,{TABLE}"), List, Json, table);
        check(&format!("{TABLE},application/json"), Object, Json, table);
        check(TABLE, Watch, Json, table);
        check("application/yaml;as=Table;g=meta.k8s.io;v=v1", List, Yaml, table);
        check(
            "application/json;as=Nope;g=meta.k8s.io;v=v1,application/json",
            Object,
            Json,
            Shape::Whole,
        );
        check(
            "application/json;as=Table;g=meta.k8s.io;v=v9,application/json",
            Object,
            Json,
            Shape::Whole,
        );
        check(
            "application/json;as=Table;v=v1beta1;g=meta.k8s.io",
            List,
            Json,
            Shape::Table { version: MetaVersion::V1Beta1, include: IncludeObject::Metadata },
        );
        check(PARTIAL, Object, Json, metadata);
        check(PARTIAL, Watch, Json, metadata);
        check(PARTIAL_LIST, List, Json, metadata);
        check(
            &format!("{PROTOBUF};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{PARTIAL_LIST}"),
            List,
            Protobuf,
            metadata,
        );
        check("application/json;stream=watch", Watch, Json, Shape::Whole);
        check("application/json;stream=nope, application/json", Watch, Json, Shape::Whole);
        assert!(negotiate("application/json;pretty=1", Object).unwrap().pretty);
    }

    /// S1.36, S4.60
    #[test]
    fn parameters_drop_managed_fields_and_ask_for_deltas() {
        let found = |accept: &str, endpoint| {
            let found = negotiate(accept, endpoint).unwrap();
            (found.managed_fields == ManagedFields::Dropped, found.deltas)
        };
        use Endpoint::{List, Object, Watch};
        let drop = "application/json;drop=metadata.managedFields";
        for endpoint in [Object, List, Watch] {
            assert_eq!(found(drop, endpoint), (true, false));
            assert_eq!(found(&format!("{drop}+spec, application/json"), endpoint), (true, false));
            assert_eq!(found("application/json;drop=spec", endpoint), (false, false));
        }
        assert_eq!(found("application/json; delta=v1", Watch), (false, true));
        assert_eq!(found("application/json;delta=v1", List), (false, false));
        assert_eq!(found("application/json;delta=v2", Watch), (false, false));
        assert_eq!(found("application/json,application/json;delta=v1", Watch), (false, false));
        assert_eq!(found(&format!("{drop};delta=v1,application/json"), Watch), (true, true));
        assert_eq!(found(&format!("{PARTIAL};delta=v1"), Watch), (false, true));
        assert_eq!(found(&format!("{TABLE};delta=v1"), Watch), (false, false));
    }

    #[track_caller]
    fn check_error(accept: &str, endpoint: Endpoint, message: &str) -> Status {
        let status = negotiate(accept, endpoint).unwrap_err();
        assert_eq!((status.code, status.reason.as_str()), (406, "NotAcceptable"));
        assert_eq!(status.message, message);
        status
    }

    #[test]
    fn an_unacceptable_header_has_the_message_of_kubernetes() {
        let only = "only the following media types are accepted: application/json, \
                    application/yaml, application/vnd.kubernetes.protobuf";
        let none = "406: Not Acceptable\n\nAvailable representations: application/json, \
                    application/yaml, application/vnd.kubernetes.protobuf";
        let status = check_error("text/html", Endpoint::Object, none);
        assert!(status.details.is_some());
        check_error("application/*", Endpoint::Object, none);
        let status =
            check_error("application/json;as=Nope;g=meta.k8s.io;v=v1", Endpoint::Object, only);
        assert!(status.details.is_none());
        check_error(&format!("{PROTOBUF};as=Table;g=meta.k8s.io;v=v1"), Endpoint::List, only);
        check_error(
            "application/yaml",
            Endpoint::Watch,
            "only the following media types are accepted: application/json;stream=watch, \
             application/vnd.kubernetes.protobuf;stream=watch",
        );
        check_error(
            PARTIAL,
            Endpoint::List,
            "you requested PartialObjectMetadata, but the requested object is a list \
             (*core.ConfigMapList)",
        );
        assert_eq!(negotiate(&"text/x,".repeat(2_000), Endpoint::List).unwrap_err().code, 406);
    }

    #[test]
    fn custom_kinds_have_only_one_message() {
        let kind = Kind { custom: true, ..config_maps() };
        let status =
            Representation::negotiate("text/html", Endpoint::Object, &kind, &Query::default());
        assert!(status.unwrap_err().message.starts_with("only the following"));
    }

    #[test]
    fn what_has_no_table_is_not_sent_as_one() {
        assert_eq!(negotiate(TABLE, Endpoint::Untabled).unwrap_err().code, 406);
        check(&format!("{TABLE},*/*"), Endpoint::Untabled, Encoding::Json, Shape::Whole);
    }

    #[test]
    fn custom_objects_have_no_messages_but_their_metadata_has() {
        let kind = Kind { custom: true, ..config_maps() };
        let found = |accept: &str| {
            Representation::negotiate(accept, Endpoint::Object, &kind, &Query::default())
                .map(|found| found.encoding)
        };
        assert_eq!(found(PROTOBUF).unwrap_err().code, 406);
        assert_eq!(found(&format!("{PROTOBUF},application/json")).unwrap(), Encoding::Json);
        assert_eq!(found(&format!("{PROTOBUF},*/*")).unwrap(), Encoding::Json);
        let metadata = format!("{PROTOBUF};as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
        assert_eq!(found(&metadata).unwrap(), Encoding::Protobuf);
    }

    #[test]
    fn the_query_decides_what_rows_include() {
        let include = |raw: &str| {
            let query = Query::parse(raw).unwrap();
            Representation::negotiate(TABLE, Endpoint::List, &config_maps(), &query)
                .map(|found| found.shape)
        };
        let table = |include| Shape::Table { version: V1, include };
        assert_eq!(include("includeObject=Object").unwrap(), table(IncludeObject::Object));
        assert_eq!(include("includeObject=None").unwrap(), table(IncludeObject::None));
        let status = include("includeObject=Nope").unwrap_err();
        assert_eq!(status.code, 400);
        assert_eq!(
            status.message,
            "Unable to convert to Table as requested: includeObject: Invalid value: \"Nope\": \
             must be 'Metadata', 'Object', 'None', or empty"
        );
    }

    #[test]
    fn discovery_is_aggregated_for_clients_that_accept_it() {
        let v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let beta = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
        let plain = Discovery::Plain(Encoding::Json);
        for (accept, expected) in [
            ("", plain),
            ("*/*", plain),
            ("application/yaml", Discovery::Plain(Encoding::Yaml)),
            (v2, Discovery::Aggregated),
            (&format!("{v2};profile=nopeer"), Discovery::Aggregated),
            (&format!("{v2},{beta},application/json"), Discovery::Aggregated),
            (&format!("application/json,{v2}"), Discovery::Aggregated),
            (&format!("{beta},application/json"), plain),
        ] {
            assert_eq!(Discovery::negotiate(accept).unwrap(), expected, "{accept}");
        }
        assert_eq!(Discovery::negotiate(beta).unwrap_err().code, 406);
        assert_eq!(Discovery::Aggregated.content_type(), v2);
        assert_eq!(Discovery::negotiate_plain(&format!("{v2},application/json")).unwrap(), plain);
    }

    #[test]
    fn errors_have_a_format_that_the_client_accepts() {
        assert_eq!(Encoding::for_errors("application/yaml"), Encoding::Yaml);
        assert_eq!(Encoding::for_errors(&format!("{PROTOBUF};stream=watch")), Encoding::Protobuf);
        assert_eq!(Encoding::for_errors(&format!("{PARTIAL},{PROTOBUF}")), Encoding::Protobuf);
        assert_eq!(Encoding::for_errors("text/html"), Encoding::Json);
        assert_eq!(Encoding::for_errors(""), Encoding::Json);
    }
}
