//! A store with a cache in front of it: the store contract must also hold for reads and watches
//! through the cache.
//!
//! Keys and values of the contract are plain text. Here each becomes an object whose name is the
//! key in hexadecimal, which preserves the order.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use headwater_api::{Object, Revision};
use headwater_cache::window::Bounds;
use headwater_cache::{
    Cache, Cacher, Filter, Options, Resource, WatchEvent, WatchStart, WatchStep, Watcher,
};
use headwater_store::store::VALUE_MAX;
use headwater_store::{
    Action, Batch, Change, ChangeKind, ChangeStream, Committed, Error, Key, Op, Range, RangePage,
    Record, Store, StoreCondition, Version, Write, key,
};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// A store whose reads and watches are served by a cache.
pub struct CachedStore {
    store: Arc<dyn Store>,
    cache: Cache,
    _feed: Mutex<JoinSet<()>>,
}

impl CachedStore {
    /// Over a store that accepts values twice as large, with a window of `count` changes.
    pub async fn over(store: Arc<dyn Store>, count: usize) -> CachedStore {
        let window = Bounds { count, ..Bounds::default() };
        let wait_max = Duration::from_secs(5);
        let options = Options { window, wait_max, ..Options::default() };
        let mut cacher = Cacher::new(Arc::clone(&store), options);
        cacher.load().await.expect("the store is readable");
        let (cache, mut feed) = (cacher.handle(), JoinSet::new());
        feed.spawn(async {
            cacher.run(CancellationToken::new()).await.expect("the feed continues")
        });
        CachedStore { store, cache, _feed: Mutex::new(feed) }
    }

    fn resource(&self) -> Arc<Resource> {
        self.cache.resource(&collection())
    }

    async fn consistent_revision(&self) -> Result<Revision, Error> {
        self.cache.consistent().await.map_err(store_error)
    }
}

fn collection() -> String {
    key::collection("", "things")
}

fn inner(key: &Key) -> Key {
    let hex: String = key.as_str().bytes().map(|byte| format!("{byte:02x}")).collect();
    Key::in_collection(&collection(), &hex)
}

fn outer(name: &str) -> Key {
    let digits =
        |at: usize| u8::from_str_radix(&name[at..at + 2], 16).expect("only this store writes here");
    let bytes = (0..name.len()).step_by(2).map(digits).collect();
    Key::new(String::from_utf8(bytes).expect("only this store writes here"))
}

fn wrapped(key: &Key, value: &Bytes) -> Bytes {
    let key = inner(key);
    let name = key.as_str().strip_prefix(&collection()).expect("only this store writes here");
    let text = String::from_utf8(value.to_vec()).expect("only this store writes here");
    json!({"metadata": {"name": name}, "data": text}).to_string().into()
}

fn unwrapped(object: &Object) -> Bytes {
    let value: Value =
        serde_json::from_slice(object.as_slice()).expect("only this store writes here");
    Bytes::from(value["data"].as_str().expect("only this store writes here").to_owned())
}

fn record(object: &Object) -> Record {
    Record { key: outer(object.key()), revision: object.revision(), value: unwrapped(object) }
}

fn change(event: &WatchEvent) -> Change {
    let change = event.change();
    let prev =
        change.prev().map(|prev| Version { revision: prev.revision(), value: unwrapped(prev) });
    let value = match change.kind() {
        ChangeKind::Deleted => Bytes::new(),
        ChangeKind::Created | ChangeKind::Updated => unwrapped(change.object()),
    };
    let (revision, kind) = (change.revision(), change.kind());
    Change { revision, key: outer(change.object().key()), kind, value, prev }
}

fn store_error(error: headwater_cache::Error) -> Error {
    match error {
        headwater_cache::Error::Expired { asked, oldest } => Error::Compacted { asked, oldest },
        headwater_cache::Error::TooLarge { asked, current } => Error::Future { asked, current },
        headwater_cache::Error::Store(error) => error,
        error @ headwater_cache::Error::Unreadable { .. } => panic!("{error}"),
    }
}

#[async_trait]
impl Store for CachedStore {
    async fn revision(&self) -> Result<Revision, Error> {
        self.consistent_revision().await
    }

    async fn get(&self, key: &Key) -> Result<Option<Record>, Error> {
        self.consistent_revision().await?;
        let name = inner(key);
        let name = name.as_str().strip_prefix(&collection()).expect("only this store writes here");
        Ok(self.cache.snapshot(&self.resource()).get(name).map(|object| record(object)))
    }

    async fn range(&self, range: Range) -> Result<RangePage, Error> {
        let snapshot = match range.at {
            Some(at) => self.cache.snapshot_at(&self.resource(), at).await.map_err(store_error)?,
            None => {
                self.consistent_revision().await?;
                self.cache.snapshot(&self.resource())
            }
        };
        if range.limit.is_some() {
            self.resource().keep(&snapshot);
        }
        let mut found =
            snapshot.iter("", None).map(|object| record(object)).filter(|r| range.covers(&r.key));
        let records = found.by_ref().take(range.limit.unwrap_or(usize::MAX)).collect();
        Ok(RangePage { records, revision: snapshot.revision(), more: found.next().is_some() })
    }

    async fn commit(&self, mut write: Write) -> Result<Committed, Error> {
        write.check(VALUE_MAX)?;
        for Op { key, action, .. } in &mut write.ops {
            if let Action::Put { value, .. } = action {
                *value = wrapped(key, value);
            }
            *key = inner(key);
        }
        self.store.commit(write).await.map_err(|error| match error {
            Error::Conflict { key, actual } => {
                let name =
                    key.as_str().strip_prefix(&collection()).expect("only this store writes here");
                let decode = |record: Record| {
                    let value: Value =
                        serde_json::from_slice(&record.value).expect("only this store writes here");
                    let value = Bytes::from(
                        value["data"].as_str().expect("only this store writes here").to_owned(),
                    );
                    Record { key: outer(name), value, ..record }
                };
                Error::Conflict { key: outer(name), actual: actual.map(decode) }
            }
            error => error,
        })
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<ChangeStream, Error> {
        let watcher =
            self.cache.watch(&self.resource(), &Filter::default(), WatchStart::After(after));
        let compacted = self.store.condition().compacted;
        if after < compacted {
            // The cache would report it on the stream.
            return Err(Error::Compacted { asked: after, oldest: compacted });
        }
        let watch = CacheWatch { watcher: Some(watcher), prefix: prefix.to_owned() };
        Ok(futures::stream::unfold(watch, CacheWatch::step).boxed())
    }

    async fn compact(&self, at: Revision) -> Result<(), Error> {
        self.cache.compact(at).await.map_err(store_error)
    }

    fn condition(&self) -> StoreCondition {
        self.store.condition()
    }
}

struct CacheWatch {
    watcher: Option<Watcher>,
    prefix: String,
}

impl CacheWatch {
    async fn step(mut self) -> Option<(Result<Batch, Error>, CacheWatch)> {
        let watcher = self.watcher.as_mut()?;
        let result = match watcher.next().await {
            WatchStep::Events(events) => {
                let changes = events.iter().map(change);
                let changes = changes.filter(|c| c.key.as_str().starts_with(&self.prefix));
                Ok(Batch { changes: changes.collect(), complete_to: watcher.position() })
            }
            WatchStep::Expired { asked, oldest } => Err(Error::Compacted { asked, oldest }),
            WatchStep::Failed(error) => Err(store_error(error)),
            WatchStep::Initial(_) | WatchStep::Synced(_) => {
                panic!("the watch has no initial state")
            }
            WatchStep::Closed | WatchStep::Stopping(_) => return None,
        };
        if result.is_err() {
            self.watcher = None;
        }
        Some((result, self))
    }
}
