//! The writer: the only thread that writes.
//!
//! River: mailbox → **writer** → published.
//! Promise: writes, syncs, publishes and acknowledges, always in this order. All waiting writes are
//! one frame of the write-ahead log and one sync. After a failed write or sync nothing is
//! acknowledged; the data file and the log are reopened and checked before the next write.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use headwater_api::Revision;
use tokio::sync::oneshot;

use super::absorb::{Absorber, Tidy};
use super::background::Background;
use super::check::Check;
use super::expiry::{Expiries, Expiry};
use super::file::DataFile;
use super::frame::Draft;
use super::group::{CommitGroup, Staged};
use super::head::{Head, HeadFile};
use super::mailbox::{self, Commit, Compact, Gather};
use super::published::{Contents, Published};
use super::retention::Keeper;
use super::row::{LiveRow, State};
use super::space::SpaceMonitor;
use super::tail::Sums;
use super::wal::Wal;
use super::{Shared, start};
use crate::store::{Action, Committed, Error, Write};

/// How often retention looks.
const TICK: Duration = Duration::from_secs(1);

/// Rows that are tidied (dropped, or moved into the live table) with a tick.
const TICK_ROWS: usize = 2_000;

/// Failures in a row after which the file is left closed.
const FAILURES_MAX: u32 = 3;

/// The writer's own state.
pub(super) struct Writer {
    shared: Arc<Shared>,
    head: HeadFile,
    wal: Wal,
    background: Background,
    /// What has to succeed before anything is written.
    check: Option<Check>,
    /// The edges and the sums of the data file and the log together.
    state: State,
    /// Those of the data file alone, after the last job that is known of.
    absorbed: State,
    expiries: Expiries,
    keeper: Keeper,
    space_monitor: SpaceMonitor,
    /// When retention looks next.
    next_tick: Instant,
    failures: u32,
    /// Something was written since the last rest.
    unrested: bool,
    /// How long the next group waits for company.
    gather: Gather,
}

/// What the writer writes in one iteration.
struct Work {
    writes: Vec<Write>,
    due: Vec<Expiry>,
    /// Up to where the past is forgotten.
    compact_to: Revision,
    /// The wall clock, in milliseconds.
    wall: i64,
}

type Answers = Vec<Result<Committed, Error>>;

/// What is durable and not yet visible, with its rows.
type Written = (Staged, Vec<Bytes>);

impl Writer {
    pub(super) fn new(
        shared: Arc<Shared>,
        (head, wal): (HeadFile, Wal),
        check: Option<Check>,
        (state, absorber, expiries): (State, Absorber, Vec<Expiry>),
        ages: Vec<(Instant, Revision)>,
    ) -> Writer {
        let now = Instant::now();
        let mut keeper = Keeper::new(shared.options.retention);
        for (at, revision) in ages {
            keeper.mark(at, revision);
        }
        let space_monitor = SpaceMonitor::new(&*shared.disk);
        shared.report().full = space_monitor.refusal();
        let unrested = !absorber.is_settled(&shared.published().tail);
        let absorbed = *absorber.state();
        let mut writer = Writer {
            shared,
            head,
            wal,
            background: Background::Idle(absorber),
            check,
            state,
            absorbed,
            expiries: Expiries::new(now),
            keeper,
            space_monitor,
            next_tick: now,
            failures: 0,
            unrested,
            gather: Gather::default(),
        };
        writer.await_expiries(now, expiries);
        writer
    }

    /// Works until the mailbox is closed and empty.
    pub(super) fn run(mut self) {
        loop {
            let group = self.shared.mailbox.take(self.wait(), self.gather);
            let last = group.last;
            self.process(group);
            if last {
                return self.close();
            }
        }
    }

    /// How long there is nothing to do unless somebody writes.
    fn wait(&self) -> Duration {
        let now = Instant::now();
        let next = self.expiries.next().map_or(self.next_tick, |next| next.min(self.next_tick));
        next.saturating_duration_since(now)
    }

    fn process(&mut self, group: mailbox::QueuedGroup) {
        // The places in the mailbox are held until everything is answered.
        let mailbox::QueuedGroup { commits, compacts, places: _places, .. } = group;
        self.look_around();
        let now = Instant::now();
        let ticks = now >= self.next_tick;
        let compacts = self.refuse_future(compacts);
        let commits = self.refuse_full(commits);
        let compact_to = compacts.iter().map(|request| request.what).max();
        let compact_to = compact_to.max(ticks.then(|| self.tick(now))).unwrap_or_default();
        let due = self.expiries.take(now);
        let idle = commits.is_empty() && due.is_empty();
        if idle && compact_to <= self.state.compacted {
            answer_all(compacts.into_iter().map(|request| request.answer), || Ok(()));
        } else {
            let (writes, callers) = commits.into_iter().map(|r| (r.what, r.answer)).unzip();
            let wall = self.shared.options.clock.now().as_millisecond();
            let work = Work { writes, due, compact_to, wall };
            self.transact(work, callers, compacts, now);
        }
        if ticks {
            self.tidy(idle);
        }
    }

    /// Takes note of what happened beside the writer.
    fn look_around(&mut self) {
        if self.background.is_over()
            && let Err(error) = self.wait_absorbed()
        {
            return self.recover(&error.to_string());
        }
        if self.shared.has_failed() {
            // A read failed: nobody can read until the file is opened again.
            self.recover("a read failed");
        }
    }

    /// Starts what is due with a tick.
    fn tidy(&mut self, idle: bool) {
        let Some(absorber) = self.background.idle() else { return };
        let tidy = match absorber.tidies(self.state.compacted) {
            true => Tidy::Some(TICK_ROWS),
            false if idle && self.unrested => Tidy::Rest,
            false => return,
        };
        if let Err(error) = self.start_absorbing(tidy) {
            self.recover(&error.to_string());
        }
    }

    /// Starts to bring what the log holds into the data file.
    fn start_absorbing(&mut self, tidy: Tidy) -> Result<(), Error> {
        self.check.take().map_or(Ok(()), Check::wait)?;
        if tidy == Tidy::Rest {
            self.unrested = false;
        }
        self.background.start(&self.shared, tidy)
    }

    /// Waits until that is done, and forgets what the data file has now.
    fn wait_absorbed(&mut self) -> Result<(), Error> {
        let Some(state) = self.background.wait()? else { return Ok(()) };
        (self.failures, self.absorbed) = (0, state);
        {
            let mut published = self.shared.published_mut();
            published.tail.forget_to(state.newest);
            self.state = published.tail.over(&state);
        }
        let mut report = self.shared.report();
        report.state = self.state;
        report.transactions += 1;
        Ok(())
    }

    /// Retention's turn: up to where it forgets.
    fn tick(&mut self, now: Instant) -> Revision {
        self.next_tick = now + TICK;
        self.space_monitor.look(&*self.shared.disk);
        self.shared.report().full = self.space_monitor.refusal();
        self.keeper.mark(now, self.state.newest);
        self.keeper.target(now, &self.state)
    }

    /// Answers the compactions that reach into the future.
    fn refuse_future(&self, compacts: Vec<Compact>) -> Vec<Compact> {
        let current = self.state.newest;
        let (now, future): (Vec<_>, Vec<_>) =
            compacts.into_iter().partition(|request| request.what <= current);
        for Compact { what: asked, answer } in future {
            let _ = answer.send(Err(Error::Future { asked, current }));
        }
        now
    }

    /// Answers the writes that there is no room for.
    fn refuse_full(&self, commits: Vec<Commit>) -> Vec<Commit> {
        let Some(why) = self.space_monitor.refusal() else { return commits };
        let deletes =
            |commit: &Commit| commit.what.ops.iter().all(|op| matches!(op.action, Action::Delete));
        let (accepted, refused): (Vec<_>, Vec<_>) = commits.into_iter().partition(deletes);
        for commit in refused {
            let _ = commit.answer.send(Err(Error::Unavailable(why.clone())));
        }
        accepted
    }

    fn transact(
        &mut self,
        work: Work,
        callers: Vec<oneshot::Sender<Result<Committed, Error>>>,
        compacts: Vec<Compact>,
        now: Instant,
    ) {
        self.publish_compaction(work.compact_to);
        let compactors = compacts.into_iter().map(|request| request.answer);
        let wall = work.wall;
        let begun = Instant::now();
        match self.commit(work) {
            Ok((written, answers)) => {
                self.expect_company(callers.len(), begun.elapsed());
                if let Some(written) = written {
                    self.publish(written, now, wall);
                }
                for (caller, answer) in callers.into_iter().zip(answers) {
                    // A caller that is gone does not need its answer.
                    let _ = caller.send(answer);
                }
                answer_all(compactors, || Ok(()));
                self.absorb_full_file();
            }
            Err(error) => {
                let why = error.to_string();
                answer_all(callers.into_iter(), || Err(Error::Unavailable(why.clone())));
                answer_all(compactors, || Err(Error::Unavailable(why.clone())));
                self.recover(&why);
            }
        }
    }

    /// Those who are answered now and those who wait already can be one group.
    fn expect_company(&mut self, answered: usize, took: Duration) {
        let commits = answered + self.shared.mailbox.waiting();
        self.gather = Gather::after(commits, took);
    }

    /// Stages a turn, writes it and syncs it. A panic in the engine is a failure like any other.
    fn commit(&mut self, work: Work) -> Result<(Option<Written>, Answers), Error> {
        self.check.take().map_or(Ok(()), Check::wait)?;
        let (shared, state) = (self.shared.clone(), self.state);
        let staging = || shared.with_file(|file| Ok(stage(file, &shared.published(), state, work)));
        let (staged, answers) = catch_unwind(AssertUnwindSafe(staging))
            .unwrap_or_else(|_| Err(Error::Unavailable("the storage engine panicked".into())))?;
        let Some((staged, draft)) = staged else { return Ok((None, answers)) };
        let rows = self.append(draft, &staged.state)?;
        Ok((Some((staged, rows)), answers))
    }

    /// Writes a frame and syncs it.
    fn append(&mut self, draft: Draft, state: &State) -> Result<Vec<Bytes>, Error> {
        self.make_room(draft.len())?;
        let frame = draft.seal(self.shared.identity.seed(), self.wal.generation(), state);
        self.wal.append(&frame).map_err(|error| Error::Unavailable(error.to_string()))?;
        Ok(frame.rows)
    }

    /// Goes over to the other file if this one is full. That waits until the data file has what is
    /// in the other one: what the log holds, on disk and in memory, has a bound.
    fn make_room(&mut self, bytes: usize) -> Result<(), Error> {
        if self.wal.has_room(bytes) {
            return Ok(());
        }
        self.wait_absorbed()?;
        if !self.wal.may_switch(&self.absorbed) {
            self.start_absorbing(Tidy::Some(0))?;
            self.wait_absorbed()?;
        }
        self.wal.switch();
        Ok(())
    }

    /// Starts to absorb the file that was filled, so that its next turn can come.
    fn absorb_full_file(&mut self) {
        if self.wal.may_switch(&self.absorbed) || self.background.idle().is_none() {
            return;
        }
        if let Err(error) = self.start_absorbing(Tidy::Some(0)) {
            self.recover(&error.to_string());
        }
    }

    /// Forgets the past before any of it is dropped: whoever starts to read below it from now on
    /// is refused, and who started before has a snapshot.
    fn publish_compaction(&self, to: Revision) {
        let mut published = self.shared.published_mut();
        published.compacted = published.compacted.max(to);
    }

    /// Makes what is durable visible.
    fn publish(&mut self, (staged, rows): Written, now: Instant, wall: i64) {
        let Staged { state, changes, touched } = staged;
        let sums = Sums::of(&state);
        self.state.advance(state.newest, sums, &rows);
        self.unrested = true;
        self.write_head(false);
        for (key, row) in touched {
            if let Some(LiveRow { revision, expires }) = row
                && expires != 0
            {
                self.expiries.add(now, wall, Expiry { at: expires, key, revision });
            }
        }
        {
            let mut published = self.shared.published_mut();
            published.publish(changes, rows, sums);
        }
        {
            let mut report = self.shared.report();
            report.state = self.state;
            report.transactions += 1;
        }
        self.shared.newest.send_replace(state.newest);
    }

    fn write_head(&self, suspect: bool) {
        let seed = self.shared.identity.seed();
        let head = Head { suspect, ..Head::open_at(seed, self.state.newest) };
        if let Err(error) = self.head.write(head) {
            tracing::warn!(%error, "cannot write HEAD; a restart may not notice lost writes");
        }
    }

    /// After a failure: closes the file, opens it again and checks all of it, once. What was in
    /// flight may turn out to be there or not; its callers were told that this is unknown.
    fn recover(&mut self, why: &str) {
        tracing::error!(
            why, revision = %self.state.newest,
            "the data file failed; closing, reopening and checking it"
        );
        self.shared.report().trouble = Some(why.to_owned());
        // Whatever they came to, everything is read and checked anew.
        let _ = self.background.wait();
        self.background = Background::Lost;
        self.stop_check();
        let Some(file) = self.shared.take_file() else { return };
        let suspect = file.health.sync_failed() || self.wal.sync_failed();
        drop(file);
        if suspect {
            self.write_head(true);
        }
        self.failures += 1;
        if self.failures > FAILURES_MAX {
            tracing::error!(
                "too many failures in a row; the data file stays closed until a restart"
            );
            return;
        }
        let acknowledged = self.state.newest;
        match start::reopen(&*self.shared.disk, &self.shared.options, acknowledged, suspect) {
            Ok((loaded, wal)) => self.resume(loaded, wal),
            Err(error) => {
                tracing::error!(%error, "cannot reopen the data file; reads and writes fail until a restart");
                self.shared.report().trouble = Some(error.to_string());
                // Whether all of it reached the disk is unknown: the next start takes care.
                self.write_head(true);
            }
        }
    }

    fn stop_check(&mut self) {
        if let Some(check) = self.check.take() {
            check.stop();
        }
    }

    fn resume(&mut self, loaded: start::Loaded, wal: Wal) {
        let start::Loaded { file, contents, .. } = loaded;
        let Contents { published, state, absorber, expiries } = contents;
        let now = Instant::now();
        (self.state, self.wal) = (state, wal);
        self.absorbed = *absorber.state();
        self.unrested = !absorber.is_settled(&published.tail);
        self.background = Background::Idle(absorber);
        self.write_head(false);
        self.expiries = Expiries::new(now);
        self.await_expiries(now, expiries);
        *self.shared.published_mut() = published;
        self.shared.put_file(file);
        {
            let mut report = self.shared.report();
            (report.state, report.trouble) = (state, None);
        }
        self.shared.newest.send_replace(state.newest);
        tracing::info!(revision = %state.newest, "reopened the data file; serving again");
    }

    fn await_expiries(&mut self, now: Instant, expiries: Vec<Expiry>) {
        let wall = self.shared.options.clock.now().as_millisecond();
        for expiry in expiries {
            self.expiries.add(now, wall, expiry);
        }
    }

    /// Brings everything into the data file, so that the next start reads only that.
    fn settle(&mut self) -> Result<(), Error> {
        self.wait_absorbed()?;
        let Some(absorber) = self.background.idle() else { return Ok(()) };
        if !absorber.is_settled(&self.shared.published().tail) {
            self.start_absorbing(Tidy::Settle)?;
        }
        self.wait_absorbed()
    }

    /// A clean stop: the data file is closed first, then the head says so.
    fn close(mut self) {
        let settled = self.settle();
        self.stop_check();
        let Some(file) = self.shared.take_file() else { return };
        let health = file.health.clone();
        drop(file);
        if health.sync_failed() {
            self.write_head(true);
        }
        if settled.is_err() || health.failed() {
            tracing::warn!("could not close the data file cleanly; the next start repairs it");
            return;
        }
        let seed = self.shared.identity.seed();
        let head = Head { clean: true, ..Head::open_at(seed, self.state.newest) };
        if let Err(error) = self.head.write(head).and_then(|()| self.head.sync()) {
            tracing::warn!(%error, "cannot record the clean stop in HEAD; the next start checks all data");
        }
    }
}

/// Stages everything a turn writes.
fn stage(
    file: &DataFile,
    published: &Published,
    state: State,
    work: Work,
) -> (Option<(Staged, Draft)>, Answers) {
    let Work { writes, due, compact_to, wall } = work;
    let mut group = CommitGroup::new(file, published, state, wall, &writes);
    group.compact(compact_to);
    let answers = writes.into_iter().map(|write| group.commit(write)).collect();
    for expiry in &due {
        group.expire(expiry);
    }
    (group.finish(&state), answers)
}

/// Tells the same to everybody who waits.
fn answer_all<A>(
    callers: impl Iterator<Item = oneshot::Sender<Result<A, Error>>>,
    answer: impl Fn() -> Result<A, Error>,
) {
    for caller in callers {
        let _ = caller.send(answer());
    }
}
