//! Flags of `serve --store etcd`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::parse_duration;

/// The storage engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StoreKind {
    /// A database in the data directory
    Embedded,
    /// An etcd cluster, which several servers can share
    Etcd,
}

/// Flags of the etcd engine. Shown by `--help`, not by `-h`.
#[derive(Debug, Args)]
#[command(next_help_heading = "With --store etcd")]
pub(crate) struct EtcdFlags {
    /// All members of the cluster: https://host:port, or http://host:port on this machine
    #[arg(
        long,
        value_name = "URL",
        value_delimiter = ',',
        required_if_eq("store", "etcd"),
        hide_short_help = true
    )]
    pub(crate) etcd_endpoints: Vec<String>,

    /// Allow http to an etcd on another machine: everybody on the network between can read and change
    /// all objects and the password
    #[arg(long, hide_short_help = true)]
    pub(crate) etcd_allow_plain_http: bool,

    /// Prefix of all keys in etcd
    #[arg(long, value_name = "PREFIX", default_value = "/registry", hide_short_help = true)]
    pub(crate) etcd_prefix: String,

    /// Certificate authority of etcd, as PEM; required for https
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) etcd_cacert: Option<PathBuf>,

    /// Client certificate for etcd, as PEM
    #[arg(long, value_name = "FILE", requires = "etcd_key", hide_short_help = true)]
    pub(crate) etcd_cert: Option<PathBuf>,

    /// Key of the client certificate, as PEM
    #[arg(long, value_name = "FILE", requires = "etcd_cert", hide_short_help = true)]
    pub(crate) etcd_key: Option<PathBuf>,

    /// User of etcd; prefer the environment variable: other users can see command lines
    #[arg(
        long,
        value_name = "NAME:PASSWORD",
        env = "HEADWATER_ETCD_USER",
        hide_env_values = true,
        value_parser = parse_user,
        hide_short_help = true
    )]
    pub(crate) etcd_user: Option<EtcdUser>,

    /// Interval at which one of the servers compacts etcd; 0s disables compaction
    #[arg(
        long,
        value_name = "TIME",
        default_value = "5m",
        value_parser = parse_duration,
        hide_short_help = true
    )]
    pub(crate) etcd_compaction_interval: Duration,

    /// Timeout of a request to etcd
    #[arg(
        long,
        value_name = "TIME",
        default_value = "5s",
        value_parser = parse_duration,
        hide_short_help = true
    )]
    pub(crate) etcd_timeout: Duration,
}

impl EtcdFlags {
    /// Rejects connections that others on the network can read.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.etcd_allow_plain_http {
            return Ok(());
        }
        match self.etcd_endpoints.iter().find(|endpoint| is_plain_http_to_elsewhere(endpoint)) {
            None => Ok(()),
            Some(endpoint) => Err(format!(
                "{endpoint} is not on this machine: use https with --etcd-cacert, or pass \
                 --etcd-allow-plain-http if everybody on that network may read and change all objects"
            )),
        }
    }
}

fn is_plain_http_to_elsewhere(endpoint: &str) -> bool {
    let Ok(uri) = endpoint.parse::<http::Uri>() else { return false };
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_loopback = match host.parse::<std::net::IpAddr>() {
        Ok(ip) => ip.to_canonical().is_loopback(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    };
    uri.scheme() == Some(&http::uri::Scheme::HTTP) && !is_loopback
}

/// A name and a password; the password is not printed.
#[derive(Clone)]
pub(crate) struct EtcdUser {
    pub(crate) name: String,
    pub(crate) password: String,
}

impl std::fmt::Debug for EtcdUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdUser").field("name", &self.name).finish_non_exhaustive()
    }
}

fn parse_user(text: &str) -> Result<EtcdUser, String> {
    match text.split_once(':') {
        Some((name, password)) if !name.is_empty() => {
            Ok(EtcdUser { name: name.to_owned(), password: password.to_owned() })
        }
        _ => Err("must be NAME:PASSWORD".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_for_this_machine() {
        for (endpoint, is_refused) in [
            ("http://127.0.0.1:2379", false),
            ("http://127.8.8.8:2379", false),
            ("http://[::1]:2379", false),
            ("http://[::ffff:127.0.0.1]:2379", false),
            ("http://LocalHost:2379", false),
            ("https://a.example:2379", false),
            ("http://a.example:2379", true),
            ("HTTP://10.0.0.1:2379", true),
            ("http://localhost.example:2379", true),
            ("http://[fd00::1]:2379", true),
        ] {
            assert_eq!(is_plain_http_to_elsewhere(endpoint), is_refused, "{endpoint}");
        }
    }

    #[test]
    fn a_password_may_contain_colons_and_is_not_printed() {
        let user = parse_user("root:a:b").unwrap();
        assert_eq!((user.name.as_str(), user.password.as_str()), ("root", "a:b"));
        assert!(!format!("{user:?}").contains("a:b"));
        assert!(parse_user("root").is_err() && parse_user(":x").is_err());
    }
}
