//! Flags of `serve --store etcd`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::parse_duration;

/// Where objects are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StoreKind {
    /// In the data directory of this server
    Embedded,
    /// In an etcd cluster, which any number of servers may share
    Etcd,
}

/// How etcd is reached. Shown by `--help`, not by `-h`.
#[derive(Debug, Args)]
#[command(next_help_heading = "With --store etcd")]
pub(crate) struct Etcd {
    /// Every member of the cluster: http://host:port or https://host:port
    #[arg(
        long,
        value_name = "URL",
        value_delimiter = ',',
        required_if_eq("store", "etcd"),
        hide_short_help = true
    )]
    pub(crate) etcd_endpoints: Vec<String>,

    /// What keys in etcd begin with
    #[arg(long, value_name = "PREFIX", default_value = "/registry", hide_short_help = true)]
    pub(crate) etcd_prefix: String,

    /// The certificate authority of etcd, as PEM; needed for https
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) etcd_cacert: Option<PathBuf>,

    /// A client certificate for etcd, as PEM
    #[arg(long, value_name = "FILE", requires = "etcd_key", hide_short_help = true)]
    pub(crate) etcd_cert: Option<PathBuf>,

    /// The key of the client certificate, as PEM
    #[arg(long, value_name = "FILE", requires = "etcd_cert", hide_short_help = true)]
    pub(crate) etcd_key: Option<PathBuf>,

    /// A user of etcd; better in the environment than on the command line, which others can see
    #[arg(
        long,
        value_name = "NAME:PASSWORD",
        env = "HEADWATER_ETCD_USER",
        hide_env_values = true,
        value_parser = parse_user,
        hide_short_help = true
    )]
    pub(crate) etcd_user: Option<User>,

    /// How often one of the servers makes etcd forget old history; 0s is never
    #[arg(
        long,
        value_name = "TIME",
        default_value = "5m",
        value_parser = parse_duration,
        hide_short_help = true
    )]
    pub(crate) etcd_compaction_interval: Duration,

    /// How long any question to etcd may take
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
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) password: String,
}

impl std::fmt::Debug for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("User").field("name", &self.name).finish_non_exhaustive()
    }
}

fn parse_user(text: &str) -> Result<User, String> {
    match text.split_once(':') {
        Some((name, password)) if !name.is_empty() => {
            Ok(User { name: name.to_owned(), password: password.to_owned() })
        }
        _ => Err("write it as NAME:PASSWORD".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_may_have_colons_and_is_not_printed() {
        let user = parse_user("root:a:b").unwrap();
        assert_eq!((user.name.as_str(), user.password.as_str()), ("root", "a:b"));
        assert!(!format!("{user:?}").contains("a:b"));
        assert!(parse_user("root").is_err() && parse_user(":x").is_err());
    }
}
