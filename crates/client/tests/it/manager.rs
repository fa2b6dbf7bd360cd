//! The manager: several controllers with one stop signal, one election and one health endpoint.

use std::sync::Arc;

use headwater_client::controller::{Context, Controller, Failure, Next};
use headwater_client::factory::InformerDefaults;
use headwater_client::informer::Informer;
use headwater_client::leader::Lease;
use headwater_client::script::{Script, WatchStep};
use headwater_client::{Cached, Error, Factory, Manager, Metrics, ResourceType};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::api::Api;
use crate::support::*;

fn informer(factory: &Factory, name: &str) -> (Script<ConfigMap>, Informer<ConfigMap>) {
    let (script, source) = Script::new();
    let resource = ResourceType::of::<ConfigMap>(&());
    let open = factory.informer_from(resource, Arc::new(source.without_watch_list()));
    (script, open.named(name).open().unwrap())
}

fn sync(script: &Script<ConfigMap>, names: &[&str]) -> WatchStep<ConfigMap> {
    script.expect_list().answers(names.iter().map(|name| map(name, "1")), "1");
    script.expect_watch()
}

fn noting(
    journal: &Journal,
    prefix: &'static str,
) -> impl Fn(Arc<ConfigMap>, Context) -> std::future::Ready<Result<Next, Failure>> + use<> {
    let journal = journal.clone();
    move |map, _| {
        journal.note(format!("{prefix} {}", map.name()));
        std::future::ready(Ok(Next::Done))
    }
}

fn run(manager: Manager) -> (CancellationToken, JoinSet<Result<(), Error>>) {
    let stop = CancellationToken::new();
    let mut parts = JoinSet::new();
    parts.spawn(manager.run_until(stop.clone().cancelled_owned()));
    (stop, parts)
}

/// C22.1, C22.24
#[tokio::test(start_paused = true)]
async fn the_first_task_that_fails_stops_the_others_and_all_are_joined() {
    let factory = Factory::new(nobody());
    let (script, maps) = informer(&factory, "maps");
    let journal = Journal::default();
    let (ends, fails) = (journal.clone(), journal.clone());
    let manager = Manager::new(factory.clone())
        .controller(Controller::new("c", &maps).with(noting(&journal, "c")))
        .part("patient", move |stop| async move {
            stop.cancelled().await;
            ends.note("patient ended");
            Ok::<_, Error>(())
        })
        .part("fragile", move |_| async move {
            sleep(10 * SECOND).await;
            fails.note("fragile failed");
            Err::<(), _>("out of luck")
        });
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let (_stop, mut parts) = run(manager);
    sync(&script, &["a"]);
    let ended = parts.join_next().await.unwrap().unwrap();
    let Err(Error::Part { name, source }) = ended else { panic!("{ended:?}") };
    assert_eq!((name.as_str(), source.to_string().as_str()), ("fragile", "out of luck"));
    assert_eq!(journal.take(), ["c a", "fragile failed", "patient ended"]);
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), tasks);
    assert_eq!(script.open_streams(), 0);

    let factory = Factory::new(nobody());
    let (_script, maps) = informer(&factory, "maps");
    let twice = Manager::new(factory)
        .controller(Controller::new("same", &maps).with(noting(&journal, "1")))
        .controller(Controller::new("same", &maps).with(noting(&journal, "2")));
    let refused = twice.run_until(std::future::pending()).await;
    assert!(matches!(refused, Err(Error::Invalid(why)) if why.contains("same")));
}

/// C22.25
#[tokio::test(start_paused = true)]
async fn controllers_are_added_and_removed_while_the_manager_runs() {
    let factory = Factory::new(nobody());
    let (script, maps) = informer(&factory, "maps");
    let journal = Journal::default();
    let manager = Manager::new(factory.clone())
        .controller(Controller::new("first", &maps).with(noting(&journal, "first")));
    let handle = manager.handle();
    let (stop, mut parts) = run(manager);
    let watch = sync(&script, &["a"]);
    quiet().await;
    assert_eq!(journal.take(), ["first a"]);
    handle.add(Controller::new("second", &maps).with(noting(&journal, "second"))).await.unwrap();
    quiet().await;
    assert_eq!(journal.take(), ["second a"]);
    assert_eq!(handle.controllers(), ["first", "second"]);
    handle.remove("first").await.unwrap();
    quiet().await;
    assert_eq!(handle.controllers(), ["second"]);
    assert_eq!(
        maps.debug_dump()["subscribers"].as_array().unwrap().len(),
        1,
        "its subscription ended"
    );
    watch.modified(map("a", "2"));
    quiet().await;
    assert_eq!(journal.take(), ["second a"]);
    stop.cancel();
    parts.join_next().await.unwrap().unwrap().unwrap();
    assert!(handle.remove("second").await.is_err());
}

/// C25.10
#[tokio::test]
async fn a_standby_is_warm_and_works_only_once_it_leads() {
    let api = Api::start().await;
    let create = async |name: &str| {
        let maps: kube::Api<ConfigMap> = kube::Api::namespaced(api.client.clone(), "default");
        let object =
            serde_json::from_value(json!({"metadata": {"name": name, "labels": {"app": "x"}}}));
        maps.create(&Default::default(), &object.unwrap()).await.unwrap();
    };
    create("a").await;
    let lease = |identity: &str| {
        // The first releases its lease; these times are too long to lose it before that.
        let timing = headwater_client::leader::Timing {
            lease: 2 * PATIENCE,
            renew_deadline: PATIENCE,
            retry: SECOND / 10,
        };
        Lease::named("op").identity(identity).timing(timing)
    };
    let start = |identity: &'static str, journal: &Journal| {
        let factory = Factory::new(api.client.clone());
        let maps =
            factory.informer::<ConfigMap>().namespace("default").labels("app=x").open().unwrap();
        let controller = Controller::new("c", &maps).with(noting(journal, identity));
        (run(Manager::new(factory).leader(lease(identity)).controller(controller)), maps)
    };
    let journal = Journal::default();
    let ((stop_first, mut first), _first_maps) = start("first", &journal);
    while journal.len() == 0 {
        tokio::task::yield_now().await;
    }
    let ((stop_second, mut second), second_maps) = start("second", &journal);
    second_maps.synced().await.unwrap();
    while second_maps.debug_dump()["subscribers"].as_array().unwrap().is_empty() {
        tokio::task::yield_now().await; // until its queue is being filled
    }
    assert_eq!(journal.take(), ["first a"], "the standby does not work");
    stop_first.cancel();
    first.join_next().await.unwrap().unwrap().unwrap();
    while journal.len() == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(journal.take(), ["second a"]);
    stop_second.cancel();
    second.join_next().await.unwrap().unwrap().unwrap();
}

/// C22.21, C25.8
#[tokio::test(start_paused = true)]
async fn a_lost_lease_cancels_reconciles_without_grace() {
    let (_fake, client) = Fake::client({
        let down = std::sync::atomic::AtomicUsize::new(0);
        move |call| match down.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => refused(404, "NotFound"),
            1 => {
                let mut made = call.body.clone();
                made["metadata"]["resourceVersion"] = "1".into();
                ok(made)
            }
            _ => Err(()), // from now on no renewal succeeds
        }
    });
    let factory = Factory::new(client);
    let (script, maps) = informer(&factory, "maps");
    let journal = Journal::default();
    let list = journal.clone();
    let controller = Controller::new("c", &maps).with(move |_: Arc<ConfigMap>, cx: Context| {
        let list = list.clone();
        async move {
            list.note("starts");
            cx.cancelled().cancelled().await;
            list.note("cancelled");
            sleep(20 * SECOND).await;
            list.note("finished");
            Ok::<_, Failure>(Next::Done)
        }
    });
    let lease = Lease::named("op").identity("me");
    let (_stop, mut parts) = run(Manager::new(factory).leader(lease).controller(controller));
    sync(&script, &["a"]);
    let before = tokio::time::Instant::now();
    let ended = parts.join_next().await.unwrap().unwrap();
    assert!(matches!(ended, Err(Error::LostLeadership)), "{ended:?}");
    assert_eq!(before.elapsed().as_secs(), 10, "at once when the deadline passed");
    let journal = journal.take();
    assert!(
        journal.starts_with(&["starts".to_owned()]) && !journal.contains(&"finished".to_owned()),
        "{journal:?}"
    );
}

/// C22.24
#[tokio::test]
async fn the_health_endpoint_reports_whether_the_caches_have_synced() {
    let defaults =
        InformerDefaults { metrics: Some(Metrics::new()), ..InformerDefaults::default() };
    let factory = Factory::with_defaults(nobody(), defaults);
    let (script, maps) = informer(&factory, "maps");
    let journal = Journal::default();
    let manager = Manager::new(factory.clone())
        .controller(Controller::new("c", &maps).with(noting(&journal, "c")))
        .health_on("127.0.0.1:0".parse().unwrap());
    let handle = manager.handle();
    let (stop, mut parts) = run(manager);
    let address = loop {
        match handle.health_address() {
            Some(address) => break address,
            None => tokio::task::yield_now().await,
        }
    };
    let get = async |path: &str| {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream
            .write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes())
            .await
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    assert!(get("/healthz").await.starts_with("HTTP/1.1 200"));
    let waiting = get("/readyz").await;
    assert!(waiting.starts_with("HTTP/1.1 503") && waiting.contains("maps: starting"), "{waiting}");
    sync(&script, &["a"]);
    maps.synced().await.unwrap();
    assert!(get("/readyz").await.starts_with("HTTP/1.1 200"));
    assert!(get("/metrics").await.contains("informer_store_objects"));
    assert!(get("/other").await.starts_with("HTTP/1.1 404"));
    stop.cancel();
    parts.join_next().await.unwrap().unwrap().unwrap();
    assert!(maps.name() == "maps" && journal.len() <= 1);
}
