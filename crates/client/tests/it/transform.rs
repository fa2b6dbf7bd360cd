//! Transforms and projections in front of an informer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use headwater_client::informer::Options;
use headwater_client::script::{Script, TransformedSource};
use headwater_client::{Cached, ResourceType, Transform};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::ObjectMeta;
use serde::Deserialize;
use tokio::time::sleep;

use crate::support::*;

fn transformed<P: Cached>(
    options: Options,
    transform: Transform<ConfigMap, P>,
) -> (Script<ConfigMap>, Running<P>) {
    let (script, source) = Script::new();
    let source = TransformedSource::new(Arc::new(source), transform);
    (script, Running::start(Arc::new(source), options))
}

/// C15.1, C15.2, C15.3, C3.4
#[tokio::test(start_paused = true)]
async fn a_transform_is_applied_exactly_once_to_every_object() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    let transform = Transform::edit(move |map: &mut ConfigMap| {
        counter.fetch_add(1, Ordering::Relaxed);
        let annotations = map.metadata.annotations.get_or_insert_default();
        assert!(annotations.insert("seen".into(), "once".into()).is_none(), "twice");
    });
    let mut options = options("o");
    options.resync = 60 * SECOND;
    let (script, running) = transformed(options, transform);
    let (journal, _handler) = Journal::of(&running.informer);
    let watch = script.expect_watch_list();
    watch.added(map("a", "1")).added(map("b", "2"));
    quiet().await;
    assert_eq!(calls.load(Ordering::Relaxed), 2, "as they arrive, not at the marker");
    watch.marker("3").modified(map("a", "4")).deleted(map("b", "5"));
    sleep(130 * SECOND).await; // two resyncs meanwhile
    assert_eq!(calls.load(Ordering::Relaxed), 4);
    watch.error(410, "Expired");
    script.expect_watch_list().refuses(400, "BadRequest");
    script.expect_list().answers([map("a", "4"), map("c", "6")], "6");
    script.expect_watch();
    sleep(5 * SECOND).await;
    assert_eq!(calls.load(Ordering::Relaxed), 6);
    assert!(journal.len() >= 5);
    for object in running.informer.snapshot().list() {
        assert!(object.metadata.annotations.is_some());
    }
}

/// C31.8
#[tokio::test(start_paused = true)]
async fn a_transform_that_fails_or_panics_leaves_out_one_object() {
    let transform = Transform::try_map(|map: ConfigMap| match map.name() {
        "bad" => Err("no good".into()),
        "worse" if map.resource_version() != "1".into() => panic!("even worse"),
        _ => Ok(map),
    });
    let reports = Journal::default();
    let list = reports.clone();
    let mut options = options("o");
    options.on_watch_error = Some(Arc::new(move |_, error| list.note(error.to_string())));
    let (script, running) = transformed(options, transform);
    let (journal, _handler) = Journal::of(&running.informer);
    let watch = script.expect_watch_list();
    watch.added(map("worse", "1")).added(map("bad", "1")).marker("1");
    quiet().await;
    journal.take();
    watch.modified(map("worse", "2")).added(map("bad", "3")).added(map("good", "4"));
    quiet().await;
    assert_eq!(journal.take(), ["Added(good@4)"], "nothing is queued for the others");
    assert_eq!(running.keys(), ["good", "worse"], "what was known stays");
    let reports = reports.take();
    assert_eq!(reports.len(), 3, "{reports:?}");
    assert!(reports[1].contains("worse") && reports[1].contains("even worse"), "{reports:?}");
    watch.deleted(map("worse", "5"));
    quiet().await;
    assert_eq!(running.keys(), ["good"], "gone is gone");
}

#[derive(kube::Resource, Deserialize)]
#[resource(inherit = ConfigMap)]
struct Names {
    metadata: ObjectMeta,
    #[serde(default)]
    keys: usize,
}

/// C15.4
#[tokio::test(start_paused = true)]
async fn the_stored_type_may_differ_from_the_api_type() {
    let transform = Transform::map(|map: ConfigMap| Names {
        keys: map.data.as_ref().map_or(0, |data| data.len()),
        metadata: map.metadata,
    });
    let (script, running) = transformed(options("o"), transform);
    let mut big = map("a", "1");
    big.data = Some([("x".to_owned(), "y".to_owned()), ("z".to_owned(), "w".to_owned())].into());
    script.expect_watch_list().added(big).marker("2");
    quiet().await;
    let stored = running.informer.snapshot().list();
    assert_eq!((stored[0].keys, stored[0].name()), (2, "a"));
    assert_eq!(ResourceType::of::<Names>(&()), ResourceType::of::<ConfigMap>(&()));
}
