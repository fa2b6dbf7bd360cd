//! The writer: the one thread that changes the data file.
//!
//! River: mailbox → **writer** → published.
//! Promise, in this order and no other: write, sync, publish, acknowledge. All writes that wait are
//! one transaction and one sync. A failed write or sync acknowledges nothing; the file is closed,
//! opened again and checked before anything else is written to it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use headwater_api::Revision;
use tokio::sync::oneshot;

use super::check::Check;
use super::expiry::{Expiries, Expiry};
use super::file::{DataFile, trouble};
use super::group::{Group, Staged};
use super::head::{Head, HeadFile};
use super::mailbox::{self, Commit, Compact, Gather};
use super::pending::{Chunk, Pending, Start};
use super::published::{Contents, Published};
use super::retention::Keeper;
use super::row::{LiveRow, State};
use super::space::Watchman;
use super::{Shared, start};
use crate::store::{Action, Committed, Error, Write};

/// How often retention looks.
const TICK: Duration = Duration::from_secs(1);

/// Rows that are tidied (dropped, or moved into the live table) when nothing else is to be done.
const IDLE_ROWS: usize = 2_000;

/// Rows that are tidied along with every write, so that tidying keeps up with writing.
const ROWS_PER_WRITE: usize = 3;

/// The part of a transaction's time that the next one may wait for company.
const GATHER_PART: u32 = 4;

/// Failures in a row after which the file is left closed.
const FAILURES_MAX: u32 = 3;

/// The writer's own state.
pub(super) struct Writer {
    shared: Arc<Shared>,
    head: HeadFile,
    /// What has to succeed before anything is written.
    check: Option<Check>,
    state: State,
    pending: Pending,
    expiries: Expiries,
    keeper: Keeper,
    watchman: Watchman,
    /// When retention looks next.
    next_tick: Instant,
    /// Off once a row that was to be dropped could not be read.
    trims: bool,
    failures: u32,
    /// Something was written since the last rest.
    unrested: bool,
    /// How long the next group waits for company.
    gather: Gather,
}

/// What one turn does.
struct Turn {
    writes: Vec<Write>,
    due: Vec<Expiry>,
    /// Up to where the past is forgotten.
    compact_to: Revision,
    /// How many forgotten rows are dropped at most.
    trim: u64,
    /// What moves into the live table.
    settle: Chunk,
    /// Whether this is for a quick start: it costs a second sync and saves the next start, should
    /// the process be killed from here on, from repairing the whole file.
    rest: bool,
    /// The wall clock, in milliseconds.
    wall: i64,
}

type Answers = Vec<Result<Committed, Error>>;

impl Writer {
    pub(super) fn new(
        shared: Arc<Shared>,
        head: HeadFile,
        check: Option<Check>,
        (state, pending, expiries): (State, Pending, Vec<Expiry>),
        ages: Vec<(Instant, Revision)>,
    ) -> Writer {
        let now = Instant::now();
        let mut keeper = Keeper::new(shared.options.retention);
        for (at, revision) in ages {
            keeper.mark(at, revision);
        }
        let watchman = Watchman::new(&*shared.disk);
        shared.report().full = watchman.refusal();
        let mut writer = Writer {
            shared,
            head,
            check,
            state,
            pending,
            expiries: Expiries::new(now),
            keeper,
            watchman,
            next_tick: now,
            trims: true,
            failures: 0,
            unrested: false,
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
            self.turn(group);
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

    fn turn(&mut self, group: mailbox::Group) {
        // The places in the mailbox are held until everything is answered.
        let mailbox::Group { commits, compacts, places: _places, .. } = group;
        let now = Instant::now();
        let ticks = now >= self.next_tick;
        let compacts = self.refuse_future(compacts);
        let commits = self.refuse_full(commits);
        let compact_to = compacts.iter().map(|request| request.what).max();
        let compact_to = compact_to.max(ticks.then(|| self.tick(now))).unwrap_or_default();
        let due = self.expiries.take(now);
        let writes = commits.len() + due.len();
        let forgets = self.trims && self.state.trimmed < self.state.compacted.max(compact_to);
        let quota = match (writes, ticks) {
            (0, false) => 0,
            (0, true) => IDLE_ROWS,
            (writes, _) => writes * ROWS_PER_WRITE,
        };
        // What is forgotten can only be dropped once the live table does not need it any more.
        let start = if forgets { Start::Now } else { Start::WhenDue };
        let settle = self.pending.take(quota, self.state.newest, start);
        let trim = if forgets { quota as u64 } else { 0 };
        let idle = writes == 0 && trim == 0 && settle.rows.is_empty() && settle.live_at.is_none();
        if idle && ticks {
            self.rest(now);
        }
        if idle && compact_to <= self.state.compacted {
            return answer_all(compacts.into_iter().map(|request| request.answer), || Ok(()));
        }
        let (writes, callers) = commits.into_iter().map(|r| (r.what, r.answer)).unzip();
        let turn = Turn { writes, due, compact_to, trim, settle, ..self.empty_turn() };
        self.transact(turn, callers, compacts, now);
    }

    /// Retention's turn: up to where it forgets.
    fn tick(&mut self, now: Instant) -> Revision {
        self.next_tick = now + TICK;
        self.watchman.look(&*self.shared.disk);
        self.shared.report().full = self.watchman.refusal();
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

    /// Nothing happened for a tick.
    fn rest(&mut self, now: Instant) {
        if self.shared.has_failed() {
            // A read failed: nobody can read until the file is opened again.
            return self.recover("a read failed");
        }
        if self.unrested {
            let settle = self.pending.take(usize::MAX, self.state.newest, Start::Now);
            let turn = Turn { settle, rest: true, ..self.empty_turn() };
            self.transact(turn, Vec::new(), Vec::new(), now);
        }
    }

    fn empty_turn(&self) -> Turn {
        Turn {
            writes: Vec::new(),
            due: Vec::new(),
            compact_to: Revision::ZERO,
            trim: 0,
            settle: Chunk::default(),
            rest: false,
            wall: self.shared.options.clock.now().as_millisecond(),
        }
    }

    /// Answers the writes that there is no room for.
    fn refuse_full(&self, commits: Vec<Commit>) -> Vec<Commit> {
        let Some(why) = self.watchman.refusal() else { return commits };
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
        turn: Turn,
        callers: Vec<oneshot::Sender<Result<Committed, Error>>>,
        compacts: Vec<Compact>,
        now: Instant,
    ) {
        self.publish_compaction(turn.compact_to);
        let compactors = compacts.into_iter().map(|request| request.answer);
        let (wall, rest) = (turn.wall, turn.rest);
        let begun = Instant::now();
        match self.commit(turn) {
            Ok((staged, answers)) => {
                self.expect_company(callers.len(), begun.elapsed());
                self.unrested |= staged.is_some();
                self.unrested &= !rest;
                self.publish(staged, now, wall);
                for (caller, answer) in callers.into_iter().zip(answers) {
                    // A caller that is gone does not need its answer.
                    let _ = caller.send(answer);
                }
                answer_all(compactors, || Ok(()));
            }
            Err(error) => {
                let why = error.to_string();
                answer_all(callers.into_iter(), || Err(Error::Unavailable(why.clone())));
                answer_all(compactors, || Err(Error::Unavailable(why.clone())));
                self.recover(&why);
            }
        }
    }

    /// Those who are answered now and those who wait already can be one group. Waiting for them is
    /// worth a part of the time a transaction takes.
    fn expect_company(&mut self, answered: usize, took: Duration) {
        let commits = answered + self.shared.mailbox.waiting();
        self.gather = Gather { commits, within: took / GATHER_PART };
    }

    /// One transaction on the open file. A panic in the engine is a failure like any other.
    fn commit(&mut self, turn: Turn) -> Result<(Option<Staged>, Answers), Error> {
        self.check.take().map_or(Ok(()), Check::wait)?;
        let shared = self.shared.clone();
        let work = || shared.with_file(|file| self.stage(file, &shared.published(), turn));
        catch_unwind(AssertUnwindSafe(work))
            .unwrap_or_else(|_| Err(Error::Unavailable("the storage engine panicked".into())))
    }

    /// Forgets the past before any of it is dropped: whoever starts to read below it from now on
    /// is refused, and who started before has a snapshot.
    fn publish_compaction(&self, to: Revision) {
        let mut published = self.shared.published_mut();
        published.compacted = published.compacted.max(to);
    }

    /// Stages everything in one transaction, then writes and syncs it.
    fn stage(
        &mut self,
        file: &DataFile,
        published: &Published,
        turn: Turn,
    ) -> Result<(Option<Staged>, Answers), Error> {
        let mut txn = file.begin_write()?;
        txn.set_quick_repair(turn.rest);
        let mut group = Group::new(&txn, file.seed, published, self.state, turn.wall)?;
        group.settle(&turn.settle)?;
        group.compact(turn.compact_to);
        if let Err(error) = group.trim(turn.trim) {
            // What cannot be read is not dropped, and the writes must not suffer for it.
            tracing::error!(%error, "history is not dropped any more");
            self.trims = false;
            drop(group);
            txn.abort().map_err(trouble)?;
            return self.stage(file, published, Turn { trim: 0, ..turn });
        }
        let answers = turn.writes.into_iter().map(|write| group.commit(write));
        let answers: Answers = answers.collect::<Result<_, Error>>()?;
        for expiry in &turn.due {
            group.expire(expiry)?;
        }
        let staged = group.finish(&self.state)?;
        if staged.is_some() || turn.rest {
            txn.commit().map_err(trouble)?;
        } else {
            txn.abort().map_err(trouble)?;
        }
        Ok((staged, answers))
    }

    /// Makes what is durable visible.
    fn publish(&mut self, staged: Option<Staged>, now: Instant, wall: i64) {
        let Some(Staged { state, changes, touched }) = staged else { return };
        self.failures = 0;
        self.state = state;
        self.write_head(false);
        for (key, row) in touched {
            if let Some(LiveRow { revision, expires }) = row
                && expires != 0
            {
                self.expiries.add(now, wall, Expiry { at: expires, key: key.clone(), revision });
            }
            self.pending.add(key, row);
        }
        {
            let mut published = self.shared.published_mut();
            published.publish(changes);
        }
        {
            let mut report = self.shared.report();
            report.state = state;
            report.transactions += 1;
        }
        self.shared.newest.send_replace(state.newest);
    }

    fn write_head(&self, suspect: bool) {
        let seed = self.shared.identity.seed();
        let head = Head { suspect, ..Head::open_at(seed, self.state.newest) };
        if let Err(error) = self.head.write(head) {
            tracing::warn!(%error, "cannot write the head");
        }
    }

    /// After a failure: closes the file, opens it again and checks all of it, once. What was in
    /// flight may turn out to be there or not; its callers were told that this is unknown.
    fn recover(&mut self, why: &str) {
        tracing::error!(why, revision = %self.state.newest, "a write failed; opening the data file again");
        self.shared.report().trouble = Some(why.to_owned());
        let Some(file) = self.shared.take_file() else { return };
        let suspect = file.health.sync_failed();
        drop(file);
        if suspect {
            self.write_head(true);
        }
        self.failures += 1;
        if self.failures > FAILURES_MAX {
            tracing::error!("too many failures in a row; the data file stays closed");
            return;
        }
        let acknowledged = self.state.newest;
        match start::reopen(&*self.shared.disk, &self.shared.options, acknowledged, suspect) {
            Ok(loaded) => self.resume(loaded),
            Err(error) => {
                tracing::error!(%error, "the data file cannot be opened again");
                self.shared.report().trouble = Some(error.to_string());
            }
        }
    }

    fn resume(&mut self, loaded: start::Loaded) {
        let start::Loaded { file, contents } = loaded;
        let Contents { published, state, pending, expiries } = contents;
        let now = Instant::now();
        (self.state, self.pending) = (state, pending);
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
        tracing::info!(revision = %state.newest, "the data file is open again");
    }

    fn await_expiries(&mut self, now: Instant, expiries: Vec<Expiry>) {
        let wall = self.shared.options.clock.now().as_millisecond();
        for expiry in expiries {
            self.expiries.add(now, wall, expiry);
        }
    }

    /// Moves everything into the live table, so that the next start reads only that.
    fn settle(&mut self) {
        // A sweep that is under way leaves what came after it to a second one.
        for _ in 0..2 {
            let settle = self.pending.take(usize::MAX, self.state.newest, Start::Now);
            if settle.live_at.is_some() {
                let turn = Turn { settle, ..self.empty_turn() };
                self.transact(turn, Vec::new(), Vec::new(), Instant::now());
            }
        }
    }

    /// A clean stop: the data file is closed first, then the head says so.
    fn close(mut self) {
        self.settle();
        if let Some(check) = self.check.take() {
            check.stop();
        }
        let Some(file) = self.shared.take_file() else { return };
        let health = file.health.clone();
        drop(file);
        if health.failed() {
            tracing::warn!("the data file could not be closed; the next start repairs it");
            return;
        }
        let seed = self.shared.identity.seed();
        let head = Head { clean: true, ..Head::open_at(seed, self.state.newest) };
        if let Err(error) = self.head.write(head).and_then(|()| self.head.sync()) {
            tracing::warn!(%error, "cannot mark the clean stop");
        }
    }
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
