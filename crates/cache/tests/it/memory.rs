//! What the cache keeps in memory, and for how long (R30 to R32).

use std::sync::{Arc, Weak};
use std::time::Duration;

use headwater_api::Object;
use headwater_cache::window::Bounds;
use headwater_cache::{Options, WatchStart, WatchStep};

use crate::fixture::{Pod, Pond, all, pod, ready, step, window};

/// Old versions of a pod that are still referenced.
struct Versions(Vec<Weak<Object>>);

impl Versions {
    async fn write(pond: &Pond, pod: &Pod, count: usize) -> Versions {
        let mut versions = Vec::new();
        for n in 0..count {
            pond.put(&pod.clone().data(format!("{n} {}", pod.data))).await;
            versions.push(Arc::downgrade(&pond.object(pod)));
        }
        Versions(versions)
    }

    fn held(&self) -> usize {
        self.0.iter().filter(|version| version.strong_count() > 0).count()
    }
}

/// S5.11, R31
#[tokio::test(start_paused = true)]
async fn a_watcher_that_does_not_read_keeps_no_dropped_change_in_memory() {
    let pond = Pond::new(window(4)).await;
    let mut stalled = pond.watch(&all(), WatchStart::Now);
    assert!(ready(&mut stalled).is_none());
    let versions = Versions::write(&pond, &pod("ns/a"), 50).await;
    // The four in the window, and the version that the oldest of them replaced.
    assert!(versions.held() <= 5 + 1, "{} while it is busy", versions.held());
    pond.sweep().await;
    assert!(versions.held() <= 5, "{} after a sweep", versions.held());
}

#[tokio::test(start_paused = true)]
async fn an_idle_view_drops_the_events_that_the_window_dropped() {
    let pond = Pond::new(window(4)).await;
    let _stalled = pond.watch(&crate::fixture::filter("quiet", "", ""), WatchStart::Now);
    let versions = Versions::write(&pond, &pod("quiet/a"), 4).await;
    Versions::write(&pond, &pod("busy/a"), 10).await;
    pond.sweep().await;
    assert_eq!(versions.held(), 1, "only the newest is current");
}

/// S5.3
#[tokio::test(start_paused = true)]
async fn the_window_is_bounded_by_age() {
    let bounds = Bounds { age: Duration::from_secs(10), ..Bounds::default() };
    let pond = Pond::new(Options { window: bounds, ..Options::default() }).await;
    let _stalled = pond.watch(&all(), WatchStart::Now);
    let versions = Versions::write(&pond, &pod("ns/a"), 10).await;
    assert_eq!(versions.held(), 10);
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert_eq!(versions.held(), 1);
}

/// S5.3
/// Objects that shrink leave large old versions in the window, which must be counted.
#[tokio::test(start_paused = true)]
async fn the_window_is_bounded_by_the_bytes_that_only_it_holds() {
    let bounds = Bounds { bytes: 20_000, ..Bounds::default() };
    let pond = Pond::new(Options { window: bounds, ..Options::default() }).await;
    let large = pod("ns/a").data("x".repeat(8_000));
    let mut versions = Vec::new();
    for n in 0..10 {
        let name = format!("ns/{n}");
        pond.put(&Pod { name: name.clone(), ..large.clone() }).await;
        versions.push(Arc::downgrade(&pond.object(&pod(&name))));
        pond.put(&pod(&name)).await;
    }
    let held = versions.iter().filter(|version| version.strong_count() > 0).count();
    assert!(held <= 2, "{held} large versions of 8 KB in a window of 20 KB");
}

#[tokio::test(start_paused = true)]
async fn a_watcher_stuck_in_its_initial_state_does_not_keep_old_states_in_memory() {
    let bounds = Bounds { bytes: 20_000, count: 4, ..Bounds::default() };
    let pond = Pond::new(Options { window: bounds, ..Options::default() }).await;
    let large = pod("ns/a").data("x".repeat(8_000));
    let mut versions = Vec::new();
    for n in 0..300 {
        let name = format!("ns/{n:03}");
        pond.put(&Pod { name: name.clone(), ..large.clone() }).await;
        versions.push(Arc::downgrade(&pond.object(&pod(&name))));
    }
    let mut stuck = pond.watch(&all(), WatchStart::Initial);
    assert!(matches!(ready(&mut stuck), Some(WatchStep::Initial(_))));
    for n in 0..300 {
        pond.put(&pod(&format!("ns/{n:03}"))).await;
    }
    pond.sweep().await;
    let held = versions.iter().filter(|version| version.strong_count() > 0).count();
    assert!(held <= 4, "{held} of 300 replaced versions are held");
    // It cannot continue and ends: the client lists again.
    assert!(matches!(step(&mut stuck).await, WatchStep::Closed));
}

#[tokio::test(start_paused = true)]
async fn snapshots_kept_for_pages_hold_no_more_than_the_window_may() {
    let bounds = Bounds { bytes: 20_000, ..Bounds::default() };
    let pond = Pond::new(Options { window: bounds, ..Options::default() }).await;
    let large = pod("ns/a").data("x".repeat(8_000));
    let mut versions = Vec::new();
    for n in 0..40 {
        pond.put(&large.clone().data(format!("{n} {}", large.data))).await;
        versions.push(Arc::downgrade(&pond.object(&large)));
        pond.pods().keep(&pond.cache.snapshot(&pond.pods()));
    }
    pond.sweep().await;
    let held = versions.iter().filter(|version| version.strong_count() > 0).count();
    assert!(held <= 4, "{held} versions of 8 KB are held");
}

#[tokio::test(start_paused = true)]
async fn one_step_returns_no_more_than_a_socket_buffers() {
    let pond = Pond::new(window(3)).await;
    let mut behind = pond.watch(&all(), WatchStart::Now);
    let large = "x".repeat(40_000);
    for n in 0..20 {
        pond.put(&pod(&format!("ns/{n}")).data(&large)).await;
    }
    let mut initial = pond.watch(&all(), WatchStart::Initial);
    let mut seen = 0;
    while seen < 20 {
        let WatchStep::Events(events) = step(&mut behind).await else { panic!("events come") };
        let bytes: usize = events.iter().map(|event| event.object().as_slice().len()).sum();
        assert!(bytes < 120_000 && !events.is_empty(), "{bytes} bytes from disk or window");
        seen += events.len();
    }
    let mut seen = 0;
    while seen < 20 {
        let WatchStep::Initial(objects) = step(&mut initial).await else { panic!("objects come") };
        let bytes: usize = objects.iter().map(|object| object.as_slice().len()).sum();
        assert!(bytes < 120_000 && !objects.is_empty(), "{bytes} bytes of initial state");
        seen += objects.len();
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_watchers_leave_no_view_behind() {
    let pond = Pond::new(window(100)).await;
    let filters = [
        all(),
        crate::fixture::filter("ns", "", ""),
        crate::fixture::filter("", "app in (a,b,c),tier=x", ""),
        crate::fixture::filter("", "", "spec.nodeName=n1"),
        crate::fixture::filter("ns", "", "metadata.name=a"),
    ];
    let watchers: Vec<_> = filters
        .iter()
        .flat_map(|f| [WatchStart::Initial, WatchStart::Now].map(|s| pond.watch(f, s)))
        .collect();
    assert_eq!((pond.pods().watchers(), pond.pods().census().len()), (10, 5));
    assert!(pond.pods().may_have_watchers(10) && !pond.pods().may_have_watchers(11));
    // Those of everything, of the namespace and of the name; not those by label or field.
    assert_eq!(pond.pods().audience("ns", "a"), 6);
    assert_eq!(pond.pods().audience("ns", "b"), 4);
    assert_eq!(pond.pods().audience("other", "b"), 2);
    drop(watchers);
    assert_eq!((pond.pods().watchers(), pond.pods().census().len()), (0, 0));
    assert!(!pond.pods().may_have_watchers(1));
    let versions = Versions::write(&pond, &pod("ns/a"), 1).await;
    assert_eq!(versions.held(), 1);
}
