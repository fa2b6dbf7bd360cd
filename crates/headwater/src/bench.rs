//! `headwater bench`: load against a server, and what it costs the server.
//!
//! Promise: the figures of one run belong together; every stream is checked for gaps, repeats and
//! order while it is measured, and a bench that sees one fails.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, Subcommand, ValueEnum};

use crate::limits;

mod client;
mod cluster;
mod list;
mod load;
mod measure;
mod object;
mod report;
mod start;
mod stream;
mod target;
mod watch;
mod write;

use report::Report;
use target::Target;

/// Flags of `bench`.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    scenario: Scenario,

    /// Measure this server instead of one started for the purpose
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Process to read CPU and memory of, with --kubeconfig; may be repeated
    #[arg(long, global = true, value_name = "PID", requires = "kubeconfig")]
    pid: Vec<u32>,

    /// Start the server with --memory instead of a directory beside this one
    #[arg(long, global = true, conflicts_with = "kubeconfig")]
    memory: bool,

    /// Print JSON, one object a line
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Scenario {
    /// Creates and updates, with one client and with many
    Write(Writes),
    /// Lists: whole, compressed, in pages, by label, by namespace, many at once, as a stream
    List(Lists),
    /// Fan-out to many watchers, flat out, paced, selective; watchers that come back; idle ones
    Watch(Watches),
    /// Empty store to ready, and a restart with data to the first list
    Start(Starts),
    /// From nothing to many pods running on many simulated nodes, with all controllers
    Cluster(Clusters),
    /// A client's cache of many pods: CPU and memory, kept in several ways and by kube-runtime
    Client(Clients),
    /// One of the processes of `bench client`
    #[command(hide = true)]
    Follow(Follow),
}

/// Flags of `bench write`.
#[derive(Debug, Args)]
struct Writes {
    /// Pods to create and update
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    objects: usize,
}

/// Flags of `bench list`.
#[derive(Debug, Args)]
struct Lists {
    /// Pods to list
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    objects: usize,

    /// Times each list is repeated
    #[arg(long, value_name = "N", default_value_t = 10)]
    rounds: usize,
}

/// Flags of `bench watch`.
#[derive(Debug, Args)]
struct Watches {
    /// Watchers
    #[arg(long, value_name = "N", default_value_t = 1000)]
    watchers: usize,

    /// Watchers that only wait, for their memory; 0 leaves them out
    #[arg(long, value_name = "N", default_value_t = 5000)]
    idle: usize,

    /// Writes to send to all watchers, flat out
    #[arg(long, value_name = "N", default_value_t = 500)]
    writes: usize,
}

/// Flags of `bench start`.
#[derive(Debug, Args)]
struct Starts {
    /// Pods to restart with
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    objects: usize,
}

/// Flags of `bench cluster`.
#[derive(Debug, Args)]
struct Clusters {
    /// Pods, in Deployments of 250
    #[arg(long, value_name = "N", default_value_t = 5000)]
    pods: usize,

    /// Simulated nodes
    #[arg(long, value_name = "N", default_value_t = 500)]
    nodes: usize,
}

/// Flags of `bench client`.
#[derive(Debug, Args)]
struct Clients {
    /// Pods to keep; may be repeated
    #[arg(long, value_name = "N", default_values_t = [10_000, 100_000])]
    objects: Vec<usize>,

    /// Updates to handle after the sync
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    updates: usize,

    /// Ways to keep them; all unless given
    #[arg(long, value_enum, value_name = "WAY")]
    keep: Vec<client::Keep>,
}

/// Flags of `bench follow`.
#[derive(Debug, Args)]
struct Follow {
    #[arg(long, value_enum)]
    keep: client::Keep,

    #[arg(long)]
    updates: u64,
}

/// Runs one scenario and prints a line for each thing measured.
pub(crate) async fn bench(flags: Bench) -> Result<()> {
    limits::raise();
    let mut report = Report::new(flags.json);
    if let Scenario::Start(starts) = &flags.scenario {
        return start::run(starts.objects, &mut report).await;
    }
    if let Scenario::Cluster(clusters) = &flags.scenario {
        ensure!(flags.kubeconfig.is_none(), "bench cluster starts a server of its own");
        let size = cluster::Size { nodes: clusters.nodes, pods: clusters.pods };
        return Box::pin(cluster::run(&size, flags.memory, &mut report)).await;
    }
    if let Scenario::Client(clients) = &flags.scenario {
        ensure!(flags.kubeconfig.is_none(), "bench client starts a server of its own");
        let keep = match clients.keep.as_slice() {
            [] => client::Keep::value_variants().to_vec(),
            chosen => chosen.to_vec(),
        };
        let (objects, updates) = (clients.objects.clone(), clients.updates);
        let size = client::Size { objects, updates, keep };
        return client::run(&size, flags.memory, &mut report).await;
    }
    if let (Scenario::Follow(follow), Some(kubeconfig)) = (&flags.scenario, &flags.kubeconfig) {
        return client::follow::follow(kubeconfig, follow.keep, follow.updates).await;
    }
    let target = match &flags.kubeconfig {
        Some(kubeconfig) => Target::existing(kubeconfig, flags.pid)?,
        None => Target::start(flags.memory)?,
    };
    match &flags.scenario {
        Scenario::Write(writes) => write::run(&target, writes.objects, &mut report).await,
        Scenario::List(lists) => list::run(&target, lists.objects, lists.rounds, &mut report).await,
        Scenario::Watch(watches) => {
            let size = watch::Size {
                watchers: watches.watchers,
                idle: watches.idle,
                writes: watches.writes,
            };
            watch::run(&target, &size, &mut report).await
        }
        Scenario::Start(_) | Scenario::Cluster(_) | Scenario::Client(_) | Scenario::Follow(_) => {
            Ok(())
        }
    }
}
