//! HTTP in, HTTP out: routes, admission, writes, reads and watch streams over the cache.

pub mod pki;
pub mod tls;
pub mod token_file;
pub mod identity;
pub mod metrics;
pub mod health;
pub mod listen;
