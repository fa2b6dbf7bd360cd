//! The fields of a creator or applier, written directly as text.
//!
//! Such a set is usually stored without being used, so it is written while the object is walked.
//! Promise: the text equals that of the set that [`super::compare`] computes (property tests).

use std::ops::Range;

use headwater_json::{Map, Value, push_text};

use super::SYSTEM_METADATA;
use super::compare::{ElementNames, elements, is_leaf, members};
use super::structure::{Form, Structure};

/// The fields in which an object differs from the empty object of its kind, without `ignored` members
/// and fields that the server sets.
pub(super) fn fields_of_creator<S: Structure>(
    empty: &Value,
    object: &Value,
    ignored: &[&str],
    structure: S,
) -> String {
    let mut set = Set { out: Vec::with_capacity(2048) };
    let empty = members(Some(empty));
    set.node(false, |set| {
        for (key, value) in members(Some(object)) {
            let key = key.as_str();
            if matches!(key, "apiVersion" | "kind") || ignored.contains(&key) {
                continue;
            }
            let Some(inner) = structure.field(key).or_else(|| structure.element()) else {
                continue;
            };
            set.step(b"f:", key, |set| match key {
                "metadata" => set.metadata(empty.get(key), value, inner),
                _ => set.differing(empty.get(key), value, inner),
            });
        }
    });
    set.finish()
}

/// The fields of a configuration, without `ignored` members and fields that the server sets. It fits
/// its type, so each element of a list has a unique name.
pub(super) fn fields_of_applier<S: Structure>(
    config: &Value,
    ignored: &[&str],
    structure: S,
) -> String {
    let mut set = Set { out: Vec::with_capacity(2048) };
    set.node(false, |set| {
        for (key, value) in members(Some(config)) {
            let key = key.as_str();
            if matches!(key, "apiVersion" | "kind") || ignored.contains(&key) {
                continue;
            }
            match (key, structure.field(key)) {
                ("metadata", Some(inner)) => set.step(b"f:", key, |set| {
                    let of_the_server = |key: &str| SYSTEM_METADATA.contains(&key);
                    set.node(false, |set| set.applied_members(value, inner, of_the_server));
                }),
                _ => set.applied(key, value, structure),
            }
        }
    });
    set.finish()
}

/// A set while it is written.
struct Set {
    out: Vec<u8>,
}

impl Set {
    fn finish(self) -> String {
        match self.out.is_empty() {
            true => "{}".to_owned(),
            false => String::from_utf8(self.out).expect("names and braces are text"),
        }
    }

    /// Writes a node: itself, if it belongs to the set, and its children. An empty node is omitted.
    fn node(&mut self, is_member: bool, below: impl FnOnce(&mut Set)) {
        let start = self.out.len();
        self.out.extend_from_slice(if is_member { br#"{".":{}"# } else { b"{" });
        let empty = self.out.len();
        below(self);
        match self.out.len() > empty {
            true => self.out.push(b'}'),
            false => {
                self.out.truncate(start);
                if is_member {
                    self.leaf();
                }
            }
        }
    }

    fn leaf(&mut self) {
        self.out.extend_from_slice(b"{}");
    }

    /// Writes the children of a path element.
    fn step(&mut self, by: &[u8; 2], name: &str, below: impl FnOnce(&mut Set)) {
        let start = self.out.len();
        if !self.out.ends_with(b"{") {
            self.out.push(b',');
        }
        self.out.extend_from_slice(&[b'"', by[0], by[1]]);
        push_text(&mut self.out, name);
        self.out.extend_from_slice(b"\":");
        let named = self.out.len();
        below(self);
        if self.out.len() == named {
            self.out.truncate(start);
        }
    }

    fn metadata<S: Structure>(&mut self, empty: Option<&Value>, value: &Value, structure: S) {
        let empty = members(empty);
        self.node(false, |set| {
            for (key, value) in members(Some(value)) {
                if let Some(inner) = structure.field(key)
                    && !SYSTEM_METADATA.contains(&key.as_str())
                {
                    set.step(b"f:", key, |set| {
                        set.differing(empty.get(key), value, inner);
                    });
                }
            }
        });
    }

    /// A node that an empty object may have.
    fn differing<S: Structure>(&mut self, empty: Option<&Value>, value: &Value, structure: S) {
        let Some(empty) = empty else { return self.whole(value, structure) };
        if empty == value {
            return;
        }
        match (structure.form(), value) {
            (Form::Map, _) => self.differing_members(empty, value, structure),
            (Form::Deduced, Value::Object(_)) if empty.is_object() => {
                self.differing_members(empty, value, structure);
            }
            (Form::Set | Form::KeyedList, Value::Array(all)) if !all.is_empty() => {
                debug_assert!(elements(Some(empty)).is_empty(), "an empty object has no elements");
                self.elements(false, all, structure);
            }
            _ => self.leaf(),
        }
    }

    fn differing_members<S: Structure>(&mut self, empty: &Value, value: &Value, structure: S) {
        match members(Some(empty)).is_empty() && members(Some(value)).is_empty() {
            true => self.leaf(),
            false => self.node(false, |set| set.members(Some(empty), value, structure)),
        }
    }

    /// All fields of a node that the empty object lacks.
    fn whole<S: Structure>(&mut self, value: &Value, structure: S) {
        match (structure.form(), value) {
            (Form::Map | Form::Deduced, Value::Object(_)) => {
                self.node(true, |set| set.members(None, value, structure));
            }
            (Form::Set | Form::KeyedList, Value::Array(elements)) => {
                self.elements(true, elements, structure);
            }
            _ => self.leaf(),
        }
    }

    fn members<S: Structure>(&mut self, empty: Option<&Value>, value: &Value, structure: S) {
        let empty = Some(members(empty)).filter(|empty| !empty.is_empty());
        for (key, value) in members(Some(value)) {
            let inner = structure.field(key).or_else(|| structure.element());
            let empty = empty.and_then(|empty| empty.get(key));
            self.step(b"f:", key, |set| match (inner, empty) {
                (Some(inner), empty) => set.differing(empty, value, inner),
                (None, Some(empty)) if empty == value => {}
                (None, _) => set.leaf(),
            });
        }
    }

    /// The elements of a list that the empty object lacks; the list as a unit if an element has no name.
    fn elements<S: Structure>(&mut self, is_member: bool, elements: &[Value], structure: S) {
        let (Some(inner), Some(named)) = (structure.element(), Named::of(elements, structure))
        else {
            return self.leaf();
        };
        self.node(is_member, |set| {
            named.each(|name, alike| {
                set.step(named.by, name, |set| match alike {
                    [(_, element)] => set.whole(element, inner),
                    // A duplicate element is one unit.
                    _ => set.leaf(),
                });
            });
        });
    }

    /// A member of a configuration.
    fn applied<S: Structure>(&mut self, key: &str, value: &Value, structure: S) {
        let named = structure.field(key);
        let below = named.or_else(|| structure.element()).filter(|inner| !is_leaf(value, *inner));
        let is_empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
        self.step(b"f:", key, |set| {
            set.node(below.is_none() || is_empty || named.is_none(), |set| {
                if let Some(inner) = below {
                    set.applied_below(value, inner);
                }
            });
        });
    }

    fn applied_members<S: Structure>(
        &mut self,
        value: &Value,
        structure: S,
        is_skipped: impl Fn(&str) -> bool,
    ) {
        for (key, value) in members(Some(value)).iter().filter(|(key, _)| !is_skipped(key)) {
            self.applied(key, value, structure);
        }
    }

    fn applied_below<S: Structure>(&mut self, value: &Value, structure: S) {
        let Value::Array(elements) = value else {
            return self.applied_members(value, structure, |_| false);
        };
        let (Some(inner), Some(named)) = (structure.element(), Named::of(elements, structure))
        else {
            return;
        };
        named.each(|name, alike| {
            let (_, element) = alike[0];
            self.step(named.by, name, |set| {
                set.node(true, |set| {
                    if !is_leaf(element, inner) {
                        set.applied_below(element, inner);
                    }
                });
            });
        });
    }
}

/// The elements of a list by their names, in order.
struct Named<'a> {
    /// All names, concatenated.
    text: Vec<u8>,
    /// The range of each name.
    all: Vec<(Range<usize>, &'a Value)>,
    by: &'static [u8; 2],
}

impl<'a> Named<'a> {
    /// `None` if an element has no name.
    fn of<S: Structure>(elements: &'a [Value], structure: S) -> Option<Named<'a>> {
        let names = ElementNames::of(structure);
        let mut text = Vec::with_capacity(64 * elements.len().min(64));
        let mut all = Vec::with_capacity(elements.len());
        for element in elements {
            let start = text.len();
            names.push_name(element, &mut text)?;
            all.push((start..text.len(), element));
        }
        let name = |(name, _): &(Range<usize>, &Value)| &text[name.clone()];
        if !all.is_sorted_by(|one, other| name(one) < name(other)) {
            all.sort_by(|one, other| name(one).cmp(name(other)));
        }
        let by = match names {
            ElementNames::Values => b"v:",
            ElementNames::Keys(..) => b"k:",
        };
        Some(Named { text, all, by })
    }

    /// Elements with the same name together.
    fn each(&self, mut tell: impl FnMut(&str, &[(Range<usize>, &'a Value)])) {
        let name = |(name, _): &(Range<usize>, &Value)| &self.text[name.clone()];
        for alike in self.all.chunk_by(|one, other| name(one) == name(other)) {
            tell(str::from_utf8(name(&alike[0])).expect("names are text"), alike);
        }
    }
}
