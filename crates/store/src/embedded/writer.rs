//! The writer: the only thread that changes the store.
//!
//! River: mailbox → **writer** → published.
//! Promise: takes all waiting requests as one group and commits it (`commit.rs`). Between two groups
//! it looks after retention, times to live, disk space and the cleaner, so that these never change
//! the store beside a commit.

mod commit;
mod cleaning;

use std::sync::Arc;
use std::time::{Duration, Instant};

use headwater_api::Revision;

use super::Shared;
use super::cleaner::Cleaner;
use super::expiry::{Expiries, Expiry};
use super::group::Staged;
use super::log::{Edges, Log};
use super::mailbox::{Commit, Compact, Gather, QueuedGroup, answer_all};
use super::retention::Keeper;
use super::space::SpaceMonitor;
use crate::store::{Action, Error};
use commit::Work;

/// The time between two looks at retention, disk space and the cleaner.
const TICK: Duration = Duration::from_secs(1);

/// The writer's own state.
pub(super) struct Writer {
    shared: Arc<Shared>,
    log: Log,
    expiries: Expiries,
    keeper: Keeper,
    space: SpaceMonitor,
    cleaner: Cleaner,
    /// Something was written since the last tick.
    wrote: bool,
    /// There may be segments to clean: it is a tick, rows were dropped, or a job ended.
    may_clean: bool,
    next_tick: Instant,
    /// How long the next group waits for company.
    gather: Gather,
}

impl Writer {
    pub(super) fn new(
        shared: Arc<Shared>,
        log: Log,
        expiries: Vec<Expiry>,
        ages: Vec<(Instant, Revision)>,
    ) -> Writer {
        let now = Instant::now();
        let mut keeper = Keeper::new(shared.options.retention);
        for (at, revision) in ages {
            keeper.mark(at, revision);
        }
        let space = SpaceMonitor::new(&*shared.disk);
        shared.report().full = space.refusal();
        let wall = shared.options.clock.now().as_millisecond();
        let mut waiting = Expiries::new(now);
        for expiry in expiries {
            waiting.add(now, wall, expiry);
        }
        Writer {
            shared,
            log,
            expiries: waiting,
            keeper,
            space,
            cleaner: Cleaner::Idle,
            wrote: false,
            may_clean: false,
            next_tick: now,
            gather: Gather::default(),
        }
    }

    /// Works until the mailbox is closed and empty.
    pub(super) fn run(mut self) {
        loop {
            let next = self.expiries.next().map_or(self.next_tick, |next| next.min(self.next_tick));
            let wait = next.saturating_duration_since(Instant::now());
            let group = self.shared.mailbox.take(wait, self.gather);
            let last = group.last;
            self.process(group);
            if last {
                return self.close();
            }
        }
    }

    fn process(&mut self, group: QueuedGroup) {
        // The places in the mailbox are held until everything is answered.
        let QueuedGroup { commits, compacts, places: _places, .. } = group;
        let now = Instant::now();
        let retained = if now >= self.next_tick { self.tick(now) } else { Revision::ZERO };
        let compacts = self.refuse_future(compacts);
        let commits = self.refuse_full(commits);
        let asked = compacts.iter().map(|request| request.what).max().unwrap_or_default();
        let due = self.expiries.take(now);
        // While the disk is full, no history is kept: deletes free space at once.
        let full = if self.is_full() { self.edges().newest } else { Revision::ZERO };
        let compact_to = asked.max(retained).max(full);
        if commits.is_empty() && due.is_empty() && compact_to <= self.edges().compacted {
            answer_all(compacts.into_iter().map(|request| request.answer), || Ok(()));
        } else {
            let (writes, callers) = commits.into_iter().map(|r| (r.what, r.answer)).unzip();
            let wall = self.shared.options.clock.now().as_millisecond();
            self.transact(Work { writes, due, compact_to, wall }, callers, compacts, now);
        }
        self.clean();
    }

    fn edges(&self) -> Edges {
        self.shared.published().edges()
    }

    /// What is due once per tick. Returns up to which revision retention forgets.
    fn tick(&mut self, now: Instant) -> Revision {
        self.next_tick = now + TICK;
        self.may_clean = true;
        self.space.look(&*self.shared.disk);
        self.shared.report().full = self.space.refusal();
        self.retry();
        self.make_spare();
        let edges = self.edges();
        let history_bytes = self.shared.published().index.totals().history_bytes;
        self.keeper.mark(now, edges.newest);
        self.keeper.target(now, edges, history_bytes)
    }

    /// After a failure, tries whether an empty frame can be written: nobody may write while the
    /// store reports trouble.
    fn retry(&mut self) {
        if self.shared.report().trouble.is_some() {
            let (seed, edges) = (self.log.seed(), self.edges());
            let mut empty = Staged::empty(seed, edges);
            if let Err(error) = self.append(&mut empty) {
                self.failed(&error);
            }
        }
    }

    /// Answers compactions of revisions that were not reached.
    fn refuse_future(&self, compacts: Vec<Compact>) -> Vec<Compact> {
        let current = self.edges().newest;
        let (now, future): (Vec<_>, Vec<_>) =
            compacts.into_iter().partition(|request| request.what <= current);
        for Compact { what: asked, answer } in future {
            let _ = answer.send(Err(Error::Future { asked, current }));
        }
        now
    }

    /// Answers writes for which there is no space.
    fn refuse_full(&self, commits: Vec<Commit>) -> Vec<Commit> {
        let Some(why) = self.space.refusal() else { return commits };
        let deletes =
            |commit: &Commit| commit.what.ops.iter().all(|op| matches!(op.action, Action::Delete));
        let (accepted, refused): (Vec<_>, Vec<_>) = commits.into_iter().partition(deletes);
        for commit in refused {
            let _ = commit.answer.send(Err(Error::Unavailable(why.clone())));
        }
        accepted
    }

    /// Only deletes are accepted, for lack of space.
    fn is_full(&self) -> bool {
        self.space.refusal().is_some()
    }

    /// Prefills a file for the next segment while there is time.
    fn make_spare(&mut self) {
        self.log.free.collect(false);
        let idle = !std::mem::take(&mut self.wrote);
        if idle && self.log.is_half_full() && self.space.has_room() {
            self.log.free.prepare(&self.shared.disk, self.shared.options.segment_bytes);
        }
    }

    /// A clean stop: all jobs end, and the head records that everything is synced.
    fn close(mut self) {
        let disk = &*self.shared.disk;
        std::mem::take(&mut self.cleaner).stop(disk);
        self.log.free.collect(true);
        self.log.close(self.edges().newest);
    }
}
