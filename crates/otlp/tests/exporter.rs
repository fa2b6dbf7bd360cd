//! The exporter against a collector.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail")]

use std::sync::Arc;

use headwater_api::metrics::Counter;
use headwater_api::trace::{TraceContext, TraceSpan, TraceValue};
use headwater_otlp::proto::{KIND_SERVER, STATUS_ERROR, ScalarValue, SpanAttribute};
use headwater_otlp::{Exporter, ExporterOptions};
use headwater_testkit::collector::TestCollector;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// An exporter that runs, and its queue and counters.
struct Running {
    spans: mpsc::Sender<TraceSpan>,
    exported: Arc<Counter>,
    lost: Arc<Counter>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Running {
    async fn stop(mut self) -> (u64, u64) {
        self.stop.cancel();
        self.tasks.join_next().await.unwrap().unwrap();
        (self.exported.get(), self.lost.get())
    }
}

fn start(collector: &TestCollector) -> Running {
    let options = ExporterOptions {
        endpoint: collector.endpoint(),
        headers: "api-key=1".into(),
        attributes: "deployment.environment=test".into(),
        version: "1.2.3".into(),
    };
    let (exported, lost) = (Arc::<Counter>::default(), Arc::<Counter>::default());
    let exporter = Exporter::new(&options, Arc::clone(&exported), Arc::clone(&lost)).unwrap();
    let (spans, queue) = mpsc::channel(2048);
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(exporter.run(queue, stop.clone()));
    Running { spans, exported, lost, stop, tasks }
}

fn span(number: u8) -> TraceSpan {
    TraceSpan {
        trace_id: [1; 16],
        id: [number; 8],
        parent: Some([9; 8]),
        link: TraceContext::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        name: format!("span {number}"),
        is_server: true,
        start: 5,
        end: 7,
        attributes: vec![("a", "b".into()), ("n", TraceValue::Number(-3))],
        is_failed: true,
    }
}

#[tokio::test]
async fn spans_reach_the_collector_with_everything_they_have() {
    let collector = TestCollector::start();
    let running = start(&collector);
    for number in 1..=3 {
        running.spans.send(span(number)).await.unwrap();
    }
    let collector = tokio::task::spawn_blocking(move || {
        collector.until(|spans| spans.len() == 3);
        collector
    });
    let collector = collector.await.unwrap();
    let exports = collector.exports();
    let process = exports[0].resource_spans[0].resource.clone().unwrap().attributes;
    for (key, value) in [
        ("service.name", "headwater"),
        ("service.version", "1.2.3"),
        ("deployment.environment", "test"),
    ] {
        assert!(process.contains(&SpanAttribute::text(key, value)), "{key}");
    }
    let sent = exports[0].resource_spans[0].scope_spans[0].spans[0].clone();
    assert_eq!((sent.trace_id, sent.span_id), (vec![1; 16], vec![1; 8]));
    assert_eq!((sent.parent_span_id, &*sent.name, sent.kind), (vec![9; 8], "span 1", KIND_SERVER));
    assert_eq!((sent.start_time_unix_nano, sent.end_time_unix_nano), (5, 7));
    assert_eq!(sent.links[0].span_id[0], 0xb7);
    assert_eq!(sent.status.unwrap().code, STATUS_ERROR);
    assert_eq!(sent.attributes[0], SpanAttribute::text("a", "b"));
    let value = sent.attributes[1].value.clone().unwrap().value;
    assert_eq!(value, Some(ScalarValue::Number(-3)));
    assert_eq!(running.stop().await, (3, 0));
}

#[tokio::test]
async fn spans_that_wait_at_the_stop_are_sent() {
    let collector = TestCollector::start();
    let running = start(&collector);
    running.stop.cancel();
    for number in 1..=2 {
        running.spans.try_send(span(number)).unwrap();
    }
    assert_eq!(running.stop().await, (2, 0));
}

#[tokio::test]
async fn a_collector_that_refuses_costs_spans_that_are_counted() {
    let collector = TestCollector::start();
    collector.fail(Some((14, "away")));
    let running = start(&collector);
    running.spans.send(span(1)).await.unwrap();
    while running.lost.get() == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    collector.fail(None);
    running.spans.send(span(2)).await.unwrap();
    while running.exported.get() == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(running.stop().await, (1, 1));
}
