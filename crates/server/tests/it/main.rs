//! The server over real sockets on loopback, and called directly.
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod api;
mod scripted_store;
mod https;
mod paths;
mod discovery;
mod representation;
mod protobuf;
mod reviews;
mod create;
mod additions;
mod admission_steps;
mod audit;
mod update;
mod patch;
mod behind;
mod delete;
mod namespaces;
mod list;
mod watch;
mod delta;
mod shards;
#[expect(clippy::needless_pass_by_value, reason = "`json!` rows read best by value")]
mod custom;
#[expect(clippy::needless_pass_by_value, reason = "`json!` rows read best by value")]
mod webhooks;
mod quota;
mod services;
mod access;
mod aggregation;
mod authorization;
mod nodes;
mod pod_security;
mod policies;
mod port_forward;
mod flow;
mod certificates;
#[expect(clippy::needless_pass_by_value, reason = "`json!` rows read best by value")]
mod credentials;
mod listen;
mod live;
mod metrics_page;
mod traces;
mod history;
mod long;
