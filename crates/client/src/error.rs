//! What can go wrong, by what the caller does differently.

use std::time::Duration;

use crate::health::Health;
use crate::key::Key;
use crate::list_watch::{self, StatusError};
use crate::version::ResourceVersion;

/// Why a call of this crate failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The cache has not seen its first state: wait for `synced`, or use `allow_unsynced`.
    #[error("the informer {informer:?} has not synced yet ({health})")]
    NotSynced {
        /// Which one.
        informer: String,
        /// How it is doing.
        health: Health,
    },
    /// Some informers did not sync in time.
    #[error("not synced after {after:?}: {}", list_missing(missing))]
    SyncTimeout {
        /// How long was waited.
        after: Duration,
        /// Who is missing, and why.
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
    /// The deadline passed.
    #[error("{what} took longer than {after:?}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        after: Duration,
    },
    /// The server's versions went backwards while a version was waited for.
    #[error("the server's resourceVersions went backwards; {0} may never come")]
    EpochChanged(ResourceVersion),
    /// A resourceVersion that cannot be compared with others.
    #[error("{0:?} is not a resourceVersion that can be ordered")]
    BadVersion(ResourceVersion),
    /// The informer, factory or queue has ended.
    #[error("{0} has stopped")]
    Stopped(String),
    /// Nobody drives the factory.
    #[error("the factory is not being run: drive `factory.run(stop)` first")]
    NotRunning,
    /// It can only be set before the start.
    #[error("{0} can only be set before the informer runs")]
    AlreadyStarted(&'static str),
    /// An index of that name exists.
    #[error("an index {0:?} exists already")]
    IndexExists(String),
    /// No index of that name, or not of that type.
    #[error("no index {0:?} with values of that type")]
    UnknownIndex(String),
    /// The subscription belongs to another informer.
    #[error("the subscription {0:?} belongs to another informer")]
    ForeignSubscription(String),
    /// Nobody opened an informer for that type; a lister never opens one.
    #[error("no informer for {0} was opened")]
    NoInformer(String),
    /// There are more objects than the author of the program expected.
    #[error("{resource} has about {count} objects, more than the {max} allowed here")]
    TooManyObjects {
        /// The resource.
        resource: String,
        /// How many there are.
        count: u64,
        /// How many were expected at most.
        max: u64,
    },
    /// Options that contradict themselves.
    #[error("{0}")]
    Invalid(String),
    /// A list or watch failed.
    #[error(transparent)]
    Source(#[from] list_watch::Error),
    /// A call to the server failed on the way.
    #[error("the call to the server failed")]
    Call(#[source] Box<kube::Error>),
    /// The server refused a call.
    #[error("the server refused: {0}")]
    Refused(StatusError),
    /// The controller gave up.
    #[error("controller {name:?}: {why}")]
    Controller {
        /// Which one.
        name: String,
        /// Why.
        why: String,
    },
    /// A part of a manager failed.
    #[error("part {name:?} failed")]
    Part {
        /// Which one.
        name: String,
        /// How.
        #[source]
        source: list_watch::BoxError,
    },
    /// Leadership was lost.
    #[error("leadership was lost")]
    LostLeadership,
}

impl Error {
    /// The status the server refused a call with.
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

    /// Somebody wrote first: read again and retry.
    pub fn is_conflict(&self) -> bool {
        self.is_refusal(409, "Conflict")
    }

    /// An object of that name exists.
    pub fn is_exists(&self) -> bool {
        self.status().is_some_and(|status| status.reason == "AlreadyExists")
    }

    /// There is no such object.
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
