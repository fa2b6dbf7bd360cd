//! Authentication by service-account token: the objects that the token is bound to must exist.
//!
//! River: bearer token → **accounts** → identity.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use headwater_api::{Clock, Object};
use headwater_cache::Cache;
use jiff::Timestamp;

use super::claims::{Bound, Claims, Reference};
use super::{ISSUER, Issuer, Refused};
use crate::front::compare::is_same_secret;
use crate::front::identity::Identity;
use crate::object::object_key;
use crate::object::{meta, tree};

/// How long a token stays valid after the deletion of a bound object was due: clocks differ.
const DELETED_LEEWAY_SECONDS: i64 = 60;

/// Authenticates the service accounts of this server.
pub(crate) struct ServiceAccounts {
    pub(crate) issuer: Issuer,
    cache: Cache,
    clock: Arc<dyn Clock>,
}

/// The user of a valid token and the audiences that matched.
pub(crate) struct AuthenticatedToken {
    pub(crate) identity: Arc<Identity>,
    pub(crate) audiences: Vec<String>,
}

impl ServiceAccounts {
    pub(crate) fn new(issuer: Issuer, cache: Cache, clock: Arc<dyn Clock>) -> ServiceAccounts {
        ServiceAccounts { issuer, cache, clock }
    }

    /// Authenticates a token for any of these audiences; without audiences, for this server.
    pub(crate) async fn identify(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<AuthenticatedToken, Refused> {
        let claims = self.issuer.verify(token)?;
        let own = [ISSUER.to_owned()];
        let wanted = if audiences.is_empty() { &own } else { audiences };
        let audiences = claims.audiences(wanted);
        if audiences.is_empty() {
            let why = format!(
                "token audiences {:?} is invalid for the target audiences {wanted:?}",
                claims.aud
            );
            return Err(Refused::Invalid(why));
        }
        let now = self.clock.now();
        claims.check_time(now).map_err(|why| Refused::Invalid(why.to_owned()))?;
        if self.check_objects(&claims, token, now).is_err() {
            // Another server may have created the object just now. If the store does not reply, the
            // cached state decides.
            let _ = self.cache.consistent().await;
            self.check_objects(&claims, token, now)?;
        }
        Ok(AuthenticatedToken { identity: Arc::new(identity(&claims)), audiences })
    }

    fn check_objects(&self, claims: &Claims, token: &str, now: Timestamp) -> Result<(), Refused> {
        match &claims.kubernetes {
            bound if claims.is_legacy() => self.check_legacy(bound, token, now),
            bound => self.check_alive(bound, now),
        }
    }

    /// A token without an expiry is valid as long as its Secret contains it.
    fn check_legacy(&self, bound: &Bound, token: &str, now: Timestamp) -> Result<(), Refused> {
        let account = Bound { secret: None, ..bound.clone() };
        self.check_alive(&account, now)?;
        let name = bound.secret.as_ref().map(|secret| secret.name.as_str()).unwrap_or_default();
        let snapshot = self.cache.snapshot(&self.cache.resource("/registry/core/secrets/"));
        let secret = snapshot.get(&object_key(&bound.namespace, name));
        let secret = secret.filter(|secret| !secret.is_deleting());
        let held = secret
            .and_then(|secret| tree(secret.as_slice()).ok())
            .and_then(|secret| STANDARD.decode(secret["data"]["token"].as_str()?).ok());
        match held.is_some_and(|held| is_same_secret(&held, token.as_bytes())) {
            true => Ok(()),
            false => Err(Refused::Invalid("service account token has been invalidated".into())),
        }
    }

    fn check_alive(&self, bound: &Bound, now: Timestamp) -> Result<(), Refused> {
        let namespace = &bound.namespace;
        let account = &bound.serviceaccount;
        if !self.is_alive("serviceaccounts", namespace, account, now) {
            let name = &account.name;
            let why = format!("service account {namespace}/{name} has been deleted");
            return Err(Refused::Invalid(why));
        }
        // The node of a bound pod is only informational; the token is bound to the pod.
        let node = bound.node.as_ref().filter(|_| bound.pod.is_none());
        let alive = [
            ("pods", namespace.as_str(), bound.pod.as_ref()),
            ("secrets", namespace, bound.secret.as_ref()),
            ("nodes", "", node),
        ]
        .into_iter()
        .all(|(plural, namespace, reference)| {
            reference.is_none_or(|reference| self.is_alive(plural, namespace, reference, now))
        });
        match alive {
            true => Ok(()),
            false => Err(Refused::Invalid("service account token has been invalidated".into())),
        }
    }

    fn is_alive(
        &self,
        plural: &str,
        namespace: &str,
        reference: &Reference,
        now: Timestamp,
    ) -> bool {
        let resource = self.cache.resource(&format!("/registry/core/{plural}/"));
        let snapshot = self.cache.snapshot(&resource);
        let object = snapshot.get(&object_key(namespace, &reference.name));
        object.is_some_and(|object| object.uid() == reference.uid && !is_overdue(object, now))
    }
}

/// Whether the deletion of an object is overdue: a pod may use its token until its grace period
/// ends.
fn is_overdue(object: &Object, now: Timestamp) -> bool {
    if !object.is_deleting() {
        return false;
    }
    let value = tree(object.as_slice()).unwrap_or_default();
    let due = meta(&value, "deletionTimestamp").parse::<Timestamp>();
    due.is_ok_and(|due| due.as_second() + DELETED_LEEWAY_SECONDS < now.as_second())
}

fn identity(claims: &Claims) -> Identity {
    let Bound { namespace, serviceaccount, .. } = &claims.kubernetes;
    let groups = groups(namespace);
    let user = user_name(namespace, &serviceaccount.name);
    let mut identity = Identity::authenticated(user, groups);
    identity.uid.clone_from(&serviceaccount.uid);
    // The time of a token without an expiry is beyond all timestamps.
    identity.expires = Timestamp::from_second(claims.exp).ok();
    let mut add_extra = |key: &str, value: &str| {
        let key = format!("authentication.kubernetes.io/{key}");
        identity.extra.insert(key, vec![value.to_owned()]);
    };
    if !claims.jti.is_empty() {
        add_extra("credential-id", &format!("JTI={}", claims.jti));
    }
    for (what, reference) in [("pod", &claims.kubernetes.pod), ("node", &claims.kubernetes.node)] {
        if let Some(reference) = reference {
            add_extra(&format!("{what}-name"), &reference.name);
            add_extra(&format!("{what}-uid"), &reference.uid);
        }
    }
    identity
}

/// The groups of the service accounts of a namespace.
pub(crate) fn groups(namespace: &str) -> Vec<String> {
    vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")]
}

const USER_PREFIX: &str = "system:serviceaccount:";

/// The user name of a service account.
pub(crate) fn user_name(namespace: &str, name: &str) -> String {
    format!("{USER_PREFIX}{namespace}:{name}")
}

/// A service account as a user.
pub(crate) fn account(namespace: &str, name: &str) -> Identity {
    Identity::authenticated(user_name(namespace, name), groups(namespace))
}

/// The namespace and name of the service account with this user name.
pub(crate) fn parts(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(USER_PREFIX)?.split_once(':')?;
    let is_one = !namespace.is_empty() && !name.is_empty() && !name.contains(':');
    is_one.then_some((namespace, name))
}
