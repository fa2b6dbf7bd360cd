//! `bench targets`: all goals of Headwater in one run.

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
use crate::load::stream::{BodyFormat, Protocol};
use crate::report::goals::shrunk;
use crate::session::Session;

/// The size of the run, and how long idleness is measured.
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
                .note("quick run: it checks that the bench works; its figures are not comparable");
        }
        self.writes(session).await?;
        self.lists(session).await?;
        self.watches(session).await?;
        self.idle(session).await?;
        // Near the end: the kernel needs some seconds to reclaim a gigabyte of memory and files,
        // and measurements in that time cost more.
        if session.is_own() {
            start::run(session, &[self.of(100_000)]).await?;
        } else {
            session.report.note("skipped: start. It stops and starts its server, so it needs one that the bench started");
        }
        let keep = vec![KeepMode::Packed, KeepMode::Typed];
        let size = client::ClientSizes { objects: vec![self.of(100_000)], updates: 0, keep };
        client::run(session, &size).await
    }

    fn of(self, size: usize) -> usize {
        shrunk(size, self.shrink)
    }

    /// Writes to watch: reduced less than objects, so that a quick run has events to check.
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
            format: BodyFormat::Json,
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
        idle::IdleCase { objects, watchers, measured_for: self.idle }.run(session).await
    }
}
