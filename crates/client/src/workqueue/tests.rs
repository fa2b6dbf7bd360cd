//! What the work queue promises, clause by clause. Everything timed runs on a paused clock.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use proptest::prelude::*;
use tokio::time::{advance, sleep};

use super::*;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn take<T: Hash + Eq + Clone + Send + fmt::Debug + 'static>(queue: &Queue<T>) -> Vec<T> {
    std::iter::from_fn(|| queue.try_get().map(|item| (*item).clone())).collect()
}

/// C18.1
#[test]
fn an_item_added_twice_while_waiting_is_returned_once() {
    let queue = Queue::new();
    for item in ["a", "b", "a", "a", "b"] {
        queue.add(item);
    }
    assert_eq!(take(&queue), ["a", "b"]);
}

/// C18.2
#[test]
fn dirty_and_processing_items_are_distinguished() {
    let queue = Queue::new();
    queue.add("a");
    let held = queue.try_get().unwrap();
    queue.add("a");
    queue.add("b");
    assert_eq!((queue.len(), queue.lock().processing()), (1, 1));
    drop(held);
    assert_eq!(take(&queue), ["b", "a"]);
    assert_eq!(queue.lock().entries(), 0, "nothing is kept of items that are done");
}

/// C18.3, R82
#[test]
fn an_item_added_while_processing_is_returned_again_after_done() {
    let queue = Queue::new();
    queue.add(1);
    let held = queue.try_get().unwrap();
    queue.add(1);
    queue.add(1);
    assert!(queue.try_get().is_none());
    drop(held);
    assert_eq!(take(&queue), [1]);
    assert!(queue.try_get().is_none());
}

/// C18.4, R80, R81
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_item_is_given_to_two_workers_and_none_is_lost() {
    let queue = Queue::new();
    let running: Arc<Mutex<HashSet<u32>>> = Arc::default();
    let handed_out = Arc::new(AtomicUsize::new(0));
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (queue, running, handed_out) = (queue.clone(), running.clone(), handed_out.clone());
        workers.spawn(async move {
            while let Some(item) = queue.get().await {
                assert!(running.lock().unwrap().insert(*item), "{} twice at once", *item);
                handed_out.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                running.lock().unwrap().remove(&*item);
            }
        });
    }
    for round in 0..2000u32 {
        queue.add(round % 50);
        if round % 7 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let drained = queue.shut_down_draining(Duration::from_secs(30)).await;
    assert_eq!(drained, Drained::default());
    while let Some(ended) = workers.join_next().await {
        ended.unwrap();
    }
    assert!(handed_out.load(Ordering::Relaxed) >= 50);
    assert!(queue.is_empty());
}

/// C18.5, C20.6
#[test]
fn items_leave_in_the_order_they_became_ready() {
    let queue = Queue::new();
    for item in 0..100 {
        queue.add(item);
    }
    let held = queue.try_get().unwrap();
    queue.add(0);
    drop(held); // becomes ready again after 99
    assert_eq!(take(&queue), (1..100).chain([0]).collect::<Vec<_>>());
}

/// C18.6, R85
#[tokio::test(start_paused = true)]
async fn get_waits_for_an_item_and_for_the_shutdown() {
    let queue = Queue::new();
    let mut waiting = Box::pin(queue.get());
    assert!(waiting.as_mut().now_or_never().is_none());
    queue.add(3);
    assert_eq!(*waiting.await.unwrap(), 3);
    let mut all: Vec<_> = (0..10).map(|_| Box::pin(queue.get())).collect();
    assert!(all.iter_mut().all(|waiting| waiting.as_mut().now_or_never().is_none()));
    queue.shut_down();
    for waiting in all {
        let woken = tokio::time::timeout(60 * SECOND, waiting).await;
        assert!(woken.expect("a waiter sleeps through the shutdown").is_none());
    }
}

/// C18.7
#[tokio::test]
async fn a_worker_that_panics_or_is_cancelled_releases_its_item() {
    let queue = Queue::new();
    queue.add(1);
    let mut workers = tokio::task::JoinSet::new();
    let worker = queue.clone();
    workers.spawn(async move {
        let _item = worker.get().await;
        panic!("a worker's bug");
    });
    assert!(workers.join_next().await.unwrap().unwrap_err().is_panic());
    assert_eq!(queue.lock().processing(), 0);

    queue.add(1);
    let worker = queue.clone();
    workers.spawn(async move {
        let _item = worker.get().await;
        std::future::pending::<()>().await;
    });
    while queue.lock().processing() == 0 {
        tokio::task::yield_now().await;
    }
    queue.add(1);
    workers.shutdown().await;
    assert_eq!(take(&queue), [1]);
}

/// C18.8, C31.3
#[tokio::test(start_paused = true)]
async fn dropping_a_waiting_get_loses_no_item() {
    let queue = Queue::new();
    for round in 0..100 {
        let mut first = Box::pin(queue.get());
        let mut second = Box::pin(queue.get());
        assert!(first.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_none());
        queue.add(round); // wakes the first, which is then dropped
        drop(first);
        assert_eq!(*second.await.unwrap(), round);
    }
}

/// C18.9
#[test]
fn after_a_shutdown_adds_are_ignored_and_queued_items_are_returned() {
    let queue = Queue::new();
    queue.add("queued");
    queue.add("running");
    let _queued = queue.try_get().unwrap();
    let running = queue.try_get().unwrap();
    queue.add("running"); // dirty while processing, before the shutdown
    queue.add("late-queued");
    queue.shut_down();
    queue.add("ignored");
    running.retry(); // after the shutdown: ignored as well, but the earlier mark counts
    assert_eq!(take(&queue), ["late-queued", "running"]);
    assert!(queue.try_get().is_none());
}

/// C18.10, R85
#[tokio::test(start_paused = true)]
async fn draining_waits_for_queued_and_running_items_up_to_the_deadline() {
    let queue = Queue::new();
    queue.add(1);
    queue.add(2);
    let held = queue.try_get().unwrap();
    let left = queue.shut_down_draining(SECOND).await;
    assert_eq!(left, Drained { left: 2, discarded: 0 });

    let drain = queue.shut_down_draining(60 * SECOND);
    let work = async {
        sleep(5 * SECOND).await;
        drop(held);
        assert_eq!(take(&queue), [2]);
    };
    let before = Instant::now();
    let (drained, ()) = tokio::join!(drain, work);
    assert_eq!(drained.left, 0);
    assert_eq!(before.elapsed(), 5 * SECOND);
}

/// C18.11
#[tokio::test(start_paused = true)]
async fn a_shutdown_drops_delayed_items_and_returns_their_number() {
    let queue = Queue::new();
    queue.add_after(1, 60 * SECOND);
    queue.add_after(2, 600 * SECOND);
    let before = Instant::now();
    let drained = queue.shut_down_draining(3600 * SECOND).await;
    assert_eq!(drained, Drained { left: 0, discarded: 2 });
    assert!(queue.get().await.is_none());
    assert_eq!(before.elapsed(), Duration::ZERO);
    assert_eq!(queue.lock().entries(), 0);
}

/// C18.12
#[tokio::test(start_paused = true)]
async fn a_plain_shutdown_ends_a_draining_one() {
    let queue = Queue::new();
    queue.add(1);
    let _held = queue.try_get();
    let mut draining = Box::pin(queue.shut_down_draining(3600 * SECOND));
    assert!(draining.as_mut().now_or_never().is_none());
    queue.shut_down();
    assert_eq!(draining.await.left, 1);
}

/// C18.13
#[tokio::test(start_paused = true)]
async fn len_counts_ready_items_only() {
    let queue = Queue::new();
    queue.add(1);
    queue.add(2);
    queue.add_after(3, SECOND);
    let _held = queue.try_get();
    assert_eq!(queue.len(), 1);
}

/// C18.14
#[test]
fn a_million_adds_of_a_thousand_items_are_a_thousand_gets() {
    let queue = Queue::new();
    for add in 0..1_000_000 {
        queue.add(add % 1000);
    }
    assert_eq!(queue.lock().entries(), 1000);
    assert_eq!(take(&queue), (0..1000).collect::<Vec<_>>());
}

/// C19.1, R83
#[tokio::test(start_paused = true)]
async fn a_delayed_item_is_ready_after_its_delay_and_not_before() {
    let queue = Queue::new();
    queue.add_after("now", Duration::ZERO);
    assert_eq!(take(&queue), ["now"]);
    queue.add_after("later", 10 * SECOND);
    let before = Instant::now();
    assert_eq!(*queue.get().await.unwrap(), "later");
    assert_eq!(before.elapsed(), 10 * SECOND);
}

/// C19.2
#[tokio::test(start_paused = true)]
async fn the_earlier_of_two_delays_counts() {
    let queue = Queue::new();
    queue.add_after(1, 10 * SECOND);
    queue.add_after(1, 20 * SECOND);
    queue.add_after(2, 20 * SECOND);
    queue.add_after(2, 5 * SECOND);
    assert_eq!(queue.lock().delayed_len(), 2);
    let before = Instant::now();
    assert_eq!(*queue.get().await.unwrap(), 2);
    assert_eq!(before.elapsed(), 5 * SECOND);
    assert_eq!(*queue.get().await.unwrap(), 1);
    assert_eq!(before.elapsed(), 10 * SECOND);
}

/// C19.3
#[tokio::test(start_paused = true)]
async fn a_plain_add_makes_a_delayed_item_ready_once_and_for_all() {
    let queue = Queue::new();
    queue.add_after(1, 10 * SECOND);
    queue.add(1);
    assert_eq!(take(&queue), [1]);
    advance(20 * SECOND).await;
    assert!(queue.try_get().is_none());
}

/// C19.4
#[tokio::test(start_paused = true)]
async fn delays_of_years_neither_panic_nor_fire() {
    let queue = Queue::new();
    queue.add_after(1, Duration::MAX);
    queue.add_after(2, Duration::from_secs(u64::MAX / 2));
    advance(Duration::from_secs(10 * 365 * 86_400)).await;
    assert!(queue.try_get().is_none());
    assert!(queue.get().now_or_never().is_none());
    assert_eq!(queue.shut_down(), 2);
}

/// R87
#[tokio::test(start_paused = true)]
async fn ten_thousand_delays_need_no_task() {
    let queue = Queue::new();
    for item in 0..10_000 {
        queue.add_after(item, SECOND);
    }
    assert_eq!(queue.lock().delayed_len(), 10_000);
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
    assert!(queue.get().await.is_some());
}

/// R87
#[tokio::test(start_paused = true)]
async fn a_waiter_is_woken_for_the_earliest_delay_whenever_it_was_added() {
    let queue = Queue::new();
    let begun = Instant::now();
    for item in (1..=100).rev() {
        queue.add_after(item, item * SECOND);
    }
    let add = async {
        sleep(SECOND / 2).await;
        queue.add_after(0, SECOND / 4); // while the waiter waits for a later one
    };
    let wait = async {
        for item in 0..=100 {
            let got = queue.get().await.unwrap();
            let due = if item == 0 { 3 * SECOND / 4 } else { item * SECOND };
            assert_eq!(*got, item);
            assert!((due..due + SECOND / 4).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        }
    };
    tokio::join!(add, wait);
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
}

/// C19.5
#[tokio::test(start_paused = true)]
async fn rate_limited_adds_wait_and_forget_starts_over() {
    let limiter = Limiter::Exponential { base: SECOND, max: 60 * SECOND };
    let queue = Options::new(None).limiter(limiter).open();
    queue.add(7);
    queue.get().await.unwrap().retry();
    assert_eq!(queue.requeues_of(&7), 1);
    let item = queue.get().await.unwrap();
    assert_eq!(item.requeues(), 1);
    item.retry();
    let before = Instant::now();
    let item = queue.get().await.unwrap();
    assert!(before.elapsed() >= 2 * SECOND);
    item.forget();
    assert_eq!(queue.requeues_of(&7), 0);
    queue.add_rate_limited(7);
    let before = Instant::now();
    queue.get().await.unwrap();
    assert!(before.elapsed() < 1200 * MS);
}

/// Delays of one item when each is waited for.
fn delays(limiter: Limiter<u32>, count: usize) -> Vec<Duration> {
    let limits = LimiterState::new(limiter, Random::seeded(1));
    let mut now = Instant::now();
    let mut delays = Vec::new();
    for _ in 0..count {
        let delay = limits.delay(&1, now);
        delays.push(delay);
        now += delay;
    }
    delays
}

#[track_caller]
fn check(delays: &[Duration], expected: &[u64], spread: f64) {
    assert_eq!(delays.len(), expected.len());
    for (delay, &expected) in delays.iter().zip(expected) {
        let low = Duration::from_millis(expected);
        assert!(*delay >= low && *delay <= low.mul_f64(1.0 + spread), "{delay:?} for {low:?}");
    }
}

/// C19.6, C19.11, R84
#[test]
fn the_exponential_delay_doubles_to_its_maximum_without_overflow() {
    let limiter = Limiter::per_item();
    let first = delays(limiter, 20);
    let expected: Vec<u64> = (0..20).map(|n| (5u64 << n).min(1_000_000)).collect();
    check(&first, &expected, 0.1);
    let many = delays(Limiter::per_item(), 10_000);
    assert!(many.iter().all(|delay| *delay <= 1100 * SECOND));
    assert_eq!(many.last().map(|delay| *delay >= 1000 * SECOND), Some(true));
}

/// C19.7
#[tokio::test(start_paused = true)]
async fn the_bucket_lets_a_burst_through_and_then_ten_per_second() {
    let limiter = Limiter::Bucket { per_second: 10.0, burst: 100 };
    let limits = LimiterState::new(limiter, Random::seeded(1));
    let start = Instant::now();
    let waits: Vec<Duration> = (0..120).map(|item| limits.delay(&item, start)).collect();
    assert!(waits[..100].iter().all(Duration::is_zero));
    check(&waits[100..103], &[100, 200, 300], 0.001);
    let later = start + 12 * SECOND;
    assert_eq!(limits.delay(&1, later), Duration::ZERO);
}

/// C19.8
#[test]
fn max_of_calls_every_limiter_and_uses_the_longest_delay() {
    let limits = LimiterState::new(Limiter::default(), Random::seeded(1));
    let now = Instant::now();
    let first: Vec<Duration> = (0..100).map(|item| limits.delay(&item, now)).collect();
    check(&first, &[5; 100], 0.1); // the bucket is not empty yet: the item's own delay counts
    let next = limits.delay(&200, now);
    assert!(next >= 100 * MS, "the burst was used up by the others: {next:?}");
}

/// C19.9
#[test]
fn fast_slow_and_capped_limiters_return_their_delays() {
    let fast_slow = || Limiter::FastSlow { fast: 10 * MS, slow: SECOND, fast_retries: 3 };
    check(&delays(fast_slow(), 5), &[10, 10, 10, 1000, 1000], 0.1);
    let capped = |inner, max| Limiter::Capped { inner: Box::new(inner), max };
    check(&delays(capped(fast_slow(), 200 * MS), 5), &[10, 10, 10, 200, 200], 0.1);
    assert_eq!(delays(capped(Limiter::per_item(), SECOND), 12).pop(), Some(SECOND));
}

/// C19.10
#[test]
fn a_retry_before_its_delay_has_passed_does_not_lengthen_the_next() {
    let limits = LimiterState::new(Limiter::per_item(), Random::seeded(1));
    let now = Instant::now();
    limits.delay(&1, now);
    for _ in 0..10 {
        check(&[limits.delay(&1, now)], &[5], 0.1); // an unrelated event brought it back early
    }
    assert_eq!(limits.requeues(&1), 11);
    check(&[limits.delay(&1, now + 6 * MS)], &[10], 0.1);
}

/// C19.12
#[test]
fn the_limiter_forgets_items_after_twice_its_longest_delay() {
    let limiter = Limiter::Exponential { base: SECOND, max: 10 * SECOND };
    let limits = LimiterState::new(limiter, Random::seeded(1));
    let start = Instant::now();
    for item in 0..1000 {
        limits.delay(&item, start);
    }
    let later = start + 40 * SECOND;
    check(&[limits.delay(&5, later)], &[1000], 0.1);
    assert_eq!(limits.remembered(), 1);
}

/// C19.13
#[test]
fn a_closure_is_a_limiter_too() {
    let own = Limiter::Custom(Box::new(|item: &u32, failures| SECOND * (*item + failures)));
    check(&delays(own, 3), &[1000, 2000, 3000], 0.0);
}

/// C20.1
#[test]
fn higher_priorities_leave_first_and_equal_ones_in_order() {
    let queue = Queue::new();
    for (item, priority) in [("a", 0), ("b", -100), ("c", 7), ("d", 0), ("e", 7)] {
        queue.add_with(item, Add { priority, ..Add::default() });
    }
    assert_eq!(take(&queue), ["c", "e", "a", "d", "b"]);
}

/// C20.2
#[tokio::test(start_paused = true)]
async fn adding_again_keeps_the_higher_priority_and_the_earlier_time() {
    let queue = Queue::new();
    let at = |priority, after| Add { priority, after };
    queue.add_with("low", at(-1, Duration::ZERO));
    queue.add_with("high", at(1, Duration::ZERO));
    queue.add_with("low", at(1, Duration::ZERO)); // raised: behind "high"
    queue.add_with("high", at(-5, Duration::ZERO)); // not lowered
    assert_eq!(queue.len(), 2);
    assert_eq!(take(&queue), ["high", "low"]);

    queue.add_with("timed", at(5, 20 * SECOND));
    queue.add_with("timed", at(0, 10 * SECOND));
    let before = Instant::now();
    let item = queue.get().await.unwrap();
    assert_eq!((item.priority, before.elapsed()), (5, 10 * SECOND));
}

#[test]
fn many_raised_items_leave_once_each() {
    let queue = Queue::new();
    for item in 0..1000 {
        queue.add_with(item, Add { priority: -100, ..Add::default() });
    }
    for item in (0..1000).rev().filter(|item| item % 3 != 0) {
        queue.add(item);
    }
    let order = take(&queue);
    assert_eq!(order.len(), 1000);
    assert_eq!(order[..3], [998, 997, 995]);
    assert_eq!(order[997..], [993, 996, 999]);
}

/// C20.4, R86
#[tokio::test(start_paused = true)]
async fn low_priorities_are_served_even_if_higher_ones_never_end() {
    let queue = Queue::new();
    for item in 0..300 {
        queue.add_with(item, Add { priority: -100, ..Add::default() });
    }
    let mut next = 1000;
    let mut served = HashSet::new();
    let mut step = |queue: &Queue<i32>, served: &mut HashSet<i32>| {
        queue.add(next);
        queue.add(next + 1);
        next += 2;
        let item = *queue.try_get().unwrap();
        if item < 300 {
            served.insert(item);
        }
    };
    for _ in 0..100 {
        step(&queue, &mut served);
    }
    assert!(served.is_empty(), "before 30 s the priority decides");
    advance(30 * SECOND).await;
    for _ in 0..1200 {
        step(&queue, &mut served);
    }
    assert_eq!(served.len(), 300);
}

/// C21.1
#[tokio::test(start_paused = true)]
async fn a_named_queue_exports_the_metrics_of_kubernetes() {
    let metrics = Metrics::new();
    let queue = Queue::named("images").metrics(&metrics).open();
    queue.add(1);
    queue.add(1);
    queue.add(2);
    let value = |name: &str| metrics.value(&format!("{name}{{name=\"images\"}}"));
    assert_eq!(value("workqueue_depth"), Some(2.0));
    assert_eq!(value("workqueue_adds_total"), Some(2.0));
    let first = queue.try_get().unwrap();
    advance(3 * SECOND).await;
    let second = queue.try_get().unwrap();
    advance(SECOND).await;
    assert_eq!(value("workqueue_unfinished_work_seconds"), Some(5.0));
    assert_eq!(value("workqueue_longest_running_processor_seconds"), Some(4.0));
    drop(first);
    second.retry();
    assert_eq!(value("workqueue_work_duration_seconds_count"), Some(2.0));
    assert_eq!(value("workqueue_work_duration_seconds_sum"), Some(5.0));
    assert_eq!(value("workqueue_retries_total"), Some(1.0));
    assert_eq!(value("workqueue_unfinished_work_seconds"), Some(0.0));
}

/// C21.2
#[tokio::test(start_paused = true)]
async fn waiting_time_counts_from_the_first_add() {
    let metrics = Metrics::new();
    let queue = Queue::named("q").metrics(&metrics).open();
    queue.add(1);
    advance(2 * SECOND).await;
    queue.add(1);
    advance(SECOND).await;
    queue.try_get();
    let sum = metrics.value("workqueue_queue_duration_seconds_sum{name=\"q\"}");
    assert_eq!(sum, Some(3.0));
}

/// C21.3
#[tokio::test(start_paused = true)]
async fn unfinished_work_is_never_older_than_half_a_second() {
    let metrics = Metrics::new();
    let queue = Queue::named("q").metrics(&metrics).open();
    queue.add(1);
    let _held = queue.try_get();
    for half_seconds in 1..10u32 {
        advance(500 * MS).await;
        let seconds = metrics.value("workqueue_unfinished_work_seconds{name=\"q\"}");
        assert_eq!(seconds, Some(f64::from(half_seconds) * 0.5));
    }
}

/// C21.4
#[test]
fn a_queue_without_a_name_has_no_metrics() {
    let metrics = Metrics::new();
    let queue = Options::new(None).metrics(&metrics).open();
    queue.add(1);
    assert!(queue.shared.observer.is_none());
    assert_eq!(metrics.render(), "");
}

/// C21.5
#[test]
fn depth_is_split_by_priority_once_priorities_are_used() {
    let metrics = Metrics::new();
    let queue = Queue::named("q").metrics(&metrics).open();
    queue.add(1);
    queue.add_with(2, Add { priority: -100, ..Add::default() });
    queue.add_with(3, Add { priority: -100, ..Add::default() });
    let depth = |labels: &str| metrics.value(&format!("workqueue_depth{{name=\"q\"{labels}}}"));
    assert_eq!(depth(",priority=\"0\""), Some(1.0));
    assert_eq!(depth(",priority=\"-100\""), Some(2.0));
    assert_eq!(depth(""), None);
}

/// C31.12
#[test]
fn the_queue_works_without_a_runtime() {
    let queue = Queue::new();
    let producer = queue.clone();
    let worker = std::thread::spawn(move || {
        let mut taken = Vec::new();
        while taken.len() < 2 {
            taken.extend(queue.try_get().map(|item| *item));
            std::thread::yield_now();
        }
        taken
    });
    producer.add(1);
    producer.add_after(2, 20 * MS);
    assert_eq!(worker.join().unwrap(), [1, 2]);
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Add(u8, i32),
    After(u8, u16),
    Get,
    Done(usize),
    Pass(u16),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0..8u8, -1..2i32).prop_map(|(item, priority)| Op::Add(item, priority)),
        (0..8u8, 1..2000u16).prop_map(|(item, ms)| Op::After(item, ms)),
        Just(Op::Get),
        (0..4usize).prop_map(Op::Done),
        (1..1500u16).prop_map(Op::Pass),
    ]
}

/// The simplest queue that could be right: what is owed, what runs, what waits until when.
#[derive(Default)]
struct Model {
    dirty: HashSet<u8>,
    running: HashSet<u8>,
    waiting: HashMap<u8, Instant>,
}

impl Model {
    fn promote(&mut self, now: Instant) {
        let due: Vec<u8> =
            self.waiting.iter().filter(|(_, at)| **at <= now).map(|(item, _)| *item).collect();
        for item in due {
            self.waiting.remove(&item);
            self.dirty.insert(item);
        }
    }
}

proptest! {
    /// R80, R81, R82, R83
    #[test]
    fn any_sequence_of_operations_agrees_with_the_model(ops in prop::collection::vec(op(), 1..200)) {
        let mut core = Core::<u8>::default();
        let mut model = Model::default();
        let mut now = Instant::now();
        let mut held: Vec<u8> = Vec::new();
        for op in ops {
            match op {
                Op::Add(item, priority) => {
                    core.add(item, priority, now);
                    model.waiting.remove(&item);
                    model.dirty.insert(item);
                }
                Op::After(item, ms) => {
                    let due = now + MS * u32::from(ms);
                    core.add_after(item, 0, due);
                    if !model.dirty.contains(&item) {
                        let at = model.waiting.entry(item).or_insert(due);
                        *at = (*at).min(due);
                    }
                }
                Op::Get => {
                    model.promote(now);
                    let owed: HashSet<u8> = model.dirty.difference(&model.running).copied().collect();
                    match core.take(now) {
                        NextItem::Item((item, ..)) => {
                            prop_assert!(owed.contains(&item));
                            model.dirty.remove(&item);
                            model.running.insert(item);
                            held.push(item);
                        }
                        _ => prop_assert!(owed.is_empty()),
                    }
                }
                Op::Done(at) => {
                    if at < held.len() {
                        let item = held.remove(at);
                        core.done(&item);
                        model.running.remove(&item);
                    }
                }
                Op::Pass(ms) => now += MS * u32::from(ms),
            }
        }
        for item in held.drain(..) {
            core.done(&item);
            model.running.remove(&item);
        }
        now += 10 * SECOND;
        model.promote(now);
        while let NextItem::Item((item, ..)) = core.take(now) {
            prop_assert!(model.dirty.remove(&item));
            core.done(&item);
        }
        prop_assert!(model.dirty.is_empty());
        prop_assert_eq!(core.entries(), 0);
    }
}
