//! The embedded engine keeps every promise of the trait, on a real directory.

use std::path::Path;

use headwater_store::{Embedded, EmbeddedOptions};
use headwater_testkit::{Keeping, contract, model};
use proptest::prelude::*;
use tempfile::TempDir;

fn open(dir: &Path) -> Embedded {
    Embedded::open(dir, EmbeddedOptions::default()).unwrap()
}

fn fresh() -> Keeping<Embedded, TempDir> {
    let dir = tempfile::tempdir().unwrap();
    Keeping(open(dir.path()), dir)
}

headwater_testkit::store_contract!(fresh());

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(16) })]

    #[test]
    fn any_script_agrees_with_the_model(steps in model::script(100, true)) {
        let dir = tempfile::tempdir().unwrap();
        contract::run(model::check(&steps, async || open(dir.path())));
    }
}
