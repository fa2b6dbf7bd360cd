//! Sets of fields, in the form that `fieldsV1` has on the wire.
//!
//! A set is an object of nodes. A node is an object too: its members are what is below it, and
//! `.` says that the node itself belongs to the set. A node with nothing below it needs no `.`.
//! Keeping this form means that reading and writing entries costs nothing, and that a write pays
//! for the fields it changes, not for all that are owned.

use serde_json::{Map, Value};

use super::structure::Structure;
use crate::query::quote;

/// A set of fields, or a node of one.
pub(super) type Fields = Map<String, Value>;

/// Whether a node belongs to its set.
pub(super) fn is_member(node: &Fields) -> bool {
    node.is_empty() || node.contains_key(".")
}

fn node(value: &Value) -> Option<&Fields> {
    value.as_object()
}

/// What is below a node.
pub(super) fn below(node: &Fields) -> impl Iterator<Item = (&String, &Fields)> {
    node.iter()
        .filter(|(key, _)| *key != ".")
        .filter_map(|(key, value)| Some((key, value.as_object()?)))
}

/// A node with what is below it, and whether it belongs itself; none if neither.
pub(super) fn make(mut below: Fields, member: bool) -> Option<Fields> {
    if below.is_empty() {
        return member.then_some(below);
    }
    if member {
        below.insert(".".into(), Value::Object(Fields::new()));
    }
    Some(below)
}

/// Adds a set to another.
pub(super) fn union(set: &mut Fields, other: &Fields) {
    for (key, theirs) in below(other) {
        match set.get_mut(key) {
            Some(Value::Object(ours)) => {
                let member = is_member(ours) || is_member(theirs);
                union(ours, theirs);
                if member && !ours.is_empty() {
                    ours.insert(".".into(), Value::Object(Fields::new()));
                }
            }
            _ => {
                set.insert(key.clone(), Value::Object(theirs.clone()));
            }
        }
    }
}

/// Takes a set out of another.
pub(super) fn subtract(set: &mut Fields, other: &Fields) {
    for (key, theirs) in below(other) {
        let Some(Value::Object(ours)) = set.get_mut(key) else { continue };
        let member = is_member(ours) && !is_member(theirs);
        ours.remove(".");
        subtract(ours, theirs);
        match (member, ours.is_empty()) {
            (false, true) => {
                set.remove(key);
            }
            (true, false) => {
                ours.insert(".".into(), Value::Object(Fields::new()));
            }
            (true, true) | (false, false) => {}
        }
    }
}

/// What two sets have in common.
pub(super) fn intersect(set: &Fields, other: &Fields) -> Fields {
    let mut common = Fields::new();
    for (key, theirs) in below(other) {
        let Some(ours) = set.get(key).and_then(node) else { continue };
        let member = is_member(ours) && is_member(theirs);
        if let Some(node) = make(intersect(ours, theirs), member) {
            common.insert(key.clone(), Value::Object(node));
        }
    }
    common
}

/// Whether all of a set is in another.
pub(super) fn is_subset(set: &Fields, other: &Fields) -> bool {
    below(set).all(|(key, ours)| {
        other.get(key).and_then(node).is_some_and(|theirs| {
            (is_member(theirs) || !is_member(ours)) && is_subset(ours, theirs)
        })
    })
}

/// Whether a set holds a direct member.
pub(super) fn contains(set: &Fields, key: &str) -> bool {
    set.get(key).and_then(node).is_some_and(is_member)
}

/// The set with all named fields that have something below them: ownership of what is in a
/// struct's field implies that the field is there.
pub(super) fn with_named<S: Structure>(set: &Fields, structure: S) -> Fields {
    let mut all = Fields::new();
    for (key, inner) in below(set) {
        let named = key.strip_prefix("f:").and_then(|name| structure.field(name));
        let member = is_member(inner) || named.is_some();
        let children = match named.or_else(|| structure.element()) {
            Some(structure) => with_named(inner, structure),
            None => {
                let mut inner = inner.clone();
                inner.remove(".");
                inner
            }
        };
        if let Some(node) = make(children, member) {
            all.insert(key.clone(), Value::Object(node));
        }
    }
    all
}

/// The paths of all members, for people: `.spec.containers[name="c"].image`.
pub(super) fn paths(set: &Fields) -> Vec<String> {
    let mut paths = Vec::new();
    collect_paths(set, &mut String::new(), &mut paths);
    paths
}

fn collect_paths(set: &Fields, prefix: &mut String, paths: &mut Vec<String>) {
    let length = prefix.len();
    for (key, _) in below(set).filter(|(_, node)| is_member(node)) {
        prefix.push_str(&step(key));
        paths.push(prefix.clone());
        prefix.truncate(length);
    }
    for (key, node) in below(set) {
        prefix.push_str(&step(key));
        collect_paths(node, prefix, paths);
        prefix.truncate(length);
    }
}

/// One step of a path, for people.
pub(super) fn step(key: &str) -> String {
    let value = |text: &str| match serde_json::from_str(text) {
        Ok(Value::String(text)) => quote(&text),
        Ok(other) => other.to_string(),
        Err(_) => text.to_owned(),
    };
    match key.split_at_checked(2) {
        Some(("f:", name)) => format!(".{name}"),
        Some(("v:", text)) => format!("[={}]", value(text)),
        Some(("i:", index)) => format!("[{index}]"),
        Some(("k:", text)) => {
            let keys: Fields = serde_json::from_str(text).unwrap_or_default();
            let keys: Vec<String> = keys
                .iter()
                .map(|(name, value)| match value {
                    Value::String(text) => format!("{name}={}", quote(text)),
                    other => format!("{name}={other}"),
                })
                .collect();
            format!("[{}]", keys.join(","))
        }
        _ => key.to_owned(),
    }
}

/// A set that came from outside, in its one spelling; none if it is not a set. Steps of a kind we
/// do not know are left out.
pub(super) fn read(value: &Value) -> Option<Fields> {
    let mut fields = Fields::new();
    for (key, value) in value.as_object()? {
        if key == "." {
            fields.insert(key.clone(), Value::Object(Fields::new()));
            continue;
        }
        let key = match key.split_at_checked(2)? {
            ("f:" | "i:", _) => key.clone(),
            ("v:", text) => format!("v:{}", serde_json::from_str::<Value>(text).ok()?),
            ("k:", text) => {
                let keys: Fields = serde_json::from_str(text).ok()?;
                format!("k:{}", Value::Object(keys))
            }
            (kind, _) if kind.ends_with(':') => continue,
            _ => return None,
        };
        fields.insert(key, Value::Object(read(value)?));
    }
    Some(fields)
}
