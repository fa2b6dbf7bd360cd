//! The fields of an object, and the fields in which two objects differ.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use headwater_json::{Map, Value, push_value};

use super::SYSTEM_METADATA;
use super::fields::{FieldSet, Node, Step};
use super::structure::{Form, Structure};

/// The difference of two objects. The sets are disjoint.
#[derive(Clone, Debug, Default)]
pub(super) struct Changes<'a> {
    pub(super) added: FieldSet<'a>,
    pub(super) modified: FieldSet<'a>,
    pub(super) removed: FieldSet<'a>,
}

impl Changes<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }
}

/// Compares two objects, without fields that the server sets and without `ignored` members.
pub(super) fn compare_objects<'a, S: Structure>(
    old: &'a Value,
    new: &'a Value,
    ignored: &[&str],
    structure: S,
) -> Changes<'a> {
    let mut root = Found::default();
    let (old, new) = (members(Some(old)), members(Some(new)));
    let skipped = |key: &str| matches!(key, "apiVersion" | "kind") || ignored.contains(&key);
    for (key, old, new) in zip(old, new).filter(|(key, ..)| !skipped(key)) {
        let Some(inner) = structure.field(key).or_else(|| structure.element()) else { continue };
        let found = if key == "metadata" {
            compare_metadata(old, new, inner)
        } else {
            compare(old, new, inner)
        };
        root.attach(|| Step::field(key), found);
    }
    let set = |node: Option<Node<'a>>| node.map(|node| node.below).unwrap_or_default();
    Changes { added: set(root.added), modified: set(root.modified), removed: set(root.removed) }
}

fn compare_metadata<'a, S: Structure>(
    old: Option<&'a Value>,
    new: Option<&'a Value>,
    structure: S,
) -> Found<'a> {
    let mut found = Found::default();
    let pairs = zip(members(old), members(new));
    for (key, old, new) in pairs.filter(|(key, ..)| !SYSTEM_METADATA.contains(key)) {
        if let Some(inner) = structure.field(key) {
            found.attach(|| Step::field(key), compare(old, new, inner));
        }
    }
    found
}

/// The members of an object; empty for other values.
pub(super) fn members(value: Option<&Value>) -> &Map {
    static EMPTY: LazyLock<Map> = LazyLock::new(Map::new);
    value.and_then(Value::as_object).unwrap_or(&EMPTY)
}

/// The differences at a node and below it.
#[derive(Default)]
struct Found<'a> {
    added: Option<Node<'a>>,
    modified: Option<Node<'a>>,
    removed: Option<Node<'a>>,
}

impl<'a> Found<'a> {
    /// Adds differences below a path element, which is formatted only if there are any.
    fn attach(&mut self, step: impl Fn() -> Step<'a>, found: Found<'a>) {
        for (ours, theirs) in [
            (&mut self.added, found.added),
            (&mut self.modified, found.modified),
            (&mut self.removed, found.removed),
        ] {
            if let Some(node) = theirs.and_then(Node::some) {
                ours.get_or_insert_default().below.push(step(), node);
            }
        }
    }

    /// Marks the node itself.
    fn mark(&mut self, old: Option<&Value>, new: Option<&Value>) {
        match (old, new) {
            (None, Some(_)) => self.added.get_or_insert_default().member = true,
            (Some(_), None) => self.removed.get_or_insert_default().member = true,
            _ => {}
        }
    }

    fn leaf(old: Option<&Value>, new: Option<&Value>) -> Found<'a> {
        let mut found = Found::default();
        found.mark(old, new);
        if let (Some(old), Some(new)) = (old, new)
            && old != new
        {
            found.modified.get_or_insert_default().member = true;
        }
        found
    }
}

fn compare<'a, S: Structure>(
    old: Option<&'a Value>,
    new: Option<&'a Value>,
    structure: S,
) -> Found<'a> {
    // Most of an object does not change, and equality is much cheaper than the walk below.
    match (old, new) {
        (None, None) => return Found::default(),
        (None, Some(new)) => {
            return Found { added: Some(whole(new, structure)), ..Found::default() };
        }
        (Some(old), None) => {
            return Found { removed: Some(whole(old, structure)), ..Found::default() };
        }
        (Some(old), Some(new)) if old == new => return Found::default(),
        (Some(_), Some(_)) => {}
    }
    match structure.form() {
        Form::Map => compare_maps(old, new, structure),
        Form::Deduced => {
            // A null takes the form of the other value, here that of an empty map.
            let mut found = compare_maps(old, new, structure);
            let is_map = |value: &Value| value.is_object() || value.is_null();
            if !old.is_none_or(is_map) || !new.is_none_or(is_map) {
                found.modified.get_or_insert_default().member = true;
            }
            found
        }
        Form::Set | Form::KeyedList => compare_lists(old, new, structure),
        _ => Found::leaf(old, new),
    }
}

/// All fields of a node that the other object lacks.
fn whole<S: Structure>(value: &Value, structure: S) -> Node<'_> {
    match (structure.form(), value) {
        (Form::Map | Form::Deduced, Value::Object(members)) => {
            let mut below = FieldSet::with_capacity(members.len());
            for (key, value) in members {
                let inner = structure.field(key).or_else(|| structure.element());
                let found = inner.map_or_else(Node::leaf, |inner| whole(value, inner));
                below.push(Step::field(key), found);
            }
            Node { below, member: true }
        }
        (Form::Set | Form::KeyedList, Value::Array(elements)) => {
            let names = ElementNames::of(structure);
            let Some(inner) = structure.element() else { return Node::leaf() };
            let named = elements.iter().map(|element| {
                let name = names.name(element)?;
                Some((name, whole(element, inner)))
            });
            match named.collect() {
                Some(named) => Node { below: FieldSet::of_elements(named), member: true },
                None => Node::leaf(),
            }
        }
        _ => Node::leaf(),
    }
}

fn compare_maps<'a, S: Structure>(
    old: Option<&'a Value>,
    new: Option<&'a Value>,
    structure: S,
) -> Found<'a> {
    let (old_members, new_members) = (members(old), members(new));
    if old_members.is_empty() && new_members.is_empty() {
        return Found::leaf(old, new);
    }
    let mut found = Found::default();
    for (key, old, new) in zip(old_members, new_members) {
        let inner = structure.field(key).or_else(|| structure.element());
        let below = match inner {
            Some(inner) => compare(old, new, inner),
            None => Found::leaf(old, new),
        };
        found.attach(|| Step::field(key), below);
    }
    found.mark(old, new);
    found
}

fn compare_lists<'a, S: Structure>(
    old: Option<&'a Value>,
    new: Option<&'a Value>,
    structure: S,
) -> Found<'a> {
    let names = ElementNames::of(structure);
    let mut pairs: BTreeMap<Step<'a>, (Vec<&'a Value>, Vec<&'a Value>)> = BTreeMap::new();
    for element in elements(old) {
        match names.name(element) {
            Some(name) => pairs.entry(name).or_default().0.push(element),
            None => return Found::leaf(old, new),
        }
    }
    for element in elements(new) {
        match names.name(element) {
            Some(name) => pairs.entry(name).or_default().1.push(element),
            None => return Found::leaf(old, new),
        }
    }
    if pairs.is_empty() {
        return Found::leaf(old, new);
    }
    let Some(inner) = structure.element() else { return Found::leaf(old, new) };
    let mut found = Found::default();
    for (name, pair) in pairs {
        found.attach(|| name.clone(), compare_elements(&pair.0, &pair.1, inner));
    }
    found.mark(old, new);
    found
}

/// Compares elements with the same key. More than one per side count as one unit.
fn compare_elements<'a, S: Structure>(
    old: &[&'a Value],
    new: &[&'a Value],
    structure: S,
) -> Found<'a> {
    if let (..=1, ..=1) = (old.len(), new.len()) {
        return compare(old.first().copied(), new.first().copied(), structure);
    }
    let mut found = match (old, new) {
        (_, [new]) => compare(None, Some(new), structure),
        ([old], _) => compare(Some(old), None, structure),
        _ => Found::default(),
    };
    let place = match (old.len(), new.len()) {
        (2.., 2..) if old == new => return found,
        (2.., 2..) => &mut found.modified,
        (2.., _) => &mut found.removed,
        _ => &mut found.added,
    };
    place.get_or_insert_default().member = true;
    found
}

fn elements(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// How `fieldsV1` names the elements of a list.
pub(super) enum ElementNames<S> {
    /// By their value.
    Values,
    /// By these keys, sorted.
    Keys(Vec<String>, S),
}

impl<S: Structure> ElementNames<S> {
    pub(super) fn of(list: S) -> ElementNames<S> {
        match (list.form(), list.element()) {
            (Form::KeyedList, Some(inner)) => ElementNames::Keys(list.keys(), inner),
            _ => ElementNames::Values,
        }
    }

    /// The name of an element, as JSON; `None` if it lacks a key.
    pub(super) fn name<'a>(&self, element: &Value) -> Option<Step<'a>> {
        let mut name = Vec::with_capacity(64);
        self.push_name(element, &mut name)?;
        let name = String::from_utf8(name).expect("texts and what is between them are text");
        Some(match self {
            ElementNames::Values => Step::value(name),
            ElementNames::Keys(..) => Step::keys(name),
        })
    }

    fn push_name(&self, element: &Value, out: &mut Vec<u8>) -> Option<()> {
        let (keys, inner) = match self {
            ElementNames::Keys(keys, inner) => (keys, inner),
            ElementNames::Values => {
                let scalar = !matches!(element, Value::Object(_) | Value::Array(_) | Value::Null);
                return scalar.then(|| push_json(out, element));
            }
        };
        let members = element.as_object()?;
        let start = out.len();
        for key in keys {
            let default;
            let value = match members.get(key) {
                Some(value) => value,
                None => {
                    default = inner.key_default(key);
                    let Some(default) = &default else { continue };
                    default
                }
            };
            out.push(if out.len() == start { b'{' } else { b',' });
            push_text(out, key);
            out.push(b':');
            push_json(out, value);
        }
        out.push(b'}');
        (out.len() > start + 1).then_some(())
    }
}

/// Writes a value as JSON with minimal escaping. Every write names every element of every list, and
/// nearly all names need no escapes.
fn push_json(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::String(word) => push_text(out, word),
        Value::Number(_) => push_value(out, value),
        other => out.extend_from_slice(other.to_string().as_bytes()),
    }
}

fn push_text(out: &mut Vec<u8>, word: &str) {
    match word.bytes().all(|byte| !matches!(byte, ..b' ' | b'"' | b'\\')) {
        true => {
            out.push(b'"');
            out.extend_from_slice(word.as_bytes());
            out.push(b'"');
        }
        false => out.extend_from_slice(Value::from(word).to_string().as_bytes()),
    }
}

/// The fields of an object, as its applier owns them.
pub(super) fn fields_of_object<S: Structure>(object: &Value, structure: S) -> FieldSet<'_> {
    fields_of(object, structure)
}

/// The fields below a node that is owned field by field.
fn fields_of<S: Structure>(value: &Value, structure: S) -> FieldSet<'_> {
    match (structure.form(), value) {
        (Form::Map | Form::Deduced, Value::Object(members)) => {
            let mut fields = FieldSet::with_capacity(members.len());
            for (key, value) in members {
                let named = structure.field(key);
                let inner = named.or_else(|| structure.element());
                let leaf = inner.is_none_or(|inner| is_leaf(value, inner));
                let below = match inner {
                    Some(inner) if !leaf => fields_of(value, inner),
                    _ => FieldSet::default(),
                };
                let empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                let node = Node { below, member: leaf || empty || named.is_none() };
                if let Some(node) = node.some() {
                    fields.push(Step::field(key), node);
                }
            }
            fields
        }
        (Form::Set | Form::KeyedList, Value::Array(elements)) => {
            let Some(inner) = structure.element() else { return FieldSet::default() };
            let names = ElementNames::of(structure);
            let named = elements.iter().filter_map(|element| {
                let name = names.name(element)?;
                let leaf = is_leaf(element, inner);
                let below = if leaf { FieldSet::default() } else { fields_of(element, inner) };
                Some((name, Node { below, member: true }))
            });
            FieldSet::of_elements(named.collect())
        }
        _ => FieldSet::default(),
    }
}

/// Whether a value is atomic.
fn is_leaf<S: Structure>(value: &Value, structure: S) -> bool {
    match structure.form() {
        Form::Map => !value.is_object() && !value.is_null(),
        Form::Deduced => !value.is_object(),
        Form::Set | Form::KeyedList => !value.is_array() && !value.is_null(),
        _ => true,
    }
}

/// The members of two objects, key by key in order.
pub(super) fn zip<'a>(
    old: &'a Map,
    new: &'a Map,
) -> impl Iterator<Item = (&'a str, Option<&'a Value>, Option<&'a Value>)> {
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    std::iter::from_fn(move || {
        let order = match (old.peek(), new.peek()) {
            (Some((a, _)), Some((b, _))) => a.cmp(b),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return None,
        };
        let left = if order.is_le() { old.next() } else { None };
        let right = if order.is_ge() { new.next() } else { None };
        let (key, _) = left.or(right)?;
        Some((key.as_str(), left.map(|(_, value)| value), right.map(|(_, value)| value)))
    })
}
