//! The mailbox: the queue of requests for the writer thread.
//!
//! River: server writes → **mailbox** → group commit.
//! Promise: holds at most [`QUEUE_KIB_MAX`] of writes; when it is full, writers wait in order.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use headwater_api::Revision;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::lock::lock;
use crate::store::{Action, Committed, Error, Write};

/// The maximum size of queued writes, in KiB. Further writers wait in order.
const QUEUE_KIB_MAX: usize = 32 << 10;

/// The maximum size of one group, in KiB: limits how long other writes wait for it.
const GROUP_KIB_MAX: usize = 4 << 10;

/// How long the next group may wait for more writes, in multiples of the last group's duration.
/// Under load the processor is the bottleneck, and a sync costs as much of it as several writes.
const GATHER_TIMES: u32 = 2;

/// The maximum time that a group waits for more writes.
const GATHER_MAX: Duration = Duration::from_millis(2);

/// What a caller wants the writer to do.
#[derive(Debug)]
pub(super) enum Task {
    Write(Write),
    Compact(Revision),
}

/// A task and the caller that waits for it.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) task: Task,
    pub(super) reply: Reply,
}

/// Answers a caller. Until then, the task keeps its place in the mailbox.
#[derive(Debug)]
pub(super) struct Reply {
    answer: oneshot::Sender<Result<Committed, Error>>,
    _place: OwnedSemaphorePermit,
}

impl Reply {
    /// A caller that is gone does not need its answer.
    pub(super) fn send(self, answer: Result<Committed, Error>) {
        let _ = self.answer.send(answer);
    }
}

/// The queue of requests for the writer thread.
#[derive(Debug)]
pub(super) struct Mailbox {
    queue: Mutex<Queue>,
    arrived: Condvar,
    places: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Queue {
    requests: VecDeque<Request>,
    closed: bool,
    /// There is a compaction: the writer does not wait for more requests.
    hurry: bool,
    /// The number of queued requests at which the writer is woken.
    wake_at: usize,
}

impl Queue {
    fn has(&self, requests: usize) -> bool {
        self.requests.len() >= requests || self.hurry || self.closed
    }
}

/// How long the writer waits for more requests once it has one. Clients that write in a loop send
/// the next write right after a reply; without the wait they would split into two halves that wait
/// for each other's syncs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gather {
    /// The number of requests that ends the wait.
    pub(super) requests: usize,
    /// The maximum wait.
    pub(super) within: Duration,
}

impl Gather {
    /// The wait after a group of so many requests that took so long.
    pub(super) fn after(requests: usize, took: Duration) -> Gather {
        Gather { requests, within: took.saturating_mul(GATHER_TIMES).min(GATHER_MAX) }
    }
}

impl Mailbox {
    pub(super) fn new() -> Mailbox {
        Mailbox {
            queue: Mutex::default(),
            arrived: Condvar::new(),
            places: Arc::new(Semaphore::new(QUEUE_KIB_MAX)),
        }
    }

    /// Queues a task and waits until it is durable.
    pub(super) async fn request(&self, task: Task) -> Result<Committed, Error> {
        let size = u32::try_from(kib(&task).min(QUEUE_KIB_MAX)).unwrap_or(u32::MAX);
        let place = self.places.clone().acquire_many_owned(size).await.map_err(|_| closed())?;
        let (answer, answered) = oneshot::channel();
        let wake = {
            let mut queue = lock(&self.queue);
            if queue.closed {
                return Err(closed());
            }
            queue.hurry |= matches!(task, Task::Compact(_));
            queue.requests.push_back(Request { task, reply: Reply { answer, _place: place } });
            queue.hurry || queue.requests.len() == queue.wake_at
        };
        if wake {
            self.arrived.notify_one();
        }
        let unknown = "the writer stopped before it replied; whether the write happened is unknown";
        answered.await.unwrap_or_else(|_| Err(Error::Unavailable(unknown.into())))
    }

    /// Waits for requests that are handled together; returns none after `wait`, and `None` once the
    /// mailbox is closed and empty.
    pub(super) fn take(&self, wait: Duration, gather: Gather) -> Option<Vec<Request>> {
        let mut queue = self.wait_for(lock(&self.queue), 1, wait);
        if queue.has(1) && gather.requests > 1 {
            queue = self.wait_for(queue, gather.requests, gather.within);
        }
        queue.hurry = false;
        if queue.closed && queue.requests.is_empty() {
            return None;
        }
        let (mut group, mut size) = (Vec::new(), 0);
        while let Some(request) = queue.requests.front() {
            size += kib(&request.task);
            if size > GROUP_KIB_MAX && !group.is_empty() {
                break;
            }
            group.extend(queue.requests.pop_front());
        }
        Some(group)
    }

    /// The number of queued requests.
    pub(super) fn waiting(&self) -> usize {
        lock(&self.queue).requests.len()
    }

    fn wait_for<'a>(
        &self,
        mut queue: MutexGuard<'a, Queue>,
        requests: usize,
        wait: Duration,
    ) -> MutexGuard<'a, Queue> {
        queue.wake_at = requests;
        let (mut queue, _) = self
            .arrived
            .wait_timeout_while(queue, wait, |queue| !queue.has(requests))
            .unwrap_or_else(PoisonError::into_inner);
        // The writer is awake until the next wait.
        queue.wake_at = usize::MAX;
        queue
    }

    /// Rejects new requests; queued ones are still handled.
    pub(super) fn close(&self) {
        lock(&self.queue).closed = true;
        self.places.close();
        self.arrived.notify_all();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.places.is_closed()
    }
}

fn kib(task: &Task) -> usize {
    let Task::Write(write) = task else { return 1 };
    let bytes = |action: &Action| match action {
        Action::Put { value, .. } => value.len(),
        Action::Delete => 0,
    };
    write.ops.iter().map(|op| 1 + (op.key.as_str().len() + bytes(&op.action)) / 1024).sum()
}

fn closed() -> Error {
    Error::Unavailable("the store is closed".into())
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::key::Key;
    use crate::store::Guard;

    const FOR_EVER: Duration = Duration::from_secs(3600);

    /// Queues a write and does not wait for its answer.
    fn post(mailbox: &Mailbox) {
        let write = Write::one(Key::new("/a"), Guard::Absent, Action::Delete);
        assert!(mailbox.request(Task::Write(write)).now_or_never().is_none());
    }

    #[test]
    fn a_wait_for_more_commits_is_bounded() {
        let within = |micros| Gather::after(5, Duration::from_micros(micros)).within;
        assert_eq!(within(300), Duration::from_micros(600));
        assert_eq!(within(1_000_000), GATHER_MAX);
    }

    #[test]
    fn a_single_commit_and_commits_that_are_queued_do_not_wait() {
        let mailbox = Mailbox::new();
        for requests in [1, 3] {
            (0..requests).for_each(|_| post(&mailbox));
            let group = mailbox.take(FOR_EVER, Gather { requests, within: FOR_EVER }).unwrap();
            assert_eq!(group.len(), requests);
        }
    }

    #[test]
    fn a_compaction_ends_a_wait_for_more_commits() {
        let mailbox = Mailbox::new();
        let gather = Gather { requests: 3, within: FOR_EVER };
        post(&mailbox);
        assert!(mailbox.request(Task::Compact(Revision(1))).now_or_never().is_none());
        assert_eq!(mailbox.take(FOR_EVER, gather).unwrap().len(), 2);
    }
}
