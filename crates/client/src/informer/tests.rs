//! Tests of the private parts of the informer.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;

use super::run::is_slow;
use super::*;
use crate::script::Script;

/// C30.7: without metrics, nothing is measured.
#[test]
fn an_informer_without_metrics_has_no_instruments() {
    let (_script, source) = Script::<ConfigMap>::new();
    let options = Options::new("maps", ResourceType::of::<ConfigMap>(&()));
    let (informer, _runner) = from_source(Arc::new(source), options);
    let subscription = informer.subscribe(Subscribe::named("one")).unwrap();
    assert!(informer.shared.observer.is_none());
    assert!(!subscription.is_observed());
}

/// C9.13
#[test]
fn a_batch_is_slow_by_its_size_and_only_while_others_wait() {
    check(11, 1, 101, true);
    check(11, 1, 100, false);
    check(10, 1, 101, false);
    check(11, 5, 501, true);
    check(11, 5, 499, false);
    check(2000, 1000, 1001, true);
    check(2000, 1000, 999, false);
    check(2000, 0, 5000, false);
}

#[track_caller]
fn check(waiting: usize, count: usize, millis: u64, expected: bool) {
    assert_eq!(is_slow(waiting, count, Duration::from_millis(millis)), expected);
}
