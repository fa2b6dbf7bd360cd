//! Calls, conflicts and retries.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use headwater_client::calls::{Calls, Deleted};
use headwater_client::{Cached, Error, Key};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;
use tokio::time::Instant;

use crate::api::Api;
use crate::support::*;

/// C27.3, C27.4, C27.6
#[tokio::test]
async fn updates_read_change_and_write_with_the_version_as_precondition() {
    let api = Api::start().await;
    let maps = Calls::new(api.client.clone()).of::<ConfigMap>();
    let key = Key::namespaced("default", "settings");
    assert!(maps.get(&key).await.unwrap().is_none());
    assert!(maps.update(&key, None, |_| ()).await.unwrap().is_none());
    let mut fresh = map("default/settings", "");
    fresh.metadata.uid = None;
    fresh.metadata.resource_version = None;
    let made = maps.create(&fresh).await.unwrap();
    assert!(maps.create(&fresh).await.unwrap_err().is_exists());

    let set = |text: &'static str| {
        move |map: &mut ConfigMap| {
            map.data.get_or_insert_default().insert("mode".into(), text.into());
        }
    };
    let dark = maps.update(&key, None, set("dark")).await.unwrap().unwrap();
    let same = maps.update(&key, None, set("dark")).await.unwrap().unwrap();
    assert_eq!(
        same.resource_version(),
        dark.resource_version(),
        "nothing changed, nothing written"
    );
    // A stale cache: the first write conflicts, then the server is read.
    let light = maps.update(&key, Some(&made), set("light")).await.unwrap().unwrap();
    assert_eq!(light.data.as_ref().unwrap()["mode"], "light");
    assert!(
        maps.replace(&made).await.unwrap_err().is_conflict(),
        "a cached object carries its version"
    );
    assert!(
        matches!(maps.replace(&fresh).await, Err(Error::Invalid(_))),
        "without one it is refused here"
    );

    let applied = maps
        .apply(
            &{
                let mut wanted = fresh.clone();
                set("applied")(&mut wanted);
                wanted
            },
            "me",
        )
        .await
        .unwrap();
    assert_eq!(applied.data.as_ref().unwrap()["mode"], "applied");
    let either = maps.create_or_update(&fresh, set("either")).await.unwrap();
    assert_eq!(either.data.as_ref().unwrap()["mode"], "either");
    assert!(matches!(maps.delete_this(&made).await.unwrap(), Deleted::Gone));
    assert!(matches!(maps.delete(&key).await.unwrap(), Deleted::Gone), "gone is gone");
    let created = maps.create_or_update(&fresh, set("x")).await.unwrap();
    assert_eq!(created.data, None, "it was created as given");
    let merged = maps.merge(&key, &json!({"data": {"a": "b"}})).await.unwrap();
    assert_eq!(merged.data.unwrap()["a"], "b");
}

/// C27.3
#[tokio::test(start_paused = true)]
async fn an_update_that_changes_nothing_makes_no_request() {
    let (fake, client) = Fake::client(|_| refused(500, "InternalError"));
    let cached = map("default/a", "7");
    let maps = Calls::new(client).of::<ConfigMap>();
    let unchanged = maps.update(&cached.key(), Some(&cached), |_| ()).await.unwrap();
    assert_eq!(unchanged.unwrap().resource_version(), "7".into());
    assert_eq!(fake.calls().len(), 0);
}

/// C29.1
#[tokio::test(start_paused = true)]
async fn calls_are_not_limited() {
    let (_fake, client) = Fake::client(|_| refused(404, "NotFound"));
    let key = Key::namespaced("a", "b");
    let before = Instant::now();
    for _ in 0..200 {
        Calls::new(client.clone()).of::<ConfigMap>().get(&key).await.unwrap();
    }
    assert_eq!(before.elapsed(), Duration::ZERO);
}

/// C29.3
#[tokio::test(start_paused = true)]
async fn a_refused_call_is_retried_only_with_retry_after() {
    let key = Key::namespaced("a", "b");
    for (code, advice, tries) in [
        (429, Some("2"), 11),
        (503, Some("2"), 11),
        (500, None, 1),
        (429, None, 1),
        (404, Some("2"), 1),
    ] {
        let (fake, client) = Fake::client(move |_| {
            let headers = advice.map(|text| ("retry-after", text.to_owned())).into_iter().collect();
            Ok((code, headers, json!({"kind": "Status", "code": code})))
        });
        let before = Instant::now();
        let result = Calls::new(client).of::<ConfigMap>().get(&key).await;
        assert_eq!(result.is_ok(), code == 404);
        assert_eq!(fake.calls().len(), tries, "{code} {advice:?}");
        let expected = Duration::from_secs(2) * (tries as u32 - 1);
        let took = before.elapsed();
        assert!(took >= expected && took < expected + Duration::from_millis(20), "{took:?}");
    }
    let count = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&count);
    let (fake, client) = Fake::client(move |_| match counter.fetch_add(1, Ordering::Relaxed) {
        0..3 => Ok((429, vec![("retry-after", "1".into())], json!({}))),
        _ => ok(serde_json::to_value(map("a/b", "1")).unwrap()),
    });
    let made =
        Calls::new(client).component("me").of::<ConfigMap>().create(&map("a/b", "")).await.unwrap();
    assert_eq!(made.resource_version(), "1".into());
    let calls = fake.calls();
    assert_eq!(calls.len(), 4);
    assert!(
        calls.iter().all(|call| call.body == calls[0].body && call.method == "POST"),
        "the same body"
    );
    assert!(calls[0].agent.starts_with("me headwater-client/"));
    // A body that is a stream cannot be sent again.
    let (fake, client) = Fake::client(|_| Ok((429, vec![("retry-after", "1".into())], json!({}))));
    let probe = http::Request::get("/").body(kube::client::Body::empty()).unwrap();
    let body = client.send(probe).await.unwrap().into_body(); // as a proxy passes it on
    fake.take();
    let request = http::Request::post("/api/v1/configmaps").body(body).unwrap();
    let answer = Calls::new(client).kube_client().send(request).await.unwrap();
    assert_eq!((answer.status().as_u16(), fake.calls().len()), (429, 1));
}

/// C29.4
#[tokio::test(start_paused = true)]
async fn retries_keep_the_deadline_of_the_call() {
    let (fake, client) =
        Fake::client(|_| Ok((429, vec![("retry-after", "4".into())], json!({"code": 429}))));
    let before = Instant::now();
    let calls = Calls::new(client).within(Duration::from_secs(10)).of::<ConfigMap>();
    let error = calls.get(&Key::namespaced("a", "b")).await.unwrap_err();
    assert_eq!(error.status().unwrap().code, 429, "the refusal, not a wait past the end");
    assert!(before.elapsed() < Duration::from_secs(10));
    assert_eq!(fake.calls().len(), 3);
    let hanging = Calls::new(nobody()).within(Duration::from_secs(3)).of::<ConfigMap>();
    assert!(matches!(hanging.get(&Key::namespaced("a", "b")).await, Err(Error::Timeout { .. })));
}
