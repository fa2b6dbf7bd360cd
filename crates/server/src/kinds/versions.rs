//! Conversion of objects between the versions of their kind.
//!
//! River: cache → **versions** → encode; admission → **versions** → store. Built-in kinds and custom
//! kinds without a webhook are converted in place; a custom kind may name a webhook ([`webhook`]).
//! [`form`] updates stored custom objects to the current storage version and schema.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use headwater_api::{Object, Revision, Status};
use headwater_cache::{Cache, StoredTransform};
use headwater_json::Value;
use headwater_store::Record;

use crate::kinds::registry::Served;
use crate::object::{Answer, Current, canonical, packed_tree, stamp, wire};
use crate::outgoing::{Caller, WebhookEndpoint};
use crate::system::metrics::Metrics;

pub(crate) mod form;
pub(crate) mod webhook;

/// The services that conversion webhooks need. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Converter {
    pub(crate) cache: Cache,
    pub(crate) metrics: Metrics,
    pub(crate) caller: Arc<Caller>,
}

impl Converter {
    /// Sends a review to a webhook and returns its response.
    async fn post(
        &self,
        place: &WebhookEndpoint,
        body: Vec<u8>,
        timeout: Duration,
    ) -> Result<Value, String> {
        self.caller.post(&self.cache, place, body, timeout).await
    }
}

/// Converts from the version of the request to the storage version.
pub(crate) fn to_storage(kind: &Served, value: &mut Value) {
    if kind.is_converted() {
        headwater_schema::convert(value, kind, kind.storage());
    }
}

/// Converts from the storage version to the version of the request.
pub(crate) fn from_storage(kind: &Served, value: &mut Value) {
    if kind.is_converted() {
        headwater_schema::convert(value, kind.storage(), kind);
        if let Some(custom) = &kind.definition {
            custom.schema.prune(value);
        }
    }
}

/// Decodes a stored value as an object of this kind.
pub(crate) fn read_stored(kind: &Served, record: &Record) -> Result<Current, Status> {
    let mut value = packed_tree(&record.value)?;
    if let Some(custom) = &kind.definition {
        custom.form.settle(&mut value);
    }
    stamp(&mut value, record.revision);
    Ok(Current { value, revision: record.revision })
}

/// An object in the version of the request: the stored one, or a converted one.
pub(crate) enum ConvertedObject<'a> {
    Stored(&'a Object),
    Made(Arc<Object>),
}

impl std::ops::Deref for ConvertedObject<'_> {
    type Target = Object;

    fn deref(&self) -> &Object {
        match self {
            ConvertedObject::Stored(object) => object,
            ConvertedObject::Made(object) => object,
        }
    }
}

/// A cached object in the version of the request.
pub(crate) async fn object<'a>(
    converter: &Converter,
    kind: &Served,
    object: &'a Arc<Object>,
) -> Result<ConvertedObject<'a>, Status> {
    if kind.conversion().is_none() {
        return converted(kind, object);
    }
    let mut made = objects(converter, kind, std::slice::from_ref(object)).await?;
    Ok(made.pop().map_or(ConvertedObject::Stored(object), ConvertedObject::Made))
}

/// An object in the version of the request, unless that needs a webhook.
pub(crate) fn converted<'a>(
    kind: &Served,
    object: &'a Object,
) -> Result<ConvertedObject<'a>, Status> {
    if !kind.is_converted() {
        return Ok(ConvertedObject::Stored(object));
    }
    if let Some(bytes) = form::respelled(kind, object) {
        return Ok(ConvertedObject::Made(Arc::new(wire(&bytes, object.revision())?)));
    }
    let mut value = packed_tree(object.as_slice())?;
    from_storage(kind, &mut value);
    Ok(ConvertedObject::Made(Arc::new(wire(&canonical(&value), object.revision())?)))
}

/// Whether an object has the version of this row, which its first bytes contain.
fn is_of(row: &Served, object: &Object) -> bool {
    let head = row.definition.as_ref().map_or(&[][..], |custom| &custom.head);
    object.as_slice().starts_with(head)
}

/// Whether an object is stored in an older version that only a webhook can convert.
pub(crate) fn is_stale(row: &Served, object: &Object) -> bool {
    row.conversion().is_some() && !is_of(row.storage_row(), object)
}

/// Converts cached objects to the version of a row with a webhook.
pub(crate) async fn objects(
    converter: &Converter,
    row: &Served,
    objects: &[Arc<Object>],
) -> Result<Vec<Arc<Object>>, Status> {
    let mut seen = objects.to_vec();
    let wanted: Vec<usize> = (0..seen.len()).filter(|at| !is_of(row, &seen[*at])).collect();
    let Some(conversion) = row.conversion().filter(|_| !wanted.is_empty()) else {
        return Ok(seen);
    };
    let to: Arc<str> = row.api_version().into();
    conversion.convert(converter, &to, objects, wanted, &mut seen).await?;
    Ok(seen)
}

/// Converts a tree to the version of a row; returns it unchanged if no webhook is needed.
pub(crate) async fn tree(
    converter: &Converter,
    row: &Served,
    value: Value,
) -> Result<Value, Status> {
    let to = row.api_version();
    match row.conversion().filter(|_| value["apiVersion"] != to.as_str()) {
        Some(conversion) => conversion.tree(converter, &to, value).await,
        None => Ok(value),
    }
}

/// The bytes of a written object as they will be read: those of a custom kind with the defaults of the
/// storage version, also of the status (S9.10).
pub(crate) fn as_read(row: &Served, stored: Bytes) -> Bytes {
    let settled = row.definition.as_ref().and_then(|custom| custom.form.transform(&stored));
    settled.map_or(stored, Bytes::from)
}

/// An object as stored and, if it is read in another form, as returned to the client.
pub(crate) struct Forms {
    pub(crate) stored: Bytes,
    shown: Bytes,
}

impl Forms {
    /// Converts before the write: an object that cannot be returned is not stored.
    pub(crate) async fn of(
        converter: &Converter,
        row: &Served,
        value: Value,
    ) -> Result<Forms, Status> {
        let stored = tree(converter, row.storage_row(), value).await?;
        let bytes = Bytes::from(canonical(&stored));
        let read = as_read(row, bytes.clone());
        let shown = match row.conversion().filter(|_| row.stored.is_some()) {
            Some(_) => canonical(&tree(converter, row, packed_tree(&read)?).await?).into(),
            None => read,
        };
        Ok(Forms { stored: bytes, shown })
    }

    /// The result of a write with this revision.
    pub(crate) fn answer(self, revision: Revision) -> Answer {
        Answer { stored: self.shown, revision }
    }
}
