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

use super::expiry::Expiries;
use super::file::{DataFile, trouble};
use super::group::{Group, Staged};
use super::head::{Head, HeadFile};
use super::mailbox::{self, Compact};
use super::published::{Expiry, Published};
use super::retention::Keeper;
use super::row::State;
use super::{Shared, start};
use crate::store::{Committed, Error, Write};

/// How often retention looks.
const TICK: Duration = Duration::from_secs(1);

/// Rows that are dropped in a transaction of their own, when nothing else is to be done.
const TRIM_IDLE: u64 = 1_000;

/// Rows that are dropped along with every write, so that dropping keeps up with writing.
const TRIM_PER_WRITE: u64 = 3;

/// Failures in a row after which the file is left closed.
const FAILURES_MAX: u32 = 3;

/// The writer's own state.
pub(super) struct Writer {
    shared: Arc<Shared>,
    head: HeadFile,
    state: State,
    expiries: Expiries,
    keeper: Keeper,
    /// When retention looks next.
    next_tick: Instant,
    /// Off once a row that was to be dropped could not be read.
    trims: bool,
    failures: u32,
}

/// What one turn does.
struct Turn {
    writes: Vec<Write>,
    due: Vec<Expiry>,
    /// Up to where the past is forgotten.
    compact_to: Revision,
    /// How many forgotten rows are dropped at most.
    trim: u64,
    /// The wall clock, in milliseconds.
    wall: i64,
}

type Answers = Vec<Result<Committed, Error>>;

impl Writer {
    pub(super) fn new(
        shared: Arc<Shared>,
        head: HeadFile,
        state: State,
        expiries: Vec<Expiry>,
        ages: Vec<(Instant, Revision)>,
    ) -> Writer {
        let now = Instant::now();
        let mut keeper = Keeper::new(shared.options.retention);
        for (at, revision) in ages {
            keeper.mark(at, revision);
        }
        let mut writer = Writer {
            shared,
            head,
            state,
            expiries: Expiries::new(now),
            keeper,
            next_tick: now,
            trims: true,
            failures: 0,
        };
        writer.await_expiries(now, expiries);
        writer
    }

    /// Works until the mailbox is closed and empty.
    pub(super) fn run(mut self) {
        loop {
            let group = self.shared.mailbox.take(self.wait());
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
        let compact_to = compacts.iter().map(|request| request.what).max();
        let compact_to = compact_to.max(ticks.then(|| self.tick(now))).unwrap_or_default();
        let due = self.expiries.take(now);
        let busy = !commits.is_empty() || !due.is_empty();
        let trim = match (self.trims, busy, ticks) {
            (true, true, _) => (commits.len() + due.len()) as u64 * TRIM_PER_WRITE,
            (true, false, true) => TRIM_IDLE,
            _ => 0,
        };
        let compacted = self.state.compacted.max(compact_to);
        let trims = trim > 0 && self.state.trimmed < compacted;
        if !busy && !trims && compacted == self.state.compacted {
            return answer_all(compacts.into_iter().map(|request| request.answer), || Ok(()));
        }
        let (writes, callers) = commits.into_iter().map(|r| (r.what, r.answer)).unzip();
        let wall = self.shared.options.clock.now().as_millisecond();
        self.transact(Turn { writes, due, compact_to, trim, wall }, callers, compacts, now);
    }

    /// Retention's turn: up to where it forgets.
    fn tick(&mut self, now: Instant) -> Revision {
        self.next_tick = now + TICK;
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

    fn transact(
        &mut self,
        turn: Turn,
        callers: Vec<oneshot::Sender<Result<Committed, Error>>>,
        compacts: Vec<Compact>,
        now: Instant,
    ) {
        self.publish_compaction(turn.compact_to);
        let compactors = compacts.into_iter().map(|request| request.answer);
        let wall = turn.wall;
        match self.commit(turn) {
            Ok((staged, answers)) => {
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

    /// One transaction on the open file. A panic in the engine is a failure like any other.
    fn commit(&mut self, turn: Turn) -> Result<(Option<Staged>, Answers), Error> {
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
        let txn = file.begin_write()?;
        let mut group = Group::new(&txn, file.seed, published, self.state, turn.wall)?;
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
        match staged {
            Some(_) => txn.commit().map_err(trouble)?,
            None => txn.abort().map_err(trouble)?,
        }
        Ok((staged, answers))
    }

    /// Makes what is durable visible.
    fn publish(&mut self, staged: Option<Staged>, now: Instant, wall: i64) {
        let Some(Staged { state, changes, expiries }) = staged else { return };
        self.failures = 0;
        self.state = state;
        self.write_head(false);
        self.await_expiries_at(now, wall, expiries);
        {
            let mut published = self.shared.published_mut();
            published.publish(changes);
        }
        self.shared.set_state(state);
        self.shared.newest.send_replace(state.newest);
    }

    fn write_head(&self, suspect: bool) {
        let head = Head { revision: self.state.newest, clean: false, suspect };
        if let Err(error) = self.head.write(head) {
            tracing::warn!(%error, "cannot write the head");
        }
    }

    /// After a failure: closes the file, opens it again and checks all of it, once. What was in
    /// flight may turn out to be there or not; its callers were told that this is unknown.
    fn recover(&mut self, why: &str) {
        tracing::error!(why, revision = %self.state.newest, "a write failed; opening the data file again");
        self.shared.set_trouble(Some(why.to_owned()));
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
                self.shared.set_trouble(Some(error.to_string()));
            }
        }
    }

    fn resume(&mut self, loaded: start::Loaded) {
        let start::Loaded { file, published, state, expiries } = loaded;
        let now = Instant::now();
        self.state = state;
        self.write_head(false);
        self.expiries = Expiries::new(now);
        self.await_expiries(now, expiries);
        *self.shared.published_mut() = published;
        self.shared.put_file(file);
        self.shared.set_state(state);
        self.shared.set_trouble(None);
        self.shared.newest.send_replace(state.newest);
        tracing::info!(revision = %state.newest, "the data file is open again");
    }

    fn await_expiries(&mut self, now: Instant, expiries: Vec<Expiry>) {
        let wall = self.shared.options.clock.now().as_millisecond();
        self.await_expiries_at(now, wall, expiries);
    }

    fn await_expiries_at(&mut self, now: Instant, wall: i64, expiries: Vec<Expiry>) {
        for expiry in expiries {
            self.expiries.add(now, wall, expiry);
        }
    }

    /// A clean stop: the data file is closed first, then the head says so.
    fn close(self) {
        let Some(file) = self.shared.take_file() else { return };
        let health = file.health.clone();
        drop(file);
        if health.failed() {
            tracing::warn!("the data file could not be closed; the next start repairs it");
            return;
        }
        let head = Head { revision: self.state.newest, clean: true, suspect: false };
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
