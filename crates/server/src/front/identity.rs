//! Who is asking: from a connection and a request's headers to a user.
//!
//! River: TLS → **identity** → authorization. Promise: a credential that is presented and wrong
//! is an error, never anonymity; everyone who is known is also in `system:authenticated`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use jiff::Timestamp;
use tokio_util::task::TaskTracker;

use crate::front::token_file::Tokens;

/// The group of everyone with a valid credential.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of everyone without one.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The user without a credential.
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
    /// Whatever else the credential says.
    pub extra: BTreeMap<String, Vec<String>>,
    /// When the credential ends, if it says: streams end with it.
    pub expires: Option<Timestamp>,
}

impl Identity {
    /// Somebody whose credential was good.
    pub fn authenticated(user: impl Into<String>, mut groups: Vec<String>) -> Identity {
        if !groups.iter().any(|group| group == AUTHENTICATED) {
            groups.push(AUTHENTICATED.to_owned());
        }
        Identity { user: user.into(), groups, ..Identity::default() }
    }

    /// Nobody in particular.
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
    /// Where it connects from.
    pub address: SocketAddr,
    /// What the connection itself says about who it is.
    pub transport: Transport,
    /// Where what outlives a request runs (a WebSocket after its upgrade): the listener waits for
    /// it when it stops.
    pub tasks: TaskTracker,
}

impl Peer {
    /// The other end of a connection.
    pub fn new(address: SocketAddr, transport: Transport) -> Peer {
        Peer { address, transport, tasks: TaskTracker::new() }
    }
}

/// What a connection says about who is at its other end.
#[derive(Clone, Debug)]
pub enum Transport {
    /// Plain HTTP on loopback: whoever can reach it is the administrator.
    Loopback,
    /// TLS.
    Tls(ClientCertificate),
}

/// What became of a client certificate.
#[derive(Clone, Debug)]
pub enum ClientCertificate {
    /// None was shown.
    Absent,
    /// It is ours and in time.
    Verified(Arc<Identity>),
    /// It was shown and does not count: signed by somebody else, expired, or without a name.
    Refused,
}

/// A credential was presented and it is not good. (401)
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Unauthorized")]
pub struct Unauthorized;

/// What a request shows of who sends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential<'a> {
    /// It is known whose it is.
    Known(Arc<Identity>),
    /// A bearer token that is in no file; whoever signs tokens may know it.
    Token(&'a str),
}

/// Tells who is asking.
#[derive(Clone, Debug)]
pub struct Authenticator {
    tokens: Tokens,
    admin: Arc<Identity>,
    anonymous: Arc<Identity>,
}

impl Authenticator {
    /// Knows the tokens of a token file, and every client certificate that TLS verified.
    pub fn new(tokens: Tokens) -> Authenticator {
        Authenticator {
            tokens,
            admin: Arc::new(Identity::admin()),
            anonymous: Arc::new(Identity::anonymous()),
        }
    }

    /// Whose token of the token file this is.
    pub fn identify_token(&self, token: &str) -> Option<Arc<Identity>> {
        self.tokens.find(token.as_bytes())
    }

    /// Who sent these headers over this connection. A certificate counts before a token.
    pub fn identify<'a>(
        &self,
        peer: &Peer,
        headers: &'a HeaderMap,
    ) -> Result<Credential<'a>, Unauthorized> {
        if let Transport::Tls(ClientCertificate::Verified(identity)) = &peer.transport {
            return Ok(Credential::Known(identity.clone()));
        }
        if let Some(token) = bearer(headers)? {
            let found = self.identify_token(token);
            return Ok(found.map_or(Credential::Token(token), Credential::Known));
        }
        match &peer.transport {
            Transport::Loopback => Ok(Credential::Known(self.admin.clone())),
            Transport::Tls(ClientCertificate::Refused) => Err(Unauthorized),
            Transport::Tls(_) => Ok(Credential::Known(self.anonymous.clone())),
        }
    }
}

/// The bearer token of a request. Any other use of the header is refused rather than ignored:
/// somebody who shows a credential does not want to be anonymous (B061, B062).
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
            Ok(Credential::Known(identity)) => Some(identity.user.clone()),
            // It is the whole token, and nobody else has signed one.
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
    fn a_refused_certificate_is_unauthorized_unless_a_token_is_good() {
        let refused = || Transport::Tls(ClientCertificate::Refused);
        check(refused(), &[], None);
        check(refused(), &["Bearer bad"], None);
        check(refused(), &["Bearer good"], Some("alice"));
    }

    #[test]
    fn a_verified_certificate_counts_before_a_token() {
        let bob = Arc::new(Identity::authenticated("bob", vec![]));
        let verified = || Transport::Tls(ClientCertificate::Verified(bob.clone()));
        check(verified(), &[], Some("bob"));
        check(verified(), &["Bearer bad"], Some("bob"));
    }

    #[test]
    fn plain_loopback_is_the_administrator_unless_a_token_says_otherwise() {
        check(Transport::Loopback, &[], Some("kubernetes-admin"));
        check(Transport::Loopback, &["Bearer good"], Some("alice"));
        check(Transport::Loopback, &["Bearer bad"], None);
    }

    #[test]
    fn everyone_known_is_authenticated_once() {
        let groups = Identity::authenticated("a", vec![AUTHENTICATED.into()]).groups;
        assert_eq!(groups, [AUTHENTICATED]);
        assert_eq!(Identity::authenticated("a", vec!["g".into()]).groups, ["g", AUTHENTICATED]);
    }
}
