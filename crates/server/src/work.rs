//! Long work: requests whose input makes them compute for long leave the threads that serve others.
//!
//! River: route, body → **work** → decode, admission, encode. A request with a large body or object, a
//! write of a definition or a policy, an OpenAPI document and a derived list are long.
//! Promise: few long requests compute at a time, none of them on a thread that others wait for; a slot
//! is held only while its request computes, not while it waits. What waits is bounded in bytes. How
//! much one request may compute is bounded where input multiplies: see the budgets of `schema` and `cel`.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::thread::available_parallelism;

use futures::future::BoxFuture;
use futures::{Stream, StreamExt};
use headwater_api::Status;
use headwater_api::metrics::{Counter, Gauge};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::PollSemaphore;

use crate::answer::status;
use crate::lock::lock;
use crate::system::metrics::Metrics;

/// Bodies and objects up to this size are processed at once: that takes at most a few milliseconds.
pub(crate) const INLINE_MAX: usize = 64 << 10;

/// The bytes of bodies and objects that long requests work on at a time. Their trees take about ten
/// times as much memory.
const ADMITTED_MAX: usize = 64 << 20;

/// The bytes of bodies that wait to be admitted; further requests get 429.
const WAITING_MAX: usize = 128 << 20;

/// The unit of admission: a semaphore counts fewer permits than bytes.
const UNIT: usize = 1 << 10;

/// Runs long work, a few requests at a time.
pub(crate) struct WorkPool {
    /// One for each request that computes.
    slots: Arc<Semaphore>,
    /// Units of the bodies that are worked on.
    admitted: Semaphore,
    /// Bytes of the bodies that wait.
    waiting: Mutex<usize>,
    begun: Arc<Counter>,
    queued: Arc<Gauge>,
    dropped: Arc<Counter>,
}

impl WorkPool {
    /// As many slots as the machine has processors.
    pub(crate) fn new(metrics: &Metrics) -> WorkPool {
        let slots = available_parallelism().map_or(1, usize::from);
        WorkPool {
            slots: Arc::new(Semaphore::new(slots)),
            admitted: Semaphore::new(ADMITTED_MAX / UNIT),
            waiting: Mutex::default(),
            begun: metrics.long_requests.with(&[]),
            queued: metrics.long_requests_waiting_bytes.with(&[]),
            dropped: metrics.dropped.with(&["mutating"]),
        }
    }

    /// Runs a request on input of this size. It waits while too much is worked on; 429 if too much
    /// waits already.
    pub(crate) async fn run<T>(
        &self,
        bytes: usize,
        request: BoxFuture<'_, Result<T, Status>>,
    ) -> Result<T, Status> {
        let _admitted = self.admit(bytes).await?;
        self.begun.inc();
        self.compute(request).await
    }

    /// Polls a future or a stream off the threads that serve others.
    pub(crate) fn compute<F>(&self, future: F) -> LongWork<F> {
        LongWork { inner: future, slots: PollSemaphore::new(Arc::clone(&self.slots)) }
    }

    async fn admit(&self, bytes: usize) -> Result<SemaphorePermit<'_>, Status> {
        let units = bytes.div_ceil(UNIT).clamp(1, ADMITTED_MAX / UNIT) as u32;
        if let Ok(admitted) = self.admitted.try_acquire_many(units) {
            return Ok(admitted);
        }
        let _waiting = WaitingBytes::add(self, bytes)?;
        let admitted = self.admitted.acquire_many(units).await;
        admitted.map_err(|_| status::internal("the pool of long requests is closed"))
    }
}

/// The bytes of a request that waits to be admitted.
struct WaitingBytes<'a> {
    pool: &'a WorkPool,
    bytes: usize,
}

impl<'a> WaitingBytes<'a> {
    fn add(pool: &'a WorkPool, bytes: usize) -> Result<WaitingBytes<'a>, Status> {
        let mut waiting = lock(&pool.waiting);
        if *waiting + bytes > WAITING_MAX {
            pool.dropped.inc();
            return Err(status::too_many_requests("too many large requests are waiting"));
        }
        *waiting += bytes;
        pool.queued.set(*waiting as i64);
        Ok(WaitingBytes { pool, bytes })
    }
}

impl Drop for WaitingBytes<'_> {
    fn drop(&mut self) {
        let mut waiting = lock(&self.pool.waiting);
        *waiting -= self.bytes;
        self.pool.queued.set(*waiting as i64);
    }
}

thread_local! {
    /// Whether this thread computes in a slot: long work inside long work needs no other.
    static COMPUTES: Cell<bool> = const { Cell::new(false) };
}

/// A future or a stream that computes in a slot, off the threads that serve others.
pub(crate) struct LongWork<F> {
    inner: F,
    slots: PollSemaphore,
}

impl<F: Future + Unpin> Future for LongWork<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        if COMPUTES.get() {
            return Pin::new(&mut self.inner).poll(context);
        }
        let _slot = ready!(self.slots.poll_acquire(context));
        off_workers(|| Pin::new(&mut self.inner).poll(context))
    }
}

impl<S: Stream + Unpin> Stream for LongWork<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        if COMPUTES.get() {
            return self.inner.poll_next_unpin(context);
        }
        let _slot = ready!(self.slots.poll_acquire(context));
        off_workers(|| self.inner.poll_next_unpin(context))
    }
}

/// Computes while another thread takes over the tasks of this one. A runtime with one thread (of tests)
/// has no other.
fn off_workers<T>(work: impl FnOnce() -> T) -> T {
    let work = || {
        let _computes = Computing::begin();
        work()
    };
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// The time in which a thread computes in a slot.
struct Computing;

impl Computing {
    fn begin() -> Computing {
        COMPUTES.set(true);
        Computing
    }
}

/// Also after a panic.
impl Drop for Computing {
    fn drop(&mut self) {
        COMPUTES.set(false);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::sync::mpsc;
    use std::time::Duration;

    use futures::FutureExt;

    use super::*;

    /// Longer than any test waits: a test that would hang fails instead.
    const LONG: Duration = Duration::from_secs(60);

    fn pool(slots: usize) -> Arc<WorkPool> {
        let mut pool = WorkPool::new(&Metrics::new());
        pool.slots = Arc::new(Semaphore::new(slots));
        Arc::new(pool)
    }

    fn one_worker() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    }

    /// B138: the only worker thread is free while a request computes.
    #[test]
    fn a_computing_request_does_not_occupy_the_thread_of_others() {
        let (runtime, pool) = (one_worker(), pool(1));
        let (release, released) = mpsc::channel();
        let (begin, begun) = tokio::sync::oneshot::channel();
        let computing = runtime.spawn(async move {
            let work = async move {
                begin.send(()).unwrap();
                Ok(released.recv_timeout(LONG).is_ok())
            };
            pool.run(INLINE_MAX + 1, work.boxed()).await
        });
        let other = runtime.spawn(async move {
            begun.await.unwrap();
            release.send(()).unwrap();
        });
        runtime.block_on(async {
            other.await.unwrap();
            assert!(computing.await.unwrap().unwrap(), "nothing else ran meanwhile");
        });
    }

    #[test]
    fn few_requests_compute_at_a_time_and_those_that_wait_hold_no_slot() {
        let (runtime, pool) = (one_worker(), pool(2));
        let (active, most) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        // Twenty requests meet here although there are two slots.
        let all = Arc::new(tokio::sync::Barrier::new(20));
        let tasks: Vec<_> = (0..20)
            .map(|_| {
                let (pool, all) = (pool.clone(), all.clone());
                let (active, most) = (active.clone(), most.clone());
                runtime.spawn(async move {
                    let work = async move {
                        for _ in 0..10 {
                            let now = active.fetch_add(1, Relaxed) + 1;
                            most.fetch_max(now, Relaxed);
                            active.fetch_sub(1, Relaxed);
                            tokio::task::yield_now().await;
                        }
                        all.wait().await;
                        Ok(())
                    };
                    pool.run(1, work.boxed()).await
                })
            })
            .collect();
        runtime.block_on(async {
            for task in tasks {
                tokio::time::timeout(LONG, task).await.unwrap().unwrap().unwrap();
            }
        });
        assert!(most.load(Relaxed) <= 2, "{most:?}");
    }

    #[test]
    fn long_work_inside_long_work_needs_one_slot() {
        let (runtime, pool) = (one_worker(), pool(1));
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let pool = pool.clone();
                runtime.spawn(async move {
                    let inner = pool.clone();
                    let work = async move {
                        inner.compute(tokio::task::yield_now().boxed()).await;
                        tokio::task::yield_now().await;
                        inner.compute(async { Ok(()) }.boxed()).await
                    };
                    pool.run(1, work.boxed()).await
                })
            })
            .collect();
        runtime.block_on(async {
            for task in tasks {
                tokio::time::timeout(LONG, task).await.unwrap().unwrap().unwrap();
            }
        });
        assert!(!COMPUTES.get());
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_is_bounded_in_bytes_and_the_rest_gets_429() {
        let pool = pool(1);
        let stuck = || pool.run(ADMITTED_MAX, std::future::pending::<Result<(), _>>().boxed());
        let mut first = Box::pin(stuck());
        assert!(futures::poll!(&mut first).is_pending());
        let mut waiting: Vec<_> = (0..2).map(|_| Box::pin(stuck())).collect();
        for waits in &mut waiting {
            assert!(futures::poll!(waits).is_pending());
        }
        assert_eq!(*lock(&pool.waiting), WAITING_MAX);
        let refused = pool.run(1, std::future::ready(Ok(())).boxed()).await.unwrap_err();
        assert_eq!((refused.code, refused.details.unwrap().retry_after_seconds), (429, 1));
        // A client that leaves gives its place back.
        waiting.pop();
        let mut last = Box::pin(pool.run(1, std::future::ready(Ok(7)).boxed()));
        assert!(futures::poll!(&mut last).is_pending());
        drop((first, waiting));
        assert_eq!(last.await.unwrap(), 7);
        assert_eq!(*lock(&pool.waiting), 0);
    }
}
