//! Flags for controllers and simulated nodes.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use headwater_controllers::ControllerSelection;

use super::{RemoteFlags, parse_duration};

/// Flags that `serve`, `dev` and `controllers` share.
#[derive(Debug, Args)]
#[command(next_help_heading = "Controllers")]
pub(crate) struct ControllerFlags {
    /// Controllers to run: names, "*" for all, "-NAME" to exclude one, such as "*,-scheduler"
    /// [default: all, but none for serve]
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub(crate) controllers: Option<ControllerSelection>,

    /// Number of simulated nodes, at most 10000
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = node_count())]
    pub(crate) nodes: usize,

    /// Time without a heartbeat after which a node is not ready
    #[arg(long, value_name = "TIME", default_value = "50s", value_parser = parse_duration)]
    pub(crate) node_grace: Duration,

    /// YAML rules for simulated nodes and pods: stages and delays
    #[arg(long, value_name = "FILE")]
    pub(crate) stages: Option<PathBuf>,
}

/// Every simulated node is an object, a lease and a timer of this process.
const NODES_MAX: u64 = 10_000;

fn node_count() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(..=NODES_MAX)
}

/// Flags of `controllers`.
#[derive(Debug, Args)]
pub(crate) struct ControllersFlags {
    #[command(flatten)]
    pub(crate) remote: RemoteFlags,

    #[command(flatten)]
    pub(crate) controller_flags: ControllerFlags,

    /// Certificate of the authority that signs approved requests
    #[arg(long, value_name = "FILE", requires = "cluster_signing_key_file")]
    pub(crate) cluster_signing_cert_file: Option<PathBuf>,

    /// Key of that authority
    #[arg(long, value_name = "FILE", requires = "cluster_signing_cert_file")]
    pub(crate) cluster_signing_key_file: Option<PathBuf>,

    /// Run without leader election; only if no other copy runs
    #[arg(long)]
    pub(crate) no_leader_election: bool,

    /// Identity of this copy in leader election [default: host name and process id]
    #[arg(long, value_name = "NAME")]
    pub(crate) identity: Option<String>,

    /// Time without renewal after which another copy takes over
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = parse_duration)]
    pub(crate) lease_duration: Duration,

    /// Loopback address to serve /healthz, /readyz and /metrics on
    #[arg(long, value_name = "ADDR")]
    pub(crate) health_bind: Option<std::net::SocketAddr>,
}
