//! Authentication of requests: each kind of credential in turn.
//!
//! River: TLS, headers → **authenticator** → identity. Promise: an invalid credential is an error, never
//! anonymous; a token is tried as each kind in a fixed order, and the first that knows it decides.

use std::sync::Arc;

use headwater_cache::Cache;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use jiff::Timestamp;

use crate::front::bootstrap_token;
use crate::front::identity::{ClientCertificate, Identity, Peer, Transport, Unauthorized};
use crate::front::oidc::KeyFetcher;
use crate::front::oidc::file::Authentication;
use crate::front::request_header::RequestHeaderOptions;
use crate::front::service_account::{AuthenticatedToken, ISSUER, Refused, ServiceAccounts};
use crate::front::token_file::Tokens;
use crate::front::token_webhook::TokenWebhook;
use crate::outgoing::Caller;

/// The credential of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential<'a> {
    /// The user is identified.
    Identified(Arc<Identity>),
    /// A bearer token that is not in the token file.
    Token(&'a str),
}

/// Authenticates requests.
#[derive(Clone, Debug)]
pub struct Authenticator {
    tokens: Tokens,
    authentication: Authentication,
    has_bootstrap_tokens: bool,
    has_anonymous: bool,
    has_administrator: bool,
    webhook: Option<Arc<TokenWebhook>>,
    proxies: Option<Arc<RequestHeaderOptions>>,
    admin: Arc<Identity>,
    anonymous: Arc<Identity>,
}

/// What tokens are verified with.
#[derive(Clone, Copy)]
pub(crate) struct TokenContext<'a> {
    pub(crate) accounts: &'a ServiceAccounts,
    pub(crate) cache: &'a Cache,
    pub(crate) caller: &'a Caller,
    pub(crate) now: Timestamp,
}

impl Authenticator {
    /// Authenticates by token file, service-account token, and client certificates that TLS has
    /// verified.
    pub fn new(tokens: Tokens) -> Authenticator {
        Authenticator {
            tokens,
            authentication: Authentication::default(),
            has_bootstrap_tokens: false,
            has_anonymous: true,
            has_administrator: true,
            webhook: None,
            proxies: None,
            admin: Arc::new(Identity::admin()),
            anonymous: Arc::new(Identity::anonymous()),
        }
    }

    /// Also by OpenID Connect; and limits anonymous users.
    #[must_use]
    pub fn with_authentication(mut self, authentication: Authentication) -> Authenticator {
        self.authentication = authentication;
        self
    }

    /// Also by bootstrap token.
    #[must_use]
    pub fn with_bootstrap_tokens(mut self) -> Authenticator {
        self.has_bootstrap_tokens = true;
        self
    }

    /// Turns away requests without a credential.
    #[must_use]
    pub fn without_anonymous(mut self) -> Authenticator {
        self.has_anonymous = false;
        self
    }

    /// Does not take clients on loopback for the administrator.
    #[must_use]
    pub fn without_administrator(mut self) -> Authenticator {
        self.has_administrator = false;
        self
    }

    /// Also by webhook.
    #[must_use]
    pub fn with_webhook(mut self, webhook: TokenWebhook) -> Authenticator {
        self.webhook = Some(Arc::new(webhook));
        self
    }

    /// Also by the headers of a front proxy.
    #[must_use]
    pub fn with_proxies(mut self, proxies: RequestHeaderOptions) -> Authenticator {
        self.proxies = Some(Arc::new(proxies));
        self
    }

    /// The credential of a request for a path. The headers of a proxy take precedence over a
    /// certificate, and that over a token.
    pub fn identify<'a>(
        &self,
        peer: &Peer,
        path: &str,
        headers: &'a HeaderMap,
    ) -> Result<Credential<'a>, Unauthorized> {
        let mut certificate = match &peer.transport {
            Transport::Tls(certificate) => Some(certificate),
            Transport::Loopback => None,
        };
        if let Some(ClientCertificate::Proxy { name, own }) = certificate {
            let proxies = self.proxies.as_ref();
            if let Some(user) = proxies.and_then(|proxies| proxies.identify(name, headers)) {
                return Ok(Credential::Identified(user));
            }
            certificate = Some(own);
        }
        if let Some(ClientCertificate::Verified(identity)) = certificate {
            return Ok(Credential::Identified(identity.clone()));
        }
        if let Some(token) = bearer(headers)? {
            let found = self.tokens.find(token.as_bytes());
            return Ok(found.map_or(Credential::Token(token), Credential::Identified));
        }
        match certificate {
            None if self.has_administrator => Ok(Credential::Identified(self.admin.clone())),
            Some(ClientCertificate::Refused) => Err(Unauthorized),
            _ if !self.has_anonymous => Err(Unauthorized),
            _ => match &self.authentication.0.load().anonymous {
                Some(access) if !access.allows(path) => Err(Unauthorized),
                _ => Ok(Credential::Identified(self.anonymous.clone())),
            },
        }
    }

    /// The user of a bearer token that is valid for one of these audiences; no audience means this
    /// server.
    pub(crate) async fn identify_token(
        &self,
        token: &str,
        audiences: &[String],
        context: TokenContext<'_>,
    ) -> Result<AuthenticatedToken, Refused> {
        let own = [ISSUER.to_owned()];
        let audiences = if audiences.is_empty() { &own } else { audiences };
        // Most kinds of tokens know no audience: they are for this server.
        let is_for_us = audiences.contains(&own[0]);
        let for_us = |identity| AuthenticatedToken { identity, audiences: own.to_vec() };
        if is_for_us && let Some(identity) = self.tokens.find(token.as_bytes()) {
            return Ok(for_us(identity));
        }
        if let Some(upstream) = self.webhook.as_ref().filter(|webhook| webhook.is_upstream()) {
            let with = (context.caller, context.cache);
            let user = Box::pin(upstream.identify(token, &own, ISSUER, with)).await;
            return user.map(|user| for_us(user.identity)).ok_or(Refused::Foreign);
        }
        match context.accounts.identify(token, audiences).await {
            Err(Refused::Foreign) => {}
            decided => return decided,
        }
        let TokenContext { cache, caller, now, .. } = context;
        if is_for_us {
            let known = self.has_bootstrap_tokens;
            let found = known.then(|| bootstrap_token::identify(token, cache, now)).flatten();
            if let Some(identity) = found {
                return Ok(for_us(identity));
            }
            let issuers = self.authentication.0.load_full();
            let fetcher = KeyFetcher { caller, cache };
            match Box::pin(issuers.identify(token, fetcher, now)).await {
                Some(Ok(identity)) => return Ok(for_us(identity)),
                Some(Err(why)) => {
                    tracing::info!(why, "OIDC token refused");
                    return Err(Refused::Invalid(format!("oidc: {why}")));
                }
                None => {}
            }
        }
        if let Some(webhook) = &self.webhook {
            let asked = webhook.identify(token, audiences, ISSUER, (caller, cache));
            if let Some(user) = Box::pin(asked).await {
                let (identity, audiences) = (user.identity, user.audiences);
                return Ok(AuthenticatedToken { identity, audiences });
            }
        }
        Err(Refused::Foreign)
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
    use http::{HeaderName, HeaderValue};

    use super::*;
    use crate::front::identity::ANONYMOUS;
    use crate::front::oidc::config::AuthenticationConfiguration;

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
        let found = match authenticator().identify(&peer(transport), "/api", &headers) {
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

    fn smuggled() -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in [("X-Remote-User", "root"), ("X-Remote-Group", "system:masters")] {
            headers.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_static(value));
        }
        headers
    }

    /// S8.19, B064
    #[test]
    fn headers_of_a_proxy_count_only_from_a_proxy() {
        let options = RequestHeaderOptions {
            authority: String::new(),
            allowed_names: vec!["proxy".to_owned()],
            user: vec!["x-remote-user".to_owned()],
            uid: Vec::new(),
            group: vec!["x-remote-group".to_owned()],
            extra: Vec::new(),
        };
        let with = authenticator().with_proxies(options);
        let bob = || ClientCertificate::Verified(Arc::new(Identity::authenticated("bob", vec![])));
        let proxy = |name: &str, own: ClientCertificate| ClientCertificate::Proxy {
            name: name.into(),
            own: Box::new(own),
        };
        let user = |authenticator: &Authenticator, certificate: ClientCertificate| {
            let peer = peer(Transport::Tls(certificate));
            match authenticator.identify(&peer, "/api", &smuggled()) {
                Ok(Credential::Identified(identity)) => Some(identity.user.clone()),
                _ => None,
            }
        };
        let named = |name: &str| Some(name.to_owned());
        assert_eq!(user(&with, proxy("proxy", ClientCertificate::Refused)), named("root"));
        assert_eq!(user(&with, proxy("proxy", bob())), named("root"));
        for (certificate, expected) in [
            (ClientCertificate::Absent, named(ANONYMOUS)),
            (bob(), named("bob")),
            (ClientCertificate::Refused, None),
            (proxy("other", ClientCertificate::Refused), None),
            (proxy("other", bob()), named("bob")),
        ] {
            assert_eq!(user(&with, certificate), expected);
        }
        // Without a configuration no certificate is one of a proxy.
        assert_eq!(user(&authenticator(), proxy("proxy", bob())), named("bob"));
    }

    /// S8.16
    #[test]
    fn anonymous_users_can_be_limited_or_turned_away() {
        let file = |anonymous: &str| {
            let text = format!(
                "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n\
                 anonymous: {anonymous}\n"
            );
            let read = AuthenticationConfiguration::parse(text.as_bytes()).unwrap();
            authenticator().with_authentication(Authentication::new(read).unwrap())
        };
        let is_served = |authenticator: &Authenticator, path: &str, token: &'static str| {
            let mut headers = HeaderMap::new();
            if !token.is_empty() {
                headers.insert(AUTHORIZATION, HeaderValue::from_static(token));
            }
            let peer = peer(Transport::Tls(ClientCertificate::Absent));
            authenticator.identify(&peer, path, &headers).is_ok()
        };
        let limited = file("{enabled: true, conditions: [{path: /livez}]}");
        assert!(is_served(&limited, "/livez", "") && !is_served(&limited, "/readyz", ""));
        assert!(is_served(&limited, "/readyz", "Bearer good"));
        let closed = file("{enabled: false}");
        assert!(!is_served(&closed, "/livez", "") && is_served(&closed, "/api", "Bearer good"));
        assert!(is_served(&file("{enabled: true}"), "/readyz", ""));
        let closed = authenticator().without_anonymous();
        assert!(!is_served(&closed, "/livez", "") && is_served(&closed, "/api", "Bearer good"));
    }
}
