//! HTTP in, HTTP out: routes, admission, writes, reads and watch streams over the cache.
//!
//! River: HTTP → identity → route → authorization → handler; writes go down to the store, reads
//! come up from the cache. The whole server is one value, [`Server`], that answers one request at a
//! time; listening is another part, so that a test can do without a socket.
//!
//! The rooms, in the order of a request: `front` (sockets, TLS, identity), `pipeline` (one request from
//! head to answer), `request` (route, authorization, flow control), `verbs`, `admission`, `kinds`,
//! `answer`; then `system` (metrics, health, backups) and `upkeep` (what the server writes itself).

pub mod front;
mod pipeline;
pub mod request;
mod verbs;
mod admission;
pub mod kinds;
pub mod answer;
pub mod system;
pub mod upkeep;
mod outgoing;
mod object;
mod random;

pub use answer::body::{Body, Response};
pub use answer::{body, status};
pub use front::{identity, listen, pki, service_account, tls, token_file};
pub use kinds::openapi;
pub use kinds::registry::{self, Registry};
pub use outgoing::Loopback;
pub use pipeline::{Options, Parts, Server};
pub use request::fairness::Limits;
pub use request::route;
pub use system::{backup, health, metrics};
pub use upkeep::presence;
