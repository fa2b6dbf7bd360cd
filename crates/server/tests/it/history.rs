//! The past of objects on the wire: retained versions, and times in place of revisions.

use std::sync::Arc;

use headwater_json::{Value, json};
use headwater_store::{Memory, MemoryOptions};

use crate::api::{Api, CMS, NOW, config_map};

const ONE: &str = "/api/v1/namespaces/ns/configmaps/one";

fn map(value: &str) -> Value {
    let mut object = config_map("one");
    object["data"] = json!({ "k": value });
    object
}

/// Creates, changes, deletes and creates an object; returns its resourceVersions, oldest first.
async fn four_versions(api: &Api) -> Vec<String> {
    let version =
        |object: &Value| object["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let mut all = vec![version(&api.post(CMS, &map("1")).await.json())];
    all.push(version(&api.put(ONE, &map("2")).await.json()));
    api.delete(ONE).await.is(200, "");
    all.push(version(&api.post(CMS, &map("3")).await.json()));
    all
}

fn items(history: &Value) -> Vec<(String, Value)> {
    let items = history["items"].as_array().unwrap().iter();
    items
        .map(|item| {
            (item["type"].as_str().unwrap().to_owned(), item["object"]["data"]["k"].clone())
        })
        .collect()
}

#[tokio::test]
async fn the_versions_of_an_object_are_newest_first_over_deletions() {
    let api = Api::start().await;
    let written = four_versions(&api).await;
    let history = api.get(&format!("{ONE}?history=true")).await.json();
    assert_eq!(
        (&history["kind"], &history["apiVersion"]),
        (&json!("History"), &json!("history.headwater.dev/v1"))
    );
    let word = |text: &str, value: Value| (text.to_owned(), value);
    assert_eq!(
        items(&history),
        [
            word("ADDED", json!("3")),
            word("DELETED", Value::Null),
            word("MODIFIED", json!("2")),
            word("ADDED", json!("1")),
        ]
    );
    let newest = &history["items"][0];
    assert_eq!(newest["resourceVersion"], written[2].as_str());
    assert_eq!(newest["object"]["metadata"]["resourceVersion"], written[2].as_str());
    assert_eq!(newest["object"]["kind"], "ConfigMap");
    assert!(newest["time"].as_str().is_some());
}

#[tokio::test]
async fn a_limit_a_bound_and_a_continuation_select_versions() {
    let api = Api::start().await;
    let written = four_versions(&api).await;
    let first = api.get(&format!("{ONE}?history=true&limit=2")).await.json();
    assert_eq!(items(&first).len(), 2);
    let rest = first["metadata"]["continue"].as_str().unwrap();
    let second = api.get(&format!("{ONE}?history=true&resourceVersion={rest}")).await.json();
    assert_eq!(
        items(&second).iter().map(|(_, k)| k.as_str()).collect::<Vec<_>>(),
        [Some("2"), Some("1")]
    );
    assert!(second["metadata"]["continue"].is_null());
    let at = &written[0];
    let upto = api.get(&format!("{ONE}?history=true&resourceVersion={at}")).await.json();
    assert_eq!(items(&upto), [("ADDED".to_owned(), json!("1"))]);
    for wrong in ["limit=0", "limit=501", "limit=x", "resourceVersion=soon"] {
        api.get(&format!("{ONE}?history=true&{wrong}")).await.is(400, "BadRequest");
    }
    api.get("/api/v1/namespaces/ns/configmaps/none?history=true").await.is(404, "NotFound");
    api.get(&format!("{ONE}?history=true&resourceVersion=999999")).await.is(504, "Timeout");
}

#[tokio::test]
async fn what_is_forgotten_is_410_with_what_is_still_there() {
    let store = MemoryOptions { history_bytes_max: 50_000, ..MemoryOptions::default() };
    let api = Api::in_namespace(Arc::new(Memory::new(store))).await;
    let written = four_versions(&api).await;
    for n in 0..200 {
        api.put(ONE, &map(&n.to_string())).await.is(200, "");
    }
    let gone = api.get(&format!("{ONE}?history=true&resourceVersion={}", written[0])).await;
    let gone = gone.json();
    assert_eq!((&gone["code"], &gone["reason"]), (&json!(410), &json!("Expired")));
    let message = gone["message"].as_str().unwrap();
    assert!(message.contains("the oldest one is revision "), "{message}");
    let before = "2001-01-01T00:00:00Z";
    for path in [
        format!("{ONE}?history=true&resourceVersion={before}"),
        format!("{CMS}?resourceVersionMatch=Exact&resourceVersion={before}"),
    ] {
        api.get(&path).await.is(410, "Expired");
    }
    let kept = api.get(&format!("{ONE}?history=true")).await.json();
    assert!(!items(&kept).is_empty());
}

#[tokio::test]
async fn a_list_at_a_time_is_the_state_of_the_newest_revision_then() {
    let store = MemoryOptions { clock: Arc::new(Later::default()), ..MemoryOptions::default() };
    let api = Api::in_namespace(Arc::new(Memory::new(store))).await;
    four_versions(&api).await;
    let history = api.get(&format!("{ONE}?history=true")).await.json();
    let mut seen = Vec::new();
    for item in history["items"].as_array().unwrap() {
        let time = item["time"].as_str().unwrap();
        let path = format!("{CMS}?resourceVersionMatch=Exact&resourceVersion={time}");
        let list = api.get(&path).await.json();
        let values = list["items"].as_array().unwrap().iter();
        seen.push(values.map(|object| object["data"]["k"].clone()).collect::<Vec<_>>());
    }
    assert_eq!(seen, [vec![json!("3")], vec![], vec![json!("2")], vec![json!("1")]]);
    // Without a match, a time is as wrong as in Kubernetes.
    api.get(&format!("{CMS}?resourceVersion={NOW}")).await.is(400, "BadRequest");
}

/// A clock that is a second later each time.
#[derive(Default)]
struct Later(std::sync::atomic::AtomicI64);

impl headwater_api::Clock for Later {
    fn now(&self) -> jiff::Timestamp {
        let second = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        jiff::Timestamp::from_second(1_700_000_000 + second).unwrap()
    }
}

#[tokio::test]
async fn versions_need_the_right_to_get_the_object() {
    let api = Api::start().await;
    four_versions(&api).await;
    let asked = format!("GET {ONE}?history=true");
    api.as_user("jane", &[]).send(&asked, "").await.is(403, "Forbidden");
}
