//! The floor: what this machine could at best do, with no product in it.
//!
//! A bare server that streams ready-made bytes is read by the same watchers as a real one, and the
//! kernel is asked for what every server needs: bytes through TLS, writes to sockets, syncs of a disk.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::figures::Figures;
use super::measure::{Meter, rss};
use super::report::{Case, Row};
use super::seen::Expected;
use super::session::Session;
use super::stream::Protocol;
use super::target::{Home, Target, end, ready};
use super::watchers::{Readers, open};
use crate::connect::Connection;

mod machine;
pub(super) mod server;

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Floor {
    pub(super) watchers: usize,
    pub(super) writes: usize,
    pub(super) idle: usize,
    pub(super) objects: usize,
}

impl Floor {
    pub(super) async fn run(self, session: &mut Session) -> Result<()> {
        let runs = session.runs();
        let home = Home::new()?;
        machine::run(&home, session).await?;
        let bare = Bare::start(&home)?;
        let target = bare.target()?;
        let list = Case::new("floor", "list, ready-made", "objects").sized("objects", self.objects);
        let mut figures = Vec::new();
        for _ in 0..runs {
            figures.push(self.list(&target).await?);
        }
        tell(session, list, &figures);
        for protocol in [Protocol::Http1, Protocol::Http2] {
            let mode = match protocol {
                Protocol::Http1 => "fan-out, ready-made",
                Protocol::Http2 => "fan-out, ready-made, HTTP/2",
            };
            let mut figures = Vec::new();
            for _ in 0..runs {
                figures.push(self.fan_out(&target, protocol).await?);
            }
            let case = Case::new("floor", mode, "events").sized("watchers", self.watchers);
            tell(session, case, &figures);
        }
        let mut figures = Vec::new();
        for _ in 0..runs {
            figures.push(self.paced(&target).await?);
        }
        let case = Case::new("floor", "fan-out, ready-made, 10 events a second", "events");
        tell(session, case.sized("watchers", self.watchers), &figures);
        let idle = Case::new("floor", "idle watcher", "watchers").sized("watchers", self.idle);
        tell(session, idle, &[self.memory(&target).await?]);
        Ok(())
    }

    async fn list(self, target: &Target) -> Result<Figures> {
        const ROUNDS: usize = 10;
        let mut connection = Connection::open(&target.endpoint).await?;
        let meter = Meter::start(target).await;
        for _ in 0..ROUNDS {
            let path = format!("/list/{}", self.objects);
            super::list::drain(&mut connection, &path).await?;
        }
        Ok(Figures::used(self.objects * ROUNDS, meter.stop().await))
    }

    async fn fan_out(self, target: &Target, protocol: Protocol) -> Result<Figures> {
        let path = format!("/watch/{}", self.writes);
        let endpoint = &target.endpoint;
        let streams = open(endpoint, self.watchers, protocol, |_| path.clone()).await?;
        let readers = Readers::start(streams, false, |_| self.writes);
        let expected = Expected::of((1..=self.writes as u64).collect())?;
        let mut connection = Connection::open(endpoint).await?;
        let meter = Meter::start(target).await;
        go(&mut connection).await?;
        readers.finish(|_| &expected).await?;
        Ok(Figures::used(self.writes * self.watchers, meter.stop().await))
    }

    /// One event after the other, by the clock.
    async fn paced(self, target: &Target) -> Result<Figures> {
        const EVENTS: usize = 50;
        const PAUSE: Duration = Duration::from_millis(100);
        let endpoint = &target.endpoint;
        let path = |_| format!("/each/{EVENTS}");
        let streams = open(endpoint, self.watchers, Protocol::Http1, path).await?;
        let readers = Readers::start(streams, true, |_| EVENTS);
        let expected = Expected::of((1..=EVENTS as u64).collect())?;
        let (mut ticks, mut acknowledged) = (tokio::time::interval(PAUSE), Vec::new());
        let mut connection = Connection::open(endpoint).await?;
        let meter = Meter::start(target).await;
        for event in 1..=EVENTS as u64 {
            ticks.tick().await;
            go(&mut connection).await?;
            acknowledged.push((event, Instant::now()));
        }
        let finished = readers.finish(|_| &expected).await?;
        let figures = Figures::used(EVENTS * self.watchers, meter.stop().await);
        Ok(figures.latency(&finished.delays(&acknowledged)?))
    }

    async fn memory(self, target: &Target) -> Result<Figures> {
        let open =
            |count| open(&target.endpoint, count, Protocol::Http1, |_| "/watch/1".to_owned());
        let _first = open(100).await?;
        let before = rss(target).await;
        let _others = open(self.idle).await?;
        let growth = rss(target).await.zip(before);
        let each = growth.map(|(after, before)| after.saturating_sub(before) / self.idle as u64);
        Ok(Figures::default().memory(each))
    }
}

/// Lets the bare server send.
async fn go(connection: &mut Connection) -> Result<()> {
    super::list::drain(connection, "/go").await
}

pub(super) fn tell(session: &mut Session, case: Case, runs: &[Figures]) {
    let figures = Figures::median(runs);
    let (server, runs) = (String::new(), runs.len());
    session.report.floor(Row { case, server, runs, figures, against: None });
}

/// The bare server, in a process of its own.
struct Bare {
    child: Child,
    kubeconfig: std::path::PathBuf,
}

impl Bare {
    fn start(home: &Home) -> Result<Bare> {
        let kubeconfig = home.path().join("kubeconfig");
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "floor-server", "--kubeconfig"]).arg(&kubeconfig);
        let child = ready(&mut command).context("the bare server did not start")?;
        Ok(Bare { child, kubeconfig })
    }

    fn target(&self) -> Result<Target> {
        Target::process("floor", &self.kubeconfig, self.child.id())
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}
