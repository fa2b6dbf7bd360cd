//! Impersonation: requests that run as another user (S8.6).
//!
//! River: identity → **impersonate** → authorization. Promise: a request with impersonation
//! headers runs as that user or is rejected; it never runs with the rights of the caller.

use std::collections::BTreeMap;
use std::sync::Arc;

use headwater_api::{Status, name};
use http::{HeaderMap, HeaderName};

use crate::answer::status;
use crate::front::identity::{
    ANONYMOUS, AUTHENTICATED, Identity, MASTERS, NODE_PREFIX, NODES, UNAUTHENTICATED,
};
use crate::front::service_account;
use crate::request::authorize::{AccessControl, AccessRequest, Attributes};

static USER: HeaderName = HeaderName::from_static("impersonate-user");
static GROUP: HeaderName = HeaderName::from_static("impersonate-group");
static UID: HeaderName = HeaderName::from_static("impersonate-uid");
const EXTRA: &str = "impersonate-extra-";

/// The group of the attributes that are not in the core group.
const AUTHENTICATION: &str = "authentication.k8s.io";

/// The extra of a service account's token that names the node of its pod.
const NODE_OF_POD: &str = "authentication.kubernetes.io/node-name";

/// The user that a request runs as.
#[derive(Debug)]
pub(crate) struct EffectiveUser {
    pub(crate) identity: Arc<Identity>,
    /// The right on the identity, if the constrained form allowed the impersonation.
    pub(crate) constraint: Option<&'static str>,
}

/// The effective user: the caller, unless headers name another user. Removes the headers, so that
/// later stages see no difference.
pub(crate) async fn acting(
    access: &AccessControl,
    caller: Arc<Identity>,
    headers: &mut HeaderMap,
    asked: &AccessRequest<'_>,
) -> Result<EffectiveUser, Status> {
    let Some(mut wanted) = wanted(headers)? else {
        return Ok(EffectiveUser { identity: caller, constraint: None });
    };
    let mut constraint = None;
    if let Err(refusal) = wanted.allowed_for(access, &caller).await {
        let Some(mode) = wanted.constrained_for(access, &caller, asked).await else {
            return Err(refusal);
        };
        constraint = Some(mode.verb());
        if mode.is_node() {
            wanted.groups = vec![NODES.to_owned()];
        }
    }
    let mine: Vec<HeaderName> = headers.keys().filter(|name| is_ours(name)).cloned().collect();
    for name in mine {
        headers.remove(name);
    }
    tracing::debug!(caller = caller.user, user = wanted.user, "impersonating");
    // The stream of an impersonated user must not outlive the credential of the caller either.
    let identity = Arc::new(Identity { expires: caller.expires, ..wanted.completed() });
    Ok(EffectiveUser { identity, constraint })
}

/// A form of impersonation that needs two rights: one on the identity, `impersonate:MODE`, and one on
/// what is done with it, `impersonate-on:MODE:VERB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConstrainedMode {
    AssociatedNode,
    ArbitraryNode,
    ServiceAccount,
    UserInfo,
}

impl ConstrainedMode {
    fn name(self) -> &'static str {
        match self {
            ConstrainedMode::AssociatedNode => "associated-node",
            ConstrainedMode::ArbitraryNode => "arbitrary-node",
            ConstrainedMode::ServiceAccount => "serviceaccount",
            ConstrainedMode::UserInfo => "user-info",
        }
    }

    /// The right on the identity.
    fn verb(self) -> &'static str {
        match self {
            ConstrainedMode::AssociatedNode => "impersonate:associated-node",
            ConstrainedMode::ArbitraryNode => "impersonate:arbitrary-node",
            ConstrainedMode::ServiceAccount => "impersonate:serviceaccount",
            ConstrainedMode::UserInfo => "impersonate:user-info",
        }
    }

    fn is_node(self) -> bool {
        matches!(self, ConstrainedMode::AssociatedNode | ConstrainedMode::ArbitraryNode)
    }
}

fn is_ours(name: &HeaderName) -> bool {
    [&USER, &GROUP, &UID].contains(&name) || name.as_str().starts_with(EXTRA)
}

/// The user that the headers describe.
struct Wanted {
    user: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

fn wanted(headers: &HeaderMap) -> Result<Option<Wanted>, Status> {
    if !headers.keys().any(is_ours) {
        return Ok(None);
    }
    let all = |name: &HeaderName| -> Result<Vec<String>, Status> {
        let text = |value: &http::HeaderValue| match std::str::from_utf8(value.as_bytes()) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(status::bad_request(format!("{name} is not UTF-8"))),
        };
        headers.get_all(name).iter().map(text).collect()
    };
    let first = |name| all(name).map(|all| all.into_iter().next().unwrap_or_default());
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in headers.keys() {
        if let Some(key) = name.as_str().strip_prefix(EXTRA) {
            extra.entry(unescaped(key)).or_default().extend(all(name)?);
        }
    }
    let wanted = Wanted { user: first(&USER)?, uid: first(&UID)?, groups: all(&GROUP)?, extra };
    if wanted.user.is_empty() {
        // An empty name is an error, not a request without impersonation.
        let named = headers.keys().find(|name| is_ours(name)).map_or("", HeaderName::as_str);
        let message = format!("requested {named} without impersonating a user name");
        return Err(status::bad_request(message));
    }
    Ok(Some(wanted))
}

/// Decodes the `%`-escapes of a key; a key with an invalid escape is used unchanged.
fn unescaped(key: &str) -> String {
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        let (Some(high), Some(low)) = (digit(rest.next()), digit(rest.next())) else {
            return key.to_owned();
        };
        bytes.push((high * 16 + low) as u8);
    }
    String::from_utf8(bytes).unwrap_or_else(|_| key.to_owned())
}

impl Wanted {
    /// The rights that impersonation without constraints needs, one for each part of the identity.
    fn parts(&self) -> Vec<IdentityPart<'_>> {
        let mut parts = vec![match service_account::parts(&self.user) {
            Some((namespace, name)) => {
                IdentityPart { namespace, ..IdentityPart::new("", "serviceaccounts", name) }
            }
            None => IdentityPart::new("", "users", &self.user),
        }];
        parts.extend(self.groups.iter().map(|group| IdentityPart::new("", "groups", group)));
        for (key, values) in &self.extra {
            parts.extend(values.iter().map(|value| IdentityPart {
                subresource: key,
                ..IdentityPart::new(AUTHENTICATION, "userextras", value)
            }));
        }
        if !self.uid.is_empty() {
            parts.push(IdentityPart::new(AUTHENTICATION, "uids", &self.uid));
        }
        parts
    }

    /// Checks the right for each part of the identity.
    async fn allowed_for(&self, access: &AccessControl, caller: &Identity) -> Result<(), Status> {
        for part in self.parts() {
            access.authorize(caller, &part.request("impersonate", part.group)).await?;
        }
        Ok(())
    }

    /// The constrained form that allows this impersonation for this request, if one does.
    async fn constrained_for(
        &self,
        access: &AccessControl,
        caller: &Identity,
        asked: &AccessRequest<'_>,
    ) -> Option<ConstrainedMode> {
        for mode in self.modes(caller) {
            let node = node(&self.user).unwrap_or_default();
            let parts = match mode {
                ConstrainedMode::AssociatedNode => vec![IdentityPart::new("", "nodes", "*")],
                ConstrainedMode::ArbitraryNode => vec![IdentityPart::new("", "nodes", node)],
                ConstrainedMode::ServiceAccount | ConstrainedMode::UserInfo => self.parts(),
            };
            let mut allowed = true;
            for part in parts {
                let request = part.request(mode.verb(), AUTHENTICATION);
                allowed = allowed && access.decide(caller, &request).await.is_allowed();
            }
            if !allowed {
                continue;
            }
            let does = |verb: &str| format!("impersonate-on:{}:{verb}", mode.name());
            let on = match asked.attributes {
                Attributes::Path { verb, .. } | Attributes::Resource { verb, .. } => does(verb),
            };
            let attributes = match asked.attributes {
                Attributes::Path { path, .. } => Attributes::Path { verb: &on, path },
                Attributes::Resource { group, resource, subresource, namespace, name, .. } => {
                    let verb = on.as_str();
                    Attributes::Resource { verb, group, resource, subresource, namespace, name }
                }
            };
            if access.decide(caller, &AccessRequest { attributes, ..*asked }).await.is_allowed() {
                return Some(mode);
            }
        }
        None
    }

    /// The constrained forms that fit this identity. Nodes and service accounts come with the groups
    /// that they have, and nothing else can be asked for them.
    fn modes(&self, caller: &Identity) -> Vec<ConstrainedMode> {
        let is_plain = self.groups.is_empty() && self.uid.is_empty() && self.extra.is_empty();
        if let Some(node) = node(&self.user) {
            let own = caller.extra.get(NODE_OF_POD).map(Vec::as_slice);
            let is_own = matches!(own, Some([own]) if own == node)
                && service_account::parts(&caller.user).is_some();
            let modes =
                [(is_own, ConstrainedMode::AssociatedNode), (true, ConstrainedMode::ArbitraryNode)];
            let fit = modes.into_iter().filter(|(fits, _)| *fits && is_plain);
            return fit.map(|(_, mode)| mode).collect();
        }
        match service_account::parts(&self.user) {
            Some(_) if is_plain => vec![ConstrainedMode::ServiceAccount],
            Some(_) => Vec::new(),
            None if self.is_within_limits() => vec![ConstrainedMode::UserInfo],
            None => Vec::new(),
        }
    }

    /// Whether the constrained form may name these groups and extras: it never makes an administrator,
    /// and extras are names with a domain.
    fn is_within_limits(&self) -> bool {
        let is_group = |group: &String| !group.is_empty() && group != MASTERS;
        let is_value = |value: &String| !value.is_empty();
        let is_extra = |(key, values): (&String, &Vec<String>)| {
            is_domain_path(key) && !values.is_empty() && values.iter().all(is_value)
        };
        self.groups.iter().all(is_group) && self.extra.iter().all(is_extra)
    }

    /// The user with its implied groups. Given groups replace them, except for the group that says
    /// whether the user is authenticated.
    fn completed(self) -> Identity {
        let Wanted { user, uid, mut groups, extra } = self;
        if groups.is_empty()
            && let Some((namespace, _)) = service_account::parts(&user)
        {
            groups = service_account::groups(namespace);
        }
        let has = |groups: &[String], name: &str| groups.iter().any(|group| group == name);
        let is_anonymous = user == ANONYMOUS;
        if is_anonymous && !has(&groups, UNAUTHENTICATED) {
            groups.push(UNAUTHENTICATED.to_owned());
        }
        if !is_anonymous && !has(&groups, AUTHENTICATED) && !has(&groups, UNAUTHENTICATED) {
            groups.push(AUTHENTICATED.to_owned());
        }
        Identity { user, uid, groups, extra, expires: None }
    }
}

/// The name of the node that a user name is of.
fn node(user: &str) -> Option<&str> {
    user.strip_prefix(NODE_PREFIX).filter(|name| name::subdomain(name).is_empty())
}

/// Whether a key is a path below a domain, such as `acme.io/project`, without capital letters.
fn is_domain_path(key: &str) -> bool {
    let Some((domain, path)) = key.split_once('/') else { return false };
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte);
    let is_plain = !key.bytes().any(|byte| byte.is_ascii_uppercase());
    name::subdomain(domain).is_empty() && !path.is_empty() && path.bytes().all(fits) && is_plain
}

/// A part of an identity as a resource.
#[derive(Clone, Copy)]
struct IdentityPart<'a> {
    group: &'static str,
    resource: &'static str,
    subresource: &'a str,
    namespace: &'a str,
    name: &'a str,
}

impl<'a> IdentityPart<'a> {
    fn new(group: &'static str, resource: &'static str, name: &'a str) -> IdentityPart<'a> {
        IdentityPart { group, resource, subresource: "", namespace: "", name }
    }

    fn request(&self, verb: &'a str, group: &'a str) -> AccessRequest<'a> {
        let IdentityPart { resource, subresource, namespace, name, .. } = *self;
        AccessRequest::about(Attributes::Resource {
            verb,
            group,
            resource,
            subresource,
            namespace,
            name,
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use http::HeaderValue;

    use super::*;
    use crate::outgoing::{Caller, Forwarding, Loopback};
    use crate::request::authorize::Authorization;
    use crate::system::metrics::Metrics;

    fn headers(lines: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            let (name, value) = line.split_once(": ").unwrap();
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    fn run(caller: Arc<Identity>, headers: &mut HeaderMap) -> Result<Arc<Identity>, Status> {
        let store = Arc::new(headwater_store::Memory::default());
        let cacher = headwater_cache::Cacher::new(store, headwater_cache::Options::default());
        let outgoing = Arc::new(Caller::new(Loopback::Refused, Forwarding::Ignored));
        let metrics = Metrics::new();
        let access =
            AccessControl::new(&cacher.handle(), Authorization::default(), outgoing, &metrics);
        let asked = AccessRequest::about(Attributes::Path { verb: "get", path: "/x" });
        let acting =
            acting(&access, caller, headers, &asked).now_or_never().expect("nothing waits");
        acting.map(|acting| acting.identity)
    }

    #[track_caller]
    fn check(lines: &[&str], user: &str, groups: &[&str]) {
        let mut headers = headers(lines);
        let acting = run(Arc::new(Identity::admin()), &mut headers).unwrap();
        assert_eq!(acting.user, user);
        assert_eq!(acting.groups, groups);
        assert!(headers.is_empty(), "{headers:?}");
    }

    #[test]
    fn somebody_else_has_the_groups_of_somebody_else() {
        check(&["Impersonate-User: jane"], "jane", &[AUTHENTICATED]);
        check(
            &["Impersonate-User: jane", "Impersonate-Group: a", "Impersonate-Group: b"],
            "jane",
            &["a", "b", AUTHENTICATED],
        );
        check(
            &["Impersonate-User: system:serviceaccount:ns:robot"],
            "system:serviceaccount:ns:robot",
            &["system:serviceaccounts", "system:serviceaccounts:ns", AUTHENTICATED],
        );
        check(
            &["Impersonate-User: system:serviceaccount:ns:robot", "Impersonate-Group: a"],
            "system:serviceaccount:ns:robot",
            &["a", AUTHENTICATED],
        );
        check(&["Impersonate-User: system:anonymous"], ANONYMOUS, &[UNAUTHENTICATED]);
        check(
            &["Impersonate-User: jane", "Impersonate-Group: system:unauthenticated"],
            "jane",
            &[UNAUTHENTICATED],
        );
    }

    #[test]
    fn uid_and_extras_are_taken_along() {
        let mut headers = headers(&[
            "Impersonate-User: jane",
            "Impersonate-Uid: 7",
            "Impersonate-Extra-Scopes: a",
            "Impersonate-Extra-Scopes: b",
            "Impersonate-Extra-Acme.com%2fProject: c",
            "X-Other: kept",
        ]);
        let acting = run(Arc::new(Identity::admin()), &mut headers).unwrap();
        assert_eq!(acting.uid, "7");
        assert_eq!(acting.extra["scopes"], ["a", "b"]);
        assert_eq!(acting.extra["acme.com/project"], ["c"]);
        assert_eq!(headers.len(), 1);
    }

    #[test]
    fn the_constrained_form_makes_no_administrators_and_no_strange_users() {
        let wanted = |lines: &[&str]| wanted(&headers(lines)).unwrap().unwrap();
        let modes = |lines: &[&str]| wanted(lines).modes(&Identity::admin());
        let jane = "Impersonate-User: jane";
        assert_eq!(modes(&[jane, "Impersonate-Group: dev"]), [ConstrainedMode::UserInfo]);
        let extra = "Impersonate-Extra-Acme.io%2fproject: x";
        assert_eq!(modes(&[jane, extra, "Impersonate-Uid: 1"]), [ConstrainedMode::UserInfo]);
        for refused in [
            "Impersonate-Group: system:masters",
            "Impersonate-Group: ",
            "Impersonate-Extra-Scopes: x",
            "Impersonate-Extra-Acme.io%2f: x",
            "Impersonate-Extra-Acme_io%2fa: x",
            "Impersonate-Extra-Acme.io%2fa%20b: x",
            "Impersonate-Extra-Acme.io%2f%41: x",
            "Impersonate-Extra-Acme.io%2fa: ",
        ] {
            assert_eq!(modes(&[jane, "Impersonate-Group: dev", refused]), [], "{refused}");
        }
        let node = |name: &str| modes(&[&format!("Impersonate-User: system:node:{name}")]);
        assert_eq!(node("n1.example"), [ConstrainedMode::ArbitraryNode]);
        for name in ["", "N1", "a:b", "-"] {
            assert_eq!(node(name), [ConstrainedMode::UserInfo], "{name}");
        }
    }

    #[test]
    fn nobody_is_impersonated_without_a_name_or_a_right() {
        let admin = Arc::new(Identity::admin());
        let refused = |caller: &Arc<Identity>, lines: &[&str]| {
            run(caller.clone(), &mut headers(lines)).unwrap_err().code
        };
        for lines in [
            &["Impersonate-Group: system:masters"][..],
            &["Impersonate-Uid: 1"],
            &["Impersonate-Extra-A: b"],
            &["Impersonate-User: "],
        ] {
            assert_eq!(refused(&admin, lines), 400, "{lines:?}");
        }
        let user = Arc::new(Identity::authenticated("user", vec![]));
        assert_eq!(refused(&user, &["Impersonate-User: user"]), 403);
        let lines = &["Impersonate-User: jane", "Impersonate-Group: system:masters"];
        assert_eq!(refused(&user, lines), 403);
        assert!(run(admin, &mut headers(lines)).unwrap().is_in(MASTERS));
        assert_eq!(run(user.clone(), &mut HeaderMap::new()).unwrap(), user);
    }
}
