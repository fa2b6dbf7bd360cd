//! A tree of entries in the order of their keys, of which a copy costs nothing.
//!
//! River: feed → **tree** → snapshot. Two copies share every node that did not change since: whoever
//! changes one copies the few nodes on the way down. Entries of a leaf lie side by side, so a walk over
//! all of them waits for memory once for a leaf, and not for each entry.
//! Promise: a copy never sees what happens to another. All leaves are equally deep, and no node but the
//! root is less than a quarter full, whatever was inserted and removed.

use std::iter::once;
use std::slice;
use std::sync::Arc;

/// Entries of a leaf, and children of a branch, at most. With more a change would cost more, which
/// copies a node of each level; with fewer a walk would.
const NODE_MAX: usize = 32;

/// A node with fewer is joined to one beside it.
const NODE_MIN: usize = NODE_MAX / 4;

/// Something that is kept under a key.
pub(crate) trait Keyed: Clone {
    fn key(&self) -> &str;
}

/// Entries in the order of their keys.
#[derive(Clone)]
pub(crate) struct Tree<T> {
    root: Node<T>,
    len: usize,
}

#[derive(Clone)]
enum Node<T> {
    Leaf(Arc<[T]>),
    Branch(Arc<Branch<T>>),
}

#[derive(Clone)]
struct Branch<T> {
    /// What is between two children: after all that is in the first, and not after what is in the
    /// second. One less than there are children.
    keys: Arc<[Arc<str>]>,
    children: Vec<Node<T>>,
}

/// A node that did not fit into another and belongs behind it, and what is between the two.
type Split<T> = (Arc<str>, Node<T>);

impl<T> Default for Tree<T> {
    fn default() -> Tree<T> {
        Tree { root: Node::Leaf(Arc::new([])), len: 0 }
    }
}

impl<T: Keyed> Tree<T> {
    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, key: &str) -> Option<&T> {
        let mut node = &self.root;
        loop {
            match node {
                Node::Branch(branch) => node = &branch.children[branch.child(key)],
                Node::Leaf(entries) => return entries.get(place(entries, key).ok()?),
            }
        }
    }

    /// Puts an entry in place of the one that has its key, which is answered.
    pub(crate) fn insert(&mut self, entry: T) -> Option<T> {
        let (before, split) = self.root.insert(entry);
        if let Some((key, second)) = split {
            let children = vec![self.root.clone(), second];
            self.root = Node::Branch(Arc::new(Branch { keys: Arc::new([key]), children }));
        }
        self.len += usize::from(before.is_none());
        before
    }

    /// Takes out what has this key.
    pub(crate) fn remove(&mut self, key: &str) -> Option<T> {
        self.get(key)?; // nothing is copied in vain
        let removed = self.root.remove(key)?;
        if let Node::Branch(branch) = &self.root
            && let [only] = branch.children.as_slice()
        {
            self.root = only.clone();
        }
        self.len -= 1;
        Some(removed)
    }

    /// The entries after one key and, if there is such an end, before another.
    pub(crate) fn range<'a>(
        &'a self,
        after: &str,
        end: Option<String>,
    ) -> impl Iterator<Item = &'a T> + use<'a, T> {
        Leaves::new(&self.root, after, end).flatten()
    }
}

impl<T: Keyed> Node<T> {
    fn insert(&mut self, entry: T) -> (Option<T>, Option<Split<T>>) {
        match self {
            Node::Leaf(entries) => match place(entries, entry.key()) {
                Ok(at) => {
                    let before = std::mem::replace(&mut Arc::make_mut(entries)[at], entry);
                    (Some(before), None)
                }
                Err(at) => (None, insert(entries, at, entry)),
            },
            Node::Branch(branch) => {
                let branch = Arc::make_mut(branch);
                let at = branch.child(entry.key());
                let (before, split) = branch.children[at].insert(entry);
                (before, split.and_then(|split| branch.insert(at, split)))
            }
        }
    }

    fn remove(&mut self, key: &str) -> Option<T> {
        match self {
            Node::Leaf(entries) => {
                let at = place(entries, key).ok()?;
                let removed = entries[at].clone();
                *entries = entries[..at].iter().chain(&entries[at + 1..]).cloned().collect();
                Some(removed)
            }
            Node::Branch(branch) => {
                let branch = Arc::make_mut(branch);
                let at = branch.child(key);
                let removed = branch.children[at].remove(key);
                if branch.children[at].len() < NODE_MIN {
                    branch.join(at.saturating_sub(1));
                }
                removed
            }
        }
    }

    /// How many entries or children it has.
    fn len(&self) -> usize {
        match self {
            Node::Leaf(entries) => entries.len(),
            Node::Branch(branch) => branch.children.len(),
        }
    }
}

/// Where the entry with this key is among those of a leaf, or belongs.
fn place<T: Keyed>(entries: &[T], key: &str) -> Result<usize, usize> {
    entries.binary_search_by(|entry| entry.key().cmp(key))
}

/// Puts a new entry into a leaf.
fn insert<T: Keyed>(entries: &mut Arc<[T]>, at: usize, entry: T) -> Option<Split<T>> {
    let (before, behind) = entries.split_at(at);
    let all = before.iter().cloned().chain(once(entry)).chain(behind.iter().cloned());
    if entries.len() < NODE_MAX {
        *entries = all.collect();
        return None;
    }
    let all: Vec<T> = all.collect();
    settle(entries, &all, cut(at))
}

/// Makes a leaf of entries; what is too much is cut off there.
fn settle<T: Keyed>(leaf: &mut Arc<[T]>, entries: &[T], middle: usize) -> Option<Split<T>> {
    let fits = entries.len() <= NODE_MAX;
    let (first, second) = entries.split_at(if fits { entries.len() } else { middle });
    *leaf = first.into();
    Some((second.first()?.key().into(), Node::Leaf(second.into())))
}

/// Where a node is cut that has become too large by one, which is at this place. What arrives in order
/// leaves most of it behind: nothing will come to fill the first half.
fn cut(at: usize) -> usize {
    if at == NODE_MAX { NODE_MAX + 1 - NODE_MIN } else { NODE_MAX.div_ceil(2) }
}

impl<T: Keyed> Branch<T> {
    /// The child that a key belongs to.
    fn child(&self, key: &str) -> usize {
        self.keys.partition_point(|between| **between <= *key)
    }

    /// Puts in what did not fit into one of the children.
    fn insert(&mut self, at: usize, (key, child): Split<T>) -> Option<Split<T>> {
        let mut keys = self.keys.to_vec();
        keys.insert(at, key);
        self.children.insert(at + 1, child);
        self.settle(keys, cut(at + 1))
    }

    /// Makes one of two children that are side by side, or two that are alike.
    fn join(&mut self, at: usize) {
        let mut keys = self.keys.to_vec();
        let between = keys.remove(at);
        let second = self.children.remove(at + 1);
        let split = match (&mut self.children[at], &second) {
            (Node::Leaf(first), Node::Leaf(second)) => {
                let all: Vec<T> = first.iter().chain(&**second).cloned().collect();
                settle(first, &all, all.len() / 2)
            }
            (Node::Branch(first), Node::Branch(second)) => {
                let first = Arc::make_mut(first);
                let before = first.keys.iter().chain(once(&between));
                let keys = before.chain(&*second.keys).cloned().collect();
                first.children.extend_from_slice(&second.children);
                first.settle(keys, first.children.len() / 2)
            }
            (Node::Leaf(_), Node::Branch(_)) | (Node::Branch(_), Node::Leaf(_)) => {
                unreachable!("all leaves are equally deep")
            }
        };
        if let Some((key, child)) = split {
            keys.insert(at, key);
            self.children.insert(at + 1, child);
        }
        self.keys = keys.into();
    }

    /// Takes the keys between its children; what is too much of both is cut off there.
    fn settle(&mut self, mut keys: Vec<Arc<str>>, middle: usize) -> Option<Split<T>> {
        let mut split = None;
        if self.children.len() > NODE_MAX {
            let children = self.children.split_off(middle);
            let branch = Branch { keys: keys.split_off(middle).into(), children };
            split = keys.pop().map(|key| (key, Node::Branch(Arc::new(branch))));
        }
        self.keys = keys.into();
        split
    }
}

/// A walk over leaves, or over what a range has of them.
struct Leaves<'a, T> {
    /// What is still to be walked through of each node above.
    above: Vec<slice::Iter<'a, Node<T>>>,
    first: Option<&'a [T]>,
    end: Option<String>,
}

impl<'a, T: Keyed> Leaves<'a, T> {
    fn new(root: &'a Node<T>, after: &str, end: Option<String>) -> Leaves<'a, T> {
        let (mut above, mut node) = (Vec::new(), root);
        let entries = loop {
            match node {
                Node::Leaf(entries) => break entries,
                Node::Branch(branch) => {
                    let (_, rest) = branch.children.split_at(branch.child(after));
                    let mut rest = rest.iter();
                    node = rest.next().expect("a key belongs to one of the children");
                    above.push(rest);
                }
            }
        };
        let first = &entries[entries.partition_point(|entry| entry.key() <= after)..];
        Leaves { above, first: Some(first).filter(|first| !first.is_empty()), end }
    }

    fn below(&mut self) -> Option<&'a [T]> {
        loop {
            match self.above.last_mut()?.next() {
                Some(Node::Leaf(entries)) => return Some(entries),
                Some(Node::Branch(branch)) => self.above.push(branch.children.iter()),
                None => drop(self.above.pop()),
            }
        }
    }
}

impl<'a, T: Keyed> Iterator for Leaves<'a, T> {
    type Item = &'a [T];

    fn next(&mut self) -> Option<&'a [T]> {
        let leaf = self.first.take().or_else(|| self.below())?;
        match &self.end {
            // The last entry tells it for all of them.
            Some(end) if leaf.last().is_some_and(|last| last.key() >= end.as_str()) => {
                self.above.clear();
                Some(&leaf[..leaf.partition_point(|entry| entry.key() < end.as_str())])
            }
            _ => Some(leaf),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Entry(String, usize);

    impl Keyed for Entry {
        fn key(&self) -> &str {
            &self.0
        }
    }

    /// How deep it is; all that is promised of nodes holds.
    fn check(node: &Node<Entry>, is_root: bool, from: &str, end: Option<&str>) -> usize {
        let range = if is_root { 0..=NODE_MAX } else { NODE_MIN..=NODE_MAX };
        assert!(range.contains(&node.len()), "{} of {range:?}", node.len());
        match node {
            Node::Leaf(entries) => {
                assert!(entries.is_sorted_by(|a, b| a.key() < b.key()));
                let is_inside = |key: &str| key >= from && end.is_none_or(|end| key < end);
                assert!(entries.iter().all(|entry| is_inside(entry.key())));
                1
            }
            Node::Branch(branch) => {
                assert_eq!(branch.keys.len() + 1, branch.children.len());
                assert!(branch.children.len() > 1);
                let between = |at: usize| branch.keys.get(at).map(|key| &**key);
                let depths = branch.children.iter().enumerate().map(|(at, child)| {
                    let from = at.checked_sub(1).and_then(between).unwrap_or(from);
                    check(child, false, from, between(at).or(end))
                });
                let depths: Vec<usize> = depths.collect();
                assert!(depths.iter().all(|depth| *depth == depths[0]), "{depths:?}");
                depths[0] + 1
            }
        }
    }

    #[track_caller]
    fn same(tree: &Tree<Entry>, model: &BTreeMap<String, usize>) {
        check(&tree.root, true, "", None);
        let entries = tree.range("", None).map(|entry| (&entry.0, &entry.1));
        assert!(entries.eq(model.iter()));
        assert_eq!(tree.len(), model.len());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u16),
        Remove(u16),
        /// Many in order, up or down.
        Run(u16, u16, bool),
        Clear(u16, u16),
        /// From here on a copy must not change.
        Copy,
    }

    fn step() -> impl Strategy<Value = Step> {
        let key = 0..3_000_u16;
        prop_oneof![
            30 => key.clone().prop_map(Step::Insert),
            30 => key.clone().prop_map(Step::Remove),
            4 => (key.clone(), 0..900_u16, any::<bool>()).prop_map(|(a, n, up)| Step::Run(a, n, up)),
            3 => (key, 0..900_u16).prop_map(|(from, n)| Step::Clear(from, n)),
            4 => Just(Step::Copy),
        ]
    }

    fn name(key: u16) -> String {
        format!("ns-{}/pod-{key}", key % 7)
    }

    proptest! {
        #[test]
        fn it_is_what_a_map_would_be(steps in prop::collection::vec(step(), 1..120)) {
            let (mut tree, mut model) = (Tree::<Entry>::default(), BTreeMap::new());
            let mut copies = Vec::new();
            for (at, step) in steps.into_iter().enumerate() {
                let keys: Vec<u16> = match &step {
                    Step::Insert(key) | Step::Remove(key) => vec![*key],
                    Step::Run(from, count, true) | Step::Clear(from, count) => {
                        (*from..from + count).collect()
                    }
                    Step::Run(from, count, false) => (*from..from + count).rev().collect(),
                    Step::Copy => {
                        copies.push((tree.clone(), model.clone()));
                        Vec::new()
                    }
                };
                for key in keys.into_iter().map(name) {
                    prop_assert_eq!(tree.get(&key).map(|entry| entry.1), model.get(&key).copied());
                    let (before, expected) = match step {
                        Step::Remove(_) | Step::Clear(..) => (tree.remove(&key), model.remove(&key)),
                        _ => (tree.insert(Entry(key.clone(), at)), model.insert(key, at)),
                    };
                    prop_assert_eq!(before.map(|entry| entry.1), expected);
                }
                check(&tree.root, true, "", None);
            }
            copies.push((tree, model));
            copies.iter().for_each(|(tree, model)| same(tree, model));
        }

        #[test]
        fn a_range_begins_and_ends_where_it_should(
            keys in prop::collection::btree_set(0..3_000_u16, 0..400),
            after in 0..3_000_u16,
            end in prop::option::of(0..3_000_u16),
        ) {
            let mut tree = Tree::<Entry>::default();
            let mut names: Vec<String> = keys.into_iter().map(name).collect();
            names.iter().for_each(|name| drop(tree.insert(Entry(name.clone(), 0))));
            names.sort();
            let (after, end) = (name(after), end.map(name));
            names.retain(|name| *name > after && end.as_ref().is_none_or(|end| name < end));
            let found: Vec<String> = tree.range(&after, end).map(|entry| entry.0.clone()).collect();
            prop_assert_eq!(found, names);
        }
    }

    #[test]
    fn what_arrives_in_order_fills_three_quarters_of_each_leaf() {
        let mut tree = Tree::default();
        (0..10_000).for_each(|at| drop(tree.insert(Entry(format!("{at:05}"), at))));
        let leaves = Leaves::new(&tree.root, "", None).count();
        assert!(leaves <= 10_000 / (NODE_MAX * 3 / 4), "{leaves}");
    }

    #[test]
    fn what_did_not_change_is_shared() {
        let mut tree = Tree::default();
        (0..10_000).for_each(|at| drop(tree.insert(Entry(format!("{at:05}"), at))));
        let mut changed = tree.clone();
        changed.insert(Entry("04711".to_owned(), 0));
        let leaves = |tree: &Tree<Entry>| -> Vec<*const Entry> {
            Leaves::new(&tree.root, "", None).map(<[Entry]>::as_ptr).collect()
        };
        let (old, new) = (leaves(&tree), leaves(&changed));
        assert_eq!(old.len(), new.len());
        assert_eq!(old.iter().zip(&new).filter(|(old, new)| old != new).count(), 1);
        assert_eq!((tree.get("04711").unwrap().1, changed.get("04711").unwrap().1), (4711, 0));
    }
}
