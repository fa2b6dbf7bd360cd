//! Subresources with a type of their own, and kinds that are never stored.
//!
//! River: route → **subresource** → write. A Scale or a Binding is a view of an object and
//! writes through it; a review is a query and stores nothing.

use bytes::Bytes;
use headwater_api::Status;

use crate::answer::body::Response;
use crate::kinds::registry::Served;
use crate::request::call::Call;
use crate::request::route::ResourcePath;
use crate::server::Server;
use crate::verbs::binding;
use crate::verbs::kubelet;
use crate::verbs::review;
use crate::verbs::scale;
use crate::verbs::token_request;

/// Whether a subresource has the type of its parent: PUT and PATCH write a part of the parent.
pub(crate) fn writes_parent(name: &str) -> bool {
    matches!(name, "" | "status" | "finalize" | "ephemeralcontainers" | "resize" | "approval")
}

/// Whether objects of the kind are never stored.
pub(crate) fn is_transient(kind: &Served) -> bool {
    matches!(&*kind.group, "authentication.k8s.io" | "authorization.k8s.io")
        || (kind.plural == "bindings" && kind.group.is_empty())
}

/// Whether the response can be a table: not a review, a Scale or a binding.
pub(crate) fn has_table(resource: &ResourcePath) -> bool {
    writes_parent(&resource.subresource) && !is_transient(&resource.kind)
}

/// GET on a subresource of another type.
pub(crate) async fn get(
    server: &Server,
    call: &Call,
    resource: &ResourcePath,
) -> Result<Response, Status> {
    match resource.subresource.as_str() {
        "scale" => scale::get(server, call, resource).await,
        other => Err(kubelet::not_served(other)),
    }
}

/// POST, PUT or PATCH on a subresource of another type, or on a kind that is never stored.
pub(crate) async fn write(
    server: &Server,
    call: &Call,
    resource: &ResourcePath,
    body: Bytes,
) -> Result<Response, Status> {
    match (&*resource.kind.plural, resource.subresource.as_str()) {
        (_, "scale") => scale::write(server, call, resource, body).await,
        ("pods" | "bindings", "binding" | "") => binding::bind(server, call, resource, &body).await,
        ("pods", "eviction") => binding::evict(server, call, resource, &body).await,
        ("serviceaccounts", "token") => token_request::request(server, call, resource, &body).await,
        (_, "") => review::review(server, call, resource, &body).await,
        (_, other) => Err(kubelet::not_served(other)),
    }
}
