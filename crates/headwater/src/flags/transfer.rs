//! The flags of `record`, `replay`, `export` and `import`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::time::{ReplaySpeed, TimePoint, parse_point, parse_speed};
use super::{RemoteFlags, ScopeFlags, address, parse_duration};
use crate::secrets::SecretPolicy;

pub(super) const RECORD_EXAMPLES: &str = "\
Examples:
  headwater record -A -o cluster.hwr                          until Ctrl-C
  headwater record -n shop -o shop.hwr --resources pods,deployments --duration 10m
  headwater record -A -o prod.hwr --kubeconfig prod.kubeconfig
  zcat cluster.hwr | jq -c '[.time, .type, .object.kind, .object.metadata.name]'";

#[derive(Debug, Args)]
pub(crate) struct RecordFlags {
    /// File to write; must not exist
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,

    #[command(flatten)]
    pub(crate) scope: ScopeFlags,

    /// Resource types to record [default: all]
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    pub(crate) resources: Vec<String>,

    /// What to keep of Secrets
    #[arg(long, value_name = "WHAT", default_value = "omit")]
    pub(crate) secrets: SecretPolicy,

    /// Stop after this time [default: at Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) duration: Option<Duration>,

    #[command(flatten)]
    pub(crate) remote: RemoteFlags,
}

pub(super) const REPLAY_EXAMPLES: &str = "\
Examples:
  headwater replay cluster.hwr --speed 10x          serve the recording on 127.0.0.1:6443
  headwater replay cluster.hwr --until 5m --speed max
  headwater replay cluster.hwr --into empty.kubeconfig
  headwater dev --from cluster.hwr                  a cluster that goes on where it ended

Without --into, an API server in memory serves the recording exactly, with uids, times and managers, but
without controllers. With --into, the changes are ordinary requests to a server: uids, times and
versions are that server's.";

#[derive(Debug, Args)]
pub(crate) struct ReplayFlags {
    /// Recording
    pub(crate) file: PathBuf,

    /// Speed: max, or a factor such as 10x
    #[arg(long, value_name = "SPEED", default_value = "1x", value_parser = parse_speed)]
    pub(crate) speed: ReplaySpeed,

    /// Stop at this time, or so long after the beginning: 2026-11-15T10:00Z, 10m
    #[arg(long, value_name = "TIME", value_parser = parse_point)]
    pub(crate) until: Option<TimePoint>,

    /// Kubeconfig of an empty server to write to
    #[arg(long, value_name = "KUBECONFIG")]
    pub(crate) into: Option<PathBuf>,

    /// Write to a server that is not empty
    #[arg(long, requires = "into")]
    pub(crate) force: bool,

    /// Address to serve on; port 0 selects a free port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6443", value_parser = address::parse_bind,
          conflicts_with = "into")]
    pub(crate) bind: SocketAddr,

    /// Path of the admin kubeconfig to write
    #[arg(long, value_name = "FILE", conflicts_with = "into")]
    pub(crate) kubeconfig_out: Option<PathBuf>,
}

pub(super) const EXPORT_EXAMPLES: &str = "\
Examples:
  headwater export -A -o cluster.yaml
  headwater export -n shop -o shop.yaml --secrets keep
  headwater export -A -o crds.yaml --resources customresourcedefinitions";

#[derive(Debug, Args)]
pub(crate) struct ExportFlags {
    /// File to write, as YAML documents; must not exist
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,

    #[command(flatten)]
    pub(crate) scope: ScopeFlags,

    /// Resource types to export [default: all that people and controllers write]
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    pub(crate) resources: Vec<String>,

    /// What to keep of Secrets
    #[arg(long, value_name = "WHAT", default_value = "omit")]
    pub(crate) secrets: SecretPolicy,

    /// Keep the status of objects and the nodes of pods
    #[arg(long)]
    pub(crate) state: bool,

    #[command(flatten)]
    pub(crate) remote: RemoteFlags,
}

pub(super) const IMPORT_EXAMPLES: &str = "\
Examples:
  headwater import cluster.yaml --kubeconfig other.kubeconfig
  headwater import shop.yaml --overwrite";

#[derive(Debug, Args)]
pub(crate) struct ImportFlags {
    /// File of \"headwater export\"
    pub(crate) file: PathBuf,

    /// Change objects that exist; without it they are left as they are
    #[arg(long)]
    pub(crate) overwrite: bool,

    /// Write the status of objects and the nodes of pods, if the file has them
    #[arg(long)]
    pub(crate) state: bool,

    #[command(flatten)]
    pub(crate) remote: RemoteFlags,
}
