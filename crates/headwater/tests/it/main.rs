//! Tests of the built binary.
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod architecture;
mod bad_input;
mod bench;
mod browser;
mod command_line;
mod credentials;
mod data;
mod dev;
mod dev_kill;
mod encryption;
mod dev_workloads;
mod envtest;
mod etcd;
mod kill_loop;
mod kube_client;
mod kubectl;
mod kubectl_auth;
mod custom;
mod kubectl_write;
mod manual;
mod observe;
mod page;
mod operator_rights;
mod past;
mod process;
mod python;
mod recording;
mod relay;
mod round_trip;
mod soak;
mod spec;
mod tokens;
mod transcript;
mod watchers;
mod withdrawn;
