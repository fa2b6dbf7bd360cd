//! Which requests the page may send to the cluster.
//!
//! River: `request`, `stream` → **paths** → `upstream`.
//! Promise: an allowed path reads. Subresources that connect to something else (exec, attach,
//! port-forward, proxy) are refused: they act with a GET, and content that they return would have
//! the origin of the page.

/// The maximum length of a path with its query.
const LENGTH_MAX: usize = 8 * 1024;
/// Subresources that are connections to something else.
const CONNECTIONS: [&str; 4] = ["exec", "attach", "portforward", "proxy"];

/// Whether a path with its query may be read.
pub(super) fn may_read(path_and_query: &str) -> bool {
    let path = path_and_query.split_once('?').map_or(path_and_query, |(path, _)| path);
    let is_plain = path_and_query.bytes().all(|byte| byte.is_ascii_graphic());
    if path_and_query.len() > LENGTH_MAX || !is_plain || !has_plain_escapes(path) {
        return false;
    }
    let Some(path) = path.strip_prefix('/') else { return false };
    let segments: Vec<&str> = path.split('/').collect();
    let (last, before) = segments.split_last().unwrap_or((&"", &[]));
    if before.iter().chain((!last.is_empty()).then_some(last)).any(|part| is_special(part)) {
        return false;
    }
    match segments.as_slice() {
        ["version"] => true,
        ["openapi", "v2" | "v3", ..] => true,
        ["debug", "headwater", "river" | "versions"] => true,
        ["api", rest @ ..] => rest.get(1..).is_none_or(is_object),
        ["apis", rest @ ..] => rest.get(2..).is_none_or(is_object),
        _ => false,
    }
}

/// Whether the segments after the version name objects, and not a connection.
fn is_object(segments: &[&str]) -> bool {
    let (first, rest) = match segments {
        ["watch", rest @ ..] => return is_object(rest),
        ["namespaces", _, resource, rest @ ..] => (*resource, rest),
        [resource, rest @ ..] => (*resource, rest),
        [] => return true,
    };
    // `/api/v1/proxy/…` is an old form.
    let is_connection = rest.get(1).is_some_and(|sub| CONNECTIONS.contains(sub));
    first != "proxy" && !is_connection
}

fn is_special(segment: &str) -> bool {
    matches!(segment, "" | "." | "..")
}

/// Whether escapes hide no letter, digit, dot, slash or percent sign: a word has one spelling.
fn has_plain_escapes(path: &str) -> bool {
    path.split('%').skip(1).all(|rest| {
        let byte = rest.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        byte.is_some_and(|byte| {
            byte >= b' ' && !byte.is_ascii_alphanumeric() && !b"/\\.%-".contains(&byte)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_allowed() {
        for path in [
            "/api",
            "/apis",
            "/version",
            "/api/v1/pods?watch=1&resourceVersion=5",
            "/api/v1/namespaces/proxy/pods/exec",
            "/api/v1/namespaces/shop/pods/web-1/log",
            "/api/v1/namespaces",
            "/apis/apps/v1/namespaces/shop/deployments/web/scale",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode",
            "/openapi/v3/api/v1",
            "/debug/headwater/river?watch=1",
        ] {
            assert!(may_read(path), "{path}");
        }
    }

    #[test]
    fn connections_and_other_paths_are_refused() {
        for path in [
            "/api/v1/namespaces/shop/pods/web-1/exec?command=sh",
            "/api/v1/namespaces/shop/pods/web-1/attach",
            "/api/v1/namespaces/shop/pods/web-1/portforward",
            "/api/v1/namespaces/shop/services/web/proxy/admin",
            "/api/v1/nodes/node-1/proxy/run",
            "/api/v1/proxy/nodes/node-1",
            "/api/v1/watch/namespaces/shop/pods/web-1/exec",
            "/api/v1/namespaces/shop/pods/web-1/%65xec",
            "/api/v1/namespaces/shop/pods/web-1%2Fexec",
            "/api/v1/../debug/headwater/backup",
            "/api//v1/pods",
            "/debug/headwater/backup",
            "/debug/pprof",
            "/metrics",
            "/",
            "",
            "api/v1/pods",
            "/api/v1/pods?x= y",
        ] {
            assert!(!may_read(path), "{path}");
        }
        assert!(!may_read(&format!("/api/v1/{}", "x".repeat(LENGTH_MAX))));
    }
}
