//! The variable `authorizer`: who asks, and the question on its way to `check`.

use std::fmt;
use std::sync::Arc;

/// Who knows what somebody may do.
pub trait Authority: fmt::Debug + Send + Sync {
    /// Whether the user of the request, or this service account (namespace and name), may do this.
    fn decide(&self, account: Option<(&str, &str)>, access: &Access) -> Decision;
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Something with a path that is no resource.
    Path {
        /// Such as `/healthz`.
        path: String,
        /// The method, in small letters.
        verb: String,
    },
    /// Something with objects.
    Resource {
        /// Which.
        resource: Resource,
        /// Such as `get`.
        verb: String,
    },
}

/// Objects that something is to be done with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the words of an access review")]
pub struct Resource {
    pub group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    pub field_selector: String,
    pub label_selector: String,
}

/// What was decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// It may be done.
    pub allowed: bool,
    /// Why.
    pub reason: String,
    /// That nobody could tell, and why.
    pub error: Option<String>,
}

/// Somebody who may or may not.
#[derive(Clone, Debug)]
pub struct Authorizer {
    pub(crate) authority: Arc<dyn Authority>,
    pub(crate) account: Option<(String, String)>,
    /// What the request itself is about.
    pub(crate) request: Resource,
}

/// A question on its way.
#[derive(Clone, Debug)]
pub enum Question {
    /// The group is told, the resource is not.
    Group(String),
    /// All but the verb is told.
    Path(String),
    /// All but the verb is told.
    Resource(Resource),
}
