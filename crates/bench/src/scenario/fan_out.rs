//! `bench fan-out`: every event goes to every watcher; the CPU and the latency of one delivery.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::connect::Connection;
use crate::kubeconfig::Endpoint;
use crate::load::checker::ExpectedEvents;
use crate::load::requests::{make_namespaces, make_pods, update_pod};
use crate::load::stream::{BodyFormat, Protocol, WatchTarget};
use crate::load::watchers::{Readers, all_pods_from, open};
use crate::load::{LoadResult, histogram, load, send};
use crate::report::Case;
use crate::report::figures::Figures;
use crate::session::Session;
use crate::target::TargetServer;
use crate::target::measure::{Meter, rss};

/// Clients that write as fast as possible.
pub(crate) const WRITERS: usize = 4;
/// Pods that receive the writes.
pub(crate) const PODS: usize = 64;

/// The pace of the writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    FlatOut,
    /// This many per second, from one client.
    PerSecond(u32),
}

/// One case of fan-out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FanOutCase {
    pub(crate) watchers: usize,
    pub(crate) writes: usize,
    pub(crate) pace: Pace,
    pub(crate) protocol: Protocol,
    pub(crate) format: BodyFormat,
}

/// Creates the pods that receive the writes.
pub(crate) async fn prepare(session: &mut Session) -> Result<()> {
    session.fresh().await?;
    session.each(async |target| prepare_target(target).await).await
}

pub(crate) async fn prepare_target(target: &TargetServer) -> Result<()> {
    make_namespaces(target).await?;
    make_pods(target, 0, PODS).await
}

impl FanOutCase {
    pub(crate) async fn run(self, session: &mut Session) -> Result<()> {
        session.measure(self.case(), async |target, _| self.once(target).await).await
    }

    fn case(self) -> Case {
        let pace = match self.pace {
            Pace::FlatOut => "flat out".to_owned(),
            Pace::PerSecond(1) => "1 write a second".to_owned(),
            Pace::PerSecond(writes) => format!("{writes} writes a second"),
        };
        let mode = match self.protocol {
            Protocol::Http1 => pace,
            Protocol::Http2 => format!("{pace}, HTTP/2"),
        };
        let mode = match self.format {
            BodyFormat::Json => mode,
            BodyFormat::Protobuf => format!("{mode}, protobuf"),
        };
        Case::new("fan-out", &mode, "events").sized("watchers", self.watchers)
    }

    async fn once(self, target: &TargetServer) -> Result<Figures> {
        let endpoint = &target.endpoint;
        let path = all_pods_from(now(endpoint).await?);
        let accept = self.format.media_type();
        let watch = |_| WatchTarget { path: path.to_string(), accept };
        let streams = open(endpoint, self.watchers, self.protocol, watch).await?;
        let timed = self.pace != Pace::FlatOut;
        let readers = Readers::start(streams, timed, |_| self.writes);
        let meter = Meter::start(target).await;
        let done = self.write(endpoint).await?;
        let expected = ExpectedEvents::of(done.revisions())?;
        let finished = readers.finish(|_| &expected).await?;
        let used = meter.stop().await;
        let figures =
            Figures::per_unit(self.writes * self.watchers, used).memory(rss(target).await);
        let figures = match timed {
            true => figures.latency(&finished.delays(&done.acknowledged)?),
            false => figures,
        };
        finished.expect_only(now(endpoint).await?).await?;
        Ok(figures)
    }

    async fn write(self, endpoint: &Endpoint) -> Result<LoadResult> {
        match self.pace {
            Pace::FlatOut => load(endpoint, WRITERS, self.writes, write).await,
            Pace::PerSecond(writes) => {
                let pause = Duration::from_secs(1) / writes;
                paced(endpoint, self.writes, pause).await
            }
        }
    }
}

/// Writes from one client, paced.
pub(crate) async fn paced(
    endpoint: &Endpoint,
    writes: usize,
    pause: Duration,
) -> Result<LoadResult> {
    let mut connection = Connection::open(endpoint).await?;
    let mut ticks = tokio::time::interval(pause);
    let mut done = LoadResult { micros: histogram()?, acknowledged: Vec::new() };
    for index in 0..writes {
        ticks.tick().await;
        let began = Instant::now();
        let revision = send(&mut connection, write(index)).await?;
        done.micros.saturating_record(began.elapsed().as_micros() as u64);
        done.acknowledged.push((revision, Instant::now()));
    }
    Ok(done)
}

/// The `index`-th write.
pub(crate) fn write(index: usize) -> crate::load::WriteRequest {
    update_pod(index % PODS)
}

/// The newest resourceVersion, from a write to one of the pods.
pub(crate) async fn now(endpoint: &Endpoint) -> Result<u64> {
    let mut connection = Connection::open(endpoint).await?;
    send(&mut connection, write(0)).await
}
