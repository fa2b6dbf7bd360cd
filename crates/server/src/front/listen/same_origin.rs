//! Protection of the plain listener from web pages.
//!
//! Every client of the plain listener is the administrator, and a browser on the same machine is such
//! a client for every page that it shows. Promise: a request that a foreign page can cause is
//! rejected before it reaches the handler. A program that names the server by a loopback name or
//! address, and sends a media type of the API with its writes, notices nothing.

use std::net::{IpAddr, SocketAddr};

use http::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, ORIGIN};
use http::uri::Authority;
use http::{Method, StatusCode, Uri};

static SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Why a request is rejected.
pub(super) type Refusal = (StatusCode, &'static str);

/// Checks a request to the plain listener at `bound`.
pub(super) fn check(
    bound: SocketAddr,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<(), Refusal> {
    let host = match uri.authority() {
        Some(authority) => Some(authority.clone()),
        None => headers.get(HOST).and_then(|host| Authority::try_from(host.as_bytes()).ok()),
    };
    // A foreign name that resolves to a loopback address (DNS rebinding) makes a foreign page
    // same-origin for the browser.
    let named = host.as_ref().filter(|host| is_local(host.host(), bound.ip()));
    let Some(named) = named else {
        let why = "without TLS the Host header must be localhost or a loopback address";
        return Err((StatusCode::FORBIDDEN, why));
    };
    if let Some(origin) = headers.get(ORIGIN)
        && !is_same_origin(origin.as_bytes(), named)
    {
        return Err((StatusCode::FORBIDDEN, "requests of web pages are not accepted without TLS"));
    }
    let site = headers.get(&SEC_FETCH_SITE).map(|site| site.as_bytes());
    if !matches!(site, None | Some(b"same-origin" | b"none")) {
        return Err((StatusCode::FORBIDDEN, "requests of web pages are not accepted without TLS"));
    }
    let has_body = [Method::POST, Method::PUT, Method::PATCH].contains(method);
    if has_body && !is_api_media_type(headers) {
        let why = "without TLS a write needs a Content-Type such as application/json";
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, why));
    }
    Ok(())
}

fn is_local(host: &str, bound: IpAddr) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    match bare.parse::<IpAddr>() {
        Ok(ip) => ip.to_canonical().is_loopback() || ip == bound,
        Err(_) => bare.eq_ignore_ascii_case("localhost"),
    }
}

fn is_same_origin(origin: &[u8], host: &Authority) -> bool {
    origin.strip_prefix(b"http://").is_some_and(|origin| {
        Authority::try_from(origin)
            .is_ok_and(|origin| origin.as_str().eq_ignore_ascii_case(host.as_str()))
    })
}

/// Whether the body has a media type that a browser sends to another origin only after asking. A
/// form, plain text and a body without a type are sent without asking.
fn is_api_media_type(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()) else {
        return false;
    };
    let essence = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence.starts_with("application/") && essence != "application/x-www-form-urlencoded"
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[track_caller]
    fn code(method: &str, uri: &str, headers: &[(&str, &str)]) -> u16 {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).unwrap();
        let bound = "127.0.0.1:8001".parse().unwrap();
        let checked = check(bound, request.method(), request.uri(), request.headers());
        checked.err().map_or(200, |(code, _)| code.as_u16())
    }

    #[test]
    fn only_loopback_hosts_are_served() {
        let get = |host| code("GET", "/api", &[("host", host)]);
        for host in ["localhost", "LocalHost:8001", "127.0.0.1:1", "127.9.9.9", "[::1]:8001"] {
            assert_eq!(get(host), 200, "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "10.0.0.1:8001", "", "[::2]", "a b"]
        {
            assert_eq!(get(host), 403, "{host}");
        }
        assert_eq!(code("GET", "http://evil.example/", &[("host", "localhost")]), 403);
    }

    #[test]
    fn requests_of_foreign_pages_are_rejected() {
        let host = ("host", "localhost:8001");
        for (header, expected) in [
            (("origin", "http://localhost:8001"), 200),
            (("origin", "http://localhost:3000"), 403),
            (("origin", "http://127.0.0.1:8001"), 403),
            (("origin", "https://localhost:8001"), 403),
            (("origin", "https://evil.example"), 403),
            (("origin", "null"), 403),
            (("sec-fetch-site", "none"), 200),
            (("sec-fetch-site", "same-origin"), 200),
            (("sec-fetch-site", "same-site"), 403),
            (("sec-fetch-site", "cross-site"), 403),
        ] {
            assert_eq!(code("GET", "/api", &[host, header]), expected, "{header:?}");
        }
    }

    #[test]
    fn a_write_needs_a_media_type_that_no_form_can_send() {
        let host = ("host", "localhost:8001");
        for (media_type, expected) in [
            ("application/json", 200),
            ("application/json; charset=utf-8", 200),
            ("application/yaml", 200),
            ("application/vnd.kubernetes.protobuf", 200),
            ("application/apply-patch+yaml", 200),
            ("application/merge-patch+json", 200),
            ("application/x-www-form-urlencoded", 415),
            ("Application/X-WWW-Form-URLEncoded; a=b", 415),
            ("multipart/form-data; boundary=x", 415),
            ("text/plain", 415),
            ("text/plain; application/json", 415),
            ("", 415),
        ] {
            for method in ["POST", "PUT", "PATCH"] {
                let headers = [host, ("content-type", media_type)];
                assert_eq!(code(method, "/api", &headers), expected, "{method} {media_type}");
            }
        }
        assert_eq!(code("POST", "/debug/headwater/compact", &[host]), 415);
        assert_eq!(code("DELETE", "/api/v1/namespaces/a", &[host]), 200);
    }
}
