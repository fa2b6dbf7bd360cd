//! Why a pod does not fit on a node, in the words of kubectl's users, and what may change that.

use std::fmt;
use std::ops::BitOr;

/// Why a pod does not fit on a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    Unschedulable,
    Taint,
    NodeAffinity,
    Ports,
    Insufficient(String),
    TooManyPods,
    Spread,
    SpreadLabel,
    Affinity,
    AntiAffinity,
    ExistingAntiAffinity,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Unschedulable => "node(s) were unschedulable",
            Reason::Taint => "node(s) had untolerated taint(s)",
            Reason::NodeAffinity => "node(s) didn't match Pod's node affinity/selector",
            Reason::Ports => "node(s) didn't have free ports for the requested pod ports",
            Reason::Insufficient(resource) => return write!(f, "Insufficient {resource}"),
            Reason::TooManyPods => "Too many pods",
            Reason::Spread => "node(s) didn't match pod topology spread constraints",
            Reason::SpreadLabel => {
                "node(s) didn't match pod topology spread constraints (missing required label)"
            }
            Reason::Affinity => "node(s) didn't match pod affinity rules",
            Reason::AntiAffinity => "node(s) didn't match pod anti-affinity rules",
            Reason::ExistingAntiAffinity => {
                "node(s) didn't satisfy existing pods anti-affinity rules"
            }
        })
    }
}

impl Reason {
    /// Whether pushing pods out of the node may help.
    pub(crate) fn is_resolvable(&self) -> bool {
        matches!(self, Reason::Insufficient(_) | Reason::TooManyPods | Reason::Ports)
    }

    /// What may help.
    pub(crate) fn helped_by(&self) -> Happened {
        match self {
            Reason::Unschedulable | Reason::Taint | Reason::NodeAffinity => Happened::NODE,
            Reason::SpreadLabel => Happened::NODE,
            Reason::Ports | Reason::AntiAffinity | Reason::ExistingAntiAffinity => {
                Happened::NODE | Happened::POD_GONE
            }
            Reason::Insufficient(_) | Reason::TooManyPods => Happened::NODE | Happened::POD_GONE,
            Reason::Spread => Happened::NODE | Happened::POD_GONE | Happened::POD_PLACED,
            Reason::Affinity => Happened::NODE | Happened::POD_PLACED,
        }
    }
}

/// Kinds of things that happen in a cluster and may help a pod that waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Happened(u8);

impl Happened {
    pub(crate) const NOTHING: Happened = Happened(0);
    /// A node is new, or changed in what pods look at.
    pub(crate) const NODE: Happened = Happened(1);
    /// A pod left a node.
    pub(crate) const POD_GONE: Happened = Happened(2);
    /// A pod was placed on a node, or its labels changed.
    pub(crate) const POD_PLACED: Happened = Happened(4);

    pub(crate) fn overlaps(self, other: Happened) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Happened {
    type Output = Happened;

    fn bitor(self, other: Happened) -> Happened {
        Happened(self.0 | other.0)
    }
}

/// `0/3 nodes are available: 1 Too many pods, 2 Insufficient cpu.`: counts in the order of their
/// text.
pub(crate) fn sentence<'a>(
    total: usize,
    reasons: impl IntoIterator<Item = (&'a dyn fmt::Display, usize)>,
) -> String {
    let counted = reasons.into_iter().map(|(reason, count)| format!("{count} {reason}"));
    let mut counted: Vec<String> = counted.collect();
    counted.sort();
    format!("0/{total} nodes are available: {}.", counted.join(", "))
}
