//! The conversion of errors to `Status` objects.
//!
//! River: any stage's error → **status** → response, or ERROR event inside a stream.

use headwater_api::status::{Cause, Details};
use headwater_api::{Kind, Status};
use headwater_cache::Error as CacheError;
use headwater_store::{Error as StoreError, Key};
use http::StatusCode;
use http::header::{self, HeaderValue};

use crate::answer::body::{self, Response};

/// 400.
pub fn bad_request(message: impl Into<String>) -> Status {
    Status::failure(400, "BadRequest", message)
}

/// 401.
pub fn unauthorized() -> Status {
    Status::failure(401, "Unauthorized", "Unauthorized")
}

/// 403 about a resource; `why` follows `is forbidden: `.
pub fn forbidden(group: &str, plural: &str, name: &str, why: &str) -> Status {
    let resource = if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
    let subject = match (resource.as_str(), name) {
        ("", _) => String::new(),
        (resource, "") => format!("{resource} is "),
        (resource, name) => format!("{resource} \"{name}\" is "),
    };
    Status::failure(403, "Forbidden", format!("{subject}forbidden: {why}")).with_details(Details {
        name: name.into(),
        group: group.into(),
        kind: plural.into(),
        ..Details::default()
    })
}

/// 404 for an object.
pub fn not_found(kind: &Kind, name: &str) -> Status {
    about(kind, name, 404, "NotFound", format!("{} \"{name}\" not found", kind.resource()))
}

/// 404 for an object that another one names, by its kind.
pub fn unknown_object(kind: &str, group: &str, name: &str) -> Status {
    Status::failure(404, "NotFound", format!("{kind}.{group} \"{name}\" not found")).with_details(
        Details { name: name.into(), group: group.into(), kind: kind.into(), ..Details::default() },
    )
}

/// 404 for a path of a known group.
pub fn no_such_resource() -> Status {
    Status::failure(404, "NotFound", "the server could not find the requested resource")
        .with_details(Details::default())
}

/// 405 (S1.6).
pub fn method_not_allowed() -> Status {
    let message = "the server does not allow this method on the requested resource";
    Status::failure(405, "MethodNotAllowed", message).with_details(Details::default())
}

/// 405 for a verb that a kind does not have.
pub fn verb_not_supported(kind: &Kind, verb: &str) -> Status {
    let resource = kind.resource();
    let message = format!("{verb} is not supported on resources of kind \"{resource}\"");
    about(kind, "", 405, "MethodNotAllowed", message)
}

/// 409 for a name that is taken.
pub fn already_exists(kind: &Kind, name: &str) -> Status {
    let message = format!("{} \"{name}\" already exists", kind.resource());
    about(kind, name, 409, "AlreadyExists", message)
}

/// 409 for a write that conflicts with another one.
pub fn conflict(kind: &Kind, name: &str, why: &str) -> Status {
    let resource = kind.resource();
    let message = format!("Operation cannot be fulfilled on {resource} \"{name}\": {why}");
    about(kind, name, 409, "Conflict", message)
}

/// 409 for a stale resourceVersion (S2.10).
pub fn modified(kind: &Kind, name: &str) -> Status {
    let why = "the object has been modified; please apply your changes to the latest version and try again";
    conflict(kind, name, why)
}

/// 408: the announced body did not arrive.
pub fn body_timeout() -> Status {
    Status::failure(408, "Timeout", "Timeout: the body of the request did not arrive in time")
}

/// 413.
pub fn too_large(limit: usize) -> Status {
    let message = format!("Request entity too large: limit is {limit}");
    Status::failure(413, "RequestEntityTooLarge", message)
}

/// 415 for a body (S1.32).
pub fn unsupported_media_type() -> Status {
    let message = "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf";
    Status::failure(415, "UnsupportedMediaType", message)
}

/// 500 without a reason of its own.
pub fn unknown(message: impl Into<String>) -> Status {
    Status::failure(500, "", message)
}

/// 500.
pub fn internal(why: impl std::fmt::Display) -> Status {
    Status::failure(500, "InternalError", format!("Internal error occurred: {why}")).with_details(
        Details {
            causes: vec![Cause { message: why.to_string(), ..Cause::default() }],
            ..Details::default()
        },
    )
}

/// 501: this server does not implement the operation.
pub fn not_implemented(why: impl Into<String>) -> Status {
    Status::failure(501, "NotImplemented", why)
}

/// 503.
pub fn unavailable(why: impl Into<String>) -> Status {
    Status::failure(503, "ServiceUnavailable", why)
}

fn about(kind: &Kind, name: &str, code: u16, reason: &str, message: String) -> Status {
    Status::failure(code, reason, message).with_details(Details {
        name: name.into(),
        group: kind.group.to_string(),
        kind: kind.plural.to_string(),
        ..Details::default()
    })
}

/// The status of a failed read.
pub fn from_cache(error: &CacheError) -> Status {
    match error {
        CacheError::Expired { .. } => {
            let message = "The resourceVersion for the provided list is too old.";
            Status::failure(410, "Expired", message)
        }
        CacheError::TooLarge { asked, current } => {
            let message =
                format!("Timeout: Too large resource version: {asked}, current: {current}");
            let cause = Cause {
                reason: "ResourceVersionTooLarge".into(),
                message: "Too large resource version".into(),
                field: String::new(),
            };
            Status::failure(504, "Timeout", message)
                .with_details(Details { causes: vec![cause], ..Details::default() })
                .retry_after(1)
        }
        CacheError::Store(error) => from_store(error),
        CacheError::Unreadable { key, source } => {
            tracing::error!(%key, "a stored value cannot be read: {source}");
            unreadable(key)
        }
    }
}

/// The reason of [`unreadable`].
pub(crate) const UNREADABLE: &str = "StoreReadError";

/// The stored value of this key is not its object.
pub fn unreadable(key: &Key) -> Status {
    Status::failure(500, UNREADABLE, format!("the stored value of {key} cannot be read"))
}

/// 500 for a conflict on a key that the write should not depend on.
pub fn unexpected_conflict(key: &Key) -> Status {
    internal(format!("conflict on a key other than the object's ({key})"))
}

/// The status of a failed write.
pub fn from_store(error: &StoreError) -> Status {
    match error {
        StoreError::Conflict { .. } => internal("a write met an unexpected state"),
        StoreError::Compacted { .. } | StoreError::Replaced { .. } => {
            let message = "The resourceVersion for the provided list is too old.";
            Status::failure(410, "Expired", message)
        }
        StoreError::Future { asked, current } => {
            from_cache(&CacheError::TooLarge { asked: *asked, current: *current })
        }
        StoreError::Refused(why) => Status::failure(
            413,
            "RequestEntityTooLarge",
            format!("Request entity too large: {why}"),
        ),
        StoreError::Unavailable(why) => unavailable(format!("the store is unavailable: {why}")),
        StoreError::Damaged { place, why } => {
            tracing::error!(place, "stored data is damaged: {why}");
            Status::failure(500, "StoreReadError", format!("stored data is damaged: {place}"))
        }
    }
}

/// 410 for a watch that starts before the retained history (S4.30).
pub fn too_old(asked: headwater_api::Revision, oldest: headwater_api::Revision) -> Status {
    let message = format!("too old resource version: {asked} ({oldest})");
    Status::failure(410, "Expired", message)
}

/// 429: too many requests are open; the client should retry.
pub fn too_many_requests(why: &str) -> Status {
    let message = format!("Too many requests, please try again later: {why}");
    Status::failure(429, "TooManyRequests", message).retry_after(1)
}

/// A Status as a response.
pub fn response(status: &Status) -> Response {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = body::json(code, line(status));
    let retry = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    if retry > 0 {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(retry));
    }
    response
}

/// JSON with a trailing newline, as in every response.
pub fn line(status: &Status) -> Vec<u8> {
    let mut bytes = status.to_json();
    bytes.push(b'\n');
    bytes
}
