//! The factory: sharing, starting, stopping, namespaces, discovery; with scripts or a real server.

use std::sync::Arc;
use std::time::Duration;

use headwater_client::factory::InformerDefaults;
use headwater_client::informer::{Health, Informer};
use headwater_client::script::{At, ListWatch, Script};
use headwater_client::{Cached, Error, Factory, Metrics, Packed, ResourceType, Transform};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::Client;
use kube::api::{Api as KubeApi, DeleteParams, PostParams};
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::api::Api;
use crate::support::*;

fn resource() -> ResourceType {
    ResourceType::of::<ConfigMap>(&())
}

fn scripted() -> (Script<ConfigMap>, Arc<dyn ListWatch<Object = ConfigMap>>) {
    let (script, source) = Script::new();
    (script, Arc::new(source.without_watch_list()))
}

/// A running factory.
struct Run {
    factory: Factory,
    stop: CancellationToken,
    parts: JoinSet<Result<(), Error>>,
}

impl Run {
    fn start(factory: Factory) -> Run {
        let stop = CancellationToken::new();
        let mut parts = JoinSet::new();
        let (run, token) = (factory.clone(), stop.clone());
        parts.spawn(async move { run.run(token).await });
        Run { factory, stop, parts }
    }

    async fn stopped(&mut self) -> Result<(), Error> {
        self.stop.cancel();
        self.parts.join_next().await.unwrap().unwrap()
    }
}

/// C17.1, C17.2, C15.6
#[tokio::test(start_paused = true)]
async fn equal_options_share_an_informer_and_different_options_do_not() {
    let factory = Factory::new(nobody());
    let same = |a: &Informer<ConfigMap>, b: &Informer<ConfigMap>| {
        a.name() == b.name() // names are unique in a factory
    };
    let plain = || factory.informer::<ConfigMap>();
    let first = plain().open().unwrap();
    assert!(same(&first, &plain().open().unwrap()));
    let edit = Transform::edit(|map: &mut ConfigMap| map.data = None);
    let other_edit = Transform::edit(|map: &mut ConfigMap| map.data = None);
    let others = [
        plain().labels("a=b").open().unwrap(),
        plain().labels("a=c").open().unwrap(),
        plain().fields("metadata.name=x").open().unwrap(),
        plain().namespaces(["a"]).open().unwrap(),
        plain().namespaces(["a", "b"]).open().unwrap(),
        plain().keep_managed_fields().open().unwrap(),
        plain().drop_last_applied().open().unwrap(),
        plain().configure(|options| options.page_size = Some(7)).open().unwrap(),
        plain().configure(|options| options.watch_list = false).open().unwrap(),
        plain().transform(&edit).open().unwrap(),
        plain().transform(&other_edit).open().unwrap(),
    ];
    for (at, other) in others.iter().enumerate() {
        assert!(!same(&first, other), "{at}");
        assert!(others[at + 1..].iter().all(|another| !same(other, another)), "{at}");
    }
    assert!(same(&others[9], &plain().transform(&edit).open().unwrap()));
    assert!(same(&others[4], &plain().namespaces(["b", "a"]).open().unwrap()));
    let packed = plain().packed().open().unwrap();
    let metadata = plain().metadata_only().open().unwrap();
    let names = [first.name(), others[0].name(), packed.name(), metadata.name()];
    assert_eq!(names, ["configmaps", "configmaps-2", "configmaps-13", "configmaps-14"]);
}

/// C17.3, C17.4, C17.5
#[tokio::test(start_paused = true)]
async fn informers_start_with_the_factory_or_by_themselves_later() {
    let factory = Factory::new(nobody());
    let (early_script, early) = scripted();
    let (late_script, late) = scripted();
    let early = factory.informer_from(resource(), early).open().unwrap();
    sleep(SECOND).await;
    assert_eq!(early_script.requests().len(), 0, "nothing runs before the factory does");
    assert!(matches!(factory.synced(SECOND).await, Err(Error::NotRunning)));
    let run = Run::start(factory);
    early_script.expect_list().answers([map("a", "1")], "1");
    early_script.expect_watch();
    run.factory.synced(60 * SECOND).await.unwrap();
    assert_eq!(early.snapshot().len(), 1);
    let late = run.factory.informer_from(resource(), late).named("late").open().unwrap();
    late_script.expect_list().answers([], "1");
    late_script.expect_watch();
    late.synced().await.unwrap();
    let health: Vec<_> = run.factory.health().into_iter().collect();
    assert_eq!(health, [("configmaps".into(), Health::Synced), ("late".into(), Health::Synced)]);
}

/// C17.5, C13.8
#[tokio::test(start_paused = true)]
async fn a_sync_timeout_lists_the_informers_and_the_reasons() {
    let factory = Factory::new(nobody());
    let (good_script, good) = scripted();
    let (bad_script, bad) = scripted();
    let _good = factory.informer_from(resource(), good).named("good").open().unwrap();
    let _bad = factory.informer_from(resource(), bad).named("bad").open().unwrap();
    good_script.expect_list().answers([], "1");
    good_script.expect_watch();
    bad_script.expect_list().refuses(403, "Forbidden");
    let run = Run::start(factory);
    let error = run.factory.synced(5 * SECOND).await.unwrap_err();
    assert_eq!(error.to_string(), "not synced after 5s: bad (forbidden)");
    let before = tokio::time::Instant::now();
    let error = run.factory.synced_or_hopeless(600 * SECOND).await.unwrap_err();
    assert!(
        matches!(error, Error::SyncTimeout { missing, .. } if missing[0].1 == Health::Forbidden)
    );
    assert_eq!(before.elapsed(), Duration::ZERO);
}

/// C17.6, C17.7
#[tokio::test(start_paused = true)]
async fn a_stopped_factory_starts_nothing_and_leaves_nothing() {
    let factory = Factory::new(nobody());
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let (script, source) = scripted();
    let informer = factory.informer_from(resource(), source).open().unwrap();
    script.expect_list().answers([map("a", "1")], "1");
    script.expect_watch();
    let mut run = Run::start(factory);
    informer.synced().await.unwrap();
    assert!(tasks() > before + 2);
    run.stopped().await.unwrap();
    assert_eq!((tasks(), script.open_streams()), (before, 0));
    assert_eq!(informer.health(), Health::Stopped);
    assert_eq!(informer.snapshot().len(), 1, "what was known can still be read");
    let late = run.factory.informer::<ConfigMap>().open();
    assert!(matches!(late, Err(Error::Stopped(_))));
    assert!(matches!(run.factory.run(CancellationToken::new()).await, Err(Error::Stopped(_))));

    let factory = Factory::new(nobody());
    let (script, source) = scripted();
    let informer = factory.informer_from(resource(), source).open().unwrap();
    script.expect_list().answers([], "1");
    script.expect_watch();
    let mut run = Box::pin(factory.run(CancellationToken::new()));
    tokio::select! {
        biased;
        synced = informer.synced() => synced.unwrap(),
        _ = &mut run => panic!(),
    }
    drop(run);
    quiet().await;
    assert_eq!((informer.health(), script.open_streams()), (Health::Stopped, 0));
    assert!(matches!(factory.informer::<ConfigMap>().open(), Err(Error::Stopped(_))));
}

/// C17.8
#[tokio::test(start_paused = true)]
async fn an_informer_without_handles_ends_after_a_while_and_a_new_one_starts_empty() {
    let metrics = Metrics::new();
    let defaults =
        InformerDefaults { metrics: Some(metrics.clone()), ..InformerDefaults::default() };
    let run = Run::start(Factory::with_defaults(nobody(), defaults));
    let (script, source) = scripted();
    let open = || run.factory.informer_from(resource(), Arc::clone(&source)).open().unwrap();
    let informer = open();
    script.expect_list().answers([map("a", "1")], "1");
    script.expect_watch();
    informer.synced().await.unwrap();
    let subscription =
        informer.subscribe(headwater_client::informer::Subscribe::named("s")).unwrap();
    drop(informer);
    sleep(65 * SECOND).await;
    assert_eq!(script.open_streams(), 1, "a subscription is a reason to live");
    drop(subscription);
    sleep(20 * SECOND).await;
    let again = open();
    assert!(again.has_synced(), "within the grace time it is the same one");
    sleep(65 * SECOND).await;
    assert_eq!(script.open_streams(), 1);
    let (lister, index) = (again.lister(), again.index("x", |_: &ConfigMap| Some(1u8)).unwrap());
    drop(again);
    sleep(65 * SECOND).await;
    assert_eq!(script.open_streams(), 1, "listers and indexes are handles too");
    drop((lister, index));
    sleep(31 * SECOND).await;
    assert_eq!(script.open_streams(), 0);
    assert_eq!(metrics.render(), "", "its memory and its series are gone");
    let fresh = open();
    script.expect_list().answers([map("b", "2")], "2");
    script.expect_watch();
    fresh.synced().await.unwrap();
    assert_eq!(fresh.snapshot().keys()[0].as_str(), "b");
}

/// C17.14
#[tokio::test(start_paused = true)]
async fn two_factories_share_nothing() {
    let (one, two) = (Factory::new(nobody()), Factory::new(nobody()));
    let (a, b) =
        (one.informer::<ConfigMap>().open().unwrap(), two.informer::<ConfigMap>().open().unwrap());
    a.index("one", |_: &ConfigMap| Some(1)).unwrap();
    // On the same informer, another function under this name would be an error.
    b.index("one", |_: &ConfigMap| Some(2)).unwrap();
    assert_eq!((a.name(), b.name()), ("configmaps", "configmaps"));
}

/// C12.7
#[tokio::test(start_paused = true)]
async fn a_lister_for_a_type_without_informer_is_an_error_and_starts_none() {
    let factory = Factory::new(nobody());
    assert!(matches!(factory.lister::<ConfigMap>(), Err(Error::NoInformer(_))));
    let informer = factory.informer::<ConfigMap>().open().unwrap();
    assert!(factory.lister::<ConfigMap>().is_ok());
    assert!(factory.lister::<Secret>().is_err());
    drop(informer);
    assert!(factory.lister::<ConfigMap>().is_err(), "nobody holds it any more");
}

/// C17.12
#[tokio::test(start_paused = true)]
async fn defaults_of_the_factory_apply_unless_overridden() {
    let defaults = InformerDefaults { page_size: Some(7), ..InformerDefaults::default() };
    let run = Run::start(Factory::with_defaults(nobody(), defaults));
    let (script, source) = scripted();
    let _default = run.factory.informer_from(resource(), source).open().unwrap();
    let (other_script, other) = scripted();
    let opening = run.factory.informer_from(resource(), other);
    let _other = opening.configure(|options| options.page_size = Some(9)).open().unwrap();
    script.expect_list().at(At::Any).limit(Some(7)).answers([], "1");
    other_script.expect_list().at(At::Any).limit(Some(9)).answers([], "1");
    script.expect_watch();
    other_script.expect_watch();
    run.factory.synced(SECOND).await.unwrap();
}

async fn namespace(client: &Client, name: &str) {
    let api: KubeApi<Namespace> = KubeApi::all(client.clone());
    let object = serde_json::from_value(serde_json::json!({"metadata": {"name": name}})).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap();
}

async fn create(client: &Client, namespace: &str, name: &str) -> ConfigMap {
    let api: KubeApi<ConfigMap> = KubeApi::namespaced(client.clone(), namespace);
    let object = serde_json::json!({
        "metadata": {"name": name, "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "keep": "x"}},
        "data": {"k": name},
    });
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
}

/// C17.9
#[tokio::test]
async fn a_set_of_namespaces_is_one_informer_that_can_grow_and_shrink() {
    let api = Api::start().await;
    for name in ["a", "b", "c"] {
        namespace(&api.client, name).await;
        create(&api.client, name, "one").await;
    }
    let run = Run::start(Factory::new(api.client.clone()));
    let maps = run
        .factory
        .informer::<ConfigMap>()
        .namespaces(["a", "b"])
        .fields("metadata.name!=kube-root-ca.crt")
        .open()
        .unwrap();
    maps.synced().await.unwrap();
    let by_name = maps.index("name", |map: &ConfigMap| map.metadata.name.clone()).unwrap();
    assert_eq!(
        by_name.keys("one").iter().map(|key| key.to_string()).collect::<Vec<_>>(),
        ["a/one", "b/one"]
    );
    let made = create(&api.client, "b", "two").await;
    // Namespace a has no changes for a minute; changes in b arrive at once.
    maps.wait_for(&made.key(), |map| map.is_some(), PATIENCE).await.unwrap();
    assert_eq!(maps.snapshot().len(), 3);
}

/// C17.10
#[tokio::test]
async fn typed_dynamic_packed_and_metadata_informers_coexist() {
    let api = Api::start().await;
    namespace(&api.client, "a").await;
    let made = create(&api.client, "a", "one").await;
    let run = Run::start(Factory::new(api.client.clone()));
    let typed = run.factory.informer::<ConfigMap>().open().unwrap();
    let dynamic: Informer<DynamicObject> =
        run.factory.dynamic(&ApiResource::erase::<ConfigMap>(&())).open().unwrap();
    let packed: Informer<Packed<ConfigMap>> =
        run.factory.informer::<ConfigMap>().packed().open().unwrap();
    let metadata: Informer<PartialObjectMeta<ConfigMap>> =
        run.factory.informer::<ConfigMap>().metadata_only().open().unwrap();
    run.factory.synced(PATIENCE).await.unwrap();
    let key = made.key();
    let typed = typed.snapshot().get(&key).cloned().unwrap();
    assert_eq!(typed.data, made.data);
    assert_eq!(packed.snapshot().get(&key).cloned().unwrap().unpack().unwrap(), *typed);
    assert_eq!(dynamic.snapshot().get(&key).cloned().unwrap().data["data"]["k"], "one");
    let metadata = metadata.snapshot().get(&key).cloned().unwrap();
    assert_eq!(metadata.uid(), typed.uid());
    assert!(typed.metadata.managed_fields.is_none(), "left out by default");
    let kept = run.factory.informer::<ConfigMap>().keep_managed_fields().open().unwrap();
    kept.synced().await.unwrap();
    assert!(kept.snapshot().get(&key).cloned().unwrap().metadata.managed_fields.is_some());
    let slim = run.factory.informer::<ConfigMap>().drop_last_applied().open().unwrap();
    slim.synced().await.unwrap();
    let annotations =
        slim.snapshot().get(&key).cloned().unwrap().metadata.annotations.clone().unwrap();
    assert_eq!(annotations.keys().collect::<Vec<_>>(), ["keep"]);
}

/// C30.2
#[tokio::test]
async fn a_factory_counts_requests_and_bytes() {
    let api = Api::start().await;
    let metrics = Metrics::new();
    let defaults = InformerDefaults {
        metrics: Some(metrics.clone()),
        component: "t".into(),
        ..InformerDefaults::default()
    };
    create(&api.client, "default", "one").await;
    let run = Run::start(Factory::with_defaults(api.client.clone(), defaults));
    let maps = run.factory.informer::<ConfigMap>().open().unwrap();
    maps.synced().await.unwrap();
    assert_eq!(metrics.value("rest_client_requests_total{method=\"GET\",code=\"200\"}"), Some(1.0));
    assert!(metrics.value("informer_received_bytes_total{name=\"configmaps\"}").unwrap() > 100.0);
    assert!(maps.debug_dump()["objects"].as_u64().unwrap() >= 1);
}

/// A saved state is resumed without listing again.
#[tokio::test]
async fn a_saved_state_is_resumed_without_a_list() {
    let api = Api::start().await;
    namespace(&api.client, "a").await;
    create(&api.client, "a", "one").await;
    let mut run = Run::start(Factory::new(api.client.clone()));
    let maps = run.factory.informer::<ConfigMap>().packed().open().unwrap();
    maps.synced().await.unwrap();
    let saved: Vec<String> =
        maps.snapshot().list().iter().map(|map| map.text().to_owned()).collect();
    let version = maps.snapshot().resource_version().cloned().unwrap();
    run.stopped().await.unwrap();
    let two = create(&api.client, "a", "two").await;
    let deletes: KubeApi<ConfigMap> = KubeApi::namespaced(api.client.clone(), "a");
    deletes.delete("one", &DeleteParams::default()).await.unwrap();

    let metrics = Metrics::new();
    let defaults =
        InformerDefaults { metrics: Some(metrics.clone()), ..InformerDefaults::default() };
    let run = Run::start(Factory::with_defaults(api.client.clone(), defaults));
    let objects = saved.iter().map(|text| Packed::<ConfigMap>::decode(text).unwrap());
    let maps =
        run.factory.informer::<ConfigMap>().packed().resume_from(objects, version).open().unwrap();
    let (journal, _handler) = Journal::of(&maps);
    maps.wait_for(&two.key(), |map| map.is_some(), PATIENCE).await.unwrap();
    maps.wait_for(&"a/one".parse().unwrap(), |map| map.is_none(), PATIENCE).await.unwrap();
    while !journal.take().iter().any(|text| text == "Gone(a/one, observed: true)") {
        tokio::task::yield_now().await;
    }
    let labels = "name=\"configmaps\",group=\"\",version=\"v1\",resource=\"configmaps\"";
    assert_eq!(metrics.value(&format!("reflector_watches_total{{{labels}}}")), Some(1.0));
    assert!(!metrics.render().contains("reflector_lists_total{"), "no list was made");
}
