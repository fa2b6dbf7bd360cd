//! Users, and what a connection proves about them.
//!
//! River: TLS, headers → **identity** → authorization. Promise: every authenticated user is also in
//! `system:authenticated`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use jiff::Timestamp;
use tokio_util::task::TaskTracker;

/// The group of all authenticated users.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of requests without a credential.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The user of requests without a credential.
pub const ANONYMOUS: &str = "system:anonymous";
/// The group of the kubelets of nodes.
pub const NODES: &str = "system:nodes";
/// The prefix of the names of kubelets; the name of their node follows.
pub const NODE_PREFIX: &str = "system:node:";
/// The group that may do everything.
pub const MASTERS: &str = "system:masters";

/// A user, as authorization and `selfsubjectreviews` see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The name.
    pub user: String,
    /// A stable id, where the credential has one.
    pub uid: String,
    /// The groups, without repeats.
    pub groups: Vec<String>,
    /// Other attributes of the credential.
    pub extra: BTreeMap<String, Vec<String>>,
    /// When the credential expires: streams end then.
    pub expires: Option<Timestamp>,
}

impl Identity {
    /// A user with a valid credential.
    pub fn authenticated(user: impl Into<String>, mut groups: Vec<String>) -> Identity {
        if !groups.iter().any(|group| group == AUTHENTICATED) {
            groups.push(AUTHENTICATED.to_owned());
        }
        Identity { user: user.into(), groups, ..Identity::default() }
    }

    /// The anonymous user.
    pub fn anonymous() -> Identity {
        Identity {
            user: ANONYMOUS.to_owned(),
            groups: vec![UNAUTHENTICATED.to_owned()],
            ..Identity::default()
        }
    }

    /// The administrator.
    pub fn admin() -> Identity {
        Identity::authenticated("kubernetes-admin", vec![MASTERS.to_owned()])
    }

    /// Whether no credential was presented.
    pub fn is_anonymous(&self) -> bool {
        self.user == ANONYMOUS
    }

    /// The name of the node whose kubelet this user is; `None` for all other users.
    pub fn node(&self) -> Option<&str> {
        self.user.strip_prefix(NODE_PREFIX).filter(|_| self.is_in(NODES))
    }

    /// Whether the user belongs to a group.
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|held| held == group)
    }
}

/// The other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The remote address.
    pub address: SocketAddr,
    /// The transport, with the client certificate.
    pub transport: Transport,
    /// Tasks that outlive a request (a WebSocket after its upgrade): the listener waits for them
    /// when it stops.
    pub tasks: TaskTracker,
    identified: Arc<AtomicBool>,
}

impl Peer {
    /// The other end of a connection.
    pub fn new(address: SocketAddr, transport: Transport) -> Peer {
        Peer { address, transport, tasks: TaskTracker::new(), identified: Arc::default() }
    }

    /// Records that a client was identified on this connection.
    pub fn mark_identified(&self) {
        if !self.is_identified() {
            self.identified.store(true, Relaxed);
        }
    }

    /// Whether a client was identified on this connection; other connections have small limits.
    pub fn is_identified(&self) -> bool {
        self.identified.load(Relaxed)
    }
}

/// How a connection is protected, and what it proves about the client.
#[derive(Clone, Debug)]
pub enum Transport {
    /// Plain HTTP on loopback: every client is the administrator.
    Loopback,
    /// TLS.
    Tls(ClientCertificate),
}

/// The result of verifying a client certificate.
#[derive(Clone, Debug)]
pub enum ClientCertificate {
    /// The client sent none.
    Absent,
    /// The certificate is valid.
    Verified(Arc<Identity>),
    /// The certificate is invalid: from another authority, expired, or without a name.
    Refused,
    /// A front proxy's certificate, from the authority of proxies (S8.19).
    Proxy {
        /// The common name.
        name: Arc<str>,
        /// What the same certificate proves to the authority of clients.
        own: Box<ClientCertificate>,
    },
}

/// The request has an invalid credential. (401)
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Unauthorized")]
pub struct Unauthorized;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_authenticated_group_is_added_once() {
        let groups = Identity::authenticated("a", vec![AUTHENTICATED.into()]).groups;
        assert_eq!(groups, [AUTHENTICATED]);
        assert_eq!(Identity::authenticated("a", vec!["g".into()]).groups, ["g", AUTHENTICATED]);
    }
}
