//! A vantage: what a watcher has not read yet, seen from outside.
//!
//! River: views → **vantage** → the list of watchers. Promise: looking takes the lock of one view for
//! a search; it delays neither the feed nor a watcher by more.

use std::sync::Arc;
use std::time::Duration;

use headwater_api::Revision;
use tokio::time::Instant;

use crate::resource::Resource;
use crate::view::View;

/// The selection and the resource of a watcher, for those who ask how far it has read.
#[derive(Clone)]
pub struct Vantage {
    view: Arc<View>,
    resource: Arc<Resource>,
}

/// What a watcher at some position has not read yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// Where its next events come from.
    pub source: ReadSource,
    /// The events of its selection in memory that it has not read.
    pub events: usize,
    /// The age of the oldest of them.
    pub age: Duration,
}

/// Where a watcher reads its next events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadSource {
    /// The events of its selection.
    View,
    /// The window of its resource.
    Window,
    /// The history of the store.
    Store,
}

impl Vantage {
    pub(crate) fn new(view: &Arc<View>, resource: &Arc<Resource>) -> Vantage {
        Vantage { view: Arc::clone(view), resource: Arc::clone(resource) }
    }

    /// What a watcher at this position has not read yet.
    pub fn backlog(&self, position: Revision) -> Backlog {
        let pending = self.view.pending(position);
        let source = match pending.is_complete {
            true => ReadSource::View,
            false if position >= self.resource.window_edge() => ReadSource::Window,
            false => ReadSource::Store,
        };
        let age = pending.oldest.map_or(Duration::ZERO, |at| Instant::now().duration_since(at));
        Backlog { source, events: pending.events, age }
    }
}
