//! Flags of the audit log.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use headwater_server::audit::{AuditOptions, LogOptions, Policy};

/// Megabytes, as Kubernetes counts the size of a log.
const MEGABYTE: u64 = 1024 * 1024;
const DAY: Duration = Duration::from_secs(86_400);

#[derive(Debug, Args)]
pub(crate) struct AuditFlags {
    /// Audit policy (audit.k8s.io/v1): which requests are recorded, and how much of them
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) audit_policy_file: Option<PathBuf>,

    /// File to which audit events are written, one line each; "-" is standard output
    #[arg(long, value_name = "FILE", requires = "audit_policy_file", hide_short_help = true)]
    pub(crate) audit_log_path: Option<PathBuf>,

    /// Size in MiB at which the audit log is rotated
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000),
        hide_short_help = true
    )]
    pub(crate) audit_log_maxsize: u64,

    /// Rotated audit logs to keep; 0 keeps all
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        value_parser = clap::value_parser!(u64).range(..=1_000_000),
        hide_short_help = true
    )]
    pub(crate) audit_log_maxbackup: u64,

    /// Days to keep rotated audit logs; 0 keeps them
    #[arg(
        long,
        value_name = "DAYS",
        default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(..=36_500),
        hide_short_help = true
    )]
    pub(crate) audit_log_maxage: u32,
}

impl AuditFlags {
    /// Reads the policy; `None` if nothing is audited.
    pub(crate) fn options(&self) -> Result<Option<AuditOptions>> {
        let Some(path) = &self.audit_policy_file else { return Ok(None) };
        let text =
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let policy = Policy::parse(&text).with_context(|| path.display().to_string())?;
        let Some(log) = &self.audit_log_path else {
            bail!("--audit-policy-file needs --audit-log-path");
        };
        let log = LogOptions {
            path: log.clone(),
            bytes_max: self.audit_log_maxsize * MEGABYTE,
            files_max: usize::try_from(self.audit_log_maxbackup)?,
            age_max: DAY * self.audit_log_maxage,
        };
        Ok(Some(AuditOptions { policy, log: Some(log) }))
    }
}
