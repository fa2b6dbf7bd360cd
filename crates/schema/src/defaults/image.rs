//! The pull policy of an image: `Always` for a mutable tag.

/// The maximum length of the name of an image, with its domain.
const NAME_BYTES_MAX: usize = 255;
const TAG_BYTES_MAX: usize = 128;

/// The policy of a container that names none. An image that cannot be parsed counts as fixed.
pub(super) fn pull_policy(image: &str) -> &'static str {
    match tag(image) {
        Some("latest") => "Always",
        _ => "IfNotPresent",
    }
}

/// The tag of an image, `latest` if it has neither tag nor digest; `None` if it is malformed.
fn tag(image: &str) -> Option<&str> {
    let (named, digest) = match image.split_once('@') {
        Some((named, digest)) => (named, Some(digest)),
        None => (image, None),
    };
    let slash = named.rfind('/').map_or(0, |at| at + 1);
    let (name, tag) = match named[slash..].find(':') {
        Some(colon) => (&named[..slash + colon], Some(&named[slash + colon + 1..])),
        None => (named, None),
    };
    let is_valid = is_name(name) && tag.is_none_or(is_tag) && digest.is_none_or(is_digest);
    if !is_valid {
        return None;
    }
    Some(tag.unwrap_or(if digest.is_some() { "" } else { "latest" }))
}

/// `[domain/]path`. Without a dot, a port or a capital the first part belongs to the path.
fn is_name(name: &str) -> bool {
    let (domain, path) = match name.split_once('/') {
        Some((first, rest)) if is_domain_like(first) => (first, rest),
        _ => ("docker.io", name),
    };
    let is_id =
        name.len() == 64 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let library = if domain == "docker.io" && !path.contains('/') { "library/".len() } else { 0 };
    !is_id
        && domain.len() + 1 + library + path.len() <= NAME_BYTES_MAX
        && is_domain(domain)
        && path.split('/').all(is_component)
}

fn is_domain_like(part: &str) -> bool {
    part.contains(['.', ':']) || part == "localhost" || part.to_lowercase() != part
}

fn is_domain(domain: &str) -> bool {
    let (host, port) = match domain.rsplit_once(':') {
        Some((host, port)) if !host.starts_with('[') || host.ends_with(']') => (host, Some(port)),
        _ => (domain, None),
    };
    let is_label = |label: &str| {
        let inside = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        !label.is_empty() && inside && !label.starts_with('-') && !label.ends_with('-')
    };
    let is_address = |host: &str| {
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        inner.is_some_and(|inner| {
            !inner.is_empty() && inner.bytes().all(|byte| byte == b':' || byte.is_ascii_hexdigit())
        })
    };
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    (host.split('.').all(is_label) || is_address(host)) && port.is_none_or(is_port)
}

/// Small letters and digits, separated by `.`, `_`, `__` or dashes.
fn is_component(component: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let is_ended = component.starts_with(is_letter) && component.ends_with(is_letter);
    let mut separators = component.split(is_letter).filter(|between| !between.is_empty());
    is_ended
        && separators.all(|between| {
            matches!(between, "." | "_" | "__") || between.bytes().all(|byte| byte == b'-')
        })
}

fn is_tag(tag: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    tag.len() <= TAG_BYTES_MAX
        && tag.bytes().next().is_some_and(is_word)
        && tag.bytes().all(|byte| is_word(byte) || matches!(byte, b'.' | b'-'))
}

fn is_digest(digest: &str) -> bool {
    let Some((algorithm, hash)) = digest.split_once(':') else { return false };
    let starts = algorithm.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic());
    starts && hash.len() >= 32 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutable_tags_are_pulled_always() {
        let digest = format!("@sha256:{}", "0a".repeat(32));
        for (image, expected) in [
            ("x", "Always"),
            ("x:latest", "Always"),
            ("localhost:5000/a/b", "Always"),
            ("Registry.example/a", "Always"),
            ("1.2.3.4", "Always"),
            ("a_b/c__d/e--f", "Always"),
            (&format!("x:latest{digest}"), "Always"),
            ("[fe80::1]:80/a", "Always"),
            ("x:1", "IfNotPresent"),
            (&format!("x{digest}"), "IfNotPresent"),
            ("", "IfNotPresent"),
            ("Upper", "IfNotPresent"),
            ("-x", "IfNotPresent"),
            ("a b", "IfNotPresent"),
            ("foo.bar/", "IfNotPresent"),
            ("a___b", "IfNotPresent"),
            ("a:b:c", "IfNotPresent"),
            (&"x".repeat(300), "IfNotPresent"),
            (&"ab".repeat(32), "IfNotPresent"),
        ] {
            assert_eq!(pull_policy(image), expected, "{image}");
        }
    }
}
