//! Impersonation: requests that run as another user (S8.6).
//!
//! River: identity → **impersonate** → authorization. Promise: a request with impersonation
//! headers runs as that user or is rejected; it never runs with the rights of the caller.

use std::collections::BTreeMap;
use std::sync::Arc;

use headwater_api::Status;
use http::{HeaderMap, HeaderName};

use crate::answer::status;
use crate::front::identity::{ANONYMOUS, AUTHENTICATED, Identity, UNAUTHENTICATED};
use crate::front::service_account;
use crate::request::authorize::{Attributes, authorize};

static USER: HeaderName = HeaderName::from_static("impersonate-user");
static GROUP: HeaderName = HeaderName::from_static("impersonate-group");
static UID: HeaderName = HeaderName::from_static("impersonate-uid");
const EXTRA: &str = "impersonate-extra-";

/// The group of the attributes that are not in the core group.
const AUTHENTICATION: &str = "authentication.k8s.io";

/// The effective user: the caller, unless headers name another user. Removes the headers, so that
/// later stages see no difference.
pub(crate) fn acting(
    caller: Arc<Identity>,
    headers: &mut HeaderMap,
) -> Result<Arc<Identity>, Status> {
    let Some(wanted) = wanted(headers)? else { return Ok(caller) };
    wanted.allowed_for(&caller)?;
    let mine: Vec<HeaderName> = headers.keys().filter(|name| is_ours(name)).cloned().collect();
    for name in mine {
        headers.remove(name);
    }
    tracing::debug!(caller = caller.user, user = wanted.user, "impersonating");
    // The stream of an impersonated user must not outlive the credential of the caller either.
    Ok(Arc::new(Identity { expires: caller.expires, ..wanted.completed() }))
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
    /// Checks the permission for each attribute of the user.
    fn allowed_for(&self, caller: &Identity) -> Result<(), Status> {
        let check = |group, resource, subresource: &str, namespace: &str, name: &str| {
            let verb = "impersonate";
            let attributes =
                Attributes::Resource { verb, group, resource, subresource, namespace, name };
            authorize(caller, &attributes)
        };
        match service_account::parts(&self.user) {
            Some((namespace, name)) => check("", "serviceaccounts", "", namespace, name)?,
            None => check("", "users", "", "", &self.user)?,
        }
        for group in &self.groups {
            check("", "groups", "", "", group)?;
        }
        for (key, value) in
            self.extra.iter().flat_map(|(key, all)| all.iter().map(move |v| (key, v)))
        {
            check(AUTHENTICATION, "userextras", key, "", value)?;
        }
        match self.uid.as_str() {
            "" => Ok(()),
            uid => check(AUTHENTICATION, "uids", "", "", uid),
        }
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

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::front::identity::MASTERS;

    fn headers(lines: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            let (name, value) = line.split_once(": ").unwrap();
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[track_caller]
    fn check(lines: &[&str], user: &str, groups: &[&str]) {
        let mut headers = headers(lines);
        let acting = acting(Arc::new(Identity::admin()), &mut headers).unwrap();
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
        let acting = acting(Arc::new(Identity::admin()), &mut headers).unwrap();
        assert_eq!(acting.uid, "7");
        assert_eq!(acting.extra["scopes"], ["a", "b"]);
        assert_eq!(acting.extra["acme.com/project"], ["c"]);
        assert_eq!(headers.len(), 1);
    }

    #[test]
    fn nobody_is_impersonated_without_a_name_or_a_right() {
        let admin = Arc::new(Identity::admin());
        let refused = |caller: &Arc<Identity>, lines: &[&str]| {
            acting(caller.clone(), &mut headers(lines)).unwrap_err().code
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
        assert!(acting(admin, &mut headers(lines)).unwrap().is_in(MASTERS));
        assert_eq!(acting(user.clone(), &mut HeaderMap::new()).unwrap(), user);
    }
}
