//! The store contract: one test for each promise of the `Store` trait.
//!
//! An engine runs it with one line in its tests. The expression creates a new engine for each test
//! and may await:
//!
//! ```ignore
//! headwater_testkit::store_contract!(Memory::default());
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use headwater_store::store::VALUE_MAX;
use headwater_store::{
    Action, Batch, Change, ChangeKind, ChangeStream, Committed, Error, Guard, Key, Op, Range,
    Record, Revision, Store, Version, VersionRange, Write,
};

/// Generates a `#[test]` for every promise, each on a new engine.
#[macro_export]
macro_rules! store_contract {
    ($make:expr) => {
        $crate::store_contract! { @tests $make;
            revisions_grow_by_one_for_each_change
            a_read_after_an_acknowledgement_returns_the_write
            reads_and_writes_of_many_clients_have_one_order_that_respects_time
            a_create_of_an_existing_key_conflicts_and_returns_the_record
            a_stale_update_conflicts_and_returns_the_current_record
            a_guarded_write_to_a_deleted_key_conflicts_and_returns_nothing
            of_many_writes_with_one_guard_exactly_one_succeeds
            concurrent_read_modify_writes_lose_no_update
            the_changes_of_a_write_share_its_revision_or_have_consecutive_ones
            a_watcher_cut_between_the_changes_of_a_write_receives_each_once
            a_write_with_one_failing_guard_changes_nothing
            an_invalid_write_is_refused_and_takes_no_revision
            a_range_is_in_key_order_and_within_its_prefix
            a_range_starts_after_its_key_and_ends_at_its_limit
            pages_of_one_state_hold_every_key_once_despite_writes_between
            a_range_at_a_revision_returns_exactly_the_writes_up_to_it
            a_range_at_a_future_revision_is_refused
            a_watch_yields_each_change_once_in_order_with_its_previous_value
            a_watch_resumes_after_any_revision
            a_watch_after_zero_yields_everything
            a_watch_yields_only_its_prefix_and_still_progresses
            a_watch_after_a_future_revision_waits_and_yields_nothing_older
            a_waiting_watch_yields_new_writes
            all_watchers_of_a_busy_store_see_the_same_order
            a_watcher_that_does_not_read_delays_no_writer
            a_dropped_watch_does_not_affect_the_others
            revisions_below_the_compaction_are_refused_and_the_compacted_one_is_not
            compaction_changes_no_result_above_it
            compacting_an_older_revision_does_nothing_and_a_future_one_is_refused
            compaction_at_a_delete_keeps_the_revision
            a_watch_overtaken_by_compaction_fails_without_a_gap
            a_value_expires_after_its_time_to_live_with_a_delete
            an_overwritten_time_to_live_has_no_effect
            the_condition_reports_the_newest_and_the_compacted_revision
            versions_of_a_key_are_newest_first_and_end_at_the_limit
            versions_up_to_a_revision_are_those_of_that_state
        }
    };
    (@tests $make:expr; $($promise:ident)*) => {
        $(
            #[test]
            fn $promise() {
                $crate::contract::run(async { $crate::contract::$promise(&$make).await });
            }
        )*
    };
}

/// Runs a test on two threads, with a timeout against hangs.
pub fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime starts");
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(600), test).await.expect("the test does not hang");
    });
}

/// Runs the same work on several threads at once; returns the results in order.
fn in_parallel<T: Send>(threads: usize, work: impl AsyncFn(usize) -> T + Sync) -> Vec<T> {
    let runtime = tokio::runtime::Handle::current();
    std::thread::scope(|scope| {
        let spawn = |n| {
            let (runtime, work) = (&runtime, &work);
            scope.spawn(move || runtime.block_on(work(n)))
        };
        let running: Vec<_> = (0..threads).map(spawn).collect();
        running.into_iter().map(|thread| thread.join().expect("the work succeeds")).collect()
    })
}

/// R3, R4.
pub async fn revisions_grow_by_one_for_each_change(store: &dyn Store) {
    let before = newest(store).await;
    let a = create(store, "/t/a", "1").await;
    let b = update(store, "/t/a", a, "2").await;
    let c = delete(store, "/t/a", b).await;
    let _conflict = conflict(store, put("/t/a", Guard::At(a), "3")).await;
    let d = create(store, "/t/a", "4").await;
    assert_eq!([a.0, b.0, c.0, d.0], [1, 2, 3, 4].map(|n| before.0 + n));
    assert_eq!(newest(store).await, d);
}

/// S6.3, R5, for one client.
pub async fn a_read_after_an_acknowledgement_returns_the_write(store: &dyn Store) {
    for n in 0..50 {
        let value = format!("value {n}");
        let at = create(store, &format!("/t/{n:02}"), &value).await;
        let record = record(&format!("/t/{n:02}"), at, &value);
        assert_eq!(newest(store).await, at);
        assert_eq!(get(store, &format!("/t/{n:02}")).await, Some(record.clone()));
        assert_eq!(all(store, "/t/", None).await.last(), Some(&record));
        let changes = drain(store, "/t/", Revision(at.0 - 1), at).await;
        assert_eq!(changes.len(), 1);
    }
}

/// R5, R22: for many clients at once, on few keys.
pub async fn reads_and_writes_of_many_clients_have_one_order_that_respects_time(store: &dyn Store) {
    const KEYS: usize = 3;
    const STEPS: usize = 40;
    let start = create(store, "/t/0", "start").await;
    // The highest revision of an acknowledged write.
    let acknowledged = AtomicU64::new(start.0);
    let seen = in_parallel(8, async |n| {
        let mut reads = Vec::new();
        for step in 0..STEPS {
            let key = format!("/t/{}", (n + step) % KEYS);
            let before = Revision(acknowledged.load(Ordering::SeqCst));
            match n {
                0..4 => {
                    let guard = match store.get(&Key::new(&*key)).await.expect("the store works") {
                        None => Guard::Absent,
                        Some(record) => Guard::At(record.revision),
                    };
                    let write = match (step % 7, guard) {
                        (6, Guard::At(at)) => remove(&key, at),
                        (_, guard) => put(&key, guard, &format!("{n} {step}")),
                    };
                    match store.commit(write).await {
                        Ok(done) => {
                            assert!(done.last > before, "a write is before one that had ended");
                            acknowledged.fetch_max(done.last.0, Ordering::SeqCst);
                        }
                        Err(error) => drop(actual_of(error)),
                    }
                }
                4..6 => {
                    let record = store.get(&Key::new(&*key)).await.expect("the store works");
                    let after = newest(store).await;
                    let only = record.into_iter().collect();
                    reads.push(TimedRead { prefix: key, before, after, records: only });
                }
                _ => {
                    let range = Range { prefix: "/t/".into(), ..Range::default() };
                    let page = store.range(range).await.expect("the store works");
                    let (at, records) = (page.revision, page.records);
                    assert!(at >= before, "a list at {at} lacks a write acknowledged at {before}");
                    // Exactly one state is right.
                    let prefix = "/t/".to_owned();
                    reads.push(TimedRead { prefix, before: at, after: at, records });
                }
            }
        }
        reads
    });
    let reads: Vec<TimedRead> = seen.into_iter().flatten().collect();
    let states = states_of(drain(store, "/t/", Revision::ZERO, newest(store).await).await);
    assert_eq!(reads.len(), 4 * STEPS);
    for read in reads {
        assert!(read.is_right(&states), "{read:?}");
    }
}

/// A read that began after all changes up to `before` were acknowledged, and ended before those
/// after `after` were.
#[derive(Debug)]
struct TimedRead {
    prefix: String,
    before: Revision,
    after: Revision,
    records: Vec<Record>,
}

impl TimedRead {
    /// Whether one of the states in its time had these records.
    fn is_right(&self, states: &BTreeMap<Revision, Vec<Record>>) -> bool {
        let first = states.range(..=self.before).next_back();
        let later = states.range((Bound::Excluded(self.before), Bound::Included(self.after)));
        first.into_iter().chain(later).any(|(_, state)| {
            let all = state.iter().filter(|record| record.key.as_str().starts_with(&self.prefix));
            all.eq(&self.records)
        })
    }
}

/// The state after each revision.
fn states_of(changes: Vec<Change>) -> BTreeMap<Revision, Vec<Record>> {
    let mut states = BTreeMap::new();
    let mut state: BTreeMap<String, Record> = BTreeMap::new();
    for change in changes {
        let key = change.key.to_string();
        let Change { revision, value, .. } = change;
        match change.kind {
            ChangeKind::Deleted => drop(state.remove(&key)),
            _ => drop(state.insert(key, Record { key: change.key, revision, value })),
        }
        states.insert(revision, state.values().cloned().collect());
    }
    states
}

/// S6.5, R6.
pub async fn a_create_of_an_existing_key_conflicts_and_returns_the_record(store: &dyn Store) {
    let at = create(store, "/t/a", "there").await;
    let actual = conflict(store, put("/t/a", Guard::Absent, "new")).await;
    assert_eq!(actual, Some(record("/t/a", at, "there")));
    assert_eq!(newest(store).await, at);
}

/// R6.
pub async fn a_stale_update_conflicts_and_returns_the_current_record(store: &dyn Store) {
    let old = create(store, "/t/a", "old").await;
    let at = update(store, "/t/a", old, "newer").await;
    let there = Some(record("/t/a", at, "newer"));
    assert_eq!(conflict(store, put("/t/a", Guard::At(old), "mine")).await, there);
    assert_eq!(conflict(store, remove("/t/a", old)).await, there);
    assert_eq!(conflict(store, put("/t/a", Guard::At(Revision(at.0 + 1)), "mine")).await, there);
    assert_eq!(get(store, "/t/a").await, there);
}

/// R6.
pub async fn a_guarded_write_to_a_deleted_key_conflicts_and_returns_nothing(store: &dyn Store) {
    let at = create(store, "/t/a", "old").await;
    let gone = delete(store, "/t/a", at).await;
    for guard in [at, gone] {
        assert_eq!(conflict(store, put("/t/a", Guard::At(guard), "mine")).await, None);
        assert_eq!(conflict(store, remove("/t/a", guard)).await, None);
    }
    assert_eq!(conflict(store, remove("/t/never", at)).await, None);
    assert_eq!(get(store, "/t/a").await, None);
}

/// R6.
pub async fn of_many_writes_with_one_guard_exactly_one_succeeds(store: &dyn Store) {
    let mut at = create(store, "/t/a", "start").await;
    for round in 0..20 {
        let write = |n| put("/t/a", Guard::At(at), &format!("{round} {n}"));
        let results = in_parallel(16, async |n| store.commit(write(n)).await);
        let won: Vec<usize> = (0..16).filter(|n| results[*n].is_ok()).collect();
        assert_eq!(won.len(), 1, "{results:?}");
        let won = won[0];
        at = results[won].as_ref().expect("this write succeeded").last;
        let there = Some(record("/t/a", at, &format!("{round} {won}")));
        for lost in results.into_iter().filter_map(Result::err) {
            assert_eq!(actual_of(lost), there);
        }
    }
}

/// R6.
pub async fn concurrent_read_modify_writes_lose_no_update(store: &dyn Store) {
    create(store, "/t/counter", "0").await;
    in_parallel(8, async |_| {
        for _ in 0..20 {
            increment(store).await;
        }
    });
    let end = get(store, "/t/counter").await.expect("the key exists");
    assert_eq!(end.value, "160");
}

async fn increment(store: &dyn Store) {
    let mut there = get(store, "/t/counter").await;
    while let Some(record) = there {
        let count: u64 = text(&record.value).parse().expect("a number was stored");
        let write = put("/t/counter", Guard::At(record.revision), &(count + 1).to_string());
        match store.commit(write).await {
            Ok(_) => return,
            Err(error) => there = actual_of(error),
        }
    }
}

/// R2, R3.
pub async fn the_changes_of_a_write_share_its_revision_or_have_consecutive_ones(store: &dyn Store) {
    let a = create(store, "/t/a", "1").await;
    let b = create(store, "/t/b", "1").await;
    let before = newest(store).await;
    let ops = [put("/t/c", Guard::Absent, "1"), remove("/t/a", a), put("/t/b", Guard::At(b), "2")];
    let done = store.commit(together(ops)).await.expect("the guards hold");
    let shared = done.first == done.last;
    let [c1, c2, c3] = [1, 2, 3].map(|n| Revision(before.0 + if shared { 1 } else { n }));
    assert_eq!(done, Committed::new(c1, c3));
    assert_eq!(newest(store).await, c3);
    let changes = drain(store, "/t/", before, c3).await;
    let expected = [
        change(c1, "/t/c", ChangeKind::Created, "1", None),
        change(c2, "/t/a", ChangeKind::Deleted, "", Some((a, "1"))),
        change(c3, "/t/b", ChangeKind::Updated, "2", Some((b, "1"))),
    ];
    assert_eq!(changes, expected, "in the order of the operations");
    assert_eq!(
        all(store, "/t/", Some(c3)).await,
        [record("/t/b", c3, "2"), record("/t/c", c1, "1")]
    );
    assert_eq!(all(store, "/t/", Some(before)).await.len(), 2);
}

/// R3, R10, R11: it resumes after any revision, also after the store was compacted there.
pub async fn a_watcher_cut_between_the_changes_of_a_write_receives_each_once(store: &dyn Store) {
    let start = newest(store).await;
    let changes = joint_writes(store).await;
    let end = newest(store).await;
    check_resumes(store, &changes, start).await;
    for at in (start.0..=end.0).map(Revision) {
        store.compact(at).await.expect("the compaction succeeds");
        check_resumes(store, &changes, at).await;
        let below = Revision(at.0 - 1);
        let refused = store.watch("/t/", below).await.err();
        assert!(is_compacted(refused.as_ref(), below, at), "{refused:?}");
    }
}

/// Writes several keys of a new store at once, repeatedly. Returns the changes as a watcher received
/// them that was never cut.
pub async fn joint_writes(store: &dyn Store) -> Vec<Change> {
    let start = newest(store).await;
    let mut watch = store.watch("/t/", start).await.expect("the watch starts");
    for round in 0..4_usize {
        let mut ops = Vec::new();
        for n in 0..6_usize {
            let key = Key::new(format!("/t/{}/{n}", ["a", "b"][n % 2]));
            let there = store.get(&key).await.expect("the store is readable");
            let guard = there.as_ref().map_or(Guard::Absent, |record| Guard::At(record.revision));
            let action = match there {
                Some(_) if (round + n).is_multiple_of(3) => Action::Delete,
                _ => set(&format!("value {round}")),
            };
            ops.push(Op { key, guard, action });
        }
        store.commit(Write { ops }).await.expect("the guards hold");
    }
    let end = newest(store).await;
    let changes = read_to(&mut watch, end).await;
    assert_eq!(changes.len(), 4 * 6);
    changes
}

/// Checks that a watcher that resumes after any revision from `oldest` receives each later change
/// once, and that a read at a revision contains all changes up to it. The store had no values before
/// these changes.
pub async fn check_resumes(store: &dyn Store, changes: &[Change], oldest: Revision) {
    let end = newest(store).await;
    for at in (oldest.0..=end.0).map(Revision) {
        for prefix in ["/t/", "/t/a/", "/t/b/"] {
            let is_left = |c: &&Change| c.revision > at && c.key.as_str().starts_with(prefix);
            let left: Vec<Change> = changes.iter().filter(is_left).cloned().collect();
            assert_eq!(drain(store, prefix, at, end).await, left, "{prefix} after {at}");
        }
        let mut state = BTreeMap::new();
        for Change { revision, key, kind, value, .. } in changes.iter().filter(|c| c.revision <= at)
        {
            let (revision, value) = (*revision, value.clone());
            match kind {
                ChangeKind::Deleted => state.remove(key),
                _ => state.insert(key.clone(), Record { key: key.clone(), revision, value }),
            };
        }
        let state: Vec<Record> = state.into_values().collect();
        assert_eq!(all(store, "/t/", Some(at)).await, state, "at {at}");
    }
}

/// R2.
pub async fn a_write_with_one_failing_guard_changes_nothing(store: &dyn Store) {
    let a = create(store, "/t/a", "1").await;
    let ops = [
        put("/t/b", Guard::Absent, "1"),
        remove("/t/a", a),
        put("/t/c", Guard::At(a), "1"),
        put("/t/d", Guard::Absent, "1"),
    ];
    match store.commit(together(ops)).await {
        Err(Error::Conflict { key, actual: None }) => assert_eq!(key, Key::new("/t/c")),
        other => panic!("expected a conflict over /t/c, got {other:?}"),
    }
    assert_eq!(newest(store).await, a);
    assert_eq!(all(store, "/t/", None).await, [record("/t/a", a, "1")]);
}

/// The limits of the trait.
pub async fn an_invalid_write_is_refused_and_takes_no_revision(store: &dyn Store) {
    let a = create(store, "/t/a", "1").await;
    let twice = together([put("/t/b", Guard::Absent, "1"), put("/t/b", Guard::Absent, "2")]);
    let large = "x".repeat(VALUE_MAX + 1);
    let long = format!("/t/{}", "x".repeat(5000));
    let unacceptable = [
        ("no operations", Write::default()),
        ("one key twice", twice),
        ("too large a value", put("/t/b", Guard::Absent, &large)),
        ("one of two too large", together([remove("/t/a", a), put("/t/b", Guard::Absent, &large)])),
        ("too long a key", put(&long, Guard::Absent, "1")),
        ("no key", put("", Guard::Absent, "1")),
        ("a delete of what is absent", Write::one(Key::new("/t/b"), Guard::Absent, Action::Delete)),
    ];
    for (what, write) in unacceptable {
        let result = store.commit(write).await;
        assert!(matches!(result, Err(Error::Refused(_))), "{what}: {result:?}");
    }
    assert_eq!(newest(store).await, a);
    let largest = "x".repeat(VALUE_MAX);
    let at = create(store, "/t/b", &largest).await;
    assert_eq!(get(store, "/t/b").await, Some(record("/t/b", at, &largest)));
    let empty = create(store, "/t/c", "").await;
    assert_eq!(get(store, "/t/c").await, Some(record("/t/c", empty, "")));
}

/// R49, below the server.
pub async fn a_range_is_in_key_order_and_within_its_prefix(store: &dyn Store) {
    for key in [
        "/t/pods/b/x",
        "/t/pods/b",
        "/t/pods0",
        "/t/pod/a",
        "/t/pods/a",
        "/t/podsx/a",
        "/t/pods/\u{10ffff}",
        "/t/pods/é",
    ] {
        create(store, key, key).await;
    }
    let found = all(store, "/t/pods/", None).await;
    assert_eq!(
        keys(&found),
        ["/t/pods/a", "/t/pods/b", "/t/pods/b/x", "/t/pods/é", "/t/pods/\u{10ffff}"]
    );
    assert_eq!(all(store, "", None).await.len(), 8);
    assert_eq!(all(store, "/none/", None).await, []);
}

/// Paging.
pub async fn a_range_starts_after_its_key_and_ends_at_its_limit(store: &dyn Store) {
    for n in 0..6 {
        create(store, &format!("/t/{n}"), "x").await;
    }
    let check = async |after: Option<&str>, limit, expected: &[&str], more| {
        let range = Range { prefix: "/t/".into(), after: after.map(Key::new), at: None, limit };
        let page = store.range(range).await.expect("the range is readable");
        assert_eq!(keys(&page.records), expected, "after {after:?} limit {limit:?}");
        assert_eq!(page.more, more, "after {after:?} limit {limit:?}");
    };
    check(None, Some(2), &["/t/0", "/t/1"], true).await;
    check(Some("/t/1"), Some(2), &["/t/2", "/t/3"], true).await;
    check(Some("/t/3"), Some(2), &["/t/4", "/t/5"], false).await;
    check(Some("/t/3"), None, &["/t/4", "/t/5"], false).await;
    check(Some("/t/35"), Some(1), &["/t/4"], true).await;
    check(Some("/t/5"), Some(2), &[], false).await;
    check(Some("/a"), Some(1), &["/t/0"], true).await;
    check(Some("/z"), None, &[], false).await;
    check(None, Some(0), &[], true).await;
}

/// R7.
pub async fn pages_of_one_state_hold_every_key_once_despite_writes_between(store: &dyn Store) {
    for n in 0..20 {
        create(store, &format!("/t/{n:02}"), "before").await;
    }
    let state = all(store, "/t/", None).await;
    let at = newest(store).await;
    let (mut pages, mut after) = (Vec::new(), None);
    loop {
        let range = Range { prefix: "/t/".into(), after, at: Some(at), limit: Some(3) };
        let page = store.range(range).await.expect("the state is in the window");
        assert_eq!(page.revision, at);
        pages.extend(page.records);
        if !page.more {
            break;
        }
        disturb(store, pages.len()).await;
        after = pages.last().map(|record| record.key.clone());
    }
    assert_eq!(pages, state);
}

/// Deletes, updates and creates keys near a position in `/t/`.
async fn disturb(store: &dyn Store, place: usize) {
    let current = all(store, "/t/", None).await;
    for (n, record) in current.iter().enumerate().skip(place.saturating_sub(2)).take(5) {
        let guard = Guard::At(record.revision);
        let action = if n % 2 == 0 { Action::Delete } else { set("after") };
        store
            .commit(Write::one(record.key.clone(), guard, action))
            .await
            .expect("no other client writes");
        create(store, &format!("{}-{}", record.key, newest(store).await), "between").await;
    }
}

/// R7.
pub async fn a_range_at_a_revision_returns_exactly_the_writes_up_to_it(store: &dyn Store) {
    let states = some_history(store).await;
    for (at, state) in &states {
        assert_eq!(&all(store, "/t/", Some(*at)).await, state, "at {at}");
    }
}

/// R8.
pub async fn a_range_at_a_future_revision_is_refused(store: &dyn Store) {
    let at = create(store, "/t/a", "1").await;
    let range = Range { prefix: "/t/".into(), at: Some(at.next()), ..Range::default() };
    match store.range(range).await {
        Err(Error::Future { asked, current }) => assert_eq!((asked, current), (at.next(), at)),
        other => panic!("expected the future to be refused, got {other:?}"),
    }
}

/// S6.11, R10: ordered, unique, reliable, right kinds and previous values.
pub async fn a_watch_yields_each_change_once_in_order_with_its_previous_value(store: &dyn Store) {
    let start = newest(store).await;
    let a = create(store, "/t/a", "1").await;
    let b = create(store, "/t/b", "1").await;
    let c = update(store, "/t/a", a, "2").await;
    let d = update(store, "/t/a", c, "2").await;
    let e = delete(store, "/t/a", d).await;
    let f = create(store, "/t/a", "3").await;
    let expected = [
        change(a, "/t/a", ChangeKind::Created, "1", None),
        change(b, "/t/b", ChangeKind::Created, "1", None),
        change(c, "/t/a", ChangeKind::Updated, "2", Some((a, "1"))),
        change(d, "/t/a", ChangeKind::Updated, "2", Some((c, "2"))),
        change(e, "/t/a", ChangeKind::Deleted, "", Some((d, "2"))),
        change(f, "/t/a", ChangeKind::Created, "3", None),
    ];
    assert_eq!(drain(store, "/t/", start, f).await, expected);
}

/// R10: resumable, never at or below the requested revision.
pub async fn a_watch_resumes_after_any_revision(store: &dyn Store) {
    let start = newest(store).await;
    let states = some_history(store).await;
    let (end, _) = states.last_key_value().expect("there is a history");
    let whole = drain(store, "/t/", start, *end).await;
    for (n, at) in states.keys().enumerate() {
        assert_eq!(drain(store, "/t/", *at, *end).await, whole[n..], "after {at}");
    }
}

/// R10, for a store that was never compacted.
pub async fn a_watch_after_zero_yields_everything(store: &dyn Store) {
    let start = newest(store).await;
    let states = some_history(store).await;
    let (end, _) = states.last_key_value().expect("there is a history");
    let whole = drain(store, "/t/", start, *end).await;
    assert_eq!(drain(store, "/t/", Revision::ZERO, *end).await, whole);
    assert_eq!(all(store, "/t/", Some(Revision::ZERO)).await, []);
}

/// R10: filter-true, bookmarkable.
pub async fn a_watch_yields_only_its_prefix_and_still_progresses(store: &dyn Store) {
    let start = newest(store).await;
    let mut watch = store.watch("/t/pods/", start).await.expect("the watch starts");
    let a = create(store, "/t/pods/a", "1").await;
    create(store, "/t/podsx/a", "1").await;
    let end = create(store, "/t/pod/a", "1").await;
    let seen = read_to(&mut watch, end).await;
    assert_eq!(seen, [change(a, "/t/pods/a", ChangeKind::Created, "1", None)]);
}

/// R8.
pub async fn a_watch_after_a_future_revision_waits_and_yields_nothing_older(store: &dyn Store) {
    let at = create(store, "/t/0", "1").await;
    let from = Revision(at.0 + 3);
    let mut watch = store.watch("/t/", from).await.expect("a watch after a future revision starts");
    let mut last = at;
    for n in 1..=5 {
        last = create(store, &format!("/t/{n}"), "1").await;
    }
    let seen = read_to(&mut watch, last).await;
    assert_eq!(
        seen.iter().map(|change| change.revision.0).collect::<Vec<_>>(),
        [from.0 + 1, from.0 + 2]
    );
}

/// R10.
pub async fn a_waiting_watch_yields_new_writes(store: &dyn Store) {
    let start = newest(store).await;
    let mut watch = store.watch("/t/", start).await.expect("the watch starts");
    for n in 0..20 {
        let key = format!("/t/{n}");
        let (seen, at) = tokio::join!(watch.next(), create(store, &key, "1"));
        let batch = seen.expect("the stream continues").expect("the revision is not compacted");
        assert_eq!(batch.changes, [change(at, &key, ChangeKind::Created, "1", None)]);
        assert_eq!(batch.complete_to, at);
    }
}

/// R10, R12.
pub async fn all_watchers_of_a_busy_store_see_the_same_order(store: &dyn Store) {
    let start = newest(store).await;
    let end = Revision(start.0 + 8 * 30);
    let seen = in_parallel(12, async |n| match n {
        0..8 => {
            for m in 0..30 {
                create(store, &format!("/t/{n}/{m}"), "1").await;
            }
            None
        }
        _ => {
            let mut watch = store.watch("/t/", start).await.expect("the watch starts");
            Some(read_to(&mut watch, end).await)
        }
    });
    let seen: Vec<Vec<Change>> = seen.into_iter().flatten().collect();
    let revisions: Vec<u64> = seen[0].iter().map(|change| change.revision.0).collect();
    assert_eq!(revisions, (start.0 + 1..=end.0).collect::<Vec<_>>());
    for other in &seen[1..] {
        assert_eq!(other, &seen[0]);
    }
}

/// R11, R30 below the cache.
pub async fn a_watcher_that_does_not_read_delays_no_writer(store: &dyn Store) {
    let start = newest(store).await;
    let mut idle = store.watch("/t/", start).await.expect("the watch starts");
    let mut at = create(store, "/t/a", "0").await;
    for n in 1..3_000 {
        at = update(store, "/t/a", at, &n.to_string()).await;
    }
    assert_eq!(read_to(&mut idle, at).await.len(), 3_000);
}

/// R32 below the cache.
pub async fn a_dropped_watch_does_not_affect_the_others(store: &dyn Store) {
    let start = newest(store).await;
    let mut kept = store.watch("/t/", start).await.expect("the watch starts");
    for n in 0..10 {
        let mut dropped = store.watch("/t/", start).await.expect("the watch starts");
        create(store, &format!("/t/{n}"), "1").await;
        dropped.next().await.expect("the stream continues").expect("the revision is not compacted");
    }
    let end = newest(store).await;
    assert_eq!(read_to(&mut kept, end).await.len(), 10);
}

/// R8.
pub async fn revisions_below_the_compaction_are_refused_and_the_compacted_one_is_not(
    store: &dyn Store,
) {
    let states = some_history(store).await;
    let revisions: Vec<Revision> = states.keys().copied().collect();
    let at = revisions[revisions.len() / 2];
    store.compact(at).await.expect("the compaction succeeds");
    for below in revisions.iter().filter(|below| **below < at) {
        let range = Range { prefix: "/t/".into(), at: Some(*below), ..Range::default() };
        let read = store.range(range).await.err();
        assert!(is_compacted(read.as_ref(), *below, at), "{read:?}");
        let watch = store.watch("/t/", *below).await.err();
        assert!(is_compacted(watch.as_ref(), *below, at), "{watch:?}");
    }
    assert_eq!(all(store, "/t/", Some(at)).await, states[&at]);
    assert!(store.watch("/t/", at).await.is_ok());
}

/// R9.
pub async fn compaction_changes_no_result_above_it(store: &dyn Store) {
    let states = some_history(store).await;
    let (end, _) = states.last_key_value().expect("there is a history");
    let mut changes = BTreeMap::new();
    for at in states.keys() {
        changes.insert(*at, drain(store, "/t/", *at, *end).await);
    }
    for compacted in states.keys() {
        store.compact(*compacted).await.expect("the compaction succeeds");
        for (at, state) in states.range(compacted..) {
            assert_eq!(&all(store, "/t/", Some(*at)).await, state, "at {at} above {compacted}");
            assert_eq!(drain(store, "/t/", *at, *end).await, changes[at], "after {at}");
        }
    }
    assert_eq!(newest(store).await, *end);
}

/// R4, R9.
pub async fn compacting_an_older_revision_does_nothing_and_a_future_one_is_refused(
    store: &dyn Store,
) {
    let states = some_history(store).await;
    let revisions: Vec<Revision> = states.keys().copied().collect();
    let (at, end) = (revisions[5], revisions[revisions.len() - 1]);
    store.compact(at).await.expect("the compaction succeeds");
    for past in [at, revisions[2], Revision::ZERO] {
        store.compact(past).await.expect("compacting again is harmless");
        assert_eq!(all(store, "/t/", Some(at)).await, states[&at]);
    }
    match store.compact(end.next()).await {
        Err(Error::Future { asked, current }) => assert_eq!((asked, current), (end.next(), end)),
        other => panic!("expected the future to be refused, got {other:?}"),
    }
    assert_eq!(store.condition().compacted, at);
}

/// R4, R9. Whether the record of the delete itself is kept cannot be observed: a watch begins after the
/// compacted revision, and a read there has no object. The revision can be.
pub async fn compaction_at_a_delete_keeps_the_revision(store: &dyn Store) {
    let a = create(store, "/t/a", "1").await;
    let gone = delete(store, "/t/a", a).await;
    let mut watch = store.watch("/t/", gone).await.expect("the watch starts");
    store.compact(gone).await.expect("the newest revision can be compacted");
    assert_eq!(newest(store).await, gone);
    assert_eq!(all(store, "/t/", Some(gone)).await, []);
    assert_eq!(conflict(store, put("/t/a", Guard::At(a), "mine")).await, None);
    let b = create(store, "/t/a", "2").await;
    assert_eq!(b, gone.next());
    let expected = [change(b, "/t/a", ChangeKind::Created, "2", None)];
    assert_eq!(read_to(&mut watch, b).await, expected);
    assert_eq!(drain(store, "/t/", gone, b).await, expected);
}

/// R11.
pub async fn a_watch_overtaken_by_compaction_fails_without_a_gap(store: &dyn Store) {
    let start = newest(store).await;
    let mut watch = store.watch("/t/", start).await.expect("the watch starts");
    let states = some_history(store).await;
    let (end, _) = states.last_key_value().expect("there is a history");
    let whole = drain(store, "/t/", start, *end).await;
    store.compact(*end).await.expect("the compaction succeeds");
    // Changes that were fetched before may still arrive; then the watch fails, unless it had
    // fetched everything.
    let (mut seen, mut position) = (Vec::new(), start);
    while position < *end {
        match watch.next().await.expect("the stream ends with an error") {
            Ok(batch) => {
                position = batch.complete_to;
                seen.extend(batch.changes);
            }
            Err(error) => {
                assert!(is_compacted(Some(&error), position, *end), "{error:?}");
                assert!(watch.next().await.is_none(), "the stream ends after an error");
                break;
            }
        }
    }
    assert_eq!(seen, whole[..seen.len()]);
}

/// R16.
pub async fn a_value_expires_after_its_time_to_live_with_a_delete(store: &dyn Store) {
    let start = newest(store).await;
    let ttl = Duration::from_millis(200);
    let begun = Instant::now();
    // The key with the time to live is written last, so that only its expiry can follow.
    let stays = create(store, "/t/b", "1").await;
    let at = commit(store, mortal("/t/a", Guard::Absent, "1", ttl)).await;
    let mut watch = store.watch("/t/", start).await.expect("the watch starts");
    let gone = at.next();
    let seen = read_to(&mut watch, gone).await;
    assert!(begun.elapsed() >= ttl, "the value expired too early");
    assert_eq!(seen[2], change(gone, "/t/a", ChangeKind::Deleted, "", Some((at, "1"))));
    assert_eq!(all(store, "/t/", None).await, [record("/t/b", stays, "1")]);
    assert_eq!(all(store, "/t/", Some(at)).await.len(), 2);
}

/// R16.
pub async fn an_overwritten_time_to_live_has_no_effect(store: &dyn Store) {
    let mut ttl = Duration::from_millis(50);
    let (root, expected) = loop {
        let root = format!("/t/{}/", ttl.as_millis());
        match overwritten(store, &root, ttl).await {
            Some(records) => break (root, records),
            // A slow machine: a value expired before it was overwritten.
            None => ttl *= 8,
        }
    };
    let last = format!("{root}last");
    let c = commit(store, mortal(&last, Guard::Absent, "1", 6 * ttl)).await;
    let mut watch = store.watch(&root, c).await.expect("the watch starts");
    // Only the last key expires.
    let seen = read_to(&mut watch, c.next()).await;
    assert_eq!(seen, [change(c.next(), &last, ChangeKind::Deleted, "", Some((c, "1")))]);
    assert_eq!(all(store, &root, None).await, expected);
}

/// Overwrites a value with a time to live, and deletes and creates another; `None` if one of them
/// expired before.
async fn overwritten(store: &dyn Store, root: &str, ttl: Duration) -> Option<[Record; 2]> {
    let (kept, again) = (format!("{root}kept"), format!("{root}again"));
    let in_time = async |write: Write| match store.commit(write).await {
        Err(Error::Conflict { .. }) => None,
        done => Some(done.expect("the write is accepted").last),
    };
    let at = commit(store, mortal(&kept, Guard::Absent, "1", ttl)).await;
    let first = in_time(put(&kept, Guard::At(at), "2")).await?;
    let at = commit(store, mortal(&again, Guard::Absent, "1", ttl)).await;
    let gone = in_time(remove(&again, at)).await?;
    assert_eq!(gone, first.next().next());
    let second = create(store, &again, "2").await;
    Some([record(&again, second, "2"), record(&kept, first, "2")])
}

/// Health and window edges.
pub async fn the_condition_reports_the_newest_and_the_compacted_revision(store: &dyn Store) {
    let states = some_history(store).await;
    let (end, _) = states.last_key_value().expect("there is a history");
    let at = Revision(end.0 - 3);
    store.compact(at).await.expect("the compaction succeeds");
    let condition = store.condition();
    assert_eq!((condition.revision, condition.compacted), (*end, at));
    assert_eq!(condition.trouble, None);
}

// Helpers.

/// Creates, updates, deletes and creates keys again; returns the state of `/t/` at every revision.
async fn some_history(store: &dyn Store) -> BTreeMap<Revision, Vec<Record>> {
    let mut states = BTreeMap::from([(newest(store).await, all(store, "/t/", None).await)]);
    for n in 0..40_usize {
        let key = Key::new(format!("/t/{}", [3, 1, 4, 1, 5, 9, 2, 6][n % 8]));
        let there = store.get(&key).await.expect("the store is readable");
        let (guard, action) = match there {
            None => (Guard::Absent, set(&format!("value {n}"))),
            Some(record) if n % 3 == 0 => (Guard::At(record.revision), Action::Delete),
            Some(record) => (Guard::At(record.revision), set(&format!("value {n}"))),
        };
        let at = commit(store, Write::one(key, guard, action)).await;
        states.insert(at, all(store, "/t/", None).await);
    }
    states
}

async fn newest(store: &dyn Store) -> Revision {
    store.revision().await.expect("the store knows its revision")
}

async fn get(store: &dyn Store, key: &str) -> Option<Record> {
    store.get(&Key::new(key)).await.expect("the store is readable")
}

async fn all(store: &dyn Store, prefix: &str, at: Option<Revision>) -> Vec<Record> {
    let range = Range { prefix: prefix.into(), at, ..Range::default() };
    let page = store.range(range).await.expect("the state is readable");
    assert!(!page.more);
    if let Some(at) = at {
        assert_eq!(page.revision, at);
    }
    page.records
}

async fn commit(store: &dyn Store, write: Write) -> Revision {
    let done = store.commit(write).await.expect("the write is accepted");
    assert_eq!(done.first, done.last);
    done.last
}

async fn create(store: &dyn Store, key: &str, value: &str) -> Revision {
    commit(store, put(key, Guard::Absent, value)).await
}

async fn update(store: &dyn Store, key: &str, at: Revision, value: &str) -> Revision {
    commit(store, put(key, Guard::At(at), value)).await
}

async fn delete(store: &dyn Store, key: &str, at: Revision) -> Revision {
    commit(store, remove(key, at)).await
}

async fn conflict(store: &dyn Store, write: Write) -> Option<Record> {
    actual_of(store.commit(write).await.expect_err("the guard fails"))
}

#[track_caller]
fn actual_of(error: Error) -> Option<Record> {
    match error {
        Error::Conflict { actual, .. } => actual,
        other => panic!("expected a conflict, got {other:?}"),
    }
}

/// All changes of a watch after `after`, until it is complete up to `end`.
async fn drain(store: &dyn Store, prefix: &str, after: Revision, end: Revision) -> Vec<Change> {
    let mut watch = store.watch(prefix, after).await.expect("the history is available");
    if after >= end {
        return Vec::new();
    }
    read_to(&mut watch, end).await
}

/// All changes of a watch until it is complete up to `end`; checks the bounds of each batch.
pub(crate) async fn read_to(watch: &mut ChangeStream, end: Revision) -> Vec<Change> {
    let (mut seen, mut position): (Vec<Change>, _) = (Vec::new(), Revision::ZERO);
    while position < end {
        let batch = watch
            .next()
            .await
            .expect("the stream continues")
            .expect("the revision is not compacted");
        check_batch(&batch, seen.last().map(|change| change.revision), position);
        position = batch.complete_to;
        seen.extend(batch.changes);
    }
    seen
}

#[track_caller]
fn check_batch(batch: &Batch, last: Option<Revision>, position: Revision) {
    assert!(batch.complete_to >= position, "progress never falls");
    assert!(batch.changes.is_sorted_by_key(|c| c.revision), "in order: {batch:?}");
    let distinct: BTreeSet<_> = batch.changes.iter().map(|c| (c.revision, &c.key)).collect();
    assert_eq!(distinct.len(), batch.changes.len(), "once: {batch:?}");
    assert!(
        batch.changes.iter().all(|c| Some(c.revision) > last),
        "a revision was split: {batch:?}"
    );
    assert!(batch.changes.iter().all(|c| c.revision > position), "progress was honest");
    assert!(batch.changes.iter().all(|c| c.revision <= batch.complete_to), "progress covers it");
}

fn is_compacted(error: Option<&Error>, asked: Revision, oldest: Revision) -> bool {
    matches!(error, Some(Error::Compacted { asked: a, oldest: o }) if (*a, *o) == (asked, oldest))
}

fn set(value: &str) -> Action {
    Action::Put { value: Bytes::copy_from_slice(value.as_bytes()), ttl: None }
}

fn put(key: &str, guard: Guard, value: &str) -> Write {
    Write::one(Key::new(key), guard, set(value))
}

fn mortal(key: &str, guard: Guard, value: &str, ttl: Duration) -> Write {
    let value = Bytes::copy_from_slice(value.as_bytes());
    Write::one(Key::new(key), guard, Action::Put { value, ttl: Some(ttl) })
}

fn remove(key: &str, at: Revision) -> Write {
    Write::one(Key::new(key), Guard::At(at), Action::Delete)
}

fn together<const N: usize>(writes: [Write; N]) -> Write {
    let ops: Vec<Op> = writes.into_iter().flat_map(|write| write.ops).collect();
    Write { ops }
}

fn record(key: &str, revision: Revision, value: &str) -> Record {
    Record { key: Key::new(key), revision, value: Bytes::copy_from_slice(value.as_bytes()) }
}

fn change(
    revision: Revision,
    key: &str,
    kind: ChangeKind,
    value: &str,
    prev: Option<(Revision, &str)>,
) -> Change {
    let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    let prev = prev.map(|(revision, value)| Version { revision, value: bytes(value) });
    Change { revision, key: Key::new(key), kind, value: bytes(value), prev }
}

fn keys(records: &[Record]) -> Vec<&str> {
    records.iter().map(|record| record.key.as_str()).collect()
}

fn text(value: &Bytes) -> &str {
    std::str::from_utf8(value).expect("text was stored")
}

/// Four versions of one key, with writes of others between; returns their revisions, newest first.
async fn four_versions(store: &dyn Store) -> Vec<Revision> {
    let mut at = create(store, "/v/a", "0").await;
    let mut all = vec![at];
    for value in ["1", "2", "3"] {
        create(store, &format!("/v/a-{value}"), "other").await;
        let put = Action::Put { value: Bytes::copy_from_slice(value.as_bytes()), ttl: None };
        let write = Write::one(Key::new("/v/a"), Guard::At(at), put);
        at = store.commit(write).await.expect("the guard holds").last;
        all.insert(0, at);
    }
    all
}

pub async fn versions_of_a_key_are_newest_first_and_end_at_the_limit(store: &dyn Store) {
    let written = four_versions(store).await;
    let read = async |limit| {
        let key = Key::new("/v/a");
        let range = VersionRange { key, upto: None, limit };
        store.versions(range).await.expect("the history is kept")
    };
    let all = read(10).await;
    let found: Vec<Revision> = all.versions.iter().map(|version| version.revision).collect();
    assert_eq!((found, all.more), (written, false));
    let values: Vec<&[u8]> = all.versions.iter().map(|version| &version.value[..]).collect();
    assert_eq!(values, [b"3", b"2", b"1", b"0"]);
    assert_eq!(all.versions[0].kind, ChangeKind::Updated);
    assert_eq!(all.versions[3].kind, ChangeKind::Created);
    let two = read(2).await;
    assert_eq!((two.versions.as_slice(), two.more), (&all.versions[..2], true));
    let none = VersionRange { key: Key::new("/v/none"), upto: None, limit: 10 };
    assert!(store.versions(none).await.expect("it never existed").versions.is_empty());
}

pub async fn versions_up_to_a_revision_are_those_of_that_state(store: &dyn Store) {
    let written = four_versions(store).await;
    let upto = async |upto| {
        let range = VersionRange { key: Key::new("/v/a"), upto: Some(upto), limit: 10 };
        store.versions(range).await.map(|history| {
            history.versions.iter().map(|version| version.revision).collect::<Vec<_>>()
        })
    };
    assert_eq!(upto(written[1]).await.expect("it is kept"), written[1..]);
    // The revision before belongs to another key.
    let between = Revision(written[1].0 - 1);
    assert_eq!(upto(between).await.expect("it is kept"), written[2..]);
    store.compact(written[1]).await.expect("it was reached");
    assert_eq!(upto(written[1]).await.expect("it is kept")[0], written[1]);
    assert!(matches!(upto(written[3]).await, Err(Error::Compacted { .. })));
}
