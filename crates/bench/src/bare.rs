//! The bare server as a client sees it: hyper and rustls sending ready-made bytes, the floor for
//! any server on this machine.
//!
//! The same watchers and clients that load the measured server load the bare server with similar
//! work, alternately, run by run.

use std::ops::Range;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::connect::Connection;
use crate::load::body::drain;
use crate::load::checker::ExpectedEvents;
use crate::load::requests::create_pod;
use crate::load::stream::Protocol;
use crate::load::watchers::{Readers, open};
use crate::load::{WriteRequest, load, send};
use crate::report::Case;
use crate::report::extra::{BATCH, ExtraCost};
use crate::report::figures::Figures;
use crate::target::measure::{Meter, rss};
use crate::target::{Process, ScratchDir, TargetServer};

pub(crate) mod server;

/// Work for the bare server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BareWork {
    /// A list.
    List { objects: usize },
    /// Events to every watcher, as fast as possible.
    FanOut { watchers: usize, events: usize, protocol: Protocol },
    /// Events to every watcher, paced.
    Paced { watchers: usize, events: usize, per_second: u32 },
    /// Requests with a pod, each answered with a pod.
    Write { clients: usize, writes: usize },
    /// The same from one client, each synced to disk before the response.
    Synced { writes: usize },
    /// Writes that are each an event for one of the watchers; the cost is the extra cost of the
    /// event.
    One { watchers: usize, writes: usize },
}

impl BareWork {
    /// The work most similar to this many units of a case.
    pub(crate) fn of(case: &Case, units: usize) -> Option<BareWork> {
        let size = case.size;
        let events = units.checked_div(size).unwrap_or_default();
        let protocol =
            if case.mode().ends_with("HTTP/2") { Protocol::Http2 } else { Protocol::Http1 };
        Some(match (case.scenario(), case.mode()) {
            ("write", "create pod") if size == 1 => BareWork::Synced { writes: units.min(2_000) },
            ("write", _) => BareWork::Write { clients: size, writes: units.min(10_000) },
            ("list", mode) if mode != "at once" => BareWork::List { objects: size.min(10_000) },
            ("fan-out", mode) => match mode.split_once(" write") {
                Some((number, _)) => {
                    BareWork::Paced { watchers: size, events, per_second: number.parse().ok()? }
                }
                None => BareWork::FanOut { watchers: size, events, protocol },
            },
            ("herd", _) => BareWork::FanOut { watchers: size, events, protocol },
            ("selective", _) => BareWork::One { watchers: size.min(100), writes: units },
            _ => return None,
        })
    }

    pub(crate) async fn once(self, bare: &TargetServer) -> Result<Figures> {
        match self {
            BareWork::List { objects } => list(bare, objects).await,
            BareWork::FanOut { watchers, events, protocol } => {
                fan_out(bare, watchers, events, protocol).await
            }
            BareWork::Paced { watchers, events, per_second } => {
                paced(bare, watchers, events, Duration::from_secs(1) / per_second.max(1)).await
            }
            BareWork::Write { clients, writes } => write(bare, "/write", clients, writes).await,
            BareWork::Synced { writes } => write(bare, "/sync", 1, writes).await,
            BareWork::One { watchers, writes } => one(bare, watchers, writes).await,
        }
    }

    pub(crate) fn case(self) -> Case {
        let case = |mode, unit| Case::new("floor", mode, unit);
        match self {
            BareWork::List { objects } => {
                case("list, ready-made", "objects").sized("objects", objects)
            }
            BareWork::FanOut { watchers, protocol, .. } => {
                let mode = match protocol {
                    Protocol::Http1 => "fan-out, ready-made",
                    Protocol::Http2 => "fan-out, ready-made, HTTP/2",
                };
                case(mode, "events").sized("watchers", watchers)
            }
            BareWork::Paced { watchers, per_second, .. } => {
                let mode = format!("fan-out, ready-made, {per_second} events a second");
                case(&mode, "events").sized("watchers", watchers)
            }
            BareWork::Write { clients, .. } => {
                case("write, ready-made answer", "writes").sized("clients", clients)
            }
            BareWork::Synced { .. } => {
                case("write, synced, ready-made answer", "writes").sized("clients", 1)
            }
            BareWork::One { watchers, .. } => {
                case("an event for one watcher", "writes").sized("watchers", watchers)
            }
        }
    }
}

async fn list(bare: &TargetServer, objects: usize) -> Result<Figures> {
    const ROUNDS: usize = 10;
    let mut connection = Connection::open(&bare.endpoint).await?;
    let meter = Meter::start(bare).await;
    for _ in 0..ROUNDS {
        drain(&mut connection, &format!("/list/{objects}")).await?;
    }
    Ok(Figures::per_unit(objects * ROUNDS, meter.stop().await))
}

async fn fan_out(
    bare: &TargetServer,
    watchers: usize,
    events: usize,
    protocol: Protocol,
) -> Result<Figures> {
    let path = format!("/watch/{events}");
    let streams = open(&bare.endpoint, watchers, protocol, |_| path.clone()).await?;
    let readers = Readers::start(streams, false, |_| events);
    let expected = ExpectedEvents::of((1..=events as u64).collect())?;
    let mut connection = Connection::open(&bare.endpoint).await?;
    let meter = Meter::start(bare).await;
    go(&mut connection).await?;
    readers.finish(|_| &expected).await?;
    Ok(Figures::per_unit(events * watchers, meter.stop().await))
}

async fn paced(
    bare: &TargetServer,
    watchers: usize,
    events: usize,
    pause: Duration,
) -> Result<Figures> {
    let path = |_| format!("/each/{events}");
    let streams = open(&bare.endpoint, watchers, Protocol::Http1, path).await?;
    let readers = Readers::start(streams, true, |_| events);
    let expected = ExpectedEvents::of((1..=events as u64).collect())?;
    let (mut ticks, mut acknowledged) = (tokio::time::interval(pause), Vec::new());
    let mut connection = Connection::open(&bare.endpoint).await?;
    let meter = Meter::start(bare).await;
    for event in 1..=events as u64 {
        ticks.tick().await;
        go(&mut connection).await?;
        acknowledged.push((event, Instant::now()));
    }
    let finished = readers.finish(|_| &expected).await?;
    let figures = Figures::per_unit(events * watchers, meter.stop().await);
    Ok(figures.latency(&finished.delays(&acknowledged)?))
}

async fn write(
    bare: &TargetServer,
    path: &'static str,
    clients: usize,
    writes: usize,
) -> Result<Figures> {
    let meter = Meter::start(bare).await;
    let work = move |index| WriteRequest { path: path.to_owned(), ..create_pod(index) };
    let done = load(&bare.endpoint, clients, writes, work).await?;
    Ok(Figures::per_unit(writes, meter.stop().await).latency(&done.micros))
}

async fn one(bare: &TargetServer, watchers: usize, writes: usize) -> Result<Figures> {
    let turns = |watcher| (watcher..writes).step_by(watchers).count();
    let path = |watcher| format!("/one/{watcher}/{}", turns(0));
    let streams = open(&bare.endpoint, watchers, Protocol::Http1, path).await?;
    let readers = Readers::start(streams, false, turns);
    let mut connection = Connection::open(&bare.endpoint).await?;
    let mut batch = async |turns: Range<usize>, path: &dyn Fn(usize) -> String| {
        let meter = Meter::start(bare).await;
        for turn in turns {
            send(&mut connection, WriteRequest { path: path(turn), ..create_pod(turn) }).await?;
        }
        anyhow::Ok(meter.stop().await)
    };
    let mut extra = ExtraCost::default();
    for first in (0..writes).step_by(BATCH) {
        let turns = first..writes.min(first + BATCH);
        let alone = batch(turns.clone(), &|_| "/write".to_owned()).await?;
        let with_event =
            batch(turns.clone(), &|turn| format!("/write/{}", turn % watchers)).await?;
        extra.add(turns.len(), alone, with_event)?;
    }
    let expected = |watcher| ExpectedEvents::of((1..=turns(watcher) as u64).collect());
    let expected: Vec<ExpectedEvents> = (0..watchers).map(expected).collect::<Result<_, _>>()?;
    readers.finish(|watcher| &expected[watcher]).await?;
    Ok(extra.figures())
}

pub(crate) async fn memory(bare: &TargetServer, watchers: usize) -> Result<Figures> {
    let open = |count| open(&bare.endpoint, count, Protocol::Http1, |_| "/watch/1".to_owned());
    let _first = open(100).await?;
    let before = rss(bare).await;
    let _others = open(watchers).await?;
    let growth = rss(bare).await.zip(before);
    let each = growth.map(|(after, before)| after.saturating_sub(before) / watchers as u64);
    Ok(Figures::default().memory(each))
}

/// Starts the next round of events.
async fn go(connection: &mut Connection) -> Result<()> {
    drain(connection, "/go").await
}

/// Starts a process that runs the bare server.
pub(crate) async fn start() -> Result<TargetServer> {
    let home = ScratchDir::new()?;
    let kubeconfig = home.path().join("kubeconfig");
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bench", "floor-server", "--kubeconfig"]).arg(&kubeconfig);
    let process = Process::ready(&mut command).context("the bare server did not start")?;
    TargetServer::process("floor", &kubeconfig, home, process).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::goals::GOALS;

    #[test]
    fn every_goal_that_scales_with_the_floor_has_similar_bare_work() {
        for goal in GOALS.iter().filter(|goal| goal.reference_floor.is_some()) {
            let (scenario, mode) = goal.key.split_once('/').unwrap();
            let case = Case::new(scenario, mode, "units").sized("size", goal.size);
            assert!(BareWork::of(&case, 100_000).is_some(), "{}", goal.line);
        }
    }

    #[test]
    fn bare_work_has_the_size_of_its_case() {
        let of = |mode, size, units| {
            let case = Case::new("fan-out", mode, "events").sized("watchers", size);
            BareWork::of(&case, units)
        };
        let paced = BareWork::Paced { watchers: 5000, events: 40, per_second: 2 };
        assert_eq!(of("2 writes a second", 5000, 200_000), Some(paced));
        let http2 = BareWork::FanOut { watchers: 10, events: 5, protocol: Protocol::Http2 };
        assert_eq!(of("flat out, HTTP/2", 10, 50), Some(http2));
    }
}
