//! The store's contract over etcd, read and watched through the cache.

use std::sync::Arc;

use headwater_store::store::VALUE_MAX;
use headwater_store_etcd::{EtcdStore, Options};
use headwater_testkit::cached_store::CachedStore;
use headwater_testkit::{OwningStore, etcd};

use crate::fixture;

/// With a window so small that watchers soon read from the store.
async fn cached() -> Option<OwningStore<CachedStore, etcd::EtcdCluster>> {
    let members = etcd::EtcdCluster::start()?;
    let root = "/registry/".to_owned();
    let options = Options { root, value_max: 2 * VALUE_MAX, ..fixture::options(&members) };
    let engine = EtcdStore::connect(options).await.unwrap();
    Some(OwningStore(CachedStore::over(Arc::new(engine), 2).await, members))
}

headwater_testkit::store_contract!(match cached().await {
    Some(store) => store,
    None => return,
});
