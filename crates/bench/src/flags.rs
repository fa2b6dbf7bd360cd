//! What can be typed after `headwater bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::scenario::client::KeepMode;
use crate::scenario::list::ListMode;
use crate::scenario::selective::SelectBy;
use crate::scenario::write::WriteVerb;

/// Flags of `bench`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Flags {
    #[command(subcommand)]
    pub(crate) scenario: Scenario,

    #[command(flatten)]
    pub(crate) common: CommonFlags,
}

const EXAMPLES: &str = "\
Examples:
  headwater bench targets --runs 3 --html report.html    every line of docs/performance.md
  headwater bench list --objects 1000,10000,100000       does a list grow straight?
  headwater bench fan-out --watchers 10,100,1000,10000
  headwater bench write --against other.kubeconfig       the same work on two servers in turn
  headwater bench list --kubeconfig cluster.kubeconfig   a server that runs already
  headwater bench fan-out --floor                        beside what the machine allows

Without --kubeconfig a server is started for the purpose, with its data in a directory beside
this one. Every stream is checked while it is measured: a gap, a double or a swap ends the run
with a sentence and exit code 1. docs/performance.md says how to read the figures.";

/// What all scenarios have in common.
#[derive(Debug, Args)]
pub(crate) struct CommonFlags {
    /// Measure this server instead of one started for the purpose; it must have no pods of others
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Process to read CPU and memory of, with --kubeconfig; may be repeated. Without it the
    /// server's /metrics are asked
    #[arg(long, global = true, value_name = "PID", requires = "kubeconfig")]
    pub(crate) pid: Vec<u32>,

    /// A second server: the same work is done on both in turn, and ratios are told
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) against: Option<PathBuf>,

    /// Process to read CPU and memory of the second server; may be repeated
    #[arg(long, global = true, value_name = "PID", requires = "against")]
    pub(crate) against_pid: Vec<u32>,

    /// Start the server with --memory instead of a directory beside this one
    #[arg(long, global = true, conflicts_with = "kubeconfig")]
    pub(crate) memory: bool,

    /// Times everything is done; medians are told
    #[arg(long, global = true, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) runs: u16,

    /// Measure what the machine allows, too: beside each case, run by run
    #[arg(long, global = true)]
    pub(crate) floor: bool,

    /// Print JSON, one object a line
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Write a page with tables and plots
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Write each plot as a file of its own
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) svg: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Scenario {
    /// All lines Headwater is held to: reference, target, measured, verdict
    #[command(visible_alias = "all")]
    Targets(TargetsFlags),
    /// Empty store to ready, and a restart with data to the first list
    #[command(after_long_help = START)]
    Start(StartFlags),
    /// Creates, updates, applies and deletes, with one client and with many
    #[command(after_long_help = WRITE)]
    Write(WriteFlags),
    /// Lists: whole, in pages, by label, field, namespace, many at once, as a stream
    #[command(after_long_help = LIST)]
    List(ListFlags),
    /// Every event to every watcher, flat out or by the clock
    #[command(after_long_help = FAN_OUT)]
    FanOut(FanOutFlags),
    /// Every event to one watcher of many
    #[command(after_long_help = SELECTIVE)]
    Selective(SelectiveFlags),
    /// Watchers that come back all at once
    Herd(HerdFlags),
    /// Watchers that only wait: their memory and the CPU of a minute
    Idle(IdleFlags),
    /// A client's cache of many pods: CPU and memory, kept in several ways and by kube-runtime
    Client(ClientFlags),
    /// From nothing to many pods running on many simulated nodes, with all controllers
    Cluster(ClusterFlags),
    /// What this machine could at best do: TLS, sockets, syncs, a bare server
    Floor(FloorFlags),
    /// One of the processes of `bench client`
    #[command(hide = true)]
    Follow(FollowFlags),
    /// The bare server of `bench floor`
    #[command(hide = true)]
    FloorServer,
}

/// Flags of `bench targets`.
#[derive(Debug, Args)]
pub(crate) struct TargetsFlags {
    /// A hundredth of the objects and watchers: to see that it works, not how fast it is
    #[arg(long)]
    pub(crate) quick: bool,

    /// Seconds that idleness is looked at
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub(crate) idle_seconds: u64,
}

const START: &str = "\
Examples:
  headwater bench start
  headwater bench start --objects 1000,10000,100000";

/// Flags of `bench start`.
#[derive(Debug, Args)]
pub(crate) struct StartFlags {
    /// Pods to restart with; several make a sweep
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "10000")]
    pub(crate) objects: Vec<usize>,
}

const WRITE: &str = "\
Examples:
  headwater bench write
  headwater bench write --clients 1,4,16,64 --verb create-pod
  headwater bench write --memory                         without a disk";

/// Flags of `bench write`.
#[derive(Debug, Args)]
pub(crate) struct WriteFlags {
    /// Clients at once; several make a sweep
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,16,64")]
    pub(crate) clients: Vec<usize>,

    /// Objects of each case; a tenth of them with one client
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) objects: usize,

    /// What is written; all, one after the other, unless given
    #[arg(long, value_enum, value_name = "VERB", value_delimiter = ',')]
    pub(crate) verb: Vec<WriteVerb>,
}

const LIST: &str = "\
Examples:
  headwater bench list
  headwater bench list --objects 1000,10000,100000 --mode full,pages,watch-list
  headwater bench list --mode label,field,namespace --rounds 100";

/// Flags of `bench list`.
#[derive(Debug, Args)]
pub(crate) struct ListFlags {
    /// Pods to list; several make a sweep
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "10000")]
    pub(crate) objects: Vec<usize>,

    /// What is listed; everything unless given. Each is asked plain and gzip, for the newest state
    /// and for any (resourceVersion=0)
    #[arg(long, value_enum, value_name = "MODE", value_delimiter = ',')]
    pub(crate) mode: Vec<ListMode>,

    /// Times each list is repeated [default: as often as is useful]
    #[arg(long, value_name = "N")]
    pub(crate) rounds: Option<usize>,

    /// Only plain and only the newest state
    #[arg(long)]
    pub(crate) plain: bool,
}

const FAN_OUT: &str = "\
Examples:
  headwater bench fan-out
  headwater bench fan-out --watchers 10,100,1000,10000
  headwater bench fan-out --watchers 1000 --writes-per-second 10 --writes 100
  headwater bench fan-out --http2";

/// Flags of `bench fan-out`.
#[derive(Debug, Args)]
pub(crate) struct FanOutFlags {
    /// Watchers; several make a sweep
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1000")]
    pub(crate) watchers: Vec<usize>,

    /// Writes, each sent to all watchers
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub(crate) writes: usize,

    /// Write by the clock instead of flat out, and tell how long events take
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) writes_per_second: Option<u32>,

    /// Watch over HTTP/2, a connection each
    #[arg(long)]
    pub(crate) http2: bool,
}

const SELECTIVE: &str = "\
Examples:
  headwater bench selective --watchers 10,1000,10000
  headwater bench selective --by node,namespace";

/// Flags of `bench selective`.
#[derive(Debug, Args)]
pub(crate) struct SelectiveFlags {
    /// Watchers; several make a sweep
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1000")]
    pub(crate) watchers: Vec<usize>,

    /// Writes, each for one watcher
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pub(crate) writes: usize,

    /// What a watcher selects its pod by; all unless given
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',')]
    pub(crate) by: Vec<SelectBy>,
}

/// Flags of `bench herd`.
#[derive(Debug, Args)]
pub(crate) struct HerdFlags {
    /// Watchers; several make a sweep
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1000")]
    pub(crate) watchers: Vec<usize>,

    /// Events each has missed
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub(crate) missed: usize,
}

/// Flags of `bench idle`.
#[derive(Debug, Args)]
pub(crate) struct IdleFlags {
    /// Watchers; several make a sweep
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1000,5000")]
    pub(crate) watchers: Vec<usize>,

    /// Pods that are there in the minute
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) objects: usize,

    /// Seconds that the servers are looked at
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub(crate) idle_seconds: u64,
}

/// Flags of `bench client`.
#[derive(Debug, Args)]
pub(crate) struct ClientFlags {
    /// Pods to keep; several make a sweep
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "10000,100000")]
    pub(crate) objects: Vec<usize>,

    /// Updates to handle after the sync
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub(crate) updates: usize,

    /// Ways to keep them; all unless given
    #[arg(long, value_enum, value_name = "WAY", value_delimiter = ',')]
    pub(crate) keep: Vec<KeepMode>,
}

/// Flags of `bench cluster`.
#[derive(Debug, Args)]
pub(crate) struct ClusterFlags {
    /// Pods, in Deployments of 250
    #[arg(long, value_name = "N", default_value_t = 5000)]
    pub(crate) pods: usize,

    /// Simulated nodes
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub(crate) nodes: usize,
}

/// Flags of `bench floor`.
#[derive(Debug, Args)]
pub(crate) struct FloorFlags {
    /// Watchers of the bare server
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) watchers: usize,
}

/// Flags of `bench follow`.
#[derive(Debug, Args)]
pub(crate) struct FollowFlags {
    #[arg(long, value_enum)]
    pub(crate) keep: KeepMode,

    #[arg(long)]
    pub(crate) updates: u64,
}
