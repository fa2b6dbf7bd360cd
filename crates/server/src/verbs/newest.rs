//! The newest version of an object, without waiting for the cache.
//!
//! River: cache, store → **newest** → get, write, delete.
//! Promise: a cache that is behind delays a write of one object by a moment, and does not fail it. A
//! write is computed from the cached object and committed only if that is the newest; who refuses a
//! request or changes nothing because of the cached object reads the store first.

use headwater_api::{Object, Revision, Status};
use headwater_store::Key;

use crate::answer::status;
use crate::kinds::registry::Served;
use crate::server::Server;

/// Reads an object from the store.
pub(crate) async fn stored(
    server: &Server,
    kind: &Served,
    key: &str,
) -> Result<Option<Object>, Status> {
    let cache = server.cache_of(kind);
    let resource = cache.resource(&kind.prefix);
    let key = Key::in_collection(&kind.prefix, key);
    let record = cache.store().get(&key).await.map_err(|error| status::from_store(&error))?;
    let object = record.map(|record| resource.object_of(&record)).transpose();
    object.map_err(|error| status::from_cache(&error))
}

/// What a write is computed from.
pub(crate) struct Basis<T> {
    /// The current object, if it exists.
    pub(crate) current: Option<T>,
    /// Its revision.
    pub(crate) revision: Option<Revision>,
    /// It was the newest version when it was read.
    pub(crate) is_newest: bool,
}

impl<T> Basis<T> {
    /// A version that was read from the store.
    pub(crate) fn newest(current: Option<T>, revision: Option<Revision>) -> Basis<T> {
        Basis { current, revision, is_newest: true }
    }

    /// A version that was read from the cache.
    pub(crate) fn cached(current: T, revision: Revision) -> Basis<T> {
        Basis { current: Some(current), revision: Some(revision), is_newest: false }
    }
}
