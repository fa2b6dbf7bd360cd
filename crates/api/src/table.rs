//! Tables: objects as rows of text, the representation that `kubectl get` requests (S4.50).
//!
//! River: snapshot or change → **table** → list bodies and watch frames.
//! Promise: the columns of all kinds are in one table; a row depends only on the object and the
//! time, and an object that lacks the field of a column still has a row.

mod age;
mod cells;
mod columns;
mod path;
pub mod partial;
mod write;

use std::borrow::Cow;

use headwater_json::Value;
use jiff::Timestamp;

use crate::kind::{Kind, Name};

pub use age::human_duration;
pub use path::JsonPath;
pub use write::{Headings, ListMeta, View};

/// One column of a kind's table.
#[derive(Clone, Debug)]
pub struct Column {
    /// The heading.
    pub name: Name,
    /// `string`, `integer`, `boolean`, `number` or `date`.
    pub kind: Name,
    /// `name` for the column that names the object, else empty.
    pub format: Name,
    /// A description for people.
    pub description: Name,
    /// Zero for columns that are always shown, one for wide output.
    pub priority: i32,
    cell: Cell,
}

/// How to compute a cell from an object.
#[derive(Clone, Debug)]
enum Cell {
    /// A function with an argument, and the text to show instead of an empty one.
    Computed { compute: cells::Compute, argument: &'static str, absent: &'static str },
    /// A column of a custom kind.
    Path(JsonPath),
}

/// The columns of a built-in kind. Kinds without columns of their own show name and creation time.
pub fn columns(kind: &Kind) -> &'static [Column] {
    columns::of(&kind.group, &kind.kind)
}

/// A column of a custom resource definition (S9.23).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrinterColumn {
    /// The heading.
    pub name: String,
    /// `string`, `integer`, `boolean`, `number` or `date`.
    pub kind: String,
    /// Any format.
    pub format: String,
    /// A description for people; may be empty.
    pub description: String,
    /// Zero for columns that are always shown.
    pub priority: i32,
    /// The path of the value.
    pub json_path: String,
}

/// The columns of a custom kind: the name, then those of the definition, or the age. An invalid
/// path gives a column of nulls.
pub fn custom_columns(printer: &[PrinterColumn]) -> Vec<Column> {
    let mut columns = vec![columns::shared("Name").clone()];
    if printer.is_empty() {
        let cell = Cell::Path(JsonPath::parse(".metadata.creationTimestamp").unwrap_or_default());
        columns.push(Column { kind: "date".into(), cell, ..columns::shared("Age").clone() });
    }
    columns.extend(printer.iter().map(|column| {
        Column {
            name: column.name.clone().into(),
            kind: column.kind.clone().into(),
            format: column.format.clone().into(),
            description: match column.description.as_str() {
                "" => format!(
                    "Custom resource definition column (in JSONPath format): {}",
                    column.json_path
                )
                .into(),
                description => description.to_owned().into(),
            },
            priority: column.priority,
            cell: Cell::Path(JsonPath::parse(&column.json_path).unwrap_or_default()),
        }
    }));
    columns
}

/// The cells of one object.
pub fn row(columns: &[Column], object: &Value, now: Timestamp) -> Vec<Value> {
    columns.iter().map(|column| column.cell(object, now)).collect()
}

impl Column {
    fn cell(&self, object: &Value, now: Timestamp) -> Value {
        match self.cell {
            Cell::Computed { compute, argument, absent } => {
                match compute(&Source { object, now, argument }) {
                    Value::String(text) if text.is_empty() => absent.into(),
                    cell => cell,
                }
            }
            Cell::Path(ref path) => path.cell(&self.kind, object, now),
        }
    }
}

/// What a cell is computed from.
struct Source<'a> {
    object: &'a Value,
    /// The time at which the object is shown.
    now: Timestamp,
    /// The argument in the column's row.
    argument: &'static str,
}

impl<'a> Source<'a> {
    fn at(&self, path: &str) -> Option<&'a Value> {
        find(self.object, path)
    }

    fn text(&self, path: &str) -> &'a str {
        text(self.object, path)
    }

    fn text_or(&self, path: &str, absent: &'static str) -> Cow<'a, str> {
        match self.at(path) {
            Some(Value::String(text)) if !text.is_empty() => Cow::Borrowed(text),
            Some(value @ (Value::Number(_) | Value::Bool(_))) => Cow::Owned(value.to_string()),
            _ => Cow::Borrowed(absent),
        }
    }

    fn number(&self, path: &str) -> i64 {
        self.at(path).and_then(Value::as_i64).unwrap_or(0)
    }

    fn count(&self, path: &str) -> usize {
        match self.at(path) {
            Some(Value::Object(members)) => members.len(),
            Some(Value::Array(elements)) => elements.len(),
            _ => 0,
        }
    }

    fn list(&self, path: &str) -> &'a [Value] {
        list(self.object, path)
    }

    fn has(&self, path: &str) -> bool {
        self.at(path).is_some_and(|value| !value.is_null())
    }
}

/// The value at a dotted path.
fn find<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(value, |value, step| value.get(step))
}

/// The string at a dotted path, or an empty string.
fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    find(value, path).and_then(Value::as_str).unwrap_or_default()
}

/// The elements at a dotted path, or none.
fn list<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    find(value, path).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests;
