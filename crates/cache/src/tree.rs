//! A persistent B+ tree: a sorted map of which a clone costs nothing.
//!
//! River: feed → **tree** → snapshot. Clones share all unchanged nodes: a change copies only the
//! nodes on its path. The entries of a leaf are adjacent in memory, so a scan has one cache miss
//! per leaf, not one per entry. Branches count their entries, so the size of a range is known
//! without a scan.
//! Promise: a change of one clone is never visible in another. All leaves have the same depth, and
//! every node except the root is at least a quarter full.

use std::iter::once;
use std::slice;
use std::sync::Arc;

/// The maximum number of entries of a leaf and of children of a branch. A larger number makes
/// changes more expensive, which copy one node per level; a smaller one makes scans more expensive.
const NODE_MAX: usize = 32;

/// A smaller node is merged with a neighbour.
const NODE_MIN: usize = NODE_MAX / 4;

/// An entry with a key.
pub(crate) trait Keyed: Clone {
    fn key(&self) -> &str;
}

/// Entries sorted by key.
#[derive(Clone)]
pub(crate) struct Tree<T> {
    root: Node<T>,
}

#[derive(Clone)]
enum Node<T> {
    Leaf(Arc<[T]>),
    Branch(Arc<Branch<T>>),
}

#[derive(Clone)]
struct Branch<T> {
    /// Separators: each is greater than all keys of the child before it, and at most the first key
    /// of the child after it. One less than children.
    keys: Arc<[Arc<str>]>,
    children: Vec<Node<T>>,
    /// The number of entries in all leaves below.
    count: usize,
}

/// The right half of a split node, and the separator before it.
type Split<T> = (Arc<str>, Node<T>);

impl<T> Default for Tree<T> {
    fn default() -> Tree<T> {
        Tree { root: Node::Leaf(Arc::new([])) }
    }
}

impl<T: Keyed> Tree<T> {
    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.root.count()
    }

    pub(crate) fn get(&self, key: &str) -> Option<&T> {
        let mut node = &self.root;
        loop {
            match node {
                Node::Branch(branch) => node = &branch.children[branch.child(key)],
                Node::Leaf(entries) => return entries.get(position(entries, key).ok()?),
            }
        }
    }

    /// Inserts an entry and returns the one with the same key, if any.
    pub(crate) fn insert(&mut self, entry: T) -> Option<T> {
        let (before, split) = self.root.insert(entry);
        if let Some((key, second)) = split {
            let children = vec![self.root.clone(), second];
            self.root = Node::Branch(Arc::new(Branch::new(vec![key], children)));
        }
        before
    }

    /// Removes the entry with a key.
    pub(crate) fn remove(&mut self, key: &str) -> Option<T> {
        self.get(key)?; // copies no node if there is no such entry
        let removed = self.root.remove(key)?;
        if let Node::Branch(branch) = &self.root
            && let [only] = branch.children.as_slice()
        {
            self.root = only.clone();
        }
        Some(removed)
    }

    /// The entries after a key and, if given, before an end.
    pub(crate) fn range<'a>(
        &'a self,
        after: &str,
        end: Option<String>,
    ) -> impl Iterator<Item = &'a T> + use<'a, T> {
        Leaves::new(&self.root, after, end).flatten()
    }

    /// The number of entries of a [`Tree::range`].
    pub(crate) fn count(&self, after: &str, end: Option<&str>) -> usize {
        let end = end.map_or(self.len(), |end| self.rank(end, |key| key < end));
        end.saturating_sub(self.rank(after, |key| key <= after))
    }

    /// The number of entries before a key; `is_before` decides about the entry with that key.
    fn rank(&self, key: &str, is_before: impl Fn(&str) -> bool) -> usize {
        let (mut node, mut before) = (&self.root, 0);
        loop {
            match node {
                Node::Leaf(entries) => {
                    return before + entries.partition_point(|entry| is_before(entry.key()));
                }
                Node::Branch(branch) => {
                    let at = branch.child(key);
                    before += count(&branch.children[..at]);
                    node = &branch.children[at];
                }
            }
        }
    }
}

impl<T: Keyed> Node<T> {
    fn insert(&mut self, entry: T) -> (Option<T>, Option<Split<T>>) {
        match self {
            Node::Leaf(entries) => match position(entries, entry.key()) {
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
                branch.count += usize::from(before.is_none());
                (before, split.and_then(|split| branch.insert(at, split)))
            }
        }
    }

    fn remove(&mut self, key: &str) -> Option<T> {
        match self {
            Node::Leaf(entries) => {
                let at = position(entries, key).ok()?;
                let removed = entries[at].clone();
                *entries = entries[..at].iter().chain(&entries[at + 1..]).cloned().collect();
                Some(removed)
            }
            Node::Branch(branch) => {
                let branch = Arc::make_mut(branch);
                let at = branch.child(key);
                let removed = branch.children[at].remove(key);
                branch.count -= usize::from(removed.is_some());
                if branch.children[at].len() < NODE_MIN {
                    branch.join(at.saturating_sub(1));
                }
                removed
            }
        }
    }

    /// The number of entries or children.
    fn len(&self) -> usize {
        match self {
            Node::Leaf(entries) => entries.len(),
            Node::Branch(branch) => branch.children.len(),
        }
    }

    /// The number of entries in all leaves below.
    fn count(&self) -> usize {
        match self {
            Node::Leaf(entries) => entries.len(),
            Node::Branch(branch) => branch.count,
        }
    }
}

/// The number of entries of some nodes.
fn count<T: Keyed>(nodes: &[Node<T>]) -> usize {
    nodes.iter().map(Node::count).sum()
}

/// The index of the entry with a key, or where to insert it.
fn position<T: Keyed>(entries: &[T], key: &str) -> Result<usize, usize> {
    entries.binary_search_by(|entry| entry.key().cmp(key))
}

/// Inserts a new entry into a leaf.
fn insert<T: Keyed>(entries: &mut Arc<[T]>, at: usize, entry: T) -> Option<Split<T>> {
    let (before, behind) = entries.split_at(at);
    let all = before.iter().cloned().chain(once(entry)).chain(behind.iter().cloned());
    if entries.len() < NODE_MAX {
        *entries = all.collect();
        return None;
    }
    let all: Vec<T> = all.collect();
    split_leaf(entries, &all, split_point(at))
}

/// Replaces the entries of a leaf, and splits it at `middle` if there are too many.
fn split_leaf<T: Keyed>(leaf: &mut Arc<[T]>, entries: &[T], middle: usize) -> Option<Split<T>> {
    let fits = entries.len() <= NODE_MAX;
    let (first, second) = entries.split_at(if fits { entries.len() } else { middle });
    *leaf = first.into();
    Some((second.first()?.key().into(), Node::Leaf(second.into())))
}

/// Where to split a node that is too large by one entry, inserted at `at`. After an insertion at
/// the end the first half stays nearly full, because sorted insertions never fill it.
fn split_point(at: usize) -> usize {
    if at == NODE_MAX { NODE_MAX + 1 - NODE_MIN } else { NODE_MAX.div_ceil(2) }
}

impl<T: Keyed> Branch<T> {
    fn new(keys: Vec<Arc<str>>, children: Vec<Node<T>>) -> Branch<T> {
        Branch { keys: keys.into(), count: count(&children), children }
    }

    /// The index of the child for a key.
    fn child(&self, key: &str) -> usize {
        self.keys.partition_point(|between| **between <= *key)
    }

    /// Inserts the right half of a split child.
    fn insert(&mut self, at: usize, (key, child): Split<T>) -> Option<Split<T>> {
        let mut keys = self.keys.to_vec();
        keys.insert(at, key);
        self.children.insert(at + 1, child);
        self.set_keys(keys, split_point(at + 1))
    }

    /// Merges two neighbouring children, or balances them if they are too large for one node.
    fn join(&mut self, at: usize) {
        let mut keys = self.keys.to_vec();
        let between = keys.remove(at);
        let second = self.children.remove(at + 1);
        let split = match (&mut self.children[at], &second) {
            (Node::Leaf(first), Node::Leaf(second)) => {
                let all: Vec<T> = first.iter().chain(&**second).cloned().collect();
                split_leaf(first, &all, all.len() / 2)
            }
            (Node::Branch(first), Node::Branch(second)) => {
                let first = Arc::make_mut(first);
                let before = first.keys.iter().chain(once(&between));
                let keys = before.chain(&*second.keys).cloned().collect();
                first.children.extend_from_slice(&second.children);
                first.count += second.count;
                first.set_keys(keys, first.children.len() / 2)
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

    /// Replaces the separators, and splits the branch at `middle` if it has too many children.
    fn set_keys(&mut self, mut keys: Vec<Arc<str>>, middle: usize) -> Option<Split<T>> {
        let mut split = None;
        if self.children.len() > NODE_MAX {
            let children = self.children.split_off(middle);
            let branch = Branch::new(keys.split_off(middle), children);
            self.count -= branch.count;
            split = keys.pop().map(|key| (key, Node::Branch(Arc::new(branch))));
        }
        self.keys = keys.into();
        split
    }
}

/// An iterator over leaves, limited to a range.
struct Leaves<'a, T> {
    /// The remaining children at each level above the current leaf.
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
            // The last entry decides for the entire leaf.
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

    /// Checks the invariants of a node and returns its depth.
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
                assert_eq!(branch.count, count(&branch.children));
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
        /// Many entries in ascending or descending order.
        Run(u16, u16, bool),
        Clear(u16, u16),
        /// Clones the tree; the clone must not change from here on.
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
        fn a_tree_agrees_with_a_btree_map(steps in prop::collection::vec(step(), 1..120)) {
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
        fn a_range_contains_exactly_the_entries_between_its_bounds(
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
            prop_assert_eq!(tree.count(&after, end.as_deref()), names.len());
            let found: Vec<String> = tree.range(&after, end).map(|entry| entry.0.clone()).collect();
            prop_assert_eq!(found, names);
        }
    }

    #[test]
    fn sorted_insertions_fill_three_quarters_of_each_leaf() {
        let mut tree = Tree::default();
        (0..10_000).for_each(|at| drop(tree.insert(Entry(format!("{at:05}"), at))));
        let leaves = Leaves::new(&tree.root, "", None).count();
        assert!(leaves <= 10_000 / (NODE_MAX * 3 / 4), "{leaves}");
    }

    #[test]
    fn clones_share_unchanged_leaves() {
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
