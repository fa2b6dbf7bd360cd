//! Sockets, TLS, certificates, and the identity of the client.
//!
//! Reading order: `listen` accepts connections and reads requests; `tls` and `pki` hold keys and
//! certificates; `identity`, `token_file` and `service_account` determine who sent a request.

pub mod listen;
pub mod tls;
pub mod pki;
pub mod identity;
pub mod token_file;
pub mod service_account;
pub mod certificates;
