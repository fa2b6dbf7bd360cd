//! The parsed request, and whether the client may send it.
//!
//! Reading order: `route` turns a method and a path into a verb and a target; `call` is the rest of
//! the request; `authorize` and `impersonate` decide who may send it; `flow` limits what runs at a
//! time; `decode` reads bodies; `observe` counts and times requests.

pub mod route;
pub(crate) mod call;
pub mod authorize;
pub(crate) mod impersonate;
pub(crate) mod flow;
pub(crate) mod decode;
pub(crate) mod observe;
