//! The identities inside an object: embedded resources (S9.10), and the uniqueness of the elements
//! of set and map lists (S9.13).

use std::collections::HashMap;

use headwater_json::{Map, Value};

use super::{List, Node, embedded, number};
use headwater_api::status::{FieldError, FieldErrorKind};
use headwater_json::path::Path;

/// The errors in the identities of the parts of an object.
#[derive(Default)]
pub(super) struct Identities {
    /// In the type and metadata of embedded resources.
    pub(super) resources: Vec<FieldError>,
    /// Of duplicate elements, each reported once, at its second occurrence.
    pub(super) duplicates: Vec<FieldError>,
}

pub(super) fn check(root: &Node, object: &Value) -> Identities {
    let mut found = Identities::default();
    found.value(root, object, &Path::Root);
    found
}

impl Identities {
    fn value(&mut self, node: &Node, value: &Value, path: &Path<'_>) {
        if !node.below.identities {
            return;
        }
        match (value, &node.list) {
            (Value::Object(members), _) if node.embedded => {
                embedded::resource(members, path, &mut self.resources);
            }
            (Value::Array(elements), List::Set) => set(elements, path, &mut self.duplicates),
            (Value::Array(elements), List::Map(keys)) => {
                map(keys, elements, path, &mut self.duplicates);
            }
            _ => {}
        }
        for (node, inner, path) in node.children(value, path) {
            self.value(node, inner, &path);
        }
    }
}

fn set(elements: &[Value], path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for index in repeated(elements, |a, b| a == b, Value::to_string) {
        let field = Path::Index(path, index).to_string();
        errors.push(FieldError::duplicate(field, &elements[index]));
    }
}

fn map(keys: &[Box<str>], elements: &[Value], path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for (index, element) in elements.iter().enumerate() {
        if !element.is_object() && !element.is_null() {
            errors.push(FieldError {
                kind: FieldErrorKind::Invalid,
                field: Path::Index(path, index).to_string(),
                detail: format!(
                    "{}: must be an object for an array of list-type map",
                    number::show_value(element)
                ),
            });
            return;
        }
    }
    let same = |a: &Value, b: &Value| keys.iter().all(|key| a.get(&**key) == b.get(&**key));
    for index in repeated(elements, same, |element| key(keys, element).to_string()) {
        let field = Path::Index(path, index).to_string();
        errors.push(FieldError::duplicate(field, &key(keys, &elements[index])));
    }
}

/// The key fields of an element.
pub(super) fn key(keys: &[Box<str>], element: &Value) -> Value {
    let fields = keys.iter().filter_map(|key| {
        let value = element.get(&**key)?;
        Some((key.to_string(), value.clone()))
    });
    Value::Object(fields.collect::<Map>())
}

/// Lists up to this length are compared pairwise, which needs no memory.
const PAIRWISE_MAX: usize = 16;

/// The positions of duplicates.
fn repeated(
    elements: &[Value],
    same: impl Fn(&Value, &Value) -> bool,
    text: impl Fn(&Value) -> String,
) -> Vec<usize> {
    let mut indices = Vec::new();
    if elements.len() <= PAIRWISE_MAX {
        for (index, element) in elements.iter().enumerate() {
            let before = elements[..index].iter().filter(|other| same(other, element)).take(2);
            if before.count() == 1 {
                indices.push(index);
            }
        }
        return indices;
    }
    let mut seen: HashMap<String, usize> = HashMap::new();
    for (index, element) in elements.iter().enumerate() {
        let times = seen.entry(text(element)).or_default();
        *times += 1;
        if *times == 2 {
            indices.push(index);
        }
    }
    indices
}
