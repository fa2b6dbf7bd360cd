//! The backend of requests: the store, the cache, the kinds, the clock, access control.
//!
//! Every handler and every admission step works on a [`Backend`]; it knows nothing of requests.

use std::sync::Arc;

use arc_swap::ArcSwap;
use headwater_api::Clock;
use headwater_cache::Cache;
use headwater_store::Store;
use jiff::Timestamp;
use tokio::sync::Notify;

use crate::kinds::registry::Registry;
use crate::kinds::versions::Converter;
use crate::outgoing::Caller;
use crate::request::authorize::{AccessControl, Authorization};
use crate::system::metrics::Metrics;

/// The store, cache, kinds and clock that requests use.
pub struct Backend {
    store: Arc<dyn Store>,
    cache: Cache,
    registry: ArcSwap<Registry>,
    /// Notified when the registry is replaced.
    registry_changed: Notify,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    converter: Converter,
    access: Arc<AccessControl>,
}

impl Backend {
    /// Serves these kinds until others are set.
    pub(crate) fn new(
        cache: Cache,
        registry: Registry,
        clock: Arc<dyn Clock>,
        metrics: Metrics,
        caller: Caller,
        authorization: Authorization,
    ) -> Backend {
        let caller = Arc::new(caller);
        let access = AccessControl::new(&cache, authorization, Arc::clone(&caller), &metrics);
        let converter = Converter { cache: cache.clone(), metrics: metrics.clone(), caller };
        Backend {
            store: Arc::clone(cache.store()),
            access: Arc::new(access),
            cache,
            registry: ArcSwap::from_pointee(registry),
            registry_changed: Notify::new(),
            clock,
            metrics,
            converter,
        }
    }

    /// The store that writes go to.
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// The cache that reads come from.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The kinds of this moment.
    pub fn registry(&self) -> Arc<Registry> {
        self.registry.load_full()
    }

    pub(crate) fn replace_registry(&self, registry: Registry) {
        self.registry.store(Arc::new(registry));
        self.registry_changed.notify_one();
    }

    /// Waits until the registry is replaced; for one task.
    pub(crate) async fn registry_change(&self) {
        self.registry_changed.notified().await;
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Where requests are counted.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Converts objects between versions.
    pub(crate) fn converter(&self) -> &Converter {
        &self.converter
    }

    /// Decides who may do what.
    pub(crate) fn access(&self) -> &Arc<AccessControl> {
        &self.access
    }

    /// Calls webhooks.
    pub(crate) fn caller(&self) -> &Caller {
        &self.converter.caller
    }
}
