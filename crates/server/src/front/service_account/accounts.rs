//! From a token to a user: what it is bound to must still be there.
//!
//! River: bearer token → **accounts** → identity.

use std::sync::Arc;

use headwater_api::{Clock, Object};
use headwater_cache::Cache;
use jiff::Timestamp;

use super::claims::{Bound, Claims, Reference};
use super::{ISSUER, Issuer, Refused};
use crate::front::identity::Identity;
use crate::object::{meta, tree};
use crate::request::route::object_key;

/// How long an object counts after its deletion was due: other servers may not know of it yet.
const DELETED_LEEWAY_SECONDS: i64 = 60;

/// Knows the service accounts of this server by their tokens.
pub(crate) struct ServiceAccounts {
    pub(crate) issuer: Issuer,
    cache: Cache,
    clock: Arc<dyn Clock>,
}

/// Whose token it is, and for which of the audiences asked about.
pub(crate) struct Known {
    pub(crate) identity: Arc<Identity>,
    pub(crate) audiences: Vec<String>,
}

impl ServiceAccounts {
    pub(crate) fn new(issuer: Issuer, cache: Cache, clock: Arc<dyn Clock>) -> ServiceAccounts {
        ServiceAccounts { issuer, cache, clock }
    }

    /// Whose token it is, if it is meant for any of these audiences; none is this server.
    pub(crate) async fn identify(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<Known, Refused> {
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
        if self.check_alive(&claims.kubernetes, now).is_err() {
            // Another server may have made it a moment ago. If the store does not answer, what is
            // known here counts.
            let _ = self.cache.consistent().await;
            self.check_alive(&claims.kubernetes, now)?;
        }
        Ok(Known { identity: Arc::new(identity(&claims)), audiences })
    }

    fn check_alive(&self, bound: &Bound, now: Timestamp) -> Result<(), Refused> {
        let namespace = &bound.namespace;
        let account = &bound.serviceaccount;
        if !self.is_alive("serviceaccounts", namespace, account, now) {
            let name = &account.name;
            let why = format!("service account {namespace}/{name} has been deleted");
            return Err(Refused::Invalid(why));
        }
        // The node of a pod is only told: the pod is what the token is bound to.
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

/// Whether an object should be gone: a pod may use its token until its grace period ends.
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
    identity.expires = Timestamp::from_second(claims.exp).ok();
    let mut tell = |key: &str, value: &str| {
        let key = format!("authentication.kubernetes.io/{key}");
        identity.extra.insert(key, vec![value.to_owned()]);
    };
    tell("credential-id", &format!("JTI={}", claims.jti));
    for (what, reference) in [("pod", &claims.kubernetes.pod), ("node", &claims.kubernetes.node)] {
        if let Some(reference) = reference {
            tell(&format!("{what}-name"), &reference.name);
            tell(&format!("{what}-uid"), &reference.uid);
        }
    }
    identity
}

/// The groups of the service accounts of a namespace.
pub(crate) fn groups(namespace: &str) -> Vec<String> {
    vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")]
}

const USER_PREFIX: &str = "system:serviceaccount:";

/// The user that a service account is.
pub(crate) fn user_name(namespace: &str, name: &str) -> String {
    format!("{USER_PREFIX}{namespace}:{name}")
}

/// A service account as a user.
pub(crate) fn account(namespace: &str, name: &str) -> Identity {
    Identity::authenticated(user_name(namespace, name), groups(namespace))
}

/// Namespace and name of the service account that a user is, if it is one.
pub(crate) fn parts(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(USER_PREFIX)?.split_once(':')?;
    let is_one = !namespace.is_empty() && !name.is_empty() && !name.contains(':');
    is_one.then_some((namespace, name))
}
