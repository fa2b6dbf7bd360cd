//! A source of objects of any type: the reflector and its queue are compiled once, not per type.
//!
//! River: typed source → **source** → reflector.

use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryFutureExt, TryStreamExt};

use crate::key::Key;
use crate::list_watch::{Error, Event, EventStream, ListWatch, Page};
use crate::object::{AnyObject, Cached};
use crate::query::{ListQuery, WatchQuery};
use crate::version::ResourceVersion;

/// An object of an event.
pub(crate) struct Received {
    pub(crate) key: Key,
    pub(crate) version: ResourceVersion,
    pub(crate) object: Arc<AnyObject>,
}

/// What [`ListWatch`] does, for objects of any type.
pub(crate) trait AnySource: Send + Sync {
    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<AnyPage, Error>>;
    fn watch(&self, query: WatchQuery) -> BoxFuture<'_, Result<EventStream<Received>, Error>>;
    fn supports_watch_list(&self) -> bool;
    fn is_served(&self) -> BoxFuture<'_, bool>;
    fn mean_object_bytes(&self) -> Option<usize>;
}

pub(crate) type AnyPage = Page<(Key, Arc<AnyObject>)>;

/// A source whose objects have one type.
pub(crate) struct TypedSource<K>(pub(crate) Arc<dyn ListWatch<Object = K>>);

impl<K: Cached> AnySource for TypedSource<K> {
    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<AnyPage, Error>> {
        self.0.list(query).map_ok(page).boxed()
    }

    fn watch(&self, query: WatchQuery) -> BoxFuture<'_, Result<EventStream<Received>, Error>> {
        let received = |event: Event<K>| event.map(received);
        self.0.watch(query).map_ok(move |stream| stream.map_ok(received).boxed()).boxed()
    }

    fn supports_watch_list(&self) -> bool {
        self.0.supports_watch_list()
    }

    fn is_served(&self) -> BoxFuture<'_, bool> {
        self.0.is_served()
    }

    fn mean_object_bytes(&self) -> Option<usize> {
        self.0.mean_object_bytes()
    }
}

fn page<K: Cached>(page: Page<K>) -> AnyPage {
    let Page { items, undecodable, skipped, resource_version, continue_token, remaining } = page;
    let keyed = |object: K| (object.key(), Arc::new(object) as Arc<AnyObject>);
    let items = items.into_iter().map(keyed).collect();
    Page { items, undecodable, skipped, resource_version, continue_token, remaining }
}

fn received<K: Cached>(object: K) -> Received {
    let (key, version) = (object.key(), object.resource_version());
    Received { key, version, object: Arc::new(object) }
}
