//! Pruning of unknown fields (S9.10).

use headwater_json::{Map, Value};

use super::{Additional, META_FIELDS, Node};
use headwater_json::path::{Path, PathList};

/// Prunes an object and returns the removed paths, sorted.
pub(super) fn object(root: &Node, object: &mut Value) -> PathList {
    let mut pruner = Pruner { unknown: PathList::default() };
    if let Value::Object(members) = object {
        let unlisted = if root.preserve { Unlisted::Stay } else { Unlisted::Go };
        pruner.members(Some(root), members, unlisted, &Path::Root, true);
    }
    pruner.unknown.sort();
    pruner.unknown
}

/// Prunes a value inside an object.
pub(super) fn value(node: &Node, value: &mut Value) -> PathList {
    let mut pruner = Pruner { unknown: PathList::default() };
    pruner.value(Some(node), value, &Path::Root);
    pruner.unknown
}

struct Pruner {
    unknown: PathList,
}

/// The handling of undeclared fields.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unlisted {
    Go,
    Stay,
}

impl Pruner {
    /// `None` is a value without a schema: all its fields are unknown.
    fn value(&mut self, node: Option<&Node>, value: &mut Value, path: &Path<'_>) {
        let preserve = node.is_some_and(|node| node.preserve);
        let unlisted = if preserve { Unlisted::Stay } else { Unlisted::Go };
        self.below(node, value, unlisted, path);
    }

    fn below(
        &mut self,
        node: Option<&Node>,
        value: &mut Value,
        unlisted: Unlisted,
        path: &Path<'_>,
    ) {
        match value {
            Value::Object(members) => {
                let embedded = node.is_some_and(|node| node.embedded);
                self.members(node, members, unlisted, path, embedded);
            }
            Value::Array(elements) => {
                let items = node.and_then(|node| node.items.as_deref());
                for (index, element) in elements.iter_mut().enumerate() {
                    let path = Path::Index(path, index);
                    match unlisted {
                        Unlisted::Go => self.value(items, element, &path),
                        // The elements of a list that preserves unknown fields do so too.
                        Unlisted::Stay => self.below(items, element, unlisted, &path),
                    }
                }
            }
            _ => {}
        }
    }

    /// Prunes the metadata of an embedded resource to the standard fields. Validation rejects values
    /// that are no metadata.
    fn metadata(&mut self, metadata: &mut Value, path: &Path<'_>) {
        if let Ok(unknown) = crate::decode::metadata(metadata) {
            unknown.iter().for_each(|field| self.unknown.push(format_args!("{path}.{field}")));
        }
    }

    fn members(
        &mut self,
        node: Option<&Node>,
        members: &mut Map,
        unlisted: Unlisted,
        path: &Path<'_>,
        embedded: bool,
    ) {
        if node.is_none() && unlisted == Unlisted::Stay {
            return;
        }
        members.retain(|name, value| {
            if embedded && META_FIELDS.contains(&name.as_str()) {
                if name == "metadata" && !matches!(path, Path::Root) {
                    self.metadata(value, path);
                }
                return true;
            }
            let below = Path::Field(path, name);
            match node.map(|node| (node.property(name), &node.additional)) {
                Some((Some(inner), _)) => self.value(Some(inner), value, &below),
                Some((None, Some(Additional::Of(inner)))) => {
                    self.value(Some(inner), value, &below);
                }
                Some((None, Some(_))) => self.value(None, value, &below),
                _ if unlisted == Unlisted::Stay => {}
                _ => {
                    self.unknown.push(below);
                    return false;
                }
            }
            true
        });
    }
}
