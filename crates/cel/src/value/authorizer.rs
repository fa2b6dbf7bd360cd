//! The values behind the variable `authorizer`: the user, and a check under construction.

use std::fmt;
use std::sync::Arc;

/// Decides authorization checks.
pub trait Authority: fmt::Debug + Send + Sync {
    /// Decides for the user of the request, or for a service account (namespace and name).
    fn decide(&self, account: Option<(&str, &str)>, access: &Access) -> Decision;
}

/// The access to check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Access to a non-resource path.
    Path {
        /// The path, such as `/healthz`.
        path: String,
        /// The method in lower case.
        verb: String,
    },
    /// Access to a resource.
    Resource {
        /// The resource.
        resource: AccessedResource,
        /// The verb, such as `get`.
        verb: String,
    },
}

/// The resource of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the words of an access review")]
pub struct AccessedResource {
    pub group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    pub field_selector: String,
    pub label_selector: String,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Whether the access is allowed.
    pub allowed: bool,
    /// The reason.
    pub reason: String,
    /// The error, if the check failed.
    pub error: Option<String>,
}

/// The user whose access is checked.
#[derive(Clone, Debug)]
pub struct Authorizer {
    pub(crate) authority: Arc<dyn Authority>,
    pub(crate) account: Option<(String, String)>,
    /// The resource of the admission request.
    pub(crate) request: AccessedResource,
}

/// A check under construction.
#[derive(Clone, Debug)]
pub enum Question {
    /// The group is set, the resource is not.
    Group(String),
    /// Everything but the verb is set.
    Path(String),
    /// Everything but the verb is set.
    Resource(AccessedResource),
}
