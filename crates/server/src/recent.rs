//! The newest objects of collections, without waiting long for the cache.
//!
//! River: cache, store → **recent** → quota, addresses, claims.
//! Promise: it contains every write that was acknowledged before. A cache that is behind delays a
//! write by a moment, and does not fail it: then the objects are read from the store, page by page.

use std::sync::Arc;
use std::time::Duration;

use headwater_api::{Object, Revision, Status};
use headwater_cache::{Cache, Error as CacheError, Resource, Snapshot};
use headwater_store::{Key, Range};

use crate::answer::status;

/// How long a request waits for the cache before it continues without: long enough for a client to
/// find what it wrote before, unless the cache is overloaded.
pub(crate) const PATIENCE: Duration = Duration::from_millis(100);

/// The objects of one page.
const PAGE: usize = 500;

/// Where the newest objects are read from.
#[derive(Clone, Copy)]
pub(crate) struct Recent<'a> {
    cache: &'a Cache,
    is_cached: bool,
}

impl<'a> Recent<'a> {
    /// The cache, if it reaches the newest revision in time, else the store.
    pub(crate) async fn of(cache: &'a Cache) -> Result<Recent<'a>, Status> {
        match cache.consistent_within(PATIENCE).await {
            Ok(_) => Ok(Recent { cache, is_cached: true }),
            Err(CacheError::TooLarge { .. }) => Ok(Recent { cache, is_cached: false }),
            Err(error) => Err(status::from_cache(&error)),
        }
    }

    /// The revision of an object, also if its value cannot be read.
    pub(crate) async fn revision(
        &self,
        prefix: &str,
        name: &str,
    ) -> Result<Option<Revision>, Status> {
        if self.is_cached {
            let snapshot = self.cache.snapshot(&self.cache.resource(prefix));
            let readable = snapshot.get(name).map(|object| object.revision());
            return Ok(readable.or_else(|| snapshot.unreadable(name)));
        }
        let record = self.cache.store().get(&Key::in_collection(prefix, name)).await;
        let record = record.map_err(|error| status::from_store(&error))?;
        Ok(record.map(|record| record.revision))
    }

    /// The objects of a collection, of one namespace or of all.
    pub(crate) fn objects(&self, prefix: &str, namespace: &str) -> RecentPages<'a> {
        let resource = self.cache.resource(prefix);
        let snapshot = self.is_cached.then(|| self.cache.snapshot(&resource));
        let prefix = match namespace {
            "" => prefix.to_owned(),
            namespace => format!("{prefix}{namespace}/"),
        };
        let range = Range { prefix, limit: Some(PAGE), ..Range::default() };
        let namespace = namespace.to_owned();
        RecentPages { cache: self.cache, resource, snapshot, namespace, range, is_done: false }
    }
}

/// The objects of a collection in key order. Those whose value cannot be read are left out.
pub(crate) struct RecentPages<'a> {
    cache: &'a Cache,
    resource: Arc<Resource>,
    snapshot: Option<Snapshot>,
    namespace: String,
    /// What is not read yet from the store.
    range: Range,
    is_done: bool,
}

impl RecentPages<'_> {
    /// The next objects; `None` after the last.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<Arc<Object>>>, Status> {
        if std::mem::replace(&mut self.is_done, true) {
            return Ok(None);
        }
        if let Some(snapshot) = &self.snapshot {
            return Ok(Some(snapshot.iter(&self.namespace, None).map(Arc::clone).collect()));
        }
        let page = self.cache.store().range(self.range.clone()).await;
        let page = page.map_err(|error| status::from_store(&error))?;
        self.is_done = !page.more || page.records.is_empty();
        self.range.after = page.records.last().map(|record| record.key.clone());
        let read = |record| self.resource.object_of(record).ok().map(Arc::new);
        Ok(Some(page.records.iter().filter_map(read).collect()))
    }

    /// The number of objects.
    pub(crate) async fn count(mut self) -> Result<usize, Status> {
        if let Some(snapshot) = &self.snapshot {
            return Ok(snapshot.count(&self.namespace, None));
        }
        let mut count = 0;
        while let Some(objects) = self.next().await? {
            count += objects.len();
        }
        Ok(count)
    }
}
