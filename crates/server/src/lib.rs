//! HTTP in, HTTP out: routes, admission, writes, reads and watch streams over the cache.
//!
//! River: HTTP → identity → route → authorization → handler; writes go down to the store, reads
//! come up from the cache. The whole server is one value, [`Server`], that answers one request at a
//! time; listening is another part, so that a test can do without a socket.

pub mod pki;
pub mod tls;
pub mod token_file;
pub mod identity;
pub mod service_account;
pub mod metrics;
pub mod health;
pub mod listen;
pub mod body;
pub mod status;
pub mod registry;
pub mod route;
mod random;
mod authorize;
mod impersonate;
mod flow;
mod fairness;
mod observe;
mod decode;
mod encode;
mod read;
mod watch;
mod websocket;
mod object;
mod outgoing;
mod admission;
mod addresses;
mod claims;
mod manage;
mod write;
mod patch;
mod delete;
mod subresource;
mod scale;
mod binding;
mod kubelet;
mod review;
mod custom;
pub mod backup;
mod discovery;
pub mod openapi;
mod bootstrap;
pub mod presence;
mod server;

pub use body::{Body, Response};
pub use fairness::Limits;
pub use outgoing::Loopback;
pub use registry::Registry;
pub use server::{Options, Parts, Server};
