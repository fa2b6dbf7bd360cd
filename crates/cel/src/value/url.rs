//! URLs.

/// The parts of a URL that expressions can access.
#[derive(Debug)]
pub struct Url {
    pub(crate) text: String,
    pub(crate) scheme: String,
    pub(crate) host: String,
    pub(crate) hostname: String,
    pub(crate) port: String,
    pub(crate) path: String,
    pub(crate) query: String,
}

impl Url {
    /// An absolute URL, or an absolute path.
    pub(crate) fn parse(text: &str) -> Option<Url> {
        if text.is_empty() || text.chars().any(|c| c.is_ascii_control()) {
            return None;
        }
        let (rest, _fragment) = text.split_once('#').unwrap_or((text, ""));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let scheme_end = rest.find(':').filter(|end| {
            let scheme = &rest[..*end];
            scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
        });
        let (scheme, rest) = match scheme_end {
            Some(end) => (&rest[..end], &rest[end + 1..]),
            None if rest.starts_with('/') => ("", rest),
            None => return None,
        };
        let (host, path) = match rest.strip_prefix("//") {
            Some(rest) => match rest.find('/') {
                Some(end) => rest.split_at(end),
                None => (rest, ""),
            },
            None => ("", rest),
        };
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        let (hostname, port) = match host.strip_prefix('[') {
            Some(rest) => {
                let (name, after) = rest.split_once(']')?;
                (name, after.strip_prefix(':').unwrap_or(after))
            }
            None => host.rsplit_once(':').unwrap_or((host, "")),
        };
        if host.contains(' ') || !port.chars().all(|c| c.is_ascii_digit()) {
            return None;
        }
        Some(Url {
            text: text.to_owned(),
            scheme: scheme.to_ascii_lowercase(),
            host: host.to_owned(),
            hostname: hostname.to_owned(),
            port: port.to_owned(),
            path: escape(path),
            query: query.to_owned(),
        })
    }
}

/// Escapes the invalid characters of a path.
fn escape(path: &str) -> String {
    let mut escaped = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            byte if byte.is_ascii_alphanumeric() => escaped.push(char::from(byte)),
            byte if b"-_.~$&+,/:;=@!'()*[]%".contains(&byte) => escaped.push(char::from(byte)),
            byte => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}
