//! OpenID Connect: users of other issuers, by signed tokens (S8.16).
//!
//! River: bearer token → **oidc** → identity. Promise: a token is valid only if a configured issuer
//! signed it with a published key and an allowed algorithm, for one of our audiences, now; and if every
//! rule of the configuration holds. Nothing of a token is ever logged.

pub mod config;
pub mod file;
mod expression;
pub(crate) mod jwk;
mod keys;
mod mapping;

use std::sync::Arc;

use headwater_cache::Cache;
use headwater_json::Value;
use jiff::Timestamp;

use crate::front::identity::Identity;
use crate::outgoing::Caller;
use config::{AnonymousAccess, ConfigurationError, JwtIssuerConfig};
use jwk::UnverifiedToken;
use keys::IssuerKeys;
use mapping::ClaimMapping;

/// How far a clock may differ, for the beginning of a token's validity.
const LEEWAY_SECONDS: f64 = 60.0;

/// What the server needs to verify a token.
#[derive(Clone, Copy)]
pub(crate) struct KeyFetcher<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) cache: &'a Cache,
}

/// A configuration in force: the issuers, and what anonymous users may do.
#[derive(Debug, Default)]
pub(crate) struct OidcIssuers {
    issuers: Vec<OidcIssuer>,
    /// `None` if the configuration does not say.
    pub(crate) anonymous: Option<AnonymousAccess>,
}

/// One issuer.
#[derive(Debug)]
pub(crate) struct OidcIssuer {
    config: JwtIssuerConfig,
    mapping: ClaimMapping,
    keys: Arc<IssuerKeys>,
}

impl OidcIssuers {
    /// Issuers with these configurations. Those that have not changed keep the keys of `before`.
    pub(crate) fn new(
        jwt: Vec<JwtIssuerConfig>,
        anonymous: Option<AnonymousAccess>,
        before: &OidcIssuers,
    ) -> Result<OidcIssuers, ConfigurationError> {
        let mut issuers = Vec::new();
        for (index, config) in jwt.into_iter().enumerate() {
            let mapping = ClaimMapping::new(&config, &format!("jwt[{index}]"))?;
            let same = |old: &&OidcIssuer| old.config.issuer.has_same_keys(&config.issuer);
            let keys = match before.issuers.iter().find(same) {
                Some(old) => Arc::clone(&old.keys),
                None => Arc::new(IssuerKeys::new(&config.issuer)?),
            };
            issuers.push(OidcIssuer { config, mapping, keys });
        }
        Ok(OidcIssuers { issuers, anonymous })
    }

    /// The user of a token. `None` if no issuer here issued it; an error if the issuer did, or claims
    /// to have, and it is invalid.
    pub(crate) async fn identify(
        &self,
        token: &str,
        fetcher: KeyFetcher<'_>,
        now: Timestamp,
    ) -> Option<Result<Arc<Identity>, String>> {
        if self.issuers.is_empty() {
            return None;
        }
        let parsed = UnverifiedToken::parse(token)?;
        let claimed = parsed.issuer()?;
        let issuer = self.issuers.iter().find(|issuer| issuer.config.issuer.url == claimed)?;
        Some(issuer.identify(&parsed, fetcher, now).await.map(Arc::new))
    }
}

impl OidcIssuer {
    async fn identify(
        &self,
        token: &UnverifiedToken<'_>,
        fetcher: KeyFetcher<'_>,
        now: Timestamp,
    ) -> Result<Identity, String> {
        // Cheap and certain refusals first: they need no signature.
        self.check_times_and_audience(token.claims(), now)?;
        self.keys.verify(token, fetcher).await?;
        let mut identity = self.mapping.identify(token.claims())?;
        identity.expires =
            token.claims()["exp"].as_f64().and_then(|exp| Timestamp::from_second(exp as i64).ok());
        if let Some(id) = token.claims()["jti"].as_str().filter(|id| !id.is_empty()) {
            let key = "authentication.kubernetes.io/credential-id".to_owned();
            identity.extra.insert(key, vec![format!("JTI={id}")]);
        }
        Ok(identity)
    }

    fn check_times_and_audience(&self, claims: &Value, now: Timestamp) -> Result<(), String> {
        let now = now.as_second() as f64;
        let refuse = |why: &str| Err(why.to_owned());
        match claims["exp"].as_f64() {
            None => return refuse("the token has no expiry"),
            Some(exp) if now >= exp => return refuse("the token has expired"),
            Some(_) => {}
        }
        let begins = &claims["nbf"];
        if !begins.is_null() && begins.as_f64().is_none_or(|nbf| now + LEEWAY_SECONDS < nbf) {
            return refuse("the token is not valid yet");
        }
        let wanted = &self.config.issuer.audiences;
        let is_ours = |audience: &Value| {
            audience.as_str().is_some_and(|audience| wanted.iter().any(|own| own == audience))
        };
        let audience = &claims["aud"];
        match is_ours(audience) || audience.as_array().is_some_and(|all| all.iter().any(is_ours)) {
            true => Ok(()),
            false => refuse("the token is for another audience"),
        }
    }
}
