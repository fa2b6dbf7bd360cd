//! The options of the store over etcd.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use headwater_api::{Clock, SystemClock};
use headwater_store::key::ROOT;
use headwater_store::store::VALUE_MAX;

use crate::client::Login;
use crate::member::Tls;

/// How to reach an etcd cluster and how to use it.
#[derive(Clone)]
pub struct Options {
    /// `http://host:port` or `https://host:port` of each member.
    pub endpoints: Vec<String>,
    /// The prefix of our keys in etcd.
    pub prefix: String,
    /// The prefix of the store's keys; in etcd, `prefix` replaces it.
    pub root: String,
    /// Required for `https`.
    pub tls: Option<Tls>,
    /// Required if authentication is enabled in etcd.
    pub login: Option<Login>,
    /// The maximum duration of a call.
    pub deadline: Duration,
    /// How often this replica tries to compact; `None` is never.
    pub compaction: Option<Duration>,
    /// The largest value a write may carry, in bytes. etcd has its own limit.
    pub value_max: usize,
    /// Whether etcd sends progress notifications in order with events; `None` decides by etcd's
    /// version. If not, we watch all keys in etcd, so that every revision has an event.
    pub trusts_progress: Option<bool>,
    /// Bytes of recent changes kept in memory, so that watchers do not read them from etcd.
    pub history_bytes_max: usize,
    /// The time of day, for the times of revisions: etcd keeps none.
    pub clock: Arc<dyn Clock>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { endpoints, prefix, login, .. } = self;
        let mut shown = f.debug_struct("Options");
        shown.field("endpoints", endpoints).field("prefix", prefix).field("login", login);
        shown.finish_non_exhaustive()
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            endpoints: Vec::new(),
            prefix: "/registry".to_owned(),
            root: ROOT.to_owned(),
            tls: None,
            login: None,
            deadline: Duration::from_secs(5),
            compaction: Some(Duration::from_secs(300)),
            value_max: VALUE_MAX,
            trusts_progress: None,
            history_bytes_max: 32 << 20,
            clock: Arc::new(SystemClock),
        }
    }
}
