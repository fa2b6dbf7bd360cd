//! The handlers: one module per verb, then the subresources.
//!
//! Reading order: `read`, `history`, `watch` and `websocket` serve from the cache; `write`, `patch` and
//! `delete` change the store; `subresource` chooses among `scale`, `binding`, `kubelet`, `review`
//! and `token_request`; `discovery` and `openapi` serve non-resource paths; `encode` writes objects,
//! lists and events in the representation that the client accepts.

pub(crate) mod newest;
pub(crate) mod read;
pub(crate) mod history;
pub(crate) mod watch;
pub(crate) mod websocket;
pub(crate) mod write;
pub(crate) mod uncontrolled;
pub(crate) mod patch;
pub(crate) mod delete;
pub(crate) mod subresource;
pub(crate) mod scale;
pub(crate) mod binding;
pub(crate) mod kubelet;
pub(crate) mod spdy;
pub(crate) mod remote_command;
pub(crate) mod port_forward;
pub(crate) mod review;
pub(crate) mod token_request;
pub(crate) mod discovery;
pub(crate) mod openapi;
pub(crate) mod proxy;
pub(crate) mod river;
pub(crate) mod encode;
