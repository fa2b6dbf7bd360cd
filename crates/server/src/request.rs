//! What one request asks for, and whether the client may ask it.
//!
//! Reading order: `route` turns a method and a path into a target; `call` is the rest of the request;
//! `authorize` and `impersonate` //! decide who may do it; `flow` and `fairness` bound how much runs at a time; `decode` reads bodies;
//! `observe` counts and times requests.

pub mod route;
pub(crate) mod call;
pub(crate) mod authorize;
pub(crate) mod impersonate;
pub(crate) mod flow;
pub(crate) mod fairness;
pub(crate) mod decode;
pub(crate) mod observe;
