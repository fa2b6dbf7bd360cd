//! A selection: the objects of a list or of one page, read while they are sent.
//!
//! River: snapshot → **selection** → list, delete of a collection.
//! Promise: all objects are of one snapshot, in key order. Without a limit, at most `READ_MAX` of
//! them are held in addition to the snapshot.

use std::sync::Arc;
use std::vec;

use headwater_api::Object;

use crate::snapshot::Snapshot;
use crate::view::Filter;

/// The objects that a filter selects, after a key and up to a limit.
#[derive(Clone)]
pub struct Selection {
    snapshot: Snapshot,
    filter: Filter,
    /// The key after which the next objects are read; `None` reads from the beginning.
    after: Option<String>,
    /// Everything was read.
    is_read: bool,
    /// Objects that were read and not returned yet.
    ahead: vec::IntoIter<Arc<Object>>,
    /// The number of objects that were returned.
    taken: usize,
    rest: Option<Rest>,
}

/// The objects after the limit of a selection.
#[derive(Clone)]
pub struct Rest {
    /// The last object before them.
    pub after: Arc<Object>,
    /// Their number, if it is known without a scan.
    pub count: Option<usize>,
}

/// The maximum number of objects to read at once.
const READ_MAX: usize = 512;

impl Selection {
    /// Selects objects of a snapshot. A selection with a limit is read at once, because the head of
    /// a page depends on its last object.
    pub fn new(
        snapshot: Snapshot,
        filter: Filter,
        after: Option<String>,
        limit: Option<usize>,
    ) -> Selection {
        let (ahead, rest) = (Vec::new().into_iter(), None);
        let mut selection =
            Selection { snapshot, filter, after, is_read: false, ahead, taken: 0, rest };
        if let Some(limit) = limit {
            selection.read_page(limit);
        }
        selection
    }

    fn read_page(&mut self, limit: usize) {
        let Selection { snapshot, filter, .. } = &*self;
        let mut matching = snapshot.select(filter, self.after.as_deref());
        let page: Vec<Arc<Object>> = matching.by_ref().take(limit).cloned().collect();
        let more = matching.next().is_some();
        drop(matching);
        self.rest = page.last().filter(|_| more).map(|last| {
            let count = || snapshot.count(&filter.namespace, Some(last.key()));
            Rest { after: Arc::clone(last), count: filter.selects_all().then(count) }
        });
        self.replace(page);
    }

    /// What it selects.
    pub fn filtered_by(&self) -> &Filter {
        &self.filter
    }

    /// The snapshot.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The objects after the limit, if there are any.
    pub fn rest(&self) -> Option<&Rest> {
        self.rest.as_ref()
    }

    /// The number of objects that were taken.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// The next objects, without taking them; empty at the end.
    pub fn ahead(&mut self) -> &[Arc<Object>] {
        if self.ahead.len() == 0 && !self.is_read {
            let matching = self.snapshot.select(&self.filter, self.after.as_deref());
            let objects: Vec<Arc<Object>> = matching.take(READ_MAX).cloned().collect();
            self.is_read = objects.len() < READ_MAX;
            self.after = objects.last().map(|last| last.key().to_owned());
            self.ahead = objects.into_iter();
        }
        self.ahead.as_slice()
    }

    /// All remaining objects, without taking them.
    pub fn read_all(&mut self) -> &[Arc<Object>] {
        if !self.is_read {
            let objects = self.by_ref().collect();
            self.taken = 0;
            self.replace(objects);
        }
        self.ahead.as_slice()
    }

    /// Replaces all remaining objects, for example by converted ones.
    pub fn replace(&mut self, objects: Vec<Arc<Object>>) {
        (self.ahead, self.is_read) = (objects.into_iter(), true);
    }
}

impl Iterator for Selection {
    type Item = Arc<Object>;

    fn next(&mut self) -> Option<Arc<Object>> {
        if self.ahead.len() == 0 {
            self.ahead();
        }
        let next = self.ahead.next();
        self.taken += usize::from(next.is_some());
        next
    }
}

#[cfg(test)]
mod tests {
    use headwater_api::selector::LabelSelector;
    use headwater_api::{EventType, Revision};

    use super::*;
    use crate::snapshot::Objects;

    /// 3,000 objects in three namespaces; every tenth has a label.
    fn snapshot() -> Snapshot {
        let mut objects = Objects::default();
        for at in 0..3_000 {
            let (namespace, app) = (at % 3, if at % 10 == 0 { "web" } else { "db" });
            let stored = format!(
                r#"{{"metadata":{{"name":"{at:04}","namespace":"{namespace}","labels":{{"app":"{app}"}}}}}}"#
            );
            let object = Object::decode(stored.as_bytes(), Revision(1), EventType::Added, &[]);
            objects.insert(Arc::new(object.unwrap()));
        }
        Snapshot::new(objects, Revision(7))
    }

    fn filters() -> Vec<Filter> {
        let web = LabelSelector::parse("app=web").unwrap();
        let namespace = "1".to_owned();
        vec![
            Filter::default(),
            Filter { namespace: namespace.clone(), ..Filter::default() },
            Filter { labels: web.clone(), ..Filter::default() },
            Filter { namespace, labels: web, ..Filter::default() },
            Filter { namespace: "none".to_owned(), ..Filter::default() },
        ]
    }

    fn keys(selection: impl Iterator<Item = Arc<Object>>) -> Vec<String> {
        selection.map(|object| object.key().to_owned()).collect()
    }

    #[test]
    fn a_selection_without_a_limit_contains_every_match_in_order() {
        let snapshot = snapshot();
        for (filter, count) in filters().into_iter().zip([3_000, 1_000, 300, 100, 0]) {
            let expected: Vec<String> =
                snapshot.select(&filter, None).map(|object| object.key().to_owned()).collect();
            let mut selection = Selection::new(snapshot.clone(), filter, None, None);
            assert!(selection.rest().is_none());
            assert_eq!(selection.ahead().len(), count.min(READ_MAX));
            let found = keys(selection);
            assert!(found == expected && found.len() == count, "{} of {count}", found.len());
        }
    }

    #[test]
    fn the_pages_of_a_list_are_the_list() {
        let snapshot = snapshot();
        for filter in filters() {
            let all = keys(Selection::new(snapshot.clone(), filter.clone(), None, None));
            for limit in [1_usize, 7, READ_MAX, 1_000, 5_000] {
                let (mut found, mut after) = (Vec::new(), None);
                for _ in 0..all.len().div_ceil(limit).max(1) {
                    let page =
                        Selection::new(snapshot.clone(), filter.clone(), after.take(), Some(limit));
                    let rest = page.rest().map(|rest| (rest.after.key().to_owned(), rest.count));
                    found.extend(keys(page));
                    if let Some((last, count)) = rest {
                        assert_eq!(found.last(), Some(&last));
                        let left = filter.selects_all().then(|| all.len() - found.len());
                        assert_eq!(count, left);
                        after = Some(last);
                    }
                }
                assert!(after.is_none() && found == all, "pages of {limit}");
            }
        }
    }

    #[test]
    fn replaced_objects_are_returned_instead_of_the_selected_ones() {
        let mut selection = Selection::new(snapshot(), Filter::default(), None, None);
        let first = selection.next().unwrap();
        assert_eq!(selection.read_all().len(), 2_999);
        assert_eq!(selection.read_all().len(), 2_999, "nothing was taken");
        selection.replace(vec![Arc::clone(&first)]);
        assert_eq!(keys(selection), [first.key()]);
    }
}
