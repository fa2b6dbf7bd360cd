//! The interface to the server: a source that lists and watches one collection.
//!
//! River: server → **source** → reflector. Implemented over HTTP ([`crate::http`]) and by a script
//! for tests ([`crate::script`]).
//! Promise: dropping a future or stream of a source closes its connection; sources do not retry,
//! the reflector does.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use headwater_api::frame::FrameError;
use serde::Deserialize;

use crate::key::Key;
use crate::object::Cached;
use crate::query::{ListQuery, WatchQuery};
use crate::version::ResourceVersion;

/// Lists and watches one collection.
///
/// - The pages of a list show the collection at one resourceVersion.
/// - A watch yields every change after its resourceVersion, in order, or an error.
/// - Dropping the returned future or stream closes the connection.
/// - Errors such as 429 and 503 are returned, not retried.
#[async_trait]
pub trait ListWatch: Send + Sync + 'static {
    /// The type of its objects.
    type Object: Cached;

    /// One page of a list.
    async fn list(&self, query: ListQuery) -> Result<Page<Self::Object>, Error>;

    /// Opens a watch.
    async fn watch(&self, query: WatchQuery) -> Result<EventStream<Self::Object>, Error>;

    /// Whether a watch can start with all current objects (`sendInitialEvents`).
    fn supports_watch_list(&self) -> bool {
        true
    }

    /// Whether the server serves this resource type; called after a 404.
    async fn is_served(&self) -> bool {
        true
    }

    /// The estimated memory of an object on average, if the source estimates it.
    fn mean_object_bytes(&self) -> Option<usize> {
        None
    }
}

/// The events of one watch.
pub type EventStream<K> = BoxStream<'static, Result<Event<K>, Error>>;

/// One page of a list.
#[derive(Debug)]
pub struct Page<K> {
    /// The objects, in the server's order.
    pub items: Vec<K>,
    /// Objects that could not be decoded.
    pub undecodable: Vec<Undecodable>,
    /// Objects that were skipped because they have no metadata.
    pub skipped: usize,
    /// The version of the list.
    pub resource_version: ResourceVersion,
    /// The token of the next page.
    pub continue_token: Option<String>,
    /// The number of objects after this page, if the server reports it.
    pub remaining: Option<u64>,
}

/// One event of a watch.
#[derive(Debug)]
pub enum Event<K> {
    /// An object was added to the collection.
    Added(K),
    /// An object changed.
    Modified(K),
    /// An object was removed from the collection.
    Deleted(K),
    /// All changes up to this version were sent.
    Bookmark {
        /// The version.
        resource_version: ResourceVersion,
        /// Whether it ends the initial events of a watch-list.
        initial_events_end: bool,
    },
    /// The server ends the stream with this error.
    Error(StatusError),
    /// An object that could not be decoded.
    Undecodable(Undecodable),
    /// An event that does not concern this collection.
    Skipped(Skipped),
}

impl<K> Event<K> {
    pub(crate) fn map<T>(self, map: impl FnOnce(K) -> T) -> Event<T> {
        match self {
            Event::Added(object) => Event::Added(map(object)),
            Event::Modified(object) => Event::Modified(map(object)),
            Event::Deleted(object) => Event::Deleted(map(object)),
            Event::Bookmark { resource_version, initial_events_end } => {
                Event::Bookmark { resource_version, initial_events_end }
            }
            Event::Error(status) => Event::Error(status),
            Event::Undecodable(bad) => Event::Undecodable(bad),
            Event::Skipped(why) => Event::Skipped(why),
        }
    }
}

/// An object whose metadata decodes but whose other fields do not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undecodable {
    /// Which object.
    pub key: Key,
    /// Its version.
    pub resource_version: ResourceVersion,
    /// The decoding error.
    pub error: String,
}

/// Why an event was skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Skipped {
    /// Its object has another kind.
    WrongKind(String),
    /// Its object has no name or no resourceVersion.
    NoMetadata,
    /// A transform failed for its object.
    Failed(String),
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Skipped::WrongKind(kind) => write!(f, "an object of kind {kind:?}"),
            Skipped::NoMetadata => f.write_str("an object without name or resourceVersion"),
            Skipped::Failed(why) => f.write_str(why),
        }
    }
}

/// Why a list or watch failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server refused.
    #[error("the server refused: {0}")]
    Status(StatusError),
    /// No process listens at the address.
    #[error("the connection was refused")]
    Refused(#[source] BoxError),
    /// The connection failed or broke.
    #[error("the connection failed")]
    Transport(#[source] BoxError),
    /// The body ended within a frame or list.
    #[error("the response was cut off")]
    Cut,
    /// No data arrived for too long.
    #[error("the server stopped sending")]
    Stalled,
    /// The list has no version.
    #[error("the list has no metadata.resourceVersion")]
    NoResourceVersion,
    /// The response is not a list of objects.
    #[error("the server returned a {0} instead of a list of objects")]
    WrongKind(String),
    /// A frame or item exceeds the maximum length.
    #[error("a frame is longer than {max} bytes")]
    TooLong {
        /// The limit.
        max: usize,
    },
    /// The response violates the protocol.
    #[error("cannot read the response: {0}")]
    Malformed(String),
    /// The server returns the same page again and again.
    #[error("the pages of the list never end")]
    EndlessPages,
}

impl From<FrameError> for Error {
    fn from(error: FrameError) -> Error {
        match error {
            FrameError::TooLong { max } => Error::TooLong { max },
            FrameError::Truncated => Error::Cut,
        }
    }
}

/// Any error of another library.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A `Status` response of a server, decoded leniently.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusError {
    /// The HTTP status code.
    pub code: u16,
    /// The machine-readable reason, such as `Expired`.
    pub reason: String,
    /// The human-readable message.
    pub message: String,
    /// The causes, as reason and message.
    pub causes: Vec<(String, String)>,
    /// When to retry, from the `Retry-After` header or the details; at most 60 s.
    pub retry_after: Option<Duration>,
}

impl fmt::Display for StatusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.code, self.reason, self.message)
    }
}

impl std::error::Error for StatusError {}

impl StatusError {
    /// A status without details; for tests and custom sources.
    pub fn new(code: u16, reason: &str, message: &str) -> StatusError {
        StatusError {
            code,
            reason: reason.to_owned(),
            message: message.to_owned(),
            ..StatusError::default()
        }
    }

    /// Decodes the body of a response that is not 200. A body that is not a Status gives an error
    /// with the right code.
    pub(crate) fn from_body(code: u16, retry_after: Option<&str>, body: &[u8]) -> StatusError {
        let header = retry_after.and_then(parse_retry_after);
        let status = serde_json::from_slice::<Wire>(body).unwrap_or_else(|_| Wire {
            message: String::from_utf8_lossy(body.get(..1024).unwrap_or(body)).into_owned(),
            ..Wire::default()
        });
        let mut error = StatusError::from_wire(status);
        error.retry_after = header.or(error.retry_after);
        error.code = code;
        error
    }

    /// Decodes the object of an ERROR event.
    pub(crate) fn from_event(object: &str) -> StatusError {
        StatusError::from_wire(serde_json::from_str(object).unwrap_or_default())
    }

    fn from_wire(wire: Wire) -> StatusError {
        let Wire { code, reason, message, details } = wire;
        let details = details.unwrap_or_default();
        StatusError {
            code: u16::try_from(code).unwrap_or_default(),
            reason,
            message,
            causes: details.causes.into_iter().map(|cause| (cause.reason, cause.message)).collect(),
            retry_after: (details.retry_after_seconds > 0)
                .then(|| clamp_seconds(details.retry_after_seconds)),
        }
    }

    /// Whether the requested version was compacted.
    pub fn is_expired(&self) -> bool {
        self.code == 410 || matches!(self.reason.as_str(), "Expired" | "Gone")
    }

    /// Whether the server has not reached the requested version yet.
    pub(crate) fn is_too_large(&self) -> bool {
        const OLD_MESSAGE: &str = "Too large resource version";
        let cause = |(reason, message): &(String, String)| {
            reason == "ResourceVersionTooLarge"
                || (self.reason == "Timeout" && message.contains(OLD_MESSAGE))
        };
        self.causes.iter().any(cause)
            || (self.reason == "Timeout" && self.message.contains(OLD_MESSAGE))
    }
}

/// Accepts seconds only; a date is ignored.
fn parse_retry_after(text: &str) -> Option<Duration> {
    text.trim().parse::<i64>().ok().map(clamp_seconds)
}

/// Limits the delay to one minute.
fn clamp_seconds(seconds: i64) -> Duration {
    Duration::from_secs(seconds.clamp(0, 60).unsigned_abs())
}

#[derive(Default, Deserialize)]
struct Wire {
    #[serde(default)]
    code: i64,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    details: Option<WireDetails>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireDetails {
    #[serde(default)]
    causes: Vec<WireCause>,
    #[serde(default)]
    retry_after_seconds: i64,
}

#[derive(Default, Deserialize)]
struct WireCause {
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
}

/// The class of an error, by what the reflector does about it. Only this module reads status codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    Refused,
    TooManyRequests,
    Expired,
    TooLarge,
    /// 400 or 422: the server does not understand the request.
    NotUnderstood,
    Unauthorized,
    Forbidden,
    NotServed,
    /// 5xx, or a stream that was reset or cannot be read.
    Broken,
    Other,
}

impl Error {
    pub(crate) fn class(&self) -> Class {
        match self {
            Error::Status(status) => status.class(),
            Error::Refused(_) => Class::Refused,
            Error::Transport(_)
            | Error::Cut
            | Error::Stalled
            | Error::TooLong { .. }
            | Error::Malformed(_) => Class::Broken,
            Error::NoResourceVersion | Error::WrongKind(_) | Error::EndlessPages => Class::Other,
        }
    }

    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Error::Status(status) => status.retry_after,
            _ => None,
        }
    }
}

impl StatusError {
    pub(crate) fn class(&self) -> Class {
        if self.is_expired() {
            return Class::Expired;
        }
        if self.is_too_large() {
            return Class::TooLarge;
        }
        match self.code {
            429 => Class::TooManyRequests,
            400 | 422 => Class::NotUnderstood,
            401 => Class::Unauthorized,
            403 => Class::Forbidden,
            404 => Class::NotServed,
            0 | 500..=599 => Class::Broken,
            _ => Class::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C1.8
    #[test]
    fn a_refusal_keeps_code_reason_causes_and_advice() {
        let body = br#"{"kind":"Status","status":"Failure","message":"m","reason":"Timeout","details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"Too large"}],"retryAfterSeconds":1},"code":504}"#;
        let error = StatusError::from_body(504, None, body);
        assert_eq!((error.code, error.reason.as_str()), (504, "Timeout"));
        assert_eq!(error.causes, [("ResourceVersionTooLarge".into(), "Too large".into())]);
        assert_eq!(error.retry_after, Some(Duration::from_secs(1)));
        assert_eq!(
            StatusError::from_body(429, Some("7"), body).retry_after,
            Some(Duration::from_secs(7))
        );
        for body in ["<html>gateway</html>", "", "{", "null", "\u{fffd}"] {
            let error = StatusError::from_body(502, None, body.as_bytes());
            assert_eq!((error.code, error.class()), (502, Class::Broken), "{body}");
        }
    }

    /// C2.6
    #[test]
    fn too_large_is_detected_by_cause_and_by_the_message_of_old_servers() {
        check(504, "Timeout", "x", &[("ResourceVersionTooLarge", "")], true);
        check(504, "Timeout", "x", &[("", "Too large resource version: 9, current: 3")], true);
        check(504, "Timeout", "Timeout: Too large resource version: 9", &[], true);
        check(500, "InternalError", "Too large resource version", &[], false);
        check(504, "Timeout", "the request timed out", &[], false);
    }

    #[track_caller]
    fn check(code: u16, reason: &str, message: &str, causes: &[(&str, &str)], expected: bool) {
        let causes = causes.iter().map(|(r, m)| ((*r).to_owned(), (*m).to_owned())).collect();
        let error = StatusError { causes, ..StatusError::new(code, reason, message) };
        assert_eq!(error.class() == Class::TooLarge, expected);
    }

    /// B248, C31.11
    #[test]
    fn retry_after_is_between_zero_and_a_minute_whatever_it_says() {
        for (text, expected) in [
            ("5", Some(5)),
            (" 12 ", Some(12)),
            ("-3", Some(0)),
            ("315360000", Some(60)),
            ("Wed, 21 Oct 2026 07:28:00 GMT", None),
            ("99999999999999999999999", None),
            ("", None),
            ("1.5", None),
        ] {
            assert_eq!(parse_retry_after(text), expected.map(Duration::from_secs), "{text}");
        }
        let body = br#"{"details":{"retryAfterSeconds":-5}}"#;
        assert_eq!(StatusError::from_body(429, None, body).retry_after, None);
    }

    #[test]
    fn status_codes_have_a_class() {
        for (code, class) in [
            (410, Class::Expired),
            (429, Class::TooManyRequests),
            (400, Class::NotUnderstood),
            (422, Class::NotUnderstood),
            (401, Class::Unauthorized),
            (403, Class::Forbidden),
            (404, Class::NotServed),
            (500, Class::Broken),
            (503, Class::Broken),
            (504, Class::Broken),
            (302, Class::Other),
            (409, Class::Other),
        ] {
            assert_eq!(StatusError::new(code, "", "").class(), class, "{code}");
        }
        assert_eq!(StatusError::new(500, "Expired", "").class(), Class::Expired);
        assert_eq!(StatusError::from_event("null").class(), Class::Broken);
    }
}
