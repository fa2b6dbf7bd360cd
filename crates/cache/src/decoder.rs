//! The decoder: turns stored bytes into the objects of one resource.
//!
//! River: feed → **decoder** → changes, snapshots.
//! Promise: objects follow the current definition of their resource, whichever definition they were
//! stored under.

use std::sync::Arc;

use headwater_api::kind::Field;
use headwater_api::{EventType, Object, Revision};
use headwater_json::scan::Malformed;
use headwater_store::{ChangeKind, Record};

use crate::Error;
use crate::change::ObjectChange;

/// How stored bytes become objects.
#[derive(Clone, Default)]
pub struct ObjectDecoder {
    /// The selectable fields.
    pub fields: Arc<[Field]>,
    /// Changes stored bytes before they are decoded, if the definition requires it.
    pub transform: Option<Arc<dyn StoredTransform>>,
}

/// Brings stored bytes into the current form of a resource. A custom resource prunes and defaults
/// objects that were stored under an earlier definition.
pub trait StoredTransform: Send + Sync {
    /// The transformed bytes; `None` if the stored bytes need no change.
    fn transform(&self, stored: &[u8]) -> Option<Vec<u8>>;
}

/// A decoded value, and whether its bytes differ from the stored bytes.
pub(crate) struct DecodedValue<T> {
    pub(crate) value: T,
    pub(crate) differs: bool,
}

impl ObjectDecoder {
    /// A decoder without a transform, with these selectable fields.
    pub fn with_fields(fields: &[Field]) -> ObjectDecoder {
        ObjectDecoder { fields: fields.into(), transform: None }
    }

    /// Whether both decoders produce the same objects. Transforms cannot be compared.
    pub(crate) fn is_same(&self, other: &ObjectDecoder) -> bool {
        *self.fields == *other.fields && self.transform.is_none() && other.transform.is_none()
    }

    /// Whether both are clones of one decoder.
    pub(crate) fn is_identical(&self, other: &ObjectDecoder) -> bool {
        let forms = match (&self.transform, &other.transform) {
            (Some(transform), Some(other)) => Arc::ptr_eq(transform, other),
            (transform, other) => transform.is_none() && other.is_none(),
        };
        forms && Arc::ptr_eq(&self.fields, &other.fields)
    }

    /// Decodes a stored value.
    pub(crate) fn object(
        &self,
        stored: &[u8],
        revision: Revision,
        event: EventType,
    ) -> Result<DecodedValue<Object>, Malformed> {
        let settled = self.transform(stored);
        let bytes = settled.as_deref().unwrap_or(stored);
        let value = Object::decode(bytes, revision, event, &self.fields)?;
        Ok(DecodedValue { value, differs: settled.is_some() })
    }

    /// Decodes a record.
    pub(crate) fn record(&self, record: &Record) -> Result<DecodedValue<Object>, Error> {
        self.object(&record.value, record.revision, EventType::Added)
            .map_err(|source| Error::Malformed { key: record.key.clone(), source })
    }

    /// Decodes a change of an object whose previous state is known.
    pub(crate) fn change(
        &self,
        stored: &headwater_store::Change,
        prev: Option<Arc<Object>>,
    ) -> Result<DecodedValue<ObjectChange>, Malformed> {
        let settled = match stored.kind {
            ChangeKind::Deleted => None, // built from the previous state
            ChangeKind::Created | ChangeKind::Updated => self.transform(&stored.value),
        };
        let value = settled.as_deref().unwrap_or(&stored.value);
        let value = ObjectChange::decode(stored, value, prev, &self.fields)?;
        Ok(DecodedValue { value, differs: settled.is_some() })
    }

    /// Decodes a change from the store's history, which includes the previous state.
    pub(crate) fn past_change(
        &self,
        stored: &headwater_store::Change,
    ) -> Result<ObjectChange, Error> {
        let decode = || {
            let prev = match &stored.prev {
                Some(prev) => {
                    Some(self.object(&prev.value, prev.revision, EventType::Modified)?.value)
                }
                None => None,
            };
            Ok(self.change(stored, prev.map(Arc::new))?.value)
        };
        decode().map_err(|source| Error::Malformed { key: stored.key.clone(), source })
    }

    fn transform(&self, stored: &[u8]) -> Option<Vec<u8>> {
        self.transform.as_ref().and_then(|transform| transform.transform(stored))
    }
}
