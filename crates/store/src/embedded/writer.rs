//! The writer: what happens on a commit, on the only thread that changes keys.
//!
//! River: mailbox → **writer** → published.
//! Promise: takes all waiting requests as one group, then stages, writes, syncs, publishes and
//! acknowledges, always in this order; a group is one frame and one sync. If a frame cannot be
//! written, its writes fail and nothing of them is published; the next write tries again, for as
//! long as the process lives. Between two groups it looks after retention, times to live and space.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use headwater_api::Revision;

use super::expiry::{Expiries, Expiry};
use super::group::{CommitGroup, Staged};
use super::mailbox::{Gather, Request, Task};
use super::retention::Keeper;
use super::space::Room;
use super::{Shared, cleaner};
use crate::store::{Action, CommitTimes, Committed, Error, Guard, Write};

/// The time between two looks at retention and disk space.
const TICK: Duration = Duration::from_secs(1);

/// Revisions that are forgotten under one lock.
const FORGET: u64 = 4_096;

type Answers = Vec<Result<Committed, Error>>;

/// The writer's own state.
pub(super) struct Writer {
    shared: Arc<Shared>,
    /// Wakes the upkeep; it ends when this is dropped.
    upkeep: mpsc::Sender<()>,
    expiries: Expiries,
    keeper: Keeper,
    room: Room,
    next_tick: Instant,
    /// How long the next group waits for company.
    gather: Gather,
}

impl Writer {
    pub(super) fn new(
        shared: Arc<Shared>,
        upkeep: mpsc::Sender<()>,
        expiries: Vec<Expiry>,
        ages: Vec<(Instant, Revision)>,
    ) -> Writer {
        let now = Instant::now();
        let mut keeper = Keeper::new(shared.options.retention);
        ages.into_iter().for_each(|(at, revision)| keeper.mark(at, revision));
        let wall = shared.wall();
        let mut waiting = Expiries::new(now);
        expiries.into_iter().for_each(|expiry| waiting.add(now, wall, expiry));
        let (room, gather) = (Room::default(), Gather::default());
        let expiries = waiting;
        let mut writer = Writer { shared, upkeep, expiries, keeper, room, next_tick: now, gather };
        writer.look_at_space(false);
        writer
    }

    /// Works until the mailbox is closed and empty.
    pub(super) fn run(mut self) {
        while let Some(group) = self.shared.mailbox.take(self.wait(), self.gather) {
            self.process(group);
        }
    }

    /// The time until something is due.
    fn wait(&self) -> Duration {
        let next = self.expiries.next().map_or(self.next_tick, |next| next.min(self.next_tick));
        next.saturating_duration_since(Instant::now())
    }

    /// Commits a group and answers everybody who waits for it.
    fn process(&mut self, requests: Vec<Request>) {
        let now = Instant::now();
        let mut compact_to = if now >= self.next_tick { self.tick(now) } else { Revision::ZERO };
        let newest = self.shared.published().newest;
        let full = self.room.refusal();
        if full.is_some() {
            // No history is kept: deletes free space at once.
            compact_to = newest;
        }
        let (mut writes, mut writers, mut compactors) = (Vec::new(), Vec::new(), Vec::new());
        for Request { task, reply } in requests {
            match (task, &full) {
                (Task::Compact(asked), _) if asked > newest => {
                    reply.send(Err(Error::Future { asked, current: newest }));
                }
                (Task::Compact(asked), _) => {
                    compact_to = compact_to.max(asked);
                    compactors.push(reply);
                }
                (Task::Write(write), Some(why)) if !only_deletes(&write) => {
                    reply.send(Err(Error::Unavailable(why.clone())));
                }
                (Task::Write(write), _) => {
                    writes.push(write);
                    writers.push(reply);
                }
            }
        }
        writes.extend(self.expiries.take(now).into_iter().map(
            |Expiry { key, revision, .. }| Write::one(key, Guard::At(revision), Action::Delete),
        ));
        match self.commit(writes, compact_to, now) {
            Ok(answers) => {
                let durable = Instant::now();
                if !writers.is_empty() {
                    let waiting = writers.len() + self.shared.mailbox.waiting();
                    self.gather = Gather::after(waiting, durable.duration_since(now));
                }
                let times = Some(CommitTimes { taken: now, durable });
                let timed = |answer: Result<Committed, Error>| {
                    answer.map(|done| Committed { times, ..done })
                };
                let mut answers = answers.into_iter().map(timed);
                writers.into_iter().zip(&mut answers).for_each(|(reply, with)| reply.send(with));
                let done = Committed::new(compact_to, compact_to);
                compactors.into_iter().for_each(|reply| reply.send(Ok(done)));
                // A key that has another version now does not expire.
                let failed = answers.filter_map(Result::err);
                for error in failed.filter(|error| !matches!(error, Error::Conflict { .. })) {
                    tracing::warn!(%error, "cannot delete an expired object");
                }
            }
            Err(why) => writers
                .into_iter()
                .chain(compactors)
                .for_each(|reply| reply.send(Err(Error::Unavailable(why.clone())))),
        }
        if full.is_some() {
            // Waits for the cleaner: deletes must not use up the space that it needs.
            cleaner::clean(&self.shared);
        }
    }

    /// The commit: stage, write, sync, publish. Fails if nothing of it was published.
    fn commit(
        &mut self,
        writes: Vec<Write>,
        compact_to: Revision,
        now: Instant,
    ) -> Result<Answers, String> {
        let is_compaction = self.shared.publish_compaction(compact_to);
        let (shared, wall) = (self.shared.clone(), self.shared.wall());
        let staging = || {
            let published = shared.published();
            let mut group = CommitGroup::new(shared.identity.seed(), &published, wall, &writes);
            let answers: Answers = writes.into_iter().map(|write| group.commit(write)).collect();
            (group.finish(), answers)
        };
        let staged = catch_unwind(AssertUnwindSafe(staging));
        let (mut staged, answers) = staged.map_err(|_| "the storage engine panicked")?;
        if staged.changes.is_empty() && !is_compaction {
            return Ok(answers);
        }
        self.shared.append(&mut staged).map_err(|error| self.failed(&error))?;
        for expiry in staged.expiries {
            self.expiries.add(now, wall, expiry);
        }
        if is_compaction {
            self.shared.forget(compact_to);
            // It may have ended after a panic; then nothing is cleaned.
            let _ = self.upkeep.send(());
        }
        Ok(answers)
    }

    fn failed(&mut self, error: &io::Error) -> String {
        if error.kind() == io::ErrorKind::StorageFull {
            self.look_at_space(true);
        }
        self.shared.report_trouble(error)
    }

    /// What is due once per tick. Returns up to which revision retention forgets.
    fn tick(&mut self, now: Instant) -> Revision {
        self.next_tick = now + TICK;
        self.look_at_space(false);
        // Nobody may write while the store reports trouble: an empty frame shows whether it can.
        if self.shared.report().trouble.is_some()
            && let Err(error) = self.shared.append(&mut Staged::new(self.shared.identity.seed(), 0))
        {
            self.failed(&error);
        }
        let (edges, history_bytes) = {
            let published = self.shared.published();
            (published.edges(), published.index.usage().history_bytes)
        };
        self.keeper.mark(now, edges.newest);
        self.keeper.target(now, edges, history_bytes)
    }

    fn look_at_space(&mut self, ran_out: bool) {
        self.room.look(&*self.shared.disk, ran_out);
        self.shared.report().room = self.room;
    }
}

impl Shared {
    /// Makes staged changes durable, then visible. A frame without changes records the compacted
    /// revision and the list of segments.
    pub(super) fn append(&self, staged: &mut Staged) -> io::Result<()> {
        let mut log = self.log();
        let mut edges = self.published().edges();
        edges.newest = staged.changes.last().map_or(edges.newest, |(change, _)| change.revision);
        let appended = log.append(&mut staged.draft, edges)?;
        self.published_mut().publish(std::mem::take(&mut staged.changes), &appended);
        drop(log);
        if self.report().trouble.take().is_some() {
            tracing::info!("the log can be written again");
        }
        self.newest.send_replace(edges.newest);
        Ok(())
    }

    /// Records why nothing can be written.
    pub(super) fn report_trouble(&self, error: &io::Error) -> String {
        let why = format!("{}: {error}", self.disk.place());
        let mut report = self.report();
        if report.trouble.is_none() {
            tracing::error!(%why, "cannot write to the log; the next write tries again");
            report.trouble = Some(why.clone());
        }
        why
    }

    /// Refuses reads of compacted states before any row of them is dropped. Returns whether the
    /// revision is new.
    fn publish_compaction(&self, to: Revision) -> bool {
        let mut published = self.published_mut();
        let is_new = to > published.compacted;
        published.compacted = published.compacted.max(to);
        is_new
    }

    /// Drops the rows that only compacted states need.
    fn forget(&self, to: Revision) {
        loop {
            let mut published = self.published_mut();
            let from = published.index.compacted();
            if from >= to {
                return;
            }
            published.index.forget_to(to.min(Revision(from.0 + FORGET)));
        }
    }

    /// The wall clock, in milliseconds.
    pub(super) fn wall(&self) -> i64 {
        self.options.clock.now().as_millisecond()
    }
}

fn only_deletes(write: &Write) -> bool {
    write.ops.iter().all(|op| matches!(op.action, Action::Delete))
}
