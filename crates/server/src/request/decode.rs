//! Decoding of request bodies into trees.
//!
//! River: HTTP body → **decode** → write. `Content-Type` names the format; nothing is
//! guessed (S1.32). Findings of strict validation are warnings in the other modes (S2.33).

use bytes::Bytes;
use headwater_api::options::{DeleteOptions, FieldValidation};
use headwater_api::status::{FieldError, invalid};
use headwater_api::{Status, name};
use headwater_json::Value;
use headwater_json::path::PathList;
use headwater_schema::decode::{self, Format, Target};
use headwater_schema::patch::PatchType;
use http::header;

use crate::answer::body::REQUEST_MAX;
use crate::answer::status;
use crate::kinds::custom::Custom;
use crate::kinds::registry::Served;
use crate::request::call::Call;

/// The format of a body.
fn format(call: &Call) -> Result<Format, Status> {
    let content_type = call.header(header::CONTENT_TYPE);
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    match media_type.to_ascii_lowercase().as_str() {
        "" if content_type.is_empty() => Ok(Format::Json),
        "application/json" => Ok(Format::Json),
        "application/yaml" => Ok(Format::Yaml),
        "application/vnd.kubernetes.protobuf" => Ok(Format::Protobuf),
        _ => Err(status::unsupported_media_type()),
    }
}

/// Decodes the body of a write; adds its warnings to the call.
pub(crate) fn body(
    kind: &Served,
    call: &Call,
    validation: FieldValidation,
    body: &Bytes,
) -> Result<Value, Status> {
    let refused = |error: decode::Error| status::bad_request(error.to_string());
    let decoded = match (&kind.definition, format(call)?) {
        (Some(_), Format::Protobuf) => return Err(status::unsupported_media_type()),
        (Some(custom), format) => {
            let decoded = decode::custom(kind, format, body).map_err(refused)?;
            check_version(kind, &decoded.value).map_err(refused)?;
            fitted(custom, decoded, false)?
        }
        (None, format) => decode::object(&kind.kind, format, body).map_err(refused)?,
    };
    checked(&kind.kind, call, validation, decoded)
}

/// The body of a write as JSON, for the audit trail.
pub(crate) fn audited(kind: &Served, call: &Call, body: &Bytes) -> Option<Bytes> {
    if body.is_empty() {
        return None;
    }
    let tree = match format(call) {
        Ok(Format::Protobuf) if kind.definition.is_some() => return None,
        Ok(Format::Protobuf) => decode::object(&kind.kind, Format::Protobuf, body).ok()?.value,
        Ok(Format::Yaml) => decode::parse(Format::Yaml, body).ok()?.value,
        // A patch has a media type of its own.
        Err(_) if call.header(header::CONTENT_TYPE).contains("yaml") => {
            decode::parse(Format::Yaml, body).ok()?.value
        }
        Ok(Format::Json) | Err(_) => return Some(body.clone()),
    };
    Some(headwater_json::to_vec(&tree).into())
}

/// Decodes a body whose type is not a registered kind, such as a Scale or a Binding.
pub(crate) fn other(call: &Call, target: Target<'_>, body: &Bytes) -> Result<Value, Status> {
    decode::object(target, format(call)?, body)
        .map(|decoded| decoded.value)
        .map_err(|error| status::bad_request(error.to_string()))
}

/// The result of a patch.
pub(crate) struct PatchResult<'a> {
    pub(crate) patch_type: PatchType,
    pub(crate) value: Value,
    /// The stored object, if it is in the same version.
    pub(crate) old: Option<&'a Value>,
    /// Paths of keys that the patch repeats.
    pub(crate) duplicates: &'a PathList,
}

/// Decodes the result of a patch against the type of its kind.
pub(crate) fn patched(
    kind: &Served,
    call: &Call,
    validation: FieldValidation,
    result: PatchResult<'_>,
) -> Result<Value, Status> {
    let PatchResult { patch_type, value, old, duplicates } = result;
    let is_applied = patch_type == PatchType::Apply;
    // The result is not an object of a kind yet, so the error names none.
    let refused =
        |why: String| invalid("", "", "", &[FieldError::invalid("patch", &"".into(), why)]);
    let unfit = |error: decode::Error| refused(error.why());
    let mut decoded = match &kind.definition {
        Some(custom) => {
            let decoded = decode::recustom(kind, value).map_err(unfit)?;
            check_version(kind, &decoded.value).map_err(unfit)?;
            fitted(custom, decoded, is_applied)?
        }
        None => decode::refit(&kind.kind, value, old).map_err(unfit)?,
    };
    // Those of an apply are reported before its result is decoded.
    if !is_applied {
        decoded.duplicates.extend(duplicates);
    }
    match (validation, decoded.strict_error((&kind.kind).into())) {
        (FieldValidation::Strict, Some(error)) => Err(refused(error.why())),
        _ => checked(&kind.kind, call, validation, decoded),
    }
}

/// Prunes unknown fields of a custom object and sets defaults (S9.10).
fn fitted(
    custom: &Custom,
    mut decoded: decode::Decoded,
    is_applied: bool,
) -> Result<decode::Decoded, Status> {
    decoded.unknown.extend(&custom.schema.prune(&mut decoded.value));
    let defaulted = match is_applied {
        true => custom.schema.default_applied(&mut decoded.value),
        false => custom.schema.default(&mut decoded.value),
    };
    defaulted.map_err(|_| status::too_large(REQUEST_MAX))?;
    Ok(decoded)
}

/// Checks that the version of a custom object is that of the path.
fn check_version(kind: &Served, value: &Value) -> Result<(), decode::Error> {
    let found = value["apiVersion"].as_str().unwrap_or_default();
    let expected = kind.api_version();
    if found == expected {
        return Ok(());
    }
    Err(decode::Error::Version { found: found.to_owned(), expected })
}

fn checked<'a>(
    target: impl Into<Target<'a>>,
    call: &Call,
    validation: FieldValidation,
    mut decoded: decode::Decoded,
) -> Result<Value, Status> {
    match validation {
        FieldValidation::Ignore => {}
        FieldValidation::Warn => {
            call.warn(decoded.warnings());
            if let more @ 1.. = decoded.omitted() {
                call.warn([format!("and {more} more unknown or duplicate fields")]);
            }
        }
        FieldValidation::Strict => {
            if let Some(error) = decoded.strict_error(target.into()) {
                return Err(status::bad_request(error.to_string()));
            }
        }
    }
    call.warn(name::fold_owner_references(&mut decoded.value));
    Ok(decoded.value)
}

/// Decodes a patch: JSON, or YAML if `Content-Type` says so.
pub(crate) fn patch(format: Format, body: &Bytes) -> Result<headwater_json::Parsed, Status> {
    decode::parse(format, body)
        .map_err(|error| status::bad_request(format!("error decoding patch: {error}")))
}

/// The options of a delete: from the body, or from the query if there is no body (S2.42).
pub(crate) fn delete_options(
    call: &Call,
    kind: &Served,
    body: &Bytes,
) -> Result<DeleteOptions, Status> {
    if body.is_empty() {
        return DeleteOptions::from_query(&call.query);
    }
    let decoded = decode::delete_options(format(call)?, body)
        .map_err(|error| status::bad_request(error.to_string()))?;
    DeleteOptions::from_body(&decoded.value, &kind.api_version())
}
