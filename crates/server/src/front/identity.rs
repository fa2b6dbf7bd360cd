//! Authentication: from a connection and a request's headers to a user.
//!
//! River: TLS → **identity** → authorization. Promise: an invalid credential is an error, never
//! anonymous; every authenticated user is also in `system:authenticated`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use jiff::Timestamp;
use tokio_util::task::TaskTracker;

use crate::front::token_file::Tokens;

/// The group of all authenticated users.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of requests without a credential.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The user of requests without a credential.
pub const ANONYMOUS: &str = "system:anonymous";
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
}

impl Peer {
    /// The other end of a connection.
    pub fn new(address: SocketAddr, transport: Transport) -> Peer {
        Peer { address, transport, tasks: TaskTracker::new() }
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
}

/// The request has an invalid credential. (401)
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Unauthorized")]
pub struct Unauthorized;

/// The credential of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential<'a> {
    /// The user is identified.
    Identified(Arc<Identity>),
    /// A bearer token that is not in the token file; it may be a service-account token.
    Token(&'a str),
}

/// Authenticates requests.
#[derive(Clone, Debug)]
pub struct Authenticator {
    tokens: Tokens,
    admin: Arc<Identity>,
    anonymous: Arc<Identity>,
}

impl Authenticator {
    /// Authenticates by token file and by client certificates that TLS has verified.
    pub fn new(tokens: Tokens) -> Authenticator {
        Authenticator {
            tokens,
            admin: Arc::new(Identity::admin()),
            anonymous: Arc::new(Identity::anonymous()),
        }
    }

    /// The user of a token in the token file.
    pub fn identify_token(&self, token: &str) -> Option<Arc<Identity>> {
        self.tokens.find(token.as_bytes())
    }

    /// The credential of a request. A certificate takes precedence over a token.
    pub fn identify<'a>(
        &self,
        peer: &Peer,
        headers: &'a HeaderMap,
    ) -> Result<Credential<'a>, Unauthorized> {
        if let Transport::Tls(ClientCertificate::Verified(identity)) = &peer.transport {
            return Ok(Credential::Identified(identity.clone()));
        }
        if let Some(token) = bearer(headers)? {
            let found = self.identify_token(token);
            return Ok(found.map_or(Credential::Token(token), Credential::Identified));
        }
        match &peer.transport {
            Transport::Loopback => Ok(Credential::Identified(self.admin.clone())),
            Transport::Tls(ClientCertificate::Refused) => Err(Unauthorized),
            Transport::Tls(_) => Ok(Credential::Identified(self.anonymous.clone())),
        }
    }
}

/// The bearer token of a request. Any other use of the header is rejected, not ignored: a client
/// that sends a credential does not want to be anonymous (B061, B062).
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Unauthorized> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Unauthorized);
    }
    let value = value.to_str().map_err(|_| Unauthorized)?;
    let (scheme, token) = value.split_at_checked(7).ok_or(Unauthorized)?;
    let is_token = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    if scheme.eq_ignore_ascii_case("bearer ") && is_token {
        Ok(Some(token))
    } else {
        Err(Unauthorized)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn authenticator() -> Authenticator {
        Authenticator::new(Tokens::parse("good,alice,7,\"dev,ops\"\n").unwrap())
    }

    fn peer(transport: Transport) -> Peer {
        Peer::new("127.0.0.1:1".parse().unwrap(), transport)
    }

    #[track_caller]
    fn check(transport: Transport, authorization: &[&str], expected: Option<&str>) {
        let mut headers = HeaderMap::new();
        for value in authorization {
            headers.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        }
        let found = match authenticator().identify(&peer(transport), &headers) {
            Ok(Credential::Identified(identity)) => Some(identity.user.clone()),
            // Stands for a service-account token.
            Ok(Credential::Token(token)) => (token == "signed").then(|| "robot".to_owned()),
            Err(Unauthorized) => None,
        };
        assert_eq!(found.as_deref(), expected);
    }

    /// S8.3
    #[test]
    fn a_wrong_credential_is_never_anonymous() {
        let tls = || Transport::Tls(ClientCertificate::Absent);
        check(tls(), &["Bearer good"], Some("alice"));
        check(tls(), &["bearer good"], Some("alice"));
        check(tls(), &["Bearer signed"], Some("robot"));
        check(tls(), &[], Some(ANONYMOUS));
        for wrong in [
            "Bearer bad",
            "Bearer",
            "Bearer ",
            "Bearer  good",
            "Bearer good extra",
            "Bearer good ",
            "Basic Z29vZA==",
            "good",
            "",
        ] {
            check(tls(), &[wrong], None);
        }
        check(tls(), &["Bearer good", "Bearer good"], None);
    }

    #[test]
    fn a_rejected_certificate_is_unauthorized_unless_a_token_is_valid() {
        let refused = || Transport::Tls(ClientCertificate::Refused);
        check(refused(), &[], None);
        check(refused(), &["Bearer bad"], None);
        check(refused(), &["Bearer good"], Some("alice"));
    }

    #[test]
    fn a_verified_certificate_takes_precedence_over_a_token() {
        let bob = Arc::new(Identity::authenticated("bob", vec![]));
        let verified = || Transport::Tls(ClientCertificate::Verified(bob.clone()));
        check(verified(), &[], Some("bob"));
        check(verified(), &["Bearer bad"], Some("bob"));
    }

    #[test]
    fn plain_loopback_is_the_administrator_without_a_token() {
        check(Transport::Loopback, &[], Some("kubernetes-admin"));
        check(Transport::Loopback, &["Bearer good"], Some("alice"));
        check(Transport::Loopback, &["Bearer bad"], None);
    }

    #[test]
    fn the_authenticated_group_is_added_once() {
        let groups = Identity::authenticated("a", vec![AUTHENTICATED.into()]).groups;
        assert_eq!(groups, [AUTHENTICATED]);
        assert_eq!(Identity::authenticated("a", vec!["g".into()]).groups, ["g", AUTHENTICATED]);
    }
}
