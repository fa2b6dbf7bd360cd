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
    /// All members of the cluster: http://host:port or https://host:port
    #[arg(
        long,
        value_name = "URL",
        value_delimiter = ',',
        required_if_eq("store", "etcd"),
        hide_short_help = true
    )]
    pub(crate) etcd_endpoints: Vec<String>,

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
    fn a_password_may_contain_colons_and_is_not_printed() {
        let user = parse_user("root:a:b").unwrap();
        assert_eq!((user.name.as_str(), user.password.as_str()), ("root", "a:b"));
        assert!(!format!("{user:?}").contains("a:b"));
        assert!(parse_user("root").is_err() && parse_user(":x").is_err());
    }
}
