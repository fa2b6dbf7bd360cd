//! Bootstrap tokens: Secrets in `kube-system` with which new nodes log in (S8.17).
//!
//! River: bearer token → **bootstrap token** → identity. Promise: a token is valid only while its Secret
//! exists, has not expired and allows authentication; its groups are below `system:bootstrappers`.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use headwater_cache::Cache;
use headwater_json::Value;
use jiff::Timestamp;

use crate::front::compare::is_same_secret;
use crate::front::identity::Identity;
use crate::object::{is_deleting, tree};

/// The type of the Secrets.
const TYPE: &str = "bootstrap.kubernetes.io/token";
/// The group of all bootstrap tokens, and the prefix of further ones.
const GROUP: &str = "system:bootstrappers";

/// The parts of a token, if it has the form of a bootstrap token: `abcdef.0123456789abcdef`.
fn parts(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let is_word = |text: &str, length: usize| {
        let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        text.len() == length && text.bytes().all(is_allowed)
    };
    (is_word(id, 6) && is_word(secret, 16)).then_some((id, secret))
}

/// The user of a bootstrap token.
pub(crate) fn identify(token: &str, cache: &Cache, now: Timestamp) -> Option<Arc<Identity>> {
    let (id, secret) = parts(token)?;
    let snapshot = cache.snapshot(&cache.resource("/registry/core/secrets/"));
    let stored = snapshot.get(&format!("kube-system/bootstrap-token-{id}"))?;
    let stored = tree(stored.as_slice()).ok()?;
    match identity(&stored, id, secret, now) {
        Ok(identity) => Some(Arc::new(identity)),
        Err(why) => {
            tracing::info!(id, why, "bootstrap token refused");
            None
        }
    }
}

fn identity(
    stored: &Value,
    id: &str,
    secret: &str,
    now: Timestamp,
) -> Result<Identity, &'static str> {
    let data = |key: &str| -> Option<Vec<u8>> {
        STANDARD.decode(stored["data"][key].as_str()?).ok().filter(|bytes| !bytes.is_empty())
    };
    let text = |key: &str| data(key).and_then(|bytes| String::from_utf8(bytes).ok());
    // Compared first: nothing is said about a Secret to somebody without its token.
    if !data("token-secret").is_some_and(|held| is_same_secret(&held, secret.as_bytes())) {
        return Err("the secret does not match");
    }
    if stored["type"] != TYPE || is_deleting(stored) {
        return Err("it is no bootstrap token, or being deleted");
    }
    if text("token-id").as_deref() != Some(id) {
        return Err("the token id does not match");
    }
    let mut expires = None;
    if let Some(expiration) = data("expiration") {
        let time = std::str::from_utf8(&expiration).ok().and_then(|text| text.trim().parse().ok());
        let time: Timestamp = time.ok_or("its expiration is not a time")?;
        if time <= now {
            return Err("it has expired");
        }
        expires = Some(time);
    }
    if text("usage-bootstrap-authentication").as_deref() != Some("true") {
        return Err("it is not for authentication");
    }
    let mut groups = vec![GROUP.to_owned()];
    for group in text("auth-extra-groups").unwrap_or_default().split(',') {
        let group = group.trim();
        if group.is_empty() {
            continue;
        }
        if !is_group(group) {
            return Err("auth-extra-groups names a group that does not begin with \
                        system:bootstrappers:");
        }
        if !groups.iter().any(|held| held == group) {
            groups.push(group.to_owned());
        }
    }
    let mut identity = Identity::authenticated(format!("system:bootstrap:{id}"), groups);
    identity.expires = expires;
    Ok(identity)
}

/// Whether a group is below that of all bootstrap tokens.
fn is_group(group: &str) -> bool {
    let rest = group.strip_prefix(GROUP).and_then(|rest| rest.strip_prefix(':'));
    let is_end = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    rest.is_some_and(|rest| {
        let bytes = rest.as_bytes();
        bytes.len() <= 256
            && bytes.last().is_some_and(|last| is_end(*last))
            && bytes.iter().all(|byte| is_end(*byte) || b":-".contains(byte))
    })
}

#[cfg(test)]
mod tests {
    use headwater_json::json;

    use super::*;

    const SECRET: &str = "0123456789abcdef";

    fn check(change: &[(&str, &str)], expected: Result<&[&str], &str>) {
        let mut stored = json!({ "metadata": { "name": "x" }, "type": TYPE, "data": {
            "token-id": STANDARD.encode("abcdef"), "token-secret": STANDARD.encode(SECRET),
            "usage-bootstrap-authentication": STANDARD.encode("true"),
            "expiration": STANDARD.encode("2026-01-02T00:00:00Z"),
        }});
        for (key, value) in change {
            match *key {
                "type" => stored["type"] = (*value).into(),
                key => stored["data"][key] = STANDARD.encode(value).into(),
            }
        }
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        match (identity(&stored, "abcdef", SECRET, now), expected) {
            (Ok(found), Ok(groups)) => {
                assert_eq!(found.user, "system:bootstrap:abcdef");
                assert_eq!(found.groups, groups, "{change:?}");
            }
            (Err(why), Err(expected)) => assert!(why.contains(expected), "{change:?}: {why}"),
            (found, expected) => panic!("{change:?}: {found:?}, not {expected:?}"),
        }
    }

    /// S8.17
    #[test]
    fn a_token_is_valid_as_its_secret_says() {
        let all = &["system:bootstrappers", "system:authenticated"];
        check(&[], Ok(all));
        check(&[("expiration", "")], Ok(all));
        check(
            &[("auth-extra-groups", "system:bootstrappers:a,system:bootstrappers:b:c-1")],
            Ok(&[
                "system:bootstrappers",
                "system:bootstrappers:a",
                "system:bootstrappers:b:c-1",
                "system:authenticated",
            ]),
        );
        for (change, why) in [
            ((("token-secret"), "0123456789abcdee"), "does not match"),
            (("token-secret", ""), "does not match"),
            (("token-id", "abcdeg"), "id does not match"),
            (("type", "Opaque"), "no bootstrap token"),
            (("expiration", "2026-01-01T00:00:00Z"), "has expired"),
            (("expiration", "tomorrow"), "not a time"),
            (("usage-bootstrap-authentication", "false"), "not for authentication"),
            (("usage-bootstrap-authentication", ""), "not for authentication"),
            (("auth-extra-groups", "system:masters"), "does not begin with"),
            (("auth-extra-groups", "system:bootstrappers:"), "does not begin with"),
            (("auth-extra-groups", "system:bootstrappersx"), "does not begin with"),
        ] {
            check(&[change], Err(why));
        }
    }

    #[test]
    fn other_tokens_are_not_looked_up() {
        assert_eq!(parts("abcdef.0123456789abcdef"), Some(("abcdef", SECRET)));
        for other in [
            "abcdef",
            "abcde.0123456789abcdef",
            "abcdef.0123456789abcde",
            "ABCDEF.0123456789abcdef",
            "abcdef.0123456789abcdef.",
            "../../.0123456789abcdef",
            "",
        ] {
            assert_eq!(parts(other), None, "{other}");
        }
    }
}
