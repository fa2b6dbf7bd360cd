//! Questions to authorization, and its answers.
//!
//! River: route, review, expression → **question** → authorizers → decision.

use headwater_api::query::Query;

use crate::request::route::{Route, Target, Verb};

/// The attributes of a request that authorization reads (S8.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attributes<'a> {
    /// A request for a non-resource path.
    Path { verb: &'a str, path: &'a str },
    /// A request for a resource.
    Resource {
        verb: &'a str,
        group: &'a str,
        resource: &'a str,
        subresource: &'a str,
        namespace: &'a str,
        name: &'a str,
    },
}

impl<'a> Attributes<'a> {
    /// The attributes of a routed request.
    pub(crate) fn of(route: &'a Route) -> Attributes<'a> {
        let verb = route.verb.as_str();
        match &route.target {
            Target::Path(_) | Target::Invalid(_) => Attributes::Path { verb, path: &route.path },
            Target::Resource(resource) => Attributes::Resource {
                verb,
                group: &resource.kind.group,
                resource: &resource.kind.plural,
                subresource: &resource.subresource,
                namespace: place(&resource.kind.plural, &resource.namespace, &resource.name),
                name: match resource.name.as_str() {
                    "" => &route.selected_name,
                    name => name,
                },
            },
            Target::Missing { group, resource, subresource, namespace, name, .. } => {
                let namespace = place(resource, namespace, name);
                let name = if name.is_empty() { &route.selected_name } else { name };
                Attributes::Resource { verb, group, resource, subresource, namespace, name }
            }
        }
    }

    /// The namespace; empty for all namespaces and for what has none.
    pub(crate) fn namespace(&self) -> &'a str {
        match self {
            Attributes::Path { .. } => "",
            Attributes::Resource { namespace, .. } => namespace,
        }
    }
}

/// The namespace that a request is in. `namespaces/x` is in x: so who may read everything in x may
/// also read the Namespace.
fn place<'a>(resource: &str, namespace: &'a str, name: &'a str) -> &'a str {
    match (resource, namespace) {
        ("namespaces", "") => name,
        _ => namespace,
    }
}

/// A question to the authorizers: attributes, and what only some authorizers read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccessRequest<'a> {
    pub(crate) attributes: Attributes<'a>,
    /// The version of the API; `*` if it does not matter.
    pub(crate) version: &'a str,
    /// The selectors of a list, watch or deletecollection, as the client wrote them.
    pub(crate) field_selector: &'a str,
    pub(crate) label_selector: &'a str,
}

impl<'a> AccessRequest<'a> {
    /// A question without selectors.
    pub(crate) fn about(attributes: Attributes<'a>) -> AccessRequest<'a> {
        AccessRequest { attributes, version: "*", field_selector: "", label_selector: "" }
    }

    /// The question about a routed request.
    pub(crate) fn of(route: &'a Route, query: &'a Query) -> AccessRequest<'a> {
        let attributes = Attributes::of(route);
        let (version, legacy_watch) = match &route.target {
            Target::Resource(resource) => (&*resource.kind.version, resource.legacy_watch),
            Target::Missing { version, legacy_watch, .. } => (version.as_str(), *legacy_watch),
            Target::Path(_) | Target::Invalid(_) => return AccessRequest::about(attributes),
        };
        let selects = matches!(route.verb, Verb::List | Verb::Watch | Verb::DeleteCollection)
            && !legacy_watch;
        let selector = |name| if selects { query.text(name) } else { "" };
        AccessRequest {
            attributes,
            version,
            field_selector: selector("fieldSelector"),
            label_selector: selector("labelSelector"),
        }
    }
}

/// What authorization concludes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessOpinion {
    Allowed,
    /// Denied, whatever later authorizers say.
    Denied,
    /// No authorizer allows it.
    None,
}

/// The result of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AccessDecision {
    pub(crate) opinion: AccessOpinion,
    /// Why; may be empty.
    pub(crate) reason: String,
    /// What went wrong meanwhile; may be empty.
    pub(crate) error: String,
}

impl AccessDecision {
    pub(super) fn new(opinion: AccessOpinion, reason: impl Into<String>) -> AccessDecision {
        AccessDecision { opinion, reason: reason.into(), error: String::new() }
    }

    /// Whether it was denied because an authorizer could not be asked.
    pub(crate) fn is_failure(&self) -> bool {
        self.opinion == AccessOpinion::Denied && self.reason.is_empty() && !self.error.is_empty()
    }

    pub(crate) fn is_allowed(&self) -> bool {
        self.opinion == AccessOpinion::Allowed
    }
}
