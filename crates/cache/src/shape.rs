//! The shape: how stored bytes become the objects of one resource.
//!
//! River: feed → **shape** → changes, snapshots.
//! Promise: an object is read in the form its resource is defined in now, whatever was stored.

use std::sync::Arc;

use headwater_api::kind::Field;
use headwater_api::{EventType, Object, Revision};
use headwater_json::scan::Malformed;
use headwater_store::{ChangeKind, Record};

use crate::Error;
use crate::change::Change;

/// How stored bytes are read.
#[derive(Clone, Default)]
pub struct Shape {
    /// The selectable fields.
    pub fields: Arc<[Field]>,
    /// What is made of the bytes first, where they are not read as they were stored.
    pub form: Option<Arc<dyn Form>>,
}

/// The form in which objects are read, where it can differ from the stored one: a custom kind
/// prunes and defaults what was stored under an earlier definition.
pub trait Form: Send + Sync {
    /// The bytes in the form that is read; `None` if they are in it already.
    fn settle(&self, stored: &[u8]) -> Option<Vec<u8>>;
}

/// Something read, and whether its bytes are other ones than those that are stored.
pub(crate) struct Settled<T> {
    pub(crate) it: T,
    pub(crate) differs: bool,
}

impl Shape {
    /// Ordinary objects with these selectable fields.
    pub fn plain(fields: &[Field]) -> Shape {
        Shape { fields: fields.into(), form: None }
    }

    /// Whether objects read in one shape are the same in the other. Forms cannot be compared.
    pub(crate) fn is_same(&self, other: &Shape) -> bool {
        *self.fields == *other.fields && self.form.is_none() && other.form.is_none()
    }

    /// Whether it is the very same shape, made once.
    pub(crate) fn is_identical(&self, other: &Shape) -> bool {
        let forms = match (&self.form, &other.form) {
            (Some(form), Some(other)) => Arc::ptr_eq(form, other),
            (form, other) => form.is_none() && other.is_none(),
        };
        forms && Arc::ptr_eq(&self.fields, &other.fields)
    }

    /// Stored bytes as an object.
    pub(crate) fn object(
        &self,
        stored: &[u8],
        revision: Revision,
        event: EventType,
    ) -> Result<Settled<Object>, Malformed> {
        let settled = self.settle(stored);
        let bytes = settled.as_deref().unwrap_or(stored);
        let it = Object::decode(bytes, revision, event, &self.fields)?;
        Ok(Settled { it, differs: settled.is_some() })
    }

    /// A record as an object.
    pub(crate) fn record(&self, record: &Record) -> Result<Settled<Object>, Error> {
        self.object(&record.value, record.revision, EventType::Added)
            .map_err(|source| Error::Malformed { key: record.key.clone(), source })
    }

    /// A change of an object whose state before is held.
    pub(crate) fn change(
        &self,
        stored: &headwater_store::Change,
        prev: Option<Arc<Object>>,
    ) -> Result<Settled<Change>, Malformed> {
        let settled = match stored.kind {
            ChangeKind::Deleted => None, // the state before says it all
            ChangeKind::Created | ChangeKind::Updated => self.settle(&stored.value),
        };
        let value = settled.as_deref().unwrap_or(&stored.value);
        let it = Change::decode(stored, value, prev, &self.fields)?;
        Ok(Settled { it, differs: settled.is_some() })
    }

    /// A change read from the store's history, which has the state before too.
    pub(crate) fn past_change(&self, stored: &headwater_store::Change) -> Result<Change, Error> {
        let decode = || {
            let prev = match &stored.prev {
                Some(prev) => {
                    Some(self.object(&prev.value, prev.revision, EventType::Modified)?.it)
                }
                None => None,
            };
            Ok(self.change(stored, prev.map(Arc::new))?.it)
        };
        decode().map_err(|source| Error::Malformed { key: stored.key.clone(), source })
    }

    fn settle(&self, stored: &[u8]) -> Option<Vec<u8>> {
        self.form.as_ref().and_then(|form| form.settle(stored))
    }
}
