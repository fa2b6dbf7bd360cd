//! The store's contract, served through the cache.

use std::sync::Arc;

use headwater_store::store::VALUE_MAX;
use headwater_store::{Memory, MemoryOptions};
use headwater_testkit::cached_store::CachedStore;
use headwater_testkit::{contract, model};
use proptest::prelude::*;

async fn cached(window: usize) -> CachedStore {
    let wider = MemoryOptions { value_max: 2 * VALUE_MAX, ..MemoryOptions::default() };
    CachedStore::over(Arc::new(Memory::new(wider)), window).await
}

mod from_memory {
    use super::cached;

    headwater_testkit::store_contract!(cached(100_000).await);
}

mod from_disk {
    use super::cached;

    headwater_testkit::store_contract!(cached(2).await);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(100) })]

    /// S5.2, R20
    #[test]
    fn any_script_agrees_with_the_model(steps in model::script(80, false), window in 0..4_usize) {
        contract::run(model::check(&steps, async || cached(window).await));
    }
}
