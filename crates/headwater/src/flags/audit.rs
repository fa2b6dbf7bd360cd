//! Flags of the audit log.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use headwater_server::audit::{AuditOptions, AuditWebhook, BatchOptions, LogOptions, Policy};

use super::parse_duration;

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

    /// Kubeconfig of a webhook that receives audit events in batches
    #[arg(long, value_name = "FILE", requires = "audit_policy_file", hide_short_help = true)]
    pub(crate) audit_webhook_config_file: Option<PathBuf>,

    /// Audit events that wait for the webhook; more are lost and counted
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10_000,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000),
        hide_short_help = true
    )]
    pub(crate) audit_webhook_batch_buffer_size: u32,

    /// Audit events in one call of the webhook
    #[arg(
        long,
        value_name = "N",
        default_value_t = 400,
        value_parser = clap::value_parser!(u32).range(1..=100_000),
        hide_short_help = true
    )]
    pub(crate) audit_webhook_batch_max_size: u32,

    /// How long an audit event waits for others
    #[arg(
        long,
        value_name = "TIME",
        default_value = "30s",
        value_parser = parse_duration,
        hide_short_help = true
    )]
    pub(crate) audit_webhook_batch_max_wait: Duration,

    /// Pause before a failed call of the webhook is repeated; it grows
    #[arg(
        long,
        value_name = "TIME",
        default_value = "10s",
        value_parser = parse_duration,
        hide_short_help = true
    )]
    pub(crate) audit_webhook_initial_backoff: Duration,
}

impl AuditFlags {
    /// Reads the policy; `None` if nothing is audited.
    pub(crate) fn options(&self) -> Result<Option<AuditOptions>> {
        let Some(path) = &self.audit_policy_file else { return Ok(None) };
        let text =
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let policy = Policy::parse(&text).with_context(|| path.display().to_string())?;
        if self.audit_log_path.is_none() && self.audit_webhook_config_file.is_none() {
            bail!("--audit-policy-file needs --audit-log-path or --audit-webhook-config-file");
        }
        let files_max = usize::try_from(self.audit_log_maxbackup)?;
        let log = self.audit_log_path.as_ref().map(|path| LogOptions {
            path: path.clone(),
            bytes_max: self.audit_log_maxsize * MEGABYTE,
            files_max,
            age_max: DAY * self.audit_log_maxage,
        });
        let batches = BatchOptions {
            buffer_max: usize::try_from(self.audit_webhook_batch_buffer_size)?,
            events_max: usize::try_from(self.audit_webhook_batch_max_size)?,
            wait_max: self.audit_webhook_batch_max_wait,
            backoff: self.audit_webhook_initial_backoff,
        };
        let webhook = self.audit_webhook_config_file.as_ref();
        let webhook = webhook.map(|path| AuditWebhook::open(path, batches)).transpose()?;
        Ok(Some(AuditOptions { policy, log, webhook }))
    }
}
