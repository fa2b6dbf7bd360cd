//! The state of one resource while it is loaded from the store, page by page.
//!
//! River: store → **load** → snapshot. One page is decoded while the next one is read. A page is
//! freed after it is decoded, since objects own their bytes.
//! Promise: at most two pages of stored values are in memory in addition to the objects.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use headwater_api::{EventType, Object};
use headwater_store::Record;

use crate::decoder::{DecodedValue, ObjectDecoder};
use crate::snapshot::Objects;
use crate::unreadable::{Invalid, UnreadableValues};

/// The number of unreadable values of a resource that a load logs one by one.
const LOGGED_MAX: usize = 10;

/// Objects of one resource, all decoded with one decoder.
#[derive(Default)]
pub(crate) struct ResourceLoad {
    pub(crate) decoder: ObjectDecoder,
    pub(crate) objects: Objects,
    /// Stored bytes of the objects that the decoder transformed, by key.
    pub(crate) raw: HashMap<String, Bytes>,
    pub(crate) unreadable: UnreadableValues,
}

impl ResourceLoad {
    pub(crate) fn new(decoder: ObjectDecoder) -> ResourceLoad {
        ResourceLoad { decoder, ..ResourceLoad::default() }
    }

    /// Decodes and adds the stored record of an object.
    pub(crate) fn add(&mut self, name: &str, record: &Record) {
        match self.decoder.object(name, &record.value, record.revision, EventType::Added) {
            Ok(DecodedValue { value: object, differs }) => {
                if differs {
                    self.raw.insert(name.to_owned(), record.value.clone());
                }
                self.objects.insert(Arc::new(object));
            }
            Err(why) => {
                if self.unreadable.len() < LOGGED_MAX {
                    let key = &record.key;
                    tracing::error!(%key, "a stored value cannot be read; not serving it: {why}");
                }
                self.unreadable.insert(name, record.revision);
            }
        }
    }

    /// Decodes an object of another decoder again, and adds or replaces it. `raw` has the stored
    /// bytes of objects that the other decoder transformed.
    pub(crate) fn read_again(
        &mut self,
        object: &Object,
        raw: &HashMap<String, Bytes>,
    ) -> Result<(), Invalid> {
        let stored = match raw.get(object.key()) {
            Some(stored) => stored.clone(),
            None => object.stored()?.into(),
        };
        let DecodedValue { value: object, differs } =
            self.decoder.object(object.key(), &stored, object.revision(), object.event())?;
        self.raw.remove(object.key());
        if differs {
            self.raw.insert(object.key().to_owned(), stored);
        }
        self.objects.insert(Arc::new(object));
        Ok(())
    }

    pub(crate) fn forget(&mut self, key: &str) {
        self.objects.remove(key);
        self.raw.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use headwater_api::Revision;
    use headwater_api::kind::Field;
    use headwater_store::Key;

    use super::*;
    use crate::resource::Resource;
    use crate::view::ViewEnd;
    use crate::window::Bounds;

    #[test]
    fn objects_loaded_before_their_resource_was_defined_are_decoded_again() {
        let prefix = "/registry/core/pods/";
        let resource =
            Resource::new(prefix, ObjectDecoder::default(), Revision(1), Bounds::default());
        let mut read = resource.load();
        let value = r#"{"metadata":{"name":"a"},"spec":{"nodeName":"n1"}}"#.into();
        let key = Key::in_collection(prefix, "a");
        read.add("a", &Record { key, revision: Revision(2), value });
        let node = Field::new("spec.nodeName", &["spec", "nodeName"], "");
        resource.set_decoder(ObjectDecoder::with_fields(&[node])).unwrap();
        resource.fill(read, Revision(2), ViewEnd::Closed).unwrap();
        let state = resource.state();
        let object = state.get("a").unwrap();
        assert_eq!((object.field(0), object.revision()), (Some("n1"), Revision(2)));
    }
}
