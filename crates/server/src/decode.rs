//! Decoding: the bytes of a request become a tree.
//!
//! River: HTTP body → **decode** → write. Which format it is in is said by `Content-Type`; nothing
//! is guessed (S1.32).

use bytes::Bytes;
use headwater_api::Status;
use headwater_api::options::WriteOptions;
use http::header;
use serde_json::Value;

use crate::registry::Served;
use crate::server::Call;
use crate::status;

/// A body as a tree, and what is to be told about it.
pub(crate) struct Decoded {
    pub(crate) value: Value,
    pub(crate) warnings: Vec<String>,
}

/// The media type of the body, without parameters.
pub(crate) fn media_type(call: &Call) -> &str {
    call.header(header::CONTENT_TYPE).split(';').next().unwrap_or_default().trim()
}

/// The body of a write.
pub(crate) fn body(
    kind: &Served,
    call: &Call,
    _options: &WriteOptions,
    body: &Bytes,
) -> Result<Decoded, Status> {
    let mut value = plain(call, &kind.kind.kind, body)?;
    complete_type(kind, &mut value)?;
    Ok(Decoded { value, warnings: Vec::new() })
}

/// A body of some other type, such as DeleteOptions.
pub(crate) fn plain(call: &Call, what: &str, body: &Bytes) -> Result<Value, Status> {
    match media_type(call) {
        "" | "application/json" => {}
        _ => return Err(status::unsupported_media_type()),
    }
    serde_json::from_slice(body).map_err(|error| {
        status::bad_request(format!(
            "the object provided is unrecognized (must be of type {what}): couldn't get version/kind; json parse error: {error}"
        ))
    })
}

/// Kind and apiVersion are those of the endpoint; a built-in kind may leave them out (S2.6).
fn complete_type(kind: &Served, value: &mut Value) -> Result<(), Status> {
    let name = &kind.kind.kind;
    let api_version = kind.api_version();
    let given_kind = value["kind"].as_str().unwrap_or_default().to_owned();
    let given_version = value["apiVersion"].as_str().unwrap_or_default().to_owned();
    let wrong_kind = !given_kind.is_empty() && given_kind != **name;
    let wrong_version = !given_version.is_empty() && given_version != api_version;
    if wrong_kind || wrong_version {
        return Err(status::bad_request(format!(
            "{given_kind} in version \"{given_version}\" cannot be handled as a {name}: no kind \"{given_kind}\" is registered for version \"{given_version}\""
        )));
    }
    if let Some(object) = value.as_object_mut() {
        object.insert("kind".into(), name.to_string().into());
        object.insert("apiVersion".into(), api_version.into());
    }
    Ok(())
}
