//! The command line of `headwater bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::load::stream::BodyFormat;
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
  headwater bench targets --runs 3 --html report.html    all goals of docs/performance.md
  headwater bench list --objects 1000,10000,100000       does the cost grow in proportion?
  headwater bench fan-out --watchers 10,100,1000,10000
  headwater bench write --against other.kubeconfig       compare two servers, alternately
  headwater bench list --kubeconfig cluster.kubeconfig   measure a running server
  headwater bench fan-out --floor                        compare with the limits of this machine

Without --kubeconfig, the bench starts a server and keeps its data in a temporary directory inside
the current one. Every stream is checked while it is measured: a missing, duplicate or out-of-order
event ends the run with exit code 1. docs/performance.md explains the figures.";

/// Flags of all scenarios.
#[derive(Debug, Args)]
pub(crate) struct CommonFlags {
    /// Measure this running server instead of starting one; it must have no other pods
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Process of the server, to read CPU and memory from; may be repeated [default: read the
    /// server's /metrics]
    #[arg(long, global = true, value_name = "PID", requires = "kubeconfig")]
    pub(crate) pid: Vec<u32>,

    /// Run the same work alternately on this second server and report ratios
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) against: Option<PathBuf>,

    /// Process of the second server, to read CPU and memory from; may be repeated
    #[arg(long, global = true, value_name = "PID", requires = "against")]
    pub(crate) against_pid: Vec<u32>,

    /// Start the server with --memory instead of a data directory
    #[arg(long, global = true, conflicts_with = "kubeconfig")]
    pub(crate) memory: bool,

    /// Number of runs; reports medians
    #[arg(long, global = true, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) runs: u16,

    /// Also measure a bare server with similar work, alternately with each case
    #[arg(long, global = true)]
    pub(crate) floor: bool,

    /// Print JSON, one object per line
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Write an HTML page with tables and plots
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Write each plot as an SVG file
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) svg: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Scenario {
    /// All goals of Headwater: reference, target, measurement, verdict
    #[command(visible_alias = "all")]
    Targets(TargetsFlags),
    /// Time to start an empty server, and to restart one with data until its first list
    #[command(after_long_help = START)]
    Start(StartFlags),
    /// Create, update, apply, patch and delete, with one client and with many
    #[command(after_long_help = WRITE)]
    Write(WriteFlags),
    /// Lists: complete, in pages, by label, field or namespace, concurrent, and as a watch
    #[command(after_long_help = LIST)]
    List(ListFlags),
    /// Every event to every watcher, as fast as possible or paced
    #[command(after_long_help = FAN_OUT)]
    FanOut(FanOutFlags),
    /// Every event to one watcher of many
    #[command(after_long_help = SELECTIVE)]
    Selective(SelectiveFlags),
    /// Many watchers that reconnect at once
    Herd(HerdFlags),
    /// Watchers without events: their memory, and the CPU of one minute
    Idle(IdleFlags),
    /// Many users next to two that take what they can: priority and fairness
    #[command(after_long_help = FAIRNESS)]
    Fairness(FairnessFlags),
    /// Watchers behind two relays: what they cost the server, the delay, and a server that is killed
    #[command(after_long_help = RELAY)]
    Relay(RelayFlags),
    /// CPU and memory of a client's cache, in several representations
    Client(ClientFlags),
    /// From an empty server to pods running on simulated nodes, with all controllers
    Cluster(ClusterFlags),
    /// The limits of this machine: TLS, sockets, disk syncs, a bare server
    Floor(FloorFlags),
    /// A helper process of `bench client`
    #[command(hide = true)]
    Follow(FollowFlags),
    /// The bare server of `bench floor`
    #[command(hide = true)]
    FloorServer,
}

/// Flags of `bench targets`.
#[derive(Debug, Args)]
pub(crate) struct TargetsFlags {
    /// Use 1 % of the objects and watchers, to check that the bench works
    #[arg(long)]
    pub(crate) quick: bool,

    /// Seconds to measure idle watchers
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
    /// Pods to restart with; a list runs each size
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "10000")]
    pub(crate) objects: Vec<usize>,
}

const WRITE: &str = "\
Examples:
  headwater bench write
  headwater bench write --clients 1,4,16,64 --verb create-pod
  headwater bench write --memory                         in memory";

/// Flags of `bench write`.
#[derive(Debug, Args)]
pub(crate) struct WriteFlags {
    /// Concurrent clients; a list runs each number
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,16,64")]
    pub(crate) clients: Vec<usize>,

    /// Objects per case; a tenth of them with one client
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) objects: usize,

    /// Writes to measure [default: all]
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
    /// Pods to list; a list runs each size
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "10000")]
    pub(crate) objects: Vec<usize>,

    /// Lists to measure, each plain and gzip, for the newest state and for any (resourceVersion=0)
    /// [default: all]
    #[arg(long, value_enum, value_name = "MODE", value_delimiter = ',')]
    pub(crate) mode: Vec<ListMode>,

    /// Repetitions of each list [default: by size]
    #[arg(long, value_name = "N")]
    pub(crate) rounds: Option<usize>,

    /// Format of the lists
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "json")]
    pub(crate) accept: BodyFormat,

    /// Measure only plain lists of the newest state
    #[arg(long)]
    pub(crate) plain: bool,
}

const FAN_OUT: &str = "\
Examples:
  headwater bench fan-out
  headwater bench fan-out --watchers 10,100,1000,10000
  headwater bench fan-out --watchers 1000 --writes-per-second 10 --writes 100
  headwater bench fan-out --http2
  headwater bench fan-out --delta --writes 2000          what a change costs as a delta";

/// Flags of `bench fan-out`.
#[derive(Debug, Args)]
pub(crate) struct FanOutFlags {
    /// Watchers; a list runs each number
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1000")]
    pub(crate) watchers: Vec<usize>,

    /// Writes; each is an event for all watchers
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub(crate) writes: usize,

    /// Write at this rate instead of as fast as possible, and report the latency of events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) writes_per_second: Option<u32>,

    /// Watch over HTTP/2, with a connection per watcher
    #[arg(long)]
    pub(crate) http2: bool,

    /// Format of the events
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        default_value = "json",
        conflicts_with = "delta"
    )]
    pub(crate) accept: BodyFormat,

    /// Measure lease renewals, node heartbeats, pod status changes and label edits, each as complete
    /// objects and as deltas
    #[arg(long, conflicts_with = "writes_per_second")]
    pub(crate) delta: bool,
}

const SELECTIVE: &str = "\
Examples:
  headwater bench selective --watchers 10,1000,10000
  headwater bench selective --by node,namespace";

/// Flags of `bench selective`.
#[derive(Debug, Args)]
pub(crate) struct SelectiveFlags {
    /// Watchers; a list runs each number
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1000")]
    pub(crate) watchers: Vec<usize>,

    /// Writes; each is an event for one watcher
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pub(crate) writes: usize,

    /// How a watcher selects its pod [default: all]
    #[arg(long, value_enum, value_name = "HOW", value_delimiter = ',')]
    pub(crate) by: Vec<SelectBy>,
}

/// Flags of `bench herd`.
#[derive(Debug, Args)]
pub(crate) struct HerdFlags {
    /// Watchers; a list runs each number
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1000")]
    pub(crate) watchers: Vec<usize>,

    /// Events that each watcher has missed
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub(crate) missed: usize,
}

/// Flags of `bench idle`.
#[derive(Debug, Args)]
pub(crate) struct IdleFlags {
    /// Watchers; a list runs each number
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1000,5000")]
    pub(crate) watchers: Vec<usize>,

    /// Pods that exist in the measured minute
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) objects: usize,

    /// Seconds to measure
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub(crate) idle_seconds: u64,
}

const FAIRNESS: &str = "\
Examples:
  headwater bench fairness
  headwater bench fairness --control                 also without priority and fairness

Fails if the p99 of the users grows to more than three times what it is alone, or if a health check
or leader election fails.";

/// Flags of `bench fairness`.
#[derive(Debug, Args)]
pub(crate) struct FairnessFlags {
    /// Users that get, write and watch
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub(crate) users: usize,

    /// Connections of the user that lists everything
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub(crate) connections: usize,

    /// Pods to list
    #[arg(long, value_name = "N", default_value_t = 2_000)]
    pub(crate) objects: usize,

    /// Seconds of each phase
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) seconds: u64,

    /// Also measure a server without priority and fairness
    #[arg(long)]
    pub(crate) control: bool,
}

const RELAY: &str = "\
Examples:
  headwater bench relay
  headwater bench relay --watchers 100,1000,10000
  headwater bench relay --outage-seconds 0               without killing the server

Every watcher has a connection of its own.";

/// Flags of `bench relay`.
#[derive(Debug, Args)]
pub(crate) struct RelayFlags {
    /// Watchers of two relays; a list runs each number
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "100,1000,10000")]
    pub(crate) watchers: Vec<usize>,

    /// Writes; each is an event for all watchers
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub(crate) writes: usize,

    /// Writes per second
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) writes_per_second: u32,

    /// Pods in the cache of a relay, for its memory
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    pub(crate) objects: usize,

    /// Seconds for which the server is down after it was killed; 0: it is not killed
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub(crate) outage_seconds: u64,
}

/// Flags of `bench client`.
#[derive(Debug, Args)]
pub(crate) struct ClientFlags {
    /// Pods to cache; a list runs each size
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "10000,100000")]
    pub(crate) objects: Vec<usize>,

    /// Updates to receive after the first sync
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub(crate) updates: usize,

    /// How the cache keeps pods [default: all]
    #[arg(long, value_enum, value_name = "HOW", value_delimiter = ',')]
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
