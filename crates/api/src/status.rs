//! `Status`: the representation of every error, and of some successes, on the wire.
//!
//! River: any stage's error → `server/src/answer/status.rs` → **Status** → response body or ERROR event.
//! Promise: the code in the body is the code of the response (S1.40).

use std::{fmt, io};

use serde::{Deserialize, Serialize};

use headwater_json as json;

use crate::distinct::Distinct;

/// A `v1` Status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    kind: String,
    api_version: String,
    /// List metadata; only `continue` is ever set (S3.14).
    #[serde(default)]
    pub metadata: Metadata,
    /// `Failure` or `Success`.
    #[serde(default)]
    pub status: String,
    /// A message for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// A reason for programs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The object that it describes, and further details.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Box<Details>>,
    /// The HTTP status code; zero is left out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub code: u16,
}

/// List metadata of a Status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// The token with which an expired list may continue.
    #[serde(default, rename = "continue", skip_serializing_if = "String::is_empty")]
    pub continue_token: String,
}

/// Details of a Status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Details {
    /// Name of the object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// API group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The plural resource in most errors, the Kind in validation errors.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Uid of the object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// One entry per problem.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    /// Also sent in the `Retry-After` header.
    #[serde(default, skip_serializing_if = "is_zero_u32")]
    pub retry_after_seconds: u32,
}

/// One problem among several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// Such as `FieldValueInvalid`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// A message for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Path of the field.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub field: String,
}

fn is_zero(code: &u16) -> bool {
    *code == 0
}

fn is_zero_u32(seconds: &u32) -> bool {
    *seconds == 0
}

impl Status {
    /// A failure without details.
    pub fn failure(code: u16, reason: &str, message: impl Into<String>) -> Status {
        Status {
            kind: "Status".into(),
            api_version: "v1".into(),
            metadata: Metadata::default(),
            status: "Failure".into(),
            message: message.into(),
            reason: reason.into(),
            details: None,
            code,
        }
    }

    /// A success, about an object.
    pub fn success(code: u16, details: Option<Details>) -> Status {
        Status {
            status: "Success".into(),
            details: details.map(Box::new),
            ..Status::failure(code, "", "")
        }
    }

    /// The same with details.
    #[must_use]
    pub fn with_details(mut self, details: Details) -> Status {
        self.details = Some(Box::new(details));
        self
    }

    /// The same Status with advice to retry later.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Status {
        self.details.get_or_insert_default().retry_after_seconds = seconds;
        self
    }

    /// As compact JSON.
    pub fn to_json(&self) -> Vec<u8> {
        json::to_vec(self)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.code, self.reason, self.message)
    }
}

impl std::error::Error for Status {}

/// One invalid field of an object: becomes a cause of a 422.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FieldError {
    /// The rule that was broken.
    pub kind: FieldErrorKind,
    /// Path, such as `spec.containers[0].name`.
    pub field: String,
    /// The part of the message after the field.
    pub detail: String,
}

/// The rules that a field can break (S1.42).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FieldErrorKind {
    /// A required value is missing.
    Required,
    /// A value that is not allowed.
    Invalid,
    /// A value that is not allowed in this context.
    Forbidden,
    /// Not one of the allowed values.
    NotSupported,
    /// Repeated in a set.
    Duplicate,
    /// Too many bytes.
    TooLong,
    /// Too many elements.
    TooMany,
    /// Not the right JSON type.
    TypeInvalid,
    /// Refers to something that does not exist.
    NotFound,
}

impl FieldErrorKind {
    /// The reason of the cause.
    pub fn reason(self) -> &'static str {
        match self {
            FieldErrorKind::Required => "FieldValueRequired",
            FieldErrorKind::Invalid => "FieldValueInvalid",
            FieldErrorKind::Forbidden => "FieldValueForbidden",
            FieldErrorKind::NotSupported => "FieldValueNotSupported",
            FieldErrorKind::Duplicate => "FieldValueDuplicate",
            FieldErrorKind::TooLong => "FieldValueTooLong",
            FieldErrorKind::TooMany => "FieldValueTooMany",
            FieldErrorKind::TypeInvalid => "FieldValueTypeInvalid",
            FieldErrorKind::NotFound => "FieldValueNotFound",
        }
    }

    fn words(self) -> &'static str {
        match self {
            FieldErrorKind::Required => "Required value",
            FieldErrorKind::Invalid | FieldErrorKind::TypeInvalid => "Invalid value",
            FieldErrorKind::Forbidden => "Forbidden",
            FieldErrorKind::NotSupported => "Unsupported value",
            FieldErrorKind::Duplicate => "Duplicate value",
            FieldErrorKind::TooLong => "Too long",
            FieldErrorKind::TooMany => "Too many",
            FieldErrorKind::NotFound => "Not found",
        }
    }
}

impl FieldError {
    /// `field: Required value: why`.
    pub fn required(field: impl Into<String>, why: &str) -> FieldError {
        FieldError { kind: FieldErrorKind::Required, field: field.into(), detail: why.into() }
    }

    /// `field: Invalid value: value: why`; `value` is shown as JSON.
    pub fn invalid(
        field: impl Into<String>,
        value: &headwater_json::Value,
        why: impl AsRef<str>,
    ) -> FieldError {
        let detail = format!("{}: {}", shown(value), why.as_ref());
        FieldError { kind: FieldErrorKind::Invalid, field: field.into(), detail }
    }

    /// `field: Forbidden: why`.
    pub fn forbidden(field: impl Into<String>, why: &str) -> FieldError {
        FieldError { kind: FieldErrorKind::Forbidden, field: field.into(), detail: why.into() }
    }

    /// `field: Unsupported value: value: supported values: "a", "b"`.
    pub fn not_supported(
        field: impl Into<String>,
        value: &headwater_json::Value,
        supported: &[&str],
    ) -> FieldError {
        let words: Vec<String> = supported.iter().map(|word| format!("{word:?}")).collect();
        let detail = format!("{}: supported values: {}", shown(value), words.join(", "));
        FieldError { kind: FieldErrorKind::NotSupported, field: field.into(), detail }
    }

    /// `field: Duplicate value: value`.
    pub fn duplicate(field: impl Into<String>, value: &headwater_json::Value) -> FieldError {
        let detail = shown(value);
        FieldError { kind: FieldErrorKind::Duplicate, field: field.into(), detail }
    }

    /// The message of the cause: everything after the field.
    pub fn message(&self) -> String {
        match self.detail.as_str() {
            "" => self.kind.words().to_owned(),
            detail => format!("{}: {detail}", self.kind.words()),
        }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message())
    }
}

/// The maximum size of a value in an error. Kubernetes has no limit.
const SHOWN_MAX: usize = 4096;

/// A value as JSON, up to its maximum size: many errors may show the same large value.
fn shown(value: &json::Value) -> String {
    let mut out = Shown(Vec::new());
    let is_complete = serde_json::to_writer(&mut out, value).is_ok();
    let mut text = String::from_utf8_lossy(&out.0).into_owned();
    if !is_complete {
        text.push('…');
    }
    text
}

/// A writer that ends at the maximum size.
struct Shown(Vec<u8>);

impl io::Write for Shown {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = bytes.len().min(SHOWN_MAX - self.0.len());
        if room == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.0.extend_from_slice(&bytes[..room]);
        Ok(room)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The maximum number of errors in a Status; the remainder is counted. Kubernetes has no limit.
pub const ERRORS_MAX: usize = 1000;

/// 422 for an object; `group_kind` is `Pod` or `Deployment.apps`.
pub fn invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Status {
    let group_kind = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
    let (listed, left_out) = errors.split_at(errors.len().min(ERRORS_MAX));
    let mut texts: Distinct<String> = Distinct::default();
    texts.extend(listed.iter().map(FieldError::to_string));
    if !left_out.is_empty() {
        texts.insert(format!("and {} more", left_out.len()));
    }
    let list = match texts.list() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    };
    let causes = listed
        .iter()
        .map(|error| Cause {
            reason: error.kind.reason().into(),
            message: error.message(),
            field: error.field.clone(),
        })
        .collect();
    Status::failure(422, "Invalid", format!("{group_kind} \"{name}\" is invalid: {list}"))
        .with_details(Details {
            name: name.into(),
            group: group.into(),
            kind: kind.into(),
            causes,
            ..Details::default()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_shows_the_beginning_of_a_large_value() {
        let small = headwater_json::json!({"a": [1, "é"]});
        assert_eq!(FieldError::duplicate("f", &small).detail, small.to_string());
        let large = headwater_json::json!(vec!["é".repeat(100); 100_000]);
        for error in [
            FieldError::duplicate("f", &large),
            FieldError::invalid("f", &large, "why"),
            FieldError::not_supported("f", &large, &["a"]),
        ] {
            let length = error.detail.len();
            assert!((SHOWN_MAX..SHOWN_MAX + 50).contains(&length), "{length}");
            assert!(error.detail.contains('…'), "{}", error.detail);
        }
    }

    /// S1.42
    #[test]
    fn several_field_errors_share_one_message_without_repeats() {
        let error = FieldError::required("metadata.name", "name or generateName is required");
        let status = invalid("apps", "Deployment", "d", &[error.clone(), error]);
        assert_eq!(
            status.message,
            "Deployment.apps \"d\" is invalid: metadata.name: Required value: name or generateName is required"
        );
        assert_eq!(status.details.unwrap().causes.len(), 2);
    }

    /// B137
    #[test]
    fn errors_beyond_the_limit_are_counted() {
        let errors: Vec<FieldError> =
            (0..40_000).map(|n| FieldError::required(format!("spec.f[{n}]"), "")).collect();
        let status = invalid("", "Pod", "p", &errors);
        assert!(status.message.ends_with("spec.f[999]: Required value, and 39000 more]"));
        assert_eq!(status.details.unwrap().causes.len(), ERRORS_MAX);
    }

    #[test]
    fn a_success_has_no_reason_and_no_message() {
        let json = String::from_utf8(Status::success(0, None).to_json()).unwrap();
        assert_eq!(json, r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success"}"#);
    }
}
