//! `bench idle`: the memory and CPU of watchers that receive no events.

use std::time::Duration;

use anyhow::Result;

use super::list::newest;
use crate::load::requests::{make_namespaces, make_pods};
use crate::load::stream::Protocol;
use crate::load::watchers::{ALL_PODS, open};
use crate::report::Case;
use crate::report::figures::{Figure, Figures};
use crate::session::Session;
use crate::target::TargetServer;
use crate::target::measure::{Meter, rss};

const MINUTE: Duration = Duration::from_secs(60);
/// The first watchers allocate what all watchers share, so they are not measured.
const FIRST: usize = 100;

/// The memory per watcher of a resource without writes.
pub(crate) async fn memory(session: &mut Session, watchers: usize) -> Result<()> {
    let case = Case::new("idle", "memory", "watchers").sized("watchers", watchers);
    session.measure_fresh(case, async |target| memory_once(target, watchers).await).await
}

async fn memory_once(target: &TargetServer, watchers: usize) -> Result<Figures> {
    let path = "/api/v1/endpoints?watch=true&allowWatchBookmarks=true";
    let open = |count| open(&target.endpoint, count, Protocol::Http1, |_| path.to_owned());
    let _first = open(FIRST).await?;
    let before = rss(target).await;
    let _others = open(watchers).await?;
    let growth = rss(target).await.zip(before);
    let each = growth.map(|(after, before)| after.saturating_sub(before) / watchers as u64);
    Ok(Figures::default().memory(each))
}

/// The objects and watchers that are idle, and the time to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdleCase {
    pub(crate) objects: usize,
    pub(crate) watchers: usize,
    pub(crate) measured_for: Duration,
}

impl IdleCase {
    /// Measures the CPU of a minute without requests.
    pub(crate) async fn run(self, session: &mut Session) -> Result<()> {
        session.fresh().await?;
        session.each(async |target| self.prepare(target).await).await?;
        let case = Case::new("idle", "minute", "minutes").sized("watchers", self.watchers);
        session.measure(case, async |target, _| self.once(target).await).await
    }

    async fn prepare(self, target: &TargetServer) -> Result<()> {
        make_namespaces(target).await?;
        make_pods(target, 0, self.objects).await
    }

    async fn once(self, target: &TargetServer) -> Result<Figures> {
        let newest = newest(&target.endpoint).await?;
        let path = format!("{ALL_PODS}&resourceVersion={newest}&allowWatchBookmarks=true");
        let path = |_| path.clone();
        let _watchers = open(&target.endpoint, self.watchers, Protocol::Http1, path).await?;
        let meter = Meter::start(target).await;
        tokio::time::sleep(self.measured_for).await;
        let used = meter.stop().await;
        let share = MINUTE.as_secs_f64() / used.wall.as_secs_f64();
        let micros = used.cpu.map(|cpu| cpu.as_secs_f64() * 1e6 * share);
        Ok(Figures::default().maybe(Figure::Cpu, micros))
    }
}
