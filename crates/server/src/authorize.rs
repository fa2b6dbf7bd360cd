//! Authorization: who may do what.
//!
//! River: route → **authorize** → handler; before the body is read (R48). Members of
//! `system:masters` may do everything, other users may look at discovery, everybody may look at
//! health and version (S8.9).

use headwater_api::Status;

use crate::identity::{Identity, MASTERS};
use crate::route::{Route, Target};
use crate::status;

/// Paths that everybody may read, and below them.
const PUBLIC: &[&str] = &["healthz", "livez", "readyz", "version"];

/// Paths that every authenticated user may read, and below them.
const DISCOVERY: &[&str] = &["api", "apis", "openapi", ".well-known", "openid"];

/// Reviews that every authenticated user may ask for about itself.
const SELF_REVIEWS: &[&str] =
    &["selfsubjectreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews"];

/// Refuses what the user may not do.
pub(crate) fn authorize(identity: &Identity, route: &Route, path: &str) -> Result<(), Status> {
    if allows(identity, route) {
        return Ok(());
    }
    Err(refusal(identity, route, path))
}

/// Whether the user may do it.
pub(crate) fn allows(identity: &Identity, route: &Route) -> bool {
    if identity.is_in(MASTERS) {
        return true;
    }
    match &route.target {
        Target::Path(segments) => {
            let first = segments.first().map(String::as_str).unwrap_or_default();
            let reads = matches!(route.verb, "get" | "head" | "post");
            let open = PUBLIC.contains(&first)
                || (!identity.is_anonymous() && DISCOVERY.contains(&first) && route.verb == "get");
            reads && open
        }
        Target::Resource(resource) => {
            !identity.is_anonymous()
                && route.verb == "create"
                && SELF_REVIEWS.contains(&&*resource.kind.plural)
        }
        Target::Missing { .. } => false,
    }
}

fn refusal(identity: &Identity, route: &Route, path: &str) -> Status {
    let user = &identity.user;
    let verb = route.verb;
    let (group, plural, subresource, namespace, name) = match &route.target {
        Target::Path(_) => {
            let why = format!("User \"{user}\" cannot {verb} path \"{path}\"");
            return status::forbidden("", "", "", &why);
        }
        Target::Resource(resource) => (
            &*resource.kind.group,
            &*resource.kind.plural,
            resource.subresource.as_str(),
            resource.namespace.as_str(),
            resource.name.as_str(),
        ),
        Target::Missing { group, resource, .. } => (group.as_str(), resource.as_str(), "", "", ""),
    };
    let full = match subresource {
        "" => plural.to_owned(),
        subresource => format!("{plural}/{subresource}"),
    };
    let place = match namespace {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace \"{namespace}\""),
    };
    let why = format!(
        "User \"{user}\" cannot {verb} resource \"{full}\" in API group \"{group}\" {place}"
    );
    status::forbidden(group, plural, name, &why)
}
