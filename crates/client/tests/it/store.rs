//! Store, indexes, snapshots and listers, seen through a running informer.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use headwater_client::informer::Informer;
use headwater_client::script::WatchStep;
use headwater_client::{Cached, Error, Key, Metrics, ResourceVersion, Selector};
use k8s_openapi::api::core::v1::ConfigMap;
use proptest::prelude::*;

use crate::support::*;

/// An informer that has synced with some objects, and its open watch.
async fn synced(
    objects: impl IntoIterator<Item = ConfigMap>,
) -> (headwater_client::script::Script<ConfigMap>, WatchStep<ConfigMap>, Running<ConfigMap>) {
    let (script, running) = listing(options("store"));
    script.expect_list().answers(objects, "1");
    let watch = script.expect_watch();
    running.informer.synced().await.unwrap();
    (script, watch, running)
}

fn by_label(
    informer: &Informer<ConfigMap>,
    label: &'static str,
) -> headwater_client::Index<ConfigMap, String> {
    let values = move |map: &ConfigMap| map.label(label).map(|value| value.into_owned());
    informer.index(label, values).unwrap()
}

fn names(objects: &[Arc<ConfigMap>]) -> Vec<String> {
    objects.iter().map(|object| object.key().to_string()).collect()
}

/// C11.2, C31.10
#[tokio::test(start_paused = true)]
async fn reads_are_ordered_by_key_and_hold_each_key_once() {
    let (_script, watch, running) =
        synced([map("b/z", "1"), map("a/x", "2"), map("a/b", "3")]).await;
    watch.modified(map("a/x", "4")).added(map("a-b/x", "5"));
    quiet().await;
    let store = running.informer.snapshot();
    assert_eq!(running.keys(), ["a-b/x", "a/b", "a/x", "b/z"]);
    assert_eq!(names(&store.list()), running.keys());
    assert_eq!((store.len(), store.is_empty()), (4, false));
    let object = store.get(&"a/x".parse().unwrap()).unwrap();
    assert_eq!(object.resource_version(), "4".into());
}

/// C11.3, C11.4, C10.5
#[tokio::test(start_paused = true)]
async fn a_snapshot_sees_one_state_of_objects_indexes_and_version() {
    let (_script, watch, running) = synced([labelled("a/x", "1", "app=web")]).await;
    let by_app = by_label(&running.informer, "app");
    let before = running.informer.snapshot();
    watch.modified(labelled("a/x", "2", "app=db")).added(labelled("a/y", "3", "app=web"));
    quiet().await;
    let after = running.informer.snapshot();
    assert_eq!(names(&before.by(&by_app, "web")), ["a/x"]);
    assert_eq!(before.len(), 1);
    assert_eq!(before.resource_version(), Some(&"1".into()));
    assert_eq!(names(&after.by(&by_app, "web")), ["a/y"]);
    assert_eq!(names(&after.by(&by_app, "db")), ["a/x"]);
    assert_eq!(after.resource_version(), Some(&"3".into()));
    let key: Key = "a/x".parse().unwrap();
    assert_eq!(before.get(&key).unwrap().resource_version(), "1".into());
}

/// C11.5, C11.6, C11.7
#[tokio::test(start_paused = true)]
async fn an_index_holds_every_value_of_an_object_once() {
    let (_script, _watch, running) =
        synced([labelled("a", "1", "x=1,y=2"), labelled("b", "1", "x=1"), map("none", "1")]).await;
    let values = |map: &ConfigMap| {
        let labels = map.metadata.labels.clone().unwrap_or_default();
        labels.into_values().flat_map(|value| [value.clone(), value]).collect::<Vec<_>>()
    };
    let index = running.informer.index("values", values).unwrap();
    assert_eq!(names(&index.get("1")), ["a", "b"]);
    assert_eq!(index.keys("2"), [Key::cluster("a")]);
    assert_eq!(index.get("3").len(), 0);
    let all: BTreeSet<String> = index.values().into_iter().collect();
    assert_eq!(all, BTreeSet::from(["1".to_owned(), "2".to_owned()]));
}

/// C11.8
#[tokio::test(start_paused = true)]
async fn an_empty_bucket_is_removed() {
    let (_script, watch, running) = synced([]).await;
    let index = running
        .informer
        .index("rv", |map: &ConfigMap| Some(map.resource_version().to_string()))
        .unwrap();
    for version in 2..20_000 {
        watch.modified(map("a", &version.to_string()));
        if version % 500 == 0 {
            quiet().await;
            assert!(index.values().len() <= 1);
        }
    }
    quiet().await;
    assert_eq!(index.values(), ["19999"]);
    watch.deleted(map("a", "20000"));
    quiet().await;
    assert_eq!(index.values(), Vec::<String>::new());
}

/// C11.9, C10.12
#[tokio::test(start_paused = true)]
async fn an_update_that_keeps_its_value_reads_only_the_two_states() {
    let (_script, watch, running) =
        synced((0..1000).map(|n| labelled(&format!("o{n}"), "1", "app=web"))).await;
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let index = running
        .informer
        .index("app", move |map: &ConfigMap| {
            counter.fetch_add(1, Ordering::Relaxed);
            map.label("app").map(|value| value.into_owned())
        })
        .unwrap();
    assert_eq!(asked.swap(0, Ordering::Relaxed), 1000);
    let before = running.informer.snapshot();
    watch.modified(labelled("o5", "2", "app=web"));
    quiet().await;
    assert_eq!(asked.load(Ordering::Relaxed), 2, "old and new, not a thousand");
    assert_eq!(index.keys("web").len(), 1000);
    assert_eq!(before.by(&index, "web").len(), 1000);
}

/// C11.10, C11.11
#[tokio::test(start_paused = true)]
async fn an_index_can_be_added_while_running_but_not_twice_and_not_after_the_end() {
    let (_script, watch, mut running) = synced([labelled("a", "1", "app=web")]).await;
    let index = by_label(&running.informer, "app");
    assert_eq!(names(&index.get("web")), ["a"], "what was there is indexed");
    let again = running.informer.index("app", |_: &ConfigMap| Some(7u32));
    assert!(matches!(again, Err(Error::IndexExists(name)) if name == "app"));
    let builtin = running.informer.index("namespace", |_: &ConfigMap| Some(7u32));
    assert!(matches!(builtin, Err(Error::IndexExists(_))));
    watch.added(labelled("b", "2", "app=web"));
    quiet().await;
    assert_eq!(names(&index.get("web")), ["a", "b"], "nothing was changed by the failure");
    running.stopped().await;
    let late = running.informer.index("late", |_: &ConfigMap| Some(7u32));
    assert!(matches!(late, Err(Error::Stopped(_))));
}

/// C11.12, C31.8
#[tokio::test(start_paused = true)]
async fn an_index_function_that_panics_leaves_out_one_object() {
    let metrics = Metrics::new();
    let mut options = options("o");
    options.metrics = Some(metrics.clone());
    let (script, running) = listing(options);
    script.expect_list().answers([map("bad", "1"), map("good", "1"), map("worse", "1")], "1");
    let watch = script.expect_watch();
    let index = running
        .informer
        .index("fragile", |map: &ConfigMap| match map.name() {
            "bad" => panic!("no good"),
            "worse" => panic!("even worse"),
            name => Some(name.to_owned()),
        })
        .unwrap();
    quiet().await;
    let mut values = index.values();
    values.sort();
    assert_eq!((values, running.informer.snapshot().len()), (vec!["good".to_owned()], 3));
    let failures = "informer_index_failures_total{name=\"o\",group=\"\",version=\"v1\",resource=\"configmaps\"}";
    assert_eq!(metrics.value(failures), Some(2.0));
    watch.modified(map("worse", "2")).added(map("fine", "3"));
    quiet().await;
    assert_eq!(names(&index.get("fine")), ["fine"]);
}

/// C11.13, C11.14
#[tokio::test(start_paused = true)]
async fn index_values_can_be_of_any_type() {
    let (_script, _watch, running) = synced([map("ns/a", "1"), map("ns/b", "1")]).await;
    let index = running
        .informer
        .index("place", |map: &ConfigMap| Some((map.namespace()?.to_owned(), map.uid().len())))
        .unwrap();
    assert_eq!(index.get(&("ns".to_owned(), "uid-ns/a".len())).len(), 2);
}

/// C11.15
#[tokio::test(start_paused = true)]
async fn several_indexes_are_intersected_in_one_state() {
    let objects = (0..100)
        .map(|n| labelled(&format!("o{n:02}"), "1", &format!("two={},three={}", n % 2, n % 3)));
    let (_script, _watch, running) = synced(objects).await;
    let (two, three) = (by_label(&running.informer, "two"), by_label(&running.informer, "three"));
    let snapshot = running.informer.snapshot();
    let both = snapshot.by_all([&two.is("0".into()), &three.is("0".into())]);
    assert_eq!(names(&both)[..3], ["o00", "o06", "o12"]);
    assert_eq!(both.len(), 17);
    assert_eq!(snapshot.by_all([&two.is("0".into()), &three.is("9".into())]).len(), 0);
    assert_eq!(snapshot.by_all([]).len(), 100);
}

/// C11.16, C12.2
#[tokio::test(start_paused = true)]
async fn the_objects_of_a_namespace_are_found_without_an_index() {
    let objects = [map("a/1", "1"), map("a-b/1", "1"), map("ab/1", "1"), map("a/2", "1")];
    let (_script, _watch, running) = synced(objects).await;
    let snapshot = running.informer.snapshot();
    let found: Vec<_> = snapshot.in_namespace("a").map(|(_, object)| object.clone()).collect();
    assert_eq!(names(&found), ["a/1", "a/2"]);
    let lister = running.informer.lister();
    let listed = lister.list_in("a", &Selector::everything()).unwrap();
    assert_eq!(names(&listed), ["a/1", "a/2"]);
    assert_eq!(lister.list_in("a", &Selector::nothing()).unwrap().len(), 0);
}

/// C11.17, R71, C13.22
#[tokio::test(start_paused = true)]
async fn two_reads_of_an_unchanged_object_are_the_same_allocation() {
    let (script, watch, running) = synced([map("a", "1"), map("b", "1")]).await;
    let store = || running.informer.snapshot();
    let key = Key::cluster("a");
    let first = store().get(&key).cloned().unwrap();
    watch.modified(map("b", "2"));
    quiet().await;
    assert!(Arc::ptr_eq(&first, store().get(&key).unwrap()));
    assert!(Arc::ptr_eq(&first, &store().list()[0]));
    // A relist with the same version keeps it too.
    watch.error(410, "Expired");
    script.expect_list().answers([map("a", "1"), map("b", "3")], "3");
    script.expect_watch();
    tokio::time::sleep(5 * SECOND).await;
    assert!(Arc::ptr_eq(&first, store().get(&key).unwrap()));
}

/// C11.18, C31.6
#[test]
fn handles_can_be_shared_and_offer_no_way_to_write() {
    fn shared<T: Send + Sync + Clone>() {}
    shared::<Informer<ConfigMap>>();
    shared::<headwater_client::Snapshot<ConfigMap>>();
    shared::<headwater_client::Index<ConfigMap, String>>();
    shared::<headwater_client::Lister<ConfigMap>>();
    shared::<headwater_client::workqueue::Queue<Key>>();
    shared::<Metrics>();
}

/// C11.19: each reader holds a snapshot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_keep_snapshots_do_not_stop_the_writer() {
    let (script, running) = listing(options("o"));
    script.expect_list().answers((0..2000).map(|n| map(&format!("o{n:04}"), "1")), "1");
    let watch = script.expect_watch();
    running.informer.synced().await.unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..8)
        .map(|_| {
            let (informer, over) = (running.informer.clone(), Arc::clone(&over));
            std::thread::spawn(move || {
                let mut held = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    let snapshot = informer.snapshot();
                    assert_eq!(snapshot.list().len(), 2000);
                    held.push(snapshot);
                    held.truncate(4);
                }
            })
        })
        .collect();
    for version in 2..3000 {
        watch.modified(map(&format!("o{:04}", version % 2000), &version.to_string()));
    }
    running.informer.wait_for_rv(&"2999".into(), PATIENCE).await.unwrap();
    over.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.join().unwrap();
    }
}

/// C11.21
#[tokio::test(start_paused = true)]
async fn waiting_for_a_version_ends_with_an_event_a_bookmark_or_the_deadline() {
    let (_script, watch, mut running) = synced([]).await;
    let informer = running.informer.clone();
    informer.wait_for_rv(&"1".into(), SECOND).await.unwrap();
    let late = informer.wait_for_rv(&"5".into(), 10 * SECOND).await;
    assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
    let bad = informer.wait_for_rv(&"abc".into(), SECOND).await;
    assert!(matches!(bad, Err(Error::BadVersion(_))));
    let target: ResourceVersion = "7".into();
    let (reached, ()) = tokio::join!(informer.wait_for_rv(&target, 60 * SECOND), async {
        quiet().await;
        watch.bookmark("9");
    });
    reached.unwrap();
    let (read, ()) = tokio::join!(
        async {
            informer.wait_for_rv(&"10".into(), 60 * SECOND).await?;
            informer.lister().get_key(&Key::cluster("mine"))
        },
        async {
            quiet().await;
            watch.added(map("mine", "10"));
        }
    );
    assert_eq!(read.unwrap().unwrap().resource_version(), "10".into());
    let (ended, _) = tokio::join!(
        async { informer.wait_for_rv(&"99".into(), 60 * SECOND).await },
        running.stopped()
    );
    assert!(matches!(ended, Err(Error::Stopped(_))), "{ended:?}");
}

/// C12.1
#[tokio::test(start_paused = true)]
async fn a_lister_returns_objects_and_reports_missing_ones() {
    let (_script, _watch, running) = synced([map("ns/a", "1"), map("b", "1")]).await;
    let lister = running.informer.lister();
    assert!(lister.get("ns", "a").unwrap().is_some());
    assert!(lister.get("ns", "b").unwrap().is_none());
    assert!(lister.get("", "b").unwrap().is_some());
    assert!(lister.get_key(&Key::cluster("b")).unwrap().is_some());
}

/// C12.3, C12.4, C12.9
#[tokio::test(start_paused = true)]
async fn selectors_select_as_the_server_does() {
    let objects = [
        labelled("a", "1", "app=web,env=prod"),
        labelled("b", "1", "app=db"),
        map("c", "1"),
        labelled("d", "1", "app=web,legacy=yes"),
    ];
    let (_script, _watch, running) = synced(objects).await;
    let lister = running.informer.lister();
    let check = |selector: &str, expected: &[&str]| {
        let selected = lister.list(&selector.parse().unwrap()).unwrap();
        assert_eq!(names(&selected), expected, "{selector}");
    };
    check("", &["a", "b", "c", "d"]);
    check("app=web", &["a", "d"]);
    check("app!=web", &["b", "c"]);
    check("app in (web,db),!legacy", &["a", "b"]);
    check("env notin (prod)", &["b", "c", "d"]);
    check("app", &["a", "b", "d"]);
    check("!app", &["c"]);
    assert_eq!(lister.list(&Selector::nothing()).unwrap().len(), 0);
    assert!("a in (".parse::<Selector>().is_err());
    assert!("".parse::<Selector>().unwrap().is_everything());
}

/// C12.6
#[tokio::test(start_paused = true)]
async fn a_lister_refuses_to_read_before_the_initial_state_is_complete() {
    let (script, running) = listing(options("slow"));
    let lister = running.informer.lister();
    let early = lister.list(&Selector::everything());
    assert!(matches!(&early, Err(Error::NotSynced { informer, .. }) if informer == "slow"));
    assert_eq!(running.informer.snapshot().len(), 0, "a snapshot can be read at any time");
    script.expect_list().answers([map("a", "1")], "1");
    script.expect_watch();
    running.informer.synced().await.unwrap();
    assert_eq!(lister.list(&Selector::everything()).unwrap().len(), 1);
}

#[derive(Clone, Debug)]
enum Op {
    Set(u8, u8),
    Delete(u8),
    Relist(Vec<(u8, u8)>),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..12u8, 0..4u8).prop_map(|(name, value)| Op::Set(name, value)),
        2 => (0..12u8).prop_map(Op::Delete),
        1 => prop::collection::btree_map(0..12u8, 0..4u8, 0..8)
            .prop_map(|all| Op::Relist(all.into_iter().collect())),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// R70, R60, R62: an index equals a filter, the store equals the model, and the received
    /// changes add up to the store.
    #[test]
    fn any_history_leaves_store_indexes_and_handlers_equal_to_the_model(ops in prop::collection::vec(op(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let (script, running) = listing(options("o"));
            script.expect_list().answers([], "1");
            let mut watch = script.expect_watch();
            running.informer.synced().await.unwrap();
            let index = by_label(&running.informer, "v");
            let folded = Arc::new(std::sync::Mutex::new(std::collections::BTreeMap::new()));
            let fold = Arc::clone(&folded);
            let _handler = running.informer.for_each(
                headwater_client::informer::Subscribe::named("fold"),
                move |change| {
                    use headwater_client::Change;
                    let mut folded = fold.lock().unwrap();
                    match change {
                        Change::Added { object, .. } => {
                            assert!(folded.insert(object.key(), object.resource_version()).is_none());
                        }
                        Change::Updated { new, .. } => {
                            assert!(folded.insert(new.key(), new.resource_version()).is_some());
                        }
                        Change::Deleted(gone) => assert!(folded.remove(gone.key()).is_some()),
                        Change::Synced => {}
                    }
                },
            ).unwrap();
            let mut model = std::collections::BTreeMap::new();
            let mut version = 1;
            let object = |name: u8, value: u8, version: u32| {
                labelled(&format!("o{name}"), &version.to_string(), &format!("v={value}"))
            };
            for op in ops {
                version += 1;
                match op {
                    Op::Set(name, value) => {
                        let new = object(name, value, version);
                        match model.insert(name, value) {
                            Some(_) => watch.modified(new),
                            None => watch.added(new),
                        };
                    }
                    Op::Delete(name) => {
                        if let Some(value) = model.remove(&name) {
                            watch.deleted(object(name, value, version));
                        }
                    }
                    Op::Relist(all) => {
                        model = all.into_iter().collect();
                        watch.error(410, "Expired");
                        let items: Vec<_> =
                            model.iter().map(|(name, value)| object(*name, *value, version)).collect();
                        script.expect_list().answers(items, &version.to_string());
                        watch = script.expect_watch();
                        tokio::time::sleep(200 * SECOND).await;
                    }
                }
            }
            quiet().await;
            let expected: Vec<String> = {
                let mut keys: Vec<String> = model.keys().map(|name| format!("o{name}")).collect();
                keys.sort();
                keys
            };
            assert_eq!(running.keys(), expected);
            let folded: Vec<String> = folded.lock().unwrap().keys().map(Key::to_string).collect();
            assert_eq!(folded, expected);
            for value in 0..4u8 {
                let filtered: BTreeSet<String> = model
                    .iter()
                    .filter(|(_, v)| **v == value)
                    .map(|(name, _)| format!("o{name}"))
                    .collect();
                let found: BTreeSet<String> =
                    names(&index.get(value.to_string().as_str())).into_iter().collect();
                assert_eq!(found, filtered);
            }
        });
    }
}
