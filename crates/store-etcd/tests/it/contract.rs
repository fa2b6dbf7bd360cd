//! Every promise of the `Store` trait, each on an etcd of its own.

use crate::fixture;

headwater_testkit::store_contract!(match fixture::alone().await {
    Some(store) => store,
    None => return,
});
