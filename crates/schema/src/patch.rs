//! Patches: JSON patch (RFC 6902), merge patch (RFC 7386) and strategic merge patch on decoded
//! objects.
//!
//! River: PATCH body → **patch** → the object as it would be stored.
//! Promise: the number of operations, copied bytes and the depth are limited at each step, so no small
//! patch creates a huge object. After an error the object is in an unspecified state: callers patch a
//! copy.

mod strategic;

use std::io;

use headwater_json::{Map, Text, Value};

use headwater_api::kind::Kind;
use headwater_api::status::{Details, Status};

pub use strategic::strategic;

/// The maximum number of operations of a JSON patch.
const OPERATIONS_MAX: usize = 10_000;

/// The maximum number of JSON bytes that the `copy` operations of one patch may produce.
const COPIED_BYTES_MAX: usize = 3 * 1024 * 1024;

/// The maximum depth of a patched object.
const DEPTH_MAX: usize = 512;

/// The maximum number of values visited to check the depth of moved values. A move is cheap but the
/// check is not: ten thousand moves of a large object would take seconds.
const MOVED_VALUES_MAX: usize = 10_000_000;

/// The maximum number of elements that inserts into lists and removals from them may move.
const SHIFTED_ELEMENTS_MAX: usize = 100_000_000;

/// The type of a PATCH body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchType {
    /// `application/json-patch+json`.
    Json,
    /// `application/merge-patch+json`.
    Merge,
    /// `application/strategic-merge-patch+json`; not for custom kinds.
    Strategic,
    /// `application/apply-patch+yaml`.
    Apply,
}

impl PatchType {
    /// Parses the Content-Type of a PATCH; parameters are ignored (S2.18).
    pub fn parse(content_type: &str, kind: &Kind) -> Result<PatchType, Status> {
        match content_type.split(';').next().unwrap_or_default().trim() {
            "application/json-patch+json" => Ok(PatchType::Json),
            "application/merge-patch+json" => Ok(PatchType::Merge),
            "application/apply-patch+yaml" => Ok(PatchType::Apply),
            "application/strategic-merge-patch+json" if !kind.custom => Ok(PatchType::Strategic),
            _ => Err(unsupported_type(kind)),
        }
    }
}

fn unsupported_type(kind: &Kind) -> Status {
    let refuse = |message| Status::failure(415, "UnsupportedMediaType", message);
    if kind.custom {
        return refuse(
            "the body of the request was in an unknown format - accepted media types include: \
             application/json-patch+json, application/merge-patch+json, \
             application/apply-patch+yaml",
        );
    }
    refuse("415: Unsupported Media Type").with_details(Details::default())
}

/// Why a patch was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The body is not a patch. (400)
    #[error("{0}")]
    Malformed(String),
    /// It has too many operations. (413)
    #[error("The allowed maximum operations in a JSON patch is {OPERATIONS_MAX}, got {0}")]
    TooManyOperations(usize),
    /// It does not fit the object, or would make it too large. (422)
    #[error("{0}")]
    Unprocessable(String),
}

impl From<Error> for Status {
    fn from(error: Error) -> Status {
        match error {
            Error::Malformed(message) => Status::failure(400, "BadRequest", message),
            Error::TooManyOperations(_) => {
                let message = format!("Request entity too large: {error}");
                Status::failure(413, "RequestEntityTooLarge", message)
            }
            // Kubernetes does not return the reason.
            Error::Unprocessable(_) => {
                let message = "the server rejected our request due to an error in our request";
                Status::failure(422, "Invalid", message).with_details(Details::default())
            }
        }
    }
}

fn unprocessable<T>(why: impl Into<String>) -> Result<T, Error> {
    Err(Error::Unprocessable(why.into()))
}

/// Kubernetes' message about a value of the wrong JSON type.
fn cannot_decode(value: &Value, into: &str) -> Error {
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    Error::Malformed(format!("error decoding patch: json: cannot unmarshal {found} into Go {into}"))
}

/// Applies a merge patch.
pub fn merge(object: &mut Value, patch: Value) -> Result<(), Error> {
    match patch {
        Value::Object(patch) => {
            merge_object(object, patch);
            Ok(())
        }
        Value::Null => Err(Error::Malformed("Invalid JSON Patch".into())),
        other => Err(cannot_decode(&other, "value of type map[string]interface {}")),
    }
}

fn merge_object(target: &mut Value, patch: Map) {
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else { return };
    for (key, value) in patch {
        match value {
            Value::Null => {
                target.remove(&key);
            }
            Value::Object(patch) => merge_object(target.entry(key).or_insert(Value::Null), patch),
            value => {
                target.insert(key, value);
            }
        }
    }
}

/// Applies a JSON patch.
pub fn json(object: &mut Value, patch: Value) -> Result<(), Error> {
    let operations = match patch {
        Value::Array(operations) => operations,
        Value::Null => Vec::new(),
        other => return Err(cannot_decode(&other, "value of type []handlers.jsonPatchOp")),
    };
    let operations: Vec<Operation> =
        operations.into_iter().map(Operation::parse).collect::<Result<_, _>>()?;
    if operations.len() > OPERATIONS_MAX {
        return Err(Error::TooManyOperations(operations.len()));
    }
    let mut budget =
        Budget { copied: COPIED_BYTES_MAX, moved: MOVED_VALUES_MAX, shifted: SHIFTED_ELEMENTS_MAX };
    for operation in operations {
        operation.apply(object, &mut budget)?;
    }
    Ok(())
}

/// The remaining limits of one patch.
struct Budget {
    copied: usize,
    moved: usize,
    shifted: usize,
}

/// An operation of a JSON patch, with the types of its members checked.
struct Operation {
    op: Text,
    path: Option<Text>,
    from: Option<Text>,
    value: Option<Value>,
}

impl Operation {
    fn parse(value: Value) -> Result<Operation, Error> {
        let mut members = match value {
            Value::Object(members) => members,
            Value::Null => Map::new(),
            other => return Err(cannot_decode(&other, "value of type handlers.jsonPatchOp")),
        };
        let mut text = |name: &str| match members.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => {
                let field = format!("struct field jsonPatchOp.{name} of type string");
                Err(cannot_decode(&other, &field))
            }
        };
        let (op, path, from) = (text("op")?, text("path")?, text("from")?);
        let value = members.remove("value");
        Ok(Operation { op: op.unwrap_or_default(), path, from, value })
    }

    fn apply(self, object: &mut Value, budget: &mut Budget) -> Result<(), Error> {
        let path = Pointer::parse(self.path.as_deref())?;
        match self.op.as_str() {
            "add" => {
                let value = required(self.value)?;
                path.check_depth(&value, &mut { MOVED_VALUES_MAX })?;
                path.add(object, value, budget)
            }
            "remove" => path.remove(object, budget).map(drop),
            "replace" => {
                let value = required(self.value)?;
                path.check_depth(&value, &mut { MOVED_VALUES_MAX })?;
                path.replace(object, value)
            }
            "move" => {
                let value = Pointer::parse(self.from.as_deref())?.remove(object, budget)?;
                path.check_depth(&value, &mut budget.moved)?;
                path.add(object, value, budget)
            }
            "copy" => {
                let from = Pointer::parse(self.from.as_deref())?;
                let value = from.find(object)?;
                budget.take_copy(value)?;
                let value = value.clone();
                path.check_depth(&value, &mut { MOVED_VALUES_MAX })?;
                path.add(object, value, budget)
            }
            "test" => path.test(object, &self.value.unwrap_or_default()),
            other => unprocessable(format!("unexpected kind: {other}")),
        }
    }
}

fn required(value: Option<Value>) -> Result<Value, Error> {
    value.map_or_else(|| unprocessable("missing value"), Ok)
}

impl Budget {
    /// Charges the elements after a place in a list before they move.
    fn take_shift(&mut self, elements: usize) -> Result<(), Error> {
        match self.shifted.checked_sub(elements) {
            Some(left) => {
                self.shifted = left;
                Ok(())
            }
            None => unprocessable("the operations move too many elements of lists"),
        }
    }

    /// Charges a copy before it is made.
    fn take_copy(&mut self, value: &Value) -> Result<(), Error> {
        let mut counter = Counter { left: self.copied };
        match serde_json::to_writer(&mut counter, value) {
            Ok(()) => {
                self.copied = counter.left;
                Ok(())
            }
            Err(_) => unprocessable(format!("copies make more than {COPIED_BYTES_MAX} bytes")),
        }
    }
}

/// A writer that counts bytes and fails above a limit.
struct Counter {
    left: usize,
}

impl io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left = self.left.checked_sub(bytes.len()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A location in an object: the path to a container, and the last element.
struct Pointer {
    parents: Vec<String>,
    last: String,
}

impl Pointer {
    fn parse(text: Option<&str>) -> Result<Pointer, Error> {
        let Some(steps) = text.and_then(|text| text.strip_prefix('/')) else {
            return unprocessable("a path begins with a slash");
        };
        let mut steps: Vec<String> =
            steps.split('/').map(|step| step.replace("~1", "/").replace("~0", "~")).collect();
        let last = steps.pop().unwrap_or_default();
        Ok(Pointer { parents: steps, last })
    }

    fn container<'a>(&self, object: &'a mut Value) -> Result<&'a mut Value, Error> {
        self.parents.iter().try_fold(object, |value, step| child(value, step))
    }

    fn find<'a>(&self, object: &'a mut Value) -> Result<&'a mut Value, Error> {
        child(self.container(object)?, &self.last)
    }

    fn add(&self, object: &mut Value, value: Value, budget: &mut Budget) -> Result<(), Error> {
        match self.container(object)? {
            Value::Object(members) => {
                members.insert(self.last.as_str().into(), value);
            }
            Value::Array(elements) if self.last == "-" => elements.push(value),
            Value::Array(elements) => match index(&self.last) {
                Some(at) if at <= elements.len() => {
                    budget.take_shift(elements.len() - at)?;
                    elements.insert(at, value);
                }
                _ => return unprocessable(format!("no index {}", self.last)),
            },
            _ => return unprocessable(format!("{} is below a value that holds none", self.last)),
        }
        Ok(())
    }

    /// Adds a missing member, as Kubernetes does.
    fn replace(&self, object: &mut Value, value: Value) -> Result<(), Error> {
        match self.container(object)? {
            Value::Object(members) => {
                members.insert(self.last.as_str().into(), value);
            }
            container => *child(container, &self.last)? = value,
        }
        Ok(())
    }

    fn remove(&self, object: &mut Value, budget: &mut Budget) -> Result<Value, Error> {
        let removed = match self.container(object)? {
            Value::Object(members) => members.remove(&self.last),
            Value::Array(elements) => match index(&self.last) {
                Some(at) if at < elements.len() => {
                    budget.take_shift(elements.len() - at)?;
                    Some(elements.remove(at))
                }
                _ => None,
            },
            _ => None,
        };
        removed.map_or_else(|| unprocessable(format!("nothing at {}", self.last)), Ok)
    }

    /// A missing value equals null, as in Kubernetes.
    fn test(&self, object: &mut Value, expected: &Value) -> Result<(), Error> {
        let container = self.container(object)?;
        let equal = match child(container, &self.last) {
            Ok(found) => equal(found, expected),
            Err(_) => container.is_object() && expected.is_null(),
        };
        if equal { Ok(()) } else { unprocessable(format!("{} is another value", self.last)) }
    }

    /// Whether a value fits here without exceeding the maximum depth.
    fn check_depth(&self, value: &Value, budget: &mut usize) -> Result<(), Error> {
        let above = self.parents.len() + 1;
        if above < DEPTH_MAX && fits(value, DEPTH_MAX - above, budget) {
            return Ok(());
        }
        unprocessable(format!("deeper than {DEPTH_MAX} levels"))
    }
}

/// Whether a value has at most this many levels; visits at most `budget` values.
fn fits(value: &Value, levels: usize, budget: &mut usize) -> bool {
    if *budget == 0 {
        return false;
    }
    *budget -= 1;
    match value {
        Value::Array(elements) => {
            levels > 0 && elements.iter().all(|element| fits(element, levels - 1, budget))
        }
        Value::Object(members) => {
            levels > 0 && members.values().all(|member| fits(member, levels - 1, budget))
        }
        _ => true,
    }
}

fn child<'a>(value: &'a mut Value, step: &str) -> Result<&'a mut Value, Error> {
    let found = match value {
        Value::Object(members) => members.get_mut(step),
        Value::Array(elements) => index(step).and_then(|at| elements.get_mut(at)),
        _ => None,
    };
    found.map_or_else(|| unprocessable(format!("nothing at {step}")), Ok)
}

/// An index in a path: no sign, no leading zero.
fn index(step: &str) -> Option<usize> {
    let plain = step.bytes().all(|byte| byte.is_ascii_digit())
        && (step.len() == 1 || !step.starts_with('0'));
    if plain { step.parse().ok() } else { None }
}

/// Equality by value: 1 equals 1.0.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| equal(a, b)))
        }
        (a, b) => a == b,
    }
}

#[cfg(test)]
mod tests;
