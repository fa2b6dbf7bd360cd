//! Strategic merge patch: a merge patch that knows which lists are sets and maps (S2.21).
//!
//! Promise: how a field merges comes from the kind's type and from directives in the patch, never
//! from the values. Lists cost O(n log n), whatever a patch does to their order.

use std::collections::{BTreeMap, BTreeSet};

use headwater_json::{Map, MemberKey, Value};

use super::{Error, cannot_decode, unprocessable};
use crate::types::{Patch, Type, Types, ValueType};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList";
const ORDER: &str = "$setElementOrder";

/// Applies a strategic merge patch to an object of type `of`.
pub fn strategic(object: &mut Value, patch: Value, of: &'static Type) -> Result<(), Error> {
    let patch = match patch {
        Value::Object(patch) => patch,
        Value::Null => Map::new(),
        other => return Err(cannot_decode(&other, "value of type map[string]interface {}")),
    };
    let mut members = match object.take() {
        Value::Object(members) => members,
        _ => Map::new(),
    };
    merge_map(&mut members, patch, Level::Struct(of))?;
    *object = Value::Object(members);
    Ok(())
}

fn malformed<T>(why: impl Into<String>) -> Result<T, Error> {
    Err(Error::Malformed(why.into()))
}

/// The position of the merge in the kind's type.
#[derive(Clone, Copy)]
enum Level {
    Struct(&'static Type),
    /// A map with arbitrary keys, and the type of its values.
    Map(&'static ValueType),
    /// An untyped value: maps merge, lists are replaced.
    Unknown,
}

impl Level {
    fn of(shape: &'static ValueType) -> Level {
        match shape {
            ValueType::Struct(id) => Level::Struct(Types::builtin().get(*id)),
            ValueType::Map(inner) => Level::Map(inner),
            ValueType::List(inner) | ValueType::Wrapped(inner) => Level::of(inner),
            _ => Level::Unknown,
        }
    }

    /// The type of a member, and how it merges.
    fn below(self, key: &str) -> (Level, Patch) {
        match self {
            Level::Struct(of) => match of.field(key) {
                Some(field) => (Level::of(&field.shape), field.patch),
                None => (Level::Unknown, Patch::default()),
            },
            Level::Map(shape) => (Level::of(shape), Patch::default()),
            Level::Unknown => (Level::Unknown, Patch::default()),
        }
    }
}

fn merge_map(original: &mut Map, mut patch: Map, level: Level) -> Result<(), Error> {
    match patch.remove(DIRECTIVE) {
        None => {}
        Some(Value::String(word)) if word == "replace" => {
            *original = patch;
            return Ok(());
        }
        Some(Value::String(word)) if word == "delete" => {
            original.clear();
            return Ok(());
        }
        Some(other) => return malformed(format!("unknown patch type: {}", shown(&other))),
    }
    retain_keys(original, &mut patch)?;
    order_lists(original, &mut patch, level)?;
    for (key, value) in patch {
        match key.strip_prefix(DELETE_FROM) {
            Some(rest) => delete_from(original, rest, value)?,
            None => merge_member(original, key, value, level)?,
        }
    }
    Ok(())
}

fn merge_member(
    original: &mut Map,
    key: MemberKey,
    patch: Value,
    level: Level,
) -> Result<(), Error> {
    if patch.is_null() {
        original.remove(&key);
        return Ok(());
    }
    let (below, how) = level.below(&key);
    match (original.get_mut(&key), patch) {
        (Some(Value::Object(members)), Value::Object(patch)) => merge_map(members, patch, below)?,
        (Some(Value::Array(elements)), Value::Array(patch)) => {
            let merged = merge_list(std::mem::take(elements), patch, below, how)?;
            *elements = merged;
        }
        (_, patch) => match without_directives(patch) {
            Some(value) => {
                original.insert(key, value);
            }
            None => {
                original.remove(&key);
            }
        },
    }
    Ok(())
}

/// A value for an empty location: directives have nothing to act on, and nulls nothing to remove.
fn without_directives(value: Value) -> Option<Value> {
    Some(match value {
        Value::Object(members) if members.contains_key(DIRECTIVE) => return None,
        Value::Object(members) => members
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .filter_map(|(key, value)| Some((key, without_directives(value)?)))
            .collect(),
        Value::Array(elements) => elements.into_iter().filter_map(without_directives).collect(),
        scalar => scalar,
    })
}

/// `$retainKeys`: removes all other keys; the patch must not have others.
fn retain_keys(original: &mut Map, patch: &mut Map) -> Result<(), Error> {
    const WRONG: &str = "invalid patch format of retainKeys";
    let Some(keys) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let Value::Array(keys) = keys else { return malformed(WRONG) };
    let keys: BTreeSet<&str> = keys.iter().filter_map(Value::as_str).collect();
    let stray = patch.iter().any(|(key, value)| {
        !value.is_null()
            && !key.starts_with(DELETE_FROM)
            && !key.starts_with(ORDER)
            && !keys.contains(key.as_str())
    });
    if stray {
        return malformed(WRONG);
    }
    original.retain(|key, _| keys.contains(key.as_str()));
    Ok(())
}

/// `$deleteFromPrimitiveList/field`: removes these elements.
fn delete_from(original: &mut Map, rest: &str, unwanted: Value) -> Result<(), Error> {
    const WRONG: &str = "invalid patch format of primitive list";
    let Some(key) = rest.strip_prefix('/') else { return malformed(WRONG) };
    let unwanted = match unwanted {
        Value::Array(unwanted) => unwanted,
        Value::Null => return Ok(()),
        _ => return malformed(WRONG),
    };
    let unwanted: BTreeSet<String> = unwanted.iter().map(Value::to_string).collect();
    if let Some(Value::Array(elements)) = original.get_mut(key) {
        elements.retain(|element| !unwanted.contains(&element.to_string()));
    }
    Ok(())
}

/// `$setElementOrder/field`: merges lists and sorts them by the given order.
fn order_lists(original: &mut Map, patch: &mut Map, level: Level) -> Result<(), Error> {
    const WRONG: &str = "invalid patch format of setElementOrder list";
    let directives: Vec<MemberKey> =
        patch.keys().filter(|key| key.starts_with(ORDER)).cloned().collect();
    for directive in directives {
        let Some(Value::Array(order)) = patch.remove(&directive) else { return malformed(WRONG) };
        let Some(key) = directive[ORDER.len()..].strip_prefix('/') else {
            return malformed(WRONG);
        };
        let (below, how) = level.below(key);
        let before = match original.get(key) {
            None => None,
            Some(Value::Array(elements)) => Some(elements.clone()),
            Some(_) => return malformed(WRONG),
        };
        let added = match patch.remove(key) {
            None => None,
            Some(Value::Array(elements)) => Some(elements),
            // A removed list has no order.
            Some(Value::Null) => {
                original.remove(key);
                continue;
            }
            Some(_) => return malformed(WRONG),
        };
        if let Some(added) = &added {
            check_order(added, &order, how.key)?;
        }
        let merged = match (&before, added) {
            (None, None) => continue,
            (Some(before), None) => before.clone(),
            (None, Some(added)) => added.into_iter().filter_map(without_directives).collect(),
            (Some(before), Some(added)) => merge_list(before.clone(), added, below, how)?,
        };
        let before = before.unwrap_or_default();
        original.insert(key.into(), Value::Array(ordered(merged, &order, &before, how.key)?));
    }
    Ok(())
}

/// Checks that the order directive names all added elements, in the same order; empty is allowed.
fn check_order(added: &[Value], order: &[Value], key: Option<&str>) -> Result<(), Error> {
    if order.is_empty() {
        return Ok(());
    }
    let mut order = order.iter();
    for element in added.iter().filter(|element| element.get(DIRECTIVE).is_none()) {
        let wanted = identity(element, key)?;
        loop {
            match order.next() {
                Some(next) if identity(next, key)? == wanted => break,
                Some(_) => {}
                None => {
                    return malformed(
                        "The order in patch list doesn't match $setElementOrder list",
                    );
                }
            }
        }
    }
    Ok(())
}

fn merge_list(
    mut original: Vec<Value>,
    patch: Vec<Value>,
    level: Level,
    how: Patch,
) -> Result<Vec<Value>, Error> {
    if !how.merge {
        return Ok(patch);
    }
    let maps = check_elements(original.iter().chain(&patch))?;
    if !maps {
        let mut merged = original.clone();
        let mut seen = BTreeSet::new();
        merged.extend(patch.iter().cloned());
        merged.retain(|element| seen.insert(element.to_string()));
        return ordered(merged, &patch, &original, None);
    }
    let Some(key) = how.key else {
        return malformed("cannot merge lists without merge key");
    };
    let Some(patch) = take_directives(&mut original, patch, key)? else {
        return Ok(original);
    };
    let before = original.clone();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for (at, element) in original.iter().enumerate() {
        // Of several elements with the same key, the first is patched.
        if let Ok(identity) = identity(element, Some(key)) {
            places.entry(identity).or_insert(at);
        }
    }
    for element in patch.iter().cloned() {
        let identity = identity(&element, Some(key))?;
        let Value::Object(element) = element else { continue };
        match places.get(&identity).and_then(|at| original.get_mut(*at)) {
            Some(Value::Object(members)) => merge_map(members, element, level)?,
            _ => {
                places.insert(identity, original.len());
                original.push(Value::Object(element));
            }
        }
    }
    ordered(original, &patch, &before, Some(key))
}

/// Executes the directives in a list and returns the other elements; `None` if they replace the list.
fn take_directives(
    original: &mut Vec<Value>,
    patch: Vec<Value>,
    key: &str,
) -> Result<Option<Vec<Value>>, Error> {
    let (mut plain, mut unwanted, mut replaces) = (Vec::new(), BTreeSet::new(), false);
    for element in patch {
        match element.get(DIRECTIVE) {
            None => plain.push(element),
            Some(Value::String(word)) if word == "delete" => {
                unwanted.insert(identity(&element, Some(key))?);
            }
            Some(Value::String(word)) if word == "replace" => replaces = true,
            Some(Value::String(word)) if word == "merge" => {
                return malformed("merging lists cannot yet be specified in the patch");
            }
            Some(other) => return malformed(format!("unknown patch type: {}", shown(other))),
        }
    }
    if replaces {
        *original = plain;
        return Ok(None);
    }
    original.retain(|element| {
        identity(element, Some(key)).is_ok_and(|identity| !unwanted.contains(&identity))
    });
    Ok(Some(plain))
}

/// Whether the elements are all maps or all scalars.
fn check_elements<'a>(elements: impl Iterator<Item = &'a Value>) -> Result<bool, Error> {
    let mut maps = None;
    for element in elements {
        if element.is_array() {
            return unprocessable("lists of lists are not supported");
        }
        if *maps.get_or_insert(element.is_object()) != element.is_object() {
            return malformed("list element types are not identical");
        }
    }
    Ok(maps.unwrap_or(false))
}

/// The identity of an element: the value of its merge key, or the element itself.
fn identity(element: &Value, key: Option<&str>) -> Result<String, Error> {
    let Some(key) = key else { return Ok(element.to_string()) };
    match element.get(key) {
        Some(value) => Ok(value.to_string()),
        None => malformed(format!("map: does not contain declared merge key: {key}")),
    }
}

/// Sorts a merged list: elements of the patch in the order of the patch, others in their old order;
/// where neither order decides, elements of the patch come first.
fn ordered(
    merged: Vec<Value>,
    patch_order: &[Value],
    server_order: &[Value],
    key: Option<&str>,
) -> Result<Vec<Value>, Error> {
    let patch_order = positions(patch_order, key);
    let server_order = positions(server_order, key);
    let mut named: Vec<(usize, Option<usize>, Value)> = Vec::new();
    let mut others: Vec<(Option<usize>, Value)> = Vec::new();
    for element in merged {
        let identity = identity(&element, key)?;
        let server = server_order.get(&identity).copied();
        match patch_order.get(&identity) {
            Some(patch) => named.push((*patch, server, element)),
            None => others.push((server, element)),
        }
    }
    named.sort_by_key(|(patch, _, _)| *patch);
    others.sort_by_key(|(server, _)| server.unwrap_or(usize::MAX));
    let mut others = others.into_iter().peekable();
    let mut result = Vec::with_capacity(named.len() + others.len());
    for (_, server, element) in named {
        while let (Some(here), Some((Some(other), _))) = (server, others.peek()) {
            if *other >= here {
                break;
            }
            result.extend(others.next().map(|(_, element)| element));
        }
        result.push(element);
    }
    result.extend(others.map(|(_, element)| element));
    Ok(result)
}

fn positions(elements: &[Value], key: Option<&str>) -> BTreeMap<String, usize> {
    let mut positions = BTreeMap::new();
    for (at, element) in elements.iter().enumerate() {
        if let Ok(identity) = identity(element, key) {
            positions.entry(identity).or_insert(at);
        }
    }
    positions
}

/// A directive's value for a message, cut to one word.
fn shown(value: &Value) -> String {
    value.as_str().unwrap_or("not a word").chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use headwater_json::json;

    use super::*;
    use headwater_api::status::Status;

    fn patched(type_name: &str, object: &Value, patch: Value) -> Result<Value, Error> {
        let mut object = object.clone();
        strategic(&mut object, patch, Types::builtin().named(type_name).unwrap())?;
        Ok(object)
    }

    #[track_caller]
    fn check(type_name: &str, object: &Value, patch: Value, expected: &Value) {
        assert_eq!(&patched(type_name, object, patch).unwrap(), expected);
    }

    fn pod(names: &[&str]) -> Value {
        let containers: Vec<Value> =
            names.iter().map(|name| json!({"name": name, "image": format!("{name}:1")})).collect();
        json!({ "containers": containers })
    }

    #[track_caller]
    fn check_names(object: &[&str], patch: Value, expected: &[&str]) {
        let found = patched("core/v1.PodSpec", &pod(object), patch).unwrap();
        let names: Vec<&str> = found["containers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|container| container["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, expected);
    }

    /// S2.21
    #[test]
    fn keyed_lists_merge_by_key() {
        check(
            "core/v1.PodSpec",
            &pod(&["c", "e"]),
            json!({"containers": [{"name": "e", "image": "img:3"}]}),
            &json!({"containers": [
                {"name": "c", "image": "c:1"}, {"name": "e", "image": "img:3"}]}),
        );
        check_names(&["c", "e"], json!({"containers": [{"name": "f"}]}), &["f", "c", "e"]);
        check_names(
            &["f", "c", "e"],
            json!({"containers": [{"name": "e", "$patch": "delete"}]}),
            &["f", "c"],
        );
        check_names(
            &["f", "c"],
            json!({"containers": [{"$patch": "replace"}, {"name": "z"}]}),
            &["z"],
        );
        check(
            "core/v1.Container",
            &json!({"ports": [{"containerPort": 80, "name": "a"}]}),
            json!({"ports": [{"containerPort": 80, "name": "b"}, {"containerPort": 81}]}),
            &json!({"ports": [{"containerPort": 80, "name": "b"}, {"containerPort": 81}]}),
        );
    }

    /// S2.21
    #[test]
    fn a_directive_sets_the_order_of_a_list() {
        let order =
            |names: &[&str]| names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>();
        check_names(
            &["a", "b", "c"],
            json!({"$setElementOrder/containers": order(&["c", "a"])}),
            &["b", "c", "a"],
        );
        check_names(
            &["a", "b"],
            json!({"$setElementOrder/containers": order(&["a", "x", "b"]),
                   "containers": [{"name": "x"}]}),
            &["a", "x", "b"],
        );
        let error = patched(
            "core/v1.PodSpec",
            &pod(&["a"]),
            json!({"$setElementOrder/containers": order(&["a"]), "containers": [{"name": "x"}]}),
        );
        assert_eq!(Status::from(error.unwrap_err()).code, 400);
    }

    /// S2.21
    #[test]
    fn scalar_lists_are_sets_if_the_type_says_so() {
        let object = json!({"finalizers": ["a", "b"]});
        let of = "meta/v1.ObjectMeta";
        check(
            of,
            &object,
            json!({"finalizers": ["c", "b"]}),
            &json!({"finalizers": ["c", "a", "b"]}),
        );
        check(
            of,
            &object,
            json!({"$deleteFromPrimitiveList/finalizers": ["a"]}),
            &json!({"finalizers": ["b"]}),
        );
        check(
            "core/v1.Container",
            &json!({"args": ["a"]}),
            json!({"args": ["b"]}),
            &json!({"args": ["b"]}),
        );
        check(of, &json!({}), json!({"$deleteFromPrimitiveList/finalizers": ["a"]}), &json!({}));
    }

    #[test]
    fn maps_merge_unless_a_directive_replaces_them() {
        let object = json!({"labels": {"a": "1", "b": "2"}});
        let of = "meta/v1.ObjectMeta";
        check(
            of,
            &object,
            json!({"labels": {"b": null, "c": "3"}}),
            &json!({"labels": {"a": "1", "c": "3"}}),
        );
        check(
            of,
            &object,
            json!({"labels": {"$patch": "replace", "c": "3"}}),
            &json!({"labels": {"c": "3"}}),
        );
        check(of, &object, json!({"labels": {"$patch": "delete"}}), &json!({"labels": {}}));
        check(of, &object, json!({"labels": null}), &json!({}));
        check(
            of,
            &json!({}),
            json!({"labels": {"a": null, "b": "1"}}),
            &json!({"labels": {"b": "1"}}),
        );
        check(of, &json!({}), json!({"labels": {"$patch": "delete"}}), &json!({}));
    }

    /// S2.21
    #[test]
    fn keys_may_be_retained() {
        let of = "apps/v1.DeploymentSpec";
        let object =
            json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}});
        check(
            of,
            &object,
            json!({"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}),
            &json!({"strategy": {"type": "Recreate"}}),
        );
        let stray = json!({"strategy": {"$retainKeys": ["type"], "rollingUpdate": {}}});
        assert_eq!(Status::from(patched(of, &object, stray).unwrap_err()).code, 400);
    }

    #[test]
    fn invalid_directives_are_rejected() {
        for patch in [
            json!({"containers": [{"name": "a", "$patch": "jump"}]}),
            json!({"containers": [{"image": "x"}]}),
            json!({"containers": [{"$patch": "delete"}]}),
            json!({"containers": [{"$patch": "merge"}]}),
            json!({"containers": ["a"]}),
            json!({"securityContext": {"$patch": 1}}),
            json!({"$setElementOrder/containers": "x"}),
            json!({"$setElementOrder": []}),
            json!({"$deleteFromPrimitiveList": ["x"]}),
            json!({"$retainKeys": "x"}),
            json!([1]),
        ] {
            let object =
                json!({"containers": [{"name": "a"}], "securityContext": {"runAsUser": 1}});
            let error = patched("core/v1.PodSpec", &object, patch.clone()).expect_err("refused");
            assert_eq!(Status::from(error).code, 400, "{patch}");
        }
        let error = patched("core/v1.PodSpec", &pod(&["a"]), json!({"containers": [[]]}));
        assert_eq!(Status::from(error.unwrap_err()).code, 422);
    }
}
