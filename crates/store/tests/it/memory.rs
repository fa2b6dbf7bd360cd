//! The contract for the memory engine.

use headwater_store::Memory;
use headwater_testkit::{contract, model};
use proptest::prelude::*;

headwater_testkit::store_contract!(Memory::default());

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn any_script_agrees_with_the_model(steps in model::script(100, false)) {
        contract::run(model::check(&steps, async || Memory::default()));
    }
}
