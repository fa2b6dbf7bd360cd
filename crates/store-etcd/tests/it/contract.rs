//! The store's contract, each test on its own etcd.

use headwater_store_etcd::EtcdStore;
use headwater_testkit::{contract, etcd, model};
use proptest::prelude::*;

use crate::fixture;

headwater_testkit::store_contract!(match fixture::alone().await {
    Some(store) => store,
    None => return,
});

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(8) })]

    #[test]
    fn any_script_agrees_with_the_model(steps in model::script(60, false)) {
        let Some(members) = etcd::EtcdCluster::start() else { return Ok(()) };
        let open = async || EtcdStore::connect(fixture::options(&members)).await.unwrap();
        contract::run(model::check(&steps, open));
    }
}
