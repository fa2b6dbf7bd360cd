//! Subresources that are not a part of their object, and kinds that only answer.
//!
//! River: route → **subresource** → write. Scale and binding are views of an object that write
//! through it; reviews are questions.

use bytes::Bytes;
use headwater_api::Status;
use http::StatusCode;
use serde_json::json;

use crate::body::Response;
use crate::registry::Served;
use crate::route::Resource;
use crate::server::{Call, Server};
use crate::{encode, status};

/// GET on a subresource.
pub(crate) async fn get(
    _server: &Server,
    _call: &Call,
    _resource: &Resource,
) -> Result<Response, Status> {
    Err(status::no_such_resource())
}

/// Whether objects of the kind are questions and never stored.
pub(crate) fn is_review(kind: &Served) -> bool {
    matches!(&*kind.group, "authentication.k8s.io" | "authorization.k8s.io")
        || kind.plural == "bindings"
}

/// POST, PUT or PATCH on a subresource, or a review.
pub(crate) async fn write(
    _server: &Server,
    call: &Call,
    resource: &Resource,
    _body: Bytes,
) -> Result<Response, Status> {
    if resource.kind.plural == "selfsubjectreviews" {
        let identity = &call.identity;
        let review = json!({
            "kind": "SelfSubjectReview",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {},
            "status": { "userInfo": {
                "username": identity.user,
                "uid": identity.uid,
                "groups": identity.groups,
                "extra": identity.extra,
            }},
        });
        return Ok(encode::value(call, StatusCode::CREATED, &review));
    }
    Err(status::no_such_resource())
}
