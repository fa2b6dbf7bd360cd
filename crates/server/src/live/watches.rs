//! Open watches: who watches what, and how far each has got.
//!
//! River: watch streams → **watches** → objects. A stream stores three numbers for each chunk that it
//! sends, and waits for nobody who reads them.
//! Promise: an idle watch takes less than 400 bytes here.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

use headwater_api::Revision;
use headwater_cache::Vantage;
use jiff::Timestamp;

use crate::front::identity::Identity;
use crate::kinds::registry::Served;
use crate::lock::lock;

/// The longest part of a client's name and of a selector that is kept, in bytes.
const TEXT_MAX: usize = 256;

/// The open watches of a server.
#[derive(Default)]
pub(crate) struct OpenWatches {
    open: Mutex<HashMap<u64, Arc<OpenWatch>>>,
    newest: AtomicU64,
}

/// What is known of a watch when it opens.
pub(crate) struct WatchDescription<'a> {
    pub(crate) identity: &'a Arc<Identity>,
    pub(crate) kind: &'a Arc<Served>,
    pub(crate) namespace: &'a str,
    pub(crate) label_selector: &'a str,
    pub(crate) field_selector: &'a str,
    pub(crate) user_agent: &'a str,
    pub(crate) address: SocketAddr,
    pub(crate) opened: Timestamp,
}

/// One open watch.
pub(crate) struct OpenWatch {
    pub(super) number: u64,
    pub(super) identity: Arc<Identity>,
    pub(super) kind: Arc<Served>,
    pub(super) namespace: Box<str>,
    /// The label selector, a space and the field selector.
    pub(super) selector: Box<str>,
    pub(super) user_agent: Box<str>,
    pub(super) address: SocketAddr,
    pub(super) opened: Timestamp,
    position: AtomicU64,
    events: AtomicU64,
    bytes: AtomicU64,
    /// Empty until the watch has begun.
    vantage: OnceLock<Vantage>,
}

/// The entry of an open watch; dropped, the watch is not listed any more.
pub(crate) struct WatchEntry {
    watches: Arc<OpenWatches>,
    watch: Arc<OpenWatch>,
}

impl OpenWatches {
    /// Lists a watch until its entry is dropped.
    pub(crate) fn open(self: &Arc<OpenWatches>, described: &WatchDescription<'_>) -> WatchEntry {
        let number = self.newest.fetch_add(1, Relaxed) + 1;
        let selectors = [described.label_selector, described.field_selector];
        let selector = selectors.join(" ");
        let watch = Arc::new(OpenWatch {
            number,
            identity: Arc::clone(described.identity),
            kind: Arc::clone(described.kind),
            namespace: described.namespace.into(),
            selector: bounded(selector.trim()).into(),
            user_agent: bounded(described.user_agent).into(),
            address: described.address,
            opened: described.opened,
            position: AtomicU64::new(0),
            events: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            vantage: OnceLock::new(),
        });
        lock(&self.open).insert(number, Arc::clone(&watch));
        WatchEntry { watches: Arc::clone(self), watch }
    }

    /// The number of open watches.
    pub(crate) fn count(&self) -> usize {
        lock(&self.open).len()
    }

    /// The number of watches of a collection that have an event up to a revision to send.
    pub(crate) fn behind(&self, collection: &str, revision: Revision) -> usize {
        let is_behind = |watch: &Arc<OpenWatch>| {
            let position = watch.position();
            watch.kind.prefix == collection
                && position < revision
                && watch.vantage().is_some_and(|vantage| vantage.backlog(position).events > 0)
        };
        self.all().iter().filter(|watch| is_behind(watch)).count()
    }

    /// All open watches.
    pub(super) fn all(&self) -> Vec<Arc<OpenWatch>> {
        lock(&self.open).values().cloned().collect()
    }
}

impl OpenWatch {
    pub(super) fn position(&self) -> Revision {
        Revision(self.position.load(Relaxed))
    }

    pub(super) fn events(&self) -> u64 {
        self.events.load(Relaxed)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    pub(super) fn vantage(&self) -> Option<&Vantage> {
        self.vantage.get()
    }
}

impl WatchEntry {
    /// The watch has begun.
    pub(crate) fn began(&self, vantage: Vantage, position: Revision) {
        // A watch that begins again after an error keeps its selection.
        let _ = self.watch.vantage.set(vantage);
        self.reached(position);
    }

    /// The watch has read everything up to this revision.
    pub(crate) fn reached(&self, position: Revision) {
        self.watch.position.store(position.0, Relaxed);
    }

    /// Counts a chunk.
    pub(crate) fn sent(&self, bytes: usize) {
        self.watch.bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts events.
    pub(crate) fn sent_events(&self, events: usize) {
        self.watch.events.fetch_add(events as u64, Relaxed);
    }
}

impl Drop for WatchEntry {
    fn drop(&mut self) {
        lock(&self.watches.open).remove(&self.watch.number);
    }
}

/// The first bytes of a text.
fn bounded(text: &str) -> &str {
    let end = (0..=text.len().min(TEXT_MAX)).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let text = "é".repeat(TEXT_MAX);
        assert_eq!(bounded(&text).len(), TEXT_MAX);
        assert_eq!(bounded(&format!("x{text}")).len(), TEXT_MAX - 1);
        assert_eq!(bounded("kubectl"), "kubectl");
    }

    /// S11.30
    #[test]
    fn an_idle_watch_takes_few_hundred_bytes() {
        let counters = 2 * size_of::<usize>();
        let entry = size_of::<(u64, Arc<OpenWatch>)>();
        assert!(size_of::<OpenWatch>() + counters + entry < 400, "{}", size_of::<OpenWatch>());
    }
}
