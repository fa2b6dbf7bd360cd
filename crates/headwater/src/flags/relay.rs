//! The flags of `headwater relay`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use headwater_relay::NamedResource;
use headwater_server::Limits;

use super::{address, parse_duration};

pub(super) const EXAMPLES: &str = "\
Examples:
  headwater relay --upstream relay.kubeconfig --resources pods,nodes,deployments.apps
  headwater relay --upstream relay.kubeconfig --all --data-dir /var/lib/relay --bind 0.0.0.0:6444
  headwater relay --upstream relay.kubeconfig --resources 'pods?fieldSelector=spec.nodeName=n1'
The user in the kubeconfig reads what the relay holds, and creates TokenReviews and
SubjectAccessReviews; see docs/relay.md.";

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("held").required(true).args(["resources", "all"])))]
pub(crate) struct RelayFlags {
    /// Kubeconfig of the API server to stand in front of, with the relay's own credential
    #[arg(long, value_name = "FILE")]
    pub(crate) upstream: PathBuf,

    /// Resources to hold: pods, deployments.apps, deployments.v1.apps. One with selectors is a flag of
    /// its own: 'pods?labelSelector=app=web'
    #[arg(long, value_name = "NAMES")]
    resources: Vec<String>,

    /// Hold every resource that can be listed and watched, as they come and go
    #[arg(long)]
    pub(crate) all: bool,

    /// Directory for history and certificates; a relay that starts again resumes where it was
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,

    /// Address to serve HTTPS on; port 0 selects a free port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6444", value_parser = address::parse_bind)]
    pub(crate) bind: SocketAddr,

    /// More names and addresses of this relay, for its certificate
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) tls_san: Vec<String>,

    /// Directory of the certificates [default: DATA_DIR/pki; without it, new ones in memory]
    #[arg(long, value_name = "DIR")]
    pub(crate) pki_dir: Option<PathBuf>,

    /// Write a kubeconfig with the address and the certificate authority of the relay, without a user
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig_out: Option<PathBuf>,

    /// Accept client certificates of this authority; needs --impersonate for writes
    #[arg(long, value_name = "FILE")]
    pub(crate) client_ca_file: Option<PathBuf>,

    /// Lines of token,user,uid,"group1,group2" for clients of the relay; needs --impersonate for writes
    #[arg(long, value_name = "FILE")]
    pub(crate) token_auth_file: Option<PathBuf>,

    /// Pass on requests whose credential cannot be passed on as their user, with the relay's right to
    /// impersonate
    #[arg(long)]
    pub(crate) impersonate: bool,

    /// Answer reads of the newest state without asking the upstream, if it was heard of within this time
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = parse_duration)]
    pub(crate) stale_ok: Duration,

    /// How long the upstream's answers about tokens and permissions are used
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub(crate) permission_ttl: Duration,

    /// How often the upstream is asked again whether the reader of an open watch may still watch; at
    /// least 1s
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = parse_duration)]
    pub(crate) recheck_watches: Duration,

    /// Continue even if other users can read keys and tokens
    #[arg(long)]
    pub(crate) allow_loose_permissions: bool,

    /// Maximum open watches
    #[arg(long, value_name = "N", default_value_t = Limits::default().watches_max)]
    pub(crate) max_watches: usize,

    /// Maximum open watches per user
    #[arg(long, value_name = "N", default_value_t = Limits::default().watches_per_user_max)]
    pub(crate) max_watches_per_user: usize,

    /// Maximum reads in flight
    #[arg(long, value_name = "N", default_value_t = 5_000)]
    pub(crate) max_requests_inflight: usize,
}

impl RelayFlags {
    /// The resources to hold. Commas separate names; a value with selectors is one resource.
    pub(crate) fn named(&self) -> anyhow::Result<Vec<NamedResource>> {
        let mut named = Vec::new();
        for value in &self.resources {
            let names: Vec<&str> = match value.contains('?') {
                true => vec![value],
                false => value.split(',').collect(),
            };
            for name in names {
                named.push(name.trim().parse::<NamedResource>()?);
            }
        }
        Ok(named)
    }
}
