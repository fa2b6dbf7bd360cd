//! The error type of this crate, with one variant for each reaction of a caller.

use std::time::Duration;

use crate::health::Health;
use crate::key::Key;
use crate::list_watch;
use crate::version::ResourceVersion;

pub use crate::list_watch::{BoxError, Error as SourceError, StatusError};

/// Why a call of this crate failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The cache is not complete yet: wait for `synced`, or read a snapshot.
    #[error("the informer {informer:?} has not synced yet ({health})")]
    NotSynced {
        /// Its name.
        informer: String,
        /// Its health.
        health: Health,
    },
    /// Some informers did not sync in time.
    #[error("not synced after {after:?}: {}", list_missing(missing))]
    SyncTimeout {
        /// The timeout.
        after: Duration,
        /// The informers that have not synced, and their health.
        missing: Vec<(String, Health)>,
    },
    /// No such object.
    #[error("{resource} {key:?} not found")]
    NotFound {
        /// The resource, such as `pods`.
        resource: String,
        /// The object.
        key: Key,
    },
    /// A deadline passed.
    #[error("{what} took longer than {after:?}")]
    Timeout {
        /// The operation.
        what: String,
        /// The deadline.
        after: Duration,
    },
    /// The server's versions went backwards while waiting for a version.
    #[error("the server's resourceVersions went backwards while waiting for {0}")]
    EpochChanged(ResourceVersion),
    /// A resourceVersion that cannot be ordered.
    #[error("resourceVersion {0:?} cannot be ordered")]
    BadVersion(ResourceVersion),
    /// The informer, factory or queue has ended.
    #[error("{0} has stopped")]
    Stopped(String),
    /// [`Factory::run`](crate::Factory::run) is not running.
    #[error("the factory is not running; call `factory.run(stop)` first")]
    NotRunning,
    /// An index with that name exists.
    #[error("an index {0:?} already exists")]
    IndexExists(String),
    /// No informer of that type was opened; a lister never opens one.
    #[error("no informer for {0}; open one and pass it to the controller")]
    NoInformer(String),
    /// Invalid options or arguments.
    #[error("{0}")]
    Invalid(String),
    /// A list or watch failed.
    #[error(transparent)]
    Source(#[from] list_watch::Error),
    /// A call did not reach the server, or its response was lost.
    #[error("the call to the server failed")]
    Call(#[source] Box<kube::Error>),
    /// The server refused a call.
    #[error("the server refused: {0}")]
    Refused(StatusError),
    /// The controller failed.
    #[error("controller {name:?}: {why}")]
    Controller {
        /// Its name.
        name: String,
        /// The reason.
        why: String,
    },
    /// A task of a manager failed.
    #[error("task {name:?} failed")]
    Part {
        /// Its name.
        name: String,
        /// Its error.
        #[source]
        source: list_watch::BoxError,
    },
    /// Leadership was lost.
    #[error("leadership was lost")]
    LostLeadership,
}

impl Error {
    /// The status with which the server refused a call.
    pub fn status(&self) -> Option<&StatusError> {
        match self {
            Error::Refused(status) => Some(status),
            _ => None,
        }
    }

    fn is_refusal(&self, code: u16, reason: &str) -> bool {
        self.status().is_some_and(|status| {
            status.code == code && (status.reason.is_empty() || status.reason == reason)
        })
    }

    /// Whether the object changed since it was read: read it again and retry.
    pub fn is_conflict(&self) -> bool {
        self.is_refusal(409, "Conflict")
    }

    /// Whether an object with that name exists.
    pub fn is_exists(&self) -> bool {
        self.status().is_some_and(|status| status.reason == "AlreadyExists")
    }

    /// Whether the object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Error::NotFound { .. }) || self.is_refusal(404, "NotFound")
    }
}

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Error {
        match error {
            kube::Error::Api(status) => Error::Refused(StatusError {
                code: status.code,
                reason: status.reason,
                message: status.message,
                ..StatusError::default()
            }),
            error => Error::Call(Box::new(error)),
        }
    }
}

fn list_missing(missing: &[(String, Health)]) -> String {
    let each: Vec<String> =
        missing.iter().map(|(name, health)| format!("{name} ({health})")).collect();
    each.join(", ")
}
