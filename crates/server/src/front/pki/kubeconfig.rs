//! Kubeconfigs: the administrator's, and those of other users.
//!
//! Promise: everything kubectl needs is inside, so the file can be copied elsewhere.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::{Pair, Pki};

/// What a user shows to the server.
#[derive(Clone, Copy, Debug)]
pub enum UserCredential<'a> {
    /// A client certificate.
    Certificate(&'a Pair),
    /// A bearer token.
    Token(&'a super::Secret),
}

/// A kubeconfig for the administrator of the server at `url`.
pub fn admin(pki: &Pki, url: &str) -> String {
    user(&pki.ca, url, "kubernetes-admin", UserCredential::Certificate(&pki.admin))
}

/// A kubeconfig for a user of the server at `url` with this certificate authority (PEM).
pub fn user(ca: &str, url: &str, name: &str, credential: UserCredential<'_>) -> String {
    let ca = STANDARD.encode(ca);
    // JSON strings are YAML: a name may contain anything.
    let quoted = |text: &str| headwater_json::Value::from(text).to_string();
    let name = quoted(name);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ":/.-_[]".contains(c);
    let url = if url.chars().all(is_plain) { url.to_owned() } else { quoted(url) };
    let credential = match credential {
        UserCredential::Certificate(pair) => format!(
            "client-certificate-data: {}\n    client-key-data: {}",
            STANDARD.encode(&pair.certificate),
            STANDARD.encode(pair.key.reveal())
        ),
        UserCredential::Token(token) => format!("token: {}", quoted(token.reveal())),
    };
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: headwater
  cluster:
    server: {url}
    certificate-authority-data: {ca}
users:
- name: {name}
  user:
    {credential}
contexts:
- name: headwater
  context:
    cluster: headwater
    user: {name}
current-context: headwater
"
    )
}
