//! Simulated nodes: report that they run the pods that are bound to them.
//!
//! River: watch of pods and nodes → **simulated nodes** → status, leases, deletions.
//! Promise: every decision is based on objects of the API server, so a process that is killed at
//! any point resumes after a restart. One informer of pods and one set of timers serve all nodes.
//!
//! Three controllers share the work: `node` maintains the Node objects, `lease` renews the
//! heartbeats, `kubelet` moves pods through their lifecycle. `rules` defines what a pod does and
//! when.

mod addresses;
pub mod containers;
mod kubelet;
mod lease;
pub mod load;
mod pod_lifecycle;
mod node;
pub mod rules;
mod pod_status;
mod probes;
mod references;
pub mod replies;
mod timers;

pub(crate) use self::kubelet::prepare as kubelet;
pub(crate) use self::lease::prepare as lease;
pub(crate) use self::node::prepare as node;
pub use self::rules::Rules;

/// The simulated nodes.
#[derive(Clone, Debug)]
pub struct Options {
    /// The number of nodes.
    pub count: usize,
    /// The capacity of nodes and the behaviour of pods on them.
    pub rules: Rules,
}

impl Default for Options {
    fn default() -> Options {
        Options { count: 3, rules: Rules::default() }
    }
}

/// The label of a simulated Node.
pub const SIMULATED: &str = "headwater.dev/simulated";
/// The annotation that takes a Node offline: its lease is not renewed and its pods are not updated,
/// as after a power failure.
pub const OFFLINE: &str = "headwater.dev/offline";

const PREFIX: &str = "node-";

/// The name of a simulated node.
pub(crate) fn name(number: usize) -> String {
    format!("{PREFIX}{number}")
}

/// The number of a simulated node, if it is below `count`.
pub(crate) fn number(name: &str, count: usize) -> Option<usize> {
    let digits = name.strip_prefix(PREFIX)?;
    let number: usize = digits.parse().ok()?;
    // `node-07` is not a simulated node.
    (number < count && digits == number.to_string()).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulated_node_is_recognized_by_its_name() {
        assert_eq!(number(&name(2), 3), Some(2));
        for other in ["node-3", "node-02", "node-", "node--1", "worker-1", "xnode-1"] {
            assert_eq!(number(other, 3), None, "{other}");
        }
    }
}
