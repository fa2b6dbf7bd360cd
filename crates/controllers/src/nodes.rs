//! Simulated nodes: they say that they run what is bound to them.
//!
//! River: watch of pods and nodes → **simulated nodes** → status, leases, deletions.
//! Promise: everything is decided from what the API server has, so a process that is killed at any
//! point and started again goes on where the objects are; one informer of pods and one queue of
//! timers serve all nodes, however many.
//!
//! Three small controllers share the work: `node` keeps the Node objects, `lease` renews the
//! heartbeats, `kubelet` moves pods through their life. What a pod does and when is in `rules`.

mod addresses;
mod kubelet;
mod lease;
mod life;
mod node;
pub mod rules;
mod status;
mod timers;

pub(crate) use self::kubelet::prepare as kubelet;
pub(crate) use self::lease::prepare as lease;
pub(crate) use self::node::prepare as node;
pub use self::rules::Rules;

/// What the simulated nodes are like.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many there are.
    pub count: usize,
    /// What nodes have and how pods behave on them.
    pub rules: Rules,
}

impl Default for Options {
    fn default() -> Options {
        Options { count: 3, rules: Rules::default() }
    }
}

/// Marks a Node object as one of ours.
pub const SIMULATED: &str = "headwater.dev/simulated";
/// On a Node: it stops renewing its lease and looking after its pods, as if its power was cut.
pub const OFFLINE: &str = "headwater.dev/offline";

const PREFIX: &str = "node-";

/// The name of a simulated node.
pub(crate) fn name(number: usize) -> String {
    format!("{PREFIX}{number}")
}

/// The number of a simulated node, if it is one of `count`.
pub(crate) fn number(name: &str, count: usize) -> Option<usize> {
    let digits = name.strip_prefix(PREFIX)?;
    let number: usize = digits.parse().ok()?;
    // "node-07" is somebody else's.
    (number < count && digits == number.to_string()).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulated_node_is_known_by_its_name() {
        assert_eq!(number(&name(2), 3), Some(2));
        for other in ["node-3", "node-02", "node-", "node--1", "worker-1", "xnode-1"] {
            assert_eq!(number(other, 3), None, "{other}");
        }
    }
}
