//! Sockets, TLS, certificates, and the identity of the client.
//!
//! Reading order: `listen` accepts connections and reads requests; `tls` and `pki` hold keys and
//! certificates; `authenticator` determines who sent a request, by the kinds of credentials below it;
//! `certificates` issues client certificates.

pub mod listen;
pub mod tls;
pub mod pki;
pub mod identity;
pub mod authenticator;
pub(crate) mod compare;
pub mod token_file;
pub mod service_account;
pub(crate) mod bootstrap_token;
pub mod oidc;
pub mod token_webhook;
pub mod request_header;
pub mod certificates;
