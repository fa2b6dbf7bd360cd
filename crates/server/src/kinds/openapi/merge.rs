//! The documents of extension servers in the document of version 2.
//!
//! River: OpenAPI documents of extension servers → **merge** → the merged document. As Kubernetes'
//! aggregator does: only the paths of the group version and what they refer to are taken; paths that
//! exist stay; a definition whose name means something else gets a number, `…_v2`.

use std::collections::{BTreeMap, BTreeSet};

use headwater_json::{Map, Value};

/// The parts of a document to which paths refer, with the beginning of the references.
const SECTIONS: [(&str, &str); 2] =
    [("definitions", "#/definitions/"), ("parameters", "#/parameters/")];

/// How often the new names are computed again with those found before.
const RENAMING_PASSES: usize = 8;

const KINDS: &str = "x-kubernetes-group-version-kind";

/// What the paths below a prefix need of a document; `None` if it has no such paths.
pub(crate) fn part(document: &Value, prefix: &str) -> Option<Value> {
    let paths: Map = members(document, "paths")
        .into_iter()
        .flatten()
        .filter(|(path, _)| path.starts_with(prefix))
        .map(|(path, item)| (path.clone(), item.clone()))
        .collect();
    if paths.is_empty() {
        return None;
    }
    let paths = Value::Object(paths);
    let mut found: BTreeSet<String> = BTreeSet::new();
    let mut open = vec![&paths];
    while let Some(value) = open.pop() {
        references(value, &mut |reference| {
            if found.insert(reference.to_owned())
                && let Some(target) = target(document, reference)
            {
                open.push(target);
            }
        });
    }
    let mut part = Map::new();
    for (section, start) in SECTIONS {
        let used = members(document, section).into_iter().flatten();
        let used = used.filter(|(name, _)| found.contains(&format!("{start}{name}")));
        let used: Map = used.map(|(name, value)| (name.clone(), value.clone())).collect();
        part.insert(section.into(), used.into());
    }
    part.insert("paths".into(), paths);
    Some(Value::Object(part))
}

/// Adds the part of an extension server to a document.
pub(super) fn add(document: &mut Value, part: &Value) {
    let first = new_names(document, part, &BTreeMap::new());
    // A definition may be there already, with other names in its references.
    let mut renamed = first.clone();
    for _ in 0..RENAMING_PASSES {
        let next = new_names(document, part, &renamed);
        if next == renamed {
            break;
        }
        renamed = next;
    }
    if new_names(document, part, &renamed) != renamed {
        renamed = first;
    }
    for (section, start) in SECTIONS {
        for (name, value) in members(part, section).into_iter().flatten() {
            let name = renamed
                .get(&format!("{start}{name}"))
                .map_or(name.as_str(), |renamed| renamed.strip_prefix(start).unwrap_or(renamed));
            let value = with_names(value, &renamed);
            let there = document.get_mut(section).and_then(|section| section.get_mut(name));
            match there {
                Some(there) => join_kinds(there, &value),
                None => document[section][name] = value,
            }
        }
    }
    for (path, item) in members(part, "paths").into_iter().flatten() {
        if document["paths"].get(path).is_none() {
            document["paths"][path.as_str()] = with_names(item, &renamed);
        }
    }
}

/// The references of a part that get another name in a document, if its references get these.
fn new_names(
    document: &Value,
    part: &Value,
    renamed: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (section, start) in SECTIONS {
        for (name, value) in members(part, section).into_iter().flatten() {
            let free = name_for(document, part, section, name, &with_names(value, renamed));
            if free != name.as_str() {
                found.insert(format!("{start}{name}"), format!("{start}{free}"));
            }
        }
    }
    found
}

fn members<'a>(document: &'a Value, section: &str) -> Option<&'a Map> {
    document.get(section)?.as_object()
}

/// What a reference of a document refers to.
fn target<'a>(document: &'a Value, reference: &str) -> Option<&'a Value> {
    SECTIONS.iter().find_map(|(section, start)| {
        members(document, section)?.get(reference.strip_prefix(start)?)
    })
}

/// Calls a function with every reference in a value.
fn references<'a>(value: &'a Value, found: &mut impl FnMut(&'a str)) {
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                match value.as_str().filter(|_| key == "$ref") {
                    Some(reference) => found(reference),
                    None => references(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

/// The name under which a value of an extension server is in a document: its own if nothing else has
/// it.
fn name_for(document: &Value, part: &Value, section: &str, name: &str, value: &Value) -> String {
    let has =
        |of: &Value, name: &str| members(of, section).is_some_and(|all| all.contains_key(name));
    let mut free = name.to_owned();
    let mut number = 1;
    loop {
        match members(document, section).and_then(|all| all.get(&free)) {
            Some(there) if means_the_same(there, value) => return free,
            None if number == 1 || !has(part, &free) => return free,
            _ => {}
        }
        number += 1;
        free = format!("{name}_v{number}");
    }
}

/// Whether two definitions differ at most in their kinds.
fn means_the_same(one: &Value, other: &Value) -> bool {
    let plain = |value: &Value| {
        let mut value = value.clone();
        if let Some(members) = value.as_object_mut() {
            members.remove(KINDS);
        }
        value
    };
    one == other || plain(one) == plain(other)
}

/// Adds the kinds of a definition to those of an equal one.
fn join_kinds(there: &mut Value, other: &Value) {
    let more = other[KINDS].as_array().into_iter().flatten();
    let known = there[KINDS].as_array().cloned().unwrap_or_default();
    let more: Vec<Value> = more.filter(|kind| !known.contains(kind)).cloned().collect();
    if !more.is_empty() {
        there[KINDS] = known.into_iter().chain(more).collect::<Vec<_>>().into();
    }
}

/// A value with other references.
fn with_names(value: &Value, renamed: &BTreeMap<String, String>) -> Value {
    if renamed.is_empty() {
        return value.clone();
    }
    match value {
        Value::Object(members) => {
            let members = members.into_iter().map(|(key, value)| {
                let reference = value.as_str().filter(|_| key == "$ref");
                let value = match reference.and_then(|reference| renamed.get(reference)) {
                    Some(other) => other.as_str().into(),
                    None => with_names(value, renamed),
                };
                (key.clone(), value)
            });
            Value::Object(members.collect())
        }
        Value::Array(items) => {
            Value::Array(items.iter().map(|item| with_names(item, renamed)).collect())
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use headwater_json::json;

    use super::*;

    fn reference(name: &str) -> Value {
        json!({ "$ref": format!("#/definitions/{name}") })
    }

    #[test]
    fn only_the_paths_of_the_group_version_and_what_they_need_are_taken() {
        let document = json!({
            "paths": {
                "/apis/g/v1/": { "get": { "schema": reference("A") } },
                "/apis/g/": { "get": { "schema": reference("D") } },
            },
            "definitions": {
                "A": { "items": [reference("B")] }, "B": { "p": reference("A") }, "C": {}, "D": {},
            },
            "parameters": { "x": {} },
        });
        let part = part(&document, "/apis/g/v1/").unwrap();
        let names = |section: &str| -> Vec<&str> {
            part[section].as_object().unwrap().keys().map(|key| key.as_str()).collect()
        };
        assert_eq!(names("paths"), ["/apis/g/v1/"]);
        assert_eq!(names("definitions"), ["A", "B"]);
        assert_eq!(names("parameters"), [] as [&str; 0]);
        assert_eq!(super::part(&document, "/apis/h/"), None);
    }

    #[test]
    fn a_name_with_another_meaning_gets_a_number() {
        let mut document = json!({
            "paths": { "/old": 1 },
            "definitions": {
                "Same": { "type": "object", KINDS: [{ "kind": "A" }] },
                "Other": { "type": "string" }, "Other_v2": { "type": "integer" },
            },
            "parameters": {},
        });
        let part = json!({
            "paths": { "/old": 2, "/new": { "schema": reference("Other") } },
            "definitions": {
                "Same": { "type": "object", KINDS: [{ "kind": "A" }, { "kind": "B" }] },
                "Other": { "type": "boolean" },
                "User": { "properties": { "x": reference("Other") } },
            },
            "parameters": {},
        });
        add(&mut document, &part);
        let expected = json!({
            "paths": { "/old": 1, "/new": { "schema": reference("Other_v3") } },
            "definitions": {
                "Same": { "type": "object", KINDS: [{ "kind": "A" }, { "kind": "B" }] },
                "Other": { "type": "string" }, "Other_v2": { "type": "integer" },
                "Other_v3": { "type": "boolean" },
                "User": { "properties": { "x": reference("Other_v3") } },
            },
            "parameters": {},
        });
        assert_eq!(document, expected);
        // The same part again changes nothing.
        add(&mut document, &part);
        assert_eq!(document, expected);
    }
}
