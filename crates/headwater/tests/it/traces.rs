//! Traces of a server process, as a collector receives them.

use headwater_otlp::proto::SpanMessage;
use headwater_testkit::collector::TestCollector;

use crate::observe::{MAPS, configmap};
use crate::process::{Process, run};

#[test]
fn a_collector_receives_the_path_of_a_write_from_the_socket_to_the_disk() {
    let collector = TestCollector::start();
    let dir = tempfile::tempdir().unwrap();
    let configuration = dir.path().join("tracing.yaml");
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: TracingConfiguration\n\
         endpoint: {}\nsamplingRatePerMillion: 1000000\n",
        collector.endpoint()
    );
    std::fs::write(&configuration, text).unwrap();
    let data = dir.path().join("data");
    let server = Process::serve(&[
        "--data-dir",
        data.to_str().unwrap(),
        "--tracing-config-file",
        configuration.to_str().unwrap(),
    ]);
    let answer = server.post(MAPS, &configmap("traced", "1", None));
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    let name = "POST /api/v1/namespaces/{:namespace}/configmaps";
    let spans = collector.until(|spans| {
        let root = spans.iter().find(|span| span.name == name);
        root.is_some_and(|root| {
            let of_trace = spans.iter().filter(|span| span.trace_id == root.trace_id);
            let names: Vec<&str> = of_trace.map(|span| &*span.name).collect();
            ["admission", "store", "queue", "sync", "watch cache"]
                .iter()
                .all(|name| names.contains(name))
        })
    });
    let root = spans.iter().find(|span| span.name == name).unwrap();
    let part = |name: &str| {
        let of_trace = |span: &&SpanMessage| span.trace_id == root.trace_id && span.name == name;
        spans.iter().find(of_trace).unwrap()
    };
    let store = part("store");
    for inside in [part("queue"), part("sync")] {
        assert_eq!(inside.parent_span_id, store.span_id);
        assert!(inside.start_time_unix_nano >= store.start_time_unix_nano);
        assert!(inside.end_time_unix_nano <= store.end_time_unix_nano);
    }
    assert_eq!(part("queue").end_time_unix_nano, part("sync").start_time_unix_nano);
    assert_eq!(part("watch cache").start_time_unix_nano, part("sync").end_time_unix_nano);
    let metrics = server.get("/metrics");
    assert!(metrics.contains("headwater_trace_spans_total{result=\"exported\"}"), "{metrics}");
}

#[test]
fn a_server_without_a_collector_serves_and_says_so_once() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let file = std::fs::File::create(&log).unwrap();
    // Nobody listens on port 1.
    let args = ["--memory", "--otlp-endpoint", "127.0.0.1:1"];
    let server = Process::serve_logging_to(file.into(), &args);
    let is_logged = || std::fs::read_to_string(&log).unwrap().contains("cannot send traces");
    while !is_logged() {
        let answer = server.get("/version");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

#[test]
fn flags_of_traces_that_cannot_be_used_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tracing.yaml");
    std::fs::write(&file, "kind: TracingConfiguration\n").unwrap();
    for (flag, value, why) in [
        ("--tracing-config-file", file.to_str().unwrap(), "apiVersion"),
        ("--tracing-config-file", "/nowhere", "cannot use /nowhere"),
        ("--otlp-endpoint", "https://collector", "TLS is not supported"),
    ] {
        let output = run(&["serve", "--memory", "--bind", "127.0.0.1:0", flag, value]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.contains(flag) && text.contains(why), "{text}");
    }
}
