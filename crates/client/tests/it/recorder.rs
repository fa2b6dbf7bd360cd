//! Events about objects.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use headwater_client::calls::Calls;
use headwater_client::controller::{Context, Controller, Failure, Next};
use headwater_client::recorder::{self, EventType, Options};
use headwater_client::{Cached, Factory, Key, Manager, Metrics};
use headwater_testing::TestServer;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Node};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::api::Api;
use crate::support::*;

fn answering() -> (Fake, kube::Client) {
    Fake::client(|call| ok(call.body.clone()))
}

struct Counted<'a>(&'a AtomicUsize);

impl fmt::Display for Counted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fetch_add(1, Ordering::Relaxed);
        f.write_str("made")
    }
}

/// C26.1, C26.10
#[tokio::test(start_paused = true)]
async fn recording_never_waits_and_a_full_queue_drops_events_without_formatting_them() {
    let metrics = Metrics::new();
    let mut options = Options::new("op", "op-0");
    options.metrics = Some(metrics.clone());
    let (recorder, _runner) = recorder::new(Calls::new(nobody()), options);
    let made = AtomicUsize::new(0);
    for _ in 0..1500 {
        recorder.record(&map("n/a", "1"), EventType::Normal, "R", &Counted(&made));
    }
    assert_eq!(made.load(Ordering::Relaxed), 1000);
    assert_eq!(metrics.value("event_recorder_dropped_total{component=\"op\"}"), Some(500.0));
}

/// C26.2, C26.3
#[tokio::test(start_paused = true)]
async fn events_are_written_to_the_objects_namespace_and_counted_when_they_repeat() {
    let (fake, client) = answering();
    let (recorder, runner) = recorder::new(Calls::new(client), Options::new("op", "op-0"));
    let mut parts = JoinSet::new();
    parts.spawn(runner.run(CancellationToken::new()));
    recorder.record(&map("n/a", "1"), EventType::Warning, "Failed", &"no luck");
    recorder.record(&map("n/a", "2"), EventType::Warning, "Failed", &"no luck");
    let node = Node { metadata: map("node-1", "1").metadata, ..Node::default() };
    recorder.record(&node, EventType::Normal, "Ready", &"up");
    quiet().await;
    let calls = fake.take();
    assert_eq!(calls.len(), 3);
    assert_eq!(
        (calls[0].method.as_str(), calls[0].path.as_str()),
        ("POST", "/api/v1/namespaces/n/events")
    );
    let event = &calls[0].body;
    assert_eq!(
        (&event["type"], &event["reason"], &event["count"]),
        (&json!("Warning"), &json!("Failed"), &json!(1))
    );
    assert_eq!(event["involvedObject"]["kind"], "ConfigMap");
    assert_eq!(event["source"], json!({"component": "op", "host": "op-0"}));
    let name = event["metadata"]["name"].as_str().unwrap();
    assert_eq!(
        (calls[1].method.as_str(), calls[1].path.clone()),
        ("PATCH", format!("/api/v1/namespaces/n/events/{name}"))
    );
    assert_eq!(calls[1].body["count"], 2);
    assert_eq!(calls[2].path, "/api/v1/namespaces/default/events", "cluster-scoped objects");
    assert!("Normal".parse::<EventType>().is_ok());
    assert!("Error".parse::<EventType>().is_err());
}

/// C26.7
#[tokio::test(start_paused = true)]
async fn a_broken_connection_is_retried_a_refusal_is_final_and_a_missing_record_is_made_again() {
    let broken = Arc::new(AtomicUsize::new(3));
    let left = Arc::clone(&broken);
    let (fake, client) = Fake::client(move |call| {
        if left.load(Ordering::Relaxed) > 0 {
            left.fetch_sub(1, Ordering::Relaxed);
            return Err(());
        }
        match (call.method.as_str(), call.body["reason"].as_str()) {
            ("POST", Some("Refused")) => refused(403, "Forbidden"),
            ("PATCH", _) => refused(404, "NotFound"),
            _ => ok(call.body.clone()),
        }
    });
    let (recorder, runner) = recorder::new(Calls::new(client), Options::new("op", "op-0"));
    let mut parts = JoinSet::new();
    parts.spawn(runner.run(CancellationToken::new()));
    let before = Instant::now();
    recorder.record(&map("n/a", "1"), EventType::Normal, "Works", &"x");
    while fake.calls().len() < 4 {
        sleep(Duration::from_millis(500)).await;
    }
    let took = before.elapsed();
    assert!(
        (20 * SECOND..=31 * SECOND).contains(&took),
        "the first wait is random, then 10 s: {took:?}"
    );
    fake.take();
    recorder.record(&map("n/a", "1"), EventType::Normal, "Refused", &"x");
    sleep(60 * SECOND).await;
    assert_eq!(fake.take().len(), 1);
    recorder.record(&map("n/a", "1"), EventType::Normal, "Works", &"x");
    quiet().await;
    let calls: Vec<String> = fake.take().iter().map(|call| call.method.clone()).collect();
    assert_eq!(calls, ["PATCH", "POST"]);
    broken.store(100, Ordering::Relaxed);
    recorder.record(&map("n/b", "1"), EventType::Normal, "Lost", &"x");
    sleep(300 * SECOND).await;
    assert_eq!(fake.take().len(), 12, "and then it is given up");
}

/// C26.9
#[tokio::test(start_paused = true)]
async fn at_stop_queued_events_are_written_for_at_most_five_seconds() {
    for down in [false, true] {
        let (fake, client) =
            Fake::client(move |call| if down { Err(()) } else { ok(call.body.clone()) });
        let (recorder, runner) = recorder::new(Calls::new(client), Options::new("op", "op-0"));
        for number in 0..20 {
            recorder.record(&map(&format!("n/o{number}"), "1"), EventType::Normal, "R", &"m");
        }
        let stop = CancellationToken::new();
        stop.cancel();
        let before = Instant::now();
        runner.run(stop).await;
        assert!(before.elapsed() <= 5 * SECOND);
        assert_eq!(fake.calls().len() == 20, !down);
    }
}

/// C26.3 on a real server
#[tokio::test]
async fn events_reach_a_real_server() {
    let api = Api::start().await;
    let calls = Calls::new(api.client.clone());
    let (recorder, runner) = recorder::new(calls.clone(), Options::new("op", "op-0"));
    let about = calls.of::<ConfigMap>();
    let about = about
        .create(
            &serde_json::from_value(json!({"metadata": {"name": "a", "namespace": "default"}}))
                .unwrap(),
        )
        .await
        .unwrap();
    for _ in 0..3 {
        recorder.record(&about, EventType::Normal, "Tested", &"it works");
    }
    let stop = CancellationToken::new();
    stop.cancel();
    runner.run(stop).await;
    let events: kube::Api<Event> = kube::Api::namespaced(api.client.clone(), "default");
    let listed = events.list(&Default::default()).await.unwrap();
    let ours: Vec<_> =
        listed.items.iter().filter(|event| event.reason.as_deref() == Some("Tested")).collect();
    assert_eq!(ours.len(), 1);
    assert_eq!(ours[0].count, Some(3));
    assert_eq!(
        Key::namespaced("default", "a").name(),
        ours[0].involved_object.name.as_deref().unwrap()
    );
}

/// C26.1, C26.9: with `Controller::run`, and with a manager.
#[tokio::test]
async fn a_reconcilers_events_are_written_under_the_controllers_name() {
    for managed in [false, true] {
        let server = TestServer::start().await;
        let factory = Factory::new(server.client());
        let maps = factory.informer::<ConfigMap>().namespace("default").open().unwrap();
        let map = json!({"metadata": {"name": "a", "namespace": "default"}});
        let about = Calls::new(server.client()).of::<ConfigMap>();
        about.create(&serde_json::from_value(map).unwrap()).await.unwrap();
        let stop = CancellationToken::new();
        let ended = stop.clone();
        let reconcile = move |map: Arc<ConfigMap>, cx: Context| {
            cx.normal(&*map, "Started", "one");
            cx.warning(&*map, "Finished", format_args!("two of {}", map.name()));
            ended.cancel(); // the events are still queued and must be written at the end
            std::future::ready(Ok::<_, Failure>(Next::Done))
        };
        let controller = Controller::new("webapp", &maps);
        let stop = stop.cancelled_owned();
        match managed {
            false => drop(controller.run(&factory, stop, reconcile).await.unwrap()),
            true => {
                let manager = Manager::new(factory).controller(controller.with(reconcile));
                manager.run_until(stop).await.unwrap();
            }
        }
        let events: kube::Api<Event> = kube::Api::namespaced(server.client(), "default");
        let listed = events.list(&Default::default()).await.unwrap();
        let mut written: Vec<String> = listed
            .items
            .iter()
            .filter(|event| event.reporting_component.as_deref() == Some("webapp"))
            .map(|event| {
                let words = [&event.type_, &event.reason, &event.message];
                words.map(|word| word.as_deref().unwrap_or_default()).join(" ")
            })
            .collect();
        written.sort();
        assert_eq!(written, ["Normal Started one", "Warning Finished two of a"]);
    }
}
