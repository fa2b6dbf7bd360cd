//! A cache that is behind the store, and values in the store that are not objects.

use std::sync::Arc;
use std::time::Duration;

use headwater_json::{Value, json};
use headwater_store::{Action, Guard, Key, Memory, Range, Store, Write};
use tokio::time::Instant;

use crate::api::{Api, CMS, config_map, version};
use crate::scripted_store::ScriptedStore;

fn data(name: &str, value: &str) -> Value {
    json!({ "metadata": { "name": name }, "data": { "k": value } })
}

fn at(mut object: Value, version: &str) -> Value {
    object["metadata"]["resourceVersion"] = version.into();
    object
}

/// S6.6
#[tokio::test(start_paused = true)]
async fn writes_and_gets_do_not_wait_for_the_cache() {
    let store = ScriptedStore::new();
    let api = Api::in_namespace(store.clone()).await;
    let (a, old) = (&format!("{CMS}/a"), &format!("{CMS}/old"));
    let first = version(&api.create(CMS, &data("old", "0")).await);
    store.hold(true);
    let begun = Instant::now();

    // An object that the cache lacks.
    let made = version(&api.create(CMS, &data("a", "1")).await);
    assert_eq!(api.get(a).await.is(200, "").json()["data"]["k"], "1");
    api.post(CMS, &data("a", "2")).await.fails(
        409,
        "AlreadyExists",
        "configmaps \"a\" already exists",
    );
    let dry = api.post(&format!("{CMS}?dryRun=All"), &data("a", "2")).await;
    assert_eq!(dry.code, 409, "{}", dry.text());
    let updated = api.put(a, &at(data("a", "3"), &made)).await.is(200, "").json();
    assert_eq!(api.put(a, &at(data("a", "4"), &made)).await.code, 409);
    api.put(a, &at(data("a", "4"), &version(&updated))).await.is(200, "");
    assert_eq!(
        api.merge(a, &json!({ "data": { "l": "5" } })).await.is(200, "").json()["data"],
        json!({ "k": "4", "l": "5" })
    );
    api.delete(a).await.is(200, "");
    assert_eq!(api.get(a).await.code, 404);
    assert_eq!(api.delete(a).await.code, 404);
    assert_eq!(api.merge(a, &json!({ "data": { "l": "6" } })).await.code, 404);

    // An object that the cache has in an older version.
    let second = version(&api.put(old, &at(data("old", "1"), &first)).await.is(200, "").json());
    assert_eq!(api.put(old, &at(data("old", "2"), &first)).await.code, 409);
    let third = version(&api.put(old, &at(data("old", "2"), &second)).await.is(200, "").json());
    // For the cached version this changes nothing.
    let back = api.merge(old, &json!({ "data": { "k": "0" } })).await.is(200, "").json();
    assert_eq!(back["data"]["k"], "0");
    assert_ne!(version(&back), third);
    assert_eq!(api.get(old).await.is(200, "").json()["data"]["k"], "0");
    let options = json!({ "preconditions": { "resourceVersion": version(&back) } });
    api.delete_with(old, &options).await.is(200, "");
    let again = api.create(CMS, &data("old", "7")).await;
    let options = json!({ "preconditions": { "uid": again["metadata"]["uid"] } });
    api.delete_with(old, &options).await.is(200, "");
    assert_eq!(api.get(old).await.code, 404);

    // A namespace that the cache lacks.
    api.create("/api/v1/namespaces", &json!({ "metadata": { "name": "late" } })).await;
    api.create("/api/v1/namespaces/late/configmaps", &config_map("b")).await;
    let missing = api.post("/api/v1/namespaces/none/configmaps", &config_map("b")).await;
    missing.fails(404, "NotFound", "namespaces \"none\" not found");

    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    tokio::time::sleep(Duration::from_secs(10)).await;
    api.create(CMS, &config_map("c")).await;
    store.hold(false);
    let names = |list: Value| -> Vec<String> {
        let items = list["items"].as_array().unwrap();
        items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(api.get(CMS).await.is(200, "").json()), ["c"]);
}

/// S6.6
#[tokio::test(start_paused = true)]
async fn writes_in_a_namespace_with_quotas_do_not_wait_for_the_cache() {
    const QUOTAS: &str = "/api/v1/namespaces/ns/resourcequotas";
    let store = ScriptedStore::new();
    let api = Api::in_namespace(store.clone()).await;
    let hard = json!({ "configmaps": "3", "services": "1" });
    let quota = json!({ "metadata": { "name": "q" }, "spec": { "hard": hard } });
    api.create(QUOTAS, &quota).await;
    let begun = Instant::now();
    api.create(CMS, &data("a", "1")).await;
    api.create(CMS, &data("gone", "1")).await;
    store.hold(true);

    // The cached state has two, the store as well, then three.
    api.create(CMS, &data("b", "1")).await;
    let refused = api.post(CMS, &data("c", "1")).await;
    assert_eq!(refused.code, 403, "{}", refused.text());
    let why =
        "exceeded quota: q, requested: configmaps=1, used: configmaps=3, limited: configmaps=3";
    assert!(refused.text().contains(why), "{}", refused.text());
    api.delete(&format!("{CMS}/gone")).await.is(200, "");
    api.create(CMS, &data("c", "1")).await;
    assert_eq!(api.post(CMS, &data("d", "1")).await.code, 403);
    api.merge(&format!("{CMS}/c"), &json!({ "data": { "k": "2" } })).await.is(200, "");
    let shown = api.get(&format!("{QUOTAS}/q")).await.is(200, "").json();
    assert_eq!(shown["status"]["used"], json!({ "configmaps": "3", "services": "0" }));
    let port = json!([{ "port": 80 }]);
    let service = |name: &str| json!({ "metadata": { "name": name }, "spec": { "ports": port } });
    let services = "/api/v1/namespaces/ns/services";
    api.create(services, &service("s")).await;
    assert_eq!(api.post(services, &service("t")).await.code, 403);
    api.delete(&format!("{services}/s")).await.is(200, "");
    api.create(services, &service("t")).await;
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    store.hold(false);
    let list = api.get(CMS).await.is(200, "").json();
    assert_eq!(list["items"].as_array().unwrap().len(), 3);
}

/// S6.6
#[tokio::test(start_paused = true)]
async fn writes_of_services_do_not_wait_for_the_cache() {
    const SERVICES: &str = "/api/v1/namespaces/ns/services";
    let store = ScriptedStore::new();
    let api = Api::in_namespace(store.clone()).await;
    let service = |name: &str, ip: &str, port: i64| {
        json!({
            "metadata": { "name": name },
            "spec": {
                "type": "NodePort", "clusterIP": ip, "ports": [{ "port": 80, "nodePort": port }],
            },
        })
    };
    api.create(SERVICES, &service("old", "10.96.0.50", 30_050)).await;
    store.hold(true);
    let begun = Instant::now();
    let claims = async || {
        let range = |prefix: &str| Range { prefix: prefix.into(), ..Range::default() };
        let ips = store.range(range("/registry/networking.k8s.io/ipaddresses/")).await.unwrap();
        let ports = store.range(range("/registry/headwater/nodeports/")).await.unwrap();
        let records = ips.records.into_iter().chain(ports.records);
        let name = |key: Key| key.as_str().rsplit('/').next().unwrap().to_owned();
        records.map(|record| name(record.key)).collect::<Vec<_>>().join(" ")
    };
    let before = claims().await;
    assert!(before.contains("10.96.0.50") && before.contains("30050"), "{before}");

    // Addresses of a Service that the cache lacks, and of one that it still has.
    api.create(SERVICES, &service("a", "10.96.0.60", 30_060)).await;
    let taken = api.post(SERVICES, &service("b", "10.96.0.60", 30_061)).await;
    assert_eq!(taken.code, 422, "{}", taken.text());
    assert!(taken.text().contains("provided IP is already allocated"), "{}", taken.text());
    let taken = api.post(SERVICES, &service("b", "10.96.0.61", 30_060)).await;
    assert!(taken.text().contains("provided port is already allocated"), "{}", taken.text());
    api.delete(&format!("{SERVICES}/old")).await.is(200, "");
    api.create(SERVICES, &service("b", "10.96.0.50", 30_050)).await;
    api.create(
        SERVICES,
        &json!({
            "metadata": { "name": "any" }, "spec": { "ports": [{ "port": 80 }] },
        }),
    )
    .await;
    let spec = json!({
        "type": "ClusterIP", "externalTrafficPolicy": null, "ports": [{ "port": 80 }],
    });
    let one = json!({ "spec": spec });
    api.merge(&format!("{SERVICES}/a"), &one).await.is(200, "");
    let held = claims().await;
    assert!(held.contains("30050") && !held.contains("30060"), "{held}");
    for name in ["a", "b", "any"] {
        api.delete(&format!("{SERVICES}/{name}")).await.is(200, "");
    }
    let without = |names: &str| names.replace("10.96.0.50 ", "").replace(" 30050", "");
    assert_eq!(claims().await, without(&before));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    store.hold(false);
    api.create(SERVICES, &service("c", "10.96.0.60", 30_060)).await;
}

/// B268, S6.22
#[tokio::test(start_paused = true)]
async fn an_unreadable_value_fails_only_reads_of_its_key() {
    let store = Arc::new(Memory::default());
    let api = Api::in_namespace(store.clone()).await;
    let a = api.create(CMS, &data("a", "1")).await;
    let put = async |name: &str, value: &str| {
        let key = Key::new(format!("/registry/core/configmaps/ns/{name}"));
        let action = Action::Put { value: value.to_owned().into(), ttl: None };
        store.commit(Write::one(key, Guard::Absent, action)).await.unwrap();
    };
    let impostor = r#"{"kind":"ConfigMap","metadata":{"name":"a","namespace":"ns"}}"#;
    for (n, value) in
        ["", "nonsense", "{}", "{\"metadata\":", "k8s\0\n", impostor].iter().enumerate()
    {
        put(&format!("broken-{n}"), value).await;
    }
    for api in [&api, &Api::over(store.clone()).await] {
        let answer = api.get(CMS).await;
        let warning = "6 stored values of this resource cannot be read and are omitted";
        assert!(answer.header("warning").contains(warning), "{}", answer.header("warning"));
        let list = answer.is(200, "").json();
        assert_eq!(list["items"].as_array().unwrap().len(), 1, "{list}");
        let found = api.get(&format!("{CMS}/a")).await.is(200, "").json();
        assert_eq!(
            (&found["data"], &found["metadata"]["uid"]),
            (&a["data"], &a["metadata"]["uid"])
        );
        for n in 0..6 {
            let (name, object) = (format!("broken-{n}"), format!("{CMS}/broken-{n}"));
            let key = format!("/registry/core/configmaps/ns/{name}");
            for answer in [
                api.get(&object).await,
                api.get(&format!("{object}?resourceVersion=0")).await,
                api.put(&object, &data(&name, "2")).await,
                api.merge(&object, &data(&name, "2")).await,
                api.delete(&object).await,
            ] {
                let why = format!("the stored value of {key} cannot be read");
                answer.fails(500, "StoreReadError", &why);
            }
            assert_eq!(api.post(CMS, &data(&name, "2")).await.code, 409);
        }
        api.merge(&format!("{CMS}/a"), &json!({ "metadata": { "labels": { "x": "y" } } }))
            .await
            .is(200, "");
        api.merge(&format!("{CMS}/a"), &json!({ "metadata": { "labels": null } }))
            .await
            .is(200, "");
        api.get("/readyz").await.is(200, "");
    }
}

/// S6.22
#[tokio::test(start_paused = true)]
async fn an_unreadable_value_can_be_removed_by_who_may_and_says_so() {
    const IGNORE: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";
    let store = Arc::new(Memory::default());
    let api = Api::in_namespace(store.clone()).await;
    let key = Key::new("/registry/core/configmaps/ns/broken");
    let put = Action::Put { value: "nonsense".into(), ttl: None };
    store.commit(Write::one(key.clone(), Guard::Absent, put)).await.unwrap();
    let rules = json!([{
        "apiGroups": [""], "resources": ["configmaps"], "verbs": ["delete", "get"],
    }]);
    let role = json!({ "metadata": { "name": "deletes" }, "rules": rules });
    let binding = json!({
        "metadata": { "name": "deletes" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "deletes" },
        "subjects": [{ "kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "u" }],
    });
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/ns";
    api.create(&format!("{rbac}/roles"), &role).await;
    api.create(&format!("{rbac}/rolebindings"), &binding).await;
    let broken = format!("{CMS}/broken");
    let unsafe_delete = format!("DELETE {broken}?{IGNORE}=true");
    assert_eq!(api.as_user("u", &[]).send(&unsafe_delete, "").await.code, 403);
    assert_eq!(api.delete(&broken).await.code, 500);
    let answer = api.send(&format!("{unsafe_delete}&propagationPolicy=Orphan"), "").await;
    assert_eq!(answer.code, 422, "{}", answer.text());
    assert!(store.get(&key).await.unwrap().is_some());
    let options = json!({ "kind": "DeleteOptions", "apiVersion": "v1", IGNORE: true });
    let answer = api.delete_with(&broken, &options).await.is(200, "").json();
    assert_eq!(answer["status"], "Success");
    assert_eq!(store.get(&key).await.unwrap(), None);
    assert_eq!(api.send(&unsafe_delete, "").await.code, 404);
    // It deletes an object that can be read like any other.
    let held = json!({ "metadata": { "name": "held", "finalizers": ["example.org/f"] } });
    api.create(CMS, &held).await;
    let object = format!("{CMS}/held");
    api.send(&format!("DELETE {object}?{IGNORE}=true"), "").await.is(200, "");
    assert!(api.get(&object).await.json()["metadata"]["deletionTimestamp"].is_string());
}

/// S5.1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cache_follows_the_store_while_every_thread_of_requests_is_blocked() {
    let store = Arc::new(Memory::default());
    let api = Api::in_namespace(store.clone()).await;
    let (block, blocked) = std::sync::mpsc::channel();
    let (mut workers, mut releases) = (tokio::task::JoinSet::new(), Vec::new());
    for _ in 0..2 {
        let (release, released) = std::sync::mpsc::channel::<()>();
        releases.push(release);
        let block = block.clone();
        workers.spawn(async move {
            block.send(()).unwrap();
            let _ = released.recv(); // until the sender is dropped
        });
    }
    for _ in 0..2 {
        blocked.recv_timeout(Duration::from_secs(60)).expect("a worker does not run");
    }
    let key = Key::new("/registry/core/configmaps/ns/a");
    let value = r#"{"metadata":{"name":"a","namespace":"ns"}}"#;
    let action = Action::Put { value: value.into(), ttl: None };
    let at = store.commit(Write::one(key, Guard::Absent, action)).await.unwrap().last;
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while api.server.cache().applied() < at && std::time::Instant::now() < deadline {
        std::thread::yield_now();
    }
    let applied = api.server.cache().applied();
    drop(releases);
    assert!(applied >= at, "the cache waits for the threads of requests");
}
