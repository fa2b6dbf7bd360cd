//! Hot parts of the cache for micro-benchmarks. Not a stable interface.

use std::sync::Arc;
use std::time::Duration;

use headwater_api::kind::Field;
use headwater_api::{EventType, Object, Revision};

use crate::change::ObjectChange;
use crate::snapshot::Objects;
use crate::view::{Filter, View, Views};
use crate::window::{Bounds, Window};

/// All objects of a resource.
#[derive(Clone)]
pub struct ObjectSet(Objects);

impl ObjectSet {
    /// A set of these objects.
    pub fn of<'a>(objects: impl IntoIterator<Item = &'a Arc<Object>>) -> ObjectSet {
        let mut state = ObjectSet(Objects::default());
        objects.into_iter().for_each(|object| state.insert(Arc::clone(object)));
        state
    }

    /// Inserts an object or replaces its older version.
    pub fn insert(&mut self, object: Arc<Object>) {
        self.0.insert(object);
    }

    /// The size of all objects in a list.
    pub fn bytes(&self) -> usize {
        self.0.iter("", None).map(|object| object.item_tail().len()).sum()
    }
}

/// The newest changes of a resource.
pub struct Changes(Window);

impl Changes {
    /// A window of at most `count` changes.
    pub fn new(count: usize) -> Changes {
        let bounds = Bounds { age: Duration::MAX, count, bytes: usize::MAX };
        Changes(Window::new(Revision::ZERO, bounds))
    }

    /// Decodes a stored change.
    pub fn decode(stored: &headwater_store::Change, fields: &[Field]) -> Arc<ObjectChange> {
        let object = Object::decode(&stored.value, stored.revision, EventType::Added, fields);
        Arc::new(ObjectChange::written(object.expect("benchmarks store objects"), None))
    }

    /// Adds a change.
    pub fn append(&mut self, change: Arc<ObjectChange>) {
        self.0.push(change);
    }

    /// Counts the changes after a revision by visiting each.
    pub fn read(&self, after: Revision) -> usize {
        self.0.after(after).map_or(0, |changes| changes.filter(|c| c.revision() > after).count())
    }
}

/// Views of a resource, one per watcher.
pub struct WatchedViews {
    views: Views,
    fields: Vec<Field>,
    watched: Vec<Arc<View>>,
}

impl WatchedViews {
    /// No views.
    pub fn new(fields: Vec<Field>) -> WatchedViews {
        WatchedViews { views: Views::default(), fields, watched: Vec::new() }
    }

    /// Adds a watcher.
    pub fn watch(&mut self, filter: &Filter) {
        self.watched.push(self.views.join(filter, Revision::ZERO));
    }

    /// Offers a change to the views it may concern; returns how many accepted it.
    pub fn offer(&mut self, change: &Arc<ObjectChange>) -> usize {
        let taken = self.views.offer(change, &self.fields, Revision::ZERO);
        self.views.publish(change.revision());
        taken
    }
}
