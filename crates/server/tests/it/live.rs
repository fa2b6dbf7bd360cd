//! The resources of `headwater.dev`: who watches what, and which requests run.

use headwater_json::{Value, json};

use crate::api::{Api, CMS, config_map};

const WATCHERS: &str = "/apis/headwater.dev/v1alpha1/watchers";
const REQUESTS: &str = "/apis/headwater.dev/v1alpha1/requests";
const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";

/// The watchers of ConfigMaps.
async fn watchers(api: &Api) -> Vec<Value> {
    // A sample is fresh for a moment.
    tokio::time::advance(std::time::Duration::from_millis(100)).await;
    let target = format!("{WATCHERS}?fieldSelector=spec.resource%3Dconfigmaps");
    let list = api.get(&target).await.json();
    list["items"].as_array().unwrap().clone()
}

/// S11.30
#[tokio::test(start_paused = true)]
async fn a_watcher_is_listed_with_its_user_its_selection_and_its_position() {
    let api = Api::start().await;
    assert_eq!(watchers(&api).await, Vec::<Value>::new());
    let target =
        format!("{CMS}?watch=true&resourceVersion=0&labelSelector=a%3Db&timeoutSeconds=900");
    let mut watch = api.watch(&target).await;
    let created = api.post(CMS, &labelled()).await.json();
    assert_eq!(watch.take(1).await, "ADDED/one");
    let found = watchers(&api).await;
    let [watcher] = &found[..] else { panic!("{found:?}") };
    assert_eq!(watcher["spec"]["user"], "kubernetes-admin");
    assert_eq!(watcher["spec"]["resource"], "configmaps");
    assert_eq!(watcher["spec"]["namespace"], "ns");
    assert_eq!(watcher["spec"]["selector"], "a=b");
    assert_eq!(watcher["status"]["position"], created["metadata"]["resourceVersion"]);
    assert_eq!(
        (&watcher["status"]["events"], &watcher["status"]["lag"]),
        (&json!(1), &json!("0s"))
    );
    assert_eq!(watcher["status"]["readsFrom"], "view");
    assert!(watcher["status"]["bytes"].as_u64().unwrap() > 100, "{watcher}");
    drop(watch);
    assert_eq!(watchers(&api).await, Vec::<Value>::new());
}

fn labelled() -> Value {
    let mut object = config_map("one");
    object["metadata"]["labels"] = json!({ "a": "b" });
    object
}

/// S11.30
#[tokio::test(start_paused = true)]
async fn events_that_a_watcher_has_not_read_are_counted_and_age() {
    let api = Api::start().await;
    let start = "sendInitialEvents=false&resourceVersionMatch=NotOlderThan&timeoutSeconds=900";
    let mut watch = api.watch(&format!("{CMS}?watch=true&{start}")).await;
    api.config_maps(&["a", "b", "c"]).await;
    tokio::time::advance(std::time::Duration::from_secs(3)).await;
    let found = watchers(&api).await;
    assert_eq!(found[0]["status"]["pendingEvents"], 3, "{found:?}");
    assert_eq!(found[0]["status"]["lag"], "3.1s");
    assert_eq!(watch.take(3).await, "ADDED/a ADDED/b ADDED/c");
    let found = watchers(&api).await;
    assert_eq!(found[0]["status"]["pendingEvents"], 0, "{found:?}");
}

/// S11.30
#[tokio::test(start_paused = true)]
async fn a_watch_on_watchers_sees_them_come_and_go() {
    let api = Api::start().await;
    let target = format!("{WATCHERS}?watch=true&fieldSelector=spec.resource%3Dconfigmaps");
    let mut seen = api.watch(&target).await;
    let watch = api.watch(&format!("{CMS}?watch=true&timeoutSeconds=900")).await;
    let came = seen.take(1).await;
    assert!(came.starts_with("ADDED/w"), "{came}");
    drop(watch);
    assert_eq!(seen.take(1).await, came.replace("ADDED", "DELETED"));
}

/// S11.31
#[tokio::test(start_paused = true)]
async fn a_request_in_flight_is_listed_with_its_user_and_level() {
    let api = Api::start().await;
    let jane = api.as_user("jane", &["system:masters"]);
    let post = format!("POST {CMS}\nContent-Type: application/json");
    let mut slow = jane.send_slowly(&post, "{}");
    slow.runs().await;
    let list = api.get(&format!("{REQUESTS}?fieldSelector=spec.user%3Djane")).await.json();
    let [request] = &list["items"].as_array().unwrap()[..] else { panic!("{list}") };
    assert_eq!(request["spec"]["verb"], "create");
    assert_eq!(request["spec"]["path"], CMS);
    assert_eq!(request["spec"]["priorityLevel"], "exempt");
    assert_eq!(request["status"]["state"], "Running");
    slow.finish().await;
}

/// S11.30, S11.31
#[tokio::test(start_paused = true)]
async fn live_resources_have_columns_and_cannot_be_written() {
    let api = Api::start().await;
    let headings = |table: Value| {
        let columns = table["columnDefinitions"].as_array().unwrap().clone();
        let names = columns.iter().filter(|column| column["priority"] == 0);
        names.map(|column| column["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let table = api.accept(WATCHERS, TABLE).await.json();
    let expected =
        "Name User Client Resource Namespace Selector From Position Pending Lag Bytes Age";
    assert_eq!(headings(table).join(" "), expected);
    let table = api.accept(REQUESTS, TABLE).await.json();
    assert_eq!(headings(table).join(" "), "Name User Verb Path Level State Time");
    api.post(WATCHERS, &json!({ "metadata": { "name": "w" } })).await.is(405, "");
    api.delete(&format!("{WATCHERS}/w1")).await.is(405, "");
    let jane = api.as_user("jane", &[]);
    assert_eq!(jane.send(&format!("GET {WATCHERS}"), "").await.code, 403);
}

/// S11.32
#[tokio::test(start_paused = true)]
async fn the_river_has_the_rates_of_users_and_levels_and_ends_with_its_reader() {
    let api = Api::start().await;
    let once = api.get("/debug/headwater/river").await.json();
    assert!(once["revision"].as_u64().unwrap() > 0, "{once}");
    assert!(once["applied"].as_u64() <= once["revision"].as_u64(), "{once}");
    assert_eq!(once["users"], json!([]), "nobody was looking");
    let level = |line: &Value, name: &str| {
        let found = line["levels"].as_array().unwrap().iter().find(|level| level["name"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {line}")).clone()
    };
    assert_eq!(level(&once, "exempt")["seats"], Value::Null);
    assert!(level(&once, "workload-low")["seats"].as_u64() > Some(0), "{once}");

    let mut lines = api.open("/debug/headwater/river?watch=1").await.into_body();
    assert_eq!(line(&mut lines).await["users"], json!([]));
    api.config_maps(&["a", "b"]).await;
    let next = line(&mut lines).await;
    let [user] = &next["users"].as_array().unwrap()[..] else { panic!("{next}") };
    assert_eq!((&user["user"], &user["level"]), (&json!("kubernetes-admin"), &json!("exempt")));
    assert!(user["writes"].as_f64().unwrap() > 0.0 && user["slowestMillis"].is_number(), "{user}");
    assert_eq!(user["reads"].as_f64(), Some(0.0));
    assert!(next["revision"].as_u64() > once["revision"].as_u64(), "{next}");
    drop(lines);
    let mut again = api.open("/debug/headwater/river?watch=1").await.into_body();
    assert_eq!(line(&mut again).await["users"], json!([]), "counted again from the beginning");
}

/// S11.32
#[tokio::test(start_paused = true)]
async fn readers_of_the_river_are_bounded_and_need_permission() {
    let api = Api::start().await;
    let mut open = Vec::new();
    for _ in 0..32 {
        open.push(api.open("/debug/headwater/river?watch=1").await);
    }
    api.get("/debug/headwater/river").await.is(429, "too many readers");
    open.pop();
    api.get("/debug/headwater/river").await.is(200, "revision");
    let refused = api.as_user("bob", &[]).send("GET /debug/headwater/river", "").await;
    let why = r#"forbidden: User "bob" cannot get path "/debug/headwater/river""#;
    refused.fails(403, "Forbidden", why);
}

/// The next line of a stream, which is one frame.
async fn line(body: &mut headwater_server::body::Body) -> Value {
    let frame = http_body_util::BodyExt::frame(body).await.unwrap().unwrap();
    let data = bytes::Bytes::from(frame.into_data().unwrap());
    headwater_json::parse(&data).unwrap().value
}

#[tokio::test(start_paused = true)]
async fn the_store_and_components_with_leases_have_a_health() {
    const COMPONENTS: &str = "/api/v1/componentstatuses";
    let api = Api::start().await;
    let list = api.get(COMPONENTS).await;
    list.lists("etcd-0");
    let healthy = json!([{"type": "Healthy", "status": "True", "message": "ok"}]);
    assert_eq!(list.json()["items"][0]["conditions"], healthy);
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "kube-scheduler"},
        "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15,
            "renewTime": "2020-01-01T00:00:00.000000Z"},
    });
    api.create("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", &lease).await;
    tokio::time::advance(std::time::Duration::from_millis(100)).await;
    let scheduler = api.get(&format!("{COMPONENTS}/scheduler")).await.json();
    assert_eq!(scheduler["conditions"][0]["status"], "False");
    api.get(&format!("{COMPONENTS}/controller-manager")).await.is(404, "");
}
