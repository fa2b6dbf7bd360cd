//! Controllers: with scripted informers on a paused clock, and with a real server for writes.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headwater_client::calls::Calls;
use headwater_client::controller::{Context, Controller, Failure, Next, Report, with_gone};
use headwater_client::factory::InformerDefaults;
use headwater_client::informer::Informer;
use headwater_client::script::{Script, WatchStep};
use headwater_client::{Cached, Error, Factory, Key, Metrics, ResourceType, owner, predicate};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api as KubeApi, DeleteParams, PostParams};
use kube::core::ObjectMeta;
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, advance, sleep};
use tokio_util::sync::CancellationToken;

use crate::api::Api;
use crate::support::*;

/// A factory over scripts, and its running controllers.
struct Stage {
    factory: Factory,
    metrics: Metrics,
    stop: CancellationToken,
    parts: JoinSet<Result<Report, Error>>,
}

impl Stage {
    fn new(client: kube::Client) -> Stage {
        let metrics = Metrics::new();
        let defaults =
            InformerDefaults { metrics: Some(metrics.clone()), ..InformerDefaults::default() };
        Stage {
            factory: Factory::with_defaults(client, defaults),
            metrics,
            stop: CancellationToken::new(),
            parts: JoinSet::new(),
        }
    }

    fn informer<K: Cached>(&self, resource: ResourceType) -> (Script<K>, Informer<K>) {
        let (script, source) = Script::new();
        let informer = self.factory.informer_from(resource, Arc::new(source.without_watch_list()));
        (script, informer.open().unwrap())
    }

    fn maps(&self) -> (Script<ConfigMap>, Informer<ConfigMap>) {
        self.informer(ResourceType::of::<ConfigMap>(&()))
    }

    fn secrets(&self) -> (Script<Secret>, Informer<Secret>) {
        self.informer(ResourceType::of::<Secret>(&()))
    }

    fn run<K: Cached>(
        &mut self,
        controller: Controller<K>,
        reconciler: impl headwater_client::controller::Reconcile<K>,
    ) {
        let (factory, stop) = (self.factory.clone(), self.stop.clone());
        self.parts.spawn(async move {
            controller.run(&factory, stop.cancelled_owned(), reconciler).await
        });
    }

    async fn stopped(&mut self) -> Result<Report, Error> {
        self.stop.cancel();
        self.parts.join_next().await.unwrap().unwrap()
    }

    fn value(&self, series: &str) -> Option<f64> {
        self.metrics.value(series)
    }
}

fn sync<K: Cached>(script: &Script<K>, objects: impl IntoIterator<Item = K>) -> WatchStep<K> {
    script.expect_list().answers(objects, "1");
    script.expect_watch()
}

fn secret(key: &str, version: &str, owner: Option<(&str, bool)>) -> Secret {
    let map = map(key, version);
    let mut secret = Secret { metadata: map.metadata, ..Secret::default() };
    if let Some((name, controller)) = owner {
        secret.metadata.owner_references = Some(vec![serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": "u", "controller": controller,
        })).unwrap()]);
    }
    secret
}

/// A reconciler that records keys and versions.
fn noting(
    journal: &Journal,
) -> impl Fn(Arc<ConfigMap>, Context) -> std::future::Ready<Result<Next, Failure>> + use<> {
    let journal = journal.clone();
    move |map, _| {
        journal.note(format!("{}@{}", map.key(), map.resource_version()));
        std::future::ready(Ok(Next::Done))
    }
}

/// C22.2, C22.4
#[tokio::test(start_paused = true)]
async fn one_worker_reconciles_the_current_state_of_each_key() {
    let mut stage = Stage::new(nobody());
    let (script, maps) = stage.maps();
    let busy = Arc::new(AtomicBool::new(false));
    let gate = Arc::new(Notify::new());
    let journal = Journal::default();
    let (guard, hold, list) = (Arc::clone(&busy), Arc::clone(&gate), journal.clone());
    stage.run(Controller::new("c", &maps), move |map: Arc<ConfigMap>, _: Context| {
        let (guard, hold, list) = (Arc::clone(&guard), Arc::clone(&hold), list.clone());
        async move {
            assert!(!guard.swap(true, Ordering::SeqCst), "one worker, one reconcile");
            hold.notified().await;
            list.note(format!("{}@{}", map.key(), map.resource_version()));
            guard.store(false, Ordering::SeqCst);
            Ok::<_, Failure>(Next::Done)
        }
    });
    let watch = sync(&script, [map("a", "1"), map("b", "1")]);
    quiet().await;
    // While a is reconciled, both change twice: each is reconciled once more, with the newest
    // state.
    for version in 2..6 {
        watch.modified(map(if version % 2 == 0 { "a" } else { "b" }, &version.to_string()));
    }
    quiet().await;
    for _ in 0..5 {
        gate.notify_one();
        quiet().await;
    }
    assert_eq!(journal.take(), ["a@1", "b@5", "a@4"]);
    assert_eq!(
        stage.value("controller_runtime_max_concurrent_reconciles{controller=\"c\"}"),
        Some(1.0)
    );
}

/// C22.2
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_workers_never_take_the_same_key_at_once() {
    let mut stage = Stage::new(nobody());
    let (script, maps) = stage.maps();
    let running: Arc<Mutex<HashSet<Key>>> = Arc::default();
    let count = Arc::new(AtomicUsize::new(0));
    let (set, counter) = (Arc::clone(&running), Arc::clone(&count));
    stage.run(Controller::new("c", &maps).workers(8), move |map: Arc<ConfigMap>, _: Context| {
        let (set, counter) = (Arc::clone(&set), Arc::clone(&counter));
        async move {
            assert!(set.lock().unwrap().insert(map.key()), "twice at once");
            tokio::task::yield_now().await;
            set.lock().unwrap().remove(&map.key());
            counter.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Failure>(Next::Done)
        }
    });
    let watch = sync(&script, []);
    for version in 2..500 {
        watch.modified(map(&format!("o{}", version % 5), &version.to_string()));
        tokio::task::yield_now().await;
    }
    while count.load(Ordering::Relaxed) < 5 {
        tokio::task::yield_now().await;
    }
    stage.stopped().await.unwrap();
}

/// C22.3
#[tokio::test(start_paused = true)]
async fn no_key_is_reconciled_before_all_informers_have_synced() {
    let mut stage = Stage::new(nobody());
    let (script, maps) = stage.maps();
    let (_secrets_script, secrets) = stage.secrets();
    let journal = Journal::default();
    stage.run(Controller::new("c", &maps).owns(&secrets), noting(&journal));
    sync(&script, [map("a", "1")]);
    sleep(119 * SECOND).await;
    assert_eq!(journal.len(), 0);
    sleep(2 * SECOND).await;
    let ended = stage.parts.join_next().await.unwrap().unwrap();
    let Err(Error::SyncTimeout { missing, .. }) = ended else { panic!("{ended:?}") };
    assert_eq!(missing.len(), 1);
    assert_eq!(missing[0].0, "secrets");
    assert_eq!(journal.len(), 0);
}

/// C22.5
#[tokio::test(start_paused = true)]
async fn a_deleted_object_is_not_an_error_and_gone_receives_its_last_state() {
    let mut stage = Stage::new(nobody());
    let (script, maps) = stage.maps();
    let journal = Journal::default();
    let list = journal.clone();
    let gone = move |key: Key, last: Option<Arc<ConfigMap>>, _: Context| {
        list.note(format!("gone {key}@{}", last.unwrap().resource_version()));
        std::future::ready(Ok::<_, Failure>(Next::Done))
    };
    stage.run(Controller::new("c", &maps), with_gone(noting(&journal), gone));
    let watch = sync(&script, [map("a", "1")]);
    quiet().await;
    watch.deleted(map("a", "2"));
    quiet().await;
    assert_eq!(journal.take(), ["a@1", "gone a@2"]);
    assert_eq!(
        stage.value("controller_runtime_reconcile_errors_total{controller=\"c\"}"),
        Some(0.0)
    );
}

/// C22.6, C22.7, C22.8, C22.22
#[tokio::test(start_paused = true)]
async fn outcomes_decide_when_a_key_is_reconciled_again() {
    let mut stage = Stage::new(nobody());
    let (script, maps) = stage.maps();
    let tries: Arc<Mutex<Vec<(String, Instant)>>> = Arc::default();
    let list = Arc::clone(&tries);
    stage.run(Controller::new("c", &maps), move |map: Arc<ConfigMap>, _: Context| {
        let name = map.name().to_owned();
        let mut tries = list.lock().unwrap();
        tries.push((name.clone(), Instant::now()));
        let count = tries.iter().filter(|(known, _)| *known == name).count();
        std::future::ready(match (name.as_str(), count) {
            ("after", 1) => Ok(Next::After(100 * SECOND)),
            ("again", 1..4) => Ok(Next::Again),
            ("fails", 1..6) => Err(Failure::text("no luck")),
            ("terminal", _) => Err(Failure::terminal("never")),
            _ => Ok(Next::Done),
        })
    });
    let watch =
        sync(&script, ["after", "again", "done", "fails", "terminal"].map(|name| map(name, "1")));
    sleep(200 * SECOND).await;
    let times = |name: &str| -> Vec<Instant> {
        let tries = tries.lock().unwrap();
        tries.iter().filter(|(known, _)| known == name).map(|(_, at)| *at).collect()
    };
    assert_eq!(times("done").len(), 1);
    assert_eq!(times("terminal").len(), 1, "not retried");
    let after = times("after");
    assert_eq!((after.len(), (after[1] - after[0]).as_secs()), (2, 100));
    assert_eq!(times("again").len(), 4);
    let fails = times("fails");
    assert_eq!(fails.len(), 6);
    for (pair, base) in fails.windows(2).zip([5u64, 10, 20, 40, 80]) {
        let delay = (pair[1] - pair[0]).as_millis() as u64;
        assert!((base..=base + base / 10 + 2).contains(&delay), "{delay} for {base}");
    }
    // After a success the delay is the first one again.
    tries.lock().unwrap().retain(|(name, _)| name != "fails");
    watch.modified(map("fails", "2"));
    sleep(SECOND).await;
    let fails = times("fails");
    assert!((fails[1] - fails[0]) < Duration::from_millis(8), "{:?}", fails[1] - fails[0]);
    let result = |result: &str| {
        stage.value(&format!(
            "controller_runtime_reconcile_total{{controller=\"c\",result=\"{result}\"}}"
        ))
    };
    assert_eq!(result("success"), Some(5.0));
    assert_eq!(result("requeue_after"), Some(1.0));
    assert_eq!(result("requeue"), Some(3.0));
    assert_eq!(result("error"), Some(11.0));
    let value = |name: &str| stage.value(&format!("controller_runtime_{name}{{controller=\"c\"}}"));
    assert_eq!(value("terminal_reconcile_errors_total"), Some(1.0));
    assert_eq!(value("reconcile_errors_total"), Some(11.0));
    assert_eq!(value("reconcile_time_seconds_count"), Some(20.0));
    assert_eq!(value("active_workers"), Some(0.0));
}

/// C22.9, C22.10
#[tokio::test(start_paused = true)]
async fn a_panic_or_a_timeout_is_counted_and_retried() {
    let mut stage = Stage::new(nobody());
    let (script, maps) = stage.maps();
    let journal = Journal::default();
    let list = journal.clone();
    let cancelled = Arc::new(AtomicUsize::new(0));
    let noticed = Arc::clone(&cancelled);
    let controller = Controller::new("c", &maps)
        .configure(|options| options.reconcile_timeout = Some(10 * SECOND));
    stage.run(controller, move |map: Arc<ConfigMap>, cx: Context| {
        list.note(map.name());
        let first = list.len() == 1;
        let noticed = Arc::clone(&noticed);
        async move {
            if map.name() == "panics" && first {
                panic!("a reconciler's bug");
            }
            if map.name() == "hangs" && map.resource_version() == "1".into() {
                let _guard = scopeguard(move || {
                    noticed.fetch_add(1, Ordering::Relaxed);
                });
                cx.cancelled().cancelled().await;
                std::future::pending::<()>().await;
            }
            Ok::<_, Failure>(Next::Done)
        }
    });
    let watch = sync(&script, [map("panics", "1")]);
    sleep(SECOND).await;
    assert_eq!(journal.take(), ["panics", "panics"]);
    let value = |name: &str| stage.value(&format!("controller_runtime_{name}{{controller=\"c\"}}"));
    assert_eq!(value("reconcile_panics_total"), Some(1.0));
    watch.added(map("hangs", "1"));
    quiet().await;
    let started = Instant::now();
    while cancelled.load(Ordering::Relaxed) == 0 {
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(started.elapsed().as_secs(), 10);
    watch.modified(map("hangs", "2"));
    sleep(20 * SECOND).await;
    assert_eq!(value("reconcile_timeouts_total"), Some(1.0), "its next state succeeds");
}

fn scopeguard(run: impl FnMut()) -> impl Drop {
    struct Guard<F: FnMut()>(F);
    impl<F: FnMut()> Drop for Guard<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    Guard(run)
}

/// C22.11
#[tokio::test]
async fn a_reconciler_that_blocks_its_thread_is_logged_once_a_minute() {
    let (logs, _guard) = Logs::capture();
    let mut stage = Stage::new(nobody());
    let (script, maps) = stage.maps();
    let done = Arc::new(Notify::new());
    let signal = Arc::clone(&done);
    stage.run(Controller::new("c", &maps), move |_: Arc<ConfigMap>, _: Context| {
        std::thread::sleep(Duration::from_millis(1050));
        signal.notify_one();
        std::future::ready(Ok::<_, Failure>(Next::Done))
    });
    let _watch = sync(&script, [map("a", "1"), map("b", "1")]);
    for _ in 0..2 {
        done.notified().await;
    }
    stage.stopped().await.unwrap();
    assert_eq!(logs.lines("the reconciler blocks its thread").len(), 1);
}

/// C22.12, C22.13, C22.14
#[tokio::test(start_paused = true)]
async fn a_change_of_a_child_enqueues_its_owners_old_and_new() {
    let mut stage = Stage::new(nobody());
    let (script, maps) = stage.maps();
    let (children, secrets) = stage.secrets();
    let journal = Journal::default();
    stage.run(Controller::new("c", &maps).owns(&secrets), noting(&journal));
    sync(&script, ["a", "b", "c"].map(|name| map(&format!("n/{name}"), "1")));
    let watch = sync(&children, []);
    quiet().await;
    journal.take();
    watch.added(secret("n/s", "2", Some(("a", true))));
    watch.added(secret("n/t", "3", Some(("c", false)))); // not its controller
    quiet().await;
    assert_eq!(journal.take(), ["n/a@1"]);
    watch.modified(secret("n/s", "4", Some(("b", true))));
    quiet().await;
    assert_eq!(journal.take(), ["n/a@1", "n/b@1"], "the owner it had and the one it has");
    watch.modified(secret("n/s", "5", Some(("b", true))));
    quiet().await;
    assert_eq!(journal.take(), ["n/b@1"], "once");
    watch.deleted(secret("n/s", "6", Some(("b", true))));
    quiet().await;
    assert_eq!(journal.take(), ["n/b@1"]);
}

/// C22.15, C22.16, C31.8
#[tokio::test(start_paused = true)]
async fn a_mapper_may_read_every_informer_of_the_controller() {
    let mut stage = Stage::new(nobody());
    let (script, maps) = stage.maps();
    let (related, secrets) = stage.secrets();
    let by_label =
        maps.index("wants", |map: &ConfigMap| map.label("wants").map(|v| v.into_owned())).unwrap();
    let reader = maps.clone();
    let journal = Journal::default();
    let controller = Controller::new("c", &maps).watches(&secrets, move |secret: &Secret| {
        assert!(reader.has_synced(), "called before the others were synced");
        assert!(secret.name() != "bad", "a mapper's bug");
        let keys = by_label.keys(secret.name());
        [keys.clone(), keys].concat()
    });
    stage.run(controller, noting(&journal));
    let watch = sync(&related, [secret("n/s", "1", None)]);
    quiet().await;
    let _main = sync(
        &script,
        [labelled("n/a", "1", "wants=s"), labelled("n/b", "1", "wants=s"), map("n/c", "1")],
    );
    quiet().await;
    assert_eq!(journal.take().len(), 3, "the first state of both");
    watch.added(secret("n/bad", "2", None));
    watch.modified(secret("n/s", "3", None));
    quiet().await;
    assert_eq!(journal.take(), ["n/a@1", "n/b@1"], "each once");
}

/// C22.17
#[tokio::test(start_paused = true)]
async fn keys_can_be_enqueued_from_outside() {
    let mut stage = Stage::new(nobody());
    let (script, maps) = stage.maps();
    let journal = Journal::default();
    let (sender, receiver) = tokio::sync::mpsc::channel(4);
    let stream = futures::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|key| (key, receiver))
    });
    let controller = Controller::new("c", &maps).triggered_by(stream);
    let requests = controller.requests();
    stage.run(controller, noting(&journal));
    let _watch = sync(&script, [map("a", "1"), map("b", "1")]);
    quiet().await;
    journal.take();
    requests.reconcile(Key::cluster("b")).await.unwrap();
    quiet().await;
    assert_eq!(journal.take(), ["b@1"]);
    sender.send(Key::cluster("a")).await.unwrap();
    quiet().await;
    assert_eq!(journal.take(), ["a@1"]);
    requests.reconcile_all().await.unwrap();
    quiet().await;
    assert_eq!(journal.take(), ["a@1", "b@1"]);
    let triggers = stage.value("controller_triggers_total{controller=\"c\",trigger=\"manual\"}");
    assert_eq!(triggers, Some(4.0));
    stage.stopped().await.unwrap();
    assert!(matches!(requests.reconcile(Key::cluster("a")).await, Err(Error::Stopped(_))));
}

/// C22.18
#[tokio::test(start_paused = true)]
async fn two_controllers_share_one_informer() {
    let stage = Stage::new(nobody());
    let (script, source) = Script::<ConfigMap>::new();
    let source: Arc<dyn headwater_client::script::ListWatch<Object = ConfigMap>> =
        Arc::new(source.without_watch_list());
    let open = || {
        let resource = ResourceType::of::<ConfigMap>(&());
        stage.factory.informer_from(resource, Arc::clone(&source)).open().unwrap()
    };
    let (told_a, told_b) = (Journal::default(), Journal::default());
    let manager = headwater_client::Manager::new(stage.factory.clone())
        .controller(Controller::new("a", &open()).with(noting(&told_a)))
        .controller(Controller::new("b", &open()).with(noting(&told_b)));
    let stop = stage.stop.clone();
    let mut parts = JoinSet::new();
    parts.spawn(manager.run_until(stop.cancelled_owned()));
    let _watch = sync(&script, [map("x", "1")]);
    quiet().await;
    assert_eq!((told_a.take(), told_b.take()), (vec!["x@1".to_owned()], vec!["x@1".to_owned()]));
    assert_eq!(script.requests().len(), 2, "one list, one watch");
}

/// C22.19, C30.5
#[tokio::test(start_paused = true)]
async fn the_trigger_is_in_the_span_and_the_metrics() {
    let (logs, _guard) = Logs::capture();
    let mut stage = Stage::new(nobody());
    let (script, maps) = stage.maps();
    let (children, secrets) = stage.secrets();
    stage.run(Controller::new("c", &maps).owns(&secrets), |map: Arc<ConfigMap>, _: Context| {
        tracing::info!("at work");
        let failed = map.resource_version() == "2".into();
        std::future::ready(if failed { Err(Failure::text("x")) } else { Ok(Next::Done) })
    });
    let watch = sync(&script, [map("n/a", "1")]);
    let child = sync(&children, []);
    quiet().await;
    child.added(secret("n/s", "2", Some(("a", true))));
    quiet().await;
    watch.modified(map("n/a", "2"));
    sleep(Duration::from_millis(8)).await;
    let lines = logs.lines("at work");
    let triggers = ["resync", "owned n/s", "object", "retry"];
    for (line, trigger) in lines.iter().zip(triggers) {
        assert!(
            line.contains(&format!(
                "reconcile{{controller=\"c\" key=n/a trigger={trigger} attempt="
            )),
            "{line}"
        );
        assert!(line.contains(" id="), "{line}");
    }
    assert!(lines[3].contains("attempt=2"), "{}", lines[3]);
    for trigger in ["resync", "owned", "object"] {
        let series = format!("controller_triggers_total{{controller=\"c\",trigger=\"{trigger}\"}}");
        assert_eq!(stage.value(&series), Some(1.0), "{trigger}");
    }
}

/// C22.20, C22.21
#[tokio::test(start_paused = true)]
async fn stopping_starts_no_reconcile_and_waits_for_running_ones() {
    for (takes, cancelled, after) in [(10, 0, 10), (100, 1, 30)] {
        let mut stage = Stage::new(nobody());
        let (script, maps) = stage.maps();
        let journal = Journal::default();
        let list = journal.clone();
        stage.run(Controller::new("c", &maps), move |map: Arc<ConfigMap>, cx: Context| {
            let list = list.clone();
            async move {
                list.note(format!("start {}", map.name()));
                cx.cancelled().cancelled().await;
                list.note("journal to end");
                sleep(takes * SECOND).await;
                list.note("end");
                Ok::<_, Failure>(Next::Done)
            }
        });
        let _watch = sync(&script, [map("a", "1"), map("b", "1")]);
        quiet().await;
        assert_eq!(journal.take(), ["start a"]);
        let before = Instant::now();
        let report = stage.stopped().await.unwrap();
        assert_eq!(report, Report { cancelled });
        assert_eq!(before.elapsed().as_secs(), after);
        let expected: &[&str] =
            if cancelled == 0 { &["journal to end", "end"] } else { &["journal to end"] };
        assert_eq!(journal.take(), expected, "b was never started");
        assert_eq!(script.open_streams(), 0, "the informers ended too");
        assert!(stage.parts.is_empty());
    }
}

/// C20.3
#[tokio::test(start_paused = true)]
async fn initial_objects_and_resyncs_have_low_priority() {
    let mut stage = Stage::new(nobody());
    let (script, source) = Script::<ConfigMap>::new();
    let resource = ResourceType::of::<ConfigMap>(&());
    let open = stage.factory.informer_from(resource, Arc::new(source.without_watch_list()));
    let maps = open.configure(|options| options.resync = 60 * SECOND).open().unwrap();
    let gate = Arc::new(Notify::new());
    let (hold, journal) = (Arc::clone(&gate), Journal::default());
    let list = journal.clone();
    stage.run(Controller::new("c", &maps), move |map: Arc<ConfigMap>, _: Context| {
        let (hold, list) = (Arc::clone(&hold), list.clone());
        async move {
            hold.notified().await;
            list.note(map.name());
            if map.name() == "o0" && list.len() == 1 {
                Err(Failure::text("x"))
            } else {
                Ok(Next::Done)
            }
        }
    });
    let watch = sync(&script, (0..5).map(|n| map(&format!("o{n}"), "1")));
    quiet().await;
    watch.added(map("urgent", "2"));
    quiet().await;
    assert_eq!(stage.value("workqueue_depth{name=\"c\",priority=\"-100\"}"), Some(4.0));
    assert_eq!(stage.value("workqueue_depth{name=\"c\",priority=\"0\"}"), Some(1.0));
    for _ in 0..7 {
        gate.notify_one();
        sleep(Duration::from_millis(10)).await;
    }
    let journal = journal.take();
    assert_eq!(journal[..2], ["o0", "urgent"], "{journal:?}");
    assert_eq!(journal.last().unwrap(), "o0", "a retry keeps its priority");
}

/// C23.6 in a controller, C24.1, C24.2, C24.3, C24.4
#[tokio::test]
async fn a_finalizer_is_added_first_and_removed_after_a_successful_cleanup() {
    let api = Api::start().await;
    let maps_api: KubeApi<ConfigMap> = KubeApi::namespaced(api.client.clone(), "default");
    let mut stage = Stage::new(api.client.clone());
    let maps = stage
        .factory
        .informer::<ConfigMap>()
        .namespace("default")
        .labels("managed=yes")
        .open()
        .unwrap();
    let journal = Journal::default();
    let (list, cleanups) = (journal.clone(), journal.clone());
    let failures = Arc::new(AtomicUsize::new(2));
    let controller = Controller::new("c", &maps)
        .when(predicate::generation_changed())
        .finalizer("example.com/dns", move |map: Arc<ConfigMap>, _| {
            let fails = failures.load(Ordering::Relaxed) > 0;
            if fails {
                failures.fetch_sub(1, Ordering::Relaxed);
            }
            cleanups.note(format!(
                "cleanup {} {}",
                map.name(),
                if fails { "fails" } else { "works" }
            ));
            std::future::ready(if fails {
                Err(Failure::text("dns is down"))
            } else {
                Ok(Next::Done)
            })
        })
        .unwrap();
    stage.run(controller, move |map: Arc<ConfigMap>, _: Context| {
        let finalizers = map.metadata.finalizers.clone().unwrap_or_default();
        list.note(format!("reconcile {} {}", map.name(), finalizers.join(",")));
        std::future::ready(Ok::<_, Failure>(Next::Done))
    });
    let object = |name: &str, finalizers: &[&str]| -> ConfigMap {
        serde_json::from_value(json!({"metadata": {"name": name, "labels": {"managed": "yes"}, "finalizers": finalizers}})).unwrap()
    };
    maps_api.create(&PostParams::default(), &object("a", &["other.io/x"])).await.unwrap();
    let until = async |text: &str| {
        let end = std::time::Instant::now() + PATIENCE;
        let mut seen = Vec::new();
        while !seen.iter().any(|line: &String| line == text) {
            assert!(std::time::Instant::now() < end, "waiting for {text:?}: {seen:?}");
            tokio::task::yield_now().await;
            seen.extend(journal.take());
        }
        seen
    };
    let seen = until("reconcile a other.io/x,example.com/dns").await;
    assert_eq!(seen.len(), 1, "added before the first reconcile: {seen:?}");
    maps_api.delete("a", &DeleteParams::default()).await.unwrap();
    let seen = until("cleanup a works").await;
    assert_eq!(
        seen,
        ["cleanup a fails", "cleanup a fails", "cleanup a works"],
        "not the reconciler"
    );
    let key = Key::namespaced("default", "a");
    let removed = |map: Option<&ConfigMap>| {
        map.is_some_and(|map| {
            map.metadata.finalizers.as_deref() == Some(&["other.io/x".to_owned()])
        })
    };
    maps.wait_for(&key, removed, PATIENCE).await.unwrap();
    tokio::task::yield_now().await;
    assert_eq!(
        journal.take(),
        Vec::<String>::new(),
        "being deleted without our finalizer: left alone"
    );
}

/// C24.5
#[tokio::test(start_paused = true)]
async fn a_finalizer_needs_a_qualified_name() {
    let stage = Stage::new(nobody());
    let (_script, maps) = stage.maps();
    for bad in ["", "dns", "example.com/", "/dns", "Example.com/dns", "a/b/c", "example.com/d ns"] {
        let made = Controller::new("c", &maps).finalizer(bad, |_: Arc<ConfigMap>, _| {
            std::future::ready(Ok::<_, Failure>(Next::Done))
        });
        assert!(matches!(made, Err(Error::Invalid(_))), "{bad:?}");
    }
}

/// C24.6, C22.12 on a real server
#[tokio::test]
async fn a_change_of_an_owned_object_reconciles_its_owner() {
    let api = Api::start().await;
    let mut stage = Stage::new(api.client.clone());
    let maps = stage
        .factory
        .informer::<ConfigMap>()
        .namespace("default")
        .labels("app=web")
        .open()
        .unwrap();
    let secrets = stage.factory.informer::<Secret>().namespace("default").open().unwrap();
    let repaired = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&repaired);
    stage.run(
        Controller::new("c", &maps).owns(&secrets),
        move |map: Arc<ConfigMap>, cx: Context| {
            let counter = Arc::clone(&counter);
            async move {
                let mut wanted = Secret {
                    metadata: ObjectMeta {
                        name: Some("owned".into()),
                        namespace: Some("default".into()),
                        ..ObjectMeta::default()
                    },
                    ..Secret::default()
                };
                owner::set_controller(&*map, &mut wanted)?;
                if cx.lister::<Secret>()?.get("default", "owned")?.is_none() {
                    cx.apply(&wanted, "test").await?;
                    counter.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<_, Failure>(Next::Done)
            }
        },
    );
    let calls = Calls::new(api.client.clone());
    let owner: ConfigMap = serde_json::from_value(
        json!({"metadata": {"name": "o", "namespace": "default", "labels": {"app": "web"}}}),
    )
    .unwrap();
    calls.of::<ConfigMap>().create(&owner).await.unwrap();
    let key = Key::namespaced("default", "owned");
    secrets.wait_for(&key, |secret| secret.is_some(), PATIENCE).await.unwrap();
    let first = secrets.snapshot().get(&key).cloned().unwrap();
    calls.of::<Secret>().delete(&key).await.unwrap();
    let again = |secret: Option<&Secret>| secret.is_some_and(|secret| secret.uid() != first.uid());
    secrets.wait_for(&key, again, PATIENCE).await.unwrap();
    // The watch may be faster than the response to the write.
    while repaired.load(Ordering::Relaxed) < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(repaired.load(Ordering::Relaxed), 2);
}

/// A server that returns the next version for each write, and sends no watch event.
fn writing() -> (Fake, kube::Client) {
    let version = AtomicUsize::new(100);
    Fake::client(move |call| {
        let version = version.fetch_add(1, Ordering::Relaxed) + 1;
        let mut body = call.body.clone();
        if call.method == "DELETE" {
            return ok(
                json!({"kind": "Status", "status": "Success", "details": {"uid": "uid-n/child"}, "metadata": {}}),
            );
        }
        body["metadata"]["name"] = call.path.rsplit('/').next().unwrap().into();
        body["metadata"]["namespace"] = "n".into();
        body["metadata"]["resourceVersion"] = version.to_string().into();
        ok(body)
    })
}

/// C27.7, C27.8, C27.9, C27.12, C27.13, C27.15
#[tokio::test(start_paused = true)]
async fn a_key_waits_until_the_caches_contain_its_writes() {
    let (fake, client) = writing();
    let mut stage = Stage::new(client);
    let (script, maps) = stage.maps();
    let (children, secrets) = stage.secrets();
    let journal = Journal::default();
    let list = journal.clone();
    let controller = Controller::new("c", &maps).owns(&secrets);
    stage.run(controller, move |map: Arc<ConfigMap>, cx: Context| {
        let list = list.clone();
        async move {
            list.note(format!("{}@{}", map.name(), map.resource_version()));
            if map.name() == "writer" && map.resource_version() != "4".into() {
                cx.of::<Secret>()
                    .merge(&Key::namespaced("n", "child"), &json!({"data": {}}))
                    .await?;
            }
            Ok::<_, Failure>(Next::Done)
        }
    });
    let watch = sync(&script, [map("n/other", "1"), map("n/writer", "1")]);
    let child = sync(&children, []);
    quiet().await;
    assert_eq!(journal.take(), ["other@1", "writer@1"]);
    assert_eq!(fake.calls().len(), 1);
    // The write is at 101; the cache of secrets is at 1.
    watch.modified(map("n/writer", "2")).modified(map("n/other", "3"));
    quiet().await;
    assert_eq!(journal.take(), ["other@3"], "only the key that wrote waits");
    sleep(2 * SECOND).await;
    assert_eq!(journal.take(), Vec::<String>::new());
    child.bookmark("101");
    quiet().await;
    assert_eq!(journal.take(), ["writer@2"], "as soon as it is reached");
    // That reconcile wrote again, at 102; this time the cache never catches up.
    watch.modified(map("n/writer", "4"));
    sleep(4 * SECOND).await;
    assert_eq!(stage.value("stale_reconciles_total{controller=\"c\"}"), Some(0.0));
    sleep(2 * SECOND).await;
    assert_eq!(journal.take(), Vec::<String>::new(), "not on data known to be old");
    assert_eq!(stage.value("stale_reconciles_total{controller=\"c\"}"), Some(1.0));
    child.added(secret("n/child", "102", None));
    sleep(20 * SECOND).await;
    assert_eq!(journal.take(), ["writer@4"]);
    watch.modified(map("n/writer", "5"));
    watch.deleted(map("n/writer", "6"));
    sleep(SECOND).await;
    assert_eq!(journal.take(), Vec::<String>::new());
}

/// C27.12, C27.13
#[tokio::test(start_paused = true)]
async fn versions_that_cannot_be_ordered_never_block_and_waiting_can_be_switched_off() {
    for (read_own_writes, version) in [(Some(5 * SECOND), "not-a-number"), (None, "999")] {
        let (_fake, client) = Fake::client(move |call| {
            let mut body = call.body.clone();
            body["metadata"] =
                json!({"name": "child", "namespace": "n", "resourceVersion": version});
            ok(body)
        });
        let mut stage = Stage::new(client);
        let (script, maps) = stage.maps();
        let (children, secrets) = stage.secrets();
        let journal = Journal::default();
        let list = journal.clone();
        let controller = Controller::new("c", &maps).owns(&secrets).configure(|options| {
            options.read_own_writes = read_own_writes;
        });
        stage.run(controller, move |map: Arc<ConfigMap>, cx: Context| {
            let list = list.clone();
            async move {
                list.note(map.resource_version().to_string());
                cx.of::<Secret>().merge(&Key::namespaced("n", "child"), &json!({})).await?;
                Ok::<_, Failure>(Next::Done)
            }
        });
        let watch = sync(&script, [map("n/a", "1")]);
        let _child = sync(&children, []);
        quiet().await;
        watch.modified(map("n/a", "2"));
        quiet().await;
        assert_eq!(journal.take(), ["1", "2"]);
        let unordered = stage.value("unordered_write_versions_total{controller=\"c\"}");
        assert_eq!(unordered, Some(if read_own_writes.is_some() { 1.0 } else { 0.0 }));
    }
}

/// C27.10
#[tokio::test(start_paused = true)]
async fn a_delete_without_a_version_is_waited_for_by_uid() {
    let (_fake, client) = writing();
    let mut stage = Stage::new(client);
    let (script, maps) = stage.maps();
    let (children, secrets) = stage.secrets();
    let journal = Journal::default();
    let list = journal.clone();
    stage.run(
        Controller::new("c", &maps).owns(&secrets),
        move |map: Arc<ConfigMap>, cx: Context| {
            let list = list.clone();
            async move {
                list.note(map.resource_version().to_string());
                if map.resource_version() == "1".into() {
                    cx.of::<Secret>().delete(&Key::namespaced("n", "child")).await?;
                }
                Ok::<_, Failure>(Next::Done)
            }
        },
    );
    let watch = sync(&script, [map("n/a", "1")]);
    let child = sync(&children, [secret("n/child", "1", None)]);
    quiet().await;
    watch.modified(map("n/a", "2"));
    sleep(2 * SECOND).await;
    assert_eq!(journal.take(), ["1"]);
    child.bookmark("50");
    sleep(SECOND).await;
    assert_eq!(journal.take(), Vec::<String>::new(), "it is still there");
    let mut other = secret("n/child", "51", None);
    other.metadata.uid = Some("another".into());
    child.modified(other);
    quiet().await;
    assert_eq!(journal.take(), ["2"], "another of that name does not count");
}

/// C27.11
#[tokio::test(start_paused = true)]
async fn a_read_after_a_write_shows_the_write_or_something_newer() {
    let (_fake, client) = Fake::client(|call| match call.method.as_str() {
        "GET" => ok(serde_json::to_value(secret("n/child", "300", None)).unwrap()),
        _ => ok(serde_json::to_value(secret("n/child", "200", None)).unwrap()),
    });
    let mut stage = Stage::new(client);
    let (script, maps) = stage.maps();
    let (children, secrets) = stage.secrets();
    let journal = Journal::default();
    let list = journal.clone();
    stage.run(
        Controller::new("c", &maps).reads(&secrets),
        move |map: Arc<ConfigMap>, cx: Context| {
            let list = list.clone();
            async move {
                let key = Key::namespaced("n", "child");
                cx.of::<Secret>().merge(&key, &json!({})).await?;
                let read = cx.read::<Secret>(&key).await?.unwrap();
                list.note(format!("{} {}", map.name(), read.resource_version()));
                Ok::<_, Failure>(Next::Done)
            }
        },
    );
    let watch = sync(&script, [map("n/a", "1")]);
    let child = sync(&children, [secret("n/child", "1", None)]);
    quiet().await;
    child.modified(secret("n/child", "200", None));
    quiet().await;
    assert_eq!(journal.take(), ["a 200"], "from the cache, once that has it");
    children.requested(2).await;
    child.error(500, "InternalError");
    watch.added(map("n/b", "2"));
    quiet().await;
    assert_eq!(journal.take(), ["b 200"]);
    advance(10 * SECOND).await;
}

/// C22.25
#[tokio::test(start_paused = true)]
async fn related_informers_can_be_added_and_removed_while_running() {
    let mut stage = Stage::new(nobody());
    let (script, maps) = stage.maps();
    let journal = Journal::default();
    let controller = Controller::new("c", &maps);
    let handle = controller.handle();
    stage.run(controller, noting(&journal));
    let _watch = sync(&script, [map("n/a", "1")]);
    quiet().await;
    journal.take();
    let (children, secrets) = stage.secrets();
    let id = handle.watch(&secrets, |_: &Secret| [Key::namespaced("n", "a")]).await.unwrap();
    let child = sync(&children, []);
    quiet().await;
    child.added(secret("n/s", "2", None));
    quiet().await;
    assert_eq!(journal.take(), ["n/a@1"]);
    handle.unwatch(id).await.unwrap();
    quiet().await;
    child.modified(secret("n/s", "3", None));
    quiet().await;
    assert_eq!(journal.take(), Vec::<String>::new());
    assert_eq!(secrets.debug_dump()["subscribers"].as_array().unwrap().len(), 0);
}
