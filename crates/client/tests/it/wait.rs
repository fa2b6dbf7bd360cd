//! Waiting helpers: resuming watches and conditions.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use headwater_client::list_watch::{Error as SourceError, Event, StatusError};
use headwater_client::query::{At, Selection};
use headwater_client::script::Script;
use headwater_client::wait::{
    condition_true, deleted, exists, generation_observed, resuming_watch, until, until_synced,
};
use headwater_client::{Cached, Error, Key};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use tokio::time::{Instant, sleep};

use crate::support::*;

fn names(event: &Event<ConfigMap>) -> String {
    match event {
        Event::Added(map) | Event::Modified(map) | Event::Deleted(map) => {
            map.resource_version().to_string()
        }
        other => format!("{other:?}"),
    }
}

/// C28.1
#[tokio::test(start_paused = true)]
async fn a_resuming_watch_reopens_at_the_last_version_and_ends_on_410() {
    let (script, source) = Script::<ConfigMap>::new();
    let source: Arc<dyn headwater_client::list_watch::ListWatch<Object = ConfigMap>> =
        Arc::new(source);
    for bad in ["", "0"] {
        let made = resuming_watch(Arc::clone(&source), Selection::default(), bad.into());
        assert!(matches!(made, Err(Error::Invalid(_))));
    }
    let first = script.expect_watch().at(At::AtLeast("5".into()));
    first.added(map("a", "6")).bookmark("8");
    first.breaks();
    script.expect_watch().at(At::AtLeast("8".into())).refuses(500, "InternalError");
    let advice = StatusError {
        retry_after: Some(20 * SECOND),
        ..StatusError::new(429, "TooManyRequests", "")
    };
    script.expect_watch().at(At::AtLeast("8".into())).fails(SourceError::Status(advice));
    let last = script.expect_watch().at(At::AtLeast("8".into()));
    last.modified(map("a", "9")).error(410, "Expired");
    let watch = resuming_watch(Arc::clone(&source), Selection::default(), "5".into()).unwrap();
    let seen: Vec<_> = watch.collect().await;
    let shown: Vec<String> = seen
        .iter()
        .map(|event| event.as_ref().map_or_else(|error| error.to_string(), names))
        .collect();
    assert_eq!(shown.len(), 3, "{shown:?}");
    assert_eq!(shown[..2], ["6", "9"], "bookmarks are used but not shown");
    assert!(shown[2].contains("410"));
    let times: Vec<Instant> = script.requests().iter().map(|request| request.at).collect();
    assert_eq!(times[1] - times[0], SECOND, "at least a second between openings");
    assert_eq!(times[3] - times[2], 20 * SECOND, "as long as the server says");
    for code in [401, 403] {
        script.expect_watch().refuses(code, "x");
        let watch = resuming_watch(Arc::clone(&source), Selection::default(), "5".into()).unwrap();
        let seen: Vec<_> = watch.collect().await;
        assert!(seen.len() == 1 && seen[0].is_err(), "{code}");
    }
}

/// C28.2
#[tokio::test(start_paused = true)]
async fn conditions_are_met_one_after_the_other_starting_with_the_same_event() {
    let (script, source) = Script::<ConfigMap>::new();
    let source: Arc<dyn headwater_client::list_watch::ListWatch<Object = ConfigMap>> =
        Arc::new(source);
    let watch = script.expect_watch();
    watch.added(map("a", "6")).modified(map("a", "7")).modified(map("a", "8"));
    let at_least = |wanted: u32| {
        Box::new(move |event: &Event<ConfigMap>| Ok(names(event).parse::<u32>().unwrap() >= wanted))
            as Box<dyn FnMut(&_) -> _ + Send>
    };
    let open = || resuming_watch(Arc::clone(&source), Selection::default(), "5".into()).unwrap();
    let met =
        until(open(), vec![at_least(6), at_least(6), at_least(7)], 10 * SECOND).await.unwrap();
    assert_eq!(met.as_ref().map(names).as_deref(), Some("7"));
    script.expect_watch().added(map("a", "6"));
    let late = until(open(), vec![at_least(9)], 10 * SECOND).await;
    assert!(matches!(late, Err(Error::Timeout { .. })));
    script.expect_watch().refuses(410, "Expired");
    assert!(matches!(until(open(), vec![at_least(9)], 10 * SECOND).await, Err(Error::Source(_))));
}

/// C28.3
#[tokio::test(start_paused = true)]
async fn waiting_on_an_informer_survives_compaction() {
    let (script, running) = listing(options("o"));
    script.expect_list().answers([map("a", "1")], "1");
    let watch = script.expect_watch();
    let has = |name: &'static str| {
        move |snapshot: &headwater_client::indexer::Snapshot<ConfigMap>| {
            snapshot.get(&Key::cluster(name)).cloned()
        }
    };
    let found = until_synced(&running.informer, |s| Ok(has("a")(s)), has("x"), 10 * SECOND).await;
    assert_eq!(found.unwrap().name(), "a", "the precondition is checked against the store");
    let refused = until_synced(
        &running.informer,
        |_| Err::<Option<Arc<ConfigMap>>, _>(Error::Invalid("no".into())),
        has("x"),
        SECOND,
    );
    assert!(matches!(refused.await, Err(Error::Invalid(_))));
    let waiting = until_synced(&running.informer, |_| Ok(None), has("b"), 60 * SECOND);
    let changes = async {
        quiet().await;
        watch.error(410, "Expired");
        script.expect_list().answers([map("a", "1"), map("b", "5")], "5");
        script.expect_watch();
    };
    let (found, ()) = tokio::join!(waiting, changes);
    assert_eq!(found.unwrap().resource_version(), "5".into());
    let late = until_synced(&running.informer, |_| Ok(None), has("never"), SECOND).await;
    assert!(matches!(late, Err(Error::Timeout { .. })));
}

/// C28.5
#[tokio::test(start_paused = true)]
async fn built_in_conditions_check_the_documented_fields() {
    let object = map("a", "1");
    assert!(exists(Some(&object)) && !exists::<ConfigMap>(None));
    assert!(deleted::<ConfigMap>("uid-a")(None));
    assert!(!deleted::<ConfigMap>("uid-a")(Some(&object)));
    assert!(deleted::<ConfigMap>("another")(Some(&object)), "another of that name does not count");
    let conditions = |status: &'static str| {
        move |_: &ConfigMap| -> Vec<Condition> {
            serde_json::from_value(serde_json::json!([{"type": "Ready", "status": status, "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}])).unwrap()
        }
    };
    assert!(condition_true("Ready", conditions("True"))(Some(&object)));
    assert!(!condition_true("Ready", conditions("False"))(Some(&object)));
    assert!(!condition_true("Other", conditions("True"))(Some(&object)));
    let mut newer = map("a", "1");
    newer.metadata.generation = Some(3);
    assert!(generation_observed(|_: &ConfigMap| Some(3))(Some(&newer)));
    assert!(!generation_observed(|_: &ConfigMap| Some(2))(Some(&newer)));
    assert!(!generation_observed(|_: &ConfigMap| None)(Some(&newer)));
    sleep(Duration::ZERO).await;
}
