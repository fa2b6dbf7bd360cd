//! Forwarding to a process on this machine: how a webhook in a simulated pod is debugged.
//!
//! River: resolution of a Service, ports of a pod → **forwarding** → loopback.
//! Promise: an annotation leads to loopback and nowhere else, and only if the process allows it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Mutex;

use headwater_cache::Cache;
use headwater_json::Value;
use tokio::sync::Notify;

use crate::lock::lock;
use crate::object::{meta, tree};

/// The prefix of Services in the cache.
pub(super) const SERVICES: &str = "/registry/core/services/";

/// The annotation of a Service or a Pod with the address of the process that replies in its place.
const FORWARD_TO: &str = "headwater.dev/forward-to";

/// Whether Services and Pods may name a process on this machine that replies in their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarding {
    /// They may: the machine belongs to the author of the objects.
    Honored,
    /// They may not: their authors could reach services that are local to the machine.
    Ignored,
}

impl Forwarding {
    /// The address that an object names, or why it is not used.
    pub(crate) fn address(self, object: &Value) -> Option<Result<SocketAddr, String>> {
        let text = object["metadata"]["annotations"][FORWARD_TO].as_str()?;
        if self == Forwarding::Ignored {
            return None;
        }
        let address = text.trim().parse::<SocketAddr>().ok();
        let address = address.filter(|address| address.ip().to_canonical().is_loopback());
        Some(address.ok_or_else(|| {
            format!("annotation {FORWARD_TO}: {text:?} must be a loopback address with a port, such as 127.0.0.1:9443")
        }))
    }

    /// The address for a port of a pod: that of the pod, or of a Service whose target the port is.
    pub(crate) fn of_port(
        self,
        cache: &Cache,
        pod: &Value,
        port: u16,
    ) -> Option<Result<SocketAddr, String>> {
        self.address(pod).or_else(|| {
            let services = cache.snapshot(&cache.resource(SERVICES));
            let mut own = services
                .iter(meta(pod, "namespace"), None)
                .filter_map(|service| tree(service.as_slice()).ok())
                .filter(|service| targets(service, pod, port));
            own.find_map(|service| self.address(&service))
        })
    }

    /// Why a Service of simulated pods is not called, and what helps.
    pub(super) fn advice(self, namespace: &str, name: &str) -> String {
        let why = format!("the pods of service {namespace}/{name} are simulated and serve nothing");
        match self {
            Forwarding::Ignored => why,
            Forwarding::Honored => format!(
                "{why}; to route it to a process on this machine, run: {}",
                command(namespace, name)
            ),
        }
    }
}

/// Whether a port of a Service leads to this port of the pod.
fn targets(service: &Value, pod: &Value, port: u16) -> bool {
    let Some(selector) = service["spec"]["selector"].as_object() else { return false };
    let labels = &pod["metadata"]["labels"];
    let selects = selector.iter().all(|(name, value)| labels[name.as_str()] == *value);
    let containers = || pod["spec"]["containers"].as_array().into_iter().flatten();
    let is_named = |name: &Value| {
        let mut ports = containers().flat_map(|container| container["ports"].as_array()).flatten();
        name.is_string()
            && ports.any(|known| known["name"] == *name && known["containerPort"] == port)
    };
    let mut ports = service["spec"]["ports"].as_array().into_iter().flatten();
    selects
        && !selector.is_empty()
        && ports.any(|entry| {
            let target = &entry["targetPort"];
            let number = if target.is_null() { &entry["port"] } else { target };
            *number == port || is_named(target)
        })
}

/// The command with which a Service is routed.
fn command(namespace: &str, name: &str) -> String {
    format!("kubectl annotate service -n {namespace} {name} {FORWARD_TO}=127.0.0.1:PORT")
}

/// The maximum number of Services that wait to be reported; more are not.
const UNROUTED_MAX: usize = 100;

/// Services of simulated pods that were called without a route.
#[derive(Default)]
pub(super) struct Unrouted {
    waiting: Mutex<BTreeSet<(String, String)>>,
    added: Notify,
}

impl Unrouted {
    pub(super) fn add(&self, namespace: String, name: String) {
        let mut waiting = lock(&self.waiting);
        if waiting.len() < UNROUTED_MAX {
            waiting.insert((namespace, name));
            self.added.notify_one();
        }
    }

    /// The next Service, by namespace and name.
    pub(super) async fn next(&self) -> (String, String) {
        loop {
            let first = lock(&self.waiting).pop_first();
            match first {
                Some(first) => return first,
                None => self.added.notified().await,
            }
        }
    }
}
