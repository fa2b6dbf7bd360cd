//! Filling: the state of one resource while it is read from the store, page by page.
//!
//! River: store → **filling** → snapshot. A page is decoded while the next one is read, and is let
//! go as soon as it is: objects hold their own bytes.
//! Promise: of what is stored, no more than two pages are in memory beside the objects.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use headwater_api::Object;
use headwater_json::scan::Malformed;
use headwater_store::Record;

use crate::Error;
use crate::shape::{Settled, Shape};
use crate::snapshot::Objects;

/// Objects of one resource, all read in one shape.
#[derive(Default)]
pub(crate) struct Filling {
    pub(crate) shape: Shape,
    pub(crate) objects: Objects,
    /// Stored bytes of the objects that are read in another form, by key.
    pub(crate) raw: HashMap<String, Bytes>,
}

impl Filling {
    pub(crate) fn new(shape: Shape) -> Filling {
        Filling { shape, ..Filling::default() }
    }

    /// Adds a stored record.
    pub(crate) fn add(&mut self, record: &Record) -> Result<(), Error> {
        let Settled { it, differs } = self.shape.record(record)?;
        if differs {
            self.raw.insert(it.key().to_owned(), record.value.clone());
        }
        self.objects.insert(Arc::new(it));
        Ok(())
    }

    /// Adds an object that was read in another shape, or replaces it; `raw` has the stored bytes of
    /// those whose own are other ones.
    pub(crate) fn read_again(
        &mut self,
        object: &Object,
        raw: &HashMap<String, Bytes>,
    ) -> Result<(), Malformed> {
        let stored = match raw.get(object.key()) {
            Some(stored) => stored.clone(),
            None => object.stored()?.into(),
        };
        let Settled { it, differs } =
            self.shape.object(&stored, object.revision(), object.event())?;
        self.raw.remove(it.key());
        if differs {
            self.raw.insert(it.key().to_owned(), stored);
        }
        self.objects.insert(Arc::new(it));
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
    use crate::view::End;
    use crate::window::Bounds;

    #[test]
    fn what_was_read_before_it_was_defined_is_read_again_as_defined() {
        let prefix = "/registry/core/pods/";
        let resource = Resource::new(prefix, Shape::default(), Revision(1), Bounds::default());
        let mut read = resource.filling();
        let value = r#"{"metadata":{"name":"a"},"spec":{"nodeName":"n1"}}"#.into();
        let key = Key::in_collection(prefix, "a");
        read.add(&Record { key, revision: Revision(2), value }).unwrap();
        let node = Field::new("spec.nodeName", &["spec", "nodeName"], "");
        resource.reshape(Shape::plain(&[node])).unwrap();
        resource.fill(read, Revision(2), End::Closed).unwrap();
        let state = resource.state();
        let object = state.get("a").unwrap();
        assert_eq!((object.field(0), object.revision()), (Some("n1"), Revision(2)));
    }
}
