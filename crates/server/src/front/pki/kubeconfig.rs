//! The administrator's kubeconfig.
//!
//! Promise: everything kubectl needs is inside it, so the file can be copied elsewhere.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Pki;

/// A kubeconfig for the administrator of the server at `url`.
pub fn admin(pki: &Pki, url: &str) -> String {
    let ca = STANDARD.encode(&pki.ca);
    let certificate = STANDARD.encode(&pki.admin.certificate);
    let key = STANDARD.encode(pki.admin.key.reveal());
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: headwater
  cluster:
    server: {url}
    certificate-authority-data: {ca}
users:
- name: kubernetes-admin
  user:
    client-certificate-data: {certificate}
    client-key-data: {key}
contexts:
- name: headwater
  context:
    cluster: headwater
    user: kubernetes-admin
current-context: headwater
"
    )
}
