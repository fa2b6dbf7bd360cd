//! The scheduler cache: nodes, the pods on them and the pods that are assumed to be.
//!
//! River: informers → **cache** → decisions.
//! Promise: a decision counts at once, before the watch reports the binding.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;

use headwater_client::{Cached, Key};
use k8s_openapi::api::core::v1::Node;

use super::budgets::DisruptionBudgets;
use super::pod_info::{HostPort, PodInfo};
use super::reason::ClusterEvent;
use super::resources::ResourceAmounts;
use super::volumes::StorageObjects;

/// A node and the pods on it.
#[derive(Debug, Default)]
pub(crate) struct NodeInfo {
    /// `None` while only pods refer to the node.
    pub(crate) node: Option<Arc<Node>>,
    pub(crate) allocatable: ResourceAmounts,
    pub(crate) allowed_pods: usize,
    pub(crate) requested: ResourceAmounts,
    /// Requested CPU and memory, for scoring.
    pub(crate) non_zero_requests: (i64, i64),
    pub(crate) pods: BTreeMap<Key, Arc<PodInfo>>,
    /// The number of pods of each controller, by its UID.
    owners: HashMap<String, usize>,
}

/// All nodes and assigned pods.
#[derive(Debug, Default)]
pub(crate) struct SchedulerCache {
    nodes: BTreeMap<String, NodeInfo>,
    assigned: HashMap<Key, Placement>,
    /// Pods that wait for preempted pods to leave a node.
    nominated: BTreeMap<Key, (String, Arc<PodInfo>)>,
    /// Assigned pods with required anti-affinity, and their node.
    with_anti_affinity: BTreeMap<Key, String>,
    pub(crate) budgets: DisruptionBudgets,
    pub(crate) storage: StorageObjects,
}

#[derive(Debug)]
struct Placement {
    node: String,
    is_assumed: bool,
}

impl NodeInfo {
    /// A node without pods, of which only labels and taints are read.
    pub(crate) fn bare(node: &Arc<Node>) -> NodeInfo {
        NodeInfo { node: Some(Arc::clone(node)), ..NodeInfo::default() }
    }

    pub(crate) fn add_pod(&mut self, pod_info: &Arc<PodInfo>) {
        self.requested.add(&pod_info.requests);
        self.non_zero_requests.0 += pod_info.non_zero_requests.0;
        self.non_zero_requests.1 += pod_info.non_zero_requests.1;
        if let Some(owner) = pod_info.pod.controller_uid() {
            *self.owners.entry(owner.to_owned()).or_default() += 1;
        }
        self.pods.insert(pod_info.key.clone(), Arc::clone(pod_info));
    }

    pub(crate) fn remove_pod(&mut self, key: &Key) {
        let Some(pod_info) = self.pods.remove(key) else { return };
        self.requested.subtract(&pod_info.requests);
        self.non_zero_requests.0 -= pod_info.non_zero_requests.0;
        self.non_zero_requests.1 -= pod_info.non_zero_requests.1;
        if let Some(owner) = pod_info.pod.controller_uid()
            && let Some(count) = self.owners.get_mut(owner)
        {
            *count -= 1;
            if *count == 0 {
                self.owners.remove(owner);
            }
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.node.as_deref().map_or("", Cached::name)
    }

    /// A label of the node.
    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        self.node.as_ref()?.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }

    pub(crate) fn pods_owned_by(&self, uid: &str) -> usize {
        self.owners.get(uid).copied().unwrap_or(0)
    }

    pub(crate) fn occupies(&self, port: &HostPort) -> bool {
        self.pods.values().flat_map(|pod_info| &pod_info.ports).any(|taken| taken.clashes(port))
    }

    /// A copy of the node without some of its pods.
    pub(crate) fn without(&self, removed: impl Fn(&PodInfo) -> bool) -> NodeInfo {
        let mut node_info = NodeInfo {
            node: self.node.clone(),
            allocatable: self.allocatable.clone(),
            allowed_pods: self.allowed_pods,
            ..NodeInfo::default()
        };
        self.pods.values().filter(|pod| !removed(pod)).for_each(|pod| node_info.add_pod(pod));
        node_info
    }
}

impl SchedulerCache {
    /// All nodes in name order, starting after `last` and wrapping around.
    pub(crate) fn nodes_after<'a>(&'a self, last: &str) -> impl Iterator<Item = &'a NodeInfo> {
        let after = self.nodes.range::<str, _>((Excluded(last), Unbounded));
        let before = self.nodes.range::<str, _>((Unbounded, Included(last)));
        after.chain(before).map(|(_, info)| info).filter(|info| info.node.is_some())
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = &NodeInfo> {
        self.nodes.values().filter(|info| info.node.is_some())
    }

    pub(crate) fn node_info(&self, name: &str) -> Option<&NodeInfo> {
        self.nodes.get(name)
    }

    /// Assigned pods with required anti-affinity, with their nodes.
    pub(crate) fn pods_with_anti_affinity(
        &self,
    ) -> impl Iterator<Item = (&Arc<PodInfo>, &NodeInfo)> {
        self.with_anti_affinity.iter().filter_map(|(key, name)| {
            let node_info = self.nodes.get(name)?;
            Some((node_info.pods.get(key)?, node_info))
        })
    }

    /// Pods that wait for preempted pods to leave a node.
    pub(crate) fn nominated<'a>(&'a self, node: &str) -> impl Iterator<Item = &'a Arc<PodInfo>> {
        self.nominated.values().filter(move |(name, _)| name == node).map(|(_, pod)| pod)
    }

    /// The node that is nominated for a pod.
    pub(crate) fn nomination(&self, key: &Key) -> Option<&str> {
        self.nominated.get(key).map(|(node, _)| &**node)
    }

    pub(crate) fn has_nominated(&self) -> bool {
        !self.nominated.is_empty()
    }

    pub(crate) fn nominate(&mut self, pod_info: &Arc<PodInfo>, node: &str) {
        self.nominated.insert(pod_info.key.clone(), (node.to_owned(), Arc::clone(pod_info)));
    }

    pub(crate) fn remove_nomination(&mut self, key: &Key) {
        self.nominated.remove(key);
    }

    /// Adds or updates a node; returns [`ClusterEvent::NODE`] if scheduling may decide differently.
    pub(crate) fn set_node(&mut self, node: &Arc<Node>) -> ClusterEvent {
        let node_info = self.nodes.entry(node.name().to_owned()).or_default();
        let before = node_info.node.replace(Arc::clone(node));
        if before.is_some_and(|before| schedules_alike(&before, node)) {
            return ClusterEvent::NONE;
        }
        let status = node.status.as_ref();
        let all = status.and_then(|status| status.allocatable.as_ref());
        node_info.allocatable = all.map(ResourceAmounts::of).unwrap_or_default();
        let pods = node_info.allocatable.others.remove("pods").unwrap_or(0);
        node_info.allowed_pods = usize::try_from(pods).unwrap_or(0);
        ClusterEvent::NODE
    }

    pub(crate) fn remove_node(&mut self, name: &str) {
        if let Some(node_info) = self.nodes.get_mut(name) {
            node_info.node = None;
            if node_info.pods.is_empty() {
                self.nodes.remove(name);
            }
        }
    }

    /// Records a pod that the server reports on a node; returns what that means for pending pods.
    pub(crate) fn assign(&mut self, pod_info: &Arc<PodInfo>, node: &str) -> ClusterEvent {
        let known = self.assigned.get(&pod_info.key).filter(|place| place.node == node);
        let is_new = known.is_none_or(|place| place.is_assumed);
        let before = self.nodes.get(node).and_then(|info| info.pods.get(&pod_info.key));
        let is_same = before.is_some_and(|before| before.has_same_footprint(pod_info));
        self.place(pod_info, node, false);
        match (is_new, is_same) {
            (true, _) => ClusterEvent::POD_ASSIGNED,
            (false, true) => ClusterEvent::NONE,
            (false, false) => ClusterEvent::POD_ASSIGNED | ClusterEvent::POD_REMOVED,
        }
    }

    /// Counts a pod on a node until the binding is confirmed or [forgotten](Self::forget).
    pub(crate) fn assume(&mut self, pod_info: &Arc<PodInfo>, node: &str) {
        self.place(pod_info, node, true);
        self.nominated.remove(&pod_info.key);
    }

    fn place(&mut self, pod_info: &Arc<PodInfo>, node: &str, is_assumed: bool) {
        self.remove_pod(&pod_info.key);
        self.nodes.entry(node.to_owned()).or_default().add_pod(pod_info);
        let placement = Placement { node: node.to_owned(), is_assumed };
        self.assigned.insert(pod_info.key.clone(), placement);
        if !pod_info.anti_affinity.is_empty() {
            self.with_anti_affinity.insert(pod_info.key.clone(), node.to_owned());
        }
    }

    /// Removes an assumed pod whose binding failed.
    pub(crate) fn forget(&mut self, key: &Key) {
        if self.is_assumed(key) {
            self.remove_pod(key);
        }
    }

    pub(crate) fn is_assumed(&self, key: &Key) -> bool {
        self.assigned.get(key).is_some_and(|place| place.is_assumed)
    }

    /// An assigned or assumed pod.
    pub(crate) fn pod(&self, key: &Key) -> Option<&Arc<PodInfo>> {
        self.nodes.get(&self.assigned.get(key)?.node)?.pods.get(key)
    }

    /// Removes a pod; returns whether it was on a node.
    pub(crate) fn remove_pod(&mut self, key: &Key) -> bool {
        let Some(Placement { node, .. }) = self.assigned.remove(key) else { return false };
        self.with_anti_affinity.remove(key);
        if let Some(node_info) = self.nodes.get_mut(&node) {
            node_info.remove_pod(key);
            if node_info.pods.is_empty() && node_info.node.is_none() {
                self.nodes.remove(&node);
            }
        }
        true
    }
}

/// Whether scheduling decides the same for both states of a node.
fn schedules_alike(before: &Node, after: &Node) -> bool {
    let allocatable =
        |node: &Node| node.status.as_ref().and_then(|status| status.allocatable.clone());
    let spec = |node: &Node| {
        let spec = node.spec.as_ref();
        spec.map(|spec| (spec.taints.clone(), spec.unschedulable.unwrap_or(false)))
    };
    before.metadata.labels == after.metadata.labels
        && before.metadata.uid == after.metadata.uid
        && spec(before) == spec(after)
        && allocatable(before) == allocatable(after)
}
