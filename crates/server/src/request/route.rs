//! Routes: the verb and the target of a request, parsed once.
//!
//! River: HTTP → **route** → authorization, handler, storage key. All of them use this value, so no
//! second parser can disagree with it (R49).

use std::sync::Arc;

use headwater_api::query::Query;
use headwater_api::selector::FieldSelector;
use headwater_api::{Kind, Status};
use http::Method;

use crate::answer::status;
use crate::kinds::registry::{Registry, Served};
use crate::object::object_key;

/// The verb and the target of a request.
#[derive(Clone, Debug)]
pub struct Route {
    /// The target.
    pub target: Target,
    /// The verb.
    pub verb: Verb,
    /// The decoded path, for requests for non-resource paths.
    pub path: String,
    /// The name that the field selector of a list or watch requires; empty if none.
    pub selected_name: String,
}

/// The verb of a request, read by authorization, flow control, metrics and dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Read one object or a non-resource path.
    Get,
    /// Read a collection.
    List,
    /// Follow the changes of a collection or an object.
    Watch,
    /// Create an object, or write a subresource that is created.
    Create,
    /// Replace an object.
    Update,
    /// Change an object in part.
    Patch,
    /// Delete an object.
    Delete,
    /// Delete every object of a collection.
    DeleteCollection,
    /// HEAD on a non-resource path.
    Head,
    /// POST on a non-resource path.
    Post,
    /// PUT on a non-resource path.
    Put,
    /// OPTIONS on a non-resource path.
    Options,
    /// An unsupported method.
    Unknown,
}

impl Verb {
    /// The verb of a method on objects of a kind.
    fn of_resource(resource: &ResourcePath, method: &Method, query: &Query) -> Verb {
        match (method.as_str(), resource.name.as_str(), resource.subresource.as_str()) {
            // Whatever the method: a legacy watch path is for watches only.
            _ if resource.legacy_watch => Verb::Watch,
            ("GET", _, "") if query.is_set("watch") => Verb::Watch,
            ("GET" | "HEAD", "", _) => Verb::List,
            ("DELETE", "", _) => Verb::DeleteCollection,
            _ => Verb::of_method(method),
        }
    }

    /// The verb of a method on a resource that is not served.
    fn of_missing(method: &Method, name: &str, legacy_watch: bool, query: &Query) -> Verb {
        match (method.as_str(), name) {
            _ if legacy_watch => Verb::Watch,
            ("GET" | "HEAD", "") if query.is_set("watch") => Verb::Watch,
            ("GET" | "HEAD", "") => Verb::List,
            ("DELETE", "") => Verb::DeleteCollection,
            _ => Verb::of_method(method),
        }
    }

    fn of_method(method: &Method) -> Verb {
        match method.as_str() {
            "POST" => Verb::Create,
            "PUT" => Verb::Update,
            "PATCH" => Verb::Patch,
            "DELETE" => Verb::Delete,
            "GET" | "HEAD" => Verb::Get,
            _ => Verb::Unknown,
        }
    }

    /// The verb of a method on a non-resource path.
    fn of_path(method: &Method) -> Verb {
        match method.as_str() {
            "GET" => Verb::Get,
            "HEAD" => Verb::Head,
            "POST" => Verb::Post,
            "PUT" => Verb::Put,
            "PATCH" => Verb::Patch,
            "DELETE" => Verb::Delete,
            "OPTIONS" => Verb::Options,
            _ => Verb::Unknown,
        }
    }

    /// The word for it in rules, discovery and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Watch => "watch",
            Verb::Create => "create",
            Verb::Update => "update",
            Verb::Patch => "patch",
            Verb::Delete => "delete",
            Verb::DeleteCollection => "deletecollection",
            Verb::Head => "head",
            Verb::Post => "post",
            Verb::Put => "put",
            Verb::Options => "options",
            Verb::Unknown => "",
        }
    }

    /// The value of the `verb` label of metrics: the method, except where one method means several
    /// things.
    pub fn label(self) -> &'static str {
        match self {
            Verb::Get | Verb::Head => "GET",
            Verb::List => "LIST",
            Verb::Watch => "WATCH",
            Verb::Create | Verb::Post => "POST",
            Verb::Update | Verb::Put => "PUT",
            Verb::Patch => "PATCH",
            Verb::Delete => "DELETE",
            Verb::DeleteCollection => "DELETECOLLECTION",
            Verb::Options | Verb::Unknown => "OTHER",
        }
    }

    /// Whether it is read-only.
    pub fn is_read(self) -> bool {
        matches!(self, Verb::Get | Verb::List | Verb::Watch | Verb::Head)
    }

    /// Whether a method means this verb on objects of a kind: HEAD reads paths only, and not every
    /// verb exists on every part of a resource (S1.6).
    pub(crate) fn is_served(self, resource: &ResourcePath, method: &Method) -> bool {
        let is_object = !resource.name.is_empty();
        let is_subresource = !resource.subresource.is_empty();
        match self {
            Verb::Get | Verb::List | Verb::Watch => method == Method::GET,
            Verb::Create => is_object == is_subresource,
            Verb::Update | Verb::Patch => is_object,
            Verb::Delete | Verb::DeleteCollection => !is_subresource,
            Verb::Head | Verb::Post | Verb::Put | Verb::Options | Verb::Unknown => false,
        }
    }
}

/// The target of a request.
#[derive(Clone, Debug)]
pub enum Target {
    /// A non-resource path: health, version, discovery, metrics.
    Path(Vec<String>),
    /// Objects of a kind.
    Resource(ResourcePath),
    /// A path below a group without such a resource. A known group responds with a Status, an
    /// unknown one with plain text (S1.5).
    Missing {
        /// A Status; `None` is plain text.
        status: Option<Status>,
        /// For authorization and audit, as are the others.
        group: String,
        /// The version.
        version: String,
        /// The resource.
        resource: String,
        /// The subresource.
        subresource: String,
        /// The namespace.
        namespace: String,
        /// The name.
        name: String,
        /// Whether the path is a `/watch/` path.
        legacy_watch: bool,
    },
    /// A path that cannot be parsed: it has this Status, or the plain text 404.
    Invalid(Option<Status>),
}

/// Objects of a kind.
#[derive(Clone, Debug)]
pub struct ResourcePath {
    /// The kind.
    pub kind: Arc<Served>,
    /// The namespace; empty for cluster-scoped kinds and for all namespaces.
    pub namespace: String,
    /// The name; empty for the collection.
    pub name: String,
    /// The subresource; empty for the object itself.
    pub subresource: String,
    /// Whether the path is a `/watch/` path.
    pub legacy_watch: bool,
}

impl ResourcePath {
    /// `namespace/name` or `name`: the key within the collection.
    pub fn key(&self) -> String {
        object_key(&self.namespace, &self.name)
    }
}

/// Reads method, path and query.
pub fn route(registry: &Registry, method: &Method, path: &str, query: &Query) -> Route {
    let target = segments(registry, path)
        .and_then(|segments| target(registry, segments))
        .unwrap_or_else(Target::Invalid);
    let verb = match &target {
        Target::Resource(resource) => Verb::of_resource(resource, method, query),
        Target::Path(_) | Target::Invalid(_) => Verb::of_path(method),
        Target::Missing { name, legacy_watch, .. } => {
            Verb::of_missing(method, name, *legacy_watch, query)
        }
    };
    let path = match &target {
        Target::Path(_) | Target::Invalid(_) => decode(path).unwrap_or_else(|| path.to_owned()),
        Target::Resource(_) | Target::Missing { .. } => String::new(),
    };
    let selected_name = match &target {
        Target::Resource(resource) if resource.name.is_empty() => {
            selected_name(verb, &resource.kind, query)
        }
        Target::Missing { name, .. } if name.is_empty() => foreign_name(verb, query),
        _ => String::new(),
    };
    Route { target, verb, path, selected_name }
}

/// The name that a list or watch is restricted to by its field selector (S8.8).
fn selected_name(verb: Verb, kind: &Kind, query: &Query) -> String {
    let selector = match (verb, query.text("fieldSelector")) {
        (_, "") => return String::new(),
        (Verb::List | Verb::Watch, selector) => FieldSelector::parse(selector, kind),
        _ => return String::new(),
    };
    segment(selector.as_ref().ok().and_then(FieldSelector::name))
}

/// The same for a kind that only an extension server knows.
fn foreign_name(verb: Verb, query: &Query) -> String {
    let selector = query.text("fieldSelector");
    if selector.is_empty() || !matches!(verb, Verb::List | Verb::Watch) {
        return String::new();
    }
    let terms = FieldSelector::written_terms(selector).unwrap_or_default();
    let mut names = terms.iter().filter(|term| term.equal && term.label == "metadata.name");
    let name = names.next().map(|term| term.value.as_str());
    segment(name.filter(|name| names.all(|other| other.value == *name)))
}

/// A name that can be part of a path; else the empty text.
fn segment(name: Option<&str>) -> String {
    let fits = |name: &&str| check_segment("Name", name).is_ok() && !name.contains('/');
    name.filter(fits).unwrap_or_default().to_owned()
}

/// Splits and decodes a path. A double slash matches nothing; a trailing slash is dropped. The error
/// is the content of [`Target::Invalid`], as below.
fn segments(registry: &Registry, path: &str) -> Result<Vec<String>, Option<Status>> {
    let decoded = decode(path).ok_or_else(|| {
        let why = "the path has an invalid percent escape, a NUL, or bytes that are not UTF-8";
        Some(status::bad_request(why))
    })?;
    let trimmed = decoded.strip_prefix('/').ok_or(None)?;
    let trimmed = trimmed.strip_suffix('/').unwrap_or(trimmed);
    if trimmed.is_empty() {
        return Ok(Vec::new());
    }
    let segments: Vec<String> = trimmed.split('/').map(str::to_owned).collect();
    if segments.iter().any(String::is_empty) {
        // Below a known group the response is a Status, as for any path that it does not have.
        let is_known = match segments.as_slice() {
            [first, ..] if first == "api" => true,
            [first, group, ..] if first == "apis" && !group.is_empty() => {
                registry.has_builtin_group(group)
            }
            _ => false,
        };
        return Err(is_known.then(status::no_such_resource));
    }
    Ok(segments)
}

fn decode(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let (high, low) = (digit(rest.next())?, digit(rest.next())?);
                bytes.push((high * 16 + low) as u8);
            }
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
}

fn target(registry: &Registry, segments: Vec<String>) -> Result<Target, Option<Status>> {
    let words: Vec<&str> = segments.iter().map(String::as_str).collect();
    let (group, version, rest) = match words.as_slice() {
        ["api", version, rest @ ..] if !rest.is_empty() => ("", *version, rest),
        ["apis", group, version, rest @ ..] if !rest.is_empty() => (*group, *version, rest),
        _ => return Ok(Target::Path(segments)),
    };
    let (legacy_watch, rest) = match rest {
        ["watch", rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let (namespace, rest) = match rest {
        // `namespaces/x/status` is the Namespace object x, everything else is inside x (S1.3).
        ["namespaces", _, "status" | "finalize"] if group.is_empty() => ("", rest),
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
        rest => ("", rest),
    };
    let (plural, name, subresource) = match rest {
        [] => ("", "", ""),
        [plural] => (*plural, "", ""),
        [plural, name] => (*plural, *name, ""),
        [plural, name, subresource, ..] => (*plural, *name, *subresource),
    };
    let missing = || Target::Missing {
        status: registry.has_builtin_group(group).then(status::no_such_resource),
        group: group.to_owned(),
        version: version.to_owned(),
        resource: plural.to_owned(),
        subresource: subresource.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        legacy_watch,
    };
    if rest.is_empty() || rest.len() > 3 {
        return Ok(missing());
    }
    check_segment("Name", name)?;
    check_segment("Namespace", namespace)?;
    let Some(kind) = registry.find(group, version, plural) else { return Ok(missing()) };
    let scope_fits = match (kind.namespaced, namespace) {
        (false, namespace) => namespace.is_empty(),
        (true, "") => name.is_empty(),
        (true, _) => true,
    };
    let known =
        subresource.is_empty() || (!legacy_watch && kind.subresource(subresource).is_some());
    if !scope_fits || !known {
        let mut missing = missing();
        // Custom kinds do not report which subresources exist (S1.5).
        if let Target::Missing { status, .. } = &mut missing
            && kind.custom
            && scope_fits
        {
            *status = Some(status::not_found(kind, name));
        }
        return Ok(missing);
    }
    Ok(Target::Resource(ResourcePath {
        kind: Arc::clone(kind),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        subresource: subresource.to_owned(),
        legacy_watch,
    }))
}

/// Rejects names that cannot be part of a key (S3.6).
fn check_segment(what: &str, segment: &str) -> Result<(), Option<Status>> {
    let why = match segment {
        "." | ".." => format!("may not be '{segment}'"),
        segment if segment.contains('%') => "may not contain '%'".to_owned(),
        _ => return Ok(()),
    };
    let message = format!("{what} parameter invalid: \"{segment}\": {why}");
    Err(Some(status::bad_request(message)))
}
