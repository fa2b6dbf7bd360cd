//! Transforms: change every object, or convert it to another type, before it is stored.
//!
//! River: source → **transform** → reflector. A transform wraps a source, so queue, store and
//! handlers only see transformed objects.
//! Promise: it is applied exactly once to every object of a list, watch-list, watch or deletion; it
//! owns the object, so no reader sees a partial change; if it fails or panics for one object,
//! others are unaffected.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;

use crate::indexer::index::panic_text;
use crate::list_watch::{
    BoxError, Error, Event, EventStream, ListWatch, Page, Skipped, Undecodable,
};
use crate::object::Cached;
use crate::query::{ListQuery, WatchQuery};

/// Converts objects to another type, or changes them. Cheap to clone; a factory shares informers
/// that use clones of one transform.
///
/// ```
/// use headwater_client::Transform;
/// use k8s_openapi::api::core::v1::Pod;
///
/// let no_status = Transform::edit(|pod: &mut Pod| pod.status = None);
/// ```
pub struct Transform<K, P> {
    apply: Arc<dyn Fn(K) -> Result<P, BoxError> + Send + Sync>,
}

impl<K, P> Transform<K, P> {
    /// Converts objects with a function.
    pub fn map(apply: impl Fn(K) -> P + Send + Sync + 'static) -> Transform<K, P> {
        Transform { apply: Arc::new(move |object| Ok(apply(object))) }
    }

    /// Converts objects with a function that can fail. If it fails for an event, the error is
    /// reported and the stored object stays; in a list, the object counts as undecodable.
    pub fn try_map(
        apply: impl Fn(K) -> Result<P, BoxError> + Send + Sync + 'static,
    ) -> Transform<K, P> {
        Transform { apply: Arc::new(apply) }
    }

    /// Identifies the transform; equal for clones.
    pub(crate) fn identity(&self) -> usize {
        Arc::as_ptr(&self.apply).cast::<()>() as usize
    }

    fn run(&self, object: K) -> Result<P, String> {
        match catch_unwind(AssertUnwindSafe(|| (self.apply)(object))) {
            Ok(result) => result.map_err(|error| error.to_string()),
            Err(panic) => Err(panic_text(&*panic)),
        }
    }
}

impl<K> Transform<K, K> {
    /// Changes objects in place.
    pub fn edit(edit: impl Fn(&mut K) + Send + Sync + 'static) -> Transform<K, K> {
        Transform::map(move |mut object| {
            edit(&mut object);
            object
        })
    }
}

impl<K, P> Clone for Transform<K, P> {
    fn clone(&self) -> Transform<K, P> {
        Transform { apply: Arc::clone(&self.apply) }
    }
}

impl<K, P> fmt::Debug for Transform<K, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transform")
    }
}

/// A source that transforms the objects of another source.
pub struct TransformedSource<K, P> {
    source: Arc<dyn ListWatch<Object = K>>,
    transform: Transform<K, P>,
}

impl<K: Cached, P: Cached> TransformedSource<K, P> {
    /// Wraps a source.
    pub fn new(
        source: Arc<dyn ListWatch<Object = K>>,
        transform: Transform<K, P>,
    ) -> TransformedSource<K, P> {
        TransformedSource { source, transform }
    }

    fn page(&self, page: Page<K>) -> Page<P> {
        let mut undecodable = page.undecodable;
        let mut items = Vec::with_capacity(page.items.len());
        for object in page.items {
            match apply(&self.transform, object) {
                Ok(object) => items.push(object),
                Err(bad) => undecodable.push(bad),
            }
        }
        Page {
            items,
            undecodable,
            skipped: page.skipped,
            resource_version: page.resource_version,
            continue_token: page.continue_token,
            remaining: page.remaining,
        }
    }
}

/// Transforms an object; an error includes its key.
fn apply<K: Cached, P>(transform: &Transform<K, P>, object: K) -> Result<P, Undecodable> {
    let (key, resource_version) = (object.key(), object.resource_version());
    let failed =
        |error| Undecodable { key, resource_version, error: format!("transform: {error}") };
    transform.run(object).map_err(failed)
}

fn event<K: Cached, P: Cached>(transform: &Transform<K, P>, event: Event<K>) -> Event<P> {
    let skipped =
        |bad: Undecodable| Event::Skipped(Skipped::Failed(format!("{}: {}", bad.key, bad.error)));
    match event {
        Event::Added(object) => apply(transform, object).map_or_else(skipped, Event::Added),
        Event::Modified(object) => apply(transform, object).map_or_else(skipped, Event::Modified),
        // The object was deleted even if its last state cannot be transformed.
        Event::Deleted(object) => {
            apply(transform, object).map_or_else(Event::Undecodable, Event::Deleted)
        }
        Event::Bookmark { resource_version, initial_events_end } => {
            Event::Bookmark { resource_version, initial_events_end }
        }
        Event::Error(status) => Event::Error(status),
        Event::Undecodable(bad) => Event::Undecodable(bad),
        Event::Skipped(why) => Event::Skipped(why),
    }
}

#[async_trait]
impl<K: Cached, P: Cached> ListWatch for TransformedSource<K, P> {
    type Object = P;

    async fn list(&self, query: ListQuery) -> Result<Page<P>, Error> {
        self.source.list(query).await.map(|page| self.page(page))
    }

    async fn watch(&self, query: WatchQuery) -> Result<EventStream<P>, Error> {
        let transform = self.transform.clone();
        let stream = self.source.watch(query).await?;
        Ok(stream.map(move |read| read.map(|read| event(&transform, read))).boxed())
    }

    fn supports_watch_list(&self) -> bool {
        self.source.supports_watch_list()
    }

    async fn is_served(&self) -> bool {
        self.source.is_served().await
    }

    fn mean_object_bytes(&self) -> Option<usize> {
        None // the stored objects are not the decoded ones
    }
}

impl<K, P> fmt::Debug for TransformedSource<K, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TransformedSource")
    }
}
