//! A list without repeats, in the order of insertion: of errors and warnings about an input.
//!
//! Promise: adding an item takes constant time, however many there are; a hostile input can make
//! thousands.

use std::collections::HashSet;
use std::hash::Hash;

/// Distinct items in the order of insertion.
#[derive(Clone, Debug)]
pub struct Distinct<T> {
    list: Vec<T>,
    seen: HashSet<T>,
}

impl<T> Default for Distinct<T> {
    fn default() -> Distinct<T> {
        Distinct { list: Vec::new(), seen: HashSet::new() }
    }
}

impl<T: Clone + Eq + Hash> Distinct<T> {
    /// Adds an item unless it is in the list; returns whether it was added.
    pub fn insert(&mut self, item: T) -> bool {
        let is_new = self.seen.insert(item.clone());
        if is_new {
            self.list.push(item);
        }
        is_new
    }

    /// Removes the items after the first `length`.
    pub fn truncate(&mut self, length: usize) {
        for item in self.list.drain(length.min(self.list.len())..) {
            self.seen.remove(&item);
        }
    }

    /// The items.
    pub fn list(&self) -> &[T] {
        &self.list
    }

    /// The items as a vector.
    pub fn into_vec(self) -> Vec<T> {
        self.list
    }
}

impl<T: Clone + Eq + Hash> Extend<T> for Distinct<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        for item in items {
            self.insert(item);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hash::Hasher;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    #[test]
    fn repeats_are_dropped_and_the_order_is_that_of_insertion() {
        let mut items = Distinct::default();
        items.extend(["b", "a", "b", "c"]);
        assert_eq!(items.list(), ["b", "a", "c"]);
        items.truncate(1);
        assert!(items.insert("a"));
        assert!(!items.insert("b"));
        assert_eq!(items.into_vec(), ["b", "a"]);
    }

    /// An item that counts comparisons.
    #[derive(Clone)]
    struct Counted(u32, Arc<AtomicUsize>);

    impl PartialEq for Counted {
        fn eq(&self, other: &Counted) -> bool {
            self.1.fetch_add(1, Relaxed);
            self.0 == other.0
        }
    }

    impl Eq for Counted {}

    impl Hash for Counted {
        fn hash<H: Hasher>(&self, state: &mut H) {
            self.0.hash(state);
        }
    }

    #[test]
    fn the_number_of_comparisons_grows_linearly() {
        let compared = Arc::new(AtomicUsize::new(0));
        let mut items = Distinct::default();
        items.extend((0..20_000).map(|n| Counted(n, Arc::clone(&compared))));
        assert_eq!(items.list().len(), 20_000);
        assert!(compared.load(Relaxed) < 20_000);
    }
}
