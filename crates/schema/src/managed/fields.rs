//! Sets of fields (`fieldsV1`) as sorted lists that borrow their text.
//!
//! On the wire a set is an object of nodes. A node is an object of its children, and the member `.`
//! means that the node itself belongs to the set; a node without children needs no `.`. Here a set is a
//! list of path elements in wire order, so that parsing, comparing and writing are single passes; names
//! are borrowed from the object or the stored text. Every write reads and writes all sets of its object,
//! so this must be cheap.

use std::borrow::Cow;
use std::cmp::Ordering;

use headwater_json::Value;

use super::SYSTEM_METADATA;
use super::structure::Structure;
use headwater_api::query::quote;
use headwater_json::push_text;

/// The maximum size of all paths of a set: a set of long keys has far longer paths.
const PATH_BYTES_MAX: usize = 16 << 20;

/// The paths of a set: the first ones, and whether there are more.
#[derive(Default)]
pub(super) struct FieldPaths {
    pub(super) list: Vec<String>,
    bytes: usize,
    /// The number of further steps.
    pub(super) omitted: usize,
}

impl FieldPaths {
    fn push(&mut self, prefix: &str, step: &Step<'_>) {
        if self.bytes >= PATH_BYTES_MAX {
            self.omitted += 1;
            return;
        }
        let path = format!("{prefix}{step}");
        self.bytes += path.len();
        self.list.push(path);
    }
}

/// A set of fields, or the children of a node: sorted and unique.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FieldSet<'a>(pub(super) Vec<(Step<'a>, Node<'a>)>);

/// A node. Invariant: it or a descendant belongs to the set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Node<'a> {
    /// Whether the node itself belongs to the set.
    pub(super) member: bool,
    pub(super) below: FieldSet<'a>,
}

impl<'a> Node<'a> {
    pub(super) fn leaf() -> Node<'a> {
        Node { member: true, below: FieldSet::default() }
    }

    /// A node with its children; `None` if it is empty.
    pub(super) fn some(self) -> Option<Node<'a>> {
        (self.member || !self.below.is_empty()).then_some(self)
    }

    /// Writes it as a member of its parent.
    pub(super) fn write(&self, step: &Step<'_>, out: &mut Vec<u8>) {
        out.push(b'"');
        out.extend_from_slice(step.by.prefix().as_bytes());
        push_text(out, &step.text);
        out.extend_from_slice(b"\":");
        self.below.write_node(self.member, out);
    }
}

/// A path element from a node to its child, in wire order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Step<'a> {
    by: By,
    text: Cow<'a, str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum By {
    /// `f:`, the name of a member.
    Field,
    /// `i:`, a position in a list.
    Index,
    /// `k:`, the keys of an element.
    Keys,
    /// `v:`, the value of an element.
    Value,
}

impl By {
    fn prefix(self) -> &'static str {
        match self {
            By::Field => "f:",
            By::Index => "i:",
            By::Keys => "k:",
            By::Value => "v:",
        }
    }
}

impl<'a> Step<'a> {
    /// A member of an object.
    pub(super) fn field(name: &'a str) -> Step<'a> {
        Step { by: By::Field, text: Cow::Borrowed(name) }
    }

    /// An element of a list, by its keys as JSON.
    pub(super) fn keys(text: String) -> Step<'a> {
        Step { by: By::Keys, text: Cow::Owned(text) }
    }

    /// An element of a list, by its value as JSON.
    pub(super) fn value(text: String) -> Step<'a> {
        Step { by: By::Value, text: Cow::Owned(text) }
    }

    /// The name of a member.
    fn name(&self) -> Option<&str> {
        (self.by == By::Field).then_some(&*self.text)
    }

    /// Parses the wire format: `None` if it is invalid, `Some(None)` if its kind is unknown.
    pub(super) fn read(key: Cow<'a, str>) -> Option<Option<Step<'a>>> {
        let by = match key.split_at_checked(2)?.0 {
            "f:" => By::Field,
            "i:" => By::Index,
            "k:" => By::Keys,
            "v:" => By::Value,
            other if other.ends_with(':') => return Some(None),
            _ => return None,
        };
        let text = match key {
            Cow::Borrowed(key) => Cow::Borrowed(&key[2..]),
            Cow::Owned(mut key) => Cow::Owned(key.split_off(2)),
        };
        Some(Some(Step { by, text }))
    }

    /// The same with canonical JSON.
    fn settled(self) -> Option<Step<'a>> {
        if matches!(self.by, By::Field | By::Index) {
            return Some(self);
        }
        let value: Value = serde_json::from_str(&self.text).ok()?;
        if self.by == By::Keys && !value.is_object() {
            return None;
        }
        Some(Step { by: self.by, text: Cow::Owned(value.to_string()) })
    }
}

/// A path element in messages.
impl std::fmt::Display for Step<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = |value: &Value| match value {
            Value::String(text) => quote(text),
            other => other.to_string(),
        };
        let text = &*self.text;
        match self.by {
            By::Field => write!(f, ".{text}"),
            By::Index => write!(f, "[{text}]"),
            By::Value => match serde_json::from_str(text) {
                Ok(value) => write!(f, "[={}]", shown(&value)),
                Err(_) => write!(f, "[={text}]"),
            },
            By::Keys => {
                let keys: headwater_json::Map = serde_json::from_str(text).unwrap_or_default();
                let keys: Vec<String> =
                    keys.iter().map(|(name, value)| format!("{name}={}", shown(value))).collect();
                write!(f, "[{}]", keys.join(","))
            }
        }
    }
}

impl<'a> FieldSet<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// An empty set with a capacity.
    pub(super) fn with_capacity(steps: usize) -> FieldSet<'a> {
        FieldSet(Vec::with_capacity(steps))
    }

    /// Appends a path element that sorts last.
    pub(super) fn push(&mut self, step: Step<'a>, node: Node<'a>) {
        debug_assert!(self.0.last().is_none_or(|(last, _)| *last < step), "steps come in order");
        self.0.push((step, node));
    }

    /// A set of the elements of a list, in any order. Duplicate elements are one unit.
    pub(super) fn of_elements(mut elements: Vec<(Step<'a>, Node<'a>)>) -> FieldSet<'a> {
        elements.sort_by(|a, b| a.0.cmp(&b.0));
        elements.dedup_by(|later, kept| {
            let twice = later.0 == kept.0;
            if twice {
                kept.1 = Node::leaf();
            }
            twice
        });
        FieldSet(elements)
    }

    fn find(&self, step: &Step<'_>) -> Result<usize, usize> {
        self.0.binary_search_by(|(found, _)| found.cmp(step))
    }

    /// The node of a path element.
    pub(super) fn get(&self, step: &Step<'_>) -> Option<&Node<'a>> {
        self.find(step).ok().map(|at| &self.0[at].1)
    }

    fn get_mut(&mut self, step: &Step<'_>) -> Option<&mut Node<'a>> {
        self.find(step).ok().map(|at| &mut self.0[at].1)
    }

    /// Removes a field with its descendants.
    pub(super) fn remove_field(&mut self, name: &str) {
        self.0.retain(|(step, _)| step.name() != Some(name));
    }

    /// Removes the fields that the server sets.
    pub(super) fn without_system_fields(mut self) -> FieldSet<'a> {
        self.remove_field("apiVersion");
        self.remove_field("kind");
        if let Some(metadata) = self.get_mut(&Step::field("metadata")) {
            metadata.member = false;
            for name in SYSTEM_METADATA {
                metadata.below.remove_field(name);
            }
            if metadata.below.is_empty() {
                self.remove_field("metadata");
            }
        }
        self
    }

    /// The union with another set.
    pub(super) fn union(&mut self, other: FieldSet<'a>) {
        if self.is_empty() {
            *self = other;
            return;
        }
        if other.is_empty() {
            return;
        }
        let both = Vec::with_capacity(self.0.len() + other.0.len());
        let mine = std::mem::replace(&mut self.0, both);
        let mut theirs = other.0.into_iter().peekable();
        for (step, mut node) in mine {
            while let Some(before) = theirs.next_if(|(their, _)| *their < step) {
                self.0.push(before);
            }
            if let Some((_, their)) = theirs.next_if(|(their, _)| *their == step) {
                node.member |= their.member;
                node.below.union(their.below);
            }
            self.0.push((step, node));
        }
        self.0.extend(theirs);
    }

    /// Removes the fields of another set.
    pub(super) fn subtract(&mut self, other: &FieldSet<'_>) {
        if self.is_empty() {
            return;
        }
        let mut emptied = false;
        for (step, theirs) in &other.0 {
            let Some(ours) = self.get_mut(step) else { continue };
            ours.member &= !theirs.member;
            ours.below.subtract(&theirs.below);
            emptied |= !ours.member && ours.below.is_empty();
        }
        if emptied {
            self.0.retain(|(_, node)| node.member || !node.below.is_empty());
        }
    }

    /// The intersection of two sets.
    pub(super) fn intersect(&self, other: &FieldSet<'_>) -> FieldSet<'a> {
        let mut common = FieldSet::default();
        let mut theirs = other.0.iter().peekable();
        for (step, ours) in &self.0 {
            while theirs.next_if(|(their, _)| their.cmp(step) == Ordering::Less).is_some() {}
            let Some((_, their)) = theirs.next_if(|(their, _)| their == step) else { continue };
            let node = Node {
                member: ours.member && their.member,
                below: ours.below.intersect(&their.below),
            };
            common.0.extend(node.some().map(|node| (step.clone(), node)));
        }
        common
    }

    /// Whether this set is a subset of another.
    pub(super) fn is_subset(&self, other: &FieldSet<'_>) -> bool {
        self.0.iter().all(|(step, ours)| {
            other.get(step).is_some_and(|theirs| {
                (theirs.member || !ours.member) && ours.below.is_subset(&theirs.below)
            })
        })
    }

    /// Adds all named fields that have descendants in the set: owning a field of a struct implies the
    /// existence of the struct.
    pub(super) fn with_named<S: Structure>(&self, structure: S) -> FieldSet<'a> {
        let with_named = |(step, node): &(Step<'a>, Node<'a>)| {
            let named = step.name().and_then(|name| structure.field(name));
            let below = match named.or_else(|| structure.element()) {
                Some(structure) => node.below.with_named(structure),
                None => node.below.clone(),
            };
            (step.clone(), Node { member: node.member || named.is_some(), below })
        };
        FieldSet(self.0.iter().map(with_named).collect())
    }

    /// The paths of all members as messages show them: `.spec.containers[name="c"].image`.
    pub(super) fn paths(&self) -> FieldPaths {
        let mut paths = FieldPaths::default();
        self.collect_paths("", &mut paths);
        paths
    }

    fn collect_paths(&self, prefix: &str, paths: &mut FieldPaths) {
        for (step, _) in self.0.iter().filter(|(_, node)| node.member) {
            paths.push(prefix, step);
        }
        for (step, node) in self.0.iter().filter(|(_, node)| !node.below.is_empty()) {
            match paths.bytes < PATH_BYTES_MAX {
                true => node.below.collect_paths(&format!("{prefix}{step}"), paths),
                false => paths.omitted += node.below.0.len(),
            }
        }
    }

    /// The set with owned text.
    pub(super) fn into_owned(self) -> FieldSet<'static> {
        let own = |(step, node): (Step<'a>, Node<'a>)| {
            let step = Step { by: step.by, text: Cow::Owned(step.text.into_owned()) };
            (step, Node { member: node.member, below: node.below.into_owned() })
        };
        FieldSet(self.0.into_iter().map(own).collect())
    }

    /// Parses a set of a client to its canonical form; `None` if it is invalid. Path elements of an
    /// unknown kind are dropped.
    pub(super) fn read(value: &'a Value) -> Option<FieldSet<'a>> {
        let mut fields = Vec::new();
        for (key, value) in value.as_object()?.iter().filter(|(key, _)| *key != ".") {
            let Some(step) = Step::read(Cow::Borrowed(key))? else { continue };
            let below = FieldSet::read(value)?;
            let member = below.is_empty() || value.get(".").is_some();
            fields.push((step.settled()?, Node { member, below }));
        }
        fields.sort_by(|a, b| a.0.cmp(&b.0));
        fields.dedup_by(|later, kept| later.0 == kept.0);
        Some(FieldSet(fields))
    }

    /// Writes the set as JSON.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        self.write_node(false, out);
    }

    /// Writes it as the content of a node, which may be a member itself.
    pub(super) fn write_node(&self, member: bool, out: &mut Vec<u8>) {
        out.push(b'{');
        let mut first = true;
        if member && !self.is_empty() {
            out.extend_from_slice(br#"".":{}"#);
            first = false;
        }
        for (step, node) in &self.0 {
            if !std::mem::take(&mut first) {
                out.push(b',');
            }
            node.write(step, out);
        }
        out.push(b'}');
    }
}
