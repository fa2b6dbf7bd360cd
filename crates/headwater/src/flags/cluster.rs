//! The flags of the commands that look at any cluster.

use clap::{Args, ValueEnum};

use super::RemoteFlags;

/// The namespaces that a command reads.
#[derive(Clone, Debug, Args)]
pub(crate) struct ScopeFlags {
    /// Namespace [default: that of the kubeconfig's context]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) namespace: Option<String>,

    /// All namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub(crate) all_namespaces: bool,
}

impl ScopeFlags {
    /// The namespace; `None` means all.
    pub(crate) fn namespace(&self, usual: &str) -> Option<String> {
        match self.all_namespaces {
            true => None,
            false => Some(self.namespace.clone().unwrap_or_else(|| usual.to_owned())),
        }
    }
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// For people
    Text,
    /// One JSON document per line
    Json,
}

pub(super) const WATCH_EXAMPLES: &str = "\
Examples:
  headwater watch pods -n shop --diff
  headwater watch deployment/web --diff
  headwater watch nodes -o json | jq .changes
  headwater watch pods -A -l app=web --kubeconfig ~/.kube/config";

#[derive(Debug, Args)]
pub(crate) struct WatchFlags {
    /// Resource type, such as pods or deployments.apps; or one object, such as deployment/web
    pub(crate) resource: String,

    /// Show the fields that each event changes
    #[arg(long)]
    pub(crate) diff: bool,

    #[command(flatten)]
    pub(crate) scope: ScopeFlags,

    /// Label selector
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub(crate) selector: Option<String>,

    /// Field selector
    #[arg(long, value_name = "SELECTOR")]
    pub(crate) field_selector: Option<String>,

    /// Output format; JSON always has the changed fields
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: OutputFormat,

    #[command(flatten)]
    pub(crate) remote: RemoteFlags,
}

pub(super) const TREE_EXAMPLES: &str = "\
Examples:
  headwater tree deployment/web
  headwater tree pod web-5d8c7-x2v4q -n shop";

#[derive(Debug, Args)]
pub(crate) struct TreeFlags {
    /// The object, such as deployment/web
    #[arg(required = true, num_args = 1..=2, value_name = "OBJECT")]
    pub(crate) object: Vec<String>,

    /// Namespace [default: that of the kubeconfig's context]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) namespace: Option<String>,

    #[command(flatten)]
    pub(crate) remote: RemoteFlags,
}
