//! Stored values that are not the object of their key.
//!
//! River: store → decoder → **unreadable** → snapshot. Another program wrote the value, its
//! encryption key is lost, or a disk damaged it.
//! Promise: such a value affects no other object. Reads of its key fail; for lists and watches the
//! object does not exist until it has a readable value again.

use std::collections::BTreeMap;
use std::sync::Arc;

use headwater_api::Revision;
use headwater_json::scan::Malformed;

/// Why a stored value is not the object of its key.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Invalid {
    /// It is not an object.
    #[error("it is not a valid object: {0}")]
    Malformed(#[from] Malformed),
    /// It is an object with another namespace or name.
    #[error("it is the object {0}")]
    Misplaced(String),
}

/// The revisions of the unreadable values of a resource, by the key of the object. Snapshots share
/// it; it is empty as a rule.
#[derive(Clone, Default)]
pub(crate) struct UnreadableValues(Option<Arc<BTreeMap<String, Revision>>>);

impl UnreadableValues {
    pub(crate) fn get(&self, key: &str) -> Option<Revision> {
        self.0.as_ref()?.get(key).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |values| values.len())
    }

    pub(crate) fn insert(&mut self, key: &str, revision: Revision) {
        Arc::make_mut(self.0.get_or_insert_default()).insert(key.to_owned(), revision);
    }

    pub(crate) fn remove(&mut self, key: &str) {
        if self.get(key).is_some()
            && let Some(values) = &mut self.0
        {
            Arc::make_mut(values).remove(key);
        }
    }
}
