//! Every promise once more, read and watched through the cache.

use std::sync::Arc;

use headwater_store::store::VALUE_MAX;
use headwater_store_etcd::{EtcdStore, Options};
use headwater_testkit::cached::Cached;
use headwater_testkit::{Keeping, etcd};

use crate::fixture;

/// With a window so small that watchers soon read from the store.
async fn cached() -> Option<Keeping<Cached, etcd::Etcd>> {
    let members = etcd::Etcd::start()?;
    let root = "/registry/".to_owned();
    let options = Options { root, value_max: 2 * VALUE_MAX, ..fixture::options(&members) };
    let engine = EtcdStore::connect(options).await.unwrap();
    Some(Keeping(Cached::over(Arc::new(engine), 2).await, members))
}

headwater_testkit::store_contract!(match cached().await {
    Some(store) => store,
    None => return,
});
