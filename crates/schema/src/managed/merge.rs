//! Merging a configuration into an object, and removing fields from an object.

use std::collections::{BTreeMap, BTreeSet};

use headwater_json::{Map, Value};

use super::compare::{ElementNames, zip};
use super::fields::{FieldSet, Step};
use super::structure::{Form, Structure};
use headwater_api::query::quote;

/// Merges a configuration into the current object.
pub(super) fn merge_objects<S: Structure>(current: &Value, config: &Value, structure: S) -> Value {
    merge(Some(current), Some(config), structure).unwrap_or_else(|| Value::Object(Map::new()))
}

fn merge<S: Structure>(
    ours: Option<&Value>,
    theirs: Option<&Value>,
    structure: S,
) -> Option<Value> {
    let (Some(current), Some(wanted)) = (ours, theirs) else { return theirs.or(ours).cloned() };
    // Usually the values are equal, and equality is much cheaper than the walk below. What an apply
    // does not change is shared with the current object, so later comparisons end at once.
    if current == wanted {
        return Some(current.clone());
    }
    Some(match (structure.form(), current, wanted) {
        (Form::Map | Form::Deduced, Value::Object(ours), Value::Object(theirs)) => {
            Value::Object(merge_maps(ours, theirs, structure))
        }
        (Form::Set | Form::KeyedList, Value::Array(ours), Value::Array(theirs)) => {
            Value::Array(merge_lists(ours, theirs, structure))
        }
        // Null neither adds to nor removes from a map or list.
        (Form::Map | Form::Deduced, Value::Object(members), Value::Null) if !members.is_empty() => {
            current.clone()
        }
        (Form::Set | Form::KeyedList, Value::Array(elements), Value::Null)
            if !elements.is_empty() =>
        {
            current.clone()
        }
        _ => wanted.clone(),
    })
}

fn merge_maps<S: Structure>(ours: &Map, theirs: &Map, structure: S) -> Map {
    let merged = zip(ours, theirs).filter_map(|(key, ours, theirs)| {
        let value = match structure.field(key).or_else(|| structure.element()) {
            Some(inner) => merge(ours, theirs, inner),
            None => theirs.or(ours).cloned(),
        };
        Some((key, value?))
    });
    let merged: Map = merged.collect();
    if merged == *ours { ours.clone() } else { merged }
}

/// Merges lists: elements of the configuration in its order; other elements stay before the shared
/// element that they preceded.
fn merge_lists<S: Structure>(ours: &[Value], theirs: &[Value], structure: S) -> Vec<Value> {
    let Some(inner) = structure.element() else { return theirs.to_vec() };
    let (Some(our_keys), Some(their_keys)) = (keys(ours, structure), keys(theirs, structure))
    else {
        return theirs.to_vec();
    };
    if our_keys == their_keys && are_few_and_distinct(&our_keys) {
        let pairs = ours.iter().zip(theirs);
        return pairs.filter_map(|(our, their)| merge(Some(our), Some(their), inner)).collect();
    }
    let wanted: BTreeSet<&Step<'_>> = their_keys.iter().collect();
    let mut by_key: BTreeMap<&Step<'_>, Option<&Value>> = BTreeMap::new();
    for (key, element) in our_keys.iter().zip(ours) {
        // Duplicate elements are replaced, not merged.
        by_key.entry(key).and_modify(|found| *found = None).or_insert(Some(element));
    }
    let take = |at: usize| {
        let ours = by_key.get(&their_keys[at]).copied().flatten();
        merge(ours, Some(&theirs[at]), inner)
    };
    let mut shared =
        their_keys.iter().filter(|key| by_key.contains_key(key)).collect::<Vec<_>>().into_iter();
    let mut next_shared = shared.next();
    let mut merged = Vec::with_capacity(ours.len() + theirs.len());
    let mut taken: BTreeSet<&Step<'_>> = BTreeSet::new();
    let (mut left, mut right) = (0, 0);
    while left < our_keys.len() || right < their_keys.len() {
        let ours_here = our_keys.get(left);
        let theirs_here = their_keys.get(right);
        if let (Some(key), Some(their)) = (ours_here, theirs_here) {
            if key == their {
                taken.insert(their);
                merged.extend(take(right));
                (left, right) = (left + 1, right + 1);
                next_shared = shared.next();
                continue;
            }
            if wanted.contains(key) && next_shared.is_some_and(|next| next != key) {
                left += 1;
                continue;
            }
        }
        if let Some(key) = ours_here {
            if !wanted.contains(key) {
                merged.push(ours[left].clone());
                left += 1;
                continue;
            }
            if taken.contains(key) {
                left += 1;
            }
        }
        if let Some(key) = theirs_here {
            taken.insert(key);
            merged.extend(take(right));
            right += 1;
            if next_shared == Some(key) {
                next_shared = shared.next();
            }
        }
    }
    merged
}

/// The names of all elements of a list; `None` if one has no name.
fn keys<S: Structure>(list: &[Value], structure: S) -> Option<Vec<Step<'static>>> {
    let names = ElementNames::of(structure);
    list.iter().map(|element| names.name(element)).collect()
}

/// Whether a list is short and its elements are evidently unique.
fn are_few_and_distinct(keys: &[Step<'_>]) -> bool {
    const FEW: usize = 8;
    keys.len() <= FEW && (1..keys.len()).all(|at| !keys[..at].contains(&keys[at]))
}

/// Removes the fields of a set from an object; `None` if nothing remains.
pub(super) fn remove<S: Structure>(
    value: &Value,
    set: &FieldSet<'_>,
    structure: S,
) -> Option<Value> {
    match (structure.form(), value) {
        (Form::Map | Form::Deduced, Value::Object(members)) => {
            let mut kept = Map::new();
            for (key, value) in members {
                let found = set.get(&Step::field(key));
                if found.is_some_and(|node| node.member) {
                    continue;
                }
                let below = found.map(|node| &node.below);
                let inner = structure.field(key).or_else(|| structure.element());
                // A member of which nothing remains stays, as null.
                let value = match (below.filter(|below| !below.is_empty()), inner) {
                    (Some(below), Some(inner)) => remove(value, below, inner).unwrap_or_default(),
                    _ => value.clone(),
                };
                kept.insert(key.clone(), value);
            }
            (!kept.is_empty()).then_some(Value::Object(kept))
        }
        (Form::Set | Form::KeyedList, Value::Array(elements)) => {
            let inner = structure.element()?;
            let names = ElementNames::of(structure);
            let mut kept = Vec::new();
            for element in elements {
                match names.name(element).and_then(|step| set.get(&step)) {
                    Some(node) if node.member => {}
                    Some(node) if !node.below.is_empty() => {
                        kept.push(remove(element, &node.below, inner).unwrap_or_default());
                    }
                    Some(_) => kept.push(element.clone()),
                    None => kept.push(element.clone()),
                }
            }
            (!kept.is_empty()).then_some(Value::Array(kept))
        }
        // Removing a part of an atomic value removes the value.
        (Form::AtomicMap | Form::AtomicList, Value::Object(_) | Value::Array(_)) => None,
        _ => Some(value.clone()),
    }
}

/// Checks that a configuration fits its type; returns the first error.
pub(super) fn validate<S: Structure>(value: &Value, structure: S) -> Result<(), String> {
    if value.is_null() {
        return Ok(());
    }
    match structure.form() {
        Form::Map | Form::AtomicMap => validate_map(value, structure),
        Form::Set | Form::KeyedList | Form::AtomicList => validate_list(value, structure),
        Form::Text if !value.is_string() => Err(format!(": expected string, got {value}")),
        Form::Number if !value.is_number() => {
            Err(format!(": expected numeric (int or float), got {}", go_type(value)))
        }
        Form::Bool if !value.is_boolean() => Err(format!(": expected boolean, got {value}")),
        Form::Scalar if value.is_object() || value.is_array() => {
            Err(": expected any scalar".to_owned())
        }
        _ => Ok(()),
    }
    .map_err(|why| why.strip_prefix(": ").map_or(why.clone(), str::to_owned))
}

/// Prepends a path element to an error.
fn at(step: &str, why: &str) -> String {
    if why.starts_with(['.', '[']) { format!("{step}{why}") } else { format!("{step}: {why}") }
}

fn validate_map<S: Structure>(value: &Value, structure: S) -> Result<(), String> {
    let Value::Object(members) = value else {
        return Err(format!("expected map, got {}", go_type(value)));
    };
    for (key, value) in members {
        match structure.field(key).or_else(|| structure.element()) {
            Some(inner) => validate(value, inner).map_err(|why| at(&format!(".{key}"), &why))?,
            None => return Err(format!(".{key}: field not declared in schema")),
        }
    }
    Ok(())
}

fn validate_list<S: Structure>(value: &Value, structure: S) -> Result<(), String> {
    let Value::Array(elements) = value else {
        return Err(format!("expected list, got {}", go_type(value)));
    };
    let Some(inner) = structure.element() else { return Ok(()) };
    let names = ElementNames::of(structure);
    let mut seen = BTreeSet::new();
    for (index, element) in elements.iter().enumerate() {
        if structure.form() == Form::AtomicList {
            validate(element, inner).map_err(|why| at(&format!("[{index}]"), &why))?;
            continue;
        }
        let step = names
            .name(element)
            .ok_or_else(|| format!("element {index}: {}", why_unnamed(element, structure)))?;
        if seen.contains(&step) {
            return Err(format!("duplicate entries for key {step}"));
        }
        validate(element, inner).map_err(|why| at(&step.to_string(), &why))?;
        seen.insert(step);
    }
    Ok(())
}

fn why_unnamed<S: Structure>(element: &Value, list: S) -> String {
    match (list.form(), element) {
        (Form::Set, Value::Object(_)) => {
            "associative list without keys has an element that's a map type".into()
        }
        (Form::Set, Value::Array(_)) => {
            "not supported: associative list with lists as elements".into()
        }
        (Form::Set, _) => {
            "associative list without keys has an element that's an explicit null".into()
        }
        (_, Value::Null) => "associative list with keys may not have a null element".into(),
        (_, Value::Object(_)) => {
            let keys: Vec<String> = list.keys().iter().map(|key| quote(key)).collect();
            format!(
                "associative list with keys has an element that omits all key fields [{}] (and \
                 doesn't have default values for any key fields)",
                keys.join(" ")
            )
        }
        _ => "associative list with keys may not have non-map elements".into(),
    }
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "nil",
        Value::Bool(_) => "bool",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}
