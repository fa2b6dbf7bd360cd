//! The cache's hot pieces alone, for benchmarks. Not an interface: it changes with them.

use std::sync::Arc;
use std::time::Duration;

use headwater_api::kind::Field;
use headwater_api::{Object, Revision};

use crate::change::Change;
use crate::snapshot::Objects;
use crate::view::{Filter, View, Views};
use crate::window::{Bounds, Window};

/// All objects of a resource.
#[derive(Clone)]
pub struct State(Objects);

impl State {
    /// These objects.
    pub fn of<'a>(objects: impl IntoIterator<Item = &'a Arc<Object>>) -> State {
        let mut state = State(Objects::default());
        objects.into_iter().for_each(|object| state.insert(Arc::clone(object)));
        state
    }

    /// Puts an object in place of its older version.
    pub fn insert(&mut self, object: Arc<Object>) {
        self.0.insert(object);
    }

    /// The size of all of them in a list.
    pub fn bytes(&self) -> usize {
        self.0.iter("", None).map(|object| object.item_tail().len()).sum()
    }
}

/// The newest changes of a resource.
pub struct Changes(Window);

impl Changes {
    /// At most so many.
    pub fn new(count: usize) -> Changes {
        let bounds = Bounds { age: Duration::MAX, count, bytes: usize::MAX };
        Changes(Window::new(Revision::ZERO, bounds))
    }

    /// A stored change as watchers see it.
    pub fn decode(stored: &headwater_store::Change, fields: &[Field]) -> Arc<Change> {
        let change = Change::decode(stored, &stored.value, None, fields);
        Arc::new(change.expect("benchmarks store objects"))
    }

    /// One more.
    pub fn append(&mut self, change: Arc<Change>) {
        self.0.push(change);
    }

    /// How many there are after a revision, each looked at.
    pub fn read(&self, after: Revision) -> usize {
        self.0.after(after).map_or(0, |changes| changes.filter(|c| c.revision() > after).count())
    }
}

/// Views of a resource, each with a watcher.
pub struct Watched {
    views: Views,
    fields: Vec<Field>,
    watched: Vec<Arc<View>>,
}

impl Watched {
    /// None yet.
    pub fn new(fields: Vec<Field>) -> Watched {
        Watched { views: Views::default(), fields, watched: Vec::new() }
    }

    /// One more watcher.
    pub fn watch(&mut self, filter: &Filter) {
        self.watched.push(self.views.join(filter, Revision::ZERO));
    }

    /// Offers a change to those it may concern; answers how many took it.
    pub fn offer(&mut self, change: &Arc<Change>) -> usize {
        let taken = self.views.offer(change, &self.fields, Revision::ZERO);
        self.views.announce(change.revision());
        taken
    }
}
