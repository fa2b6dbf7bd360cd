//! Why a pod does not fit on a node, in kube-scheduler's words, and which events may change that.

use std::fmt;
use std::ops::BitOr;

/// Why a pod does not fit on a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FitReason {
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
    /// Of the claims of the pod, on whichever node.
    Claims(String),
    SoleClaim,
    VolumeLimit,
    VolumeGone,
    VolumeNode,
    VolumeAbsent,
    VolumeZone,
}

impl fmt::Display for FitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FitReason::Unschedulable => "node(s) were unschedulable",
            FitReason::Taint => "node(s) had untolerated taint(s)",
            FitReason::NodeAffinity => "node(s) didn't match Pod's node affinity/selector",
            FitReason::Ports => "node(s) didn't have free ports for the requested pod ports",
            FitReason::Insufficient(resource) => return write!(f, "Insufficient {resource}"),
            FitReason::TooManyPods => "Too many pods",
            FitReason::Spread => "node(s) didn't match pod topology spread constraints",
            FitReason::SpreadLabel => {
                "node(s) didn't match pod topology spread constraints (missing required label)"
            }
            FitReason::Affinity => "node(s) didn't match pod affinity rules",
            FitReason::AntiAffinity => "node(s) didn't match pod anti-affinity rules",
            FitReason::ExistingAntiAffinity => {
                "node(s) didn't satisfy existing pods anti-affinity rules"
            }
            FitReason::Claims(why) => why,
            FitReason::SoleClaim => {
                "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
            }
            FitReason::VolumeLimit => "node(s) exceed max volume count",
            FitReason::VolumeGone => {
                "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
            }
            FitReason::VolumeNode => "node(s) didn't match PersistentVolume's node affinity",
            FitReason::VolumeAbsent => "node(s) didn't find available persistent volumes to bind",
            FitReason::VolumeZone => "node(s) had no available volume zone",
        })
    }
}

impl FitReason {
    /// Whether preempting pods on the node may help.
    pub(crate) fn is_resolvable(&self) -> bool {
        matches!(self, FitReason::Insufficient(_) | FitReason::TooManyPods | FitReason::Ports)
    }

    /// The events that may resolve it.
    pub(crate) fn resolved_by(&self) -> ClusterEvent {
        match self {
            FitReason::Unschedulable | FitReason::Taint | FitReason::NodeAffinity => {
                ClusterEvent::NODE
            }
            FitReason::SpreadLabel => ClusterEvent::NODE,
            FitReason::Ports | FitReason::AntiAffinity | FitReason::ExistingAntiAffinity => {
                ClusterEvent::NODE | ClusterEvent::POD_REMOVED
            }
            FitReason::Insufficient(_) | FitReason::TooManyPods => {
                ClusterEvent::NODE | ClusterEvent::POD_REMOVED
            }
            FitReason::Spread => {
                ClusterEvent::NODE | ClusterEvent::POD_REMOVED | ClusterEvent::POD_ASSIGNED
            }
            FitReason::Affinity => ClusterEvent::NODE | ClusterEvent::POD_ASSIGNED,
            FitReason::Claims(_) | FitReason::VolumeGone => ClusterEvent::STORAGE,
            FitReason::SoleClaim | FitReason::VolumeLimit => {
                ClusterEvent::STORAGE | ClusterEvent::POD_REMOVED
            }
            FitReason::VolumeNode | FitReason::VolumeAbsent | FitReason::VolumeZone => {
                ClusterEvent::STORAGE | ClusterEvent::NODE
            }
        }
    }
}

/// A set of cluster events that may make an unschedulable pod schedulable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterEvent(u8);

impl ClusterEvent {
    pub(crate) const NONE: ClusterEvent = ClusterEvent(0);
    /// A node was added, or changed in a way that matters to scheduling.
    pub(crate) const NODE: ClusterEvent = ClusterEvent(1);
    /// A pod left a node.
    pub(crate) const POD_REMOVED: ClusterEvent = ClusterEvent(2);
    /// A pod was assigned to a node, or its labels changed.
    pub(crate) const POD_ASSIGNED: ClusterEvent = ClusterEvent(4);
    /// A claim, a volume, a class or the drivers of a node changed.
    pub(crate) const STORAGE: ClusterEvent = ClusterEvent(8);

    pub(crate) fn intersects(self, other: ClusterEvent) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for ClusterEvent {
    type Output = ClusterEvent;

    fn bitor(self, other: ClusterEvent) -> ClusterEvent {
        ClusterEvent(self.0 | other.0)
    }
}

/// `0/3 nodes are available: 1 Too many pods, 2 Insufficient cpu.`, sorted by text.
pub(crate) fn sentence<'a>(
    total: usize,
    reasons: impl IntoIterator<Item = (&'a dyn fmt::Display, usize)>,
) -> String {
    let counted = reasons.into_iter().map(|(reason, count)| format!("{count} {reason}"));
    let mut counted: Vec<String> = counted.collect();
    counted.sort();
    format!("0/{total} nodes are available: {}.", counted.join(", "))
}
