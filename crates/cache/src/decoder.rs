//! The decoder: turns stored bytes into the objects of one resource.
//!
//! River: feed → **decoder** → changes, snapshots.
//! Promise: objects follow the current definition of their resource, whichever definition they were
//! stored under.

use std::sync::Arc;

use headwater_api::kind::Field;
use headwater_api::{EventType, Object, Revision};
use headwater_store::{Change, ChangeKind, Version};

use crate::change::ObjectChange;
use crate::unreadable::Invalid;

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

/// What a stored change means for the object.
pub(crate) struct DecodedChange {
    /// `None` if neither the previous value nor the new one can be read.
    pub(crate) change: Option<ObjectChange>,
    /// Whether the object differs from the stored bytes.
    pub(crate) differs: bool,
    /// Why the new value cannot be read.
    pub(crate) invalid: Option<Invalid>,
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

    /// Decodes the stored value of an object.
    pub(crate) fn object(
        &self,
        name: &str,
        stored: &[u8],
        revision: Revision,
        event: EventType,
    ) -> Result<DecodedValue<Object>, Invalid> {
        let settled = self.transform(stored);
        let bytes = settled.as_deref().unwrap_or(stored);
        let value = Object::decode(bytes, revision, event, &self.fields)?;
        match value.key() == name {
            true => Ok(DecodedValue { value, differs: settled.is_some() }),
            false => Err(Invalid::Misplaced(value.key().to_owned())),
        }
    }

    /// Decodes a change of the object with this key, whose previous state is known; `None` if that
    /// cannot be read.
    pub(crate) fn change(
        &self,
        name: &str,
        stored: &Change,
        prev: Option<Arc<Object>>,
    ) -> Result<DecodedChange, Invalid> {
        let at = stored.revision;
        let event = if prev.is_some() { EventType::Modified } else { EventType::Added };
        let written = match stored.kind {
            ChangeKind::Deleted => None, // built from the previous state
            ChangeKind::Created | ChangeKind::Updated => {
                Some(self.object(name, &stored.value, at, event))
            }
        };
        Ok(match (written, prev) {
            (Some(Ok(DecodedValue { value, differs })), prev) => DecodedChange {
                change: Some(ObjectChange::written(value, prev)),
                differs,
                invalid: None,
            },
            (written, prev) => DecodedChange {
                change: match prev {
                    Some(prev) => Some(ObjectChange::removed(prev, at, &self.fields)?),
                    None => None,
                },
                differs: false,
                invalid: written.and_then(Result::err),
            },
        })
    }

    /// Decodes a change from the store's history, which includes the previous state.
    pub(crate) fn past_change(
        &self,
        name: &str,
        stored: &Change,
    ) -> Result<Option<ObjectChange>, Invalid> {
        let read = |prev: &Version| {
            self.object(name, &prev.value, prev.revision, EventType::Modified).ok()
        };
        let prev = stored.prev.as_ref().and_then(read);
        Ok(self.change(name, stored, prev.map(|prev| Arc::new(prev.value)))?.change)
    }

    fn transform(&self, stored: &[u8]) -> Option<Vec<u8>> {
        self.transform.as_ref().and_then(|transform| transform.transform(stored))
    }
}
