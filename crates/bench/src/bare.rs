//! The floor: what this machine could at best do, with no product in it.
//!
//! A bare server that streams ready-made bytes is read by the same watchers as a real one, beside each
//! case, run by run; and the kernel is asked for what every server needs: bytes through TLS, writes to
//! sockets, syncs of a disk.

use std::ops::Range;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::connect::Connection;
use crate::load::body::drain;
use crate::load::requests::create_pod;
use crate::load::seen::Expected;
use crate::load::stream::Protocol;
use crate::load::watchers::{Readers, open};
use crate::load::{Work, load, send};
use crate::report::Case;
use crate::report::extra::{BATCH, Extra};
use crate::report::figures::Figures;
use crate::target::measure::{Meter, rss};
use crate::target::{Home, Target, end, ready};

pub(crate) mod server;

/// Work of the bare server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    /// Answers a list.
    List { objects: usize },
    /// Streams events as fast as they are read.
    FanOut { watchers: usize, events: usize, protocol: Protocol },
    /// Streams one event after the other, by the clock.
    Paced { watchers: usize, events: usize, per_second: u32 },
    /// Takes a pod and answers one.
    Write { clients: usize, writes: usize },
    /// The same for one client, and what was sent is on the disk before the answer.
    Synced { writes: usize },
    /// Takes pods, each of which is an event for one of the watchers; what that costs beyond the
    /// taking.
    One { watchers: usize, writes: usize },
}

impl Ready {
    /// What is most like so many units of a case.
    pub(crate) fn of(case: &Case, units: usize) -> Option<Ready> {
        let size = case.size;
        let events = units.checked_div(size).unwrap_or_default();
        let protocol =
            if case.mode().ends_with("HTTP/2") { Protocol::Http2 } else { Protocol::Http1 };
        Some(match (case.scenario(), case.mode()) {
            ("write", "create pod") if size == 1 => Ready::Synced { writes: units.min(2_000) },
            ("write", _) => Ready::Write { clients: size, writes: units.min(10_000) },
            ("list", mode) if mode != "at once" => Ready::List { objects: size.min(10_000) },
            ("fan-out", mode) => match mode.split_once(" write") {
                Some((number, _)) => {
                    Ready::Paced { watchers: size, events, per_second: number.parse().ok()? }
                }
                None => Ready::FanOut { watchers: size, events, protocol },
            },
            ("herd", _) => Ready::FanOut { watchers: size, events, protocol },
            ("selective", _) => Ready::One { watchers: size.min(100), writes: units },
            _ => return None,
        })
    }

    pub(crate) async fn once(self, bare: &Target) -> Result<Figures> {
        match self {
            Ready::List { objects } => list(bare, objects).await,
            Ready::FanOut { watchers, events, protocol } => {
                fan_out(bare, watchers, events, protocol).await
            }
            Ready::Paced { watchers, events, per_second } => {
                paced(bare, watchers, events, Duration::from_secs(1) / per_second.max(1)).await
            }
            Ready::Write { clients, writes } => write(bare, "/write", clients, writes).await,
            Ready::Synced { writes } => write(bare, "/sync", 1, writes).await,
            Ready::One { watchers, writes } => one(bare, watchers, writes).await,
        }
    }

    pub(crate) fn case(self) -> Case {
        let case = |mode, unit| Case::new("floor", mode, unit);
        match self {
            Ready::List { objects } => {
                case("list, ready-made", "objects").sized("objects", objects)
            }
            Ready::FanOut { watchers, protocol, .. } => {
                let mode = match protocol {
                    Protocol::Http1 => "fan-out, ready-made",
                    Protocol::Http2 => "fan-out, ready-made, HTTP/2",
                };
                case(mode, "events").sized("watchers", watchers)
            }
            Ready::Paced { watchers, per_second, .. } => {
                let mode = format!("fan-out, ready-made, {per_second} events a second");
                case(&mode, "events").sized("watchers", watchers)
            }
            Ready::Write { clients, .. } => {
                case("write, ready-made answer", "writes").sized("clients", clients)
            }
            Ready::Synced { .. } => {
                case("write, synced, ready-made answer", "writes").sized("clients", 1)
            }
            Ready::One { watchers, .. } => {
                case("an event for one watcher", "writes").sized("watchers", watchers)
            }
        }
    }
}

async fn list(bare: &Target, objects: usize) -> Result<Figures> {
    const ROUNDS: usize = 10;
    let mut connection = Connection::open(&bare.endpoint).await?;
    let meter = Meter::start(bare).await;
    for _ in 0..ROUNDS {
        drain(&mut connection, &format!("/list/{objects}")).await?;
    }
    Ok(Figures::used(objects * ROUNDS, meter.stop().await))
}

async fn fan_out(
    bare: &Target,
    watchers: usize,
    events: usize,
    protocol: Protocol,
) -> Result<Figures> {
    let path = format!("/watch/{events}");
    let streams = open(&bare.endpoint, watchers, protocol, |_| path.clone()).await?;
    let readers = Readers::start(streams, false, |_| events);
    let expected = Expected::of((1..=events as u64).collect())?;
    let mut connection = Connection::open(&bare.endpoint).await?;
    let meter = Meter::start(bare).await;
    go(&mut connection).await?;
    readers.finish(|_| &expected).await?;
    Ok(Figures::used(events * watchers, meter.stop().await))
}

async fn paced(bare: &Target, watchers: usize, events: usize, pause: Duration) -> Result<Figures> {
    let path = |_| format!("/each/{events}");
    let streams = open(&bare.endpoint, watchers, Protocol::Http1, path).await?;
    let readers = Readers::start(streams, true, |_| events);
    let expected = Expected::of((1..=events as u64).collect())?;
    let (mut ticks, mut acknowledged) = (tokio::time::interval(pause), Vec::new());
    let mut connection = Connection::open(&bare.endpoint).await?;
    let meter = Meter::start(bare).await;
    for event in 1..=events as u64 {
        ticks.tick().await;
        go(&mut connection).await?;
        acknowledged.push((event, Instant::now()));
    }
    let finished = readers.finish(|_| &expected).await?;
    let figures = Figures::used(events * watchers, meter.stop().await);
    Ok(figures.latency(&finished.delays(&acknowledged)?))
}

async fn write(
    bare: &Target,
    path: &'static str,
    clients: usize,
    writes: usize,
) -> Result<Figures> {
    let meter = Meter::start(bare).await;
    let work = move |index| Work { path: path.to_owned(), ..create_pod(index) };
    let done = load(&bare.endpoint, clients, writes, work).await?;
    Ok(Figures::used(writes, meter.stop().await).latency(&done.micros))
}

async fn one(bare: &Target, watchers: usize, writes: usize) -> Result<Figures> {
    let turns = |watcher| (watcher..writes).step_by(watchers).count();
    let path = |watcher| format!("/one/{watcher}/{}", turns(0));
    let streams = open(&bare.endpoint, watchers, Protocol::Http1, path).await?;
    let readers = Readers::start(streams, false, turns);
    let mut connection = Connection::open(&bare.endpoint).await?;
    let mut batch = async |turns: Range<usize>, path: &dyn Fn(usize) -> String| {
        let meter = Meter::start(bare).await;
        for turn in turns {
            send(&mut connection, Work { path: path(turn), ..create_pod(turn) }).await?;
        }
        anyhow::Ok(meter.stop().await)
    };
    let mut extra = Extra::default();
    for first in (0..writes).step_by(BATCH) {
        let turns = first..writes.min(first + BATCH);
        let alone = batch(turns.clone(), &|_| "/write".to_owned()).await?;
        let told = batch(turns.clone(), &|turn| format!("/write/{}", turn % watchers)).await?;
        extra.add(turns.len(), alone, told)?;
    }
    let expected = |watcher| Expected::of((1..=turns(watcher) as u64).collect());
    let expected: Vec<Expected> = (0..watchers).map(expected).collect::<Result<_, _>>()?;
    readers.finish(|watcher| &expected[watcher]).await?;
    Ok(extra.figures())
}

pub(crate) async fn memory(bare: &Target, watchers: usize) -> Result<Figures> {
    let open = |count| open(&bare.endpoint, count, Protocol::Http1, |_| "/watch/1".to_owned());
    let _first = open(100).await?;
    let before = rss(bare).await;
    let _others = open(watchers).await?;
    let growth = rss(bare).await.zip(before);
    let each = growth.map(|(after, before)| after.saturating_sub(before) / watchers as u64);
    Ok(Figures::default().memory(each))
}

/// Lets the bare server send.
async fn go(connection: &mut Connection) -> Result<()> {
    drain(connection, "/go").await
}

/// The bare server, in a process of its own.
pub(crate) struct Bare {
    child: Child,
    pub(crate) target: Target,
    /// Removed after the process has ended.
    _home: Home,
}

impl Bare {
    pub(crate) fn start() -> Result<Bare> {
        let home = Home::new()?;
        let kubeconfig = home.path().join("kubeconfig");
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "floor-server", "--kubeconfig"]).arg(&kubeconfig);
        let mut child = ready(&mut command).context("the bare server did not start")?;
        match Target::process("floor", &kubeconfig, child.id()) {
            Ok(target) => Ok(Bare { child, target, _home: home }),
            Err(error) => {
                end(&mut child);
                Err(error)
            }
        }
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::goals::GOALS;

    #[test]
    fn whatever_is_scaled_by_the_floor_has_one_beside_it() {
        for goal in GOALS.iter().filter(|goal| goal.floor_there.is_some()) {
            let (scenario, mode) = goal.key.split_once('/').unwrap();
            let case = Case::new(scenario, mode, "units").sized("size", goal.size);
            assert!(Ready::of(&case, 100_000).is_some(), "{}", goal.line);
        }
    }

    #[test]
    fn the_bare_server_does_as_much_as_the_case() {
        let of = |mode, size, units| {
            let case = Case::new("fan-out", mode, "events").sized("watchers", size);
            Ready::of(&case, units)
        };
        let paced = Ready::Paced { watchers: 5000, events: 40, per_second: 2 };
        assert_eq!(of("2 writes a second", 5000, 200_000), Some(paced));
        let http2 = Ready::FanOut { watchers: 10, events: 5, protocol: Protocol::Http2 };
        assert_eq!(of("flat out, HTTP/2", 10, 50), Some(http2));
    }
}
