//! Flags about controllers: which run here, and what they simulate.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use headwater_controllers::ControllerSelection;

use super::{Remote, parse_duration};

/// Which controllers run, and on how many simulated nodes.
#[derive(Debug, Args)]
pub(crate) struct Controlling {
    /// Controllers to run: names, "*" for all, "-NAME" for all but one; such as "*,-scheduler"
    /// [default: none for serve, all for dev]
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub(crate) controllers: Option<ControllerSelection>,

    /// How many nodes to simulate
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) nodes: usize,

    /// How long a node may be silent before it is not ready
    #[arg(long, value_name = "TIME", default_value = "50s", value_parser = parse_duration)]
    pub(crate) node_grace: Duration,

    /// How simulated nodes and pods behave: rules with stages and delays, in YAML
    #[arg(long, value_name = "FILE")]
    pub(crate) stages: Option<PathBuf>,
}

/// Flags of `controllers`.
#[derive(Debug, Args)]
pub(crate) struct Controllers {
    #[command(flatten)]
    pub(crate) remote: Remote,

    #[command(flatten)]
    pub(crate) controlling: Controlling,

    /// Act without holding the lease; only if no other copy runs
    #[arg(long)]
    pub(crate) no_leader_election: bool,

    /// Who this copy is [default: host name and process]
    #[arg(long, value_name = "NAME")]
    pub(crate) identity: Option<String>,

    /// How long other copies wait for one that is silent
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = parse_duration)]
    pub(crate) lease_duration: Duration,

    /// Loopback address for /healthz, /readyz and /metrics
    #[arg(long, value_name = "ADDR")]
    pub(crate) health_bind: Option<std::net::SocketAddr>,
}
