//! What differs between two versions of an object, field by field.
//!
//! River: two versions → **changes** → a line per field, or JSON. Pure.
//! Promise: paths are stable: elements of a list are named by their `name`, `type` or `uid` if all have
//! one, otherwise by position. Bookkeeping of the server (`managedFields`, `resourceVersion`) is left out.

use headwater_json::{Map, Value, json};

/// The longest value that is shown on a terminal, in characters.
const SHOWN_MAX: usize = 160;

/// One field that differs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FieldChange {
    /// Such as `spec.containers[app].image`.
    pub(crate) path: String,
    /// The value before; `None` if the field is new.
    pub(crate) old: Option<Value>,
    /// The value after; `None` if the field was removed.
    pub(crate) new: Option<Value>,
}

/// The fields that differ, in the order of the object's fields.
pub(crate) fn between(old: &Value, new: &Value) -> Vec<FieldChange> {
    let mut found = Vec::new();
    compare("", Some(old), Some(new), &mut found);
    found
}

/// Whether a field says what the server did for itself, not what changed.
fn is_bookkeeping(path: &str) -> bool {
    matches!(path, "metadata.managedFields" | "metadata.resourceVersion")
}

fn compare(path: &str, old: Option<&Value>, new: Option<&Value>, found: &mut Vec<FieldChange>) {
    if old == new || is_bookkeeping(path) {
        return;
    }
    match (old, new) {
        (Some(Value::Object(old)), Some(Value::Object(new))) => members(path, old, new, found),
        (Some(Value::Array(old)), Some(Value::Array(new))) if named(old, new).is_some() => {
            let key = named(old, new).unwrap_or_default();
            elements(path, key, old, new, found);
        }
        (Some(Value::Array(old)), Some(Value::Array(new)))
            if old.len() == new.len() && old.iter().chain(new).all(Value::is_object) =>
        {
            for (index, (old, new)) in old.iter().zip(new).enumerate() {
                compare(&format!("{path}[{index}]"), Some(old), Some(new), found);
            }
        }
        _ => {
            found.push(FieldChange { path: path.to_owned(), old: old.cloned(), new: new.cloned() })
        }
    }
}

fn members(path: &str, old: &Map, new: &Map, found: &mut Vec<FieldChange>) {
    let added = new.keys().filter(|key| !old.contains_key(key.as_str()));
    for key in old.keys().chain(added) {
        compare(&join(path, key.as_str()), old.get(key.as_str()), new.get(key.as_str()), found);
    }
}

/// A path to a member; a key with dots or slashes is quoted.
fn join(path: &str, key: &str) -> String {
    let is_plain = !key.is_empty() && !key.contains(['.', '/', '[', ']', '"']);
    match (path, is_plain) {
        ("", true) => key.to_owned(),
        (_, true) => format!("{path}.{key}"),
        (_, false) => format!("{path}[{key:?}]"),
    }
}

/// The field that names the elements of both lists: all have it, and none twice.
fn named(old: &[Value], new: &[Value]) -> Option<&'static str> {
    ["name", "type", "uid"].into_iter().find(|key| {
        [old, new].iter().all(|list| {
            let names: Vec<&str> = list.iter().filter_map(|item| item[*key].as_str()).collect();
            let mut distinct = names.clone();
            distinct.sort_unstable();
            distinct.dedup();
            names.len() == list.len() && distinct.len() == names.len()
        })
    })
}

fn elements(path: &str, key: &str, old: &[Value], new: &[Value], found: &mut Vec<FieldChange>) {
    let name = |item: &Value| item[key].as_str().unwrap_or_default().to_owned();
    let find = |list: &'_ [Value], wanted: &str| list.iter().position(|item| name(item) == wanted);
    let added = new.iter().filter(|item| find(old, &name(item)).is_none());
    for item in old.iter().chain(added) {
        let name = name(item);
        let before = find(old, &name).map(|at| &old[at]);
        let after = find(new, &name).map(|at| &new[at]);
        compare(&format!("{path}[{name}]"), before, after, found);
    }
}

impl FieldChange {
    /// The change as a member of a JSON event.
    pub(crate) fn to_json(&self) -> Value {
        let op = match (&self.old, &self.new) {
            (None, _) => "add",
            (_, None) => "remove",
            _ => "replace",
        };
        let mut made = json!({ "path": self.path.as_str(), "op": op });
        for (name, value) in [("old", &self.old), ("new", &self.new)] {
            if let Some(value) = value {
                made[name] = value.clone();
            }
        }
        made
    }

    /// A line for a terminal, without colour: the sign, and the text after it.
    pub(crate) fn line(&self) -> (char, String) {
        let path = &self.path;
        match (&self.old, &self.new) {
            (None, Some(new)) => ('+', format!("{path}: {}", shown(new))),
            (Some(old), None) => ('-', format!("{path}: {}", shown(old))),
            (Some(old), Some(new)) => ('~', format!("{path}: {} → {}", shown(old), shown(new))),
            (None, None) => (' ', path.clone()),
        }
    }

    /// Replaces the values of a Secret by their lengths.
    pub(crate) fn hide_secret(&mut self) {
        if !self.path.starts_with("data") && !self.path.starts_with("stringData") {
            return;
        }
        for value in [&mut self.old, &mut self.new].into_iter().flatten() {
            *value = format!("<hidden, {} bytes>", value.to_string().len()).into();
        }
    }
}

/// A value as JSON, which escapes control characters; the middle of a long one is left out.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    let count = text.chars().count();
    if count <= SHOWN_MAX {
        return text;
    }
    let start: String = text.chars().take(SHOWN_MAX / 2).collect();
    let end: String = text.chars().skip(count - SHOWN_MAX / 4).collect();
    format!("{start}…{end} ({count} characters)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(old: &Value, new: &Value, expected: &[&str]) {
        let lines = between(old, new).into_iter().map(|change| {
            let (sign, text) = change.line();
            format!("{sign} {text}")
        });
        assert_eq!(lines.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn fields_are_added_removed_and_replaced() {
        check(
            &json!({"metadata": {"resourceVersion": "1", "labels": {"a": "b"}}, "spec": {"x": 1}}),
            &json!({"metadata": {"resourceVersion": "2", "labels": {"app.io/c": "d"}}, "spec": {"x": 2}}),
            &[
                r#"- metadata.labels.a: "b""#,
                r#"+ metadata.labels["app.io/c"]: "d""#,
                "~ spec.x: 1 → 2",
            ],
        );
        check(&json!({"a": null}), &json!({"a": null}), &[]);
        check(&json!({"a": []}), &json!({"a": {}}), &["~ a: [] → {}"]);
    }

    #[test]
    fn elements_of_lists_are_named_if_they_have_names() {
        check(
            &json!({"c": [{"name": "a", "image": "1"}, {"name": "b"}]}),
            &json!({"c": [{"name": "x"}, {"name": "a", "image": "2"}]}),
            &[r#"~ c[a].image: "1" → "2""#, r#"- c[b]: {"name":"b"}"#, r#"+ c[x]: {"name":"x"}"#],
        );
        check(
            &json!({"conditions": [{"type": "Ready", "status": "False"}]}),
            &json!({"conditions": [{"type": "Ready", "status": "True"}]}),
            &[r#"~ conditions[Ready].status: "False" → "True""#],
        );
        check(&json!({"p": [{"port": 1}]}), &json!({"p": [{"port": 2}]}), &["~ p[0].port: 1 → 2"]);
        check(&json!({"f": ["a"]}), &json!({"f": []}), &[r#"~ f: ["a"] → []"#]);
    }

    #[test]
    fn control_characters_and_long_values_do_not_reach_the_terminal() {
        let change = |new: &str| between(&json!({}), &json!({ "a": new })).remove(0).line().1;
        assert_eq!(change("\u{1b}[2J"), r#"a: "\u001b[2J""#);
        assert!(change(&"x".repeat(10_000)).chars().count() < 200);
    }

    #[test]
    fn the_values_of_secrets_can_be_hidden() {
        let mut change =
            between(&json!({"data": {"k": "c2VjcmV0"}}), &json!({"data": {"k": "b3RoZXI="}}))
                .remove(0);
        change.hide_secret();
        assert!(!change.to_json().to_string().contains("c2Vj"), "{change:?}");
    }
}
