//! The mailbox: the queue of writes for the writer thread.
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

/// A request to the writer.
#[derive(Debug)]
pub(super) struct Request<T, A> {
    pub(super) what: T,
    pub(super) answer: oneshot::Sender<Result<A, Error>>,
}

pub(super) type Commit = Request<Write, Committed>;
pub(super) type Compact = Request<Revision, ()>;

/// The requests that the writer handles together.
#[derive(Debug, Default)]
pub(super) struct QueuedGroup {
    pub(super) commits: Vec<Commit>,
    pub(super) compacts: Vec<Compact>,
    /// Released when all requests are answered.
    pub(super) places: Vec<OwnedSemaphorePermit>,
    /// The mailbox is closed and empty.
    pub(super) last: bool,
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
    commits: VecDeque<(Commit, OwnedSemaphorePermit)>,
    compacts: Vec<Compact>,
    closed: bool,
    /// A background job ended: the writer must wake without a request.
    nudged: bool,
    /// The number of queued commits at which the writer is woken.
    wake_at: usize,
}

impl Queue {
    fn has(&self, commits: usize) -> bool {
        self.commits.len() >= commits || !self.compacts.is_empty() || self.closed || self.nudged
    }
}

/// How long the writer waits for more commits once it has one. Clients that write in a loop send
/// the next write right after a reply; without the wait they would split into two halves that wait
/// for each other's syncs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gather {
    /// The number of commits that ends the wait.
    pub(super) commits: usize,
    /// The maximum wait.
    pub(super) within: Duration,
}

impl Gather {
    /// The wait after a group of so many commits that took so long.
    pub(super) fn after(commits: usize, took: Duration) -> Gather {
        Gather { commits, within: took.saturating_mul(GATHER_TIMES).min(GATHER_MAX) }
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

    /// Queues a write and waits until it is durable.
    pub(super) async fn commit(&self, write: Write) -> Result<Committed, Error> {
        let size = u32::try_from(kib(&write).min(QUEUE_KIB_MAX)).unwrap_or(u32::MAX);
        let place = self.places.clone().acquire_many_owned(size).await.map_err(|_| closed())?;
        let (answer, answered) = oneshot::channel();
        let wake = {
            let mut queue = self.open()?;
            queue.commits.push_back((Request { what: write, answer }, place));
            queue.commits.len() == queue.wake_at
        };
        if wake {
            self.arrived.notify_one();
        }
        answered.await.unwrap_or_else(|_| Err(lost()))
    }

    /// Queues a compaction and waits until it is durable.
    pub(super) async fn compact(&self, at: Revision) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        self.open()?.compacts.push(Request { what: at, answer });
        self.arrived.notify_one();
        answered.await.unwrap_or_else(|_| Err(lost()))
    }

    /// Waits for requests; returns an empty group after `wait`.
    pub(super) fn take(&self, wait: Duration, gather: Gather) -> QueuedGroup {
        let queue = self.wait_for(self.lock(), 1, wait);
        let mut queue = if queue.has(1) && gather.commits > 1 {
            self.wait_for(queue, gather.commits, gather.within)
        } else {
            queue
        };
        queue.nudged = false;
        let mut group =
            QueuedGroup { compacts: std::mem::take(&mut queue.compacts), ..QueuedGroup::default() };
        let mut size = 0;
        while let Some((commit, _)) = queue.commits.front() {
            size += kib(&commit.what);
            if size > GROUP_KIB_MAX && !group.commits.is_empty() {
                break;
            }
            if let Some((commit, place)) = queue.commits.pop_front() {
                group.commits.push(commit);
                group.places.push(place);
            }
        }
        group.last = queue.closed && queue.commits.is_empty();
        group
    }

    /// Wakes the writer because a background job ended.
    pub(super) fn nudge(&self) {
        self.lock().nudged = true;
        self.arrived.notify_one();
    }

    /// The number of queued commits.
    pub(super) fn waiting(&self) -> usize {
        self.lock().commits.len()
    }

    fn wait_for<'a>(
        &self,
        mut queue: MutexGuard<'a, Queue>,
        commits: usize,
        wait: Duration,
    ) -> MutexGuard<'a, Queue> {
        queue.wake_at = commits;
        let (mut queue, _) = self
            .arrived
            .wait_timeout_while(queue, wait, |queue| !queue.has(commits))
            .unwrap_or_else(PoisonError::into_inner);
        // The writer is awake until the next wait.
        queue.wake_at = usize::MAX;
        queue
    }

    /// Rejects new requests; queued ones are still handled.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.places.close();
        self.arrived.notify_all();
    }

    fn open(&self) -> Result<MutexGuard<'_, Queue>, Error> {
        let queue = self.lock();
        if queue.closed { Err(closed()) } else { Ok(queue) }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }
}

fn kib(write: &Write) -> usize {
    let bytes = |action: &Action| match action {
        Action::Put { value, .. } => value.len(),
        Action::Delete => 0,
    };
    write.ops.iter().map(|op| 1 + (op.key.as_str().len() + bytes(&op.action)) / 1024).sum()
}

fn closed() -> Error {
    Error::Unavailable("the store is closed".into())
}

fn lost() -> Error {
    Error::Unavailable(
        "the writer stopped before it replied; whether the write happened is unknown".into(),
    )
}

/// Answers everybody alike.
pub(super) fn answer_all<A>(
    callers: impl Iterator<Item = oneshot::Sender<Result<A, Error>>>,
    answer: impl Fn() -> Result<A, Error>,
) {
    for caller in callers {
        let _ = caller.send(answer());
    }
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
        assert!(mailbox.commit(write).now_or_never().is_none());
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
        for commits in [1, 3] {
            (0..commits).for_each(|_| post(&mailbox));
            let group = mailbox.take(FOR_EVER, Gather { commits, within: FOR_EVER });
            assert_eq!(group.commits.len(), commits);
        }
    }

    #[test]
    fn a_compaction_and_a_nudge_end_a_wait_for_more_commits() {
        let mailbox = Mailbox::new();
        let gather = Gather { commits: 3, within: FOR_EVER };
        post(&mailbox);
        assert!(mailbox.compact(Revision(1)).now_or_never().is_none());
        let group = mailbox.take(FOR_EVER, gather);
        assert_eq!((group.commits.len(), group.compacts.len()), (1, 1));
        post(&mailbox);
        mailbox.nudge();
        assert_eq!(mailbox.take(FOR_EVER, gather).commits.len(), 1);
    }
}
