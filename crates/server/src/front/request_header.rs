//! Request-header authentication: a front proxy names the user in headers (S8.19).
//!
//! River: client certificate of the proxy, headers → **request header** → identity. Promise: headers
//! count only on a connection whose certificate was issued by the proxies' own authority to an allowed
//! name; for everybody else they do not exist.

use std::collections::BTreeMap;
use std::sync::Arc;

use headwater_json::json;
use http::{HeaderMap, HeaderName};

use crate::front::identity::Identity;
use crate::front::pki::FRONT_PROXY;

/// How a front proxy names users. Names of headers are in lower case.
#[derive(Clone, Debug)]
pub struct RequestHeaderOptions {
    /// The certificate authority of the proxies, as PEM.
    pub authority: String,
    /// The common names of the proxies; empty allows every certificate of the authority.
    pub allowed_names: Vec<String>,
    /// The headers with the name of the user; the first one that is present counts.
    pub user: Vec<String>,
    /// The headers with the uid.
    pub uid: Vec<String>,
    /// The headers with the groups; all of them count.
    pub group: Vec<String>,
    /// The prefixes of headers with further attributes.
    pub extra: Vec<String>,
}

impl RequestHeaderOptions {
    /// How this server names users to extension servers, with the certificate of its own front proxy.
    pub fn own(authority: String) -> RequestHeaderOptions {
        let list = |name: &str| vec![name.to_owned()];
        RequestHeaderOptions {
            authority,
            allowed_names: list(FRONT_PROXY),
            user: list("X-Remote-User"),
            uid: list("X-Remote-Uid"),
            group: list("X-Remote-Group"),
            extra: list("X-Remote-Extra-"),
        }
    }

    /// What `kube-system/extension-apiserver-authentication` says about it, as key and value.
    pub(crate) fn published(&self) -> [(&'static str, String); 6] {
        let list = |names: &[String]| json!(names).to_string();
        [
            ("requestheader-client-ca-file", self.authority.clone()),
            ("requestheader-allowed-names", list(&self.allowed_names)),
            ("requestheader-username-headers", list(&self.user)),
            ("requestheader-uid-headers", list(&self.uid)),
            ("requestheader-group-headers", list(&self.group)),
            ("requestheader-extra-headers-prefix", list(&self.extra)),
        ]
    }

    /// The user that a proxy with this name says a request is from; `None` if the headers of this
    /// connection do not count, or name nobody.
    pub(crate) fn identify(&self, proxy: &str, headers: &HeaderMap) -> Option<Arc<Identity>> {
        if !self.allowed_names.is_empty() && !self.allowed_names.iter().any(|name| name == proxy) {
            return None;
        }
        let first = |names: &[String]| -> Option<String> {
            let values = names.iter().flat_map(|name| headers.get_all(name.as_str()));
            let mut texts = values.filter_map(|value| std::str::from_utf8(value.as_bytes()).ok());
            texts.find(|text| !text.is_empty()).map(str::to_owned)
        };
        let user = first(&self.user)?;
        let groups = self.group.iter().flat_map(|name| headers.get_all(name.as_str()));
        let groups = groups.filter_map(|value| std::str::from_utf8(value.as_bytes()).ok());
        let groups = groups.filter(|group| !group.is_empty()).map(str::to_owned).collect();
        let mut identity = Identity::authenticated(user, groups);
        identity.uid = first(&self.uid).unwrap_or_default();
        identity.extra = self.extra(headers);
        Some(Arc::new(identity))
    }

    fn extra(&self, headers: &HeaderMap) -> BTreeMap<String, Vec<String>> {
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, value) in headers {
            let Some(key) = self.extra.iter().find_map(|prefix| stripped(name, prefix)) else {
                continue;
            };
            if let Ok(text) = std::str::from_utf8(value.as_bytes()) {
                extra.entry(unescaped(key)).or_default().push(text.to_owned());
            }
        }
        extra
    }
}

fn stripped<'a>(name: &'a HeaderName, prefix: &str) -> Option<&'a str> {
    name.as_str().strip_prefix(prefix).filter(|key| !key.is_empty())
}

/// Decodes the `%`-escapes of a key; a key with an invalid escape is used unchanged.
fn unescaped(key: &str) -> String {
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.as_bytes();
    while let [first, others @ ..] = rest {
        rest = others;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let pair = others.split_at_checked(2);
        let Some((Some(high), Some(low), after)) =
            pair.map(|(pair, after)| (digit(pair[0]), digit(pair[1]), after))
        else {
            return key.to_owned();
        };
        bytes.push((high * 16 + low) as u8);
        rest = after;
    }
    String::from_utf8(bytes).unwrap_or_else(|_| key.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(allowed: &[&str]) -> RequestHeaderOptions {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        RequestHeaderOptions {
            authority: "PEM".to_owned(),
            allowed_names: list(allowed),
            user: list(&["x-remote-user", "x-other-user"]),
            uid: list(&["x-remote-uid"]),
            group: list(&["x-remote-group"]),
            extra: list(&["x-remote-extra-"]),
        }
    }

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        headers
    }

    /// S8.19
    #[test]
    fn the_headers_of_an_allowed_proxy_name_the_user() {
        let headers = headers(&[
            ("X-Remote-User", "alice"),
            ("X-Remote-Uid", "7"),
            ("X-Remote-Group", "dev"),
            ("X-Remote-Group", "ops"),
            ("X-Remote-Extra-Scopes", "a"),
            ("X-Remote-Extra-Scopes", "b"),
            ("X-Remote-Extra-Acme.com%2Fteam", "c"),
            ("X-Remote-Extra-Odd%2", "d"),
        ]);
        for allowed in [&[][..], &["proxy"]] {
            let found = options(allowed).identify("proxy", &headers).unwrap();
            assert_eq!((found.user.as_str(), found.uid.as_str()), ("alice", "7"));
            assert_eq!(found.groups, ["dev", "ops", "system:authenticated"]);
            assert_eq!(found.extra["scopes"], ["a", "b"]);
            assert_eq!(found.extra["acme.com/team"], ["c"]);
            assert_eq!(found.extra["odd%2"], ["d"]);
        }
        assert_eq!(options(&["other"]).identify("proxy", &headers), None);
    }

    #[test]
    fn without_a_user_the_headers_say_nothing() {
        let only_groups = headers(&[("X-Remote-Group", "system:masters"), ("X-Remote-User", "")]);
        assert_eq!(options(&[]).identify("proxy", &only_groups), None);
        let second = headers(&[("X-Other-User", "bob")]);
        assert_eq!(options(&[]).identify("proxy", &second).unwrap().user, "bob");
    }
}
