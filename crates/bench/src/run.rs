//! A run of the bench: from flags to servers, a scenario and a report.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use crate::bare;
use crate::flags::{self, CommonFlags, Flags, FollowFlags, Scenario};
use crate::load::stream;
use crate::report::{Outputs, Printer, Report};
use crate::scenario::{
    client, cluster, delta, fairness, fan_out, floor, herd, idle, list, relay, selective, start,
    targets, write,
};
use crate::session::Session;
use crate::target::ServerSource;

/// Runs one scenario, prints a row for each case, and writes the other outputs that the flags name.
/// Fails if `stop` completes first.
pub async fn run(flags: Flags, printer: Printer, stop: impl Future<Output = ()>) -> Result<()> {
    let Flags { scenario, common } = flags;
    match (scenario, &common.kubeconfig) {
        (Scenario::Follow(FollowFlags { keep, updates }), Some(kubeconfig)) => {
            helper(client::follow::follow(kubeconfig, keep, updates, printer), stop).await
        }
        (Scenario::FloorServer, Some(kubeconfig)) => {
            helper(bare::server::serve(kubeconfig, printer), stop).await
        }
        // Dropping the run ends the servers it started and removes their directories.
        (scenario, _) => tokio::select! {
            biased;
            () = stop => bail!("interrupted before the bench was complete"),
            done = Box::pin(measure(scenario, common, printer)) => done,
        },
    }
}

/// A helper process that a bench started: it runs until the bench stops it.
async fn helper(
    work: impl Future<Output = Result<()>>,
    stop: impl Future<Output = ()>,
) -> Result<()> {
    tokio::select! {
        biased;
        () = stop => Ok(()),
        done = work => done,
    }
}

async fn measure(scenario: Scenario, common: CommonFlags, printer: Printer) -> Result<()> {
    let with_floor = common.floor && !matches!(scenario, Scenario::Floor(_));
    let with_machine = with_floor && matches!(scenario, Scenario::Targets(_));
    let memory = common.memory;
    let mut session = session(common, printer);
    if with_floor {
        session.with_floor().await?;
    }
    Box::pin(dispatch(&mut session, scenario, memory)).await?;
    if with_machine {
        Box::pin(floor::machine(&mut session)).await?;
    }
    session.report.finish()
}

fn session(common: CommonFlags, printer: Printer) -> Session {
    let first = match common.kubeconfig {
        Some(kubeconfig) => ServerSource::Running { kubeconfig, pids: common.pid },
        None => ServerSource::Own { memory: common.memory },
    };
    let second = common
        .against
        .map(|kubeconfig| ServerSource::Running { kubeconfig, pids: common.against_pid });
    let subject = first.name();
    let outputs = Outputs { json: common.json, html: common.html, svg: common.svg };
    let sources = std::iter::once(first).chain(second).collect();
    Session::new(sources, common.runs.into(), Report::new(outputs, printer, subject))
}

async fn dispatch(session: &mut Session, scenario: Scenario, memory: bool) -> Result<()> {
    match scenario {
        Scenario::Targets(flags) => run_targets(session, &flags).await,
        Scenario::Start(flags) => {
            refuse_running_servers(session, "start")?;
            start::run(session, &ascending(flags.objects)?).await
        }
        Scenario::Write(flags) => run_writes(session, flags).await,
        Scenario::List(flags) => run_lists(session, flags).await,
        Scenario::FanOut(flags) => run_fan_outs(session, flags).await,
        Scenario::Selective(flags) => run_selective(session, flags).await,
        Scenario::Herd(flags) => {
            fan_out::prepare(session).await?;
            for watchers in ascending(flags.watchers)? {
                herd::HerdCase { watchers, missed: flags.missed }.run(session).await?;
            }
            Ok(())
        }
        Scenario::Idle(flags) => run_idle(session, flags).await,
        Scenario::Fairness(flags) => {
            refuse_running_servers(session, "fairness")?;
            let size = fairness::FairnessSize {
                users: flags.users,
                connections: flags.connections,
                pods: flags.objects,
                time: Duration::from_secs(flags.seconds),
                memory,
                with_control: flags.control,
            };
            Box::pin(size.run(session)).await
        }
        Scenario::Relay(flags) => {
            refuse_running_servers(session, "relay")?;
            let sizes = relay::RelaySizes {
                watchers: ascending(flags.watchers)?,
                writes: flags.writes,
                writes_per_second: flags.writes_per_second,
                objects: flags.objects,
                outage: Duration::from_secs(flags.outage_seconds),
            };
            Box::pin(sizes.run(session)).await
        }
        Scenario::Client(flags) => {
            let (objects, updates) = (ascending(flags.objects)?, flags.updates);
            let size = client::ClientSizes { objects, updates, keep: all_if_empty(flags.keep) };
            client::run(session, &size).await
        }
        Scenario::Cluster(flags) => {
            refuse_running_servers(session, "cluster")?;
            let size = cluster::ClusterSize { nodes: flags.nodes, pods: flags.pods };
            Box::pin(cluster::run(session, &size, memory)).await
        }
        Scenario::Floor(flags) => Box::pin(floor::run(session, flags.watchers)).await,
        Scenario::Follow(_) | Scenario::FloorServer => {
            bail!("this is a helper process of other benches; it needs --kubeconfig")
        }
    }
}

async fn run_targets(session: &mut Session, flags: &flags::TargetsFlags) -> Result<()> {
    let shrink = if flags.quick { 100 } else { 1 };
    let idle = Duration::from_secs(flags.idle_seconds);
    Box::pin(targets::AllTargets { shrink, idle }.run(session)).await?;
    session.report.goals();
    Ok(())
}

async fn run_writes(session: &mut Session, flags: flags::WriteFlags) -> Result<()> {
    write::prepare(session).await?;
    let verbs = all_if_empty(flags.verb);
    let mut first = 0;
    for clients in ascending(flags.clients)? {
        let objects = if clients == 1 { (flags.objects / 10).max(1) } else { flags.objects };
        let writes = write::WriteCase { verbs: verbs.clone(), clients, objects, first };
        writes.run(session).await?;
        first = writes.end(session);
    }
    Ok(())
}

async fn run_lists(session: &mut Session, flags: flags::ListFlags) -> Result<()> {
    session.fresh().await?;
    let modes = all_if_empty(flags.mode);
    let mut made = 0;
    for objects in ascending(flags.objects)? {
        list::prepare(session, made, objects).await?;
        made = objects;
        for case in list::cases(objects, &modes, flags.rounds, flags.accept) {
            if !flags.plain || case.is_plain() {
                case.run(session).await?;
            }
        }
    }
    Ok(())
}

async fn run_fan_outs(session: &mut Session, flags: flags::FanOutFlags) -> Result<()> {
    let pace = flags.writes_per_second.map_or(fan_out::Pace::FlatOut, fan_out::Pace::PerSecond);
    let protocol = if flags.http2 { stream::Protocol::Http2 } else { stream::Protocol::Http1 };
    if flags.delta {
        delta::prepare(session).await?;
        for watchers in ascending(flags.watchers)? {
            delta::run(session, watchers, flags.writes, protocol).await?;
        }
        return Ok(());
    }
    fan_out::prepare(session).await?;
    for watchers in ascending(flags.watchers)? {
        let case = fan_out::FanOutCase {
            watchers,
            writes: flags.writes,
            pace,
            protocol,
            format: flags.accept,
        };
        case.run(session).await?;
    }
    Ok(())
}

async fn run_selective(session: &mut Session, flags: flags::SelectiveFlags) -> Result<()> {
    let watchers = ascending(flags.watchers)?;
    for by in all_if_empty(flags.by) {
        for &watchers in &watchers {
            selective::SelectiveCase { by, watchers, writes: flags.writes }.run(session).await?;
        }
    }
    Ok(())
}

async fn run_idle(session: &mut Session, flags: flags::IdleFlags) -> Result<()> {
    let measured_for = Duration::from_secs(flags.idle_seconds);
    for watchers in ascending(flags.watchers)? {
        idle::memory(session, watchers).await?;
        if flags.idle_seconds > 0 {
            idle::IdleCase { objects: flags.objects, watchers, measured_for }.run(session).await?;
        }
    }
    Ok(())
}

/// Fails if a scenario that stops and starts its server was given a running one.
fn refuse_running_servers(session: &Session, name: &str) -> Result<()> {
    let is_alone = session.is_own() && !session.is_compared();
    ensure!(
        is_alone,
        "bench {name} starts and stops its own server; remove --kubeconfig and --against"
    );
    Ok(())
}

fn all_if_empty<T: ValueEnum + Clone>(given: Vec<T>) -> Vec<T> {
    match given.as_slice() {
        [] => T::value_variants().to_vec(),
        _ => given,
    }
}

/// The sizes of a sweep, sorted and without duplicates: a larger size reuses the objects of a
/// smaller one.
fn ascending(mut sizes: Vec<usize>) -> Result<Vec<usize>> {
    sizes.sort_unstable();
    sizes.dedup();
    let minimum = sizes.first().context("give at least one size")?;
    ensure!(*minimum > 0, "sizes must be at least 1");
    Ok(sizes)
}
