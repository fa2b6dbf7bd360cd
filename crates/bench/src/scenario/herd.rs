//! `bench herd`: many disconnected watchers reconnect at once and read the events they missed.

use anyhow::Result;
use tokio::task::JoinSet;

use super::fan_out::{now, write};
use crate::load::checker::ExpectedEvents;
use crate::load::load;
use crate::load::stream::{Protocol, WatchStream};
use crate::load::watchers::{all_pods_from, read, wrong};
use crate::report::Case;
use crate::report::figures::Figures;
use crate::session::Session;
use crate::target::TargetServer;
use crate::target::measure::{Meter, rss};

const WRITERS: usize = 4;

/// One case of reconnecting watchers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HerdCase {
    pub(crate) watchers: usize,
    /// Events that each watcher has missed.
    pub(crate) missed: usize,
}

impl HerdCase {
    pub(crate) async fn run(self, session: &mut Session) -> Result<()> {
        let case = Case::new("herd", "resume", "events").sized("watchers", self.watchers);
        session.measure(case, async |target, _| self.once(target).await).await
    }

    async fn once(self, target: &TargetServer) -> Result<Figures> {
        let path = all_pods_from(now(&target.endpoint).await?);
        let done = load(&target.endpoint, WRITERS, self.missed, write).await?;
        let expected = ExpectedEvents::of(done.revisions())?;
        let meter = Meter::start(target).await;
        let mut readers = JoinSet::new();
        for watcher in 0..self.watchers {
            let (endpoint, path) = (target.endpoint.clone(), path.clone());
            readers.spawn(async move {
                let stream =
                    WatchStream::open(&endpoint, &(&*path).into(), Protocol::Http1).await?;
                read(watcher, stream, self.missed, false).await
            });
        }
        // Real watchers stay connected, so all stay open until the last is done.
        let mut open = Vec::with_capacity(self.watchers);
        while let Some(read) = readers.join_next().await {
            let read = read??;
            expected
                .check(&read.seen)
                .map_err(|error| anyhow::Error::new(error).context(wrong(read.watcher)))?;
            open.push(read.stream);
        }
        let used = meter.stop().await;
        Ok(Figures::per_unit(self.missed * self.watchers, used).memory(rss(target).await))
    }
}
