//! What happens on a commit.
//!
//! River: mailbox → **commit** → published.
//! Promise: stages, writes, syncs, publishes and acknowledges, always in this order. All waiting
//! writes are one frame and one sync. If a frame cannot be written, its writes fail and nothing of
//! them is published; the next write tries again, for as long as the process lives.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use headwater_api::Revision;
use tokio::sync::oneshot;

use super::Writer;
use crate::embedded::expiry::Expiry;
use crate::embedded::group::{CommitGroup, Staged};
use crate::embedded::mailbox::{Compact, Gather, answer_all};
use crate::store::{Committed, Error, Write};

/// Revisions that are forgotten under one lock.
const FORGET: u64 = 4_096;

/// What one frame contains.
pub(super) struct Work {
    pub(super) writes: Vec<Write>,
    pub(super) due: Vec<Expiry>,
    pub(super) compact_to: Revision,
    /// The wall clock, in milliseconds.
    pub(super) wall: i64,
}

type Answers = Vec<Result<Committed, Error>>;

impl Writer {
    /// Commits a frame and answers everybody who waits for it.
    pub(super) fn transact(
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
    pub(super) fn append(&mut self, staged: &mut Staged) -> io::Result<()> {
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
    pub(super) fn failed(&mut self, error: &io::Error) -> String {
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
}
