//! Rules for all components: locks and user code, threads, memory, slow processing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::FutureExt;
use headwater_client::controller::{Controller, Failure, Next};
use headwater_client::informer::{Informer, InitialRead, Options, Subscribe};
use headwater_client::predicate::Predicate;
use headwater_client::script::{Http, HttpOptions, Script, TransformedSource};
use headwater_client::{Cached, Factory, Key, Metrics, ResourceType, Transform};
use http_body_util::Full;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::client::Body;
use tokio::task::JoinSet;
use tokio::time::advance;
use tokio_util::sync::CancellationToken;

use crate::support::*;

/// Calls everything of an informer that takes one of its locks.
fn touch(informer: &Informer<ConfigMap>, touched: &AtomicUsize) {
    informer.debug_dump();
    informer.health();
    informer.undecodable();
    informer.snapshot();
    informer.freshness();
    drop(informer.subscribe(Subscribe::named("touch")));
    let name = format!("index-{}", touched.load(Ordering::Relaxed));
    let _ = informer.index(&name, |map: &ConfigMap| map.metadata.name.clone());
    touched.fetch_add(1, Ordering::Relaxed);
}

/// C31.7: a component that held a lock while it called user code would deadlock here.
#[tokio::test(start_paused = true)]
async fn user_code_may_use_the_informer_that_calls_it() {
    let touched = Arc::new(AtomicUsize::new(0));
    let slot: Arc<std::sync::OnceLock<Informer<ConfigMap>>> = Arc::default();
    let toucher = |touched: &Arc<AtomicUsize>| {
        let (slot, touched) = (Arc::clone(&slot), Arc::clone(touched));
        move || touch(slot.get().expect("it is open"), &touched)
    };
    let (script, source) = Script::new();
    let in_transform = toucher(&touched);
    let transform = Transform::edit(move |_: &mut ConfigMap| in_transform());
    let source = TransformedSource::new(Arc::new(source), transform);
    let mut options = options("touched");
    let on_error = toucher(&touched);
    options.on_watch_error = Some(Arc::new(move |_, _| on_error()));
    let (informer, runner) = headwater_client::informer::from_source(Arc::new(source), options);
    slot.set(informer.clone()).unwrap();
    let handling = toucher(&touched);
    let _handler = informer.for_each(Subscribe::named("handler"), move |_| handling()).unwrap();
    let later = toucher(&touched);
    let _other = informer.for_each(Subscribe::named("other"), move |_| later()).unwrap();
    let _running = Running::drive(informer, runner);
    let watch = script.expect_watch_list();
    watch.added(map("a", "1")).marker("2");
    quiet().await;
    watch.modified(map("a", "3")).breaks();
    script.expect_watch();
    quiet().await;
    // Two transforms, two changes for each of two handlers, one error.
    assert!(touched.load(Ordering::Relaxed) >= 7, "{touched:?}");
}

/// C31.7, C22.16
#[tokio::test(start_paused = true)]
async fn predicates_and_mappers_may_use_the_informers_they_serve() {
    let factory = Factory::new(nobody());
    let (script, source) = Script::new();
    let source = Arc::new(source.without_watch_list());
    let maps = factory.informer_from(ResourceType::of::<ConfigMap>(&()), source).open().unwrap();
    let touched = Arc::new(AtomicUsize::new(0));
    let (asked, journal) = ((maps.clone(), Arc::clone(&touched)), Journal::default());
    let predicate = Predicate::new(move |_| {
        touch(&asked.0, &asked.1);
        true
    });
    let mapped = (maps.clone(), Arc::clone(&touched));
    let note = journal.clone();
    let controller = Controller::new("touching", &maps).when(predicate).watches(
        &maps,
        move |map: &ConfigMap| {
            touch(&mapped.0, &mapped.1);
            [map.key()]
        },
    );
    let reconciler = move |map: Arc<ConfigMap>, _| {
        note.note(map.key().to_string());
        std::future::ready(Ok::<_, Failure>(Next::Done))
    };
    let stop = CancellationToken::new();
    let mut parts = JoinSet::new();
    let stopped = stop.clone().cancelled_owned();
    parts.spawn(async move { controller.run(&factory, stopped, reconciler).await });
    script.expect_list().answers([map("n/a", "1")], "1");
    script.expect_watch().modified(map("n/a", "2"));
    quiet().await;
    stop.cancel();
    parts.join_next().await.unwrap().unwrap().unwrap();
    assert!(touched.load(Ordering::Relaxed) >= 2, "{touched:?}");
    assert!(journal.len() > 0);
}

/// C9.13
#[tokio::test(start_paused = true)]
async fn slow_processing_is_logged_with_key_and_depth_while_others_wait() {
    let (logs, _guard) = Logs::capture();
    let (script, running) = watch_listing(options("slow"));
    let watch = script.expect_watch_list();
    watch.marker("1");
    quiet().await;
    // The clock advances while the store is written.
    running
        .informer
        .index("slow", |map: &ConfigMap| {
            advance(SECOND).now_or_never();
            map.metadata.name.clone()
        })
        .unwrap();
    watch.added(map("n/lonely", "2"));
    quiet().await;
    assert_eq!(logs.lines("applying deltas is slow").len(), 0, "nobody waited");
    for number in 0..20 {
        watch.added(map(&format!("n/{number}"), &format!("{}", number + 10)));
    }
    quiet().await;
    let lines = logs.lines("applying deltas is slow");
    assert_eq!(lines.len(), 1, "{lines:?}");
    for part in ["key=\"n/0\"", "waiting=20", "count=20"] {
        assert!(lines[0].contains(part), "{}", lines[0]);
    }
}

/// A pod of several kilobytes, as text.
fn pod(number: usize) -> String {
    let environment: Vec<_> = (0..30)
        .map(|n| serde_json::json!({"name": format!("SETTING_{n}"), "value": format!("value-{n}-of-pod-{number}")}))
        .collect();
    let container = |name: &str| {
        serde_json::json!({
            "name": name, "image": format!("registry.example/shop/{name}:1.2.{number}"),
            "env": environment, "args": ["--listen=:8080", "--log=json"],
            "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
            "resources": {"requests": {"cpu": "250m", "memory": "256Mi"}},
            "volumeMounts": [{"name": "config", "mountPath": "/etc/shop", "readOnly": true}],
        })
    };
    serde_json::json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("shop-{number:05}"), "namespace": format!("team-{}", number % 7),
            "uid": format!("00000000-0000-0000-0000-{number:012}"),
            "resourceVersion": (number + 1).to_string(),
            "labels": {"app": "shop", "pod-template-hash": "6d4cf56db6", "tier": "web"},
        },
        "spec": {"nodeName": format!("node-{}", number % 100), "containers": [container("web"), container("sidecar")],
            "volumes": [{"name": "config", "configMap": {"name": "shop"}}]},
        "status": {"phase": "Running", "podIP": "10.1.2.3", "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
    })
    .to_string()
}

/// A client of a server with `count` pods, which it lists in pages and never changes.
fn pods(count: usize) -> kube::Client {
    let service = tower::service_fn(move |request: ::http::Request<Body>| async move {
        let query = request.uri().query().unwrap_or_default().to_owned();
        if query.contains("watch=true") {
            return std::future::pending().await;
        }
        let parameter = |name: &str| {
            let pair = query.split('&').find_map(|pair| pair.strip_prefix(name));
            pair.and_then(|value| value.parse::<usize>().ok())
        };
        let from = parameter("continue=").unwrap_or(0);
        let to = parameter("limit=").map_or(count, |limit| (from + limit).min(count));
        let items: Vec<String> = (from..to).map(pod).collect();
        let next = if to < count { to.to_string() } else { String::new() };
        let body = format!(
            r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"{count}","continue":"{next}"}},"items":[{}]}}"#,
            items.join(",")
        );
        Ok::<_, std::convert::Infallible>(::http::Response::new(Full::new(Bytes::from(body))))
    });
    kube::Client::new(service, "default")
}

fn pod_informer(count: usize, metrics: Option<Metrics>) -> Running<Pod> {
    let resource = ResourceType::of::<Pod>(&());
    let http = HttpOptions { watch_list: false, ..HttpOptions::default() };
    let source = Http::<Pod>::new(pods(count), &resource, None, http);
    let mut options = Options::new("pods", resource);
    options.page_size = Some(100);
    options.initial_read = InitialRead::Consistent;
    options.metrics = metrics;
    Running::start(Arc::new(source), options)
}

/// C15.8, C31.12
#[test]
fn the_initial_state_is_the_same_on_one_thread_and_on_many() {
    let read = |runtime: tokio::runtime::Runtime| -> BTreeMap<Key, String> {
        runtime.block_on(async {
            let running = pod_informer(250, None);
            running.informer.synced().await.unwrap();
            let snapshot = running.informer.snapshot();
            let text = |pod: &Pod| serde_json::to_string(pod).unwrap();
            snapshot.iter().map(|(key, pod)| (key.clone(), text(pod))).collect()
        })
    };
    let one = read(tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());
    let many = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build();
    let many = read(many.unwrap());
    assert_eq!(one.len(), 250);
    assert!(one == many, "the states differ");
}

/// C11.22: compares with the growth of the process, so it runs in its own process.
#[cfg(target_os = "linux")]
#[test]
fn the_estimate_of_memory_is_within_a_factor_of_two() {
    const ALONE: &str = "HEADWATER_TEST_ALONE";
    const STORE_BYTES: &str =
        r#"informer_store_bytes{name="pods",group="",version="v1",resource="pods"}"#;
    if std::env::var_os(ALONE).is_none() {
        let name = "rules::the_estimate_of_memory_is_within_a_factor_of_two";
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        let output = alone.args(["--exact", name, "--nocapture"]).env(ALONE, "1").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // A small one first, for one-time allocations.
        pod_informer(200, None).informer.synced().await.unwrap();
        let before = resident();
        let metrics = Metrics::new();
        let running = pod_informer(3000, Some(metrics.clone()));
        let by_node = running
            .informer
            .index("node", |pod: &Pod| pod.spec.as_ref()?.node_name.clone())
            .unwrap();
        running.informer.synced().await.unwrap();
        assert_eq!(by_node.get("node-7").len(), 30);
        let truth = resident() - before;
        let estimate = metrics.value(STORE_BYTES).unwrap();
        let ratio = estimate / truth;
        assert!((0.5..=2.0).contains(&ratio), "estimated {estimate}, really {truth}: {ratio}");
    });
}

/// The memory of this process in bytes: resident and swapped.
#[cfg(target_os = "linux")]
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let is_it = |line: &&str| line.starts_with("VmRSS:") || line.starts_with("VmSwap:");
    let kilobytes = |line: &str| line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap();
    status.lines().filter(is_it).map(kilobytes).sum::<f64>() * 1024.0
}
