//! HTTP in, HTTP out: routes, admission, writes, reads and watch streams over the cache.
//!
//! River: HTTP → identity → route → authorization → handler; writes go down to the store, reads
//! come up from the cache. The whole server is one value, [`Server`], that answers one request at a
//! time; listening is another part, so that a test can do without a socket.
//!
//! Rooms depend in one direction, each only on those below it:
//!
//! ```text
//! start       puts a server together and stops it
//! pieces      parts of requests for the micro-benchmarks
//! pipeline    one request from its head to its answer; the only one that knows every verb
//! upkeep      objects that the server itself writes: bootstrap, endpoints, definitions
//! verbs       get, list, watch, create, update, patch, apply, delete, and the subresources
//! server      the server as one value
//! relayed     what a relay holds of its upstream
//! live        watches and requests as read-only resources
//! containers  logs of containers and commands in them, as a trait
//! admission   what an object passes between its body and the store
//! backend     the store, the cache, the kinds, the clock; `commit`: guarded writes
//! request     route, call, authorization, flow control
//! kinds       registry, custom kinds, conversion between versions, OpenAPI
//! trace       the path of a request in time
//! audit       the record of who did what
//! front       sockets, TLS, certificates, the identity of the client
//! outgoing    calls to webhooks
//! work        slots for requests that compute for long
//! system      metrics, health, backups
//! object      objects as trees
//! answer      status objects and bodies
//! ```

pub mod start;
mod pipeline;
pub mod audit;
pub mod trace;
pub mod upkeep;
mod verbs;
mod server;
mod relayed;
mod live;
pub mod containers;
mod admission;
mod backend;
mod commit;
mod recent;
pub mod request;
pub mod kinds;
pub mod front;
mod outgoing;
mod work;
pub mod system;
mod object;
mod random;
mod lock;
pub mod answer;
#[doc(hidden)]
pub mod pieces;

pub use admission::service_ranges::{InvalidRange, ServiceRanges};
pub use admission::settings::{AdmissionSettings, UnknownPlugin};
pub use answer::body::{Body, Response};
pub use answer::{body, status};
pub use backend::Backend;
pub use front::{
    authenticator, certificates, identity, listen, oidc, pki, request_header, service_account, tls,
    token_file, token_webhook,
};
pub use kinds::openapi;
pub use kinds::registry::{self, Registry};
pub use outgoing::upstream::{PassedCredential, ReviewKind, Upstream};
pub use outgoing::{Forwarding, Loopback};
pub use relayed::{HeldPart, HeldResource};
pub use request::authorize::{self as authorization, Authorization};
pub use request::flow::limits::Limits;
pub use request::route;
pub use server::{Options, Server, Settings};
pub use start::{Running, start};
pub use system::{backup, metrics};
pub use upkeep::presence;
