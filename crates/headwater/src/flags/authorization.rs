//! Flags for authorization: who decides, and in which order.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use headwater_server::Authorization;
use headwater_server::authorization::configuration::{AuthorizationConfiguration, WebhookFlags};
use headwater_server::authorization::file::AuthorizationFile;
use headwater_server::metrics::Metrics;

use super::parse_duration;

#[derive(Debug, Args)]
#[command(next_help_heading = "Authorization")]
pub(crate) struct AuthorizationFlags {
    /// File with an AuthorizationConfiguration: authorizers in order, webhooks with conditions; read
    /// again when it changes
    #[arg(
        long,
        value_name = "FILE",
        hide_short_help = true,
        conflicts_with_all = ["authorization_mode", "authorization_webhook_config_file"]
    )]
    pub(crate) authorization_config: Option<PathBuf>,

    /// Authorizers, in order: Node, RBAC, Webhook, AlwaysAllow, AlwaysDeny
    #[arg(
        long,
        value_name = "MODES",
        value_delimiter = ',',
        default_value = "Node,RBAC",
        hide_short_help = true
    )]
    pub(crate) authorization_mode: Vec<String>,

    /// Kubeconfig of the webhook of the mode Webhook
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) authorization_webhook_config_file: Option<PathBuf>,

    /// Version of the reviews that it understands: v1 or v1beta1
    #[arg(long, value_name = "VERSION", default_value = "v1", hide_short_help = true)]
    pub(crate) authorization_webhook_version: String,

    /// How long its answers that allow are kept
    #[arg(
        long,
        value_name = "TIME",
        default_value = "5m",
        value_parser = parse_duration,
        hide_short_help = true
    )]
    pub(crate) authorization_webhook_cache_authorized_ttl: Duration,

    /// How long its other answers are kept
    #[arg(
        long,
        value_name = "TIME",
        default_value = "30s",
        value_parser = parse_duration,
        hide_short_help = true
    )]
    pub(crate) authorization_webhook_cache_unauthorized_ttl: Duration,
}

/// The authorizers, and the file that changes them.
pub(crate) struct OpenedAuthorization {
    pub(crate) authorization: Authorization,
    pub(crate) file: Option<AuthorizationFile>,
}

impl AuthorizationFlags {
    /// Reads the file, or what the other flags describe.
    pub(crate) fn open(&self, metrics: &Metrics) -> Result<OpenedAuthorization> {
        if let Some(path) = &self.authorization_config {
            let file = AuthorizationFile::open(path, metrics.clone())?;
            let authorization = file.authorization();
            return Ok(OpenedAuthorization { authorization, file: Some(file) });
        }
        let webhook = self.authorization_webhook_config_file.as_ref().map(|path| WebhookFlags {
            kubeconfig: path.clone(),
            version: self.authorization_webhook_version.clone(),
            keep_allowed: self.authorization_webhook_cache_authorized_ttl,
            keep_others: self.authorization_webhook_cache_unauthorized_ttl,
        });
        let read =
            AuthorizationConfiguration::from_flags(&self.authorization_mode, webhook.as_ref());
        let authorization = read.and_then(Authorization::new);
        let authorization = authorization.context("the flags --authorization-* are invalid")?;
        Ok(OpenedAuthorization { authorization, file: None })
    }
}
