//! The command line and its typed values.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use headwater_server::Limits;
use headwater_server::pki::Pki;

mod address;
mod admission;
mod audit;
mod authentication;
mod authorization;
mod cluster;
mod controllers;
mod etcd;
mod history;
mod kubeconfig;
mod manual;
mod pki;
mod quantity;
mod time;
mod top;
mod traces;
mod transfer;
mod ui;
mod relay;

pub(crate) use admission::AdmissionFlags;
pub(crate) use audit::AuditFlags;
pub(crate) use authentication::AuthenticationFlags;
pub(crate) use authorization::AuthorizationFlags;
pub(crate) use cluster::{OutputFormat, ScopeFlags, TreeFlags, WatchFlags};
pub(crate) use controllers::{ControllerFlags, ControllersFlags};
pub(crate) use etcd::{EtcdFlags, StoreKind};
pub(crate) use history::{
    DiffFlags, DocumentFormat, GetFlags, HistoryFlags, ObjectFlags, RollbackFlags,
};
pub(crate) use kubeconfig::KubeconfigFlags;
pub(crate) use manual::{CompletionsFlags, ManFlags};
pub(crate) use pki::{PkiCommand, PkiFlags};
pub(crate) use quantity::{ByteSize, parse_bytes, parse_duration};
pub(crate) use relay::RelayFlags;
pub(crate) use time::{ReplaySpeed, TimePoint};
pub(crate) use top::TopFlags;
pub(crate) use traces::TraceFlags;
pub(crate) use transfer::{ExportFlags, ImportFlags, RecordFlags, ReplayFlags};
pub(crate) use ui::{UiBind, UiFlags};

/// A Kubernetes-compatible List/Watch control plane in one binary.
#[derive(Debug, Parser)]
#[command(
    name = "headwater",
    version,
    about,
    max_term_width = 100,
    after_long_help = EXAMPLES
)]
pub(crate) struct Flags {
    #[command(subcommand)]
    pub(crate) command: Command,

    /// Log level on stderr: error, warn, info, debug, or a filter such as
    /// "info,headwater_cache=debug"
    #[arg(
        long,
        global = true,
        env = "HEADWATER_LOG",
        default_value = "warn",
        value_name = "LEVEL",
        value_parser = address::parse_log
    )]
    pub(crate) log: String,
}

const EXAMPLES: &str = "\
Examples:
  headwater dev                                a local cluster with simulated nodes
  headwater serve                              serve 127.0.0.1:6443, data in ./.headwater
  headwater serve --memory --bind 127.0.0.1:0  in memory, on any free port
  export KUBECONFIG=.headwater/admin.kubeconfig; kubectl get namespaces
  headwater ui                                 see the cluster in a browser
  headwater relay --upstream kubeconfig --all  a cache in front of another API server
  headwater kubeconfig --user alice --group dev  a credential for somebody
  headwater backup today.hwb                   back up the running server
  headwater restore today.hwb --data-dir new   restore into an empty directory
  headwater bench list                         measure lists on this machine
  headwater watch pods -A --diff               print what changes, in any cluster
  headwater record -A -o cluster.hwr           record every change, to replay it later
  headwater history deployment/web             what an object looked like, and who changed it";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a local cluster: the API server, all controllers and simulated nodes
    #[command(after_long_help = DEV_EXAMPLES)]
    Dev(Box<ServeFlags>),
    /// Run the API server
    #[command(after_long_help = SERVE_EXAMPLES)]
    Serve(Box<ServeFlags>),
    /// Show a cluster live in a browser
    #[command(after_long_help = ui::EXAMPLES)]
    Ui(UiFlags),
    /// Run a List/Watch cache in front of another API server
    #[command(after_long_help = relay::EXAMPLES)]
    Relay(Box<RelayFlags>),
    /// Run controllers against a remote server, with leader election
    #[command(
        after_long_help = "Example:\n  headwater controllers --kubeconfig cluster.kubeconfig"
    )]
    Controllers(Box<ControllersFlags>),
    /// Print the changes of objects of any cluster, field by field
    #[command(after_long_help = cluster::WATCH_EXAMPLES)]
    Watch(WatchFlags),
    /// Print the owners of an object of any cluster, and what they own
    #[command(after_long_help = cluster::TREE_EXAMPLES)]
    Tree(TreeFlags),
    /// Print the retained versions of an object: when, who, what changed
    #[command(after_long_help = history::HISTORY_EXAMPLES)]
    History(HistoryFlags),
    /// Print objects as they are or were
    #[command(after_long_help = history::GET_EXAMPLES)]
    Get(GetFlags),
    /// Print what changed in an object between two points in time
    #[command(after_long_help = history::DIFF_EXAMPLES)]
    Diff(DiffFlags),
    /// Write an earlier version of an object
    #[command(after_long_help = history::ROLLBACK_EXAMPLES)]
    Rollback(RollbackFlags),
    /// Show what a server does: requests, latencies, watchers, kinds and users
    #[command(after_long_help = top::EXAMPLES)]
    Top(TopFlags),
    /// Record every change of any cluster to a file
    #[command(after_long_help = transfer::RECORD_EXAMPLES)]
    Record(RecordFlags),
    /// Replay a recording in a server of its own, or into another one
    #[command(after_long_help = transfer::REPLAY_EXAMPLES)]
    Replay(ReplayFlags),
    /// Write the present objects of any cluster to a file
    #[command(after_long_help = transfer::EXPORT_EXAMPLES)]
    Export(ExportFlags),
    /// Create the objects of an exported file in any cluster
    #[command(after_long_help = transfer::IMPORT_EXAMPLES)]
    Import(ImportFlags),
    /// Delete the history before a revision on a running server
    #[command(after_long_help = "Example:\n  headwater compact --revision 4711")]
    Compact(CompactFlags),
    /// Back up a running server to a file
    #[command(after_long_help = "Example:\n  headwater backup today.hwb")]
    Backup(BackupFlags),
    /// Create a data directory from a backup
    #[command(after_long_help = "Example:\n  headwater restore today.hwb --data-dir new")]
    Restore(RestoreFlags),
    /// Check all of a backup or a data directory
    #[command(
        after_long_help = "Examples:\n  headwater verify today.hwb\n  headwater verify ./.headwater"
    )]
    Verify(VerifyFlags),
    /// Rotate the certificate authority of a server
    #[command(after_long_help = "Example:\n  headwater pki rotate")]
    Pki(PkiFlags),
    /// Write a kubeconfig for a user or a service account to stdout
    #[command(after_long_help = kubeconfig::EXAMPLES)]
    Kubeconfig(KubeconfigFlags),
    /// Create links that replace kube-apiserver, etcd and kubectl in controller-runtime's envtest
    #[command(
        after_long_help = "Example:\n  headwater envtest ./assets && KUBEBUILDER_ASSETS=$PWD/assets go test ./..."
    )]
    Envtest(EnvtestFlags),
    /// Measure a server: writes, lists, watches, starting
    #[command(after_long_help = "Example:\n  headwater bench list")]
    Bench(headwater_bench::Flags),
    /// Print the completions of a shell
    #[command(after_long_help = manual::COMPLETIONS_EXAMPLES)]
    Completions(CompletionsFlags),
    /// Write manual pages to a directory
    #[command(after_long_help = manual::MAN_EXAMPLES)]
    Man(ManFlags),
    /// Print the version
    #[command(after_long_help = "Example:\n  headwater version")]
    Version,
}

const DEV_EXAMPLES: &str = "\
Examples:
  headwater dev
  headwater dev --nodes 100 --memory
  headwater dev --controllers=*,-scheduler          # run your own scheduler
  headwater dev --stages stages.yaml                # rules for simulated pods; see docs/dev.md
  headwater dev --memory --from cluster.hwr         # start where a recording ended";

const SERVE_EXAMPLES: &str = "\
Examples:
  headwater serve
  headwater serve --data-dir /var/lib/headwater --bind 0.0.0.0:6443 --tls-san api.example.org
  headwater serve --memory --bind 127.0.0.1:0 --kubeconfig-out /tmp/kubeconfig
  headwater serve --token-auth-file tokens.csv      # lines of token,user,uid,\"group1,group2\"
  headwater serve --watch-cache-sizes pods=5000,deployments.apps=500
  headwater serve --store etcd --etcd-cacert ca.pem \\
    --etcd-endpoints https://a:2379,https://b:2379,https://c:2379";

/// Flags of `serve` and `dev`.
#[derive(Debug, Args)]
pub(crate) struct ServeFlags {
    /// Directory for data, certificates and the admin kubeconfig
    #[arg(long, value_name = "DIR", default_value = "./.headwater", conflicts_with = "memory")]
    pub(crate) data_dir: PathBuf,

    /// Keep all data in memory; it is lost when the server stops
    #[arg(long)]
    pub(crate) memory: bool,

    /// Storage engine; several servers can share an etcd cluster
    #[arg(long, value_name = "ENGINE", default_value = "embedded", conflicts_with = "memory")]
    pub(crate) store: StoreKind,

    /// Address to serve HTTPS on; port 0 selects a free port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6443", value_parser = address::parse_bind)]
    pub(crate) bind: SocketAddr,

    /// Names the flag that sets the port; never has a value.
    #[arg(long, hide = true, value_name = "N", value_parser = address::refuse_port)]
    pub(crate) port: Option<u16>,

    /// Loopback address to serve plain HTTP on, where every client is the administrator
    #[arg(long, value_name = "ADDR", value_parser = address::parse_bind)]
    pub(crate) insecure_bind: Option<SocketAddr>,

    /// Loopback address for the page, with the rights of the administrator; "off" for none
    /// [default: a free port for dev, off for serve]
    #[arg(long, value_name = "ADDR", hide_short_help = true)]
    pub(crate) ui_bind: Option<UiBind>,

    /// Allow webhooks on loopback addresses even if --bind is not a loopback address
    #[arg(long)]
    pub(crate) webhooks_on_loopback: bool,

    /// Directory for the certificate authority and the service account key; servers that share an
    /// etcd cluster must use the same files [default: DIR/pki]
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    pub(crate) pki_dir: Option<PathBuf>,

    /// Additional name or address for the serving certificate; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) tls_san: Vec<String>,

    /// File of bearer tokens, with lines of token,user,uid,"group1,group2"
    #[arg(long, value_name = "FILE")]
    pub(crate) token_auth_file: Option<PathBuf>,

    /// Keys with which stored objects are encrypted (EncryptionConfiguration); reloaded when it changes
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) encryption_provider_config: Option<PathBuf>,

    /// Path of the admin kubeconfig to write [default: DIR/admin.kubeconfig]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig_out: Option<PathBuf>,

    /// Start even if other users can read keys, tokens or the data directory
    #[arg(long)]
    pub(crate) allow_loose_permissions: bool,

    /// Recent changes kept in memory per resource, for watches that resume
    #[arg(long, value_name = "N")]
    pub(crate) default_watch_cache_size: Option<usize>,

    /// The same for single resources: pods=1000,deployments.apps=500
    #[arg(long, value_name = "RESOURCE=N", value_delimiter = ',', value_parser = quantity::parse_size)]
    pub(crate) watch_cache_sizes: Vec<(String, usize)>,

    /// Start a damaged store without the objects that cannot be read, and log them
    #[arg(long, conflicts_with = "memory")]
    pub(crate) salvage: bool,

    /// How long history is kept on disk, for watches and lists of past revisions
    #[arg(long, value_name = "TIME", default_value = "6h", value_parser = parse_duration)]
    pub(crate) history_age: Duration,

    /// Maximum size of the history on disk
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_bytes)]
    pub(crate) history_bytes: ByteSize,

    /// Maximum concurrent streams per HTTP/2 connection
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) http2_max_streams_per_connection: u32,

    /// Maximum open watches
    #[arg(long, value_name = "N", default_value_t = Limits::default().watches_max, hide_short_help = true)]
    pub(crate) max_watches: usize,

    /// Maximum open watches per user
    #[arg(long, value_name = "N", default_value_t = Limits::default().watches_per_user_max, hide_short_help = true)]
    pub(crate) max_watches_per_user: usize,

    /// Maximum estimated bytes of list responses in flight
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = parse_bytes, hide_short_help = true)]
    pub(crate) max_list_bytes: ByteSize,

    /// Maximum reads at a time; with priority and fairness, the sum of this and the next flag is
    /// divided among the priority levels
    #[arg(long, value_name = "N", default_value_t = Limits::default().reads_max, hide_short_help = true)]
    pub(crate) max_requests_inflight: usize,

    /// Maximum writes at a time
    #[arg(long, value_name = "N", default_value_t = Limits::default().writes_max, hide_short_help = true)]
    pub(crate) max_mutating_requests_inflight: usize,

    /// Queue requests by priority level and user; if false, only the two limits above apply
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set,
          num_args = 0..=1, require_equals = true, default_missing_value = "true",
          hide_short_help = true)]
    pub(crate) enable_priority_and_fairness: bool,

    /// Time for open requests to complete after SIGTERM
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub(crate) shutdown_grace: Duration,

    #[command(flatten)]
    pub(crate) admission: AdmissionFlags,

    #[command(flatten)]
    pub(crate) audit: AuditFlags,

    #[command(flatten)]
    pub(crate) traces: TraceFlags,

    #[command(flatten)]
    pub(crate) authentication: AuthenticationFlags,

    #[command(flatten)]
    pub(crate) authorization: AuthorizationFlags,

    #[command(flatten)]
    pub(crate) etcd: EtcdFlags,

    #[command(flatten)]
    pub(crate) controller_flags: ControllerFlags,

    /// Start with the objects and the history of a recording; the store must be empty
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) from: Option<PathBuf>,

    /// With --from, leave out what was recorded later: 2026-11-15T10:00Z, or 10m after its beginning
    #[arg(long, value_name = "TIME", value_parser = time::parse_point, requires = "from",
          hide_short_help = true)]
    pub(crate) from_until: Option<TimePoint>,

    /// Whether annotations may route webhooks and ports to this machine; set by `dev`, not by a
    /// flag.
    #[arg(skip)]
    pub(crate) honors_forwarding: bool,

    /// Certificates to use instead of generated ones; set by `envtest`, not by a flag.
    #[arg(skip)]
    pub(crate) certificates: Option<Pki>,
}

impl ServeFlags {
    /// Whether the server may call webhooks on loopback addresses. A server that only serves
    /// loopback is for local development; one that serves a network must not reach services local
    /// to its machine.
    pub(crate) fn may_call_loopback(&self) -> bool {
        self.bind.ip().is_loopback() || self.webhooks_on_loopback
    }
}

#[derive(Debug, Args)]
pub(crate) struct EnvtestFlags {
    /// Directory for the links; set KUBEBUILDER_ASSETS to it
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
}

/// The server that a command connects to.
#[derive(Debug, Args)]
pub(crate) struct RemoteFlags {
    /// Kubeconfig of an administrator of the server; of a list such as a:b, the first file that
    /// exists
    #[arg(
        long,
        value_name = "FILE",
        env = "KUBECONFIG",
        default_value = "./.headwater/admin.kubeconfig",
        value_parser = address::parse_kubeconfig
    )]
    pub(crate) kubeconfig: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct CompactFlags {
    /// Oldest revision to keep readable
    #[arg(long, value_name = "N")]
    pub(crate) revision: u64,

    #[command(flatten)]
    pub(crate) remote: RemoteFlags,
}

#[derive(Debug, Args)]
pub(crate) struct BackupFlags {
    /// File to write; must not exist
    pub(crate) file: PathBuf,

    #[command(flatten)]
    pub(crate) remote: RemoteFlags,
}

#[derive(Debug, Args)]
pub(crate) struct RestoreFlags {
    /// Backup file
    pub(crate) file: PathBuf,

    /// Data directory to create; must be new or empty
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyFlags {
    /// Backup file, or data directory of a stopped server
    pub(crate) path: PathBuf,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn serve(args: &[&str]) -> Result<Box<ServeFlags>, String> {
        let all = ["headwater", "serve"].iter().chain(args);
        match Flags::try_parse_from(all).map_err(|error| error.to_string())?.command {
            Command::Serve(serve) => Ok(serve),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn the_flags_are_consistent() {
        Flags::command().debug_assert();
    }

    #[test]
    fn fairness_is_on_unless_it_is_switched_off() {
        let fairness = |args: &[&str]| serve(args).map(|serve| serve.enable_priority_and_fairness);
        assert_eq!(fairness(&[]), Ok(true));
        assert_eq!(fairness(&["--enable-priority-and-fairness"]), Ok(true));
        assert_eq!(fairness(&["--enable-priority-and-fairness=false"]), Ok(false));
        assert!(fairness(&["--enable-priority-and-fairness=maybe"]).is_err());
    }

    #[test]
    fn webhooks_on_loopback_are_allowed_if_the_server_is_on_loopback() {
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
    fn cache_sizes_use_an_equals_sign_or_a_hash() {
        let sizes = |text| serve(&["--watch-cache-sizes", text]).map(|s| s.watch_cache_sizes);
        let pods = |n| ("pods".to_owned(), n);
        assert_eq!(sizes("pods=1000").unwrap(), [pods(1000)]);
        assert_eq!(
            sizes("pods#10,deployments.apps#5").unwrap(),
            [pods(10), ("deployments.apps".to_owned(), 5)]
        );
        assert!(sizes("pods").unwrap_err().contains("pods=1000"));
        assert!(sizes("podz=3").unwrap_err().contains("no built-in resource"));
        assert!(sizes("deployments=3").unwrap_err().contains("deployments.apps"));
        assert!(sizes("widgets.example.org=3").is_ok(), "a custom resource");
    }

    #[test]
    fn short_help_fits_a_screen() {
        for name in [
            "",
            "dev",
            "serve",
            "ui",
            "controllers",
            "compact",
            "backup",
            "restore",
            "verify",
            "pki",
            "kubeconfig",
            "envtest",
            "bench",
            "watch",
            "tree",
            "top",
            "completions",
            "man",
            "history",
            "get",
            "diff",
            "rollback",
            "record",
            "replay",
            "export",
            "import",
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
