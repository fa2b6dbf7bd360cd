//! Authorization: whether a user may send a request.
//!
//! River: route → **authorize** → handler; before the body is read (R48). Members of
//! `system:masters` may do everything; other users may read discovery and review their own access;
//! every client may read health and version (S8.9).

use headwater_api::Status;

use crate::answer::status;
use crate::front::identity::{Identity, MASTERS};
use crate::request::route::{Route, Target};

/// Paths that every client may read, with the paths below them.
const PUBLIC: &[&str] = &["healthz", "livez", "readyz", "version"];

/// Paths that every authenticated user may read, with the paths below them.
const DISCOVERY: &[&str] = &["api", "apis", "openapi", ".well-known", "openid"];

/// Reviews that every authenticated user may create about itself.
const SELF_REVIEWS: &[&str] =
    &["selfsubjectreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews"];

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
    pub(crate) fn of(route: &'a Route, path: &'a str) -> Attributes<'a> {
        match &route.target {
            Target::Path(_) | Target::Invalid(_) => {
                Attributes::Path { verb: route.verb.as_str(), path }
            }
            Target::Resource(resource) => Attributes::Resource {
                verb: route.verb.as_str(),
                group: &resource.kind.group,
                resource: &resource.kind.plural,
                subresource: &resource.subresource,
                namespace: &resource.namespace,
                name: &resource.name,
            },
            Target::Missing { group, resource, .. } => Attributes::Resource {
                verb: route.verb.as_str(),
                group,
                resource,
                subresource: "",
                namespace: "",
                name: "",
            },
        }
    }
}

/// Whether a user may send a request with these attributes.
pub(crate) fn allows(identity: &Identity, attributes: &Attributes<'_>) -> bool {
    if identity.is_in(MASTERS) {
        return true;
    }
    match attributes {
        Attributes::Path { verb, path } => {
            let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
            let is_public = PUBLIC.contains(&first) && matches!(*verb, "get" | "head" | "post");
            let is_discovery = DISCOVERY.contains(&first) && *verb == "get";
            is_public || (is_discovery && !identity.is_anonymous())
        }
        Attributes::Resource { verb, group, resource, .. } => {
            let asks = matches!(*group, "authentication.k8s.io" | "authorization.k8s.io")
                && SELF_REVIEWS.contains(resource);
            asks && *verb == "create" && !identity.is_anonymous()
        }
    }
}

/// Returns 403 if the user may not send the request.
pub(crate) fn authorize(identity: &Identity, attributes: &Attributes<'_>) -> Result<(), Status> {
    if allows(identity, attributes) { Ok(()) } else { Err(refusal(identity, attributes)) }
}

fn refusal(identity: &Identity, attributes: &Attributes<'_>) -> Status {
    let user = &identity.user;
    match attributes {
        Attributes::Path { verb, path } => {
            let why = format!("User \"{user}\" cannot {verb} path \"{path}\"");
            status::forbidden("", "", "", &why)
        }
        Attributes::Resource { verb, group, resource, subresource, namespace, name } => {
            let full = match *subresource {
                "" => (*resource).to_owned(),
                subresource => format!("{resource}/{subresource}"),
            };
            let place = match *namespace {
                "" => "at the cluster scope".to_owned(),
                namespace => format!("in the namespace \"{namespace}\""),
            };
            let why = format!(
                "User \"{user}\" cannot {verb} resource \"{full}\" in API group \"{group}\" {place}"
            );
            status::forbidden(group, resource, name, &why)
        }
    }
}
