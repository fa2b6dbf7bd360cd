//! Rules for names and other short texts, and the validation of `metadata` that uses them.
//!
//! River: decoded object → **name** → 422 or the next check. The messages are those of Kubernetes,
//! which users search for.
//! Promise: a valid name is safe as a path segment and as part of a storage key.

use crate::kind::NameRule;

mod metadata;

pub use metadata::{
    finalizer, fold_owner_references, metadata_alike, metadata_on_create, metadata_on_update,
    without_domain,
};

/// Longest RFC 1123 subdomain.
pub const SUBDOMAIN_BYTES_MAX: usize = 253;

/// Longest RFC 1123 or 1035 label, label value, and name part of a label key.
pub const LABEL_BYTES_MAX: usize = 63;

/// The errors in a text; empty if it is valid. Valid texts cost no allocation.
pub type Problems = Vec<String>;

/// Whether a text is a complete name or a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `metadata.name`.
    Whole,
    /// `metadata.generateName`: a suffix follows, so it may end with a dash.
    Prefix,
}

/// Checks a name under the rule of its kind.
pub fn check(rule: NameRule, name: &str, part: Part) -> Problems {
    let masked;
    let text = match part {
        Part::Prefix if name.len() > 1 && name.ends_with('-') => {
            // Kubernetes replaces the last two characters with one letter, so a prefix may end with
            // `--`.
            masked = match name.get(..name.len() - 2) {
                Some(front) => format!("{front}a"),
                None => name.to_owned(),
            };
            masked.as_str()
        }
        _ => name,
    };
    match rule {
        NameRule::Subdomain => subdomain(text),
        NameRule::Label => label(text),
        NameRule::Label1035 => label_1035(text),
        NameRule::PathSegment => path_segment(name, part),
        NameRule::IpAddress => ip_address(name),
    }
}

/// RFC 1123 subdomain.
pub fn subdomain(text: &str) -> Problems {
    let mut problems = too_long(text, SUBDOMAIN_BYTES_MAX, "characters");
    if !is_subdomain(text) {
        problems.push(SUBDOMAIN.into());
    }
    problems
}

/// RFC 1123 label.
pub fn label(text: &str) -> Problems {
    let mut problems = too_long(text, LABEL_BYTES_MAX, "characters");
    if !is_label(text) {
        let dotted = is_subdomain(text);
        problems.push(if dotted { "must not contain dots" } else { LABEL }.into());
    }
    problems
}

/// RFC 1035 label: begins with a letter.
pub fn label_1035(text: &str) -> Problems {
    let mut problems = too_long(text, LABEL_BYTES_MAX, "characters");
    if !is_label(text) || !text.starts_with(|first: char| first.is_ascii_lowercase()) {
        problems.push(LABEL_1035.into());
    }
    problems
}

/// Any text that is one segment of a path.
pub fn path_segment(text: &str, part: Part) -> Problems {
    if part == Part::Whole && matches!(text, "." | "..") {
        return vec![format!("may not be '{text}'")];
    }
    let unsafe_parts = ["/", "%"].into_iter().filter(|part| text.contains(part));
    unsafe_parts.map(|part| format!("may not contain '{part}'")).collect()
}

/// An IP address in canonical form.
pub fn ip_address(text: &str) -> Problems {
    let mut problems = ip(text);
    if let (true, Ok(address)) = (problems.is_empty(), text.parse::<std::net::IpAddr>()) {
        let canonical = address.to_string();
        if canonical != text {
            problems.push(format!("must be in canonical form ({canonical:?})"));
        }
    }
    problems
}

/// An IP address in any unambiguous form.
pub fn ip(text: &str) -> Problems {
    let mapped = |address: std::net::Ipv6Addr| address.to_ipv4_mapped().is_some();
    match text.parse::<std::net::IpAddr>() {
        Ok(std::net::IpAddr::V6(address)) if mapped(address) => {
            vec!["must not be an IPv4-mapped IPv6 address".into()]
        }
        Ok(_) => Vec::new(),
        Err(_) if has_leading_zeros(text) => vec!["must not have leading 0s".into()],
        Err(_) => {
            vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".into()]
        }
    }
}

fn has_leading_zeros(text: &str) -> bool {
    let parts: Vec<&str> = text.split('.').collect();
    parts.len() == 4
        && parts
            .iter()
            .all(|part| part.len() <= 3 + part.bytes().take_while(|b| *b == b'0').count())
        && parts.iter().all(|part| part.parse::<u32>().is_ok_and(|octet| octet < 256))
        && parts.iter().any(|part| part.len() > 1 && part.starts_with('0'))
}

/// A label key, an annotation key, a finalizer: `[prefix/]name`.
pub fn qualified(text: &str) -> Problems {
    let mut problems = Vec::new();
    let name = match text.split_once('/') {
        None => text,
        Some((_, name)) if name.contains('/') => {
            return vec![format!(
                "a valid label key {QUALIFIED} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
        Some(("", name)) => {
            problems.push("prefix part must be non-empty".into());
            name
        }
        Some((prefix, name)) => {
            if prefix.len() > SUBDOMAIN_BYTES_MAX {
                problems.push("prefix part must be no more than 253 bytes".into());
            }
            if !is_subdomain(prefix) {
                problems.push(format!("prefix part {SUBDOMAIN}"));
            }
            name
        }
    };
    if name.is_empty() {
        problems.push("name part must be non-empty".into());
    } else if name.len() > LABEL_BYTES_MAX {
        problems.push("name part must be no more than 63 bytes".into());
    }
    if !is_label_text(name) {
        problems.push(format!("name part {QUALIFIED}"));
    }
    problems
}

/// The value of a label.
pub fn label_value(text: &str) -> Problems {
    let mut problems = too_long(text, LABEL_BYTES_MAX, "bytes");
    if !text.is_empty() && !is_label_text(text) {
        problems.push(LABEL_VALUE.into());
    }
    problems
}

/// A key of a ConfigMap or Secret.
pub fn config_key(text: &str) -> Problems {
    let mut problems = too_long(text, SUBDOMAIN_BYTES_MAX, "characters");
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if text.is_empty() || !text.bytes().all(allowed) {
        problems.push(CONFIG_KEY.into());
    }
    if matches!(text, "." | "..") {
        problems.push(format!("must not be '{text}'"));
    } else if text.starts_with("..") {
        problems.push("must not start with '..'".into());
    }
    problems
}

/// The name of an environment variable.
pub fn env_name(text: &str) -> Problems {
    if text.is_empty() {
        return vec!["environment variable name must be non-empty".into()];
    }
    let printable = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'=';
    if text.bytes().all(printable) { Vec::new() } else { vec![ENV_NAME.into()] }
}

/// The name of a port (RFC 6335).
pub fn port_name(text: &str) -> Problems {
    let mut problems = too_long(text, 15, "characters");
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let mut unless = |fine: bool, problem: &str| {
        if !fine {
            problems.push(problem.to_owned());
        }
    };
    unless(
        !text.is_empty() && text.bytes().all(allowed),
        "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
    );
    unless(
        text.bytes().any(|byte| byte.is_ascii_lowercase()),
        "must contain at least one letter (a-z)",
    );
    unless(!text.contains("--"), "must not contain consecutive hyphens");
    unless(!text.starts_with('-') && !text.ends_with('-'), "must not begin or end with a hyphen");
    problems
}

/// A percentage such as `25%`.
pub fn percent(text: &str) -> Problems {
    let digits = text.strip_suffix('%').unwrap_or_default();
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Vec::new();
    }
    vec![PERCENT.into()]
}

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const LABEL_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const CONFIG_KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
const ENV_NAME: &str = "a valid environment variable name must consist only of printable ASCII characters other than '='";
const PERCENT: &str = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";

fn too_long(text: &str, max: usize, unit: &str) -> Problems {
    if text.len() <= max {
        return Vec::new();
    }
    vec![format!("must be no more than {max} {unit}")]
}

fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

fn is_label(text: &str) -> bool {
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().is_some_and(alphanumeric)
        && bytes.last().is_some_and(alphanumeric)
        && bytes.iter().all(|byte| alphanumeric(byte) || *byte == b'-')
}

fn is_label_text(text: &str) -> bool {
    let bytes = text.as_bytes();
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rule_of_their_kind() {
        let long = "a".repeat(253);
        for bad in ["A", "-a", "a-", "a..b", "a/b", ".", "é", "a b", "a_b", "a\0", "\u{200f}", ""]
        {
            assert!(!subdomain(bad).is_empty(), "{bad:?}");
        }
        assert_eq!(subdomain(&long), Problems::new());
        assert_eq!(subdomain(&format!("{long}a")), ["must be no more than 253 characters"]);
        assert_eq!(subdomain("a.b-c.0"), Problems::new());
        assert_eq!(label("a.b"), ["must not contain dots"]);
        assert_eq!(label("0a"), Problems::new());
        assert_eq!(label_1035("0a"), [LABEL_1035]);
        assert_eq!(path_segment("system:a b", Part::Whole), Problems::new());
        assert_eq!(path_segment("..", Part::Whole), ["may not be '..'"]);
        assert_eq!(
            path_segment("a/%", Part::Whole),
            ["may not contain '/'", "may not contain '%'"]
        );
        assert_eq!(ip_address("10.0.0.1"), Problems::new());
        assert_eq!(ip_address("::0"), ["must be in canonical form (\"::\")"]);
        assert_eq!(ip_address("10.0.00.1"), ["must not have leading 0s"]);
    }

    #[test]
    fn a_prefix_may_end_with_a_dash() {
        assert_eq!(check(NameRule::Subdomain, "web-", Part::Prefix), Problems::new());
        assert_eq!(check(NameRule::Subdomain, "web--", Part::Prefix), Problems::new());
        assert_eq!(check(NameRule::Subdomain, "web-", Part::Whole), [SUBDOMAIN]);
        assert_eq!(check(NameRule::Subdomain, "-", Part::Prefix), [SUBDOMAIN]);
        assert_eq!(check(NameRule::Label, "é-", Part::Prefix).len(), 1);
    }

    #[test]
    fn label_keys_and_values_have_messages_of_their_own() {
        assert_eq!(qualified("app.kubernetes.io/name"), Problems::new());
        assert_eq!(qualified("/x"), ["prefix part must be non-empty"]);
        assert_eq!(qualified("a/b/c").len(), 1);
        assert_eq!(qualified("").len(), 2);
        assert_eq!(qualified(&"a".repeat(64)), ["name part must be no more than 63 bytes"]);
        assert_eq!(label_value(""), Problems::new());
        assert_eq!(label_value("-x"), [LABEL_VALUE]);
        assert_eq!(label_value(&"a".repeat(64)), ["must be no more than 63 bytes"]);
    }

    #[test]
    fn keys_ports_and_percentages() {
        assert_eq!(config_key("..data"), ["must not start with '..'"]);
        assert_eq!(config_key("a/b"), [CONFIG_KEY]);
        assert_eq!(port_name("http-8080"), Problems::new());
        assert_eq!(port_name("80"), ["must contain at least one letter (a-z)"]);
        assert_eq!(percent("25%"), Problems::new());
        assert_eq!(percent("%"), [PERCENT]);
        assert_eq!(env_name("A.b-c"), Problems::new());
        assert_eq!(env_name("a=b"), [ENV_NAME]);
    }
}
