//! Who may use the page: a secret in the address, used once, becomes a cookie.
//!
//! River: request → **access** → `request`.
//! Promise: a request is served only with the name of this server as its host (so no name that an
//! attacker resolves to 127.0.0.1), only from its own origin, and to the cluster only with a cookie.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Result, anyhow};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderMap;
use http::header::{COOKIE, HOST, HeaderName, ORIGIN};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

/// Browsers that are logged in at the same time; the oldest is logged out for another.
const SESSIONS_MAX: usize = 32;
/// The header in which browsers say which page sends a request.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The secrets of a page server.
pub(super) struct PageAccess {
    hosts: [String; 3],
    address: SocketAddr,
    secrets: Mutex<PageSecrets>,
}

struct PageSecrets {
    /// The secret of the address that was printed last.
    token: String,
    sessions: VecDeque<String>,
}

impl PageAccess {
    pub(super) fn new(address: SocketAddr) -> Result<PageAccess> {
        let port = address.port();
        let hosts = ["127.0.0.1", "localhost", "[::1]"].map(|host| format!("{host}:{port}"));
        let secrets = PageSecrets { token: secret()?, sessions: VecDeque::new() };
        Ok(PageAccess { hosts, address, secrets: Mutex::new(secrets) })
    }

    /// The address that opens the page once.
    pub(super) fn url(&self) -> String {
        format!("http://{}/?token={}", self.address, self.secrets().token)
    }

    /// Whether a request names this server as its host, and comes from no other origin.
    pub(super) fn is_addressed(&self, headers: &HeaderMap) -> bool {
        let text = |name: &HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or(""));
        let Some(host) = text(&HOST).filter(|host| self.hosts.iter().any(|own| own == host)) else {
            return false;
        };
        let origin = text(&ORIGIN).is_none_or(|origin| origin == format!("http://{host}"));
        // Another port of this machine is the same site for cookies, but not the same origin.
        origin && text(&SEC_FETCH_SITE).is_none_or(|site| matches!(site, "same-origin" | "none"))
    }

    /// Whether a request has the host of this server; a page may be opened from anywhere.
    pub(super) fn has_host(&self, headers: &HeaderMap) -> bool {
        let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        self.hosts.iter().any(|own| own == host)
    }

    /// Whether a WebSocket is opened by the page itself; browsers always name the origin.
    pub(super) fn is_from_page(&self, headers: &HeaderMap) -> bool {
        headers.contains_key(ORIGIN) && self.is_addressed(headers)
    }

    /// Exchanges the secret of the address for a cookie. The secret is replaced by another one.
    pub(super) fn exchange(&self, token: &str) -> Option<String> {
        let mut secrets = self.secrets();
        if !is_same(token, &secrets.token) {
            return None;
        }
        let (token, session) = (secret().ok()?, secret().ok()?);
        secrets.token = token;
        if secrets.sessions.len() == SESSIONS_MAX {
            secrets.sessions.pop_front();
        }
        secrets.sessions.push_back(session.clone());
        Some(format!("{}={session}; Path=/; HttpOnly; SameSite=Strict", self.cookie()))
    }

    /// Whether a request has the cookie of a session.
    pub(super) fn is_logged_in(&self, headers: &HeaderMap) -> bool {
        let name = self.cookie();
        let sent: Vec<&str> = headers
            .get_all(COOKIE)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|text| text.split(';'))
            .filter_map(|pair| pair.trim().split_once('='))
            .filter_map(|(key, value)| (key == name).then_some(value))
            .collect();
        let secrets = self.secrets();
        sent.iter().any(|value| secrets.sessions.iter().any(|known| is_same(value, known)))
    }

    /// Cookies are shared by all ports of a host, so the name has the port.
    fn cookie(&self) -> String {
        format!("headwater-page-{}", self.address.port())
    }

    fn secrets(&self) -> MutexGuard<'_, PageSecrets> {
        // Secrets are replaced as a whole, so they are valid even after a panic.
        self.secrets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// 256 random bits as text.
fn secret() -> Result<String> {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).map_err(|_| anyhow!("the system has no random bytes"))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// Compares digests, so that the time tells nothing about the secret.
fn is_same(sent: &str, secret: &str) -> bool {
    digest(&SHA256, sent.as_bytes()).as_ref() == digest(&SHA256, secret.as_bytes()).as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access() -> PageAccess {
        PageAccess::new("127.0.0.1:8080".parse().unwrap()).unwrap()
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), value.parse().unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn the_secret_of_the_address_is_exchanged_once() {
        let access = access();
        let url = access.url();
        let (_, token) = url.split_once("token=").unwrap();
        assert!(access.exchange("wrong").is_none());
        let cookie = access.exchange(token).unwrap();
        assert!(cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict"), "{cookie}");
        assert!(access.exchange(token).is_none(), "a second time");
        assert!(!access.url().contains(token));
        let pair = cookie.split(';').next().unwrap();
        assert!(access.is_logged_in(&headers(&[("cookie", &format!("other=1; {pair}"))])));
        assert!(!access.is_logged_in(&headers(&[("cookie", "headwater-page-8080=x")])));
        assert!(!access.is_logged_in(&headers(&[])));
    }

    #[test]
    fn a_host_that_is_not_this_server_is_refused() {
        let access = access();
        for (host, allowed) in [
            ("127.0.0.1:8080", true),
            ("localhost:8080", true),
            ("[::1]:8080", true),
            ("127.0.0.1", false),
            ("127.0.0.1:8081", false),
            ("attacker.example:8080", false),
        ] {
            assert_eq!(access.has_host(&headers(&[("host", host)])), allowed, "{host}");
            assert_eq!(access.is_addressed(&headers(&[("host", host)])), allowed, "{host}");
        }
        assert!(!access.has_host(&headers(&[])));
    }

    #[test]
    fn another_origin_is_refused() {
        let access = access();
        let host = ("host", "localhost:8080");
        assert!(access.is_addressed(&headers(&[host, ("origin", "http://localhost:8080")])));
        assert!(!access.is_addressed(&headers(&[host, ("origin", "http://localhost:3000")])));
        assert!(!access.is_addressed(&headers(&[host, ("origin", "null")])));
        assert!(!access.is_addressed(&headers(&[host, ("sec-fetch-site", "same-site")])));
        assert!(!access.is_addressed(&headers(&[host, ("sec-fetch-site", "cross-site")])));
        assert!(!access.is_from_page(&headers(&[host])), "no origin");
    }

    #[test]
    fn the_oldest_session_ends_for_another() {
        let access = access();
        let cookie = || {
            let token = access.url().split_once("token=").unwrap().1.to_owned();
            access.exchange(&token).unwrap().split(';').next().unwrap().to_owned()
        };
        let first = cookie();
        let others: Vec<String> = (0..SESSIONS_MAX).map(|_| cookie()).collect();
        assert!(!access.is_logged_in(&headers(&[("cookie", &first)])));
        assert!(others.iter().all(|pair| access.is_logged_in(&headers(&[("cookie", pair)]))));
    }
}
