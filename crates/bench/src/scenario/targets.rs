//! `bench targets`: every line Headwater is held to, in one go.

use std::time::Duration;

use anyhow::Result;

use super::client::{self, KeepMode};
use super::fan_out::{self, FanOutCase, Pace};
use super::herd::HerdCase;
use super::idle;
use super::list::{self, ListCase, ListMode};
use super::selective::{SelectBy, SelectiveCase};
use super::start;
use super::write::{self, WriteCase, WriteVerb};
use crate::load::stream::Protocol;
use crate::report::goals::shrunk;
use crate::session::Session;

/// How much of the full size is done, and how long idleness is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllTargets {
    /// Objects and watchers are divided by this.
    pub(crate) shrink: usize,
    pub(crate) idle: Duration,
}

impl AllTargets {
    pub(crate) async fn run(self, session: &mut Session) -> Result<()> {
        session.report.shrink = self.shrink;
        if self.shrink > 1 {
            session
                .report
                .note("a quick run: it shows that the bench works, not how fast anything is");
        }
        self.writes(session).await?;
        self.lists(session).await?;
        self.watches(session).await?;
        self.idle(session).await?;
        // Not first: it leaves a gigabyte of memory and as much of files behind, and whatever is
        // measured in the seconds after that costs more.
        if session.is_own() {
            start::run(session, &[self.of(100_000)]).await?;
        } else {
            session.report.note("starting is left out: that server is not ours to stop");
        }
        let keep = vec![KeepMode::KubeRuntime, KeepMode::Packed, KeepMode::Typed];
        let size = client::ClientSizes { objects: vec![self.of(100_000)], updates: 0, keep };
        client::run(session, &size).await
    }

    fn of(self, size: usize) -> usize {
        shrunk(size, self.shrink)
    }

    /// WriteCase to watch: not as few as objects, so that a quick run has streams to check.
    fn writes_of(self, writes: usize) -> usize {
        shrunk(writes, self.shrink.min(10))
    }

    async fn writes(self, session: &mut Session) -> Result<()> {
        write::prepare(session).await?;
        let mut first = 0;
        for (verbs, clients, objects) in [
            (vec![WriteVerb::CreatePod, WriteVerb::UpdatePod, WriteVerb::ApplyPod], 16, 20_000),
            (vec![WriteVerb::CreatePod], 1, 2_000),
            (vec![WriteVerb::CreateConfigMap], 64, 20_000),
        ] {
            let writes = WriteCase { verbs, clients, objects: self.of(objects), first };
            writes.run(session).await?;
            first = writes.end(session);
        }
        Ok(())
    }

    async fn lists(self, session: &mut Session) -> Result<()> {
        session.fresh().await?;
        let (small, large) = (self.of(10_000), self.of(100_000));
        list::prepare(session, 0, small).await?;
        ListCase::new(small, ListMode::Full).run(session).await?;
        ListCase::new(small, ListMode::Full).gzip().run(session).await?;
        for mode in [ListMode::Label, ListMode::Namespace, ListMode::AtOnce, ListMode::WatchList] {
            ListCase::new(small, mode).run(session).await?;
        }
        list::prepare(session, small, large).await?;
        for mode in [ListMode::Pages, ListMode::Label, ListMode::Namespace] {
            ListCase::new(large, mode).run(session).await?;
        }
        Ok(())
    }

    async fn watches(self, session: &mut Session) -> Result<()> {
        fan_out::prepare(session).await?;
        let flat_out = FanOutCase {
            watchers: self.of(1000),
            writes: self.writes_of(500),
            pace: Pace::FlatOut,
            protocol: Protocol::Http1,
        };
        flat_out.run(session).await?;
        FanOutCase { protocol: Protocol::Http2, ..flat_out }.run(session).await?;
        let (writes, pace) = (self.writes_of(100), Pace::PerSecond(10));
        FanOutCase { writes, pace, ..flat_out }.run(session).await?;
        let (writes, pace) = (self.writes_of(40), Pace::PerSecond(2));
        FanOutCase { watchers: self.of(5000), writes, pace, ..flat_out }.run(session).await?;
        HerdCase { watchers: self.of(1000), missed: 200 }.run(session).await?;
        for watchers in [10, 1000, 10_000] {
            let watchers = self.of(watchers);
            let writes = self.writes_of(2000);
            SelectiveCase { by: SelectBy::Label, watchers, writes }.run(session).await?;
        }
        Ok(())
    }

    async fn idle(self, session: &mut Session) -> Result<()> {
        idle::memory(session, self.of(5000)).await?;
        let (objects, watchers) = (self.of(10_000), self.of(1000));
        idle::IdleCase { objects, watchers, looked_at: self.idle }.run(session).await
    }
}
