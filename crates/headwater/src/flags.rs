//! The command line: what can be typed, and the typed values it becomes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use headwater_server::Limits;
use headwater_server::pki::Pki;

mod controllers;
mod etcd;
mod quantity;

pub(crate) use controllers::{Controllers, Controlling};
pub(crate) use etcd::{Etcd, StoreKind};
pub(crate) use quantity::{Bytes, parse_bytes, parse_duration};

/// A Kubernetes-compatible List/Watch control plane in one binary.
#[derive(Debug, Parser)]
#[command(
    name = "headwater",
    version,
    about,
    max_term_width = 100,
    disable_help_subcommand = true,
    after_long_help = EXAMPLES
)]
pub(crate) struct Flags {
    #[command(subcommand)]
    pub(crate) command: Command,

    /// What to log on stderr: error, warn, info, debug, or a filter such as
    /// "info,headwater_cache=debug"
    #[arg(
        long,
        global = true,
        env = "HEADWATER_LOG",
        default_value = "warn",
        value_name = "LEVEL"
    )]
    pub(crate) log: String,
}

const EXAMPLES: &str = "\
Examples:
  headwater dev                                a small cluster: server, controllers, three nodes
  headwater serve                              serve https://127.0.0.1:6443, keep data in ./.headwater
  headwater serve --memory --bind 127.0.0.1:0  nothing on disk, any free port
  export KUBECONFIG=.headwater/admin.kubeconfig; kubectl get namespaces
  headwater backup today.hwb                   while it serves
  headwater restore today.hwb --data-dir new   into an empty directory
  headwater bench list                         how fast is it here?";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve the API with all controllers and simulated nodes: a cluster to try things on
    #[command(after_long_help = DEV_EXAMPLES)]
    Dev(Box<Serve>),
    /// Serve the API
    #[command(after_long_help = SERVE_EXAMPLES)]
    Serve(Box<Serve>),
    /// Run controllers against a server elsewhere; of several copies, one acts
    Controllers(Box<Controllers>),
    /// Forget history before a revision, on a running server
    Compact(Compact),
    /// Copy everything a running server holds into a file
    Backup(Backup),
    /// Fill a new data directory from a backup
    Restore(Restore),
    /// Read a backup or a data directory from end to end and check it
    Verify(Verify),
    /// Link stand-ins for kube-apiserver, etcd and kubectl, for envtest of controller-runtime
    Envtest(Envtest),
    /// Measure a server: writes, lists, watches, starting
    Bench(headwater_bench::Flags),
}

const DEV_EXAMPLES: &str = "\
Examples:
  headwater dev
  headwater dev --nodes 100 --memory
  headwater dev --controllers=*,-scheduler          # bring your own scheduler
  headwater dev --stages stages.yaml                # how pods behave; see docs/dev.md";

const SERVE_EXAMPLES: &str = "\
Examples:
  headwater serve
  headwater serve --data-dir /var/lib/headwater --bind 0.0.0.0:6443 --tls-san api.example.org
  headwater serve --memory --bind 127.0.0.1:0 --kubeconfig-out /tmp/kubeconfig
  headwater serve --token-auth-file tokens.csv      # lines of: token,user,uid,\"group1,group2\"
  headwater serve --watch-cache-sizes pods=5000,deployments.apps=500
  headwater serve --store etcd --etcd-endpoints http://a:2379,http://b:2379,http://c:2379";

/// Flags of `serve` and `dev`.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Where data, certificates and the admin's kubeconfig are kept
    #[arg(long, value_name = "DIR", default_value = "./.headwater", conflicts_with = "memory")]
    pub(crate) data_dir: PathBuf,

    /// Keep everything in memory; it is gone when the server stops
    #[arg(long)]
    pub(crate) memory: bool,

    /// Where objects are kept; with etcd, any number of servers may share them (see --help)
    #[arg(long, value_name = "ENGINE", default_value = "embedded", conflicts_with = "memory")]
    pub(crate) store: StoreKind,

    /// Address to serve HTTPS on; port 0 takes any free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6443")]
    pub(crate) bind: SocketAddr,

    /// Loopback address to serve plain HTTP on; everyone there is the administrator
    #[arg(long, value_name = "ADDR")]
    pub(crate) insecure_bind: Option<SocketAddr>,

    /// Let webhooks be on this machine's loopback even if --bind is not
    #[arg(long)]
    pub(crate) webhooks_on_loopback: bool,

    /// Where the authority and the key of service accounts are kept, which all servers over one etcd
    /// must have in common [default: DIR/pki]
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    pub(crate) pki_dir: Option<PathBuf>,

    /// Another name or address for the serving certificate; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) tls_san: Vec<String>,

    /// Users known by a token: lines of token,user,uid,"group1,group2"
    #[arg(long, value_name = "FILE")]
    pub(crate) token_auth_file: Option<PathBuf>,

    /// Where to write the admin's kubeconfig [default: DIR/admin.kubeconfig]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig_out: Option<PathBuf>,

    /// Start although keys, tokens or the data directory can be read by other users
    #[arg(long)]
    pub(crate) allow_loose_permissions: bool,

    /// Changes kept in memory for each resource, for watches that resume
    #[arg(long, value_name = "N")]
    pub(crate) default_watch_cache_size: Option<usize>,

    /// The same for some resources: pods=1000,deployments.apps=500
    #[arg(long, value_name = "RESOURCE=N", value_delimiter = ',', value_parser = quantity::parse_size)]
    pub(crate) watch_cache_sizes: Vec<(String, usize)>,

    /// How long history stays on disk, for watches and lists in the past
    #[arg(long, value_name = "TIME", default_value = "6h", value_parser = parse_duration)]
    pub(crate) history_age: Duration,

    /// How much history stays on disk
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_bytes)]
    pub(crate) history_bytes: Bytes,

    /// Streams one HTTP/2 connection may have open
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) http2_max_streams_per_connection: u32,

    /// Watches that may be open at a time
    #[arg(long, value_name = "N", default_value_t = Limits::default().watches_max, hide_short_help = true)]
    pub(crate) max_watches: usize,

    /// Watches that one user may have open at a time
    #[arg(long, value_name = "N", default_value_t = Limits::default().watches_per_user_max, hide_short_help = true)]
    pub(crate) max_watches_per_user: usize,

    /// Bytes of lists that may be on their way at a time, as far as can be told beforehand
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = parse_bytes, hide_short_help = true)]
    pub(crate) max_list_bytes: Bytes,

    /// What open requests may take after SIGTERM
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub(crate) shutdown_grace: Duration,

    #[command(flatten)]
    pub(crate) etcd: Etcd,

    #[command(flatten)]
    pub(crate) controlling: Controlling,

    /// Certificates that are not our own to make; no flag gives them.
    #[arg(skip)]
    pub(crate) certificates: Option<Pki>,
}

impl Serve {
    /// Whether webhooks on this machine may be called. Who serves on loopback is at a desk, and so
    /// are the webhooks; a server for others leaves alone what this machine keeps to itself.
    pub(crate) fn may_call_loopback(&self) -> bool {
        self.bind.ip().is_loopback() || self.webhooks_on_loopback
    }
}

#[derive(Debug, Args)]
pub(crate) struct Envtest {
    /// The directory to put them in; use it as KUBEBUILDER_ASSETS
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
}

/// Which server to talk to.
#[derive(Debug, Args)]
pub(crate) struct Remote {
    /// The server's admin kubeconfig
    #[arg(
        long,
        value_name = "FILE",
        env = "KUBECONFIG",
        default_value = "./.headwater/admin.kubeconfig"
    )]
    pub(crate) kubeconfig: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Compact {
    /// The oldest revision that can still be read afterwards
    #[arg(long, value_name = "N")]
    pub(crate) revision: u64,

    #[command(flatten)]
    pub(crate) remote: Remote,
}

#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// Where to write it; an existing file is not touched
    pub(crate) file: PathBuf,

    #[command(flatten)]
    pub(crate) remote: Remote,
}

#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// The backup
    pub(crate) file: PathBuf,

    /// The directory to make; it must not exist or be empty
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// A backup file, or a data directory that no server has open
    pub(crate) path: PathBuf,

    /// In a data directory, check every row too
    #[arg(long)]
    pub(crate) deep: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn serve(args: &[&str]) -> Result<Box<Serve>, String> {
        let all = ["headwater", "serve"].iter().chain(args);
        match Flags::try_parse_from(all).map_err(|error| error.to_string())?.command {
            Command::Serve(serve) => Ok(serve),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn the_flags_fit_together() {
        Flags::command().debug_assert();
    }

    #[test]
    fn webhooks_are_on_loopback_where_the_server_is() {
        for (flags, expected) in [
            (&[][..], true),
            (&["--bind", "[::1]:0"], true),
            (&["--bind", "0.0.0.0:6443"], false),
            (&["--bind", "0.0.0.0:6443", "--webhooks-on-loopback"], true),
        ] {
            assert_eq!(serve(flags).unwrap().may_call_loopback(), expected, "{flags:?}");
        }
    }

    #[test]
    fn defaults_are_local_and_durable() {
        let serve = serve(&[]).unwrap();
        assert!(serve.bind.ip().is_loopback() && !serve.memory);
        assert_eq!(serve.data_dir, PathBuf::from("./.headwater"));
        assert_eq!(serve.history_age, Duration::from_secs(6 * 3600));
        assert_eq!(serve.history_bytes.0, 1 << 30);
        assert_eq!(serve.insecure_bind, None);
    }

    #[test]
    fn a_data_directory_and_memory_exclude_each_other() {
        serve(&["--memory"]).unwrap();
        let error = serve(&["--memory", "--data-dir", "x"]).unwrap_err();
        assert!(error.contains("cannot be used with"), "{error}");
    }

    #[test]
    fn cache_sizes_are_written_either_way() {
        let sizes = |text| serve(&["--watch-cache-sizes", text]).map(|s| s.watch_cache_sizes);
        let pods = |n| ("pods".to_owned(), n);
        assert_eq!(sizes("pods=1000").unwrap(), [pods(1000)]);
        assert_eq!(
            sizes("pods#10,deployments.apps#5").unwrap(),
            [pods(10), ("deployments.apps".to_owned(), 5)]
        );
        assert!(sizes("pods").unwrap_err().contains("pods=1000"));
    }

    #[test]
    fn short_help_fits_a_screen() {
        for name in [
            "",
            "dev",
            "serve",
            "controllers",
            "compact",
            "backup",
            "restore",
            "verify",
            "envtest",
            "bench",
        ] {
            let mut command = Flags::command();
            let command = match name {
                "" => &mut command,
                name => command.find_subcommand_mut(name).unwrap(),
            };
            let lines = command.render_help().to_string().lines().count();
            assert!(lines <= 50, "{name}: {lines} lines");
        }
    }

    #[test]
    fn long_help_has_examples() {
        let mut command = Flags::command();
        assert!(command.render_long_help().to_string().contains("Examples:"));
        let serve = command.find_subcommand_mut("serve").unwrap();
        assert!(serve.render_long_help().to_string().contains("Examples:"));
    }
}
