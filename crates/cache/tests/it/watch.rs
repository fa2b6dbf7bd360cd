//! The start of a watch, and its transitions between snapshot, window, view and the store's
//! history.

use headwater_api::Revision;
use headwater_cache::{WatchStart, WatchStep};

use crate::fixture::{Pond, all, describe, events, filter, pod, ready, ready_steps, step, window};

/// S5.13, R24
#[tokio::test(start_paused = true)]
async fn an_initial_state_is_followed_by_exactly_the_changes_after_it() {
    let pond = Pond::new(window(100)).await;
    let a = pond.put(&pod("ns/a")).await;
    let b = pond.put(&pod("ns/b")).await;
    let mut watcher = pond.watch(&all(), WatchStart::Initial);
    let c = pond.put(&pod("ns/c")).await;
    let received = ready_steps(&mut watcher);
    let expected =
        [format!("initial ns/a@{a} ns/b@{b}"), format!("synced {b}"), format!("ADDED ns/c@{c}")];
    assert_eq!(received, expected);
}

#[tokio::test(start_paused = true)]
async fn a_watch_after_a_revision_starts_with_the_next_change() {
    let pond = Pond::new(window(100)).await;
    let a = pond.put(&pod("ns/a")).await;
    let b = pond.put(&pod("ns/b")).await;
    let c = pond.delete(&pod("ns/a")).await;
    let mut watcher = pond.watch(&all(), WatchStart::After(a));
    assert_eq!(ready_steps(&mut watcher), [format!("ADDED ns/b@{b} DELETED ns/a@{c}")]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_from_now_returns_no_earlier_change() {
    let pond = Pond::new(window(100)).await;
    pond.put(&pod("ns/a")).await;
    let mut watcher = pond.watch(&all(), WatchStart::Now);
    assert!(ready(&mut watcher).is_none());
    let b = pond.put(&pod("ns/b")).await;
    assert_eq!(events(&mut watcher).await, [format!("ADDED ns/b@{b}")]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_from_a_future_revision_skips_earlier_changes_and_claims_no_progress() {
    let pond = Pond::new(window(1)).await;
    let a = pond.put(&pod("ns/a")).await;
    let future = Revision(a.0 + 2);
    let mut watcher = pond.watch(&all(), WatchStart::After(future));
    assert!(ready(&mut watcher).is_none());
    assert_eq!(watcher.progress(), None);
    pond.put(&pod("ns/b")).await;
    pond.put(&pod("ns/c")).await;
    assert!(ready(&mut watcher).is_none());
    assert_eq!(watcher.progress(), Some(future));
    let d = pond.put(&pod("ns/d")).await;
    assert_eq!(events(&mut watcher).await, [format!("ADDED ns/d@{d}")]);
}

/// S5.4, S5.12, R30
#[tokio::test(start_paused = true)]
async fn a_watcher_that_fell_out_of_the_window_reads_from_the_store_and_returns_to_the_window() {
    let pond = Pond::new(window(2)).await;
    let mut watcher = pond.watch(&all(), WatchStart::Now);
    let mut expected = Vec::new();
    for n in 0..20 {
        let at = pond.put(&pod("ns/a").data(n)).await;
        expected.push(format!("{} ns/a@{at}", if n == 0 { "ADDED" } else { "MODIFIED" }));
    }
    pond.sweep().await;
    let mut seen = Vec::new();
    while seen.len() < 20 {
        seen.extend(events(&mut watcher).await);
    }
    assert_eq!(seen, expected);
    assert!(ready(&mut watcher).is_none());
    assert_eq!(watcher.progress(), Some(pond.cache.applied()));
    let next = pond.put(&pod("ns/b")).await;
    assert_eq!(ready_steps(&mut watcher), [format!("ADDED ns/b@{next}")]);
}

/// S5.4, R25
#[tokio::test(start_paused = true)]
async fn the_window_edge_is_exact_even_without_a_write_since_the_load() {
    let pond = Pond::new(window(100)).await;
    let a = pond.put(&pod("ns/a")).await;
    let b = pond.put(&pod("ns/b")).await;
    pond.store.compact(b).await.unwrap();
    // A second cache over the same store knows only its initial state.
    let fresh = Pond::over(pond.store.clone(), window(100)).await;
    for pond in [&pond, &fresh] {
        let mut on = pond.watch(&all(), WatchStart::After(b));
        assert!(ready(&mut on).is_none());
        let mut below = pond.watch(&all(), WatchStart::After(a));
        let step = step(&mut below).await;
        assert_eq!(describe(&step), format!("expired {a}, oldest {b}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_below_the_compaction_expires_even_if_the_window_has_the_changes() {
    let pond = Pond::new(window(100)).await;
    let a = pond.put(&pod("ns/a")).await;
    let _other = pond.watch(&all(), WatchStart::After(a));
    let b = pond.put(&pod("ns/b")).await;
    pond.store.compact(b).await.unwrap();
    let mut watcher = pond.watch(&all(), WatchStart::After(a));
    assert_eq!(ready_steps(&mut watcher), [format!("expired {a}, oldest {b}")]);
    assert!(matches!(step(&mut watcher).await, WatchStep::Closed));
}

/// S6.21
#[tokio::test(start_paused = true)]
async fn a_compaction_does_not_end_a_lagging_watcher() {
    let pond = Pond::new(window(100)).await;
    let mut watcher = pond.watch(&all(), WatchStart::Now);
    let mut quiet = pond.watch(&filter("", "none=such", ""), WatchStart::Now);
    let a = pond.put(&pod("ns/a")).await;
    let b = pond.put(&pod("ns/b")).await;
    pond.store.compact(b).await.unwrap();
    pond.sweep().await;
    assert_eq!(ready_steps(&mut watcher), [format!("ADDED ns/a@{a} ADDED ns/b@{b}")]);
    assert!(ready(&mut quiet).is_none());
    assert_eq!(quiet.progress(), Some(b));
}

/// S5.12, R30
#[tokio::test(start_paused = true)]
async fn a_lagging_watcher_whose_history_was_compacted_expires() {
    let pond = Pond::new(window(1)).await;
    let mut watcher = pond.watch(&all(), WatchStart::Now);
    let start = watcher.position();
    pond.put(&pod("ns/a")).await;
    pond.put(&pod("ns/a").data(2)).await;
    let last = pond.put(&pod("ns/a").data(3)).await;
    pond.store.compact(last).await.unwrap();
    pond.sweep().await;
    assert_eq!(describe(&step(&mut watcher).await), format!("expired {start}, oldest {last}"));
}

#[tokio::test(start_paused = true)]
async fn entering_and_leaving_a_selection_have_the_right_type_and_state() {
    let pond = Pond::new(window(100)).await;
    let mut by_label = pond.watch(&filter("", "app=web", ""), WatchStart::Now);
    let mut by_node = pond.watch(&filter("ns", "", "spec.nodeName=n1"), WatchStart::Now);
    let web = pod("ns/a").label("app", "web").on("n1");
    pond.put(&pod("ns/a")).await;
    let entered = pond.put(&web.clone().data("in")).await;
    let stayed = pond.put(&web.clone().data("last")).await;
    let left = pond.put(&pod("ns/a").data("out")).await;
    pond.put(&pod("ns/a").data("further out")).await;
    pond.delete(&web).await;
    for watcher in [&mut by_label, &mut by_node] {
        let Some(WatchStep::Events(seen)) = ready(watcher) else { panic!("events are there") };
        let brief: Vec<String> = seen.iter().map(crate::fixture::brief).collect();
        let expected = [
            format!("ADDED ns/a@{entered}"),
            format!("MODIFIED ns/a@{stayed}"),
            format!("DELETED ns/a@{left}"),
        ];
        assert_eq!(brief, expected);
        let frame = String::from_utf8(seen[2].frame().to_vec()).unwrap();
        assert!(frame.contains(r#""data":"last""#), "{frame}");
        assert!(frame.contains(&format!(r#""resourceVersion":"{left}""#)), "{frame}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_redefined_resource_ends_its_watchers_after_their_pending_events() {
    let pond = Pond::new(window(100)).await;
    let mut watcher = pond.watch(&all(), WatchStart::Now);
    let a = pond.put(&pod("ns/a")).await;
    let b = pond.delete(&pod("ns/a")).await;
    pond.cache.set_fields(&crate::fixture::pods(), &[]).unwrap();
    let expected = [format!("ADDED ns/a@{a} DELETED ns/a@{b}"), "closed".to_owned()];
    assert_eq!(ready_steps(&mut watcher), expected);
    assert_eq!(pond.pods().watchers(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_redefined_resource_selects_by_its_new_fields() {
    let pond = Pond::new(window(100)).await;
    pond.cache.set_fields(&crate::fixture::pods(), &[]).unwrap();
    let a = pond.put(&pod("ns/a").on("n1")).await;
    pond.put(&pod("ns/b").on("n2")).await;
    pond.cache.set_fields(&crate::fixture::pods(), &crate::fixture::node_field()).unwrap();
    let mut watcher = pond.watch(&filter("", "", "spec.nodeName=n1"), WatchStart::Initial);
    let step = ready(&mut watcher).unwrap();
    assert_eq!(describe(&step), format!("initial ns/a@{a}"));
}

/// S5.5
#[tokio::test(start_paused = true)]
async fn a_read_of_a_past_revision_returns_the_state_at_that_revision() {
    let pond = Pond::new(window(3)).await;
    let mut revisions = Vec::new();
    for n in 0..8 {
        revisions.push(pond.put(&pod(&format!("ns/{}", n % 3)).data(n)).await);
    }
    revisions.push(pond.delete(&pod("ns/0")).await);
    let mut expected: std::collections::BTreeMap<String, Revision> = Default::default();
    for (n, at) in revisions.iter().enumerate() {
        match n {
            8 => drop(expected.remove("ns/0")),
            n => drop(expected.insert(format!("ns/{}", n % 3), *at)),
        }
        let snapshot = pond.cache.snapshot_at(&pond.pods(), *at).await.unwrap();
        let found: std::collections::BTreeMap<String, Revision> =
            snapshot.iter("", None).map(|o| (o.key().to_owned(), o.revision())).collect();
        assert_eq!(found, expected, "at {at}");
        assert_eq!(snapshot.revision(), *at);
    }
}

#[tokio::test(start_paused = true)]
async fn a_retired_resource_ends_its_watchers_and_those_that_join_later() {
    let pond = Pond::new(window(100)).await;
    let resource = pond.pods();
    let mut watcher = pond.watch(&all(), WatchStart::Now);
    let a = pond.put(&pod("ns/a")).await;
    let b = pond.delete(&pod("ns/a")).await;
    pond.cache.retire(&crate::fixture::pods());
    let expected = [format!("ADDED ns/a@{a} DELETED ns/a@{b}"), "closed".to_owned()];
    assert_eq!(ready_steps(&mut watcher), expected);
    let mut late = pond.cache.watch(&resource, &all(), WatchStart::Now);
    assert_eq!(ready_steps(&mut late), ["closed"]);
    // Defined again after it was dropped, it is a new resource.
    pond.sweep().await;
    pond.cache.set_fields(&crate::fixture::pods(), &[]).unwrap();
    let mut late = pond.cache.watch(&resource, &all(), WatchStart::Now);
    assert_eq!(ready_steps(&mut late), ["closed"]);
    let mut fresh = pond.watch(&all(), WatchStart::Now);
    let c = pond.put(&pod("ns/c")).await;
    assert_eq!(ready_steps(&mut fresh), [format!("ADDED ns/c@{c}")]);
}

/// Replaces a word, as a transform that prunes or defaults would.
struct Replacing;

impl headwater_cache::StoredTransform for Replacing {
    fn transform(&self, stored: &[u8]) -> Option<Vec<u8>> {
        let text = std::str::from_utf8(stored).unwrap();
        text.contains("old").then(|| text.replace("old", "new").into_bytes())
    }
}

#[tokio::test(start_paused = true)]
async fn a_transform_applies_to_every_read_and_changes_no_stored_value() {
    let pond = Pond::new(window(1)).await;
    let a = pond.put(&pod("ns/a").data("old")).await;
    let form: std::sync::Arc<dyn headwater_cache::StoredTransform> = std::sync::Arc::new(Replacing);
    let shape = headwater_cache::ObjectDecoder { transform: Some(form), ..Default::default() };
    pond.cache.set_decoder(&crate::fixture::pods(), shape).unwrap();
    assert!(pond.pods().is_stale("ns/a"));
    pond.put(&pod("ns/b").data("old")).await;
    pond.put(&pod("ns/b").data("fine")).await;
    let c = pond.delete(&pod("ns/a")).await;
    assert!(!pond.pods().is_stale("ns/b") && !pond.pods().is_stale("ns/a"));
    let past = pond.cache.snapshot_at(&pond.pods(), a).await.unwrap();
    let mut seen = vec![past.get("ns/a").unwrap().bytes()];
    let mut watcher = pond.watch(&all(), WatchStart::After(Revision(a.0 - 1)));
    while watcher.position() < c {
        let WatchStep::Events(events) = step(&mut watcher).await else { panic!("events come") };
        seen.extend(events.iter().map(|event| event.frame()));
    }
    assert_eq!(seen.len(), 5);
    for bytes in seen {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        assert!(text.contains("new") || text.contains("fine"), "{text}");
        assert!(!text.contains("old"), "{text}");
    }
    pond.cache.set_fields(&crate::fixture::pods(), &[]).unwrap();
    let record = pond.store.get(&pod("ns/b").key()).await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&record.value).contains("fine"));
}

#[tokio::test(start_paused = true)]
async fn an_idle_watcher_that_falls_behind_resumes_from_its_last_progress() {
    let pond = Pond::new(window(1)).await;
    let mut watcher = pond.watch(&filter("rare", "", ""), WatchStart::Now);
    assert!(ready(&mut watcher).is_none());
    let mut newest = Revision::ZERO;
    for n in 0..10 {
        newest = pond.put(&pod("busy/a").data(n)).await;
    }
    assert_eq!(watcher.progress(), Some(newest));
    pond.store.compact(newest).await.unwrap();
    let a = pond.put(&pod("rare/a")).await;
    let b = pond.put(&pod("rare/b")).await;
    pond.put(&pod("busy/a")).await;
    pond.sweep().await;
    assert_eq!(ready_steps(&mut watcher), [format!("ADDED rare/a@{a} ADDED rare/b@{b}")]);
}

/// S4.14
#[tokio::test(start_paused = true)]
async fn a_stop_wakes_every_watcher_and_follows_its_pending_events() {
    let pond = Pond::new(window(100)).await;
    let a = pond.put(&pod("ns/a")).await;
    let mut behind = pond.watch(&all(), WatchStart::Now);
    let mut waiting = pond.watch(&filter("other", "", ""), WatchStart::Now);
    let mut future = pond.watch(&all(), WatchStart::After(Revision(a.0 + 9)));
    let mut another = pond.watch(&filter("other", "", ""), WatchStart::Now);
    let mut third = pond.watch(&filter("third", "", ""), WatchStart::Now);
    for waiting in [&mut waiting, &mut another, &mut third] {
        assert!(ready(waiting).is_none());
    }
    let b = pond.put(&pod("ns/b")).await;
    let (one, two, three, ()) =
        tokio::join!(waiting.next(), another.next(), third.next(), async { pond.cache.stop() });
    for woken in [one, two, three] {
        assert_eq!(describe(&woken), format!("stopping at {b}"));
    }
    let steps = [format!("ADDED ns/b@{b}"), format!("stopping at {b}")];
    assert_eq!(ready_steps(&mut behind), steps);
    assert_eq!(ready_steps(&mut future), ["stopping"]);
    assert_eq!(ready_steps(&mut behind), ["closed"]);
    let mut late = pond.watch(&all(), WatchStart::Initial);
    let initial = format!("initial ns/a@{a} ns/b@{b}");
    let steps = [initial, format!("synced {b}"), format!("stopping at {b}")];
    assert_eq!(ready_steps(&mut late), steps);
}
