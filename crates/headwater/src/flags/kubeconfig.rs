//! The flags of `headwater kubeconfig`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{RemoteFlags, parse_duration};

pub(super) const EXAMPLES: &str = "\
Examples:
  headwater kubeconfig --user alice --group dev > alice.kubeconfig
  headwater kubeconfig --user ci --duration 90d --server https://api.example.org:6443 > ci.kubeconfig
  headwater kubeconfig --service-account tools/deployer --duration 1h > deployer.kubeconfig

A user gets a client certificate, signed with the authority in the data directory; the server need not
run. It cannot be withdrawn, so choose a short duration. A service account gets a token of the running
server, which ends with the account.";

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("who").required(true).args(["user", "service_account"]))]
pub(crate) struct KubeconfigFlags {
    /// Name of the user
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,

    /// Group of the user; may be repeated
    #[arg(long, value_name = "NAME", requires = "user")]
    pub(crate) group: Vec<String>,

    /// Service account, as NAMESPACE/NAME; asks the server of --kubeconfig for a token
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub(crate) service_account: Option<String>,

    /// How long the credential is valid
    #[arg(long, value_name = "TIME", default_value = "8h", value_parser = parse_duration)]
    pub(crate) duration: Duration,

    /// Address in the kubeconfig [default: that in the administrator's kubeconfig]
    #[arg(long, value_name = "URL")]
    pub(crate) server: Option<String>,

    /// Data directory of the server, for --user
    #[arg(long, value_name = "DIR", default_value = "./.headwater")]
    pub(crate) data_dir: PathBuf,

    /// Directory of the certificates, as for "headwater serve" [default: DIR/pki]
    #[arg(long, value_name = "DIR")]
    pub(crate) pki_dir: Option<PathBuf>,

    /// Continue even if other users can read keys
    #[arg(long)]
    pub(crate) allow_loose_permissions: bool,

    #[command(flatten)]
    pub(crate) remote: RemoteFlags,
}
