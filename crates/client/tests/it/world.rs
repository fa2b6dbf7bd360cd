//! A world: somewhere to list and watch, where a test writes objects and breaks things.
//!
//! There are two, [`Scripted`] and [`OverHttp`]. A scenario is written once and sees only the trait,
//! so whatever it asserts holds for the scripted source and for a real server over HTTP.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use headwater_client::list_watch::ListWatch;
use k8s_openapi::api::core::v1::ConfigMap;
use tokio::sync::watch;
use tokio::time::Instant;

mod http;
mod scripted;

pub use self::http::OverHttp;
pub use self::scripted::Scripted;

/// Where every object of a world lives.
pub const NAMESPACE: &str = "default";

/// A server's state and its way to the informer, both under the control of a test.
pub trait World: Sized {
    async fn open() -> Self;

    /// What the informer under test lists and watches.
    fn source(&self, begin: Begin) -> Arc<dyn ListWatch<Object = ConfigMap>>;

    /// Creates or updates an object of [`NAMESPACE`].
    async fn put(&mut self, name: &str, value: &str);

    async fn delete(&mut self, name: &str);

    /// Updates objects that exist, one after the other and over again, so many times in all.
    async fn churn(&mut self, names: &[String], count: usize);

    /// Every object there is, with its version.
    async fn truth(&mut self) -> BTreeMap<String, String>;

    /// Every write so far.
    fn written(&self) -> &[Written];

    /// Every request of the informer so far.
    fn asked(&self) -> watch::Receiver<Vec<Asked>>;

    /// Breaks every connection.
    fn cut(&self);

    /// Breaks the connection in the middle of the next frame.
    fn cut_in_next_frame(&self);

    /// Puts bytes on the open watch that are no frame.
    fn garbage(&self);

    /// The open connections carry nothing any more and are not closed; new ones work.
    fn silence(&self);

    /// Breaks every connection and answers nobody until [`World::up`].
    fn down(&self);

    fn up(&self);

    /// Refuses the next request of a kind.
    fn refuse(&self, kind: Kind, refusal: Refusal);

    /// Ends the server as an upgrade does; another one goes on with the same data.
    async fn restart(&mut self);

    /// As [`World::restart`], and the history is gone: whoever resumes is told 410 in the stream.
    async fn forget(&mut self);
}

/// How the informer gets its first state.
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

/// A refusal as servers write it.
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

/// Takes the refusal that waits for a request of this kind.
pub fn take_refusal(refusals: &mut Vec<(Kind, Refusal)>, kind: Kind) -> Option<Refusal> {
    let at = refusals.iter().position(|(wanted, _)| *wanted == kind)?;
    Some(refusals.remove(at).1)
}
