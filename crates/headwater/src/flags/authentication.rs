//! Flags for credentials of other programs: issuers, webhooks, front proxies, bootstrap tokens.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{ArgAction, Args};
use headwater_server::oidc::config::{AuthenticationConfiguration, OidcFlags};
use headwater_server::pki::{Pair, Secret};
use headwater_server::request_header::RequestHeaderOptions;

use super::parse_duration;

#[derive(Debug, Args)]
#[command(next_help_heading = "Authentication")]
pub(crate) struct AuthenticationFlags {
    /// File with an AuthenticationConfiguration: OIDC issuers, anonymous access; read again when it
    /// changes
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) authentication_config: Option<PathBuf>,

    /// Serve requests without a credential, as far as anonymous users may do something
    #[arg(
        long,
        value_name = "BOOL",
        default_value_t = true,
        action = ArgAction::Set,
        hide_short_help = true
    )]
    pub(crate) anonymous_auth: bool,

    /// Accept bootstrap tokens: Secrets of type bootstrap.kubernetes.io/token in kube-system
    #[arg(long, hide_short_help = true)]
    pub(crate) enable_bootstrap_token_auth: bool,

    /// Kubeconfig of a webhook that reviews tokens
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) authentication_token_webhook_config_file: Option<PathBuf>,

    /// How long answers of that webhook are kept
    #[arg(
        long,
        value_name = "TIME",
        default_value = "2m",
        value_parser = parse_duration,
        hide_short_help = true
    )]
    pub(crate) authentication_token_webhook_cache_ttl: Duration,

    /// Certificate authority of front proxies; enables the flags --requestheader-*
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) requestheader_client_ca_file: Option<PathBuf>,

    /// Common names of front proxies; empty allows every certificate of that authority
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        hide_short_help = true,
        requires = "requestheader_client_ca_file"
    )]
    pub(crate) requestheader_allowed_names: Vec<String>,

    /// Headers with the user
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "X-Remote-User",
        hide_short_help = true
    )]
    pub(crate) requestheader_username_headers: Vec<String>,

    /// Headers with the uid of the user
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "X-Remote-Uid",
        hide_short_help = true
    )]
    pub(crate) requestheader_uid_headers: Vec<String>,

    /// Headers with the groups of the user
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "X-Remote-Group",
        hide_short_help = true
    )]
    pub(crate) requestheader_group_headers: Vec<String>,

    /// Prefixes of headers with further attributes of the user
    #[arg(
        long,
        value_name = "PREFIXES",
        value_delimiter = ',',
        default_value = "X-Remote-Extra-",
        hide_short_help = true
    )]
    pub(crate) requestheader_extra_headers_prefix: Vec<String>,

    /// Client certificate of this server at extension servers (APIService) [default: its own]
    #[arg(long, value_name = "FILE", hide_short_help = true, requires = "proxy_client_key_file")]
    pub(crate) proxy_client_cert_file: Option<PathBuf>,

    /// Key of that certificate
    #[arg(long, value_name = "FILE", hide_short_help = true, requires = "proxy_client_cert_file")]
    pub(crate) proxy_client_key_file: Option<PathBuf>,

    /// URL of an OIDC issuer
    #[arg(
        long,
        value_name = "URL",
        hide_short_help = true,
        requires = "oidc_client_id",
        conflicts_with = "authentication_config"
    )]
    pub(crate) oidc_issuer_url: Option<String>,

    /// Audience of the issuer's tokens
    #[arg(long, value_name = "ID", hide_short_help = true, requires = "oidc_issuer_url")]
    pub(crate) oidc_client_id: Option<String>,

    /// Claim with the name of the user
    #[arg(long, value_name = "CLAIM", default_value = "sub", hide_short_help = true)]
    pub(crate) oidc_username_claim: String,

    /// Prefix of the name; "-" for none [default: the URL of the issuer and "#"]
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_short_help = true,
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    pub(crate) oidc_username_prefix: String,

    /// Claim with the groups of the user
    #[arg(
        long,
        value_name = "CLAIM",
        default_value = "",
        hide_short_help = true,
        hide_default_value = true
    )]
    pub(crate) oidc_groups_claim: String,

    /// Prefix of the groups
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_short_help = true,
        hide_default_value = true
    )]
    pub(crate) oidc_groups_prefix: String,

    /// Claim that must have a value; may be repeated
    #[arg(long, value_name = "CLAIM=VALUE", value_parser = parse_claim, hide_short_help = true)]
    pub(crate) oidc_required_claim: Vec<(String, String)>,

    /// Certificate authority of the issuer [default: those of the system]
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) oidc_ca_file: Option<PathBuf>,
}

fn parse_claim(text: &str) -> Result<(String, String), String> {
    let (claim, value) =
        text.split_once('=').ok_or("must be CLAIM=VALUE, such as hd=example.org")?;
    Ok((claim.to_owned(), value.to_owned()))
}

fn read(path: &PathBuf) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

impl AuthenticationFlags {
    /// The issuer that the flags describe, if they do.
    pub(crate) fn issuer(&self) -> Result<Option<AuthenticationConfiguration>> {
        let (Some(url), Some(client)) = (&self.oidc_issuer_url, &self.oidc_client_id) else {
            return Ok(None);
        };
        let flags = OidcFlags {
            issuer_url: url.clone(),
            client_id: client.clone(),
            username_claim: self.oidc_username_claim.clone(),
            username_prefix: self.oidc_username_prefix.clone(),
            groups_claim: self.oidc_groups_claim.clone(),
            groups_prefix: self.oidc_groups_prefix.clone(),
            required_claims: self.oidc_required_claim.clone(),
            authority: self.oidc_ca_file.as_ref().map(read).transpose()?,
        };
        let made = AuthenticationConfiguration::from_flags(flags);
        Ok(Some(made.context("the flags --oidc-* describe no issuer")?))
    }

    /// The client certificate of this server at extension servers, if it is given.
    pub(crate) fn proxy_client(&self) -> Result<Option<Pair>> {
        let (Some(certificate), Some(key)) =
            (&self.proxy_client_cert_file, &self.proxy_client_key_file)
        else {
            return Ok(None);
        };
        let key = Secret::new(read(key)?);
        Ok(Some(Pair { certificate: read(certificate)?, key }))
    }

    /// How front proxies name users, if any may.
    pub(crate) fn proxies(&self) -> Result<Option<RequestHeaderOptions>> {
        let Some(path) = &self.requestheader_client_ca_file else { return Ok(None) };
        let lower = |names: &[String]| -> Vec<String> {
            let names = names.iter().map(|name| name.trim().to_ascii_lowercase());
            names.filter(|name| !name.is_empty()).collect()
        };
        Ok(Some(RequestHeaderOptions {
            authority: read(path)?,
            allowed_names: self.requestheader_allowed_names.clone(),
            user: lower(&self.requestheader_username_headers),
            uid: lower(&self.requestheader_uid_headers),
            group: lower(&self.requestheader_group_headers),
            extra: lower(&self.requestheader_extra_headers_prefix),
        }))
    }
}
