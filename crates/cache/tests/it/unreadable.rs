//! Stored values that are not the object of their key: other objects are served as before.

use std::time::Duration;

use headwater_cache::{Error, WatchStart};
use headwater_store::{Guard, Key, Memory, Store, Write};

use crate::fixture::{Pond, all, events, pod, pods, window};

fn broken() -> Key {
    Key::in_collection(&pods(), "ns/broken")
}

/// Values that are not the pod `ns/broken`.
fn invalid() -> [String; 4] {
    let other = pod("ns/other").data("an impostor").bytes();
    ["not an object".into(), String::new(), r#"{"metadata":{}}"#.into(), other]
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_value_harms_no_other_object() {
    for value in invalid() {
        let pond = Pond::new(window(10)).await;
        let other = pond.put(&pod("ns/other")).await;
        let mut watcher = pond.watch(&all(), WatchStart::Now);
        let at = pond.commit(&broken(), Some(value.clone())).await;
        pond.cache.reach(at).await.expect("the feed must go on");
        let next = pond.put(&pod("ns/next")).await;
        assert_eq!(events(&mut watcher).await, [format!("ADDED ns/next@{next}")], "{value}");
        let snapshot = pond.cache.snapshot(&pond.pods());
        let keys: Vec<&str> = snapshot.iter("", None).map(|object| object.key()).collect();
        assert_eq!(keys, ["ns/next", "ns/other"], "{value}");
        assert_eq!(snapshot.get("ns/other").unwrap().revision(), other, "{value}");
        assert_eq!((snapshot.unreadable("ns/broken"), snapshot.unreadable_count()), (Some(at), 1));
        assert_eq!(snapshot.unreadable("ns/other"), None);
        let record = pond.store.get(&broken()).await.unwrap().unwrap();
        let error = pond.pods().object_of(&record).err();
        assert!(matches!(error, Some(Error::Unreadable { key, .. }) if key == broken()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_load_skips_unreadable_values() {
    let store = std::sync::Arc::new(Memory::default());
    let put = |key: Key, value: String| {
        let action = headwater_store::Action::Put { value: value.into(), ttl: None };
        store.commit(Write::one(key, Guard::Absent, action))
    };
    let good = put(pod("ns/other").key(), pod("ns/other").bytes()).await.unwrap().last;
    for (n, value) in invalid().into_iter().enumerate() {
        put(Key::in_collection(&pods(), &format!("ns/broken-{n}")), value).await.unwrap();
    }
    put(Key::new("/registry/neither"), "a collection nor a name".into()).await.unwrap();
    let pond = Pond::over(store.clone(), window(10)).await;
    let snapshot = pond.cache.snapshot(&pond.pods());
    assert_eq!((snapshot.len(), snapshot.unreadable_count()), (1, 4));
    assert_eq!(snapshot.get("ns/other").unwrap().revision(), good);
    // A past state, read from the store, skips them too.
    let past = pond.cache.snapshot_at(&pond.pods(), good.next()).await.unwrap();
    assert_eq!((past.len(), past.unreadable_count()), (1, 1));
    // The key becomes an object again.
    let repaired = pond.put(&pod("ns/broken-0")).await;
    let snapshot = pond.cache.snapshot(&pond.pods());
    assert_eq!(snapshot.get("ns/broken-0").unwrap().revision(), repaired);
    assert_eq!(snapshot.unreadable_count(), 3);
}

/// For a watcher, an object whose value cannot be read is deleted, and created when it can.
async fn check_life(from_history: bool) {
    let pond = Pond::new(window(if from_history { 1 } else { 100 })).await;
    let mut watcher = pond.watch(&all(), WatchStart::Now);
    let a = pond.put(&pod("ns/broken")).await;
    let gone = pond.commit(&broken(), Some("not an object".into())).await;
    pond.commit(&broken(), Some("still none".into())).await;
    let back = pond.commit(&broken(), Some(pod("ns/broken").bytes())).await;
    let changed = pond.commit(&broken(), Some(pod("ns/broken").data("new").bytes())).await;
    pond.commit(&broken(), Some(String::new())).await;
    let last = pond.commit(&broken(), None).await;
    pond.cache.reach(last).await.unwrap();
    let expected = [
        format!("ADDED ns/broken@{a}"),
        format!("DELETED ns/broken@{gone}"),
        format!("ADDED ns/broken@{back}"),
        format!("MODIFIED ns/broken@{changed}"),
        format!("DELETED ns/broken@{}", changed.next()),
    ];
    if from_history {
        pond.sweep().await;
    }
    let mut received = Vec::new();
    while received.len() < expected.len() {
        let next = tokio::time::timeout(Duration::from_secs(60), events(&mut watcher)).await;
        received.extend(next.expect("the watcher hangs"));
    }
    assert_eq!(received, expected);
    let snapshot = pond.cache.snapshot(&pond.pods());
    assert_eq!((snapshot.len(), snapshot.unreadable_count()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn an_object_ends_with_its_last_readable_value() {
    check_life(false).await;
}

#[tokio::test(start_paused = true)]
async fn history_with_unreadable_values_has_the_same_events() {
    check_life(true).await;
}
