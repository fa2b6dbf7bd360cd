//! The texts that deltas of a watch change.
//!
//! River: frames and list items → **bases** → decoder. Informers that store packed objects keep the
//! text of each object anyway, so they ask for deltas; these texts are shared with the stored objects.
//! Promise: a delta is applied to the text of exactly the version that it is for, or the collection is
//! read again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use headwater_api::delta::{Delta, Mismatch};

use crate::key::Key;
use crate::object::Cached;
use crate::version::ResourceVersion;

/// After this many deltas that could not be applied, a source asks for none.
const MISMATCHES_MAX: u32 = 3;

/// The texts of all objects of a source.
#[derive(Default)]
pub(crate) struct Bases(Mutex<BaseTexts>);

#[derive(Default)]
struct BaseTexts {
    /// `{"kind":K,"apiVersion":V,`: what items of lists of built-in kinds lack.
    type_meta: String,
    texts: HashMap<ResourceVersion, (Key, Arc<str>)>,
    versions: HashMap<Key, ResourceVersion>,
    /// Whether they are the texts of a complete collection.
    is_complete: bool,
    mismatches: u32,
}

impl Bases {
    pub(crate) fn new(kind: &str, api_version: &str) -> Bases {
        let type_meta = format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",");
        Bases(Mutex::new(BaseTexts { type_meta, ..BaseTexts::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, BaseTexts> {
        self.0.lock().expect("no code panics while the texts are held")
    }

    /// Forgets everything: the collection is read from its start.
    pub(crate) fn clear(&self) {
        let mut bases = self.lock();
        bases.texts.clear();
        bases.versions.clear();
        bases.is_complete = false;
    }

    /// The collection was read completely, or its initial events come first in the next watch.
    pub(crate) fn complete(&self) {
        self.lock().is_complete = true;
    }

    /// Whether a watch may ask for deltas.
    pub(crate) fn are_complete(&self) -> bool {
        let bases = self.lock();
        bases.is_complete && bases.mismatches < MISMATCHES_MAX
    }

    /// Keeps the text of an object. One without a text, or with another text than the server's,
    /// cannot be changed by a delta.
    pub(crate) fn keep<K: Cached>(&self, object: &K, is_as_sent: bool) {
        let (key, version) = (object.key(), object.resource_version());
        let mut bases = self.lock();
        bases.remove(&key);
        if let Some(text) = object.shared_text().filter(|_| is_as_sent) {
            bases.versions.insert(key.clone(), version.clone());
            bases.texts.insert(version, (key, text));
        }
    }

    /// Forgets an object that was deleted or cannot be decoded.
    pub(crate) fn remove(&self, key: &Key) {
        self.lock().remove(key);
    }

    /// The text of an object after a change.
    pub(crate) fn apply(&self, delta: &Delta<'_>) -> Result<String, Mismatch> {
        let mut bases = self.lock();
        let base = bases.texts.get(&ResourceVersion::new(&delta.from));
        let base = base.map(|(_, text)| Arc::clone(text));
        let made = base.ok_or(Mismatch::Base).and_then(|text| {
            if text.starts_with("{\"metadata\":") {
                let whole = [&bases.type_meta, &text[1..]].concat();
                return delta.apply(&whole);
            }
            delta.apply(&text)
        });
        if made.is_err() {
            bases.mismatches += 1;
        }
        made
    }
}

impl BaseTexts {
    fn remove(&mut self, key: &Key) {
        if let Some(version) = self.versions.remove(key) {
            self.texts.remove(&version);
        }
    }
}
