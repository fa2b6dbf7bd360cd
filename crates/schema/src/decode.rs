//! Decoding of request bodies to values of their type.
//!
//! River: HTTP body → **decode** → defaults and validation. Bytes are parsed once (JSON, YAML,
//! protobuf), then the value is fitted to the type of its kind: unknown fields are removed,
//! wrong types are rejected, times and quantities get their canonical text, and empty fields are
//! omitted or shown as in Kubernetes.
//! Promise: no input panics, overflows the stack or takes more than linear time; the result contains
//! every key once.

use std::collections::HashMap;
use std::fmt;

use headwater_json::path::PathList;
use headwater_json::{Malformed, Map, Parsed, Value};

use crate::protobuf::Envelope;
use crate::types::Types;
use crate::yaml;
use headwater_api::kind::Kind;
use headwater_api::status::ERRORS_MAX;

mod time;
mod typed;

/// A format of request bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `application/json`.
    Json,
    /// `application/yaml`, read as YAML 1.1.
    Yaml,
    /// `application/vnd.kubernetes.protobuf`.
    Protobuf,
}

/// The maximum size of a body whose problems are reported in the order of its fields.
const ORDERED_BYTES_MAX: usize = 64 * 1024;

/// A decoded object.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// The object, with `apiVersion` and `kind`.
    pub value: Value,
    /// Paths of fields that its type does not have; they are not in `value`.
    pub unknown: PathList,
    /// Paths of repeated keys; `value` has the last one.
    pub duplicates: PathList,
    /// The same of a YAML body: the messages of its parser, with lines.
    pub repeated: PathList,
    /// Paths of all fields in the order of the body; empty if not needed.
    order: Vec<String>,
}

impl Decoded {
    fn of(value: Value, unknown: PathList) -> Decoded {
        let (duplicates, repeated) = (PathList::default(), PathList::default());
        Decoded { value, unknown, duplicates, repeated, order: Vec::new() }
    }

    fn repeating(mut self, duplicates: PathList, format: Format, body: &[u8]) -> Decoded {
        match format {
            Format::Yaml if !duplicates.is_empty() => self.repeated = yaml::repeated_keys(body),
            _ => self.duplicates = duplicates,
        }
        self
    }

    /// One message for each field that ordinary validation warns about.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        self.repeated.iter().cloned().chain(self.problems())
    }

    /// One message for each unknown or duplicate field, in the order of the body.
    fn problems(&self) -> impl Iterator<Item = String> {
        let mut places: HashMap<&str, Vec<usize>> = HashMap::new();
        for (place, written) in self.order.iter().enumerate() {
            places.entry(written).or_default().push(place);
        }
        // A repeated key counts at its second occurrence.
        let at = |path: &String, nth: usize| {
            let found = places.get(path.as_str()).and_then(|all| all.get(nth));
            found.copied().unwrap_or(usize::MAX)
        };
        let unknown = self.unknown.iter().map(|path| (at(path, 0), "unknown", path));
        let duplicates = self.duplicates.iter().map(|path| (at(path, 1), "duplicate", path));
        let mut problems: Vec<_> = unknown.chain(duplicates).collect();
        problems.sort_by_key(|(place, _, _)| *place);
        problems.into_iter().map(|(_, what, path)| format!("{what} field {path:?}"))
    }

    /// The number of further fields that are not among the problems.
    pub fn omitted(&self) -> usize {
        self.unknown.omitted() + self.duplicates.omitted() + self.repeated.omitted()
    }

    /// Records the order of fields, if there are problems to sort. The order of long documents is not
    /// recorded: people do not write them.
    fn ordered(mut self, format: Format, body: &[u8]) -> Decoded {
        let many = self.unknown.len() + self.duplicates.len() > 1;
        if many && format == Format::Json && body.len() <= ORDERED_BYTES_MAX {
            self.order = headwater_json::field_paths(body);
        }
        self
    }

    /// The error of strict validation, if any.
    pub fn strict_error(&self, target: Target<'_>) -> Option<Error> {
        let repeated = (!self.repeated.is_empty()).then(|| unmarshal_errors(&self.repeated));
        let mut problems: Vec<String> = repeated.into_iter().chain(self.problems()).collect();
        if problems.is_empty() {
            return None;
        }
        if let more @ 1.. = (problems.len() + self.omitted()).saturating_sub(ERRORS_MAX) {
            problems.truncate(ERRORS_MAX);
            problems.push(format!("and {more} more"));
        }
        Some(target.unhandled(format!("strict decoding error: {}", problems.join(", "))))
    }
}

/// The error of strict YAML parsers about repeated keys.
pub fn unmarshal_errors(repeated: &PathList) -> String {
    format!("yaml: unmarshal errors:\n  {}", repeated.join("\n  "))
}

/// The expected type of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// API group; empty for the core group.
    pub group: &'a str,
    /// Version.
    pub version: &'a str,
    /// Kind.
    pub kind: &'a str,
}

impl<'a> From<&'a Kind> for Target<'a> {
    fn from(kind: &'a Kind) -> Target<'a> {
        Target { group: &kind.group, version: &kind.version, kind: &kind.kind }
    }
}

/// Why a body cannot be decoded. (400)
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not a document, or one without a kind.
    #[error("the object provided is unrecognized (must be of type {kind}): {why} ({summary})")]
    Unrecognized {
        /// The expected type.
        kind: String,
        /// The problem.
        why: String,
        /// The beginning of the body.
        summary: String,
    },
    /// A document that does not fit the type.
    #[error("{found} in version {version:?} cannot be handled as a {kind}: {why}")]
    Unhandled {
        /// The kind in the body.
        found: String,
        /// The version in the body.
        version: String,
        /// The expected type.
        kind: String,
        /// The problem.
        why: String,
    },
    /// A known version, but not that of the request.
    #[error(
        "the API version in the data ({found}) does not match the expected API version ({expected})"
    )]
    Version {
        /// The version of the body.
        found: String,
        /// The version of the request.
        expected: String,
    },
}

impl Error {
    /// The problem without its prefix, for patches, which use another prefix.
    pub fn why(&self) -> String {
        match self {
            Error::Unrecognized { why, .. } | Error::Unhandled { why, .. } => why.clone(),
            Error::Version { .. } => self.to_string(),
        }
    }
}

/// Decodes an object of a built-in kind.
pub fn object<'a>(
    target: impl Into<Target<'a>>,
    format: Format,
    body: &[u8],
) -> Result<Decoded, Error> {
    let target = target.into();
    if format == Format::Protobuf {
        return protobuf(target, body, |found| found.api_version);
    }
    let Parsed { value, duplicates } = document(target, format, body)?;
    let decoded = fit(target, value, None, |why| target.unrecognized(why, body))?;
    Ok(decoded.repeating(duplicates, format, body).ordered(format, body))
}

/// Decodes an object of a custom kind: only `metadata` is fitted; its schema covers the rest. Unlike
/// built-in kinds it must have `apiVersion` and `kind`.
pub fn custom(kind: &Kind, format: Format, body: &[u8]) -> Result<Decoded, Error> {
    let target = Target::from(kind);
    let Parsed { mut value, duplicates } = document(target, format, body)?;
    let object = value.as_object_mut().ok_or_else(|| {
        let why = "couldn't get version/kind; json parse error: not an object".into();
        target.unrecognized(why, body)
    })?;
    for (key, name) in [("kind", "Kind"), ("apiVersion", "apiVersion")] {
        if object.get(key).and_then(Value::as_str).is_none_or(str::is_empty) {
            let shown = String::from_utf8_lossy(body);
            let why = format!("Object '{name}' is missing in '{}'", shown.trim_end());
            return Err(target.unrecognized(why, body));
        }
    }
    let unknown = typed::metadata(object).map_err(|why| target.unhandled(why))?;
    Ok(Decoded::of(value, unknown).repeating(duplicates, format, body))
}

/// Fits the result of a patch to a custom kind: only `metadata`, as [`custom`] does.
pub fn recustom(kind: &Kind, mut value: Value) -> Result<Decoded, Error> {
    let target = Target::from(kind);
    let object = value.as_object_mut().ok_or_else(|| target.unhandled("not an object".into()))?;
    let unknown = typed::metadata(object).map_err(|why| target.unhandled(why))?;
    Ok(Decoded::of(value, unknown))
}

/// Fits embedded metadata; returns the paths of unknown fields, relative to its parent.
pub(crate) fn metadata(metadata: &mut Value) -> Result<PathList, String> {
    let mut object = Map::new();
    object.insert("metadata".into(), metadata.take());
    let fitted = typed::metadata(&mut object);
    *metadata = object.remove("metadata").unwrap_or_default();
    fitted
}

/// Fits a value, such as the result of a patch, to the type of a built-in kind. Members that equal
/// those of `old`, a stored object in the same version, fit already.
pub fn refit<'a>(
    target: impl Into<Target<'a>>,
    value: Value,
    old: Option<&Value>,
) -> Result<Decoded, Error> {
    let target = target.into();
    fit(target, value, old, |why| target.unhandled(why))
}

/// Decodes the body of a DELETE (S2.42), in any version.
pub fn delete_options(format: Format, body: &[u8]) -> Result<Decoded, Error> {
    let target = Target { group: "meta.k8s.io", version: "v1", kind: "DeleteOptions" };
    if format == Format::Protobuf {
        return protobuf(target, body, |_| "");
    }
    let Parsed { mut value, duplicates } = document(target, format, body)?;
    if let Some(object) = value.as_object_mut() {
        object.remove("apiVersion");
    }
    let decoded = fit(target, value, None, |why| target.unrecognized(why, body))?;
    Ok(decoded.repeating(duplicates, format, body))
}

/// Parses a stored object. Its `managedFields` become a string, their text, as [`crate::managed`]
/// reads them: they are about half of most objects.
pub fn stored(object: &[u8]) -> Result<Value, Malformed> {
    headwater_json::parse_stored(object, ["metadata", "managedFields"])
}

/// Parses a document of any type.
pub fn parse(format: Format, body: &[u8]) -> Result<Parsed, Malformed> {
    match format {
        Format::Json => headwater_json::parse(body),
        Format::Yaml => yaml::parse(body),
        Format::Protobuf => Err(Malformed::new("protobuf needs a built-in type")),
    }
}

fn document(target: Target<'_>, format: Format, body: &[u8]) -> Result<Parsed, Error> {
    parse(format, body).map_err(|malformed| {
        let why = match format {
            Format::Yaml => format!("error converting YAML to JSON: {malformed}"),
            _ => format!("couldn't get version/kind; json parse error: {malformed}"),
        };
        target.unrecognized(why, body)
    })
}

/// Decodes a message; `version` is the required version, `None` allows any.
fn protobuf(
    target: Target<'_>,
    body: &[u8],
    version: impl for<'a> Fn(&Envelope<'a>) -> &'a str,
) -> Result<Decoded, Error> {
    let message = crate::protobuf::envelope(body)
        .map_err(|error| target.unrecognized(error.to_string(), body))?;
    let found = Found { api_version: version(&message), kind: message.kind };
    target.accepts(&found)?;
    let value = crate::protobuf::object(target.group, target.version, target.kind, message.raw)
        .map_err(|error| target.unhandled(error.to_string()))?;
    fit(target, value, None, |why| target.unhandled(why))
}

/// Fits a parsed document; `unreadable` builds the error of one without a kind.
fn fit(
    target: Target<'_>,
    value: Value,
    old: Option<&Value>,
    unreadable: impl Fn(String) -> Error,
) -> Result<Decoded, Error> {
    let mut object = match value {
        Value::Object(object) => object,
        // As in Kubernetes, `null` is an empty object.
        Value::Null => Map::new(),
        other => {
            return Err(unreadable(format!(
                "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go value of type {FIND_KIND}",
                typed::json_type(&other)
            )));
        }
    };
    let found = Found {
        api_version: text(&object, "apiVersion").map_err(&unreadable)?,
        kind: text(&object, "kind").map_err(&unreadable)?,
    };
    target.accepts(&found)?;
    let Some(of) = Types::builtin().find(target.group, target.version, target.kind) else {
        return Err(target.unhandled(format!("no type for {:?}", target.kind)));
    };
    let unknown = typed::object(of, &mut object, old).map_err(|why| target.unhandled(why))?;
    object.insert("apiVersion".into(), target.api_version().into());
    object.insert("kind".into(), target.kind.into());
    Ok(Decoded::of(Value::Object(object), unknown))
}

/// Go's text for the type from which Kubernetes reads the kind.
const FIND_KIND: &str = r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;

fn text<'a>(object: &'a Map, key: &str) -> Result<&'a str, String> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(format!(
            "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go struct field .{key} of type string",
            typed::json_type(other)
        )),
    }
}

/// The `apiVersion` and `kind` of a body; empty if absent.
struct Found<'a> {
    api_version: &'a str,
    kind: &'a str,
}

impl Target<'_> {
    fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// Rejects a body of another type (S2.6).
    fn accepts(&self, found: &Found<'_>) -> Result<(), Error> {
        let expected = self.api_version();
        let api_version = if found.api_version.is_empty() { &expected } else { found.api_version };
        let kind = if found.kind.is_empty() { self.kind } else { found.kind };
        if (api_version, kind) == (expected.as_str(), self.kind) {
            return Ok(());
        }
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        if Types::builtin().find(group, version, kind).is_none() {
            let why = format!(
                "no kind {kind:?} is registered for version {api_version:?} in scheme \"pkg/api/legacyscheme/scheme.go:30\""
            );
            return Err(self.mistaken(version, kind, why));
        }
        if kind == self.kind {
            let found = api_version.to_owned();
            return Err(Error::Version { found, expected });
        }
        let package = if self.group.is_empty() { "core" } else { self.group };
        let package = package.split('.').next().unwrap_or_default();
        let why = format!(
            "converting ({version}.{kind}) to ({package}.{}): unknown conversion",
            self.kind
        );
        Err(self.mistaken(version, kind, why))
    }

    fn mistaken(&self, version: &str, found: &str, why: String) -> Error {
        Error::Unhandled {
            found: found.into(),
            version: version.into(),
            kind: self.kind.into(),
            why,
        }
    }

    fn unhandled(&self, why: String) -> Error {
        self.mistaken(self.version, self.kind, why)
    }

    fn unrecognized(&self, why: String, body: &[u8]) -> Error {
        Error::Unrecognized { kind: self.kind.into(), why, summary: Summary(body).to_string() }
    }
}

/// The beginning of a body, for error messages.
struct Summary<'a>(&'a [u8]);

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const BYTES_MAX: usize = 30;
        let start = &self.0[..self.0.len().min(BYTES_MAX)];
        match start.first() {
            None => return f.write_str("<empty>"),
            Some(b'{') => f.write_str(&String::from_utf8_lossy(start))?,
            Some(_) => start.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?,
        }
        if self.0.len() > BYTES_MAX { f.write_str(" ...") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
