//! Watches: the option matrix, order, ends, bookmarks, selection changes, errors (S4).

use std::time::Duration;

use headwater_cache::Options as CacheOptions;
use headwater_json::{Value, json};
use headwater_server::{Limits, Settings};

use crate::api::{Api, CMS, PODS, Watch, config_map, labelled, pod, version, word};

/// The namespace of the matrix: `a` changed, `b` deleted and `d` created after `old`;
/// `now` is the version of `d`.
async fn changed() -> (Api, String, String) {
    let api = Api::start().await;
    api.config_maps(&["a", "b", "c"]).await;
    let old = api.get(CMS).await.version();
    api.merge(&format!("{CMS}/a"), &json!({ "data": { "v": "2" } })).await.is(200, "");
    api.delete(&format!("{CMS}/b")).await.is(200, "");
    let now = version(&api.create(CMS, &config_map("d")).await);
    // A read at the latest state waits for the cache, so that version 0 shows it too.
    api.get(CMS).await.lists("a c d");
    (api, old, now)
}

/// S4.2, S4.3, S4.10, S11.21
#[tokio::test(start_paused = true)]
async fn a_watch_starts_according_to_its_options() {
    let initial = "ADDED/a ADDED/c ADDED/d";
    let marked = "ADDED/a ADDED/c ADDED/d MARK";
    let changes = "MODIFIED/a DELETED/b ADDED/d";
    // version, sendInitialEvents, match, bookmarks, events before a new object
    for (at, initial_events, matched, bookmarks, expected) in [
        ("", "", "", "", initial),
        ("", "", "", "true", marked),
        ("0", "", "", "", initial),
        ("0", "", "", "true", marked),
        ("old", "", "", "", changes),
        ("old", "", "", "true", changes),
        ("now", "", "", "", ""),
        ("now", "", "", "true", ""),
        ("", "true", "NotOlderThan", "true", marked),
        ("0", "true", "NotOlderThan", "true", marked),
        ("old", "true", "NotOlderThan", "true", marked),
        ("now", "true", "NotOlderThan", "true", marked),
        ("", "true", "NotOlderThan", "", initial),
        ("0", "true", "NotOlderThan", "false", initial),
        ("old", "true", "NotOlderThan", "", initial),
        ("", "false", "NotOlderThan", "true", ""),
        ("", "false", "NotOlderThan", "", ""),
        ("0", "false", "NotOlderThan", "true", ""),
        ("old", "false", "NotOlderThan", "true", changes),
        ("now", "false", "NotOlderThan", "", ""),
    ] {
        let (api, old, now) = changed().await;
        let at = match at {
            "old" => &old,
            "now" => &now,
            at => at,
        };
        let target = watch_target(at, initial_events, matched, bookmarks);
        let mut watch = api.watch(&target).await;
        let count = expected.split_whitespace().count();
        if initial_events != "false" {
            assert_eq!(watch.take(count).await, expected, "{target}");
        }
        // Created after the response started: the watch must receive it.
        api.create(CMS, &config_map("z")).await;
        if initial_events == "false" {
            assert_eq!(watch.take(count).await, expected, "{target}");
        }
        assert_eq!(watch.take(1).await, "ADDED/z", "{target}");
    }
}

fn watch_target(at: &str, initial_events: &str, matched: &str, bookmarks: &str) -> String {
    let mut target = format!("{CMS}?watch=true");
    for (key, value) in [
        ("resourceVersion", at),
        ("sendInitialEvents", initial_events),
        ("resourceVersionMatch", matched),
        ("allowWatchBookmarks", bookmarks),
    ] {
        if !value.is_empty() {
            target += &format!("&{key}={value}");
        }
    }
    target
}

/// S1.43, S4.2, S4.32
#[tokio::test(start_paused = true)]
async fn a_watch_with_invalid_options_is_rejected() {
    let api = Api::start().await;
    let needs = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
    let unless = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
    let only = "Unsupported value: \"Exact\": supported values: \"NotOlderThan\"";
    for (query, code, part) in [
        ("sendInitialEvents=true", 422, needs),
        ("sendInitialEvents=false", 422, needs),
        ("sendInitialEvents=true&resourceVersion=0&allowWatchBookmarks=true", 422, needs),
        ("resourceVersionMatch=NotOlderThan", 422, unless),
        ("resourceVersionMatch=NotOlderThan&resourceVersion=5", 422, unless),
        ("resourceVersionMatch=Exact&sendInitialEvents=true", 422, only),
        ("resourceVersionMatch=Exact&sendInitialEvents=true", 422, needs),
        ("resourceVersionMatch=Exact", 422, unless),
        ("resourceVersionMatch=Exact", 422, only),
        ("resourceVersion=abc", 400, ""),
        ("resourceVersion=-1", 400, ""),
        ("resourceVersion=1.5", 400, ""),
        ("timeoutSeconds=abc", 400, "strconv.ParseInt"),
        ("labelSelector=a%20b", 400, "unable to parse requirement"),
        ("fieldSelector=x%3D1", 400, "\"x\" is not a known field selector"),
    ] {
        let answer = api.get(&format!("{CMS}?watch=true&{query}")).await;
        let reason = if code == 422 { "Invalid" } else { "BadRequest" };
        let said = answer.fails(code, reason, "")["message"].as_str().unwrap().to_owned();
        assert!(said.contains(part), "{query}: {said}");
    }
}

/// S1.31, S4.1
#[tokio::test(start_paused = true)]
async fn any_word_but_false_or_0_watches() {
    let api = Api::start().await;
    api.config_maps(&["a"]).await;
    for value in ["true", "1", "maybe", "True", ""] {
        let mut watch = api.watch(&format!("{CMS}?watch={value}&timeoutSeconds=1")).await;
        assert_eq!(watch.take(1).await, "ADDED/a", "{value}");
    }
    for value in ["false", "0", "False", "FALSE"] {
        api.get(&format!("{CMS}?watch={value}")).await.lists("a");
    }
    api.get(&format!("{CMS}?watch=false&watch=true")).await.lists("a");
}

/// S4.7
#[tokio::test(start_paused = true)]
async fn a_watch_ignores_limit_and_continue() {
    let api = Api::start().await;
    api.config_maps(&["a", "b"]).await;
    let mut watch = api.watch(&format!("{CMS}?watch=true&limit=1&timeoutSeconds=5")).await;
    assert_eq!(watch.take(2).await, "ADDED/a ADDED/b");
    let target = format!("{CMS}?watch=true&continue=nonsense&timeoutSeconds=5");
    let mut watch = api.watch(&format!("{target}&resourceVersion=1")).await;
    assert_eq!(watch.take(2).await, "ADDED/a ADDED/b");
    // Without a version it requests initial events, which a token cannot continue.
    for version in ["", "&resourceVersion=0"] {
        let answer = api.get(&format!("{target}{version}")).await;
        answer.fails(
            422,
            "Invalid",
            "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch",
        );
    }
}

/// S1.8, S4.6, S4.8
#[tokio::test(start_paused = true)]
async fn objects_are_watched_by_name_by_legacy_paths_and_by_selectors() {
    let api = Api::start().await;
    api.create(CMS, &labelled("a", "on=yes")).await;
    api.create(CMS, &labelled("b", "on=no")).await;
    for (target, expected) in [
        (format!("{CMS}?watch=true&fieldSelector=metadata.name%3Da"), "a"),
        (format!("{CMS}/a?watch=true"), "a"),
        ("/api/v1/watch/namespaces/ns/configmaps/a".into(), "a"),
        ("/api/v1/watch/namespaces/ns/configmaps".into(), "a b"),
        ("/api/v1/watch/namespaces/ns/configmaps?watch=false".into(), "a b"),
        ("/api/v1/watch/namespaces/ns/configmaps?labelSelector=on%3Dyes".into(), "a"),
        ("/api/v1/watch/namespaces/ns/configmaps?fieldSelector=metadata.name%3Db".into(), "b"),
        ("/api/v1/watch/configmaps".into(), "a b"),
        ("/api/v1/watch/namespaces/ns".into(), "ns"),
        ("/api/v1/watch/namespaces?fieldSelector=metadata.name%3Dns".into(), "ns"),
        ("/api/v1/configmaps?watch=true&fieldSelector=metadata.name%3Da".into(), "a"),
    ] {
        let mut watch = api.watch(&target).await;
        let expected: Vec<String> =
            expected.split(' ').map(|name| format!("ADDED/{name}")).collect();
        assert_eq!(watch.take(expected.len()).await, expected.join(" "), "{target}");
        assert!(watch.is_silent(Duration::from_secs(5)).await, "{target}");
    }
    // A name that does not exist yet.
    let mut watch = api.watch(&format!("{CMS}/later?watch=true")).await;
    let mut nowhere = api.watch("/api/v1/namespaces/nowhere/configmaps?watch=true").await;
    api.create(CMS, &config_map("later")).await;
    assert_eq!(watch.take(1).await, "ADDED/later");
    assert!(nowhere.is_silent(Duration::from_secs(5)).await);
}

/// S4.4, S4.25
#[tokio::test(start_paused = true)]
async fn every_watcher_receives_every_change_once_in_order() {
    let api = Api::start().await;
    let first = api.create(CMS, &config_map("a")).await;
    let target = format!("{CMS}?watch=true&resourceVersion={}", version(&first));
    let mut one = api.watch(&target).await;
    let mut two = api.watch(&target).await;
    let mut written = Vec::new();
    for count in 0..10 {
        let patch = json!({ "data": { "v": count.to_string() } });
        written.push(api.merge(&format!("{CMS}/a"), &patch).await.version());
    }
    for watch in [&mut one, &mut two] {
        let mut seen = Vec::new();
        for _ in 0..10 {
            seen.push(version(&watch.next().await.unwrap()["object"]));
        }
        assert_eq!(seen, written);
    }
    // From the middle: exactly the remainder.
    let mut resumed = api.watch(&format!("{CMS}?watch=true&resourceVersion={}", written[4])).await;
    assert_eq!(version(&resumed.next().await.unwrap()["object"]), written[5]);
}

/// S4.5
#[tokio::test(start_paused = true)]
async fn a_watch_resumes_from_its_last_event_or_bookmark() {
    let options = Settings { bookmark_every: Duration::from_secs(60), ..Settings::default() };
    let api = Api::with(options, CacheOptions::default()).await;
    api.config_maps(&["a"]).await;
    let mut watch = api.watch(&format!("{CMS}?watch=true&allowWatchBookmarks=true")).await;
    assert_eq!(watch.take(2).await, "ADDED/a MARK");
    // A change of another resource advances the bookmark.
    let other = api.create(PODS, &pod("p", "")).await;
    let bookmark = watch.next().await.unwrap();
    assert_eq!(word(&bookmark), "BOOKMARK");
    let at = version(&bookmark["object"]);
    assert!(at.parse::<u64>().unwrap() >= version(&other).parse().unwrap());
    drop(watch);
    api.config_maps(&["b"]).await;
    let mut watch = api.watch(&format!("{CMS}?watch=true&resourceVersion={at}")).await;
    assert_eq!(watch.take(1).await, "ADDED/b");
}

#[tokio::test(start_paused = true)]
async fn a_resumed_watch_receives_large_and_small_events_unchanged() {
    let api = Api::start().await;
    let start = api.get(CMS).await.version();
    let text = |name: &str| name.repeat(if name.starts_with('l') { 3_000 } else { 3 });
    let names = ["s1", "l1", "l2", "s2", "s3", "l3", "s4"];
    for name in names {
        let mut map = config_map(name);
        map["data"] = json!({ "v": text(name) });
        api.create(CMS, &map).await;
    }
    let mut watch = api.watch(&format!("{CMS}?watch=true&resourceVersion={start}")).await;
    for name in names {
        let event = watch.next().await.unwrap();
        assert_eq!(word(&event), format!("ADDED/{name}"));
        assert_eq!(event["object"]["data"]["v"], text(name));
    }
}

/// S4.9
#[tokio::test(start_paused = true)]
async fn a_timeout_ends_a_watch_cleanly() {
    let api = Api::start().await;
    api.config_maps(&["a"]).await;
    let began = tokio::time::Instant::now();
    let mut watch = api.watch(&format!("{CMS}?watch=true&timeoutSeconds=20")).await;
    let events = watch.rest().await;
    assert_eq!(events.len(), 1);
    assert_eq!(began.elapsed().as_secs(), 20);
    // The `timeout` of other requests is ignored.
    let mut watch = api.watch(&format!("{CMS}?watch=true&timeoutSeconds=20&timeout=1s")).await;
    assert_eq!(watch.rest().await.len(), 1);
    assert_eq!(began.elapsed().as_secs(), 40);
    // Without one, or with 0, the server chooses: between one and two times its minimum.
    for query in ["", "&timeoutSeconds=0"] {
        let began = tokio::time::Instant::now();
        let mut watch = api.watch(&format!("{CMS}?watch=true{query}")).await;
        assert_eq!(watch.rest().await.len(), 1);
        assert!((1800..=3600).contains(&began.elapsed().as_secs()), "{query}");
    }
    let began = tokio::time::Instant::now();
    api.watch(&format!("{CMS}?watch=true&timeoutSeconds=-1")).await.rest().await;
    assert!(began.elapsed().as_secs() < 5);
}

/// S4.12
#[tokio::test(start_paused = true)]
async fn a_bookmark_precedes_a_timeout_if_the_version_advanced() {
    let api = Api::start().await;
    let at = version(&api.create(CMS, &config_map("a")).await);
    let target =
        format!("{CMS}?watch=true&allowWatchBookmarks=true&timeoutSeconds=10&resourceVersion={at}");
    // Without a change there is no bookmark.
    assert_eq!(api.watch(&target).await.rest().await, Vec::<Value>::new());
    let began = tokio::time::Instant::now();
    let mut watch = api.watch(&target).await;
    let other = version(&api.create(PODS, &pod("p", "")).await);
    let bookmark = watch.next().await.unwrap();
    assert_eq!(began.elapsed().as_secs(), 8);
    assert_eq!(version(&bookmark["object"]), other);
    assert!(watch.next().await.is_none());
    assert_eq!(began.elapsed().as_secs(), 10);
    // Without `allowWatchBookmarks` there is none.
    let target = format!("{CMS}?watch=true&timeoutSeconds=10&resourceVersion={at}");
    assert_eq!(api.watch(&target).await.rest().await, Vec::<Value>::new());
}

/// S4.12
#[tokio::test(start_paused = true)]
async fn bookmarks_arrive_about_once_a_minute_and_never_decrease() {
    let api = Api::start().await;
    let mut watch =
        api.watch(&format!("{CMS}?watch=true&allowWatchBookmarks=true&timeoutSeconds=170")).await;
    assert_eq!(watch.take(1).await, "MARK");
    let began = tokio::time::Instant::now();
    let mut at = Vec::new();
    let mut last = 0;
    for count in 0.. {
        api.create(PODS, &pod(&format!("p{count}"), "")).await;
        let Some(event) = watch.next().await else { break };
        assert_eq!(word(&event), "BOOKMARK");
        let revision: u64 = version(&event["object"]).parse().unwrap();
        assert!(revision > last);
        last = revision;
        at.push(began.elapsed().as_secs());
    }
    assert_eq!(&at[..2], [60, 120]);
    assert!(at[2..].iter().all(|second| (168..=170).contains(second)), "{at:?}");
    assert!(at.len() > 2);
}

/// S4.64
#[tokio::test(start_paused = true)]
async fn a_prompt_bookmark_arrives_as_soon_as_the_watch_has_caught_up() {
    let api = Api::start().await;
    let at = version(&api.create(CMS, &config_map("a")).await);
    let reached: u64 = version(&api.create(PODS, &pod("p", "")).await).parse().unwrap();
    let target = |bookmarks: &str, accept: &str| {
        format!(
            "{CMS}?watch=true&allowWatchBookmarks={bookmarks}&timeoutSeconds=100\
             &resourceVersion={at}\nAccept: {accept}"
        )
    };
    for accept in [
        "application/json;bookmark=prompt",
        "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1;bookmark=prompt",
    ] {
        let began = tokio::time::Instant::now();
        let mut watch = api.watch(&target("true", accept)).await;
        let first = watch.next().await.unwrap();
        assert_eq!(word(&first), "BOOKMARK");
        assert!(version(&first["object"]).parse::<u64>().unwrap() >= reached);
        assert!(began.elapsed().as_secs() < 1, "{accept}");
        // The next one is an ordinary one.
        api.create(PODS, &pod(&format!("p{}", accept.len()), "")).await;
        assert_eq!(word(&watch.next().await.unwrap()), "BOOKMARK");
        assert_eq!(began.elapsed().as_secs(), 60, "{accept}");
    }
    // Events come before it.
    api.create(CMS, &config_map("b")).await;
    let last = version(&api.create(PODS, &pod("last", "")).await);
    let mut watch = api.watch(&target("true", "application/json;bookmark=prompt")).await;
    assert_eq!(watch.take(2).await, "ADDED/b BOOKMARK");
    let mut watch = api.watch(&target("true", "application/json;bookmark=prompt")).await;
    watch.next().await.unwrap();
    let mark = version(&watch.next().await.unwrap()["object"]);
    assert!(mark.parse::<u64>().unwrap() >= last.parse().unwrap());
    // Without the parameter, or without bookmarks, nothing is sent early.
    for (bookmarks, accept, seconds) in
        [("true", "application/json", 60), ("false", "application/json;bookmark=prompt", 100)]
    {
        let began = tokio::time::Instant::now();
        let mut watch = api.watch(&target(bookmarks, accept)).await;
        assert_eq!(watch.take(1).await, "ADDED/b");
        assert_eq!(watch.next().await.is_some(), bookmarks == "true");
        assert_eq!(began.elapsed().as_secs(), seconds, "{bookmarks} {accept}");
    }
}

/// S4.10, S4.11
#[tokio::test(start_paused = true)]
async fn a_bookmark_is_an_empty_object_with_a_version() {
    let api = Api::start().await;
    for (target, expected) in [
        (CMS, json!({ "kind": "ConfigMap", "apiVersion": "v1" })),
        (DEPLOYMENTS, empty_deployment()),
        (
            PODS,
            json!({
                "kind": "Pod", "apiVersion": "v1", "spec": { "containers": null }, "status": {},
            }),
        ),
        ("/api/v1/namespaces/ns/secrets", json!({ "kind": "Secret", "apiVersion": "v1" })),
    ] {
        let query = "watch=true&allowWatchBookmarks=true&sendInitialEvents=true\
                     &resourceVersionMatch=NotOlderThan";
        let mut watch = api.watch(&format!("{target}?{query}")).await;
        let mut mark = watch.next().await.unwrap()["object"].clone();
        let now = api.get(target).await.version();
        let metadata = mark.as_object_mut().unwrap().remove("metadata").unwrap();
        let annotations = json!({ "k8s.io/initial-events-end": "true" });
        assert_eq!(metadata, json!({ "resourceVersion": now, "annotations": annotations }));
        assert_eq!(mark, expected);
    }
}

const DEPLOYMENTS: &str = crate::api::DEPLOYMENTS;

fn empty_deployment() -> Value {
    json!({
        "kind": "Deployment", "apiVersion": "apps/v1", "status": {},
        "spec": {
            "replicas": 0, "selector": null, "strategy": {},
            "template": { "metadata": {}, "spec": { "containers": null } },
        },
    })
}

/// S4.20, S4.21
#[tokio::test(start_paused = true)]
async fn objects_that_enter_or_leave_a_selection_are_added_or_deleted() {
    let api = Api::start().await;
    let seed = api.create(CMS, &labelled("seed", "on=no")).await;
    let target =
        format!("{CMS}?watch=true&labelSelector=on%3Dyes&resourceVersion={}", version(&seed));
    let mut watch = api.watch(&target).await;
    let a = &format!("{CMS}/a");
    let labels = |on: &str| json!({ "labels": { "on": on } });
    api.create(CMS, &labelled("a", "on=no")).await;
    let entered = api.merge(a, &json!({ "metadata": labels("yes"), "data": { "v": "2" } })).await;
    let inside = api.merge(a, &json!({ "data": { "v": "3" } })).await;
    let left = api.merge(a, &json!({ "metadata": labels("no"), "data": { "v": "4" } })).await;
    api.delete(a).await.is(200, "");
    api.create(CMS, &labelled("b", "on=yes")).await;
    api.delete(&format!("{CMS}/b")).await.is(200, "");
    let again = api.create(CMS, &labelled("b", "on=yes")).await;

    let event = watch.next().await.unwrap();
    assert_eq!((word(&event), &event["object"]), ("ADDED/a".into(), &entered.json()));
    let event = watch.next().await.unwrap();
    assert_eq!((word(&event), &event["object"]), ("MODIFIED/a".into(), &inside.json()));
    // An object that leaves is sent with its last state, at the version of the change.
    let event = watch.next().await.unwrap();
    let mut last = inside.json();
    last["metadata"]["resourceVersion"] = left.version().into();
    assert_eq!((word(&event), &event["object"]), ("DELETED/a".into(), &last));
    assert_eq!(watch.take(1).await, "ADDED/b");
    let deleted = watch.next().await.unwrap();
    assert_eq!(word(&deleted), "DELETED/b");
    let event = watch.next().await.unwrap();
    assert_eq!((word(&event), &event["object"]), ("ADDED/b".into(), &again));
    assert_ne!(deleted["object"]["metadata"]["uid"], again["metadata"]["uid"]);
}

/// S4.20
#[tokio::test(start_paused = true)]
async fn field_selectors_work_like_label_selectors() {
    let api = Api::start().await;
    let at = version(&api.create(PODS, &pod("p", "")).await);
    let target =
        format!("{PODS}?watch=true&resourceVersion={at}&fieldSelector=status.phase%3DPending");
    let mut watch = api.watch(&target).await;
    let status = |phase: &str| json!({ "status": { "phase": phase } });
    api.merge(&format!("{PODS}/p/status"), &status("Running")).await.is(200, "");
    api.merge(&format!("{PODS}/p/status"), &status("Pending")).await.is(200, "");
    assert_eq!(watch.take(2).await, "DELETED/p ADDED/p");
}

/// S2.47, S4.21
#[tokio::test(start_paused = true)]
async fn a_deleted_event_has_the_last_state_and_its_own_version() {
    let api = Api::start().await;
    let made = api.create(CMS, &config_map("a")).await;
    let mut watch =
        api.watch(&format!("{CMS}?watch=true&resourceVersion={}", version(&made))).await;
    let updated = api.merge(&format!("{CMS}/a"), &json!({ "data": { "v": "2" } })).await;
    api.delete(&format!("{CMS}/a")).await.is(200, "");
    let after = api.get(CMS).await.version();
    assert_eq!(watch.take(1).await, "MODIFIED/a");
    let event = watch.next().await.unwrap();
    let mut last = updated.json();
    last["metadata"]["resourceVersion"] = after.into();
    assert_eq!((word(&event), &event["object"]), ("DELETED/a".into(), &last));
}

/// S2.47, S4.22, S4.23
#[tokio::test(start_paused = true)]
async fn finalizers_and_grace_periods_appear_as_modifications() {
    let api = Api::start().await;
    let mut held = config_map("held");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let at = version(&api.create(CMS, &held).await);
    let mut watch = api.watch(&format!("{CMS}?watch=true&resourceVersion={at}")).await;
    api.delete(&format!("{CMS}/held")).await.is(200, "");
    let free = json!({ "metadata": { "finalizers": null } });
    api.merge(&format!("{CMS}/held"), &free).await.is(200, "");
    let marked = watch.next().await.unwrap();
    assert_eq!(word(&marked), "MODIFIED/held");
    assert!(marked["object"]["metadata"]["deletionTimestamp"].is_string());
    let gone = watch.next().await.unwrap();
    assert_eq!(word(&gone), "DELETED/held");
    assert_eq!(gone["object"]["metadata"]["finalizers"], json!(["example.com/hold"]));

    let at = version(&api.create(PODS, &pod("p", "n1")).await);
    let mut watch = api.watch(&format!("{PODS}?watch=true&resourceVersion={at}")).await;
    api.delete(&format!("{PODS}/p")).await.is(200, "");
    api.delete(&format!("{PODS}/p?gracePeriodSeconds=0")).await.is(200, "");
    for (expected, grace) in [("MODIFIED/p", 30), ("MODIFIED/p", 0), ("DELETED/p", 0)] {
        let event = watch.next().await.unwrap();
        let metadata = &event["object"]["metadata"];
        assert_eq!(
            (word(&event).as_str(), &metadata["deletionGracePeriodSeconds"]),
            (expected, &json!(grace))
        );
    }
}

/// S4.24, S10.12
#[tokio::test(start_paused = true)]
async fn events_carry_the_type_of_the_path() {
    let api = Api::start().await;
    let events = "/api/v1/namespaces/ns/events";
    let event = json!({
        "metadata": { "name": "e" }, "involvedObject": { "namespace": "ns" }, "reason": "r",
    });
    api.create(events, &event).await;
    for (target, api_version) in
        [(events, "v1"), ("/apis/events.k8s.io/v1/namespaces/ns/events", "events.k8s.io/v1")]
    {
        let mut watch = api.watch(&format!("{target}?watch=true")).await;
        let event = watch.next().await.unwrap();
        assert_eq!(event["object"]["apiVersion"], api_version);
        assert_eq!(event["object"]["kind"], "Event");
    }
}

/// S4.30, S4.33, R41
#[tokio::test(start_paused = true)]
async fn a_watch_from_a_compacted_version_is_one_error() {
    let api = Api::start().await;
    let old = version(&api.create(CMS, &config_map("a")).await);
    api.config_maps(&["b", "c"]).await;
    let last = version(&api.create(CMS, &config_map("d")).await);
    api.compact(&last).await;
    for accept in ["application/json", TABLE, PARTIAL] {
        let request = format!("GET {CMS}?watch=true&resourceVersion={old}\nAccept: {accept}");
        let answer = api.send(&request, "").await;
        assert_eq!(answer.code, 200);
        let event = answer.json();
        assert_eq!(word(&event), "ERROR/410");
        let status = &event["object"];
        let message = format!("too old resource version: {old} ({last})");
        let expected = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": "Expired", "code": 410,
        });
        assert_eq!(*status, expected);
    }
    // The compacted revision itself may be requested.
    let mut watch = api.watch(&format!("{CMS}?watch=true&resourceVersion={last}")).await;
    api.config_maps(&["e"]).await;
    assert_eq!(watch.take(1).await, "ADDED/e");
}

const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// S4.2, S4.31
#[tokio::test(start_paused = true)]
async fn a_watch_from_a_future_version_waits() {
    let api = Api::start().await;
    let now: u64 = api.get(CMS).await.version().parse().unwrap();
    let ahead = now + 2;
    let mut watch = api.watch(&format!("{CMS}?watch=true&resourceVersion={ahead}")).await;
    assert!(watch.is_silent(Duration::from_secs(10)).await);
    api.config_maps(&["a", "b", "c"]).await;
    assert_eq!(watch.take(1).await, "ADDED/c");
    let mut never =
        api.watch(&format!("{CMS}?watch=true&resourceVersion=18446744073709551615")).await;
    assert!(never.is_silent(Duration::from_secs(100)).await);
    // With initial events the watch waits for the state, up to the timeout.
    let query = "watch=true&resourceVersionMatch=NotOlderThan&sendInitialEvents=true";
    let mut watch = api.watch(&format!("{CMS}?{query}&resourceVersion=99999999999")).await;
    let event = watch.next().await.unwrap();
    assert_eq!(word(&event), "ERROR/504");
    let status = &event["object"];
    assert_eq!(status["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    assert_eq!(status["details"]["retryAfterSeconds"], 1);
    assert!(watch.next().await.is_none());
}

/// S1.10, S4.14, S4.15
#[tokio::test(start_paused = true)]
async fn a_stopping_server_sends_a_bookmark_and_ends_each_watch() {
    let api = Api::start().await;
    let at = version(&api.create(CMS, &config_map("a")).await);
    let target = |more: &str| format!("{CMS}?watch=true&resourceVersion={at}{more}");
    let mut with: Watch = api.watch(&target("&allowWatchBookmarks=true")).await;
    let mut without: Watch = api.watch(&target("")).await;
    let moved = version(&api.create(PODS, &pod("p", "")).await);
    assert!(with.is_silent(Duration::from_millis(10)).await);
    assert!(without.is_silent(Duration::from_millis(10)).await);
    api.server.drain();
    let events = with.rest().await;
    assert_eq!(events.iter().map(word).collect::<Vec<_>>(), ["BOOKMARK"]);
    assert_eq!(version(&events[0]["object"]), moved);
    assert_eq!(without.rest().await, Vec::<Value>::new());
    api.get("/readyz").await.is(500, "[-]shutdown failed: reason withheld");
    api.get("/livez").await.is(200, "ok");
}

#[tokio::test(start_paused = true)]
async fn writes_before_the_stop_precede_the_last_bookmark() {
    let api = Api::start().await;
    let at = version(&api.create(CMS, &config_map("a")).await);
    let target = format!("{CMS}?watch=true&allowWatchBookmarks=true&resourceVersion={at}");
    let mut watch = api.watch(&target).await;
    assert!(watch.is_silent(Duration::from_millis(10)).await);
    api.config_maps(&["b", "c"]).await;
    api.create(PODS, &pod("p", "")).await;
    // A consistent read: the write has reached the cache, so the stop follows it.
    api.get(PODS).await;
    api.server.drain();
    let words: Vec<String> = watch.rest().await.iter().map(word).collect();
    assert_eq!(words, ["ADDED/b", "ADDED/c", "BOOKMARK"]);
}

/// S4.1, S11.21
#[tokio::test(start_paused = true)]
async fn a_watch_responds_at_once_and_is_never_compressed() {
    let api = Api::start().await;
    for (accept, code, content_type) in [
        ("", 200, "application/json"),
        ("application/json", 200, "application/json"),
        ("*/*", 200, "application/json"),
        ("application/json;stream=watch", 200, "application/json"),
        ("application/json; stream=watch", 200, "application/json"),
        (
            "application/vnd.kubernetes.protobuf,application/json",
            200,
            "application/vnd.kubernetes.protobuf;stream=watch",
        ),
        (
            "application/vnd.kubernetes.protobuf;stream=watch, application/json",
            200,
            "application/vnd.kubernetes.protobuf;stream=watch",
        ),
        ("application/json, application/vnd.kubernetes.protobuf", 200, "application/json"),
        ("application/yaml", 406, "application/yaml"),
    ] {
        let request = format!(
            "GET {CMS}?watch=true&timeoutSeconds=1\nAccept: {accept}\nAccept-Encoding: gzip"
        );
        let answer = api.send(&request, "").await;
        assert_eq!(answer.code, code, "{accept}");
        assert_eq!(answer.header("content-type"), content_type, "{accept}");
        assert_eq!(answer.header("content-encoding"), "", "{accept}");
    }
}

fn limited(limits: Limits) -> Settings {
    Settings { limits, ..Settings::default() }
}

/// S4.32, R45, B280
#[tokio::test(start_paused = true)]
async fn a_user_with_too_many_watches_gets_429() {
    let limits = Limits { watches_per_user_max: 3, ..Limits::default() };
    let api = Api::with(limited(limits), CacheOptions::default()).await;
    let target = format!("{CMS}?watch=true");
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(api.watch(&target).await);
    }
    for _ in 0..10 {
        let answer = api.get(&target).await;
        answer.is(429, "TooManyRequests");
        assert_eq!(answer.header("retry-after"), "1");
    }
    // Health, other users and other requests are not affected.
    api.get("/readyz").await.is(200, "");
    let other = api.as_user("other", &["system:masters"]);
    other.send(&format!("GET {target}&timeoutSeconds=1"), "").await.is(200, "");
    api.config_maps(&["a"]).await;
    drop(open.pop());
    // Nor are the watches that were open before.
    for mut watch in open {
        assert_eq!(watch.take(1).await, "ADDED/a");
    }
    assert_eq!(api.watch(&target).await.take(1).await, "ADDED/a");
}

/// R31, R45, B281
#[tokio::test(start_paused = true)]
async fn lists_beyond_the_byte_limit_get_429() {
    let limits = Limits { list_bytes_max: 1_000, ..Limits::default() };
    let api = Api::with(limited(limits), CacheOptions::default()).await;
    for number in 0..100 {
        let mut map = config_map(&format!("m{number}"));
        map["data"] = json!({"x": "x".repeat(4_000)});
        api.create(CMS, &map).await;
    }
    // One list may be of any size; it is not read to its end.
    let slow = api.watch(CMS).await;
    for _ in 0..64 {
        let answer = api.get(CMS).await;
        answer.is(429, "TooManyRequests");
        assert_eq!(answer.header("retry-after"), "1");
    }
    // One object and a small page cost little.
    api.get(&format!("{CMS}/m1")).await.is(200, "");
    drop(slow);
    api.get(CMS).await.is(200, "");
}

/// S4.6
#[tokio::test(start_paused = true)]
async fn resources_without_watch_reject_it() {
    let api = Api::start().await;
    api.get("/api/v1/componentstatuses?watch=true").await.fails(
        405,
        "MethodNotAllowed",
        "watch is not supported on resources of kind ",
    );
}
