//! Key services for encryption at rest: Kubernetes' KMS v2 plugins over gRPC.
//!
//! River: server writes → encrypted store → **kms** → a plugin's unix socket. Only seeds pass here:
//! the store encrypts the values.
//! Promise: every call ends within the configured time, and nothing is called but the socket.

pub mod plugin;
pub mod proto;

pub use plugin::{InvalidEndpoint, KmsPlugin};
