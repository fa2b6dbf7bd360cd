//! The flags of `history`, `get`, `diff` and `rollback`.

use clap::{Args, ValueEnum};

use super::time::{TimePoint, parse_point};
use super::{OutputFormat, RemoteFlags, ScopeFlags};

/// The most versions that one command shows.
const VERSIONS_MAX: u64 = 499;

/// One object.
#[derive(Debug, Args)]
pub(crate) struct ObjectFlags {
    /// The object, such as deployment/web
    #[arg(required = true, num_args = 1..=2, value_name = "OBJECT")]
    pub(crate) object: Vec<String>,

    /// Namespace [default: that of the kubeconfig's context]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) namespace: Option<String>,

    #[command(flatten)]
    pub(crate) remote: RemoteFlags,
}

pub(super) const HISTORY_EXAMPLES: &str = "\
Examples:
  headwater history deployment/web
  headwater history configmap/settings -n shop --diff --limit 5
  headwater history node/node-0 -o json";

#[derive(Debug, Args)]
pub(crate) struct HistoryFlags {
    #[command(flatten)]
    pub(crate) object: ObjectFlags,

    /// Show all changed fields of each version
    #[arg(long)]
    pub(crate) diff: bool,

    /// Maximum number of versions, newest first
    #[arg(long, value_name = "N", default_value = "20", value_parser = parse_limit)]
    pub(crate) limit: usize,

    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: OutputFormat,
}

fn parse_limit(text: &str) -> Result<usize, String> {
    let number = text.parse::<u64>().ok().filter(|number| (1..=VERSIONS_MAX).contains(number));
    let number = number.and_then(|number| usize::try_from(number).ok());
    number.ok_or_else(|| format!("write a number from 1 to {VERSIONS_MAX}"))
}

/// How objects are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DocumentFormat {
    /// A table with the server's columns
    Table,
    /// One JSON document per line
    Json,
    /// YAML documents
    Yaml,
}

pub(super) const GET_EXAMPLES: &str = "\
Examples:
  headwater get pods --at 10m
  headwater get pods -A --at 2026-11-15T10:00Z
  headwater get deployment/web --at 4711 -o yaml";

#[derive(Debug, Args)]
pub(crate) struct GetFlags {
    /// Resource type, such as pods; or one object, such as deployment/web
    pub(crate) resource: String,

    /// The state to show: a revision, a time, or so long ago
    #[arg(long, value_name = "TIME", default_value = "now", value_parser = parse_point)]
    pub(crate) at: TimePoint,

    #[command(flatten)]
    pub(crate) scope: ScopeFlags,

    /// Label selector
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub(crate) selector: Option<String>,

    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: DocumentFormat,

    #[command(flatten)]
    pub(crate) remote: RemoteFlags,
}

pub(super) const DIFF_EXAMPLES: &str = "\
Examples:
  headwater diff deployment/web --from 1h
  headwater diff deployment/web --from 2026-11-15T10:00Z --to 2026-11-15T11:00Z";

#[derive(Debug, Args)]
pub(crate) struct DiffFlags {
    #[command(flatten)]
    pub(crate) object: ObjectFlags,

    /// The earlier state: a revision, a time, or so long ago
    #[arg(long, value_name = "TIME", value_parser = parse_point)]
    pub(crate) from: TimePoint,

    /// The later state
    #[arg(long, value_name = "TIME", default_value = "now", value_parser = parse_point)]
    pub(crate) to: TimePoint,

    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: OutputFormat,
}

pub(super) const ROLLBACK_EXAMPLES: &str = "\
Examples:
  headwater rollback deployment/web --to 10m
  headwater rollback configmap/settings -n shop --to 4711 --dry-run

A rollback is an ordinary update with the earlier spec and metadata: admission checks it, controllers see
it, and it fails if somebody else changes the object at the same time. The status is not written. A
deleted object is created again.";

#[derive(Debug, Args)]
pub(crate) struct RollbackFlags {
    #[command(flatten)]
    pub(crate) object: ObjectFlags,

    /// The state to return to: a revision, a time, or so long ago
    #[arg(long, value_name = "TIME", value_parser = parse_point)]
    pub(crate) to: TimePoint,

    /// Let the server check the write without storing it
    #[arg(long)]
    pub(crate) dry_run: bool,
}
