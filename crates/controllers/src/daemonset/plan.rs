//! The next writes of a DaemonSet, decided from its pods and the nodes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use headwater_client::Cached;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetStatus};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::difference::count;
use crate::int_or_percent::resolve;
use crate::pod::Pod;
use crate::revisions::POD_REVISION;
use crate::time;

use super::placement::{DaemonPlacement, PodProbe, node_of};

/// The current state of a set.
pub(super) struct SetState<'a> {
    pub(super) set: &'a DaemonSet,
    /// The name of the newest revision.
    pub(super) revision: &'a str,
    pub(super) pods: &'a [Arc<Pod>],
    pub(super) nodes: &'a [Arc<Node>],
    pub(super) now: Timestamp,
}

/// What is due now.
#[derive(Debug, Default, PartialEq)]
pub(super) struct DaemonPlan {
    /// The nodes that get a pod.
    pub(super) create: Vec<String>,
    pub(super) delete: Vec<Arc<Pod>>,
    /// Pods that ended; they are deleted and created again.
    pub(super) ended: Vec<Arc<Pod>>,
    pub(super) status: DaemonSetStatus,
    /// When to check again without a change.
    pub(super) next_check: Option<Duration>,
}

/// A node with the set's pods on it, oldest first.
struct DaemonNode<'a> {
    name: &'a str,
    placement: DaemonPlacement,
    pods: Vec<&'a Arc<Pod>>,
}

/// The limits of a rolling update, in nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct UpdateLimits {
    surge: usize,
    unavailable: usize,
}

impl<'a> DaemonNode<'a> {
    fn living(&self) -> Vec<&'a Arc<Pod>> {
        self.pods.iter().copied().filter(|pod| !pod.is_deleting()).collect()
    }
}

impl SetState<'_> {
    pub(super) fn plan(&self) -> DaemonPlan {
        let probe = PodProbe::of(self.set);
        let mut by_node: BTreeMap<&str, Vec<&Arc<Pod>>> = BTreeMap::new();
        for pod in self.pods {
            by_node.entry(node_of(pod).unwrap_or_default()).or_default().push(pod);
        }
        let created = |pod: &Pod| pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let mut nodes = Vec::with_capacity(self.nodes.len());
        for node in self.nodes {
            let mut pods = by_node.remove(node.name()).unwrap_or_default();
            pods.sort_by_key(|pod| (created(pod), pod.name()));
            nodes.push(DaemonNode { name: node.name(), placement: probe.placement(node), pods });
        }
        let mut plan = DaemonPlan { status: self.status(&nodes), ..DaemonPlan::default() };
        let waits = self.pods.iter().filter_map(|pod| self.until_available(pod));
        plan.next_check = waits.filter(|wait| !wait.is_zero()).min();
        if self.set.metadata.deletion_timestamp.is_some() {
            return plan;
        }
        let limits = self.limits(plan.status.desired_number_scheduled);
        for node in &nodes {
            self.maintain(node, limits, &mut plan);
        }
        // A pod that waits for a node that does not exist will never run; a bound one is left to
        // the node lifecycle.
        let stranded = by_node.into_values().flatten();
        plan.delete
            .extend(stranded.filter(|pod| pod.node().is_none() && !pod.is_deleting()).cloned());
        if let Some(limits) = limits
            && plan.create.is_empty()
            && plan.delete.is_empty()
            && plan.ended.is_empty()
        {
            match limits.surge {
                0 => self.replace(&nodes, limits.unavailable, &mut plan),
                surge => self.surge(&nodes, surge, &mut plan),
            }
        }
        plan
    }

    /// Creates the pod of a node, or deletes those that it should not run.
    fn maintain(&self, node: &DaemonNode<'_>, limits: Option<UpdateLimits>, plan: &mut DaemonPlan) {
        let living = || node.pods.iter().copied().filter(|pod| !pod.is_deleting());
        if node.placement == DaemonPlacement::Remove {
            plan.delete.extend(living().cloned());
            return;
        }
        if node.placement == DaemonPlacement::Run && node.pods.is_empty() {
            plan.create.push(node.name.to_owned());
            return;
        }
        plan.ended.extend(living().filter(|pod| pod.is_finished()).cloned());
        let running: Vec<&Arc<Pod>> = living().filter(|pod| !pod.is_finished()).collect();
        match limits {
            Some(UpdateLimits { surge: 1.., .. }) => {
                let (new, old): (Vec<&Arc<Pod>>, Vec<&Arc<Pod>>) =
                    running.into_iter().partition(|pod| self.is_new(pod));
                let surplus = new.iter().skip(1).chain(old.iter().skip(1));
                plan.delete.extend(surplus.copied().cloned());
                if let (Some(new), Some(old)) = (new.first(), old.first())
                    && (!old.is_ready() || self.is_available(new))
                {
                    plan.delete.push(Arc::clone(*old));
                }
            }
            _ => plan.delete.extend(running.into_iter().skip(1).cloned()),
        }
    }

    /// Deletes old pods; those that are not available cost no availability.
    fn replace(&self, nodes: &[DaemonNode<'_>], max: usize, plan: &mut DaemonPlan) {
        let mut unavailable = 0;
        let mut candidates = Vec::new();
        for node in nodes.iter().filter(|node| node.placement == DaemonPlacement::Run) {
            let living = node.living();
            match living.as_slice() {
                [pod] if self.is_new(pod) => unavailable += usize::from(!self.is_available(pod)),
                [pod] if self.is_available(pod) => candidates.push(Arc::clone(pod)),
                [pod] => {
                    unavailable += 1;
                    plan.delete.push(Arc::clone(pod));
                }
                _ => unavailable += 1,
            }
        }
        let budget = max.saturating_sub(unavailable);
        plan.delete.extend(candidates.into_iter().take(budget));
    }

    /// Creates new pods next to old ones; an old pod that is not available needs no budget.
    fn surge(&self, nodes: &[DaemonNode<'_>], max: usize, plan: &mut DaemonPlan) {
        let mut surging = 0;
        let mut candidates = Vec::new();
        for node in nodes.iter().filter(|node| node.placement == DaemonPlacement::Run) {
            let living = node.living();
            let old = living.iter().find(|pod| !self.is_new(pod));
            let has_new = living.iter().any(|pod| self.is_new(pod));
            match old {
                None => {}
                Some(_) if has_new => surging += 1,
                Some(old) if self.is_available(old) => candidates.push(node.name.to_owned()),
                Some(_) => plan.create.push(node.name.to_owned()),
            }
        }
        plan.create.extend(candidates.into_iter().take(max.saturating_sub(surging)));
    }

    fn status(&self, nodes: &[DaemonNode<'_>]) -> DaemonSetStatus {
        let before = self.set.status.clone().unwrap_or_default();
        let mut status = DaemonSetStatus {
            observed_generation: self.set.metadata.generation,
            collision_count: before.collision_count,
            conditions: before.conditions,
            ..DaemonSetStatus::default()
        };
        let (mut updated, mut available) = (0, 0);
        for node in nodes {
            let oldest = node.pods.first();
            if node.placement != DaemonPlacement::Run {
                status.number_misscheduled += i32::from(oldest.is_some());
                continue;
            }
            status.desired_number_scheduled += 1;
            let Some(oldest) = oldest else { continue };
            status.current_number_scheduled += 1;
            status.number_ready += i32::from(oldest.is_ready());
            available += usize::from(self.is_available(oldest));
            updated += usize::from(self.is_new(oldest));
        }
        let desired = usize::try_from(status.desired_number_scheduled).unwrap_or(0);
        status.updated_number_scheduled = count(updated);
        status.number_available = count(available);
        status.number_unavailable = count(desired.saturating_sub(available));
        status
    }

    /// The limits of a rolling update; `None` for `OnDelete`. They are never both zero.
    fn limits(&self, desired: i32) -> Option<UpdateLimits> {
        let strategy = self.set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
        if strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete") {
            return None;
        }
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let of = |wanted: Option<&IntOrString>| {
            let number = wanted.and_then(|wanted| resolve(wanted, desired, f64::ceil).ok());
            number.map(|number| usize::try_from(number).unwrap_or(0))
        };
        let surge = of(rolling.and_then(|rolling| rolling.max_surge.as_ref())).unwrap_or(0);
        let unavailable = of(rolling.and_then(|rolling| rolling.max_unavailable.as_ref()));
        let unavailable = unavailable.unwrap_or(1).max(usize::from(surge == 0));
        Some(UpdateLimits { surge, unavailable })
    }

    fn is_new(&self, pod: &Pod) -> bool {
        revision(pod) == self.revision
    }

    fn is_available(&self, pod: &Pod) -> bool {
        self.until_available(pod).is_some_and(|wait| wait.is_zero())
    }

    /// How long a ready pod must stay ready until it is available; `None` if it is not ready.
    fn until_available(&self, pod: &Pod) -> Option<Duration> {
        let seconds = self.set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0);
        let since = pod.ready_since()?.0;
        Some(time::until(self.now, time::after(since, seconds)))
    }
}

/// The revision of a pod's template.
pub(super) fn revision(pod: &Pod) -> &str {
    let labels = pod.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(POD_REVISION)).map_or("", String::as_str)
}

#[cfg(test)]
pub(super) mod tests;
