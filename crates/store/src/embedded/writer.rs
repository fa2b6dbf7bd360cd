//! The writer: the only thread that commits.
//!
//! River: mailbox → **writer** → published.
//! Promise: stages, writes, syncs, publishes and acknowledges, always in this order. All waiting
//! writes are one frame and one sync. If a frame cannot be written, its writes fail and nothing of
//! them is published; the next write tries again, for as long as the process lives.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use headwater_api::Revision;
use tokio::sync::oneshot;

use super::Shared;
use super::cleaner::{self, Cleaned, Cleaner, join};
use super::expiry::{Expiries, Expiry};
use super::group::{CommitGroup, Staged};
use super::log::{Edges, Log};
use super::mailbox::{Commit, Compact, Gather, QueuedGroup, answer_all};
use super::retention::Keeper;
use super::space::SpaceMonitor;
use crate::store::{Action, Committed, Error, Write};

/// The time between two looks at retention, disk space and the cleaner.
const TICK: Duration = Duration::from_secs(1);

/// Revisions that are forgotten under one lock.
const FORGET: u64 = 4_096;

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

/// What one frame contains.
struct Work {
    writes: Vec<Write>,
    due: Vec<Expiry>,
    compact_to: Revision,
    /// The wall clock, in milliseconds.
    wall: i64,
}

type Answers = Vec<Result<Committed, Error>>;

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

    /// Commits a frame and answers everybody who waits for it.
    fn transact(
        &mut self,
        work: Work,
        callers: Vec<oneshot::Sender<Result<Committed, Error>>>,
        compacts: Vec<Compact>,
        now: Instant,
    ) {
        let compactors = compacts.into_iter().map(|request| request.answer);
        match self.commit(work, now) {
            Ok(answers) => {
                let commits = callers.len() + self.shared.mailbox.waiting();
                self.gather = Gather::after(commits, now.elapsed());
                for (caller, answer) in callers.into_iter().zip(answers) {
                    // A caller that is gone does not need its answer.
                    let _ = caller.send(answer);
                }
                answer_all(compactors, || Ok(()));
            }
            Err(why) => {
                answer_all(callers.into_iter(), || Err(Error::Unavailable(why.clone())));
                answer_all(compactors, || Err(Error::Unavailable(why.clone())));
            }
        }
    }

    /// The commit: stage, write, sync, publish. Fails if nothing of it was published.
    fn commit(&mut self, work: Work, now: Instant) -> Result<Answers, String> {
        let Work { writes, due, compact_to, wall } = work;
        let compact_to = self.publish_compaction(compact_to);
        let shared = self.shared.clone();
        let staging = || {
            let published = shared.published();
            let mut group = CommitGroup::new(self.log.seed(), &published, wall, &writes);
            let answers: Answers = writes.into_iter().map(|write| group.commit(write)).collect();
            due.iter().for_each(|expiry| group.expire(expiry));
            (group.finish(), answers)
        };
        let staged = catch_unwind(AssertUnwindSafe(staging));
        let (mut staged, answers) = staged.map_err(|_| "the storage engine panicked")?;
        if staged.changes.is_empty() && compact_to.is_none() {
            return Ok(answers);
        }
        self.append(&mut staged).map_err(|error| self.failed(&error))?;
        for expiry in staged.expiries {
            self.expiries.add(now, wall, expiry);
        }
        self.may_clean |= compact_to.is_some();
        self.forget(compact_to);
        Ok(answers)
    }

    /// Makes staged changes durable, then visible.
    fn append(&mut self, staged: &mut Staged) -> io::Result<()> {
        let appended = self.log.append(&mut staged.draft, staged.edges)?;
        let newest = staged.edges.newest;
        self.wrote = true;
        self.shared.published_mut().publish(std::mem::take(&mut staged.changes), &appended);
        {
            let mut report = self.shared.report();
            report.transactions += 1;
            if report.trouble.take().is_some() {
                tracing::info!("the log can be written again");
            }
        }
        self.shared.newest.send_replace(newest);
        Ok(())
    }

    /// Records why nothing can be written.
    fn failed(&mut self, error: &io::Error) -> String {
        let why = format!("{}: {error}", self.shared.disk.place());
        {
            let mut report = self.shared.report();
            if report.trouble.is_none() {
                tracing::error!(%why, "cannot write to the log; the next write tries again");
                report.trouble = Some(why.clone());
            }
        }
        if error.kind() == io::ErrorKind::StorageFull {
            self.space.ran_out(&*self.shared.disk);
            self.shared.report().full = self.space.refusal();
        }
        why
    }

    /// Refuses reads of compacted states before any row of them is dropped. Returns the revision
    /// if it is new.
    fn publish_compaction(&self, to: Revision) -> Option<Revision> {
        let mut published = self.shared.published_mut();
        let is_new = to > published.compacted;
        published.compacted = published.compacted.max(to);
        is_new.then_some(to)
    }

    /// Drops the rows that only compacted states need.
    fn forget(&self, to: Option<Revision>) {
        let Some(to) = to else { return };
        loop {
            let mut published = self.shared.published_mut();
            let from = published.index.compacted();
            if from >= to {
                return;
            }
            published.index.forget_to(to.min(Revision(from.0 + FORGET)));
        }
    }

    /// Only deletes are accepted, for lack of space.
    fn is_full(&self) -> bool {
        self.space.refusal().is_some()
    }

    /// Brings the cleaner forward. While the disk is full, waits until it has freed what it can, so
    /// that deletes do not use up the space that it needs.
    fn clean(&mut self) {
        loop {
            self.clean_step();
            let is_done = match self.cleaner {
                Cleaner::Idle => !self.may_clean,
                Cleaner::Listing(_) => true,
                Cleaner::Copying(_) | Cleaner::Releasing(_) => false,
            };
            if is_done || !self.is_full() {
                return;
            }
        }
    }

    /// The next step of the cleaner: at most one of its jobs runs at a time.
    fn clean_step(&mut self) {
        let wait = self.is_full();
        self.cleaner = match std::mem::take(&mut self.cleaner) {
            Cleaner::Idle if std::mem::take(&mut self.may_clean) => self.start_cleaning(),
            Cleaner::Copying(job) if wait || job.is_finished() => match join(job) {
                Some(Ok(cleaned)) => {
                    let dropped: Vec<u64> = cleaned.dropped.iter().map(|s| s.number).collect();
                    self.log.exchange(&dropped, cleaned.base);
                    self.list(cleaned)
                }
                Some(Err(error)) => {
                    tracing::error!(%error, "cannot clean a segment");
                    self.shared.report_damage(&error);
                    Cleaner::Idle
                }
                None => Cleaner::Idle,
            },
            Cleaner::Listing(cleaned) => self.list(cleaned),
            Cleaner::Releasing(job) if wait || job.is_finished() => {
                for segment in join(job).unwrap_or_default() {
                    let len_min = self.shared.options.segment_bytes;
                    self.log.free.give(&*self.shared.disk, segment, len_min);
                }
                self.may_clean = true;
                Cleaner::Idle
            }
            running => running,
        };
    }

    fn start_cleaning(&mut self) -> Cleaner {
        let chosen = {
            let published = self.shared.published();
            let needed = |number| published.index.needed(number);
            let damaged = self.shared.report().damaged_segments.clone();
            let sealed = self.log.sealed().filter(|segment| !damaged.contains(&segment.number));
            let sealed: Vec<_> = sealed.copied().collect();
            let choose = |may_copy| {
                cleaner::choose(&sealed, needed, self.shared.options.segment_bytes, may_copy)
            };
            // A full disk may have no space for a copy.
            let unneeded = if self.is_full() { choose(false) } else { Vec::new() };
            if unneeded.is_empty() { choose(true) } else { unneeded }
        };
        if chosen.is_empty() {
            return Cleaner::Idle;
        }
        let base = self.log.next_number();
        cleaner::copy(&self.shared, chosen, base).unwrap_or_default()
    }

    /// Writes a roster with the base segment instead of the old ones. Until it is durable, the old
    /// ones stay.
    fn list(&mut self, cleaned: Cleaned) -> Cleaner {
        let mut empty = Staged::empty(self.log.seed(), self.edges());
        match self.append(&mut empty) {
            Ok(()) => cleaner::release(&self.shared, cleaned).unwrap_or_default(),
            Err(error) => {
                self.failed(&error);
                Cleaner::Listing(cleaned)
            }
        }
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
