//! A world: a server on which a test writes objects and causes faults.
//!
//! There are two, [`Scripted`] and [`OverHttp`]. Scenarios use only the trait, so they run against
//! the scripted source and against a real server over HTTP.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use headwater_client::script::ListWatch;
use k8s_openapi::api::core::v1::ConfigMap;
use tokio::sync::watch;
use tokio::time::Instant;

mod http;
mod scripted;

pub use self::http::OverHttp;
pub use self::scripted::Scripted;

/// The namespace of all objects.
pub const NAMESPACE: &str = "default";

/// A server and its connection to the informer, both controlled by a test.
pub trait World: Sized {
    async fn open() -> Self;

    /// The source of the informer under test.
    fn source(&self, begin: Begin) -> Arc<dyn ListWatch<Object = ConfigMap>>;

    /// Creates or updates an object of [`NAMESPACE`].
    async fn put(&mut self, name: &str, value: &str);

    async fn delete(&mut self, name: &str);

    /// Updates existing objects alternately, `count` times in total.
    async fn churn(&mut self, names: &[String], count: usize);

    /// All objects and their versions.
    async fn truth(&mut self) -> BTreeMap<String, String>;

    /// All writes so far.
    fn written(&self) -> &[Written];

    /// All requests of the informer so far.
    fn asked(&self) -> watch::Receiver<Vec<Asked>>;

    /// Breaks all connections.
    fn cut(&self);

    /// Breaks the connection in the middle of the next frame.
    fn cut_in_next_frame(&self);

    /// Sends bytes that are not a frame on the open watch.
    fn garbage(&self);

    /// Open connections transfer nothing and are not closed; new ones work.
    fn silence(&self);

    /// Breaks all connections and refuses new ones until [`World::up`].
    fn down(&self);

    fn up(&self);

    /// Refuses the next request of a kind.
    fn refuse(&self, kind: Kind, refusal: Refusal);

    /// Stops the server and starts another with the same data, as an upgrade does.
    async fn restart(&mut self);

    /// As [`World::restart`], and compacts the history: a watch that resumes receives 410 in the
    /// stream.
    async fn forget(&mut self);
}

/// How the informer reads its initial state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Begin {
    WatchList,
    List,
}

/// One write of the test.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    pub name: String,
    /// `None` for a deletion.
    pub version: Option<String>,
}

impl Written {
    pub fn put(name: &str, version: &str) -> Written {
        Written { name: name.to_owned(), version: Some(version.to_owned()) }
    }

    pub fn deleted(name: &str) -> Written {
        Written { name: name.to_owned(), version: None }
    }
}

/// One request of the informer.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub kind: Kind,
    pub at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    List,
    WatchList,
    Watch,
}

/// A status with which a server refuses a request.
#[derive(Clone, Copy, Debug)]
pub struct Refusal {
    pub code: u16,
    pub reason: &'static str,
    /// The reason of its only cause.
    pub cause: Option<&'static str>,
    pub retry_after: Option<Duration>,
}

pub const EXPIRED: Refusal =
    Refusal { code: 410, reason: "Expired", cause: None, retry_after: None };

pub const TOO_MANY: Refusal = Refusal {
    code: 429,
    reason: "TooManyRequests",
    cause: None,
    retry_after: Some(Duration::from_secs(30)),
};

pub const TOO_LARGE: Refusal = Refusal {
    code: 504,
    reason: "Timeout",
    cause: Some("ResourceVersionTooLarge"),
    retry_after: Some(Duration::from_secs(1)),
};

/// Removes the refusal for a request of this kind.
pub fn take_refusal(refusals: &mut Vec<(Kind, Refusal)>, kind: Kind) -> Option<Refusal> {
    let at = refusals.iter().position(|(wanted, _)| *wanted == kind)?;
    Some(refusals.remove(at).1)
}
